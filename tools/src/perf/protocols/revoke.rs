//! The cost of revoking an aperture.
//!
//! ```text
//!   near, the owner                                far, the holder
//!   export, write every page   --- mapped --->     write every page
//!                              <--- word ------
//!   revoke: the first figure   --- told ---->      looks until it is revoked
//!                              <--- word ------    the second figure
//! ```
//! When `revoke_aperture` returns, the owner no longer sees writes of the holder: so the first
//! figure is also the longest time for which such a write had an effect. The second is the time
//! until the holder knows.

use super::cells::{Cell, LIMIT};
use super::lower::{Own, linked, send};
use crate::perf::clock;
use crate::perf::row::Figure;
use crate::tickets::ticket_of;
use anyhow::{Result, ensure};
use hamlyn::node::Event;
use hamlyn::os::aperture::ApertureAccess;
use hamlyn::{ApertureEvent, ApertureId};
use std::time::Duration;

const PAGE_BYTES: u64 = 4096;

/// Any fewer apertures than a cell has by default, but not more: they come one after another, and
/// large ones take long to fill.
fn count_of(cell: Cell, count: u64) -> u64 {
    count.min(cell.count)
}

fn about(event: Event, wanted: ApertureEvent) -> Option<ApertureId> {
    match event {
        Event::Aperture { aperture, what } if what == wanted => Some(aperture),
        _ => None,
    }
}

fn median(mut values: Vec<u64>) -> f64 {
    values.sort_unstable();
    values[values.len() / 2] as f64
}

/// The owner, which measures.
pub fn near(cell: Cell, name: &str, count: u64) -> Result<Figure> {
    let mut own = Own::new(cell)?;
    let link = own.node.connect(name, &own.ticket.to_bytes(), Some(Duration::from_secs(10)))?;
    let to = ticket_of(own.node.peer(link)?, own.node.greeting(link)?)?;
    let count = count_of(cell, count);
    let warm_up = Cell::warm_up(count);
    let (mut revoked, mut known) = (Vec::new(), Vec::new());
    for number in 0..warm_up + count {
        let id = own.node.export(link, cell.size as u64, ApertureAccess::ReadWrite)?;
        own.event(|event| about(event, ApertureEvent::Ready))?;
        let view = own.node.aperture_view(id)?;
        for page in (0..cell.size as u64).step_by(PAGE_BYTES as usize) {
            view.write_u64(page, number + 1)?;
        }
        send(&mut own.node, &to, &[], 0)?;
        own.recv()?;
        let began = clock::ticks();
        own.node.revoke_aperture(id)?;
        let returned = clock::ticks();
        own.recv()?;
        let told = clock::ticks();
        if number >= warm_up {
            revoked.push(clock::elapsed_ns(began, returned));
            known.push(clock::elapsed_ns(began, told));
        }
    }
    own.node.close(LIMIT)?;
    Ok(Figure::Revoke { revoke_ns: median(revoked), holder_knows_ns: median(known) })
}

/// The holder.
pub fn far(cell: Cell, name: &str, count: u64, ready: impl FnOnce()) -> Result<()> {
    let (mut own, _, to) = linked(cell, name, ready)?;
    let count = count_of(cell, count);
    for number in 0..Cell::warm_up(count) + count {
        let id = own.event(|event| about(event, ApertureEvent::Held))?;
        let aperture = own.node.aperture(id)?;
        own.recv()?;
        for page in (0..cell.size as u64).step_by(PAGE_BYTES as usize) {
            ensure!(aperture.read_u64(page)? == number + 1, "page {page} is not the owner's");
            aperture.write_u64(page, 0)?;
        }
        send(&mut own.node, &to, &[], 0)?;
        own.event(|event| about(event, ApertureEvent::Revoked))?;
        ensure!(aperture.is_revoked(), "an aperture that was revoked is not");
        drop(aperture);
        send(&mut own.node, &to, &[], 0)?;
    }
    Ok(())
}
