//! Apertures: the path without a copy through a ring.
//!
//! ```text
//!   owner                                       holder
//!   export(link, ..) -> ApertureId
//!   Event::Aperture { Ready }                   Event::Aperture { Held }
//!   aperture_view(id) -> ApertureView           aperture(id) -> Aperture
//!     read()  <------- the same pages --------    write()
//!   recv()    <------- a packet: "it is there" -  send()
//!   revoke_aperture(id) or reclaim_aperture(id)
//!                                               Event::Aperture { Revoked }
//! ```
//! An aperture (CLAN; SHRIMP's import and export) is memory of its owner whose whole pages are
//! mapped into one holder, at the other end of one link; a read-only one into each holder that it
//! is [exported to](Node::export_also). Data moves by the holder's own stores and loads. A message
//! announces it, through a slot elsewhere, and its packets are checked like all others. So an
//! aperture has no slot, takes no deposits, and is no message area: its bytes may change at any
//! time, and the library does not lend them out. Copy bytes that must be stable, or call
//! [`Node::reclaim_aperture`], which makes a message area of the aperture.
//!
//! Any thread can use [`Aperture`] and [`ApertureView`], without the node.
//!
//! Never: an aperture outlives its link; a holder's use of its pages has an effect anywhere else.

mod error;
mod name;
mod other_host;
mod own;

pub use error::ExportError;
pub use name::{ApertureEvent, ApertureId, NoSuchAperture};

use super::link::Link;
use super::{Forked, LinkError, MemoryError, Node};
use crate::control::{self, LinkToken, Reason};
use crate::interface::{AreaId, LinkId};
use crate::os::aperture::{
    AccessError, ApertureAccess, Exceeded, ExportLimits, Ledger, Owned, PAGE_BYTES, Pages,
    Reservation, Stores,
};
use crate::os::pool::{Layout, Pool};
use std::collections::HashMap;
use std::format;
use std::io;
use std::os::fd::OwnedFd;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

/// The holder's side of an aperture: the memory of a process at the other end of a link. Any thread
/// may use it, without the node.
///
/// Its owner may change the bytes, and may revoke the aperture, at any time. Afterwards every call
/// returns [`AccessError::Revoked`], and no process sees later writes.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-aperture-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::{Accept, Access, ApertureAccess, ApertureEvent, Event, Node};
/// use std::time::Duration;
///
/// fn next_event(node: &mut Node) -> Result<Event, Box<dyn std::error::Error>> {
///     loop {
///         if let Some(event) = node.next_event() {
///             return Ok(event);
///         }
///         if !node.wait(Some(Duration::from_secs(10)))? {
///             return Err("no event came".into());
///         }
///     }
/// }
///
/// let mut owner = Node::with_config(config.clone())?;
/// owner.serve("pages", Access::SameUser, Accept::Automatic(vec![]))?;
/// // Usually another process.
/// let mut holder = Node::with_config(config)?;
/// holder.connect("pages", b"", Some(Duration::from_secs(10)))?;
///
/// let Event::Connected { link, .. } = next_event(&mut owner)? else { panic!("nobody connected") };
/// let exported = owner.export(link, 4096, ApertureAccess::ReadWrite)?;
///
/// let aperture = loop {
///     if let Event::Aperture { aperture, what: ApertureEvent::Held } = next_event(&mut holder)? {
///         break holder.aperture(aperture)?;
///     }
/// };
/// assert_eq!((aperture.bytes(), aperture.access()), (4096, ApertureAccess::ReadWrite));
/// aperture.populate()?; // All pages now, not at the first access.
/// aperture.write(0, b"in place")?;
/// aperture.write_u64(8, 42)?;
///
/// // The holder can still change them: copy, then check, then use.
/// let mut bytes = [0; 8];
/// let view = owner.aperture_view(exported)?;
/// view.read(0, &mut bytes)?;
/// assert_eq!((&bytes, view.read_u64(8)?), (b"in place", 42));
/// assert_eq!((view.id(), view.bytes(), view.is_revoked()), (exported, 4096, false));
/// assert!(owner.apertures_exported().eq([exported]));
/// assert!(holder.apertures_held().eq([aperture.id()]) && owner.aperture_bytes().0 > 0);
/// // From here on it cannot: its writes are errors, or have no effect.
/// let area = owner.reclaim_aperture(exported)?;
/// aperture.write(0, b"too late").ok();
/// assert_eq!(&owner.area(area)?[..8], b"in place");
/// // If the bytes are no longer needed:
/// let looked_at = owner.export(link, 4096, ApertureAccess::ReadOnly)?;
/// owner.revoke_aperture(looked_at)?;
/// holder.release_aperture(aperture.id()).ok(); // An error: the holder knows already.
/// assert!(view.populate().is_err() && view.access() == ApertureAccess::ReadWrite);
/// # drop((owner, holder));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Aperture {
    id: ApertureId,
    pages: Arc<Pages>,
}

