//! How this process ends a link.

use super::other_hosts::Leave;
use super::{Control, LinkToken};

impl Control {
    /// Ends a link with a goodbye; what was written can still be read at the other end.
    pub fn close(&self, token: LinkToken) {
        if self.leave_host(token, Leave::Said) {
            return;
        }
        self.call_if_parent(|machine, _| machine.close(token));
    }

    /// Ends a link without a goodbye, because not everything has been written; what was can still
    /// be read at the other end.
    pub fn hang_up(&self, token: LinkToken) {
        if self.leave_host(token, Leave::HungUp) {
            return;
        }
        self.call_if_parent(|machine, _| machine.hang_up(token));
    }

    /// Ends a link whose other end wrote what no honest process writes.
    pub fn violated(&self, token: LinkToken) {
        if self.leave_host(token, Leave::SentAway) {
            return;
        }
        self.call_if_parent(|machine, _| machine.violated(token));
    }

    /// Ends a link whose other end does not keep up with what it is sent, and tells it so.
    pub fn too_slow(&self, token: LinkToken) {
        if self.leave_host(token, Leave::TooSlow) {
            return;
        }
        self.call_if_parent(|machine, _| machine.too_slow(token));
    }
}
