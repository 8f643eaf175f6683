//! Waiting: poll, then yield, then sleep (adaptive); or only one of them.
//!
//! A wake-up costs hundreds of messages, so sleeping is the last resort, and it is decided by the
//! side that waits. Before it sleeps it says so (`arm`), makes a barrier, and looks once more:
//! a sender either saw that it sleeps, or its packet is seen in that last look. No wake-up is
//! lost, and a sleeping node uses no processor time.

use super::Node;
use super::link::Signals;
use super::receive::Misbehaviour;
use crate::config::{Config, WaitMode};
use crate::interface::LinkId;
use crate::os::sys::{self, Ready};
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::vec::Vec;

/// The tag of the control plane's inbox among those of the links.
pub(super) const INBOX_TAG: u64 = u64::MAX;
/// That of the control plane itself, where the application runs it.
pub(super) const CONTROL_TAG: u64 = u64::MAX - 1;
/// Turns between two runs of the control plane, where the application runs it.
const TURNS_PER_CONTROL: u32 = 1024;

/// Turns between two looks at the clock while spinning.
const TURNS_PER_LOOK: u32 = 32;

/// How long something has been waited for, and what to do next.
pub(super) struct Backoff {
    mode: WaitMode,
    spin_ns: u64,
    yields: u32,
    timeout_ns: u64,
    /// By the monotonic clock, from the first look at it on; 0 before: most messages come sooner,
    /// and a look costs as much as a turn or two.
    deadline_ns: u64,
    started_ns: u64,
    /// Never starts again: however much arrives, the deadline is looked at.
    turns: u32,
    yielded: u32,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Look again at once.
    Spin,
    /// Let others run, then look again.
    Yield,
    /// Sleep until the deadline at most.
    Sleep {
        /// By the monotonic clock; `u64::MAX`: none.
        deadline_ns: u64,
    },
    /// The time is over.
    TimedOut,
}

impl Backoff {
    pub fn new(config: &Config, timeout: Option<Duration>) -> Self {
        let whole_ns = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Self {
            mode: config.wait_mode,
            spin_ns: config.spin_ns,
            yields: config.yield_count,
            timeout_ns: timeout.map_or(u64::MAX, whole_ns),
            deadline_ns: 0,
            started_ns: 0,
            turns: 0,
            yielded: 0,
        }
    }

    /// Something happened: spin again from the start.
    pub fn restart(&mut self) {
        self.started_ns = 0;
        self.yielded = 0;
    }

    /// Whether the time is over, where something moves in each turn; looks at the clock now and
    /// then.
    pub fn is_over(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.turns.is_multiple_of(TURNS_PER_LOOK) && self.is_past(sys::monotonic_ns())
    }

    fn is_past(&mut self, now: u64) -> bool {
        if self.deadline_ns == 0 {
            self.deadline_ns = now.saturating_add(self.timeout_ns);
        }
        now >= self.deadline_ns
    }

    #[inline]
    pub fn step(&mut self) -> Step {
        self.turns = self.turns.wrapping_add(1);
        let looks = self.turns.is_multiple_of(TURNS_PER_LOOK);
        if !looks && self.mode != WaitMode::Blocking && self.yielded == 0 {
            return Step::Spin;
        }
        self.slow_step()
    }

    #[cold]
    fn slow_step(&mut self) -> Step {
        let now = sys::monotonic_ns();
        if self.is_past(now) {
            return Step::TimedOut;
        }
        if self.started_ns == 0 {
            self.started_ns = now;
        }
        match self.mode {
            WaitMode::Polled => Step::Spin,
            WaitMode::Blocking => Step::Sleep { deadline_ns: self.deadline_ns },
            WaitMode::Adaptive if now - self.started_ns < self.spin_ns => Step::Spin,
            WaitMode::Adaptive if self.yielded < self.yields => {
                self.yielded += 1;
                Step::Yield
            }
            WaitMode::Adaptive => Step::Sleep { deadline_ns: self.deadline_ns },
        }
    }
}

impl Node {
    /// One step of waiting for something to arrive. `false`: the time is over.
    #[inline]
    pub(super) fn wait_for_arrival(&mut self, backoff: &mut Backoff) -> io::Result<bool> {
        match backoff.step() {
            Step::Spin => Ok(true),
            Step::Yield => {
                std::thread::yield_now();
                Ok(true)
            }
            Step::Sleep { deadline_ns } => self.sleep(deadline_ns, None).map(|()| true),
            Step::TimedOut => Ok(false),
        }
    }

    /// One step of waiting for room on one link, or on each link that has queued messages.
    #[inline]
    pub(super) fn wait_for_room(
        &mut self,
        backoff: &mut Backoff,
        link: Option<LinkId>,
    ) -> io::Result<bool> {
        match backoff.step() {
            Step::Spin => Ok(true),
            Step::Yield => {
                std::thread::yield_now();
                Ok(true)
            }
            Step::Sleep { deadline_ns } => self.sleep(deadline_ns, Some(link)).map(|()| true),
            Step::TimedOut => Ok(false),
        }
    }

