//! CLAN's half of each measurement, at both ends.

use crate::Outcome;
use crate::ends::{Client, Far, LIMIT, Latencies, SPIN, Stream};
use hamlyn::Access;
use hamlyn::config::WaitMode;
use hamlyn_clan::{
    Aperture, Clan, Completion, Config, Endpoint, Error, EventQueue, Region, Request, RequestQueue,
    Rights, Target, Trip, Wire,
};

/// Links that all end points share.
const LINKS: usize = 4;
/// Bytes of a region for one end point.
const LINE: u64 = 64;
/// End points of a client of which an answer can come.
const ASKING_MAX: usize = 256;
/// Requests to the engine on their way.
const REQUESTS: u32 = 64;
/// Bytes of several requests in one submission.
const GROUP_BYTES_MAX: u64 = 1 << 20;

/// The server spins for 15 us, and the client, which measures, for ever.
fn clan(is_near: bool) -> Outcome<Clan> {
    let mut config = Config::from_env()?;
    config.backlog = 1024;
    config.node = match is_near {
        true => config.node.wait_mode(WaitMode::Polled),
        false => config.node.spin_ns(SPIN.as_nanos() as u64).yield_count(0u32),
    };
    Ok(Clan::new(config)?)
}

fn listening(name: &str) -> Outcome<Clan> {
    let clan = clan(false)?;
    clan.listen(name, Access::SameUser)?;
    println!("ready");
    Ok(clan)
}

/// Each end gives the other a region: the other's.
fn exchange(end: &Endpoint, own: &Region) -> Outcome<Aperture> {
    end.send_oob(&own.export(end, Rights::Write)?.handle, LIMIT)?;
    Ok(end.import(&end.receive_oob(LIMIT)?, LIMIT)?)
}

fn target(queue: &EventQueue, user: usize) -> Result<Target, Error> {
    Ok(Target { queue: queue.clone(), event: queue.register(user as u64)? })
}

/// A line for each end point, of which the first have wires with events.
struct Board {
    clan: Clan,
    events: EventQueue,
    region: Region,
    wires: Vec<Wire>,
    ends: Vec<Endpoint>,
    /// The other end's, one for each link.
    others: Vec<Aperture>,
    seen: Vec<u64>,
}

impl Board {
    fn new(clan: Clan, count: usize) -> Outcome<Self> {
        let (events, region) =
            (clan.event_queue(count as u32)?, clan.region(count as u64 * LINE, count as u32)?);
        let (wires, ends, others, seen) = (vec![], vec![], vec![], vec![0; count]);
        Ok(Self { clan, events, region, wires, ends, others, seen })
    }

    fn add(&mut self, end: Endpoint, has_wire: bool) -> Outcome {
        let number = self.ends.len();
        if number < LINKS {
            self.others.push(exchange(&end, &self.region)?);
        }
        if has_wire {
            let target = target(&self.events, number)?;
            end.set_event(Some(target.clone()));
            let at = number as u64 * LINE;
            self.wires.push(self.region.wire(at..at + 8, Trip::Write, Some(target))?);
        }
        self.ends.push(end);
        Ok(())
    }

    #[inline(always)]
    fn put(&self, number: usize, word: u64) -> Outcome {
        let at = number as u64 * LINE;
        Ok(self.others[number % self.others.len()].put(at, &word.to_le_bytes(), LIMIT)?)
    }

    /// The next end point whose word is new.
    #[inline(always)]
    fn next(&mut self) -> Outcome<usize> {
        loop {
            let number = self.clan.wait(&self.events, None)?.user as usize;
            self.wires[number].arm();
            let word = self.region.load(number as u64 * LINE)?;
            if core::mem::replace(&mut self.seen[number], word) != word {
                return Ok(number);
            }
        }
    }
}

pub fn serve(name: &str, count: usize) -> Outcome {
    let mut board = Board::new(listening(name)?, count)?;
    for _ in 0..count {
        let end = board.clan.accept(LIMIT)?;
        board.add(end, true)?;
    }
    println!("ready");
    loop {
        let number = board.next()?;
        board.put(number, board.seen[number])?;
    }
}

