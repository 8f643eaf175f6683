//! The measuring tool runs; its figures mean nothing in so short a run.

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

fn perf(directory: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hamlyn"))
        .arg("perf")
        .args(line.split_whitespace())
        .env("HAMLYN_DIR", directory)
        .output()
        .unwrap()
}

/// Measurements that look all the time take both processors: one at a time. `None`, loudly, where
/// there is one processor.
fn processors() -> Option<MutexGuard<'static, ()>> {
    static PROCESSORS: Mutex<()> = Mutex::new(());
    if std::thread::available_parallelism().is_ok_and(|n| n.get() < 2) {
        support::skipped("measuring needs two processors");
        return None;
    }
    Some(PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner))
}

fn json(line: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let output = perf(directory.path(), line);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {text}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "{line}: a name was left");
    let output = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.lines().count(), 1, "one object a line: {output}");
    let row: Value = serde_json::from_str(&output).unwrap();
    for field in ["raw_line_one_way_ns", "memcpy_bytes_per_s", "copy_ring_bytes_per_s"] {
        assert!(is_positive(&row[field]), "{field}: {row}");
    }
    // The least checked message of the same length is one packet.
    let is_one_packet =
        row["size"].as_u64().unwrap() <= hamlyn::Config::default().packet_bytes.into();
    for field in ["least_one_way_ns", "least_per_s"] {
        assert_eq!(is_positive(&row[field]), is_one_packet, "{field}: {row}");
    }
    let placement = row["placement"].as_str().unwrap();
    assert!(["near", "shared", "far", "other"].contains(&placement), "{row}");
    row
}

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|value| value > 0.0)
}

/// Whether `ratio` is that of two other values, as far as their decimal digits go.
fn is_ratio(ratio: &Value, of: &Value, to: &Value) -> bool {
    let [ratio, of, to] = [ratio, of, to].map(|value| value.as_f64().unwrap_or(f64::NAN));
    (ratio * to / of - 1.0).abs() < 1e-6
}

/// A service that is ended with what holds it.
struct Served(std::process::Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_reply_ticket_for_another_node_than_its_sender_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
    let server = server.args(["perf", "serve", "far"]).env("HAMLYN_DIR", directory.path());
    let _server = Served(server.stderr(Stdio::null()).spawn().unwrap());
    let config = || hamlyn::Config::default().dir(directory.path());
    let node = || {
        let mut node = hamlyn::Node::with_config(config()).unwrap();
        let (area, queue) = (node.message_area(64).unwrap(), node.notification_queue(64).unwrap());
        let slot = node.slot(hamlyn::SlotConfig::new(area, queue).credit(64)).unwrap();
        let ticket = node.fast_ticket(slot).unwrap().to_bytes().to_vec();
        (node, ticket)
    };
    let ((mut own, own_ticket), (_other, another)) = (node(), node());
    let mut ask = |hello: Value| {
        let greeting = serde_json::to_vec(&hello).unwrap();
        own.connect("far", &greeting, Some(std::time::Duration::from_secs(30)))
    };
    let task = |reply: &[u8]| {
        serde_json::json!({"hamlyn-perf-1": "task", "test": "rate", "size": 8, "warm_up": 0,
            "count": 1, "reply": reply})
    };
    let now = serde_json::json!({"hamlyn-perf-1": "now", "into": another, "every_us": 1_000});
    for hello in [task(&another), now] {
        let error = ask(hello).unwrap_err().to_string();
        assert!(error.contains("and came from node"), "{error}");
    }
    ask(task(&own_ticket)).unwrap();
}

#[test]
fn each_test_gives_a_row_with_its_figure_and_the_limits_of_the_same_run() {
    let Some(_processors) = processors() else { return };
    let row = json("latency --count 200 --runs 1 --json");
    assert_eq!((&row["test"], &row["size"]), (&"latency".into(), &16.into()));
    assert_eq!((&row["mode"], &row["links"]), (&"polled".into(), &0.into()));
    for percentile in ["p50", "p99", "p999"] {
        assert!(row["one_way_ns"][percentile].as_f64().unwrap() > 0.0, "{row}");
    }
    let median = &row["one_way_ns"]["p50"];
    assert!(is_ratio(&row["of_least"], median, &row["least_one_way_ns"]), "{row}");
    let row = json("rate --count 20000 --runs 1 --size 8 --json");
    assert!(row["messages_per_s"].as_f64().unwrap() > 0.0 && row["size"] == 8, "{row}");
    assert!(is_ratio(&row["of_least"], &row["messages_per_s"], &row["least_per_s"]), "{row}");
    for size in [64, 4096] {
        let row = json(&format!("latency --count 100 --runs 1 --size {size} --json"));
        let (median, least) = (&row["one_way_ns"]["p50"], &row["least_one_way_ns"]);
        assert!(is_ratio(&row["of_least"], median, least) && row["size"] == size, "{row}");
    }
    let row = json("bandwidth --count 20 --runs 1 --size 64KiB --json");
    assert!(row["bytes_per_s"].as_f64().unwrap() > 0.0 && row["size"] == 65536, "{row}");
    assert!(row.get("of_least").is_none(), "{row}");
}

