//! End points of two managers in one process, each with a progress thread or a thread of its own.
use crate::help::*;
use hamlyn::node::{NodeSendError, OfferError};
use hamlyn::protocol::{
    ApertureStreamReceiver, ApertureStreamSender, CallError, Client, ClientConfig, Connection,
    DatagramReceiver, DatagramSender, EndPoint, Group, GroupConfig, GroupHelper, GroupMember,
    GrowError, Manager, ReceiveError, Seed, SendError, Server, ServerConfig, StreamConfig,
    StreamReceiver, StreamSender, TaggedConfig, TaggedReceiver, TaggedSender,
};
use hamlyn::{Access, SlotConfig, Ticket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn tags_arrive_with_their_data() {
    let dir = Dir::new("tags");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = TaggedReceiver::new(&there, TaggedConfig::new(4096)).unwrap();
    let seed = Seed::from_bytes(&receiver.seed().unwrap().reached().to_bytes()).unwrap();
    let mut sender = TaggedSender::grow(&here, &seed, LIMIT).unwrap();
    sender.send(100, b"hello", 7, LIMIT).unwrap();
    let tag = receiver.get_tag(LIMIT).unwrap();
    assert_eq!(tag.tag, 7);
    let mut bytes = [0; 5];
    receiver.read(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    assert_eq!(receiver.senders(), 1);
    assert!(matches!(receiver.read(4095, &mut bytes), Err(ReceiveError::Misuse(_))));
    assert!(is_said_by(&sender.explain()), "{}", sender.explain());
}

#[test]
fn a_sender_waits_for_credit_and_is_never_refused() {
    let dir = Dir::new("credit");
    let (there, here) = (dir.answering(), dir.manager());
    let config = TaggedConfig { tags: 4, ..TaggedConfig::new(64) };
    let mut receiver = TaggedReceiver::new(&there, config).unwrap();
    receiver.serve("credit", Access::SameUser).unwrap();
    let mut sender = TaggedSender::connect(&here, &at("credit"), LIMIT).unwrap();
    for tag in 0..4 {
        assert!(sender.try_send(0, &[], tag).unwrap());
    }
    assert!(!sender.try_send(0, &[], 4).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for tag in 4..5000u32 {
                sender.send(0, &tag.to_le_bytes(), tag, LIMIT).unwrap();
            }
        });
        for tag in 0..5000 {
            assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, tag);
        }
    });
    let refused: u64 = there
        .lock()
        .counters()
        .iter()
        .filter(|(name, _)| name.starts_with("refused"))
        .map(|(_, value)| value)
        .sum();
    assert_eq!(refused, 0);
}

#[test]
fn a_specific_tag_is_found_and_the_others_keep_their_order() {
    let dir = Dir::new("specific");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    for tag in [1, 2, 3, 2] {
        sender.send(0, &[], tag, LIMIT).unwrap();
    }
    assert_eq!(receiver.get_specific_tag(3, LIMIT).unwrap().tag, 3);
    assert_eq!(receiver.get_specific_tag(2, LIMIT).unwrap().tag, 2);
    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, 1);
    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, 2);
    let short = Some(Duration::from_millis(20));
    assert!(matches!(receiver.get_specific_tag(9, short), Err(ReceiveError::TimedOut)));
}

#[test]
fn who_waits_for_one_tag_gives_back_what_was_taken_though_it_keeps_the_rest() {
    let dir = Dir::new("specific-credit");
    let (there, here) = (dir.answering(), dir.answering());
    let config = TaggedConfig { tags: 4, ..TaggedConfig::new(64) };
    let mut receiver = TaggedReceiver::new(&there, config).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    for tag in 0..4 {
        assert!(sender.try_send(0, &[], tag).unwrap());
    }
    // Less than half of the credit, the point at which a sender gets more anyway.
    assert_eq!(receiver.get_specific_tag(0, LIMIT).unwrap().tag, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(0, &[], 9, LIMIT).unwrap());
        assert_eq!(receiver.get_specific_tag(9, LIMIT).unwrap().tag, 9);
    });
    for tag in 1..4 {
        assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, tag);
    }
}

