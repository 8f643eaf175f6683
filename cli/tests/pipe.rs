//! `hamlyn recv` and `hamlyn send`: the whole transfer or an error.

use hamlyn::control::frame::Frame;
use hamlyn::os::socket;
use hamlyn::{
    Accept, Access, Config, Event, LinkId, MetadataIndex, Node, NodeId, SlotConfig, Ticket,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn hamlyn(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hamlyn"));
    command.args(arguments).env("HAMLYN_DIR", directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn receiver(directory: &Path) -> Child {
    hamlyn(directory, &["recv", "--wait", "20", "x"]).spawn().unwrap()
}

/// Sends `bytes`, and closes.
fn send(directory: &Path, bytes: &[u8]) -> Output {
    let mut child = hamlyn(directory, &["send", "x"]).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // If it gives up early, that is for the caller to see.
        scope.spawn(move || drop(input.write_all(bytes)));
        child.wait_with_output().unwrap()
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn round_trip(bytes: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let receiver = receiver(directory.path());
    std::thread::scope(|scope| {
        let received = scope.spawn(|| receiver.wait_with_output().unwrap());
        let sent = send(directory.path(), bytes);
        let received = received.join().unwrap();
        assert!(sent.status.success(), "{}", text(&sent.stderr));
        assert!(received.status.success(), "{}", text(&received.stderr));
        assert!(received.stdout == bytes, "{} bytes came", received.stdout.len());
        // Their standard error is no terminal, so there is no progress bar.
        assert_eq!((text(&sent.stderr), text(&received.stderr)), (String::new(), String::new()));
    });
}

#[test]
fn nothing_a_byte_and_a_chunk_and_one_arrive_whole() {
    for length in [0, 1, 256 << 10, (256 << 10) + 1] {
        round_trip(&vec![7; length]);
    }
}

#[test]
fn many_chunks_arrive_in_order() {
    round_trip(
        &(0..20_000_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect::<Vec<_>>(),
    );
}

#[test]
fn bytes_are_passed_on_before_the_input_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut receiver = receiver(directory.path());
    let mut sender = hamlyn(directory.path(), &["send", "x"]).spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    let mut output = receiver.stdout.take().unwrap();
    for word in [b"one", b"two"] {
        input.write_all(word).unwrap();
        let mut came = [0; 3];
        output.read_exact(&mut came).unwrap();
        assert_eq!(&came, word);
    }
    drop(input);
    assert!(sender.wait().unwrap().success() && receiver.wait().unwrap().success());
}

#[test]
fn a_sender_that_dies_midway_makes_the_receiver_say_so_and_fail() {
    let directory = tempfile::tempdir().unwrap();
    let mut receiver = receiver(directory.path());
    let mut sender = hamlyn(directory.path(), &["send", "x"]).spawn().unwrap();
    sender.stdin.as_mut().unwrap().write_all(b"half").unwrap();
    let mut came = [0; 4];
    receiver.stdout.as_mut().unwrap().read_exact(&mut came).unwrap();
    sender.kill().unwrap();
    sender.wait().unwrap();
    let output = receiver.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("died after 4 bytes") && error.contains("not whole"), "{error}");
}

#[test]
fn a_receiver_that_dies_midway_makes_the_sender_fail() {
    let directory = tempfile::tempdir().unwrap();
    let mut receiver = receiver(directory.path());
    let mut sender = hamlyn(directory.path(), &["send", "x"]).spawn().unwrap();
    // Kept open: the sender waits for more when the receiver dies.
    let mut input = sender.stdin.take().unwrap();
    input.write_all(b"half").unwrap();
    receiver.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    let output = sender.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("the receiver died"), "{}", text(&output.stderr));
}

#[test]
fn the_sender_is_told_why_a_file_could_not_be_written_and_not_where_it_lies() {
    let directory = tempfile::tempdir().unwrap();
    // Files of this process, those in memory included, grow to 8 MiB.
    let line = format!(
        "trap '' XFSZ; ulimit -f 16384; exec {} recv --wait 20 -o secret-place x",
        env!("CARGO_BIN_EXE_hamlyn")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line]).env("HAMLYN_DIR", directory.path()).current_dir(directory.path());
    let receiver = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let sent = send(directory.path(), &vec![7; 20 << 20]);
    let received = receiver.wait_with_output().unwrap();
    let (told, own) = (text(&sent.stderr), text(&received.stderr));
    assert!(!sent.status.success() && !received.status.success(), "{told}{own}");
    assert!(told.contains("File too large"), "{told}");
    assert!(
        !told.contains(".hamlyn-") && !told.contains(directory.path().to_str().unwrap()),
        "{told}"
    );
    assert!(own.contains("File too large") && own.matches("os error").count() == 1, "{own}");
}

#[test]
fn output_that_cannot_be_written_fails_at_both_ends() {
    let directory = tempfile::tempdir().unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let receiver =
        hamlyn(directory.path(), &["recv", "x"]).stdout(Stdio::from(full)).spawn().unwrap();
    let sent = send(directory.path(), &[7; 1000]);
    let received = receiver.wait_with_output().unwrap();
    assert_eq!((sent.status.code(), received.status.code()), (Some(1), Some(1)));
    let said = text(&sent.stderr);
    assert!(said.contains("the receiver failed: No space left on device"), "{said}");
    assert!(text(&received.stderr).contains("No space left"), "{}", text(&received.stderr));
}

#[test]
fn a_second_sender_is_refused_and_the_first_does_not_notice() {
    let directory = tempfile::tempdir().unwrap();
    let mut receiver = receiver(directory.path());
    let mut first = hamlyn(directory.path(), &["send", "x"]).spawn().unwrap();
    let mut input = first.stdin.take().unwrap();
    input.write_all(b"one").unwrap();
    receiver.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    let second = send(directory.path(), b"two");
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("another already"), "{}", text(&second.stderr));
    drop(input);
    assert!(first.wait().unwrap().success() && receiver.wait().unwrap().success());
}

