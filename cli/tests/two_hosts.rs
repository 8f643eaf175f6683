//! Two hosts, over loopback: the commands of docs/two-hosts.md, with everything that the keys say.
#![cfg(feature = "tls")]

mod support;

use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    Manager, PublishConfig, Publisher, ReceiveError, SubscribeConfig, Subscriber, WhenSlow,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A host has a directory of its own.
fn hamlyn(host: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
    let variables = std::env::vars().map(|(name, _)| name);
    variables.filter(|name| name.starts_with("HAMLYN_")).for_each(|name| {
        command.env_remove(name);
    });
    command.args(line.split(' ')).env("HAMLYN_DIR", host).current_dir(host);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// Its standard output; it must succeed.
fn said(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Its standard error; it must fail.
fn complaint(command: &mut Command) -> String {
    let output = output(command);
    assert!(!output.status.success(), "{}", text(&output.stdout));
    text(&output.stderr)
}

/// The settings that lines such as `export NAME=VALUE` make.
fn settings(lines: &str) -> Vec<(String, String)> {
    let exports = lines.lines().filter_map(|line| line.strip_prefix("export "));
    exports.filter_map(|line| line.split_once('=')).map(|(n, v)| (n.into(), v.into())).collect()
}

/// One that serves, and where other hosts find it, as it says itself.
fn serving(command: &mut Command) -> (Child, String) {
    let mut child = command.env("HAMLYN_LISTEN", "127.0.0.1:0").spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut all = String::new();
    let at = loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended: {all}");
        if let Some((_, at)) = line.split_once("for other hosts at ") {
            break at.trim().to_owned();
        }
        all += &line;
    };
    // Its further output must not block it.
    std::thread::spawn(move || drop(lines.read_to_end(&mut Vec::new())));
    (child, at)
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn a_file_goes_to_another_host_with_a_secret() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let lines = said(&mut hamlyn(there.path(), "keys a.secret"));
    let keys = settings(&lines);
    assert!(keys.len() == 1 && keys[0].0 == "HAMLYN_SECRET", "{lines}");
    let secret = there.path().join("a.secret");
    assert_eq!((mode(&secret), Path::new(&keys[0].1)), (0o600, secret.as_path()));
    let before = std::fs::read(&secret).unwrap();
    let error = complaint(&mut hamlyn(there.path(), "keys a.secret"));
    assert!(error.contains("is there already") && error.contains("--force"), "{error}");
    assert_eq!(std::fs::read(&secret).unwrap(), before);
    said(&mut hamlyn(there.path(), "keys a.secret --force"));
    assert_ne!(std::fs::read(&secret).unwrap(), before);

    let (mut receiver, at) = serving(hamlyn(there.path(), "recv --wait 20 x").envs(keys.clone()));
    let mut stdout = receiver.stdout.take().unwrap();
    let came = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes).unwrap()
    });
    // Without the secret, and with another one.
    let name = format!("send --wait 1 {at}");
    let error = complaint(&mut hamlyn(here.path(), &name));
    assert!(error.contains("HAMLYN_SECRET"), "{error}");
    let others = settings(&said(&mut hamlyn(here.path(), "keys")));
    let error = complaint(hamlyn(here.path(), &name).envs(others));
    assert!(error.contains("does not have the same secret"), "{error}");
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
    let mut sender = hamlyn(here.path(), &format!("send {at}")).envs(keys).spawn().unwrap();
    sender.stdin.take().unwrap().write_all(&bytes).unwrap();
    let sent = sender.wait_with_output().unwrap();
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    assert!(came.join().unwrap() == bytes && receiver.wait().unwrap().success());
}

#[test]
fn certificates_are_made_for_each_host_by_one_authority() {
    let there = tempfile::tempdir().unwrap();
    let line = "keys k --certificate user.example,127.0.0.1 --certificate other.example";
    let lines = said(&mut hamlyn(there.path(), line));
    assert_eq!(settings(&lines).len(), 6, "{lines}");
    let folder = there.path().join("k");
    assert_eq!(mode(&folder), 0o700);
    let read = || {
        let all = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        all.map(|path| (std::fs::read(&path).unwrap(), path)).collect::<Vec<_>>()
    };
    let before = read();
    assert_eq!(before.len(), 6);
    assert!(before.iter().all(|(_, path)| mode(path) == 0o600));
    // None that is there is written over, nor is one made of those beside it.
    let error = complaint(&mut hamlyn(
        there.path(),
        "keys k --certificate new --certificate other.example",
    ));
    assert!(error.contains("other.example.pem is there already"), "{error}");
    assert_eq!(read().len(), before.len());
    // Another one later, by the same authority, which stays as it was.
    said(&mut hamlyn(there.path(), "keys k --certificate other.example --force"));
    let changed = read().iter().filter(|file| !before.contains(file)).count();
    assert_eq!(changed, 2);
}

