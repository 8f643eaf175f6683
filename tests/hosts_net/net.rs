//! Hosts that are network namespaces: two with a cable between them, or many at one router. Made
//! here and removed on drop; without the right to make them the tests are skipped, with a message.

use crate::support::{Dir, Peer, Random, skipped};
use hamlyn::protocol::Manager;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Milliseconds after which a host that does not answer is gone, in these tests.
pub const TIMEOUT: &str = "2000";

pub fn run(line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{line}: {e}"))?;
    let error = || format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    output.status.success().then_some(()).ok_or_else(error)
}

/// A directory with a secret that all hosts have.
fn keys() -> Dir {
    let keys = Dir::new("net", &[]);
    keys.secret();
    keys
}

fn secret(keys: &Dir) -> String {
    keys.path.join("secret").display().to_string()
}

/// Two hosts, `here` and `there`, and a directory for what both have.
pub struct Net {
    pub here: String,
    pub there: String,
    /// Of those that this process has made.
    count: u32,
    keys: Dir,
}

impl Net {
    /// Two namespaces with nothing between them. `None`, which is said: there can be none here.
    fn bare() -> Option<(Self, u32)> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = |side: &str| format!("hamlyn-{pid}-{count}-{side}");
        let net = Self { here: name("here"), there: name("there"), count, keys: keys() };
        // Dropped, and so removed, at the first that fails.
        if let Err(why) = run(&format!("ip netns add {}", net.here)) {
            skipped(&format!("no network namespaces: {why}"));
            return None;
        }
        run(&format!("ip netns add {}", net.there)).unwrap();
        Some((net, count))
    }

    /// `None`, which is said: this machine does not let it be made.
    pub fn new() -> Option<Self> {
        let (net, count) = Self::bare()?;
        let (here, there, pid) = (&net.here, &net.there, std::process::id());
        let (v, w) = (format!("hm{pid}v{count}"), format!("hm{pid}w{count}"));
        let lines = [
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
        Some(net)
    }

    /// The same with two cables, 0 and 1, each with a network of its own: 10.77.0 and 10.77.1.
    pub fn of_two_cables() -> Option<Self> {
        let net = Self::new()?;
        let (here, there, pid) = (&net.here, &net.there, std::process::id());
        let (v, w) = (format!("hm{pid}x{}", net.count), format!("hm{pid}y{}", net.count));
        let lines = [
            format!("ip -n {here} link add {v} type veth peer name {w} netns {there}"),
            format!("ip -n {here} link set {v} name cable1"),
            format!("ip -n {there} link set {w} name cable1"),
            format!("ip -n {here} addr add 10.77.1.1/24 dev cable1"),
            format!("ip -n {there} addr add 10.77.1.2/24 dev cable1"),
            format!("ip -n {here} link set cable1 up"),
            format!("ip -n {there} link set cable1 up"),
        ];
        for line in lines {
            run(&line).unwrap();
        }
        Some(net)
    }

    /// The same as [`new`](Self::new) with a relay between the hosts, through which each IP packet takes its own time.
    pub fn relayed() -> Option<(Self, Relay)> {
        let (net, _) = Self::bare()?;
        let mut ends = Vec::new();
        for (host, address) in [(&net.here, "10.77.0.1/24"), (&net.there, "10.77.0.2/24")] {
            let _inside = Inside::enter(&format!("/run/netns/{host}"));
            match tun() {
                Ok(end) => ends.push(end),
                Err(why) => {
                    skipped(&format!("no TUN devices: {why}"));
                    return None;
                }
            }
            batch(None, &format!("addr add {address} dev cable\nlink set cable up\n")).unwrap();
        }
        Some((net, Relay::start(ends)))
    }

    /// From now on nothing that comes to this host over the cable is received by it.
    pub fn deafen(host: &str) -> Result<(), String> {
        Self::drop_at(host, "iifname cable")
    }

    /// From now on this host drops all matching packets that arrive.
    pub fn drop_at(host: &str, what: &str) -> Result<(), String> {
        let rules = format!(
            "add table inet deaf; \
             add chain inet deaf input {{ type filter hook input priority 0 ; }}; \
             add rule inet deaf input {what} drop"
        );
        let mut nft = Command::new("ip");
        let output = nft.args(["netns", "exec", host, "nft", &rules]).stdin(Stdio::null()).output();
        let output = output.map_err(|e| e.to_string())?;
        let error = || String::from_utf8_lossy(&output.stderr).trim().to_string();
        output.status.success().then_some(()).ok_or_else(error)
    }

    fn cable(&self, name: &str, state: &str) {
        run(&format!("ip -n {} link set {name} {state}", self.there)).unwrap();
    }

    pub fn cut(&self) {
        self.cable("cable", "down");
    }

    pub fn mend(&self) {
        self.cable("cable", "up");
    }

    /// From now on the other host drops all packets from here, without an error.
    pub fn swallow(&self) {
        run(&format!("ip -n {} route add blackhole 10.77.0.1/32", self.there)).unwrap();
    }

    pub fn let_pass(&self) {
        run(&format!("ip -n {} route del blackhole 10.77.0.1/32", self.there)).unwrap();
    }

    /// The second of two cables.
    pub fn cut_second(&self) {
        self.cable("cable1", "down");
    }

    pub fn mend_second(&self) {
        self.cable("cable1", "up");
    }

    pub fn dir(&self, name: &str, settings: &[(&str, &str)]) -> Dir {
        let secret = secret(&self.keys);
        let own = [("SECRET", secret.as_str()), ("HOST_TIMEOUT_MS", TIMEOUT)];
        Dir::new(name, &[&own, settings].concat())
    }

    /// A process there, listening at this address, and where it does.
    pub fn peer(&self, role: &str, address: &str) -> (Peer, Dir, String) {
        self.peer_with(role, &[("LISTEN", address)])
    }

    /// The same with settings of its own.
    pub fn peer_with(&self, role: &str, settings: &[(&str, &str)]) -> (Peer, Dir, String) {
        let dir = self.dir("there", settings);
        let before = ["ip", "netns", "exec", &self.there];
        let mut peer = Peer::run(role, Peer::command(role, &dir, "", &before));
        let at = format!("hamlyn://{}", peer.says());
        (peer, dir, at)
    }

    /// Runs `body` with a manager here. The sockets of a thread, and of those that it starts, are in
    /// its namespace.
    pub fn here(&self, settings: &[(&str, &str)], body: impl FnOnce(&Manager)) {
        let dir = self.dir("here", settings);
        let _inside = Inside::enter(&format!("/run/netns/{}", self.here));
        body(&Manager::with_config(dir.config()).unwrap());
    }
}

