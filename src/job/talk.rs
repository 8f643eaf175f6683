//! A rank's conversation with its launcher over a descriptor that it inherited: PMI-1, and the
//! additions of `hamlyn run`.
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
//! A late answer still comes before the answer to the next question, and is dropped then: it does
//! not name its question. So a launcher that was silent for a time, for example because it was
//! stopped, works as before once it answers again. The answer to `missing` is never waited for; it
//! is read when it comes.
//!
//! Never: an answer is believed before it is checked; more than one line is kept; a wait has no
//! end; a question gets the answer to another.

use super::error::JobError;
use super::launcher::Launcher;
use super::lines::{JobLine, LINE_BYTES_MAX, ranks_of_word};
use super::turn::{ANSWER, Within};
use crate::os::descriptor::Descriptor;
use crate::os::inherited::inherited;
use core::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use std::collections::VecDeque;
use std::string::String;
use std::vec::Vec;

/// The time limit of a launcher's answer.
/// Most late answers; after that no question is sent until one of them comes.
const LATE_MAX: usize = 16;
const MISSING: &str = "missing_result";
/// Bytes of an answer that an error quotes.
const TOLD_BYTES: usize = 80;

/// The end of a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// All ranks came.
    All,
    /// These have ended before they came.
    Ended(Vec<u32>),
}

/// One conversation.
#[derive(Debug)]
pub struct Talk {
    socket: Descriptor,
    launcher: Launcher,
    size: u32,
    /// Bytes received, up to the end of a line.
    came: Vec<u8>,
    /// The rest of a line that has left in part.
    unsent: Vec<u8>,
    is_fencing: bool,
    /// Whether an answer about the missing ranks of this fence is on its way.
    asks_missing: bool,
    /// The last such answer.
    missing: Option<JobLine>,
    /// The fence's end, which came before another answer.
    fenced: Option<Fenced>,
    /// The commands of late answers.
    late: VecDeque<String>,
    /// The reason why the conversation is over.
    over: Option<&'static str>,
}

