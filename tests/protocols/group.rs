//! Groups: gather, thresholds, scatter, barriers, delegation; members that die, are late, or lie.

use crate::help::{
    Reached, at, is_of_hosts, is_over_libfabric, is_said_by, manager_with, only_on_one_host, seen,
};
use crate::support::*;
use hamlyn::control::frame::{Frame, Hello, Purpose};
use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    EndPoint, Group, GroupConfig, GroupError, GroupHelper, GroupMember, GrowError, Manager, Part,
    Seed,
};
use hamlyn::wire::{Flags, TICKET_BYTES};
use hamlyn::{Access, Key, MetadataIndex, Share, SlotIndex, Ticket};
use std::os::fd::OwnedFd;
use std::time::Duration;

const SHORT: Option<Duration> = Some(Duration::from_millis(30));

fn manager(dir: &Dir) -> Manager {
    manager_with(dir.config())
}

fn answering(dir: &Dir) -> Manager {
    let manager = manager(dir);
    manager.start_progress().unwrap();
    manager
}

/// A root that answers, and members of one manager each.
fn group(dir: &Dir, members: u32, bytes: usize) -> (Group, Vec<GroupMember>) {
    let root = Group::new(&answering(dir), GroupConfig::new(members, bytes)).unwrap();
    let seed = root.seed().unwrap().reached();
    let members = (0..members)
        .map(|_| GroupMember::grow(&manager(dir), &seed, bytes, LIMIT).unwrap())
        .collect();
    (root, members)
}

fn refusals(manager: &Manager) -> u64 {
    let counters = manager.lock().counters();
    counters.iter().filter(|row| row.0.starts_with("refused")).map(|row| row.1).sum()
}

