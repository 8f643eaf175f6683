//! Links over libfabric's reliable datagrams, for fabrics whose hosts are trusted: both ends ask
//! for it, and agree on it over TLS.
//!
//! ```text
//!   client: offer --Wants--> server: answer --Yes--> client: accept;   each: FabricWay, over its Station
//! ```
//! - [`credit`]: the head of a message, and the limit on messages on their way
//! - [`words`]: the ends' messages beside that, over TLS; [`deposits`]: memory that they open to
//!   one another
//! - `station`: one end point and its links; [`way`]: one of them, as a [`Path`]
//! - `silence`: detects that messages do not arrive
//!
//! An end point is opened when this host first meets a host that asks for one, too, at this host's
//! address in that connection: no other address is open. The receiver's interface checks these
//! packets like all others.

pub mod credit;
pub mod deposits;
mod silence;
pub mod station;
pub mod way;
pub mod words;

use super::channel::Channel;
use super::offer::{self, FabricOffer, OfferReply};
use super::path::Path;
use crate::config::{self, Config};
use crate::os::fabric::library::MESSAGE_BYTES;
use crate::os::fabric::{FabricEndPoint, Library, OpenedExit};
use crate::os::poller::Poller;
use core::net::IpAddr;
use core::time::Duration;
use deposits::{Deposits, Holdings};
use station::{Station, StationPlace, place_at};
use std::boxed::Box;
use std::collections::HashMap;
use std::format;
use std::io;
use std::path::PathBuf;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::vec::Vec;
use way::FabricWay;

/// The thread's pauses between polls of a provider without a descriptor: the first after something
/// came, and the longest.
const NAP: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);
/// Most addresses of this host with an end point.
const STATIONS_MAX: usize = 64;

/// The settings for fabrics, and the end points.
#[derive(Debug)]
pub struct HostFabric {
    /// `None`: TLS alone.
    asked: Option<AskedFabric>,
}

#[derive(Debug)]
struct AskedFabric {
    provider: Option<String>,
    path: Option<PathBuf>,
    library: OnceLock<Result<Arc<Library>, String>>,
    /// Signals words that have come beside the fabric to the thread.
    words: io::Result<Poller>,
    timeout_ns: u64,
    /// Memory of other hosts that this process has open.
    holdings: Arc<Holdings>,
    stations: Mutex<HashMap<IpAddr, Arc<Station>>>,
}

/// A place that was offered to another host, or the reason why there is none.
pub type OfferedPlace = Result<StationPlace, String>;

impl HostFabric {
    /// Reads the settings. If the library cannot be used, links report that. libfabric's first
    /// query loads all of its providers, which takes a quarter of a second: if this process
    /// listens, it happens here, else in the first thread that connects, so that it delays no node.
    pub fn start(config: &Config) -> Self {
        if config.fabric == config::Fabric::Off {
            return Self { asked: None };
        }
        let (provider, path) = (config.fabric_provider.clone(), config.fabric_library.clone());
        let timeout_ns = u64::from(config.host_timeout_ms) * 1_000_000;
        let stations = Mutex::default();
        let holdings = Arc::new(Holdings::new(config));
        let words = Poller::new();
        let library = OnceLock::new();
        let asked = AskedFabric { provider, path, library, words, timeout_ns, holdings, stations };
        if config.listen.is_some() {
            let _ = asked.library();
        }
        Self { asked: Some(asked) }
    }

    /// At a client: the offer for the server, which still has to prove that it is `host`, and its
    /// bytes. `None`: the settings do not ask for a fabric.
    pub fn offer(&self, channel: &Channel, host: &str) -> Option<(OfferedPlace, Vec<u8>)> {
        let place = self.asked.as_ref()?.place(channel, host);
        let says = place.as_ref().map_or(Vec::new(), |place| offer::behind(&place.offer()));
        Some((place, says))
    }

    /// At a server: answers the offer of a client with this proven identity; returns the place and
    /// the reply.
    pub fn answer(
        &self,
        channel: &Channel,
        identity: &str,
        heard: &[u8],
    ) -> (Option<OfferedPlace>, Vec<u8>) {
        let Some(asked) = &self.asked else { return (None, Vec::new()) };
        let Some(offer) = offer::read_behind::<FabricOffer>(heard) else {
            let why = asked.library().err().unwrap_or(NOT_ASKED);
            return (Some(Err(why.into())), Vec::new());
        };
        let place =
            asked.place(channel, identity).and_then(|place| bound(place, offer, channel, false));
        let reply = match &place {
            Ok(place) => OfferReply::Yes(place.offer()),
            Err(why) => OfferReply::No(cut(why)),
        };
        (Some(place), offer::behind(&reply))
    }

    /// At a client: takes the server's reply to the offer. An error: the server sends to this end
    /// over the fabric, but this end cannot send to it.
    pub fn accept(
        &self,
        offered: OfferedPlace,
        channel: &Channel,
        heard: &[u8],
    ) -> Result<OfferedPlace, String> {
        let Ok(place) = offered else { return Ok(offered) };
        match offer::read_behind::<OfferReply>(heard) {
            None => Ok(Err(NOT_ASKED.into())),
            Some(OfferReply::No(why)) => Ok(Err(format!("the other host says: {}", why))),
            Some(OfferReply::Yes(offer)) => bound(place, offer, channel, true).map(Ok),
        }
    }

