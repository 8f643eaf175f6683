//! The commands of docs/two-users.md, as two users of this machine.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Two users that every Debian has, with their numbers.
const ALICE: (&str, u32) = ("daemon", 1);
const BOB: (&str, u32) = ("nobody", 65534);

/// The README shows the commands of docs/two-users.md, which the other tests run, and no others.
#[test]
fn the_readme_has_the_commands_of_the_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(root.join("docs/two-users.md")).unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let section = readme.split("### Two users, two containers\n").nth(1).expect("a section");
    let section = section.split("\n### ").next().unwrap();
    let shown: Vec<&str> = section
        .split("```sh\n")
        .skip(1)
        .flat_map(|block| block.split("```").next().unwrap().lines())
        .map(|line| line.split(" #").next().unwrap().trim_end())
        .collect();
    assert_eq!(shown.len(), 5, "{shown:?}");
    for command in shown {
        assert!(page.lines().any(|line| line == command), "{command:?} is not in the page");
    }
}

/// The blocks of commands of a section, with other names for the users.
fn blocks(section: usize) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/two-users.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page.split("\n## ").nth(section).expect("two users, two containers");
    let blocks = section.split("```sh\n").skip(1);
    let commands = blocks.map(|block| block.split("```").next().expect("a block ends"));
    commands
        .map(|c| c.replace("sudo ", "").replace("alice", ALICE.0).replace("bob", BOB.0))
        .collect()
}

fn shell(command: &str, dir: &Path, shared: &Path, user: Option<u32>) -> Command {
    let mut shell = Command::new("sh");
    let path = format!("{}:/usr/bin:/bin", dir.display());
    shell.args(["-ec", command]).env_clear().env("PATH", path).env("HAMLYN_SHARED_DIR", shared);
    shell.stdin(Stdio::null());
    if let Some(user) = user {
        let home = dir.join(user.to_string());
        shell.uid(user).gid(user).current_dir(&home).env("HAMLYN_DIR", home.join("own"));
    }
    shell
}

/// One test at a time: what another has just copied cannot be run while a process that began then has it
/// open for writing.
static ONE: Mutex<()> = Mutex::new(());

/// The command, and a home for each of the two. `None`: that takes root, and it was said.
fn two_homes() -> Option<(MutexGuard<'static, ()>, tempfile::TempDir)> {
    if !rustix::process::geteuid().is_root() {
        support::skipped("only root can run commands as two other users");
        return None;
    }
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_hamlyn"), dir.path().join("hamlyn")).unwrap();
    for (_, uid) in [ALICE, BOB] {
        let home = dir.path().join(uid.to_string());
        fs::create_dir(&home).unwrap();
        chown(&home, Some(uid), Some(uid)).unwrap();
    }
    Some((one, dir))
}

/// Sets up the shared directory for the two; returns the command.
fn set_up(dir: &Path, shared: &Path) -> String {
    let setup = format!("hamlyn setup {} {}", ALICE.0, BOB.0);
    assert!(shell(&setup, dir, shared, None).status().unwrap().success());
    setup
}

#[test]
fn a_file_whose_owner_cannot_be_kept_stays_as_it_was() {
    let Some((_one, dir)) = two_homes() else { return };
    let (dir, home) = (dir.path(), dir.path().join(BOB.1.to_string()));
    let file = home.join("file");
    fs::write(&file, "as it was").unwrap();
    chown(&file, Some(ALICE.1), Some(ALICE.1)).unwrap();
    // The directory is bob's, who may rename and remove what is there.
    let command = "hamlyn recv --wait 0 -o file x";
    let output = shell(command, dir, &dir.join("run"), Some(BOB.1)).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("it is of user 1 and group 1"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "as it was");
    let left: Vec<_> = fs::read_dir(&home).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["file"]);
}

