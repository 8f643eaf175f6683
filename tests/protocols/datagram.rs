//! Datagrams: ready or not ready, and the loss of those that come too early.
use crate::help::{Dir, LIMIT, Reached, SHORT, at, is_of_hosts, is_said_by, manager_with};
use crate::support::until;
use hamlyn::protocol::{
    DatagramReceiver, DatagramSender, EndPoint, GrowError, Manager, ReceiveError, SendError,
    TaggedSender,
};
use hamlyn::wire::Flags;
use hamlyn::{Access, LinkId, MetadataIndex, Share, Ticket};
use std::time::Duration;

/// More than what may be on its way, also between hosts.
fn long_bytes() -> usize {
    if is_of_hosts() { 32 << 20 } else { 300_000 }
}

fn counter(manager: &Manager, name: &str) -> u64 {
    manager.lock().counters().iter().find(|row| row.0 == name).unwrap().1
}

fn text(receiver: &DatagramReceiver, datagram: &hamlyn::protocol::Datagram) -> String {
    receiver.with_bytes(datagram, |bytes| String::from_utf8(bytes.to_vec()).unwrap()).unwrap()
}

#[test]
fn a_datagram_arrives_whole_where_its_sender_put_it_and_is_answered() {
    let dir = Dir::new("datagram");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = DatagramReceiver::new(&there, long_bytes()).unwrap();
    let mut sender =
        DatagramSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    let mut answers = DatagramReceiver::new(&here, 64).unwrap();
    let reply = answers.reply_ticket();
    assert!(receiver.is_ready_for_one());

    sender.send(b"question", 100, Some(&reply), LIMIT).unwrap();
    let datagram = receiver.receive(LIMIT).unwrap();
    assert_eq!((datagram.offset, datagram.length), (100, 8));
    assert_eq!(text(&receiver, &datagram), "question");
    assert!(!receiver.is_ready_for_one());
    receiver.reply(&datagram, b"answer", LIMIT).unwrap();
    let answer = answers.receive(LIMIT).unwrap();
    assert_eq!(text(&answers, &answer), "answer");
    assert!(matches!(answers.reply(&answer, b"?", LIMIT), Err(SendError::NoReplyWanted)));
    // The same reply ticket is good again.
    answers.ready().unwrap();
    receiver.reply(&datagram, b"another", LIMIT).unwrap();
    let answer = answers.receive(LIMIT).unwrap();
    assert_eq!(text(&answers, &answer), "another");

    // A long one, of many packets.
    receiver.ready().unwrap();
    assert!(matches!(receiver.with_bytes(&datagram, |_| ()), Err(ReceiveError::Misuse(_))));
    let long: Vec<u8> = (0..long_bytes()).map(|i| (i * 7 + i / 255) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(&long, 0, None, LIMIT).unwrap());
        let datagram = receiver.receive(LIMIT).unwrap();
        assert_eq!(datagram.reply, None);
        assert!(receiver.with_bytes(&datagram, |bytes| bytes == long).unwrap());
        let mut some = [0; 4];
        assert_eq!(receiver.read(&datagram, &mut some).unwrap(), 4);
        assert_eq!(some, long[..4]);
    });
}

#[test]
fn what_comes_while_the_receiver_is_not_ready_is_dropped_and_counted() {
    let dir = Dir::new("notready");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = DatagramReceiver::new(&there, 64).unwrap();
    receiver.serve("one", Access::SameUser).unwrap();
    let mut first = DatagramSender::connect(&here, &at("one"), LIMIT).unwrap();
    let mut second = DatagramSender::connect(&here, &at("one"), LIMIT).unwrap();
    until("both have joined", || receiver.senders() == 2);
    first.send(b"first", 0, None, LIMIT).unwrap();
    until("it has arrived", || receiver.is_ready());
    // `ready` does not discard a datagram that was not received.
    receiver.ready().unwrap();
    second.send(b"second", 0, None, LIMIT).unwrap();
    until("it was refused", || counter(&there, "refused_entry_closed") == 1);
    let datagram = receiver.receive(LIMIT).unwrap();
    assert_eq!(text(&receiver, &datagram), "first");
    assert!(matches!(receiver.receive(SHORT), Err(ReceiveError::TimedOut)));
    receiver.ready().unwrap();
    assert!(receiver.try_receive().unwrap().is_none());
    second.send(b"third", 0, None, LIMIT).unwrap();
    let datagram = receiver.receive(LIMIT).unwrap();
    assert_eq!(text(&receiver, &datagram), "third");
}

