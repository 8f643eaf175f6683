//! Requests and replies: a server on any number of threads, clients with many calls at a time.

use crate::boundary::{
    Copied, Done, Failure, H_FOREVER, bytes, get, guard, h_status, limit, out, out_or_null, put,
    text,
};
use crate::common::{closed, connected, grown, offered};
use crate::endpoint::{End, give, handles, nothing};
use crate::links::h_peer_t;
use crate::node::h_node_t;
use core::ffi::{c_char, c_void};
use hamlyn::os::memory::ForkGuard;
use hamlyn::protocol::{
    Arrived, Bytes, CallError, CallId, Client, ClientConfig, Server, ServerConfig,
};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

/// Receives requests. Any number of threads may receive and reply at once.
pub struct h_server_t(pub(crate) End<Arc<Server>>);

/// Calls a server. Any number of threads may call at once.
pub struct h_client_t(End<Arc<Client>>);

handles!(h_server_t: Arc<Server>, h_client_t: Arc<Client>);

/// A request, to be replied to once, with h_request_reply, or with h_request_free, which tells the
/// client that no reply will come. It keeps its server alive.
pub struct h_request_t {
    arrived: Arrived,
    server: Arc<Server>,
    fork: Arc<ForkGuard>,
}

/// A reply, to be freed with h_reply_free.
pub struct h_reply_t(Bytes);

impl h_reply_t {
    /// On the heap, for the C program to hold.
    pub(crate) fn give(reply: Bytes) -> *mut Self {
        Box::into_raw(Box::new(Self(reply)))
    }
}

/// Configuration of a server; 0 for the default in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_server_config_t {
    /// Calls that each client may have outstanding (64).
    pub outstanding: u32,
    /// Longest request, in bytes, that is sent at once; a longer one costs another round trip
    /// (4,088, the most).
    pub request_bytes: u32,
    /// Longest request, in bytes (16 MiB).
    pub request_bytes_max: u64,
    /// Bytes of long requests that one user's clients may have here at a time, until each is
    /// replied to; further requests wait at the client, but one is always accepted (64 MiB).
    pub long_bytes_max: u64,
    /// Clients at one time (64).
    pub clients_max: u32,
}

/// Configuration of a client; 0 for the default in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_client_config_t {
    /// Calls that may be outstanding, if the server allows that many (64).
    pub outstanding: u32,
    /// Longest reply, in bytes, that is sent at once (4,088, the most).
    pub reply_bytes: u32,
    /// Longest reply, in bytes (16 MiB).
    pub reply_bytes_max: u64,
}

/// Names a call of one client. A value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_call_t {
    /// Private to the library.
    pub bits: u64,
}

fn set<T: Default + PartialEq>(place: &mut T, value: T) {
    if value != T::default() {
        *place = value;
    }
}

/// # Safety
/// As [`get`], or null.
pub(crate) unsafe fn client_config(config: *const h_client_config_t) -> Done<ClientConfig> {
    let mut wanted = ClientConfig::default();
    if !config.is_null() {
        let config = get(config, "config")?;
        set(&mut wanted.outstanding, config.outstanding);
        set(&mut wanted.reply_bytes, config.reply_bytes);
        set(&mut wanted.reply_bytes_max, config.reply_bytes_max);
    }
    Ok(wanted)
}

/// Makes a server; `config` may be null. To be freed with h_server_close or h_server_free.
///
/// Errors: H_LIMIT, a number is not allowed, or there is no memory for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_new(
    node: *mut h_node_t,
    config: *const h_server_config_t,
    server: *mut *mut h_server_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(server, "server")?);
        let mut wanted = ServerConfig::default();
        if !config.is_null() {
            let config = get(config, "config")?;
            set(&mut wanted.outstanding, config.outstanding);
            set(&mut wanted.request_bytes, config.request_bytes);
            set(&mut wanted.request_bytes_max, config.request_bytes_max);
            set(&mut wanted.long_bytes_max, config.long_bytes_max);
            set(&mut wanted.clients_max, config.clients_max);
        }
        let made = Arc::new(Server::new(node.manager()?, wanted)?);
        place.write(give(node, made)?);
        Ok(())
    })
}

offered! {
    server: h_server_t, of "a client", "clients";
    h_server_seed, h_server_serve, h_server_stop_serving,
    h_server_set_admission, h_server_offer
}

