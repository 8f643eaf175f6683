//! The command line. Errors name the value and what is allowed.

use crate::allow::{Allow, allow};
use crate::help::*;
use crate::look::PAUSE_MIN;
use crate::perf::baseline::PeerArguments;
use crate::perf::ends::EndArguments;
use crate::perf::pin::Cores;
use crate::perf::protocols;
use crate::tour::actor::Role;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hamlyn::control::ServiceName;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Protected messages between programs that do not trust one another, at the speed of memory.
#[derive(Debug, Parser)]
#[command(name = "hamlyn", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Start with `hamlyn tour`.")]
pub struct Cli {
    #[command(flatten)]
    pub all: ForAll,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Args, Debug)]
pub struct ForAll {
    /// No progress bars, which are shown where standard error is a terminal
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what Hamlyn does, in about a minute: send a file, attack the receiver, measure
    ///
    /// First, a receiver and a sender as separate processes (as different users where it has the
    /// right to): FILE is sent as messages, each protocol is at work once, and a stranger tries to do
    /// harm through everything that a process can reach; how each attempt was refused is shown.
    ///
    /// Second, two hosts (network namespaces, or over loopback where those are not permitted): a
    /// message goes from one to the other over TLS, and an attacker on the wire between them reads,
    /// changes, repeats, leaves out and plays again what they say.
    ///
    /// Third, latency, rate and bandwidth are measured against a Unix socket, TCP and a pipe. All of
    /// it stands in a report.
    Tour(TourArguments),
    /// Receive from one `hamlyn send`, to standard output or a file
    ///
    /// If the sender dies midway or the digest is wrong, this says so and exits with a status other
    /// than zero. Then a file (--output) is as it was before; what was written to standard output
    /// stays there.
    #[command(allow_negative_numbers = true, after_help = OF_RECV)]
    Recv(RecvArguments),
    /// Send standard input to `hamlyn recv`
    #[command(allow_negative_numbers = true, after_help = OF_SEND)]
    Send(SendArguments),
    /// Pass on what a publisher of another host publishes to any number of subscribers of this one
    ///
    /// Each sample comes over the network once, and lies here in one place that all subscribers read.
    /// Samples keep their numbers; of those that did not get here subscribers are told with the next.
    /// When the connection ends, or the publisher dies, it connects again, and subscribers stay.
    ///
    /// Subscribers trust it as they trust a publisher: it can change samples, invent them and leave them
    /// out. Its pool, for samples as long as the publisher's may be, is charged to it at once.
    #[command(allow_negative_numbers = true, after_help = OF_RELAY)]
    Relay(RelayArguments),
    /// Measure latency, rate or bandwidth
    ///
    /// Beside each figure stand the limits of these two processors, measured before and after each
    /// run: the raw cache line, one word handed from one to the other; the least checked message, a
    /// bare ring of lines as Hamlyn's is, whose receiver compares key and bounds, deposits 16 bytes,
    /// queues a notification and finds it, and does nothing else; memcpy; and a bare ring that
    /// copies in and out. A run during which the raw line changed by more than
    /// a quarter is made again, and only runs whose raw lines agree within a quarter are compared;
    /// a word such as "near" describes the line and decides nothing.
    #[command(subcommand)]
    Perf(PerfCommand),
    /// Show the counters and links of running processes, each kind of refusal with its own
    ///
    /// Read from outside, without slowing the process, and for its owner only. Of each link: who is
    /// at the other end, how much has gone each way, what waits, who waits for whom, and which path
    /// it takes. Bytes are those of the rings, in lines of 64, headers included; messages, packets
    /// and what waits are as of the last turn of the process.
    #[command(after_help = OF_STAT)]
    Stat(StatArguments),
    /// Show all services at work, the busiest first, again and again
    ///
    /// Those of this user; for root, also those that other users serve to others. In a terminal: q ends
    /// it, l goes from services to links and back. Anywhere else, such as in a pipe or a file, it prints
    /// the table anew after each interval, until it is ended; with --once, one table. A process is asked
    /// once in each interval, and answers beside its messages.
    #[command(after_help = OF_TOP)]
    Top(TopArguments),
    /// Serve the figures of `stat` to Prometheus, over HTTP
    ///
    /// One look serves all who ask within a second. Whoever can connect reads the figures, which the
    /// processes themselves tell their owner alone: with the default address that is every user of
    /// this machine. `stat --prometheus --output FILE` writes a file instead, for the node exporter.
    #[command(after_help = OF_EXPORTER)]
    Exporter(ExporterArguments),
    /// Say why a connection is slow or refused
    ///
    /// Looks at the name, its directories and who listens, and asks the process for its figures
    /// twice, a second apart. Of a service of another host it asks there, and says how far that comes;
    /// no link is made.
    #[command(after_help = OF_WHY)]
    Why(WhyArguments),
    /// List the services that have a name here: user, process, program, age, alive or stale
    #[command(after_help = OF_NAMES)]
    Names(NamesArguments),
    /// Make the directory for services that other users may reach (needs root)
    #[command(after_help = OF_SETUP)]
    Setup(SetupArguments),
    /// Make what hosts prove themselves with: a secret, or certificates
    ///
    /// Prints the settings that use it. A service is then reached from another host as
    /// hamlyn://HOST:PORT/NAME. Files are for their owner alone, and none is written over.
    #[cfg(feature = "tls")]
    #[command(after_help = OF_KEYS)]
    Keys(KeysArguments),
    /// Start a program several times, on this host or on several, as the ranks of a job
    ///
    /// Each process gets a rank, from 0 up, and finds the others with `Job` (`hamlyn::job` in Rust,
    /// `hamlyn.Job` in Python, `h_job_open` in C). HAMLYN_JOB_RANK and HAMLYN_JOB_SIZE are for
    /// scripts. What ranks print is printed here; their standard input is empty. SIGINT, SIGTERM,
    /// SIGHUP, SIGUSR1 and SIGUSR2 are handed on to all of them; a second SIGINT or SIGTERM ends them at
    /// once. When a rank fails, the others are ended (SIGTERM, and SIGKILL after two seconds), and
    /// whatever ranks have started with them; the status is that of the first that failed, or 128 and
    /// the number of the signal that ended it.
    ///
    /// On other hosts the ranks are started through ssh, which must need no password there, by the same
    /// command at the same path; they meet by TLS with a secret of the job's own, which is in no file,
    /// on no command line and in no environment.
    #[command(after_help = OF_RUN)]
    Run(RunArguments),
    /// Write the manual pages into DIRECTORY
    Man { directory: PathBuf },
    /// Print the completions for SHELL
    Completions { shell: clap_complete::Shell },
    /// Print the physical limits between two cores
    #[command(hide = true)]
    Limits {
        #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = size)]
        size: ByteSize,
    },
    /// Starts the ranks of one host, for `hamlyn run`, which speaks to it over standard input
    #[command(hide = true)]
    RunAgent,
    /// Becomes a rank's program, which ends with the process PARENT
    #[command(hide = true)]
    RunRank {
        parent: i32,
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    /// The far end of a measurement of sockets and pipes
    #[command(hide = true)]
    PerfPeer(PeerArguments),
    /// One of the processes of a tour
    #[command(hide = true)]
    TourActor { role: Role },
    /// The far end of `perf idle`, until standard input ends
    #[command(hide = true)]
    PerfIdleEnd { name: String, core: usize, links: u32 },
    /// The far end of a measurement, until standard input ends
    #[command(hide = true)]
    PerfEnd(EndArguments),
    /// One of the two ends of `perf protocols`
    #[command(hide = true)]
    PerfProtocolEnd(protocols::ends::EndArguments),
}

impl Command {
    /// Whether it is one of those that the command starts itself, whose environment its own was.
    pub fn is_internal(&self) -> bool {
        matches!(
            self,
            Self::Limits { .. }
                | Self::RunAgent
                | Self::RunRank { .. }
                | Self::PerfPeer(_)
                | Self::TourActor { .. }
                | Self::PerfIdleEnd { .. }
                | Self::PerfEnd(_)
                | Self::PerfProtocolEnd(_)
        )
    }
}

#[derive(Args, Debug)]
pub struct TourArguments {
    /// The file to send [default: this command itself]
    pub file: Option<PathBuf>,
    /// The second part alone: two hosts, and an attacker on the wire between them
    #[arg(long)]
    pub hosts: bool,
    /// Where to write the report
    #[arg(long, value_name = "PATH", default_value = "hamlyn-tour.html")]
    pub report: PathBuf,
    /// Measure for moments only: to see that everything runs, not for figures
    #[arg(long)]
    pub quick: bool,
}

#[derive(Args, Debug)]
pub struct RecvArguments {
    /// The service's name: up to 64 letters, digits, '_', and, not as the first, '-' and '.'
    #[arg(value_parser = name)]
    pub name: String,
    /// Who may send: "user" (this user only), "anyone", "group:GID" or "group:NAME", of which this
    /// user is a member, or "host:NAME" (this user, and the host with this name in its certificate)
    #[arg(long, value_name = "WHO", default_value = "user", value_parser = allow)]
    pub allow: Allow,
    /// Seconds to wait for a sender [default: for ever]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub wait: Option<Duration>,
    /// Seconds without a byte of the sender's, after which it is sent away [default: 60 for one of another
    /// user or host, for ever for one of this user]
    ///
    /// Another may come, if nothing was written. One of another user or host that is linked and has sent
    /// nothing ends the wait of --wait no later, and gives way when another sender comes.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub idle: Option<Duration>,
    /// Write to FILE, which is there when it is whole, and as it was until then
    ///
    /// A file that is replaced keeps its mode and its owner. Killed by SIGKILL, this command leaves
    /// `.hamlyn-*.part` beside it.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The file is on the disk, not only with the system, before this command ends
    #[arg(long, requires = "output")]
    pub sync: bool,
}

#[derive(Args, Debug)]
pub struct SendArguments {
    /// The service's name, as [USER@]NAME, or on another host as hamlyn://HOST:PORT/NAME
    #[arg(value_parser = name)]
    pub name: String,
    /// Seconds to wait for the receiver to be there
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub wait: Duration,
    /// Seconds in which the receiver takes nothing of what waits for it, after which it is left [default:
    /// 60 for one of another user or host, for ever for one of this user]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub idle: Option<Duration>,
}

#[derive(Args, Debug)]
pub struct RelayArguments {
    /// The publisher's service, as hamlyn://HOST:PORT/NAME, or on this host as [USER@]NAME
    #[arg(value_parser = name)]
    pub name: String,
    /// What it is called here [default: as there]
    #[arg(long = "as", value_name = "NAME", value_parser = name)]
    pub serve_as: Option<String>,
    /// Who may subscribe: "user" (this user only), "anyone", "group:GID" or "group:NAME", of which
    /// this user is a member, or "host:NAME" (this user, and the host with this name in its certificate)
    #[arg(long, value_name = "WHO", default_value = "user", value_parser = allow)]
    pub allow: Allow,
    /// The newest samples that whoever subscribes may ask for
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=65_536))]
    pub history: u32,
    /// The newest samples that are kept for subscribers that have no room now
    #[arg(long, value_name = "NUMBER", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=65_536))]
    pub backlog: u32,
    /// Subscribers at one time
    #[arg(long, value_name = "NUMBER", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub subscribers: u32,
    /// Long samples that a subscriber may have at once
    #[arg(long, value_name = "NUMBER", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub outstanding: u32,
    /// What becomes of samples for a subscriber that is slow; `wait` holds all others, and the link, too
    #[arg(long, value_enum, default_value_t = Slow::DropOldest)]
    pub when_slow: Slow,
    /// The longest samples that the publisher may have
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = size)]
    pub sample_max: ByteSize,
    /// Seconds to wait for the publisher to be there
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub wait: Duration,
    /// Seconds without a connection after which it ends [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub outage: Option<Duration>,
    /// Stay when the publisher says that this was all, and wait for the next under its name
    #[arg(long)]
    pub keep: bool,
}