#[test]
fn a_stranger_who_sends_nothing_holds_no_receiver_beyond_its_limit_and_keeps_no_other_sender_out() {
    let Some((_one, dir)) = two_homes() else { return };
    let (dir, shared) = (dir.path(), dir.path().join("run"));
    set_up(dir, &shared);
    let silent = format!("exec hamlyn send {}@x --wait 60 --idle 60", ALICE.0);
    let started = |command: &str, user: u32| {
        let mut command = shell(command, dir, &shared, Some(user));
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let send_silent = || started(&silent, BOB.1);
    let receiver =
        |more: &str| started(&format!("exec hamlyn recv x --allow anyone{more}"), ALICE.1);
    // Without end before; the limit itself is what is tested.
    let began = Instant::now();
    let (receiving, mut sending) = (receiver(" --wait 3"), send_silent());
    let output = receiving.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let _ = sending.kill();
    let _ = sending.wait();
    assert!(!output.status.success() && error.contains("within the time limit"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // He is there first, and she receives what root sends.
    let (receiving, mut sending) = (receiver(""), send_silent());
    let start = Instant::now();
    let linked = || {
        let stat = shell("hamlyn stat x", dir, &shared, Some(ALICE.1)).output().unwrap();
        String::from_utf8(stat.stdout).unwrap().contains("made by the peer")
    };
    while !linked() {
        assert!(start.elapsed() < Duration::from_secs(60), "he is not linked");
    }
    let send = format!("echo whole | hamlyn send {}@x --wait 60", ALICE.0);
    let sent = shell(&send, dir, &shared, None).output().unwrap();
    let _ = sending.kill();
    let _ = sending.wait();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let received = receiving.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&received.stdout), "whole\n");
}

#[test]
fn a_file_or_a_link_that_another_user_has_put_where_everybody_may_is_not_written_through() {
    let Some((_one, dir)) = two_homes() else { return };
    let (dir, open, own) = (dir.path(), dir.path().join("open"), dir.path().join("own"));
    fs::create_dir(&open).unwrap();
    fs::write(&own, "as it was").unwrap();
    let (file, link) = (open.join("file"), open.join("link"));
    fs::write(&file, "as it was").unwrap();
    std::os::unix::fs::symlink(&own, &link).unwrap();
    // A link to a directory on the way, too.
    let (folder, way) = (dir.join("folder"), open.join("way"));
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(&folder, &way).unwrap();
    let behind = way.join("new");
    let receive = |path: &Path| {
        let command = format!("hamlyn recv --wait 0 -o {} x", path.display());
        let mut command = shell(&command, dir, &dir.join("run"), None);
        let output = command.env("HAMLYN_DIR", dir.join("names")).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    // Without a sender: the only error is that of the file, which is as it was.
    let goes_on = |said: &str| !said.contains("cannot write");
    for mode in [0o1777, 0o777, 0o775] {
        fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
        for (planted, path) in [(&file, &file), (&link, &link), (&way, &behind)] {
            std::os::unix::fs::lchown(planted, Some(BOB.1), Some(BOB.1)).unwrap();
            let said = receive(path);
            assert!(said.contains(&format!("user {} has put", BOB.1)), "{mode:o}: {said}");
            // It is no other user's to those whose it is.
            std::os::unix::fs::lchown(planted, Some(0), Some(0)).unwrap();
            let said = receive(path);
            assert!(goes_on(&said), "{mode:o}: {said}");
        }
    }
    // In a directory that only root can write, root has made the file for its owner.
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    chown(&file, Some(BOB.1), Some(BOB.1)).unwrap();
    let said = receive(&file);
    assert!(goes_on(&said), "{said}");
    assert_eq!(fs::metadata(&file).unwrap().uid(), BOB.1);
    for path in [&file, &own] {
        assert_eq!(fs::read_to_string(path).unwrap(), "as it was");
    }
}

#[test]
fn a_user_sees_what_it_serves_where_the_shared_directory_is_not_its_to_read() {
    let Some((_one, dir)) = two_homes() else { return };
    let (dir, shared) = (dir.path(), dir.path().join("run"));
    // Nothing is made where a user is not there.
    let nobody = shell("hamlyn setup daemon nosuchuser", dir, &shared, None).output().unwrap();
    assert!(!nobody.status.success() && !shared.exists(), "{nobody:?}");
    set_up(dir, &shared);
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o711)).unwrap();
    let receive = "exec hamlyn recv seen --allow anyone";
    let mut receiver = shell(receive, dir, &shared, Some(ALICE.1)).spawn().unwrap();
    let sees = |command: &str, who: u32| {
        let output = shell(command, dir, &shared, Some(who)).output().unwrap();
        String::from_utf8(output.stdout).unwrap().contains("seen")
    };
    let start = Instant::now();
    while !sees("hamlyn names", ALICE.1) {
        if start.elapsed() > Duration::from_secs(60) {
            let _ = receiver.kill();
            panic!("she does not see it");
        }
    }
    let stat = sees("hamlyn stat", ALICE.1);
    let others = sees("hamlyn names", BOB.1);
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    assert!(stat, "stat asks what names shows");
    assert!(!others, "the directory is not bob's to read");
    // And a group of which she is no member.
    let group = shell("hamlyn recv x --allow group:0 --wait 0", dir, &shared, Some(ALICE.1));
    let error = String::from_utf8({ group }.output().unwrap().stderr).unwrap();
    assert!(error.contains("only a member of group 0"), "{error}");
    // Bob's error says that it may be served to her alone.
    let send = format!("hamlyn send {}@nothing --wait 0", ALICE.0);
    let error = shell(&send, dir, &shared, Some(BOB.1)).output().unwrap().stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(error.contains("recv --allow"), "{error}");
}

