//! `include/hamlyn.h` is cbindgen's output for the source, with the functions that repeat for each
//! protocol, which come from the macros of `src/common.rs` (`expand`). `TIDY_WRITE=1` writes it.

mod expand;

use expand::Macros;
use std::path::{Path, PathBuf};

/// In the order in which a reader of the header meets them.
const SOURCES: &[&str] = &[
    "boundary",
    "node",
    "memory",
    "tickets",
    "links",
    "messages",
    "seeds",
    "tagged",
    "datagram",
    "stream",
    "call",
    "reconnect",
    "group",
    "publish",
    "byte_stream",
    "any",
    "aperture",
    "job",
    "log",
    "directory",
];

/// A source, with its functions that come from macros; how many calls of macros it has.
fn expanded(path: &Path) -> (String, usize) {
    let common = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/common.rs");
    let macros = Macros::of(&std::fs::read_to_string(common).unwrap());
    macros.expand(&std::fs::read_to_string(path).unwrap())
}

fn the_header_is_that_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in SOURCES {
        let (source, calls) = expanded(&root.join(format!("src/{name}.rs")));
        let path = dir.path().join(format!("{name}.rs"));
        std::fs::write(&path, source).unwrap();
        // A source without expansions is used itself: cbindgen's messages name its lines.
        let own = root.join(format!("src/{name}.rs"));
        builder = builder.with_src(if calls > 0 { path } else { own });
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path: PathBuf = root.join("include/hamlyn.h");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    if std::env::var_os("TIDY_WRITE").is_some() {
        std::fs::write(&path, made).unwrap();
    } else {
        assert!(
            found == made,
            "include/hamlyn.h differs from the source; \
             TIDY_WRITE=1 cargo test -p hamlyn-capi --test header writes it"
        );
    }
}

// A source that is missing above would leave its functions out of the header without a word.
fn every_exported_function_is_in_the_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(root.join("include/hamlyn.h")).unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(root.join("src")).unwrap().flatten() {
        // The definitions themselves have names of fragments.
        if entry.file_name() == "common.rs" {
            continue;
        }
        let source = expanded(&entry.path()).0.replace(' ', "");
        for (at, mark) in source.match_indices("extern\"C\"fn") {
            let after = &source[at + mark.len()..];
            let name = &after[..after.find('(').unwrap()];
            assert!(header.contains(&format!("{name}(")), "hamlyn.h has no {name}");
            count += 1;
        }
    }
    assert!(count > 150, "only {count} exported functions found");
}

// One test, because the second part reads the file that the first may write.
#[test]
fn the_header_is_that_of_the_source_and_has_every_exported_function() {
    the_header_is_that_of_the_source();
    every_exported_function_is_in_the_header();
}