#[test]
fn all_parts_of_a_round_are_gathered_and_the_next_round_has_others() {
    let dir = Dir::new("gather", &[]);
    let (mut root, mut members) = group(&dir, 3, 100_000);
    assert_eq!(members.iter().map(GroupMember::number).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(members.iter().all(|member| member.members() == 3 && member.part_bytes() == 100_000));
    std::thread::scope(|scope| {
        for member in &mut members {
            scope.spawn(move || {
                for round in 1..20 {
                    let n = member.number() as u64;
                    // Of several packets for one, of one packet for another, of none at all.
                    let length = [100_000, 10, 0][n as usize];
                    member.send(&pattern(length, round * 3 + n), LIMIT).unwrap();
                    assert_eq!(member.round(), round);
                }
            });
        }
        for round in 1..20 {
            assert_eq!(root.round(), round);
            let parts = root.gather(LIMIT).unwrap();
            assert_eq!(parts.count(), 3);
            for (member, part) in parts.iter() {
                let length = [100_000, 10, 0][member as usize];
                assert_eq!(part, pattern(length, round * 3 + member as u64));
                assert_eq!(part.as_ptr() as usize % 64, 0);
            }
            drop(parts);
            // It stays until the next round.
            assert_eq!(root.gather(SHORT).unwrap().count(), 3);
            assert_eq!(root.arrived().collect::<Vec<_>>(), [0, 1, 2]);
            root.next_round();
            assert_eq!(root.arrived().count(), 0);
        }
    });
    assert_eq!((refusals(root.manager()), root.late_parts()), (0, 0));
    assert!(is_said_by(&members[0].explain()), "{}", members[0].explain());
}

#[test]
fn a_second_part_waits_for_the_next_round() {
    let dir = Dir::new("second", &[]);
    let (mut root, mut members) = group(&dir, 1, 64);
    members[0].send(b"first", LIMIT).unwrap();
    assert!(matches!(members[0].send(b"second", SHORT), Err(GroupError::NotInTime)));
    assert_eq!(root.gather(LIMIT).unwrap().part(0), Some(&b"first"[..]));
    root.next_round();
    assert_eq!(root.parts().part(0), None);
    members[0].send(b"second", LIMIT).unwrap();
    assert_eq!(root.gather(LIMIT).unwrap().part(0), Some(&b"second"[..]));
    let error = members[0].send(&[0; 65], LIMIT).unwrap_err();
    assert!(matches!(error, GroupError::Length { length: 65, allowed: 64 }), "{error}");
}

#[test]
fn k_of_n_are_enough_and_a_late_part_counts_for_no_other_round() {
    let dir = Dir::new("threshold", &[]);
    let (mut root, mut members) = group(&dir, 3, 64);
    members[0].send(b"a1", LIMIT).unwrap();
    drop(root.wait_for(1, LIMIT).unwrap());
    let error = root.wait_for(2, SHORT).err().unwrap();
    assert!(
        matches!(&error, GroupError::TimedOut { done: 1, wanted: 2, missing } if *missing == [1, 2]),
        "{error}"
    );
    members[2].send(b"c1", LIMIT).unwrap();
    let parts = root.wait_for(2, LIMIT).unwrap();
    assert_eq!((parts.part(0), parts.part(1)), (Some(&b"a1"[..]), None));
    assert_eq!(parts.part(2), Some(&b"c1"[..]));
    drop(parts);
    root.next_round();
    root.next_round();
    // The second member sends to the first round, two too late; it gets a ticket of this one.
    members[1].send(b"b1", LIMIT).unwrap();
    assert_eq!(members[1].round(), 1);
    until("the late part is dropped", || {
        assert!(matches!(root.wait_for(1, SHORT), Err(GroupError::TimedOut { done: 0, .. })));
        root.late_parts() == 1
    });
    members[1].send(b"b3", LIMIT).unwrap();
    assert_eq!(members[1].round(), 3);
    assert_eq!(root.wait_for(1, LIMIT).unwrap().part(1), Some(&b"b3"[..]));
    assert!(matches!(root.wait_for(4, LIMIT), Err(GroupError::Misuse(_))));
    assert_eq!(refusals(root.manager()), 0);
}

#[test]
fn a_scatter_that_was_late_goes_on_to_those_that_are_missing_and_names_the_lost() {
    let dir = Dir::new("scatter-on", &[]);
    let bytes = 1 << 20;
    let mut root = Group::new(&answering(&dir), GroupConfig::new(3, bytes)).unwrap();
    let grow = |root: &mut Group, member| {
        let seed = root.seed_of(member).unwrap().reached();
        GroupMember::grow(&answering(&dir), &seed, bytes, LIMIT).unwrap()
    };
    let mut first = grow(&mut root, 0);
    drop(grow(&mut root, 1));
    until("it is lost", || root.joined() == 1);
    let parts: Vec<Vec<u8>> = (0..3).map(|member| pattern(bytes, member)).collect();
    let part = |member: u32| &parts[member as usize][..];
    let late = root.scatter(SHORT, part).unwrap_err();
    let GroupError::TimedOut { done, wanted: 3, missing } = late else { panic!("{late}") };
    // The one that is lost is not taken for served.
    assert!(missing.contains(&1) && missing.contains(&2), "{missing:?}");
    assert_eq!(done as usize, 3 - missing.len());
    let mut third = grow(&mut root, 2);
    let lost = root.scatter_to(&missing, LIMIT, part).unwrap_err();
    assert!(matches!(lost, GroupError::MemberLost { member: 1, .. }), "{lost}");
    root.flush(LIMIT).unwrap();
    assert_eq!(
        (first.receive(LIMIT).unwrap(), third.receive(LIMIT).unwrap()),
        (parts[0].clone(), parts[2].clone())
    );
    // Nothing waits: what is cut off by that leaves in `flush`, and not before.
    while root.scatter_to(&[2], Some(Duration::ZERO), part).is_err() {}
    root.flush(LIMIT).unwrap();
    assert_eq!(third.receive(LIMIT).unwrap(), parts[2]);
    let misuse = root.scatter_to(&[3], LIMIT, part).unwrap_err();
    assert!(misuse.to_string().contains("members 0 to 2, no 3"), "{misuse}");
    // The second would be taken for sent, and the member be waited for in vain.
    let misuse = root.scatter_to(&[2, 2], LIMIT, part).unwrap_err();
    assert!(misuse.to_string().contains("member 2 stands there twice"), "{misuse}");
}

#[test]
fn parts_are_reduced_and_scattered_back() {
    let dir = Dir::new("reduce", &[]);
    let (mut root, mut members) = group(&dir, 4, 100_000);
    std::thread::scope(|scope| {
        for member in &mut members {
            scope.spawn(move || {
                let n = member.number() as u64;
                for round in 0..10u64 {
                    member.send(&(n + round).to_le_bytes(), LIMIT).unwrap();
                    let own = member.receive(LIMIT).unwrap();
                    assert_eq!(own, pattern(20_000 * n as usize, n + round));
                    let sum =
                        member.receive_with(LIMIT, |b| u64::from_le_bytes(b.try_into().unwrap()));
                    assert_eq!(sum.unwrap(), 6 + 4 * round);
                }
            });
        }
        for round in 0..10u64 {
            let sum = root.reduce(LIMIT, 0, |sum, member, part| {
                let value = u64::from_le_bytes(part.try_into().unwrap());
                assert_eq!(value, member as u64 + round);
                sum + value
            });
            let sum = sum.unwrap();
            let own: Vec<Vec<u8>> =
                (0..4).map(|n| pattern(20_000 * n as usize, n + round)).collect();
            root.next_round();
            root.scatter(LIMIT, |member| &own[member as usize]).unwrap();
            root.broadcast(&sum.to_le_bytes(), LIMIT).unwrap();
        }
    });
    let error = root.broadcast(&[0; 100_001], LIMIT).unwrap_err();
    assert!(matches!(error, GroupError::Length { allowed: 100_000, .. }), "{error}");
    assert_eq!(refusals(root.manager()), 0);
}

#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let dir = Dir::new("barrier", &[]);
    let (mut root, mut members) = group(&dir, 3, 0);
    let came = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for member in &mut members {
            let came = &came;
            scope.spawn(move || {
                for round in 1..=50 {
                    came.fetch_add(1, Ordering::SeqCst);
                    member.barrier(LIMIT).unwrap();
                    assert!(came.load(Ordering::SeqCst) >= 3 * round);
                }
            });
        }
        for _ in 0..50 {
            root.barrier(LIMIT).unwrap();
        }
    });
    // One comes too late to a barrier that was released without it, and goes on at once.
    let [first, second, third] = &mut members[..] else { unreachable!() };
    assert!(matches!(first.barrier(SHORT), Err(GroupError::NotInTime)));
    assert!(matches!(second.barrier(SHORT), Err(GroupError::NotInTime)));
    drop(root.wait_for(2, LIMIT).unwrap());
    assert!(matches!(root.barrier(SHORT), Err(GroupError::TimedOut { done: 2, .. })));
    root.release(LIMIT).unwrap();
    first.barrier(LIMIT).unwrap();
    second.barrier(LIMIT).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| third.barrier(LIMIT).unwrap());
        scope.spawn(|| first.barrier(LIMIT).unwrap());
        scope.spawn(|| second.barrier(LIMIT).unwrap());
        until("two have come, and the late one was let go", || {
            let error = root.barrier(SHORT);
            assert!(matches!(error, Err(GroupError::TimedOut { .. })), "{error:?}");
            root.late_parts() == 1 && root.arrived().count() == 2
        });
        root.release(LIMIT).unwrap();
    });
    // Data where a release is waited for.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let error = first.barrier(LIMIT).unwrap_err();
            assert!(matches!(error, GroupError::OutOfStep(_)), "{error}");
            assert_eq!(first.receive(LIMIT).unwrap(), b"");
        });
        root.broadcast(b"", LIMIT).unwrap();
    });
}

