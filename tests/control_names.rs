//! Names, directories, and the right to take a name.
#![cfg(feature = "os")]

#[macro_use]
mod control_help;

use control_help::*;
use hamlyn::control::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn serve(control: &Control, text: &str) -> Result<(), ServeError> {
    control.serve(&name(text), Access::SameUser, Accept::Ask)
}

fn connect(control: &Control, text: &str) -> ConnectError {
    control.connect_to(&name(text), b"", LONG, Wait::No).unwrap_err()
}

#[test]
fn a_name_in_use_is_refused_and_goes_on_being_served() {
    let dir = Dir::new("inuse");
    let (a, b) = (start(&dir.config()), start(&dir.config()));
    a.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    assert!(matches!(serve(&b, "x"), Err(ServeError::InUse { .. })));
    assert!(matches!(serve(&a, "x"), Err(ServeError::InUse { .. })));
    b.connect(&name("x"), b"", LONG).unwrap();
    // Another name of the same process; and the first again when it is free.
    serve(&a, "y").unwrap();
    assert!(a.stop_serving(&name("x")) && !a.stop_serving(&name("x")));
    serve(&b, "x").unwrap();
}

#[test]
fn a_name_that_a_dead_process_left_is_taken_over() {
    let dir = Dir::new("stale");
    drop(UnixListener::bind(dir.0.join("x")).unwrap());
    let control = start(&dir.config());
    assert!(matches!(connect(&control, "x"), ConnectError::Stale(_)));
    assert_eq!(list_services(&dir.config()).entries[0].is_alive, Some(false));
    serve(&control, "x").unwrap();
    assert_eq!(list_services(&dir.config()).entries[0].is_alive, Some(true));
    // Only the socket is there: no lock file, nothing to clean up.
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 1);
}

#[test]
fn only_what_nobody_serves_is_removed_as_stale() {
    let dir = Dir::new("remove-stale");
    let config = dir.config();
    drop(UnixListener::bind(dir.0.join("x")).unwrap());
    let entry = |n: usize| list_services(&config).entries.swap_remove(n);
    let stale = entry(0);
    // A process serves it by the time that it is to be removed.
    let control = start(&config);
    serve(&control, "x").unwrap();
    assert_eq!(entry(0).pid, Some(std::process::id()));
    assert!(!remove_stale(&config, &stale).unwrap());
    drop(control);
    assert!(!remove_stale(&config, &stale).unwrap(), "it is gone");
    drop(UnixListener::bind(dir.0.join("x")).unwrap());
    assert!(remove_stale(&config, &stale).unwrap());
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);
    // Neither what is no socket, nor what lies elsewhere.
    std::fs::write(dir.0.join("x"), "").unwrap();
    assert!(!remove_stale(&config, &stale).unwrap());
    let other = Dir::new("remove-stale-elsewhere");
    drop(UnixListener::bind(other.0.join("x")).unwrap());
    let elsewhere = hamlyn::control::ServiceEntry { path: other.0.join("x"), ..stale };
    assert!(!remove_stale(&config, &elsewhere).unwrap() && other.0.join("x").exists());
}

