//! `hamlyn perf protocols`: the protocols beside the raw interface, in one run.
//!
//! - [`cells`]: the measurements.
//! - [`ends`]: the two processes of a cell.
//! - `lower`, `upper`, `echo`, `stream`, `publish`, `revoke`, `receivers`: their work, on the node itself
//!   and on end points.
//!
//! Cells take turns, and each run is bracketed by measurements of the raw line and of the least
//! checked message. A row is the median of its runs whose raw lines agree with that of most runs of
//! all cells, so that rows can be compared.

pub mod cells;
mod echo;
pub mod ends;
mod lower;
mod publish;
mod receivers;
mod revoke;
mod stream;
mod upper;

use super::bracket::{Bracketed, Limits, bracketed, repeats_max};
use super::pin::Cores;
use super::placement::agree;
use super::row::{Figure, Relation, Row};
use super::{commonest_line, others, pin, ring_shape, row, row_of};
use crate::arguments::ProtocolsArguments;
use crate::{output, progress};
use anyhow::{Context, Result};
use cells::{Cell, Measure};
use comfy_table::Table;

/// Round trips of the raw line and of the least checked message, before and after each run.
const LIMIT_ROUND_TRIPS: u64 = 6_400;

/// Measures and prints.
pub fn run(arguments: &ProtocolsArguments) -> Result<()> {
    let cores = match arguments.cores {
        Some(cores) => cores,
        None => pin::two_cores()?,
    };
    let cells = cells::chosen(&arguments.only)?;
    let bar = progress::steps(cells.len() as u64 * arguments.runs as u64, "");
    let rows = measure(
        &cells,
        cores,
        arguments,
        |name| {
            bar.set_message(name);
            bar.inc(1);
        },
        |text| bar.suspend(|| eprintln!("hamlyn: {text}")),
    );
    bar.finish_and_clear();
    let rows = rows?;
    if !arguments.json {
        output::line(table(&rows))?;
        let most = rows.iter().filter_map(|row| row.others_percent).reduce(f64::max);
        return others::sentence(most).map_or(Ok(()), output::line);
    }
    rows.iter().try_for_each(|row| output::line(serde_json::to_string(row)?))
}

/// A row for each cell. Calls `step` after each run, and `say` with messages for the user.
fn measure(
    cells: &[Cell],
    cores: Cores,
    arguments: &ProtocolsArguments,
    mut step: impl FnMut(String),
    mut say: impl FnMut(String),
) -> Result<Vec<Row>> {
    let config = hamlyn::config::Config::from_env()?;
    let round_trips = arguments.count.unwrap_or(LIMIT_ROUND_TRIPS).clamp(100, LIMIT_ROUND_TRIPS);
    let mut runs: Vec<Vec<Bracketed<Figure>>> = cells.iter().map(|_| Vec::new()).collect();
    for _ in 0..arguments.runs.max(1) {
        for (cell, runs) in cells.iter().zip(&mut runs) {
            let count = arguments.count.unwrap_or(cell.count);
            let (message_bytes, shape) = (cell.size, ring_shape(&config, cell.size));
            let limits = Limits { cores, round_trips, message_bytes, shape, has_copies: false };
            let run = bracketed(
                cores,
                repeats_max(round_trips),
                || limits.measure(),
                || ends::measure(*cell, cores, count).with_context(|| cell.name()),
                |text| say(format!("{}: {text}", cell.name())),
            );
            runs.push(run?);
            step(cell.name());
        }
    }
    let line = commonest_line(runs.iter().flatten());
    let rows = cells.iter().zip(runs).map(|(cell, runs)| to_row(*cell, runs, line)).collect();
    Ok(relate(cells, rows))
}

fn to_row(cell: Cell, runs: Vec<Bracketed<Figure>>, line_ns: Option<f64>) -> Row {
    Row {
        test: cell.measure.to_string(),
        protocol: cell.protocol.to_string(),
        size: cell.size as u64,
        mode: cells::mode(cell).to_string(),
        ..row_of(runs, line_ns, |figure| *figure).0
    }
}

/// Each row beside the one that it is compared with and the same of 16 bytes, if the raw lines agree;
/// two receiving threads beside the one of their own row.
fn relate(cells: &[Cell], mut rows: Vec<Row>) -> Vec<Row> {
    let relations: Vec<_> = cells
        .iter()
        .zip(&rows)
        .map(|(cell, row)| {
            if let Figure::Receivers { messages_per_s, one_thread_messages_per_s } = row.figure {
                let of_one_thread = messages_per_s / one_thread_messages_per_s;
                return Some(Relation::OfOneThread { of_one_thread });
            }
            if let Figure::Publish { eight_ns, one_ns } = row.figure {
                return Some(Relation::OfOneSubscriber { of_one_subscriber: eight_ns / one_ns });
            }
            let base = cell.base()?;
            let base = &rows[cells.iter().position(|other| *other == base)?];
            if !agree(base.baselines.raw_line_one_way_ns, row.baselines.raw_line_one_way_ns) {
                return None;
            }
            let (value, base) = (row.figure.value(), base.figure.value());
            Some(match cell.measure {
                Measure::Latency => Relation::AboveRaw { above_raw_ns: value - base },
                Measure::RoundTrip => Relation::OfRaw { of_raw_one_way: value / base },
                _ => Relation::OfMemcpy { of_memcpy: value / base },
            })
        })
        .collect();
    let short: Vec<_> = cells
        .iter()
        .zip(&rows)
        .map(|(cell, row)| {
            let short = cell.short()?;
            let short = &rows[cells.iter().position(|other| *other == short)?];
            let [a, b] = [short, row].map(|row| row.baselines.raw_line_one_way_ns);
            agree(a, b).then(|| short.figure.value())
        })
        .collect();
    for ((row, relation), short) in rows.iter_mut().zip(relations).zip(short) {
        row.relation = relation;
        row.beside_bytes = short.map(|_| cells::SHORT as u64);
        row.beside = short;
        row.of_beside = short.map(|short| row.figure.value() / short);
    }
    rows
}

