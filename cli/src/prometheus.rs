//! Figures in the text format of Prometheus (version 0.0.4).
//!
//! A process that answers may be hostile, and its text stays within its place: only names that this
//! command knows become metrics, a value is a whole number or is left out, a label is escaped and
//! bounded, and only one of two rows with the same labels is kept. The look's budget bounds the
//! number of rows.

use crate::budget::{Budget, Of};
use crate::figures::{Link, RoomWaits};
use crate::look::{Look, Told, user_of};
use hamlyn::{control, interface};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Most characters of a label's value.
const LABEL_MAX: usize = 128;
/// Most characters of a label that is a number, or `unknown`.
const NUMBER_MAX: usize = 20;

/// The type of a figure's metric.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// It only rises; its name ends in `_total`.
    Counter,
    /// A current value.
    Gauge,
    /// Milliseconds, as seconds.
    Seconds,
    /// A distribution of times.
    Histogram,
}

/// Figures of a process, beside its counters: figure, metric, meaning.
const OF_PROCESS: &str = "\
uptime_ms uptime_seconds Since the node was made.
waits waits 1: its program waits for messages, as far as it has said.
waiting_ms waiting_seconds For so long its program has waited; 0: it does not.
turns turns_total Long turns over its links: a program that makes calls has them.
links links Links that there are.
requests_held requests_held Requests that were received and are not replied to.
samples_dropped samples_dropped_total Samples that subscribers were not sent, because they were slow.
requests_held_ms requests_held_seconds All of these were received at least so long ago; 0: that is not known.
control.receivers control_receivers Threads that receive descriptors.
control.descriptors_leaked control_descriptors_leaked_total Descriptors of strangers that could not be closed.
control.memory_unlocked control_memory_unlocked_total Rings that could not be locked in memory.
control.apertures_still_mapped control_apertures_still_mapped Apertures whose mapping is still being given back.";

/// Figures of a link, likewise.
const OF_LINK: &str = "\
messages_sent messages_sent_total Messages sent.
packets_taken packets_taken_total Packets taken, refused ones included.
packets_refused packets_refused_total Packets of the peer that were refused.
ring_bytes_sent ring_sent_bytes_total Bytes written into the rings, in lines of 64, headers included.
ring_bytes_taken ring_taken_bytes_total Bytes taken out of the rings, likewise.
ring_bytes_waiting ring_waiting_bytes Bytes that the peer has yet to take.
ring_bytes ring_size_bytes Bytes of the ring that this process writes.
messages_queued messages_queued Messages that wait in work queues for room.
wakes_sent wakes_sent_total Wake-ups of the peer.
waits_for_room_ms waits_for_room_seconds For so long somebody here has waited, and the peer has taken nothing; 0: nobody waits.
waits_for_buffer_ms waits_for_buffer_seconds For so long a sender here has found no buffer of its receiver's free; 0: none waits.
buffers_held buffers_held A receiver's buffers with records that its program has not released.
buffers_max buffers_max Buffers that the receiver may have; those of longer records are not among them.
buffers_held_ms buffers_held_seconds None of these was released for at least so long; 0: that is not known.
buffers_short buffers_short 1: no buffer is left for what its sender sends next.
samples_held samples_held Samples of a publisher's pool that the subscriber's program has not dropped.
samples_max samples_max Samples of the pool that it may have at once.
samples_held_ms samples_held_seconds None of these was dropped for at least so long; 0: that is not known.
samples_short samples_short 1: it gets none until it drops one.
places_held places_held Samples that have come to a subscriber and that its program has not received.
places_max places_max Samples for which the subscriber has room.
places_held_ms places_held_seconds None of these was received for at least so long; 0: that is not known.
places_short places_short 1: its publisher may find no room.
samples_dropped samples_dropped_total Samples that the subscriber was not sent, because it was slow.
messages_held messages_held Messages that have come to a stream's receiver, a record or several in a buffer, and that its program has not received.
messages_max messages_max Buffers for such messages.
messages_held_ms messages_held_seconds None of these was received for at least so long; 0: that is not known.
messages_short messages_short 1: its sender may find no buffer free.
small_messages_held small_messages_held The same of small ones, of 64 bytes and less, which have places of their own.
small_messages_max small_messages_max Places for small ones.
small_messages_held_ms small_messages_held_seconds None was received for at least so long; 0: that is not known.
small_messages_short small_messages_short 1: its sender may find no place free.
window_held window_held_bytes Bytes of a byte stream that have come and that the program has not read.
window_max window_max_bytes Bytes for which the reader has room.
window_held_ms window_held_seconds None of these was read for at least so long; 0: that is not known.
window_short window_short 1: its writer may find no room.
peer_waits_for_room peer_waits_for_room 1: the peer sleeps until this process takes something.
requests_held requests_held Requests of the peer that were received and are not replied to.
age_ms age_seconds Since the link was made.";

