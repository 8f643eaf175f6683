//! Nodes of a layer's own in a job, and one link to each rank.
//!
//! ```text
//!   Job::node(name)      every rank: makes a node, puts its address, fence
//!   link_to(rank)        asks; or waits for the link, if that rank has asked
//!   take(event)          answers ranks that ask
//! ```
//! Either end may begin. If both ask at once, the request of the lower rank counts: the lower rank
//! refuses the other's as *crossed*, and the higher rank accepts. So two ranks have one link,
//! whoever asks first, and a layer's end points share it: each end's greeting brings a first ticket,
//! and further ones come in messages.
//!
//! Never: two links between two ranks are used; a node is admitted that is no rank's.

use super::again::{Again, again, is_too_late};
use super::space::check_name;
use super::turn::Within;
use super::{Card, FOR_NAMES, Job, JobError, node_of, nonsense};
use crate::control::{Accept, Access, RequestId, Wait};
use crate::node::{Event, LinkId, Node, WaitError, keep_event};
use crate::os::sys;
use crate::protocol::GrowError;
use crate::wire::NodeId;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::string::String;
use std::vec::Vec;
use std::{fmt, format};

/// The lower rank's refusal of a request that crossed its own.
const CROSSED: &str = "this rank has asked, too, or has the link already";
/// Time after which a rank asks again whose request crossed one that did not come, and the longest
/// time for which a rank waits without a look.
const AGAIN: Duration = Duration::from_millis(50);
/// The time limit of one request: a rank that takes no events does not answer.
const REQUEST: Duration = Duration::from_secs(10);

/// The links of a layer's own node to the nodes of other ranks: [`Job::node`].
///
/// The node's events have to pass through [`take`](Self::take), which answers ranks that ask for a
/// link: [`next_event`](Self::next_event) does it for a [`Node`], and [`link_to`](Self::link_to)
/// while it waits. With a [`Manager`](crate::protocol::Manager) made
/// [from the node](crate::protocol::Manager::from_node), pass on its `next_event`, and call
/// [`try_link_to`](Self::try_link_to).
pub struct Ranks {
    rank: u32,
    service: String,
    greeting: Vec<u8>,
    rows: Vec<RankNode>,
    by_node: HashMap<NodeId, u32>,
    /// Events for the layer that came while a call waited.
    events: VecDeque<Event>,
    events_room: usize,
}

/// The node of one rank.
#[derive(Debug)]
struct RankNode {
    /// The service that it is asked through.
    service: String,
    /// This rank's own request.
    asked: Option<crate::control::LinkToken>,
    /// The other rank's, which was accepted.
    accepted: Option<RequestId>,
    /// When this rank's request crossed the other's.
    crossed_ns: Option<u64>,
    link: Option<LinkId>,
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranks").field("rank", &self.rank).field("size", &self.rows.len()).finish()
    }
}

