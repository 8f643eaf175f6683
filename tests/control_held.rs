//! Items that wait for the application count against their user: links that come and go while a
//! program makes no calls, their memory, descriptors and events.
#![cfg(feature = "os")]

#[path = "control_help/attackers.rs"]
mod attackers;
mod control_help;
mod support;

use attackers::*;
use control_help::{
    ByHand, RING, THEIR_RING, expect_word, hello_of, pass_with, receive, ring_file, ring_offer,
    say as speak, send, stranger, take, take_their_ring,
};
use hamlyn::control::frame::{Frame, Hello, Memory, MemoryWord, Purpose, Welcome};
use hamlyn::control::{Accept, Access, LinkFeatures, Reason};
use hamlyn::node::{CloseReason, Event};
use hamlyn::os::aperture::{ExportLimits, Ledger, Owned};
use hamlyn::os::memory::{Region, region_bytes};
use hamlyn::os::socket;
use hamlyn::{ApertureAccess, Config, Node};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use support::*;

/// A link by hand, whose rings have so many bytes; or why there is none.
fn try_link(at: &PathBuf, ring_bytes: u32) -> Result<ByHand, Reason> {
    let features = LinkFeatures::all().bits();
    let fd = stranger(at);
    send(&fd, &Frame::Hello(Hello { features, ring_bytes, ..hello_of(Purpose::Link) }));
    let welcome: Welcome = match receive(&fd) {
        Some((Frame::Welcome(welcome), _)) => welcome,
        Some((Frame::Refused { reason, .. }, _)) => return Err(reason),
        other => panic!("{other:?}"),
    };
    let wake = stranger(at);
    send(&wake, &Frame::Hello(Hello { cookie: welcome.cookie, ..hello_of(Purpose::Wake) }));
    speak(&fd, RING, ring_offer(welcome.client_ring_bytes));
    expect_word(&fd, RING, take(welcome.client_ring_bytes));
    let (outgoing, file) = ring_file(welcome.client_ring_bytes);
    pass_with(&fd, RING, &[&file]).unwrap();
    expect_word(&fd, RING, MemoryWord::Held);
    expect_word(&fd, THEIR_RING, ring_offer(welcome.server_ring_bytes));
    let file = take_their_ring(&fd, &welcome);
    let size = region_bytes(welcome.server_ring_bytes as usize);
    let incoming = Region::map_read_only(&file, size).unwrap();
    incoming.fill_by_reading().unwrap();
    speak(&fd, THEIR_RING, MemoryWord::Held);
    assert!(matches!(receive(&fd), Some((Frame::Ready, _))));
    Ok(ByHand { fd, wake, outgoing, incoming })
}

/// Offers, passes and revokes apertures over a link, until no more are taken; how many were.
fn come_and_go(link: &ByHand) -> usize {
    let access = ApertureAccess::ReadWrite;
    for i in 0.. {
        let number = 2 * i + 1;
        let memory = Memory::Aperture(number);
        speak(&link.fd, memory, MemoryWord::Offer { bytes: 4096, access });
        match receive(&link.fd) {
            Some((Frame::Memory { word: MemoryWord::Take { .. }, .. }, _)) => {}
            _ => return i as usize,
        }
        let limits = ExportLimits { all: 1 << 20, user: 1 << 20 };
        let ledger = Arc::new(Ledger::default());
        let (owned, file) =
            Owned::make(access, ledger.reserve(4096, None, limits).unwrap()).unwrap();
        pass_with(&link.fd, memory, &[&file]).unwrap();
        expect_word(&link.fd, memory, MemoryWord::Held);
        send(&link.fd, &Frame::ApertureRevoked { number });
        drop(owned);
    }
    unreachable!("a process holds as many as it may")
}

