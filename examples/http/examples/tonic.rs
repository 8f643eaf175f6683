//! tonic over Hamlyn: gRPC's health service, which needs no compiler of protocol files.

use hamlyn::io::Listener;
use hamlyn::{Access, Config};
use hamlyn_http::{Result, channel, incoming, manager};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result {
    let manager = manager(Config::from_env()?)?;
    let name: &'static str = format!("tonic-{}", std::process::id()).leak();
    let listener = Listener::bind(&manager, name, Access::SameUser)?;
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("hamlyn", tonic_health::ServingStatus::Serving).await;
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming(listener)));

    let mut health = HealthClient::new(channel(&manager, name).await?);
    let request = HealthCheckRequest { service: "hamlyn".into() };
    let response = health.check(request).await?.into_inner();
    println!("the service hamlyn is {:?}", response.status());
    assert_eq!(response.status, tonic_health::ServingStatus::Serving as i32);
    Ok(())
}