#[test]
fn a_write_that_is_too_long_or_outside_is_refused_with_the_limit() {
    let dir = Dir::new("limits");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = TaggedReceiver::new(&there, TaggedConfig::new(1 << 20)).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    let max = sender.bytes_max();
    assert!(sender.send(0, &vec![0; max], 0, LIMIT).is_ok());
    let error = sender.send(0, &vec![0; max + 1], 0, LIMIT).unwrap_err();
    assert!(matches!(error, SendError::TooLong { max: m, .. } if m == max), "{error}");
    assert!(error.to_string().contains("HAMLYN_PACKET_BYTES"), "{error}");
    let error = sender.send((1 << 20) - 3, &[0; 4], 0, LIMIT).unwrap_err();
    assert!(matches!(error, SendError::Outside { size: 0x10_0000, .. }), "{error}");
    assert!(matches!(sender.send(u64::MAX, &[0; 4], 0, LIMIT), Err(SendError::Outside { .. })));
}

#[test]
fn a_seed_that_is_old_forged_or_of_another_kind_is_refused_with_the_reason() {
    let dir = Dir::new("seeds");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let seed = receiver.seed().unwrap().reached();
    let mut bytes = seed.to_bytes();
    bytes[16] ^= 1;
    assert!(Seed::from_bytes(&bytes).is_err(), "the checksum finds it");
    let end = bytes.len() - 4;
    let checksum = crc32fast::hash(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
    let forged = Seed::from_bytes(&bytes).unwrap();
    let refused = TaggedSender::grow(&here, &forged, LIMIT).err().unwrap();
    assert!(matches!(&refused, GrowError::Refused(text) if text.contains("seed")), "{refused}");
    // Nor does a seed of another node lead here.
    bytes[8] ^= 1;
    bytes[16] ^= 1;
    let checksum = crc32fast::hash(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
    let other = Seed::from_bytes(&bytes).unwrap();
    let refused = TaggedSender::grow(&here, &other, LIMIT).err().unwrap();
    assert!(matches!(&refused, GrowError::OtherNode { .. }), "{refused}");
    drop(receiver);
    let refused = TaggedSender::grow(&here, &seed, LIMIT).err().unwrap();
    assert!(
        matches!(&refused, GrowError::Refused(text) if text.contains("no longer")),
        "{refused}"
    );
    drop(there);
    let gone = TaggedSender::grow(&here, &seed, LIMIT).err().unwrap();
    assert!(matches!(gone, GrowError::Connect(_)), "{gone}");
}

#[test]
fn a_callback_decides_who_may_grow_a_sender() {
    let dir = Dir::new("admission");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let mut asked = 0;
    receiver.set_admission(move |peer| {
        asked += 1;
        assert_eq!(peer.pid, seen(std::process::id()));
        if asked == 1 { Err("come again".into()) } else { Ok(()) }
    });
    let seed = receiver.seed().unwrap().reached();
    let refused = TaggedSender::grow(&here, &seed, LIMIT).err().unwrap();
    assert!(matches!(&refused, GrowError::Refused(text) if text == "come again"), "{refused}");
    assert!(TaggedSender::grow(&here, &seed, LIMIT).is_ok());
}

#[test]
fn a_manager_sends_to_itself_and_two_grow_towards_each_other() {
    let dir = Dir::new("self");
    let (a, b) = (dir.answering(), dir.answering());
    let mut own = TaggedReceiver::new(&a, TaggedConfig::new(64)).unwrap();
    let mut sender = TaggedSender::grow(&a, &own.seed().unwrap().reached(), LIMIT).unwrap();
    sender.send(0, b"x", 5, LIMIT).unwrap();
    assert_eq!(own.get_tag(LIMIT).unwrap().tag, 5);
    let other = TaggedReceiver::new(&b, TaggedConfig::new(64)).unwrap();
    let (to_a, to_b) = (own.seed().unwrap().reached(), other.seed().unwrap().reached());
    std::thread::scope(|scope| {
        let there = scope.spawn(|| TaggedSender::grow(&b, &to_a, LIMIT).is_ok());
        assert!(TaggedSender::grow(&a, &to_b, LIMIT).is_ok());
        assert!(there.join().unwrap());
    });
}

#[test]
fn several_end_points_are_waited_for_and_whoever_polls_fills_all() {
    let dir = Dir::new("any");
    let (there, here) = (dir.manager(), dir.manager());
    let mut receivers: Vec<_> =
        (0..3).map(|_| TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap()).collect();
    let seeds: Vec<_> = receivers.iter().map(|r| r.seed().unwrap().reached()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in [2, 0, 1] {
                let mut sender = TaggedSender::grow(&here, &seeds[i], LIMIT).unwrap();
                sender.send(0, &[], i as u32, LIMIT).unwrap();
            }
        });
        let mut seen = [false; 3];
        while seen != [true; 3] {
            let i = {
                let ends: Vec<&dyn EndPoint> =
                    receivers.iter().map(|r| r as &dyn EndPoint).collect();
                there.wait_any(&ends, LIMIT).unwrap()
            };
            assert_eq!(receivers[i].get_tag(LIMIT).unwrap().tag, i as u32);
            seen[i] = true;
        }
    });
}

