//! Request and reply beyond the reply: application errors, time limits and cancellation that reach
//! the handler, servers that drain; and peers that lie about each.

use crate::help::*;
use crate::hostile::{CALL, Liar, client_body, false_receiver, grown, lent, serve};
use hamlyn::control::{ServiceName, stat_of};
use hamlyn::node::{CloseReason, Event, OfferError};
use hamlyn::protocol::{
    CallError, Client, ClientConfig, ERROR_TEXT_MAX, EndPoint, GrowError, Manager, ReceiveError,
    Server, ServerConfig,
};
use hamlyn::{Accept, Access, Node, SlotConfig, Ticket};
use std::time::{Duration, Instant};

const LIMITED: u32 = 4090 << 20;
const CANCEL: u32 = 4089 << 20;

/// A server that answers, and a client of it.
fn pair(name: &str, config: ServerConfig) -> (Dir, Manager, Manager, Server, Client) {
    let dir = Dir::new(name);
    let (there, here) = (dir.answering(), dir.answering());
    let server = serve(&there, config);
    let client = Client::connect(&here, &at("calls"), LIMIT).unwrap();
    until(|| server.clients() == 1);
    (dir, there, here, server, client)
}

fn application(result: Result<impl std::fmt::Debug, CallError>) -> (u32, String) {
    match result {
        Err(CallError::Application { code, text }) => (code, text),
        other => panic!("not an error of the application's: {other:?}"),
    }
}

/// Nothing was sent, since all calls that may be outstanding are.
fn none_is_free<T: std::fmt::Debug>(result: Result<T, CallError>, of: usize) {
    let error = result.unwrap_err();
    assert!(matches!(error, CallError::NoneFree(max) if max == of), "{error:?}");
    assert!(error.to_string().contains(&format!("{of} of {of} (outstanding)")), "{error}");
}

#[test]
fn a_call_for_which_no_call_is_free_says_so_and_sends_nothing() {
    let config = ServerConfig { outstanding: 2, ..ServerConfig::default() };
    let (_dir, .., server, client) = pair("none-free", config);
    let calls = [b"1", b"2"].map(|request| client.start(request, LIMIT).unwrap());
    for request in [&b"3"[..], &[3; 100_000]] {
        none_is_free(client.start(request, SHORT), 2);
        none_is_free(client.call(request, SHORT), 2);
        none_is_free(client.call_within(request, SHORT.unwrap()), 2);
    }
    let request = server.receive(LIMIT).unwrap();
    // One that was sent is no such call.
    server.receive(LIMIT).unwrap().reply(b"two", LIMIT).unwrap();
    assert_eq!(&*client.finish(calls[1], LIMIT).unwrap(), b"two");
    assert!(matches!(client.call(b"3", SHORT), Err(CallError::TimedOut)));
    assert_eq!(*request, *b"1");
    assert_eq!(*server.receive(LIMIT).unwrap(), *b"3");
}

#[test]
fn a_call_that_is_forgotten_does_not_exist_at_once_and_keeps_its_place_until_the_reply() {
    let config = ServerConfig { outstanding: 1, ..ServerConfig::default() };
    let (_dir, .., server, client) = pair("forgotten", config);
    let call = client.start(b"1", LIMIT).unwrap();
    std::thread::scope(|scope| {
        // Also for a thread that waits for it.
        let waits = scope.spawn(|| client.finish(call, None));
        until(|| server.is_ready());
        client.forget(call);
        assert!(matches!(waits.join().unwrap(), Err(CallError::NoSuchCall(_))));
    });
    assert!(matches!(client.try_finish(call), Err(CallError::NoSuchCall(_))));
    assert!(matches!(client.finish(call, LIMIT), Err(CallError::NoSuchCall(_))));
    none_is_free(client.start(b"2", SHORT), 1);
    server.receive(LIMIT).unwrap().reply(b"one", LIMIT).unwrap();
    let next = client.start(b"2", LIMIT).unwrap();
    // Nothing of the first is taken for the second's.
    client.forget(call);
    server.receive(LIMIT).unwrap().reply(b"two", LIMIT).unwrap();
    assert_eq!(&*client.finish(next, LIMIT).unwrap(), b"two");
}

