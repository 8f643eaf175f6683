//! The measurements of `hamlyn perf protocols`: one cell for each row.

use crate::arguments::Mode;
use crate::perf::ends::{self, SIZE_MAX};
use crate::perf::row::Figure;
use crate::perf::stats::RoundTrips;
use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use clap::ValueEnum;
use hamlyn::config::Config;
use std::fmt;
use std::time::Duration;

/// An end that sends nothing for this long has hung.
pub const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

/// The interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// The raw interface in fast mode, the base of comparison.
    Raw,
    /// The same messages over a node that any number of threads may use and one uses: the cost of
    /// thread safety.
    Shared,
    /// Ends that wait adaptively, as by default, and need not sleep.
    Adaptive,
    /// Messages sent over a link that the caller names.
    Over,
    /// Tagged remote write, one thread.
    Tagged,
    /// The same, while a second thread of each process looks at an end point of its own in the
    /// same manager each millisecond.
    Threads,
    /// The same, with a progress thread in each process. Both ends are adaptive, because a thread
    /// that only polls would share its processor with one that only polls.
    Progress,
    /// Tagged remote writes that are ready, taken by two threads, each on an end point of its own
    /// of one manager, against one thread that takes from both.
    Receivers,
    /// Request and reply.
    Call,
    /// Datagrams into an area that is ready for one.
    Datagram,
    /// Byte streams.
    Bytes,
    /// Publish and subscribe.
    Publish,
    /// A stream.
    Stream,
    /// A stream whose long records go through an aperture; read as [`Pieces`](Self::Pieces) are.
    StreamAperture,
    /// Writes into an aperture without a reader: one memcpy into the other process's memory.
    Memcpy,
    /// Writes into an aperture and announces; the other end copies the bytes out.
    Aperture,
    /// The same; the other end copies 4 KiB at a time into a buffer that stays in its fastest
    /// cache.
    Pieces,
}

/// The name of an interface or a quantity in rows and on the command line.
fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&name_of(self))
    }
}

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Half of a round trip.
    Latency,
    /// A whole round trip.
    RoundTrip,
    /// Messages per second that the receiver took.
    Rate,
    /// Bytes per second that the receiver took.
    Bandwidth,
    /// Resident bytes of each outstanding call, without its payload.
    Memory,
    /// The time to revoke an aperture. Never more of them than by default.
    Revoke,
    /// A sample in the pool, at its publisher, with one subscriber and with eight.
    Publish,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&name_of(self))
    }
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub protocol: Protocol,
    pub measure: Measure,
    /// Bytes of a message.
    pub size: usize,
    /// Messages or round trips of a run by default: some tenths of a second on near cores.
    pub count: u64,
}

/// Outstanding calls while memory is measured. Always as many: with fewer, fixed costs would count.
pub const OUTSTANDING: u32 = 100_000;

/// Bytes of the messages with which longer ones are compared.
pub const SHORT: usize = 16;

/// Bytes copied at a time by a receiver that reads a record in pieces.
pub const PIECE: usize = 4096;

const fn cell(protocol: Protocol, measure: Measure, size: usize, count: u64) -> Cell {
    Cell { protocol, measure, size, count }
}

