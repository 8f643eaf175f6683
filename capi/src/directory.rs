//! A directory of the program's own: finds the hosts of services whose names give no place.

use crate::boundary::{guard, h_status, h_status::*, text};
use crate::node::h_node_t;
use core::ffi::{c_char, c_void};

#[cfg(feature = "tls")]
use {
    crate::boundary::Failure,
    core::time::Duration,
    hamlyn::control::hosts::directory::PLACES_MAX,
    hamlyn::node::{HostDirectory, Place},
    std::error::Error,
    std::ffi::CString,
    std::sync::Arc,
    std::sync::atomic::{AtomicPtr, Ordering},
};

/// The places of a service, for an h_look_up_t to fill in. Valid until that function returns.
pub struct h_places_t {
    #[cfg(feature = "tls")]
    places: Vec<Place>,
    /// The reason for a failure.
    #[cfg(feature = "tls")]
    why: Option<String>,
}

/// Adds the places of `service` with h_places_add, in the order in which to try them. No place
/// means that no host offers it yet: a connecting call that waits for names asks again, at first
/// after 50 ms, then less often. `timeout_ns` is the rest of that call's time limit, negative if
/// there is no limit. Returns false if the look-up failed, which ends the attempt; h_places_fail
/// may give the reason first.
///
/// It runs in threads of the library that connect, several at a time; holds no lock; and may wait:
/// a connecting call still returns when its time limit has passed. At most 64 threads connect at a
/// time, those that are still in this function included. It must not free the node. `context` is
/// that of h_set_directory.
pub type h_look_up_t = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        service: *const c_char,
        timeout_ns: i64,
        places: *mut h_places_t,
    ) -> bool,
>;

/// Called when `context` is not used any more.
pub type h_release_t = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// Sets the function that finds services of other hosts whose names give no place
/// ("hamlyn://service"), instead of the setting `directory`; null: the setting applies. Attempts
/// that already have a result from the previous directory keep it.
///
/// `release`, which may be null, is called with `context` once `look_up` has no caller left:
/// another function is set, or the node and all end points made from it have been freed, and every
/// call of `look_up` has returned. It runs in that call or in a thread of the library. If this call
/// fails, it keeps nothing and `release` is not called; if `look_up` is null, `context` and
/// `release` are ignored.
///
/// Errors: H_STATE, the library was built without other hosts; H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_set_directory(
    node: *mut h_node_t,
    look_up: h_look_up_t,
    context: *mut c_void,
    release: h_release_t,
) -> h_status {
    guard(|| {
        let manager = crate::boundary::get(node, "node")?.manager()?;
        #[cfg(feature = "tls")]
        {
            let directory = look_up.map(|look_up| -> Arc<dyn HostDirectory> {
                Arc::new(Given { look_up, release, context: AtomicPtr::new(context) })
            });
            manager.set_directory(directory)?;
            Ok(())
        }
        #[cfg(not(feature = "tls"))]
        {
            let _ = (manager, look_up, context, release);
            let text = "the library was built without links to other hosts (feature tls)";
            Err(crate::boundary::Failure::new(H_STATE, text))
        }
    })
}

/// Adds a place, host:port, behind the others. Only inside an h_look_up_t.
///
/// Errors: H_INVALID, not a place; H_LIMIT, there are 64.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_places_add(places: *mut h_places_t, place: *const c_char) -> h_status {
    guard(|| {
        let place = text(place, "place")?;
        #[cfg(feature = "tls")]
        {
            let places = places_of(places)?;
            let place: Place = place.parse().map_err(|e| Failure::invalid(format!("{e}")))?;
            if places.places.len() == PLACES_MAX {
                let text = format!("{PLACES_MAX} places of one service are most");
                return Err(Failure::new(H_LIMIT, text));
            }
            places.places.push(place);
            Ok(())
        }
        #[cfg(not(feature = "tls"))]
        {
            let _ = (places, place);
            Err(crate::boundary::Failure::new(H_STATE, "nobody asks for places"))
        }
    })
}

/// Gives the reason why an h_look_up_t is about to return false; it becomes part of the connecting
/// call's error. Only inside an h_look_up_t.
///
/// Errors: H_INVALID, the text is not UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_places_fail(places: *mut h_places_t, why: *const c_char) -> h_status {
    guard(|| {
        let why = text(why, "why")?;
        #[cfg(feature = "tls")]
        {
            places_of(places)?.why = Some(why.into());
            Ok(())
        }
        #[cfg(not(feature = "tls"))]
        {
            let _ = (places, why);
            Err(crate::boundary::Failure::new(H_STATE, "nobody asks for places"))
        }
    })
}

/// # Safety
/// Null, or the argument of an `h_look_up_t` that has not returned yet and uses it in one thread.
#[cfg(feature = "tls")]
unsafe fn places_of<'a>(places: *mut h_places_t) -> crate::boundary::Done<&'a mut h_places_t> {
    places.as_mut().ok_or_else(|| Failure::invalid("places is null"))
}

/// The C program's function.
#[cfg(feature = "tls")]
struct Given {
    look_up: unsafe extern "C" fn(*mut c_void, *const c_char, i64, *mut h_places_t) -> bool,
    release: h_release_t,
    /// Passed back to the program's own functions, in any thread, and never dereferenced here.
    context: AtomicPtr<c_void>,
}

#[cfg(feature = "tls")]
impl Drop for Given {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: both came from the program, and no call of `look_up` is running any more.
            unsafe { release(self.context.load(Ordering::Relaxed)) }
        }
    }
}

#[cfg(feature = "tls")]
impl HostDirectory for Given {
    fn look_up(
        &self,
        service: &str,
        timeout: Option<Duration>,
    ) -> Result<Vec<Place>, Box<dyn Error + Send + Sync>> {
        // A service's name has no zero byte.
        let service = CString::new(service)?;
        let timeout = timeout.map_or(-1, |left| left.as_nanos().min(i64::MAX as u128) as i64);
        let mut places = h_places_t { places: Vec::new(), why: None };
        let context = self.context.load(Ordering::Relaxed);
        // SAFETY: the program promised that the function and its context stay until it is released;
        // the text and the places stay until it returns.
        let could = unsafe { (self.look_up)(context, service.as_ptr(), timeout, &mut places) };
        match (could, places.why) {
            (true, _) => Ok(places.places),
            (false, Some(why)) => Err(why.into()),
            (false, None) => Err("it could not look, and has not said why".into()),
        }
    }
}