#[test]
fn threads_receive_at_end_points_of_one_manager() {
    let dir = Dir::new("threads");
    let (there, here) = (dir.manager(), dir.manager());
    const THREADS: u32 = 4;
    const TAGS: u32 = 2000;
    let mut receivers: Vec<_> =
        (0..THREADS).map(|_| TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap()).collect();
    let seeds: Vec<_> = receivers.iter().map(|r| r.seed().unwrap().reached()).collect();
    std::thread::scope(|scope| {
        for receiver in &mut receivers {
            scope.spawn(move || {
                for tag in 0..TAGS {
                    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, tag);
                }
            });
        }
        for seed in &seeds {
            let here = &here;
            scope.spawn(move || {
                let mut sender = TaggedSender::grow(here, seed, LIMIT).unwrap();
                for tag in 0..TAGS {
                    sender.send(0, &[], tag, LIMIT).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_sender_learns_that_its_receiver_is_gone() {
    let dir = Dir::new("gone");
    let (there, here) = (dir.answering(), dir.manager());
    let config = TaggedConfig { tags: 2, ..TaggedConfig::new(64) };
    let receiver = TaggedReceiver::new(&there, config).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    drop(receiver);
    let error = loop {
        if let Err(e) = sender.send(0, &[], 0, LIMIT) {
            break e;
        }
    };
    assert!(matches!(error, SendError::Ended(_)), "{error}");
    assert!(sender.connection().ended().is_some());
}

// ---- request and reply

fn echo(there: &Manager, requests: usize) {
    let server = Server::new(there, ServerConfig::default()).unwrap();
    server.serve("echo", Access::SameUser).unwrap();
    for _ in 0..requests {
        let request = server.receive(LIMIT).unwrap();
        let bytes = request.to_vec();
        request.reply(&bytes, LIMIT).unwrap();
    }
}

/// The server needs a moment to be there.
fn client(here: &Manager, name: &str) -> Client {
    loop {
        match Client::connect(here, &at(name), LIMIT) {
            Err(GrowError::Connect(_)) => std::thread::sleep(Duration::from_millis(1)),
            other => return other.unwrap(),
        }
    }
}

#[test]
fn requests_of_any_length_are_replied_to() {
    let dir = Dir::new("calls");
    let (there, here) = (dir.manager(), dir.manager());
    let lengths = [0, 1, 16, 17, 56, 57, 4080, 4081, 4088, 4089, 10_000, 1 << 20, 3_000_001];
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&there, lengths.len() * 2));
        let client = client(&here, "echo");
        for length in lengths.iter().chain(&lengths) {
            let bytes: Vec<u8> = (0..*length).map(|i| (i * 7 + length) as u8).collect();
            let reply = client.call(&bytes, LIMIT).unwrap();
            assert!(*reply == bytes[..], "length {length}");
        }
        assert!(client.explain().contains("4088"), "{}", client.explain());
    });
}

#[test]
fn many_calls_are_outstanding_and_finish_in_any_order() {
    let dir = Dir::new("outstanding");
    let (there, here) = (dir.manager(), dir.manager());
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&there, 640));
        let client = client(&here, "echo");
        for _ in 0..10 {
            let ids: Vec<_> =
                (0..64u32).map(|i| client.start(&i.to_le_bytes(), LIMIT).unwrap()).collect();
            for (i, id) in ids.iter().enumerate().rev() {
                assert_eq!(*client.finish(*id, LIMIT).unwrap(), (i as u32).to_le_bytes());
            }
            assert!(matches!(client.finish(ids[0], LIMIT), Err(CallError::NoSuchCall(_))));
        }
    });
}

