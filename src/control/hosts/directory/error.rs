//! The reasons for which a service of another host is not found.

use std::io;
use std::path::PathBuf;
use std::string::String;

/// A name without a place, which could not be found. No connection was made.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum HostDirectoryError {
    /// No directory is configured.
    #[error(
        "the name says no place (hamlyn://host:port/service), and there is no directory to look it up \
         in: set directory (HAMLYN_DIRECTORY) to a file with lines `service host:port`, or to \
         dns:DOMAIN"
    )]
    None,
    /// The directory is in the DNS, but this library was built without the feature `dns`.
    #[error("the directory {0} is in the DNS, and this was built without the feature dns")]
    NoDns(String),
    /// It cannot be read.
    #[error("the directory {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// It does not have the service.
    #[error("the directory {} has no line of it", .0.display())]
    NotListed(PathBuf),
    /// Its line of the service cannot be used.
    #[error("line {line} of the directory {}: {why}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The fault.
        why: String,
    },
    /// The service's name cannot be part of a name of the DNS.
    #[error(
        "the service \"{service}\" cannot be looked up in the DNS, at _{service}._tcp.{domain}: {why}"
    )]
    NoLabel {
        /// The service.
        service: String,
        /// The domain.
        domain: String,
        /// The allowed names.
        why: String,
    },
    /// The DNS has no such record.
    #[error("the DNS has no SRV record of {0}")]
    NoRecord(String),
    /// The DNS states that this domain does not have the service (RFC 2782: the target `.`).
    #[error(
        "the DNS says that there is no such service: the target of the SRV record of {0} is `.`"
    )]
    NotAvailable(String),
    /// No name server has answered the question.
    #[error("no name server has answered what {name} is: {why}")]
    Unanswered {
        /// The name that was asked for.
        name: String,
        /// The last failure of each server.
        why: String,
    },
    /// An answer of the DNS cannot be used.
    #[error("what the DNS says of {name} cannot be used: {why}")]
    Answer {
        /// The name that was asked for.
        name: String,
        /// The fault.
        why: String,
    },
    /// The application's own directory has failed, panicked, or returned an invalid place.
    #[error("the program's own directory: {0}")]
    Given(String),
    /// The application's own directory has no place of the service.
    #[error("the program's own directory knows no place of it")]
    NotGiven,
}

impl HostDirectoryError {
    /// Whether the service may still be registered later.
    pub(in crate::control::hosts) fn may_come(&self) -> bool {
        matches!(self, Self::NotListed(_) | Self::NoRecord(_) | Self::NotGiven)
    }
}
