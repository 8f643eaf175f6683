//! The asynchronous event queue (CLAN 3.4): one cost, however many events are registered.
//!
//! ```text
//!   raise   set the event's flag; if it was clear: its number into the ring, call back if someone sleeps
//!   take    the number out of the ring, clear the flag, and only then look at what the event is about
//! ```
//! A flag for each event (the paper's bit), so each is queued once at most, and a ring of their number is
//! never full. A place of the ring also says how often the ring has been gone round, so that a slow
//! taker takes no old entry again.
//!
//! Never: an event that was raised after its flag was cleared is lost; `raise` waits or allocates.

use crate::Error;
// The models are in `tests/loom.rs` of the library.
#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

/// Most events of one queue.
pub const EVENTS_MAX: u32 = 1 << 24;

/// A queue of events, for one or several takers and any number of raising threads. Clones are the
/// same queue. From [`Clan::event_queue`](crate::Clan::event_queue) it wakes whoever waits in
/// [`Clan::wait`](crate::Clan::wait).
///
/// ```
/// use hamlyn_clan::EventQueue;
///
/// let queue = EventQueue::new(100, || println!("somebody sleeps"))?;
/// let bell = queue.register(7)?;
/// queue.raise(bell);
/// queue.raise(bell); // It is queued already.
/// assert_eq!(queue.take().map(|event| event.user), Some(7));
/// assert!(queue.take().is_none());
/// queue.unregister(bell);
/// assert!(!queue.raise(bell));
/// # Ok::<(), hamlyn_clan::Error>(())
/// ```
#[derive(Clone)]
pub struct EventQueue(Arc<Shared>);

struct Shared {
    /// The low half of the place counted from the beginning, and 1; and the event's number.
    ring: Box<[AtomicU64]>,
    events: Box<[Event_]>,
    tail: AtomicU64,
    /// The place of the next number, which a taker moves on to make it its own.
    head: AtomicU64,
    free: Mutex<Free>,
    /// Sleepers, and event loops once they have slept.
    sleepers: AtomicU32,
    call_back: Box<CallBack>,
}

/// Whether it is in a turn of the node, after which sleepers look in any case.
type CallBack = dyn Fn(bool) + Send + Sync;

/// Odd generations are registered.
#[derive(Default)]
struct Event_ {
    generation: AtomicU32,
    is_queued: AtomicBool,
    /// Unregistered while it was queued: free when it has been taken.
    ends: AtomicBool,
    user: AtomicU64,
}

struct Free {
    numbers: Vec<u32>,
    next: u32,
}

/// A registered event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId {
    number: u32,
    generation: u32,
}

impl EventId {
    /// For C, never 0.
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.number)
    }

    /// `None`: no event was ever called so.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let id = Self { number: word as u32, generation: (word >> 32) as u32 };
        (id.generation % 2 == 1).then_some(id)
    }
}

/// An event that was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name.
    pub id: EventId,
    /// The word that it was registered with.
    pub user: u64,
}

impl core::fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EventQueue").field("events_max", &self.0.events.len()).finish()
    }
}

