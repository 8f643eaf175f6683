//! A libfabric that requires all the work that Hamlyn promises, and checks that it is done: a
//! library of its own, which a test compiles with rustc and names by `HAMLYN_FABRIC_LIBRARY`.
//!
//! ```text
//!   Hamlyn --calls--> this: more bits in each answer, looks at each call --calls--> libfabric.so.1
//! ```
//! None of the available providers requires memory to be registered, bound and described
//! (`FI_MR_LOCAL`, `FI_MR_ENDPOINT`), addresses that are virtual (`FI_MR_VIRT_ADDR`), or memory of
//! its own with each operation (`FI_CONTEXT`, `FI_CONTEXT2`). Here each of them does, and an
//! omission ends the process. The work seen is written to the file that `STRICT_FABRIC_SAW` names;
//! `STRICT_FABRIC_OF` is the library.
//!
//! A table of calls is replaced by a copy with some calls of its own; the word before the copy is
//! the address of the original. All functions here are called by libfabric's rules, one thread at a
//! time for each domain, and with live objects: each block relies on this alone.
#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]

#[allow(warnings)]
#[path = "../../src/os/fabric/sys.rs"]
mod sys;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::sync::{LazyLock, Mutex, MutexGuard};
use sys::*;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const MR_MODES: u32 = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
const MODES: u64 = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
/// Bytes of `fi_context2`.
const CONTEXT_BYTES: usize = 64;

/// The bits an answer required by itself, and the added ones.
#[derive(Clone, Copy, Default)]
struct Bits {
    mr: u32,
    mode: u64,
    own_mr: u32,
    own_mode: u64,
}

struct Region {
    at: usize,
    bytes: usize,
    access: u64,
    key: u64,
    bits: Bits,
    own_descriptor: usize,
    bound: Option<usize>,
    is_enabled: bool,
}

#[derive(Default)]
struct State {
    /// By provider and capabilities: what it asked for, and what was added.
    answers: BTreeMap<(String, u64), Bits>,
    /// Domains, end points.
    bits: BTreeMap<usize, Bits>,
    regions: BTreeMap<usize, Region>,
    /// Contexts that the library has, and the end point and the region of each.
    contexts: BTreeMap<usize, (usize, Option<usize>)>,
    saw: BTreeSet<&'static str>,
}

fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
    STATE.lock().unwrap()
}

fn write(line: &str) {
    let file = std::env::var_os("STRICT_FABRIC_SAW").expect("STRICT_FABRIC_SAW");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    writeln!(file, "{line}").unwrap();
}

impl State {
    fn saw(&mut self, what: &'static str) {
        if self.saw.insert(what) {
            write(what);
        }
    }
}

fn wrong(what: &str) -> ! {
    write(&format!("WRONG: {what}"));
    eprintln!("strict: {what}");
    std::process::abort();
}

unsafe fn real(name: &CStr) -> *mut c_void {
    static LIBRARY: LazyLock<usize> = LazyLock::new(|| {
        let file = std::env::var("STRICT_FABRIC_OF").unwrap_or("libfabric.so.1".into());
        let file = CString::new(file).unwrap();
        // RTLD_NOW
        // SAFETY: the name of a file, which ends with a zero.
        unsafe { dlopen(file.as_ptr(), 2) as usize }
    });
    let found = dlsym(*LIBRARY as *mut c_void, name.as_ptr());
    assert!(!found.is_null(), "{name:?}");
    found
}

/// Replaces a table of calls.
unsafe fn patch<T>(table: &mut *mut T, change: impl FnOnce(&mut T)) {
    let before = *table;
    // Each begins with how long it is, which may be longer than is known here.
    let bytes = *before.cast::<usize>();
    let place = vec![0u64; 1 + bytes.max(size_of::<T>()).div_ceil(8)].leak();
    place[0] = before as u64;
    let copy: *mut T = place[1..].as_mut_ptr().cast();
    std::ptr::copy_nonoverlapping(before.cast::<u8>(), copy.cast(), bytes);
    change(&mut *copy);
    *table = copy;
}

