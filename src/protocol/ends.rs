//! The common part of end points: methods that each has, written once.

use super::{Connection, Manager, SendError};
use crate::control::{Peer, PeerUser};
use crate::node::CloseReason;
use core::fmt::Display;
use std::format;
use std::string::String;

/// Whether `peer` may have one of an end point's `max` places, some of which `holders` have taken.
/// The error names `what` the places are for, and the `setting` that limits them. The last eighth
/// of the places, at least one, is for users that have no place yet, so that no stranger takes them
/// all; the limit does not hold for the process's own user, who controls the process anyway. Users
/// that cannot be told apart count as one.
pub(super) fn check_place(
    holders: impl Iterator<Item = PeerUser>,
    peer: &Peer,
    max: usize,
    what: &str,
    setting: &str,
) -> Result<(), String> {
    let (mut taken, mut has_one) = (0, false);
    for holder in holders {
        taken += 1;
        has_one |= peer.is_of(&holder);
    }
    let of = |count: usize| if count == 1 { what.trim_end_matches('s') } else { what };
    if taken >= max {
        return Err(format!("it has {max} {}, as many as it may ({setting})", of(max)));
    }
    let kept = if max > 1 { (max / 8).max(1) } else { 0 };
    let is_own = peer.is_of(&PeerUser::Here(Some(rustix::process::geteuid().as_raw())));
    if has_one && !is_own && max - taken <= kept {
        return Err(format!(
            "it has {taken} {} and may have {max} ({setting}), and the last {kept} are for users who \
             have none",
            of(taken)
        ));
    }
    Ok(())
}

impl Peer {
    /// Whether this peer may have one of an end point's `max` places, some of which `holders` have
    /// taken; otherwise the sentence for it, which names `what` the places are for, and the
    /// `setting` that limits them. The last eighth of the places, at least one, is for users that
    /// have no place yet, so that no stranger takes them all; the process's own user may have them,
    /// too. Hosts count as users.
    ///
    /// ```
    /// use hamlyn::Peer;
    ///
    /// /// Of a protocol, in `Protocol::check_place`.
    /// fn check(peer: &Peer, guests: &[Peer]) -> Result<(), String> {
    ///     peer.check_place(guests, 16, "guests", "guests_max")
    /// }
    /// ```
    pub fn check_place<'a>(
        &self,
        holders: impl IntoIterator<Item = &'a Peer>,
        max: usize,
        what: &str,
        setting: &str,
    ) -> Result<(), String> {
        check_place(holders.into_iter().map(Peer::user), self, max, what, setting)
    }
}

/// The reason for a connection's end; [`CloseReason::Closed`] until the manager has heard more.
pub(crate) fn ended(connection: &Connection) -> SendError {
    SendError::Ended(connection.ended().cloned().unwrap_or(CloseReason::Closed))
}

pub(crate) fn explain(
    manager: &Manager,
    connection: &Connection,
    protocol: impl Display,
) -> String {
    format!("{protocol}; {}", connection.explain(manager))
}

