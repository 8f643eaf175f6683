//! What end points have in common: methods that each has, written once.

/// The methods by which a receiver lets itself be found, over its fields `manager` and `offer`, or
/// those of its field `inner`; of one that has many senders, also their connections. `$grown` is
/// what is grown from it.
macro_rules! offered {
    (many $grown:literal) => {
        offered!($grown);

        /// The connections that it has now: who is at the other end of each, and which path the
        /// messages take ([`Connection::explain`](crate::protocol::Connection::explain)).
        pub fn connections(&self) -> std::vec::Vec<std::sync::Arc<crate::protocol::Connection>> {
            self.manager.connections_of(self.offer)
        }
    };
    ($grown:literal $(, $inner:ident)?) => {
        #[doc = concat!("Bytes from which ", $grown, " can be grown, by whoever may connect")]
        /// ([`Manager::set_seed_access`](crate::protocol::Manager::set_seed_access)). Each call
        /// makes another seed; all are good until this end point is dropped. Fails where the
        /// manager cannot offer the service through which seeds are grown; nothing is left of it.
        pub fn seed(&self) -> Result<crate::protocol::Seed, crate::node::OfferError> {
            self.$($inner.)?manager.seed(self.$($inner.)?offer)
        }

        #[doc = concat!("Lets ", $grown, " be grown by name, by those whom `access` lets in. On an")]
        /// error the name is none, or taken, or its socket cannot be made; nothing has changed.
        pub fn serve(
            &self,
            name: &str,
            access: crate::control::Access,
        ) -> Result<(), crate::node::OfferError> {
            self.$($inner.)?manager.serve(self.$($inner.)?offer, name, access)
        }

        #[doc = concat!("Asks `admission` about each peer that wants to grow ", $grown)]
        /// by name or from a [`seed`](Self::seed), from now on and in the stead of any other; its
        /// error is what the peer is told. It runs in whichever thread polls, and must not wait.
        pub fn set_admission(
            &self,
            admission: impl FnMut(&crate::control::Peer) -> Result<(), std::string::String>
            + Send
            + 'static,
        ) {
            let admission = std::boxed::Box::new(admission);
            self.$($inner.)?manager.set_admission(self.$($inner.)?offer, admission);
        }
    };
}

pub(super) use offered;
