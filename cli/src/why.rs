//! `hamlyn why`: in sentences, why a connection is slow or refused.
//!
//! What can be seen from here is looked at first: the name, its directories, who listens. Then the
//! process is asked for its figures twice, a moment apart. Nothing is sent over its links.

use crate::arguments::WhyArguments;
use crate::figures::{Figures, Link, program};
use crate::output;
use crate::stat::PATIENCE;
use anyhow::Result;
use bytesize::ByteSize;
use hamlyn::Config;
use hamlyn::control::{ConnectError, Reason, ServiceName, list_services, stat_of};
use std::time::Duration;

/// Between the two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Counters of the control plane, and what one that is not 0 means for whoever connects.
const REFUSALS: &[(&str, &str)] = &[
    ("control.refused_version", "they speak another version of the protocol: build both with one"),
    ("control.refused_feature", "they require a feature that this process lacks"),
    (
        "control.refused_user",
        "their user may not connect: what the service is served for (its access) decides",
    ),
    (
        "control.refused_connections",
        "their user has as many connections as one may (connections_per_user_max)",
    ),
    (
        "control.refused_bytes",
        "their user has as many bytes of rings as one may (bytes_per_user_max)",
    ),
    (
        "control.refused_links",
        "the process has as many links as it may (links_max, or what its limit on descriptors allows)",
    ),
    ("control.refused_application", "the program itself said no"),
    ("control.refused_silent", "they connected and said nothing in time (handshake_timeout_ms)"),
    (
        "control.refused_slow",
        "they did not go on in time (handshake_timeout_ms), or others of their user had not",
    ),
    ("control.refused_half_open", "too many others had connected and said nothing (half_open_max)"),
    ("control.refused_unpaid", "they had not filled their ring when others needed the place"),
    (
        "control.refused_frame",
        "what they said makes no sense: they speak something else, or misbehave",
    ),
    ("control.refused_descriptor", "they passed a descriptor where none may be"),
    ("control.refused_memory", "their memory was not filled, sealed or sized as agreed"),
    ("control.refused_identity", "they could not prove to be the node that they said"),
    ("control.refused_exhausted", "the process had no descriptors, threads or memory left"),
    ("links_closed_guessing", "and sent away, having used too many wrong keys (wrong_keys_max)"),
    (
        "links_closed_noise",
        "and sent away, having sent too much that was refused (refusals_per_second_max)",
    ),
    ("links_closed_violation", "and sent away, having broken the rules of the ring"),
];

/// `hamlyn why NAME`.
pub fn run(arguments: &WhyArguments) -> Result<()> {
    let config = Config::from_env()?;
    let service: ServiceName = arguments.name.parse()?;
    if let Some(sentence) = who_listens(&config, &arguments.name) {
        output::line(sentence)?;
    }
    let ask = || stat_of(&config, &service, PATIENCE);
    let before = match ask() {
        Ok(text) => Figures::of(&text),
        Err(error) => {
            output::line(no_figures(&arguments.name, &error))?;
            return Ok(());
        }
    };
    std::thread::sleep(PAUSE);
    let now = match ask() {
        Ok(text) => Figures::of(&text),
        Err(error) => {
            output::line(no_figures(&arguments.name, &error))?;
            return Ok(());
        }
    };
    let mut sentences = of_process(&before, &now);
    sentences.extend(of_refusals(&now));
    for (number, link) in &now.links {
        sentences.extend(of_link(*number, link, before.links.get(number)));
    }
    if sentences.is_empty() {
        sentences
            .push("Nothing that would make a connection slow or refused is to be seen.".into());
    }
    for sentence in sentences {
        output::line(sentence)?;
    }
    Ok(())
}

fn who_listens(config: &Config, name: &str) -> Option<String> {
    let found = list_services(config).entries.into_iter().find(|service| service.name == name)?;
    let user =
        found.uid.map_or("a user that cannot be known here".into(), |uid| format!("user {uid}"));
    let path = found.path.display();
    Some(match (found.is_alive, found.pid) {
        (Some(true), Some(pid)) => {
            let program = program(pid).map_or(String::new(), |program| format!(" ({program})"));
            format!("{name} is served at {path} by process {pid}{program} of {user}.")
        }
        (Some(true), None) => {
            format!("{name} is served at {path}, of {user}, by a process of another namespace.")
        }
        (Some(false), _) => format!(
            "{path} is there, and nobody listens: the process that did is gone without a goodbye. \
             Whoever serves it next takes it over; `hamlyn names --clean` removes it."
        ),
        (None, _) => format!(
            "{path} is there, of {user}, and this user may not connect: its permissions say for \
             whom it is served."
        ),
    })
}

