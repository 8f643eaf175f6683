//! The command line. Errors name the value and the values that are allowed.

use crate::help::*;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hamlyn_tools::allow::{Allow, allow};
use hamlyn_tools::arguments::{ForAll, PerfCommand, name, size};
use hamlyn_tools::perf::FarEndCommand;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The shortest pause between two looks at a process.
pub const PAUSE_MIN: Duration = Duration::from_millis(200);

/// Protected messages between programs that do not trust one another, at the speed of memory.
#[derive(Debug, Parser)]
#[command(name = "hamlyn", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub all: ForAll,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// A program of its own: only its name is known here
    #[command(hide = true)]
    Tour {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _words: Vec<OsString>,
    },
    /// Receive from one `hamlyn send`, to standard output or a file
    ///
    /// If the sender dies midway or the digest is wrong, the command reports it and exits with a
    /// status other than zero. A file (--output) is then unchanged; bytes already written to
    /// standard output stay there.
    #[command(allow_negative_numbers = true, after_help = OF_RECV)]
    Recv(RecvArguments),
    /// Send standard input to `hamlyn recv`
    #[command(allow_negative_numbers = true, after_help = OF_SEND)]
    Send(SendArguments),
    /// Relay the samples of a publisher on another host to any number of subscribers on this one
    ///
    /// Each sample crosses the network once and is stored here once; all subscribers read that
    /// copy. Samples keep their numbers; with the next sample, subscribers learn how many were lost
    /// on the way. If the connection ends or the publisher dies, the relay connects again and keeps
    /// its subscribers.
    ///
    /// Subscribers trust the relay as they trust a publisher: it can change, invent and drop
    /// samples. The memory for its samples, as long as the publisher's may be, is charged to it at
    /// once.
    #[command(allow_negative_numbers = true, after_help = OF_RELAY)]
    Relay(RelayArguments),
    /// Measure latency, rate or bandwidth
    ///
    /// Each figure is printed beside the limits of these two processors, measured before and after
    /// each run: the raw cache line (one word handed from one processor to the other); the least
    /// checked message (a bare ring of lines like Hamlyn's, whose receiver only compares key and
    /// bounds, deposits 16 bytes, and queues and finds a notification); memcpy; and a bare ring
    /// that copies in and out. A run during which the raw line changed by more than a quarter is
    /// repeated, and only runs whose raw lines agree within a quarter are compared. A word such as
    /// "near" describes the line and decides nothing.
    #[command(subcommand)]
    Perf(PerfCommand),
    /// Show the counters and links of running processes, with one counter for each kind of refusal
    ///
    /// The figures are read from outside, without slowing the process, and only by its owner. Each
    /// link shows the peer, the traffic each way, the messages that wait, which end waits for the
    /// other, and the path. Bytes are those of the rings, in lines of 64, headers included;
    /// messages, packets and waiting messages are as of the last turn of the process.
    #[command(after_help = OF_STAT)]
    Stat(StatArguments),
    /// Show all services at work, the busiest first, and refresh
    ///
    /// Shows the services of this user; for root, also those that other users serve to others. In a
    /// terminal, q quits and l switches between services and links. Otherwise, such as in a pipe or
    /// a file, it prints the table after each interval until it is stopped; with --once, one table.
    /// A process is asked once in each interval, and answers beside its messages.
    #[command(after_help = OF_TOP)]
    Top(TopArguments),
    /// Serve the figures of `stat` to Prometheus, over HTTP
    ///
    /// All requests within a second get the same figures. Every program that can connect can read
    /// them, although the processes themselves show them only to their owner: with the default
    /// address that is every user of this machine. `stat --prometheus --output FILE` writes a file
    /// instead, for the node exporter.
    #[command(after_help = OF_EXPORTER)]
    Exporter(ExporterArguments),
    /// Say why a connection is slow or refused
    ///
    /// Checks the name, its directories and the listening process, and asks the process for its
    /// figures twice, a second apart. For a service on another host it asks that host, and reports
    /// each step that succeeded. It makes no link.
    #[command(after_help = OF_WHY)]
    Why(WhyArguments),
    /// List the services that have a name here: user, process, program, age, alive or stale
    #[command(after_help = OF_NAMES)]
    Names(NamesArguments),
    /// Make the directory for services that other users may reach (needs root)
    #[command(after_help = OF_SETUP)]
    Setup(SetupArguments),
    /// Make the credentials with which hosts prove their identity: a secret, or certificates
    ///
    /// Prints the settings that use them. The service is then hamlyn://HOST:PORT/NAME on other
    /// hosts. Only the owner can read the files, and no existing file is overwritten.
    #[cfg(feature = "tls")]
    #[command(after_help = OF_KEYS)]
    Keys(KeysArguments),
    /// Start a program several times, on this host or on several, as the ranks of a job
    ///
    /// Each process gets a rank, from 0 up, and finds the others with `Job` (`hamlyn::job` in Rust,
    /// `hamlyn.Job` in Python, `h_job_open` in C). HAMLYN_JOB_RANK and HAMLYN_JOB_SIZE are for
    /// scripts. The output of the ranks is printed here; their standard input is empty. SIGINT,
    /// SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded to all ranks; a second SIGINT or SIGTERM
    /// ends them at once. When a rank fails, the command ends the others and all processes that
    /// ranks have started (SIGTERM, then SIGKILL after two seconds). Its exit status is that of the
    /// first rank that failed, or 128 and the number of the signal that ended it.
    ///
    /// On other hosts the ranks are started through ssh, which must need no password there, by the
    /// same command at the same path. They connect by TLS with a secret of the job's own, which is
    /// in no file, on no command line and in no environment.
    #[command(after_help = OF_RUN)]
    Run(RunArguments),
    /// Write the manual pages into DIRECTORY
    Man { directory: PathBuf },
    /// Print the completions for SHELL
    Completions { shell: clap_complete::Shell },
    /// Starts the ranks of one host, for `hamlyn run`, which sends its orders over standard input
    #[command(hide = true)]
    RunAgent,
    /// Becomes a rank's program, which ends with the process PARENT
    #[command(hide = true)]
    RunRank {
        parent: i32,
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    #[command(flatten)]
    FarEnd(FarEndCommand),
}

