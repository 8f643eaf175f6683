//! Limits at which the system refuses, or kills: each is an error that names the limit, or the
//! library works without the resource; and no call of the library ends the process. A role sets its
//! limit before it has a node.

use crate::support::*;
use hamlyn::protocol::{
    Client, Manager, PublishConfig, Publisher, Server, ServerConfig, StreamConfig, StreamReceiver,
};
use hamlyn::{Accept, Access, Node};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A reply that goes through a bulk ring, and another that does not need one.
const LONG_BYTES: usize = 8 << 20;

/// Lowers the soft limit alone, so that it can be raised again.
fn set(resource: Resource, current: Option<u64>) {
    setrlimit(resource, Rlimit { current, ..getrlimit(resource) }).unwrap();
}

/// KiB of memory that the process has, by the name of a line of its status.
fn kib_of(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether the process may lower limits for itself that hold for everybody but root.
fn become_nobody() -> bool {
    const NOBODY: u32 = 65_534;
    // SAFETY: numbers alone; of the whole process.
    unsafe { libc::setgroups(0, std::ptr::null()) == 0 && libc::setuid(NOBODY) == 0 }
}

/// Not a test: what the other processes do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    match role.name.as_str() {
        "connects_without_files" => {
            set(Resource::Fsize, Some(0));
            let mut node = Node::with_config(role.config()).unwrap();
            let error = node.connect("service", b"", LIMIT).unwrap_err().to_string();
            assert!(error.contains("ftruncate") && error.contains("RLIMIT_FSIZE"), "{error}");
            let manager = Manager::from_node(node).unwrap();
            let config = PublishConfig { sample_bytes_max: 1 << 20, ..PublishConfig::default() };
            let publisher = Publisher::new(&manager, config);
            let error = publisher.err().expect("there is no pool").to_string();
            assert!(error.contains("RLIMIT_FSIZE"), "{error}");
        }
        "serves_without_files" => {
            set(Resource::Fsize, Some(0));
            let mut node = Node::with_config(role.config()).unwrap();
            node.serve("server", Access::SameUser, Accept::Automatic(vec![])).unwrap();
            say("here");
            role.hear();
            set(Resource::Fsize, getrlimit(Resource::Fsize).maximum);
            say("raised");
            role.hear();
        }
        "replies_at_length" => {
            set(Resource::Fsize, Some(64 << 10));
            let manager = Manager::with_config(role.config()).unwrap();
            let server = Server::new(&manager, ServerConfig::default()).unwrap();
            server.serve("server", Access::SameUser).unwrap();
            say("here");
            server.receive(LIMIT).unwrap().reply(&vec![7; LONG_BYTES], LIMIT).unwrap();
            role.hear();
        }
        "few_threads" => {
            if !become_nobody() {
                return say("SKIPPED");
            }
            set(Resource::Nproc, Some(0));
            let error = Node::with_config(role.config()).err().expect("no threads").to_string();
            assert!(error.contains("clone") && error.contains("RLIMIT_NPROC"), "{error}");
            say("done");
        }
        "no_descriptors" => {
            set(Resource::Nofile, Some(3));
            let hard = Rlimit { current: Some(3), maximum: Some(3) };
            setrlimit(Resource::Nofile, hard).unwrap();
            let error = Node::with_config(role.config()).err().expect("no epoll").to_string();
            assert!(error.contains("RLIMIT_NOFILE"), "{error}");
        }
        "little_memory" => {
            let mut node = Node::with_config(role.config()).unwrap();
            for (resource, used) in [(Resource::As, "VmSize:"), (Resource::Data, "VmData:")] {
                let before = getrlimit(resource);
                // Room for the error's words, and not for the area.
                set(resource, Some(kib_of(used) * 1024 + (16 << 20)));
                let error = node.message_area(64 << 20).unwrap_err().to_string();
                setrlimit(resource, before).unwrap();
                assert!(error.contains("mmap") && error.contains("RLIMIT_AS"), "{error}");
            }
            node.message_area(64 << 20).unwrap();
        }
        "no_locked_memory" => {
            // Root may lock what it likes.
            if !become_nobody() {
                return say("SKIPPED");
            }
            set(Resource::Memlock, Some(0));
            let mut node = Node::with_config(role.config().mlock(true)).unwrap();
            let area = node.message_area(64 << 10).unwrap();
            let report = format!("{:?}", node.area_report(area).unwrap().locked);
            assert!(report.contains("mlock") && report.contains("RLIMIT_MEMLOCK"), "{report}");
            say("done");
        }
        "small_stacks" => {
            // New threads of the C library's that say no size get this one.
            set(Resource::Stack, Some(64 << 10));
            let manager = Manager::with_config(role.config()).unwrap();
            let mut stream = StreamReceiver::new(&manager, StreamConfig::default()).unwrap();
            stream.serve("own", Access::SameUser).unwrap();
            manager.start_progress().unwrap();
            let other = Manager::with_config(role.config()).unwrap();
            let mut sender = hamlyn::protocol::StreamSender::connect(&other, "own", LIMIT).unwrap();
            sender.send(&[1; 1000], LIMIT).unwrap();
            sender.flush(LIMIT).unwrap();
            assert_eq!(stream.receive(LIMIT).unwrap().len(), 1000);
        }
        other => panic!("no role {other}"),
    }
}

