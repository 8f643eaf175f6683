//! One side of a conversation, in Rust: `tests/peer.c` describes both sides.

use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    ByteConfig, ByteListener, ByteStream, Client, DatagramReceiver, DatagramSender, Group,
    GroupConfig, GroupMember, Manager, PublishConfig, Publisher, ReceiveError, Server,
    ServerConfig, StreamConfig, StreamReceiver, StreamSender, SubscribeConfig, Subscriber,
    TaggedConfig, TaggedReceiver, TaggedSender, WhenSlow,
};
use hamlyn::{
    Accept, Access, AccessError, ApertureAccess, ApertureEvent, ApertureId, AreaId, Event, LinkId,
    MetadataIndex, QueueId, SlotConfig, Ticket,
};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const LIMIT: Option<Duration> = Some(Duration::from_secs(40));
const BLOCK: u64 = 2048;
const PAGE: u64 = 4096;

fn make(i: u64) -> Vec<u8> {
    let length = i * 37 % 1500 + 8;
    let mut bytes: Vec<u8> = (0..length).map(|j| ((i + j) % 251) as u8).collect();
    bytes[..8].copy_from_slice(&i.to_le_bytes());
    bytes
}

fn must_be(i: u64, found: &[u8]) {
    assert!(found == make(i), "message {i} is not as it should be: {} bytes", found.len());
}

fn must_lie_at(i: u64, found: &[u8]) {
    must_be(i, &found[..make(i).len()]);
}

fn ready() -> Result {
    println!("ready");
    Ok(std::io::stdout().flush()?)
}

