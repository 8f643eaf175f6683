//! The measurement beside peers: its table compares rows whose raw lines agree, for any length of
//! the line and any word for it, and it never waits for a line.

mod support;

use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn script(name: &str, arguments: &[&str]) -> Option<Output> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "bench", "peers", name].iter().collect();
    let run = Command::new("python3").arg(path).args(arguments).output();
    if run.is_err() {
        support::skipped("there is no python3");
    }
    run.ok()
}

/// Rows of one cell, each with its raw line in nanoseconds and its value.
fn write_rows(path: &Path, rows: &[(f64, f64)]) {
    let rows = rows.iter().map(|(raw, value)| row("One", ("latency", 16), *raw, *value));
    std::fs::write(path, rows.collect::<Vec<_>>().join("\n")).unwrap();
}

fn row(peer: &str, (metric, size): (&str, u64), raw: f64, value: f64) -> String {
    json!({
        "peer": peer, "version": "1", "receives": "copy", "metric": metric, "size": size,
        "value": value, "raw_before_ns": raw, "raw_after_ns": raw, "placement": "any word",
        "least_one_way_ns": 140.0, "least_per_s": 5e7,
        "machine": "a machine", "kernel": "6", "commit": "abc",
    })
    .to_string()
}

#[test]
fn rows_whose_raw_lines_agree_make_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.jsonl");
    write_rows(&path, &[(54.0, 70.0), (118.0, 180.0), (122.0, 182.0), (130.0, 186.0)]);
    let path = path.to_str().unwrap();
    let table = |arguments: &[&str]| {
        let output = script("table.py", &[&[path], arguments].concat())?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        Some(String::from_utf8(output.stdout).unwrap())
    };
    let Some(text) = table(&[]) else { return };
    assert!(text.contains("**182**") && text.contains("took 122 ns"), "{text}");
    assert!(text.contains("the least checked message 140, of which 50 million/s"), "{text}");
    let text = table(&["--raw-line", "54"]).unwrap();
    assert!(text.contains("**70.0** (one run)"), "{text}");
}

#[test]
fn each_length_has_its_column_and_the_short_table_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.jsonl");
    let cells = [("latency", 16), ("latency", 64), ("latency", 1024), ("rate", 64)];
    let values = [182.0, 230.0, 580.0, 2e7];
    let rows = cells.iter().zip(values).map(|(cell, value)| row("Hamlyn", *cell, 120.0, value));
    // Two runs of each.
    let rows = rows.collect::<Vec<_>>().join("\n");
    std::fs::write(&path, format!("{rows}\n{rows}")).unwrap();
    let path = path.to_str().unwrap();
    let Some(output) = script("table.py", &[path]) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["| 16 B | 64 B | 1 KiB |", "| **182** | **230** | **580** |", "| **20.0** |"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = String::from_utf8(script("table.py", &[path, "--readme"]).unwrap().stdout).unwrap();
    for part in [
        "| 16-byte message, one way | 182 ns | 140 ns: a bare ring that only checks",
        "| 64-byte message, one way | 230 ns | 140 ns:",
        "| 64-byte messages, one after another | 20 million/s | 50 million/s: that ring |",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn measuring_beside_peers_asks_for_no_placement() {
    let Some(output) = script("run.py", &["--help"]) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("--rounds"), "{text}");
    assert!(text.contains("--size"), "{text}");
    assert!(!text.contains("placement") && !text.contains("patience"), "{text}");
}
