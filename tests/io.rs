//! Byte streams, in tokio's tasks and in threads.
#![cfg(not(miri))]

mod support;

use hamlyn::io::{Connection, Listener};
use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    AsyncManager, ByteConfig, ByteListener, ByteStream, ByteStreamError, EndPoint, Manager,
    ReceiveError,
};
use hamlyn::{Access, Config, Flags, MetadataIndex, SlotConfig, Ticket};
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use support::{Dir, LIMIT, LONG, Peer, Role, say};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

fn manager(config: Config) -> AsyncManager {
    AsyncManager::new(&Manager::with_config(config).unwrap()).unwrap()
}

/// A listener called `bytes` and a connection to it, of two managers.
async fn pair(config: Config, bytes: ByteConfig) -> (Listener, Connection, Connection) {
    pair_at(&manager(config.clone()), config, bytes).await
}

/// The same, where the listener is `there`.
async fn pair_at(
    there: &AsyncManager,
    config: Config,
    bytes: ByteConfig,
) -> (Listener, Connection, Connection) {
    let here = manager(config);
    let listener = Listener::bind_with(there, "bytes", Access::SameUser, bytes.clone()).unwrap();
    let connecting = Connection::connect_with(&here, "bytes", bytes, LIMIT);
    let (connected, accepted) = tokio::join!(connecting, listener.accept());
    (listener, connected.unwrap(), accepted.unwrap())
}

fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// The error within.
fn inner(error: &std::io::Error) -> &ByteStreamError {
    error.get_ref().and_then(|e| e.downcast_ref()).unwrap_or_else(|| panic!("{error}"))
}

