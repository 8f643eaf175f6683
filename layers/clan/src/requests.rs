//! Remote requests (CLAN 3.2): queues of <source, destination, length>, and the engine that serves them.
//!
//! ```text
//!   submit     checked, and into a queue; the engine is woken only if it had nothing to do
//!   a turn     the highest priority; of equal ones in turn, so many bytes of each; a group is not
//!              interrupted by its equals. Checked again, then moved packet by packet
//!   completion an event, or a word, and the result in the queue
//! ```
//! The engine runs in turns of the node: in calls, or in the thread of progress.
//!
//! Never: a request is served after its region or aperture was taken back; a queue holds more than its
//! length, counting results that nobody has taken.

use crate::Error;
use crate::board::{Figures, Partner, send_over};
use crate::clan::Clan;
use crate::ends::unpoisoned;
use crate::events::Target;
use crate::memory::{Aperture, Imported, Region, RegionCore};
use crate::wire::{Head, kind, status};
use hamlyn::LinkId;
use hamlyn::node::{Look, Node, NodeSendError};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Request queues of one program.
const QUEUES_MAX: usize = 256;
/// Requests of one group.
const GROUP_MAX: usize = 64;
/// Bytes of a group of several requests, which its equals cannot interrupt.
const GROUP_BYTES_MAX: u64 = 1 << 20;
/// Bytes that one turn of the node moves.
const BYTES_IN_A_TURN: u64 = 64 << 10;
const SCRATCH: usize = 8 << 10;

/// A request: so many bytes from one place to another.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// From a region of this program to one of the peer, whose wires trip.
    Put {
        /// The source.
        from: &'a Region,
        /// In bytes from its beginning.
        offset: u64,
        /// The destination.
        to: &'a Aperture,
        /// In bytes from its beginning.
        at: u64,
        /// Bytes, at least 1.
        length: u64,
    },
    /// From a region of the peer to one of this program.
    Get {
        /// The source.
        from: &'a Aperture,
        /// In bytes from its beginning.
        offset: u64,
        /// The destination.
        to: &'a Region,
        /// In bytes from its beginning.
        at: u64,
        /// Bytes, at least 1.
        length: u64,
    },
}

/// How the program hears that a group is complete, beside [`RequestQueue::take_done`].
#[derive(Clone, Debug)]
pub enum Completion {
    /// Not at all.
    None,
    /// An event is raised.
    Event(Target),
    /// This word becomes 1, or, if the group failed, 2.
    Word(Arc<AtomicU64>),
    /// The same, of a program in C.
    #[doc(hidden)]
    WordOfC(crate::face::Kept<u64>),
}

impl Completion {
    fn set_word(&self, value: u64) {
        match self {
            Self::Word(word) => word.store(value, Ordering::Release),
            Self::WordOfC(word) => word.word().store(value, Ordering::Release),
            Self::None | Self::Event(_) => {}
        }
    }
}

/// A completed group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its number, from [`RequestQueue::submit`].
    pub group: u64,
    /// Of its first request that failed; those behind it were not served. A put is complete when its bytes
    /// are on their way and their source can be used again; a get when they are here.
    pub result: Result<(), Error>,
}

struct Transfer {
    region: Arc<RegionCore>,
    aperture: Arc<Imported>,
    at_region: u64,
    at_aperture: u64,
    length: u64,
    is_get: bool,
}

impl Transfer {
    fn new(request: &Request<'_>) -> Result<Self, Error> {
        let (region, at_region, aperture, at_aperture, length, is_get) = match *request {
            Request::Put { from, offset, to, at, length } => (from, offset, to, at, length, false),
            Request::Get { from, offset, to, at, length } => (to, at, from, offset, length, true),
        };
        let (region, aperture) = (region.core.clone(), aperture.core.clone());
        let transfer = Self { region, aperture, at_region, at_aperture, length, is_get };
        if length == 0 {
            return Err(Error::Misuse("a request for no bytes".into()));
        }
        transfer.check()?;
        Ok(transfer)
    }

    fn check(&self) -> Result<(), Error> {
        self.aperture.check_access(self.is_get, self.at_aperture, self.length)?;
        let inside = self.region.range(self.at_region, self.length);
        inside.map(drop).ok_or_else(|| {
            let (length, at) = (self.length, self.at_region);
            Error::Misuse(format!("{length} bytes at {at} are not inside of the memory"))
        })
    }

