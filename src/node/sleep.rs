//! Sleeping: the words or the descriptor that a thread sleeps on, and the steps that ensure a
//! wake-up.
//!
//! ```text
//!   in a call          on words: the bell of each link's peer, and the inbox's   (a futex; of several words, `futex_waitv`)
//!   in an event loop   on one descriptor: each link's socket, and the inbox's    (epoll)
//! ```
//! Words are quicker, and leave nothing to take afterwards. The descriptor serves a program that
//! watches it ([`Node::prepare_to_wait`]; the threads that share its node use it, too, from then
//! on, so that one signal reaches all), a node with more links than the kernel takes words, a peer
//! that does not ring, and a kernel that cannot wait for several words.
//!
//! [`crate::engine::sleep`] decides on which to sleep and when, the announcements before it, and
//! the last checks: this file performs them.

use super::Node;
use super::link::{SIGNALS_PER_TURN, Signals};
use super::receive::Misbehaviour;
use crate::config::WaitMode;
use crate::control::Inbox;
use crate::engine::sleep::{AnnounceStep, FallsAsleep, Naps, Others, Ways};
use crate::engine::wait::Learnt;
use crate::interface::LinkId;
use crate::link::sleep::WakeBy;
use crate::os::memory::RegionWord;
use crate::os::poller::{READY_AT_A_TIME, Ready};
use crate::os::sys::{self, WakeWord};
use core::sync::atomic::{self, Ordering};
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::vec::Vec;

/// The tag of the control plane's inbox among those of the links.
pub(super) const INBOX_TAG: u64 = u64::MAX;
/// The tag of the control plane itself, if the application runs it.
pub(super) const CONTROL_TAG: u64 = u64::MAX - 1;
/// The tag of the timer that ends a nap.
const NAP_TAG: u64 = u64::MAX - 2;
/// Long turns between two runs of the control plane, if the application runs it.
const TURNS_PER_CONTROL: u32 = 16;

/// A node's state of sleeping and waking.
#[derive(Debug)]
pub(super) struct SleepState {
    ways: Ways,
    pub naps: Naps,
    pub learnt: Learnt,
    /// Ends a nap in another program's event loop.
    nap_timer: Option<sys::Timer>,
    /// The application waits in an event loop, and has not been woken since.
    pub waits_outside: bool,
    /// Links for whose room a task waits outside the node's view; and some that have ended.
    awaiting_room: Vec<u32>,
    /// The armed link whose figures are published next.
    next_to_publish: usize,
    control_turns: u32,
}

impl SleepState {
    /// Of a node that can sleep on this many words.
    pub fn new(words_max: usize) -> Self {
        Self {
            ways: Ways::new(words_max),
            naps: Naps::default(),
            learnt: Learnt::default(),
            nap_timer: None,
            waits_outside: false,
            awaiting_room: Vec::new(),
            next_to_publish: 0,
            control_turns: 0,
        }
    }
}

/// The objects that a thread sleeps on. Made with the node at hand, and used without it.
pub(super) struct Sleep {
    on: On,
    /// `u64::MAX`: no nap.
    nap_until_ns: u64,
}

enum On {
    /// The first bell apart: if there is no other, nothing is allocated.
    Words {
        bell: Option<(RegionWord, u32)>,
        bells: Vec<(RegionWord, u32)>,
        inbox: Arc<Inbox>,
        news: u32,
    },
    Descriptor,
}

impl Sleep {
    /// Sleeps until something may have come, or until another thread signals through `others`, a
    /// bell and a word with its value; at most until `deadline_ns`. `descriptor` is the node's.
    pub fn sleep(
        self,
        descriptor: BorrowedFd<'_>,
        others: Option<(&sys::Bell, &WakeWord, u32)>,
        deadline_ns: u64,
    ) -> Result<(), SleepError> {
        let deadline_ns = deadline_ns.min(self.nap_until_ns);
        match self.on {
            On::Words { bell, bells, inbox, news } => {
                let inbox = (inbox.word(), news);
                let bells = bell.iter().chain(&bells).map(|(bell, at)| (bell, *at));
                let slept = match others {
                    None => sys::wait_for_words(bells, &[inbox], deadline_ns),
                    Some((_, word, value)) => {
                        sys::wait_for_words(bells, &[inbox, (word, value)], deadline_ns)
                    }
                };
                slept.map_err(|_| SleepError::Words)
            }
            On::Descriptor => {
                let slept = match others {
                    None => sys::wait_for(&[(descriptor, false)], deadline_ns),
                    Some((bell, ..)) => {
                        let fds = [(descriptor, false), (bell.as_fd(), false)];
                        let slept = sys::wait_for(&fds, deadline_ns);
                        bell.silence();
                        slept
                    }
                };
                slept.map(|_| ()).map_err(SleepError::Os)
            }
        }
    }
}