#[test]
fn a_part_is_delegated_to_helpers_and_arrives_as_one() {
    let dir = Dir::new("delegate", &[]);
    let (mut root, mut members) = group(&dir, 2, 300_000);
    let mut helper =
        GroupHelper::grow(&manager(&dir), &root.seed().unwrap().reached(), LIMIT).unwrap();
    let whole = pattern(250_001, 5);
    for round in 1..4 {
        let parts = members[0].delegate(whole.len(), 3, LIMIT).unwrap();
        let parts: Vec<Part> =
            parts.iter().map(|part| Part::from_bytes(&part.to_bytes()).unwrap()).collect();
        assert_eq!(parts.iter().map(Part::length).sum::<usize>(), whole.len());
        let (first, rest) = whole.split_at(parts[0].length());
        let (second, third) = rest.split_at(parts[1].length());
        let error = helper.send(&parts[1], &second[1..], LIMIT).unwrap_err();
        assert!(matches!(error, GroupError::Length { .. }), "{error}");
        // A helper of its own, another member, and the member itself.
        helper.send(&parts[1], second, LIMIT).unwrap();
        let [own, other] = &mut members[..] else { unreachable!() };
        other.send(b"own", LIMIT).unwrap();
        other.send_part(&parts[2], third, LIMIT).unwrap();
        drop(root.wait_for(1, LIMIT).unwrap());
        assert!(matches!(
            root.gather(SHORT),
            Err(GroupError::TimedOut { missing, .. }) if missing == [0]
        ));
        own.send_part(&parts[0], first, LIMIT).unwrap();
        let parts = root.gather(LIMIT).unwrap();
        assert!(parts.part(0) == Some(&whole), "round {round}");
        assert_eq!(parts.part(1), Some(&b"own"[..]));
        drop(parts);
        root.next_round();
    }
    assert!(matches!(members[0].delegate(300_001, 2, LIMIT), Err(GroupError::Length { .. })));
    assert!(matches!(members[0].delegate(10, 0, LIMIT), Err(GroupError::Misuse(_))));
    assert_eq!((root.helpers(), refusals(root.manager())), (1, 0));
}

