//! Byte streams: bytes in both directions, as over a socket.

use crate::boundary::{
    Done, Failure, bytes, bytes_out, get, guard, h_status, limit, out, out_or_null, put,
};
use crate::common::{closed, connected, grown, offered};
use crate::endpoint::{End, full, give, give_beside, handles, nothing, received};
use crate::node::h_node_t;
use core::ffi::c_void;
use hamlyn::protocol::{ByteConfig, ByteListener, ByteStream, ByteStreamError};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

/// Accepts byte streams. Any number of threads may accept.
pub struct h_byte_listener_t(pub(crate) End<Arc<ByteListener>>);

/// One side of a connection: bytes in both directions, in order. One thread may read while another
/// writes.
pub struct h_byte_stream_t(pub(crate) End<Arc<ByteStream>>);

handles!(h_byte_listener_t: Arc<ByteListener>, h_byte_stream_t: Arc<ByteStream>);

/// Configuration of a listener, or of a stream that connects; 0 for the default in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_byte_config_t {
    /// Bytes that the other side may send before they are read: a power of two from 4 KiB to 16 MiB
    /// (256 KiB).
    pub window_bytes: u32,
    /// Packets that the other side may send before this side processes them, from 8 to 1,024 (256).
    pub packets: u32,
    /// For a listener: connections at one time, accepted or not (256).
    pub connections_max: u32,
}

/// # Safety
/// As [`get`], or null.
unsafe fn byte_config(config: *const h_byte_config_t) -> Done<ByteConfig> {
    let mut wanted = ByteConfig::default();
    if !config.is_null() {
        let config = get(config, "config")?;
        let fields = [
            (&mut wanted.window_bytes, config.window_bytes),
            (&mut wanted.packets, config.packets),
            (&mut wanted.connections_max, config.connections_max),
        ];
        for (place, given) in fields.into_iter().filter(|(_, given)| *given != 0) {
            *place = given;
        }
    }
    Ok(wanted)
}

/// Makes a listener; `config` may be null. To be freed with h_byte_listener_close or
/// h_byte_listener_free.
///
/// Errors: H_LIMIT, a number is not allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_byte_listener_new(
    node: *mut h_node_t,
    config: *const h_byte_config_t,
    listener: *mut *mut h_byte_listener_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(listener, "listener")?);
        let made = Arc::new(ByteListener::new(node.manager()?, byte_config(config)?)?);
        place.write(give(node, made)?);
        Ok(())
    })
}

offered! {
    listener: h_byte_listener_t, of "a byte stream", "byte streams";
    h_byte_listener_seed, h_byte_listener_serve, h_byte_listener_stop_serving,
    h_byte_listener_set_admission, h_byte_listener_offer
}

/// Accepts the next connection, waiting at most `timeout_ns`. Its bytes may be there already. To be
/// freed with h_byte_stream_close or h_byte_stream_free; it outlives the listener.
///
/// Errors: H_NOTHING, no connection waits and the time limit was 0; H_TIMED_OUT; H_FORKED;
/// H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_byte_listener_accept(
    listener: *mut h_byte_listener_t,
    timeout_ns: i64,
    stream: *mut *mut h_byte_stream_t,
) -> h_status {
    guard(|| {
        let (end, place) = (&get(listener, "listener")?.0, out(stream, "stream")?);
        let accepted = received(end.shared()?.accept(limit(timeout_ns)), timeout_ns)?;
        place.write(give_beside(end, Arc::new(accepted)));
        Ok(())
    })
}

/// The number of connections, accepted or not, and of peers that were disconnected because they
/// broke the rules. Either pointer may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_byte_listener_connections(
    listener: *mut h_byte_listener_t,
    connections: *mut usize,
    misbehaved: *mut u64,
) -> h_status {
    guard(|| {
        let listener = get(listener, "listener")?.0.shared()?;
        let connections = out_or_null(connections, "connections")?;
        let misbehaved = out_or_null(misbehaved, "misbehaved")?;
        put(connections, listener.connections());
        put(misbehaved, listener.misbehaved());
        Ok(())
    })
}

closed! {
    /// Gives its name up, and closes connections that were not accepted; accepted ones go on.
    listener: h_byte_listener_t, "every queued message of the node";
    h_byte_listener_close, h_byte_listener_free
}

