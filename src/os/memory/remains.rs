//! Mappings of a link that has ended: private copies take the place of the peer's files while the
//! program makes no calls, so that nothing of the peer's stays behind.
//!
//! A file lives as long as a process maps it, with everything that its peer has given it: the agreed
//! pages, and memory that no limit of this process counts, such as extended attributes. While the peer
//! lives its own control group pays for that; after its death only this process holds the file.
//!
//! Bytes of the peer that have not been read yet are in the copy, at the same address.
//!
//! Never: a thread that reads or writes there is disturbed (the kernel replaces a mapping in one step,
//! and threads that touch it meanwhile wait for that); a thread waits for this one (a page may have been
//! swapped out, and come back only when the peer's control group has memory).

use super::elsewhere::elsewhere;
use super::{Mapping, PAGE, Region, RegionLines};
use crate::link::cells::{self, Lines};
use core::sync::atomic::AtomicUsize;
use rustix::mm::{MapFlags, MremapFlags};
use std::io;
use std::sync::{Arc, Weak};
use std::vec::Vec;

/// A mapping of a link that may have ended; this does not keep it.
#[derive(Clone, Debug)]
pub struct Remains(Weak<Mapping>);

impl Remains {
    /// Whether the mapping still exists.
    pub fn are_there(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Puts a private copy in its place.
    fn copy(&self) -> io::Result<()> {
        let Some(mapping) = self.0.upgrade() else { return Ok(()) };
        let mut copy = Mapping::anonymous(mapping.bytes, MapFlags::PRIVATE)?;
        copy.keep_from_children()?;
        let lines = RegionLines::new(&mapping, 0);
        for at in (0..lines.bytes()).step_by(PAGE) {
            let mut page = [0; PAGE];
            let page = &mut page[..PAGE.min(lines.bytes() - at)];
            cells::read_at(lines.lines(), at, page);
            // A page of zeros is one that has not been touched.
            if page.iter().any(|byte| *byte != 0) {
                // SAFETY: inside the new mapping, which is as long, and nobody else has it.
                unsafe { copy.start.as_ptr().add(at).copy_from(page.as_ptr(), page.len()) };
            }
        }
        // SAFETY: the first range is the new mapping, which nothing refers to. The second is the old
        // one, which `mapping` keeps; all accesses through pointers into it are atomic, and find the
        // same bytes, except for own writes since the copy. No peer reads those: the link has ended.
        unsafe {
            let (from, to) = (copy.start.as_ptr(), mapping.start.as_ptr());
            let flags = MremapFlags::MAYMOVE;
            rustix::mm::mremap_fixed(from.cast(), copy.bytes, copy.bytes, flags, to.cast())?;
        }
        core::mem::forget(copy);
        mapping.unpin();
        Ok(())
    }
}

impl Region {
    /// The memory that may be left of it when its link has ended.
    pub fn remains(&self) -> Remains {
        Remains(Arc::downgrade(&self.mapping))
    }
}

impl RegionLines {
    /// The memory that may be left of it when its link has ended.
    pub fn remains(&self) -> Remains {
        Remains(Arc::downgrade(&self.mapping))
    }
}

static COPIERS: AtomicUsize = AtomicUsize::new(0);

/// Puts private copies in the place of these mappings, on a thread that nothing waits for. Without
/// memory for a copy the mapping stays as it is, which its user's quota allows for.
pub fn copy_elsewhere(mut remains: Vec<Remains>) {
    remains.retain(Remains::are_there);
    if !remains.is_empty() {
        // One that could not be copied stays as it is.
        let copy = |remains: Vec<Remains>| remains.iter().for_each(|it| drop(it.copy()));
        let _ = elsewhere(&COPIERS, "hamlyn-remains", remains, copy);
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::super::{create, region_bytes};
    use super::*;
    use crate::link::cells::{Ordering, Word};

    #[test]
    fn what_remains_of_a_link_is_a_copy_and_its_file_is_let_go() {
        let bytes = region_bytes(1 << 16);
        let file = create(bytes).unwrap();
        let theirs = Region::map_writable(&file, bytes).unwrap();
        theirs.fill_by_writing().unwrap();
        let ours = Region::map_read_only(&file, bytes).unwrap();
        ours.pin().unwrap();
        theirs.room().word().store(7, Ordering::Relaxed);
        cells::write_at(theirs.lines().lines(), 40_000, b"sent before the end");
        let remains = ours.remains();
        let (lines, room) = (ours.lines(), ours.room());
        remains.copy().unwrap();
        let mut found = [0; 19];
        cells::read_at(lines.lines(), 40_000, &mut found);
        assert_eq!(&found, b"sent before the end");
        assert_eq!(room.word().load(Ordering::Relaxed), 7);
        // Later writes to the file do not show here.
        theirs.room().word().store(8, Ordering::Relaxed);
        assert_eq!(room.word().load(Ordering::Relaxed), 7);
        let start = std::format!("{:x}-", ours.mapping.start.as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let its = maps.lines().find(|line| line.starts_with(&start)).unwrap();
        assert!(!its.contains("memfd"), "{its}");
        assert!(super::super::lock(&ours.mapping.pin).is_none());
        drop((lines, room, ours));
        assert!(!remains.are_there());
        remains.copy().unwrap();
    }
}