#[test]
fn whichever_of_several_groups_is_complete_first_is_found() {
    let dir = Dir::new("groups", &[]);
    let there = answering(&dir);
    let mut groups: Vec<Group> =
        (0..3).map(|_| Group::new(&there, GroupConfig::new(2, 64)).unwrap()).collect();
    groups[2].set_wanted(1);
    let seeds: Vec<Seed> = groups.iter().map(|group| group.seed().unwrap().reached()).collect();
    let here = manager(&dir);
    let mut members: Vec<Vec<GroupMember>> = seeds
        .iter()
        .map(|seed| (0..2).map(|_| GroupMember::grow(&here, seed, 64, LIMIT).unwrap()).collect())
        .collect();
    let find = |groups: &[Group], limit| {
        let ends: Vec<&dyn EndPoint> = groups.iter().map(|group| group as &dyn EndPoint).collect();
        there.wait_any(&ends, limit)
    };
    members[0][0].send(b"0", LIMIT).unwrap();
    assert!(find(&groups, SHORT).is_err(), "half of a group is not ready");
    for i in [1, 2, 0] {
        members[i][1].send(b"x", LIMIT).unwrap();
        if i == 1 {
            members[i][0].send(b"x", LIMIT).unwrap();
        }
        assert_eq!(find(&groups, LIMIT).unwrap(), i);
        let wanted = if i == 2 { 1 } else { 2 };
        assert_eq!(groups[i].wait_for(wanted, LIMIT).unwrap().count(), wanted as usize);
        groups[i].next_round();
    }
    // A group whose member is lost is found, too.
    members[1].remove(0);
    assert_eq!(find(&groups, LIMIT).unwrap(), 1);
    let error = groups[1].gather(LIMIT).err().unwrap();
    assert!(matches!(error, GroupError::MemberLost { member: 0, .. }), "{error}");
    let named = match is_of_hosts() {
        true => "member 0 (host 127.0.0.1:".into(),
        false => format!("member 0 (process {} of user ", std::process::id()),
    };
    assert!(error.to_string().starts_with(&named), "{error}");
}

#[test]
fn places_are_handed_out_and_taken_again() {
    let dir = Dir::new("places", &[]);
    let there = answering(&dir);
    let mut root = Group::new(&there, GroupConfig::new(2, 64)).unwrap();
    root.serve("places", Access::SameUser).unwrap();
    let here = manager(&dir);
    let of_one = root.seed_of(1).unwrap().reached();
    let mut one = GroupMember::grow(&here, &of_one, 64, LIMIT).unwrap();
    assert_eq!(one.number(), 1);
    let taken = GroupMember::grow(&here, &of_one, 64, LIMIT).err().unwrap();
    assert!(matches!(&taken, GrowError::Full(text) if text.contains("taken")), "{taken}");
    let small = GroupMember::connect(&here, &at("places"), 63, LIMIT).err().unwrap();
    assert!(matches!(&small, GrowError::Refused(text) if text.contains("64")), "{small}");
    let mut zero = GroupMember::connect(&here, &at("places"), 64, LIMIT).unwrap();
    assert_eq!(zero.number(), 0);
    let full = GroupMember::connect(&here, &at("places"), 64, LIMIT).err().unwrap();
    assert!(matches!(&full, GrowError::Full(text) if text.contains("2 members")), "{full}");
    assert!(matches!(root.seed_of(2), Err(GroupError::Misuse(_))));
    // A part that a member sent before it left counts, and its bytes are stable though another
    // takes its place.
    one.send(b"one", LIMIT).unwrap();
    drop(one);
    until("it has left", || root.joined() == 1);
    let mut one = GroupMember::grow(&here, &of_one, 64, LIMIT).unwrap();
    assert!(matches!(one.send(b"new", SHORT), Err(GroupError::NotInTime)));
    zero.send(b"zero", LIMIT).unwrap();
    assert_eq!(root.gather(LIMIT).unwrap().part(1), Some(&b"one"[..]));
    root.next_round();
    one.send(b"new", LIMIT).unwrap();
    zero.send(b"zero", LIMIT).unwrap();
    assert_eq!(root.gather(LIMIT).unwrap().part(1), Some(&b"new"[..]));
    drop(root);
    let error = one.receive(LIMIT).unwrap_err();
    assert!(matches!(error, GroupError::RootLost(CloseReason::Closed)), "{error}");
    assert!(matches!(zero.send(b"x", LIMIT), Err(GroupError::RootLost(_))));
}

