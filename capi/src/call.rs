//! Requests and replies: a server on any number of threads, clients with many calls at a time.

use crate::boundary::{
    Copied, Done, bytes, get, guard, h_status, limit, out, out_or_null, put, text,
};
use crate::endpoint::{Shared, admission, close, free, give, handles, nothing};
use crate::links::{access_of, h_admission_t, h_peer_t};
use crate::node::h_node_t;
use crate::seeds::h_seed_t;
use core::ffi::{c_char, c_void};
use hamlyn::LinkId;
use hamlyn::os::memory::ForkGuard;
use hamlyn::protocol::{
    Arrived, Bytes, CallError, CallId, Client, ClientConfig, EndPoint, Server, ServerConfig,
};
use std::sync::Arc;

/// Receives requests. Any number of threads may receive and reply at once.
pub struct h_server_t(pub(crate) Shared<Arc<Server>>);

/// Calls a server. Any number of threads may call at once.
pub struct h_client_t(Shared<Client>);

handles!(h_server_t, h_client_t);

/// A request that is to be replied to, once: with h_request_reply, or with h_request_free, which
/// tells the client that no reply will come. It keeps its server.
pub struct h_request_t {
    arrived: Arrived,
    link: LinkId,
    server: Arc<Server>,
    fork: Arc<ForkGuard>,
}

/// A reply, to be freed with h_reply_free.
pub struct h_reply_t(Bytes);

/// What a server is made of; 0 for what is in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_server_config_t {
    /// Calls that each client may have outstanding (64).
    pub outstanding: u32,
    /// Bytes of a request that are sent at once; longer ones cost a round trip more (4,092, the
    /// most).
    pub request_bytes: u32,
    /// Longest request, in bytes (16 MiB).
    pub request_bytes_max: u64,
    /// Clients at one time (64).
    pub clients_max: u32,
}

/// What a client is made of; 0 for what is in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_client_config_t {
    /// Calls that may be outstanding, if the server allows as many (64).
    pub outstanding: u32,
    /// Bytes of a reply that are sent at once (4,092, the most).
    pub reply_bytes: u32,
    /// Longest reply, in bytes (16 MiB).
    pub reply_bytes_max: u64,
}

/// Names a call of one client. A value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_call_t {
    /// For the library.
    pub bits: u64,
}

fn set<T: Default + PartialEq>(place: &mut T, value: T) {
    if value != T::default() {
        *place = value;
    }
}

/// # Safety
/// As [`get`], or null.
unsafe fn client_config(config: *const h_client_config_t) -> Done<ClientConfig> {
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
            set(&mut wanted.clients_max, config.clients_max);
        }
        let made = Arc::new(Server::new(node.manager()?, wanted)?);
        place.write(give(h_server_t(Shared::new(node, made)?)));
        Ok(())
    })
}

/// A seed from which a client can be grown, by any process that may connect; each call makes
/// another.
///
/// Errors: H_SYSTEM, the service for seeds cannot be offered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_seed(server: *mut h_server_t, seed: *mut h_seed_t) -> h_status {
    guard(|| {
        let server = get(server, "server")?;
        let seed = out(seed, "seed")?;
        seed.write(server.0.lock()?.seed()?.into());
        Ok(())
    })
}

/// Lets clients find this server by name. `access` is an h_access; `gid` is used for
/// H_ACCESS_GROUP only.
///
/// Errors: H_INVALID, no name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_serve(
    server: *mut h_server_t,
    name: *const c_char,
    access: u32,
    gid: u32,
) -> h_status {
    guard(|| {
        let server = get(server, "server")?;
        let (name, access) = (text(name, "name")?, access_of(access, gid)?);
        Ok(server.0.lock()?.serve(name, access)?)
    })
}

/// Asks `admit` about each process that wants to grow a client; null: all who may connect are let
/// in again. See h_admission_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_set_admission(
    server: *mut h_server_t,
    admit: h_admission_t,
    context: *mut c_void,
) -> h_status {
    guard(|| {
        get(server, "server")?.0.lock()?.set_admission(admission(admit, context));
        Ok(())
    })
}