#[test]
fn an_authority_that_another_user_can_have_planted_signs_nothing() {
    let root = rustix::process::geteuid().is_root();
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("open");
    std::fs::create_dir(&folder).unwrap();
    let chmod = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let keys = format!("keys {}/keys --certificate a", folder.display());
    let again = format!("{keys} --force");
    let secret = format!("keys {}/secret", folder.display());
    // Others can write where the keys will be.
    chmod(&folder, 0o777);
    for line in [&keys, &secret] {
        let error = complaint(&mut hamlyn(home.path(), line));
        assert!(error.contains(&format!("chmod go-w {}", folder.display())), "{error}");
    }
    assert_eq!(folder.read_dir().unwrap().count(), 0);
    chmod(&folder, 0o1777);
    said(&mut hamlyn(home.path(), &keys));
    said(&mut hamlyn(home.path(), &secret));
    // An existing directory can be another user's.
    let authority = folder.join("keys/authority.pem");
    let key = folder.join("keys/authority-key.pem");
    chmod(&key, 0o640);
    let error = complaint(&mut hamlyn(home.path(), &again));
    assert!(error.contains(&format!("chmod 600 {}", key.display())), "{error}");
    chmod(&key, 0o600);
    chmod(&authority, 0o666);
    let error = complaint(&mut hamlyn(home.path(), &again));
    assert!(error.contains(&format!("chmod go-w {}", authority.display())), "{error}");
    chmod(&authority, 0o644);
    if root {
        for path in [&folder.join("keys"), &authority, &key] {
            let give = |to| std::os::unix::fs::chown(path, Some(to), None).unwrap();
            give(65534);
            let error = complaint(&mut hamlyn(home.path(), &again));
            assert!(error.contains("belongs to user 65534"), "{error}");
            give(0);
        }
    } else {
        support::skipped("only root can give an authority to another user");
    }
    said(&mut hamlyn(home.path(), &again));
}

#[test]
fn who_has_no_certificate_of_the_authority_does_not_connect() {
    let there = tempfile::tempdir().unwrap();
    let line = "keys k --certificate user.example,127.0.0.1 --certificate other.example";
    let all = settings(&said(&mut hamlyn(there.path(), line)));
    let (keys, others) = (all[..3].to_vec(), all[3..].to_vec());
    let here = tempfile::tempdir().unwrap();
    let foreign = settings(&said(&mut hamlyn(here.path(), line)));
    let (mut receiver, at) = serving(hamlyn(there.path(), "recv --wait 20 x").envs(keys.clone()));
    let name = format!("send --wait 1 {at}");
    let send = |keys: &[(String, String)]| {
        let keys = keys.to_vec();
        output(hamlyn(here.path(), &name).envs(keys))
    };
    let error = text(&send(&foreign[..3]).stderr);
    assert!(error.contains("TLS"), "{error}");
    // One of the same authority, with another name: not this user.
    let error = text(&send(&others).stderr);
    assert!(error.contains("not for other hosts"), "{error}");
    let sent = send(&keys);
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    // Unless it is let in by that name.
    let line = "recv --wait 20 --allow host:other.example x";
    let (mut named, at) = serving(hamlyn(there.path(), line).envs(keys.clone()));
    let sent = output(hamlyn(here.path(), &format!("send --wait 5 {at}")).envs(others.clone()));
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    assert!(named.wait().unwrap().success());
    assert!(receiver.wait().unwrap().success());
}