/// What becomes of samples for a subscriber that is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Slow {
    /// It is waited for
    Wait,
    /// It misses the oldest of those that are kept
    DropOldest,
    /// It misses each for which it has no room
    DropNewest,
    /// It is sent away
    SendAway,
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
    /// Each row is measured between two new processes; rows take turns, so that what disturbs the
    /// machine disturbs all alike. A run during which the raw cache line changed is made again.
    #[command(allow_negative_numbers = true)]
    Protocols(ProtocolsArguments),
    /// What idle links cost: memory, processor time, the time to be noticed; and the start
    Idle(IdleArguments),
    /// More ends than processors: four pairs at once, and a long message beside busy programs
    Crowd(CrowdArguments),
    /// What a peer on another host, idle or busy, costs a message between two processes of this one
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
    /// Runs that the median is taken of
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// The processors of the two ends, which may be one unless both poll [default: two]
    ///
    /// With one processor, such as 0,0, nothing travels from cache to cache, and the raw line and
    /// what is like it are not measured.
    #[arg(long, value_name = "NEAR,FAR", value_parser = cores)]
    pub cores: Option<Cores>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Measure to a `hamlyn perf serve` that runs already, as [USER@]NAME, or on another host as
    /// hamlyn://HOST:PORT/NAME
    #[arg(long, value_name = "NAME")]
    pub to: Option<String>,
    /// Over which kind of link; beside `tls`, a bare TCP connection with TLS is measured, and beside
    /// `fabric`, fi_pingpong, where it is installed
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
    /// Only rows of this name, or whose name begins so, such as tagged or call-memory [default: all]
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
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
    /// Round trips of each run; of the long message at most 200 [default: 500000, 10000 of ends that
    /// sleep]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=u32::MAX as u64 / 2))]
    pub count: Option<u64>,
    /// Runs that the median is taken of
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
    /// Runs that the median is taken of
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
    /// Who may connect: "user" (this user only), "anyone", "group:GID" or "group:NAME", of which this
    /// user is a member, or "host:NAME" (this user, and the host with this name in its certificate)
    #[arg(long, value_name = "WHO", default_value = "user", value_parser = allow)]
    pub allow: Allow,
}

