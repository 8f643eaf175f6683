//! The two ends of a measurement: two processes, each pinned to a processor, with a node of Fast
//! Messages and a raw node of Hamlyn.
//!
//! ```text
//!   near                                   far (this program again, with `end`)
//!   a line with the test   --stdin-->
//!   its half of the test                   its half of the test
//!                          <--stdout--     a line with what it has counted
//! ```
//! Between tests the far end waits in `read`, so that it takes nothing of the processors.

use crate::Outcome;
use crate::sockets::Socket;
use hamlyn::{Accept, Access, MetadataIndex, Node, QueueId, SlotConfig, SlotId, Ticket};
use hamlyn_fm::{Config, Fm, Stream, Verdict};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

pub const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// The longest message.
pub const LONGEST: usize = 2 << 20;
/// Raw messages that may be on their way, and so many of long ones.
const WINDOW: u64 = 1024;
const LONG_WINDOW: u64 = 16;
/// In front of each message of the layer that matches: its number and its length, as MPI-FM's.
const HEADER: usize = 16;

pub fn pin(core: usize) -> Outcome {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|e| format!("cannot pin to processor {core}: {e}").into())
}

/// A way for messages between the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Way {
    /// The raw interface, in fast mode, notified.
    Raw,
    /// `FM_send_4`.
    Send4,
    /// Begin, one piece, end; the handler receives into its buffer.
    Two,
    /// The same in pieces of 16 KiB at both ends.
    Pieces,
    /// `FM_send` of 1.x: the handler has the whole message in a staging buffer.
    One,
    /// A header and a body that goes to a posted buffer, over 2.x.
    MatchTwo,
    /// The same over 1.x: assembled into one buffer, staged, copied out.
    MatchOne,
    Unix,
    Tcp,
}

/// A test: messages that go to and fro, or one after another.
#[derive(Clone, Debug, clap::Args)]
pub struct Test {
    pub way: Way,
    /// Messages, or round trips.
    pub count: u64,
    /// To and fro.
    #[arg(long)]
    pub pingpong: bool,
    /// All have this length; 0: lengths from the mix of this seed.
    pub size: usize,
    /// Which mix.
    #[arg(default_value_t = 0)]
    pub mix: usize,
}

impl Test {
    /// The lengths of some messages; the test goes through them again and again.
    fn lengths(&self) -> Vec<usize> {
        match self.size {
            0 => crate::mix::lengths(self.mix),
            size => vec![size],
        }
    }

    fn line(&self) -> String {
        let pingpong = if self.pingpong { "--pingpong" } else { "" };
        let way = clap::ValueEnum::to_possible_value(&self.way);
        let way = way.map_or(String::new(), |way| way.get_name().to_owned());
        format!("{way} {} {} {} {pingpong}", self.count, self.size, self.mix)
    }
}

/// The counts of a test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    pub seconds: f64,
    pub bytes: u64,
    /// The share of a receiver's bytes that went straight to the handler's buffer.
    pub direct: f64,
}

/// A raw node with a link to the other end.
struct Raw {
    node: Node,
    queue: QueueId,
    _slot: SlotId,
    fast: Ticket,
    long: Ticket,
}

