//! Memory that the two ends of a link over a fabric open to one another: the apertures of other
//! hosts.
//!
//! ```text
//!   this end's memory                          the other end's memory
//!   Open --HELD--> Live --RELEASED--> (gone)        OFFER --opened--> Held --release--> Leaving
//!     |              |                                |                 | REVOKED         | delivered
//!     +-- revoke ----+--> Revoked                     +-- no            v                 v
//!     |  REFUSED            | RELEASED or REFUSED     v              (gone)            Released
//!     v                     v                       Released --REVOKED--> (gone) <------- +
//!   (gone)                (gone)
//! ```
//! Both ends send one last word about each aperture: the owner REVOKED, the holder RELEASED or
//! REFUSED; words that crossed on the way are valid. No protection of memory depends on a word: the
//! owner closes the end point of revoked memory at once, and from then on the other end cannot
//! access it.
//!
//! Packets leave this end only once all earlier writes have arrived: code that puts packets asks
//! for a [`gate`](Deposits::gate) then. A failed write keeps the gate shut. Either the owner
//! revoked the memory, and REVOKED follows; or the link ends, within the time limit.
//!
//! Never: this end opens more of the other end's memory than the settings allow, for this link or
//! for all; a number is used twice.

use super::super::News;
use super::words::{FabricWord, OpenedMemory};
use crate::config::Config;
use crate::os::aperture::{AccessError, FarPages, Pages};
use crate::os::fabric::memory::DescribedMemory;
use crate::os::fabric::{Choice, FarMemory, LentPages, ReachedMemory};
use crate::os::memory::ForkGuard;
use crate::os::poller::Poller;
use crate::os::sys::descriptor_limit;
use crate::wire::{ApertureAccess, Reason};
use std::collections::{BTreeMap, VecDeque};
use std::format;
use std::os::fd::OwnedFd;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// Most apertures of one owner on a link; the settings may allow fewer.
const ROWS_MAX: usize = 256;
/// News that wait for the node; beyond this number no word of the other end's is taken.
const NEWS_MAX: usize = 16;
/// Most offers in a row that are refused; after these the other end breaks the rules.
const REFUSED_MAX: u32 = 64;
/// Descriptors of one end point for memory, of which a holder has one for each aperture; and the
/// share of this process's limit on descriptors that they may use.
const DESCRIPTORS: u64 = 12;
const DESCRIPTORS_SHARE: u64 = 8;
/// The tag in a path's poller for a descriptor of memory.
const OF_MEMORY: u64 = 3;

/// The memory of other hosts that this process has open, over all links.
#[derive(Debug)]
pub struct Holdings {
    per_link: (u32, u64),
    all: (u32, u64),
    held: Mutex<(u32, u64)>,
    /// `None`: there was no page for it; then a forked child that drops an aperture may wait for a
    /// lock of its parent's.
    guard: Option<ForkGuard>,
}

impl Holdings {
    /// Empty, with the settings' limits: all other hosts count as one user.
    pub fn new(config: &Config) -> Self {
        let descriptors = descriptor_limit().unwrap_or(0) / DESCRIPTORS_SHARE / DESCRIPTORS;
        let fitting = descriptors.clamp(1, u32::MAX.into()) as u32;
        Self {
            per_link: (config.apertures_per_link_max, config.aperture_map_max),
            all: (config.apertures_per_user_max.min(fitting), config.bytes_per_user_max),
            held: Mutex::default(),
            guard: ForkGuard::new().ok(),
        }
    }

    fn take(self: &Arc<Self>, bytes: u64) -> Result<LimitShare, Reason> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.0 >= self.all.0 {
            return Err(Reason::Apertures);
        }
        if bytes > self.all.1.saturating_sub(held.1) {
            return Err(Reason::Bytes);
        }
        *held = (held.0 + 1, held.1 + bytes);
        Ok(LimitShare { of: self.clone(), bytes })
    }
}

/// The share of one aperture in the limits, counted until it is dropped.
#[derive(Debug)]
struct LimitShare {
    of: Arc<Holdings>,
    bytes: u64,
}

impl Drop for LimitShare {
    fn drop(&mut self) {
        // Another thread of the parent's may have had the lock at the fork.
        if self.of.guard.as_ref().is_some_and(|guard| !guard.is_parent()) {
            return;
        }
        let mut held = self.of.held.lock().unwrap_or_else(PoisonError::into_inner);
        *held = (held.0 - 1, held.1 - self.bytes);
    }
}

/// An aperture of the other end's, and its share in the limits.
#[derive(Debug)]
struct Holding {
    reached: ReachedMemory,
    _share: LimitShare,
}

