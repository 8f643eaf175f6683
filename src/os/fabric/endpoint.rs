//! One end point of a fabric: it sends messages to any peer and receives those of all, into buffers
//! of its own, with one completion queue.
//!
//! ```text
//!   idle --post--> receiving --completion--> came --give_back--> idle
//!   idle --send--> (unsent) --> sending --completion--> idle
//! ```
//! Messages are written directly into a send buffer. If the provider has no room (`-FI_EAGAIN`),
//! the buffer waits, and those with the same tag behind it, until completions have been read.
//!
//! The buffers belong to the end point, not to a peer: a message comes into the buffer that was
//! posted first. Buffers are registered if the provider requires that (`FI_MR_LOCAL`), bound if it
//! requires that (`FI_MR_ENDPOINT`), and each provides the memory that an operation may need
//! (`FI_CONTEXT2`).
//!
//! Never: a buffer is read, written or freed while the library uses it.

mod far;
mod sending;

use super::FabricError;
use super::chunk::{Chunk, Context, ReceivedChunk};
use super::exit::Door;
use super::library::{Choice, Library};
use super::object::{Object, Padded};
use super::sys;
use crate::os::descriptor::Descriptor;
use crate::os::memory::ForkGuard;
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use far::{FAR_FIRST, FarOps};
pub use far::{FAR_OPS, FarMemory, OperationMemory};
use rustix::mm;
use sending::Unsent;
use std::boxed::Box;
use std::os::fd::{AsFd, BorrowedFd};
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

/// Completions that are read at a time.
const READ_AT_A_TIME: usize = 16;
/// Entries of the completion queue, for an end point that sends messages, and for one for memory.
const QUEUE_ENTRIES: usize = 4096;
const QUEUE_ENTRIES_OF_MEMORY: usize = 128;
/// Most bytes of an end point's address.
const ADDRESS_BYTES_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpState {
    Idle,
    Receiving,
    Came {
        bytes: usize,
    },
    /// Written, but not yet taken by the provider.
    Unsent {
        bytes: usize,
        to: FabricPeer,
        tag: u64,
    },
    Sending {
        tag: u64,
    },
}

#[derive(Debug)]
struct Buffer {
    /// Memory of a chunk, with room for one message.
    at: NonNull<u8>,
    descriptor: *mut c_void,
    context: *mut Context,
    chunk: Arc<Chunk>,
    state: OpState,
    is_for_sending: bool,
}

/// A peer's number in the table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricPeer(sys::fi_addr_t);

/// The result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// It is sent, with this number of bytes; an event follows when that is finished.
    Leaves(usize),
    /// There was no message to send.
    Nothing,
    /// There is no buffer for it now; nothing was written.
    NotNow,
}

/// A completion.
#[derive(Debug)]
pub enum FabricEvent {
    /// A message came.
    Came(ReceivedChunk),
    /// A message was longer than a buffer, and is lost.
    TooLong,
    /// A receive ended without a message.
    NotReceived,
    /// A message has been sent.
    Sent {
        /// The tag of the call of `send`.
        tag: u64,
    },
    /// Sending a message failed.
    NotSent {
        /// The tag of the call of `send`.
        tag: u64,
        /// The reason.
        why: String,
    },
    /// A write to another end point's memory, or a read from it, has arrived or failed.
    Far {
        /// The number of the call of `begin_far`.
        op: usize,
        /// An error: the reason.
        ended: Result<(), String>,
    },
}

/// An end point: see the module. Its owner calls the library; no call waits, except one that
/// silences a descriptor (in [`poll`](Self::poll)).
#[derive(Debug)]
pub struct FabricEndPoint {
    /// `None`: closed.
    objects: Option<Objects>,
    buffers: Vec<Buffer>,
    far: FarOps,
    unsent: Unsent,
    /// Receive buffers to be posted; then send buffers not in use.
    unposted: Vec<usize>,
    idle: Vec<usize>,
    address: Vec<u8>,
    descriptor: Option<Descriptor>,
    /// The descriptor is readable, but the library has no completion.
    is_stuck: bool,
    next_key: u64,
    message_bytes: usize,
    choice: Choice,
    door: Door,
    guard: ForkGuard,
}

