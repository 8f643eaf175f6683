//! The programs that start the ranks of a job.

use core::fmt;

/// The program that started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum Launcher {
    /// `hamlyn run`.
    Run,
    /// A launcher that speaks PMIx: Open MPI's, PRRTE's, Slurm's.
    Pmix,
    /// A launcher that speaks PMI-1: MPICH's (hydra).
    Pmi1,
    /// No launcher: the job has one rank.
    None,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Run => "hamlyn run",
            Self::Pmix => "a launcher that speaks PMIx",
            Self::Pmi1 => "a launcher that speaks PMI-1",
            Self::None => "no launcher",
        })
    }
}
