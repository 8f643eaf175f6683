//! Protocols that the library has never heard of: their kinds, state, waits and events.
#![cfg(all(feature = "tokio", not(miri)))]

mod support;

use hamlyn::job::Job;
use hamlyn::node::{ApertureEvent, CloseReason, Event, Look, Node, WaitError};
use hamlyn::protocol::{
    AsyncManager, Connection, GrowError, Grown, Kind, Manager, Offered, Protocol, Seat, Seed,
    StreamSender,
};
use hamlyn::{Accept, Access, LinkId, MetadataIndex, Peer, RequestId, SlotConfig, SlotId, Ticket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use support::{Dir, LIMIT};

const BELL: Kind = Kind::new(*b"bell");
const DOOR: Kind = Kind::new(*b"door");

/// Has a slot for all who come, and hears of everything.
#[derive(Default)]
struct Bell {
    slot: Option<SlotId>,
    here: Vec<LinkId>,
    gone: Vec<(LinkId, CloseReason)>,
    told: Vec<Event>,
    turns: usize,
    closed: Arc<AtomicBool>,
}

impl Protocol for Bell {
    fn check_place(&self, _: &Peer, _: &[u8]) -> Result<(), String> {
        if self.here.len() < 2 { Ok(()) } else { Err("two have come".into()) }
    }

    fn admit(
        &mut self,
        node: &mut Node,
        _: RequestId,
        _: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        if body != b"let me ring" {
            return Err("this is a bell".into());
        }
        let slot = self.slot.ok_or("it has no slot")?;
        let ticket = node.ticket(slot, MetadataIndex(0)).map_err(|e| e.to_string())?;
        Ok(ticket.to_bytes().to_vec())
    }

    fn joined(&mut self, _: &mut Node, _: RequestId, connection: &Arc<Connection>) {
        self.here.push(connection.link());
    }

    fn left(&mut self, _: &mut Node, connection: &Connection) {
        let reason = connection.ended().expect("it has ended").clone();
        self.gone.push((connection.link(), reason));
    }

    fn told(&mut self, _: &mut Node, _: &Connection, event: Event) -> Option<Event> {
        self.told.push(event);
        None
    }

    fn takes_turns(&self) -> bool {
        true
    }

    fn after_poll(&mut self, _: &mut Node) {
        self.turns += 1;
    }

    fn close(&mut self, node: &mut Node) {
        if let Some(slot) = self.slot {
            node.remove_slot(slot).unwrap();
        }
        self.closed.store(true, Ordering::Relaxed);
    }
}

fn managers(name: &str) -> (Dir, Manager, Manager) {
    let dir = Dir::new(name, &[]);
    let (here, there) = (dir.config(), dir.config());
    let (here, there) = (Manager::with_config(here).unwrap(), Manager::with_config(there).unwrap());
    here.start_progress().unwrap();
    (dir, here, there)
}

fn bell(manager: &Manager) -> (Seat<Bell>, hamlyn::QueueId) {
    let mut node = manager.lock();
    let area = node.message_area(64).unwrap();
    let queue = node.notification_queue(64).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(64)).unwrap();
    drop(node);
    (manager.seat(BELL, Bell { slot: Some(slot), ..Bell::default() }), queue)
}

fn ringing(manager: &Manager) -> Seat<Bell> {
    manager.seat(BELL, Bell::default())
}

/// A sender as the program sees it.
struct Ringer {
    seat: Seat<Bell>,
    connection: Arc<Connection>,
    ticket: Ticket,
}

impl Ringer {
    fn of(
        seat: Seat<Bell>,
        grow: impl FnOnce(&Seat<Bell>) -> Result<(Arc<Connection>, Vec<u8>), GrowError>,
    ) -> Result<Self, GrowError> {
        let (connection, answer) = grow(&seat)?;
        let ticket = Ticket::from_bytes(&answer).map_err(|_| GrowError::Answer("no ticket"))?;
        Ok(Self { seat, connection, ticket })
    }

    fn ring(&self) {
        let link = self.connection.link();
        self.seat.manager().send_over(link, &self.ticket, b"ring", b"", LIMIT).unwrap();
    }
}

impl Grown for Ringer {
    type With = ();
    const KIND: Kind = BELL;

    fn grow(
        manager: &Manager,
        seed: &Seed,
        (): (),
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::of(ringing(manager), |seat| seat.grow(seed, b"let me ring", timeout))
    }