/// There was no sleep.
#[derive(Debug)]
pub(super) enum SleepError {
    /// The kernel no longer waits for words: a filter of its calls came after the node was made.
    Words,
    /// Another error.
    Os(io::Error),
}

/// As [`Node::as_fd`].
impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Node {
    /// The way to wake a thread that sleeps in a call.
    fn sleeps_by(&self, others: Others) -> WakeBy {
        let rings = |link: &super::link::Link| link.token.is_none() || link.rx.ear.is_some();
        let all_ring = || self.links.iter().flatten().all(rings);
        self.sleeping.ways.choose(others, self.turns.len(), all_ring)
    }

    /// Announces on every link whose other end does not know it that this side sleeps: until
    /// packets come, and until there is room on links that a caller waits for. `false`: something
    /// has come; do not sleep, call `poll`.
    fn arm_all(&mut self, room: Option<LinkId>, by: WakeBy) -> bool {
        self.figures.waits();
        let links = &mut self.links;
        self.sleeping
            .awaiting_room
            .retain(|i| matches!(&links[*i as usize], Some(link) if link.awaits_room));
        let own = room.filter(|id| self.link(*id).is_ok());
        let waiting = self.queued.links().iter().chain(&self.sleeping.awaiting_room).copied();
        let full: Vec<u32> = waiting.chain(own.map(|id| id.index)).collect();
        // A link that ended meanwhile sends no signal any more; a caller that waits for it must see
        // that.
        let falls_asleep = self.fall_asleep(by, &full) && own == room;
        if !falls_asleep {
            self.figures.awake();
        }
        falls_asleep
    }

    /// A link may have packets, and is looked at in each turn.
    fn promote(&mut self, index: u32) {
        self.figures.awake();
        self.look_again(index);
    }

    /// A caller wants the packets of a link: the next turn looks at it, though it may be idle.
    pub(crate) fn look_at_soon(&mut self, id: LinkId) {
        if self.link(id).is_err() {
            return;
        }
        self.promote(id.index);
        self.look_at_host_soon(id.index);
    }

    /// Links that are armed, and whose senders have signalled, are looked at again.
    #[cold]
    #[inline(never)]
    pub(super) fn look_for_signals(&mut self) {
        let mut ready = Vec::new();
        let before = self.turns.all_armed().len();
        if self.poller.wait(Some(0), &mut ready).is_err() || ready.is_empty() {
            return;
        }
        // Other sockets are not read: otherwise a peer that fills its socket would have this node
        // empty it.
        ready.retain(|ready| u32::try_from(ready.tag).is_ok_and(|tag| self.turns.is_armed(tag)));
        if self.sleeping.ways.is_watched() {
            // The bytes stay, because the thread that watches the descriptor must see them, too.
            ready.iter().for_each(|ready| self.promote(ready.tag as u32));
        } else if !ready.is_empty() {
            self.take_signals(&ready, 1);
            // The signals may have been meant for a sleeping thread.
            self.wake();
        }
        if before.saturating_sub(self.turns.all_armed().len()) >= READY_AT_A_TIME / 2 {
            self.turns.more_signals();
        }
    }

    /// Publishes the figures of links without arrivals in turn: of one such link in each long turn.
    pub(super) fn publish_quiet(&mut self) {
        if let Some(index) = self.turns.quiet(self.sleeping.next_to_publish) {
            self.sleeping.next_to_publish += 1;
            if let Some(Some(link)) = self.links.get(index as usize) {
                link.publish(self.queued.of(index));
            }
        } else {
            self.sleeping.next_to_publish = 0;
        }
    }

    /// From now on each thread that prepares to sleep waits for room on this link, too, and wakes
    /// the others when there is; until there has been.
    #[cold]
    pub(crate) fn await_room(&mut self, id: LinkId) {
        if let Some(Some(link)) = self.links.get_mut(id.index as usize)
            && link.id == id
            && !core::mem::replace(&mut link.awaits_room, true)
        {
            self.sleeping.awaiting_room.push(id.index);
        }
    }

    /// All threads that sleep on this node, or watch its descriptor, wake when there is room on a link,
    /// once: for a layer that sends in turns, in
    /// [`Protocol::after_poll`](crate::protocol::Protocol::after_poll), and found none.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-room-{}", std::process::id()));
    /// use hamlyn::{LinkId, Node, SlotConfig};
    ///
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
    /// let slot = node.slot(SlotConfig::new(area, queue))?;
    /// let ticket = node.fast_ticket(slot)?;
    /// while node.try_send_fast_over(LinkId::SELF, &ticket, &[7; 2000], 0).is_ok() {}
    /// node.wake_at_room(LinkId::SELF);
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wake_at_room(&mut self, id: LinkId) {
        let known = self.sleeping.awaiting_room.len();
        self.await_room(id);
        if self.sleeping.awaiting_room.len() != known {
            // Those who sleep already do not wait for it.
            self.wake();
        }
    }

    /// Whether a link that had no room has room for any packet now, or will never have.
    pub(crate) fn has_room(&mut self, id: LinkId) -> bool {
        match self.links.get_mut(id.index as usize) {
            Some(Some(link)) if link.id == id => link.tx.as_mut().is_none_or(|tx| tx.has_room()),
            _ => true,
        }
    }

    /// Prepares a thread for sleeping in a call, for a packet or for room. `None`: something has
    /// come; do not sleep.
    pub(super) fn prepare_to_sleep(
        &mut self,
        room: Option<LinkId>,
        others: Others,
    ) -> Option<Sleep> {
        let by = self.sleeps_by(others);
        let news = self.inbox.word().value();
        if !self.arm_all(room, by) {
            return None;
        }
        let nap_until_ns = match self.sleeping.naps.take() {
            None => u64::MAX,
            Some(nap_ns) => {
                self.counters.naps.add(1);
                sys::monotonic_ns() + nap_ns
            }
        };
        self.counters.sleeps.add(1);
        let on = match by {
            WakeBy::Byte => On::Descriptor,
            WakeBy::Bell => {
                let ears = self.links.iter().flatten().filter_map(|link| link.rx.ear.as_ref());
                let mut bells = ears.map(|ear| ear.expected()).map(|(bell, at)| (bell.clone(), at));
                let bell = bells.next();
                On::Words { bell, bells: bells.collect(), inbox: self.inbox.clone(), news }
            }
        };
        Some(Sleep { on, nap_until_ns })
    }

    /// After a sleep: links whose peers have woken this node are looked at in the next turn.
    pub(super) fn after_sleep(
        &mut self,
        slept: Result<(), SleepError>,
        began_ns: u64,
        others: Others,
    ) -> io::Result<()> {
        self.figures.slept();
        // A node that always sleeps at once has no use for that.
        if self.config.wait_mode != WaitMode::Blocking {
            self.sleeping.learnt.slept(sys::monotonic_ns() - began_ns, self.config.spin_ns);
        }
        match slept {
            Ok(()) => {}
            Err(SleepError::Words) => self.sleeping.ways.refuse_words(),
            Err(SleepError::Os(e)) => return Err(e),
        }
        if self.sleeps_by(others) == WakeBy::Byte {
            self.take_all_signals();
            return Ok(());
        }
        for index in 0..self.links.len() {
            if let Some(Some(link)) = self.links.get_mut(index)
                && link.rx.has_rung()
            {
                self.promote(index as u32);
            }
        }
        Ok(())
    }

    pub(super) fn sleep(&mut self, deadline_ns: u64, room: Option<LinkId>) -> io::Result<()> {
        let Some(sleep) = self.prepare_to_sleep(room, Others::None) else { return Ok(()) };
        let control = if self.runs_control { self.control().deadline_ns() } else { None };
        let deadline_ns = deadline_ns.min(control.unwrap_or(u64::MAX));
        let began_ns = sys::monotonic_ns();
        let slept = sleep.sleep(self.as_fd(), None, deadline_ns);
        self.after_sleep(slept, began_ns, Others::None)?;
        if self.runs_control {
            self.control().run_once(Duration::ZERO)?;
        }
        Ok(())
    }

    fn take_all_signals(&mut self) {
        let mut ready = Vec::new();
        if self.poller.wait(Some(0), &mut ready).is_ok() {
            self.take_signals(&ready, SIGNALS_PER_TURN);
        }
    }

    /// Takes the bytes that signals left, so that they no longer make the descriptor readable: at
    /// most `most` from each link, since a peer may send any number.
    fn take_signals(&mut self, ready: &[Ready], most: usize) {
        for ready in ready {
            if ready.tag == CONTROL_TAG {
                // An error here comes again in the next wait.
                let _ = self.control().run_once(Duration::ZERO);
                continue;
            }
            if ready.tag == NAP_TAG
                && let Some(timer) = &self.sleeping.nap_timer
            {
                let _ = timer.set(0);
                continue;
            }
            let Some(Some(link)) = self.links.get_mut(ready.tag as usize) else { continue };
            match link.rx.take_signals(most) {
                Signals::Taken => {}
                Signals::Gone => {
                    if let Some(host) = link.rx.host() {
                        self.poller.remove(crate::transport::lock(&**host).as_fd());
                    }
                    if let Some(wake) = link.rx.wake() {
                        self.poller.remove(wake);
                    }
                }
                Signals::Misbehaved => {
                    self.end_misbehaving(ready.tag as u32, Misbehaviour::Descriptor);
                    continue;
                }
            }
            // It may have signalled room to another waiter that has yet to look.
            self.wakes_of_waiters += u64::from(link.awaits_room);
            self.promote(ready.tag as u32);
        }
    }

    /// If the application runs the control plane: a program that only sends and receives runs it,
    /// too, or it would never learn of a death.
    #[inline]
    pub(super) fn run_control_sometimes(&mut self) {
        self.sleeping.control_turns = self.sleeping.control_turns.wrapping_add(1);
        if self.sleeping.control_turns.is_multiple_of(TURNS_PER_CONTROL)
            || !self.connecting.links.is_empty()
        {
            let _ = self.control().run_once(Duration::ZERO);
        }
    }

    /// A descriptor for epoll, tokio, asyncio and the like. Readable when something may have
    /// arrived after [`prepare_to_wait`](Self::prepare_to_wait) returned `true`; then call
    /// [`poll`](Self::poll).
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// Call it before you wait on [`as_fd`](Self::as_fd), after you emptied every notification
    /// queue and [`next_event`](Self::next_event). `true`: nothing waits, and an arrival will make
    /// the descriptor readable. `false`: something has come; call `poll` first. This holds until
    /// the next call that receives or waits, because that takes arrivals, and their signal: prepare
    /// again.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-wait-{}", std::process::id()));
    /// use hamlyn::{MetadataIndex, Node, SlotConfig};
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let mut node = Node::with_config(config)?;
    /// # let (area, queue) = (node.message_area(4096)?, node.notification_queue(1)?);
    /// # let slot = node.slot(SlotConfig::new(area, queue))?;
    /// node.send(&node.ticket(slot, MetadataIndex(0))?, b"hello", b"", limit)?;
    /// while node.try_recv(queue)?.is_none() {
    ///     if node.prepare_to_wait()? {
    ///         let most = Timespec { tv_sec: 10, tv_nsec: 0 };
    ///         let ready = poll(&mut [PollFd::new(&node.as_fd(), PollFlags::IN)], Some(&most))?;
    ///         assert_eq!(ready, 1, "nothing came");
    ///     }
    ///     node.poll()?;
    /// }
    /// # drop(node);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare_to_wait(&mut self) -> Result<bool, super::Forked> {
        self.check_fork()?;
        if self.sleeping.ways.watch() {
            // A thread that sleeps on words is woken, and sleeps on the descriptor from now on.
            self.wake();
        }
        // Signals of an earlier wait: without this the descriptor would stay readable.
        self.take_all_signals();
        let may_wait = self.arm_all(None, WakeBy::Byte) && self.events.is_empty() && self.may_nap();
        self.sleeping.waits_outside = may_wait;
        Ok(may_wait)
    }

    /// Before the thread that watches the descriptor sleeps: sets a timer for a nap, if one is
    /// needed, which makes the descriptor readable at the nap's end. `false`: no timer, so it must
    /// not sleep.
    fn may_nap(&mut self) -> bool {
        let Some(nap) = self.sleeping.naps.take() else { return true };
        self.counters.naps.add(1);
        if self.sleeping.nap_timer.is_none() {
            let timer = sys::Timer::new();
            self.sleeping.nap_timer =
                timer.ok().filter(|timer| self.poller.add(timer, NAP_TAG).is_ok());
        }
        self.sleeping.nap_timer.as_ref().is_some_and(|timer| timer.set(nap).is_ok())
    }
}

