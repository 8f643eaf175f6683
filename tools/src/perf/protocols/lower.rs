//! The two ends of the cells that use the node itself: the raw interface and apertures.
//!
//! ```text
//!   near: connect, greeting: ticket for answers --->   far: greeting: ticket for messages
//!   raw:       fast message --->              <--- fast message
//!   apertures: write to a place, its number --->   reads there; how many, each quarter of the
//!              places                         <---
//! ```

use super::cells::{Cell, LIMIT, Measure, PIECE, Protocol, config, of_round_trips};
use crate::perf::clock;
use crate::perf::row::Figure;
use crate::tickets::ticket_of;
use anyhow::{Context, Result, ensure};
use hamlyn::control::{Accept, Access};
use hamlyn::interface::{LinkId, QueueId, SlotConfig};
use hamlyn::node::{Event, Node};
use hamlyn::os::aperture::ApertureAccess;
use hamlyn::protocol::Manager;
use hamlyn::wire::{MetadataIndex, Ticket};
use hamlyn::{Aperture, ApertureEvent};
use std::hint::black_box;
use std::time::Duration;

/// Most messages from the other end that wait.
const CREDIT: u32 = 64;
/// Places of an aperture together.
const PLACES_BYTES: usize = 1 << 20;

/// Records in an aperture at one time.
fn places(size: usize) -> u64 {
    (PLACES_BYTES / size).clamp(4, CREDIT as usize / 2) as u64
}

/// Records after which the reader reports its count.
fn lot(size: usize) -> u64 {
    places(size) / 4
}

/// Each side's own resources.
pub struct Own {
    pub node: Node,
    queue: QueueId,
    /// The ticket for the other end's messages.
    pub ticket: Ticket,
}

impl Own {
    pub fn new(cell: Cell) -> Result<Self> {
        let mut node = Node::with_config(config(cell)?)?;
        let area = node.message_area(4096)?;
        let queue = node.notification_queue(CREDIT)?;
        let slot = node.slot(SlotConfig::new(area, queue).credit(CREDIT))?;
        let ticket = match cell.protocol {
            Protocol::Over => node.ticket(slot, MetadataIndex(0))?,
            _ => node.fast_ticket(slot)?,
        };
        Ok(Self { node, queue, ticket })
    }

    /// The next event for which `look` has a result.
    pub fn event<R>(&mut self, mut look: impl FnMut(Event) -> Option<R>) -> Result<R> {
        loop {
            match self.node.next_event() {
                Some(event) => {
                    if let Some(result) = look(event) {
                        return Ok(result);
                    }
                }
                None => ensure!(self.node.wait(LIMIT)?, "the other end is silent"),
            }
        }
    }

    #[inline(always)]
    pub fn recv(&mut self) -> Result<u32> {
        Ok(self.node.recv(self.queue, LIMIT)?.word)
    }
}

#[inline(always)]
pub fn send(node: &mut Node, ticket: &Ticket, message: &[u8], word: u32) -> Result<()> {
    node.send_fast(ticket, message, word, LIMIT)?;
    Ok(())
}

/// The end that measures.
pub fn near(cell: Cell, name: &str, count: u64) -> Result<Figure> {
    let mut own = Own::new(cell)?;
    let link = own.node.connect(name, &own.ticket.to_bytes(), Some(Duration::from_secs(10)))?;
    let to = ticket_of(own.node.peer(link)?, own.node.greeting(link)?)?;
    let warm_up = Cell::warm_up(count);
    let figure = match cell.protocol {
        Protocol::Raw | Protocol::Adaptive => {
            let message = vec![7; cell.size];
            of_round_trips(count, || {
                send(&mut own.node, &to, &message, 7)?;
                own.recv()
            })?
        }
        Protocol::Over => {
            let message = vec![7; cell.size];
            of_round_trips(count, || {
                own.node.send_over(link, &to, &message, &[], LIMIT)?;
                own.recv()
            })?
        }
        Protocol::Shared => {
            let (node, message) = (Manager::from_node(own.node)?, vec![7; cell.size]);
            return of_round_trips(count, || {
                node.send_fast(&to, &message, 7, LIMIT)?;
                Ok(node.recv(own.queue, LIMIT)?)
            });
        }
        _ => {
            let aperture = held(&mut own, link)?;
            let seconds = match cell.protocol {
                Protocol::Memcpy => {
                    let seconds = write_only(&aperture, cell.size, warm_up, count)?;
                    send(&mut own.node, &to, &[], 0)?;
                    seconds
                }
                _ => write_and_announce(&mut own, &aperture, &to, cell.size, [warm_up, count])?,
            };
            Figure::Bandwidth { bytes_per_s: (count * cell.size as u64) as f64 / seconds }
        }
    };
    own.node.close(LIMIT)?;
    Ok(figure)
}