/// The original of a replaced table.
unsafe fn before<T>(table: *mut T) -> *mut T {
    *table.cast::<*mut T>().sub(1)
}

thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });

/// Calls the library, which may call itself: a provider's end point is made of others.
fn calling<R>(call: impl FnOnce() -> R) -> R {
    DEPTH.set(DEPTH.get() + 1);
    let found = call();
    DEPTH.set(DEPTH.get() - 1);
    found
}

/// Whether it does.
fn is_its_own() -> bool {
    DEPTH.get() > 0
}

// ---- answers

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_version() -> u32 {
    let call: unsafe extern "C" fn() -> u32 = std::mem::transmute(real(c"fi_version"));
    call()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_strerror(code: c_int) -> *const c_char {
    let call: unsafe extern "C" fn(c_int) -> *const c_char =
        std::mem::transmute(real(c"fi_strerror"));
    call(code)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_freeinfo(info: *mut fi_info) {
    let call: unsafe extern "C" fn(*mut fi_info) = std::mem::transmute(real(c"fi_freeinfo"));
    call(info);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_dupinfo(info: *const fi_info) -> *mut fi_info {
    let call: unsafe extern "C" fn(*const fi_info) -> *mut fi_info =
        std::mem::transmute(real(c"fi_dupinfo"));
    call(info)
}

unsafe fn called(info: &fi_info) -> (String, u64) {
    let name = CStr::from_ptr((*info.fabric_attr).prov_name);
    (name.to_string_lossy().into_owned(), info.caps)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    found: *mut *mut fi_info,
) -> c_int {
    let call: GetInfo = std::mem::transmute(real(c"fi_getinfo"));
    let rc = call(version, node, service, flags, hints, found);
    if rc != 0 || hints.is_null() {
        return rc;
    }
    let (may_mr, may_mode) = ((*(*hints).domain_attr).mr_mode as u32, (*hints).mode);
    let mut next = *found;
    while let Some(info) = next.as_mut() {
        next = info.next;
        let domain = &mut *info.domain_attr;
        let (own_mr, own_mode) = (domain.mr_mode as u32, info.mode);
        let bits = Bits {
            mr: MR_MODES & may_mr & !own_mr,
            mode: MODES & may_mode & !own_mode,
            own_mr,
            own_mode,
        };
        domain.mr_mode = (own_mr | bits.mr) as c_int;
        info.mode = own_mode | bits.mode;
        state().answers.insert(called(info), bits);
    }
    rc
}

/// As the provider gave it, and what was added to it.
unsafe fn restored(info: *mut fi_info) -> (*mut fi_info, Bits) {
    let bits = *state().answers.get(&called(&*info)).expect("an answer");
    if (*info).mode != bits.own_mode | bits.mode {
        wrong("an answer's mode was changed");
    }
    let own = fi_dupinfo(info);
    (*own).mode = bits.own_mode;
    (*(*own).domain_attr).mr_mode = bits.own_mr as c_int;
    (own, bits)
}

// ---- objects

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    let call: unsafe extern "C" fn(
        *mut fi_fabric_attr,
        *mut *mut fid_fabric,
        *mut c_void,
    ) -> c_int = std::mem::transmute(real(c"fi_fabric"));
    let rc = call(attr, fabric, context);
    if rc == 0 {
        patch(&mut (**fabric).ops, |ops| ops.domain = Some(open_domain));
    }
    rc
}

unsafe extern "C" fn open_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    let open = (*before((*fabric).ops)).domain.unwrap();
    if is_its_own() {
        return open(fabric, info, domain, context);
    }
    let (own, bits) = restored(info);
    let rc = calling(|| open(fabric, own, domain, context));
    if rc == 0 {
        state().bits.insert(*domain as usize, bits);
        patch(&mut (**domain).ops, |ops| {
            ops.endpoint = Some(open_endpoint);
            ops.cq_open = Some(open_queue);
        });
        patch(&mut (**domain).mr, |ops| ops.reg = Some(register));
    }
    rc
}

unsafe extern "C" fn open_queue(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    queue: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    if (*attr).format != FI_CQ_FORMAT_MSG && !is_its_own() {
        wrong("a format of completions that is not looked at here");
    }
    let is_its_own = is_its_own();
    let open = (*before((*domain).ops)).cq_open.unwrap();
    let rc = calling(|| open(domain, attr, queue, context));
    if rc == 0 && !is_its_own {
        patch(&mut (**queue).ops, |ops| {
            ops.read = Some(read);
            ops.sread = ops.sread.map(|_| sread as _);
            ops.readerr = Some(read_error);
        });
    }
    rc
}

unsafe extern "C" fn open_endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    end: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    let open = (*before((*domain).ops)).endpoint.unwrap();
    if is_its_own() {
        return open(domain, info, end, context);
    }
    let (own, bits) = restored(info);
    let rc = calling(|| open(domain, own, end, context));
    if rc == 0 {
        let end = &mut **end;
        state().bits.insert(&raw const *end as usize, bits);
        patch(&mut end.fid.ops, |ops| ops.close = Some(close_endpoint));
        patch(&mut end.msg, |ops| {
            ops.send = Some(send);
            ops.recv = Some(receive);
        });
        if !end.rma.is_null() {
            patch(&mut end.rma, |ops| {
                ops.writemsg = Some(write_far);
                ops.readmsg = Some(read_far);
            });
        }
    }
    rc
}