impl FallsAsleep for Node {
    fn announce(&mut self, index: u32, by: WakeBy) -> AnnounceStep {
        let Some(Some(link)) = self.links.get_mut(index as usize) else {
            return AnnounceStep::Already;
        };
        link.publish(self.queued.of(index));
        // No thread sleeps on a link of the node to itself.
        if link.token.is_none() { AnnounceStep::Already } else { link.rx.arm(by) }
    }

    fn announce_for_room(&mut self, index: u32, by: WakeBy) -> AnnounceStep {
        match self.links.get_mut(index as usize) {
            Some(Some(link)) if link.token.is_some() => {
                let Some(tx) = &mut link.tx else { return AnnounceStep::Already };
                if let Some(figures) = &link.figures {
                    figures.waits_for_room();
                }
                tx.room.arm(by);
                let announced = AnnounceStep::by(&tx.room);
                link.rx.room_signal_is_due();
                announced
            }
            _ => AnnounceStep::Already,
        }
    }

    fn announce_for_any(&mut self, index: u32) -> Option<AnnounceStep> {
        let link = self.links.get_mut(index as usize)?.as_mut()?;
        link.token?;
        link.publish(self.queued.of(index));
        link.rx.arm_for_any()
    }

    fn has_taken(&mut self, index: u32) {
        if let Some(Some(link)) = self.links.get_mut(index as usize) {
            link.rx.has_taken();
        }
    }

