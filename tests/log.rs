//! The log of links for an operator, with the reasons: by a function of the program's, and as
//! events of `tracing`.
#![cfg(feature = "os")]

use hamlyn::log::{Entry, Kind, Level, set_sink};
use hamlyn::{Accept, Access, Config, Event, Key, MetadataIndex, Node, SlotConfig, Ticket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);
/// Set: this process is the peer that dies.
const PEER: &str = "HAMLYN_TEST_LOG_PEER";

/// The name it connects to, if not `x`.
const PEER_NAME: &str = "HAMLYN_TEST_LOG_PEER_NAME";

/// The whole process has one log function.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Heard {
    entries: Arc<Mutex<Vec<Entry>>>,
    _turn: MutexGuard<'static, ()>,
}

impl Heard {
    fn new() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
        let entries = Arc::<Mutex<Vec<Entry>>>::default();
        let sink = entries.clone();
        set_sink(Some(Arc::new(move |entry| sink.lock().unwrap().push(entry.clone()))));
        Self { entries, _turn: turn }
    }

    /// The first entry of this kind, when it is there; `nodes` go on meanwhile.
    fn wait_for(&self, kind: Kind, nodes: &mut [&mut Node]) -> Entry {
        let end = Instant::now() + LONG;
        loop {
            nodes.iter_mut().for_each(|node| assert!(node.poll().is_ok()));
            let entries = self.entries.lock().unwrap().clone();
            if let Some(entry) = entries.iter().find(|entry| entry.kind == kind) {
                return entry.clone();
            }
            assert!(Instant::now() < end, "{kind:?}: {entries:?}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        set_sink(None);
    }
}

fn config(directory: &Path) -> Config {
    // A name of another host is spoken with as if it were there.
    let tls = hamlyn::config::Local::Tls;
    Config::default().dir(directory).wrong_keys_max(1u32).local(tls)
}

/// A node that serves `x`, and a ticket for it.
fn server(directory: &Path, accept: impl FnOnce(&Ticket) -> Accept) -> (Node, Ticket) {
    let mut node = Node::with_config(config(directory)).unwrap();
    let area = node.message_area(4096).unwrap();
    let queue = node.notification_queue(16).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
    let ticket = node.ticket(slot, MetadataIndex(0)).unwrap();
    node.serve("x", Access::SameUser, accept(&ticket)).unwrap();
    (node, ticket)
}

#[test]
fn links_that_come_and_are_sent_away_are_told_at_both_ends_with_the_reason() {
    let heard = Heard::new();
    let dir = tempfile::tempdir().unwrap();
    let (mut server, mut ticket) = server(dir.path(), |_| Accept::Automatic(vec![]));
    let mut client = Node::with_config(config(dir.path())).unwrap();
    client.connect("x", b"", Some(LONG)).unwrap();
    let connected = heard.wait_for(Kind::Connected, &mut [&mut server]);
    assert_eq!(connected.process, Some(std::process::id()));
    assert_eq!(connected.user, Some(rustix::process::geteuid().as_raw()));
    assert_eq!((&*connected.service, connected.kind.level()), ("x", Level::Info));
    // It guesses a key, and one is too many here.
    ticket.key = Key(ticket.key.0 ^ 1);
    client.send(&ticket, b"guess", b"", Some(LONG)).unwrap();
    let away = heard.wait_for(Kind::SentAway, &mut [&mut server, &mut client]);
    assert!(away.reason.contains("wrong key") && away.service == "x", "{away}");
    assert!(away.to_string().starts_with("sent-away: user "), "{away}");
    let expelled = heard.wait_for(Kind::Expelled, &mut [&mut server, &mut client]);
    assert_eq!(expelled.kind.level(), Level::Error);
}

#[test]
fn who_is_refused_and_why_is_told_at_both_ends() {
    let heard = Heard::new();
    let dir = tempfile::tempdir().unwrap();
    let (mut server, _) = server(dir.path(), |_| Accept::Ask);
    let config = config(dir.path());
    let client = std::thread::spawn(move || {
        let mut client = Node::with_config(config).unwrap();
        client.connect("x", b"", Some(LONG)).unwrap_err().to_string()
    });
    let end = Instant::now() + LONG;
    let id = loop {
        server.poll().unwrap();
        match server.next_event() {
            Some(Event::Request { id, .. }) => break id,
            _ => assert!(Instant::now() < end, "nobody asks"),
        }
    };
    server.refuse(id, "not on a Sunday\u{1b}[31m").unwrap();
    assert!(client.join().unwrap().contains("not on a Sunday"));
    for kind in [Kind::Refused, Kind::Failed] {
        let entry = heard.wait_for(kind, &mut [&mut server]);
        assert!(entry.reason.contains("not on a Sunday"), "{entry}");
        // Text of another process is shown, never obeyed.
        assert!(!entry.to_string().contains('\u{1b}'), "{entry}");
        assert_eq!(kind.level(), Level::Warning);
    }
}

/// Not a test: the peer that the next one kills.
#[test]
fn peer() {
    let Some(dir) = std::env::var_os(PEER) else { return };
    let mut config = config(Path::new(&dir));
    let name = std::env::var(PEER_NAME).unwrap_or("x".into());
    if name.starts_with("hamlyn://") {
        config = config.secret(Path::new(&dir).join("secret"));
    }
    let mut node = Node::with_config(config).unwrap();
    node.connect(&name, b"", Some(LONG)).unwrap();
    println!("connected");
    std::thread::sleep(LONG);
}

#[test]
fn a_death_and_a_goodbye_are_told() {
    let heard = Heard::new();
    let dir = tempfile::tempdir().unwrap();
    let (mut server, _) = server(dir.path(), |_| Accept::Automatic(vec![]));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "peer", "--nocapture"]).env(PEER, dir.path());
    let mut peer = command.stdout(Stdio::null()).spawn().unwrap();
    let connected = heard.wait_for(Kind::Connected, &mut [&mut server]);
    peer.kill().unwrap();
    peer.wait().unwrap();
    let died = heard.wait_for(Kind::Died, &mut [&mut server]);
    assert_eq!((died.process, connected.process), (Some(peer.id()), Some(peer.id())));
    let mut client = Node::with_config(config(dir.path())).unwrap();
    client.connect("x", b"", Some(LONG)).unwrap();
    client.close(Some(LONG)).unwrap();
    heard.wait_for(Kind::Closed, &mut [&mut server]);
}

