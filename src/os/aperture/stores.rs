//! Many loads and stores of an aperture's words, each without a lock.
//!
//! A word that is accessed by [`Pages`] alone costs two locked instructions, for the lock around the
//! mapping. Here the mapping is kept instead: a revocation waits for nobody, and later stores go to
//! pages that no process reads any more.
//!
//! Never: an access outside the pages; in a forked child, which does not have them, any access.

use super::super::memory::{AreaPages, ForkGuard, RegionLines};
use super::{AccessError, PageMemory, Pages};
use crate::link::cells::{self, Lines};
use std::io;
use std::sync::PoisonError;

/// Loads and stores of an aperture, many at a time: [`Aperture::stores`](crate::Aperture::stores).
/// Any thread may use it. Each word is loaded or stored as a whole, in one instruction of the
/// processor. A store comes after all that this thread stored before, and a load before all that it
/// loads later; so data is complete when the word that announces it is there.
///
/// *A revocation does not end it*: it keeps this process's mapping until it is dropped, and the
/// memory stays charged to its owner until then. Stores after the revocation reach nobody but
/// an owner that keeps `Stores` of its own or exported [pages of its
/// own](crate::Node::export_pages), and loads find old bytes; [`is_revoked`](crate::Aperture::is_revoked) of the aperture
/// tells. (If an aperture has [several holders](crate::Node::export_also), its memory, and with it
/// the effect of this holder's stores, ends with the last of them.)
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-stores-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::{Accept, Access, ApertureAccess, ApertureView, Node, Stores};
/// # use std::time::Duration;
/// # let limit = Some(Duration::from_secs(10));
/// let mut owner = Node::with_config(config.clone())?;
/// owner.serve("words", Access::SameUser, Accept::Automatic(vec![]))?;
/// let mut holder = Node::with_config(config)?; // Usually another process.
/// holder.connect("words", b"", limit)?;
/// # while owner.links().count() == 0 { owner.wait(limit)?; }
/// let link = owner.links().next().expect("the holder has connected");
/// let exported = owner.export(link, 4096, ApertureAccess::ReadWrite)?;
/// # while holder.apertures_held().count() == 0 { holder.wait(limit)?; }
/// let held = holder.apertures_held().next().expect("the owner has exported");
/// let stores: Stores = holder.aperture(held)?.stores()?;
/// for i in 0..100 {
///     stores.store_u32(4 * i, i as u32)?;
/// }
/// stores.write(512, b"bytes")?;
/// stores.store_u64(1024, 1)?; // Behind them: they are there.
/// let view: ApertureView = owner.aperture_view(exported)?;
/// let view = view.stores()?;
/// while view.load_u64(1024)? == 0 {}
/// assert_eq!(view.load_u32(4 * 99)?, 99);
/// let mut bytes = [0; 5];
/// view.read(512, &mut bytes)?;
/// assert!(&bytes == b"bytes" && view.bytes() == 4096 && !view.as_ptr().is_null());
/// # drop((owner, holder));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stores {
    lines: RegionLines,
    bytes: u64,
    may_write: bool,
    guard: ForkGuard,
}

impl Pages {
    /// Keeps the mapping for many accesses. Pages of another host have none.
    pub fn stores(&self) -> Result<Stores, AccessError> {
        if !self.guard.is_parent() {
            return Err(AccessError::Forked);
        }
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        match memory.as_ref() {
            Some(PageMemory::Here(lines)) => Ok(Stores {
                lines: lines.clone(),
                bytes: self.bytes,
                may_write: self.may_write,
                guard: self.guard.clone(),
            }),
            Some(PageMemory::OtherHost(_)) => Err(AccessError::Word),
            None => Err(AccessError::Revoked),
        }
    }
}

impl Stores {
    /// Bytes of the aperture.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Stores the word at `offset`, a multiple of 4.
    #[inline]
    pub fn store_u32(&self, offset: u64, value: u32) -> Result<(), AccessError> {
        self.check(offset, 4, true)?;
        cells::store_half_at(self.lines.lines(), offset as usize, value);
        Ok(())
    }

