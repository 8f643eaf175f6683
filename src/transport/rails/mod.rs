//! One link over several connections, or several end points of a fabric: rails.
//!
//! ```text
//!   put --> RailSending ----> rail 0: Path --> network
//!                     \----> rail 1: Path --> network
//!   plain <-- Receiving <---- any rail
//! ```
//! - [`numbers`]: both ends' counters, so that no batch is lost and none is taken twice
//! - `rail`: one of them; [`live`]: those that live, for code without the link's lock
//!
//! `control::hosts` asks for rails, connects them and proves which link each belongs to.
//!
//! A link with one rail does not use this. With several, each rail is a connection, or a fabric's
//! messages beside one, depending on the link. The first is the link's original connection; the end
//! that made that one makes the others. Batches go over the rail with least to send, but not over
//! one that has not yet answered a question that another has answered. The counts of batches
//! received and taken are reported over all rails. A rail is left if its connection ends, or if it
//! takes nothing while another does; with the last rail the link ends.
//!
//! Incoming bytes are taken from one rail at a time, in turn. So one turn of a node takes as many
//! bytes from a link with several rails as from a link with one.
//!
//! Never: a rail that takes nothing delays the others, as long as the receiver's credit lasts.

pub mod live;
pub mod numbers;
mod rail;

pub use rail::ends_of;

use super::path::{Path, PathEnd};
use crate::os::poller::Poller;
use crate::os::sys::{Bell, monotonic_ns};
use core::time::Duration;
use live::Live;
use numbers::{
    ANSWER_BYTES, BatchViolation, HEAD_BYTES, RailHead, RailKind, RailSending, Receiving,
};
use rail::{Rail, RailPlace, of_end};
use std::boxed::Box;
use std::format;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// Most rails of a link.
pub const RAILS_MAX: u8 = 8;
/// Bytes that one pass takes from a rail.
const PASS_BYTES: usize = 64 << 10;
/// Passes at a time if no node takes turns.
const PASSES_OF_LEFT: usize = RAILS_MAX as usize * 8;

/// A link's rails as one path: see the module.
#[derive(Debug)]
pub struct Rails {
    rails: Vec<Rail>,
    /// The live rails, for code without the link's lock.
    live: Arc<Live>,
    next_id: u64,
    /// The rail that the next pass begins with.
    turn: usize,
    places: Vec<RailPlace>,
    /// One descriptor for everything that may wake the node; and the bell for bytes that another
    /// thread's send has taken in.
    poller: Poller,
    bell: Bell,
    has_rung: bool,
    sending: RailSending,
    receiving: Receiving,
    batch_bytes: usize,
    /// The number of bytes taken after which that is reported: a quarter of the smaller of both
    /// ends' credits. A part of this end's own credit could be more than the other end may send.
    report_bytes: u64,
    /// Bytes that came over rails that have been left.
    received: u64,
    ended: Option<PathEnd>,
    is_last_put: bool,
}

/// The terms that both ends have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The number of rails.
    pub count: u8,
    /// Bytes that the other end grants, limited to this end's own grant.
    pub credit: u32,
    /// Bytes that this end grants.
    pub own_credit: u32,
    /// Most bytes of an incoming batch.
    pub batch_bytes: usize,
}

impl Rails {
    /// With the first rail, and the addresses of its ends. `live` records rails that join and
    /// leave.
    pub fn new(
        terms: Terms,
        first: Box<dyn Path>,
        ends: String,
        live: Arc<Live>,
    ) -> io::Result<Self> {
        let mut this = Self::none(terms, live)?;
        this.join(0, ends, first)?;
        Ok(this)
    }

    fn none(terms: Terms, live: Arc<Live>) -> io::Result<Self> {
        let credit = u64::from(terms.own_credit);
        let (poller, bell) = (Poller::new()?, Bell::new()?);
        poller.add(&bell, 0)?;
        Ok(Self {
            rails: Vec::new(),
            live,
            next_id: 0,
            turn: 0,
            places: std::vec![RailPlace::default(); usize::from(terms.count.clamp(1, RAILS_MAX))],
            poller,
            bell,
            has_rung: false,
            sending: RailSending::new(terms.credit.into()),
            receiving: Receiving::new(credit, terms.batch_bytes as u64),
            batch_bytes: terms.batch_bytes,
            report_bytes: u64::from(terms.credit.min(terms.own_credit) / 4),
            received: 0,
            ended: None,
            is_last_put: false,
        })
    }

