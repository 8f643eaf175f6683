//! Asks another host's process for its counters (`hamlyn stat`, `top` and `why` of a `hamlyn://`
//! name).
//!
//! ```text
//!   client                                             server
//!   TLS, who, Wants with Said::Figures ------------->  is this host in `figures_to`? is it served?
//!                                                      a thread makes the text, at most one each 100 ms
//!                  <---------------------------------  Yes; four bytes of length, and the text
//! ```
//! Only hosts whose proven identity is in `figures_to` get an answer; the text is the one that the
//! process's own user gets on its host. The program is not asked, and no link is made.
//!
//! Never: the thread of other hosts makes a text, or waits for one; more than [`ANSWERS_MAX`]
//! answers exist at a time, however slowly they are read; a client trusts a length, or takes more
//! time than it was given.

use super::hello::{Answer, Wants};
use super::meeting::{Meeting, Proved};
use super::reach::{self, Stopped};
use super::said::Said;
use super::{HostName, HostRow, HostsShared, HostsState, LeavingRest, Met};
use crate::config::Config;
use crate::control::{Reason, printable_lines};
use crate::os::sys::{monotonic_ns, wait_for};
use crate::os::thread;
use crate::transport::path::Path;
use core::time::Duration;
use std::format;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// Longest text, in bytes; a longer one loses its last lines.
pub const BYTES_MAX: usize = 1 << 20;
/// Most answers at a time: those that wait for a text, and those that are being read.
pub const ANSWERS_MAX: usize = 16;
/// Most answers to one identity at a time.
pub const ANSWERS_OF_ONE_MAX: usize = 4;
/// How long a text is reused for further questions.
const GOOD_FOR_NS: u64 = 100_000_000;

/// The text of the refusal of a host that is not in the setting.
pub const NOT_TOLD: &str = "the figures are for hosts that the setting figures_to (HAMLYN_FIGURES_TO) of this \
                            process names, and it does not name";

/// The last text, and the connections that wait for the next one.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// The time at which it was made, and the text.
    last: Option<(u64, Arc<str>)>,
    waiting: Vec<u64>,
    is_being_made: bool,
}

/// A text that has been made, for the thread of other hosts.
#[derive(Debug, Default)]
pub(super) struct MadeText(Mutex<Option<Arc<str>>>);

