//! The root of a group, for its program.

use super::root::{GroupOffer, MemberEntry, Root, RootState, down_metadata, lock};
use super::{DATA, DOWN_BYTES, GroupConfig, GroupError, NO_ROUND, PART_ALIGN, RELEASE, misuse};
use crate::interface::{AreaId, LinkId, Mode, SlotConfig};
use crate::node::{Look, Node, NodeGuard, WaitError};
use crate::protocol::deadline::Deadline;
use crate::protocol::ends::offered;
use crate::protocol::manager::{Guarded, OfferId, Offering, Protocols, set_up};
use crate::protocol::outgoing::OutgoingMessage;
use crate::protocol::{Connection, EndPoint, GrowError, Kind, Manager, Seed, SendError};
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// The root of a group. `Send`.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-group-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::Access;
/// use hamlyn::protocol::{Group, GroupConfig, GroupMember, Manager};
/// use std::time::Duration;
///
/// let limit = Some(Duration::from_secs(10));
/// let manager = Manager::with_config(config.clone())?;
/// // Two members, each of which sends a byte and gets one.
/// let mut group = Group::new(&manager, GroupConfig { scatter_bytes: 1, ..GroupConfig::new(2, 1) })?;
/// group.serve("sum", Access::SameUser)?;
/// std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
///     for part in [3, 4] {
///         let config = config.clone();
///         // Usually processes.
///         scope.spawn(move || {
///             let manager = Manager::with_config(config).unwrap();
///             let mut member = GroupMember::connect(&manager, "sum", 1, limit).unwrap();
///             member.send(&[part], limit).unwrap();
///             assert_eq!(member.receive(limit).unwrap(), [7]);
///         });
///     }
///     let sum = group.reduce(limit, 0, |sum, _member, part| sum + part[0])?;
///     group.broadcast(&[sum], limit)?;
///     Ok(())
/// })?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Group {
    manager: Manager,
    offer: OfferId,
    /// Offers of one place each.
    offers: HashMap<u32, OfferId>,
    root: Root,
    /// Members that have arrived at a barrier and have not been released.
    releasing: Option<Vec<Addressee>>,
}

/// A member to send to: any peer that has the place, or only the peer that had it when it came to a
/// barrier.
type Addressee = (u32, Option<LinkId>);

/// The parts of a round that have arrived. The manager's node is locked while this lives, so no
/// packet arrives; the bytes stay stable after that, too, until [`Group::next_round`].
pub struct Parts<'a> {
    node: NodeGuard<'a, Protocols>,
    area: AreaId,
    stride: usize,
    lengths: Vec<Option<usize>>,
}

impl Parts<'_> {
    /// The part of one member, if it has arrived. Begins at a multiple of 64 bytes.
    pub fn part(&self, member: u32) -> Option<&[u8]> {
        let length = (*self.lengths.get(member as usize)?)?;
        let start = member as usize * self.stride;
        self.node.area(self.area).ok()?.get(start..start + length)
    }

    /// Number and part of each member whose part has arrived.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..self.lengths.len() as u32).filter_map(|member| Some((member, self.part(member)?)))
    }

    /// The number of parts that have arrived.
    pub fn count(&self) -> usize {
        self.lengths.iter().flatten().count()
    }
}

/// The reasons to end a look of the root.
enum LookStop {
    Done,
    Lost(GroupError),
    Expel(LinkId, String),
}

