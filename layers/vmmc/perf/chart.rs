//! The rows that the paper has, as bars: this machine's, and the paper's beside them.

use crate::Outcome;
use crate::experiments::Row;
use plotters::prelude::*;
use std::path::Path;

/// The table or figure, whether its rows are the model's, a title.
const PARTS: [(&str, bool, &str); 6] = [
    ("Figure 3", false, "speed of two processes, to one"),
    ("Figure 3", true, "the same of a model of sixteen nodes"),
    ("Figure 4", false, "speed of automatic update, to deliberate; of AURC and HLRC-AU, to HLRC"),
    ("Figure 4", true, "the same of a model of sixteen nodes"),
    ("Table 2", false, "a system call a message: % longer"),
    ("Table 4", false, "an interrupt a message: % longer"),
];
const HERE: RGBColor = RGBColor(40, 90, 170);
const THEN: RGBColor = RGBColor(206, 134, 44);

/// `Radix-SVM: model of 16 nodes, AURC` is `Radix AURC`.
fn label(row: &Row) -> String {
    let (program, what) = row.name.split_once(": ").unwrap_or((&row.name, ""));
    let form = what.rsplit(' ').next().filter(|form| form.contains("RC"));
    form.map_or(program.into(), |form| format!("{} {form}", program.replace("-SVM", "")))
}

pub fn draw(path: &Path, rows: &[Row]) -> Outcome {
    let area = SVGBackend::new(path, (1000, 1300)).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, (of, is_model, title)) in area.split_evenly((6, 1)).iter().zip(PARTS) {
        let is_here =
            |row: &&Row| row.of == of && row.unit != "ns" && row.name.contains("model") == is_model;
        let rows: Vec<&Row> = rows.iter().filter(is_here).collect();
        let all = rows.iter().flat_map(|row| [Some(row.value), row.paper]).flatten();
        let (least, most) =
            all.fold((0.0_f64, 1.0_f64), |(least, most), at| (least.min(at), most.max(at)));
        let mut chart = ChartBuilder::on(part)
            .margin(8)
            .caption(format!("{of}: {title}"), ("sans-serif", 16))
            .x_label_area_size(24)
            .y_label_area_size(50)
            .build_cartesian_2d(0.0..rows.len().max(1) as f64, least * 1.2..most * 1.2)?;
        let name = |at: &f64| {
            let row = rows.get(*at as usize).filter(|_| at.fract() == 0.5);
            row.map(|row| label(row)).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(2 * rows.len() + 1)
            .x_label_formatter(&name)
            .draw()?;
        for (which, color, label) in [(0, HERE, "here"), (1, THEN, "the paper")] {
            let bars = rows.iter().enumerate().filter_map(|(at, row)| {
                let value = if which == 0 { Some(row.value) } else { row.paper }?;
                let left = at as f64 + 0.2 + 0.3 * f64::from(which);
                Some(Rectangle::new([(left, 0.0), (left + 0.28, value)], color.filled()))
            });
            chart.draw_series(bars)?.label(label).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled())
            });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .draw()?;
    }
    Ok(area.present()?)
}
