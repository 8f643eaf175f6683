//! The protocol's refusals and bounds, without a simulation: one server or client, and messages for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use hamlyn_svm::machine::wire::{Call, HEAD_BYTES, Need, Notice, ToClient, ToServer};
use hamlyn_svm::machine::{Client, Error, Event, Host, Links, Server, Shape};

const SHAPE: Shape = Shape { processes: 4, pages: 1000, page_bytes: 64, objects: 32, log_max: 64 };

struct Counting;

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does it; beside it a number changes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get() + layout.size() as isize);
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Keeps what was sent: receiver and bytes.
#[derive(Default)]
struct Sent(Vec<(usize, Vec<u8>)>);

impl Sent {
    fn take(&mut self) -> Vec<(usize, Vec<u8>)> {
        std::mem::take(&mut self.0)
    }
}

impl Links for Sent {
    fn send(&mut self, to: usize, message: &ToServer<'_>) {
        let (head, body) = message.parts();
        self.0.push((to, [&head, body].concat()));
    }
}

impl Host for Sent {
    fn send(&mut self, to: usize, message: &ToClient<'_>) {
        let (head, body) = message.parts();
        self.0.push((to, [&head, body].concat()));
    }

    fn send_page(&mut self, to: usize, page: u32) -> bool {
        let bytes = [0; SHAPE.page_bytes];
        Host::send(self, to, &ToClient::Page { page, bytes: &bytes });
        page < 900
    }

    fn apply(&mut self, page: u32, offset: usize, bytes: &[u8]) -> bool {
        assert!(page < SHAPE.pages && offset + bytes.len() <= SHAPE.page_bytes);
        page < 900
    }
}

fn sync(call: Call) -> Vec<u8> {
    let known = [0.into(); SHAPE.processes];
    let (head, body) = ToServer::Sync { call, all: false, known: &known }.parts();
    [&head, body].concat()
}

fn give(server: &mut Server, from: usize, bytes: &[u8], sent: &mut Sent) -> Result<(), Error> {
    server.take(from, ToServer::decode(bytes, &SHAPE)?, sent)
}

fn receivers(sent: &mut Sent) -> Vec<usize> {
    sent.take().into_iter().map(|(to, _)| to).collect()
}

#[test]
fn a_lock_goes_to_the_process_that_waits_longest() {
    let (mut server, mut sent) = (Server::new(SHAPE, 1), Sent::default());
    let order = [2, 0, 3, 1];
    for from in order {
        give(&mut server, from, &sync(Call::Acquire { lock: 1 }), &mut sent).unwrap();
    }
    let mut granted = receivers(&mut sent);
    for from in order {
        give(&mut server, from, &sync(Call::Release { lock: 1 }), &mut sent).unwrap();
        // It wants it again, and is last.
        give(&mut server, from, &sync(Call::Acquire { lock: 1 }), &mut sent).unwrap();
        granted.extend(receivers(&mut sent));
    }
    assert_eq!(granted, [2, 0, 3, 1, 2]);
}

#[test]
fn a_release_by_another_than_the_owner_is_refused() {
    let (mut server, mut sent) = (Server::new(SHAPE, 1), Sent::default());
    let release = sync(Call::Release { lock: 1 });
    assert!(matches!(give(&mut server, 0, &release, &mut sent), Err(Error::Misuse(_))));
    give(&mut server, 0, &sync(Call::Acquire { lock: 1 }), &mut sent).unwrap();
    give(&mut server, 2, &sync(Call::Acquire { lock: 1 }), &mut sent).unwrap();
    sent.take();
    assert!(matches!(give(&mut server, 3, &release, &mut sent), Err(Error::Misuse(_))));
    assert!(sent.0.is_empty());
    give(&mut server, 0, &release, &mut sent).unwrap();
    assert_eq!(receivers(&mut sent), [2]);
    let mut client = Client::new(SHAPE, 0);
    assert!(matches!(client.call(Call::Release { lock: 1 }, &mut sent), Err(Error::Misuse(_))));
    assert!(sent.0.is_empty());
}

#[test]
fn a_signal_without_its_lock_is_refused() {
    let (mut server, mut sent) = (Server::new(SHAPE, 1), Sent::default());
    for call in [Call::Acquire { lock: 1 }, Call::WaitCondition { condition: 1, lock: 1 }] {
        give(&mut server, 0, &sync(call), &mut sent).unwrap();
    }
    sent.take();
    let signal = sync(Call::Signal { condition: 1, lock: 1, all: true });
    assert!(matches!(give(&mut server, 2, &signal, &mut sent), Err(Error::Misuse(_))));
    assert!(sent.0.is_empty(), "nobody is woken");
    let mut client = Client::new(SHAPE, 2);
    assert!(matches!(
        client.call(Call::Signal { condition: 1, lock: 1, all: true }, &mut sent),
        Err(Error::Misuse(_))
    ));
    assert!(sent.0.is_empty());
}

