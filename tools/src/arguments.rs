//! The command line of `hamlyn perf`, and the common arguments of all programs.

use crate::allow::{Allow, allow};
use crate::perf::pin::Cores;
use bytesize::ByteSize;
use clap::{Args, Subcommand, ValueEnum};
use hamlyn::control::ServiceName;
use std::fmt;

/// Options of every command.
#[derive(Args, Debug)]
pub struct ForAll {
    /// Show no progress bars (they appear only if standard error is a terminal)
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

#[derive(Debug, Subcommand)]
pub enum PerfCommand {
    /// The time of a message one way: half of a ping-pong
    #[command(allow_negative_numbers = true)]
    Latency(PerfArguments),
    /// Messages a second, one after another
    #[command(allow_negative_numbers = true)]
    Rate(PerfArguments),
    /// Bytes a second, into the message area of the receiver
    #[command(allow_negative_numbers = true)]
    Bandwidth(PerfArguments),
    /// The protocols beside the raw interface, in one run: the time, the rate, the memory
    ///
    /// Each row is measured between two new processes. Rows take turns, so that a disturbance of
    /// the machine affects all alike. A run during which the raw cache line changed is repeated.
    #[command(allow_negative_numbers = true)]
    Protocols(ProtocolsArguments),
    /// Latency and rate by the length of the message, from 8 bytes to 1 MiB
    ///
    /// Each row stands beside messages of 16 bytes, the bare checked ring and a Unix stream socket,
    /// measured before and after each of its runs.
    Curve(CurveArguments),
    /// The cost of idle links: memory, processor time, the delay of a message, and the start
    Idle(IdleArguments),
    /// More ends than processors: four pairs at once, and a long message beside busy programs
    Crowd(CrowdArguments),
    /// The cost of a peer on another host, idle or busy, for messages between two local processes
    #[cfg(feature = "tls")]
    Remote(RemoteArguments),
    /// The far end for `--to NAME`, until it is interrupted
    Serve(ServeArguments),
}

#[derive(Args, Clone, Debug)]
pub struct PerfArguments {
    /// Bytes of a message, such as 16, 64KiB or 1MiB [default: 16; bandwidth: 1MiB]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub size: Option<ByteSize>,
    /// Messages (latency: round trips) of each run [default: by test and mode, about a second]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// How each end waits for messages
    #[arg(long, value_enum, default_value_t = Mode::Polled)]
    pub mode: Mode,
    /// Idle links of the receiver beside the busy one
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub links: u32,
    /// Runs, of which the median is taken
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// The processors of the two ends, which may be one unless both poll [default: two]
    ///
    /// With one processor, such as 0,0, nothing travels from cache to cache, so the raw line and
    /// similar limits are not measured.
    #[arg(long, value_name = "NEAR,FAR", value_parser = cores)]
    pub cores: Option<Cores>,
    /// Measure messages of this length, too, before and after each run, and show the ratio to them
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub beside: Option<ByteSize>,
    /// Measure a Unix stream socket, too [default: a latency in modes that sleep]
    #[arg(long, conflicts_with_all = ["to", "over"])]
    pub socket: bool,
    /// Whether memcpy and the bare two-copy ring stand beside the figure
    #[arg(skip = true)]
    pub has_copies: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Measure to a `hamlyn perf serve` that runs already, as [USER@]NAME, or on another host as
    /// hamlyn://HOST:PORT/NAME
    #[arg(long, value_name = "NAME")]
    pub to: Option<String>,
    /// The kind of link; beside `tls`, a bare TCP connection with TLS is measured, and beside
    /// `fabric`, fi_pingpong, if it is installed
    #[arg(long, value_enum, default_value_t = Over::Ring, conflicts_with = "to")]
    pub over: Over,
}

#[derive(Args, Clone, Debug)]
pub struct ProtocolsArguments {
    /// Messages (latency: round trips) of each run [default: by row, some tenths of a second]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Runs of each row, of which the median is taken
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// The processors of the two ends [default: two that this process may use]
    #[arg(long, value_name = "NEAR,FAR", value_parser = two_cores)]
    pub cores: Option<Cores>,
    /// Only rows with this name or prefix, such as tagged or call-memory [default: all]
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Print one JSON object for each row instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug, Default)]
pub struct CurveArguments {
    /// Only messages of this length [default: 17 lengths from 8 bytes to 1 MiB]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub size: Vec<ByteSize>,
    /// Messages (latency: round trips) of each run [default: by length, a tenth of a second]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Runs of each row, of which the median is taken
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// The processors of the two ends [default: two that this process may use]
    #[arg(long, value_name = "NEAR,FAR", value_parser = two_cores)]
    pub cores: Option<Cores>,
    /// Print one JSON object for each row instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct IdleArguments {
    /// Idle links
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=60_000))]
    pub links: u32,
    /// Messages on idle links, each after 20,000 round trips on a busy one
    #[arg(long, value_name = "NUMBER", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub count: u32,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct CrowdArguments {
    /// Round trips of each run; of the long message at most 200 [default: 500000, or 10000 if the
    /// ends sleep]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=u32::MAX as u64 / 2))]
    pub count: Option<u64>,
    /// Runs, of which the median is taken
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Print one JSON object for each row instead of a table
    #[arg(long)]
    pub json: bool,
}

