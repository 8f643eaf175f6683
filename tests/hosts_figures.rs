//! The counters of a process, requested from another host: only permitted hosts get them, and
//! neither end believes, keeps or waits for more than it must.
#![cfg(not(miri))]

#[path = "support/hand.rs"]
mod hand;
mod support;

use hamlyn::config::HostNames;
use hamlyn::control::hosts::HostName;
use hamlyn::control::hosts::figures::{
    ANSWERS_OF_ONE_MAX, BYTES_MAX, FiguresError, HostFigures, ask,
};
use hamlyn::control::hosts::hello::{Answer, Wants, to_bytes_with};
use hamlyn::control::hosts::keys::{Keys, TlsEnd};
use hamlyn::control::hosts::meeting::{Meeting, MeetingStep, OwnData};
use hamlyn::control::hosts::said::Said;
use hamlyn::control::stat_of;
use hamlyn::transport::path::Path as _;
use hamlyn::{Accept, Access, Config, Node};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use support::*;

const LOOPBACK: &str = "127.0.0.1:0";

fn config(dir: &Dir) -> Config {
    dir.config().secret(dir.secret())
}

/// A node that serves `x`, and tells its figures to these.
fn server(config: &Config, to: &str) -> (Node, SocketAddr) {
    let to = Config::from_lookup(|name| (name == "HAMLYN_FIGURES_TO").then(|| to.into()));
    let HostNames(to) = to.unwrap().figures_to;
    let config = config.clone().figures_to(to).listen(LOOPBACK.parse::<SocketAddr>().unwrap());
    let mut node = Node::with_config(config).unwrap();
    node.serve("x", Access::SameUser, Accept::Ask).unwrap();
    let at = node.listens_at().unwrap();
    (node, at)
}

fn asked(config: &Config, at: SocketAddr, service: &str) -> Result<HostFigures, FiguresError> {
    let name: HostName = format!("hamlyn://{at}/{service}").parse().unwrap();
    ask(config, &name, LONG)
}

fn count(node: &Node, name: &str) -> u64 {
    node.counters().iter().find(|row| row.0 == name).unwrap().1
}

#[test]
fn figures_are_told_to_the_hosts_that_the_setting_names_as_they_are_to_the_user_here() {
    let dir = Dir::new("told", &[]);
    let config = config(&dir);
    let (mut node, at) = server(&config, "b.example, secret");
    let told = asked(&config, at, "x").unwrap();
    assert_eq!((told.address, &*told.identity), (at, "secret"));
    let here = stat_of(&config, &"x".parse().unwrap(), LIMIT).unwrap();
    let names = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&told.text), names(&here));
    let node_of = |text: &str| text.lines().find(|l| l.starts_with("node ")).map(str::to_owned);
    assert_eq!(node_of(&told.text), node_of(&here));
    // No program hears of it, and nothing is counted as refused.
    assert!(node.next_event().is_none());
    assert_eq!(count(&node, "links_opened"), 0);
    for (name, value) in node.counters() {
        assert!(value == 0 || !name.contains("refused"), "{name} {value}");
    }
    // A name without a service has no figures.
    let error = asked(&config, at, "nothing").unwrap_err().to_string();
    assert!(error.contains("nobody serves this name"), "{error}");
}

#[test]
fn nobody_is_told_whom_the_setting_does_not_name_and_the_error_names_it() {
    let dir = Dir::new("untold", &[]);
    let config = config(&dir);
    for to in ["", "a.example"] {
        let (node, at) = server(&config, to);
        let error = asked(&config, at, "x").unwrap_err().to_string();
        assert!(error.contains("figures_to (HAMLYN_FIGURES_TO)"), "{error}");
        assert!(error.contains("does not name secret"), "{error}");
        // Nor what is served.
        let error = asked(&config, at, "nothing").unwrap_err().to_string();
        assert!(error.contains("figures_to (HAMLYN_FIGURES_TO)"), "{error}");
        assert_eq!(count(&node, "control.hosts_refused_user"), 2);
    }
}

