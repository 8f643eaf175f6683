//! The functions that repeat for each protocol: serving, growing, the peer's identity, closing. A
//! protocol's file names its own in a macro of these; `tests/header` expands them, too, since
//! cbindgen sees no macros (docs/decisions/generated-bindings.md).
//!
//! ```text
//!   offered!    _seed, _serve, .. _offer          connected!  _peer, _explain
//!   grown!      _grow, _grow_from, _connect       closed!     _close, _free
//! ```
//! In each: `this: h_this_t`, the argument's name and type in C; then nouns for the documentation;
//! then, after a semicolon, the functions' names. Documentation that stands before is added to that
//! of the first function, or of `_free` for `closed!`.

use crate::boundary::{Copied, Done, Failure, get, guard, h_status, h_status::*, limit, out, text};
use crate::endpoint::{Handle, Several, give};
use crate::links::{access_of, h_admission_t, h_peer_t};
use crate::node::{h_job_t, h_node_t};
use crate::seeds::h_seed_t;
use crate::waiting::flush;
use core::ffi::{c_char, c_void};
use core::sync::atomic::AtomicPtr;
use hamlyn::Peer;
use hamlyn::protocol::{Connected, Grown, Offered};

/// The end point that a C program holds.
type Point<H> = <<H as Handle>::Inner as Several>::Point;

macro_rules! offered {
    (
        $this:ident: $handle:ident, of $peer:literal, $peers:literal;
        $seed:ident, $serve:ident, $stop_serving:ident, $set_admission:ident, $offer:ident
    ) => {
        #[doc = concat!(" A seed from which ", $peer, " can be grown, by any process that may")]
        /// connect; each call makes another.
        ///
        /// Errors: H_SYSTEM, the service for seeds cannot be offered.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $seed(
            $this: *mut $handle,
            seed: *mut $crate::seeds::h_seed_t,
        ) -> $crate::boundary::h_status {
            $crate::common::seed($this, stringify!($this), seed)
        }

        #[doc = concat!(" Lets ", $peers, " find this ", stringify!($this), " by name. `access` is")]
        /// an h_access; `gid` is used for H_ACCESS_GROUP only.
        ///
        /// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_SYSTEM. No name was
        /// taken.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $serve(
            $this: *mut $handle,
            name: *const core::ffi::c_char,
            access: u32,
            gid: u32,
        ) -> $crate::boundary::h_status {
            $crate::common::serve($this, stringify!($this), name, access, gid)
        }

        #[doc = concat!(" Ends the offers of this ", stringify!($this), ": its names are free at once for")]
        /// another, its seeds are worthless, and connected peers stay so.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $stop_serving($this: *mut $handle) -> $crate::boundary::h_status {
            $crate::common::stop_serving($this, stringify!($this))
        }

        #[doc = concat!(" Asks `admit` about each process that wants to grow ", $peer, "; null: all")]
        /// permitted ones are let in again. See h_admission_t.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set_admission(
            $this: *mut $handle,
            admit: $crate::links::h_admission_t,
            context: *mut core::ffi::c_void,
        ) -> $crate::boundary::h_status {
            $crate::common::set_admission($this, stringify!($this), admit, context)
        }

        #[doc = concat!(" Offers this ", stringify!($this), ", which is of the job's node, to the other ranks.")]
        /// They wait until then. End points of one kind have different names; freeing an end point
        /// frees its names.
        ///
        /// Errors: H_INVALID, the name is invalid, or the end point is not of h_job_node; H_IN_USE,
        /// this rank offers another of the same kind under it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $offer(
            $this: *mut $handle,
            job: *mut $crate::node::h_job_t,
            name: *const core::ffi::c_char,
        ) -> $crate::boundary::h_status {
            $crate::common::offer($this, stringify!($this), job, name)
        }
    };
}

