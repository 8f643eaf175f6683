//! Another host's messages about a fabric before a link, and over it and beside it on one, and
//! about its figures, from bytes: by chance under `cargo test`, by search under a fuzzer (`fuzz/`).

use hamlyn::control::hosts::figures;
use hamlyn::os::poller::Poller;
use hamlyn::transport::fabric::credit::{Credit, CreditHead, HEAD_BYTES};
use hamlyn::transport::fabric::deposits::{Deposits, Holdings};
use hamlyn::transport::fabric::words::{self, FabricWord, WORD_BYTES_MAX};
use hamlyn::transport::offer::{FabricOffer, OfferReply, behind, read_behind};
use std::collections::BTreeSet;
use std::sync::Arc;

/// An offer and a reply, each from the bytes that there are; and the same as messages of a link. How many
/// of those were taken.
pub fn fabric(data: &[u8]) -> u64 {
    said::<FabricOffer>(data);
    said::<OfferReply>(data);
    let Some(([own, other], messages)) = data.split_first_chunk() else { return 0 };
    // Small ones, which are used up soon.
    let window = |byte: u8| u32::from(byte % 8) + 1;
    taken(messages, window(*own), window(*other))
}

/// A value read, and written again, is read as the same.
fn said<T>(bytes: &[u8])
where
    T: for<'a> serde::Deserialize<'a> + serde::Serialize + PartialEq + std::fmt::Debug,
{
    let Some(found) = read_behind::<T>(bytes) else { return };
    let again = behind(&found);
    // A number may have been written longer than it need be.
    assert!(again.len() <= bytes.len());
    assert_eq!(read_behind::<T>(&again), Some(found));
}

/// Messages of a head and one byte, which chooses their content and this end's reaction: for any
/// heads, no more is kept, or sent, than was granted. It goes on until one breaks the rules.
fn taken(messages: &[u8], window: u32, other_window: u32) -> u64 {
    let mut credit = Credit::new(window, other_window);
    let (window, mut may_send) = (u64::from(window), u64::from(other_window));
    let (mut early, mut waits, mut taken) = (BTreeSet::new(), 0, 0);
    for message in messages.chunks(HEAD_BYTES + 1) {
        let Some((head, data)) = CreditHead::read(message) else {
            assert!(message.len() < HEAD_BYTES);
            return taken;
        };
        assert_eq!([&head.to_bytes()[..], data].concat(), message);
        let Some(what) = data.first() else { return taken };
        let has_data = what & 1 != 0;
        let before = format!("{credit:?}");
        if credit.take(&head, has_data, early.contains(&head.before)).is_err() {
            assert_eq!(format!("{credit:?}"), before, "what is refused changes nothing");
            return taken;
        }
        taken += 1;
        assert!(head.granted <= credit.sent() + u64::from(other_window));
        may_send = may_send.max(head.granted);
        if has_data {
            assert!(early.insert(head.before));
        }
        while early.remove(&credit.came()) {
            credit.has_come();
            waits += 1;
        }
        assert!(waits + early.len() as u64 <= window, "{waits} and {early:?} are kept");
        if what & 2 != 0 && waits > 0 {
            credit.has_used();
            waits -= 1;
        }
        if what & 4 != 0 && credit.may_send() {
            let head = credit.head(0);
            credit.has_sent(&head, true);
        } else if credit.grant_is_due() {
            let head = credit.head(0);
            credit.has_sent(&head, false);
            assert!(!credit.grant_is_due());
        }
        assert!(credit.sent() <= may_send && credit.may_send() == (credit.sent() < may_send));
    }
    taken
}

/// Words of a link, one behind another until one is none, at an end that has no memory: what is read is
/// written as it came, what is answered is bounded by what came, and nothing is held. How many were taken.
pub fn words(mut said: &[u8]) -> usize {
    let config = hamlyn::Config::default();
    let mut deposits = Deposits::new(true, Arc::new(Holdings::new(&config)), 1_000_000_000);
    let poller = Poller::new().unwrap();
    let (mut taken, mut answered) = (0, 0);
    loop {
        let (word, bytes) = match words::read(said) {
            Ok(Some(read)) => read,
            Ok(None) => {
                assert!(said.len() < WORD_BYTES_MAX, "one is kept whole");
                return taken;
            }
            Err(words::UnknownWord) => return taken,
        };
        let mut again = Vec::new();
        words::put(&mut again, &word);
        assert_eq!(again, said[..bytes]);
        said = &said[bytes..];
        if deposits.handle(word, || None, &poller, |_| true).is_err() {
            return taken;
        }
        taken += 1;
        while let Some(word) = deposits.next_word() {
            assert!(matches!(word, FabricWord::Refused(..)), "{word:?}");
            answered += 1;
        }
        assert!(answered <= taken && deposits.explain().is_empty() && !deposits.writes());
    }
}

/// Figures, as they come: for any claimed length, no more is taken, and the shown text is readable
/// and bounded by the received bytes. Returns whether there were some.
pub fn figures(came: &[u8]) -> bool {
    let Ok(Some(text)) = figures::whole(came) else { return false };
    assert!(text.len() <= figures::BYTES_MAX && text.len() + 4 <= came.len());
    assert!(
        (0..text.len() + 4)
            .rev()
            .take(16)
            .all(|cut| matches!(figures::whole(&came[..cut]), Ok(None)))
    );
    let lines = figures::readable(text);
    assert!(lines.chars().all(|c| c == '\n' || !c.is_control()));
    // A byte is spelt out as ten characters at most.
    assert!(lines.len() <= 10 * text.len() + 1 && figures::readable(lines.as_bytes()) == lines);
    true
}
