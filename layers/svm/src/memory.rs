//! The shared space in this process: one memory file, seen twice.
//!
//! ```text
//!   the program's view   at one address in all processes; pages are entered when they are valid
//!   the library's view   anywhere; always all pages: fetches, differences, and the home's memory
//!   frames               copies of other homes' pages, of bounded number, each with a twin
//!   behind the space     words that other processes of this host read: `applied`
//! ```
//! A page is *entered* (a load needs no fault), *written* (since the last scan), or away. Pages that are at
//! home here need no frame, and stay.
//!
//! Never: a page that is not entered can be loaded by the program; a frame is reused before its changes
//! have been taken.

use hamlyn_vmmc::userfault::{Userfault, Watch};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages whose entered ones are counted together, so that scans leave out what is empty: one page table.
const CHUNK: usize = 512;

/// The library's view, for both threads of this process: the bytes change at any time, so there are no
/// references to them.
#[derive(Clone, Copy, Debug)]
pub struct View {
    start: *mut u8,
    /// Of the shared space, without the words behind it.
    bytes: usize,
}

// SAFETY: the mapping stays as long as the process, and every access is a copy of checked bytes.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Copies from `offset`. Words are whole where both are aligned.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset.checked_add(to.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: inside of the mapping, by the assertion.
        unsafe { copy(self.start.add(offset), to.as_mut_ptr(), to.len()) }
    }

    /// Copies to `offset`, these bytes alone.
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset.checked_add(from.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: inside of the mapping, by the assertion.
        unsafe { copy(from.as_ptr(), self.start.add(offset), from.len()) }
    }

    /// Copies the page at `offset` from another process's view.
    pub fn copy_page(&self, offset: usize, from: &View) {
        assert!(offset + PAGE <= self.bytes && offset + PAGE <= from.bytes);
        // SAFETY: inside of both mappings, by the assertion.
        unsafe { copy(from.start.add(offset), self.start.add(offset), PAGE) }
    }

    /// A word behind the space, for others to read.
    pub fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < PAGE / 8);
        // SAFETY: the page behind the space is mapped, and accessed as such words alone.
        unsafe { AtomicU64::from_ptr(self.start.add(self.bytes).cast::<u64>().add(word)) }
    }
}

/// Copies bytes that another thread or process may be changing, or reading.
///
/// # Safety
/// So many bytes can be read and written.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: by this function's contract; aligned words are moved as words, the rest byte by byte.
    unsafe {
        let mut at = 0;
        while at < bytes && !(from as usize + at).is_multiple_of(8) {
            to.add(at).write_volatile(from.add(at).read_volatile());
            at += 1;
        }
        if (to as usize + at).is_multiple_of(8) {
            while at + 8 <= bytes {
                let word = from.add(at).cast::<u64>().read_volatile();
                to.add(at).cast::<u64>().write_volatile(word);
                at += 8;
            }
        }
        while at < bytes {
            to.add(at).write_volatile(from.add(at).read_volatile());
            at += 1;
        }
    }
}

/// Another process's file, which is only read here.
#[derive(Debug)]
pub struct Other {
    view: View,
}

impl Other {
    /// Maps the file of a process of this host, if it is what its greeting said.
    pub fn open(pid: u32, descriptor: u32, token: u64, bytes: usize) -> io::Result<Self> {
        // The peer's descriptor may be anything: a pipe would wait for a writer.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let path = format!("/proc/{pid}/fd/{descriptor}");
        let file = std::fs::File::options().read(true).custom_flags(flags).open(path)?;
        // SAFETY: a call without memory. Only a memory file has seals.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let length = file.metadata()?.len();
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || length != (bytes + PAGE) as u64 {
            return Err(io::Error::other("it is not the file that was said"));
        }
        let start = map(null_mut(), bytes + PAGE, libc::PROT_READ, libc::MAP_SHARED, &file)?;
        let other = Self { view: View { start, bytes } };
        match other.view.word(TOKEN).load(Ordering::Acquire) == token {
            true => Ok(other),
            false => Err(io::Error::other("it is another file than was said")),
        }
    }

    /// The view, which is not written.
    pub fn view(&self) -> &View {
        &self.view
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and nobody has a copy of the view.
        unsafe { libc::munmap(self.view.start.cast(), self.view.bytes + PAGE) };
    }
}

