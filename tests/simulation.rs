//! Whole simulated nodes, as the tests of a package of this workspace use them (feature
//! `simulation`): a layer's nodes meet, send in order, wait without a time limit, and hear of a
//! death, in simulated time that follows from a seed.

use hamlyn::config::WaitMode;
use hamlyn::node::CloseReason;
use hamlyn::simulation::{self, Ran, Rng};
use hamlyn::{Accept, Access, Config, Event, Node, SlotConfig, Ticket};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

const MESSAGES: u32 = 50;

fn node(dir: &Path, rng: &mut Rng) -> Node {
    let modes = [WaitMode::Polled, WaitMode::Adaptive, WaitMode::Blocking];
    let config = Config::default().dir(dir).shared_dir(dir.join("shared")).ring_bytes(4096u32);
    Node::with_config(config.wait_mode(modes[rng.below(3) as usize])).unwrap()
}

/// Sends messages of any length in order; process 2 may be killed meanwhile.
fn sender(dir: &Path, mut rng: Rng) {
    let mut node = node(dir, &mut rng);
    let link = node.connect("layer", b"", None).unwrap();
    let ticket = Ticket::from_bytes(node.greeting(link).unwrap()).unwrap().in_order();
    for number in 0..MESSAGES {
        let bytes = vec![number as u8; rng.below(600) as usize];
        node.send_fast(&ticket, &bytes, number, None).unwrap();
        if rng.below(4) == 0 {
            simulation::sleep(Duration::from_micros(rng.below(500)));
        }
    }
    node.close(None).unwrap();
}

/// Takes all of both senders, and hears how each ended. Returns that, by process.
fn receiver(dir: &Path, mut rng: Rng) -> Vec<(u32, CloseReason)> {
    let mut node = node(dir, &mut rng);
    let (area, queue) = (node.message_area(1024).unwrap(), node.notification_queue(256).unwrap());
    let slot = node.slot(SlotConfig::new(area, queue).credit(256)).unwrap();
    let ticket = node.fast_ticket(slot).unwrap().to_bytes();
    node.serve("layer", Access::SameUser, Accept::Automatic(ticket.to_vec())).unwrap();
    let mut next = std::collections::HashMap::new();
    let mut ended = Vec::new();
    while ended.len() < 2 {
        node.wait(None).unwrap();
        while let Some(message) = node.pop(queue).unwrap() {
            let next = next.entry(message.link).or_insert(0);
            assert_eq!(message.word, *next, "in order");
            *next += 1;
        }
        while let Some(event) = node.next_event() {
            if let Event::Closed { link, reason, .. } = event {
                ended.push((next.get(&link).copied().unwrap_or(0), reason));
            }
        }
    }
    ended
}

fn layer(seed: u64, dir: &Path, kills: bool) -> (Ran, Vec<(u32, CloseReason)>) {
    let mut rng = Rng::new(seed);
    let ended = Rc::new(RefCell::new(Vec::new()));
    let mut hosts: Vec<Box<dyn FnOnce()>> = Vec::new();
    let (of, path, own) = (ended.clone(), PathBuf::from(dir), Rng::new(rng.number()));
    hosts.push(Box::new(move || *of.borrow_mut() = receiver(&path, own)));
    for _ in 0..2 {
        let (path, own) = (PathBuf::from(dir), Rng::new(rng.number()));
        hosts.push(Box::new(move || sender(&path, own)));
    }
    let at_ns = 2_000_000 + rng.below(2_000_000);
    hosts.push(Box::new(move || {
        simulation::sleep(Duration::from_nanos(at_ns));
        simulation::stop(1, Duration::from_millis(1));
        if kills {
            simulation::kill(2);
        }
        simulation::yield_now();
        assert!(simulation::now_ns() >= at_ns);
    }));
    let ran = simulation::run(seed, hosts).expect("no wake-up was lost");
    let ended = ended.borrow().clone();
    (ran, ended)
}

fn all(kills: bool) -> Vec<(Ran, Vec<(u32, CloseReason)>)> {
    let base = tempfile::tempdir().unwrap();
    let one = |seed| {
        let dir = base.path().join(format!("{seed}"));
        std::fs::create_dir(&dir).unwrap();
        layer(seed, &dir, kills)
    };
    (1..=30).map(one).collect()
}

#[test]
fn messages_of_a_layer_arrive_in_order_and_the_same_seed_is_the_same_run() {
    let first = all(false);
    let whole = (MESSAGES, CloseReason::Closed);
    assert!(first.iter().all(|(_, ended)| *ended == [whole.clone(), whole.clone()]));
    assert_eq!(first, all(false));
}

#[test]
fn a_process_that_is_killed_ends_its_own_link_alone() {
    let mut killed = 0;
    for (_, ended) in all(true) {
        assert!(ended.contains(&(MESSAGES, CloseReason::Closed)), "{ended:?}");
        // In the simulation the other end sees a hang-up.
        killed += ended.iter().filter(|(_, reason)| *reason == CloseReason::HungUp).count();
    }
    assert!(killed > 5, "{killed} of 30 were killed while they sent");
}
