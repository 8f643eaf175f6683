//! The library's file, and the choice of a provider.

use super::FabricError;
use super::exit::{self, Door};
use super::sys::{self, fi_info, fid_fabric};
use crate::os::library;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::net::IpAddr;
use core::ptr::{NonNull, null, null_mut};
use libloading::os::unix as dl;
use std::ffi::CString;
use std::format;
use std::path::Path;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// Bytes of one operation: small enough to be in a core's cache when the system takes them.
pub(super) const OP_BYTES: u64 = 256 << 10;
/// Bytes that a provider must be able to send at a time.
pub const MESSAGE_BYTES: usize = 32 << 10;
/// The name by which the system finds the library.
const NAME: &str = "libfabric.so.1";
/// The version of the interface; newer libraries support it, too.
const API: u32 = 1 << 16 | 17;

/// The supported modes of registering memory; [`endpoint`](super::endpoint) implements each.
const MR_MODES: u32 = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT;
/// Their names in older interfaces, which require nothing more.
const MR_MODES_OLD: u32 = 1 | 2;
/// The modes for memory that is open to another end point: this end chooses the key, 64 random
/// bits.
const MR_MODES_OF_MEMORY: u32 = MR_MODES & !sys::FI_MR_PROV_KEY;
/// The operations on such memory.
const CAPS_OF_MEMORY: u64 =
    (sys::FI_RMA | sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE)
        as u64;
/// The name of layered providers, of which this is the upper one. Each of their end points takes
/// 120 to 270 ms to open (measured), too long for a node between two turns.
const SLOW_TO_OPEN: &str = ";ofi_rxm";
/// This provider, in versions before 1.18, was seen to crash when an end point is closed while
/// operations are on their way (`docs/providers.md`).
const WRONG_TO_CLOSE: (&str, (u32, u32)) = ("tcp;ofi_rxm", (1, 18));
const NOT_CLOSED: &str = "may crash where an end point is closed, in this version";
/// Each operation provides memory for the library; and messages with completion data use up a
/// receive, but there are none: nothing is sent with such data.
const MODES: u64 = sys::FI_CONTEXT | sys::FI_CONTEXT2 | sys::FI_RX_CQ_DATA;

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type OpenFabric =
    unsafe extern "C" fn(*mut sys::fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;
type VersionCall = unsafe extern "C" fn() -> u32;

/// The purpose of an end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndPointPurpose {
    /// Messages alone.
    Messages,
    /// Memory that another end point writes and reads.
    Memory,
}

/// libfabric. It stays in the process: its providers have threads and memory of their own.
#[derive(Debug)]
pub struct Library {
    get_info: GetInfo,
    free_info: FreeInfo,
    dup_info: DupInfo,
    open_fabric: OpenFabric,
    error_text: ErrorText,
    version: (u32, u32),
}

impl Library {
    /// Opens `path`, or the library that the system finds.
    pub fn open(path: Option<&Path>) -> Result<Arc<Self>, FabricError> {
        let file = path.unwrap_or(Path::new(NAME));
        let name = || file.display().to_string();
        exit::watch();
        let _inside = Door::COMMON.enter().ok_or(FabricError::Ends)?;
        let none = |why: String| FabricError::NoLibrary { name: name(), why };
        let failed = |e: libloading::Error| none(library::why(&e));
        let opened = library::open(path, NAME, dl::RTLD_NOW | dl::RTLD_LOCAL).map_err(none)?;
        // SAFETY: these are the types of the functions in libfabric's headers, in each version from
        // 1.17 on; the pointers stay good, since the library is never closed.
        let (get_version, library) = unsafe {
            let version: dl::Symbol<VersionCall> = opened.get(b"fi_version\0").map_err(failed)?;
            let library = Self {
                get_info: *opened.get::<GetInfo>(b"fi_getinfo\0").map_err(failed)?,
                free_info: *opened.get::<FreeInfo>(b"fi_freeinfo\0").map_err(failed)?,
                dup_info: *opened.get::<DupInfo>(b"fi_dupinfo\0").map_err(failed)?,
                open_fabric: *opened.get::<OpenFabric>(b"fi_fabric\0").map_err(failed)?,
                error_text: *opened.get::<ErrorText>(b"fi_strerror\0").map_err(failed)?,
                version: (0, 0),
            };
            (*version, library)
        };
        core::mem::forget(opened);
        // SAFETY: a function without arguments.
        let number = unsafe { get_version() };
        let version = (number >> 16, number & 0xffff);
        if number < API {
            return Err(FabricError::TooOld { name: name(), version });
        }
        Ok(Arc::new(Self { version, ..library }))
    }

