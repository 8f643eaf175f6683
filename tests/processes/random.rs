//! Random operations between several processes, with all rings at their smallest: nothing is lost,
//! duplicated, changed or misplaced, and no process waits for ever.
//!
//! Each process has, for each process (itself included), [`ENTRIES`] regions of an area, each with
//! an entry of a slot of some mode. A process that may write to a region has its ticket. When a
//! message has arrived, its receiver compares it with the oracle's, clears the region and gives the
//! ticket back: a new one if the mode needs it. Tickets come back as metadata of messages.
//! ```text
//!   sender                                       receiver
//!   free[e] = None    ---- data, entry e ---->   == message(seed, from, to, number)?  clear, arm
//!   free[e] = ticket  <--- ticket of entry e --
//! ```
//! A link is closed when both ends have all their tickets, and made again later.
//!
//! `HAMLYN_TEST_SEED=n` repeats the choices of a run (not the instants at which the kernel lets
//! each process run), `HAMLYN_TEST_SECONDS=n` makes it longer.

use crate::support::*;
use hamlyn::control::{Accept, Access};
use hamlyn::node::{Event, NodeSendError, TerminusId};
use hamlyn::{
    AreaId, BufferTag, LinkId, MetadataIndex, Mode, Node, Notification, Piece, QueueId, SendHandle,
    SlotConfig, SlotId, Ticket,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const REGION_BYTES: usize = 8 << 10;
/// Behind each message: bytes that must not change.
const MARGIN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Paranoid,
    OneShot,
    Fast,
}

const KINDS: [Kind; 8] = {
    use Kind::*;
    [Normal, Normal, Normal, Paranoid, Paranoid, OneShot, OneShot, Fast]
};
const ENTRIES: usize = KINDS.len();
/// Entries of the slot through which processes agree to close a link.
const ASK: u32 = ENTRIES as u32;
const AGREE: u32 = ENTRIES as u32 + 1;

/// The oracle: data and metadata of a message. Its number is in the metadata, or else the data.
fn message(seed: u64, from: usize, to: usize, number: u32, kind: Kind) -> (Vec<u8>, Vec<u8>) {
    let mut random = Random::new(seed ^ (from as u64) << 48 ^ (to as u64) << 40 ^ number as u64);
    let mut metadata_len = match random.below(4) {
        0 => 0,
        1 => 4,
        _ => 4 + random.below(57) as usize,
    };
    let mut length = match random.below(8) {
        0 => 0,
        1..=3 => random.below(17) as usize,
        4..=5 => random.below(200) as usize,
        6 => random.below(1500) as usize,
        _ => random.below((REGION_BYTES - MARGIN) as u64) as usize,
    };
    if kind == Kind::Fast {
        (metadata_len, length) = (0, length % 65);
    } else if metadata_len == 0 {
        length = length.max(4);
    }
    let mut bytes = |n: usize| -> Vec<u8> { (0..n).map(|_| random.next() as u8).collect() };
    let (mut data, mut metadata) = (bytes(length), bytes(metadata_len));
    match kind {
        Kind::Fast => {}
        _ if metadata_len > 0 => metadata[..4].copy_from_slice(&number.to_le_bytes()),
        _ => data[..4].copy_from_slice(&number.to_le_bytes()),
    }
    (data, metadata)
}

/// How things stand with one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Down,
    Up,
    /// This process wants to close: when it has all its tickets, it asks.
    Wants,
    /// It has asked.
    Asked,
    /// The other one asked: when this process has all its tickets, it agrees.
    Agreeing,
    Agreed,
}

struct Other {
    standing: Standing,
    link: Option<LinkId>,
    extra: Option<LinkId>,
    /// Its slot for what comes back.
    back: Option<Ticket>,
    free: [Option<Ticket>; ENTRIES],
    numbers: u32,
    seen: HashSet<u32>,
    /// Slots of this process for what it sends: by kind, and for what comes back.
    slots: [SlotId; 4],
    /// Turns until the link is made again.
    rest: u64,
    has_begun: bool,
}

