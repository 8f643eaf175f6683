//! What a job fails with.

use super::Launcher;
use crate::config::ConfigError;
use crate::node::{BuildError, OfferError};
use crate::protocol::GrowError;
use std::format;
use std::io;
use std::string::{String, ToString};
use std::vec::Vec;

/// Something of a job that failed. Unless a case says otherwise nothing was changed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum JobError {
    /// What the launcher has left in the environment makes no sense.
    #[error("{variable} is {value:?}; allowed is {allowed}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// There is no such rank.
    #[error("rank {rank} is none of this job, which has {size}, from 0 to {}", .size - 1)]
    NoRank {
        /// The rank that was named.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// Ranks did not come within the time limit. A fence stays begun: the next call of
    /// [`Job::fence`](super::Job::fence) goes on waiting for the same one.
    #[error("within {} ms not all ranks came; {}", .limit_ms, missing(.ranks))]
    Missing {
        /// Who was missing when the launcher was asked last, a little before or, in a fence that is
        /// gone on with, at most some seconds; empty where it has not said.
        ranks: Vec<u32>,
        /// Milliseconds that were waited.
        limit_ms: u64,
    },
    /// Ranks have ended, so that this one waits for them in vain; empty where the launcher does not
    /// say which.
    #[error("{} ended already, and can be waited for no more", named(.0))]
    Ended(Vec<u32>),
    /// The launcher went away, or ended the connection.
    #[error("{launcher} went away while {doing}")]
    LauncherGone {
        /// Which.
        launcher: Launcher,
        /// What was being done.
        doing: &'static str,
    },
    /// The launcher does not answer.
    #[error("{launcher} did not answer within {limit_ms} ms while {doing}")]
    LauncherSilent {
        /// Which.
        launcher: Launcher,
        /// What was being done.
        doing: &'static str,
        /// Milliseconds that were waited: the call's own time limit, or 30,000 if that is less.
        limit_ms: u64,
    },
    /// The conversation with the launcher is over: what was said could not be told apart any more.
    #[error("nothing more can be asked of {launcher}, as for {doing}: {why}")]
    LauncherLost {
        /// Which.
        launcher: Launcher,
        /// What was to be done.
        doing: &'static str,
        /// What has ended it.
        why: &'static str,
    },
    /// The launcher's answer cannot be, or it refused.
    #[error("{launcher}, while {doing}, said {text:?}")]
    Launcher {
        /// Which.
        launcher: Launcher,
        /// What was being done.
        doing: &'static str,
        /// The beginning of what it said.
        text: String,
    },
    /// The rank has put nothing under this name, or no fence has followed.
    #[error("rank {rank} has put nothing under {found:?} before the last fence")]
    NothingPut {
        /// The rank.
        rank: u32,
        /// The name.
        found: String,
    },
    /// This rank has put something under this name already, which stays.
    #[error("this rank has put something under {found:?} already")]
    PutAlready {
        /// The name.
        found: String,
    },
    /// A name or bytes that are longer than the launcher takes.
    #[error("{what} has {bytes} bytes, and {launcher} takes {max} at most")]
    TooLong {
        /// Whose they are.
        what: &'static str,
        /// How many.
        bytes: usize,
        /// How many are allowed.
        max: usize,
        /// Which launcher.
        launcher: Launcher,
    },
    /// Not the name of something that is put or offered.
    #[error("{found:?} is no name: allowed are 1 to {max} of a-z A-Z 0-9 . _ -")]
    Name {
        /// What was named.
        found: String,
        /// Most bytes.
        max: usize,
    },
    /// This rank offers something of the same kind under this name already.
    #[error("this rank offers another end point of the same kind under {found:?} already")]
    Taken {
        /// The name.
        found: String,
    },
    /// The end point is not one of the job's own manager.
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
    /// The job has ranks on other hosts, and this library speaks with none.
    #[error("rank {rank} is on another host, and this library was built without the feature tls")]
    OtherHost {
        /// One of those.
        rank: u32,
    },
    /// The launcher speaks PMIx, whose library cannot be used. Each process would be a job of its own.
    #[error(
        "this process was started under PMIx ({variable} is set), and its library cannot be used; \
         HAMLYN_PMIX_LIBRARY names another: {why}"
    )]
    PmixLibrary {
        /// What says that the launcher speaks PMIx.
        variable: &'static str,
        /// The file, and what is wrong with it.
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
        /// What was being done.
        doing: &'static str,
        /// What it said.
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