/// The far end is ended first.
pub struct ClanClient(#[allow(dead_code)] Far, Board, Vec<u64>);

impl ClanClient {
    pub fn new(mut far: Far, count: usize) -> Outcome<Self> {
        let mut board = Board::new(clan(true)?, count)?;
        for number in 0..count {
            let end = match number < LINKS {
                true => board.clan.connect(&far.name(), LIMIT)?,
                false => board.ends[number % LINKS].open(LIMIT)?,
            };
            board.add(end, number < ASKING_MAX)?;
        }
        far.line()?;
        Ok(Self(far, board, vec![0; count]))
    }
}

impl Client for ClanClient {
    fn send(&mut self, number: usize) -> Outcome {
        self.2[number] += 1;
        self.1.put(number, self.2[number])
    }

    fn next(&mut self) -> Outcome<usize> {
        self.1.next()
    }
}

/// A ring of records, each of so many bytes and its number, 1 and up, in a word behind them.
#[derive(Clone, Copy)]
struct Ring {
    size: u64,
    records: u64,
}

/// Of a record's number: it is acknowledged at once.
const LAST: u64 = 1 << 63;

impl Ring {
    fn new(size: usize) -> Self {
        let size = size as u64;
        Self { size, records: ((256 << 10) / (size + 8)).max(4) }
    }

    fn bytes(self) -> u64 {
        (self.records * (self.size + 8)).next_multiple_of(4096)
    }

    fn place(self, number: u64) -> u64 {
        number % self.records * (self.size + 8)
    }
}

/// Copies each message out, and says, each quarter of the ring, how many it has read: as much room there is.
pub fn receive(name: &str, size: usize, is_mapped: bool, late: &mut Latencies) -> Outcome {
    let (clan, ring) = (listening(name)?, Ring::new(size));
    let (end, events) = (clan.accept(LIMIT)?, clan.event_queue(1)?);
    let region = match is_mapped {
        true => end.mapped_region(ring.bytes(), Rights::ReadWrite, 1)?,
        false => clan.region(ring.bytes(), 1)?,
    };
    let wire = region.wire(0..ring.bytes(), Trip::Write, Some(target(&events, 0)?))?;
    // Its pages are there before the clock starts, as those of a mapped region are.
    region.write(0, &vec![0; ring.bytes() as usize])?;
    let other = exchange(&end, &region)?;
    let (mut message, mut number, mut told) = (vec![0; size], 0, 0);
    loop {
        wire.arm();
        loop {
            let at = ring.place(number);
            let word = region.load(at + ring.size)?;
            if word & !LAST != number + 1 {
                break;
            }
            region.read(at, &mut message)?;
            late.see(&message);
            number += 1;
            if number - told >= ring.records / 4 || word & LAST != 0 {
                told = number;
                other.put(0, &number.to_le_bytes(), LIMIT)?;
            }
        }
        match is_mapped {
            true => drop(clan.poll(&events)?),
            false => drop(clan.wait(&events, None)?),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Store,
    Put,
    /// So many in one submission.
    Request(usize),
}

pub struct ClanStream {
    way: Way,
    ring: Ring,
    clan: Clan,
    _end: Endpoint,
    events: EventQueue,
    room: Region,
    wire: Wire,
    other: Aperture,
    /// A copy of the ring: the engine's source.
    source: Region,
    queue: RequestQueue,
    data: Vec<u8>,
    sent: u64,
    read: u64,
    asked: u32,
}

impl ClanStream {
    pub fn new(far: &Far, size: usize, way: Way) -> Outcome<Self> {
        let (clan, ring) = (clan(true)?, Ring::new(size));
        let end = clan.connect(&far.name(), LIMIT)?;
        let (events, room) = (clan.event_queue(1)?, clan.region(8, 1)?);
        let wire = room.wire(0..8, Trip::Write, Some(target(&events, 0)?))?;
        let other = exchange(&end, &room)?;
        let (source, queue) =
            (clan.region(ring.bytes(), 0)?, clan.request_queue(REQUESTS, 0, 1 << 20)?);
        source.write(0, &vec![7; ring.bytes() as usize])?;
        let (data, sent, read, asked) = (vec![7; size + 8], 0, 0, 0);
        #[rustfmt::skip]
        let stream = Self {
            way, ring, clan, _end: end, events, room, wire, other, source, queue, data, sent, read, asked,
        };
        Ok(stream)
    }

    /// Waits until at most so many messages have not been read.
    fn wait(&mut self, unread: u64) -> Outcome {
        while self.sent - self.read > unread {
            self.wire.arm();
            let read = self.room.load(0)?;
            if core::mem::replace(&mut self.read, read) == read {
                self.clan.wait(&self.events, LIMIT)?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, places: &[u64]) -> Outcome {
        let (from, to, length) = (&self.source, &self.other, self.ring.size + 8);
        let put = |&at: &u64| Request::Put { from, offset: at, to, at, length };
        let requests: Vec<_> = places.iter().map(put).collect();
        while self.queue.take_done().is_some() {
            self.asked -= 1;
        }
        if self.asked == REQUESTS {
            self.queue.wait(LIMIT)?.result?;
            self.asked -= 1;
        }
        self.asked += 1;
        self.queue.submit(&requests, Completion::None)?;
        Ok(())
    }
}

impl Stream for ClanStream {
    fn send(&mut self, stamp: u64, count: u64) -> Outcome {
        self.data[..8].copy_from_slice(&stamp.to_le_bytes());
        let (ring, size) = (self.ring, self.ring.size as usize);
        let mut places = Vec::new();
        for left in (0..count).rev() {
            if self.sent - self.read == ring.records {
                self.wait(ring.records - 1)?;
            }
            let at = ring.place(self.sent);
            self.sent += 1;
            let word = self.sent | if left == 0 { LAST } else { 0 };
            match self.way {
                Way::Store => {
                    self.other.store(at, &self.data[..size])?;
                    self.other.store(at + ring.size, &word.to_le_bytes())?;
                }
                Way::Put => {
                    self.data[size..].copy_from_slice(&word.to_le_bytes());
                    self.other.put(at, &self.data, LIMIT)?;
                }
                Way::Request(at_once) => {
                    self.source.write(at + ring.size, &word.to_le_bytes())?;
                    places.push(at);
                    // Nobody waits for room that only an unsubmitted message would make.
                    let is_full = self.sent - self.read == ring.records
                        || (places.len() as u64 + 1) * (ring.size + 8) > GROUP_BYTES_MAX;
                    if places.len() == at_once || left == 0 || is_full {
                        self.submit(&places)?;
                        places.clear();
                    }
                }
            }
        }
        self.wait(0)
    }
}
