//! Where services of other hosts are whose names say no place: a directory of the program's own.

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

/// The places of a service, as an h_look_up_t gives them. It is there until that returns.
pub struct h_places_t {
    #[cfg(feature = "tls")]
    places: Vec<Place>,
    /// What went wrong.
    #[cfg(feature = "tls")]
    why: Option<String>,
}

/// Says where `service` is, by h_places_add, in the order in which the places are to be tried; by none,
/// that nobody has it yet: whoever waits for names asks again, at first after 50 ms, then less often.
/// `timeout_ns` is what is left to whoever connects, negative if there is no limit. Returns whether it
/// could look; if not, that ends the attempt, and h_places_fail may have said why.
///
/// It runs in threads of the library's that connect, several at a time; holds no lock; and may wait:
/// whoever connects is told when its time limit is over. At most 64 connect at a time, those who are
/// still in here included. It must not free the node. `context` is what it was set with.
pub type h_look_up_t = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        service: *const c_char,
        timeout_ns: i64,
        places: *mut h_places_t,
    ) -> bool,
>;

/// Is told that `context` is not used any more.
pub type h_release_t = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// From now on `look_up` says where services of other hosts are whose names say no place
/// ("hamlyn://service"), in the place of the setting `directory`; null: the setting does. Whoever is
/// connecting, and has been told, stays with what was found.
///
/// `release`, which may be null, is called with `context` once nothing calls `look_up` any more: when
/// another is set, or the node and all end points made from it have been freed, and whoever is in it has
/// returned. It runs in that call or in a thread of the library's. Where this call fails nothing is
/// kept, and it is not called; where `look_up` is null `context` and `release` are not looked at.
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

/// Adds a place, host:port, behind those that there are. In an h_look_up_t alone.
///
/// Errors: H_INVALID, it is none; H_LIMIT, there are 64.
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

/// Says why an h_look_up_t, before it returns false, could not look: a part of what whoever connects is
/// told. In an h_look_up_t alone.
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
/// Null, or what an `h_look_up_t` was given, which has not returned yet and uses it in one thread.
#[cfg(feature = "tls")]
unsafe fn places_of<'a>(places: *mut h_places_t) -> crate::boundary::Done<&'a mut h_places_t> {
    places.as_mut().ok_or_else(|| Failure::invalid("places is null"))
}

/// The C program's function.
#[cfg(feature = "tls")]
struct Given {
    look_up: unsafe extern "C" fn(*mut c_void, *const c_char, i64, *mut h_places_t) -> bool,
    release: h_release_t,
    /// Handed back to the program's own functions, in whichever thread, and not looked at here.
    context: AtomicPtr<c_void>,
}

#[cfg(feature = "tls")]
impl Drop for Given {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the program gave both, and nobody is in `look_up` any more.
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
        // SAFETY: the program promised that the function and its context are there until it is
        // released; the text and the places are until it returns.
        let could = unsafe { (self.look_up)(context, service.as_ptr(), timeout, &mut places) };
        match (could, places.why) {
            (true, _) => Ok(places.places),
            (false, Some(why)) => Err(why.into()),
            (false, None) => Err("it could not look, and has not said why".into()),
        }
    }
}
