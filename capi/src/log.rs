//! What an operator is told of links, with the reason.

use crate::boundary::{guard, h_status};
use core::ffi::{c_char, c_void};
use hamlyn::log::{Entry, Level, set_sink};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// How much an entry of the log matters.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum h_log_level {
    /// As it should be: connected, closed, revoked.
    H_LOG_INFO = 0,
    /// Somebody did not get what they wanted, or is gone: refused, failed, lost, died, left-out.
    H_LOG_WARNING = 1,
    /// A rule was broken: sent-away, expelled.
    H_LOG_ERROR = 2,
}

/// One thing that happened to a link. The texts are UTF-8, end in a zero byte, and are there until the
/// function that is given them returns; what a peer wrote has nothing in it that a terminal obeys.
#[repr(C)]
pub struct h_log_entry_t {
    /// An h_log_level.
    pub level: u32,
    /// What happened, in a word: "connected", "refused", "failed", "closed", "lost", "died",
    /// "sent-away", "expelled", "revoked", "left-out".
    pub kind: *const c_char,
    /// The peer's user; -1: not known.
    pub user: i64,
    /// The peer's process; -1: not known.
    pub process: i64,
    /// The service over which the link was made; may be empty.
    pub service: *const c_char,
    /// Why; may be empty.
    pub reason: *const c_char,
    /// All of it, as a line.
    pub text: *const c_char,
}

/// Is told of what happens to links. It runs in a thread of the library's that accepts connections and
/// watches for deaths, and holds no lock: it may call the library, but must not free a node, and while
/// it runs nobody new is let in. `context` is what it was set with.
pub type h_log_t = Option<unsafe extern "C" fn(context: *mut c_void, entry: *const h_log_entry_t)>;

/// From now on `log` is told of links that come and go, and of who is refused or sent away, with the
/// reason, in all nodes of this process; in the place of what was set before. Null: nobody is told.
/// Nothing is told of messages. Of one user's peers at most 64 entries a second are told, and then how
/// many more there were ("left-out").
///
/// The function and its context must stay until another is set and, since it may be running at that
/// moment, every node that was there has been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_set_log(log: h_log_t, context: *mut c_void) -> h_status {
    guard(|| {
        // Handed back to the C program's own function, in whichever thread, and not looked at here.
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
    // What a peer wrote has been made printable, so that there is no zero byte.
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
    // SAFETY: the C program promised that the function and its context are there; the entry and its
    // texts are until it returns.
    unsafe { log(context.load(Ordering::Relaxed), &entry) }
}
