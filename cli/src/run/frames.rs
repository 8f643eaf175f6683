//! The frames between `hamlyn run` and its agents, one for each host, over the agent's standard
//! input and output: a length of four bytes, and a value in postcard's format.

use anyhow::{Context, Result, bail};
use hamlyn::control::printable;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use std::io::{ErrorKind, Read, Write};

/// The frames of one end.
pub trait Frame: DeserializeOwned {
    /// Longest frame.
    const BYTES_MAX: usize;
}

impl Frame for ToAgent {
    // As many arguments and variables as a program may be started with, and more.
    const BYTES_MAX: usize = 16 << 20;
}

impl Frame for ToLauncher {
    // A line of a rank's has 64 KiB at most.
    const BYTES_MAX: usize = 128 << 10;
}

/// Longest piece of a rank's output.
pub const PIECE_BYTES_MAX: usize = 32 << 10;
/// Most pieces that an agent has sent and the launcher has not printed, separately for standard
/// output and standard error. Beyond it the agent reads no more output of ranks, and they wait.
pub const PIECES_MAX: u32 = 32;

/// After so many times [`Start::beat_ms`] without a frame the launcher counts as gone.
pub const BEATS_MISSED_MAX: u32 = 6;

/// To an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToAgent {
    /// First of all.
    Start(Start),
    /// A line for a rank.
    Line { rank: u32, bytes: Vec<u8> },
    /// A rank's line was read, and its answers were sent: the next may come.
    Heard { rank: u32 },
    /// So many pieces were printed or discarded: as many more may come.
    Printed { is_error: bool, pieces: u32 },
    /// A signal for every rank.
    Signal(i32),
    /// The launcher is alive, and asks whether the agent is.
    Alive,
    /// The launcher will be stopped, and is silent until it continues.
    Pause,
    /// Every rank has to end within so many milliseconds.
    End { grace_ms: u64 },
}

/// The job's part for one agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// Of the command; an agent's is the same.
    pub version: String,
    /// The working directory of the ranks.
    pub directory: Vec<u8>,
    /// The program and its arguments.
    pub program: Vec<Vec<u8>>,
    /// Variables beside the agent's own.
    pub env: Vec<(String, String)>,
    /// The first rank of this host.
    pub first: u32,
    /// The number of its ranks.
    pub count: u32,
    /// The number of ranks of the job.
    pub size: u32,
    /// The longest time between two frames of the launcher; `None` if its end is always seen.
    pub beat_ms: Option<u64>,
}

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToLauncher {
    /// A line from a rank to its launcher.
    Line { rank: u32, bytes: Vec<u8> },
    /// A piece of a rank's output.
    Output { rank: u32, is_error: bool, bytes: Vec<u8> },
    /// A rank has ended, with this status, or 128 and the number of a signal.
    Exited { rank: u32, status: i32 },
    /// The ranks cannot be started, or the agent cannot go on; made printable on arrival.
    Failed(#[serde(deserialize_with = "printable_text")] String),
    /// All ranks have ended, and none of their processes is left.
    Done,
    /// The ranks are started; and the answer to [`ToAgent::Alive`].
    Alive,
}

/// Writes one frame.
pub fn write(to: &mut impl Write, frame: &impl Serialize) -> Result<()> {
    let bytes = postcard::to_stdvec(frame)?;
    to.write_all(&(bytes.len() as u32).to_le_bytes())?;
    to.write_all(&bytes)?;
    Ok(to.flush()?)
}

/// Reads one frame; `None`: the other end has gone.
pub fn read<T: Frame>(from: &mut impl Read) -> Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let bytes_long = u32::from_le_bytes(length) as usize;
    if bytes_long > T::BYTES_MAX {
        let text = text(&length);
        bail!("something else came than frames of this command: it begins with {text:?}");
    }
    let mut bytes = vec![0; bytes_long];
    match from.read_exact(&mut bytes) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let frame = postcard::from_bytes(&bytes).with_context(|| {
        let text = text(&bytes[..bytes.len().min(40)]);
        format!("something else came than frames of this command: {text:?}")
    })?;
    Ok(Some(frame))
}

fn printable_text<'a, D: Deserializer<'a>>(from: D) -> Result<String, D::Error> {
    Ok(printable(&String::deserialize(from)?))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_what_it_was_after_the_way_there() {
        let mut bytes = Vec::new();
        write(&mut bytes, &ToLauncher::Exited { rank: 3, status: 139 }).unwrap();
        let mut from = &bytes[..];
        let read: Option<ToLauncher> = read(&mut from).unwrap();
        assert!(matches!(read, Some(ToLauncher::Exited { rank: 3, status: 139 })));
        assert!(super::read::<ToLauncher>(&mut from).unwrap().is_none());
        // Cut off, it is nothing.
        assert!(super::read::<ToLauncher>(&mut &bytes[..5]).unwrap().is_none());
    }

    #[test]
    fn what_an_agent_says_of_its_failure_sends_a_terminal_no_commands() {
        let mut bytes = Vec::new();
        write(&mut bytes, &ToLauncher::Failed("no\u{1b}[2J\r\u{202e}way".into())).unwrap();
        let Ok(Some(ToLauncher::Failed(why))) = read(&mut &bytes[..]) else { panic!("{bytes:?}") };
        assert_eq!(why, "no\\u{1b}[2J\\r\\u{202e}way");
    }

    #[test]
    fn what_a_shell_prints_is_no_frame() {
        let error = read::<ToLauncher>(&mut &b"Welcome to a.example!\n"[..]).unwrap_err();
        assert!(error.to_string().contains("Welc"), "{error}");
        let noise = [&3u32.to_le_bytes()[..], b"\xff\xff\xff"].concat();
        assert!(read::<ToLauncher>(&mut &noise[..]).is_err());
    }
}
