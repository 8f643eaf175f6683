//! The client: the knowledge and the questions of the program's thread.
//!
//! ```text
//!   a miss     home() is None: ask_home -> Homed;  elsewhere: fetch -> Fetched
//!   release    each page that was written: diff, or wrote; then the call
//!   acquire    the call -> Ordered
//!   any event  each range of next_invalid, before the program continues, as an eviction
//!   eviction   a page that was written: diff, or wrote; then the copy goes
//! ```
//! A question (a call that says so) has one event as its answer; there is no other question before it.
//! `home`, `ask_home`, `fetch`, `may_read`, `wrote`, `diff`, `died`, `next_invalid` and `take` of an answer
//! to a miss do not allocate: a fault may interrupt anything.

use std::collections::HashSet;
use std::ops::Range;

use zerocopy::little_endian::U64;

use super::log::Log;
use super::wire::{
    BODY_BYTES_MAX, Call, NOTICES_MAX, Need, Notice, RUN_BYTES, STRIPE, ToClient, ToServer,
    UNASSIGNED, put_run,
};
use super::{Error, Shape};

/// The client's ways to the outside.
pub trait Links {
    /// Posts a message to a server; to a dead one it is thrown away. Bytes deposited for that server before
    /// arrive before it.
    fn send(&mut self, to: usize, message: &ToServer<'_>);

    /// All differences of the writer for pages at home here are in up to this interval:
    /// [`applied`](super::Server::applied) of the own server, if it can be read; it saves a question.
    fn applied(&self, _writer: usize) -> u64 {
        0
    }
}

/// The answer to the question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// [`Client::home`] knows the pages' homes.
    Homed,
    /// The page as it is at its home, for a valid copy.
    Fetched {
        /// The page that was asked for.
        page: u32,
        /// All of it.
        bytes: &'a [u8],
    },
    /// The call succeeded.
    Ordered {
        /// That process died while it owned the lock, which is the caller's now, or while the condition
        /// was waited for.
        dead: Option<usize>,
    },
    /// `Died`: the answer, or bytes, are lost with that process. A lock was not acquired; after a wait for
    /// a condition it is still the caller's. `Misuse`: the server refused the call.
    Failed(Error),
}

#[derive(Clone, Copy)]
enum Question {
    /// Of pages from the first to the last.
    Home(u32, u32),
    Fetch(u32),
    Call(Call),
    /// After a call's `Done`: pages at home here.
    Settle {
        call: Call,
        dead: Option<usize>,
    },
}

/// One for each process; in the program's thread.
pub struct Client {
    shape: Shape,
    me: usize,
    log: Log,
    /// Of each page: the home and one, or zero.
    homes: Vec<u8>,
    /// Of each home (row) and writer: the interval that is still to be waited for there.
    needs: Vec<u64>,
    /// Of each home, the processes, as bits, whose end is to be waited for there.
    ends: Vec<u64>,
    /// Of each server (row): the vector that it knows at least.
    told: Vec<u64>,
    /// Pages that were written since the last release, each once: a list, and a bit for each.
    written: Vec<u32>,
    written_bits: Vec<u64>,
    /// Differences on their way to each home.
    gathered: Vec<Vec<u8>>,
    invalid: Vec<Range<u32>>,
    held: HashSet<u32>,
    dead: Vec<bool>,
    question: Option<(usize, Question)>,
    notices: Vec<Notice>,
    asked: Vec<Need>,
}

impl Client {
    /// A client of process `me`. The shape was [checked](Shape::check).
    pub fn new(shape: Shape, me: usize) -> Self {
        let n = shape.processes;
        let pages = shape.pages as usize;
        Self {
            shape,
            me,
            log: Log::new(&shape),
            homes: vec![0; pages],
            needs: vec![0; n * n],
            ends: vec![0; n],
            told: vec![0; n * n],
            written: Vec::with_capacity(pages),
            written_bits: vec![0; pages.div_ceil(64)],
            gathered: (0..n).map(|_| Vec::with_capacity(BODY_BYTES_MAX)).collect(),
            invalid: Vec::with_capacity(shape.log_max),
            held: HashSet::new(),
            dead: vec![false; n],
            question: None,
            notices: Vec::new(),
            asked: Vec::with_capacity(2 * n),
        }
    }

