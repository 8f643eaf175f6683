//! Message areas over pages at an address of the application's own: changes to its mapping do not
//! affect the library's, nor the reverse; unsafe pages are refused by name.
#![cfg(feature = "os")]

mod support;

use hamlyn::node::MemoryError;
use hamlyn::{
    AreaId, AreaPages, Config, Grant, MetadataIndex, Node, PagesError, Piece, QueueId, SlotConfig,
    SlotId, Ticket,
};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use support::*;

const PAGE: usize = 4096;
const BYTES: usize = 4 * PAGE;
const ENTRY: MetadataIndex = MetadataIndex(0);
const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The application's view, unmapped at the end.
struct View {
    start: *mut u8,
    bytes: usize,
}

impl View {
    /// Pages that hold nothing yet, and may not be touched: an address that is the test's own.
    fn reserve(bytes: usize) -> Self {
        let any = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(any, bytes, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        Self { start: start.unwrap().cast(), bytes }
    }

    fn of(file: &OwnedFd, bytes: usize) -> Self {
        let any = std::ptr::null_mut();
        // SAFETY: as above.
        let start = unsafe { rustix::mm::mmap(any, bytes, READ_WRITE, MapFlags::SHARED, file, 0) };
        Self { start: start.unwrap().cast(), bytes }
    }

    /// Its pages, for an area.
    fn pages(&self) -> AreaPages {
        // SAFETY: the view's own pages, of which a test borrows nothing.
        unsafe { AreaPages::at(self.start, self.bytes) }.unwrap()
    }

    fn protect(&self, how: MprotectFlags) {
        // SAFETY: this type's own mapping.
        unsafe { rustix::mm::mprotect(self.start.cast(), self.bytes, how) }.unwrap();
    }

    fn read(&self, at: usize) -> u8 {
        assert!(at < self.bytes);
        // SAFETY: inside, and mapped; where it may not be touched, that is what is tried.
        unsafe { self.start.add(at).read_volatile() }
    }

    fn write(&self, at: usize, byte: u8) {
        assert!(at < self.bytes);
        // SAFETY: as above; no message is on its way.
        unsafe { self.start.add(at).write_volatile(byte) }
    }

    fn is_mapped(&self) -> bool {
        is_mapped(self.start, self.bytes)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: this type's own mapping, which nothing refers to.
        unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) }.unwrap();
    }
}

fn is_mapped(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: no byte changes.
    unsafe { rustix::mm::msync(start.cast(), bytes, rustix::mm::MsyncFlags::ASYNC) }.is_ok()
}

/// A node that sends messages to itself, into pages of the application's.
struct Own {
    node: Node,
    area: AreaId,
    queue: QueueId,
    slot: SlotId,
    ticket: Ticket,
}

impl Own {
    fn new(config: Config, pages: AreaPages) -> Self {
        let mut node = Node::with_config(config).unwrap();
        let area = node.message_area_of(pages).unwrap();
        let queue = node.notification_queue(1).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
        let ticket = node.ticket(slot, ENTRY).unwrap();
        Self { node, area, queue, slot, ticket }
    }

    /// A message that fills the area.
    fn deposit(&mut self, byte: u8) {
        let bytes = self.node.area(self.area).unwrap().len();
        self.node.send(&self.ticket, &vec![byte; bytes], b"", LIMIT).unwrap();
        self.node.recv(self.queue, LIMIT).unwrap();
        assert!(self.node.area(self.area).unwrap().iter().all(|found| *found == byte));
        self.node.arm(self.slot, ENTRY, None).unwrap();
    }
}

fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn of_file(file: impl AsFd, offset: u64, bytes: usize) -> Result<AreaPages, PagesError> {
    // SAFETY: only the test has the file.
    unsafe { AreaPages::of_file(file, offset, bytes) }
}

