//! The server node, and its thread: home of pages, manager of locks. It sleeps unless something comes.
//!
//! ```text
//!   a client connects    its rank and the space's sizes are checked; it gets a slot for messages, one for
//!                        deposits, and the words to find this process's memory file
//!   a message            machine::Server; answers that find no room wait here, in their order
//!   a link ends          the client died
//! ```
//! Never: the thread waits for a client; a client's garbage has another effect than a counter.

use crate::inbox::{BYE, Inbox, MESSAGE_BYTES_MAX, Messages, PIECE, split};
use crate::machine::wire::{Notice, ToClient, ToServer};
use crate::machine::{Host, Server, Shape};
use crate::memory::{APPLIED, PAGE, Shared};
use hamlyn::node::{Event, Node};
use hamlyn::{AreaId, AreaPages, Envelope, Flags, LinkId, NodeId, QueueId, RequestId};
use hamlyn::{SlotConfig, SlotId, Ticket};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a ticket.
pub const TICKET: usize = hamlyn::TICKET_BYTES;
const VERSION: u32 = 1;
/// How often room for answers is looked for, where a client takes none.
const ROOM: Duration = Duration::from_millis(1);
/// How long the last answers may take to leave.
const FAREWELL: Duration = Duration::from_secs(10);
/// Bytes of answers that may wait for one client, beside a whole log: a client that keeps the protocol has one
/// question at a time, and so one answer.
const WAITING_BYTES: usize = 1 << 20;

/// A client's greeting.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Hello {
    pub version: U32,
    pub rank: U32,
    pub size: U32,
    pub protocol: U32,
    pub pages: U64,
    /// For answers.
    pub ticket: [u8; TICKET],
}

/// A server's answer to it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Welcome {
    /// For messages, and for deposits into the shared space.
    pub messages: [u8; TICKET],
    pub deposits: [u8; TICKET],
    /// The memory file of the server's process: its descriptor there, and its token.
    pub descriptor: U32,
    pub token: U64,
}

impl Hello {
    pub fn new(rank: usize, shape: &Shape, protocol: u32, ticket: [u8; TICKET]) -> Self {
        Self {
            version: VERSION.into(),
            rank: (rank as u32).into(),
            size: (shape.processes as u32).into(),
            protocol: protocol.into(),
            pages: u64::from(shape.pages).into(),
            ticket,
        }
    }
}

struct Client {
    link: LinkId,
    /// The link is not known yet; messages that have come over it wait.
    request: Option<RequestId>,
    inbox: SlotId,
    ticket: Ticket,
    /// Bytes of one packet of the link.
    piece: usize,
    /// Pieces that found no room, and their bytes.
    waiting: VecDeque<(Vec<u8>, u32)>,
    waiting_bytes: usize,
}

/// The server's side of everything but the protocol.
pub struct Place {
    node: Node,
    shape: Shape,
    protocol: u32,
    token: u64,
    shared: Arc<Shared>,
    /// Under a launcher, the client nodes of the ranks.
    nodes: Option<Vec<NodeId>>,
    clients: Vec<Option<Client>>,
    /// Clients that were here once: each comes once.
    seen: Vec<bool>,
    inboxes: AreaId,
    space: AreaId,
    queue: QueueId,
    refused: Arc<AtomicU64>,
}

impl Place {
    /// A node becomes a server; `me` is this process.
    pub fn new(
        mut node: Node,
        shape: Shape,
        protocol: u32,
        token: u64,
        shared: Arc<Shared>,
        nodes: Option<Vec<NodeId>>,
        refused: Arc<AtomicU64>,
    ) -> Result<Self, String> {
        let text = |e: &dyn core::fmt::Display| e.to_string();
        let n = shape.processes;
        let inboxes = node.message_area(n * PIECE).map_err(|e| text(&e))?;
        // SAFETY: the file's bytes are accessed by copies alone, in every view.
        let pages = unsafe { AreaPages::of_file(&shared.file, 0, shape.pages as usize * PAGE) };
        let space = node.message_area_of(pages.map_err(|e| text(&e))?).map_err(|e| text(&e))?;
        let queue = node.notification_queue(2 * n as u32).map_err(|e| text(&e))?;
        let (clients, seen) = ((0..n).map(|_| None).collect(), vec![false; n]);
        Ok(Self {
            node,
            shape,
            protocol,
            token,
            shared,
            nodes,
            clients,
            seen,
            inboxes,
            space,
            queue,
            refused,
        })
    }