    /// Its version.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// An error of a call, from its result: a negative number.
    pub(super) fn refused(&self, doing: &'static str, code: isize) -> FabricError {
        let code = code.unsigned_abs().min(i32::MAX as usize) as i32;
        FabricError::Refused { doing, code, why: self.text(code) }
    }

    pub(super) fn text(&self, code: i32) -> String {
        // SAFETY: it returns a constant text, or null.
        let text = unsafe { (self.error_text)(code) };
        match text.is_null() {
            true => format!("error {code}"),
            // SAFETY: a text that ends with a zero.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        }
    }

    /// Opens libfabric's object called a fabric.
    pub(super) fn open_fabric(&self, info: &fi_info) -> Result<NonNull<fid_fabric>, FabricError> {
        let mut fabric = null_mut();
        // SAFETY: the attributes of an answer that is alive, and a place for the result.
        let rc = unsafe { (self.open_fabric)(info.fabric_attr, &mut fabric, null_mut()) };
        match NonNull::new(fabric) {
            Some(fabric) if rc == 0 => Ok(fabric),
            _ => Err(self.refused("opening the fabric", rc as isize)),
        }
    }

    /// Chooses the first suitable provider: `provider`, if that is given, with its end point at
    /// this address, if one is given. A provider that may crash in this version is used only if it
    /// is named, or if there is no other.
    pub fn choose(
        self: &Arc<Self>,
        provider: Option<&str>,
        source: Option<IpAddr>,
    ) -> Result<Choice, FabricError> {
        self.choose_for(EndPointPurpose::Messages, provider, source)
    }

    /// The same with one provider, for end points whose memory is open to others: it writes and
    /// reads, reports the arrival of writes, and lets this end choose the keys.
    pub fn choose_for_memory(
        self: &Arc<Self>,
        provider: &str,
        source: Option<IpAddr>,
    ) -> Result<Choice, FabricError> {
        if provider.contains(SLOW_TO_OPEN) {
            return Err(FabricError::NoProvider {
                version: self.version,
                wanted: format!("{provider} for memory"),
                why: "it takes a tenth of a second and more to open an end point".into(),
            });
        }
        self.choose_for(EndPointPurpose::Memory, Some(provider), source)
    }

    fn choose_for(
        self: &Arc<Self>,
        purpose: EndPointPurpose,
        provider: Option<&str>,
        source: Option<IpAddr>,
    ) -> Result<Choice, FabricError> {
        let _inside = Door::COMMON.enter().ok_or(FabricError::Ends)?;
        let what = match purpose {
            EndPointPurpose::Messages => "",
            EndPointPurpose::Memory => {
                " that writes to memory, tells when that is there, and leaves the keys to this end"
            }
        };
        let wanted = || match (provider, source) {
            (None, None) => String::from("that sends messages reliably"),
            (Some(provider), None) => format!("{provider}{what}"),
            (None, Some(at)) => format!("at {at}"),
            (Some(provider), Some(at)) => format!("{provider} at {at}{what}"),
        };
        let none =
            |why: String| FabricError::NoProvider { version: self.version, wanted: wanted(), why };
        let hints = self.hints(purpose, provider);
        let hints = hints.ok_or_else(|| none("there is no memory".to_string()))?;
        let node = source.map(|at| CString::new(at.to_string()).expect("an address has no zero"));
        let flags = if node.is_some() { sys::FI_SOURCE | sys::FI_NUMERICHOST } else { 0 };
        let node = node.as_ref().map_or(null(), |node| node.as_ptr());
        let mut found = null_mut();
        // SAFETY: texts that end with a zero, hints that the library made, and a place for the
        // answer.
        let rc = unsafe { (self.get_info)(API, node, null(), flags, hints.as_ptr(), &mut found) };
        if rc != 0 {
            return Err(none(self.text(rc.saturating_abs())));
        }
        let found = Infos { raw: found, library: self };
        let mut rejected = Vec::new();
        let mut last: Option<Choice> = None;
        let mut next = found.raw;
        while !next.is_null() {
            // SAFETY: a member of the library's list, which is alive.
            let info = unsafe { &*next };
            next = info.next;
            // SAFETY: the same.
            match unsafe { unfit(info, purpose) } {
                Some(why) => {
                    let why = format!("{} {why}", provider_of(info));
                    if !rejected.contains(&why) {
                        rejected.push(why);
                    }
                }
                None => {
                    // SAFETY: a copy, of this member alone.
                    let raw = NonNull::new(unsafe { (self.dup_info)(info) });
                    let raw = raw.ok_or_else(|| none("there is no memory".to_string()))?;
                    let mut choice = Choice { raw, library: self.clone(), rejected: Vec::new() };
                    if provider.is_none() && choice.stays_open() {
                        last.get_or_insert(choice);
                        continue;
                    }
                    if let Some(passed) = last {
                        rejected.push(format!("{} {NOT_CLOSED}", passed.provider()));
                    }
                    choice.rejected = rejected;
                    return Ok(choice);
                }
            }
        }
        match last {
            Some(mut choice) => {
                choice.rejected = rejected;
                Ok(choice)
            }
            None => Err(none(rejected.join("; "))),
        }
    }

    fn hints(&self, purpose: EndPointPurpose, provider: Option<&str>) -> Option<Infos<'_>> {
        // SAFETY: without an argument it makes an empty answer with all of its parts.
        let raw = NonNull::new(unsafe { (self.dup_info)(null()) })?;
        let hints = Infos { raw: raw.as_ptr(), library: self };
        // SAFETY: it and its parts were made just now, for this thread alone. The library frees the
        // name like one of its own.
        unsafe {
            let info = &mut *hints.raw;
            info.mode = MODES;
            (*info.ep_attr).type_ = sys::FI_EP_RDM;
            let domain = &mut *info.domain_attr;
            domain.resource_mgmt = sys::FI_RM_ENABLED;
            domain.av_type = sys::FI_AV_TABLE;
            domain.threading = sys::FI_THREAD_DOMAIN;
            match purpose {
                EndPointPurpose::Messages => {
                    info.caps = u64::from(sys::FI_MSG | sys::FI_SEND | sys::FI_RECV);
                    domain.mr_mode = MR_MODES as c_int;
                    (*info.tx_attr).msg_order = u64::from(sys::FI_ORDER_SAS);
                    (*info.rx_attr).msg_order = u64::from(sys::FI_ORDER_SAS);
                }
                EndPointPurpose::Memory => {
                    info.caps = CAPS_OF_MEMORY;
                    domain.mr_mode = MR_MODES_OF_MEMORY as c_int;
                    // For each operation: its completion means that the bytes have arrived.
                    (*info.tx_attr).op_flags = u64::from(sys::FI_DELIVERY_COMPLETE);
                }
            }
            if let Some(provider) = provider {
                let name = CString::new(provider).ok()?;
                (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
        Some(hints)
    }
}

/// The fault of a provider's answer, if any.
///
/// # Safety
/// It is the library's, with all of its parts.
unsafe fn unfit(info: &fi_info, purpose: EndPointPurpose) -> Option<String> {
    // SAFETY: the caller guarantees it.
    let (end, domain, sends) = unsafe { (&*info.ep_attr, &*info.domain_attr, &*info.tx_attr) };
    let wants = domain.mr_mode as u32 & !(MR_MODES | MR_MODES_OLD);
    if end.type_ != sys::FI_EP_RDM {
        Some("has no reliable datagrams".to_string())
    } else if wants != 0 || info.mode & !MODES != 0 {
        let mode = info.mode & !MODES;
        Some(format!("asks for what is not known here (mr_mode {wants:#x}, mode {mode:#x})"))
    } else if end.max_msg_size < MESSAGE_BYTES {
        Some(format!("sends {} bytes at a time, and {MESSAGE_BYTES} are needed", end.max_msg_size))
    } else if info.caps & sys::FI_LOCAL_COMM != 0 && info.caps & sys::FI_REMOTE_COMM == 0 {
        Some("reaches this host only".to_string())
    } else if purpose == EndPointPurpose::Messages {
        None
    } else if (end.max_msg_size as u64) < OP_BYTES {
        Some(format!("writes {} bytes at a time, and {OP_BYTES} are needed", end.max_msg_size))
    } else if domain.mr_mode as u32 & sys::FI_MR_PROV_KEY != 0 {
        Some("chooses the keys of memory itself (FI_MR_PROV_KEY), which may be guessed".to_string())
    } else if domain.mr_key_size < size_of::<u64>() {
        Some(format!("has keys of {} bytes, and 8 are needed", domain.mr_key_size))
    } else if info.caps & CAPS_OF_MEMORY != CAPS_OF_MEMORY {
        Some("writes to no memory".to_string())
    } else if sends.op_flags & u64::from(sys::FI_DELIVERY_COMPLETE) == 0 {
        Some("does not tell when what was written is there (FI_DELIVERY_COMPLETE)".to_string())
    } else {
        None
    }
}

fn provider_of(info: &fi_info) -> String {
    // SAFETY: an answer's name is a text that ends with a zero, or null.
    unsafe {
        let name = (*info.fabric_attr).prov_name;
        match name.is_null() {
            true => "a provider without a name".to_string(),
            false => CStr::from_ptr(name).to_string_lossy().into_owned(),
        }
    }
}

/// A list of answers, or hints, made by the library.
struct Infos<'a> {
    raw: *mut fi_info,
    library: &'a Library,
}

impl Infos<'_> {
    fn as_ptr(&self) -> *const fi_info {
        self.raw
    }
}

impl Drop for Infos<'_> {
    fn drop(&mut self) {
        // SAFETY: it is the library's, and has no other owner.
        unsafe { (self.library.free_info)(self.raw) };
    }
}

