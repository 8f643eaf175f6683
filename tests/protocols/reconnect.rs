//! A client in threads that connects again when its server goes.

use crate::help::{Dir, LIMIT, LONG, SHORT, at, until};
use hamlyn::Access;
use hamlyn::protocol::{
    CallError, CallOptions, ClientConfig, ConnectionState, ReceiveError, ReconnectPolicy,
    ReconnectingClient, Server, ServerConfig,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A server, and the thread that answers with what it was sent; how often.
fn echo(dir: &Dir) -> (Arc<Server>, JoinHandle<usize>) {
    let server = Arc::new(serve(dir));
    let serving = server.clone();
    let answered = std::thread::spawn(move || {
        let mut answered = 0;
        loop {
            match serving.receive(LIMIT) {
                Ok(request) => {
                    let sent = request.to_vec();
                    request.reply(&sent, LIMIT).unwrap();
                }
                Err(ReceiveError::Draining) => return answered,
                Err(e) => panic!("{e}"),
            }
            answered += 1;
        }
    });
    (server, answered)
}

fn serve(dir: &Dir) -> Server {
    let server = Server::new(&dir.answering(), ServerConfig::default()).unwrap();
    server.serve("again", Access::SameUser).unwrap();
    server
}

fn connect(dir: &Dir, policy: ReconnectPolicy) -> ReconnectingClient {
    ReconnectingClient::connect(&dir.manager(), &at("again"), policy, LIMIT).unwrap()
}

#[test]
fn threads_go_from_a_server_that_drains_to_the_next_and_lose_no_call() {
    let dir = Dir::new("again-drain");
    let (mut server, mut answered) = echo(&dir);
    let client = connect(&dir, ReconnectPolicy::default());
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let call = || {
        while !stop.load(Ordering::Relaxed) {
            // Not one of them fails, none is lost.
            assert_eq!(&*client.call(b"again", LIMIT).unwrap(), b"again");
            calls.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let callers = [(); 3].map(|()| scope.spawn(call));
        let mut taken = 0;
        for round in 2..5 {
            let before = calls.load(Ordering::Relaxed);
            until(|| calls.load(Ordering::Relaxed) > before);
            assert_eq!(server.drain(LIMIT).unwrap(), 0);
            taken += answered.join().unwrap();
            drop(server);
            (server, answered) = echo(&dir);
            until(|| client.state() == ConnectionState::Connected { number: round });
        }
        stop.store(true, Ordering::Relaxed);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        server.drain(LIMIT).unwrap();
        taken += answered.join().unwrap();
        assert_eq!(taken, calls.load(Ordering::Relaxed));
    });
}

#[test]
fn a_call_whose_reply_is_lost_is_sent_again_only_if_it_may_be() {
    let dir = Dir::new("again-lost");
    let server = serve(&dir);
    let client = connect(&dir, ReconnectPolicy::default());
    let options = CallOptions { limit: LIMIT, is_idempotent: true };
    std::thread::scope(|scope| {
        let once = scope.spawn(|| client.call(b"once", LIMIT));
        let again = scope.spawn(|| client.call_with(b"again", options));
        {
            let _held = [server.receive(LIMIT).unwrap(), server.receive(LIMIT).unwrap()];
            assert_eq!(server.drain(Some(Duration::ZERO)).unwrap(), 2);
            let lost = once.join().unwrap();
            assert!(matches!(lost, Err(CallError::Ended(_))), "{lost:?}");
        }
        drop(server);
        let server = serve(&dir);
        let request = server.receive(LIMIT).unwrap();
        assert_eq!(&*request, b"again");
        // The rest of its limit.
        assert!(request.deadline().unwrap() <= Instant::now() + LONG);
        request.reply(b"at last", LIMIT).unwrap();
        assert_eq!(&*again.join().unwrap().unwrap(), b"at last");
        // Nothing else came.
        assert!(matches!(server.receive(SHORT), Err(ReceiveError::TimedOut)));
    });
}

#[test]
fn calls_of_little_time_find_the_connection_that_others_wait_for() {
    let dir = Dir::new("again-short");
    let (server, answered) = echo(&dir);
    let client = connect(&dir, ReconnectPolicy::default());
    client.call(b"", LIMIT).unwrap();
    server.drain(LIMIT).unwrap();
    answered.join().unwrap();
    drop(server);
    let call = || client.call(b"", Some(Duration::from_micros(1)));
    // Between hosts the end is heard of later.
    until(|| matches!(call(), Err(CallError::NotConnected(_))));
    assert!(matches!(client.state(), ConnectionState::Reconnecting { .. }));
    let (server, answered) = echo(&dir);
    // None of them has the time to connect.
    until(|| !matches!(call(), Err(CallError::NotConnected(_))));
    assert_eq!(client.state(), ConnectionState::Connected { number: 2 });
    client.call(b"", LIMIT).unwrap();
    server.drain(LIMIT).unwrap();
    answered.join().unwrap();
}

#[test]
fn a_policy_ends_an_outage_and_calls_wait_for_it_or_not() {
    let dir = Dir::new("again-policy");
    let quick = Duration::from_millis(1);
    let few = ReconnectPolicy {
        first_delay: quick,
        delay_max: quick,
        attempt_limit: quick,
        attempts_max: Some(2),
        ..ReconnectPolicy::default()
    };
    let (server, answered) = echo(&dir);
    let waits = connect(&dir, few.clone());
    let does_not = connect(&dir, ReconnectPolicy { calls_wait: false, ..few });
    for client in [&waits, &does_not] {
        client.call(b"", LIMIT).unwrap();
    }
    server.drain(LIMIT).unwrap();
    answered.join().unwrap();
    drop(server);
    let failed = does_not.call(b"", LIMIT);
    assert!(matches!(failed, Err(CallError::NotConnected(_))), "{failed:?}");
    // Without a limit: the policy ends it.
    let failed = waits.call(b"", None);
    assert!(matches!(failed, Err(CallError::NotConnected(_))), "{failed:?}");
    for client in [&waits, &does_not] {
        until(|| matches!(client.state(), ConnectionState::GivenUp { .. }));
    }
    // For good.
    let (server, answered) = echo(&dir);
    let failed = waits.call(b"", LIMIT);
    assert!(matches!(failed, Err(CallError::NotConnected(_))), "{failed:?}");
    server.drain(LIMIT).unwrap();
    answered.join().unwrap();
}

#[test]
fn a_client_that_is_dropped_in_an_outage_leaves_no_thread_behind() {
    let dir = Dir::new("again-dropped");
    let (server, answered) = echo(&dir);
    let client = connect(&dir, ReconnectPolicy { first_delay: LONG, ..ReconnectPolicy::default() });
    client.call(b"", LIMIT).unwrap();
    server.drain(LIMIT).unwrap();
    answered.join().unwrap();
    drop(server);
    let connecting = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            threads.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "hamlyn-connect").count()
    };
    // Others of this process may connect, too.
    let before = connecting();
    client.call(b"", SHORT).unwrap_err();
    until(|| connecting() > before.saturating_sub(1));
    drop(client);
    until(|| connecting() == 0);
}

