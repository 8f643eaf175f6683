//! Errors of the library as exceptions of `hamlyn._errors`.
//!
//! The classes are written in Python, since some have two bases (`TimedOut` is a `TimeoutError` as
//! well). Each is looked up once. The text is the library's own, with Python's names.

use hamlyn::interface::terminus::PostError;
use hamlyn::interface::{AreaError, QueueError, SlotError};
use hamlyn::job::JobError;
use hamlyn::node::{
    BuildError, ConnectError, Forked, LinkError, MemoryError, NodeReceiveError, NodeSendError,
    OfferError,
};
use hamlyn::protocol::{
    ByteStreamError, CallError, GroupError, GrowError, PublishError, ReceiveError, SendError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// The kinds of exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The time limit was reached.
    TimedOut,
    /// The same, after a part had left.
    CutOff,
    /// The object is closed, or its peer is gone.
    Closed,
    /// The other end, or the system's permissions, refused.
    Refused,
    /// There is no peer at this address.
    Unreachable,
    /// The call is not allowed: a bug of the program.
    Misuse,
    /// The calling process is a forked child.
    Forked,
    /// The operating system refused.
    Os,
    /// Bytes or text that are not a seed.
    Seed,
    /// The peer broke the rules.
    Misbehaved,
    /// The server is about to close, and did not take the request.
    Draining,
    /// The server will not reply.
    Declined,
    /// The server's program answered with an error of its own.
    Application,
    /// The received bytes are not an array.
    Array,
    /// The other end speaks another version.
    Version,
    /// A certificate is not trusted, or a node is not the one it claims to be.
    Untrusted,
    /// The two hosts do not have the same secret.
    Secret,
    /// The name of a host has no address.
    NoHost,
}

impl Kind {
    const ALL: [(Self, &'static str); 18] = [
        (Self::TimedOut, "TimedOut"),
        (Self::CutOff, "CutOff"),
        (Self::Closed, "Closed"),
        (Self::Refused, "Refused"),
        (Self::Unreachable, "Unreachable"),
        (Self::Misuse, "Misuse"),
        (Self::Forked, "Forked"),
        (Self::Os, "SystemRefused"),
        (Self::Seed, "SeedError"),
        (Self::Misbehaved, "Misbehaved"),
        (Self::Draining, "Draining"),
        (Self::Declined, "Declined"),
        (Self::Application, "ApplicationError"),
        (Self::Array, "ArrayError"),
        (Self::Version, "OtherVersion"),
        (Self::Untrusted, "Untrusted"),
        (Self::Secret, "WrongSecret"),
        (Self::NoHost, "UnknownHost"),
    ];
}

/// Rust names in the library's texts, and their Python names.
const NAMES: [(&str, &str); 12] = [
    ("PublishConfig::", ""),
    ("buffer_bytes", "buffer_nbytes"),
    ("record_bytes_max", "record_nbytes_max"),
    ("request_bytes", "request_nbytes"),
    ("reply_bytes", "reply_nbytes"),
    ("short_bytes_max", "short_nbytes_max"),
    ("sample_bytes_max", "sample_nbytes_max"),
    ("window_bytes", "window_nbytes"),
    ("long_bytes_max", "long_nbytes_max"),
    ("ERROR_TEXT_MAX", "an error's text may be"),
    ("made the node; make a node here", "made the Manager; make a Manager here"),
    ("of this node", "of this Manager"),
];

/// The text of an error of the library, with Python's names.
pub fn in_python(text: String) -> String {
    NAMES.iter().fold(text, |text, (from, to)| match text.contains(from) {
        true => text.replace(from, to),
        false => text,
    })
}

static CLASSES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// An exception of a class with this text.
#[cold]
pub fn error(kind: Kind, text: impl core::fmt::Display) -> PyErr {
    raised(kind, in_python(text.to_string()))
}

fn raised(kind: Kind, text: String) -> PyErr {
    Python::attach(|py| {
        let classes = CLASSES.get_or_try_init(py, || {
            let module = py.import("hamlyn._errors")?;
            let class = |(_, name)| Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind());
            Kind::ALL.into_iter().map(class).collect::<PyResult<_>>()
        });
        match classes {
            Ok(classes) => PyErr::from_type(classes[kind as usize].bind(py).clone(), (text,)),
            Err(e) => e,
        }
    })
}