    fn barrier(&mut self) -> bool {
        sys::barrier()
    }

    fn fence(&mut self) {
        // Pairs with the senders' stores and loads.
        atomic::fence(Ordering::SeqCst);
    }

    fn barrier_made(&mut self, index: u32) {
        if let Some(Some(link)) = self.links.get_mut(index as usize) {
            link.rx.sleep.barrier_made();
        }
    }

    fn barrier_made_for_room(&mut self, index: u32) {
        if let Some(Some(link)) = self.links.get_mut(index as usize)
            && let Some(tx) = &mut link.tx
        {
            tx.room.barrier_made();
        }
    }

    fn naps(&mut self) -> &mut Naps {
        &mut self.sleeping.naps
    }

    fn has_news(&mut self) -> bool {
        // First of all: the signal for it has been taken, and no other thread looks at it.
        let mut room_came = false;
        for index in &self.sleeping.awaiting_room {
            if let Some(Some(link)) = self.links.get_mut(*index as usize)
                && link.tx.as_mut().is_some_and(|tx| tx.has_room())
            {
                link.awaits_room = false;
                room_came = true;
            }
        }
        if room_came {
            // The thread that wakes the tasks must see that something has changed.
            self.wakes_of_waiters += 1;
            return true;
        }
        if self.inbox.is_pending() || !self.leaving.links.is_empty() {
            return true;
        }
        if !self.hosts.is_empty() && self.arm_hosts() {
            return true;
        }
        false
    }

