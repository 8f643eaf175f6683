//! A measured figure means nothing without the compiler and the commit that made it, so both are
//! compiled in. Outside a git checkout (a package from a registry) the commit is "unknown".

use std::process::Command;

fn line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn main() {
    let unknown = || "unknown".to_owned();
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let compiler = line(&rustc, &["--version"]).unwrap_or_else(unknown);
    let commit = line("git", &["describe", "--always", "--dirty", "--abbrev=12"]);
    println!("cargo:rustc-env=HAMLYN_COMPILER={compiler}");
    println!("cargo:rustc-env=HAMLYN_COMMIT={}", commit.unwrap_or_else(unknown));
    // Whatever moves HEAD writes its log.
    if let Some(log) = line("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
