//! Nodes: making, closing, freeing; progress; counters. The handles of nodes and jobs.

use crate::boundary::{
    Copied, Done, Failure, elements, elements_out, get, guard, limit, out, out_or_null, put, text,
};
use crate::boundary::{h_status, h_status::*};
use crate::waiting::flush;
use crate::watch::Watch;
use core::ffi::{c_char, c_void};
use core::ops::DerefMut;
use hamlyn::job::Job;
use hamlyn::os::environment;
use hamlyn::os::memory::ForkGuard;
use hamlyn::protocol::Manager;
use hamlyn::{Config, Node};
use std::sync::{Arc, OnceLock};

/// A process's part in Hamlyn: its interface, links, names and waiting. Any number of threads may
/// use it. A process needs one, and may have several.
///
/// After fork() the node is the parent's: the child's calls return H_FORKED and touch nothing, and
/// h_node_free there does nothing at all. The child can make a node of its own.
pub struct h_node_t {
    manager: Manager,
    fork: Arc<ForkGuard>,
    watch: Arc<OnceLock<Watch>>,
}

impl h_node_t {
    /// The first handle to a manager of this process.
    pub(crate) fn of(manager: Manager) -> Done<Self> {
        Ok(Self { manager, fork: Arc::new(ForkGuard::new()?), watch: Arc::default() })
    }

    /// Another handle.
    pub(crate) fn again(&self) -> Done<Self> {
        let (manager, fork, watch) = (self.manager()?, &self.fork, &self.watch);
        Ok(Self { manager: manager.clone(), fork: fork.clone(), watch: watch.clone() })
    }

    /// The event loop's descriptor; made at the first request.
    pub(crate) fn watch(&self) -> Done<&Watch> {
        if self.watch.get().is_none() {
            // If two threads make one at once, the second is dropped.
            let _ = self.watch.set(Watch::new(self.manager()?)?);
        }
        self.manager()?;
        self.watch.get().ok_or_else(|| Failure::new(H_STATE, "the node has no descriptor"))
    }

    /// The manager; an error in a forked child, which must not even wait for its lock: the thread
    /// that held it may not exist there.
    pub(crate) fn manager(&self) -> Done<&Manager> {
        if self.fork.is_parent() { Ok(&self.manager) } else { Err(hamlyn::node::Forked.into()) }
    }

    /// The manager, for immediate sends and receives, which do not wait, and which fail in a forked
    /// child.
    #[inline(always)]
    pub(crate) fn at_once(&self) -> &Manager {
        &self.manager
    }

    pub(crate) fn lock(&self) -> Done<impl DerefMut<Target = Node> + '_> {
        Ok(self.manager()?.lock())
    }

    /// The check that this process made the node, for objects made with it.
    pub(crate) fn fork(&self) -> &Arc<ForkGuard> {
        &self.fork
    }
}

/// The job that this process is a rank of. Any number of threads may use it.
pub struct h_job_t {
    pub(crate) job: Job,
    pub(crate) node: h_node_t,
}

impl h_job_t {
    /// The job; an error in a forked child, which is not a rank.
    pub(crate) fn job(&self) -> Done<&Job> {
        self.node.manager()?;
        Ok(&self.job)
    }

    pub(crate) fn node(&self) -> &h_node_t {
        &self.node
    }
}

/// A setting of a node: its name ("ring_bytes") or variable ("HAMLYN_RING_BYTES"), and its value
/// as text ("64K"). docs/settings.md lists them all.
#[repr(C)]
pub struct h_setting_t {
    /// The setting's name.
    pub name: *const c_char,
    /// Its value.
    pub value: *const c_char,
}

/// The version of the library, such as "0.1.0". The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn h_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The settings of the environment, overridden by these.
///
/// # Safety
/// As [`elements`]; names and values as [`text`].
pub(crate) unsafe fn config_of(settings: *const h_setting_t, count: usize) -> Done<Config> {
    let mut given = Vec::new();
    for setting in elements(settings, count, "settings")? {
        given.push((text(setting.name, "a setting's name")?, setting.value));
    }
    let known = Config::default().settings();
    let mut values = Vec::new();
    for (name, value) in given {
        let row = known.iter().find(|row| row.name == name || row.variable == name);
        let Some(row) = row else {
            return Err(Failure::invalid(format!(
                "no setting is called {name:?}; docs/settings.md has them all"
            )));
        };
        values.push((row.variable, text(value, row.name)?));
    }
    Ok(Config::from_lookup(|variable| {
        let given = values.iter().rev().find(|(name, _)| *name == variable);
        match given {
            Some((_, value)) => Some((*value).to_owned()),
            None => environment::text(variable),
        }
    })?)
}

