//! Names and links: serving, connecting, the identity of peers, events.

use crate::boundary::{
    Copied, Done, Failure, bytes, get, guard, h_status, h_status::*, limit, out, out_or_null, put,
    text,
};
use crate::node::h_node_t;
use core::ffi::{c_char, c_void};
use core::time::Duration;
use hamlyn::control::RequestId;
use hamlyn::node::{CloseReason, Event};
use hamlyn::protocol::Manager;
use hamlyn::{Accept, Access, ApertureEvent, LinkId, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

/// A link of a node. A value; the name of an ended link is not reused for a long time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_link_t {
    /// For the library.
    pub bits: u64,
}

impl From<LinkId> for h_link_t {
    fn from(id: LinkId) -> Self {
        Self { bits: (id.index as u64) << 16 | id.generation as u64 }
    }
}

impl h_link_t {
    pub(crate) fn id(self) -> LinkId {
        LinkId { index: (self.bits >> 16) as u32, generation: self.bits as u16 }
    }
}

/// The processes that may connect to a service.
#[repr(C)]
pub enum h_access {
    /// The same user. The name lies in this user's own directory.
    H_ACCESS_SAME_USER = 0,
    /// Members of a group, and the same user. The name lies in the shared directory.
    H_ACCESS_GROUP = 1,
    /// All users. The name lies in the shared directory.
    H_ACCESS_ANYONE = 2,
}

pub(crate) fn access_of(access: u32, gid: u32) -> Done<Access> {
    match access {
        0 => Ok(Access::SameUser),
        1 => Ok(Access::Group(gid)),
        2 => Ok(Access::Anyone),
        n => Err(Failure::invalid(format!("access is {n}, and must be one of h_access, 0 to 2"))),
    }
}

/// Most bytes of a greeting.
pub const H_GREETING_BYTES_MAX: usize = 4096;
const _: () = assert!(H_GREETING_BYTES_MAX == hamlyn::control::GREETING_BYTES_MAX);

/// Offers a service: every permitted process is accepted, also while the program makes no calls,
/// and gets `greeting`, often a ticket. `access` is an h_access; `gid` is used for H_ACCESS_GROUP
/// only. A node may offer several.
///
/// Errors: H_INVALID, not a name of a service; H_IN_USE; H_REFUSED; H_TOO_LONG; H_SYSTEM. No name
/// was taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_serve(
    node: *mut h_node_t,
    name: *const c_char,
    access: u32,
    gid: u32,
    greeting: *const c_void,
    greeting_length: usize,
) -> h_status {
    guard(|| {
        let (node, name) = (get(node, "node")?, text(name, "name")?);
        let access = access_of(access, gid)?;
        let greeting = bytes(greeting, greeting_length, "greeting")?.to_vec();
        Ok(node.manager()?.serve_name(name, access, Accept::Automatic(greeting))?)
    })
}

/// Offers a service for which the program decides on each connection: every request to connect is
/// an event, to be answered with h_accept or h_refuse. Otherwise as h_serve.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_serve_asking(
    node: *mut h_node_t,
    name: *const c_char,
    access: u32,
    gid: u32,
) -> h_status {
    guard(|| {
        let (node, name) = (get(node, "node")?, text(name, "name")?);
        let access = access_of(access, gid)?;
        Ok(node.manager()?.serve_name(name, access, Accept::Ask)?)
    })
}

/// No longer offers a service; links made through it stay.
///
/// Errors: H_NO_SUCH, it was not offered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_stop_serving(node: *mut h_node_t, name: *const c_char) -> h_status {
    guard(|| {
        let (node, name) = (get(node, "node")?, text(name, "name")?);
        if node.manager()?.stop_serving_name(name) {
            return Ok(());
        }
        Err(Failure::new(H_NO_SUCH, format!("this node offers no service called {name:?}")))
    })
}