#[cfg(feature = "tls")]
#[test]
fn links_to_other_hosts_that_come_and_go_are_told_and_counted_as_those_of_this_host() {
    use std::os::unix::fs::PermissionsExt;
    let heard = Heard::new();
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "7".repeat(64)).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = config(dir.path()).secret(&secret);
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let mut server = Node::with_config(config.clone().listen(any)).unwrap();
    server.serve("x", Access::SameUser, Accept::Automatic(vec![])).unwrap();
    let at = server.listens_at().unwrap();
    let name = format!("hamlyn://{at}/x");
    let of_host = |entry: &Entry| {
        let known = (entry.user, entry.process, &*entry.service);
        assert!(
            known == (None, None, "x") && entry.reason.starts_with("host 127.0.0.1"),
            "{entry}"
        );
    };
    let forget = || heard.entries.lock().unwrap().clear();

    let mut client = Node::with_config(config.clone()).unwrap();
    client.connect(&name, b"", Some(LONG)).unwrap();
    of_host(&heard.wait_for(Kind::Connected, &mut [&mut server]));
    client.close(Some(LONG)).unwrap();
    let closed = heard.wait_for(Kind::Closed, &mut [&mut server]);
    of_host(&closed);
    assert_eq!(closed.reason, "host 127.0.0.1, secret");
    // Both ends get the new link, and its initiator.
    let both = heard.entries.lock().unwrap().clone();
    let connected: Vec<&Entry> = both.iter().filter(|e| e.kind == Kind::Connected).collect();
    assert_eq!(connected.len(), 2, "{both:?}");
    assert!(
        connected.iter().any(|entry| entry.reason.ends_with("this process connected")),
        "{both:?}"
    );

    forget();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "peer", "--nocapture"]).env(PEER, dir.path()).env(PEER_NAME, &name);
    let mut peer = command.stdout(Stdio::null()).spawn().unwrap();
    heard.wait_for(Kind::Connected, &mut [&mut server]);
    peer.kill().unwrap();
    peer.wait().unwrap();
    let died = heard.wait_for(Kind::Died, &mut [&mut server]);
    of_host(&died);
    assert!(died.reason.contains("ended without a word"), "{died}");

    // A name that nobody serves is waited for as long as the limit; a busy machine needs a longer one
    // to meet the host at all.
    let mut client = Node::with_config(config.clone()).unwrap();
    let failed = [200, 2_000, 20_000].into_iter().find_map(|limit_ms| {
        forget();
        let limit = Some(Duration::from_millis(limit_ms));
        client.connect(&format!("hamlyn://{at}/nobody"), b"", limit).unwrap_err();
        let failed = heard.wait_for(Kind::Failed, &mut [&mut server]);
        assert_eq!(failed.service, "nobody", "{failed}");
        failed.reason.contains("nobody serves this name").then_some(failed)
    });
    assert!(failed.is_some(), "{:?}", heard.entries.lock().unwrap());

    let told = hamlyn::services::stat_of(&config, &"x".parse().unwrap(), Some(LONG)).unwrap();
    for counted in ["links 2", "closed_graceful 1", "closed_died 1"] {
        let line = format!("control.{counted}");
        assert!(told.lines().any(|found| found == line), "{line}: {told}");
    }
}

