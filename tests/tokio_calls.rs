//! Calls in tokio tasks beyond the reply: errors, limits, cancellation, servers that drain, clients
//! that connect again.
#![cfg(not(miri))]

use hamlyn::protocol::{
    AsyncClient, AsyncManager, AsyncReconnectingClient, AsyncServer, CallError, CallOptions,
    ConnectionState, Manager, ReceiveError, ReconnectPolicy, ServerConfig,
};
use hamlyn::{Accept, Access, Config, Event, Node, SlotConfig, Ticket};
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(30);

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("hamlyn-calls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn manager(&self) -> AsyncManager {
        let config = Config::from_env().unwrap().dir(&self.0);
        AsyncManager::new(&Manager::with_config(config).unwrap()).unwrap()
    }

    fn server(&self, config: ServerConfig) -> AsyncServer {
        let server = AsyncServer::new(&self.manager(), config).unwrap();
        server.serve("calls", Access::SameUser).unwrap();
        server
    }

    async fn client(&self) -> AsyncClient {
        AsyncClient::connect(&self.manager(), "calls", Some(LIMIT)).await.unwrap()
    }

    async fn reconnecting(&self, policy: ReconnectPolicy) -> AsyncReconnectingClient {
        AsyncReconnectingClient::connect(&self.manager(), "calls", policy, Some(LIMIT))
            .await
            .unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

async fn within<R>(future: impl Future<Output = R>) -> R {
    timeout(LIMIT, future).await.expect("what was waited for has not come")
}

/// Answers each request with the number received, until no more come.
fn counting(server: AsyncServer) -> (Arc<AtomicU32>, tokio::task::JoinHandle<ReceiveError>) {
    let count = Arc::<AtomicU32>::default();
    let counted = count.clone();
    let task = tokio::spawn(async move {
        loop {
            match server.receive().await {
                Ok(request) => {
                    let number = count.fetch_add(1, Ordering::Relaxed) + 1;
                    request.reply(&number.to_le_bytes()).await.ok();
                }
                Err(e) => return e,
            }
        }
    });
    (counted, task)
}

/// How often something was woken.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    /// Of a future that is polled once, and waits.
    fn of(future: Pin<&mut impl Future<Output = ()>>) -> Arc<Self> {
        let woken = Arc::<Self>::default();
        let waker = Waker::from(woken.clone());
        assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
        woken
    }

    async fn is_told(&self) {
        within(async {
            while self.0.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

// The number of a call is used again by the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_caller_to_give_up_is_told_of_the_reply_and_takes_nobody_elses_word() {
    let dir = Dir::new("watch");
    let (server, client) = (dir.server(ServerConfig::default()), dir.client().await);
    let other = client.clone();
    let first = tokio::spawn(async move { other.call(b"first").await });
    let request = within(server.receive()).await.unwrap();
    let mut stale = Box::pin(request.cancelled());
    let woken = Woken::of(stale.as_mut());
    within(request.reply(b"1")).await.unwrap();
    woken.is_told().await;
    assert_eq!(&*within(first).await.unwrap().unwrap(), b"1");
    let second = tokio::spawn(async move { client.call(b"second").await });
    let next = within(server.receive()).await.unwrap();
    let mut waits = Box::pin(next.cancelled());
    let woken = Woken::of(waits.as_mut());
    drop(stale);
    second.abort();
    woken.is_told().await;
    assert!(next.is_cancelled());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_answers_with_an_error_and_sees_the_limit_of_its_caller() {
    let dir = Dir::new("fail");
    let (server, client) = (dir.server(ServerConfig::default()), dir.client().await);
    let serving = tokio::spawn(async move {
        let request = server.receive().await.unwrap();
        assert!(request.deadline().is_none());
        request.fail(404, "no such key").await.unwrap();
        assert!(matches!(request.fail(1, "again").await, Err(CallError::Replied)));
        assert!(request.is_cancelled());
        within(request.cancelled()).await;
        let request = server.receive().await.unwrap();
        let left = request.deadline().unwrap() - Instant::now();
        assert!(left <= LIMIT && left > LIMIT / 2, "{left:?}");
        let text = "x".repeat(2000);
        assert!(matches!(request.fail(1, &text).await, Err(CallError::TooLong { max: 1024, .. })));
        server
    });
    match within(client.call(b"get")).await {
        Err(CallError::Application { code: 404, text }) => assert_eq!(text, "no such key"),
        other => panic!("{other:?}"),
    }
    let declined = within(client.call_within(b"get", LIMIT)).await;
    assert!(matches!(declined, Err(CallError::Declined)), "{declined:?}");
    serving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_waits_is_told_when_its_caller_drops_the_call_times_out_or_goes() {
    let dir = Dir::new("cancelled");
    let server = dir.server(ServerConfig::default());
    for round in 0..4 {
        let client = dir.client().await;
        let calling = tokio::spawn(async move {
            match round {
                // Dropped in `select!`.
                0 => drop(timeout(SHORT, client.call(b"x")).await),
                1 => drop(client.call_within(b"x", SHORT).await),
                // A long request, too.
                2 => drop(timeout(LIMIT, client.call_within(&[1; 50_000], SHORT)).await),
                _ => {
                    client.get_ref().start(b"x", Some(LIMIT)).unwrap();
                    tokio::time::sleep(SHORT).await;
                    return None;
                }
            }
            Some(client)
        });
        let request = within(server.receive()).await.unwrap();
        tokio::select! {
            () = within(request.cancelled()) => {}
            () = std::future::pending() => {}
        }
        assert!(request.is_cancelled(), "{round}");
        // At once, from now on.
        within(request.cancelled()).await;
        drop(calling.await.unwrap());
        // The task need not answer.
        drop(request);
    }
    assert_eq!(server.get_ref().misbehaved(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_handlers_wait_each_for_its_own_caller_and_may_be_dropped_at_any_time() {
    let dir = Dir::new("many");
    let (server, client) = (dir.server(ServerConfig::default()), dir.client().await);
    let (kept, dropped) = (20, 20);
    let mut calls = tokio::task::JoinSet::new();
    for i in 0..kept + dropped {
        let client = client.clone();
        calls.spawn(async move {
            match i < kept {
                true => assert_eq!(&*within(client.call(&[1])).await.unwrap(), b"done"),
                false => drop(timeout(SHORT, client.call(&[0])).await),
            }
        });
    }
    let mut handlers = tokio::task::JoinSet::new();
    for _ in 0..kept + dropped {
        let request = within(server.receive()).await.unwrap();
        handlers.spawn(async move {
            // A wait that is dropped half-way is no loss to the next.
            for _ in 0..3 {
                let mut cancelled = pin!(request.cancelled());
                poll_fn(|context| {
                    let _ = cancelled.as_mut().poll(context);
                    std::task::Poll::Ready(())
                })
                .await;
            }
            if request[0] == 0 {
                within(request.cancelled()).await;
                return;
            }
            tokio::select! {
                () = request.cancelled() => panic!("nobody has cancelled this one"),
                () = tokio::time::sleep(SHORT * 3) => request.reply(b"done").await.unwrap(),
            }
        });
    }
    while let Some(done) = handlers.join_next().await {
        done.unwrap();
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
    assert!(client.get_ref().connection().ended().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_that_has_passed_is_a_cancellation_though_the_caller_says_nothing() {
    let dir = Dir::new("passed");
    let (server, client) = (dir.server(ServerConfig::default()), dir.client().await);
    // It is not forgotten, so its client never says that it has given up.
    client.get_ref().start_within(b"x", SHORT).unwrap();
    let request = within(server.receive()).await.unwrap();
    within(request.cancelled()).await;
    assert!(request.is_cancelled() && request.deadline().unwrap() <= Instant::now());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_tasks_drains_and_draining_that_is_dropped_can_be_begun_again() {
    let dir = Dir::new("drain");
    let (server, client) = (dir.server(ServerConfig::default()), dir.client().await);
    let calling = {
        let client = client.clone();
        tokio::spawn(async move { client.call(&[1; 30_000]).await.map(|reply| reply.len()) })
    };
    let held = within(server.receive()).await.unwrap();
    // Dropped early, it may not have begun.
    while !matches!(server.get_ref().try_receive(), Err(ReceiveError::Draining)) {
        assert!(timeout(SHORT, server.drain(Some(LIMIT))).await.is_err());
    }
    let receiving = {
        let server = server.clone();
        tokio::spawn(async move { server.receive().await.map(|_| ()) })
    };
    assert!(matches!(within(receiving).await.unwrap(), Err(ReceiveError::Draining)));
    let draining = {
        let server = server.clone();
        tokio::spawn(async move { server.drain(Some(LIMIT)).await })
    };
    assert!(matches!(within(client.call(b"new")).await, Err(CallError::Draining)));
    // A long reply is finished, too.
    held.reply(&[2; 100_000]).await.unwrap();
    assert_eq!(within(draining).await.unwrap().unwrap(), 0);
    assert_eq!(within(calling).await.unwrap().unwrap(), 100_000);
    assert_eq!(server.get_ref().clients(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_from_a_server_that_drains_to_the_next_and_loses_no_call() {
    let dir = Dir::new("handover");
    let mut server = dir.server(ServerConfig::default());
    let (_, mut serving) = counting(server.clone());
    let client = dir.reconnecting(ReconnectPolicy::default()).await;
    let states = client.states();
    assert_eq!(client.state(), ConnectionState::Connected { number: 1 });
    let stop = Arc::new(tokio::sync::Notify::new());
    let calling = {
        let (client, stop) = (client.clone(), stop.clone());
        tokio::spawn(async move {
            let mut calls = 0;
            let mut stopped = pin!(stop.notified());
            loop {
                tokio::select! {
                    biased;
                    () = &mut stopped => return calls,
                    reply = client.call(b"count") => {
                        // Not one of them fails, none is lost.
                        reply.unwrap();
                        calls += 1;
                    }
                }
            }
        })
    };
    for round in 2..5 {
        let next = dir.manager();
        assert_eq!(within(server.drain(Some(LIMIT))).await.unwrap(), 0);
        assert!(matches!(within(serving).await.unwrap(), ReceiveError::Draining));
        server = AsyncServer::new(&next, ServerConfig::default()).unwrap();
        server.serve("calls", Access::SameUser).unwrap();
        serving = counting(server.clone()).1;
        let arrived =
            |state: &ConnectionState| *state == ConnectionState::Connected { number: round };
        within(states.clone().wait_for(arrived)).await.unwrap();
        within(client.call(b"count")).await.unwrap();
    }
    stop.notify_one();
    assert!(within(calling).await.unwrap() > 0);
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_reply_is_lost_is_sent_again_only_if_its_caller_says_that_it_may_be() {
    let dir = Dir::new("lost");
    let server = dir.server(ServerConfig::default());
    let client = dir.reconnecting(ReconnectPolicy::default()).await;
    let (once, again) = (client.clone(), client.clone());
    let once = tokio::spawn(async move { once.call(b"once").await });
    let options = CallOptions { is_idempotent: true, limit: Some(LIMIT) };
    let again = tokio::spawn(async move { again.call_with(b"again", options).await });
    let held = [within(server.receive()).await, within(server.receive()).await];
    assert!(!again.is_finished() && !once.is_finished());
    assert_eq!(server.drain(Some(Duration::ZERO)).await.unwrap(), 2);
    let lost = within(once).await.unwrap();
    assert!(matches!(lost, Err(CallError::Ended(_))), "{lost:?}");
    drop((held, server));
    let server = dir.server(ServerConfig::default());
    let request = within(server.receive()).await.unwrap();
    assert_eq!(&*request, b"again");
    // The rest of its limit.
    assert!(request.deadline().unwrap() <= Instant::now() + LIMIT);
    request.reply(b"at last").await.unwrap();
    assert_eq!(&*within(again).await.unwrap().unwrap(), b"at last");
    // Nothing else came.
    assert!(timeout(SHORT, server.receive()).await.is_err());
    server.drain(Some(LIMIT)).await.unwrap();
    let limited = client.call_within(b"nobody", SHORT).await;
    assert!(matches!(limited, Err(CallError::NotConnected(_))), "{limited:?}");
    assert!(limited.unwrap_err().to_string().contains("within the time limit"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_drops_what_its_caller_gives_up_makes_no_other_error_of_it() {
    let dir = Dir::new("given-up");
    let server = dir.server(ServerConfig::default());
    let serving = tokio::spawn(async move {
        while let Ok(request) = server.receive().await {
            // Beside what makes the reply, as a handler does.
            tokio::spawn(async move { request.cancelled().await });
        }
    });
    let client = AsyncClient::connect(&dir.manager(), "calls", Some(LIMIT)).await.unwrap();
    for _ in 0..40 {
        let late = within(client.call_within(b"slow", SHORT)).await;
        assert!(matches!(late, Err(CallError::TimedOut)), "{late:?}");
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_gives_up_as_its_policy_says_and_its_calls_fail() {
    let dir = Dir::new("give-up");
    // Enough for the first connection.
    let limit = SHORT * 10;
    let few = ReconnectPolicy {
        attempts_max: Some(2),
        attempt_limit: limit,
        calls_wait: false,
        ..ReconnectPolicy::default()
    };
    let soon = ReconnectPolicy {
        outage_max: Some(limit),
        attempt_limit: limit,
        ..ReconnectPolicy::default()
    };
    let server = dir.server(ServerConfig::default());
    let clients = [dir.reconnecting(few).await, dir.reconnecting(soon).await];
    within(server.drain(Some(LIMIT))).await.unwrap();
    drop(server);
    for (i, client) in clients.iter().enumerate() {
        let failed = within(client.call(b"x")).await;
        assert!(matches!(failed, Err(CallError::NotConnected(_))), "{i}: {failed:?}");
        let mut states = client.states();
        let over = |state: &ConnectionState| matches!(state, ConnectionState::GivenUp { .. });
        within(states.wait_for(over)).await.unwrap();
        let failed = within(client.call(b"x")).await;
        assert!(matches!(failed, Err(CallError::NotConnected(_))), "{i}: {failed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_during_an_outage_that_is_dropped_sends_nothing_and_one_that_waits_is_sent() {
    let dir = Dir::new("outage");
    let server = dir.server(ServerConfig::default());
    let client = dir.reconnecting(ReconnectPolicy::default()).await;
    within(server.drain(Some(LIMIT))).await.unwrap();
    drop(server);
    tokio::select! {
        reply = client.call(b"dropped") => panic!("{reply:?}"),
        () = tokio::time::sleep(SHORT) => {}
    }
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.call(b"waits").await })
    };
    let server = dir.server(ServerConfig::default());
    let request = within(server.receive()).await.unwrap();
    assert_eq!(&*request, b"waits");
    request.reply(b"fine").await.unwrap();
    assert_eq!(&*within(waiting).await.unwrap().unwrap(), b"fine");
}

/// A raw node that lets clients in and answers each call that it drains, until it has no more
/// clients; how many there were.
fn fickle(mut node: Node) -> u32 {
    let area = node.message_area(4096 * 2).unwrap();
    let queue = node.notification_queue(4).unwrap();
    let slot = node.slot(SlotConfig::new(area, queue).credit(4)).unwrap();
    let blocks = node.fast_ticket(slot).unwrap();
    let sizes = [4096u32.to_le_bytes(), 2u32.to_le_bytes()].concat();
    let max = (1u64 << 20).to_le_bytes();
    let answer = [b"HAn2", &[4, 0, 0, 0][..], &blocks.to_bytes(), &sizes, &max].concat();
    node.serve("calls", Access::SameUser, Accept::Automatic(answer)).unwrap();
    let (mut clients, mut clock) = (0, Instant::now());
    while clock.elapsed() < SHORT * 20 {
        node.poll().unwrap();
        clients += matches!(node.next_event(), Some(Event::Connected { .. })) as u32;
        if let Some(asked) = node.pop(queue).unwrap() {
            let greeting = node.greeting(asked.link).unwrap();
            let ticket = Ticket::from_bytes(&greeting[24..68]).unwrap();
            let number = asked.word & 0xf_ffff;
            node.try_send_fast_over(asked.link, &ticket, &[], 4091 << 20 | number).ok();
            clock = Instant::now();
        }
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_only_ever_drains_is_asked_as_often_as_the_policy_says() {
    let dir = Dir::new("fickle");
    let node = Node::with_config(Config::from_env().unwrap().dir(&dir.0)).unwrap();
    let serving = std::thread::spawn(move || fickle(node));
    let policy = ReconnectPolicy { attempts_max: Some(4), ..ReconnectPolicy::default() };
    let client = dir.reconnecting(policy).await;
    let failed = within(client.call(b"x")).await;
    assert!(matches!(failed, Err(CallError::NotConnected(_))), "{failed:?}");
    assert_eq!(tokio::task::spawn_blocking(|| serving.join().unwrap()).await.unwrap(), 5);
}

#[tokio::test]
async fn tasks_that_wait_for_a_free_call_have_it_in_the_order_in_which_they_asked() {
    const TASKS: u32 = 12;
    const CALLS: u32 = 200;
    let dir = Dir::new("turns");
    let server = dir.server(ServerConfig { outstanding: 3, ..ServerConfig::default() });
    let serving = tokio::spawn(async move {
        while let Ok(request) = server.receive().await {
            request.reply(b"").await.unwrap();
        }
    });
    let client = dir.client().await;
    let done = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (client, done) = (client.clone(), done.clone());
            tokio::spawn(async move {
                let mut longest = 0;
                for _ in 0..CALLS {
                    let before = done.load(Ordering::Relaxed);
                    client.call_within(b"x", LIMIT).await.unwrap();
                    longest = longest.max(done.fetch_add(1, Ordering::Relaxed) - before);
                }
                longest
            })
        })
        .collect();
    for task in tasks {
        // Those of the others that come before: one of each, and what is on its way.
        let longest = within(task).await.unwrap();
        assert!(longest <= 2 * TASKS, "{longest} calls of others were before one");
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_for_which_none_was_free_says_that_it_was_not_sent() {
    let dir = Dir::new("none-free");
    let server = dir.server(ServerConfig { outstanding: 1, ..ServerConfig::default() });
    let client = dir.reconnecting(ReconnectPolicy::default()).await;
    let first = {
        let client = client.clone();
        tokio::spawn(async move { client.call(b"first").await })
    };
    let request = within(server.receive()).await.unwrap();
    let failed = within(client.call_within(b"second", SHORT)).await;
    assert!(matches!(failed, Err(CallError::NoneFree(1))), "{failed:?}");
    request.reply(b"").await.unwrap();
    within(first).await.unwrap().unwrap();
    assert!(timeout(SHORT, server.receive()).await.is_err());
}