/// The exception for an application's error: its text, with the code kept apart.
#[cold]
fn application_error(code: u32, text: &str) -> PyErr {
    let error = raised(Kind::Application, text.into());
    Python::attach(|py| match error.value(py).setattr("code", code) {
        Ok(()) => error,
        Err(e) => e,
    })
}

/// An error of the library with a Python exception.
pub trait ToPy {
    /// The exception.
    fn to_py(self) -> PyErr;
}

/// The same for results.
pub trait OrRaise<T> {
    /// Raises the error.
    fn or_raise(self) -> PyResult<T>;
}

impl<T, E: ToPy> OrRaise<T> for Result<T, E> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(ToPy::to_py)
    }
}

macro_rules! always {
    ($($error:ty => $kind:ident),+ $(,)?) => {
        $(impl ToPy for $error {
            fn to_py(self) -> PyErr {
                error(Kind::$kind, self)
            }
        })+
    };
}
always! {
    Forked => Forked,
    LinkError => Closed,
    AreaError => Misuse,
    QueueError => Misuse,
    SlotError => Misuse,
    PostError => Misuse,
    hamlyn::config::ConfigError => Misuse,
    hamlyn::control::AcceptError => Closed,
    hamlyn::wire::TicketError => Misuse,
    hamlyn::wire::ShareError => Misuse,
    std::io::Error => Os,
}

impl ToPy for hamlyn::protocol::SeedError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            #[cfg(feature = "tls")]
            Self::Host(_) | Self::HostTooLong(_) => Kind::Misuse,
            _ => Kind::Seed,
        };
        error(kind, self)
    }
}

impl ToPy for BuildError {
    fn to_py(self) -> PyErr {
        error(of_building(&self), self)
    }
}

/// The kind of an error that prevents a node, or all other hosts.
fn of_building(failed: &BuildError) -> Kind {
    match failed {
        #[cfg(feature = "tls")]
        BuildError::Keys(hamlyn::control::hosts::KeysError::Read { .. }) => Kind::Os,
        BuildError::Os { .. } => Kind::Os,
        _ => Kind::Misuse,
    }
}

impl ToPy for OfferError {
    fn to_py(self) -> PyErr {
        use hamlyn::control::ServeError;
        let kind = match &self {
            Self::Name(_) => Kind::Misuse,
            Self::Serve(ServeError::PathTooLong { .. }) => Kind::Misuse,
            Self::Serve(
                ServeError::InUse { .. }
                | ServeError::NotASocket(_)
                | ServeError::NotPermitted { .. },
            ) => Kind::Refused,
            Self::Serve(_) => Kind::Os,
            Self::Drained => Kind::Misuse,
        };
        error(kind, self)
    }
}

impl ToPy for MemoryError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::Os { .. } => Kind::Os,
            Self::Forked(_) => Kind::Forked,
            Self::Aperture(_) => Kind::Closed,
            _ => Kind::Misuse,
        };
        error(kind, self)
    }
}

impl ToPy for hamlyn::os::memory::PagesError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::Os { .. } | Self::NotReplaced { .. } => Kind::Os,
            _ => Kind::Misuse,
        };
        error(kind, self)
    }
}