#[test]
fn nobody_there_is_an_error_that_names_the_service() {
    let directory = tempfile::tempdir().unwrap();
    let output = hamlyn(directory.path(), &["send", "--wait", "0.1", "nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nowhere"), "{}", text(&output.stderr));
    let output = hamlyn(directory.path(), &["recv", "--wait", "0.1", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("time limit"), "{}", text(&output.stderr));
}

#[test]
fn a_name_that_is_in_use_or_wrong_is_an_error_that_says_which() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = receiver(directory.path());
    // Until it has the name. Asking for its counters does not take it.
    while !hamlyn(directory.path(), &["stat", "x"]).output().unwrap().status.success() {
        assert!(first.try_wait().unwrap().is_none(), "the first receiver ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = hamlyn(directory.path(), &["recv", "--wait", "0", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("in use"), "{}", text(&output.stderr));
    first.kill().unwrap();
    first.wait().unwrap();
    // A name left behind by a dead process is taken over.
    let output = hamlyn(directory.path(), &["recv", "--wait", "0.1", "x"]).output().unwrap();
    assert!(text(&output.stderr).contains("time limit"), "{}", text(&output.stderr));
    let output = hamlyn(directory.path(), &["recv", "a/b"]).output().unwrap();
    assert!(text(&output.stderr).contains("a/b"), "{}", text(&output.stderr));
}

#[test]
fn the_counters_of_a_running_receiver_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let mut receiver = receiver(directory.path());
    let mut sender = hamlyn(directory.path(), &["send", "x"]).spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    input.write_all(b"half").unwrap();
    receiver.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();

    let output = hamlyn(directory.path(), &["stat", "x", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(stat["name"], "x");
    assert_eq!(stat["counters"]["bytes_received"], 4);
    assert_eq!(stat["counters"]["refused_wrong_key"], 0);
    // Those of the control plane, too: this very question among them.
    assert_eq!(stat["counters"]["control.refused_user"], 0);
    assert_eq!(stat["counters"]["control.links"], 1);

    let output = hamlyn(directory.path(), &["stat", "--all"]).output().unwrap();
    assert!(text(&output.stdout).contains("refused_out_of_bounds"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("control.closed_died"), "{}", text(&output.stdout));

    drop(input);
    assert!(sender.wait().unwrap().success() && receiver.wait().unwrap().success());
    let output = hamlyn(directory.path(), &["stat", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

/// The command with one of its standard descriptors closed, as `>&-` in a shell does it.
fn with_closed(directory: &Path, arguments: &str, closed: &str) -> Output {
    let line = format!("exec \"$0\" {arguments} {closed}");
    let mut command = Command::new("sh");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_hamlyn")]).env("HAMLYN_DIR", directory);
    command.output().unwrap()
}

#[test]
fn a_descriptor_that_is_closed_is_an_error_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let output = with_closed(directory.path(), "recv x", ">&-");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("standard output is closed"), "{output:?}");
    let output = with_closed(directory.path(), "send x", "<&-");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("standard input is closed"), "{output:?}");
    // A user who asks for no output gets none; and a file needs no standard output.
    let null = with_closed(directory.path(), "recv --wait 0 x", ">/dev/null");
    assert!(text(&null.stderr).contains("time limit"), "{null:?}");
    let file = directory.path().join("file");
    let file =
        with_closed(directory.path(), &format!("recv -o {} --wait 0 x", file.display()), ">&-");
    assert!(text(&file.stderr).contains("time limit"), "{file:?}");
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[test]
fn a_file_is_there_when_it_is_whole_and_as_it_was_until_then() {
    let directory = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("file");
    let receiver = |more: &[&str]| {
        let arguments = ["recv", "--wait", "20", "--output", file.to_str().unwrap(), "x"];
        hamlyn(directory.path(), &[&arguments, more].concat()).spawn().unwrap()
    };
    std::fs::write(&file, "as it was").unwrap();
    let receiving = receiver(&[]);
    let mut sender = hamlyn(directory.path(), &["send", "x"]).spawn().unwrap();
    sender.stdin.as_mut().unwrap().write_all(&[7; 300_000]).unwrap();
    while files.path().read_dir().unwrap().flatten().all(|e| e.metadata().unwrap().len() < 1000) {
        std::thread::sleep(Duration::from_millis(5));
    }
    sender.kill().unwrap();
    sender.wait().unwrap();
    assert_eq!(receiving.wait_with_output().unwrap().status.code(), Some(1));
    assert_eq!(std::fs::read(&file).unwrap(), b"as it was");
    assert_eq!(names(files.path()), ["file"]);
    for more in [&[][..], &["--sync"]] {
        let receiving = receiver(more);
        assert!(send(directory.path(), b"whole").status.success());
        let received = receiving.wait_with_output().unwrap();
        assert!(received.status.success() && received.stdout.is_empty(), "{received:?}");
        assert_eq!(std::fs::read(&file).unwrap(), b"whole");
        assert_eq!(names(files.path()), ["file"]);
    }
}

/// The error of `recv x --output PATH` for a path that cannot be written. `stdout`: its standard
/// output.
fn refused_output(path: &Path, stdout: Stdio) -> String {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["recv", "--wait", "0", "-o", path.to_str().unwrap(), "x"];
    let mut command = hamlyn(directory.path(), &arguments);
    let output = command.stdout(stdout).current_dir(&directory).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(names(directory.path()), [""; 0]);
    text(&output.stderr)
}

#[test]
fn a_link_a_device_or_the_output_itself_is_not_replaced_by_a_file() {
    let files = tempfile::tempdir().unwrap();
    let at = |name: &str| files.path().join(name);
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, at(name)).unwrap();
        at(name)
    };
    let out = link("/proc/self/fd/1", "out");
    let no_file = |path: &Path| format!("{} is no file: leave out --output", path.display());
    // A pipe, a file that has a name, one that has none any more, and a device.
    let file = || std::fs::File::create(at("file")).unwrap();
    let gone = file();
    std::fs::remove_file(at("file")).unwrap();
    for stdout in [Stdio::piped(), file().into(), gone.into(), Stdio::null()] {
        let error = refused_output(&out, stdout);
        assert!(error.contains(&no_file(&out)), "{error}");
    }
    for path in ["-", "/dev/full"].map(Path::new) {
        let error = refused_output(path, Stdio::piped());
        assert!(error.contains(&no_file(path)), "{error}");
    }
    // To itself, and into a directory that is not there.
    for (path, why) in [
        (link("circle", "circle"), "cannot write"),
        (link("not-there/file", "lost"), "not-there"),
        (at("not-there/file"), "not-there"),
    ] {
        let error = refused_output(&path, Stdio::piped());
        assert!(error.contains(why), "{error}");
    }
    for name in ["out", "circle", "lost"] {
        assert!(at(name).is_symlink(), "{name}");
    }
    let mut left = names(files.path());
    left.sort();
    assert_eq!(left, ["circle", "file", "lost", "out"]);
}

#[test]
fn the_file_that_a_link_names_is_replaced_and_keeps_its_mode_and_its_owner() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    let directory = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let (file, link) = (files.path().join("file"), files.path().join("link"));
    symlink("file", &link).unwrap();
    // The link leads to nothing at first, and then to a file that its owner alone may read.
    for text in [&b"first"[..], b"second"] {
        let arguments = ["recv", "--wait", "20", "-o", link.to_str().unwrap(), "x"];
        let receiving = hamlyn(directory.path(), &arguments).spawn().unwrap();
        assert!(send(directory.path(), text).status.success());
        let received = receiving.wait_with_output().unwrap();
        assert!(received.status.success(), "{received:?}");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), text);
        let now = file.metadata().unwrap();
        let is_root = rustix::process::geteuid().is_root();
        if text == b"second" {
            let owner = if is_root { 1 } else { rustix::process::geteuid().as_raw() };
            assert_eq!((now.mode() & 0o7777, now.uid()), (0o640, owner));
        } else {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
            if is_root {
                chown(&file, Some(1), None).unwrap();
            }
        }
    }
}