#[test]
fn a_message_lands_in_pages_that_the_application_may_not_touch_and_is_there_when_it_may() {
    let dir = Dir::new("areas", &[]);
    let view = View::reserve(BYTES);
    let mut own = Own::new(dir.config(), view.pages());
    assert!((0..BYTES).step_by(PAGE).all(|at| view.read(at) == 0), "new pages are zero");
    view.write(1, 77);
    assert_eq!(own.node.area(own.area).unwrap()[..2], [0, 77], "one memory, two views");
    for (round, how) in [MprotectFlags::empty(), MprotectFlags::READ, MprotectFlags::empty()]
        .into_iter()
        .enumerate()
    {
        let byte = round as u8 + 1;
        view.protect(how);
        own.deposit(byte);
        view.protect(MprotectFlags::READ);
        assert!((0..BYTES).all(|at| view.read(at) == byte));
    }
    view.protect(MprotectFlags::READ | MprotectFlags::WRITE);
    view.write(BYTES - 1, 9);
    assert_eq!(own.node.area(own.area).unwrap()[BYTES - 1], 9, "it may be opened again");
    // The address that other languages get is the library's.
    let (start, bytes) = own.node.area_address(own.area).unwrap();
    assert_eq!(bytes, BYTES);
    assert_ne!(start, view.start);
}

#[test]
fn what_lies_in_pages_that_the_application_may_not_touch_is_sent() {
    let dir = Dir::new("areas-send", &[]);
    let view = View::reserve(BYTES);
    let mut station = Station::new(dir.config(), BYTES, 1);
    let terminus = station.node.primary();
    let tag = station.node.send_buffer_of(terminus, view.pages()).unwrap();
    for at in 0..BYTES {
        view.write(at, (at % 251) as u8);
    }
    view.protect(MprotectFlags::empty());
    let piece = Piece { tag, offset: 0, length: BYTES as u64 };
    let _ = station.node.post_send(terminus, &station.ticket, &[piece], b"").unwrap();
    station.node.flush(LIMIT).unwrap();
    station.recv();
    assert!(station.bytes().iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    station.node.remove_send_buffer(terminus, tag).unwrap();
}

static FAULTS: AtomicUsize = AtomicUsize::new(0);
static FAULT_AT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn opens(_: i32, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's, for a fault.
    let at = unsafe { (*about).si_addr() } as usize;
    FAULTS.fetch_add(1, Ordering::Relaxed);
    FAULT_AT.store(at, Ordering::Relaxed);
    // SAFETY: the page of the fault, which this test protected; the first fault of any other address
    // comes again, and ends the process by the count below.
    unsafe {
        let page = (at / PAGE * PAGE) as *mut libc::c_void;
        if FAULTS.load(Ordering::Relaxed) > 1000 || libc::mprotect(page, PAGE, libc::PROT_READ) != 0
        {
            libc::_exit(3);
        }
    }
}

#[test]
fn a_handler_of_faults_sees_the_applications_own_accesses_and_no_other() {
    alone("a_handler_of_faults_sees_the_applications_own_accesses_and_no_other", || {
        let dir = Dir::new("areas-faults", &[]);
        let view = View::reserve(BYTES);
        let mut own = Own::new(dir.config(), view.pages());
        // SAFETY: zeros are a valid action, and the handler has the type that SA_SIGINFO wants.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = opens as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
        }
        for byte in 1..=100 {
            view.protect(MprotectFlags::empty());
            own.deposit(byte);
        }
        assert_eq!(FAULTS.load(Ordering::Relaxed), 0, "a deposit faulted");
        assert_eq!(view.read(2 * PAGE + 5), 100);
        assert_eq!(FAULTS.load(Ordering::Relaxed), 1);
        assert_eq!(FAULT_AT.load(Ordering::Relaxed), view.start.addr() + 2 * PAGE + 5);
        // That page is open now, and the others are not.
        assert_eq!((view.read(2 * PAGE), FAULTS.load(Ordering::Relaxed)), (100, 1));
        own.deposit(101);
        assert_eq!(FAULTS.load(Ordering::Relaxed), 1);
        assert_eq!((view.read(0), FAULTS.load(Ordering::Relaxed)), (101, 2));
    });
}