/// Not a test: what the attackers do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let dir = PathBuf::from(&role.args[0]);
    let at = socket_of(&dir);
    match role.name.as_str() {
        // Makes and ends links, until it is refused or has made so many.
        "comes-and-goes" => {
            become_user(&role);
            let (most, ring_bytes) = (role.number(2), role.number(3) as u32);
            loop {
                let mut made = 0;
                let refused = loop {
                    match try_link(&at, ring_bytes) {
                        Ok(link) => send(&link.fd, &Frame::Bye),
                        Err(reason) => break Some(reason),
                    }
                    made += 1;
                    if made == most {
                        break None;
                    }
                };
                say(&match refused {
                    Some(reason) => format!("{made} {reason}"),
                    None => format!("{made}"),
                });
                if role.hear().as_deref() != Some("again") {
                    return;
                }
            }
        }
        "keeps-hellos" => {
            become_user(&role);
            let kept: Vec<_> = (0..role.number(2)).map(|_| stranger(&at)).collect();
            std::thread::sleep(Duration::from_millis(300));
            say("kept");
            role.wait_for("end");
            drop(kept);
        }
        "apertures" => {
            become_user(&role);
            let links: Vec<_> = (0..role.number(2)).map(|_| try_link(&at, 4096).unwrap()).collect();
            say("linked");
            role.wait_for("go");
            let made: usize = links.iter().map(come_and_go).sum();
            say(&format!("{made}"));
            role.wait_for("end");
        }
        // An honest client, which sends nothing and is killed.
        "is-killed" => {
            let mut node = Node::with_config(role.config()).unwrap();
            node.connect("0@x", b"honest", Some(LONG)).unwrap();
            say("linked");
            role.wait_for("die");
            die();
        }
        // An honest client, which sends one message and ends.
        "sends-and-ends" => {
            let mut node = Node::with_config(role.config()).unwrap();
            let link = node.connect("0@x", b"", Some(LONG)).unwrap();
            let ticket = hamlyn::Ticket::from_bytes(node.greeting(link).unwrap()).unwrap();
            node.send(&ticket, &role.number(1).to_le_bytes(), b"", LIMIT).unwrap();
            node.close(LIMIT).unwrap();
        }
        other => panic!("no role is called {other}"),
    }
}

fn serving(config: Config, greeting: Vec<u8>) -> Node {
    let mut node = Node::with_config(config).unwrap();
    node.serve("x", Access::Anyone, Accept::Automatic(greeting)).unwrap();
    node
}

fn count(node: &Node, name: &str) -> u64 {
    node.counters().iter().find(|row| row.0 == name).unwrap().1
}

#[test]
fn links_that_have_come_and_gone_hold_no_memory_beyond_their_users_quota() {
    alone("links_that_have_come_and_gone_hold_no_memory_beyond_their_users_quota", || {
        let Some(dir) = shared("held-bytes") else { return };
        let config = dir.config_with(&[("BYTES_PER_USER_MAX", "16777216")]);
        let mut node = serving(config, vec![]);
        let before = Costs::now();
        // The program makes no calls meanwhile.
        let mut peer = Peer::start(
            "comes-and-goes",
            &dir,
            &format!("{} {ATTACKER} 300 1048576", dir.path.display()),
        );
        let said = peer.says();
        let (made, why) = said.split_once(' ').expect("it was never refused");
        assert_eq!(why, Reason::Bytes.to_string());
        assert!(made.parse::<u32>().unwrap() >= 8, "{said}");
        let held = Costs::now().shared_bytes - before.shared_bytes;
        assert!(held <= 16 << 20, "{held} bytes of one user's rings");
        // Others are served, and so is this user as soon as the program has taken what it was told.
        still_serves(&dir.config());
        while count(&node, "links_closed") < 8 {
            node.poll().unwrap();
        }
        while node.next_event().is_some() {}
        peer.tell("again");
        let again = peer.says();
        assert!(again.split(' ').next().unwrap().parse::<u32>().unwrap() >= 8, "{again}");
        peer.end();
    });
}

#[test]
fn links_that_have_come_and_gone_leave_descriptors_to_the_application() {
    alone("links_that_have_come_and_gone_leave_descriptors_to_the_application", || {
        let Some(dir) = shared("held-descriptors") else { return };
        let few = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
        // SAFETY: a structure that is alive.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
        let node = serving(dir.config(), vec![]);
        let user = |i: u32, rest: &str| format!("{} {} {rest}", dir.path.display(), ATTACKER + i);
        let mut peers: Vec<_> = (0..3)
            .map(|i| {
                let mut peer = Peer::start("comes-and-goes", &dir, &user(i, "420 4096"));
                let said = peer.says();
                assert!(said.ends_with(&Reason::Links.to_string()), "{said}");
                peer
            })
            .collect();
        let mut hellos = Peer::start("keeps-hellos", &dir, &user(4, "130"));
        hellos.expect("kept");
        let files: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null")).collect();
        let failed = files.iter().filter(|file| file.is_err()).count();
        assert_eq!(failed, 0, "the application's own descriptors are used up");
        hellos.tell("end");
        peers.push(hellos);
        peers.into_iter().for_each(Peer::end);
        drop(node);
    });
}

