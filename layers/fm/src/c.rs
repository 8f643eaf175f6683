//! Fast Messages for C: `include/fm.h` (2.x) and `include/fm1.h` (1.x), whose comments are the contract.
//!
//! The node belongs to the thread that has called `FM_initialize`: it lies in a variable of that thread.
//! Never: a panic goes to the caller's frames (it ends the program); a stream is a pointer from outside.

#![allow(non_snake_case, non_upper_case_globals, missing_docs)]

use crate::flow::HANDLERS;
use crate::{Config, Error, Fm, Stream, Verdict};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::ManuallyDrop;
use std::time::Duration;

/// `FM_stream`: a message in its handler, or one that is being sent.
pub struct FmStream(Of);

enum Of {
    /// Of the handler that runs: its `Stream` lies on its stack.
    Receiving(*mut Stream<'static>),
    Sending(usize),
}

type Handler = unsafe extern "C" fn(*mut FmStream, c_uint) -> c_int;
type Handler1 = unsafe extern "C" fn(*const c_void, c_uint, c_uint);

struct Here {
    /// Not dropped at the thread's end, where other variables of the thread, which the node uses, may be gone:
    /// a program that ends without `FM_finalize` is to the others one that has died.
    fm: ManuallyDrop<RefCell<Option<Fm>>>,
    config: RefCell<Config>,
    error: Cell<c_int>,
    text: RefCell<CString>,
}

thread_local! {
    static HERE: Here = Here {
        fm: ManuallyDrop::new(RefCell::new(None)),
        config: RefCell::new(Config::default()),
        error: const { Cell::new(0) },
        text: RefCell::new(CString::default()),
    };
}

#[unsafe(no_mangle)]
pub static mut FM_nodeid: c_ulong = 0;
#[unsafe(no_mangle)]
pub static mut FM_numnodes: c_ulong = 0;

const NOT_JOINED: Error = Error::Misuse("this thread has not called FM_initialize");
const NO_STREAM: Error = Error::Misuse(
    "not a stream for this call: FM_receive has its handler's, FM_send_piece that of FM_begin_message",
);

fn set_error(here: &Here, error: &Error) {
    here.error.set(match error {
        Error::Full(_) => 1,
        Error::Dead(..) => 2,
        Error::Limit(_) => 3,
        Error::Misuse(_) => 4,
        Error::Os(_) => 5,
    });
    here.text.replace(CString::new(error.to_string().replace('\0', "")).unwrap_or_default());
}

/// Calls with the node; an error is kept, and `failed` returned.
#[inline]
fn with<R>(failed: R, call: impl FnOnce(&Fm) -> Result<R, Error>) -> R {
    HERE.with(|here| {
        here.error.set(0);
        let result = match &*here.fm.borrow() {
            Some(fm) => call(fm),
            None => Err(NOT_JOINED),
        };
        result.unwrap_or_else(|error| {
            set_error(here, &error);
            failed
        })
    })
}

fn done(result: Result<(), Error>) -> Result<c_int, Error> {
    result.map(|()| 0)
}

fn small(value: c_ulong, what: &str) -> Result<u32, Error> {
    u32::try_from(value).map_err(|_| Error::Limit(format!("{what} {value}: out of range")))
}

/// The bytes of a caller.
///
/// # Safety
/// As the header says: `bytes` bytes at `buf`, or none.
unsafe fn bytes<'a>(buf: *const c_void, bytes: usize) -> Result<&'a [u8], Error> {
    match (buf.is_null(), bytes) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Error::Misuse("a null buffer")),
        // SAFETY: by this function's contract.
        (false, _) => Ok(unsafe { core::slice::from_raw_parts(buf.cast(), bytes) }),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_try_initialize() -> c_int {
    HERE.with(|here| {
        here.error.set(0);
        if here.fm.borrow().is_some() {
            set_error(here, &Error::Misuse("FM_initialize was called already"));
            return -1;
        }
        let config = here.config.borrow().clone();
        let joined = match std::env::var("HAMLYN_FM_MEET") {
            Ok(name) => Fm::meet(&name, config),
            Err(_) => Fm::join(config),
        };
        match joined {
            Ok(fm) => {
                // SAFETY: plain values; the header says that one thread uses all of it.
                unsafe { (FM_nodeid, FM_numnodes) = (fm.node().into(), fm.nodes().into()) };
                here.fm.replace(Some(fm));
                0
            }
            Err(error) => {
                set_error(here, &error);
                -1
            }
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_initialize() {
    if FM_try_initialize() != 0 {
        HERE.with(|here| eprintln!("FM_initialize: {}", here.text.borrow().to_string_lossy()));
        std::process::exit(1);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_finalize() {
    HERE.with(|here| {
        here.error.set(0);
        if here.fm.borrow().as_ref().is_some_and(|fm| fm.is_in_handler()) {
            return set_error(here, &Error::Misuse("FM_finalize in a handler"));
        }
        // With the node in its place: handlers that see the end of their messages may send.
        if let Some(fm) = &*here.fm.borrow() {
            fm.end_all();
        }
        let fm = here.fm.take();
        let result = fm.map_or(Ok(()), Fm::finish);
        // SAFETY: as in `FM_try_initialize`.
        unsafe { (FM_nodeid, FM_numnodes) = (0, 0) };
        if let Err(error) = result {
            set_error(here, &error);
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_set_parameter(parameter: c_int, value: c_int) -> c_int {
    HERE.with(|here| {
        here.error.set(0);
        let mut config = here.config.borrow().clone();
        let Ok(number) = u32::try_from(value) else {
            set_error(here, &Error::Limit(format!("a value of {value}: less than 0")));
            return -1;
        };
        match parameter {
            1 => {
                let limit = (number > 0).then(|| Duration::from_millis(number.into()));
                config.time_limit = limit;
                if let Some(fm) = &*here.fm.borrow() {
                    fm.set_time_limit(limit);
                }
            }
            2 => config.credit_bytes = number,
            3 => config.stack_bytes = number as usize,
            4 => config.queue_bytes = number as usize,
            5 => config.open_messages = number as usize,
            _ => {
                set_error(here, &Error::Limit(format!("parameter {parameter}: there are 1 to 5")));
                return -1;
            }
        }
        if parameter != 1 && here.fm.borrow().is_some() {
            set_error(here, &Error::Misuse("this parameter is set before FM_initialize"));
            return -1;
        }
        if let Err(error) = config.check() {
            set_error(here, &error);
            return -1;
        }
        here.config.replace(config);
        0
    })
}

fn register(id: c_ulong, handler: impl Fn(&mut Stream<'_>, u32) -> Verdict + 'static) -> c_ulong {
    with(c_ulong::MAX, |fm| {
        let id = if id == c_ulong::MAX { None } else { Some(small(id, "handler")?) };
        Ok(fm.register(id, handler)?.into())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_register_handler(id: c_ulong, handler: Handler) -> c_ulong {
    register(id, move |stream, sender| {
        let mut of = FmStream(Of::Receiving(core::ptr::from_mut(stream).cast()));
        // SAFETY: the program's handler, with a stream that lives until it returns.
        match unsafe { handler(&mut of, sender) } {
            0 => Verdict::Abort,
            _ => Verdict::Continue,
        }
    })
}

/// The longest message of 1.x, bytes: each is held whole, at the word of its sender.
const MESSAGE_MAX: u64 = 64 << 20;

/// Of 1.x: all of the message in one buffer.
#[unsafe(no_mangle)]
pub extern "C" fn FM1_register_handler(id: c_ulong, handler: Handler1) -> c_ulong {
    register(id, move |stream, sender| {
        if stream.left() > MESSAGE_MAX {
            stream.endpoint().count_refused();
            return Verdict::Continue;
        }
        let mut all = Vec::new();
        let mut taken = 0;
        // In steps: what the sender said is not yet memory here.
        loop {
            let step = (stream.left() as usize).clamp(1, 64 << 10);
            all.resize(taken + step, 0);
            let came = stream.receive(&mut all[taken..]);
            taken += came;
            if came < step || stream.left() == 0 {
                break;
            }
        }
        // SAFETY: the program's handler, with bytes that live until it returns.
        unsafe { handler(all.as_ptr().cast(), taken as c_uint, sender) };
        Verdict::Continue
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_room(node: c_ulong) -> c_ulong {
    with(0, |fm| Ok(fm.room(small(node, "node")?) as c_ulong))
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_begin_message(
    dest: c_ulong,
    bytes: c_ulong,
    handler: c_ulong,
) -> *mut FmStream {
    with(core::ptr::null_mut(), |fm| {
        let (dest, handler) = (small(dest, "node")?, small(handler, "handler")?);
        let key = fm.begin(dest, bytes, handler)?.into_key();
        Ok(Box::into_raw(Box::new(FmStream(Of::Sending(key)))))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn FM_send_piece(
    stream: *mut FmStream,
    buf: *const c_void,
    count: c_ulong,
) -> c_int {
    with(-1, |fm| {
        // SAFETY: a stream of `FM_begin_message` that was not ended, by the header.
        match unsafe { stream.as_ref() } {
            Some(FmStream(Of::Sending(key))) => {
                // SAFETY: the caller's buffer, by the header.
                let data = unsafe { bytes(buf, count as usize) }?;
                done(fm.send_piece(*key, data))
            }
            _ => Err(NO_STREAM),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn FM_end_message(stream: *mut FmStream) -> c_int {
    with(-1, |fm| {
        // SAFETY: as in `FM_send_piece`.
        let Some(FmStream(Of::Sending(key))) = (unsafe { stream.as_ref() }) else {
            return Err(NO_STREAM);
        };
        let key = *key;
        // SAFETY: made by `FM_begin_message`, and ended once.
        drop(unsafe { Box::from_raw(stream) });
        done(fm.end_message(key))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_send_4(
    dest: c_ulong,
    handler: c_ulong,
    i0: c_uint,
    i1: c_uint,
    i2: c_uint,
    i3: c_uint,
) -> c_int {
    with(-1, |fm| {
        done(fm.send_4(small(dest, "node")?, small(handler, "handler")?, [i0, i1, i2, i3]))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn FM1_send(
    dest: c_ulong,
    handler: c_ulong,
    buf: *const c_void,
    count: c_ulong,
) -> c_int {
    with(-1, |fm| {
        let (dest, handler) = (small(dest, "node")?, small(handler, "handler")?);
        if count > MESSAGE_MAX {
            return Err(Error::Limit(format!(
                "{count} bytes, and a message of 1.x has {MESSAGE_MAX}"
            )));
        }
        // SAFETY: the caller's buffer, by the header.
        done(fm.send(dest, handler, unsafe { bytes(buf, count as usize) }?))
    })
}

/// The stream of a handler that runs.
///
/// # Safety
/// As the header says: the handler's own, until it returns.
unsafe fn receiving<'a>(stream: *mut FmStream) -> Option<&'a mut Stream<'static>> {
    // SAFETY: by this function's contract.
    match unsafe { stream.as_ref() } {
        // SAFETY: it lies in the frame that has called the handler.
        Some(FmStream(Of::Receiving(stream))) => unsafe { stream.as_mut() },
        _ => None,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn FM_receive(
    buf: *mut c_void,
    stream: *mut FmStream,
    count: c_uint,
) -> c_int {
    // SAFETY: the handler's own stream, by the header.
    let of = unsafe { receiving(stream) };
    let (Some(of), false) = (of, buf.is_null() && count > 0) else {
        return with(0, |_| Err(NO_STREAM));
    };
    if count == 0 {
        return 0;
    }
    let count = count.min(c_int::MAX as c_uint);
    // SAFETY: the handler's buffer, by the header.
    let to = unsafe { core::slice::from_raw_parts_mut(buf.cast::<u8>(), count as usize) };
    of.receive(to) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn FM_left(stream: *mut FmStream) -> c_ulong {
    // SAFETY: the handler's own stream, by the header.
    match unsafe { receiving(stream) } {
        Some(of) => of.left() as c_ulong,
        None => with(0, |_| Err(NO_STREAM)),
    }
}

fn extract(most: usize) -> c_int {
    with(0, |fm| {
        if fm.is_in_handler() {
            return Err(Error::Misuse("FM_extract in a handler"));
        }
        Ok(fm.extract(most).min(c_int::MAX as usize) as c_int)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_extract(maxbytes: c_uint) -> c_int {
    extract(maxbytes as usize)
}

#[unsafe(no_mangle)]
pub extern "C" fn FM1_extract() -> c_int {
    extract(usize::MAX)
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_wait(ms: c_int) -> c_int {
    let limit = u64::try_from(ms).ok().map(Duration::from_millis);
    with(0, |fm| fm.wait(limit).map(c_int::from))
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_has_left(node: c_ulong) -> c_int {
    with(1, |fm| Ok(fm.has_left(small(node, "node")?).into()))
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_error() -> c_int {
    HERE.with(|here| here.error.get())
}

#[unsafe(no_mangle)]
pub extern "C" fn FM_error_text() -> *const c_char {
    HERE.with(|here| match here.error.get() {
        0 => CStr::as_ptr(c"no error"),
        _ => here.text.borrow().as_ptr(),
    })
}

/// `FM_figures`.
#[repr(C)]
pub struct FmFigures([u64; 8]);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn FM_get_figures(figures: *mut FmFigures) {
    let now = with(None, |fm| Ok(Some(fm.figures()))).unwrap_or_default();
    // SAFETY: a place for them, by the header.
    if let Some(figures) = unsafe { figures.as_mut() } {
        figures.0 = [
            now.messages_sent,
            now.messages_handled,
            now.bytes_received,
            now.bytes_direct,
            now.bytes_discarded,
            now.refused,
            now.stacks,
            now.credits_sent,
        ];
    }
}

const _: () = assert!(HANDLERS == 1024);
