//! A key-value service in tokio tasks: application errors, a server that drains and hands over to
//! the next, a client that connects again and notices only a delay.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{
    AsyncManager, AsyncReconnectingClient, AsyncRequest, AsyncServer, CallError, CallOptions,
    ConnectionState, Manager, ReconnectPolicy, ServerConfig,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);
const KEYS: u32 = 1000;
const NO_SUCH_KEY: u32 = 404;

type Store = Arc<Mutex<HashMap<String, String>>>;

/// A request is `key=value`, or `key`, which asks for the value.
async fn handle(request: AsyncRequest, store: Store) -> std::result::Result<(), CallError> {
    // A store that asks a disk would wait here.
    tokio::select! {
        () = request.cancelled() => return Ok(()),
        () = tokio::task::yield_now() => {}
    }
    let text = String::from_utf8_lossy(&request).into_owned();
    if let Some((key, value)) = text.split_once('=') {
        store.lock().expect("no panic").insert(key.into(), value.into());
        return request.reply(b"").await;
    }
    let value = store.lock().expect("no panic").get(&text).cloned();
    match value {
        Some(value) => request.reply(value.as_bytes()).await,
        None => request.fail(NO_SUCH_KEY, &format!("there is no key {text}")).await,
    }
}

/// Serves so many requests, and drains; `None`: serves until every client has gone.
async fn serve(store: &Store, requests: Option<u32>, ready: &dyn Fn() -> Result) -> Result {
    let manager = AsyncManager::new(&Manager::new()?)?;
    let server = AsyncServer::new(&manager, ServerConfig::default())?;
    server.serve("store", Access::SameUser)?;
    ready()?;
    let mut served = 0;
    while requests != Some(served) {
        let request = tokio::time::timeout(LIMIT, server.receive()).await??;
        if *request == *b"stop" {
            request.reply(b"").await?;
            break;
        }
        served += 1;
        tokio::spawn(handle(request, store.clone()));
    }
    let drain = server.drain(Some(LIMIT));
    // Requests that had arrived by then are answered, too.
    let rest = async {
        while let Ok(request) = server.receive().await {
            tokio::spawn(handle(request, store.clone()));
        }
    };
    let (left, ()) = tokio::join!(drain, rest);
    println!("a server has drained, and left {} requests", left?);
    Ok(())
}

async fn client() -> Result {
    let manager = AsyncManager::new(&Manager::new()?)?;
    let policy = ReconnectPolicy::default();
    let client = AsyncReconnectingClient::connect(&manager, "store", policy, Some(LIMIT)).await?;
    // To set a key twice does no harm.
    let options = CallOptions { limit: Some(LIMIT), is_idempotent: true };
    for i in 0..KEYS {
        client.call_with(format!("{i}={}", i * i).as_bytes(), options).await?;
    }
    for i in 0..KEYS {
        let value = client.call_with(i.to_string().as_bytes(), options).await?;
        assert_eq!(*value, *(i * i).to_string().as_bytes());
    }
    match client.call_within(b"nothing", LIMIT).await {
        Err(CallError::Application { code: NO_SUCH_KEY, text }) => println!("an error: {text}"),
        other => return Err(format!("not expected: {other:?}").into()),
    }
    assert!(matches!(client.state(), ConnectionState::Connected { number: 2.. }));
    client.call_within(b"stop", LIMIT).await?;
    Ok(())
}

fn main() -> Result {
    let runtime = tokio::runtime::Runtime::new()?;
    let server = |ready: &dyn Fn() -> Result| {
        let store = Store::default();
        runtime.block_on(serve(&store, Some(KEYS / 2), ready))?;
        runtime.block_on(serve(&store, None, &|| Ok(())))
    };
    common::run(server, &[|| tokio::runtime::Runtime::new()?.block_on(client())])
}