/// The rows of a table: figure, metric, kind, meaning.
fn rows(
    table: &'static str,
) -> impl Iterator<Item = (&'static str, &'static str, Kind, &'static str)> {
    table.lines().filter_map(|line| {
        let (figure, rest) = line.split_once(' ')?;
        let (metric, help) = rest.split_once(' ')?;
        let kind = match (figure.ends_with("_ms"), metric.ends_with("_total")) {
            (true, _) => Kind::Seconds,
            (_, true) => Kind::Counter,
            _ => Kind::Gauge,
        };
        Some((figure, metric, kind, help))
    })
}

/// A metric: its meaning, its kind, and its rows by their labels.
struct Metric {
    help: String,
    kind: Kind,
    rows: BTreeMap<String, String>,
}

#[derive(Default)]
struct Metrics(BTreeMap<String, Metric>);

impl Metrics {
    fn add(&mut self, name: &str, kind: Kind, help: &str, labels: &str, value: String) {
        let new = || Metric { help: help.trim().into(), kind, rows: BTreeMap::new() };
        let metric = self.0.entry(format!("hamlyn_{name}")).or_insert_with(new);
        metric.rows.entry(labels.into()).or_insert(value);
    }

    fn add_figure(&mut self, name: &str, kind: Kind, help: &str, labels: &str, figure: &str) {
        let Ok(number) = figure.parse::<u64>() else { return };
        let value = match kind {
            Kind::Seconds => format!("{}.{:03}", number / 1000, number % 1000),
            _ => number.to_string(),
        };
        self.add(name, kind, help, labels, value);
    }

    /// Returns the number of links for which the budget had no room.
    fn of_process(&mut self, told: &Told, budget: &Budget) -> u64 {
        let service = format!("service=\"{}\"", label(&told.name));
        let known = |number: Option<u32>| number.map_or("unknown".into(), |n| n.to_string());
        let info = format!(
            "{service},user=\"{}\",process=\"{}\",program=\"{}\",version=\"{}\"",
            known(told.user),
            known(told.process),
            label(told.program.as_deref().unwrap_or("")),
            label(told.figures.text("version")),
        );
        self.add("info", Kind::Gauge, "Who serves it.", &info, "1".into());
        self.add("up", Kind::Gauge, UP, &service, "1".into());
        self.add("readable", Kind::Gauge, READABLE, &service, "1".into());
        let took = format!("{:.6}", told.took.as_secs_f64());
        self.add("look_seconds", Kind::Gauge, "Until it had answered.", &service, took);
        for (figure, metric, kind, help) in rows(OF_PROCESS) {
            self.add_figure(metric, kind, help, &service, told.figures.text(figure));
        }
        let described = interface::Counters::described();
        for (name, help) in described.into_iter().chain(control::machine::Counters::described()) {
            let metric = format!("{}_total", name.replace('.', "_"));
            let figure = told.figures.text(name);
            self.add_figure(&metric, Kind::Counter, help, &service, figure);
            if let Some(kind) = refused(name) {
                let labels = format!("{service},kind=\"{kind}\"");
                self.add_figure("refused_total", Kind::Counter, REFUSED, &labels, figure);
            }
        }
        if let Some(waits) = RoomWaits::of(&told.figures) {
            self.of_room_waits(&service, &waits);
        }
        // The links of a process with several names are shown once.
        let user = user_of(&told.name);
        let links = told.figures.links.iter().filter(|_| told.same_as.is_none());
        links
            .filter(|(number, link)| !self.of_link(&service, **number, link, budget, &user))
            .count() as u64
    }