unsafe extern "C" fn close_endpoint(end: *mut fid) -> c_int {
    let close = (*before((*end).ops)).close.unwrap();
    let rc = calling(|| close(end));
    if rc == 0 {
        let mut state = state();
        state.bits.remove(&(end as usize));
        // Operations on their way end with it.
        state.contexts.retain(|_, (of, _)| *of != end as usize);
    }
    rc
}

// ---- memory

unsafe extern "C" fn register(
    domain: *mut fid,
    at: *const c_void,
    bytes: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    region: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let is_its_own = is_its_own();
    let add = (*before((*domain.cast::<fid_domain>()).mr)).reg.unwrap();
    let rc = calling(|| add(domain, at, bytes, access, offset, key, flags, region, context));
    if rc == 0 && !is_its_own {
        let made = &mut **region;
        let bits = state().bits[&(domain as usize)];
        let of = Region {
            at: at as usize,
            bytes,
            access,
            key,
            bits,
            own_descriptor: made.mem_desc as usize,
            bound: None,
            is_enabled: bits.mr & FI_MR_ENDPOINT == 0,
        };
        if bits.mr & FI_MR_LOCAL != 0 {
            // No pointer to anything: it is to come back as it is.
            made.mem_desc = (*region as usize | 1) as *mut c_void;
        }
        patch(&mut made.fid.ops, |ops| {
            ops.bind = Some(bind_region);
            ops.control = Some(control_region);
            ops.close = Some(close_region);
        });
        state().regions.insert(*region as usize, of);
    }
    rc
}

unsafe extern "C" fn bind_region(region: *mut fid, to: *mut fid, flags: u64) -> c_int {
    {
        let mut state = state();
        let is_end = state.bits.contains_key(&(to as usize));
        let of = state.regions.get_mut(&(region as usize)).expect("a region");
        if of.bits.mr & FI_MR_ENDPOINT != 0 {
            if !is_end || of.bound.is_some() {
                wrong("memory is bound to what is no end point, or twice");
            }
            of.bound = Some(to as usize);
            return 0;
        }
    }
    (*before((*region).ops)).bind.unwrap()(region, to, flags)
}

