//! The `hamlyn` command: a pipe between two terminals, and the tools for measurements and diagnosis.
//! Each subcommand is a module; `tools/` of the repository has the common part of the programs, and
//! `hamlyn perf`.

mod arguments;
mod budget;
mod exporter;
mod figures;
mod findings;
mod help;
#[cfg(feature = "tls")]
mod keys;
mod look;
mod names;
mod pipe;
mod prometheus;
#[cfg(feature = "tls")]
mod reach;
mod relay;
mod run;
mod stat;
mod top;
mod why;
mod words;

use anyhow::{Context, Result, bail};
use arguments::{Cli, Command};
use clap::{Args, CommandFactory};
use hamlyn_tools::arguments::{ForAll, PerfCommand};
use hamlyn_tools::perf::ends::Test;
use hamlyn_tools::{begin, output, perf};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    hamlyn_tools::main(run)
}

/// Runs a subcommand of `hamlyn`.
fn run(cli: Cli) -> Result<()> {
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
    let mut public = ForAll::augment_args(public);
    if let Some(about) = all.get_about() {
        public = public.about(about.clone());
    }
    if let Some(after) = all.get_after_help() {
        public = public.after_help(after.clone());
    }
    public.propagate_version(true).subcommand_required(true).subcommands(shown)
}
