//! Libraries that are opened at run time: libfabric and PMIx.
//!
//! Never: a library is looked for by a name from outside, in the directories of `LD_LIBRARY_PATH`
//! or in the working directory; one is opened with more rights than the caller of this program has.

use super::environment::crosses_privilege_boundary;
use core::ffi::c_int;
use libloading::os::unix as dl;
use std::format;
use std::path::Path;
use std::string::{String, ToString};

/// Opens the file of an absolute path, or else the library of this fixed name that the system
/// finds. The error gives the reason.
///
/// Refused in a program that has more rights than its caller: both libraries read variables of
/// their own, which name further libraries to load (`FI_PROVIDER_PATH`,
/// `PMIX_MCA_mca_base_component_path`).
pub fn open(path: Option<&Path>, name: &'static str, flags: c_int) -> Result<dl::Library, String> {
    if crosses_privilege_boundary() {
        return Err("it is not opened in a program that has more rights than its caller (set-user-ID, \
                    set-group-ID, file capabilities): it would load what the caller's variables name"
            .into());
    }
    if path.is_some_and(|path| !path.is_absolute()) {
        return Err("an absolute path is needed".into());
    }
    // SAFETY: the file is the one that the program or its settings name, or the system's, and no
    // other user chose it; opening it runs the initialization of libfabric or PMIx.
    let opened = unsafe { dl::Library::open(Some(path.unwrap_or(Path::new(name))), flags) };
    opened.map_err(|error| why(&error))
}

/// The loader's message.
pub fn why(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{source}"),
        None => error.to_string(),
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_opened_by_its_fixed_name_or_an_absolute_path_and_by_no_other_name() {
        let open = |path: Option<&str>| open(path.map(Path::new), "libc.so.6", dl::RTLD_NOW);
        assert!(open(None).is_ok());
        for relative in ["libc.so.6", "./libc.so.6", ""] {
            assert_eq!(open(Some(relative)).unwrap_err(), "an absolute path is needed");
        }
        assert!(open(Some("/nowhere/libc.so.6")).unwrap_err().contains("/nowhere/libc.so.6"));
    }
}
