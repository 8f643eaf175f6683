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
