//! Attacks on the control plane by a process of another user, which sends the frames itself. Each
//! succeeded once; the tests show that the victim goes on, not how fast.
#![cfg(feature = "os")]

#[path = "control_help/attackers.rs"]
mod attackers;
mod control_help;
mod support;

use attackers::*;
use control_help::{
    Connects, RING, THEIR_RING, counter, expect_word, half_way, hello_of, link_by_hand, name, next,
    pass_with, receive, ring_file, ring_offer, say as speak, send, start, stranger, take,
    until_taken,
};
use hamlyn::ApertureAccess;
use hamlyn::control::frame::{
    Credential, Frame, Hello, MemoryWord, Purpose, VERSION_MAJOR, Welcome,
};
use hamlyn::control::{ControlEvent, Identity, LinkEnd, Reason, ServiceName};
use hamlyn::os::aperture::{ExportLimits, Ledger, Owned};
use hamlyn::os::memory::{self, Region, RegionLines, region_bytes};
use hamlyn::os::socket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use support::*;

/// Pages that never come, for any process that touches them; a touch is reported.
struct Abyss {
    descriptor: OwnedFd,
    page: *mut libc::c_void,
}

// SAFETY: an address that no code reads.
unsafe impl Send for Abyss {}

impl Abyss {
    /// Only root may make one that stops the kernel's own accesses.
    fn new() -> Self {
        use std::os::fd::FromRawFd;
        // UFFDIO_API and UFFDIO_REGISTER of linux/userfaultfd.h.
        const API: libc::c_ulong = 0xc018_aa3f;
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        // SAFETY: a system call that makes a descriptor; structures as the kernel has them, alive
        // for the calls; a new mapping that replaces nothing.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            assert!(fd >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
            let descriptor = OwnedFd::from_raw_fd(fd as i32);
            let mut api = [0xaa_u64, 0, 0];
            assert_eq!(libc::ioctl(descriptor.as_raw_fd(), API, api.as_mut_ptr()), 0);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(core::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            let mut register = [page as u64, 4096, 1, 0];
            assert_eq!(libc::ioctl(descriptor.as_raw_fd(), REGISTER, register.as_mut_ptr()), 0);
            Self { descriptor, page }
        }
    }

    /// From here on a thread writes from the page into `file`, and holds its inode's lock until
    /// this process ends.
    fn hold_lock(self, file: &OwnedFd) {
        let fd = file.as_raw_fd();
        let page = self.page as usize;
        std::thread::spawn(move || {
            // SAFETY: the kernel reads from a page that is mapped.
            unsafe { libc::pwrite(fd, page as *const libc::c_void, 4096, 0) };
        });
        // The kernel reports that a process has touched the page: the write is under way.
        let mut event = [0u8; 32];
        // SAFETY: the buffer is alive and as long as it is said.
        let n = unsafe {
            libc::read(self.descriptor.as_raw_fd(), event.as_mut_ptr().cast(), event.len())
        };
        assert_eq!(n, 32, "no fault came: {}", std::io::Error::last_os_error());
        core::mem::forget(self);
    }
}

