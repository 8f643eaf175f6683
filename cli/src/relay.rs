//! `hamlyn relay`: carries the samples of a publisher on another host once over the network, for
//! any number of subscribers on this one.
//!
//! [`Relay`] does the work. This file configures it, reports on its connection, and ends: with
//! success when the publisher has ended normally and subscribers have its last sample.

use crate::arguments::{RelayArguments, Slow};
use anyhow::{Context, Result, bail};
use hamlyn::Config;
use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    ConnectionState, Manager, PublishConfig, ReconnectPolicy, Relay, RelayConfig, RelayError,
    SubscribeConfig, WhenSlow,
};
use hamlyn_tools::{ending, progress};
use std::time::Duration;

/// The interval between looks at the state of the connection.
const LOOK: Duration = Duration::from_millis(500);
/// The time that subscribers have to read the rest when the publisher has ended.
const LAST: Duration = Duration::from_secs(10);

/// `hamlyn relay NAME`.
pub fn run(arguments: &RelayArguments) -> Result<()> {
    let name = match &arguments.serve_as {
        Some(name) => name,
        None => own_name(&arguments.name),
    };
    hamlyn_tools::serving::to_serve(name)?;
    let manager = Manager::with_config(arguments.allow.settings(Config::from_env()?))?;
    let wait = Some(arguments.wait);
    let mut relay = Relay::connect(&manager, &arguments.name, config(arguments), wait)
        .with_context(|| format!("no publisher at {}", arguments.name))?;
    let access = arguments.allow.access();
    relay.serve(name, access)?;
    {
        let node = manager.lock();
        hamlyn_tools::serving::tell_other_hosts(&node, name);
        ending::remove_name(node.config(), name, access);
    }
    ending::on_signals()?;
    let bar = progress::count(format!("samples of {}", arguments.name));
    let mut told = relay.state();
    let end = loop {
        match relay.pass_on(Some(LOOK)) {
            Ok(_) => bar.inc(1),
            Err(RelayError::TimedOut) => {}
            Err(end) => break end,
        }
        let state = relay.state();
        if !is_as_told(&told, &state) {
            bar.suspend(|| tell(&arguments.name, &state));
            told = state;
        }
    };
    bar.finish_and_clear();
    match end {
        RelayError::Ended(reason) => {
            if let Err(error) = relay.drain(Some(LAST)) {
                eprintln!("hamlyn: the publisher has ended, and a subscriber has not all: {error}");
            }
            if reason != CloseReason::Closed {
                bail!("{}: the publisher was gone before its last sample was read", arguments.name);
            }
            Ok(())
        }
        end => bail!("{}: {end}", arguments.name),
    }
}

fn config(arguments: &RelayArguments) -> RelayConfig {
    RelayConfig {
        publish: PublishConfig {
            history: arguments.history,
            backlog: arguments.backlog,
            outstanding_max: arguments.outstanding,
            subscribers_max: arguments.subscribers,
            when_slow: match arguments.when_slow {
                Slow::Wait => WhenSlow::Wait,
                Slow::DropOldest => WhenSlow::DropOldest,
                Slow::DropNewest => WhenSlow::DropNewest,
                Slow::SendAway => WhenSlow::SendAway,
            },
            ..PublishConfig::default()
        },
        subscribe: SubscribeConfig {
            sample_bytes_max: arguments.sample_max.as_u64() as usize,
            ..RelayConfig::default().subscribe
        },
        reconnect: ReconnectPolicy { outage_max: arguments.outage, ..ReconnectPolicy::default() },
        until_closed: !arguments.keep,
    }
}

/// The service's own name in `[USER@]NAME` and `hamlyn://HOST:PORT/NAME`.
fn own_name(name: &str) -> &str {
    name.rsplit(['/', '@']).next().unwrap_or(name)
}

/// Whether the state was reported already: an outage is reported once, for any number of attempts.
fn is_as_told(told: &ConnectionState, state: &ConnectionState) -> bool {
    match (told, state) {
        (ConnectionState::Reconnecting { .. }, ConnectionState::Reconnecting { .. }) => true,
        _ => told == state,
    }
}

fn tell(name: &str, state: &ConnectionState) {
    match state {
        ConnectionState::Connected { .. } => eprintln!("hamlyn: connected to {name} again"),
        ConnectionState::Reconnecting { why, .. } => {
            eprintln!("hamlyn: no connection to {name}, which is tried again: {why}");
        }
        // The command ends with it.
        ConnectionState::GivenUp { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_called_here_as_it_is_there() {
        for name in ["prices", "alice@prices", "hamlyn://192.0.2.1:7/prices", "hamlyn://prices"] {
            assert_eq!(own_name(name), "prices", "{name}");
        }
    }
}
