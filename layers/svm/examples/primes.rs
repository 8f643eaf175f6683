//! Counts primes, over shared virtual memory: the ranks take parts of the numbers under a lock.
//!
//! ```text
//! cargo build --example primes
//! hamlyn run -n 4 -- target/debug/examples/primes      alone: one process
//! ```

use hamlyn_svm::{Homes, Options, Svm};

const NUMBERS: u64 = 100_000;
const PART: u64 = 1000;
const LOCK: u32 = 0;

/// The memory that the processes share.
#[repr(C)]
struct Shared {
    next: u64,
    primes: u64,
    parts_of: [u64; 64],
}

fn primes(from: u64, to: u64) -> u64 {
    let is_prime =
        |n: &u64| *n > 1 && (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    (from..to).filter(is_prime).count() as u64
}

fn main() -> Result<(), hamlyn_svm::Error> {
    let svm = Svm::join(&Options::new(1 << 20))?;
    let shared = svm.malloc_all(size_of::<Shared>(), 64, Homes::FirstTouch)?.cast::<Shared>();
    loop {
        svm.lock(LOCK)?;
        // SAFETY: the block is large enough, zeros at first, and only the holder of the lock uses it.
        let from = unsafe {
            let from = (*shared).next;
            (*shared).next = from + PART;
            from
        };
        svm.unlock(LOCK)?;
        if from >= NUMBERS {
            break;
        }
        let found = primes(from, from + PART);
        svm.lock(LOCK)?;
        // SAFETY: as above.
        unsafe {
            (*shared).primes += found;
            (*shared).parts_of[svm.rank()] += 1;
        }
        svm.unlock(LOCK)?;
    }
    svm.barrier(0, svm.size())?;
    if svm.rank() == 0 {
        // SAFETY: all have passed the barrier, and none stores any more.
        let (found, parts) = unsafe { ((*shared).primes, (*shared).parts_of) };
        println!(
            "{found} primes below {NUMBERS}; parts of each process: {:?}",
            &parts[..svm.size()]
        );
        assert_eq!(found, 9592);
    }
    svm.leave()
}
