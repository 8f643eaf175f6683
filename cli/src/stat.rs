//! `hamlyn stat`.
//!
//! The figures are asked for over the process's control socket, which its housekeeping answers: its
//! fast path knows nothing of it. Only its owner, and root, is answered.

use crate::arguments::StatArguments;
use crate::figures::{Figures, Link};
use crate::output;
use crate::perf::row;
use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use hamlyn::Config;
use hamlyn::control::{ServiceName, list_services, stat_of};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(5);

/// What one process said, and when.
struct Told {
    name: String,
    at: Instant,
    figures: Figures,
}

/// `hamlyn stat [NAME]`.
pub fn run(arguments: &StatArguments) -> Result<()> {
    let config = Config::from_env()?;
    let Some(pause) = arguments.watch else {
        return show(&config, arguments, &BTreeMap::new()).map(|_| ());
    };
    let mut before = BTreeMap::new();
    let mut rounds = 0;
    loop {
        before = show(&config, arguments, &before)?;
        rounds += 1;
        if arguments.times.is_some_and(|times| rounds >= times) {
            return Ok(());
        }
        std::thread::sleep(pause);
    }
}

/// One look at all that are asked for; what they said, by name.
fn show(
    config: &Config,
    arguments: &StatArguments,
    before: &BTreeMap<String, Told>,
) -> Result<BTreeMap<String, Told>> {
    let (told, failed) = match &arguments.name {
        Some(name) => {
            let service: ServiceName = name.parse()?;
            let text = stat_of(config, &service, PATIENCE)
                .with_context(|| format!("no counters of {name}"))?;
            (vec![told(name, &text)], 0)
        }
        None => all(config),
    };
    if arguments.prometheus {
        output::line(prometheus(&told).trim_end())?;
    } else {
        for told in &told {
            let before = before.get(&told.name);
            match (arguments.json, arguments.watch) {
                (true, _) => output::line(as_json(told))?,
                (false, None) => print(told)?,
                (false, Some(_)) => print_rates(told, before)?,
            }
        }
        if told.is_empty() && failed == 0 && !arguments.json {
            output::line("This user serves nothing now.")?;
        }
    }
    if failed > 0 && arguments.watch.is_none() {
        bail!("{failed} of {} processes did not answer", failed + told.len());
    }
    Ok(told.into_iter().map(|told| (told.name.clone(), told)).collect())
}

fn told(name: &str, text: &str) -> Told {
    Told { name: name.into(), at: Instant::now(), figures: Figures::of(text) }
}

/// Of every service of this user; and how many did not answer.
fn all(config: &Config) -> (Vec<Told>, usize) {
    let user = rustix::process::geteuid().as_raw();
    let services = list_services(config)
        .entries
        .into_iter()
        .filter(|service| service.uid == Some(user) && service.is_alive != Some(false));
    let (mut found, mut failed) = (Vec::new(), 0);
    for service in services {
        let text = service
            .name
            .parse()
            .map_err(anyhow::Error::from)
            .and_then(|name| Ok(stat_of(config, &name, PATIENCE)?));
        match text {
            Ok(text) => found.push(told(&service.name, &text)),
            Err(error) => {
                failed += 1;
                eprintln!("hamlyn: no counters of {}: {error:#}", service.name);
            }
        }
    }
    (found, failed)
}

fn value_of(value: &str) -> Value {
    value.parse::<u64>().map_or_else(|_| json!(value), |value| json!(value))
}

fn as_json(told: &Told) -> Value {
    let map = |of: &mut dyn Iterator<Item = (&String, &String)>| -> Map<String, Value> {
        of.map(|(name, value)| (name.clone(), value_of(value))).collect()
    };
    let counters = map(&mut told.figures.counters.iter().map(|(name, value)| (name, value)));
    let links: Vec<Value> = told
        .figures
        .links
        .iter()
        .map(|(number, link)| {
            let mut link = map(&mut link.0.iter());
            link.insert("link".into(), json!(number));
            Value::Object(link)
        })
        .collect();
    json!({ "name": told.name, "counters": counters, "links": links })
}

fn print(told: &Told) -> Result<()> {
    let mut table = row::table([&*told.name, ""]);
    for (name, value) in &told.figures.counters {
        table.add_row([name, value]);
    }
    row::align_right(&mut table, [1]);
    output::line(table)?;
    for (number, link) in &told.figures.links {
        output::line(in_words(*number, link))?;
    }
    Ok(())
}

/// A link, in two lines.
fn in_words(number: u32, link: &Link) -> String {
    let size = |name| ByteSize::b(link.number(name)).display().iec();
    format!(
        "link {number}: {}; made by {}{}\n  {} messages sent ({}), {} packets taken ({}), {} not \
         taken yet, {} messages queued; {}",
        link.peer(),
        link.text("made_by"),
        match link.text("service") {
            "" => String::new(),
            service => format!(", service {service}"),
        },
        link.number("messages_sent"),
        size("ring_bytes_sent"),
        link.number("packets_taken"),
        size("ring_bytes_taken"),
        size("ring_bytes_waiting"),
        link.number("messages_queued"),
        link.text("path"),
    )
}

