//! The ways in which this process ends a link, and a thread of its own.

use super::super::machine::Machine;
use super::other_hosts::LeaveHow;
use super::{Control, LinkToken, deadline_of};
use crate::os::sys::{Bell, monotonic_ns};
use crate::os::thread::Thread;
use core::sync::atomic::Ordering;
use core::time::Duration;

/// Longest time that a thread of the library may take to end on request; and the time that it gets
/// if the program gives it none. It takes microseconds if it has a processor.
const END_PATIENCE_MIN: Duration = Duration::from_millis(100);
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Rings, and waits at most until then for a thread that ends when it hears the bell. It does not
/// hear the bell if the program has closed the library's descriptors, or put others in their place:
/// then the thread sleeps on, and nothing is written to the descriptor that now has the bell's
/// number.
pub(in crate::control) fn end(thread: Thread, bell: &Bell, by_ns: u64) {
    if bell.is_there() {
        bell.ring();
        let limit = Duration::from_nanos(by_ns.saturating_sub(monotonic_ns()));
        thread.join(limit.clamp(END_PATIENCE_MIN, END_PATIENCE));
    }
}

impl Control {
    /// Ends a link with a goodbye; the other end can still read everything that was written.
    pub fn close(&self, token: LinkToken) {
        self.end(token, LeaveHow::Said, Machine::close);
    }

    /// Ends a link without a goodbye, because not everything has been written; the other end can
    /// still read everything that was.
    pub fn hang_up(&self, token: LinkToken) {
        self.end(token, LeaveHow::HungUp, Machine::hang_up);
    }

    /// Ends a link whose other end wrote something that no honest process writes.
    pub fn violated(&self, token: LinkToken) {
        self.end(token, LeaveHow::SentAway, Machine::violated);
    }

    /// Ends a link whose other end does not keep up with the packets sent to it, and tells it the
    /// reason.
    pub fn too_slow(&self, token: LinkToken) {
        self.end(token, LeaveHow::TooSlow, Machine::too_slow);
    }

    fn end(&self, token: LinkToken, how: LeaveHow, end: fn(&mut Machine, LinkToken)) {
        if !self.leave_host(token, how) {
            self.call_if_parent(|machine, _| end(machine, token));
        }
    }

    /// Sets the time that the program waits for this to end, and no longer.
    pub(crate) fn end_within(&self, limit: Option<Duration>) {
        self.end_by_ns.store(deadline_of(limit.unwrap_or(Duration::MAX)), Ordering::Relaxed);
    }
}
