//! The record of a peer's refused packets, for each link, up to the peer's disconnection.
//!
//! Never: a sender whose ticket was revoked is taken for one that guesses; a peer's record grows without
//! a bound.

use super::receive::Misbehaviour;
use crate::config::Config;
use crate::wire::Key;
use core::ops::Range;
use std::boxed::Box;
use std::collections::BTreeSet;

/// The charge against the sender of a refused packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalCharge {
    /// No ticket ever had its key.
    Guess,
    /// Its ticket has been revoked.
    Stale,
    Other,
}

/// Refused packets of a peer: mostly none.
#[derive(Debug, Default)]
pub(crate) struct Conduct(Option<Box<ConductRecord>>);

#[derive(Debug, Default)]
struct ConductRecord {
    wrong_keys: u32,
    /// Of either ring: lines that were accepted when wrong keys were last forgiven, and lines
    /// refused.
    forgiven_at: [u64; 2],
    refused: [u64; 2],
    /// Packets refused since the link was made, and those among them with keys that tickets once had.
    packets: u64,
    stale: u64,
    /// Refusals since `since_ns`.
    refusals: u32,
    since_ns: u64,
    /// Former keys of which the peer got a notice since `told_since_ns`.
    told: BTreeSet<u64>,
    told_since_ns: u64,
}

/// Accepted lines for which one wrong key is forgiven. A key has 2^64 values: at this
/// price a core that sends lines for a lifetime guesses none of them.
const FORGIVEN_AFTER: u64 = 1024;

/// Packets with former keys that count as one refusal. An honest sender has a long message, or many
/// short ones, on the way when its ticket is revoked, and sends few packets after it has heard of that.
const STALE_PER_REFUSAL: u64 = 64;

/// Changed keys of which a peer gets a notice in a second: a bound on memory, and on the time that the
/// notices take.
const TOLD_MAX: usize = 1024;

impl Conduct {
    /// Packets refused since the link was made.
    pub fn packets(&self) -> u64 {
        self.0.as_ref().map_or(0, |record| record.packets)
    }

    /// Counts the refusal of the packet that lies at these `lines` of a ring. A key has 2^64 values:
    /// after a few thousand wrong ones the guesser is sent away, long before it can find one.
    pub fn refused(
        &mut self,
        config: &Config,
        refusal: RefusalCharge,
        is_bulk: bool,
        lines: Range<u64>,
        now_ns: impl FnOnce() -> u64,
    ) -> Option<Misbehaviour> {
        let record = self.0.get_or_insert_default();
        let ring = is_bulk as usize;
        let accepted = lines.start - record.refused[ring];
        record.refused[ring] += lines.end - lines.start;
        record.packets += 1;
        if refusal == RefusalCharge::Stale {
            record.stale += 1;
            if !record.stale.is_multiple_of(STALE_PER_REFUSAL) {
                return None;
            }
        }
        if refusal == RefusalCharge::Guess {
            let forgiven = (accepted - record.forgiven_at[ring]) / FORGIVEN_AFTER;
            record.forgiven_at[ring] += forgiven * FORGIVEN_AFTER;
            let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
            record.wrong_keys = record.wrong_keys.saturating_sub(forgiven).saturating_add(1);
            if record.wrong_keys >= config.wrong_keys_max {
                return Some(Misbehaviour::Guessing { wrong_keys: record.wrong_keys });
            }
        }
        record.refusals = record.refusals.saturating_add(1);
        if config.refusals_per_second_max != 0 && record.refusals >= config.refusals_per_second_max
        {
            let now = now_ns();
            if now.saturating_sub(record.since_ns) < 1_000_000_000 {
                return Some(Misbehaviour::Noise { refusals: record.refusals });
            }
            (record.since_ns, record.refusals) = (now, 0);
        }
        None
    }

    /// Whether the peer is to get a notice that this key is no longer valid: one for each key.
    pub fn is_to_be_told(&mut self, key: Key, now_ns: impl FnOnce() -> u64) -> bool {
        let record = self.0.get_or_insert_default();
        if record.told.contains(&key.0) {
            return false;
        }
        if record.told.len() == TOLD_MAX {
            let now = now_ns();
            if now.saturating_sub(record.told_since_ns) < 1_000_000_000 {
                return false;
            }
            record.told.clear();
            record.told_since_ns = now;
        }
        record.told.insert(key.0)
    }
}