// ---- members that lie

/// A member that writes what it likes with the ticket of its part.
struct Hostile {
    manager: Manager,
    _member: GroupMember,
    part: Part,
}

impl Hostile {
    fn new(dir: &Dir, seed: &Seed) -> Self {
        let manager = manager(dir);
        let mut member = GroupMember::grow(&manager, seed, 64, LIMIT).unwrap();
        assert_eq!(member.number(), 0);
        let part = member.delegate(64, 1, LIMIT).unwrap()[0];
        Self { manager, _member: member, part }
    }

    fn ticket(&self) -> Ticket {
        Ticket::from_bytes(&self.part.to_bytes()[..44]).unwrap()
    }

    fn says(&self, ticket: &Ticket, data: &[u8], metadata: &[u8]) {
        self.manager.lock().send(ticket, data, metadata, LIMIT).unwrap();
    }
}

#[test]
fn a_member_that_sends_nonsense_is_sent_away_and_named() {
    let dir = Dir::new("liars", &[]);
    let (mut root, mut members) = group(&dir, 2, 64);
    members.remove(0);
    until("a place is free", || root.joined() == 1);
    let seed = root.seed().unwrap().reached();
    members[0].send(b"honest", LIMIT).unwrap();
    for metadata in [&b""[..], b"1234567", &65u64.to_le_bytes(), &[0xff; 8], &[0; 60]] {
        let liar = Hostile::new(&dir, &seed);
        liar.says(&liar.ticket(), b"lies", metadata);
        let error = root.gather(LIMIT).err().unwrap();
        assert!(
            matches!(
                &error,
                GroupError::MemberLost { member: 0, reason: CloseReason::Misbehaved(_), arrived: 1, peer }
                    if peer.pid == seen(std::process::id())
            ),
            "{error}"
        );
        assert_eq!(root.joined(), 1);
        drop(liar);
    }
    // Twice, outside, into another's place, without notifying, half of it: nothing but itself
    // suffers.
    let liar = Hostile::new(&dir, &seed);
    let ticket = liar.ticket();
    let outside = Ticket { base: ticket.base + 64, bound: ticket.bound + 64, ..ticket };
    liar.says(&outside, b"outside", &7u64.to_le_bytes());
    let other = Ticket { metadata_index: hamlyn::MetadataIndex(1), ..ticket };
    liar.says(&other, b"other's", &7u64.to_le_bytes());
    let half = Ticket { share: Share::new(9).unwrap(), ..ticket };
    liar.says(&half, b"half", &7u64.to_le_bytes());
    assert!(
        matches!(root.gather(SHORT), Err(GroupError::TimedOut { missing, .. }) if missing == [0])
    );
    liar.says(&ticket.with_flags(Flags::empty()), b"silent", &6u64.to_le_bytes());
    liar.says(&ticket, b"twice", &5u64.to_le_bytes());
    assert!(
        matches!(root.gather(SHORT), Err(GroupError::TimedOut { missing, .. }) if missing == [0])
    );
    until("three were refused", || refusals(root.manager()) == 3);
    assert_eq!(root.parts().part(1), Some(&b"honest"[..]));
    drop(liar);
    let error = root.gather(LIMIT).err().unwrap();
    assert!(matches!(error, GroupError::MemberLost { member: 0, .. }), "{error}");
    // The group heals.
    let mut new = GroupMember::grow(&manager(&dir), &seed, 64, LIMIT).unwrap();
    new.send(b"new", LIMIT).unwrap();
    assert_eq!(root.gather(LIMIT).unwrap().part(0), Some(&b"new"[..]));
}

/// Grows half a member of the group that is served as `name`: it is offered a place and shown its
/// ticket, and never says that it has come to join. Returns the connection and the ticket.
fn half_a_member(dir: &Dir, name: &str) -> (OwnedFd, Ticket) {
    let socket = crate::control_help::stranger(&dir.path.join(name));
    let hello = crate::control_help::hello_of(Purpose::Link);
    let own = Ticket {
        destination: hello.credential.node,
        slot: SlotIndex(0),
        metadata_index: MetadataIndex::FAST,
        key: Key(1),
        base: 0,
        bound: 1 << 20,
        flags: Flags::NOTIFY,
        share: Share::WHOLE,
    };
    let down = Ticket { metadata_index: MetadataIndex(0), ..own };
    let mut greeting = b"HGr2\x05\0\0\0".to_vec();
    greeting.extend([0; 16 + 1]);
    greeting.extend(own.to_bytes());
    greeting.extend(down.to_bytes());
    crate::control_help::send(&socket, &Frame::Hello(Hello { greeting, ..hello }));
    let Some((Frame::Welcome(welcome), _)) = crate::control_help::receive(&socket) else {
        panic!("no welcome");
    };
    let ticket = Ticket::from_bytes(&welcome.greeting[8 + 24..][..TICKET_BYTES]).unwrap();
    (socket, ticket)
}

