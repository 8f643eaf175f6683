//! Which runs make which row, beside the paper's values.
//!
//! Times are of two processes on two processors, medians of runs in turn; counts of sixteen, which no time of
//! this machine could stand for.

use crate::programs::{Asked, Layer, PROGRAMS, Program, Shown, Workshop};
use crate::{Outcome, Paper, chart, model};
use serde::Serialize;
use std::io::Write;

const DELIBERATE: Asked = Asked { ranks: 2, form: "deliberate", meddle: "", ring: 32 << 10 };
const AUTOMATIC: Asked = Asked { form: "automatic", ..DELIBERATE };
const HLRC: Asked = Asked { form: "hlrc", ..DELIBERATE };
const HLRC_AU: Asked = Asked { form: "hlrc-au", ..DELIBERATE };
const AURC: Asked = Asked { form: "aurc", ..DELIBERATE };

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
    let asked_for = PROGRAMS.iter().filter(|program| program.name.contains(&paper.only));
    for program in asked_for {
        if !workshop.has(program.layer) {
            eprintln!("{} SKIPPED: its library is not beside this program", program.name);
            continue;
        }
        eprintln!("{}", program.name);
        workshop.make(program)?;
        match program.layer {
            Layer::Vmmc => experiment(paper, &workshop, program, &mut rows)?,
            Layer::Svm => {
                let constants = constants(paper, &workshop, &mut rows)?;
                svm_experiment(paper, &workshop, program, constants, &mut rows)?;
            }
        }
    }
    if paper.only.is_empty() && workshop.has(Layer::Vmmc) {
        eprintln!("words");
        workshop.cc(Layer::Vmmc, &[], &["word"])?;
        for (name, ns) in words(paper, &workshop, Layer::Vmmc, DELIBERATE, "word")? {
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

/// Medians of a program's rows.
fn words(
    paper: &Paper,
    workshop: &Workshop<'_>,
    layer: Layer,
    asked: Asked,
    program: &str,
) -> Outcome<Vec<(String, f64)>> {
    let all = (0..runs(paper)).map(|_| workshop.words(layer, asked, program));
    let all = all.collect::<Outcome<Vec<_>>>()?;
    let first = all.first().cloned().unwrap_or_default();
    let of = |at: usize| median(all.iter().filter_map(|rows| Some(rows.get(at)?.1)).collect());
    Ok(first.into_iter().enumerate().map(|(at, (name, _))| (name, of(at))).collect())
}

/// Runs of a program, in turn: of each that is asked for, as many.
struct Runs(Vec<Vec<Shown>>);

impl Runs {
    fn of(
        paper: &Paper,
        workshop: &Workshop<'_>,
        program: &Program,
        asked: &[Asked],
    ) -> Outcome<Self> {
        let mut shown: Vec<Vec<Shown>> = asked.iter().map(|_| Vec::new()).collect();
        for _ in 0..runs(paper) {
            for (asked, shown) in asked.iter().zip(&mut shown) {
                shown.push(workshop.run(program, *asked)?);
            }
        }
        Ok(Self(shown))
    }

    fn seconds(&self, of: usize) -> f64 {
        median(self.0[of].iter().map(|shown| shown.seconds).collect())
    }

    /// Of runs that followed one another.
    fn ratio(&self, of: usize, to: usize) -> f64 {
        let pairs = self.0[of].iter().zip(&self.0[to]);
        median(pairs.map(|(of, to)| of.seconds / to.seconds).collect())
    }

    /// In percent.
    fn more(&self, of: usize, to: usize) -> f64 {
        (self.ratio(of, to) - 1.0) * 100.0
    }

    /// Nanoseconds that each message of `to` costs more.
    fn each(&self, of: usize, to: usize) -> f64 {
        let messages = self.0[to].first().map_or(f64::NAN, |shown| shown.messages);
        (self.seconds(of) - self.seconds(to)) / messages * 1e9
    }

    fn stalls(&self, of: usize) -> f64 {
        median(self.0[of].iter().map(|shown| shown.stalls).collect())
    }
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
    let runs = Runs::of(paper, workshop, program, &asked)?;
    let [alone, deliberate, automatic, apart, syscall, interrupt, wide, narrow] =
        [0, 1, 2, 3, 4, 5, 6, 7];
    let counted = workshop.run(program, Asked { ranks: paper.ranks, ..DELIBERATE })?;
    let then = then(program.name);
    let mut row = |of, what: &str, value, unit, paper| {
        let name = format!("{}: {what}", program.name);
        rows.push(Row { of, name, value, unit, paper });
    };
    row(
        "Table 1",
        &format!("{}, one process", program.size),
        runs.seconds(alone),
        "s",
        Some(program.seconds),
    );
    let best =
        if runs.seconds(automatic) < runs.seconds(deliberate) { automatic } else { deliberate };
    row("Figure 3", "two processes, the better form", runs.ratio(alone, best), "times", None);
    row("Figure 4", "automatic", runs.ratio(deliberate, automatic), "times", then.automatic);
    row("4.5.1", "automatic, slower apart", runs.ratio(apart, automatic), "times", then.apart);
    row("Table 2", "a system call a message", runs.more(syscall, deliberate), "%", then.syscall);
    row("Table 4", "an interrupt a message", runs.more(interrupt, syscall), "%", then.interrupt);
    row("Table 4", "a message costs so much more", runs.each(interrupt, syscall), "ns", None);
    row("Table 2", "a message costs so much more", runs.each(syscall, deliberate), "ns", None);
    let share = 100.0 * counted.notifications / counted.messages;
    let of_all = format!("messages of {} processes", paper.ranks);
    row("Table 3", &of_all, counted.messages, "", None);
    row("Table 3", "bytes of a message", counted.bytes / counted.messages, "", None);
    row("Table 3", "of them with a notification", share, "%", Some(then.notified));
    row("4.5.2", "stalls, 32 KiB", runs.stalls(wide), "", None);
    row("4.5.2", "stalls, 2 KiB", runs.stalls(narrow), "", None);
    row("4.5.2", "slower with 2 KiB", runs.more(narrow, wide), "%", Some(0.0));
    Ok(())
}

/// The model's constants, measured once.
fn constants(paper: &Paper, workshop: &Workshop<'_>, rows: &mut Vec<Row>) -> Outcome<model::Costs> {
    if !rows.iter().any(|row| row.of == "Model") {
        workshop.cc(Layer::Svm, &[], &["svm_costs"])?;
        for (name, value) in words(paper, workshop, Layer::Svm, HLRC, "svm_costs")? {
            rows.push(Row { of: "Model", name, value, unit: "ns", paper: None });
        }
    }
    let cost = |name: &str| {
        let row = rows.iter().find(|row| row.of == "Model" && row.name == name);
        row.map_or(f64::NAN, |row| row.value)
    };
    Ok(model::Costs { miss: cost("a miss"), question: cost("a lock that is free") })
}

/// The paper's percentages of AURC over HLRC, which it does not attribute: 9.1, 30.2 and 79.3.
fn svm_experiment(
    paper: &Paper,
    workshop: &Workshop<'_>,
    program: &Program,
    constants: model::Costs,
    rows: &mut Vec<Row>,
) -> Outcome {
    let asked = [
        Asked { ranks: 1, ..HLRC },
        Asked { ranks: 1, ..AURC },
        HLRC,
        HLRC_AU,
        AURC,
        Asked { meddle: "apart", ..AURC },
        Asked { meddle: "syscall", ..HLRC },
        Asked { meddle: "interrupt", ..HLRC },
    ];
    let runs = Runs::of(paper, workshop, program, &asked)?;
    let [plain, macros, hlrc, hlrc_au, aurc, apart, syscall, interrupt] = [0, 1, 2, 3, 4, 5, 6, 7];
    let mut far = Vec::new();
    for form in [HLRC, HLRC_AU, AURC] {
        let asked = Asked { ranks: paper.ranks, meddle: "trace", ..form };
        let shown = workshop.run(program, asked)?;
        far.push((shown, model::run(&workshop.traces(paper.ranks), constants)? / 1e9));
    }
    let (syscall_then, interrupt_then, notified) = match program.name {
        "Barnes-SVM" => (23.2, 18.1, 33.0),
        "Ocean-SVM" => (17.7, 25.1, 8.0),
        _ => (2.3, 1.1, 42.0),
    };
    let mut row = |of, what: &str, value, unit, paper| {
        let name = format!("{}: {what}", program.name);
        rows.push(Row { of, name, value, unit, paper });
    };
    row(
        "Table 1",
        &format!("{}, one process", program.size),
        runs.seconds(plain),
        "s",
        Some(program.seconds),
    );
    row("Table 1", "one process, stores of AURC", runs.seconds(macros), "s", None);
    let best = [hlrc, hlrc_au, aurc]
        .into_iter()
        .min_by(|a, b| runs.seconds(*a).total_cmp(&runs.seconds(*b)));
    row(
        "Figure 3",
        "two processes, the best form",
        runs.ratio(plain, best.unwrap_or(hlrc)),
        "times",
        None,
    );
    row("Figure 4", "AURC", runs.ratio(hlrc, aurc), "times", None);
    row("Figure 4", "HLRC-AU", runs.ratio(hlrc, hlrc_au), "times", Some(1.0));
    row("4.5.1", "AURC, slower apart", runs.ratio(apart, aurc), "times", Some(1.0));
    row("Table 2", "a system call a message", runs.more(syscall, hlrc), "%", Some(syscall_then));
    row("Table 2", "a message costs so much more", runs.each(syscall, hlrc), "ns", None);
    row(
        "Table 4",
        "an interrupt a message",
        runs.more(interrupt, syscall),
        "%",
        Some(interrupt_then),
    );
    row("Table 4", "a message costs so much more", runs.each(interrupt, syscall), "ns", None);
    let nodes = format!("model of {} nodes", paper.ranks);
    for ((shown, seconds), form) in far.iter().zip(["HLRC", "HLRC-AU", "AURC"]) {
        row("Figure 3", &format!("{nodes}, {form}"), runs.seconds(plain) / seconds, "times", None);
        let of = |what: &str| format!("{form}, {} processes, {what}", paper.ranks);
        row("Table 3", &of("messages"), shown.messages, "", None);
        row("Table 3", &of("pages fetched"), shown.fetches, "", None);
        row("Table 3", &of("differences"), shown.differences, "", None);
        let share = 100.0 * shown.notifications / shown.messages;
        row(
            "Table 3",
            &of("with a notification"),
            share,
            "%",
            (form == "HLRC").then_some(notified),
        );
    }
    let [hlrc, hlrc_au, aurc] = [far[0].1, far[1].1, far[2].1];
    row("Figure 4", &format!("{nodes}, AURC"), hlrc / aurc, "times", None);
    row("Figure 4", &format!("{nodes}, HLRC-AU"), hlrc / hlrc_au, "times", Some(1.0));
    Ok(())
}
