//! The thread of other hosts: handles hosts that meet and part, late packets, and dead hosts.
//!
//! Packets sent right behind another one leave together with those that follow. A program that
//! sends twice and then does something else makes no call in which the second could leave; so this
//! thread sends it:
//!
//! ```text
//!   node: flush() --push, bell--> thread: send_late(), again after LATE until there was nothing,
//!        flush() <---armed------         then the node tells of the next one itself
//! ```
//! It does the same for packets that the network did not take: the node may sleep in another
//! thread's call, which does not know of them.
//!
//! The kernel probes whether a host is alive. A few times within `host_timeout_ms` this thread
//! checks how long a host that owes an acknowledgement has sent none. (The kernel's own limit,
//! `TCP_USER_TIMEOUT`, would also break the connection to a host that answers, but whose program
//! takes nothing for that long. It is used if the kernel cannot be told to probe often enough.)
//!
//! Never: the thread waits for a node, except for the time of one turn over one link.

use super::super::ConnectionId;
use super::{
    BELL, CarriedLink, HostError, HostRow, HostsShared, HostsState, LISTENER, LeavingConnection,
    LeavingRest, LinkToken, RequestId, WORDS, lock,
};
use crate::control::shell::ControlEvent;
use crate::log::{self, Entry, Kind, LogAccount};
use crate::os::poller::{READY_AT_A_TIME, Ready};
use crate::os::sys::monotonic_ns;
use crate::os::thread;
use crate::transport::late::Lateness;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::HashMap;
use std::io;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// The pause between two rounds over links that send without a pause.
const LATE: Duration = Duration::from_micros(50);
/// The pause between two rounds over links without a descriptor for room in the network.
const AGAIN_NS: u64 = 2_000_000;
/// The pause between two rounds over links that are being left.
const LEAVING_NS: u64 = 2_000_000;
/// The share of `handshake_timeout_ms` after which a stalled rail of a link that is being left is
/// given up, if another rail goes on. The other end has the whole time to take everything.
const LEAVING_STALL_SHARE: u32 = 8;
/// Checks within `host_timeout_ms`; a host that is silent at two of them in a row is gone.
const LOOKS: u64 = 8;
/// Silence for this many checks counts.
const SILENT_LOOKS: u64 = 6;

impl HostsShared {
    /// Runs the thread.
    pub(super) fn run(self: Arc<Self>) {
        let (mut ready, mut late, mut again) = (Vec::new(), Vec::new(), Vec::new());
        let mut again_ns = 0;
        let mut waiting = HashMap::new();
        let (mut look_ns, mut nap) = (0, None);
        loop {
            nap = self.fabric.nap(nap);
            if monotonic_ns() >= again_ns {
                late.append(&mut again);
                again_ns = monotonic_ns() + AGAIN_NS;
            }
            self.send_late(&mut late, &mut waiting, &mut again);
            let next_ns = {
                let mut state = self.lock();
                // The links' last packets must leave before the process goes on without this
                // thread. A refused host has been sent its refusal, as far as its system took that,
                // and may never end its connection; so the thread does not wait for it.
                if self.is_ending.load(Ordering::Acquire)
                    && !state.rows.values().any(HostRow::is_link_that_leaves)
                {
                    return;
                }
                if monotonic_ns() >= look_ns {
                    self.look_for_silence(&mut state);
                    look_ns = monotonic_ns() + self.timeout_ns() / LOOKS;
                }
                let misses_rail = self.late.misses_rail();
                if misses_rail || monotonic_ns() >= state.rails_due_ns {
                    self.connect_rails(&mut state);
                }
                let or_never = |is_so: bool, at_ns: u64| if is_so { at_ns } else { u64::MAX };
                let any = |is_so: fn(&HostRow) -> bool| state.rows.values().any(is_so);
                let look = or_never(!state.links.is_empty(), look_ns);
                let leave = or_never(
                    any(|row| matches!(row, HostRow::Leaving(_))),
                    monotonic_ns() + LEAVING_NS,
                );
                let due = self.strangers_due_ns(&state);
                let listen = state.listens_again_ns.unwrap_or(u64::MAX);
                let deadlines = state.rows.values().map(HostRow::deadline_ns);
                let others = [look, leave, due, listen, state.rails_due_ns];
                deadlines.chain(others).min().unwrap_or(u64::MAX)
            };
            let is_never = next_ns == u64::MAX;
            let mut wait_ns = (!is_never).then(|| next_ns.saturating_sub(monotonic_ns()));
            if !late.is_empty() || nap.is_some() {
                // The poller's unit is the millisecond.
                thread::sleep(if late.is_empty() { nap.unwrap_or(LATE) } else { LATE });
                wait_ns = Some(0);
            } else if !again.is_empty() {
                wait_ns = Some(wait_ns.unwrap_or(AGAIN_NS).min(AGAIN_NS));
            }
            ready.clear();
            if let Err(error) = self.poller.wait(wait_ns, &mut ready) {
                return self.fail(&error);
            }
            for ready in &ready {
                if let Some((token, link)) = waiting.remove_entry(&ConnectionId(ready.tag)) {
                    if let Some(fd) = lock(&link).takes_more() {
                        self.poller.remove(fd);
                    }
                    late.push((token, link));
                }
            }
            self.turn(&ready);
        }
    }

