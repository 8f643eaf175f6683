//! The errors of a job.

use super::launcher::Launcher;
use crate::config::ConfigError;
use crate::node::{BuildError, OfferError};
use crate::protocol::GrowError;
use std::format;
use std::io;
use std::string::{String, ToString};
use std::vec::Vec;

/// An operation of a job failed. Unless a variant says otherwise nothing was changed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum JobError {
    /// The launcher left an invalid value in the environment.
    #[error("{variable} is {value:?}; allowed is {allowed}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// There is no such rank.
    #[error("rank {rank} is none of this job, which has {size}, from 0 to {}", .size - 1)]
    NoRank {
        /// The rank that was named.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// Some ranks did not come within the time limit. A fence stays begun: the next call of
    /// [`Job::fence`](super::Job::fence) goes on waiting for the same one.
    #[error("within {} ms not all ranks came; {}", .limit_ms, missing(.ranks))]
    Missing {
        /// The missing ranks by the launcher's last answer, from shortly before or, for a fence
        /// that was begun by an earlier call, at most some seconds old; empty if there was no
        /// answer.
        ranks: Vec<u32>,
        /// Milliseconds that the call waited.
        limit_ms: u64,
    },
    /// Ranks have ended, so that this one waits for them in vain; empty if the launcher does not
    /// name them.
    #[error("{} ended already, and can be waited for no more", named(.0))]
    Ended(Vec<u32>),
    /// The launcher went away, or ended the connection.
    #[error("{launcher} went away while {doing}")]
    LauncherGone {
        /// The launcher.
        launcher: Launcher,
        /// The operation.
        doing: &'static str,
    },
    /// The launcher does not answer.
    #[error("{launcher} did not answer within {limit_ms} ms while {doing}")]
    LauncherSilent {
        /// The launcher.
        launcher: Launcher,
        /// The operation.
        doing: &'static str,
        /// Milliseconds that the call waited: the call's own time limit, or 30,000 if that is less.
        limit_ms: u64,
    },
    /// The conversation with the launcher is over: its answers could no longer be told apart.
    #[error("nothing more can be asked of {launcher}, as for {doing}: {why}")]
    LauncherLost {
        /// The launcher.
        launcher: Launcher,
        /// The operation.
        doing: &'static str,
        /// The reason for the end.
        why: &'static str,
    },
    /// The launcher's answer is not valid, or a refusal.
    #[error("{launcher}, while {doing}, said {text:?}")]
    Launcher {
        /// The launcher.
        launcher: Launcher,
        /// The operation.
        doing: &'static str,
        /// The beginning of the answer.
        text: String,
    },
    /// The rank has put no bytes under this name, or no fence has followed.
    #[error("rank {rank} has put nothing under {found:?} before the last fence")]
    NothingPut {
        /// The rank.
        rank: u32,
        /// The name.
        found: String,
    },
    /// This rank has put bytes under this name already, which stay.
    #[error("this rank has put something under {found:?} already")]
    PutAlready {
        /// The name.
        found: String,
    },
    /// A name or bytes that are longer than the launcher takes.
    #[error("{what} has {bytes} bytes, and {launcher} takes {max} at most")]
    TooLong {
        /// The part that is too long: the name or the bytes.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest allowed.
        max: usize,
        /// The launcher.
        launcher: Launcher,
    },
    /// A name that is not valid for `put` or `offer`.
    #[error("{found:?} is no name: allowed are 1 to {max} of a-z A-Z 0-9 . _ -")]
    Name {
        /// The name.
        found: String,
        /// Most bytes.
        max: usize,
    },
    /// This rank offers an end point of the same kind under this name already.
    #[error("this rank offers another end point of the same kind under {found:?} already")]
    Taken {
        /// The name.
        found: String,
    },
    /// The end point belongs to another manager than the job's.
    #[error("the end point was not made with the job's manager (Job::manager)")]
    OtherManager,
    /// The rank did not offer it within the time limit.
    #[error("rank {rank} has offered nothing of this kind under {found:?} within the time limit")]
    NotOffered {
        /// The rank.
        rank: u32,
        /// The name.
        found: String,
    },
    /// The rank did not answer a request for a link within the time limit; the request goes on.
    #[error(
        "rank {rank} has not answered within the time limit: it answers when it takes the events of \
         its node (Ranks::next_event)"
    )]
    NotLinked {
        /// The rank.
        rank: u32,
    },
    /// The job has ranks on other hosts, but this library was built without connections to other
    /// hosts.
    #[error("rank {rank} is on another host, and this library was built without the feature tls")]
    OtherHost {
        /// A rank on another host.
        rank: u32,
    },
    /// The launcher speaks PMIx, but its library cannot be used. Each process would be a job of its
    /// own.
    #[error(
        "this process was started under PMIx ({variable} is set), and its library cannot be used; \
         HAMLYN_PMIX_LIBRARY names another: {why}"
    )]
    PmixLibrary {
        /// The variable that shows that the launcher speaks PMIx.
        variable: &'static str,
        /// The file, and the fault in it.
        why: String,
    },
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The service through which the other ranks connect.
    #[error(transparent)]
    Offer(#[from] OfferError),
    /// An end point, or the link for one.
    #[error(transparent)]
    Grow(#[from] GrowError),
    /// The system refused.
    #[error("while {doing}: {error}")]
    Os {
        /// The operation.
        doing: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// `rank 3`, `ranks 2, 3`.
fn named(ranks: &[u32]) -> String {
    if ranks.is_empty() {
        return "ranks that the launcher does not name".into();
    }
    let numbers: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

fn missing(ranks: &[u32]) -> String {
    match ranks {
        [] => "the launcher does not say which are missing".to_string(),
        ranks => format!("missing: {}", named(ranks)),
    }
}
