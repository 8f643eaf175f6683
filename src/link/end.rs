//! How a link ended.

/// How a link ended, as its carrier and the control plane see it. Applications get a `node::CloseReason`, which
/// describes a peer's violation in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkEnd {
    /// The other end said goodbye; everything that it wrote is complete.
    Graceful,
    /// Its process died.
    Died,
    /// Its process lives and closed the connection without a word.
    HungUp,
    /// It sent something that no honest process sends.
    Violation,
    /// It accuses this process of that.
    Expelled,
    /// It reports that this process is too slow for it.
    TooSlow,
    /// This process can no longer watch it.
    Unwatched,
}