    fn room_came(&mut self, index: u32) -> bool {
        let Some(Some(link)) = self.links.get_mut(index as usize) else { return false };
        link.tx.as_mut().is_some_and(|tx| tx.has_room())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::control::{ConnectionId, LinkFeatures, LinkWay, NewLink, Peer};
    use crate::interface::{QueueId, SlotConfig};
    use crate::link::cells::{AtomicU64, Word};
    use crate::link::sleep::ring;
    use crate::node::{Node, NodeReceiveError};
    use crate::os::memory::{self, Region, region_bytes};
    use crate::os::socket;
    use crate::wire::{Flags, MetadataIndex, NodeId, Ticket};
    use core::sync::atomic::AtomicBool;
    use std::string::String;

    const RING_BYTES: usize = 4096;
    const LONG: Option<Duration> = Some(Duration::from_secs(40));

    /// A node that sleeps at once, with a queue and a ticket for one message after the other.
    fn node(name: &str) -> (Node, QueueId, Ticket) {
        let dir = std::env::temp_dir().join(std::format!("hamlyn-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let config = Config::from_env().unwrap().dir(&dir).wait_mode(WaitMode::Blocking);
        let mut node = Node::with_config(config).unwrap();
        let area = node.message_area(64).unwrap();
        let queue = node.notification_queue(64).unwrap();
        let slot = node.slot(SlotConfig::new(area, queue).metadata(64)).unwrap();
        let ticket = node.ticket(slot, MetadataIndex(0)).unwrap();
        let _ = std::fs::remove_dir_all(&dir);
        (node, queue, ticket)
    }

    /// Memory that one end writes, and the other end's view of it.
    fn pages() -> (Region, Region) {
        let bytes = region_bytes(RING_BYTES);
        let file = memory::create(bytes).unwrap();
        (Region::map_writable(&file, bytes).unwrap(), Region::map_read_only(&file, bytes).unwrap())
    }

    /// A link as the control plane would have made it, at either end.
    fn link(features: LinkFeatures, ends: [(u64, NodeId); 2]) -> [NewLink; 2] {
        let ((a, a_read), (b, b_read)) = (pages(), pages());
        let (a_wake, b_wake) = socket::pair().unwrap();
        let parts = [(ends[0], a, b_read, a_wake), (ends[1], b, a_read, b_wake)];
        parts.map(|((token, node), outgoing, incoming, wake)| NewLink {
            token: ConnectionId(token),
            peer: Peer {
                node,
                uid: None,
                gid: None,
                pid: None,
                process: None,
                is_proved: true,
                service: String::new(),
                host: None,
            },
            greeting: Vec::new(),
            outgoing,
            incoming,
            way: LinkWay::Memory(wake.into()),
            packet_bytes: 1024,
            features,
            initiated_by_us: false,
            request: None,
            asked: None,
            how: None,
        })
    }

    fn send(node: &mut Node, ticket: &Ticket) {
        node.send(ticket, &[1], &[], LONG).unwrap();
    }

    /// Two nodes with such a link.
    fn pair(name: &str, features: LinkFeatures) -> ((Node, QueueId, Ticket), Node) {
        let (mut to, queue, ticket) = node(&std::format!("{name}-to"));
        let (mut from, ..) = node(&std::format!("{name}-from"));
        let [at_to, at_from] = link(features, [(1, from.id()), (2, to.id())]);
        to.install_link(at_to).unwrap();
        from.install_link(at_from).unwrap();
        ((to, queue, ticket), from)
    }

    /// Waits until the process of the sleeping thread has counted that many sleeps.
    fn until_asleep(counters: &crate::interface::Counters, sleeps: u64) {
        while counters.sleeps.get() < sleeps {
            std::thread::yield_now();
        }
    }

    #[test]
    fn whoever_sleeps_in_a_call_is_woken_by_the_bell_and_by_bytes_where_it_was_not_agreed() {
        let both = LinkFeatures::BARRIER | LinkFeatures::BELL;
        for (features, by) in [
            (both, WakeBy::Bell),
            (LinkFeatures::BELL, WakeBy::Bell),
            (LinkFeatures::BARRIER, WakeBy::Byte),
            (LinkFeatures::empty(), WakeBy::Byte),
        ] {
            let ((mut to, queue, ticket), mut from) = pair("bell-or-byte", features);
            let by = if sys::can_wait_for_words() { by } else { WakeBy::Byte };
            assert_eq!(to.sleeps_by(Others::None), by, "{features:?}");
            let counters = to.counters.clone();
            std::thread::scope(|scope| {
                scope.spawn(|| (0..100).for_each(|_| _ = to.recv(queue, LONG).unwrap()));
                for i in 0..100 {
                    until_asleep(&counters, i + 1);
                    send(&mut from, &ticket);
                    while counters.packets() <= i {
                        std::thread::yield_now();
                    }
                }
            });
            let (wakes, rings) = (from.counters.wakes_sent.get(), from.counters.rings_sent.get());
            assert!(wakes > 0, "nobody slept");
            assert_eq!(rings, if by == WakeBy::Bell { wakes } else { 0 }, "{features:?}");
        }
    }

    #[test]
    fn with_more_links_than_the_kernel_takes_words_bytes_wake() {
        let features = LinkFeatures::all();
        let ((mut to, queue, ticket), mut from) = pair("many-links", features);
        // The other ends stay, and send nothing.
        let mut silent = Vec::new();
        for i in 0..sys::WORDS_MAX as u64 {
            let [here, there] = link(features, [(100 + i, NodeId(i)), (1, to.id())]);
            to.install_link(here).unwrap();
            silent.push(there);
        }
        assert_eq!(to.sleeps_by(Others::None), WakeBy::Byte);
        let counters = to.counters.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| to.recv(queue, LONG).unwrap());
            until_asleep(&counters, 1);
            send(&mut from, &ticket);
        });
        assert_eq!(from.counters.rings_sent.get(), 0);
    }

