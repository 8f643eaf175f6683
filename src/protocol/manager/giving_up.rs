//! Whoever connects for another stops when that one has given it up.

use super::Manager;
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

std::thread_local! {
    /// While this thread sets something up for another: whether that has given it up.
    static GIVEN_UP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// While this lives, connecting in this thread ends when it is said so.
pub struct UntilGivenUp(());

impl UntilGivenUp {
    /// `given_up` says it.
    pub fn new(given_up: Arc<AtomicBool>) -> Self {
        GIVEN_UP.set(Some(given_up));
        Self(())
    }

    /// Says so to the thread that connects with this manager.
    pub fn give_up(given_up: &AtomicBool, manager: &Manager) {
        given_up.store(true, Ordering::Release);
        // It looks, wherever it sleeps.
        manager.lock().wake_waiters();
    }
}

impl Drop for UntilGivenUp {
    fn drop(&mut self) {
        GIVEN_UP.set(None);
    }
}

/// Whether whoever this thread connects for has given that up; to be asked again and again.
pub(super) fn given_up() -> impl Fn() -> bool {
    let given_up = GIVEN_UP.with_borrow(Clone::clone);
    move || given_up.as_ref().is_some_and(|given_up| given_up.load(Ordering::Acquire))
}
