//! `hamlyn run`: the ranks are this test's own program, run again as a role.

mod support;

#[path = "../../examples/job_all_to_all.rs"]
mod all_to_all;
#[path = "../../examples/job_barrier.rs"]
mod barrier;
#[path = "../../examples/job_halo.rs"]
mod halo;

use support::ranks::{Done, LIMIT, LONG, ROLE, all_of, as_role, command, text, with_role};

use hamlyn::job::{Job, JobError, Launcher};
use hamlyn::protocol::StreamReceiver;
use hamlyn::{Event, LinkId, MetadataIndex, Node, QueueId, SlotConfig, TICKET_BYTES, Ticket};
use std::collections::HashSet;
use std::fs::read_dir;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn hamlyn(dir: &Path, options: &str) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_hamlyn"), dir);
    command.arg("run").args(options.split_whitespace()).arg("--");
    command
}

/// `hamlyn run` with a role, to its end.
fn ran(options: &str, role: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let output = with_role(&mut hamlyn(dir.path(), options), role).output().unwrap();
    // Names that ranks served are gone with them.
    let left: Vec<_> = read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    let is_seed = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("seeds-");
    if output.status.success() {
        assert!(!left.iter().any(is_seed), "{left:?}");
    }
    output
}

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    as_role(&role, || match role.as_str() {
        "all_to_all" => all_to_all::main(),
        "barrier" => barrier::main(),
        "halo" => halo::main(),
        "values" => values(),
        "calls" => calls(),
        "misuse" => misuse(),
        "links" => links(),
        "guarded" => guarded(),
        #[cfg(feature = "tls")]
        "crowd" => crowd(),
        "late" => late(),
        "leaves" => leaves(),
        "dies" => dies(),
        "dies_last" => dies_last(),
        "shows" => shows(),
        "orphans" => orphans(),
        other => panic!("no role {other}"),
    })
}

#[test]
fn four_ranks_send_all_to_all() {
    let output = ran("-n 4", "all_to_all");
    let all = all_of(&output);
    assert!(output.status.success(), "{all}");
    assert!(all.contains("4 ranks, 3 rounds") && all.contains("started by hamlyn run"), "{all}");
}

#[test]
fn four_ranks_meet_at_barriers_and_exchange_their_edges() {
    for (role, says) in [("barrier", "4 ranks met 5 times"), ("halo", "4 ranks, 200 cells")] {
        let output = ran("-n 4", role);
        let all = all_of(&output);
        assert!(output.status.success() && all.contains(says), "{role}: {all}");
    }
}

/// Two hosts as the ranks see them: each agent, and what it starts, in network and mount namespaces
/// of its own, with a directory of its own.
#[cfg(feature = "tls")]
struct Hosts {
    names: [String; 2],
    dir: tempfile::TempDir,
}

#[cfg(feature = "tls")]
impl Hosts {
    /// `None`, which is said: this machine does not let them be made.
    fn new() -> Option<Self> {
        let pid = std::process::id();
        let names = [format!("hamlyn-job-{pid}-a"), format!("hamlyn-job-{pid}-b")];
        let hosts = Self { names, dir: tempfile::tempdir().unwrap() };
        let [a, b] = &hosts.names;
        let lines = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add hj{pid}a type veth peer name hj{pid}b netns {b}"),
            format!("-n {a} addr add 10.78.0.1/24 dev hj{pid}a"),
            format!("-n {b} addr add 10.78.0.2/24 dev hj{pid}b"),
            format!("-n {a} link set hj{pid}a up"),
            format!("-n {b} link set hj{pid}b up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ];
        for line in lines {
            let output = Command::new("ip").args(line.split(' ')).output();
            let why = match output {
                Ok(output) if output.status.success() => continue,
                Ok(output) => text(&output.stderr),
                Err(e) => e.to_string(),
            };
            support::skipped(&format!("jobs of several hosts: ip {line}: {why}"));
            return None;
        }
        // In the place of ssh: the host, and behind it the command.
        let script = format!(
            "#!/bin/sh\ncase $1 in 10.78.0.1) host={a} ;; 10.78.0.2) host={b} ;; *) exit 9 ;; esac\n\
             shift; mkdir -p -m 700 {dir}/$host; export HAMLYN_DIR={dir}/$host\n\
             exec ip netns exec $host \"$@\"\n",
            dir = hosts.dir.path().display()
        );
        std::fs::write(hosts.rsh(), script).unwrap();
        Some(hosts)
    }

    fn rsh(&self) -> std::path::PathBuf {
        self.dir.path().join("rsh")
    }

    fn ran(&self, more: &str, role: &str) -> Output {
        let rsh = format!("sh {}", self.rsh().display());
        let mut command = hamlyn(self.dir.path(), "");
        // Before the program, for which `hamlyn` has put a mark.
        let mut again = Command::new(command.get_program());
        again.args(["run", "-n", "4", "--hosts", "10.78.0.1,10.78.0.2", "--rsh", &rsh]);
        again.args(more.split_whitespace()).arg("--");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => again.env(name, value),
                None => again.env_remove(name),
            };
        }
        again.current_dir(self.dir.path()).stdin(Stdio::null());
        command = again;
        with_role(&mut command, role).output().unwrap()
    }
}

