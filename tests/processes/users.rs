//! Users who do not trust one another, and processes of separate namespaces, exchange messages like
//! any two processes; a process without the right cannot.

use crate::support::*;
use hamlyn::control::{Accept, Access};
use hamlyn::node::ApertureEvent;
use hamlyn::{AccessError, Aperture, ApertureAccess, Event, LinkId, Node};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// A group that nothing else has.
const GROUP: u32 = 54_777;
const BYTES: usize = 300_000;

const SETTINGS: &[(&str, &str)] =
    &[("BULK_AFTER_BYTES", "10000"), ("BULK_RING_BYTES", "65536"), ("APERTURES_OF_OTHERS", "yes")];

fn data(round: u64, from_server: bool) -> Vec<u8> {
    pattern(BYTES, round * 2 + from_server as u64)
}

/// The next long message goes through a bulk ring.
fn has_bulk_ring(node: &mut Node, link: LinkId) {
    until_node(node, "there is a bulk ring", |node| {
        node.explain(link).unwrap().contains("in a bulk ring")
    });
}

/// The side that was connected to: sends and receives long messages, so that both directions get
/// their bulk rings. Says who the other one is.
fn converse(station: &mut Station) {
    let link = connected(&mut station.node);
    let ticket = ticket_of(&station.node, link);
    let peer = station.node.peer(link).unwrap().clone();
    for round in 0..4 {
        station.recv();
        assert!(station.bytes() == data(round, false), "round {round}");
        station.node.send(&ticket, &data(round, true), b"", LIMIT).unwrap();
        has_bulk_ring(&mut station.node, link);
    }
    say(&format!("{:?} {:?}", peer.uid, peer.gid));
    // The other one has it all before this one ends.
    assert_eq!(closed(&mut station.node, link), hamlyn::node::CloseReason::Closed);
}

/// The side that connects.
fn converse_with(config: hamlyn::Config, service: &str) {
    // A name that is not there, or not to be seen, is an error at once.
    let mut me = Station::new(config.wait_for_names(false), BYTES, 1);
    let link = match me.node.connect(service, &me.ticket.to_bytes(), Some(LONG)) {
        Ok(link) => link,
        Err(e) => return say(&format!("error: {e}")),
    };
    let ticket = ticket_of(&me.node, link);
    for round in 0..4 {
        me.node.send(&ticket, &data(round, false), b"", LIMIT).unwrap();
        has_bulk_ring(&mut me.node, link);
        me.recv();
        assert!(me.bytes() == data(round, true), "round {round}");
    }
    let peer = me.node.peer(link).unwrap().clone();
    say(&format!("{:?} {:?}", peer.uid, peer.gid));
    me.node.close(LIMIT).unwrap();
}

fn serve(station: &mut Station, name: &str, access: Access) {
    let greeting = station.ticket.to_bytes().to_vec();
    station.node.serve(name, access, Accept::Automatic(greeting)).unwrap();
}

fn next_of(node: &mut Node) -> Option<(hamlyn::ApertureId, ApertureEvent)> {
    std::iter::from_fn(|| node.next_event()).find_map(|event| match event {
        Event::Aperture { aperture, what } => Some((aperture, what)),
        _ => None,
    })
}

/// The next aperture of the other side's.
fn held(node: &mut Node) -> Aperture {
    let mut found = None;
    until_node(node, "an aperture is held", |node| {
        if let Some((id, ApertureEvent::Held)) = next_of(node) {
            found = Some(node.aperture(id).unwrap());
        }
        found.is_some()
    });
    found.unwrap()
}