/// Accepts a request to connect; the other side gets `greeting`. An event of kind H_EVENT_CONNECTED
/// then reports the link.
///
/// Errors: H_NO_SUCH, the request was answered or withdrawn; H_TOO_LONG; H_LIMIT, the request was
/// refused because there is no room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_accept(
    node: *mut h_node_t,
    request: u64,
    greeting: *const c_void,
    greeting_length: usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let greeting = bytes(greeting, greeting_length, "greeting")?;
        Ok(node.lock()?.accept(RequestId(request), greeting)?)
    })
}

/// Refuses a request to connect; the other side gets `reason`.
///
/// Errors: H_NO_SUCH, the request was answered or withdrawn.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_refuse(
    node: *mut h_node_t,
    request: u64,
    reason: *const c_char,
) -> h_status {
    guard(|| {
        let (node, reason) = (get(node, "node")?, text(reason, "reason")?);
        Ok(node.lock()?.refuse(RequestId(request), reason)?)
    })
}

/// Connects to the service "[user@]name", waiting at most `timeout_ns` in all: for a server of the
/// name, too, unless the node's setting wait_for_names is off. `greeting` reaches the server before
/// it decides; h_greeting gets its answer.
///
/// Errors: H_INVALID, not a name of a service; H_NOT_FOUND; H_REFUSED; H_VERSION; H_LIMIT;
/// H_TIMED_OUT; H_CLOSED; H_MISBEHAVED; H_TOO_LONG; H_SYSTEM; for another host H_NO_HOST,
/// H_UNREACHABLE, H_UNTRUSTED, H_SECRET. Nothing is left of the attempt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_connect(
    node: *mut h_node_t,
    name: *const c_char,
    greeting: *const c_void,
    greeting_length: usize,
    timeout_ns: i64,
    link: *mut h_link_t,
) -> h_status {
    guard(|| {
        let (node, name) = (get(node, "node")?, text(name, "name")?);
        let greeting = bytes(greeting, greeting_length, "greeting")?;
        let link = out(link, "link")?;
        link.write(node.manager()?.connect(name, greeting, limit(timeout_ns))?.into());
        Ok(())
    })
}

/// The other side's greeting when the link was made, often a ticket; also for the links that ended
/// last. Up to H_GREETING_BYTES_MAX bytes are copied to `buffer`; `length`, which may be null, gets
/// their number.
///
/// Errors: H_TOO_LONG, `length` is written; H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_greeting(
    node: *mut h_node_t,
    link: h_link_t,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let copied = Copied::new(buffer, capacity, length)?;
        copied.put(node.lock()?.greeting(link.id())?)
    })
}

/// Room for the address of another host, and a zero byte.
pub const H_ADDRESS_BYTES: usize = 64;

/// Room for the proven identity of another host, and a zero byte.
pub const H_IDENTITY_BYTES: usize = 256;

/// The identity of the other end of a link, from the kernel; -1 for a value that the kernel does
/// not give, because the other process is in another namespace, or on another host.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_peer_t {
    /// The user.
    pub uid: i64,
    /// The group.
    pub gid: i64,
    /// The process.
    pub pid: i64,
    /// Its node.
    pub node: u64,
    /// Whether it has proved that it is that node: the kernel says which process it is.
    pub is_proved: bool,
    /// For another host: the address that it is connected from, as address:port. Empty: it is on
    /// this host.
    pub address: [c_char; H_ADDRESS_BYTES],
    /// For another host: the first name in its certificate; or the certificate's hash, if it has no
    /// name; or `secret`, for a peer that has this process's secret and no certificate. Otherwise
    /// empty.
    pub identity: [c_char; H_IDENTITY_BYTES],
}

impl h_peer_t {
    /// An empty identity.
    const NOBODY: Self = Self {
        uid: -1,
        gid: -1,
        pid: -1,
        node: 0,
        is_proved: false,
        address: [0; H_ADDRESS_BYTES],
        identity: [0; H_IDENTITY_BYTES],
    };
}

