//! The common parts of the command's tests.

#[allow(dead_code)]
pub mod ranks;

use std::io::Write;

/// Says that a test, or a part of one, does not run here, and why: seen also where the output of
/// tests is captured.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED: {why}");
}

/// The same of what is done with a launcher of jobs, unless `HAMLYN_TEST_LAUNCHERS` names that as one
/// that is here: then it does not work.
#[allow(dead_code)]
pub fn skipped_without(launcher: &str, why: &str) {
    let here = std::env::var("HAMLYN_TEST_LAUNCHERS").unwrap_or_default();
    let is_here = here.split_whitespace().any(|name| name == launcher);
    assert!(!is_here, "{launcher} is here, and does not work: {why}");
    skipped(why);
}