fn use_aperture(aperture: &Aperture, access: ApertureAccess) {
    let wanted = match access {
        ApertureAccess::ReadWrite => Ok(()),
        ApertureAccess::ReadOnly => Err(AccessError::ReadOnly),
    };
    assert_eq!(aperture.access(), access);
    assert_eq!(aperture.write(0, b"used"), wanted);
    let mut bytes = [1; 8];
    aperture.read(8184, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
}

/// Not a test: what the other processes do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    match role.name.as_str() {
        "connect" => converse_with(role.config(), &role.args[0]),
        "several" => {
            let mut me = Station::new(role.config(), 64, 1);
            let links = [(); 3].map(|()| me.node.connect(&role.args[0], b"", Some(LONG)));
            let errors: Vec<_> = links.iter().filter_map(|l| l.as_ref().err()).collect();
            say(&if errors.is_empty() { "three".into() } else { format!("{errors:?}") });
            role.wait_for("end");
        }
        // One that both write, to a process that shares none with others; it says what came of it.
        "offers" => {
            let config = role.config().apertures_of_others(true);
            let mut node = Node::with_config(config).unwrap();
            let link = node.connect(&role.args[0], b"", Some(LONG)).unwrap();
            node.export(link, 4096, ApertureAccess::ReadWrite).unwrap();
            let mut what = None;
            until_node(&mut node, "something came of it", |node| {
                what = next_of(node);
                what.is_some()
            });
            say(&format!("{:?}", what.unwrap().1));
            role.wait_for("end");
        }
        "apertures" => {
            let mut node = Node::with_config(role.config()).unwrap();
            let link = node.connect(&role.args[0], b"", Some(LONG)).unwrap();
            for access in [ApertureAccess::ReadWrite, ApertureAccess::ReadOnly] {
                let theirs = held(&mut node);
                use_aperture(&theirs, access);
                node.release_aperture(theirs.id()).unwrap();
                let own = node.export(link, 8192, access).unwrap();
                until_node(&mut node, "it is let go of", |node| {
                    next_of(node).is_some_and(|event| event.1 == ApertureEvent::Released)
                });
                let mut word = [0; 4];
                node.aperture_view(own).unwrap().read(0, &mut word).unwrap();
                let wrote = access == ApertureAccess::ReadWrite;
                assert_eq!(&word, if wrote { b"used" } else { &[0; 4] });
                node.revoke_aperture(own).unwrap();
            }
            // Unmapped by threads that nothing waits for.
            until("nothing is left of this one's", || node.aperture_bytes() == (0, 0));
            say(&format!("{:?}", node.aperture_bytes()));
        }
        "serve" => {
            let mut station = Station::new(role.config(), BYTES, 1);
            let access = if role.args[0] == "anyone" { Access::Anyone } else { Access::SameUser };
            serve(&mut station, "service", access);
            say("serving");
            converse(&mut station);
        }
        other => panic!("no role {other}"),
    }
}

// ---- users

#[test]
fn another_user_sends_and_receives_where_everybody_may_and_each_sees_who_the_other_is() {
    let Some((dir, exe)) = for_users("anyone", SETTINGS) else { return };
    let mut station = Station::new(dir.config(), BYTES, 1);
    serve(&mut station, "service", Access::Anyone);
    let mut user = other_user(USER, "connect", &dir, &exe, "root@service", &[]);
    let link = connected(&mut station.node);
    let peer = station.node.peer(link).unwrap().clone();
    assert_eq!((peer.uid, peer.gid), (Some(USER), Some(USER)));
    let ticket = ticket_of(&station.node, link);
    for round in 0..4 {
        station.recv();
        assert!(station.bytes() == data(round, false), "round {round}");
        station.node.send(&ticket, &data(round, true), b"", LIMIT).unwrap();
    }
    user.expect("Some(0) Some(0)");
    closed(&mut station.node, link);
    user.end();
}

#[test]
fn users_export_apertures_to_one_another() {
    let Some((dir, exe)) = for_users("apertures", SETTINGS) else { return };
    let mut node = Node::with_config(dir.config()).unwrap();
    node.serve("service", Access::Anyone, Accept::Automatic(vec![])).unwrap();
    let mut user = other_user(USER, "apertures", &dir, &exe, "root@service", &[]);
    let link = connected(&mut node);
    for access in [ApertureAccess::ReadWrite, ApertureAccess::ReadOnly] {
        let own = node.export(link, 8192, access).unwrap();
        let theirs = held(&mut node);
        use_aperture(&theirs, access);
        node.release_aperture(theirs.id()).unwrap();
        node.revoke_aperture(own).unwrap();
    }
    until("nothing is left of this one's", || node.aperture_bytes() == (0, 0));
    user.expect("(0, 0)");
    user.end();
}

