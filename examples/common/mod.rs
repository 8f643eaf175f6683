//! The common parts of the examples: a second process, and a runtime directory of its own. Programs
//! that are started separately need neither.
#![allow(dead_code)]

use hamlyn::{Config, Node};
use std::error::Error;
use std::os::unix::fs::DirBuilderExt;
use std::process::{Command, exit};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Settings of the environment, with the example's private directory.
pub fn node() -> Result<Node> {
    Ok(Node::with_config(Config::from_env()?)?)
}

/// Runs `first` in this process, and each of `others` in a process of its own, once `first` has
/// called its argument to say that it is ready.
pub fn run(first: impl FnOnce(&dyn Fn() -> Result) -> Result, others: &[fn() -> Result]) -> Result {
    if let Ok(role) = std::env::var("HAMLYN_EXAMPLE_ROLE") {
        let role: usize = role.parse()?;
        if let Err(e) = others[role]() {
            eprintln!("process {role}: {e}");
            exit(1);
        }
        return Ok(());
    }
    let dir = std::env::temp_dir().join(format!("hamlyn-example-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("HAMLYN_DIR", &dir) };
    let children = std::cell::RefCell::new(Vec::new());
    let ready = || {
        for role in 0..others.len() {
            let mut command = Command::new(std::env::current_exe()?);
            children.borrow_mut().push(
                command
                    .env("HAMLYN_EXAMPLE_ROLE", role.to_string())
                    .env("HAMLYN_DIR", &dir)
                    .spawn()?,
            );
        }
        Ok(())
    };
    let result = first(&ready);
    let mut failed = false;
    for mut child in children.take() {
        if result.is_err() {
            child.kill().ok();
        }
        failed |= !child.wait()?.success();
    }
    std::fs::remove_dir_all(&dir).ok();
    result?;
    if failed { Err("a process failed".into()) } else { Ok(()) }
}

/// A file in the example's private directory.
pub fn path(name: &str) -> Result<std::path::PathBuf> {
    Ok(std::path::Path::new(&std::env::var_os("HAMLYN_DIR").ok_or("no HAMLYN_DIR")?).join(name))
}
