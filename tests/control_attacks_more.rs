//! More attacks on the control plane by processes of other users: descriptors when no thread is
//! ready for them any more, floods, and ends at every step.
#![cfg(feature = "os")]

#[path = "control_help/attackers.rs"]
mod attackers;
mod control_help;
mod support;

use attackers::*;
use control_help::{
    ByHand, Connects, RING, counter, descriptors, dial, expect_word, half_way, hello_of,
    link_by_hand, name, next, pass_with, receive, ring_file, ring_offer, say as speak, send, start,
    stranger, take_their_ring, until_paid, until_taken,
};
use hamlyn::ApertureAccess;
use hamlyn::control::frame::{Frame, Hello, Memory, MemoryWord, Purpose};
use hamlyn::control::{
    Accept, Access, Control, ControlEvent, LinkFeatures, Reason, ServiceName, Wait, list_services,
    stat_of,
};
use hamlyn::os::aperture::{ExportLimits, Ledger, Owned};
use hamlyn::os::memory::{self, region_bytes};
use hamlyn::protocol::{Manager, TaggedConfig, TaggedReceiver};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::*;

const READ_WRITE: ApertureAccess = ApertureAccess::ReadWrite;

fn aperture_file() -> (Owned, OwnedFd) {
    let ledger = Arc::new(Ledger::default());
    let limits = ExportLimits { all: 1 << 20, user: 1 << 20 };
    Owned::make(READ_WRITE, ledger.reserve(4096, None, limits).unwrap()).unwrap()
}

/// Offers an aperture until the server's receiver waits for it.
fn offer_aperture(link: &ByHand, number: u32) -> Memory {
    let memory = Memory::Aperture(number);
    speak(&link.fd, memory, MemoryWord::Offer { bytes: 4096, access: READ_WRITE });
    expect_word(&link.fd, memory, MemoryWord::Take { bytes: 4096 });
    memory
}

/// Sends a frame, also when there is no room yet. `false`: the link has ended.
fn insist(fd: &OwnedFd, frame: &Frame) -> bool {
    let bytes = frame.to_bytes();
    let end = Instant::now() + LONG;
    loop {
        match hamlyn::os::socket::send(fd, &bytes, &[]) {
            Ok(()) => return true,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(Instant::now() < end, "nobody reads");
                std::thread::sleep(Duration::from_micros(100));
            }
            Err(_) => return false,
        }
    }
}

/// Frames that keep a receiver from reading what comes behind them before this process has closed
/// its own descriptors of it.
fn keep_busy(fd: &OwnedFd) {
    for slot in 0..60 {
        send(fd, &Frame::TicketRevoked { slot, index: 0 });
    }
}

/// Names of the threads of this process, with their states.
fn threads() -> Vec<(String, char)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok())
        .filter_map(|stat| {
            let (before, after) = stat.rsplit_once(')')?;
            let name = before.split_once('(')?.1;
            Some((name.into(), after.trim_start().chars().next()?))
        })
        .collect()
}

fn threads_called(name: &str) -> usize {
    threads().iter().filter(|thread| thread.0 == name).count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:").count()
}

/// A page that is never filled, so that a process that writes to it stays there, in the kernel,
/// too: every user can make such a page by a file system in user space; this one takes root. And
/// the descriptor that it lives as long as. `None`: not possible here.
fn page_that_never_comes() -> Option<(OwnedFd, *mut libc::c_void)> {
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    const BYTES: usize = 4096;
    // SAFETY: system calls whose structures are arrays of their size; a new mapping of its own.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let fd = OwnedFd::from_raw_fd(fd as i32);
        let mut api = [0xaa_u64, 0, 0];
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(core::ptr::null_mut(), BYTES, access, flags, -1, 0);
        // Registers its range: a process that misses the page waits.
        let mut range = [page as u64, BYTES as u64, 1, 0];
        let is_ready = libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) == 0
            && page != libc::MAP_FAILED
            && libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, range.as_mut_ptr()) == 0;
        is_ready.then_some((fd, page))
    }
}

/// Blocks processes that change a directory: a thread reads it into a page that never comes.
/// `changes`: a second thread waits behind it to change it, and blocks processes that look for a
/// name that the kernel has not cached.
fn hold(directory: &std::path::Path, page: *mut libc::c_void, changes: bool) {
    let reads = std::fs::File::open(directory).unwrap();
    let (page, new) = (page as usize, directory.join("new"));
    let is_held = |name: &str| {
        let stopped = || threads().iter().any(|thread| thread.0 == name && thread.1 != 'R');
        until("it is stopped", stopped);
        std::thread::sleep(Duration::from_millis(50));
        assert!(stopped(), "{name} was not held");
    };
    let named = |name: &str| std::thread::Builder::new().name(name.into());
    let fd = reads.as_raw_fd();
    let read = named("reads").spawn(move || {
        // SAFETY: the kernel writes into a mapping of this process.
        unsafe { libc::syscall(libc::SYS_getdents64, fd, page, 4096) };
        drop(reads);
    });
    read.unwrap();
    is_held("reads");
    if changes {
        named("changes").spawn(move || std::fs::create_dir(new)).unwrap();
        is_held("changes");
    }
}

