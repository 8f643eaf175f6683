//! Joining, and the client node: the program's thread alone uses it, in the handler of faults, too.
//!
//! ```text
//!   own server's thread   starts first, and admits the clients of all processes
//!   client node           a link to each server: messages there, answers back, deposits
//!   other's file          of a process of this host: mapped, to be read in place
//! ```
//! Messages of one client to one server, and deposits, arrive in order: they take one link.
//!
//! Never: a send waits for anything but room, while answers are taken.

use crate::Error;
use crate::inbox::{Inbox, Messages, PACKETS_PER_TURN, PIECE, split};
use crate::machine::wire::ToServer;
use crate::machine::{Links, Shape};
use crate::memory::{APPLIED, Memory, Other, PAGE, View};
use crate::serving::{self, FAREWELL_WORD, Hello, Place, TICKET, Welcome, piece_of};
use hamlyn::Ticket;
use hamlyn::config::WaitMode;
use hamlyn::job::{Job, Ranks};
use hamlyn::node::{Event, Node};
use hamlyn::{Accept, Access, Envelope, Flags, LinkId, NodeId, PreparedTicket, SlotConfig, SlotId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a ring: a few messages of full length.
const RING_BYTES: u32 = 256 << 10;
/// The time for which an answer is looked for before the thread sleeps, where each process has a core
/// for its server, too: with two on two cores, a lock takes 10 us, and 45 if they look.
const SPIN: Duration = Duration::from_micros(30);
/// How long leaving waits for the last words to be taken.
const FAREWELL: Duration = Duration::from_secs(10);

/// The processes, before they are linked.
pub struct Meeting {
    pub rank: usize,
    pub size: usize,
    job: Option<(Job, Ranks)>,
    name: Option<String>,
    client: Node,
    server: Node,
    nodes: Option<Vec<NodeId>>,
}

fn refused(doing: &str, error: impl core::fmt::Display) -> Error {
    Error::Refused(format!("{doing}: {error}"))
}

fn settings() -> Result<hamlyn::Config, Error> {
    let settings = hamlyn::Config::from_env().map_err(|e| refused("the settings", e))?;
    let ring = RING_BYTES.max(settings.ring_bytes);
    let settings = settings.ring_bytes(ring).bulk_ring_bytes(0u32).wait_mode(WaitMode::Blocking);
    Ok(settings.packets_per_turn(PACKETS_PER_TURN))
}

impl Meeting {
    /// The ranks of a job. Waits for all.
    pub fn job(limit: Option<Duration>) -> Result<Self, Error> {
        let wrong = |e| refused("joining the job", e);
        let job = Job::with_config(settings()?).map_err(wrong)?;
        let (client, _) = job.node("svm-client", b"", limit).map_err(wrong)?;
        job.put("svm-client-node", &client.id().0.to_le_bytes()).map_err(wrong)?;
        let (server, ranks) = job.node("svm", b"", limit).map_err(wrong)?;
        let nodes = (0..job.size()).map(|rank| {
            let bytes = job.get(rank, "svm-client-node").map_err(wrong)?;
            let bytes = bytes.try_into().map_err(|_| refused("joining the job", "no node's id"))?;
            Ok::<_, Error>(NodeId(u64::from_le_bytes(bytes)))
        });
        let nodes = Some(nodes.collect::<Result<_, _>>()?);
        let (rank, size) = (job.rank() as usize, job.size() as usize);
        let name = None;
        Ok(Self { rank, size, job: Some((job, ranks)), name, client, server, nodes })
    }

    /// Processes of one user and host, whose numbers are known, meet by a name.
    pub fn name(name: &str, rank: usize, size: usize) -> Result<Self, Error> {
        if rank >= size {
            return Err(Error::Misuse(format!("rank {rank}, where there are {size}")));
        }
        let node = || Node::with_config(settings()?).map_err(|e| refused("a node", e));
        let (client, server) = (node()?, node()?);
        let (job, name, nodes) = (None, Some(name.into()), None);
        Ok(Self { rank, size, job, name, client, server, nodes })
    }

    /// Starts the server, and links the client to all.
    pub fn link(
        self,
        shape: Shape,
        protocol: u32,
        memory: &Memory,
        token: u64,
        in_place: bool,
        limit: Option<Duration>,
    ) -> Result<Transport, Error> {
        let Self { rank: me, size, mut job, name, mut client, mut server, nodes } = self;
        let service = |rank: usize| match &name {
            Some(name) => format!("{name}-{rank}"),
            None => format!("svm-{:016x}", server.id().0),
        };
        let own = service(me);
        let others: Vec<String> = (0..size).map(service).collect();
        server.serve(&own, Access::SameUser, Accept::Ask).map_err(|e| refused("serving", e))?;
        let refusals = Arc::new(AtomicU64::new(0));
        let place = Place::new(
            server,
            shape,
            protocol,
            token,
            memory.shared.clone(),
            nodes,
            refusals.clone(),
        );
        let place = place.map_err(|e| refused("the server", e))?;
        let thread = std::thread::Builder::new().name("svm".into());
        let thread = thread.spawn(move || serving::serve(place, me));
        let thread = thread.map_err(|e| refused("the server's thread", e))?;

        let area = client.message_area(PIECE).map_err(|e| refused("memory for answers", e))?;
        let queue = client.notification_queue(1).map_err(|e| refused("a queue", e))?;
        let inbox = client.slot(SlotConfig::new(area, queue));
        let inbox = inbox.map_err(|e| refused("a slot for answers", e))?;
        client.install(inbox, Inbox::new()).map_err(|e| refused("a slot for answers", e))?;
        let ticket = client.fast_ticket(inbox).map_err(|e| refused("a ticket", e))?;
        let hello = Hello::new(me, &shape, protocol, ticket.to_bytes());
        let mut servers = Vec::with_capacity(size);
        for (rank, other) in others.iter().enumerate() {
            let doing = format!("a link to process {rank}");
            let link = match &mut job {
                Some((_, ranks)) if rank != me => {
                    ranks.set_greeting(hello.as_bytes());
                    let linked = ranks.link_to(&mut client, rank as u32, limit);
                    linked.map_err(|e| refused(&doing, e))?
                }
                _ => {
                    let linked = client.connect(other, hello.as_bytes(), limit);
                    linked.map_err(|e| refused(&doing, e))?
                }
            };
            servers.push(meet(&mut client, link, shape.pages as usize, in_place, rank == me)?);
        }
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Ok(Transport {
            node: client,
            servers,
            inbox,
            me,
            view: memory.shared.view,
            spin: if 2 * size <= cores { SPIN } else { Duration::ZERO },
            refusals,
            refused: 0,
            messages: 0,
            bytes: 0,
            deposits: 0,
            thread: Some(thread),
            _job: job,
        })
    }
}

/// A server, of what it has answered.
fn meet(
    node: &mut Node,
    link: LinkId,
    pages: usize,
    in_place: bool,
    is_own: bool,
) -> Result<Far, Error> {
    let wrong = |e: &dyn core::fmt::Display| refused("the greeting of a server", e);
    let greeting = node.greeting(link).map_err(|e| wrong(&e))?;
    let welcome = Welcome::read_from_bytes(greeting).map_err(|_| wrong(&"its length"))?;
    let ticket = |bytes: &[u8; TICKET]| Ticket::from_bytes(bytes).map_err(|e| wrong(&e));
    let in_order = Flags::IN_ORDER;
    let messages = ticket(&welcome.messages)?.with_flags(in_order | Flags::WAKE);
    let deposits = ticket(&welcome.deposits)?.with_flags(in_order);
    if messages.capacity() < PIECE as u64 || deposits.capacity() < (pages * PAGE) as u64 {
        return Err(wrong(&"tickets for too little"));
    }
    let deposits = node.prepare_over(link, &deposits).map_err(|e| wrong(&e))?;
    let peer = node.peer(link).map_err(|e| wrong(&e))?;
    let file = match (peer.pid, &peer.host) {
        _ if is_own => Err("from itself: its own pages need no fetch".to_string()),
        _ if !in_place => Err("it was not wanted".into()),
        (Some(pid), None) => {
            let bytes = pages * PAGE;
            Other::open(pid, welcome.descriptor.get(), welcome.token.get(), bytes)
                .map_err(|e| e.to_string())
        }
        _ => Err("another host, or its process cannot be seen".into()),
    };
    let piece = piece_of(node, link);
    Ok(Far { link, messages, deposits, piece, file, is_dead: false })
}

/// A server, from the client's side.
struct Far {
    link: LinkId,
    messages: Ticket,
    deposits: PreparedTicket,
    /// Bytes of one packet.
    piece: usize,
    /// Its memory, or why it cannot be read.
    file: Result<Other, String>,
    is_dead: bool,
}

/// The client's links.
pub struct Transport {
    node: Node,
    servers: Vec<Far>,
    inbox: SlotId,
    me: usize,
    view: View,
    spin: Duration,
    /// Messages that the own server has refused.
    pub refusals: Arc<AtomicU64>,
    /// Packets of servers that were thrown away.
    pub refused: u64,
    pub messages: u64,
    pub bytes: u64,
    pub deposits: u64,
    thread: Option<JoinHandle<()>>,
    _job: Option<(Job, Ranks)>,
}

/// Something has come.
pub enum Came {
    /// These messages were exchanged for none.
    Messages,
    /// The server of that process has ended.
    End(usize),
}

impl Transport {
    /// The process at the other end of a link.
    pub fn process(&self, link: LinkId) -> Option<usize> {
        self.servers.iter().position(|far| far.link == link)
    }

    /// Waits for messages of servers, or for the end of one.
    pub fn wait(&mut self, messages: &mut Messages) -> Result<Came, Error> {
        let wrong = |e: &dyn core::fmt::Display| refused("waiting for an answer", e);
        let mut began = None;
        loop {
            let took = self.node.poll().map_err(|e| wrong(&e))?;
            if let Ok(Some(inbox)) = self.node.installed_mut::<Inbox>(self.inbox) {
                self.refused += core::mem::take(&mut inbox.refused);
                if inbox.take(messages) {
                    return Ok(Came::Messages);
                }
            }
            while let Some(event) = self.node.next_event() {
                if let Event::Closed { link, .. } = event
                    && let Some(process) = self.process(link)
                {
                    self.servers[process].is_dead = true;
                    return Ok(Came::End(process));
                }
            }
            if took > 0 {
                continue;
            }
            if self.spin > Duration::ZERO
                && began.get_or_insert_with(Instant::now).elapsed() < self.spin
            {
                core::hint::spin_loop();
                continue;
            }
            self.node.wait(None).map_err(|e| wrong(&e))?;
        }
    }

    /// Automatic update: bytes of the library's view leave for the home's memory.
    pub fn deposit(&mut self, home: usize, offset: usize, bytes: &[u8]) {
        let far = &mut self.servers[home];
        self.deposits += 1;
        self.bytes += bytes.len() as u64;
        for (at, piece) in bytes.chunks(far.piece).enumerate() {
            // A link that has ended is told by an event.
            let offset = (offset + at * far.piece) as u64;
            let _ = self.node.send_prepared_at(&far.deposits, offset, piece, 0, None);
        }
    }

    /// The memory of a home that can be read here.
    pub fn in_place(&self, home: usize) -> Option<&View> {
        let far = &self.servers[home];
        let file = far.file.as_ref().ok().filter(|_| !far.is_dead);
        file.map(Other::view)
    }

    /// How pages of a process are fetched, in words.
    pub fn explain(&self, process: usize) -> String {
        let far = &self.servers[process];
        let way = self.node.explain(far.link).unwrap_or_else(|e| e.to_string());
        match &far.file {
            Ok(_) => format!("pages are read in place; messages: {way}"),
            Err(why) => format!("pages are asked for ({why}); messages: {way}"),
        }
    }

    /// Ends the own server, when its last answers have left, and the links.
    pub fn leave(mut self) {
        let far = &self.servers[self.me];
        let envelope = Envelope::new(&far.messages).word(FAREWELL_WORD).over(far.link);
        let _ = self.node.send_gathered(&envelope, &[&[0]], Some(FAREWELL));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = self.node.close(Some(FAREWELL));
    }
}

impl Links for Transport {
    fn send(&mut self, to: usize, message: &ToServer<'_>) {
        let far = &mut self.servers[to];
        if far.is_dead {
            return;
        }
        // Answers come from the server that was sent to last: the question is behind all else.
        if let Ok(Some(inbox)) = self.node.installed_mut::<Inbox>(self.inbox) {
            inbox.listen_to(far.link);
        }
        let (head, body) = message.parts();
        self.messages += 1;
        self.bytes += (head.len() + body.len()) as u64;
        let node = &mut self.node;
        // A link that has ended is told by an event.
        let _ = split(&head, body, far.piece, |slices, word| {
            let envelope = Envelope::new(&far.messages).word(word).over(far.link);
            node.send_gathered(&envelope, slices, None)
        });
    }

    fn applied(&self, writer: usize) -> u64 {
        self.view.word(APPLIED + writer).load(Ordering::Acquire)
    }
}
