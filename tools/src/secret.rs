//! Files that only their owner can read: the secret with which hosts prove their identity.

use anyhow::{Context, Result, bail, ensure};
use hamlyn::control::hosts::key_files;
use hamlyn::control::hosts::keys::SECRET_BYTES;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Makes a file with a secret.
pub fn make_secret(path: &Path, force: bool) -> Result<()> {
    let mut bytes = [0u8; SECRET_BYTES];
    let got = getrandom(&mut bytes, GetRandomFlags::empty()).context("no random bytes")?;
    ensure!(got == bytes.len(), "the system gave {got} random bytes of {}", bytes.len());
    let digits = bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    write(path, format!("{digits}\n").as_bytes(), force)
}

/// What is said of a file that is there.
pub fn is_there(path: &Path) -> String {
    format!("{} is there already; --force writes over it", path.display())
}

/// Writes a file that only its owner can read; it appears complete or not at all.
pub fn write(path: &Path, bytes: &[u8], force: bool) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let parent = path.parent().unwrap_or(Path::new("/"));
    key_files::check_directory(parent).with_context(cannot)?;
    let mut file = tempfile::Builder::new()
        .prefix(".hamlyn-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(parent)
        .with_context(cannot)?;
    file.write_all(bytes).with_context(cannot)?;
    file.as_file().sync_all().with_context(cannot)?;
    let put: std::io::Result<_> = match force {
        true => file.persist(path).map_err(|e| e.error),
        false => file.persist_noclobber(path).map_err(|e| e.error),
    };
    match put {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => bail!(is_there(path)),
        put => put.map(drop).with_context(cannot),
    }
}
