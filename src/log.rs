//! Reports to an operator: links that come and go, refused and disconnected peers, by name and with
//! the reason.
//!
//! ```text
//!   control, when peers meet or part --> queue --> housekeeping, without a lock --> sink, `tracing`
//! ```
//! Messages are not logged, so they cost nothing. With neither a sink nor the
//! feature `tracing` no entry is kept. Entries that a peer can cause repeatedly are limited to
//! [so many a second](PER_USER_MAX) of each user and each other host; the excess is counted.
//!
//! Never: a thread that sends or receives calls the sink, unless it runs the control plane, too;
//! one user's or host's entries push out another's.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

/// Entries a second about peers of one user, or about another host by its proven identity. Excess
/// entries are counted, and reported in one entry. Two more accounts have the same limit: all hosts
/// that have proved nothing together, and the failures of this process itself.
pub const PER_USER_MAX: u32 = 64;
/// Users, and hosts with a proven identity, that have an account of their own within a second; all
/// others share one.
const USERS_MAX: usize = 256;
/// The most entries that wait for the sink.
const WAITING_MAX: usize = 4096;
/// A second, in nanoseconds.
const WINDOW_NS: u64 = 1_000_000_000;

/// The severity of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Normal operation.
    Info,
    /// A peer was refused, or is gone.
    Warning,
    /// A rule was broken.
    Error,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Kind {
    /// A link has been opened.
    Connected,
    /// This process refused a peer.
    Refused,
    /// This process could not connect.
    Failed,
    /// The peer closed a link after it had sent everything.
    Closed,
    /// The peer closed a link before everything was sent, or it can no longer be watched.
    Lost,
    /// The peer's process died.
    Died,
    /// This process disconnected a peer that broke the rules.
    SentAway,
    /// The peer ended a link, and states that this process broke the rules.
    Expelled,
    /// The peer revoked a right: a ticket, or an aperture.
    Revoked,
    /// Entries were left out: see [`PER_USER_MAX`].
    LeftOut,
}

impl Kind {
    /// Its severity.
    ///
    /// ```
    /// use hamlyn::log::{Kind, Level};
    ///
    /// assert_eq!((Kind::SentAway.name(), Kind::SentAway.level()), ("sent-away", Level::Error));
    /// ```
    pub fn level(self) -> Level {
        match self {
            Self::Connected | Self::Closed | Self::Revoked => Level::Info,
            Self::Refused | Self::Failed | Self::Lost | Self::Died | Self::LeftOut => {
                Level::Warning
            }
            Self::SentAway | Self::Expelled => Level::Error,
        }
    }

    /// A word for it, for programs: `connected`, `sent-away`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Closed => "closed",
            Self::Lost => "lost",
            Self::Died => "died",
            Self::SentAway => "sent-away",
            Self::Expelled => "expelled",
            Self::Revoked => "revoked",
            Self::LeftOut => "left-out",
        }
    }
}

/// One event. Text that a peer wrote has gone through [`printable`](crate::services::printable).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct Entry {
    /// The kind of event.
    pub kind: Kind,
    /// The peer's user, from the kernel; `None`: a user of another user namespace, or no user.
    pub user: Option<u32>,
    /// The peer's process; `None` if it cannot be seen from here.
    pub process: Option<u32>,
    /// The service over which the link was made; empty if there is none.
    pub service: String,
    /// The reason, or further details; may be empty.
    pub reason: String,
    pub(crate) of: LogAccount,
}

/// The account that an entry counts against; each has a limit a second.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogAccount {
    /// A user of this host; `None`: a user that cannot be seen from here.
    User(Option<u32>),
    /// Another host, by its proven identity in printable form.
    Host(String),
    /// Hosts that have proved nothing.
    Strangers,
    /// Failures of this process itself.
    Own,
    /// Users and hosts without an account of their own.
    Others,
}

impl LogAccount {
    /// The account in words, for entries that name no user.
    fn text(&self) -> String {
        match self {
            Self::User(_) => String::new(),
            Self::Host(identity) => alloc::format!(" of host {identity}"),
            Self::Strangers => " of hosts that have proved nothing".into(),
            Self::Own => " of what this process could not do".into(),
            Self::Others => " of yet others".into(),
        }
    }
}

/// The entry as a sentence without a full stop: `sent-away: user 1000, process 77, service x: it
/// guessed keys`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        let mut mark = ": ";
        if let Some(user) = self.user {
            write!(f, "{mark}user {user}")?;
            mark = ", ";
        }
        if let Some(process) = self.process {
            write!(f, "{mark}process {process}")?;
            mark = ", ";
        }
        if !self.service.is_empty() {
            write!(f, "{mark}service {}", self.service)?;
        }
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

/// A callback for entries.
pub type Sink = Arc<dyn Fn(&Entry) + Send + Sync>;

