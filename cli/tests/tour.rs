//! The tour, in short: the file arrives, every attempt is refused, the report is whole.

use std::process::Command;

#[test]
fn the_tour_refuses_every_attempt_and_leaves_a_report() {
    if std::thread::available_parallelism().is_ok_and(|n| n.get() < 2) {
        eprintln!("in part SKIPPED: measuring needs two processors");
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
    assert!(!text.contains("NOT REFUSED") && text.matches("REFUSED").count() > 20, "{text}");
    for counter in ["refused_wrong_key", "refused_no_credit", "control.closed_died"] {
        assert!(text.contains(counter), "{counter}: {text}");
    }
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.contains("<svg") && page.contains("</html>") && page.contains("REFUSED"));
}

#[test]
fn a_file_that_is_not_there_is_an_error_that_names_it() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_hamlyn")).args(["tour", "/none/such"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/none/such"));
}
