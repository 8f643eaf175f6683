//! Values in messages: plain old data by [`zerocopy`], and all types of serde by postcard (feature
//! `serde`).
//!
//! End points carry bytes. A value of plain old data *is* bytes: the sender passes
//! [`as_bytes`](zerocopy::IntoBytes::as_bytes), or writes it in place ([`Written`]: a stream's or a
//! publisher's loan), without a copy. The receiver asks the received bytes for a
//! [`value`](Received::value), a copy, or borrows them as a value
//! ([`value_ref`](Received::value_ref)) or as several ([`values_ref`](Received::values_ref)). These
//! check the length of the bytes, their pattern if not every pattern is a value (a `bool`, an
//! enum), and, for a borrow, their alignment; bytes that do not fit are an error that names the
//! expected type. On one machine the order of bytes is the same at both ends; the two ends must
//! agree on the layout of a structure (`#[repr(C)]`).
//!
//! ```
//! use hamlyn::typed::Received;
//! use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};
//!
//! #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout, Debug, PartialEq)]
//! #[repr(u32)]
//! enum Side { Buy = 1, Sell = 2 }
//!
//! #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout, Debug, PartialEq)]
//! #[repr(C)]
//! struct Order { cents: u32, side: Side }
//!
//! let order = Order { cents: 1999, side: Side::Sell };
//! // sender.send(order.as_bytes(), limit)?, client.call(order.as_bytes(), limit)?, and so on.
//! let came = order.as_bytes();
//! // receiver.bytes(&record)?.value::<Order>()?, request.value::<Order>()?, sample.value::<Order>()?
//! assert_eq!(came.value::<Order>()?, order);
//!
//! let short = came[..7].value::<Order>().unwrap_err();
//! assert!(short.to_string().contains("has 8 bytes, and 7 came"));
//! let no_side = [1u32, 3];
//! assert!(no_side.as_bytes().value::<Order>().is_err());
//! # Ok::<(), hamlyn::typed::ValueError>(())
//! ```
//!
//! With the feature `serde`, values that are no plain old data are written by `serialize` and read by
//! [`Received`]'s `deserialize`: shorter on the way, and of any shape, for a copy at each end. The bytes
//! may be a stranger's, so the depth of the value, the number of its elements and the memory that it takes
//! have limits ([`Received::deserialize`]); a sequence of elements without bytes (`Vec<()>`) can be read
//! only if as many other bytes follow it.
//!
//! Never: bytes that another process may change are read in place; they are copied first.

#[cfg(feature = "serde")]
mod reader;

#[cfg(feature = "os")]
use crate::os::aperture::AccessError;
#[cfg(feature = "os")]
use crate::protocol::{RecordBytes, Sample};
use alloc::borrow::Cow;
#[cfg(feature = "serde")]
use alloc::string::{String, ToString};
#[cfg(feature = "serde")]
use alloc::vec::Vec;
use core::any::type_name;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, TryCastError, TryFromBytes, Unaligned,
};

/// Bytes that are no value of the wanted type, or can no longer be read. They are unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(not(feature = "unstable-internals"), non_exhaustive)]
pub enum ValueError {
    /// Another number of bytes.
    #[error("a {wanted} has {bytes} bytes, and {found} came")]
    Length {
        /// The type.
        wanted: &'static str,
        /// Its bytes.
        bytes: usize,
        /// The bytes that came.
        found: usize,
    },
    /// The right number of bytes, and no value.
    #[error("the {bytes} bytes that came are none of those that a {wanted} can have")]
    Pattern {
        /// The type.
        wanted: &'static str,
        /// Its bytes.
        bytes: usize,
    },
    /// No whole number of values.
    #[error("a {wanted} has {bytes} bytes, and {found} came, which are no whole number of them")]
    Count {
        /// The type of each.
        wanted: &'static str,
        /// Its bytes.
        bytes: usize,
        /// The bytes that came.
        found: usize,
    },
    /// Bytes with the wrong alignment for such a value; a copy of them may be one.
    #[error(
        "a {wanted} lies at a multiple of {align} bytes, and what came does not: ask for value, which \
         copies it, or for a type without alignment (zerocopy::byteorder)"
    )]
    Alignment {
        /// The type.
        wanted: &'static str,
        /// Its alignment.
        align: usize,
    },
    /// Bytes that their sender may change while they are borrowed; a copy of them may be a value.
    #[error(
        "a {wanted} cannot be borrowed of bytes that their sender may change: ask for value, which \
         copies them"
    )]
    Volatile {
        /// The type.
        wanted: &'static str,
    },
    /// Bytes that `serialize` has not written for such a value.
    #[cfg(feature = "serde")]
    #[error("the {found} bytes that came are no {wanted} in postcard's format: {why}")]
    Format {
        /// The type.
        wanted: &'static str,
        /// Bytes that came.
        found: usize,
        /// The fault in them.
        why: String,
    },
    /// The value cannot be written in this way.
    #[cfg(feature = "serde")]
    #[error("a {wanted} could not be written in postcard's format: {why}")]
    Unwritable {
        /// The type.
        wanted: &'static str,
        /// The reason.
        why: String,
    },
    /// They lay in memory that is gone.
    #[cfg(feature = "os")]
    #[error("the bytes cannot be read any more: {0}")]
    Gone(AccessError),
}

