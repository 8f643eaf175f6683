//! `include/hamlyn.h` is what cbindgen makes of the source. `TIDY_WRITE=1` writes it.

use std::path::{Path, PathBuf};

/// In the order in which a reader of the header meets them.
const SOURCES: &[&str] = &[
    "boundary", "node", "memory", "tickets", "links", "messages", "seeds", "tagged", "datagram",
    "stream", "call", "group", "any", "aperture",
];

fn the_header_is_that_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in SOURCES {
        builder = builder.with_src(root.join(format!("src/{name}.rs")));
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
        let source = std::fs::read_to_string(entry.path()).unwrap();
        for (_, after) in
            source.match_indices("#[unsafe(no_mangle)]").map(|(i, m)| (i, &source[i + m.len()..]))
        {
            let from = after.find("fn ").unwrap() + 3;
            let name = &after[from..from + after[from..].find('(').unwrap()];
            assert!(header.contains(&format!("{name}(")), "hamlyn.h has no {name}");
            count += 1;
        }
    }
    assert!(count > 40, "only {count} exported functions found");
}

// One test, because the second part reads what the first may write.
#[test]
fn the_header_is_that_of_the_source_and_has_every_exported_function() {
    the_header_is_that_of_the_source();
    every_exported_function_is_in_the_header();
}