    /// The path over a place; or over the connection alone, with the reason if a fabric was asked
    /// for. A path that is one of several rails opens no memory. [`words`](Self::words) reports it
    /// by `tag`.
    pub fn path(
        &self,
        offered: Option<OfferedPlace>,
        channel: Channel,
        is_client: bool,
        is_rail: bool,
        tag: u64,
    ) -> io::Result<(Box<dyn Path>, Option<String>)> {
        let Some(asked) = &self.asked else { return Ok((Box::new(channel), None)) };
        Ok(match offered {
            None => (Box::new(channel), None),
            Some(Err(why)) => (Box::new(channel), Some(why)),
            Some(Ok(place)) => {
                let timeout_ns = asked.timeout_ns;
                let deposits = Deposits::new(is_client, asked.holdings.clone(), timeout_ns);
                if let Ok(words) = &asked.words {
                    // Closing it ends the watch.
                    words.add_once(&channel, tag)?;
                }
                (Box::new(FabricWay::new(place, channel, deposits, is_rail, timeout_ns)?), None)
            }
        })
    }

    /// Allows library calls while this node's threads are waited for, even at the end of the
    /// process.
    pub fn opened(&self) -> OpenedExit {
        OpenedExit::by_this_thread()
    }

    /// For the thread: readable when words have come beside the fabric, which a node that makes no
    /// calls does not notice.
    pub fn words(&self) -> Option<&Poller> {
        self.asked.as_ref()?.words.as_ref().ok()
    }

    /// For the thread: polls providers without a descriptor. Returns the pause before the next
    /// poll; `nap` was the last pause.
    pub fn nap(&self, nap: Option<Duration>) -> Option<Duration> {
        let stations = self.asked.as_ref()?.stations.lock();
        let stations = stations.unwrap_or_else(PoisonError::into_inner);
        let looked = stations.values().filter_map(|station| station.nap());
        let came = looked.reduce(|any, came| any | came)?;
        Some(if came { NAP } else { nap.map_or(NAP, |nap| (nap * 2).min(NAP_MAX)) })
    }
}

const NOT_ASKED: &str = "the other host has not asked for it, or cannot do it";

impl AskedFabric {
    /// The library, once it has loaded its providers; or the reason why there is none.
    fn library(&self) -> Result<&Arc<Library>, &str> {
        let library = self.library.get_or_init(|| {
            let library = Library::open(self.path.as_deref()).map_err(|e| e.to_string())?;
            library.choose(self.provider.as_deref(), None).map_err(|e| e.to_string())?;
            Ok(library)
        });
        library.as_ref().map_err(String::as_str)
    }

    /// A place at the end point of this host's address in this connection.
    fn place(&self, channel: &Channel, identity: &str) -> OfferedPlace {
        let library = self.library().map_err(str::to_string)?;
        let addresses = channel.addresses();
        let (own, other) = addresses.map_err(|e| format!("asking for its address: {e}"))?;
        let own = own.ip().to_canonical();
        let mut stations = self.stations.lock().unwrap_or_else(PoisonError::into_inner);
        // A broken end point stays so.
        if stations.get(&own).is_some_and(|station| station.is_broken()) {
            stations.remove(&own);
        }
        if stations.len() >= STATIONS_MAX && !stations.contains_key(&own) {
            return Err(format!("there are end points at {STATIONS_MAX} addresses already"));
        }
        let station = match stations.get(&own) {
            Some(station) => station.clone(),
            None => stations.entry(own).or_insert(Arc::new(self.station(library, own)?)).clone(),
        };
        drop(stations);
        station.reserve(other.ip().to_canonical(), identity)
    }

    fn station(&self, library: &Arc<Library>, own: IpAddr) -> Result<Station, String> {
        let provider = self.provider.as_deref();
        let choice = library.choose(provider, Some(own)).or_else(|error| {
            // A provider without socket addresses has addresses of its own.
            let any = library.choose(provider, None)?;
            if any.has_socket_addresses() { Err(error) } else { Ok(any) }
        });
        let end = choice
            .and_then(|choice| FabricEndPoint::open(choice, MESSAGE_BYTES))
            .map_err(|e| e.to_string())?;
        Station::new(end).map_err(|e| format!("mapping a page: {e}"))
    }
}

/// Binds a place to the other end: at the address of the host that was met, whatever the offer
/// contains.
fn bound(
    mut place: StationPlace,
    mut offer: FabricOffer,
    channel: &Channel,
    is_client: bool,
) -> OfferedPlace {
    let (_, other) = channel.addresses().map_err(|e| format!("asking for its address: {e}"))?;
    if place.has_socket_addresses() && !place_at(&mut offer.address, other) {
        return Err("the other host's end point is at an address of another family".into());
    }
    place.bind(&offer, is_client)?;
    Ok(place)
}

fn cut(text: &str) -> String {
    let end =
        (0..=text.len().min(offer::REASON_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_string()
}