struct Actor {
    me: usize,
    seed: u64,
    random: Random,
    node: Node,
    area: AreaId,
    data: QueueId,
    back: QueueId,
    others: Vec<Other>,
    by_slot: HashMap<u32, (usize, usize)>,
    termini: Vec<TerminusId>,
    buffers: Vec<(TerminusId, BufferTag, Option<SendHandle>)>,
    done: Vec<String>,
}

impl Actor {
    fn new(role: &Role) -> Self {
        let (me, count, seed) = (role.number(0) as usize, role.number(1) as usize, role.number(2));
        let mut random = Random::new(seed ^ (me as u64 + 1) << 56);
        let config = role
            .config()
            .packets_per_turn(1 + random.below(64) as u32)
            .work_queue_entries(1 + random.below(8) as u32)
            .spin_ns(random.below(20_000))
            .wait_mode(match random.below(2) {
                0 => hamlyn::config::WaitMode::Blocking,
                _ => hamlyn::config::WaitMode::Adaptive,
            });
        let mut node = Node::with_config(config).unwrap();
        let each = ENTRIES * REGION_BYTES;
        let area = node.message_area(count * each).unwrap();
        let small = node.message_area(1).unwrap();
        let data = node.notification_queue((count * 9 * 2) as u32).unwrap();
        let back = node.notification_queue((count * (ENTRIES + 2)) as u32).unwrap();
        let mut by_slot = HashMap::new();
        let mut others = Vec::new();
        for other in 0..count {
            let range = (other * each) as u64..((other + 1) * each) as u64;
            let whole = SlotConfig::new(area, data).range(range).metadata(ENTRIES as u32);
            // Each kind has its share of the queue.
            let normal = node.slot(whole.clone().credit(4)).unwrap();
            let paranoid = node.slot(whole.clone().credit(2).mode(Mode::Paranoid)).unwrap();
            let one_shot = node.slot(whole.mode(Mode::ParanoidOneShot)).unwrap();
            let backs = SlotConfig::new(small, back).metadata(ENTRIES as u32 + 2);
            let backs = node.slot(backs).unwrap();
            let slots = [normal, paranoid, one_shot, backs];
            for (i, slot) in slots.iter().enumerate() {
                by_slot.insert(slot.index().0, (other, i));
            }
            others.push(Other {
                standing: Standing::Down,
                link: None,
                extra: None,
                back: None,
                free: [None; ENTRIES],
                numbers: 0,
                seen: HashSet::new(),
                slots,
                rest: 0,
                has_begun: false,
            });
        }
        let mut termini = vec![node.primary()];
        termini.extend((0..2).map(|_| node.terminus()));
        node.set_priority(termini[2], 1).unwrap();
        let mut buffers = Vec::new();
        for &terminus in &termini {
            for _ in 0..3 {
                let tag = node.send_buffer(terminus, REGION_BYTES).unwrap();
                buffers.push((terminus, tag, None));
            }
        }
        let greeting: Vec<u8> = others
            .iter()
            .flat_map(|other| node.ticket(other.slots[3], MetadataIndex(0)).unwrap().to_bytes())
            .collect();
        node.serve(&format!("p{me}"), Access::SameUser, Accept::Automatic(greeting)).unwrap();
        Self {
            me,
            seed,
            random,
            node,
            area,
            data,
            back,
            others,
            by_slot,
            termini,
            buffers,
            done: Vec::new(),
        }
    }

    /// Fails with the last acts of this process and of the node.
    fn fail(&self, why: &str) -> ! {
        eprintln!("process {} (seed {}): {why}\n{}", self.me, self.seed, state(&self.node));
        for (i, other) in self.others.iter().enumerate() {
            let missing: Vec<usize> = (0..ENTRIES).filter(|e| other.free[*e].is_none()).collect();
            eprintln!(
                "  to {i}: {:?}, {} sent, {} received, tickets missing {missing:?}",
                other.standing,
                other.numbers,
                other.seen.len()
            );
        }
        for line in self.done.iter().rev().take(10) {
            eprintln!("  before that: {line}");
        }
        std::process::exit(1);
    }

