//! Against the clock: Hamlyn beside other channels, and the conclusions. Figures are compared only
//! if their raw lines agree, because the host of a virtual machine moves the cores.

use super::show;
use super::terminal::{heading, say};
use crate::TourArguments;
use crate::compare::{self, Compared, Effort, Measured};
use crate::report::{Chart, Curves, Finding, Section};
use anyhow::Result;
use bytesize::ByteSize;
use hamlyn_tools::arguments::{CurveArguments, Mode, Over, PerfArguments};
use hamlyn_tools::perf;
use hamlyn_tools::perf::baseline::{Channel, Patience};
use hamlyn_tools::perf::curve;
use hamlyn_tools::perf::ends::Test;
use hamlyn_tools::perf::others::{self, Others};
use hamlyn_tools::perf::pin::{self, Cores};
use hamlyn_tools::perf::placement::{Placement, agree, commonest_line_ns};
use hamlyn_tools::perf::row::{self, Row};
use hamlyn_tools::progress;
use indicatif::ProgressBar;

/// Repeats of two figures that cannot be compared.
const AGAIN_MAX: u32 = 2;
/// The pairs that a finding compares: Hamlyn's mode, and that of a Unix socket.
const PAIRS: [(Mode, Patience, &str); 2] =
    [(Mode::Polled, Patience::Polled, "polled"), (Mode::Blocking, Patience::Blocking, "blocking")];
const OWN: &str = "Hamlyn";
const RAW: &str = "raw cache line";
/// The note on a quick run.
const QUICK: &str = "Times and rates are of a moment each (--quick): they show that all works, and are \
                     not to be quoted.";

/// Facts about all figures.
pub struct Clock {
    /// The placement of the cores, from the raw line.
    pub raw_line: String,
    /// Other processes used the processors meanwhile.
    pub is_disturbed: bool,
}

/// Adds the tables.
pub fn measure(
    arguments: &TourArguments,
    sections: &mut Vec<Section>,
    findings: &mut Vec<Finding>,
) -> Result<Clock> {
    heading("Against the clock")?;
    let cores = match pin::two_cores() {
        Ok(cores) => cores,
        Err(error) => {
            say(format_args!("  skipped: {error:#}"))?;
            let raw_line = "none: there is one processor".into();
            return Ok(Clock { raw_line, is_disturbed: false });
        }
    };
    let curve = CurveArguments {
        size: if arguments.quick {
            vec![ByteSize(8), ByteSize(64), ByteSize::mib(1)]
        } else {
            vec![]
        },
        count: arguments.quick.then_some(100),
        runs: 1,
        ..CurveArguments::default()
    };
    let bar = progress::steps(7 + compare::CHANNEL_STEPS + curve.steps(), "");
    let others = Others::begin(cores);
    let figures = figures(arguments.quick, cores, &bar).and_then(|(lines, bandwidth)| {
        let step = |name| {
            bar.inc(1);
            bar.set_message(format!("{OWN} and a Unix socket, {name}"));
        };
        let say = |text| bar.suspend(|| eprintln!("  {text}"));
        Ok((lines, bandwidth, curve::rows(&curve, step, say)?))
    });
    let disturbed = others::sentence(others.percent());
    bar.finish_and_clear();
    let (lines, bandwidth, by_length) = figures?;
    let [curve_of_latency, curve_of_rate] = curves(&by_length);
    for mut section in
        [latencies(&lines), rates(&lines), curve_of_latency, curve_of_rate, bandwidths(&bandwidth)]
    {
        if arguments.quick {
            section.text.push(QUICK.into());
        }
        section.text.extend(disturbed.clone());
        heading(&section.title)?;
        show(section, sections)?;
    }
    if arguments.quick {
        findings.push(Finding {
            is_good: false,
            text: format!("{QUICK} `hamlyn tour` without --quick measures for longer."),
        });
    }
    let is_disturbed = disturbed.is_some();
    findings.extend(disturbed.map(|text| Finding { is_good: false, text }));
    findings.extend(PAIRS.iter().filter_map(|pair| of_pair(&lines, pair.2)));
    findings.extend(of_rates(&lines, &bandwidth));
    let measured: Vec<Measured> = lines.iter().map(|line| line.one_way).collect();
    let word = match commonest(&measured) {
        Some(ns) if measured.iter().all(|one| agree(one.raw_line_ns, ns)) => {
            format!(" ({})", Placement::of_raw_line_ns(ns))
        }
        _ => String::new(),
    };
    Ok(Clock { raw_line: format!("{} one way{word}", range(&measured)), is_disturbed })
}

