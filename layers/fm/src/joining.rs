//! Which nodes there are, and a link to each.
//!
//! ```text
//!   ranks of a job, or two programs that meet by a name
//!   a link to each; with it comes the ticket of a slot for hellos
//!   hello  -->  this end's window, and the tickets for it       <--  hello
//! ```
//! A hello is handled when it arrives, and the first of each link counts, so no peer changes another's.
//!
//! Never: a node begins before all others have said hello.

use crate::flow::{LENGTH_BYTES, STREAMS, UNIT, packet_bytes_max};
use crate::node::{Endpoint, Fm};
use crate::sink::{Hellos, Sink};
use crate::state::{Peer, State};
use crate::{Config, Error};
use hamlyn::job::{Job, Ranks};
use hamlyn::node::{Event, Node};
use hamlyn::{Accept, Access, AreaId, Filter, Flags, LinkId, QueueId, SlotConfig, SlotId, Ticket};
use std::time::Instant;

/// Bytes of a ticket on the wire.
const TICKET: usize = 44;
/// Version, window, open messages, and three tickets.
const HELLO: usize = 12 + 3 * TICKET;
const VERSION: u32 = 1;
/// A ticket and a number.
const GREETING: usize = TICKET + 4;
/// So few that a long message's handler chooses its buffers before much has come.
const PACKETS_PER_TURN: u32 = 1;

/// Where the node's events go, and the place of this node.
pub struct Joined {
    pub rank: u32,
    ranks: Option<Ranks>,
    /// Its manager keeps the job's place.
    _job: Option<Job>,
}

impl Joined {
    pub fn next_event(&mut self, node: &mut Node) -> Option<Event> {
        match &mut self.ranks {
            Some(ranks) => ranks.next_event(node),
            None => node.next_event(),
        }
    }
}

fn os(doing: &str, error: impl core::fmt::Display) -> Error {
    Error::Os(format!("{doing}: {error}"))
}

/// This node's parts before it knows the others.
struct Parts {
    node: Node,
    config: Config,
    windows: AreaId,
    credits: AreaId,
    queue: QueueId,
    hellos: SlotId,
}

impl Parts {
    fn new(mut node: Node, config: Config, nodes: usize) -> Result<Self, Error> {
        let window = config.credit_bytes as usize;
        let entries = (window as u64 / UNIT) as u32;
        let e = |error: &dyn core::fmt::Display| os("memory for the nodes' windows", error);
        let windows = node.message_area(window * nodes).map_err(|error| e(&error))?;
        let credits = node.message_area(8 * nodes).map_err(|error| e(&error))?;
        let entries = entries.saturating_mul(2).saturating_mul(nodes as u32);
        let queue = node.notification_queue(entries + 1).map_err(|error| e(&error))?;
        let place = node.message_area(HELLO).map_err(|error| e(&error))?;
        let hellos =
            node.slot(SlotConfig::new(place, queue).credit(1)).map_err(|error| e(&error))?;
        node.install(hellos, Hellos(Vec::with_capacity(nodes))).map_err(|error| e(&error))?;
        Ok(Self { node, config, windows, credits, queue, hellos })
    }

    /// The ticket for hellos, and this node's number.
    fn greeting(&self, rank: u32) -> Result<[u8; GREETING], Error> {
        let ticket = self.node.fast_ticket(self.hellos);
        let ticket = ticket.map_err(|e| os("a ticket for hellos", e))?;
        let mut greeting = [0; GREETING];
        greeting[..TICKET].copy_from_slice(&ticket.to_bytes());
        greeting[TICKET..].copy_from_slice(&rank.to_le_bytes());
        Ok(greeting)
    }

    /// The greeting of the other end of a link: its ticket, and its number.
    fn greeting_of(&self, link: LinkId) -> Result<(Ticket, u32), Error> {
        let wrong = |e: &dyn core::fmt::Display| os("the greeting of a node", e);
        let bytes = self.node.greeting(link).map_err(|e| wrong(&e))?;
        let length = wrong(&format!("it has {} bytes, not {GREETING}", bytes.len()));
        let Some((ticket, rank)) = bytes.split_at_checked(TICKET) else { return Err(length) };
        let ticket = Ticket::from_bytes(ticket).map_err(|e| wrong(&e))?;
        Ok((ticket, u32::from_le_bytes(rank.try_into().map_err(|_| length)?)))
    }

