//! Calls for a link, a connection or a request of another host, which `control::hosts` performs.
//! Without the feature `tls` there are none.

use super::super::Reason;
use super::super::machine::{Accept, AcceptError, RequestId};
use super::super::names::{Access, ServiceName};
use super::{ConnectError, Control, LinkToken, NewLink};

/// The way of leaving a link.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub(super) enum LeaveHow {
    Said,
    HungUp,
    SentAway,
    TooSlow,
}

#[cfg(feature = "tls")]
mod with_tls {
    use super::super::super::hosts::{
        HostDirectory, HostError, HostName, Hosts, Note, OnThisHost, Sought, WhenEnded, is_of_host,
    };
    use super::super::super::{GREETING_BYTES_MAX, Wait};
    use super::super::{ShellShared, deadline_of};
    use super::*;
    use crate::transport::frames::Goodbye;
    use core::sync::atomic::Ordering;
    use core::time::Duration;
    use std::boxed::Box;
    use std::string::{String, ToString};
    use std::sync::{Arc, MutexGuard, PoisonError, Weak};

    /// A link that was requested to another host; its node knows it by the token of that request so
    /// far.
    pub(in super::super) struct FoundLink {
        asked: LinkToken,
        how: Box<str>,
        ended: WhenEnded,
    }

    impl FoundLink {
        /// The link exists.
        pub fn linked(self, link: NewLink) -> NewLink {
            (self.ended)(None);
            NewLink { asked: Some(self.asked), how: Some(self.how), ..link }
        }

        /// There is no link.
        pub fn failed(self, error: ConnectError) {
            (self.ended)(Some(error));
        }
    }

    /// The interface of this host's part for the part for other hosts.
    struct ThisHost(Weak<ShellShared>);

    impl OnThisHost for ThisHost {
        fn begin(&self, sought: Sought, ended: WhenEnded) -> Result<LinkToken, ConnectError> {
            let gone = || ConnectError::Unavailable("it is ending".into());
            let shared = self.0.upgrade().ok_or_else(gone)?;
            if shared.is_ending.load(Ordering::Acquire) {
                return Err(gone());
            }
            let Sought { asked, name, credential, greeting, until_ns, how } = sought;
            let found = Box::new(FoundLink { asked, how, ended });
            shared.begin_expecting(&name.parse()?, credential, &greeting, until_ns, found)
        }

        fn figures(&self) -> String {
            self.0.upgrade().map_or(String::new(), |shared| shared.figures())
        }

        fn give_up(&self, token: LinkToken) {
            let Some(shared) = self.0.upgrade() else { return };
            let mut state = shared.lock();
            state.machine.give_up(token);
            shared.finish(state);
        }
    }

    impl ShellShared {
        pub(in super::super) fn on_this_host(self: &Arc<Self>) -> Arc<dyn OnThisHost> {
            Arc::new(ThisHost(Arc::downgrade(self)))
        }

        /// Reported as for this host.
        pub(in super::super) fn note_of_hosts(self: &Arc<Self>) -> Note {
            let this = Arc::downgrade(self);
            Arc::new(move |happened, entry| {
                let Some(shared) = this.upgrade() else { return };
                happened.count(&mut shared.of_hosts());
                if let Some(entry) = entry {
                    shared.note(entry);
                }
            })
        }
    }

    impl Control {
        fn hosts_lock(&self) -> MutexGuard<'_, Option<Arc<Hosts>>> {
            self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// The part for other hosts, if `id` belongs to it and this is no forked child.
        fn hosts_of(&self, id: u64) -> Option<Arc<Hosts>> {
            if !is_of_host(id) || !self.shared.guard.is_parent() {
                return None;
            }
            self.hosts_lock().clone()
        }

        /// The address at which other hosts connect; `None`: nothing listens.
        pub fn listens_at(&self) -> Option<core::net::SocketAddr> {
            if !self.shared.guard.is_parent() {
                return None;
            }
            self.hosts_lock().as_ref()?.address()
        }

        /// Sets the directory for services of other hosts; `None`: the setting `directory`.
        pub fn set_directory(&self, directory: Option<Arc<dyn HostDirectory>>) {
            self.shared.directory.set(directory);
        }

        /// Begins to connect to a service of another host, as
        /// [`begin_connect`](Self::begin_connect) does to one of this host.
        pub fn begin_connect_host(
            &self,
            name: &HostName,
            greeting: &[u8],
            timeout: Duration,
            wait: Wait,
        ) -> Result<LinkToken, ConnectError> {
            if !self.shared.guard.is_parent() {
                return Err(ConnectError::Forked);
            }
            if greeting.len() > GREETING_BYTES_MAX {
                return Err(ConnectError::GreetingTooLong(greeting.len()));
            }
            let mut hosts = self.hosts_lock();
            let hosts = match &*hosts {
                Some(hosts) => hosts.clone(),
                None => {
                    let (config, inbox) = (&self.shared.config, &self.shared.inbox);
                    let given = &self.shared.directory;
                    let told = (self.shared.on_this_host(), self.shared.note_of_hosts());
                    let started = Hosts::start(config, &self.identity, inbox, given, told);
                    let started = started.map_err(|e| {
                        let error = HostError::Hosts(e);
                        ConnectError::Host { name: name.to_string(), error }
                    })?;
                    hosts.insert(Arc::new(started)).clone()
                }
            };
            hosts.begin_connect(name, greeting, deadline_of(timeout), wait)
        }

