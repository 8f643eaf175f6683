//! The report of a tour: one HTML file with everything in it, to keep or to send on.
//!
//! A figure without its machine, kernel, compiler, commit and raw line means little, so those stand
//! at the top.

mod curves;

pub use curves::Curves;

use anyhow::{Context, Result, anyhow, ensure};
use hamlyn_tools::output;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::coord::ranged1d::{SegmentedCoord, ValueFormatter};
use plotters::coord::types::RangedCoordi32;
use plotters::prelude::*;
use rustix::system::uname;
use std::fs;
use std::path::Path;

/// A heading, and its content: facts, a table and, if figures are compared, a chart.
#[derive(Debug, Default)]
pub struct Section {
    pub title: String,
    /// Why the reader should care; a paragraph each.
    pub text: Vec<String>,
    /// Name and value.
    pub facts: Vec<(String, String)>,
    pub chart: Option<Chart>,
    pub curves: Option<Curves>,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Values to compare: as bars from zero, or, if they differ by more than a factor of 20, as dots on
/// a logarithmic scale that starts at a whole decade, where the length of a bar would mean nothing.
#[derive(Debug)]
pub struct Chart {
    /// The quantity, and whether more of it is better.
    pub axis: String,
    pub values: Vec<(String, f64)>,
    /// A value with its unit, as in the table.
    pub text: fn(f64) -> String,
}

/// A sentence of the verdict, and whether it is good news.
#[derive(Debug)]
pub struct Finding {
    pub is_good: bool,
    pub text: String,
}

/// In pixels: charts on a wide screen and on a narrow one.
const WIDTHS: [u32; 2] = [960, 360];

/// Hamlyn's own values differ from the others by their colour.
const OWN: &str = "Hamlyn";

/// The conditions of a figure: name and value.
pub fn machine() -> Vec<(String, String)> {
    let uname = uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let of = if is_virtual() { ", of a virtual machine" } else { "" };
    [
        ("date", httpdate::fmt_http_date(std::time::SystemTime::now())),
        ("machine", format!("{}, {processors} processors{of}", processor())),
        ("kernel", format!("{} {}", text(uname.sysname()), text(uname.release()))),
        ("compiler", env!("HAMLYN_COMPILER").to_owned()),
        ("commit", env!("HAMLYN_COMMIT").to_owned()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("command", std::env::args().collect::<Vec<_>>().join(" ")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn cpuinfo() -> String {
    fs::read_to_string("/proc/cpuinfo").unwrap_or_default()
}

/// Whether the kernel knows of a hypervisor.
fn is_virtual() -> bool {
    let is_flagged = |line: &str| {
        line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor")
    };
    cpuinfo().lines().any(is_flagged)
}

/// The model's name, from the kernel.
fn processor() -> String {
    cpuinfo()
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Checks that a report can be written there, before the work for it is done.
pub fn check_place(path: &Path) -> Result<()> {
    let place = || format!("cannot write the report {}", path.display());
    ensure!(path.file_name().is_some() && !path.is_dir(), "{}: it names no file", place());
    tempfile::tempfile_in(output::folder_of(path)).map(drop).with_context(place)
}

/// Replaces `path` with the report atomically.
pub fn write(
    path: &Path,
    title: &str,
    headline: &str,
    findings: &[Finding],
    facts: &[(String, String)],
    sections: &[Section],
) -> Result<()> {
    let page = page(title, headline, findings, facts, sections)?.into_string();
    output::replace(path, &page).context("cannot write the report")
}

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1d2733; --paper: #fff; --line: #d8dee6; --rule: #8795a6; --grid: #c0cad5;
  --good: #1a7f37; --care: #9a5b00; --bad: #c5221f; }
@media (prefers-color-scheme: dark) { :root { --ink: #dde4ec; --paper: #14191f; --line: #303a46;
  --rule: #64748b; --grid: #3e4b5a; --good: #57c274; --care: #e2a33f; --bad: #ff7b72; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
p { overflow-wrap: anywhere; }
h1 { margin-bottom: .2rem; } h2 { margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td { overflow-wrap: break-word; }
.wide td:first-child { min-width: 9rem; }
.short { white-space: nowrap; }
th { border-bottom: 2px solid var(--rule); white-space: nowrap; }
.facts th { border-bottom: 1px solid var(--line); font-weight: 600; }
.headline { font-size: 1.35rem; font-weight: 600; }
.findings { list-style: none; padding: 0; font-size: 1.1rem; }
.findings li { border-left: .35rem solid var(--good); padding: .2rem .8rem; margin: .5rem 0; }
.findings li.care { border-color: var(--care); }
.findings b { margin-right: .5rem; }
.good { color: var(--good); font-weight: 600; } .care { color: var(--care); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
td[class] { white-space: nowrap; overflow-wrap: normal; } li.care { color: inherit; font-weight: inherit; }
figure { margin: 1rem 0; }
svg { display: block; max-width: 100%; height: auto; }
svg text { fill: var(--ink); } svg line, svg polyline[stroke-width=\"1\"] { stroke: var(--grid); }
.narrow { display: none; }
@media (max-width: 44rem) {
  .broad { display: none; } .narrow { display: block; }
  .wide table, .wide tbody, .wide tr { display: block; } .wide thead { display: none; }
  .wide tr { border-bottom: 1px solid var(--rule); padding: .4rem 0; display: flex; flex-direction: column; }
  .wide td.good, .wide td.care, .wide td.bad { order: -1; }
  .wide td { display: grid; grid-template-columns: 6.5rem minmax(0, 1fr); border: 0;
    padding: .1rem 0; min-width: 0; }
  .wide td::before { content: attr(data-of); font-weight: 600; color: var(--ink);
    white-space: normal; }
  th, td { padding: .35rem .4rem; } .facts th { white-space: normal; }
  .facts td { overflow-wrap: anywhere; }
}
@media print { tr, figure, li { break-inside: avoid; } }
";

/// The CSS class of a notable cell.
pub fn class(cell: &str) -> Option<&'static str> {
    match cell {
        "REFUSED" | "NO HARM" => Some("good"),
        "POSSIBLE" => Some("care"),
        "NOT REFUSED" => Some("bad"),
        // A duration or a rate stays in one piece.
        cell if cell.len() <= 12 => Some("short"),
        _ => None,
    }
}

/// Longer words are broken anywhere; no ordinary word has as many letters.
const WORD_MAX: usize = 24;

/// Text whose names may be broken behind `_`, `.` and `/`, and long strings such as digests
/// anywhere.
fn breakable(text: &str) -> Markup {
    let pieces = pieces(text, WORD_MAX);
    html! { @for (i, piece) in pieces.iter().enumerate() { @if i > 0 { wbr; } (piece) } }
}

/// The parts of a text between which it may be broken, in addition to blanks.
pub fn pieces(text: &str, word_max: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let (mut in_word, mut letters) = (0, text.chars().peekable());
    while let Some(letter) = letters.next() {
        pieces.last_mut().expect("there is one").push(letter);
        in_word = if letter.is_whitespace() { 0 } else { in_word + 1 };
        let is_of_a_name = in_word > 1
            && letters.peek().is_some_and(|next| match letter {
                '_' | '.' => next.is_alphabetic(),
                '/' => next.is_alphanumeric(),
                _ => false,
            });
        if is_of_a_name || in_word == word_max {
            pieces.push(String::new());
            in_word = 0;
        }
    }
    pieces
}

fn of_facts(facts: &[(String, String)]) -> Markup {
    html! {
        table.facts {
            @for (name, value) in facts {
                tr { th scope="row" { (name) } td { (breakable(value)) } }
            }
        }
    }
}

fn page(
    title: &str,
    headline: &str,
    findings: &[Finding],
    facts: &[(String, String)],
    sections: &[Section],
) -> Result<Markup> {
    let charts: Vec<Option<[String; 2]>> = sections
        .iter()
        .map(|section| {
            let curves = section.curves.as_ref().map(Curves::to_svgs);
            section.chart.as_ref().map(Chart::to_svgs).or(curves).transpose()
        })
        .collect::<Result<_>>()?;
    Ok(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p.headline { (headline) }
                p {
                    "Hamlyn carries messages between programs that do not trust one another, on one machine \
                     and between machines. This is what it did here, when it was asked to show itself."
                }
                ul.findings {
                    @for finding in findings {
                        li.care[!finding.is_good] {
                            b { @if finding.is_good { "✓" } @else { "!" } }
                            (finding.text)
                        }
                    }
                }
                (of_facts(facts))
                @for (section, chart) in sections.iter().zip(charts) {
                    h2 { (section.title) }
                    @for text in &section.text { p { (text) } }
                    @if !section.facts.is_empty() { (of_facts(&section.facts)) }
                    @if let Some([broad, narrow]) = chart {
                        figure role="img" aria-label=(section.title) {
                            div.broad { (PreEscaped(broad)) }
                            div.narrow { (PreEscaped(narrow)) }
                        }
                    }
                    @if !section.rows.is_empty() {
                        div.wide { table {
                            thead { tr { @for name in &section.header { th scope="col" { (name) } } } }
                            tbody {
                                @for row in &section.rows {
                                    tr {
                                        @for (cell, of) in row.iter().zip(&section.header) {
                                            td class=[class(cell)] data-of=(of) { span { (breakable(cell)) } }
                                        }
                                    }
                                }
                            }
                        } }
                    }
                }
            }
        }
    })
}

impl Chart {
    /// One value above the other, for each of [`WIDTHS`]. The page sets the colours of text and
    /// lines.
    fn to_svgs(&self) -> Result<[String; 2]> {
        let mut svgs = [String::new(), String::new()];
        for (svg, width) in svgs.iter_mut().zip(WIDTHS) {
            let row = if width == WIDTHS[0] { 34 } else { 48 };
            let size = (width, 90 + row * self.values.len() as u32);
            self.draw(SVGBackend::with_string(svg, size), width == WIDTHS[1])
                .map_err(|error| anyhow!("cannot draw the chart \"{}\": {error}", self.axis))?;
        }
        Ok(svgs)
    }

    /// In a narrow chart, names stand above their values, not beside them.
    fn draw(
        &self,
        backend: SVGBackend<'_>,
        is_narrow: bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let positive = || self.values.iter().map(|value| value.1).filter(|value| *value > 0.0);
        let lowest = positive().fold(f64::INFINITY, f64::min);
        let highest = positive().fold(0.0, f64::max);
        if !lowest.is_finite() || !highest.is_finite() {
            return Err("there is no positive value".into());
        }
        let area = backend.into_drawing_area();
        let mut builder = ChartBuilder::on(&area);
        builder.margin(8).margin_right(30).x_label_area_size(50);
        builder.y_label_area_size(if is_narrow { 24 } else { 300 });
        let rows = (0..self.values.len() as i32 - 1).into_segmented();
        // With room for the label behind the longest bar.
        if highest > 20.0 * lowest {
            let from = 10f64.powf((lowest / 2.0).log10().floor());
            let room = if is_narrow { 30.0 } else { 4.0 };
            let axis = format!("{} (logarithmic)", self.axis);
            let chart = builder.build_cartesian_2d((from..highest * room).log_scale(), rows)?;
            self.fill(chart, from, &axis, is_narrow)?;
        } else {
            let room = if is_narrow { 1.5 } else { 1.2 };
            let chart = builder.build_cartesian_2d(0.0..highest * room, rows)?;
            self.fill(chart, 0.0, &self.axis, is_narrow)?;
        }
        area.present()?;
        Ok(())
    }

    fn fill<X>(
        &self,
        mut chart: ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, SegmentedCoord<RangedCoordi32>>>,
        from: f64,
        axis: &str,
        is_narrow: bool,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let names: Vec<&str> = self.values.iter().rev().map(|value| value.0.as_str()).collect();
        let font = ("sans-serif", if is_narrow { 13 } else { 15 });
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            // The line's own colour is nearly transparent; the page gives the colour.
            .bold_line_style(BLACK)
            .x_desc(axis)
            .x_labels(if is_narrow { 4 } else { 10 })
            .x_label_formatter(&|value| (self.text)(*value).replace(".0 ", " "))
            .y_labels(names.len())
            .y_label_formatter(&|segment| match segment {
                SegmentValue::CenterOf(i) if !is_narrow => {
                    names.get(*i as usize).copied().unwrap_or_default().to_owned()
                }
                _ => String::new(),
            })
            .label_style(font)
            .draw()?;
        for (i, (name, value)) in self.values.iter().rev().enumerate() {
            let i = i as i32;
            let colour = match name.starts_with(OWN) {
                true => RGBColor(43, 124, 204),
                false => RGBColor(122, 133, 147),
            };
            let above = if is_narrow { 24 } else { 6 };
            if from > 0.0 {
                let place = EmptyElement::at((*value, SegmentValue::CenterOf(i)));
                let dot = Circle::new((0, (above - 6) / 2), 6, colour.filled());
                chart.draw_series([place + dot])?;
            } else {
                let corners =
                    [(from, SegmentValue::Exact(i)), (*value, SegmentValue::Exact(i + 1))];
                let mut bar = Rectangle::new(corners, colour.filled());
                bar.set_margin(above as u32, 6, 0, 0);
                chart.draw_series([bar])?;
            }
            let beside = if is_narrow { 2 } else { -7 };
            let label = EmptyElement::at((*value, SegmentValue::CenterOf(i)))
                + Text::new((self.text)(*value), (if from > 0.0 { 11 } else { 6 }, beside), font);
            chart.draw_series([label])?;
            if is_narrow {
                let label = EmptyElement::at((from, SegmentValue::CenterOf(i)))
                    + Text::new(name.clone(), (4, -18), font);
                chart.draw_series([label])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hamlyn_tools::perf::row::ns;

    #[test]
    fn what_is_alike_begins_at_zero() {
        let values = vec![("bare ring".into(), 5.9e9), ("Hamlyn".into(), 6.2e9)];
        let chart = Chart { axis: "bytes a second".into(), values, text: ns };
        let svgs = chart.to_svgs().unwrap();
        for svg in &svgs {
            assert!(!svg.contains("logarithmic") && svg.contains(">\n6200.0 ms"), "{svg}");
            // The page's own background is not among the colours.
            assert!(svg.contains("<rect") && !svg.contains("<circle"), "{svg}");
        }
    }

    #[test]
    fn a_report_is_one_file_that_fetches_nothing() {
        let chart = Chart {
            axis: "one way".into(),
            values: vec![("raw line".into(), 54.0), ("TCP <b>".into(), 20_000.0)],
            text: ns,
        };
        let section = Section {
            title: "Latency".into(),
            chart: Some(chart),
            header: vec!["what".into()],
            rows: vec![vec!["<script>".into()]],
            ..Section::default()
        };
        let finding = Finding { is_good: false, text: "one is possible".into() };
        let page =
            page("Hamlyn", "All held.", &[finding], &machine(), &[section]).unwrap().into_string();
        assert!(page.contains("<svg") && page.contains("raw line") && page.contains("20.0 us"));
        assert!(page.contains("(logarithmic)"), "54 and 20,000 have no common scale else");
        assert!(page.contains("<circle") && !page.contains("<rect"), "no bar has a length there");
        let (verdict, facts) = (page.find("one is possible"), page.find("kernel"));
        assert!(page.find("All held.").unwrap() < verdict.unwrap(), "in a sentence, first of all");
        assert!(verdict.unwrap() < facts.unwrap(), "the verdict comes first");
        assert!(!page.contains("<script") && !page.contains("TCP <b>"));
        for outside in ["src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("<th scope=\"row\">kernel</th>"));
        if let Some(path) = std::env::var_os("HAMLYN_TEST_REPORT") {
            fs::write(path, page).unwrap();
        }
    }

    #[test]
    fn names_break_where_a_name_can_and_words_and_figures_do_not() {
        let of = |text| pieces(text, WORD_MAX).join("|");
        assert_eq!(
            of("control.refused_frame +192, 2.6 us"),
            "control.|refused_|frame +192, 2.6 us"
        );
        assert_eq!(of("hamlyn://10.77.1.2:9/x and so on."), "hamlyn://|10.77.1.2:9/|x and so on.");
        assert_eq!(of(&"7".repeat(30)), format!("{}|777777", "7".repeat(24)));
    }

    #[test]
    fn a_report_that_cannot_be_written_is_known_before_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none").join("report.html");
        let error = format!("{:#}", check_place(&missing).unwrap_err());
        assert!(error.contains("none/report.html"), "{error}");
        assert!(check_place(folder.path()).is_err() && check_place(Path::new("/")).is_err());
        check_place(&folder.path().join("report.html")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "looking leaves nothing");
    }

    #[test]
    fn a_chart_of_nothing_is_an_error_and_no_panic() {
        assert!(
            Chart { axis: "nothing".into(), values: vec![("none".into(), 0.0)], text: ns }
                .to_svgs()
                .is_err()
        );
    }
}