    fn note(&mut self, text: String) {
        if self.done.len() > 1000 {
            self.done.drain(..900);
        }
        self.done.push(text);
    }

    // ---- links

    fn greeting(&self, to: usize, extra: bool) -> Vec<u8> {
        let ticket = self.node.ticket(self.others[to].slots[3], MetadataIndex(0)).unwrap();
        let mut greeting = vec![self.me as u8, extra as u8];
        greeting.extend(ticket.to_bytes());
        greeting
    }

    fn connect(&mut self, to: usize, extra: bool) -> LinkId {
        let greeting = self.greeting(to, extra);
        match self.node.connect(&format!("p{to}"), &greeting, Some(LONG)) {
            Ok(link) => link,
            Err(e) => self.fail(&format!("connecting to {to}: {e}")),
        }
    }

    /// A main link exists: a peer without tickets gets them.
    fn linked(&mut self, to: usize, link: LinkId, back: Ticket) {
        let other = &mut self.others[to];
        if other.standing != Standing::Down {
            let standing = other.standing;
            self.fail(&format!("linked to {to}, which was {standing:?}"));
        }
        (other.standing, other.link, other.back) = (Standing::Up, Some(link), Some(back));
        self.begin(to);
    }

    fn begin(&mut self, to: usize) {
        if !std::mem::replace(&mut self.others[to].has_begun, true) {
            (0..ENTRIES).for_each(|entry| self.give_back(to, entry));
        }
    }

    fn connect_main(&mut self, to: usize) {
        let link = self.connect(to, false);
        let greeting = self.node.greeting(link).unwrap();
        let back = Ticket::from_bytes(&greeting[self.me * 44..][..44]).unwrap();
        self.note(format!("connected to {to}"));
        self.linked(to, link, back);
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.node.next_event() {
            match event {
                Event::Connected { link, .. } => {
                    // It may have gone again already.
                    let Ok(greeting) = self.node.greeting(link) else { continue };
                    let (from, is_extra) = (greeting[0] as usize, greeting[1] != 0);
                    let back = Ticket::from_bytes(&greeting[2..]).unwrap();
                    if !is_extra {
                        self.note(format!("{from} connected"));
                        self.linked(from, link, back);
                    }
                }
                Event::Closed { link, reason, unsent } => {
                    if reason != hamlyn::node::CloseReason::Closed || unsent != 0 {
                        self.fail(&format!("{link:?} was closed: {reason:?}, {unsent} unsent"));
                    }
                    let of = self.others.iter().position(|other| other.link == Some(link));
                    if let Some(of) = of {
                        if self.others[of].standing != Standing::Agreed {
                            self.fail(&format!("{of} closed its link without having asked"));
                        }
                        self.note(format!("{of} closed"));
                        self.others[of].standing = Standing::Down;
                        self.others[of].link = None;
                        // The end that closed it makes it again.
                        self.others[of].rest = u64::MAX;
                    }
                }
                other => self.fail(&format!("{other:?}")),
            }
        }
    }

    fn has_all(&self, to: usize) -> bool {
        self.others[to].free.iter().all(Option::is_some)
    }

    /// Makes and closes links as needed, without being asked.
    fn tend_links(&mut self) {
        for to in 0..self.others.len() {
            let has_all = self.has_all(to);
            let has_link = self.has_link(to);
            let other = &mut self.others[to];
            match other.standing {
                // An extra link of the other one may not yet be known to be closed; messages sent
                // over it would be lost.
                Standing::Down if other.rest == 0 && has_link => {}
                Standing::Down if other.rest == 0 => self.connect_main(to),
                Standing::Down if other.rest != u64::MAX => other.rest -= 1,
                Standing::Wants if has_all => {
                    other.standing = Standing::Asked;
                    self.close_extra(to);
                    self.say_to(to, ASK);
                }
                Standing::Agreeing if has_all => {
                    other.standing = Standing::Agreed;
                    self.close_extra(to);
                    self.say_to(to, AGREE);
                }
                _ => {}
            }
        }
    }

