//! The common parts of the protocols' tests.

pub use crate::over::{
    Reached, at, is_of_hosts, is_over_libfabric, is_said_by, manager_with, node_with,
    only_on_one_host, opens_memory, seen,
};
use hamlyn::protocol::Manager;
use hamlyn::{Config, Node};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const LONG: Duration = Duration::from_secs(20);
pub const LIMIT: Option<Duration> = Some(LONG);
pub const SHORT: Option<Duration> = Some(Duration::from_millis(30));

/// A directory of a test's own.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(format!("hamlyn-{name}-{pid}-{count}"));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub fn config(&self) -> Config {
        // Small apertures, too, which are full soon.
        Config::from_env().unwrap().dir(&self.0).aperture_stream_bytes_min(1u64)
    }

    pub fn manager(&self) -> Manager {
        manager_with(self.config())
    }

    /// One that answers while the test does something else.
    pub fn answering(&self) -> Manager {
        let manager = self.manager();
        manager.start_progress().unwrap();
        manager
    }

    pub fn node(&self) -> Node {
        node_with(self.config())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "what was waited for has not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}
