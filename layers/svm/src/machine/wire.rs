//! Messages between clients and servers, as bytes.
//!
//! ```text
//!   head: kind, flags, process, number, value   16 bytes
//!   body: items of one type for each kind: needs, notices, differences, a vector, a page
//! ```
//! They are in little-endian order. `decode` checks all that a [`Shape`] can tell: numbers of pages, of
//! processes and of objects are in range afterwards, and so is each difference.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, Shape};

/// Bytes before the body.
pub const HEAD_BYTES: usize = 16;
/// Most bytes of a body, but for a page that is larger.
pub const BODY_BYTES_MAX: usize = 32 << 10;
/// Most notices of one message.
pub const NOTICES_MAX: usize = BODY_BYTES_MAX / size_of::<Notice>();
/// Pages whose homes one manager assigns, side by side, and tells in one answer.
pub const STRIPE: u32 = 64;
/// In [`ToClient::Homes`]: nobody has touched the page.
pub const UNASSIGNED: u8 = 0xff;
/// In the head: no process.
const NOBODY: u8 = 0xff;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    flags: u8,
    process: u8,
    _zero: u8,
    number: U32,
    value: U64,
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);

/// All intervals of `writer` up to `interval`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Need {
    pub interval: U64,
    pub writer: u8,
}

impl Need {
    /// The interval after all others: the writer died, and all its messages were taken.
    pub const END: u64 = u64::MAX;
}

/// In its interval, `writer` wrote `count` pages from `page` on, whose home is `home`. Without pages: there
/// was such a notice, which is forgotten.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Notice {
    pub interval: U64,
    pub page: U32,
    pub count: U16,
    pub home: u8,
    pub writer: u8,
}

/// Before the bytes of one difference.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Run {
    page: U32,
    offset: U16,
    bytes: U16,
}

/// Bytes that each difference takes beside its own.
pub const RUN_BYTES: usize = size_of::<Run>();

/// A call that orders memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Call {
    /// A lock that the caller does not hold.
    Acquire { lock: u32 },
    /// A lock that the caller holds.
    Release { lock: u32 },
    /// Until `count` processes are at the barrier. After any death it fails.
    Arrive { barrier: u32, count: usize },
    /// Gives a flag, 0 at first, a value.
    Set { flag: u32, value: u64 },
    /// Until the flag's value is as large. If it is not yet, it fails after any death.
    Wait { flag: u32, value: u64 },
    /// Releases the lock, which the caller holds, and acquires it again after a signal. After any death it
    /// fails, or is ordered with that process: the lock is held.
    WaitCondition { condition: u32, lock: u32 },
    /// Wakes the process that waits longest for the condition with that lock, which the caller holds, or all.
    Signal { condition: u32, lock: u32, all: bool },
}

impl Call {
    /// Its manager is asked; a condition variable is with its lock.
    pub fn object(&self) -> u32 {
        use Call::{Acquire, Arrive, Release, Set, Signal, Wait, WaitCondition};
        let (Acquire { lock: object }
        | Release { lock: object }
        | WaitCondition { lock: object, .. }
        | Signal { lock: object, .. }
        | Arrive { barrier: object, .. }
        | Set { flag: object, .. }
        | Wait { flag: object, .. }) = *self;
        object
    }

    /// The caller's stores are told.
    pub fn releases(&self) -> bool {
        !matches!(self, Self::Acquire { .. } | Self::Wait { .. })
    }

    /// It has an answer.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Self::Release { .. } | Self::Set { .. } | Self::Signal { .. })
    }
}

