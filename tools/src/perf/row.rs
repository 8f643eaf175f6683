//! One result: a JSON object for programs, a table for people.

use super::bracket::{Baselines, is_not_measured};
use super::stats::Percentiles;
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The measured quantity and its values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Figure {
    Latency {
        one_way_ns: Percentiles,
    },
    /// Messages that are ready, taken by two threads and by one. Before `Rate`, which would
    /// otherwise be parsed from its fields.
    Receivers {
        messages_per_s: f64,
        one_thread_messages_per_s: f64,
    },
    Rate {
        messages_per_s: f64,
    },
    Bandwidth {
        bytes_per_s: f64,
    },
    /// There and back, if a program waits for that.
    RoundTrip {
        round_trip_ns: Percentiles,
    },
    /// Resident bytes of one outstanding call, beside its payload, in each process.
    Memory {
        client_bytes_per_call: f64,
        server_bytes_per_call: f64,
    },
    /// Until an aperture was revoked, and until its holder knew.
    Revoke {
        revoke_ns: f64,
        holder_knows_ns: f64,
    },
    /// The publisher's cost of a sample that was written in place.
    Publish {
        eight_ns: f64,
        one_ns: f64,
    },
}

impl Figure {
    /// The value by which runs are ordered.
    pub fn value(&self) -> f64 {
        match self {
            Self::Latency { one_way_ns } => one_way_ns.p50,
            Self::Rate { messages_per_s } | Self::Receivers { messages_per_s, .. } => {
                *messages_per_s
            }
            Self::Bandwidth { bytes_per_s } => *bytes_per_s,
            Self::RoundTrip { round_trip_ns } => round_trip_ns.p50,
            Self::Memory { client_bytes_per_call, server_bytes_per_call } => {
                client_bytes_per_call.max(*server_bytes_per_call)
            }
            Self::Revoke { revoke_ns, .. } => *revoke_ns,
            Self::Publish { eight_ns, .. } => *eight_ns,
        }
    }

    /// A latency, half a round trip or a rate, as a multiple of the least checked message's; `None`
    /// for other figures, or if that was not measured.
    pub fn of_least(&self, baselines: &Baselines) -> Option<f64> {
        let ratio = match self {
            Self::Latency { one_way_ns } => one_way_ns.p50 / baselines.least_one_way_ns,
            Self::RoundTrip { round_trip_ns } => {
                round_trip_ns.p50 / 2.0 / baselines.least_one_way_ns
            }
            Self::Rate { messages_per_s } => messages_per_s / baselines.least_per_s,
            _ => return None,
        };
        (!is_not_measured(&ratio)).then_some(ratio)
    }

    /// [`value`](Self::value) and the like, for people.
    pub fn show(&self, value: f64) -> String {
        match self {
            Self::Latency { .. } | Self::RoundTrip { .. } => ns(value),
            Self::Revoke { .. } | Self::Publish { .. } => ns(value),
            Self::Rate { .. } | Self::Receivers { .. } => per_second(value, " messages"),
            Self::Bandwidth { .. } => per_second(value, "B"),
            Self::Memory { .. } => format!("{value:.0} B"),
        }
    }
}

/// The relation of a figure to another of the same run, mostly that of another row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Relation {
    /// Above the raw interface's latency.
    AboveRaw { above_raw_ns: f64 },
    /// As a multiple of the raw interface's latency.
    OfRaw { of_raw_one_way: f64 },
    /// As a part of memcpy into the other process's memory.
    OfMemcpy { of_memcpy: f64 },
    /// Of a sample to eight subscribers: as a multiple of that to one, in the same run.
    OfOneSubscriber { of_one_subscriber: f64 },
    /// Of two threads: as a multiple of one thread's, in the same run.
    OfOneThread { of_one_thread: f64 },
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AboveRaw { above_raw_ns } => write!(f, "{above_raw_ns:+.1} ns to raw"),
            Self::OfRaw { of_raw_one_way } => write!(f, "{of_raw_one_way:.2} of raw one way"),
            Self::OfMemcpy { of_memcpy } => write!(f, "{of_memcpy:.2} of memcpy"),
            Self::OfOneSubscriber { of_one_subscriber } => {
                write!(f, "{of_one_subscriber:.2} of one subscriber")
            }
            Self::OfOneThread { of_one_thread } => write!(f, "{of_one_thread:.2} of one thread"),
        }
    }
}

