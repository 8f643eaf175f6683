//! [`HostFabric`] without the feature `libfabric`: TLS.

use super::channel::Channel;
use super::path::Path;
use crate::config::{self, Config};
use crate::os::poller::Poller;
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::string::String;
use std::vec::Vec;

/// Remembers whether the settings ask for a fabric.
#[derive(Debug)]
pub struct HostFabric(bool);

/// The reason why there is no fabric.
pub type OfferedPlace = Result<core::convert::Infallible, String>;

impl HostFabric {
    /// Reads whether the settings ask for a fabric.
    pub fn start(config: &Config) -> Self {
        Self(config.fabric != config::Fabric::Off)
    }

    fn why_not(&self) -> Option<OfferedPlace> {
        self.0.then(|| Err("this program is built without the feature libfabric".into()))
    }

    /// Offers nothing; returns the reason if a fabric was asked for.
    pub fn offer(&self, _: &Channel, _: &str) -> Option<(OfferedPlace, Vec<u8>)> {
        Some((self.why_not()?, Vec::new()))
    }

    /// The same, at a server.
    pub fn answer(&self, _: &Channel, _: &str, _: &[u8]) -> (Option<OfferedPlace>, Vec<u8>) {
        (self.why_not(), Vec::new())
    }

    /// Returns the offer unchanged.
    pub fn accept(
        &self,
        offered: OfferedPlace,
        _: &Channel,
        _: &[u8],
    ) -> Result<OfferedPlace, String> {
        Ok(offered)
    }

    /// TLS, and the reason.
    pub fn path(
        &self,
        offered: Option<OfferedPlace>,
        channel: Channel,
        _is_client: bool,
        _is_rail: bool,
        _tag: u64,
    ) -> io::Result<(Box<dyn Path>, Option<String>)> {
        Ok((Box::new(channel), offered.and_then(Result::err)))
    }

    /// There is nothing to close.
    pub fn opened(&self) -> Option<core::convert::Infallible> {
        None
    }

    /// There are no words beside TLS.
    pub fn words(&self) -> Option<&Poller> {
        None
    }

    /// There is nothing to poll.
    pub fn nap(&self, _: Option<Duration>) -> Option<Duration> {
        None
    }
}