    fn of_room_waits(&mut self, service: &str, waits: &RoomWaits) {
        let help = "How long senders waited until the peer took something.";
        let name = "room_wait_seconds";
        let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        for (i, (bound, count)) in waits.up_to.iter().enumerate() {
            // The order stands in front of the labels, as it is not that of their letters.
            let labels = format!("{i:02}_bucket{{{service},le=\"{}\"}}", seconds(*bound));
            self.add(name, Kind::Histogram, help, &labels, count.to_string());
        }
        let ends = [
            (format!("97_bucket{{{service},le=\"+Inf\"}}"), waits.count.to_string()),
            (format!("98_sum{{{service}}}"), seconds(waits.sum_us)),
            (format!("99_count{{{service}}}"), waits.count.to_string()),
        ];
        for (labels, value) in ends {
            self.add(name, Kind::Histogram, help, &labels, value);
        }
    }

    /// Returns whether the budget had room for it.
    fn of_link(
        &mut self,
        service: &str,
        number: u32,
        link: &Link,
        budget: &Budget,
        user: &str,
    ) -> bool {
        let number_or_word =
            |name| label(&link.text(name).chars().take(NUMBER_MAX).collect::<String>());
        let peer = ["peer_user", "peer_process"].map(number_or_word);
        let labels = format!(
            "{service},link=\"{number}\",peer_user=\"{}\",peer_process=\"{}\",peer_program=\"{}\",\
             peer_host=\"{}\"",
            peer[0],
            peer[1],
            label(&link.peer_program().unwrap_or_default()),
            label(link.text("peer_host")),
        );
        if !budget.take(user, Of::Labels, labels.len() * OF_LINK.lines().count()) {
            return false;
        }
        for (figure, metric, kind, help) in rows(OF_LINK) {
            self.add_figure(&format!("link_{metric}"), kind, help, &labels, link.text(figure));
        }
        true
    }
}

const REFUSED: &str =
    "Packets and connections that were refused, by reason; without looks at figures.";

/// The label of a counter in the metric of all refusals: `control_user` is `control.refused_user`.
/// `None` also for refused requests for figures: a user who looks at others' figures attempts
/// nothing else.
fn refused(counter: &str) -> Option<String> {
    let is_one = counter.contains("refused_") && counter != "control.refused_statistics";
    is_one.then(|| counter.replacen("refused_", "", 1).replace('.', "_"))
}

const UP: &str = "1: the service answered; 0: it did not.";
const READABLE: &str =
    "Of one that is up. 1: it told its figures; 0: it tells them to others alone.";

const LEFT_OUT: &str =
    "What the last look left out, because there was too much of it, or it took too long.";

