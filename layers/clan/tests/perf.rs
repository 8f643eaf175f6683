//! The measuring command: that it runs, and has its rows. Nothing about times.
#![cfg(feature = "perf")]

use std::process::Command;

#[test]
fn the_measuring_command_writes_every_row_and_a_chart() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED: the near end polls, so measuring needs two processors");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [rows, chart] = ["rows.jsonl", "chart.svg"].map(|name| dir.path().join(name));
    let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn-clan"));
    command.args(["perf", "--short", "--out"]).arg(&rows).arg("--chart").arg(&chart);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(rows).unwrap();
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let servers = ["clan", "select", "poll", "epoll"];
    let mut wanted = Vec::new();
    for size in (3..=20).map(|log| 1u64 << log) {
        for system in ["store", "put", "request", "16 requests at once", "unix"] {
            wanted.push(("bandwidth", system, "size_bytes", size, "mb_per_s"));
        }
    }
    for idle in [0, 10, 100, 1000] {
        for system in servers {
            for test in ["round trip, idle server", "round trip, busy server"] {
                wanted.push((test, system, "idle_endpoints", idle, "round_trip_us"));
            }
        }
    }
    for connections in (0..=8).map(|log| 1 << log) {
        for system in ["clan", "epoll"] {
            wanted.push(("load", system, "connections", connections, "requests_per_s"));
        }
    }
    for system in ["clan", "unix", "inotify"] {
        wanted.push(("log", system, "record_bytes", 16, "latency_us"));
    }
    for system in ["clan", "epoll"] {
        wanted.push(("overhead", system, "connections", 256, "overhead_us"));
    }
    wanted.push(("overhead", "epoll to clan", "connections", 256, "ratio"));
    for (test, system, key, of, unit) in &wanted {
        let row = rows
            .iter()
            .find(|row| row["test"] == *test && row["system"] == *system && row[*key] == *of);
        let row = row.unwrap_or_else(|| panic!("no row {test}, {system}, {of}:\n{text}"));
        assert!(row[*unit].as_f64().is_some_and(|value| value > 0.0), "{row}");
        assert!(row["runs"].is_number() && row["spread"][1].is_number(), "{row}");
        assert!(row["raw_line_one_way_ns"][1].is_number(), "{row}");
    }
    assert_eq!(rows.len(), wanted.len());
    assert!(std::fs::read_to_string(chart).unwrap().contains("<svg"));
}
