//! The log: what happens to links, with the reasons, for an operator.

use crate::boundary::{guard, h_status};
use core::ffi::{c_char, c_void};
use hamlyn::log::{Entry, Level, set_sink};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The severity of a log entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum h_log_level {
    /// Normal operation: connected, closed, revoked.
    H_LOG_INFO = 0,
    /// A peer did not get a link, or is gone: refused, failed, lost, died, left-out.
    H_LOG_WARNING = 1,
    /// A rule was broken: sent-away, expelled.
    H_LOG_ERROR = 2,
}

/// One log entry: something that happened to a link. The texts are UTF-8, end in a zero byte, and
/// are valid until the function returns; control characters in a peer's texts have been replaced.
#[repr(C)]
pub struct h_log_entry_t {
    /// An h_log_level.
    pub level: u32,
    /// The kind of entry, in a word: "connected", "refused", "failed", "closed", "lost", "died",
    /// "sent-away", "expelled", "revoked", "left-out".
    pub kind: *const c_char,
    /// The peer's user; -1: not known.
    pub user: i64,
    /// The peer's process; -1: not known.
    pub process: i64,
    /// The service over which the link was made; may be empty.
    pub service: *const c_char,
    /// The reason; may be empty.
    pub reason: *const c_char,
    /// The whole entry, as a line.
    pub text: *const c_char,
}

/// Gets every log entry. It runs in a thread of the library that accepts connections and watches
/// for deaths, and holds no lock: it may call the library, but must not free a node; while it runs,
/// no new connection is accepted. `context` is that of h_set_log.
pub type h_log_t = Option<unsafe extern "C" fn(context: *mut c_void, entry: *const h_log_entry_t)>;

/// Sets the function that gets an entry for each link that comes or goes, and each peer that is
/// refused or disconnected, with the reason, in all nodes of this process; it replaces the previous
/// function. Null: no log. Messages are not logged. At most 64 entries a second are logged for the
/// peers of one user, and then the number of further ones ("left-out").
///
/// The function and its context must stay until another function is set and every node that existed
/// then has been freed, since the function may be running at that moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_set_log(log: h_log_t, context: *mut c_void) -> h_status {
    guard(|| {
        // Passed back to the C program's own function, in any thread, and never dereferenced here.
        let context = AtomicPtr::new(context);
        set_sink(log.map(|log| {
            let sink: hamlyn::log::Sink = Arc::new(move |entry| tell(log, &context, entry));
            sink
        }));
        Ok(())
    })
}

fn tell(
    log: unsafe extern "C" fn(*mut c_void, *const h_log_entry_t),
    context: &AtomicPtr<c_void>,
    entry: &Entry,
) {
    // Texts of a peer have been made printable, so they contain no zero byte.
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let (kind, whole) = (text(entry.kind.name()), text(&entry.to_string()));
    let (service, reason) = (text(&entry.service), text(&entry.reason));
    let known = |number: Option<u32>| number.map_or(-1, i64::from);
    let level = match entry.kind.level() {
        Level::Info => h_log_level::H_LOG_INFO,
        Level::Warning => h_log_level::H_LOG_WARNING,
        Level::Error => h_log_level::H_LOG_ERROR,
    };
    let entry = h_log_entry_t {
        level: level as u32,
        kind: kind.as_ptr(),
        user: known(entry.user),
        process: known(entry.process),
        service: service.as_ptr(),
        reason: reason.as_ptr(),
        text: whole.as_ptr(),
    };
    // SAFETY: the C program promised that the function and its context stay; the entry and its
    // texts stay until it returns.
    unsafe { log(context.load(Ordering::Relaxed), &entry) }
}