/// Receives the next request, waiting at most `timeout_ns`. Any number of threads may wait.
///
/// Errors: H_NOTHING, no request waits and the time limit was 0; H_TIMED_OUT; H_CLOSED, the server
/// drains, and no more requests will come; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_receive(
    server: *mut h_server_t,
    timeout_ns: i64,
    request: *mut *mut h_request_t,
) -> h_status {
    guard(|| {
        let (end, place) = (&get(server, "server")?.0, out(request, "request")?);
        let server = end.shared()?;
        let request = match timeout_ns {
            0 => server.try_receive()?.ok_or_else(nothing)?,
            _ => server.receive(limit(timeout_ns))?,
        };
        let arrived = request.detach();
        let (server, fork) = (server.clone(), end.fork().clone());
        place.write(Box::into_raw(Box::new(h_request_t { arrived, server, fork })));
        Ok(())
    })
}

/// The bytes of a request, and their number; `length` may be null. They are stable until the
/// request is replied to or freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_request_data(
    request: *const h_request_t,
    data: *mut *const c_void,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let (request, data) = (get(request, "request")?, out(data, "data")?);
        let length = out_or_null(length, "length")?;
        data.write(request.arrived.as_ptr().cast());
        put(length, request.arrived.len());
        Ok(())
    })
}

/// The identity of the caller, from the kernel.
///
/// Errors: H_NO_SUCH, the caller left long ago.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_request_peer(
    request: *const h_request_t,
    peer: *mut h_peer_t,
) -> h_status {
    guard(|| {
        let (request, place) = (get(request, "request")?, out(peer, "peer")?);
        if !request.fork.is_parent() {
            return Err(hamlyn::node::Forked.into());
        }
        // Not by the link, which another client may have by now.
        let peer = request.server.peer_of_which(request.arrived.which());
        let gone = || Failure::new(h_status::H_NO_SUCH, "the client is long gone");
        place.write((&peer.ok_or_else(gone)?).into());
        Ok(())
    })
}

/// Replies to a request, waiting at most `timeout_ns` for room, and, if the reply is long, for the
/// client to make room for it and for the bytes to leave. Frees the request, whatever the result.
///
/// With H_FOREVER a reply of at most the client's `reply_bytes` does not wait: it is queued, and
/// leaves in a later call. A longer one waits until the client takes it, possibly forever; and the
/// client chooses `reply_bytes`. With any other limit both wait at most that long. An error
/// concerns that client alone: the server can go on serving the others.
///
/// Errors, the client learns that no reply will come: H_TIMED_OUT; H_TOO_LONG, for the client;
/// H_CLOSED, H_DIED, the client is gone. H_INVALID, null; then the request is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_request_reply(
    request: *mut h_request_t,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        get(request, "request")?;
        let data = bytes(data, length, "data")?;
        let request = Box::from_raw(request);
        if !request.fork.is_parent() {
            core::mem::forget(request);
            return Err(hamlyn::node::Forked.into());
        }
        let h_request_t { arrived, server, .. } = *request;
        Ok(server.attach(arrived).reply(data, limit(timeout_ns))?)
    })
}

/// Answers that a request has failed, waiting at most `timeout_ns` for room: the client gets
/// H_APPLICATION, with this code, which the application defines, and this text. Frees the request,
/// whatever the result.
///
/// Errors, the client learns that no reply will come: H_TIMED_OUT; H_TOO_LONG, a text of more than
/// 1,024 bytes, or than the client's `reply_bytes` less 8; H_CLOSED, H_DIED, the client is gone.
/// H_INVALID, null, or not UTF-8; then the request is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_request_fail(
    request: *mut h_request_t,
    code: u32,
    reason: *const c_char,
    timeout_ns: i64,
) -> h_status {
    guard(|| {
        get(request, "request")?;
        let reason = text(reason, "reason")?;
        let request = Box::from_raw(request);
        if !request.fork.is_parent() {
            core::mem::forget(request);
            return Err(hamlyn::node::Forked.into());
        }
        let h_request_t { arrived, server, .. } = *request;
        Ok(server.attach(arrived).fail(code, reason, limit(timeout_ns))?)
    })
}

/// The time for which the caller goes on waiting, in nanoseconds, if it called
/// h_client_call_within; H_FOREVER if not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_request_time_left(
    request: *const h_request_t,
    left_ns: *mut i64,
) -> h_status {
    guard(|| {
        let (request, place) = (get(request, "request")?, out(left_ns, "left_ns")?);
        let left = request.arrived.deadline().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now()).as_nanos();
            i64::try_from(left).unwrap_or(i64::MAX)
        });
        place.write(left.unwrap_or(H_FOREVER));
        Ok(())
    })
}