/// The methods by which a receiver lets itself be found, over its fields `manager` and `offer`, or
/// those of its field `inner`; of one that has many senders, also their connections. `$grown` names
/// the sender that is grown from it.
macro_rules! offered {
    (many $grown:literal) => {
        offered!($grown);

        /// Its current connections, each with the identity of the other end and the path of its
        /// messages ([`Connection::explain`](crate::protocol::Connection::explain)).
        pub fn connections(&self) -> std::vec::Vec<std::sync::Arc<crate::protocol::Connection>> {
            self.manager.connections_of(|of| of == self.offer)
        }
    };
    ($grown:literal $(, $inner:ident)?) => {
        #[doc = concat!("Bytes from which ", $grown, " can be grown, by whoever may connect")]
        /// ([`Manager::set_seed_access`](crate::protocol::Manager::set_seed_access)). Each call
        /// makes another seed; all are good until this end point is dropped. Fails if the manager
        /// cannot offer the service through which seeds are grown; nothing is left of it.
        pub fn seed(&self) -> Result<crate::protocol::Seed, crate::node::OfferError> {
            self.$($inner.)?manager.seed(self.$($inner.)?offer)
        }

        #[doc = concat!("Lets ", $grown, " be grown by name, by those whom `access` lets in. On an")]
        /// error the name is not valid, or taken, or its socket cannot be made; nothing has
        /// changed.
        pub fn serve(
            &self,
            name: &str,
            access: crate::control::Access,
        ) -> Result<(), crate::node::OfferError> {
            self.$($inner.)?manager.serve(self.$($inner.)?offer, name, access)
        }

        /// Stops new senders from finding it: its names are free at once for another, its seeds are
        /// worthless, and its connections stay. A process that may read a name's directory can make
        /// this take seconds.
        pub fn stop_serving(&self) {
            self.$($inner.)?manager.hide(self.$($inner.)?offer);
        }

        #[doc = concat!("Asks `admission` about each peer that wants to grow ", $grown)]
        /// by name or from a [`seed`](Self::seed), from now on and in place of an earlier one; the
        /// peer gets its error. It runs in whichever thread polls, and must not wait.
        pub fn set_admission(
            &self,
            admission: impl FnMut(&crate::control::Peer) -> Result<(), std::string::String>
            + Send
            + 'static,
        ) {
            let admission = std::boxed::Box::new(admission);
            self.$($inner.)?manager.set_admission(self.$($inner.)?offer, admission);
        }

        /// As [`Offered::offer`](crate::protocol::Offered::offer).
        pub(crate) fn offered(&self) -> crate::protocol::Offer<'_> {
            let (manager, id) = (&self.$($inner.)?manager, self.$($inner.)?offer);
            crate::protocol::Offer { manager, id }
        }
    };
}

/// The constructors of an end point that is grown, over its `to(manager, target, .., timeout)`:
/// `$what` is grown, of `$of`, and `$more` documents a further argument.
macro_rules! grown {
    ($what:literal, $of:literal $(, $arg:ident: $type:ty, $more:literal)?) => {
        grown!(grow, connect => to, $what, $of $(, $arg: $type, $more)?);
    };
    (
        $grow:ident, $connect:ident => $to:ident,
        $what:literal, $of:literal $(, $arg:ident: $type:ty, $more:literal)?
    ) => {
        #[doc = concat!("Grows ", $what, " from the seed of ", $of, ", waiting at most `timeout`")]
        /// for its manager's answer (Hamlyn 3.3). On an error nothing is left of the attempt.
        $(#[doc = $more])?
        pub fn $grow(
            manager: &crate::protocol::Manager,
            seed: &crate::protocol::Seed,
            $($arg: $type,)?
            timeout: Option<core::time::Duration>,
        ) -> Result<Self, crate::protocol::GrowError> {
            let target = crate::protocol::manager::Target::Seed(seed);
            Self::$to(manager, target, $($arg,)? timeout)
        }

        #[doc = concat!("Grows ", $what, " of ", $of, " that is served as `[user@]name`, waiting at")]
        /// most `timeout` for the name to be served (unless the setting `wait_for_names` is off)
        /// and for its manager's answer. On an error nothing is left of the attempt.
        $(#[doc = $more])?
        pub fn $connect(
            manager: &crate::protocol::Manager,
            name: &str,
            $($arg: $type,)?
            timeout: Option<core::time::Duration>,
        ) -> Result<Self, crate::protocol::GrowError> {
            let target = crate::protocol::manager::Target::Service(name);
            Self::$to(manager, target, $($arg,)? timeout)
        }
    };
}

/// The methods of a grown end point about its connection, over its fields `manager` and
/// `connection`: `$what` it sends, by which protocol.
macro_rules! connected {
    () => {
        /// The connection, with the identity of the other end and the reason if it has ended.
        pub fn connection(&self) -> &crate::protocol::Connection {
            &self.connection
        }
    };
    ($what:literal, |$this:pat_param| $protocol:expr) => {
        connected!();

        #[doc = concat!("Which path the ", $what, " take, and why; or why the connection has ended.")]
        pub fn explain(&self) -> std::string::String {
            let $this = self;
            crate::protocol::ends::explain(&self.manager, &self.connection, $protocol)
        }
    };
}

pub(super) use {connected, grown, offered};
