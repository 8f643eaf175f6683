//! The two ends of the cells that use the upper layer.
//!
//! ```text
//!   tagged:   near's receiver's seed --->   far grows a sender for answers
//!             latency: tag --->   <--- tag
//!             rate:    tags --->  <--- one tag at the end of the warm-up, one at the end
//!   call:     call --->           <--- reply
//!   memory:   call "begin" --->            resident bytes; a second server; reply
//!             resident bytes
//!             100,000 requests --->        keeps them; resident bytes
//!             resident bytes      <---     100,000 replies
//!             call "end" --->              reply: both figures
//!             resident bytes
//! ```

use super::cells::{
    self, Cell, LIMIT, Measure, OUTSTANDING, Protocol, config, of_round_trips, of_stream,
};
use crate::ending;
use crate::perf::row::Figure;
use crate::perf::stats::{Percentiles, RoundTrips};
use crate::perf::{clock, idle};
use anyhow::{Context, Result, ensure};
use hamlyn::control::Access;
use hamlyn::protocol::{
    Arrived, CallId, Client, ClientConfig, Manager, Seed, Server, ServerConfig, TaggedConfig,
    TaggedReceiver, TaggedSender,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Tags of a sender that wait: as many as the raw interface's measurements allow.
const TAGS: u32 = 1024;
/// A seed fits.
const AREA_BYTES: usize = 4096;
/// How often a second thread looks.
const SECOND_THREAD_LOOKS_EVERY: Duration = Duration::from_millis(1);

fn manager(cell: Cell) -> Result<Manager> {
    Ok(Manager::with_config(config(cell)?)?)
}

/// The end that measures.
pub fn near(cell: Cell, name: &str, count: u64) -> Result<Figure> {
    match (cell.protocol, cell.measure) {
        (Protocol::Call, Measure::Memory) => memory_near(cell, name),
        (Protocol::Call, _) => call_near(cell, name, count),
        _ => tagged_near(cell, name, count),
    }
}

/// The other end.
pub fn far(cell: Cell, name: &str, count: u64, ready: impl FnOnce()) -> Result<()> {
    match (cell.protocol, cell.measure) {
        (Protocol::Call, Measure::Memory) => memory_far(cell, name, ready),
        (Protocol::Call, _) => call_far(cell, name, count, ready),
        _ => tagged_far(cell, name, count, ready),
    }
}

// ---- tagged remote write

/// Another user of the manager, until this is dropped.
enum Beside {
    Nothing,
    Progress(Manager),
    Thread { stop: Arc<AtomicBool>, thread: Option<JoinHandle<()>> },
}

impl Beside {
    fn start(cell: Cell, manager: &Manager) -> Result<Self> {
        match cell.protocol {
            Protocol::Progress => {
                manager.start_progress()?;
                Ok(Self::Progress(manager.clone()))
            }
            Protocol::Threads => {
                let mut receiver = TaggedReceiver::new(manager, TaggedConfig::new(64))?;
                let stop = Arc::new(AtomicBool::new(false));
                let stopped = stop.clone();
                let look = move || {
                    while !stopped.load(Ordering::Relaxed) && receiver.try_get_tag().is_ok() {
                        std::thread::sleep(SECOND_THREAD_LOOKS_EVERY);
                    }
                };
                Ok(Self::Thread { stop, thread: Some(std::thread::spawn(look)) })
            }
            _ => Ok(Self::Nothing),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        match self {
            Self::Nothing => {}
            Self::Progress(manager) => manager.stop_progress(),
            Self::Thread { stop, thread } => {
                stop.store(true, Ordering::Relaxed);
                let _ = thread.take().map(JoinHandle::join);
            }
        }
    }
}

/// Both directions of a side.
struct Tagged {
    receiver: TaggedReceiver,
    sender: TaggedSender,
}

fn tagged_receiver(cell: Cell, manager: &Manager) -> Result<TaggedReceiver> {
    let bytes = cell.size.max(AREA_BYTES);
    let config = TaggedConfig { tags: TAGS, senders_max: 1, ..TaggedConfig::new(bytes) };
    Ok(TaggedReceiver::new(manager, config)?)
}

impl Tagged {
    fn near(cell: Cell, manager: &Manager, name: &str) -> Result<Self> {
        let mut receiver = tagged_receiver(cell, manager)?;
        let seed = receiver.seed()?.to_bytes();
        let mut sender = TaggedSender::connect(manager, name, LIMIT)?;
        sender.send(0, &seed, seed.len() as u32, LIMIT)?;
        // Its first tag announces it.
        receiver.get_tag(LIMIT)?;
        Ok(Self { receiver, sender })
    }

    fn far(cell: Cell, manager: &Manager, name: &str, ready: impl FnOnce()) -> Result<Self> {
        let mut receiver = tagged_receiver(cell, manager)?;
        receiver.serve(name, Access::SameUser)?;
        ready();
        let mut seed = vec![0; receiver.get_tag(LIMIT)?.tag as usize];
        receiver.read(0, &mut seed)?;
        let mut sender = TaggedSender::grow(manager, &Seed::from_bytes(&seed)?, LIMIT)?;
        sender.send(0, &[], 0, LIMIT)?;
        Ok(Self { receiver, sender })
    }
}

fn tagged_near(cell: Cell, name: &str, count: u64) -> Result<Figure> {
    let manager = manager(cell)?;
    let Tagged { mut receiver, mut sender } = Tagged::near(cell, &manager, name)?;
    let beside = Beside::start(cell, &manager)?;
    let message = vec![7; cell.size];
    let figure = if cell.measure == Measure::Latency {
        of_round_trips(count, || {
            sender.send(0, &message, 7, LIMIT)?;
            Ok(receiver.get_tag(LIMIT)?)
        })?
    } else {
        let mut stream = |count| -> Result<()> {
            for _ in 0..count {
                sender.send(0, &message, 7, LIMIT)?;
            }
            receiver.get_tag(LIMIT)?;
            Ok(())
        };
        stream(Cell::warm_up(count))?;
        of_stream(cell, count, clock::timed(|| stream(count))?)
    };
    drop(beside);
    Ok(figure)
}

fn tagged_far(cell: Cell, name: &str, count: u64, ready: impl FnOnce()) -> Result<()> {
    let manager = manager(cell)?;
    let Tagged { mut receiver, mut sender } = Tagged::far(cell, &manager, name, ready)?;
    let beside = Beside::start(cell, &manager)?;
    let message = vec![7; cell.size];
    let warm_up = Cell::warm_up(count);
    if cell.measure == Measure::Latency {
        for _ in 0..warm_up + count {
            receiver.get_tag(LIMIT)?;
            sender.send(0, &message, 7, LIMIT)?;
        }
    } else {
        for count in [warm_up, count] {
            for _ in 0..count {
                receiver.get_tag(LIMIT)?;
            }
            sender.send(0, &[], 0, LIMIT)?;
        }
    }
    drop(beside);
    Ok(())
}

// ---- request and reply

fn call_near(cell: Cell, name: &str, count: u64) -> Result<Figure> {
    let manager = manager(cell)?;
    let client = Client::connect(&manager, name, LIMIT)?;
    let request = vec![7; cell.size];
    let warm_up = Cell::warm_up(count);
    let mut trips = RoundTrips::begin(warm_up + count);
    for _ in 0..warm_up + count {
        let reply = client.call(&request, LIMIT)?;
        trips.end_one();
        ensure!(reply.len() == cell.size, "a reply of {} bytes", reply.len());
    }
    let Percentiles { p50, p99, p999, .. } = trips.one_way_ns(warm_up);
    let round_trip_ns =
        Percentiles { p50: 2.0 * p50, p99: 2.0 * p99, p999: 2.0 * p999, mean: None };
    Ok(Figure::RoundTrip { round_trip_ns })
}

fn call_far(cell: Cell, name: &str, count: u64, ready: impl FnOnce()) -> Result<()> {
    let manager = manager(cell)?;
    let server = Server::new(&manager, ServerConfig::default())?;
    server.serve(name, Access::SameUser)?;
    ready();
    let reply = vec![7; cell.size];
    for _ in 0..Cell::warm_up(count) + count {
        server.receive(LIMIT)?.reply(&reply, LIMIT)?;
    }
    Ok(())
}

/// The name of the server whose memory is measured.
fn many(name: &str) -> String {
    format!("{name}-many")
}

/// Resident bytes, exactly; `/proc/self/statm` may lag behind by some pages.
fn resident() -> Result<u64> {
    idle::resident_bytes(std::process::id())
}

/// Bytes of one call, without its payload.
fn each(before: u64, after: u64, payload: usize) -> f64 {
    after.saturating_sub(before) as f64 / OUTSTANDING as f64 - payload as f64
}

fn memory_near(cell: Cell, name: &str) -> Result<Figure> {
    let manager = manager(cell)?;
    let control = Client::connect(&manager, name, LIMIT)?;
    let request = vec![7; cell.size];
    control.call(&request, LIMIT)?;
    let before = resident()?;
    let config = ClientConfig {
        outstanding: OUTSTANDING,
        reply_bytes: cell.size as u32,
        ..ClientConfig::default()
    };
    let client = Client::connect_with(&manager, &many(name), config, LIMIT)?;
    ensure!(client.outstanding_max() == OUTSTANDING as usize, "the server allows fewer calls");
    let mut calls: Vec<CallId> = Vec::with_capacity(OUTSTANDING as usize);
    for _ in 0..OUTSTANDING {
        calls.push(client.start(&request, LIMIT)?);
    }
    let outstanding = resident()?;
    let far = control.call(&request, LIMIT).context("while replies arrived")?;
    // Takes the rest out of the ring.
    while manager.poll()? > 0 {}
    let replied = resident()?;
    for (number, call) in calls.into_iter().enumerate() {
        let reply = client.finish(call, LIMIT);
        let reply = reply.with_context(|| format!("call {number}, of which the reply was sent"))?;
        ensure!(reply.len() == cell.size, "a reply of {} bytes", reply.len());
    }
    let [far_before, far_after] = parse_two(&far).context("the other end's resident bytes")?;
    Ok(Figure::Memory {
        client_bytes_per_call: each(before, outstanding.max(replied), cell.size),
        server_bytes_per_call: each(far_before, far_after, cell.size),
    })
}

fn parse_two(bytes: &[u8]) -> Option<[u64; 2]> {
    let (first, second) = bytes.split_at_checked(8)?;
    let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    Some([number(first)?, number(second)?])
}

fn memory_far(cell: Cell, name: &str, ready: impl FnOnce()) -> Result<()> {
    let manager = manager(cell)?;
    let control = Server::new(&manager, ServerConfig::default())?;
    control.serve(name, Access::SameUser)?;
    ready();
    let begin = control.receive(LIMIT)?;
    let before = resident()?;
    let config = ServerConfig {
        outstanding: OUTSTANDING,
        request_bytes: cell.size as u32,
        clients_max: 1,
        ..ServerConfig::default()
    };
    let server = Server::new(&manager, config)?;
    server.serve(&many(name), Access::SameUser)?;
    ending::remove_name(&cells::config(cell)?, &many(name), Access::SameUser);
    begin.reply(&[], LIMIT)?;
    let mut requests: Vec<Arrived> = Vec::with_capacity(OUTSTANDING as usize);
    for _ in 0..OUTSTANDING {
        requests.push(server.receive(LIMIT)?.detach());
    }
    let after = resident()?;
    let reply = vec![7; cell.size];
    for request in requests {
        server.attach(request).reply(&reply, LIMIT)?;
    }
    let figures = [before.to_le_bytes(), after.to_le_bytes()].concat();
    control.receive(LIMIT)?.reply(&figures, LIMIT)?;
    // Until the client has all replies and leaves, or dies.
    while server.clients() > 0 {
        manager.poll()?;
    }
    Ok(())
}