#[test]
fn a_file_that_the_application_has_mapped_is_an_area_at_any_page_of_it() {
    let dir = Dir::new("areas-file", &[]);
    let file = memfd(BYTES, SealFlags::SHRINK);
    let (view, again) = (View::of(&file, BYTES), View::of(&file, BYTES));
    // It may grow, and the last page need not be whole.
    rustix::fs::ftruncate(&file, (BYTES + 100) as u64).unwrap();
    let pages = of_file(&file, PAGE as u64, BYTES - PAGE + 100).unwrap();
    let mut own = Own::new(dir.config(), pages);
    drop(file);
    view.protect(MprotectFlags::empty());
    own.deposit(5);
    assert_eq!((again.read(PAGE - 1), again.read(PAGE), again.read(BYTES - 1)), (0, 5, 5));
}

// Why a file that can be cut short is refused.
#[test]
fn a_touch_behind_the_end_of_a_file_kills() {
    let file = memfd(2 * PAGE, SealFlags::GROW);
    let view = View::of(&file, 2 * PAGE);
    rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
    // SAFETY: the child writes one byte, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        view.write(PAGE, 1);
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made, into a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "{status:#x}");
}

#[test]
fn descriptors_that_are_not_safe_are_refused_by_name() {
    let bytes = BYTES;
    let refused = |file: &OwnedFd| of_file(file, 0, bytes).unwrap_err();

    let unsealed = memfd(BYTES, SealFlags::GROW);
    let error = refused(&unsealed);
    assert!(matches!(error, PagesError::CanShrink { seals } if seals == SealFlags::GROW.bits()));
    assert!(error.to_string().contains("F_SEAL_SHRINK first (its seals are 0x4)"), "{error}");
    // Why: what is behind the end of a file kills. The seal ends that, and then it is taken.
    rustix::fs::ftruncate(&unsealed, PAGE as u64).unwrap();
    rustix::fs::fcntl_add_seals(&unsealed, SealFlags::SHRINK).unwrap();
    let error = refused(&unsealed);
    let size = PAGE as u64;
    assert!(
        matches!(error, PagesError::Outside { offset: 0, bytes: BYTES, file_bytes } if file_bytes == size),
        "{error}"
    );
    drop(of_file(&unsealed, 0, PAGE).unwrap());
    assert!(rustix::fs::ftruncate(&unsealed, 0).is_err());

    for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
        let error = refused(&memfd(BYTES, SealFlags::SHRINK | seal));
        assert!(matches!(error, PagesError::SealedAgainstWriting { .. }), "{error}");
    }
    let file = memfd(BYTES, SealFlags::SHRINK);
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let read_only = rustix::fs::open(path, OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    let error = refused(&read_only);
    assert!(matches!(error, PagesError::NotWritable), "{error}");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let write_only = rustix::fs::open(path, OFlags::WRONLY, rustix::fs::Mode::empty()).unwrap();
    assert!(matches!(refused(&write_only), PagesError::NotWritable));

    // Without MFD_ALLOW_SEALING a memory file has the seal that forbids seals, and can shrink for ever.
    let plain = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&plain, BYTES as u64).unwrap();
    assert!(matches!(refused(&plain), PagesError::CanShrink { .. }));
    let dir = Dir::new("areas-refused", &[]);
    let ordinary = std::fs::File::create_new(dir.path.join("file")).unwrap();
    ordinary.set_len(BYTES as u64).unwrap();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let zero = std::fs::File::open("/dev/zero").unwrap();
    for (what, file) in [("file", OwnedFd::from(ordinary)), ("pipe", pipe), ("zero", zero.into())] {
        let error = refused(&file);
        // A file of a tmpfs has seals, and cannot get more.
        let is_named = matches!(error, PagesError::NotMemory(_) | PagesError::CanShrink { .. });
        assert!(is_named, "{what}: {error}");
    }
    // Huge pages: as many as are reserved, which may be none; the file itself needs none.
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    match rustix::fs::memfd_create("test", flags) {
        Err(e) => skipped(&format!("this kernel makes no files of huge pages: {e}")),
        Ok(huge) => {
            rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
            rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
            let error = refused(&huge);
            assert!(matches!(error, PagesError::FileSystem { found: 0x9584_58f6 }), "{error}");
        }
    }
}

