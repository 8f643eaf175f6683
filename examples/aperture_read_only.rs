//! Remote reads: an owner exports a table read-only to several readers, and each reads any part at
//! any time. The owner does nothing meanwhile, and no reader can change a byte.

mod common;
use common::{Result, node, run};
use hamlyn::{Accept, Access, ApertureAccess, ApertureEvent, Event, Node};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const BYTES: u64 = 1 << 20;
/// The table begins behind a word that says whether it is there.
const TABLE: u64 = 64;

fn next_event(node: &mut Node) -> Result<Event> {
    loop {
        if let Some(event) = node.next_event() {
            return Ok(event);
        }
        if !node.wait(LIMIT)? {
            return Err("no event came".into());
        }
    }
}

fn owner(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    node.serve("table", Access::SameUser, Accept::Automatic(Vec::new()))?;
    ready()?;
    let Event::Connected { link, .. } = next_event(&mut node)? else {
        return Err("nobody connected".into());
    };
    // A reader of another user would need no more trust: its mapping cannot be made writable.
    let aperture = node.export(link, BYTES, ApertureAccess::ReadOnly)?;
    let other = loop {
        if let Event::Connected { link, .. } = next_event(&mut node)? {
            break link;
        }
    };
    // The same pages.
    node.export_also(aperture, other)?;
    let view = node.aperture_view(aperture)?;
    for row in 0..1000 {
        view.write_u64(TABLE + 8 * row, row * row)?;
    }
    // A reader that sees this word also sees everything that was written before it.
    view.write_u64(0, 1)?;
    // From here on the owner only waits for the readers' end.
    for _ in 0..2 {
        while !matches!(next_event(&mut node)?, Event::Closed { .. }) {}
    }
    Ok(())
}

fn reader() -> Result {
    let mut node = node()?;
    let link = node.connect("table", b"", LIMIT)?;
    let id = loop {
        if let Event::Aperture { aperture, what: ApertureEvent::Held } = next_event(&mut node)? {
            break aperture;
        }
    };
    let table = node.aperture(id)?;
    while table.read_u64(0)? == 0 {
        std::thread::yield_now();
    }
    for row in [7, 999, 31] {
        let value = table.read_u64(TABLE + 8 * row)?;
        println!("row {row} is {value}");
        assert_eq!(value, row * row);
    }
    println!("{}", node.explain(link)?);
    println!("to write is an error: {}", table.write_u64(TABLE, 0).unwrap_err());
    node.close(LIMIT)?;
    Ok(())
}

fn main() -> Result {
    run(owner, &[reader, reader])
}
