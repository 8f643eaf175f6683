//! A link's bytes as messages of a fabric, beside the connection on which both ends have proved
//! themselves.
//!
//! ```text
//!   put_with --> message --> end point  ..  end point --> message --take-->
//!   end: the number of messages, and the end of TLS, over the connection
//!   lend: memory, by an end point of its own; its key over the connection
//! ```
//! Frames are written directly into the message that carries them, and read in the buffer in which
//! it came. A frame split over several messages, which no end of this version sends, is assembled
//! in `plain`.
//!
//! The connection stays, and carries [`words`]: the number of messages of the link, so that none is
//! missing when the other end has announced its end, and changes of memory that one end opens to
//! the other (`Deposits`). It shows a host's death. Over it this end asks whether messages have
//! come, if nothing else shows that (`Silence`).
//!
//! An end that leaves asks in the same way until everything has come: the other end's thread
//! answers and takes incoming messages, even if its program makes few calls. A client's end sends
//! first (`station`).
//!
//! If this end may write memory of the other's, packets are first taken out of the node's ring, and
//! leave once all earlier writes have arrived: so a packet that announces bytes comes after them.

use super::super::News;
use super::super::channel::Channel;
use super::super::path::{Path, PathEnd, Put};
use super::deposits::Deposits;
use super::silence::{LinkPart, Silence, SilenceInput, SilenceStep};
use super::station::{NextMessage, StationPlace, WINDOW, place_at};
use super::words::{self, FabricWord, WORD_BYTES_MAX};
use crate::os::fabric::Choice;
use crate::os::poller::Poller;
use crate::os::sys::monotonic_ns;
use crate::os::tcp;
use crate::wire::ApertureAccess;
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::String;
use std::vec::Vec;

/// The interval between two looks at the connection.
const LOOK_NS: u64 = 200_000;
/// The pause before the other end is urged again, at first and at most.
const URGE_NS: u64 = 1_000_000;
const URGE_MAX_NS: u64 = 128_000_000;
/// Most words that are taken on behalf of the node at a time.
const WORDS_AT_A_TIME: usize = 256;

/// A link's path over a fabric: see the module.
#[derive(Debug)]
pub struct FabricWay {
    place: StationPlace,
    tls: Channel,
    deposits: Deposits,
    /// It is one of several rails: no memory is open over it.
    is_rail: bool,
    /// The provider for end points for memory, once it has been looked for.
    choice: Option<Result<Choice, String>>,
    /// The total number of the other end's messages, once it has announced that.
    count: Option<u64>,
    silence: Silence,
    /// While messages cannot leave, or their arrival is unknown: the next time to urge the other
    /// end, and the pause after that.
    urge: Option<(u64, u64)>,
    /// The other end has asked for the number of messages that have come; `true`: its writes to
    /// memory are to be taken, too.
    asked: Option<bool>,
    /// One descriptor for everything that may wake the node; a rail's is watched by the link's own
    /// poller.
    poller: Poller,
    /// How long to wait for the messages of a host that has announced its end; and the longest time
    /// without an arrival.
    timeout_ns: u64,
    looked_ns: u64,
    /// Empty, unless a frame is split over several messages: then the bytes before the place's
    /// message.
    plain: Vec<u8>,
    plain_used: usize,
    received: u64,
    /// The last available message has just been taken: the next call does not look for another.
    is_dry: bool,
    pending: Vec<u8>,
    pending_used: usize,
    /// The end of the other end's connection: its time, its kind, and the announced number of
    /// messages.
    tls_ended: Option<(u64, PathEnd, Option<u64>)>,
    ended: Option<PathEnd>,
    is_broken: bool,
    /// Nothing more will be put; and that has been announced.
    is_last: bool,
    is_said: bool,
}

impl FabricWay {
    /// For two ends that have agreed.
    pub fn new(
        mut place: StationPlace,
        tls: Channel,
        deposits: Deposits,
        is_rail: bool,
        timeout_ns: u64,
    ) -> io::Result<Self> {
        let poller = Poller::new()?;
        if !is_rail {
            watch(&mut place, &tls, &poller, 0)?;
        }
        Ok(Self {
            place,
            tls,
            deposits,
            is_rail,
            choice: None,
            count: None,
            silence: Silence::default(),
            urge: None,
            asked: None,
            poller,
            timeout_ns,
            looked_ns: 0,
            plain: Vec::new(),
            plain_used: 0,
            received: 0,
            is_dry: false,
            pending: Vec::new(),
            pending_used: 0,
            tls_ended: None,
            ended: None,
            is_broken: false,
            is_last: false,
            is_said: false,
        })
    }

