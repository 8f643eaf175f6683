//! Publish and subscribe: short samples are copied to each subscriber, long ones are written once,
//! in a pool that all subscribers read. One subscriber is slow, and learns which samples it missed.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{
    Manager, PublishConfig, Publisher, ReceiveError, SubscribeConfig, Subscriber,
};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const FRAME_BYTES: usize = 1 << 20;

fn publisher(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    // The progress thread answers requests and sends kept samples while this program does something
    // else.
    manager.start_progress()?;
    let config =
        PublishConfig { sample_bytes_max: FRAME_BYTES, history: 1, ..PublishConfig::default() };
    let publisher = Publisher::new(&manager, config)?;
    publisher.serve("frames", Access::SameUser)?;
    publisher.publish(b"frames of 1 MiB", LIMIT)?;
    ready()?;
    while publisher.subscribers().iter().filter(|subscriber| subscriber.is_served).count() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for number in 0..200u8 {
        let mut frame = publisher.loan(FRAME_BYTES)?;
        frame.fill(number);
        publisher.publish_loan(frame, LIMIT)?;
    }
    // The pool ends with the publisher: wait until all have read it.
    publisher.drain(LIMIT)?;
    println!("published {}, dropped {}", publisher.published(), publisher.dropped());
    Ok(())
}

fn receive_all(takes: Duration) -> Result<(u32, u64)> {
    let manager = Manager::new()?;
    let mut subscriber =
        Subscriber::connect(&manager, "frames", SubscribeConfig::default(), LIMIT)?;
    let first = subscriber.receive(LIMIT)?;
    println!("{}", String::from_utf8_lossy(first.as_slice().unwrap_or_default()));
    let mut frames = 0;
    loop {
        match subscriber.receive(LIMIT) {
            Ok(frame) => {
                // Copy first, then look: the publisher could change the bytes.
                let mut some = [0; 4096];
                frame.copy_to(&mut some)?;
                frames += 1;
                std::thread::sleep(takes);
            }
            Err(ReceiveError::Ended(_)) => return Ok((frames, subscriber.missed())),
            Err(e) => return Err(e.into()),
        }
    }
}

fn quick() -> Result {
    let (frames, missed) = receive_all(Duration::ZERO)?;
    println!("quick: {frames} frames, missed {missed}");
    Ok(())
}

fn slow() -> Result {
    let (frames, missed) = receive_all(Duration::from_millis(5))?;
    println!("slow: {frames} frames, missed {missed}");
    Ok(())
}

fn main() -> Result {
    common::run(publisher, &[quick, slow])
}
