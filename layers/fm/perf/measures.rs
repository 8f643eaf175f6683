//! The rows: what is measured, and what stands beside it.

use crate::ends::{Counted, Ends, LONGEST, Test, Way};
use crate::mix::MIXES;
use crate::table::{self, Curve, Figure, Row, Wanted};
use crate::{Outcome, Perf};
use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A run during which the raw line changed by more than this share is repeated, so often at most.
const CHANGE: f64 = 0.25;
const REPEATS: u32 = 2;
/// So is one whose reference differs by more than this factor: another program ran meanwhile.
const SPREAD: f64 = 1.5;

/// The instructions of messages, which `bench/budgets.rs` counts.
const BUDGETS: &str = include_str!("../bench/budgets.txt");

struct Measures<'a> {
    perf: &'a Perf,
    ends: Ends,
    hamlyn: Option<PathBuf>,
    rows: Vec<Row>,
    sentences: Vec<String>,
    curves: Vec<Curve>,
    /// The raw line before the section that runs, and after the one before it.
    line: Option<f64>,
}

pub fn run(perf: &Perf) -> Outcome {
    let dir = tempfile::tempdir()?;
    // SAFETY: this program has one thread yet.
    unsafe {
        std::env::set_var("HAMLYN_DIR", dir.path());
        std::env::set_var("HAMLYN_WAIT_MODE", "polled");
    }
    let cores = [perf.cores[0], perf.cores[1]];
    if cores[0] == cores[1] {
        return Err("both ends poll, so each needs a processor of its own".into());
    }
    let hamlyn = find_hamlyn(perf);
    let mut of = Measures {
        perf,
        // Before the ends, whose thread is pinned.
        line: None,
        hamlyn,
        ends: Ends::new(cores, perf.credit, dir.path())?,
        rows: Vec::new(),
        sentences: Vec::new(),
        curves: Vec::new(),
    };
    if of.hamlyn.is_none() {
        of.say("There is no `hamlyn` command, so the raw line was not measured: see --hamlyn.");
    }
    of.section(Measures::short)?;
    of.section(Measures::longer)?;
    of.section(Measures::pieces)?;
    of.section(Measures::curves)?;
    of.section(Measures::mixes)?;
    of.mpi();
    of.parts();
    if let Some(path) = &perf.chart {
        table::chart(path, &of.curves)?;
    }
    // With JSON, the table goes to the other output, for those who watch.
    let mut out: Box<dyn Write> = match perf.json {
        true => Box::new(std::io::stderr()),
        false => Box::new(std::io::stdout()),
    };
    table::print(&mut out, &of.rows)?;
    for sentence in &of.sentences {
        writeln!(out, "{sentence}")?;
    }
    if perf.json {
        for row in &of.rows {
            println!("{}", serde_json::to_string(row)?);
        }
        for (name, points) in &of.curves {
            println!("{}", serde_json::json!({"curve": name, "bytes_and_rate": points}));
        }
    }
    Ok(())
}

fn find_hamlyn(perf: &Perf) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name("hamlyn");
    let candidates = match &perf.hamlyn {
        Some(path) => vec![path.clone()],
        None => vec![beside, "hamlyn".into()],
    };
    let runs = |path: &PathBuf| {
        let mut command = Command::new(path);
        let command = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    candidates.into_iter().find(runs)
}

