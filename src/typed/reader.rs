//! Values in postcard's format, read from bytes that a stranger may have written.
//!
//! postcard reads numbers and text; everything that holds other values is read here, because postcard
//! knows no bound: not of the depth, not of how many elements a sequence has, not of the memory that they
//! take.
//!
//! Memory is charged where it is taken. A value pays for its own size, unless the value that holds it has
//! paid for that already ([`ValueReader::enter`]: it has not where a pointer is between them); a sequence or a
//! map pays for the room of its elements, which doubles as a `Vec`'s does; a text pays for its bytes.
//!
//! Never: an element is read for which no byte is left and no memory was charged; a collection is told
//! how many elements will come, so that it makes room for all of them at once.

use alloc::string::{String, ToString};
use core::mem::replace;
use postcard::{Error, Result};
use serde::Deserialize;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};

/// Bytes of stack within which a value is read.
const STACK_MAX: usize = 256 << 10;
/// Elements for which a `Vec` makes room first.
const SEQUENCE_ROOM: usize = 4;
/// Entries of one node of a `BTreeMap`.
const MAP_ROOM: usize = 11;

/// Reads a value, which is all of the bytes and takes no more memory than this; or says why it cannot be.
pub(super) fn read<T: DeserializeOwned>(
    bytes: &[u8],
    memory_bytes_max: usize,
) -> core::result::Result<T, String> {
    let mut reader = ValueReader {
        bytes,
        memory_bytes_max,
        memory_left: memory_bytes_max,
        paid: 0,
        began: stack(),
        refusal: None,
    };
    let value = T::deserialize(&mut reader);
    // First: a type may take an error of its parts for a value.
    match (reader.refusal, value) {
        (Some(why), _) => Err(why),
        (None, Err(e)) => Err(e.to_string()),
        (None, Ok(_)) if !reader.bytes.is_empty() => {
            Err(alloc::format!("{} bytes are left behind it", reader.bytes.len()))
        }
        (None, Ok(value)) => Ok(value),
    }
}

struct ValueReader<'de> {
    /// Those that are left.
    bytes: &'de [u8],
    memory_bytes_max: usize,
    memory_left: usize,
    /// Memory that the value which is being read has paid for, for those that lie in it.
    paid: usize,
    /// Where the stack was.
    began: usize,
    /// Why reading ends, where postcard has no error for it.
    refusal: Option<String>,
}

/// Where the stack is, to within a function's own.
#[inline]
fn stack() -> usize {
    let here = 0_u8;
    core::hint::black_box(&raw const here).addr()
}

impl<'de> ValueReader<'de> {
    #[cold]
    fn refuse<T>(&mut self, why: String) -> Result<T> {
        self.refusal.get_or_insert(why);
        Err(Error::DeserializeBadEncoding)
    }

    fn charge(&mut self, count: usize, bytes: usize) -> Result<()> {
        let left = count.checked_mul(bytes).and_then(|bytes| self.memory_left.checked_sub(bytes));
        match left {
            Some(left) if self.refusal.is_none() => {
                self.memory_left = left;
                Ok(())
            }
            _ => {
                let max = self.memory_bytes_max;
                self.refuse(alloc::format!(
                    "its values take more than {max} bytes of memory: deserialize_within allows more"
                ))
            }
        }
    }

    /// Reads a value of `size` bytes that holds others.
    fn enter<T>(&mut self, size: usize, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        // Miri's stack has no order.
        if stack().abs_diff(self.began) > STACK_MAX && !cfg!(miri) {
            return self
                .refuse(alloc::format!("it is nested deeper than {STACK_MAX} bytes of stack"));
        }
        let paid = self.paid.min(size);
        self.charge(1, size - paid)?;
        let outside = replace(&mut self.paid, size) - paid;
        let value = read(self);
        self.paid = outside;
        value
    }

    /// Reads what holds no other values.
    fn leaf<T>(
        &mut self,
        read: impl FnOnce(
            &mut postcard::Deserializer<'de, postcard::de_flavors::Slice<'de>>,
        ) -> Result<T>,
    ) -> Result<T> {
        let mut leaf = postcard::Deserializer::from_bytes(self.bytes);
        let value = read(&mut leaf)?;
        self.bytes = leaf.finalize()?;
        Ok(value)
    }

