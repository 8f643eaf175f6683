//! How this process ends a link.

use super::super::machine::Machine;
use super::other_hosts::Leave;
use super::{Control, LinkToken};

impl Control {
    /// Ends a link with a goodbye; what was written can still be read at the other end.
    pub fn close(&self, token: LinkToken) {
        self.end(token, Leave::Said, Machine::close);
    }

    /// Ends a link without a goodbye, because not everything has been written; what was can still
    /// be read at the other end.
    pub fn hang_up(&self, token: LinkToken) {
        self.end(token, Leave::HungUp, Machine::hang_up);
    }

    /// Ends a link whose other end wrote what no honest process writes.
    pub fn violated(&self, token: LinkToken) {
        self.end(token, Leave::SentAway, Machine::violated);
    }

    /// Ends a link whose other end does not keep up with what it is sent, and tells it so.
    pub fn too_slow(&self, token: LinkToken) {
        self.end(token, Leave::TooSlow, Machine::too_slow);
    }

    fn end(&self, token: LinkToken, how: Leave, end: fn(&mut Machine, LinkToken)) {
        if !self.leave_host(token, how) {
            self.call_if_parent(|machine, _| end(machine, token));
        }
    }
}