/// The objects that the library has made for an end point, in the order of closing.
#[derive(Debug)]
struct Objects {
    end: Object<sys::fid_ep>,
    regions: Vec<Object<sys::fid_mr>>,
    queue: Object<sys::fid_cq>,
    addresses: Object<sys::fid_av>,
    domain: Object<sys::fid_domain>,
    fabric: Object<sys::fid_fabric>,
}

// SAFETY: the library's objects are bound to no thread; `FI_THREAD_DOMAIN` requires that one thread
// at a time calls it, and all calls except those that only read this struct's own fields take `&mut
// self`.
unsafe impl Send for FabricEndPoint {}

impl FabricEndPoint {
    /// Opens an end point of this choice; peers can send to it from now on. Messages have at most
    /// `message_bytes`, a multiple of a page. It has no buffers yet.
    pub fn open(choice: Choice, message_bytes: usize) -> Result<Self, FabricError> {
        Self::open_with(choice, message_bytes, QUEUE_ENTRIES)
    }

    /// Opens an end point for memory; it sends no messages.
    pub fn open_for_memory(choice: Choice) -> Result<Self, FabricError> {
        Self::open_with(choice, 0, QUEUE_ENTRIES_OF_MEMORY)
    }

    fn open_with(
        choice: Choice,
        message_bytes: usize,
        entries: usize,
    ) -> Result<Self, FabricError> {
        let door = Door::new();
        let _inside = door.enter().ok_or(FabricError::Ends)?;
        let library = choice.library().clone();
        let guard = ForkGuard::new().map_err(|e| FabricError::Refused {
            doing: "mapping a page",
            code: e.raw_os_error().unwrap_or(0),
            why: std::format!("{e}"),
        })?;
        let fabric = Object::of(library.open_fabric(choice.info())?);
        // SAFETY: the fabric is alive, and so are the answer and the place for the result; the same
        // holds in all that follows.
        let domain = Object::make(&library, "opening the domain", |place| unsafe {
            let open = (*(*fabric.raw()).ops).domain.expect("each fabric has domains");
            open(fabric.raw(), choice.as_ptr(), place, null_mut())
        })?;
        // SAFETY: an attribute of integers and pointers.
        let mut attr = unsafe { Padded::<sys::fi_av_attr>::zeroed() };
        attr.value.type_ = sys::FI_AV_TABLE;
        // SAFETY: as above.
        let addresses = Object::make(&library, "making the table of addresses", |place| unsafe {
            let open = (*(*domain.raw()).ops).av_open.expect("each domain has addresses");
            open(domain.raw(), (&raw mut attr).cast(), place, null_mut())
        })?;
        let open_queue = |wait: sys::fi_wait_obj| {
            // SAFETY: an attribute of integers and pointers.
            let mut attr = unsafe { Padded::<sys::fi_cq_attr>::zeroed() };
            attr.value.size = entries;
            attr.value.format = sys::FI_CQ_FORMAT_MSG;
            attr.value.wait_obj = wait;
            // SAFETY: as above.
            Object::make(&library, "making the completion queue", |place| unsafe {
                let open = (*(*domain.raw()).ops).cq_open.expect("each domain has queues");
                open(domain.raw(), (&raw mut attr).cast(), place, null_mut())
            })
        };
        let queue = open_queue(sys::FI_WAIT_FD).or_else(|_| open_queue(sys::FI_WAIT_NONE))?;
        let descriptor = descriptor_of(&queue);
        // SAFETY: as above.
        let end = Object::make(&library, "making the end point", |place| unsafe {
            let open = (*(*domain.raw()).ops).endpoint.expect("each domain has end points");
            open(domain.raw(), choice.as_ptr(), place, null_mut())
        })?;
        let both = u64::from(sys::FI_TRANSMIT | sys::FI_RECV);
        bind(&library, "binding the table of addresses", &end, addresses.fid(), 0)?;
        bind(&library, "binding the completion queue", &end, queue.fid(), both)?;
        enable(&library, end.fid())?;
        let mut address = std::vec![0u8; ADDRESS_BYTES_MAX];
        let mut bytes = address.len();
        // SAFETY: a place of this number of bytes.
        let rc = unsafe {
            let name = (*(*end.raw()).cm).getname.expect("each end point has a name");
            name(end.fid(), address.as_mut_ptr().cast(), &mut bytes)
        };
        if rc != 0 || bytes > address.len() {
            return Err(library.refused("asking for the end point's address", rc as isize));
        }
        address.truncate(bytes);
        Ok(Self {
            objects: Some(Objects { end, regions: Vec::new(), queue, addresses, domain, fabric }),
            buffers: Vec::new(),
            far: FarOps::default(),
            unsent: Unsent::default(),
            unposted: Vec::new(),
            idle: Vec::new(),
            address,
            descriptor,
            is_stuck: false,
            next_key: 1,
            message_bytes,
            choice,
            door,
            guard,
        })
    }