static SINK: RwLock<Option<Sink>> = RwLock::new(None);
static HAS_SINK: AtomicBool = AtomicBool::new(false);

/// From now on `sink` gets every entry of all nodes of this process, in place of the previous sink;
/// `None`: no sink. The housekeeping thread of each node calls it, without a lock of the library's:
/// it may call the library, but must not drop the node. While it runs, no peer can connect to that
/// node, and no death is reported. If the application runs the control plane, the application's
/// calls call the sink, perhaps with the node's own lock held: there it must not call the library.
/// If it panics, that entry is lost.
///
/// With the feature `tracing` the same entries are events of the target `hamlyn`, with or without a
/// sink.
///
/// ```
/// use std::sync::Arc;
///
/// hamlyn::log::set_sink(Some(Arc::new(|entry| eprintln!("{entry:?}"))));
/// // From here on connections, refusals and deaths are reported.
/// hamlyn::log::set_sink(None);
/// ```
pub fn set_sink(sink: Option<Sink>) {
    let mut place = SINK.write().unwrap_or_else(PoisonError::into_inner);
    HAS_SINK.store(sink.is_some(), Ordering::Relaxed);
    *place = sink;
}

/// Whether entries have a reader: a sink, or `tracing`.
pub(crate) fn is_wanted() -> bool {
    cfg!(feature = "tracing") || HAS_SINK.load(Ordering::Relaxed)
}

/// Passes an entry to `tracing` and the sink, and catches their panics.
pub(crate) fn tell(entry: &Entry) {
    #[cfg(feature = "tracing")]
    let _ = catch_unwind(AssertUnwindSafe(|| trace(entry)));
    // The lock is not held while the sink runs: it may set another one.
    let sink = SINK.read().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(sink) = sink {
        let _ = catch_unwind(AssertUnwindSafe(|| sink(entry)));
    }
}

#[cfg(feature = "tracing")]
fn trace(entry: &Entry) {
    macro_rules! event {
        ($level:ident) => {
            tracing::event!(
                target: "hamlyn",
                tracing::Level::$level,
                kind = entry.kind.name(),
                user = entry.user,
                process = entry.process,
                service = entry.service,
                reason = entry.reason,
                "{entry}"
            )
        };
    }
    match entry.kind.level() {
        Level::Info => event!(INFO),
        Level::Warning => event!(WARN),
        Level::Error => event!(ERROR),
    }
}

/// Entries that wait for the sink, and each account's count within this second. Pure: time is an
/// argument.
#[derive(Debug, Default)]
pub(crate) struct NoteLog {
    waiting: VecDeque<Entry>,
    since_ns: u64,
    /// Entries of each account within this second, including the ones left out.
    counts: BTreeMap<LogAccount, u32>,
    /// Entries that were left out because too many waited.
    dropped: u64,
}

impl NoteLog {
    /// Keeps an entry unless its account has reached its limit. `true`: it is the first that waits.
    pub fn add(&mut self, now_ns: u64, entry: Entry) -> bool {
        let was_empty = self.waiting.is_empty();
        if now_ns.saturating_sub(self.since_ns) >= WINDOW_NS {
            self.begin(now_ns);
        }
        let mut account = &entry.of;
        let is_one_of_many = matches!(account, LogAccount::User(_) | LogAccount::Host(_));
        if is_one_of_many && self.counts.len() >= USERS_MAX && !self.counts.contains_key(account) {
            account = &LogAccount::Others;
        }
        let count = self.counts.entry(account.clone()).or_default();
        *count = count.saturating_add(1);
        if *count <= PER_USER_MAX {
            self.push(entry);
        }
        was_empty && !self.waiting.is_empty()
    }

    /// Begins a second: reports the entries left out in the one before.
    fn begin(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
        for (account, count) in core::mem::take(&mut self.counts) {
            let more = count.saturating_sub(PER_USER_MAX);
            if more > 0 {
                let whose = account.text();
                let reason =
                    alloc::format!("{more} entries{whose} within a second, beyond {PER_USER_MAX}");
                self.push(left_out(account, reason));
            }
        }
    }

    fn push(&mut self, entry: Entry) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(entry);
        } else {
            self.dropped += 1;
        }
    }

    /// Takes all waiting entries, in the order of the events; and, if its second is over, the
    /// report of the entries left out.
    pub fn take(&mut self, now_ns: u64) -> VecDeque<Entry> {
        if now_ns.saturating_sub(self.since_ns) >= WINDOW_NS {
            self.begin(now_ns);
        }
        let mut taken = core::mem::take(&mut self.waiting);
        let dropped = core::mem::take(&mut self.dropped);
        if dropped > 0 {
            taken.push_back(left_out(
                LogAccount::Others,
                dropped.to_string() + " entries that nobody took in time",
            ));
        }
        taken
    }
}

