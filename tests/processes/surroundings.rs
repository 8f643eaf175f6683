//! Attributes that a process inherits, or changes later: its user, its file and signal masks, its
//! descriptors, its directory. The library works, or the error has the remedy; and the remains of
//! such a process harm no others.

use crate::support::*;
use hamlyn::protocol::{Client, Manager, Server, ServerConfig};
use hamlyn::{Accept, Access, Node};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65_534;

/// Not a test: what the other processes do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    match role.name.as_str() {
        "becomes_another" => {
            let manager = Manager::with_config(role.config()).unwrap();
            let server = Server::new(&manager, ServerConfig::default()).unwrap();
            let before = server.seed().unwrap();
            give_to_nobody(role.config().dir.as_ref().unwrap());
            // SAFETY: numbers alone; of the whole process.
            let is_another = unsafe {
                libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setgid(NOBODY) == 0
                    && libc::setuid(NOBODY) == 0
            };
            assert!(is_another);
            let accept = Accept::Automatic(vec![]);
            manager.lock().serve("server", Access::SameUser, accept).unwrap();
            manager.start_progress().unwrap();
            say(&server.seed().unwrap().to_string());
            say(&before.to_string());
            role.hear();
        }
        "grows_as" => {
            // SAFETY: a number alone; of the whole process.
            assert!(unsafe { libc::setuid(NOBODY) } == 0);
            let manager = Manager::with_config(role.config()).unwrap();
            let seed = role.args[0].parse().unwrap();
            Client::grow(&manager, &seed, LIMIT).unwrap();
        }
        "connects_as" => {
            let uid = role.number(0) as u32;
            // SAFETY: numbers alone; of the whole process.
            assert!(uid == 0 || unsafe { libc::setuid(uid) } == 0);
            // It is the library's own user check that is to speak, not the directory's.
            let config = role.config().wait_for_names(false);
            let mut node = Node::with_config(config).unwrap();
            match node.connect("server", b"", LIMIT) {
                Ok(_) => say("linked"),
                Err(e) => say(&e.to_string()),
            }
        }
        "masks_everything" => {
            // SAFETY: a number alone; a set that is filled before it is read.
            unsafe {
                libc::umask(0o777);
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            }
            let mut node = Node::with_config(role.config()).unwrap();
            node.serve("server", Access::SameUser, Accept::Automatic(vec![])).unwrap();
            say("here");
            role.hear();
            // It leaves its files for later processes: it kills itself.
            std::process::abort();
        }
        "without_a_directory" => {
            let gone = PathBuf::from(&role.args[0]);
            std::fs::create_dir(&gone).unwrap();
            std::env::set_current_dir(&gone).unwrap();
            std::fs::remove_dir(&gone).unwrap();
            lives_alone(&role);
        }
        "without_standard_descriptors" => {
            // SAFETY: of this process, which uses them no more.
            unsafe {
                for number in 0..3 {
                    libc::close(number);
                }
            }
            let dispositions = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGHUP, libc::SIGALRM];
            // SAFETY: signals are ignored from now on, by all threads.
            dispositions.iter().for_each(|signal| unsafe {
                libc::signal(*signal, libc::SIG_IGN);
            });
            lives_alone(&role);
        }
        "loses_its_descriptors" => loses_its_descriptors(&role),
        other => panic!("no role {other}"),
    }
}

/// Two nodes of this process, and a message.
fn lives_alone(role: &Role) {
    let mut server = Station::new(role.config(), 64, 1).serve("own");
    let mut client = Station::new(role.config(), 64, 1);
    let (_, ticket) = client.connect("own");
    client.node.send(&ticket, b"works", b"", LIMIT).unwrap();
    server.recv();
    client.node.close(LIMIT).unwrap();
}