/// One provider's answer, with which end points are opened.
#[derive(Debug)]
pub struct Choice {
    raw: NonNull<fi_info>,
    library: Arc<Library>,
    rejected: Vec<String>,
}

// SAFETY: memory with one owner, and bound to no thread.
unsafe impl Send for Choice {}

impl Choice {
    pub(super) fn info(&self) -> &fi_info {
        // SAFETY: it is alive, and changed only through `as_ptr` by its one owner.
        unsafe { self.raw.as_ref() }
    }

    pub(super) fn as_ptr(&self) -> *mut fi_info {
        self.raw.as_ptr()
    }

    /// A copy.
    pub fn duplicate(&self) -> Result<Self, FabricError> {
        let _inside = Door::COMMON.enter().ok_or(FabricError::Ends)?;
        // SAFETY: a copy of an answer that is alive.
        let raw = NonNull::new(unsafe { (self.library.dup_info)(self.info()) });
        let raw = raw.ok_or_else(|| self.library.refused("copying an answer", -12))?;
        Ok(Self { raw, library: self.library.clone(), rejected: self.rejected.clone() })
    }

    /// The library that gave it.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// The provider's name.
    pub fn provider(&self) -> String {
        provider_of(self.info())
    }

    /// Whether its end points are left open for good, since the library may crash when one is
    /// closed.
    pub fn stays_open(&self) -> bool {
        let (provider, mended) = WRONG_TO_CLOSE;
        self.library.version < mended && self.provider() == provider
    }

