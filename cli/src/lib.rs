//! The `hamlyn` command: a pipe between two terminals, and the tools for measurements and diagnosis.
//! Each subcommand is a module; those that the tour uses, too (`tour/` of the repository), are public.

mod allow;
pub mod arguments;
mod budget;
pub mod ending;
mod environment;
mod exporter;
mod figures;
mod help;
#[cfg(feature = "tls")]
pub mod keys;
mod look;
mod names;
pub mod output;
pub mod perf;
mod pipe;
pub mod progress;
mod prometheus;
#[cfg(feature = "tls")]
mod reach;
mod relay;
mod run;
mod standard;
mod stat;
pub mod tickets;
mod top;
mod why;

use anyhow::{Context, Result, bail};
use arguments::{Cli, Command, PerfCommand};
use clap::{Args, CommandFactory, Parser};
use perf::ends::Test;
use std::io::Write;
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

/// Runs a subcommand of `hamlyn`.
pub fn run(cli: Cli) -> Result<()> {
    let command = cli.command;
    if !command.is_internal() {
        begin(&cli.all);
    }
    match command {
        Command::Tour { .. } => {
            bail!("the tour is a program of its own, hamlyn-tour: see `make run`")
        }
        Command::Recv(arguments) => pipe::recv(&arguments),
        Command::Send(arguments) => pipe::send(&arguments),
        Command::Relay(arguments) => relay::run(&arguments),
        Command::Perf(PerfCommand::Latency(arguments)) => perf::run(Test::Latency, &arguments),
        Command::Perf(PerfCommand::Rate(arguments)) => perf::run(Test::Rate, &arguments),
        Command::Perf(PerfCommand::Bandwidth(arguments)) => perf::run(Test::Bandwidth, &arguments),
        Command::Perf(PerfCommand::Serve(arguments)) => {
            perf::ends::serve(&arguments.name, &arguments.allow, arguments.mode)
        }
        Command::Perf(PerfCommand::Protocols(arguments)) => perf::protocols::run(&arguments),
        Command::Perf(PerfCommand::Curve(arguments)) => perf::curve::run(&arguments),
        Command::Perf(PerfCommand::Idle(arguments)) => perf::idle::run(&arguments),
        Command::Perf(PerfCommand::Crowd(arguments)) => perf::crowd::run(&arguments),
        #[cfg(feature = "tls")]
        Command::Perf(PerfCommand::Remote(arguments)) => perf::remote::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Exporter(arguments) => exporter::run(&arguments),
        Command::Why(arguments) => why::run(&arguments),
        Command::Names(arguments) => names::run(&arguments),
        Command::Setup(arguments) => names::setup(&arguments),
        #[cfg(feature = "tls")]
        Command::Keys(arguments) => keys::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Man { directory } => {
            let cannot = || format!("cannot write manual pages into {}", directory.display());
            help::write_pages(public(), &directory).with_context(cannot)
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut public(), "hamlyn", &mut text);
            output::text(|| std::io::stdout().write_all(&text))
        }
        Command::RunAgent => run::agent::run(),
        Command::RunRank { parent, program } => run::agent::become_rank(parent, &program),
        Command::FarEnd(end) => end.run(),
    }
}

/// The command as users know it, for manual pages and completions: without the subcommands that it
/// starts itself.
fn public() -> clap::Command {
    let all = Cli::command();
    let shown: Vec<_> = all.get_subcommands().filter(|c| !c.is_hide_set()).cloned().collect();
    let public = clap::Command::new("hamlyn").version(env!("CARGO_PKG_VERSION"));
    // Before the command's own description, which it would replace.
    let mut public = arguments::ForAll::augment_args(public);
    if let Some(about) = all.get_about() {
        public = public.about(about.clone());
    }
    if let Some(after) = all.get_after_help() {
        public = public.after_help(after.clone());
    }
    public.propagate_version(true).subcommand_required(true).subcommands(shown)
}