    /// The thread cannot go on: waiting callers get an error, every link ends, and no host can
    /// connect any more.
    #[cold]
    fn fail(&self, error: &io::Error) {
        let why = error.to_string();
        if let Some(listener) = &self.listener {
            // Its descriptor stays; the system refuses new connections.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        {
            let mut state = self.lock();
            state.ended = Some(why.clone());
            state.dials_wait.clear();
            for (id, row) in core::mem::take(&mut state.rows) {
                let dial = match row {
                    HostRow::Dialing(dial) => Some(dial),
                    HostRow::Near(dial, local) => {
                        self.here.give_up(local);
                        Some(dial)
                    }
                    HostRow::Meeting(met) => {
                        if met.wants.is_some() {
                            self.inbox.put_of_host(ControlEvent::RequestGone { id: RequestId(id) });
                        }
                        met.dial
                    }
                    HostRow::Came(_) | HostRow::Leaving(_) => None,
                };
                if let Some(dial) = dial {
                    let ended = HostError::Ended(why.clone());
                    self.dial_failed(&mut state, id, &dial, dial.error(ended));
                }
            }
            for (_, row) in state.links.drain() {
                lock(&row.link).unwatch();
            }
        }
        if log::is_wanted() {
            let (kind, service) = (Kind::Lost, String::new());
            let reason = HostError::Ended(why).to_string();
            let reason = std::format!("all links to other hosts: {reason}");
            let of = LogAccount::Own;
            log::tell(&Entry { kind, user: None, process: None, service, reason, of });
        }
    }

    pub(super) fn turn(self: &Arc<Self>, ready: &[Ready]) {
        let (mut state, mut hears) = (self.lock(), false);
        // If it reports the maximum number of events, the listener's may be among the rest.
        let listens = ready.len() >= READY_AT_A_TIME && state.listens_again_ns.is_none();
        if listens || ready.iter().any(|ready| ready.tag == LISTENER) {
            self.take_connections(&mut state);
        }
        for ready in ready {
            match ready.tag {
                BELL => self.late.bell.silence(),
                LISTENER => {}
                WORDS => hears = true,
                id => self.heard(&mut state, id),
            }
        }
        self.serve_strangers(&mut state);
        // After the bell was silenced: results from here on ring it again.
        self.take_outcomes(&mut state);
        self.take_figures(&mut state);
        if state.listens_again_ns.is_some_and(|again| again <= monotonic_ns()) {
            state.listens_again_ns = None;
            if let Some(listener) = &self.listener {
                let _ = self.poller.want_write(listener, LISTENER, false);
            }
        }
        // An acknowledgement wakes no thread.
        let leaving = state.rows.iter().filter(|row| matches!(row.1, HostRow::Leaving(_)));
        let leaving: Vec<u64> = leaving.map(|row| *row.0).collect();
        for id in leaving {
            self.look(&mut state, id);
        }
        let now = monotonic_ns();
        let late: Vec<u64> =
            state.rows.iter().filter(|row| row.1.deadline_ns() <= now).map(|row| *row.0).collect();
        for id in late {
            self.too_late(&mut state, id);
        }
        drop(state);
        if hears {
            self.hear();
        }
    }