/// The interface of a row without a protocol.
fn raw() -> String {
    "raw".to_owned()
}

/// The median of several runs, with the limits of that run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// latency, rate or bandwidth; of a protocol also round-trip, memory, revoke or publish.
    pub test: String,
    /// The interface: "raw", or a name from `hamlyn perf protocols`.
    #[serde(default = "raw")]
    pub protocol: String,
    /// Bytes of a message.
    pub size: u64,
    /// polled, adaptive or blocking.
    pub mode: String,
    /// Idle links beside the busy one.
    pub links: u32,
    #[serde(flatten)]
    pub figure: Figure,
    #[serde(flatten)]
    pub relation: Option<Relation>,
    #[serde(flatten)]
    pub baselines: Baselines,
    /// A latency or a rate as a multiple of the least checked message of the same run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of_least: Option<f64>,
    /// Another length of message in the same run, ..
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub beside_bytes: Option<u64>,
    /// .. its figure, in the unit of this one, the mean of those before and after, ..
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub beside: Option<f64>,
    /// .. and this figure as a multiple of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of_beside: Option<f64>,
    /// A Unix stream socket in the same run, whose ends poll or sleep as Hamlyn's do: half a round
    /// trip, the mean of those before and after Hamlyn's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unix_socket_one_way_ns: Option<f64>,
    /// The same: messages or bytes a second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unix_socket_per_s: Option<f64>,
    /// The figure as a multiple of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of_unix_socket: Option<f64>,
    /// A bare TCP connection with TLS and the same cipher, in the same run, if the messages go over
    /// a link to another host: nanoseconds one way, messages or bytes per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bare_tls: Option<f64>,
    /// The figure as a multiple of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of_bare_tls: Option<f64>,
    /// `fi_pingpong` with the same provider, in the same run, if the messages go over libfabric and
    /// it is installed: nanoseconds one way (a mean), or bytes per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fi_pingpong: Option<f64>,
    /// The figure as a multiple of it; for a latency, its mean.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of_fi_pingpong: Option<f64>,
    /// The runs of which this is the median: those whose raw lines agree with that of most.
    pub runs: u32,
    /// The lowest and the highest of the same runs (for a latency: of the medians).
    pub spread: [f64; 2],
    /// Runs discarded because the cores moved meanwhile.
    pub repeats: u32,
    /// Whether the raw line stayed within a quarter during the run.
    pub steady: bool,
    /// The share of the two processors that others, processes and the host of a virtual machine,
    /// used during the run, in percent; absent if the run was too short to tell.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub others_percent: Option<f64>,
}

/// A table without borders, like all tables of this command.
pub fn table<'a>(header: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    for line in [TableComponent::HorizontalLines, TableComponent::MiddleIntersections] {
        table.remove_style(line);
    }
    table
}

