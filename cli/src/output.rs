//! Standard output, for lines and tables; and files that somebody reads while they are written.

use anyhow::{Context, Result};
use std::fmt;
use std::fs::Permissions;
use std::io::{self, ErrorKind, IsTerminal, Write};
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

/// Characters of a line: of the terminal, or as `COLUMNS` says; `None`: neither says.
pub fn width() -> Option<usize> {
    let said = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|width| *width > 0);
    match io::stdout().is_terminal().then(crossterm::terminal::size) {
        Some(Ok((width, _))) if width > 0 => Some(width.into()),
        _ => said(),
    }
}

/// Text in lines of at most `width` characters, broken between words; a word that is longer breaks where
/// the line ends.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let (width, mut lines) = (width.max(1), vec![String::new()]);
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (i, part) in letters.chunks(width).enumerate() {
            let line = lines.last_mut().expect("there is one");
            let used = line.chars().count();
            // The whole word counts: one that fits into a line stays in one.
            let has_room = i == 0 && used + 1 + letters.len() <= width;
            match used {
                0 => line.extend(part),
                _ if has_room => line.extend([' '].iter().chain(part)),
                _ => lines.push(part.iter().collect()),
            }
        }
    }
    lines
}

/// Where the file is, or will be.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes a file beside `path` and renames it: whoever reads finds the old text or the new one, whole.
/// Its mode is that of any new file; after an error it is as it was. Not on the disk yet.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut builder = tempfile::Builder::new();
        // The collector reads what ends in .prom, and is another user.
        builder.prefix(".hamlyn-").suffix(".part").permissions(Permissions::from_mode(0o666));
        let mut file = builder.tempfile_in(folder_of(path))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_between_words_and_what_is_longer_than_a_line_is_broken_anyway() {
        let of = |text| wrapped(text, 7).join("|");
        assert_eq!(of("a bc def  ghij"), "a bc|def|ghij");
        assert_eq!(of("abcdefg h"), "abcdefg|h");
        assert_eq!(of("a bcdefghijk l"), "a|bcdefgh|ijk l");
        assert_eq!(of(""), "");
    }
}