/// Not a test: what the attackers do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let dir = PathBuf::from(&role.args[0]);
    let at = socket_of(&dir);
    match role.name.as_str() {
        "other-version" => {
            become_user(&role);
            for _ in 0..50 {
                let link = link_by_hand(&at);
                let version = (VERSION_MAJOR + 1, 0);
                send(&link.fd, &Frame::Hello(Hello { version, ..hello_of(Purpose::Link) }));
                while receive(&link.fd).is_some() {}
                let fd = stranger(&at);
                send(&fd, &Frame::Hello(hello_of(Purpose::Stat)));
                send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
                while receive(&fd).is_some() {}
            }
            say("done");
            role.wait_for("end");
        }
        "locked-ring" => {
            let abyss = Abyss::new();
            become_user(&role);
            let (fd, _wake, welcome) = half_way(&at);
            until_taken(&fd, &welcome);
            let file = memory::create(region_bytes(welcome.client_ring_bytes as usize)).unwrap();
            let size = region_bytes(welcome.client_ring_bytes as usize);
            Region::map_writable(&file, size).unwrap().fill_by_writing().unwrap();
            memory::seal(&file, memory::SEALS_SIZE).unwrap();
            abyss.hold_lock(&file);
            // A process that seals it now, waits.
            pass_with(&fd, RING, &[&file]).unwrap();
            let Some((Frame::Refused { reason, .. }, _)) = receive(&fd) else { panic!() };
            say(&format!("{reason}"));
            role.wait_for("end");
        }
        "locked-aperture" => {
            let abyss = Abyss::new();
            become_user(&role);
            let link = link_by_hand(&at);
            let Some((Frame::Memory { memory, .. }, _)) = receive(&link.fd) else { panic!() };
            speak(&link.fd, memory, MemoryWord::Take { bytes: 4096 });
            let file = expect_word(&link.fd, memory, MemoryWord::Pass).pop().unwrap();
            let lines = RegionLines::map_writable(&file, 4096).unwrap();
            speak(&link.fd, memory, MemoryWord::Held);
            abyss.hold_lock(&file);
            say("held");
            role.wait_for("end");
            drop((lines, link));
        }
        "lingering-ring" => {
            become_user(&role);
            let mut kept = Vec::new();
            for _ in 0..20 {
                let fd = stranger(&at);
                send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
                let Some((Frame::Welcome(welcome), _)) = receive(&fd) else { break };
                speak(&fd, RING, ring_offer(welcome.client_ring_bytes));
                // The first few have a receiver; the others wait for one, in vain.
                match receive(&fd) {
                    Some((Frame::Memory { .. }, _)) => {}
                    _ => break,
                }
                let (socket, other) = lingering();
                pass_and_close(&fd, RING, vec![socket]);
                kept.push((fd, other));
            }
            say(&format!("passed {}", kept.len()));
            role.wait_for("end");
        }
        "lingering-server" => {
            let user = become_user(&role);
            let own = dir.join(format!("shared/{user}"));
            std::fs::create_dir_all(&own).unwrap();
            std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
            let listener = socket::bind(&own.join("trap")).unwrap();
            std::fs::set_permissions(own.join("trap"), std::fs::Permissions::from_mode(0o666))
                .unwrap();
            rustix::net::listen(&listener, 128).unwrap();
            say("serving");
            serve_lingering(&listener, &role);
        }
        "copied-credential" => {
            become_user(&role);
            let fd = stranger(&at);
            send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
            let Some((Frame::Welcome(Welcome { credential, .. }), _)) = receive(&fd) else {
                panic!()
            };
            // The credential it has seen, and those it can make of it.
            let own = hello_of(Purpose::Link).credential;
            let stolen = [
                credential,
                Credential { process: own.process, pid: own.pid, ..credential },
                Credential { process: 0, ..credential },
                Credential { public_key: own.public_key, signature: own.signature, ..credential },
            ];
            for credential in stolen {
                let fd = stranger(&at);
                send(&fd, &Frame::Hello(Hello { credential, ..hello_of(Purpose::Link) }));
                let Some((Frame::Refused { reason, .. }, _)) = receive(&fd) else { panic!() };
                assert_eq!(reason, Reason::Identity);
            }
            say("refused");
            role.wait_for("end");
        }
        "never-pays" => {
            become_user(&role);
            let mut held = Vec::new();
            for _ in 0..100 {
                let fd = stranger(&at);
                send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
                held.push(fd);
            }
            say("waiting");
            role.wait_for("end");
        }
        "punches" => {
            become_user(&role);
            // It goes on changing the file it has passed: the seals are there before any process
            // maps it.
            let (fd, _wake, welcome) = half_way(&at);
            until_taken(&fd, &welcome);
            let (region, file) = ring_file(welcome.client_ring_bytes);
            pass_with(&fd, RING, &[&file]).unwrap();
            expect_word(&fd, RING, MemoryWord::Held);
            let punch =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            assert!(rustix::fs::fallocate(&file, punch, 0, 4096).is_err());
            assert!(rustix::fs::ftruncate(&file, 0).is_err());
            expect_word(&fd, THEIR_RING, ring_offer(welcome.server_ring_bytes));
            say("refused by the kernel");
            role.wait_for("end");
            drop(region);
        }
        other => panic!("no role is called {other}"),
    }
}