/// Which kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// A ring in shared memory
    Ring,
    /// A link to another host, which is this one: TCP over loopback and TLS
    #[cfg(feature = "tls")]
    Tls,
    /// The same over libfabric, with the provider of HAMLYN_FABRIC_PROVIDER
    #[cfg(feature = "libfabric")]
    Fabric,
}

impl Over {
    /// Over libfabric; no other kind where this program is built without it.
    pub fn is_fabric(self) -> bool {
        self.to_possible_value().is_some_and(|value| value.get_name() == "fabric")
    }
}

/// How an end waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Asks again and again; uses a processor whole
    Polled,
    /// Asks for a while, then sleeps: what programs get unless they say otherwise
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

#[derive(Args, Debug)]
pub struct NamesArguments {
    /// Remove the names that dead processes of this user have left
    #[arg(long, conflicts_with = "json")]
    pub clean: bool,
    /// One JSON object a line, one line a name
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct StatArguments {
    /// One service only, as [USER@]NAME, or on another host as hamlyn://HOST:PORT/NAME [default: all of this user; for root, also those that other
    /// users serve to others]
    #[arg(value_parser = name)]
    pub name: Option<String>,
    /// Also the counters that are 0
    #[arg(long, conflicts_with_all = ["json", "prometheus", "watch"])]
    pub all: bool,
    /// One JSON object a line, one line a process; of all, with `error` where one does not answer
    #[arg(long)]
    pub json: bool,
    /// Metrics for Prometheus, in its text format
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
    /// Write to FILE, which is there when it is whole, and as it was until then: for the textfile
    /// collector of the node exporter, in its folder, with a name that ends in .prom
    #[arg(long, short, value_name = "FILE", requires = "prometheus")]
    pub output: Option<PathBuf>,
    /// Look again and again, with this many seconds in between, 0.2 or more [default: 1]: rates, and
    /// what has gone up
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true)]
    #[arg(value_parser = pause)]
    pub watch: Option<Duration>,
    /// Look so many times [default: until it is interrupted]
    #[arg(long, value_name = "NUMBER", requires = "watch")]
    pub times: Option<u64>,
}

