//! Apertures of a link to another host, over the link's transport.

use super::Link;
use crate::os::aperture::ApertureAccess;
use crate::transport::{Transport, lock};
use std::os::fd::OwnedFd;
use std::string::String;
use std::sync::MutexGuard;

impl Link {
    fn transport(&self) -> Option<MutexGuard<'_, dyn Transport + 'static>> {
        self.rx.host().map(|host| lock(&**host))
    }

    /// Whether memory can be opened to the other end, if that is on another host. An error: the
    /// reason.
    pub(super) fn host_can_lend(&self) -> Option<Result<(), String>> {
        self.transport().map(|mut host| host.can_lend())
    }

    /// Opens memory to the other end, on another host. An error: the reason.
    pub(super) fn lend_to_host(
        &self,
        file: OwnedFd,
        bytes: u64,
        access: ApertureAccess,
    ) -> Result<u32, String> {
        match self.transport() {
            Some(mut host) => host.lend(file, bytes, access),
            None => Err("the link has ended".into()),
        }
    }

    /// Revokes it, if the other end is on another host.
    pub(super) fn revoke_from_host(&self, number: u32) -> bool {
        self.transport().map(|mut host| host.revoke(number)).is_some()
    }

    /// Releases memory of the other end, if that is on another host.
    pub(super) fn release_to_host(&self, number: u32) -> bool {
        self.transport().map(|mut host| host.release(number)).is_some()
    }
}
