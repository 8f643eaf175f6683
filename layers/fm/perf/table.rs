//! A row of the result, as text and JSON; and the curves.

use crate::Outcome;
use plotters::prelude::*;
use serde::Serialize;
use std::path::Path;

/// The median of several runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Figure {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |at: usize| values.get(at).copied().unwrap_or(f64::NAN);
        Self { median: at(values.len() / 2), min: at(0), max: at(values.len().saturating_sub(1)) }
    }
}

/// The number that is wanted.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub unit: &'static str,
    #[serde(flatten)]
    pub figure: Figure,
    /// Of the same runs, in the same unit.
    pub reference: Option<Figure>,
    pub of: String,
    /// The median of the runs' ratios.
    pub ratio: Option<Figure>,
    pub wanted: Option<Wanted>,
    /// The ratio or figure of the paper.
    pub paper: Option<String>,
    /// Before and after, in nanoseconds one way.
    pub raw_line: Option<[f64; 2]>,
    /// Whether the raw line stayed the same within a quarter, and the reference within a half.
    pub steady: bool,
}

impl Row {
    /// `None`: nothing is wanted.
    pub fn is_reached(&self) -> Option<bool> {
        let ratio = self.ratio?.median;
        self.wanted.map(|wanted| match wanted {
            Wanted::AtMost(most) => ratio <= most,
            Wanted::AtLeast(least) => ratio >= least,
        })
    }
}

/// With three digits that count.
fn digits(value: f64) -> String {
    match value.abs() {
        big if big >= 1e9 => format!("{:.3}G", value / 1e9),
        big if big >= 1e6 => format!("{:.3}M", value / 1e6),
        big if big >= 1e4 => format!("{:.1}k", value / 1e3),
        big if big >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

pub fn print(to: &mut dyn std::io::Write, rows: &[Row]) -> Outcome {
    writeln!(
        to,
        "{:<44}{:>9} {:<7}{:>18}{:>9}  {:<20}{:>6}{:>14}  paper",
        "row", "median", "unit", "min to max", "beside", "of", "ratio", "wanted"
    )?;
    for row in rows {
        let Figure { median, min, max } = row.figure;
        let spread = format!("{} to {}", digits(min), digits(max));
        let beside = row.reference.map_or(String::new(), |of| digits(of.median));
        let ratio = row.ratio.map_or(String::new(), |ratio| format!("{:.2}", ratio.median));
        let wanted = row.wanted.map_or(String::new(), |wanted| match wanted {
            Wanted::AtMost(most) => format!("<= {most:.2}"),
            Wanted::AtLeast(least) => format!(">= {least:.2}"),
        });
        let verdict = match row.is_reached() {
            Some(true) => " yes",
            Some(false) => " NO",
            None => "",
        };
        writeln!(
            to,
            "{:<44}{:>9} {:<7}{spread:>18}{beside:>9}  {:<20}{ratio:>6}{:>14}  {}{}",
            row.name,
            digits(median),
            row.unit,
            row.of,
            format!("{wanted}{verdict}"),
            row.paper.as_deref().unwrap_or_default(),
            if row.steady { "" } else { "  (disturbed)" },
        )?;
    }
    Ok(())
}

/// A name, and bytes per second by length.
pub type Curve = (&'static str, Vec<(f64, f64)>);

/// The length at which a curve has half of its peak, between two lengths by a straight line.
pub fn half_length(curve: &[(f64, f64)]) -> f64 {
    let half = curve.iter().map(|(_, rate)| *rate).fold(0.0, f64::max) / 2.0;
    let at = curve.iter().position(|(_, rate)| *rate >= half).unwrap_or(0);
    let Some((before, behind)) = at.checked_sub(1).map(|before| (curve[before], curve[at])) else {
        return curve.first().map_or(f64::NAN, |(length, _)| *length);
    };
    before.0 + (behind.0 - before.0) * (half - before.1) / (behind.1 - before.1)
}

pub fn chart(path: &Path, curves: &[Curve]) -> Outcome {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let most = points().map(|(_, rate)| *rate).fold(1.0, f64::max);
    let least = points().map(|(_, rate)| *rate).fold(most, f64::min);
    let longest = points().map(|(length, _)| *length).fold(8.0, f64::max);
    let colors =
        [RGBColor(122, 133, 147), BLUE, RGBColor(206, 134, 44), RGBColor(30, 130, 60), RED];
    let area = SVGBackend::new(path, (900, 520)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(75)
        .caption("Bandwidth by the length of a message", ("sans-serif", 18))
        .build_cartesian_2d(
            (4.0..longest).log_scale().base(2.0),
            (least..most * 1.2).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("bytes of a message")
        .y_desc("bytes per second")
        .x_label_formatter(&|length| format!("{length:.0}"))
        .y_label_formatter(&|rate| digits(*rate))
        .draw()?;
    for ((name, points), color) in curves.iter().zip(colors.into_iter().cycle()) {
        chart
            .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(area.present()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_peak_lies_between_two_lengths() {
        assert_eq!(half_length(&[(4.0, 10.0), (8.0, 30.0), (16.0, 40.0)]), 6.0);
        assert_eq!(half_length(&[(4.0, 30.0), (8.0, 40.0)]), 4.0);
        let figure = Figure::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((figure.median, figure.min, figure.max), (2.0, 1.0, 3.0));
    }
}
