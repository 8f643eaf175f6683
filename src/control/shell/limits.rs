//! The number of links that fit the system's limits for this process: descriptors and mappings.

use crate::control::machine::MachineLimits;
use crate::os::sys;
use std::io;
use std::string::String;
use std::vec::Vec;

/// Descriptors that a link takes, two of them for its rings' pages, and those that it takes besides
/// while it is made.
const DESCRIPTORS_PER_LINK: u64 = 6;
/// Mappings that a link takes: its rings, and its bulk rings.
const MAPPINGS_PER_LINK: u64 = 4;
/// Descriptors of a connection that has no place for a link yet. A quarter of all are for them.
const DESCRIPTORS_PER_WAITING: u64 = 2;
/// Descriptors that are left to the application, and to the library itself.
const DESCRIPTORS_KEPT: u64 = 128;

/// Bounds the links by the descriptors, after raising the soft limit as far as possible, and notes
/// it; likewise the connections that wait to become a link.
pub(super) fn fit_descriptors(
    limits: &mut MachineLimits,
    notes: &mut Vec<String>,
) -> io::Result<()> {
    let links_max = limits.links_max;
    let of_links = u64::from(links_max) * DESCRIPTORS_PER_LINK;
    let needed = (of_links.div_ceil(3) * 4 + DESCRIPTORS_KEPT).max(1024);
    if let Some(raised) = sys::raise_descriptor_limit(needed)? {
        notes.push(std::format!(
            "the soft limit on descriptors was raised from {} to {}",
            raised.from,
            raised.to
        ));
    }
    let limit = sys::descriptor_limit()?;
    let quarter = limit.saturating_sub(DESCRIPTORS_KEPT) / 4;
    let waiting = u32::try_from(quarter / DESCRIPTORS_PER_WAITING).unwrap_or(u32::MAX);
    limits.waiting_max = waiting.max(1);
    if limit >= needed {
        return Ok(());
    }
    let fitting = quarter * 3 / DESCRIPTORS_PER_LINK;
    let fitting = u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, links_max);
    if fitting < links_max {
        notes.push(std::format!(
            "the limit of {limit} descriptors allows {fitting} links, and links_max is {links_max}"
        ));
        limits.links_bound = "what its limit on descriptors allows (RLIMIT_NOFILE, ulimit -n)";
    }
    limits.links_max = fitting;
    Ok(())
}

/// Bounds the links, and the apertures of all users together, by the mappings: half of the kernel's
/// table, which has room for few, is left to the application.
pub(super) fn fit_mappings(limits: &mut MachineLimits, notes: &mut Vec<String>) {
    let links_max = limits.links_max;
    let limit = sys::mapping_limit();
    let fitting = u32::try_from(limit * 3 / 8 / MAPPINGS_PER_LINK).unwrap_or(u32::MAX).max(1);
    limits.apertures_max = u32::try_from(limit / 8).unwrap_or(u32::MAX);
    if fitting < links_max {
        notes.push(std::format!(
            "the limit of {limit} mappings (vm.max_map_count) allows {fitting} links, and links_max \
             is {links_max}"
        ));
        limits.links_bound = "what its limit on mappings allows (vm.max_map_count)";
    }
    limits.links_max = links_max.min(fitting);
}
