//! `hamlyn run --hosts` by the real ssh: two servers of this test's own, each in a mount namespace
//! of its own, at two addresses of the loopback interface, so that the ranks see two hosts. The
//! tests are skipped if a program or a right is missing; `make deep STEPS=launchers` installs the
//! programs.
#![cfg(feature = "tls")]

mod support;

#[path = "../../examples/job_all_to_all.rs"]
mod all_to_all;

use hamlyn::job::Job;
use std::fs::{Permissions, read_to_string, set_permissions, write};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::ranks::{Done, LIMIT, LONG, ROLE, all_of, as_role, command, with_role};

const HOSTS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    as_role(&role, || match role.as_str() {
        "all_to_all" => all_to_all::main(),
        "dies" => dies(),
        "sleeps" => sleeps(),
        other => panic!("no role {other}"),
    })
}

/// The last rank, on the second host, dies; the others wait.
fn dies() -> Done {
    let job = Job::from_env()?;
    job.fence(LIMIT)?;
    if job.rank() == job.size() - 1 {
        std::process::abort();
    }
    std::thread::sleep(2 * LONG);
    Ok(())
}

fn sleeps() -> Done {
    let job = Job::from_env()?;
    job.fence(LIMIT)?;
    println!("ready {}", std::process::id());
    std::io::stdout().flush()?;
    std::thread::sleep(2 * LONG);
    Ok(())
}

/// The servers, with keys of their own, ended when this is dropped.
struct Servers {
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Servers {
    /// `None`, which is said: they cannot be had here.
    fn new() -> Option<Self> {
        let cannot = |why: &str| {
            support::skipped_without("ssh", &format!("jobs through ssh: {why}"));
            None
        };
        for program in ["/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"] {
            if !Path::new(program).exists() {
                return cannot(&format!("there is no {program}"));
            }
        }
        let own = ["--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/run"];
        let made = Command::new("unshare").args(own).output();
        if !made.is_ok_and(|made| made.status.success()) {
            return cannot("no mount namespaces can be made (they need root)");
        }
        let mut servers = Self { dir: tempfile::tempdir().unwrap(), children: Vec::new() };
        let dir = servers.dir.path().to_path_buf();
        let at = dir.display();
        for key in ["host", "key"] {
            let mut made = Command::new("/usr/bin/ssh-keygen");
            made.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(dir.join(key));
            assert!(made.output().unwrap().status.success());
        }
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let host_key = read_to_string(dir.join("host.pub")).unwrap();
        let known: String = HOSTS.map(|host| format!("[{host}]:{port} {host_key}")).concat();
        write(dir.join("known"), known).unwrap();
        std::fs::copy(dir.join("key.pub"), dir.join("authorized")).unwrap();
        let server = format!(
            "Port {port}\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        );
        write(dir.join("sshd_config"), server).unwrap();
        let client = format!(
            "Port {port}\nIdentityFile {at}/key\nIdentitiesOnly yes\nIdentityAgent none\n\
             UserKnownHostsFile {at}/known\nGlobalKnownHostsFile none\nStrictHostKeyChecking yes\n\
             BatchMode yes\nConnectTimeout 20\nLogLevel ERROR\n"
        );
        write(dir.join("ssh_config"), client).unwrap();
        set_permissions(dir.join("ssh_config"), Permissions::from_mode(0o600)).unwrap();
        for host in HOSTS {
            // sshd wants /run/sshd to be there; not in this system's own.
            let script = format!(
                "mount -t tmpfs tmpfs /run && mkdir /run/sshd && \
                 exec /usr/sbin/sshd -D -e -f {at}/sshd_config -o ListenAddress={host}"
            );
            let mut server = command("unshare", &dir);
            server.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
            let log = std::fs::File::create(dir.join(format!("log-{host}"))).unwrap();
            server.stdout(Stdio::null()).stderr(log);
            servers.children.push(server.spawn().unwrap());
        }
        let until = Instant::now() + LONG;
        for (host, child) in HOSTS.into_iter().zip(&mut servers.children) {
            while TcpStream::connect((host, port)).is_err() {
                let log = read_to_string(dir.join(format!("log-{host}"))).unwrap_or_default();
                let has_ended = child.try_wait().unwrap().is_some();
                assert!(!has_ended && Instant::now() < until, "sshd does not start: {log}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Some(servers)
    }

    /// `hamlyn run` on both, with a role.
    fn run(&self, config: &str, role: &str) -> Command {
        let dir = self.dir.path();
        let mut command = command(env!("CARGO_BIN_EXE_hamlyn"), dir);
        let names = HOSTS.join(",");
        let rsh = format!("ssh -F {}/{config}", dir.display());
        command.args(["run", "-n", "4", "--hosts", &names, "--rsh", &rsh]);
        // The environment there is that of the remote shell.
        command.args(["--env", &format!("HAMLYN_DIR={}", dir.display())]);
        command.args(["--env", &format!("{ROLE}={role}"), "--"]);
        with_role(&mut command, role);
        command
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn ranks_of_two_hosts_are_started_through_ssh_and_end_together() {
    let Some(servers) = Servers::new() else { return };
    let output = servers.run("ssh_config", "all_to_all").output().unwrap();
    let all = all_of(&output);
    assert!(output.status.success(), "{all}");
    assert!(all.contains("4 ranks, 3 rounds: every block is what it should be"), "{all}");
    assert!(all.contains("by rings to the 2 of this host, by TLS to the others"), "{all}");

    // One there dies: all end, and the status is its.
    let output = servers.run("ssh_config", "dies").output().unwrap();
    let all = all_of(&output);
    assert_eq!(output.status.code(), Some(128 + 6), "{all}");
    assert!(all.contains("rank 3 on 127.0.0.2 was ended by signal 6"), "{all}");

    // The launcher is killed: so are the ranks.
    let mut child = servers.run("ssh_config", "sleeps").spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready =
        lines.filter_map(|line| line.unwrap().split_once("ready ").map(|(_, pid)| pid.into()));
    let pids: Vec<String> = ready.take(4).collect();
    assert_eq!(pids.len(), 4);
    child.kill().unwrap();
    child.wait().unwrap();
    let until = Instant::now() + LONG;
    for pid in pids {
        let stat = || read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Gone, or a zombie until its new parent looks.
        while !(stat().is_empty() || stat().contains(") Z ")) {
            assert!(Instant::now() < until, "rank {pid} is still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    // A key that is not let in: an error that names the host, and ssh's own words.
    let config = read_to_string(servers.dir.path().join("ssh_config")).unwrap();
    let other = config.replace("/key\n", "/host\n");
    write(servers.dir.path().join("other_config"), other).unwrap();
    let output = servers.run("other_config", "all_to_all").output().unwrap();
    let all = all_of(&output);
    assert!(!output.status.success(), "{all}");
    assert!(all.contains("127.0.0.") && all.contains("Permission denied"), "{all}");
}