impl Command {
    /// Whether the command starts it itself. Its environment was then checked by the caller.
    pub fn is_internal(&self) -> bool {
        matches!(self, Self::RunAgent | Self::RunRank { .. } | Self::FarEnd(_))
    }
}

#[derive(Args, Debug)]
pub struct RecvArguments {
    /// The service's name: up to 64 letters, digits, '_', and, not as the first, '-' and '.'
    #[arg(value_parser = name)]
    pub name: String,
    /// The peers that may send: "user" (this user only), "anyone", "group:GID" or "group:NAME", of
    /// which this user is a member, or "host:NAME" (this user, and the host with this name in its
    /// certificate)
    #[arg(long, value_name = "WHO", default_value = "user", value_parser = allow)]
    pub allow: Allow,
    /// Seconds to wait for a sender [default: for ever]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub wait: Option<Duration>,
    /// Seconds without a byte from the sender, after which it is disconnected [default: 60 for a
    /// sender of another user or host, for ever for one of this user]
    ///
    /// If nothing was written yet, the command then accepts another sender. A sender of another
    /// user or host that is connected and has sent nothing does not extend --wait, and is replaced
    /// when another sender comes.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub idle: Option<Duration>,
    /// Write to FILE, which is replaced atomically when the transfer completes
    ///
    /// A replaced file keeps its mode and its owner. If SIGKILL ends this command, it leaves
    /// `.hamlyn-*.part` beside FILE.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Flush the file to disk before the command ends
    #[arg(long, requires = "output")]
    pub sync: bool,
}

#[derive(Args, Debug)]
pub struct SendArguments {
    /// The service's name, as [USER@]NAME, or on another host as hamlyn://HOST:PORT/NAME
    #[arg(value_parser = name)]
    pub name: String,
    /// Seconds to wait until the receiver exists
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub wait: Duration,
    /// Seconds in which the receiver takes none of the data that waits for it, after which the
    /// command gives up [default: 60 for a receiver of another user or host, for ever for one of
    /// this user]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub idle: Option<Duration>,
}

#[derive(Args, Debug)]
pub struct RelayArguments {
    /// The publisher's service, as hamlyn://HOST:PORT/NAME, or on this host as [USER@]NAME
    #[arg(value_parser = name)]
    pub name: String,
    /// The service's name on this host [default: the publisher's]
    #[arg(long = "as", value_name = "NAME", value_parser = name)]
    pub serve_as: Option<String>,
    /// The peers that may subscribe: "user" (this user only), "anyone", "group:GID" or
    /// "group:NAME", of which this user is a member, or "host:NAME" (this user, and the host with
    /// this name in its certificate)
    #[arg(long, value_name = "WHO", default_value = "user", value_parser = allow)]
    pub allow: Allow,
    /// The newest samples that a new subscriber may ask for
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=65_536))]
    pub history: u32,
    /// The newest samples kept for subscribers that have no room now
    #[arg(long, value_name = "NUMBER", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=65_536))]
    pub backlog: u32,
    /// Subscribers at one time
    #[arg(long, value_name = "NUMBER", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub subscribers: u32,
    /// Long samples that a subscriber may hold at once
    #[arg(long, value_name = "NUMBER", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub outstanding: u32,
    /// The policy for a slow subscriber; `wait` delays all others, and the link, too
    #[arg(long, value_enum, default_value_t = Slow::DropOldest)]
    pub when_slow: Slow,
    /// The longest samples that the publisher may have
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = size)]
    pub sample_max: ByteSize,
    /// Seconds to wait until the publisher exists
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub wait: Duration,
    /// Seconds without a connection after which the command ends [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub outage: Option<Duration>,
    /// Stay after the normal end of the publisher, and wait for the next publisher of its name
    #[arg(long)]
    pub keep: bool,
}

