//! The server: home of pages, manager of locks, barriers, flags and condition variables.
//!
//! Each client has one question at most, so a server's state is bounded: `waiting` has a place for each
//! client, and queues are the order of its tickets.
//! Never: a page is sent before the differences that its reader needs; a peer's number is used before
//! `decode` has checked it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use zerocopy::little_endian::U64;

use super::log::Log;
use super::wire::{
    Call, NOTICES_MAX, Need, Notice, STRIPE, ToClient, ToServer, UNASSIGNED, take_run,
};
use super::{Error, Shape};

/// The server's outside: its pages, and the ways to clients.
pub trait Host {
    /// Posts a message to a client; to a dead one it is thrown away.
    fn send(&mut self, to: usize, message: &ToClient<'_>);

    /// Posts [`ToClient::Page`] with the page's bytes. `false`, and nothing, unless it is at home here. A
    /// page that nobody has touched is at home here, if somebody asks for it.
    fn send_page(&mut self, to: usize, page: u32) -> bool;

    /// Writes bytes into a page: a difference. `false`, and nothing, unless it is at home here.
    fn apply(&mut self, page: u32, offset: usize, bytes: &[u8]) -> bool;
}

/// One for each process; in its service thread.
pub struct Server {
    shape: Shape,
    me: usize,
    log: Log,
    applied: Vec<u64>,
    dead: Vec<bool>,
    waiting: Vec<Option<Waiting>>,
    next_ticket: u64,
    /// Those that are owned, or whose owner died.
    locks: HashMap<u32, Lock>,
    /// Those that are not zero.
    flags: HashMap<u32, u64>,
    /// Of each stripe with homes.
    homes: HashMap<u32, [u8; STRIPE as usize]>,
    notices: Vec<Notice>,
}

struct Waiting {
    ticket: u64,
    question: Question,
    /// The client's vector.
    known: Vec<u64>,
    /// That process died while a condition was waited for.
    dead: Option<usize>,
}

#[derive(Clone, PartialEq)]
enum Question {
    /// The page, or `Settle`; of each writer, the needed interval; the needed ends, as bits.
    Bytes(Option<u32>, Vec<u64>, u64),
    Lock(u32),
    Barrier(u32, usize),
    Flag(u32, u64),
    Condition {
        condition: u32,
        lock: u32,
    },
}

#[derive(Clone, Copy)]
enum Lock {
    Owned(usize),
    Abandoned(usize),
}

impl Server {
    /// The server of process `me`. The shape was [checked](Shape::check).
    pub fn new(shape: Shape, me: usize) -> Self {
        let n = shape.processes;
        Self {
            shape,
            me,
            log: Log::new(&shape),
            applied: vec![0; n],
            dead: vec![false; n],
            waiting: (0..n).map(|_| None).collect(),
            next_ticket: 0,
            locks: HashMap::new(),
            flags: HashMap::new(),
            homes: HashMap::new(),
            notices: Vec::new(),
        }
    }

    /// Of each writer, the interval up to which all its differences for pages at home here are in. Changes
    /// in [`take`](Self::take).
    pub fn applied(&self) -> &[u64] {
        &self.applied
    }

    /// Takes a message of a client. An error says that it was wrong, in part or as a whole; the client may
    /// wait for ever.
    pub fn take(
        &mut self,
        from: usize,
        message: ToServer<'_>,
        host: &mut impl Host,
    ) -> Result<(), Error> {
        if self.dead[from] {
            return Err(Error::Died(from));
        }
        match message {
            ToServer::Home { page, count, wanted } => {
                self.check_idle(from)?;
                self.assign(from, page, count, wanted as u8, host)
            }
            ToServer::Fetch { page, needs } => self.take_needs(from, Some(page), needs, host),
            ToServer::Settle { needs } => self.take_needs(from, None, needs, host),
            ToServer::Diffs { interval, mut runs } => {
                let mut result = Ok(());
                while let Some((page, offset, bytes)) = take_run(&mut runs) {
                    if !host.apply(page, offset, bytes) {
                        result = Err(Error::Malformed("a difference for a page elsewhere"));
                    }
                }
                if interval > self.applied[from] {
                    self.applied[from] = interval;
                    self.answer_fetches(host);
                }
                result
            }
            ToServer::Notices(notices) => {
                notices.iter().for_each(|notice| self.log.add(notice));
                Ok(())
            }
            ToServer::Sync { call, all, known } => self.take_call(from, call, all, known, host),
        }
    }

