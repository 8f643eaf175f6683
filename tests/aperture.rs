//! Apertures between processes: exported by either end, written, read, announced, revoked; limits,
//! and the state after the death of an owner or a holder.
#![cfg(feature = "os")]

mod support;

use hamlyn::node::{ApertureEvent, CloseReason, ExportError, MemoryError, NoSuchAperture};
use hamlyn::protocol::{
    ApertureStreamReceiver, ApertureStreamSender, Manager, StreamConfig, StreamReceiver,
    StreamSender,
};
use hamlyn::{AccessError, Aperture, ApertureAccess, ApertureId, LinkId, MetadataIndex, Node};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::*;

const BYTES: u64 = 1 << 20;
const RW: ApertureAccess = ApertureAccess::ReadWrite;
const RO: ApertureAccess = ApertureAccess::ReadOnly;

fn access_of(text: &str) -> ApertureAccess {
    if text == "ro" { RO } else { RW }
}

#[track_caller]
fn expect(node: &mut Node, id: ApertureId, what: ApertureEvent) {
    assert_eq!(aperture_event(node), (id, what));
}

/// The next aperture that this node is to hold.
#[track_caller]
fn held(node: &mut Node) -> Aperture {
    let (id, what) = aperture_event(node);
    assert_eq!(what, ApertureEvent::Held);
    node.aperture(id).unwrap()
}

/// Exports, and waits for the holder.
#[track_caller]
fn export(node: &mut Node, link: LinkId, bytes: u64, access: ApertureAccess) -> ApertureId {
    let id = node.export(link, bytes, access).unwrap();
    expect(node, id, ApertureEvent::Ready);
    id
}

/// A message that says which aperture, and where in it.
fn announce(me: &mut Station, ticket: &hamlyn::Ticket, number: u32, offset: u64, length: u64) {
    let mut metadata = [0; 20];
    metadata[..4].copy_from_slice(&number.to_le_bytes());
    metadata[4..12].copy_from_slice(&offset.to_le_bytes());
    metadata[12..].copy_from_slice(&length.to_le_bytes());
    me.node.send(ticket, b"", &metadata, LIMIT).unwrap();
}

/// The content of the next message.
fn announced(me: &mut Station) -> (u32, u64, u64) {
    me.recv();
    let entry = me.node.metadata(me.slot, MetadataIndex(0)).unwrap();
    let at = |i| u64::from_le_bytes(entry.user()[i..i + 8].try_into().unwrap());
    (u32::from_le_bytes(entry.user()[..4].try_into().unwrap()), at(4), at(12))
}

