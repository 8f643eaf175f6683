//! Standard output, for lines and tables.

use anyhow::Result;
use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Prints a line. An error is returned, where `println!` would panic: whoever reads may have gone
/// (`hamlyn stat | head`).
pub fn line(text: impl fmt::Display) -> Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        result => Ok(result?),
    }
}

/// Whoever read has seen enough. The command ends, and that is no failure.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl std::error::Error for ReaderGone {}