        pub(in super::super) fn serve_hosts(
            &self,
            service: &ServiceName,
            access: Access,
            accept: Accept,
        ) {
            if let Some(hosts) = &*self.hosts_lock() {
                hosts.serve(service.name(), access, accept);
            }
        }

        pub(in super::super) fn stop_serving_hosts(&self, service: &ServiceName) {
            if let Some(hosts) = &*self.hosts_lock() {
                hosts.stop_serving(service.name());
            }
        }

        pub(in super::super) fn accept_host(
            &self,
            request: RequestId,
            greeting: &[u8],
        ) -> Option<Result<(), AcceptError>> {
            let hosts = self.hosts_of(request.0)?;
            Some(if hosts.accept(request, greeting) { Ok(()) } else { Err(gone(request)) })
        }

        pub(in super::super) fn refuse_host(
            &self,
            request: RequestId,
            reason: Reason,
            text: &str,
        ) -> Option<Result<(), AcceptError>> {
            let hosts = self.hosts_of(request.0)?;
            Some(if hosts.refuse(request, reason, text) { Ok(()) } else { Err(gone(request)) })
        }

        pub(in super::super) fn leave_host(&self, token: LinkToken, how: LeaveHow) -> bool {
            let how = match how {
                LeaveHow::Said => Goodbye::Said,
                LeaveHow::HungUp => Goodbye::HungUp,
                LeaveHow::SentAway => Goodbye::SentAway,
                LeaveHow::TooSlow => Goodbye::TooSlow,
            };
            if let Some(hosts) = self.hosts_of(token.0) {
                hosts.close(token, how);
            }
            is_of_host(token.0)
        }

        pub(in super::super) fn tell_host_stale(
            &self,
            token: LinkToken,
            slot: u32,
            index: u32,
        ) -> bool {
            if let Some(hosts) = self.hosts_of(token.0) {
                hosts.tell_stale(token, slot, index);
            }
            is_of_host(token.0)
        }

        pub(in super::super) fn give_up_host(&self, token: LinkToken) -> bool {
            if let Some(hosts) = self.hosts_of(token.0) {
                hosts.give_up(token);
            }
            is_of_host(token.0)
        }

        pub(in super::super) fn end_hosts(&self, by_ns: u64) {
            let hosts = self.hosts_lock().take();
            if let Some(hosts) = &hosts {
                hosts.end_by(by_ns);
            }
            drop(hosts);
        }

        /// In a forked child: other hosts belong to the parent, and their lock may be held for
        /// ever.
        pub(in super::super) fn forget_hosts(&mut self) {
            let hosts = self.hosts.get_mut().unwrap_or_else(PoisonError::into_inner);
            core::mem::forget(hosts.take());
        }
    }

    fn gone(request: RequestId) -> AcceptError {
        AcceptError::NoSuchRequest(request)
    }
}

#[cfg(feature = "tls")]
pub(super) use with_tls::FoundLink;

#[cfg(not(feature = "tls"))]
pub(super) enum FoundLink {}

#[cfg(not(feature = "tls"))]
impl FoundLink {
    pub fn linked(self, _: NewLink) -> NewLink {
        match self {}
    }

    pub fn failed(self, _: ConnectError) {
        match self {}
    }
}

#[cfg(not(feature = "tls"))]
#[allow(clippy::unused_self)]
impl Control {
    pub(super) fn serve_hosts(&self, _: &ServiceName, _: Access, _: Accept) {}

    pub(super) fn stop_serving_hosts(&self, _: &ServiceName) {}

    pub(super) fn accept_host(&self, _: RequestId, _: &[u8]) -> Option<Result<(), AcceptError>> {
        None
    }

    pub(super) fn refuse_host(
        &self,
        _: RequestId,
        _: Reason,
        _: &str,
    ) -> Option<Result<(), AcceptError>> {
        None
    }

    pub(super) fn leave_host(&self, _: LinkToken, _: LeaveHow) -> bool {
        false
    }

    pub(super) fn tell_host_stale(&self, _: LinkToken, _: u32, _: u32) -> bool {
        false
    }

    pub(super) fn give_up_host(&self, _: LinkToken) -> bool {
        false
    }

    pub(super) fn end_hosts(&self, _: u64) {}

    pub(super) fn forget_hosts(&mut self) {}
}
