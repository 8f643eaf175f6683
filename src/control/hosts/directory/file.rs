//! A file with the places of services.
//!
//! ```text
//!   # service   places, the first that answers is taken
//!   quotes      a.example:7000 b.example:7000
//!   store       [2001:db8::7]:7001
//! ```
//! If several lines name a service, all their places count, in their order, up to [`PLACES_MAX`].
//! Lines of other services are not checked.

use super::error::HostDirectoryError;
use crate::control::hosts::name::{PLACES_MAX, Place};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::string::{String, ToString};
use std::vec::Vec;

/// Longest file, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// The places of a service, in the order in which to try them; at least one.
pub(super) fn look_up(path: &Path, service: &str) -> Result<Vec<Place>, HostDirectoryError> {
    let text = read(path).map_err(|error| HostDirectoryError::Read { path: path.into(), error })?;
    let mut places = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let entry = line.split_once('#').map_or(line, |(entry, _)| entry);
        let mut words = entry.split_ascii_whitespace();
        if words.next() != Some(service) {
            continue;
        }
        let before = places.len();
        let wrong = |why| HostDirectoryError::Line { path: path.into(), line: number + 1, why };
        for word in words {
            if places.len() == PLACES_MAX {
                return Err(wrong(std::format!("more than {PLACES_MAX} places of the service")));
            }
            places.push(word.parse::<Place>().map_err(|e| wrong(e.to_string()))?);
        }
        if places.len() == before {
            return Err(wrong("no host:port stands behind the service".into()));
        }
    }
    match places.is_empty() {
        true => Err(HostDirectoryError::NotListed(path.into())),
        false => Ok(places),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(io::Error::other("it is longer than 1 MiB")),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked_up(text: &str, service: &str) -> Result<Vec<String>, String> {
        let file = std::env::temp_dir().join(std::format!(
            "hamlyn-directory-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&file, text).unwrap();
        let found = look_up(&file, service);
        std::fs::remove_file(&file).unwrap();
        found
            .map(|places| places.iter().map(ToString::to_string).collect())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn all_places_of_a_service_are_found_in_their_order() {
        let text = "# a.example:1\n\nquotes b:7000 [::1]:1 # c:1\nquote d:1\n quotes\t10.0.0.7:2\n";
        let found = looked_up(text, "quotes").unwrap();
        assert_eq!(found, ["b:7000", "[::1]:1", "10.0.0.7:2"]);
        assert_eq!(looked_up("quotes a:1", "quotes").unwrap(), ["a:1"]);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let error = looked_up("store a:1\nquotes a\n", "quotes").unwrap_err();
        assert!(error.contains("line 2") && error.contains("\"a\" is not host:port"), "{error}");
        let error = looked_up("quotes a:0", "quotes").unwrap_err();
        assert!(error.contains("line 1") && error.contains("1 to 65535"), "{error}");
        let error = looked_up("quotes # a:1", "quotes").unwrap_err();
        assert!(error.contains("no host:port"), "{error}");
        let most = "quotes a:1\n".repeat(PLACES_MAX);
        assert_eq!(looked_up(&most, "quotes").unwrap().len(), PLACES_MAX);
        let error = looked_up(&(most + "quotes b:1\n"), "quotes").unwrap_err();
        assert!(error.contains("line 65") && error.contains("more than 64 places"), "{error}");
        // Faults in lines of other services do not matter.
        let error = looked_up("store nonsense", "quotes").unwrap_err();
        assert!(error.contains("has no line of it"), "{error}");
        let error = look_up(Path::new("/nowhere/at/all"), "quotes").unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
        let error = looked_up(&"#".repeat(2 << 20), "quotes").unwrap_err();
        assert!(error.contains("1 MiB"), "{error}");
    }
}