/// The policy for a slow subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Slow {
    /// Wait for it
    Wait,
    /// It misses the oldest kept samples
    DropOldest,
    /// It misses each sample for which it has no room
    DropNewest,
    /// Disconnect it
    SendAway,
}

#[derive(Args, Debug)]
pub struct NamesArguments {
    /// Remove the names left by dead processes of this user
    #[arg(long, conflicts_with = "json")]
    pub clean: bool,
    /// Print one line of JSON for each name
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct StatArguments {
    /// One service only, as [USER@]NAME, or on another host as hamlyn://HOST:PORT/NAME [default:
    /// all of this user; for root, also those that other users serve to others]
    #[arg(value_parser = name)]
    pub name: Option<String>,
    /// Print also the counters that are 0
    #[arg(long, conflicts_with_all = ["json", "prometheus", "watch"])]
    pub all: bool,
    /// Print one line of JSON for each process; without NAME, with `error` for a process that does
    /// not answer
    #[arg(long)]
    pub json: bool,
    /// Print metrics for Prometheus, in its text format
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
    /// Write to FILE, which is replaced atomically: for the textfile collector of the node
    /// exporter, in its folder, with a name that ends in .prom
    #[arg(long, short, value_name = "FILE", requires = "prometheus")]
    pub output: Option<PathBuf>,
    /// Refresh every so many seconds, 0.2 or more [default: 1], and print rates and the counters
    /// that have risen
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true)]
    #[arg(value_parser = pause)]
    pub watch: Option<Duration>,
    /// Stop after this many looks [default: when interrupted]
    #[arg(long, value_name = "NUMBER", requires = "watch")]
    pub times: Option<u64>,
}

#[derive(Args, Debug)]
pub struct TopArguments {
    /// These services only, as [USER@]NAME, or on other hosts as hamlyn://HOST:PORT/NAME
    #[arg(value_name = "NAME", value_parser = name)]
    pub names: Vec<String>,
    /// Look twice, one interval apart, and print lines
    #[arg(long)]
    pub once: bool,
    /// Print a line for each link instead of each service
    #[arg(long)]
    pub links: bool,
    /// Seconds between two looks, 0.2 or more
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = pause)]
    pub interval: Duration,
}

#[derive(Args, Debug)]
pub struct ExporterArguments {
    /// These services only, as [USER@]NAME, or on other hosts as hamlyn://HOST:PORT/NAME [default:
    /// all of this user; for root, also those that other users serve to others]
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
    /// Users who will serve: each gets a directory there, protected from other users
    #[arg(value_name = "USER")]
    pub users: Vec<String>,
    /// Make nothing, and print the lines of a tmpfiles.d(5) file that makes the directories
    /// whenever the machine starts
    #[arg(long)]
    pub tmpfiles: bool,
}

#[cfg(feature = "tls")]
#[derive(Args, Debug)]
pub struct KeysArguments {
    /// The file of the secret, or the directory of the certificates [default: hamlyn.secret,
    /// hamlyn-keys]
    pub path: Option<PathBuf>,
    /// Make a certificate for this host, under each of these names and addresses, signed by the
    /// authority in the directory, which is made if it does not exist
    #[arg(long, value_name = "NAME[,NAME..]")]
    pub certificate: Vec<String>,
    /// Validity of certificates in days, at most until their authority ends; a new authority gets
    /// as many
    #[arg(long, value_name = "NUMBER", default_value_t = 825, requires = "certificate")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
    /// Overwrite files of the same names, but not an authority
    #[arg(long)]
    pub force: bool,
}

#[derive(Args, Debug)]
pub struct RunArguments {
    /// The number of ranks
    #[arg(short = 'n', long = "ranks", value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub ranks: u32,
    /// Hosts, by names or addresses under which they reach one another; ranks are spread over them
    /// in even blocks [default: this host alone]
    #[arg(long, value_name = "HOST[,HOST..]", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// The words of a command that runs another on a host; the host and that command are appended
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub rsh: String,
    /// The path of this command on other hosts [default: as on this host]
    #[arg(long, value_name = "PATH")]
    pub hamlyn: Option<PathBuf>,
    /// A variable for all ranks; ranks on this host also inherit this command's environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Begin each line of output with the rank that printed it
    #[arg(long, short)]
    pub label: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let found = text.split_once('=').filter(|(name, _)| !name.is_empty());
    found
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "a variable is NAME=VALUE".to_owned())
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
