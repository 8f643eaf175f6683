//! `hamlyn why hamlyn://HOST:PORT/NAME`: how far a connection to a service on another host comes.
//!
//! It asks that host whether it serves the service for this host, and then for its figures, which
//! it shows to the hosts in its setting figures_to. No link is made, and the serving program
//! notices nothing.

use crate::figures::Figures;
use crate::findings;
use crate::stat::PATIENCE;
use anyhow::{Result, bail};
use hamlyn::Config;
use hamlyn::control::hosts::HostName;
use hamlyn::control::hosts::figures::ask;
use hamlyn::control::hosts::reach::{Asked, Reached, Stopped, reach};
use hamlyn_tools::output;

/// The steps of a connection, in the order in which they are checked.
const STEPS: [&str; 5] = [
    "the host's name has an address",
    "something listens at its port",
    "TLS with it",
    "each end takes the other for what it says it is, by the secret or the certificates",
    "the service is served there, for this host, too",
];

/// Reports the steps that work, and the one that does not.
pub fn run(name: &str) -> Result<()> {
    let (config, host) = (Config::from_env()?, name.parse::<HostName>()?);
    let Asked { reached, stopped, tells_figures } = reach(&config, &host, PATIENCE);
    let refused = stopped.is_some() && reached == Reached::Service;
    // The service exists, but it may not be served for this host.
    let last = if refused { "the service is served there" } else { STEPS[4] };
    let worked = [&STEPS[..4], &[last]].concat()[..reached as usize].join("; ");
    if !worked.is_empty() {
        output::line(format_args!("This works: {worked}."))?;
    }
    let Some(stopped) = stopped else {
        output::line(
            "All of it works, and nothing is seen from here that would make a connection slow. Whether its \
             program lets this host in it decides when it is asked for a link, which was not done; what else \
             it knows `hamlyn why` says there. Where it is on this host, a link is a ring instead, if it has \
             the same local name for this process; `explain` says why not.",
        )?;
        return figures(&config, &host, tells_figures);
    };
    match stopped {
        Stopped::By(error) => {
            output::line(format_args!("This does not: {name}: {}", findings::ended(&error)))?;
        }
        Stopped::Silent(address) => output::line(silent(reached, address))?,
    }
    if !refused {
        bail!("no connection to {name}");
    }
    Ok(())
}

/// Reports the figures of its process, if it shows them to this host.
fn figures(config: &Config, name: &HostName, tells: bool) -> Result<()> {
    if !tells {
        return output::line(
            "Its figures are for the hosts that its setting figures_to (HAMLYN_FIGURES_TO) names, which this \
             is not.",
        );
    }
    let look = || ask(config, name, PATIENCE).map(|told| Figures::of_host(&told.text));
    let before = look()?;
    std::thread::sleep(findings::PAUSE);
    findings::tell(&before, &look()?, false)
}

/// The meaning of a host's silence.
fn silent(reached: Reached, address: Option<std::net::SocketAddr>) -> String {
    let address = address.map_or("it".into(), |address| address.to_string());
    let seconds = PATIENCE.as_secs();
    match reached {
        Reached::Nothing | Reached::Address => format!(
            "This does not: {address} has not answered for {seconds} seconds: the host is down, or a \
             firewall between drops what is sent there, or what comes back (one that refuses says so at \
             once). On that host, `ss -ltn` says whether its port is listened at."
        ),
        _ => format!(
            "This does not: {address} took the connection, and has said nothing more for {seconds} seconds. \
             The system takes connections for a process that does nothing: it is stopped, by a signal \
             (SIGSTOP) or a debugger, or has no processor; or what listens there is not Hamlyn. On that \
             host, `hamlyn why` with the service's name says whether it is stopped."
        ),
    }
}
