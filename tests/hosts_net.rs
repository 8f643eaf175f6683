//! Two hosts with a cable between them: two network namespaces joined by veth. The cable is cut and
//! mended, packets are lost, and the other host is stopped and killed. Without the right to make
//! namespaces (root's), or without iproute2, nothing of this runs, which is said loudly.
#![cfg(not(miri))]

mod support;

use hamlyn::node::{CloseReason, Event};
use hamlyn::protocol::{
    CallError, Client, Manager, Server, ServerConfig, StreamConfig, StreamReceiver, StreamSender,
};
use hamlyn::{Accept, Access, Node};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use support::{Dir, LIMIT, Peer, Role, loud, say, skipped};

/// Milliseconds after which a host that does not answer is gone, in these tests.
const TIMEOUT: &str = "2000";
/// Longer than that.
const LONGER: Duration = Duration::from_millis(5000);
/// Within this a host that is gone is told of. The kernel would take a quarter of an hour.
const BOUND: Option<Duration> = Some(Duration::from_secs(15));

fn run(line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{line}: {e}"))?;
    let error = || format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    output.status.success().then_some(()).ok_or_else(error)
}

/// Two hosts, `here` and `there`, and a directory for what both have.
struct Net {
    here: String,
    there: String,
    keys: Dir,
}

impl Net {
    /// `None`, which is said: this machine does not let it be made.
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = |side: &str| format!("hamlyn-{pid}-{count}-{side}");
        let net = Self { here: name("here"), there: name("there"), keys: Dir::new("net", &[]) };
        let (here, there) = (&net.here, &net.there);
        // Dropped, and so removed, at the first that fails.
        if let Err(why) = run(&format!("ip netns add {here}")) {
            skipped(&format!("no network namespaces: {why}"));
            return None;
        }
        let (v, w) = (format!("hm{pid}v{count}"), format!("hm{pid}w{count}"));
        let lines = [
            format!("ip netns add {there}"),
            format!("ip -n {here} link add {v} type veth peer name {w} netns {there}"),
            format!("ip -n {here} link set {v} name cable"),
            format!("ip -n {there} link set {w} name cable"),
            format!("ip -n {here} addr add 10.77.0.1/24 dev cable"),
            format!("ip -n {there} addr add 10.77.0.2/24 dev cable"),
            format!("ip -n {here} addr add fd77::1/64 dev cable nodad"),
            format!("ip -n {there} addr add fd77::2/64 dev cable nodad"),
            format!("ip -n {here} link set cable up"),
            format!("ip -n {there} link set cable up"),
        ];
        for line in lines {
            run(&line).unwrap();
        }
        let mut options = File::options();
        let file = options.write(true).create(true).mode(0o600).open(net.secret()).unwrap();
        std::io::Write::write_all(&mut &file, "7f".repeat(32).as_bytes()).unwrap();
        Some(net)
    }

    fn secret(&self) -> String {
        self.keys.path.join("secret").display().to_string()
    }

    fn cable(&self, state: &str) {
        run(&format!("ip -n {} link set cable {state}", self.there)).unwrap();
    }

    fn cut(&self) {
        self.cable("down");
    }

    fn mend(&self) {
        self.cable("up");
    }

    fn dir(&self, name: &str, settings: &[(&str, &str)]) -> Dir {
        let secret = self.secret();
        let own = [("SECRET", secret.as_str()), ("HOST_TIMEOUT_MS", TIMEOUT)];
        Dir::new(name, &[&own, settings].concat())
    }

    /// A process there, listening at this address, and where it does.
    fn peer(&self, role: &str, address: &str) -> (Peer, Dir, String) {
        let dir = self.dir("there", &[("LISTEN", address)]);
        let before = ["ip", "netns", "exec", &self.there];
        let mut peer = Peer::run(role, Peer::command(role, &dir, "", &before));
        let at = format!("hamlyn://{}", peer.says());
        (peer, dir, at)
    }

    /// Runs `body` with a manager here. The sockets of a thread, and of those that it starts, are in
    /// its namespace.
    fn here(&self, settings: &[(&str, &str)], body: impl FnOnce(&Manager)) {
        let dir = self.dir("here", settings);
        let _inside = Inside::enter(&format!("/run/netns/{}", self.here));
        body(&Manager::with_config(dir.config()).unwrap());
    }
}

/// This thread is in another network namespace until it is dropped.
struct Inside(File);

impl Inside {
    fn enter(path: &str) -> Self {
        let own = File::open("/proc/thread-self/ns/net").unwrap();
        switch(&File::open(path).unwrap());
        Self(own)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        switch(&self.0);
    }
}

