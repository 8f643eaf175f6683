//! Seeds: bytes from which a sender is grown elsewhere.

use crate::bytes::with_bytes;
use crate::errors::OrRaise;
use hamlyn::protocol;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

/// A receiver end point's seed, from which its senders grow: bytes or text that may travel in a
/// message, in a file or on a command line. A secret: its bearer may grow a sender from it.
#[pyclass(module = "hamlyn", frozen, eq)]
#[derive(PartialEq)]
pub struct Seed {
    pub seed: protocol::Seed,
}

#[pymethods]
impl Seed {
    /// Reads a seed from its bytes or its text. Raises `SeedError` if it is not a seed.
    #[new]
    #[pyo3(signature = (seed: "Seed | Buffer | str"))]
    fn new(seed: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { seed: seed_of(seed)? })
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.seed.to_bytes())
    }

    fn __str__(&self) -> String {
        self.seed.to_string()
    }

    /// The same for bearers on other hosts, which find the receiver's host at `host:port`; its
    /// manager has to listen there (the setting `listen`).
    #[cfg(feature = "tls")]
    fn at_host(&self, at: &str) -> PyResult<Self> {
        Ok(Self { seed: self.seed.at_host(at).or_raise()? })
    }

    /// The receiver's protocol.
    #[getter]
    fn kind(&self) -> String {
        self.seed.kind().to_string()
    }

    /// The id of the manager that the receiver belongs to.
    #[getter]
    fn manager_id(&self) -> u64 {
        self.seed.node().0
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.seed.to_bytes().hash(&mut hasher);
        hasher.finish()
    }

    #[pyo3(signature = () -> "tuple[object, tuple[bytes]]")]
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let class = py.get_type::<Self>().into_any();
        Ok((class, PyTuple::new(py, [self.__bytes__(py)])?))
    }

    fn __repr__(&self) -> String {
        // Not its token: the reader of a log must not get the right.
        format!("<hamlyn.Seed of a {} receiver of {}>", self.seed.kind(), self.seed.node())
    }
}

/// A seed, or the bytes or text of one.
pub fn seed_of(given: &Bound<'_, PyAny>) -> PyResult<protocol::Seed> {
    if let Ok(seed) = given.cast::<Seed>() {
        return Ok(seed.get().seed.clone());
    }
    if let Ok(text) = given.cast::<PyString>() {
        return text.to_cow()?.parse::<protocol::Seed>().or_raise();
    }
    with_bytes(given, |bytes| protocol::Seed::from_bytes(bytes).or_raise())
}