#[test]
fn homes_of_other_pages_than_were_asked_for_end_the_question() {
    let (mut client, mut sent) = (Client::new(SHAPE, 0), Sent::default());
    let [known, unknown] = [[3; 64], [0xff; 64]];
    for (first, homes) in [(128, &known), (64, &unknown)] {
        client.ask_home(70..72, 0, &mut sent).unwrap();
        let wrong = client.take(1, ToClient::Homes { first, homes }, &mut sent);
        assert!(matches!(wrong, Err(Error::Unexpected(_))), "{wrong:?}");
        assert_eq!(client.refuse(2, wrong.unwrap_err()), None, "it is not asked");
        assert!(matches!(client.refuse(1, wrong.unwrap_err()), Some(Event::Failed(_))));
    }
    client.ask_home(70..72, 0, &mut sent).unwrap();
    let right = client.take(1, ToClient::Homes { first: 64, homes: &known }, &mut sent);
    assert_eq!(right, Ok(Some(Event::Homed)));
}

#[test]
fn a_wrong_notice_hides_no_other() {
    let (mut client, mut sent) = (Client::new(SHAPE, 0), Sent::default());
    client.call(Call::Acquire { lock: 1 }, &mut sent).unwrap();
    let notice = |page: u32, home| {
        let (interval, page, count) = (1.into(), page.into(), 1.into());
        Notice { interval, page, count, home, writer: 3 }
    };
    // A page with two homes, and then another page.
    let notices = [notice(5, 1), notice(5, 2), notice(9, 1)];
    let wrong = client.take(1, ToClient::Notices(&notices), &mut sent);
    assert!(matches!(wrong, Err(Error::Unexpected(_))), "{wrong:?}");
    let invalid: Vec<_> = std::iter::from_fn(|| client.next_invalid()).collect();
    assert!(invalid.contains(&(5..6)) && invalid.contains(&(9..10)), "{invalid:?}");
}

#[test]
fn a_client_that_asks_twice_is_refused() {
    let (mut server, mut sent) = (Server::new(SHAPE, 1), Sent::default());
    let arrive = sync(Call::Arrive { barrier: 1, count: 2 });
    give(&mut server, 0, &arrive, &mut sent).unwrap();
    for call in [
        Call::Arrive { barrier: 1, count: 2 },
        Call::Acquire { lock: 1 },
        Call::Wait { flag: 1, value: 0 },
    ] {
        let refused = give(&mut server, 0, &sync(call), &mut sent);
        assert!(matches!(refused, Err(Error::Unexpected(_))), "{call:?}: {refused:?}");
    }
    assert!(sent.0.is_empty());
    let mut client = Client::new(SHAPE, 0);
    client.call(Call::Wait { flag: 1, value: 1 }, &mut sent).unwrap();
    assert!(matches!(client.call(Call::Acquire { lock: 1 }, &mut sent), Err(Error::Misuse(_))));
    assert_eq!(receivers(&mut sent), [1]);
}

