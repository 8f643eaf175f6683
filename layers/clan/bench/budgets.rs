//! Instructions of events and of deposits beside tripwires, against a committed table.
//!
//! `cargo bench -p hamlyn-clan --bench clan_budgets`; how it counts: see `counted`.

#[path = "../../counted.rs"]
mod counted;

use counted::{Outcome, Row, counted_if, row_ends};
use hamlyn::node::PreparedTicket;
use hamlyn::{Access, SlotConfig};
use hamlyn_clan::{
    Aperture, Clan, Config, EventId, EventQueue, Region, Rights, Target, Trip, Wire,
};
use std::process::ExitCode;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// Events, or puts, of a row that are counted, after as many that are not.
const COUNT: u64 = 2048;
/// Puts before the turn that takes them.
const BATCH: u64 = 16;
const MANY: u64 = 100_000;

const ROWS: &[Row] = &[
    ("event", Some((90.0, None)), "raise and take, one event registered"),
    ("event-100000", Some((0.5, Some("event"))), "the same, 100,000 registered"),
    ("again", Some((20.0, None)), "raise of an event that is queued, one registered"),
    ("again-100000", Some((0.5, Some("again"))), "the same, 100,000 registered"),
    ("deposit", None, "16 bytes taken into a plain slot without a receiver, 16 in a turn"),
    (
        "no-wire",
        Some((15.0, Some("deposit"))),
        "into a region with 100,000 wires, none in this line",
    ),
    ("beside", Some((100.0, Some("deposit"))), "the same, beside a wire in this line"),
    ("trips", None, "the same, on the wire, which was armed: it raises its event"),
    ("put-plain", None, "the whole of a prepared packet of 16 bytes to a plain slot, both sides"),
    ("put", None, "the whole of a put of 16 bytes where no wire is, both sides"),
];

fn events() -> Outcome {
    let mut queues = Vec::new();
    for registered in [1, MANY] {
        let queue = EventQueue::new(MANY as u32, || {})?;
        let ids: Vec<EventId> =
            (0..registered).map(|user| queue.register(user)).collect::<Result<_, _>>()?;
        queues.push((queue, ids));
    }
    for (queue, ids) in &queues {
        row(queue, ids, |queue, id| {
            queue.raise(id);
            std::hint::black_box(queue.take());
        })?;
    }
    for (queue, ids) in &queues {
        row(queue, ids, |queue, id| {
            queue.raise(id);
        })?;
    }
    Ok(())
}

/// Each time another event, where there are several.
fn row(queue: &EventQueue, ids: &[EventId], work: impl Fn(&EventQueue, EventId)) -> Outcome {
    let ids: Vec<_> = (0..COUNT as usize).map(|number| ids[number * 47 % ids.len()]).collect();
    for is_counted in [false, true] {
        counted_if(is_counted, &mut || {
            ids.iter().for_each(|id| work(queue, *id));
            Ok(())
        })?;
    }
    row_ends();
    Ok(())
}

/// Two nodes, which this thread uses, and a region of the second.
struct Two {
    client: Clan,
    server: Clan,
    plain: PreparedTicket,
    region: Region,
    aperture: Aperture,
}

impl Two {
    fn new() -> Outcome<Self> {
        let clan = || Clan::new(Config::from_env()?);
        let (client, server) = (clan()?, clan()?);
        server.listen("budget", Access::SameUser)?;
        let (there, here) = std::thread::scope(|scope| {
            let there = scope.spawn(|| client.connect("budget", LIMIT));
            let here = server.accept(LIMIT);
            Outcome::Ok((there.join().map_err(|_| "connecting panicked")??, here?))
        })?;
        let slot = {
            let mut node = server.manager().lock();
            let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
            let slot = node.slot(SlotConfig::new(area, queue))?;
            node.fast_ticket(slot)?.with_flags(hamlyn::Flags::WAKE | hamlyn::Flags::IN_ORDER)
        };
        let plain = client.manager().lock().prepare(&slot)?;
        let region = server.region(64 * MANY, MANY as u32)?;
        let aperture = there.import(&region.export(&here, Rights::Write)?.handle, LIMIT)?;
        // For as long as this program runs.
        std::mem::forget((there, here));
        Ok(Self { client, server, plain, region, aperture })
    }

    /// Puts, and turns that take them, of which the counted part is both or the turns; then `after`.
    fn row(&self, counts_put: bool, put: &dyn Fn() -> Outcome, after: &dyn Fn()) -> Outcome {
        let batch = || (0..BATCH).try_for_each(|_| put());
        let take = || {
            let mut came = 0;
            while came < BATCH as usize {
                came += self.server.manager().poll()?;
            }
            Ok(())
        };
        for is_counted in [false, true] {
            for _ in 0..COUNT / BATCH {
                counted_if(is_counted && counts_put, &mut || batch())?;
                counted_if(is_counted, &mut || take())?;
                after();
            }
        }
        row_ends();
        Ok(())
    }
}

fn puts() -> Outcome {
    let two = Two::new()?;
    let plain = || {
        let sent = two.client.manager().send_prepared_now(&two.plain, 64, &[7; 16], 0);
        sent.then_some(()).ok_or_else(|| "no room".into())
    };
    let put = |line: u64, at: u64| Ok(two.aperture.put(64 * line + at, &[7; 16], LIMIT)?);
    let events = two.server.event_queue(MANY as u32)?;
    let wire = |line: u64| -> Outcome<Wire> {
        let target = Target { queue: events.clone(), event: events.register(line)? };
        Ok(two.region.wire(64 * line..64 * line + 8, Trip::Write, Some(target))?)
    };
    // None in line 0.
    let wires: Vec<Wire> = (1..MANY).map(wire).collect::<Outcome<_>>()?;
    let (quiet, next) = (|| {}, std::cell::Cell::new(0));
    two.row(false, &plain, &quiet)?;
    two.row(false, &|| put(0, 0), &quiet)?;
    two.row(false, &|| put(50_000, 32), &quiet)?;
    let trips = || {
        next.set(next.get() % (MANY - 2) + 1);
        put(next.get(), 0)
    };
    two.row(false, &trips, &|| {
        while let Some(event) = events.take() {
            wires[event.user as usize - 1].arm();
        }
    })?;
    two.row(true, &plain, &quiet)?;
    two.row(true, &|| put(0, 0), &quiet)
}

fn measure() -> Outcome {
    events()?;
    puts()
}

fn main() -> ExitCode {
    counted::run(ROWS, COUNT, measure)
}