#[test]
fn what_another_host_does_not_tell_is_refused_with_what_to_do() {
    let here = tempfile::tempdir().unwrap();
    for line in ["stat", "top --once"] {
        let line = format!("{line} hamlyn://127.0.0.1:7000/x");
        let output = output(&mut hamlyn(here.path(), &line));
        let error = text(&output.stderr) + &text(&output.stdout);
        assert!(error.contains("HAMLYN_SECRET"), "{line}: {error}");
    }
    for line in ["recv", "perf serve"] {
        let error =
            complaint(&mut hamlyn(here.path(), &format!("{line} hamlyn://127.0.0.1:7000/x")));
        assert!(error.contains("HAMLYN_LISTEN"), "{line}: {error}");
    }
    for (line, wanted) in [
        ("keys k --certificate a/b", "a-z A-Z 0-9"),
        ("keys k --certificate authority", "authority's own"),
        ("keys k --certificate a --certificate a", "twice"),
        ("keys k --certificate 192.0.2.1,192.0.2.2", "addresses alone"),
        ("keys k --days 3", "--certificate"),
    ] {
        let error = complaint(&mut hamlyn(here.path(), line));
        assert!(error.contains(wanted), "{line}: {error}");
        assert!(!here.path().join("k").exists(), "{line}");
    }
}

#[test]
fn what_is_wrong_with_a_certificate_is_told_with_what_to_do_at_both_ends() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let line = "keys k --certificate a.example,127.0.0.1 --certificate b.example";
    let all = settings(&said(&mut hamlyn(there.path(), line)));
    let foreign = settings(&said(&mut hamlyn(here.path(), line)));
    let receive = "recv --wait 60 x --allow anyone";
    let mut receiver = hamlyn(there.path(), receive);
    receiver.envs(all[..3].to_vec()).env("HAMLYN_SHARED_DIR", there.path());
    let (mut receiver, at) = serving(&mut receiver);
    let there_said = || {
        let mut why = hamlyn(there.path(), "why x");
        said(why.env("HAMLYN_SHARED_DIR", there.path()))
    };
    // Another authority at the client: its own words, and where it trusts the right one, the server's.
    let (out, ..) = why(here.path(), &foreign[3..], &at);
    assert!(
        out.contains("UnknownIssuer") && out.contains("HAMLYN_TRUSTED here has to hold"),
        "{out}"
    );
    assert!(there_said().contains("does not trust this end's certificate"));
    let mut mixed = foreign[3..].to_vec();
    mixed[2] = all[2].clone();
    let (out, ..) = why(here.path(), &mixed, &at);
    assert!(out.contains("does not trust this end's certificate"), "{out}");
    assert!(!out.contains("changed on the way"), "{out}");
    // The server's message about it is complete.
    let told = there_said();
    assert!(told.contains("authority.pem of whoever made it"), "{told}");
    // None at all.
    let (out, ..) = why(here.path(), &[], &at);
    assert!(out.contains("this process has no keys for other hosts"), "{out}");
    // Under a name that is not in the server's.
    let (out, ..) = why(here.path(), &all[3..], &at.replace("127.0.0.1", "localhost"));
    assert!(out.contains("under a name or an address that is in the other end's"), "{out}");
    let told = there_said();
    assert!(
        told.contains("under a name or an address that is not in HAMLYN_CERTIFICATE here"),
        "{told}"
    );
    receiver.kill().unwrap();
    receiver.wait().unwrap();
}

#[test]
fn a_certificate_is_said_to_end_when_its_authority_does() {
    let here = tempfile::tempdir().unwrap();
    let lines = said(&mut hamlyn(here.path(), "keys k --certificate a --days 1"));
    assert!(lines.contains(", for 1 day:"), "{lines}");
    let until = lines.lines().next().unwrap().split(", ").nth(1).unwrap().to_owned();
    assert!(until.starts_with("until 2"), "{lines}");
    let lines = said(&mut hamlyn(here.path(), "keys k --certificate b --days 3650"));
    assert!(lines.contains(&until) && lines.contains("when its authority ends"), "{lines}");
    assert!(lines.contains("not for 3650 days"), "{lines}");
}

