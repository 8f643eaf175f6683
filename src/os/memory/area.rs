//! Memory of a message area: of this process alone, with huge pages and locked in memory if that
//! was requested and granted; or a view of pages that the application has at its own address
//! (`pages.rs`).
//!
//! Never: a request is denied silently.

use super::{AreaPages, HUGE_PAGE, Mapping, PAGE, room};
use crate::os::call::OfCall;
use rustix::mm::{Advice, MapFlags};
use std::boxed::Box;
use std::io;
use std::string::{String, ToString};

/// Whether a request was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Not requested.
    NotAsked,
    /// Requested and granted.
    Granted,
    /// Requested; the substitute that was granted, or the reason for none.
    Refused(String),
}

/// The results of the requests for a message area. Nothing is silently slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaReport {
    /// Huge pages.
    pub huge_pages: Grant,
    /// Wired down, never swapped out.
    pub locked: Grant,
}

/// Memory of a message area: beginning on a page, never moved; private and zero, unless it is of
/// pages of the application's.
#[derive(Debug)]
pub struct AreaMemory {
    mapping: Mapping,
    bytes: usize,
    /// Boxed: on the path of a message, only the address of an area's bytes is needed.
    report: Box<AreaReport>,
}

fn wire_down(mapping: &Mapping) -> Grant {
    // It takes all pages now.
    if let Err(e) = room::check_now(mapping.bytes) {
        return Grant::Refused(e.to_string());
    }
    // SAFETY: the range is the mapping, of which no byte changes.
    match unsafe { rustix::mm::mlock(mapping.start.as_ptr().cast(), mapping.bytes) } {
        Ok(()) => Grant::Granted,
        Err(e) => {
            let told = Err::<(), _>(e).of_call("mlock");
            Grant::Refused(told.map_or_else(|e| e.to_string(), |()| String::new()))
        }
    }
}

impl AreaMemory {
    /// `bytes` of memory; huge pages and locking are requests, and [`report`](Self::report) returns
    /// their results.
    pub fn new(bytes: usize, huge_pages: bool, lock: bool) -> io::Result<Self> {
        let round = |unit: usize| {
            let whole = bytes.checked_next_multiple_of(unit).filter(|n| *n <= isize::MAX as usize);
            whole.ok_or_else(|| io::Error::other("it does not fit into the address space"))
        };
        let whole = round(PAGE)?;
        room::check_ever(whole)?;
        let mut report = AreaReport { huge_pages: Grant::NotAsked, locked: Grant::NotAsked };
        let mut mapping = None;
        if huge_pages {
            let whole = round(HUGE_PAGE)?;
            // Reserved at once (no MAP_NORESERVE): a huge page that is missing later would kill.
            match Mapping::anonymous(whole, MapFlags::PRIVATE | MapFlags::HUGETLB) {
                Ok(m) => {
                    report.huge_pages = Grant::Granted;
                    mapping = Some(m);
                }
                Err(e) => {
                    let m = Mapping::anonymous(whole, MapFlags::PRIVATE)?;
                    let instead = match m.advise(Advice::LinuxHugepage) {
                        Ok(()) => "transparent huge pages, where the kernel finds them, instead",
                        Err(_) => "ordinary pages instead",
                    };
                    let why = std::format!("no reserved huge pages ({e}); {instead}");
                    report.huge_pages = Grant::Refused(why);
                    mapping = Some(m);
                }
            }
        }
        let mapping = match mapping {
            Some(mapping) => mapping,
            None => Mapping::anonymous(whole, MapFlags::PRIVATE)?,
        };
        if lock {
            report.locked = wire_down(&mapping);
        }
        Ok(Self { mapping, bytes, report: Box::new(report) })
    }

    /// The library's view of the application's pages, with the same requests.
    pub fn of_pages(pages: AreaPages, huge_pages: bool, lock: bool) -> Self {
        let mut report = AreaReport { huge_pages: Grant::NotAsked, locked: Grant::NotAsked };
        if huge_pages {
            let instead = match pages.advise_huge_pages() {
                Ok(()) => "transparent huge pages, where the kernel finds them, instead",
                Err(_) => "ordinary pages instead",
            };
            let why = std::format!("the pages are shared with the application's view; {instead}");
            report.huge_pages = Grant::Refused(why);
        }
        let AreaPages { mapping, bytes } = pages;
        if lock {
            report.locked = wire_down(&mapping);
        }
        Self { mapping, bytes, report: Box::new(report) }
    }

    /// The address of the memory, which stays until this is dropped. A caller that reads or writes
    /// through it must ensure that no other thread does so at the same time.
    pub fn address(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }

    /// The results of the requests.
    pub fn report(&self) -> &AreaReport {
        &self.report
    }
}

impl AsRef<[u8]> for AreaMemory {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes are mapped, initialized (to zero, by the kernel), and of this
        // process alone: no other can map private memory, and the caller that passed its own
        // pages promised that no one writes them meanwhile (`AreaPages`).
        unsafe { core::slice::from_raw_parts(self.mapping.start.as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for AreaMemory {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.mapping.start.as_ptr(), self.bytes) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_zero_page_aligned_and_says_what_it_got() {
        let error = AreaMemory::new(usize::MAX, false, false).err().unwrap();
        assert!(error.to_string().contains("address space"), "{error}");
        let mut area = AreaMemory::new(5000, true, true).unwrap();
        assert_ne!(area.report().huge_pages, Grant::NotAsked);
        assert_ne!(area.report().locked, Grant::NotAsked);
        assert_eq!(area.as_ref().as_ptr() as usize % PAGE, 0);
        assert!(area.as_ref().iter().all(|b| *b == 0) && area.as_ref().len() == 5000);
        area.as_mut()[4999] = 1;
        assert_eq!(area.as_ref()[4999], 1);
    }
}