    fn join(&mut self, place: u8, ends: String, mut path: Box<dyn Path>) -> io::Result<()> {
        self.next_id += 1;
        let id = self.next_id;
        path.watch_in(&self.poller, id)?;
        if let Some(at) = self.rails.iter().position(|rail| rail.place == place) {
            self.leave(at, "the other end has made it anew".into());
        }
        self.receiving.has_rail();
        self.rails.push(Rail {
            id,
            place,
            path,
            ends,
            // Bytes of the handshake may not have left yet.
            is_behind: true,
            is_watched: false,
            queued: 0,
            is_broken: false,
            was_silent: false,
            question: None,
            asked: None,
            owed: None,
            progress_ns: monotonic_ns(),
            told: (0, 0),
            tells: true,
        });
        let own = &mut self.places[usize::from(place)];
        (own.is_live, own.missing) = (true, String::new());
        self.live.joined(place);
        self.tell_all();
        // For batches without a rail: the question may have been asked over a rail that is gone.
        if self.sending.is_waiting() {
            self.ask_all();
        }
        Ok(())
    }

    /// Leaves a rail that is gone, or of no use, and asks over the others for the batches sent over
    /// it.
    #[cold]
    fn leave(&mut self, at: usize, why: String) {
        let mut rail = self.rails.remove(at);
        rail.path.unwatch_in(&self.poller);
        self.received += rail.path.received();
        let place = &mut self.places[usize::from(rail.place)];
        (place.is_live, place.left, place.why) = (false, place.left + 1, why);
        self.live.left(rail.place);
        rail.path.break_off();
        // Reports sent over it may be lost, and credit with them.
        self.tell_all();
        if self.sending.left(rail.id) {
            self.ask_all();
        }
    }

    fn tell_all(&mut self) {
        self.rails.iter_mut().for_each(|rail| rail.tells = true);
    }

    fn ask_all(&mut self) {
        let question = self.sending.ask();
        self.rails.iter_mut().for_each(|rail| rail.ask(question));
    }

    /// Sends a message about batches.
    fn say(&mut self, at: usize, kind: RailKind, number: u64, bytes: &[u8]) {
        let (had, freed) = self.receiving.state();
        let head = RailHead { kind, length: bytes.len() as u32, number, place: 0, had, freed };
        let mut word = [0; HEAD_BYTES + ANSWER_BYTES];
        word[..HEAD_BYTES].copy_from_slice(&head.to_bytes());
        word[HEAD_BYTES..HEAD_BYTES + bytes.len()].copy_from_slice(bytes);
        self.rails[at].put((had, freed), &word[..HEAD_BYTES + bytes.len()]);
    }

    fn send_batch(&mut self, at: usize, number: u64) {
        let (had, freed) = self.receiving.state();
        let bytes = self.sending.bytes_of(number, had, freed);
        self.rails[at].put((had, freed), bytes);
    }

    /// The live rail with least to send; a suspect rail only if all are.
    fn freest(&self) -> Option<usize> {
        let answered = self.sending.answered();
        let live = self.rails.iter().enumerate().filter(|(_, rail)| !rail.is_broken);
        let order = |rail: &Rail| (rail.is_suspect(answered), rail.is_behind, rail.queued);
        live.min_by_key(|(_, rail)| order(rail)).map(|(at, _)| at)
    }

    fn idle(&self) -> Option<usize> {
        self.freest().filter(|at| !self.rails[*at].is_behind)
    }

    fn put_batch(&mut self, kind: RailKind, bytes: &[u8]) {
        let Some(at) = self.freest() else { return };
        let number = self.sending.put(kind, bytes, self.rails[at].id);
        self.send_batch(at, number);
    }

    /// Takes bytes from one rail, the next that has any. Returns whether one had; then there may be
    /// more.
    fn pass(&mut self) -> bool {
        let most = PASS_BYTES.max(HEAD_BYTES + self.batch_bytes);
        let mut moved = false;
        for _ in 0..self.rails.len() {
            if self.is_dead() {
                break;
            }
            let at = self.turn % self.rails.len();
            moved = self.rails[at].path.receive(most);
            match self.take_from(at) {
                Ok(came) => moved |= came,
                Err(BatchViolation(what)) => {
                    let place = self.rails[at].place;
                    let what = format!("on rail {place} of a link it says {what}");
                    self.ended = Some(PathEnd::Nonsense(what));
                }
            }
            self.turn = at + 1;
            if !self.is_dead()
                && let Some(ended) = self.rails[at].path.ended().cloned()
            {
                moved = true;
                self.turn = at;
                self.leave(at, of_end(&ended));
                if self.rails.is_empty() && !self.receiving.has_all() {
                    self.ended.get_or_insert(ended);
                }
            }
            if moved {
                break;
            }
        }
        self.see_last();
        moved
    }