// Not `#[from]`, which would make it the source, too: its sentence is in this one already.
#[cfg(feature = "os")]
impl From<AccessError> for ValueError {
    fn from(error: AccessError) -> Self {
        Self::Gone(error)
    }
}

/// Bytes that were received: a slice, a record, a request or a reply (which are slices), a sample.
pub trait Received {
    /// The bytes, which are stable while this borrow lives: as they are, or a copy of bytes that
    /// their sender could change. Fails if they can no longer be read.
    fn still(&self) -> Result<Cow<'_, [u8]>, ValueError>;

    /// All the bytes as a value. Fails if they are too many, too few, or no value.
    fn value<T: TryFromBytes>(&self) -> Result<T, ValueError> {
        let bytes = self.still()?;
        if bytes.len() != size_of::<T>() {
            let (bytes, found) = (size_of::<T>(), bytes.len());
            return Err(ValueError::Length { wanted: type_name::<T>(), bytes, found });
        }
        let pattern = |_| ValueError::Pattern { wanted: type_name::<T>(), bytes: size_of::<T>() };
        T::try_read_from_bytes(&bytes).map_err(pattern)
    }

    /// The bytes, if they are stable in place; `None`: their sender may change them, so that
    /// [`still`](Self::still) copies them, or they can no longer be read.
    fn borrowed(&self) -> Option<&[u8]> {
        match self.still() {
            Ok(Cow::Borrowed(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// All the bytes, borrowed in place as a value, without a copy. Fails if they are too many, too
    /// few or no value; if they are not aligned for the type, because no message promises an
    /// alignment (so use types without one, for example of [`zerocopy::byteorder`]); and if the
    /// sender could change them meanwhile (a sample of a pool, a record of an aperture). After the
    /// last two, [`value`](Self::value) may succeed.
    ///
    /// ```
    /// use hamlyn::typed::Received;
    /// use zerocopy::little_endian::{U16, U64};
    /// use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};
    ///
    /// #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout)]
    /// #[repr(C)]
    /// struct Reading { number: U64, celsius: U16, is_sure: bool }
    ///
    /// let reading = Reading { number: U64::new(7), celsius: U16::new(21), is_sure: true };
    /// // receiver.receive(limit)?.value_ref::<Reading>()?, request.value_ref::<Reading>()?, and so on.
    /// let came = reading.as_bytes();
    /// let reading: &Reading = came.value_ref()?;
    /// assert_eq!((reading.celsius.get(), reading.is_sure), (21, true));
    /// assert_eq!(came.borrowed(), Some(came));
    /// assert!(came[1..].value_ref::<Reading>().is_err());
    /// # Ok::<(), hamlyn::typed::ValueError>(())
    /// ```
    fn value_ref<T: TryFromBytes + KnownLayout + Immutable>(&self) -> Result<&T, ValueError> {
        let wanted = type_name::<T>();
        let bytes = self.borrowed().ok_or(ValueError::Volatile { wanted })?;
        let (size, found) = (size_of::<T>(), bytes.len());
        if found != size {
            return Err(ValueError::Length { wanted, bytes: size, found });
        }
        T::try_ref_from_bytes(bytes).map_err(|e| match e {
            TryCastError::Alignment(_) => ValueError::Alignment { wanted, align: align_of::<T>() },
            _ => ValueError::Pattern { wanted, bytes: size },
        })
    }

    /// All the bytes, borrowed in place as consecutive values; otherwise like
    /// [`value_ref`](Self::value_ref).
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-values-{}", std::process::id()));
    /// use hamlyn::protocol::{Manager, StreamConfig, StreamReceiver, StreamSender};
    /// use hamlyn::typed::Received;
    /// # use std::time::Duration;
    /// use zerocopy::{IntoBytes, little_endian::U32};
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # let mut receiver = StreamReceiver::new(&manager, StreamConfig::default())?;
    /// # manager.start_progress()?;
    /// # let mut sender = StreamSender::grow(&Manager::with_config(config)?, &receiver.seed()?, limit)?;
    /// let readings = [1, 20, 300].map(U32::new);
    /// sender.send(readings.as_bytes(), limit)?;
    /// sender.flush(limit)?;
    /// let record = receiver.receive(limit)?;
    /// let came: &[U32] = record.values_ref()?;
    /// assert_eq!(came.iter().map(|of| of.get()).sum::<u32>(), 321);
    /// # drop(record);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn values_ref<T: TryFromBytes + KnownLayout + Immutable>(&self) -> Result<&[T], ValueError> {
        let wanted = type_name::<T>();
        let bytes = self.borrowed().ok_or(ValueError::Volatile { wanted })?;
        let found = bytes.len();
        <[T]>::try_ref_from_bytes(bytes).map_err(|e| match e {
            TryCastError::Alignment(_) => ValueError::Alignment { wanted, align: align_of::<T>() },
            TryCastError::Size(_) => ValueError::Count { wanted, bytes: size_of::<T>(), found },
            TryCastError::Validity(_) => {
                ValueError::Pattern { wanted: type_name::<[T]>(), bytes: found }
            }
        })
    }

    /// The value that [`serialize`] made the bytes of, all of them. Fails where they are none of such a
    /// value, or something is left behind it; where they are nested deeper than 256 KiB of stack can
    /// read; where a sequence or a map says that it has more elements than bytes follow, also of elements
    /// without bytes; and where the value would take more memory than 16 times the bytes, and than 16 MiB:
    /// [`deserialize_within`](Self::deserialize_within) sets another limit.
    ///
    /// ```
    /// use hamlyn::typed::{Received, serialize};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct List(Option<Box<List>>);
    ///
    /// assert!(serialize(&List(None))?.deserialize::<List>().is_ok());
    /// let deep = [1; 1 << 20];
    /// assert!(deep.deserialize::<List>().is_err(), "and not a stack that overflows");
    /// let many = serialize(&u64::MAX)?; // As long as a sequence can be, of elements without bytes.
    /// assert!(many.deserialize::<Vec<()>>().is_err());
    /// # Ok::<(), hamlyn::typed::ValueError>(())
    /// ```
    #[cfg(feature = "serde")]
    fn deserialize<T: serde::de::DeserializeOwned>(&self) -> Result<T, ValueError> {
        let bytes = self.still()?;
        deserialize_from(&bytes, bytes.len().saturating_mul(MEMORY_PER_BYTE).max(MEMORY_BYTES))
    }

    /// [`deserialize`](Self::deserialize) with another limit on the memory that the value takes. It counts
    /// values as their types do, collections with the room that they make for more; not what the
    /// allocator adds.
    ///
    /// ```
    /// use hamlyn::typed::{Received, serialize};
    ///
    /// let many = serialize(&vec![""; 1 << 20])?;
    /// let error = many.deserialize::<Vec<String>>().unwrap_err();
    /// assert!(error.to_string().contains("deserialize_within allows more"), "{error}");
    /// assert_eq!(many.deserialize_within::<Vec<String>>(64 << 20)?.len(), 1 << 20);
    /// # Ok::<(), hamlyn::typed::ValueError>(())
    /// ```
    #[cfg(feature = "serde")]
    fn deserialize_within<T: serde::de::DeserializeOwned>(
        &self,
        memory_bytes_max: usize,
    ) -> Result<T, ValueError> {
        deserialize_from(&self.still()?, memory_bytes_max)
    }
}

/// Memory that a value may take by default: so much ..
#[cfg(feature = "serde")]
const MEMORY_BYTES: usize = 16 << 20;
/// .. or so many times the bytes that came, whichever is more.
#[cfg(feature = "serde")]
const MEMORY_PER_BYTE: usize = 16;

#[cfg(feature = "serde")]
fn deserialize_from<T: serde::de::DeserializeOwned>(
    bytes: &[u8],
    memory_bytes_max: usize,
) -> Result<T, ValueError> {
    let (wanted, found) = (type_name::<T>(), bytes.len());
    reader::read(bytes, memory_bytes_max).map_err(|why| ValueError::Format { wanted, found, why })
}

impl Received for [u8] {
    fn still(&self) -> Result<Cow<'_, [u8]>, ValueError> {
        Ok(Cow::Borrowed(self))
    }
}

#[cfg(feature = "os")]
impl Received for RecordBytes<'_> {
    fn still(&self) -> Result<Cow<'_, [u8]>, ValueError> {
        Ok(match self {
            Self::Still(bytes) => Cow::Borrowed(bytes),
            Self::Volatile(_) => Cow::Owned(self.to_vec()?),
        })
    }