fn switch(namespace: &File) {
    // SAFETY: a system call on a descriptor that is open.
    let rc = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in [&self.here, &self.there] {
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}

const ADDRESS: &str = "10.77.0.2:7000";

fn doubles(client: &Client, lengths: &[usize]) {
    for length in lengths {
        let request: Vec<u8> = (0..*length).map(|i| (i % 251) as u8).collect();
        assert_eq!(*client.call(&request, LIMIT).unwrap(), *request.repeat(2));
    }
}

#[test]
fn calls_are_answered_by_either_version_of_the_protocol() {
    let Some(net) = Net::new() else { return };
    for address in [ADDRESS, "[fd77::2]:7000"] {
        let (_peer, _dir, at) = net.peer("server", address);
        assert_eq!(at, format!("hamlyn://{address}"));
        net.here(&[], |manager| {
            let client = Client::connect(manager, &format!("{at}/double"), LIMIT).unwrap();
            doubles(&client, &[0, 1, 5000, 1_000_000]);
        });
    }
}

#[test]
fn a_cable_that_is_cut_for_long_is_told_to_whoever_waits_at_either_end() {
    let Some(net) = Net::new() else { return };
    let (mut peer, _dir, at) = net.peer("told", ADDRESS);
    let (_server, _dir, _) = net.peer("server", "10.77.0.2:7001");
    net.here(&[], |manager| {
        let node = Node::with_config(net.dir("idle", &[]).config());
        let mut idle = node.unwrap();
        idle.connect(&format!("{at}/x"), &[], LIMIT).unwrap();
        peer.expect("connected");
        let client = Client::connect(manager, "hamlyn://10.77.0.2:7001/double", LIMIT).unwrap();
        doubles(&client, &[100]);
        net.cut();
        // One has something on its way, and one nothing.
        let error = client.call(b"?", BOUND).unwrap_err();
        assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
        let reason = loop {
            match idle.next_event() {
                Some(Event::Closed { reason, .. }) => break reason,
                Some(_) => {}
                None => assert!(idle.wait(BOUND).unwrap(), "nothing is told"),
            }
        };
        assert!(matches!(reason, CloseReason::Died), "{reason:?}");
        peer.expect("Died");
    });
}

#[test]
fn a_cable_that_is_mended_in_time_has_lost_nothing() {
    let Some(net) = Net::new() else { return };
    let (mut peer, _dir, at) = net.peer("records", ADDRESS);
    net.here(&[("HOST_TIMEOUT_MS", "30000")], |manager| {
        let mut sender = StreamSender::connect(manager, &format!("{at}/records"), LIMIT).unwrap();
        let records = 400u32;
        for i in 0..records {
            if i % 100 == 50 {
                net.cut();
                let net = &net;
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        std::thread::sleep(Duration::from_millis(300));
                        net.mend();
                    });
                    sender.send(&record(i), LIMIT).unwrap();
                });
            }
            sender.send(&record(i), LIMIT).unwrap();
        }
        sender.flush(LIMIT).unwrap();
        drop(sender);
        peer.expect(&format!("{} whole", records + 4));
    });
}

#[test]
fn packets_that_are_lost_are_sent_again() {
    let Some(net) = Net::new() else { return };
    let rules = "add table inet loss; \
                 add chain inet loss input { type filter hook input priority 0 ; }; \
                 add rule inet loss input numgen random mod 10 == 0 drop";
    let mut nft = Command::new("ip");
    let nft = nft.args(["netns", "exec", &net.there, "nft", rules]).stdin(Stdio::null()).output();
    if !nft.as_ref().is_ok_and(|output| output.status.success()) {
        return skipped(&format!("no random loss by nft: {nft:?}"));
    }
    let (mut peer, _dir, at) = net.peer("records", ADDRESS);
    net.here(&[("HOST_TIMEOUT_MS", "30000")], |manager| {
        let mut sender = StreamSender::connect(manager, &format!("{at}/records"), LIMIT).unwrap();
        for i in 0..100 {
            sender.send(&record(i), LIMIT).unwrap();
        }
        sender.flush(LIMIT).unwrap();
        drop(sender);
        peer.expect("100 whole");
    });
}