/// Makes a node. Its settings are those of the environment (HAMLYN_*), overridden by the `count`
/// ones of `settings`, which may be null if `count` is 0. To be freed with h_node_free or h_close.
///
/// In a process that has threads already, the first node takes some 20 ms.
///
/// Errors: H_INVALID, a setting that does not exist or is not allowed; H_SYSTEM. Nothing is left
/// behind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_node_new(
    settings: *const h_setting_t,
    count: usize,
    node: *mut *mut h_node_t,
) -> h_status {
    guard(|| {
        let place = out(node, "node")?;
        let manager = Manager::with_config(config_of(settings, count)?)?;
        place.write(Box::into_raw(Box::new(h_node_t::of(manager)?)));
        Ok(())
    })
}

/// Frees a node without waiting: messages that are still queued do not leave, and their number is
/// not reported; see h_close. Every peer gets a goodbye, except those with queued messages. End
/// points made from the node go on working until they are freed. Null is allowed.
///
/// No other thread may be in a call with this node, nor make one afterwards. Pointers into its
/// areas are no longer valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_node_free(node: *mut h_node_t) {
    guard(|| {
        if !node.is_null() {
            get(node, "node")?;
            free(node);
        }
        Ok(())
    });
}

/// # Safety
/// `node` is from `h_node_new`, and has no user any more.
unsafe fn free(node: *mut h_node_t) {
    let node = Box::from_raw(node);
    if node.fork.is_parent() {
        drop(node);
    } else {
        // The progress thread is the parent's and does not run here; waiting for it would hang.
        core::mem::forget(node);
    }
}

/// Closes a node: queued messages leave first, for at most `timeout_ns`; then the node is freed as
/// by h_node_free, whatever the result. `unsent`, which may be null, gets the number of messages
/// that did not leave.
///
/// Errors: H_TIMED_OUT, messages did not leave; H_FORKED. `unsent` is written in both cases.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_close(
    node: *mut h_node_t,
    timeout_ns: i64,
    unsent: *mut usize,
) -> h_status {
    guard(|| {
        let this = get(node, "node")?;
        let unsent = out_or_null(unsent, "unsent")?;
        let flushed = this.manager().and_then(|manager| {
            manager.end_within(limit(timeout_ns));
            flush(manager, timeout_ns)
        });
        let left = match &flushed {
            Ok(true) | Err(_) => 0,
            Ok(false) => this.lock()?.queued(),
        };
        free(node);
        put(unsent, left);
        match flushed? {
            true => Ok(()),
            false => Err(Failure::new(
                H_TIMED_OUT,
                format!("{left} queued messages did not leave within the time limit"),
            )),
        }
    })
}

/// Waits until every queued message has left, at most `timeout_ns`, and receives meanwhile.
///
/// Errors: H_TIMED_OUT, the messages stay queued; H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_flush(node: *mut h_node_t, timeout_ns: i64) -> h_status {
    guard(|| match flush(get(node, "node")?.manager()?, timeout_ns)? {
        true => Ok(()),
        false => Err(Failure::new(H_TIMED_OUT, "messages stayed queued for the whole time limit")),
    })
}

/// The node's name in tickets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_node_id(node: *mut h_node_t, id: *mut u64) -> h_status {
    guard(|| {
        out(id, "id")?.write(get(node, "node")?.lock()?.id().0);
        Ok(())
    })
}

/// Starts the progress thread, unless it runs: it makes the node's calls, so that bytes land and
/// queued messages leave while the program does something else.
///
/// Errors: H_SYSTEM, the system gives no thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_start_progress(node: *mut h_node_t) -> h_status {
    guard(|| Ok(get(node, "node")?.manager()?.start_progress()?))
}