/// Not a test: what the attackers do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let dir = PathBuf::from(&role.args[0]);
    let at = socket_of(&dir);
    let page = if role.name.starts_with("holds-") { page_that_never_comes() } else { None };
    let user = become_user(&role);
    match role.name.as_str() {
        // An aperture as agreed, and behind it a descriptor that blocks the process that drops it.
        "stops-after-mapping" => {
            let other_end: SocketAddr = role.args[2].parse().unwrap();
            for links in 1..50 {
                let (_owned, file) = aperture_file();
                let sockets = [lingering_to(other_end, 3600), lingering_to(other_end, 3600)];
                let link = link_by_hand(&at);
                let memory = offer_aperture(&link, 1);
                keep_busy(&link.fd);
                let passed = pass_with(&link.fd, memory, &[&file]).is_ok()
                    && pass_and_close(&link.fd, memory, sockets.into());
                let held = Frame::Memory { memory, word: MemoryWord::Held };
                if passed && receive(&link.fd).is_some_and(|(frame, _)| frame == held) {
                    say(&format!("{links}"));
                    role.wait_for("end");
                    return;
                }
            }
            say("too late each time");
            role.wait_for("end");
        }
        // More frames than are expected in a queue, and a socket that lingers behind them.
        "long-queue" => {
            let other_end: SocketAddr = role.args[2].parse().unwrap();
            for _ in 0..50 {
                let link = link_by_hand(&at);
                rustix::net::sockopt::set_socket_send_buffer_size(&link.fd, 4 << 20).unwrap();
                let memory = offer_aperture(&link, 1);
                let (_owned, file) = aperture_file();
                let short = lingering_to(other_end, 2);
                let long = lingering_to(other_end, 3600);
                keep_busy(&link.fd);
                // The receiver is stopped in its call for a while.
                if !pass_and_close(&link.fd, memory, vec![file.try_clone().unwrap(), short]) {
                    continue;
                }
                std::thread::sleep(Duration::from_millis(200));
                let mut sent = 0;
                for slot in 0..3000 {
                    let frame = Frame::TicketRevoked { slot, index: 0 };
                    if hamlyn::os::socket::send(&link.fd, &frame.to_bytes(), &[]).is_err() {
                        break;
                    }
                    sent += 1;
                }
                let passed = pass_and_close(&link.fd, memory, vec![long]);
                if passed {
                    say(&format!("{sent}"));
                    role.wait_for("end");
                    drop(link);
                    return;
                }
            }
            say("too late each time");
            role.wait_for("end");
        }
        // Frames of no bytes look like the end, and are not; a socket that lingers behind them.
        "empty-frames" => {
            let other_end: SocketAddr = role.args[2].parse().unwrap();
            let empties: u32 = role.args[3].parse().unwrap();
            for _ in 0..50 {
                let long = lingering_to(other_end, 3600);
                let link = link_by_hand(&at);
                let memory = offer_aperture(&link, 1);
                keep_busy(&link.fd);
                for _ in 0..empties {
                    let _ = hamlyn::os::socket::send(&link.fd, b"", &[]);
                }
                let passed = pass_and_close(&link.fd, memory, vec![long]);
                if passed {
                    say("passed");
                    role.wait_for("end");
                    drop(link);
                    return;
                }
            }
            say("too late each time");
            role.wait_for("end");
        }
        "flood-of-hints" => {
            let link = link_by_hand(&at);
            for slot in 0..5000 {
                if !insist(&link.fd, &Frame::TicketRevoked { slot, index: 0 }) {
                    break;
                }
            }
            say("flooded");
            role.wait_for("end");
        }
        // Does not read what it is sent, stops a receiver, and shuts its socket.
        "shuts-down" => {
            let other_end: SocketAddr = role.args[2].parse().unwrap();
            let link = link_by_hand(&at);
            let sockets = [lingering_to(other_end, 3600), lingering_to(other_end, 3600)];
            // Refused at once: an answer for each, which is never read.
            let mut number = 1;
            let mut refused = |many: u32| {
                for _ in 0..many {
                    let word = MemoryWord::Offer { bytes: 1 << 50, access: READ_WRITE };
                    let frame = Frame::Memory { memory: Memory::Aperture(number), word };
                    if number % 400 == 1 {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    insist(&link.fd, &frame);
                    insist(&link.fd, &Frame::ApertureRevoked { number });
                    number += 2;
                }
            };
            refused(role.args[3].parse().unwrap());
            std::thread::sleep(Duration::from_millis(50));
            let memory = Memory::Aperture(9999);
            speak(&link.fd, memory, MemoryWord::Offer { bytes: 4096, access: READ_WRITE });
            std::thread::sleep(Duration::from_millis(50));
            let mut after = 10_001;
            for _ in 0..60 {
                let word = MemoryWord::Offer { bytes: 1 << 50, access: READ_WRITE };
                send(&link.fd, &Frame::Memory { memory: Memory::Aperture(after), word });
                after += 2;
            }
            let passed = pass_and_close(&link.fd, memory, sockets.into());
            std::thread::sleep(Duration::from_millis(50));
            rustix::net::shutdown(&link.fd, rustix::net::Shutdown::Both).unwrap();
            say(&format!("shut {passed}"));
            role.wait_for("end");
            drop(link);
        }
        // A process that looks for a name of this user waits until this process ends.
        "holds-directory" => {
            let Some((_faults, page)) = page else { return say("not permitted") };
            let own = dir.join(format!("shared/{user}"));
            std::fs::create_dir(&own).unwrap();
            // They are no user's: `names` must not look for the same again and again.
            for zeros in 1..20 {
                let alias = format!("shared/{}{user}", "0".repeat(zeros));
                std::fs::create_dir(dir.join(alias)).unwrap();
            }
            hold(&own, page, true);
            say("held");
            role.wait_for("end");
            // Without the ends of threads that never end.
            die();
        }
        "holds-shared" => {
            let Some((_faults, page)) = page else { return say("not permitted") };
            hold(&dir.join("shared"), page, true);
            say("held");
            role.wait_for("end");
            die();
        }
        // A process that changes a directory that this user may read waits until this process ends.
        "holds-what-it-may-read" => {
            let Some((_faults, page)) = page else { return say("not permitted") };
            hold(&dir, page, false);
            say("held");
            role.wait_for("end");
            die();
        }
        // Says hello as often as it can, and nothing more.
        "many-hellos" => {
            let mut held = Vec::new();
            while held.len() < 450 {
                let Ok(fd) = dial(&at, Duration::from_secs(2)) else { break };
                send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
                held.push(fd);
            }
            say(&format!("{}", held.len()));
            role.wait_for("end");
        }
        "honest" => {
            let times: usize = role.args[2].parse().unwrap();
            let config = role.config();
            let service = "0@x".parse().unwrap();
            for _ in 0..times {
                let client = start(&config);
                let connected = client.connect(&service, b"", LONG);
                if let Err(e) = connected {
                    say(&format!("{e}"));
                    return;
                }
            }
            say("connected");
            role.wait_for("end");
        }
        "flood-of-connections" => {
            say("begun");
            let end = Instant::now() + LONG;
            let ended = std::thread::spawn(move || role.wait_for("end"));
            let mut kept = std::collections::VecDeque::new();
            let mut i = 0u64;
            while !ended.is_finished() && Instant::now() < end {
                i += 1;
                let Ok(fd) = hamlyn::os::socket::try_connect(&at) else {
                    std::thread::yield_now();
                    continue;
                };
                if !i.is_multiple_of(3) {
                    send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
                }
                kept.push_back(fd);
                if kept.len() > 100 {
                    kept.pop_front();
                }
            }
        }
        "step" => {
            let step: u32 = role.args[2].parse().unwrap();
            let sleeps = role.args[3] == "1";
            go_to_step(&at, step);
            if sleeps {
                say("there");
                role.wait_for("end");
            }
            die();
        }
        "every-kind" => {
            for (kind, make) in kinds() {
                let Some(file) = make() else {
                    loud(&format!("not here: {kind}"));
                    continue;
                };
                for times in 1..3 {
                    let (fd, _wake, welcome) = half_way(&at);
                    until_taken(&fd, &welcome);
                    let files = [&file, &file];
                    if pass_with(&fd, RING, &files[..times]).is_err() {
                        loud(&format!("the kernel passes none: {kind}"));
                        continue;
                    }
                    match receive(&fd) {
                        Some((Frame::Refused { reason, .. }, _)) => {
                            // If it cannot be mapped for reading, it could not be received, either.
                            let is_no = matches!(reason, Reason::Memory | Reason::Unavailable);
                            assert!(is_no, "{kind}: {reason}");
                        }
                        other => panic!("{kind}: {other:?}"),
                    }
                }
                let link = link_by_hand(&at);
                let memory = offer_aperture(&link, 1);
                if pass_with(&link.fd, memory, &[&file]).is_err() {
                    continue;
                }
                loop {
                    match receive(&link.fd) {
                        Some((Frame::Refused { .. }, _)) | None => break,
                        Some((Frame::Memory { word: MemoryWord::Held, .. }, _)) => {
                            panic!("{kind} was mapped")
                        }
                        Some(_) => {}
                    }
                }
            }
            say("all refused");
            role.wait_for("end");
        }
        // An aperture's words in every order, over a link of its own each.
        "orders" => {
            let seed: u64 = role.args[2].parse().unwrap();
            let mut random = Random(seed);
            for _ in 0..300 {
                let features = LinkFeatures::all().bits();
                let link =
                    control_help::link_with(&at, Hello { features, ..hello_of(Purpose::Link) });
                let mut next_number = 1;
                let (_owned, file) = aperture_file();
                for _ in 0..random.below(40) {
                    let number = if random.below(3) == 0 {
                        next_number += 2;
                        next_number - 2
                    } else {
                        random.below(u64::from(next_number) + 1) as u32
                    };
                    let memory = match random.below(6) {
                        0 => Memory::Bulk(hamlyn::control::frame::LinkSide::Client),
                        1 => Memory::Bulk(hamlyn::control::frame::LinkSide::Server),
                        2 if random.below(8) == 0 => RING,
                        _ => Memory::Aperture(number),
                    };
                    let word = match random.below(8) {
                        0..3 => MemoryWord::Offer {
                            bytes: 4096 << random.below(3),
                            access: if random.below(2) == 0 {
                                READ_WRITE
                            } else {
                                ApertureAccess::ReadOnly
                            },
                        },
                        3 => MemoryWord::Take { bytes: 4096 },
                        4 => MemoryWord::Held,
                        5 => MemoryWord::Refused(Reason::Unavailable),
                        _ => MemoryWord::Pass,
                    };
                    match (word, random.below(4)) {
                        (MemoryWord::Pass, 1..) => {
                            let _ = pass_with(&link.fd, memory, &[&file]);
                        }
                        (_, 0) => send(&link.fd, &Frame::ApertureRevoked { number }),
                        _ => speak(&link.fd, memory, word),
                    }
                    if random.below(4) == 0 {
                        std::thread::sleep(Duration::from_micros(random.below(300)));
                    }
                    if random.below(16) == 0 {
                        send(&link.fd, &Frame::ApertureReleased { number });
                    }
                }
                if random.below(4) == 0 {
                    send(&link.fd, &Frame::Bye);
                }
            }
            say("done");
            role.wait_for("end");
        }
        // Its receivers are stopped, four of them.
        "stops-four" => {
            let other_end: SocketAddr = role.args[2].parse().unwrap();
            let links: Vec<_> = (0..4).map(|_| link_by_hand(&at)).collect();
            let mut stopped = 0;
            for link in &links {
                let memory = Memory::Aperture(1);
                speak(&link.fd, memory, MemoryWord::Offer { bytes: 4096, access: READ_WRITE });
                let Some((Frame::Memory { word: MemoryWord::Take { .. }, .. }, _)) =
                    receive(&link.fd)
                else {
                    break;
                };
                let socket = lingering_to(other_end, 3600);
                keep_busy(&link.fd);
                let passed = pass_and_close(&link.fd, memory, vec![socket]);
                stopped += u32::from(passed);
            }
            say(&format!("{stopped}"));
            role.wait_for("end");
        }
        other => panic!("no role is called {other} (user {user})"),
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
}

/// How many steps [`go_to_step`] knows.
const STEPS: u32 = 12;

/// An honest client's steps up to one of them; what was made on the way is kept until this process
/// ends.
fn go_to_step(at: &PathBuf, step: u32) {
    let keep = |what: Box<dyn std::any::Any>| core::mem::forget(what);
    if step == 0 {
        return keep(Box::new(stranger(at)));
    }
    if step == 1 {
        let fd = stranger(at);
        send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
        return keep(Box::new(fd));
    }
    if step < 8 {
        let (fd, wake, welcome) = half_way(at);
        if step == 3 {
            speak(&fd, RING, ring_offer(welcome.client_ring_bytes));
        }
        if step == 4 {
            until_taken(&fd, &welcome);
        }
        if step == 5 {
            until_taken(&fd, &welcome);
            let (region, file) = ring_file(welcome.client_ring_bytes);
            pass_with(&fd, RING, &[&file]).unwrap();
            keep(Box::new((region, file)));
        }
        if step == 6 {
            keep(Box::new(until_paid(&fd, &welcome)));
        }
        if step == 7 {
            keep(Box::new(until_paid(&fd, &welcome)));
            keep(Box::new(take_their_ring(&fd, &welcome)));
        }
        return keep(Box::new((fd, wake)));
    }
    let link = link_by_hand(at);
    if step >= 9 {
        let memory = offer_aperture(&link, 1);
        let (owned, file) = aperture_file();
        if step >= 10 {
            pass_with(&link.fd, memory, &[&file]).unwrap();
        }
        if step >= 11 {
            expect_word(&link.fd, memory, MemoryWord::Held);
            send(&link.fd, &Frame::ApertureRevoked { number: 1 });
        }
        keep(Box::new((owned, file)));
    }
    keep(Box::new(link));
}

type Make = fn() -> Option<OwnedFd>;

/// A file of the kernel's; `None`: not permitted here.
fn by_call(number: libc::c_long, a: usize, b: usize, c: usize) -> Option<OwnedFd> {
    // SAFETY: the calls below make descriptors, and read no memory but a buffer that is alive.
    let fd = unsafe { libc::syscall(number, a, b, c) };
    // SAFETY: the kernel has just made it for this call.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn memfd(flags: MemfdFlags, bytes: usize, fill: usize, seals: SealFlags) -> Option<OwnedFd> {
    let fd = rustix::fs::memfd_create("x", flags | MemfdFlags::ALLOW_SEALING).ok()?;
    rustix::fs::ftruncate(&fd, bytes as u64).ok()?;
    if fill > 0 {
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, fill as u64).ok()?;
    }
    rustix::fs::fcntl_add_seals(&fd, seals).ok()?;
    Some(fd)
}

