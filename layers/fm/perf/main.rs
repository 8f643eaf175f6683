//! `hamlyn-fm perf`: Fast Messages beside the raw interface, sockets and memcpy of the same run, and
//! beside the figures of the paper. `hamlyn-fm` has no other command for users; `end` is the other end.
//!
//! - [`ends`]: two processes, each pinned to a processor, and what they send.
//! - [`sockets`], [`mix`]: the kernel's sockets, and lengths as those of section 2.1.
//! - [`table`]: one row of the result, its reference beside it, and the curves.
//! - [`measures`]: which rows there are.

#![allow(missing_docs)]

mod ends;
mod measures;
mod mix;
mod sockets;
mod table;

use clap::{Args, Parser, Subcommand};
use ends::Test;
use std::path::PathBuf;
use std::process::ExitCode;

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "hamlyn-fm", version, about = "Fast Messages on Hamlyn: its figures")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures everything; prints a table with the reference of each row.
    Perf(Perf),
    #[command(hide = true)]
    End {
        #[arg(long)]
        core: usize,
        #[arg(long)]
        credit: u32,
    },
}

#[derive(Args, Debug)]
pub struct Perf {
    /// Prints JSON rows; the table goes to the standard error output
    #[arg(long)]
    pub json: bool,
    /// Few messages, to see that all of it works; the figures mean nothing
    #[arg(long)]
    pub quick: bool,
    /// Runs of each row, of which the median is taken
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: u32,
    /// The processors of the two ends
    #[arg(long, value_name = "NEAR,FAR", value_delimiter = ',', num_args = 2, default_values_t = [0, 1])]
    pub cores: Vec<usize>,
    /// Credit that each end gives the other, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = hamlyn_fm::Config::default().credit_bytes)]
    pub credit: u32,
    /// Writes the curves of the paper's Figures 3 to 6 as an SVG file
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    /// The `hamlyn` command, which measures the raw line [default: beside this one, or in the path]
    #[arg(long, value_name = "FILE")]
    pub hamlyn: Option<PathBuf>,
    /// The compiler of MPI over Fast Messages; without it, the rows of MPI are left out
    #[arg(long, value_name = "FILE")]
    pub mpicc: Option<PathBuf>,
}

#[derive(Parser)]
struct OneTest {
    #[command(flatten)]
    test: Test,
}

/// A test of a line between the two ends.
pub fn parse_test<'a>(words: impl Iterator<Item = &'a str>) -> Outcome<Test> {
    Ok(OneTest::try_parse_from(words)?.test)
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Perf(perf) => measures::run(&perf),
        Command::End { core, credit } => ends::far(core, credit),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hamlyn-fm: {e}");
            ExitCode::FAILURE
        }
    }
}
