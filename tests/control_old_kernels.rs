//! Kernels before Linux 6.16, on which a socket cannot refuse descriptors: attacks by processes of
//! other users that pass descriptors which block the process that closes them. A filter of system
//! calls, which the victim installs before its node is made, acts as such a kernel.
#![cfg(feature = "os")]

#[path = "control_help/attackers.rs"]
mod attackers;
mod control_help;
mod support;

use attackers::*;
use control_help::{
    Connects, RING, half_way, hello_of, link_by_hand, receive, send, start, stranger, until_taken,
    word,
};
use hamlyn::control::frame::{Frame, Hello, LinkSide, Memory, MemoryWord, Purpose, Welcome};
use hamlyn::control::{Accept, Access, Identity, stat_of};
use hamlyn::os::socket;
use hamlyn::{ApertureAccess, Node};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::*;

/// The option `SO_PASSRIGHTS`, by which a socket refuses descriptors.
const PASS_RIGHTS: u32 = 83;
/// The longest time of the victims' calls; a blocking close would take an hour.
const AT_ONCE: Duration = Duration::from_secs(10);

/// From now on a socket of this process cannot refuse descriptors.
fn be_old() {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let no = libc::SECCOMP_RET_ERRNO | libc::ENOPROTOOPT as u32;
    let mut filter = [
        // The number of the system call is the first word of what a filter sees, and the lower half
        // of its third argument, which names the option, the ninth.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, libc::SYS_setsockopt as u32),
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16 + 2 * 8),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, PASS_RIGHTS),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, no),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    support::filter_calls(&mut filter);
    assert!(!socket::has_pass_rights());
}

/// Sends a frame with sockets that linger, none of which this process keeps.
fn send_lingering(fd: &OwnedFd, frame: &[u8], other_end: SocketAddr, many: usize) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let files: Vec<_> = (0..many).map(|_| lingering_to(other_end, 3600)).collect();
    let (fd, frame) = (fd.try_clone().unwrap(), frame.to_vec());
    let (sender, sent) = channel();
    // The process that closes one last is blocked: if the victim was faster, that is this thread.
    std::thread::spawn(move || {
        let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [std::io::IoSlice::new(&frame)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let result = rustix::net::sendmsg(&fd, &bytes, &mut control, flags);
        let _ = sender.send(result.is_ok());
    });
    sent.recv().unwrap();
}

fn pass() -> Vec<u8> {
    word(RING, MemoryWord::Pass).to_bytes()
}

/// Where an attacker passes what lingers to a server.
const PLACES: [&str; 7] = ["hello", "queue", "linked", "wake", "wake-then-bye", "second", "ring"];

fn attack_server(at: &PathBuf, place: &str, other_end: SocketAddr) -> Vec<OwnedFd> {
    let lingering = |fd: &OwnedFd, frame: &[u8], many| send_lingering(fd, frame, other_end, many);
    let bye = Frame::Bye.to_bytes();
    match place {
        "hello" => {
            let fd = stranger(at);
            lingering(&fd, &Frame::Hello(hello_of(Purpose::Link)).to_bytes(), 2);
            vec![fd]
        }
        // Behind the frame that ends the connection.
        "queue" => {
            let fd = stranger(at);
            send(&fd, &Frame::Bye);
            (0..4).for_each(|_| lingering(&fd, &bye, 1));
            vec![fd]
        }
        "linked" => {
            let link = link_by_hand(at);
            lingering(&link.fd, &bye, 1);
            vec![link.fd, link.wake]
        }
        "wake" | "wake-then-bye" => {
            let link = link_by_hand(at);
            lingering(&link.wake, &[1], 1);
            if place == "wake-then-bye" {
                send(&link.fd, &Frame::Bye);
            }
            vec![link.fd, link.wake]
        }
        // In the queue of the second connection, before it is joined.
        "second" => {
            let fd = stranger(at);
            send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
            let Some((Frame::Welcome(welcome), _)) = receive(&fd) else { panic!("no welcome") };
            let wake = stranger(at);
            let cookie = welcome.cookie;
            send(&wake, &Frame::Hello(Hello { cookie, ..hello_of(Purpose::Wake) }));
            (0..3).for_each(|_| lingering(&wake, &[1], 1));
            vec![fd, wake]
        }
        "ring" => {
            let (fd, wake, welcome) = half_way(at);
            until_taken(&fd, &welcome);
            (0..3).for_each(|_| lingering(&fd, &pass(), 1));
            vec![fd, wake]
        }
        other => panic!("no place is called {other}"),
    }
}