#[test]
fn a_death_ends_each_wait_that_may_be_for_the_dead() {
    let (mut server, mut sent) = (Server::new(SHAPE, 1), Sent::default());
    give(&mut server, 0, &sync(Call::Arrive { barrier: 1, count: 4 }), &mut sent).unwrap();
    give(&mut server, 1, &sync(Call::Wait { flag: 1, value: 7 }), &mut sent).unwrap();
    let need = [Need { interval: 1.into(), writer: 3 }];
    server.take(2, ToServer::Fetch { page: 5, needs: &need }, &mut sent).unwrap();
    assert!(sent.0.is_empty());
    server.died(3, &mut sent);
    let died = ToClient::Died(3);
    for (to, bytes) in sent.take() {
        assert_eq!(ToClient::decode(&bytes, &SHAPE), Ok(died), "{to}");
    }
    for call in [Call::Arrive { barrier: 1, count: 3 }, Call::Wait { flag: 1, value: 7 }] {
        give(&mut server, 0, &sync(call), &mut sent).unwrap();
        assert_eq!(ToClient::decode(&sent.take()[0].1, &SHAPE), Ok(died), "{call:?}");
    }
    // The end of the dead is as good as its interval for a page that is to be written.
    let end = [Need { interval: Need::END.into(), writer: 3 }];
    server.take(2, ToServer::Fetch { page: 5, needs: &end }, &mut sent).unwrap();
    assert!(matches!(ToClient::decode(&sent.take()[0].1, &SHAPE), Ok(ToClient::Page { .. })));
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Small, at a limit, or huge.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0..=1 => self.below(40),
            2 => self.below(1100),
            _ => [u64::MAX, 1 << 32, 1 << 24, u64::from(u32::MAX)][self.below(4) as usize],
        }
    }

    /// A message of this kind, or nearly so.
    fn message(&mut self, kinds: std::ops::Range<u64>) -> Vec<u8> {
        let kind = kinds.start + self.below(kinds.end - kinds.start);
        let mut bytes = vec![kind as u8, self.below(8) as u8, self.below(5) as u8, 0];
        bytes.extend((self.number() as u32).to_le_bytes());
        bytes.extend(self.number().to_le_bytes());
        assert_eq!(bytes.len(), HEAD_BYTES);
        let form = match (kind, self.below(4)) {
            (_, 0) => self.below(4),
            (6..=12 | 35, _) => 0,
            (5, _) => 1,
            (2 | 3, _) => 2,
            _ => 3,
        };
        match form {
            // A vector, or a page's first bytes.
            0 => (0..4).for_each(|_| bytes.extend(self.number().to_le_bytes())),
            // Notices.
            1 => {
                for _ in 0..self.below(20) {
                    bytes.extend(self.number().to_le_bytes());
                    bytes.extend((self.number() as u32).to_le_bytes());
                    bytes.extend((self.below(9) as u16).to_le_bytes());
                    bytes.extend([self.below(5) as u8, self.below(5) as u8]);
                }
            }
            // Needs, or differences.
            2 => {
                for _ in 0..self.below(5) {
                    let mut need = self.number().to_le_bytes().to_vec();
                    need.push(self.below(5) as u8);
                    bytes.extend(need);
                }
            }
            _ => bytes.extend((0..self.below(90)).map(|_| 1)),
        }
        if self.below(8) == 0 {
            let at = self.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.below(8);
            bytes.truncate(bytes.len() - self.below(at as u64 + 1) as usize / 2);
        }
        bytes
    }
}

#[test]
fn hostile_clients_neither_stop_a_server_nor_fill_its_memory() {
    let before = BYTES.get();
    let (mut rng, mut taken) = (Rng(1), 0);
    for _ in 0..400 {
        let mut server = Server::new(SHAPE, 1);
        for step in 0..100 {
            let mut sent = Sent::default();
            let from = rng.below(4) as usize;
            let bytes = rng.message(0..15);
            taken += give(&mut server, from, &bytes, &mut sent).is_ok() as usize;
            // A client's vector and notices are answered once.
            let answers: usize = sent.0.iter().map(|(_, bytes)| bytes.len()).sum();
            assert!(answers < 4 * 4096, "{answers} bytes");
            drop(sent);
            let bytes = BYTES.get() - before;
            assert!(bytes < 64 << 10, "{bytes} bytes after {step} messages");
        }
        (0..4).for_each(|process| server.died(process, &mut Sent::default()));
    }
    assert!(taken > 2000, "{taken} of them were right");
}

#[test]
fn hostile_servers_neither_stop_a_client_nor_fill_its_memory() {
    let before = BYTES.get();
    let (mut rng, mut events) = (Rng(2), 0);
    for _ in 0..20 {
        let mut client = Client::new(SHAPE, 0);
        for step in 0..2000 {
            let mut sent = Sent::default();
            // Many of these calls are refused.
            let page = rng.below(1000) as u32;
            let object = rng.below(8) as u32;
            _ = match rng.below(8) {
                0 => client.ask_home(page..page + 1, object as usize % 4, &mut sent),
                1 => client.fetch(page, &mut sent),
                2 => client.call(Call::Acquire { lock: object }, &mut sent),
                3 => client.call(Call::Release { lock: object }, &mut sent),
                4 => client.call(Call::Arrive { barrier: object, count: 4 }, &mut sent),
                5 => client
                    .call(Call::WaitCondition { condition: object, lock: object + 1 }, &mut sent),
                6 => client.diff(page, 3, &[1, 2], &mut sent),
                _ => client.wrote(page),
            };
            for from in 0..4 {
                let bytes = rng.message(30..40);
                let Ok(message) = ToClient::decode(&bytes, &SHAPE) else { continue };
                let event = client.take(from, message, &mut sent);
                events += matches!(event, Ok(Some(_))) as usize;
            }
            drop(sent);
            let bytes = BYTES.get() - before;
            // Differences for four homes.
            assert!(bytes < 256 << 10, "{bytes} bytes after {step} steps");
            if rng.below(16) == 0 {
                while client.next_invalid().is_some() {}
            }
        }
    }
    assert!(events > 1000, "{events} answers");
}

