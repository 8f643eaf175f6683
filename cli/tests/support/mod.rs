//! What the tests of the command share.

#[allow(dead_code)]
pub mod ranks;

use std::io::Write;

/// Says that a test, or a part of one, does not run here, and why: seen also where the output of
/// tests is captured.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED: {why}");
}