#[test]
fn a_figure_may_stand_beside_another_length_and_a_socket() {
    let Some(_processors) = processors() else { return };
    let row = json("latency --count 100 --runs 1 --size 64 --beside 16 --socket --json");
    let median = &row["one_way_ns"]["p50"];
    assert!(row["beside_bytes"] == 16 && is_ratio(&row["of_beside"], median, &row["beside"]));
    assert!(is_ratio(&row["of_unix_socket"], median, &row["unix_socket_one_way_ns"]), "{row}");
    let row = json("rate --count 1000 --runs 1 --size 64 --socket --json");
    let rate = &row["messages_per_s"];
    assert!(is_ratio(&row["of_unix_socket"], rate, &row["unix_socket_per_s"]), "{row}");
    assert!(row.get("of_beside").is_none(), "{row}");
}

#[test]
fn the_curve_has_a_latency_and_a_rate_of_each_length_beside_16_bytes_the_ring_and_a_socket() {
    let Some(_processors) = processors() else { return };
    let directory = tempfile::tempdir().unwrap();
    let line = "curve --size 8 --size 1KiB --size 64KiB --count 100 --runs 1";
    let output = perf(directory.path(), &format!("{line} --json"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "a name was left");
    let output = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> =
        rows.iter().map(|row| (row["test"].as_str().unwrap(), row["size"].as_u64())).collect();
    let of = |size| [("latency", Some(size)), ("rate", Some(size))];
    assert_eq!(names, [of(8), of(1 << 10), of(64 << 10)].concat());
    for row in &rows {
        let is_latency = row["test"] == "latency";
        let [figure, least, socket] = match is_latency {
            true => [
                &row["one_way_ns"]["p50"],
                &row["least_one_way_ns"],
                &row["unix_socket_one_way_ns"],
            ],
            false => [&row["messages_per_s"], &row["least_per_s"], &row["unix_socket_per_s"]],
        };
        assert!(is_ratio(&row["of_beside"], figure, &row["beside"]), "{row}");
        assert!(is_ratio(&row["of_unix_socket"], figure, socket), "{row}");
        let has_least = row["size"].as_u64().unwrap() < 64 << 10;
        assert_eq!(has_least, is_ratio(&row["of_least"], figure, least), "{row}");
    }
    let text = String::from_utf8(perf(directory.path(), line).stdout).unwrap();
    assert!(text.contains("of 16 B") && text.contains("Unix socket"), "{text}");
    assert!(!text.contains("NaN"), "{text}");
}

#[test]
fn modes_that_sleep_are_measured_beside_a_unix_socket() {
    let Some(_processors) = processors() else { return };
    for mode in ["adaptive", "blocking"] {
        let row = json(&format!("latency --count 50 --runs 1 --mode {mode} --json"));
        assert_eq!(row["mode"], mode);
        let (socket, median) = (&row["unix_socket_one_way_ns"], &row["one_way_ns"]["p50"]);
        assert!(is_positive(socket) && is_ratio(&row["of_unix_socket"], median, socket), "{row}");
    }
}

#[test]
fn both_ends_may_share_a_processor_and_then_sleep_beside_a_unix_socket_there() {
    let Some(_processors) = processors() else { return };
    let directory = tempfile::tempdir().unwrap();
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let core = (0..rustix::thread::CpuSet::MAX_CPU).find(|core| set.is_set(*core)).unwrap();
    for mode in ["adaptive", "blocking"] {
        let line =
            format!("latency --count 50 --runs 2 --mode {mode} --cores {core},{core} --json");
        let output = perf(directory.path(), &line);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {text}");
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&row["placement"], &row["runs"]), (&"one-core".into(), &2.into()), "{row}");
        let (socket, median) = (&row["unix_socket_one_way_ns"], &row["one_way_ns"]["p50"]);
        assert!(is_positive(median) && is_positive(socket), "{row}");
        assert!(is_ratio(&row["of_unix_socket"], median, socket), "{row}");
        // Nothing travels from one core to another.
        for field in ["raw_line_one_way_ns", "least_one_way_ns", "least_per_s", "of_least"] {
            assert!(row.get(field).is_none(), "{field}: {row}");
        }
    }
    // For people; and of one processor, a mode in which neither end lets the other run is refused.
    let output = perf(
        directory.path(),
        &format!("latency --count 50 --runs 1 --mode blocking --cores {core},{core}"),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("of a Unix socket") && text.contains("one core"), "{text}");
    let output = perf(directory.path(), &format!("latency --cores {core},{core}"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("--mode") && text.contains("blocking"), "{text}");
    assert!(!text.contains("  "), "{text}");
}

