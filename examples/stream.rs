//! A stream: records in order, small ones coalesced, long ones sent alone. The receiver reads them
//! in place; each is released on drop.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{Manager, ReceiveError, StreamConfig, StreamReceiver, StreamSender};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    let mut receiver = StreamReceiver::new(&manager, StreamConfig::default())?;
    receiver.serve("readings", Access::SameUser)?;
    ready()?;
    let (mut sum, mut longest) = (0, 0);
    loop {
        match receiver.receive(LIMIT) {
            Ok(record) => match record[..].try_into() {
                Ok(reading) => sum += u64::from_le_bytes(reading),
                Err(_) => longest = record.len(),
            },
            Err(ReceiveError::Ended(reason)) => {
                println!("the end: {reason:?}");
                break;
            }
            Err(e) => return Err(e.into()),
        }
    }
    println!("readings add to {sum}; the picture has {longest} bytes");
    if (sum, longest) == (499_500, 3_000_000) { Ok(()) } else { Err("not what was sent".into()) }
}

fn sender() -> Result {
    let manager = Manager::new()?;
    let mut sender = StreamSender::connect(&manager, "readings", LIMIT)?;
    for reading in 0..500u64 {
        sender.send(&reading.to_le_bytes(), LIMIT)?;
    }
    // Or written where it leaves from.
    for reading in 500..1000u64 {
        let mut record = sender.loan(8, LIMIT)?;
        record.copy_from_slice(&reading.to_le_bytes());
        record.send(LIMIT)?;
    }
    // Call `flush` before you wait for an answer.
    sender.flush(LIMIT)?;
    sender.send(&vec![7; 3_000_000], LIMIT)?;
    println!("{}", sender.explain());
    sender.close(LIMIT)?;
    Ok(())
}

fn main() -> Result {
    common::run(receiver, &[sender])
}