/// Whether no caller waits for the reply any more: it has given up, its client is gone, or its time
/// limit has passed. Takes a turn. A reply is still allowed, and is dropped at the client.
///
/// Errors: H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_request_is_cancelled(
    request: *const h_request_t,
    is_cancelled: *mut bool,
) -> h_status {
    guard(|| {
        let (request, place) = (get(request, "request")?, out(is_cancelled, "is_cancelled")?);
        if !request.fork.is_parent() {
            return Err(hamlyn::node::Forked.into());
        }
        place.write(request.server.is_cancelled(&request.arrived));
        Ok(())
    })
}

/// Frees a request without a reply; the client learns that no reply will come. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_request_free(request: *mut h_request_t) {
    guard(|| {
        if !request.is_null() {
            get(request, "request")?;
            let request = Box::from_raw(request);
            if !request.fork.is_parent() {
                core::mem::forget(request);
                return Ok(());
            }
            let h_request_t { arrived, server, .. } = *request;
            drop(server.attach(arrived));
        }
        Ok(())
    });
}

/// The number of connected clients, and of clients that were disconnected because they broke the
/// rules; either pointer may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_clients(
    server: *mut h_server_t,
    connected: *mut usize,
    misbehaved: *mut u64,
) -> h_status {
    guard(|| {
        let server = get(server, "server")?.0.shared()?;
        put(out_or_null(connected, "connected")?, server.clients());
        put(out_or_null(misbehaved, "misbehaved")?, server.misbehaved());
        Ok(())
    })
}

/// Takes no new requests, waits at most `timeout_ns` until the accepted ones have been received and
/// replied to, and closes all connections. `unanswered`, which may be null, gets the number of
/// requests without a reply: 0 if all were answered.
///
/// The server's names are free for another server from the beginning, and new calls get H_DRAINING.
/// Receiving goes on, in other threads, and fails with H_CLOSED when no request is left. Afterwards
/// no client is connected; free the server.
///
/// Errors: H_FORKED; H_SYSTEM. The server then takes nothing new, and its connections are as they
/// were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_drain(
    server: *mut h_server_t,
    timeout_ns: i64,
    unanswered: *mut usize,
) -> h_status {
    guard(|| {
        let server = get(server, "server")?.0.shared()?;
        let place = out_or_null(unanswered, "unanswered")?;
        put(place, server.drain(limit(timeout_ns))?);
        Ok(())
    })
}

/// Begins to drain, and does not wait: for a program of one thread, such as an event loop. Go on
/// receiving until h_server_receive returns H_CLOSED, reply to the requests still held, and then
/// call h_server_drain, which has nothing left to wait for. A client that has announced a long
/// request can delay that: a program that must end sets a limit of its own, and then calls
/// h_server_drain with a limit of 0.
///
/// Errors: H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_begin_drain(server: *mut h_server_t) -> h_status {
    guard(|| {
        get(server, "server")?.0.shared()?.begin_drain()?;
        Ok(())
    })
}

impl Drop for h_server_t {
    /// Its names are free at once, though a held request keeps the server alive.
    fn drop(&mut self) {
        if let Ok(server) = self.0.shared() {
            server.stop_serving();
        }
    }
}

closed! {
    /// Its names are free at once. Its clients get a goodbye once the received requests are freed,
    /// too.
    server: h_server_t, "every queued message of the node";
    h_server_close, h_server_free
}

grown! {
    /// `config` may be null.
    client: h_client_t, "a client" of "server", Client => Arc::new,
    config: *const h_client_config_t => client_config(config)?;
    h_client_grow, h_client_connect, h_client_grow_from; h_client_close, h_client_free
}

std::thread_local! {
    static CODE: Cell<u32> = const { Cell::new(0) };
}

/// The failure of a call; for an application's error, its text, with the code kept apart.
pub(crate) fn failed(e: CallError) -> Failure {
    match e {
        CallError::Application { code, text } => {
            let _ = CODE.try_with(|of| of.set(code));
            Failure::new(h_status::H_APPLICATION, text)
        }
        e => e.into(),
    }
}

/// The code of this thread's last H_APPLICATION, which the server's program passed to
/// h_request_fail; 0 before the first.
#[unsafe(no_mangle)]
pub extern "C" fn h_error_code() -> u32 {
    CODE.try_with(Cell::get).unwrap_or(0)
}