/// The headings of its columns.
const HEADER: &str = "|bytes|median|lowest to highest|compared|of 16 B|of least|raw line|placement";

/// For people.
fn table(rows: &[Row]) -> Table {
    let mut table = row::table(HEADER.split('|'));
    for row in rows {
        let median = match row.figure {
            Figure::Memory { client_bytes_per_call, server_bytes_per_call } => format!(
                "{client_bytes_per_call:.0} B a call at the client, {server_bytes_per_call:.0} at \
                 the server"
            ),
            Figure::Revoke { revoke_ns, holder_knows_ns } => format!(
                "{}, and the holder knows after {}",
                row::ns(revoke_ns),
                row::ns(holder_knows_ns)
            ),
            Figure::Publish { eight_ns, one_ns } => {
                format!("{} to eight subscribers, {} to one", row::ns(eight_ns), row::ns(one_ns))
            }
            figure => figure.show(figure.value()),
        };
        let [low, high] = row.spread.map(|value| row.figure.show(value));
        let steady = if row.steady { "" } else { " (not steady)" };
        table.add_row([
            format!("{} {}", row.protocol, row.test),
            row.size.to_string(),
            median,
            format!("{low} to {high} in {}", row.runs),
            row.relation.map_or(String::new(), |relation| relation.to_string()),
            row.of_beside.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            row.of_least.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            row::ns(row.baselines.raw_line_one_way_ns),
            format!("{}{steady}", row.baselines.placement),
        ]);
    }
    row::align_right(&mut table, 1..8);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::bracket::Baselines;
    use crate::perf::placement::Placement;
    use crate::perf::stats::Percentiles;

    fn run(value: f64, raw_line_ns: f64, is_steady: bool) -> Bracketed<Figure> {
        let one_way_ns = Percentiles { p50: value, p99: value, p999: value, mean: None };
        let least_one_way_ns = value / 2.0;
        let baselines = Baselines { least_one_way_ns, ..Baselines::of_raw_line(raw_line_ns) };
        Bracketed {
            figure: Figure::Latency { one_way_ns },
            baselines,
            repeats: 0,
            is_steady,
            others: None,
        }
    }

    #[test]
    fn a_row_is_the_median_of_the_runs_whose_raw_lines_agree_with_that_of_most() {
        let cell = cells::CELLS[0];
        // No word for a line decides: these three lie on both sides of the range named "near".
        let runs = [(80.0, 64.0), (82.0, 65.0), (300.0, 240.0), (84.0, 70.0)];
        let mut runs: Vec<_> = runs.into_iter().map(|(ns, raw)| run(ns, raw, true)).collect();
        runs.push(run(10.0, 64.0, false));
        let line = commonest_line(&runs);
        assert_eq!(line, Some(64.0));
        let row = to_row(cell, runs, line);
        assert_eq!((row.figure.value(), row.runs, row.spread), (82.0, 3, [80.0, 84.0]));
        assert_eq!(row.of_least, Some(2.0));
        // No run agrees with it: the row has all of them, and shows their raw line.
        let row = to_row(cell, vec![run(300.0, 240.0, true)], line);
        assert_eq!((row.runs, row.baselines.placement), (1, Placement::Far));
    }

    #[test]
    fn rows_are_related_whose_raw_lines_agree_and_no_others() {
        let cells = ["raw-latency-16", "tagged-latency-16"].map(|name| Cell::named(name).unwrap());
        let rows = |raw_line_ns| {
            let row = |i: usize, ns, line| to_row(cells[i], vec![run(ns, line, true)], None);
            relate(&cells, vec![row(0, 80.0, 62.0), row(1, 89.0, raw_line_ns)])
        };
        assert_eq!(rows(70.0)[1].relation, Some(Relation::AboveRaw { above_raw_ns: 9.0 }));
        assert_eq!((rows(70.0)[0].relation, rows(80.0)[1].relation), (None, None));
        assert!(table(&rows(70.0)).to_string().contains("+9.0 ns"));
        let cells = ["raw-latency-16", "raw-latency-64"].map(|name| Cell::named(name).unwrap());
        let rows = |raw_line_ns| {
            let row = |i: usize, ns, line| to_row(cells[i], vec![run(ns, line, true)], None);
            relate(&cells, vec![row(0, 80.0, 62.0), row(1, 120.0, raw_line_ns)])
        };
        assert_eq!(rows(70.0)[1].of_beside, Some(1.5));
        assert_eq!((rows(70.0)[0].of_beside, rows(80.0)[1].of_beside), (None, None));
    }
}