    fn connect(
        manager: &Manager,
        name: &str,
        (): (),
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError> {
        Self::of(ringing(manager), |seat| seat.connect(name, b"let me ring", timeout))
    }
}

#[test]
fn a_kind_of_the_programs_own_is_found_by_seed_and_by_name_and_is_no_other() {
    let (_dir, here, there) = managers("seat-kind");
    let (seat, queue) = bell(&here);
    seat.serve("bell", Access::SameUser).unwrap();
    let seed: Seed = seat.seed().unwrap().to_string().parse().unwrap();
    assert_eq!((seed.kind(), seed.kind().to_string()), (BELL, "bell".into()));
    let named = <Ringer as Grown>::connect(&there, "bell", (), LIMIT).unwrap();
    let grown = <Ringer as Grown>::grow(&there, &seed, (), LIMIT).unwrap();
    for ringer in [&named, &grown] {
        ringer.ring();
        here.recv(queue, LIMIT).unwrap();
    }
    // Places, kinds and greetings are the protocol's to judge.
    let full = <Ringer as Grown>::connect(&there, "bell", (), LIMIT).map(drop).unwrap_err();
    assert!(matches!(&full, GrowError::Full(why) if why.contains("two have come")), "{full}");
    let door = there.seat(DOOR, Bell::default());
    let other = door.grow(&seed, b"", LIMIT).map(drop).unwrap_err();
    assert!(matches!(other, GrowError::Kind { wanted: DOOR, found: BELL }), "{other}");
    let other = door.connect("bell", b"", LIMIT).map(drop).unwrap_err();
    assert!(other.to_string().contains("of kind bell, the sender of door"), "{other}");
    let other = StreamSender::connect(&there, "bell", LIMIT).map(drop).unwrap_err();
    assert!(other.to_string().contains("the sender of stream"), "{other}");
    // The death of one end is the end of its connection alone.
    let link = seat.with(|_, bell| bell.here[0]);
    let closed = seat.with(|_, bell| bell.closed.clone());
    drop(named);
    let left = |_: &mut Node, bell: &mut Bell| match bell.gone.first() {
        Some(gone) => Look::Found(gone.clone()),
        None => Look::Nothing,
    };
    assert_eq!(seat.wait_for(LIMIT, left).unwrap(), (link, CloseReason::Closed));
    assert_eq!(seat.connections().len(), 1);
    seat.wait_for(LIMIT, |_, bell| found((bell.turns > 0).then_some(()))).unwrap();
    seat.stop_serving();
    assert!(<Ringer as Grown>::grow(&there, &seed, (), LIMIT).is_err());
    drop(seat);
    assert!(closed.load(Ordering::Relaxed));
    // The other end hears that it is gone.
    let gone = grown.seat.wait_for(LIMIT, left).unwrap();
    assert_eq!(gone, (grown.connection.link(), CloseReason::Closed));
}

#[test]
fn a_job_offers_and_grows_a_protocol_of_the_programs_own() {
    let dir = Dir::new("seat-job", &[]);
    let job = Job::with_config(dir.config()).unwrap();
    let (seat, queue) = bell(job.manager());
    job.offer(&seat, "bell").unwrap();
    let again = seat.offer().manager().id();
    assert_eq!(again, Offered::offer(&seat).manager().id());
    let ringer: Ringer = job.grow(job.rank(), "bell", (), LIMIT).unwrap();
    ringer.ring();
    job.manager().recv(queue, LIMIT).unwrap();
    let seed = job.seed_of(job.rank(), BELL, "bell").unwrap();
    assert_eq!(seed.kind(), BELL);
}

/// Found when it is raised; counts its looks.
fn raised<'a>(
    is_raised: &'a AtomicBool,
    looks: &'a AtomicUsize,
) -> impl FnMut(&mut Node, &mut Bell) -> Look<()> + 'a {
    move |_, _| {
        looks.fetch_add(1, Ordering::Relaxed);
        if is_raised.load(Ordering::Acquire) { Look::Found(()) } else { Look::Nothing }
    }
}

#[test]
fn a_thread_and_a_task_wait_with_one_closure_and_hear_of_what_another_thread_raises() {
    let dir = Dir::new("seat-wake", &[]);
    let manager = Manager::with_config(dir.config().wait_mode(hamlyn::config::WaitMode::Blocking));
    let manager = manager.unwrap();
    let (seat, _) = bell(&manager);
    let (is_raised, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let nothing = seat.wait_for(Some(Duration::ZERO), raised(&is_raised, &looks));
    assert!(matches!(nothing, Err(WaitError::TimedOut)), "{nothing:?}");
    assert_eq!(seat.try_for(raised(&is_raised, &looks)).unwrap(), None);
    let sleeps = || manager.lock().counters().iter().find(|row| row.0 == "sleeps").unwrap().1;
    // A thread: no packet comes, and it would sleep for the whole limit.
    for round in 0..20 {
        is_raised.store(false, Ordering::Release);
        let before = sleeps();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| seat.wait_for(LIMIT, raised(&is_raised, &looks)));
            while sleeps() == before {
                std::thread::yield_now();
            }
            is_raised.store(true, Ordering::Release);
            match round % 2 {
                0 => manager.wake(),
                _ => seat.with(|node, _| node.wake()),
            }
            waiting.join().unwrap().unwrap();
        });
    }
    // A task, and the same closure.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..20 {
        is_raised.store(false, Ordering::Release);
        let before = looks.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while looks.load(Ordering::Relaxed) < before + 2 {
                    std::thread::yield_now();
                }
                is_raised.store(true, Ordering::Release);
                manager.wake();
            });
            runtime.block_on(async {
                let tasks = AsyncManager::new(&manager).unwrap();
                tasks.wait_for(&seat, raised(&is_raised, &looks)).await.unwrap();
            });
        });
    }
}

