//! Tagged writes and datagrams, compiled outside of the library: they use what is public, and
//! nothing else, so that others can write protocols like them. Their own tests run here, too.
#![cfg(all(feature = "os", not(miri)))]
#![allow(dead_code)]

// The paths that the files use, without all that is not at the library's root.
mod config {
    pub use hamlyn::Config;
}
mod control {
    pub use hamlyn::{Access, Peer, RequestId};
}
mod interface {
    pub use hamlyn::{AreaId, EntryState, LinkId, Mode, Notification, QueueId, SlotConfig, SlotId};
    pub mod notification {
        pub use hamlyn::Consumer;
    }
}
mod node {
    pub use hamlyn::node::{CloseReason, Look, OfferError, Unfinished};
    pub use hamlyn::{Node, NodeSendError, PreparedTicket};
}
mod wire {
    pub use hamlyn::{Flags, Key, METADATA_MAX, MetadataIndex, NodeId, Share};
    pub use hamlyn::{SlotIndex, TICKET_BYTES, Ticket};
}
mod protocol {
    pub use hamlyn::protocol::*;
}
use hamlyn::protocol::{
    Connection, EndPoint, GrowError, Kind, Protocol, ReceiveError, Seat, SendError,
};

#[path = "../src/protocol/credit.rs"]
mod credit;
#[path = "../src/protocol/datagram.rs"]
mod datagram;
#[path = "../src/protocol/seated.rs"]
mod seated;
#[path = "../src/protocol/tagged.rs"]
mod tagged;
#[path = "../src/protocol/tickets.rs"]
mod tickets;

use datagram::{DatagramReceiver, DatagramSender};
use hamlyn::protocol::Manager;
use std::time::Duration;
use tagged::{TaggedConfig, TaggedReceiver, TaggedSender};

#[test]
fn protocols_that_are_compiled_outside_of_the_library_speak_with_those_inside() {
    let dir = std::env::temp_dir().join(format!("hamlyn-public-{}", std::process::id()));
    let config = || hamlyn::Config::from_env().unwrap().dir(&dir);
    let limit = Some(Duration::from_secs(100));
    let manager = Manager::with_config(config()).unwrap();
    manager.start_progress().unwrap();
    let other = Manager::with_config(config()).unwrap();

    let mut outside = TaggedReceiver::new(&manager, TaggedConfig::new(64)).unwrap();
    let seed = outside.seed().unwrap();
    let mut inside = hamlyn::protocol::TaggedSender::grow(&other, &seed, limit).unwrap();
    inside.send(0, b"from inside", 1, limit).unwrap();
    let mut also_outside = TaggedSender::grow(&other, &seed, limit).unwrap();
    assert_eq!(outside.get_tag(limit).unwrap().tag, 1);
    also_outside.send(16, b"from outside", 2, limit).unwrap();
    outside.get_specific_tag(2, limit).unwrap();
    assert!(outside.with_bytes(|bytes| &bytes[16..28] == b"from outside").unwrap());

    let mut inside = hamlyn::protocol::DatagramReceiver::new(&manager, 1 << 20).unwrap();
    let mut outside = DatagramSender::grow(&other, &inside.seed().unwrap(), limit).unwrap();
    let long = vec![7; 1 << 20];
    outside.send(&long, 0, None, limit).unwrap();
    let datagram = inside.receive(limit).unwrap();
    assert!(inside.with_bytes(&datagram, |bytes| bytes == long).unwrap());
    drop(DatagramReceiver::new(&manager, 64).unwrap());
    drop((inside, outside, also_outside, other, manager));
    std::fs::remove_dir_all(&dir).ok();
}