fn ring_size() -> usize {
    region_bytes(4096)
}

const PLAIN: MemfdFlags = MemfdFlags::CLOEXEC;

/// Everything but what is agreed.
fn kinds() -> Vec<(&'static str, Make)> {
    vec![
        ("eventfd", || by_call(libc::SYS_eventfd2, 0, 0, 0)),
        ("epoll of epoll", || {
            let (a, b) = (
                rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).ok()?,
                rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).ok()?,
            );
            let data = rustix::event::epoll::EventData::new_u64(0);
            rustix::event::epoll::add(&a, &b, data, rustix::event::epoll::EventFlags::IN).ok()?;
            core::mem::forget(b);
            Some(a)
        }),
        ("pidfd", || by_call(libc::SYS_pidfd_open, std::process::id() as usize, 0, 0)),
        ("userfaultfd", || by_call(libc::SYS_userfaultfd, 1 | libc::O_CLOEXEC as usize, 0, 0)),
        ("io_uring", || {
            let mut parameters = [0u8; 256];
            by_call(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr() as usize, 0)
        }),
        ("timerfd", || by_call(libc::SYS_timerfd_create, 1, 0, 0)),
        ("inotify", || by_call(libc::SYS_inotify_init1, 0, 0, 0)),
        ("memfd_secret", || by_call(libc::SYS_memfd_secret, 0, 0, 0)),
        ("unix socket of sockets", || {
            let (a, b) = hamlyn::os::socket::pair().unwrap();
            let (c, _d) = hamlyn::os::socket::pair().unwrap();
            let frame = b"x";
            hamlyn::os::socket::send(&a, frame, &[c.as_fd(), b.as_fd()]).unwrap();
            Some(b)
        }),
        ("pipe", || Some(rustix::pipe::pipe().unwrap().0)),
        ("listener", || Some(TcpListener::bind("127.0.0.1:0").unwrap().into())),
        ("directory", || Some(std::fs::File::open("/proc/self").unwrap().into())),
        ("/dev/zero", || Some(std::fs::File::open("/dev/zero").unwrap().into())),
        ("/proc file", || Some(std::fs::File::open("/proc/version").unwrap().into())),
        ("/proc mem", || Some(std::fs::File::open("/proc/self/mem").ok()?.into())),
        ("terminal", || Some(std::fs::File::open("/dev/ptmx").ok()?.into())),
        ("path only", || Some(rustix::fs::open("/dev/null", OFlags::PATH, Mode::empty()).unwrap())),
        ("no seals", || memfd(PLAIN, ring_size(), ring_size(), SealFlags::empty())),
        ("too large", || memfd(PLAIN, ring_size() * 2, ring_size() * 2, memory::SEALS_READ_ONLY)),
        ("too small", || memfd(PLAIN, 4096 / 2, 4096 / 2, memory::SEALS_READ_ONLY)),
        ("huge size, not filled", || memfd(PLAIN, 1 << 50, 0, memory::SEALS_READ_ONLY)),
        ("not filled", || memfd(PLAIN, ring_size(), 0, memory::SEALS_READ_ONLY)),
        ("a page missing", || {
            memfd(PLAIN, ring_size(), ring_size() - 4096, memory::SEALS_READ_ONLY)
        }),
        ("sealed for writing", || {
            memfd(PLAIN, ring_size(), ring_size(), memory::SEALS_READ_ONLY | SealFlags::WRITE)
        }),
        ("size not sealed", || {
            memfd(PLAIN, ring_size(), ring_size(), SealFlags::FUTURE_WRITE | SealFlags::GROW)
        }),
        ("huge pages", || memfd(PLAIN | MemfdFlags::HUGETLB, 2 << 20, 0, memory::SEALS_READ_ONLY)),
        ("path of memory", || {
            let fd = memfd(PLAIN, ring_size(), ring_size(), memory::SEALS_READ_ONLY)?;
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::fs::open(path, OFlags::PATH, Mode::empty()).ok()
        }),
        ("written only", || {
            let fd = memfd(PLAIN, ring_size(), ring_size(), memory::SEALS_READ_ONLY)?;
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::fs::open(path, OFlags::WRONLY, Mode::empty()).ok()
        }),
    ]
}