/// The word with a number that nobody else has.
pub const TOKEN: usize = 0;
/// The interval of each writer up to which its differences are in.
pub const APPLIED: usize = 64;

/// How a process came to a page.
mod role {
    /// Nobody here has touched it.
    pub const NONE: u8 = 0;
    /// It is at home here.
    pub const HOME: u8 = 1;
    /// It is at home elsewhere.
    pub const AWAY: u8 = 2;
}

/// The part that the service thread sees, too.
#[derive(Debug)]
pub struct Shared {
    /// The library's view.
    pub view: View,
    roles: Box<[AtomicU8]>,
    /// The file, for the areas of deposits.
    pub file: OwnedFd,
}

impl Shared {
    /// Whether the page may be read and written for others: it is at home here from now on, unless it is
    /// known to be at home elsewhere.
    pub fn serve(&self, page: u32) -> bool {
        let role = &self.roles[page as usize];
        let was =
            role.compare_exchange(role::NONE, role::HOME, Ordering::AcqRel, Ordering::Acquire);
        was.is_ok() || was == Err(role::HOME)
    }

    /// The page is at home here, or not, as its manager says: a peer that took it for one of here before is
    /// wrong.
    pub fn set_role(&self, page: u32, is_home: bool) {
        let role = if is_home { role::HOME } else { role::AWAY };
        self.roles[page as usize].store(role, Ordering::Release);
    }
}

enum Faults {
    Kernel(Userfault),
    /// Pages that were stored to since the last scan, if stores are to be found.
    Protection(Option<Vec<u32>>),
}

const ENTERED: u8 = 1;
/// By protection: it may be stored to.
const WRITABLE: u8 = 2;

/// The memory of one process.
pub struct Memory {
    /// For the service thread.
    pub shared: std::sync::Arc<Shared>,
    base: usize,
    pages: usize,
    faults: Faults,
    /// Why the kernel does not find the pages that were written.
    refused: Option<String>,
    states: Box<[u8]>,
    /// Entered pages of each chunk.
    entered: Box<[u16]>,
    /// Of each page, its frame and one, or 0.
    frame_of: Box<[u32]>,
    /// Of each frame, its page and one, or 0.
    frames: Box<[u32]>,
    next_frame: usize,
    /// A page for each frame.
    twins: *mut u8,
    /// Pages at home here, and copies.
    pub counts: (u64, u64),
}

fn os(doing: &str) -> io::Error {
    let error = io::Error::last_os_error();
    io::Error::new(error.kind(), format!("{doing}: {error}"))
}

fn map(
    at: *mut u8,
    bytes: usize,
    access: libc::c_int,
    flags: libc::c_int,
    file: &impl AsRawFd,
) -> io::Result<*mut u8> {
    // SAFETY: a new mapping, which replaces none.
    let start = unsafe { libc::mmap(at.cast(), bytes, access, flags, file.as_raw_fd(), 0) };
    match start == libc::MAP_FAILED {
        true => Err(os(&format!("mapping {bytes} bytes at {at:p}"))),
        false => Ok(start.cast()),
    }
}

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