#[test]
fn addresses_offsets_and_lengths_that_are_no_pages_are_refused_with_their_value() {
    let view = View::reserve(BYTES);
    let file = memfd(BYTES, SealFlags::SHRINK);
    let start = view.start.addr();
    let at = |start: usize, bytes: usize| {
        // SAFETY: refused, or the view's own.
        unsafe { AreaPages::at(start as *mut u8, bytes) }.unwrap_err().to_string()
    };
    let of = |offset: u64, bytes: usize| of_file(&file, offset, bytes).unwrap_err().to_string();
    let holds = |text: String, parts: &[&str]| {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    holds(at(start, 0), &["at least 1 byte"]);
    holds(at(start + 8, PAGE), &[&format!("{:#x}", start + 8), "4096"]);
    holds(at(0, PAGE), &["0x0"]);
    holds(at(start, PAGE + 1), &["4097", "4096"]);
    let top = usize::MAX / PAGE * PAGE;
    holds(at(top, PAGE), &[&format!("{top:#x}"), "4096 bytes", "address space"]);
    holds(of(0, 0), &["at least 1 byte"]);
    holds(of(100, PAGE), &["100", "4096"]);
    holds(of(PAGE as u64, BYTES), &["16384 bytes", "offset 4096", "which has 16384"]);
    holds(of(0, BYTES + 1), &["16385"]);
    holds(of(u64::MAX / 4096 * 4096, PAGE), &["largest file"]);
    holds(of(0, usize::MAX), &[&usize::MAX.to_string()]);
    // Pages that are nobody's: the last of them is not mapped.
    // SAFETY: the view's own.
    unsafe { rustix::mm::munmap(view.start.add(BYTES - PAGE).cast(), PAGE) }.unwrap();
    let error = at(start, BYTES);
    holds(error, &["not every page", "16384", &format!("{start:#x}")]);
    // Refused pages were not touched: they still may not be read.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.starts_with(&format!("{start:x}-"))).unwrap();
    assert!(line.contains("---p"), "{line}");
    drop(View { start: view.start, bytes: BYTES - PAGE });
    std::mem::forget(view);
}

#[test]
fn a_hole_in_the_pages_is_zeros_and_traps_nobody() {
    let dir = Dir::new("areas-holes", &[]);
    let view = View::reserve(BYTES);
    let mut own = Own::new(dir.config(), view.pages());
    own.deposit(1);
    // SAFETY: the view's own bytes, which become zero.
    unsafe { rustix::mm::madvise(view.start.cast(), BYTES, Advice::LinuxRemove) }.unwrap();
    assert!(own.node.area(own.area).unwrap().iter().all(|byte| *byte == 0));
    own.deposit(2);
    assert_eq!(view.read(BYTES - 1), 2);

    let file = memfd(BYTES, SealFlags::SHRINK);
    let view = View::of(&file, BYTES);
    let mut own = Own::new(dir.config(), of_file(&file, 0, BYTES).unwrap());
    own.deposit(3);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 0, BYTES as u64).unwrap();
    assert!(own.node.area(own.area).unwrap().iter().all(|byte| *byte == 0));
    view.protect(MprotectFlags::empty());
    own.deposit(4);
}