/// Not a test: the other process.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let mut me = Station::new(role.config(), 64, 1);
    let (link, ticket) = me.connect("service");
    match role.name.as_str() {
        // Holds what the server exports: writes or reads it, until it is revoked.
        "holder" => {
            let aperture = held(&mut me.node);
            assert_eq!(aperture.access(), access_of(&role.args[0]));
            let number = aperture.id().number;
            assert!(me.node.explain(link).unwrap().contains("apertures held: 1, of 1048576 bytes"));
            if aperture.access() == RW {
                aperture.write(5, &pattern(100_000, 3)).unwrap();
                announce(&mut me, &ticket, number, 5, 100_000);
            } else {
                let mut bytes = vec![0; 100_000];
                assert_eq!(announced(&mut me), (number, 7, 100_000));
                aperture.read(7, &mut bytes).unwrap();
                assert!(bytes == pattern(100_000, 4));
                assert_eq!(aperture.write(7, &bytes), Err(AccessError::ReadOnly));
                announce(&mut me, &ticket, number, 0, 0);
            }
            expect(&mut me.node, aperture.id(), ApertureEvent::Revoked);
            assert!(aperture.is_revoked());
            assert_eq!(aperture.read(0, &mut [0]), Err(AccessError::Revoked));
            assert_eq!(me.node.apertures_held().count(), 0);
            say("let go");
        }
        // Exports to the server.
        "owner" => {
            let access = access_of(&role.args[0]);
            let id = export(&mut me.node, link, BYTES, access);
            let view = me.node.aperture_view(id).unwrap();
            if access == RW {
                let (number, offset, length) = announced(&mut me);
                assert_eq!(number, id.number);
                let mut bytes = vec![0; length as usize];
                view.read(offset, &mut bytes).unwrap();
                assert!(bytes == pattern(length as usize, 5));
            } else {
                view.write(9, &pattern(5000, 6)).unwrap();
                announce(&mut me, &ticket, id.number, 9, 5000);
                announced(&mut me);
            }
            let area = me.node.reclaim_aperture(id).unwrap();
            assert_eq!(me.node.area(area).unwrap().len() as u64, BYTES);
            say("reclaimed");
            role.wait_for("end");
            until("nothing is exported", || me.node.aperture_bytes() == (0, 0));
        }
        // Writes without end, from a thread of its own, until it is revoked.
        "scribbler" => {
            let aperture = held(&mut me.node);
            let (id, begun) = (aperture.id(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let mut n = 0u8;
                    loop {
                        n = n.wrapping_add(1);
                        if let Err(e) = aperture.write(0, &[n; BYTES as usize]) {
                            return e;
                        }
                        begun.store(true, Ordering::Release);
                    }
                });
                until("it writes", || begun.load(Ordering::Acquire));
                announce(&mut me, &ticket, id.number, 0, BYTES);
                expect(&mut me.node, id, ApertureEvent::Revoked);
                assert_eq!(writer.join().unwrap(), AccessError::Revoked);
            });
            say("let go");
            role.wait_for("end");
        }
        // Writes, announces, and dies.
        "victim" => {
            for _ in 0..2 {
                let aperture = held(&mut me.node);
                if aperture.access() == RW {
                    aperture.write(1000, &pattern(5000, 8)).unwrap();
                    announce(&mut me, &ticket, aperture.id().number, 1000, 5000);
                }
            }
            die();
        }
        // Holds, and obeys its orders.
        "obedient" => {
            let mut apertures = Vec::new();
            while let Some(line) = role.hear() {
                match line.as_str() {
                    "hold" => {
                        apertures.push(held(&mut me.node));
                        say("held");
                    }
                    "revoked" => {
                        let (_, what) = aperture_event(&mut me.node);
                        assert_eq!(what, ApertureEvent::Revoked);
                        say("revoked");
                    }
                    "release" => {
                        let aperture = apertures.pop().unwrap();
                        aperture.write(0, b"done").unwrap();
                        me.node.release_aperture(aperture.id()).unwrap();
                        assert!(aperture.is_revoked());
                        assert!(me.node.release_aperture(aperture.id()).is_err());
                    }
                    "poll" => {
                        me.node.poll().unwrap();
                        say("polled");
                    }
                    other => panic!("{other}"),
                }
            }
        }
        other => panic!("{other}"),
    }
    let _ = me.node.close(LIMIT).unwrap();
}

fn served(name: &str, settings: &[(&str, &str)]) -> (Dir, Station) {
    let dir = Dir::new(name, settings);
    let station = Station::new(dir.config(), 64, 1).serve("service");
    (dir, station)
}

#[test]
fn a_holder_writes_into_the_servers_memory_and_announces_it() {
    let (dir, mut me) = served("aprw", &[]);
    let mut peer = Peer::start("holder", &dir, "rw");
    let link = connected(&mut me.node);
    let id = export(&mut me.node, link, BYTES, RW);
    let view = me.node.aperture_view(id).unwrap();
    assert!(me.node.explain(link).unwrap().contains("apertures exported: 1, of 1048576 bytes"));
    assert_eq!(announced(&mut me), (id.number, 5, 100_000));
    let mut bytes = vec![0; 100_000];
    view.read(5, &mut bytes).unwrap();
    assert!(bytes == pattern(100_000, 3));
    me.node.revoke_aperture(id).unwrap();
    assert_eq!(view.read(5, &mut bytes), Err(AccessError::Revoked));
    assert_eq!(me.node.revoke_aperture(id), Err(NoSuchAperture::Gone(id)), "twice");
    // Its pages count until the holder has let go of them, too.
    peer.expect("let go");
    until_node(&mut me.node, "nothing is left", |node| node.aperture_bytes() == (0, 0));
    peer.end();
}

#[test]
fn a_holder_reads_the_servers_memory_and_cannot_write_it() {
    let (dir, mut me) = served("apro", &[]);
    let mut peer = Peer::start("holder", &dir, "ro");
    let link = connected(&mut me.node);
    let ticket = ticket_of(&me.node, link);
    let id = export(&mut me.node, link, BYTES, RO);
    let view = me.node.aperture_view(id).unwrap();
    view.write(7, &pattern(100_000, 4)).unwrap();
    announce(&mut me, &ticket, id.number, 7, 100_000);
    announced(&mut me);
    me.node.revoke_aperture(id).unwrap();
    peer.expect("let go");
    // Memory that cannot be punched is given back when its holder has released it.
    until("it is given back", || me.node.aperture_bytes() == (0, 0));
    peer.end();
}

