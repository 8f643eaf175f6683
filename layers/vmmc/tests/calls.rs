//! No system call is on the path of an update, a store, or a notification that is taken: a process that
//! makes one is killed.

use hamlyn::Access;
use hamlyn_vmmc::{Combining, Config, Exporting, Vmmc};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const VARIABLE: &str = "HAMLYN_VMMC_TEST_CALLS";

/// From now on this thread may write to standard output, and end the process.
fn allow_no_calls() {
    let load = |at| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: at };
    let is = |k: i64, jt, jf| libc::sock_filter { code: 0x15, jt, jf, k: k as u32 };
    let end = |k| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k };
    let mut words = [
        load(0), // The number; of `write` then the descriptor.
        is(libc::SYS_exit_group, 3, 0),
        is(libc::SYS_write, 0, 3),
        load(16),
        is(1, 0, 1),
        end(libc::SECCOMP_RET_ALLOW),
        end(libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = libc::sock_fprog { len: words.len() as u16, filter: words.as_mut_ptr() };
    // SAFETY: the program is here until the calls have returned.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(set, "{}", std::io::Error::last_os_error());
}

/// Both ends in one thread. With `one`, a system call at the end.
fn run(one: bool) -> ! {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::from_env().unwrap();
    config.node = config.node.dir(dir.path());
    let exporter = Vmmc::new(config.clone()).unwrap();
    exporter.serve("calls", Access::SameUser).unwrap();
    let importer = Vmmc::new(config).unwrap();
    let buffer = exporter.export("b", 65_536, Exporting::default()).unwrap();
    let proxy = std::thread::scope(|scope| {
        let importing = scope.spawn(|| importer.import("calls", "b", LIMIT).unwrap());
        while !importing.is_finished() {
            exporter.poll().unwrap();
        }
        importing.join().unwrap()
    });
    drop(dir); // The names are not needed any more.
    let mut bound = proxy.bind(4096, 4096, Combining::default(), None, LIMIT).unwrap();
    let mut both = |count: u32| {
        for word in 0..count {
            proxy.send(0, &[word as u8; 64], LIMIT).unwrap();
            proxy.send(1000, &[word as u8; 3000], LIMIT).unwrap();
            bound.store_u64(word as usize * 8 % 4096, word.into()).unwrap();
            bound.store_u64(word as usize * 24 % 4096, word.into()).unwrap();
            proxy.send_notify(8, &[word as u8; 64], word, LIMIT).unwrap();
            exporter.poll().unwrap();
            assert_eq!(exporter.take_notification().unwrap().word, word);
            importer.poll().unwrap();
        }
        bound.flush().unwrap();
        exporter.poll().unwrap();
    };
    both(1000);
    allow_no_calls();
    both(20_000);
    if one {
        // SAFETY: no arguments.
        unsafe { libc::getppid() };
    }
    assert_eq!(buffer.region().load(8).unwrap(), u64::from_ne_bytes([(19_999 & 255) as u8; 8]));
    // SAFETY: it ends here.
    unsafe { libc::_exit(0) };
}

#[test]
fn updates_stores_and_notifications_make_no_system_call() {
    if let Some(mode) = std::env::var_os(VARIABLE) {
        run(mode == "one");
    }
    let child = |mode| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "updates_stores_and_notifications_make_no_system_call"]);
        let output = command.env(VARIABLE, mode).output().unwrap();
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, said) = child("none");
    assert!(status.success(), "{status}: {said}");
    // The test sees calls.
    let (status, _) = child("one");
    assert_eq!(status.signal(), Some(libc::SIGSYS));
}