    /// The process that keeps the page, if it is known.
    pub fn home(&self, page: u32) -> Option<usize> {
        self.homes[page as usize].checked_sub(1).map(usize::from)
    }

    /// Asks for the home of each of the pages, of one [stripe](STRIPE); those that have none get `wanted`.
    /// A question: [`Event::Homed`].
    pub fn ask_home(
        &mut self,
        pages: Range<u32>,
        wanted: usize,
        links: &mut impl Links,
    ) -> Result<(), Error> {
        let page = pages.start;
        let one_stripe = !pages.is_empty() && page / STRIPE == (pages.end - 1) / STRIPE;
        if !one_stripe || pages.end > self.shape.pages || wanted >= self.shape.processes {
            return Err(Error::Misuse("pages of more than one stripe, or out of range"));
        }
        let message = ToServer::Home { page, count: pages.end - page, wanted };
        let question = Question::Home(page, pages.end - 1);
        self.ask(self.shape.page_manager(page), question, links, |_| message)
    }

    /// Asks for the bytes of a page that is at home elsewhere. A question: [`Event::Fetched`].
    pub fn fetch(&mut self, page: u32, links: &mut impl Links) -> Result<(), Error> {
        let home = self.home_elsewhere(page)?;
        self.post_diffs(home, 0, links);
        self.ask(home, Question::Fetch(page), links, |needs| ToServer::Fetch { page, needs })
    }

    /// Whether a page that is at home elsewhere can be read there, without a question: `applied` is its home's
    /// [`applied`](super::Server::applied), read before the page. A page that was written since the last
    /// release cannot: its differences, or deposits, may be on their way.
    pub fn may_read(&mut self, page: u32, applied: impl Fn(usize) -> u64) -> bool {
        let Ok(home) = self.home_elsewhere(page) else { return false };
        !self.is_written(page) && self.are_in(home, applied)
    }

    /// Whether all is in that is to be waited for at that home.
    fn are_in(&mut self, home: usize, applied: impl Fn(usize) -> u64) -> bool {
        let are_in = self.ends[home] == 0 && {
            let mut needs = self.needs(home).iter().enumerate();
            needs.all(|(writer, &need)| need <= applied(writer))
        };
        if are_in {
            self.settle(home);
        }
        are_in
    }

    fn is_written(&self, page: u32) -> bool {
        self.written_bits[page as usize / 64] & 1 << (page % 64) != 0
    }

    /// The page was written since the last release; its bytes are at home, or go there without this.
    pub fn wrote(&mut self, page: u32) -> Result<(), Error> {
        self.home(page).ok_or(Error::Misuse("a page without a home was written"))?;
        if !self.is_written(page) {
            self.written_bits[page as usize / 64] |= 1 << (page % 64);
            self.written.push(page);
        }
        Ok(())
    }

    /// The page, which is at home elsewhere, was written: there, and nowhere else, these bytes have changed.
    /// They leave by and by, at the latest before the page can be fetched again.
    pub fn diff(
        &mut self,
        page: u32,
        offset: usize,
        bytes: &[u8],
        links: &mut impl Links,
    ) -> Result<(), Error> {
        let home = self.home_elsewhere(page)?;
        if offset + bytes.len() > self.shape.page_bytes {
            return Err(Error::Misuse("a difference beyond its page"));
        }
        self.wrote(page)?;
        if self.gathered[home].len() + RUN_BYTES + bytes.len() > BODY_BYTES_MAX {
            self.post_diffs(home, 0, links);
        }
        put_run(&mut self.gathered[home], page, offset, bytes);
        Ok(())
    }