#[test]
fn what_a_member_that_never_joined_has_sent_is_not_taken_for_its_successors() {
    if only_on_one_host("half a member speaks to a Unix socket by hand") {
        return;
    }
    for (i, metadata) in [&b""[..], &6u64.to_le_bytes()].into_iter().enumerate() {
        let dir = Dir::new(&format!("withdrawn{i}"), &[]);
        let there = answering(&dir);
        let mut root = Group::new(&there, GroupConfig::new(1, 64)).unwrap();
        root.serve("group", Access::SameUser).unwrap();
        // Its part comes over the link of an accomplice, and is not looked at yet.
        let accomplice = manager(&dir);
        let helper = GroupHelper::connect(&accomplice, &at("group"), LIMIT).unwrap();
        let (half, ticket) = half_a_member(&dir, "group");
        let received = || {
            let counters = there.lock().counters();
            counters.iter().find(|row| row.0 == "packets_received").unwrap().1
        };
        let before = received();
        accomplice.lock().send(&ticket, b"forged", metadata, LIMIT).unwrap();
        until("the part is there", || received() > before);
        drop(half);
        let here = manager(&dir);
        let mut member = None;
        until("the place is free again", || {
            member = GroupMember::connect(&here, &at("group"), 64, LIMIT).ok();
            member.is_some()
        });
        let mut member = member.unwrap();
        let nothing = root.gather(SHORT).map(|parts| parts.part(0).map(<[u8]>::to_vec));
        assert!(
            matches!(nothing, Err(GroupError::TimedOut { done: 0, .. })),
            "{metadata:?}: {nothing:?}"
        );
        member.send(b"honest", LIMIT).unwrap();
        assert_eq!(root.gather(LIMIT).unwrap().part(0), Some(&b"honest"[..]));
        drop(helper);
    }
}

// ---- members that are replaced

#[test]
fn a_member_that_takes_the_place_of_another_during_a_broadcast_is_served() {
    if only_on_one_host(
        "that one has gone and that another comes is told over two connections, in any order",
    ) {
        return;
    }
    // The ring holds little of a message.
    let dir = Dir::new("replaced", &[("RING_BYTES", "4096"), ("BULK_RING_BYTES", "0")]);
    let there = answering(&dir);
    let mut root = Group::new(&there, GroupConfig::new(1, 100_000)).unwrap();
    let seed = root.seed().unwrap().reached();
    let data = pattern(100_000, 5);
    let here = manager(&dir);
    let first = GroupMember::grow(&here, &seed, 100_000, LIMIT).unwrap();
    until("it has joined", || root.joined() == 1);
    let sent = || {
        let counters = there.lock().counters();
        counters.iter().find(|row| row.0 == "packets_sent").unwrap().1
    };
    let before = sent();
    std::thread::scope(|scope| {
        let (root, data) = (&mut root, &data);
        let serving = scope.spawn(move || {
            root.broadcast(data, LIMIT).unwrap();
            root.broadcast(b"next", LIMIT).unwrap();
        });
        until("some of it has left", || sent() > before + 3);
        // That the one has gone and that the other wants its place is seen in one look.
        let look = there.lock();
        drop(first);
        let second =
            scope.spawn(|| GroupMember::grow(&manager(&dir), &seed, 100_000, LIMIT).unwrap());
        std::thread::sleep(Duration::from_millis(500));
        drop(look);
        let mut second = second.join().unwrap();
        assert!(second.receive(LIMIT).unwrap() == *data);
        assert_eq!(second.receive(LIMIT).unwrap(), b"next");
        serving.join().unwrap();
    });
}

