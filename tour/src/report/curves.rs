//! Figures by the length of a message, as lines on two logarithmic scales.

use super::{OWN, WIDTHS};
use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// A line for each channel: its name, and its figure at each length.
#[derive(Debug)]
pub struct Curves {
    /// The quantity, and whether more of it is better.
    pub axis: String,
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// A length with its unit, and a figure with its own.
    pub texts: [fn(f64) -> String; 2],
}

/// Of the channels beside Hamlyn, in their order.
const OTHERS: [RGBColor; 2] = [RGBColor(122, 133, 147), RGBColor(206, 134, 44)];
/// The page gives thinner ones the colour of a grid.
const LINE_WIDTH: u32 = 3;

impl Curves {
    /// For each of [`WIDTHS`].
    pub fn to_svgs(&self) -> Result<[String; 2]> {
        let mut svgs = [String::new(), String::new()];
        for (svg, width) in svgs.iter_mut().zip(WIDTHS) {
            self.draw(SVGBackend::with_string(svg, (width, 420)), width == WIDTHS[1])
                .map_err(|error| anyhow!("cannot draw the curves \"{}\": {error}", self.axis))?;
        }
        Ok(svgs)
    }

    /// The whole powers of `base` around all values of one axis.
    fn range(&self, base: f64, of: fn(&(f64, f64)) -> f64) -> Option<std::ops::Range<f64>> {
        let values = || self.lines.iter().flat_map(|line| &line.1).map(of);
        let least = values().fold(f64::INFINITY, f64::min);
        let most = values().fold(0.0, f64::max);
        let (from, to) = (least.log(base).floor(), most.log(base).ceil());
        (least > 0.0 && least.is_finite() && most.is_finite())
            .then(|| base.powf(from)..base.powf(to.max(from + 1.0)))
    }

    fn draw(
        &self,
        backend: SVGBackend<'_>,
        is_narrow: bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let (across, up) = (self.range(2.0, |point| point.0), self.range(10.0, |point| point.1));
        let (across, up) = across.zip(up).ok_or("there is no positive value")?;
        let font = ("sans-serif", if is_narrow { 13 } else { 15 });
        let area = backend.into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .margin_right(30)
            .x_label_area_size(50)
            .y_label_area_size(if is_narrow { 60 } else { 90 })
            .build_cartesian_2d(across.log_scale().base(2.0), up.log_scale())?;
        let [length, figure] = self.texts;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK)
            .x_desc(format!(
                "{}{}",
                self.axis,
                if is_narrow { "" } else { "; by the length of a message" }
            ))
            .x_labels(if is_narrow { 5 } else { 12 })
            .x_label_formatter(&|value| length(*value).replace(".0 ", " "))
            .y_label_formatter(&|value| figure(*value).replace(".0 ", " "))
            .label_style(font)
            .draw()?;
        let mut others = OTHERS.iter().cycle();
        for (name, points) in &self.lines {
            let own = RGBColor(43, 124, 204);
            let colour = if name.starts_with(OWN) { own } else { *others.next().unwrap_or(&BLACK) };
            let style = colour.stroke_width(LINE_WIDTH);
            chart
                .draw_series([PathElement::new(points.clone(), style)])?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            let dots = points.iter().map(|point| Circle::new(*point, 4, colour.filled()));
            chart.draw_series(dots)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperMiddle)
            .background_style(TRANSPARENT)
            .label_font(font)
            .draw()?;
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hamlyn_tools::perf::row::ns;

    #[test]
    fn each_channel_is_a_line_with_its_name() {
        let line = |name: &str, ns: f64| (name.to_owned(), vec![(16.0, ns), (64.0, 2.0 * ns)]);
        let curves = |lines| Curves {
            axis: "time one way".into(),
            lines,
            texts: [|bytes| format!("{bytes} B"), ns],
        };
        let lines = vec![line("Hamlyn", 80.0), line("bare ring", 70.0), line("socket", 8_000.0)];
        for svg in curves(lines).to_svgs().unwrap() {
            for part in ["Hamlyn", "bare ring", "socket", "\n16 B", "\n10 us", "#2B7CCC"] {
                assert!(svg.contains(part), "{part}: {svg}");
            }
            assert!(svg.matches("stroke-width=\"3\"").count() >= 3, "{svg}");
        }
        assert!(curves(vec![]).to_svgs().is_err());
    }
}