/// A process that plays `role` beside a service, and ends in peace.
fn plays(name: &str, settings: &[(&str, &str)]) {
    let dir = Dir::new(name, settings);
    let _station = Station::new(dir.config(), 64, 1).serve("service");
    Peer::start(name, &dir, "").end();
}

/// The same of a role that needs root first; the directory is everybody's then.
fn plays_as_nobody(name: &str) {
    let dir = Dir::new(name, &[]);
    let mut peer = Peer::start(name, &dir, "");
    if peer.says() == "SKIPPED" {
        skipped("only root can become another user");
    }
    peer.end();
}

#[test]
fn a_process_that_may_write_no_file_is_told_so_where_it_connects_or_publishes() {
    plays("connects_without_files", &[]);
}

#[test]
fn a_client_cannot_end_a_server_that_may_write_no_file() {
    let dir = Dir::new("serves_without_files", &[]);
    let mut server = Peer::start("serves_without_files", &dir, "");
    server.expect("here");
    let mut node = Node::with_config(dir.config()).unwrap();
    let error = node.connect("server", b"", LIMIT).unwrap_err().to_string();
    assert!(error.contains("refused") && error.contains("RLIMIT_FSIZE"), "{error}");
    server.tell("raise it");
    server.expect("raised");
    node.connect("server", b"", LIMIT).unwrap();
    server.end();
}

#[test]
fn a_server_that_may_write_no_long_file_replies_without_a_bulk_ring() {
    let dir = Dir::new("replies_at_length", &[("BULK_AFTER_BYTES", "0")]);
    let mut server = Peer::start("replies_at_length", &dir, "");
    server.expect("here");
    let manager = Manager::with_config(dir.config()).unwrap();
    let client = Client::connect(&manager, "server", LIMIT).unwrap();
    let reply = client.call(b"all of it", LIMIT).unwrap();
    assert!(reply.len() == LONG_BYTES && reply.iter().all(|byte| *byte == 7));
    server.end();
}

#[test]
fn a_process_that_may_have_no_thread_is_told_which_limit_says_so() {
    plays_as_nobody("few_threads");
}

#[test]
fn a_process_that_may_lock_no_memory_is_told_which_limit_says_so() {
    plays_as_nobody("no_locked_memory");
}

#[test]
fn a_process_that_may_open_nothing_is_told_which_limit_says_so() {
    plays("no_descriptors", &[]);
}

#[test]
fn a_process_that_gets_no_memory_is_told_which_limit_says_so() {
    plays("little_memory", &[]);
}

#[test]
fn a_small_limit_on_stacks_does_not_matter() {
    plays("small_stacks", &[]);
}
