//! A rank's conversation with its launcher over a descriptor that it inherited: PMI-1, and what
//! `hamlyn run` says beyond it.
//!
//! ```text
//!   rank                                     launcher
//!   cmd=init ..                         ->
//!                                       <-   cmd=response_to_init rc=0 ..
//!   cmd=put key=.. value=..             ->
//!                                       <-   cmd=put_result rc=0
//!   cmd=barrier_in                      ->
//!     cmd=missing (`hamlyn run` alone)  ->
//!                                       <-   cmd=missing_result ranks=2,3
//!                                       <-   cmd=barrier_out, when all have come
//!   cmd=get key=..                      ->
//!                                       <-   cmd=get_result rc=0 value=..
//!   cmd=finalize                        ->
//!                                       <-   cmd=finalize_ack
//! ```
//! An answer that did not come in time still comes, before that to the next question, and is dropped then:
//! it does not say which question it answers.
//!
//! Never: what comes is believed before it was checked; more than one line is kept; anything is waited
//! for without an end; a question gets the answer to another.

use super::lines::{LINE_BYTES_MAX, Line};
use super::turn::Within;
use super::{JobError, Launcher};
use crate::os::inherited::inherited;
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use std::collections::VecDeque;
use std::string::String;
use std::vec::Vec;

/// Within which time a launcher answers.
const ANSWER: Duration = super::space::ANSWER;
/// Answers that did not come in time, beyond which nothing more is asked.
const LATE_MAX: usize = 16;
const CUT: &str = "a line to it was cut off, since it took no more in time";
/// Bytes of an answer that are told in an error.
const TOLD_BYTES: usize = 80;

/// How a fence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// All came.
    All,
    /// These have ended before they came.
    Ended(Vec<u32>),
}

/// One conversation.
#[derive(Debug)]
pub struct Talk {
    socket: OwnedFd,
    launcher: Launcher,
    size: u32,
    /// What came, up to the end of a line.
    came: Vec<u8>,
    is_fencing: bool,
    /// The fence's end, which came before another answer.
    fenced: Option<Fenced>,
    /// What the answers are called that did not come in time.
    late: VecDeque<String>,
    /// Why nothing more is said.
    over: Option<&'static str>,
}

impl Talk {
    /// Over the descriptor whose number is in `variable`.
    pub fn new(launcher: Launcher, variable: &'static str, number: &str) -> Result<Self, JobError> {
        let wrong = |allowed: String| JobError::Environment {
            variable,
            value: number.chars().take(TOLD_BYTES).collect(),
            allowed,
        };
        let allowed = || "the number of a socket that the launcher has left open".into();
        let parsed = number.parse().map_err(|_| wrong(allowed()))?;
        let socket = inherited(parsed).map_err(|_| wrong(allowed()))?;
        sockopt::socket_type(&socket).map_err(|_| wrong(allowed()))?;
        Ok(Self {
            socket,
            launcher,
            size: 0,
            came: Vec::new(),
            is_fencing: false,
            fenced: None,
            late: VecDeque::new(),
            over: None,
        })
    }

    /// Who is at the other end.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// Ranks that are named must be below it.
    pub fn set_size(&mut self, size: u32) {
        self.size = size;
    }

    fn error(&self, doing: &'static str, said: &[u8]) -> JobError {
        let told = &said[..said.len().min(TOLD_BYTES)];
        let text = String::from_utf8_lossy(told).trim_end().into();
        JobError::Launcher { launcher: self.launcher, doing, text }
    }

    fn gone(&self, doing: &'static str) -> JobError {
        JobError::LauncherGone { launcher: self.launcher, doing }
    }

    fn silent(&self, doing: &'static str, within: Within) -> JobError {
        let (launcher, limit_ms) = (self.launcher, within.limit_ms());
        JobError::LauncherSilent { launcher, doing, limit_ms }
    }

    fn os(&self, doing: &'static str, e: Errno) -> JobError {
        match e {
            Errno::CONNRESET | Errno::PIPE => self.gone(doing),
            e => JobError::Os { doing, error: e.into() },
        }
    }