    /// Its address, for other end points.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// The choice that it was opened with.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Readable when there may be completions, once [`may_sleep`](Self::may_sleep) has returned
    /// `true`; `None`: the provider has none.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(|fd| fd.as_fd())
    }

    fn library(&self) -> &Arc<Library> {
        self.choice.library()
    }

    fn objects(&self) -> &Objects {
        self.objects.as_ref().expect("it is open until it is dropped")
    }

    fn end(&self) -> *mut sys::fid_ep {
        self.objects().end.raw()
    }

    /// The number of receive buffers.
    pub fn receives(&self) -> usize {
        self.buffers.iter().filter(|buffer| !buffer.is_for_sending).count()
    }

    /// Most operations of each kind, receives and sends, that the provider takes at a time.
    pub fn most(&self) -> (usize, usize) {
        let info = self.choice.info();
        // SAFETY: an answer has all of its parts.
        unsafe { ((*info.rx_attr).size, (*info.tx_attr).size) }
    }

    /// Adds buffers. After an error there are as many as before.
    pub fn grow(&mut self, receives: usize, sends: usize) -> Result<(), FabricError> {
        let count = receives + sends;
        let bytes = count * self.message_bytes;
        let refused = |e: rustix::io::Errno| FabricError::Refused {
            doing: "mapping buffers",
            code: e.raw_os_error(),
            why: std::format!("{e}"),
        };
        let (protection, flags) =
            (mm::ProtFlags::READ | mm::ProtFlags::WRITE, mm::MapFlags::PRIVATE);
        // SAFETY: new memory.
        let at = unsafe { mm::mmap_anonymous(null_mut(), bytes, protection, flags) };
        let at = NonNull::new(at.map_err(refused)?).expect("no mapping begins at zero");
        // A forked child has no use for it; if the pages are pinned, the fork would take them from
        // this process.
        // SAFETY: the mapping just made.
        let _ = unsafe { mm::madvise(at.as_ptr(), bytes, mm::Advice::LinuxDontFork) };
        let first = self.buffers.len();
        let contexts: Vec<Context> = (0..count)
            .map(|i| Context {
                // SAFETY: memory for the library's own use; zeros are valid.
                of_library: unsafe { core::mem::zeroed() },
                buffer: first + i,
            })
            .collect();
        let contexts = Box::into_raw(contexts.into_boxed_slice());
        let chunk = Arc::new(Chunk { at, bytes, contexts });
        // The library does not use memory that could not be registered.
        let access = u64::from(sys::FI_SEND | sys::FI_RECV);
        let descriptor = self.register_own(at, bytes, access)?;
        for i in 0..count {
            // SAFETY: within the mapping.
            let at = unsafe { at.cast::<u8>().add(i * self.message_bytes) };
            // SAFETY: within the slice.
            let context = unsafe { contexts.cast::<Context>().add(i) };
            let is_for_sending = i >= receives;
            let list = if is_for_sending { &mut self.idle } else { &mut self.unposted };
            list.push(first + i);
            let (state, chunk) = (OpState::Idle, chunk.clone());
            self.buffers.push(Buffer { at, descriptor, context, chunk, state, is_for_sending });
        }
        self.post();
        Ok(())
    }

    /// The provider's mode of registering memory.
    fn mr_mode(&self) -> u32 {
        // SAFETY: an answer has all of its parts.
        unsafe { (*self.choice.info().domain_attr).mr_mode as u32 }
    }

    /// Registers memory that only this end uses, if the provider requires that.
    fn register_own(
        &mut self,
        at: NonNull<c_void>,
        bytes: usize,
        access: u64,
    ) -> Result<*mut c_void, FabricError> {
        if self.mr_mode() & sys::FI_MR_LOCAL == 0 {
            return Ok(null_mut());
        }
        // No remote access is granted, so the key opens nothing; a provider that chooses keys
        // itself ignores this one.
        let key = self.next_key;
        let region = self.register(at, bytes, access, key)?;
        self.next_key += 1;
        // SAFETY: it is alive.
        Ok(unsafe { (*region).mem_desc })
    }

    /// Registers memory, which stays mapped until the end point is closed.
    fn register(
        &mut self,
        at: NonNull<c_void>,
        bytes: usize,
        access: u64,
        key: u64,
    ) -> Result<*mut sys::fid_mr, FabricError> {
        let domain = &self.objects().domain;
        let _inside = self.door.enter().ok_or(FabricError::Ends)?;
        let library = self.library().clone();
        // SAFETY: memory that is mapped until the region is closed, and a place for it.
        let region = Object::make(&library, "registering memory", |place| unsafe {
            let register = (*(*domain.raw()).mr).reg.expect("each domain registers memory");
            register(domain.fid(), at.as_ptr(), bytes, access, 0, key, 0, place, null_mut())
        })?;
        if self.mr_mode() & sys::FI_MR_ENDPOINT != 0 {
            bind(&library, "binding memory", &region, self.end().cast(), 0)?;
            enable(&library, region.fid())?;
        }
        let raw = region.raw();
        self.objects.as_mut().expect("as above").regions.push(region);
        Ok(raw)
    }

    /// Posts receive buffers to the library, as many as it takes.
    fn post(&mut self) {
        if self.unposted.is_empty() {
            return;
        }
        let Some(_inside) = self.door.enter() else { return };
        let end = self.end();
        while let Some(&index) = self.unposted.last() {
            let buffer = &mut self.buffers[index];
            debug_assert_eq!(buffer.state, OpState::Idle);
            // SAFETY: memory of this length that is not touched until the completion, and a context
            // that stays.
            let rc = unsafe {
                let receive = (*(*end).msg).recv.expect("each end point receives");
                let (at, any) = (buffer.at.as_ptr().cast(), u64::MAX);
                receive(end, at, self.message_bytes, buffer.descriptor, any, buffer.context.cast())
            };
            if rc != 0 {
                // There is no room until the next completion.
                return;
            }
            buffer.state = OpState::Receiving;
            self.unposted.pop();
        }
    }

    /// Whether all receive buffers are posted.
    pub fn has_posted_all(&self) -> bool {
        self.unposted.is_empty()
    }

    /// Adds the address of another end point, in the form of this one's.
    pub fn insert(&mut self, address: &[u8]) -> Result<FabricPeer, FabricError> {
        let addresses = &self.objects().addresses;
        if address.len() != self.address.len() {
            return Err(self.library().refused("reading the other end point's address", -22));
        }
        let _inside = self.door.enter().ok_or(FabricError::Ends)?;
        let mut peer: sys::fi_addr_t = u64::MAX;
        // SAFETY: as many bytes as an address of this form has.
        let inserted = unsafe {
            let insert = (*(*addresses.raw()).ops).insert.expect("each table takes addresses");
            insert(addresses.raw(), address.as_ptr().cast(), 1, &mut peer, 0, null_mut())
        };
        if inserted != 1 || peer == u64::MAX {
            let code = if inserted < 0 { inserted as isize } else { -22 };
            return Err(self.library().refused("taking the other end point's address", code));
        }
        Ok(FabricPeer(peer))
    }

    /// Removes a peer: nothing is on its way to it, and nothing more will be sent.
    pub fn remove(&mut self, peer: FabricPeer) {
        let addresses = &self.objects().addresses;
        let Some(_inside) = self.door.enter() else { return };
        let mut peer = peer.0;
        // SAFETY: an entry of this table.
        unsafe {
            if let Some(remove) = (*(*addresses.raw()).ops).remove {
                remove(addresses.raw(), &mut peer, 1, 0);
            }
        }
    }

    /// Reads some completions; `false`: there are no more for now.
    pub fn poll(&mut self, events: &mut Vec<FabricEvent>) -> Result<bool, FabricError> {
        let queue = &self.objects().queue;
        let Some(_inside) = self.door.enter() else { return Ok(false) };
        let queue = queue.raw();
        // SAFETY: integers and pointers.
        let mut entries: [sys::fi_cq_msg_entry; READ_AT_A_TIME] = unsafe { core::mem::zeroed() };
        // SAFETY: a place for this number of entries of the queue's format.
        let read = unsafe {
            let (ops, to) = (&*(*queue).ops, entries.as_mut_ptr().cast());
            match ops.sread {
                // `net` of 1.17 silences its descriptor only in this call, and only if it may wait:
                // for a millisecond, or until a completion comes. The caller was about to sleep
                // anyway.
                Some(read) if core::mem::take(&mut self.is_stuck) => {
                    read(queue, to, READ_AT_A_TIME, core::ptr::null(), 1)
                }
                _ => ops.read.expect("each queue is read")(queue, to, READ_AT_A_TIME),
            }
        };
        let is_full = read as i64 == READ_AT_A_TIME as i64;
        match read as i64 {
            read if read > 0 => {
                for entry in &entries[..(read as usize).min(READ_AT_A_TIME)] {
                    self.completed(entry.op_context, entry.len, None, events);
                }
            }
            read if read == -i64::from(sys::FI_EAVAIL) => {
                self.poll_error(queue, events)?;
                self.post();
                self.send_unsent(events);
                return Ok(true);
            }
            0 => {}
            read if read == -i64::from(sys::FI_EAGAIN) => {}
            // The waiting call may return these for the same: also if a signal came meanwhile, or
            // if the process was stopped and goes on.
            read if [libc::ETIMEDOUT, libc::EINTR].map(|e| -i64::from(e)).contains(&read) => {}
            read => return Err(self.library().refused("reading completions", read as isize)),
        }
        self.post();
        self.send_unsent(events);
        Ok(is_full)
    }

    fn poll_error(
        &mut self,
        queue: *mut sys::fid_cq,
        events: &mut Vec<FabricEvent>,
    ) -> Result<(), FabricError> {
        // SAFETY: integers and pointers.
        let mut entry = unsafe { Padded::<sys::fi_cq_err_entry>::zeroed() };
        // SAFETY: a place for an entry.
        let read = unsafe {
            let read = (*(*queue).ops).readerr.expect("each queue is read");
            read(queue, (&raw mut entry).cast(), 0)
        };
        match read as i64 {
            1 => {
                let entry = entry.value;
                self.completed(entry.op_context, 0, Some(entry.err), events);
                Ok(())
            }
            read if read == -i64::from(sys::FI_EAGAIN) || read == 0 => Ok(()),
            read => Err(self.library().refused("reading an error", read as isize)),
        }
    }

    fn completed(
        &mut self,
        context: *mut c_void,
        bytes: usize,
        error: Option<c_int>,
        events: &mut Vec<FabricEvent>,
    ) {
        if context.is_null() {
            return;
        }
        // SAFETY: the context of an operation, one of those above; the library has finished with
        // it.
        let index = unsafe { (*context.cast::<Context>()).buffer };
        if let Some(op) = index.checked_sub(FAR_FIRST) {
            return self.far_completed(op, error, events);
        }
        let Some(buffer) = self.buffers.get_mut(index) else { return };
        let before = core::mem::replace(&mut buffer.state, OpState::Idle);
        match (before, error) {
            (OpState::Receiving, None) => {
                let bytes = bytes.min(self.message_bytes);
                buffer.state = OpState::Came { bytes };
                let (at, _chunk) = (buffer.at, buffer.chunk.clone());
                events.push(FabricEvent::Came(ReceivedChunk { index, at, bytes, _chunk }));
            }
            (OpState::Receiving, Some(error)) => {
                self.unposted.push(index);
                events.push(match error as i64 {
                    error if error == i64::from(sys::FI_ETRUNC) => FabricEvent::TooLong,
                    _ => FabricEvent::NotReceived,
                });
            }
            (OpState::Sending { tag }, error) => {
                self.idle.push(index);
                events.push(match error {
                    None => FabricEvent::Sent { tag },
                    Some(error) => FabricEvent::NotSent { tag, why: self.library().text(error) },
                });
            }
            // The library was not using it: its completion has been reported already.
            (OpState::Idle | OpState::Came { .. } | OpState::Unsent { .. }, _) => {
                buffer.state = before
            }
        }
    }

    /// Posts the buffer of a message of this end point again, after its use.
    pub fn give_back(&mut self, received: ReceivedChunk) {
        let Some(buffer) = self.buffers.get_mut(received.index) else { return };
        if buffer.at != received.at || !matches!(buffer.state, OpState::Came { .. }) {
            return;
        }
        buffer.state = OpState::Idle;
        self.unposted.push(received.index);
        drop(received);
        self.post();
    }

    /// Whether the descriptor signals everything that is completed from now on, and no completion
    /// waits to be read.
    pub fn may_sleep(&mut self) -> bool {
        let Objects { fabric, queue, .. } = self.objects();
        let Some(descriptor) = &self.descriptor else { return true };
        let Some(_inside) = self.door.enter() else { return true };
        let mut fid = queue.fid();
        // SAFETY: one object of this fabric, which is alive.
        let may_sleep = unsafe {
            match (*(*fabric.raw()).ops).trywait {
                Some(try_wait) => try_wait(fabric.raw(), &mut fid, 1) == 0,
                None => true,
            }
        };
        let readable = crate::os::sys::wait_for(&[(descriptor.as_fd(), false)], 0);
        self.is_stuck = readable.unwrap_or(false);
        may_sleep && !self.is_stuck
    }
}