#[test]
fn a_long_datagram_that_met_a_receiver_half_ready_does_not_spoil_the_next() {
    let dir = Dir::new("halfready");
    // Only the test polls there, one packet of each link in a turn, so that it decides how much of
    // a datagram is refused, and which of two comes first. Rings hold little of it, so that it
    // waits for them.
    let manager = || {
        let mut config = dir.config();
        (config.bulk_ring_bytes, config.packets_per_turn) = (0, 1);
        manager_with(config)
    };
    let (there, here) = (manager(), manager());
    let take_all = |sending: &std::thread::ScopedJoinHandle<'_, ()>| {
        while !sending.is_finished() {
            there.poll().unwrap();
        }
        while there.poll().unwrap() > 0 {}
    };
    here.start_progress().unwrap();
    let mut receiver = DatagramReceiver::new(&there, long_bytes()).unwrap();
    let seed = receiver.seed().unwrap().reached();
    let (mut sender, mut other) = std::thread::scope(|scope| {
        let growing = scope.spawn(|| {
            let one = DatagramSender::grow(&here, &seed, LIMIT).unwrap();
            (one, DatagramSender::grow(&here, &seed, LIMIT).unwrap())
        });
        while !growing.is_finished() {
            there.poll().unwrap();
        }
        growing.join().unwrap()
    });
    sender.send(b"x", 0, None, LIMIT).unwrap();
    receiver.receive(LIMIT).unwrap();
    let long = vec![1; long_bytes()];
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| sender.send(&long, 0, None, LIMIT).unwrap());
        // Some of it is refused, then the receiver is ready, then comes the rest.
        until("some was refused", || {
            there.poll().unwrap();
            counter(&there, "refused_entry_closed") > 0
        });
        assert!(!sending.is_finished(), "too short to be cut in two");
        receiver.ready().unwrap();
        assert!(matches!(receiver.receive(SHORT), Err(ReceiveError::TimedOut)));
        take_all(&sending);
    });
    assert!(matches!(receiver.receive(SHORT), Err(ReceiveError::TimedOut)));
    // Half of one has arrived, and a short one of another sender is taken for the datagram.
    std::thread::scope(|scope| {
        let received = counter(&there, "packets_received");
        let sending = scope.spawn(|| sender.send(&long, 0, None, LIMIT).unwrap());
        until("some has arrived", || {
            there.poll().unwrap();
            counter(&there, "packets_received") > received
        });
        assert!(!sending.is_finished(), "too short to be cut in two");
        other.send(b"short", 0, None, LIMIT).unwrap();
        let datagram = receiver.receive(LIMIT).unwrap();
        assert_eq!(datagram.length, 5);
        receiver.ready().unwrap();
        take_all(&sending);
    });
    assert!(matches!(receiver.receive(SHORT), Err(ReceiveError::TimedOut)));
    for round in 2..5 {
        let long = vec![round; long_bytes()];
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(&long, 0, None, LIMIT).unwrap());
            let datagram = receiver.receive(LIMIT).unwrap();
            assert!(receiver.with_bytes(&datagram, |bytes| bytes == long).unwrap());
        });
        receiver.ready().unwrap();
    }
}

#[test]
fn a_time_limit_that_cuts_a_datagram_off_leaves_the_rest_for_the_next_call() {
    let dir = Dir::new("cutoff");
    let (there, here) = (dir.manager(), dir.answering());
    let mut receiver = DatagramReceiver::new(&there, long_bytes()).unwrap();
    let seed = receiver.seed().unwrap().reached();
    let mut sender = std::thread::scope(|scope| {
        let growing = scope.spawn(|| DatagramSender::grow(&here, &seed, LIMIT).unwrap());
        while !growing.is_finished() {
            there.poll().unwrap();
        }
        growing.join().unwrap()
    });
    let error = sender.send(&vec![1; long_bytes()], 0, None, SHORT).unwrap_err();
    assert!(matches!(error, SendError::CutOff), "{error}");
    assert!(matches!(sender.flush(SHORT), Err(SendError::CutOff)));
    let error = sender.send(b"second", 0, None, SHORT).unwrap_err();
    assert!(matches!(error, SendError::TimedOut), "{error}");
    std::thread::scope(|scope| {
        scope.spawn(|| sender.flush(LIMIT).unwrap());
        let datagram = receiver.receive(LIMIT).unwrap();
        assert_eq!(datagram.length, long_bytes());
        assert!(receiver.with_bytes(&datagram, |b| b.iter().all(|byte| *byte == 1)).unwrap());
    });
    sender.flush(Some(Duration::ZERO)).unwrap();
    receiver.ready().unwrap();
    sender.send(b"second", 0, None, LIMIT).unwrap();
    let datagram = receiver.receive(LIMIT).unwrap();
    assert_eq!(text(&receiver, &datagram), "second");
}