#[test]
fn events_reach_the_owner_of_the_link_or_the_service_and_no_other() {
    let (_dir, here, there) = managers("seat-events");
    let (seat, _) = bell(&here);
    seat.serve("bell", Access::SameUser).unwrap();
    // A layer without a seat, on the same node: a service of its own.
    here.lock().serve("raw", Access::SameUser, Accept::Automatic(Vec::new())).unwrap();
    let ringer = <Ringer as Grown>::connect(&there, "bell", (), LIMIT).unwrap();
    let raw = there.connect("raw", b"", LIMIT).unwrap();
    let raw_here =
        until(&here, || match here.take_event(|e| matches!(e, Event::Connected { .. }))? {
            Event::Connected { link, .. } => Some(link),
            _ => None,
        });
    let here_link = seat.wait_for(LIMIT, |_, bell| found(bell.here.first().copied())).unwrap();
    assert_ne!(raw_here, here_link);

    // A ticket that is revoked: the ringer's seat hears of it, and nobody else.
    seat.with(|node, bell| node.revoke(bell.slot.unwrap())).unwrap();
    ringer.ring();
    let is_revoked = |event: &&Event| matches!(event, Event::TicketRevoked { .. });
    let told = |bell: &Bell| bell.told.iter().find(is_revoked).cloned();
    let told = ringer.seat.wait_for(LIMIT, |_, bell| found(told(bell))).unwrap();
    let Event::TicketRevoked { link, .. } = told else { unreachable!() };
    assert_eq!(link, ringer.connection.link());
    assert!(there.take_event(|event| is_revoked(&event)).is_none());

    // An aperture: its holder and its owner.
    let access = hamlyn::ApertureAccess::ReadWrite;
    let exported = seat.with(|node, _| node.export(here_link, 4096, access)).unwrap();
    let is_aperture = |event: &Event, wanted: &ApertureEvent| matches!(event, Event::Aperture { what, .. } if what == wanted);
    for (seat, what) in [(&ringer.seat, ApertureEvent::Held), (&seat, ApertureEvent::Ready)] {
        let told = |bell: &Bell| bell.told.iter().find(|event| is_aperture(event, &what)).cloned();
        seat.wait_for(LIMIT, |_, bell| found(told(bell))).unwrap();
    }
    assert_eq!(exported.link, here_link);

    // The end of each link.
    there.lock().disconnect(raw).unwrap();
    drop(ringer);
    let is_raw = |event: &Event| matches!(event, Event::Closed { link, .. } if *link == raw_here);
    until(&here, || here.take_event(is_raw));
    seat.wait_for(LIMIT, |_, bell| found(bell.gone.first().cloned())).unwrap();
    assert!(here.next_event().is_none() && there.next_event().is_none());
}

