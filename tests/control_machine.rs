//! The control machine, called directly: each refusal raises its counter, and each way out of a
//! link informs the application.

use hamlyn::control::LinkFeatures;
use hamlyn::control::frame::{
    Credential, Frame, FrameError, Hello, LinkSide, Memory, MemoryWord, Purpose, Reason,
};
use hamlyn::control::machine::{
    Accept, Action, Admission, ConnectFailure, ConnectionId, LinkEnd, Machine, MachineEvent,
    MachineLimits, MemoryOutcome, NotNow, RefusedBy, ServiceId, Touched, UnknownUsers, Verdict,
    Wait, Who,
};
use hamlyn::wire::{ApertureAccess, NodeId};

const SECOND: u64 = 1_000_000_000;
const OWN: u32 = 1000;
const OTHER: u32 = 2000;

fn limits() -> MachineLimits {
    MachineLimits {
        uid: OWN,
        features: LinkFeatures::all(),
        unknown: UnknownUsers::Token([7; 32]),
        token: [0; 32],
        credential: Credential::NONE,
        ring_bytes: 4096,
        peer_ring_bytes_max: 65536,
        bulk_ring_bytes: 65536,
        packet_bytes: 1024,
        links_max: 4,
        links_bound: "links_max",
        connections_per_user_max: 4,
        bytes_per_user_max: 100_000,
        half_open_max: 2,
        unpaid_per_user_max: 2,
        receivers_max: 4,
        receivers_per_user_max: 2,
        waiting_max: 1 << 10,
        step_timeout_ns: SECOND,
        aperture_map_max: 65536,
        apertures_of_others: true,
        apertures_per_link_max: 2,
        apertures_per_user_max: 4,
        apertures_max: 1 << 10,
    }
}

fn who(uid: u32) -> Who {
    Who { uid: Some(uid), gid: Some(uid), pid: Some(1), is_in_group: false }
}

fn hello() -> Hello {
    Hello {
        version: (2, 0),
        purpose: Purpose::Link,
        features: LinkFeatures::all().bits(),
        features_required: 0,
        credential: Credential::NONE,
        ring_bytes: 4096,
        incoming_ring_bytes_max: 4096,
        packet_bytes: 1024,
        cookie: [0; 16],
        token: [0; 32],
        greeting: vec![],
    }
}

struct Server {
    machine: Machine,
    service: ServiceId,
    now: u64,
    /// Events that the application was told.
    told: u64,
    /// Credentials that were looked into.
    verified: u64,
    /// Whether the application takes its events at once.
    takes: bool,
}

impl Server {
    fn new(change: impl FnOnce(&mut MachineLimits)) -> Self {
        let mut limits = limits();
        change(&mut limits);
        let mut machine = Machine::new(limits);
        let service = machine.serve("x".into(), Admission::Anyone, Accept::Automatic(vec![]));
        Self { machine, service, now: 1, told: 0, verified: 0, takes: true }
    }

    /// Its actions so far; each process that is looked into is honest.
    fn actions(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(action) = self.machine.poll_action() {
            match &action {
                Action::Verify { of, .. } => {
                    self.verified += 1;
                    self.machine.verified(self.now, *of, Verdict::Proved, Some(9));
                }
                Action::Tell(_) => self.told += 1,
                _ => {}
            }
            actions.push(action);
        }
        if self.takes {
            self.machine.events_taken(self.told);
        }
        actions
    }

    fn accept(&mut self, uid: u32) -> ConnectionId {
        let mut cookie = [0; 16];
        cookie[..8].copy_from_slice(&self.now.to_le_bytes());
        self.now += 1;
        self.machine.accepted(self.now, self.service, who(uid), cookie).unwrap()
    }

    fn frame(&mut self, id: ConnectionId, frame: Frame) {
        self.machine.handle_frame(self.now, id, Ok(frame), false);
    }