#[test]
fn threads_serve_and_threads_call() {
    let dir = Dir::new("serving");
    let (there, here) = (dir.manager(), dir.manager());
    let server = Server::new(&there, ServerConfig::default()).unwrap();
    let seed = server.seed().unwrap().reached();
    let left = std::sync::atomic::AtomicI64::new(3 * 500);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while left.load(std::sync::atomic::Ordering::SeqCst) > 0 {
                    match server.receive(Some(Duration::from_millis(20))) {
                        Ok(request) => {
                            let doubled: Vec<u8> =
                                request.iter().map(|b| b.wrapping_mul(2)).collect();
                            request.reply(&doubled, LIMIT).unwrap();
                            left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        }
                        Err(ReceiveError::TimedOut) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
        let client = Client::grow(&here, &seed, LIMIT).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                let client = &client;
                scope.spawn(move || {
                    for i in 0..500 {
                        let reply = client.call(&[thread, i as u8], LIMIT).unwrap();
                        assert_eq!(*reply, [thread * 2, (i as u8).wrapping_mul(2)]);
                    }
                });
            }
        });
    });
}

#[test]
fn a_request_that_is_dropped_is_declined_and_a_late_reply_is_dropped() {
    let dir = Dir::new("declined");
    let (there, here) = (dir.manager(), dir.manager());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let server = Server::new(&there, ServerConfig::default()).unwrap();
            server.serve("echo", Access::SameUser).unwrap();
            drop(server.receive(LIMIT).unwrap());
            let late = server.receive(LIMIT).unwrap();
            let next = server.receive(LIMIT).unwrap();
            late.reply(b"late", LIMIT).unwrap();
            next.reply(b"next", LIMIT).unwrap();
            assert!(matches!(
                server.receive(Some(Duration::from_millis(50))),
                Err(ReceiveError::TimedOut)
            ));
        });
        let client = client(&here, "echo");
        assert!(matches!(client.call(b"a", LIMIT), Err(CallError::Declined)));
        let short = Some(Duration::from_millis(30));
        assert!(matches!(client.call(b"b", short), Err(CallError::TimedOut)));
        assert_eq!(&*client.call(b"c", LIMIT).unwrap(), b"next");
    });
}

#[test]
fn messages_beyond_the_limits_are_refused_on_either_side() {
    let dir = Dir::new("long");
    let (there, here) = (dir.manager(), dir.manager());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let config = ServerConfig { request_bytes_max: 10_000, ..Default::default() };
            let server = Server::new(&there, config).unwrap();
            server.serve("echo", Access::SameUser).unwrap();
            let request = server.receive(LIMIT).unwrap();
            let error = request.reply(&vec![1; 30_000], LIMIT).unwrap_err();
            assert!(matches!(error, CallError::TooLong { length: 30_000, .. }), "{error}");
            server.receive(LIMIT).unwrap().reply(b"still here", LIMIT).unwrap();
            server.receive(Some(Duration::from_millis(50))).err().unwrap();
        });
        let config = ClientConfig { reply_bytes_max: 20_000, ..Default::default() };
        let client = loop {
            match Client::connect_with(&here, &at("echo"), config.clone(), LIMIT) {
                Err(GrowError::Connect(_)) => std::thread::sleep(Duration::from_millis(1)),
                other => break other.unwrap(),
            }
        };
        let error = client.call(&vec![0; 10_001], LIMIT).unwrap_err();
        assert!(matches!(error, CallError::TooLong { length: 10_001, max: 10_000, .. }), "{error}");
        let text = "a message of 10001 bytes is longer than the server's request_bytes_max, which is 10000";
        assert_eq!(error.to_string(), text);
        let error = client.call(b"x", LIMIT).unwrap_err();
        assert!(matches!(error, CallError::TooLong { .. }), "{error}");
        let text = "the reply is longer than the client's reply_bytes_max, which is 20000";
        assert_eq!(error.to_string(), text);
        assert_eq!(&*client.call(b"y", LIMIT).unwrap(), b"still here");
    });
}

#[test]
fn limits_below_what_is_sent_at_once_are_kept() {
    for max in [1, 8, 15, 16, 17, 40, 100, 1000, 4087] {
        let dir = Dir::new("short-limits");
        let there = dir.answering();
        let here = dir.manager();
        let config = ServerConfig { request_bytes_max: max, ..Default::default() };
        let server = Server::new(&there, config).unwrap();
        server.serve("echo", Access::SameUser).unwrap();
        let config = ClientConfig { reply_bytes_max: max, ..Default::default() };
        let client = Client::connect_with(&here, &at("echo"), config, LIMIT).unwrap();
        let length = max as usize;
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                for _ in 0..4 {
                    let request = server.receive(LIMIT).unwrap();
                    assert_eq!(request.len(), length);
                    let same = request.to_vec();
                    request.reply(&same, LIMIT).unwrap();
                    let request = server.receive(LIMIT).unwrap();
                    request.reply(&vec![2; length + 1], LIMIT).ok();
                }
            });
            for _ in 0..4 {
                let whole = vec![1; length];
                assert_eq!(*client.call(&whole, LIMIT).unwrap(), whole[..]);
                for longer in [length + 1, length + 100] {
                    let error = client.call(&vec![1; longer], LIMIT).unwrap_err();
                    let text = format!("request_bytes_max, which is {max}");
                    assert!(error.to_string().contains(&text), "{error}");
                    let error = client.call_within(&vec![1; longer], LIMIT.unwrap()).unwrap_err();
                    assert!(matches!(error, CallError::TooLong { .. }), "{max}: {error}");
                }
                let error = client.call_within(&whole, LIMIT.unwrap()).unwrap_err();
                let text = format!(
                    "the reply is longer than the client's reply_bytes_max, which is {max}"
                );
                assert_eq!(error.to_string(), text);
            }
            serving.join().unwrap();
        });
    }
}

