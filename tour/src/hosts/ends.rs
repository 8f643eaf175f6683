//! The two hosts: far serves, near calls.

use super::own_directory;
use crate::actor::Orders;
use anyhow::{Context, Result, ensure};
use hamlyn::Config;
use hamlyn::config::Local;
use hamlyn::control::{Access, ServiceName, stat_of};
use hamlyn::protocol::{Client, Manager, Server, ServerConfig};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The service of the far host.
pub const SERVICE: &str = "deep-thought";
/// The time limit of a call.
pub const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
/// The repeated text of each message, for which the eavesdropper searches.
pub const PHRASE: &[u8] = b"Meant for the other host alone. ";

/// The start parameters of an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Begin {
    /// The directory of the act.
    pub directory: PathBuf,
    /// Its own address, if it has a cable.
    pub cable: Option<IpAddr>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FarOrder {
    /// Answers that it runs.
    Ready,
    /// Answered with its listening address.
    Begin(Begin),
    Report,
}

/// The requests that far received, and its counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub requests: u64,
    /// The requests among them that near did not send.
    pub wrong: u64,
    /// Present links.
    pub links: usize,
    pub counters: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum NearOrder {
    Ready,
    Begin(Begin),
    /// Connects to the service at this address.
    Connect(SocketAddr),
    /// Asks for the digest of so many bytes, within a time limit.
    Call(usize, Duration),
    /// Leaves the link.
    Leave,
    /// Reports its counters.
    Report,
}

/// The result of an order to near.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// `None`: it succeeded, and the answer is right.
    pub error: Option<String>,
    /// The path of the link, and nanoseconds that a call took.
    pub path: String,
    pub ns: u64,
}

/// The request's bytes.
pub fn message(bytes: usize) -> Vec<u8> {
    PHRASE.iter().copied().cycle().take(bytes).collect()
}

/// Settings of the act alone: not those of the user who runs the tour.
pub fn config(directory: &Path, name: &str, secret: &str) -> Config {
    Config::default()
        .dir(own_directory(directory, name))
        .secret(directory.join(secret))
        // Without namespaces, both are on this host.
        .local(Local::Tls)
        .wait_for_names(false)
        .handshake_timeout_ms(3000u32)
}

/// Uses a cable that was put into this namespace, with this address.
pub fn plug(cable: Option<IpAddr>, name: &str) -> Result<()> {
    let Some(address) = cable else { return Ok(()) };
    for line in [
        "ip link set lo up".to_owned(),
        format!("ip addr add {address}/24 dev {name}"),
        format!("ip link set {name} up"),
    ] {
        super::run(line.split(' ')).with_context(|| line.clone())?;
    }
    Ok(())
}

/// The actor.
pub fn far(mut orders: Orders) -> Result<()> {
    let (requests, wrong) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut begun: Option<(Config, Manager)> = None;
    while let Some(order) = orders.next()? {
        match order {
            FarOrder::Ready => orders.answer(Ok(()))?,
            FarOrder::Begin(begin) => {
                let its = (requests.clone(), wrong.clone());
                let result = serve(&begin, its);
                orders.answer(result.map(|(config, manager, at)| {
                    begun = Some((config, manager));
                    at
                }))?;
            }
            FarOrder::Report => {
                let report = begun.as_ref().context("not begun").and_then(|(config, manager)| {
                    let counters = counters(config)?;
                    let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
                    let links = manager.lock().links().count();
                    Ok(Report { requests: of(&requests), wrong: of(&wrong), links, counters })
                });
                orders.answer(report)?;
            }
        }
    }
    Ok(())
}

fn serve(
    begin: &Begin,
    (requests, wrong): (Arc<AtomicU64>, Arc<AtomicU64>),
) -> Result<(Config, Manager, SocketAddr)> {
    plug(begin.cable, "cable")?;
    let config = config(&begin.directory, "far", "secret");
    let address = begin.cable.unwrap_or([127, 0, 0, 1].into());
    let manager = Manager::with_config(config.clone().listen(SocketAddr::new(address, 0)))?;
    let server = Server::new(&manager, ServerConfig::default())?;
    server.serve(SERVICE, Access::SameUser)?;
    let at = manager.listens_at().context("it does not listen")?;
    thread::Builder::new().spawn(move || {
        while let Ok(request) = server.receive(None) {
            requests.fetch_add(1, Ordering::SeqCst);
            let meant = message(request.len());
            if *request != *meant {
                wrong.fetch_add(1, Ordering::SeqCst);
            }
            let _ = request.reply(blake3::hash(&meant).as_bytes(), LIMIT);
        }
    })?;
    Ok((config, manager, at))
}

fn counters(config: &Config) -> Result<BTreeMap<String, u64>> {
    let service: ServiceName = SERVICE.parse()?;
    let text = stat_of(config, &service, LIMIT)?;
    let row = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    Ok(text.lines().filter_map(row).collect())
}

/// The other actor.
pub fn near(mut orders: Orders) -> Result<()> {
    let mut manager: Option<Manager> = None;
    let mut client: Option<Client> = None;
    while let Some(order) = orders.next()? {
        match order {
            NearOrder::Ready => orders.answer(Ok(()))?,
            NearOrder::Begin(begin) => {
                let made = plug(begin.cable, "cable").and_then(|()| {
                    Ok(Manager::with_config(config(&begin.directory, "near", "secret"))?)
                });
                orders.answer(made.map(|made| manager = Some(made)))?;
            }
            NearOrder::Connect(at) => {
                let done = manager.as_ref().context("not begun").map(|manager| {
                    let name = format!("hamlyn://{at}/{SERVICE}");
                    match Client::connect(manager, &name, LIMIT) {
                        Ok(made) => {
                            let path = made.connection().explain(manager);
                            client = Some(made);
                            Done { path, ..Done::default() }
                        }
                        Err(error) => failed(&error.into()),
                    }
                });
                orders.answer(done)?;
            }
            NearOrder::Call(bytes, limit) => {
                let done = client.as_ref().context("not connected").map(|client| {
                    let began = Instant::now();
                    match call(client, bytes, limit) {
                        Ok(()) => Done { ns: began.elapsed().as_nanos() as u64, ..Done::default() },
                        Err(error) => failed(&error),
                    }
                });
                orders.answer(done)?;
            }
            NearOrder::Leave => {
                drop(client.take());
                orders.answer(Ok(()))?;
            }
            NearOrder::Report => {
                let found = manager.as_ref().context("not begun").map(|manager| {
                    let counters = manager.lock().counters();
                    counters.into_iter().map(|(name, n)| (name.to_string(), n)).collect()
                });
                let found: Result<BTreeMap<String, u64>> = found;
                orders.answer(found)?;
            }
        }
    }
    Ok(())
}

fn failed(error: &anyhow::Error) -> Done {
    Done { error: Some(format!("{error:#}")), ..Done::default() }
}

fn call(client: &Client, bytes: usize, limit: Duration) -> Result<()> {
    let message = message(bytes);
    let reply = client.call(&message, Some(limit))?;
    ensure!(*reply == *blake3::hash(&message).as_bytes(), "THE REPLY IS NOT THE RIGHT ONE");
    Ok(())
}