/// The owner's view of an aperture that it has exported. Any thread may use it, without the node.
/// [`Aperture`] shows both ends.
///
/// *Volatile*: the holder of a read-write aperture may change the bytes, or make pages of them
/// zero, between any two calls and during each. So bytes can only be copied: check the copy, then
/// use it. The aperture ends with its link, but its bytes can be read here until the last view is
/// dropped, so that announced data is not lost.
#[derive(Clone, Debug)]
pub struct ApertureView {
    id: ApertureId,
    owned: Arc<Owned>,
}

macro_rules! pages {
    ($type:ty, $self:ident => $pages:expr) => {
        impl $type {
            /// Its name.
            pub fn id(&self) -> ApertureId {
                self.id
            }

            /// Bytes.
            pub fn bytes(&$self) -> u64 {
                $pages.bytes()
            }

            /// Copies `from` to `offset`. A message that this thread sends afterwards finds the
            /// bytes there. For an aperture of another host, that holds for a message over the
            /// aperture's own link, if several links lead there ([`Node::send_over`]);
            /// [`AccessError::Busy`] means that too many writes already wait for its owner, and a
            /// part of `from` may have been written then.
            #[inline]
            pub fn write(&$self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
                $pages.write(offset, from)
            }

            /// Copies from `offset` into `to`. For an aperture of another host, waits for its
            /// owner's program, at most `host_timeout_ms` ([`AccessError::Silent`]).
            #[inline]
            pub fn read(&$self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
                $pages.read(offset, to)
            }

            /// Stores the word at `offset`, a multiple of 8, as a whole, after all earlier writes
            /// of this thread.
            #[inline]
            pub fn write_u64(&$self, offset: u64, value: u64) -> Result<(), AccessError> {
                $pages.write_u64(offset, value)
            }

            /// The word at `offset`, a multiple of 8, as a whole; its writer's earlier writes can
            /// be read after it.
            #[inline]
            pub fn read_u64(&$self, offset: u64) -> Result<u64, AccessError> {
                $pages.read_u64(offset)
            }

            /// Keeps this process's mapping for many loads and stores of words, each without a lock.
            #[inline]
            pub fn stores(&$self) -> Result<Stores, AccessError> {
                $pages.stores()
            }

            /// Enters every page into this process's page table now, if the system can, so that the
            /// first accesses need not wait for that: a first copy of 64 KiB at a time took 0.7 ms
            /// a MiB, every later one 0.025 ms. A revocation meanwhile waits until it is done.
            pub fn populate(&$self) -> Result<(), AccessError> {
                $pages.populate()
            }

            /// Whether it was revoked, or, at its holder, its link has ended. At its owner, if
            /// [others](Node::export_also) hold it as well, `false` until it was revoked from the
            /// last of them, or reclaimed.
            pub fn is_revoked(&$self) -> bool {
                $pages.is_gone()
            }
        }
    };
}
pages!(Aperture, self => self.pages);
pages!(ApertureView, self => self.owned.pages());

impl Aperture {
    /// Its pages.
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// This process's access to it.
    pub fn access(&self) -> ApertureAccess {
        if self.pages.may_write() { ApertureAccess::ReadWrite } else { ApertureAccess::ReadOnly }
    }
}

impl ApertureView {
    /// Its pages.
    pub(crate) fn pages(&self) -> &Pages {
        self.owned.pages()
    }

    /// The holder's access to it. The owner may always write.
    pub fn access(&self) -> ApertureAccess {
        self.owned.access()
    }
}

#[derive(Debug)]
struct Exported {
    bytes: u64,
    memory: Exports,
}

/// The exported memory.
#[derive(Debug)]
enum Exports {
    /// The same for each of its holders.
    Own(Arc<Owned>),
    /// To several, over a link each; the publisher's.
    Pool,
}

