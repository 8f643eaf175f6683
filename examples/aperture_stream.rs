//! A stream whose long records go straight into the receiver's memory, and the two kinds of bytes
//! that it returns: stable bytes, and volatile ones that their sender can still change.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{
    ApertureStreamReceiver, ApertureStreamSender, Manager, ReceiveError, RecordBytes, StreamConfig,
};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const PICTURE_BYTES: usize = 1 << 20;

fn receiver(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    let config = StreamConfig::default();
    let mut receiver = ApertureStreamReceiver::new(&manager, config, 4 * PICTURE_BYTES as u64)?;
    receiver.serve("pictures", Access::SameUser)?;
    ready()?;
    let (mut captions, mut pictures, mut in_place) = (0, 0, 0);
    loop {
        let record = match receiver.receive(LIMIT) {
            Ok(record) => record,
            Err(ReceiveError::Ended(_)) => break,
            Err(e) => return Err(e.into()),
        };
        match record.bytes()? {
            // A short one, or a long one from before the aperture was there: a slice.
            RecordBytes::Still(bytes) if bytes.len() < PICTURE_BYTES => captions += 1,
            RecordBytes::Still(bytes) => pictures += bytes.iter().filter(|b| **b == 7).count(),
            // A long one: its bytes can only be copied, and only the copy is believed.
            RecordBytes::Volatile(bytes) => {
                let mut piece = [0; 4096];
                for at in (0..bytes.len()).step_by(piece.len()) {
                    bytes.read(at, &mut piece)?;
                    pictures += piece.iter().filter(|b| **b == 7).count();
                }
                in_place += 1;
            }
        }
    }
    println!("{captions} captions; {in_place} of 20 pictures were read in the aperture");
    if (captions, pictures) == (20, 20 * PICTURE_BYTES) {
        Ok(())
    } else {
        Err(format!("{captions} captions and {pictures} bytes are not what was sent").into())
    }
}

fn sender() -> Result {
    let manager = Manager::new()?;
    let mut sender = ApertureStreamSender::connect(&manager, "pictures", LIMIT)?;
    for number in 0..20 {
        sender.send(format!("caption {number}").as_bytes(), LIMIT)?;
        sender.send(&vec![7; PICTURE_BYTES], LIMIT)?;
    }
    println!("{}", sender.explain());
    sender.close(LIMIT)?;
    Ok(())
}

fn main() -> Result {
    common::run(receiver, &[sender])
}
