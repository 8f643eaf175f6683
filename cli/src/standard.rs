//! Which of the standard descriptors this process was started without.
//!
//! Rust's runtime opens `/dev/null` in the place of one that is closed, before `main`: whoever then
//! writes there loses everything and is told that all is well. So they are looked at before that.

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

/// Refuses to send nothing for something.
pub fn input_is_open() -> Result<()> {
    ensure!(
        !INPUT_IS_CLOSED.load(Ordering::Relaxed),
        "standard input is closed: there is nothing to send"
    );
    Ok(())
}

/// Whether what is printed goes anywhere.
pub fn has_output() -> bool {
    !OUTPUT_IS_CLOSED.load(Ordering::Relaxed)
}

/// Refuses to write what then nobody has.
pub fn output_is_open() -> Result<()> {
    ensure!(
        has_output(),
        "standard output is closed: what comes would be lost; `--output FILE` writes to a file"
    );
    Ok(())
}