#[test]
fn whichever_goes_first_the_other_view_stays() {
    let dir = Dir::new("areas-order", &[]);
    let view = View::reserve(BYTES);
    let mut own = Own::new(dir.config(), view.pages());
    own.deposit(1);
    let (library, _) = own.node.area_address(own.area).unwrap();
    // The area: refused while a slot names it, and then only the library's view ends.
    assert!(own.node.remove_area(own.area).is_err());
    own.node.remove_slot(own.slot).unwrap();
    view.protect(MprotectFlags::READ);
    own.node.remove_area(own.area).unwrap();
    assert!(!is_mapped(library, BYTES) && view.is_mapped());
    assert!((0..BYTES).all(|at| view.read(at) == 1), "with its bytes");
    view.protect(MprotectFlags::READ | MprotectFlags::WRITE);
    view.write(0, 2);
    // They are an area again, from zero: they are replaced like any others.
    let mut own = Own::new(dir.config(), view.pages());
    assert_eq!(view.read(0), 0);
    own.deposit(3);
    // The node.
    drop(own);
    assert_eq!(view.read(BYTES - 1), 3);
    // The application's view.
    let mut own = Own::new(dir.config(), view.pages());
    drop(view);
    own.deposit(4);
}

#[test]
fn a_forked_child_has_neither_view() {
    let dir = Dir::new("areas-fork", &[]);
    let view = View::reserve(BYTES);
    let mut own = Own::new(dir.config(), view.pages());
    own.deposit(1);
    let (library, _) = own.node.area_address(own.area).unwrap();
    // SAFETY: the child makes system calls alone, on addresses that need not be mapped.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let gone =
            |start: *mut u8| (0..4).all(|page| !is_mapped(start.wrapping_add(page * PAGE), PAGE));
        let ends = !(gone(view.start) && gone(library));
        // SAFETY: ends the process.
        unsafe { libc::_exit(ends as i32) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made, into a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "a forked child has pages of its parent's message area");
    own.deposit(2);
    assert_eq!(view.read(0), 2);
}

#[test]
fn pages_of_the_application_count_against_the_limits_and_are_wired_down_like_others() {
    let limit = BYTES.to_string();
    let dir = Dir::new("areas-limit", &[("AREA_BYTES_MAX", &limit), ("AREAS_MAX", "2")]);
    let view = View::reserve(BYTES);
    let mut node = Node::with_config(dir.config_with(&[("MLOCK", "yes")])).unwrap();
    let area = node.message_area_of(view.pages()).unwrap();
    match node.area_report(area).unwrap().locked {
        Grant::Granted => {}
        Grant::Refused(ref why) => loud(&format!("not wired down: {why}")),
        Grant::NotAsked => panic!("it was asked for"),
    }
    assert_eq!(node.area_report(area).unwrap().huge_pages, Grant::NotAsked);
    let more = View::reserve(PAGE);
    let error = node.message_area_of(more.pages()).unwrap_err();
    assert!(
        matches!(error, MemoryError::TooManyBytes { bytes: PAGE, used: BYTES, limit: BYTES }),
        "{error}"
    );
    assert!(more.is_mapped(), "the application's view stays");
    let terminus = node.primary();
    assert!(node.send_buffer_of(terminus, more.pages()).is_err());
    node.remove_area(area).unwrap();
    node.send_buffer_of(terminus, more.pages()).unwrap();
    node.message_area(8).unwrap();
    node.message_area(8).unwrap();
    let error = node.message_area_of(View::reserve(PAGE).pages()).unwrap_err();
    assert!(matches!(error, MemoryError::Area(_)), "{error}");
}