/// The text of all metrics.
pub fn text(look: &Look) -> String {
    let mut metrics = Metrics::default();
    let users: BTreeSet<String> = look.told.iter().map(|told| user_of(&told.name)).collect();
    let budget = Budget::of_users(users.len());
    let links: u64 = look.told.iter().map(|told| metrics.of_process(told, &budget)).sum();
    for (name, _) in &look.failed {
        let service = format!("service=\"{}\"", label(name));
        let is_there = look.closed.contains(name);
        metrics.add("up", Kind::Gauge, UP, &service, u8::from(is_there).to_string());
        if is_there {
            metrics.add("readable", Kind::Gauge, READABLE, &service, "0".into());
        }
    }
    let left_out = |what: &str, user: &str| format!("what=\"{what}\",user=\"{}\"", label(user));
    let names = look.not_asked.iter().map(|(user, count)| (left_out("names", user), *count as u64));
    let lines = (left_out("lines", ""), look.lines_left_out() + links);
    let directories = (left_out("directories", ""), look.unseen.len() as u64);
    for (labels, count) in names.chain([lines, directories]) {
        metrics.add("look_left_out", Kind::Gauge, LEFT_OUT, &labels, count.to_string());
    }
    let mut text = String::new();
    for (name, metric) in metrics.0 {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge | Kind::Seconds => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = metric.help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in metric.rows {
            let _ = match (metric.kind, labels.get(2..)) {
                (Kind::Histogram, Some(rest)) => writeln!(text, "{name}{rest} {value}"),
                _ => writeln!(text, "{name}{{{labels}}} {value}"),
            };
        }
    }
    text
}

