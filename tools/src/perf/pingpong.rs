//! The comparison for links over libfabric: `fi_pingpong` (Debian: libfabric-bin), with the same
//! provider of the same library; its two processes are pinned like Hamlyn's ends.
//!
//! It sends one message and waits for one of the same size. Both figures derive from that: half of
//! the mean round trip, and the bytes of a message in that time. It has no figure for messages one
//! after another.

use super::ends::{Plan, Test};
use super::pin::{Cores, pin};
use anyhow::{Context, Result, bail, ensure};
use hamlyn::os::fabric::Library;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const PROGRAM: &str = "fi_pingpong";
/// The time limit of both its processes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most messages in each direction, since the figure is a mean.
const COUNT_MAX: u64 = 20_000;

/// The library and provider that Hamlyn's links use with these settings.
#[derive(Clone, Debug)]
pub struct Fabric {
    library: Option<PathBuf>,
    /// libfabric's name for it.
    pub provider: String,
    /// The version of libfabric.
    pub version: (u32, u32),
}

impl Fabric {
    /// The provider from the environment; an error without one, since TLS would then be measured.
    pub fn from_env() -> Result<Self> {
        let config = hamlyn::Config::from_env()?;
        let library = Library::open(config.fabric_library.as_deref())?;
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let choice = library.choose(config.fabric_provider.as_deref(), Some(here))?;
        let (provider, version) = (choice.provider(), library.version());
        Ok(Self { library: config.fabric_library, provider, version })
    }

    /// One process of the program, pinned by the thread that starts it.
    fn program(&self, core: usize, arguments: &[String]) -> Result<Option<Child>> {
        let mut command = Command::new(PROGRAM);
        command.args(["-p", &self.provider, "-e", "rdm"]).args(arguments);
        if let Some(directory) = self.library.as_deref().and_then(|file| file.parent()) {
            command.env("LD_LIBRARY_PATH", directory);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let start = || pin(core).map(|()| command.spawn());
        let started = thread::scope(|scope| scope.spawn(start).join().expect("no panic"))?;
        match started {
            Ok(child) => Ok(Some(child)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context(PROGRAM),
        }
    }
}

/// A process that ends with the process that started it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Its output; `None`: it has failed.
    fn output(mut self, until: Instant) -> Result<Option<String>> {
        let status = loop {
            if let Some(status) = self.0.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < until, "{PROGRAM} has not ended in {} s", PATIENCE.as_secs());
            thread::sleep(Duration::from_millis(1));
        };
        // A few lines, which fit into the pipe.
        let mut text = String::new();
        if let Some(mut output) = self.0.stdout.take() {
            std::io::Read::read_to_string(&mut output, &mut text)?;
        }
        Ok(status.success().then_some(text))
    }
}

/// In the unit of the test: nanoseconds one way, or bytes per second. `None`: it is not installed,
/// or has no figure for this test.
pub fn measure(fabric: &Fabric, cores: Cores, plan: Plan) -> Result<Option<f64>> {
    if plan.test == Test::Rate || plan.size == 0 {
        return Ok(None);
    }
    // A port that was free just now, since the program cannot choose one and report it.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
    let count = plan.count.min(COUNT_MAX).min((1 << 31) / plan.size as u64).max(10);
    let count = count.to_string();
    let common = ["-S".to_owned(), plan.size.to_string(), "-I".to_owned(), count];
    let mut server = common.to_vec();
    server.extend(["-B".to_owned(), port.clone()]);
    let Some(server) = fabric.program(cores.far, &server)? else { return Ok(None) };
    let mut server = Running(server);
    let mut client = common.to_vec();
    client.extend(["-P".to_owned(), port, Ipv4Addr::LOCALHOST.to_string()]);
    let until = Instant::now() + PATIENCE;
    loop {
        let Some(child) = fabric.program(cores.near, &client)? else { return Ok(None) };
        if let Some(text) = Running(child).output(until)? {
            return figure(&text, plan).map(Some);
        }
        // The server does not listen yet, or cannot at all.
        if let Some(status) = server.0.try_wait()? {
            bail!("{PROGRAM} with the provider {} ended with {status}", fabric.provider);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Parses its last line: bytes, messages, answers, all bytes, time, megabytes per second,
/// microseconds one way, millions of messages per second.
fn figure(text: &str, plan: Plan) -> Result<f64> {
    let unread = || format!("{PROGRAM} prints what is not known here: {text:?}");
    let line = text.lines().last().with_context(unread)?;
    let columns: Vec<&str> = line.split_whitespace().collect();
    ensure!(columns.len() == 8, unread());
    let us: f64 = columns[6].parse().with_context(unread)?;
    ensure!(us > 0.0, unread());
    Ok(match plan.test {
        Test::Bandwidth => plan.size as f64 / (us * 1e-6),
        Test::Latency | Test::Rate => us * 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Mode;

    #[test]
    fn what_it_prints_is_read() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    4k      20k     =20k     156m        0.81s    202.96      20.18       0.05\n";
        let (mode, smallest_rings) = (Mode::Polled, false);
        let plan = |test| Plan { test, size: 4096, count: 1, mode, links: 0, smallest_rings };
        assert_eq!(figure(text, plan(Test::Latency)).unwrap(), 20_180.0);
        let per_s = figure(text, plan(Test::Bandwidth)).unwrap();
        assert!((per_s / 202.97e6 - 1.0).abs() < 1e-3, "{per_s}");
        for text in ["", "usage: ..", &text.replace("20.18", "0.00"), &text.replace("20.18", "x")] {
            assert!(figure(text, plan(Test::Latency)).is_err(), "{text}");
        }
    }
}