#[test]
fn of_many_that_race_for_a_stale_name_one_wins() {
    let dir = Dir::new("race");
    for _ in 0..20 {
        drop(UnixListener::bind(dir.0.join("x")).unwrap());
        let controls: Vec<_> = (0..4).map(|_| start(&dir.config())).collect();
        let winners = std::thread::scope(|scope| {
            let all: Vec<_> = controls.iter().map(|c| scope.spawn(move || serve(c, "x"))).collect();
            let results: Vec<_> = all.into_iter().map(|t| t.join().unwrap()).collect();
            for error in results.iter().filter_map(|r| r.as_ref().err()) {
                assert!(matches!(error, ServeError::InUse { .. }), "{error}");
            }
            results.iter().filter(|r| r.is_ok()).count()
        });
        assert_eq!(winners, 1);
        drop(controls);
        assert!(!dir.0.join("x").exists());
    }
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let dir = Dir::new("nosocket");
    std::fs::write(dir.0.join("x"), "precious").unwrap();
    let control = start(&dir.config());
    assert!(matches!(serve(&control, "x"), Err(ServeError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(dir.0.join("x")).unwrap(), "precious");
}

#[test]
fn a_name_taken_over_meanwhile_is_not_removed_by_the_one_before() {
    let dir = Dir::new("meanwhile");
    let a = start(&dir.config());
    serve(&a, "x").unwrap();
    std::fs::remove_file(dir.0.join("x")).unwrap();
    let b = start(&dir.config());
    serve(&b, "x").unwrap();
    drop(a);
    assert!(dir.0.join("x").exists());
}

#[test]
fn a_name_that_is_not_there_says_which_directories_are() {
    let dir = Dir::new("nothere");
    let control = start(&dir.config());
    let error = connect(&control, "x");
    let text = error.to_string();
    let ConnectError::Find(FindError::NotFound { looked, namesakes, .. }) = error else {
        panic!("{text}")
    };
    let there: Vec<_> = looked.iter().map(|at| (at.directory.as_path(), at.is_there)).collect();
    assert_eq!(there, [(&*dir.0, true), (&*dir.0.join("shared"), false)]);
    let own = format!("the directory {} is there and has no such name", dir.0.display());
    assert!(text.contains(&own) && text.contains("hamlyn setup"), "{text}");
    assert!(namesakes.is_empty(), "{namesakes:?}");
    let error = connect(&control, "no-such-user-here@x");
    assert!(
        matches!(error, ConnectError::Find(FindError::Directory(DirectoryError::NoUser(_)))),
        "{error}"
    );
}

// A call without time to wait returns the result of one look, not that its time limit has passed.
#[test]
fn a_limit_of_no_time_is_time_for_one_look() {
    let dir = Dir::new("one-look");
    let (control, nobody) = (start(&dir.config()), name("nobody"));
    for wait in [Wait::No, Wait::ForName] {
        for _ in 0..50 {
            let error = control.connect_to(&nobody, b"", Duration::ZERO, wait).unwrap_err();
            let is_found = matches!(error, ConnectError::Find(FindError::NotFound { .. }));
            assert!(is_found, "{error}");
        }
    }
}

#[test]
fn a_name_of_another_user_is_named_where_ones_own_is_not_there() {
    let dir = Dir::new("namesake");
    // Only root can make places for others.
    if !is_root() {
        return;
    }
    let others = dir.0.join("shared/4711");
    std::fs::create_dir_all(&others).unwrap();
    std::os::unix::fs::chown(&others, Some(4711), None).unwrap();
    // A file is no service; nor is what is called otherwise.
    std::fs::create_dir_all(dir.0.join("shared/4712")).unwrap();
    std::fs::write(dir.0.join("shared/4712/x"), b"").unwrap();
    drop(UnixListener::bind(others.join("x")).unwrap());
    let control = start(&dir.config());
    let text = connect(&control, "x").to_string();
    assert!(text.ends_with("; there is 4711@x"), "{text}");
    let text = connect(&control, "y").to_string();
    assert!(!text.contains("there is 4711"), "{text}");
}

#[test]
fn a_name_is_waited_for_within_the_limit_whatever_is_missing() {
    let dir = Dir::new("waited");
    let config = dir.config().dir(dir.0.join("later"));
    let client = start(&config);
    let begin = || client.begin_connect(&name("x"), b"", LONG, Wait::ForName).unwrap();
    let connected = |control: &Control| match next(control) {
        ControlEvent::Connected(link) => link,
        other => panic!("{other:?}"),
    };
    // Neither the directory nor the name.
    let token = begin();
    assert!(!dir.0.join("later").exists());
    let server = start(&config);
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    assert_eq!(connected(&client).token, token);
    // A name that a dead process left.
    drop(server);
    assert!(matches!(next(&client), ControlEvent::Closed { .. }));
    drop(UnixListener::bind(dir.0.join("later/x")).unwrap());
    let token = begin();
    let server = start(&config);
    server.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    assert_eq!(connected(&client).token, token);
}

#[test]
fn a_name_that_never_comes_is_an_error_at_the_limit_which_says_why() {
    let dir = Dir::new("never");
    let client = start(&dir.config());
    let limit = Duration::from_millis(30);
    let error = client.connect(&name("x"), b"", limit).unwrap_err();
    assert!(matches!(error, ConnectError::Find(FindError::NotFound { .. })), "{error}");
    drop(UnixListener::bind(dir.0.join("x")).unwrap());
    let error = client.connect(&name("x"), b"", limit).unwrap_err();
    assert!(matches!(error, ConnectError::Stale(_)), "{error}");
    // No client is left waiting; nor does it hold a place.
    assert_eq!(events(&client).len(), 0);
}

#[test]
fn a_long_directory_does_not_make_a_path_too_long() {
    let dir = Dir::new("long");
    let long = dir.0.join("d".repeat(120));
    std::fs::create_dir(&long).unwrap();
    set_mode(&long, 0o700);
    let config = dir.config().dir(&long);
    let (a, b) = (start(&config), start(&config));
    a.serve(&name("x"), Access::SameUser, Accept::Automatic(vec![])).unwrap();
    b.connect(&name("x"), b"", LONG).unwrap();
}

#[test]
fn a_directory_that_others_can_change_is_not_used() {
    let dir = Dir::new("open");
    let control = start(&dir.config());
    set_mode(&dir.0, 0o770);
    let error = serve(&control, "x").unwrap_err();
    assert!(matches!(error, ServeError::Directory(DirectoryError::Mode { .. })), "{error}");
    let error = connect(&control, "x");
    assert!(
        matches!(error, ConnectError::Find(FindError::Directory(DirectoryError::Mode { .. }))),
        "{error}"
    );
    set_mode(&dir.0, 0o700);
    serve(&control, "x").unwrap();
}

#[test]
fn a_directory_that_is_a_link_is_not_used() {
    let dir = Dir::new("link");
    std::fs::create_dir(dir.0.join("real")).unwrap();
    symlink("real", dir.0.join("link")).unwrap();
    let control = start(&dir.config().dir(dir.0.join("link")));
    let error = serve(&control, "x").unwrap_err();
    assert!(matches!(error, ServeError::Directory(DirectoryError::Link { .. })), "{error}");
}

#[test]
fn serving_as_another_user_is_not_permitted() {
    let dir = Dir::new("other");
    let control = start(&dir.config());
    let other = rustix::process::geteuid().as_raw() + 1;
    let error = serve(&control, &format!("{other}@x")).unwrap_err();
    assert!(matches!(error, ServeError::NotPermitted { .. }), "{error}");
}

#[test]
fn the_shared_directory_is_made_once_and_checked() {
    let dir = Dir::new("shared");
    let config = dir.config();
    let control = start(&config);
    let serve = || control.serve(&name("x"), Access::Anyone, Accept::Automatic(vec![]));
    let error = serve().unwrap_err();
    assert!(error.to_string().contains("hamlyn setup"), "{error}");
    if !is_root() {
        assert!(setup_shared_dir(&config).is_err());
        skipped!("making the shared directory needs root");
        return;
    }
    let path = setup_shared_dir(&config).unwrap();
    setup_shared_dir(&config).unwrap();
    serve().unwrap();
    // By the user's number, by name, and without.
    let client = start(&config);
    for text in ["0@x", "root@x", "x"] {
        client.connect(&name(text), b"", LONG).unwrap();
    }
    let services = list_services(&config);
    assert_eq!((&services.entries[0].name[..], services.entries[0].uid), ("0@x", Some(0)));
    // Not sticky: any user could put another's directory aside.
    set_mode(&path, 0o777);
    assert!(setup_shared_dir(&config).is_err());
    let error = connect(&client, "0@x");
    assert!(
        matches!(error, ConnectError::Find(FindError::Directory(DirectoryError::Mode { .. }))),
        "{error}"
    );
    // Another user's.
    std::os::unix::fs::chown(&path, Some(4321), None).unwrap();
    set_mode(&path, 0o1777);
    let error = connect(&client, "0@x");
    assert!(
        matches!(error, ConnectError::Find(FindError::Directory(DirectoryError::Owner { .. }))),
        "{error}"
    );
}

#[test]
fn a_directory_of_a_user_that_belongs_to_another_is_not_used() {
    if !is_root() {
        skipped!("needs root");
        return;
    }
    let dir = Dir::new("squatted");
    let config = dir.config();
    let shared = setup_shared_dir(&config).unwrap();
    let squatted = shared.join("0");
    std::fs::create_dir(&squatted).unwrap();
    std::os::unix::fs::chown(&squatted, Some(4321), None).unwrap();
    let control = start(&config);
    let error = control.serve(&name("x"), Access::Anyone, Accept::Ask).unwrap_err();
    assert!(matches!(error, ServeError::Directory(DirectoryError::Owner { .. })), "{error}");
    let error = connect(&control, "0@x");
    assert!(
        matches!(error, ConnectError::Find(FindError::Directory(DirectoryError::Owner { .. }))),
        "{error}"
    );
}

#[test]
fn a_user_with_many_names_or_many_directories_hides_none_of_another() {
    if !is_root() {
        skipped!("making places of other users needs root");
        return;
    }
    let dir = Dir::new("many-names");
    let config = dir.config();
    let shared = setup_shared_dir(&config).unwrap();
    let place = |owner: u32, name: &str| {
        std::fs::create_dir(shared.join(name)).unwrap();
        std::os::unix::fs::chown(shared.join(name), Some(owner), None).unwrap();
    };
    // Names that look like other users' numbers are no directories of theirs.
    (5000..5400).for_each(|user: u32| place(4711, &user.to_string()));
    place(4711, "4711");
    place(4712, "4712");
    for i in 0..1500 {
        drop(UnixListener::bind(shared.join(format!("4711/n{i}"))).unwrap());
    }
    let alive = UnixListener::bind(shared.join("4712/x")).unwrap();
    std::fs::hard_link(shared.join("4712/x"), shared.join("4712/y")).unwrap();
    let services = list_services(&config);
    let count = |of: &str| services.entries.iter().filter(|s| s.name.starts_with(of)).count();
    assert!((1..=1024).contains(&count("4711@")), "{}", count("4711@"));
    assert_eq!(services.cut, [shared.join("4711")]);
    assert_eq!((count("4712@"), count("5")), (2, 0));
    let of_4712: Vec<_> = services.entries.iter().filter(|s| s.name.starts_with("4712@")).collect();
    assert_eq!(of_4712[0].socket, of_4712[1].socket);
    drop(alive);
}
