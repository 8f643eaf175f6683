//! The command with more rights than its caller: it does not read the caller's environment.

#![cfg(feature = "libfabric")]

mod support;

use rustix::fs::{StatVfsMountFlags, XattrFlags, setxattr, statvfs};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A user without rights.
const CALLER: u32 = 65534;

/// A copy of the command with the set-user-ID bit, one with a capability, and one with neither.
struct Copies {
    home: TempDir,
}

impl Copies {
    /// `None`, said loudly: programs cannot get rights here.
    fn new() -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        if !rustix::process::geteuid().is_root() {
            support::skipped("only root can give a program the rights of root");
            return None;
        }
        if statvfs(home.path()).unwrap().f_flag.contains(StatVfsMountFlags::NOSUID) {
            support::skipped(
                "temporary files are on a file system whose programs get no rights (nosuid)",
            );
            return None;
        }
        if fs::read_to_string("/proc/self/status").unwrap().contains("NoNewPrivs:\t1") {
            support::skipped("no program that is started here gets rights (no_new_privs)");
            return None;
        }
        fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(home.path().join("own")).unwrap();
        chown(home.path().join("own"), Some(CALLER), Some(CALLER)).unwrap();
        let secret = home.path().join("own/secret");
        fs::write(&secret, "7".repeat(64)).unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        chown(&secret, Some(CALLER), Some(CALLER)).unwrap();
        for name in ["plain", "set-uid", "capable"] {
            fs::copy(env!("CARGO_BIN_EXE_hamlyn"), home.path().join(name)).unwrap();
        }
        fs::set_permissions(home.path().join("set-uid"), Permissions::from_mode(0o4755)).unwrap();
        // `struct vfs_cap_data`, version 2: CAP_NET_RAW (13), permitted and effective.
        let words = [0x0200_0001u32, 1 << 13, 0, 0, 0];
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let capable = home.path().join("capable");
        setxattr(&capable, "security.capability", &words, XattrFlags::empty()).unwrap();
        Some(Self { home })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Runs a copy for the caller, or for root, with these variables; what it says.
    fn run(
        &self,
        copy: &str,
        user: u32,
        variables: &[(&str, &Path)],
        arguments: &[&str],
    ) -> String {
        let mut command = Command::new(self.path(copy));
        command.args(arguments).env_clear().envs(variables.iter().copied()).uid(user).gid(user);
        let output = command.stdin(Stdio::null()).current_dir("/").output().unwrap();
        assert!(!output.status.success(), "nothing serves what is asked for");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn a_program_with_more_rights_than_its_caller_opens_no_library_that_the_caller_names() {
    let Some(copies) = Copies::new() else { return };
    let (source, library) = (copies.path("library.c"), copies.path("library.so"));
    let opened = copies.path("own/opened");
    let text = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void begin(void) {{\n    \
         open(\"{}\", O_CREAT | O_WRONLY, 0600);\n}}\n",
        opened.display()
    );
    fs::write(&source, text).unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    if !built.is_ok_and(|status| status.success()) {
        return support::skipped("no C compiler (cc) for a library of the caller's");
    }
    let (secret, own) = (copies.path("own/secret"), copies.path("own"));
    let variables: [(&str, &Path); 5] = [
        ("HAMLYN_FABRIC", Path::new("trusted")),
        ("HAMLYN_FABRIC_LIBRARY", &library),
        ("HAMLYN_LISTEN", Path::new("127.0.0.1:0")),
        ("HAMLYN_SECRET", &secret),
        ("HAMLYN_DIR", &own),
    ];
    let send = ["send", "nothing-is-called-so", "--wait", "0"];
    for copy in ["set-uid", "capable"] {
        let said = copies.run(copy, CALLER, &variables, &send);
        assert!(!opened.exists(), "{copy} opened the library");
        assert!(said.contains("it reads no variable of the environment"), "{copy}: {said}");
        assert!(!said.contains(&*own.to_string_lossy()), "{copy} looked for names there: {said}");
    }
    // With the caller's own rights, the library is what the caller says.
    let said = copies.run("plain", CALLER, &variables, &send);
    assert!(opened.exists(), "{said}");
    assert_eq!(opened.metadata().unwrap().uid(), CALLER);
}

#[test]
fn a_program_with_more_rights_than_its_caller_reads_no_file_that_the_caller_names() {
    let Some(copies) = Copies::new() else { return };
    let (secret, directory) = (copies.path("own/secret"), copies.path("for-root-alone"));
    fs::write(&directory, "quotes hidden-word\n").unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o600)).unwrap();
    let variables: [(&str, &Path); 2] =
        [("HAMLYN_DIRECTORY", &directory), ("HAMLYN_SECRET", &secret)];
    let ask = ["send", "hamlyn://quotes", "--wait", "1"];
    let said = copies.run("set-uid", CALLER, &variables, &ask);
    assert!(!said.contains("hidden-word"), "{said}");
    // Root reads its own file, and the error says what is wrong with it.
    chown(&secret, Some(0), Some(0)).unwrap();
    chown(copies.path("own"), Some(0), Some(0)).unwrap();
    let said = copies.run("plain", 0, &variables, &ask);
    assert!(said.contains("hidden-word"), "{said}");
}