impl Exported {
    fn owned(&self, id: ApertureId) -> Result<&Arc<Owned>, NoSuchAperture> {
        match &self.memory {
            Exports::Own(owned) => Ok(owned),
            Exports::Pool => Err(NoSuchAperture::Pool(id)),
        }
    }
}

/// The holder of an export.
#[derive(Clone, Copy, Debug)]
enum ExportTarget {
    /// A process of this host.
    Process(LinkToken),
    /// One of another host.
    Host,
}

/// All apertures of a node.
#[derive(Debug, Default)]
pub(super) struct NodeApertures {
    ledger: Arc<Ledger>,
    exported: HashMap<ApertureId, Exported>,
    held: HashMap<ApertureId, Aperture>,
    /// The reason for the last refusal of an aperture.
    refused: HashMap<LinkId, String>,
}

impl NodeApertures {
    fn link_bytes(&self, link: LinkId) -> (usize, u64) {
        let of = self.exported.iter().filter(|row| row.0.link == link);
        of.fold((0, 0), |(count, bytes), row| (count + 1, bytes + row.1.bytes))
    }

    /// The names of the same memory, over each link to a holder.
    fn names_of(&self, owned: &Arc<Owned>) -> Vec<ApertureId> {
        let is_same =
            |memory: &Exports| matches!(memory, Exports::Own(of) if Arc::ptr_eq(of, owned));
        let names = self.exported.iter().filter(|row| is_same(&row.1.memory));
        names.map(|(id, _)| *id).collect()
    }

    /// Ends the apertures of a link. The owner's memory goes with its last view.
    pub(super) fn link_ended(&mut self, link: LinkId) {
        self.exported.retain(|id, _| id.link != link);
        self.held.retain(|id, aperture| {
            if id.link == link {
                aperture.pages.let_go();
            }
            id.link != link
        });
        self.refused.remove(&link);
        self.ledger.settle();
    }

    /// For `explain`.
    pub(super) fn explain(&self, link: LinkId) -> String {
        let mut text = String::new();
        let (count, bytes) = self.link_bytes(link);
        if count > 0 {
            text.push_str(&format!("; apertures exported: {count}, of {bytes} bytes"));
        }
        let held = self.held.values().filter(|aperture| aperture.id.link == link);
        let (count, bytes) = held.fold((0, 0), |(n, sum), a| (n + 1, sum + a.bytes()));
        if count > 0 {
            text.push_str(&format!("; apertures held: {count}, of {bytes} bytes"));
        }
        if let Some(why) = self.refused.get(&link) {
            text.push_str(&format!("; an aperture was refused: {why}"));
        }
        text
    }
}

impl Node {
    /// Exports `bytes` of new zeroed memory as an aperture to the other end of `link`: whole pages,
    /// one holder, and a fixed access. All of it is charged to this process now.
    /// [`Event::Aperture`](super::Event::Aperture) reports that the holder has it, or the reason
    /// why not.
    ///
    /// The holder gets [`ApertureEvent::Held`] and calls [`aperture`](Self::aperture); this node
    /// has an [`aperture_view`](Self::aperture_view). Messages announce the data, through a slot
    /// elsewhere, and name the aperture by its number. It ends with
    /// [`revoke_aperture`](Self::revoke_aperture), [`reclaim_aperture`](Self::reclaim_aperture), or
    /// its link.
    ///
    /// Exports to another host need libfabric and a suitable provider. The holder then has no
    /// mapping: its writes are on their way when the call returns, move while both programs make
    /// calls, and arrive before any message that it sends afterwards over this link; its reads
    /// wait; single words are not available.
    pub fn export(
        &mut self,
        link: LinkId,
        bytes: u64,
        access: ApertureAccess,
    ) -> Result<ApertureId, ExportError> {
        self.export_made(link, bytes, access, |reservation| Owned::make(access, reservation))
    }

    /// The same with memory that `make` makes.
    fn export_made(
        &mut self,
        link: LinkId,
        bytes: u64,
        access: ApertureAccess,
        make: impl FnOnce(Reservation) -> io::Result<(Owned, OwnedFd)>,
    ) -> Result<ApertureId, ExportError> {
        self.check_fork()?;
        self.link(link)?;
        let result = self.try_export(link, bytes, access, make);
        if let Err(e) = &result {
            let why = format!("{bytes} bytes {access}: {e}");
            self.apertures.refused.insert(link, why);
        }
        result
    }