#[derive(Args, Debug)]
pub struct TopArguments {
    /// These services only, as [USER@]NAME, or on other hosts as hamlyn://HOST:PORT/NAME
    #[arg(value_name = "NAME", value_parser = name)]
    pub names: Vec<String>,
    /// Look once, at one interval, and print lines
    #[arg(long)]
    pub once: bool,
    /// A line for each link instead of each service
    #[arg(long)]
    pub links: bool,
    /// Seconds between two looks, 0.2 or more
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = pause)]
    pub interval: Duration,
}

#[derive(Args, Debug)]
pub struct ExporterArguments {
    /// These services only, as [USER@]NAME, or on other hosts as hamlyn://HOST:PORT/NAME [default: all of this user; for root, also those that other
    /// users serve to others]
    #[arg(value_name = "NAME", value_parser = name)]
    pub names: Vec<String>,
    /// The address and port to listen at
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
    pub listen: SocketAddr,
    /// Allow an address that other machines can reach
    #[arg(long)]
    pub beyond_loopback: bool,
}

#[derive(Args, Debug)]
pub struct WhyArguments {
    /// The service, as [USER@]NAME, or on another host as hamlyn://HOST:PORT/NAME
    #[arg(value_parser = name)]
    pub name: String,
}

#[derive(Args, Debug)]
pub struct SetupArguments {
    /// Users who will serve: each gets a directory there, which nobody else can then take
    #[arg(value_name = "USER")]
    pub users: Vec<String>,
    /// Print the lines of a tmpfiles.d(5) file that does this whenever the machine starts, and
    /// make nothing
    #[arg(long)]
    pub tmpfiles: bool,
}