    fn memory(&mut self, id: ConnectionId, memory: Memory, word: MemoryWord) {
        self.frame(id, Frame::Memory { memory, word });
    }

    /// Welcomed, by HELLO.
    fn greeted(&mut self, uid: u32, hello: Hello) -> ConnectionId {
        let id = self.accept(uid);
        self.frame(id, Frame::Hello(hello));
        self.machine.verified(self.now, id, Verdict::Proved, Some(9));
        id
    }

    /// Its ring is taken.
    fn paid(&mut self, uid: u32) -> ConnectionId {
        let id = self.greeted(uid, hello());
        let ring = Memory::Ring(LinkSide::Client);
        let access = ApertureAccess::ReadOnly;
        self.memory(id, ring, MemoryWord::Offer { bytes: 4096, access });
        self.machine.taken(self.now, id, ring, MemoryOutcome::Mapped);
        self.machine.receiver_ended(self.now, id, Some(uid));
        id
    }

    /// A link.
    fn linked(&mut self, uid: u32) -> ConnectionId {
        let id = self.paid(uid);
        let ring = Memory::Ring(LinkSide::Server);
        let cookie = self.actions().into_iter().find_map(|action| match action {
            Action::Send { frame: Frame::Welcome(welcome), to } if to == id => Some(welcome.cookie),
            _ => None,
        });
        let wake = self.accept(uid);
        let purpose = Purpose::Wake;
        self.frame(wake, Frame::Hello(Hello { purpose, cookie: cookie.unwrap(), ..hello() }));
        self.memory(id, ring, MemoryWord::Take { bytes: 4096 });
        self.machine.made(id, ring, Ok(()));
        self.memory(id, ring, MemoryWord::Held);
        self.machine.touched(self.now, id, ring, Touched::Yes);
        self.machine.receiver_ended(self.now, id, Some(uid));
        assert!(self.actions().iter().any(|action| {
            matches!(action, Action::Tell(MachineEvent::Connected(agreed)) if agreed.link == id)
        }));
        id
    }

    #[track_caller]
    fn counted(&self, name: &str) -> u64 {
        let name = format!("control.{name}");
        let found = self.machine.counters().list().into_iter().find(|row| row.0 == name);
        found.unwrap_or_else(|| panic!("no counter is called {name}")).1
    }

    /// The refusal that was sent last.
    fn refused(&mut self) -> Option<Reason> {
        self.actions().into_iter().rev().find_map(|action| match action {
            Action::SendLast { frame: Frame::Refused { reason, .. }, .. } => Some(reason),
            _ => None,
        })
    }

    fn closed(&mut self) -> Vec<LinkEnd> {
        let all = self.actions().into_iter();
        all.filter_map(|action| match action {
            Action::Tell(MachineEvent::Closed { reason, .. }) => Some(reason),
            _ => None,
        })
        .collect()
    }
}

fn plain() -> Server {
    Server::new(|_| {})
}