/// The kind of a failed connection.
fn of_connect(failed: &ConnectError) -> Kind {
    match failed {
        ConnectError::Find(_) | ConnectError::Stale(_) | ConnectError::Gone => Kind::Unreachable,
        ConnectError::TimedOut(_) => Kind::TimedOut,
        ConnectError::Vanished => Kind::Closed,
        ConnectError::Name(_)
        | ConnectError::TooManyLinks(_)
        | ConnectError::GreetingTooLong(_) => Kind::Misuse,
        ConnectError::Forked => Kind::Forked,
        ConnectError::Unavailable(_) | ConnectError::Os { .. } => Kind::Os,
        ConnectError::NotPermitted(_)
        | ConnectError::WrongUser { .. }
        | ConnectError::Refused { .. }
        | ConnectError::Misbehaved(_)
        | ConnectError::Memory(_) => Kind::Refused,
        ConnectError::Version { .. } => Kind::Version,
        #[cfg(feature = "tls")]
        ConnectError::Host { error, .. } => of_host(error),
        ConnectError::NoHosts(_) => Kind::Misuse,
        // The library may have been built with more than this package.
        #[cfg(not(feature = "tls"))]
        #[allow(unreachable_patterns)]
        _ => Kind::Os,
    }
}

/// The kind of a failed link to a service of another host.
#[cfg(feature = "tls")]
fn of_host(failed: &hamlyn::control::hosts::HostError) -> Kind {
    use hamlyn::control::Reason;
    use hamlyn::control::hosts::{HostDirectoryError, HostError, MeetingError};
    match failed {
        HostError::Name(_) | HostError::TooMany => Kind::Misuse,
        HostError::Hosts(e) => of_building(e),
        HostError::Ended(_) => Kind::Os,
        HostError::Directory(
            HostDirectoryError::NotListed(_)
            | HostDirectoryError::NoRecord(_)
            | HostDirectoryError::NotAvailable(_)
            | HostDirectoryError::Unanswered { .. }
            | HostDirectoryError::Answer { .. }
            | HostDirectoryError::Given(_)
            | HostDirectoryError::NotGiven,
        ) => Kind::Unreachable,
        HostError::Directory(_) => Kind::Misuse,
        HostError::Places { telling, .. } => of_host(telling),
        HostError::Unknown(_) => Kind::NoHost,
        HostError::Unreachable { .. } => Kind::Unreachable,
        HostError::Meeting(
            MeetingError::NoService | MeetingError::Gone(_) | MeetingError::Fabric(_),
        ) => Kind::Unreachable,
        HostError::Meeting(
            MeetingError::Tls(_)
            | MeetingError::Identity
            | MeetingError::Refused(Reason::Identity, _),
        ) => Kind::Untrusted,
        HostError::Meeting(MeetingError::Secret) => Kind::Secret,
        HostError::Meeting(MeetingError::Version(_)) => Kind::Version,
        HostError::Meeting(MeetingError::Refused(..) | MeetingError::Nonsense(_)) => Kind::Refused,
    }
}

impl ToPy for NodeReceiveError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::TimedOut => Kind::TimedOut,
            Self::Queue(_) => Kind::Misuse,
            Self::Forked(_) => Kind::Forked,
            Self::Wait(_) => Kind::Os,
        };
        error(kind, self)
    }
}

impl ToPy for NodeSendError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::Full | Self::TimedOut { .. } => Kind::TimedOut,
            Self::Unreachable(_) => Kind::Unreachable,
            Self::LinkEnded(_) => Kind::Closed,
            Self::Forked(_) => Kind::Forked,
            Self::Wait(_) => Kind::Os,
            _ => Kind::Misuse,
        };
        error(kind, self)
    }
}

impl ToPy for GrowError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::Seed(_) | Self::Kind { .. } => Kind::Seed,
            Self::Connect(e) => of_connect(e),
            Self::Refused(_) | Self::Full(_) => Kind::Refused,
            Self::NotAnEndPoint | Self::OtherNode { .. } => Kind::Refused,
            Self::Answer(_) => Kind::Misbehaved,
            Self::SetUp(_) => Kind::Misuse,
            // Of tasks in Rust alone.
            Self::GivenUp => Kind::TimedOut,
            Self::Forked(_) => Kind::Forked,
        };
        error(kind, self)
    }
}