    /// Arms every link whose sender may have used its signal, and the room word of full links.
    /// `true`: nothing waits, and whatever comes from now on makes [`as_fd`](Self::as_fd)
    /// readable. `false`: do not sleep, call `poll`.
    fn arm_all(&mut self, room: Option<Option<LinkId>>) -> bool {
        let mut armed = false;
        for link in self.links.iter_mut().flatten() {
            if link.rx.needs_arming {
                link.rx.arm();
                armed = true;
            }
            let full = room == Some(Some(link.id)) || link.waits_for_room();
            if full && let Some(tx) = &mut link.tx {
                tx.arm_room();
                armed = true;
            }
        }
        if armed {
            // Pairs with the senders' stores and loads; they make no fence (see `link.rs`).
            sys::barrier_or_fence();
        }
        // First of all: the signal that told of it is taken, and nobody else looks at it.
        let mut room_came = false;
        for link in self.links.iter_mut().flatten().filter(|link| link.awaits_room) {
            if link.tx.as_mut().is_some_and(|tx| tx.has_room()) {
                link.awaits_room = false;
                room_came = true;
            }
        }
        if room_came {
            // Whoever wakes the tasks sees that something has changed.
            self.stirred += 1;
            return false;
        }
        if self.inbox.is_pending() {
            return false;
        }
        // A link that ended meanwhile tells of nothing any more; whoever waits for it must see that.
        if let Some(Some(id)) = room
            && self.link(id).is_err()
        {
            return false;
        }
        let mut ready = None;
        for link in self.links.iter_mut().flatten() {
            if link.rx.is_ready() {
                ready = Some(link.id.index);
                break;
            }
            if (room == Some(Some(link.id)) || link.waits_for_room())
                && link.tx.as_mut().is_some_and(|tx| tx.has_room())
            {
                return false;
            }
        }
        if let Some(index) = ready {
            self.promote(index);
        }
        ready.is_none()
    }

    /// From now on whoever prepares to sleep waits for room on this link, too, and tells the others
    /// when there is; until there has been.
    #[cold]
    pub(crate) fn await_room(&mut self, id: LinkId) {
        if let Some(Some(link)) = self.links.get_mut(id.index as usize)
            && link.id == id
        {
            link.awaits_room = true;
        }
    }

    fn sleep(&mut self, deadline_ns: u64, room: Option<Option<LinkId>>) -> io::Result<()> {
        if !self.arm_all(room) {
            return Ok(());
        }
        let control = if self.runs_control { self.control().deadline_ns() } else { None };
        let timeout = match deadline_ns.min(control.unwrap_or(u64::MAX)) {
            u64::MAX => None,
            deadline => Some(deadline.saturating_sub(sys::monotonic_ns())),
        };
        self.counters.sleeps.add(1);
        let mut ready = Vec::new();
        self.poller.wait(timeout, &mut ready)?;
        self.take_signals(&ready);
        if self.runs_control {
            self.control().run_once(Duration::ZERO)?;
        }
        Ok(())
    }

    /// Takes the bytes that signals left, so that the descriptor is no longer readable for them.
    fn take_signals(&mut self, ready: &[Ready]) {
        for ready in ready {
            if ready.tag == CONTROL_TAG {
                // What fails here fails again where it is waited for.
                let _ = self.control().run_once(Duration::ZERO);
                continue;
            }
            let Some(Some(link)) = self.links.get_mut(ready.tag as usize) else { continue };
            match link.rx.take_signals() {
                Signals::Taken => {}
                Signals::Gone => {
                    if let Some(wake) = link.rx.wake() {
                        self.poller.remove(wake);
                    }
                }
                Signals::Misbehaved => {
                    self.end_misbehaving(ready.tag as u32, Misbehaviour::Descriptor);
                    continue;
                }
            }
            self.promote(ready.tag as u32);
        }
    }

    /// Where the application runs the control plane: a program that only sends and receives runs
    /// it, too, or it would never learn of a death.
    #[inline]
    pub(super) fn run_control_sometimes(&mut self) {
        self.control_turns = self.control_turns.wrapping_add(1);
        if self.control_turns.is_multiple_of(TURNS_PER_CONTROL) {
            let _ = self.control().run_once(Duration::ZERO);
        }
    }

    /// A descriptor for epoll, tokio, asyncio and the like. Readable when something may have
    /// arrived after [`prepare_to_wait`](Self::prepare_to_wait) said `true`; then call
    /// [`poll`](Self::poll).
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// To be called before waiting on [`as_fd`](Self::as_fd), after every notification queue and
    /// [`next_event`](Self::next_event) have been emptied. `true`: nothing waits, and whatever
    /// comes makes the descriptor readable. `false`: something has come; call `poll` first.
    pub fn prepare_to_wait(&mut self) -> Result<bool, super::Forked> {
        self.prepare_to_wait_for(None)
    }

    /// [`prepare_to_wait`](Self::prepare_to_wait), also for room on a link.
    pub(crate) fn prepare_to_wait_for(
        &mut self,
        room: Option<LinkId>,
    ) -> Result<bool, super::Forked> {
        self.check_fork()?;
        // Signals of an earlier wait: without this the descriptor would stay readable.
        let mut ready = Vec::new();
        if self.poller.wait(Some(0), &mut ready).is_ok() {
            self.take_signals(&ready);
        }
        Ok(self.arm_all(room.map(Some)) && self.events.is_empty())
    }
}