#[test]
fn endless_notices_before_an_answer_become_all_pages() {
    let (mut client, mut sent) = (Client::new(SHAPE, 0), Sent::default());
    client.call(Call::Acquire { lock: 1 }, &mut sent).unwrap();
    for interval in 1..10_000_u64 {
        let page = (interval % 1000) as u32;
        let (interval, page, count) = (interval.into(), page.into(), 1.into());
        let notices = [Notice { interval, page, count, home: 2, writer: 3 }];
        assert_eq!(client.take(1, ToClient::Notices(&notices), &mut sent), Ok(None));
    }
    let known = [0, 0, 0, 9_999].map(Into::into);
    let done = ToClient::Done { all: false, everyone: false, dead: None, known: &known };
    let event = client.take(1, done, &mut sent);
    assert_eq!(event, Ok(Some(Event::Ordered { dead: None })));
    assert_eq!(client.next_invalid(), Some(0..SHAPE.pages));
    assert_eq!(client.next_invalid(), None);
}

#[test]
fn a_page_is_not_read_at_its_home_while_own_differences_are_on_their_way() {
    let (mut client, mut sent) = (Client::new(SHAPE, 0), Sent::default());
    client.ask_home(0..1, 2, &mut sent).unwrap();
    let homes = [2; 64];
    let homed = client.take(0, ToClient::Homes { first: 0, homes: &homes }, &mut sent);
    assert_eq!((homed, client.home(0)), (Ok(Some(Event::Homed)), Some(2)));
    assert!(client.may_read(0, |_| 0));
    sent.take();
    client.diff(0, 0, &[1], &mut sent).unwrap();
    assert!(!client.may_read(0, |_| u64::MAX) && client.may_read(1, |_| 0));
    client.call(Call::Set { flag: 1, value: 1 }, &mut sent).unwrap();
    assert!(!client.may_read(0, |_| 0) && !client.may_read(1, |_| 0));
    assert!(client.may_read(0, |writer| u64::from(writer == 0)));
}

struct Nowhere;

impl Links for Nowhere {
    fn send(&mut self, _to: usize, _message: &ToServer<'_>) {}
}

#[test]
fn a_miss_does_not_allocate() {
    let (mut client, links) = (Client::new(SHAPE, 0), &mut Nowhere);
    let before = ALLOCATIONS.get();
    for first in (0..SHAPE.pages).step_by(64) {
        client.ask_home(first..first + 1, 0, links).unwrap();
        let manager = SHAPE.page_manager(first);
        client.take(manager, ToClient::Homes { first, homes: &[2; 64] }, links).unwrap();
    }
    for page in 0..SHAPE.pages {
        assert!(client.may_read(page, |_| 0));
        client.diff(page, 0, &[1; 60], links).unwrap();
        client.fetch(page, links).unwrap();
        let bytes = &[0; SHAPE.page_bytes];
        client.take(2, ToClient::Page { page, bytes }, links).unwrap();
    }
    client.fetch(0, links).unwrap();
    client.take(2, ToClient::Died(3), links).unwrap();
    client.fetch(0, links).unwrap();
    assert_eq!(client.died(2), Some(Event::Failed(Error::Died(2))));
    assert_eq!(client.next_invalid(), Some(0..SHAPE.pages));
    assert_eq!(ALLOCATIONS.get(), before);
}

#[test]
fn a_lock_is_given_back_if_bytes_at_home_here_are_lost() {
    let (mut client, mut sent) = (Client::new(SHAPE, 0), Sent::default());
    client.call(Call::Acquire { lock: 1 }, &mut sent).unwrap();
    let (interval, page, count) = (5.into(), 7.into(), 1.into());
    let notices = [Notice { interval, page, count, home: 0, writer: 3 }];
    client.take(1, ToClient::Notices(&notices), &mut sent).unwrap();
    sent.take();
    let known = [0, 0, 0, 5].map(Into::into);
    let done = ToClient::Done { all: false, everyone: false, dead: None, known: &known };
    assert_eq!(client.take(1, done, &mut sent), Ok(None));
    let [(0, settle)] = &sent.take()[..] else { panic!("no question to the own server") };
    let needs = &[Need { interval, writer: 3 }];
    assert_eq!(ToServer::decode(settle, &SHAPE), Ok(ToServer::Settle { needs }));
    let event = client.take(0, ToClient::Died(3), &mut sent);
    assert_eq!(event, Ok(Some(Event::Failed(Error::Died(3)))));
    let [(1, release)] = &sent.take()[..] else { panic!("no release") };
    let release = ToServer::decode(release, &SHAPE).unwrap();
    assert!(matches!(release, ToServer::Sync { call: Call::Release { lock: 1 }, .. }));
    assert!(matches!(client.call(Call::Release { lock: 1 }, &mut sent), Err(Error::Misuse(_))));
}
