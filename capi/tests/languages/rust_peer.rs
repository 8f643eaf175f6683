//! One side of a conversation, in Rust: see `tests/peer.c`, which says what each side does.

use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    Client, DatagramReceiver, DatagramSender, Group, GroupConfig, GroupMember, Manager,
    ReceiveError, Server, ServerConfig, StreamConfig, StreamReceiver, StreamSender, TaggedConfig,
    TaggedReceiver, TaggedSender,
};
use hamlyn::{Accept, Access, MetadataIndex, SlotConfig, Ticket};
use std::io::Write;
use std::time::Duration;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const BLOCK: u64 = 2048;

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
        let _ = m.send(&ticket.at(i * BLOCK)?, &data, &length, LIMIT)?;
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
        must_be(i, receiver.bytes(&record)?);
        receiver.release(&record)?;
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
        _ => return Err(format!("no side is called {role} {protocol}").into()),
    };
    side(&manager, name, count)?;
    manager.lock().flush(LIMIT)?;
    Ok(())
}