impl Measures<'_> {
    fn say(&mut self, sentence: impl Into<String>) {
        self.sentences.push(sentence.into());
    }

    /// The raw line now, as `hamlyn perf` measures it, and adds its least checked message.
    fn raw_line(&self) -> Option<(f64, f64)> {
        let [near, far] = [self.perf.cores[0], self.perf.cores[1]];
        let mut command = Command::new("taskset");
        command.args(["-c", &format!("{near},{far}")]).arg(self.hamlyn.as_ref()?);
        command.args(["perf", "latency", "--size", "16", "--runs", "1", "--count"]);
        command.args([if self.perf.quick { "200" } else { "20000" }, "--json"]);
        command.args(["--cores", &format!("{near},{far}")]);
        command.env_remove("HAMLYN_DIR");
        let output = command.stderr(Stdio::null()).output().ok()?;
        let row: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let of = |name: &str| row.get(name).and_then(serde_json::Value::as_f64);
        Some((of("raw_line_one_way_ns")?, of("least_one_way_ns")?))
    }

    /// Runs a section between two looks at the raw line; repeats it if the line has changed.
    fn section(&mut self, measure: fn(&mut Self) -> Outcome) -> Outcome {
        let so_far = (self.rows.len(), self.sentences.len(), self.curves.len());
        for repeats in 0.. {
            let before = self.line.or_else(|| self.raw_line().map(|(line, _)| line));
            measure(self)?;
            let after = self.raw_line().map(|(line, _)| line);
            self.line = after;
            let both = before.zip(after).map(|(before, after)| [before, after]);
            let steady = both
                .is_none_or(|[before, after]| (after / before).max(before / after) <= 1.0 + CHANGE);
            for row in &mut self.rows[so_far.0..] {
                row.raw_line = both;
                row.steady = steady && row.reference.is_none_or(|of| of.max <= of.min * SPREAD);
            }
            let all_steady = self.rows[so_far.0..].iter().all(|row| row.steady);
            if all_steady || repeats == REPEATS || self.perf.quick {
                break;
            }
            self.rows.truncate(so_far.0);
            self.sentences.truncate(so_far.1);
            self.curves.truncate(so_far.2);
        }
        Ok(())
    }

    /// So many, or few for a quick look.
    fn count(&self, count: u64) -> u64 {
        if self.perf.quick { count.div_ceil(200) } else { count }
    }

    fn test(&mut self, way: Way, size: usize, count: u64, pingpong: bool) -> Outcome<Counted> {
        let count = self.count(count);
        let mut test = Test { way, count: count.div_ceil(10), pingpong, size, mix: 0 };
        self.ends.run(&test)?;
        test.count = count;
        self.ends.run(&test)
    }

    /// Nanoseconds one way.
    fn one_way(&mut self, way: Way, size: usize) -> Outcome<f64> {
        let count = 20_000;
        let counted = self.test(way, size, count, true)?;
        Ok(counted.seconds * 1e9 / (2 * self.count(count)) as f64)
    }

    /// Messages a second.
    fn rate(&mut self, way: Way, size: usize, count: u64) -> Outcome<f64> {
        Ok(self.count(count) as f64 / self.test(way, size, count, false)?.seconds)
    }

    /// Measures both in turn, `runs` times.
    fn beside(
        &mut self,
        (name, unit, of): (&str, &'static str, &str),
        mut figure: impl FnMut(&mut Self) -> Outcome<f64>,
        mut reference: impl FnMut(&mut Self) -> Outcome<f64>,
    ) -> Outcome<&mut Row> {
        let (mut figures, mut references) = (Vec::new(), Vec::new());
        for _ in 0..self.perf.runs {
            references.push(reference(self)?);
            figures.push(figure(self)?);
        }
        let ratios = figures.iter().zip(&references).map(|(one, of)| one / of).collect();
        self.rows.push(Row {
            name: name.into(),
            unit,
            figure: Figure::of(figures),
            reference: Some(Figure::of(references)),
            of: of.into(),
            ratio: Some(Figure::of(ratios)),
            wanted: None,
            paper: None,
            raw_line: None,
            steady: true,
        });
        self.rows.last_mut().ok_or("a row was added".into())
    }

    fn short(&mut self) -> Outcome {
        if let Some((line, least)) = self.raw_line() {
            self.say(format!(
                "The raw line takes {line:.0} ns one way, the least checked message of 16 bytes \
                 {least:.0} ns (`hamlyn perf`)."
            ));
        }
        let raw = |of: &mut Self| of.one_way(Way::Raw, 16);
        let row = self.beside(
            ("FM_send_4, one way", "ns", "raw, 16 bytes"),
            |of| of.one_way(Way::Send4, 16),
            raw,
        )?;
        row.wanted = Some(Wanted::AtMost(1.25));
        let row = self.beside(
            ("16 bytes to a handler's first byte", "ns", "raw, 16 bytes"),
            |of| of.one_way(Way::Two, 16),
            raw,
        )?;
        row.wanted = Some(Wanted::AtMost(1.5));
        let count = 1_000_000;
        let row = self.beside(
            ("FM_send_4, one after another", "/s", "raw, 16 bytes"),
            |of| of.rate(Way::Send4, 16, count),
            |of| of.rate(Way::Raw, 16, count),
        )?;
        row.wanted = Some(Wanted::AtLeast(0.45));
        Ok(())
    }

    fn longer(&mut self) -> Outcome {
        for (name, size) in [("200 bytes, one way", 200), ("576 bytes, one way", 576)] {
            let row = self.beside(
                (name, "ns", "a raw packet of it"),
                |of| of.one_way(Way::Two, size),
                |of| of.one_way(Way::Raw, size),
            )?;
            row.wanted = Some(Wanted::AtMost(1.5));
        }
        Ok(())
    }

    fn pieces(&mut self) -> Outcome {
        let (size, count) = (64 << 10, 20_000);
        let mut shares = Vec::new();
        let row = self.beside(
            ("64 KiB in pieces of 16 KiB", "B/s", "1/(1/raw + 1/memcpy)"),
            |of| {
                let counted = of.test(Way::Pieces, size, count, false)?;
                shares.push(counted.direct);
                Ok(counted.bytes as f64 / counted.seconds)
            },
            |of| {
                let raw = of.rate(Way::Raw, size, count)? * size as f64;
                let memcpy = memcpy(size);
                Ok(1.0 / (1.0 / raw + 1.0 / memcpy))
            },
        )?;
        row.wanted = Some(Wanted::AtLeast(1.0));
        let shares = Figure::of(shares);
        let mut share = row.clone();
        share.name = "bytes of these that went straight".into();
        (share.unit, share.figure, share.of) = ("share", shares, "all".into());
        (share.reference, share.ratio) = (None, Some(shares));
        share.wanted = Some(Wanted::AtLeast(0.75));
        self.rows.push(share);
        Ok(())
    }

    fn curves(&mut self) -> Outcome {
        let ways = [
            ("1.x style", Way::One),
            ("2.x style", Way::Two),
            ("matching over 1.x", Way::MatchOne),
            ("matching over 2.x", Way::MatchTwo),
        ];
        let lengths: Vec<usize> = (2..=21).map(|log| 1 << log).collect();
        let mut curves: Vec<Curve> = ways.map(|(name, _)| (name, Vec::new())).to_vec();
        for &length in &lengths {
            let count = (256 << 20) / length as u64;
            let mut rates = vec![Vec::new(); ways.len()];
            for _ in 0..self.perf.runs.min(3) {
                for ((_, way), rates) in ways.iter().zip(&mut rates) {
                    let counted = self.test(*way, length, count.clamp(32, 200_000), false)?;
                    rates.push(counted.bytes as f64 / counted.seconds);
                }
            }
            for ((_, points), rates) in curves.iter_mut().zip(rates) {
                points.push((length as f64, Figure::of(rates).median));
            }
        }
        let peak = |at: usize| curves[at].1.iter().map(|point| point.1).fold(0.0, f64::max);
        let plain = |value: f64| Figure { median: value, min: value, max: value };
        let mut row = |name: &str, unit, value: f64, of: Option<(&str, f64)>, paper: &str| {
            self.rows.push(Row {
                name: name.into(),
                unit,
                figure: plain(value),
                reference: of.map(|(_, of)| plain(of)),
                of: of.map_or(String::new(), |(name, _)| name.into()),
                ratio: of.map(|(_, of)| plain(value / of)),
                wanted: None,
                paper: Some(paper.into()),
                raw_line: None,
                steady: true,
            });
        };
        let [one, two, match_one, match_two] = [peak(0), peak(1), peak(2), peak(3)];
        row("1.x style, peak", "B/s", one, None, "17.6 MB/s");
        row("1.x style, N1/2", "bytes", table::half_length(&curves[0].1), None, "54");
        row("2.x style, peak", "B/s", two, Some(("1.x style", one)), "77 MB/s, ratio 4.4");
        row("2.x style, N1/2", "bytes", table::half_length(&curves[1].1), None, "below 256");
        row(
            "matching over 1.x, peak",
            "B/s",
            match_one,
            Some(("1.x style", one)),
            "0.2, at most 0.35",
        );
        row("matching over 2.x, peak", "B/s", match_two, Some(("2.x style", two)), "0.9");
        let at_16 = |at: usize| {
            curves[at].1.iter().find(|(length, _)| *length == 16.0).map_or(f64::NAN, |of| of.1)
        };
        let of = Some(("2.x style", at_16(1)));
        row("matching over 2.x, 16 bytes", "B/s", at_16(3), of, "over 0.7");
        let of = Some(("1.x style", at_16(0)));
        row("matching over 1.x, 16 bytes", "B/s", at_16(2), of, "");
        self.curves.extend(curves);
        let ways = [("1.x style", Way::One, "14 us"), ("2.x style", Way::Two, "11 us")];
        for (name, way, paper) in ways {
            let row = self.beside(
                (&format!("{name}, 16 bytes one way"), "ns", "raw, 16 bytes"),
                |of| of.one_way(way, 16),
                |of| of.one_way(Way::Raw, 16),
            )?;
            row.paper = Some(paper.into());
        }
        let row = self.beside(
            ("matching over 2.x, 16 bytes one way", "ns", "2.x style"),
            |of| of.one_way(Way::MatchTwo, 16),
            |of| of.one_way(Way::Two, 16),
        )?;
        row.paper = Some("17 us, ratio 1.55".into());
        Ok(())
    }

    fn mixes(&mut self) -> Outcome {
        for (mix, of) in MIXES.iter().enumerate() {
            self.say(of.describe());
            for (name, way) in [("Unix socket", Way::Unix), ("TCP, loopback", Way::Tcp)] {
                let rate = |of: &mut Self, way, count: u64| {
                    let count = of.count(count);
                    let test = Test { way, count, pingpong: false, size: 0, mix };
                    of.ends.run(&Test { count: count.div_ceil(10), ..test.clone() })?;
                    Ok(count as f64 / of.ends.run(&test)?.seconds)
                };
                self.beside(
                    (&format!("mix of {}", of.name), "/s", name),
                    |of| rate(of, Way::One, 500_000),
                    |of| rate(of, way, 100_000),
                )?;
            }
        }
        self.say(
            "UCX active messages stand in bench/peers, whose install.sh installs UCX; they are not \
             measured by this command.",
        );
        Ok(())
    }

    /// MPI's own programs, over its own launcher.
    fn mpi(&mut self) {
        match &self.perf.mpicc {
            None => self.say(
                "MPI over Fast Messages was not measured: --mpicc names its compiler. The rows \
                 \"matching\" have its way of receiving: a header of 16 bytes, then the body to a \
                 posted buffer.",
            ),
            Some(mpicc) => match mpi_rows(mpicc, self) {
                Ok(rows) => self.rows.extend(rows),
                Err(e) => self.say(format!("MPI over Fast Messages was not measured: {e}.")),
            },
        }
    }

    /// The paper's Figures 2 and 3(a), in instructions.
    fn parts(&mut self) {
        let of = |name: &str| {
            let mut rows = BUDGETS.lines().map(str::split_whitespace);
            let row = rows.find_map(|mut row| (row.next()? == name).then_some(row));
            row.and_then(|mut row| row.next()?.parse::<f64>().ok()).unwrap_or(f64::NAN)
        };
        let parts = [
            ("link and deposit alone", of("raw-silent"), "174 of 397"),
            ("+ notification and its queue", of("raw-unordered") - of("raw-silent"), ""),
            ("+ order (IN_ORDER)", of("raw") - of("raw-unordered"), "21 of 397"),
            (
                "+ windows, streams, handler's dispatch",
                of("credit-seldom") - of("raw"),
                "148 of 397 (buffers)",
            ),
            ("+ credit, given back each 3rd message", of("credit-often") - of("credit-seldom"), ""),
        ];
        let whole = of("send_4");
        for (name, count, paper) in parts {
            let plain = |value: f64| Figure { median: value, min: value, max: value };
            self.rows.push(Row {
                name: name.into(),
                unit: "instr.",
                figure: plain(count),
                reference: Some(plain(whole)),
                of: "FM_send_4, whole".into(),
                ratio: Some(plain(count / whole)),
                wanted: None,
                paper: Some(paper.into()),
                raw_line: None,
                steady: true,
            });
        }
        self.say(
            "Instructions are those of bench/budgets.txt (callgrind), both sides. Fault tolerance (47 \
             of 397 cycles in the paper) cannot be switched off, nor counted by itself: a ring loses \
             nothing, and the end of a peer is seen by the node, not by messages. The check of each \
             packet's key and bounds cannot be switched off either; it is part of the first row.",
        );
    }
}

