//! Instructions of rows of work, against a committed table: a part of each layer's `bench/budgets.rs`.
//!
//! The program runs itself again under valgrind's callgrind, which counts the instructions of each row, and
//! compares the counts with the package's `bench/budgets.txt`; `-- --write` writes that file. Counts are
//! exact on a busy machine; time is not measured here. Without valgrind: exit status 99, and a sentence.
//!
//! ```text
//!   this program -----> valgrind --tool=callgrind this program --measure
//!                           measured(work)  counts while it runs, as often as a row calls it
//!                           row_ends()      writes the row's count
//!   compare <---------- one file of counts for each row
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A row: its name, the most instructions wanted beyond those of the named row, or by themselves, and the
/// work that is counted.
pub type Row = (&'static str, Option<(f64, Option<&'static str>)>, &'static str);

/// A count above the table's by more than this share fails.
const TOLERANCE: f64 = 0.05;

/// callgrind counts the instructions of this function, and of all that it calls.
#[inline(never)]
fn measured(work: &mut dyn FnMut() -> Outcome) -> Outcome {
    // Not a jump: counting ends where this function returns.
    std::hint::black_box(work())
}

pub fn counted_if(is_counted: bool, work: &mut dyn FnMut() -> Outcome) -> Outcome {
    if is_counted { measured(work) } else { work() }
}

/// callgrind writes what was counted.
#[inline(never)]
pub fn row_ends() {
    std::hint::black_box(());
}

/// One count for each row, which does its work so many times.
fn counts(rows: &[Row], times: u64) -> Outcome<Vec<f64>> {
    let out = tempfile::tempdir()?;
    let (file, log) = (out.path().join("counts"), out.path().join("valgrind.txt"));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet", "--collect-atstart=no"]);
    valgrind.arg(concat!("--toggle-collect=", module_path!(), "::measured"));
    valgrind.arg(concat!("--dump-after=", module_path!(), "::row_ends"));
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    // Valgrind of 2022 says five lines about each system call that is younger than it.
    valgrind.arg(format!("--log-file={}", log.display()));
    valgrind.env("HAMLYN_DIR", out.path()).env("HAMLYN_WAIT_MODE", "polled");
    let status = valgrind.arg(std::env::current_exe()?).arg("--measure").status()?;
    if !status.success() {
        return Err(format!("valgrind: {status}: {}", std::fs::read_to_string(log)?).into());
    }
    let total = |row: usize| -> Outcome<f64> {
        let text = std::fs::read_to_string(file.with_extension((row + 1).to_string()))?;
        let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let totals: f64 = totals.ok_or("a file of counts without totals")?.trim().parse()?;
        Ok(totals / times as f64)
    };
    (0..rows.len()).map(total).collect()
}

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/budgets.txt")
}

fn read_table() -> Outcome<BTreeMap<String, f64>> {
    let text = std::fs::read_to_string(table())?;
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    rows.map(|line| {
        let mut cells = line.split_whitespace();
        let (Some(name), Some(count)) = (cells.next(), cells.next()) else {
            return Err("a row has a name and a count".into());
        };
        Ok((name.to_owned(), count.parse()?))
    })
    .collect()
}

fn write_table(rows: &[Row], counts: &[f64]) -> Outcome {
    let mut text = String::from(concat!(
        "# Instructions (callgrind, release profile): written by\n# `cargo bench -p ",
        env!("CARGO_PKG_NAME"),
        " --bench ",
        env!("CARGO_CRATE_NAME"),
        " -- --write`; without it, the same\n# command fails above them by 5 %. `most` is the number wanted.\n",
        "# row          instructions           most  counted\n",
    ));
    for (row, count) in rows.iter().zip(counts) {
        let (most, _) = most(row, rows, counts);
        text += &format!("{:<16}{count:>11.1}{most:>15}  {}\n", row.0, row.2);
    }
    Ok(std::fs::write(table(), text)?)
}

/// The most that is wanted of a row, in words and as a count.
fn most((_, wanted, _): &Row, rows: &[Row], counts: &[f64]) -> (String, Option<f64>) {
    match wanted {
        None => ("-".into(), None),
        Some((most, None)) => (format!("{most}"), Some(*most)),
        Some((more, Some(than))) => {
            let at = rows.iter().position(|row| row.0 == *than).unwrap_or(0);
            (format!("{than}+{more}"), Some(counts[at] + more))
        }
    }
}

fn check(rows: &[Row], times: u64, writes: bool) -> Outcome<bool> {
    // Addresses differ from run to run, and a few rows by some instructions for it: the least counts.
    let mut counts = counts(rows, times)?;
    if writes {
        for (least, count) in counts.iter_mut().zip(self::counts(rows, times)?) {
            *least = least.min(count);
        }
        write_table(rows, &counts)?;
    }
    let (table, mut within) = (read_table()?, true);
    println!("{:<16}{:>10}{:>10}{:>15}", "row", "counted", "table", "most");
    for (row, count) in rows.iter().zip(&counts) {
        let budget = *table.get(row.0).ok_or(format!("{} is not in the table", row.0))?;
        let exceeds = *count > budget * (1.0 + TOLERANCE);
        within &= !exceeds;
        let (words, most) = most(row, rows, &counts);
        let misses = if most.is_some_and(|most| *count > most) { "  missed" } else { "" };
        let more = if exceeds { "  MORE than the table allows" } else { "" };
        println!("{:<16}{count:>10.1}{budget:>10.1}{words:>15}{misses}{more}", row.0);
    }
    Ok(within)
}

/// The whole program: `measure` does the work of the rows, in their order.
pub fn run(rows: &[Row], times: u64, measure: fn() -> Outcome) -> ExitCode {
    let has = |name: &str| std::env::args().any(|argument| argument == name);
    let done = match () {
        () if has("--measure") => measure().map(|()| true),
        () if Command::new("valgrind").arg("--version").output().is_err() => {
            eprintln!("there is no valgrind: no instruction was counted");
            return ExitCode::from(99);
        }
        () => check(rows, times, has("--write")),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
