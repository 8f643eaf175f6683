//! `hamlyn why hamlyn://HOST:PORT/NAME`: how far a connection to a service of another host comes.
//!
//! Its figures are told on its own host alone, so the one thing that can be done from here is to connect, as
//! any client would, and to leave again.

use crate::output;
use crate::stat::PATIENCE;
use anyhow::{Result, bail};
use hamlyn::control::ConnectError;
use hamlyn::control::hosts::{HostError, MeetingError};
use hamlyn::{Config, Node};
use std::time::Duration;

/// What a connection needs, in the order in which it is found out.
const STEPS: [&str; 5] = [
    "the host's name has an address",
    "something listens at its port",
    "TLS with it",
    "each end takes the other for what it says it is, by the secret or the certificates",
    "the service is served there",
];

/// Says which steps work, and which does not.
pub fn run(name: &str) -> Result<()> {
    let mut node = Node::with_config(Config::from_env()?.wait_for_names(false))?;
    let connected = node.connect(name, b"", Some(PATIENCE));
    let (worked, error) = match connected {
        Ok(_) => (STEPS.len(), None),
        Err(error) => {
            let ConnectError::Host { error: host, .. } = &error else { return Err(error.into()) };
            (steps(host), Some(error))
        }
    };
    if worked > 0 {
        output::line(format_args!("This works: {}.", STEPS[..worked].join("; ")))?;
    }
    let Some(error) = error else {
        output::line(
            "It let this user in, and has no reason to be slow that is seen from here: ask there.",
        )?;
        node.close(Some(Duration::from_secs(1)))?;
        return Ok(());
    };
    output::line(format_args!("This does not: {error}."))?;
    if worked < STEPS.len() {
        bail!("no connection to {name}");
    }
    Ok(())
}

/// How many steps have worked before an error, as far as it says.
fn steps(error: &HostError) -> usize {
    match error {
        HostError::Unreachable { .. } => 1,
        HostError::Meeting(MeetingError::Tls(_) | MeetingError::Gone(_)) => 2,
        HostError::Meeting(MeetingError::NoService) => 4,
        HostError::Meeting(MeetingError::Refused(..)) => 5,
        HostError::Meeting(_) => 3,
        _ => 0,
    }
}
