//! A node's links to other hosts: when it looks at them, and carrying their packets between the rings
//! and the data path ([`Transport`](crate::transport::Transport)).

use super::Node;
use crate::os::sys;
use crate::transport::Moved;
use std::vec::Vec;

/// Links to other hosts that one turn carries data for.
const HOSTS_PER_TURN: usize = 16;

/// The links to other hosts, whose packets the node carries.
#[derive(Debug, Default)]
pub(super) struct HostLinks {
    links: Vec<u32>,
    /// The one that comes first in the next look.
    next: usize,
    times: HostTimes,
}

impl HostLinks {
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub fn add(&mut self, link: u32) {
        self.links.push(link);
    }

    pub fn remove(&mut self, link: u32) {
        self.links.retain(|kept| *kept != link);
    }

    /// The link that is the `at`-th in this look.
    fn place(&self, at: usize) -> usize {
        (self.next + at) % self.links.len()
    }
}

/// The times of looks at other hosts: a look is a system call, and a turn without one takes a
/// hundredth of its time.
#[derive(Debug, Default)]
struct HostTimes {
    /// The time of the last transfer to or from another host.
    carried_ns: u64,
    looked_ns: u64,
    /// The link of this host that packets were taken from last, and the lines taken from it then.
    here: Option<(u32, u64)>,
}

/// For this long after a transfer each turn looks for more,
const HOSTS_BUSY_NS: u64 = 200_000;
/// .. but while processes of this host send, only at this interval, which costs them a twentieth of
/// the time; `hamlyn perf remote` measures it.
const HOSTS_BESIDE_NS: u64 = 10_000;
/// The interval between looks otherwise.
const HOSTS_LOOK_NS: u64 = 20_000;

/// The consequence of the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostLook {
    is_due: bool,
    /// The next turn has to ask again.
    again_at_once: bool,
}

impl HostTimes {
    /// Whether to look now; `here` is the last source of packets of this host.
    fn look(&mut self, now_ns: u64, here: Option<(u32, u64)>) -> HostLook {
        let is_busy = now_ns.saturating_sub(self.carried_ns) < HOSTS_BUSY_NS;
        let is_beside = here.is_some() && here != self.here;
        let pause_ns = match (is_busy, is_beside) {
            (true, false) => 0,
            (true, true) => HOSTS_BESIDE_NS,
            (false, _) => HOSTS_LOOK_NS,
        };
        let is_due = now_ns.saturating_sub(self.looked_ns) >= pause_ns;
        if is_due {
            (self.looked_ns, self.here) = (now_ns, here);
        }
        HostLook { is_due, again_at_once: is_busy && !is_beside }
    }
}

impl Node {
    /// The next turn carries data of this link, if its other end is on another host.
    #[cold]
    pub(super) fn look_at_host_soon(&mut self, index: u32) {
        if self.hosts.links.contains(&index) {
            self.turns.call_attention();
            self.hosts.times.looked_ns = 0;
        }
    }

    /// Carries data between this node and other hosts, if a look is due. Returns whether the next
    /// turn has to check that, too.
    #[cold]
    pub(super) fn look_at_hosts(&mut self) -> bool {
        let now_ns = sys::monotonic_ns();
        let latest = self.turns.latest();
        let link = self.links.get(latest as usize).and_then(Option::as_ref);
        let of_this_host = link.filter(|link| link.peer.host.is_none());
        let here = of_this_host.map(|link| (latest, link.rx.lines_taken()));
        let look = self.hosts.times.look(now_ns, here);
        if !look.is_due {
            return look.again_at_once;
        }
        self.carry(|node, index, moved| {
            if moved.any {
                node.hosts.times.carried_ns = now_ns;
                let awaits_room =
                    matches!(&node.links[index as usize], Some(link) if link.awaits_room);
                node.wakes_of_waiters += u64::from(awaits_room);
                node.turns.promote(index);
            }
            moved.any
        });
        look.again_at_once
    }

    /// Before a sleep: carries data between this node and other hosts; a full socket wakes the node
    /// when it takes more. Returns whether data was carried.
    pub(super) fn arm_hosts(&mut self) -> bool {
        self.carry(|node, index, moved| {
            let mut is_awake = false;
            if let Some(Some(link)) = node.links.get(index as usize)
                && let Some(host) = link.rx.host()
                && !moved.has_ended
            {
                let mut host = crate::transport::lock(&**host);
                let _ = node.poller.want_write(host.as_fd(), u64::from(index), moved.waits);
                is_awake = !host.may_sleep();
            }
            if moved.any || is_awake {
                // Arrivals on an unwatched link must be seen.
                node.turns.promote(index);
            }
            moved.any || is_awake
        })
    }

    /// Moves what each link has, until `HOSTS_PER_TURN` of them counted, as `counts` says; the next
    /// look goes on behind these. Returns whether any did.
    fn carry(&mut self, mut counts: impl FnMut(&mut Self, u32, Moved) -> bool) -> bool {
        let mut counted = 0;
        for at in 0..self.hosts.links.len() {
            let index = self.hosts.links[self.hosts.place(at)];
            let link = self.links.get(index as usize).and_then(Option::as_ref);
            let Some(moved) = link.and_then(|link| link.rx.turn_of_host()) else { continue };
            if counts(self, index, moved) {
                counted += 1;
                if counted == HOSTS_PER_TURN {
                    self.hosts.next = self.hosts.place(at + 1);
                    break;
                }
            }
        }
        counted > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of looks at another host in a millisecond of turns of 100 ns.
    fn looks(carried: bool, here: impl Fn(u64) -> Option<(u32, u64)>) -> (u32, u32) {
        let start_ns = 1_000_000_000;
        let mut times = HostTimes::default();
        let (mut looks, mut again) = (0, 0);
        for turn in 0..10_000 {
            let now_ns = start_ns + turn * 100;
            if carried {
                times.carried_ns = now_ns;
            }
            let look = times.look(now_ns, here(turn));
            looks += u32::from(look.is_due);
            again += u32::from(look.again_at_once);
        }
        (looks, again)
    }

    #[test]
    fn a_busy_host_is_looked_at_in_each_turn_and_beside_messages_of_this_host_each_ten_us() {
        let nobody_here = |_| None;
        let one_that_rests = |_| Some((3, 17));
        let one_that_sends = |turn| Some((3, turn));
        assert_eq!(looks(true, nobody_here), (10_000, 10_000));
        assert_eq!(looks(true, one_that_rests), (10_000, 9_999), "but for the first time");
        assert_eq!(looks(true, one_that_sends), (100, 0));
        // A host that is silent.
        assert_eq!(looks(false, nobody_here), (50, 0));
        assert_eq!(looks(false, one_that_sends), (50, 0));
    }
}
