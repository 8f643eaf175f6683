//! `hamlyn stat`.
//!
//! Asks for the figures over the process's control socket, which its housekeeping answers; its fast
//! path is not involved. Only its owner, and root, get an answer.

use crate::arguments::StatArguments;
use crate::figures::{Figures, Link, RoomWaits, is_stopped};
use crate::look::{self, Before, Look, Told, Watched};
use crate::prometheus;
use crate::words::{duration, most, several};
use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use hamlyn::Config;
use hamlyn_tools::output;
use hamlyn_tools::perf::row;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The time limit of a question.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// `hamlyn stat [NAME]`.
pub fn run(arguments: &StatArguments) -> Result<()> {
    let config = Config::from_env()?;
    let mut watched = Watched::new(arguments.name.as_slice());
    let Some(pause) = arguments.watch else {
        return show(&look(&config, arguments, &mut watched)?, arguments, &Before::new());
    };
    let mut before = Before::new();
    let mut rounds = 0;
    // Rates are between two looks.
    if !arguments.json && !arguments.prometheus {
        before = look::by_name(look(&config, arguments, &mut watched)?.told);
        std::thread::sleep(pause);
    }
    loop {
        let look = look(&config, arguments, &mut watched)?;
        show(&look, arguments, &before)?;
        before = look::by_name(look.told);
        rounds += 1;
        if arguments.times.is_some_and(|times| rounds >= times) {
            return Ok(());
        }
        std::thread::sleep(pause);
    }
}

/// One look at all requested processes.
fn look(config: &Config, arguments: &StatArguments, watched: &mut Watched) -> Result<Look> {
    Ok(match &arguments.name {
        // Its error becomes this command's.
        Some(name) if !arguments.prometheus => {
            let told =
                look::ask(config, &look::one_form(name), PATIENCE).with_context(
                    || match arguments.watch.is_some() && name.parse::<f64>().is_ok() {
                        true => {
                            format!("no counters of {name}; for {name} seconds say --watch={name}")
                        }
                        false => format!("no counters of {name}"),
                    },
                )?;
            Look { told: vec![told], ..Look::default() }
        }
        _ => look::ask_all(config, &watched.find(config), PATIENCE),
    })
}

fn show(look: &Look, arguments: &StatArguments, before: &Before) -> Result<()> {
    for (name, error) in &look.failed {
        eprintln!("hamlyn: no counters of {name}: {error}");
        if arguments.json {
            output::line(json!({ "name": name, "error": error }))?;
        }
    }
    for sentence in look.left_out() {
        eprintln!("hamlyn: {sentence}");
    }
    if arguments.prometheus {
        let text = prometheus::text(look);
        match &arguments.output {
            Some(path) => output::replace(path, &text)?,
            None => output::line(text.trim_end())?,
        }
    } else {
        for told in &look.told {
            let before = told.earlier(before);
            if let Some(first) = &told.same_as {
                match arguments.json {
                    true => output::line(again_as_json(told, first))?,
                    false => output::line(format_args!("{}: the process of {first}.", told.name))?,
                }
                continue;
            }
            match (arguments.json, arguments.watch) {
                (true, _) => output::line(as_json(told))?,
                (false, None) => print(told, arguments.all)?,
                (false, Some(_)) => print_rates(told, before)?,
            }
        }
        if look.told.is_empty() && look.failed.is_empty() && !arguments.json {
            output::line("No service that this user may ask is here now.")?;
        }
    }
    let failed = look.failed.len() + look.not_asked.values().sum::<usize>();
    if failed > 0 && arguments.watch.is_none() {
        bail!("{failed} of {} processes did not answer", failed + look.told.len());
    }
    Ok(())
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
            let program = link.peer_program();
            let mut link = map(&mut link.0.iter());
            link.insert("link".into(), json!(number));
            link.insert("peer_program".into(), json!(program));
            Value::Object(link)
        })
        .collect();
    let refusals = told.figures.refusals.values();
    let refusals: Vec<Value> = refusals.map(|row| map(&mut row.0.iter()).into()).collect();
    json!({
        "name": told.name,
        "host": told.host,
        "user": told.user,
        "process": told.process,
        "program": told.program,
        "look_us": told.took.as_micros() as u64,
        "counters": counters,
        "links": links,
        "refusals": refusals,
    })
}

/// The entry of another name of a process that was printed already.
fn again_as_json(told: &Told, first: &str) -> Value {
    json!({
        "name": told.name,
        "host": told.host,
        "user": told.user,
        "process": told.process,
        "program": told.program,
        "same_process_as": first,
    })
}

/// The process, its age, and whether its program waits: one line.
fn who(told: &Told) -> String {
    let known = |number: Option<u32>| number.map_or("unknown".into(), |n| n.to_string());
    let program = told.program.as_ref().map_or(String::new(), |program| format!(" ({program})"));
    let figures = &told.figures;
    let waits = match figures.number("waiting_ms") {
        0 => "its program does not wait".into(),
        ms => format!("its program has waited for messages for {}", duration(ms)),
    };
    let held = match figures.number("requests_held") {
        0 => String::new(),
        1 => "; 1 request received and not replied to".into(),
        count => format!("; {count} requests received and not replied to"),
    };
    let whose = match &told.host {
        Some(host) => format!("of host {host}"),
        None => format!("process {}{program} of user {}", known(told.process), known(told.user)),
    };
    format!(
        "{}: {whose}, version {}, up {}; {waits}{held}",
        told.name,
        figures.text("version"),
        duration(figures.number("uptime_ms")),
    )
}