impl FabricEndPoint {
    /// Closes it, which ends all operations. `false`: the library still uses some of it; its memory
    /// stays mapped for good.
    pub fn close(mut self) -> bool {
        self.close_all()
    }

    fn close_all(&mut self) -> bool {
        let Some(objects) = self.objects.take() else { return true };
        let inside = self.door.enter();
        if !self.guard.is_parent() || inside.is_none() || self.choice.stays_open() {
            // In a child, these objects are the parent's, and the child has only a copy; otherwise
            // they stay until the process ends.
            core::mem::forget(objects);
            // Their memory may be unmapped in a child, or replaced by something else.
            core::mem::forget(core::mem::take(&mut self.buffers));
            core::mem::forget(core::mem::take(&mut self.far));
            return false;
        }
        let Objects { end, regions, queue, addresses, domain, fabric } = objects;
        let is_closed = end.close();
        let is_unregistered = regions.into_iter().fold(true, |all, region| all & region.close());
        let is_emptied = queue.close();
        let has_no_addresses = addresses.close();
        let has_no_domain = domain.close();
        drop(fabric);
        // The library may still write to memory that it uses.
        if !(is_closed && is_unregistered && is_emptied) {
            core::mem::forget(core::mem::take(&mut self.buffers));
        }
        let is_all =
            is_closed && is_unregistered && is_emptied && has_no_addresses && has_no_domain;
        if !is_all {
            core::mem::forget(core::mem::take(&mut self.far));
        }
        is_all
    }
}