/// Aligns columns of numbers right.
pub fn align_right(table: &mut Table, columns: impl IntoIterator<Item = usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// `12.3 us` of 12300.
pub fn ns(value: f64) -> String {
    match value {
        v if v < 1e3 => format!("{v:.0} ns"),
        v if v < 1e6 => format!("{:.1} us", v / 1e3),
        v => format!("{:.1} ms", v / 1e6),
    }
}

/// `63.2 GB/s` of 6.32e10.
pub fn per_second(value: f64, unit: &str) -> String {
    let (value, prefix) = match value {
        v if v < 1e3 => (v, ""),
        v if v < 1e6 => (v / 1e3, "k"),
        v if v < 1e9 => (v / 1e6, "M"),
        v => (v / 1e9, "G"),
    };
    format!("{value:.1} {prefix}{unit}/s")
}

impl Row {
    /// As lines of name and value.
    pub fn to_table(&self) -> Table {
        let mut table = table([&*format!("{} of {} bytes", self.test, self.size), ""]);
        let mut line = |name: &str, value: String| {
            table.add_row([name.to_owned(), value]);
        };
        match self.figure {
            Figure::Latency { one_way_ns } => {
                line("one way, median", ns(one_way_ns.p50));
                line("one way, 99 of 100 below", ns(one_way_ns.p99));
                line("one way, 999 of 1000 below", ns(one_way_ns.p999));
                let above = one_way_ns.p50 - self.baselines.raw_line_one_way_ns;
                if !is_not_measured(&above) {
                    line("above the raw line", ns(above));
                }
            }
            Figure::Rate { messages_per_s } => {
                line("messages", per_second(messages_per_s, " messages"));
            }
            Figure::Bandwidth { bytes_per_s } => {
                line("bandwidth", per_second(bytes_per_s, "B"));
                let mut ratio = |name: &str, limit: f64| {
                    if !is_not_measured(&limit) {
                        line(name, format!("{:.2}", bytes_per_s / limit));
                    }
                };
                ratio("of the bare two-copy ring", self.baselines.copy_ring_bytes_per_s);
                ratio("of memcpy", self.baselines.memcpy_bytes_per_s);
            }
            figure => line("median", figure.show(figure.value())),
        }
        if let Some(of_least) = self.of_least {
            line("of the least checked message", format!("{of_least:.2}"));
        }
        if let Some((ratio, bytes)) = self.of_beside.zip(self.beside_bytes) {
            line(&format!("of the same with {bytes} bytes"), format!("{ratio:.2}"));
        }
        if let Some(of_unix_socket) = self.of_unix_socket {
            line("of a Unix socket", format!("{of_unix_socket:.2}"));
        }
        if let Some((ratio, value)) = self.of_bare_tls.zip(self.bare_tls) {
            line("of bare TCP with TLS", format!("{ratio:.2}"));
            line("bare TCP with TLS", self.figure.show(value));
        }
        if let Some((ratio, value)) = self.of_fi_pingpong.zip(self.fi_pingpong) {
            line("of fi_pingpong", format!("{ratio:.2}"));
            line("fi_pingpong", self.figure.show(value));
        }
        if let Some((bytes, value)) = self.beside_bytes.zip(self.beside) {
            line(&format!("the same with {bytes} bytes"), self.figure.show(value));
        }
        if let Some(value) = self.unix_socket_per_s {
            line("Unix socket", self.figure.show(value));
        }
        let show = |value| self.figure.show(value);
        let [low, high] = self.spread;
        if self.runs > 1 {
            line("spread", format!("{} to {} in {} runs", show(low), show(high), self.runs));
        }
        line("mode", format!("{}, {} idle links", self.mode, self.links));
        let limits = &self.baselines;
        for (name, value, text) in [
            ("raw cache line, one way", limits.raw_line_one_way_ns, ns as fn(f64) -> String),
            ("least checked message, one way", limits.least_one_way_ns, ns),
            ("least checked messages", limits.least_per_s, |rate| per_second(rate, "")),
            ("memcpy", limits.memcpy_bytes_per_s, |rate| per_second(rate, "B")),
            ("bare two-copy ring", limits.copy_ring_bytes_per_s, |rate| per_second(rate, "B")),
            ("Unix socket, one way", self.unix_socket_one_way_ns.unwrap_or(f64::NAN), ns),
        ] {
            if !is_not_measured(&value) {
                line(name, text(value));
            }
        }
        let steady = if self.steady { "" } else { " (not steady)" };
        line("placement", format!("{}{steady}", limits.placement));
        if let Some(percent) = self.others_percent {
            line("others took of the processors", format!("{percent:.0} %"));
        }
        align_right(&mut table, [1]);
        table
    }
}

#[cfg(test)]
mod tests {
    use super::super::placement::Placement;
    use super::*;

    #[test]
    fn a_row_has_the_fields_that_programs_read() {
        let row = Row {
            test: "latency".into(),
            protocol: raw(),
            size: 16,
            mode: "polled".into(),
            links: 0,
            figure: Figure::Latency {
                one_way_ns: Percentiles { p50: 80.0, p99: 100.0, p999: 200.0, mean: None },
            },
            relation: Some(Relation::AboveRaw { above_raw_ns: 5.0 }),
            baselines: Baselines {
                raw_line_one_way_ns: 54.0,
                least_one_way_ns: 64.0,
                least_per_s: 1e8,
                memcpy_bytes_per_s: 1e10,
                copy_ring_bytes_per_s: 1e10,
                placement: Placement::Near,
            },
            of_least: Some(1.25),
            beside_bytes: Some(16),
            beside: Some(64.0),
            of_beside: Some(1.24),
            unix_socket_one_way_ns: Some(8_000.0),
            unix_socket_per_s: None,
            of_unix_socket: Some(0.01),
            bare_tls: None,
            of_bare_tls: None,
            fi_pingpong: None,
            of_fi_pingpong: None,
            runs: 5,
            spread: [79.0, 81.0],
            repeats: 0,
            steady: true,
            others_percent: Some(12.0),
        };
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["one_way_ns"]["p999"], 200.0);
        assert_eq!(json["placement"], "near");
        assert_eq!((&json["protocol"], &json["above_raw_ns"]), (&"raw".into(), &5.0.into()));
        assert_eq!(json["others_percent"], 12.0);
        assert_eq!((&json["least_one_way_ns"], &json["of_least"]), (&64.0.into(), &1.25.into()));
        for field in ["test", "size", "mode", "links", "raw_line_one_way_ns", "least_per_s"] {
            assert!(!json[field].is_null(), "{field}");
        }
        assert_eq!(serde_json::from_value::<Row>(json).unwrap(), row);
        let text = row.to_table().to_string();
        for part in ["26 ns", "64 ns", "100.0 M/s", "1.25", "8.0 us", "0.01", "12 %", "1.24"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let spread = |runs| Row { runs, ..row.clone() }.to_table().to_string().contains("spread");
        assert!(spread(5) && !spread(1), "one run has no spread");
        // Both ends on one processor: nothing that travels between two is included.
        let baselines = Baselines::of_raw_line(f64::NAN);
        let row = Row { baselines, of_least: None, ..row };
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["placement"], "one-core");
        for field in ["raw_line_one_way_ns", "least_one_way_ns", "least_per_s", "of_least"] {
            assert!(json.get(field).is_none(), "{field}");
        }
        let text = row.to_table().to_string();
        assert!(text.contains("one core") && !text.contains("NaN"), "{text}");
    }

    #[test]
    fn latencies_and_rates_stand_to_the_least_of_their_run() {
        let baselines =
            Baselines { least_one_way_ns: 50.0, least_per_s: 1e8, ..Baselines::of_raw_line(40.0) };
        let trips = Percentiles { p50: 75.0, p99: 80.0, p999: 90.0, mean: None };
        let of = |figure: Figure| figure.of_least(&baselines);
        assert_eq!(of(Figure::Latency { one_way_ns: trips }), Some(1.5));
        assert_eq!(of(Figure::RoundTrip { round_trip_ns: trips }), Some(0.75));
        assert_eq!(of(Figure::Rate { messages_per_s: 5e7 }), Some(0.5));
        assert_eq!(of(Figure::Bandwidth { bytes_per_s: 1e9 }), None);
        let without = Baselines::of_raw_line(40.0);
        assert_eq!(Figure::Latency { one_way_ns: trips }.of_least(&without), None);
    }
}
