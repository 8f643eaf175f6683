//! `hamlyn perf curve`: latency and rate by the length of the message, beside messages of 16 bytes,
//! the bare checked ring and a Unix stream socket. Each row is one of `hamlyn perf latency` or
//! `rate`, with a tenth of its messages.

use super::ends::Test;
use super::row::{self, Row};
use super::{measure, others};
use crate::arguments::{CurveArguments, Mode, Over, PerfArguments};
use crate::{output, progress};
use anyhow::Result;
use bytesize::ByteSize;
use comfy_table::Table;

/// Around each step of a packet: the end of the first line with either header, of the second, ..
const SIZES: [u64; 17] = [
    8,
    16,
    24,
    40,
    48,
    64,
    100,
    128,
    256,
    576,
    1024,
    2048,
    4096,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
];
/// The length with which all others are compared.
const BESIDE: u64 = 16;
/// Bytes of a run of a latency, a round trip being two messages, and of a rate.
const BYTES: [u64; 2] = [1 << 28, 1 << 28];
/// Most messages of it.
const MESSAGES: [u64; 2] = [10_000, 500_000];

/// Measures and prints.
pub fn run(arguments: &CurveArguments) -> Result<()> {
    let bar = progress::steps(arguments.steps(), "");
    let rows = rows(
        arguments,
        |name| {
            bar.set_message(name);
            bar.inc(1);
        },
        |text| bar.suspend(|| eprintln!("hamlyn: {text}")),
    );
    bar.finish_and_clear();
    let rows = rows?;
    if arguments.json {
        return rows.iter().flatten().try_for_each(|row| output::line(serde_json::to_string(row)?));
    }
    output::line(table(&rows))?;
    let most = rows.iter().flatten().filter_map(|row| row.others_percent).reduce(f64::max);
    others::sentence(most).map_or(Ok(()), output::line)
}

impl CurveArguments {
    fn sizes(&self) -> Vec<ByteSize> {
        match &self.size[..] {
            [] => SIZES.map(ByteSize).into(),
            sizes => sizes.into(),
        }
    }

    /// Calls of `step` by [`rows`].
    pub fn steps(&self) -> u64 {
        2 * self.sizes().len() as u64
    }
}

/// Of each length the latency and the rate. Calls `step` before each, and `say` with messages for
/// the user.
pub fn rows(
    arguments: &CurveArguments,
    mut step: impl FnMut(String),
    mut say: impl FnMut(String),
) -> Result<Vec<[Row; 2]>> {
    let mut row = |size: ByteSize, test: Test, i: usize| {
        step(format!("{test} of {size}"));
        let count = (BYTES[i] / size.as_u64().max(1)).clamp(100, MESSAGES[i]);
        let perf = PerfArguments {
            size: Some(size),
            count: Some(arguments.count.unwrap_or(count)),
            mode: Mode::Polled,
            links: 0,
            runs: arguments.runs,
            cores: arguments.cores,
            beside: Some(ByteSize(BESIDE)),
            socket: true,
            has_copies: false,
            json: false,
            to: None,
            over: Over::Ring,
        };
        measure(test, &perf, |_| (), &mut say)
    };
    arguments
        .sizes()
        .into_iter()
        .map(|size| Ok([row(size, Test::Latency, 0)?, row(size, Test::Rate, 1)?]))
        .collect()
}

/// The headings of its columns.
const HEADER: &str = "bytes|one way|least|of least|of 16 B|Unix socket|messages|\
                      least|of least|of 16 B|Unix socket|raw line";

/// For people.
fn table(rows: &[[Row; 2]]) -> Table {
    let mut table = row::table(HEADER.split('|'));
    for [latency, rate] in rows {
        let ratio = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let known = |value: f64, text: String| if value.is_nan() { String::new() } else { text };
        let show =
            |row: &Row, value: f64| known(value, row.figure.show(value).replace(" messages", ""));
        let cells = |row: &Row, least: f64, socket: Option<f64>| {
            [
                show(row, row.figure.value()),
                show(row, least),
                ratio(row.of_least),
                ratio(row.of_beside),
                show(row, socket.unwrap_or(f64::NAN)),
            ]
        };
        let limits = |row: &Row| row.baselines.least_per_s;
        let one_way =
            cells(latency, latency.baselines.least_one_way_ns, latency.unix_socket_one_way_ns);
        let per_s = cells(rate, limits(rate), rate.unix_socket_per_s);
        let mut line = vec![latency.size.to_string()];
        line.extend(one_way.into_iter().chain(per_s));
        let steady = if latency.steady && rate.steady { "" } else { " (not steady)" };
        line.push(format!("{}{steady}", row::ns(latency.baselines.raw_line_one_way_ns)));
        table.add_row(line);
    }
    row::align_right(&mut table, 0..12);
    table
}