    /// A process died, and all its messages were taken.
    pub fn died(&mut self, process: usize, host: &mut impl Host) {
        self.dead[process] = true;
        self.waiting[process] = None;
        for client in 0..self.shape.processes {
            let Some(waiting) = &mut self.waiting[client] else { continue };
            match waiting.question {
                Question::Barrier(..) | Question::Flag(..) => {
                    self.waiting[client] = None;
                    host.send(client, &ToClient::Died(process));
                }
                Question::Condition { lock, .. } => {
                    waiting.dead = Some(process);
                    self.queue(client, lock, host);
                }
                Question::Bytes(..) | Question::Lock(_) => {}
            }
        }
        self.answer_fetches(host);
        let owned = |(&lock, state): (&u32, &Lock)| match *state {
            Lock::Owned(owner) if owner == process => Some(lock),
            _ => None,
        };
        let owned: Vec<u32> = self.locks.iter().filter_map(owned).collect();
        for lock in owned {
            self.locks.insert(lock, Lock::Abandoned(process));
            self.grant(lock, host);
        }
    }

    /// A client has one question at a time.
    fn check_idle(&self, client: usize) -> Result<(), Error> {
        match self.waiting[client] {
            Some(_) => Err(Error::Unexpected("a question before the answer to the last one")),
            None => Ok(()),
        }
    }

    fn assign(
        &mut self,
        from: usize,
        page: u32,
        count: u32,
        wanted: u8,
        host: &mut impl Host,
    ) -> Result<(), Error> {
        if self.shape.page_manager(page) != self.me {
            return Err(Error::Malformed("a page of another manager"));
        }
        let first = page - page % STRIPE;
        let homes = self.homes.entry(first).or_insert([UNASSIGNED; STRIPE as usize]);
        let touched = &mut homes[(page - first) as usize..][..count as usize];
        touched.iter_mut().filter(|it| **it == UNASSIGNED).for_each(|it| *it = wanted);
        host.send(from, &ToClient::Homes { first, homes });
        Ok(())
    }

    fn take_needs(
        &mut self,
        from: usize,
        page: Option<u32>,
        needs: &[Need],
        host: &mut impl Host,
    ) -> Result<(), Error> {
        self.check_idle(from)?;
        let mut needed = vec![0; self.shape.processes];
        let mut ends = 0;
        for need in needs {
            match need.interval.get() {
                Need::END => ends |= 1 << need.writer,
                interval => needed[usize::from(need.writer)] = interval,
            }
        }
        self.hold(from, Question::Bytes(page, needed, ends), Vec::new());
        self.answer_fetches(host);
        Ok(())
    }