/// Welcomes any client, and passes a lingering socket in place of its ring.
fn serve_lingering(listener: &OwnedFd, role: &Role) {
    let identity = Identity::new().unwrap();
    let mut kept = Vec::new();
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| role.wait_for("end"));
        while !ends.is_finished() {
            let Ok(Some(fd)) = socket::accept(listener) else {
                std::thread::sleep(std::time::Duration::from_millis(1));
                continue;
            };
            let Some((Frame::Hello(hello), _)) = receive(&fd) else { continue };
            if hello.purpose == Purpose::Wake {
                kept.push((fd, None));
                continue;
            }
            send(
                &fd,
                &Frame::Welcome(Welcome {
                    minor: 0,
                    credential: identity.credential(),
                    features: 0,
                    client_ring_bytes: 4096,
                    server_ring_bytes: 4096,
                    packet_bytes: 64,
                    cookie: [0; 16],
                    greeting: vec![],
                }),
            );
            expect_word(&fd, RING, ring_offer(4096));
            socket::accept_descriptors(&fd, true);
            speak(&fd, RING, take(4096));
            expect_word(&fd, RING, MemoryWord::Pass);
            speak(&fd, RING, MemoryWord::Held);
            speak(&fd, THEIR_RING, ring_offer(4096));
            if receive(&fd).is_none() {
                continue;
            }
            let (socket, other) = lingering();
            pass_and_close(&fd, THEIR_RING, vec![socket]);
            kept.push((fd, Some(other)));
        }
    });
    drop(kept);
}