/// From a client.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum ToServer<'a> {
    /// Where is `page`? Of `count` pages of one stripe, those without a home get `wanted`. Answer: `Homes`.
    Home { page: u32, count: u32, wanted: usize },
    /// Answer: `Page`, as soon as the needs are in.
    Fetch { page: u32, needs: &'a [Need] },
    /// Answer: `Settled`, as soon as the needs are in.
    Settle { needs: &'a [Need] },
    /// Differences for pages at the server's process ([`take_run`]); those of the interval are complete
    /// unless it is 0. No answer.
    Diffs { interval: u64, runs: &'a [u8] },
    /// Before a `Sync` that releases. No answer.
    Notices(&'a [Notice]),
    /// All notices up to `known` are told, unless `all` says that some were forgotten.
    Sync { call: Call, all: bool, known: &'a [U64] },
}

/// From a server.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum ToClient<'a> {
    /// The homes of a stripe, from page `first` on.
    Homes {
        first: u32,
        homes: &'a [u8],
    },
    Page {
        page: u32,
        bytes: &'a [u8],
    },
    Settled,
    /// Before a `Done`.
    Notices(&'a [Notice]),
    /// The answer to a `Sync`. `all`: any page may have been written. `everyone`: all processes know up to
    /// `known`. `dead`: the lock's owner died, or somebody while the condition was waited for.
    Done {
        all: bool,
        everyone: bool,
        dead: Option<usize>,
        known: &'a [U64],
    },
    /// The question's answer is lost with this process.
    Died(usize),
    /// The program's call is not allowed.
    Misuse,
}

mod kind {
    pub const HOME: u8 = 1;
    pub const FETCH: u8 = 2;
    pub const SETTLE: u8 = 3;
    pub const DIFFS: u8 = 4;
    pub const NOTICES: u8 = 5;
    pub const ACQUIRE: u8 = 6;
    pub const RELEASE: u8 = 7;
    pub const ARRIVE: u8 = 8;
    pub const SET: u8 = 9;
    pub const WAIT: u8 = 10;
    pub const WAIT_CONDITION: u8 = 11;
    pub const SIGNAL: u8 = 12;

    pub const HOMES: u8 = 32;
    pub const PAGE: u8 = 33;
    pub const SETTLED: u8 = 34;
    pub const DONE: u8 = 35;
    pub const DIED: u8 = 36;
    pub const MISUSE: u8 = 37;
}

const ALL: u8 = 1;
const EVERYONE: u8 = 2;
/// A signal for all that wait.
const BROADCAST: u8 = 4;

fn head(kind: u8, flags: u8, process: u8, number: u32, value: u64) -> [u8; HEAD_BYTES] {
    let head = Head { kind, flags, process, _zero: 0, number: number.into(), value: value.into() };
    zerocopy::transmute!(head)
}

impl<'a> ToServer<'a> {
    /// The message's bytes: head, then body.
    pub fn parts(&self) -> ([u8; HEAD_BYTES], &'a [u8]) {
        match *self {
            Self::Home { page, count, wanted } => {
                (head(kind::HOME, 0, wanted as u8, page, count.into()), &[])
            }
            Self::Fetch { page, needs } => (head(kind::FETCH, 0, 0, page, 0), needs.as_bytes()),
            Self::Settle { needs } => (head(kind::SETTLE, 0, 0, 0, 0), needs.as_bytes()),
            Self::Diffs { interval, runs } => (head(kind::DIFFS, 0, 0, 0, interval), runs),
            Self::Notices(notices) => (head(kind::NOTICES, 0, 0, 0, 0), notices.as_bytes()),
            Self::Sync { call, all, known } => {
                let all = if all { ALL } else { 0 };
                let head = match call {
                    Call::Acquire { lock } => head(kind::ACQUIRE, all, 0, lock, 0),
                    Call::Release { lock } => head(kind::RELEASE, all, 0, lock, 0),
                    Call::Arrive { barrier, count } => {
                        head(kind::ARRIVE, all, 0, barrier, count as u64)
                    }
                    Call::Set { flag, value } => head(kind::SET, all, 0, flag, value),
                    Call::Wait { flag, value } => head(kind::WAIT, all, 0, flag, value),
                    Call::WaitCondition { condition, lock } => {
                        head(kind::WAIT_CONDITION, all, 0, condition, lock.into())
                    }
                    Call::Signal { condition, lock, all: broadcast } => {
                        let flags = all | if broadcast { BROADCAST } else { 0 };
                        head(kind::SIGNAL, flags, 0, condition, lock.into())
                    }
                };
                (head, known.as_bytes())
            }
        }
    }

    /// A message, from bytes that nobody else can change.
    pub fn decode(bytes: &'a [u8], shape: &Shape) -> Result<Self, Error> {
        let (head, body) = Head::read_from_prefix(bytes).map_err(|_| Error::Malformed("head"))?;
        let (number, value) = (head.number.get(), head.value.get());
        let page = || shape.page(number);
        let object = || shape.object(number.into());
        let call = match head.kind {
            kind::HOME => {
                let count = u32::try_from(value).unwrap_or(u32::MAX);
                if count == 0 || count > STRIPE - page()? % STRIPE {
                    return Err(Error::Malformed("pages of a stripe"));
                }
                let wanted = shape.process(head.process)?;
                return Ok(Self::Home { page: page()?, count, wanted });
            }
            kind::FETCH => return Ok(Self::Fetch { page: page()?, needs: needs(body, shape)? }),
            kind::SETTLE => return Ok(Self::Settle { needs: needs(body, shape)? }),
            kind::DIFFS => {
                let mut left = body;
                while let Some((page, offset, bytes)) = take_run(&mut left) {
                    shape.page(page)?;
                    if offset + bytes.len() > shape.page_bytes {
                        return Err(Error::Malformed("difference"));
                    }
                }
                if !left.is_empty() || body.len() > BODY_BYTES_MAX {
                    return Err(Error::Malformed("differences"));
                }
                return Ok(Self::Diffs { interval: value, runs: body });
            }
            kind::NOTICES => return Ok(Self::Notices(notices(body, shape)?)),
            kind::ACQUIRE => Call::Acquire { lock: object()? },
            kind::RELEASE => Call::Release { lock: object()? },
            kind::ARRIVE => {
                if value == 0 || value > shape.processes as u64 {
                    return Err(Error::Malformed("count of a barrier"));
                }
                Call::Arrive { barrier: object()?, count: value as usize }
            }
            kind::SET => Call::Set { flag: object()?, value },
            kind::WAIT => Call::Wait { flag: object()?, value },
            kind::WAIT_CONDITION => {
                Call::WaitCondition { condition: object()?, lock: shape.object(value)? }
            }
            kind::SIGNAL => {
                let all = head.flags & BROADCAST != 0;
                Call::Signal { condition: object()?, lock: shape.object(value)?, all }
            }
            _ => return Err(Error::Malformed("kind")),
        };
        Ok(Self::Sync { call, all: head.flags & ALL != 0, known: vector(body, shape)? })
    }
}

impl<'a> ToClient<'a> {
    /// The message's bytes: head, then body.
    pub fn parts(&self) -> ([u8; HEAD_BYTES], &'a [u8]) {
        match *self {
            Self::Homes { first, homes } => (head(kind::HOMES, 0, 0, first, 0), homes),
            Self::Page { page, bytes } => (head(kind::PAGE, 0, 0, page, 0), bytes),
            Self::Settled => (head(kind::SETTLED, 0, 0, 0, 0), &[]),
            Self::Notices(notices) => (head(kind::NOTICES, 0, 0, 0, 0), notices.as_bytes()),
            Self::Done { all, everyone, dead, known } => {
                let flags = if all { ALL } else { 0 } | if everyone { EVERYONE } else { 0 };
                let dead = dead.map_or(NOBODY, |process| process as u8);
                (head(kind::DONE, flags, dead, 0, 0), known.as_bytes())
            }
            Self::Died(process) => (head(kind::DIED, 0, process as u8, 0, 0), &[]),
            Self::Misuse => (head(kind::MISUSE, 0, 0, 0, 0), &[]),
        }
    }

    /// A message, from bytes that nobody else can change.
    pub fn decode(bytes: &'a [u8], shape: &Shape) -> Result<Self, Error> {
        let (head, body) = Head::read_from_prefix(bytes).map_err(|_| Error::Malformed("head"))?;
        let number = head.number.get();
        match head.kind {
            kind::HOMES => {
                let first = shape.page(number)?;
                let right = |&home: &u8| home == UNASSIGNED || shape.process(home).is_ok();
                let whole = first.is_multiple_of(STRIPE) && body.len() == STRIPE as usize;
                match whole && body.iter().all(right) {
                    true => Ok(Self::Homes { first, homes: body }),
                    false => Err(Error::Malformed("homes")),
                }
            }
            kind::PAGE if body.len() != shape.page_bytes => Err(Error::Malformed("page's bytes")),
            kind::PAGE => Ok(Self::Page { page: shape.page(number)?, bytes: body }),
            kind::SETTLED => Ok(Self::Settled),
            kind::NOTICES => Ok(Self::Notices(notices(body, shape)?)),
            kind::DONE => {
                let (all, everyone) = (head.flags & ALL != 0, head.flags & EVERYONE != 0);
                let dead = match head.process {
                    NOBODY => None,
                    process => Some(shape.process(process)?),
                };
                Ok(Self::Done { all, everyone, dead, known: vector(body, shape)? })
            }
            kind::DIED => Ok(Self::Died(shape.process(head.process)?)),
            kind::MISUSE => Ok(Self::Misuse),
            _ => Err(Error::Malformed("kind")),
        }
    }
}

/// Adds one difference to a message's. Its place in the page and its length fit 16 bits.
pub fn put_run(runs: &mut Vec<u8>, page: u32, offset: usize, bytes: &[u8]) {
    let (offset, length) = ((offset as u16).into(), (bytes.len() as u16).into());
    runs.extend_from_slice(Run { page: page.into(), offset, bytes: length }.as_bytes());
    runs.extend_from_slice(bytes);
}

/// The next difference: page, offset, bytes.
pub fn take_run<'a>(left: &mut &'a [u8]) -> Option<(u32, usize, &'a [u8])> {
    let (run, after) = Run::read_from_prefix(left).ok()?;
    let (bytes, after) = after.split_at_checked(run.bytes.get().into())?;
    *left = after;
    Some((run.page.get(), run.offset.get().into(), bytes))
}

fn needs<'a>(body: &'a [u8], shape: &Shape) -> Result<&'a [Need], Error> {
    let needs = <[Need]>::ref_from_bytes(body).map_err(|_| Error::Malformed("needs"))?;
    let right = |need: &Need| shape.process(need.writer).is_ok();
    match needs.len() <= 2 * shape.processes && needs.iter().all(right) {
        true => Ok(needs),
        false => Err(Error::Malformed("need")),
    }
}

fn notices<'a>(body: &'a [u8], shape: &Shape) -> Result<&'a [Notice], Error> {
    let notices = <[Notice]>::ref_from_bytes(body).map_err(|_| Error::Malformed("notices"))?;
    let right = |notice: &Notice| {
        let end = u64::from(notice.page.get()) + u64::from(notice.count.get());
        let processes = [notice.home, notice.writer];
        end <= shape.pages.into() && processes.iter().all(|&it| shape.process(it).is_ok())
    };
    match notices.len() <= NOTICES_MAX && notices.iter().all(right) {
        true => Ok(notices),
        false => Err(Error::Malformed("notice")),
    }
}

fn vector<'a>(body: &'a [u8], shape: &Shape) -> Result<&'a [U64], Error> {
    let vector = <[U64]>::ref_from_bytes(body).map_err(|_| Error::Malformed("vector"))?;
    match vector.len() == shape.processes {
        true => Ok(vector),
        false => Err(Error::Malformed("vector's length")),
    }
}
