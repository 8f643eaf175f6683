//! End points in tokio tasks: a server whose handlers are tasks, a client with many calls at once,
//! and a time limit that is tokio's.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{AsyncManager, Client, Manager, Server, ServerConfig};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);
const CALLS: u32 = 100;

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn server(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    let server = Arc::new(Server::new(&manager, ServerConfig::default())?);
    server.serve("sleepers", Access::SameUser)?;
    ready()?;
    runtime()?.block_on(async {
        let manager = AsyncManager::new(&manager)?;
        let mut handlers = tokio::task::JoinSet::new();
        for _ in 0..CALLS {
            // A request that is to be replied to by a task is taken apart from its server.
            let request = tokio::time::timeout(LIMIT, manager.receive(&mut &*server)).await??;
            let (request, server) = (request.detach(), server.clone());
            handlers.spawn(async move {
                tokio::time::sleep(Duration::from_millis(request[0] as u64)).await;
                let slept = [request[0]];
                server.attach(request).reply(&slept, Some(LIMIT))
            });
        }
        while let Some(handled) = handlers.join_next().await {
            handled??;
        }
        println!("{CALLS} calls were replied to, each by a task of its own");
        // The client leaves first, so that each reply is read.
        tokio::time::timeout(LIMIT, async {
            while server.clients() > 0 {
                manager.manager().poll()?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Result::Ok(())
        })
        .await?
    })
}

fn client() -> Result {
    let manager = Manager::new()?;
    runtime()?.block_on(async {
        let manager = AsyncManager::new(&manager)?;
        let connect = |m: &Manager| Client::connect(m, "sleepers", Some(LIMIT));
        let client = Arc::new(manager.set_up(connect).await?);
        let mut calls = tokio::task::JoinSet::new();
        for i in 0..CALLS {
            let (manager, client) = (manager.clone(), client.clone());
            calls.spawn(async move {
                let ms = (i % 20) as u8;
                let reply = tokio::time::timeout(LIMIT, manager.call(&client, &[ms])).await;
                reply.is_ok_and(|reply| reply.is_ok_and(|reply| *reply == [ms]))
            });
        }
        while let Some(was_right) = calls.join_next().await {
            assert!(was_right?);
        }
        Ok(())
    })
}

fn main() -> Result {
    common::run(server, &[client])
}
