//! iceoryx2: publish and subscribe, a service each way, a sample loaned for each message.
//!
//! ```text
//! peer-iceoryx2 initiate|respond latency|stream SIZE COUNT WINDOW
//! ```
//! `peer.h` describes the roles and the measured quantities; this program does the same. The sender
//! copies its bytes from a buffer of its own into the loaned sample. The receiver gets a view.
//! WINDOW is the buffer of the subscriber, and the most messages on their way: the receiver reports
//! every quarter of it, like `hamlyn perf`. (Without that the publisher finds the buffer full, and
//! the library then sleeps.)
//! `$PEER_ADDRESS` is part of the services' names.

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Peer {
    initiates: bool,
    is_latency: bool,
    size: usize,
    warm_up: u64,
    count: u64,
    window: u64,
    message: Vec<u8>,
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
}

impl Peer {
    /// Messages that one acknowledgement is for.
    fn lot(&self) -> u64 {
        (self.window / 4).max(1)
    }

    fn send(&self, size: usize) -> Result<()> {
        let sample = self.publisher.loan_slice_uninit(size)?;
        sample.write_from_slice(&self.message[..size]).send()?;
        Ok(())
    }

    /// Returns when the next message is there and has been looked at.
    fn receive(&self, size: usize) -> Result<()> {
        loop {
            if let Some(sample) = self.subscriber.receive()? {
                let bytes = sample.payload();
                if bytes.len() != size {
                    return Err("a message of another size".into());
                }
                for line in bytes.chunks(64) {
                    black_box(line[0]);
                }
                return Ok(());
            }
        }
    }

    fn run(&self) -> Result<()> {
        let Self { size, warm_up, count, .. } = *self;
        let trips = warm_up + count;
        match (self.is_latency, self.initiates) {
            (true, true) => {
                let clock = quanta::Clock::new();
                let mut ends = vec![1; trips as usize + 1];
                ends.clear();
                ends.push(clock.raw());
                for _ in 0..trips {
                    self.send(size)?;
                    self.receive(size)?;
                    ends.push(clock.raw());
                }
                let mut times = BTreeMap::<u64, u64>::new();
                for ends in ends.windows(2).skip(warm_up as usize) {
                    *times.entry(clock.delta_as_nanos(ends[0], ends[1])).or_default() += 1;
                }
                let times: Vec<_> = times.iter().map(|(ns, n)| format!("[{ns},{n}]")).collect();
                println!("{{\"round_trips_ns\":[{}]}}", times.join(","));
            }
            (true, false) => {
                for _ in 0..trips {
                    self.receive(size)?;
                    self.send(size)?;
                }
            }
            (false, true) => {
                let mut seconds = 0.0;
                for part in [warm_up, count] {
                    let from = Instant::now();
                    let (mut sent, mut arrived) = (0, 0);
                    while arrived < part {
                        if sent < part && sent - arrived < self.window {
                            self.send(size)?;
                            sent += 1;
                        } else {
                            self.receive(1)?;
                            arrived += self.lot().min(part - arrived);
                        }
                    }
                    seconds = from.elapsed().as_secs_f64();
                }
                println!("{{\"count\":{count},\"seconds\":{seconds}}}");
            }
            (false, false) => {
                for part in [warm_up, count] {
                    let mut left = part;
                    while left > 0 {
                        let lot = self.lot().min(left);
                        for _ in 0..lot {
                            self.receive(size)?;
                        }
                        self.send(1)?;
                        left -= lot;
                    }
                }
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, test, size, count, window] = arguments.as_slice() else {
        return Err("wants initiate|respond latency|stream SIZE COUNT WINDOW".into());
    };
    let (initiates, size, count) = (role == "initiate", size.parse()?, count.parse()?);
    let window: usize = window.parse()?;
    let address = std::env::var("PEER_ADDRESS")?;
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = |direction: &str| -> Result<_> {
        let name = format!("peers/{address}/{direction}");
        Ok(node
            .service_builder(&name.as_str().try_into()?)
            .publish_subscribe::<[u8]>()
            .max_publishers(1)
            .max_subscribers(1)
            .history_size(0)
            .enable_safe_overflow(false)
            .subscriber_max_buffer_size(window)
            .subscriber_max_borrowed_samples(1)
            .open_or_create()?)
    };
    let (there, back) = (service("there")?, service("back")?);
    let (out, input) = if initiates { (&there, &back) } else { (&back, &there) };
    let publisher = out
        .publisher_builder()
        .initial_max_slice_len(size)
        .max_loaned_samples(1)
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()?;
    let subscriber = input.subscriber_builder().buffer_size(window).create()?;
    // Nothing is lost only once both subscribers are there.
    while out.dynamic_config().number_of_subscribers() == 0
        || input.dynamic_config().number_of_publishers() == 0
    {
        std::thread::yield_now();
    }
    publisher.update_connections()?;
    Peer {
        initiates,
        is_latency: test == "latency",
        size,
        warm_up: count / 10 + 1,
        count,
        window: window as u64,
        message: vec![7; size],
        publisher,
        subscriber,
    }
    .run()?;
    // The last messages are gone with their publisher.
    while input.dynamic_config().number_of_publishers() != 0 && !initiates {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