    /// Takes all whole messages that have come over one rail.
    fn take_from(&mut self, at: usize) -> Result<bool, BatchViolation> {
        let mut any = false;
        loop {
            let plain = self.rails[at].path.plain();
            let Some((head, rest)) = plain.split_first_chunk::<HEAD_BYTES>() else {
                return Ok(any);
            };
            let head = RailHead::read(head, self.batch_bytes)?;
            let length = head.length as usize;
            let Some(body) = rest.get(..length) else { return Ok(any) };
            let answer = (head.kind == RailKind::Answer).then(|| body.to_vec());
            let mut question = None;
            match head.kind {
                RailKind::Long | RailKind::Short if length < super::frames::HEADER_BYTES => {
                    return Err(BatchViolation("a batch that ends within a frame"));
                }
                RailKind::Long | RailKind::Short | RailKind::Last => {
                    self.receiving.take(&head, body)?;
                    // The sender waits for this report before it ends the link; the last batch may
                    // have come before others.
                    if self.receiving.has_all() || head.kind == RailKind::Last {
                        self.rails.iter_mut().for_each(|rail| rail.tells = true);
                    }
                }
                RailKind::Report | RailKind::Answer => {}
                RailKind::Ask => question = Some(head.number),
            }
            let (rails, now_ns) = (&mut self.rails, monotonic_ns());
            let mut went_over = |id: u64| {
                if let Some(rail) = rails.iter_mut().find(|rail| rail.id == id) {
                    rail.progress_ns = now_ns;
                }
            };
            self.sending.reported(head.had, head.freed, &mut went_over)?;
            if let Some(bits) = &answer {
                self.sending.answer(head.number, head.had, bits, &mut went_over)?;
            }
            let rail = &mut self.rails[at];
            if answer.is_some() {
                rail.asked = rail.asked.filter(|asked| *asked > head.number);
            }
            rail.question = question.or(rail.question);
            rail.path.take(HEAD_BYTES + length);
            any = true;
        }
    }

    /// Whether the link has failed, so that nothing comes or leaves any more.
    fn is_dead(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| *ended != PathEnd::Said)
    }

    fn ring(&mut self) {
        if !core::mem::replace(&mut self.has_rung, true) {
            self.bell.ring();
        }
    }

    fn see_last(&mut self) {
        if self.ended.is_none() && self.receiving.is_over() {
            self.ended = Some(PathEnd::Said);
        }
    }

    /// Sends the answers and reports that are due. Reports go over each rail: on a stalled rail
    /// they would not be read, while a sender without credit waits for them.
    fn say_due(&mut self) {
        let (had, freed) = self.receiving.state();
        for at in 0..self.rails.len() {
            let rail = &mut self.rails[at];
            if rail.is_behind || rail.is_broken {
                continue;
            }
            let question = rail.question.take();
            let is_due = rail.tells
                || freed - rail.told.1 >= self.report_bytes
                || had - rail.told.0 >= numbers::WINDOW / 4;
            if let Some(question) = question {
                let bits = self.receiving.bits();
                self.say(at, RailKind::Answer, question, &bits);
            } else if is_due {
                self.say(at, RailKind::Report, 0, &[]);
            }
        }
    }

    fn write_out(&mut self) {
        let (mut rings, mut at) = (false, 0);
        while at < self.rails.len() {
            self.rails[at].flush();
            if let Some(question) = self.rails[at].owes() {
                self.say(at, RailKind::Ask, question, &[]);
                self.rails[at].flush();
            }
            let rail = &mut self.rails[at];
            at += 1;
            if rail.is_watched != rail.is_behind {
                rail.is_watched = rail.is_behind;
                if let Some(fd) = rail.path.takes_more() {
                    let _ = self.poller.want_write(fd, rail.id, rail.is_behind);
                }
                // A sender that waits for room may be asleep, and this may be another thread.
                rings |= !rail.is_behind;
            }
            if rail.path.is_broken() && !rail.is_broken {
                rail.is_broken = true;
                // Bytes that have come over it can still be read.
                if self.sending.left(rail.id) && self.rails.iter().any(|rail| !rail.is_broken) {
                    self.ask_all();
                    at = 0;
                }
            }
        }
        if rings {
            self.ring();
        }
    }

    fn send_again(&mut self) {
        while let Some(at) = self.idle() {
            let id = self.rails[at].id;
            let Some(number) = self.sending.next_again(id) else { return };
            self.send_batch(at, number);
            self.write_out();
        }
    }

    fn asks(&self) -> bool {
        self.rails.iter().any(|rail| rail.asked.is_some())
    }

    /// Asks over the rails that owe an answer; leaves those that take nothing while another does.
    fn ask_or_leave(&mut self, limit_ns: u64) {
        let now_ns = monotonic_ns();
        let answered = self.sending.answered();
        let has_stalled = |rail: &Rail| {
            rail.is_suspect(answered) && now_ns.saturating_sub(rail.progress_ns) >= limit_ns
        };
        while self.rails.len() > 1
            && let Some(at) = self.rails.iter().position(has_stalled)
        {
            self.leave(at, "it took nothing while another did".into());
        }
        let owes =
            |rail: &Rail| rail.asked.is_some() || rail.is_behind || self.sending.is_on(rail.id);
        if self.rails.len() > 1 && self.rails.iter().any(owes) {
            let question = self.sending.ask();
            // A rail that has not yet answered is asked nothing more.
            let may_ask = |rail: &&mut Rail| rail.asked.is_none() && !rail.is_broken;
            self.rails.iter_mut().filter(may_ask).for_each(|rail| rail.ask(question));
        }
    }
}