    /// Stores the word at `offset`, a multiple of 8.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), AccessError> {
        self.check(offset, 8, true)?;
        cells::store_at(self.lines.lines(), offset as usize, value);
        Ok(())
    }

    /// The word at `offset`, a multiple of 4.
    #[inline]
    pub fn load_u32(&self, offset: u64) -> Result<u32, AccessError> {
        self.check(offset, 4, false)?;
        Ok(cells::load_half_at(self.lines.lines(), offset as usize))
    }

    /// The word at `offset`, a multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: u64) -> Result<u64, AccessError> {
        self.check(offset, 8, false)?;
        Ok(cells::load_at(self.lines.lines(), offset as usize))
    }

    /// Copies `from` to `offset`, in any order of the bytes.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        self.check_range(offset, from.len() as u64, true)?;
        cells::write_at(self.lines.lines(), offset as usize, from);
        Ok(())
    }

    /// Copies from `offset` into `to`, in any order of the bytes. Check the copy, then use it: the
    /// other process may change the bytes at any time.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        self.check_range(offset, to.len() as u64, false)?;
        cells::read_at(self.lines.lines(), offset as usize, to);
        Ok(())
    }

    /// The address of the first byte in this process, for code that stores by itself. It holds as
    /// long as this value or a clone lives, in this process, not in its forked children. Whoever
    /// uses it must not store through it if this process may only read, must make no reference
    /// (`&[u8]`, `&mut [u8]`) to the bytes, since another process may change them at any time, and
    /// must access words that this process accesses in several threads as atomics.
    pub fn as_ptr(&self) -> *mut u8 {
        self.lines.start().as_ptr()
    }

    #[inline]
    fn check(&self, offset: u64, word: u64, writes: bool) -> Result<(), AccessError> {
        if offset > self.bytes.wrapping_sub(word)
            || self.bytes < word
            || !offset.is_multiple_of(word)
        {
            return Err(self.why_no_word(offset, word));
        }
        self.check_use(writes)
    }

    #[inline]
    fn check_range(&self, offset: u64, length: u64, writes: bool) -> Result<(), AccessError> {
        if offset > self.bytes || length > self.bytes - offset {
            return Err(AccessError::OutOfBounds { offset, length, bytes: self.bytes });
        }
        self.check_use(writes)
    }

    #[inline]
    fn check_use(&self, writes: bool) -> Result<(), AccessError> {
        if !self.guard.is_parent() {
            return Err(AccessError::Forked);
        }
        if writes && !self.may_write {
            return Err(AccessError::ReadOnly);
        }
        Ok(())
    }

    #[cold]
    fn why_no_word(&self, offset: u64, word: u64) -> AccessError {
        match offset < self.bytes && word <= self.bytes - offset {
            true => AccessError::Unaligned(offset),
            false => AccessError::OutOfBounds { offset, length: word, bytes: self.bytes },
        }
    }
}

/// A view of a message area that any thread reads while packets land in it:
/// [`Node::watched_area`](crate::Node::watched_area).
///
/// *Volatile*, like an aperture: bytes can only be copied. Each byte is one that the last packet
/// there brought, or the one before. A message of up to 16 bytes at an offset that is a multiple of
/// 8 is stored by whole words, so a word that such a message brings is loaded whole. On x86-64 a
/// load that finds the bytes of a packet is followed by loads that find those of all packets
/// deposited before it; on other processors only a notification tells that. The view can be read as
/// long as it lives; when the area has been removed, nothing changes any more.
#[derive(Clone, Debug)]
pub struct AreaView(Stores);

impl AreaView {
    /// Memory for an area of `bytes` bytes, and the view.
    pub(crate) fn make(bytes: usize) -> io::Result<(AreaPages, Self)> {
        let (pages, lines) = AreaPages::with_view(bytes)?;
        let (bytes, guard) = (bytes as u64, ForkGuard::new()?);
        Ok((pages, Self(Stores { lines, bytes, may_write: false, guard })))
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The word at `offset`, a multiple of 4.
    #[inline]
    pub fn load_u32(&self, offset: u64) -> Result<u32, AccessError> {
        self.0.load_u32(offset)
    }

    /// The word at `offset`, a multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: u64) -> Result<u64, AccessError> {
        self.0.load_u64(offset)
    }

    /// Copies from `offset` into `to`, in any order of the bytes.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        self.0.read(offset, to)
    }
}