    fn has_link(&self, to: usize) -> bool {
        let Some(back) = self.others[to].back else { return false };
        let mut links = self.node.links();
        links.any(|link| self.node.peer(link).is_ok_and(|peer| peer.node == back.destination))
    }

    fn close_extra(&mut self, to: usize) {
        if let Some(link) = self.others[to].extra.take() {
            self.node.disconnect(link).unwrap();
        }
    }

    fn say_to(&mut self, to: usize, what: u32) {
        let ticket =
            Ticket { metadata_index: MetadataIndex(what), ..self.others[to].back.unwrap() };
        self.send_part(&ticket, b"", b"");
    }

    // ---- sending

    fn sent(&mut self, result: Result<(), NodeSendError>) {
        match result {
            Ok(_) => {}
            Err(e) => self.fail(&format!("sending: {e}")),
        }
    }

    /// One message, or a part of a group, in one of the ways that there are.
    fn send_part(&mut self, ticket: &Ticket, data: &[u8], metadata: &[u8]) {
        let terminus = self.termini[self.random.below(3) as usize];
        match self.random.below(5) {
            0 => {
                let result = self.node.send(ticket, data, metadata, LIMIT);
                self.sent(result);
            }
            1 => {
                let mut result = self.node.send_on(
                    terminus,
                    ticket,
                    data,
                    metadata,
                    Some(Duration::from_micros(self.random.below(300))),
                );
                let end = Instant::now() + LONG;
                while let Err(NodeSendError::TimedOut { unfinished }) = result {
                    if Instant::now() > end {
                        self.fail("a message could not be finished");
                    }
                    let short = Some(Duration::from_micros(self.random.below(1000)));
                    result = match unfinished {
                        Some(rest) => self.node.send_rest(*rest, data, short),
                        None => self.node.send_on(terminus, ticket, data, metadata, short),
                    };
                }
                self.sent(result);
            }
            2 => match self.node.try_send_on(terminus, ticket, data, metadata) {
                Err(NodeSendError::Full | NodeSendError::TooLongToTry { .. }) => {
                    let result = self.node.send_on(terminus, ticket, data, metadata, LIMIT);
                    self.sent(result);
                }
                result => self.sent(result),
            },
            _ => self.gather(ticket, data, metadata),
        }
    }

    fn gather(&mut self, ticket: &Ticket, data: &[u8], metadata: &[u8]) {
        let node = &self.node;
        let is_free = |b: &(TerminusId, BufferTag, Option<SendHandle>)| {
            b.2.as_ref().is_none_or(|handle| node.is_reusable(handle))
        };
        let Some(i) = self.buffers.iter().position(is_free) else {
            let result = self.node.send(ticket, data, metadata, LIMIT);
            return self.sent(result);
        };
        let (terminus, tag, _) = self.buffers[i];
        // The data lies in the buffer as it is, and is cut into pieces.
        self.node.send_buffer_mut(terminus, tag).unwrap()[..data.len()].copy_from_slice(data);
        let mut cuts: Vec<u64> =
            (0..self.random.below(6)).map(|_| self.random.below(data.len() as u64 + 1)).collect();
        cuts.extend([0, data.len() as u64]);
        cuts.sort_unstable();
        let pieces: Vec<Piece> =
            cuts.windows(2).map(|w| Piece { tag, offset: w[0], length: w[1] - w[0] }).collect();
        match self.node.post_send(terminus, ticket, &pieces, metadata) {
            Ok(handle) => self.buffers[i].2 = Some(handle),
            Err(NodeSendError::Full) => {
                let result = self.node.send_on(terminus, ticket, data, metadata, LIMIT);
                self.sent(result);
            }
            Err(e) => self.fail(&format!("posting: {e}")),
        }
    }

