//! `hamlyn-vmmc paper`: the paper's experiments (*Design Choices in the SHRIMP System*, 1998, 3 and 4), asked
//! again of this machine. Each program is compiled from the source tree and runs as it is; `meddle.c`, preloaded,
//! counts its messages and makes them cost what a lesser network interface would.
//!
//! - [`programs`]: the programs, and one run of one of them.
//! - [`experiments`]: which runs make which row; the paper's values.
//! - [`model`]: sixteen nodes, from what sixteen processes did here.
//! - [`chart`]: the rows as bars.

#![allow(missing_docs)]

mod chart;
mod experiments;
mod model;
mod programs;

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "hamlyn-vmmc", version, about = "VMMC on Hamlyn: the paper's experiments")]
enum Command {
    /// Runs all experiments, in some ten minutes; prints the rows. Needs a C compiler, the source tree, the
    /// command `hamlyn`, and libhamlyn_vmmc.so beside this program
    Paper(Paper),
}

#[derive(clap::Args, Debug)]
pub struct Paper {
    /// Small sizes and one run, to see that all of it works; the figures mean nothing
    #[arg(long)]
    pub short: bool,
    /// Runs of each, in turn, of which the median is taken
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: u32,
    /// Processes where messages are counted
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=16))]
    pub ranks: u32,
    /// The command `hamlyn`
    #[arg(long, value_name = "PATH", default_value = "hamlyn")]
    pub hamlyn: PathBuf,
    /// The folder of the layers in the source tree
    #[arg(long, value_name = "DIR", default_value = "layers")]
    pub layers: PathBuf,
    /// Only programs with this in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Writes the rows as lines of JSON
    #[arg(long, value_name = "FILE.jsonl")]
    pub out: Option<PathBuf>,
    /// Writes the rows of programs as a chart
    #[arg(long, value_name = "FILE.svg")]
    pub chart: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Command::Paper(paper) = Command::parse();
    match experiments::run(&paper) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hamlyn-vmmc: {e}");
            ExitCode::FAILURE
        }
    }
}