impl From<&Peer> for h_peer_t {
    fn from(peer: &Peer) -> Self {
        let known = |id: Option<u32>| id.map_or(-1, i64::from);
        let (uid, gid, pid) = (known(peer.uid), known(peer.gid), known(peer.pid));
        let mut of =
            Self { uid, gid, pid, node: peer.node.0, is_proved: peer.is_proved, ..Self::NOBODY };
        if let Some(host) = &peer.host {
            text_into(&mut of.address, &host.address.to_string());
            text_into(&mut of.identity, &host.identity);
        }
        of
    }
}

/// The whole text, or nothing: a part of a name is another name.
fn text_into(place: &mut [c_char], text: &str) {
    if text.len() < place.len() && !text.contains('\0') {
        for (to, from) in place.iter_mut().zip(text.bytes()) {
            *to = from as c_char;
        }
    }
}

/// Decides whether a process may grow a sender of a receiver: true lets it in. It runs in any
/// thread that polls, must not wait, and must not call the library. `context` is that of the call
/// that set it, and must stay until the receiver is freed or another is set.
pub type h_admission_t =
    Option<unsafe extern "C" fn(context: *mut c_void, peer: *const h_peer_t) -> bool>;

/// The identity of the other end of a link; also for the links that ended last.
///
/// Errors: H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_peer(
    node: *mut h_node_t,
    link: h_link_t,
    peer: *mut h_peer_t,
) -> h_status {
    guard(|| {
        let (node, peer) = (get(node, "node")?, out(peer, "peer")?);
        peer.write(node.lock()?.peer(link.id())?.into());
        Ok(())
    })
}

/// The path that a link takes, and the reason: a text, copied to `buffer` and followed by a zero
/// byte; `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_TOO_LONG, `length` is written; H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_explain(
    node: *mut h_node_t,
    link: h_link_t,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let copied = Copied::new(buffer.cast(), capacity, length)?;
        let text = node.lock()?.explain(link.id())?;
        copied.put_text(&text)
    })
}

/// Ends one link. `unsent`, which may be null, gets the number of queued messages that have not
/// left and are lost.
///
/// Errors: H_NO_SUCH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_disconnect(
    node: *mut h_node_t,
    link: h_link_t,
    unsent: *mut usize,
) -> h_status {
    guard(|| {
        let node = get(node, "node")?;
        let unsent = out_or_null(unsent, "unsent")?;
        let lost = node.lock()?.disconnect(link.id())?;
        put(unsent, lost);
        Ok(())
    })
}

/// The kind of an event.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum h_event_kind {
    /// A process wants to connect to a service of h_serve_asking: `request`, `peer`; `text` is its
    /// greeting.
    H_EVENT_REQUEST = 0,
    /// A request was withdrawn before it was answered, or did not become a link: `request`.
    H_EVENT_REQUEST_GONE = 1,
    /// Another node has made a link: `link`, `peer`, and `request` if it was asked for.
    H_EVENT_CONNECTED = 2,
    /// The other side closed the link, and had sent everything: `link`, `unsent`.
    H_EVENT_CLOSED = 3,
    /// The process at the other end died: `link`, `unsent`.
    H_EVENT_DIED = 4,
    /// The other side closed without a goodbye, with messages that had not left: `link`, `unsent`.
    H_EVENT_HUNG_UP = 5,
    /// The other side broke the rules, and this node closed the link: `link`, `unsent`; `text`
    /// names the rule.
    H_EVENT_MISBEHAVED = 6,
    /// The other side says that this node broke the rules, and closed the link: `link`, `unsent`.
    H_EVENT_EXPELLED = 7,
    /// The other side holds an aperture that this node exported: `link`, `aperture`.
    H_EVENT_APERTURE_READY = 8,
    /// An aperture that this node exported has no holder and will have none; its memory was given
    /// back: `link`, `aperture`; `text` gives the reason.
    H_EVENT_APERTURE_REFUSED = 9,
    /// The other side has released an aperture that this node exported: `link`, `aperture`.
    H_EVENT_APERTURE_RELEASED = 10,
    /// This node holds an aperture that the other side exported: `link`, `aperture`.
    H_EVENT_APERTURE_HELD = 11,
    /// The other side revoked an aperture that this node held: `link`, `aperture`.
    H_EVENT_APERTURE_REVOKED = 12,
    /// The other side refused messages because one of its tickets has been revoked: `link`;
    /// `request` names the ticket.
    H_EVENT_TICKET_REVOKED = 13,
    /// This process can no longer watch the link, because the system refuses the resources for
    /// that: `link`, `unsent`.
    H_EVENT_UNWATCHED = 14,
}