    /// Sends packets that wait for more. Afterwards `late` holds the links to try again soon,
    /// `waiting` those to try when the network takes more, and `again` those to try after a while,
    /// since no descriptor signals room.
    fn send_late(
        &self,
        late: &mut Vec<(LinkToken, CarriedLink)>,
        waiting: &mut HashMap<LinkToken, CarriedLink>,
        again: &mut Vec<(LinkToken, CarriedLink)>,
    ) {
        // A link that is being left is handled elsewhere; nor is it watched here, since its other
        // end could wake this thread again and again.
        waiting.retain(|_, link| {
            let link = lock(link);
            if link.has_ended()
                && let Some(fd) = link.takes_more()
            {
                self.poller.remove(fd);
            }
            !link.has_ended()
        });
        let new = self.late.take();
        if !new.is_empty() {
            let state = self.lock();
            let found = |token: &LinkToken| Some((*token, state.links.get(token)?.link.clone()));
            late.extend(new.iter().filter_map(|number| found(&ConnectionId(*number))));
        }
        late.retain(|(token, link)| {
            let mut carrier = lock(link);
            match carrier.send_late() {
                Lateness::Again => true,
                Lateness::Done => false,
                Lateness::Waits => match carrier.takes_more() {
                    Some(fd) => {
                        let is_watched = self.poller.watch_write(fd, token.0).is_ok();
                        if is_watched {
                            waiting.insert(*token, link.clone());
                        }
                        !is_watched
                    }
                    None => {
                        again.push((*token, link.clone()));
                        false
                    }
                },
            }
        });
    }

    fn timeout_ns(&self) -> u64 {
        u64::from(self.config.host_timeout_ms) * 1_000_000
    }

    /// Handles words beside a fabric.
    fn hear(&self) {
        let Some(words) = self.fabric.words() else { return };
        let mut ready = Vec::new();
        // The thread's own poller finds its errors, too.
        let _ = words.wait(Some(0), &mut ready);
        for ready in ready {
            let link = {
                let state = self.lock();
                state.links.get(&ConnectionId(ready.tag)).map(|row| row.link.clone())
            };
            if let Some(link) = link {
                lock(&link).hear();
            }
        }
    }

    /// Ends the connections to hosts that have owed an answer for too long: their links end like
    /// those with a broken connection.
    fn look_for_silence(&self, state: &mut HostsState) {
        state.links.retain(|_, row| row.is_used());
        // A link with several connections checks each of them separately.
        let limit = Duration::from_nanos(self.timeout_ns() / LOOKS * SILENT_LOOKS);
        for row in state.links.values_mut() {
            let mut link = lock(&row.link);
            link.rest();
            let is_silent = link.look_for_silence(limit);
            // Two checks in a row, since this process itself may have had no processor at one.
            if is_silent && row.was_silent {
                link.break_off();
            }
            row.was_silent = is_silent;
        }
    }
}

impl LeavingConnection {
    /// If it is time to look for stalled rails, the limit after which a rail has stalled. Their
    /// packets are then sent over another rail within the time that is left.
    pub(super) fn looks_for_stalls(&mut self, timeout_ms: u32) -> Option<Duration> {
        let (now_ns, limit) = (monotonic_ns(), Duration::from_millis(timeout_ms.into()));
        let limit = limit / LEAVING_STALL_SHARE;
        (now_ns >= self.look_ns).then(|| {
            self.look_ns = now_ns + limit.as_nanos() as u64 / 4;
            limit
        })
    }
}

impl HostRow {
    /// The identity of a client that has asked for figures over it.
    pub(super) fn figures_of(&self) -> Option<&str> {
        match self {
            Self::Leaving(leaving) if leaving.tells => leaving.identity.as_deref(),
            _ => None,
        }
    }

    fn is_link_that_leaves(&self) -> bool {
        matches!(self, Self::Leaving(LeavingConnection { what: LeavingRest::Link(_), .. }))
    }

    fn deadline_ns(&self) -> u64 {
        match self {
            Self::Dialing(dial) => dial.until_ns,
            // The connecting part keeps the deadline.
            Self::Near(..) => u64::MAX,
            Self::Came(came) => came.deadline_ns,
            Self::Meeting(met) => met.deadline_ns,
            Self::Leaving(leaving) => leaving.deadline_ns,
        }
    }
}
