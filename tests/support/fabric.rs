//! The common parts of the tests of links over libfabric: settings, and a host that meets a server
//! by hand.
#![allow(dead_code)]

use super::support::{Dir, skipped};
use hamlyn::Config;
use hamlyn::config::Fabric;
use hamlyn::control::Identity;
use hamlyn::control::hosts::keys::Keys;
use hamlyn::control::hosts::meeting::{Meeting, MeetingStep, OwnData};
use hamlyn::os::fabric::FabricEndPoint;
use hamlyn::transport::channel::Channel;
use hamlyn::transport::offer::{self, FabricOffer, OfferReply};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const NEEDED: &str = "libfabric 1.17 or newer, with RDM over TCP (Debian: libfabric1)";

pub fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

pub fn tls(dir: &Dir) -> Config {
    dir.config().secret(dir.secret())
}

pub fn trusted(dir: &Dir, provider: &str) -> Config {
    let config = tls(dir).fabric(Fabric::Trusted).fabric_provider(provider);
    match named("HAMLYN_FABRIC_LIBRARY") {
        Some(library) => config.fabric_library(library),
        None => config,
    }
}

/// Meets a server and offers this; what it says to that.
pub fn offer(at: SocketAddr, dir: &Dir, offer: &FabricOffer) -> (Channel, Option<OfferReply>) {
    let (keys, identity) = (Keys::load(&tls(dir)).unwrap(), Identity::new().unwrap());
    let tcp = TcpStream::connect(at).unwrap();
    tcp.set_nonblocking(true).unwrap();
    let tls = rustls::ClientConnection::new(keys.client.clone(), "127.0.0.1".try_into().unwrap());
    let own = OwnData { keys, identity, packet_bytes: 4096 };
    let channel = Channel::new(tcp, tls.unwrap().into());
    let mut meeting = Meeting::of_client(channel, "x", Vec::new());
    meeting.says = offer::behind(offer);
    until("there is a link", || match meeting.turn(&own) {
        MeetingStep::Waits => None,
        MeetingStep::Link(..) => Some(()),
        step => panic!("{step:?}"),
    });
    let reply = offer::read_behind(&meeting.heard);
    (meeting.channel, reply)
}

pub fn offer_of(end: &FabricEndPoint) -> FabricOffer {
    FabricOffer {
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

/// This program's own tests of these names once more, in a process of their own, with a libfabric that asks
/// for all that is done here and sees that it is done (`strict_fabric.rs`); what it has seen. `None`, which
/// is said: it cannot be made.
pub fn strictly(dir: &Dir, tests: &[&str]) -> Option<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/strict_fabric.rs");
    let library = dir.path.join("libstrict.so");
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let mut rustc = Command::new(rustc);
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "-o"]).arg(&library).arg(source);
    match rustc.output() {
        Ok(made) if made.status.success() => {}
        Ok(made) => panic!("{}", String::from_utf8_lossy(&made.stderr)),
        Err(error) => {
            skipped(&format!("a libfabric that asks for more: there is no rustc ({error})"));
            return None;
        }
    }
    let saw = dir.path.join("saw");
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(tests).args(["--exact", "--nocapture"]).stdin(Stdio::null());
    // Where it writes what a provider has to say of a crash.
    again.current_dir(&dir.path);
    again.env("HAMLYN_FABRIC_LIBRARY", &library).env("STRICT_FABRIC_SAW", &saw);
    if let Some(of) = named("HAMLYN_FABRIC_LIBRARY") {
        again.env("STRICT_FABRIC_OF", of);
    }
    let output = again.output().unwrap();
    let saw = std::fs::read_to_string(saw).unwrap_or_default();
    let [said, told] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    let ran = format!("test result: ok. {} passed", tests.len());
    let is_well = output.status.success() && said.contains(&ran) && !saw.contains("WRONG");
    assert!(is_well, "{}\n{said}\n{told}\n{saw}", output.status);
    Some(saw)
}
