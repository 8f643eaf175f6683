//! Apertures of a link to another host, over the link's transport.

use super::Link;
use crate::os::aperture::ApertureAccess;
use std::os::fd::OwnedFd;
use std::string::String;

impl Link {
    /// Whether memory can be opened to the other end, if that is on another host. An error: the
    /// reason.
    pub(super) fn host_can_lend(&self) -> Option<Result<(), String>> {
        #[cfg(feature = "tls")]
        return self.rx.host().map(|host| crate::control::hosts::lock(host).can_lend());
        #[cfg(not(feature = "tls"))]
        None
    }

    /// Opens memory to the other end, on another host. An error: the reason.
    pub(super) fn lend_to_host(
        &self,
        file: OwnedFd,
        bytes: u64,
        access: ApertureAccess,
    ) -> Result<u32, String> {
        #[cfg(feature = "tls")]
        if let Some(host) = self.rx.host() {
            return crate::control::hosts::lock(host).lend(file, bytes, access);
        }
        let _ = (file, bytes, access);
        Err("the link has ended".into())
    }

    /// Revokes it, if the other end is on another host.
    pub(super) fn revoke_from_host(&self, number: u32) -> bool {
        #[cfg(feature = "tls")]
        if let Some(host) = self.rx.host() {
            crate::control::hosts::lock(host).revoke(number);
            return true;
        }
        let _ = number;
        false
    }

    /// Releases memory of the other end, if that is on another host.
    pub(super) fn release_to_host(&self, number: u32) -> bool {
        #[cfg(feature = "tls")]
        if let Some(host) = self.rx.host() {
            crate::control::hosts::lock(host).release(number);
            return true;
        }
        let _ = number;
        false
    }
}