#[test]
fn figures_of_another_host_are_shown_as_those_of_this_one_where_it_tells_them() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keys = settings(&said(&mut hamlyn(there.path(), "keys")));
    let start = |name: &str, to: &str| {
        let mut command = hamlyn(there.path(), &format!("recv --wait 60 {name}"));
        serving(command.envs(keys.clone()).env("HAMLYN_FIGURES_TO", to))
    };
    let ((mut told, at), (mut untold, silent)) = (start("told", "secret"), start("untold", ""));
    let run = |line: &str| output(hamlyn(here.path(), line).envs(keys.clone()));
    let out = |line: &str| {
        let output = run(line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let table = out(&format!("stat {at}"));
    assert!(table.contains(&format!("{at}: of host 127.0.0.1:")), "{table}");
    assert!(table.contains("(secret), version"), "{table}");
    for line in ["stat --json", "stat --json --watch=0.2 --times 2"] {
        let json = out(&format!("{line} {at}"));
        let rows: Vec<serde_json::Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), if line.contains("times") { 2 } else { 1 }, "{json}");
        for row in rows {
            assert_eq!(row["name"], *at, "{row}");
            assert!(row["host"].as_str().unwrap().ends_with("(secret)"), "{row}");
            assert!(row["process"].is_null() && row["counters"]["links"].is_u64(), "{row}");
        }
    }
    let top = out(&format!("top --once --interval 0.3 {at}"));
    assert!(top.contains("1 answered"), "{top}");
    let why = out(&format!("why {at}"));
    assert!(why.contains("All of it works") && !why.contains("figures_to"), "{why}");
    let why = out(&format!("why {silent}"));
    assert!(why.contains("figures_to (HAMLYN_FIGURES_TO)"), "{why}");
    let refused = run(&format!("stat {silent}"));
    let error = text(&refused.stderr);
    assert!(!refused.status.success() && error.contains("HAMLYN_FIGURES_TO"), "{error}");
    for child in [&mut told, &mut untold] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Standard output, standard error and the status of a `why` that asks another host.
fn why(host: &Path, keys: &[(String, String)], name: &str) -> (String, String, Option<i32>) {
    let output = output(hamlyn(host, &format!("why {name}")).envs(keys.to_vec()));
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn why_of_a_service_that_is_well_says_so_and_is_no_attempt_that_its_host_counts() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keys = settings(&said(&mut hamlyn(there.path(), "keys")));
    // It accepts `hamlyn send` only.
    let (mut receiver, at) = serving(
        hamlyn(there.path(), "recv --wait 60 x --allow anyone")
            .envs(keys.clone())
            .env("HAMLYN_SHARED_DIR", there.path()),
    );
    let (out, error, status) = why(here.path(), &keys, &at);
    assert!(status == Some(0) && error.is_empty(), "{out}{error}");
    assert!(
        out.contains("the service is served there") && out.contains("All of it works"),
        "{out}"
    );
    assert!(!out.contains("does not"), "{out}");
    let told = hamlyn(there.path(), "stat --json").env("HAMLYN_SHARED_DIR", there.path()).output();
    let told = text(&told.unwrap().stdout);
    assert!(told.contains("\"refusals\":[]"), "{told}");
    let counted = told.split(',').find(|part| {
        part.contains("refused")
            && part.contains(':')
            && !part.trim_end_matches('}').ends_with(":0")
    });
    assert_eq!(counted, None, "{told}");
    // A name that is not served there is one that does not work.
    let nobody = at.rsplit_once('/').unwrap().0.to_owned() + "/nobody";
    let (out, _, status) = why(here.path(), &keys, &nobody);
    assert!(status == Some(1) && out.contains("nobody serves this name there"), "{out}");
    receiver.kill().unwrap();
    receiver.wait().unwrap();
}

#[test]
fn why_says_how_far_it_came_where_a_firewall_drops_or_the_process_is_stopped() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keys = settings(&said(&mut hamlyn(there.path(), "keys")));
    let (mut receiver, at) = serving(hamlyn(there.path(), "recv --wait 60 x").envs(keys.clone()));
    let pid = rustix::process::Pid::from_child(&receiver);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let (out, error, status) = why(here.path(), &keys, &at);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(
        out.starts_with("This works: the host's name has an address; something listens"),
        "{out}"
    );
    assert!(out.contains("This does not:") && out.contains("it is stopped"), "{out}");
    assert!(status == Some(1) && error.contains("no connection to"), "{error}");
    receiver.kill().unwrap();
    receiver.wait().unwrap();

    // A port whose queue is full drops what comes, as a firewall does.
    let listener = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let any = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let port = std::net::TcpListener::from(listener);
    let address = port.local_addr().unwrap();
    let wait = std::time::Duration::from_millis(200);
    let mut held = Vec::new();
    while let Ok(one) = std::net::TcpStream::connect_timeout(&address, wait) {
        held.push(one);
    }
    let (out, error, status) = why(here.path(), &keys, &format!("hamlyn://{address}/x"));
    assert!(out.starts_with("This works: the host's name has an address.\n"), "{out}{error}");
    assert!(out.contains("the host is down, or a firewall"), "{out}");
    assert!(status == Some(1) && error.contains("no connection to"), "{error}");
}