/// The next request, waiting at most `timeout_ns`. Any number of threads may wait.
///
/// Errors: H_NOTHING, none is there and the time limit was 0; H_TIMED_OUT; H_FORKED; H_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_receive(
    server: *mut h_server_t,
    timeout_ns: i64,
    request: *mut *mut h_request_t,
) -> h_status {
    guard(|| {
        let (shared, place) = (&get(server, "server")?.0, out(request, "request")?);
        let server = shared.lock()?;
        let request = match timeout_ns {
            0 => server.try_receive()?.ok_or_else(nothing)?,
            _ => server.receive(limit(timeout_ns))?,
        };
        let link = request.link();
        let arrived = request.detach();
        let (server, fork) = (server.clone(), shared.fork().clone());
        place.write(Box::into_raw(Box::new(h_request_t { arrived, link, server, fork })));
        Ok(())
    })
}

/// The bytes of a request, and how many; `length` may be null. They stand still until the request
/// is replied to or freed.
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

/// Who calls, as the kernel says.
///
/// Errors: H_NO_SUCH, it is long gone.
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
        let manager = EndPoint::manager(&*request.server);
        place.write(manager.lock().peer(request.link)?.into());
        Ok(())
    })
}

/// Replies to a request, waiting at most `timeout_ns` for room, and, where the reply is long, for
/// the client to make room for it and for the bytes to leave. The request is freed, whatever is
/// returned.
///
/// Errors, the client is told that no reply will come: H_TIMED_OUT; H_TOO_LONG, for the client;
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

/// Frees a request without a reply: the client is told that none will come. Null is allowed.
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

/// How many clients are connected, and how many were sent away because they broke the rules;
/// either pointer may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_clients(
    server: *mut h_server_t,
    connected: *mut usize,
    misbehaved: *mut u64,
) -> h_status {
    guard(|| {
        let server = get(server, "server")?.0.lock()?;
        put(out_or_null(connected, "connected")?, server.clients());
        put(out_or_null(misbehaved, "misbehaved")?, server.misbehaved());
        Ok(())
    })
}

/// Closes a server: what the node has queued leaves first, for at most `timeout_ns`.
/// Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_close(server: *mut h_server_t, timeout_ns: i64) -> h_status {
    guard(|| close(server, "server", timeout_ns))
}

/// Frees a server without waiting. Null is allowed.
/// Its clients are told goodbye once the requests that were received are freed, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_server_free(server: *mut h_server_t) {
    guard(|| free(server, "server"));
}

/// Grows a client from a seed, waiting at most `timeout_ns` for the server's answer.
/// `config` may be null. To be freed
/// with h_client_close or h_client_free.
///
/// Errors: H_SEED, no seed, or one of another protocol; H_REFUSED, the seed is old or forged, or
/// the server takes no more; H_NOT_FOUND, its process is gone; H_TIMED_OUT; H_LIMIT. Nothing is left
/// of the attempt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_grow(
    node: *mut h_node_t,
    seed: *const h_seed_t,
    config: *const h_client_config_t,
    timeout_ns: i64,
    client: *mut *mut h_client_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(client, "client")?);
        let seed = get(seed, "seed")?.read()?;
        let config = client_config(config)?;
        let grown = Client::grow_with(node.manager()?, &seed, config, limit(timeout_ns))?;
        place.write(give(h_client_t(Shared::new(node, grown)?)));
        Ok(())
    })
}

/// Grows a client of what is served as "[user@]name"; otherwise as h_client_grow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_connect(
    node: *mut h_node_t,
    name: *const c_char,
    config: *const h_client_config_t,
    timeout_ns: i64,
    client: *mut *mut h_client_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(client, "client")?);
        let name = text(name, "name")?;
        let config = client_config(config)?;
        let grown = Client::connect_with(node.manager()?, name, config, limit(timeout_ns))?;
        place.write(give(h_client_t(Shared::new(node, grown)?)));
        Ok(())
    })
}