/// The bytes that one poll of a write of `bytes` takes; `None` if it would wait.
async fn write_once(to: &mut Connection, bytes: &[u8]) -> Option<usize> {
    poll_fn(|context| match Pin::new(&mut *to).poll_write(context, bytes) {
        Poll::Ready(wrote) => Poll::Ready(Some(wrote.unwrap())),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

const SMALL: [(&str, &str); 2] = [("RING_BYTES", "8192"), ("BULK_RING_BYTES", "0")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_any_length_go_both_ways_at_once_and_each_way_ends_by_itself() {
    for (name, settings) in [("io-both", &[][..]), ("io-both-small", &SMALL[..])] {
        for mode in ["adaptive", "blocking", "polled"] {
            let settings = [settings, &[("WAIT_MODE", mode)][..]].concat();
            let dir = Dir::new(&format!("{name}-{mode}"), &settings);
            let bytes = ByteConfig { window_bytes: 16 << 10, packets: 8, ..Default::default() };
            let (_listener, a, b) = pair(dir.config(), bytes).await;
            let total = 1 << 20;
            let mut tasks = tokio::task::JoinSet::new();
            for connection in [a, b] {
                let (mut read, mut write) = connection.into_split();
                tasks.spawn(async move {
                    let mut all = Vec::new();
                    read.read_to_end(&mut all).await.unwrap();
                    assert!(all == pattern(0, total), "{} bytes", all.len());
                });
                tasks.spawn(async move {
                    let (mut at, mut length) = (0, 1);
                    while at < total {
                        let piece = pattern(at, length.min(total - at));
                        write.write_all(&piece).await.unwrap();
                        at += piece.len();
                        length = length * 3 % 50_000 + 1;
                    }
                    write.shutdown().await.unwrap();
                    let error = write.write_all(b"more").await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                    assert!(matches!(
                        inner(&error),
                        ByteStreamError::Shut | ByteStreamError::Ended(_)
                    ));
                });
            }
            while let Some(done) = timeout(LONG, tasks.join_next()).await.unwrap() {
                done.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_connects_is_known_and_who_cannot_is_told_why() {
    let dir = Dir::new("io-who", &[]);
    let (listener, connected, accepted) = pair(dir.config(), ByteConfig::default()).await;
    for peer in [accepted.peer(), connected.peer()] {
        assert_eq!(peer.uid, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(peer.pid, Some(std::process::id()));
    }
    assert!(connected.get_ref().explain().contains("byte stream"));
    let other = manager(dir.config());
    let taken = Listener::bind(&other, "bytes", Access::SameUser).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AddrInUse, "{taken}");
    let none = Listener::bind(&other, "no/name", Access::SameUser).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidInput, "{none}");
    let nobody =
        Connection::connect(&other, "nobody", Some(Duration::from_millis(50))).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::NotFound, "{nobody}");
    let wrong = ByteConfig { window_bytes: 5000, ..Default::default() };
    let wrong = Connection::connect_with(&other, "bytes", wrong, LIMIT).await.unwrap_err();
    assert!(wrong.to_string().contains("power of two"), "{wrong}");
    // The last place was taken.
    drop((listener, connected, accepted));
    let config = ByteConfig { connections_max: 1, ..Default::default() };
    let (listener, first, accepted) = pair(dir.config(), config).await;
    let refused = Connection::connect(&other, "bytes", LIMIT).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    assert!(refused.to_string().contains("as many as it may"), "{refused}");
    drop((first, accepted));
    let (again, _) = tokio::join!(Connection::connect(&other, "bytes", LIMIT), listener.accept());
    again.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_whose_reader_does_not_read_has_its_window_and_no_more() {
    let dir = Dir::new("io-credit", &[]);
    let window = 64 << 10;
    let bytes = ByteConfig { window_bytes: window, ..Default::default() };
    let (_listener, mut writer, mut reader) = pair(dir.config(), bytes).await;
    let all = pattern(0, 3 * window as usize);
    let mut wrote = 0;
    // Written bytes are in the window, or on their way into it.
    while wrote < window as usize {
        let taken = timeout(LONG, writer.write(&all[wrote..])).await.unwrap().unwrap();
        wrote += taken;
    }
    assert_eq!(wrote, window as usize);
    for _ in 0..50 {
        assert_eq!(write_once(&mut writer, &all[wrote..]).await, None);
        tokio::task::yield_now().await;
    }
    let (writing, reading) = (writer.write_all(&all[wrote..]), async {
        let mut back = vec![0; all.len()];
        reader.read_exact(&mut back).await.unwrap();
        back
    });
    let (written, back) = timeout(LONG, async { tokio::join!(writing, reading) }).await.unwrap();
    written.unwrap();
    assert!(back == all);
    // As many packets as there are places, of a byte each; the end of the bytes has one of its own.
    let mut ones = 0;
    while write_once(&mut writer, b"1").await.is_some() {
        ones += 1;
        assert!(ones < 1000);
    }
    let mut read = vec![0; ones];
    let (shut, read) =
        timeout(LONG, async { tokio::join!(writer.shutdown(), reader.read_exact(&mut read)) })
            .await
            .unwrap();
    shut.unwrap();
    assert_eq!(read.unwrap(), ones);
    assert_eq!(reader.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_writes_and_accepts_that_are_dropped_half_way_lose_nothing() {
    let dir = Dir::new("io-dropped", &SMALL);
    let bytes = ByteConfig { window_bytes: 4 << 10, packets: 8, ..Default::default() };
    let (listener, writer, reader) = pair(dir.config(), bytes).await;
    let total = 200_000;
    let all = pattern(0, total);
    let (_, mut to) = writer.into_split();
    let (mut from, _other) = reader.into_split();
    // Each future is polled a few times, and then dropped or ready.
    async fn a_few<R>(round: usize, future: impl Future<Output = R>) -> Option<R> {
        let (mut future, mut left) = (pin!(future), round % 3);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => {
                left -= 1;
                context.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await
    }
    let sent = all.clone();
    let writing = tokio::spawn(async move {
        let (mut at, mut round) = (0, 0);
        while at < total {
            round += 1;
            let end = (at + 1 + round * 37 % 3000).min(total);
            if let Some(wrote) = a_few(round, to.write(&sent[at..end])).await {
                at += wrote.unwrap();
            } else {
                tokio::task::yield_now().await;
            }
        }
        while a_few(0, to.shutdown()).await.is_none() {
            tokio::task::yield_now().await;
        }
        to
    });
    let reading = async {
        let (mut back, mut round) = (Vec::new(), 0);
        let mut to = [0; 1500];
        loop {
            round += 1;
            match a_few(round, from.read(&mut to)).await {
                Some(count) => match count.unwrap() {
                    0 => return back,
                    count => back.extend_from_slice(&to[..count]),
                },
                None => tokio::task::yield_now().await,
            }
        }
    };
    let back = timeout(LONG, reading).await.unwrap();
    assert!(back == all, "{} bytes", back.len());
    drop(writing.await.unwrap());
    // An accept that is dropped has taken no connection.
    let here = manager(dir.config());
    for round in 0..5 {
        let mut connecting = pin!(Connection::connect(&here, "bytes", LIMIT));
        let accepted = timeout(LONG, async {
            loop {
                if let Some(accepted) = a_few(round, listener.accept()).await {
                    return accepted.unwrap();
                }
                tokio::task::yield_now().await;
            }
        });
        let (connected, accepted) = tokio::join!(&mut connecting, accepted);
        let (mut connected, mut accepted) = (connected.unwrap(), accepted.unwrap());
        connected.write_all(b"hello").await.unwrap();
        let mut hello = [0; 5];
        accepted.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
    }
}

#[tokio::test]
async fn a_task_that_waits_is_not_run_and_neither_is_anything_else() {
    for mode in ["adaptive", "blocking"] {
        let dir = Dir::new(&format!("io-idle-{mode}"), &[("WAIT_MODE", mode)]);
        let (listener, connected, accepted) = pair(dir.config(), ByteConfig::default()).await;
        let (mut read, mut write) = connected.into_split();
        let mut full = vec![0; 1 << 20];
        full.fill(7);
        let mut waits =
            pin!(async { tokio::join!(read.read_u8(), write.write_all(&full), listener.accept()) });
        let mut polls = 0;
        let counted = poll_fn(|context| {
            polls += 1;
            waits.as_mut().poll(context).map(drop)
        });
        let metrics = tokio::runtime::Handle::current().metrics();
        // Let it come to rest; then nothing runs.
        let mut waited = pin!(counted);
        assert!(timeout(Duration::from_millis(300), waited.as_mut()).await.is_err());
        let before = metrics.worker_park_count(0);
        assert!(timeout(Duration::from_millis(300), waited.as_mut()).await.is_err());
        let parks = metrics.worker_park_count(0) - before;
        assert!(parks < 100, "{mode}: it slept {parks} times");
        assert!(polls < 1000, "{mode}: it was run {polls} times");
        drop(accepted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_that_a_dropped_half_finds_no_room_for_is_said_when_there_is_room() {
    for mode in ["adaptive", "blocking"] {
        let name = format!("io-owed-{mode}");
        let dir = Dir::new(&name, &[&SMALL[..], &[("WAIT_MODE", mode)]].concat());
        let bytes = ByteConfig { packets: 1024, ..Default::default() };
        let (here, config) = (manager(dir.config()), bytes.clone());
        // A program that makes no calls meanwhile: what is sent stays in the link's ring.
        let there = Manager::with_config(dir.config()).unwrap();
        let listener = ByteListener::new(&there, config).unwrap();
        listener.serve("bytes", Access::SameUser).unwrap();
        let accepting = tokio::task::spawn_blocking(move || listener.accept(LIMIT).unwrap());
        let connecting = Connection::connect_with(&here, "bytes", bytes, LIMIT);
        let (connected, accepted) = tokio::join!(connecting, accepting);
        let (mut connected, accepted) = (connected.unwrap(), accepted.unwrap());
        let mut wrote = 0;
        while write_once(&mut connected, b"1").await.is_some() {
            wrote += 1;
            assert!(wrote < 1000, "it is the link that is full, not the window");
        }
        let (mut read, write) = connected.into_split();
        drop(write);
        // A polling task comes to rest.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let reading = tokio::task::spawn_blocking(move || {
            accepted.set_timeout(LIMIT);
            let mut all = Vec::new();
            (&accepted).read_to_end(&mut all).unwrap();
            // The other direction goes on.
            accepted.write_within(&[IoSlice::new(b"got it")], LIMIT).unwrap();
            (all, accepted)
        });
        let (all, accepted) = reading.await.unwrap();
        assert_eq!(all, vec![b'1'; wrote]);
        let mut got = [0; 6];
        timeout(LONG, read.read_exact(&mut got)).await.unwrap().unwrap();
        assert_eq!(&got, b"got it");
        drop(accepted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_pieces_of_a_vectored_write_leave_as_one_packet() {
    let dir = Dir::new("io-vectored", &[]);
    let (_listener, mut writer, mut reader) = pair(dir.config(), ByteConfig::default()).await;
    assert!(writer.is_write_vectored());
    let pieces: [&[u8]; 5] = [b"head", b"", b": ", &[b'b'; 300], b"\r\n"];
    let slices = pieces.map(IoSlice::new);
    let wrote = writer.write_vectored(&slices).await.unwrap();
    assert_eq!(wrote, 308);
    // One packet is one read, however long the buffer is.
    let mut back = [0; 1000];
    assert_eq!(reader.read(&mut back).await.unwrap(), 308);
    assert_eq!(back[..308], pieces.concat());
    assert_eq!(writer.write_vectored(&[]).await.unwrap(), 0);
    // A buffer that is full already takes nothing, and says so.
    let mut nothing = ReadBuf::new(&mut []);
    let read = poll_fn(|context| Pin::new(&mut reader).poll_read(context, &mut nothing)).await;
    read.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_of_one_manager_are_served_by_tasks_and_threads() {
    let dir = Dir::new("io-many", &[]);
    let (there, here) = (manager(dir.config()), manager(dir.config()));
    let listener = Listener::bind(&there, "many", Access::SameUser).unwrap();
    const MANY: usize = 30;
    let serving = tokio::spawn(async move {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..MANY + 1 {
            let (mut read, mut write) = listener.accept().await.unwrap().into_split();
            tasks.spawn(async move {
                tokio::io::copy(&mut read, &mut write).await.unwrap();
            });
        }
        // Those that were accepted go on.
        drop(listener);
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    });
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..MANY {
        let here = here.clone();
        tasks.spawn(async move {
            let mut echo = Connection::connect(&here, "many", LIMIT).await.unwrap();
            for round in 0..20 {
                let bytes = pattern(i, 1 + (i * 977 + round * 131) % 9000);
                echo.write_all(&bytes).await.unwrap();
                let mut back = vec![0; bytes.len()];
                echo.read_exact(&mut back).await.unwrap();
                assert!(back == bytes);
            }
        });
    }
    let config = dir.config();
    let thread = tokio::task::spawn_blocking(move || {
        let manager = Manager::with_config(config).unwrap();
        let mut echo = ByteStream::connect(&manager, "many", LIMIT).unwrap();
        echo.set_timeout(LIMIT);
        for round in 0..20 {
            let bytes = pattern(round, 20_000);
            echo.write_all(&bytes).unwrap();
            let mut back = vec![0; bytes.len()];
            echo.read_exact(&mut back).unwrap();
            assert!(back == bytes);
        }
        echo.shut(LIMIT).unwrap();
        assert_eq!(echo.read_within(&mut [0; 9], LIMIT).unwrap(), 0);
    });
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        thread.await.unwrap();
        serving.await.unwrap();
    };
    timeout(LONG, all).await.unwrap();
}

#[test]
fn a_stream_and_its_listener_are_waited_for_as_any_end_point() {
    let dir = Dir::new("io-wait-any", &[]);
    let (there, here) =
        (Manager::with_config(dir.config()).unwrap(), Manager::with_config(dir.config()).unwrap());
    there.start_progress().unwrap();
    let listener = ByteListener::new(&there, ByteConfig::default()).unwrap();
    let soon = Some(Duration::from_millis(10));
    let nothing = |ends: &[&dyn EndPoint]| {
        assert!(matches!(there.wait_any(ends, soon), Err(ReceiveError::TimedOut)));
    };
    nothing(&[&listener]);
    let a = ByteStream::grow(&here, &listener.seed().unwrap(), LIMIT).unwrap();
    assert_eq!(there.wait_any(&[&listener], LIMIT).unwrap(), 0);
    let b = listener.accept(LIMIT).unwrap();
    nothing(&[&listener, &b]);
    a.write_within(&[IoSlice::new(b"ab")], LIMIT).unwrap();
    // As long as a byte is there.
    for _ in 0..2 {
        assert_eq!(there.wait_any(&[&listener, &b], LIMIT).unwrap(), 1);
        assert_eq!(b.read_within(&mut [0], LIMIT).unwrap(), 1);
    }
    nothing(&[&b]);
    a.shut(LIMIT).unwrap();
    assert_eq!(there.wait_any(&[&b], LIMIT).unwrap(), 0);
    assert_eq!(b.read_within(&mut [0], LIMIT).unwrap(), 0);
}

#[test]
fn threads_read_and_write_within_their_time() {
    let dir = Dir::new("io-threads", &[]);
    let (there, here) =
        (Manager::with_config(dir.config()).unwrap(), Manager::with_config(dir.config()).unwrap());
    there.start_progress().unwrap();
    let listener = ByteListener::new(&there, ByteConfig::default()).unwrap();
    let seed = listener.seed().unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    let mut a = ByteStream::grow(&here, &seed, LIMIT).unwrap();
    let b = listener.accept(LIMIT).unwrap();
    assert_eq!(listener.connections(), 1);
    let soon = Some(Duration::from_millis(10));
    assert!(matches!(b.read_within(&mut [0; 4], soon), Err(ByteStreamError::TimedOut)));
    let chunk = vec![1; 100_000];
    let mut wrote = 0;
    let full = loop {
        match a.write_within(&[IoSlice::new(&chunk)], soon) {
            Ok(count) => wrote += count,
            // The other end has not had time yet.
            Err(ByteStreamError::TimedOut) if wrote < 256 << 10 => {}
            Err(e) => break e,
        }
    };
    assert!(matches!(full, ByteStreamError::TimedOut), "{full}");
    assert_eq!(wrote, 256 << 10);
    let mut back = vec![0; wrote];
    b.set_timeout(LIMIT);
    (&b).read_exact(&mut back).unwrap();
    a.set_timeout(LIMIT);
    a.write_all(b"last").unwrap();
    drop(a);
    // Written bytes come before the end.
    let mut last = String::new();
    (&b).read_to_string(&mut last).unwrap();
    assert_eq!(last, "last");
    let error = (&b).write(b"?").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert!(error.to_string().contains("it closed the connection"), "{error}");
    drop(b);
    assert_eq!(listener.connections(), 0);
    // A client that was not accepted gets an error.
    let waits = ByteStream::grow(&here, &seed, LIMIT).unwrap();
    drop(listener);
    let error = loop {
        match waits.write_within(&[IoSlice::new(b"!")], LIMIT) {
            Ok(_) => std::thread::yield_now(),
            Err(e) => break e,
        }
    };
    assert!(matches!(error, ByteStreamError::Ended(CloseReason::Closed)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_dies_is_an_error_after_all_that_it_wrote() {
    let dir = Dir::new("io-death", &[]);
    let here = manager(dir.config());
    let listener = Listener::bind(&here, "deathbed", Access::SameUser).unwrap();
    let mut peer = Peer::start("dies", &dir, "");
    let mut connection = timeout(LONG, listener.accept()).await.unwrap().unwrap();
    assert_ne!(connection.peer().pid, Some(std::process::id()));
    peer.expect("wrote");
    let mut first = [0; 5];
    connection.read_exact(&mut first).await.unwrap();
    let waiting = async {
        let mut rest = Vec::new();
        let error = connection.read_to_end(&mut rest).await.unwrap_err();
        (rest, error)
    };
    let killing = async {
        tokio::task::yield_now().await;
        tokio::task::block_in_place(|| peer.kill());
    };
    let ((rest, error), ()) =
        timeout(LONG, async { tokio::join!(waiting, killing) }).await.unwrap();
    assert_eq!((&first[..], rest.len()), (&b"words"[..], 50_000));
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(error.to_string().contains("its process died"), "{error}");
    let error = connection.write_all(b"?").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    assert_eq!(role.name, "dies");
    let manager = Manager::with_config(role.config()).unwrap();
    let mut stream = ByteStream::connect(&manager, "deathbed", LIMIT).unwrap();
    stream.write_all(b"words").unwrap();
    stream.write_all(&[1; 50_000]).unwrap();
    say("wrote");
    role.wait_for("never");
}

// ---- peers that lie

/// The means of a hostile peer that has connected by hand.
struct Liar {
    manager: Manager,
    link: hamlyn::LinkId,
    window: Ticket,
    credit: Ticket,
}

impl Liar {
    /// Greets as a stream does, with a window of `window` bytes for `packets`, as it says.
    fn connect(config: Config, window: u32, packets: u32) -> Result<Self, String> {
        let manager = Manager::with_config(config).unwrap();
        let hello = {
            let mut node = manager.lock();
            let area = node.message_area(64 << 10).unwrap();
            let queue = node.notification_queue(64).unwrap();
            let slot = node.slot(SlotConfig::new(area, queue).credit(64)).unwrap();
            let ticket = node.fast_ticket(slot).unwrap().to_bytes();
            [&ticket[..], &window.to_le_bytes(), &packets.to_le_bytes(), &ticket].concat()
        };
        Self::greet(manager, &hello)
    }

    fn greet(manager: Manager, hello: &[u8]) -> Result<Self, String> {
        let greeting = [b"HGr2\x06\0\0\0", &[0; 16][..], hello].concat();
        let link = manager.connect("bytes", &greeting, LIMIT).map_err(|e| e.to_string())?;
        let answer = manager.lock().greeting(link).unwrap()[8..].to_vec();
        let window = Ticket::from_bytes(&answer[..44]).unwrap();
        let credit = Ticket::from_bytes(&answer[52..96]).unwrap();
        Ok(Self { manager, link, window, credit })
    }

    fn send(&self, word: u32, data: &[u8]) {
        self.manager.lock().try_send_fast_over(self.link, &self.window, data, word).unwrap();
    }

    fn tell(&self, bytes: u64, packets: u64) {
        let told = [bytes.to_le_bytes(), packets.to_le_bytes()].concat();
        self.manager.lock().try_send_fast_over(self.link, &self.credit, &told, 0).unwrap();
    }
}

fn word(number: u32, length: u32) -> u32 {
    number << 20 | length
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_breaks_the_rules_is_an_error_and_counted_and_harms_nobody_else() {
    let dir = Dir::new("io-liars", &[]);
    let bytes = ByteConfig { window_bytes: 4096, packets: 8, ..Default::default() };
    let there = manager(dir.config());
    let (listener, mut friend, mut friends) = pair_at(&there, dir.config(), bytes).await;
    type Lie = fn(&Liar);
    let lies: [(&str, Lie); 7] = [
        ("when 0 was due", |liar| liar.send(word(8, 4), b"0123")),
        ("when 0 was due", |liar| liar.send(word(4095, 4), b"0123")),
        ("twice", |liar| {
            liar.send(word(3, 4), b"0123");
            liar.send(word(3, 4), b"0123");
        }),
        ("bytes where", |liar| liar.send(word(0, 4097), b"0123")),
        ("bytes where", |liar| liar.send(word(0, 0xf_ffff), b"0123")),
        ("bytes where", |liar| {
            liar.send(word(0, 4096), b"0123");
            liar.send(word(1, 1), b"0123");
        }),
        ("after the end", |liar| {
            liar.send(word(0, 0), b"");
            liar.send(word(1, 1), b"0");
        }),
    ];
    let config = dir.config();
    for (i, (why, lie)) in lies.into_iter().enumerate() {
        let config = config.clone();
        let liar = tokio::task::spawn_blocking(move || Liar::connect(config, 4096, 8).unwrap());
        let (liar, accepted) = tokio::join!(liar, listener.accept());
        let (liar, mut accepted) = (liar.unwrap(), accepted.unwrap());
        {
            // All of the lie comes in one turn: of two packets the second is none when the first is read.
            let _held = there.manager().lock();
            lie(&liar);
        }
        let told = timeout(LONG, accepted.read_to_end(&mut Vec::new())).await;
        let error = told.unwrap_or_else(|_| panic!("{i}: nothing is told")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{i}: {error}");
        assert!(error.to_string().contains(why), "{i}: {error}");
        let error = accepted.write_all(b"?").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{i}: {error}");
        assert_eq!(listener.get_ref().misbehaved(), i as u64 + 1);
    }
    friend.write_all(b"lives").await.unwrap();
    let mut lives = [0; 5];
    friends.read_exact(&mut lives).await.unwrap();
    assert_eq!(&lives, b"lives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_lies_about_what_it_has_read_is_sent_no_more_than_it_lent() {
    let dir = Dir::new("io-credit-lies", &[]);
    let (listener, _friend, _friends) = pair(dir.config(), ByteConfig::default()).await;
    let config = dir.config();
    let liar = tokio::task::spawn_blocking(move || Liar::connect(config, 8192, 8).unwrap());
    let (liar, accepted) = tokio::join!(liar, listener.accept());
    let (liar, mut accepted) = (liar.unwrap(), accepted.unwrap());
    assert_eq!(accepted.write(&[1; 4000]).await.unwrap(), 4000);
    // More than was sent, and then less than before.
    for (bytes, packets) in [(1 << 40, 1 << 40), (u64::MAX, u64::MAX), (4000, 1), (0, 0)] {
        liar.tell(bytes, packets);
    }
    let mut wrote = 4000;
    while let Ok(count) = timeout(Duration::from_millis(200), accepted.write(&[2; 5000])).await {
        wrote += count.unwrap();
        assert!(wrote <= 4000 + 8192);
    }
    drop(liar);
    let error = loop {
        match timeout(LONG, accepted.write(&[3; 10])).await.unwrap() {
            Ok(_) => tokio::task::yield_now().await,
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_cannot_be_is_refused_before_there_is_a_connection() {
    let dir = Dir::new("io-windows", &[]);
    let (listener, friend, _friends) = pair(dir.config(), ByteConfig::default()).await;
    for (window, packets, why) in [
        (0, 8, "cannot be"),
        (4095, 8, "cannot be"),
        (128 << 10, 8, "cannot be"),
        (u32::MAX, 8, "cannot be"),
        (4096, 0, "cannot be"),
        (4096, 1025, "cannot be"),
    ] {
        let config = dir.config();
        let refused =
            tokio::task::spawn_blocking(move || Liar::connect(config, window, packets).err());
        let why_not = refused.await.unwrap().unwrap();
        assert!(why_not.contains(why), "{window} {packets}: {why_not}");
    }
    for length in [0, 44, 95, 97] {
        let config = dir.config();
        let refused = tokio::task::spawn_blocking(move || {
            let manager = Manager::with_config(config).unwrap();
            Liar::greet(manager, &vec![0; length]).err()
        });
        let why_not = refused.await.unwrap().unwrap();
        assert!(why_not.contains("hello"), "{length}: {why_not}");
    }
    // A ticket for another node's memory.
    let config = dir.config();
    let elsewhere = tokio::task::spawn_blocking(move || {
        let manager = Manager::with_config(config).unwrap();
        let ticket = Ticket {
            destination: hamlyn::NodeId(7),
            slot: hamlyn::SlotIndex(0),
            metadata_index: MetadataIndex::FAST,
            key: hamlyn::Key(1),
            base: 0,
            bound: 1 << 20,
            flags: Flags::WAKE,
            share: hamlyn::Share::WHOLE,
        }
        .to_bytes();
        let sizes = [4096u32.to_le_bytes(), 8u32.to_le_bytes()].concat();
        Liar::greet(manager, &[&ticket[..], &sizes, &ticket].concat()).err()
    });
    let why_not = elsewhere.await.unwrap().unwrap();
    assert!(why_not.contains("leads to node"), "{why_not}");
    // Nothing is left of any of them.
    let mut tries = 0;
    while listener.get_ref().connections() != 1 {
        tries += 1;
        assert!(tries < 10_000);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(friend);
}

// The progress thread of the parent has the lock now and then when the child is made.
#[test]
fn a_forked_child_that_writes_is_told_so() {
    let dir = Dir::new("io-forked", &[("WAIT_MODE", "polled")]);
    let manager = || Manager::with_config(dir.config()).unwrap();
    let (there, here) = (manager(), manager());
    let listener = ByteListener::new(&there, ByteConfig::default()).unwrap();
    listener.serve("bytes", Access::SameUser).unwrap();
    there.start_progress().unwrap();
    here.start_progress().unwrap();
    let stream = ByteStream::connect_with(&here, "bytes", ByteConfig::default(), LIMIT).unwrap();
    for _ in 0..20 {
        // SAFETY: the child has this thread alone, and ends with `_exit`, or by its alarm.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a timer of the child, whose signal ends it.
            unsafe { libc::alarm(5) };
            let soon = Some(Duration::from_millis(1));
            let write = || stream.write_within(&[IoSlice::new(b"x")], soon);
            let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write));
            let told = matches!(written, Ok(Err(ByteStreamError::Forked(_))));
            // SAFETY: ends the process.
            unsafe { libc::_exit(!told as i32) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made, into a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child was not told, or hung");
    }
}

/// A task's waker, which says how many have it.
struct Counted;

impl std::task::Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

// Without a new client, no task is woken.
#[tokio::test]
async fn of_tasks_that_give_up_accepting_little_is_kept() {
    let dir = Dir::new("given-up", &[]);
    let listener = Listener::bind(&manager(dir.config()), "given-up", Access::SameUser).unwrap();
    let tasks: Vec<Arc<Counted>> = (0..1000).map(|_| Arc::new(Counted)).collect();
    for task in &tasks {
        let waker = std::task::Waker::from(task.clone());
        let mut context = std::task::Context::from_waker(&waker);
        let accepting = pin!(listener.accept());
        assert!(accepting.poll(&mut context).is_pending());
    }
    let kept = tasks.iter().filter(|task| Arc::strong_count(task) > 1).count();
    assert!(kept <= 20, "{kept} wakers are kept");
}