#[test]
fn links_that_lie_about_their_version_or_ask_for_statistics_are_given_back_and_reported() {
    let Some(dir) = shared("attack-version") else { return };
    let server = serves(&dir.config_with(&[("LINKS_MAX", "8")]));
    let mut peer = attacker("other-version", &dir, ATTACKER);
    let (mut connected, mut closed) = (0, 0);
    while closed < 50 {
        match next(&server) {
            ControlEvent::Connected(_) => connected += 1,
            ControlEvent::Closed { reason, .. } => {
                assert_eq!(reason, LinkEnd::Violation);
                closed += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    peer.expect("done");
    assert_eq!((connected, counter(&server, "closed_violation")), (50, 50));
    assert_eq!(counter(&server, "refused_statistics"), 50);
    // All places are free again.
    let client = start(&dir.config());
    let links: Vec<_> = (0..7).map(|_| client.connect(&name("x"), b"", LONG).unwrap()).collect();
    assert_eq!(links.len(), 7);
    peer.tell("end");
    peer.end();
}

#[test]
fn a_lock_that_a_client_holds_on_its_ring_stops_nobody() {
    let Some(dir) = shared("attack-lock") else { return };
    let server = serves(&dir.config());
    let mut peers: Vec<_> = (0..3).map(|_| attacker("locked-ring", &dir, ATTACKER)).collect();
    for peer in &mut peers {
        peer.expect("the memory was not as agreed");
    }
    // They hold the locks still.
    still_serves(&dir.config());
    assert_eq!(counter(&server, "refused_memory"), 3);
    drop(server);
    for mut peer in peers {
        peer.tell("end");
        peer.end();
    }
}

#[test]
fn an_aperture_is_taken_back_while_its_holder_holds_the_inodes_lock() {
    let Some(dir) = shared("attack-revoke") else { return };
    let server = serves(&dir.config());
    let mut peer = attacker("locked-aperture", &dir, ATTACKER);
    let ControlEvent::Connected(link) = next(&server) else { panic!() };
    let ledger = Arc::new(Ledger::default());
    let limits = ExportLimits { all: 1 << 20, user: 1 << 20 };
    let (owned, file) = Owned::make(
        ApertureAccess::ReadWrite,
        ledger.reserve(4096, link.peer.uid, limits).unwrap(),
    )
    .unwrap();
    let access = ApertureAccess::ReadWrite;
    let number = server.export_aperture(link.token, access, 4096, file).unwrap();
    assert!(matches!(next(&server), ControlEvent::ApertureReady { .. }));
    peer.expect("held");
    assert!(owned.revoke(None));
    server.revoke_aperture(link.token, number);
    drop(owned);
    // It has all been taken back while the lock is held; what the holder keeps counts as its own.
    assert_eq!(ledger.orphan_bytes(), 4096);
    still_serves(&dir.config());
    drop(server);
    peer.tell("end");
    peer.end();
    until("the pages are given back", || {
        ledger.settle();
        ledger.bytes() == 0
    });
}

#[test]
fn a_socket_that_lingers_stops_a_few_receivers_of_its_user_and_nothing_else() {
    let Some(dir) = shared("attack-linger") else { return };
    let config = dir.config_with(&[("HANDSHAKE_TIMEOUT_MS", "1500")]);
    let server = serves(&config);
    let mut peer = attacker("lingering-ring", &dir, ATTACKER);
    let said = peer.says();
    let stopped = counter(&server, "receivers");
    assert!((1..=4).contains(&stopped), "{stopped}, {said}");
    // Others are served as before, and the end of the server waits for none of them.
    for _ in 0..10 {
        still_serves(&dir.config());
    }
    until("those of the others have ended", || counter(&server, "receivers") <= stopped);
    drop(server);
    peer.tell("end");
    peer.end();
}

#[test]
fn a_server_that_passes_lingering_sockets_costs_its_client_nothing_that_others_need() {
    alone(
        "a_server_that_passes_lingering_sockets_costs_its_client_nothing_that_others_need",
        || {
            let Some(dir) = shared("attack-server") else { return };
            let mut peer = attacker("lingering-server", &dir, ATTACKER);
            peer.expect("serving");
            let config = dir.config_with(&[("HANDSHAKE_TIMEOUT_MS", "1000")]);
            let client = start(&config);
            let trap: ServiceName = format!("{ATTACKER}@trap").parse().unwrap();
            let mut errors = Vec::new();
            for _ in 0..8 {
                let limit = std::time::Duration::from_secs(2);
                errors.push(client.connect(&trap, b"", limit).unwrap_err().to_string());
            }
            assert!(errors[0].contains("not as agreed"), "{errors:?}");
            let stopped = counter(&client, "receivers");
            assert!((1..=4).contains(&stopped), "{stopped}, {errors:?}");
            assert!(control_help::descriptors() < 200);
            // An honest server of another user is reached as before, and the client's end waits for
            // no process.
            let server = serves(&dir.config());
            client.connect(&name("x"), b"", LONG).unwrap();
            drop((client, server));
            peer.tell("end");
            peer.end();
        },
    );
}

#[test]
fn a_credential_that_was_seen_is_of_no_use() {
    let Some(dir) = shared("attack-credential") else { return };
    let server = serves(&dir.config());
    let mut peer = attacker("copied-credential", &dir, ATTACKER);
    peer.expect("refused");
    assert_eq!(counter(&server, "refused_identity"), 4);
    assert_eq!(counter(&server, "links"), 0);
    peer.tell("end");
    peer.end();
}

#[test]
fn users_who_never_pay_take_no_place_that_another_needs() {
    let Some(dir) = shared("attack-unpaid") else { return };
    let config = dir.config_with(&[
        ("HALF_OPEN_MAX", "20"),
        ("HANDSHAKE_TIMEOUT_MS", "600000"),
        ("LINKS_MAX", "64"),
    ]);
    let server = serves(&config);
    let mut peers: Vec<_> = (0..3).map(|i| attacker("never-pays", &dir, ATTACKER + i)).collect();
    for peer in &mut peers {
        peer.expect("waiting");
    }
    let client = start(&dir.config());
    let links: Vec<_> = (0..10).map(|_| client.connect(&name("x"), b"", LONG).unwrap()).collect();
    assert_eq!(links.len(), 10);
    // One of the users with the most has given way.
    assert!(counter(&server, "refused_unpaid") >= 1);
    for mut peer in peers {
        peer.tell("end");
        peer.end();
    }
}

#[test]
fn what_was_passed_cannot_be_changed_behind_the_readers_back() {
    let Some(dir) = shared("attack-punch") else { return };
    let server = serves(&dir.config());
    let mut peer = attacker("punches", &dir, ATTACKER);
    peer.expect("refused by the kernel");
    assert_eq!(counter(&server, "refused_memory"), 0);
    peer.tell("end");
    peer.end();
}