fn raw_recv(m: &Manager, name: &str, count: u64) -> Result {
    let (area, queue, slot) = {
        let mut node = m.lock();
        let area = node.message_area((count * BLOCK) as usize)?;
        let queue = node.notification_queue(count as u32)?;
        let slot = node.slot(SlotConfig::new(area, queue).credit(count as u32))?;
        let ticket = node.ticket(slot, MetadataIndex(0))?;
        node.serve(name, Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
        (area, queue, slot)
    };
    ready()?;
    for _ in 0..count {
        m.recv(queue, LIMIT)?;
    }
    let node = m.lock();
    for i in 0..count {
        must_lie_at(i, &node.area(area)?[(i * BLOCK) as usize..]);
    }
    let length = node.metadata(slot, MetadataIndex(0))?.user();
    assert_eq!(length, (make(count - 1).len() as u64).to_le_bytes());
    Ok(())
}

fn raw_send(m: &Manager, name: &str, count: u64) -> Result {
    let link = m.connect(name, b"", LIMIT)?;
    let ticket = Ticket::from_bytes(m.lock().greeting(link)?)?;
    for i in 0..count {
        let data = make(i);
        let length = (data.len() as u64).to_le_bytes();
        m.send(&ticket.at(i * BLOCK)?, &data, &length, LIMIT)?;
    }
    Ok(())
}

fn tagged_recv(m: &Manager, name: &str, count: u64) -> Result {
    let mut config = TaggedConfig::new(32 * BLOCK as usize);
    config.tags = 16;
    let mut receiver = TaggedReceiver::new(m, config)?;
    receiver.serve(name, Access::SameUser)?;
    ready()?;
    let mut data = [0; BLOCK as usize];
    for i in 0..count {
        assert_eq!(receiver.get_tag(LIMIT)?.tag as u64, i);
        receiver.read((i % 32 * BLOCK) as usize, &mut data)?;
        must_lie_at(i, &data);
    }
    Ok(())
}

fn tagged_send(m: &Manager, name: &str, count: u64) -> Result {
    let mut sender = TaggedSender::connect(m, name, LIMIT)?;
    for i in 0..count {
        sender.send(i % 32 * BLOCK, &make(i), i as u32, LIMIT)?;
    }
    m.lock().flush(LIMIT)?;
    Ok(())
}

fn datagram_recv(m: &Manager, name: &str, count: u64) -> Result {
    let mut receiver = DatagramReceiver::new(m, BLOCK as usize)?;
    receiver.serve(name, Access::SameUser)?;
    ready()?;
    for i in 0..count {
        let datagram = receiver.receive(LIMIT)?;
        receiver.with_bytes(&datagram, |bytes| must_be(i, bytes))?;
        receiver.ready()?;
        receiver.reply(&datagram, &i.to_le_bytes(), LIMIT)?;
    }
    m.lock().flush(LIMIT)?;
    Ok(())
}

fn datagram_send(m: &Manager, name: &str, count: u64) -> Result {
    let mut answers = DatagramReceiver::new(m, BLOCK as usize)?;
    let reply = answers.reply_ticket();
    let mut sender = DatagramSender::connect(m, name, LIMIT)?;
    for i in 0..count {
        sender.send(&make(i), 0, Some(&reply), LIMIT)?;
        let answer = answers.receive(LIMIT)?;
        answers.with_bytes(&answer, |bytes| assert_eq!(bytes, i.to_le_bytes()))?;
        answers.ready()?;
    }
    Ok(())
}

fn stream_recv(m: &Manager, name: &str, count: u64) -> Result {
    let mut receiver = StreamReceiver::new(m, StreamConfig::default())?;
    receiver.serve(name, Access::SameUser)?;
    ready()?;
    for i in 0..count {
        let record = receiver.receive(LIMIT)?;
        assert_eq!(record.number(), i);
        must_be(i, &record);
    }
    match receiver.receive(LIMIT) {
        Err(ReceiveError::Ended(CloseReason::Closed)) => Ok(()),
        other => Err(format!("after the last record came {other:?}").into()),
    }
}

fn stream_send(m: &Manager, name: &str, count: u64) -> Result {
    let mut sender = StreamSender::connect(m, name, LIMIT)?;
    for i in 0..count {
        sender.send(&make(i), LIMIT)?;
    }
    Ok(sender.close(LIMIT)?)
}

fn call_recv(m: &Manager, name: &str, count: u64) -> Result {
    let server = Server::new(m, ServerConfig::default())?;
    server.serve(name, Access::SameUser)?;
    ready()?;
    for i in 0..count {
        let request = server.receive(LIMIT)?;
        must_be(i, &request);
        request.reply(&make(i + 1), LIMIT)?;
    }
    m.lock().flush(LIMIT)?;
    Ok(())
}

fn call_send(m: &Manager, name: &str, count: u64) -> Result {
    let client = Client::connect(m, name, LIMIT)?;
    for i in 0..count {
        must_be(i + 1, &client.call(&make(i), LIMIT)?);
    }
    Ok(())
}

fn group_recv(m: &Manager, name: &str, count: u64) -> Result {
    let mut group = Group::new(m, GroupConfig::new(1, BLOCK as usize))?;
    group.serve(name, Access::SameUser)?;
    ready()?;
    for i in 0..count {
        must_be(i, group.gather(LIMIT)?.part(0).expect("gathered"));
        group.next_round();
        group.broadcast(&make(i + 1), LIMIT)?;
    }
    group.barrier(LIMIT)?;
    m.lock().flush(LIMIT)?;
    Ok(())
}

fn group_send(m: &Manager, name: &str, count: u64) -> Result {
    let mut member = GroupMember::connect(m, name, BLOCK as usize, LIMIT)?;
    for i in 0..count {
        member.send(&make(i), LIMIT)?;
        must_be(i + 1, &member.receive(LIMIT)?);
    }
    Ok(member.barrier(LIMIT)?)
}

/// A slot for announcements, and its ticket.
fn announced(m: &Manager) -> Result<(AreaId, QueueId, Vec<u8>)> {
    let mut node = m.lock();
    let (area, queue) = (node.message_area(64)?, node.notification_queue(4)?);
    let slot = node.slot(SlotConfig::new(area, queue).credit(4))?;
    let ticket = node.ticket(slot, MetadataIndex(0))?;
    Ok((area, queue, ticket.to_bytes().to_vec()))
}

fn announce(m: &Manager, link: LinkId, word: u64) -> Result {
    let to = Ticket::from_bytes(m.lock().greeting(link)?)?;
    m.send(&to, &word.to_le_bytes(), b"", LIMIT)?;
    Ok(())
}

/// The first of the next events that is looked for.
fn wait_for<T>(m: &Manager, mut is_it: impl FnMut(Event) -> Option<T>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(40);
    while Instant::now() < end {
        m.poll()?;
        match m.next_event().map(&mut is_it) {
            Some(Some(found)) => return Ok(found),
            Some(None) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err("the event did not come".into())
}

fn aperture_recv(m: &Manager, name: &str, count: u64) -> Result {
    let (_, queue, ticket) = announced(m)?;
    m.lock().serve(name, Access::SameUser, Accept::Automatic(ticket))?;
    ready()?;
    let link = wait_for(m, |event| match event {
        Event::Connected { link, .. } => Some(link),
        _ => None,
    })?;
    let id = m.lock().export(link, count * PAGE, ApertureAccess::ReadWrite)?;
    wait_for(m, |event| match event {
        Event::Aperture { aperture, what: ApertureEvent::Ready } => (aperture == id).then_some(()),
        _ => None,
    })?;
    let view = m.lock().aperture_view(id)?;
    for i in 0..count {
        view.write(i * PAGE, &make(i))?;
    }
    announce(m, link, id.number.into())?;
    m.recv(queue, LIMIT)?;
    let mut data = [0; BLOCK as usize];
    for i in 0..count {
        view.read(i * PAGE, &mut data)?;
        must_lie_at(i + 1, &data);
    }
    m.lock().revoke_aperture(id)?;
    m.recv(queue, LIMIT)?;
    Ok(())
}

fn aperture_send(m: &Manager, name: &str, count: u64) -> Result {
    let (area, queue, ticket) = announced(m)?;
    let link = m.connect(name, &ticket, LIMIT)?;
    m.recv(queue, LIMIT)?;
    let number = u32::from_le_bytes(m.lock().area(area)?[..4].try_into()?);
    let aperture = m.lock().aperture(ApertureId { link, number })?;
    let mut data = [0; BLOCK as usize];
    for i in 0..count {
        aperture.read(i * PAGE, &mut data)?;
        must_lie_at(i, &data);
        aperture.write(i * PAGE, &make(i + 1))?;
    }
    announce(m, link, 0)?;
    wait_for(m, |event| match event {
        Event::Aperture { what: ApertureEvent::Revoked, .. } => Some(()),
        _ => None,
    })?;
    assert_eq!(aperture.write(0, &[0]), Err(AccessError::Revoked));
    announce(m, link, 0)
}

fn close_recv(m: &Manager, name: &str, count: u64) -> Result {
    let mut receiver = StreamReceiver::new(m, StreamConfig::default())?;
    receiver.serve(name, Access::SameUser)?;
    m.lock().serve(&format!("{name}-after"), Access::SameUser, Accept::Automatic(Vec::new()))?;
    ready()?;
    wait_for(m, |event| matches!(event, Event::Connected { .. }).then_some(()))?;
    for i in 0..count {
        let record = receiver.receive(LIMIT)?;
        must_be(i, &record);
    }
    match receiver.receive(LIMIT) {
        Err(ReceiveError::Ended(CloseReason::Closed)) => Ok(()),
        other => Err(format!("after the last record came {other:?}").into()),
    }
}

fn close_send(m: &Manager, name: &str, count: u64) -> Result {
    stream_send(m, name, count)?;
    m.connect(&format!("{name}-after"), b"", LIMIT)?;
    Ok(())
}

fn publish_recv(m: &Manager, name: &str, count: u64) -> Result {
    let mut receiver = TaggedReceiver::new(m, TaggedConfig::new(8))?;
    receiver.serve(name, Access::SameUser)?;
    ready()?;
    receiver.get_tag(LIMIT)?;
    let config = SubscribeConfig::default();
    let mut subscriber = Subscriber::connect(m, &format!("{name}-samples"), config, LIMIT)?;
    for i in 0..count {
        let sample = subscriber.receive(LIMIT)?;
        assert_eq!((sample.number(), sample.missed()), (i, 0));
        must_be(i, &sample.to_vec()?);
    }
    match subscriber.receive(LIMIT) {
        Err(ReceiveError::Ended(CloseReason::Closed)) => Ok(()),
        other => Err(format!("after the last sample came {other:?}").into()),
    }
}

fn publish_send(m: &Manager, name: &str, count: u64) -> Result {
    let config = PublishConfig {
        short_bytes_max: 512,
        sample_bytes_max: BLOCK as usize,
        when_slow: WhenSlow::Wait,
        ..PublishConfig::default()
    };
    let publisher = Publisher::new(m, config)?;
    publisher.serve(&format!("{name}-samples"), Access::SameUser)?;
    let mut sender = TaggedSender::connect(m, name, LIMIT)?;
    sender.send(0, b"", 0, LIMIT)?;
    while !publisher.subscribers().first().is_some_and(|state| state.is_served) {
        m.poll()?;
    }
    for i in 0..count {
        assert_eq!(publisher.publish(&make(i), LIMIT)?, i);
    }
    Ok(publisher.drain(LIMIT)?)
}

fn bytes_recv(m: &Manager, name: &str, _: u64) -> Result {
    let listener = ByteListener::new(m, ByteConfig::default())?;
    listener.serve(name, Access::SameUser)?;
    ready()?;
    let mut stream = listener.accept(LIMIT)?;
    stream.set_timeout(LIMIT);
    let mut data = [0; BLOCK as usize];
    loop {
        match stream.read(&mut data)? {
            0 => return Ok(stream.shut(LIMIT)?),
            length => stream.write_all(&data[..length])?,
        }
    }
}

fn bytes_send(m: &Manager, name: &str, count: u64) -> Result {
    let mut stream = ByteStream::connect(m, name, LIMIT)?;
    stream.set_timeout(LIMIT);
    let back = |stream: &mut ByteStream, i| -> Result {
        let mut found = make(i);
        found.fill(0);
        stream.read_exact(&mut found)?;
        must_be(i, &found);
        Ok(())
    };
    for i in 0..count {
        stream.write_all(&make(i))?;
        if i >= count / 2 {
            back(&mut stream, i - count / 2)?;
        }
    }
    stream.shut(LIMIT)?;
    for i in count - count / 2..count {
        back(&mut stream, i)?;
    }
    assert_eq!(stream.read(&mut [0])?, 0);
    Ok(())
}

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, role, protocol, name, rest @ ..] = &arguments[..] else {
        return Err("usage: rust_peer recv|send PROTOCOL NAME [COUNT]".into());
    };
    let count = rest.first().map_or(Ok(200), |count| count.parse())?;
    let manager = Manager::new()?;
    let side = match (protocol.as_str(), role.as_str()) {
        ("raw", "recv") => raw_recv,
        ("raw", "send") => raw_send,
        ("tagged", "recv") => tagged_recv,
        ("tagged", "send") => tagged_send,
        ("datagram", "recv") => datagram_recv,
        ("datagram", "send") => datagram_send,
        ("stream", "recv") => stream_recv,
        ("stream", "send") => stream_send,
        ("call", "recv") => call_recv,
        ("call", "send") => call_send,
        ("group", "recv") => group_recv,
        ("group", "send") => group_send,
        ("aperture", "recv") => aperture_recv,
        ("aperture", "send") => aperture_send,
        ("close", "recv") => close_recv,
        ("close", "send") => close_send,
        ("publish", "recv") => publish_recv,
        ("publish", "send") => publish_send,
        ("bytes", "recv") => bytes_recv,
        ("bytes", "send") => bytes_send,
        _ => return Err(format!("no side is called {role} {protocol}").into()),
    };
    side(&manager, name, count)?;
    manager.lock().flush(LIMIT)?;
    Ok(())
}