#[cfg(feature = "tls")]
impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

#[cfg(feature = "tls")]
#[test]
fn ranks_of_two_hosts_meet_by_tls_and_those_of_one_by_rings() {
    let Some(hosts) = Hosts::new() else { return };
    for role in ["all_to_all", "barrier", "halo", "calls"] {
        let output = hosts.ran("", role);
        let all = all_of(&output);
        assert!(output.status.success(), "{role}: {all}");
        if role == "all_to_all" {
            assert!(all.contains("by rings to the 2 of this host, by TLS"), "{all}");
        }
    }
    // A rank there dies: all end, here and there.
    let output = hosts.ran("", "dies_last");
    let all = all_of(&output);
    assert_eq!(output.status.code(), Some(128 + 6), "{all}");
    assert!(all.contains("rank 3 on 10.78.0.2 was ended by signal 6"), "{all}");
}

fn values() -> Done {
    let job = Job::from_env()?;
    assert_eq!(job.launcher(), Launcher::Run);
    // The same job, if it is asked for again.
    assert_eq!(Job::from_env()?.manager().id(), job.manager().id());
    let (me, size) = (job.rank(), job.size());
    assert!(matches!(job.get(me, "x"), Err(JobError::NothingPut { .. })));
    job.put("x", &[me as u8; 3])?;
    job.put("long", &vec![me as u8; 32_256])?;
    job.fence(LIMIT)?;
    for rank in 0..size {
        assert_eq!(job.get(rank, "x")?, [rank as u8; 3]);
        assert_eq!(job.get(rank, "long")?, vec![rank as u8; 32_256]);
    }
    // A rank's child does not have descriptors that are not inherited.
    let fd = std::env::var("HAMLYN_JOB_FD")?;
    let shell = format!("test ! -e /proc/self/fd/{fd}");
    assert!(Command::new("sh").args(["-c", &shell]).status()?.success());
    Ok(job.fence(LIMIT)?)
}

#[test]
fn what_a_rank_puts_all_get_after_a_fence() {
    let output = ran("-n 3", "values");
    assert!(output.status.success(), "{}", all_of(&output));
}

fn calls() -> Done {
    let job = Job::from_env()?;
    if job.rank() == 0 {
        // The others ask before it offers anything.
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            job.manager().poll()?;
        }
        let server = job.server()?;
        for _ in 1..job.size() {
            let request = server.receive(LIMIT)?;
            let reply = request.to_ascii_uppercase();
            request.reply(&reply, LIMIT)?;
        }
    } else {
        let client = job.client(0, LIMIT)?;
        assert_eq!(&*client.call(b"hello", LIMIT)?, b"HELLO");
    }
    Ok(job.fence(LIMIT)?)
}

