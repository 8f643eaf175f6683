//! The DNS without the feature `dns`: look-ups return an error that says so.

use super::{HostDirectoryError, ServiceTarget};
use crate::config::ServiceDirectory;
use core::convert::Infallible;
use core::net::SocketAddr;
use std::io;
use std::string::ToString;
use std::vec::Vec;

/// There is no resolver.
#[derive(Debug)]
pub struct Resolver(Infallible);

impl Resolver {
    pub fn addresses(&self, _: &str, _: u16, _: u64) -> io::Result<Vec<SocketAddr>> {
        match self.0 {}
    }
}

pub fn look_up(
    domain: &str,
    server: Option<SocketAddr>,
    _: &str,
    _: u64,
) -> Result<Vec<ServiceTarget>, HostDirectoryError> {
    let directory = ServiceDirectory::Dns { domain: domain.into(), server };
    Err(HostDirectoryError::NoDns(directory.to_string()))
}