#[test]
fn a_place_that_others_cannot_enter_is_named_with_its_mode_and_mended_by_setup() {
    let Some((_one, dir)) = two_homes() else { return };
    let (dir, shared) = (dir.path(), dir.path().join("run"));
    let setup = set_up(dir, &shared);
    let place = shared.join(ALICE.1.to_string());
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    let receive = "exec hamlyn recv report --allow anyone";
    let mut receiver = shell(receive, dir, &shared, Some(ALICE.1)).spawn().unwrap();
    let run = |command: &str, who: Option<u32>| {
        let output = shell(command, dir, &shared, who).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let start = Instant::now();
    while !run("hamlyn names", Some(ALICE.1)).contains("report") {
        assert!(start.elapsed() < Duration::from_secs(60), "she does not serve it");
    }
    let name = format!("{}@report", ALICE.0);
    let said = [
        run(&format!("hamlyn send {name} --wait 5"), Some(BOB.1)),
        run(&format!("hamlyn why {name}"), Some(BOB.1)),
        run("hamlyn why report", Some(ALICE.1)),
        run(&format!("hamlyn why {name}"), None),
    ];
    let by_bob = run("hamlyn setup daemon", Some(BOB.1));
    run(&setup, None);
    let mode = fs::metadata(&place).unwrap().permissions().mode() & 0o7777;
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    for said in said {
        assert!(said.contains("mode 700") && said.contains("chmod 711"), "{said}");
        assert!(!said.contains("has no such name"), "{said}");
        assert!(!said.contains("Nothing that would"), "{said}");
    }
    assert_eq!(mode, 0o711);
    assert!(by_bob.contains("run it as root"), "{by_bob}");
    assert!(by_bob.matches("os error").count() <= 1, "{by_bob}");
}

#[test]
fn why_says_whom_a_socket_lets_in_and_to_whom_it_does_not_that_this_is_why() {
    let Some((_one, dir)) = two_homes() else { return };
    let (dir, shared) = (dir.path(), dir.path().join("run"));
    set_up(dir, &shared);
    let run = |command: &str, who: Option<u32>| {
        let output = shell(command, dir, &shared, who).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let receive = format!("exec hamlyn recv report --allow group:{}", ALICE.1);
    let mut receiver = shell(&receive, dir, &shared, Some(ALICE.1)).spawn().unwrap();
    let start = Instant::now();
    while !run("hamlyn stat report", Some(ALICE.1)).contains("report: process") {
        assert!(start.elapsed() < Duration::from_secs(60), "she does not serve it");
    }
    let name = format!("{}@report", ALICE.0);
    let by_bob = run(&format!("hamlyn why {name}"), Some(BOB.1));
    let by_others =
        [run("hamlyn why report", Some(ALICE.1)), run(&format!("hamlyn why {name}"), None)];
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    let socket = shared.join(ALICE.1.to_string()).join("report");
    let lets_in = format!(
        "Its socket {} lets in user 1 (daemon) and group 1 (daemon) (mode 660).",
        socket.display()
    );
    let why = format!("{lets_in} This is user 65534 (nobody), whom it does not let in.\n");
    assert!(by_bob.contains(&why) && by_bob.contains("is refused at once"), "{by_bob}");
    for said in by_others {
        assert!(said.contains(&lets_in) && !said.contains("does not let in"), "{said}");
    }
}

#[test]
fn the_page_on_two_users_says_what_works() {
    let blocks = blocks(1);
    let [setup, receive, send] = &blocks[..] else { panic!("three blocks: {blocks:?}") };
    let Some((_one, dir)) = two_homes() else { return };
    let (dir, shared) = (dir.path(), dir.path().join("run"));
    assert!(shell(setup, dir, &shared, None).status().unwrap().success());
    let report = dir.join(BOB.1.to_string()).join("report");
    fs::write(&report, "what bob has to say\n").unwrap();
    // In place of the shell, so that it ends with it.
    let receive = format!("exec {receive}");
    let mut receiver = shell(&receive, dir, &shared, Some(ALICE.1)).spawn().unwrap();
    // It waits until she is there.
    let sent = shell(send, dir, &shared, Some(BOB.1)).status().unwrap();
    if !sent.success() {
        let _ = receiver.kill();
        panic!("bob could not send");
    }
    let start = Instant::now();
    while receiver.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "alice still waits");
        std::thread::sleep(Duration::from_millis(5));
    }
    let copy = fs::read_to_string(dir.join(ALICE.1.to_string()).join("report.copy")).unwrap();
    assert_eq!(copy, "what bob has to say\n");
}