#[test]
fn help_tells_what_stands_beside_a_figure() {
    let directory = tempfile::tempdir().unwrap();
    let text = String::from_utf8(perf(directory.path(), "--help").stdout).unwrap();
    for part in ["raw cache line", "least checked message", "memcpy", "within a quarter"] {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn idle_links_stand_beside_the_busy_one() {
    let Some(_processors) = processors() else { return };
    let row = json("latency --count 200 --runs 1 --links 20 --json");
    assert_eq!(row["links"], 20);
}

#[test]
fn what_idle_links_cost_is_measured_and_no_name_is_left() {
    let Some(_processors) = processors() else { return };
    let directory = tempfile::tempdir().unwrap();
    let output = perf(directory.path(), "idle --links 20 --count 2 --json");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let row: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(row["links"], 20, "{row}");
    for field in ["raw_line_one_way_ns", "least_one_way_ns", "least_per_s"] {
        assert!(is_positive(&row[field]), "{field}: {row}");
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "a name was left");
}

#[test]
fn the_ends_may_run_apart() {
    let Some(_processors) = processors() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_hamlyn"))
        .args(["perf", "serve", "there"])
        .env("HAMLYN_DIR", directory.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let line = "rate --count 1000 --runs 1 --to there --json";
    while !directory.path().join("there").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let output = perf(directory.path(), line);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = perf(directory.path(), line);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there"));
}

#[test]
fn protocols_stand_beside_the_raw_interface_of_the_same_run() {
    let Some(_processors) = processors() else { return };
    let directory = tempfile::tempdir().unwrap();
    let output = perf(directory.path(), "protocols --count 100 --runs 1 --json");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "a name was left");
    let output = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |protocol: &str, test: &str, size: u64| {
        let is_it = |row: &&Value| {
            row["protocol"] == protocol && row["test"] == test && row["size"] == size
        };
        rows.iter().find(is_it).unwrap_or_else(|| panic!("no {protocol} {test} {size}: {output}"))
    };
    let value = is_positive;
    for protocol in ["raw", "tagged", "threads", "progress", "publish", "stream"] {
        let row = row(protocol, "latency", 16);
        assert!(value(&row["one_way_ns"]["p50"]) && value(&row["raw_line_one_way_ns"]), "{row}");
        let (median, least) = (&row["one_way_ns"]["p50"], &row["least_one_way_ns"]);
        assert!(is_ratio(&row["of_least"], median, least), "{row}");
    }
    for protocol in ["raw", "adaptive", "over", "tagged", "publish", "stream", "datagram", "bytes"]
    {
        for size in [64, 256] {
            let row = row(protocol, "latency", size);
            assert!(is_ratio(
                &row["of_least"],
                &row["one_way_ns"]["p50"],
                &row["least_one_way_ns"]
            ));
            // Where the host did not move the cores between the two.
            if let Some(short) = row["beside"].as_f64() {
                assert!(short > 0.0 && row["beside_bytes"] == 16, "{row}");
                assert!(is_ratio(&row["of_beside"], &row["one_way_ns"]["p50"], &row["beside"]));
            }
        }
    }
    assert!(value(&row("call", "round-trip", 64)["round_trip_ns"]["p50"]));
    assert!(value(&row("call", "round-trip", 256)["round_trip_ns"]["p50"]));
    for protocol in ["tagged", "stream"] {
        let row = row(protocol, "rate", 16);
        assert!(is_ratio(&row["of_least"], &row["messages_per_s"], &row["least_per_s"]), "{row}");
    }
    let receivers = row("receivers", "rate", 16);
    let [two, one] = ["messages_per_s", "one_thread_messages_per_s"].map(|name| &receivers[name]);
    assert!(value(two) && value(one), "{receivers}");
    assert!(is_ratio(&receivers["of_one_thread"], two, one), "{receivers}");
    let call = row("call", "round-trip", 16);
    assert!(value(&call["round_trip_ns"]["p50"]) && value(&call["of_least"]), "{call}");
    let publish = row("publish", "publish", 1 << 20);
    let [eight, one] = ["eight_ns", "one_ns"].map(|name| &publish[name]);
    assert!(value(eight) && is_ratio(&publish["of_one_subscriber"], eight, one), "{publish}");
    let memory = row("call", "memory", 16);
    // How many is for `bench/results`; what is allocated is counted in tests/processes/costs.rs.
    for side in ["client_bytes_per_call", "server_bytes_per_call"] {
        assert!(memory[side].as_f64().is_some(), "{memory}");
    }
    assert!(value(&row("stream", "rate", 64)["messages_per_s"]));
    for size in [4 << 10, 1 << 20, 64 << 20] {
        let revoke = row("aperture", "revoke", size);
        let [taken, known] = ["revoke_ns", "holder_knows_ns"].map(|name| &revoke[name]);
        assert!(value(taken) && taken.as_f64() < known.as_f64(), "{revoke}");
    }
    for size in [64 << 10, 1 << 20] {
        for protocol in ["memcpy", "aperture", "pieces", "stream", "stream-aperture"] {
            assert!(value(&row(protocol, "bandwidth", size)["bytes_per_s"]), "{output}");
        }
    }
    // Where the host did not move the cores between the two.
    let raw = row("raw", "latency", 16);
    let [here, there] = [raw, call].map(|row| row["raw_line_one_way_ns"].as_f64().unwrap());
    if (here - there).abs() < here.min(there) / 4.0 {
        let (round_trip, one_way) = (&call["round_trip_ns"]["p50"], &raw["one_way_ns"]["p50"]);
        assert!(is_ratio(&call["of_raw_one_way"], round_trip, one_way), "{output}");
    }
}

#[test]
fn a_row_of_protocols_that_there_is_none_is_an_error_that_names_those_that_there_are() {
    let directory = tempfile::tempdir().unwrap();
    let output = perf(directory.path(), "protocols --only stream --only pigeon");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("pigeon") && text.contains("call-memory-16"), "{text}");
}

#[test]
fn a_message_that_is_too_long_is_an_error_that_says_what_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let output = perf(directory.path(), "bandwidth --size 2GiB");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("2147483648") && text.contains("1073741824"), "{text}");
}