#[test]
fn whoever_listens_may_call_the_library_and_panic_and_nobody_hears_more_than_is_asked_for() {
    let heard = Heard::new();
    let dir = tempfile::tempdir().unwrap();
    let (mut server, _) = server(dir.path(), |_| Accept::Automatic(vec![]));
    let mut client = Node::with_config(config(dir.path())).unwrap();
    let (entries, config) = (heard.entries.clone(), config(dir.path()));
    set_sink(Some(Arc::new(move |entry| {
        // This is the housekeeping of one of the two, and the other serves the name.
        let names = hamlyn::control::list_services(&config).entries;
        entries.lock().unwrap().push(entry.clone());
        assert!(names.is_empty(), "a panic of the program's");
    })));
    let link = client.connect("x", b"", Some(LONG)).unwrap();
    heard.wait_for(Kind::Connected, &mut [&mut server]);
    client.disconnect(link).unwrap();
    heard.wait_for(Kind::Closed, &mut [&mut server]);
    // No function is set any more.
    set_sink(None);
    let before = heard.entries.lock().unwrap().len();
    let link = client.connect("x", b"", Some(LONG)).unwrap();
    client.disconnect(link).unwrap();
    let opened =
        |node: &Node| node.counters().iter().find(|row| row.0 == "links_closed").unwrap().1;
    while opened(&server) < 2 {
        server.poll().unwrap();
    }
    assert_eq!(heard.entries.lock().unwrap().len(), before);
}

#[cfg(feature = "tracing")]
mod with_tracing {
    use super::*;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber};

    static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Writes down each event of the target `hamlyn`.
    struct Collector;

    #[derive(Default)]
    struct Fields(String);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0 += &format!(" {}={value:?}", field.name());
        }
    }

    impl Subscriber for Collector {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "hamlyn"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut fields = Fields(event.metadata().level().to_string());
            event.record(&mut fields);
            EVENTS.lock().unwrap().push(fields.0);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn the_same_are_events_of_tracing() {
        let heard = Heard::new();
        tracing::subscriber::set_global_default(Collector).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (mut server, _) = server(dir.path(), |_| Accept::Automatic(vec![]));
        let mut client = Node::with_config(config(dir.path())).unwrap();
        client.connect("x", b"", Some(LONG)).unwrap();
        client.close(Some(LONG)).unwrap();
        heard.wait_for(Kind::Closed, &mut [&mut server]);
        let events = EVENTS.lock().unwrap().clone();
        let process = format!("process={}", std::process::id());
        for (level, kind) in [("INFO", "connected"), ("INFO", "closed")] {
            let wanted = format!("kind=\"{kind}\"");
            let is_it = |event: &&String| event.starts_with(level) && event.contains(&wanted);
            let event = events.iter().find(is_it).unwrap_or_else(|| panic!("{kind}: {events:?}"));
            assert!(event.contains(&process) && event.contains("service=\"x\""), "{event}");
        }
    }
}
