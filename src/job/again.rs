//! Whether growing from another rank is tried again: the rank may not offer it yet, or too many of
//! the job may ask at once.

use crate::control::ConnectError;
#[cfg(feature = "tls")]
use crate::control::hosts::{ASKED_REFUSED, HostError, MeetingError};
use crate::protocol::{GrowError, NOT_OFFERED};
use core::time::Duration;

/// The longest time for which a rank that is reached and makes no link is asked again, which also
/// bounds the pauses: each attempt costs it a proof of the asking rank.
pub const CROWDED: Duration = Duration::from_secs(60);
pub const CROWDED_PAUSE_MAX: Duration = Duration::from_millis(200);

/// The reason to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// The receiver's process is there but has no such end point.
    NotOffered,
    /// So many of the job ask at once that this rank was turned away, or this process asks too
    /// often.
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "only other hosts are too many"))]
    Crowded,
}

/// `None`: it would fail again.
pub fn again(error: &GrowError) -> Option<Again> {
    match error {
        GrowError::Refused(why) if why == NOT_OFFERED => Some(Again::NotOffered),
        #[cfg(feature = "tls")]
        GrowError::Full(why) if why == ASKED_REFUSED => Some(Again::Crowded),
        #[cfg(feature = "tls")]
        // A host keeps a few unproven peers for each address, and silently drops the oldest.
        GrowError::Connect(ConnectError::Host {
            error: HostError::Meeting(MeetingError::Gone(_)) | HostError::TooMany,
            ..
        }) => Some(Again::Crowded),
        _ => None,
    }
}

/// Whether an attempt had too little time.
pub fn is_too_late(error: &GrowError) -> bool {
    matches!(error, GrowError::Connect(ConnectError::TimedOut(_)))
}

#[cfg(all(test, feature = "tls", not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::control::Reason;
    use std::string::ToString;

    #[test]
    fn what_passes_is_tried_again_and_nothing_else() {
        let of = |error| again(&GrowError::of(ConnectError::Host { name: "a".to_string(), error }));
        let refused =
            |reason, why: &str| of(HostError::Meeting(MeetingError::Refused(reason, why.into())));
        assert_eq!(refused(Reason::Application, NOT_OFFERED), Some(Again::NotOffered));
        assert_eq!(refused(Reason::Connections, ASKED_REFUSED), Some(Again::Crowded));
        let gone = HostError::Meeting(MeetingError::Gone("".into()));
        assert_eq!(of(gone), Some(Again::Crowded));
        assert_eq!(of(HostError::TooMany), Some(Again::Crowded));
        // The limit of links is reached; the refusal is not the job's; the peer is no rank.
        assert_eq!(refused(Reason::Connections, ""), None);
        assert_eq!(refused(Reason::User, ASKED_REFUSED), None);
        assert_eq!(refused(Reason::Application, "no"), None);
        assert_eq!(of(HostError::Meeting(MeetingError::Secret)), None);
        assert_eq!(of(HostError::Unknown("a".into())), None);
        assert_eq!(again(&GrowError::Refused("no".into())), None);
    }
}
