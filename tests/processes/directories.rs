//! Attacks by another user on the directories of names.

use crate::support::*;
use hamlyn::control::{Accept, Access, setup_shared_dir, setup_user_dir};
use hamlyn::{Config, Node};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Not a test: what the other processes do.
#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    let path = || PathBuf::from(&role.args[0]);
    match role.name.as_str() {
        // Makes what another user will want to make.
        "mkdir" => {
            std::fs::create_dir(path()).unwrap();
            std::fs::write(path().join("occupied"), "").unwrap();
            say("made");
        }
        "symlink" => {
            symlink("/tmp", path()).unwrap();
            say("made");
        }
        // Locks everything that can be opened there.
        "lock" => {
            let open = |path: &Path| std::fs::File::open(path);
            let directory = open(&path()).unwrap();
            directory.lock().unwrap();
            say("locked");
            while role.hear().is_some() {
                // And what a process that takes a name leaves there for a moment.
                let mut more = 0;
                for entry in std::iter::repeat_with(|| std::fs::read_dir(path()).unwrap())
                    .take(2000)
                    .flatten()
                    .flatten()
                    .filter(|entry| entry.file_name() == ".lock")
                {
                    more += open(&entry.path()).is_ok() as u32;
                }
                say(&format!("{more} more"));
            }
        }
        "serve" => {
            let access = if role.args[0] == "anyone" { Access::Anyone } else { Access::SameUser };
            let mut node = Node::with_config(Config::from_env().unwrap()).unwrap();
            match node.serve("service", access, Accept::Automatic(vec![])) {
                Ok(()) => say("serving"),
                Err(e) => say(&e.to_string()),
            }
            role.wait_for("end");
        }
        other => panic!("no role {other}"),
    }
}

#[test]
fn another_user_who_may_read_the_directory_keeps_nobody_from_taking_and_giving_up_names() {
    let Some((dir, exe)) = for_users("locked", &[]) else { return };
    std::fs::set_permissions(&dir.path, PermissionsExt::from_mode(0o755)).unwrap();
    let mut attacker = other_user(USER, "lock", &dir, &exe, dir.path.to_str().unwrap(), &[]);
    attacker.expect("locked");
    for _ in 0..2 {
        attacker.tell("go on");
        for _ in 0..20 {
            let mut node = Node::with_config(dir.config()).unwrap();
            node.serve("x", Access::SameUser, Accept::Automatic(vec![])).unwrap();
            assert!(dir.path.join("x").exists());
            drop(node);
            assert!(!dir.path.join("x").exists(), "the name was left behind");
        }
        attacker.expect("0 more");
    }
    attacker.end();
    // No lock file either.
    assert!(!dir.path.join(".lock").exists());
}