#[test]
fn a_rank_calls_another_before_that_offers_it() {
    let output = ran("-n 4", "calls");
    assert!(output.status.success(), "{}", all_of(&output));
}

/// Rank 0 takes no turn before some of the others, which are all on hosts of their own, were refused.
#[cfg(feature = "tls")]
fn crowd() -> Done {
    use hamlyn::services::{list_services, stat_of};
    let job = Job::from_env()?;
    if job.rank() > 0 {
        assert!(!job.is_local(0)?);
        let client = job.client(0, LIMIT)?;
        assert_eq!(&*client.call(b"hello", LIMIT)?, b"HELLO");
        return Ok(job.fence(LIMIT)?);
    }
    let server = job.server()?;
    let config = hamlyn::Config::from_env()?;
    let until = Instant::now() + LONG;
    loop {
        let own = list_services(&config).entries;
        let name = own.iter().find(|entry| entry.name.starts_with("seeds-"));
        let told = stat_of(&config, &name.ok_or("no service")?.name.parse()?, LIMIT)?;
        if told.contains("of those that wait for an answer") {
            break;
        }
        assert!(Instant::now() < until, "nobody was refused: {told}");
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 1..job.size() {
        let request = server.receive(LIMIT)?;
        let reply = request.to_ascii_uppercase();
        request.reply(&reply, LIMIT)?;
    }
    Ok(job.fence(LIMIT)?)
}

/// A directory of its own makes each rank one of another host.
#[cfg(feature = "tls")]
#[test]
fn a_rank_from_which_many_hosts_grow_at_once_serves_them_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = hamlyn(dir.path(), "-n 21");
    let own = "mkdir -m 700 $HAMLYN_DIR/$$ && HAMLYN_DIR=$HAMLYN_DIR/$$ exec \"$@\"";
    command.args(["sh", "-c", own, "sh"]).env("HAMLYN_JOB_HOST", "127.0.0.1");
    let output = with_role(&mut command, "crowd").output().unwrap();
    assert!(output.status.success(), "{}", all_of(&output));
}

/// A ticket for fast messages to a slot of its own, and the slot's queue.
fn seat(node: &mut Node) -> Result<(QueueId, Ticket), Box<dyn std::error::Error>> {
    let (area, queue) = (node.message_area(64)?, node.notification_queue(256)?);
    let slot = node.slot(SlotConfig::new(area, queue).credit(256))?;
    Ok((queue, node.fast_ticket(slot)?))
}