    // Links beyond those whose bells a thread can wait for are not looked at; but their arrivals,
    // even those that wake no thread, are found, by a thread that is awake and by one that sleeps.
    #[test]
    fn what_comes_on_a_link_that_is_armed_is_found_awake_and_asleep() {
        for features in [LinkFeatures::all(), LinkFeatures::BELL] {
            let ((mut to, queue, ticket), mut from) = pair("armed", features);
            let mut silent = Vec::new();
            for i in 0..2 * sys::WORDS_MAX as u64 {
                let [here, there] = link(features, [(100 + i, NodeId(i)), (1, to.id())]);
                to.install_link(here).unwrap();
                silent.push(there);
            }
            let quiet = Ticket { flags: ticket.flags.difference(Flags::WAKE), ..ticket };
            let links = to.turns.len();
            let armed = |to: &mut Node| {
                let end = sys::monotonic_ns() + LONG.unwrap().as_nanos() as u64;
                while to.turns.all_armed().len() < links {
                    to.poll().unwrap();
                    assert!(sys::monotonic_ns() < end, "{} are armed", to.turns.all_armed().len());
                }
            };
            for _ in 0..3 {
                armed(&mut to);
                let (wakes, sleeps) = (from.counters.wakes_sent.get(), to.counters.sleeps.get());
                send(&mut from, &quiet);
                // After a signal, the node looks at it again.
                send(&mut from, &quiet);
                assert_eq!(from.counters.wakes_sent.get(), wakes + 1);
                for _ in 0..2 {
                    while to.try_recv(queue).unwrap().is_none() {}
                }
                assert_eq!(to.counters.sleeps.get(), sleeps);
                armed(&mut to);
                let counters = to.counters.clone();
                std::thread::scope(|scope| {
                    scope.spawn(|| to.recv(queue, LONG).unwrap());
                    until_asleep(&counters, sleeps + 1);
                    send(&mut from, &ticket);
                });
            }
            // Fewer again, and then they are looked at in each turn.
            for id in to.links().collect::<Vec<_>>() {
                if to.turns.len() > 8 && to.peer(id).unwrap().node != from.id() {
                    to.disconnect(id).unwrap();
                }
            }
            send(&mut from, &ticket);
            to.recv(queue, LONG).unwrap();
        }
    }