#[test]
fn a_lock_file_that_a_dead_process_left_is_no_obstacle() {
    let dir = Dir::new("left", &[]);
    std::fs::write(dir.path.join(".lock"), "").unwrap();
    let mut node = Node::with_config(dir.config()).unwrap();
    node.serve("x", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    assert!(!dir.path.join(".lock").exists());
}

#[test]
fn whoever_takes_a_users_place_in_the_shared_directory_is_named_and_root_moves_it_aside() {
    let Some((dir, exe)) = for_users("squatted", &[]) else { return };
    let shared = dir.path.join("shared");
    for how in ["mkdir", "symlink"] {
        let place = shared.join(USER.to_string());
        let args = place.to_str().unwrap();
        let mut attacker = other_user(OTHER_USER, how, &dir, &exe, args, &[]);
        attacker.expect("made");
        attacker.end();
        let mut victim = other_user(USER, "serve", &dir, &exe, "anyone", &[]);
        let error = victim.says();
        assert!(error.contains("`hamlyn setup USER`, run by root"), "{error}");
        if how == "mkdir" {
            assert!(error.contains(&format!("belongs to user {OTHER_USER}")), "{error}");
        }
        victim.end();
        assert_eq!(setup_user_dir(&dir.config(), &USER.to_string()).unwrap(), place);
        // Twice is as good as once.
        setup_user_dir(&dir.config(), &USER.to_string()).unwrap();
        let mut victim = other_user(USER, "serve", &dir, &exe, "anyone", &[]);
        victim.expect("serving");
        let mut me = Node::with_config(dir.config()).unwrap();
        me.connect(&format!("{USER}@service"), b"", Some(LONG)).unwrap();
        drop(me);
        victim.end();
        let made = std::fs::symlink_metadata(&place).unwrap();
        assert_eq!((made.uid(), made.mode() & 0o7777), (USER, 0o711));
        // For the next round; the directory that was moved aside is still there, and is no user's.
        std::fs::remove_dir_all(&place).unwrap();
    }
    let names = std::fs::read_dir(&shared).unwrap().flatten().map(|entry| entry.file_name());
    let names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    assert!(names.len() == 2 && names.iter().all(|name| name.contains("taken-by")), "{names:?}");
    let nobody = setup_user_dir(&dir.config(), "no-such-user-here").unwrap_err();
    assert!(nobody.to_string().contains("no user"), "{nobody}");
}

#[test]
fn a_shared_directory_in_which_root_alone_makes_places_serves_those_who_have_one() {
    let Some((dir, exe)) = for_users("closed", &[]) else { return };
    let shared = dir.path.join("shared");
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o755)).unwrap();
    let mut victim = other_user(USER, "serve", &dir, &exe, "anyone", &[]);
    let error = victim.says();
    assert!(error.contains("`hamlyn setup USER`, run by root"), "{error}");
    victim.end();
    setup_user_dir(&dir.config(), &USER.to_string()).unwrap();
    let mut victim = other_user(USER, "serve", &dir, &exe, "anyone", &[]);
    victim.expect("serving");
    let mut me = Node::with_config(dir.config()).unwrap();
    me.connect(&format!("{USER}@service"), b"", Some(LONG)).unwrap();
    drop(me);
    victim.end();
}

#[test]
fn root_makes_nothing_where_another_user_can_put_something_in_its_place() {
    let Some((dir, _)) = for_users("parents", &[]) else { return };
    let theirs = dir.path.join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(USER), None).unwrap();
    let open = dir.path.join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let own = dir.path.join("own");
    std::fs::create_dir(&own).unwrap();
    symlink(&own, dir.path.join("link")).unwrap();
    for (parent, lands_in) in [("theirs", &theirs), ("open", &open), ("link", &own)] {
        let shared = dir.path.join(parent).join("shared");
        let config = dir.config_with(&[("SHARED_DIR", shared.to_str().unwrap())]);
        let error = setup_shared_dir(&config).unwrap_err().to_string();
        assert!(error.contains(parent), "{error}");
        assert!(!lands_in.join("shared").exists(), "{parent}");
    }
}

/// The place in /tmp, when the test is over.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn whoever_takes_a_users_place_in_tmp_is_named_and_the_error_says_what_to_set() {
    let Some((dir, exe)) = for_users("tmp", &[]) else { return };
    let place = Place(PathBuf::from(format!("/tmp/hamlyn-{USER}")));
    let serve = |xdg: Option<&Path>| {
        let mut command = Peer::command_of(exe.clone(), "serve", &dir, "same", &[]);
        command.env_remove("HAMLYN_DIR").env_remove("XDG_RUNTIME_DIR");
        if let Some(xdg) = xdg {
            command.env("XDG_RUNTIME_DIR", xdg);
        }
        as_user(&mut command, USER, &[]);
        Peer::run("serve", command)
    };
    for how in ["mkdir", "symlink"] {
        let args = place.0.to_str().unwrap();
        let mut attacker = other_user(OTHER_USER, how, &dir, &exe, args, &[]);
        attacker.expect("made");
        attacker.end();
        let mut victim = serve(None);
        let error = victim.says();
        assert!(error.contains("set HAMLYN_DIR, or XDG_RUNTIME_DIR"), "{error}");
        if how == "mkdir" {
            assert!(error.contains(&format!("belongs to user {OTHER_USER}")), "{error}");
        }
        victim.end();
        let own = dir.path.join("own");
        let _ = std::fs::create_dir(&own);
        std::os::unix::fs::chown(&own, Some(USER), None).unwrap();
        let mut victim = serve(Some(&own));
        victim.expect("serving");
        victim.end();
        drop(Place(place.0.clone()));
    }
    // Left alone, the last resort needs nothing.
    let mut victim = serve(None);
    victim.expect("serving");
    victim.end();
}