/// `all`: also the counters that are 0.
fn print(told: &Told, all: bool) -> Result<()> {
    output::line(who(told))?;
    for (number, link) in &told.figures.links {
        output::line(in_words(&told.figures, *number, link))?;
    }
    if !told.figures.refusals.is_empty() {
        output::line("Refused last:")?;
    }
    for refusal in told.figures.refusals.values() {
        output::line(format_args!("  {}", refusal.in_words()))?;
    }
    let waits = RoomWaits::of(&told.figures);
    if let Some(words) = waits.as_ref().and_then(RoomWaits::in_words) {
        output::line(format_args!("Senders waited for room {words}."))?;
    }
    let mut table = row::table([&*told.name, ""]);
    let mut zeros = 0;
    for (name, value) in &told.figures.counters {
        if waits.is_some() && name.starts_with("room_waits.") {
            continue;
        }
        match value == "0" && !all {
            true => zeros += 1,
            false => drop(table.add_row([name, value])),
        }
    }
    row::align_right(&mut table, [1]);
    output::line(table)?;
    if zeros > 0 {
        output::line("Counters that are 0 are left out; --all shows them.")?;
    }
    Ok(())
}

/// Which end of a link waits for the other, and for how long; empty if neither waits.
pub fn waits(of: &Figures, link: &Link) -> String {
    let mut parts = Vec::new();
    if link.peer_pid().is_some_and(is_stopped) {
        parts.push("the peer is stopped".into());
    }
    let ms = link.number("waits_for_room_ms");
    if ms > 0 {
        parts.push(format!("has waited for the peer for {}", duration(ms)));
    }
    let ms = link.number("waits_for_buffer_ms");
    if ms > 0 {
        parts.push(format!("has waited for a buffer of the peer's for {}", duration(ms)));
    }
    if link.number("peer_waits_for_room") > 0 {
        parts.push("the peer waits for it".into());
    }
    // The order of their arrival is unknown; all of them are older than the last traffic.
    let held = link.number("requests_held");
    if held > 0 {
        let since = match of.number("requests_held_ms") {
            0 => String::new(),
            ms => format!(", for {} at least", duration(ms)),
        };
        let are = if held == 1 { "is" } else { "are" };
        let requests = several(held, "request");
        parts.push(format!("{requests} of the peer's {are} received and not replied to{since}"));
    }
    for (what, one, words) in [
        ("buffers", "buffer", "its program holds {of}{time}, and none is left"),
        ("samples", "sample", "its program holds {of} of the pool{time}, and gets no more"),
        ("messages", "message", "its program has not received {held}{time}, and {most}"),
        (
            "small_messages",
            "small message",
            "its program has not received {held}{time}, and {most}",
        ),
        ("places", "sample", "its program has not received {held}{time}, and {most}"),
        ("window", "byte", "its program has not read {held}{time}, and {most}"),
    ] {
        let number = |name: &str| link.number(&format!("{what}_{name}"));
        if number("held") > 0 && number("short") > 0 {
            let time = match number("held_ms") {
                0 => String::new(),
                ms => format!(", for {} at least", duration(ms)),
            };
            let held = several(number("held"), one);
            // Buffers of long records are not included in the maximum.
            let of = match number("held") > number("max") {
                true => held.clone(),
                false => format!("{} of {}", number("held"), several(number("max"), one)),
            };
            let words = words.replace("{held}", &held).replace("{of}", &of);
            parts.push(words.replace("{most}", &most(number("max"))).replace("{time}", &time));
        }
    }
    parts.join("; ")
}

/// A link, in two lines.
fn in_words(of: &Figures, number: u32, link: &Link) -> String {
    let size = |name| ByteSize::b(link.number(name)).display().iec();
    let waits = match waits(of, link).as_str() {
        "" => String::new(),
        waits => format!("; {waits}"),
    };
    format!(
        "link {number}: {}; made by {}{}, {} ago\n  {} sent ({}, of which {} in flight), {} \
         received ({}), {} refused, {} queued, {}{waits}; {}",
        link.peer(),
        link.text("made_by"),
        match link.text("service") {
            "" => String::new(),
            service => format!(", service {service}"),
        },
        duration(link.number("age_ms")),
        several(link.number("messages_sent"), "message"),
        size("ring_bytes_sent"),
        size("ring_bytes_waiting"),
        several(link.number("packets_taken"), "packet"),
        size("ring_bytes_taken"),
        link.number("packets_refused"),
        several(link.number("messages_queued"), "message"),
        several(link.number("wakes_sent"), "wake-up"),
        link.text("path"),
    )
}

/// The present traffic of each link, and the counters that have risen.
fn print_rates(now: &Told, before: Option<&Told>) -> Result<()> {
    output::line(who(now))?;
    let columns = "peer|sent/s|bytes/s|received/s|bytes/s|in flight|queued|";
    let mut table = row::table([&*now.name].into_iter().chain(columns.split('|')));
    for (number, link) in &now.figures.links {
        let rate = |name| now.link_rate(before, *number, name);
        let bytes = |name| ByteSize::b(rate(name) as u64).display().iec().to_string();
        let each = |name| format!("{:.0}", rate(name));
        table.add_row([
            format!("link {number}"),
            link.peer(),
            each("messages_sent"),
            bytes("ring_bytes_sent"),
            each("packets_taken"),
            bytes("ring_bytes_taken"),
            ByteSize::b(link.number("ring_bytes_waiting")).display().iec().to_string(),
            link.text("messages_queued").into(),
            waits(&now.figures, link),
        ]);
    }
    row::align_right(&mut table, 2..8);
    output::line(table)?;
    if let Some(before) = before {
        let times = ["uptime_ms", "waiting_ms", "process", "user"];
        let is_shown = |name: &str| !times.contains(&name) && !name.starts_with("room_waits.le");
        let counters = now.figures.counters.iter();
        let moved = counters.filter(|(name, _)| is_shown(name)).filter_map(|(name, _)| {
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
