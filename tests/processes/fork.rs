//! A forked child and its parent's node: every call is an error in the child, and nothing that the
//! child does is noticed by the parent or its peers.

use crate::support::*;
use hamlyn::control::{Accept, AcceptError, Access, RequestId};
use hamlyn::node::{ConnectError, NodeReceiveError, NodeSendError, OfferError};
use hamlyn::protocol::Manager;
use hamlyn::{LinkId, MetadataIndex, Node, Piece, SlotConfig, Ticket};
use std::time::Duration;

/// Not a test: what the other processes do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let station = Station::new(role.config(), 4096, 1);
    match role.name.as_str() {
        "friend" => echo(station.serve("friend"), "parent"),
        "visitor" => {
            let mut me = station;
            let (_, ticket) = me.connect("parent");
            me.node.send(&ticket, b"a visit", b"", LIMIT).unwrap();
            me.node.close(LIMIT).unwrap();
        }
        other => panic!("no role {other}"),
    }
}

/// Runs `child` in a forked child; says how it ended.
fn forked(child: impl FnOnce()) -> i32 {
    // SAFETY: the child has this thread alone, and ends with `_exit`. It allocates, which the C
    // library allows after a fork.
    match unsafe { libc::fork() } {
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the process.
            unsafe { libc::_exit(if result.is_ok() { 0 } else { 1 }) }
        }
        pid => {
            let mut status = -1;
            // SAFETY: waits for the child just made, into a live integer.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        }
    }
}

struct Parent {
    station: Station,
    friend: Peer,
    to_friend: Ticket,
    reply: Ticket,
    replies: hamlyn::QueueId,
    another: LinkId,
    dir: Dir,
}

fn parent(name: &str) -> Parent {
    let dir = Dir::new(name, &[("RING_BYTES", "512")]);
    let mut station = Station::new(dir.config(), 4096, 4).serve("parent");
    let node = &mut station.node;
    let area = node.message_area(64).unwrap();
    let replies = node.notification_queue(1).unwrap();
    let slot = node.slot(SlotConfig::new(area, replies)).unwrap();
    let reply = node.ticket(slot, MetadataIndex(0)).unwrap();
    let friend = Peer::start("friend", &dir, "");
    let link = connected(node);
    let to_friend = ticket_of(node, link);
    let another = node.connect("friend", b"", Some(LONG)).unwrap();
    Parent { station, friend, to_friend, reply, replies, another, dir }
}

impl Parent {
    /// All that the parent had works: both ways, asleep, over another link, and its name.
    fn lives(&mut self) {
        let node = &mut self.station.node;
        for text in [b"awake !!", b"asleep !"] {
            node.send(&self.to_friend, text, &self.reply.to_bytes(), LIMIT).unwrap();
            node.recv(self.replies, LIMIT).unwrap();
            self.friend.fall_asleep();
        }
        let reply = self.reply.to_bytes();
        node.send_over(self.another, &self.to_friend, b"another!", &reply, LIMIT).unwrap();
        node.recv(self.replies, LIMIT).unwrap();
        let visitor = Peer::start("visitor", &self.dir, "");
        self.station.recv();
        visitor.end();
        let node = &mut self.station.node;
        until_node(node, "the visitor has left", |node| node.links().count() == 2);
    }
}