// ---- errors of the application's

#[test]
fn a_handler_answers_with_an_error_of_its_own() {
    let (_dir, .., server, client) = pair("failed", ServerConfig::default());
    let longest = "x".repeat(ERROR_TEXT_MAX);
    for (code, text) in [(0, ""), (404, "no such key"), (u32::MAX, "für später"), (7, &longest)] {
        let call = client.start(b"what?", LIMIT).unwrap();
        server.receive(LIMIT).unwrap().fail(code, text, LIMIT).unwrap();
        assert_eq!(application(client.finish(call, LIMIT)), (code, text.into()));
        // The call is over.
        assert!(matches!(client.finish(call, LIMIT), Err(CallError::NoSuchCall(_))));
    }
    // A long request, and one whose call waits in `call`.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = server.receive(LIMIT).unwrap();
            assert_eq!(request.len(), 100_000);
            request.fail(1, "too much", None).unwrap();
        });
        let failed = client.call(&[1; 100_000], LIMIT);
        assert_eq!(
            failed.as_ref().unwrap_err().to_string(),
            "the server answered with error 1: too much"
        );
        assert_eq!(application(failed), (1, "too much".into()));
    });
}

#[test]
fn an_errors_text_that_is_too_long_names_the_limit_and_the_client_is_told_that_none_comes() {
    let dir = Dir::new("long-text");
    let (there, here) = (dir.answering(), dir.answering());
    let server = serve(&there, ServerConfig::default());
    let config = ClientConfig { reply_bytes: 64, ..ClientConfig::default() };
    let small = Client::connect_with(&here, &at("calls"), config, LIMIT).unwrap();
    let client = Client::connect(&here, &at("calls"), LIMIT).unwrap();
    for (client, length, limit) in [
        (&client, ERROR_TEXT_MAX, "ERROR_TEXT_MAX, which is 1024"),
        (&small, 56, "reply_bytes, which is 56"),
    ] {
        let call = client.start(b"what?", LIMIT).unwrap();
        let text = "x".repeat(length + 1);
        let refused = server.receive(LIMIT).unwrap().fail(1, &text, LIMIT).unwrap_err();
        assert!(refused.to_string().contains(limit), "{refused}");
        assert!(matches!(client.finish(call, LIMIT), Err(CallError::Declined)));
        let call = client.start(b"what?", LIMIT).unwrap();
        server.receive(LIMIT).unwrap().fail(1, &text[1..], LIMIT).unwrap();
        assert_eq!(application(client.finish(call, LIMIT)), (1, text[1..].into()));
    }
}

/// A server that is a raw node, and a client that calls it: what the client gets to hear where it is
/// answered with this word about its call and these bytes; and whether it has ended the connection.
fn answer(name: &str, word: u32, bytes: &[u8]) -> (Result<usize, CallError>, bool) {
    let dir = Dir::new(name);
    let here = dir.answering();
    let mut node = dir.node();
    let area = node.message_area(4096 * 2).unwrap();
    let queue = node.notification_queue(4).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(4)).unwrap();
    let blocks = node.fast_ticket(slot).unwrap();
    let sizes = [4096u32.to_le_bytes(), 2u32.to_le_bytes()].concat();
    let answer = [&blocks.to_bytes()[..], &sizes, &(1u64 << 20).to_le_bytes()].concat();
    let mut node = false_receiver(node, "false", CALL, &answer);
    let client = Client::connect(&here, &at("false"), LIMIT).unwrap();
    let (link, ticket) = grown(&mut node);
    let call = client.start(b"what?", LIMIT).unwrap();
    let number = node.recv(queue, LIMIT).unwrap().word & 0xf_ffff;
    let at = Ticket { base: ticket.base + number as u64 * 4096, ..ticket };
    node.try_send_fast_over(link, &at, bytes, word ^ number).unwrap();
    let result = client.finish(call, LIMIT).map(|reply| reply.len());
    (result, client.connection().ended().is_some())
}

fn answered(name: &str, code: u32, bytes: &[u8]) -> (CallError, bool) {
    let (result, is_gone) = answer(name, code << 20, bytes);
    (result.unwrap_err(), is_gone)
}

