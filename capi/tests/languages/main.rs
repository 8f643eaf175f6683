//! Messages between programs in C and in Rust, in each direction and over each protocol; and in
//! further languages by `HAMLYN_PEERS`: commands that take the arguments of `tests/peer.c`, one to
//! a line or separated by semicolons.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROTOCOLS: &[&str] = &[
    "raw", "tagged", "datagram", "stream", "call", "group", "aperture", "close", "publish", "bytes",
];

/// The directory of cargo's artifacts: `target/debug`, from `target/debug/deps/languages-..`.
fn built() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.ancestors().nth(2).unwrap().to_path_buf()
}

/// Compiles the C peer against the header and the library as they are.
fn c_peer(work: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Cargo builds neither a shared library for a test, nor an example when asked for one test. With
    // the features of the whole workspace, so that nothing is compiled again for other ones.
    let mut build = Command::new(env!("CARGO"));
    // Without cargo's variables of this package: build scripts that read them (ring's) would see a
    // change, and everything that depends on them would be compiled again, here and afterwards.
    for (name, _) in std::env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if name == "OUT_DIR" || of_package.iter().any(|of| name.to_string_lossy().starts_with(of)) {
            build.env_remove(name);
        }
    }
    build.current_dir(root).args([
        "build",
        "--quiet",
        "--workspace",
        "--features",
        "hamlyn/serde,hamlyn/tokio,hamlyn/tls,hamlyn/libfabric",
    ]);
    build.args(["--lib", "--example", "rust_peer"]);
    if built().ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo, which runs this test").success());
    let library = built().join("libhamlyn_c.so");
    // The names that the linker, and then the program, look for.
    symlink(&library, work.join("libhamlyn.so")).unwrap();
    symlink(&library, work.join("libhamlyn.so.0")).unwrap();
    let program = work.join("peer");
    let compiled = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .arg(&program)
        .arg(root.join("tests/peer.c"))
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-L{}", work.display()))
        .arg(format!("-Wl,-rpath,{}", work.display()))
        .arg("-lhamlyn")
        .status()
        .expect("a C compiler, which linking this test needed, too");
    assert!(compiled.success());
    program
}

fn start(command: &[String], role: &str, protocol: &str, dir: &Path) -> Command {
    let mut started = Command::new(&command[0]);
    started.args(&command[1..]).args([role, protocol, "conversation"]).env("HAMLYN_DIR", dir);
    started
}

#[test]
fn every_language_understands_every_other() {
    let work = tempfile::tempdir().unwrap();
    let mut peers = vec![
        ("C".to_string(), vec![c_peer(work.path()).display().to_string()]),
        ("Rust".to_string(), vec![built().join("examples/rust_peer").display().to_string()]),
    ];
    for command in std::env::var("HAMLYN_PEERS").unwrap_or_default().split([';', '\n']) {
        let words: Vec<String> = command.split_whitespace().map(String::from).collect();
        if !words.is_empty() {
            peers.push((command.trim().to_string(), words));
        }
    }
    let mut failed = Vec::new();
    let mut pairs = 0;
    for protocol in PROTOCOLS {
        for (receiver, receive) in &peers {
            for (sender, send) in &peers {
                pairs += 1;
                let dir = work.path().join(format!("run-{pairs}"));
                std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
                let mut receiving = start(receive, "recv", protocol, &dir)
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap_or_else(|e| panic!("{receiver}: {e}"));
                let mut said = String::new();
                let output = receiving.stdout.take().unwrap();
                BufReader::new(output).read_line(&mut said).unwrap();
                let sent = said == "ready\n"
                    && start(send, "send", protocol, &dir).status().unwrap().success();
                if !sent {
                    receiving.kill().unwrap();
                }
                // Each side ends by itself within a minute, in any case.
                let received = receiving.wait().unwrap().success();
                if !(sent && received) {
                    failed.push(format!("{protocol}: {sender} to {receiver}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(pairs, PROTOCOLS.len() * peers.len() * peers.len());
}