impl Raw {
    fn new(is_near: bool) -> Outcome<Self> {
        let mut node = Node::with_config(hamlyn::Config::from_env()?)?;
        let area = node.message_area(LONGEST)?;
        let queue = node.notification_queue(2 * WINDOW as u32)?;
        let slot = node.slot(SlotConfig::new(area, queue).credit(2 * WINDOW as u32))?;
        let mut own = node.fast_ticket(slot)?.to_bytes().to_vec();
        own.extend(node.ticket(slot, MetadataIndex(0))?.to_bytes());
        let link = if is_near {
            let began = Instant::now();
            loop {
                match node.connect("raw", &own, LIMIT) {
                    Ok(link) => break link,
                    Err(e) if began.elapsed() > Duration::from_secs(10) => return Err(e.into()),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        } else {
            node.serve("raw", Access::SameUser, Accept::Automatic(own))?;
            loop {
                if let Some(hamlyn::Event::Connected { link, .. }) = node.next_event() {
                    break link;
                }
                node.wait(LIMIT)?;
            }
        };
        let greeting = node.greeting(link)?.to_vec();
        let [fast, long] = [0, 1].map(|at| greeting.chunks(greeting.len() / 2).nth(at));
        let ticket = |bytes: Option<&[u8]>| Ticket::from_bytes(bytes.unwrap_or_default());
        let (fast, long) = (ticket(fast)?, ticket(long)?);
        Ok(Self { node, queue, _slot: slot, fast, long })
    }

    #[inline(always)]
    fn send(&mut self, data: &[u8]) -> Outcome {
        match data.len() <= 4096 {
            true => self.node.send_fast(&self.fast, data, 0, LIMIT)?,
            false => self.node.send(&self.long, data, b"", LIMIT)?,
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Outcome {
        black_box(self.node.recv(self.queue, LIMIT)?);
        Ok(())
    }

    /// Messages one way, each quarter of the window acknowledged; the last one, too.
    fn stream(&mut self, is_near: bool, test: &Test, data: &[u8]) -> Outcome {
        let lengths = test.lengths();
        let window = if lengths[0] > 4096 { LONG_WINDOW } else { WINDOW };
        let (mut open, mut lengths) = (0, lengths.iter().cycle());
        for number in 1..=test.count {
            let is_acknowledged = number % (window / 4) == 0 || number == test.count;
            if is_near {
                self.send(&data[..*lengths.next().unwrap_or(&0)])?;
                open += u64::from(is_acknowledged);
                if open == 4 {
                    self.receive()?;
                    open -= 1;
                }
            } else {
                self.receive()?;
                if is_acknowledged {
                    self.send(&data[..8])?;
                }
            }
        }
        (0..open).try_for_each(|_| self.receive())
    }
}

/// The messages that handlers have seen.
#[derive(Default)]
struct Seen {
    messages: Cell<u64>,
    /// The buffers of the program: of a message, and the staging buffer of 1.x.
    place: RefCell<Vec<u8>>,
    stage: RefCell<Vec<u8>>,
}

impl Seen {
    fn one_more(&self) -> Verdict {
        self.messages.set(self.messages.get() + 1);
        Verdict::Continue
    }

    fn stage<'a>(stage: &'a mut [u8], stream: &mut Stream<'_>) -> &'a [u8] {
        let came = stream.receive(stage);
        &stage[..came]
    }
}

/// One of the two.
pub struct End {
    is_near: bool,
    raw: Raw,
    fm: Fm,
    seen: Rc<Seen>,
    sockets: [Socket; 2],
    data: Vec<u8>,
    assembled: Vec<u8>,
}

impl End {
    pub fn new(is_near: bool, credit_bytes: u32, dir: &Path) -> Outcome<Self> {
        let raw = Raw::new(is_near)?;
        let fm = Fm::meet("fm", Config { credit_bytes, ..Config::default() })?;
        let sockets = Socket::pair(is_near, dir)?;
        let seen = Rc::new(Seen::default());
        *seen.place.borrow_mut() = vec![1; LONGEST + HEADER];
        *seen.stage.borrow_mut() = vec![1; LONGEST + HEADER];
        let register = |way: Way, handler: fn(&Seen, &mut Stream<'_>)| {
            let seen = seen.clone();
            fm.register(Some(way as u32), move |stream, _| {
                handler(&seen, stream);
                seen.one_more()
            })
        };
        register(Way::Send4, |_, stream| {
            black_box(stream.receive_value::<[u32; 4]>());
        })?;
        register(Way::Two, |seen, stream| {
            stream.receive(&mut seen.place.borrow_mut());
        })?;
        register(Way::Pieces, |seen, stream| {
            let place = &mut *seen.place.borrow_mut();
            for piece in place.chunks_mut(16 << 10) {
                if stream.receive(piece) < piece.len() {
                    break;
                }
            }
        })?;
        register(Way::One, |seen, stream| {
            black_box(Seen::stage(&mut seen.stage.borrow_mut(), stream));
        })?;
        register(Way::MatchTwo, |seen, stream| {
            let header: [u64; 2] = stream.receive_value().unwrap_or_default();
            let place = &mut *seen.place.borrow_mut();
            let length = place.len().min(header[1] as usize);
            stream.receive(&mut place[..length]);
        })?;
        register(Way::MatchOne, |seen, stream| {
            let stage = &mut *seen.stage.borrow_mut();
            let body = Seen::stage(stage, stream).get(HEADER..).unwrap_or_default();
            seen.place.borrow_mut()[..body.len()].copy_from_slice(body);
        })?;
        let (data, assembled) = (vec![3; LONGEST], Vec::with_capacity(LONGEST + HEADER));
        Ok(Self { is_near, raw, fm, seen, sockets, data, assembled })
    }

    fn extract(&self, until: u64) -> Outcome {
        while self.seen.messages.get() < until {
            if self.fm.extract(usize::MAX) == 0 && self.fm.has_left(1 - self.fm.node()) {
                return Err("the other end has left".into());
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn send(&mut self, way: Way, length: usize) -> Outcome {
        let (to, handler, data) = (1 - self.fm.node(), way as u32, &self.data[..length]);
        match way {
            Way::Send4 => self.fm.send_4(to, handler, [1, 2, 3, 4])?,
            Way::One => self.fm.send(to, handler, data)?,
            Way::MatchOne => {
                self.assembled.clear();
                self.assembled.extend_from_slice(&7u64.to_le_bytes());
                self.assembled.extend_from_slice(&(length as u64).to_le_bytes());
                self.assembled.extend_from_slice(data);
                self.fm.send(to, handler, &self.assembled)?;
            }
            _ => {
                let header = if way == Way::MatchTwo { HEADER } else { 0 };
                let piece = if way == Way::Pieces { 16 << 10 } else { LONGEST };
                let mut message = self.fm.begin(to, (header + length) as u64, handler)?;
                if header > 0 {
                    message.value(&[7, length as u64])?;
                }
                for piece in data.chunks(piece) {
                    message.piece(piece)?;
                }
                message.end()?;
            }
        }
        Ok(())
    }

    /// This end's half of a test.
    fn half(&mut self, test: &Test) -> Outcome {
        let (way, is_near, lengths) = (test.way, self.is_near, test.lengths());
        let mut lengths = lengths.iter().copied().cycle();
        let mut next = || lengths.next().unwrap_or(0);
        match way {
            Way::Raw if !test.pingpong => return self.raw.stream(is_near, test, &self.data),
            Way::Unix | Way::Tcp => {
                let socket = &mut self.sockets[usize::from(way == Way::Tcp)];
                for _ in 0..test.count {
                    match is_near {
                        true => socket.send(&self.data[..next()])?,
                        false => socket.receive(&mut self.assembled)?,
                    }
                }
                // The answer to the last.
                return match is_near {
                    true => socket.receive(&mut self.assembled),
                    false => socket.send(b"all"),
                };
            }
            _ => {}
        }
        let from = self.seen.messages.get();
        if !test.pingpong {
            return match is_near {
                true => {
                    (0..test.count).try_for_each(|_| self.send(way, next()))?;
                    self.extract(from + 1)
                }
                false => {
                    self.extract(from + test.count)?;
                    self.send(Way::Send4, 16)
                }
            };
        }
        for round in 1..=test.count {
            for is_turn in [is_near, !is_near] {
                match (is_turn, way) {
                    (true, Way::Raw) => self.raw.send(&self.data[..test.size])?,
                    (false, Way::Raw) => self.raw.receive()?,
                    (true, way) => self.send(way, test.size)?,
                    (false, _) => self.extract(from + round)?,
                }
            }
        }
        Ok(())
    }

    /// Runs a test of a line that the near end has written; counts its bytes.
    fn run(&mut self, test: &Test) -> Outcome<Counted> {
        let before = self.fm.figures();
        let began = Instant::now();
        self.half(test)?;
        let seconds = began.elapsed().as_secs_f64();
        let after = self.fm.figures();
        let received = after.bytes_received - before.bytes_received;
        let direct = (after.bytes_direct - before.bytes_direct) as f64 / received.max(1) as f64;
        let lengths = test.lengths();
        let bytes = lengths.iter().cycle().take(test.count as usize);
        let bytes = bytes.map(|bytes| *bytes as u64).sum();
        Ok(Counted { seconds, bytes, direct })
    }
}

/// The far end: runs tests until its input ends.
pub fn far(core: usize, credit_bytes: u32) -> Outcome {
    pin(core)?;
    let dir = std::env::var_os("HAMLYN_DIR").ok_or("HAMLYN_DIR is not set")?;
    let mut end = End::new(false, credit_bytes, Path::new(&dir))?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words = std::iter::once("test").chain(line.split_whitespace());
        let test = crate::parse_test(words)?;
        println!("{}", end.run(&test)?.direct);
    }
    Ok(())
}

/// Both.
pub struct Ends {
    near: End,
    child: Child,
    tests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Ends {
    /// Pins this thread to the first core, and a process to the second. `HAMLYN_DIR` is `dir`.
    pub fn new(cores: [usize; 2], credit: u32, dir: &Path) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["end", "--core", &cores[1].to_string(), "--credit", &credit.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        pin(cores[0])?;
        let tests = child.stdin.take();
        let answers = child.stdout.take().ok_or("the far end has no output")?;
        let near = End::new(true, credit, dir)?;
        let mut ends = Self { near, child, tests, answers: BufReader::new(answers) };
        ends.answer()?;
        Ok(ends)
    }

    fn answer(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line)? {
            0 => Err("the far end has failed".into()),
            _ => Ok(line),
        }
    }

    pub fn run(&mut self, test: &Test) -> Outcome<Counted> {
        let tests = self.tests.as_mut().ok_or("the far end is gone")?;
        writeln!(tests, "{}", test.line())?;
        let counted = self.near.run(test)?;
        let direct = self.answer()?.trim().parse()?;
        Ok(Counted { direct, ..counted })
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        drop(self.tests.take());
        let _ = self.child.wait();
    }
}
