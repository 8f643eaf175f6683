//! The measuring command: that it runs, and has its rows. Nothing about times.
#![cfg(feature = "perf")]

use std::process::Command;

#[test]
fn the_measuring_command_prints_each_row_with_its_reference() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED: both ends poll, so measuring needs two processors");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let chart = dir.path().join("chart.svg");
    // Without a `hamlyn` command: the raw line is left out, and a sentence says so.
    let output = Command::new(env!("CARGO_BIN_EXE_hamlyn-fm"))
        .args(["perf", "--quick", "--runs", "1", "--json", "--hamlyn", "/nowhere"])
        .arg("--chart")
        .arg(&chart)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("raw line was not measured"), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for name in [
        "FM_send_4, one way",
        "16 bytes to a handler's first byte",
        "FM_send_4, one after another",
        "576 bytes, one way",
        "64 KiB in pieces of 16 KiB",
        "2.x style, N1/2",
        "mix of tcp",
        "+ order (IN_ORDER)",
    ] {
        let row = rows.iter().find(|row| row["name"] == name);
        let row = row.unwrap_or_else(|| panic!("no row \"{name}\":\n{text}"));
        assert!(row["median"].is_number(), "{row}");
        assert!(row["reference"]["median"].is_number() || name.contains("N1/2"), "{row}");
    }
    assert_eq!(rows.iter().filter(|row| row["curve"].is_string()).count(), 4);
    assert!(std::fs::read_to_string(chart).unwrap().contains("<svg"));
}
