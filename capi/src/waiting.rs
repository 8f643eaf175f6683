//! Waiting for a node without keeping its lock.

use crate::boundary::{Done, limit};
use hamlyn::protocol::Manager;
use std::time::{Duration, Instant};

/// Calls `turn` with the node's lock until it returns something other than "not now", or the time
/// limit has passed; other threads work between the turns.
pub fn repeat<T>(
    manager: &Manager,
    timeout_ns: i64,
    mut turn: impl FnMut(&mut hamlyn::Node) -> Done<Option<T>>,
) -> Done<Option<T>> {
    let began = Instant::now();
    let limit = limit(timeout_ns);
    for round in 0u32.. {
        if let Some(value) = turn(&mut manager.lock())? {
            return Ok(Some(value));
        }
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            break;
        }
        match round {
            0..1000 => std::hint::spin_loop(),
            1000..1100 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
    Ok(None)
}

/// Whether every queued message of the node has left within the time limit.
pub fn flush(manager: &Manager, timeout_ns: i64) -> Done<bool> {
    let done =
        repeat(manager, timeout_ns, |node| Ok(node.flush(Some(Duration::ZERO))?.then_some(())))?;
    Ok(done.is_some())
}