#[test]
fn a_signal_leaves_neither_a_name_nor_a_part_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("file");
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let arguments = ["recv", "--output", file.to_str().unwrap(), "x"];
        let mut receiver = hamlyn(directory.path(), &arguments).spawn().unwrap();
        // It has begun: a sender is served.
        let mut sender = hamlyn(directory.path(), &["send", "x"]).spawn().unwrap();
        sender.stdin.as_mut().unwrap().write_all(&[7; 1000]).unwrap();
        while names(files.path()).is_empty()
            || files
                .path()
                .read_dir()
                .unwrap()
                .flatten()
                .all(|e| e.metadata().unwrap().len() < 1000)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&receiver), signal).unwrap();
        let status = receiver.wait().unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
        assert_eq!(names(directory.path()), [""; 0]);
        assert_eq!(names(files.path()), [""; 0]);
        assert!(!sender.wait().unwrap().success());
    }
}

// ---- with a process at the other end that is no `hamlyn`

/// A service that answers a `hamlyn send` with `offer`, and then does `more` over the link, with the
/// ticket for the sender's entry of the first buffer.
fn impostor(
    directory: &Path,
    offer: impl Fn(&mut Node) -> Vec<u8>,
    mut more: impl FnMut(&mut Node, LinkId, Ticket),
    sender: &mut Child,
) {
    let mut node = Node::with_config(Config::default().dir(directory.to_path_buf())).unwrap();
    node.serve("x", Access::SameUser, Accept::Ask).unwrap();
    let mut tickets = None;
    while sender.try_wait().unwrap().is_none() {
        node.wait(Some(Duration::from_millis(10))).unwrap();
        match node.next_event() {
            Some(Event::Request { id, greeting, .. }) => {
                let ticket = greeting.strip_prefix(b"hamlyn-pipe-1\n").unwrap();
                tickets = Some(Ticket::from_bytes(ticket).unwrap());
                let offer = offer(&mut node);
                node.accept(id, &offer).unwrap();
            }
            Some(Event::Connected { link, .. }) => more(&mut node, link, tickets.unwrap()),
            Some(Event::Closed { .. }) => break,
            _ => {}
        }
    }
}