/// Panics in the function of this name, called for a peer that sent anything.
struct Mine(&'static str, Arc<AtomicBool>);

impl Mine {
    fn step_on(&self, function: &str) {
        assert!(function != self.0, "stepped on");
    }
}

impl Protocol for Mine {
    fn check_place(&self, _: &Peer, body: &[u8]) -> Result<(), String> {
        if body != b"a friend" {
            self.step_on("check_place");
        }
        Ok(())
    }

    fn admit(
        &mut self,
        _: &mut Node,
        _: RequestId,
        _: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        if body != b"a friend" {
            self.step_on("admit");
        }
        Ok(Vec::new())
    }

    fn joined(&mut self, _: &mut Node, _: RequestId, connection: &Arc<Connection>) {
        if connection.peer().service.ends_with("mine") {
            self.step_on("joined");
        }
    }

    fn left(&mut self, _: &mut Node, _: &Connection) {
        self.step_on("left");
    }

    fn takes_turns(&self) -> bool {
        self.0 == "after_poll"
    }

    fn after_poll(&mut self, _: &mut Node) {
        if self.1.load(Ordering::Relaxed) {
            self.step_on("after_poll");
        }
    }

    fn close(&mut self, _: &mut Node) {
        self.1.store(true, Ordering::Relaxed);
        self.step_on("close");
    }
}

#[test]
fn a_panic_of_a_protocols_function_ends_its_seat_and_nothing_else() {
    for function in ["check_place", "admit", "joined", "left", "after_poll", "close"] {
        let (_dir, here, there) = managers(&format!("mine-{function}"));
        let (bell, _) = bell(&here);
        bell.serve("bell", Access::SameUser).unwrap();
        let ringer = Ringer::connect(&there, "bell", (), LIMIT).unwrap();
        let count = || {
            let counters = here.lock().counters();
            counters.into_iter().find(|(name, _)| *name == "protocols_panicked").unwrap().1
        };

        let flag = Arc::new(AtomicBool::new(false));
        let mine = here.seat(DOOR, Mine(function, flag.clone()));
        mine.serve("field", Access::SameUser).unwrap();
        let seat = there.seat(DOOR, ());
        let (friend, _) = seat.connect("field", b"a friend", LIMIT).unwrap();
        let never = |_: &mut Node, _: &mut Mine| Look::<()>::Nothing;
        if function != "close" {
            match function {
                "check_place" | "admit" => {
                    assert!(seat.connect("field", b"a stranger", LIMIT).is_err());
                }
                "joined" => {
                    mine.serve("mine", Access::SameUser).unwrap();
                    let _ = seat.connect("mine", b"a friend", LIMIT);
                }
                "left" => drop(seat.disconnect(&friend)),
                _ => flag.store(true, Ordering::Relaxed),
            }
            // Who waits there learns of it, and newcomers are refused.
            let waited = mine.wait_for(LIMIT, never);
            assert!(matches!(waited, Err(WaitError::Os(_))), "{function}: {waited:?}");
            assert_eq!(count(), 1, "{function}");
            until(&there, || friend.ended().cloned());
            let refused = seat.connect("field", b"a friend", LIMIT);
            let Err(GrowError::Full(why) | GrowError::Refused(why)) = refused else {
                panic!("{function}: {refused:?}")
            };
            assert!(why.contains("panicked"), "{function}: {why}");
            assert!(mine.connections().is_empty(), "{function}");
        }
        flag.store(false, Ordering::Relaxed);
        drop(mine);
        assert!(flag.load(Ordering::Relaxed), "{function}: closed");

        // The other seat of the manager, and its thread, go on.
        ringer.ring();
        let another = Ringer::connect(&there, "bell", (), LIMIT).unwrap();
        another.ring();
    }
}

#[test]
fn a_panic_of_the_programs_admission_refuses_the_peer_alone() {
    let (_dir, here, there) = managers("admission-panics");
    let (bell, _) = bell(&here);
    bell.serve("bell", Access::SameUser).unwrap();
    let mut is_first = true;
    bell.set_admission(move |_| {
        assert!(!std::mem::take(&mut is_first), "stepped on");
        Ok(())
    });
    let refused = Ringer::connect(&there, "bell", (), LIMIT);
    assert!(matches!(refused, Err(GrowError::Refused(why)) if why.contains("failed")));
    Ringer::connect(&there, "bell", (), LIMIT).unwrap().ring();
}

#[test]
fn a_seat_ends_no_connection_of_another_seat() {
    let (_dir, here, there) = managers("of-another");
    let (bell, queue) = bell(&here);
    bell.serve("bell", Access::SameUser).unwrap();
    let ringer = Ringer::connect(&there, "bell", (), LIMIT).unwrap();
    let (its, _) = (bell.wait_for(LIMIT, |_, bell| found(bell.here.first().copied())), ());
    let its = its.unwrap();
    let at_bell = bell.connections().into_iter().find(|one| one.link() == its).unwrap();
    for seat in [here.seat(BELL, ()), here.seat(DOOR, ()), there.seat(BELL, ())] {
        for connection in [&at_bell, &ringer.connection] {
            assert_eq!(seat.disconnect(connection), 0);
            seat.expel(connection, "it is another's");
            assert!(connection.ended().is_none());
        }
    }
    ringer.ring();
    here.recv(queue, LIMIT).unwrap();
    bell.expel(&at_bell, "it rang");
    assert!(matches!(at_bell.ended(), Some(CloseReason::Misbehaved(_))));
}

fn found<R>(result: Option<R>) -> Look<R> {
    result.map_or(Look::Nothing, Look::Found)
}

/// Waits for something that the manager itself tells.
fn until<R>(manager: &Manager, mut look: impl FnMut() -> Option<R>) -> R {
    let began = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < support::LONG, "it never came");
        manager.poll().unwrap();
    }
}