#[test]
fn a_sender_of_another_host_that_is_gone_may_be_dead_or_out_of_reach() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keys = settings(&said(&mut hamlyn(there.path(), "keys")));
    let mut command = hamlyn(there.path(), "recv --wait 60 x");
    let mut receiver =
        command.envs(keys.clone()).env("HAMLYN_LISTEN", "127.0.0.1:0").spawn().unwrap();
    let mut errors = BufReader::new(receiver.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    let at = line.split_once("for other hosts at ").expect("where it listens").1.trim();
    let mut command = hamlyn(here.path(), &format!("send {at}"));
    let mut sender = command.envs(keys).env("HAMLYN_LOCAL", "tls").spawn().unwrap();
    sender.stdin.as_mut().unwrap().write_all(b"half").unwrap();
    receiver.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    sender.kill().unwrap();
    sender.wait().unwrap();
    let mut error = String::new();
    errors.read_to_string(&mut error).unwrap();
    assert_eq!(receiver.wait().unwrap().code(), Some(1), "{error}");
    let said = "the sender died, or cannot be reached any more, after 4 bytes";
    assert!(error.contains(said) && error.contains("not whole"), "{error}");
}

#[test]
fn latency_to_another_host_is_measured() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keys = settings(&said(&mut hamlyn(there.path(), "keys")));
    let (mut server, at) = serving(hamlyn(there.path(), "perf serve p").envs(keys.clone()));
    let line = format!("perf latency --count 200 --runs 1 --json --mode adaptive --to {at}");
    let row = said(hamlyn(here.path(), &line).envs(keys));
    assert!(row.contains("\"one_way_ns\""), "{row}");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn links_to_other_hosts_are_measured_beside_bare_tls() {
    let here = tempfile::tempdir().unwrap();
    for (test, count) in [("latency", 50), ("rate", 100), ("bandwidth", 4)] {
        let line = format!("perf {test} --over tls --count {count} --runs 1 --json");
        let row = said(&mut hamlyn(here.path(), &line));
        let number = |name: &str| {
            let found = row.split_once(&format!("\"{name}\":")).map(|(_, rest)| rest);
            let digits = found.unwrap_or_else(|| panic!("no {name} in {row}"));
            digits.split([',', '}']).next().unwrap().parse::<f64>().unwrap()
        };
        assert!(number("bare_tls") > 0.0 && number("of_bare_tls") > 0.0, "{row}");
        assert!(row.contains("\"raw over TLS\""), "{row}");
    }
}

#[cfg(feature = "libfabric")]
#[test]
fn links_over_a_fabric_are_measured_beside_fi_pingpong_where_it_is_installed() {
    use hamlyn::os::fabric::Library;
    if Library::open(None).is_err() {
        return eprintln!("SKIPPED: libfabric 1.17 or newer (Debian: libfabric1)");
    }
    let here = tempfile::tempdir().unwrap();
    let is_installed = std::process::Command::new("fi_pingpong").arg("-h").output().is_ok();
    if !is_installed {
        eprintln!("SKIPPED: fi_pingpong (Debian: libfabric-bin)");
    }
    for (test, count) in [("latency", 50), ("rate", 100), ("bandwidth", 4)] {
        let line = format!("perf {test} --over fabric --count {count} --runs 1 --json");
        let row = said(&mut hamlyn(here.path(), &line));
        assert!(row.contains("\"raw over libfabric "), "{row}");
        let is_beside = row.contains("\"fi_pingpong\"") && row.contains("\"of_fi_pingpong\"");
        assert_eq!(is_beside, is_installed && test != "rate", "{row}");
    }
}