#[test]
fn a_new_key_makes_tickets_worthless_and_the_sender_is_not_told() {
    let dir = Dir::new("anew");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = DatagramReceiver::new(&there, 64).unwrap();
    let seed = receiver.seed().unwrap().reached();
    let mut old = DatagramSender::grow(&here, &seed, LIMIT).unwrap();
    receiver.ready_anew().unwrap();
    old.send(b"old", 0, None, LIMIT).unwrap();
    until("it was refused", || counter(&there, "refused_stale_key") == 1);
    let mut new = DatagramSender::grow(&here, &seed, LIMIT).unwrap();
    new.send(b"new", 0, None, LIMIT).unwrap();
    let datagram = receiver.receive(LIMIT).unwrap();
    assert_eq!(text(&receiver, &datagram), "new");
    drop(new);
    until("it has left", || receiver.senders() == 1);
}

#[test]
fn what_is_too_long_or_not_ones_own_is_refused_before_it_is_sent() {
    let dir = Dir::new("outside");
    let (there, here) = (dir.answering(), dir.manager());
    let receiver = DatagramReceiver::new(&there, 64).unwrap();
    let seed = receiver.seed().unwrap().reached();
    let mut sender = DatagramSender::grow(&here, &seed, LIMIT).unwrap();
    assert_eq!(sender.capacity(), 64);
    let outside = |sent| matches!(sent, Err(SendError::Outside { size: 64, .. }));
    assert!(outside(sender.send(&[0; 65], 0, None, LIMIT)));
    assert!(outside(sender.send(&[0; 4], 61, None, LIMIT)));
    assert!(outside(sender.send(&[0; 4], u64::MAX, None, LIMIT)));
    let foreign = receiver.reply_ticket();
    let error = sender.send(b"x", 0, Some(&foreign), LIMIT).unwrap_err();
    assert!(matches!(error, SendError::ForeignTicket), "{error}");
    let wrong = TaggedSender::grow(&here, &seed, LIMIT).err().unwrap();
    assert!(matches!(wrong, GrowError::Kind { .. }), "{wrong}");
    assert!(is_said_by(&sender.explain()), "{}", sender.explain());
    drop(receiver);
    until("the sender is told", || sender.send(b"x", 0, None, LIMIT).is_err());
    assert!(sender.connection().ended().is_some());
}

/// A peer that has a connection and a ticket, and writes what it likes.
struct Hostile {
    manager: Manager,
    link: LinkId,
    ticket: Ticket,
}

impl Hostile {
    /// Grown by hand from what is served as `lied-to`.
    fn new(dir: &Dir) -> Self {
        let manager = dir.manager();
        let greeting = [&b"HGr2\x01\0\0\0"[..], &[0; 16]].concat();
        let link = manager.connect(&at("lied-to"), &greeting, LIMIT).unwrap();
        let answer = manager.lock().greeting(link).unwrap().to_vec();
        let ticket = Ticket::from_bytes(answer.strip_prefix(b"HAn2\x01\0\0\0").unwrap()).unwrap();
        Self { manager, link, ticket }
    }

    fn says(&self, ticket: &Ticket, metadata: &[u8]) {
        self.manager.lock().send_over(self.link, ticket, b"bytes", metadata, LIMIT).unwrap();
    }

    fn is_gone(&self) -> bool {
        self.manager.poll().unwrap();
        !self.manager.lock().links().any(|link| link == self.link)
    }
}

fn place(offset: u64, length: u64) -> Vec<u8> {
    [offset.to_le_bytes(), length.to_le_bytes()].concat()
}

#[test]
fn a_datagram_that_makes_no_sense_sends_its_own_sender_away_and_no_other() {
    let dir = Dir::new("innocent");
    let there = dir.answering();
    let mut receiver = DatagramReceiver::new(&there, 64).unwrap();
    receiver.serve("lied-to", Access::SameUser).unwrap();
    let (liar, honest) = (Hostile::new(&dir), Hostile::new(&dir));
    until("both have joined", || receiver.senders() == 2);
    let of =
        |hostile: &Hostile, share| Ticket { share: Share::new(share).unwrap(), ..hostile.ticket };
    let taken = || counter(&there, "packets_received") + counter(&there, "refused_entry_closed");
    let counted = |packets| until("it has arrived", || taken() == packets);
    // A datagram of two packets, and meanwhile two that come out at zero, with nonsense.
    honest.says(&of(&honest, 1 << 31), &place(0, 5));
    counted(1);
    liar.says(&of(&liar, 1), b"nonsense");
    counted(2);
    liar.says(&of(&liar, (1 << 32) - 1), b"nonsense");
    counted(3);
    honest.says(&of(&honest, 1 << 31), &[]);
    counted(4);
    let error = receiver.receive(LIMIT).unwrap_err();
    assert!(matches!(error, ReceiveError::Misbehaved(_)), "{error}");
    until("it is gone", || liar.is_gone());
    assert!(!honest.is_gone());
    assert_eq!(receiver.senders(), 1);
    // The overtaken one is lost; the receiver is ready.
    honest.says(&of(&honest, 1 << 31), &place(0, 5));
    counted(5);
    honest.says(&of(&honest, 1 << 31), &[]);
    let datagram = receiver.receive(LIMIT).unwrap();
    assert_eq!(text(&receiver, &datagram), "bytes");
}