impl Path for Rails {
    fn plain(&self) -> &[u8] {
        self.receiving.plain()
    }

    fn take(&mut self, bytes: usize) {
        self.receiving.taken(bytes);
        self.see_last();
    }

    fn receive(&mut self, _most: usize) -> bool {
        if core::mem::take(&mut self.has_rung) {
            self.bell.silence();
        }
        if self.ended.is_some() {
            return false;
        }
        // A caller that asks for more has found an incomplete frame, but each batch consists of
        // whole ones.
        if !self.plain().is_empty() {
            let what = "a batch that ends within a frame".into();
            self.ended = Some(PathEnd::Nonsense(what));
            return false;
        }
        let moved = self.pass();
        self.say_due();
        self.write_out();
        moved
    }

    fn received(&self) -> u64 {
        self.rails.iter().fold(self.received, |sum, rail| sum + rail.path.received())
    }

    fn ended(&self) -> Option<&PathEnd> {
        self.ended.as_ref()
    }

    fn spreads(&self) -> bool {
        true
    }

    fn takes(&self) -> bool {
        self.sending.may_put()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.put_batch(RailKind::Short, bytes);
    }

    fn put_long(&mut self, bytes: &[u8]) {
        self.put_batch(RailKind::Long, bytes);
    }

    fn put_last(&mut self, bytes: &[u8]) {
        self.is_last_put = true;
        self.put_batch(RailKind::Last, bytes);
    }

    fn flush(&mut self) -> bool {
        self.write_out();
        if (!self.sending.may_put() || self.sending.is_waiting()) && self.pass() {
            self.ring();
        }
        self.say_due();
        self.send_again();
        self.write_out();
        self.is_broken() || (self.sending.may_put() && self.idle().is_some())
    }

    fn is_quiet(&mut self) -> bool {
        let is_quiet = self.rails.iter_mut().all(|rail| rail.path.is_quiet());
        self.is_broken() || (is_quiet && !self.sending.is_waiting())
    }

    fn is_broken(&self) -> bool {
        self.is_dead() || self.rails.iter().all(|rail| rail.is_broken)
    }

    fn put_end(&mut self) {
        if !core::mem::replace(&mut self.is_last_put, true) {
            self.put_batch(RailKind::Last, &[]);
        }
    }

    fn is_delivered(&mut self) -> bool {
        self.rails.iter_mut().for_each(|rail| rail.path.is_left(&self.poller));
        for _ in 0..PASSES_OF_LEFT {
            let moved = self.pass();
            self.receiving.drop_ready();
            if !moved {
                break;
            }
        }
        self.flush();
        let is_done = self.sending.is_all_there()
            || self.rails.iter().all(|rail| rail.is_broken)
            || matches!(self.ended, Some(PathEnd::Nonsense(_)));
        if is_done {
            for rail in &mut self.rails {
                rail.path.put_end();
                rail.path.flush();
            }
        } else {
            self.rails.iter_mut().for_each(|rail| rail.path.urge());
        }
        // The node is gone; the bell would wake the thread without end.
        if core::mem::take(&mut self.has_rung) {
            self.bell.silence();
        }
        is_done
    }

