//! End points in tokio tasks.
#![cfg(not(miri))]

use hamlyn::Config;
use hamlyn::protocol::{
    AsyncManager, CallError, Client, Manager, Server, ServerConfig, TaggedConfig, TaggedReceiver,
    TaggedSender,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(10);

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
            let link = sender.connection().link();
            for i in 0..300 {
                let send = here.send(link, || sender.try_send(0, &[], end_point * 1000 + i));
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
                server.attach(request).reply(&bytes, Some(LIMIT)).unwrap();
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