    /// Sends the next message to `to` with one of the tickets that are here.
    fn send_next(&mut self, to: usize) {
        let at = self.random.below(ENTRIES as u64) as usize;
        let entries = (0..ENTRIES).map(|i| (at + i) % ENTRIES);
        let Some(entry) = entries.into_iter().find(|e| self.others[to].free[*e].is_some()) else {
            return;
        };
        let ticket = self.others[to].free[entry].take().unwrap();
        let number = self.others[to].numbers;
        self.others[to].numbers += 1;
        let kind = KINDS[entry];
        let (data, metadata) = message(self.seed, self.me, to, number, kind);
        self.note(format!("to {to}: {number}, entry {entry}, {} bytes", data.len()));
        if kind == Kind::Fast {
            let result = match self.node.try_send_fast(&ticket, &data, number) {
                Err(NodeSendError::Full) => self.node.send_fast(&ticket, &data, number, LIMIT),
                other => other,
            };
            return self.sent(result);
        }
        if !self.random.one_in(3) {
            return self.send_part(&ticket, &data, &metadata);
        }
        // A group: parts of the ticket, in any order, by any terminus; the metadata with one.
        let exact = Ticket { bound: ticket.base + data.len() as u64, ..ticket };
        let mut parts = exact.split_evenly(2 + self.random.below(4)).unwrap();
        let with_metadata = self.random.below(parts.len() as u64) as usize;
        let bearer = parts[with_metadata];
        for i in (1..parts.len()).rev() {
            parts.swap(i, self.random.below(i as u64 + 1) as usize);
        }
        for part in parts {
            let from = (part.base - ticket.base) as usize..(part.bound - ticket.base) as usize;
            let metadata = if part == bearer { &metadata[..] } else { &[] };
            self.send_part(&part, &data[from], metadata);
        }
    }

    // ---- receiving

    /// A region may be written again: its ticket goes to its writer.
    fn give_back(&mut self, to: usize, entry: usize) {
        let index = MetadataIndex(entry as u32);
        let [normal, paranoid, one_shot, _] = self.others[to].slots;
        let limits = (entry * REGION_BYTES) as u64..((entry + 1) * REGION_BYTES) as u64;
        let node = &mut self.node;
        let ticket = match KINDS[entry] {
            Kind::Normal => Ticket {
                base: limits.start,
                bound: limits.end,
                ..node.ticket(normal, index).unwrap()
            },
            Kind::Fast => Ticket {
                base: limits.start,
                bound: limits.end,
                ..node.fast_ticket(normal).unwrap()
            },
            kind => {
                let slot = if kind == Kind::Paranoid { paranoid } else { one_shot };
                node.arm(slot, index, Some(limits)).unwrap();
                node.ticket(slot, index).unwrap()
            }
        };
        let back = Ticket { metadata_index: index, ..self.others[to].back.unwrap() };
        self.send_part(&back, b"", &ticket.to_bytes());
    }

    fn take_data(&mut self, notification: Notification) {
        let (from, which) = self.by_slot[&notification.slot.index().0];
        let slot = self.others[from].slots[which];
        let is_fast = notification.index == MetadataIndex::FAST;
        let entry = if is_fast { ENTRIES - 1 } else { notification.index.0 as usize };
        let start = (from * ENTRIES + entry) * REGION_BYTES;
        let bytes = &self.node.area(self.area).unwrap()[start..start + REGION_BYTES];
        let (metadata, number) = if is_fast {
            (Vec::new(), notification.word)
        } else {
            let metadata = self.node.metadata(slot, notification.index).unwrap().user();
            let at = if metadata.is_empty() { bytes } else { metadata };
            (metadata.to_vec(), u32::from_le_bytes([at[0], at[1], at[2], at[3]]))
        };
        let expected = message(self.seed, from, self.me, number, KINDS[entry]);
        let length = expected.0.len();
        if bytes[..length] != expected.0[..] || metadata != expected.1 {
            let differs = bytes.iter().zip(&expected.0).position(|(a, b)| a != b);
            self.fail(&format!(
                "message {number} from {from} in entry {entry} of {length} bytes is not what was \
                 sent, from byte {differs:?} on; metadata {metadata:?}, {:?} was sent",
                expected.1
            ));
        }
        if bytes[length..length + MARGIN].iter().any(|byte| *byte != 0) {
            self.fail(&format!("bytes behind message {number} from {from} were written"));
        }
        if !self.others[from].seen.insert(number) {
            self.fail(&format!("message {number} from {from} came twice"));
        }
        self.node.area_mut(self.area).unwrap()[start..start + length].fill(0);
        self.give_back(from, entry);
    }