/// Connections that are never accepted: other ends of sockets that linger.
fn other_end() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn attacker_with(role: &str, dir: &Dir, user: u32, rest: &str) -> Peer {
    Peer::start(role, dir, &format!("{} {user} {rest}", dir.path.display()))
}

#[test]
fn the_end_of_a_link_is_told_though_its_receiver_was_stopped_after_it_had_mapped() {
    let Some(dir) = shared("more-stop") else { return };
    let (_listener, other_end) = other_end();
    let server = serves(&dir.config_with(&[("HANDSHAKE_TIMEOUT_MS", "2000")]));
    let mut peer = attacker_with("stops-after-mapping", &dir, ATTACKER, &format!("{other_end}"));
    let links: usize = peer.says().parse().unwrap();
    peer.kill();
    let (mut connected, mut closed) = (0, 0);
    while connected < links || closed < links {
        match next(&server) {
            ControlEvent::Connected(_) => connected += 1,
            ControlEvent::Closed { .. } => closed += 1,
            _ => {}
        }
    }
    still_serves(&dir.config());
}

#[test]
fn a_queue_longer_than_expected_holds_nothing_that_stops_the_application() {
    let Some(dir) = shared("more-queue") else { return };
    let (_listener, other_end) = other_end();
    let server = serves(&dir.config_with(&[("HOUSEKEEPING", "application")]));
    let mut peer = attacker_with("long-queue", &dir, ATTACKER, &format!("{other_end}"));
    let end = Instant::now() + LONG;
    let sent: u32 = loop {
        server.run_once(Duration::from_millis(1)).unwrap();
        if let Some(said) = peer.has_said() {
            break said.parse().unwrap();
        }
        assert!(Instant::now() < end, "the attacker has not come so far");
    };
    if sent < 1200 {
        return skipped(&format!("net.core.wmem_max: a queue of {sent} frames"));
    }
    // The receivers left for others, if any.
    let end = Instant::now() + Duration::from_secs(5);
    while threads_called("hamlyn-receive") > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (ended, is_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..2000 {
            server.run_once(Duration::from_micros(100)).unwrap();
        }
        drop(server);
        ended.send(()).unwrap();
    });
    is_ended.recv_timeout(LONG).expect("the application is stopped by a peer's descriptor");
    peer.tell("end");
    peer.end();
}