/// The service `trap` of the user who runs this, with a socket for everybody.
fn trap(dir: &Path, user: u32) -> OwnedFd {
    let own = dir.join(format!("shared/{user}"));
    std::fs::DirBuilder::new().mode(0o755).create(&own).unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = own.join("trap");
    let listener = socket::bind(&path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    rustix::net::listen(&listener, 128).unwrap();
    listener
}

fn next_of(listener: &OwnedFd) -> OwnedFd {
    let end = Instant::now() + LONG;
    loop {
        match socket::accept(listener).unwrap() {
            Some(fd) => {
                socket::accept_descriptors(&fd, true);
                return fd;
            }
            None => assert!(Instant::now() < end, "nobody connects"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Where an attacker passes what lingers to its clients.
const TRAPS: [&str; 4] = ["greeting", "statistics", "welcome", "wake"];

fn attack_client(listener: &OwnedFd, place: &str, other_end: SocketAddr) -> Vec<OwnedFd> {
    let first = next_of(listener);
    let lingering = |fd: &OwnedFd, frame: &[u8]| send_lingering(fd, frame, other_end, 1);
    let text = Frame::StatText { text: b"a 1\n".to_vec(), is_last: false };
    match place {
        // Before it has said anything, and behind that.
        "greeting" => (0..3).for_each(|_| lingering(&first, &Frame::Ready.to_bytes())),
        "statistics" => {
            assert!(matches!(receive(&first), Some((Frame::Hello(_), _))));
            (0..3).for_each(|_| lingering(&first, &text.to_bytes()));
        }
        _ => {
            let Some((Frame::Hello(hello), _)) = receive(&first) else { panic!("no hello") };
            let welcome = Frame::Welcome(Welcome {
                minor: hello.version.1,
                credential: Identity::new().unwrap().credential(),
                features: hello.features,
                client_ring_bytes: hello.ring_bytes,
                server_ring_bytes: 4096,
                packet_bytes: 64,
                cookie: [7; 16],
                greeting: vec![],
            });
            if place == "welcome" {
                lingering(&first, &welcome.to_bytes());
            } else {
                send(&first, &welcome);
                let second = next_of(listener);
                (0..3).for_each(|_| lingering(&second, &[1]));
                let offer = MemoryWord::Offer { bytes: 4096, access: ApertureAccess::ReadOnly };
                let bulk = Memory::Bulk(LinkSide::Server);
                // Out of turn: the client ends the connection, with what is in its queues.
                lingering(&first, &word(bulk, offer).to_bytes());
                return vec![first, second];
            }
        }
    }
    vec![first]
}

/// Not a test: what attackers and victims do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let dir = PathBuf::from(&role.args[0]);
    let other_end = || -> SocketAddr { role.args[2].parse().unwrap() };
    match role.name.as_str() {
        "old-server" => {
            be_old();
            let mut node = Node::with_config(role.config()).unwrap();
            node.serve("x", Access::Anyone, Accept::Automatic(vec![])).unwrap();
            say("serving");
            role.wait_for("look");
            while node.next_event().is_some() {}
            say("looked");
            role.wait_for("end");
            drop(node);
            say("ended");
        }
        "old-client" => {
            be_old();
            let mut node = Node::with_config(role.config()).unwrap();
            let failed = node.connect(&role.args[1], b"", Some(Duration::from_secs(1))).is_err();
            say(&format!("failed {failed}"));
            drop(node);
            say("ended");
        }
        "old-asker" => {
            be_old();
            let name = role.args[1].parse().unwrap();
            let failed = stat_of(&role.config(), &name, Some(Duration::from_secs(1))).is_err();
            say(&format!("failed {failed}"));
            say("ended");
        }
        "attacks-server" => {
            become_user(&role);
            let at = socket_of(&dir);
            let mut kept = Vec::new();
            // As many receivers as a user has are stopped, in the last place.
            let times = if role.args[3] == "ring" { 4 } else { 8 };
            for i in 0..times {
                kept.extend(attack_server(&at, &role.args[3], other_end()));
                if i % 4 == 3 {
                    kept.clear();
                }
            }
            say("attacked");
            role.wait_for("end");
        }
        "attacks-client" => {
            let user = become_user(&role);
            let listener = trap(&dir, user);
            say("listening");
            let kept = attack_client(&listener, &role.args[3], other_end());
            say("attacked");
            role.wait_for("end");
            drop(kept);
        }
        // Not old: one that asks, and has a second.
        "asker" => {
            let name = role.args[1].parse().unwrap();
            let told = stat_of(&role.config(), &name, Some(Duration::from_secs(1)));
            say(&told.map_or_else(|e| e.to_string(), |text| text.replace('\n', "/")));
        }
        // Answers on command: text in many frames, or a malformed frame.
        "answers" => {
            let user = become_user(&role);
            let listener = trap(&dir, user);
            say("listening");
            let fd = next_of(&listener);
            assert!(matches!(receive(&fd), Some((Frame::Hello(_), _))));
            say("asked");
            role.wait_for("answer");
            match role.args[2].as_str() {
                "escapes" => {
                    let text = b"a\x1b]0;b\x07 1\n\xe2\x80\xae2 \xff3\n".to_vec();
                    send(&fd, &Frame::StatText { text, is_last: true });
                }
                "nothing" => send(&fd, &Frame::StatText { text: vec![], is_last: false }),
                _ => (0..8).for_each(|i| {
                    send(&fd, &Frame::StatText { text: b"a 1\n".to_vec(), is_last: i == 7 });
                }),
            }
            say("answered");
            role.wait_for("end");
        }
        other => panic!("no role is called {other}"),
    }
}

/// Says this next, and soon.
#[track_caller]
fn says_at_once(peer: &mut Peer, text: &str) {
    let end = Instant::now() + AT_ONCE;
    loop {
        if let Some(said) = peer.has_said() {
            return assert_eq!(said, text);
        }
        assert!(Instant::now() < end, "it is stopped by a peer's descriptor");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_server_that_cannot_refuse_descriptors_waits_for_none_of_them() {
    for place in PLACES {
        let Some(dir) = shared(&format!("old-{place}")) else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other_end = listener.local_addr().unwrap();
        let path = dir.path.display();
        let mut server = Peer::start("old-server", &dir, &format!("{path}"));
        server.expect("serving");
        let rest = format!("{path} {ATTACKER} {other_end} {place}");
        let mut attacker = Peer::start("attacks-server", &dir, &rest);
        attacker.expect("attacked");
        let client = start(&dir.config());
        client.connect(&"0@x".parse().unwrap(), b"", AT_ONCE).unwrap();
        server.tell("look");
        says_at_once(&mut server, "looked");
        server.tell("end");
        says_at_once(&mut server, "ended");
        server.kill();
        attacker.kill();
    }
}

#[test]
fn clients_that_cannot_refuse_descriptors_wait_for_none_of_them() {
    for (i, place) in TRAPS.into_iter().enumerate() {
        for victim in ["old-client", "old-asker"] {
            let is_asked = victim == "old-asker";
            if (place == "statistics") != is_asked && place != "greeting" {
                continue;
            }
            let Some(dir) = shared(&format!("old-client-{i}")) else { return };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let other_end = listener.local_addr().unwrap();
            let path = dir.path.display();
            let rest = format!("{path} {ATTACKER} {other_end} {place}");
            let mut attacker = Peer::start("attacks-client", &dir, &rest);
            attacker.expect("listening");
            let mut victim = Peer::start(victim, &dir, &format!("{path} {ATTACKER}@trap"));
            says_at_once(&mut victim, "failed true");
            says_at_once(&mut victim, "ended");
            victim.kill();
            attacker.kill();
        }
    }
}

#[test]
fn the_time_limit_of_asking_for_statistics_holds_whatever_has_been_sent() {
    let cases = [
        ("much", "the time was up"),
        ("nothing", "no statistics came"),
        // And the reason has only characters that a terminal may print.
        ("escapes", "a\\u{1b}]0;b\\u{7} 1/\\u{202e}2 \u{fffd}3/"),
    ];
    for (text, wanted) in cases {
        let Some(dir) = shared(&format!("late-{text}")) else { return };
        let path = dir.path.display();
        let mut attacker = Peer::start("answers", &dir, &format!("{path} {ATTACKER} {text}"));
        attacker.expect("listening");
        let mut asker = Peer::start("asker", &dir, &format!("{path} {ATTACKER}@trap"));
        attacker.expect("asked");
        if text == "much" {
            // It finds all of it when its time is over, as it would find more and more of it.
            asker.stop();
        }
        attacker.tell("answer");
        attacker.expect("answered");
        if text == "much" {
            std::thread::sleep(Duration::from_millis(1100));
            asker.signal(libc::SIGCONT);
        }
        let said = asker.says();
        assert!(said.contains(wanted), "{text}: {said}");
        asker.end();
        attacker.kill();
    }
}