fn failure(code: u32, length: u32, text: &[u8]) -> Vec<u8> {
    [&code.to_le_bytes()[..], &length.to_le_bytes(), text].concat()
}

#[test]
fn a_server_that_lies_about_the_text_of_an_error_is_sent_away() {
    let texts: [(u32, &[u8]); 5] = [
        (1025, &[b'x'; 1100]),
        (u32::MAX, b"short"),
        (4081, b"short"),
        (3, b"\xff\xfe\xfd"),
        (2, "ü".as_bytes().first_chunk::<1>().unwrap()),
    ];
    for (i, (length, text)) in texts.into_iter().enumerate() {
        let (failed, is_gone) = answered(&format!("lie-{i}"), 4092, &failure(7, length, text));
        assert!(matches!(failed, CallError::Misbehaved(_)), "{i}: {failed:?}");
        assert!(is_gone, "{i}");
    }
}

#[test]
fn what_a_terminal_would_obey_in_the_text_of_an_error_is_spelt_out() {
    let text = "\x1b[2Jno \u{202e}such\nkey";
    let (failed, is_gone) = answered("obey", 4092, &failure(7, text.len() as u32, text.as_bytes()));
    assert_eq!(application(Err::<(), _>(failed)), (7, "\\u{1b}[2Jno \\u{202e}such\\nkey".into()));
    assert!(!is_gone);
}

#[test]
fn a_server_can_say_that_it_drains_without_a_reason_and_the_client_only_hears_it() {
    for code in [4090, 4091] {
        let (failed, is_gone) = answered("says-drains", code, &[]);
        assert!(matches!(failed, CallError::Draining) && !is_gone, "{code}: {failed:?}");
    }
    let (failed, is_gone) = answered("says-left", 4089, &[]);
    assert!(matches!(failed, CallError::Ended(_)) && !is_gone, "{failed:?}");
}

#[test]
fn a_server_that_leaves_a_call_which_was_not_made_is_sent_away() {
    for number in [1, 100_000] {
        let (failed, is_gone) = answer("left", 4089 << 20 | number, &[]);
        assert!(matches!(failed, Err(CallError::Misbehaved(_))) && is_gone, "{failed:?}");
    }
}

// ---- limits and cancellation

#[test]
fn a_handler_sees_the_deadline_of_a_caller_that_told_it() {
    let (_dir, .., server, client) = pair("deadline", ServerConfig::default());
    // Lengths that fit into a block with its limit, and that do not.
    for length in [0, 8, 16, 4080, 4081, 4088, 100_000] {
        let request = vec![7; length];
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| client.call_within(&request, LONG));
            let request = server.receive(LIMIT).unwrap();
            assert_eq!(request.len(), length);
            assert!(request.iter().all(|byte| *byte == 7));
            let left = request.deadline().unwrap() - Instant::now();
            assert!(left <= LONG && left > LONG / 2, "{left:?} of {LONG:?}");
            assert!(!request.is_cancelled());
            request.reply(b"yes", LIMIT).unwrap();
            assert_eq!(&*calling.join().unwrap().unwrap(), b"yes");
        });
        if length > 10_000 {
            continue;
        }
        // A caller that only waits has sent no cancellation.
        let call = client.start(&request, LIMIT).unwrap();
        let request = server.receive(LIMIT).unwrap();
        assert_eq!((request.deadline(), request.is_cancelled()), (None, false));
        request.reply(b"yes", LIMIT).unwrap();
        client.finish(call, LIMIT).unwrap();
    }
    // A limit that no clock reaches, and none at all.
    for limit in [Duration::MAX, Duration::ZERO] {
        match client.start_within(b"odd", limit) {
            Ok(call) => {
                let request = server.receive(LIMIT).unwrap();
                until(|| request.is_cancelled() == limit.is_zero());
                request.reply(b"yes", LIMIT).unwrap();
                client.finish(call, LIMIT).unwrap();
            }
            Err(e) => assert!(matches!(e, CallError::TimedOut) && limit.is_zero(), "{e}"),
        }
    }
}