#[test]
fn blocks_of_any_size_take_requests_and_replies_of_any_length() {
    for bytes in [1, 8, 40, 44, 100, 4087] {
        let dir = Dir::new("blocks");
        let (there, here) = (dir.answering(), dir.manager());
        let config = ServerConfig { request_bytes: bytes, ..Default::default() };
        let server = Server::new(&there, config).unwrap();
        server.serve("echo", Access::SameUser).unwrap();
        let config = ClientConfig { reply_bytes: bytes, ..Default::default() };
        let client = Client::connect_with(&here, &at("echo"), config, LIMIT).unwrap();
        let around = bytes as usize;
        let lengths = [0, 1, 9, 16, 43, around, around + 1, around + 12, 4088, 5000];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 * lengths.len() {
                    let request = server.receive(LIMIT).unwrap();
                    let same = request.to_vec();
                    request.reply(&same, LIMIT).unwrap();
                }
            });
            for length in lengths {
                let sent = vec![length as u8; length];
                assert_eq!(*client.call(&sent, LIMIT).unwrap(), sent[..], "{bytes} {length}");
                let back = client.call_within(&sent, LIMIT.unwrap()).unwrap();
                assert_eq!(*back, sent[..], "{bytes} {length}");
            }
        });
        assert_eq!(server.misbehaved(), 0);
    }
}

#[test]
fn who_only_sends_learns_that_the_receiver_is_gone() {
    use hamlyn::protocol::{
        ByteConfig, ByteListener, ByteStream, StreamConfig, StreamReceiver, StreamSender,
        TaggedConfig, TaggedReceiver, TaggedSender,
    };
    let dir = Dir::new("only-sends");
    let (there, here) = (dir.answering(), dir.manager());
    let stream = StreamReceiver::new(&there, StreamConfig::default()).unwrap();
    stream.serve("stream", Access::SameUser).unwrap();
    let tagged = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    tagged.serve("tagged", Access::SameUser).unwrap();
    let listener = ByteListener::new(&there, ByteConfig::default()).unwrap();
    listener.serve("bytes", Access::SameUser).unwrap();
    let mut sender = StreamSender::connect(&here, &at("stream"), LIMIT).unwrap();
    let mut writer = TaggedSender::connect(&here, &at("tagged"), LIMIT).unwrap();
    let bytes = ByteStream::connect(&here, &at("bytes"), LIMIT).unwrap();
    drop((stream, tagged, listener));
    drop(there);
    // No call but these, which always have room.
    until(|| sender.send(b"record", LIMIT).and_then(|()| sender.flush(LIMIT)).is_err());
    until(|| writer.send(0, b"data", 1, LIMIT).is_err());
    until(|| std::io::Write::write(&mut &bytes, b"data").is_err());
    assert!(sender.connection().ended().is_some() && writer.connection().ended().is_some());
    assert!(sender.close(LIMIT).is_err() || sender.connection().ended().is_some());
}

#[test]
fn calls_of_a_server_that_goes_fail_at_once() {
    let dir = Dir::new("leaving");
    let (there, here) = (dir.manager(), dir.manager());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let server = Server::new(&there, ServerConfig::default()).unwrap();
            server.serve("echo", Access::SameUser).unwrap();
            let _first = server.receive(LIMIT).unwrap().detach();
            drop(server);
        });
        let client = client(&here, "echo");
        // One that begins when it is known already does not even leave.
        let calls: Vec<_> = (0..10).map(|_| client.start(b"?", LIMIT)).collect();
        assert!(calls[0].is_ok());
        for call in calls {
            let ended = call.and_then(|id| client.finish(id, LIMIT));
            assert!(matches!(ended, Err(CallError::Ended(_))), "{ended:?}");
        }
        assert!(matches!(client.call(b"?", LIMIT), Err(CallError::Ended(_))));
    });
}