fn filled<T: Default>(count: usize) -> Box<[T]> {
    (0..count).map(|_| T::default()).collect()
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl EventQueue {
    /// A queue for up to `events_max` events, 1 to 2^24; some 30 bytes each. `call_back` is called by a
    /// thread that raises while somebody [sleeps](Self::sleep): the wait queue's call-back of CLAN, by
    /// which other services hear of events. That thread may be one that has the node, so the call-back
    /// must be short and call nothing of this library.
    pub fn new(
        events_max: u32,
        call_back: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::with(events_max, move |_| call_back())
    }

    pub(crate) fn with(
        events_max: u32,
        call_back: impl Fn(bool) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        if !(1..=EVENTS_MAX).contains(&events_max) {
            return Err(Error::Misuse(format!(
                "an event queue for {events_max} events: 1 to {EVENTS_MAX} are allowed"
            )));
        }
        let events = events_max as usize;
        Ok(Self(Arc::new(Shared {
            ring: filled(events.next_power_of_two()),
            events: filled(events),
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            free: Mutex::new(Free { numbers: Vec::new(), next: 0 }),
            sleepers: AtomicU32::new(0),
            call_back: Box::new(call_back),
        })))
    }

    /// Registers an event; `user` comes with it whenever it is taken.
    /// [`Error::Full`]: there are as many as the queue was made for.
    pub fn register(&self, user: u64) -> Result<EventId, Error> {
        let shared = &*self.0;
        let mut free = unpoisoned(&shared.free);
        let number = match free.numbers.pop() {
            Some(number) => number,
            None if (free.next as usize) < shared.events.len() => {
                free.next += 1;
                free.next - 1
            }
            None => {
                return Err(Error::Full(format!(
                    "the event queue has its {} events",
                    shared.events.len()
                )));
            }
        };
        let event = &shared.events[number as usize];
        event.user.store(user, Ordering::Relaxed);
        let generation = event.generation.load(Ordering::Relaxed).wrapping_add(1);
        event.generation.store(generation, Ordering::Release);
        Ok(EventId { number, generation })
    }

    /// Takes an event's registration back: it is not taken any more, also if it is queued. `false`: it was
    /// not registered. A thread that raises it at this moment may raise the next event of its place, once.
    pub fn unregister(&self, id: EventId) -> bool {
        let shared = &*self.0;
        let mut free = unpoisoned(&shared.free);
        let Some(event) = shared.registered(id) else { return false };
        event.generation.store(id.generation.wrapping_add(1), Ordering::SeqCst);
        then();
        if event.is_queued.load(Ordering::SeqCst) {
            event.ends.store(true, Ordering::Release);
        } else {
            free.numbers.push(id.number);
        }
        true
    }

    /// Raises an event, from any thread. `false`: it is not registered. Everything that the thread has
    /// written before is seen by whoever takes the event.
    #[inline]
    pub fn raise(&self, id: EventId) -> bool {
        self.queue(id, false)
    }

    /// [`raise`](Self::raise) in a turn of the node.
    #[inline]
    pub(crate) fn raise_in_turn(&self, id: EventId) -> bool {
        self.queue(id, true)
    }

    #[inline]
    fn queue(&self, id: EventId, is_in_turn: bool) -> bool {
        let shared = &*self.0;
        let Some(event) = shared.registered(id) else { return false };
        // An exchange also where it is set: earlier writes are seen by the thread that clears it,
        // and the thread that queued it calls back.
        if event.is_queued.swap(true, Ordering::SeqCst) {
            return true;
        }
        let at = shared.tail.fetch_add(1, Ordering::AcqRel);
        // An exchange: `sleepers` is read after it.
        shared.place(at).swap(tag(at) | u64::from(id.number), Ordering::SeqCst);
        then();
        if shared.sleepers.load(Ordering::SeqCst) != 0 {
            (shared.call_back)(is_in_turn);
        }
        true
    }

    /// The next event; now look at what it is about, all of it: it is not raised again for what was there
    /// when it was taken. An event may turn out to be about nothing.
    #[inline]
    pub fn take(&self) -> Option<Event> {
        let shared = &*self.0;
        let mut head = shared.head.load(Ordering::Relaxed);
        loop {
            // Sequentially consistent, as `sleepers` is raised before it.
            let entry = shared.place(head).load(Ordering::SeqCst);
            if entry & TAG != tag(head) {
                return None;
            }
            let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
            if let Err(now) = shared.head.compare_exchange(head, head + 1, order, failed) {
                head = now;
                continue;
            }
            head += 1;
            let number = entry as u32;
            let event = &shared.events[number as usize];
            event.is_queued.swap(false, Ordering::SeqCst);
            then();
            // And read after the flag.
            let generation = event.generation.load(Ordering::SeqCst);
            if generation % 2 == 1 {
                let user = event.user.load(Ordering::Relaxed);
                return Some(Event { id: EventId { number, generation }, user });
            }
            shared.free_ended(number);
        }
    }

    /// [`sleep`](Self::sleep), for ever.
    pub fn sleep_often(&self) {
        self.0.sleepers.fetch_or(ALWAYS, Ordering::SeqCst);
    }

    /// Whether an event is queued.
    pub fn has_any(&self) -> bool {
        let head = self.0.head.load(Ordering::SeqCst);
        self.0.place(head).load(Ordering::SeqCst) & TAG == tag(head)
    }

    /// While the guard lives, each [`raise`](Self::raise) calls back. Take once more after this call and
    /// before sleeping: an event that was raised before it called nobody.
    pub fn sleep(&self) -> Sleeping<'_> {
        self.0.sleepers.fetch_add(1, Ordering::SeqCst);
        then();
        Sleeping(self)
    }
}