    fn borrowed(&self) -> Option<&[u8]> {
        match self {
            Self::Still(bytes) => Some(bytes),
            Self::Volatile(_) => None,
        }
    }
}

#[cfg(feature = "os")]
impl Received for Sample {
    fn still(&self) -> Result<Cow<'_, [u8]>, ValueError> {
        Ok(match self.as_slice() {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned(self.to_vec()?),
        })
    }

    fn borrowed(&self) -> Option<&[u8]> {
        self.as_slice()
    }
}

/// Bytes that are written in place before they are sent: a stream's or a publisher's loan, which
/// are slices.
pub trait Written {
    /// The bytes.
    fn place(&mut self) -> &mut [u8];

    /// All the bytes as a value, to be written in place. Only for types without alignment (for
    /// example of [`zerocopy::byteorder`]), since records follow one another closely. Fails if the
    /// bytes are too many or too few.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-value-{}", std::process::id()));
    /// use hamlyn::protocol::{Manager, PublishConfig, Publisher, SubscribeConfig, Subscriber};
    /// use hamlyn::typed::{Received, Written};
    /// # use std::time::Duration;
    /// use zerocopy::little_endian::U32;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # manager.start_progress()?;
    /// let pool = PublishConfig { sample_bytes_max: 4096, ..PublishConfig::default() };
    /// let publisher = Publisher::new(&manager, pool)?;
    /// let (other, options) = (Manager::with_config(config)?, SubscribeConfig::default());
    /// let mut subscriber = Subscriber::grow(&other, &publisher.seed()?, options, limit)?;
    /// let mut loan = publisher.loan(8)?;
    /// loan.place().fill(0); // The bytes as they are: `loan[..]`.
    /// loan.put(&[1u32, 2])?;
    /// loan.value_mut::<[U32; 2]>()?[1] = U32::new(3);
    /// publisher.publish_loan(loan, limit)?;
    /// // A copy, checked afterwards, if its publisher could change it.
    /// let sample = subscriber.receive(limit)?;
    /// assert_eq!(sample.value::<[u32; 2]>()?, [1, 3]);
    /// assert_eq!(sample.still()?[..4], [1, 0, 0, 0]);
    /// // So nothing of it is borrowed.
    /// let error = sample.value_ref::<[u32; 2]>().unwrap_err();
    /// assert!(error.to_string().contains("their sender may change"), "{error}");
    /// # drop(sample);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn value_mut<T: FromBytes + IntoBytes + KnownLayout + Unaligned>(
        &mut self,
    ) -> Result<&mut T, ValueError> {
        let found = self.place().len();
        let (wanted, bytes) = (type_name::<T>(), size_of::<T>());
        T::mut_from_bytes(self.place()).map_err(|_| ValueError::Length { wanted, bytes, found })
    }

    /// Writes a value of any plain old data there. Fails if the bytes are too many or too few, and
    /// leaves them unchanged.
    fn put<T: IntoBytes + Immutable>(&mut self, value: &T) -> Result<(), ValueError> {
        let found = self.place().len();
        let (wanted, bytes) = (type_name::<T>(), size_of::<T>());
        value.write_to(self.place()).map_err(|_| ValueError::Length { wanted, bytes, found })
    }

    /// Writes a value there in postcard's format and returns its length; then
    /// [truncate](crate::protocol::RecordLoan::truncate) a loan to that. If it does not fit, some
    /// of the bytes have been written.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-serialize-{}", std::process::id()));
    /// use hamlyn::protocol::{Manager, StreamConfig, StreamReceiver, StreamSender};
    /// use hamlyn::typed::{Received, Written};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = Manager::with_config(config.clone())?;
    /// # let mut receiver = StreamReceiver::new(&manager, StreamConfig::default())?;
    /// # manager.start_progress()?;
    /// # let mut sender = StreamSender::grow(&Manager::with_config(config)?, &receiver.seed()?, limit)?;
    /// let mut record = sender.loan(1000, limit)?;
    /// let length = record.serialize(&("Ada", 1815_u32, vec![true]))?;
    /// record.truncate(length);
    /// record.send(limit)?;
    /// sender.flush(limit)?;
    /// let (name, year, _): (String, u32, Vec<bool>) = receiver.receive(limit)?.deserialize()?;
    /// assert_eq!((&*name, year), ("Ada", 1815));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "serde")]
    fn serialize<T: serde::Serialize + ?Sized>(&mut self, value: &T) -> Result<usize, ValueError> {
        let unwritable = |e: postcard::Error| {
            let (wanted, why) = (type_name::<T>(), e.to_string());
            ValueError::Unwritable { wanted, why }
        };
        postcard::to_slice(value, self.place()).map(|bytes| bytes.len()).map_err(unwritable)
    }
}