impl Memory {
    /// Maps `pages` at `base`, all away; of others' pages at most `frames` at a time. `twins`: stores
    /// are to be found; `by_kernel`: by the kernel, if it can.
    pub fn new(
        base: usize,
        pages: usize,
        frames: usize,
        twins: bool,
        by_kernel: bool,
        token: u64,
    ) -> io::Result<Self> {
        let bytes = pages * PAGE;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a new descriptor, or an error; it belongs to nobody else.
        let file = unsafe {
            let file = libc::memfd_create(c"svm".as_ptr(), flags);
            if file < 0 {
                return Err(os("a memory file"));
            }
            OwnedFd::from_raw_fd(file)
        };
        // SAFETY: calls without memory.
        let sized = unsafe {
            libc::ftruncate(file.as_raw_fd(), (bytes + PAGE) as libc::off_t) == 0
                && libc::fcntl(
                    file.as_raw_fd(),
                    libc::F_ADD_SEALS,
                    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
                ) == 0
        };
        if !sized {
            return Err(os("the memory file's size"));
        }
        let start = map(null_mut(), bytes + PAGE, READ_WRITE, libc::MAP_SHARED, &file)?;
        let fixed = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
        let at = map(base as *mut u8, bytes, READ_WRITE, fixed, &file)?;
        if at as usize != base {
            return Err(io::Error::other(format!("the shared space cannot lie at {base:#x}")));
        }
        // Protection belongs to this view alone, and a child has nothing there.
        // SAFETY: the mapping of this function.
        unsafe { libc::madvise(at.cast(), bytes, libc::MADV_DONTFORK) };
        let mut refused = None;
        let watch = if twins { Watch::StoresAndFaults } else { Watch::Faults };
        let faults = match by_kernel {
            // SAFETY: the program's view stays as long as the process, or until `self` is dropped.
            true => match unsafe { Userfault::new(base, bytes, watch) } {
                Ok(kernel) => Some(kernel),
                Err(e) => {
                    refused = Some(e.to_string());
                    None
                }
            },
            false => {
                refused = Some("it was not wanted".into());
                None
            }
        };
        let faults = match faults {
            Some(kernel) => Faults::Kernel(kernel),
            None => {
                // SAFETY: the mapping of this function.
                if unsafe { libc::mprotect(at.cast(), bytes, libc::PROT_NONE) } != 0 {
                    return Err(os("protecting the shared space"));
                }
                Faults::Protection(twins.then(|| Vec::with_capacity(pages)))
            }
        };
        let frames = frames.clamp(1, pages);
        let twins = match twins {
            true => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                map(null_mut(), frames * PAGE, READ_WRITE, flags, &-1)?
            }
            false => null_mut(),
        };
        let view = View { start, bytes };
        view.word(TOKEN).store(token, Ordering::Release);
        let roles = (0..pages).map(|_| AtomicU8::new(role::NONE)).collect();
        Ok(Self {
            shared: std::sync::Arc::new(Shared { view, roles, file }),
            base,
            pages,
            faults,
            refused,
            states: vec![0; pages].into(),
            entered: vec![0; pages.div_ceil(CHUNK)].into(),
            frame_of: vec![0; pages].into(),
            frames: vec![0; frames].into(),
            next_frame: 0,
            twins,
            counts: (0, 0),
        })
    }

    /// The signal of a fault.
    pub fn signal(&self) -> libc::c_int {
        match self.faults {
            Faults::Kernel(_) => libc::SIGBUS,
            Faults::Protection(_) => libc::SIGSEGV,
        }
    }

    /// How faults are taken, in words.
    pub fn explain(&self) -> String {
        match &self.refused {
            None => "userfaultfd (SIGBUS), stores found by the kernel's scan".into(),
            Some(why) => {
                format!("protection (SIGSEGV), stores found by a fault at the first: {why}")
            }
        }
    }

    /// The page of an address of the program's view.
    pub fn page_of(&self, address: usize) -> Option<u32> {
        let page = address.checked_sub(self.base)? / PAGE;
        (page < self.pages).then_some(page as u32)
    }

    /// The address of the first byte.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Pages of the space.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Whether a load of the page needs no fault.
    pub fn is_entered(&self, page: u32) -> bool {
        self.states[page as usize] & ENTERED != 0
    }

    /// A page that has to be [evicted](Self::evict) before this one can have a [frame](Self::take_frame).
    /// Never one beside it: a store may lie on both.
    pub fn victim(&mut self, page: u32) -> Option<u32> {
        if self.frame_of[page as usize] != 0 {
            return None;
        }
        loop {
            let victim = self.frames[self.next_frame].checked_sub(1)?;
            if self.frames.len() <= 2 || victim.abs_diff(page) > 1 {
                return Some(victim);
            }
            self.next_frame = (self.next_frame + 1) % self.frames.len();
        }
    }

    /// Gives the page a frame, of which there is a free one: there is no [victim](Self::victim).
    pub fn take_frame(&mut self, page: u32) {
        if self.frame_of[page as usize] == 0 {
            assert_eq!(self.frames[self.next_frame], 0);
            self.frames[self.next_frame] = page + 1;
            self.frame_of[page as usize] = self.next_frame as u32 + 1;
            self.next_frame = (self.next_frame + 1) % self.frames.len();
            self.counts.1 += 1;
        }
    }

    /// Enters pages that are away, whose bytes are in the library's view. Those with a frame get a twin.
    pub fn enter(&mut self, pages: Range<u32>) -> io::Result<()> {
        let view = &self.shared.view;
        for page in pages.clone() {
            let at = page as usize * PAGE;
            match self.frame_of[page as usize] {
                // A page that nobody has stored to is not there yet: a load of the other view makes it.
                0 => view.read(at, &mut [0]),
                _ => {
                    if let Some(twin) = self.twin(page) {
                        // SAFETY: a page of each; the twin is this thread's alone.
                        unsafe { copy(view.start.add(at), twin, PAGE) };
                    }
                }
            }
        }
        let (start, bytes) = (self.base + pages.start as usize * PAGE, pages.len() * PAGE);
        match &mut self.faults {
            Faults::Kernel(kernel) => kernel.resolve(start..start + bytes)?,
            Faults::Protection(None) => protect(start, bytes, READ_WRITE)?,
            Faults::Protection(Some(_)) => protect(start, bytes, libc::PROT_READ)?,
        }
        for page in pages {
            let at = page as usize;
            self.states[at] = ENTERED;
            self.entered[at / CHUNK] += 1;
            self.counts.0 += u64::from(self.frame_of[at] == 0);
        }
        Ok(())
    }

    /// By protection alone: a page that is entered was stored to. `false`: it can be already.
    pub fn let_write(&mut self, page: u32) -> io::Result<bool> {
        let at = page as usize;
        let Faults::Protection(Some(written)) = &mut self.faults else { return Ok(false) };
        if self.states[at] & WRITABLE != 0 {
            return Ok(false);
        }
        protect(self.base + at * PAGE, PAGE, READ_WRITE)?;
        self.states[at] |= WRITABLE;
        written.push(page);
        Ok(true)
    }

    /// Finds the entered pages of a range that were written since the last scan.
    pub fn written(&mut self, pages: Range<u32>, mut take: impl FnMut(u32)) -> io::Result<()> {
        let Self { faults, states, entered, base, .. } = self;
        match faults {
            Faults::Kernel(kernel) => {
                let mut take = |range: Range<usize>| {
                    let pages = (range.start - *base) / PAGE..(range.end - *base) / PAGE;
                    let there = pages.filter(|page| states[*page] & ENTERED != 0);
                    there.for_each(|page| take(page as u32));
                };
                let mut from = pages.start as usize;
                let end = pages.end as usize;
                while from < end {
                    let chunk = from / CHUNK;
                    if entered[chunk] == 0 {
                        from = (chunk + 1) * CHUNK;
                        continue;
                    }
                    let full = entered[chunk..].iter().take_while(|count| **count > 0).count();
                    let until = ((chunk + full) * CHUNK).min(end);
                    let mut at = *base + from * PAGE;
                    while at < *base + until * PAGE {
                        at = kernel.written(at..*base + until * PAGE, &mut take)?;
                    }
                    from = until;
                }
            }
            Faults::Protection(None) => {}
            Faults::Protection(Some(written)) => {
                let mut failed = Ok(());
                written.retain(|page| {
                    let is_here = pages.contains(page) && failed.is_ok();
                    if is_here {
                        let start = *base + *page as usize * PAGE;
                        failed = protect(start, PAGE, libc::PROT_READ);
                        states[*page as usize] = ENTERED;
                        take(*page);
                    }
                    !is_here
                });
                failed?;
            }
        }
        Ok(())
    }

    /// The page and its twin, which is the page from now on.
    pub fn compare(
        &mut self,
        page: u32,
        copy_of: &mut [u8; PAGE],
        mut take: impl FnMut(Range<usize>, &[u8]),
    ) {
        let Some(twin) = self.twin(page) else { return };
        // SAFETY: this thread's alone, of a page.
        let twin = unsafe { &mut *twin.cast::<[u8; PAGE]>() };
        self.shared.view.read(page as usize * PAGE, copy_of);
        hamlyn_vmmc::each_run(copy_of, twin, |run| take(run.clone(), &copy_of[run]));
        twin.copy_from_slice(copy_of);
    }

    /// Takes the entered ones of a range of pages away, but for those at home here; returns how many. What
    /// was written in them has been taken.
    pub fn leave(&mut self, pages: Range<u32>) -> io::Result<u64> {
        let mut left = 0;
        let mut at = pages.start as usize;
        let end = pages.end as usize;
        while at < end {
            if self.entered[at / CHUNK] == 0 {
                at = (at / CHUNK + 1) * CHUNK;
                continue;
            }
            let goes = |page: usize| self.states[page] & ENTERED != 0 && self.frame_of[page] != 0;
            let length = (at..end).take_while(|page| goes(*page)).count();
            if length > 0 {
                let start = self.base + at * PAGE;
                match self.faults {
                    Faults::Kernel(_) => forget(start, length * PAGE)?,
                    Faults::Protection(_) => protect(start, length * PAGE, libc::PROT_NONE)?,
                }
                for page in at..at + length {
                    self.states[page] = 0;
                    self.entered[page / CHUNK] -= 1;
                }
                left += length as u64;
            }
            at += length.max(1);
        }
        Ok(left)
    }

    /// Takes a page away, and its frame and its memory. Its written bytes have been taken.
    pub fn evict(&mut self, page: u32) -> io::Result<()> {
        self.leave(page..page + 1)?;
        let at = page as usize;
        let Some(frame) = self.frame_of[at].checked_sub(1) else { return Ok(()) };
        self.frame_of[at] = 0;
        self.frames[frame as usize] = 0;
        self.counts.1 -= 1;
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (file, offset) = (self.shared.file.as_raw_fd(), (at * PAGE) as libc::off_t);
        // SAFETY: the page is a copy, which nobody uses.
        match unsafe { libc::fallocate(file, mode, offset, PAGE as libc::off_t) } {
            0 => Ok(()),
            _ => Err(os("giving a page back")),
        }
    }

    fn twin(&self, page: u32) -> Option<*mut u8> {
        let frame = self.frame_of[page as usize].checked_sub(1)?;
        // SAFETY: there is a page for each frame.
        (!self.twins.is_null()).then(|| unsafe { self.twins.add(frame as usize * PAGE) })
    }
}