#[cfg(feature = "tls")]
#[derive(Args, Clone, Debug)]
pub struct RemoteArguments {
    /// Round trips of each run [default: 500000]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=u32::MAX as u64 / 2))]
    pub count: Option<u64>,
    /// Runs, of which the median is taken
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Print one JSON object for each row instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct ServeArguments {
    /// The service's name
    #[arg(value_parser = name)]
    pub name: String,
    /// How it waits for messages
    #[arg(long, value_enum, default_value_t = Mode::Adaptive)]
    pub mode: Mode,
    /// The peers that may connect: "user" (this user only), "anyone", "group:GID" or "group:NAME",
    /// of which this user is a member, or "host:NAME" (this user, and the host with this name in
    /// its certificate)
    #[arg(long, value_name = "WHO", default_value = "user", value_parser = allow)]
    pub allow: Allow,
}

/// The kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// A ring in shared memory
    Ring,
    /// A link to another host, which is this one: TLS over TCP on loopback
    #[cfg(feature = "tls")]
    Tls,
    /// The same over libfabric, with the provider of HAMLYN_FABRIC_PROVIDER
    #[cfg(feature = "libfabric")]
    Fabric,
}

impl Over {
    /// Over libfabric; always false in a build without it.
    pub fn is_fabric(self) -> bool {
        self.to_possible_value().is_some_and(|value| value.get_name() == "fabric")
    }
}

/// How an end waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Polls without a pause, on a processor of its own
    Polled,
    /// Polls for a while, then sleeps: the default of programs
    Adaptive,
    /// Sleeps at once
    Blocking,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Polled => "polled",
            Self::Adaptive => "adaptive",
            Self::Blocking => "blocking",
        })
    }
}

/// Checks a service's name and returns it unchanged; the error says what is allowed.
pub fn name(text: &str) -> Result<String, String> {
    match hamlyn::control::is_of_other_host(text) {
        #[cfg(feature = "tls")]
        true => {
            text.parse::<hamlyn::control::hosts::HostName>().map_err(|e| e.to_string()).map(drop)?
        }
        #[cfg(not(feature = "tls"))]
        true => {}
        false => text.parse::<ServiceName>().map_err(|e| e.to_string()).map(drop)?,
    }
    Ok(text.to_owned())
}

pub fn size(text: &str) -> Result<ByteSize, String> {
    text.parse().map_err(|_| "a size is a number of bytes, such as 16, 64KiB or 1MiB".to_owned())
}

fn cores(text: &str) -> Result<Cores, String> {
    text.split_once(',')
        .and_then(|(near, far)| Some(Cores { near: near.parse().ok()?, far: far.parse().ok()? }))
        .ok_or_else(|| "processors are two numbers, such as 0,1".to_owned())
}

/// Two processors as `NEAR,FAR`; the error says what is allowed.
pub fn two_cores(text: &str) -> Result<Cores, String> {
    cores(text)
        .ok()
        .filter(|cores| !cores.are_one())
        .ok_or_else(|| "two processors are two different numbers, such as 0,1".to_owned())
}