/// What each link does now, and which counters have gone up.
fn print_rates(now: &Told, before: Option<&Told>) -> Result<()> {
    let seconds = before.map(|before| (now.at - before.at).as_secs_f64().max(1e-9));
    let rate = |name: &str, now: &Link, before: Option<&Link>| match (seconds, before) {
        (Some(seconds), Some(before)) => {
            let moved = now.number(name).saturating_sub(before.number(name));
            moved as f64 / seconds
        }
        _ => 0.0,
    };
    let mut table = row::table([
        &*now.name,
        "peer",
        "sent/s",
        "bytes/s",
        "taken/s",
        "bytes/s",
        "not taken",
        "queued",
    ]);
    for (number, link) in &now.figures.links {
        let earlier = before.and_then(|before| before.figures.links.get(number));
        // Another link may have its number now.
        let earlier = earlier.filter(|earlier| earlier.text("peer_node") == link.text("peer_node"));
        let bytes =
            |name| ByteSize::b(rate(name, link, earlier) as u64).display().iec().to_string();
        let each = |name| format!("{:.0}", rate(name, link, earlier));
        table.add_row([
            format!("link {number}"),
            link.peer(),
            each("messages_sent"),
            bytes("ring_bytes_sent"),
            each("packets_taken"),
            bytes("ring_bytes_taken"),
            ByteSize::b(link.number("ring_bytes_waiting")).display().iec().to_string(),
            link.text("messages_queued").into(),
        ]);
    }
    row::align_right(&mut table, 2..8);
    output::line(table)?;
    if let Some(before) = before {
        let moved = now.figures.counters.iter().filter_map(|(name, _)| {
            let more = now.figures.number(name).checked_sub(before.figures.number(name))?;
            (more > 0).then(|| format!("{name} +{more}"))
        });
        let moved: Vec<String> = moved.collect();
        if !moved.is_empty() {
            output::line(moved.join(", "))?;
        }
    }
    Ok(())
}

/// The text format of Prometheus (version 0.0.4): a metric for each counter and for each figure of a
/// link, with the service as a label.
fn prometheus(told: &[Told]) -> String {
    let mut metrics: BTreeMap<String, BTreeSet<(String, u64)>> = BTreeMap::new();
    for told in told {
        let service = label(&told.name);
        for (name, value) in &told.figures.counters {
            if let Ok(value) = value.parse() {
                let rows = metrics.entry(metric(&format!("hamlyn_{name}"))).or_default();
                rows.insert((format!("service=\"{service}\""), value));
            }
        }
        for (number, link) in &told.figures.links {
            let peer = ["peer_user", "peer_process"].map(|name| label(link.text(name)));
            let labels = format!(
                "service=\"{service}\",link=\"{number}\",user=\"{}\",process=\"{}\"",
                peer[0], peer[1]
            );
            let names = [
                "messages_sent",
                "packets_taken",
                "ring_bytes_sent",
                "ring_bytes_taken",
                "ring_bytes_waiting",
                "messages_queued",
            ];
            for name in names.into_iter().filter(|name| link.0.contains_key(*name)) {
                let rows = metrics.entry(format!("hamlyn_link_{name}")).or_default();
                rows.insert((labels.clone(), link.number(name)));
            }
        }
    }
    let mut text = String::new();
    for (metric, rows) in metrics {
        let levels =
            ["_waiting", "_queued", "hamlyn_links", "hamlyn_waits", "_mapped", "_receivers"];
        let is_level = levels.iter().any(|level| metric.ends_with(level));
        let kind = if is_level { "gauge" } else { "counter" };
        let _ = writeln!(text, "# TYPE {metric} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(text, "{metric}{{{labels}}} {value}");
        }
    }
    text
}

/// A name of letters, digits and `_`, whatever another process wrote.
fn metric(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_wrote_stays_within_its_place_in_the_text_of_prometheus() {
        let text = "a.b 3\nc\"{} 4\nword x\nlink.2.peer_user \"}\\\nlink.2.messages_sent 9\n";
        let text = prometheus(&[told("x", text)]);
        let wanted = "# TYPE hamlyn_a_b counter\nhamlyn_a_b{service=\"x\"} 3\n\
                      # TYPE hamlyn_c___ counter\nhamlyn_c___{service=\"x\"} 4\n\
                      # TYPE hamlyn_link_messages_sent counter\n\
                      hamlyn_link_messages_sent{service=\"x\",link=\"2\",user=\"\\\"}\\\\\",process=\"\"} 9\n";
        assert_eq!(text, wanted);
    }
}