#[test]
fn frames_of_no_bytes_hide_nothing_that_stops_the_control_plane() {
    let Some(dir) = shared("more-empty") else { return };
    let (_listener, other_end) = other_end();
    let server = serves(&dir.config_with(&[("HANDSHAKE_TIMEOUT_MS", "2000")]));
    let mut peers = Vec::new();
    for empties in 1..4 {
        let mut peer = attacker_with(
            "empty-frames",
            &dir,
            ATTACKER + empties,
            &format!("{other_end} {empties}"),
        );
        let said = peer.says();
        if said == "too late each time" {
            // It has to be quicker than the server, fifty times at most.
            return skipped(&format!("with {empties} frames of no bytes the attacker was {said}"));
        }
        assert_eq!(said, "passed");
        peers.push(peer);
    }
    let mut connected = 0;
    let mut closed = 0;
    while connected < 3 || closed < connected {
        match next(&server) {
            ControlEvent::Connected(_) => connected += 1,
            ControlEvent::Closed { .. } => closed += 1,
            _ => {}
        }
    }
    still_serves(&dir.config());
    let (ended, is_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(server);
        ended.send(()).unwrap();
    });
    is_ended.recv_timeout(LONG).expect("the end is stopped by a peer's descriptor");
    for mut peer in peers {
        peer.tell("end");
        peer.end();
    }
}