fn figures(quick: bool, cores: Cores, bar: &ProgressBar) -> Result<(Vec<Compared>, Row)> {
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let own = |test: Test, mode: Mode| {
        bar.inc(1);
        bar.set_message(format!("{OWN}, {test}, {mode}"));
        let perf = PerfArguments {
            size: None,
            count: quick.then_some(500),
            mode,
            links: 0,
            cores: None,
            runs: if quick { 1 } else { 3 },
            beside: None,
            socket: false,
            has_copies: true,
            json: false,
            to: None,
            over: Over::Ring,
        };
        perf::measure(test, &perf, |_| (), |text| bar.suspend(|| eprintln!("  {text}")))
    };
    let mut lines = Vec::new();
    for (mode, waits) in
        [(Mode::Polled, "polled"), (Mode::Adaptive, "adaptive"), (Mode::Blocking, "blocking")]
    {
        let one_way = Measured::of(&own(Test::Latency, mode)?);
        let rate = Some(Measured::of(&own(Test::Rate, mode)?));
        lines.push(Compared { name: OWN.into(), waits, one_way, rate });
    }
    let bandwidth = own(Test::Bandwidth, Mode::Polled)?;
    lines.extend(compare::channels(cores, 16, effort, |what| {
        bar.inc(1);
        bar.set_message(what);
    })?);
    for (mode, patience, waits) in PAIRS {
        for _ in 0..AGAIN_MAX {
            let Some((ours, theirs)) = pair(&mut lines, waits) else { break };
            if ours.one_way.compares_with(&theirs.one_way) {
                break;
            }
            bar.inc_length(2);
            ours.one_way = Measured::of(&own(Test::Latency, mode)?);
            bar.inc(1);
            bar.set_message(format!("{}, {waits}", theirs.name));
            *theirs = compare::channel(Channel::UnixSocket, patience, cores, 16, effort)?;
        }
    }
    let raw_line_ns = lines[0].one_way.raw_line_ns;
    let raw = Measured { value: raw_line_ns, ..lines[0].one_way };
    let name = RAW.into();
    lines.insert(0, Compared { name, waits: "polled", one_way: raw, rate: None });
    Ok((lines, bandwidth))
}

/// Hamlyn and a Unix socket that wait in the same way.
fn pair<'a>(
    lines: &'a mut [Compared],
    waits: &str,
) -> Option<(&'a mut Compared, &'a mut Compared)> {
    let mut alike = lines.iter_mut().filter(|line| line.waits == waits);
    let ours = alike.find(|line| line.name == OWN)?;
    let socket = Channel::UnixSocket.to_string();
    Some((ours, alike.find(|line| line.name == socket)?))
}

/// Against a Unix socket that waits in the same way; no comparison if their raw lines disagree.
fn of_pair(lines: &[Compared], waits: &str) -> Option<Finding> {
    let mut both = lines.to_vec();
    let (ours, theirs) = pair(&mut both, waits)?;
    let (ours, theirs) = (ours.one_way, theirs.one_way);
    let (own, socket) = (row::ns(ours.value), row::ns(theirs.value));
    let when = match waits {
        "polled" => "while both ends poll, each on a core of its own",
        _ => "where the receiver sleeps and has to be woken",
    };
    if !ours.compares_with(&theirs) {
        return Some(Finding {
            is_good: false,
            text: format!(
                "There is no comparison with a Unix stream socket {when}: {OWN} took {own} one way, \
                 and a bare cache line {} from core to core then; the socket took {socket}, and the \
                 line {}. The host moved the cores between or during the two measurements: run it \
                 again.",
                row::ns(ours.raw_line_ns),
                row::ns(theirs.raw_line_ns)
            ),
        });
    }
    let times = theirs.value / ours.value;
    let so = match times {
        1.1.. => format!("{times:.1} times as long"),
        0.9.. => "about as long".into(),
        _ => "which is less".into(),
    };
    let name = Channel::UnixSocket.to_string();
    let others = lines.iter().filter(|line| {
        line.waits == waits
            && line.name != OWN
            && line.name != name
            && line.name != RAW
            && line.one_way.compares_with(&ours)
    });
    let fastest = others.min_by(|a, b| a.one_way.value.total_cmp(&b.one_way.value));
    let fastest = fastest.filter(|fastest| fastest.one_way.value < theirs.value).map_or(
        String::new(),
        |fastest| {
            let its = row::ns(fastest.one_way.value);
            format!("; the fastest of the others here ({}) takes {its}", fastest.name)
        },
    );
    Some(Finding {
        is_good: times >= 0.9,
        text: format!(
            "A checked message of 16 bytes takes {own} one way {when}, and through a Unix stream \
             socket {socket}, {so}{fastest}."
        ),
    })
}

/// Messages and bytes per second.
fn of_rates(lines: &[Compared], bandwidth: &Row) -> Option<Finding> {
    let own = lines.iter().find(|line| line.name == OWN)?;
    let text = format!(
        "One after another {:.1} million messages of 16 bytes go in a second while both ends poll. \
         Messages of {} carry {}, where a bare ring carries {}.",
        own.rate?.value / 1e6,
        ByteSize(bandwidth.size),
        row::per_second(Measured::of(bandwidth).value, "B"),
        row::per_second(bandwidth.baselines.copy_ring_bytes_per_s, "B"),
    );
    Some(Finding { is_good: true, text })
}

