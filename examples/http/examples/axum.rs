//! axum over Hamlyn: a handler knows the calling process, from the kernel.

use axum::extract::ConnectInfo;
use axum::{Router, routing::get};
use hamlyn::io::{Connection, Listener};
use hamlyn::{Access, Config};
use hamlyn_http::{AxumListener, Caller, LIMIT, Result, manager};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result {
    let manager = manager(Config::from_env()?)?;
    let name = format!("axum-{}", std::process::id());
    let listener = Listener::bind(&manager, &name, Access::SameUser)?;
    let who = |ConnectInfo(Caller(peer)): ConnectInfo<Caller>| async move {
        format!("you are process {} of user {}", peer.pid.unwrap_or(0), peer.uid.unwrap_or(0))
    };
    let router = Router::new().route("/who", get(who));
    let service = router.into_make_service_with_connect_info::<Caller>();
    tokio::spawn(async move { axum::serve(AxumListener(listener), service).await });

    let connection = Connection::connect(&manager, &name, LIMIT).await?;
    let (status, body) = hamlyn_http::get(connection, "/who").await?;
    println!("{status}: {}", String::from_utf8_lossy(&body));
    assert!(body.starts_with(format!("you are process {}", std::process::id()).as_bytes()));
    Ok(())
}
