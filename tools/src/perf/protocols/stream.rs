//! The two ends of the cells of streams.
//!
//! ```text
//!   latency: record, flush --->      <--- record, flush
//!   rate:    records, flush --->     <--- one record, flush: at the end of the warm-up, at the end
//! ```
//! The receiver releases each record as soon as it has it. Records of a plain stream lie in memory
//! of the receiver's own; those in an aperture are read in pieces, so that all their bytes have
//! come to the receiver's processor.

use super::cells::{Cell, LIMIT, Measure, PIECE, Protocol, config, of_round_trips, of_stream};
use crate::perf::clock;
use crate::perf::row::Figure;
use anyhow::{Result, ensure};
use hamlyn::control::Access;
use hamlyn::protocol::{
    ApertureStreamReceiver, ApertureStreamSender, Manager, RecordBytes, StreamConfig,
    StreamReceiver, StreamSender,
};
use std::hint::black_box;
use std::time::Duration;

/// Bytes of the aperture: at least some records, and no more than stay in a cache.
const APERTURE_BYTES: usize = 1 << 20;

/// The answer that the records came through the aperture, if they should.
const AS_MEANT: u8 = 7;
/// Most records before that: the aperture exists after a few.
const ATTEMPTS_MAX: u32 = 5_000;

/// The name of the way back.
fn back(name: &str) -> String {
    format!("{name}-back")
}

enum Sender {
    Plain(StreamSender),
    Aperture(ApertureStreamSender),
}

impl Sender {
    fn connect(cell: Cell, manager: &Manager, name: &str) -> Result<Self> {
        Ok(match cell.protocol {
            Protocol::StreamAperture => {
                Self::Aperture(ApertureStreamSender::connect(manager, name, LIMIT)?)
            }
            _ => Self::Plain(StreamSender::connect(manager, name, LIMIT)?),
        })
    }

    #[inline(always)]
    fn send(&mut self, record: &[u8]) -> Result<()> {
        Ok(match self {
            Self::Plain(sender) => sender.send(record, LIMIT),
            Self::Aperture(sender) => sender.send(record, LIMIT),
        }?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(match self {
            Self::Plain(sender) => sender.flush(LIMIT),
            Self::Aperture(sender) => sender.flush(LIMIT),
        }?)
    }
}

enum Receiver {
    Plain(StreamReceiver),
    Aperture(ApertureStreamReceiver),
}

impl Receiver {
    fn serve(cell: Cell, manager: &Manager, name: &str) -> Result<Self> {
        let config = StreamConfig::default();
        Ok(match cell.protocol {
            Protocol::StreamAperture => {
                let bytes = APERTURE_BYTES.max(4 * cell.size) as u64;
                let receiver = ApertureStreamReceiver::new(manager, config, bytes)?;
                receiver.serve(name, Access::SameUser)?;
                Self::Aperture(receiver)
            }
            _ => Self::Plain(plain_receiver(manager, name)?),
        })
    }

    /// Takes `count` records; returns whether they came through the intended path.
    fn take(&mut self, count: u64, size: usize) -> Result<bool> {
        let mut piece = [0; PIECE];
        let mut is_as_meant = true;
        for _ in 0..count {
            match self {
                Self::Plain(receiver) => {
                    let record = receiver.receive(LIMIT)?;
                    ensure!(record.len() == size, "a record of {} bytes", record.len());
                }
                Self::Aperture(receiver) => {
                    let record = receiver.receive(LIMIT)?;
                    ensure!(record.len() == size, "a record of {} bytes", record.len());
                    match record.bytes()? {
                        RecordBytes::Volatile(bytes) => {
                            for from in (0..size).step_by(PIECE) {
                                bytes.read(from, &mut piece)?;
                                black_box(&piece);
                            }
                        }
                        RecordBytes::Still(_) => is_as_meant = false,
                    }
                }
            }
        }
        Ok(is_as_meant)
    }
}

fn plain_receiver(manager: &Manager, name: &str) -> Result<StreamReceiver> {
    let receiver = StreamReceiver::new(manager, StreamConfig::default())?;
    receiver.serve(name, Access::SameUser)?;
    Ok(receiver)
}

/// The end that measures.
pub fn near(cell: Cell, name: &str, count: u64) -> Result<Figure> {
    let manager = Manager::with_config(config(cell)?)?;
    // The other end connects as soon as it has the first record.
    let mut answers = plain_receiver(&manager, &back(name))?;
    let mut sender = Sender::connect(cell, &manager, name)?;
    let mut answer = || -> Result<bool> {
        let record = answers.receive(LIMIT)?;
        Ok(record.first() == Some(&AS_MEANT))
    };
    let message = vec![7; cell.size];
    // Until an aperture is there, long records take the other path.
    for attempt in 0.. {
        sender.send(&message)?;
        sender.flush()?;
        if answer()? {
            break;
        }
        ensure!(attempt < ATTEMPTS_MAX, "records do not go through the aperture");
        std::thread::sleep(Duration::from_millis(1));
    }
    let warm_up = Cell::warm_up(count);
    if cell.measure == Measure::Latency {
        return of_round_trips(count, || {
            sender.send(&message)?;
            sender.flush()?;
            answer()
        });
    }
    let mut stream = |count| -> Result<bool> {
        for _ in 0..count {
            sender.send(&message)?;
        }
        sender.flush()?;
        answer()
    };
    stream(warm_up)?;
    let seconds = clock::timed(|| {
        // Otherwise the figure would be another path's.
        ensure!(stream(count)?, "some records did not go through the aperture");
        Ok(())
    })?;
    Ok(of_stream(cell, count, seconds))
}

/// The other end.
pub fn far(cell: Cell, name: &str, count: u64, ready: impl FnOnce()) -> Result<()> {
    let manager = Manager::with_config(config(cell)?)?;
    let mut receiver = Receiver::serve(cell, &manager, name)?;
    ready();
    let mut is_as_meant = receiver.take(1, cell.size)?;
    let mut answers = StreamSender::connect(&manager, &back(name), LIMIT)?;
    let mut answer = |bytes: &[u8]| -> Result<()> {
        answers.send(bytes, LIMIT)?;
        Ok(answers.flush(LIMIT)?)
    };
    while !is_as_meant {
        answer(&[!AS_MEANT])?;
        is_as_meant = receiver.take(1, cell.size)?;
    }
    answer(&[AS_MEANT])?;
    let warm_up = Cell::warm_up(count);
    if cell.measure == Measure::Latency {
        let message = vec![7; cell.size];
        for _ in 0..warm_up + count {
            receiver.take(1, cell.size)?;
            answer(&message)?;
        }
        return Ok(answers.close(LIMIT)?);
    }
    for count in [warm_up, count] {
        let is_as_meant = receiver.take(count, cell.size)?;
        answer(&[if is_as_meant { AS_MEANT } else { !AS_MEANT }])?;
    }
    Ok(answers.close(LIMIT)?)
}
