//! The standard descriptors that were closed when this process started.
//!
//! Rust's runtime opens `/dev/null` in place of a closed one before `main`, so writes there would
//! be lost without an error. This module checks them before that.

use anyhow::{Result, ensure};
use rustix::io::fcntl_getfd;
use std::sync::atomic::{AtomicBool, Ordering};

static INPUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);
static OUTPUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);

#[ctor::ctor(unsafe)]
fn look() {
    INPUT_IS_CLOSED.store(fcntl_getfd(rustix::stdio::stdin()).is_err(), Ordering::Relaxed);
    OUTPUT_IS_CLOSED.store(fcntl_getfd(rustix::stdio::stdout()).is_err(), Ordering::Relaxed);
}

/// Refuses to send an empty input in place of a missing one.
pub fn input_is_open() -> Result<()> {
    ensure!(
        !INPUT_IS_CLOSED.load(Ordering::Relaxed),
        "standard input is closed: there is nothing to send"
    );
    Ok(())
}

/// Whether standard output exists.
pub fn has_output() -> bool {
    !OUTPUT_IS_CLOSED.load(Ordering::Relaxed)
}

/// Refuses to write output that would be lost.
pub fn output_is_open() -> Result<()> {
    ensure!(
        has_output(),
        "standard output is closed: what comes would be lost; `--output FILE` writes to a file"
    );
    Ok(())
}
