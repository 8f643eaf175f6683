//! The two ends of the cells whose messages come back: datagrams and byte streams.
//!
//! ```text
//!   datagram: near's receiver <--- datagram ---   far's sender
//!             near's sender   --- datagram --->   far's receiver
//!   bytes:    near            <--- stream --->    far
//! ```

use super::cells::{Cell, LIMIT, Protocol, config, of_round_trips};
use crate::perf::row::Figure;
use anyhow::{Result, ensure};
use hamlyn::control::Access;
use hamlyn::protocol::{
    ByteConfig, ByteListener, ByteStream, DatagramReceiver, DatagramSender, Manager,
};
use std::io::{Read, Write};

/// One end of an exchange, over both directions.
trait Channel {
    fn send(&mut self, message: &[u8]) -> Result<()>;
    /// The next message, of as many bytes.
    fn receive(&mut self, message: &mut [u8]) -> Result<()>;
}

struct Datagrams {
    receiver: DatagramReceiver,
    sender: DatagramSender,
}

fn receiver(cell: Cell, manager: &Manager, name: &str) -> Result<DatagramReceiver> {
    let mut receiver = DatagramReceiver::new(manager, cell.size)?;
    receiver.serve(name, Access::SameUser)?;
    receiver.ready()?;
    Ok(receiver)
}

impl Channel for Datagrams {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.sender.send(message, 0, None, LIMIT)?)
    }

    fn receive(&mut self, message: &mut [u8]) -> Result<()> {
        let datagram = self.receiver.receive(LIMIT)?;
        let length = self.receiver.read(&datagram, message)?;
        ensure!(length == message.len(), "a datagram of {length} bytes");
        Ok(self.receiver.ready()?)
    }
}

impl Channel for ByteStream {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.write_all(message)?)
    }

    fn receive(&mut self, message: &mut [u8]) -> Result<()> {
        Ok(self.read_exact(message)?)
    }
}

fn back(name: &str) -> String {
    format!("{name}-back")
}

/// The end that measures.
pub fn near(cell: Cell, name: &str, count: u64) -> Result<Figure> {
    let manager = Manager::with_config(config(cell)?)?;
    if cell.protocol == Protocol::Bytes {
        let stream = ByteStream::connect(&manager, name, LIMIT)?;
        stream.set_timeout(LIMIT);
        return measure(stream, cell, count);
    }
    let receiver = receiver(cell, &manager, &back(name))?;
    let sender = DatagramSender::connect(&manager, name, LIMIT)?;
    measure(Datagrams { receiver, sender }, cell, count)
}

fn measure(mut channel: impl Channel, cell: Cell, count: u64) -> Result<Figure> {
    let mut message = vec![7; cell.size];
    of_round_trips(count, || {
        channel.send(&message)?;
        channel.receive(&mut message)
    })
}

/// The other end.
pub fn far(cell: Cell, name: &str, count: u64, ready: impl FnOnce()) -> Result<()> {
    let manager = Manager::with_config(config(cell)?)?;
    if cell.protocol == Protocol::Bytes {
        let listener = ByteListener::new(&manager, ByteConfig::default())?;
        listener.serve(name, Access::SameUser)?;
        ready();
        let stream = listener.accept(LIMIT)?;
        stream.set_timeout(LIMIT);
        return answer(stream, cell, count);
    }
    let receiver = receiver(cell, &manager, name)?;
    ready();
    // The end that measures serves its own before it connects; until then this waits for the name.
    let sender = DatagramSender::connect(&manager, &back(name), LIMIT)?;
    answer(Datagrams { receiver, sender }, cell, count)
}

fn answer(mut channel: impl Channel, cell: Cell, count: u64) -> Result<()> {
    let mut message = vec![7; cell.size];
    for _ in 0..Cell::warm_up(count) + count {
        channel.receive(&mut message)?;
        channel.send(&message)?;
    }
    Ok(())
}
