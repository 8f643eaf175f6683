//! A few requests of each, over connections of Hamlyn.

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use hamlyn::io::{Connection, Listener};
use hamlyn::protocol::AsyncManager;
use hamlyn::{Access, Config};
use hamlyn_http::{AxumListener, Caller, LIMIT, channel, incoming};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Longer than anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(40);

fn managers(dir: &tempfile::TempDir) -> [AsyncManager; 2] {
    let config = Config::from_env().unwrap().dir(dir.path());
    [(); 2].map(|()| hamlyn_http::manager(config.clone()).unwrap())
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map_or_else(|_| Bytes::new(), |b| b.to_bytes());
    Ok(Response::new(Full::new(body)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hyper_speaks_http_1_and_2_with_bodies_of_all_lengths() {
    let dir = tempfile::tempdir().unwrap();
    let [there, here] = managers(&dir);
    let listener = Listener::bind(&there, "hyper", Access::SameUser).unwrap();
    tokio::spawn(async move {
        for version in 1..=2 {
            let io = TokioIo::new(listener.accept().await.unwrap());
            if version == 1 {
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move { http.serve_connection(io, service_fn(echo)).await });
            } else {
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(async move { http.serve_connection(io, service_fn(echo)).await });
            }
        }
    });
    let body = |length: usize| Full::new(Bytes::from(vec![b'x'; length]));
    let lengths = [0, 1, 1000, 70_000, 1 << 20];
    let io = TokioIo::new(Connection::connect(&here, "hyper", LIMIT).await.unwrap());
    let (mut sender, http) = hyper::client::conn::http1::handshake(io).await.unwrap();
    let serving = tokio::spawn(http);
    for length in lengths {
        let request = Request::post("/").header("host", "h").body(body(length)).unwrap();
        timeout(LONG, sender.ready()).await.unwrap().unwrap();
        let response = timeout(LONG, sender.send_request(request)).await.unwrap().unwrap();
        let back = timeout(LONG, response.into_body().collect()).await.unwrap().unwrap();
        assert_eq!(back.to_bytes().len(), length);
    }
    drop(sender);
    timeout(LONG, serving).await.unwrap().unwrap().unwrap();

    let io = TokioIo::new(Connection::connect(&here, "hyper", LIMIT).await.unwrap());
    let (sender, http) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(http);
    let mut calls = tokio::task::JoinSet::new();
    for length in lengths {
        let (mut sender, request) = (sender.clone(), Request::post("http://h/"));
        let request = request.body(body(length)).unwrap();
        calls.spawn(async move {
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), length);
        });
    }
    while let Some(called) = timeout(LONG, calls.join_next()).await.unwrap() {
        called.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axum_knows_who_calls_and_stops_gracefully() {
    let dir = tempfile::tempdir().unwrap();
    let [there, here] = managers(&dir);
    let listener = Listener::bind(&there, "axum", Access::SameUser).unwrap();
    let who = |ConnectInfo(Caller(peer)): ConnectInfo<Caller>| async move {
        format!("{}", peer.pid.unwrap_or(0))
    };
    let router = Router::new()
        .route("/who", get(who))
        .route("/length", post(|body: Bytes| async move { body.len().to_string() }));
    let service = router.into_make_service_with_connect_info::<Caller>();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(
        axum::serve(AxumListener(listener), service)
            .with_graceful_shutdown(async { drop(stopped.await) })
            .into_future(),
    );
    for _ in 0..5 {
        let connection = Connection::connect(&here, "axum", LIMIT).await.unwrap();
        let (status, body) =
            timeout(LONG, hamlyn_http::get(connection, "/who")).await.unwrap().unwrap();
        assert_eq!((status.as_u16(), body), (200, std::process::id().to_string().into()));
    }
    let connection = Connection::connect(&here, "axum", LIMIT).await.unwrap();
    let (status, _) = timeout(LONG, hamlyn_http::get(connection, "/none")).await.unwrap().unwrap();
    assert_eq!(status.as_u16(), 404);
    stop.send(()).unwrap();
    timeout(LONG, serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonic_calls_and_streams() {
    let dir = tempfile::tempdir().unwrap();
    let [there, here] = managers(&dir);
    let listener = Listener::bind(&there, "tonic", Access::SameUser).unwrap();
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("hamlyn", tonic_health::ServingStatus::Serving).await;
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming(listener)));
    let mut health =
        HealthClient::new(timeout(LONG, channel(&here, "tonic")).await.unwrap().unwrap());
    let request = || HealthCheckRequest { service: "hamlyn".into() };
    for _ in 0..20 {
        let answer = timeout(LONG, health.check(request())).await.unwrap().unwrap();
        assert_eq!(answer.into_inner().status, 1);
    }
    let unknown = HealthCheckRequest { service: "nobody".into() };
    let status = timeout(LONG, health.check(unknown)).await.unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    let mut watch = timeout(LONG, health.watch(request())).await.unwrap().unwrap().into_inner();
    assert_eq!(timeout(LONG, watch.next()).await.unwrap().unwrap().unwrap().status, 1);
    reporter.set_service_status("hamlyn", tonic_health::ServingStatus::NotServing).await;
    assert_eq!(timeout(LONG, watch.next()).await.unwrap().unwrap().unwrap().status, 2);
}