/// Sends a request and waits for the reply, at most `timeout_ns` in all. The reply is copied to
/// `reply`; `reply_length`, which may be null, gets the number of its bytes. If the reply's length
/// is unknown, use h_client_start and h_client_finish.
///
/// Errors: H_TIMED_OUT, the server may still be at work, and its reply will be dropped; H_REFUSED,
/// the server will not reply; H_DRAINING, the server is about to close and has not taken the
/// request, which may be sent to another; H_CLOSED, H_DIED, the server is gone, and may or may not
/// have carried out the request; H_MISBEHAVED; H_TOO_LONG, the request, for the server, or the
/// reply, for `capacity`: then `reply_length` is written, and the reply is dropped; H_LIMIT, no
/// memory for a long reply; H_APPLICATION, the server's program has answered with an error of its
/// own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_call(
    client: *mut h_client_t,
    request: *const c_void,
    length: usize,
    timeout_ns: i64,
    reply: *mut c_void,
    capacity: usize,
    reply_length: *mut usize,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.shared()?;
        let request = bytes(request, length, "request")?;
        let copied = Copied::new(reply, capacity, reply_length)?;
        copied.put(&client.call(request, limit(timeout_ns)).map_err(failed)?)
    })
}

/// As h_client_call, and sends the server the limit, which is not H_FOREVER: h_request_time_left
/// tells the server's program when the caller gives up. Costs 8 bytes of the request.
///
/// Errors: as h_client_call; H_INVALID, a negative limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_call_within(
    client: *mut h_client_t,
    request: *const c_void,
    length: usize,
    limit_ns: i64,
    reply: *mut c_void,
    capacity: usize,
    reply_length: *mut usize,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.shared()?;
        let request = bytes(request, length, "request")?;
        let copied = Copied::new(reply, capacity, reply_length)?;
        let within = limit(limit_ns).ok_or_else(|| Failure::invalid("limit_ns is negative"))?;
        copied.put(&client.call_within(request, within).map_err(failed)?)
    })
}

/// Sends a request, waiting at most `timeout_ns` for a free call and, if it is long, for the server
/// to make room for it. h_client_finish gets the reply.
///
/// Errors, there is no call: as h_client_call; H_TIMED_OUT also if all calls that may be
/// outstanding wait for replies, forgotten ones included; then nothing was sent, and the text says
/// so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_start(
    client: *mut h_client_t,
    request: *const c_void,
    length: usize,
    timeout_ns: i64,
    call: *mut h_call_t,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.shared()?;
        let request = bytes(request, length, "request")?;
        let place = out(call, "call")?;
        let call = client.start(request, limit(timeout_ns))?;
        place.write(h_call_t { bits: call.to_bits() });
        Ok(())
    })
}

/// Waits for the reply of a call, at most `timeout_ns`; to be freed with h_reply_free. The call
/// ends, unless the status is H_NOTHING or H_TIMED_OUT: then finish it later, or forget it.
///
/// Errors: H_NOTHING, no reply has come and the time limit was 0; H_TIMED_OUT; H_NO_SUCH; otherwise
/// as h_client_call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_finish(
    client: *mut h_client_t,
    call: h_call_t,
    timeout_ns: i64,
    reply: *mut *mut h_reply_t,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.shared()?;
        let place = out(reply, "reply")?;
        let call = CallId::from_bits(call.bits);
        let reply = match client.finish(call, limit(timeout_ns)) {
            Err(CallError::TimedOut) if timeout_ns == 0 => return Err(nothing()),
            other => other.map_err(failed)?,
        };
        place.write(h_reply_t::give(reply));
        Ok(())
    })
}

/// Forgets a call: its reply will be dropped. The call does not exist from now on (H_NO_SUCH), not
/// even for a thread that waits for it; its place among the calls that may be outstanding is free
/// when the server has answered. For a call that does not exist, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_forget(client: *mut h_client_t, call: h_call_t) -> h_status {
    guard(|| {
        get(client, "client")?.0.shared()?.forget(CallId::from_bits(call.bits));
        Ok(())
    })
}

/// The bytes of a reply, and their number; `length` may be null. They are stable until it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_reply_data(
    reply: *const h_reply_t,
    data: *mut *const c_void,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let (reply, data) = (get(reply, "reply")?, out(data, "data")?);
        let length = out_or_null(length, "length")?;
        data.write(reply.0.as_ptr().cast());
        put(length, reply.0.len());
        Ok(())
    })
}

/// Frees a reply. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_reply_free(reply: *mut h_reply_t) {
    guard(|| {
        if !reply.is_null() {
            get(reply, "reply")?;
            drop(Box::from_raw(reply));
        }
        Ok(())
    });
}

/// The number of calls that may be outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_outstanding_max(
    client: *mut h_client_t,
    count: *mut usize,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.shared()?;
        out(count, "count")?.write(client.outstanding_max());
        Ok(())
    })
}

connected!(client: h_client_t; h_client_peer, h_client_explain);

closed! {
    /// Ends its outstanding calls.
    client: h_client_t, "every sent message";
    h_client_close, h_client_free
}
