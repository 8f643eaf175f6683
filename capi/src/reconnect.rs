//! Requests to a server that comes and goes: a client that connects again.

use crate::boundary::{
    Copied, Done, bytes, get, guard, h_status, limit, out, out_or_null, put, text,
};
use crate::call::{client_config, failed, h_client_config_t, h_reply_t};
use crate::endpoint::{End, Handle, give, handles};
use crate::node::h_node_t;
use core::ffi::{c_char, c_void};
use core::time::Duration;
use hamlyn::protocol::{CallOptions, ConnectionState, ReconnectPolicy, ReconnectingClient};
use std::sync::Arc;

/// A client of a named service that connects again when the server is gone or drains. Any number of
/// threads may call at once.
///
/// A request is sent to one server once. If the connection ends before the reply has come, this
/// side cannot know whether the request was carried out, and the call fails, unless the request is
/// idempotent; then it is sent again over the next connection. A request that certainly reached no
/// server is sent over the next connection in any case.
///
/// An outage without a call is not noticed, and costs nothing. The first call in an outage starts a
/// thread, which connects, and ends.
pub struct h_reconnecting_client_t(End<Arc<ReconnectingClient>>);

handles!(h_reconnecting_client_t: Arc<ReconnectingClient>);

/// The times and number of attempts to connect, and the behaviour of calls meanwhile; 0 for the
/// default in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_reconnect_policy_t {
    /// Nanoseconds before the first attempt of an outage (10 ms). A random part of up to its own
    /// length is added to each delay, so that not all clients of a server come back at once.
    pub first_delay_ns: u64,
    /// The longest delay, before the random part, in nanoseconds (5 s). Each delay is twice the
    /// previous one.
    pub delay_max_ns: u64,
    /// The time limit of one attempt, in nanoseconds, also for a name without a server (1 s).
    pub attempt_limit_ns: u64,
    /// Attempts in one outage (without limit).
    pub attempts_max: u64,
    /// Nanoseconds of one outage after which no further attempt begins (without limit).
    pub outage_max_ns: u64,
    /// Not 0: calls fail at once while there is no connection, instead of waiting for the next within
    /// their own time limit (0: they wait).
    pub calls_fail: u32,
}

/// The connection's state of a client that connects again.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum h_connection_state {
    /// It has a connection.
    H_CONNECTED = 0,
    /// It tries to connect.
    H_RECONNECTING = 1,
    /// The policy allows no more attempts. It stays so.
    H_GIVEN_UP = 2,
}

/// # Safety
/// As [`get`], or null.
unsafe fn policy_of(policy: *const h_reconnect_policy_t) -> Done<ReconnectPolicy> {
    let mut wanted = ReconnectPolicy::default();
    if !policy.is_null() {
        let given = get(policy, "policy")?;
        let set = |place: &mut Duration, ns| {
            if ns != 0 {
                *place = Duration::from_nanos(ns);
            }
        };
        set(&mut wanted.first_delay, given.first_delay_ns);
        set(&mut wanted.delay_max, given.delay_max_ns);
        set(&mut wanted.attempt_limit, given.attempt_limit_ns);
        let attempts = usize::try_from(given.attempts_max).unwrap_or(usize::MAX);
        wanted.attempts_max = (attempts != 0).then_some(attempts);
        wanted.outage_max =
            (given.outage_max_ns != 0).then(|| Duration::from_nanos(given.outage_max_ns));
        wanted.calls_wait = given.calls_fail == 0;
    }
    Ok(wanted)
}

/// Connects to the server of "[user@]name", as h_client_connect; from then on the policy holds.
/// `config` and `policy` may be null. To be freed with h_reconnecting_client_free.
///
/// Errors: as h_client_connect. Nothing is left of the attempt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_reconnecting_client_connect(
    node: *mut h_node_t,
    name: *const c_char,
    config: *const h_client_config_t,
    policy: *const h_reconnect_policy_t,
    timeout_ns: i64,
    client: *mut *mut h_reconnecting_client_t,
) -> h_status {
    guard(|| {
        let (node, name) = (get(node, "node")?, text(name, "name")?);
        let (config, policy) = (client_config(config)?, policy_of(policy)?);
        let (place, limit) = (out(client, "client")?, limit(timeout_ns));
        let made = ReconnectingClient::connect_with(node.manager()?, name, config, policy, limit)?;
        place.write(give(node, Arc::new(made))?);
        Ok(())
    })
}

/// Sends a request and waits for the reply, through outages, at most `limit_ns` in all; the server
/// gets the rest of that limit (h_request_time_left), unless it is H_FOREVER. `is_idempotent`, not
/// 0: carrying the request out twice has the effect of once, so that it is sent again if its reply
/// was lost. The reply is to be freed with h_reply_free.
///
/// Errors: H_UNREACHABLE, there was no connection, within the limit or the policy, and the request
/// was not sent; H_TIMED_OUT, the server may still be at work, and its reply will be dropped;
/// H_CLOSED, H_DIED, H_MISBEHAVED, the connection ended, and the server may or may not have carried
/// out the request; H_REFUSED, the server will not reply; H_APPLICATION; H_TOO_LONG; H_LIMIT;
/// H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_reconnecting_client_call(
    client: *mut h_reconnecting_client_t,
    request: *const c_void,
    length: usize,
    limit_ns: i64,
    is_idempotent: u32,
    reply: *mut *mut h_reply_t,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.shared()?;
        let request = bytes(request, length, "request")?;
        let place = out(reply, "reply")?;
        let options = CallOptions { limit: limit(limit_ns), is_idempotent: is_idempotent != 0 };
        let made = client.call_with(request, options).map_err(failed)?;
        place.write(h_reply_t::give(made));
        Ok(())
    })
}

/// The state of a client's connection, as its last call has found or left it. `number`, which may
/// be null, gets the connection's number, or the last one's: 1 for the first, one more for each
/// after it, so that a later look shows that there was an outage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_reconnecting_client_state(
    client: *mut h_reconnecting_client_t,
    state: *mut h_connection_state,
    number: *mut u64,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.shared()?;
        let (place, number) = (out(state, "state")?, out_or_null(number, "number")?);
        place.write(match client.state() {
            ConnectionState::Connected { .. } => h_connection_state::H_CONNECTED,
            ConnectionState::Reconnecting { .. } => h_connection_state::H_RECONNECTING,
            ConnectionState::GivenUp { .. } => h_connection_state::H_GIVEN_UP,
        });
        put(number, client.connections());
        Ok(())
    })
}

/// The reason why there is no connection, or why the last attempt failed: a text, copied to
/// `buffer` and followed by a zero byte, and empty if there is a connection; `length`, which may be
/// null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_reconnecting_client_why(
    client: *mut h_reconnecting_client_t,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let client = get(client, "client")?.0.shared()?;
        let copied = Copied::new(buffer.cast(), capacity, length)?;
        match client.state() {
            ConnectionState::Connected { .. } => copied.put_text(""),
            ConnectionState::Reconnecting { why, .. } | ConnectionState::GivenUp { why } => {
                copied.put_text(&why)
            }
        }
    })
}

/// Ends the connection, or the attempt to make one, and frees the client. No other thread may be in
/// a call with it. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_reconnecting_client_free(client: *mut h_reconnecting_client_t) {
    guard(|| {
        if !client.is_null() {
            get(client, "client")?;
            let client = Box::from_raw(client);
            if client.end().manager().is_ok() {
                drop(client);
            } else {
                // It is the parent's.
                core::mem::forget(client);
            }
        }
        Ok(())
    });
}