#[test]
fn a_client_exports_to_the_server_and_takes_it_back() {
    for (access, text) in [(RW, "rw"), (RO, "ro")] {
        let (dir, mut me) = served(&format!("apclient{text}"), &[]);
        let mut peer = Peer::start("owner", &dir, text);
        let link = connected(&mut me.node);
        let ticket = ticket_of(&me.node, link);
        let aperture = held(&mut me.node);
        assert_eq!((aperture.access(), aperture.bytes()), (access, BYTES));
        if access == RW {
            aperture.write(77, &pattern(300_000, 5)).unwrap();
            announce(&mut me, &ticket, aperture.id().number, 77, 300_000);
        } else {
            assert_eq!(announced(&mut me), (aperture.id().number, 9, 5000));
            let mut bytes = vec![0; 5000];
            aperture.read(9, &mut bytes).unwrap();
            assert!(bytes == pattern(5000, 6));
            assert_eq!(aperture.write_u64(0, 1), Err(AccessError::ReadOnly));
            announce(&mut me, &ticket, 0, 0, 0);
        }
        peer.expect("reclaimed");
        expect(&mut me.node, aperture.id(), ApertureEvent::Revoked);
        assert_eq!(aperture.read(0, &mut [0]), Err(AccessError::Revoked));
        peer.tell("end");
        peer.end();
    }
}

#[test]
fn bytes_that_were_reclaimed_stand_still_though_the_holder_goes_on_writing() {
    let (dir, mut me) = served("apreclaim", &[]);
    let mut peer = Peer::start("scribbler", &dir, "");
    let link = connected(&mut me.node);
    let id = export(&mut me.node, link, BYTES, RW);
    announced(&mut me);
    let view = me.node.aperture_view(id).unwrap();
    let area = me.node.reclaim_aperture(id).unwrap();
    let before = me.node.area(area).unwrap().to_vec();
    assert!(before[0] != 0);
    assert!(view.is_revoked());
    assert!(matches!(me.node.reclaim_aperture(id), Err(MemoryError::Aperture(_))));
    peer.expect("let go");
    assert!(me.node.area(area).unwrap() == before);
    until("nothing is left", || me.node.aperture_bytes() == (0, 0));
    peer.tell("end");
    peer.end();
    me.node.remove_area(area).unwrap();
}

#[test]
fn a_holder_that_dies_leaves_what_it_announced_and_costs_nothing() {
    let (dir, mut me) = served("apdeath", &[]);
    let peer = Peer::start("victim", &dir, "");
    let link = connected(&mut me.node);
    let rw = me.node.export(link, BYTES, RW).unwrap();
    let view = me.node.aperture_view(rw).unwrap();
    let _ro = me.node.export(link, BYTES, RO).unwrap();
    assert_eq!(closed(&mut me.node, link), CloseReason::Died);
    assert_eq!(announced(&mut me), (rw.number, 1000, 5000));
    let mut bytes = vec![0; 5000];
    view.read(1000, &mut bytes).unwrap();
    assert!(bytes == pattern(5000, 8));
    assert_eq!(me.node.apertures_exported().count(), 0);
    assert_eq!(me.node.revoke_aperture(rw), Err(NoSuchAperture::Gone(rw)));
    until("the read-only one is given back", || me.node.aperture_bytes() == (BYTES, 0));
    drop(view);
    until("nothing is left", || me.node.aperture_bytes() == (0, 0));
    peer.ends_killed();
}

#[test]
fn an_owner_that_dies_leaves_its_holder_working() {
    let (dir, mut me) = served("apowner", &[]);
    let peer = Peer::start("owner", &dir, "rw");
    let link = connected(&mut me.node);
    let aperture = held(&mut me.node);
    aperture.write(0, b"before").unwrap();
    peer.kill();
    assert_eq!(closed(&mut me.node, link), CloseReason::Died);
    assert!(aperture.is_revoked());
    assert_eq!(aperture.write(0, b"after"), Err(AccessError::Revoked));
    assert_eq!(me.node.apertures_held().count(), 0);
}