/// Sends a request and waits for the reply, at most `timeout_ns` in all. The reply is copied to
/// `reply`; `reply_length`, which may be null, gets how many bytes it has. Where the reply's
/// length is not known, use h_client_start and h_client_finish.
///
/// Errors: H_TIMED_OUT, the server may still be at work, and its reply will be dropped; H_REFUSED,
/// the server will not reply; H_CLOSED, H_DIED, the server is gone; H_MISBEHAVED; H_TOO_LONG, the
/// request, for the server, or the reply, for `capacity`: then `reply_length` is written, and the
/// reply is dropped; H_LIMIT, no memory for a long reply.
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
        let client = get(client, "client")?.0.lock()?;
        let request = bytes(request, length, "request")?;
        let copied = Copied::new(reply, capacity, reply_length)?;
        copied.put(&client.call(request, limit(timeout_ns))?)
    })
}

/// Sends a request, waiting at most `timeout_ns` for a free call and, if it is long, for the server
/// to make room for it. The reply is had with h_client_finish.
///
/// Errors: as h_client_call; H_TIMED_OUT, there is no call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_start(
    client: *mut h_client_t,
    request: *const c_void,
    length: usize,
    timeout_ns: i64,
    call: *mut h_call_t,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.lock()?;
        let request = bytes(request, length, "request")?;
        let place = out(call, "call")?;
        let call = client.start(request, limit(timeout_ns))?;
        place.write(h_call_t { bits: call.to_bits() });
        Ok(())
    })
}

/// Waits for the reply of a call, at most `timeout_ns`; to be freed with h_reply_free. Unless the
/// status is H_NOTHING or H_TIMED_OUT, the call does not exist afterwards; then it may be finished
/// later, or forgotten.
///
/// Errors: H_NOTHING, it is not there and the time limit was 0; H_TIMED_OUT; H_NO_SUCH; otherwise
/// as h_client_call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_finish(
    client: *mut h_client_t,
    call: h_call_t,
    timeout_ns: i64,
    reply: *mut *mut h_reply_t,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.lock()?;
        let place = out(reply, "reply")?;
        let call = CallId::from_bits(call.bits);
        let reply = match client.finish(call, limit(timeout_ns)) {
            Err(CallError::TimedOut) if timeout_ns == 0 => return Err(nothing()),
            other => other?,
        };
        place.write(Box::into_raw(Box::new(h_reply_t(reply))));
        Ok(())
    })
}

/// The reply of a call is not wanted any more; it will be dropped when it comes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_forget(client: *mut h_client_t, call: h_call_t) -> h_status {
    guard(|| {
        get(client, "client")?.0.lock()?.forget(CallId::from_bits(call.bits));
        Ok(())
    })
}

/// The bytes of a reply, and how many; `length` may be null. They stand still until it is freed.
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

/// How many calls may be outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_outstanding_max(
    client: *mut h_client_t,
    count: *mut usize,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.lock()?;
        out(count, "count")?.write(client.outstanding_max());
        Ok(())
    })
}

/// Who is at the other end, as the kernel says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_peer(client: *mut h_client_t, peer: *mut h_peer_t) -> h_status {
    guard(|| {
        let client = get(client, "client")?;
        let peer = out(peer, "peer")?;
        peer.write(client.0.lock()?.connection().peer().into());
        Ok(())
    })
}

/// Which path is taken, and why: a text, copied to `buffer` with a zero byte behind it; `length`,
/// which may be null, gets the bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_explain(
    client: *mut h_client_t,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?;
        let copied = Copied::new(buffer.cast(), capacity, length)?;
        let text = client.0.lock()?.explain();
        copied.put_text(&text)
    })
}

/// Closes a client: what was sent leaves first, for at most `timeout_ns`.
/// Then it is freed, whatever is returned.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_close(client: *mut h_client_t, timeout_ns: i64) -> h_status {
    guard(|| close(client, "client", timeout_ns))
}

/// Frees a client without waiting. Null is allowed.
/// Calls that are outstanding are over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_client_free(client: *mut h_client_t) {
    guard(|| free(client, "client"));
}
