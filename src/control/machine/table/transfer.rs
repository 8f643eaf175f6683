//! A ring that travels from one end of a link to the other.

/// A ring on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control::machine) enum Transfer {
    /// Not begun, or refused.
    None,
    /// Ours: waits for TAKE.
    Offered { bytes: u64 },
    /// Ours: waits for HELD.
    Passed { bytes: u64, until_ns: u64 },
    /// Ours: the other end says that it has it and has paid for it; waits for a receiver.
    Said { bytes: u64, until_ns: u64 },
    /// Ours: a receiver sees whether it is paid for, and touches it.
    Touching { bytes: u64 },
    /// Theirs: waits for a receiver.
    Wanted { bytes: u64, until_ns: u64 },
    /// Theirs: a receiver waits for it.
    Taking { bytes: u64 },
    /// There.
    Held,
    /// Ours: it was not mapped in time; an answer that comes later means nothing.
    Lapsed,
}

impl Transfer {
    /// Its deadline.
    pub fn until_ns(&self) -> Option<u64> {
        match self {
            Self::Passed { until_ns, .. }
            | Self::Said { until_ns, .. }
            | Self::Wanted { until_ns, .. } => Some(*until_ns),
            _ => None,
        }
    }
}
