//! The descriptors for an event loop: the node's, and a bell that rings when another thread
//! receives, which silences the node's.
//!
//! ```text
//!   event loop                                   any thread that polls
//!   prepare: was it rung?  <------- rung, bell ------  something came, or an event
//!            poll, arm     ------- waker ----------->
//!   all end points were found empty: prepare again; true: sleep on both
//! ```
//! Never: `prepare` returns true though something has come since the previous prepare, and so
//! perhaps after the program looked.

use crate::boundary::Done;
use hamlyn::os::poller::Poller;
use hamlyn::os::sys::Bell;
use hamlyn::protocol::Manager;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

pub struct Watch {
    poller: Poller,
    ringer: Arc<Ringer>,
    waker: Waker,
}

struct Ringer {
    rung: AtomicBool,
    bell: Bell,
}

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

impl Watch {
    pub fn new(manager: &Manager) -> io::Result<Self> {
        let (poller, bell) = (Poller::new()?, Bell::new()?);
        poller.add(manager.lock().as_fd(), 0)?;
        poller.add(&bell, 1)?;
        // Arrivals before this had no waker yet.
        let ringer = Arc::new(Ringer { rung: AtomicBool::new(true), bell });
        let waker = Waker::from(ringer.clone());
        Ok(Self { poller, ringer, waker })
    }

    /// Whether nothing has come since the last call, so that the descriptor reports the next
    /// arrival.
    pub fn prepare(&self, manager: &Manager) -> Done<bool> {
        // The bell first: a ring in between makes it readable again, and is looked at.
        self.ringer.bell.silence();
        let before = self.ringer.rung.swap(false, Ordering::SeqCst);
        let may_wait = manager.prepare_to_wait(Some(&self.waker))?;
        let meanwhile = self.ringer.rung.load(Ordering::SeqCst);
        Ok(may_wait && !before && !meanwhile)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
