//! Simple datagrams: a receiver is ready for one or not, and a datagram that comes too early is
//! lost. Here the reply says that the receiver is ready again, so none is lost.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{DatagramReceiver, DatagramSender, Manager};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    let mut receiver = DatagramReceiver::new(&manager, 4096)?;
    receiver.serve("datagrams", Access::SameUser)?;
    ready()?;
    for _ in 0..3 {
        let datagram = receiver.receive(LIMIT)?;
        // The bytes stand still until `ready`.
        let text = receiver.with_bytes(&datagram, |b| String::from_utf8_lossy(b).to_uppercase())?;
        println!("{} bytes at {}", datagram.length, datagram.offset);
        receiver.ready()?;
        receiver.reply(&datagram, text.as_bytes(), LIMIT)?;
    }
    Ok(())
}

fn sender() -> Result {
    let manager = Manager::new()?;
    let mut sender = DatagramSender::connect(&manager, "datagrams", LIMIT)?;
    let mut answers = DatagramReceiver::new(&manager, 4096)?;
    let reply = answers.reply_ticket();
    for (i, word) in ["loud", "louder", "loudest"].iter().enumerate() {
        sender.send(word.as_bytes(), 64 * i as u64, Some(&reply), LIMIT)?;
        let answer = answers.receive(LIMIT)?;
        let text = answers.with_bytes(&answer, |b| String::from_utf8_lossy(b).into_owned())?;
        println!("{word}: {text}");
        assert_eq!(text, word.to_uppercase());
        answers.ready()?;
    }
    Ok(())
}

fn main() -> Result {
    common::run(receiver, &[sender])
}
