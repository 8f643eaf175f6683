//! `hamlyn-clan perf`: the experiments of the paper's section 4, and a log, each beside the kernel's own
//! means in the same run. `far` is the other end.
//!
//! - [`ends`]: two processes, each pinned to a processor.
//! - [`clan`], [`sockets`]: the two ends of each measurement.
//! - [`measures`]: which rows there are; [`chart`]: the paper's figures from them.

#![allow(missing_docs)]

mod chart;
mod clan;
mod ends;
mod measures;
mod sockets;

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "hamlyn-clan", version, about = "CLAN on Hamlyn: its figures")]
enum Command {
    /// Measures everything, in some five minutes; prints the rows
    Perf(Perf),
    #[command(hide = true)]
    Far(ends::FarArgs),
}

#[derive(clap::Args, Debug)]
pub struct Perf {
    /// Little of each, to see that all of it works; the figures mean nothing
    #[arg(long)]
    pub short: bool,
    /// Runs of each row, of which the median is taken
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: u32,
    /// The processors of the two ends
    #[arg(long, value_name = "NEAR,FAR", value_delimiter = ',', num_args = 2, default_values_t = [0, 1])]
    pub cores: Vec<usize>,
    /// Writes the rows as lines of JSON
    #[arg(long, value_name = "FILE.jsonl")]
    pub out: Option<PathBuf>,
    /// Writes the paper's Figures 4 to 6 from them
    #[arg(long, value_name = "FILE.svg")]
    pub chart: Option<PathBuf>,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Perf(perf) => measures::run(&perf),
        Command::Far(far) => ends::be(&far),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hamlyn-clan: {e}");
            ExitCode::FAILURE
        }
    }
}