#[test]
fn a_member_that_takes_the_place_of_one_at_a_barrier_is_let_go_from_its_own() {
    let dir = Dir::new("replaced-barrier", &[]);
    let (mut root, mut members) = group(&dir, 2, 64);
    let mut leaves = members.remove(0);
    assert_eq!(leaves.number(), 0);
    assert!(matches!(leaves.barrier(SHORT), Err(GroupError::NotInTime)));
    drop(root.wait_for(1, LIMIT).unwrap());
    drop(leaves);
    until("it has left", || root.joined() == 1);
    let mut new =
        GroupMember::grow(&manager(&dir), &root.seed().unwrap().reached(), 64, LIMIT).unwrap();
    until("the other has joined", || root.joined() == 2);
    std::thread::scope(|scope| {
        let at_barrier = scope.spawn(|| members[0].barrier(LIMIT).unwrap());
        root.barrier(LIMIT).unwrap();
        at_barrier.join().unwrap();
    });
    // The barrier was its predecessor's: its own is that of the round which has begun.
    assert!(matches!(new.barrier(SHORT), Err(GroupError::NotInTime)));
    std::thread::scope(|scope| {
        let at_barrier = scope.spawn(|| members[0].barrier(LIMIT).unwrap());
        let new = scope.spawn(|| new.barrier(LIMIT).unwrap());
        root.barrier(LIMIT).unwrap();
        at_barrier.join().unwrap();
        new.join().unwrap();
    });
}

// ---- members that die

fn start(role: &str, dir: &Dir, seed: &Seed) -> Peer {
    let mut peer = Peer::start(role, dir, &seed.to_string());
    peer.expect("joined");
    peer
}

#[test]
fn a_member_that_dies_is_named_and_what_it_sent_before_counts() {
    let dir = Dir::new("dead", &[]);
    let mut root = Group::new(&answering(&dir), GroupConfig::new(3, 100_000)).unwrap();
    let seeds: Vec<Seed> = (0..3).map(|member| root.seed_of(member).unwrap().reached()).collect();
    let silent = start("silent", &dir, &seeds[0]);
    let mut sends = start("sends and dies", &dir, &seeds[1]);
    sends.expect("sent");
    if is_over_libfabric() {
        // Memory of a provider goes with its process (docs/providers.md).
        drop(root.wait_for(1, LIMIT).unwrap());
    }
    sends.tell("die");
    sends.ends_killed();
    let lives = start("sends", &dir, &seeds[2]);
    // Two of three are there, the one by a process that is dead.
    let parts = root.wait_for(2, LIMIT).unwrap();
    assert!(parts.part(1) == Some(&pattern(100_000, 1)));
    drop(parts);
    let pid = silent.pid() as u32;
    let waiting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        silent.kill();
    });
    let error = root.gather(LIMIT).err().unwrap();
    waiting.join().unwrap();
    match &error {
        GroupError::MemberLost { member: 0, peer, reason: CloseReason::Died, arrived: 2 } => {
            assert_eq!(peer.pid, seen(pid));
            assert_eq!(peer.uid, seen(rustix::process::geteuid().as_raw()));
        }
        other => panic!("{other:?}"),
    }
    let named = if is_of_hosts() { "host 127.0.0.1:".into() } else { pid.to_string() };
    assert!(error.to_string().contains(&named), "{error}");
    // A threshold that can still be met goes on; one that cannot, and a scatter, say who is lost.
    root.next_round();
    assert_eq!(root.wait_for(1, LIMIT).unwrap().part(2), Some(&pattern(100_000, 2)[..]));
    assert!(matches!(root.wait_for(2, LIMIT), Err(GroupError::MemberLost { member: 0, .. })));
    assert!(matches!(root.broadcast(b"end", LIMIT), Err(GroupError::MemberLost { member: 0, .. })));
    lives.end();
}

#[test]
fn half_a_part_of_a_dead_member_is_none_and_its_successor_sends_a_whole_one() {
    // The ring holds little of a part, and is not read before the member is dead.
    let dir = Dir::new("halfdead", &[("RING_BYTES", "4096"), ("BULK_RING_BYTES", "0")]);
    let there = answering(&dir);
    let bytes = if is_of_hosts() { 32 << 20 } else { 100_000 };
    let config = GroupConfig { scatter_bytes: 100_000, ..GroupConfig::new(1, bytes) };
    let mut root = Group::new(&there, config).unwrap();
    let seed = root.seed().unwrap().reached();
    for successor in [false, true] {
        let mut half = start("sends when told", &dir, &seed);
        until("it has joined", || root.joined() == 1);
        there.stop_progress();
        half.tell("send");
        half.expect("cut off");
        half.kill();
        there.start_progress().unwrap();
        let error = root.gather(LIMIT).err().unwrap();
        let died = CloseReason::Died;
        assert!(
            matches!(&error, GroupError::MemberLost { member: 0, reason, arrived: 0, .. } if *reason == died),
            "{error}"
        );
        assert_eq!(root.parts().part(0), None);
        if successor {
            let lives = start("sends", &dir, &seed);
            assert!(root.gather(LIMIT).unwrap().part(0) == Some(&pattern(bytes, 0)));
            root.next_round();
            drop(root.gather(LIMIT).unwrap());
            root.broadcast(b"end", LIMIT).unwrap();
            lives.end();
        }
    }
}

