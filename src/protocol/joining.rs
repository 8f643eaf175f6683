//! Places that a peer takes with words alone.
//!
//! A greeting admits a peer that wants to grow a sender: it has a place, memory and keys from then
//! on, and it pays for them with a ring that comes later, or never. It is *half-joined* meanwhile.
//! Two limits keep words from holding many places: a user has at most [`HALF_JOINED_MAX`]
//! half-joined peers at an end point, and further peers of that user wait for their turn; and a
//! peer that takes longer than [`GRACE_NS`] gives way if there is no other place. The process's own
//! user is not counted, since it controls the process anyway.
//!
//! ```text
//!   a request ---> waiting ---admitted---> half-joined ---its link is there---> joined
//!                     |                        |
//!                     +--- it went away -------+--- it went away, or gave way
//! ```
//! Never: a request is both waiting and half-joined; a request of a user overtakes an earlier one
//! of that user at the same end point.

use super::manager::OfferId;
use crate::control::{Peer, PeerUser, RequestId};
use std::collections::{HashMap, HashSet, VecDeque};
use std::vec::Vec;

/// Half-joined peers of one user at an end point. Two: while one fills its memory, the other's words
/// are on their way.
const HALF_JOINED_MAX: u32 = 2;
/// Requests of one user that wait for their turn at an end point; more are refused. Each has up to 4
/// KiB of greeting.
const WAITING_MAX: usize = 256;
/// Nanoseconds that a half-joined peer has to itself: an honest one needs a thousandth of that, and a
/// busy machine may make it wait.
const GRACE_NS: u64 = 1_000_000_000;

/// A request that has yet to be decided.
pub(super) struct Asking {
    pub id: RequestId,
    pub peer: Peer,
    pub greeting: Vec<u8>,
}

struct HalfJoined {
    offer: OfferId,
    user: PeerUser,
    since_ns: u64,
}

/// The requests of one user at one end point, in the order of arrival.
struct JoinQueue {
    offer: OfferId,
    user: PeerUser,
    asking: VecDeque<Asking>,
}

/// The half-joined peers, and the waiting ones.
pub(super) struct Joining {
    /// The process's own user, where it is not the one that it has at the moment of asking.
    own: Option<PeerUser>,
    half_joined: HashMap<RequestId, HalfJoined>,
    counts: HashMap<(OfferId, PeerUser), u32>,
    /// No queue is empty. Queues of users without a half-joined peer come first.
    queues: VecDeque<JoinQueue>,
    /// Requests that gave way, and may yet become links.
    displaced: HashSet<RequestId>,
}

impl Default for Joining {
    fn default() -> Self {
        Self::of(None)
    }
}

impl Joining {
    fn of(own: Option<PeerUser>) -> Self {
        let (half_joined, counts) = (HashMap::new(), HashMap::new());
        Self { own, half_joined, counts, queues: VecDeque::new(), displaced: HashSet::new() }
    }

    fn is_own(&self, user: &PeerUser) -> bool {
        match &self.own {
            Some(own) => user == own,
            None => *user == PeerUser::Here(Some(rustix::process::geteuid().as_raw())),
        }
    }

    fn count(&self, offer: OfferId, user: &PeerUser) -> u32 {
        self.counts.get(&(offer, user.clone())).copied().unwrap_or(0)
    }

    /// Whether this user may have one more half-joined peer.
    pub fn has_room(&self, offer: OfferId, user: &PeerUser) -> bool {
        self.is_own(user) || self.count(offer, user) < HALF_JOINED_MAX
    }

    /// Whether any peer is half-joined at an end point: its place may become free.
    pub fn is_anybody_half(&self, offer: OfferId) -> bool {
        self.counts.keys().any(|(of, _)| *of == offer)
    }

    /// A request was admitted.
    pub fn enter(&mut self, id: RequestId, offer: OfferId, user: PeerUser, now_ns: u64) {
        let half = HalfJoined { offer, user: user.clone(), since_ns: now_ns };
        self.half_joined.insert(id, half);
        *self.counts.entry((offer, user.clone())).or_default() += 1;
        // Other users' turn comes first now.
        let is_its = |queue: &JoinQueue| queue.offer == offer && queue.user == user;
        if let Some(queue) =
            self.queues.iter().position(is_its).and_then(|at| self.queues.remove(at))
        {
            self.queues.push_back(queue);
        }
    }