#[test]
fn a_service_of_another_user_is_reached_by_its_name() {
    let Some((dir, exe)) = for_users("theirs", SETTINGS) else { return };
    let mut user = other_user(USER, "serve", &dir, &exe, "anyone", &[]);
    user.expect("serving");
    let mut me = Station::new(dir.config(), BYTES, 1);
    let (link, ticket) = me.connect(&format!("{USER}@service"));
    assert_eq!(me.node.peer(link).unwrap().uid, Some(USER));
    for round in 0..4 {
        me.node.send(&ticket, &data(round, false), b"", LIMIT).unwrap();
        me.recv();
        assert!(me.bytes() == data(round, true), "round {round}");
    }
    me.node.close(LIMIT).unwrap();
    user.expect("Some(0) Some(0)");
    user.end();
    // A name is its user's alone.
    let mut node = Node::with_config(dir.config()).unwrap();
    let error = node.serve(&format!("{USER}@mine"), Access::Anyone, Accept::Ask).unwrap_err();
    assert!(error.to_string().contains("not permitted"), "{error}");
}

#[test]
fn a_group_admits_its_members_and_nobody_else() {
    let Some((dir, exe)) = for_users("group", SETTINGS) else { return };
    let mut station = Station::new(dir.config(), BYTES, 1);
    serve(&mut station, "service", Access::Group(GROUP));
    let mut stranger = other_user(USER, "connect", &dir, &exe, "0@service", &[GROUP + 1]);
    let said = stranger.says();
    assert!(said.starts_with("error") && said.contains("not permitted"), "{said}");
    stranger.end();
    let mut member = other_user(USER, "connect", &dir, &exe, "0@service", &[GROUP + 1, GROUP]);
    let link = connected(&mut station.node);
    assert_eq!(station.node.peer(link).unwrap().uid, Some(USER));
    let ticket = ticket_of(&station.node, link);
    for round in 0..4 {
        station.recv();
        station.node.send(&ticket, &data(round, true), b"", LIMIT).unwrap();
    }
    member.expect("Some(0) Some(0)");
    member.end();
}

#[test]
fn a_service_for_the_same_user_refuses_another_one() {
    let Some((dir, exe)) = for_users("same", SETTINGS) else { return };
    let mut station = Station::new(dir.config(), BYTES, 1);
    serve(&mut station, "service", Access::SameUser);
    for name in ["service", "root@service"] {
        let mut user = other_user(USER, "connect", &dir, &exe, name, &[0]);
        let said = user.says();
        assert!(said.starts_with("error"), "{said}");
        user.end();
    }
    // Even if a user opens the way to the socket.
    let socket = dir.path.join("service");
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::os::unix::fs::chown(&dir.path, Some(USER), None).unwrap();
    let mut user = other_user(USER, "connect", &dir, &exe, "service", &[]);
    let said = user.says();
    assert!(said.starts_with("error"), "{said}");
    user.end();
    assert_eq!(counter(&station.node, "links_opened"), 0);
    assert!(station.node.next_event().is_none());
}

// ---- namespaces

fn can(before: &[&str]) -> bool {
    let probe = Command::new(before[0]).args(&before[1..]).arg("true").output();
    let can = probe.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        skipped(&format!("{}: {probe:?}", before.join(" ")));
    }
    can
}

