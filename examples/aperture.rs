//! Apertures: a sender writes a megabyte straight into the receiver's memory, without a ring in
//! between, and announces it with a message. Then the receiver revokes the aperture, and keeps the
//! memory as a message area with stable bytes.

mod common;
use common::{Result, node, run};
use hamlyn::{
    Accept, Access, ApertureAccess, ApertureEvent, ApertureId, Event, MetadataIndex, Node,
    SlotConfig, Ticket,
};
use std::time::{Duration, Instant};

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const BYTES: u64 = 8 << 20;

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

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    // An announcement is a message like any other, here one without bytes of its own.
    let area = node.message_area(64)?;
    let queue = node.notification_queue(16)?;
    let slot = node.slot(SlotConfig::new(area, queue))?;
    let ticket = node.ticket(slot, MetadataIndex(0))?;
    node.serve("aperture", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    ready()?;

    let Event::Connected { link, .. } = next_event(&mut node)? else {
        return Err("nobody connected".into());
    };
    let aperture = node.export(link, BYTES, ApertureAccess::ReadWrite)?;
    let message = node.recv(queue, LIMIT)?;
    let length = {
        let about = node.metadata(slot, message.index)?.user();
        assert_eq!(about[..4], aperture.number.to_le_bytes());
        u64::from_le_bytes(about[4..12].try_into()?)
    };
    println!("{}", node.explain(link)?);

    // The sender can still change these bytes: copy the needed ones, then check, then use the copy.
    let view = node.aperture_view(aperture)?;
    let mut bytes = vec![0; usize::try_from(length)?];
    view.read(0, &mut bytes)?;
    assert!(bytes.iter().all(|byte| *byte == 7));

    // From here on it cannot.
    let began = Instant::now();
    let area = node.reclaim_aperture(aperture)?;
    let took = began.elapsed();
    assert!(node.area(area)?[..bytes.len()] == bytes);
    let each = took / (BYTES >> 20) as u32;
    println!("{length} bytes came without a ring; taken back in {each:?} a MiB");
    Ok(())
}

fn sender() -> Result {
    let mut node = node()?;
    let link = node.connect("aperture", b"", LIMIT)?;
    let ticket = Ticket::from_bytes(node.greeting(link)?)?;
    let id: ApertureId = loop {
        if let Event::Aperture { aperture, what: ApertureEvent::Held } = next_event(&mut node)? {
            break aperture;
        }
    };
    let aperture = node.aperture(id)?;
    let data = vec![7; 1 << 20];
    aperture.write(0, &data)?;
    let mut about = id.number.to_le_bytes().to_vec();
    about.extend((data.len() as u64).to_le_bytes());
    node.send(&ticket, b"", &about, LIMIT)?;
    // Until it has been taken back; to write now would be an error, and no harm.
    while !aperture.is_revoked() {
        next_event(&mut node)?;
    }
    println!("the sender: {}", aperture.write(0, b"too late").unwrap_err());
    node.close(LIMIT)?;
    Ok(())
}

fn main() -> Result {
    run(receiver, &[sender])
}
