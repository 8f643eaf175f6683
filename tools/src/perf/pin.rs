//! Selects the two processors of the two ends, and pins threads to them.
//!
//! All compared channels are pinned alike: the time of a cache line between two cores depends on
//! the pair of cores more than on anything that a program does.

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;

/// The processors of the two ends, by the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The processor of the end that measures.
    pub near: usize,
    /// The processor of the other end.
    pub far: usize,
}

impl Cores {
    /// Whether both ends share a processor: then an end that waits must sleep, and no cache line
    /// travels.
    pub fn are_one(self) -> bool {
        self.near == self.far
    }
}

/// Two processors that this process may use; on two physical cores if there are two.
pub fn two_cores() -> Result<Cores> {
    let allowed = allowed()?;
    let [near, others @ ..] = allowed.as_slice() else { bail!("no processor is allowed") };
    let siblings = siblings(*near);
    let far = others.iter().find(|core| !siblings.contains(core)).or(others.first());
    let Some(far) = far else {
        bail!("measuring needs two processors, and this process may use only number {near}")
    };
    Ok(Cores { near: *near, far: *far })
}

/// Pins the calling thread, and those it spawns from now on, to one processor.
pub fn pin(core: usize) -> Result<()> {
    let allowed = allowed()?;
    if !allowed.contains(&core) {
        let allowed: Vec<String> = allowed.iter().map(usize::to_string).collect();
        let allowed = allowed.join(", ");
        bail!("processor {core} is not one of those that this process may use: {allowed}");
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin to processor {core}"))
}

fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot ask which processors are allowed")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// The processors that share `core`'s physical core, itself included. Empty if the kernel does not
/// report them.
fn siblings(core: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    parse_list(fs::read_to_string(path).unwrap_or_default().trim())
}

/// The kernel's list format: `0,4-7`.
fn parse_list(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(parse_list("0"), [0]);
        assert_eq!(parse_list("0,4-6"), [0, 4, 5, 6]);
        assert!(parse_list("").is_empty());
    }

    #[test]
    fn pinning_to_a_processor_that_is_not_allowed_names_it() {
        let error = std::thread::spawn(|| pin(1023)).join().unwrap().unwrap_err();
        assert!(error.to_string().contains("1023"));
    }
}
