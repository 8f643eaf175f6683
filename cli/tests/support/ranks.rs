//! Ranks of a job: the test's own program, run again as a role by its test `role`.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The variable that names the role.
pub const ROLE: &str = "HAMLYN_TEST_ROLE";
pub const LIMIT: Option<Duration> = Some(Duration::from_secs(40));
/// Longer than anything takes.
pub const LONG: Duration = Duration::from_secs(60);

pub type Done = Result<(), Box<dyn std::error::Error>>;

/// Without the variables of the user who runs the tests, in a directory of its own.
pub fn command(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars() {
        let launchers = ["PMI_", "PMIX_", "PRTE_", "HYDRA_", "OMPI_", "SLURM_"];
        if name.starts_with("HAMLYN_") || launchers.iter().any(|start| name.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command.env("HAMLYN_DIR", dir).current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// This test's program as `role`.
pub fn with_role<'a>(command: &'a mut Command, role: &str) -> &'a mut Command {
    let own = std::env::current_exe().unwrap();
    command.arg(own).args(["--exact", "role", "--nocapture", "--test-threads=1"]).env(ROLE, role)
}

/// Does what a rank does, and ends the process.
pub fn as_role(role: &str, what: impl FnOnce() -> Done) -> ! {
    // Ranks that are never ended are not to stay, either.
    std::thread::spawn(|| {
        std::thread::sleep(2 * LONG);
        std::process::abort();
    });
    if let Err(e) = what() {
        eprintln!("a rank as {role}: {e}");
        std::process::exit(3);
    }
    // Not what the test harness would say, nor its status.
    std::process::exit(0);
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn all_of(output: &Output) -> String {
    format!("{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}
