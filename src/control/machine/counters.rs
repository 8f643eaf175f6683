//! The counters of the control plane: links, the ways in which they ended, and each reason for a
//! refusal.
//!
//! Each refusal is a row of docs/refusals.md, and a test raises it. Never: a counter decides anything.

use super::LinkEnd;
use alloc::vec::Vec;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The counters of the control plane.
        #[derive(Clone, Debug, Default)]
        pub struct Counters { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl Counters {
            /// Name and value of each.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                alloc::vec![$((concat!("control.", stringify!($name)), self.$name),)+]
            }

            /// Name and meaning of each.
            pub fn described() -> Vec<(&'static str, &'static str)> {
                alloc::vec![
                    $((concat!("control.", stringify!($name)), concat!($($doc),+)),)+
                ]
            }
        }
    };
}

impl Counters {
    /// A link ended, for this reason.
    pub(crate) fn count_end(&mut self, reason: LinkEnd) {
        *match reason {
            LinkEnd::Graceful => &mut self.closed_graceful,
            LinkEnd::Died => &mut self.closed_died,
            LinkEnd::HungUp => &mut self.closed_hung_up,
            LinkEnd::Violation => &mut self.closed_violation,
            LinkEnd::Expelled | LinkEnd::TooSlow => &mut self.closed_expelled,
            LinkEnd::Unwatched => &mut self.closed_unwatched,
        } += 1;
    }
}

counters! {
    /// Connections accepted by the socket.
    connections,
    /// Links agreed, of either side, those to other hosts among them.
    links,
    /// Second connections that found their link.
    wake_connections,
    /// Questions for statistics answered.
    statistics,
    /// Apertures that were mapped by their holder, of either side.
    apertures,
    /// Links that ended with a goodbye.
    closed_graceful,
    /// Links whose process died, or whose host is gone.
    closed_died,
    /// Links closed by a process that lives, without a word.
    closed_hung_up,
    /// Links closed because of the other end's frames on its control socket.
    closed_violation,
    /// Links that this process closed because of the other end's writes to its ring.
    closed_by_us_violation,
    /// Links that the other end closed for that reason.
    closed_expelled,
    /// Links that ended because this process could no longer watch over them.
    closed_unwatched,
    /// Connections that ended before they sent anything.
    left_silent,
    /// Connections that ended on the way to a link.
    left_half_way,
    /// Another major version.
    refused_version,
    /// A required feature that this process lacks.
    refused_feature,
    /// A user who may not connect.
    refused_user,
    /// A user with too many connections.
    refused_connections,
    /// A user with too many bytes.
    refused_bytes,
    /// More links than this process may have, or than one user may have of the last ones.
    refused_links,
    /// The application refused.
    refused_application,
    /// An end point has no place for one more peer, or for one more of this user: its own limits.
    refused_places,
    /// Requests that do not fit the end point they ask for, or for which there is no end point.
    refused_end_point,
    /// Connections that sent nothing in time.
    refused_silent,
    /// Connections that did not take the next step in time.
    refused_slow,
    /// Silent connections dropped to make room for others that have not yet spoken.
    refused_half_open,
    /// Connections dropped, before their memory had come, to make room for others.
    refused_unpaid,
    /// Frames that made no sense, or came out of turn.
    refused_frame,
    /// Descriptors that came where they are not allowed.
    refused_descriptor,
    /// Memory that was not filled, sealed or sized as agreed.
    refused_memory,
    /// Identities of nodes that a peer claimed and could not prove.
    refused_identity,
    /// Second connections of another process, or with an unknown cookie.
    refused_cookie,
    /// Statistics asked for by another user.
    refused_statistics,
    /// Bulk rings refused.
    refused_bulk,
    /// Apertures that this process would not hold.
    refused_aperture,
    /// No descriptors, threads or memory for a new connection.
    refused_exhausted,
    /// Other hosts whose connection is not TLS, or whose certificate is not trusted.
    hosts_refused_tls,
    /// Other hosts that left before proving their identity, as a host with another secret does.
    hosts_refused_unproved,
    /// Other hosts that showed another secret.
    hosts_refused_secret,
    /// Other hosts that claimed to be a node and could not prove it.
    hosts_refused_identity,
    /// Other hosts of another major version.
    hosts_refused_version,
    /// Other hosts whose first words made no sense, or that said more before they were answered.
    hosts_refused_frame,
    /// Other hosts that did not take the next step in time.
    hosts_refused_slow,
    /// Other hosts dropped, before they had proved their identity, to make room for others.
    hosts_refused_half_open,
    /// Other hosts that came when there were as many links and connections as the limits allow.
    hosts_refused_links,
    /// Other hosts that asked for a name that is not served.
    hosts_refused_service,
    /// Other hosts that asked for a service that they may not use.
    hosts_refused_user,
    /// Other hosts with too many connections, or too many that wait for the application's answer.
    hosts_refused_connections,
    /// Other hosts whose greeting was too long.
    hosts_refused_greeting,
    /// Other hosts that the application, or an end point of it, refused.
    hosts_refused_application,
    /// Other hosts for which there were no descriptors or memory, or no room for one more event, or
    /// whose connection the system did not prepare or watch.
    hosts_refused_exhausted,
    /// Times that a listener rested, there being no room for a new connection or its events.
    rests,
}
