//! The report of a tour: one HTML file with everything in it, to be kept or sent on.
//!
//! A figure without its machine, kernel, compiler, commit and raw line says nothing, so those
//! stand at the top.

use anyhow::{Context, Result, anyhow};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::prelude::*;
use rustix::system::uname;
use std::fs;
use std::path::Path;

/// A table with its heading and, where figures are compared, a chart.
#[derive(Debug, Default)]
pub struct Section {
    pub title: String,
    /// Why the reader should care; a paragraph each.
    pub text: Vec<String>,
    pub chart: Option<Chart>,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Values to compare, on a logarithmic scale: they differ by orders of magnitude.
#[derive(Debug, Default)]
pub struct Chart {
    /// What the bars show, with its unit.
    pub axis: String,
    pub bars: Vec<(String, f64)>,
}

/// What a figure depends on: name and value.
pub fn machine() -> Vec<(String, String)> {
    let uname = uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    [
        ("machine", format!("{}, {processors} processors", processor())),
        ("kernel", format!("{} {}", text(uname.sysname()), text(uname.release()))),
        ("compiler", env!("HAMLYN_COMPILER").to_owned()),
        ("commit", env!("HAMLYN_COMMIT").to_owned()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("command", std::env::args().collect::<Vec<_>>().join(" ")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The model's name as the kernel tells it.
fn processor() -> String {
    fs::read_to_string("/proc/cpuinfo")
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Writes the report to `path`, whole or not at all.
pub fn write(
    path: &Path,
    title: &str,
    facts: &[(String, String)],
    sections: &[Section],
) -> Result<()> {
    let page = page(title, facts, sections)?.into_string();
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    let temporary = path.with_file_name(format!(".{}.partial", name.to_string_lossy()));
    fs::write(&temporary, page)
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| format!("cannot write the report {}", path.display()))
}

const STYLE: &str = "
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #1d2733; background: #fff; }
h1 { margin-bottom: .2rem; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid #d8dee6;
  vertical-align: top; }
th { border-bottom: 2px solid #8795a6; }
.facts th { width: 12rem; border-bottom: 1px solid #d8dee6; font-weight: 600; }
svg { max-width: 100%; height: auto; }
";

fn page(title: &str, facts: &[(String, String)], sections: &[Section]) -> Result<Markup> {
    let charts: Vec<Option<String>> = sections
        .iter()
        .map(|section| section.chart.as_ref().map(Chart::to_svg).transpose())
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
                table.facts {
                    @for (name, value) in facts { tr { th scope="row" { (name) } td { (value) } } }
                }
                @for (section, chart) in sections.iter().zip(charts) {
                    h2 { (section.title) }
                    @for text in &section.text { p { (text) } }
                    @if let Some(svg) = chart { figure { (PreEscaped(svg)) } }
                    @if !section.rows.is_empty() {
                        table {
                            thead { tr { @for name in &section.header { th { (name) } } } }
                            tbody {
                                @for row in &section.rows {
                                    tr { @for cell in row { td { (cell) } } }
                                }
                            }
                        }
                    }
                }
            }
        }
    })
}

impl Chart {
    /// Horizontal bars.
    fn to_svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, (960, 90 + 34 * self.bars.len() as u32)))
            .map_err(|error| anyhow!("cannot draw the chart \"{}\": {error}", self.axis))?;
        Ok(svg)
    }

    fn draw(&self, backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error>> {
        let positive = || self.bars.iter().map(|bar| bar.1).filter(|value| *value > 0.0);
        let lowest = positive().fold(f64::INFINITY, f64::min);
        let highest = positive().fold(0.0, f64::max);
        if !lowest.is_finite() || !highest.is_finite() {
            return Err("there is no positive value".into());
        }
        // Whole decades, and room for the label behind the longest bar.
        let from = 10f64.powf((lowest / 2.0).log10().floor());
        let to = highest * 4.0;
        let names: Vec<&str> = self.bars.iter().rev().map(|bar| bar.0.as_str()).collect();

        let area = backend.into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(50)
            .y_label_area_size(250)
            .build_cartesian_2d(
                (from..to).log_scale(),
                (0..names.len() as i32 - 1).into_segmented(),
            )?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(&self.axis)
            .x_label_formatter(&|value| short(*value))
            .y_labels(names.len())
            .y_label_formatter(&|segment| match segment {
                SegmentValue::CenterOf(i) => {
                    names.get(*i as usize).copied().unwrap_or_default().to_owned()
                }
                _ => String::new(),
            })
            .label_style(("sans-serif", 15))
            .draw()?;
        for (i, (_, value)) in self.bars.iter().rev().enumerate() {
            let i = i as i32;
            let corners = [(from, SegmentValue::Exact(i)), (*value, SegmentValue::Exact(i + 1))];
            let mut bar = Rectangle::new(corners, RGBColor(47, 111, 179).filled());
            bar.set_margin(6, 6, 0, 0);
            chart.draw_series([bar])?;
            let label = EmptyElement::at((*value, SegmentValue::CenterOf(i)))
                + Text::new(short(*value), (6, -7), ("sans-serif", 15));
            chart.draw_series([label])?;
        }
        area.present()?;
        Ok(())
    }
}

/// Three digits.
fn short(value: f64) -> String {
    let (value, prefix) = match value {
        v if v < 1e3 => (v, ""),
        v if v < 1e6 => (v / 1e3, "k"),
        v if v < 1e9 => (v / 1e6, "M"),
        v => (v / 1e9, "G"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let text = format!("{value:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{}{prefix}", if prefix.is_empty() { "" } else { " " })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_file_that_fetches_nothing() {
        let chart = Chart {
            axis: "one way, ns".into(),
            bars: vec![("raw line".into(), 54.0), ("TCP <b>".into(), 20_000.0)],
        };
        let section = Section {
            title: "Latency".into(),
            chart: Some(chart),
            header: vec!["what".into()],
            rows: vec![vec!["<script>".into()]],
            ..Section::default()
        };
        let page = page("Hamlyn", &machine(), &[section]).unwrap().into_string();
        assert!(page.contains("<svg") && page.contains("raw line") && page.contains("20 k"));
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
    fn a_chart_of_nothing_is_an_error_and_no_panic() {
        assert!(
            Chart { axis: "nothing".into(), bars: vec![("none".into(), 0.0)] }.to_svg().is_err()
        );
    }

    #[test]
    fn short_numbers_have_three_digits() {
        assert_eq!(short(54.0), "54");
        assert_eq!(short(54.25), "54.2");
        assert_eq!(short(20_000.0), "20 k");
        assert_eq!(short(1.5e9), "1.5 G");
    }
}
