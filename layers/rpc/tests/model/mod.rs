//! Properties of any bytes; for `tests/reference.rs` and a fuzz target.

use hamlyn_rpc::{Call, Decoder, Encoder, Reply};

/// A head that is accepted, as a call or as a reply, is written as it was read, but for padding.
pub fn heads(bytes: &[u8]) {
    let (mut from, mut to) = (Decoder::new(bytes), Encoder::new());
    if let Ok(call) = Call::decode(&mut from) {
        call.encode(&mut to);
        assert_eq!(Call::decode(&mut Decoder::new(to.bytes())), Ok(call));
        assert_eq!(to.bytes().len(), bytes.len() - from.rest().len());
    }
    let (mut from, mut to) = (Decoder::new(bytes), Encoder::new());
    if let Ok(reply) = Reply::decode(&mut from) {
        reply.encode(&mut to);
        assert_eq!(Reply::decode(&mut Decoder::new(to.bytes())), Ok(reply));
        assert_eq!(to.bytes().len(), bytes.len() - from.rest().len());
    }
}
