//! The tour, in short: the file arrives, each protocol is at work, every attempt is refused, the
//! report is whole.

mod support;

use std::process::Command;

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
    let output = Command::new(env!("CARGO_BIN_EXE_hamlyn"))
        .args(["tour", "--quick", "--report", report.to_str().unwrap(), "/proc/self/exe"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{error}");
    assert!(!text.contains("NOT REFUSED") && text.matches("REFUSED").count() > 48, "{text}");
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
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.contains("<svg") && page.contains("</html>") && page.contains("REFUSED"));
    for protocol in PROTOCOLS {
        let cell = format!("data-of=\"protocol\">{protocol}</td>");
        let row = page.split("<tr>").find(|row| row.contains(&cell)).unwrap_or_default();
        assert!(row.matches("<td ").count() == 4, "{protocol}: {row}");
    }
    // What all paths have in common is said once, and the verdict first.
    assert_eq!(page.matches("a ring in shared memory to another process").count(), 1);
    let (verdict, facts) = (page.find("attempts to do harm were refused"), page.find("kernel"));
    assert!(verdict.unwrap() < facts.unwrap(), "{page}");
    // A seed is a secret: its first digits are shown, those of its token are not.
    let seed = text.split("48536431").nth(1).expect("a seed is shown");
    let digits = seed.chars().take_while(char::is_ascii_hexdigit).count();
    assert!(seed[digits..].starts_with("..") && 8 + digits <= 24, "{seed}");
}

#[test]
fn a_file_that_is_not_there_is_an_error_that_names_it() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_hamlyn")).args(["tour", "/none/such"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/none/such"));
}