    /// Makes a peer's slots; returns them, with this end's hello to it.
    fn slots(&mut self, rank: usize) -> Result<([SlotId; 2], Filter, [u8; HELLO]), Error> {
        let window = u64::from(self.config.credit_bytes);
        let (from, entries) = (window * rank as u64, (window / UNIT) as u32);
        let doing = "slots of a node";
        let mut make = |area, range, credit| {
            let config = SlotConfig::new(area, self.queue).range(range).credit(credit);
            self.node.slot(config).map_err(|e| os(doing, e))
        };
        let slots = [
            make(self.windows, from..from + window, entries)?,
            make(self.windows, from..from + window, entries)?,
        ];
        let credit = make(self.credits, 8 * rank as u64..8 * rank as u64 + 8, 0)?;
        let filter = Filter::by_page(self.config.credit_bytes as usize, 1 << 30);
        self.node
            .install_filtered(slots[1], Sink::new(), filter.clone())
            .map_err(|e| os(doing, e))?;
        let mut hello = [0; HELLO];
        hello[0..4].copy_from_slice(&VERSION.to_le_bytes());
        hello[4..8].copy_from_slice(&self.config.credit_bytes.to_le_bytes());
        hello[8..12].copy_from_slice(&(self.config.open_messages as u32).to_le_bytes());
        for (slot, at) in [slots[0], slots[1], credit].into_iter().zip([0, 1, 2]) {
            let ticket = self.node.fast_ticket(slot).map_err(|e| os(doing, e))?;
            hello[12 + at * TICKET..][..TICKET].copy_from_slice(&ticket.to_bytes());
        }
        Ok((slots, filter, hello))
    }