#[test]
fn a_flood_of_revoked_tickets_keeps_nobody_else_out() {
    let Some(dir) = shared("more-hints") else { return };
    let server = serves(&dir.config());
    let mut peer = attacker("flood-of-hints", &dir, ATTACKER);
    peer.expect("flooded");
    // The application here takes no events meanwhile.
    still_serves(&dir.config());
    drop(server);
    peer.tell("end");
    peer.end();
}

#[test]
fn a_shut_socket_whose_receiver_is_stopped_lets_the_thread_sleep() {
    alone("a_shut_socket_whose_receiver_is_stopped_lets_the_thread_sleep", || {
        let Some(dir) = shared("more-shut") else { return };
        let (_listener, other_end) = other_end();
        // The receiver is stopped while answers wait for room; or, with more of them unread, it
        // waits itself for room to ask.
        for unread in [268, 273, 277, 279, 284] {
            let _server = serves(&dir.config_with(&[("HANDSHAKE_TIMEOUT_MS", "60000")]));
            let mut peer =
                attacker_with("shuts-down", &dir, ATTACKER, &format!("{other_end} {unread}"));
            let said = peer.says();
            let mut times = 0;
            let end = Instant::now() + Duration::from_secs(5);
            while times < 30 && Instant::now() < end {
                let is_asleep = |t: &(String, char)| t.0 != "hamlyn-control" || t.1 == 'S';
                times = if threads().iter().all(is_asleep) { times + 1 } else { 0 };
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(times >= 30, "after {unread} answers, {said}: {:?}", threads());
            peer.tell("end");
            peer.end();
        }
    });
}

#[test]
fn hellos_of_one_user_leave_descriptors_to_others_and_to_the_application() {
    alone("hellos_of_one_user_leave_descriptors_to_others_and_to_the_application", || {
        let Some(dir) = shared("more-hellos") else { return };
        let few = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
        // SAFETY: a structure that is alive.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
        let _server = serves(&dir.config_with(&[("HANDSHAKE_TIMEOUT_MS", "600000")]));
        let mut peers: Vec<_> = (0..3).map(|_| attacker("many-hellos", &dir, ATTACKER)).collect();
        for peer in &mut peers {
            assert_eq!(peer.says(), "450");
        }
        std::fs::File::open("/dev/null").unwrap();
        let mut honest = attacker_with("honest", &dir, ATTACKER + 1, "3");
        honest.expect("connected");
        for mut peer in peers {
            peer.tell("end");
            peer.end();
        }
        honest.tell("end");
        honest.end();
    });
}

#[test]
fn users_who_flood_a_service_with_connections_keep_nobody_out() {
    let Some(dir) = shared("more-flood") else { return };
    let server = serves(&dir.config());
    let mut peers: Vec<_> =
        (0..3).map(|i| attacker("flood-of-connections", &dir, ATTACKER + i)).collect();
    for peer in &mut peers {
        peer.expect("begun");
    }
    let mut honest = attacker_with("honest", &dir, ATTACKER + 9, "20");
    let before = Instant::now();
    let said = loop {
        server.inbox().take();
        if let Some(said) = honest.has_said() {
            break said;
        }
        assert!(before.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(said, "connected");
    for mut peer in peers {
        peer.tell("end");
        peer.end();
    }
    honest.tell("end");
    honest.end();
}

#[test]
fn processes_that_die_at_any_step_leave_nothing() {
    alone("processes_that_die_at_any_step_leave_nothing", || {
        let Some(dir) = shared("more-die") else { return };
        let server = serves(&dir.config_with(&[("HANDSHAKE_TIMEOUT_MS", "2000")]));
        still_serves(&dir.config());
        let is_quiet = || {
            server.inbox().take();
            threads_called("hamlyn-receive") == 0 && mappings() == 0
        };
        until("it is quiet", is_quiet);
        let before = (descriptors(), threads().len());
        for round in 0..8 {
            let mut waiting = Vec::new();
            for step in 0..STEPS {
                let sleeps = (step + round) % 2;
                let peer = attacker_with("step", &dir, ATTACKER, &format!("{step} {sleeps}"));
                if sleeps == 1 { waiting.push(peer) } else { peer.ends_killed() }
            }
            for (i, mut peer) in waiting.into_iter().enumerate() {
                peer.expect("there");
                if i % 2 == 0 {
                    peer.stop();
                }
                peer.kill();
            }
        }
        still_serves(&dir.config());
        let mut at = (0, 0, 0);
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            server.inbox().take();
            at = (descriptors(), threads_called("hamlyn-receive"), mappings());
            let receivers = counter(&server, "receivers");
            if at.0 <= before.0 && (at.1, at.2) == (0, 0) && receivers == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Each peer's output is read by a thread and a pipe of this process, until it ends.
        assert!(at.0 <= before.0 && (at.1, at.2) == (0, 0), "{at:?}, {before:?}: {:?}", threads());
        assert_eq!(counter(&server, "receivers"), 0);
    });
}

#[test]
fn descriptors_of_every_kind_are_refused() {
    alone("descriptors_of_every_kind_are_refused", || {
        let Some(dir) = shared("more-kinds") else { return };
        let server = serves(&dir.config());
        let mut peer = attacker("every-kind", &dir, ATTACKER);
        peer.expect("all refused");
        still_serves(&dir.config());
        until("no receiver is left", || {
            server.inbox().take();
            counter(&server, "receivers") == 0 && mappings() == 0
        });
        peer.tell("end");
        peer.end();
    });
}

#[test]
fn words_in_any_order_end_no_link_in_silence_and_leave_nothing() {
    alone("words_in_any_order_end_no_link_in_silence_and_leave_nothing", || {
        let Some(dir) = shared("more-orders") else { return };
        let server = serves(&dir.config_with(&[("HANDSHAKE_TIMEOUT_MS", "2000")]));
        let mut peers: Vec<_> = (0..2)
            .map(|i| {
                attacker_with(
                    "orders",
                    &dir,
                    ATTACKER + i,
                    &format!("{}", 0x9e37_79b9 * (i as u64 + 1)),
                )
            })
            .collect();
        let mut links = std::collections::BTreeSet::new();
        let mut done = 0;
        let mut held = Vec::new();
        let end = Instant::now() + LONG * 2;
        while done < 2 || !links.is_empty() {
            assert!(Instant::now() < end, "{} links were never closed", links.len());
            done += peers.iter_mut().filter_map(|peer| peer.has_said()).count();
            for event in server.inbox().take() {
                match event {
                    ControlEvent::Connected(link) => assert!(links.insert(link.token)),
                    ControlEvent::Closed { token, .. } => {
                        assert!(links.remove(&token), "closed twice")
                    }
                    ControlEvent::ApertureHeld { token, number, pages } => {
                        assert!(links.contains(&token));
                        pages.write(0, b"x").ok();
                        held.push((token, number, pages));
                    }
                    ControlEvent::ApertureRevoked { token, number } => {
                        assert!(links.contains(&token));
                        held.retain(|row| (row.0, row.1) != (token, number));
                        server.release_aperture(token, number);
                    }
                    other => assert!(other.token().is_none_or(|token| links.contains(&token))),
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(held);
        until("nothing is left", || counter(&server, "receivers") == 0 && mappings() == 0);
        still_serves(&dir.config());
        for mut peer in peers {
            peer.tell("end");
            peer.end();
        }
    });
}

#[test]
fn users_who_stop_their_receivers_leave_some_for_others() {
    let Some(dir) = shared("more-receivers") else { return };
    let (_listener, other_end) = other_end();
    let server = serves(&dir.config_with(&[("HANDSHAKE_TIMEOUT_MS", "2000")]));
    let mut peers: Vec<_> = (0..16)
        .map(|i| attacker_with("stops-four", &dir, ATTACKER + i, &format!("{other_end}")))
        .collect();
    for peer in &mut peers {
        peer.says();
    }
    let mut honest = attacker_with("honest", &dir, ATTACKER + 99, "5");
    honest.expect("connected");
    honest.tell("end");
    honest.end();
    drop(server);
    for mut peer in peers {
        peer.tell("end");
        peer.end();
    }
}

#[test]
fn a_directory_that_its_owner_holds_stops_those_who_look_into_it_and_nothing_else() {
    alone("a_directory_that_its_owner_holds_stops_those_who_look_into_it_and_nothing_else", || {
        let Some(dir) = shared("more-holds") else { return };
        let mut peer = attacker("holds-directory", &dir, ATTACKER);
        let said = peer.says();
        if said != "held" {
            return skipped("a page that never comes: userfaultfd is not permitted here");
        }
        let config = dir.config();
        let server = serves(&config);
        let client = start(&config);
        let trap: ServiceName = format!("{ATTACKER}@trap").parse().unwrap();
        // A client that waits for one of them waits longer than this test lasts.
        let (limit, longer) = (Duration::from_secs(1), Duration::from_secs(3600));
        let dial = |limit| client.begin_connect(&trap, b"", limit, Wait::ForName).unwrap();
        let mut dialed = vec![dial(limit)];
        let stay: Vec<_> = (0..7).map(|_| dial(longer)).collect();
        until("eight look for it", || threads_called("hamlyn-look") == 8);
        // Meanwhile all goes on: connecting, both ways, serving, asking, and ending.
        let asked = config.clone();
        let ask = std::thread::spawn(move || {
            let trap = format!("{ATTACKER}@trap").parse().unwrap();
            stat_of(&asked, &trap, Some(Duration::from_millis(200))).unwrap_err().to_string()
        });
        client.connect(&name("x"), b"", LONG).unwrap();
        still_serves(&config);
        server.serve(&name("y"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
        client.connect(&name("y"), b"", LONG).unwrap();
        assert!(server.stop_serving(&name("y")));
        drop(start(&config));
        assert!(ask.join().unwrap().contains("looking for the name"));
        // A name that is not there, though other users are asked whether they have it.
        let error = client.connect_to(&name("nobody"), b"", LONG, Wait::No).unwrap_err();
        assert!(error.to_string().contains("nothing is called nobody"), "{error}");
        let names = list_services(&config);
        assert_eq!(names.held, [dir.path.join(format!("shared/{ATTACKER}"))]);
        assert_eq!(names.entries.len(), 1, "{names:?}");
        // Each client gets an error in time, those in excess with the reason, and all made a look.
        dialed.extend((0..12).map(|_| dial(limit)));
        let mut errors = Vec::new();
        while errors.len() < dialed.len() {
            if let ControlEvent::ConnectFailed { token, error } = next(&client) {
                assert!(dialed.contains(&token) && !stay.contains(&token));
                errors.push(error.to_string());
            }
        }
        assert!(threads_called("hamlyn-look") >= 8);
        let too_many = errors.iter().filter(|e| e.contains("have not come back")).count();
        assert_eq!(too_many, 12, "{errors:?}");
        drop((client, server));
        peer.tell("end");
        peer.ends_killed();
        until("those who looked have come back", || threads_called("hamlyn-look") == 0);
    });
}

#[test]
fn whoever_may_read_a_directory_holds_nobody_who_serves_names_there_for_long() {
    alone("whoever_may_read_a_directory_holds_nobody_who_serves_names_there_for_long", || {
        let Some(dir) = shared("more-reads") else { return };
        let server = start(&dir.config());
        server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
        let others: Vec<Control> = (0..16).map(|_| start(&dir.config())).collect();
        for (i, other) in others.iter().enumerate() {
            let name = name(&format!("other-{i}"));
            other.serve(&name, Access::SameUser, Accept::Automatic(vec![])).unwrap();
        }
        let manager = Manager::with_config(dir.config()).unwrap();
        let receiver = TaggedReceiver::new(&manager, TaggedConfig::new(64)).unwrap();
        let mut peer = attacker("holds-what-it-may-read", &dir, ATTACKER);
        if peer.says() != "held" {
            return skipped("a page that never comes: userfaultfd is not permitted here");
        }
        let client = start(&dir.config());
        client.connect(&name("x"), b"", LONG).unwrap();
        let began = Instant::now();
        let error = server.serve(&name("y"), Access::SameUser, Accept::Automatic(vec![]));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("chmod 711"), "{error}");
        // No other client waited meanwhile, nor does anything present end later than it would.
        client.connect(&name("x"), b"", LONG).unwrap();
        assert!(server.stop_serving(&name("x")));
        drop((server, client));
        // Many names that are given up together, and wait for one another once they can.
        std::thread::scope(|scope| {
            others.into_iter().for_each(|other| drop(scope.spawn(|| drop(other))));
        });
        // Nor do the other end points of a manager, of which one is to be served.
        std::thread::scope(|scope| {
            let looking = threads_called("hamlyn-look");
            let serves = scope.spawn(|| receiver.serve("z", Access::SameUser).unwrap_err());
            until("it tries to", || threads_called("hamlyn-look") > looking);
            for _ in 0..100 {
                manager.poll().unwrap();
            }
            assert!(!serves.is_finished(), "nobody had to wait");
            assert!(serves.join().unwrap().to_string().contains("chmod 711"));
        });
        assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
        peer.tell("end");
        peer.ends_killed();
        // A name that was given up is not left behind.
        until("no name is left", || {
            threads_called("hamlyn-look") == 0 && list_services(&dir.config()).entries.is_empty()
        });
    });
}

#[test]
fn a_shared_directory_that_somebody_holds_stops_nobody_who_serves() {
    alone("a_shared_directory_that_somebody_holds_stops_nobody_who_serves", || {
        let Some(dir) = shared("more-held-shared") else { return };
        // Root's own directory there; the one in which it serves for itself is yet to be made.
        let lies_in_shared = dir.config().dir(dir.path.join("shared/private"));
        let server = start(&dir.config());
        server.serve(&name("x"), Access::Anyone, Accept::Automatic(vec![])).unwrap();
        let client = start(&dir.config());
        client.connect(&name("x"), b"", LONG).unwrap();
        let mut peer = attacker("holds-shared", &dir, ATTACKER);
        let said = peer.says();
        if said != "held" {
            return skipped("a page that never comes: userfaultfd is not permitted here");
        }
        let limit = Duration::from_secs(20);
        let serve = |config: hamlyn::Config, access| {
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let server = start(&config);
                let served = server.serve(&name("y"), access, Accept::Automatic(vec![]));
                let _ = tell.send(served.map_err(|e| e.to_string()));
            });
            told.recv_timeout(limit)
        };
        // Where its directory is there, nothing need be made.
        let served = serve(dir.config(), Access::Anyone);
        let not_there = serve(lies_in_shared.clone(), Access::SameUser);
        let began = Instant::now();
        let names = list_services(&lies_in_shared);
        let took = began.elapsed();
        peer.tell("end");
        peer.ends_killed();
        assert_eq!(served, Ok(Ok(())), "a name in a directory that is there");
        let error = not_there.expect("it waits for as long as somebody likes").unwrap_err();
        assert!(error.contains("has not answered"), "{error}");
        assert!(took < limit, "{names:?}");
        until("those who looked have come back", || threads_called("hamlyn-look") == 0);
        client.connect(&name("x"), b"", LONG).unwrap();
    });
}
