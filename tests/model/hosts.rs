//! Another host's messages before and on a link, from bytes: by chance under `cargo test`, by
//! search under a fuzzer (`fuzz/`).

use hamlyn::control::hosts::hello::{self, Answer, HELLO_BYTES_MAX, HelloIdentity, Wants};
use hamlyn::control::hosts::said::Said;
use hamlyn::transport::frames::{HEADER_BYTES, HostFrame, ReadFrame, put, read};
use hamlyn::transport::rails::numbers::{HEAD_BYTES, RailHead, RailKind, RailSending, Receiving};
use hamlyn::wire::METADATA_MAX;

/// Hellos and frames, each beginning with the bytes that there are.
pub fn hosts(data: &[u8]) {
    said::<HelloIdentity>(data);
    said::<Wants>(data);
    said::<Answer>(data);
    let Some((first, rest)) = data.split_first() else { return };
    frames(rest, *first as usize * 8);
    rails(data);
    // The same as a body whose length is right.
    let length = (rest.len().min(HELLO_BYTES_MAX) as u32).to_le_bytes();
    let whole = [&length, rest].concat();
    for meant in [said::<HelloIdentity>(&whole), said::<Wants>(&whole), said::<Answer>(&whole)] {
        assert!(meant.is_none_or(|bytes| bytes <= whole.len()));
    }
}

/// Heads of batches, one behind the other: a head read is written as it was, and the state kept is
/// bounded, for any heads.
fn rails(data: &[u8]) {
    const CREDIT: usize = 1000;
    const BATCH: usize = 200;
    let (before, _) = Said::split(data);
    assert!(data.starts_with(before));
    let (mut receiving, mut sending) =
        (Receiving::new(CREDIT as u64, BATCH as u64), RailSending::new(CREDIT as u64));
    receiving.has_rail();
    let mut came = 0;
    for bytes in data.chunks_exact(HEAD_BYTES) {
        let bytes: &[u8; HEAD_BYTES] = bytes.try_into().expect("chunks of as many");
        let Ok(head) = RailHead::read(bytes, BATCH) else { return };
        assert_eq!(head.to_bytes(), *bytes);
        sending.put(RailKind::Long, bytes, 0);
        let question = sending.ask();
        if sending.reported(head.had, head.freed, |_| ()).is_err() {
            return;
        }
        match head.kind {
            RailKind::Ask | RailKind::Report => {}
            RailKind::Answer => {
                if sending.answer(head.number.min(question), head.had, bytes, |_| ()).is_err() {
                    return;
                }
            }
            RailKind::Long | RailKind::Short | RailKind::Last => {
                if receiving.take(&head, &[7; BATCH][..head.length as usize]).is_err() {
                    return;
                }
                came += head.length as usize;
                assert!(came <= CREDIT + BATCH || receiving.twice() > 0);
            }
        }
    }
    let (had, freed) = receiving.state();
    receiving.drop_ready();
    assert!(had <= data.len() as u64 && freed == 0);
}

/// A value read, and written again, is read as the same.
fn said<T>(bytes: &[u8]) -> Option<usize>
where
    T: for<'a> serde::Deserialize<'a> + serde::Serialize + PartialEq + std::fmt::Debug,
{
    let (found, used) = hello::from_bytes::<T>(bytes).ok()??;
    assert!(used <= bytes.len());
    let again = hello::to_bytes(&found);
    // A longer encoding than needed can be read, and is never sent.
    if let Ok(Some((read, _))) = hello::from_bytes::<T>(&again) {
        assert_eq!(read, found);
    } else {
        assert!(again.len() > HELLO_BYTES_MAX);
    }
    Some(used)
}

/// One behind the other, as far as they go; the same in parts as whole.
fn frames(mut bytes: &[u8], packet_bytes: usize) {
    loop {
        let found = read(bytes, packet_bytes);
        let most = HEADER_BYTES + METADATA_MAX + packet_bytes;
        match found {
            ReadFrame::Violation => return,
            ReadFrame::Cut(wanted) => {
                assert!(bytes.len() < wanted && wanted <= most, "{wanted} bytes are waited for");
                return;
            }
            ReadFrame::Whole(frame, used) => {
                assert!(used <= bytes.len() && used <= most);
                for part in [0, HEADER_BYTES - 1, used - 1] {
                    let is_cut = matches!(read(&bytes[..part], packet_bytes), ReadFrame::Cut(_));
                    assert!(is_cut || part == used, "{part} of {used} bytes are a frame");
                }
                let mut again = Vec::new();
                put(&mut again, &frame);
                assert_eq!(read(&again, packet_bytes), ReadFrame::Whole(frame, used));
                if let HostFrame::Packet { metadata, data, .. } = frame {
                    assert_eq!(HEADER_BYTES + metadata.len() + data.len(), used);
                    // A packet's frame has nothing that is not read.
                    assert_eq!(again, bytes[..used]);
                }
                bytes = &bytes[used..];
            }
        }
    }
}