/// Stops the progress thread and waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stop_progress(node: *mut h_node_t) -> h_status {
    guard(|| {
        get(node, "node")?.manager()?.stop_progress();
        Ok(())
    })
}

/// Tells the node that the program is alive: packets are not discarded for another `watchdog_ms`.
/// Only of use if the setting is not 0 and a progress thread runs. Every call that receives or
/// waits does the same: this is for a program that is busy with something else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_reset_watchdog(node: *mut h_node_t) -> h_status {
    guard(|| {
        get(node, "node")?.lock()?.reset_watchdog();
        Ok(())
    })
}

/// Accepts packets: the state of a new node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_enable(node: *mut h_node_t) -> h_status {
    guard(|| {
        get(node, "node")?.lock()?.enable();
        Ok(())
    })
}

/// Takes packets and discards them, counted, until h_enable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_disable(node: *mut h_node_t) -> h_status {
    guard(|| {
        get(node, "node")?.lock()?.disable();
        Ok(())
    })
}

/// Bytes of a counter's name, with the zero byte that ends it.
pub const H_COUNTER_NAME_BYTES: usize = 64;

/// A counter.
#[repr(C)]
pub struct h_counter_t {
    /// Its name, ending in a zero byte. docs/refusals.md explains those of refusals.
    pub name: [c_char; H_COUNTER_NAME_BYTES],
    /// Its value.
    pub value: u64,
}

/// Every counter of the node. `count` gets their number; if that is more than `capacity`, only that
/// many are written and H_TOO_LONG is returned. `counters` may be null if `capacity` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_counters(
    node: *mut h_node_t,
    counters: *mut h_counter_t,
    capacity: usize,
    count: *mut usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let places = elements_out(counters, capacity, "counters")?;
        let count = out(count, "count")?;
        let rows = node.lock()?.counters();
        for (place, (name, value)) in places.iter_mut().zip(&rows) {
            let mut counter = h_counter_t { name: [0; H_COUNTER_NAME_BYTES], value: *value };
            let shown = name.bytes().take(H_COUNTER_NAME_BYTES - 1);
            for (to, from) in counter.name.iter_mut().zip(shown) {
                *to = from as c_char;
            }
            place.write(counter);
        }
        count.write(rows.len());
        if rows.len() <= capacity {
            return Ok(());
        }
        let text = format!("there are {} counters, and room for {capacity}", rows.len());
        Err(Failure::new(H_TOO_LONG, text))
    })
}

/// The value of one counter, by its name.
///
/// Errors: H_NO_SUCH, no counter has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_counter(
    node: *mut h_node_t,
    name: *const c_char,
    value: *mut u64,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let name = text(name, "name")?;
        let value = out(value, "value")?;
        let rows = node.lock()?.counters();
        let Some((_, found)) = rows.iter().find(|(known, _)| *known == name) else {
            return Err(Failure::new(H_NO_SUCH, format!("no counter is called {name:?}")));
        };
        value.write(*found);
        Ok(())
    })
}

/// The address to which other hosts connect: the setting `listen`, such as 127.0.0.1:7000, with the
/// port that the system chose if the setting's was 0. Copied to `buffer` and followed by a zero
/// byte, empty if the node does not listen; `length`, which may be null, gets the number of bytes
/// before that.
///
/// Errors: H_TOO_LONG, `length` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_listens_at(
    node: *mut h_node_t,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let copied = Copied::new(buffer.cast::<c_void>(), capacity, length)?;
        #[cfg(feature = "tls")]
        let at = node.lock()?.listens_at().map(|at| at.to_string());
        #[cfg(not(feature = "tls"))]
        let at = node.lock().map(|_| None::<String>)?;
        copied.put_text(&at.unwrap_or_default())
    })
}

/// Fallbacks and missing features because of this system or its limits: sentences, one to a line,
/// often empty. Copied to `buffer` and followed by a zero byte; `length`, which may be null, gets
/// the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_notes(
    node: *mut h_node_t,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let copied = Copied::new(buffer.cast::<c_void>(), capacity, length)?;
        let notes = node.lock()?.notes().join("\n");
        copied.put_text(&notes)
    })
}
