//! Seeds of a manager's receivers, and the service under which they are found.

use super::{Manager, OfferId, Protocols, stop_serving};
use crate::control::{Accept, Access};
use crate::node::{NodeGuard, OfferError};
use crate::os::sys;
use crate::protocol::seed::{Kind, Seed, Token};
use std::collections::hash_map::Entry;
use std::format;
use std::string::String;
use std::sync::{Mutex, PoisonError};

impl Manager {
    /// Sets the access of senders that are grown from this manager's seeds; the same user by
    /// default. Set it before the first seed is made, since the socket's directory depends on it.
    pub fn set_seed_access(&self, access: Access) -> Result<(), OfferError> {
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        let before = protocols.seed_service.take();
        protocols.seed_access = Some(access);
        let control = node.control_apart();
        drop(guard);
        stop_serving(&control, before.map(|(service, _)| service));
        Ok(())
    }

    /// A seed of a receiver; each call makes another.
    pub(crate) fn seed(&self, offer: OfferId) -> Result<Seed, OfferError> {
        let service = self.seed_service()?;
        let mut guard = self.shared.lock();
        let (node, protocols) = guard.parts();
        if protocols.drains(offer) {
            return Err(OfferError::Drained);
        }
        let kind = protocols.offers.get_mut(&offer).expect("as long as its end point").kind;
        let service = match protocols.seed_access {
            None | Some(Access::SameUser) => service,
            // Found in the shared directory, below the owner's number.
            Some(_) => format!("{}@{service}", rustix::process::geteuid().as_raw()),
        };
        let token = Token(sys::random().expect("the system's random number generator"));
        protocols.by_token.insert(token, offer);
        Ok(Seed { kind, node: node.id(), token, service })
    }

    /// Senders may be grown with a token that both ends make for themselves, once the manager's
    /// [`seed_service`](Self::seed_service) is there. `None`: another receiver has the same token.
    pub(crate) fn offer_with(
        &self,
        offer: OfferId,
        make: impl FnOnce(Kind) -> Token,
    ) -> Option<()> {
        let mut guard = self.shared.lock();
        let (_, protocols) = guard.parts();
        let kind = protocols.offers.get_mut(&offer).expect("as long as its end point").kind;
        match protocols.by_token.entry(make(kind)) {
            Entry::Vacant(entry) => {
                entry.insert(offer);
                Some(())
            }
            Entry::Occupied(_) => None,
        }
    }

    /// The name under which this manager's seeds are found; served from the first seed on.
    pub(crate) fn seed_service(&self) -> Result<String, OfferError> {
        /// One thread makes the first.
        static MAKING: Mutex<()> = Mutex::new(());
        // The process may have become another user's since: then others look in another directory.
        let user = rustix::process::geteuid().as_raw();
        let made = |guard: &mut NodeGuard<'_, Protocols>| {
            let known = guard.parts().1.seed_service.as_ref();
            known.filter(|(_, of)| *of == user).map(|(service, _)| service.clone())
        };
        if let Some(service) = made(&mut self.shared.lock()) {
            return Ok(service);
        }
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = self.shared.lock();
        if let Some(service) = made(&mut guard) {
            return Ok(service);
        }
        let (node, protocols) = guard.parts();
        let service = format!("seeds-{:016x}", node.id().0);
        let access = protocols.seed_access.unwrap_or(Access::SameUser);
        let (control, before) = (node.control_apart(), protocols.seed_service.take());
        drop(guard);
        stop_serving(&control, before.map(|(service, _)| service));
        control.serve(&service.parse()?, access, Accept::Ask)?;
        self.shared.lock().parts().1.seed_service = Some((service.clone(), user));
        Ok(service)
    }
}