    fn take_back(&mut self, notification: Notification) {
        let (from, which) = self.by_slot[&notification.slot.index().0];
        let slot = self.others[from].slots[which];
        if self.others[from].standing == Standing::Down {
            // It has connected, and its first message is looked at before that.
            self.handle_events();
        }
        let standing = self.others[from].standing;
        match notification.index.0 {
            ASK => match standing {
                // The lower one's question counts when both ask.
                Standing::Wants | Standing::Asked if self.me < from => {}
                Standing::Up | Standing::Wants | Standing::Asked => {
                    self.others[from].standing = Standing::Agreeing;
                }
                other => self.fail(&format!("{from} asks to close while {other:?}")),
            },
            AGREE => {
                if standing != Standing::Asked {
                    self.fail(&format!("{from} agrees to close while {standing:?}"));
                }
                let link = self.others[from].link.take().unwrap();
                if self.node.disconnect(link) != Ok(0) {
                    self.fail("messages were left when a link was closed");
                }
                self.note(format!("closed {from}"));
                self.others[from].standing = Standing::Down;
                self.others[from].rest = self.random.below(300);
            }
            entry => {
                let entry = entry as usize;
                let metadata = self.node.metadata(slot, notification.index).unwrap().user();
                let ticket = match Ticket::from_bytes(metadata) {
                    Ok(ticket) => ticket,
                    Err(e) => self.fail(&format!("what {from} gave back is no ticket: {e}")),
                };
                if self.others[from].free[entry].replace(ticket).is_some() {
                    self.fail(&format!("{from} gave the ticket of entry {entry} back twice"));
                }
            }
        }
    }

    fn take_all(&mut self) -> bool {
        let mut any = false;
        // Sometimes a few are left for later.
        for _ in 0..1 + self.random.below(20) {
            let taken = self.node.try_recv(self.back).unwrap();
            let data = self.node.try_recv(self.data).unwrap();
            any |= taken.is_some() || data.is_some();
            if let Some(notification) = taken {
                self.take_back(notification);
            }
            match data {
                Some(notification) => self.take_data(notification),
                None => break,
            }
        }
        any
    }

    // ---- the whole

    fn turn(&mut self, is_ending: bool) {
        self.handle_events();
        let any = self.take_all();
        self.tend_links();
        if is_ending {
            if !any {
                self.node.wait(Some(Duration::from_millis(2))).unwrap();
            }
            return;
        }
        let to = self.random.below(self.others.len() as u64) as usize;
        let is_other = to != self.me;
        match self.random.below(400) {
            0 if is_other && self.others[to].standing == Standing::Up => {
                self.others[to].standing = Standing::Wants;
            }
            1..=4 if is_other && self.others[to].standing == Standing::Up => {
                match self.others[to].extra.take() {
                    Some(link) => drop(self.node.disconnect(link).unwrap()),
                    None => self.others[to].extra = Some(self.connect(to, true)),
                }
            }
            5..=40 => {
                let result = self.node.flush(Some(Duration::from_micros(self.random.below(500))));
                if let Err(e) = result {
                    self.fail(&format!("flushing: {e}"));
                }
            }
            41..=60 => {
                let short = Some(Duration::from_micros(self.random.below(3000)));
                if let Ok(notification) = self.node.recv(self.data, short) {
                    self.take_data(notification);
                }
            }
            _ if self.others[to].standing == Standing::Up => self.send_next(to),
            _ if !any => drop(self.node.wait(Some(Duration::from_millis(1))).unwrap()),
            _ => {}
        }
    }

    /// Everything that this process sent has come, and no link is half closed.
    fn is_idle(&self) -> bool {
        (0..self.others.len()).all(|to| {
            self.has_all(to) && matches!(self.others[to].standing, Standing::Up | Standing::Down)
        })
    }