    /// How many elements follow: no more than bytes, whether they have any or not.
    fn length(&mut self) -> Result<usize> {
        let length = self.leaf(|leaf| u64::deserialize(leaf))?;
        match usize::try_from(length) {
            Ok(length) if length <= self.bytes.len() => Ok(length),
            _ => {
                let left = self.bytes.len();
                self.refuse(alloc::format!("{length} elements are said to be in {left} bytes"))
            }
        }
    }

    fn text(&mut self) -> Result<&'de [u8]> {
        let bytes = self.leaf(|leaf| <&[u8]>::deserialize(leaf))?;
        self.charge(1, bytes.len())?;
        Ok(bytes)
    }
}

/// The elements of something.
struct Elements<'a, 'de> {
    reader: &'a mut ValueReader<'de>,
    left: usize,
    /// Those for which memory has been charged. `None`: they lie in the value that holds them.
    room: Option<usize>,
    read: usize,
}

impl<'a, 'de> Elements<'a, 'de> {
    fn counted(reader: &'a mut ValueReader<'de>) -> Result<Self> {
        let left = reader.length()?;
        Ok(Self { reader, left, room: Some(0), read: 0 })
    }

    fn within(reader: &'a mut ValueReader<'de>, left: usize) -> Self {
        Self { reader, left, room: None, read: 0 }
    }

    /// Makes room for another of `size` bytes, if there is one.
    fn next(&mut self, size: usize, first: usize) -> Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        if let Some(room) = &mut self.room {
            if self.read == *room {
                let more = if *room == 0 { first } else { *room };
                // Those without bytes take time, at least.
                self.reader.charge(more, size.max(1))?;
                *room += more;
            }
            self.read += 1;
            self.reader.paid = size;
        }
        Ok(true)
    }
}

impl<'de> de::SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Error;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        match self.next(size_of::<S::Value>(), SEQUENCE_ROOM)? {
            true => seed.deserialize(&mut *self.reader).map(Some),
            false => Ok(None),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        self.room.is_none().then_some(self.left)
    }
}

impl<'de> de::MapAccess<'de> for Elements<'_, 'de> {
    type Error = Error;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        match self.next(size_of::<S::Value>(), MAP_ROOM)? {
            true => seed.deserialize(&mut *self.reader).map(Some),
            false => Ok(None),
        }
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        // Its size is not known before: each has room for itself, and for as many as keys beside it.
        let size = size_of::<S::Value>();
        let more = if self.read == 1 { MAP_ROOM } else { 2 };
        self.reader.charge(more, size)?;
        self.reader.paid = size;
        seed.deserialize(&mut *self.reader)
    }
}

macro_rules! leaves {
    ($($name:ident)*) => {$(
        #[inline]
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            self.leaf(|leaf| leaf.$name(visitor))
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut ValueReader<'de> {
    type Error = Error;

    leaves! {
        deserialize_any deserialize_bool deserialize_char deserialize_f32 deserialize_f64
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_unit deserialize_identifier deserialize_ignored_any
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let text = core::str::from_utf8(self.text()?).map_err(|_| Error::DeserializeBadUtf8)?;
        visitor.visit_borrowed_str(text)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_bytes(self.text()?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.enter(size_of::<V::Value>(), |reader| {
            match reader.leaf(|leaf| u8::deserialize(leaf))? {
                0 => visitor.visit_none(),
                1 => visitor.visit_some(reader),
                _ => Err(Error::DeserializeBadOption),
            }
        })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        self.enter(size_of::<V::Value>(), |reader| visitor.visit_newtype_struct(reader))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.enter(size_of::<V::Value>(), |reader| visitor.visit_seq(Elements::counted(reader)?))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.enter(size_of::<V::Value>(), |reader| visitor.visit_map(Elements::counted(reader)?))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value> {
        self.enter(size_of::<V::Value>(), |reader| {
            visitor.visit_seq(Elements::within(reader, count))
        })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_tuple(count, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.enter(size_of::<V::Value>(), |reader| visitor.visit_enum(reader))
    }
}

impl<'de> de::EnumAccess<'de> for &mut ValueReader<'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        let index = self.leaf(|leaf| u32::deserialize(leaf))?;
        Ok((seed.deserialize(index.into_deserializer())?, self))
    }
}

impl<'de> de::VariantAccess<'de> for &mut ValueReader<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        seed.deserialize(self)
    }

    // Of the enum's memory, and so not entered.
    fn tuple_variant<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value> {
        visitor.visit_seq(Elements::within(self, count))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.tuple_variant(fields.len(), visitor)
    }
}
