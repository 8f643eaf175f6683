//! Objects that the library makes, closed when dropped, and attributes with room for newer
//! versions.

use super::FabricError;
use super::library::Library;
use super::{exit, sys};
use core::ffi::c_int;
use core::ptr::NonNull;

/// An object that the library has made, closed when it is dropped. It begins with its `fid`.
#[derive(Debug)]
pub struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    /// Takes ownership of `made`.
    pub fn of(made: NonNull<T>) -> Self {
        Self(made)
    }

    /// The object that a call writes to the place it gets.
    pub fn make(
        library: &Library,
        doing: &'static str,
        call: impl FnOnce(&mut *mut T) -> c_int,
    ) -> Result<Self, FabricError> {
        let mut made = core::ptr::null_mut();
        let rc = call(&mut made);
        match NonNull::new(made) {
            Some(made) if rc == 0 => Ok(Self(made)),
            _ => Err(library.refused(doing, rc as isize)),
        }
    }

    /// Its pointer.
    pub fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// The `fid` at its start.
    pub fn fid(&self) -> *mut sys::fid {
        self.0.as_ptr().cast()
    }

    /// Closes it; `false`: the library still uses it, or this is a forked child, where it stays.
    pub fn close(self) -> bool {
        let fid = self.fid();
        core::mem::forget(self);
        if exit::is_in_a_child() {
            return false;
        }
        // SAFETY: an object that is alive, with the calls that every object has; it is not used
        // after this.
        unsafe { (*(*fid).ops).close.is_none_or(|close| close(fid) == 0) }
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        Self(self.0).close();
    }
}

/// An attribute of a call, with zeros behind it: a newer library may have more fields.
#[repr(C)]
pub struct Padded<T> {
    pub value: T,
    zeros: [u64; 8],
}

impl<T> Padded<T> {
    /// # Safety
    /// All zeros must be a valid value of `T`.
    pub unsafe fn zeroed() -> Self {
        // SAFETY: the caller guarantees it.
        unsafe { core::mem::zeroed() }
    }
}