impl Group {
    /// A group without members.
    pub fn new(manager: &Manager, config: GroupConfig) -> Result<Self, GrowError> {
        let members = config.members;
        let stride = config
            .part_bytes
            .checked_next_multiple_of(PART_ALIGN)
            .map(|stride| stride.max(PART_ALIGN));
        let bytes = stride.and_then(|stride| stride.checked_mul(members as usize));
        let (Some(stride), Some(bytes), 1..) = (stride, bytes, members) else {
            let part = config.part_bytes;
            return Err(set_up(format!("no group has {members} members with {part} bytes each")));
        };
        let shared = {
            let mut node = manager.lock();
            let mut areas = Vec::new();
            let mut queues = Vec::new();
            let made = (|| {
                areas.push(node.message_area(bytes).map_err(set_up)?);
                areas.push(node.message_area(members as usize * 8).map_err(set_up)?);
                for _ in 0..2 {
                    queues.push(node.notification_queue(members).map_err(set_up)?);
                }
                let consumer = node.take_consumer(queues[0]).map_err(set_up)?;
                let slot = SlotConfig::new(areas[0], queues[0]).metadata(members);
                let slot = node.slot(slot.mode(Mode::ParanoidOneShot)).map_err(set_up)?;
                Ok((slot, consumer))
            })();
            match made {
                Ok((slot, consumer)) => RootState {
                    stride,
                    area: areas[0],
                    queue: queues[0],
                    slot,
                    words: areas[1],
                    word_queue: queues[1],
                    consumer,
                    waiting: Vec::new(),
                    bad: Vec::new(),
                    round: NO_ROUND + 1,
                    arrived: 0,
                    wanted: members,
                    late: 0,
                    places: (0..members).map(|_| MemberEntry::default()).collect(),
                    owing: Vec::new(),
                    requests: HashMap::new(),
                    helpers: 0,
                    config,
                },
                Err(e) => {
                    for queue in queues {
                        let _ = node.remove_queue(queue);
                    }
                    for area in areas {
                        let _ = node.remove_area(area);
                    }
                    return Err(e);
                }
            }
        };
        let root = Arc::new(Mutex::new(shared));
        let offer = GroupOffer { root: root.clone(), number: None };
        let offer = manager.offer(Kind::GROUP, Offering::Other(Guarded::new(offer)));
        let manager = manager.clone();
        Ok(Self { manager, offer, offers: HashMap::new(), root, releasing: None })
    }

    offered!(
        "a [`GroupMember`](crate::protocol::GroupMember) in any free place, or a \
        [`GroupHelper`](crate::protocol::GroupHelper),"
    );

