//! The channels that programs use today: a Unix stream socket, TCP over loopback, a pipe.
//!
//! The far end is a process of its own (this command again, with a hidden subcommand) whose
//! standard input and output are the channel. Both ends are pinned exactly as Hamlyn's are, and
//! each message is one write, as each of Hamlyn's is one send.

use super::clock;
use super::pin::{Cores, pin};
use super::stats::{Percentiles, RoundTrips};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::fmt;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// Kinds of channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Channel {
    UnixSocket,
    Tcp,
    Pipe,
}

impl Channel {
    pub const ALL: [Self; 3] = [Self::UnixSocket, Self::Tcp, Self::Pipe];
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::UnixSocket => "Unix stream socket",
            Self::Tcp => "TCP over loopback",
            Self::Pipe => "pipe",
        })
    }
}

/// How an end waits for the other: in the kernel, or polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Patience {
    Blocking,
    Polled,
}

/// The task of the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Duty {
    /// Sends each message back.
    Echo,
    /// Takes all, then answers with one byte.
    Sink,
}

/// The arguments of the hidden subcommand for the far end.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct PeerArguments {
    #[arg(long)]
    core: usize,
    #[arg(long, value_enum)]
    duty: Duty,
    #[arg(long, value_enum)]
    patience: Patience,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    count: u64,
}

/// One direction or both: a descriptor that is read and one that is written.
struct End<I, O> {
    input: I,
    output: O,
}

impl<I: AsFd, O: AsFd> End<I, O> {
    fn set(&self, patience: Patience) -> Result<()> {
        if patience == Patience::Polled {
            for fd in [self.input.as_fd(), self.output.as_fd()] {
                fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
            }
        }
        Ok(())
    }

    fn write_all(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.output, bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot write to the other end"),
            }
        }
        Ok(())
    }

    /// Reads at least one byte.
    fn read(&self, bytes: &mut [u8]) -> Result<usize> {
        loop {
            match rustix::io::read(&self.input, &mut *bytes) {
                Ok(0) => bail!("the other end closed the channel before it was done"),
                Ok(n) => return Ok(n),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot read from the other end"),
            }
        }
    }

    fn read_exact(&self, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.read(&mut bytes[done..])?;
        }
        Ok(())
    }
}

/// Two connected ends.
fn connect(channel: Channel) -> Result<[End<OwnedFd, OwnedFd>; 2]> {
    let duplex = |fd: OwnedFd| anyhow::Ok(End { input: fd.try_clone()?, output: fd });
    Ok(match channel {
        Channel::UnixSocket => {
            let (a, b) = UnixStream::pair()?;
            [duplex(a.into())?, duplex(b.into())?]
        }
        Channel::Tcp => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let a = TcpStream::connect(listener.local_addr()?)?;
            let (b, _) = listener.accept()?;
            a.set_nodelay(true)?;
            b.set_nodelay(true)?;
            [duplex(a.into())?, duplex(b.into())?]
        }
        Channel::Pipe => {
            let (there, from_here) = pipe_with(PipeFlags::CLOEXEC)?;
            let (here, from_there) = pipe_with(PipeFlags::CLOEXEC)?;
            [End { input: here, output: from_here }, End { input: there, output: from_there }]
        }
    })
}

/// Starts a far end and hands the near one, pinned and ready, to `measure`.
fn with_peer<T: Send>(
    channel: Channel,
    cores: Cores,
    peer: PeerArguments,
    measure: impl FnOnce(&End<OwnedFd, OwnedFd>) -> Result<T> + Send,
) -> Result<T> {
    let [here, there] = connect(channel).with_context(|| format!("cannot make a {channel}"))?;
    let value = |value: &dyn ToString| value.to_string();
    let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        value().map_or_else(String::new, |value| value.get_name().to_owned())
    };
    let mut child = Command::new(std::env::current_exe()?)
        .args(["perf-peer", "--core", &value(&peer.core), "--size", &value(&peer.size)])
        .args(["--count", &value(&peer.count), "--duty", &name(&|| peer.duty.to_possible_value())])
        .args(["--patience", &name(&|| peer.patience.to_possible_value())])
        .stdin(Stdio::from(there.input))
        .stdout(Stdio::from(there.output))
        .spawn()
        .context("cannot start the other end")?;
    let result = super::on_core(cores.near, || {
        here.set(peer.patience)?;
        here.read_exact(&mut [0])?;
        measure(&here)
    });
    // Closed first: a far end that waits for more then ends.
    drop(here);
    let status = child.wait()?;
    let figure = result??;
    if !status.success() {
        bail!("the other end of the {channel} failed: {status}");
    }
    Ok(figure)
}

/// The far end: standard input and output are the channel.
pub fn run_peer(arguments: PeerArguments) -> Result<()> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let end: End<BorrowedFd<'_>, BorrowedFd<'_>> =
        End { input: input.as_fd(), output: output.as_fd() };
    pin(arguments.core)?;
    end.set(arguments.patience)?;
    end.write_all(&[0])?;
    match arguments.duty {
        Duty::Echo => {
            let mut message = vec![0; arguments.size];
            for _ in 0..arguments.count {
                end.read_exact(&mut message)?;
                end.write_all(&message)?;
            }
        }
        Duty::Sink => {
            // One read for many messages, as a careful program would.
            let mut buffer = vec![0; (64 << 10).max(arguments.size)];
            let mut left = arguments.count * arguments.size as u64;
            while left > 0 {
                left = left.saturating_sub(end.read(&mut buffer)? as u64);
            }
            end.write_all(&[0])?;
        }
    }
    Ok(())
}

/// Half the round trip of a message of `size` bytes, over `count` round trips.
pub fn latency(
    channel: Channel,
    patience: Patience,
    cores: Cores,
    size: usize,
    count: u64,
) -> Result<Percentiles> {
    let warm_up = count / 10;
    let peer =
        PeerArguments { core: cores.far, duty: Duty::Echo, patience, size, count: warm_up + count };
    with_peer(channel, cores, peer, |end| {
        let mut message = vec![7; size];
        RoundTrips::make(warm_up, count, || {
            end.write_all(&message)?;
            end.read_exact(&mut message)
        })
    })
}

/// Messages a second, each one write, one after another.
pub fn messages_per_s(
    channel: Channel,
    patience: Patience,
    cores: Cores,
    size: usize,
    count: u64,
) -> Result<f64> {
    let peer = PeerArguments { core: cores.far, duty: Duty::Sink, patience, size, count };
    with_peer(channel, cores, peer, |end| {
        let message = vec![7; size];
        let seconds = clock::timed(|| {
            (0..count).try_for_each(|_| end.write_all(&message))?;
            end.read_exact(&mut [0])
        })?;
        Ok(count as f64 / seconds)
    })
}