    fn advance(&mut self, bytes: u64) {
        self.at_region += bytes;
        self.at_aperture += bytes;
        self.length -= bytes;
    }
}

struct Group {
    number: u64,
    transfers: VecDeque<Transfer>,
    /// Its equals cannot interrupt it.
    is_together: bool,
    completion: Completion,
}

/// Results, and groups on their way to one.
#[derive(Default)]
struct Results {
    done: VecDeque<Done>,
    outstanding: u32,
}

struct Queue {
    priority: u8,
    bytes_at_once: u64,
    groups: VecDeque<Group>,
    results: Arc<Mutex<Results>>,
    /// The get whose answer its first group waits for.
    waits_for: Option<u64>,
    /// When it was served last, counted in slices.
    served: u64,
}

/// A get whose answer is coming.
struct Asked {
    queue: usize,
    length: u64,
    came: u64,
}

/// Serves the queues.
#[derive(Default)]
pub(crate) struct Engine {
    queues: slab::Slab<Queue>,
    asked: HashMap<u64, Asked>,
    next_answer: u64,
    slices: u64,
    /// The queue whose group its equals cannot interrupt.
    together: Option<usize>,
    scratch: Vec<u8>,
}

/// One step of a queue.
enum Step {
    Moved(u64),
    /// Of the first request, which is complete.
    Finished(Result<(), Error>),
    Asked,
    Blocked(LinkId),
}

impl Engine {
    /// `None`: nothing can be done; otherwise what a waiting caller does next.
    pub fn turn(
        &mut self,
        node: &mut Node,
        partners: &HashMap<LinkId, Partner>,
        figures: &mut Figures,
    ) -> Option<Look<()>> {
        let (mut left, mut blocked) = (BYTES_IN_A_TURN, None);
        let mut passed = Vec::new();
        while let Some(key) = self.choose(&passed) {
            if left == 0 {
                return Some(Look::Again);
            }
            self.slices += 1;
            self.queues[key].served = self.slices;
            let is_together = self.queues[key].groups[0].is_together;
            let mut slice = match is_together {
                true => u64::MAX,
                false => self.queues[key].bytes_at_once,
            };
            self.together = is_together.then_some(key);
            while slice > 0 && left > 0 {
                match self.step(node, partners, key, slice.min(left)) {
                    Step::Moved(bytes) => {
                        figures.bytes_moved += bytes;
                        slice = slice.saturating_sub(bytes);
                        left = left.saturating_sub(bytes);
                    }
                    Step::Finished(result) => {
                        if self.finish(key, result, figures) {
                            break;
                        }
                    }
                    Step::Asked => break,
                    Step::Blocked(link) => {
                        node.wake_at_room(link);
                        blocked = Some(Look::Room(link));
                        passed.push(key);
                        break;
                    }
                }
            }
        }
        blocked
    }

    /// The queue to be served now.
    fn choose(&self, passed: &[usize]) -> Option<usize> {
        let can = |key: usize, queue: &Queue| {
            !queue.groups.is_empty() && queue.waits_for.is_none() && !passed.contains(&key)
        };
        let ready = self.queues.iter().filter(|(key, queue)| can(*key, queue));
        let order = |(key, queue): &(usize, &Queue)| {
            let goes_on = self.together == Some(*key);
            (core::cmp::Reverse(queue.priority), !goes_on, queue.served)
        };
        ready.min_by_key(order).map(|(key, _)| key)
    }