#[test]
fn each_refusal_of_a_connection_raises_its_counter_and_says_why() {
    // A name, the reason that is said, and what brings it about.
    type Case = (&'static str, Reason, fn(&mut Server));
    let cases: [Case; 16] = [
        ("refused_version", Reason::Version, |s| {
            let id = s.accept(OTHER);
            let error = Err(FrameError::Version { major: 9, minor: 0 });
            s.machine.handle_frame(s.now, id, error, false);
        }),
        ("refused_feature", Reason::Feature, |s| {
            s.greeted(OTHER, Hello { features_required: 1 << 40, ..hello() });
        }),
        ("refused_user", Reason::User, |s| {
            s.machine.stop_serving("x");
            s.service = s.machine.serve("x".into(), Admission::SameUser, Accept::Ask);
            s.greeted(OTHER, hello());
        }),
        ("refused_bytes", Reason::Bytes, |s| {
            s.greeted(OTHER, Hello { ring_bytes: 65536, incoming_ring_bytes_max: 4096, ..hello() });
            s.greeted(OTHER, Hello { ring_bytes: 65536, incoming_ring_bytes_max: 4096, ..hello() });
        }),
        ("refused_links", Reason::Links, |s| {
            for uid in 0..4 {
                s.linked(3000 + uid);
            }
            s.greeted(OTHER, hello());
        }),
        ("refused_silent", Reason::TooSlow, |s| {
            s.accept(OTHER);
            s.now += SECOND;
            s.machine.handle_timeout(s.now);
        }),
        ("refused_slow", Reason::TooSlow, |s| {
            s.greeted(OTHER, hello());
            s.now += SECOND;
            s.machine.handle_timeout(s.now);
        }),
        ("refused_half_open", Reason::Connections, |s| {
            for _ in 0..3 {
                s.accept(OTHER);
            }
        }),
        ("refused_unpaid", Reason::TooSlow, |s| {
            s.greeted(OTHER, hello());
            s.greeted(OTHER, hello());
            s.greeted(OWN, hello());
        }),
        ("refused_frame", Reason::Malformed, |s| {
            let id = s.accept(OTHER);
            s.frame(id, Frame::Ready);
        }),
        ("refused_descriptor", Reason::Malformed, |s| {
            let id = s.accept(OTHER);
            s.machine.handle_frame(s.now, id, Ok(Frame::Hello(hello())), true);
        }),
        ("refused_memory", Reason::Memory, |s| {
            let id = s.greeted(OTHER, hello());
            let (ring, access) = (Memory::Ring(LinkSide::Client), ApertureAccess::ReadOnly);
            s.memory(id, ring, MemoryWord::Offer { bytes: 4096, access });
            s.machine.taken(s.now, id, ring, MemoryOutcome::Wrong);
        }),
        ("refused_identity", Reason::Identity, |s| {
            let id = s.accept(OTHER);
            s.frame(id, Frame::Hello(hello()));
            s.machine.verified(s.now, id, Verdict::False("a lie"), None);
        }),
        ("refused_cookie", Reason::Malformed, |s| {
            let id = s.accept(OTHER);
            let purpose = Purpose::Wake;
            s.frame(id, Frame::Hello(Hello { purpose, cookie: [9; 16], ..hello() }));
        }),
        ("refused_statistics", Reason::User, |s| {
            let id = s.accept(OTHER);
            s.frame(id, Frame::Hello(Hello { purpose: Purpose::Stat, ..hello() }));
        }),
        ("refused_exhausted", Reason::Unavailable, |s| {
            let id = s.paid(OTHER);
            s.memory(id, Memory::Ring(LinkSide::Server), MemoryWord::Take { bytes: 4096 });
            s.machine.made(id, Memory::Ring(LinkSide::Server), Err("it is full".into()));
        }),
    ];
    for (name, reason, act) in cases {
        let mut server = plain();
        act(&mut server);
        assert_eq!(server.refused(), Some(reason), "{name}");
        assert_eq!(server.counted(name), 1, "{name}");
    }
    let mut server = plain();
    for _ in 0..4 {
        server.greeted(OTHER, hello());
    }
    let last = server.machine.accepted(9, server.service, who(OTHER), [0; 16]);
    let last = last.map_err(|frame| *frame);
    assert!(matches!(last, Err(Frame::Refused { reason: Reason::Connections, .. })), "{last:?}");
    assert_eq!(server.counted("refused_connections"), 1);
}

#[test]
fn what_a_link_asks_for_in_vain_is_counted_and_the_link_lives() {
    let mut server = plain();
    let id = server.linked(OTHER);
    let access = ApertureAccess::ReadOnly;
    // A bulk ring for which there is no quota.
    let bulk = Memory::Bulk(LinkSide::Client);
    server.machine.request_bulk(id);
    server.memory(id, bulk, MemoryWord::Offer { bytes: 65536, access });
    assert_eq!(server.counted("refused_bulk"), 1);
    let aperture = Memory::Aperture(1);
    server.memory(id, aperture, MemoryWord::Offer { bytes: 1 << 20, access });
    assert_eq!(server.counted("refused_aperture"), 1);
    assert_eq!(server.closed(), []);
}

#[test]
fn each_way_out_of_a_link_is_told_once_and_counted() {
    type Case = (&'static str, LinkEnd, fn(&mut Server, ConnectionId));
    let cases: [Case; 11] = [
        ("closed_graceful", LinkEnd::Graceful, |s, id| s.frame(id, Frame::Bye)),
        ("closed_died", LinkEnd::Died, |s, id| s.machine.handle_death(id)),
        ("closed_died", LinkEnd::Died, |s, id| {
            s.machine.handle_hang_up(s.now, id, Some(true));
        }),
        ("closed_hung_up", LinkEnd::HungUp, |s, id| {
            s.machine.handle_hang_up(s.now, id, None);
        }),
        // Its process lives; a little later it is taken for gone.
        ("closed_hung_up", LinkEnd::HungUp, |s, id| {
            s.machine.handle_hang_up(s.now, id, Some(false));
            s.now += SECOND;
            s.machine.handle_timeout(s.now);
        }),
        ("closed_died", LinkEnd::Died, |s, id| {
            s.machine.handle_hang_up(s.now, id, Some(false));
            s.machine.handle_death(id);
        }),
        ("closed_expelled", LinkEnd::Expelled, |s, id| {
            let text = String::new();
            s.frame(id, Frame::Refused { reason: Reason::User, version: (2, 0), text });
        }),
        ("closed_violation", LinkEnd::Violation, |s, id| s.frame(id, Frame::Ready)),
        // The first of them was once answered, and the link forgotten.
        ("closed_violation", LinkEnd::Violation, |s, id| {
            let error = Err(FrameError::Version { major: 9, minor: 0 });
            s.machine.handle_frame(s.now, id, error, false);
        }),
        ("closed_violation", LinkEnd::Violation, |s, id| s.machine.handle_overflow(id)),
        // A descriptor stopped the thread that received it.
        ("refused_descriptor", LinkEnd::Violation, |s, id| {
            let access = ApertureAccess::ReadOnly;
            s.memory(id, Memory::Aperture(1), MemoryWord::Offer { bytes: 4096, access });
            s.now += 3 * SECOND;
            s.machine.handle_timeout(s.now);
        }),
    ];
    for (i, (name, reason, act)) in cases.into_iter().enumerate() {
        let mut server = plain();
        let id = server.linked(OTHER);
        act(&mut server, id);
        assert_eq!(server.closed(), [reason], "{i}");
        assert_eq!(server.counted(name), 1, "{i}");
        let places = server.machine.places();
        assert_eq!((places.connections, places.links), (0, 0), "{i}");
    }
    // The application knows the end of links that it ends itself.
    for end in [Machine::close, Machine::hang_up, Machine::violated] {
        let mut server = plain();
        let id = server.linked(OTHER);
        end(&mut server.machine, id);
        assert_eq!(server.closed(), []);
        assert_eq!(server.machine.places(), Default::default());
    }
    let mut server = plain();
    let id = server.linked(OTHER);
    server.machine.violated(id);
    assert_eq!(server.counted("closed_by_us_violation"), 1);
    // The application says no, or an end point of the library does: each is counted apart.
    let counters = ["refused_application", "refused_places", "refused_end_point"];
    let all = [
        (RefusedBy::Application, counters[0], Reason::Application),
        (RefusedBy::Places, counters[1], Reason::Places),
        (RefusedBy::EndPoint, counters[2], Reason::Application),
        (RefusedBy::Ending, counters[2], Reason::Ending),
    ];
    for (by, name, reason) in all {
        let mut server = plain();
        server.machine.stop_serving("x");
        server.service = server.machine.serve("x".into(), Admission::Anyone, Accept::Ask);
        server.greeted(OTHER, hello());
        let asked = server.actions().into_iter().find_map(|action| match action {
            Action::Tell(MachineEvent::Request { id, .. }) => Some(id),
            _ => None,
        });
        server.machine.refuse_request(asked.unwrap(), by, "not today").unwrap();
        assert_eq!(server.refused(), Some(reason));
        for counter in counters {
            assert_eq!(server.counted(counter), u64::from(counter == name), "{counter}");
        }
    }
}

#[test]
fn unknown_users_share_one_account_and_show_a_token() {
    let mut server = plain();
    let unknown = Who { uid: None, ..who(0) };
    for (token, is_welcome) in [([7; 32], true), ([8; 32], false)] {
        let id = server.machine.accepted(1, server.service, unknown, [1; 16]).unwrap();
        server.frame(id, Frame::Hello(Hello { token, ..hello() }));
        server.machine.verified(1, id, Verdict::Unproved, None);
        let welcomed = server
            .actions()
            .iter()
            .any(|action| matches!(action, Action::Send { frame: Frame::Welcome(_), .. }));
        assert_eq!(welcomed, is_welcome);
    }
    assert_eq!(server.counted("refused_user"), 1);
    assert_eq!(server.machine.places().users, 1);
}

#[test]
fn a_receiver_that_never_ends_is_no_reason_to_hear_nothing_of_a_death() {
    for mapped in [MemoryOutcome::Mapped, MemoryOutcome::Withdrawn] {
        let mut s = plain();
        let id = s.linked(OTHER);
        let bulk = Memory::Bulk(LinkSide::Client);
        let access = ApertureAccess::ReadOnly;
        s.memory(id, bulk, MemoryWord::Offer { bytes: 4096, access });
        // It says what it got, and is stopped by what came behind it.
        s.machine.taken(s.now, id, bulk, mapped);
        s.machine.handle_death(id);
        assert_eq!(s.closed(), []);
        s.now = s.machine.deadline_ns().expect("somebody looks after it");
        s.machine.handle_timeout(s.now);
        assert_eq!(s.closed(), [LinkEnd::Died]);
        assert_eq!(s.machine.deadline_ns(), None);
    }
}

#[test]
fn whoever_is_welcomed_has_the_whole_time_to_pay() {
    let mut s = Server::new(|limits| limits.unpaid_per_user_max = 1);
    let first = s.greeted(OTHER, hello());
    let ring = Memory::Ring(LinkSide::Client);
    let access = ApertureAccess::ReadOnly;
    s.memory(first, ring, MemoryWord::Offer { bytes: 4096, access });
    s.now += SECOND / 2;
    let second = s.greeted(OTHER, hello());
    s.actions();
    // The first makes room late in the time of the second.
    s.now += SECOND / 4;
    s.machine.taken(s.now, first, ring, MemoryOutcome::Wrong);
    let welcomed = |action: &Action| matches!(action, Action::Send { to, frame: Frame::Welcome(_) } if *to == second);
    assert!(s.actions().iter().any(welcomed));
    assert_eq!(s.machine.deadline_ns(), Some(s.now + SECOND));
}

#[test]
fn links_that_have_ended_are_counted_until_the_application_has_taken_what_it_was_told() {
    // Each takes 16 KiB; or there may be eight links, the last of which is kept for others.
    for (links, bytes, places) in [(6, 100_000, 100), (7, 1 << 40, 8)] {
        let mut s = Server::new(|limits| {
            (limits.bytes_per_user_max, limits.links_max) = (bytes, places);
            limits.connections_per_user_max = 100;
        });
        s.takes = false;
        for _ in 0..links {
            let id = s.linked(OTHER);
            s.frame(id, Frame::Bye);
            assert_eq!(s.closed(), [LinkEnd::Graceful]);
        }
        assert_eq!(s.machine.places().ended, links);
        assert_eq!(s.machine.places().links as usize, links);
        s.greeted(OTHER, hello());
        let wanted = if places == 8 { Reason::Links } else { Reason::Bytes };
        assert_eq!(s.refused(), Some(wanted));
        // A user without links is served.
        s.linked(3000);
        // The first link's two events are taken: there is room for one more.
        s.machine.events_taken(1);
        assert_eq!(s.machine.places().ended, links);
        s.machine.events_taken(2);
        assert_eq!(s.machine.places().ended, links - 1);
        // It has the place of the eighth, or the bytes of the first.
        if places != 8 {
            s.linked(OTHER);
        }
        s.machine.events_taken(u64::MAX);
        assert_eq!(s.machine.places().ended, 0);
        s.linked(OTHER);
    }
}

#[test]
fn apertures_of_links_that_have_ended_are_counted_until_they_have_been_taken() {
    let mut s = Server::new(|limits| limits.bytes_per_user_max = 1 << 40);
    s.takes = false;
    let aperture = |s: &mut Server, id: ConnectionId, number| {
        let (memory, access) = (Memory::Aperture(number), ApertureAccess::ReadOnly);
        s.memory(id, memory, MemoryWord::Offer { bytes: 4096, access });
        s.machine.taken(s.now, id, memory, MemoryOutcome::Mapped);
        s.machine.receiver_ended(s.now, id, Some(OTHER));
        s.actions();
    };
    // Two of a link, four of a user.
    for _ in 0..2 {
        let id = s.linked(OTHER);
        aperture(&mut s, id, 1);
        aperture(&mut s, id, 3);
        // Its own application ends it, and has yet to take what it was told before.
        s.machine.close(id);
        s.actions();
    }
    assert_eq!(s.machine.places().ended, 2);
    let id = s.linked(OTHER);
    aperture(&mut s, id, 1);
    assert_eq!(s.counted("refused_aperture"), 1);
    s.machine.events_taken(s.told);
    assert_eq!(s.machine.places().ended, 0);
    aperture(&mut s, id, 3);
    assert_eq!(s.counted("refused_aperture"), 1);
    s.machine.close(id);
    s.actions();
    s.machine.events_taken(s.told);
    assert_eq!(s.machine.places(), Default::default());
}

#[test]
fn whoever_closes_a_link_and_makes_a_new_one_is_heard_in_that_order() {
    for says_bye in [true, false] {
        let mut s = Server::new(|_| {});
        let old = s.linked(OTHER);
        let offer = MemoryWord::Offer { bytes: 4096, access: ApertureAccess::ReadOnly };
        s.memory(old, Memory::Bulk(LinkSide::Client), offer);
        // A receiver reads its socket from here on, and has yet to read how it ends.
        let new = s.greeted(OTHER, hello());
        // Another node's is no matter of that.
        let credential = Credential { node: NodeId(77), ..Credential::NONE };
        let stranger = s.greeted(3000, Hello { credential, ..hello() });
        let heard = |s: &mut Server| -> Vec<(&'static str, ConnectionId)> {
            let actions = s.actions().into_iter();
            let heard = actions.filter_map(|action| match action {
                Action::Tell(MachineEvent::Closed { link, .. }) => Some(("closed", link)),
                Action::Send { to, frame: Frame::Welcome(_) } => Some(("welcome", to)),
                _ => None,
            });
            heard.collect()
        };
        assert_eq!(heard(&mut s), [("welcome", stranger)]);
        if says_bye {
            s.frame(old, Frame::Bye);
        } else {
            // Its process might have died, were there not a new connection of it.
            s.machine.handle_hang_up(s.now, old, Some(false));
        }
        s.machine.receiver_ended(s.now, old, Some(OTHER));
        assert_eq!(heard(&mut s), [("closed", old), ("welcome", new)]);
    }
}

#[test]
fn whoever_follows_waits_for_what_its_node_said_before_and_for_nothing_later() {
    let mut s = Server::new(|limits| limits.bytes_per_user_max = 1 << 40);
    let links = [s.linked(OTHER), s.linked(OTHER)];
    let offer = MemoryWord::Offer { bytes: 4096, access: ApertureAccess::ReadOnly };
    for link in links {
        s.memory(link, Memory::Bulk(LinkSide::Client), offer);
    }
    let new = s.greeted(OTHER, hello());
    let is_welcome = |s: &mut Server| {
        s.actions().iter().any(
            |action| matches!(action, Action::Send { to, frame: Frame::Welcome(_) } if *to == new),
        )
    };
    let ended = |s: &mut Server, link| {
        s.machine.taken(s.now, link, Memory::Bulk(LinkSide::Client), MemoryOutcome::Mapped);
        s.machine.receiver_ended(s.now, link, Some(OTHER));
    };
    ended(&mut s, links[0]);
    // The first passes more, which is read while the second comes to its end.
    s.memory(links[0], Memory::Aperture(1), offer);
    assert!(!is_welcome(&mut s));
    ended(&mut s, links[1]);
    assert!(is_welcome(&mut s));
}

#[test]
fn apertures_of_very_many_users_leave_mappings_to_the_application_and_to_those_who_have_none() {
    let mut s = Server::new(|limits| {
        (limits.links_max, limits.apertures_max) = (100, 16);
        limits.bytes_per_user_max = 1 << 40;
    });
    let access = ApertureAccess::ReadOnly;
    let held = |s: &mut Server, user: u32| {
        let id = s.linked(user);
        for number in [1, 3] {
            let memory = Memory::Aperture(number);
            s.memory(id, memory, MemoryWord::Offer { bytes: 4096, access });
            s.machine.taken(s.now, id, memory, MemoryOutcome::Mapped);
            s.machine.receiver_ended(s.now, id, Some(user));
        }
        s.actions();
        id
    };
    // Two each; of the last two, one each for users who have none.
    let links: Vec<_> = (0..9).map(|user| held(&mut s, 7000 + user)).collect();
    assert_eq!(s.counted("apertures"), 16);
    assert_eq!(s.counted("refused_aperture"), 2);
    held(&mut s, 8000);
    assert_eq!(s.counted("apertures"), 16);
    // A link's resources are given back when it ends.
    s.machine.close(links[0]);
    s.actions();
    held(&mut s, 8001);
    assert_eq!(s.counted("apertures"), 17);
}

#[test]
fn a_step_costs_the_same_however_many_wait_and_who_waits_is_not_looked_into() {
    let mut looked_at = Vec::new();
    for many in [10, 1000] {
        let mut s = Server::new(|limits| {
            limits.connections_per_user_max = 1 << 20;
            limits.half_open_max = 8;
            limits.links_max = 1000;
            limits.bytes_per_user_max = 1 << 40;
        });
        let mut flood = Vec::new();
        for user in 0..3 {
            for _ in 0..many {
                let id = s.accept(7000 + user);
                s.frame(id, Frame::Hello(hello()));
                s.actions();
                flood.push(id);
            }
        }
        // Two of each user, as many as may have yet to pay.
        assert_eq!(s.verified, 6);
        let before = s.machine.looked_at();
        // A waiting connection leaves, and another sends HELLO: no connection goes on.
        s.machine.handle_hang_up(s.now, *flood.last().unwrap(), None);
        let id = s.accept(7000);
        s.frame(id, Frame::Hello(hello()));
        s.actions();
        assert_eq!(s.machine.looked_at(), before);
        // One that had been heard goes: the next of its user is heard.
        s.machine.handle_hang_up(s.now, flood[0], None);
        s.actions();
        assert_eq!((s.verified, s.machine.looked_at()), (7, before + 1));
        // An honest user is heard at once.
        s.linked(OTHER);
        // Memory that waits for receivers, of a user who has as many as he may.
        let links: Vec<_> = (0..many / 10).map(|_| s.linked(OTHER)).collect();
        let offer = MemoryWord::Offer { bytes: 4096, access: ApertureAccess::ReadOnly };
        for id in &links {
            s.memory(*id, Memory::Bulk(LinkSide::Client), offer);
        }
        let at = s.machine.looked_at();
        s.memory(links[0], Memory::Aperture(1), offer);
        s.machine.receiver_ended(s.now, links[0], Some(OTHER));
        looked_at.push(s.machine.looked_at() - at);
    }
    assert!(looked_at.iter().all(|looked_at| *looked_at <= 1), "{looked_at:?}");
}

#[test]
fn requests_of_one_user_leave_the_application_to_others() {
    let mut s = Server::new(|limits| {
        (limits.connections_per_user_max, limits.half_open_max) = (100, 8);
    });
    s.machine.stop_serving("x");
    s.service = s.machine.serve("x".into(), Admission::Anyone, Accept::Ask);
    for _ in 0..50 {
        s.greeted(OTHER, hello());
    }
    s.greeted(3000, hello());
    let asked: Vec<_> = s
        .actions()
        .into_iter()
        .filter_map(|action| match action {
            Action::Tell(MachineEvent::Request { id, peer, .. }) => Some((id, peer.uid)),
            _ => None,
        })
        .collect();
    let users: Vec<_> = asked.iter().map(|row| row.1).collect();
    assert_eq!(users, [Some(OTHER), Some(OTHER), Some(3000)]);
    // A connection that got its answer makes room for the next of its user.
    s.machine.refuse_request(asked[0].0, RefusedBy::Application, "no").unwrap();
    let told = s.actions();
    let is_request =
        |action: &&Action| matches!(action, Action::Tell(MachineEvent::Request { .. }));
    assert_eq!(told.iter().filter(is_request).count(), 1);
}

/// The pauses until it is given up, of one that is tried at the times that the machine says.
fn pauses(machine: &mut Machine, id: ConnectionId, mut now: u64, why: NotNow) -> Vec<u64> {
    let mut pauses = Vec::new();
    while let Some(again) = machine.not_now(now, id, why) {
        pauses.push(again - now);
        if again == now {
            break;
        }
        now = again;
    }
    pauses
}

#[test]
fn a_name_that_is_not_there_is_looked_for_until_the_limit_ever_more_rarely_and_once_more_then() {
    let mut machine = Machine::new(limits());
    let id = machine.connect("x".into(), vec![], 7 + SECOND, Wait::ForName).unwrap();
    let pauses = pauses(&mut machine, id, 7, NotNow::Absent);
    assert_eq!(pauses.iter().sum::<u64>(), SECOND, "the last look is at the limit");
    assert!(pauses[..pauses.len() - 1].windows(2).all(|two| two[0] <= two[1]), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= 20_000_000) && pauses.len() < 70, "{pauses:?}");
    // Then it ends, for the reason found by the look.
    machine.connect_failed(id, ConnectFailure::Unavailable("nothing is called x".into()));
    let told = std::iter::from_fn(|| machine.poll_action());
    let failed =
        |action: &Action| matches!(action, Action::Tell(MachineEvent::ConnectFailed { .. }));
    assert_eq!(told.filter(failed).count(), 1);
}

#[test]
fn a_name_is_not_waited_for_by_whoever_does_not_want_to_nor_once_its_process_was_there() {
    let mut machine = Machine::new(limits());
    let id = machine.connect("x".into(), vec![], SECOND, Wait::No).unwrap();
    assert_eq!(machine.not_now(0, id, NotNow::Absent), None);
    // A listener without room is another matter.
    assert!(pauses(&mut machine, id, 0, NotNow::Busy).len() > 100);
    let id = machine.connect("x".into(), vec![], SECOND, Wait::ForName).unwrap();
    machine.connected(id, who(OTHER));
    assert_eq!(machine.not_now(0, id, NotNow::Absent), None);
    assert!(machine.not_now(0, id, NotNow::Busy).is_some());
}
