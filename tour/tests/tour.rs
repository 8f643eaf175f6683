//! The tour, in short: the file arrives, each protocol works, every attempt is refused, the report
//! is complete.

#[path = "../../cli/tests/support/mod.rs"]
mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROTOCOLS: [&str; 10] = [
    "seed",
    "datagram",
    "tagged remote write",
    "request and reply",
    "stream",
    "stream through an aperture",
    "group",
    "helpers of a group",
    "aperture",
    "read-only aperture",
];

#[test]
fn the_tour_refuses_every_attempt_and_leaves_a_report() {
    if std::thread::available_parallelism().is_ok_and(|n| n.get() < 2) {
        support::skipped("in part: measuring needs two processors");
    }
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.html");
    let output = Command::new(env!("CARGO_BIN_EXE_hamlyn-tour"))
        .args(["--quick", "--report", report.to_str().unwrap(), "/proc/self/exe"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{error}");
    assert!(!text.contains("NOT REFUSED") && text.matches("REFUSED").count() > 48, "{text}");
    assert!(text.contains("on the wire: changes a bit"), "{text}");
    let of_protocols = ["Server::misbehaved", "control.refused_end_point", "Misbehaved:"];
    let counters = ["refused_wrong_key", "refused_no_credit", "control.closed_died"];
    let of_control = ["refused_identity", "refused_memory", "refused_cookie", "closed_violation"];
    for counter in counters.iter().chain(&of_protocols).chain(&of_control) {
        assert!(text.contains(counter), "{counter}: {text}");
    }
    // A line of each protocol, and the path that its data took.
    for protocol in PROTOCOLS {
        assert!(text.contains(&format!("\n {protocol} ")), "{protocol}: {text}");
    }
    for curve in ["Latency by length", "Rate by length"] {
        assert!(text.contains(curve), "{text}");
    }
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.contains("<svg") && page.contains("</html>") && page.contains("REFUSED"));
    for protocol in PROTOCOLS {
        let cell = format!("data-of=\"protocol\"><span>{protocol}</span></td>");
        let row = page.split("<tr>").find(|row| row.contains(&cell)).unwrap_or_default();
        assert!(row.matches("<td ").count() == 4, "{protocol}: {row}");
    }
    assert!(page.contains("a reply of 4088 bytes to call 0, where 64 fit"), "{page}");
    // The common part of all paths is printed once, and the verdict first.
    for told in [&page, &text] {
        assert_eq!(told.matches("a ring in shared memory to another process").count(), 1);
    }
    // The same verdict in both, without scrolling up.
    let (_, short) = text.split_once("\nIn short\n").expect("the findings");
    assert!(!short.contains("REFUSED") && short.contains("The report, with charts:"), "{short}");
    let joined = short.split_whitespace().collect::<Vec<_>>().join(" ");
    for finding in ["attempts to do harm", "not to be quoted", "an attacker on the wire"] {
        assert!(joined.contains(finding) && page.contains(finding), "{finding}: {short}");
    }
    assert!(!text.contains('\u{1b}'), "a colour, and there is no terminal: {text}");
    assert!(text.lines().all(|line| line.trim_end() == line), "blanks at an end: {text}");
    // Each of the connections that speak nonsense is counted.
    let nonsense = ["frame +", "version +"].map(|name| {
        let row = page.split("<tr>").find(|row| row.contains("200 connections")).unwrap();
        let number = row.split(name).nth(1).unwrap_or("0");
        number.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u32>().unwrap()
    });
    assert_eq!(nonsense[0] + nonsense[1], 200, "{nonsense:?}");
    let (verdict, facts) = (page.find("attempts to do harm"), page.find("kernel"));
    assert!(verdict.unwrap() < facts.unwrap(), "{page}");
    // A seed is a secret: its first digits are shown, those of its token are not.
    let seed = text.split("48536431").nth(1).expect("a seed is shown");
    let digits = seed.chars().take_while(char::is_ascii_hexdigit).count();
    assert!(seed[digits..].starts_with("..") && 8 + digits <= 24, "{seed}");
}

/// The second act alone; the whole of what it prints.
fn two_hosts(path: Option<&str>) -> String {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn-tour"));
    command.args(["--hosts", "--report", report.to_str().unwrap()]);
    // Settings of the user who runs the tour are not those of the hosts.
    command.env("HAMLYN_RING_BYTES", "512").env("HAMLYN_SECRET", "/none/such");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{error}");
    assert!(!text.contains("NOT REFUSED"), "{text}");
    // Reading the traffic, and cutting the cable, cannot be refused.
    let counts = [" REFUSED", " NO HARM"].map(|word| text.matches(word).count());
    assert_eq!(counts, [8, 2], "{text}");
    for seen in ["TLS 1.3", "links_closed_violation +1", "control.hosts_refused_tls +1"] {
        assert!(text.contains(seen), "{seen}: {text}");
    }
    let page = std::fs::read_to_string(report).unwrap();
    // An honest host is not blamed for an attack on the way, nor reported as dead.
    assert!(page.contains("what was sent was changed on the way, or the peer"), "{page}");
    assert!(!page.contains("its process died") && !page.contains("it broke the rules"), "{page}");
    assert!(
        page.contains(
            "of 10 attempts of an attacker on the wire 8 were refused and 2 did no harm."
        ),
        "{page}"
    );
    text
}

#[test]
fn the_tours_attacker_on_the_wire_between_two_hosts_is_refused_whatever_he_does() {
    let text = two_hosts(None);
    if text.contains("OVER LOOPBACK") {
        let why = text.lines().find(|line| line.contains("OVER LOOPBACK")).unwrap();
        support::skipped(&format!("in part: {}", why.trim()));
    } else {
        assert!(
            text.contains("two network namespaces") && text.contains("to 10.77.1.2:"),
            "{text}"
        );
    }
}

#[test]
fn without_network_namespaces_the_tour_says_so_and_goes_on_over_loopback() {
    let text = two_hosts(Some("/none/such"));
    assert!(text.contains("OVER LOOPBACK") && text.contains("unshare"), "{text}");
    assert!(text.contains("to 127.0.0.1:"), "{text}");
}

#[test]
fn the_tour_leaves_no_keys_when_a_signal_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let temporary = directory.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let report = directory.path().join("report.html");
    let mut tour = Command::new(env!("CARGO_BIN_EXE_hamlyn-tour"))
        .args(["--hosts", "--report", report.to_str().unwrap()])
        .env("TMPDIR", &temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let has = |name: &str| {
        let mut entries = std::fs::read_dir(&temporary).unwrap().flatten();
        entries.any(|entry| entry.path().join(name).exists())
    };
    let end = Instant::now() + Duration::from_secs(20);
    // The second of the two keys.
    while !has("other") {
        assert!(tour.try_wait().unwrap().is_none() && Instant::now() < end, "no keys were seen");
        std::thread::sleep(Duration::from_millis(1));
    }
    let signal = rustix::process::Signal::TERM;
    rustix::process::kill_process(rustix::process::Pid::from_child(&tour), signal).unwrap();
    assert_eq!(tour.wait().unwrap().signal(), Some(signal.as_raw()));
    assert!(!has("secret") && !has("other"), "keys stay in {}", temporary.display());
}

#[test]
fn the_tour_leaves_no_directory_when_a_signal_ends_its_first_act() {
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let temporary = tempfile::tempdir().unwrap();
        let report = temporary.path().join("report.html");
        let mut tour = Command::new(env!("CARGO_BIN_EXE_hamlyn-tour"))
            .args(["--report", report.to_str().unwrap()])
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let name = format!("hamlyn-tour-{}", tour.id());
        let stages = [Path::new("/run").join(&name), temporary.path().join(&name)];
        // The actors are at work in it.
        let is_used = |stage: &PathBuf| {
            std::fs::read_dir(stage).is_ok_and(|mut entries| entries.next().is_some())
        };
        let end = Instant::now() + Duration::from_secs(20);
        while !stages.iter().any(is_used) {
            assert!(tour.try_wait().unwrap().is_none() && Instant::now() < end, "no act was seen");
            std::thread::sleep(Duration::from_millis(1));
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&tour), signal).unwrap();
        assert_eq!(tour.wait().unwrap().signal(), Some(signal.as_raw()));
        let left: Vec<&PathBuf> = stages.iter().filter(|stage| stage.exists()).collect();
        left.iter().for_each(|stage| drop(std::fs::remove_dir_all(stage)));
        assert!(left.is_empty(), "{left:?} stays");
    }
}

#[test]
fn a_tour_that_nobody_reads_on_leaves_its_report_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.html");
    let mut tour = Command::new(env!("CARGO_BIN_EXE_hamlyn-tour"))
        .args(["--hosts", "--report", report.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(tour.stdout.take());
    let output = tour.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read_to_string(report).unwrap().contains("attempts of an attacker"));
}

#[test]
fn a_report_in_a_folder_that_is_not_there_is_an_error_before_anything_is_shown() {
    let output = Command::new(env!("CARGO_BIN_EXE_hamlyn-tour"))
        .args(["--hosts", "--report", "/none/such/report.html"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/none/such/report.html"));
}

#[test]
fn a_file_that_is_not_there_is_an_error_that_names_it() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_hamlyn-tour")).args(["/none/such"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/none/such"));
}