#[test]
fn a_handler_sees_that_its_caller_has_given_up_and_the_call_is_free_when_it_has_answered() {
    let dir = Dir::new("cancelled");
    let (there, here) = (dir.answering(), dir.answering());
    let server = serve(&there, ServerConfig::default());
    let config = ClientConfig { outstanding: 1, ..ClientConfig::default() };
    let client = Client::connect_with(&here, &at("calls"), config, LIMIT).unwrap();
    for round in 0..4 {
        let length = if round % 2 == 0 { 5 } else { 50_000 };
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| match round {
                0 | 1 => client.call(&vec![1; length], SHORT).map(|_| ()),
                _ => {
                    let call = client.start(&vec![1; length], LIMIT)?;
                    client.forget(call);
                    // A second time, the call does not exist.
                    client.forget(call);
                    Err(CallError::TimedOut)
                }
            });
            let request = server.receive(LIMIT).unwrap();
            let given_up = calling.join().unwrap();
            assert!(matches!(given_up, Err(CallError::TimedOut)), "{round}: {given_up:?}");
            until(|| request.is_cancelled());
            match round {
                0 => request.reply(b"late", LIMIT).unwrap(),
                1 => request.fail(1, "late", LIMIT).unwrap(),
                _ => drop(request),
            }
        });
        // The only call of the client.
        let call = client.start(b"next", LIMIT).unwrap();
        let request = server.receive(LIMIT).unwrap();
        assert_eq!((&*request, request.is_cancelled()), (&b"next"[..], false));
        request.reply(b"fine", LIMIT).unwrap();
        assert_eq!(&*client.finish(call, LIMIT).unwrap(), b"fine");
    }
    assert_eq!(server.misbehaved(), 0);
    // A client that has gone needs no reply.
    client.start(b"last", LIMIT).unwrap();
    let request = server.receive(LIMIT).unwrap();
    assert!(!request.is_cancelled());
    drop(client);
    until(|| request.is_cancelled());
}

#[test]
fn a_cancelled_call_takes_no_credit_from_others_of_a_server_that_does_not_look() {
    let (_dir, there, here, server, client) =
        pair("credit", ServerConfig { outstanding: 8, ..ServerConfig::default() });
    // Each place of the client's, and no thread receives.
    for _ in 0..8 {
        let call = client.start(b"unread", LIMIT).unwrap();
        client.forget(call);
    }
    none_is_free(client.start(b"no place", SHORT), 8);
    for _ in 0..8 {
        let request = server.receive(LIMIT).unwrap();
        until(|| request.is_cancelled());
        drop(request);
    }
    let call = client.start(b"next", LIMIT).unwrap();
    server.receive(LIMIT).unwrap().reply(b"fine", LIMIT).unwrap();
    client.finish(call, LIMIT).unwrap();
    let counters = there.lock().counters();
    assert!(counters.contains(&("refused_no_credit", 0)), "{counters:?}");
    drop(here);
}

#[test]
fn requests_that_come_while_a_handler_looks_are_kept_for_others() {
    let (_dir, .., server, client) = pair("looks", ServerConfig::default());
    let calls: Vec<_> = (0..20).map(|_| client.start(b"x", LIMIT).unwrap()).collect();
    let first = server.receive(LIMIT).unwrap();
    assert!(!first.is_cancelled());
    for _ in 1..20 {
        assert!(!first.is_cancelled());
        server.receive(LIMIT).unwrap().reply(b"y", LIMIT).unwrap();
    }
    first.reply(b"y", LIMIT).unwrap();
    for call in calls {
        client.finish(call, LIMIT).unwrap();
    }
}

/// A server's reaction to a raw client's messages: whether it disconnects the client.
fn told(name: &str, words: &[(&[u8], u32)]) -> bool {
    let dir = Dir::new(name);
    let there = dir.answering();
    let server = serve(&there, ServerConfig { request_bytes: 64, ..ServerConfig::default() });
    let mut liar = Liar::grow(&dir, "calls", CALL, client_body(2));
    let blocks = liar.ticket_at(0);
    for (bytes, word) in words {
        // The first call's block is the first.
        if !liar.say(&blocks, bytes, *word) {
            break;
        }
    }
    let mut kept = Vec::new();
    let start = Instant::now();
    // A valid message at the end is received.
    let call = 1;
    let at = Ticket { base: blocks.base + 64, ..blocks };
    liar.say(&at, b"end", 3 << 20 | call);
    loop {
        if let Some(request) = server.try_receive().unwrap() {
            let is_end = *request == *b"end";
            request.is_cancelled();
            kept.push(request.detach());
            if is_end {
                break;
            }
        }
        if server.misbehaved() > 0 {
            until(|| liar.is_gone());
            return true;
        }
        assert!(start.elapsed() < LONG);
    }
    until(|| !server.is_ready());
    server.misbehaved() > 0
}

