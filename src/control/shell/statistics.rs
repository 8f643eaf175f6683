//! A service's statistics, asked for over its control socket: one connection, one question, one
//! answer.
//!
//! Never: an answer takes longer than the time limit, or makes a line of more than a bounded
//! length; the caller decides line by line which part of a long answer it keeps.

use super::super::frame::{FRAME_BYTES_MAX, Frame, LinkFeatures};
use super::super::identity::Identity;
use super::super::lookups::Lookups;
use super::super::machine::{ConnectFailure, Machine, NotNow};
use super::super::names::ServiceName;
use super::super::within::within;
use super::super::{Reason, printable_line};
use super::dial::{Finder, MissedTry, namesakes_soon, with_namesakes};
use super::{ConnectError, deadline_of, limits_of};
use crate::config::Config;
use crate::os::memory;
use crate::os::socket;
use crate::os::sys::{self, monotonic_ns};
use crate::os::thread;
use core::time::Duration;
use std::io;
use std::os::fd::AsFd;
use std::string::String;
use std::sync::LazyLock;
use std::vec::Vec;

/// The pause of a caller before it asks a listener without room again.
const PAUSE_MAX_NS: u64 = 5_000_000;

/// A running service's statistics, and the identity of the process that gave them.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub struct Statistics {
    /// Lines of a name, a space and a value. The service may be another user's: the lines hold only
    /// printable characters, for any bytes that it wrote (`text::printable`).
    pub text: String,
    /// The user who serves it, from the kernel; `None`: of another user namespace.
    pub uid: Option<u32>,
    /// The process, likewise; `None` if it cannot be seen from here.
    pub pid: Option<u32>,
}

/// The text of [`statistics_of`].
pub fn stat_of(
    config: &Config,
    service: &ServiceName,
    timeout: Option<Duration>,
) -> Result<String, ConnectError> {
    statistics_of(config, service, timeout).map(|told| told.text)
}

/// The statistics of a running service, for its owner and root. Nothing needs to be started, and
/// nothing is left behind; waits at most `timeout` for everything.
pub fn statistics_of(
    config: &Config,
    service: &ServiceName,
    timeout: Option<Duration>,
) -> Result<Statistics, ConnectError> {
    let mut text = String::new();
    let mut keep = |line: &str| {
        text.push_str(line);
        text.push('\n');
        true
    };
    match read_statistics(config, service, timeout, &mut keep)? {
        Answered { uid, pid, is_whole: true } => Ok(Statistics { text, uid, pid }),
        _ => Err(ConnectError::TimedOut("waiting for the statistics")),
    }
}

/// The identity of the process that answered [`read_statistics`].
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The user, from the kernel; `None`: of another user namespace.
    pub uid: Option<u32>,
    /// The process, likewise; `None` if it cannot be seen from here.
    pub pid: Option<u32>,
    /// The answer is complete: the time limit did not cut it.
    pub is_whole: bool,
}

/// [`statistics_of`] line by line, as they come; `line` returns whether it wants more. Lines that
/// came before the time limit passed are no error.
pub fn read_statistics(
    config: &Config,
    service: &ServiceName,
    timeout: Option<Duration>,
    line: &mut dyn FnMut(&str) -> bool,
) -> Result<Answered, ConnectError> {
    stat(config, service, timeout.unwrap_or(Duration::MAX), line)
}

