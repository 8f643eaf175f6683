//! One connection through the attacker: it forwards TLS records until an order changes the next one
//! of one direction.

use anyhow::{Context, Result, bail};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time limit for events that come at once if nothing is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a record's header: kind, version, length.
const HEAD_BYTES: usize = 5;
/// Bytes recorded of each direction of a conversation.
const SEEN_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToFar,
    ToNear,
}

/// An attack on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    /// One bit of it is changed.
    Change,
    /// It is sent twice.
    Twice,
    /// It is dropped.
    LeaveOut,
    /// Both directions end before it.
    Cut,
}

#[derive(Default)]
struct State {
    armed: Option<(Direction, Trick)>,
    /// Whether the attack has happened.
    is_done: bool,
    seen: [Vec<u8>; 2],
    /// The sockets of the connection.
    sockets: Vec<TcpStream>,
}

pub struct Relay {
    state: Arc<Mutex<State>>,
    thread: JoinHandle<Result<()>>,
}

impl Relay {
    /// Forwards the next connection that comes to `listener`.
    pub fn start(listener: &TcpListener, to: SocketAddr) -> Result<Self> {
        let (listener, state) = (listener.try_clone()?, Arc::new(Mutex::new(State::default())));
        let its = state.clone();
        let thread = thread::Builder::new().spawn(move || pass_both(&listener, to, &its))?;
        Ok(Self { state, thread })
    }

    /// Orders an attack on the next record of that direction.
    pub fn arm(&self, direction: Direction, trick: Trick) {
        locked(&self.state).armed = Some((direction, trick));
    }

    /// Ends the connection: ends in disagreement may take their time.
    pub fn cut_off(&self) {
        for tcp in &locked(&self.state).sockets {
            let _ = tcp.shutdown(Shutdown::Both);
        }
    }

    /// Waits until both ends have ended the connection, and returns the recorded bytes of each
    /// direction. An error if the ordered attack did not happen.
    pub fn end(self) -> Result<[Vec<u8>; 2]> {
        self.thread.join().map_err(|_| anyhow::anyhow!("the relay panicked"))??;
        let mut state = locked(&self.state);
        if state.armed.is_some() && !state.is_done {
            bail!("nothing came to which it could be done");
        }
        state.sockets.clear();
        Ok(core::mem::take(&mut state.seen))
    }
}

fn locked(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next connection, within a time limit.
pub fn accept(listener: &TcpListener) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((tcp, _)) => {
                tcp.set_nonblocking(false)?;
                return Ok(tcp);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("nobody connected through the attacker"),
        }
    }
}

fn pass_both(listener: &TcpListener, to: SocketAddr, state: &Mutex<State>) -> Result<()> {
    let near = accept(listener)?;
    let far = TcpStream::connect_timeout(&to, PATIENCE).context("the far host")?;
    for tcp in [&near, &far] {
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(PATIENCE))?;
    }
    locked(state).sockets = vec![near.try_clone()?, far.try_clone()?];
    thread::scope(|scope| {
        scope.spawn(|| pass(&near, &far, Direction::ToFar, state));
        pass(&far, &near, Direction::ToNear, state);
    });
    Ok(())
}

/// Forwards records until either end is gone.
fn pass(mut from: &TcpStream, mut to: &TcpStream, direction: Direction, state: &Mutex<State>) {
    let mut record = Vec::new();
    loop {
        record.resize(HEAD_BYTES, 0);
        if from.read_exact(&mut record).is_err() {
            break;
        }
        let length = u16::from_be_bytes([record[3], record[4]]);
        record.resize(HEAD_BYTES + usize::from(length), 0);
        if from.read_exact(&mut record[HEAD_BYTES..]).is_err() {
            break;
        }
        let mut now = locked(state);
        let seen = &mut now.seen[direction as usize];
        if seen.len() + record.len() <= SEEN_BYTES {
            seen.extend_from_slice(&record);
        }
        let is_meant = |armed: &(Direction, Trick)| armed.0 == direction;
        let trick = now.armed.filter(is_meant).filter(|_| !now.is_done).map(|armed| armed.1);
        now.is_done |= trick.is_some();
        drop(now);
        let times = match trick {
            None => 1,
            Some(Trick::Change) => {
                // In the middle of the payload, and so in no length.
                let at = HEAD_BYTES + usize::from(length) / 2;
                record[at.min(HEAD_BYTES + usize::from(length) - 1)] ^= 0x10;
                1
            }
            Some(Trick::Twice) => 2,
            Some(Trick::LeaveOut) => 0,
            Some(Trick::Cut) => break,
        };
        if (0..times).any(|_| to.write_all(&record).is_err()) {
            break;
        }
    }
    // The other direction, too: neither end has a peer any more.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
