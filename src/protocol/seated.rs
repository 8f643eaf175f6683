//! The methods of end points with a [`Seat`](super::Seat), written once. Like the protocols that use
//! them, these use the public interface alone; `tests/public_protocols.rs` compiles them outside of
//! the library.

/// The methods by which a receiver lets itself be found, over its field `seat`; `$grown` names the
/// sender that is grown from it.
macro_rules! seated {
    ($type:ty, $grown:literal) => {
        impl $type {
            #[doc = concat!("Bytes from which ", $grown, " can be grown, by whoever may connect")]
            /// ([`Manager::set_seed_access`](crate::protocol::Manager::set_seed_access)). Each call
            /// makes another seed; all are good until this end point is dropped. Fails if the
            /// manager cannot offer the service through which seeds are grown; nothing is left of
            /// it.
            pub fn seed(&self) -> Result<crate::protocol::Seed, crate::node::OfferError> {
                self.seat.seed()
            }

            #[doc = concat!("Lets ", $grown, " be grown by name, by those whom `access` lets in. On")]
            /// an error the name is not valid, or taken, or its socket cannot be made; nothing has
            /// changed.
            pub fn serve(
                &self,
                name: &str,
                access: crate::control::Access,
            ) -> Result<(), crate::node::OfferError> {
                self.seat.serve(name, access)
            }

            /// Stops new senders from finding it: its names are free at once for another, its seeds
            /// are worthless, and its connections stay. A process that may read a name's directory
            /// can make this take seconds.
            pub fn stop_serving(&self) {
                self.seat.stop_serving();
            }

            #[doc = concat!("Asks `admission` about each peer that wants to grow ", $grown)]
            /// by name or from a [`seed`](Self::seed), from now on and in place of an earlier one;
            /// the peer gets its error. It runs in whichever thread polls, and must not wait.
            pub fn set_admission(
                &self,
                admission: impl FnMut(&crate::control::Peer) -> Result<(), std::string::String>
                + Send
                + 'static,
            ) {
                self.seat.set_admission(admission);
            }

            /// Its current connections, each with the identity of the other end and the path of its
            /// messages ([`Connection::explain`](crate::protocol::Connection::explain)).
            pub fn connections(
                &self,
            ) -> std::vec::Vec<std::sync::Arc<crate::protocol::Connection>> {
                self.seat.connections()
            }
        }

        impl crate::protocol::Offered for $type {
            fn offer(&self) -> crate::protocol::Offer<'_> {
                self.seat.offer()
            }
        }
    };
}

/// The constructors of a sender over its `to(manager, timeout, connect)`, and the methods about its
/// connection, over its fields `seat` and `connection`: `$what` it sends, by which protocol.
macro_rules! grown_by_seat {
    ($type:ty, $what:literal, $protocol:literal) => {
        impl $type {
            /// Grows a sender from the seed of a receiver, waiting at most `timeout` for its
            /// manager's answer (Hamlyn 3.3). On an error nothing is left of the attempt.
            pub fn grow(
                manager: &crate::protocol::Manager,
                seed: &crate::protocol::Seed,
                timeout: Option<core::time::Duration>,
            ) -> Result<Self, crate::protocol::GrowError> {
                Self::to(manager, |seat, body| seat.grow(seed, body, timeout))
            }

            /// Grows a sender of a receiver that is served as `[user@]name`, waiting at most
            /// `timeout` for the name to be served (unless the setting `wait_for_names` is off) and
            /// for its manager's answer. On an error nothing is left of the attempt.
            pub fn connect(
                manager: &crate::protocol::Manager,
                name: &str,
                timeout: Option<core::time::Duration>,
            ) -> Result<Self, crate::protocol::GrowError> {
                Self::to(manager, |seat, body| seat.connect(name, body, timeout))
            }

            /// The connection, with the identity of the other end and the reason if it has ended.
            pub fn connection(&self) -> &crate::protocol::Connection {
                &self.connection
            }

            #[doc = concat!("Which path the ", $what, " take, and why; or why the connection has ended.")]
            pub fn explain(&self) -> std::string::String {
                std::format!("{}; {}", $protocol, self.connection.explain(self.seat.manager()))
            }
        }
    };
}

pub(super) use {grown_by_seat, seated};
