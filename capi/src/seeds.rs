//! Seeds: bytes from which a sender end point is grown elsewhere.

use crate::boundary::{Copied, Done, Failure, bytes, get, guard, h_status, out, text};
use core::ffi::{c_char, c_void};
use hamlyn::protocol::{Kind, SEED_BYTES_MAX, Seed};

/// Most bytes of a seed.
pub const H_SEED_BYTES_MAX: usize = 137;
const _: () = assert!(H_SEED_BYTES_MAX == SEED_BYTES_MAX);

/// Room for a seed as text, and the zero byte that ends it.
pub const H_SEED_TEXT_BYTES: usize = 275;
const _: () = assert!(H_SEED_TEXT_BYTES == 2 * SEED_BYTES_MAX + 1);

/// A receiver's seed, from which any process that may connect can grow a sender. A secret: its
/// bearer can send. A value; `bytes` may travel in a message or a file, and h_seed_to_text makes a
/// text for a command line.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct h_seed_t {
    /// Number of bytes in use.
    pub length: u32,
    /// In the format for messages and files.
    pub bytes: [u8; H_SEED_BYTES_MAX],
}

impl h_seed_t {
    pub(crate) fn read(&self) -> Done<Seed> {
        let length = self.length as usize;
        let Some(bytes) = self.bytes.get(..length) else {
            return Err(Failure::invalid(format!(
                "seed->length is {length}, and at most {H_SEED_BYTES_MAX} are allowed"
            )));
        };
        Ok(Seed::from_bytes(bytes)?)
    }
}

impl From<Seed> for h_seed_t {
    fn from(seed: Seed) -> Self {
        let made = seed.to_bytes();
        let mut bytes = [0; H_SEED_BYTES_MAX];
        bytes[..made.len()].copy_from_slice(&made);
        Self { length: made.len() as u32, bytes }
    }
}

/// The protocol of an end point.
#[repr(C)]
pub enum h_kind {
    /// Simple datagrams.
    H_KIND_DATAGRAM = 1,
    /// Tagged remote write.
    H_KIND_TAGGED = 2,
    /// A stream of records.
    H_KIND_STREAM = 3,
    /// Requests and replies.
    H_KIND_CALL = 4,
    /// Group receive.
    H_KIND_GROUP = 5,
    /// Bytes in both directions.
    H_KIND_BYTES = 6,
    /// Publish and subscribe.
    H_KIND_PUBLISH = 7,
    /// For h_wait_any, a listener for byte streams; its seeds are of H_KIND_BYTES.
    H_KIND_BYTE_LISTENER = 256,
}

/// The kind of a seed, from the number of an h_kind.
pub(crate) fn kind_of(kind: u32) -> Done<Kind> {
    let known = [Kind::DATAGRAM, Kind::TAGGED, Kind::STREAM, Kind::CALL, Kind::GROUP];
    let mut known = known.into_iter().chain([Kind::BYTES, Kind::PUBLISH]);
    let found = known.find(|known| known.number() == kind);
    found
        .ok_or_else(|| Failure::invalid(format!("kind is {kind}, and seeds have 1 to 7 of h_kind")))
}

/// Reads a seed from any source. Its receiver decides whether it is genuine, when a sender is
/// grown.
///
/// Errors: H_SEED, cut off, changed on the way, of another version, or not a seed at all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_seed_from_bytes(
    data: *const c_void,
    length: usize,
    seed: *mut h_seed_t,
) -> h_status {
    guard(|| {
        let data = bytes(data, length, "data")?;
        out(seed, "seed")?.write(Seed::from_bytes(data)?.into());
        Ok(())
    })
}

/// Reads a seed from the text of h_seed_to_text.
///
/// Errors: H_SEED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_seed_from_text(data: *const c_char, seed: *mut h_seed_t) -> h_status {
    guard(|| {
        let data = text(data, "data")?;
        let read: Seed = data.parse()?;
        out(seed, "seed")?.write(read.into());
        Ok(())
    })
}

/// The same seed for bearers on other hosts, which find the receiver's host at `at`, a text such as
/// "a.example:7000"; its node has to listen there (the setting listen). `made` may be `seed`.
///
/// Errors: H_SEED, it is not a seed; H_INVALID; H_TOO_LONG.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_seed_at_host(
    seed: *const h_seed_t,
    at: *const c_char,
    made: *mut h_seed_t,
) -> h_status {
    guard(|| {
        let (own, at) = (get(seed, "seed")?.read()?, text(at, "at")?);
        let made = out(made, "made")?;
        #[cfg(feature = "tls")]
        let far = own.at_host(at)?;
        #[cfg(not(feature = "tls"))]
        let far = without_hosts(&own, at)?;
        made.write(far.into());
        Ok(())
    })
}

#[cfg(not(feature = "tls"))]
fn without_hosts(_: &Seed, at: &str) -> Done<Seed> {
    Err(Failure::invalid(format!("{at}: this library was built without links to other hosts")))
}

/// A seed as text of hexadecimal digits, followed by a zero byte; H_SEED_TEXT_BYTES are always
/// enough. `length`, which may be null, gets the number of bytes before that.
///
/// Errors: H_SEED, it is not a seed; H_TOO_LONG, `length` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_seed_to_text(
    seed: *const h_seed_t,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> h_status {
    guard(|| {
        let seed = get(seed, "seed")?.read()?;
        Copied::new(buffer.cast(), capacity, length)?.put_text(&seed.to_string())
    })
}

/// The protocol of a seed's receiver: an h_kind.
///
/// Errors: H_SEED, it is not a seed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn h_seed_kind(seed: *const h_seed_t, kind: *mut u32) -> h_status {
    guard(|| {
        let seed = get(seed, "seed")?.read()?;
        out(kind, "kind")?.write(seed.kind().number());
        Ok(())
    })
}
