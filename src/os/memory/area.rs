//! Memory of a message area: of this process alone, with huge pages and wired down where that was
//! wished and granted; or a view of pages that the application has at an address of its own (`pages.rs`).
//!
//! Never: a wish that was not granted passes without a word.

use super::{AreaPages, HUGE_PAGE, Mapping, PAGE, room};
use crate::os::call::OfCall;
use rustix::mm::{Advice, MapFlags};
use std::boxed::Box;
use std::io;
use std::string::{String, ToString};

/// Whether something that was asked for was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Not asked for.
    NotAsked,
    /// Asked for and given.
    Granted,
    /// Asked for; what was given in its place, or why nothing was.
    Refused(String),
}

/// What became of the wishes for a message area. Nothing is silently slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaReport {
    /// Huge pages.
    pub huge_pages: Grant,
    /// Wired down, never swapped out.
    pub locked: Grant,
}

/// Memory of a message area: beginning on a page, never moved; private and zero, unless it is of pages
/// of the application's.
#[derive(Debug)]
pub struct AreaMemory {
    mapping: Mapping,
    bytes: usize,
    /// Apart: of an area only where its bytes are is on the path of a message.
    report: Box<AreaReport>,
}

/// A message area that could not be made.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum AllocationError {
    /// Nothing to hold.
    #[error("a message area has at least 1 byte, and 0 were asked for")]
    Empty,
    /// More than an address space.
    #[error("a message area of {0} bytes does not fit into the address space")]
    TooLarge(usize),
    /// The system refused.
    #[error("a message area of {bytes} bytes could not be had: {error}")]
    Os {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        error: io::Error,
    },
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
    /// `bytes` of memory; huge pages and locking are wishes, and [`report`](Self::report) says
    /// what became of them.
    pub fn new(bytes: usize, huge_pages: bool, lock: bool) -> Result<Self, AllocationError> {
        if bytes == 0 {
            return Err(AllocationError::Empty);
        }
        let round = |unit: usize| {
            bytes.checked_next_multiple_of(unit).filter(|n| *n <= isize::MAX as usize)
        };
        let whole = round(PAGE).ok_or(AllocationError::TooLarge(bytes))?;
        let os = |error| AllocationError::Os { bytes, error };
        room::check_ever(whole).map_err(os)?;
        let mut report = AreaReport { huge_pages: Grant::NotAsked, locked: Grant::NotAsked };
        let mut mapping = None;
        if huge_pages {
            let whole = round(HUGE_PAGE).ok_or(AllocationError::TooLarge(bytes))?;
            // Reserved at once (no MAP_NORESERVE): a huge page that is missing later would kill.
            match Mapping::anonymous(whole, MapFlags::PRIVATE | MapFlags::HUGETLB) {
                Ok(m) => {
                    report.huge_pages = Grant::Granted;
                    mapping = Some(m);
                }
                Err(e) => {
                    let m = Mapping::anonymous(whole, MapFlags::PRIVATE).map_err(os)?;
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
            None => Mapping::anonymous(whole, MapFlags::PRIVATE).map_err(os)?,
        };
        if lock {
            report.locked = wire_down(&mapping);
        }
        Ok(Self { mapping, bytes, report: Box::new(report) })
    }

    /// The library's view of pages of the application's, with the same wishes.
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

    /// Where the memory begins. It stays there until this is dropped; who reads or writes through
    /// the address answers for doing so while nobody else does.
    pub fn address(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }

    /// What became of the wishes.
    pub fn report(&self) -> &AreaReport {
        &self.report
    }
}

impl AsRef<[u8]> for AreaMemory {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes are mapped, initialized (to zero, by the kernel), and of this
        // process alone: no other can map private memory, and who gave pages of his own promised
        // that nobody writes them meanwhile (`AreaPages`).
        unsafe { core::slice::from_raw_parts(self.mapping.start.as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for AreaMemory {
    #[inline(always)]
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
        assert!(matches!(AreaMemory::new(0, false, false), Err(AllocationError::Empty)));
        assert!(matches!(
            AreaMemory::new(usize::MAX, false, false),
            Err(AllocationError::TooLarge(_))
        ));
        let mut area = AreaMemory::new(5000, true, true).unwrap();
        assert_ne!(area.report().huge_pages, Grant::NotAsked);
        assert_ne!(area.report().locked, Grant::NotAsked);
        assert_eq!(area.as_ref().as_ptr() as usize % PAGE, 0);
        assert!(area.as_ref().iter().all(|b| *b == 0) && area.as_ref().len() == 5000);
        area.as_mut()[4999] = 1;
        assert_eq!(area.as_ref()[4999], 1);
    }
}