/// Of a buffer of its own.
fn right_to_send(node: &mut Node) -> Ticket {
    let area = node.message_area(256 << 10).unwrap();
    let queue = node.notification_queue(1).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).metadata(1)).unwrap();
    node.ticket(slot, MetadataIndex(0)).unwrap()
}

/// The error of `hamlyn send` to such a service. Its input does not end.
fn told_by_sender(
    offer: impl Fn(&mut Node) -> Vec<u8>,
    more: impl FnMut(&mut Node, LinkId, Ticket),
) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut sender = hamlyn(directory.path(), &["send", "x"]).spawn().unwrap();
    let input = sender.stdin.take().unwrap();
    impostor(directory.path(), offer, more, &mut sender);
    let output = sender.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output.stderr)
}

#[test]
fn a_receiver_that_gives_more_rights_than_it_has_buffers_is_left() {
    let error = told_by_sender(
        |_| Vec::new(),
        |node, link, to| {
            let right = right_to_send(node).to_bytes();
            // Until the sender has had enough, which it has after the fifth.
            for _ in 0..10_000 {
                if node.send_over(link, &to, &[], &right, Some(Duration::from_secs(5))).is_err() {
                    return;
                }
            }
        },
    );
    assert!(error.contains("more rights to send than it has buffers"), "{error}");
    let error = told_by_sender(|node| right_to_send(node).to_bytes().repeat(90), |_, _, _| ());
    assert!(error.contains("more rights to send than it has buffers"), "{error}");
}