impl Talk {
    /// Over the descriptor with the number in `variable`.
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
            socket: socket.into(),
            launcher,
            size: 0,
            came: Vec::new(),
            unsent: Vec::new(),
            is_fencing: false,
            asks_missing: false,
            missing: None,
            fenced: None,
            late: VecDeque::new(),
            over: None,
        })
    }

    /// The launcher at the other end.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// Ranks in answers must be below it.
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

    /// Waits until the socket can be read, or written; `false`: not within `limit`.
    fn wait(&self, flags: PollFlags, limit: Duration) -> Result<bool, Errno> {
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Waits until the launcher sends something, at most for `limit`.
    pub fn wait_for_word(&self, limit: Duration) {
        // An error of the socket is found when it is read.
        let _ = self.wait(PollFlags::IN, limit);
    }

    /// The same; `false`: the time limit passed first.
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

    /// Whether all bytes of sent lines have left.
    fn try_send(&mut self, doing: &'static str) -> Result<bool, JobError> {
        while !self.unsent.is_empty() {
            match send(&self.socket, &self.unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.os(doing, e)),
            }
        }
        Ok(true)
    }

    fn send(&mut self, doing: &'static str, within: Within) -> Result<bool, JobError> {
        while !self.try_send(doing)? {
            if !self.wait_within(PollFlags::OUT, within, doing)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends a line. On an error no part of it was sent. If a part of it has left in time, the rest
    /// leaves later, before anything else.
    fn say(&mut self, line: &JobLine, doing: &'static str, within: Within) -> Result<(), JobError> {
        if let Some(why) = self.over {
            return Err(JobError::LauncherLost { launcher: self.launcher, doing, why });
        }
        if !self.send(doing, within)? {
            return Err(self.silent(doing, within));
        }
        self.unsent = line.to_bytes();
        let bytes = self.unsent.len();
        if !self.send(doing, within)? && self.unsent.len() == bytes {
            self.unsent.clear();
            return Err(self.silent(doing, within));
        }
        Ok(())
    }

    /// A whole line, if one has come that is neither a late answer nor the fence's end, which is
    /// kept.
    fn try_hear(&mut self, doing: &'static str) -> Result<Option<JobLine>, JobError> {
        while let Some(line) = self.try_hear_any(doing)? {
            if self.late.front().is_some_and(|late| line.command() == late) {
                self.late.pop_front();
                if line.command() == MISSING && std::mem::take(&mut self.asks_missing) {
                    self.missing = Some(line);
                }
            } else if self.is_fencing && line.command() == "barrier_out" {
                self.is_fencing = false;
                self.asks_missing = false;
                self.missing = None;
                self.fenced = Some(self.read_fence(&line)?);
            } else {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    fn try_hear_any(&mut self, doing: &'static str) -> Result<Option<JobLine>, JobError> {
        loop {
            if let Some(end) = self.came.iter().position(|byte| *byte == b'\n') {
                let bytes: Vec<u8> = self.came.drain(..=end).collect();
                let line = JobLine::parse(&bytes).ok_or_else(|| self.error(doing, &bytes))?;
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

    /// Asks, and waits for the answer with the command `answer`. The caller checks whether it is a
    /// refusal.
    pub fn ask(
        &mut self,
        line: &JobLine,
        answer: &str,
        doing: &'static str,
    ) -> Result<JobLine, JobError> {
        self.ask_within(line, answer, doing, Within::new(Some(ANSWER)))
    }

    /// The same, within a time limit.
    pub fn ask_within(
        &mut self,
        line: &JobLine,
        answer: &str,
        doing: &'static str,
        within: Within,
    ) -> Result<JobLine, JobError> {
        // It answers in turn, and too many answers are late.
        while self.late.len() >= LATE_MAX {
            if let Some(line) = self.try_hear(doing)? {
                return Err(self.no_answer(doing, &line));
            }
            if self.late.len() >= LATE_MAX && !self.hears_more(doing, within)? {
                return Err(self.silent(doing, within));
            }
        }
        self.say(line, doing, within)?;
        loop {
            match self.try_hear(doing)? {
                Some(line) if line.command() == answer => return Ok(line),
                Some(line) => return Err(self.no_answer(doing, &line)),
                None if self.hears_more(doing, within)? => {}
                None => {
                    self.late.push_back(answer.into());
                    return Err(self.silent(doing, within));
                }
            }
        }
    }

    /// Waits for more bytes, and sends the rest of sent lines meanwhile.
    fn hears_more(&mut self, doing: &'static str, within: Within) -> Result<bool, JobError> {
        let flags = match self.try_send(doing)? {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        };
        self.wait_within(flags, within, doing)
    }

    /// The next answer may belong to this question, or to another.
    fn no_answer(&mut self, doing: &'static str, line: &JobLine) -> JobError {
        self.over = Some("it has said what was no answer");
        self.error(doing, &line.to_bytes())
    }

    fn read_fence(&self, line: &JobLine) -> Result<Fenced, JobError> {
        let refused = || self.error("waiting for all ranks", &line.to_bytes());
        if !line.is_refusal() {
            return Ok(Fenced::All);
        }
        let ended = line.get("ended").and_then(|word| ranks_of_word(word, self.size));
        ended.map(Fenced::Ended).ok_or_else(refused)
    }

    /// Begins a fence, or goes on with the current one.
    pub fn begin_fence(&mut self, within: Within) -> Result<(), JobError> {
        if !self.is_fencing && self.fenced.is_none() {
            self.say(&JobLine::new("barrier_in"), "coming to a fence", within)?;
            self.is_fencing = true;
        }
        Ok(())
    }

    /// The end of the fence, if it has ended.
    pub fn end_fence(&mut self) -> Result<Option<Fenced>, JobError> {
        let doing = "waiting for all ranks";
        self.try_send(doing)?;
        if self.fenced.is_none()
            && let Some(line) = self.try_hear(doing)?
        {
            return Err(self.error(doing, &line.to_bytes()));
        }
        Ok(self.fenced.take())
    }

    /// Asks for the missing ranks of the current fence, unless an answer to that is on its way.
    pub fn ask_missing(&mut self) -> Result<(), JobError> {
        let is_asked = self.late.iter().any(|late| late == MISSING);
        if !self.is_fencing || is_asked || self.late.len() >= LATE_MAX {
            return Ok(());
        }
        let at_once = Within::new(Some(Duration::ZERO));
        match self.say(&JobLine::new("missing"), "asking who is missing", at_once) {
            // The socket has no room for it now.
            Err(JobError::LauncherSilent { .. }) => return Ok(()),
            said => said?,
        }
        self.late.push_back(MISSING.into());
        self.asks_missing = true;
        Ok(())
    }

    /// Whether the answer to that is on its way.
    pub fn asks_missing(&self) -> bool {
        self.asks_missing
    }

    /// The missing ranks of the last answer; empty without an answer.
    pub fn missing(&self) -> Result<Vec<u32>, JobError> {
        let Some(line) = &self.missing else { return Ok(Vec::new()) };
        let ranks = line.get("ranks").and_then(|word| ranks_of_word(word, self.size));
        ranks.ok_or_else(|| self.nonsense("asking who is missing", line))
    }

    /// An error for an incomplete answer.
    pub fn nonsense(&self, doing: &'static str, line: &JobLine) -> JobError {
        self.error(doing, &line.to_bytes())
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::format;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::string::ToString;
    use std::vec;

    const DOING: &str = "trying";

    /// A conversation, and the launcher's end.
    fn talk() -> (Talk, UnixStream) {
        let (own, launcher) = UnixStream::pair().unwrap();
        let number = own.as_raw_fd().to_string();
        let mut talk = Talk::new(Launcher::Pmi1, "PMI_FD", &number).unwrap();
        talk.set_size(4);
        (talk, launcher)
    }

    fn ask(says: &[u8]) -> Result<JobLine, JobError> {
        let (mut talk, mut launcher) = talk();
        launcher.write_all(says).unwrap();
        drop(launcher.shutdown(std::net::Shutdown::Write));
        talk.ask(&JobLine::new("get"), "get_result", DOING)
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
        let asked = talk.ask(&JobLine::new("get"), "get_result", DOING);
        assert!(matches!(asked, Err(JobError::Launcher { .. })));
        assert!(talk.came.len() <= LINE_BYTES_MAX + 4096);
        // The inherited number stays open in this process, as it would in a rank: it is closed with
        // `own`.
        drop(talk);
        writer.join().unwrap();
    }

    #[test]
    fn a_fence_that_ends_during_another_question_is_not_lost() {
        let (mut talk, mut launcher) = talk();
        talk.begin_fence(Within::new(None)).unwrap();
        assert_eq!(talk.end_fence().unwrap(), None);
        launcher.write_all(b"cmd=barrier_out\ncmd=missing_result ranks=\n").unwrap();
        talk.ask(&JobLine::new("missing"), "missing_result", DOING).unwrap();
        // A second begin goes on with the same fence.
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
        let get = JobLine::new("get");
        for _ in 0..2 {
            let asked = talk.ask_within(&get, "get_result", DOING, soon());
            assert!(matches!(asked, Err(JobError::LauncherSilent { limit_ms: 1, .. })));
        }
        launcher.write_all(b"cmd=get_result value=1\ncmd=get_result value=2\n").unwrap();
        launcher.write_all(b"cmd=get_result value=3\n").unwrap();
        assert_eq!(talk.ask(&get, "get_result", DOING).unwrap().get("value"), Some("3"));
        // It does not end a fence either, and a launcher that never answers gets a bounded number
        // of questions.
        talk.begin_fence(soon()).unwrap();
        talk.ask_within(&get, "get_result", DOING, soon()).unwrap_err();
        launcher.write_all(b"cmd=get_result value=4\ncmd=barrier_out\n").unwrap();
        assert_eq!(talk.end_fence().unwrap(), Some(Fenced::All));
        for _ in 0..100 {
            let at_once = Within::new(Some(Duration::ZERO));
            let asked = talk.ask_within(&get, "get_result", DOING, at_once);
            assert!(matches!(asked, Err(JobError::LauncherSilent { limit_ms: 0, .. })));
        }
        assert_eq!(talk.late.len(), LATE_MAX);
        // Once it has answered it is asked again.
        launcher.write_all("cmd=get_result value=5\n".repeat(LATE_MAX).as_bytes()).unwrap();
        talk.ask_within(&get, "get_result", DOING, soon()).unwrap_err();
        assert_eq!(talk.late.len(), 1);
        launcher.write_all(b"cmd=get_result value=7\ncmd=get_result value=6\n").unwrap();
        assert_eq!(talk.ask(&get, "get_result", DOING).unwrap().get("value"), Some("6"));
        // An answer behind a line that answers nothing is not taken either.
        let (mut talk, mut launcher) = self::talk();
        launcher.write_all(b"cmd=error\ncmd=get_result value=1\n").unwrap();
        talk.ask(&get, "get_result", DOING).unwrap_err();
        let asked = talk.ask(&get, "get_result", DOING);
        assert!(matches!(asked, Err(JobError::LauncherLost { .. })), "{asked:?}");
    }

    #[test]
    fn a_line_that_was_cut_off_is_said_to_its_end_before_another() {
        let (mut talk, mut launcher) = talk();
        let long = JobLine::new("put").with("value", "7".repeat(LINE_BYTES_MAX - 100));
        let soon = || Within::new(Some(Duration::from_millis(1)));
        // A part of the line has left, once there is room for only a part.
        let mut lines = 0;
        let mut heard = Vec::new();
        while talk.unsent.is_empty() {
            match talk.say(&long, DOING, soon()) {
                Ok(()) => lines += 1,
                Err(e) => {
                    assert!(matches!(e, JobError::LauncherSilent { .. }), "{e}");
                    let mut bytes = vec![0; 33 << 10];
                    launcher.read_exact(&mut bytes).unwrap();
                    heard.extend(bytes);
                }
            }
        }
        // As long as there is no room, no other line is sent.
        let said = talk.say(&JobLine::new("get"), DOING, soon());
        assert!(matches!(said, Err(JobError::LauncherSilent { .. })));
        let reader = std::thread::spawn(move || {
            launcher.read_to_end(&mut heard).unwrap();
            heard
        });
        talk.say(&JobLine::new("get"), DOING, Within::new(None)).unwrap();
        // For both copies of the descriptor; the test has one.
        rustix::net::shutdown(&talk.socket, rustix::net::Shutdown::Write).unwrap();
        let wanted = [long.to_bytes().repeat(lines), b"cmd=get\n".to_vec()].concat();
        assert!(reader.join().unwrap() == wanted);
    }

    #[test]
    fn who_is_missing_is_asked_once_and_heard_when_it_is_answered() {
        let (mut talk, mut launcher) = talk();
        // Without a fence no rank is missing.
        talk.ask_missing().unwrap();
        talk.begin_fence(Within::new(None)).unwrap();
        for _ in 0..3 {
            talk.ask_missing().unwrap();
            assert_eq!(talk.end_fence().unwrap(), None);
        }
        assert!(talk.asks_missing() && talk.missing().unwrap().is_empty());
        launcher.write_all(b"cmd=missing_result ranks=1,3\n").unwrap();
        assert_eq!(talk.end_fence().unwrap(), None);
        assert!(!talk.asks_missing());
        assert_eq!(talk.missing().unwrap(), [1, 3]);
        // An answer after the end of a fence is not about the next one.
        talk.ask_missing().unwrap();
        launcher.write_all(b"cmd=barrier_out\n").unwrap();
        assert_eq!(talk.end_fence().unwrap(), Some(Fenced::All));
        talk.begin_fence(Within::new(None)).unwrap();
        launcher.write_all(b"cmd=missing_result ranks=2\n").unwrap();
        assert_eq!(talk.end_fence().unwrap(), None);
        assert!(talk.missing().unwrap().is_empty());
        talk.ask_missing().unwrap();
        launcher.write_all(b"cmd=missing_result ranks=4\n").unwrap();
        assert_eq!(talk.end_fence().unwrap(), None);
        assert!(matches!(talk.missing(), Err(JobError::Launcher { .. })));
        let mut said = [0; 256];
        let length = launcher.read(&mut said).unwrap();
        let said = core::str::from_utf8(&said[..length]).unwrap();
        let missing = "cmd=barrier_in\ncmd=missing\ncmd=missing\n";
        assert_eq!(said, format!("{missing}cmd=barrier_in\ncmd=missing\n"));
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
