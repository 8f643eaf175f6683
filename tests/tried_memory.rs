//! Tests of the kernel's behaviour that the design relies on: each claim about memory files,
//! descriptors and sockets behind the protection. A kernel that behaves otherwise is found here
//! first.
#![cfg(feature = "os")]

mod support;

use hamlyn::os::memory::{
    self, DescriptorError, Region, SEALS_READ_ONLY, WantedDescriptor, region_bytes,
};
use hamlyn::os::socket;
use hamlyn::protocol::{Manager, PublishConfig, Publisher};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Says so past the test harness, which keeps back what a passing test prints.
macro_rules! skipped {
    ($($what:tt)+) => {{
        let line = format!("SKIPPED: {}
", format_args!($($what)+));
        std::io::stderr().write_all(line.as_bytes()).unwrap()
    }};
}

const MIB: usize = 1 << 20;

fn wanted(bytes: usize) -> WantedDescriptor {
    WantedDescriptor {
        seals: SEALS_READ_ONLY,
        seals_refused: SealFlags::WRITE,
        bytes,
        filled: false,
        huge: false,
    }
}

fn reopened(fd: &OwnedFd, flags: OFlags) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn after_the_seal_nobody_else_can_write_through_any_descriptor() {
    let bytes = region_bytes(4096);
    let fd = memory::create(bytes).unwrap();
    let ours = Region::map_writable(&fd, bytes).unwrap();
    ours.fill_by_writing().unwrap();
    memory::seal(&fd, SEALS_READ_ONLY).unwrap();
    let descriptors = [
        fd.try_clone().unwrap(),
        reopened(&fd, OFlags::RDWR),
        reopened(&fd, OFlags::RDONLY),
        reopened(&reopened(&fd, OFlags::RDONLY), OFlags::RDWR),
    ];
    for fd in &descriptors {
        assert!(Region::map_writable(fd, bytes).is_err());
        // SAFETY: a new mapping at an address of the kernel's choice; it is not written, since
        // it cannot be made writable, and is never unmapped.
        unsafe {
            let null = std::ptr::null_mut();
            let at =
                rustix::mm::mmap(null, bytes, ProtFlags::READ, MapFlags::SHARED, fd, 0).unwrap();
            let writable = MprotectFlags::READ | MprotectFlags::WRITE;
            assert!(rustix::mm::mprotect(at, bytes, writable).is_err());
            assert!(rustix::mm::madvise(at, bytes, rustix::mm::Advice::LinuxRemove).is_err());
        }
        let file = std::fs::File::from(fd.try_clone().unwrap());
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
        for mode in [
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::COLLAPSE_RANGE,
        ] {
            assert!(rustix::fs::fallocate(fd, mode, 0, 4096).is_err());
        }
        assert!(memory::seal(fd, SealFlags::WRITE).is_err());
    }
    // The mapping made before goes on working, and is seen.
    use hamlyn::link::cells::Word;
    let theirs = Region::map_read_only(&descriptors[1], bytes).unwrap();
    ours.sleep().word().store(42, std::sync::atomic::Ordering::Release);
    assert_eq!(theirs.sleep().word().load(std::sync::atomic::Ordering::Acquire), 42);
}

#[test]
fn a_descriptor_opened_for_reading_alone_protects_nothing() {
    let fd = memory::create(4096).unwrap();
    let read_only = reopened(&fd, OFlags::RDONLY);
    let writable = std::fs::File::from(reopened(&read_only, OFlags::RDWR));
    writable.write_at(b"changed", 0).unwrap();
    // So it is the seals that are asked for, not how the descriptor was opened.
    assert!(matches!(memory::check(&read_only, &wanted(4096)), Err(DescriptorError::Seals { .. })));
}

#[test]
fn files_that_only_look_like_shared_memory_are_refused() {
    // A file of a tmpfs has a size and blocks, but not these seals.
    let (a, _b) = socket::pair().unwrap();
    let (pipe, _write) = rustix::pipe::pipe().unwrap();
    let proc = OwnedFd::from(std::fs::File::open("/proc/self/mem").unwrap());
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let exe = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    for fd in [a, pipe, proc, null, exe] {
        let error = memory::check(&fd, &wanted(4096)).unwrap_err();
        assert!(matches!(error, DescriptorError::NotMemory(_)), "{error}");
    }
    let path = Path::new("/dev/shm").join(format!("hamlyn-test-{}", std::process::id()));
    match std::fs::File::create(&path) {
        Ok(file) => {
            std::fs::remove_file(&path).unwrap();
            file.set_len(4096).unwrap();
            assert!(memory::check(&file, &wanted(4096)).is_err());
        }
        Err(e) => skipped!("a file in /dev/shm ({e})"),
    }
}

#[test]
fn a_memory_file_of_huge_pages_is_refused_unless_agreed() {
    let flags = MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let fd = match rustix::fs::memfd_create("huge", flags) {
        Ok(fd) => fd,
        Err(e) => return skipped!("a memory file of huge pages ({e})"),
    };
    rustix::fs::ftruncate(&fd, 2 << 20).unwrap();
    memory::seal(&fd, SEALS_READ_ONLY).unwrap();
    let error = memory::check(&fd, &wanted(2 << 20)).unwrap_err();
    assert!(matches!(error, DescriptorError::FileSystem { found: 0x9584_58f6 }), "{error}");
    memory::check(&fd, &WantedDescriptor { huge: true, ..wanted(2 << 20) }).unwrap();
}

#[test]
fn a_socket_that_refuses_descriptors_gets_none() {
    let (a, b) = socket::pair().unwrap();
    if !socket::refuse_descriptors(&b) {
        return skipped!("SO_PASSRIGHTS needs Linux 6.16");
    }
    let fd = memory::create(4096).unwrap();
    assert!(socket::send(&a, b"x", &[fd.as_fd()]).is_err());
    socket::send(&a, b"x", &[]).unwrap();
    let received = socket::receive(&b, &mut [0; 8]).unwrap();
    assert_eq!((received.bytes, received.descriptors.len()), (1, 0));
}

/// A socket whose `close` blocks for `seconds`: it lingers, and its bytes are never read.
fn lingering(seconds: u16) -> (OwnedFd, TcpListener, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    let linger = Some(Duration::from_secs(seconds.into()));
    rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65536]).is_ok() {}
    // `close` of a socket that does not block would not wait.
    stream.set_nonblocking(false).unwrap();
    (stream.into(), listener, other)
}