#[test]
fn a_right_to_send_to_somebody_else_is_not_used() {
    let elsewhere = |node: &mut Node| {
        let ticket = right_to_send(node);
        Ticket { destination: NodeId(ticket.destination.0 ^ 1), ..ticket }.to_bytes()
    };
    let error = told_by_sender(|node| elsewhere(node).to_vec(), |_, _, _| ());
    assert!(error.contains("no `hamlyn recv`: it is for node"), "{error}");
    let error = told_by_sender(
        |_| Vec::new(),
        |node, link, to| {
            let ticket = elsewhere(node);
            node.send_over(link, &to, &[], &ticket, Some(Duration::from_secs(5))).unwrap();
        },
    );
    assert!(error.contains("the receiver's ticket: it is for node"), "{error}");
}

#[test]
fn what_a_receiver_says_at_the_end_moves_no_cursor() {
    let error = told_by_sender(
        |_| Vec::new(),
        |node, link, to| {
            let to = Ticket { metadata_index: MetadataIndex(4), ..to };
            let verdict = [b"\0".as_slice(), "\x1b[2J\u{202e}no\u{200b}".as_bytes()].concat();
            node.send_over(link, &to, &[], &verdict, Some(Duration::from_secs(5))).unwrap();
        },
    );
    assert!(error.contains(r"the receiver failed: \u{1b}[2J\u{202e}no\u{200b}"), "{error:?}");
}

#[test]
fn a_receiver_that_grants_nothing_is_left_after_the_limit_and_the_input_may_take_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut sender = hamlyn(directory.path(), &["send", "--idle", "1", "x"]).spawn().unwrap();
    let _input = sender.stdin.take().unwrap();
    impostor(directory.path(), |_| Vec::new(), |_, _, _| (), &mut sender);
    let output = sender.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.contains("the receiver has taken nothing for 1 s"), "{error}");
    // One that has granted is waited for as long as there is no input.
    let receiver = receiver(directory.path());
    let mut sender = hamlyn(directory.path(), &["send", "--idle", "10", "x"]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(11)); // The limit is the subject.
    assert!(sender.try_wait().unwrap().is_none());
    sender.stdin.take().unwrap().write_all(b"late").unwrap();
    assert!(sender.wait_with_output().unwrap().status.success());
    assert_eq!(text(&receiver.wait_with_output().unwrap().stdout), "late");
}

/// A link as a sender's, over which nothing comes.
fn silent_sender(directory: &Path) -> (Node, LinkId) {
    let mut node = Node::with_config(Config::default().dir(directory.to_path_buf())).unwrap();
    let ticket = right_to_send(&mut node).to_bytes();
    let greeting = [b"hamlyn-pipe-1\n".as_slice(), &ticket].concat();
    let link = node.connect("x", &greeting, Some(Duration::from_secs(20))).unwrap();
    (node, link)
}

#[test]
fn a_sender_that_ends_or_stays_silent_before_it_has_sent_anything_makes_room_for_another() {
    let directory = tempfile::tempdir().unwrap();
    let mut receiver = hamlyn(directory.path(), &["recv", "--idle", "10", "x"]).spawn().unwrap();
    let mut said = std::io::BufReader::new(receiver.stderr.take().unwrap()).lines();
    let silent = silent_sender(directory.path());
    let line = said.next().unwrap().unwrap();
    assert!(line.contains("the sender has sent nothing for 1"), "{line}");
    assert!(line.contains("another sender may come"), "{line}");
    let (mut node, link) = silent_sender(directory.path());
    node.disconnect(link).unwrap();
    let sent = send(directory.path(), b"whole");
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    let received = receiver.wait_with_output().unwrap();
    assert!(received.status.success() && received.stdout == b"whole", "{received:?}");
    drop(silent);
    // Written bytes cannot be taken back.
    let mut receiver = hamlyn(directory.path(), &["recv", "--idle", "10", "x"]).spawn().unwrap();
    let mut sender = hamlyn(directory.path(), &["send", "x"]).spawn().unwrap();
    sender.stdin.as_mut().unwrap().write_all(b"half").unwrap();
    receiver.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    let received = receiver.wait_with_output().unwrap();
    let error = text(&received.stderr);
    assert!(!received.status.success() && error.contains("has sent nothing for 1"), "{error}");
    let told = text(&sender.wait_with_output().unwrap().stderr);
    assert!(told.contains("the sender has sent nothing for 1"), "{told}");
}

