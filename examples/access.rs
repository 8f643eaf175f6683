//! Access control: users of a group, by their identity from the kernel; among them, those that a
//! callback admits; and any holder of a seed from the same group.

mod common;

use common::Result;
use hamlyn::protocol::{Client, Manager, Seed, Server, ServerConfig};
use hamlyn::services::setup_shared_dir;
use hamlyn::{Access, Config};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn server(ready: &dyn Fn() -> Result) -> Result {
    let group = rustix::process::getegid().as_raw();
    // Services for others stand in the shared directory, which root makes once (`hamlyn setup`).
    let mut config = Config::from_env()?.shared_dir(common::path("shared")?);
    let access = match setup_shared_dir(&config) {
        Ok(_) => Access::Group(group),
        Err(why) => {
            println!("only for this user: {why}");
            config = Config::from_env()?;
            Access::SameUser
        }
    };
    let manager = Manager::with_config(config)?;

    let server = Server::new(&manager, ServerConfig::default())?;
    let mut guests = 0;
    server.set_admission(move |peer| {
        guests += 1;
        match peer.uid {
            Some(uid) if guests == 1 => {
                println!("user {uid} is admitted");
                Ok(())
            }
            _ => Err("one guest is enough".into()),
        }
    });
    server.serve("guests", access)?;
    // Seeds come from another end point, which asks no callback: every holder of a seed was given
    // it.
    let friends = Server::new(&manager, ServerConfig::default())?;
    manager.set_seed_access(access)?;
    std::fs::write(common::path("seed")?, friends.seed()?.to_bytes())?;
    ready()?;
    for server in [&server, &friends] {
        server.receive(LIMIT)?.reply(b"welcome", LIMIT)?;
    }
    Ok(())
}

fn client() -> Result {
    let mut config = Config::from_env()?;
    let mut name = "guests".to_owned();
    if common::path("shared")?.exists() {
        config = config.shared_dir(common::path("shared")?);
        // Another user's service is found below that user.
        name = format!("{}@guests", rustix::process::geteuid().as_raw());
    }
    let manager = Manager::with_config(config)?;
    let guest = Client::connect(&manager, &name, LIMIT)?;
    match Client::connect(&manager, &name, LIMIT) {
        Err(refused) => println!("a second guest: {refused}"),
        Ok(_) => return Err("a second guest was admitted".into()),
    }
    let seed = Seed::from_bytes(&std::fs::read(common::path("seed")?)?)?;
    let friend = Client::grow(&manager, &seed, LIMIT)?;
    for client in [&guest, &friend] {
        let welcome = client.call(b"hello", LIMIT)?;
        println!("{}", String::from_utf8_lossy(&welcome));
    }
    Ok(())
}

fn main() -> Result {
    common::run(server, &[client])
}