#[test]
fn nothing_is_left_of_pages_however_they_end() {
    alone("nothing_is_left_of_pages_however_they_end", || {
        let dir = Dir::new("areas-leaks", &[("AREA_BYTES_MAX", "65536")]);
        let mut node = Node::with_config(dir.config()).unwrap();
        let terminus = node.primary();
        let file = memfd(BYTES, SealFlags::SHRINK);
        let mut round = |number: usize| {
            let view = View::reserve(BYTES);
            match number % 5 {
                0 => {
                    let area = node.message_area_of(view.pages()).unwrap();
                    node.remove_area(area).unwrap();
                }
                1 => {
                    let tag = node.send_buffer_of(terminus, of_file(&file, 0, BYTES).unwrap());
                    node.remove_send_buffer(terminus, tag.unwrap()).unwrap();
                }
                2 => drop(view.pages()),
                3 => drop(of_file(&file, 1, BYTES).unwrap_err()),
                // SAFETY: refused.
                _ => drop(unsafe { AreaPages::at(view.start, BYTES + 1) }.unwrap_err()),
            }
            let large = View::reserve(65536 + PAGE);
            drop(node.message_area_of(large.pages()).unwrap_err());
        };
        (0..10).for_each(&mut round);
        // A thread maps what it needs when it begins.
        until("the node's own thread sleeps", || {
            let others = states(std::process::id() as i32);
            others.iter().filter(|state| **state != 'S').count() <= 1
        });
        let before = Costs::now();
        (0..100).for_each(&mut round);
        let after = Costs::now();
        assert_eq!(
            (before.descriptors, before.mappings, before.shared_mappings, before.shared_bytes),
            (after.descriptors, after.mappings, after.shared_mappings, after.shared_bytes)
        );
    });
}

#[test]
fn threads_read_a_watched_area_while_packets_land_in_it() {
    const ROUNDS: u64 = 2000;
    let dir = Dir::new("watched", &[]);
    let mut node = Node::with_config(dir.config()).unwrap();
    assert!(node.watched_area(0).is_err());
    // Of no whole pages.
    let (area, view) = node.watched_area(5000).unwrap();
    assert_eq!((view.bytes(), node.area(area).unwrap().len()), (5000, 5000));
    assert!(view.load_u64(4992).is_ok() && view.load_u64(5000).is_err());
    assert!(view.load_u32(4996).is_ok() && view.load_u32(5000).is_err());
    assert!(view.read(4999, &mut [0; 2]).is_err());
    let queue = node.notification_queue(1).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
    let ticket = node.fast_ticket(slot).unwrap().silent();
    let (data, word) = (ticket.at(64).unwrap(), ticket.at(8).unwrap());
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let (mut last, mut bytes) = (0, [0; 600]);
                while last < ROUNDS {
                    let found = view.load_u64(8).unwrap();
                    // Whole, and never an older one.
                    assert!(found & 0xffff_ffff == found >> 32, "{found:#x}");
                    let found = found >> 32;
                    assert!(last <= found);
                    view.read(64, &mut bytes).unwrap();
                    // Of that round, or of a later one up to the next of the word's.
                    let later = (view.load_u64(8).unwrap() >> 32) + 1 - found;
                    if cfg!(target_arch = "x86_64") && found > 0 && later < 256 {
                        let most = bytes.iter().map(|byte| byte.wrapping_sub(found as u8)).max();
                        assert!(most.map(u64::from) <= Some(later), "{found}, {later}: {bytes:?}");
                    }
                    last = found;
                }
                done.fetch_add(1, Ordering::Relaxed);
            })
        });
        for round in 1..=ROUNDS {
            node.send_fast(&data, &[round as u8; 600], 0, LIMIT).unwrap();
            node.send_fast(&word, &(round << 32 | round).to_le_bytes(), 0, LIMIT).unwrap();
            while node.poll().unwrap() > 0 {}
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(done.load(Ordering::Relaxed), 2);
    node.remove_slot(slot).unwrap();
    node.remove_area(area).unwrap();
    assert_eq!(view.load_u64(8).unwrap(), ROUNDS << 32 | ROUNDS, "until the view goes");
}