#[test]
fn a_holder_lets_go_and_the_owner_keeps_the_bytes() {
    let (dir, mut me) = served("aprelease", &[]);
    let mut peer = Peer::start("obedient", &dir, "");
    let link = connected(&mut me.node);
    let id = me.node.export(link, BYTES, RW).unwrap();
    peer.tell("hold");
    peer.expect("held");
    expect(&mut me.node, id, ApertureEvent::Ready);
    peer.tell("release");
    expect(&mut me.node, id, ApertureEvent::Released);
    let area = me.node.reclaim_aperture(id).unwrap();
    assert_eq!(&me.node.area(area).unwrap()[..4], b"done");
    peer.end();
}

#[test]
fn a_holder_that_does_not_let_go_of_a_read_only_one_costs_what_the_limit_says() {
    let limit = (2 * BYTES).to_string();
    let (dir, mut me) = served("aporphan", &[("APERTURE_BYTES_MAX", &limit)]);
    let mut peer = Peer::start("obedient", &dir, "");
    let link = connected(&mut me.node);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let id = me.node.export(link, BYTES, RO).unwrap();
        peer.tell("hold");
        peer.expect("held");
        expect(&mut me.node, id, ApertureEvent::Ready);
        ids.push(id);
    }
    // The holder makes no calls meanwhile, so it does not let go.
    for id in ids {
        me.node.revoke_aperture(id).unwrap();
    }
    assert_eq!(me.node.aperture_bytes(), (2 * BYTES, 2 * BYTES));
    let error = me.node.export(link, BYTES, RW).unwrap_err();
    assert!(matches!(error, ExportError::Bytes { .. }));
    assert_eq!(
        error.to_string(),
        "1048576 bytes beside the 2097152 exported exceed the limit of 2097152 \
         (HAMLYN_APERTURE_BYTES_MAX); 2097152 bytes are of revoked apertures that their holders \
         still have"
    );
    for _ in 0..2 {
        peer.tell("revoked");
        peer.expect("revoked");
    }
    // The holder closes descriptors on a thread of its own.
    until("both are given back", || me.node.aperture_bytes() == (0, 0));
    me.node.export(link, BYTES, RW).unwrap();
    peer.end();
}

#[test]
fn a_read_only_one_has_several_holders_each_revoked_for_itself_and_counts_once() {
    let limit = BYTES.to_string();
    let (dir, mut me) =
        served("apseveral", &[("APERTURE_BYTES_MAX", &limit), ("APERTURE_USER_BYTES_MAX", &limit)]);
    let mut holders = Vec::from([(); 3].map(|()| {
        let mut holder = Station::new(dir.config(), 64, 1);
        holder.connect("service");
        (connected(&mut me.node), holder)
    }));
    let links = [0, 1, 2].map(|i: usize| holders[i].0);
    let first = me.node.export(links[0], BYTES, RO).unwrap();
    let held_by = |me: &mut Node, of: &mut Station, id| {
        let aperture = held(&mut of.node);
        expect(me, id, ApertureEvent::Ready);
        aperture
    };
    let mut shown = vec![(first, held_by(&mut me.node, &mut holders[0].1, first))];
    for i in [1, 2] {
        let id = me.node.export_also(shown[i - 1].0, links[i]).unwrap();
        assert_eq!(id.link, links[i]);
        shown.push((id, held_by(&mut me.node, &mut holders[i].1, id)));
    }
    // All of the limit, and no more: it counts once, also for their user.
    assert_eq!(me.node.aperture_bytes(), (BYTES, 0));
    let views = [0, 1, 2].map(|i: usize| me.node.aperture_view(shown[i].0).unwrap());
    views[1].write_u64(8, 77).unwrap();
    for (_, aperture) in &shown {
        assert_eq!(aperture.read_u64(8), Ok(77));
        assert_eq!(aperture.write_u64(8, 1), Err(AccessError::ReadOnly));
    }

    // One is revoked, one goes: the last still has it.
    me.node.revoke_aperture(first).unwrap();
    expect(&mut holders[0].1.node, shown[0].1.id(), ApertureEvent::Revoked);
    assert_eq!(shown[0].1.read_u64(8), Err(AccessError::Revoked));
    assert_eq!(
        me.node.export_also(first, links[1]).unwrap_err().to_string(),
        NoSuchAperture::Gone(first).to_string()
    );
    holders.remove(1).1.node.close(LIMIT).unwrap();
    until_node(&mut me.node, "the link of the second ends", |node| {
        node.apertures_exported().count() == 1
    });
    views[0].write_u64(16, 78).unwrap();
    assert_eq!(shown[2].1.read_u64(16), Ok(78));
    assert_eq!(me.node.aperture_bytes(), (BYTES, 0));

    // With the last of them the memory goes; what is left stands still in an area.
    let area = me.node.reclaim_aperture(shown[2].0).unwrap();
    assert_eq!(me.node.area(area).unwrap()[8..24], [77u64, 78].map(u64::to_le_bytes).concat());
    assert_eq!(views[0].read_u64(8), Err(AccessError::Revoked));
    expect(&mut holders[1].1.node, shown[2].1.id(), ApertureEvent::Revoked);
    drop((shown, holders));
    until_node(&mut me.node, "nothing is left", |node| node.aperture_bytes() == (0, 0));
}