fn head(length: u64, limit_us: u64) -> [u8; 8] {
    (length | limit_us << 16).to_le_bytes()
}

#[test]
fn a_client_that_lies_about_limits_and_cancellation_is_sent_away_or_harms_nobody() {
    // A length that reaches out of the block.
    for length in [57, 64, 0xffff] {
        assert!(told("beyond", &[(&head(length, 1), LIMITED)]), "{length}");
    }
    // Limits are what they like to be.
    for limit in [0, 1, 1 << 47, (1 << 48) - 1] {
        assert!(!told("limits", &[(&head(56, limit), LIMITED)]), "{limit}");
        let asked = [8u64, limit << 16].map(u64::to_le_bytes).concat();
        assert!(!told("asked", &[(&asked, 4095 << 20)]), "{limit}");
    }
    // Given up before there was a call is too late for one that is over; twice is none that is so far.
    assert!(!told("early", &[(b"", CANCEL), (b"x", 1 << 20)]));
    assert!(!told("once", &[(b"x", 1 << 20), (b"", CANCEL)]));
    assert!(told("twice", &[(b"x", 1 << 20), (b"", CANCEL), (b"", CANCEL)]));
    let asked = [100u64, 0].map(u64::to_le_bytes).concat();
    assert!(told("twice-long", &[(&asked, 4095 << 20), (b"", CANCEL), (b"", CANCEL)]));
    assert!(told("no-such", &[(b"", CANCEL | 2)]));
    // Messages of servers.
    for code in [4091, 4092] {
        assert!(told("servers", &[(b"x", code << 20)]));
        assert!(told("servers", &[(b"x", 1 << 20), (b"x", code << 20)]));
    }
    // A second request in the place of the first.
    assert!(told("again", &[(&head(1, 1), LIMITED), (&head(1, 1), LIMITED)]));
}

#[test]
fn a_long_reply_that_is_given_up_is_told_though_nobody_receives_and_waits_no_more() {
    let (dir, _there, here, server, client) = pair("given-up", ServerConfig::default());
    // Its client does not look for a while.
    here.stop_progress();
    let call = client.start(b"long", LIMIT).unwrap();
    let request = server.receive(LIMIT).unwrap();
    // A process shows its figures to users of its host.
    let held = || (!is_of_hosts()).then(|| stat(&dir, "requests_held"));
    assert!(held().is_none_or(|held| held == 1));
    let failed = request.reply(&[7; 100_000], SHORT).unwrap_err();
    assert!(matches!(failed, CallError::NoRoom), "{failed:?}");
    assert!(failed.to_string().contains("makes no room"), "{failed}");
    assert!(held().is_none_or(|held| held == 0), "its program is at nothing");
    assert!(matches!(client.finish(call, LIMIT), Err(CallError::Declined)));
    // The call's number is good for the next, and for a long reply.
    here.start_progress().unwrap();
    std::thread::scope(|scope| {
        let called = scope.spawn(|| client.call(b"next", LIMIT));
        server.receive(LIMIT).unwrap().reply(&[8; 100_000], LIMIT).unwrap();
        assert_eq!(*called.join().unwrap().unwrap(), [8; 100_000]);
    });
}

