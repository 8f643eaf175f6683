//! What an event loop watches: the node's descriptor, and a bell that is rung when another thread
//! takes what came, which makes the node's descriptor silent again.
//!
//! ```text
//!   event loop                                   any thread that polls
//!   prepare: was it rung?  <------- rung, bell ------  something came, or an event
//!            poll, arm     ------- waker ----------->
//!   all end points were found empty: prepare again; true: sleep on both
//! ```
//! Never: `prepare` says true though something came after the prepare before it, and so perhaps
//! after the program looked.

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
        // No waker was there yet for what came before.
        let ringer = Arc::new(Ringer { rung: AtomicBool::new(true), bell });
        let waker = Waker::from(ringer.clone());
        Ok(Self { poller, ringer, waker })
    }

    /// Whether nothing has come since the last call, and the descriptor tells of what comes.
    pub fn prepare(&self, manager: &Manager) -> Done<bool> {
        // The bell first: one that is rung in between is looked at, and stays readable.
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