#[test]
fn one_that_is_reclaimed_is_taken_from_all_and_one_that_is_written_has_one_holder() {
    let (dir, mut me) = served("apall", &[]);
    let mut holders = [(); 2].map(|()| {
        let mut holder = Station::new(dir.config(), 64, 1);
        holder.connect("service");
        (connected(&mut me.node), holder)
    });
    let id = me.node.export(holders[0].0, 4096, RO).unwrap();
    let also = me.node.export_also(id, holders[1].0).unwrap();
    let apertures = [0, 1].map(|i: usize| held(&mut holders[i].1.node));
    me.node.reclaim_aperture(also).unwrap();
    assert_eq!(me.node.apertures_exported().count(), 0);
    for (aperture, (_, holder)) in apertures.iter().zip(&mut holders) {
        expect(&mut holder.node, aperture.id(), ApertureEvent::Revoked);
    }
    let alone = me.node.export(holders[0].0, 4096, RW).unwrap();
    let error = me.node.export_also(alone, holders[1].0).unwrap_err();
    assert!(matches!(error, ExportError::OneHolder(id) if id == alone), "{error}");
    assert!(me.node.explain(holders[1].0).unwrap().contains("has one holder"));
    // Its only holder has it still.
    held(&mut holders[0].1.node).write_u64(0, 1).unwrap();
}

/// Holders of a server's service, in this process, each with its link there.
fn holders<const N: usize>(dir: &Dir, me: &mut Station) -> [(LinkId, Station); N] {
    [(); N].map(|()| {
        let mut holder = Station::new(dir.config(), 64, 1);
        holder.connect("service");
        (connected(&mut me.node), holder)
    })
}

#[test]
fn one_that_others_may_write_has_several_writers_and_is_taken_from_all() {
    let (dir, mut me) = served("apwriters", &[]);
    let mut holders = holders::<2>(&dir, &mut me);
    let id = me.node.export(holders[0].0, 4096, RW).unwrap();
    expect(&mut me.node, id, ApertureEvent::Ready);
    me.node.let_others_write(id).unwrap();
    let also = me.node.export_also(id, holders[1].0).unwrap();
    expect(&mut me.node, also, ApertureEvent::Ready);
    let [one, other] = [0, 1].map(|i: usize| held(&mut holders[i].1.node));
    assert_eq!((one.access(), other.access()), (RW, RW));
    assert_eq!(me.node.aperture_bytes(), (4096, 0), "it counts once");
    let (one_stores, other_stores) = (one.stores().unwrap(), other.stores().unwrap());
    one_stores.store_u64(0, 1).unwrap();
    other_stores.store_u32(8, 2).unwrap();
    let view = me.node.aperture_view(also).unwrap();
    assert_eq!((view.read_u64(0), view.read_u64(8)), (Ok(1), Ok(2)));
    assert_eq!(one_stores.load_u32(8), Ok(2));
    let area = me.node.reclaim_aperture(id).unwrap();
    for (aperture, (_, holder)) in [one, other].iter().zip(&mut holders) {
        expect(&mut holder.node, aperture.id(), ApertureEvent::Revoked);
    }
    // They have their mappings still, and reach nobody.
    one_stores.store_u64(0, 9).unwrap();
    other_stores.store_u64(8, 9).unwrap();
    assert_eq!(me.node.area(area).unwrap()[..16], [1u64, 2].map(u64::to_le_bytes).concat());
    assert!(me.node.let_others_write(id).is_err());
    drop((one_stores, other_stores));
    until_node(&mut me.node, "nothing is left", |node| node.aperture_bytes() == (0, 0));
}

