//! Many hosts, each a process in a network namespace of its own at one switch, and each with a link to
//! every other: nothing fails, and a peer that says nothing costs little.

use crate::net::Switch;
use crate::support::{Costs, LIMIT, Role, loud, module, say, until};
use hamlyn::Access;
use hamlyn::protocol::{Manager, TaggedConfig, TaggedReceiver, TaggedSender};
use std::time::Instant;

/// Of an idle peer: two links, one of each direction; with what the end points know of one another,
/// and what the kernel holds for their sockets.
const PEER_BYTES_MAX: usize = 64 << 10;
/// Bytes of a message.
const BYTES: usize = 16;

/// Hosts, and messages from each to each.
fn shape() -> (usize, usize) {
    match std::env::var("HAMLYN_TEST_ROUNDS") {
        Ok(_) => (64, 200),
        Err(_) => (12, 20),
    }
}

#[test]
fn all_hosts_send_to_all_others_and_an_idle_one_costs_little() {
    let (size, rounds) = shape();
    let Some(switch) = Switch::new(size) else { return };
    let mut peers: Vec<_> = (0..size)
        .map(|i| {
            let listen = format!("{}:7000", switch.address(i));
            let settings = [("LISTEN", listen.as_str()), ("HOST_TIMEOUT_MS", "10000")];
            switch.peer(i, "mesh", &format!("{i} {size} {rounds}"), &settings)
        })
        .collect();
    for (peer, _) in &mut peers {
        peer.expect("listens");
    }
    let step = |peers: &mut Vec<(crate::support::Peer, _)>, tell: &str, done: &str| {
        let start = Instant::now();
        peers.iter_mut().for_each(|(peer, _)| peer.tell(tell));
        peers.iter_mut().for_each(|(peer, _)| peer.expect(done));
        start.elapsed().as_secs_f64()
    };
    let linked = step(&mut peers, "link", "linked");
    let sent = step(&mut peers, "send", "got all");
    let links = size * (size - 1);
    loud(&format!(
        "{size} hosts: {links} links in {linked:.2} s; {} messages in {sent:.2} s",
        links * rounds
    ));
    step(&mut peers, "rest", "rests");
    for (peer, _) in peers {
        peer.end();
    }
}

fn mesh(role: &Role) {
    let [rank, size, rounds] = [0, 1, 2].map(|i| role.number(i) as usize);
    let manager = Manager::with_config(role.config()).unwrap();
    let mut config = TaggedConfig::new(size * BYTES);
    // An eighth of the places is for identities that have none, and all of these have one secret.
    config.senders_max = 2 * size as u32;
    let mut receiver = TaggedReceiver::new(&manager, config).unwrap();
    receiver.serve("mesh", Access::SameUser).unwrap();
    let alone = Costs::now().heap_bytes;
    say("listens");
    manager.start_progress().unwrap();
    role.wait_for("link");
    let others = (1..size).map(|step| (rank + step) % size);
    let connect = |to: usize| {
        let name = format!("hamlyn://10.78.{}.{}:7000/mesh", to / 200, to % 200 + 1);
        TaggedSender::connect(&manager, &name, LIMIT).unwrap()
    };
    let mut senders: Vec<_> = others.map(connect).collect();
    until("all have connected", || receiver.senders() == size - 1);
    say("linked");
    role.wait_for("send");
    let mut got = vec![0; size];
    for round in 0..rounds {
        for sender in &mut senders {
            let tag = (rank * rounds + round) as u32;
            sender.send((rank * BYTES) as u64, &[rank as u8; BYTES], tag, LIMIT).unwrap();
        }
        // Not faster than the slowest by more than a few, whose queue would be full.
        while let Some(tag) = receiver.try_get_tag().unwrap() {
            take(&mut got, tag.tag as usize, rounds);
        }
    }
    while got.iter().sum::<usize>() < (size - 1) * rounds {
        take(&mut got, receiver.get_tag(LIMIT).unwrap().tag as usize, rounds);
    }
    for (from, got) in got.iter().enumerate() {
        assert_eq!(*got, if from == rank { 0 } else { rounds }, "messages of {from}");
        let mut bytes = [0; BYTES];
        receiver.read(from * BYTES, &mut bytes).unwrap();
        assert_eq!(bytes, [if from == rank { 0 } else { from as u8 }; BYTES]);
    }
    assert_eq!(receiver.dropped(), 0);
    say("got all");
    role.wait_for("rest");
    let cost = || {
        let heap = Costs::now().heap_bytes.saturating_sub(alone);
        (heap / (size - 1), kernel_bytes() / (size - 1))
    };
    let busy = cost();
    until("an idle peer costs little", || cost().0 + cost().1 <= PEER_BYTES_MAX);
    if rank == 0 {
        let idle = cost();
        loud(&format!(
            "bytes of a peer on the heap and in the kernel's queues: {busy:?}, idle {idle:?}"
        ));
    }
    say("rests");
    role.wait_for("");
}

/// Messages of one come in their order, each once.
fn take(got: &mut [usize], tag: usize, rounds: usize) {
    assert_eq!(tag % rounds, got[tag / rounds]);
    got[tag / rounds] += 1;
}

/// What the kernel holds for this process's sockets: what has come and what has yet to leave, with the
/// room that it keeps for more.
fn kernel_bytes() -> usize {
    let mut sum = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let mut numbers = [0u32; 9];
        let mut length = size_of_val(&numbers) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes of numbers.
        let rc = unsafe {
            let to = numbers.as_mut_ptr().cast();
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, to, &mut length)
        };
        if rc == 0 {
            // Of receiving, of sending, set aside.
            sum += (numbers[0] + numbers[2] + numbers[4]) as usize;
        }
    }
    sum
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    match role.name.as_str() {
        "mesh" => mesh(&role),
        name => loud(&format!("no role of {} is called {name}", module())),
    }
}