/// A label's value from text that another process wrote.
fn label(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(LABEL_MAX) {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figures;
    use std::time::{Duration, Instant};

    fn look(text: &str) -> Look {
        let told = Told {
            name: "x".into(),
            at: Instant::now(),
            took: Duration::from_micros(1500),
            host: None,
            user: Some(7),
            process: Some(9),
            program: Some("p\"{}".into()),
            figures: Figures::of(text).into(),
            same_as: None,
        };
        let failed = [("y", "gone"), ("z", "not for you")];
        let failed = failed.map(|(name, why)| (name.into(), why.into())).into();
        Look { told: vec![told], failed, closed: ["z".into()].into(), ..Look::default() }
    }

    #[test]
    fn long_labels_of_links_use_up_a_budget_and_the_other_links_are_counted() {
        let host = "\u{10348}".repeat(128);
        let of = |i| format!("link.{i}.peer_host {host}\nlink.{i}.messages_sent 1\n");
        let figures: String = (0..2048).map(of).collect();
        let text = super::text(&look(&figures));
        let rows = text.matches("hamlyn_link_messages_sent_total{").count();
        assert!((500..1000).contains(&rows), "{rows}");
        let left_out =
            format!("hamlyn_look_left_out{{what=\"lines\",user=\"\"}} {}\n", 2048 - rows);
        assert!(text.contains(&left_out), "{rows} rows, and not {left_out}");
    }

    #[test]
    fn what_another_process_wrote_stays_within_its_place() {
        let long = "z".repeat(5000);
        let text = format!(
            "packets_sent 3\npackets_sent 4\nmy_own 3\nc\"{{}} 4\nbytes_sent -1\nuptime_ms 1234\n\
             version \"}} 1\\\nlink.2.peer_user \"}}\\\nlink.2.peer_process {long}\n\
             link.2.messages_sent 9\nlink.2.messages_sent 10\nlink.2.evil 1\n"
        );
        let text = super::text(&look(&text));
        for line in [
            "# HELP hamlyn_packets_sent_total Packets given to links.",
            "# TYPE hamlyn_packets_sent_total counter",
            "hamlyn_packets_sent_total{service=\"x\"} 3",
            "# TYPE hamlyn_uptime_seconds gauge",
            "hamlyn_uptime_seconds{service=\"x\"} 1.234",
            "hamlyn_look_seconds{service=\"x\"} 0.001500",
            "hamlyn_up{service=\"x\"} 1",
            "hamlyn_up{service=\"y\"} 0",
            "hamlyn_up{service=\"z\"} 1",
            "hamlyn_readable{service=\"x\"} 1",
            "hamlyn_readable{service=\"z\"} 0",
            "hamlyn_info{service=\"x\",user=\"7\",process=\"9\",program=\"p\\\"{}\",version=\"\\\"} 1\\\\\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        for word in ["my_own", "evil", "bytes_sent_total{", &"z".repeat(LABEL_MAX + 1)] {
            assert!(!text.contains(word), "{word}: {text}");
        }
        let sent =
            "hamlyn_link_messages_sent_total{service=\"x\",link=\"2\",peer_user=\"\\\"}\\\\\"";
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with(sent)).collect();
        assert!(rows.len() == 1 && rows[0].ends_with(" 10"), "{rows:?}");
    }

    #[test]
    fn refusals_are_one_metric_by_reason_without_looks_at_figures() {
        let text = super::text(&look(
            "refused_wrong_key 1\ncontrol.refused_user 2\ncontrol.hosts_refused_tls 3\n\
             control.refused_statistics 4\n",
        ));
        for (kind, count) in [("wrong_key", 1), ("control_user", 2), ("control_hosts_tls", 3)] {
            let line = format!("hamlyn_refused_total{{service=\"x\",kind=\"{kind}\"}} {count}");
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(!text.contains("kind=\"control_statistics\""), "{text}");
    }

    #[test]
    fn each_metric_that_the_page_on_operating_names_is_there() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md");
        let page = std::fs::read_to_string(page).unwrap();
        let text = super::text(&look(&every()));
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let named = page.split(|c| !is_part(c)).filter(|word| word.starts_with("hamlyn_"));
        // The pattern for all, and an interface of Python.
        let named: Vec<&str> = named.filter(|word| *word != "hamlyn_NAME_total").collect();
        assert!(named.len() > 10, "{named:?}");
        for name in named {
            let is_there = text.lines().any(|line| line.split('{').next() == Some(name));
            assert!(is_there, "{name} is in docs/operating.md, and is not exported");
        }
    }

    /// Every figure.
    fn every() -> String {
        interface::Counters::described()
            .into_iter()
            .chain(control::machine::Counters::described())
            .map(|(name, _)| format!("{name} 5\n"))
            .chain(rows(OF_PROCESS).map(|row| format!("{} 6\n", row.0)))
            .chain(["room_waits.le_us_1 1\nroom_waits.le_us_4 3\nroom_waits.count 4\nroom_waits.sum_us 70\n".into()])
            .chain(rows(OF_LINK).map(|row| format!("link.1.{} 7\n", row.0)))
            .collect()
    }

    // Prometheus itself demands this of the text: each metric has its two lines once, before its
    // rows, which differ in their labels; names that end in _total are those of counters, and no
    // others.
    #[test]
    fn the_text_is_as_prometheus_wants_it() {
        let text = super::text(&look(&every()));
        let (mut seen, mut current) = (std::collections::BTreeSet::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                current = rest.split(' ').next().unwrap().into();
                assert!(rest.len() > current.len() + 1, "{line}");
                assert!(seen.insert(current.clone()), "{line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let is_counter = rest == format!("{current} counter");
                let others = [format!("{current} gauge"), format!("{current} histogram")];
                assert!(is_counter || others.contains(&rest.to_owned()), "{line}");
                assert_eq!(is_counter, current.ends_with("_total"), "{line}");
            } else {
                let name = line.split('{').next().unwrap();
                let is_part =
                    ["_bucket", "_sum", "_count"].iter().any(|end| name == current.clone() + end);
                assert!(name == current || is_part, "{line}");
                assert!(
                    name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
                );
                assert!(seen.insert(line.rsplit_once(' ').unwrap().0.into()), "{line}");
            }
        }
        assert!(seen.len() > 100, "{text}");
        let buckets: Vec<_> =
            text.lines().filter(|line| line.contains("room_wait_seconds")).collect();
        assert_eq!(
            buckets[2..],
            [
                "hamlyn_room_wait_seconds_bucket{service=\"x\",le=\"0.000001\"} 1",
                "hamlyn_room_wait_seconds_bucket{service=\"x\",le=\"0.000004\"} 3",
                "hamlyn_room_wait_seconds_bucket{service=\"x\",le=\"+Inf\"} 4",
                "hamlyn_room_wait_seconds_sum{service=\"x\"} 0.000070",
                "hamlyn_room_wait_seconds_count{service=\"x\"} 4",
            ]
        );
    }
}
