//! Standard output, for lines and tables; and files that somebody reads while they are written.

use anyhow::{Context, Result};
use std::fmt;
use std::fs::Permissions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Prints a line. An error is returned, where `println!` would panic: whoever reads may have gone
/// (`hamlyn stat | head`).
pub fn line(text: impl fmt::Display) -> Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        result => Ok(result?),
    }
}

/// Writes a file beside `path` and renames it: whoever reads finds the old text or the new one, whole.
/// Its mode is that of any new file; after an error it is as it was. Not on the disk yet.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let beside = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let write = || -> io::Result<()> {
        let mut builder = tempfile::Builder::new();
        // The collector reads what ends in .prom, and is another user.
        builder.prefix(".hamlyn-").suffix(".part").permissions(Permissions::from_mode(0o666));
        let mut file = builder.tempfile_in(beside)?;
        file.write_all(text.as_bytes())?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().with_context(|| format!("writing {}", path.display()))
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