#[test]
fn a_process_that_is_killed_is_told_of_at_once() {
    let Some(net) = Net::new() else { return };
    let (peer, _dir, at) = net.peer("server", ADDRESS);
    // So long that nothing but the kernel's word there can be what tells.
    net.here(&[("HOST_TIMEOUT_MS", "3600000")], |manager| {
        let client = Client::connect(manager, &format!("{at}/double"), LIMIT).unwrap();
        doubles(&client, &[100]);
        peer.stop();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| client.call(b"ab", LIMIT).unwrap_err());
            std::thread::sleep(Duration::from_millis(50));
            peer.kill();
            let error = waits.join().unwrap();
            assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{error}");
        });
    });
}

/// What number `i` holds.
fn record(i: u32) -> Vec<u8> {
    vec![i as u8; 20_000]
}

/// Sends until a process that has stopped takes no more, and then goes on.
fn fill(manager: &Manager, at: &str, peer: &Peer) -> (StreamSender, u32) {
    let mut sender = StreamSender::connect(manager, &format!("{at}/records"), LIMIT).unwrap();
    sender.send(&record(0), LIMIT).unwrap();
    sender.flush(LIMIT).unwrap();
    peer.stop();
    let mut sent = 1;
    while sender.send(&record(sent), Some(Duration::from_millis(500))).is_ok() {
        sent += 1;
    }
    (sender, sent)
}

#[test]
fn a_process_that_is_stopped_for_long_is_not_dead_and_has_lost_nothing() {
    let Some(net) = Net::new() else { return };
    let (mut peer, _dir, at) = net.peer("records", ADDRESS);
    net.here(&[], |manager| {
        let (mut sender, sent) = fill(manager, &at, &peer);
        // Its system answers that there is no room.
        std::thread::sleep(LONGER);
        peer.signal(libc::SIGCONT);
        sender.send(&record(sent), LIMIT).unwrap();
        sender.flush(LIMIT).unwrap();
        drop(sender);
        peer.expect(&format!("{} whole", sent + 1));
    });
}

#[test]
fn a_cable_that_is_cut_while_there_is_no_room_is_told_of() {
    let Some(net) = Net::new() else { return };
    let (peer, _dir, at) = net.peer("records", ADDRESS);
    net.here(&[], |manager| {
        let (mut sender, sent) = fill(manager, &at, &peer);
        std::thread::sleep(LONGER);
        net.cut();
        let error = sender.send(&record(sent), BOUND).unwrap_err().to_string();
        assert!(error.contains("died"), "{error}");
    });
}

/// Whether all of a stream came whole.
fn receive_records(role: &Role) {
    let manager = Manager::with_config(role.config()).unwrap();
    let mut receiver = StreamReceiver::new(&manager, StreamConfig::default()).unwrap();
    receiver.serve("records", Access::SameUser).unwrap();
    say(&manager.listens_at().unwrap().to_string());
    let (mut count, mut last) = (0u32, None);
    let end = loop {
        match receiver.receive(LIMIT) {
            Ok(found) => {
                let bytes = found.to_vec();
                let number = bytes[0];
                assert!(bytes.len() == 20_000 && bytes.iter().all(|byte| *byte == number));
                // One behind the other; one is sent twice where the cable was cut.
                assert!(
                    last.is_none_or(|last: u8| number == last || number == last.wrapping_add(1))
                );
                last = Some(number);
                count += 1;
                drop(found);
            }
            Err(error) => break error,
        }
    };
    loud(&format!("{count} records, then: {end}"));
    say(&format!("{count} whole"));
}

/// Waits for whoever connects to go.
fn be_told(role: &Role) {
    let mut node = Node::with_config(role.config()).unwrap();
    node.serve("x", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
    say(&node.listens_at().unwrap().to_string());
    loop {
        match node.next_event() {
            Some(Event::Connected { .. }) => say("connected"),
            Some(Event::Closed { reason, .. }) => return say(&format!("{reason:?}")),
            Some(_) => {}
            None => assert!(node.wait(LIMIT).unwrap(), "nothing is told"),
        }
    }
}

fn double(role: &Role) {
    let manager = Manager::with_config(role.config()).unwrap();
    let server = Server::new(&manager, ServerConfig::default()).unwrap();
    server.serve("double", Access::SameUser).unwrap();
    let at: SocketAddr = manager.listens_at().unwrap();
    say(&at.to_string());
    while let Ok(request) = server.receive(LIMIT) {
        let twice = request.repeat(2);
        let _ = request.reply(&twice, LIMIT);
    }
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    match role.name.as_str() {
        "server" => double(&role),
        "records" => receive_records(&role),
        "told" => be_told(&role),
        name => loud(&format!("no role is called {name}")),
    }
}