/// All ask all at once, again and again.
fn links() -> Done {
    let job = Job::from_env()?;
    for round in 0..20 {
        let (mut node, mut ranks) = job.node(&format!("layer-{round}"), b"", LIMIT)?;
        let (me, size) = (ranks.rank(), ranks.size());
        assert_eq!((me, size), (job.rank(), job.size()));
        let (queue, ticket) = seat(&mut node)?;
        // A second end point over the same links: its tickets come in messages.
        let (second, second_ticket) = seat(&mut node)?;
        let area = node.message_area(64 * size as usize)?;
        let tickets = node.notification_queue(size)?;
        let slot = node.slot(SlotConfig::new(area, tickets).metadata(size))?;
        let mut greeting = ticket.to_bytes().to_vec();
        let entry = node.ticket(slot, MetadataIndex(0))?;
        greeting.extend(entry.to_bytes());
        ranks.set_greeting(&greeting);
        let mut links = Vec::new();
        for step in 0..size {
            // In the same order, or in opposite ones.
            let step = if round % 2 == 0 { step } else { size - step };
            let rank = (me + step) % size;
            let link = ranks.link_to(&mut node, rank, LIMIT)?;
            assert_eq!(ranks.rank_of(&node, link), Some(rank));
            assert_eq!(ranks.link_to(&mut node, rank, LIMIT)?, link);
            links.push((rank, link));
        }
        links.retain(|(rank, _)| *rank != me);
        for (_, link) in &links {
            let theirs = node.greeting(*link)?.to_vec();
            let (theirs, entry) = theirs.split_at(TICKET_BYTES);
            node.send_fast(&Ticket::from_bytes(theirs)?, &[], me, LIMIT)?;
            let place = Ticket { metadata_index: MetadataIndex(me), ..Ticket::from_bytes(entry)? };
            let place = place.at(64 * u64::from(me))?;
            node.send_over(*link, &place, &second_ticket.to_bytes(), b"", LIMIT)?;
        }
        for _ in &links {
            let message = node.recv(queue, LIMIT)?;
            assert_eq!(ranks.rank_of(&node, message.link), Some(message.word));
            assert!(links.contains(&(message.word, message.link)), "of another link");
            let message = node.recv(tickets, LIMIT)?;
            let at = 64 * message.index.0 as usize;
            let theirs = Ticket::from_bytes(&node.area(area)?[at..at + TICKET_BYTES])?;
            node.send_over(message.link, &theirs, b"second", b"", LIMIT)?;
        }
        for _ in &links {
            let message = node.recv(second, LIMIT)?;
            assert!(links.iter().any(|(_, link)| *link == message.link));
        }
        job.fence(LIMIT)?;
        while ranks.next_event(&mut node).is_some() {}
        let all: HashSet<_> = node.links().filter(|link| *link != LinkId::SELF).collect();
        let expected: HashSet<_> = links.iter().map(|(_, link)| *link).collect();
        assert_eq!(all, expected, "one link to each rank, round {round}");
        job.fence(LIMIT)?;
        // One that has ended is made anew.
        if round == 0 && me < 2 {
            let (other, link) = *links.iter().find(|(rank, _)| *rank == 1 - me).unwrap();
            if me == 0 {
                node.disconnect(link)?;
                assert_ne!(ranks.link_to(&mut node, other, LIMIT)?, link);
            } else {
                let is_new = |event| matches!(event, Some(Event::Connected { .. }));
                let until = Instant::now() + LONG;
                while !is_new(ranks.next_event(&mut node)) {
                    assert!(Instant::now() < until);
                    node.wait(Some(Duration::from_millis(50)))?;
                }
                assert_eq!(ranks.rank_of(&node, link), Some(other), "of an ended link");
            }
        }
        job.fence(LIMIT)?;
    }
    assert!(matches!(job.node("layer-0", b"", LIMIT), Err(JobError::PutAlready { .. })));
    Ok(job.fence(LIMIT)?)
}

#[test]
fn ranks_that_all_ask_at_once_have_one_link_to_each_other_for_all_end_points() {
    let output = ran("-n 5", "links");
    assert!(output.status.success(), "{}", all_of(&output));
}

#[cfg(feature = "tls")]
#[test]
fn ranks_of_several_hosts_have_one_link_to_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = hamlyn(dir.path(), "-n 3");
    let own = "mkdir -m 700 $HAMLYN_DIR/$$ && HAMLYN_DIR=$HAMLYN_DIR/$$ exec \"$@\"";
    command.args(["sh", "-c", own, "sh"]).env("HAMLYN_JOB_HOST", "127.0.0.1");
    let output = with_role(&mut command, "links").output().unwrap();
    assert!(output.status.success(), "{}", all_of(&output));
}