fn commonest(measured: &[Measured]) -> Option<f64> {
    commonest_line_ns(&measured.iter().map(|one| one.raw_line_ns).collect::<Vec<_>>())
}

/// The raw lines of these figures: one, or the shortest and the longest.
fn range(measured: &[Measured]) -> String {
    let lines = || measured.iter().map(|one| one.raw_line_ns);
    let (least, most) = (lines().fold(f64::INFINITY, f64::min), lines().fold(0.0, f64::max));
    match (row::ns(least), row::ns(most)) {
        (least, most) if least == most => least,
        (least, most) => format!("from {least} to {most}"),
    }
}

/// A mark for each figure that cannot be compared with most others, else nothing.
fn marks(measured: &[Measured]) -> Vec<&'static str> {
    let line = commonest(measured).unwrap_or(f64::NAN);
    let compares = |one: &Measured| one.is_steady && agree(one.raw_line_ns, line);
    measured.iter().map(|one| if compares(one) { "" } else { " *" }).collect()
}

/// The raw lines of these figures, in words.
fn of_cores(measured: &[Measured]) -> String {
    let text =
        format!("A bare cache line took {} from one core to the other meanwhile.", range(measured));
    match marks(measured).concat().is_empty() {
        true => text,
        false => format!(
            "{text} Rows with a * do not compare with the others: the host had moved the cores, or \
             moved them then."
        ),
    }
}

fn latencies(lines: &[Compared]) -> Section {
    let text = "Messages of 16 bytes between two processes on two cores, each end pinned alike. \
                Hamlyn's have their key and bounds checked, are deposited and announced. One way \
                is half of a round trip; the median. A raw cache line, written on one core and read \
                on the other, is the least that it can take.";
    let measured: Vec<(&Compared, Measured)> =
        lines.iter().map(|line| (line, line.one_way)).collect();
    compared("Latency", text, "one way", "time one way: less is better", row::ns, &measured)
}

fn rates(lines: &[Compared]) -> Section {
    let measured: Vec<(&Compared, Measured)> =
        lines.iter().filter_map(|line| Some((line, line.rate?))).collect();
    let text = "The same messages one after another, one call each.";
    let axis = "messages a second: more is better";
    compared("Rate", text, "messages", axis, |rate| row::per_second(rate, ""), &measured)
}

fn compared(
    title: &str,
    text: &str,
    figure: &str,
    axis: &str,
    in_words: fn(f64) -> String,
    rows: &[(&Compared, Measured)],
) -> Section {
    let measured: Vec<Measured> = rows.iter().map(|row| row.1).collect();
    let marks = marks(&measured);
    let marked = || rows.iter().zip(&marks);
    let name = |line: &Compared, mark| format!("{}, {}{mark}", line.name, line.waits);
    Section {
        title: title.into(),
        text: vec![text.into(), of_cores(&measured)],
        chart: Some(Chart {
            axis: axis.into(),
            values: marked().map(|((line, one), mark)| (name(line, mark), one.value)).collect(),
            text: in_words,
        }),
        header: ["what", "waits", figure, "raw line then"].map(String::from).into(),
        rows: marked()
            .map(|((line, one), mark)| {
                let raw = format!("{}{mark}", row::ns(one.raw_line_ns));
                vec![line.name.clone(), line.waits.into(), in_words(one.value), raw]
            })
            .collect(),
        ..Section::default()
    }
}

/// Latencies and rates from the shortest message to the longest.
fn curves(rows: &[[Row; 2]]) -> [Section; 2] {
    let latency = |row: &Row| (row.baselines.least_one_way_ns, row.unix_socket_one_way_ns);
    let rate = |row: &Row| (row.baselines.least_per_s, row.unix_socket_per_s);
    let of = |i: usize| rows.iter().map(move |row| &row[i]).collect::<Vec<_>>();
    [
        curve_of("Latency by length", &of(0), "time one way: less is better", row::ns, latency),
        curve_of(
            "Rate by length",
            &of(1),
            "messages a second: more is better",
            |rate| row::per_second(rate, ""),
            rate,
        ),
    ]
}

