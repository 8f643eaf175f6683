//! The variables of this process's environment: the only place that reads them.
//!
//! ```text
//!   the process that started this one --variables--> variable(), names() --> settings, directories, jobs
//!                                                        |
//!                        more rights than that process: there are no variables
//! ```
//! A program with more rights than its caller (set-user-ID, set-group-ID, file capabilities, a
//! security module's transition) has variables that the caller chose. They name files to read,
//! libraries to load and users to admit, all with the program's rights. The kernel reports this in
//! `AT_SECURE`, which the C library's `secure_getenv` also reads.
//!
//! Never: another place of the library, of the command or of a binding reads a variable
//! (`tests/tidy.rs`).

use std::ffi::OsString;
use std::string::String;
use std::vec::Vec;

/// Whether this process has more rights than the one that started it. It stays so until an `exec`.
pub fn crosses_privilege_boundary() -> bool {
    // Miri does not know this call.
    // SAFETY: the call takes a number and touches no memory of this process's but the auxiliary
    // vector, which the kernel wrote before the program began.
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) } != 0
}

/// The variable's value; `None` if it is not set, or if the caller of this program has fewer rights
/// than the program.
pub fn variable(name: &str) -> Option<OsString> {
    if crosses_privilege_boundary() { None } else { std::env::var_os(name) }
}

/// [`variable`] as text, with U+FFFD in place of invalid bytes.
pub fn text(name: &str) -> Option<String> {
    Some(variable(name)?.to_string_lossy().into_owned())
}

/// The names of all variables; empty where [`variable`] finds none.
pub fn names() -> Vec<String> {
    if crosses_privilege_boundary() {
        return Vec::new();
    }
    std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
}
