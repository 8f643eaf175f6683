//! A relay: subscribes once to a publisher, usually on another host, and publishes its samples
//! again for all subscribers of its own host.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{
    Manager, PublishConfig, Publisher, ReceiveError, Relay, RelayConfig, RelayError,
    SubscribeConfig, Subscriber, WhenSlow,
};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn publisher(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    manager.start_progress()?;
    let config = PublishConfig {
        sample_bytes_max: 64 << 10,
        history: 3,
        when_slow: WhenSlow::Wait,
        ..PublishConfig::default()
    };
    let publisher = Publisher::new(&manager, config)?;
    publisher.serve("prices", Access::SameUser)?;
    for day in 0..3 {
        publisher.publish(&vec![day; 64 << 10], LIMIT)?;
    }
    ready()?;
    while !publisher.subscribers().iter().any(|subscriber| subscriber.is_served) {
        std::thread::sleep(Duration::from_millis(1));
    }
    publisher.drain(LIMIT)?;
    Ok(())
}

fn relay() -> Result {
    // Of a publisher on another host: hamlyn://HOST:PORT/prices.
    let name = "prices";
    let config = RelayConfig {
        publish: PublishConfig { history: 3, ..PublishConfig::default() },
        ..RelayConfig::default()
    };
    let mut relay = Relay::connect(&Manager::new()?, name, config, LIMIT)?;
    relay.serve("local-prices", Access::SameUser)?;
    loop {
        match relay.pass_on(None) {
            Ok(number) => println!("sample {number}, {} left out so far", relay.missed()),
            Err(RelayError::Ended(_)) => break,
            Err(e) => return Err(e.into()),
        }
    }
    // Until both subscribers have come, and have read all that lies in its pool.
    while relay.subscribers().iter().filter(|subscriber| subscriber.is_served).count() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    relay.drain(LIMIT)?;
    Ok(())
}

fn subscriber() -> Result {
    let manager = Manager::new()?;
    let config = SubscribeConfig::default();
    let mut prices = Subscriber::connect(&manager, "local-prices", config, LIMIT)?;
    loop {
        match prices.receive(LIMIT) {
            Ok(sample) => println!("sample {} of {} bytes", sample.number(), sample.len()),
            Err(ReceiveError::Ended(_)) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

fn main() -> Result {
    common::run(publisher, &[relay, subscriber, subscriber])
}