    /// A peer, of what it said.
    fn peer(
        &mut self,
        rank: usize,
        link: LinkId,
        hello: &[u8],
        (slots, filter): ([SlotId; 2], Filter),
    ) -> Result<Peer, Error> {
        let wrong = |why: String| os(&format!("node {rank} said hello"), why);
        if hello.len() != HELLO {
            return Err(wrong(format!("with {} bytes, not {HELLO}", hello.len())));
        }
        let number = |at: usize| {
            u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]])
        };
        let (version, window, streams) = (number(0), number(4), number(8));
        if version != VERSION {
            return Err(wrong(format!("in version {version}, not {VERSION}")));
        }
        let said =
            Config { credit_bytes: window, open_messages: streams as usize, ..Config::default() };
        said.check().map_err(|e| wrong(e.to_string()))?;
        let ticket = |at: usize| {
            Ticket::from_bytes(&hello[12 + at * TICKET..][..TICKET])
                .map_err(|e| wrong(e.to_string()))
        };
        let credit = ticket(2)?.with_flags(Flags::WAKE);
        let in_order = Flags::NOTIFY | Flags::WAKE | Flags::IN_ORDER;
        let [first, rest] = [ticket(0)?, ticket(1)?].map(|ticket| ticket.with_flags(in_order));
        if [&first, &rest].iter().any(|of| of.capacity() < u64::from(window))
            || credit.capacity() < 8
        {
            return Err(wrong("with tickets for less than the window that it says".into()));
        }
        let its = match self.node.peer(link) {
            Ok(peer) => peer.node,
            Err(_) => self.node.id(),
        };
        if [&first, &rest, &credit].iter().any(|ticket| ticket.destination != its) {
            return Err(wrong("with tickets of another".into()));
        }
        let mut prepare = |ticket| self.node.prepare_over(link, ticket);
        // Where it has left already, what it sent before can still be extracted.
        let to = match (prepare(&first), prepare(&rest)) {
            (Ok(first), Ok(rest)) => Some([first, rest]),
            _ => None,
        };
        let window = u64::from(window);
        let at_once = self.node.fast_bytes_max(link).unwrap_or(0).saturating_sub(LENGTH_BYTES);
        let at_once = (at_once / UNIT as usize * UNIT as usize).max(UNIT as usize);
        let packet_bytes = packet_bytes_max(window).min(at_once);
        let own = u64::from(self.config.credit_bytes);
        let window_here = (own as usize * rank, own);
        Ok(Peer::new(
            link,
            to,
            credit,
            window,
            packet_bytes,
            (streams as usize).min(STREAMS),
            window_here,
            slots,
            filter,
        ))
    }

    /// Waits for links of others, until `take` has all.
    fn wait_for_links(
        &mut self,
        doing: &str,
        mut take: impl FnMut(LinkId) -> bool,
    ) -> Result<(), Error> {
        let (began, limit) = (Instant::now(), self.config.time_limit);
        loop {
            while let Some(event) = self.node.next_event() {
                if let Event::Connected { link, .. } = event
                    && take(link)
                {
                    return Ok(());
                }
            }
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(os(doing, "not all other programs have come within the time limit"));
            }
            self.node.wait(left).map_err(|e| os(doing, e))?;
        }
    }

    /// Says hello to all, and waits until all have said it.
    fn join(mut self, mut joined: Joined, links: Vec<LinkId>) -> Result<Fm, Error> {
        let limit = self.config.time_limit;
        let mut slots = Vec::new();
        let mut own = Vec::new();
        for (rank, link) in links.iter().enumerate() {
            let (of, filter, hello) = self.slots(rank)?;
            slots.push(Some((of, filter)));
            if *link == LinkId::SELF {
                own = hello.to_vec();
                continue;
            }
            let wrong = |e: String| os(&format!("hello to node {rank}"), e);
            let (ticket, _) = self.greeting_of(*link)?;
            let envelope = hamlyn::Envelope::new(&ticket).over(*link);
            self.node
                .send_gathered(&envelope, &[&hello], limit)
                .map_err(|e| wrong(e.to_string()))?;
        }
        let began = Instant::now();
        let mut peers: Vec<Option<Peer>> = links.iter().map(|_| None).collect();
        let mut left_early = Vec::new();
        loop {
            for (rank, link) in links
                .iter()
                .enumerate()
                .filter(|(rank, _)| slots[*rank].is_some())
                .collect::<Vec<_>>()
            {
                let hello = match *link == LinkId::SELF {
                    true => Some(own.clone()),
                    false => {
                        let hellos = self.node.installed::<Hellos>(self.hellos).ok().flatten();
                        hellos
                            .and_then(|hellos| hellos.0.iter().find(|(of, _)| of == link))
                            .map(|(_, hello)| hello.clone())
                    }
                };
                if let (Some(hello), Some(of)) = (hello, slots[rank].clone()) {
                    slots[rank] = None;
                    peers[rank] = Some(self.peer(rank, *link, &hello, of)?);
                }
            }
            let Some(missing) = peers.iter().position(Option::is_none) else { break };
            if let Some((_, why)) = left_early.iter().find(|(of, _)| *of == missing) {
                return Err(os(&format!("node {missing} left before it had said hello"), why));
            }
            while let Some(event) = joined.next_event(&mut self.node) {
                if let Event::Closed { link, reason, .. } = event
                    && let Some(rank) = links.iter().position(|of| *of == link)
                {
                    left_early.push((rank, reason));
                }
            }
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(os(
                    "joining",
                    format!("node {missing} has not said hello within the time limit"),
                ));
            }
            self.node.wait(left).map_err(|e| os("joining", e))?;
        }
        let _ = self.node.remove_slot(self.hellos);
        let peers = peers.into_iter().flatten().collect();
        let parts = (joined, self.node, self.config);
        let mut state = State::new(parts, (self.windows, self.credits), self.queue, peers);
        for (rank, why) in left_early {
            state.has_closed(rank as u32, why.to_string());
        }
        Ok(Fm::of(Endpoint::new(state)))
    }
}