#[test]
fn many_who_ask_cost_few_texts_and_who_takes_nothing_keeps_out_none_but_himself() {
    let dir = Dir::new("many", &[]);
    let config = config(&dir);
    let (node, at) = server(&config, "secret");
    // A repeated question gets the same answer: the time in it does not go on.
    let uptime = |told: HostFigures| {
        told.text.lines().find(|l| l.starts_with("uptime_ms")).map(str::to_owned)
    };
    let ask_twice = || {
        let ask = || uptime(asked(&config, at, "x").unwrap());
        (ask(), ask())
    };
    until("two ask within a tenth of a second", || {
        let (one, other) = ask_twice();
        one.is_some() && one == other
    });
    // Those that ask and do not take.
    let hand = hand::Hand::new(&config);
    let mut silent = Vec::new();
    for _ in 0..ANSWERS_OF_ONE_MAX + 2 {
        let mut channel = hand.client(at);
        until("TLS is agreed", || {
            channel.receive(1);
            channel.flush();
            channel.is_open()
        });
        let wants = Wants {
            who: hand.who(TlsEnd::Client, &channel),
            service: "x".into(),
            greeting: Vec::new(),
        };
        let mut says = Vec::new();
        Said::Figures.put(&mut says);
        Said::Asks.put(&mut says);
        channel.put(&to_bytes_with(&wants, &says));
        channel.flush();
        silent.push(channel);
    }
    until("the last are refused", || count(&node, "control.hosts_refused_connections") >= 2);
    // The node goes on as before.
    assert!(stat_of(&config, &"x".parse().unwrap(), LIMIT).is_ok());
    drop(silent);
    until("there is room again", || asked(&config, at, "x").is_ok());
}

/// The messages of a host by hand after its acceptance.
enum Says {
    /// These bytes, and then nothing.
    Bytes(Vec<u8>),
    /// These, and it ends.
    Ends(Vec<u8>),
}

fn lie(says: &Says, within: Duration) -> String {
    let dir = Dir::new("lies", &[]);
    let config = config(&dir);
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let at = listener.local_addr().unwrap();
    let hand = hand::Hand::new(&config);
    std::thread::scope(|scope| {
        let liar = scope.spawn(|| {
            let (tcp, _) = listener.accept().unwrap();
            let (keys, identity) = (Keys::load(&config).unwrap(), hand.identity.clone());
            let own = OwnData { keys, identity, packet_bytes: 4096 };
            let mut meeting = Meeting::of_server(hand.server(tcp));
            loop {
                match meeting.turn(&own) {
                    MeetingStep::Wants(..) => break,
                    MeetingStep::Waits => std::thread::sleep(Duration::from_micros(200)),
                    step => panic!("{step:?}"),
                }
            }
            let (before, last) = Said::split(&meeting.heard);
            assert_eq!((Said::split(before).1, last), (Some(Said::Figures), Some(Said::Asks)));
            meeting.answer(&Answer::Yes(Vec::new()));
            let (Says::Bytes(bytes) | Says::Ends(bytes)) = says;
            meeting.channel.put(bytes);
            if matches!(says, Says::Ends(_)) {
                meeting.channel.put_end();
            }
            let end = Instant::now() + LONG;
            while meeting.channel.ended().is_none() && Instant::now() < end {
                meeting.channel.flush();
                meeting.channel.receive(1);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let name: HostName = format!("hamlyn://{at}/x").parse().unwrap();
        let told = ask(&config, &name, within);
        liar.join().unwrap();
        match told {
            Ok(told) => told.text,
            Err(error) => error.to_string(),
        }
    })
}

#[test]
fn an_answer_that_is_too_long_garbage_cut_or_slow_is_an_error_in_time() {
    let with_length = |length: u32, text: &[u8]| [&length.to_le_bytes()[..], text].concat();
    let said = lie(&Says::Bytes(with_length(BYTES_MAX as u32 + 1, b"")), LONG);
    assert!(said.contains("longer than any"), "{said}");
    let said = lie(&Says::Bytes(with_length(u32::MAX, &[b'x'; 100_000])), LONG);
    assert!(said.contains("longer than any"), "{said}");
    let said = lie(&Says::Ends(with_length(100, b"links 1\n")), LONG);
    assert!(said.contains("end before they are whole"), "{said}");
    let said = lie(&Says::Ends(b"\x01".to_vec()), LONG);
    assert!(said.contains("end before they are whole"), "{said}");
    for cut in [&b""[..], b"\x09\x00", b"\x09\x00\x00\x00links 1"] {
        let said = lie(&Says::Bytes(cut.to_vec()), Duration::from_secs(2));
        assert!(said.contains("has not answered in time"), "{said}");
    }
    // A terminal does not obey bytes that are no text.
    let said = lie(&Says::Ends(with_length(11, b"a \x1b[2J\xff\nb 2")), LONG);
    assert_eq!(said, "a \\u{1b}[2J\u{fffd}\nb 2\n");
}
