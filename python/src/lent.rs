//! Memory that is lent to Python to be written, until it is sent or given back. The lender owns the
//! memory itself, and asks here for the views of it.

use crate::bytes::export;
use crate::errors::{Kind, error};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// See the module. All of it changes under the interpreter's lock.
pub struct Lent {
    /// A name for it, and its state once the loan is over, in words.
    what: [&'static str; 2],
    start: usize,
    length: AtomicUsize,
    /// Views that Python has.
    buffers: AtomicUsize,
    /// It was sent or given back, or is being sent.
    is_over: AtomicBool,
}

impl Lent {
    /// `length` bytes from `start` on, whose provenance is exposed.
    pub fn new(what: [&'static str; 2], start: usize, length: usize) -> Self {
        let (buffers, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { what, start, length: AtomicUsize::new(length), buffers, is_over }
    }

    pub fn length(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// Shortens it to at most `length` bytes. Earlier views show the cut-off bytes, too.
    pub fn shorten(&self, length: usize) {
        self.length.fetch_min(length, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub fn check(&self) -> PyResult<()> {
        let [what, gone] = self.what;
        match self.is_over() {
            true => Err(error(Kind::Closed, format!("the {what} was {gone}"))),
            false => Ok(()),
        }
    }

    /// Ends the loan: no further buffer of it; refused while one exists.
    pub fn end(&self) -> PyResult<()> {
        self.check()?;
        let buffers = self.buffers.load(Ordering::Relaxed);
        if buffers > 0 {
            let what = self.what[0];
            let text = format!("{buffers} views or arrays still use the {what}'s memory");
            return Err(PyBufferError::new_err(text));
        }
        self.is_over.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Undoes the end, after the operation that needed it has failed.
    pub fn goes_on(&self) {
        self.is_over.store(false, Ordering::Relaxed);
    }

    /// A buffer of it, without the first `skipped` bytes, that keeps `owner`.
    ///
    /// # Safety
    /// As for [`export`]; the memory exists until [`end`](Self::end) has succeeded, and `owner`
    /// keeps this.
    pub unsafe fn view(
        &self,
        owner: &Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
        skipped: usize,
    ) -> PyResult<()> {
        self.check()?;
        let start = core::ptr::with_exposed_provenance_mut(self.start + skipped);
        // SAFETY: the caller's; it does not end before the view has come back.
        unsafe { export(owner, view, flags, start, self.length() - skipped, false) }?;
        self.buffers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A buffer has come back.
    pub fn returned(&self) {
        self.buffers.fetch_sub(1, Ordering::Relaxed);
    }
}