impl ToPy for JobError {
    fn to_py(self) -> PyErr {
        let kind = match self {
            Self::Config(e) => return e.to_py(),
            Self::Build(e) => return e.to_py(),
            Self::Offer(e) => return e.to_py(),
            Self::Grow(e) => return e.to_py(),
            Self::Environment { .. }
            | Self::NoRank { .. }
            | Self::PutAlready { .. }
            | Self::TooLong { .. }
            | Self::Name { .. }
            | Self::Taken { .. }
            | Self::OtherManager => Kind::Misuse,
            Self::Missing { .. }
            | Self::LauncherSilent { .. }
            | Self::NotOffered { .. }
            | Self::NotLinked { .. } => Kind::TimedOut,
            Self::Ended(_) | Self::LauncherGone { .. } | Self::LauncherLost { .. } => Kind::Closed,
            Self::Launcher { .. } => Kind::Misbehaved,
            Self::NothingPut { .. } | Self::OtherHost { .. } => Kind::Unreachable,
            Self::PmixLibrary { .. } | Self::Os { .. } => Kind::Os,
        };
        error(kind, self)
    }
}

impl ToPy for ReceiveError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::TimedOut => Kind::TimedOut,
            Self::Ended(_) => Kind::Closed,
            Self::Draining => Kind::Draining,
            Self::Misbehaved(_) => Kind::Misbehaved,
            Self::Misuse(_) => Kind::Misuse,
            Self::Forked(_) => Kind::Forked,
            Self::Wait(_) => Kind::Os,
        };
        error(kind, self)
    }
}

impl ToPy for SendError {
    fn to_py(self) -> PyErr {
        let kind = match self {
            Self::Node(e) => return e.to_py(),
            Self::TimedOut => Kind::TimedOut,
            Self::CutOff => Kind::CutOff,
            Self::Ended(_) => Kind::Closed,
            Self::Misbehaved(_) => Kind::Misbehaved,
            Self::Forked(_) => Kind::Forked,
            Self::Wait(_) => Kind::Os,
            _ => Kind::Misuse,
        };
        error(kind, self)
    }
}

impl ToPy for CallError {
    fn to_py(self) -> PyErr {
        let kind = match self {
            Self::Node(e) => return e.to_py(),
            Self::TimedOut | Self::NoneFree(_) | Self::NoRoom => Kind::TimedOut,
            Self::Application { code, text } => return application_error(code, &text),
            Self::Declined => Kind::Declined,
            Self::Draining => Kind::Draining,
            Self::Ended(_) => Kind::Closed,
            Self::NotConnected(_) => Kind::Unreachable,
            Self::Misbehaved(_) => Kind::Misbehaved,
            Self::Memory(_) | Self::Wait(_) => Kind::Os,
            Self::Forked(_) => Kind::Forked,
            _ => Kind::Misuse,
        };
        error(kind, self)
    }
}

impl ToPy for GroupError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::TimedOut { .. } | Self::NotInTime => Kind::TimedOut,
            Self::CutOff => Kind::CutOff,
            Self::MemberLost { .. } | Self::RootLost(_) => Kind::Closed,
            Self::Forked(_) => Kind::Forked,
            Self::Wait(_) => Kind::Os,
            _ => Kind::Misuse,
        };
        error(kind, self)
    }
}

impl ToPy for PublishError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::TimedOut => Kind::TimedOut,
            Self::TooLong { .. } | Self::Loans(_) | Self::Foreign => Kind::Misuse,
            Self::Forked(_) => Kind::Forked,
            Self::Wait(_) => Kind::Os,
        };
        error(kind, self)
    }
}

impl ToPy for ByteStreamError {
    fn to_py(self) -> PyErr {
        let kind = match &self {
            Self::Ended(_) | Self::Aborted(_) => Kind::Closed,
            Self::Misbehaved(_) => Kind::Misbehaved,
            Self::Shut => Kind::Misuse,
            Self::TimedOut => Kind::TimedOut,
            Self::Forked(_) => Kind::Forked,
            Self::Wait(_) => Kind::Os,
        };
        error(kind, self)
    }
}