#[test]
fn a_client_may_be_made_before_its_server_and_its_first_call_connects_at_once() {
    let dir = Dir::new("again-later");
    let make =
        |name: &str, config, policy| ReconnectingClient::new(&dir.manager(), name, config, policy);
    let none = ClientConfig { outstanding: 0, ..ClientConfig::default() };
    for (name, config) in [("no/name", ClientConfig::default()), ("again", none)] {
        make(name, config, ReconnectPolicy::default()).unwrap_err();
    }
    // Delays are for outages alone.
    let policy = ReconnectPolicy { first_delay: LONG, ..ReconnectPolicy::default() };
    let never_waits = ReconnectPolicy { calls_wait: false, ..policy.clone() };
    let waits = make(&at("again"), ClientConfig::default(), policy).unwrap();
    let does_not = make(&at("again"), ClientConfig::default(), never_waits).unwrap();
    assert_eq!(waits.connections(), 0);
    let (server, answered) = echo(&dir);
    assert_eq!(&*waits.call(b"who", LIMIT).unwrap(), b"who");
    assert_eq!(waits.state(), ConnectionState::Connected { number: 1 });
    let failed = does_not.call(b"who", LIMIT);
    assert!(matches!(failed, Err(CallError::NotConnected(_))), "{failed:?}");
    until(|| does_not.call(b"who", LIMIT).is_ok());
    server.drain(LIMIT).unwrap();
    answered.join().unwrap();
}