    /// Moves bytes of a queue's first request, at most so many.
    fn step(
        &mut self,
        node: &mut Node,
        partners: &HashMap<LinkId, Partner>,
        key: usize,
        most: u64,
    ) -> Step {
        let queue = &mut self.queues[key];
        let Some(transfer) = queue.groups.front_mut().and_then(|g| g.transfers.front_mut()) else {
            return Step::Finished(Ok(()));
        };
        if transfer.length == 0 {
            return Step::Finished(Ok(()));
        }
        if let Err(e) = transfer.check() {
            return Step::Finished(Err(e));
        }
        let (link, aperture) = (transfer.aperture.link, transfer.aperture.clone());
        let Some(to) = partners.get(&link).map(|partner| partner.to) else {
            return Step::Finished(Err(Error::Closed("the peer is gone".into())));
        };
        let failed = |e: NodeSendError| match e {
            NodeSendError::Full => Step::Blocked(link),
            other => Step::Finished(Err(Error::Closed(other.to_string()))),
        };
        let length = transfer.length.min(most);
        if transfer.is_get && aperture.mapped().is_none() {
            self.next_answer += 1;
            let head = Head {
                to: self.next_answer.into(),
                number: aperture.number.into(),
                offset: transfer.at_aperture.into(),
                length: length.into(),
                ..Head::of(kind::GET)
            };
            if let Err(e) = send_over(node, link, &to, &[head.as_bytes()]) {
                return failed(e);
            }
            queue.waits_for = Some(self.next_answer);
            self.asked.insert(self.next_answer, Asked { queue: key, length, came: 0 });
            return Step::Asked;
        }
        self.scratch.resize(SCRATCH, 0);
        let length = length.min(SCRATCH as u64);
        let bytes = &mut self.scratch[..length as usize];
        if let (true, Some(mapped)) = (transfer.is_get, aperture.mapped()) {
            let read = mapped.read(transfer.at_aperture, bytes).map_err(Error::from);
            let region = &transfer.region;
            if let Err(e) = read.and_then(|()| region.write(node, transfer.at_region, bytes)) {
                return Step::Finished(Err(e));
            }
            transfer.advance(length);
            return Step::Moved(length);
        }
        let at = transfer.at_aperture;
        let read = transfer.region.read(transfer.at_region, bytes).map_err(Error::from);
        let stored = |()| match aperture.mapped() {
            Some(mapped) => mapped.write(at, bytes).map_err(Error::from),
            None => Ok(()),
        };
        if let Err(e) = read.and_then(stored) {
            return Step::Finished(Err(e));
        }
        match aperture.put_some(node, Some(to), at, &self.scratch[..length as usize]) {
            Ok(bytes) => {
                transfer.advance(bytes as u64);
                Step::Moved(bytes as u64)
            }
            Err(e) => failed(e),
        }
    }

    /// A queue's first request is complete; `true`: and with it its group.
    fn finish(&mut self, key: usize, result: Result<(), Error>, figures: &mut Figures) -> bool {
        figures.requests_completed += 1;
        let queue = &mut self.queues[key];
        let Some(group) = queue.groups.front_mut() else { return true };
        group.transfers.pop_front();
        if result.is_ok() && !group.transfers.is_empty() {
            return false;
        }
        self.together = None;
        let Some(Group { number, completion, .. }) = queue.groups.pop_front() else { return true };
        let word = if result.is_ok() { 1 } else { 2 };
        unpoisoned(&queue.results).done.push_back(Done { group: number, result });
        completion.set_word(word);
        if let Completion::Event(target) = completion {
            target.raise_in_turn();
        }
        true
    }

    /// Bytes of an answer. `None`: nobody has asked for them; `Some(false)`: nobody waits any more.
    pub fn hear(
        &mut self,
        node: &mut Node,
        link: LinkId,
        (answer, said, offset): (u64, u32, u64),
        bytes: &[u8],
        figures: &mut Figures,
    ) -> Option<bool> {
        if answer == 0 || answer > self.next_answer {
            return None;
        }
        let Some(asked) = self.asked.get_mut(&answer) else { return Some(false) };
        let queue = &mut self.queues[asked.queue];
        let transfer = queue.groups.front_mut()?.transfers.front_mut()?;
        if transfer.aperture.link != link {
            return None;
        }
        let no = match said {
            status::FINE => {
                let length = bytes.len() as u64;
                if length == 0 || offset != asked.came || length > asked.length - asked.came {
                    return None;
                }
                let written = transfer.region.write(node, transfer.at_region, bytes);
                asked.came += length;
                transfer.advance(length);
                written.err()
            }
            status::REVOKED => Some(Error::Revoked),
            status::BUSY => Some(Error::Full("the peer serves as many gets as it may".into())),
            _ => return None,
        };
        let is_complete = asked.came == asked.length;
        if no.is_some() || is_complete {
            let key = asked.queue;
            queue.waits_for = None;
            self.asked.remove(&answer);
            if let Some(e) = no {
                self.finish(key, Err(e), figures);
            }
        }
        Some(true)
    }

    /// Requests whose aperture has ended wait no longer: the next turn completes them.
    pub fn look_at_ends(&mut self) {
        let queues = &mut self.queues;
        self.asked.retain(|_, asked| {
            let queue = &mut queues[asked.queue];
            let transfer = queue.groups.front().and_then(|group| group.transfers.front());
            let goes_on = transfer.is_some_and(|transfer| transfer.aperture.check().is_ok());
            if !goes_on {
                queue.waits_for = None;
            }
            goes_on
        });
    }
}