impl FarPages for Holding {
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        self.reached.write(offset, from)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        self.reached.read(offset, to)
    }
}

/// An aperture that this end owns.
#[derive(Debug)]
enum OwnAperture {
    /// Offered to the holder.
    Open(LentPages),
    /// The holder has it.
    Live(LentPages),
    /// Closed; the holder has not yet confirmed that.
    Revoked,
}

/// An aperture that the other end owns.
#[derive(Debug)]
enum Theirs {
    /// `gate`: the writes that must have arrived before waiting packets leave.
    Held { holding: Arc<Holding>, may_write: bool, gate: u64 },
    /// The node has released it; some of its writes are still on their way.
    Leaving { holding: Arc<Holding>, gate: u64 },
    /// The owner has been told of the release.
    Released,
}

impl Theirs {
    fn holding(&self) -> Option<(&Holding, u64)> {
        match self {
            Self::Held { holding, gate, .. } | Self::Leaving { holding, gate } => {
                Some((holding, *gate))
            }
            Self::Released => None,
        }
    }
}

/// The apertures of one link.
#[derive(Debug)]
pub struct Deposits {
    is_client: bool,
    holdings: Arc<Holdings>,
    timeout_ns: u64,
    made: u32,
    last_theirs: u32,
    own: BTreeMap<u32, OwnAperture>,
    theirs: BTreeMap<u32, Theirs>,
    says: VecDeque<FabricWord>,
    news: VecDeque<News>,
    /// Offers refused since the last accepted one.
    refused: u32,
    /// Rows with an end point.
    active: usize,
    /// The reason why memory of this end's cannot be written any more.
    broken: Option<String>,
}

impl Deposits {
    /// Without apertures.
    pub fn new(is_client: bool, holdings: Arc<Holdings>, timeout_ns: u64) -> Self {
        Self {
            is_client,
            holdings,
            timeout_ns,
            made: 0,
            last_theirs: 0,
            own: BTreeMap::new(),
            theirs: BTreeMap::new(),
            says: VecDeque::new(),
            news: VecDeque::new(),
            refused: 0,
            active: 0,
            broken: None,
        }
    }

    /// Whether it needs calls of [`progress`](Self::progress), or has words to send.
    pub fn is_active(&self) -> bool {
        self.active > 0 || !self.says.is_empty()
    }

    fn count(&mut self) {
        let own = self.own.values().filter(|row| !matches!(row, OwnAperture::Revoked)).count();
        self.active = own + self.theirs.values().filter_map(Theirs::holding).count();
    }

    /// Opens pages of this process to the other end; returns their number.
    pub fn lend(
        &mut self,
        choice: &Choice,
        poller: &Poller,
        file: OwnedFd,
        bytes: u64,
        access: ApertureAccess,
    ) -> Result<u32, String> {
        let count = self.own.len();
        if count >= (self.holdings.per_link.0 as usize).min(ROWS_MAX) {
            return Err(format!(
                "{count} apertures are exported over this link, which is apertures_per_link_max \
                 (HAMLYN_APERTURES_PER_LINK_MAX)"
            ));
        }
        let number = match self.made {
            0 => 1 + u32::from(!self.is_client),
            made => made.checked_add(2).ok_or("the link has had all the apertures it can have")?,
        };
        let lent =
            LentPages::open(choice, file, bytes as usize, access).map_err(|e| e.to_string())?;
        if let Some(descriptor) = lent.descriptor() {
            let watched = poller.add(descriptor, OF_MEMORY);
            watched.map_err(|e| format!("watching its end point: {e}"))?;
        }
        self.made = number;
        let (FarMemory { base, key }, address) = (lent.memory(), lent.address().to_vec());
        self.says.push_back(FabricWord::Offer(OpenedMemory {
            number,
            bytes,
            base,
            key,
            access,
            address,
        }));
        self.own.insert(number, OwnAperture::Open(lent));
        self.count();
        Ok(number)
    }

    /// Revokes this end's memory: from now on the other end does not access it.
    pub fn revoke(&mut self, number: u32) {
        if let Some(row) = self.own.get_mut(&number)
            && !matches!(row, OwnAperture::Revoked)
        {
            *row = OwnAperture::Revoked;
            self.says.push_back(FabricWord::Revoked(number));
            self.count();
        }
    }