#[test]
fn what_a_client_sent_before_it_left_is_still_received() {
    let dir = Dir::new("left");
    let (there, here) = (dir.manager(), dir.manager());
    let server = Server::new(&there, ServerConfig::default()).unwrap();
    let seed = server.seed().unwrap().reached();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = Client::grow(&here, &seed, LIMIT).unwrap();
            for i in 0..20u8 {
                client.start(&[i], LIMIT).unwrap();
            }
        });
        for i in 0..20u8 {
            let request = server.receive(LIMIT).unwrap();
            assert_eq!(&*request, &[i]);
            // The client may be gone already.
            let _ = request.reply(&[], LIMIT);
        }
    });
}

#[test]
fn a_connection_that_ends_before_it_is_used_is_known_to_have_ended() {
    let dir = Dir::new("early");
    let there = dir.answering();
    // A progress thread takes the news of the end while the connection is being made.
    let here = dir.answering();
    for _ in 0..200 {
        let receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
        let seed = receiver.seed().unwrap().reached();
        std::thread::scope(|scope| {
            let growing = scope.spawn(|| TaggedSender::grow(&here, &seed, LIMIT));
            while receiver.senders() == 0 {
                std::hint::spin_loop();
            }
            drop(receiver);
            if let Ok(mut sender) = growing.join().unwrap() {
                let started = std::time::Instant::now();
                while sender.connection().ended().is_none() {
                    let _ = sender.try_send(0, &[], 0);
                    assert!(started.elapsed() < LIMIT.unwrap(), "nobody told of the end");
                }
            }
        });
    }
}

/// A client that takes nothing of what it is sent, and goes on sending `word` for its call 0, the
/// next whenever the server is done with as many as were sent.
fn greedy_client(dir: &Dir, name: &str, server: &Server, word: u32, done: &dyn Fn() -> u64) {
    let mut node = dir.node();
    let (area, queue) = (node.message_area(64).unwrap(), node.notification_queue(1).unwrap());
    let slot = node.slot(SlotConfig::new(area, queue)).unwrap();
    let own = node.fast_ticket(slot).unwrap();
    // Kind 4, no token, one block of 64 bytes.
    let sizes = [64u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    let greeting = [b"HGr2\x04\0\0\0", &[0; 16][..], &own.to_bytes(), &sizes].concat();
    let link = node.connect(&at(name), &greeting, LIMIT).unwrap();
    let ticket = Ticket::from_bytes(&node.greeting(link).unwrap()[8..52]).unwrap();
    let end = Instant::now() + LIMIT.unwrap();
    let mut sent = 0;
    while server.misbehaved() == 0 {
        assert!(Instant::now() < end, "{name}: the client was not sent away after {sent}");
        if done() < sent {
            std::thread::yield_now();
            continue;
        }
        // It never takes a turn, so what it is sent stays in its ring.
        match node.try_send_fast_over(link, &ticket, &u64::MAX.to_le_bytes(), word) {
            Ok(_) => sent += 1,
            Err(NodeSendError::LinkEnded(_)) => {}
            Err(e) => panic!("{e}"),
        }
    }
    // Not before its ring was full.
    assert!(sent > 100, "sent away after {sent}");
}

#[test]
fn a_client_that_takes_no_answers_cannot_fill_the_servers_memory() {
    if only_on_one_host(
        "what the client does not take lies with its system first, tens of MiB of it",
    ) {
        return;
    }
    // Asks for a request that is too long; requests that the server drops.
    for (name, word) in [("asks", 4095 << 20), ("dropped", 8 << 20)] {
        let dir = Dir::new(name);
        let there = dir.answering();
        let server = Server::new(&there, ServerConfig::default()).unwrap();
        server.serve(name, Access::SameUser).unwrap();
        let (is_over, dropped) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok(request) = server.receive(Some(Duration::from_millis(10))) {
                        drop(request);
                        dropped.fetch_add(1, Ordering::Release);
                    }
                }
            });
            let counter = |name| {
                let counters = there.lock().counters();
                counters.iter().find(|row| row.0 == name).map_or(0, |row| row.1)
            };
            let done = || match name {
                "asks" => counter("packets_received") + counter("refused_no_credit"),
                _ => dropped.load(Ordering::Acquire),
            };
            let result = catch_unwind(AssertUnwindSafe(|| {
                greedy_client(&dir, name, &server, word, &done);
            }));
            is_over.store(true, Ordering::Relaxed);
            result.unwrap();
        });
        assert_eq!((server.misbehaved(), server.clients()), (1, 0));
    }
}