fn mpi_rows(mpicc: &std::path::Path, of: &mut Measures<'_>) -> Outcome<Vec<Row>> {
    let dir = tempfile::tempdir()?;
    let (source, program) = (dir.path().join("mpi.c"), dir.path().join("mpi"));
    std::fs::write(&source, include_str!("mpi.c"))?;
    let status = Command::new(mpicc).arg("-O2").arg(&source).arg("-o").arg(&program).status()?;
    if !status.success() {
        return Err(format!("{} failed: {status}", mpicc.display()).into());
    }
    let hamlyn = of.hamlyn.clone().ok_or("`hamlyn run` starts it, and there is no `hamlyn`")?;
    let divide = if of.perf.quick { "200" } else { "1" };
    let output = Command::new("taskset")
        .args(["-c", &format!("{},{}", of.perf.cores[0], of.perf.cores[1])])
        .arg(hamlyn)
        .args(["run", "-n", "2", "--"])
        .arg(&program)
        .arg(divide)
        .env_remove("HAMLYN_DIR")
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let points = |name: &str| -> Vec<(f64, f64)> {
        let lines = text.lines().filter_map(|line| line.split_once(name));
        let cells = lines.map(|(_, rest)| rest.split_whitespace().filter_map(|c| c.parse().ok()));
        cells.filter_map(|mut cells| Some((cells.next()?, cells.next()?))).collect()
    };
    let (one_way, rates) = (points("one_way "), points("rate "));
    if !output.status.success() || one_way.is_empty() || rates.is_empty() {
        return Err(format!("its program ended with {} and said {text:?}", output.status).into());
    }
    let plain = |value: f64| Figure { median: value, min: value, max: value };
    let at = |points: &[(f64, f64)], length: f64| {
        points.iter().find(|point| point.0 == length).map_or(f64::NAN, |point| point.1)
    };
    let two = of.curves.iter().find(|(name, _)| *name == "2.x style").map(|(_, points)| points);
    let two = two.cloned().unwrap_or_default();
    let peak = |points: &[(f64, f64)]| points.iter().map(|point| point.1).fold(0.0, f64::max);
    let latency = of.one_way(Way::Two, 16)?;
    let row = |name: &str, unit, value: f64, reference: f64, wanted, paper: &str| Row {
        name: name.into(),
        unit,
        figure: plain(value),
        reference: Some(plain(reference)),
        of: "2.x style".into(),
        ratio: Some(plain(value / reference)),
        wanted: Some(wanted),
        paper: Some(paper.into()),
        raw_line: None,
        steady: true,
    };
    let bytes: Vec<(f64, f64)> = rates.iter().map(|(size, rate)| (*size, size * rate)).collect();
    let rows = vec![
        row(
            "MPI, 16 bytes one way",
            "ns",
            at(&one_way, 16.0),
            latency,
            Wanted::AtMost(1.43),
            "1.55",
        ),
        row(
            "MPI, 16 bytes",
            "B/s",
            at(&bytes, 16.0),
            at(&two, 16.0),
            Wanted::AtLeast(0.7),
            "over 0.7",
        ),
        row("MPI, peak", "B/s", peak(&bytes), peak(&two), Wanted::AtLeast(0.9), "0.9"),
    ];
    of.curves.push(("MPI", bytes));
    Ok(rows)
}

/// Bytes a second, of a copy that stays in the caches.
fn memcpy(size: usize) -> f64 {
    let (from, mut to) = (vec![1u8; size], vec![2u8; size]);
    let copies = (1 << 30) / size as u64;
    let began = Instant::now();
    for _ in 0..copies {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
    debug_assert!(size <= LONGEST);
    (copies * size as u64) as f64 / began.elapsed().as_secs_f64()
}
