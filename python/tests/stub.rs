//! `hamlyn/_hamlyn.pyi` matches the module: pyo3 writes the classes, methods, arguments and types
//! of the source into builds for tests. This program compares; with `TIDY_WRITE=1` it writes.
//! `scripts/test.sh python` runs it, after
//! `cargo build --workspace --features hamlyn/serde,hamlyn/tokio,hamlyn/tls,hamlyn/libfabric --lib --examples`.
//!
//! This program adds `__buffer__`, which pyo3 does not report, and the imports of the types in
//! `signature = (data: "Buffer")`.

use pyo3_introspection::model::{Argument, Arguments, Class, Expr, Function};
use pyo3_introspection::{introspect_cdylib, module_stub_files};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HEAD: &str = "\
\"\"\"Hamlyn's objects; see the package `hamlyn`. Made from the source: do not edit.\"\"\"

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Unpack

from ._reconnect import ReconnectPolicy
from ._types import Access, AnyArray, Buffer, DType, Event, Settings, Shape, WhenSlow
";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The module that was built with this program: beside the folder of examples.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().join("lib_hamlyn.so")
}

/// The classes that have the buffer protocol: those whose source says how it is had.
fn with_buffers() -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("src")).unwrap().flatten() {
        let source = std::fs::read_to_string(entry.path()).unwrap();
        for (at, _) in source.match_indices("fn __getbuffer__(") {
            let (_, class) = source[..at].rsplit_once("\nimpl ").unwrap();
            found.push(class.split_whitespace().next().unwrap().to_owned());
        }
    }
    found
}

fn named(name: &str) -> Expr {
    Expr::Name { id: name.into() }
}

fn argument(name: &str, of: Option<&str>) -> Argument {
    Argument { name: name.into(), default_value: None, annotation: of.map(named) }
}

fn add_buffer(class: &mut Class) {
    let function = |name: &str, argument: Argument, returns: Expr| Function {
        name: name.into(),
        decorators: Vec::new(),
        arguments: Arguments {
            positional_only_arguments: vec![self::argument("self", None), argument],
            arguments: Vec::new(),
            vararg: None,
            keyword_only_arguments: Vec::new(),
            kwarg: None,
        },
        returns: Some(returns),
        is_async: false,
        docstring: None,
    };
    let none = Expr::Constant { value: pyo3_introspection::model::Constant::None };
    let (flags, buffer) = (argument("flags", Some("int")), argument("buffer", Some("memoryview")));
    class.methods.push(function("__buffer__", flags, named("memoryview")));
    class.methods.push(function("__release_buffer__", buffer, none));
}

/// `data: "Buffer | None" = None` without the quotes: the names of types are imported, so that none
/// needs them.
fn without_quotes(line: &str) -> String {
    if !line.trim_start().starts_with("def ") {
        return line.to_owned();
    }
    let (mut out, mut rest) = (String::new(), line);
    while let Some((at, length)) =
        [": \"", "-> \""].iter().filter_map(|mark| Some((rest.find(mark)?, mark.len()))).min()
    {
        let (before, after) = rest.split_at(at + length);
        let (text, behind) = after.split_once('"').unwrap();
        out += before.strip_suffix('"').unwrap();
        out += text;
        rest = behind;
    }
    out + rest
}

fn made() -> String {
    let mut module = introspect_cdylib(library(), "_hamlyn").unwrap_or_else(|e| {
        panic!(
            "{}: {e:#}. Was it built without tests since? Then `touch python/src/lib.rs`",
            library().display()
        )
    });
    // It is in the head.
    module.docstring = None;
    let with_buffers = with_buffers();
    let mut count = 0;
    for class in &mut module.classes {
        if with_buffers.contains(&class.name) {
            add_buffer(class);
            count += 1;
        }
    }
    assert_eq!(count, with_buffers.len(), "not all of {with_buffers:?} are classes");
    let files = module_stub_files(&module);
    let text = files.values().next().unwrap();
    let lines: Vec<String> = text.lines().map(without_quotes).collect();
    format!("{HEAD}{}\n", lines.join("\n"))
}

fn main() -> ExitCode {
    let made = made();
    // An item without a type would be unknown to type checkers, without a warning.
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_unknown = |line: &&str| {
        let code = line.trim_start().starts_with("def ");
        code && line.split(|c| !is_word(c)).any(|word| word == "Any" || word == "Incomplete")
    };
    let unknown: Vec<&str> = made.lines().filter(is_unknown).collect();
    if !unknown.is_empty() {
        eprintln!("something has no type; give it one in its `signature`:\n{}", unknown.join("\n"));
        return ExitCode::FAILURE;
    }
    let path = root().join("hamlyn/_hamlyn.pyi");
    if std::env::var_os("TIDY_WRITE").is_some() {
        std::fs::write(&path, made).unwrap();
        return ExitCode::SUCCESS;
    }
    if std::fs::read_to_string(&path).unwrap_or_default() == made {
        return ExitCode::SUCCESS;
    }
    eprintln!("python/hamlyn/_hamlyn.pyi differs from the source; TIDY_WRITE=1 writes it");
    ExitCode::FAILURE
}
