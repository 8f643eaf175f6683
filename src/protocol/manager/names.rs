//! Names that a program itself serves. For bindings, whose other threads are not to wait meanwhile:
//! a process that may read a name's directory can make it take seconds, so the manager's lock is
//! not held.

use super::Manager;
use crate::control::{Accept, Access};
use crate::node::OfferError;

impl Manager {
    /// [`Node::serve`](crate::Node::serve).
    pub fn serve_name(&self, name: &str, access: Access, accept: Accept) -> Result<(), OfferError> {
        let control = self.shared.lock().parts().0.control_apart();
        Ok(control.serve(&name.parse()?, access, accept)?)
    }

    /// [`Node::stop_serving`](crate::Node::stop_serving).
    pub fn stop_serving_name(&self, name: &str) -> bool {
        if self.is_forked() {
            return false;
        }
        let control = self.shared.lock().parts().0.control_apart();
        name.parse().is_ok_and(|name| control.stop_serving(&name))
    }
}