/// Each process in namespaces of its own; they share the runtime directory and nothing else.
#[test]
fn processes_of_separate_namespaces_send_and_receive() {
    let kernel =
        ["unshare", "--fork", "--kill-child", "--pid", "--ipc", "--net", "--mount"].as_slice();
    let with = |more: &[&'static str]| [kernel, more].concat();
    let rows: &[(&str, Vec<&str>, &str)] = &[
        ("kernel", with(&[]), "Some(0) Some(0)"),
        ("mapped", with(&["--user", "--map-root-user"]), "Some(0) Some(0)"),
        ("unmapped", with(&["--user"]), "None None"),
    ];
    for (name, before, wanted) in rows {
        if !can(before) {
            continue;
        }
        if !rustix::process::geteuid().is_root() && *name == "kernel" {
            continue;
        }
        let dir = Dir::new(&format!("namespaces-{name}"), SETTINGS);
        let start = |role: &str, args: &str| {
            let mut command = Peer::command(role, &dir, args, before);
            command.env("HAMLYN_UNDUMPABLE", "yes");
            Peer::run(role, command)
        };
        let mut server = start("serve", "same");
        server.expect("serving");
        let mut client = start("connect", "service");
        client.expect(wanted);
        server.expect(wanted);
        client.end();
        server.end();
    }
}

/// One process inside, this one outside.
#[test]
fn a_process_in_namespaces_and_one_outside_send_and_receive() {
    let before = &["unshare", "--fork", "--kill-child", "--user", "--pid", "--ipc", "--net"];
    if !can(before) {
        return;
    }
    let dir = Dir::new("inside", SETTINGS);
    let mut station = Station::new(dir.config(), BYTES, 1);
    serve(&mut station, "service", Access::SameUser);
    let mut inside = Peer::run("inside", Peer::command("connect", &dir, "service", before));
    let link = connected(&mut station.node);
    let ticket = ticket_of(&station.node, link);
    for round in 0..4 {
        station.recv();
        assert!(station.bytes() == data(round, false), "round {round}");
        station.node.send(&ticket, &data(round, true), b"", LIMIT).unwrap();
    }
    inside.expect("None None");
    inside.end();
}
#[test]
fn a_process_of_another_namespace_has_several_links() {
    let before = &["unshare", "--fork", "--kill-child", "--pid"];
    if !can(before) {
        return;
    }
    let dir = Dir::new("several", SETTINGS);
    let mut station = Station::new(dir.config(), BYTES, 1);
    serve(&mut station, "service", Access::SameUser);
    let mut inside = Peer::run("inside", Peer::command("several", &dir, "service", before));
    let said = inside.says();
    let first = connected(&mut station.node);
    if station.node.peer(first).unwrap().process.is_none() {
        return skipped("before Linux 6.9 a process that cannot be seen has one link");
    }
    assert_eq!(said, "three");
    until_node(&mut station.node, "the links are there", |node| node.links().count() == 3);
    inside.end();
}

/// Within a namespace the owner of a directory is unknown if another user made `<shared>/<uid>`.
#[test]
fn within_a_namespace_nobody_stands_in_for_another_user() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can be several users");
    }
    let before = &["unshare", "--user", "--map-root-user"];
    if !can(before) {
        return;
    }
    let dir = Dir::new("stands-in", SETTINGS);
    std::fs::set_permissions(&dir.path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let shared = hamlyn::control::setup_shared_dir(&dir.config()).unwrap();
    // User 54400 has made what is to be that of user 54402.
    let place = shared.join("54402");
    std::fs::create_dir(&place).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o711)).unwrap();
    std::os::unix::fs::chown(&place, Some(54_400), Some(54_400)).unwrap();
    let says = || {
        let command = Peer::command("connect", &dir, "54402@trap", before);
        let mut inside = Peer::run("inside", command);
        let said = inside.says();
        inside.end();
        said
    };
    let said = says();
    assert!(said.contains("another user namespace") && said.contains("chmod 755"), "{said}");
    // Where root alone can have made it, it is as root says; there is no service.
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = says();
    assert!(said.starts_with("error") && !said.contains("another user namespace"), "{said}");
}

/// Either end of memory that both write can stop the other: between users only where both say so.
#[test]
fn read_write_apertures_are_shared_between_users_only_where_both_say_so() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can be several users");
    }
    let dir = Dir::new("of-others", &[]);
    std::fs::set_permissions(&dir.path, std::fs::Permissions::from_mode(0o755)).unwrap();
    hamlyn::control::setup_shared_dir(&dir.config()).unwrap();
    let mut station = Station::new(dir.config(), 64, 1);
    serve(&mut station, "service", Access::Anyone);
    let before = &["setpriv", "--reuid=54400", "--regid=54400", "--clear-groups"];
    if !can(before) {
        return;
    }
    let command = Peer::command("offers", &dir, "0@service", before);
    let mut other = Peer::run("offers", command);
    let link = connected(&mut station.node);
    // The other's offers are refused; an offer to it is not even sent.
    let said = loop {
        station.node.poll().unwrap();
        while let Some(event) = station.node.next_event() {
            assert!(!matches!(event, Event::Aperture { .. }), "{event:?}");
        }
        if let Some(said) = other.has_said() {
            break said;
        }
        std::thread::yield_now();
    };
    assert!(said.contains("Refused"), "{said}");
    let error = station.node.export(link, 4096, ApertureAccess::ReadWrite).unwrap_err();
    assert!(error.to_string().contains("HAMLYN_APERTURES_OF_OTHERS"), "{error}");
    station.node.export(link, 4096, ApertureAccess::ReadOnly).unwrap();
    other.tell("end");
    other.end();
}