/// What an error at the first question means for a connection.
fn no_figures(name: &str, error: &ConnectError) -> String {
    match error {
        ConnectError::Find(_) => format!("A connection waits until its time is up: {error}."),
        ConnectError::Stale(_) => format!("A connection waits until its time is up: {error}."),
        ConnectError::NotPermitted(_) | ConnectError::WrongUser { .. } => {
            format!("A connection is refused at once: {error}.")
        }
        ConnectError::Refused { reason: Reason::User, .. } => format!(
            "{name} answers, and tells its figures to its own user and to root alone: as one of \
             these, ask again for more."
        ),
        ConnectError::TimedOut(_) => format!(
            "{name} does not answer within {} seconds ({error}): its housekeeping is stopped, \
             or the process is, or has no processor.",
            PATIENCE.as_secs()
        ),
        error => format!("{name} does not tell its figures: {error}."),
    }
}

fn of_process(before: &Figures, now: &Figures) -> Vec<String> {
    let mut sentences = Vec::new();
    let more = |name: &str| now.number(name).saturating_sub(before.number(name));
    if now.number("waits") == 0 && more("turns") == 0 && now.number("links") > 0 {
        sentences.push(
            "Its program has made no call for a second and does not wait in one: what comes stays \
             in the rings, and who sends waits when they are full. A progress thread \
             (start_progress) would take it."
                .into(),
        );
    }
    let (wakes, messages) = (more("wakes_sent"), more("messages_sent"));
    if wakes > 100 && wakes * 2 > messages {
        sentences.push(format!(
            "{wakes} of the last {messages} messages had to wake somebody, which costs a hundred \
             times a message: receivers that look for longer before they sleep (spin_ns, or \
             wait_mode polled) are faster where there are processors for them."
        ));
    }
    if more("naps") > 0 {
        sentences.push(
            "It sleeps in naps, because the kernel refuses it membarrier, which it allowed when \
             its links were made: a message may be found late."
                .into(),
        );
    }
    let discarded = more("packets_discarded");
    if discarded > 0 {
        sentences.push(format!(
            "{discarded} packets were discarded within this second: the interface is disabled, or \
             its watchdog has run out (watchdog_ms) while the program made no call that receives."
        ));
    }
    let refused = now.counters.iter().filter(|(name, _)| name.starts_with("refused_"));
    for (name, value) in refused.filter(|(name, _)| more(name) > 0) {
        sentences.push(format!(
            "{} packets were refused within this second, {value} in all ({name}; SECURITY.md says \
             what it protects).",
            more(name)
        ));
    }
    sentences
}

fn of_refusals(now: &Figures) -> Vec<String> {
    let counted = REFUSALS.iter().map(|(name, why)| (now.number(name), name, why));
    let some = counted.filter(|(count, ..)| *count > 0);
    some.map(|(count, name, why)| format!("Since it started {count} were refused: {why} ({name})."))
        .collect()
}

fn of_link(number: u32, link: &Link, before: Option<&Link>) -> Vec<String> {
    let mut reasons = Vec::new();
    let waiting = link.number("ring_bytes_waiting");
    let moved = |name: &str| link.number(name) != before.map_or(0, |before| before.number(name));
    if waiting > 0 && before.is_some_and(|before| before.number("ring_bytes_waiting") > 0) {
        let size = ByteSize::b(waiting).display().iec();
        let what = if moved("ring_bytes_sent") { "is behind" } else { "takes nothing" };
        reasons.push(format!(
            "the peer {what}: {size} wait for it; its program makes no calls, or is slower than \
             this one"
        ));
    }
    let queued = link.number("messages_queued");
    if queued > 0 {
        reasons.push(format!("{queued} messages wait in work queues until there is room"));
    }
    // The path says itself why it is the one; only what makes it slow is repeated here.
    let slow = ["fence", "naps", "not there", "not proved", "not routed"];
    let path = link.text("path");
    let parts = path.split("; ").filter(|part| slow.iter().any(|word| part.contains(word)));
    reasons.extend(parts.map(str::to_owned));
    reasons.into_iter().map(|why| format!("Link {number} ({}): {why}.", link.peer())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_makes_no_calls_and_a_peer_that_takes_nothing_are_named() {
        let text = "turns 5\nwaits 0\nlinks 1\nlink.1.peer_user 7\nlink.1.peer_process unknown\n\
                    link.1.ring_bytes_waiting 4096\nlink.1.ring_bytes_sent 8192\n\
                    link.1.messages_queued 3\nlink.1.path a ring; a fence on each send, because\n\
                    control.refused_user 2\n";
        let figures = Figures::of(text);
        let sentences = of_process(&figures, &figures);
        assert!(sentences.len() == 1 && sentences[0].contains("start_progress"), "{sentences:?}");
        let refused = of_refusals(&figures);
        assert!(refused.len() == 1 && refused[0].contains("user may not connect"), "{refused:?}");
        let link = of_link(1, &figures.links[&1], figures.links.get(&1));
        assert_eq!(link.len(), 3, "{link:?}");
        assert!(link[0].starts_with("Link 1 (user 7, process unknown): the peer takes nothing"));
        // One that waits in a call is not silent, nor is one whose turns go on.
        let waits = Figures::of(&text.replace("waits 0", "waits 1"));
        assert!(of_process(&waits, &waits).is_empty());
        let on = Figures::of(&text.replace("turns 5", "turns 6"));
        assert!(of_process(&figures, &on).is_empty());
    }
}