#[test]
fn a_lingering_socket_blocks_whoever_closes_it_so_strangers_are_closed_elsewhere() {
    // Alone: what another test forks has a copy of each descriptor for a moment, and the last to close
    // one is who waits.
    support::alone(
        "a_lingering_socket_blocks_whoever_closes_it_so_strangers_are_closed_elsewhere",
        || {
            let (fd, _listener, _other) = lingering(1);
            let (a, b) = socket::pair().unwrap();
            socket::send(&a, b"a gift", &[fd.as_fd()]).unwrap();
            drop(fd);
            let received = socket::receive(&b, &mut [0; 64]).unwrap();
            let begin = Instant::now();
            drop(received.descriptors);
            assert!(begin.elapsed() >= Duration::from_millis(900), "the kernel no longer lingers");

            // It would linger for minutes: that this test goes on says that it did not wait.
            let (fd, _listener, _other) = lingering(300);
            memory::close_elsewhere(vec![fd]);
            let is_closing = || {
                std::fs::read_dir("/proc/self/task").unwrap().flatten().any(|task| {
                    std::fs::read_to_string(task.path().join("comm"))
                        .is_ok_and(|comm| comm.trim() == "hamlyn-close")
                })
            };
            // The thread gives itself its name when it first runs.
            while !is_closing() {
                assert!(begin.elapsed() < Duration::from_secs(60));
                std::thread::yield_now();
            }
        },
    );
}

#[test]
fn a_peer_can_make_a_shared_event_descriptor_block() {
    let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
    let ours = rustix::event::eventfd(0, flags).unwrap();
    let (a, b) = socket::pair().unwrap();
    socket::send(&a, b"x", &[ours.as_fd()]).unwrap();
    let theirs = socket::receive(&b, &mut [0; 8]).unwrap().descriptors.remove(0);
    rustix::fs::fcntl_setfl(&theirs, OFlags::empty()).unwrap();
    // Our own next read would hang: hence no open file description is shared for waking.
    assert!(!rustix::fs::fcntl_getfl(&ours).unwrap().contains(OFlags::NONBLOCK));
}

/// A control group that accounts for memory, removed afterwards.
struct Group {
    path: PathBuf,
    usage: &'static str,
}