fn left_out(of: LogAccount, reason: String) -> Entry {
    let user = if let LogAccount::User(user) = of { user } else { None };
    Entry { kind: Kind::LeftOut, user, process: None, service: String::new(), reason, of }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(user: u32) -> Entry {
        let (service, reason) = (String::new(), String::new());
        let (user, of) = (Some(user), LogAccount::User(Some(user)));
        Entry { kind: Kind::Refused, user, process: None, service, reason, of }
    }

    fn of_account(of: LogAccount) -> Entry {
        Entry { user: None, of, ..super::tests::of(0) }
    }

    #[test]
    fn one_user_who_is_refused_again_and_again_pushes_no_other_out() {
        let mut log = NoteLog::default();
        assert!(log.add(5, of(1)) && !log.add(5, of(1)));
        (0..10_000).for_each(|_| assert!(!log.add(6, of(1))));
        assert!(!log.add(7, of(2)));
        let told = log.take(8);
        assert_eq!(told.len(), PER_USER_MAX as usize + 1);
        assert_eq!(told.back().unwrap().user, Some(2));
        // The next second reports that, and the user has a full allowance again.
        assert!(log.add(5 + WINDOW_NS, of(1)));
        let told: alloc::vec::Vec<_> = log.take(6 + WINDOW_NS).into();
        assert_eq!((told[0].kind, told[0].user, told.len()), (Kind::LeftOut, Some(1), 2));
        assert!(told[0].reason.starts_with("9938 entries"), "{}", told[0].reason);
    }

    #[test]
    fn hosts_that_prove_nothing_push_out_neither_those_that_do_nor_what_this_process_cannot_do() {
        let mut log = NoteLog::default();
        let host = |name: &str| LogAccount::Host(name.into());
        (0..10_000).for_each(|_| _ = log.add(1, of_account(LogAccount::Strangers)));
        // Nor do hosts with a proven identity push out one another, or strangers.
        (0..10_000).for_each(|_| _ = log.add(1, of_account(host("evil"))));
        (0..10_000).for_each(|i| _ = log.add(1, of_account(host(&i.to_string()))));
        let told = log.take(2);
        let count = |of: &LogAccount| told.iter().filter(|entry| entry.of == *of).count();
        assert_eq!(count(&LogAccount::Strangers), PER_USER_MAX as usize);
        assert_eq!((count(&host("evil")), count(&host("7"))), (PER_USER_MAX as usize, 1));
        for of in [LogAccount::Own, LogAccount::Strangers] {
            let mut log = NoteLog::default();
            (0..10_000).for_each(|i| _ = log.add(1, of_account(host(&i.to_string()))));
            log.add(1, of_account(of.clone()));
            assert_eq!(log.take(2).back().unwrap().of, of);
        }
        // The report of entries left out names their account.
        log.add(WINDOW_NS + 1, of_account(LogAccount::Own));
        let told = log.take(WINDOW_NS + 2);
        let text: alloc::vec::Vec<_> = told.iter().map(Entry::to_string).collect();
        let says = |what: &str| text.iter().any(|text| text.contains(what));
        assert!(says("9936 entries of host evil within") && says("of yet others"), "{text:?}");
        assert!(says("9936 entries of hosts that have proved nothing within"), "{text:?}");
    }

    #[test]
    fn what_was_left_out_is_told_also_when_nothing_more_happens() {
        let mut log = NoteLog::default();
        (0..100).for_each(|_| _ = log.add(1, of(1)));
        assert_eq!(log.take(2).len(), PER_USER_MAX as usize);
        let told = log.take(2 * WINDOW_NS);
        assert!(told.len() == 1 && told[0].kind == Kind::LeftOut);
        assert!(log.take(3 * WINDOW_NS).is_empty());
    }

    #[test]
    fn very_many_users_and_a_listener_that_takes_nothing_cost_a_bounded_amount() {
        let mut log = NoteLog::default();
        for second in 1..100 {
            for user in 0..10_000 {
                log.add(second * WINDOW_NS, of(user));
            }
            assert!(log.counts.len() <= USERS_MAX + 1);
        }
        let told = log.take(100 * WINDOW_NS);
        assert_eq!(told.len(), WAITING_MAX + 1);
        assert!(told.back().unwrap().reason.contains("nobody took"));
    }

    #[test]
    fn an_entry_reads_as_a_sentence() {
        let mut entry = of(7);
        entry.process = Some(9);
        entry.service = "x".into();
        entry.reason = "this user may not connect".into();
        let text = "refused: user 7, process 9, service x: this user may not connect";
        assert_eq!(entry.to_string(), text);
        entry.user = None;
        entry.reason.clear();
        assert_eq!(entry.to_string(), "refused: process 9, service x");
    }
}