    /// Answers a request to be a client.
    fn meet(&mut self, id: RequestId, peer: &hamlyn::Peer, greeting: &[u8]) {
        match self.admit(id, peer, greeting) {
            Ok((rank, client, welcome)) => {
                if self.node.accept(id, welcome.as_bytes()).is_ok() {
                    self.seen[rank] = true;
                    self.clients[rank] = Some(client);
                }
            }
            Err(why) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                let _ = self.node.refuse(id, &why);
            }
        }
    }

    fn admit(
        &mut self,
        id: RequestId,
        peer: &hamlyn::Peer,
        greeting: &[u8],
    ) -> Result<(usize, Client, Welcome), String> {
        let hello = Hello::read_from_bytes(greeting).map_err(|_| "a greeting of no svm process")?;
        let rank = hello.rank.get() as usize;
        let ours = Hello::new(rank, &self.shape, self.protocol, hello.ticket);
        if hello.as_bytes() != ours.as_bytes() || rank >= self.shape.processes {
            let said = format!(
                "rank {rank} of {} joined with {} pages, protocol {}, version {}; here it is {} ranks, {} pages, \
                 protocol {}, version {VERSION}",
                hello.size,
                hello.pages,
                hello.protocol,
                hello.version,
                self.shape.processes,
                self.shape.pages,
                self.protocol,
            );
            return Err(said);
        }
        let is_right = |nodes: &Vec<NodeId>| peer.is_proved && nodes[rank] == peer.node;
        if self.seen[rank] || !self.nodes.as_ref().is_none_or(is_right) {
            return Err(format!("rank {rank} is another process"));
        }
        let wrong = |e: &dyn core::fmt::Display| e.to_string();
        let ticket = Ticket::from_bytes(&hello.ticket).map_err(|e| wrong(&e))?;
        if ticket.destination != peer.node || ticket.capacity() < PIECE as u64 {
            return Err("a ticket of another, or for too little".into());
        }
        let from = (rank * PIECE) as u64;
        let range = from..from + PIECE as u64;
        let inbox = SlotConfig::new(self.inboxes, self.queue).range(range);
        let inbox = self.node.slot(inbox).map_err(|e| wrong(&e))?;
        self.node.install(inbox, Inbox::new()).map_err(|e| wrong(&e))?;
        let deposits = self.node.slot(SlotConfig::new(self.space, self.queue));
        let deposits = deposits.map_err(|e| wrong(&e))?;
        let of = |slot| self.node.fast_ticket(slot).map(|ticket| ticket.to_bytes());
        let welcome = Welcome {
            messages: of(inbox).map_err(|e| wrong(&e))?,
            deposits: of(deposits).map_err(|e| wrong(&e))?,
            descriptor: (self.shared.file.as_raw_fd() as u32).into(),
            token: self.token.into(),
        };
        let ticket = ticket.with_flags(Flags::WAKE | Flags::IN_ORDER);
        let (link, request, waiting) = (LinkId::SELF, Some(id), VecDeque::new());
        let (piece, waiting_bytes) = (PIECE, 0);
        Ok((rank, Client { link, request, inbox, ticket, piece, waiting, waiting_bytes }, welcome))
    }

    fn rank_of(&self, link: LinkId) -> Option<usize> {
        let is_its = |client: &Option<Client>| {
            client.as_ref().is_some_and(|client| client.request.is_none() && client.link == link)
        };
        self.clients.iter().position(is_its)
    }

    /// Takes the node's events: clients that died. Whether a link has become known.
    fn take_events(&mut self, died: &mut Vec<usize>) -> bool {
        let mut has_new = false;
        while let Some(event) = self.node.next_event() {
            match event {
                Event::Request { id, peer, greeting } => self.meet(id, &peer, &greeting),
                Event::Connected { link, request } => {
                    let asked = |client: &&mut Client| client.request == request;
                    let clients = self.clients.iter_mut().flatten();
                    if let Some(client) = clients.filter(|it| it.request.is_some()).find(asked) {
                        (client.link, client.request) = (link, None);
                        client.piece = piece_of(&self.node, link);
                        has_new = true;
                    }
                }
                Event::RequestGone { id } => {
                    let asked = |client: &Option<Client>| {
                        client.as_ref().is_some_and(|client| client.request == Some(id))
                    };
                    died.extend(self.clients.iter().position(asked));
                }
                Event::Closed { link, .. } => died.extend(self.rank_of(link)),
                _ => {}
            }
        }
        has_new
    }

    /// Sends what waits, as far as there is room; whether all has left.
    fn send_waiting(&mut self) -> bool {
        let mut is_empty = true;
        for client in self.clients.iter_mut().flatten() {
            while let Some((piece, word)) = client.waiting.front() {
                let envelope = Envelope::new(&client.ticket).word(*word).over(client.link);
                match self.node.try_send_gathered(&envelope, &[piece]) {
                    Err(hamlyn::NodeSendError::Full) => {
                        is_empty = false;
                        break;
                    }
                    _ => client.waiting_bytes -= piece.len(),
                }
                client.waiting.pop_front();
            }
        }
        is_empty
    }
}