unsafe extern "C" fn control_region(region: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    {
        let mut state = state();
        let of = state.regions.get_mut(&(region as usize)).expect("a region");
        if of.bits.mr & FI_MR_ENDPOINT != 0 && command == FI_ENABLE as c_int {
            if of.bound.is_none() {
                wrong("memory is enabled before it is bound");
            }
            of.is_enabled = true;
            return 0;
        }
    }
    (*before((*region).ops)).control.unwrap()(region, command, arg)
}

unsafe extern "C" fn close_region(region: *mut fid) -> c_int {
    {
        let mut state = state();
        if state.contexts.values().any(|(_, of)| *of == Some(region as usize)) {
            wrong("memory is let go of while an operation has it");
        }
        state.regions.remove(&(region as usize));
    }
    (*before((*region).ops)).close.unwrap()(region)
}

// ---- operations

/// Returns the descriptor for the library; checks it, and the context.
unsafe fn begins(
    end: *mut fid_ep,
    (at, bytes): (usize, usize),
    descriptor: *mut c_void,
    access: u32,
    context: *mut c_void,
) -> (*mut c_void, Option<usize>) {
    let mut state = state();
    let bits = *state.bits.get(&(end as usize)).expect("an end point");
    let mut region = None;
    let mut own = descriptor;
    if bits.mr & FI_MR_LOCAL != 0 {
        let number = (descriptor as usize).wrapping_sub(1);
        let Some(of) = state.regions.get(&number) else { wrong("an operation without a descriptor") };
        let is_within = of.at <= at && at + bytes <= of.at + of.bytes;
        if !is_within || of.access & u64::from(access) == 0 {
            wrong("a descriptor of other memory, or for something else");
        }
        if bits.mr & FI_MR_ENDPOINT != 0 && (!of.is_enabled || of.bound != Some(end as usize)) {
            wrong("memory that is not bound to this end point");
        }
        (own, region) = (of.own_descriptor as *mut c_void, Some(number));
        state.saw("descriptor");
        if bits.mr & FI_MR_ENDPOINT != 0 {
            state.saw("bound");
        }
    }
    if bits.mode & (FI_CONTEXT | FI_CONTEXT2) != 0 {
        if context.is_null() || state.contexts.contains_key(&(context as usize)) {
            wrong("an operation without a context of its own");
        }
        // It is the library's until the completion, which this uses to the last byte.
        if bits.own_mode & (FI_CONTEXT | FI_CONTEXT2) == 0 {
            mark(context).copy_from_slice(&mark_of(context));
            state.saw("context");
        }
    }
    (own, region)
}

unsafe fn mark<'a>(context: *mut c_void) -> &'a mut [u8] {
    std::slice::from_raw_parts_mut(context.cast::<u8>(), CONTEXT_BYTES)
}

fn mark_of(context: *mut c_void) -> [u8; CONTEXT_BYTES] {
    let start = context as usize;
    std::array::from_fn(|i| (start >> (i % 8 * 8)) as u8 ^ 0xa5 ^ i as u8)
}

fn began(end: *mut fid_ep, context: *mut c_void, region: Option<usize>, rc: isize) -> isize {
    if rc == 0 {
        state().contexts.insert(context as usize, (end as usize, region));
    }
    rc
}

/// With `expect`, an error is only of what was begun.
unsafe fn ended(context: *mut c_void, is_error: bool) {
    let mut state = state();
    let Some((end, _)) = state.contexts.remove(&(context as usize)) else {
        // Part of a message that was too long, which may be told of in several.
        if is_error {
            return;
        }
        wrong("a completion of what was not begun");
    };
    let bits = state.bits.get(&end).copied().unwrap_or_default();
    let is_marked = bits.mode & (FI_CONTEXT | FI_CONTEXT2) != 0
        && bits.own_mode & (FI_CONTEXT | FI_CONTEXT2) == 0;
    if is_marked && *mark(context) != mark_of(context) {
        wrong("a context was written while the library had it");
    }
}

