//! hyper over Hamlyn, both sides.

use hamlyn::io::{Connection, Listener};
use hamlyn::{Access, Config};
use hamlyn_http::{LIMIT, Result, manager};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
    let text = format!("{} {}", request.method(), request.uri());
    Ok(Response::new(Full::from(text)))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result {
    let manager = manager(Config::from_env()?)?;
    let name = format!("hyper-{}", std::process::id());
    let listener = Listener::bind(&manager, &name, Access::SameUser)?;
    tokio::spawn(async move {
        while let Ok(connection) = listener.accept().await {
            let http = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(connection), service_fn(answer));
            tokio::spawn(http);
        }
    });
    let connection = Connection::connect(&manager, &name, LIMIT).await?;
    let (status, body) = hamlyn_http::get(connection, "/over/shared/memory").await?;
    println!("{status}: {}", String::from_utf8_lossy(&body));
    assert_eq!(&body[..], b"GET /over/shared/memory");
    Ok(())
}
