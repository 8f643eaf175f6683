//! A user of the other host who replays the start of TLS, from each address of its loopback.

#[path = "../support/cable.rs"]
mod cable;

use crate::doubles;
use crate::net::{Inside, Net, run};
use crate::support::{LIMIT, loud};
use hamlyn::control::hosts::keys::Keys;
use hamlyn::protocol::Client;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Connections that the attacker keeps; more than there may be strangers.
const KEPT: usize = 512;

/// Connects to this host's own port, each time from another address, until `ends`.
fn floods(hello: &[u8], first: u32, count: &AtomicU32, ends: &AtomicBool) {
    let there = SocketAddr::from((Ipv4Addr::LOCALHOST, 7000));
    let mut kept: Vec<Option<TcpStream>> = (0..KEPT).map(|_| None).collect();
    for i in 0.. {
        if ends.load(Ordering::Relaxed) {
            return;
        }
        let address = Ipv4Addr::from_bits(127 << 24 | first << 20 | 1 << 16 | i & 0xffff);
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        // Nothing of it is left when it is closed.
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO)).unwrap();
        if bind(&fd, &SocketAddr::from((address, 0))).is_ok() && connect(&fd, &there).is_ok() {
            let mut tcp = TcpStream::from(fd);
            let _ = tcp.write_all(hello);
            kept[i as usize % KEPT] = Some(tcp);
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_user_of_the_servers_host_with_all_of_its_loopback_keeps_no_other_host_out() {
    let Some(net) = Net::new() else { return };
    run(&format!("ip -n {} link set lo up", net.there)).unwrap();
    run(&format!("ip -n {} link set lo up", net.here)).unwrap();
    let (_peer, _dir, _) =
        net.peer_with("server", &[("LISTEN", "0.0.0.0:7000"), ("HANDSHAKE_TIMEOUT_MS", "40000")]);
    let keys = Keys::load(&net.dir("attacker", &[]).config()).unwrap();
    let mut client =
        rustls::ClientConnection::new(keys.client.clone(), "localhost".try_into().unwrap())
            .unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let (ends, count) = (AtomicBool::new(false), AtomicU32::new(0));
    let namespace = format!("/run/netns/{}", net.there);
    std::thread::scope(|scope| {
        for first in 1..=2 {
            let (hello, namespace, ends, count) = (&hello, &namespace, &ends, &count);
            scope.spawn(move || {
                let _inside = Inside::enter(namespace);
                floods(hello, first, count, ends);
            });
        }
        let honest = || {
            // There are as many strangers as there may be.
            while count.load(Ordering::Relaxed) < 1000 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (began, before) = (Instant::now(), count.load(Ordering::Relaxed));
            net.here(&[], |manager| {
                // The attacker is nearer than an honest host.
                let far = cable::Cable::to(|| crate::ADDRESS.parse().unwrap(), 1);
                far.inside.delay_us.store(300_000, Ordering::Relaxed);
                let name = format!("hamlyn://{}/double", far.at);
                let client = Client::connect(manager, &name, LIMIT);
                doubles(&client.expect("it is kept out"), &[100]);
            });
            let (seconds, came) = (began.elapsed(), count.load(Ordering::Relaxed) - before);
            loud(&format!("a link in {seconds:?}, beside {came} strangers"));
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(honest));
        ends.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn role() {
    crate::role();
}