unsafe extern "C" fn send(
    end: *mut fid_ep,
    at: *const c_void,
    bytes: usize,
    descriptor: *mut c_void,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let (own, region) = begins(end, (at as usize, bytes), descriptor, FI_SEND, context);
    let call = (*before((*end).msg)).send.unwrap();
    let rc = calling(|| call(end, at, bytes, own, to, context));
    began(end, context, region, rc)
}

unsafe extern "C" fn receive(
    end: *mut fid_ep,
    at: *mut c_void,
    bytes: usize,
    descriptor: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let (own, region) = begins(end, (at as usize, bytes), descriptor, FI_RECV, context);
    let call = (*before((*end).msg)).recv.unwrap();
    let rc = calling(|| call(end, at, bytes, own, from, context));
    began(end, context, region, rc)
}

unsafe fn far(
    end: *mut fid_ep,
    message: *const fi_msg_rma,
    access: u32,
    call: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
    flags: u64,
) -> isize {
    let mut message = *message;
    assert_eq!((message.iov_count, message.rma_iov_count), (1, 1));
    let (memory, mut theirs) = (*message.msg_iov, *message.rma_iov);
    let here = (memory.iov_base as usize, memory.iov_len);
    let (mut own, region) = begins(end, here, *message.desc, access, message.context);
    message.desc = &mut own;
    {
        let mut state = state();
        let by_address = state.bits[&(end as usize)].mr & FI_MR_VIRT_ADDR != 0;
        // Memory of this process, of which the provider counts from its beginning.
        let of = state.regions.values().find(|of| of.key == theirs.key && is_remote(of.access));
        let of = of.map(|of| (of.at as u64, of.bytes as u64));
        if let Some((at, bytes)) = of.filter(|_| by_address) {
            let within = theirs.addr.checked_sub(at);
            if within.is_none_or(|within| within + theirs.len as u64 > bytes) {
                wrong("an address that is not virtual");
            }
            theirs.addr -= at;
            message.rma_iov = &theirs;
            state.saw("virtual address");
        }
    }
    let rc = calling(|| call(end, &message, flags));
    began(end, message.context, region, rc)
}

fn is_remote(access: u64) -> bool {
    access & u64::from(FI_REMOTE_READ | FI_REMOTE_WRITE) != 0
}

unsafe extern "C" fn write_far(
    end: *mut fid_ep,
    message: *const fi_msg_rma,
    flags: u64,
) -> isize {
    far(end, message, FI_WRITE, (*before((*end).rma)).writemsg.unwrap(), flags)
}

unsafe extern "C" fn read_far(end: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    far(end, message, FI_READ, (*before((*end).rma)).readmsg.unwrap(), flags)
}

// ---- completions

unsafe fn all_ended(entries: *mut c_void, count: isize) -> isize {
    for i in 0..count.max(0) {
        ended((*entries.cast::<fi_cq_msg_entry>().offset(i)).op_context, false);
    }
    count
}

unsafe extern "C" fn read(queue: *mut fid_cq, entries: *mut c_void, count: usize) -> isize {
    let call = (*before((*queue).ops)).read.unwrap();
    let rc = calling(|| call(queue, entries, count));
    all_ended(entries, rc)
}

unsafe extern "C" fn sread(
    queue: *mut fid_cq,
    entries: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    let call = (*before((*queue).ops)).sread.unwrap();
    let rc = calling(|| call(queue, entries, count, condition, timeout));
    all_ended(entries, rc)
}

unsafe extern "C" fn read_error(
    queue: *mut fid_cq,
    entry: *mut fi_cq_err_entry,
    flags: u64,
) -> isize {
    let call = (*before((*queue).ops)).readerr.unwrap();
    let rc = calling(|| call(queue, entry, flags));
    if rc == 1 && !(*entry).op_context.is_null() {
        ended((*entry).op_context, true);
    }
    rc
}
