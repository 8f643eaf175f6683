//! Tagged remote write: data to an offset, a tag to a queue. The receiver's seed travels in a file;
//! any process that can read the file can grow a sender.

mod common;

use common::Result;
use hamlyn::protocol::{Manager, Seed, TaggedConfig, TaggedReceiver, TaggedSender};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    let mut receiver = TaggedReceiver::new(&manager, TaggedConfig::new(4096))?;
    std::fs::write(common::path("seed")?, receiver.seed()?.to_bytes())?;
    ready()?;
    // Tags are taken in any order; the data lies where the sender put it.
    for wanted in [2, 0, 1] {
        let tag = receiver.get_specific_tag(wanted, LIMIT)?;
        let mut text = [0; 6];
        receiver.read(64 * tag.tag as usize, &mut text)?;
        println!("tag {}: {}", tag.tag, String::from_utf8_lossy(&text));
    }
    Ok(())
}

fn sender() -> Result {
    let seed = Seed::from_bytes(&std::fs::read(common::path("seed")?)?)?;
    let manager = Manager::new()?;
    let mut sender = TaggedSender::grow(&manager, &seed, LIMIT)?;
    for tag in 0..3 {
        sender.send(64 * tag as u64, format!("part {tag}").as_bytes(), tag, LIMIT)?;
    }
    println!("{}", sender.explain());
    Ok(())
}

fn main() -> Result {
    common::run(receiver, &[sender])
}