/// In the order in which they take turns.
pub const CELLS: &[Cell] = {
    use Measure::{Bandwidth, Latency, Memory, Rate, Revoke, RoundTrip};
    use Protocol::{
        Adaptive, Aperture, Bytes, Call, Datagram, Memcpy, Over, Pieces, Progress, Publish, Raw,
        Receivers, Shared, Stream, StreamAperture, Tagged, Threads,
    };
    &[
        cell(Raw, Latency, 16, 500_000),
        cell(Raw, Latency, 64, 500_000),
        cell(Raw, Latency, 256, 500_000),
        cell(Shared, Latency, 16, 500_000),
        cell(Adaptive, Latency, 16, 500_000),
        cell(Adaptive, Latency, 64, 500_000),
        cell(Adaptive, Latency, 256, 500_000),
        cell(Over, Latency, 16, 500_000),
        cell(Over, Latency, 64, 500_000),
        cell(Over, Latency, 256, 500_000),
        cell(Tagged, Latency, 16, 500_000),
        cell(Tagged, Latency, 64, 500_000),
        cell(Tagged, Latency, 256, 500_000),
        cell(Threads, Latency, 16, 500_000),
        cell(Progress, Latency, 16, 20_000),
        cell(Call, RoundTrip, 16, 500_000),
        cell(Call, RoundTrip, 64, 500_000),
        cell(Call, RoundTrip, 256, 500_000),
        cell(Call, Memory, 16, OUTSTANDING as u64),
        cell(Tagged, Rate, 16, 10_000_000),
        cell(Tagged, Bandwidth, 4096, 1_000_000),
        cell(Receivers, Rate, 16, 400_000),
        cell(Publish, Latency, 16, 500_000),
        cell(Publish, Latency, 64, 500_000),
        cell(Publish, Latency, 256, 500_000),
        cell(Publish, Measure::Publish, 1 << 20, 1_000),
        cell(Stream, Latency, 16, 200_000),
        cell(Stream, Latency, 64, 200_000),
        cell(Stream, Latency, 256, 200_000),
        cell(Datagram, Latency, 16, 200_000),
        cell(Datagram, Latency, 64, 200_000),
        cell(Datagram, Latency, 256, 200_000),
        cell(Bytes, Latency, 16, 200_000),
        cell(Bytes, Latency, 64, 200_000),
        cell(Bytes, Latency, 256, 200_000),
        cell(Stream, Rate, 16, 20_000_000),
        cell(Stream, Rate, 64, 20_000_000),
        cell(Stream, Bandwidth, 4096, 1_000_000),
        cell(Stream, Bandwidth, 64 << 10, 50_000),
        cell(StreamAperture, Bandwidth, 64 << 10, 100_000),
        cell(Memcpy, Bandwidth, 64 << 10, 200_000),
        cell(Aperture, Bandwidth, 64 << 10, 100_000),
        cell(Pieces, Bandwidth, 64 << 10, 100_000),
        cell(Stream, Bandwidth, 256 << 10, 20_000),
        cell(StreamAperture, Bandwidth, 256 << 10, 20_000),
        cell(Stream, Bandwidth, 1 << 20, 5_000),
        cell(StreamAperture, Bandwidth, 1 << 20, 5_000),
        cell(Memcpy, Bandwidth, 1 << 20, 10_000),
        cell(Aperture, Bandwidth, 1 << 20, 5_000),
        cell(Pieces, Bandwidth, 1 << 20, 5_000),
        cell(Stream, Bandwidth, 4 << 20, 1_000),
        cell(StreamAperture, Bandwidth, 4 << 20, 1_000),
        cell(Aperture, Revoke, 4 << 10, 1_000),
        cell(Aperture, Revoke, 1 << 20, 200),
        cell(Aperture, Revoke, 64 << 20, 10),
    ]
};

impl Cell {
    /// `tagged-latency-16`.
    pub fn name(&self) -> String {
        let size = match self.size {
            bytes if bytes < 1024 => bytes.to_string(),
            bytes => ByteSize::b(bytes as u64).display().iec().to_string().replace(".0 ", ""),
        };
        format!("{}-{}-{size}", self.protocol, self.measure)
    }

    /// The cell with exactly this name, or one of another length of message.
    pub fn named(name: &str) -> Result<Self> {
        let of_length = || {
            let (kind, length) = name.rsplit_once('-')?;
            let size = length.parse::<ByteSize>().ok()?.as_u64() as usize;
            let is_alike = |cell: &&Self| {
                let has_lengths = matches!(
                    cell.measure,
                    Measure::Latency | Measure::RoundTrip | Measure::Rate | Measure::Bandwidth
                );
                has_lengths && cell.name().rsplit_once('-').is_some_and(|(of, _)| of == kind)
            };
            let cell = CELLS.iter().find(is_alike).filter(|_| (1..=SIZE_MAX).contains(&size))?;
            Some(Self { size, ..*cell })
        };
        let cell = CELLS.iter().find(|cell| cell.name() == name).copied().or_else(of_length);
        cell.with_context(|| format!("{name:?} is no row"))
    }

    /// The cell of the same with messages of 16 bytes, if this one's are others.
    pub fn short(&self) -> Option<Self> {
        let is_short = |cell: &&Self| {
            (cell.protocol, cell.measure, cell.size) == (self.protocol, self.measure, SHORT)
        };
        CELLS.iter().find(is_short).copied().filter(|_| self.size != SHORT)
    }

    /// Messages before the clock starts.
    pub fn warm_up(count: u64) -> u64 {
        (count / 10).max(1)
    }

    /// The cell with which this one's figure is compared.
    pub fn base(&self) -> Option<Self> {
        let of = |protocol, measure| {
            let is_base = |cell: &&Self| cell.protocol == protocol && cell.measure == measure;
            CELLS.iter().filter(is_base).find(|base| base.size == self.size).copied()
        };
        match (self.protocol, self.measure) {
            (Protocol::Raw | Protocol::Memcpy, _) => None,
            (_, Measure::Latency | Measure::RoundTrip) => of(Protocol::Raw, Measure::Latency),
            (_, Measure::Bandwidth) => of(Protocol::Memcpy, Measure::Bandwidth),
            _ => None,
        }
    }
}

