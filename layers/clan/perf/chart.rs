//! The paper's Figures 4 to 6 from the rows.

use crate::Outcome;
use plotters::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A test's name begins so; its axes.
const FIGURES: [(&str, &str, &str); 3] = [
    ("bandwidth", "size_bytes", "mb_per_s"),
    ("round trip", "idle_endpoints", "round_trip_us"),
    ("load", "connections", "requests_per_s"),
];

pub fn draw(path: &Path, rows: &[Value]) -> Outcome {
    let area = SVGBackend::new(path, (900, 1350)).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, (test, x, y)) in area.split_evenly((3, 1)).iter().zip(FIGURES) {
        let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for row in rows {
            let of = row["test"].as_str().filter(|of| of.starts_with(test)).unwrap_or_default();
            if let (Some(at), Some(value)) = (row[x].as_f64(), row[y].as_f64()) {
                let name =
                    format!("{} {}", row["system"].as_str().unwrap_or_default(), &of[test.len()..]);
                // No idle end point, on a logarithmic axis.
                curves.entry(name).or_default().push((at.max(1.0), value));
            }
        }
        let points = || curves.values().flatten();
        let of = |f: fn(f64, f64) -> f64, start| points().fold(start, |so_far, p| f(so_far, p.1));
        let (least, most) = (of(f64::min, f64::MAX), of(f64::max, 0.0));
        let furthest = points().fold(2.0, |so_far: f64, point| so_far.max(point.0));
        let nearest = points().fold(furthest, |so_far: f64, point| so_far.min(point.0));
        let mut chart = ChartBuilder::on(part)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(75)
            .build_cartesian_2d(
                (nearest..furthest).log_scale(),
                (least * 0.8..most * 1.3).log_scale(),
            )?;
        chart.configure_mesh().x_desc(x).y_desc(y).draw()?;
        for (number, (name, points)) in curves.into_iter().enumerate() {
            let color = Palette99::pick(number).to_rgba();
            let style = color.stroke_width(2);
            chart
                .draw_series(LineSeries::new(points, style))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        let mut labels = chart.configure_series_labels();
        labels.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8)).draw()?;
    }
    Ok(area.present()?)
}
