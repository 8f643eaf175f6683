//! Two programs on two hosts, here two nodes with directories of their own: packets go over TLS.
#![cfg(feature = "tls")]

use hamlyn::Access;
use hamlyn_clan::{Clan, Completion, Config, Error, Request, Rights, Signal, Target, Trip};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn config(dir: &Path) -> Config {
    let secret = dir.join("secret");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&secret).unwrap();
    writeln!(file, "{}", "7f".repeat(32)).unwrap();
    let mut config = Config::from_env().unwrap();
    config.node = config.node.dir(dir).secret(secret);
    config
}

#[test]
fn messages_puts_gets_wires_signals_and_requests_go_to_another_host() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut of = config(dirs[0].path());
    of.node = of.node.listen("127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap());
    let (server, client) = (Clan::new(of).unwrap(), Clan::new(config(dirs[1].path())).unwrap());
    server.listen("there", Access::SameUser).unwrap();
    server.start_progress().unwrap();
    let at = server.manager().listens_at().unwrap();
    let connected = client.connect(&format!("hamlyn://{at}/there"), LIMIT).unwrap();
    let accepted = server.accept(LIMIT).unwrap();
    assert!(connected.peer().unwrap().host.is_some() && connected.peer().unwrap().uid.is_none());

    connected.send_oob(b"to the other host", LIMIT).unwrap();
    assert!(accepted.receive_oob(LIMIT).unwrap().starts_with(b"to the other host\0"));
    accepted.send_oob(b"and back", LIMIT).unwrap();
    assert!(connected.receive_oob(LIMIT).unwrap().starts_with(b"and back\0"));
    // Pages are mapped on one host alone.
    assert!(accepted.mapped_region(4096, Rights::Write, 0).is_err());

    let region = server.region(1 << 20, 8).unwrap();
    let export = region.export_signalled(&accepted, Rights::ReadWrite, 4).unwrap();
    let aperture = connected.import(&export.handle, LIMIT).unwrap();
    assert!(aperture.explain().unwrap().contains("TLS") && !aperture.is_mapped());
    let events = server.event_queue(4).unwrap();
    let target = |user| Target { queue: events.clone(), event: events.register(user).unwrap() };
    let written = region.wire(800_000..800_001, Trip::Write, Some(target(1))).unwrap();
    let read = region.wire(500..501, Trip::Read, Some(target(2))).unwrap();

    let bytes: Vec<u8> = (0..900_000u32).map(|n| (n / 7) as u8).collect();
    aperture.put(0, &bytes, LIMIT).unwrap();
    assert_eq!(server.wait(&events, LIMIT).unwrap().user, 1);
    assert!(written.has_fired() && !read.has_fired());
    let mut got = vec![0; bytes.len()];
    aperture.get(0, &mut got, LIMIT).unwrap();
    assert!(got == bytes);
    assert_eq!(server.wait(&events, LIMIT).unwrap().user, 2);

    region.set_signal_event(Some(target(3)));
    for word in 0..100 {
        aperture.put_signal(900_000, &bytes[..2000], word, LIMIT).unwrap();
        let signal = loop {
            match region.take_signal() {
                Some(signal) => break signal,
                None => drop(server.wait(&events, LIMIT).unwrap()),
            }
        };
        assert_eq!(signal, Signal { word, export: export.number });
    }

    // By the engine: a put and then, behind it, a get of the same bytes.
    let memory = client.region(2 << 20, 0).unwrap();
    memory.write(0, &bytes).unwrap();
    let queue = client.request_queue(4, 0, 64 << 10).unwrap();
    let length = bytes.len() as u64;
    let put = Request::Put { from: &memory, offset: 0, to: &aperture, at: 100_000, length };
    let get = Request::Get { from: &aperture, offset: 100_000, to: &memory, at: 1 << 20, length };
    for request in [put, get] {
        queue.submit(&[request], Completion::None).unwrap();
        queue.wait(LIMIT).unwrap().result.unwrap();
    }
    memory.read(1 << 20, &mut got).unwrap();
    assert!(got == bytes);

    region.revoke(&export);
    let ended = loop {
        client.manager().poll().unwrap();
        if let Err(e) = aperture.check() {
            break e;
        }
    };
    assert_eq!(ended, Error::Revoked);
    drop((region, accepted, written, read, server));
    while connected.check().is_ok() {
        client.manager().poll().unwrap();
    }
    assert!(matches!(connected.send_oob(b"nobody", LIMIT), Err(Error::Closed(_))));
}