/// Memory that the other end pays for may be swapped out by its control group until it is locked.
#[test]
fn all_that_a_link_writes_is_locked_in_memory_before_the_link_is_there() {
    alone("all_that_a_link_writes_is_locked_in_memory_before_the_link_is_there", || {
        let dir = Dir::new("locked", &[("RING_BYTES", "65536")]);
        let mut server = Node::with_config(dir.config()).unwrap();
        server.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
        let mut client = Node::with_config(dir.config()).unwrap();
        client.connect("x", b"", Some(LONG)).unwrap();
        connected(&mut server);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut rings = 0;
        let mut lines = maps.lines();
        while let Some(line) = lines.find(|line| line.contains("/memfd:hamlyn")) {
            let mut row = |name: &str| lines.by_ref().find(|row| row.starts_with(name)).unwrap();
            let kib = |row: &str| row.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
            let (size, there) = (kib(row("Size:")), kib(row("Rss:")));
            let is_locked = row("VmFlags:").contains(" lo");
            let unlocked = hamlyn::os::memory::memory_unlocked();
            assert!(there == size && (is_locked || unlocked > 0), "{line}: {there} KiB");
            rings += u32::from(size >= 64 && line.contains(" rw-s "));
        }
        assert_eq!(rings, 2, "each end writes one\n{maps}");
    });
}

#[test]
fn a_peer_that_takes_no_wake_ups_has_few_of_them_kept_for_it() {
    let dir = control_help::Dir::new("held-wakes");
    let (_server, theirs, _client, ours) = control_help::linked(&dir.config());
    // Each waiting event is charged to its sender.
    let [theirs, ours] = [&theirs, &ours].map(|link| link.way.wake().unwrap());
    for (wake, other) in [(theirs, ours), (ours, theirs)] {
        let sent = (0..1000).take_while(|_| socket::send(wake, &[1], &[]).is_ok()).count();
        assert!((1..20).contains(&sent), "{sent}");
        // It is woken all the same, and again when it has taken what was sent.
        let mut buffer = [0; 8];
        let taken = (0..1000).take_while(|_| {
            socket::receive(other, &mut buffer).is_ok_and(|received| received.bytes == 1)
        });
        assert_eq!(taken.count(), sent);
        socket::send(wake, &[1], &[]).unwrap();
    }
}

/// However long the program makes no call: what they sent is there when it does.
#[test]
fn processes_that_send_and_end_while_nobody_looks_lose_nothing() {
    let Some(dir) = shared("held-sent") else { return };
    let mut node = Node::with_config(dir.config()).unwrap();
    let area = node.message_area(4096).unwrap();
    let queue = node.notification_queue(64).unwrap();
    let slot = node.slot(hamlyn::SlotConfig::new(area, queue).credit(64)).unwrap();
    let ticket = node.fast_ticket(slot).unwrap();
    let greeting = ticket.to_bytes().to_vec();
    node.serve("x", Access::Anyone, Accept::Automatic(greeting)).unwrap();
    let peers: Vec<_> = (0..12)
        .map(|i| Peer::start("sends-and-ends", &dir, &format!("{} {i}", dir.path.display())))
        .collect();
    peers.into_iter().for_each(Peer::end);
    until("all have ended here", || count(&node, "control.closed_graceful") == 12);
    for _ in 0..12 {
        node.recv(queue, LIMIT).unwrap();
    }
}

#[test]
fn the_death_of_a_peer_is_told_whatever_strangers_make_happen_meanwhile() {
    let Some(dir) = shared("held-events") else { return };
    let mut node = serving(dir.config(), vec![]);
    let mut honest = Peer::start("is-killed", &dir, &dir.path.display().to_string());
    honest.expect("linked");
    let mut peers: Vec<_> = (0..2)
        .map(|i| {
            Peer::start("apertures", &dir, &format!("{} {} 18", dir.path.display(), ATTACKER + i))
        })
        .collect();
    for peer in &mut peers {
        peer.expect("linked");
    }
    node.poll().unwrap();
    let mut links = Vec::new();
    while let Some(event) = node.next_event() {
        if let Event::Connected { link, .. } = event {
            links.push(link);
        }
    }
    assert_eq!(links.len(), 37);
    let theirs = links.iter().find(|link| node.peer(**link).unwrap().uid == Some(0));
    let theirs = *theirs.unwrap();
    // From here on the program is busy with something else, for a while.
    honest.tell("die");
    until("it is known to have died", || count(&node, "control.closed_died") == 1);
    let mut made = 0;
    for peer in &mut peers {
        peer.tell("go");
        made += peer.says().parse::<usize>().unwrap();
    }
    assert!(2 * made > 4096, "{made} apertures came and went");
    node.poll().unwrap();
    let mut ends = Vec::new();
    while let Some(event) = node.next_event() {
        if let Event::Closed { link, reason, .. } = event {
            ends.push((link, reason));
        }
    }
    assert_eq!(ends, [(theirs, CloseReason::Died)]);
    for mut peer in peers {
        peer.tell("end");
        peer.end();
    }
}