    // For an armed link one signal is taken each time; the engine's tests count how often it is
    // armed.
    #[test]
    fn of_a_peer_that_signals_all_the_time_one_signal_is_read_for_each_time_it_was_asked_for() {
        let ((mut to, ..), _from) = pair("floods", LinkFeatures::all());
        let mut others = Vec::new();
        for i in 0..2 * sys::WORDS_MAX as u64 {
            let [here, there] = link(LinkFeatures::all(), [(100 + i, NodeId(i)), (1, to.id())]);
            to.install_link(here).unwrap();
            // In the same way as the control plane.
            socket::send_little(there.way.wake().unwrap());
            others.push(there);
        }
        while to.turns.all_armed().len() < to.turns.len() {
            to.poll().unwrap();
        }
        // Some stay armed, so that signals are looked for; each of the others sends as many as it
        // can.
        let hostile = &others[sys::WORDS_MAX..];
        for other in hostile {
            while socket::send(other.way.wake().unwrap(), &[1], &[]).is_ok() {}
        }
        let asked = |other: &NewLink| other.incoming.sleep().word().load(Ordering::Relaxed);
        let before: Vec<u64> = hostile.iter().map(asked).collect();
        let mut again = std::vec![0u64; hostile.len()];
        // Until each has been asked anew several times.
        while hostile.iter().zip(&before).any(|(other, before)| asked(other) < before + (8 << 3)) {
            to.poll().unwrap();
            for (other, again) in hostile.iter().zip(&mut again) {
                let signals = || socket::send(other.way.wake().unwrap(), &[1], &[]).is_ok();
                *again += (0..100).take_while(|_| signals()).count() as u64;
            }
        }
        for ((other, before), again) in hostile.iter().zip(&before).zip(&again) {
            let times = (asked(other) >> 3) - (before >> 3);
            assert!(*again > 0 && *again <= times + 1, "{again} were read, {times} asked for");
        }
    }

    // The check for a second signal is spared if one is due; a peer that sends more causes one more
    // check, and no longer.
    #[test]
    fn where_one_signal_is_due_one_is_taken_and_what_is_beyond_the_next_time() {
        let (mut to, ..) = node("due");
        let [here, there] = link(LinkFeatures::empty(), [(1, NodeId(1)), (1, to.id())]);
        to.install_link(here).unwrap();
        let signal = || socket::send(there.way.wake().unwrap(), &[1], &[]).unwrap();
        let is_readable = |to: &Node| {
            let mut ready = Vec::new();
            to.poller.wait(Some(0), &mut ready).unwrap();
            !ready.is_empty()
        };
        for beyond in [0, 1, 5] {
            while !to.prepare_to_wait().unwrap() {
                to.poll().unwrap();
            }
            (0..=beyond).for_each(|_| signal());
            to.take_all_signals();
            assert_eq!(is_readable(&to), beyond > 0, "{beyond} beyond");
            to.take_all_signals();
            assert!(!is_readable(&to), "{beyond} beyond");
        }
    }