/// `grown` is the library's type, from which `wrap` makes the handle's; an argument may follow: its
/// type, and the library's conversion of it.
macro_rules! grown {
    (
        $(#[$more:meta])*
        $this:ident: $handle:ident, $what:literal of $peer:literal, $grown:ident => $wrap:expr
        $(, $argument:ident: $type:ty => $with:expr)?;
        $grow:ident, $connect:ident, $grow_from:ident; $close:ident, $free:ident
    ) => {
        #[doc = concat!(" Grows ", $what, " from a seed, waiting at most `timeout_ns` for the ", $peer, "'s")]
        #[doc = concat!(" answer. To be freed with ", stringify!($close), " or")]
        #[doc = concat!(" ", stringify!($free), ".")]
        $(#[$more])*
        ///
        /// Errors: H_SEED, not a seed, or one of another protocol; H_REFUSED, the seed is old or
        /// forged, or the
        #[doc = concat!(" ", $peer, "'s owner does not admit this process; H_LIMIT, the ", $peer, " has as many as it may,")]
        /// or its process has, or this one; H_NOT_FOUND, its process is gone; H_CLOSED, it closed
        /// meanwhile; H_TIMED_OUT; H_INVALID, an argument or a setting; H_VERSION; H_MISBEHAVED;
        /// H_SYSTEM; for another host H_NO_HOST, H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is
        /// left of the attempt.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $grow(
            node: *mut $crate::node::h_node_t,
            seed: *const $crate::seeds::h_seed_t,
            $($argument: $type,)?
            timeout_ns: i64,
            $this: *mut *mut $handle,
        ) -> $crate::boundary::h_status {
            let with = || Ok(($($with)?));
            let place = ($this, stringify!($this));
            $crate::common::grow::<$handle, $grown>(node, seed, $peer, with, timeout_ns, place, $wrap)
        }

        #[doc = concat!(" Grows ", $what, " of the service \"[user@]name\". Waits within the time limit for a")]
        /// name without a server, or whose server's process is ending, unless the setting
        #[doc = concat!(" wait_for_names is off; otherwise as ", stringify!($grow), ".")]
        ///
        #[doc = concat!(" Errors: as ", stringify!($grow), "; H_NOT_FOUND, the name has no server, or there is no")]
        /// such user; H_INVALID, not a name of a service; H_UNREACHABLE, for another host.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $connect(
            node: *mut $crate::node::h_node_t,
            name: *const core::ffi::c_char,
            $($argument: $type,)?
            timeout_ns: i64,
            $this: *mut *mut $handle,
        ) -> $crate::boundary::h_status {
            let with = || Ok(($($with)?));
            let place = ($this, stringify!($this));
            $crate::common::connect::<$handle, $grown>(node, name, $peer, with, timeout_ns, place, $wrap)
        }

        #[doc = concat!(" Grows ", $what, " of the ", $peer, " that a rank offers under `name`. Waits at most")]
        /// `timeout_ns` for the offer, and while too many ranks of other hosts ask it at once; otherwise
        #[doc = concat!(" as ", stringify!($grow), ".")]
        ///
        /// Errors: H_INVALID, there is no such rank, or the name is invalid; H_TIMED_OUT, the rank
        /// did not offer it; H_UNREACHABLE; H_LIMIT; H_CLOSED. Nothing is left of the attempt.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $grow_from(
            job: *mut $crate::node::h_job_t,
            rank: u32,
            name: *const core::ffi::c_char,
            $($argument: $type,)?
            timeout_ns: i64,
            $this: *mut *mut $handle,
        ) -> $crate::boundary::h_status {
            let with = || Ok(($($with)?));
            let place = ($this, stringify!($this));
            let of = (job, rank, name);
            $crate::common::grow_from::<$handle, $grown>(of, with, timeout_ns, place, $wrap)
        }
    };
}

macro_rules! connected {
    ($this:ident: $handle:ident; $peer:ident, $explain:ident) => {
        /// The identity of the other end, from the kernel.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $peer(
            $this: *mut $handle,
            peer: *mut $crate::links::h_peer_t,
        ) -> $crate::boundary::h_status {
            $crate::common::peer($this, stringify!($this), peer)
        }

        /// The path that the link takes, and the reason: a text, copied to `buffer` and followed by
        /// a zero byte; `length`, which may be null, gets the number of bytes before that.
        ///
        /// Errors: H_TOO_LONG, `length` is written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $explain(
            $this: *mut $handle,
            buffer: *mut core::ffi::c_char,
            capacity: usize,
            length: *mut usize,
        ) -> $crate::boundary::h_status {
            $crate::common::explain($this, stringify!($this), buffer, capacity, length)
        }
    };
}