impl Drop for Memory {
    /// The program's view goes. The library's stays for the service thread, which ends before the file.
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the program has left.
        unsafe {
            libc::munmap(self.base as *mut libc::c_void, self.pages * PAGE);
            if !self.twins.is_null() {
                libc::munmap(self.twins.cast(), self.frames.len() * PAGE);
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the last that had a copy of the view is gone.
        unsafe { libc::munmap(self.view.start.cast(), self.view.bytes + PAGE) };
    }
}

fn protect(start: usize, bytes: usize, access: libc::c_int) -> io::Result<()> {
    // SAFETY: pages of the program's view, whose protection is chosen here.
    match unsafe { libc::mprotect(start as *mut libc::c_void, bytes, access) } {
        0 => Ok(()),
        _ => Err(os("protecting pages")),
    }
}

/// Takes pages out of the page table; their bytes stay in the file.
fn forget(start: usize, bytes: usize) -> io::Result<()> {
    // SAFETY: as above.
    match unsafe { libc::madvise(start as *mut libc::c_void, bytes, libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(os("taking pages out of the page table")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_peers_file_that_is_a_pipe_is_refused_without_a_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a name with its end, and a new descriptor, or an error.
        let pipe = unsafe {
            assert_eq!(libc::mkfifo(name.as_ptr(), 0o600), 0);
            OwnedFd::from_raw_fd(libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_NONBLOCK))
        };
        let (said, answer) = mpsc::channel();
        let descriptor = pipe.as_raw_fd() as u32;
        std::thread::spawn(move || {
            let opened = Other::open(std::process::id(), descriptor, 7, PAGE);
            said.send(opened.is_err()).unwrap();
        });
        assert_eq!(answer.recv_timeout(Duration::from_secs(20)), Ok(true));
    }

    #[test]
    fn a_page_that_a_peer_takes_for_one_of_here_can_still_be_at_home_elsewhere() {
        let memory = Memory::new(0x5f00_0000_0000, 16, 16, false, false, 7).unwrap();
        // A fetch, or a difference, of a peer; then the page's manager says where it is.
        assert!(memory.shared.serve(3));
        memory.shared.set_role(3, false);
        assert!(!memory.shared.serve(3), "it is at home elsewhere");
    }
}