    /// The providers before it in the library's list, and the reason against each.
    pub fn rejected(&self) -> &[String] {
        &self.rejected
    }

    /// Its protocol: two ends with the same one can communicate.
    pub fn protocol(&self) -> (u32, u32) {
        // SAFETY: an answer has all of its parts.
        let end = unsafe { &*self.info().ep_attr };
        (end.protocol, end.protocol_version)
    }

    /// Whether addresses are those of sockets.
    pub fn has_socket_addresses(&self) -> bool {
        [sys::FI_SOCKADDR, sys::FI_SOCKADDR_IN, sys::FI_SOCKADDR_IN6]
            .contains(&self.info().addr_format)
    }

    /// The form of addresses.
    pub fn format(&self) -> u32 {
        self.info().addr_format
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        let Some(_inside) = Door::COMMON.enter() else { return };
        // SAFETY: this value's own copy.
        unsafe { (self.library.free_info)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use static_assertions::{assert_impl_all, assert_not_impl_any};

    assert_impl_all!(Choice: Send);
    assert_not_impl_any!(Choice: Sync);

    #[test]
    fn what_is_no_library_is_named_with_the_reason() {
        let error = Library::open(Some(Path::new("/nowhere/libfabric.so.1"))).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("/nowhere/libfabric.so.1: "), "{text}");
        // A library, but not libfabric.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6")).unwrap();
        let error = Library::open(Some(Path::new(libc))).unwrap_err();
        assert!(error.to_string().contains("fi_"), "{error}");
    }
}