#[test]
fn stores_and_loads_of_words_are_checked_and_a_revocation_waits_for_none() {
    let (dir, mut me) = served("apstores", &[]);
    let [(link, mut holder)] = holders::<1>(&dir, &mut me);
    for access in [RW, RO] {
        let id = me.node.export(link, 8192, access).unwrap();
        expect(&mut me.node, id, ApertureEvent::Ready);
        let aperture = held(&mut holder.node);
        let (stores, owner) =
            (aperture.stores().unwrap(), me.node.aperture_view(id).unwrap().stores().unwrap());
        let writer = if access == RW { &stores } else { &owner };
        let reader = if access == RW { &owner } else { &stores };
        writer.store_u32(8188, 7).unwrap();
        writer.store_u64(8176, 8).unwrap();
        writer.write(100, b"some bytes").unwrap();
        let mut bytes = [0; 10];
        reader.read(100, &mut bytes).unwrap();
        assert_eq!(&bytes, b"some bytes");
        assert_eq!((reader.load_u32(8188), reader.load_u64(8176)), (Ok(7), Ok(8)));
        for (offset, error) in [(8192, "outside"), (u64::MAX, "outside"), (8186, "multiple")] {
            for result in [reader.load_u32(offset).map(drop), writer.store_u32(offset, 1)] {
                assert!(result.unwrap_err().to_string().contains(error), "{offset}");
            }
        }
        assert_eq!(writer.store_u64(4, 1), Err(AccessError::Unaligned(4)));
        assert!(writer.write(8190, b"abc").is_err() && reader.read(8193, &mut []).is_err());
        let may = stores.store_u64(0, 1);
        assert_eq!(may, if access == RW { Ok(()) } else { Err(AccessError::ReadOnly) });
        // By its address.
        // SAFETY: a whole word inside, which other threads access whole or not at all.
        let word = unsafe { reader.as_ptr().add(8176).cast::<u64>().read_volatile() };
        assert_eq!(word, 8);
        me.node.revoke_aperture(id).unwrap();
        expect(&mut holder.node, aperture.id(), ApertureEvent::Revoked);
        assert!(aperture.is_revoked());
        assert_eq!(aperture.stores().unwrap_err(), AccessError::Revoked);
        assert_eq!(stores.load_u64(8176), Ok(8), "until it is dropped");
    }
}

#[test]
fn pages_of_the_programs_own_are_exported_and_stay_where_they_are() {
    use hamlyn::AperturePages;
    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::mm::{MapFlags, ProtFlags};
    let (dir, mut me) = served("apown", &[]);
    let [(link, mut holder)] = holders::<1>(&dir, &mut me);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    for access in [RW, RO] {
        let file = rustix::fs::memfd_create("own", flags).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let write = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let own = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), 8192, write, MapFlags::SHARED, &file, 0)
        };
        let own = own.unwrap().cast::<u64>();
        // SAFETY: the mapping just made, of which only whole words are accessed.
        let put = |at: usize, value| unsafe { own.add(at).write_volatile(value) };
        // SAFETY: as above.
        let get = |at: usize| unsafe { own.add(at).read_volatile() };
        put(0, 11);
        // SAFETY: no other process has it, and no reference to its bytes is made.
        let pages = unsafe { AperturePages::of_file(&file) }.unwrap();
        assert_eq!(pages.bytes(), 8192);
        let id = me.node.export_pages(link, pages, access).unwrap();
        expect(&mut me.node, id, ApertureEvent::Ready);
        let aperture = held(&mut holder.node);
        assert_eq!((aperture.access(), aperture.read_u64(0)), (access, Ok(11)));
        put(1, 12);
        assert_eq!(aperture.read_u64(8), Ok(12));
        match access {
            RW => {
                aperture.write_u64(16, 13).unwrap();
                assert_eq!(get(2), 13);
            }
            _ => assert_eq!(aperture.write_u64(16, 13), Err(AccessError::ReadOnly)),
        }
        // Nobody changes its size any more.
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        me.node.revoke_aperture(id).unwrap();
        expect(&mut holder.node, aperture.id(), ApertureEvent::Revoked);
        put(3, 14);
        assert_eq!((get(0), get(3)), (11, 14), "the program's own view stays");
        // SAFETY: the mapping made above, which nothing refers to.
        unsafe { rustix::mm::munmap(own.cast(), 8192) }.unwrap();
        drop((file, aperture));
        until_node(&mut me.node, "nothing is left", |node| node.aperture_bytes() == (0, 0));
    }
    // SAFETY: as above, for each.
    let of = |file: &std::os::fd::OwnedFd| unsafe { AperturePages::of_file(file) }.unwrap_err();
    let file = rustix::fs::memfd_create("own", flags).unwrap();
    assert!(of(&file).to_string().contains("at least 1 byte"));
    rustix::fs::ftruncate(&file, 5000).unwrap();
    assert!(of(&file).to_string().contains("page"));
    rustix::fs::ftruncate(&file, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).unwrap();
    assert!(of(&file).to_string().contains("sealed against writing"));
    let null = std::fs::File::open("/dev/null").unwrap().into();
    assert!(of(&null).to_string().contains("not a memory file"));
    // One that takes no seals is no aperture.
    let file = rustix::fs::memfd_create("own", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    // SAFETY: as above.
    let pages = unsafe { AperturePages::of_file(&file) }.unwrap();
    let error = me.node.export_pages(link, pages, RW).unwrap_err();
    assert!(matches!(error, ExportError::Os { bytes: 4096, .. }), "{error}");
    assert_eq!(me.node.aperture_bytes(), (0, 0));
}

