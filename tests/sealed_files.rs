//! A process that has a descriptor or a mapping of a link's memory tries every operation on it
//! (docs/sealed-files.md), and goes; then nothing of it is left.
#![cfg(feature = "os")]

#[path = "control_help/attackers.rs"]
mod attackers;
mod control_help;
mod support;

use attackers::*;
use control_help::{
    RING, THEIR_RING, expect_word, half_way, half_way_with, hello_of, pass_with, receive,
    ring_file, ring_offer, say as speak, take_their_ring, until_taken,
};
use hamlyn::control::frame::{Frame, Hello, MemoryWord, Purpose};
use hamlyn::control::{Accept, Access, LinkFeatures};
use hamlyn::os::memory::{Region, region_bytes};
use hamlyn::{Node, SlotConfig};
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use support::*;

const HUGE: usize = 2 << 20;
const COLLAPSE: libc::c_int = 25;

/// A mapping of a whole huge page of a file, aligned as one.
fn huge_mapping(fd: &OwnedFd) -> *mut libc::c_void {
    let null = core::ptr::null_mut();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new mappings, the second inside the first, which nothing uses.
    unsafe {
        let wide = libc::mmap(null, 2 * HUGE, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(wide, libc::MAP_FAILED);
        let at = (wide as usize).next_multiple_of(HUGE) as *mut libc::c_void;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let mapped = libc::mmap(at, HUGE, libc::PROT_READ, flags, fd.as_raw_fd(), 0);
        assert_eq!(mapped, at, "{}", Error::last_os_error());
        // Collapsing begins with pages that are mapped.
        core::ptr::read_volatile(at.cast::<u8>());
        at
    }
}

fn collapse(fd: &OwnedFd) -> i32 {
    let at = huge_mapping(fd);
    // SAFETY: the range is the mapping, of which no byte changes.
    match unsafe { libc::madvise(at, HUGE, COLLAPSE) } {
        0 => 0,
        _ => Error::last_os_error().raw_os_error().unwrap(),
    }
}

fn blocks(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512
}

/// Whether the kernel collapses files of small pages at all.
fn collapses() -> bool {
    let (_region, file) = ring_file(4096);
    collapse(&file) == 0 && blocks(&file) == HUGE as u64
}

/// All that is tried with a ring of the other end's, by name; 0 or an error number.
fn tries(fd: &OwnedFd, server: i32) -> Vec<(String, i32)> {
    let at = huge_mapping(fd);
    let (fd, bytes) = (fd.as_raw_fd(), rustix::fs::fstat(fd).unwrap().st_size);
    let mut done = Vec::new();
    let mut note = |name: &str, rc: libc::c_long| {
        let error = if rc < 0 { Error::last_os_error().raw_os_error().unwrap() } else { 0 };
        done.push((name.to_owned(), error));
    };
    let null = core::ptr::null_mut::<libc::c_void>();
    let word = [0u8; 8];
    let name = c"user.hamlyn".as_ptr();
    let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).unwrap();
    let theirs = std::ffi::CString::new(format!("/proc/{server}/mem")).unwrap();
    // SAFETY: system calls on a mapping and a descriptor of this process's own, of which nothing else
    // here has references; the pointers are alive, and no call writes through one.
    unsafe {
        // Collapsing last, of what is a candidate again.
        let last = [libc::MADV_HUGEPAGE, COLLAPSE];
        for advice in (0..COLLAPSE).chain([100, 101, 102, 103]).chain(last) {
            let rc = libc::madvise(at, HUGE, advice);
            note(&format!("madvise {advice}"), rc as _);
            libc::madvise(at, bytes as usize, libc::MADV_POPULATE_READ);
        }
        for advice in 0..6 {
            let rc = libc::posix_fadvise(fd, 0, bytes, advice);
            note(&format!("fadvise {advice}"), if rc == 0 { 0 } else { set_error(rc) });
        }
        for (name, mode) in [
            ("fallocate", 0),
            ("fallocate, size kept", libc::FALLOC_FL_KEEP_SIZE),
            ("punch a hole", libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE),
            ("zero a range", libc::FALLOC_FL_ZERO_RANGE),
            ("collapse a range", libc::FALLOC_FL_COLLAPSE_RANGE),
            ("insert a range", libc::FALLOC_FL_INSERT_RANGE),
            ("unshare a range", libc::FALLOC_FL_UNSHARE_RANGE),
        ] {
            note(name, libc::fallocate(fd, mode, 0, 4096) as _);
            note(&format!("{name}, behind the end"), libc::fallocate(fd, mode, bytes, 4096) as _);
        }
        for (name, size) in [("shorter", 0), ("longer", bytes + 4096), ("as long", bytes)] {
            note(&format!("ftruncate, {name}"), libc::ftruncate(fd, size) as _);
        }
        note("pwrite", libc::pwrite(fd, word.as_ptr().cast(), 8, 0) as _);
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = libc::mmap(null, 4096, write, libc::MAP_SHARED, fd, 0);
        note("mmap to write", if mapped == libc::MAP_FAILED { -1 } else { 0 });
        note("mprotect to write", libc::mprotect(at, 4096, write) as _);
        let moved = libc::mremap(at, HUGE, 2 * HUGE, libc::MREMAP_MAYMOVE);
        note("mremap, longer", if moved == libc::MAP_FAILED { -1 } else { 0 });
        let at = if moved == libc::MAP_FAILED { at } else { moved };
        note("remap_file_pages", libc::syscall(libc::SYS_remap_file_pages, at, 4096, 0, 1, 0));
        let (node, bind, move_own, move_all) = (1u64, 2, 2, 4);
        for (name, flags) in [("mbind, moving", move_own), ("mbind, moving all", move_all)] {
            note(name, libc::syscall(libc::SYS_mbind, at, HUGE, bind, &raw const node, 64, flags));
        }
        note("msync", libc::msync(at, HUGE, libc::MS_SYNC | libc::MS_INVALIDATE) as _);
        note("mlock, munlock", (libc::mlock(at, 4096) | libc::munlock(at, 4096)) as _);
        note("fchmod", libc::fchmod(fd, 0) as _);
        note("fchown", libc::fchown(fd, 1, 1) as _);
        let value = word.as_ptr().cast();
        note("fsetxattr", libc::fsetxattr(fd, name, value, 8, 0) as _);
        note("add a seal", libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) as _);
        note("lease", libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) as _);
        note("flock", libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) as _);
        let again = libc::open(path.as_ptr(), libc::O_RDWR);
        note("reopen through /proc", again as _);
        note("pwrite to that", libc::pwrite(again, word.as_ptr().cast(), 8, 0) as _);
        note("open, cut to nothing", libc::open(path.as_ptr(), libc::O_RDWR | libc::O_TRUNC) as _);
        note("the memory of its maker", libc::open(theirs.as_ptr(), libc::O_RDONLY) as _);
        let pidfd = libc::syscall(libc::SYS_pidfd_open, server, 0);
        let range = libc::iovec { iov_base: at, iov_len: 4096 };
        let advice = libc::MADV_PAGEOUT;
        let advised =
            libc::syscall(libc::SYS_process_madvise, pidfd, &raw const range, 1, advice, 0);
        note("process_madvise", advised);
        let pages = [at];
        let moved = libc::syscall(libc::SYS_move_pages, server, 1, pages.as_ptr(), null, null, 0);
        note("move_pages", moved);
    }
    done
}

