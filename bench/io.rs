//! Echo and bandwidth of `hamlyn::io` against a Unix socket of tokio's. The same program measures
//! them in turn, each between two processes on processors of their own.
//!
//! ```text
//!   cargo bench --features tokio --bench io                   # one row a line, as JSON
//!   cargo test --features tokio --bench io                    # a moment: whether it runs
//!   HAMLYN_BENCH_RUNS=9 HAMLYN_BENCH_ROUNDS=20000 HAMLYN_BENCH_MODES=adaptive cargo bench ..
//!   HAMLYN_BENCH_BLOCK_ON=1 cargo bench ..                    # not in tasks: see below
//! ```
//! A row has the median, the minimum and the maximum of its runs: half a round trip, in
//! nanoseconds. Each side has a runtime of one thread, which waits as `wait_mode` says. The Unix
//! socket always sleeps. The processor time of waiting is not measured here. A row with a process
//! that could not be pinned says `"pinned": false`.
//!
//! Both sides run in a spawned task, like the connections of a server. In a runtime of one thread,
//! the future of `block_on` itself runs after a wake by a task only when tokio has polled its
//! descriptors once more (`epoll_wait` without waiting). With Hamlyn, which a task polls, that
//! comes between a wake and its answer; with a Unix socket it does not.

use hamlyn::io::{Connection, Listener};
use hamlyn::protocol::{AsyncManager, Manager};
use hamlyn::{Access, Config};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const PIECE: usize = 64 << 10;

/// Whether this run measures (`cargo bench`) or tests (`cargo test`).
fn measures() -> bool {
    std::env::args().any(|word| word == "--bench")
}

fn number(variable: &str, measured: u64, tested: u64) -> u64 {
    let otherwise = if measures() { measured } else { tested };
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Whether this process stays on that processor from now on.
fn pin(processor: usize) -> bool {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

/// The server's line once clients can connect: whether it is pinned. Both have one length.
const READY: [&str; 2] = ["ready loose", "ready fixed"];

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Runs it in a task, or, where that is asked for, in the future that the runtime is started with.
fn in_task<R: Send + 'static>(
    work: impl Future<Output = std::io::Result<R>> + Send + 'static,
) -> std::io::Result<R> {
    match std::env::var_os("HAMLYN_BENCH_BLOCK_ON") {
        Some(_) => runtime().block_on(work),
        None => runtime().block_on(async { tokio::spawn(work).await })?,
    }
}

/// Serves one connection: orders of a length and a count, the length 0 for bytes that are not
/// returned.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE];
    while let Ok(length) = stream.read_u32_le().await {
        let count = stream.read_u64_le().await?;
        if length > 0 {
            for _ in 0..count {
                stream.read_exact(&mut buffer[..length as usize]).await?;
                stream.write_all(&buffer[..length as usize]).await?;
            }
        } else {
            let mut left = count;
            while left > 0 {
                left -= stream.read(&mut buffer).await? as u64;
            }
            stream.write_all(b".").await?;
        }
    }
    Ok(())
}

async fn order(
    stream: &mut (impl AsyncWrite + Unpin),
    length: u32,
    count: u64,
) -> std::io::Result<()> {
    let mut order = length.to_le_bytes().to_vec();
    order.extend_from_slice(&count.to_le_bytes());
    stream.write_all(&order).await
}

/// Half a round trip of messages of `length` bytes, in nanoseconds.
async fn echo(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    length: usize,
    rounds: u64,
) -> std::io::Result<f64> {
    let (mut message, warm) = (vec![7; length], rounds / 10 + 1);
    order(stream, length as u32, warm + rounds).await?;
    let mut began = Instant::now();
    for round in 0..warm + rounds {
        if round == warm {
            began = Instant::now();
        }
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
    }
    assert!(message.iter().all(|byte| *byte == 7), "what came back is not what was sent");
    Ok(began.elapsed().as_nanos() as f64 / rounds as f64 / 2.0)
}

/// Gigabytes a second, in pieces of 64 KiB.
async fn sink(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    mib: u64,
) -> std::io::Result<f64> {
    let piece = vec![7; PIECE];
    let mut rate = 0.0;
    for pieces in [64, mib * 16] {
        let bytes = pieces * PIECE as u64;
        order(stream, 0, bytes).await?;
        let began = Instant::now();
        for _ in 0..pieces {
            stream.write_all(&piece).await?;
        }
        stream.read_u8().await?;
        rate = bytes as f64 / began.elapsed().as_nanos() as f64;
    }
    Ok(rate)
}

/// The values measured in one run, in the order of [`WHAT`].
type Run = [f64; 3];

const WHAT: [(&str, &str); 3] = [
    ("echo of 16 bytes, half a round trip", "ns"),
    ("echo of 64 bytes, half a round trip", "ns"),
    ("pieces of 64 KiB, one way", "GB/s"),
];

