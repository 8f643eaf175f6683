//! Whether the control groups of this process leave room for memory that is taken at once: a process
//! that takes more is killed, and hears no error first.
//!
//! Never: a control group that cannot be read is an error; a cache that the kernel can drop counts as
//! memory in use.

use std::format;
use std::fs::read_to_string;
use std::io;
use std::path::{Path, PathBuf};

/// Below this nothing is looked up: a ring, a page of words.
const LOOKED_UP_BYTES: usize = 1 << 20;

/// What one control group allows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupRoom {
    group: PathBuf,
    limit: u64,
    free: u64,
}

/// Where a version of control groups is mounted, and how it calls things.
struct GroupVersion {
    root: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// In `memory.stat`: bytes of files, and those of them that are shared memory.
    files: [&'static str; 2],
}

const TWO: GroupVersion = GroupVersion {
    root: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    files: ["file", "shmem"],
};
const BOTH: GroupVersion = GroupVersion { root: "sys/fs/cgroup/unified", ..TWO };
const ONE: GroupVersion = GroupVersion {
    root: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_cache", "total_shmem"],
};

impl GroupVersion {
    fn room_of(&self, group: PathBuf) -> Option<GroupRoom> {
        let number = |name| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        // "max": none.
        let limit = number(self.limit)?;
        let usage = number(self.usage)?;
        let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
        let [files, shared] = self.files.map(|name| {
            let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(found, _)| *found == name).and_then(|(_, n)| n.parse().ok()).unwrap_or(0)
        });
        let used = usage.saturating_sub(u64::saturating_sub(files, shared));
        Some(GroupRoom { group, limit, free: limit.saturating_sub(used) })
    }
}

/// The tightest of the control groups that this process is in, one inside another, if any has a limit.
fn tightest(root: &Path) -> Option<GroupRoom> {
    let text = read_to_string(root.join("proc/self/cgroup")).ok()?;
    let lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let groups = lines.flat_map(|(controllers, path)| {
        let versions = match controllers {
            "" => &[TWO, BOTH][..],
            _ if controllers.split(',').any(|name| name == "memory") => &[ONE],
            _ => &[],
        };
        versions.iter().flat_map(move |version| {
            // In a container the path may be that outside: its own group is then the root.
            Path::new(path).ancestors().filter_map(move |path| {
                let path = path.strip_prefix("/").unwrap_or(path);
                version.room_of(root.join(version.root).join(path))
            })
        })
    });
    groups.min_by_key(|room| room.free)
}

fn refuse(bytes: usize, room: &GroupRoom) -> io::Error {
    let GroupRoom { group, limit, free } = room;
    let group = group.display();
    io::Error::new(
        io::ErrorKind::OutOfMemory,
        format!(
            "{bytes} bytes are more than the control group {group} leaves: {free} of {limit} bytes are free"
        ),
    )
}

/// Fails where a control group does not leave so much for memory that is taken now.
pub(crate) fn check_now(bytes: usize) -> io::Result<()> {
    match (bytes >= LOOKED_UP_BYTES).then(|| tightest(Path::new("/"))).flatten() {
        Some(room) if bytes as u64 > room.free => Err(refuse(bytes, &room)),
        _ => Ok(()),
    }
}

/// Fails where a control group could never hold so much, for memory that is taken as it is used.
pub(super) fn check_ever(bytes: usize) -> io::Result<()> {
    match (bytes >= LOOKED_UP_BYTES).then(|| tightest(Path::new("/"))).flatten() {
        Some(room) if bytes as u64 > room.limit => Err(refuse(bytes, &room)),
        _ => Ok(()),
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use std::string::ToString;

    /// A tree of files: removed when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("hamlyn-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_tightest_control_group_decides_and_dropped_cache_is_free() {
        let tree = Tree::new(
            "room-two",
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/memory.max", "1000\n"),
                ("sys/fs/cgroup/a/memory.current", "700\n"),
                ("sys/fs/cgroup/a/memory.stat", "anon 100\nfile 500\nshmem 50\n"),
            ],
        );
        let room = tightest(&tree.0).unwrap();
        assert_eq!((room.limit, room.free), (1000, 750));
        assert!(refuse(751, &room).to_string().contains("leaves: 750 of 1000 bytes are free"));
    }

    #[test]
    fn a_container_that_sees_its_path_outside_finds_its_limit_at_the_root() {
        let tree = Tree::new(
            "room-one",
            &[
                ("proc/self/cgroup", "3:cpu,memory:/docker/0123\n2:pids:/\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "300\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n"),
                ("sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_cache 30\ntotal_shmem 10\n"),
            ],
        );
        let room = tightest(&tree.0).unwrap();
        assert_eq!((room.limit, room.free), (300, 220));
    }

    #[test]
    fn without_control_groups_there_is_no_limit() {
        let tree = Tree::new("room-none", &[("proc/self/cgroup", "0::/\n")]);
        assert_eq!(tightest(&tree.0), None);
        assert_eq!(tightest(Path::new("/nowhere")), None);
        assert!(check_now(1).is_ok() && check_ever(1).is_ok());
    }
}