    /// Keeps the rest of a message, since its frame continues in the next.
    fn gather(&mut self) {
        if self.plain_used > 0 {
            self.plain.drain(..self.plain_used);
            self.plain_used = 0;
        }
        let left = self.place.bytes().len();
        self.plain.extend_from_slice(self.place.bytes());
        self.place.take(left);
    }

    /// Looks at the connection, unless it did so just before.
    fn look(&mut self, now_ns: u64) {
        if self.tls_ended.is_some() || now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        self.tls.receive(WORD_BYTES_MAX + 1);
        self.tls.flush();
        let heard = self.take_words();
        // The thread of other hosts may call this on behalf of a node that sleeps.
        if self.deposits.has_news() {
            self.place.tell();
        }
        self.say();
        self.tls.flush();
        let ended = match (heard, self.tls.ended()) {
            (Err(why), _) => PathEnd::Nonsense(why.into()),
            (Ok(()), None) => return,
            (Ok(()), Some(ended)) => ended.clone(),
        };
        self.is_broken = true;
        self.tls_ended = Some((now_ns, ended, self.count));
        // The node may sleep, and its descriptor no longer signals bytes that have been read here.
        self.place.tell();
    }

    /// Takes the words that have come. An error: no host sends these.
    fn take_words(&mut self) -> Result<(), &'static str> {
        const NONSENSE: &str = "it says what no host says";
        // At the end it takes all of them, for the last is the number of messages.
        while self.tls.ended().is_some() || self.takes_words() {
            let read = words::read(self.tls.plain()).map_err(|words::UnknownWord| NONSENSE)?;
            let Some((word, bytes)) = read else { break };
            self.tls.take(bytes);
            if self.count.is_some() {
                return Err(NONSENSE);
            }
            match word {
                FabricWord::Count(count) => self.count = Some(count),
                FabricWord::Asks(_) if self.asked.is_some() => return Err(NONSENSE),
                FabricWord::Asks(memory) => self.asked = Some(memory),
                FabricWord::Came(count) => self.silence.answered(count, self.place.counts().0)?,
                _ if self.is_rail => return Err(NONSENSE),
                word => {
                    let is_offer = matches!(word, FabricWord::Offer(_));
                    let other = self.tls.addresses().ok().map(|(_, other)| other);
                    let choice = if is_offer { self.choose().ok() } else { None };
                    let at =
                        |address: &mut [u8]| other.is_some_and(|other| place_at(address, other));
                    self.deposits.handle(word, || choice, &self.poller, at)?;
                }
            }
        }
        Ok(())
    }

    /// Whether it takes another word. Each may need an answer, so an end that does not take the
    /// answers is not read.
    fn takes_words(&self) -> bool {
        self.deposits.takes_words() && !self.tls.wants_write()
    }

    /// Whether a word has been read already, so that the connection does not signal it.
    fn has_word(&self) -> bool {
        let lies_there = || !matches!(words::read(self.tls.plain()), Ok(None));
        self.tls_ended.is_none() && self.takes_words() && (self.tls.holds_more() || lies_there())
    }

    /// Sends the words that are due.
    fn say(&mut self) {
        if let Some(memory) = self.asked.take() {
            self.place.take_all();
            if memory {
                self.deposits.progress();
            }
            self.say_word(&FabricWord::Came(self.place.counts().1));
        }
        while let Some(word) = self.deposits.next_word() {
            self.say_word(&word);
        }
    }

    fn say_word(&mut self, word: &FabricWord) {
        // Nothing follows the last word.
        if !self.is_said {
            let mut bytes = Vec::new();
            words::put(&mut bytes, word);
            self.tls.put(&bytes);
        }
    }

    /// The provider for end points for memory.
    fn choose(&mut self) -> Result<Choice, String> {
        if self.choice.is_none() {
            let own = self.tls.addresses().map(|(own, _)| own.ip().to_canonical());
            let own = own.map_err(|e| std::format!("asking for its address: {e}"));
            self.choice = Some(own.and_then(|own| self.place.choose_for_memory(own)));
        }
        match &self.choice {
            Some(Ok(choice)) => choice.duplicate().map_err(|e| std::format!("{e}")),
            Some(Err(why)) => Err(why.clone()),
            None => Err("it was not asked for".into()),
        }
    }

    /// Makes progress with writes to memory, both ways.
    fn move_deposits(&mut self) {
        if !self.deposits.is_active() {
            return;
        }
        let now_ns = monotonic_ns();
        self.look(now_ns);
        self.deposits.progress();
        self.say();
        if self.ended.is_none()
            && let Some(why) = self.deposits.trouble(now_ns)
        {
            self.is_broken = true;
            self.ended = Some(PathEnd::Failed(why));
        }
    }

    /// Ends the path once everything of the link has come, or nothing more will.
    fn see_end(&mut self, now_ns: u64, nothing_lies_there: bool, has_ended: bool) {
        if self.ended.is_some() {
            return;
        }
        let of_place = if has_ended { self.place.ended() } else { None };
        self.is_broken |= of_place.is_some();
        if matches!(of_place, Some(PathEnd::Failed(_))) && self.tls_ended.is_none() {
            // It may have announced its end.
            self.looked_ns = 0;
            self.look(now_ns);
        }
        if !nothing_lies_there && !matches!(of_place, Some(PathEnd::Nonsense(_))) {
            return;
        }
        let came = self.place.counts().1;
        self.ended = match (of_place, &self.tls_ended) {
            // Nothing is missing, although nothing can be sent to it any more.
            (None | Some(PathEnd::Failed(_)), Some((_, PathEnd::Said, Some(count))))
                if came >= *count =>
            {
                Some(PathEnd::Said)
            }
            (Some(of_place), _) => Some(of_place),
            (None, None) => None,
            (None, Some((since_ns, PathEnd::Said, Some(_)))) => {
                let is_late = now_ns.saturating_sub(*since_ns) > self.timeout_ns;
                is_late.then_some(PathEnd::Cut)
            }
            (None, Some((_, ended, _))) => Some(ended.clone()),
        };
    }

    /// Whether the other end's process has everything, or never will.
    fn has_come(&self) -> bool {
        let (sent, used) = (self.place.counts().0, self.place.used_there().1);
        self.is_broken || self.tls_ended.is_some() || sent == used.max(self.silence.came())
    }

    /// Asks the other end to take incoming messages, since its program may make no calls, and a
    /// provider may need them: first after `pause_ns`, and then less and less often.
    fn urge_after(&mut self, pause_ns: u64) {
        let now_ns = monotonic_ns();
        let (due_ns, pause_ns) = *self.urge.get_or_insert((now_ns + pause_ns, URGE_NS));
        if now_ns < due_ns || self.is_said || self.is_broken || self.tls_ended.is_some() {
            return;
        }
        if self.silence.ask() {
            self.urge = Some((now_ns + pause_ns, (2 * pause_ns).min(URGE_MAX_NS)));
            self.say_word(&FabricWord::Asks(self.deposits.arrived().is_some()));
            self.tls.flush();
        }
    }

    /// Announces the end, once the other end has everything.
    fn say_end(&mut self) {
        if self.is_last && !self.is_said {
            self.say();
            if !self.has_come() {
                return self.urge_after(0);
            }
            self.say_count();
        }
    }

    fn say_count(&mut self) {
        let sent = self.place.counts().0;
        self.say_word(&FabricWord::Count(sent));
        self.tls.put_end();
        self.is_said = true;
    }

    /// Messages wait to leave; unless they wait for the other end's program alone, this asks its
    /// library.
    fn has_to_wait(&mut self) {
        if self.place.waits_for_provider() {
            self.urge_after(URGE_NS);
        }
    }

    /// Checks whether messages arrive, even if the node makes no calls.
    fn look_for_loss(&mut self) {
        let now_ns = monotonic_ns();
        // Another call may have looked just before.
        self.look(now_ns);
        if self.is_broken || self.is_said || self.tls_ended.is_some() || self.ended.is_some() {
            return;
        }
        let ((sent, used), writes) = (self.place.used_there(), self.deposits.arrived());
        let found = SilenceInput { sent, used, writes };
        match self.silence.look(now_ns, found, self.timeout_ns) {
            SilenceStep::Nothing => {}
            SilenceStep::Ask => {
                self.place.take_all();
                self.deposits.progress();
                self.say_word(&FabricWord::Asks(writes.is_some()));
                self.tls.flush();
            }
            SilenceStep::Silent(what) => {
                let what = match what {
                    LinkPart::Messages => "what is sent to it over the fabric",
                    LinkPart::Memory => "what is written to its memory over the fabric",
                };
                self.place.fail(std::format!(
                    "nothing of {what} has arrived for host_timeout_ms ({} ms), though it answers \
                     over TLS",
                    self.timeout_ns / 1_000_000
                ));
                self.is_broken = true;
                // The other end sees the end.
                self.tls.break_off();
            }
        }
    }

    /// From here on the connection signals the end, and the thread calls regularly. The provider's
    /// descriptor falls silent only for a caller that prepares to sleep on it; it would make the
    /// thread call without a pause.
    fn forget_descriptor(&mut self, of: Option<&Poller>) {
        if let Some(descriptor) = self.place.take_descriptor() {
            of.into_iter().chain([&self.poller]).for_each(|poller| poller.remove(&descriptor));
        }
    }

    fn drop_pending(&mut self) {
        self.pending.clear();
        self.pending_used = 0;
    }
}

