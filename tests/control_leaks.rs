//! Descriptors and memory are released. Alone in its process, since both are counted for all of it.
#![cfg(feature = "os")]

mod control_help;

use control_help::*;
use hamlyn::control::frame::{Frame, Purpose};
use hamlyn::control::*;

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:hamlyn").count()
}

#[test]
fn links_that_come_and_go_leave_nothing_behind() {
    let dir = Dir::new("leaks");
    let config = dir.config();
    let before_all = descriptors();
    {
        let (server, theirs, client, ours) = linked(&config);
        let before = descriptors();
        for round in 0..100 {
            let link = client.connect(&name("x"), b"", LONG).unwrap();
            let ControlEvent::Connected(other) = next(&server) else { panic!() };
            if round % 4 == 0 {
                client.request_bulk(link.token);
                assert!(matches!(next(&client), ControlEvent::BulkOutgoing { .. }));
                assert!(matches!(next(&server), ControlEvent::BulkIncoming { .. }));
            }
            let (a, b, token) = if round % 2 == 0 {
                (&client, &server, link.token)
            } else {
                (&server, &client, other.token)
            };
            a.close(token);
            assert!(matches!(next(b), ControlEvent::Closed { reason: LinkEnd::Graceful, .. }));
        }
        until("only the first link is left", || descriptors() == before && mappings() == 4);
        // Strangers leave nothing either, wherever they stop.
        for round in 0..200 {
            let fd = stranger(&dir);
            if round % 4 > 0 {
                send(&fd, &Frame::Hello(hello_of(Purpose::Link)));
            }
            if round % 4 > 1 {
                drop(receive(&fd));
            }
            if round % 4 > 2 {
                say(&fd, RING, ring_offer(4096));
            }
        }
        until("the strangers are gone", || descriptors() == before && mappings() == 4);
        drop((theirs, ours));
    }
    until("nothing is left", || descriptors() == before_all && mappings() == 0);
}