    #[test]
    fn a_peer_that_rings_all_the_time_delays_no_limit_and_hides_nobody() {
        let ((mut to, queue, ticket), mut from) = pair("rings", LinkFeatures::all());
        let [here, hostile] = link(LinkFeatures::all(), [(7, NodeId(7)), (1, to.id())]);
        to.install_link(here).unwrap();
        let stop = AtomicBool::new(false);
        let random = AtomicU64::new(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let bell = hostile.outgoing.bell();
                while !stop.load(Ordering::Relaxed) {
                    ring(&bell);
                    if random.fetch_add(1, Ordering::Relaxed).is_multiple_of(5) {
                        bell.word().store(u64::MAX, Ordering::Relaxed);
                    }
                    sys::wake_word(bell.word());
                }
            });
            for _ in 0..20 {
                let short = Some(Duration::from_millis(5));
                assert!(matches!(to.recv(queue, short), Err(NodeReceiveError::TimedOut)));
                send(&mut from, &ticket);
                to.recv(queue, LONG).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_thread_asleep_on_words_is_told_when_an_event_loop_takes_over() {
        let ((to, queue, ticket), mut from) = pair("event-loop", LinkFeatures::all());
        let counters = to.counters.clone();
        let shared = to.share().unwrap();
        std::thread::scope(|scope| {
            let receives = scope.spawn(|| shared.recv(queue, LONG).unwrap());
            until_asleep(&counters, 1);
            let mut node = shared.lock();
            while !node.prepare_to_wait().unwrap() {
                node.poll().unwrap();
            }
            drop(node);
            send(&mut from, &ticket);
            receives.join().unwrap();
        });
        assert_eq!(from.counters.rings_sent.get(), 0);
        assert_eq!(shared.lock().sleeps_by(Others::Any), WakeBy::Byte);
    }

    #[test]
    fn a_node_that_was_watched_and_is_borrowed_sleeps_on_words() {
        let features = LinkFeatures::BELL | LinkFeatures::BARRIER;
        let ((mut to, queue, ticket), mut from) = pair("borrowed", features);
        while !to.prepare_to_wait().unwrap() {}
        // A message to a watching thread is found, and its byte is gone from the descriptor later.
        send(&mut from, &ticket);
        to.recv(queue, LONG).unwrap();
        let counters = to.counters.clone();
        let rings = || from.counters.rings_sent.get();
        let before = (rings(), counters.sleeps.get());
        std::thread::scope(|scope| {
            scope.spawn(|| _ = to.recv(queue, LONG).unwrap());
            until_asleep(&counters, before.1 + 1);
            send(&mut from, &ticket);
        });
        let by_words = u64::from(sys::can_wait_for_words());
        assert_eq!(from.counters.rings_sent.get(), before.0 + by_words);
        assert!(to.prepare_to_wait().unwrap(), "nothing waits");
        let mut ready = Vec::new();
        to.poller.wait(Some(0), &mut ready).unwrap();
        assert!(ready.is_empty(), "a signal of before keeps the descriptor readable");
    }

    // A thread whose wait ends just then does not look at a task's condition.
    #[test]
    fn whoever_takes_the_signal_of_room_tells_those_who_wait_for_it() {
        let ((mut to, ..), mut from) = pair("room", LinkFeatures::empty());
        let queue = to.notification_queue(256).unwrap();
        let area = to.message_area(64).unwrap();
        let slot = to.slot(SlotConfig::new(area, queue)).unwrap();
        let ticket = to.fast_ticket(slot).unwrap();
        let link = from.links().next().unwrap();
        while from.try_send_fast_over(link, &ticket, &[1], 0).is_ok() {}
        from.await_room(link);
        while !from.prepare_to_wait().unwrap() {
            from.poll().unwrap();
        }
        let mut ready = Vec::new();
        while from.poller.wait(Some(0), &mut ready).is_ok() && ready.is_empty() {
            to.poll().unwrap();
            while to.pop(queue).unwrap().is_some() {}
        }
        let moved = from.moved();
        from.after_sleep(Ok(()), sys::monotonic_ns(), Others::Any).unwrap();
        assert_ne!(from.moved(), moved);
        // No other thread has anything to look at.
        let moved = from.moved();
        from.after_sleep(Ok(()), sys::monotonic_ns(), Others::Any).unwrap();
        assert_eq!(from.moved(), moved);
    }

    // The link comes while its receiver sleeps on the words of the earlier links.
    #[test]
    fn a_link_that_comes_later_wakes_a_thread_that_sleeps_already() {
        let ((to, queue, ticket), _first) = pair("later", LinkFeatures::all());
        let (mut from, ..) = node("later-from-2");
        let counters = to.counters.clone();
        let shared = to.share().unwrap();
        std::thread::scope(|scope| {
            let receives = scope.spawn(|| shared.recv(queue, LONG).unwrap());
            until_asleep(&counters, 1);
            let [here, there] =
                link(LinkFeatures::all(), [(9, from.id()), (1, ticket.destination)]);
            shared.lock().install_link(here).unwrap();
            from.install_link(there).unwrap();
            send(&mut from, &ticket);
            receives.join().unwrap();
        });
    }
}