#[test]
fn a_sender_that_never_finishes_a_datagram_keeps_no_other_from_sending() {
    let dir = Dir::new("unfinished");
    let (there, here) = (dir.answering(), dir.manager());
    let mut receiver = DatagramReceiver::new(&there, long_bytes()).unwrap();
    receiver.serve("lied-to", Access::SameUser).unwrap();
    let (early, silent) = (Hostile::new(&dir), Hostile::new(&dir));
    let mut honest =
        DatagramSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    honest.send(b"short", 0, None, LIMIT).unwrap();
    receiver.receive(LIMIT).unwrap();
    // Part of a datagram comes while the receiver is not ready, of another when it is; and neither
    // sender says any more, nor goes.
    let part = |hostile: &Hostile| {
        hostile.says(&Ticket { share: Share::new(5).unwrap(), ..hostile.ticket }, &place(0, 5));
    };
    part(&early);
    until("it was refused", || counter(&there, "refused_entry_closed") == 1);
    receiver.ready().unwrap();
    let received = counter(&there, "packets_received");
    part(&silent);
    until("it has arrived", || counter(&there, "packets_received") > received);
    for round in 0..3 {
        let long = vec![round; long_bytes()];
        std::thread::scope(|scope| {
            scope.spawn(|| honest.send(&long, 0, None, LIMIT).unwrap());
            let datagram = receiver.receive(LIMIT).unwrap();
            assert!(receiver.with_bytes(&datagram, |bytes| bytes == long).unwrap());
        });
        receiver.ready().unwrap();
    }
    assert_eq!(receiver.senders(), 3);
}

#[test]
fn a_sender_whose_metadata_cannot_be_is_sent_away_and_the_receiver_stays_ready() {
    let dir = Dir::new("hostile");
    let there = dir.answering();
    let mut receiver = DatagramReceiver::new(&there, 64).unwrap();
    receiver.serve("lied-to", Access::SameUser).unwrap();
    let elsewhere = {
        let mut ticket = receiver.reply_ticket();
        ticket.destination.0 ^= 1;
        [place(0, 5), ticket.to_bytes().to_vec()].concat()
    };
    let wrong = [
        Vec::new(),
        vec![1; 15],
        place(0, 65),
        place(u64::MAX, 2),
        place(2, u64::MAX),
        [place(0, 5), vec![0xff; 44]].concat(),
        [place(0, 5), vec![0; 20]].concat(),
        elsewhere,
    ];
    for metadata in wrong {
        let hostile = Hostile::new(&dir);
        hostile.says(&hostile.ticket, &metadata);
        let error = receiver.receive(LIMIT).unwrap_err();
        assert!(matches!(error, ReceiveError::Misbehaved(_)), "{metadata:?}: {error}");
        until("it is gone", || receiver.senders() == 0);
        until("it knows", || hostile.is_gone());
    }
    // A message without notification, and half a message: neither keeps others from sending.
    let hostile = Hostile::new(&dir);
    hostile.says(&hostile.ticket.with_flags(Flags::empty()), &place(0, 5));
    until("it closed the entry", || !receiver.is_ready_for_one());
    assert!(matches!(receiver.receive(SHORT), Err(ReceiveError::TimedOut)));
    let half = Ticket { share: Share::new(5).unwrap(), ..hostile.ticket };
    hostile.says(&half, &place(0, 5));
    assert!(matches!(receiver.receive(SHORT), Err(ReceiveError::TimedOut)));
    drop(hostile);
    until("it is gone", || receiver.senders() == 0);
    let here = dir.manager();
    let mut honest =
        DatagramSender::grow(&here, &receiver.seed().unwrap().reached(), LIMIT).unwrap();
    honest.send(b"good", 1, None, LIMIT).unwrap();
    let datagram = receiver.receive(LIMIT).unwrap();
    assert_eq!(text(&receiver, &datagram), "good");
    assert_eq!(honest.capacity(), 64);
    assert_ne!(receiver.reply_ticket().metadata_index, MetadataIndex::FAST);
}
