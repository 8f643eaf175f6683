//! What a process has counted, asked for from another host (`hamlyn stat`, `top` and `why` of a `hamlyn://` name).
//!
//! ```text
//!   client                                             server
//!   TLS, who, Wants with Said::Figures ------------->  is this host in `figures_to`? is it served?
//!                                                      a thread makes the text, at most one each 100 ms
//!                  <---------------------------------  Yes; four bytes of length, and the text
//! ```
//! Nobody is told unless `figures_to` names him by what he has proved to be; the text is what the process's own
//! user is told on its host. No program is asked, and no link is made.
//!
//! Never: the thread of other hosts makes a text, or waits for one; more than [`ANSWERS_MAX`] answers are there
//! at a time, however slowly they are taken; a client believes a length, or takes more time than it was given.

use super::hello::{Answer, Wants};
use super::meeting::{Meeting, Proved};
use super::path::Path;
use super::rails::said::Said;
use super::reach::{self, Stopped};
use super::{HostName, Met, Rest, Row, Shared, State};
use crate::config::Config;
use crate::control::{Reason, printable_lines};
use crate::os::sys::{monotonic_ns, wait_for};
use crate::os::thread;
use core::time::Duration;
use std::format;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// Longest text, in bytes; of a longer one the last lines are left out.
pub const BYTES_MAX: usize = 1 << 20;
/// Answers at a time: those that wait for a text, and those that are being taken.
pub const ANSWERS_MAX: usize = 16;
/// Of one identity.
pub const ANSWERS_OF_ONE_MAX: usize = 4;
/// A text is good for so long: whoever asks sooner is told the same.
const GOOD_FOR_NS: u64 = 100_000_000;

/// Said to a host that is not in the setting.
pub const NOT_TOLD: &str = "the figures are for hosts that the setting figures_to (HAMLYN_FIGURES_TO) of this \
                            process names, and it does not name";

/// Texts, and who waits for one.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// When it was made, and it.
    last: Option<(u64, Arc<str>)>,
    waiting: Vec<u64>,
    is_being_made: bool,
}

/// A text that has been made, for the thread of other hosts.
#[derive(Debug, Default)]
pub(super) struct Made(Mutex<Option<Arc<str>>>);

/// What another host says that it has counted.
#[derive(Debug)]
pub struct Told {
    /// Lines of a name, a space and a value, with nothing in them but what can be read.
    pub text: String,
    /// Where it is.
    pub address: SocketAddr,
    /// What it has proved to be.
    pub identity: String,
}

/// Why nothing was told.
#[derive(Debug, thiserror::Error)]
pub enum FiguresError {
    /// It was not reached, or said no.
    #[error(transparent)]
    Host(#[from] super::HostError),
    /// The time was up.
    #[error("{} has not answered in time", .0.map_or("it".into(), |address| address.to_string()))]
    TimedOut(Option<SocketAddr>),
    /// What came cannot be figures.
    #[error("what came are no figures: {0}")]
    Nonsense(&'static str),
}

impl Shared {
    /// Whether a host is told.
    pub(super) fn tells_figures(&self, proved: &Proved) -> bool {
        self.config.figures_to.0.contains(&proved.identity)
    }

    /// At a server: whoever has proved itself asks for what is counted here.
    pub(super) fn figures_asked(
        self: &Arc<Self>,
        state: &mut State,
        id: u64,
        wants: Wants,
        proved: Proved,
    ) {
        let Some(Row::Meeting(met)) = state.rows.remove(&id) else { return };
        let Met { meeting, address, .. } = *met;
        let is_named = self.tells_figures(&proved);
        let all = || state.rows.values().filter_map(Row::figures_of);
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
                // Of those that wait some have hung up.
                let State { texts, rows, .. } = state;
                texts.waiting.retain(|id| rows.contains_key(id));
                texts.waiting.push(id);
                self.make_figures(state);
            }
        }
    }

    /// By a thread that nothing waits for, one at a time.
    fn make_figures(self: &Arc<Self>, state: &mut State) {
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
            // Who waits sees that the connection ends.
            for id in core::mem::take(&mut state.texts.waiting) {
                self.forget(state, id);
            }
        }
    }

    /// A text may be there for those that wait.
    pub(super) fn take_figures(&self, state: &mut State) {
        let made = self.made.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(text) = made else { return };
        state.texts.is_being_made = false;
        state.texts.last = Some((monotonic_ns(), text.clone()));
        for id in core::mem::take(&mut state.texts.waiting) {
            self.tell_figures(state, id, &text);
        }
    }

    fn tell_figures(&self, state: &mut State, id: u64, text: &str) {
        let Some(Row::Leaving(leaving)) = state.rows.get_mut(&id) else { return };
        let Rest::Refusal(meeting) = &mut leaving.what else { return };
        leaving.deadline_ns = self.deadline();
        meeting.answer(&Answer::Yes(Vec::new()));
        meeting.channel.put(&(text.len() as u32).to_le_bytes());
        meeting.channel.put(text.as_bytes());
        meeting.channel.put_end();
        meeting.channel.flush();
    }
}

/// Whole lines, no more than may be sent.
fn cut(mut text: String) -> String {
    if text.len() > BYTES_MAX {
        let end = text.as_bytes()[..BYTES_MAX].iter().rposition(|byte| *byte == b'\n');
        text.truncate(end.map_or(0, |end| end + 1));
    }
    text
}

/// Asks the process that serves `name` on another host what it has counted, and waits no longer than `within`.
pub fn ask(config: &Config, name: &HostName, within: Duration) -> Result<Told, FiguresError> {
    let until_ns = monotonic_ns().saturating_add(within.as_nanos() as u64);
    let failed = |(_, stopped)| match stopped {
        Stopped::By(error) => FiguresError::Host(error),
        Stopped::Silent(address) => FiguresError::TimedOut(address),
    };
    // To one that does not know of figures it is a question alone.
    let connected = reach::connect(config, name, until_ns, &[Said::Figures, Said::Asks]);
    let (own, mut meeting, address) = connected.map_err(failed)?;
    let identity = reach::meet(&own, &mut meeting, address, until_ns).map_err(failed)?;
    let text = read(&mut meeting, address, until_ns)?;
    Ok(Told { text: readable(&text), address, identity })
}

/// The text, once it has come whole. An error: its length is none.
pub fn whole(came: &[u8]) -> Result<Option<&[u8]>, FiguresError> {
    let Some((length, text)) = came.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > BYTES_MAX {
        return Err(FiguresError::Nonsense("they are said to be longer than any are"));
    }
    Ok(text.get(..length))
}

/// The same for whoever reads it: lines, with nothing in them but what can be read.
pub fn readable(text: &[u8]) -> String {
    printable_lines(text)
}

/// What follows the server's yes. Its length is looked at before anything is kept for it.
fn read(
    meeting: &mut Meeting,
    address: SocketAddr,
    until_ns: u64,
) -> Result<Vec<u8>, FiguresError> {
    let channel = &mut meeting.channel;
    loop {
        // No more than so many are kept, whatever is sent.
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