#[test]
fn four_pairs_and_a_long_message_beside_busy_threads_are_measured_beside_futex_socket_and_pipe() {
    let Some(_processors) = processors() else { return };
    let directory = tempfile::tempdir().unwrap();
    let output = perf(directory.path(), "crowd --count 20 --runs 1 --json");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "a name was left");
    let output = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = rows
        .iter()
        .map(|row| {
            format!("{} {}", row["test"].as_str().unwrap(), row["channel"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        names,
        [
            "pairs Hamlyn, polled",
            "pairs Hamlyn, adaptive",
            "pairs Hamlyn, blocking",
            "pairs futex",
            "pairs Unix stream socket",
            "hogs Hamlyn, adaptive",
            "hogs pipe",
        ]
    );
    for row in rows {
        assert!(is_positive(&row["alone_one_way_ns"]) && is_positive(&row["crowded_one_way_ns"]));
        assert!(is_ratio(&row["of_alone"], &row["crowded_one_way_ns"], &row["alone_one_way_ns"]));
    }
}

#[cfg(feature = "tls")]
#[test]
fn a_message_of_this_host_is_measured_beside_a_peer_on_another_that_is_idle_and_one_that_is_busy() {
    let Some(_processors) = processors() else { return };
    let directory = tempfile::tempdir().unwrap();
    // As many as the busy peer needs to be heard in the meantime.
    let output = perf(directory.path(), "remote --count 20000 --runs 1 --json");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "a name was left");
    let output = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = rows.iter().map(|row| row["peer"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "idle", "busy"]);
    for row in &rows {
        assert!(is_positive(&row["one_way_ns"]) && is_positive(&row["mean_one_way_ns"]));
        assert!(is_ratio(&row["of_alone"], &row["one_way_ns"], &rows[0]["one_way_ns"]));
    }
    assert_eq!([&rows[0], &rows[1]].map(|row| row["peer_messages_per_s"].as_f64()), [Some(0.0); 2]);
    assert!(is_positive(&rows[2]["peer_messages_per_s"]));
}