/// For a call that gives its error instead of noting it.
fn set_error(error: i32) -> libc::c_long {
    // SAFETY: this thread's own number.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Not a test: what the attackers do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let dir = PathBuf::from(&role.args[0]);
    let at = socket_of(&dir);
    become_user(&role);
    let features = LinkFeatures::all().bits();
    let hello = Hello { features, ..hello_of(Purpose::Link) };
    match role.name.as_str() {
        // Links, and collapses both rings at the moment that it is told.
        "collapses" => {
            let when = role.args[2].as_str();
            if !collapses() {
                return say("no");
            }
            say("yes");
            let (fd, _wake, welcome) = half_way_with(&at, hello);
            until_taken(&fd, &welcome);
            let (_outgoing, own) = ring_file(welcome.client_ring_bytes);
            if when == "own-first" {
                assert_eq!(collapse(&own), 0);
            }
            pass_with(&fd, RING, &[&own]).unwrap();
            if when == "own-first" {
                return say(&format!("{:?}", receive(&fd).map(|(frame, _)| frame)));
            }
            expect_word(&fd, RING, MemoryWord::Held);
            expect_word(&fd, THEIR_RING, ring_offer(welcome.server_ring_bytes));
            let theirs = take_their_ring(&fd, &welcome);
            let size = region_bytes(welcome.server_ring_bytes as usize);
            let incoming = Region::map_read_only(&theirs, size).unwrap();
            incoming.fill_by_reading().unwrap();
            if when == "theirs-first" {
                assert_eq!(collapse(&theirs), 0);
            }
            speak(&fd, THEIR_RING, MemoryWord::Held);
            let next = receive(&fd);
            if when == "theirs-first" {
                return say(&format!("{:?}", next.map(|(frame, _)| frame)));
            }
            assert!(matches!(next, Some((Frame::Ready, _))));
            for file in [&own, &theirs] {
                let before = blocks(file);
                // Again and again: what a try does to the pages, too, is nothing.
                let errors: Vec<_> = (0..100).map(|_| collapse(file)).collect();
                assert!(errors.iter().all(|error| *error != 0), "{errors:?}");
                assert_eq!(blocks(file), before);
            }
            say("tried");
            role.wait_for("end");
        }
        // Links, and tries all that there is.
        "tries" => {
            let (fd, _wake, welcome) = half_way(&at);
            until_taken(&fd, &welcome);
            let (_outgoing, own) = ring_file(welcome.client_ring_bytes);
            pass_with(&fd, RING, &[&own]).unwrap();
            expect_word(&fd, RING, MemoryWord::Held);
            expect_word(&fd, THEIR_RING, ring_offer(welcome.server_ring_bytes));
            let theirs = take_their_ring(&fd, &welcome);
            let size = region_bytes(welcome.server_ring_bytes as usize);
            let incoming = Region::map_read_only(&theirs, size).unwrap();
            incoming.fill_by_reading().unwrap();
            speak(&fd, THEIR_RING, MemoryWord::Held);
            assert!(matches!(receive(&fd), Some((Frame::Ready, _))));
            for (name, error) in tries(&theirs, role.number(2) as i32) {
                let outcome = match error {
                    0 => "done".to_owned(),
                    error => Error::from_raw_os_error(error).to_string(),
                };
                say(&format!("{name}: {outcome}"));
            }
            let stat = rustix::fs::fstat(&theirs).unwrap();
            assert_eq!((stat.st_size as usize, blocks(&theirs) as usize), (size, size));
            say("tried");
            role.wait_for("end");
        }
        // An honest client, which sends one message, leaves more than was agreed in its ring's file
        // and ends.
        "sends-and-ends" => {
            let mut node = Node::with_config(role.config()).unwrap();
            let link = node.connect("0@x", b"", Some(LONG)).unwrap();
            let ticket = hamlyn::Ticket::from_bytes(node.greeting(link).unwrap()).unwrap();
            node.send(&ticket, &pattern(role.number(2) as usize, 3), b"", LIMIT).unwrap();
            node.close(LIMIT).unwrap();
        }
        other => panic!("no role is called {other}"),
    }
}

