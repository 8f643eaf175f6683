//! Shared virtual memory (SHRIMP, 3) by page protection: a page is invalid until it is touched; then a
//! handler of the fault fetches it by a message.
//!
//! The pages are a message area at an address of the program's own. A page arrives while the
//! program may not touch it, because the library has a second mapping. So only the program's own
//! accesses fault, never the library's, and the fault handler may use a node like any other code.

mod common;
use common::{Result, node, run};
use hamlyn::{
    Accept, Access, AreaPages, MetadataIndex, Mode, Node, QueueId, SlotConfig, SlotId, Ticket,
};
use std::sync::Mutex;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const PAGES: usize = 8;
const PAGE: usize = 4096;
const WORDS: usize = PAGES * PAGE / 8;
const ENTRY: MetadataIndex = MetadataIndex(0);

/// The home of the pages: sends a requested page to the place that the ticket names.
fn home(ready: &dyn Fn() -> Result) -> Result {
    let mut node = node()?;
    let (area, queue) = (node.message_area(1)?, node.notification_queue(1)?);
    let slot = node.slot(SlotConfig::new(area, queue))?;
    let ticket = node.ticket(slot, ENTRY)?;
    node.serve("home", Access::SameUser, Accept::Automatic(ticket.to_bytes().to_vec()))?;
    ready()?;
    let numbers: Vec<u8> = (0..WORDS).flat_map(usize::to_le_bytes).collect();
    for _ in 0..PAGES {
        node.recv(queue, LIMIT)?;
        let page = numbers.chunks(PAGE).nth(node.area(area)?[0].into());
        let reply = Ticket::from_bytes(node.metadata(slot, ENTRY)?.user())?;
        node.send(&reply, page.ok_or("there is no such page")?, b"", LIMIT)?;
    }
    node.close(LIMIT)?;
    Ok(())
}

/// Where they are used.
struct Memory {
    node: Node,
    start: usize,
    queue: QueueId,
    slot: SlotId,
    home: Ticket,
    fetched: usize,
}

static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

impl Memory {
    fn new() -> Result<Self> {
        let mut node = node()?;
        let (any, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address of the kernel's choice, whose pages are this
        // program's to replace. No code uses a page while it is on its way. It stays as long as the
        // process.
        let (start, pages) = unsafe {
            let start = libc::mmap(any, PAGES * PAGE, libc::PROT_NONE, flags, -1, 0).cast::<u8>();
            let pages = AreaPages::at(start, PAGES * PAGE)?;
            assert_eq!(libc::mprotect(start.cast(), PAGES * PAGE, libc::PROT_NONE), 0);
            (start, pages)
        };
        let (area, queue) = (node.message_area_of(pages)?, node.notification_queue(1)?);
        let slot = node.slot(SlotConfig::new(area, queue).mode(Mode::Paranoid))?;
        let link = node.connect("home", b"", LIMIT)?;
        let home = Ticket::from_bytes(node.greeting(link)?)?;
        Ok(Self { node, start: start.addr(), queue, slot, home, fetched: 0 })
    }

    /// Asks for a page, with a ticket for it alone; when it is here, it may be read.
    fn fetch(&mut self, page: usize) -> Result {
        let from = page * PAGE;
        self.node.arm(self.slot, ENTRY, Some(from as u64..(from + PAGE) as u64))?;
        let reply = self.node.ticket(self.slot, ENTRY)?.to_bytes();
        self.node.send(&self.home, &[page as u8], &reply, LIMIT)?;
        self.node.recv(self.queue, LIMIT)?;
        self.fetched += 1;
        let page = (self.start + from) as *mut libc::c_void;
        // SAFETY: a page of the program's own, whose bytes stay.
        let rc = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ) };
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
    }
}

extern "C" fn fault(_: i32, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's, for a fault.
    let at = unsafe { (*about).si_addr() } as usize;
    // Locked: a fault of the handler's own. Elsewhere: an ordinary mistake. Both end the program.
    let fetched = MEMORY.try_lock().ok().and_then(|mut memory| {
        let memory = memory.as_mut()?;
        let page = at.checked_sub(memory.start)? / PAGE;
        (page < PAGES).then(|| memory.fetch(page).ok())?
    });
    fetched.unwrap_or_else(|| std::process::abort());
}

fn user() -> Result {
    let memory = Memory::new()?;
    let start = memory.start as *const usize;
    *MEMORY.lock()? = Some(memory);
    // SAFETY: zeros are a valid action, and the handler has the type that SA_SIGINFO wants.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (fault as *const () as usize, libc::SA_SIGINFO);
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
    }
    // SAFETY: from here on it is memory: words in the pages, which no code writes once they have
    // come.
    let sum: usize = (0..WORDS).map(|i| unsafe { start.add(i).read_volatile() }).sum();
    let memory = MEMORY.lock()?.take().ok_or("no memory")?;
    println!("{sum}: {} pages came when they were touched", memory.fetched);
    assert_eq!((sum, memory.fetched), ((0..WORDS).sum(), PAGES));
    Ok(())
}

fn main() -> Result {
    run(home, &[user])
}