/// This thread is in another network namespace until it is dropped.
pub struct Inside(File);

impl Inside {
    pub fn enter(path: &str) -> Self {
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

// ---- a relay

/// A device, in this thread's namespace, whose IP packets are read and written here.
fn tun() -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let device = options.open("/dev/net/tun")?;
    // SAFETY: zeros are a request like any other.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"cable") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the kernel reads and writes one request.
    match unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(device),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Passes packets on between two devices until it is dropped, each after up to [`DELAY_MAX`].
pub struct Relay {
    ends: Arc<AtomicBool>,
    /// Packets that arrived before one that was sent earlier.
    overtaken: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

const DELAY_MAX: u64 = 4_000_000;

impl Relay {
    fn start(devices: Vec<File>) -> Self {
        let (ends, overtaken) = <(Arc<AtomicBool>, Arc<AtomicU32>)>::default();
        let of_thread = (ends.clone(), overtaken.clone());
        let thread = std::thread::spawn(move || relay(&devices, &of_thread.0, &of_thread.1));
        Self { ends, overtaken, thread: Some(thread) }
    }

    pub fn overtaken(&self) -> u32 {
        self.overtaken.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn relay(devices: &[File], ends: &AtomicBool, overtaken: &AtomicU32) {
    let mut random = Random::new(7);
    let start = Instant::now();
    // By when they arrive: the number of each, whereto, and its bytes.
    let mut flying: BTreeMap<(Duration, u64), (usize, Vec<u8>)> = BTreeMap::new();
    let (mut count, mut last) = (0, [0, 0]);
    let mut buffer = [0; 65536];
    while !ends.load(Ordering::Relaxed) {
        for (from, device) in devices.iter().enumerate() {
            while let Ok(bytes) = Read::read(&mut &*device, &mut buffer) {
                // One in eight takes its time, and is overtaken by those behind it.
                let delay = if random.one_in(8) { random.below(DELAY_MAX) } else { 0 };
                let arrives = start.elapsed() + Duration::from_nanos(delay);
                count += 1;
                flying.insert((arrives, count), (1 - from, buffer[..bytes].to_vec()));
            }
        }
        while let Some(first) = flying.first_entry()
            && first.key().0 <= start.elapsed()
        {
            let ((_, number), (to, bytes)) = first.remove_entry();
            overtaken.fetch_add(u32::from(number < last[to]), Ordering::Relaxed);
            last[to] = last[to].max(number);
            // One for which there is no room is lost, as in any network.
            let _ = Write::write(&mut &devices[to], &bytes);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

// ---- many

/// Hosts at one router, in a namespace of its own. (A bridge would not do: each host would know the
/// others' addresses on it, and the kernel keeps some thousand of these for all namespaces together.)
pub struct Switch {
    name: String,
    pub size: usize,
    keys: Dir,
}

const ROUTER: &str = "10.78.255.254";

/// Runs lines of `ip`, all in one process; in the namespace `inside`, if there is one.
fn batch(inside: Option<&str>, lines: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(inside.map_or(&[][..], |_| &["-n"])).args(inside).args(["-batch", "-"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("ip: {e}"))?;
    child.stdin.take().unwrap().write_all(lines.as_bytes()).map_err(|e| format!("ip: {e}"))?;
    let output = child.wait_with_output().map_err(|e| format!("ip: {e}"))?;
    let error = || String::from_utf8_lossy(&output.stderr).trim().to_string();
    output.status.success().then_some(()).ok_or_else(error)
}

impl Switch {
    /// `None`, which is said: this machine does not let it be made.
    pub fn new(size: usize) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let switch = Self { name: format!("hamlyn-{pid}-s{count}"), size, keys: keys() };
        let all = |line: &dyn Fn(usize) -> String| (0..size).map(line).collect::<String>();
        // Dropped, and so removed, at the first that fails.
        if let Err(why) = run(&format!("ip netns add {}", switch.name)) {
            skipped(&format!("no network namespaces: {why}"));
            return None;
        }
        let host = |i| switch.host(i);
        batch(None, &all(&|i| format!("netns add {}\n", host(i)))).unwrap();
        let links = all(&|i| {
            let (host, address) = (host(i), switch.address(i));
            format!(
                "link add port{i} type veth peer name cable netns {host}\n\
                 link set port{i} up\nroute add {address}/32 dev port{i}\n"
            )
        });
        let lines = format!("link set lo up\naddr add {ROUTER}/32 dev lo\n{links}");
        batch(Some(&switch.name), &lines).unwrap();
        {
            let _inside = Inside::enter(&format!("/run/netns/{}", switch.name));
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        }
        for i in 0..size {
            let lines = format!(
                "addr add {}/32 dev cable\nlink set cable up\n\
                 route add default via {ROUTER} dev cable onlink\n",
                switch.address(i)
            );
            batch(Some(&host(i)), &lines).unwrap();
        }
        Some(switch)
    }

    fn host(&self, i: usize) -> String {
        format!("{}-{i}", self.name)
    }

    /// Where host `i` is.
    pub fn address(&self, i: usize) -> String {
        format!("10.78.{}.{}", i / 200, i % 200 + 1)
    }

    /// A process on host `i`.
    pub fn peer(&self, i: usize, role: &str, args: &str, settings: &[(&str, &str)]) -> (Peer, Dir) {
        let secret = secret(&self.keys);
        let dir = Dir::new("many", &[&[("SECRET", secret.as_str())], settings].concat());
        let mut command = Peer::command(role, &dir, args, &[]);
        let namespace = File::open(format!("/run/netns/{}", self.host(i))).unwrap();
        // SAFETY: between fork and exec only a system call is made, on a descriptor that is open.
        unsafe {
            command.pre_exec(move || {
                match libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        (Peer::run(role, command), dir)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let hosts = (0..self.size).map(|i| format!("netns del {}\n", self.host(i)));
        let _ = batch(None, &format!("netns del {}\n{}", self.name, hosts.collect::<String>()));
    }
}