/// Of each ring that this process has mapped: kernel's flags of its first page, as root sees them.
fn ring_flags() -> Vec<u64> {
    let word = |file: &str, at: u64| {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 8];
        std::fs::File::open(file).unwrap().read_exact_at(&mut bytes, at * 8).unwrap();
        u64::from_ne_bytes(bytes)
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps.lines().filter(|line| line.contains("/memfd:hamlyn"));
    rings
        .map(|line| {
            let at = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
            word("/proc/kpageflags", word("/proc/self/pagemap", at / 4096) & ((1 << 55) - 1))
        })
        .collect()
}

const THP: u64 = 1 << 22;
const MLOCKED: u64 = 1 << 33;

/// No ring has got another page, nor one that may be swapped out.
fn rings_are_as_they_were() {
    let flags = ring_flags();
    assert_eq!(flags.len(), 2);
    let unlocked = hamlyn::os::memory::memory_unlocked();
    for flags in flags {
        assert_eq!(flags & THP, 0, "{flags:#x}");
        assert!(flags & MLOCKED != 0 || unlocked > 0, "{flags:#x}");
    }
}

fn serving(dir: &Dir) -> Node {
    let mut node = Node::with_config(dir.config()).unwrap();
    node.serve("x", Access::Anyone, Accept::Automatic(vec![])).unwrap();
    node
}