#[test]
fn waiting_for_a_specific_tag_has_one_time_limit() {
    let dir = Dir::new("one-limit");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let mut sender = TaggedSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Others keep coming, as long as any waits.
            for i in 0..200 {
                if over.load(std::sync::atomic::Ordering::SeqCst) {
                    return;
                }
                sender.send(0, &[], i, LIMIT).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            panic!("it waits for ever");
        });
        let limit = Some(Duration::from_millis(100));
        assert!(matches!(receiver.get_specific_tag(999, limit), Err(ReceiveError::TimedOut)));
        over.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    assert_eq!(receiver.get_tag(LIMIT).unwrap().tag, 0);
}

#[test]
fn blocks_beyond_the_limit_are_refused_when_an_end_point_is_made() {
    let dir = Dir::new("blocks");
    let here = dir.manager();
    let config = ServerConfig { request_bytes: 4089, ..Default::default() };
    let error = Server::new(&here, config).err().unwrap();
    assert!(error.to_string().contains("4088"), "{error}");
}

#[test]
fn what_a_reply_said_was_sent_arrives_though_the_server_goes_at_once() {
    if is_over_libfabric()
        && only_on_one_host("what no call takes within handshake_timeout_ms goes with the server")
    {
        return;
    }
    let dir = Dir::new("gone-after");
    let (there, here) = (dir.manager(), dir.manager());
    // More than the ring holds.
    const CALLS: u32 = 2000;
    let config = ServerConfig { outstanding: CALLS, request_bytes: 64, ..Default::default() };
    let server = Server::new(&there, config).unwrap();
    let seed = server.seed().unwrap().reached();
    let (begun, gone) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let sent = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let config = ClientConfig { outstanding: CALLS, reply_bytes: 64, ..Default::default() };
            let client = Client::grow_with(&here, &seed, config, LIMIT).unwrap();
            let ids: Vec<_> =
                (0..CALLS).map(|i| client.start(&i.to_le_bytes(), LIMIT).unwrap()).collect();
            begun.wait();
            // Nothing is read until the server has gone.
            gone.wait();
            let sent = sent.load(std::sync::atomic::Ordering::SeqCst);
            for (i, id) in ids.into_iter().enumerate() {
                match client.finish(id, LIMIT) {
                    Ok(reply) => assert_eq!(*reply, (i as u32).to_le_bytes()),
                    Err(e) => assert!(i >= sent, "reply {i} of {sent} that were sent: {e}"),
                }
            }
        });
        let requests: Vec<_> =
            (0..CALLS).map(|_| server.receive(LIMIT).unwrap().detach()).collect();
        begun.wait();
        for request in requests {
            let bytes = request.to_vec();
            match server.attach(request).reply(&bytes, Some(Duration::ZERO)) {
                Ok(()) => sent.fetch_add(1, std::sync::atomic::Ordering::SeqCst),
                Err(CallError::NoRoom) => break,
                Err(e) => panic!("{e}"),
            };
        }
        drop(server);
        drop(there);
        gone.wait();
        client.join().unwrap();
    });
    assert!(sent.into_inner() > 100);
}

#[test]
fn long_requests_of_one_client_wait_until_earlier_ones_are_replied_to() {
    let dir = Dir::new("long-quota");
    let (there, here) = (dir.manager(), dir.manager());
    let config = ServerConfig { long_bytes_max: 25_000, ..Default::default() };
    let server = Server::new(&there, config).unwrap();
    let seed = server.seed().unwrap().reached();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = Client::grow(&here, &seed, LIMIT).unwrap();
            std::thread::scope(|scope| {
                for i in 0..8u8 {
                    let client = &client;
                    scope.spawn(move || {
                        let reply = client.call(&[i; 10_000], LIMIT).unwrap();
                        assert_eq!(*reply, [i]);
                    });
                }
            });
        });
        let mut replied = 0;
        while replied < 8 {
            let mut held = Vec::new();
            while let Ok(request) = server.receive(Some(Duration::from_millis(100))) {
                held.push(request.detach());
                assert!(held.len() <= 2, "two of 10,000 bytes, and no third");
            }
            for request in held {
                let first = [request[0]];
                server.attach(request).reply(&first, LIMIT).unwrap();
                replied += 1;
            }
        }
    });
}