impl Group {
    fn new(name: &str) -> Result<Self, String> {
        let name = format!("hamlyn-test-{name}-{}", std::process::id());
        let mut why = String::new();
        for (root, usage) in [
            ("/sys/fs/cgroup/memory", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.current"),
            ("/sys/fs/cgroup/unified", "memory.current"),
        ] {
            let path = Path::new(root).join(&name);
            match std::fs::create_dir(&path) {
                Ok(()) => {
                    let group = Self { path, usage };
                    if group.path.join(usage).exists() {
                        return Ok(group);
                    }
                    why = format!("{root} has no memory controller");
                }
                Err(e) => why = format!("{root}: {e}"),
            }
        }
        Err(why)
    }

    fn bytes(&self) -> usize {
        let text = std::fs::read_to_string(self.path.join(self.usage)).unwrap();
        text.trim().parse().unwrap()
    }

    fn add(&self, child: &Child) {
        std::fs::write(self.path.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group whose last process has just ended may be busy for a moment.
        for _ in 0..200 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Run in a process of its own by the test below: makes a publisher when told to.
#[test]
fn publisher_role() {
    let Ok(dir) = std::env::var("HAMLYN_TEST_PUBLISH") else { return };
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let manager = Manager::with_config(hamlyn::Config::default().dir(dir)).unwrap();
    let config = |bytes| PublishConfig { sample_bytes_max: bytes, ..PublishConfig::default() };
    println!("refused: {}", Publisher::new(&manager, config(8 * MIB)).err().unwrap());
    let mut node = hamlyn::Node::with_config(hamlyn::Config::default()).unwrap();
    println!("refused: {}", node.message_area(512 * MIB).unwrap_err());
    // Of what fits, something is left.
    Publisher::new(&manager, config(MIB / 8)).unwrap();
    println!("made");
}

#[test]
fn a_pool_for_which_a_control_group_has_no_room_is_an_error_that_names_its_settings() {
    let group = match Group::new("room") {
        Ok(group) => group,
        Err(why) => return skipped!("a pool in a control group with a limit: {why}"),
    };
    let limit =
        if group.usage == "memory.current" { "memory.max" } else { "memory.limit_in_bytes" };
    if let Err(e) = std::fs::write(group.path.join(limit), (300 * MIB).to_string()) {
        return skipped!("a pool in a control group with a limit: {e}");
    }
    let dir = std::env::temp_dir().join(format!("hamlyn-room-{}", std::process::id()));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "publisher_role", "--nocapture"])
        .env("HAMLYN_TEST_PUBLISH", &dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    group.add(&child);
    drop(child.stdin.take());
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let _ = std::fs::remove_dir_all(&dir);
    assert!(out.status.success(), "{}: {text}", out.status);
    let refused: Vec<&str> = text.lines().filter(|line| line.contains("refused: ")).collect();
    let [pool, area] = refused[..] else { panic!("{text}") };
    for part in
        ["82 samples", "sample_bytes_max", "subscribers_max", "control group", "of 314572800"]
    {
        assert!(pool.contains(part), "{pool}");
    }
    assert!(area.contains("a message area of 536870912 bytes"), "{area}");
    assert!(text.contains("made"), "{text}");
}

/// Run in a process of its own by the test below: touches a file when told to, and then waits.
#[test]
fn role() {
    let Ok(path) = std::env::var("HAMLYN_TEST_TOUCH") else { return };
    let how = std::env::var("HAMLYN_TEST_HOW").unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let file = std::fs::File::options().read(true).write(how == "write").open(path).unwrap();
    let bytes = file.metadata().unwrap().len() as usize;
    if how == "write" {
        Region::map_writable(&file, bytes).unwrap().fill_by_writing().unwrap();
    } else {
        Region::map_read_only(&file, bytes).unwrap().fill_by_reading().unwrap();
    }
    println!("touched");
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn memory_is_charged_to_whoever_touches_it_first() {
    use std::io::{BufRead, BufReader};
    for how in ["write", "read"] {
        let groups = Group::new(&format!("{how}-a"))
            .and_then(|a| Group::new(&format!("{how}-b")).map(|b| (a, b)));
        let (first, second) = match groups {
            Ok(groups) => groups,
            Err(why) => return skipped!("memory charged in control groups: {why}"),
        };
        let bytes = 32 * MIB;
        let fd = memory::create(bytes).unwrap();
        if how == "read" {
            let _ours = Region::map_writable(&fd, bytes).unwrap();
            memory::seal(&fd, SEALS_READ_ONLY).unwrap();
        }
        let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        let touch = |group: &Group| {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "role", "--nocapture"])
                .env("HAMLYN_TEST_TOUCH", &path)
                .env("HAMLYN_TEST_HOW", how)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            group.add(&child);
            child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
            let out = BufReader::new(child.stdout.take().unwrap());
            assert!(out.lines().map_while(Result::ok).any(|line| line.contains("touched")));
            child
        };
        let mut children = vec![touch(&first)];
        let paid = first.bytes();
        assert!(paid >= bytes, "{how}: {paid} of {bytes}");
        // The second process pays nothing, though it maps the same pages.
        children.push(touch(&second));
        assert!(second.bytes() < bytes / 2, "{how}: {}", second.bytes());
        assert!(first.bytes() >= bytes);
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        drop(fd);
    }
}