    fn break_off(&self) {
        for rail in &self.rails {
            rail.path.break_off();
        }
    }

    fn tcp(&self) -> BorrowedFd<'_> {
        self.rails.first().map_or(self.poller.as_fd(), |rail| rail.path.tcp())
    }

    fn look_for_silence(&mut self, limit: Duration) -> bool {
        for rail in &mut self.rails {
            let is_silent = rail.path.look_for_silence(limit);
            if is_silent && rail.was_silent {
                rail.path.break_off();
            }
            rail.was_silent = is_silent;
        }
        self.look_for_stalls(limit);
        // Each rail is handled here; the link ends with the last.
        false
    }

    fn look_for_stalls(&mut self, limit: Duration) {
        self.ask_or_leave(limit.as_nanos() as u64);
        // The node may be asleep, and after a rail was left there are batches to send again.
        if self.rails.len() < self.places.len() || self.sending.is_waiting() || self.asks() {
            if self.pass() {
                self.ring();
            }
            self.flush();
        }
    }

    fn add_rail(&mut self, place: u8, path: Box<dyn Path>, ends: String) -> Result<(), String> {
        if usize::from(place) >= self.places.len() {
            return Err(format!("the link has {} rails", self.places.len()));
        }
        if self.ended.is_some() || self.rails.is_empty() {
            return Err("the link has ended".into());
        }
        self.join(place, ends, path).map_err(|e| format!("watching its connection: {e}"))?;
        // Bytes right behind the answer have been read from the socket already: they wake no
        // thread.
        if self.pass() {
            self.ring();
        }
        self.flush();
        Ok(())
    }

    fn has_no_rail(&mut self, place: u8, why: &str) {
        if let Some(place) = self.places.get_mut(usize::from(place)).filter(|p| !p.is_live) {
            place.missing = why.to_string();
        }
    }

    fn rail(&self, place: u8) -> Option<bool> {
        let place = self.places.get(usize::from(place))?;
        (!self.rails.is_empty() && self.ended.is_none()).then_some(place.is_live)
    }

    fn takes_more(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn may_sleep(&mut self) -> bool {
        // Each rail has to get ready for the sleep, so all are asked.
        self.rails.iter_mut().fold(true, |all, rail| rail.path.may_sleep() & all)
    }

    fn hear(&mut self) {
        self.rails.iter_mut().for_each(|rail| rail.path.hear());
        // The other end may wait for a report on its batches.
        let mut moved = false;
        for _ in 0..PASSES_OF_LEFT {
            if !self.pass() {
                break;
            }
            moved = true;
        }
        if moved {
            self.ring();
        }
        self.say_due();
        self.write_out();
    }

    fn give_up(&mut self) {
        for rail in &mut self.rails {
            rail.path.put_end();
            rail.path.give_up();
        }
    }

    fn has_unsent(&self) -> bool {
        self.rails.iter().any(|rail| rail.path.has_unsent())
    }

    fn can_lend(&mut self) -> Result<(), String> {
        Err("the link has several rails, and memory is open over libfabric with one alone".into())
    }

    fn give_back(&mut self) {
        for rail in &mut self.rails {
            rail.path.give_back();
        }
    }

    fn explain(&self) -> String {
        let how = self.rails.first().map_or("TCP with TLS 1.3".into(), |rail| rail.path.explain());
        let mut text = format!("{how}, {} of {} rails", self.rails.len(), self.places.len());
        for (number, place) in self.places.iter().enumerate() {
            text.push_str(if number == 0 { " [" } else { "; " });
            text.push_str(&format!("rail {number} "));
            let live = self.rails.iter().find(|rail| usize::from(rail.place) == number);
            match live {
                Some(rail) => text.push_str(&format!("lives{}", rail.ends)),
                None if place.left > 0 => text.push_str("was left"),
                None if place.missing.is_empty() => text.push_str("is being made"),
                None => text.push_str("could not be made"),
            }
            if place.left > 0 {
                text.push_str(&format!(" (left {} times: {})", place.left, place.why));
            }
            if live.is_none() && !place.missing.is_empty() {
                text.push_str(&format!(", at the last attempt: {}", place.missing));
            }
        }
        let (again, twice) = (self.sending.sent_again(), self.receiving.twice());
        text.push_str(&format!(
            "; {again} batches sent again, {twice} came twice and were dropped]"
        ));
        text
    }
}

impl AsFd for Rails {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