fn count(node: &Node, name: &str) -> u64 {
    node.counters().iter().find(|row| row.0 == name).unwrap().1
}

#[test]
fn nobody_replaces_the_pages_of_a_links_rings() {
    alone("nobody_replaces_the_pages_of_a_links_rings", || {
        let Some(dir) = shared("sealed-collapse") else { return };
        let server = serving(&dir);
        let args = format!("{} {ATTACKER} linked", dir.path.display());
        let mut peer = Peer::start("collapses", &dir, &args);
        if peer.says() == "no" {
            return skipped("MADV_COLLAPSE of memory files (Linux 6.1, transparent huge pages)");
        }
        peer.expect("tried");
        rings_are_as_they_were();
        peer.tell("end");
        peer.end();
        drop(server);
    });
}

#[test]
fn a_ring_whose_pages_were_replaced_before_there_is_a_link_is_refused() {
    let Some(dir) = shared("sealed-early") else { return };
    let server = serving(&dir);
    for (i, when) in ["own-first", "theirs-first"].into_iter().enumerate() {
        let args = format!("{} {ATTACKER} {when}", dir.path.display());
        let mut peer = Peer::start("collapses", &dir, &args);
        if peer.says() == "no" {
            return skipped("MADV_COLLAPSE of memory files (Linux 6.1, transparent huge pages)");
        }
        let said = peer.says();
        assert!(!said.contains("Ready") && !said.contains("Held"), "{when}: {said}");
        peer.end();
        until("it is counted", || count(&server, "control.refused_memory") == i as u64 + 1);
    }
    still_serves(&dir.config());
}

#[test]
fn whatever_a_peer_does_to_a_sealed_ring_it_stays_as_it_is() {
    alone("whatever_a_peer_does_to_a_sealed_ring_it_stays_as_it_is", || {
        let Some(dir) = shared("sealed-tries") else { return };
        let server = serving(&dir);
        let args = format!("{} {ATTACKER} {}", dir.path.display(), std::process::id());
        let mut peer = Peer::start("tries", &dir, &args);
        let mut tried = 0;
        loop {
            let said = peer.says();
            if said == "tried" {
                break;
            }
            eprintln!("{said}");
            tried += 1;
        }
        assert!(tried > 60, "{tried}");
        rings_are_as_they_were();
        peer.tell("end");
        peer.end();
        drop(server);
    });
}

#[test]
fn the_memory_of_a_peer_that_has_gone_is_given_back_while_the_program_makes_no_calls() {
    alone(
        "the_memory_of_a_peer_that_has_gone_is_given_back_while_the_program_makes_no_calls",
        || {
            let Some(dir) = shared("sealed-gone") else { return };
            let mut node = Node::with_config(dir.config()).unwrap();
            const BYTES: usize = 20_000;
            let area = node.message_area(BYTES).unwrap();
            let queue = node.notification_queue(1).unwrap();
            let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
            let ticket = node.ticket(slot, hamlyn::MetadataIndex(0)).unwrap();
            let greeting = ticket.to_bytes().to_vec();
            node.serve("x", Access::Anyone, Accept::Automatic(greeting)).unwrap();
            let args = format!("{} {ATTACKER} {BYTES}", dir.path.display());
            Peer::start("sends-and-ends", &dir, &args).end();
            let has_files = || {
                let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
                maps.contains("/memfd:hamlyn")
            };
            until("nothing of its files is mapped", || {
                count(&node, "control.closed_graceful") == 1 && !has_files()
            });
            // What it sent is there.
            node.recv(queue, LIMIT).unwrap();
            assert!(node.area(area).unwrap() == pattern(BYTES, 3));
            let until_closed = |node: &mut Node| count(node, "links_closed") == 1;
            until_node(&mut node, "the link has ended", until_closed);
        },
    );
}
