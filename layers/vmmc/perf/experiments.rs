//! Which runs make which row, beside the paper's values.
//!
//! Times are of two processes on two processors, medians of runs in turn; counts of sixteen, which no time of
//! this machine could stand for.

use crate::programs::{Asked, PROGRAMS, Program, Shown, Workshop};
use crate::{Outcome, Paper, chart};
use serde::Serialize;
use std::io::Write;

const DELIBERATE: Asked = Asked { ranks: 2, form: "deliberate", meddle: "", ring: 32 << 10 };
const AUTOMATIC: Asked = Asked { form: "automatic", ..DELIBERATE };

#[derive(Serialize)]
pub struct Row {
    /// The paper's table, figure or section.
    pub of: &'static str,
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    /// The paper's value, in the same unit.
    pub paper: Option<f64>,
}

/// Values of the paper that a program has.
struct Then {
    syscall: Option<f64>,
    interrupt: Option<f64>,
    notified: f64,
    /// Automatic over deliberate, as speed.
    automatic: Option<f64>,
    apart: Option<f64>,
}

fn then(name: &str) -> Then {
    let (syscall, interrupt, notified) = match name {
        "Radix-VMMC" => (Some(5.9), Some(0.3), 0.0),
        "Barnes-NX" => (Some(52.2), Some(6.3), 1.0),
        "Ocean-NX" => (Some(10.1), Some(15.7), 1.0),
        "DFS-sockets" => (None, Some(18.3), 0.0),
        _ => (Some(6.8), Some(8.5), 0.0),
    };
    let automatic = (name == "Radix-VMMC").then_some(3.4);
    let apart = match name {
        "Radix-VMMC" => Some(1.0),
        "DFS-sockets" => Some(2.0),
        _ => None,
    };
    Then { syscall, interrupt, notified, automatic, apart }
}

pub fn run(paper: &Paper) -> Outcome {
    let workshop = Workshop::open(paper)?;
    let mut rows = Vec::new();
    for program in PROGRAMS.iter().filter(|program| program.name.contains(&paper.only)) {
        eprintln!("{}", program.name);
        experiment(paper, &workshop, program, &mut rows)?;
    }
    if paper.only.is_empty() {
        eprintln!("words");
        for (name, ns) in words(paper, &workshop)? {
            let (of, then) = match name.as_str() {
                "one way, deliberate" => ("4.1", Some(6000.0)),
                "one way, automatic" => ("4.2", Some(3710.0)),
                name if name.starts_with("one way") => ("4.2", None),
                _ => ("4.5.3", None),
            };
            rows.push(Row { of, name, value: ns, unit: "ns", paper: then });
        }
    }
    rows.sort_by_key(|row| row.of);
    println!("{:<9}{:<52}{:>12} {:<6}{:>9}", "of", "row", "here", "", "paper");
    for Row { of, name, value, unit, paper } in &rows {
        let then = paper.map_or(String::new(), |value| format!("{value}"));
        let digits = if value.abs() >= 100.0 { 0 } else { 2 };
        println!("{of:<9}{name:<52}{value:>12.digits$} {unit:<6}{then:>9}");
    }
    if let Some(path) = &paper.out {
        let mut out = std::io::BufWriter::new(std::fs::File::create(path)?);
        for row in &rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
        out.flush()?;
    }
    paper.chart.as_ref().map_or(Ok(()), |path| chart::draw(path, &rows))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn runs(paper: &Paper) -> u32 {
    if paper.short { 1 } else { paper.runs }
}

fn words(paper: &Paper, workshop: &Workshop<'_>) -> Outcome<Vec<(String, f64)>> {
    let all: Vec<_> =
        (0..runs(paper)).map(|_| workshop.words(DELIBERATE)).collect::<Outcome<_>>()?;
    let first = all.first().cloned().unwrap_or_default();
    let of = |at: usize| median(all.iter().filter_map(|rows| Some(rows.get(at)?.1)).collect());
    Ok(first.into_iter().enumerate().map(|(at, (name, _))| (name, of(at))).collect())
}

fn experiment(
    paper: &Paper,
    workshop: &Workshop<'_>,
    program: &Program,
    rows: &mut Vec<Row>,
) -> Outcome {
    let asked = [
        Asked { ranks: program.least, ..DELIBERATE },
        DELIBERATE,
        AUTOMATIC,
        Asked { meddle: "apart", ..AUTOMATIC },
        Asked { meddle: "syscall", ..DELIBERATE },
        Asked { meddle: "interrupt", ..DELIBERATE },
        Asked { meddle: "stalls", ..AUTOMATIC },
        Asked { meddle: "stalls", ring: 2 << 10, ..AUTOMATIC },
    ];
    let mut shown: Vec<Vec<Shown>> = asked.iter().map(|_| Vec::new()).collect();
    for _ in 0..runs(paper) {
        for (asked, shown) in asked.iter().zip(&mut shown) {
            shown.push(workshop.run(program, *asked)?);
        }
    }
    let [alone, deliberate, automatic, apart, syscall, interrupt, wide, narrow] =
        [0, 1, 2, 3, 4, 5, 6, 7];
    let seconds = |of: usize| median(shown[of].iter().map(|shown| shown.seconds).collect());
    // Of runs that followed one another.
    let ratio = |of: usize, to: usize| {
        let pairs = shown[of].iter().zip(&shown[to]);
        median(pairs.map(|(of, to)| of.seconds / to.seconds).collect())
    };
    let stalls = |of: usize| median(shown[of].iter().map(|shown| shown.stalls).collect());
    let counted = workshop.run(program, Asked { ranks: paper.ranks, ..DELIBERATE })?;
    let then = then(program.name);
    let messages = shown[deliberate].first().map_or(f64::NAN, |shown| shown.messages);
    let mut row = |of, what: &str, value, unit, paper| {
        let name = format!("{}: {what}", program.name);
        rows.push(Row { of, name, value, unit, paper });
    };
    row(
        "Table 1",
        &format!("{}, one process", program.size),
        seconds(alone),
        "s",
        Some(program.seconds),
    );
    let best = if seconds(automatic) < seconds(deliberate) { automatic } else { deliberate };
    row("Figure 3", "two processes, the better form", ratio(alone, best), "times", None);
    row("Figure 4", "automatic", ratio(deliberate, automatic), "times", then.automatic);
    row("4.5.1", "automatic, slower apart", ratio(apart, automatic), "times", then.apart);
    let more = |of, to| (ratio(of, to) - 1.0) * 100.0;
    row("Table 2", "a system call a message", more(syscall, deliberate), "%", then.syscall);
    row("Table 4", "an interrupt a message", more(interrupt, syscall), "%", then.interrupt);
    row(
        "Table 4",
        "a message costs so much more",
        (seconds(interrupt) - seconds(syscall)) / messages * 1e9,
        "ns",
        None,
    );
    row(
        "Table 2",
        "a message costs so much more",
        (seconds(syscall) - seconds(deliberate)) / messages * 1e9,
        "ns",
        None,
    );
    let share = 100.0 * counted.notifications / counted.messages;
    let of_all = format!("messages of {} processes", paper.ranks);
    row("Table 3", &of_all, counted.messages, "", None);
    row("Table 3", "bytes of a message", counted.bytes / counted.messages, "", None);
    row("Table 3", "of them with a notification", share, "%", Some(then.notified));
    row("4.5.2", "stalls, 32 KiB", stalls(wide), "", None);
    row("4.5.2", "stalls, 2 KiB", stalls(narrow), "", None);
    row("4.5.2", "slower with 2 KiB", more(narrow, wide), "%", Some(0.0));
    Ok(())
}
