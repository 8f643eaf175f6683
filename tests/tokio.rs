//! End points in tokio tasks.
#![cfg(not(miri))]

mod support;

use hamlyn::node::CloseReason;
use hamlyn::protocol::{
    ApertureStreamReceiver, ApertureStreamSender, AsyncClient, AsyncManager, AsyncRequest,
    AsyncServer, ByteConfig, ByteListener, CallError, Client, DatagramReceiver, DatagramSender,
    Group, GroupConfig, GroupMember, GrowError, Manager, PublishConfig, PublishError, Publisher,
    ReceiveError, SendError, Server, ServerConfig, StreamConfig, StreamReceiver, StreamSender,
    SubscribeConfig, Subscriber, TaggedConfig, TaggedReceiver, TaggedSender, WhenSlow,
};
use hamlyn::{Access, Config, LinkId, Node, SlotConfig, Ticket};
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;
use support::{Peer, Role, say};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(40);

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("hamlyn-tokio-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn manager(&self) -> AsyncManager {
        let config = Config::from_env().unwrap().dir(&self.0);
        AsyncManager::new(&Manager::with_config(config).unwrap()).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_wait_at_several_end_points_of_one_manager() {
    let dir = Dir::new("several");
    let (there, here) = (dir.manager(), dir.manager());
    let mut tasks = tokio::task::JoinSet::new();
    for end_point in 0..5u32 {
        let mut receiver = TaggedReceiver::new(there.manager(), TaggedConfig::new(64)).unwrap();
        let seed = receiver.seed().unwrap();
        let (there, here) = (there.clone(), here.clone());
        tasks.spawn(async move {
            for i in 0..300 {
                let tag = timeout(LIMIT, there.receive(&mut receiver)).await.unwrap().unwrap();
                assert_eq!(tag.tag, end_point * 1000 + i);
            }
        });
        tasks.spawn(async move {
            let grow = move |m: &Manager| TaggedSender::grow(m, &seed, Some(LIMIT)).unwrap();
            let mut sender = here.set_up(grow).await;
            for i in 0..300 {
                let send = here.send(|| sender.try_send(0, &[], end_point * 1000 + i));
                timeout(LIMIT, send).await.unwrap().unwrap();
                if i % 50 == 0 {
                    // Long enough for the receiving task to sleep.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_woken_when_a_thread_takes_what_it_waits_for() {
    let dir = Dir::new("thread");
    let (there, here) = (dir.manager(), dir.manager());
    let mut receiver = TaggedReceiver::new(there.manager(), TaggedConfig::new(64)).unwrap();
    let seed = receiver.seed().unwrap();
    // Polls and sleeps in competition with the task.
    there.manager().start_progress().unwrap();
    let grow = move |m: &Manager| TaggedSender::grow(m, &seed, Some(LIMIT)).unwrap();
    let mut sender = here.set_up(grow).await;
    for i in 0..50 {
        let receiving = there.receive(&mut receiver);
        let sending = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert!(sender.try_send(0, &[], i).unwrap());
        };
        let (tag, ()) = tokio::join!(timeout(LIMIT, receiving), sending);
        assert_eq!(tag.unwrap().unwrap().tag, i);
    }
    there.manager().stop_progress();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receive_or_call_that_is_dropped_loses_nothing_and_frees_its_call() {
    let dir = Dir::new("dropped");
    let (there, here) = (dir.manager(), dir.manager());
    let config = ServerConfig { outstanding: 2, ..Default::default() };
    let server = Arc::new(Server::new(there.manager(), config).unwrap());
    let seed = server.seed().unwrap();
    let short = Duration::from_millis(10);
    assert!(timeout(short, there.receive(&mut &*server)).await.is_err());
    let go_on = Arc::new(tokio::sync::Notify::new());
    let serving = {
        let (there, server, go_on) = (there.clone(), server.clone(), go_on.clone());
        tokio::spawn(async move {
            let mut late = Vec::new();
            for _ in 0..2 {
                late.push(there.receive(&mut &*server).await.unwrap().detach());
            }
            go_on.notified().await;
            for request in late {
                server.attach(request).reply(b"late", Some(LIMIT)).unwrap();
            }
            for _ in 0..10 {
                let request = there.receive(&mut &*server).await.unwrap().detach();
                let bytes = request.to_vec();
                // A long reply waits, and the client's task needs the runtime meanwhile.
                tokio::task::block_in_place(|| {
                    server.attach(request).reply(&bytes, Some(LIMIT)).unwrap();
                });
            }
        })
    };
    let client = here.set_up(move |m| Client::grow(m, &seed, Some(LIMIT)).unwrap()).await;
    for _ in 0..2 {
        assert!(timeout(short, here.call(&client, b"dropped")).await.is_err());
    }
    // Both calls are taken until their replies have come.
    assert!(timeout(short, here.call(&client, b"never begun")).await.is_err());
    go_on.notify_one();
    for i in 10..20u8 {
        let reply = timeout(LIMIT, here.call(&client, &[i; 10_000])).await.unwrap().unwrap();
        assert!(reply.iter().all(|b| *b == i) && reply.len() == 10_000);
    }
    timeout(LIMIT, serving).await.unwrap().unwrap();
    drop(server);
    let error = timeout(LIMIT, here.call(&client, b"?")).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Ended(_)), "{error}");
    timeout(LIMIT, here.ended(client.connection())).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_are_received_in_tasks_and_a_receive_that_is_dropped_loses_none() {
    let dir = Dir::new("samples");
    let (there, here) = (dir.manager(), dir.manager());
    there.manager().start_progress().unwrap();
    let config = PublishConfig { when_slow: WhenSlow::Wait, ..PublishConfig::default() };
    let config = PublishConfig { sample_bytes_max: 5000, ..config };
    let publisher = Arc::new(Publisher::new(there.manager(), config).unwrap());
    let seed = publisher.seed().unwrap();
    let mut subscriber = here
        .set_up(move |m| Subscriber::grow(m, &seed, SubscribeConfig::default(), Some(LIMIT)))
        .await
        .unwrap();
    while !publisher.subscribers().iter().any(|subscriber| subscriber.is_served) {
        tokio::task::yield_now().await;
    }
    assert!(timeout(Duration::from_millis(20), here.receive(&mut subscriber)).await.is_err());
    let publishing = {
        let publisher = publisher.clone();
        tokio::spawn(async move {
            for i in 0..500u32 {
                let bytes = vec![i as u8; if i % 7 == 0 { 5000 } else { 8 }];
                there
                    .send(|| Ok::<_, PublishError>(publisher.try_publish(&bytes)?.is_some()))
                    .await?;
            }
            Ok::<_, PublishError>(())
        })
    };
    for i in 0..500u64 {
        // Begun, and dropped, again and again.
        let sample = loop {
            match timeout(Duration::from_micros(i % 30), here.receive(&mut subscriber)).await {
                Ok(sample) => break sample.unwrap(),
                Err(_) => tokio::task::yield_now().await,
            }
        };
        assert_eq!((sample.number(), sample.missed()), (i, 0));
        assert!(sample.to_vec().unwrap().iter().all(|byte| *byte == i as u8));
    }
    timeout(LIMIT, publishing).await.unwrap().unwrap().unwrap();
    drop(publisher);
    let over = timeout(LIMIT, here.receive(&mut subscriber)).await.unwrap();
    assert!(matches!(over, Err(ReceiveError::Ended(_))), "{over:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_waits_is_not_run() {
    let dir = Dir::new("asleep");
    let (there, here) = (dir.manager(), dir.manager());
    there.manager().start_progress().unwrap();
    let server = Server::new(there.manager(), ServerConfig::default()).unwrap();
    let config = TaggedConfig { tags: 1, ..TaggedConfig::new(64) };
    let receiver = TaggedReceiver::new(there.manager(), config).unwrap();
    let (calls, tags) = (server.seed().unwrap(), receiver.seed().unwrap());
    let client = here.set_up(move |m| Client::grow(m, &calls, Some(LIMIT)).unwrap()).await;
    let mut sender = here.set_up(move |m| TaggedSender::grow(m, &tags, Some(LIMIT)).unwrap()).await;
    assert!(sender.try_send(0, &[], 1).unwrap());
    // For a reply, and for credit; there is room for either.
    let mut waits = pin!(async {
        tokio::join!(here.call(&client, b"unanswered"), here.send(|| sender.try_send(0, &[], 2)))
    });
    let mut polls = 0;
    let counted = poll_fn(|context| {
        polls += 1;
        waits.as_mut().poll(context)
    });
    assert!(timeout(Duration::from_millis(300), counted).await.is_err());
    assert!(polls < 50, "it was run {polls} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_datagrams_of_tasks_wait_for_room_and_lose_nothing() {
    // Rings that hold little, so that there is room only now and then.
    let dir = support::Dir::new("tasks", &[("RING_BYTES", "8192"), ("BULK_RING_BYTES", "0")]);
    let manager = || AsyncManager::new(&Manager::with_config(dir.config()).unwrap()).unwrap();
    let (there, here) = (manager(), manager());
    let stream = StreamConfig::default();
    let mut records = StreamReceiver::new(there.manager(), stream.clone()).unwrap();
    let mut far = ApertureStreamReceiver::new(there.manager(), stream, 1 << 20).unwrap();
    let mut datagrams = DatagramReceiver::new(there.manager(), 200_000).unwrap();
    let seeds = [records.seed(), far.seed(), datagrams.seed()].map(Result::unwrap);
    let answering = {
        let there = there.clone();
        tokio::spawn(async move {
            for i in 0..60usize {
                let record = there.receive(&mut records).await.unwrap();
                let bytes = records.bytes(&record).unwrap();
                assert!(bytes.len() == i * 1000 && bytes.iter().all(|byte| *byte == i as u8));
                records.release(&record).unwrap();
            }
            for i in 0..20u8 {
                let record = there.receive(&mut far).await.unwrap();
                assert_eq!(far.bytes(&record).unwrap().to_vec().unwrap(), vec![i; 100_000]);
                far.release(&record).unwrap();
            }
            for i in 0..5u8 {
                let datagram = there.receive(&mut datagrams).await.unwrap();
                let is_whole = |bytes: &[u8]| bytes.iter().all(|byte| *byte == i);
                assert!(datagrams.with_bytes(&datagram, is_whole).unwrap());
                assert_eq!(datagram.length, 200_000);
                // The sender knows by the reply that the receiver is ready.
                datagrams.ready().unwrap();
                let reply = || match datagrams.reply(&datagram, b"ready", Some(Duration::ZERO)) {
                    Err(SendError::TimedOut) => Ok(false),
                    replied => replied.map(|()| true),
                };
                there.send(reply).await.unwrap();
            }
        })
    };
    let grow = move |m: &Manager| {
        let [records, far, datagrams] = &seeds;
        (
            StreamSender::grow(m, records, Some(LIMIT)).unwrap(),
            ApertureStreamSender::grow(m, far, Some(LIMIT)).unwrap(),
            DatagramSender::grow(m, datagrams, Some(LIMIT)).unwrap(),
        )
    };
    let (mut to_records, mut to_far, mut to_datagrams) = here.set_up(grow).await;
    let sending = async {
        for i in 0..60usize {
            let record = vec![i as u8; i * 1000];
            here.send(|| to_records.try_send(&record)).await.unwrap();
        }
        here.send(|| to_records.try_flush()).await.unwrap();
        for i in 0..20u8 {
            here.send(|| to_far.try_send(&[i; 100_000])).await.unwrap();
        }
        here.send(|| to_far.try_flush()).await.unwrap();
        let mut answers = DatagramReceiver::new(here.manager(), 64).unwrap();
        for i in 0..5u8 {
            let reply = answers.reply_ticket();
            here.send(|| to_datagrams.try_send(&[i; 200_000], 0, Some(&reply))).await.unwrap();
            here.send(|| to_datagrams.try_flush()).await.unwrap();
            here.receive(&mut answers).await.unwrap();
            answers.ready().unwrap();
        }
    };
    timeout(support::LONG, sending).await.unwrap();
    timeout(support::LONG, answering).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_tasks_gathers_and_is_answered() {
    let dir = Dir::new("group");
    let (there, here) = (dir.manager(), dir.manager());
    let mut root = Group::new(there.manager(), GroupConfig::new(3, 100_000)).unwrap();
    let seed = root.seed().unwrap();
    // So that the members can be grown.
    there.manager().start_progress().unwrap();
    let mut members = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (here, seed) = (here.clone(), seed.clone());
        members.spawn(async move {
            let grow =
                move |m: &Manager| GroupMember::grow(m, &seed, 100_000, Some(LIMIT)).unwrap();
            let mut member = here.set_up(grow).await;
            for round in 0..10u8 {
                let part = vec![round; 100_000 * (member.number() as usize % 2)];
                here.send(|| member.try_send(&part)).await.unwrap();
                let answer = here.receive(&mut member).await.unwrap();
                assert_eq!(answer, [round; 8]);
            }
        });
    }
    for round in 0..10u8 {
        timeout(support::LONG, there.receive(&mut root)).await.unwrap().unwrap();
        assert_eq!(root.parts().iter().map(|(_, part)| part.len()).sum::<usize>(), 100_000);
        assert!(root.parts().part(1).unwrap().iter().all(|byte| *byte == round));
        root.next_round();
        tokio::task::block_in_place(|| root.broadcast(&[round; 8], support::LIMIT).unwrap());
    }
    while let Some(member) = members.join_next().await {
        member.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_tasks_serves_whoever_reads_though_another_never_does() {
    let dir = support::Dir::new("blocked", &[("RING_BYTES", "8192"), ("BULK_RING_BYTES", "0")]);
    let manager = || AsyncManager::new(&Manager::with_config(dir.config()).unwrap()).unwrap();
    let there = manager();
    let others = [manager(), manager()];
    let mut root = Group::new(there.manager(), GroupConfig::new(2, 100_000)).unwrap();
    let seed = root.seed().unwrap();
    there.manager().start_progress().unwrap();
    let mut members = Vec::new();
    for other in &others {
        let seed = seed.clone();
        let grow = move |m: &Manager| GroupMember::grow(m, &seed, 100_000, Some(LIMIT)).unwrap();
        members.push(other.set_up(grow).await);
    }
    while root.joined() < 2 {
        tokio::task::yield_now().await;
    }
    // From now on the root's task alone looks at the links.
    there.manager().stop_progress();
    // Both links are full; the rest, which the group keeps, leaves when there is room.
    tokio::task::block_in_place(|| {
        root.broadcast(&[5; 100_000], Some(Duration::from_millis(50))).unwrap();
    });
    root.set_wanted(1);
    // The last one never reads. The first waits until the root's task is asleep.
    let _silent = members.pop().unwrap();
    let mut reader = members.pop().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(100));
        let received = reader.receive(support::LIMIT).unwrap();
        assert!(received.len() == 100_000 && received.iter().all(|byte| *byte == 5));
        reader.send(b"part", support::LIMIT).unwrap();
        reader
    });
    timeout(support::LONG, there.receive(&mut root)).await.unwrap().unwrap();
    assert_eq!(root.parts().part(0), Some(&b"part"[..]));
    reading.await.unwrap();
}

// ---- servers and clients of tasks

/// Polls a future so many times, and drops it unless it is ready by then.
async fn polled<R>(times: usize, future: impl Future<Output = R>) -> Option<R> {
    let (mut future, mut left) = (pin!(future), times);
    poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
            std::task::Poll::Pending => {
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receives_calls_and_replies_that_are_dropped_half_way_lose_nothing() {
    for settings in [&[][..], &[("RING_BYTES", "8192"), ("BULK_RING_BYTES", "0")][..]] {
        let dir = support::Dir::new("async-calls", settings);
        let manager = || AsyncManager::new(&Manager::with_config(dir.config()).unwrap()).unwrap();
        let (there, here) = (manager(), manager());
        let config = ServerConfig { outstanding: 4, ..ServerConfig::default() };
        let server = AsyncServer::new(&there, config).unwrap();
        server.serve("tasks", Access::SameUser).unwrap();
        let client = AsyncClient::connect(&here, "tasks", support::LIMIT).await.unwrap();
        const CALLS: usize = 60;
        let length = |i: usize| [10, 5000, 200_000][i % 3];
        let serving = {
            let server = server.clone();
            tokio::spawn(async move {
                let mut served = 0;
                for round in 0.. {
                    if served == CALLS {
                        return;
                    }
                    // Dropped after a poll or two, again and again.
                    let Some(request) = polled(1 + round % 3, server.receive()).await else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    let request = request.unwrap();
                    served += 1;
                    if served % 4 == 0 {
                        assert_eq!(request.peer().unwrap().pid, Some(std::process::id()));
                    }
                    let reply = request.to_vec();
                    assert!(polled(0, request.reply(b"never polled")).await.is_none());
                    // Dropped before it has begun, as while four others are on their way, it has
                    // answered nothing; once it has begun it goes on, and is the only one.
                    let mut answered = 0;
                    loop {
                        match polled(1 + served % 2, request.reply(&reply)).await {
                            None => tokio::task::yield_now().await,
                            Some(Err(CallError::Replied)) => break,
                            Some(left) => {
                                left.unwrap();
                                answered += 1;
                            }
                        }
                    }
                    assert!(answered <= 1, "one request was answered {answered} times");
                    let again = request.reply(b"twice").await.unwrap_err();
                    assert!(matches!(again, CallError::Replied), "{again}");
                }
            })
        };
        let mut calls = tokio::task::JoinSet::new();
        for i in 0..CALLS {
            let client = client.clone();
            calls.spawn(async move {
                let request = vec![i as u8; length(i)];
                let reply = client.call(&request).await.unwrap();
                assert!(*reply == request[..], "call {i}: {} bytes", reply.len());
            });
        }
        while let Some(called) = timeout(support::LONG, calls.join_next()).await.unwrap() {
            called.unwrap();
        }
        timeout(support::LONG, serving).await.unwrap().unwrap();

        // Calls that are dropped are forgotten, and their places are free again.
        let serving = {
            let server = server.clone();
            tokio::spawn(async move {
                while let Ok(request) = server.receive().await {
                    if *request == *b"declined" {
                        drop(request);
                    } else {
                        request.reply(&request).await.ok();
                    }
                }
            })
        };
        for i in 0..40 {
            let _ = polled(1 + i % 4, client.call(&vec![1; length(i)])).await;
        }
        let several = (0..8).map(|_| client.call(b"after"));
        for reply in several {
            assert_eq!(&*timeout(support::LONG, reply).await.unwrap().unwrap(), b"after");
        }
        let declined = timeout(support::LONG, client.call(b"declined")).await.unwrap();
        assert!(matches!(declined, Err(CallError::Declined)), "{declined:?}");
        serving.abort();
        drop(server);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_replies_to_a_client_that_takes_none_wait_within_a_bound() {
    let dir = support::Dir::new("untaken", &[]);
    let there = AsyncManager::new(&Manager::with_config(dir.config()).unwrap()).unwrap();
    let bounds = ServerConfig {
        long_bytes_max: 1 << 20,
        waiting_bytes_max: 2 << 20,
        ..ServerConfig::default()
    };
    let server = AsyncServer::new(&there, bounds).unwrap();
    server.serve("long", Access::SameUser).unwrap();
    const CALLS: usize = 20;
    const LENGTH: usize = 300_000;
    // Of the copies a client has as much as is left for others; of what waits there is no such rule.
    const COPIED: usize = 2;
    const WAIT: usize = 6;
    // Its program makes no calls between the last request and the first reply.
    let config = dir.config();
    let calling = tokio::task::spawn_blocking(move || {
        let here = Manager::with_config(config).unwrap();
        let client = Client::connect(&here, "long", support::LIMIT).unwrap();
        let calls: Vec<_> =
            (0..CALLS).map(|_| client.start(b"long", support::LIMIT).unwrap()).collect();
        (client, calls)
    });
    let (client, calls) = calling.await.unwrap();
    let mut requests = Vec::new();
    for _ in 0..CALLS {
        requests.push(timeout(support::LONG, server.receive()).await.unwrap().unwrap());
    }
    let data = vec![7; LENGTH];
    let mut waiting = Vec::new();
    for request in &requests {
        let mut reply = Box::pin(request.reply(&data));
        let polled = now(&mut reply).await;
        if waiting.len() < COPIED + WAIT {
            assert!(polled.is_none(), "{polled:?}");
            waiting.push(reply);
            continue;
        }
        let error = polled.unwrap().unwrap_err();
        assert!(matches!(error, CallError::Untaken { .. }), "{error}");
        assert!(error.to_string().contains("waiting_bytes_max is 2097152"), "{error}");
        // It may be answered otherwise.
        request.fail(503, "busy").await.unwrap();
    }
    assert_eq!(server.replies_refused(), (CALLS - COPIED - WAIT) as u64);
    // Also a caller that is dropped while it waits.
    drop(waiting.pop());
    requests[COPIED + WAIT - 1].fail(504, "too late").await.unwrap();
    // Another client of the same user has its reply meanwhile.
    let here = AsyncManager::new(&Manager::with_config(dir.config()).unwrap()).unwrap();
    let other = AsyncClient::connect(&here, "long", support::LIMIT).await.unwrap();
    let answering = async {
        let request = server.receive().await.unwrap();
        request.reply(&vec![8; LENGTH]).await.unwrap();
    };
    let both = async { tokio::join!(other.call(b"other"), answering).0.unwrap() };
    assert!(*timeout(support::LONG, both).await.unwrap() == [8; LENGTH]);
    // Waiting requests are taken late.
    let finishing = tokio::task::spawn_blocking(move || {
        let finish = |call| client.finish(call, support::LIMIT);
        let finished: Vec<_> = calls.into_iter().map(finish).collect();
        (client, finished)
    });
    let all = async {
        for reply in waiting {
            reply.await.unwrap();
        }
    };
    timeout(support::LONG, all).await.unwrap();
    let (client, finished) = finishing.await.unwrap();
    let mut taken = 0;
    for finished in finished {
        match finished {
            Ok(reply) => {
                assert!(*reply == [7; LENGTH]);
                taken += 1;
            }
            Err(e) => assert!(matches!(e, CallError::Application { code: 503 | 504, .. }), "{e}"),
        }
    }
    assert_eq!(taken, COPIED + WAIT - 1);
    // And there is room again; for one, however long it is.
    for length in [3 * LENGTH, 2 << 20] {
        let client = &client;
        tokio::task::block_in_place(|| {
            std::thread::scope(|scope| {
                let calling = scope.spawn(|| client.call(b"again", support::LIMIT).unwrap());
                tokio::runtime::Handle::current().block_on(async {
                    let request = server.receive().await.unwrap();
                    request.reply(&vec![1; length]).await.unwrap();
                });
                assert_eq!(calling.join().unwrap().len(), length);
            });
        });
    }
}

/// As far as it gets now.
async fn now<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| match std::pin::Pin::new(&mut *future).poll(context) {
        std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_long_replies_as_a_client_may_ask_for_all_arrive() {
    let dir = support::Dir::new("many-long", &[]);
    let manager = || AsyncManager::new(&Manager::with_config(dir.config()).unwrap()).unwrap();
    let (there, here) = (manager(), manager());
    // Far less than all of them.
    let config = ServerConfig { long_bytes_max: 1 << 20, ..ServerConfig::default() };
    let server = AsyncServer::new(&there, config).unwrap();
    server.serve("many", Access::SameUser).unwrap();
    let serving = tokio::spawn(async move {
        while let Ok(request) = server.receive().await {
            tokio::spawn(async move { request.reply(&vec![request[0]; 400_000]).await.unwrap() });
        }
    });
    let client = AsyncClient::connect(&here, "many", support::LIMIT).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for i in 0..64 {
        let client = client.clone();
        calls.spawn(async move { assert!(*client.call(&[i]).await.unwrap() == [i; 400_000]) });
    }
    while let Some(called) = timeout(support::LONG, calls.join_next()).await.unwrap() {
        called.unwrap();
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn select_takes_requests_of_two_servers_in_turn() {
    let dir = Dir::new("select");
    let (there, here) = (dir.manager(), dir.manager());
    let [a, b] = ["a", "b"].map(|name| {
        let server = AsyncServer::new(&there, ServerConfig::default()).unwrap();
        server.serve(name, Access::SameUser).unwrap();
        server
    });
    let serving = tokio::spawn(async move {
        for _ in 0..200 {
            tokio::select! {
                request = a.receive() => request.unwrap().reply(b"a").await.unwrap(),
                request = b.receive() => request.unwrap().reply(b"b").await.unwrap(),
            }
        }
    });
    let mut calls = tokio::task::JoinSet::new();
    for name in ["a", "b"] {
        let here = here.clone();
        calls.spawn(async move {
            let client = AsyncClient::connect(&here, name, Some(LIMIT)).await.unwrap();
            for _ in 0..100 {
                assert_eq!(&*client.call(b"who").await.unwrap(), name.as_bytes());
            }
        });
    }
    while let Some(called) = timeout(support::LONG, calls.join_next()).await.unwrap() {
        called.unwrap();
    }
    timeout(support::LONG, serving).await.unwrap().unwrap();
}

// ---- connecting that is given up

#[test]
fn connecting_that_is_dropped_leaves_no_thread_and_no_connection() {
    for (mode, progress) in [("adaptive", false), ("blocking", false), ("blocking", true)] {
        let dir = support::Dir::new(&format!("given-up-{mode}"), &[("WAIT_MODE", mode)]);
        let config = dir.config();
        // The rest of it ends with it.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(3)
            .enable_all()
            .build()
            .unwrap();
        let (ended, ends) = std::sync::mpsc::channel();
        let listener = runtime.block_on(async {
            let here = AsyncManager::new(&Manager::with_config(config.clone()).unwrap()).unwrap();
            if progress {
                here.manager().start_progress().unwrap();
            }
            let (begins, begun) = tokio::sync::oneshot::channel();
            let call = AsyncClient::connect(&here, "nobody", None);
            let bytes = hamlyn::io::Connection::connect(&here, "nobody", None);
            let other = here.set_up(move |m: &Manager| {
                begins.send(()).unwrap();
                for _ in 0..2 {
                    ended.send(Client::connect(m, "nobody", None).err()).unwrap();
                }
            });
            tokio::select! {
                _ = async { tokio::join!(call, bytes, other) } => panic!("there was nobody"),
                _ = async {
                    begun.await.unwrap();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                } => {}
            }
            let ended: Vec<_> = (0..2).map(|_| ends.recv_timeout(support::LONG)).collect();
            // A client that still wants to connect to it does so now.
            let there = Manager::with_config(config.clone()).unwrap();
            let listener = ByteListener::new(&there, ByteConfig::default()).unwrap();
            listener.serve("nobody", Access::SameUser).unwrap();
            let late = listener.accept(Some(Duration::from_millis(300)));
            for error in ended {
                assert!(matches!(error, Ok(Some(GrowError::GivenUp))), "{mode}: {error:?}");
            }
            assert!(matches!(late, Err(ReceiveError::TimedOut)), "{mode}: {late:?}");
            // The threads are free again.
            let connecting = hamlyn::io::Connection::connect(&here, "nobody", support::LIMIT);
            let accepting = here.set_up(move |_| (listener.accept(support::LIMIT), listener));
            let (connected, (accepted, listener)) = tokio::join!(connecting, accepting);
            accepted.unwrap();
            connected.unwrap();
            listener
        });
        drop((runtime, listener));
    }
}

// ---- a server that is killed

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_outstanding_call_fails_as_soon_as_its_server_is_killed() {
    for mode in ["adaptive", "blocking"] {
        let dir = support::Dir::new(&format!("killed-{mode}"), &[("WAIT_MODE", mode)]);
        let mut server = Peer::start("server", &dir, "");
        server.expect("serves");
        let here = AsyncManager::new(&Manager::with_config(dir.config()).unwrap()).unwrap();
        // The server takes four calls of one client at a time, and replies to none.
        let connect = |m: &Manager| Client::connect(m, "calls", support::LIMIT).unwrap();
        let threads: Arc<[Client; 2]> =
            Arc::new([connect(here.manager()), connect(here.manager())]);
        let task_client = Arc::new(here.set_up(connect).await);
        // Another connection of the same manager, which must notice nothing.
        let other = Arc::new(Server::new(here.manager(), ServerConfig::default()).unwrap());
        let seed = other.seed().unwrap();
        let friends = AsyncManager::new(&Manager::with_config(dir.config()).unwrap()).unwrap();
        let grow = move |m: &Manager| Client::grow(m, &seed, support::LIMIT).unwrap();
        let friend = {
            let growing = friends.set_up(grow);
            tokio::pin!(growing);
            // The receiver answers, too.
            let request = timeout(support::LONG, async {
                tokio::select! {
                    friend = &mut growing => friend,
                    _ = async { here.receive(&mut &*other).await.map(drop) } => unreachable!(),
                }
            });
            request.await.unwrap()
        };

        // Without a time limit, or with one that is far away: short requests and long ones, two
        // more of the first client's than may be outstanding, and one that is begun and finished
        // apart.
        let mut waiting = Vec::new();
        for i in 0..10 {
            let clients = threads.clone();
            waiting.push(std::thread::spawn(move || {
                let limit = (i % 2 == 0).then_some(support::LONG);
                match i {
                    0..6 => clients[0].call(b"short", limit).map(drop),
                    6 => {
                        let call = clients[1].start(b"apart", limit).unwrap();
                        clients[1].finish(call, limit).map(drop)
                    }
                    _ => clients[1].call(&[1; 100_000], limit).map(drop),
                }
            }));
        }
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..4 {
            let (here, client) = (here.clone(), task_client.clone());
            let request = if i % 2 == 0 { vec![2; 10] } else { vec![2; 100_000] };
            tasks.spawn(async move { here.call(&client, &request).await.map(drop) });
        }
        server.expect("holds 12 requests");
        server.kill();
        let died = move |failed: Result<(), CallError>| {
            let error = failed.unwrap_err();
            assert!(matches!(error, CallError::Ended(CloseReason::Died)), "{mode}: {error}");
            assert!(error.to_string().contains("its process died"), "{error}");
        };
        while let Some(failed) = tasks.join_next().await {
            died(failed.unwrap());
        }
        tokio::task::spawn_blocking(move || {
            for thread in waiting {
                died(thread.join().unwrap());
            }
            // And so does every later one, of any length.
            for client in threads.iter() {
                died(client.call(b"later", None).map(drop));
                died(client.call(&[3; 100_000], None).map(drop));
                died(client.start(b"later", None).map(drop));
            }
        })
        .await
        .unwrap();
        died(here.call(&task_client, b"later").await.map(drop));
        // The other connection goes on.
        let serving = async {
            here.receive(&mut &*other).await.unwrap().reply(b"lives", support::LIMIT).unwrap();
        };
        let (reply, ()) = tokio::join!(friends.call(&friend, b"?"), serving);
        assert_eq!(&*reply.unwrap(), b"lives");
    }
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
    assert_eq!(role.name, "server");
    let manager = Manager::with_config(role.config()).unwrap();
    let config = ServerConfig { outstanding: 4, ..ServerConfig::default() };
    let server = Server::new(&manager, config).unwrap();
    server.serve("calls", Access::SameUser).unwrap();
    say("serves");
    let held: Vec<_> = (0..12).map(|_| server.receive(None).unwrap().detach()).collect();
    say(&format!("holds {} requests", held.len()));
    role.wait_for("never");
}

/// A client by hand, with as many calls as there may be, each of which is to be replied to at length;
/// and which answers nothing. Lasts as long as what it gives.
fn deaf_client(config: Config) -> (Node, LinkId) {
    const CALLS: u32 = 64;
    let mut node = Node::with_config(config).unwrap();
    let area = node.message_area(64 * CALLS as usize).unwrap();
    let queue = node.notification_queue(CALLS).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(CALLS)).unwrap();
    let blocks = node.fast_ticket(slot).unwrap().to_bytes();
    let body = [&blocks[..], &64u32.to_le_bytes(), &CALLS.to_le_bytes()].concat();
    let greeting = [b"HGr2\x04\0\0\0", &[0; 16][..], &body].concat();
    let link = node.connect("calls", &greeting, Some(LIMIT)).unwrap();
    let requests = Ticket::from_bytes(&node.greeting(link).unwrap()[8..52]).unwrap();
    for call in 0..CALLS {
        while node.try_send_fast_over(link, &requests, b"12345678", 8 << 20 | call).is_err() {
            node.poll().unwrap();
        }
    }
    (node, link)
}

/// Long replies that wait in the tasks of a server.
#[derive(Default)]
struct Long {
    waiting: AtomicUsize,
    polled: AtomicUsize,
}

impl Long {
    /// Replies, until the reply is on its way or has failed.
    async fn reply(&self, request: &AsyncRequest) {
        let mut reply = pin!(request.reply(&[7; 100]));
        self.waiting.fetch_add(1, Relaxed);
        let left = poll_fn(|context| {
            self.polled.fetch_add(1, Relaxed);
            let left = reply.as_mut().poll(context);
            // From then on the request is answered, and a task of the server's has the reply.
            if left.is_ready() || request.peer().is_none() {
                return Poll::Ready(());
            }
            Poll::Pending
        });
        left.await;
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// How many wait, and how often such were polled.
    fn counts(&self) -> (usize, usize) {
        (self.waiting.load(Relaxed), self.polled.load(Relaxed))
    }
}

#[test]
fn long_replies_that_nobody_takes_make_no_other_call_slow() {
    let dir = Dir::new("deaf");
    let config = Config::from_env().unwrap().dir(&dir.0);
    let long = Arc::new(Long::default());
    let (count, its) = (long.clone(), config.clone());
    let (tell, told) = std::sync::mpsc::channel();
    // It lasts as long as this process.
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).enable_all().build().unwrap().block_on(async {
            let manager = AsyncManager::new(&Manager::with_config(its).unwrap()).unwrap();
            let server = AsyncServer::new(&manager, ServerConfig::default()).unwrap();
            server.serve("calls", Access::SameUser).unwrap();
            tell.send(()).unwrap();
            while let Ok(request) = server.receive().await {
                let count = count.clone();
                tokio::spawn(async move {
                    if *request == *b"fair" {
                        request.reply(&[7; 4]).await.unwrap();
                    } else {
                        count.reply(&request).await;
                    }
                });
            }
        });
    });
    told.recv().unwrap();
    let client =
        Client::connect(&Manager::with_config(config.clone()).unwrap(), "calls", Some(LIMIT))
            .unwrap();
    let deaf: Vec<_> = (0..56).map(|_| deaf_client(config.clone())).collect();
    let all = 56 * 64;
    support::until("all are asked, and four of each client have left their tasks", || {
        long.polled.load(Relaxed) >= all && long.counts().0 == all - 56 * 4
    });
    let before = long.counts();
    for _ in 0..31 {
        assert_eq!(client.call(b"fair", Some(LIMIT)).unwrap().len(), 4);
    }
    // Neither does one that waits look when something comes, nor are more of them on their way.
    assert_eq!(long.counts(), before);
    drop(deaf);
}
