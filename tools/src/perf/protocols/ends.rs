//! The two processes of a cell: each has a processor of its own and lives for one run, so that no
//! run reuses the memory, and so the cache lines, of another.

use super::cells::{Cell, Measure, Protocol, config};
use super::{echo, lower, publish, receivers, revoke, stream, upper};
use crate::arguments::two_cores;
use crate::ending;
use crate::perf::pin::{Cores, pin};
use crate::perf::row::Figure;
use anyhow::{Context, Result, bail};
use hamlyn::control::Access;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};

/// The arguments of the hidden subcommand for one end.
#[derive(clap::Args, Clone, Debug)]
pub struct EndArguments {
    /// What is measured
    #[arg(long)]
    cell: String,
    /// The name that the far end serves
    #[arg(long)]
    name: String,
    #[arg(long, value_parser = two_cores)]
    cores: Cores,
    #[arg(long)]
    count: u64,
    /// The end that measures, and prints the figure; else the one that serves
    #[arg(long)]
    near: bool,
}

/// One end, pinned, except one that pins threads of its own. The far end reports on standard output
/// that it is ready; the near one prints its figure. Both end with their standard input, that is,
/// with the process that started them.
pub fn run_end(arguments: &EndArguments) -> Result<()> {
    let EndArguments { cell, name, cores, count, near } = arguments;
    use Protocol::{
        Adaptive, Aperture, Bytes, Datagram, Memcpy, Over, Pieces, Publish, Raw, Receivers, Shared,
        Stream, StreamAperture,
    };
    let cell = Cell::named(cell)?;
    match (cell.protocol, near) {
        (Receivers, true) => {}
        (_, true) => pin(cores.near)?,
        (_, false) => pin(cores.far)?,
    }
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        ending::exit(0);
    });
    if *near {
        let figure = match cell.protocol {
            Aperture if cell.measure == Measure::Revoke => revoke::near(cell, name, *count),
            Raw | Shared | Adaptive | Over | Memcpy | Aperture | Pieces => {
                lower::near(cell, name, *count)
            }
            Datagram | Bytes => echo::near(cell, name, *count),
            Stream | StreamAperture => stream::near(cell, name, *count),
            Receivers => receivers::near(cell, name, *cores, *count),
            Publish => publish::near(cell, name, *count),
            _ => upper::near(cell, name, *count),
        }?;
        return crate::output::line(serde_json::to_string(&figure)?);
    }
    let settings = config(cell)?;
    ending::on_signals()?;
    let ready = || {
        ending::remove_name(&settings, name, Access::SameUser);
        let mut output = std::io::stdout();
        let _ = output.write_all(b"\n").and_then(|()| output.flush());
    };
    match cell.protocol {
        Aperture if cell.measure == Measure::Revoke => revoke::far(cell, name, *count, ready),
        Raw | Shared | Adaptive | Over | Memcpy | Aperture | Pieces => {
            lower::far(cell, name, *count, ready)
        }
        Datagram | Bytes => echo::far(cell, name, *count, ready),
        Stream | StreamAperture => stream::far(cell, name, *count, ready),
        Receivers => receivers::far(cell, name, *count, ready),
        Publish => publish::far(cell, name, *count, ready),
        _ => upper::far(cell, name, *count, ready),
    }
}

/// A process that is stopped, and waited for, on drop.
struct End(Child);

impl End {
    fn start(cell: Cell, name: &str, cores: Cores, count: u64, near: bool) -> Result<Self> {
        let Cores { near: near_core, far: far_core } = cores;
        let child = Command::new(std::env::current_exe()?)
            .args(["perf-protocol-end", "--cell", &cell.name(), "--name", name])
            .args(["--cores", &format!("{near_core},{far_core}"), "--count", &count.to_string()])
            .args(near.then_some("--near"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start one of the two ends")?;
        Ok(Self(child))
    }

    /// Stops it, if it runs, and waits for its end.
    fn end(&mut self) -> Result<ExitStatus> {
        drop(self.0.stdin.take());
        Ok(self.0.wait()?)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// One run of a cell, in two new processes.
pub fn measure(cell: Cell, cores: Cores, count: u64) -> Result<Figure> {
    let name = format!("perf-protocols-{}", std::process::id());
    let mut far = End::start(cell, &name, cores, count, false)?;
    let ready = far.0.stdout.take().context("no output")?.read_exact(&mut [0]);
    ready.context("the far end failed")?;
    let mut near = End::start(cell, &name, cores, count, true)?;
    let mut text = String::new();
    near.0.stdout.take().context("no output")?.read_to_string(&mut text)?;
    let status = near.end()?;
    if !status.success() {
        let other = far.end()?;
        bail!("the end that measures failed ({status}; the other end: {other})");
    }
    serde_json::from_str(&text).with_context(|| format!("no figure: {text:?}"))
}
