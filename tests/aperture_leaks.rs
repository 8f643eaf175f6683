//! Apertures leave nothing behind. One test, in a process of its own: it counts the descriptors and
//! mappings of the process.
#![cfg(feature = "os")]

mod support;

use hamlyn::node::ApertureEvent;
use hamlyn::{Aperture, ApertureAccess, ApertureId, LinkId, Node};
use support::*;

const BYTES: u64 = 1 << 16;

/// Exported by one, held by the other.
fn agreed(
    owner: &mut Node,
    link: LinkId,
    holder: &mut Node,
    access: ApertureAccess,
) -> (ApertureId, Aperture) {
    let id = owner.export(link, BYTES, access).unwrap();
    let (held, what) = aperture_event(holder);
    assert_eq!((held.number, what), (id.number, ApertureEvent::Held));
    assert_eq!(aperture_event(owner), (id, ApertureEvent::Ready));
    (id, holder.aperture(held).unwrap())
}

#[test]
fn nothing_is_left_of_an_aperture_whoever_ends_it() {
    alone("nothing_is_left_of_an_aperture_whoever_ends_it", || {
        let dir = Dir::new("apleaks", &[]);
        let mut server = Station::new(dir.config(), 64, 1).serve("service").node;
        let mut client = Node::with_config(dir.config()).unwrap();
        let to_server = client.connect("service", b"", Some(LONG)).unwrap();
        let to_client = connected(&mut server);
        let before = Costs::now();
        for round in 0..60 {
            let access =
                if round % 2 == 0 { ApertureAccess::ReadWrite } else { ApertureAccess::ReadOnly };
            let (owner, link, holder) = match round / 2 % 2 {
                0 => (&mut server, to_client, &mut client),
                _ => (&mut client, to_server, &mut server),
            };
            let (id, aperture) = agreed(owner, link, holder, access);
            let view = owner.aperture_view(id).unwrap();
            match round / 4 % 3 {
                0 => owner.revoke_aperture(id).unwrap(),
                1 => {
                    let area = owner.reclaim_aperture(id).unwrap();
                    owner.remove_area(area).unwrap();
                }
                _ => {
                    holder.release_aperture(aperture.id()).unwrap();
                    assert_eq!(aperture_event(owner), (id, ApertureEvent::Released));
                    owner.revoke_aperture(id).unwrap();
                }
            }
            if round / 4 % 3 != 2 {
                assert_eq!(aperture_event(holder).1, ApertureEvent::Revoked);
            }
            assert!(view.is_revoked() && aperture.is_revoked());
        }
        let costs = |what: &str, server: &Node, client: &Node| {
            until(what, || {
                let now = Costs::now();
                server.aperture_bytes() == (0, 0)
                    && client.aperture_bytes() == (0, 0)
                    && now.descriptors <= before.descriptors
                    && now.shared_mappings == before.shared_mappings
            });
        };
        costs("nothing is left of what was taken back", &server, &client);
        // A link that ends takes its apertures with it, though both ends keep what they had.
        let again = client.connect("service", b"", Some(LONG)).unwrap();
        let other = connected(&mut server);
        let kept: Vec<_> = [ApertureAccess::ReadWrite, ApertureAccess::ReadOnly]
            .map(|access| {
                let there = agreed(&mut server, other, &mut client, access);
                let back = agreed(&mut client, again, &mut server, access);
                let views = (server.aperture_view(there.0), client.aperture_view(back.0));
                (there.1, back.1, views)
            })
            .into();
        client.disconnect(again).unwrap();
        closed(&mut server, other);
        drop(kept);
        costs("nothing is left of a link's apertures", &server, &client);
    });
}
