//! Values as bytes, in XDR (RFC 4506): words of four bytes, the most significant first.
//!
//! Never: a length that a peer wrote is believed before as many bytes are there.

/// Bytes that are not of the type that was asked for: too few, or longer than its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are not of this type: too few, or more than its bound")]
pub struct Malformed;

fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// Writes values, one after another.
#[derive(Debug, Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// Without any value.
    pub fn new() -> Self {
        Self::default()
    }

    /// An `int`, or an `enum`.
    pub fn i32(&mut self, value: i32) -> &mut Self {
        self.fixed(&value.to_be_bytes())
    }

    /// An `unsigned int`.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.fixed(&value.to_be_bytes())
    }

    /// A `hyper`.
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.fixed(&value.to_be_bytes())
    }

    /// An `unsigned hyper`.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.fixed(&value.to_be_bytes())
    }

    /// A `double`.
    pub fn f64(&mut self, value: f64) -> &mut Self {
        self.fixed(&value.to_be_bytes())
    }

    /// A `bool`; also whether an optional value follows.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u32(value.into())
    }

    /// `opaque name[n]`, of as many bytes as there are.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len() + padding(bytes.len()), 0);
        self
    }

    /// `opaque name<>` or `string name<>`.
    ///
    /// # Panics
    ///
    /// With 4 GiB or more.
    pub fn opaque(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).fixed(bytes)
    }

    /// The number of elements of an array, `name<>`, which follow.
    ///
    /// # Panics
    ///
    /// With 2^32 or more.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).expect("fewer than 2^32"))
    }

    /// The bytes written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Takes back everything behind the first `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }
}

/// Reads values, one after another. After an error it stands where it stood before.
#[derive(Clone, Debug)]
pub struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (word, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*word)
    }

    /// An `int`, or an `enum`.
    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.word().map(i32::from_be_bytes)
    }

    /// An `unsigned int`.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.word().map(u32::from_be_bytes)
    }

    /// A `hyper`.
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.word().map(i64::from_be_bytes)
    }

    /// An `unsigned hyper`.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.word().map(u64::from_be_bytes)
    }

    /// A `double`.
    pub fn f64(&mut self) -> Result<f64, Malformed> {
        self.word().map(f64::from_be_bytes)
    }

    /// A `bool`; also whether an optional value follows. All but 0 is true, as in libtirpc.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.u32()? != 0)
    }

    /// `opaque name[length]`. The padding is not looked at.
    pub fn fixed(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let whole = length.checked_add(padding(length)).ok_or(Malformed)?;
        let (padded, rest) = self.0.split_at_checked(whole).ok_or(Malformed)?;
        self.0 = rest;
        Ok(&padded[..length])
    }

    /// `opaque name<max>`, or the bytes of a `string name<max>`.
    pub fn opaque(&mut self, max: u32) -> Result<&'a [u8], Malformed> {
        let mut rest = self.clone();
        let length = rest.u32()?;
        if length > max {
            return Err(Malformed);
        }
        let bytes = rest.fixed(length as usize)?;
        *self = rest;
        Ok(bytes)
    }

    /// An array, `name<max>`, of elements that `element` reads.
    pub fn array<T>(
        &mut self,
        max: u32,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let mut rest = self.clone();
        let count = rest.u32()?;
        // Each element has a word at least.
        if count > max || count as usize > rest.0.len() / 4 {
            return Err(Malformed);
        }
        let all = (0..count).map(|_| element(&mut rest)).collect::<Result<_, _>>()?;
        *self = rest;
        Ok(all)
    }

    /// The bytes that are left.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}
