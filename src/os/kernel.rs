//! The kernel features that the library would use, and whether this kernel has them.

use super::sys::{can_wait_for_words, register_barrier};
use core::fmt;
use std::os::fd::OwnedFd;
use std::string::String;
use std::vec::Vec;

/// A feature that a kernel has or lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFeature {
    /// Its name.
    pub name: &'static str,
    /// The first Linux that has it.
    pub since: &'static str,
    /// Its use in the library.
    pub used_for: &'static str,
    /// The library's behaviour without it.
    pub otherwise: &'static str,
    /// Whether this kernel has it, and no filter of its calls forbids it.
    pub present: bool,
}

/// The kernel features that the library would use, found out by trying.
///
/// ```
/// let kernel = hamlyn::KernelFeatures::detect();
/// for feature in kernel.rows.iter().filter(|feature| !feature.present) {
///     println!("without {}: {}", feature.name, feature.otherwise);
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFeatures {
    /// Version as the kernel reports it.
    pub release: String,
    /// One row for each feature.
    pub rows: Vec<KernelFeature>,
}

impl KernelFeatures {
    /// Tries each feature.
    pub fn detect() -> Self {
        let rows = std::vec![
            KernelFeature {
                name: "F_SEAL_FUTURE_WRITE",
                since: "5.1",
                used_for: "exactly one process can write a page",
                otherwise: "no shared-memory links",
                present: {
                    let seal =
                        |fd: OwnedFd| super::memory::seal(fd, super::memory::SEALS_READ_ONLY);
                    super::memory::create(4096).and_then(seal).is_ok()
                },
            },
            KernelFeature {
                name: "membarrier GLOBAL_EXPEDITED",
                since: "4.16",
                used_for: "going to sleep without a fence on each send",
                otherwise: "senders fence once a batch",
                present: register_barrier(),
            },
            KernelFeature {
                name: "futex_waitv",
                since: "5.16",
                used_for: "sleeping in a call on words of the peers, without a byte for each wake-up",
                otherwise: "a byte on a socket, as in an event loop",
                present: can_wait_for_words(),
            },
            KernelFeature {
                name: "pidfd_open",
                since: "5.3",
                used_for: "seeing a peer's death though a child holds its socket",
                otherwise: "the socket alone",
                present: rustix::process::pidfd_open(
                    rustix::process::getpid(),
                    rustix::process::PidfdFlags::empty(),
                )
                .is_ok(),
            },
            KernelFeature {
                name: "SO_PEERPIDFD",
                since: "6.5",
                used_for: "a pidfd of exactly the process that connected",
                otherwise: "pidfd_open of its number, which may be another's by then",
                present: super::socket::has_peer_pidfd(),
            },
            KernelFeature {
                name: "pidfs",
                since: "6.9",
                used_for: "proving a node's id, whatever namespaces its process is in",
                otherwise: "its process's number, in the same PID namespace; elsewhere tickets are not routed",
                present: rustix::process::pidfd_open(
                    rustix::process::getpid(),
                    rustix::process::PidfdFlags::empty(),
                )
                .is_ok_and(|pidfd| super::socket::process_number(pidfd).is_some()),
            },
            KernelFeature {
                name: "SO_PASSRIGHTS",
                since: "6.16",
                used_for: "sockets refuse descriptors but while one is waited for",
                otherwise: "what comes is closed on threads that nothing waits for, at most 16; then it stays open, counted",
                present: super::socket::has_pass_rights(),
            },
            KernelFeature {
                name: "MFD_NOEXEC_SEAL",
                since: "6.3",
                used_for: "shared memory that can never be executed",
                otherwise: "shared memory without that promise",
                present: rustix::fs::memfd_create(
                    "hamlyn",
                    rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::NOEXEC_SEAL,
                )
                .is_ok(),
            },
            KernelFeature {
                name: "MADV_POPULATE",
                since: "5.14",
                used_for: "paying for a ring in one call",
                otherwise: "each page is touched",
                present: super::memory::has_populate(),
            },
            KernelFeature {
                name: "write leases on memory files",
                since: "5.3",
                used_for: "seeing that nobody has a revoked aperture any more",
                otherwise: "it counts against the limit until the process ends",
                present: super::aperture::can_tell(),
            },
        ];
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        let release = release.map_or("(unknown)".into(), |text| text.trim().into());
        Self { release, rows }
    }
}

impl fmt::Display for KernelFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Linux {}", self.release)?;
        writeln!(f, "{:<28} {:<6} {:<8} used for / otherwise", "feature", "since", "here")?;
        for row in &self.rows {
            let here = if row.present { "yes" } else { "no" };
            let what = if row.present { row.used_for } else { row.otherwise };
            writeln!(f, "{:<28} {:<6} {:<8} {}", row.name, row.since, here, what)?;
        }
        Ok(())
    }
}