impl Drop for FabricEndPoint {
    fn drop(&mut self) {
        self.close_all();
    }
}

fn bind<T>(
    library: &Library,
    doing: &'static str,
    object: &Object<T>,
    what: *mut sys::fid,
    flags: u64,
) -> Result<(), FabricError> {
    // SAFETY: objects that are alive.
    let rc = unsafe {
        let bind = (*(*object.fid()).ops).bind.expect("it can be bound");
        bind(object.fid(), what, flags)
    };
    if rc == 0 { Ok(()) } else { Err(library.refused(doing, rc as isize)) }
}

fn enable(library: &Library, fid: *mut sys::fid) -> Result<(), FabricError> {
    // SAFETY: an object that is alive.
    let rc = unsafe {
        let control = (*(*fid).ops).control.expect("it can be enabled");
        control(fid, sys::FI_ENABLE as c_int, null_mut())
    };
    if rc == 0 { Ok(()) } else { Err(library.refused("enabling the end point", rc as isize)) }
}

/// The queue's descriptor for waiting, duplicated.
fn descriptor_of(queue: &Object<sys::fid_cq>) -> Option<Descriptor> {
    let mut fd: c_int = -1;
    // SAFETY: an object that is alive, and a place for a number.
    let rc = unsafe {
        let control = (*(*queue.fid()).ops).control?;
        control(queue.fid(), sys::FI_GETWAIT as c_int, (&raw mut fd).cast())
    };
    if rc != 0 || fd < 0 {
        return None;
    }
    // SAFETY: the queue's descriptor, which is open while the queue is.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok().map(Descriptor::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use static_assertions::{assert_impl_all, assert_not_impl_any};

    assert_impl_all!(FabricEndPoint: Send);
    assert_not_impl_any!(FabricEndPoint: Sync);
}