/// Another host's counters, in its own words.
#[derive(Debug)]
pub struct HostFigures {
    /// Lines of a name, a space and a value, with printable characters only.
    pub text: String,
    /// The address of the host.
    pub address: SocketAddr,
    /// Its proven identity.
    pub identity: String,
}

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum FiguresError {
    /// The host was not reached, or it refused.
    #[error(transparent)]
    Host(#[from] super::HostError),
    /// The time limit has passed.
    #[error("{} has not answered in time", .0.map_or("it".into(), |address| address.to_string()))]
    TimedOut(Option<SocketAddr>),
    /// The answer has an invalid form.
    #[error("what came are no figures: {0}")]
    Nonsense(&'static str),
}

impl HostsShared {
    /// Whether a host may have the figures.
    pub(super) fn tells_figures(&self, proved: &Proved) -> bool {
        self.config.figures_to.0.contains(&proved.identity)
    }

    /// At a server: answers a host with a proven identity that asks for figures.
    pub(super) fn figures_asked(
        self: &Arc<Self>,
        state: &mut HostsState,
        id: u64,
        wants: Wants,
        proved: Proved,
    ) {
        let Some(HostRow::Meeting(met)) = state.rows.remove(&id) else { return };
        let Met { meeting, address, .. } = *met;
        let is_named = self.tells_figures(&proved);
        let all = || state.rows.values().filter_map(HostRow::figures_of);
        let own = all().filter(|identity| *identity == proved.identity).count();
        let no = if !is_named {
            let who = crate::control::printable(&proved.identity);
            Some(Answer::no(Reason::User, &format!("{NOT_TOLD} {who}")))
        } else if !state.services.contains_key(&wants.service) {
            Some(Answer::NoService)
        } else if own >= ANSWERS_OF_ONE_MAX || all().count() >= ANSWERS_MAX {
            Some(Answer::no(Reason::Connections, "of those that ask for figures"))
        } else {
            None
        };
        if let Some(answer) = no {
            self.note_refused(address, &proved, wants.service, &answer);
            return self.refuse(state, id, meeting, proved.identity, &answer);
        }
        self.leave_with(state, id, meeting, proved.identity, true);
        let now_ns = monotonic_ns();
        match &state.texts.last {
            Some((made_ns, text)) if now_ns.saturating_sub(*made_ns) < GOOD_FOR_NS => {
                let text = text.clone();
                self.tell_figures(state, id, &text);
            }
            _ => {
                // Some of the waiting clients have hung up.
                let HostsState { texts, rows, .. } = state;
                texts.waiting.retain(|id| rows.contains_key(id));
                texts.waiting.push(id);
                self.make_figures(state);
            }
        }
    }

    /// Makes a text, one at a time, on a thread of its own.
    fn make_figures(self: &Arc<Self>, state: &mut HostsState) {
        if state.texts.is_being_made {
            return;
        }
        let shared = Arc::downgrade(self);
        let here = self.here.clone();
        let make = move || {
            let made = catch_unwind(AssertUnwindSafe(|| cut(here.figures())));
            let text = made.unwrap_or_default();
            let Some(shared) = shared.upgrade() else { return };
            *shared.made.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.into());
            shared.late.bell.ring();
        };
        state.texts.is_being_made = thread::spawn("hamlyn-figures", 256 << 10, make).is_ok();
        if !state.texts.is_being_made {
            // The waiting clients see that the connection ends.
            for id in core::mem::take(&mut state.texts.waiting) {
                self.forget(state, id);
            }
        }
    }

    /// Sends a finished text, if there is one, to the waiting clients.
    pub(super) fn take_figures(&self, state: &mut HostsState) {
        let made = self.made.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(text) = made else { return };
        state.texts.is_being_made = false;
        state.texts.last = Some((monotonic_ns(), text.clone()));
        for id in core::mem::take(&mut state.texts.waiting) {
            self.tell_figures(state, id, &text);
        }
    }

    fn tell_figures(&self, state: &mut HostsState, id: u64, text: &str) {
        let Some(HostRow::Leaving(leaving)) = state.rows.get_mut(&id) else { return };
        let LeavingRest::Refusal(meeting) = &mut leaving.what else { return };
        leaving.deadline_ns = self.deadline();
        meeting.answer(&Answer::Yes(Vec::new()));
        meeting.channel.put(&(text.len() as u32).to_le_bytes());
        meeting.channel.put(text.as_bytes());
        meeting.channel.put_end();
        meeting.channel.flush();
    }
}

/// Cuts the text to whole lines within the limit.
fn cut(mut text: String) -> String {
    if text.len() > BYTES_MAX {
        let end = text.as_bytes()[..BYTES_MAX].iter().rposition(|byte| *byte == b'\n');
        text.truncate(end.map_or(0, |end| end + 1));
    }
    text
}

/// Asks the process that serves `name` on another host for its counters, for at most `within`.
pub fn ask(
    config: &Config,
    name: &HostName,
    within: Duration,
) -> Result<HostFigures, FiguresError> {
    let until_ns = monotonic_ns().saturating_add(within.as_nanos() as u64);
    let failed = |(_, stopped)| match stopped {
        Stopped::By(error) => FiguresError::Host(error),
        Stopped::Silent(address) => FiguresError::TimedOut(address),
    };
    // A server that does not know `Figures` reads `Asks` alone.
    let connected = reach::connect(config, name, until_ns, &[Said::Figures, Said::Asks]);
    let (own, mut meeting, address) = connected.map_err(failed)?;
    let identity = reach::meet(&own, &mut meeting, address, until_ns).map_err(failed)?;
    let text = read(&mut meeting, address, until_ns)?;
    Ok(HostFigures { text: readable(&text), address, identity })
}

/// The text, once all of it has come; an error if its length is not possible.
pub fn whole(came: &[u8]) -> Result<Option<&[u8]>, FiguresError> {
    let Some((length, text)) = came.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > BYTES_MAX {
        return Err(FiguresError::Nonsense("they are said to be longer than any are"));
    }
    Ok(text.get(..length))
}

/// The text in lines of printable characters.
pub fn readable(text: &[u8]) -> String {
    printable_lines(text)
}

/// Reads the bytes behind the server's yes. It checks the length before it keeps any.
fn read(
    meeting: &mut Meeting,
    address: SocketAddr,
    until_ns: u64,
) -> Result<Vec<u8>, FiguresError> {
    let channel = &mut meeting.channel;
    loop {
        // Keeps no more than this, however much is sent.
        channel.receive(4 + BYTES_MAX);
        if let Some(text) = whole(channel.plain())? {
            return Ok(text.to_vec());
        }
        if channel.ended().is_some() {
            return Err(FiguresError::Nonsense(
                "they end before they are whole (a host of an earlier version has none to tell)",
            ));
        }
        if monotonic_ns() >= until_ns {
            return Err(FiguresError::TimedOut(Some(address)));
        }
        let fds = [(channel.tcp(), channel.wants_write())];
        if wait_for(&fds, until_ns).is_err() {
            return Err(FiguresError::TimedOut(Some(address)));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_loses_its_last_lines_and_no_part_of_one() {
        assert_eq!(cut("a 1\nb 2\n".into()), "a 1\nb 2\n");
        let line = "x 1\n";
        let long = cut(line.repeat(BYTES_MAX / line.len() + 7));
        assert!(long.len() <= BYTES_MAX && long.ends_with(line), "{}", long.len());
        assert_eq!(cut("x".repeat(BYTES_MAX + 1)), "");
    }
}