    fn run(&mut self, role: &Role) {
        let count = self.others.len();
        say("ready");
        role.wait_for("go");
        for to in 0..self.me {
            self.connect_main(to);
        }
        self.others[self.me].standing = Standing::Up;
        self.others[self.me].back =
            Some(self.node.ticket(self.others[self.me].slots[3], MetadataIndex(0)).unwrap());
        self.begin(self.me);
        // The others connect here.
        (self.me + 1..count).for_each(|to| self.others[to].rest = u64::MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = std::io::stdin().read_line(&mut line);
            told.store(true, Ordering::Release);
        });
        let until = Instant::now() + Duration::from_millis(role.number(3));
        while Instant::now() < until {
            self.turn(false);
        }
        let end = Instant::now() + LONG;
        while !self.is_idle() {
            self.turn(true);
            if Instant::now() > end {
                self.fail("it does not come to its end");
            }
        }
        let sent: Vec<String> = self.others.iter().map(|other| other.numbers.to_string()).collect();
        say(&sent.join(" "));
        while !stop.load(Ordering::Acquire) {
            self.turn(true);
        }
        let refused: u64 = self
            .node
            .counters()
            .iter()
            .filter(|row| row.0.starts_with("refused_") || row.0 == "packets_discarded")
            .map(|row| row.1)
            .sum();
        if refused != 0 {
            self.fail("packets were refused");
        }
        let received: Vec<String> =
            self.others.iter().map(|other| other.seen.len().to_string()).collect();
        say(&received.join(" "));
        role.wait_for("end");
    }
}

/// Not a test: what each process does.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let mut actor = Actor::new(&role);
    actor.run(&role);
}

fn numbers(text: &str) -> Vec<u64> {
    text.split(' ').map(|n| n.parse().unwrap()).collect()
}

fn run(name: &str, count: usize, bulk: &str) {
    let seeds = match std::env::var("HAMLYN_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => {
            Random::new(std::process::id() as u64 ^ hamlyn::os::sys::monotonic_ns()).next() >> 32
        }
    };
    let seconds = std::env::var("HAMLYN_TEST_SECONDS").map_or(3, |s| s.parse::<u64>().unwrap());
    let again = format!("HAMLYN_TEST_SEED={seeds} cargo test --test processes -- {name}");
    loud(&format!("{name}: {again}"));
    let dir = Dir::new(
        name,
        &[
            ("RING_BYTES", "512"),
            ("BULK_RING_BYTES", bulk),
            ("BULK_AFTER_BYTES", "2000"),
            ("LINKS_MAX", "64"),
        ],
    );
    let args = |me: usize| format!("{me} {count} {seeds} {}", seconds * 1000);
    let mut peers: Vec<Peer> = (0..count).map(|i| Peer::start("actor", &dir, &args(i))).collect();
    peers.iter_mut().for_each(|peer| peer.expect("ready"));
    peers.iter_mut().for_each(|peer| peer.tell("go"));
    std::thread::sleep(Duration::from_secs(seconds.saturating_sub(1)));
    let sent: Vec<Vec<u64>> = peers.iter_mut().map(|peer| numbers(&peer.says())).collect();
    peers.iter_mut().for_each(|peer| peer.tell("stop"));
    let received: Vec<Vec<u64>> = peers.iter_mut().map(|peer| numbers(&peer.says())).collect();
    for (from, sent) in sent.iter().enumerate() {
        for (to, n) in sent.iter().enumerate() {
            assert_eq!(received[to][from], *n, "from {from} to {to}; again: {again}");
        }
    }
    let total: u64 = sent.iter().flatten().sum();
    loud(&format!("{name}: {total} messages"));
    assert!(total > 100, "{total} messages");
    peers.iter_mut().for_each(|peer| peer.tell("end"));
    peers.into_iter().for_each(Peer::end);
}

#[test]
fn random_operations_lose_nothing_in_the_smallest_rings() {
    run("random_operations_lose_nothing_in_the_smallest_rings", 4, "0");
}

#[test]
fn random_operations_lose_nothing_with_bulk_rings() {
    run("random_operations_lose_nothing_with_bulk_rings", 3, "4096");
}