#[test]
fn a_long_reply_to_one_that_gave_up_waits_for_nobody_and_the_server_drains() {
    let (_dir, _there, here, server, client) = pair("cancelled-long", ServerConfig::default());
    // From here on its client looks at nothing.
    here.stop_progress();
    let call = client.start(b"before", LIMIT).unwrap();
    let request = server.receive(LIMIT).unwrap();
    client.forget(call);
    until(|| request.is_cancelled());
    // Without a limit: as a short one it is dropped.
    request.reply(&[7; 100_000], None).unwrap();
    // Given up while it waits for room.
    let call = client.start(b"meanwhile", LIMIT).unwrap();
    let request = server.receive(LIMIT).unwrap();
    std::thread::scope(|scope| {
        let replying = scope.spawn(|| request.reply(&[8; 100_000], None));
        std::thread::sleep(SHORT.unwrap());
        client.forget(call);
        replying.join().unwrap().unwrap();
    });
    // The numbers of both are free when the client has heard of it.
    here.start_progress().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let called = scope.spawn(|| client.call(b"next", LIMIT));
            server.receive(LIMIT).unwrap().reply(&[9; 100_000], LIMIT).unwrap();
            assert_eq!(*called.join().unwrap().unwrap(), [9; 100_000]);
        }
    });
    here.stop_progress();
    let call = client.start(b"last", LIMIT).unwrap();
    let _request = server.receive(LIMIT).unwrap().reply(&[], LIMIT);
    client.forget(call);
    assert_eq!(server.drain(LIMIT).unwrap(), 0);
}

#[test]
fn replies_of_each_length_about_what_is_sent_at_once_arrive() {
    let (_dir, .., server, client) = pair("lengths", ServerConfig::default());
    // Some are the numbers of codes that are no lengths.
    for length in (4070..4100).chain([0, 1, 16, 17, 8192]) {
        std::thread::scope(|scope| {
            let called = scope.spawn(|| client.call(&vec![1; length], LIMIT));
            let request = server.receive(LIMIT).unwrap();
            assert_eq!(request.len(), length);
            request.reply(&vec![2; length], LIMIT).unwrap();
            assert_eq!(*called.join().unwrap().unwrap(), vec![2; length]);
        });
    }
}

/// One of the figures that the server's process tells.
fn stat(dir: &Dir, name: &str) -> u64 {
    let service = "calls".parse::<ServiceName>().unwrap();
    let text = stat_of(&dir.config(), &service, LIMIT).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
}

#[test]
fn a_reply_to_one_that_was_sent_away_says_why_it_is_gone() {
    let dir = Dir::new("calls-gone");
    let server =
        serve(&dir.answering(), ServerConfig { request_bytes: 64, ..ServerConfig::default() });
    let mut liar = Liar::grow(&dir, "calls", CALL, client_body(2));
    let blocks = liar.ticket_at(0);
    assert!(liar.say(&blocks, b"x", 1 << 20));
    let request = server.receive(LIMIT).unwrap();
    liar.say(&blocks, b"", 4093 << 20);
    until(|| {
        assert!(server.try_receive().unwrap().is_none());
        liar.is_gone()
    });
    let failed = request.reply(b"y", LIMIT).unwrap_err();
    assert!(matches!(failed, CallError::Ended(CloseReason::Misbehaved(_))), "{failed:?}");
}

#[test]
fn a_client_whose_nonsense_comes_all_at_once_is_counted_once() {
    let dir = Dir::new("calls-once");
    let there = dir.answering();
    let server = serve(&there, ServerConfig::default());
    let mut liar = Liar::grow(&dir, "calls", CALL, client_body(8));
    let blocks = liar.ticket_at(0);
    until(|| server.clients() == 1);
    there.stop_progress();
    for call in 0..4 {
        // No client says that a reply is too long.
        assert!(liar.say(&blocks, b"", 4093 << 20 | call));
    }
    until(|| {
        assert!(server.try_receive().unwrap().is_none());
        server.clients() == 0
    });
    assert_eq!(server.misbehaved(), 1);
}

// ---- draining