    /// The request is no longer half-joined; returns its end point.
    pub fn exit(&mut self, id: RequestId) -> Option<OfferId> {
        let HalfJoined { offer, user, .. } = self.half_joined.remove(&id)?;
        let key = (offer, user);
        if let Some(count) = self.counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key);
            }
        }
        Some(offer)
    }

    /// Whether earlier requests of a user's wait at an end point.
    pub fn is_waiting(&self, offer: OfferId, user: &PeerUser) -> bool {
        self.queues.iter().any(|queue| queue.offer == offer && queue.user == *user)
    }

    /// Whether any request waits.
    pub fn is_anybody_waiting(&self) -> bool {
        !self.queues.is_empty()
    }

    /// A request waits for its turn. Returned: as many of its user wait as may.
    pub fn wait(&mut self, asking: Asking, offer: OfferId) -> Result<(), Asking> {
        let user = asking.peer.user();
        let is_its = |queue: &&mut JoinQueue| queue.offer == offer && queue.user == user;
        if let Some(queue) = self.queues.iter_mut().find(is_its) {
            if queue.asking.len() >= WAITING_MAX {
                return Err(asking);
            }
            queue.asking.push_back(asking);
            return Ok(());
        }
        let queue = JoinQueue { offer, user, asking: VecDeque::from([asking]) };
        let has_half = |queue: &JoinQueue| self.count(queue.offer, &queue.user) > 0;
        let at = match has_half(&queue) {
            true => self.queues.len(),
            false => self.queues.iter().position(has_half).unwrap_or(self.queues.len()),
        };
        self.queues.insert(at, queue);
        Ok(())
    }

    /// A waiting request went away. `false`: it did not wait.
    pub fn went_away(&mut self, id: RequestId) -> bool {
        for at in 0..self.queues.len() {
            let asking = &mut self.queues[at].asking;
            if let Some(found) = asking.iter().position(|asking| asking.id == id) {
                asking.remove(found);
                if asking.is_empty() {
                    self.queues.remove(at);
                }
                return true;
            }
        }
        false
    }

    /// The next request whose turn may have come, in a walk over all waiting requests; `before` is
    /// 0 at the beginning. Call [`enter`](Self::enter) or [`put_back`](Self::put_back) next, or
    /// nothing if the request was refused.
    pub fn next(&mut self, before: &mut usize) -> Option<(OfferId, Asking)> {
        while let Some(queue) = self.queues.get(*before) {
            let offer = queue.offer;
            if self.has_room(offer, &queue.user) {
                let queue = &mut self.queues[*before];
                let asking = queue.asking.pop_front()?;
                if queue.asking.is_empty() {
                    self.queues.remove(*before);
                }
                return Some((offer, asking));
            }
            *before += 1;
        }
        None
    }

    /// Lets the request wait on, at its former position.
    pub fn put_back(&mut self, before: &mut usize, offer: OfferId, asking: Asking) {
        let user = asking.peer.user();
        match self.queues.get_mut(*before) {
            Some(queue) if queue.offer == offer && queue.user == user => {
                queue.asking.push_front(asking);
            }
            _ => {
                let queue = JoinQueue { offer, user, asking: VecDeque::from([asking]) };
                self.queues.insert(*before, queue);
            }
        }
        *before += 1;
    }

    /// The half-joined peer that gives way to a peer of `user` if an end point has no place: the
    /// oldest of another user whose time has passed. It is no longer half-joined.
    pub fn give_way(&mut self, offer: OfferId, user: &PeerUser, now_ns: u64) -> Option<RequestId> {
        let may = |half: &HalfJoined| {
            half.offer == offer
                && half.user != *user
                && !self.is_own(&half.user)
                && now_ns.saturating_sub(half.since_ns) >= GRACE_NS
        };
        let slow = self.half_joined.iter().filter(|(_, half)| may(half));
        let id = slow.min_by_key(|(_, half)| half.since_ns).map(|(id, _)| *id)?;
        self.exit(id);
        self.displaced.insert(id);
        Some(id)
    }

    /// Whether a request gave way; ask once, when it has become a link or has gone.
    pub fn has_given_way(&mut self, id: RequestId) -> bool {
        self.displaced.remove(&id)
    }

    /// Drops an end point; returns the requests that waited for it.
    pub fn withdraw(&mut self, offer: OfferId) -> Vec<RequestId> {
        let (gone, kept) = self.queues.drain(..).partition(|queue| queue.offer == offer);
        self.queues = kept;
        let gone: VecDeque<JoinQueue> = gone;
        gone.into_iter().flat_map(|queue| queue.asking).map(|asking| asking.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::NodeId;

    const OWN: u32 = 7;

    fn asking(id: u64, user: u32) -> Asking {
        let (gid, pid, process) = (None, None, None);
        let (is_proved, service) = (true, std::string::String::new());
        let uid = Some(user);
        let peer =
            Peer { node: NodeId(id), is_proved, uid, gid, pid, process, service, host: None };
        Asking { id: RequestId(id), peer, greeting: Vec::new() }
    }

    /// A manager whose end points have this many places, all taken by half-joined peers.
    struct Doors {
        joining: Joining,
        places: Vec<usize>,
        now_ns: u64,
        /// Requests in the order of admission.
        admitted: Vec<u64>,
    }

    impl Doors {
        fn new(places: &[usize]) -> Self {
            let joining = Joining::of(Some(PeerUser::Here(Some(OWN))));
            Self { joining, places: places.to_vec(), now_ns: 0, admitted: Vec::new() }
        }

        fn taken(&self, door: usize) -> usize {
            let at = OfferId::of(door);
            self.joining.half_joined.values().filter(|half| half.offer == at).count()
        }

        fn admit(&mut self, offer: OfferId, asking: Asking) -> Option<Asking> {
            let user = asking.peer.user();
            let door = (0..self.places.len()).find(|door| OfferId::of(*door) == offer).unwrap();
            if self.taken(door) >= self.places[door] {
                self.joining.give_way(offer, &user, self.now_ns);
            }
            if self.taken(door) >= self.places[door] {
                return Some(asking);
            }
            self.joining.enter(asking.id, offer, user, self.now_ns);
            self.admitted.push(asking.id.0);
            None
        }

        fn ask(&mut self, door: usize, id: u64, user: u32) {
            let (offer, asking) = (OfferId::of(door), asking(id, user));
            let user = asking.peer.user();
            let is_due =
                self.joining.has_room(offer, &user) && !self.joining.is_waiting(offer, &user);
            let waits = if is_due { self.admit(offer, asking) } else { Some(asking) };
            if let Some(asking) = waits {
                assert!(self.joining.wait(asking, offer).is_ok());
            }
        }

        /// A request became a connection, or went away.
        fn exit(&mut self, id: u64) {
            if self.joining.exit(RequestId(id)).is_none() {
                let id = RequestId(id);
                assert!(self.joining.went_away(id) || self.joining.has_given_way(id));
            }
            let mut before = 0;
            while let Some((offer, asking)) = self.joining.next(&mut before) {
                if let Some(asking) = self.admit(offer, asking) {
                    self.joining.put_back(&mut before, offer, asking);
                }
            }
        }
    }

    #[test]
    fn all_of_a_user_are_asked_in_the_order_in_which_they_came_and_two_at_a_time() {
        let mut doors = Doors::new(&[64]);
        (0..64).for_each(|id| doors.ask(0, id, 1));
        for id in 0..64 {
            assert_eq!(doors.taken(0), 2.min(64 - id as usize));
            doors.exit(id);
        }
        assert_eq!(doors.admitted, (0..64).collect::<Vec<_>>());
        assert!(!doors.joining.is_anybody_waiting() && doors.joining.counts.is_empty());
        // The process's own user has no limit.
        (100..164).for_each(|id| doors.ask(0, id, OWN));
        assert_eq!(doors.taken(0), 64);
    }

    #[test]
    fn words_of_one_user_hold_two_places_and_those_of_others_come_first() {
        let mut doors = Doors::new(&[4]);
        (0..100).for_each(|id| doors.ask(0, id, 1));
        (100..104).for_each(|id| doors.ask(0, id, 2));
        assert_eq!(doors.admitted, [0, 1, 100, 101]);
        doors.ask(0, 200, 3);
        // The user without a half-joined peer has the next place; then each in turn.
        for (gone, next) in [(0, 200), (100, 2), (101, 102), (2, 3), (102, 103)] {
            doors.exit(gone);
            assert_eq!(doors.admitted.last(), Some(&next), "after {gone}");
        }
    }

    #[test]
    fn one_that_is_slow_gives_way_where_there_is_one_place() {
        let mut doors = Doors::new(&[1, 1]);
        doors.ask(0, 1, 1);
        doors.ask(1, 2, 1);
        doors.now_ns = GRACE_NS - 1;
        doors.ask(0, 3, 2);
        assert_eq!(doors.admitted, [1, 2]);
        doors.now_ns = GRACE_NS;
        // Any change elsewhere lets those that wait be asked again; not for its own user.
        doors.ask(1, 4, 1);
        doors.exit(4);
        assert_eq!(doors.admitted, [1, 2, 3]);
        assert!(doors.joining.has_given_way(RequestId(1)));
        assert!(!doors.joining.has_given_way(RequestId(1)));
        doors.ask(1, 5, 3);
        assert_eq!(doors.admitted, [1, 2, 3, 5]);
        // A request that has given way may go away, too.
        doors.exit(2);
        assert!(doors.joining.displaced.is_empty());
    }

    #[test]
    fn what_waits_is_bounded_and_goes_with_its_end_point() {
        let mut doors = Doors::new(&[1, 1]);
        let waiting = WAITING_MAX as u64;
        (0..1 + waiting).for_each(|id| doors.ask(0, id, 1));
        assert!(doors.joining.wait(asking(9_999, 1), OfferId::of(0)).is_err());
        doors.ask(0, 10_000, 2);
        doors.ask(1, 10_001, 2);
        doors.ask(1, 10_002, 2);
        assert_eq!(doors.joining.withdraw(OfferId::of(0)).len() as u64, waiting + 1);
        doors.exit(10_001);
        assert_eq!(doors.admitted.last(), Some(&10_002));
        assert!(!doors.joining.is_anybody_waiting());
    }
}
