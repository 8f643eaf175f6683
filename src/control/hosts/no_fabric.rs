//! What [`Fabric`] is without the feature `libfabric`: TLS.

use super::channel::Channel;
use super::path::Path;
use crate::config::{self, Config};
use crate::os::poller::Poller;
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::string::String;
use std::vec::Vec;

/// Whether it was asked for.
#[derive(Debug)]
pub struct Fabric(bool);

/// Why there is none.
pub type Offered = Result<core::convert::Infallible, String>;

impl Fabric {
    /// Keeps whether it was asked for.
    pub fn start(config: &Config) -> Self {
        Self(config.fabric != config::Fabric::Off)
    }

    fn why_not(&self) -> Option<Offered> {
        self.0.then(|| Err("this program is built without the feature libfabric".into()))
    }

    /// Nothing is offered; if it was asked for, why.
    pub fn offer(&self, _: &Channel, _: &str) -> Option<(Offered, Vec<u8>)> {
        Some((self.why_not()?, Vec::new()))
    }

    /// The same, at a server.
    pub fn answer(&self, _: &Channel, _: &str, _: &[u8]) -> (Option<Offered>, Vec<u8>) {
        (self.why_not(), Vec::new())
    }

    /// What was offered stays as it is.
    pub fn accept(&self, offered: Offered, _: &Channel, _: &[u8]) -> Result<Offered, String> {
        Ok(offered)
    }

    /// TLS, and why.
    pub fn path(
        &self,
        offered: Option<Offered>,
        channel: Channel,
        _is_client: bool,
        _is_rail: bool,
        _tag: u64,
    ) -> io::Result<(Box<dyn Path>, Option<String>)> {
        Ok((Box::new(channel), offered.and_then(Result::err)))
    }

    /// Nothing is closed.
    pub fn opened(&self) -> Option<core::convert::Infallible> {
        None
    }

    /// Nothing is said beside it.
    pub fn words(&self) -> Option<&Poller> {
        None
    }

    /// There is nothing to look for.
    pub fn nap(&self, _: Option<Duration>) -> Option<Duration> {
        None
    }
}