/// The statistics of a service, line by line, for its owner and root: one question, in the caller,
/// which waits for at most `timeout` in any case. `line` returns whether it wants more.
fn stat(
    config: &Config,
    service: &ServiceName,
    timeout: Duration,
    line: &mut dyn FnMut(&str) -> bool,
) -> Result<Answered, ConnectError> {
    const BYTES_MAX: usize = 4 << 20;
    const DOING: &str = "waiting for the statistics";
    // A directory that another process holds blocks the threads that look into it: their number
    // stays bounded.
    static LOOKUPS: LazyLock<Lookups> = LazyLock::new(Lookups::default);
    let deadline_ns = deadline_of(timeout);
    let mut finder = Finder::of(service);
    let os = |error| ConnectError::Os { doing: DOING, error };
    let (socket, who) = loop {
        let left = Duration::from_nanos(deadline_ns.saturating_sub(monotonic_ns()));
        let opened = match LOOKUPS.begin(service) {
            Ok(running) => {
                let config = config.clone();
                let look = move || {
                    let opened = finder.open(&config);
                    drop(running);
                    (opened, finder)
                };
                let found = within(left, look).map_err(os)?;
                let (opened, looked) =
                    found.ok_or(ConnectError::TimedOut("looking for the name"))?;
                finder = looked;
                opened
            }
            Err(why) => Err(MissedTry::NotNow(NotNow::Busy, ConnectError::Unavailable(why))),
        };
        match opened {
            Ok(opened) => break opened,
            Err(MissedTry::NotNow(NotNow::Busy, error)) if monotonic_ns() >= deadline_ns => {
                return Err(error);
            }
            Err(MissedTry::NotNow(NotNow::Busy, _)) => {
                thread::sleep(Duration::from_nanos(PAUSE_MAX_NS));
            }
            // A name without a server has no statistics.
            Err(MissedTry::NotNow(NotNow::Absent, error) | MissedTry::Failed(error)) => {
                return Err(with_namesakes(error, || namesakes_soon(config, service)));
            }
        }
    };
    let identity = Identity::new().map_err(os)?;
    let limits = limits_of(config, &identity, LinkFeatures::empty());
    let hello = Machine::hello_for_statistics(&limits);
    socket::send(&socket, &Frame::Hello(hello).to_bytes(), &[]).map_err(os)?;
    let answered = |is_whole| Answered { uid: who.uid, pid: who.pid, is_whole };
    let (mut lines, mut bytes) = (StatisticsLines::default(), 0);
    let mut buffer = std::vec![0; FRAME_BYTES_MAX];
    loop {
        // Lines that are there already do not extend the time limit: more may come as fast as they
        // are read.
        if !sys::wait_for(&[(socket.as_fd(), false)], deadline_ns).map_err(os)?
            || monotonic_ns() >= deadline_ns
        {
            return if bytes > 0 {
                Ok(answered(false))
            } else {
                Err(ConnectError::TimedOut(DOING))
            };
        }
        let received = match socket::receive(&socket, &mut buffer) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            other => other.map_err(os)?,
        };
        if !received.descriptors.is_empty() {
            // Closing a stranger's descriptor may take as long as the stranger likes.
            memory::close_elsewhere(received.descriptors);
            return Err(ConnectError::Misbehaved("descriptors came".into()));
        }
        if received.bytes == 0 {
            return Err(ConnectError::Gone);
        }
        match Frame::from_bytes(&buffer[..received.bytes]) {
            Ok(Frame::StatText { text, is_last })
                if bytes < BYTES_MAX && (is_last || !text.is_empty()) =>
            {
                bytes += text.len();
                if !lines.add(&text, is_last, line) || is_last {
                    return Ok(answered(true));
                }
            }
            Ok(Frame::Refused { reason: Reason::Version, version, .. }) => {
                return Err(ConnectError::of(ConnectFailure::Version(version)));
            }
            Ok(Frame::Refused { reason, text, .. }) => {
                return Err(ConnectError::Refused { reason, text });
            }
            _ => return Err(ConnectError::Misbehaved("no statistics came".into())),
        }
    }
}

/// Lines of statistics, from the pieces in which they come: of an endless line, the beginning is
/// kept.
#[derive(Default)]
struct StatisticsLines(Vec<u8>);

impl StatisticsLines {
    /// No readable part of a line is longer.
    const BYTES_MAX: usize = 4 << 10;

    /// `false`: `line` wants no more.
    fn add(&mut self, text: &[u8], is_last: bool, line: &mut dyn FnMut(&str) -> bool) -> bool {
        let mut pieces = text.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            let room = Self::BYTES_MAX.saturating_sub(self.0.len());
            self.0.extend_from_slice(&piece[..piece.len().min(room)]);
            if pieces.peek().is_none() && !is_last {
                return true;
            }
            let whole = printable_line(&core::mem::take(&mut self.0));
            if whole.is_some_and(|whole| !line(&whole)) {
                return false;
            }
        }
        true
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_come_and_one_without_end_is_cut() {
        let mut all = Vec::new();
        let mut lines = StatisticsLines::default();
        let mut keep = |line: &str| {
            all.push(String::from(line));
            all.len() < 4
        };
        assert!(lines.add(b"a 1\nb", false, &mut keep) && lines.add(b"b 2", false, &mut keep));
        for _ in 0..1000 {
            assert!(lines.add(&[b'x'; 8192], false, &mut keep));
        }
        assert!(lines.0.len() <= StatisticsLines::BYTES_MAX);
        assert!(lines.add(b"\nc 3", true, &mut keep));
        assert!(!lines.add(b"d 4\ne 5\n", false, &mut keep), "no more is wanted");
        assert_eq!((&all[0][..], &all[2][..], &all[3][..]), ("a 1", "c 3", "d 4"));
        assert!(all[1].starts_with("bb 2xxx") && all[1].len() < 600, "{}", all[1]);
    }
}
