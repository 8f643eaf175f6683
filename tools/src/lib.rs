//! The common part of this repository's programs, the command and the tour: how they begin, print and
//! end; and [`perf`], which measures.

pub mod allow;
pub mod arguments;
pub mod ending;
mod environment;
pub mod output;
pub mod perf;
pub mod progress;
#[cfg(feature = "tls")]
pub mod secret;
pub mod serving;
pub mod standard;
pub mod tickets;

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Parses the command line of this process, runs it, and says the error.
pub fn main<C: Parser>(run: impl FnOnce(C) -> Result<()>) -> ExitCode {
    // Beyond the limit on file sizes a write returns an error; the signal does not end the process,
    // which would leave a partial file behind. A handler, not an ignored signal: child processes do
    // not inherit it.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::<AtomicBool>::default());
    // Free while there is one thread; later the kernel takes some 20 ms for it.
    hamlyn::os::sys::register_barrier();
    let done = match C::try_parse() {
        Ok(command) => run(command),
        Err(error) if error.use_stderr() => error.exit(),
        // The help, or the version.
        Err(text) => output::text(|| text.print()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<output::ReaderGone>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hamlyn: {}", output::in_words(&error));
            ExitCode::FAILURE
        }
    }
}

/// What each command does before its work: shows bars or not, and reports misspelt variables.
pub fn begin(all: &arguments::ForAll) {
    progress::show(!all.quiet);
    environment::say_unknown();
}