macro_rules! closed {
    (
        $(#[$more:meta])*
        $this:ident: $handle:ident, $first:literal;
        $close:ident, $free:ident
    ) => {
        #[doc = concat!(" Closes a ", stringify!($this), ": ", $first, " leaves first, for at most")]
        /// `timeout_ns`. Then frees it, whatever the result.
        ///
        /// Errors: H_TIMED_OUT, messages did not leave; H_FORKED.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $close(
            $this: *mut $handle,
            timeout_ns: i64,
        ) -> $crate::boundary::h_status {
            $crate::common::close($this, stringify!($this), timeout_ns)
        }

        #[doc = concat!(" Frees a ", stringify!($this), " without waiting. Null is allowed.")]
        $(#[$more])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $free($this: *mut $handle) {
            $crate::boundary::guard(|| $crate::common::free($this, stringify!($this)));
        }
    };
}

pub(crate) use {closed, connected, grown, offered};

// The safety of each is the contract at the head of hamlyn.h, as for what is exported.

pub(crate) unsafe fn seed<H: Handle>(handle: *mut H, name: &str, seed: *mut h_seed_t) -> h_status
where
    H::Inner: Several,
    Point<H>: Offered,
{
    guard(|| {
        let (handle, place) = (get(handle, name)?, out(seed, "seed")?);
        place.write(handle.end().with(|end| end.seed())??.into());
        Ok(())
    })
}

pub(crate) unsafe fn serve<H: Handle>(
    handle: *mut H,
    name: &str,
    service: *const c_char,
    access: u32,
    gid: u32,
) -> h_status
where
    H::Inner: Several,
    Point<H>: Offered,
{
    guard(|| {
        let handle = get(handle, name)?;
        let (service, access) = (text(service, "name")?, access_of(access, gid)?);
        Ok(handle.end().with(|end| end.serve(service, access))??)
    })
}

pub(crate) unsafe fn stop_serving<H: Handle>(handle: *mut H, name: &str) -> h_status
where
    H::Inner: Several,
    Point<H>: Offered,
{
    guard(|| get(handle, name)?.end().with(|end| end.stop_serving()))
}

pub(crate) unsafe fn set_admission<H: Handle>(
    handle: *mut H,
    name: &str,
    admit: h_admission_t,
    context: *mut c_void,
) -> h_status
where
    H::Inner: Several,
    Point<H>: Offered,
{
    guard(|| get(handle, name)?.end().with(|end| end.set_admission(admission(admit, context))))
}

type Admission = Box<dyn FnMut(&Peer) -> Result<(), String> + Send>;

/// A C program's decision on each process that wants to grow a sender.
fn admission(admit: h_admission_t, context: *mut c_void) -> Admission {
    // Passed back to the C program's own function, in the thread that polls, and never dereferenced
    // here; an atomic pointer may go to another thread.
    let mut context = AtomicPtr::new(context);
    Box::new(move |peer: &Peer| {
        let Some(admit) = admit else { return Ok(()) };
        let peer = h_peer_t::from(peer);
        // SAFETY: the C program promised that the function and its context are there until the
        // receiver is freed.
        match unsafe { admit(*context.get_mut(), &peer) } {
            true => Ok(()),
            false => Err("the receiver's owner does not let this process in".into()),
        }
    })
}

pub(crate) unsafe fn offer<H: Handle>(
    handle: *mut H,
    what: &str,
    job: *mut h_job_t,
    name: *const c_char,
) -> h_status
where
    H::Inner: Several,
    Point<H>: Offered,
{
    guard(|| {
        let (handle, job) = (get(handle, what)?, get(job, "job")?.job()?);
        let name = text(name, "name")?;
        Ok(handle.end().with(|end| job.offer(end, name))??)
    })
}