    /// The node has left the link: closes its memory to the other end.
    pub fn close_own(&mut self) {
        let numbers: Vec<u32> = self.own.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.revoke(number));
    }

    /// Releases memory of the other end's: its owner is told once all writes have arrived.
    pub fn release(&mut self, number: u32) {
        if let Some(row) = self.theirs.get_mut(&number)
            && let Theirs::Held { holding, gate, .. } = row
        {
            *row = Theirs::Leaving { holding: holding.clone(), gate: *gate };
            self.progress();
        }
    }

    /// Handles a word of the other end's. `place_at` puts the host into an address. An error: no
    /// host sends this.
    pub fn handle(
        &mut self,
        word: FabricWord,
        choice: impl FnOnce() -> Option<Choice>,
        poller: &Poller,
        place_at: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<(), &'static str> {
        match word {
            FabricWord::Count(_) | FabricWord::Asks(_) | FabricWord::Came(_) => {
                return Err("what is not about memory");
            }
            FabricWord::Offer(opened) => {
                let is_theirs = opened.number % 2 == u32::from(!self.is_client);
                if !is_theirs || opened.number <= self.last_theirs || self.theirs.len() >= ROWS_MAX
                {
                    return Err("memory with a number that it cannot have");
                }
                self.last_theirs = opened.number;
                let number = opened.number;
                match self.hold(opened, choice, poller, place_at) {
                    Ok(pages) => {
                        self.refused = 0;
                        self.says.push_back(FabricWord::Held(number));
                        self.news.push_back(News::Held(number, pages));
                    }
                    Err(_) if self.refused >= REFUSED_MAX => {
                        return Err("it goes on offering what is refused");
                    }
                    Err(why) => {
                        self.refused += 1;
                        self.says.push_back(FabricWord::Refused(number, why));
                        self.theirs.insert(number, Theirs::Released);
                    }
                }
            }
            FabricWord::Held(number) => match self.own.get_mut(&number) {
                Some(row @ OwnAperture::Open(_)) => {
                    if let OwnAperture::Open(lent) = core::mem::replace(row, OwnAperture::Revoked) {
                        *row = OwnAperture::Live(lent);
                    }
                    self.news.push_back(News::Ready(number));
                }
                // It crossed with REVOKED.
                Some(OwnAperture::Revoked) => {}
                _ => return Err("it holds what was not offered"),
            },
            FabricWord::Refused(number, why) => match self.own.remove(&number) {
                Some(OwnAperture::Open(_)) => {
                    self.says.push_back(FabricWord::Revoked(number));
                    self.news.push_back(News::Refused(number, why));
                }
                Some(OwnAperture::Revoked) => self.news.push_back(News::Released(number)),
                _ => return Err("it refuses what was not offered"),
            },
            FabricWord::Released(number) => match self.own.remove(&number) {
                Some(OwnAperture::Live(_)) => {
                    self.says.push_back(FabricWord::Revoked(number));
                    self.news.push_back(News::Released(number));
                }
                Some(OwnAperture::Revoked) => self.news.push_back(News::Released(number)),
                _ => return Err("it lets go of what it does not hold"),
            },
            FabricWord::Revoked(number) => match self.theirs.remove(&number) {
                Some(Theirs::Held { holding, .. }) => {
                    holding.reached.close();
                    self.says.push_back(FabricWord::Released(number));
                    self.news.push_back(News::Revoked(number));
                }
                Some(Theirs::Leaving { holding, .. }) => {
                    holding.reached.close();
                    self.says.push_back(FabricWord::Released(number));
                }
                Some(Theirs::Released) => {}
                None => return Err("it takes back what it has not offered"),
            },
        }
        self.count();
        Ok(())
    }

    fn hold(
        &mut self,
        opened: OpenedMemory,
        choice: impl FnOnce() -> Option<Choice>,
        poller: &Poller,
        place_at: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Pages, Reason> {
        let OpenedMemory { number, bytes, base, key, access, mut address } = opened;
        let holdings = self.theirs.values().filter_map(Theirs::holding);
        let (count, held) =
            holdings.fold((0, 0), |(n, sum), (of, _)| (n + 1, sum + of.reached.bytes()));
        let (count_max, bytes_max) = self.holdings.per_link;
        if count >= count_max || bytes > bytes_max.saturating_sub(held) {
            return Err(Reason::Apertures);
        }
        let share = self.holdings.take(bytes)?;
        let choice = choice().ok_or(Reason::Unavailable)?;
        if choice.has_socket_addresses() && !place_at(&mut address) {
            return Err(Reason::Malformed);
        }
        let memory = FarMemory { base, key };
        let place = DescribedMemory { address: &address, memory, bytes, access };
        let reached = ReachedMemory::open(&choice, &place, self.timeout_ns);
        let reached = reached.map_err(|_| Reason::Unavailable)?;
        let watched = reached.descriptor().is_some_and(|fd| poller.add(fd, OF_MEMORY).is_ok());
        if !watched {
            return Err(Reason::Unavailable);
        }
        let holding = Arc::new(Holding { reached, _share: share });
        let pages = Pages::of_other_host(holding.clone(), bytes, access)
            .map_err(|_| Reason::Unavailable)?;
        let may_write = access == ApertureAccess::ReadWrite;
        self.theirs.insert(number, Theirs::Held { holding, may_write, gate: 0 });
        Ok(pages)
    }

    /// Whether it takes another word of the other end's.
    pub fn takes_words(&self) -> bool {
        self.news.len() < NEWS_MAX
    }

    /// Whether there is news for the node.
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// The next word to send.
    pub fn next_word(&mut self) -> Option<FabricWord> {
        self.says.pop_front()
    }

    /// The next news for the node.
    pub fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Makes progress with writes, both ways.
    pub fn progress(&mut self) {
        let mut any = false;
        for row in self.own.values_mut() {
            if let OwnAperture::Open(lent) | OwnAperture::Live(lent) = row
                && let Err(error) = lent.progress()
            {
                self.broken.get_or_insert_with(|| error.to_string());
            }
        }
        for (number, row) in &mut self.theirs {
            let Some((holding, _)) = row.holding() else { continue };
            holding.reached.progress();
            if matches!(row, Theirs::Leaving { .. })
                && let Some((holding, _)) = row.holding()
                && holding.reached.is_quiet()
            {
                holding.reached.close();
                self.says.push_back(FabricWord::Released(*number));
                *row = Theirs::Released;
                any = true;
            }
        }
        if any {
            self.count();
        }
    }

    /// Whether the node may write memory of the other end's.
    pub fn writes(&self) -> bool {
        self.active > 0
            && self.theirs.values().any(|row| match row {
                Theirs::Held { may_write, .. } => *may_write,
                Theirs::Leaving { .. } => true,
                Theirs::Released => false,
            })
    }

    /// Sets the gate for the next packets: they leave once all writes so far have arrived. Returns
    /// whether these have already.
    pub fn gate(&mut self) -> bool {
        for row in self.theirs.values_mut() {
            if let Theirs::Held { holding, gate, .. } | Theirs::Leaving { holding, gate } = row {
                *gate = holding.reached.mark();
            }
        }
        self.is_open()
    }

    /// Whether all writes before the last gate have arrived.
    pub fn is_open(&self) -> bool {
        let mut holdings = self.theirs.values().filter_map(Theirs::holding);
        holdings.all(|(holding, gate)| holding.reached.has_delivered(gate))
    }

    /// Whether no write of this end is on its way.
    pub fn is_quiet(&self) -> bool {
        self.active == 0
            || self.theirs.values().filter_map(Theirs::holding).all(|row| row.0.reached.is_quiet())
    }

    /// While writes of this end are on their way: a number that changes when some arrive.
    pub fn arrived(&self) -> Option<u64> {
        if self.active == 0 {
            return None;
        }
        let holdings = self.theirs.values().filter_map(Theirs::holding);
        holdings.filter_map(|(holding, _)| holding.reached.arrived()).reduce(u64::wrapping_add)
    }

    /// Whether the descriptors signal everything that comes from now on.
    pub fn may_sleep(&mut self) -> bool {
        if self.active == 0 {
            return true;
        }
        let mut may_sleep = true;
        for row in self.own.values_mut() {
            if let OwnAperture::Open(lent) | OwnAperture::Live(lent) = row {
                may_sleep &= lent.may_sleep();
            }
        }
        for (holding, _) in self.theirs.values().filter_map(Theirs::holding) {
            may_sleep &= holding.reached.may_sleep();
        }
        may_sleep
    }

    /// The reason to end the link: a write has failed, and the owner has not revoked the memory
    /// within the time limit.
    pub fn trouble(&self, now_ns: u64) -> Option<String> {
        if self.active == 0 {
            return None;
        }
        if let Some(why) = &self.broken {
            return Some(format!("nothing arrives in memory that is open to it: {why}"));
        }
        let mut holdings = self.theirs.values().filter_map(Theirs::holding);
        holdings.find_map(|(holding, _)| {
            let (why, since_ns) = holding.reached.failed()?;
            let is_late = now_ns.saturating_sub(since_ns) > self.timeout_ns;
            is_late.then(|| format!("what was written to its memory did not arrive: {why}"))
        })
    }

    /// A description in words, with the number of open apertures.
    pub fn explain(&self) -> String {
        let own = self.own.values().filter(|row| !matches!(row, OwnAperture::Revoked)).count();
        let theirs = self.theirs.values().filter_map(Theirs::holding).count();
        match (own, theirs) {
            (0, 0) => String::new(),
            _ => format!(", memory: {own} open to it, {theirs} of its held"),
        }
    }
}