#[test]
fn a_server_that_drains_finishes_what_it_has_and_tells_the_others() {
    let (dir, _there, here, server, client) = pair("drain", ServerConfig::default());
    let other = Client::connect(&here, &at("calls"), LIMIT).unwrap();
    let (first, second) = (client.start(b"1", LIMIT).unwrap(), client.start(b"2", LIMIT).unwrap());
    let held = server.receive(LIMIT).unwrap();
    until(|| server.is_ready());
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| server.drain(Some(LONG)));
        // No new clients, and no new calls of the present ones, short or long.
        let refused = loop {
            match other.call(b"3", SHORT) {
                Err(CallError::TimedOut) => {}
                other => break other,
            }
        };
        assert!(matches!(refused, Err(CallError::Draining)), "{refused:?}");
        for request in [&[3; 10][..], &[3; 100_000]] {
            let refused = client.call(request, LIMIT);
            assert!(matches!(refused, Err(CallError::Draining)), "{refused:?}");
            let refused = client.call_within(request, LONG);
            assert!(matches!(refused, Err(CallError::Draining)), "{refused:?}");
        }
        // The name is another's by now.
        let next = Server::new(&here, ServerConfig::default()).unwrap();
        next.serve("calls", Access::SameUser).unwrap();
        assert!(!draining.is_finished());
        held.reply(b"one", LIMIT).unwrap();
        // Calls tried before the server drained may be there, too.
        loop {
            match server.receive(LIMIT) {
                Ok(request) if *request == *b"2" => request.reply(b"two", LIMIT).unwrap(),
                Ok(request) => drop(request),
                Err(e) => break assert!(matches!(e, ReceiveError::Draining), "{e}"),
            }
        }
        assert_eq!(draining.join().unwrap().unwrap(), 0);
    });
    assert_eq!(server.clients(), 0);
    // Replies sent before the end arrive.
    assert_eq!(&*client.finish(first, LIMIT).unwrap(), b"one");
    assert_eq!(&*client.finish(second, LIMIT).unwrap(), b"two");
    until(|| client.connection().ended().is_some());
    let failed = client.call(b"4", LIMIT);
    assert!(matches!(failed, Err(CallError::Draining | CallError::Ended(_))), "{failed:?}");
    assert!(matches!(server.try_receive(), Err(ReceiveError::Draining)));
    drop(dir);
}

#[test]
fn draining_ends_with_its_time_limit_and_says_how_many_were_left() {
    let (_dir, .., server, client) = pair("drain-left", ServerConfig::default());
    let calls: Vec<_> = (0..3).map(|_| client.start(b"x", LIMIT).unwrap()).collect();
    // All three are here, and the last is not received.
    let (held, _second) = (server.receive(LIMIT).unwrap(), server.receive(LIMIT).unwrap());
    until(|| server.is_ready());
    assert_eq!(server.drain(Some(Duration::from_millis(20))).unwrap(), 3);
    for call in calls {
        let failed = client.finish(call, LIMIT);
        assert!(matches!(failed, Err(CallError::Ended(_))), "{failed:?}");
    }
    assert!(held.is_cancelled());
    assert!(matches!(held.reply(b"late", LIMIT), Err(CallError::Ended(_))));
    // A second time, no client is left.
    assert_eq!(server.drain(Some(LONG)).unwrap(), 0);
}

#[test]
fn whoever_connects_to_a_process_that_is_ending_waits_for_the_next_that_serves_the_name() {
    let dir = Dir::new("ending");
    let (next, here) = (dir.answering(), dir.answering());
    let mut ending = dir.node();
    ending.serve("calls", Access::SameUser, Accept::Ask).unwrap();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| Client::connect(&here, &at("calls"), LIMIT));
        // It has the request, and ends without an answer.
        until(|| {
            ending.poll().unwrap();
            matches!(ending.next_event(), Some(Event::Request { .. }))
        });
        drop(ending);
        let server = serve(&next, ServerConfig::default());
        connecting.join().unwrap().unwrap();
        until(|| server.clients() == 0);
    });
    // A client that does not wait for names gets the error at once.
    let mut ending = dir.node();
    ending.serve("ends", Access::SameUser, Accept::Ask).unwrap();
    let hasty = manager_with(dir.config().wait_for_names(false));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| Client::connect(&hasty, &at("ends"), LIMIT));
        until(|| {
            ending.poll().unwrap();
            matches!(ending.next_event(), Some(Event::Request { .. }))
        });
        drop(ending);
        let failed = connecting.join().unwrap().err().unwrap();
        assert!(matches!(failed, GrowError::Connect(_)), "{failed:?}");
        // A host that ends says only that.
        let says = if is_of_hosts() { "closed the connection" } else { "ending" };
        assert!(failed.to_string().contains(says), "{failed}");
    });
}