/// A process that closes everything, as daemons do, or puts other things in the place, and then closes
/// its node: within the limit, and without touching what is there now.
fn loses_its_descriptors(role: &Role) {
    let limit = Duration::from_secs(2);
    let mut server = Station::new(role.config(), 64, 1).serve("own");
    let mut client = Station::new(role.config(), 64, 1);
    client.connect("own");
    until_node(&mut server.node, "there is a link", |node| node.links().count() == 1);
    let highest = std::fs::read_dir("/proc/self/fd").unwrap().count() as i32 + 32;
    // (One that is only closed ends a debug build, in which Rust's library looks.)
    let replaced_by: std::os::fd::OwnedFd = match role.args[0].as_str() {
        "files" => std::fs::File::open("/dev/null").unwrap().into(),
        "events" => rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap(),
        other => panic!("{other}"),
    };
    let keep = std::os::fd::AsRawFd::as_raw_fd(&replaced_by);
    // SAFETY: what is closed here is not used any more by this process, but by the library, which must
    // bear it: that is what is tried. The duplicates are forgotten.
    unsafe {
        for number in (3..highest).filter(|number| *number != keep) {
            libc::dup2(keep, number);
        }
    }
    for node in [client.node, server.node] {
        let begun = Instant::now();
        let _ = node.close(Some(limit));
        // The test's alarm ends a process that hangs; this says which call it was.
        assert!(begun.elapsed() < limit + Duration::from_secs(20), "{:?}", begun.elapsed());
    }
    say("closed");
    // The duplicates have other owners by now.
    std::process::exit(0);
}

fn all_may_pass(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o1777)).unwrap();
}

/// From now on it is that user's.
fn give_to_nobody(path: &Path) {
    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped("only root can become another user");
    }
    is_root
}

#[test]
fn a_name_is_its_users_who_took_it_also_where_the_node_was_made_by_another() {
    if !is_root() {
        return;
    }
    let dir = Dir::new("becomes_another", &[]);
    let mut server = Peer::start("becomes_another", &dir, "");
    // Also one that was made while the process was another's: its service is where the others are now.
    for seed in [server.says(), server.says()] {
        Peer::start("grows_as", &dir, &seed).end();
    }
    let mut own = Peer::start("connects_as", &dir, &NOBODY.to_string());
    own.expect("linked");
    own.end();
    server.end();
}

#[test]
fn what_a_process_leaves_whose_masks_are_full_is_there_for_its_user() {
    if !is_root() {
        return;
    }
    let dir = Dir::new("masks_everything", &[]);
    all_may_pass(&dir.path);
    let inner = dir.path.join("own");
    let variable = ("HAMLYN_DIR", inner.to_str().unwrap());
    // Root passes everywhere: so it is another user's.
    let command = |role: &str, args: &str| {
        let before = ["setpriv", "--reuid=65534", "--clear-groups"];
        let mut command = Peer::command(role, &dir, args, &before);
        command.env(variable.0, variable.1);
        command
    };
    let mut server = Peer::run("masks_everything", command("masks_everything", ""));
    server.expect("here");
    let mut client = Peer::run("connects_as", command("connects_as", "65534"));
    client.expect("linked");
    client.end();
    server.tell("die");
    assert_eq!(server.hears(), None);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&inner), 0o700);
    // One that comes later takes the name over.
    let mut next = Peer::run("masks_everything", command("masks_everything", ""));
    next.expect("here");
    next.tell("die");
    assert_eq!(next.hears(), None);
}

#[test]
fn a_working_directory_that_is_gone_does_not_matter() {
    let dir = Dir::new("gone", &[]);
    let gone = dir.path.join("gone");
    Peer::start("without_a_directory", &dir, gone.to_str().unwrap()).end();
}

#[test]
fn closed_standard_descriptors_and_ignored_signals_do_not_matter() {
    let dir = Dir::new("standard", &[]);
    Peer::start("without_standard_descriptors", &dir, "").end();
}

#[test]
fn a_node_is_closed_in_time_whose_descriptors_the_program_has_closed_or_replaced() {
    for by in ["files", "events"] {
        let dir = Dir::new("lost", &[]);
        let mut peer = Peer::start("loses_its_descriptors", &dir, by);
        peer.expect("closed");
        peer.end();
    }
}