impl Job {
    /// A node of a layer's own, with the job's settings, and its links to the other ranks' nodes.
    /// *Every* rank calls it with the same `name`, once: it contains a [`fence`](Self::fence), which
    /// takes at most `limit`. `greeting`, up to 4 KiB, reaches the other end of each link
    /// ([`Node::greeting`]): often a ticket.
    ///
    /// On an error there is no node; as with [`fence`](Self::fence), a fence that was begun stays
    /// begun, and the name is used up.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-ranks-{}", std::process::id()));
    /// use hamlyn::job::{Job, Ranks};
    /// use hamlyn::SlotConfig;
    /// use std::time::Duration;
    ///
    /// let limit = Some(Duration::from_secs(10));
    /// # let job = Job::with_config(hamlyn::Config::from_env()?.dir(&dir))?;
    /// # #[cfg(any())]
    /// let job = Job::from_env()?;
    /// let (mut node, mut ranks): (_, Ranks) = job.node("layer", b"", limit)?;
    /// let (area, queue) = (node.message_area(4096)?, node.notification_queue(8)?);
    /// let slot = node.slot(SlotConfig::new(area, queue).credit(8))?;
    /// // Its ticket reaches each rank with the link.
    /// ranks.set_greeting(&node.fast_ticket(slot)?.to_bytes());
    ///
    /// let next = (ranks.rank() + 1) % ranks.size();
    /// let link = ranks.link_to(&mut node, next, limit)?;
    /// assert_eq!(ranks.rank_of(&node, link), Some(next));
    /// assert_eq!(ranks.try_link_to(&mut node, next)?, Some(link), "the same link");
    /// while let Some(event) = ranks.next_event(&mut node) {
    ///     println!("{event:?}");
    /// }
    /// # assert!(ranks.take(&mut node, hamlyn::Event::Connected { link, request: None }).is_some());
    /// # drop((job, node));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn node(
        &self,
        name: &str,
        greeting: &[u8],
        limit: Option<Duration>,
    ) -> Result<(Node, Ranks), JobError> {
        let shared = &self.shared;
        check_name(name)?;
        let config = shared.config.clone();
        // The manager has the port.
        #[cfg(feature = "tls")]
        let config = {
            let mut config = config;
            if let Some(listen) = &mut config.listen {
                listen.set_port(0);
            }
            config
        };
        let place = (shared.rank, &shared.secret, &shared.hosts[..]);
        let (mut node, at) = node_of(config, place, shared.host_name.clone())?;
        let service = service_of(node.id());
        node.serve(&service, Access::SameUser, Accept::Ask)?;
        let key = format!("n-{name}");
        let put = shared.space.put(&key, &Card { node: node.id(), at }.to_bytes());
        put.map_err(|e| match e {
            JobError::PutAlready { .. } => JobError::PutAlready { found: name.into() },
            e => e,
        })?;
        shared.space.fence(Some(&shared.manager), limit, FOR_NAMES)?;
        let mut ranks = Ranks {
            rank: shared.rank,
            service,
            greeting: greeting.to_vec(),
            rows: Vec::new(),
            by_node: HashMap::new(),
            events: VecDeque::new(),
            events_room: 0,
        };
        let within = Within::new(limit);
        for rank in 0..shared.size {
            let bytes = shared.space.get(rank, &key, within)?;
            let card = Card::from_bytes(&bytes);
            let wrong = || nonsense(shared.launcher, "telling where a layer's node is", &bytes);
            let card = card.ok_or_else(wrong)?;
            let service = shared.service_at(rank, service_of(card.node), card.at.as_deref())?;
            ranks.by_node.insert(card.node, rank);
            let (asked, accepted, crossed_ns, link) = (None, None, None, None);
            ranks.rows.push(RankNode { service, asked, accepted, crossed_ns, link });
        }
        Ok((node, ranks))
    }
}

/// The service of a layer's node.
fn service_of(node: NodeId) -> String {
    format!("ranks-{:016x}", node.0)
}