fn held(own: &mut Own, link: LinkId) -> Result<Aperture> {
    let id = own.event(|event| match event {
        Event::Aperture { aperture, what: ApertureEvent::Held } if aperture.link == link => {
            Some(aperture)
        }
        _ => None,
    })?;
    let aperture = own.node.aperture(id)?;
    aperture.populate()?;
    Ok(aperture)
}

/// Writes to one place again and again, which the fastest cache holds: the hardest comparison.
fn write_only(aperture: &Aperture, size: usize, warm_up: u64, count: u64) -> Result<f64> {
    let message = vec![7; size];
    let write = |count| (0..count).try_for_each(|_| aperture.write(0, black_box(&message)));
    write(warm_up)?;
    Ok(clock::timed(|| write(count))?)
}

fn write_and_announce(
    own: &mut Own,
    aperture: &Aperture,
    to: &Ticket,
    size: usize,
    [warm_up, count]: [u64; 2],
) -> Result<f64> {
    let message = vec![7; size];
    let places = places(size);
    let (mut sent, mut read, mut place) = (0, 0, 0);
    let mut stream = |until: u64| -> Result<()> {
        while sent < until {
            if sent - read >= places {
                read += own.recv()?.wrapping_sub(read as u32) as u64;
                continue;
            }
            aperture.write(place * size as u64, &message)?;
            send(&mut own.node, to, &[], place as u32)?;
            sent += 1;
            place = if place + 1 == places { 0 } else { place + 1 };
        }
        while read < until {
            read += own.recv()?.wrapping_sub(read as u32) as u64;
        }
        Ok(())
    };
    stream(warm_up)?;
    clock::timed(|| stream(warm_up + count))
}

/// The other end's resources, its link, and the ticket for answers, once the first end has
/// connected.
pub fn linked(cell: Cell, name: &str, ready: impl FnOnce()) -> Result<(Own, LinkId, Ticket)> {
    let mut own = Own::new(cell)?;
    own.node.serve(name, Access::SameUser, Accept::Ask)?;
    ready();
    let (request, to) = own.event(|event| match event {
        Event::Request { id, peer, greeting } => Some((id, ticket_of(&peer, &greeting))),
        _ => None,
    })?;
    let to = to.context("a greeting that is no ticket")?;
    own.node.accept(request, &own.ticket.to_bytes())?;
    let link = own.event(|event| match event {
        Event::Connected { link, .. } => Some(link),
        _ => None,
    })?;
    Ok((own, link, to))
}

/// The other end.
pub fn far(cell: Cell, name: &str, count: u64, ready: impl FnOnce()) -> Result<()> {
    let (mut own, link, to) = linked(cell, name, ready)?;
    let warm_up = Cell::warm_up(count);
    let total = warm_up + count;
    if cell.protocol == Protocol::Shared {
        let (node, message) = (Manager::from_node(own.node)?, vec![7; cell.size]);
        for _ in 0..total {
            node.recv(own.queue, LIMIT)?;
            node.send_fast(&to, &message, 7, LIMIT)?;
        }
        return Ok(());
    }
    if cell.measure == Measure::Latency {
        let message = vec![7; cell.size];
        for _ in 0..total {
            own.recv()?;
            match cell.protocol {
                Protocol::Over => own.node.send_over(link, &to, &message, &[], LIMIT)?,
                _ => send(&mut own.node, &to, &message, 7)?,
            }
        }
        return Ok(());
    }
    let bytes = places(cell.size) * cell.size as u64;
    let id = own.node.export(link, bytes, ApertureAccess::ReadWrite)?;
    let view = own.node.aperture_view(id)?;
    view.populate()?;
    if cell.protocol == Protocol::Memcpy {
        own.recv()?;
        return Ok(());
    }
    let mut copy = vec![0; cell.size];
    let mut read = 0;
    while read < total {
        let pause = if read < warm_up { warm_up } else { total };
        let until = pause.min(read + lot(cell.size));
        while read < until {
            let place = own.recv()? as u64 * cell.size as u64;
            match cell.protocol {
                Protocol::Pieces => {
                    for from in (place..place + cell.size as u64).step_by(PIECE) {
                        view.read(from, &mut copy[..PIECE])?;
                        black_box(&copy);
                    }
                }
                _ => {
                    view.read(place, &mut copy)?;
                    black_box(&copy);
                }
            }
            read += 1;
        }
        send(&mut own.node, &to, &[], read as u32)?;
    }
    Ok(())
}