use h_event_kind::*;

/// Room for the text of an event, and a zero byte.
pub const H_EVENT_TEXT_BYTES: usize = 4097;
const _: () = assert!(H_EVENT_TEXT_BYTES == H_GREETING_BYTES_MAX + 1);

/// An event that a program may want to know or decide.
#[repr(C)]
pub struct h_event_t {
    /// Its kind.
    pub kind: h_event_kind,
    /// The link, if the kind has one.
    pub link: h_link_t,
    /// The request, if the kind has one; for H_EVENT_TICKET_REVOKED the ticket's slot, in the upper
    /// 32 bits, and its metadata index; 0 otherwise.
    pub request: u64,
    /// Queued messages that did not leave.
    pub unsent: u64,
    /// The aperture of the link, if the kind has one.
    pub aperture: u32,
    /// The peer, if the kind has one.
    pub peer: h_peer_t,
    /// Bytes of `text`.
    pub text_length: u64,
    /// A greeting, or a reason; followed by a zero byte.
    pub text: [u8; H_EVENT_TEXT_BYTES],
}

impl h_event_t {
    fn new(kind: h_event_kind, link: Option<LinkId>, said: &[u8]) -> Self {
        let length = said.len().min(H_GREETING_BYTES_MAX);
        let mut text = [0; H_EVENT_TEXT_BYTES];
        text[..length].copy_from_slice(&said[..length]);
        Self {
            kind,
            link: link.unwrap_or(LinkId { index: u32::MAX, generation: u16::MAX }).into(),
            request: 0,
            unsent: 0,
            aperture: 0,
            peer: h_peer_t::NOBODY,
            text_length: length as u64,
            text,
        }
    }
}

fn event_of(event: Event, manager: &Manager) -> h_event_t {
    match event {
        Event::Request { id, peer, greeting } => h_event_t {
            request: id.0,
            peer: (&peer).into(),
            ..h_event_t::new(H_EVENT_REQUEST, None, &greeting)
        },
        Event::RequestGone { id } => {
            h_event_t { request: id.0, ..h_event_t::new(H_EVENT_REQUEST_GONE, None, b"") }
        }
        Event::Connected { link, request } => {
            let mut event = h_event_t::new(H_EVENT_CONNECTED, Some(link), b"");
            event.request = request.map_or(0, |id| id.0);
            if let Ok(peer) = manager.lock().peer(link) {
                event.peer = peer.into();
            }
            event
        }
        Event::Closed { link, reason, unsent } => {
            let (kind, text) = match &reason {
                CloseReason::Closed => (H_EVENT_CLOSED, ""),
                CloseReason::Died => (H_EVENT_DIED, ""),
                CloseReason::HungUp => (H_EVENT_HUNG_UP, ""),
                CloseReason::Misbehaved(how) => (H_EVENT_MISBEHAVED, how.as_str()),
                CloseReason::Expelled => (H_EVENT_EXPELLED, ""),
                CloseReason::TooSlow => (H_EVENT_EXPELLED, "too slow"),
                CloseReason::Unwatched => (H_EVENT_UNWATCHED, ""),
            };
            let mut event = h_event_t::new(kind, Some(link), text.as_bytes());
            event.unsent = unsent as u64;
            if let Ok(peer) = manager.lock().peer(link) {
                event.peer = peer.into();
            }
            event
        }
        Event::TicketRevoked { link, slot, index } => {
            let event = h_event_t::new(H_EVENT_TICKET_REVOKED, Some(link), b"");
            h_event_t { request: u64::from(slot.0) << 32 | u64::from(index.0), ..event }
        }
        Event::Aperture { aperture, what } => {
            let (kind, why) = match what {
                ApertureEvent::Ready => (H_EVENT_APERTURE_READY, String::new()),
                ApertureEvent::Refused(why) => (H_EVENT_APERTURE_REFUSED, why.to_string()),
                ApertureEvent::Released => (H_EVENT_APERTURE_RELEASED, String::new()),
                ApertureEvent::Held => (H_EVENT_APERTURE_HELD, String::new()),
                ApertureEvent::Revoked => (H_EVENT_APERTURE_REVOKED, String::new()),
            };
            let event = h_event_t::new(kind, Some(aperture.link), why.as_bytes());
            h_event_t { aperture: aperture.number, ..event }
        }
    }
}

