//! Many hosts, each a process in a network namespace of its own at one router, and each with a link
//! to every other: nothing fails, and a silent peer costs little.

use crate::net::Switch;
use crate::support::{Costs, LIMIT, Role, loud, module, say, until};
use hamlyn::Access;
use hamlyn::protocol::{Manager, TaggedConfig, TaggedReceiver, TaggedSender};
use std::process::{Command, Stdio};
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
    peers.iter_mut().for_each(|(peer, _)| peer.tell("rest"));
    let idle: Vec<usize> = peers.iter_mut().map(|(peer, _)| rests(&peer.says())).collect();
    // A result, as those in bench/results are.
    let (messages, most) = (links * rounds, idle.iter().max().unwrap());
    let parts = [
        format!(r#""what": "hosts", "hosts": {size}, "links": {links}, "linked_s": {linked:.3}"#),
        format!(r#""messages": {messages}, "bytes": {BYTES}, "sent_s": {sent:.3}"#),
        format!(r#""idle_peer_bytes": {}, "idle_peer_bytes_most": {most}"#, idle[0]),
        format!(r#""machine": "{}", "kernel": "{}""#, machine(), said_by("uname -r")),
        format!(r#""compiler": "{}""#, said_by("rustc -V")),
        format!(r#""commit": "{}""#, said_by("git describe --always --dirty --abbrev=12")),
    ];
    println!("{{{}}}", parts.join(", "));
    for (peer, _) in peers {
        peer.end();
    }
}

/// A host's report about an idle peer.
fn rests(said: &str) -> usize {
    let bytes = said.strip_prefix("rests, bytes of a peer: ");
    bytes.unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}

/// A command's first line; nothing where there is none.
fn said_by(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).stderr(Stdio::null()).output();
    let text =
        output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into());
    text.lines().next().unwrap_or_default().replace(['"', '\\'], "")
}

fn machine() -> String {
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let value = all.lines().find_map(|line| line.strip_prefix(name)?.split_once(": "));
        value.map_or("", |(_, value)| value).replace(['"', '\\'], "")
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, family {}, {cores} cores", field("model name"), field("cpu family"))
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
    let idle = cost();
    if rank == 0 {
        loud(&format!(
            "bytes of a peer on the heap and in the kernel's queues: {busy:?}, idle {idle:?}"
        ));
    }
    say(&format!("rests, bytes of a peer: {}", idle.0 + idle.1));
    role.wait_for("");
}

/// Messages of one come in their order, each once.
fn take(got: &mut [usize], tag: usize, rounds: usize) {
    assert_eq!(tag % rounds, got[tag / rounds]);
    got[tag / rounds] += 1;
}

/// The kernel's memory for this process's sockets: received and unsent bytes, with the room that it
/// keeps for more.
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