/// Has a poller watch everything that may wake the node.
fn watch(place: &mut StationPlace, tls: &Channel, poller: &Poller, tag: u64) -> io::Result<()> {
    poller.add(tls, tag)?;
    let (bell, descriptor) = place.tellers();
    poller.add(bell, tag)?;
    // The library's descriptor may itself be made of others, and the kernel allows only a few
    // levels of nesting.
    if descriptor.is_some_and(|fd| poller.add(fd, tag).is_err()) {
        place.have_looked_at();
    }
    Ok(())
}

impl Path for FabricWay {
    fn plain(&self) -> &[u8] {
        match self.plain.is_empty() {
            true => self.place.bytes(),
            false => &self.plain[self.plain_used..],
        }
    }

    fn take(&mut self, bytes: usize) {
        if self.plain.is_empty() {
            return self.place.take(bytes);
        }
        self.plain_used += bytes;
        debug_assert!(self.plain_used <= self.plain.len());
        if self.plain_used == self.plain.len() {
            self.plain.clear();
            self.plain_used = 0;
        }
    }

    fn receive(&mut self, most: usize) -> bool {
        let there = self.plain().len();
        if self.ended.is_some() || there >= most {
            return false;
        }
        if there == 0 && core::mem::take(&mut self.is_dry) {
            return false;
        }
        self.gather();
        let now_ns = monotonic_ns();
        // First, so that messages sent before the other end's end are there when the end is
        // noticed.
        self.look(now_ns);
        let mut all = 0;
        loop {
            let NextMessage { bytes, is_last, has_ended } = self.place.next_message();
            all += bytes;
            self.received += bytes as u64;
            // For a rail, this turn may be for the messages behind another rail's reports.
            self.is_dry = bytes > 0 && is_last && !self.is_rail;
            if !self.plain.is_empty() {
                self.plain.extend_from_slice(self.place.bytes());
                self.place.take(bytes);
            }
            if bytes == 0 || self.plain.is_empty() || self.plain.len() >= most {
                self.see_end(now_ns, is_last, has_ended);
                return all > 0;
            }
        }
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn ended(&self) -> Option<&PathEnd> {
        self.ended.as_ref()
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.is_broken {
            return;
        }
        // The gate is shut first: these bytes may announce earlier writes.
        let is_open = !self.deposits.writes() || self.deposits.gate();
        let sent = match self.pending.is_empty() && is_open {
            true => self.place.send(bytes),
            false => 0,
        };
        self.pending.extend_from_slice(&bytes[sent..]);
        if self.pending.is_empty() {
            self.urge = None;
        }
    }

    fn put_with(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> Put {
        if self.is_broken || !self.pending.is_empty() {
            return Put::Later;
        }
        if self.deposits.writes() {
            return Put::Sent(0);
        }
        match self.place.send_with(fill) {
            Some(bytes) => {
                self.urge = None;
                Put::Sent(bytes)
            }
            None => {
                self.look(monotonic_ns());
                self.is_broken |= self.place.ended().is_some();
                self.has_to_wait();
                Put::Later
            }
        }
    }

    fn flush(&mut self) -> bool {
        self.move_deposits();
        if !self.pending.is_empty() && !self.is_broken && !self.deposits.is_open() {
            return false;
        }
        if !self.pending.is_empty() {
            self.look(monotonic_ns());
            self.pending_used += self.place.send(&self.pending[self.pending_used..]);
            self.is_broken |= self.place.ended().is_some();
        }
        if self.is_broken || self.pending_used == self.pending.len() {
            if !self.pending.is_empty() {
                self.drop_pending();
                self.urge = None;
            }
            self.say_end();
            return self.tls.flush();
        }
        self.has_to_wait();
        false
    }

    fn is_quiet(&mut self) -> bool {
        // Messages that wait behind others need another call.
        let is_empty = self.pending.is_empty();
        self.is_broken || (is_empty && self.place.is_quiet() && self.deposits.is_quiet())
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn watch_in(&mut self, poller: &Poller, tag: u64) -> io::Result<()> {
        watch(&mut self.place, &self.tls, poller, tag)
    }

    fn unwatch_in(&mut self, poller: &Poller) {
        poller.remove(&self.tls);
        let (bell, descriptor) = self.place.tellers();
        poller.remove(bell);
        if let Some(descriptor) = descriptor {
            poller.remove(descriptor);
        }
    }

    fn is_left(&mut self, poller: &Poller) {
        self.forget_descriptor(Some(poller));
    }

    fn put_end(&mut self) {
        (self.is_last, self.urge) = (true, None);
    }

    fn urge(&mut self) {
        if !self.has_come() {
            self.urge_after(0);
        }
    }

    fn give_up(&mut self) {
        // Messages that have left may still come; those that the provider has not taken are lost.
        let has_left = self.pending.is_empty() && !self.place.has_unsent();
        if self.is_last && !self.is_said && has_left {
            self.say_count();
            self.tls.flush();
        }
    }

    fn give_back(&mut self) {
        self.tls.give_back();
    }

    fn is_delivered(&mut self) -> bool {
        self.forget_descriptor(None);
        // Incoming bytes are discarded; the other end may go on sending until it has noticed the
        // end.
        for _ in 0..WINDOW {
            self.receive(usize::MAX);
            let taken = self.plain().len();
            self.take(taken);
        }
        // The other end closes the connection, too, if its program looks at it.
        let has_come = self.is_said && self.tls.is_delivered();
        has_come || self.ended.is_some() || self.tls_ended.is_some()
    }

    fn break_off(&self) {
        self.tls.break_off();
    }

    fn tcp(&self) -> BorrowedFd<'_> {
        self.tls.tcp()
    }

    fn takes_more(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn look_for_silence(&mut self, limit: Duration) -> bool {
        self.look_for_loss();
        tcp::is_silent(self.tcp(), limit)
    }

    fn hear(&mut self) {
        for _ in 0..WORDS_AT_A_TIME {
            self.looked_ns = 0;
            self.look(monotonic_ns());
            if !self.has_word() {
                return;
            }
        }
        self.place.tell();
    }

    fn tell_of_room(&self) {
        self.place.tell();
    }

    fn has_unsent(&self) -> bool {
        self.place.has_unsent()
    }

    fn may_sleep(&mut self) -> bool {
        let may_sleep = self.place.may_sleep();
        self.deposits.may_sleep() && may_sleep && !self.has_word()
    }

    fn explain(&self) -> String {
        let memory = match &self.choice {
            Some(Err(why)) => std::format!(", no memory ({why})"),
            _ => self.deposits.explain(),
        };
        std::format!("{}{memory} over {}", self.place.explain(), self.tls.explain())
    }

    fn close_own(&mut self) {
        self.deposits.close_own();
    }

    fn can_lend(&mut self) -> Result<(), String> {
        self.choose().map(|_| ())
    }

    fn lend(&mut self, file: OwnedFd, bytes: u64, access: ApertureAccess) -> Result<u32, String> {
        let choice = self.choose()?;
        if self.is_broken || self.is_said {
            return Err("the link has ended".into());
        }
        let number = self.deposits.lend(&choice, &self.poller, file, bytes, access)?;
        self.say();
        self.tls.flush();
        Ok(number)
    }

    fn revoke(&mut self, number: u32) {
        self.deposits.revoke(number);
        self.say();
        self.tls.flush();
    }

    fn release(&mut self, number: u32) {
        self.deposits.release(number);
        self.say();
        self.tls.flush();
    }

    fn next_news(&mut self) -> Option<News> {
        self.deposits.next_news()
    }
}

impl AsFd for FabricWay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
