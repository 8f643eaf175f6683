//! The `hamlyn` command: a newcomer's first look, a pipe between two terminals, and the tool that
//! measures. Each subcommand is a module; this file says which there are.

#![allow(dead_code)] // Until the commands use the library.

mod arguments;
mod perf;
mod progress;
mod report;

use anyhow::Result;
use arguments::{Cli, Command};
use clap::{CommandFactory, Parser};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hamlyn: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Man { directory } => {
            std::fs::create_dir_all(&directory)?;
            clap_mangen::generate_to(Cli::command(), directory)?;
            Ok(())
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "hamlyn", &mut std::io::stdout());
            Ok(())
        }
        Command::PerfPeer(arguments) => perf::baseline::run_peer(arguments),
        Command::Limits { size } => perf::print_limits(size.as_u64() as usize),
        _ => anyhow::bail!("this part of the command is not there yet"),
    }
}