    /// Until the socket can be read, or written; `false`: not within so long.
    fn wait(&self, flags: PollFlags, limit: Duration) -> Result<bool, Errno> {
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Until the launcher says something, or not longer than `limit`.
    pub fn wait_for_word(&self, limit: Duration) {
        // What is wrong with the socket is found when it is read.
        let _ = self.wait(PollFlags::IN, limit);
    }

    /// The same; `false`: the time was over before.
    fn wait_within(
        &self,
        flags: PollFlags,
        within: Within,
        doing: &'static str,
    ) -> Result<bool, JobError> {
        let left = within.left();
        if left.is_zero() {
            return Ok(false);
        }
        let waited = self.wait(flags, left);
        waited.map(|_| true).map_err(|e| self.os(doing, e))
    }

    fn say(&mut self, line: &Line, doing: &'static str, within: Within) -> Result<(), JobError> {
        if let Some(why) = self.over {
            return Err(JobError::LauncherLost { launcher: self.launcher, doing, why });
        }
        let bytes = line.to_bytes();
        let mut left = &bytes[..];
        while !left.is_empty() {
            match send(&self.socket, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => left = &left[sent..],
                Err(Errno::AGAIN) => {
                    if !self.wait_within(PollFlags::OUT, within, doing)? {
                        // What is said behind a part of a line would belong to that.
                        self.over = self.over.or((left.len() < bytes.len()).then_some(CUT));
                        return Err(self.silent(doing, within));
                    }
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.os(doing, e)),
            }
        }
        Ok(())
    }

    /// A line, if a whole one has come, that is no answer which is too late.
    fn try_hear(&mut self, doing: &'static str) -> Result<Option<Line>, JobError> {
        while let Some(line) = self.try_hear_any(doing)? {
            if self.late.front().is_none_or(|late| line.command() != late) {
                return Ok(Some(line));
            }
            self.late.pop_front();
        }
        Ok(None)
    }

    fn try_hear_any(&mut self, doing: &'static str) -> Result<Option<Line>, JobError> {
        loop {
            if let Some(end) = self.came.iter().position(|byte| *byte == b'\n') {
                let bytes: Vec<u8> = self.came.drain(..=end).collect();
                let line = Line::parse(&bytes).ok_or_else(|| self.error(doing, &bytes))?;
                return Ok(Some(line));
            }
            if self.came.len() >= LINE_BYTES_MAX {
                return Err(self.error(doing, &self.came));
            }
            let mut bytes = [0; 4096];
            match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(self.gone(doing)),
                Ok((_, length)) => self.came.extend_from_slice(&bytes[..length.min(bytes.len())]),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.os(doing, e)),
            }
        }
    }

    /// Asks, and waits for the answer, which is called `answer`. That it is a refusal is for the
    /// caller to see.
    pub fn ask(
        &mut self,
        line: &Line,
        answer: &str,
        doing: &'static str,
    ) -> Result<Line, JobError> {
        self.ask_within(line, answer, doing, Within::new(Some(ANSWER)))
    }

    /// The same, within so long.
    pub fn ask_within(
        &mut self,
        line: &Line,
        answer: &str,
        doing: &'static str,
        within: Within,
    ) -> Result<Line, JobError> {
        if self.late.len() >= LATE_MAX {
            self.over = Some("it has left too many questions without an answer");
        }
        self.say(line, doing, within)?;
        loop {
            match self.try_hear(doing)? {
                Some(line) if line.command() == answer => return Ok(line),
                Some(line) if self.is_fencing && line.command() == "barrier_out" => {
                    self.is_fencing = false;
                    self.fenced = Some(self.read_fence(&line)?);
                }
                Some(line) => {
                    // Whatever comes next may be the answer to this, or to another.
                    self.over = Some("it has said what was no answer");
                    return Err(self.error(doing, &line.to_bytes()));
                }
                None if self.wait_within(PollFlags::IN, within, doing)? => {}
                None => {
                    self.late.push_back(answer.into());
                    return Err(self.silent(doing, within));
                }
            }
        }
    }

    fn read_fence(&self, line: &Line) -> Result<Fenced, JobError> {
        let refused = || self.error("waiting for all ranks", &line.to_bytes());
        if !line.is_refusal() {
            return Ok(Fenced::All);
        }
        let ended = line.get("ended").and_then(|word| super::lines::ranks_of_word(word, self.size));
        ended.map(Fenced::Ended).ok_or_else(refused)
    }

    /// Begins a fence, or goes on with the one that is begun.
    pub fn begin_fence(&mut self, within: Within) -> Result<(), JobError> {
        if !self.is_fencing && self.fenced.is_none() {
            self.say(&Line::new("barrier_in"), "coming to a fence", within)?;
            self.is_fencing = true;
        }
        Ok(())
    }

    /// How the fence has ended, if it has.
    pub fn end_fence(&mut self) -> Result<Option<Fenced>, JobError> {
        if let Some(fenced) = self.fenced.take() {
            return Ok(Some(fenced));
        }
        let doing = "waiting for all ranks";
        let Some(line) = self.try_hear(doing)? else { return Ok(None) };
        if line.command() != "barrier_out" {
            return Err(self.error(doing, &line.to_bytes()));
        }
        self.is_fencing = false;
        self.read_fence(&line).map(Some)
    }

    /// An error for an answer that lacks something.
    pub fn nonsense(&self, doing: &'static str, line: &Line) -> JobError {
        self.error(doing, &line.to_bytes())
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::string::ToString;

    const DOING: &str = "trying";

    /// A conversation, and the launcher's end.
    fn talk() -> (Talk, UnixStream) {
        let (own, launcher) = UnixStream::pair().unwrap();
        let number = own.as_raw_fd().to_string();
        let mut talk = Talk::new(Launcher::Pmi1, "PMI_FD", &number).unwrap();
        talk.set_size(4);
        (talk, launcher)
    }

    fn ask(says: &[u8]) -> Result<Line, JobError> {
        let (mut talk, mut launcher) = talk();
        launcher.write_all(says).unwrap();
        drop(launcher.shutdown(std::net::Shutdown::Write));
        talk.ask(&Line::new("get"), "get_result", DOING)
    }

    #[test]
    fn hostile_answers_are_errors() {
        assert_eq!(ask(b"cmd=get_result value=1\n").unwrap().get("value"), Some("1"));
        for says in [
            &b"\n"[..],
            b"cmd=other\n",
            b"cmd=barrier_out\n",
            b"value=1 cmd=get_result\n",
            b"cmd=get_result \xff\n",
            b"cmd=get_result\0\n",
        ] {
            assert!(matches!(ask(says), Err(JobError::Launcher { .. })), "{says:?}");
        }
        for says in [&b""[..], b"cmd=get_result value=1"] {
            assert!(matches!(ask(says), Err(JobError::LauncherGone { .. })), "{says:?}");
        }
    }

    #[test]
    fn a_line_without_end_is_an_error_and_not_kept() {
        let (mut talk, mut launcher) = talk();
        let writer = std::thread::spawn(move || {
            // Fails when the other end has gone.
            while launcher.write_all(&[b'x'; 4096]).is_ok() {}
        });
        let asked = talk.ask(&Line::new("get"), "get_result", DOING);
        assert!(matches!(asked, Err(JobError::Launcher { .. })));
        assert!(talk.came.len() <= LINE_BYTES_MAX + 4096);
        // The inherited number stays open in this process, as it would: it is closed with `own`.
        drop(talk);
        writer.join().unwrap();
    }

    #[test]
    fn a_fence_that_ends_during_another_question_is_not_lost() {
        let (mut talk, mut launcher) = talk();
        talk.begin_fence(Within::new(None)).unwrap();
        assert_eq!(talk.end_fence().unwrap(), None);
        launcher.write_all(b"cmd=barrier_out\ncmd=missing_result ranks=\n").unwrap();
        talk.ask(&Line::new("missing"), "missing_result", DOING).unwrap();
        // Begun again, it is the same one.
        talk.begin_fence(Within::new(None)).unwrap();
        assert_eq!(talk.end_fence().unwrap(), Some(Fenced::All));
        let mut said = [0; 64];
        let length = launcher.read(&mut said).unwrap();
        assert_eq!(&said[..length], b"cmd=barrier_in\ncmd=missing\n");
    }

    #[test]
    fn an_answer_that_comes_too_late_is_not_that_to_the_next_question() {
        let (mut talk, mut launcher) = talk();
        let soon = || Within::new(Some(Duration::from_millis(1)));
        let get = Line::new("get");
        for _ in 0..2 {
            let asked = talk.ask_within(&get, "get_result", DOING, soon());
            assert!(matches!(asked, Err(JobError::LauncherSilent { limit_ms: 1, .. })));
        }
        launcher.write_all(b"cmd=get_result value=1\ncmd=get_result value=2\n").unwrap();
        launcher.write_all(b"cmd=get_result value=3\n").unwrap();
        assert_eq!(talk.ask(&get, "get_result", DOING).unwrap().get("value"), Some("3"));
        // Nor does it end a fence, and of one that never answers there is an end to the questions.
        talk.begin_fence(Within::new(None)).unwrap();
        talk.ask_within(&Line::new("missing"), "missing_result", DOING, soon()).unwrap_err();
        launcher.write_all(b"cmd=missing_result ranks=\ncmd=barrier_out\n").unwrap();
        assert_eq!(talk.end_fence().unwrap(), Some(Fenced::All));
        for _ in 0..100 {
            talk.ask_within(&get, "get_result", DOING, Within::new(Some(Duration::ZERO)))
                .unwrap_err();
        }
        assert_eq!(talk.late.len(), LATE_MAX);
        // Nor is it one that comes behind something that answers nothing.
        let (mut talk, mut launcher) = self::talk();
        launcher.write_all(b"cmd=error\ncmd=get_result value=1\n").unwrap();
        talk.ask(&get, "get_result", DOING).unwrap_err();
        let asked = talk.ask(&get, "get_result", DOING);
        assert!(matches!(asked, Err(JobError::LauncherLost { .. })), "{asked:?}");
    }

    #[test]
    fn behind_a_line_that_was_cut_off_nothing_is_said() {
        let (mut talk, mut launcher) = talk();
        let long = Line::new("put").with("value", "7".repeat(LINE_BYTES_MAX - 100));
        let soon = || Within::new(Some(Duration::from_millis(1)));
        // A part of it has left, when there is room for no more than a part.
        while talk.over.is_none() {
            if talk.say(&long, DOING, soon()).is_err() && talk.over.is_none() {
                launcher.read_exact(&mut [0; 33 << 10]).unwrap();
            }
        }
        launcher.set_nonblocking(true).unwrap();
        while launcher.read(&mut [0; 4096]).is_ok() {}
        let said = talk.say(&Line::new("get"), DOING, soon());
        assert!(matches!(said, Err(JobError::LauncherLost { why: CUT, .. })));
        assert!(launcher.read(&mut [0; 1]).is_err(), "it was said");
    }

    #[test]
    fn who_has_ended_is_told_and_must_be_of_the_job() {
        for (says, wanted) in [
            (&b"cmd=barrier_out rc=1 ended=2\n"[..], Some(Fenced::Ended([2].into()))),
            (b"cmd=barrier_out rc=1 ended=4\n", None),
            (b"cmd=barrier_out rc=1\n", None),
            (b"cmd=put_result rc=0\n", None),
        ] {
            let (mut talk, mut launcher) = talk();
            talk.begin_fence(Within::new(None)).unwrap();
            launcher.write_all(says).unwrap();
            assert_eq!(talk.end_fence().ok().flatten(), wanted, "{says:?}");
        }
    }

    #[test]
    fn a_number_that_is_no_socket_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        for number in ["", "x", "-1", "99999", &file.as_raw_fd().to_string()] {
            let error = Talk::new(Launcher::Pmi1, "PMI_FD", number).unwrap_err().to_string();
            assert!(error.contains("PMI_FD") && error.contains("socket"), "{error}");
        }
    }
}