    /// The connections of members and helpers, each with the identity of the other end and the path
    /// of its messages ([`Connection::explain`]).
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        let is_place = |of| self.offers.values().any(|place| *place == of);
        self.manager.connections_of(|of| of == self.offer || is_place(of))
    }

    /// Bytes from which the member of one place can be grown; and another one there, when that one
    /// is lost.
    pub fn seed_of(&mut self, member: u32) -> Result<Seed, GroupError> {
        let members = self.members();
        if member >= members {
            return Err(misuse(format!("the group has members 0 to {}, no {member}", members - 1)));
        }
        let (manager, root) = (&self.manager, &self.root);
        let offer = *self.offers.entry(member).or_insert_with(|| {
            let offer = GroupOffer { root: root.clone(), number: Some(member) };
            manager.offer(Kind::GROUP, Offering::Other(Guarded::new(offer)))
        });
        manager.seed(offer).map_err(misuse)
    }

    /// Places of the group.
    pub fn members(&self) -> u32 {
        lock(&self.root).config.members
    }

    /// Members that have a connection now.
    pub fn joined(&self) -> u32 {
        lock(&self.root).places.iter().filter(|place| place.connection.is_some()).count() as u32
    }

    /// Helpers that have a connection now.
    pub fn helpers(&self) -> usize {
        lock(&self.root).helpers
    }

    /// The connection of a member, while it has one.
    pub fn connection(&self, member: u32) -> Option<Arc<Connection>> {
        lock(&self.root).places.get(member as usize)?.connection.clone()
    }

    /// The number of the round, from 1 on.
    pub fn round(&self) -> u64 {
        lock(&self.root).round
    }

    /// Parts that came after the end of their round, and were dropped.
    pub fn late_parts(&self) -> u64 {
        lock(&self.root).late
    }

    /// Members whose part of this round has arrived, as of the last wait.
    pub fn arrived(&self) -> impl Iterator<Item = u32> {
        let shared = lock(&self.root);
        let places = shared.places.iter().zip(0..);
        let arrived: Vec<u32> =
            places.filter(|(place, _)| place.arrived.is_some()).map(|(_, member)| member).collect();
        arrived.into_iter()
    }

    /// Waits at most `timeout` until the part of every member has arrived. The parts are stable
    /// until [`next_round`](Self::next_round).
    pub fn gather(&mut self, timeout: Option<Duration>) -> Result<Parts<'_>, GroupError> {
        let members = self.members();
        self.wait_for(members, timeout)
    }

    /// Waits at most `timeout` until the parts of any `k` members have arrived. A lost member is no
    /// error while `k` can still be reached.
    pub fn wait_for(&mut self, k: u32, timeout: Option<Duration>) -> Result<Parts<'_>, GroupError> {
        self.wait(k, timeout)?;
        Ok(self.parts())
    }

    /// Whether as many parts as are [wanted](Self::set_wanted) have arrived, by now or in one turn.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-try-gather-{}", std::process::id()));
    /// use hamlyn::protocol::{Group, GroupConfig, GroupMember, Manager, Parts};
    /// use std::time::{Duration, Instant};
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let mut group = Group::new(&manager, GroupConfig::new(2, 64))?;
    /// let other = Manager::with_config(config)?;
    /// let mut member = GroupMember::grow(&other, &group.seed_of(1)?, 64, limit)?;
    /// assert_eq!((member.number(), member.members(), member.part_bytes()), (1, 2, 64));
    /// let begun = Instant::now();
    /// while !member.try_send(b"mine")? {
    ///     other.poll()?; // The round begins when the root's ticket has come.
    ///     assert!(begun.elapsed() < Duration::from_secs(10));
    /// }
    /// member.flush(limit)?; // Only after `GroupError::CutOff`.
    /// group.set_wanted(1);
    /// manager.wait_any(&[&group], limit)?;
    /// assert!(group.try_gather()?);
    /// let parts: Parts = group.parts();
    /// assert_eq!((parts.count(), parts.part(0), parts.part(1)), (1, None, Some(&b"mine"[..])));
    /// assert_eq!(parts.iter().next(), Some((1, &b"mine"[..])));
    /// drop(parts);
    /// assert!(group.arrived().eq([1]) && group.connection(0).is_none());
    /// assert_eq!((group.members(), group.joined(), group.helpers()), (2, 1, 0));
    /// assert_eq!((group.round(), member.round(), group.late_parts()), (1, 1, 0));
    /// assert_eq!(group.connections()[0].link(), group.connection(1).expect("it has joined").link());
    /// group.stop_serving(); // No more members join.
    /// println!("{}", member.explain());
    /// assert!(member.try_receive()?.is_none() && member.connection().ended().is_none());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_gather(&mut self) -> Result<bool, GroupError> {
        let wanted = lock(&self.root).wanted;
        match self.wait(wanted, Some(Duration::ZERO)) {
            Err(GroupError::TimedOut { .. }) => Ok(false),
            waited => waited.map(|()| true),
        }
    }

    /// The parts that have arrived, without waiting.
    pub fn parts(&self) -> Parts<'_> {
        let node = self.manager.shared.lock();
        let shared = lock(&self.root);
        Parts {
            node,
            area: shared.area,
            stride: shared.stride,
            lengths: shared.places.iter().map(|place| place.arrived).collect(),
        }
    }

    /// [`gather`](Self::gather), then folds all parts into one value, in the order of the members.
    pub fn reduce<A>(
        &mut self,
        timeout: Option<Duration>,
        init: A,
        mut add: impl FnMut(A, u32, &[u8]) -> A,
    ) -> Result<A, GroupError> {
        let parts = self.gather(timeout)?;
        Ok(parts.iter().fold(init, |sum, (member, part)| add(sum, member, part)))
    }

    fn wait(&mut self, k: u32, timeout: Option<Duration>) -> Result<(), GroupError> {
        let members = self.members();
        if k > members {
            return Err(misuse(format!("{k} parts of a group of {members} were to be waited for")));
        }
        let deadline = Deadline::new(timeout);
        loop {
            let stop = self.manager.shared.wait_until(deadline.left(), |node, _| {
                let mut shared = lock(&self.root);
                if let Some((link, why)) = shared.settle(node) {
                    return Look::Found(LookStop::Expel(link, why));
                }
                let room = shared.drive(node);
                if shared.arrived >= k {
                    return Look::Found(LookStop::Done);
                }
                match shared.lost(k) {
                    Some(error) => Look::Found(LookStop::Lost(error)),
                    None => room.map_or(Look::Nothing, Look::Room),
                }
            });
            match stop {
                Ok(LookStop::Done) => return Ok(()),
                Ok(LookStop::Lost(error)) => return Err(error),
                Ok(LookStop::Expel(link, why)) => self.manager.expel(link, &why),
                Err(waited) => return Err(self.waited(waited, k)),
            }
        }
    }

    fn waited(&self, waited: WaitError, wanted: u32) -> GroupError {
        match waited {
            WaitError::TimedOut => {
                let shared = lock(&self.root);
                GroupError::TimedOut { done: shared.arrived, wanted, missing: shared.missing() }
            }
            other => GroupError::from(other),
        }
    }

    /// Ends the round: the bytes of its parts may change from now on, and its members get the
    /// tickets for the next. A part that comes later is dropped.
    pub fn next_round(&mut self) {
        let mut node = self.manager.shared.lock();
        let mut shared = lock(&self.root);
        // Parts that have come by now are in time, even if the call did not wait for them.
        shared.settle_all(&mut node);
        shared.next_round(&mut node, false);
    }

    /// Sets how many parts make this group ready, for [`Manager::wait_any`]; all of them by
    /// default.
    pub fn set_wanted(&mut self, k: u32) {
        lock(&self.root).wanted = k;
    }

    /// Sends each member the bytes that `part` gives for it. Waits at most `timeout` for each to
    /// have received its previous message, and for members that have yet to join. The error for a
    /// lost member comes when all others have been served.
    pub fn scatter<'a>(
        &mut self,
        timeout: Option<Duration>,
        part: impl Fn(u32) -> &'a [u8],
    ) -> Result<(), GroupError> {
        let all: Vec<u32> = (0..self.members()).collect();
        self.scatter_to(&all, timeout, part)
    }

    /// [`scatter`](Self::scatter) to these members alone: after [`GroupError::TimedOut`], to its
    /// `missing` ones.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-scatter-{}", std::process::id()));
    /// use hamlyn::protocol::{Group, GroupConfig, GroupError, GroupMember, Manager};
    /// use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let mut group = Group::new(&manager, GroupConfig::new(2, 64))?;
    /// let other = Manager::with_config(config)?;
    /// # other.start_progress()?;
    /// let mut first = GroupMember::grow(&other, &group.seed_of(0)?, 64, limit)?;
    /// let part = |member| [&b"for 0"[..], b"for 1"][member as usize];
    /// let missing = match group.scatter(Some(Duration::from_millis(100)), part) {
    ///     Err(GroupError::TimedOut { missing, .. }) => missing,
    ///     done => panic!("nobody has joined in the second place: {done:?}"),
    /// };
    /// # assert!(missing.contains(&1));
    /// let mut second = GroupMember::grow(&other, &group.seed_of(1)?, 64, limit)?;
    /// group.scatter_to(&missing, limit, part)?;
    /// group.flush(limit)?; // Long ones may have been cut off, as they are by a limit of 0.
    /// assert_eq!((first.receive(limit)?, second.receive(limit)?), (b"for 0".into(), b"for 1".into()));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scatter_to<'a>(
        &mut self,
        members: &[u32],
        timeout: Option<Duration>,
        part: impl Fn(u32) -> &'a [u8],
    ) -> Result<(), GroupError> {
        let (count, allowed) = (self.members(), lock(&self.root).config.scatter_bytes);
        if let Some(member) = members.iter().find(|member| **member >= count) {
            return Err(misuse(format!("the group has members 0 to {}, no {member}", count - 1)));
        }
        let mut seen = HashSet::with_capacity(members.len());
        if let Some(member) = members.iter().find(|member| !seen.insert(**member)) {
            return Err(misuse(format!("member {member} stands there twice")));
        }
        let lengths = members.iter().map(|member| part(*member).len());
        if let Some(length) = lengths.max().filter(|length| *length > allowed) {
            return Err(GroupError::Length { length, allowed });
        }
        let to: Vec<Addressee> = members.iter().map(|member| (*member, None)).collect();
        match self.send_down(DATA, to, part, timeout) {
            Ok(()) => Ok(()),
            Err((error, _)) => Err(error),
        }
    }

    /// Waits at most `timeout` until the rests of all messages that a time limit cut off have left;
    /// otherwise they leave in the group's next calls. Fails with [`GroupError::CutOff`] if they
    /// have not. The rest of a message to a lost member is dropped, and is no error here.
    pub fn flush(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let deadline = Deadline::new(timeout);
        loop {
            let stop = self.manager.shared.wait_until(deadline.left(), |node, _| {
                let mut shared = lock(&self.root);
                if let Some((link, why)) = shared.settle(node) {
                    return Look::Found(LookStop::Expel(link, why));
                }
                let room = shared.drive(node);
                let has_left =
                    |place: &MemberEntry| place.connection.is_none() || place.outgoing.is_idle();
                match shared.places.iter().all(has_left) {
                    true => Look::Found(LookStop::Done),
                    false => room.map_or(Look::Nothing, Look::Room),
                }
            });
            match stop {
                Ok(LookStop::Done) => return Ok(()),
                Ok(LookStop::Lost(error)) => return Err(error),
                Ok(LookStop::Expel(link, why)) => self.manager.expel(link, &why),
                Err(WaitError::TimedOut) => return Err(GroupError::CutOff),
                Err(waited) => return Err(GroupError::from(waited)),
            }
        }
    }

    /// Sends the same bytes to each member, as [`scatter`](Self::scatter) does.
    pub fn broadcast(&mut self, data: &[u8], timeout: Option<Duration>) -> Result<(), GroupError> {
        self.scatter(timeout, |_| data)
    }

    /// Waits at most `timeout` until every member has come to its barrier, and releases all of
    /// them; the round is over. After an error you may repeat the call, or
    /// [`release`](Self::release) the members that are there.
    pub fn barrier(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let deadline = Deadline::new(timeout);
        if self.releasing.is_none() {
            let members = self.members();
            self.wait(members, timeout)?;
        }
        self.release(deadline.left())
    }

    /// Releases the members that have come to their barrier; the round is over. Members that come
    /// later go on at once.
    pub fn release(&mut self, timeout: Option<Duration>) -> Result<(), GroupError> {
        let waiting = match self.releasing.take() {
            Some(waiting) => waiting,
            None => {
                let mut node = self.manager.shared.lock();
                let mut shared = lock(&self.root);
                shared.settle_all(&mut node);
                let places = shared.places.iter().zip(0..);
                let waiting = places
                    .filter(|(place, _)| place.arrived.is_some() && place.arrived_from.is_some())
                    .map(|(place, member)| (member, place.arrived_from))
                    .collect();
                shared.next_round(&mut node, true);
                waiting
            }
        };
        match self.send_down(RELEASE, waiting, |_| &[], timeout) {
            // A member that has gone after it came to the barrier is missed in the next round.
            Ok(()) | Err((GroupError::MemberLost { .. }, _)) => Ok(()),
            Err((error, waiting)) => {
                self.releasing = Some(waiting);
                Err(error)
            }
        }
    }

    /// Sends one message to each of `members`. An error comes with the members that were not
    /// served.
    fn send_down<'a>(
        &mut self,
        kind: u64,
        mut members: Vec<Addressee>,
        part: impl Fn(u32) -> &'a [u8],
        timeout: Option<Duration>,
    ) -> Result<(), (GroupError, Vec<Addressee>)> {
        let count = self.members() as usize;
        let wanted = members.len() as u32;
        let metadata: Vec<[u8; DOWN_BYTES]> =
            members.iter().map(|(member, _)| down_metadata(kind, part(*member).len())).collect();
        // Each with its link, since another peer may take the place meanwhile.
        let mut messages: Vec<Option<(LinkId, OutgoingMessage<'_>)>> =
            (0..count).map(|_| None).collect();
        let place_of: HashMap<u32, usize> =
            members.iter().enumerate().map(|(i, (member, _))| (*member, i)).collect();
        let (mut lost, mut all_lost) = (None, Vec::new());
        let deadline = Deadline::new(timeout);
        let served = loop {
            let stop = self.manager.shared.wait_until(deadline.left(), |node, _| {
                let mut shared = lock(&self.root);
                if let Some((link, why)) = shared.settle(node) {
                    return Look::Found(LookStop::Expel(link, why));
                }
                let mut room = shared.drive(node);
                let (mut again, mut bad) = (false, None);
                members.retain(|(member, only)| {
                    let received = shared.received(node, *member);
                    let gone = shared.lost_error(*member);
                    let place = &mut shared.places[*member as usize];
                    let (Some(connection), Some(down)) = (place.connection.clone(), place.down)
                    else {
                        // A place that was never taken is waited for.
                        if gone.is_some() && !place.taken {
                            all_lost.push(*member);
                            if lost.is_none() {
                                lost = gone.clone();
                            }
                        }
                        return gone.is_none() || place.taken;
                    };
                    if only.is_some_and(|only| only != connection.link()) {
                        return false;
                    }
                    if place.owes_release || received != place.down_sent {
                        return true;
                    }
                    let message = &mut messages[*member as usize];
                    if message.as_ref().is_some_and(|(link, _)| *link != connection.link()) {
                        *message = None;
                    }
                    let (_, message) = message.get_or_insert_with(|| {
                        let metadata = &metadata[place_of[member]];
                        (connection.link(), OutgoingMessage::new(down, part(*member), metadata))
                    });
                    match place.outgoing.look(node, &connection, message) {
                        Look::Found(Ok(())) => {
                            place.down_sent += 1;
                            return false;
                        }
                        // The link ends, and the member is lost in one of the next turns.
                        Look::Found(Err(SendError::Ended(_))) | Look::Nothing => {}
                        Look::Found(Err(e)) => bad = Some((connection.link(), e.to_string())),
                        Look::Again => again = true,
                        Look::Room(link) => room = Some(link),
                    }
                    true
                });
                if let Some((link, why)) = bad {
                    return Look::Found(LookStop::Expel(link, why));
                }
                match (members.is_empty(), again, room) {
                    (true, ..) => Look::Found(LookStop::Done),
                    (_, true, _) => Look::Again,
                    (_, _, Some(link)) => Look::Room(link),
                    _ => Look::Nothing,
                }
            });
            match stop {
                Ok(LookStop::Done) => break Ok(()),
                Ok(LookStop::Lost(error)) => break Err(error),
                Ok(LookStop::Expel(link, why)) => self.manager.expel(link, &why),
                Err(WaitError::TimedOut) => {
                    // A message that has left in part leaves in the next call, and counts as sent.
                    let mut shared = lock(&self.root);
                    members.retain(|(member, _)| {
                        let Some((link, message)) = messages[*member as usize].take() else {
                            return true;
                        };
                        let place = &mut shared.places[*member as usize];
                        let is_its = place.connection.as_ref().is_some_and(|c| c.link() == link);
                        let kept = is_its && place.outgoing.keep(message);
                        place.down_sent += kept as u64;
                        if kept {
                            shared.owing.push(*member);
                        }
                        !kept
                    });
                    if members.is_empty() {
                        break Ok(());
                    }
                    // The next call names the lost members.
                    let missing = members.iter().map(|(member, _)| *member);
                    let missing: Vec<u32> = missing.chain(all_lost).collect();
                    let done = wanted - missing.len() as u32;
                    break Err(GroupError::TimedOut { done, wanted, missing });
                }
                Err(waited) => break Err(GroupError::from(waited)),
            }
        };
        match (served, lost) {
            (Err(error), _) => Err((error, members)),
            (Ok(()), Some(lost)) => Err((lost, members)),
            (Ok(()), None) => Ok(()),
        }
    }
}