/// Links of ranks under a manager, whose threads share it; and a stranger.
fn guarded() -> Done {
    let job = Job::from_env()?;
    let (node, mut ranks) = job.node("layer", b"hello", LIMIT)?;
    let (manager, other) = (hamlyn::protocol::Manager::from_node(node)?, 1 - job.rank());
    // Nobody takes events here: the request goes on, and its link comes later.
    if job.rank() == 1 {
        let mut node = manager.lock();
        let soon = Some(Duration::from_millis(20));
        let error = ranks.link_to(&mut node, other, soon).unwrap_err();
        assert!(matches!(error, JobError::NotLinked { rank: 0 }), "{error}");
    }
    job.fence(LIMIT)?;
    let until = Instant::now() + LONG;
    let link = loop {
        while let Some(event) = manager.next_event() {
            let _ = ranks.take(&mut manager.lock(), event);
        }
        if let Some(link) = ranks.try_link_to(&mut manager.lock(), other)? {
            break link;
        }
        assert!(Instant::now() < until);
        manager.poll()?;
    };
    assert_eq!(manager.lock().greeting(link)?, b"hello");
    let size = job.size();
    let none = ranks.try_link_to(&mut manager.lock(), size).unwrap_err();
    assert!(matches!(none, JobError::NoRank { rank: 2, .. }), "{none}");
    // A node of the same user that is no rank's.
    if job.rank() == 0 {
        let config = hamlyn::Config::from_env()?;
        let own = manager.id();
        let stranger = std::thread::spawn(move || {
            let mut stranger = Node::with_config(config).unwrap();
            stranger.connect(&format!("ranks-{:016x}", own.0), b"", LIMIT).unwrap_err().to_string()
        });
        while !stranger.is_finished() {
            if let Some(event) = manager.next_event() {
                let _ = ranks.take(&mut manager.lock(), event);
            }
            manager.poll()?;
        }
        let why = stranger.join().unwrap();
        assert!(why.contains("none of a rank"), "{why}");
    }
    Ok(job.fence(LIMIT)?)
}

#[test]
fn links_of_ranks_are_made_under_a_manager_too_and_for_no_stranger() {
    let output = ran("-n 2", "guarded");
    assert!(output.status.success(), "{}", all_of(&output));
}

fn misuse() -> Done {
    let job = Job::from_env()?;
    // Time to connect, also on a busy machine.
    let soon = Some(Duration::from_secs(2));
    let error = job.stream_to(job.size(), LIMIT).map(drop).unwrap_err().to_string();
    assert!(error.contains("rank 2") && error.contains("from 0 to 1"), "{error}");
    let error = job.put("a b", b"").unwrap_err().to_string();
    assert!(error.contains("a-z A-Z 0-9"), "{error}");
    let error = job.put("x", &vec![0; 40_000]).unwrap_err().to_string();
    assert!(error.contains("40000") && error.contains("32256"), "{error}");
    job.put("y", b"1")?;
    let error = job.put("y", b"2").unwrap_err().to_string();
    assert!(error.contains("under \"y\" already"), "{error}");
    let error = job.client(1 - job.rank(), soon).map(drop).unwrap_err();
    assert!(matches!(error, JobError::NotOffered { .. }), "{error}");
    let _one = job.stream_from(0)?;
    assert!(matches!(job.stream_from(0).map(drop), Err(JobError::Taken { .. })));
    // Dropped, it makes room.
    drop(_one);
    drop(job.stream_from(0)?);
    let other = hamlyn::protocol::Manager::new()?;
    let foreign = StreamReceiver::new(&other, Default::default())?;
    assert!(matches!(job.offer(&foreign, "z"), Err(JobError::OtherManager)));
    Ok(job.fence(LIMIT)?)
}

#[test]
fn misuse_is_told_and_changes_nothing() {
    let output = ran("-n 2", "misuse");
    assert!(output.status.success(), "{}", all_of(&output));
}

/// Rank 2 comes to the fence when the others have said that it is missing.
fn late() -> Done {
    let job = Job::from_env()?;
    if job.rank() == 2 {
        let mut from = [job.stream_from(0)?, job.stream_from(1)?];
        for from in &mut from {
            from.receive(LIMIT)?;
        }
        return Ok(job.fence(LIMIT)?);
    }
    let mut to = job.stream_to(2, LIMIT)?;
    let mut times = 0;
    loop {
        match job.fence(Some(Duration::from_millis(100))) {
            // 1 may be late, too, at first.
            Err(JobError::Missing { ranks, limit_ms: 100 }) if ranks == [2] && times == 0 => {
                times += 1;
                to.send(b"come", LIMIT)?;
                to.flush(LIMIT)?;
            }
            Err(JobError::Missing { ranks, .. }) if ranks.contains(&2) => {}
            Ok(()) if times == 1 => return Ok(()),
            other => return Err(format!("{other:?}").into()),
        }
    }
}