#[test]
fn what_is_no_aperture_is_refused_with_the_reason() {
    let settings = [("APERTURE_LINK_BYTES_MAX", "16384"), ("APERTURE_MAP_MAX", "8192")];
    let (dir, mut me) = served("aprefuse", &settings);
    let mut peer = Peer::start("obedient", &dir, "");
    let link = connected(&mut me.node);
    for bytes in [0, 1, 4095, 4097, u64::MAX] {
        let error = me.node.export(link, bytes, RW).unwrap_err();
        assert!(matches!(error, ExportError::Unaligned(n) if n == bytes), "{error}");
    }
    let error = me.node.export(link, 20480, RW).unwrap_err();
    assert_eq!(
        error.to_string(),
        "20480 bytes beside the 0 exported over this link exceed the limit of 16384 \
         (HAMLYN_APERTURE_LINK_BYTES_MAX)"
    );
    let text = me.node.explain(link).unwrap();
    assert!(
        text.contains("an aperture was refused: 20480 bytes read-write: 20480 bytes"),
        "{text}"
    );
    // More than the holder maps.
    let id = me.node.export(link, 12288, RW).unwrap();
    let (refused, what) = aperture_event(&mut me.node);
    assert!(refused == id && matches!(what, ApertureEvent::Refused(_)), "{what:?}");
    let text = me.node.explain(link).unwrap();
    let why =
        "the process holds no more apertures over this link, or of this user, or none so large";
    assert!(text.contains(why), "{text}");
    until("nothing is left", || me.node.aperture_bytes() == (0, 0));
    assert_eq!(me.node.aperture_view(id).unwrap_err(), NoSuchAperture::Gone(id));
    // A node's link to itself.
    let own = me.ticket;
    me.node.send(&own, b"", b"", LIMIT).unwrap();
    let own_link = me.node.links().find(|other| *other != link).unwrap();
    assert!(matches!(me.node.export(own_link, 4096, RW), Err(ExportError::ToSelf)));
    peer.tell("poll");
    peer.expect("polled");
    peer.end();
    assert!(closed(&mut me.node, link) != CloseReason::Died);
    assert!(matches!(me.node.export(link, 4096, RW), Err(ExportError::Link(_))));
}