#[test]
fn each_side_may_be_used_by_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Group>();
    is_send::<GroupMember>();
    is_send::<GroupHelper>();
    is_send::<GroupError>();
}

#[test]
fn members_learn_at_once_that_the_root_is_dead() {
    let dir = Dir::new("rootless", &[]);
    let mut root = Peer::start("root", &dir, "");
    root.expect("serves");
    let here = manager(&dir);
    let mut members: Vec<GroupMember> =
        (0..3).map(|_| GroupMember::connect(&here, &at("root"), 64, LIMIT).unwrap()).collect();
    root.kill();
    let [receives, waits, sends] = &mut members[..] else { unreachable!() };
    let died = |error: GroupError| {
        assert!(matches!(error, GroupError::RootLost(CloseReason::Died)), "{error}");
    };
    died(receives.receive(LIMIT).unwrap_err());
    died(waits.barrier(LIMIT).unwrap_err());
    // Each member has a link of its own, and the news of this one's end may come after the others':
    // parts it sends before are discarded, and the next part has to wait for a ticket.
    let sent = sends.send(b"x", LIMIT).and_then(|()| sends.send(b"y", LIMIT));
    died(sent.unwrap_err());
}

#[test]
fn a_member_that_is_stopped_holds_nobody_up_beyond_the_time_limit() {
    let dir = Dir::new("stopped", &[("RING_BYTES", "4096"), ("BULK_RING_BYTES", "0")]);
    let mut root = Group::new(&answering(&dir), GroupConfig::new(2, 100_000)).unwrap();
    let seeds: Vec<Seed> = (0..2).map(|member| root.seed_of(member).unwrap().reached()).collect();
    let mut lives = start("receives", &dir, &seeds[0]);
    let mut stopped = start("receives", &dir, &seeds[1]);
    stopped.stop();
    let data = pattern(100_000, 9);
    // Its ring takes some of the message, the rest follows in the next call. The other member must
    // have all of it within the limit, on a busy machine, too.
    root.broadcast(&data, Some(Duration::from_secs(3))).unwrap();
    lives.expect("100000 bytes");
    let error = root.broadcast(b"more", Some(Duration::from_secs(2))).unwrap_err();
    assert!(
        matches!(&error, GroupError::TimedOut { done: 1, missing, .. } if *missing == [1]),
        "{error}"
    );
    lives.expect("4 bytes");
    stopped.signal(libc::SIGCONT);
    root.broadcast(b"again", LIMIT).unwrap();
    lives.expect("5 bytes");
    stopped.expect("100000 bytes");
    stopped.expect("5 bytes");
    drop(root);
    lives.end();
    stopped.end();
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let manager = manager_with(role.config());
    if role.name == "root" {
        let root = Group::new(&manager, GroupConfig::new(3, 64)).unwrap();
        root.serve("root", Access::SameUser).unwrap();
        manager.start_progress().unwrap();
        say("serves");
        role.wait_for("never");
        return;
    }
    let seed: Seed = role.args[0].parse().unwrap();
    let mut member = GroupMember::grow(&manager, &seed, 100_000, LIMIT).unwrap();
    say("joined");
    let part = pattern(member.part_bytes(), member.number() as u64);
    match role.name.as_str() {
        "silent" => role.wait_for("never"),
        "sends when told" => {
            role.wait_for("send");
            let error = member.send(&part, SHORT).unwrap_err();
            assert!(matches!(error, GroupError::CutOff), "{error}");
            say("cut off");
            role.wait_for("never");
        }
        "sends and dies" => {
            member.send(&part, LIMIT).unwrap();
            say("sent");
            role.wait_for("die");
            die();
        }
        "sends" => {
            member.send(&part, LIMIT).unwrap();
            member.send(&part, LIMIT).unwrap();
            assert_eq!(member.receive(LIMIT).unwrap(), b"end");
        }
        "receives" => loop {
            match member.receive(LIMIT) {
                Ok(bytes) => say(&format!("{} bytes", bytes.len())),
                Err(GroupError::RootLost(CloseReason::Closed)) => return,
                Err(e) => panic!("{e}"),
            }
        },
        other => panic!("no role {other}"),
    }
}