/// A publisher in this process, whose host has the key; its name for other hosts, and their keys.
fn publisher(host: &Path) -> (Manager, Publisher, String, Vec<(String, String)>) {
    let keys = settings(&said(&mut hamlyn(host, "keys a.secret")));
    let config = hamlyn::Config::from_lookup(|_| None).unwrap().dir(host).secret(&keys[0].1);
    let config = config.listen("127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap());
    let manager = Manager::with_config(config).unwrap();
    manager.start_progress().unwrap();
    let when_slow = WhenSlow::Wait;
    let config = PublishConfig::default();
    let config = PublishConfig { sample_bytes_max: 64 << 10, history: 1, when_slow, ..config };
    let publisher = Publisher::new(&manager, config).unwrap();
    publisher.serve("prices", hamlyn::Access::SameUser).unwrap();
    let name = format!("hamlyn://{}/prices", manager.listens_at().unwrap());
    (manager, publisher, name, keys)
}

/// A subscriber of a relay, and its manager.
fn subscriber(host: &Path, name: &str) -> (Manager, Subscriber) {
    let config = hamlyn::Config::from_lookup(|_| None).unwrap().dir(host);
    let manager = Manager::with_config(config).unwrap();
    let config = SubscribeConfig::default();
    let subscriber = Subscriber::connect(&manager, name, config, LIMIT).unwrap();
    (manager, subscriber)
}

const LIMIT: Option<Duration> = Some(Duration::from_secs(40));

#[test]
fn a_relay_serves_a_publisher_of_another_host_here_until_that_ends() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_manager, publisher, at, keys) = publisher(there.path());
    let sample = |i: u8| vec![i; 64 << 10];
    publisher.publish(&sample(0), LIMIT).unwrap();
    let relay = |line: &str| {
        hamlyn(here.path(), &format!("relay {at} {line}")).envs(keys.clone()).spawn().unwrap()
    };
    let mut first = relay("--history 1 --when-slow wait");
    // It has the last one by the time that it serves, or soon after.
    let (_one, mut one) = subscriber(here.path(), "prices");
    let (_two, mut two) = subscriber(here.path(), "prices");
    for subscriber in [&mut one, &mut two] {
        let got = subscriber.receive(LIMIT).unwrap();
        assert_eq!((got.number(), got.to_vec().unwrap()), (0, sample(0)));
    }
    publisher.publish(&sample(1), LIMIT).unwrap();
    for subscriber in [&mut one, &mut two] {
        assert_eq!(subscriber.receive(LIMIT).unwrap().to_vec().unwrap(), sample(1));
    }
    let told = said(&mut hamlyn(here.path(), "stat prices"));
    assert!(told.contains("TLS") || told.contains("hosts"), "{told}");
    assert_eq!(publisher.subscribers().len(), 1);

    // Killed, it leaves subscribers that know, and a name that the next one takes.
    first.kill().unwrap();
    first.wait().unwrap();
    let end = one.receive(LIMIT).unwrap_err();
    assert!(matches!(end, ReceiveError::Ended(CloseReason::Died)), "{end}");
    let mut second = relay("--history 1");
    let (_three, mut three) = subscriber(here.path(), "prices");
    assert_eq!(three.receive(LIMIT).unwrap().number(), 1);
    let pid = rustix::process::Pid::from_child(&second);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(!second.wait().unwrap().success());
    assert!(!here.path().join("prices").exists(), "its name is left");
    let end = three.receive(LIMIT).unwrap_err();
    assert!(!matches!(end, ReceiveError::Ended(CloseReason::Closed)), "{end}");

    // By another name; it ends well when the publisher does.
    let mut third = relay("--as local-prices --history 1");
    let (_four, mut four) = subscriber(here.path(), "local-prices");
    assert_eq!(four.receive(LIMIT).unwrap().number(), 1);
    publisher.flush(LIMIT).unwrap();
    drop(publisher);
    assert!(third.wait().unwrap().success());
    let end = four.receive(LIMIT).unwrap_err();
    assert!(matches!(end, ReceiveError::Ended(CloseReason::Closed)), "{end}");
}

#[test]
fn a_relay_without_a_publisher_says_so() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_manager, publisher, at, keys) = publisher(there.path());
    let line = format!("relay {at}-other --wait 0.2");
    let error = complaint(hamlyn(here.path(), &line).envs(keys.clone()));
    assert!(error.contains("no publisher at") && error.contains("prices-other"), "{error}");
    let line = format!("relay {at} --sample-max 1000");
    let error = complaint(hamlyn(here.path(), &line).envs(keys));
    assert!(error.contains("65536 bytes"), "{error}");
    drop(publisher);
}