#[test]
fn threads_of_the_holder_and_the_owner_need_no_node() {
    let dir = Dir::new("apthreads", &[]);
    let mut me = Station::new(dir.config(), 64, 1).serve("service");
    let mut other = Node::with_config(dir.config()).unwrap();
    other.connect("service", b"", Some(Duration::from_secs(20))).unwrap();
    let link = connected(&mut me.node);
    let id = me.node.export(link, BYTES, RW).unwrap();
    let aperture = held(&mut other);
    let view = me.node.aperture_view(id).unwrap();
    aperture.populate().unwrap();
    const WORDS: u64 = 2000;
    std::thread::scope(|scope| {
        for part in 0..2u64 {
            let (aperture, view) = (aperture.clone(), view.clone());
            let base = part * BYTES / 2;
            scope.spawn(move || {
                for n in 1..=WORDS {
                    aperture.write(base + 64, &[n as u8; 512]).unwrap();
                    aperture.write_u64(base, n).unwrap();
                    while aperture.read_u64(base + 8).unwrap() != n {
                        std::thread::yield_now();
                    }
                }
            });
            scope.spawn(move || {
                for n in 1..=WORDS {
                    while view.read_u64(base).unwrap() != n {
                        std::thread::yield_now();
                    }
                    let mut bytes = [0; 512];
                    view.read(base + 64, &mut bytes).unwrap();
                    assert_eq!(bytes, [n as u8; 512]);
                    view.write_u64(base + 8, n).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_forked_child_neither_reaches_an_aperture_nor_ends_it() {
    alone("a_forked_child_neither_reaches_an_aperture_nor_ends_it", || {
        let dir = Dir::new("apfork", &[]);
        let mut me = Station::new(dir.config(), 64, 1).serve("service");
        let mut other = Node::with_config(dir.config()).unwrap();
        other.connect("service", b"", Some(LONG)).unwrap();
        let link = connected(&mut me.node);
        let id = me.node.export(link, BYTES, RW).unwrap();
        let aperture = held(&mut other);
        let view = me.node.aperture_view(id).unwrap();
        aperture.write(0, b"before").unwrap();
        // SAFETY: the child has this thread alone, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let body = std::panic::AssertUnwindSafe(|| {
                assert_eq!(aperture.write(0, b"child"), Err(AccessError::Forked));
                assert_eq!(view.read(0, &mut [0]), Err(AccessError::Forked));
                assert!(view.is_revoked());
                assert!(matches!(me.node.export(link, 4096, RW), Err(ExportError::Forked(_))));
                assert_eq!(me.node.revoke_aperture(id), Err(NoSuchAperture::Gone(id)));
                assert!(matches!(me.node.reclaim_aperture(id), Err(MemoryError::Forked(_))));
                until("nothing is left", || me.node.aperture_bytes() == (0, 0));
                drop((aperture, view, other, me));
            });
            let result = std::panic::catch_unwind(body);
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        let mut status = -1;
        // SAFETY: waits for the child just made, into a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        let mut bytes = [0; 6];
        view.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"before");
        aperture.write(0, b"after!").unwrap();
        let area = me.node.reclaim_aperture(id).unwrap();
        assert_eq!(&me.node.area(area).unwrap()[..6], b"after!");
    });
}

#[test]
fn an_end_point_that_uses_no_aperture_holds_none() {
    let dir = Dir::new("apendpoint", &[]);
    let manager = || {
        let manager = Manager::with_config(dir.config()).unwrap();
        manager.start_progress().unwrap();
        manager
    };
    let counter = |manager: &Manager, name: &str| {
        let counters = manager.lock().counters();
        counters.iter().find(|row| row.0 == name).unwrap().1
    };
    let held = |manager: &Manager| manager.lock().apertures_held().count();
    let (there, here) = (manager(), manager());
    let receiver = StreamReceiver::new(&there, StreamConfig::default()).unwrap();
    let sender = StreamSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
    until("it has its sender", || receiver.connection().is_some());
    let links = [sender.connection().link(), receiver.connection().unwrap().link()];
    for (owner, holder, link) in [(&here, &there, links[0]), (&there, &here, links[1])] {
        let before = counter(holder, "control.apertures");
        owner.lock().export(link, 4096, RW).unwrap();
        until("it was held", || counter(holder, "control.apertures") > before);
        std::thread::sleep(Duration::from_millis(100));
        until("it is let go of", || held(holder) == 0);
    }
    // One that uses an aperture has one.
    let mut receiver =
        ApertureStreamReceiver::new(&there, StreamConfig::default(), 1 << 20).unwrap();
    let mut sender = ApertureStreamSender::grow(&here, &receiver.seed().unwrap(), LIMIT).unwrap();
    sender.send(b"first", LIMIT).unwrap();
    sender.flush(LIMIT).unwrap();
    receiver.receive(LIMIT).unwrap();
    until("it is held", || held(&here) == 1);
    let before = counter(&here, "control.apertures");
    let link = receiver.connection().unwrap().link();
    there.lock().export(link, 4096, RW).unwrap();
    until("a second was held", || counter(&here, "control.apertures") > before);
    std::thread::sleep(Duration::from_millis(100));
    until("and let go of", || held(&here) == 1);
    assert!(sender.explain().starts_with("records"), "{}", sender.explain());
    sender.send(&vec![1; 100_000], LIMIT).unwrap();
    assert!(receiver.receive(LIMIT).unwrap().is_volatile());
}