#[test]
fn a_time_limit_names_the_ranks_that_are_missing_and_the_fence_goes_on() {
    let output = ran("-n 3", "late");
    assert!(output.status.success(), "{}", all_of(&output));
}

/// Rank 1 ends, with success, and the others wait for it in vain.
fn leaves() -> Done {
    let job = Job::from_env()?;
    if job.rank() == 1 {
        return Ok(());
    }
    match job.fence(LIMIT) {
        Err(JobError::Ended(ranks)) if ranks == [1] => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

#[test]
fn a_rank_that_ended_is_waited_for_no_more() {
    let output = ran("-n 3", "leaves");
    assert!(output.status.success(), "{}", all_of(&output));
}

fn dies() -> Done {
    let job = Job::from_env()?;
    job.fence(LIMIT)?;
    if job.rank() == 1 {
        std::process::abort();
    }
    // The launcher ends this one, or the link tells of it.
    job.stream_from(1)?.receive(LIMIT)?;
    Err("a record came of a rank that is dead".into())
}

fn dies_last() -> Done {
    let job = Job::from_env()?;
    if job.rank() == job.size() - 1 {
        let mut from = job.stream_from(0)?;
        from.receive(LIMIT)?;
        std::process::abort();
    }
    if job.rank() == 0 {
        let mut to = job.stream_to(job.size() - 1, LIMIT)?;
        to.send(b"die", LIMIT)?;
        to.flush(LIMIT)?;
    }
    job.stream_from(job.size() - 1)?.receive(LIMIT)?;
    Err("a record came of a rank that is dead".into())
}

#[test]
fn with_a_rank_that_dies_all_end_and_the_status_is_its() {
    let output = ran("-n 3", "dies");
    let all = all_of(&output);
    assert_eq!(output.status.code(), Some(128 + 6), "{all}");
    assert!(all.contains("rank 1 on localhost was ended by signal 6"), "{all}");
}

#[test]
fn the_status_is_that_of_the_first_that_failed_and_nobody_stays() {
    let dir = tempfile::tempdir().unwrap();
    // The others do not end when they are asked to; one has started something that left its group.
    let script = "case $HAMLYN_JOB_RANK in \
         0) setsid sleep 98765 & echo left $! ;; \
         1) sleep 0.3; echo out; echo err >&2; exit 7 ;; esac; \
         trap '' TERM; while :; do sleep 98765; done";
    let output = hamlyn(dir.path(), "-n 3 --label").args(["sh", "-c", script]).output().unwrap();
    let all = all_of(&output);
    assert_eq!(output.status.code(), Some(7), "{all}");
    let out = text(&output.stdout);
    assert!(out.lines().any(|line| line == "1: out"), "{all}");
    assert!(text(&output.stderr).lines().any(|line| line == "1: err"), "{all}");
    let left = out.lines().find_map(|line| line.strip_prefix("0: left ")).unwrap();
    assert!(!Path::new(&format!("/proc/{left}")).exists(), "{all}");
}

#[test]
fn a_program_that_is_not_there_has_a_shell_s_status() {
    let dir = tempfile::tempdir().unwrap();
    let output = hamlyn(dir.path(), "-n 2").arg("hamlyn-no-such-program").output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", all_of(&output));
    let all = all_of(&output);
    assert!(all.contains("cannot run hamlyn-no-such-program"), "{all}");
}

fn shows() -> Done {
    let job = Job::from_env()?;
    job.fence(LIMIT)?;
    println!("ready");
    std::io::stdout().flush()?;
    std::thread::sleep(2 * LONG);
    Ok(())
}

/// A job that sleeps, when each of its ranks has said something.
fn sleeping(dir: &Path, role: &str, ranks: usize) -> (Child, BufReader<impl Read>, Vec<String>) {
    let options = format!("-n {ranks}");
    let mut child = with_role(&mut hamlyn(dir, &options), role).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut said = Vec::new();
    while said.len() < ranks {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended");
        if let Some((_, what)) = line.trim().split_once("ready") {
            said.push(what.trim().to_owned());
        }
    }
    (child, lines, said)
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn signals_are_handed_on() {
    for (number, status) in
        [(rustix::process::Signal::INT, 130), (rustix::process::Signal::TERM, 143)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, _lines, _) = sleeping(dir.path(), "shows", 2);
        signal(child.id(), number);
        assert_eq!(child.wait().unwrap().code(), Some(status));
    }
}

fn orphans() -> Done {
    let job = Job::from_env()?;
    let fd = std::env::var("HAMLYN_JOB_FD")?;
    job.fence(LIMIT)?;
    println!("ready {} {fd}", std::process::id());
    std::io::stdout().flush()?;
    std::thread::sleep(2 * LONG);
    Ok(())
}

#[test]
fn ranks_end_with_a_launcher_that_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, _lines, said) = sleeping(dir.path(), "orphans", 2);
    child.kill().unwrap();
    child.wait().unwrap();
    let until = Instant::now() + LONG;
    for said in said {
        let pid = said.split_whitespace().next().unwrap().to_owned();
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Gone, or a zombie until its new parent looks.
        while !(stat().is_empty() || stat().contains(") Z ")) {
            assert!(Instant::now() < until, "rank {pid} is still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn the_secret_is_on_no_command_line_and_in_no_environment() {
    let dir = tempfile::tempdir().unwrap();
    let (child, _lines, said) = sleeping(dir.path(), "orphans", 2);
    // The job's secret is 64 hexadecimal digits, and no such word may be seen of any of its processes.
    let parent = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().to_owned()
    };
    let rank = said[0].split_whitespace().next().unwrap().to_owned();
    let agent = parent(&rank);
    assert_eq!(parent(&agent), child.id().to_string());
    for pid in [rank, agent, child.id().to_string()] {
        for file in ["cmdline", "environ"] {
            let seen = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            let longest = seen.split(|byte| !byte.is_ascii_hexdigit()).map(<[u8]>::len).max();
            assert!(longest < Some(64), "{file}: {}", text(&seen));
        }
    }
    signal(child.id(), rustix::process::Signal::TERM);
    let mut child = child;
    child.wait().unwrap();
}

#[test]
fn what_makes_no_sense_is_refused_with_what_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    for (options, wanted) in [
        ("-n 0", "1..=65536"),
        ("-n 1 --hosts a,b", "too few"),
        ("-n 2 --hosts a,a", "twice"),
        ("-n 2 --hosts=-x", "a-z A-Z 0-9"),
        ("-n 2 --hosts a;b", "a-z A-Z 0-9"),
        ("-n 2 --env x", "NAME=VALUE"),
        ("-n 1 --hosts elsewhere --rsh hamlyn-no-such-program", "hamlyn-no-such-program"),
        ("-n 1 --hosts elsewhere --rsh true", "did not start: true ended with status 0"),
        ("-n 1 --hosts elsewhere --rsh timeout", "did not start: timeout ended with status 125"),
        ("-n 1 --hosts no-such-command --rsh env", "did not start: env ended with status 127: "),
        ("-n 1 --hosts elsewhere --rsh echo", "something else came"),
    ] {
        let output = hamlyn(dir.path(), options).arg("true").output().unwrap();
        let all = all_of(&output);
        assert!(!output.status.success() && all.contains(wanted), "{options}: {all}");
    }
}

#[test]
fn a_launcher_that_is_none_is_an_error_that_names_the_variable() {
    let dir = tempfile::tempdir().unwrap();
    for (name, value) in [("HAMLYN_JOB_FD", "0"), ("HAMLYN_JOB_FD", "x"), ("PMI_FD", "99")] {
        let own = std::env::current_exe().unwrap();
        let mut command = command(own.to_str().unwrap(), dir.path());
        command.args(["--exact", "role", "--nocapture"]).env(ROLE, "values").env(name, value);
        command.env("PMI_RANK", "0").env("PMI_SIZE", "1");
        let output = command.output().unwrap();
        let all = all_of(&output);
        assert!(output.status.code() == Some(3) && all.contains(name), "{all}");
    }
}