impl Written for [u8] {
    fn place(&mut self) -> &mut [u8] {
        self
    }
}

/// A value as bytes, in postcard's format, for any end point. The bytes do not include the type:
/// reading a `u32` after writing an `i32` gives another number, and no error. So let both ends name
/// the type, as in `serialize::<Order>(..)`, instead of leaving a literal to be an `i32`.
#[cfg(feature = "serde")]
pub fn serialize<T: serde::Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, ValueError> {
    let unwritable = |e: postcard::Error| {
        let (wanted, why) = (type_name::<T>(), e.to_string());
        ValueError::Unwritable { wanted, why }
    };
    postcard::to_allocvec(value).map_err(unwritable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;
    use zerocopy::byteorder::little_endian::{U16, U64};

    #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq)]
    #[repr(u16)]
    enum Side {
        Buy = 1,
        Sell = 2,
    }

    #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Order {
        number: u64,
        cents: u32,
        side: Side,
        is_open: bool,
        more: u8,
    }

    const ORDER: Order = Order { number: 7, cents: 1999, side: Side::Sell, is_open: true, more: 9 };

    #[test]
    fn a_value_is_its_bytes_and_no_more_or_less_of_them() {
        for side in [Side::Buy, Side::Sell] {
            let order = Order { side, ..ORDER };
            assert_eq!(order.as_bytes().value::<Order>(), Ok(order));
        }
        for cut in 0..16 {
            let error = ORDER.as_bytes()[..cut].value::<Order>().unwrap_err();
            assert_eq!(
                error,
                ValueError::Length { wanted: type_name::<Order>(), bytes: 16, found: cut }
            );
            assert!(error.to_string().contains(&alloc::format!("has 16 bytes, and {cut} came")));
        }
        let longer = [ORDER.as_bytes(), &[0]].concat();
        assert!(matches!(longer.value::<Order>(), Err(ValueError::Length { found: 17, .. })));
        // At any address.
        let moved = [&[0], ORDER.as_bytes()].concat();
        assert_eq!(moved[1..].value::<Order>(), Ok(ORDER));
    }

    /// Bytes that begin `at` bytes behind a multiple of 16.
    #[repr(C, align(16))]
    struct Place([u8; 64]);

    impl Place {
        fn with(at: usize, bytes: &[u8]) -> Self {
            let mut place = Self([0; 64]);
            place.0[at..at + bytes.len()].copy_from_slice(bytes);
            place
        }
    }

    #[test]
    fn a_value_is_borrowed_where_it_lies_if_it_can_lie_there() {
        let wanted = type_name::<Order>();
        for at in 0..17 {
            let place = Place::with(at, ORDER.as_bytes());
            let came = &place.0[at..at + 16];
            let order = came.value_ref::<Order>();
            if at % 8 == 0 {
                let order = order.unwrap();
                assert!(core::ptr::eq(order, came.as_ptr().cast()) && *order == ORDER);
            } else {
                assert_eq!(order, Err(ValueError::Alignment { wanted, align: 8 }));
                assert_eq!(came.value(), Ok(ORDER));
            }
            // A type without alignment can lie anywhere.
            assert_eq!(came[..8].value_ref::<U64>().unwrap().get(), 7);
            // The length is checked before that.
            for length in [0, 15, 17] {
                let error = place.0[at..at + length].value_ref::<Order>().unwrap_err();
                assert_eq!(error, ValueError::Length { wanted, bytes: 16, found: length });
            }
        }
        let mut place = Place::with(0, ORDER.as_bytes());
        place.0[14] = 2; // No bool.
        let error = place.0[..16].value_ref::<Order>().unwrap_err();
        assert_eq!(error, ValueError::Pattern { wanted, bytes: 16 });
        assert!(error.to_string().contains("none of those"), "{error}");
    }

    #[test]
    fn values_are_borrowed_where_they_lie_if_they_are_whole() {
        let orders = [ORDER, Order { number: 8, ..ORDER }];
        for at in 0..17 {
            let place = Place::with(at, orders.as_bytes());
            let came = place.0[at..at + 32].values_ref::<Order>();
            if at % 8 == 0 {
                assert_eq!(came, Ok(&orders[..]));
            } else {
                let error = came.unwrap_err();
                assert!(error.to_string().contains("at a multiple of 8 bytes"), "{error}");
            }
            let numbers = place.0[at..at + 32].values_ref::<U64>().unwrap();
            assert_eq!((numbers.len(), numbers[0].get(), numbers[2].get()), (4, 7, 8));
            for length in [1, 7, 9, 31] {
                let error = place.0[at..at + length].values_ref::<U64>().unwrap_err();
                let wanted = type_name::<U64>();
                assert_eq!(error, ValueError::Count { wanted, bytes: 8, found: length });
                assert!(error.to_string().contains("no whole number"), "{error}");
            }
            assert_eq!(place.0[at..at].values_ref::<U64>().unwrap().len(), 0);
        }
        let mut place = Place::with(0, orders.as_bytes());
        place.0[30] = 2;
        let error = place.0[..32].values_ref::<Order>().unwrap_err();
        assert_eq!(error, ValueError::Pattern { wanted: type_name::<[Order]>(), bytes: 32 });
        assert_eq!(place.0[..16].values_ref::<Order>(), Ok(&orders[..1]));
    }

    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Debug, PartialEq)]
    #[repr(C)]
    struct Reading {
        number: U64,
        celsius: U16,
    }

    #[test]
    fn a_value_is_written_in_place_wherever_that_is() {
        let mut bytes = [0; 12];
        for at in 0..3 {
            let reading = bytes[at..at + 10].value_mut::<Reading>().unwrap();
            reading.number.set(1 << 40 | at as u64);
            reading.celsius.set(21);
            let (number, celsius) = (U64::new(1 << 40 | at as u64), U16::new(21));
            assert_eq!(bytes[at..at + 10].value(), Ok(Reading { number, celsius }));
        }
        let wrong = bytes[..9].value_mut::<Reading>().unwrap_err();
        assert!(matches!(wrong, ValueError::Length { bytes: 10, found: 9, .. }));
        let mut bytes = [0; 17];
        assert!(matches!(bytes.put(&ORDER), Err(ValueError::Length { bytes: 16, found: 17, .. })));
        assert_eq!(bytes, [0; 17]);
        bytes[1..].put(&ORDER).unwrap();
        assert_eq!(bytes[1..].value::<Order>(), Ok(ORDER));
    }

    proptest! {
        #[test]
        fn of_whatever_bytes_those_that_are_a_value_are_taken(bytes: [u8; 16]) {
            let is_side = matches!(u16::from_ne_bytes([bytes[12], bytes[13]]), 1 | 2);
            match bytes[..].value::<Order>() {
                Ok(order) => {
                    prop_assert!(is_side && bytes[14] < 2);
                    prop_assert_eq!(order.as_bytes(), &bytes);
                }
                Err(error) => {
                    prop_assert!(!is_side || bytes[14] > 1);
                    let wanted = type_name::<Order>();
                    prop_assert_eq!(error, ValueError::Pattern { wanted, bytes: 16 });
                }
            }
        }

        #[test]
        fn bytes_that_are_nearly_a_value_are_told_from_it(at in 0usize..16, bit in 0u32..8) {
            let mut bytes = ORDER.as_bytes().to_vec();
            bytes[at] ^= 1 << bit;
            if let Ok(order) = bytes.value::<Order>() {
                prop_assert!(order != ORDER);
            }
        }
    }

    #[cfg(feature = "serde")]
    mod by_serde {
        use super::*;
        use alloc::boxed::Box;
        use alloc::collections::{BTreeMap, BTreeSet};
        use alloc::string::String;
        use alloc::vec;

        #[derive(serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq)]
        enum Message {
            Text(String),
            Numbers { all: Vec<u32>, last: Option<bool> },
        }

        #[test]
        fn a_value_survives_and_no_beginning_of_it_is_one() {
            let numbers = Message::Numbers { all: vec![1, 1 << 30], last: Some(true) };
            for message in [numbers, Message::Text("hello".into())] {
                let bytes = serialize(&message).unwrap();
                assert_eq!(bytes.deserialize::<Message>(), Ok(message.clone()));
                // In place, if there is room.
                let mut place = vec![9; bytes.len() + 5];
                let length = Written::serialize(&mut place[..], &message).unwrap();
                assert_eq!(place[..length], bytes[..]);
                let error = Written::serialize(&mut place[..length - 1], &message).unwrap_err();
                assert!(matches!(error, ValueError::Unwritable { .. }));
                for cut in 0..bytes.len() {
                    let error = bytes[..cut].deserialize::<Message>().unwrap_err();
                    assert!(matches!(error, ValueError::Format { found, .. } if found == cut));
                }
                let error = [&bytes[..], &[0]].concat().deserialize::<Message>().unwrap_err();
                assert!(error.to_string().contains("1 bytes are left behind it"), "{error}");
            }
        }

        // Each `1` is one level more.
        #[test]
        #[cfg_attr(miri, ignore = "its stack has no order")]
        fn what_is_nested_too_deep_is_an_error() {
            #[derive(serde::Serialize, serde::Deserialize, Debug)]
            struct List(Option<Box<List>>);
            let nested = |levels| [&vec![1; levels][..], &[0]].concat();
            assert!(nested(100).deserialize::<List>().is_ok());
            for levels in [1 << 14, 1 << 20] {
                let error = nested(levels).deserialize::<List>().unwrap_err();
                assert!(error.to_string().contains("deeper than 262144 bytes of stack"), "{error}");
            }
        }

        #[test]
        fn a_sequence_is_no_longer_than_the_bytes_behind_it() {
            #[derive(
                serde::Serialize, serde::Deserialize, Debug, PartialEq, Eq, Hash, PartialOrd, Ord,
            )]
            struct Nothing;
            let many = [&[0xff; 9][..], &[1]].concat();
            let refused = |error: ValueError| {
                let error = error.to_string();
                assert!(
                    error.contains("18446744073709551615 elements are said to be in 0"),
                    "{error}"
                );
            };
            refused(many.deserialize::<Vec<()>>().unwrap_err());
            refused(many.deserialize::<Vec<Nothing>>().unwrap_err());
            refused(many.deserialize::<Vec<[u64; 0]>>().unwrap_err());
            refused(many.deserialize::<BTreeSet<Nothing>>().unwrap_err());
            refused(many.deserialize::<BTreeMap<(), ()>>().unwrap_err());
            let inside = [&[1], &many[..]].concat();
            refused(inside.deserialize::<Option<Vec<()>>>().unwrap_err());
            // As many as there are bytes.
            let fits = (vec![(), ()], 7_u16, 9_u8);
            assert_eq!(serialize(&fits).unwrap().deserialize(), Ok(fits));
            let empty = (Vec::<()>::new(), BTreeMap::<(), ()>::new());
            assert_eq!(serialize(&empty).unwrap().deserialize(), Ok(empty));
        }

        // Each says that it has 2^14 elements, and there are as many of them.
        #[test]
        fn sequences_of_sequences_without_bytes_end() {
            let mut bytes = vec![0x80, 0x80, 0x01]; // 2^14 of them.
            bytes.extend([0xff, 0xff, 0].repeat(1 << 14));
            let error = bytes.deserialize_within::<Vec<Vec<()>>>(1 << 20).unwrap_err();
            assert!(error.to_string().contains("bytes of memory"), "{error}");
        }

        #[derive(serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant)] // The size is what the tests need.
        enum Large {
            None,
            Some([u64; 32]),
        }

        #[derive(serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq, Default)]
        struct Padded {
            #[serde(skip)]
            more: [u64; 32],
            left: Option<Box<Padded>>,
            right: Option<Box<Padded>>,
        }

        #[test]
        fn a_value_takes_no_more_memory_than_its_reader_allows() {
            fn refuses<T>(value: T, bytes: usize)
            where
                T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + core::fmt::Debug,
            {
                let written = serialize(&value).unwrap();
                let error = written.deserialize_within::<T>(bytes).unwrap_err().to_string();
                let wanted = alloc::format!("more than {bytes} bytes of memory");
                assert!(error.contains(&wanted) && error.contains("deserialize_within"), "{error}");
                // No more than twice that for what collections make room for.
                assert_eq!(written.deserialize_within(2 * bytes + 300), Ok(value));
            }
            refuses(vec![String::new(); 1000], 1000 * 24);
            refuses(vec![String::from("text"); 1000], 1000 * 28);
            refuses("text".repeat(1000), 3999);
            refuses(vec![None::<u64>; 1000], 1000 * 16);
            refuses(vec![Large::None; 1000], 1000 * 264);
            refuses(vec![Box::new(Large::None); 1000], 1000 * 264);
            refuses(vec![vec![0_u8; 4]; 1000], 1000 * 28);
            refuses(vec![[7_u64; 4]; 1000], 1000 * 32);
            refuses((0..1000).map(|n| (n, Large::None)).collect::<BTreeMap<u32, _>>(), 1000 * 268);
            refuses((0..1000).collect::<BTreeSet<u64>>(), 1000 * 8);
            let mut tree = Padded::default();
            for _ in 0..9 {
                let half = Some(Box::new(tree));
                tree = Padded { left: half.clone(), right: half, ..Padded::default() };
            }
            refuses(tree, 1023 * 264);
            // What is of one size takes that.
            assert_eq!(serialize(&[7_u64; 32]).unwrap().deserialize_within(256), Ok([7_u64; 32]));
        }

        #[test]
        fn by_default_a_value_takes_sixteen_times_its_bytes_or_16_mib() {
            let strings = |bytes: usize| serialize(&vec![""; bytes]).unwrap();
            assert!(strings(1 << 18).deserialize::<Vec<String>>().is_ok());
            for count in [1 << 20, 2 << 20] {
                let error = strings(count).deserialize::<Vec<String>>().unwrap_err().to_string();
                let max = 16 * strings(count).len().max(1 << 20);
                assert!(error.contains(&alloc::format!("more than {max} bytes")), "{error}");
            }
            let numbers: Vec<u64> = (0..3 << 19).map(|n| n % 100).collect();
            assert_eq!(serialize(&numbers).unwrap().deserialize(), Ok(numbers));
        }

        // One that takes another value where there is none of its own.
        #[test]
        fn a_refusal_is_not_lost_in_a_type_that_goes_on_after_errors() {
            #[derive(Debug)]
            struct Any;
            impl<'de> serde::Deserialize<'de> for Any {
                fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    let _ = Vec::<()>::deserialize(from);
                    Ok(Self)
                }
            }
            assert!([0xff, 0x7f].deserialize::<Any>().is_err());
        }

        proptest! {
            #[test]
            fn whatever_bytes_come_are_a_value_or_an_error(bytes: Vec<u8>) {
                if let Ok(message) = bytes.deserialize::<Message>() {
                    let again = serialize(&message).unwrap();
                    prop_assert_eq!(again.deserialize::<Message>(), Ok(message));
                }
            }
        }
    }
}
