//! What the tests of links over libfabric share: settings, and a host that meets a server by hand.
#![allow(dead_code)]

use super::support::Dir;
use hamlyn::Config;
use hamlyn::config::Fabric;
use hamlyn::control::Identity;
use hamlyn::control::hosts::channel::Channel;
use hamlyn::control::hosts::hello::{self, Offer, Reply};
use hamlyn::control::hosts::keys::Keys;
use hamlyn::control::hosts::meeting::{Meeting, Own, Step};
use hamlyn::os::fabric::EndPoint;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const NEEDED: &str = "libfabric 1.17 or newer, with RDM over TCP (Debian: libfabric1)";

pub fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

pub fn secret(dir: &Dir) -> PathBuf {
    let path = dir.path.join("secret");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    writeln!(file, "{}", "7f".repeat(32)).unwrap();
    path
}

pub fn tls(dir: &Dir) -> Config {
    dir.config().secret(secret(dir))
}

pub fn trusted(dir: &Dir, provider: &str) -> Config {
    let config = tls(dir).fabric(Fabric::Trusted).fabric_provider(provider);
    match named("HAMLYN_FABRIC_LIBRARY") {
        Some(library) => config.fabric_library(library),
        None => config,
    }
}

pub fn listening(config: Config) -> Config {
    config.listen(SocketAddr::from((HERE, 0)))
}

/// Meets a server and offers this; what it says to that.
pub fn offer(at: SocketAddr, dir: &Dir, offer: &Offer) -> (Channel, Option<Reply>) {
    let (keys, identity) = (Keys::load(&tls(dir)).unwrap(), Identity::new().unwrap());
    let tcp = TcpStream::connect(at).unwrap();
    tcp.set_nonblocking(true).unwrap();
    let tls = rustls::ClientConnection::new(keys.client.clone(), "127.0.0.1".try_into().unwrap());
    let own = Own { keys, identity, packet_bytes: 4096 };
    let channel = Channel::new(tcp, tls.unwrap().into());
    let mut meeting = Meeting::of_client(channel, "x", Vec::new());
    meeting.says = hello::behind(offer);
    until("there is a link", || match meeting.turn(&own) {
        Step::Waits => None,
        Step::Link(..) => Some(()),
        step => panic!("{step:?}"),
    });
    let reply = hello::read_behind(&meeting.heard);
    (meeting.channel, reply)
}

pub fn offer_of(end: &EndPoint) -> Offer {
    Offer {
        protocol: end.choice().protocol(),
        format: end.choice().format(),
        address: end.address().to_vec(),
        token: 1,
        window: 8,
        message_bytes: 32 << 10,
    }
}

pub fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "it never came to be that {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
