//! The errors of the control plane, by verb.

use super::super::frame::{VERSION_MAJOR, VERSION_MINOR};
use super::super::machine::ConnectFailure;
use super::super::names::{FindError, NameError};
use super::super::{FIGURES_ARE_FOR_ITS_USER, FORKED, GREETING_BYTES_MAX, Reason};
use crate::config::ConfigError;
use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::string::String;

/// A node that could not be made, or cannot have links to other hosts. Nothing is left of the
/// attempt.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum BuildError {
    /// A setting is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The process's keys for other hosts cannot be used.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Keys(#[from] crate::control::hosts::KeysError),
    /// The application runs the control plane, but links to other hosts need a thread.
    #[cfg(feature = "tls")]
    #[error(
        "links to other hosts need a thread of the library's, and housekeeping (HAMLYN_HOUSEKEEPING) is \
         application, which says that there is to be none"
    )]
    Housekeeping,
    /// Other hosts should connect, and this library was built without the feature for that.
    #[error("listen (HAMLYN_LISTEN) is set, and this library was built without the feature tls")]
    NoHosts,
    /// The system refused.
    #[error("while {doing}: {error}")]
    Os {
        /// The action that failed.
        doing: Cow<'static, str>,
        /// The system's error.
        error: io::Error,
    },
}

impl BuildError {
    pub(crate) fn os(doing: impl Into<Cow<'static, str>>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |error| Self::Os { doing, error }
    }
}

/// A link that could not be made. Nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ConnectError {
    /// Not the name of a service.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There is no such name.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The name exists, and its process is gone.
    #[error("nobody listens at {}: the process that did is gone", .0.display())]
    Stale(PathBuf),
    /// The permissions of the socket or its directory forbid it.
    #[error("connecting to {} is not permitted", .0.display())]
    NotPermitted(PathBuf),
    /// Another user serves it than should.
    #[error("{} is served by {found}, and should be by user {wanted}", .path.display())]
    WrongUser {
        /// The socket.
        path: PathBuf,
        /// The user who serves it.
        found: String,
        /// The user who should.
        wanted: u32,
    },
    /// The time limit has passed.
    #[error("the time was up while {0}")]
    TimedOut(&'static str),
    /// The server refused.
    #[error("the server refused: {}", refused(*reason, text))]
    Refused {
        /// The reason.
        reason: Reason,
        /// In its own words.
        text: String,
    },
    /// The versions cannot talk.
    #[error("the server speaks version {}.{}, and this library {}.{}", .theirs.0, .theirs.1, .ours.0, .ours.1)]
    Version {
        /// This library's.
        ours: (u16, u16),
        /// The server's.
        theirs: (u16, u16),
    },
    /// It ended the connection without a word.
    #[error("the server went away before the link was made")]
    Gone,
    /// It sent something that no honest server sends.
    #[error("the server misbehaved: {0}")]
    Misbehaved(String),
    /// The link ended before it could be used.
    #[error("the link ended as soon as it was made")]
    Vanished,
    /// It offered memory that is not as agreed.
    #[error("the server's memory is not as agreed: {0}")]
    Memory(String),
    /// Something was missing here.
    #[error("this process cannot make the link: {0}")]
    Unavailable(String),
    /// A failure with another host.
    #[cfg(feature = "tls")]
    #[error("{name}: {error}")]
    Host {
        /// The service.
        name: String,
        /// The reason.
        error: crate::control::hosts::HostError,
    },
    /// A name of another host, in a library without that feature.
    #[error("{0}: this library was built without the feature tls, so it knows no other hosts")]
    NoHosts(String),
    /// This process has its maximum of links.
    #[error("this process has {0} links, and no more are allowed (links_max, HAMLYN_LINKS_MAX)")]
    TooManyLinks(u32),
    /// The greeting is longer than a frame takes.
    #[error("a greeting of {0} bytes; at most {GREETING_BYTES_MAX} are allowed")]
    GreetingTooLong(usize),
    /// This process is a child of the one that started the control plane.
    #[error("{FORKED}")]
    Forked,
    /// The system refused.
    #[error("while {doing}: {error}")]
    Os {
        /// The action that failed.
        doing: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// The application's own words say more than the fact that it refused.
pub(super) fn refused(reason: Reason, text: &str) -> String {
    match (reason, text) {
        (reason, "") => std::format!("{reason}"),
        (Reason::Application | Reason::Places | Reason::Ending, text) => text.into(),
        // The user may still be allowed to connect.
        (Reason::User, FIGURES_ARE_FOR_ITS_USER) => text.into(),
        (reason, text) => std::format!("{reason}: {text}"),
    }
}

impl ConnectError {
    /// Whether the server there is ending: its name counts as one that no process serves.
    pub(crate) fn is_of_one_that_ends(&self) -> bool {
        matches!(self, Self::Gone | Self::Refused { reason: Reason::Ending, .. })
    }

    pub(super) fn of(failure: ConnectFailure) -> Self {
        match failure {
            ConnectFailure::TimedOut(doing) => Self::TimedOut(doing),
            ConnectFailure::Refused { reason, text } => Self::Refused { reason, text },
            ConnectFailure::Version(theirs) => {
                Self::Version { ours: (VERSION_MAJOR, VERSION_MINOR), theirs }
            }
            ConnectFailure::Gone => Self::Gone,
            ConnectFailure::Misbehaved(what) => Self::Misbehaved(what),
            ConnectFailure::Memory(what) => Self::Memory(what),
            ConnectFailure::Unavailable(what) => Self::Unavailable(what),
        }
    }
}
