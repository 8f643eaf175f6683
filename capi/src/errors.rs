//! The status for each error of the library. The text is the error's own.

use crate::boundary::{Failure, h_status, h_status::*};
use hamlyn::config::ConfigError;
#[cfg(feature = "tls")]
use hamlyn::control::hosts::{HostDirectoryError, HostError, KeysError, MeetingError};
use hamlyn::control::{
    AcceptError, ApertureError, BuildError, DirectoryError, FindError, NameError, Reason,
    ServeError,
};
use hamlyn::interface::terminus::PostError;
use hamlyn::interface::{AreaError, QueueError, SlotError};
use hamlyn::job::JobError;
use hamlyn::node::{
    CloseReason, ConnectError, ExportError, Forked, LinkError, MemoryError, NoSuchAperture,
    NodeReceiveError, NodeSendError, OfferError,
};
use hamlyn::os::aperture::AccessError;
use hamlyn::os::memory;
use hamlyn::protocol::{
    ByteStreamError, CallError, GroupError, GrowError, PublishError, ReceiveError, SeedError,
    SendError,
};
use hamlyn::wire::{ShareError, TicketError};

trait Status {
    fn status(&self) -> h_status;
}

macro_rules! statuses {
    ($($(#[$when:meta])* $error:ty: $value:ident => $status:expr;)+) => {$(
        $(#[$when])*
        impl Status for $error {
            fn status(&self) -> h_status {
                let $value = self;
                $status
            }
        }
        $(#[$when])*
        impl From<$error> for Failure {
            fn from(e: $error) -> Self {
                Failure::new(e.status(), in_c(e.to_string()))
            }
        }
    )+};
}

/// Rust names in the library's texts, and their C names.
const IN_C: [(&str, &str); 4] = [
    ("start_progress", "h_start_progress"),
    ("ERROR_TEXT_MAX", "the longest text of an error"),
    ("PublishConfig::", "h_publish_config_t's "),
    ("another manager", "another node"),
];

/// A text of the library with the names of C.
fn in_c(text: String) -> String {
    let mut text = text;
    for (rust, c) in IN_C {
        if text.contains(rust) {
            text = text.replace(rust, c);
        }
    }
    text
}

impl Failure {
    /// A failure to grow, with the kind of peer named instead of "receiver".
    pub fn of_growing(e: GrowError, peer: &str) -> Self {
        let text = in_c(e.to_string()).replacen("the receiver", &format!("the {peer}"), 1);
        Self::new(e.status(), text)
    }
}

impl Status for CloseReason {
    fn status(&self) -> h_status {
        match self {
            CloseReason::Died => H_DIED,
            CloseReason::Misbehaved(_) => H_MISBEHAVED,
            CloseReason::Unwatched => H_SYSTEM,
            CloseReason::Closed => H_CLOSED,
            CloseReason::HungUp | CloseReason::Expelled | CloseReason::TooSlow => H_HUNG_UP,
        }
    }
}

statuses! {
    std::io::Error: _e => H_SYSTEM;
    Forked: _e => H_FORKED;
    ConfigError: _e => H_INVALID;
    BuildError: e => match e {
        BuildError::Config(e) => e.status(),
        BuildError::Os { .. } => H_SYSTEM,
        BuildError::NoHosts => H_INVALID,
        #[cfg(feature = "tls")]
        BuildError::Keys(e) => e.status(),
        #[cfg(feature = "tls")]
        BuildError::Housekeeping => H_INVALID,
        // The library may have been built with more than this package.
        #[cfg(not(feature = "tls"))]
        #[allow(unreachable_patterns)]
        _ => H_SYSTEM,
    };
    NameError: _e => H_INVALID;
    ServeError: e => match e {
        ServeError::InUse { .. } | ServeError::NotASocket(_) => H_IN_USE,
        ServeError::NotPermitted { .. } => H_REFUSED,
        ServeError::PathTooLong { .. } | ServeError::GreetingTooLong(_) => H_TOO_LONG,
        ServeError::Busy(_) | ServeError::Held(_) => H_IN_USE,
        ServeError::Forked => H_FORKED,
        ServeError::Directory(DirectoryError::NoUser(_)) => H_INVALID,
        ServeError::Directory(_) | ServeError::Os { .. } => H_SYSTEM,
    };
    OfferError: e => match e {
        OfferError::Name(e) => e.status(),
        OfferError::Serve(e) => e.status(),
        OfferError::Drained => H_STATE,
    };
    memory::PagesError: e => match e {
        memory::PagesError::Os { .. } | memory::PagesError::NotReplaced { .. } => H_SYSTEM,
        _ => H_INVALID,
    };
    AreaError: e => match e {
        AreaError::NoSuchArea(_) => H_NO_SUCH,
        AreaError::InUse { .. } => H_IN_USE,
        AreaError::TooMany(_) => H_LIMIT,
    };
    MemoryError: e => match e {
        MemoryError::Empty => H_INVALID,
        MemoryError::Os { .. } => H_SYSTEM,
        MemoryError::Area(e) => e.status(),
        MemoryError::TooManyBytes { .. } => H_LIMIT,
        MemoryError::Post(e) => e.status(),
        MemoryError::Aperture(e) => e.status(),
        MemoryError::Forked(e) => e.status(),
    };
    QueueError: e => match e {
        QueueError::NoSuchQueue(_) => H_NO_SUCH,
        QueueError::Size(_) => H_INVALID,
        QueueError::NotEnoughEntries { .. } => H_LIMIT,
        QueueError::InUse(_) => H_IN_USE,
        QueueError::ConsumerTaken(_) => H_STATE,
    };
    SlotError: e => match e {
        SlotError::NoSuchSlot(_) | SlotError::NoSuchEntry { .. } => H_NO_SUCH,
        SlotError::Area(e) => e.status(),
        SlotError::Queue(e) => e.status(),
        SlotError::RangeOutsideArea { .. }
        | SlotError::LimitsOutsideSlot { .. }
        | SlotError::EntryCount(_) => H_INVALID,
        SlotError::WrongMode { .. } | SlotError::NotArmed(_) => H_STATE,
        SlotError::TooMany(_) => H_LIMIT,
    };
    ShareError: _e => H_INVALID;
    TicketError: _e => H_INVALID;
    PostError: e => match e {
        PostError::NoSuchTerminus(_) => H_NO_SUCH,
        PostError::QueueFull(_) => H_FULL,
        PostError::TooLong { .. } => H_TOO_LONG,
        _ => H_INVALID,
    };
    NodeSendError: e => match e {
        NodeSendError::Full => H_FULL,
        NodeSendError::Unreachable(_) => H_UNREACHABLE,
        NodeSendError::TooLongToTry { .. } => H_TOO_LONG,
        NodeSendError::LinkEnded(_) => H_CLOSED,
        NodeSendError::TimedOut { unfinished: None } => H_TIMED_OUT,
        NodeSendError::TimedOut { unfinished: Some(_) } => H_INCOMPLETE,
        NodeSendError::Post(e) => e.status(),
        NodeSendError::Forked(e) => e.status(),
        NodeSendError::Wait(_) => H_SYSTEM,
    };
    NodeReceiveError: e => match e {
        NodeReceiveError::TimedOut => H_TIMED_OUT,
        NodeReceiveError::Queue(e) => e.status(),
        NodeReceiveError::Forked(e) => e.status(),
        NodeReceiveError::Wait(_) => H_SYSTEM,
    };
    LinkError: _e => H_NO_SUCH;
    Reason: e => match e {
        Reason::Connections | Reason::Bytes | Reason::Links | Reason::Places => H_LIMIT,
        Reason::Ending => H_CLOSED,
        _ => H_REFUSED,
    };
    AcceptError: e => match e {
        AcceptError::NoSuchRequest(_) => H_NO_SUCH,
        AcceptError::GreetingTooLong(_) => H_TOO_LONG,
        AcceptError::Refused(reason) => reason.status(),
        AcceptError::Forked => H_FORKED,
    };
    FindError: e => match e {
        FindError::NotFound { .. } => H_NOT_FOUND,
        FindError::Directory(DirectoryError::NoUser(_)) => H_NOT_FOUND,
        FindError::Directory(_) => H_SYSTEM,
        FindError::PathTooLong { .. } => H_TOO_LONG,
    };
    ConnectError: e => match e {
        ConnectError::Name(e) => e.status(),
        ConnectError::Find(e) => e.status(),
        ConnectError::Stale(_) => H_NOT_FOUND,
        ConnectError::NotPermitted(_) | ConnectError::WrongUser { .. } => H_REFUSED,
        ConnectError::Version { .. } => H_VERSION,
        ConnectError::TimedOut(_) => H_TIMED_OUT,
        ConnectError::Refused { reason, .. } => reason.status(),
        ConnectError::Gone | ConnectError::Vanished => H_CLOSED,
        ConnectError::Misbehaved(_) | ConnectError::Memory(_) => H_MISBEHAVED,
        ConnectError::TooManyLinks(_) => H_LIMIT,
        #[cfg(feature = "tls")]
        ConnectError::Host { error, .. } => error.status(),
        ConnectError::NoHosts(_) => H_INVALID,
        ConnectError::GreetingTooLong(_) => H_TOO_LONG,
        ConnectError::Forked => H_FORKED,
        ConnectError::Unavailable(_) | ConnectError::Os { .. } => H_SYSTEM,
        // The library may have been built with more than this package.
        #[cfg(not(feature = "tls"))]
        #[allow(unreachable_patterns)]
        _ => H_SYSTEM,
    };
    #[cfg(feature = "tls")]
    KeysError: e => match e {
        KeysError::None
        | KeysError::Missing(_)
        | KeysError::Open { .. }
        | KeysError::Content { .. }
        | KeysError::Unusable(_) => H_INVALID,
        KeysError::Read { .. } => H_SYSTEM,
    };
    #[cfg(feature = "tls")]
    HostDirectoryError: e => match e {
        HostDirectoryError::None
        | HostDirectoryError::NoDns(_)
        | HostDirectoryError::NoLabel { .. }
        | HostDirectoryError::Line { .. } => H_INVALID,
        HostDirectoryError::Read { .. } => H_SYSTEM,
        HostDirectoryError::NotListed(_)
        | HostDirectoryError::NoRecord(_)
        | HostDirectoryError::NotAvailable(_)
        | HostDirectoryError::NotGiven => H_NOT_FOUND,
        HostDirectoryError::Unanswered { .. }
        | HostDirectoryError::Answer { .. }
        | HostDirectoryError::Given(_) => H_UNREACHABLE,
    };
    #[cfg(feature = "tls")]
    MeetingError: e => match e {
        MeetingError::Tls(_)
        | MeetingError::Identity
        | MeetingError::Refused(Reason::Identity, _) => H_UNTRUSTED,
        MeetingError::Secret => H_SECRET,
        MeetingError::Version(_) => H_VERSION,
        MeetingError::NoService => H_NOT_FOUND,
        MeetingError::Refused(reason, _) => reason.status(),
        MeetingError::Gone(_) => H_CLOSED,
        MeetingError::Nonsense(_) => H_MISBEHAVED,
        MeetingError::Fabric(_) => H_UNREACHABLE,
    };
    #[cfg(feature = "tls")]
    HostError: e => match e {
        HostError::Name(e) => e.status(),
        HostError::Hosts(e) => e.status(),
        HostError::Ended(_) => H_SYSTEM,
        HostError::Directory(e) => e.status(),
        HostError::Places { telling, .. } => telling.status(),
        HostError::Unknown(_) => H_NO_HOST,
        HostError::Unreachable { .. } => H_UNREACHABLE,
        HostError::Meeting(e) => e.status(),
        HostError::TooMany => H_LIMIT,
    };
    SeedError: e => match e {
        #[cfg(feature = "tls")]
        SeedError::Host(e) => e.status(),
        #[cfg(feature = "tls")]
        SeedError::HostTooLong(_) => H_TOO_LONG,
        _ => H_SEED,
    };
    GrowError: e => match e {
        GrowError::Seed(_) | GrowError::Kind { .. } => H_SEED,
        GrowError::Connect(e) => e.status(),
        GrowError::Refused(_) => H_REFUSED,
        GrowError::Full(_) => H_LIMIT,
        GrowError::NotAnEndPoint | GrowError::OtherNode { .. } => H_REFUSED,
        GrowError::Answer(_) => H_MISBEHAVED,
        GrowError::SetUp(_) => H_LIMIT,
        // Of tasks in Rust alone.
        GrowError::GivenUp => H_TIMED_OUT,
        GrowError::Forked(e) => e.status(),
    };
    JobError: e => match e {
        JobError::Environment { .. }
        | JobError::NoRank { .. }
        | JobError::Name { .. }
        | JobError::OtherManager => H_INVALID,
        JobError::Missing { .. }
        | JobError::LauncherSilent { .. }
        | JobError::NotOffered { .. }
        | JobError::NotLinked { .. } => H_TIMED_OUT,
        JobError::Ended(_) | JobError::LauncherGone { .. } | JobError::LauncherLost { .. } => H_CLOSED,
        JobError::Launcher { .. } => H_MISBEHAVED,
        JobError::NothingPut { .. } => H_NO_SUCH,
        JobError::PutAlready { .. } | JobError::Taken { .. } => H_IN_USE,
        JobError::TooLong { .. } => H_TOO_LONG,
        JobError::OtherHost { .. } => H_UNREACHABLE,
        JobError::PmixLibrary { .. } | JobError::Os { .. } => H_SYSTEM,
        JobError::Config(e) => e.status(),
        JobError::Build(e) => e.status(),
        JobError::Offer(e) => e.status(),
        JobError::Grow(e) => e.status(),
    };
    ReceiveError: e => match e {
        ReceiveError::TimedOut => H_TIMED_OUT,
        ReceiveError::Ended(reason) => reason.status(),
        ReceiveError::Draining => H_CLOSED,
        ReceiveError::Misbehaved(_) => H_MISBEHAVED,
        ReceiveError::Misuse(_) => H_INVALID,
        ReceiveError::Forked(e) => e.status(),
        ReceiveError::Wait(_) => H_SYSTEM,
    };
    SendError: e => match e {
        SendError::TimedOut => H_TIMED_OUT,
        SendError::TooLong { .. } => H_TOO_LONG,
        SendError::Outside { .. } => H_INVALID,
        SendError::CutOff => H_CUT_OFF,
        SendError::ForeignTicket => H_INVALID,
        SendError::NoReplyWanted => H_STATE,
        SendError::Ended(reason) => reason.status(),
        SendError::Misbehaved(_) => H_MISBEHAVED,
        SendError::Node(e) => e.status(),
        SendError::Forked(e) => e.status(),
        SendError::Wait(_) => H_SYSTEM,
    };
    ApertureError: e => match e {
        ApertureError::NoLink => H_NO_SUCH,
        ApertureError::Feature | ApertureError::OtherUser => H_STATE,
        ApertureError::TooMany(_) => H_LIMIT,
        ApertureError::Waiting(_) => H_FULL,
    };
    ExportError: e => match e {
        ExportError::Unaligned(_) => H_INVALID,
        ExportError::LinkBytes { .. } | ExportError::Bytes { .. } | ExportError::Orphans(_) => {
            H_LIMIT
        }
        ExportError::ToSelf | ExportError::OneHolder(_) | ExportError::OtherHost(_) => H_STATE,
        ExportError::NoSuchAperture(e) => e.status(),
        ExportError::Control(e) => e.status(),
        ExportError::Link(e) => e.status(),
        ExportError::Os { .. } => H_SYSTEM,
        ExportError::Forked(e) => e.status(),
    };
    NoSuchAperture: _e => H_NO_SUCH;
    AccessError: e => match e {
        AccessError::OutOfBounds { .. } | AccessError::Unaligned(_) => H_INVALID,
        AccessError::ReadOnly => H_REFUSED,
        AccessError::Revoked => H_CLOSED,
        AccessError::Forked => H_FORKED,
        AccessError::Busy(_) => H_FULL,
        AccessError::Silent => H_TIMED_OUT,
        AccessError::Word => H_STATE,
    };
    CallError: e => match e {
        CallError::TimedOut | CallError::NoneFree(_) | CallError::NoRoom => H_TIMED_OUT,
        CallError::Declined => H_REFUSED,
        CallError::Application { .. } => H_APPLICATION,
        CallError::Draining => H_DRAINING,
        CallError::NotConnected(_) => H_UNREACHABLE,
        CallError::TooLong { .. } => H_TOO_LONG,
        CallError::Ended(reason) => reason.status(),
        CallError::Misbehaved(_) => H_MISBEHAVED,
        CallError::NoSuchCall(_) => H_NO_SUCH,
        CallError::Memory(_) => H_LIMIT,
        CallError::Node(e) => e.status(),
        CallError::Forked(e) => e.status(),
        CallError::Wait(_) => H_SYSTEM,
        // Of tasks in Rust alone.
        CallError::Replied => H_STATE,
        CallError::Untaken { .. } => H_LIMIT,
    };
    PublishError: e => match e {
        PublishError::TimedOut => H_TIMED_OUT,
        PublishError::TooLong { .. } => H_TOO_LONG,
        PublishError::Loans(_) => H_LIMIT,
        PublishError::Foreign => H_INVALID,
        PublishError::Forked(e) => e.status(),
        PublishError::Wait(_) => H_SYSTEM,
    };
    ByteStreamError: e => match e {
        ByteStreamError::Ended(reason) | ByteStreamError::Aborted(reason) => reason.status(),
        ByteStreamError::Misbehaved(_) => H_MISBEHAVED,
        ByteStreamError::Shut => H_STATE,
        ByteStreamError::TimedOut => H_TIMED_OUT,
        ByteStreamError::Forked(e) => e.status(),
        ByteStreamError::Wait(_) => H_SYSTEM,
    };
    GroupError: e => match e {
        GroupError::TimedOut { .. } | GroupError::NotInTime => H_TIMED_OUT,
        GroupError::MemberLost { reason, .. } | GroupError::RootLost(reason) => reason.status(),
        GroupError::OutOfStep(_) => H_STATE,
        GroupError::CutOff => H_CUT_OFF,
        GroupError::Length { .. } => H_TOO_LONG,
        GroupError::Misuse(_) => H_INVALID,
        GroupError::Forked(e) => e.status(),
        GroupError::Wait(_) => H_SYSTEM,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_names_of_c() {
        let text = |failure: Failure| failure.text().to_string();
        let slow = text(CallError::TimedOut.into());
        assert!(slow.contains(" h_start_progress)") && !slow.contains(" start_progress"), "{slow}");
        let (length, max) = (9, 8);
        let long = PublishError::TooLong { length, max, limit: "PublishConfig::sample_bytes_max" };
        let long = text(long.into());
        assert!(long.contains("h_publish_config_t's sample_bytes_max"), "{long}");
        let of_grow = Failure::of_growing(GrowError::Refused("no".into()), "publisher");
        assert_eq!(text(of_grow), "the publisher refused: no");
    }

    #[test]
    fn each_end_of_a_link_has_its_status() {
        let cases = [
            (CloseReason::Closed, H_CLOSED),
            (CloseReason::HungUp, H_HUNG_UP),
            (CloseReason::Expelled, H_HUNG_UP),
            (CloseReason::TooSlow, H_HUNG_UP),
            (CloseReason::Died, H_DIED),
        ];
        for (reason, status) in cases {
            let failure = Failure::from(ReceiveError::Ended(reason.clone()));
            assert_eq!(failure.status, status, "{reason}");
        }
    }
}
