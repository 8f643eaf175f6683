//! The packets that a slot's receiver is asked about: all, or those of some pages or entries, whose
//! bytes the application sets at any time, from any thread.

use crate::wire::MetadataIndex;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, Ordering};

/// Which packets of a slot its receiver is asked about ([`Node::install_filtered`]): one byte for each
/// page of the slot, or for each of its entries. Clones are the same filter. At first it asks about
/// none.
///
/// A packet that it does not ask about is handled as in a slot without a receiver, and as fast. A
/// change counts for packets that are taken after it, as soon as this process's processors see it.
///
/// ```
/// use hamlyn::Filter;
///
/// let filter = Filter::by_entry(4);
/// filter.set(2, true); // About messages of the third entry.
/// filter.set(4, true); // And about those in fast mode.
/// ```
///
/// [`Node::install_filtered`]: crate::Node::install_filtered
#[derive(Clone, Debug)]
pub struct Filter {
    bytes: Arc<[AtomicU8]>,
    /// The logarithm of a page's bytes; `None`: a byte for each entry, and one for packets in fast mode.
    page_log2: Option<u32>,
}

impl Filter {
    /// By pages of `page_bytes`, a power of two, from the slot's base on, for a slot of `slot_bytes`. A
    /// packet that touches a page whose byte is set is asked about.
    ///
    /// # Panics
    /// If `page_bytes` is no power of two.
    pub fn by_page(slot_bytes: usize, page_bytes: usize) -> Self {
        assert!(page_bytes.is_power_of_two(), "a page of {page_bytes} bytes: no power of two");
        let pages = slot_bytes.div_ceil(page_bytes);
        Self { bytes: clear(pages), page_log2: Some(page_bytes.trailing_zeros()) }
    }

    /// By the slot's metadata entries, of which there are `entries`; [packets in fast
    /// mode](crate::Node::send_fast) count as the entry behind the last.
    pub fn by_entry(entries: u32) -> Self {
        Self { bytes: clear(entries as usize + 1), page_log2: None }
    }

    /// Whether the receiver is asked about packets of this page or entry. Behind the last: nothing is
    /// changed.
    pub fn set(&self, index: usize, asks: bool) {
        if let Some(byte) = self.bytes.get(index) {
            byte.store(asks as u8, Ordering::Release);
        }
    }

    /// Whether the receiver is asked about a packet. Behind the last page or entry: it is.
    #[inline]
    pub(super) fn asks(&self, index: MetadataIndex, offset: u64, length: u32) -> bool {
        let (first, last) = match self.page_log2 {
            Some(log2) => {
                let end = offset.saturating_add(length.saturating_sub(1) as u64);
                ((offset >> log2) as usize, (end >> log2) as usize)
            }
            None => {
                let entry = (index.0 as usize).min(self.bytes.len() - 1);
                (entry, entry)
            }
        };
        if first == last {
            return self.bytes.get(first).is_none_or(|byte| byte.load(Ordering::Acquire) != 0);
        }
        let Some(bytes) = self.bytes.get(first..=last) else { return true };
        bytes.iter().any(|byte| byte.load(Ordering::Acquire) != 0)
    }
}

fn clear(bytes: usize) -> Arc<[AtomicU8]> {
    (0..bytes).map(|_| AtomicU8::new(0)).collect()
}