async fn measure(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<Run> {
    let rounds = number("HAMLYN_BENCH_ROUNDS", 10_000, 20);
    let stream = &mut stream;
    let (short, line) = (echo(stream, 16, rounds).await?, echo(stream, 64, rounds).await?);
    Ok([short, line, sink(stream, number("HAMLYN_BENCH_MIB", 512, 2)).await?])
}

fn manager() -> AsyncManager {
    let config = Config::from_env().expect("settings that are allowed");
    AsyncManager::new(&Manager::with_config(config).expect("a node")).expect("a descriptor")
}

/// The other process, until its one connection ends.
fn server(transport: &str, socket: &Path) -> std::io::Result<()> {
    let ready = READY[usize::from(pin(1))];
    let (is_unix, socket) = (transport == "unix", socket.to_path_buf());
    in_task(async move {
        if is_unix {
            let listener = UnixListener::bind(socket)?;
            println!("{ready}");
            serve(listener.accept().await?.0).await
        } else {
            let listener = Listener::bind(&manager(), "io-bench", Access::SameUser)?;
            println!("{ready}");
            serve(listener.accept().await?).await
        }
    })
}

struct Server {
    child: Child,
    is_pinned: bool,
}

impl Server {
    fn start(transport: &str, dir: &Path, mode: &str) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(measures().then_some("--bench"));
        command.env("HAMLYN_BENCH_SERVER", transport).env("HAMLYN_DIR", dir);
        command.env("HAMLYN_WAIT_MODE", mode).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut ready = [0; READY[0].len()];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut ready)?;
        Ok(Self { child, is_pinned: ready == READY[1].as_bytes() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The measured values, and whether the other process was pinned.
fn run(transport: &str, dir: &Path, mode: &str) -> std::io::Result<(Run, bool)> {
    let socket = dir.join("unix-bench");
    let _ = std::fs::remove_file(&socket);
    let server = Server::start(transport, dir, mode)?;
    let (is_unix, dir, mode) = (transport == "unix", dir.to_path_buf(), mode.to_string());
    let measured = in_task(async move {
        if is_unix {
            measure(UnixStream::connect(&socket).await?).await
        } else {
            let config = Config::from_env().expect("settings that are allowed").dir(dir);
            let mode = match mode.as_str() {
                "polled" => hamlyn::config::WaitMode::Polled,
                "blocking" => hamlyn::config::WaitMode::Blocking,
                _ => hamlyn::config::WaitMode::Adaptive,
            };
            let node = Manager::with_config(config.wait_mode(mode)).expect("a node");
            let manager = AsyncManager::new(&node)?;
            measure(Connection::connect(&manager, "io-bench", LIMIT).await?).await
        }
    });
    Ok((measured?, server.is_pinned))
}

fn median(runs: &[Run], which: usize) -> (f64, f64, f64) {
    let mut all: Vec<f64> = runs.iter().map(|run| run[which]).collect();
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[0], all[all.len() - 1])
}

fn main() -> std::io::Result<()> {
    if let Ok(transport) = std::env::var("HAMLYN_BENCH_SERVER") {
        let dir = PathBuf::from(std::env::var_os("HAMLYN_DIR").expect("set by the other process"));
        return server(&transport, &dir.join("unix-bench"));
    }
    let dir = tempfile::tempdir()?;
    let is_here_pinned = pin(0);
    let modes = std::env::var("HAMLYN_BENCH_MODES").unwrap_or("polled,adaptive,blocking".into());
    for mode in modes.split(',') {
        let (mut ours, mut theirs, mut pinned) = (Vec::new(), Vec::new(), is_here_pinned);
        for _ in 0..number("HAMLYN_BENCH_RUNS", 5, 1) {
            for (transport, runs) in [("unix", &mut theirs), ("hamlyn", &mut ours)] {
                let (measured, is_pinned) = run(transport, dir.path(), mode)?;
                runs.push(measured);
                pinned &= is_pinned;
            }
        }
        for (which, (what, unit)) in WHAT.into_iter().enumerate() {
            let (ours, theirs) = (median(&ours, which), median(&theirs, which));
            println!(
                "{{\"what\": \"{what}\", \"wait_mode\": \"{mode}\", \"unit\": \"{unit}\", \
                 \"hamlyn\": {:.2}, \"least\": {:.2}, \"most\": {:.2}, \"unix\": {:.2}, \
                 \"unix_least\": {:.2}, \"unix_most\": {:.2}, \"ratio\": {:.3}, \"pinned\": {pinned}}}",
                ours.0,
                ours.1,
                ours.2,
                theirs.0,
                theirs.1,
                theirs.2,
                ours.0 / theirs.0
            );
        }
    }
    Ok(())
}