// ---- explaining

#[track_caller]
#[test]
fn every_connection_names_its_path_and_the_reason() {
    let dir = Dir::new("explain");
    let (there, here) = (dir.answering(), dir.manager());
    let tags = TaggedReceiver::new(&there, TaggedConfig::new(64)).unwrap();
    let datagrams = DatagramReceiver::new(&there, 64).unwrap();
    let server = Server::new(&there, ServerConfig::default()).unwrap();
    let group = Group::new(&there, GroupConfig::new(2, 64)).unwrap();
    let records = StreamReceiver::new(&there, StreamConfig::default()).unwrap();
    let far = ApertureStreamReceiver::new(&there, StreamConfig::default(), 1 << 20).unwrap();
    let seed = |seed: Result<Seed, OfferError>| seed.unwrap().reached();
    let to_tags = TaggedSender::grow(&here, &seed(tags.seed()), LIMIT).unwrap();
    let to_datagrams = DatagramSender::grow(&here, &seed(datagrams.seed()), LIMIT).unwrap();
    let client = Client::grow(&here, &seed(server.seed()), LIMIT).unwrap();
    let member = GroupMember::grow(&here, &seed(group.seed()), 64, LIMIT).unwrap();
    let helper = GroupHelper::grow(&here, &seed(group.seed()), LIMIT).unwrap();
    let to_records = StreamSender::grow(&here, &seed(records.seed()), LIMIT).unwrap();
    let to_far = ApertureStreamSender::grow(&here, &seed(far.seed()), LIMIT).unwrap();

    let named = |connection: &Connection, manager: &Manager| {
        let text = connection.explain(manager);
        assert_eq!(text, manager.explain(connection.link()).unwrap());
        assert!(is_said_by(&text), "{text}");
        assert_eq!(text.contains("shared-memory ring to process"), !is_of_hosts(), "{text}");
        assert!(text.contains("bulk ring"), "{text}");
    };
    let connections = [
        to_tags.connection(),
        to_datagrams.connection(),
        client.connection(),
        member.connection(),
        helper.connection(),
        to_records.connection(),
        to_far.connection(),
    ];
    connections.into_iter().for_each(|connection| named(connection, &here));
    let all =
        || [tags.connections(), datagrams.connections(), server.connections(), group.connections()];
    until(|| all().map(|its| its.len()) == [1, 1, 1, 2]);
    until(|| records.connection().is_some() && far.connection().is_some());
    all().iter().flatten().for_each(|connection| named(connection, &there));
    assert!(all().iter().flatten().all(|connection| connection.peer().node == here.id()));
    for connection in [records.connection(), far.connection()] {
        named(connection.unwrap(), &there);
    }

    // Not one link for another of the same name.
    let wrong = to_tags.connection().explain(&there);
    assert!(wrong.contains("not of node"), "{wrong}");
    let ended = tags.connections();
    drop(to_tags);
    until(|| tags.connections().is_empty());
    assert_eq!(
        ended[0].explain(&there),
        "the connection to the peer has ended: it closed the connection"
    );
}

#[test]
fn a_sender_waits_for_a_name_within_its_limit_and_says_at_the_end_why_there_is_nobody() {
    let dir = Dir::new("later");
    let (there, here) = (dir.answering(), dir.manager());
    let server = Server::new(&there, ServerConfig::default()).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Client::connect(&here, &at("later"), LIMIT).map(drop));
        // Whether it has looked once by then or not, it finds what comes.
        std::thread::sleep(Duration::from_millis(20));
        server.serve("later", Access::SameUser).unwrap();
        client.join().unwrap().unwrap();
    });
    let soon = Some(Duration::from_millis(if is_of_hosts() { 500 } else { 20 }));
    let error = Client::connect(&here, &at("never"), soon).err().unwrap().to_string();
    let says: &[_] = match is_of_hosts() {
        // As far as the thread that connects has come by then.
        true => &["knows no place", "the time was up while connecting"],
        false => &["nothing is called never"],
    };
    assert!(says.iter().any(|says| error.contains(says)), "{error}");
    // A seed is of one node: when that has gone, the call does not wait.
    let seed = server.seed().unwrap().reached();
    drop((server, there));
    let error = Client::grow(&here, &seed, None).err().unwrap().to_string();
    let says = ["is called", "nobody listens", "Connection refused"];
    assert!(says.iter().any(|says| error.contains(says)), "{error}");
}