impl Ranks {
    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.rows.len() as u32
    }

    /// The greeting of links that are made from now on.
    pub fn set_greeting(&mut self, greeting: &[u8]) {
        self.greeting = greeting.to_vec();
    }

    /// The rank at the other end of a link of `node`; `None`: it is no rank's node. Also for the
    /// links that ended last.
    pub fn rank_of(&self, node: &Node, link: LinkId) -> Option<u32> {
        match node.peer(link) {
            Ok(peer) if peer.is_proved => self.by_node.get(&peer.node).copied(),
            Err(_) if link == LinkId::SELF => Some(self.rank),
            _ => None,
        }
    }

    /// The link to a rank, the only one: made now, if there is none. Waits for that rank's answer at
    /// most `limit` (`None`: without limit); it answers when it takes its events. Meanwhile `node`
    /// receives arrivals, and ranks that ask are answered; other events are kept for
    /// [`next_event`](Self::next_event).
    ///
    /// [`JobError::NotLinked`]: the time limit has passed, and the request goes on; a later call
    /// returns its link. Other errors end the request. The rank itself: [`LinkId::SELF`].
    pub fn link_to(
        &mut self,
        node: &mut Node,
        rank: u32,
        limit: Option<Duration>,
    ) -> Result<LinkId, JobError> {
        let within = Within::new(limit);
        loop {
            let left = limit.map_or(AGAIN, |_| within.left().min(AGAIN));
            let look = |node: &mut Node| {
                while let Some(event) = node.next_event() {
                    if let Some(event) = self.take(node, event) {
                        let dropped = keep_event(&mut self.events, &mut self.events_room, event);
                        node.count_dropped_events(dropped);
                    }
                }
                self.try_link_to(node, rank).transpose()
            };
            let os = |error| JobError::Os { doing: "waiting for a link to a rank", error };
            match node.wait_until_found(Some(left), look) {
                Ok(found) => return found,
                Err(WaitError::TimedOut) if limit.is_some() && within.is_over() => {
                    return Err(JobError::NotLinked { rank });
                }
                Err(WaitError::TimedOut) => {}
                Err(WaitError::Forked(forked)) => {
                    return Err(GrowError::Connect(forked.into()).into());
                }
                Err(WaitError::Os(error)) => return Err(os(error)),
            }
        }
    }

    /// [`link_to`](Self::link_to) without waiting. `None`: not yet; call it again after a turn, and
    /// after the events have passed through [`take`](Self::take).
    pub fn try_link_to(&mut self, node: &mut Node, rank: u32) -> Result<Option<LinkId>, JobError> {
        let size = self.size();
        if rank == self.rank {
            let own = node.own_link();
            return own.map(Some).map_err(|error| JobError::Os {
                doing: "making a link of a node to itself",
                error: std::io::Error::other(error),
            });
        }
        let Some(row) = self.rows.get_mut(rank as usize) else {
            return Err(JobError::NoRank { rank, size });
        };
        if let Some(token) = row.asked
            && let Some(ended) = node.end_connect(token)
        {
            row.asked = None;
            match ended.map_err(GrowError::of) {
                // The other end counts on this one: its own request has ended.
                Ok(link) => {
                    if let Some(before) = row.link.replace(link) {
                        let _ = node.disconnect(before);
                    }
                }
                Err(GrowError::Refused(why)) if why == CROSSED => {
                    row.crossed_ns = Some(sys::monotonic_ns());
                }
                Err(_) if row.accepted.is_some() || row.link.is_some() => {}
                Err(e) if is_too_late(&e) || again(&e) == Some(Again::Crowded) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(link) = row.link.filter(|link| node.is_linked(*link)) {
            return Ok(Some(link));
        }
        row.link = None;
        let is_recent = |at_ns| sys::monotonic_ns().saturating_sub(at_ns) < AGAIN.as_nanos() as u64;
        if row.asked.is_none() && row.accepted.is_none() && !row.crossed_ns.is_some_and(is_recent) {
            row.crossed_ns = None;
            let asked = node.begin_connect(&row.service, &self.greeting, Some(REQUEST), Wait::No);
            row.asked = Some(asked.map_err(GrowError::of)?);
        }
        Ok(None)
    }

    /// The node's next event that is the layer's to handle. Ranks that ask for a link are answered.
    pub fn next_event(&mut self, node: &mut Node) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        while let Some(event) = node.next_event() {
            if let Some(event) = self.take(node, event) {
                return Some(event);
            }
        }
        None
    }

    /// Handles an event of the node if it is about links between ranks: answers a rank that asks.
    /// `Some`: the event is the layer's; so are the beginning and the end of every link.
    pub fn take(&mut self, node: &mut Node, event: Event) -> Option<Event> {
        match &event {
            Event::Request { id, peer, .. } if peer.service == self.service => {
                let rank = self.by_node.get(&peer.node).filter(|_| peer.is_proved).copied();
                self.answer(node, *id, rank);
                return None;
            }
            Event::RequestGone { id } => {
                let row = self.rows.iter_mut().find(|row| row.accepted == Some(*id));
                if let Some(row) = row {
                    row.accepted = None;
                    return None;
                }
            }
            Event::Connected { link, request: Some(id) } => {
                let row = self.rows.iter_mut().find(|row| row.accepted == Some(*id));
                if let Some(row) = row {
                    row.accepted = None;
                    row.link.get_or_insert(*link);
                    // The other rank has refused it, or will.
                    if let Some(token) = row.asked.take() {
                        node.give_up_connecting(token);
                    }
                }
            }
            Event::Closed { link, .. } => {
                let row = self.rows.iter_mut().find(|row| row.link == Some(*link));
                row.into_iter().for_each(|row| row.link = None);
            }
            _ => {}
        }
        Some(event)
    }

    fn answer(&mut self, node: &mut Node, id: RequestId, rank: Option<u32>) {
        let Some(rank) = rank.filter(|rank| *rank != self.rank) else {
            // An error: the request has gone already.
            let _ = node.refuse(id, "this node is none of a rank of this job");
            return;
        };
        let row = &mut self.rows[rank as usize];
        let has_link = row.link.is_some_and(|link| node.is_linked(link));
        let is_crossed = row.asked.is_some() && self.rank < rank;
        if has_link || is_crossed || row.accepted.is_some() {
            let _ = node.refuse(id, CROSSED);
        } else if node.accept(id, &self.greeting).is_ok() {
            row.accepted = Some(id);
        }
    }
}