#[test]
fn counters_that_a_stranger_made_up_move_no_cursor() {
    let directory = tempfile::tempdir().unwrap();
    let kind = SocketType::SEQPACKET;
    let listener = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
    let at = SocketAddrUnix::new(directory.path().join("trap")).unwrap();
    rustix::net::bind(&listener, &at).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    for arguments in [&["stat", "trap"][..], &["stat", "trap", "--json"]] {
        let asking = hamlyn(directory.path(), arguments).spawn().unwrap();
        let socket = rustix::net::accept(&listener).unwrap();
        for (text, is_last) in [
            (&b"links 3\n\x1b]0;OWNED\x07 1\na\x1b[2Jb\xff"[..], false),
            ("c\r \u{202e}7\n\u{200b} 8\n".as_bytes(), true),
        ] {
            let frame = Frame::StatText { text: text.to_vec(), is_last };
            socket::send(&socket, &frame.to_bytes(), &[]).unwrap();
        }
        let output = asking.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let output = text(&output.stdout);
        assert!(output.contains("links") && output.contains("OWNED"), "{output:?}");
        let wrong = |c: char| c.is_control() && c != '\n' || "\u{202e}\u{200b}".contains(c);
        assert!(!output.contains(wrong), "{output:?}");
    }
}

/// `hamlyn` with these arguments, in a process that may write so many bytes into a file.
fn with_file_size(directory: &Path, bytes: u64, arguments: &[&str]) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--fsize={bytes}:")).arg(env!("CARGO_BIN_EXE_hamlyn")).args(arguments);
    command.env("HAMLYN_DIR", directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

// The kernel ends a process by a signal that writes more than it may.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_that_names_it_and_leaves_no_part_behind() {
    let directory = tempfile::tempdir().unwrap();
    let limit = "RLIMIT_FSIZE";
    let sender = with_file_size(directory.path(), 0, &["send", "x", "--wait", "20"]);
    let receives = receiver(directory.path());
    let sent = { sender }.output().unwrap();
    assert_eq!(sent.status.code(), Some(1), "{sent:?}");
    assert!(text(&sent.stderr).contains(limit), "{sent:?}");
    drop(Ended(receives));
    // A client does not end it.
    let mut receiver =
        Ended(with_file_size(directory.path(), 0, &["recv", "--wait", "20", "y"]).spawn().unwrap());
    let sent = hamlyn(directory.path(), &["send", "y", "--wait", "20"]).output().unwrap();
    assert!(text(&sent.stderr).contains(limit), "{sent:?}");
    assert_eq!(receiver.0.try_wait().unwrap(), None);
    drop(receiver);
    // The link is there, and what comes is too long for the file.
    let output = directory.path().join("output");
    let arguments = ["recv", "--wait", "20", "--output", output.to_str().unwrap(), "x"];
    let receiver = with_file_size(directory.path(), 128 << 10, &arguments).spawn().unwrap();
    let sent = send(directory.path(), &[7; 1 << 20]);
    assert!(text(&sent.stderr).contains("File too large"), "{sent:?}");
    let received = receiver.wait_with_output().unwrap();
    assert_eq!(received.status.code(), Some(1), "{received:?}");
    assert!(text(&received.stderr).contains(limit), "{received:?}");
    let left: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("output") || name.contains(".part"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A process that is killed, and waited for.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// At any limit, the command names the missing resource, or works without it.
#[test]
fn no_limit_ends_the_command_by_a_signal() {
    let limits =
        ["nofile=6", "nofile=12", "memlock=0", "stack=1048576", "as=67108864", "data=8388608"];
    for limit in limits {
        let directory = tempfile::tempdir().unwrap();
        let receiver = Ended(receiver(directory.path()));
        let mut command = Command::new("prlimit");
        command.arg(format!("--{limit}:")).arg(env!("CARGO_BIN_EXE_hamlyn"));
        command.args(["send", "x", "--wait", "20"]).env("HAMLYN_DIR", directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let sent = command.output().unwrap();
        assert!(sent.status.code().is_some(), "{limit}: {sent:?}");
        let told = text(&sent.stderr);
        assert!(sent.status.success() || told.contains("RLIMIT_"), "{limit}: {told}");
        drop(receiver);
    }
}