#[test]
fn every_call_of_a_forked_child_is_an_error_and_harms_nobody() {
    alone("every_call_of_a_forked_child_is_an_error_and_harms_nobody", || {
        let mut p = parent("forked");
        p.lives();
        let before = Costs::now();
        let (ticket, queue) = (p.to_friend, p.station.queue);
        let terminus = p.station.node.primary();
        let tag = p.station.node.send_buffer(terminus, 64).unwrap();
        let links: Vec<_> = p.station.node.links().collect();
        let status = forked(|| {
            let node = &mut p.station.node;
            macro_rules! forked {
                ($call:expr, $error:pat) => {
                    match $call {
                        Err($error) => {}
                        other => panic!("{}: {:?}", stringify!($call), other.map(drop)),
                    }
                };
            }
            forked!(node.poll(), hamlyn::node::Forked);
            forked!(node.try_recv(queue), NodeReceiveError::Forked(_));
            forked!(node.recv(queue, None), NodeReceiveError::Forked(_));
            forked!(node.wait(None), NodeReceiveError::Forked(_));
            forked!(node.prepare_to_wait(), hamlyn::node::Forked);
            forked!(node.try_send(&ticket, b"x", b""), NodeSendError::Forked(_));
            forked!(node.try_send_on(terminus, &ticket, b"x", b""), NodeSendError::Forked(_));
            forked!(node.try_send_fast(&ticket, b"x", 1), NodeSendError::Forked(_));
            forked!(node.send(&ticket, &[0; 1000], b"", None), NodeSendError::Forked(_));
            forked!(node.send_on(terminus, &ticket, b"x", b"", None), NodeSendError::Forked(_));
            forked!(node.send_fast(&ticket, b"x", 1, None), NodeSendError::Forked(_));
            let piece = Piece { tag, offset: 0, length: 8 };
            forked!(node.post_send(terminus, &ticket, &[piece], b""), NodeSendError::Forked(_));
            forked!(node.flush(None), NodeSendError::Forked(_));
            forked!(node.connect("friend", b"", Some(LONG)), ConnectError::Forked);
            let served = node.serve("child", Access::SameUser, Accept::Ask);
            forked!(served, OfferError::Serve(hamlyn::control::ServeError::Forked));
            forked!(node.accept(RequestId(1), b""), AcceptError::Forked);
            forked!(node.refuse(RequestId(1), ""), AcceptError::Forked);
            assert!(node.run_housekeeping(Some(Duration::ZERO)).is_err());
            assert!(!node.stop_serving("parent"), "the name is the parent's");
            for link in &links {
                assert!(node.disconnect(*link).is_err(), "the link is the parent's");
            }
            while node.next_event().is_some() {}
            forked!(node.send_over(p.another, &ticket, b"x", b"", None), NodeSendError::Forked(_));
        });
        assert_eq!(status, 0, "how the child ended");
        p.lives();
        // The child's copy is dropped, and closed; the child's own memory stays whole.
        let Parent { station, friend, to_friend, reply, replies, another, dir } = p;
        let mut kept = Some(station);
        let status = forked(|| {
            // Where the parent has its rings, the child may have something else by now.
            let mine: Vec<Vec<u8>> = (0..64).map(|i| vec![i; 200_000]).collect();
            let station = kept.take().unwrap();
            assert!(matches!(station.node.close(None), Err(NodeSendError::Forked(_))));
            assert!(mine.iter().enumerate().all(|(i, block)| block.iter().all(|b| *b == i as u8)));
        });
        assert_eq!(status, 0, "how the child ended");
        let status = forked(|| drop(kept.take()));
        assert_eq!(status, 0, "how the child ended");
        let station = kept.unwrap();
        let mut p = Parent { station, friend, to_friend, reply, replies, another, dir };
        p.lives();
        let now = Costs::now();
        assert_eq!(now.descriptors, before.descriptors);
        assert_eq!(now.shared_mappings, before.shared_mappings);
        assert!(p.station.node.next_event().is_some(), "the visitors");
    });
}

#[test]
fn a_forked_child_makes_a_node_of_its_own() {
    alone("a_forked_child_makes_a_node_of_its_own", || {
        let mut p = parent("own");
        let config = p.dir.config();
        let status = forked(|| {
            let mut node = Node::with_config(config).unwrap();
            assert_ne!(node.id(), p.station.node.id());
            let link = node.connect("parent", b"", Some(LONG)).unwrap();
            let ticket = ticket_of(&node, link);
            node.send(&ticket, b"from the child", b"", LIMIT).unwrap();
            let _ = node.serve("child", Access::SameUser, Accept::Automatic(Vec::new()));
            node.close(LIMIT).unwrap();
        });
        assert_eq!(status, 0, "how the child ended");
        p.station.recv();
        assert_eq!(p.station.bytes()[..14], *b"from the child");
        p.lives();
    });
}

#[test]
fn a_forked_child_that_drops_its_parents_node_touches_nothing_of_its_own() {
    alone("a_forked_child_that_drops_its_parents_node_touches_nothing_of_its_own", || {
        let p = parent("dropped");
        let Parent { station, friend, to_friend, reply, replies, another, dir } = p;
        let shared = Manager::from_node(station.node).unwrap();
        let mut kept = Some(shared);
        let status = forked(|| {
            // As daemons do, and test runners.
            let highest = descriptors().into_iter().max().unwrap();
            // SAFETY: numbers alone. What is there is the parent's as well, and not used here.
            unsafe { libc::syscall(libc::SYS_close_range, 3, highest, 0) };
            let files: Vec<std::fs::File> =
                (3..=highest).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
            // The C library may give these threads the memory of the parent's.
            let (say, said) = std::sync::mpsc::channel::<()>();
            let said = std::sync::Arc::new(std::sync::Mutex::new(said));
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let said = said.clone();
                    std::thread::spawn(move || {
                        let _ = said.lock().unwrap().recv();
                    })
                })
                .collect();
            let before = descriptors();
            drop(kept.take());
            assert_eq!(descriptors(), before);
            assert!(files.iter().all(|file| file.metadata().is_ok()));
            drop(say);
            // A thread that was detached cannot be joined.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(status, 0, "how the child ended");
        let shared = kept.unwrap();
        let mut node = shared.lock();
        node.send(&to_friend, b"it lives", &reply.to_bytes(), LIMIT).unwrap();
        node.recv(replies, LIMIT).unwrap();
        assert!(node.links().any(|link| link == another));
        drop((node, friend, dir));
    });
}

/// Numbers of all that this process has open but the list itself.
fn descriptors() -> Vec<u32> {
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.unwrap().file_name();
        name.to_str().unwrap().parse().unwrap()
    };
    let mut found: Vec<u32> = std::fs::read_dir("/proc/self/fd").unwrap().map(number).collect();
    // Closed by now.
    found.retain(|number| std::path::Path::new(&format!("/proc/self/fd/{number}")).exists());
    found.sort_unstable();
    found
}