pub(crate) unsafe fn grow_from<H: Handle, G: Grown>(
    (job, rank, name): (*mut h_job_t, u32, *const c_char),
    with: impl FnOnce() -> Done<G::With>,
    timeout_ns: i64,
    (place, what): (*mut *mut H, &str),
    wrap: impl FnOnce(G) -> H::Inner,
) -> h_status {
    guard(|| {
        let (job, place) = (get(job, "job")?, out(place, what)?);
        let name = text(name, "name")?;
        let grown: G = job.job()?.grow(rank, name, with()?, limit(timeout_ns))?;
        place.write(give(job.node(), wrap(grown))?);
        Ok(())
    })
}

pub(crate) unsafe fn grow<H: Handle, G: Grown>(
    node: *mut h_node_t,
    seed: *const h_seed_t,
    other_end: &str,
    with: impl FnOnce() -> Done<G::With>,
    timeout_ns: i64,
    (place, name): (*mut *mut H, &str),
    wrap: impl FnOnce(G) -> H::Inner,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(place, name)?);
        let seed = get(seed, "seed")?.read()?;
        let grown = G::grow(node.manager()?, &seed, with()?, limit(timeout_ns));
        let grown = grown.map_err(|e| Failure::of_growing(e, other_end))?;
        place.write(give(node, wrap(grown))?);
        Ok(())
    })
}

pub(crate) unsafe fn connect<H: Handle, G: Grown>(
    node: *mut h_node_t,
    service: *const c_char,
    other_end: &str,
    with: impl FnOnce() -> Done<G::With>,
    timeout_ns: i64,
    (place, name): (*mut *mut H, &str),
    wrap: impl FnOnce(G) -> H::Inner,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(place, name)?);
        let service = text(service, "name")?;
        let grown = G::connect(node.manager()?, service, with()?, limit(timeout_ns));
        let grown = grown.map_err(|e| Failure::of_growing(e, other_end))?;
        place.write(give(node, wrap(grown))?);
        Ok(())
    })
}

pub(crate) unsafe fn peer<H: Handle>(handle: *mut H, name: &str, peer: *mut h_peer_t) -> h_status
where
    H::Inner: Several,
    Point<H>: Connected,
{
    guard(|| {
        let (handle, place) = (get(handle, name)?, out(peer, "peer")?);
        place.write(handle.end().with(|end| end.connection().peer().into())?);
        Ok(())
    })
}

pub(crate) unsafe fn explain<H: Handle>(
    handle: *mut H,
    name: &str,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status
where
    H::Inner: Several,
    Point<H>: Connected,
{
    guard(|| {
        let handle = get(handle, name)?;
        let copied = Copied::new(buffer.cast(), capacity, length)?;
        copied.put_text(&handle.end().with(|end| end.explain())?)
    })
}

/// Lets the node's queued messages leave, at most `timeout_ns`, then frees.
pub(crate) unsafe fn close<H: Handle>(handle: *mut H, name: &str, timeout_ns: i64) -> h_status {
    guard(|| {
        let flushed = match get(handle, name)?.end().manager() {
            Ok(manager) => flush(manager, timeout_ns),
            Err(forked) => Err(forked),
        };
        free(handle, name)?;
        match flushed? {
            true => Ok(()),
            false => Err(Failure::new(
                H_TIMED_OUT,
                format!("messages stayed queued for the whole time limit; the {name} is freed"),
            )),
        }
    })
}

/// Frees a handle of [`give`] that has no user any more; null is allowed.
pub(crate) unsafe fn free<H: Handle>(handle: *mut H, name: &str) -> Done {
    if handle.is_null() {
        return Ok(());
    }
    get(handle, name)?;
    let handle = Box::from_raw(handle);
    if handle.end().fork().is_parent() {
        drop(handle);
    } else {
        // It is the parent's; nothing here may wait for its locks, or send its peers a goodbye.
        core::mem::forget(handle);
    }
    Ok(())
}