/// An event loop sleeps now and then: each raise calls back from now on.
const ALWAYS: u32 = 1 << 31;

/// Somebody sleeps until an event of this queue is raised.
#[derive(Debug)]
pub struct Sleeping<'a>(&'a EventQueue);

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.0.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Of an entry of the ring: its place.
const TAG: u64 = !0 << 32;

#[inline]
fn tag(at: u64) -> u64 {
    (at + 1) << 32
}

impl Shared {
    /// An event was unregistered while it was queued, and has been taken.
    #[cold]
    fn free_ended(&self, number: u32) {
        let mut free = unpoisoned(&self.free);
        if self.events[number as usize].ends.swap(false, Ordering::AcqRel) {
            free.numbers.push(number);
        }
    }

    #[inline]
    fn place(&self, at: u64) -> &AtomicU64 {
        &self.ring[at as usize & (self.ring.len() - 1)]
    }

    #[inline]
    fn registered(&self, id: EventId) -> Option<&Event_> {
        let event = self.events.get(id.number as usize)?;
        (event.generation.load(Ordering::Acquire) == id.generation).then_some(event)
    }
}

/// Between two accesses that are sequentially consistent. Loom knows that of fences alone.
#[inline]
fn then() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// An event of a queue, for sources of the layer's own.
#[derive(Clone, Debug)]
pub struct Target {
    /// The queue.
    pub queue: EventQueue,
    /// One of its events.
    pub event: EventId,
}

impl Target {
    /// Not in a turn: it wakes those who wait.
    pub(crate) fn raise(&self) {
        self.queue.raise(self.event);
    }

    pub(crate) fn raise_in_turn(&self) {
        self.queue.raise_in_turn(self.event);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn several_takers_lose_no_raise_and_share_no_place() {
        // As many places as events, so that each is filled again as soon as it is empty.
        let queue = EventQueue::new(8, || {}).unwrap();
        let ids: Vec<_> = (0..8).map(|user| queue.register(user).unwrap()).collect();
        let raised: Vec<_> = ids.iter().map(|_| AtomicU64::new(0)).collect();
        let seen: Vec<_> = ids.iter().map(|_| AtomicU64::new(0)).collect();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let raisers: Vec<_> = (0..3)
                .map(|first| {
                    let (queue, ids, raised) = (&queue, &ids, &raised);
                    scope.spawn(move || {
                        for round in 0..30_000 {
                            let number = (first + round * 5) % 8;
                            raised[number].fetch_add(1, Ordering::Relaxed);
                            queue.raise(ids[number]);
                        }
                    })
                })
                .collect();
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let was_over = is_over.load(Ordering::Acquire);
                        match queue.take() {
                            Some(event) => {
                                let number = event.user as usize;
                                let now = raised[number].load(Ordering::Relaxed);
                                seen[number].fetch_max(now, Ordering::Relaxed);
                            }
                            None if was_over => return,
                            None => std::thread::yield_now(),
                        }
                    }
                });
            }
            raisers.into_iter().for_each(|raiser| raiser.join().unwrap());
            is_over.store(true, Ordering::Release);
        });
        let counts = |of: &[AtomicU64]| -> Vec<_> {
            of.iter().map(|count| count.load(Ordering::Relaxed)).collect()
        };
        assert_eq!(counts(&seen), counts(&raised));
        assert!(!queue.has_any());
    }
}