    fn take_call(
        &mut self,
        from: usize,
        call: Call,
        all: bool,
        known: &[U64],
        host: &mut impl Host,
    ) -> Result<(), Error> {
        if self.shape.manager(call.object()) != self.me {
            return Err(Error::Malformed("an object of another manager"));
        }
        self.check_idle(from)?;
        let known = known.iter().map(|interval| interval.get());
        if call.releases() {
            self.log.complete(known.clone(), all);
        }
        let known = known.collect();
        let dead = self.dead.iter().position(|&dead| dead);
        let owner = |lock: u32| match self.locks.get(&lock) {
            Some(&Lock::Owned(owner)) => Some(owner),
            _ => None,
        };
        match call {
            Call::Acquire { lock } if owner(lock) == Some(from) => {
                host.send(from, &ToClient::Misuse);
                Err(Error::Misuse("a lock that its client holds"))
            }
            Call::Acquire { lock } => {
                self.hold(from, Question::Lock(lock), known);
                self.grant(lock, host);
                Ok(())
            }
            Call::Release { lock }
            | Call::Signal { lock, .. }
            | Call::WaitCondition { lock, .. }
                if owner(lock) != Some(from) =>
            {
                if call.is_answered() {
                    host.send(from, &ToClient::Misuse);
                }
                Err(Error::Misuse("a lock that its client does not hold"))
            }
            Call::Release { lock } => {
                self.locks.remove(&lock);
                self.grant(lock, host);
                Ok(())
            }
            Call::Arrive { barrier, count } => self.arrive(from, barrier, count, known, dead, host),
            Call::Set { flag, value } => {
                match value {
                    0 => _ = self.flags.remove(&flag),
                    _ => _ = self.flags.insert(flag, value),
                }
                for client in 0..self.shape.processes {
                    if matches!(self.question(client), Some(&Question::Flag(it, least))
                        if it == flag && least <= value)
                    {
                        self.answer(client, None, false, host);
                    }
                }
                Ok(())
            }
            Call::Wait { flag, value } => {
                let is_set = self.flags.get(&flag).copied().unwrap_or(0) >= value;
                match dead {
                    Some(dead) if !is_set => host.send(from, &ToClient::Died(dead)),
                    _ => self.hold(from, Question::Flag(flag, value), known),
                }
                if is_set {
                    self.answer(from, None, false, host);
                }
                Ok(())
            }
            Call::WaitCondition { condition, lock } => {
                match dead {
                    Some(dead) => host.send(from, &ToClient::Died(dead)),
                    None => {
                        self.hold(from, Question::Condition { condition, lock }, known);
                        self.locks.remove(&lock);
                        self.grant(lock, host);
                    }
                }
                Ok(())
            }
            Call::Signal { condition, lock, all } => {
                let question = Question::Condition { condition, lock };
                while let Some(client) = self.first(&question) {
                    self.queue(client, lock, host);
                    if !all {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    fn arrive(
        &mut self,
        from: usize,
        barrier: u32,
        count: usize,
        known: Vec<u64>,
        dead: Option<usize>,
        host: &mut impl Host,
    ) -> Result<(), Error> {
        if let Some(dead) = dead {
            host.send(from, &ToClient::Died(dead));
            return Ok(());
        }
        let other = |client| {
            matches!(self.question(client), Some(&Question::Barrier(it, others))
                if it == barrier && others != count)
        };
        if (0..self.shape.processes).any(other) {
            host.send(from, &ToClient::Misuse);
            return Err(Error::Misuse("a barrier with two counts"));
        }
        let question = Question::Barrier(barrier, count);
        self.hold(from, question.clone(), known);
        let mut here = (0..self.shape.processes).collect::<Vec<_>>();
        here.retain(|&client| self.question(client) == Some(&question));
        if here.len() == count {
            let everyone = count == self.shape.processes;
            here.into_iter().for_each(|client| self.answer(client, None, everyone, host));
            if everyone {
                self.log.forget();
            }
        }
        Ok(())
    }

    fn question(&self, client: usize) -> Option<&Question> {
        self.waiting[client].as_ref().map(|waiting| &waiting.question)
    }

    /// The client that has waited longest with that question.
    fn first(&self, question: &Question) -> Option<usize> {
        let waiting = self.waiting.iter().enumerate();
        let waiting = waiting.filter_map(|(client, it)| it.as_ref().map(|it| (client, it)));
        let waiting = waiting.filter(|(_, it)| it.question == *question);
        waiting.min_by_key(|(_, it)| it.ticket).map(|(client, _)| client)
    }

    fn hold(&mut self, client: usize, question: Question, known: Vec<u64>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting[client] = Some(Waiting { ticket, question, known, dead: None });
    }

    /// A client that waited for a condition waits for its lock now, last in the queue.
    fn queue(&mut self, client: usize, lock: u32, host: &mut impl Host) {
        if let Some(waiting) = &mut self.waiting[client] {
            waiting.question = Question::Lock(lock);
            waiting.ticket = self.next_ticket;
            self.next_ticket += 1;
        }
        self.grant(lock, host);
    }

    /// Gives the lock, unless it is owned, to the first that waits for it.
    fn grant(&mut self, lock: u32, host: &mut impl Host) {
        let Some(client) = self.first(&Question::Lock(lock)) else { return };
        let mut dead = None;
        match self.locks.entry(lock) {
            Entry::Vacant(entry) => _ = entry.insert(Lock::Owned(client)),
            Entry::Occupied(mut entry) => {
                let Lock::Abandoned(owner) = *entry.get() else { return };
                dead = Some(owner);
                entry.insert(Lock::Owned(client));
            }
        }
        self.answer(client, dead, false, host);
    }

    /// The client's call is done: notices that it lacks, then `Done`.
    fn answer(&mut self, client: usize, dead: Option<usize>, everyone: bool, host: &mut impl Host) {
        let Some(waiting) = self.waiting[client].take() else { return };
        let all = self.log.since(&waiting.known, &mut self.notices);
        for notices in self.notices.chunks(NOTICES_MAX) {
            host.send(client, &ToClient::Notices(notices));
        }
        let known: Vec<U64> = self.log.known.iter().map(|&it| it.into()).collect();
        let dead = dead.or(waiting.dead);
        host.send(client, &ToClient::Done { all, everyone, dead, known: &known });
    }

    /// Answers the fetches whose needs are in, and those whose needs are lost.
    fn answer_fetches(&mut self, host: &mut impl Host) {
        for client in 0..self.shape.processes {
            let Some(&Question::Bytes(page, ref needs, ends)) = self.question(client) else {
                continue;
            };
            let lacks = |&writer: &usize| needs[writer] > self.applied[writer];
            let mut lacking = (0..needs.len()).filter(lacks);
            let lost = lacking.clone().find(|&writer| self.dead[writer]);
            let mut dead = self.dead.iter().enumerate();
            let waits_for_end = dead.any(|(process, &dead)| ends >> process & 1 > 0 && !dead);
            if lost.is_none() && (waits_for_end || lacking.next().is_some()) {
                continue;
            }
            self.waiting[client] = None;
            match (lost, page) {
                (Some(dead), _) => host.send(client, &ToClient::Died(dead)),
                (None, None) => host.send(client, &ToClient::Settled),
                (None, Some(page)) if host.send_page(client, page) => {}
                (None, Some(_)) => host.send(client, &ToClient::Misuse),
            }
        }
    }
}