/// With the kernel's namespaces in place of a container engine: each has mounts, processes, network, IPC and
/// a host name of its own, and the one directory.
#[test]
fn the_page_on_two_containers_says_what_works() {
    let blocks = blocks(2);
    let [block] = &blocks[..] else { panic!("one block: {blocks:?}") };
    let engine = "podman run ";
    let lines: Vec<&str> = block.lines().collect();
    let [setup, receive, send] = lines[..] else { panic!("three commands: {block}") };
    // The engine's words, and what runs inside.
    let split = |line: &str| {
        let (words, inside) = line.strip_prefix(engine).unwrap().split_once(" .. ").unwrap();
        assert!(words.contains("-v /run/hamlyn:/run/hamlyn"), "{line}");
        (words.to_owned(), inside.to_owned())
    };
    let ((mounts, receive), (attached, send)) = (split(receive), split(send));
    assert!(mounts.ends_with("-v $PWD:/out") && attached.starts_with("-i "), "{block}");
    let receive = receive.replace("/out/", "");
    let container = ["--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts"];
    let permitted = Command::new("unshare").args(container).args(["--mount-proc", "true"]).output();
    if !permitted.is_ok_and(|output| output.status.success()) {
        return support::skipped("no namespaces may be made here (unshare)");
    }
    let Some((_one, dir)) = two_homes() else { return };
    let (dir, shared) = (dir.path(), dir.path().join("run"));
    assert!(shell(setup, dir, &shared, None).status().unwrap().success());
    let start = |name: &str, command: &str| {
        let home = dir.join(name);
        fs::create_dir_all(&home).unwrap();
        let script = format!(
            "mount -t tmpfs none /run && mkdir -m 755 /run/hamlyn && \
             mount --bind {} /run/hamlyn && cd {} && exec {command}",
            shared.display(),
            home.display()
        );
        let mut unshare = Command::new("unshare");
        unshare.args(container).args(["--mount-proc", "sh", "-ec", &script]).env_clear();
        let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", dir.display());
        unshare.env("PATH", path).env("HAMLYN_DIR", home.join("own")).stdin(Stdio::null());
        unshare.spawn().unwrap()
    };
    fs::create_dir(dir.join("b")).unwrap();
    fs::write(dir.join("b/report"), "from the other container\n").unwrap();
    let mut receiver = start("a", &receive);
    let sent = start("b", &send).wait().unwrap();
    if !sent.success() {
        let _ = receiver.kill();
        panic!("the second container could not send");
    }
    let began = Instant::now();
    while receiver.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(60) {
            let _ = receiver.kill();
            panic!("the first container still waits");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let copy = fs::read_to_string(dir.join("a/report.copy")).unwrap();
    assert_eq!(copy, "from the other container\n");
}