#[test]
fn a_server_that_has_drained_takes_no_name_and_gives_no_seed() {
    let (_dir, there, here, server, client) = pair("drained", ServerConfig::default());
    let held = client.start(b"x", LIMIT).unwrap();
    let request = server.receive(LIMIT).unwrap();
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| server.drain(Some(LONG)));
        until(|| matches!(server.try_receive(), Err(ReceiveError::Draining)));
        let refused = server.serve("late", Access::SameUser);
        assert!(matches!(refused, Err(OfferError::Drained)), "{refused:?}");
        request.reply(b"y", LIMIT).unwrap();
        assert_eq!(draining.join().unwrap().unwrap(), 0);
    });
    assert_eq!(&*client.finish(held, LIMIT).unwrap(), b"y");
    let refused = server.serve("late", Access::SameUser);
    assert!(matches!(refused, Err(OfferError::Drained)), "{refused:?}");
    assert!(matches!(server.seed(), Err(OfferError::Drained)));
    // The name is another's to take.
    let next = Server::new(&there, ServerConfig::default()).unwrap();
    next.serve("late", Access::SameUser).unwrap();
    Client::connect(&here, &at("late"), LIMIT).unwrap();
}

#[test]
fn a_long_reply_and_a_long_request_that_are_on_their_way_are_finished_by_a_server_that_drains() {
    let (_dir, .., server, client) = pair("drain-long", ServerConfig::default());
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| client.call(&[1; 200_000], LIMIT));
        let request = server.receive(LIMIT).unwrap();
        let draining = scope.spawn(|| server.drain(Some(LONG)));
        until(|| matches!(server.try_receive(), Err(ReceiveError::Draining)));
        assert!(matches!(client.call(b"?", LIMIT), Err(CallError::Draining)));
        request.reply(&[2; 300_000], LIMIT).unwrap();
        assert_eq!(calling.join().unwrap().unwrap().len(), 300_000);
        assert_eq!(draining.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn a_client_that_asks_a_server_that_drains_and_never_listens_is_sent_away() {
    let dir = Dir::new("drain-deaf");
    let there = dir.answering();
    let server = serve(&there, ServerConfig { outstanding: 512, ..ServerConfig::default() });
    let mut liar = Liar::grow(&dir, "calls", CALL, client_body(512));
    let blocks = liar.ticket_at(0);
    until(|| server.clients() == 1);
    // A request that is never replied to keeps it.
    assert!(liar.say(&blocks, b"held", 4 << 20 | 1));
    let _held = server.receive(LIMIT).unwrap();
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| server.drain(Some(LONG)));
        let mut said = 0u32;
        let start = Instant::now();
        // Without polling, so that its ring fills with refusals.
        while server.misbehaved() == 0 && start.elapsed() < LONG {
            match liar.node.try_send_fast_over(liar.link, &blocks, b"x", 1 << 20) {
                Ok(_) => {
                    said += 1;
                    if said.is_multiple_of(128) {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                Err(hamlyn::NodeSendError::Full) => std::thread::yield_now(),
                Err(_) => break,
            }
        }
        assert!(server.misbehaved() > 0, "{said} refusals are kept for it");
        // No caller is left without a reply.
        assert_eq!(draining.join().unwrap().unwrap(), 0);
    });
}

#[test]
fn a_peer_that_is_slow_to_send_what_it_announced_does_not_hold_a_server_that_drains() {
    let dir = Dir::new("drain-slow");
    let there = dir.answering();
    let server = serve(&there, ServerConfig::default());
    let mut liar = Liar::grow(&dir, "calls", CALL, slow_body);
    let blocks = liar.ticket_at(0);
    until(|| server.clients() == 1);
    assert!(liar.say(&blocks, &[0, 1, 0, 0, 0, 0, 0, 0], 4095 << 20));
    assert!(server.receive(SHORT).is_err());
    assert_eq!(server.drain(Some(Duration::from_millis(50))).unwrap(), 1);
    until(|| liar.is_gone());
}

fn slow_body(node: &mut Node) -> Vec<u8> {
    let ticket = lent(node, 64 * 2, 2);
    [&ticket.to_bytes()[..], &64u32.to_le_bytes(), &2u32.to_le_bytes()].concat()
}
