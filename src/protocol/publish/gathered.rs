//! A long sample that comes from another host in parts, and the memory in which they are put
//! together: this process's own, or a place in the pool of a relay.
//!
//! Never: more bytes come than the first part has announced, or than the subscriber takes.

use super::publisher::{Lender, Loan};
use super::sample::SampleBody;
use super::{LongSamples, PART};
use std::format;
use std::string::String;
use std::vec::Vec;

/// The parts of a sample that have arrived.
pub(super) struct GatheredSample {
    pub number: u64,
    /// Bytes of the whole.
    length: usize,
    to: PartTarget,
}

enum PartTarget {
    Own(Vec<u8>),
    /// With the count of bytes that have arrived.
    Lent(Loan, usize),
}

impl GatheredSample {
    /// Begins a sample with its first part; returns that part's bytes of the sample, too.
    pub fn begin<'a>(
        long: LongSamples,
        lender: Option<&Lender>,
        number: u64,
        part: &'a [u8],
    ) -> Result<(Self, &'a [u8]), String> {
        let cut_off = || format!("the first part of a sample, of {} bytes", part.len());
        let (length, bytes) = part.split_first_chunk().ok_or_else(cut_off)?;
        let length = u64::from_le_bytes(*length);
        let LongSamples::Parts(most) = long else {
            return Err("a part of a sample, and there are none".into());
        };
        if length > most {
            return Err(format!("a sample of {length} bytes in parts, and {most} are the most"));
        }
        // It is at most the limit that this side has announced.
        let length = length as usize;
        let to = match lender.and_then(|lender| lender.lend(length).ok()) {
            Some(loan) => PartTarget::Lent(loan, 0),
            None => PartTarget::Own(Vec::with_capacity(length)),
        };
        Ok((Self { number, length, to }, bytes))
    }

    /// Whether the sample is complete with these bytes; `word` is that of a part.
    pub fn add(&mut self, part: &[u8], word: u32) -> Result<bool, String> {
        if word != part.len() as u32 | PART {
            return Err(format!("a message between the parts of sample {}", self.number));
        }
        let come = match &self.to {
            PartTarget::Own(bytes) => bytes.len(),
            PartTarget::Lent(_, come) => *come,
        };
        let (length, left) = (self.length, self.length - come);
        if part.len() > left || (part.is_empty() && left > 0) {
            return Err(format!(
                "a part of {} bytes of a sample of {length}, of which {left} are left",
                part.len()
            ));
        }
        match &mut self.to {
            PartTarget::Own(bytes) => bytes.extend_from_slice(part),
            PartTarget::Lent(loan, come) => {
                loan[*come..*come + part.len()].copy_from_slice(part);
                *come += part.len();
            }
        }
        Ok(part.len() == left)
    }

    /// The whole sample.
    pub fn into_body(self) -> SampleBody {
        match self.to {
            PartTarget::Own(bytes) => SampleBody::boxed(bytes.into()),
            PartTarget::Lent(loan, _) => SampleBody::lent(loan),
        }
    }
}