impl EndPoint for Group {
    /// As many parts have arrived as were [wanted](Group::set_wanted), or never will.
    fn is_ready_in(&self, _: &Node) -> bool {
        let mut shared = lock(&self.root);
        shared.take_notifications();
        let wanted = shared.wanted;
        shared.arrived + shared.waiting_parts() >= wanted || shared.lost(wanted).is_some()
    }

    fn manager(&self) -> &Manager {
        &self.manager
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(_) = self.manager.withdraw(self.offer) else { return };
        for offer in self.offers.values() {
            self.manager.withdraw(*offer);
        }
        let mut node = self.manager.lock();
        let shared = lock(&self.root);
        for place in &shared.places {
            if let Some(word) = place.word {
                let _ = node.remove_slot(word);
            }
        }
        let _ = node.remove_slot(shared.slot);
        for queue in [shared.queue, shared.word_queue] {
            let _ = node.remove_queue(queue);
        }
        for area in [shared.area, shared.words] {
            let _ = node.remove_area(area);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::protocol::{GroupHelper, GroupMember};

    #[test]
    fn connections_are_those_of_members_in_any_place_in_a_given_place_and_of_helpers() {
        let dir = std::env::temp_dir().join(format!("hamlyn-places-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let config = crate::config::Config::from_env().unwrap().dir(&dir);
        let [there, here] = [(); 2].map(|()| Manager::with_config(config.clone()).unwrap());
        there.start_progress().unwrap();
        let limit = Some(Duration::from_secs(20));
        let mut group = Group::new(&there, GroupConfig::new(2, 8)).unwrap();
        let (any, of_one) = (group.seed().unwrap(), group.seed_of(1).unwrap());
        let one = GroupMember::grow(&here, &of_one, 8, limit).unwrap();
        let zero = GroupMember::grow(&here, &any, 8, limit).unwrap();
        let helper = GroupHelper::grow(&here, &any, limit).unwrap();
        let start = std::time::Instant::now();
        while group.joined() < 2 || group.helpers() < 1 {
            assert!(start.elapsed() < Duration::from_secs(20), "they never joined");
            std::thread::yield_now();
        }
        assert_eq!(group.connections().len(), 3);
        drop((one, zero, helper, group, there, here));
        std::fs::remove_dir_all(&dir).ok();
    }
}