impl Fm {
    /// `FM_initialize`: joins the job that the program was started in ([`Job`]; alone: a job of one).
    /// Waits until all nodes have come, at most the time limit.
    pub fn join(config: Config) -> Result<Self, Error> {
        config.check()?;
        let job = Job::with_config(settings(&config)?).map_err(|e| os("joining the job", e))?;
        let limit = config.time_limit;
        let (node, mut ranks) = job.node("fm", b"", limit).map_err(|e| os("joining the job", e))?;
        let mut parts = Parts::new(node, config, ranks.size() as usize)?;
        ranks.set_greeting(&parts.greeting(ranks.rank())?);
        let links: Result<Vec<_>, _> =
            (0..ranks.size()).map(|rank| ranks.link_to(&mut parts.node, rank, limit)).collect();
        let links = links.map_err(|e| os("a link to a node of the job", e))?;
        let joined = Joined { rank: ranks.rank(), ranks: Some(ranks), _job: Some(job) };
        parts.join(joined, links)
    }

    /// Without a launcher: two programs of one user meet by a name. The first to come is node 0.
    pub fn meet(name: &str, config: Config) -> Result<Self, Error> {
        config.check()?;
        let node = Node::with_config(settings(&config)?).map_err(|e| os("a node", e))?;
        let mut parts = Parts::new(node, config, 2)?;
        let accept = Accept::Automatic(parts.greeting(0)?.to_vec());
        let doing = format!("meeting at \"{name}\"");
        let (rank, link) = match parts.node.serve(name, Access::SameUser, accept) {
            Ok(()) => {
                let mut came = None;
                parts.wait_for_links(&doing, |link| {
                    came = Some(link);
                    true
                })?;
                parts.node.stop_serving(name);
                (0, came.unwrap_or(LinkId::SELF))
            }
            Err(taken) => {
                let greeting = parts.greeting(1)?;
                let both = |e| os(&doing, format!("{taken}; as the second to come: {e}"));
                (1, parts.node.connect(name, &greeting, parts.config.time_limit).map_err(both)?)
            }
        };
        let mut links = vec![LinkId::SELF; 2];
        links[1 - rank as usize] = link;
        parts.join(Joined { rank, ranks: None, _job: None }, links)
    }

    /// Without a launcher: several programs of one user, whose numbers are known, meet by a name, each on
    /// a node of its own, with the program's settings. Each calls it once.
    pub fn meet_all(
        node: Node,
        name: &str,
        rank: u32,
        nodes: u32,
        config: Config,
    ) -> Result<Self, Error> {
        config.check()?;
        if rank >= nodes {
            return Err(Error::Limit(format!("node {rank}, where there are {nodes}")));
        }
        let mut parts = Parts::new(node, config, nodes as usize)?;
        let greeting = parts.greeting(rank)?;
        let doing = format!("meeting at \"{name}\"");
        let place = |rank| format!("{name}-{rank}");
        let accept = Accept::Automatic(greeting.to_vec());
        parts.node.serve(&place(rank), Access::SameUser, accept).map_err(|e| os(&doing, e))?;
        let mut links = vec![None; nodes as usize];
        links[rank as usize] = Some(LinkId::SELF);
        let limit = parts.config.time_limit;
        for lower in 0..rank {
            let link = parts.node.connect(&place(lower), &greeting, limit);
            links[lower as usize] = Some(link.map_err(|e| os(&doing, e))?);
        }
        let mut missing = nodes - rank - 1;
        let mut came = Vec::new();
        if missing > 0 {
            parts.wait_for_links(&doing, |link| {
                came.push(link);
                missing -= 1;
                missing == 0
            })?;
        }
        for link in came {
            let (_, its) = parts.greeting_of(link)?;
            match links.get_mut(its as usize) {
                Some(of @ None) => *of = Some(link),
                _ => return Err(os(&doing, format!("a second node {its}, or one beyond {nodes}"))),
            }
        }
        parts.node.stop_serving(&place(rank));
        let links = links.into_iter().flatten().collect();
        parts.join(Joined { rank, ranks: None, _job: None }, links)
    }
}

/// The settings of the environment, with rings that hold the credit, and short turns.
fn settings(config: &Config) -> Result<hamlyn::Config, Error> {
    let settings = hamlyn::Config::from_env().map_err(|e| os("the settings", e))?;
    let ring = config.credit_bytes.next_power_of_two().max(settings.ring_bytes);
    let settings = settings.ring_bytes(ring).bulk_ring_bytes(0u32);
    Ok(settings.packets_per_turn(PACKETS_PER_TURN))
}