    /// A lock that this process holds.
    pub fn held(&self) -> Option<u32> {
        self.held.iter().next().copied()
    }

    /// Takes a message of a server: `None` if it is no answer yet. After an error the peer is not to be
    /// trusted; the question is still open, until it is [refused](Self::refuse).
    pub fn take<'a>(
        &mut self,
        from: usize,
        message: ToClient<'a>,
        links: &mut impl Links,
    ) -> Result<Option<Event<'a>>, Error> {
        let question = match self.question {
            Some((to, question)) if to == from => question,
            _ => return Err(Error::Unexpected("nobody asked")),
        };
        let event = match (question, message) {
            (Question::Home(asked, last), ToClient::Homes { first, homes }) => {
                for (page, &home) in (first..self.shape.pages).zip(homes) {
                    if home != UNASSIGNED {
                        self.learn(page, home)?;
                    }
                }
                if (asked..=last).any(|page| self.home(page).is_none()) {
                    return Err(Error::Unexpected("homes of other pages"));
                }
                Event::Homed
            }
            (Question::Fetch(asked), ToClient::Page { page, bytes }) if asked == page => {
                self.settle(from);
                Event::Fetched { page, bytes }
            }
            (Question::Settle { dead, .. }, ToClient::Settled) => {
                self.settle(self.me);
                Event::Ordered { dead }
            }
            (Question::Call(_), ToClient::Notices(notices)) => {
                let mut taken = Ok(());
                for notice in notices {
                    // One that is wrong hides no other.
                    taken = taken.and(self.take_notice(notice));
                }
                return taken.map(|()| None);
            }
            (Question::Call(call), ToClient::Done { all, everyone, dead, known }) => {
                self.take_vector(from, known, all, everyone);
                if let Call::Acquire { lock } = call {
                    self.held.insert(lock);
                }
                if let Some(dead) = dead {
                    self.learn_death(dead);
                }
                if !self.are_in(self.me, |writer| links.applied(writer)) {
                    self.question = None;
                    let settle = Question::Settle { call, dead };
                    self.ask(self.me, settle, links, |needs| ToServer::Settle { needs })?;
                    return Ok(None);
                }
                Event::Ordered { dead }
            }
            (question, ToClient::Died(process)) => {
                if let Question::Settle { call: Call::Acquire { lock }, .. } = question {
                    self.question = None;
                    _ = self.call(Call::Release { lock }, links);
                }
                self.learn_death(process)
            }
            (_, ToClient::Misuse) => Event::Failed(Error::Misuse("the server refused the call")),
            _ => return Err(Error::Unexpected("no answer to the question")),
        };
        self.question = None;
        Ok(Some(event))
    }

    /// A message of that process was wrong: unless another is asked, the question ends with the error.
    pub fn refuse(&mut self, from: usize, error: Error) -> Option<Event<'static>> {
        if self.question.is_some_and(|(to, _)| to != from) {
            return None;
        }
        self.question = None;
        Some(Event::Failed(error))
    }

    /// A process died, and all its messages were taken. Its answer does not come any more.
    pub fn died(&mut self, process: usize) -> Option<Event<'static>> {
        self.dead[process] = true;
        self.question.take_if(|(to, _)| *to == process)?;
        Some(self.learn_death(process))
    }

    /// A range of pages whose copies here are old, but for those that are at home here.
    pub fn next_invalid(&mut self) -> Option<Range<u32>> {
        self.invalid.pop()
    }

    fn needs(&self, home: usize) -> &[u64] {
        let n = self.shape.processes;
        &self.needs[home * n..][..n]
    }

    /// All that is to be waited for at that home was in.
    fn settle(&mut self, home: usize) {
        let n = self.shape.processes;
        self.needs[home * n..][..n].fill(0);
        self.ends[home] = 0;
    }

    /// The program gets to know of a death. It may write the dead process's variables now: the last
    /// differences of that process must be in before.
    fn learn_death(&mut self, process: usize) -> Event<'static> {
        self.ends.iter_mut().for_each(|ends| *ends |= 1 << process);
        self.invalidate(0..self.shape.pages);
        Event::Failed(Error::Died(process))
    }

    /// Of too many ranges, as of all pages, one remains.
    fn invalidate(&mut self, pages: Range<u32>) {
        let all = 0..self.shape.pages;
        if self.invalid.last() == Some(&all) {
            return;
        }
        let too_many = self.invalid.len() == self.shape.log_max;
        let pages = if too_many { all.clone() } else { pages };
        if pages == all {
            self.invalid.clear();
        }
        self.invalid.push(pages);
    }

    fn home_elsewhere(&self, page: u32) -> Result<usize, Error> {
        match self.home(page) {
            Some(home) if home != self.me => Ok(home),
            _ => Err(Error::Misuse("a page that is not known to be at home elsewhere")),
        }
    }

    /// Sends the one question that may be open.
    fn ask<'a>(
        &'a mut self,
        to: usize,
        question: Question,
        links: &mut impl Links,
        message: impl FnOnce(&'a [Need]) -> ToServer<'a>,
    ) -> Result<(), Error> {
        if self.question.is_some() {
            return Err(Error::Misuse("a question before the answer to the last one"));
        }
        if self.dead[to] {
            return Err(Error::Died(to));
        }
        self.question = Some((to, question));
        self.asked.clear();
        let n = self.shape.processes;
        for (writer, &need) in self.needs[to * n..][..n].iter().enumerate() {
            let ended = (self.ends[to] >> writer & 1 > 0).then_some(Need::END);
            for interval in [need, ended.unwrap_or(0)].into_iter().filter(|&it| it > 0) {
                self.asked.push(Need { interval: interval.into(), writer: writer as u8 });
            }
        }
        links.send(to, &message(&self.asked));
        Ok(())
    }

    /// A call that orders memory. A question, if the call [has an answer](Call::is_answered):
    /// [`Event::Ordered`]. `Died`: its manager died; after a release the lock is no longer held.
    pub fn call(&mut self, call: Call, links: &mut impl Links) -> Result<(), Error> {
        self.check(call)?;
        if self.question.is_some() {
            return Err(Error::Misuse("a call before the answer to the last one"));
        }
        if let Call::Release { lock } = call {
            self.held.remove(&lock);
        }
        if call.releases() {
            self.close(links);
        }
        let to = self.shape.manager(call.object());
        if self.dead[to] {
            return Err(Error::Died(to));
        }
        let n = self.shape.processes;
        let told = &mut self.told[to * n..][..n];
        let mut all = false;
        if call.releases() {
            all = self.log.since(told, &mut self.notices);
            for notices in self.notices.chunks(NOTICES_MAX) {
                links.send(to, &ToServer::Notices(notices));
            }
            told.copy_from_slice(&self.log.known);
        }
        let known: Vec<U64> = self.log.known.iter().map(|&it| it.into()).collect();
        links.send(to, &ToServer::Sync { call, all, known: &known });
        if call.is_answered() {
            self.question = Some((to, Question::Call(call)));
        }
        Ok(())
    }

    fn check(&self, call: Call) -> Result<(), Error> {
        let number = |object: u32| object < self.shape.objects;
        let (right, why) = match call {
            Call::Acquire { lock } => (
                number(lock) && !self.held.contains(&lock),
                "no such lock, or this process holds it",
            ),
            Call::Release { lock } => {
                (self.held.contains(&lock), "a lock that this process does not hold")
            }
            Call::Arrive { barrier, count } => {
                let right = (1..=self.shape.processes).contains(&count);
                (number(barrier) && right, "no such barrier, or no such count")
            }
            Call::Set { flag, .. } | Call::Wait { flag, .. } => (number(flag), "no such flag"),
            Call::WaitCondition { condition, lock } | Call::Signal { condition, lock, .. } => {
                let right = number(condition) && self.held.contains(&lock);
                (right, "no such condition variable, or a lock that this process does not hold")
            }
        };
        if right { Ok(()) } else { Err(Error::Misuse(why)) }
    }

    /// Ends the interval, if anything was written in it.
    fn close(&mut self, links: &mut impl Links) {
        if self.written.is_empty() {
            return;
        }
        let interval = self.log.known[self.me] + 1;
        let homes = &self.homes;
        self.written.sort_unstable_by_key(|&page| (homes[page as usize], page));
        let mut at = 0;
        while at < self.written.len() {
            let page = self.written[at];
            let home = self.homes[page as usize];
            let goes_on = |&(next, &other): &(usize, &u32)| {
                other == page + next as u32 && self.homes[other as usize] == home
            };
            let run = self.written[at..].iter().enumerate().take(usize::from(u16::MAX));
            let count = run.take_while(goes_on).count();
            let (home, writer) = (home - 1, self.me as u8);
            let (page, count) = (page.into(), (count as u16).into());
            self.log.add(&Notice { interval: interval.into(), page, count, home, writer });
            at += usize::from(count.get());
            let is_last =
                self.written.get(at).is_none_or(|&it| self.homes[it as usize] != home + 1);
            if is_last && usize::from(home) != self.me {
                let home = usize::from(home);
                self.post_diffs(home, interval, links);
                self.needs[home * self.shape.processes + self.me] = interval;
            }
        }
        for page in self.written.drain(..) {
            self.written_bits[page as usize / 64] = 0;
        }
        self.log.known[self.me] = interval;
    }

    fn post_diffs(&mut self, home: usize, interval: u64, links: &mut impl Links) {
        let runs = &mut self.gathered[home];
        if interval > 0 || !runs.is_empty() {
            links.send(home, &ToServer::Diffs { interval, runs });
            runs.clear();
        }
    }

    fn learn(&mut self, page: u32, home: u8) -> Result<(), Error> {
        match &mut self.homes[page as usize] {
            known if *known == 0 => *known = home + 1,
            known if *known == home + 1 => {}
            _ => return Err(Error::Unexpected("a page with two homes")),
        }
        Ok(())
    }

    fn take_notice(&mut self, notice: &Notice) -> Result<(), Error> {
        let (home, writer) = (usize::from(notice.home), usize::from(notice.writer));
        let interval = notice.interval.get();
        if writer == self.me || interval <= self.log.known[writer] {
            return Ok(());
        }
        let pages = notice.page.get()..notice.page.get() + u32::from(notice.count.get());
        let mut learnt = Ok(());
        for page in pages.clone() {
            learnt = learnt.and(self.learn(page, notice.home));
        }
        self.log.add(notice);
        // A home's own stores are in its memory before anything else tells of them.
        if home != writer {
            let need = &mut self.needs[home * self.shape.processes + writer];
            *need = interval.max(*need);
        }
        if home != self.me && !pages.is_empty() {
            self.invalidate(pages);
        }
        learnt
    }

    fn take_vector(&mut self, from: usize, known: &[U64], all: bool, everyone: bool) {
        let n = self.shape.processes;
        let told = self.told[from * n..][..n].iter_mut();
        told.zip(known).for_each(|(told, known)| *told = known.get().max(*told));
        // Nobody knows more than oneself of one's own.
        let own = self.log.known[self.me];
        let known = known.iter().enumerate();
        let known = known.map(|(writer, it)| if writer == self.me { own } else { it.get() });
        self.log.complete(known, all);
        if all {
            self.invalidate(0..self.shape.pages);
        }
        if everyone {
            self.log.forget();
        }
    }
}
