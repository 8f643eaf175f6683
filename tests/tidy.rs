//! The repository checks itself: claims of the documents about the code are compared with the code.
//!
//! Tables that are made from the code (settings, kernel features) are written anew by
//! `TIDY_WRITE=1 cargo test --test tidy`.
#![cfg(not(miri))]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Files below `dir` whose names end in `end`, as paths from the root; none where there is no
/// such folder (the package on its own has no `cli`).
fn files(dir: &str, end: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root().join(dir)];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path: PathBuf = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if path.to_string_lossy().ends_with(end) {
                found.push(path.strip_prefix(root()).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// The source with comments, strings and characters blanked, line by line.
fn code(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let skip = |out: &mut String, text: &str| out.extend(text.chars().filter(|&c| c == '\n'));
    while let Some(c) = rest.chars().next() {
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |i| i + 2)
        } else if let Some(hashes) = raw_string(rest) {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = 2 + hashes;
            rest[body..].find(&close).map_or(rest.len(), |i| body + i + close.len())
        } else if c == '"' {
            string_end(rest)
        } else if rest.starts_with("'\\") {
            2 + rest[3..].find('\'').map_or(0, |i| i + 2)
        } else if c == '\'' && rest.chars().nth(2) == Some('\'') {
            rest.char_indices().nth(3).map_or(rest.len(), |(i, _)| i)
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        skip(&mut out, &rest[..end]);
        out.push(' ');
        rest = &rest[end..];
    }
    out
}

fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

fn string_end(rest: &str) -> usize {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return i + 1,
            _ => {}
        }
    }
    rest.len()
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The rows of the table behind `<!-- table: NAME -->` in a document: cells without backquotes.
fn table(document: &str, name: &str) -> Vec<Vec<String>> {
    let text = read(document);
    let mark = format!("<!-- table: {name} -->");
    let from = text.find(&mark).unwrap_or_else(|| panic!("{document} has no {mark}"));
    let rows = text[from + mark.len()..].trim_start().lines().take_while(|l| l.starts_with('|'));
    rows.skip(2)
        .map(|row| {
            let cells = row.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().replace('`', "")).collect()
        })
        .collect()
}

#[test]
fn every_source_file_says_at_its_head_what_it_is() {
    let folders = ["src", "cli/src", "tests", "tools", "tour", "examples", "capi", "layers"];
    for file in folders.iter().flat_map(|dir| files(dir, ".rs")) {
        assert!(read(&file).starts_with("//! "), "{file} does not begin with `//! `");
    }
}

/// Most lines of a source file beside its tests. A longer one has a second subject: give that a
/// file of its own.
const LINES_MAX: usize = 700;

/// Lines of a source file beside its `mod tests`, with the attributes of that.
fn lines_beside_tests(source: &str) -> usize {
    let lines: Vec<&str> = source.lines().collect();
    let Some(tests) = lines.iter().position(|line| *line == "mod tests {") else {
        return lines.len();
    };
    let attributes = lines[..tests].iter().rev().take_while(|line| line.starts_with("#[")).count();
    let inside = lines[tests..].iter().take_while(|line| **line != "}").count();
    lines.len() - attributes - inside - 1
}

#[test]
fn no_source_file_is_too_long() {
    for file in ["src", "capi/src", "cli/src", "layers", "python/src", "tools/src", "tour/src"]
        .iter()
        .flat_map(|dir| files(dir, ".rs"))
    {
        let lines = lines_beside_tests(&read(&file));
        assert!(lines <= LINES_MAX, "{file} has {lines} lines beside its tests");
    }
}

#[test]
fn lines_are_counted_beside_the_tests() {
    assert_eq!(lines_beside_tests("a\nb\n"), 2);
    assert_eq!(lines_beside_tests("a\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nc\n"), 2);
}

// Tests are built with the feature unstable-internals, which users do not have.
#[test]
fn what_users_read_names_nothing_inside() {
    let folders = [("examples", ".rs"), ("src", ".rs"), ("docs", ".md")];
    let found = folders.iter().flat_map(|(dir, end)| files(dir, end));
    for file in found.chain(["README.md", "python/README.md", "capi/README.md"].map(String::from)) {
        let is_source = file.starts_with("src/");
        for line in read(&file).lines() {
            for inside in ["control", "engine", "interface", "link", "os", "wire"] {
                let names_it = line.contains(&format!("hamlyn::{inside}::"));
                let is_shown = !is_source || line.trim_start().starts_with("//");
                assert!(!(names_it && is_shown), "{file}: {line}");
            }
        }
    }
}