/// The next event of the node, waiting for it at most `timeout_ns`; 0: not at all.
///
/// Errors: H_NOTHING, no event waits and the time limit was 0; H_TIMED_OUT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_next_event(
    node: *mut h_node_t,
    timeout_ns: i64,
    event: *mut h_event_t,
) -> h_status {
    guard(|| {
        let (node, place) = (get(node, "node")?, out(event, "event")?);
        let manager = node.manager()?;
        let began = Instant::now();
        loop {
            manager.poll()?;
            if let Some(event) = manager.next_event() {
                place.write(event_of(event, manager));
                return Ok(());
            }
            if timeout_ns == 0 {
                return Err(Failure::new(H_NOTHING, "no event waits"));
            }
            let left = match limit(timeout_ns).map(|limit| limit.checked_sub(began.elapsed())) {
                Some(None) => {
                    return Err(Failure::new(H_TIMED_OUT, "no event within the time limit"));
                }
                Some(Some(left)) => left.min(SLEEP_MAX),
                None => SLEEP_MAX,
            };
            if !manager.prepare_to_wait(None)? {
                continue;
            }
            let fd = manager.try_clone_fd()?;
            let left = Timespec { tv_sec: 0, tv_nsec: left.as_nanos() as i64 };
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(std::io::Error::from(e).into()),
            }
        }
    })
}

/// A thread that receives may consume the wake-up of one that waits for events; the latter looks
/// again after this time.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A descriptor for epoll, poll and an event loop. It becomes readable when something may have come
/// after h_prepare_to_wait allowed waiting, also if another thread has received it. The node owns
/// the descriptor: do not close it, nor read from it. For one event loop.
///
/// Errors: H_SYSTEM, the system gives no descriptor; H_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_fd(node: *mut h_node_t, fd: *mut i32) -> h_status {
    guard(|| {
        let (node, fd) = (get(node, "node")?, out(fd, "fd")?);
        fd.write(node.watch()?.as_fd().as_raw_fd());
        Ok(())
    })
}

/// Call this before waiting on h_fd, after finding every queue, end point and h_next_event empty.
/// `may_wait` becomes true if nothing has come since, and any arrival makes the descriptor
/// readable; or false if something may have come since the last call, in any thread: look at all of
/// them again. So it is false the first time.
///
/// Errors: as h_fd.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_prepare_to_wait(node: *mut h_node_t, may_wait: *mut bool) -> h_status {
    guard(|| {
        let (node, may_wait) = (get(node, "node")?, out(may_wait, "may_wait")?);
        may_wait.write(node.watch()?.prepare(node.manager()?)?);
        Ok(())
    })
}