#[cfg(feature = "tls")]
#[derive(Args, Debug)]
pub struct KeysArguments {
    /// The file of the secret, or the directory of the certificates [default: hamlyn.secret,
    /// hamlyn-keys]
    pub path: Option<PathBuf>,
    /// A certificate for this host, under each of these names and addresses, signed by the authority
    /// in the directory, which is made if there is none
    #[arg(long, value_name = "NAME[,NAME..]")]
    pub certificate: Vec<String>,
    /// Days for which certificates are good, as far as their authority is, which is made for as many
    #[arg(long, value_name = "NUMBER", default_value_t = 825, requires = "certificate")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
    /// Write over files of the same names, but not over an authority
    #[arg(long)]
    pub force: bool,
}

#[derive(Args, Debug)]
pub struct RunArguments {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub ranks: u32,
    /// Hosts, by names or addresses under which they reach one another; ranks go to them in blocks, as
    /// even as can be [default: this host alone]
    #[arg(long, value_name = "HOST[,HOST..]", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// What starts a command on another host: words, behind which the host and the command are put
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub rsh: String,
    /// Where this command is on other hosts [default: where it is here]
    #[arg(long, value_name = "PATH")]
    pub hamlyn: Option<PathBuf>,
    /// A variable for all ranks; those of this host have all others of here, too
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Begin each line of output with the rank that printed it
    #[arg(long, short)]
    pub label: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// A service's name, which is given on as it is; the error says what is allowed.
fn name(text: &str) -> Result<String, String> {
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

fn variable(text: &str) -> Result<(String, String), String> {
    let found = text.split_once('=').filter(|(name, _)| !name.is_empty());
    found
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "a variable is NAME=VALUE".to_owned())
}

fn size(text: &str) -> Result<ByteSize, String> {
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

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "a time limit is a number of seconds, 0 or more, such as 2.5".to_owned())
}

fn pause(text: &str) -> Result<Duration, String> {
    let pause = seconds(text).ok().filter(|pause| *pause >= PAUSE_MIN);
    pause.ok_or_else(|| "a pause is a number of seconds, 0.2 or more, such as 2.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_value_is_named_with_what_is_allowed() {
        let error = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap_err().to_string();
        let text = error("hamlyn perf latency --size many");
        assert!(text.contains("many") && text.contains("64KiB"), "{text}");
        let text = error("hamlyn perf latency --mode quickly");
        assert!(text.contains("quickly") && text.contains("adaptive"), "{text}");
        let text = error("hamlyn recv --allow group:x there");
        assert!(text.contains("group:x") && text.contains("group:GID"), "{text}");
        let text = error("hamlyn perf protocols --cores 1,1");
        assert!(text.contains("1,1") && text.contains("0,1"), "{text}");
        let text = error("hamlyn perf latency --cores 1");
        assert!(text.contains("'1'") && text.contains("0,1"), "{text}");
        let text = error("hamlyn send --wait -1 there");
        assert!(text.contains("-1") && text.contains("0 or more"), "{text}");
    }
}