/// Requests that the engine serves in their order; from [`Clan::request_queue`]. Dropping it forgets those
/// that are not complete.
pub struct RequestQueue {
    clan: Clan,
    key: usize,
    length: u32,
    results: Arc<Mutex<Results>>,
    submitted: AtomicU64,
}

impl core::fmt::Debug for RequestQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RequestQueue").field("length", &self.length).finish_non_exhaustive()
    }
}

impl RequestQueue {
    pub(crate) fn new(
        clan: &Clan,
        length: u32,
        priority: u8,
        bytes_at_once: u32,
    ) -> Result<Self, Error> {
        if !(1..=4096).contains(&length) || !(64..=1 << 20).contains(&bytes_at_once) {
            return Err(Error::Misuse(format!(
                "a request queue for {length} groups, {bytes_at_once} bytes at once: 1 to 4096, and 64 \
                 to 1048576 are allowed"
            )));
        }
        let results = Arc::new(Mutex::new(Results::default()));
        let queue = Queue {
            priority,
            bytes_at_once: bytes_at_once.into(),
            groups: VecDeque::new(),
            results: results.clone(),
            waits_for: None,
            served: 0,
        };
        let key = clan.with(|_, board| {
            let queues = &mut board.engine.queues;
            (queues.len() < QUEUES_MAX).then(|| queues.insert(queue))
        });
        let key =
            key.ok_or_else(|| Error::Full(format!("there are {QUEUES_MAX} request queues")))?;
        let (clan, submitted) = (clan.clone(), AtomicU64::new(0));
        Ok(Self { clan, key, length, results, submitted })
    }

    /// Submits requests as one group, which completes as one: its number. Several of them, at most 64 and
    /// 1 MiB together, are served without their equals in between. All are checked before the first is
    /// queued. [`Error::Full`]: `length` groups are in the queue, or complete and not taken.
    pub fn submit(&self, requests: &[Request<'_>], completion: Completion) -> Result<u64, Error> {
        let transfers: Result<VecDeque<_>, _> = requests.iter().map(Transfer::new).collect();
        let transfers = transfers?;
        let bytes: u128 = transfers.iter().map(|transfer| u128::from(transfer.length)).sum();
        let is_together = transfers.len() > 1;
        if !(1..=GROUP_MAX).contains(&transfers.len())
            || (is_together && bytes > GROUP_BYTES_MAX.into())
        {
            return Err(Error::Misuse(format!(
                "a group of {} requests for {bytes} bytes: 1 to {GROUP_MAX}, and, of several, at most \
                 {GROUP_BYTES_MAX} bytes are allowed",
                transfers.len()
            )));
        }
        completion.set_word(0);
        self.clan.with(|node, board| {
            {
                let mut results = unpoisoned(&self.results);
                if results.outstanding >= self.length {
                    let length = self.length;
                    return Err(Error::Full(format!("the request queue has its {length} groups")));
                }
                results.outstanding += 1;
            }
            let number = self.submitted.fetch_add(1, Ordering::Relaxed) + 1;
            let engine_had_nothing =
                board.engine.queues.iter().all(|(_, queue)| queue.groups.is_empty());
            let groups = &mut board.engine.queues[self.key].groups;
            groups.push_back(Group { number, transfers, is_together, completion });
            if engine_had_nothing {
                board.start_engine(node);
            }
            Ok(number)
        })
    }

    /// The result of a group that is complete, each once; takes no turn. `None`: none now.
    pub fn take_done(&self) -> Option<Done> {
        let mut results = unpoisoned(&self.results);
        let done = results.done.pop_front()?;
        results.outstanding -= 1;
        Some(done)
    }

    /// [`take_done`](Self::take_done), which waits for one.
    pub fn wait(&self, limit: Option<Duration>) -> Result<Done, Error> {
        self.clan.wait_for(limit, |_, _| self.take_done())
    }
}

impl Drop for RequestQueue {
    fn drop(&mut self) {
        // Dropped without the node: completions have call-backs of the user's.
        let _queue = self.clan.with(|_, board| {
            let engine = &mut board.engine;
            engine.asked.retain(|_, asked| asked.queue != self.key);
            engine.together = engine.together.filter(|key| *key != self.key);
            engine.queues.remove(self.key)
        });
    }
}