/// Bytes of one packet of a link.
pub fn piece_of(node: &Node, link: LinkId) -> usize {
    node.fast_bytes_max(link).unwrap_or(0).clamp(64, PIECE)
}

impl Host for Place {
    fn send(&mut self, to: usize, message: &ToClient<'_>) {
        let most = WAITING_BYTES + self.shape.log_max * size_of::<Notice>();
        let Some(client) = &mut self.clients[to] else { return };
        if client.waiting_bytes > most {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (head, body) = message.parts();
        let node = &mut self.node;
        let _ = split(&head, body, client.piece, |slices, word| {
            let envelope = Envelope::new(&client.ticket).word(word).over(client.link);
            if client.waiting.is_empty() {
                match node.try_send_gathered(&envelope, slices) {
                    Err(hamlyn::NodeSendError::Full) => {}
                    sent => return sent,
                }
            }
            let piece = slices.concat();
            client.waiting_bytes += piece.len();
            client.waiting.push_back((piece, word));
            Ok(())
        });
    }

    fn send_page(&mut self, to: usize, page: u32) -> bool {
        if !self.shared.serve(page) {
            return false;
        }
        let mut bytes = [0; PAGE];
        self.shared.view.read(page as usize * PAGE, &mut bytes);
        self.send(to, &ToClient::Page { page, bytes: &bytes });
        true
    }

    fn apply(&mut self, page: u32, offset: usize, bytes: &[u8]) -> bool {
        let is_here = self.shared.serve(page);
        if is_here {
            self.shared.view.write(page as usize * PAGE + offset, bytes);
        }
        is_here
    }
}

/// The thread's work, until the own client has said farewell and all answers have left.
pub fn serve(mut place: Place, me: usize) {
    let shape = place.shape;
    let mut server = Server::new(shape, me);
    let mut messages = Messages::new();
    let mut died = Vec::new();
    let mut ends: Option<Instant> = None;
    loop {
        let took = place.node.poll().unwrap_or(0);
        for from in 0..shape.processes {
            let known = |client: &&Client| client.request.is_none();
            let client = place.clients[from].as_ref().filter(known);
            let Some(inbox) = client.map(|client| client.inbox) else { continue };
            let Ok(Some(inbox)) = place.node.installed_mut::<Inbox>(inbox) else { continue };
            if inbox.bye && from == me && ends.is_none() {
                ends = Some(Instant::now());
            }
            place.refused.fetch_add(core::mem::take(&mut inbox.refused), Ordering::Relaxed);
            if !inbox.take(&mut messages) {
                continue;
            }
            for (_, bytes) in messages.iter() {
                let message = ToServer::decode(bytes, &shape);
                let taken = message.and_then(|message| server.take(from, message, &mut place));
                if taken.is_err() {
                    place.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            messages.clear();
            let view = &place.shared.view;
            for (writer, applied) in server.applied().iter().enumerate() {
                view.word(APPLIED + writer).store(*applied, Ordering::Release);
            }
        }
        let has_new = place.take_events(&mut died);
        for process in died.drain(..) {
            server.died(process, &mut place);
            place.clients[process] = None;
        }
        let is_empty = place.send_waiting();
        if ends.is_some_and(|began| is_empty || began.elapsed() > FAREWELL) {
            break;
        }
        if took == 0 && !has_new {
            // Room wakes it, too, but is nothing that it waits for.
            let limit = (!is_empty).then_some(ROOM);
            let _ = place.node.wait(limit);
        }
    }
    let _ = place.node.close(Some(FAREWELL));
}

/// The words and the length of a farewell.
pub const FAREWELL_WORD: u32 = BYE;
const _: () = assert!(MESSAGE_BYTES_MAX < u32::MAX as usize && PIECE > PAGE + 16);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::wire::Call;
    use crate::memory::Memory;
    use hamlyn::{Accept, Access};
    use std::path::Path;
    use std::thread::JoinHandle;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
    const SHAPE: Shape =
        Shape { processes: 2, pages: 16, page_bytes: PAGE, objects: 8, log_max: 64 };

    fn node(dir: &Path) -> Node {
        let config = hamlyn::Config::from_env().unwrap().dir(dir).bulk_ring_bytes(0u32);
        let config = config.ring_bytes(1u32 << 18);
        Node::with_config(config.packets_per_turn(crate::inbox::PACKETS_PER_TURN)).unwrap()
    }

    /// A server of process 0, its thread, its refusals.
    fn served(dir: &Path, base: usize) -> (Memory, JoinHandle<()>, Arc<AtomicU64>) {
        let memory = Memory::new(base, 16, 16, false, false, 7).unwrap();
        let refused = Arc::new(AtomicU64::new(0));
        let mut node = node(dir);
        node.serve("server", Access::SameUser, Accept::Ask).unwrap();
        let shared = memory.shared.clone();
        let place = Place::new(node, SHAPE, 0, 7, shared, None, refused.clone()).unwrap();
        (memory, std::thread::spawn(|| serve(place, 0)), refused)
    }

    struct Raw {
        node: Node,
        link: LinkId,
        inbox: SlotId,
        messages: Ticket,
        deposits: Ticket,
    }

    impl Raw {
        fn hello(node: &mut Node, rank: usize) -> (Hello, SlotId) {
            let (area, queue) =
                (node.message_area(PIECE).unwrap(), node.notification_queue(1).unwrap());
            let inbox = node.slot(SlotConfig::new(area, queue)).unwrap();
            node.install(inbox, Inbox::new()).unwrap();
            (Hello::new(rank, &SHAPE, 0, node.fast_ticket(inbox).unwrap().to_bytes()), inbox)
        }

        fn new(dir: &Path, rank: usize) -> Self {
            let mut node = node(dir);
            let (hello, inbox) = Self::hello(&mut node, rank);
            let link = node.connect("server", hello.as_bytes(), LIMIT).unwrap();
            let welcome = Welcome::read_from_bytes(node.greeting(link).unwrap()).unwrap();
            let ticket = |bytes: &[u8; TICKET]| Ticket::from_bytes(bytes).unwrap();
            let flags = Flags::WAKE | Flags::IN_ORDER;
            let messages = ticket(&welcome.messages).with_flags(flags);
            let deposits = ticket(&welcome.deposits).with_flags(flags);
            Self { node, link, inbox, messages, deposits }
        }

        fn send_raw(&mut self, bytes: &[u8], word: u32) {
            let envelope = Envelope::new(&self.messages).word(word).over(self.link);
            self.node.send_gathered(&envelope, &[bytes], LIMIT).unwrap();
        }

        fn send(&mut self, message: &ToServer<'_>) {
            let (head, body) = message.parts();
            split(&head, body, PIECE, |slices, word| {
                self.send_raw(&slices.concat(), word);
                Ok::<_, ()>(())
            })
            .unwrap();
        }

        /// The first bytes of the next answers, until one is of this kind.
        fn until(&mut self, kind: u8) -> Vec<u8> {
            let mut messages = Messages::new();
            loop {
                let inbox = self.node.installed_mut::<Inbox>(self.inbox).unwrap().unwrap();
                if inbox.take(&mut messages) {
                    if let Some((_, bytes)) = messages.iter().find(|(_, bytes)| bytes[0] == kind) {
                        return bytes.to_vec();
                    }
                    messages.clear();
                }
                assert!(self.node.wait(LIMIT).unwrap(), "no answer within the limit");
            }
        }
    }

    #[test]
    fn a_clients_garbage_is_counted_and_others_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let (memory, thread, refused) = served(dir.path(), 0x5e00_0000_0000);
        let (mut own, mut hostile) = (Raw::new(dir.path(), 0), Raw::new(dir.path(), 1));
        let mut wrong = 0;
        let mut random = 1u64;
        let mut garbage = [0; 600];
        for round in 0..2000 {
            for byte in &mut garbage {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = (random >> 33) as u8;
            }
            garbage[0] %= 40;
            hostile.send_raw(&garbage[..(random >> 40) as usize % 600], 1 | ((round % 7) << 2));
            wrong += 1;
        }
        // A message without an end.
        for _ in 0..50 {
            hostile.send_raw(&[3; PIECE], 0);
        }
        hostile.send_raw(b"its end", 1);
        // A deposit into another's page is what members may do; one beyond the space is not.
        assert!(hostile.deposits.capacity() == 16 * PAGE as u64);

        let known = [0.into(), 0.into()];
        own.send(&ToServer::Sync { call: Call::Acquire { lock: 0 }, all: false, known: &known });
        assert_eq!(own.until(35)[0], 35);
        own.send(&ToServer::Home { page: 0, count: 1, wanted: 0 });
        own.until(32);
        memory.shared.view.write(5, b"here");
        own.send(&ToServer::Fetch { page: 0, needs: &[] });
        assert_eq!(&own.until(33)[16 + 5..][..4], b"here");
        // All of it has been taken: the last thing that a client says is answered.
        drop(hostile);
        own.send_raw(&[0], FAREWELL_WORD);
        thread.join().unwrap();
        let refused = refused.load(Ordering::Relaxed);
        assert!(refused > wrong / 2, "{refused} of {wrong} messages were refused");
    }

    #[test]
    fn answers_that_a_client_does_not_take_are_bounded_and_others_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let (_memory, thread, refused) = served(dir.path(), 0x5c00_0000_0000);
        let (mut own, mut hostile) = (Raw::new(dir.path(), 0), Raw::new(dir.path(), 1));
        own.send(&ToServer::Home { page: 0, count: 1, wanted: 0 });
        own.until(32);
        let message = ToServer::Fetch { page: 0, needs: &[] };
        let (head, body) = message.parts();
        let began = Instant::now();
        while refused.load(Ordering::Relaxed) < 1000 {
            assert!(began.elapsed() < Duration::from_secs(60), "all answers wait");
            let envelope = Envelope::new(&hostile.messages).word(1).over(hostile.link);
            // It takes no turn, and so no answer.
            if hostile.node.try_send_gathered(&envelope, &[&head, body]).is_err() {
                std::thread::yield_now();
            }
        }
        own.send(&ToServer::Fetch { page: 0, needs: &[] });
        own.until(33);
        drop(hostile);
        own.send_raw(&[0], FAREWELL_WORD);
        thread.join().unwrap();
    }

    #[test]
    fn a_second_process_of_a_rank_and_one_with_other_sizes_are_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (_memory, thread, refused) = served(dir.path(), 0x5d00_0000_0000);
        let mut own = Raw::new(dir.path(), 0);
        let refusal = |change: fn(&mut Hello)| {
            let mut node = node(dir.path());
            let (mut hello, _) = Raw::hello(&mut node, 0);
            change(&mut hello);
            node.connect("server", hello.as_bytes(), LIMIT).unwrap_err().to_string()
        };
        let again = refusal(|_| ());
        assert!(again.contains("rank 0 is another process"), "{again}");
        let pages = refusal(|hello| (hello.rank, hello.pages) = (1.into(), 32.into()));
        assert!(pages.contains("32 pages"), "{pages}");
        let rank = refusal(|hello| hello.rank = 9.into());
        assert!(rank.contains("rank 9 of 2"), "{rank}");
        let ticket = refusal(|hello| (hello.rank, hello.ticket) = (1.into(), [9; TICKET]));
        assert!(ticket.contains("ticket"), "{ticket}");
        assert_eq!(refused.load(Ordering::Relaxed), 4);
        own.send_raw(&[0], FAREWELL_WORD);
        thread.join().unwrap();
    }
}