fn curve_of(
    title: &str,
    rows: &[&Row],
    axis: &str,
    in_words: fn(f64) -> String,
    beside: fn(&Row) -> (f64, Option<f64>),
) -> Section {
    const NAMES: [&str; 3] = [OWN, "bare checked ring", "Unix stream socket"];
    let length = |bytes: f64| ByteSize(bytes as u64).to_string();
    let measured: Vec<Measured> = rows.iter().map(|row| Measured::of(row)).collect();
    // The ring carries a message in one packet.
    let values = |row: &Row| {
        let (least, socket) = beside(row);
        [row.figure.value(), least, socket.unwrap_or(f64::NAN)]
    };
    let line = |i: usize| {
        let points = rows.iter().map(|row| (row.size as f64, values(row)[i]));
        (NAMES[i].to_owned(), points.filter(|point| !point.1.is_nan()).collect())
    };
    let cell = |value: f64| if value.is_nan() { String::new() } else { in_words(value) };
    Section {
        title: title.into(),
        text: vec![
            "Each length beside a bare ring that checks key and bounds and does nothing else, up \
             to a packet's length, and beside a Unix stream socket whose ends poll, in the same run."
                .into(),
            of_cores(&measured),
        ],
        curves: Some(Curves {
            axis: axis.into(),
            lines: (0..NAMES.len()).map(line).collect(),
            texts: [length, in_words],
        }),
        header: ["bytes"].into_iter().chain(NAMES).chain(["raw line then"]).map(String::from).collect(),
        rows: rows
            .iter()
            .zip(&measured)
            .zip(marks(&measured))
            .map(|((row, one), mark)| {
                let mut cells = vec![length(row.size as f64)];
                cells.extend(values(row).map(cell));
                cells.push(format!("{}{mark}", row::ns(one.raw_line_ns)));
                cells
            })
            .collect(),
        ..Section::default()
    }
}

fn bandwidths(bandwidth: &Row) -> Section {
    let measured = Measured::of(bandwidth);
    let values = [
        ("memcpy on one core", bandwidth.baselines.memcpy_bytes_per_s),
        ("bare two-copy ring", bandwidth.baselines.copy_ring_bytes_per_s),
        (OWN, measured.value),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    let in_words: fn(f64) -> String = |rate| row::per_second(rate, "B");
    let raw = row::ns(measured.raw_line_ns);
    Section {
        title: "Bandwidth, beside what the machine can copy".into(),
        text: vec![
            format!(
                "Messages of {}, copied into the ring on one core and out of it on the other. The \
                 bare ring does the same without names, keys or checks.",
                ByteSize(bandwidth.size)
            ),
            of_cores(&[measured]),
        ],
        rows: values
            .iter()
            .map(|(name, value)| vec![name.clone(), in_words(*value), raw.clone()])
            .collect(),
        header: ["what", "bandwidth", "raw line then"].map(String::from).into(),
        chart: Some(Chart {
            axis: "bytes a second: more is better".into(),
            values: values.into(),
            text: in_words,
        }),
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hamlyn and a Unix socket beside these raw lines.
    fn lines(ours_ns: f64, theirs_ns: f64, is_steady: bool) -> [Compared; 2] {
        let line = |name: &str, value, raw_line_ns| Compared {
            name: name.into(),
            waits: "polled",
            one_way: Measured { value, raw_line_ns, is_steady },
            rate: None,
        };
        let socket = Channel::UnixSocket.to_string();
        [line(OWN, 85.0, ours_ns), line(&socket, 2_600.0, theirs_ns)]
    }

    #[test]
    fn latencies_are_compared_only_where_their_raw_lines_agree() {
        let of = |lines: [Compared; 2]| of_pair(&lines, "polled").unwrap();
        let finding = of(lines(53.0, 60.0, true));
        assert!(finding.is_good && finding.text.contains("30.6 times as long"), "{finding:?}");
        for moved in [lines(53.0, 168.0, true), lines(53.0, 53.0, false)] {
            let finding = of(moved);
            assert!(!finding.is_good && !finding.text.contains("times"), "{finding:?}");
            for part in ["no comparison", "85 ns", "53 ns", "2.6 us", "run it again"] {
                assert!(finding.text.contains(part), "{part}: {finding:?}");
            }
        }
        assert!(of(lines(53.0, 168.0, true)).text.contains("168 ns"));
        assert!(of_pair(&lines(53.0, 53.0, true), "blocking").is_none(), "none was measured");
    }

    #[test]
    fn rows_that_do_not_compare_with_most_are_marked_and_the_range_is_told() {
        let measured = |lines: [f64; 3]| {
            lines.map(|raw_line_ns| Measured { value: 1.0, raw_line_ns, is_steady: true })
        };
        let moved = measured([53.0, 168.0, 55.0]);
        assert_eq!(marks(&moved), ["", " *", ""]);
        let text = of_cores(&moved);
        assert!(text.contains("from 53 ns to 168 ns") && text.contains("with a *"), "{text}");
        let alike = measured([53.0, 53.2, 53.0]);
        assert_eq!(marks(&alike), ["", "", ""]);
        let text = of_cores(&alike);
        assert!(text.contains("took 53 ns from") && !text.contains('*'), "{text}");
    }
}
