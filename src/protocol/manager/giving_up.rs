//! Stops a connection attempt that one thread makes for another, when the other has given it up.

use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

std::thread_local! {
    /// Set while this thread sets something up for another: whether that one has given it up.
    static GIVEN_UP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// While this lives, connecting in this thread ends as soon as the attempt is given up.
pub struct UntilGivenUp(());

impl UntilGivenUp {
    /// `given_up` becomes true when the attempt is given up.
    pub fn new(given_up: Arc<AtomicBool>) -> Self {
        GIVEN_UP.set(Some(given_up));
        Self(())
    }
}

impl Drop for UntilGivenUp {
    fn drop(&mut self) {
        GIVEN_UP.set(None);
    }
}

/// Whether the attempt that this thread makes for another has been given up; to be asked
/// repeatedly.
pub(super) fn given_up() -> impl Fn() -> bool {
    let given_up = GIVEN_UP.with_borrow(Clone::clone);
    move || given_up.as_ref().is_some_and(|given_up| given_up.load(Ordering::Acquire))
}