    fn try_export(
        &mut self,
        link: LinkId,
        bytes: u64,
        access: ApertureAccess,
        make: impl FnOnce(Reservation) -> io::Result<(Owned, OwnedFd)>,
    ) -> Result<ApertureId, ExportError> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(ExportError::Unaligned(bytes));
        }
        let (to, uid) = self.check_export(link, bytes)?;
        let (all, user) = (self.config.aperture_bytes_max, self.config.aperture_user_bytes_max);
        let reserved = self.apertures.ledger.reserve(bytes, uid, ExportLimits { all, user });
        let reservation = reserved.map_err(|exceeded| self.exceeded(bytes, exceeded))?;
        let (owned, file) = make(reservation).map_err(|error| ExportError::Os { bytes, error })?;
        self.offer(link, to, access, bytes, file, Exports::Own(Arc::new(owned)))
    }

    /// The other end of a link over which this many bytes may be exported.
    fn check_export(
        &self,
        link: LinkId,
        bytes: u64,
    ) -> Result<(ExportTarget, Option<u32>), ExportError> {
        let found = self.link(link)?;
        let (token, uid) = (found.token.ok_or(ExportError::ToSelf)?, found.peer.uid);
        let to = match found.host_can_lend() {
            None => ExportTarget::Process(token),
            Some(can) => can.map(|()| ExportTarget::Host).map_err(ExportError::OtherHost)?,
        };
        let limit = self.config.aperture_link_bytes_max;
        let (_, used) = self.apertures.link_bytes(link);
        if bytes > limit.saturating_sub(used) {
            return Err(ExportError::LinkBytes { bytes, used, limit });
        }
        Ok((to, uid))
    }

    fn exceeded(&self, bytes: u64, exceeded: Exceeded) -> ExportError {
        let (used, limit, variable) = match exceeded {
            Exceeded::Orphans(count) => return ExportError::Orphans(count),
            Exceeded::All(used) => {
                (used, self.config.aperture_bytes_max, "HAMLYN_APERTURE_BYTES_MAX")
            }
            Exceeded::User(used) => {
                (used, self.config.aperture_user_bytes_max, "HAMLYN_APERTURE_USER_BYTES_MAX")
            }
        };
        let orphans = self.apertures.ledger.orphan_bytes();
        ExportError::Bytes { bytes, used, orphans, limit, variable }
    }

    fn offer(
        &mut self,
        link: LinkId,
        to: ExportTarget,
        access: ApertureAccess,
        bytes: u64,
        file: OwnedFd,
        memory: Exports,
    ) -> Result<ApertureId, ExportError> {
        let number = match to {
            ExportTarget::Process(token) => {
                self.control().export_aperture(token, access, bytes, file)?
            }
            ExportTarget::Host => {
                let lent = self.link(link)?.lend_to_host(file, bytes, access);
                lent.map_err(ExportError::OtherHost)?
            }
        };
        let id = ApertureId { link, number };
        self.apertures.exported.insert(id, Exported { bytes, memory });
        Ok(id)
    }

    /// Exports a read-only aperture of this node (or one that [others may
    /// write](Self::let_others_write)) to the other end of `link` as well, where it has a name of
    /// its own: both holders see the same pages, and so does this node in any view of them.
    /// Its bytes count once in `aperture_bytes_max`, and once in the share of each user that got
    /// them, until the last holder releases them, and for each link in `aperture_link_bytes_max`.
    ///
    /// [`revoke_aperture`](Self::revoke_aperture) revokes it from one holder; the memory goes with
    /// the last. A revoked holder that does not release it sees later writes as long as the memory
    /// stays: to hide new data from it, revoke all holders, and export new memory.
    ///
    /// Holders of one user can use up the shares of the others: until a revoked aperture is
    /// released by all its holders, it stays charged to every user that got it, even to users whose
    /// holders released it. After 256 such apertures no more is exported to any of these users. If
    /// users distrust one another, [`export`](Self::export) an aperture to each.
    pub fn export_also(&mut self, id: ApertureId, link: LinkId) -> Result<ApertureId, ExportError> {
        self.check_fork()?;
        self.link(link)?;
        let result = self.try_export_also(id, link);
        if let Err(e) = &result {
            self.apertures.refused.insert(link, format!("{id}, once more: {e}"));
        }
        result
    }

    fn try_export_also(&mut self, id: ApertureId, link: LinkId) -> Result<ApertureId, ExportError> {
        let owned = self.aperture_view(id)?.owned;
        if !owned.is_shared() {
            return Err(ExportError::OneHolder(id));
        }
        let bytes = owned.pages().bytes();
        let (to, uid) = self.check_export(link, bytes)?;
        let shared = owned.descriptor_for(uid, self.config.aperture_user_bytes_max);
        let file = shared.map_err(|exceeded| self.exceeded(bytes, exceeded))?;
        let (file, is_new) = file.map_err(|error| ExportError::Os { bytes, error })?;
        let exports = Exports::Own(owned.clone());
        let offered = self.offer(link, to, owned.access(), bytes, file, exports);
        if offered.is_err() && is_new {
            owned.unshare(uid);
        }
        offered
    }

    /// Reserves bytes for memory that many processes may hold, each over a link of its own, and
    /// read: a publisher's pool. It counts once. [`Pool::make`] fills it, which takes long, and
    /// needs no node.
    pub(crate) fn reserve_pool(&mut self, layout: Layout) -> Result<Reservation, ExportError> {
        self.check_fork()?;
        let bytes = layout.bytes().ok_or(ExportError::Unaligned(0))?;
        let reserved =
            self.apertures.ledger.reserve_for_many(bytes, self.config.aperture_bytes_max);
        reserved.map_err(|exceeded| self.exceeded(bytes, exceeded))
    }

    /// Exports a pool to the other end of `link`, read-only, as [`export`](Self::export) does with
    /// its own memory. It counts once for each user that holds it.
    pub(crate) fn export_pool(
        &mut self,
        link: LinkId,
        pool: &Pool,
    ) -> Result<ApertureId, ExportError> {
        self.check_fork()?;
        let bytes = pool.bytes();
        let (to, uid) = self.check_export(link, bytes)?;
        if matches!(to, ExportTarget::Host) {
            let why = "a publisher's pool is memory of one host";
            return Err(ExportError::OtherHost(why.into()));
        }
        let shared = pool.descriptor_for(uid, self.config.aperture_user_bytes_max);
        let file = shared.map_err(|exceeded| self.exceeded(bytes, exceeded))?;
        let (file, is_new) = file.map_err(|error| ExportError::Os { bytes, error })?;
        let offered = self.offer(link, to, ApertureAccess::ReadOnly, bytes, file, Exports::Pool);
        if offered.is_err() && is_new {
            pool.unshare(uid);
        }
        offered
    }

    /// The owner's view of an aperture that it has exported. It exists before the holder's first
    /// message about it can arrive.
    pub fn aperture_view(&mut self, id: ApertureId) -> Result<ApertureView, NoSuchAperture> {
        self.take_news();
        let exported = self.apertures.exported.get(&id).ok_or(NoSuchAperture::Gone(id))?;
        Ok(ApertureView { id, owned: exported.owned(id)?.clone() })
    }

    /// An aperture that this node holds. It exists before the owner's first message about it can
    /// arrive, if the owner waited for [`ApertureEvent::Ready`].
    pub fn aperture(&mut self, id: ApertureId) -> Result<Aperture, NoSuchAperture> {
        self.take_news();
        self.apertures.held.get(&id).cloned().ok_or(NoSuchAperture::Gone(id))
    }

    /// The apertures that this node holds.
    pub fn apertures_held(&self) -> impl Iterator<Item = ApertureId> + '_ {
        self.apertures.held.keys().copied()
    }

    /// The apertures that this node has exported.
    pub fn apertures_exported(&self) -> impl Iterator<Item = ApertureId> + '_ {
        self.apertures.exported.keys().copied()
    }

    /// Bytes that this node has exported, and how many of them are in revoked read-only apertures
    /// whose holders have not yet released them: those cannot be given back before.
    pub fn aperture_bytes(&self) -> (u64, u64) {
        if self.check_fork().is_err() {
            // A thread that the child does not have may hold its lock for ever.
            return (0, 0);
        }
        self.apertures.ledger.settle();
        (self.apertures.ledger.bytes(), self.apertures.ledger.orphan_bytes())
    }

    /// Revokes an aperture at once: later writes of the holder have no effect here, and views
    /// return [`AccessError::Revoked`]. The pages are given back when the holder has released them,
    /// too; until then they count against `aperture_bytes_max` and its user's share. If
    /// [others](Self::export_also) hold it, too, only this holder is told; views, and the pages,
    /// stay.
    pub fn revoke_aperture(&mut self, id: ApertureId) -> Result<(), NoSuchAperture> {
        self.check_fork().map_err(|Forked| NoSuchAperture::Gone(id))?;
        self.take_news();
        let exported = self.apertures.exported.remove(&id).ok_or(NoSuchAperture::Gone(id))?;
        // Memory with other holders stays for them, like a pool's.
        if let Exports::Own(owned) = exported.memory
            && self.apertures.names_of(&owned).is_empty()
        {
            owned.revoke(None);
        }
        self.tell_revoked(id);
        Ok(())
    }

    /// Revokes an aperture at once, and makes a message area of its current bytes: from then on
    /// they are stable, and slots may name them. They are copied once, into fresh pages: 0.3 ms for
    /// 1 MiB, and 0.9 to 1.3 ms a MiB for 8 and 64 MiB (medians of 7; two virtual cores, both
    /// busy). Views in other threads wait for that long. The aperture is revoked from all
    /// [holders](Self::export_also). On an error it is unchanged.
    pub fn reclaim_aperture(&mut self, id: ApertureId) -> Result<AreaId, MemoryError> {
        self.check_fork()?;
        let view = self.aperture_view(id)?;
        let bytes = usize::try_from(view.bytes()).unwrap_or(usize::MAX);
        // A new area is of this node alone; no slot can have named it yet.
        let area = self.message_area(bytes)?;
        let memory = self.area_mut(area)?;
        view.owned.revoke(Some(memory));
        for id in self.apertures.names_of(&view.owned) {
            self.apertures.exported.remove(&id);
            self.tell_revoked(id);
        }
        Ok(area)
    }

    fn tell_revoked(&self, id: ApertureId) {
        if let Ok(link) = self.link(id.link)
            && !link.revoke_from_host(id.number)
            && let Some(token) = link.token
        {
            self.control().revoke_aperture(token, id.number);
        }
    }

    /// Releases an aperture that this node holds, and tells its owner. An aperture that its owner
    /// has revoked is gone by itself, at once or when this node hears of it.
    pub fn release_aperture(&mut self, id: ApertureId) -> Result<(), NoSuchAperture> {
        self.check_fork().map_err(|Forked| NoSuchAperture::Gone(id))?;
        self.take_news();
        if self.let_go(id) { Ok(()) } else { Err(NoSuchAperture::Gone(id)) }
    }

    fn let_go(&mut self, id: ApertureId) -> bool {
        let Some(aperture) = self.apertures.held.remove(&id) else { return false };
        aperture.pages.let_go();
        if let Ok(link) = self.link(id.link)
            && !link.release_to_host(id.number)
            && let Some(token) = link.token
        {
            self.control().release_aperture(token, id.number);
        }
        true
    }

    fn take_news(&mut self) {
        if self.fork_guard.is_parent() && self.inbox.is_pending() {
            self.take_control_events();
        }
    }

    // ---- reports of the control plane

    pub(super) fn aperture_held(&mut self, id: ApertureId, pages: Pages) {
        self.apertures.held.insert(id, Aperture { id, pages: Arc::new(pages) });
    }

    /// Whether the application has to hear of it.
    pub(super) fn aperture_refused(&mut self, id: ApertureId, why: Reason) -> bool {
        let Some(exported) = self.apertures.exported.remove(&id) else { return false };
        let why = format!("{} bytes: {}", exported.bytes, why);
        self.apertures.refused.insert(id.link, why);
        true
    }

    pub(super) fn aperture_released(&mut self, id: ApertureId) -> bool {
        self.apertures.ledger.settle();
        self.apertures.exported.contains_key(&id)
    }

    pub(super) fn aperture_is_exported(&self, id: ApertureId) -> bool {
        self.apertures.exported.contains_key(&id)
    }

    /// The owner revoked it; this process releases it before it confirms.
    pub(super) fn aperture_revoked(&mut self, id: ApertureId) -> bool {
        self.let_go(id)
    }
}