grown! {
    /// `config` may be null.
    stream: h_byte_stream_t, "a byte stream" of "listener", ByteStream => Arc::new,
    config: *const h_byte_config_t => byte_config(config)?;
    h_byte_stream_grow, h_byte_stream_connect, h_byte_stream_grow_from; h_byte_stream_close, h_byte_stream_free
}

/// Reads up to `capacity` bytes, waiting at most `timeout_ns` for the first of them; `length` gets
/// their number. 0: the other side has shut down its direction, and all of its bytes were read.
///
/// Errors, nothing was read: H_NOTHING, no byte has come and the time limit was 0; H_TIMED_OUT;
/// H_INVALID, a capacity of 0; H_DIED, H_CLOSED, the other side is gone without a shutdown;
/// H_MISBEHAVED; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_byte_stream_read(
    stream: *mut h_byte_stream_t,
    timeout_ns: i64,
    to: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let stream = get(stream, "stream")?.0.shared()?;
        let (to, length) = (bytes_out(to, capacity, "to")?, out(length, "length")?);
        if capacity == 0 {
            // A read of 0 bytes would look like the end.
            return Err(Failure::invalid("capacity is 0, and must be at least 1"));
        }
        match stream.read_within(to, limit(timeout_ns)) {
            Err(ByteStreamError::TimedOut) if timeout_ns == 0 => Err(nothing()),
            read => {
                length.write(read?);
                Ok(())
            }
        }
    })
}

/// The result of a write.
fn written<T>(result: Result<T, ByteStreamError>, timeout_ns: i64) -> Done<T> {
    match result {
        Err(ByteStreamError::TimedOut) if timeout_ns == 0 => Err(full()),
        other => Ok(other?),
    }
}

/// Sends as many of `length` bytes as there is room for, waiting at most `timeout_ns` for room for
/// the first of them; `taken` gets their number. These bytes arrive even if this process ends.
///
/// Errors, nothing was sent: H_FULL, the time limit was 0; H_TIMED_OUT; H_CLOSED, H_DIED, the other
/// side is gone; H_STATE, h_byte_stream_shutdown was called; H_MISBEHAVED; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_byte_stream_write(
    stream: *mut h_byte_stream_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
    taken: *mut usize,
) -> h_status {
    guard(|| {
        let stream = get(stream, "stream")?.0.shared()?;
        let (data, taken) = (bytes(data, length, "data")?, out(taken, "taken")?);
        let slices = [IoSlice::new(data)];
        taken.write(written(stream.write_within(&slices, limit(timeout_ns)), timeout_ns)?);
        Ok(())
    })
}

/// Sends all of `length` bytes, waiting at most `timeout_ns` for room. `taken`, which may be null,
/// gets the number of bytes that were sent, also if the call fails.
///
/// Errors: as h_byte_stream_write; do not send the taken bytes again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_byte_stream_write_all(
    stream: *mut h_byte_stream_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
    taken: *mut usize,
) -> h_status {
    guard(|| {
        let stream = get(stream, "stream")?.0.shared()?;
        let (data, taken) = (bytes(data, length, "data")?, out_or_null(taken, "taken")?);
        let (began, limit) = (Instant::now(), limit(timeout_ns));
        let mut sent = 0;
        let mut result = Ok(());
        while sent < data.len() && result.is_ok() {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let slices = [IoSlice::new(&data[sent..])];
            result = written(stream.write_within(&slices, left), timeout_ns).map(|now| sent += now);
        }
        put(taken, sent);
        result
    })
}

/// Ends this side's direction, waiting at most `timeout_ns` for room: the other side reads the
/// bytes written so far, and then the end. Reading goes on. Closing does the same.
///
/// Errors: as h_byte_stream_write; the direction is still open, and the call may be repeated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_byte_stream_shutdown(
    stream: *mut h_byte_stream_t,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        let stream = get(stream, "stream")?.0.shared()?;
        written(stream.shut(limit(timeout_ns)), timeout_ns)
    })
}

connected!(stream: h_byte_stream_t; h_byte_stream_peer, h_byte_stream_explain);

closed! {
    /// The other side reads all written bytes, and then the end.
    stream: h_byte_stream_t, "every queued message of the node";
    h_byte_stream_close, h_byte_stream_free
}