/// Cells with a name in `only`, or with one as a prefix up to a hyphen; all if `only` is empty. A
/// whole name may be that of another length than the rows have.
pub fn chosen(only: &[String]) -> Result<Vec<Cell>> {
    let is_meant = |cell: &Cell, name: &str| {
        cell.name().strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let is_chosen = |cell: &&Cell| only.is_empty() || only.iter().any(|name| is_meant(cell, name));
    let mut cells: Vec<Cell> = CELLS.iter().filter(is_chosen).copied().collect();
    for name in only {
        if CELLS.iter().any(|cell| is_meant(cell, name)) {
            continue;
        }
        match Cell::named(name) {
            Ok(cell) => cells.push(cell),
            Err(_) => {
                let names: Vec<_> = CELLS.iter().map(Cell::name).collect();
                bail!("no row is called {name:?}; there are {}", names.join(", "));
            }
        }
    }
    Ok(cells)
}

pub fn mode(cell: Cell) -> Mode {
    match cell.protocol {
        Protocol::Progress | Protocol::Adaptive => Mode::Adaptive,
        _ => Mode::Polled,
    }
}

/// Both ends poll, except if they are to be adaptive, or if two threads of one process share its processor.
pub fn config(cell: Cell) -> Result<Config> {
    ends::config(mode(cell), 0)
}

/// Of round trips, and of those before them that warm up.
#[inline(always)]
pub fn of_round_trips<T>(count: u64, one: impl FnMut() -> Result<T>) -> Result<Figure> {
    let one_way_ns = RoundTrips::make(Cell::warm_up(count), count, one)?;
    Ok(Figure::Latency { one_way_ns })
}

/// Of `count` messages in `seconds` seconds.
pub fn of_stream(cell: Cell, count: u64, seconds: f64) -> Figure {
    let messages_per_s = count as f64 / seconds;
    match cell.measure {
        Measure::Bandwidth => Figure::Bandwidth { bytes_per_s: messages_per_s * cell.size as f64 },
        _ => Figure::Rate { messages_per_s },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_has_a_name_of_its_own_by_which_it_is_found() {
        for cell in CELLS {
            assert_eq!(Cell::named(&cell.name()).unwrap(), *cell, "{}", cell.name());
        }
        assert_eq!(CELLS[0].name(), "raw-latency-16");
        assert!(CELLS.iter().any(|cell| cell.name() == "aperture-bandwidth-64KiB"));
        assert!(CELLS.iter().any(|cell| cell.name() == "pieces-bandwidth-1MiB"));
    }

    #[test]
    fn rows_are_chosen_by_name_or_its_beginning() {
        let names = |only: &[&str]| -> Result<Vec<String>> {
            let only: Vec<String> = only.iter().map(ToString::to_string).collect();
            Ok(chosen(&only)?.iter().map(Cell::name).collect())
        };
        let raw = ["raw-latency-16", "raw-latency-64", "raw-latency-256"];
        assert_eq!(names(&["raw"]).unwrap(), raw);
        assert_eq!(names(&["tagged-rate-1KiB"]).unwrap(), ["tagged-rate-1KiB"]);
        for none in ["tagged-rate-0", "tagged-rate-2GiB", "call-memory-64", "tagged-rate-many"] {
            assert!(names(&[none]).is_err(), "{none}");
        }
        assert_eq!(names(&["call-memory", "raw-latency-16"]).unwrap().len(), 2);
        assert_eq!(names(&[]).unwrap().len(), CELLS.len());
        let error = names(&["tag"]).unwrap_err().to_string();
        assert!(error.contains("\"tag\"") && error.contains("tagged-rate-16"), "{error}");
    }

    #[test]
    fn latencies_are_compared_with_the_raw_interface_and_bandwidths_with_memcpy() {
        let base = |name: &str| Cell::named(name).unwrap().base().map(|base| base.name());
        assert_eq!(base("tagged-latency-16").unwrap(), "raw-latency-16");
        assert_eq!(base("call-round-trip-16").unwrap(), "raw-latency-16");
        assert_eq!(base("pieces-bandwidth-1MiB").unwrap(), "memcpy-bandwidth-1MiB");
        assert_eq!(base("raw-latency-16"), None);
        let short = |name: &str| Cell::named(name).unwrap().short().map(|short| short.name());
        assert_eq!(short("call-round-trip-256").unwrap(), "call-round-trip-16");
        assert_eq!((short("call-round-trip-16"), short("memcpy-bandwidth-1MiB")), (None, None));
    }
}