#[test]
fn unsafe_code_is_in_os_and_link_cells_alone() {
    for file in files("src", ".rs") {
        let allowed = file.starts_with("src/os/") || file == "src/link/cells.rs";
        let found = code(&read(&file));
        assert!(allowed || words(&found).all(|word| word != "unsafe"), "{file} has unsafe code");
    }
}

/// Where a variable of the environment may be read, and a library opened.
const ENVIRONMENT: &str = "src/os/environment.rs";
const LIBRARY: &str = "src/os/library.rs";

// A variable is its caller's word, which a program with more rights than its caller does not take; so one
// function reads them all, and one opens every library.
#[test]
fn one_file_reads_the_environment_and_one_opens_libraries() {
    let reads = ["env::var", "env::{", "std::env;", "getenv", "environ"];
    let opens = ["Library::open(Some", "Library::new(", "dlopen", "dlmopen"];
    let folders = ["src", "capi/src", "python/src", "cli/src", "tools/src", "tour/src"];
    let mut seen = BTreeSet::new();
    for file in folders.iter().flat_map(|dir| files(dir, ".rs")) {
        // Tests alone.
        if file == "src/simulated.rs" {
            continue;
        }
        let found = code(&read(&file));
        let found = found.split("\nmod tests {").next().unwrap();
        let has = |name: &str| match name.contains(':') {
            true => found.contains(name),
            false => words(found).any(|word| word == name),
        };
        for (only, names) in [(ENVIRONMENT, &reads[..]), (LIBRARY, &opens[..])] {
            for name in names.iter().filter(|name| has(name)) {
                assert!(file == only, "{file} has {name}, which {only} alone may have");
                seen.insert(only);
            }
        }
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
}

// A ticket that a peer sends leads to that peer, which is looked at where it is read. Attackers of the tour
// believe what suits them.
#[test]
fn the_command_reads_tickets_of_peers_in_one_place() {
    let attackers = ["tour/src/rogue.rs", "tour/src/stranger.rs"];
    let programs = ["cli/src", "tools/src", "tour/src"].iter().flat_map(|dir| files(dir, ".rs"));
    for file in programs.filter(|file| !attackers.contains(&&**file)) {
        let is_place = file == "tools/src/tickets.rs";
        let reads = code(&read(&file)).contains("Ticket::from_bytes");
        assert_eq!(reads, is_place, "{file}: tickets are read in tools/src/tickets.rs");
    }
}

// `unsafe impl Send` is a claim about a type; a test states the claim for the compiler, so that a
// change of the type that breaks it does not compile.
#[test]
fn every_unsafe_impl_is_held_by_an_assertion() {
    let held = read("tests/auto_traits.rs");
    let folders = ["src", "capi/src", "python/src"];
    for file in folders.iter().flat_map(|dir| files(dir, ".rs")) {
        let text = read(&file);
        let source = code(&text);
        for (at, _) in source.match_indices("unsafe impl") {
            let line = source[at..].lines().next().unwrap();
            let name = line.split(" for ").nth(1).and_then(|rest| words(rest).next());
            let name = name.unwrap_or_else(|| panic!("{file}: {line}"));
            let is_held = [&held, &text].iter().any(|text| {
                [format!("assert_impl_all!({name}:"), format!("assert_impl_all!({name}<")]
                    .iter()
                    .any(|assertion| text.contains(assertion))
            });
            assert!(is_held, "{file}: {line}, and nothing asserts what {name} is");
        }
    }
}

/// The names that the code uses at `crate::`: a module, or the modules of a group in braces.
fn crate_paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (i, _) in code.match_indices("crate::") {
        if code[..i].ends_with(|c: char| c == '_' || c == '$' || c.is_alphanumeric()) {
            continue;
        }
        let rest = &code[i + "crate::".len()..];
        let first = |text: &str| words(text).next().unwrap_or_default().to_string();
        match rest.strip_prefix('{') {
            None => found.push(first(rest)),
            Some(group) => {
                let mut depth = 0;
                let mut start = true;
                for (at, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        _ if start && !c.is_whitespace() => {
                            start = false;
                            found.push(first(&group[at..]));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    found
}

// The picture in ARCHITECTURE.md cannot rot: a missing arrow is forbidden, and an unused one is not
// drawn.
#[test]
fn modules_use_what_the_architecture_lets_them_use() {
    let mut allowed = BTreeMap::new();
    for row in table("ARCHITECTURE.md", "modules") {
        let uses: BTreeSet<String> = words(&row[1]).map(String::from).collect();
        allowed.insert(row[0].clone(), uses);
    }
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files("src", ".rs").iter().filter(|file| *file != "src/lib.rs") {
        let module = file["src/".len()..].split(['/', '.']).next().unwrap().to_string();
        let entry = used.entry(module.clone()).or_default();
        for path in crate_paths(&code(&read(file))) {
            assert!(
                allowed.contains_key(&path),
                "{file} names crate::{path}, which is no module: name the module it is from"
            );
            if path != module {
                entry.insert(path);
            }
        }
    }
    assert_eq!(used, allowed, "(left: the code; right: ARCHITECTURE.md)");
}

#[test]
fn what_the_architecture_says_is_in_a_file_is_said_of_a_file_that_there_is() {
    let folders = [
        "bench", "capi", "cli", "examples", "fuzz", "layers", "python", "scripts", "src", "tests",
        "tools", "tour",
    ];
    let text = read("ARCHITECTURE.md");
    let mut named = 0;
    let mut before = String::new();
    for path in text.split('`').skip(1).step_by(2) {
        // A name alone is in the folder of the path before it.
        let is_name = path.ends_with(".rs") && !path.contains(['/', ' ', '*']);
        let path = if is_name { format!("{before}/{path}") } else { path.into() };
        let Some((folder, _)) = path.split_once('/') else { continue };
        // Not a command, nor a pattern; and the package on its own has no `cli`.
        let is_path = !path.contains([' ', '*', ':']) && folders.contains(&folder);
        if is_path && root().join(folder).is_dir() {
            assert!(
                root().join(&path).exists(),
                "ARCHITECTURE.md names {path}, which is not there"
            );
            named += 1;
            before = path.rsplit_once('/').map_or("", |(folder, _)| folder).into();
        }
    }
    assert!(named > 100, "{named} paths were found");
}

/// The files of tagged writes and of datagrams.
const WITHOUT_INSIDES: [&str; 5] = ["tagged", "datagram", "credit", "seated", "tickets"];

/// The names that a file imports from the library, by `use super::` and `use crate::`.
fn imported(source: &str) -> BTreeSet<String> {
    let code = code(source);
    let beside_tests = code.split("#[cfg(").next().unwrap_or_default();
    let uses = beside_tests.split(';').filter_map(|item| item.trim().split_once("use "));
    let ours =
        uses.filter(|(_, path)| ["super::", "crate::"].iter().any(|at| path.starts_with(at)));
    let last = |path: &str| {
        let names = path.rsplit_once('{').map_or(path, |(_, group)| group);
        let names = names.trim_end_matches('}').split(',').map(|name| name.trim().to_string());
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>()
    };
    ours.flat_map(|(_, path)| last(path))
        .map(|name| name.rsplit("::").next().unwrap().into())
        .collect()
}

// A package outside of the library can do everything that these two do. `tests/public_protocols.rs` compiles
// them there, so that they call nothing else either.
#[test]
fn tagged_writes_and_datagrams_import_what_is_public_or_their_own() {
    let listing = read("docs/public-api.txt");
    let public: BTreeSet<&str> = listing.lines().flat_map(words).collect();
    for file in WITHOUT_INSIDES {
        let source = read(&format!("src/protocol/{file}.rs"));
        let own: Vec<String> =
            WITHOUT_INSIDES.iter().map(|own| format!("super::{own}::")).collect();
        let others: String = source
            .lines()
            .filter(|line| !own.iter().any(|own| line.contains(own.as_str())))
            .map(|line| format!("{line}\n"))
            .collect();
        let inside: Vec<_> =
            imported(&others).into_iter().filter(|name| !public.contains(name.as_str())).collect();
        assert!(inside.is_empty(), "{file} imports {inside:?}, which is not public");
    }
    let some = imported("use super::{Connection, Kind};\nuse crate::a::b::C;\nuse std::d::E;\n");
    assert_eq!(some, ["C", "Connection", "Kind"].map(String::from).into());
}

// A page that is not read to its end protects no user: further detail goes to a page of its own.
#[test]
fn pages_for_newcomers_are_short() {
    let mut pages = vec![("README.md".into(), 10 << 10), ("docs/own-protocol.md".into(), 6 << 10)];
    let long = files("docs", ".md").into_iter().filter(|page| page.starts_with("docs/security-"));
    let long = ["ARCHITECTURE.md", "SECURITY.md"].map(String::from).into_iter().chain(long);
    pages.extend(long.map(|page| (page, 20 << 10)));
    assert!(pages.len() > 4, "{pages:?}");
    for (page, most) in pages {
        let bytes = read(&page).len();
        assert!(bytes <= most, "{page} has {bytes} bytes, of {most}");
    }
}

// Assembled, so that this file does not hold what it looks for.
fn forbidden() -> Vec<String> {
    let join = |parts: &[&str]| parts.concat();
    vec![
        join(&["TO", "DO"]),
        join(&["FIX", "ME"]),
        join(&["XX", "X"]),
        join(&["todo", "!("]),
        join(&["unimple", "mented!("]),
        join(&["dbg", "!("]),
        join(&["#[ig", "nore"]),
        // Paths of one machine, and names of registries.
        join(&["/wo", "rk/"]),
        join(&["/ro", "ot/"]),
        join(&["/ho", "me/"]),
        join(&["crates", ".io"]),
        join(&["docker", ".io"]),
        join(&["pypi", ".org"]),
        // One word for a thing: the papers'.
        join(&["mail", "box"]),
        join(&["white", "list"]),
        join(&["black", "list"]),
        // Claims that measure nothing.
        join(&["blazing", "ly"]),
        join(&["lightning", "-fast"]),
    ]
}

#[test]
fn no_file_holds_a_forbidden_word() {
    let folders = [
        ("src", ".rs"),
        ("cli", ".rs"),
        ("tools", ".rs"),
        ("tour", ".rs"),
        ("tests", ".rs"),
        ("examples", ".rs"),
        ("fuzz", ".rs"),
        ("capi", ".rs"),
        ("capi", ".c"),
        ("capi", ".h"),
        ("capi", ".cpp"),
        ("capi", ".hpp"),
        ("capi", ".in"),
        ("capi", ".md"),
        ("capi", ".sh"),
        ("capi", ".toml"),
        ("layers", ".rs"),
        ("layers", ".c"),
        ("layers", ".h"),
        ("layers", ".md"),
        ("layers", ".sh"),
        ("layers", ".toml"),
    ];
    let mut all: Vec<String> = folders.iter().flat_map(|(dir, end)| files(dir, end)).collect();
    all.extend(files("docs", ".md"));
    all.extend(files("scripts", ".sh"));
    for entry in fs::read_dir(root()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") || name.ends_with(".toml") || name == "Makefile" {
            all.push(name);
        }
    }
    all.retain(|file| !file.contains("/target/"));
    for file in all {
        let text = read(&file);
        for word in forbidden() {
            assert!(!text.contains(&word), "{file} holds {word:?}");
        }
    }
}

// People read a program's messages: `Some(607)` or `Misbehaved("..")` in a sentence is not for
// them. Texts that a user gave are quoted, and `{:?}` does that.
#[test]
fn sentences_of_errors_quote_texts_and_hold_no_other_debug_output() {
    let texts = ["{text:?}", "{value:?}", "{found:?}"];
    // Where the only value is a text or a character.
    let alone = [
        "src/control/directories.rs",
        "src/control/hosts/name.rs",
        "src/control/names.rs",
        "src/protocol/seed.rs",
    ];
    for file in files("src", ".rs") {
        let source = read(&file);
        for sentence in source.split("#[error(").skip(1) {
            let mut sentence = sentence.split(")]").next().unwrap().to_string();
            texts.iter().for_each(|text| sentence = sentence.replace(text, ""));
            if alone.contains(&file.as_str()) {
                sentence = sentence.replace("{0:?}", "");
            }
            assert!(!sentence.contains("?}"), "{file}: {sentence}");
        }
    }
}

// Those of the command and of the C library, likewise.
#[test]
fn sentences_that_users_read_quote_texts_and_hold_no_other_debug_output() {
    let texts = ["{text:?}", "{value:?}", "{found:?}", "{name:?}", "{line:?}"];
    let says = [
        "anyhow",
        "bail",
        "ensure",
        "eprintln",
        "format",
        "format_args",
        "println",
        "write",
        "writeln",
    ];
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut seen = 0;
    for file in
        ["cli/src", "capi/src", "tools/src", "tour/src"].iter().flat_map(|dir| files(dir, ".rs"))
    {
        let source = read(&file);
        let source = source.split("\nmod tests {").next().unwrap();
        // From one macro to the next.
        let mut parts = source.split("!(");
        let mut before = parts.next().unwrap();
        for part in parts {
            let called = before.rsplit(|c| !is_word(c)).next().unwrap();
            before = part;
            if !says.contains(&called) {
                continue;
            }
            seen += 1;
            let said = part.split(");\n").next().unwrap();
            let said = texts.iter().fold(said.to_string(), |said, text| said.replace(text, ""));
            assert!(!said.contains(":?}") && !said.contains(":#?}"), "{file}: {called}!({said}");
        }
    }
    assert!(seen > 500, "{seen}");
}

// An error printed with its sources (anyhow's `{:#}`) has each sentence once: a reason that is in
// the sentence is no source, too. Only an error without a sentence of its own (`transparent`) has
// one.
#[test]
fn what_an_error_says_is_not_its_source_too() {
    let mut seen = 0;
    let folders = [
        "src",
        "cli/src",
        "capi/src",
        "layers/fm/src",
        "layers/clan/src",
        "layers/vmmc/src",
        "layers/svm/src",
        "layers/rpc/src",
        "python/src",
        "tools/src",
        "tour/src",
    ];
    for file in folders.iter().flat_map(|at| files(at, ".rs")) {
        let text = code(&read(&file));
        for behind in text.split("#[error(").skip(1) {
            let Some((sentence, mut behind)) = behind.split_once(")]") else { continue };
            if sentence == "transparent" {
                continue;
            }
            while behind.trim_start().starts_with("#[") {
                behind = behind.split_once(']').unwrap().1;
            }
            // The fields: what stands in the first brackets, unless there are none.
            let has_none = behind.find([',', ';']).unwrap_or(behind.len());
            let fields = match behind.find(['{', '(']).filter(|at| *at < has_none) {
                Some(at) if behind[at..].starts_with('{') => {
                    behind[at..].split('}').next().unwrap()
                }
                Some(at) => behind[at..].split_once("),").map_or(&behind[at..], |(own, _)| own),
                None => "",
            };
            seen += 1;
            for source in ["#[from]", "#[source]", " source:"] {
                assert!(!fields.contains(source), "{file}: {sentence}: {source}");
            }
        }
    }
    assert!(seen > 100, "{seen}");
}

// CONTRIBUTING.md names every step, its place and its purpose.
#[test]
fn contributing_md_names_every_step_of_the_tests() {
    // The package on its own has no scripts that run.
    if !root().join("scripts/test.sh").exists() {
        return;
    }
    let script = read("scripts/test.sh");
    let list = |name: &str| -> Vec<String> {
        let start = format!("{name}='");
        let line = script.lines().find_map(|line| line.strip_prefix(&start)).expect("a list");
        words(line).map(String::from).collect()
    };
    let mut in_script = Vec::new();
    for (of, name) in
        [("test", "TEST"), ("test", "TEST_BESIDE"), ("deep", "DEEP"), ("deep", "DEEP_BESIDE")]
    {
        for step in list(name) {
            let start = format!("# {step}: ");
            let what = script.lines().find_map(|line| line.strip_prefix(&start));
            let what = what.expect("what the step does");
            in_script.push(vec![step, of.to_string(), what.to_string()]);
        }
    }
    assert_eq!(table("CONTRIBUTING.md", "steps"), in_script, "(left: the document)");
}

// Every refusal and every forced end that is counted is in the table of docs/refusals.md, and that
// table has no other.
#[test]
fn docs_refusals_md_names_every_counter_of_a_refusal() {
    let mut in_code: BTreeSet<String> =
        hamlyn::interface::Refusal::ALL.iter().map(|r| r.counter_name().into()).collect();
    let interface = hamlyn::interface::Counters::default().snapshot();
    let control = control_counters();
    in_code.extend(interface.iter().map(|(name, _)| name.to_string()).chain(control).filter(
        |name| {
            name == "packets_discarded"
                || name.starts_with("links_closed_")
                || name.contains("refused_")
                || name.contains("closed_violation")
                || name.contains("closed_by_us_violation")
        },
    ));
    let in_table: BTreeSet<String> =
        table("docs/refusals.md", "refusals").into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(in_table, in_code, "(left: docs/refusals.md; right: the code)");
}

/// Rows whose test is still to be written. Take a row out when its test is there.
const WITHOUT_A_TEST: &[&str] = &[];

// A refusal that no test has ever brought about protects nothing for certain.
#[test]
fn every_counter_of_a_refusal_is_looked_at_by_a_test() {
    let mut tests = String::new();
    for file in files("tests", ".rs").iter().filter(|file| *file != "tests/tidy.rs") {
        tests += &read(file);
    }
    for file in files("src", ".rs") {
        tests += read(&file).split_once("\nmod tests {").map_or("", |(_, tests)| tests);
    }
    let code: Vec<_> = tests.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let named: BTreeSet<&str> = code.iter().flat_map(|line| words(line)).collect();
    // `refusals.rs` goes through all of them by their kind, and compares the counter of that name.
    let by_kind = read("tests/refusals.rs");
    let provoked = hamlyn::interface::Refusal::ALL
        .iter()
        .filter(|refusal| by_kind.contains(&format!("Refusal::{refusal:?} => ")))
        .map(|refusal| refusal.counter_name());
    let looked_at: BTreeSet<&str> = named.into_iter().chain(provoked).collect();
    let without: BTreeSet<String> = table("docs/refusals.md", "refusals")
        .into_iter()
        .map(|row| row[0].clone())
        .filter(|name| !looked_at.contains(name.trim_start_matches("control.")))
        .collect();
    let listed: BTreeSet<String> = WITHOUT_A_TEST.iter().map(|name| name.to_string()).collect();
    assert_eq!(without, listed, "(left: rows that no test names; right: those listed as such)");
}

// A function of the C library that no test and no example calls may do anything.
#[test]
fn every_function_of_the_c_library_is_called_by_a_test_or_an_example() {
    let called_in = |text: &str| -> BTreeSet<String> {
        let is_end = |c: char| !c.is_alphanumeric() && c != '_';
        let calls = text.match_indices('(').filter_map(|(at, _)| text[..at].rsplit(is_end).next());
        calls.filter(|name| name.starts_with("h_")).map(str::to_string).collect()
    };
    let without_comments = |file: &str| -> String {
        let text = read(file);
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let declared = called_in(&without_comments("capi/include/hamlyn.h"));
    let mut called = BTreeSet::new();
    for folder in ["capi/tests", "capi/examples"] {
        for ending in [".c", ".h"] {
            for file in files(folder, ending) {
                called.extend(called_in(&without_comments(&file)));
            }
        }
    }
    let without: Vec<_> = declared.difference(&called).collect();
    assert!(without.is_empty(), "no C test or example calls {without:?}");
    assert!(declared.len() > 150, "the header was not read: {declared:?}");
}

/// Functions of the public interface, by their paths, as docs/public-api.txt lists them. Not those
/// of an implementation of a trait, which is counted itself where it is ours, of a type that
/// bitflags makes, and those that set a public field of the same name, of which one example shows
/// how it is done.
fn public_functions(listing: &str) -> BTreeSet<String> {
    let lines: Vec<String> = listing.lines().map(without_generics).collect();
    let made_by_bitflags: BTreeSet<_> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("impl bitflags::traits::Flags for "))
        .collect();
    let mut found = BTreeSet::new();
    let mut is_of_trait = false;
    for line in &lines {
        if line.starts_with("impl") {
            is_of_trait = line.contains(" for ");
        }
        let qualified = line.strip_prefix("pub ").and_then(|rest| rest.split_once("fn "));
        let Some((qualifiers, rest)) = qualified else {
            is_of_trait &= ["impl", "pub const ", "pub type "].iter().any(|s| line.starts_with(s));
            continue;
        };
        let path = rest.split('(').next().unwrap();
        assert!(words(qualifiers).all(|word| ["async", "const", "unsafe"].contains(&word)));
        let Some((of, _)) = path.rsplit_once("::") else { continue };
        let sets_a_field = lines.iter().any(|line| line.starts_with(&format!("pub {path}: ")));
        if (!is_of_trait || type_of(path).is_none())
            && !made_by_bitflags.contains(of)
            && !sets_a_field
        {
            found.insert(path.to_string());
        }
    }
    found
}

/// The line without what stands in angle brackets.
fn without_generics(line: &str) -> String {
    let mut depth = 0;
    let mut kept = String::new();
    for c in line.replace("->", "=").chars() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ if depth == 0 => kept.push(c),
            _ => {}
        }
    }
    kept
}

/// The type or trait that a function is of, by its path; none of a module's.
fn type_of(path: &str) -> Option<&str> {
    let of = path.rsplit("::").nth(1)?;
    (!of.starts_with(char::is_lowercase)).then_some(of)
}

/// A program or block to run or copy: its calls, and the types that it names.
struct Example {
    calls: BTreeSet<String>,
    words: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl Example {
    fn new(source: &str, names: BTreeSet<String>) -> Self {
        let source = code(source);
        let mut calls = BTreeSet::new();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        for name in words(&source) {
            let at = name.as_ptr() as usize - source.as_ptr() as usize;
            let (before, after) = (source[..at].trim_end(), &source[at + name.len()..]);
            let is_path = before.ends_with("::");
            let is_method = before.ends_with('.') && after.starts_with(['(', ':']);
            let is_written =
                before.ends_with("fn") && !before.trim_end_matches("fn").ends_with(is_word);
            if is_path || is_method || is_written {
                calls.insert(name.to_string());
            }
        }
        Self { calls, words: words(&source).map(String::from).collect(), names }
    }

    fn shows(&self, path: &str) -> bool {
        let name = path.rsplit("::").next().unwrap();
        match type_of(path) {
            Some(of) => self.calls.contains(name) && self.names.contains(of),
            None => self.words.contains(name),
        }
    }
}

/// The blocks of Rust in a text of Markdown.
fn blocks(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.trim_start().strip_prefix("```") else { continue };
        let inside = lines.by_ref().take_while(|line| !line.trim_start().starts_with("```"));
        let inside: Vec<_> = inside.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
        if kind.split(',').all(|word| ["", "rust", "no_run"].contains(&word)) {
            found.push(inside.join("\n"));
        }
    }
    found
}

/// Each comment that is documentation, of one thing, without its slashes.
fn doc_comments(source: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in source.lines() {
        let line = line.trim_start();
        match line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
            Some(text) => {
                let comment = found.last_mut().unwrap();
                *comment += text.strip_prefix(' ').unwrap_or(text);
                comment.push('\n');
            }
            None => found.push(String::new()),
        }
    }
    found
}

/// Every example: in documentation, which tells of the types that it names and of those that its
/// file implements something for; a program; a block of the README or the guide.
fn examples() -> Vec<Example> {
    let names = |text: &str| words(text).map(String::from).collect::<BTreeSet<_>>();
    let mut found = Vec::new();
    for file in files("src", ".rs") {
        let source = read(&file);
        let implemented: BTreeSet<String> =
            code(&source).lines().filter(|line| line.starts_with("impl")).flat_map(names).collect();
        for comment in doc_comments(&source) {
            let told = &names(&comment) | &implemented;
            found.extend(blocks(&comment).iter().map(|block| Example::new(block, told.clone())));
        }
    }
    for file in files("examples", ".rs") {
        let source = read(&file);
        found.push(Example::new(&source, names(&source)));
    }
    for page in ["README.md", "docs/guide.md", "docs/own-protocol.md"] {
        found.extend(blocks(&read(page)).iter().map(|block| Example::new(block, names(block))));
    }
    found
}

// Every function has an example to look up.
#[test]
fn every_public_function_is_shown_by_an_example() {
    let listed = public_functions(&read("docs/public-api.txt"));
    assert!(listed.len() > 500, "the listing was not read: {listed:?}");
    let examples = examples();
    let is_shown = |path: &&String| examples.iter().any(|example| example.shows(path));
    let without: Vec<_> = listed.iter().filter(|path| !is_shown(path)).collect();
    assert!(without.is_empty(), "no example calls {without:?}");
}

#[test]
fn public_functions_are_told_from_those_of_traits_and_from_setters() {
    let listing = "pub mod a\npub struct a::S<T>\npub a::S::b: u8\nimpl<T> a::S<T>\n\
        pub fn a::S<T>::b(self, u8) -> Self\npub async fn a::S<T>::c<F: Fn(&T) -> u8>(&self, F)\n\
        impl core::clone::Clone for a::S<u8>\npub type a::S::X = u8\npub fn a::S<u8>::clone(&self)\n\
        pub fn a::d()\npub trait a::R\npub fn a::R::e(&self)\nimpl bitflags::traits::Flags for a::F\n\
        impl a::F\npub const fn a::F::all() -> Self\n";
    let found: Vec<String> = public_functions(listing).into_iter().collect();
    assert_eq!(found, ["a::R::e", "a::S::c", "a::d"]);
}

#[test]
fn an_example_shows_what_it_calls_of_the_types_that_it_names() {
    let source = "/// Of [`S`].\n///\n/// ```\n/// # s.b();\n/// s.c; // s.d()\n/// ```\nfn f() {}\n\
        /// ```text\n/// s.e()\n/// ```\n";
    let comments = doc_comments(source);
    let found: Vec<_> = comments.iter().flat_map(|comment| blocks(comment)).collect();
    assert_eq!(found, ["s.b();\ns.c; // s.d()"]);
    let example = Example::new(&found[0], BTreeSet::from(["S".to_string()]));
    let shown = ["a::S::b", "a::T::b", "a::S::c", "a::S::d"].map(|path| example.shows(path));
    assert_eq!(shown, [true, false, false, false]);
}

/// Functions of hamlyn.h that hamlyn.hpp does without, each with the reason.
const NOT_IN_HPP: &[(&str, &str)] = &[];

// C++ programs have everything that the C library can do.
#[test]
fn hamlyn_hpp_uses_every_function_of_hamlyn_h() {
    let functions = |file: &str| -> BTreeSet<String> {
        let found = code(&read(file));
        words(&found).filter(|name| name.starts_with("h_")).map(str::to_string).collect()
    };
    let header = code(&read("capi/include/hamlyn.h"));
    let is_end = |c: char| !c.is_alphanumeric() && c != '_';
    let calls = header.match_indices('(').filter_map(|(at, _)| header[..at].rsplit(is_end).next());
    let declared: BTreeSet<_> =
        calls.filter(|name| name.starts_with("h_")).map(str::to_string).collect();
    assert!(declared.len() > 150, "the header was not read: {declared:?}");
    let used = functions("capi/include/hamlyn.hpp");
    let without: Vec<_> = declared.difference(&used).map(String::as_str).collect();
    let listed: Vec<_> = NOT_IN_HPP.iter().map(|(name, _)| *name).collect();
    assert_eq!(without, listed, "(left: not in hamlyn.hpp; right: those listed as such)");
}

/// The names in the `counters!` table of the control plane.
fn control_counters() -> Vec<String> {
    let source = code(&read("src/control/machine/counters.rs"));
    let from = source.find("\ncounters! {").expect("the control plane's counters") + 11;
    let to = from + source[from..].find('}').unwrap();
    words(&source[from..to]).map(|name| format!("control.{name}")).collect()
}

fn made_from_code(document: &str, name: &str, lines: Vec<String>) {
    let text = read(document);
    let mark = format!("<!-- table: {name} -->\n");
    let from = text.find(&mark).unwrap_or_else(|| panic!("{document} has no {mark}")) + mark.len();
    let is_row = |line: &&str| line.starts_with('|');
    let length: usize = text[from..].split_inclusive('\n').take_while(is_row).map(str::len).sum();
    let new = lines.join("\n") + "\n";
    if text[from..from + length] == new {
        return;
    }
    if std::env::var_os("TIDY_WRITE").is_some() {
        fs::write(root().join(document), [&text[..from], &new, &text[from + length..]].concat())
            .unwrap();
    } else {
        panic!("{document} differs from the code; TIDY_WRITE=1 cargo test --test tidy writes it");
    }
}

#[cfg(feature = "os")]
#[test]
fn the_table_of_settings_is_that_of_the_code() {
    let mut lines = vec![
        "| setting | variable | default | allowed | what it does |".to_string(),
        "| --- | --- | --- | --- | --- |".to_string(),
    ];
    for s in hamlyn::Config::default().settings() {
        let value = if s.value.is_empty() { "(not set)".into() } else { format!("`{}`", s.value) };
        lines.push(format!(
            "| `{}` | `{}` | {value} | {} | {} |",
            s.name, s.variable, s.allowed, s.meaning
        ));
    }
    made_from_code("docs/settings.md", "settings", lines);
}

#[cfg(feature = "os")]
#[test]
fn the_table_of_kernel_features_is_that_of_the_code() {
    let mut lines = vec![
        "| feature | since Linux | used for | without it |".to_string(),
        "| --- | --- | --- | --- |".to_string(),
    ];
    for row in hamlyn::os::sys::KernelFeatures::detect().rows {
        let (name, since) = (row.name, row.since);
        lines.push(format!("| {name} | {since} | {} | {} |", row.used_for, row.otherwise));
    }
    made_from_code("docs/kernels.md", "features", lines);
}

#[test]
fn the_lexer_blanks_comments_and_strings_and_nothing_else() {
    let source = "a // unsafe\n\"un\\\"safe\" b '\"' 'x' r#\"un\"safe\"# 'life: /* unsafe */ c";
    let left: Vec<_> = code(source).split_whitespace().map(String::from).collect();
    assert_eq!(left, ["a", "b", "'life:", "c"]);
}

#[test]
fn paths_are_found_alone_and_in_groups() {
    let source = "use crate::a::B; use crate::{b::{C, D}, e}; $crate::x; pub(crate) fn f()";
    assert_eq!(crate_paths(source), ["a", "b", "e"]);
}
