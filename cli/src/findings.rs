//! Findings about slow or refused connections, from two looks at a process, in sentences.

use crate::figures::{Figures, Link, is_stopped};
use crate::words::{duration, most, several};
use anyhow::Result;
use bytesize::ByteSize;
use hamlyn::interface;
use hamlyn_tools::output;
use std::fmt;
use std::time::Duration;

/// The pause between the two looks.
pub const PAUSE: Duration = Duration::from_secs(1);

/// With fewer arrivals in a second, no average is given.
const MANY: u64 = 4;
/// A peer is behind if at least one part in so many of the ring waits for it.
const BEHIND: u64 = 4;
/// A server that takes at least this long with a request is reported.
const SLOW_MS: u64 = 10;

/// Counters of the control plane, each with the meaning of a nonzero one for a client that connects.
const REFUSALS: &str = "\
control.refused_version they speak another version of the protocol: build both with one
control.refused_feature they require a feature that this process lacks
control.refused_user their user may not connect: what the service is served for (its access) decides
control.refused_connections their user has as many connections as one may (connections_per_user_max)
control.refused_bytes their user has as many bytes of rings as one may (bytes_per_user_max)
control.refused_links the process has as many links as it may (links_max, or what its limit on descriptors allows)
control.refused_application the program itself said no
control.refused_places an end point had no place left for them (clients_max, subscribers_max, connections_max, senders_max, a group's members; the last eighth is kept for users who have none)
control.refused_end_point they wanted an end point that is not there, or of another protocol, or asked it for what it does not do
control.refused_silent they connected and said nothing in time (handshake_timeout_ms)
control.refused_slow they did not go on in time (handshake_timeout_ms), or others of their user had not
control.refused_half_open too many others had connected and said nothing (half_open_max, or what its limit on descriptors allows)
control.refused_unpaid they had not filled their ring when others needed the place
control.refused_frame what they said makes no sense: they speak something else, or misbehave
control.refused_descriptor they passed a descriptor where none may be
control.refused_memory their memory was not filled, sealed or sized as agreed
control.refused_identity they could not prove to be the node that they said
control.refused_exhausted the process had no descriptors, threads or memory left
links_closed_guessing and sent away, having used too many wrong keys (wrong_keys_max)
links_closed_noise and sent away, having sent too much that was refused (refusals_per_second_max)
links_closed_violation and sent away, having broken the rules of the ring";

/// Counters of refusals to links, and of features that links lack, likewise.
const WITHOUT: &str = "\
control.refused_bulk a bulk ring was refused, so that long messages take the small ring (peer_ring_bytes_max, bytes_per_user_max)
control.refused_aperture an aperture was refused (aperture_map_max, apertures_per_link_max, apertures_per_user_max)
control.memory_unlocked a ring could not be locked in memory, so that it may be swapped out (RLIMIT_MEMLOCK)
control.rests it took no new connection for a moment, having no descriptors, or a program that takes no events";

/// Interprets two looks. `is_wrong`: a reason for a slow or refused connection has been reported
/// already.
pub fn tell(before: &Figures, now: &Figures, is_wrong: bool) -> Result<()> {
    let mut sentences = sentences(before, now);
    if sentences.is_empty() {
        let nothing = if is_wrong { "Nothing else" } else { "Nothing" };
        sentences.push(format!(
            "{nothing} that would make a connection slow or refused is to be seen. How long its \
             program takes with what it has received is not seen from here, but for requests of \
             a server that wait for a reply: there are none."
        ));
    }
    for sentence in sentences {
        output::line(sentence)?;
    }
    Ok(())
}

fn sentences(before: &Figures, now: &Figures) -> Vec<String> {
    let mut sentences = of_process(before, now);
    sentences.extend(of_refusals(now));
    sentences.extend(of_packets(now));
    for (number, link) in &now.links {
        let earlier = before.links.get(number);
        sentences.extend(of_client(*number, link, earlier, now.number("requests_held_ms")));
        sentences.extend(of_link(*number, link, earlier));
    }
    sentences
}

/// An error as the end of a sentence, without a full stop if it ends in a question.
pub fn ended(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    if text.ends_with(['.', '?', '!']) { text } else { text + "." }
}

fn of_process(before: &Figures, now: &Figures) -> Vec<String> {
    let mut sentences = Vec::new();
    let more = |name: &str| now.number(name).saturating_sub(before.number(name));
    // Messages that have arrived already are taken without a turn.
    let took = now.links.iter().any(|(number, link)| {
        let before = before.links.get(number);
        before.is_none_or(|before| {
            link.number("ring_bytes_taken") != before.number("ring_bytes_taken")
        })
    });
    let is_still = !took && more("turns") == 0 && more("messages_sent") == 0;
    if now.number("waits") == 0 && is_still && now.number("links") > 0 {
        sentences.push(
            "Its program has taken nothing out of the rings for a second and does not wait in a \
             call: it makes none, or is at what it took before. Messages stay in the rings, and \
             who sends waits when they are full. A progress thread (start_progress) would take it."
                .into(),
        );
    }
    sentences.extend(of_requests(before, now));
    let (wakes, messages) = (more("wakes_sent"), more("messages_sent"));
    if wakes > 100 && wakes.saturating_mul(2) > messages {
        sentences.push(format!(
            "{wakes} of the last {} had to wake somebody, which costs a hundred \
             times a message: receivers that look for longer before they sleep (spin_ns, or \
             wait_mode polled) are faster where there are processors for them.",
            several(messages, "message")
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
            "{} discarded within this second: the interface is disabled, or its watchdog has run \
             out (watchdog_ms) while the program made no call that receives.",
            packets(discarded)
        ));
    }
    // Loops over the known counters, not over the received lines: their number is up to the other
    // process, and each lookup searches them all.
    let described = interface::Counters::described();
    for (name, _) in described.into_iter().filter(|(name, _)| name.starts_with("refused_")) {
        let (count, value) = (more(name), now.number(name));
        if count > 0 {
            sentences.push(format!(
                "{} refused within this second, {value} in all ({name}; docs/refusals.md says what it \
                 protects).",
                packets(count)
            ));
        }
    }
    sentences
}

/// Requests that a server has received and not replied to. `None`: there are none, or they leave as
/// fast as they come.
fn of_requests(before: &Figures, now: &Figures) -> Option<String> {
    let held = now.number("requests_held");
    if held == 0 || before.number("requests_held") == 0 {
        return None;
    }
    let are = if held == 1 { "request is" } else { "requests are" };
    let ms = now.number("requests_held_ms");
    if ms > 0 {
        let since = duration(ms);
        return Some(format!(
            "{held} {are} received and not replied to, and nothing has come for {since}: the oldest \
             has been with the program for longer than that. Its program is at it, or has \
             forgotten it."
        ));
    }
    // The average number present, divided by the arrivals within a second (Little's law). No
    // request carries a time.
    let name = "messages_received";
    let came = now.number(name).saturating_sub(before.number(name));
    if came < MANY {
        return Some(format!(
            "{held} {are} received and not replied to, and {} came within this second: its program \
             takes long, or few come; which of the two is not seen from here.",
            several(came, "message")
        ));
    }
    let average = (held.saturating_add(before.number("requests_held")) as f64) / 2.0;
    let ms = (average / came as f64 * PAUSE.as_secs_f64() * 1e3) as u64;
    (ms >= SLOW_MS).then(|| {
        format!(
            "{held} {are} received and not replied to, and {came} messages came within this second: \
             a request is with the program for some {} before it is replied to. That is the \
             program's own time, or it has too few threads that receive.",
            duration(ms)
        )
    })
}

fn of_refusals(now: &Figures) -> Vec<String> {
    let counted = |all: &'static str| {
        let rows = all.lines().filter_map(|line| line.split_once(' '));
        rows.map(|(name, why)| (now.number(name), name, why)).filter(|(count, ..)| *count > 0)
    };
    let refused = counted(REFUSALS).map(|(count, name, why)| {
        let were = if count == 1 { "was" } else { "were" };
        format!("Since it started {count} {were} refused: {why} ({name}).")
    });
    let without = counted(WITHOUT).map(|(count, name, why)| {
        let times = if count == 1 { "once" } else { &*format!("{count} times") };
        format!("Since it started, {times}: {why} ({name}).")
    });
    let mut sentences: Vec<String> = refused.chain(without).collect();
    if !now.refusals.is_empty() {
        sentences.push("Those who were refused last:".into());
        let last = now.refusals.values();
        sentences.extend(last.map(|refusal| format!("  {}.", refusal.in_words())));
    }
    sentences
}

/// `1 packet was`, `2 packets were`.
fn packets(count: u64) -> String {
    match count {
        1 => "1 packet was".into(),
        count => format!("{count} packets were"),
    }
}

/// Packets refused at some time, in sentences.
fn of_packets(now: &Figures) -> Vec<String> {
    let described = interface::Counters::described();
    let refused = described.into_iter().filter(|(name, _)| name.starts_with("refused_"));
    refused
        .filter(|(name, _)| now.number(name) > 0)
        .map(|(name, why)| {
            let count = now.number(name);
            let were = packets(count);
            format!("Since it started {were} refused ({name}): {}", why.trim())
        })
        .collect()
}

/// `1 sample has`, `2 samples have`.
fn have(count: u64, what: &str) -> String {
    format!("{} {}", several(count, what), if count == 1 { "has" } else { "have" })
}

fn none_received(what: &str, held: u64, max: u64, time: String) -> String {
    format!(
        "{} come from the peer, of which this process's program has received none for at least \
         {time}: {}, and the peer waits, or soon will",
        have(held, what),
        most(max)
    )
}

/// Received data that the program holds or has not taken, if the peer may wait for it.
fn kept(link: &Link, before: Option<&Link>) -> Vec<String> {
    let of = |what: &str, words: &dyn Fn(u64, u64, String) -> String| {
        let number = |name: &str| link.number(&format!("{what}_{name}"));
        let (held, max, ms) = (number("held"), number("max"), number("held_ms"));
        (held > 0 && ms > 0 && number("short") > 0).then(|| words(held, max, duration(ms)))
    };
    // The program receives, but slower than its peer sends: nothing waits at either look.
    let slower = |what: &str, in_words: &str, room: &str| {
        let is_short = |link: &Link| link.number(&format!("{what}_short")) > 0;
        let number = |name: &str| link.number(&format!("{what}_{name}"));
        let is_slower = is_short(link) && before.is_some_and(is_short) && number("held_ms") == 0;
        is_slower.then(|| {
            format!(
                "{} come from the peer and not been received, now and a second ago, and {} ({room}): \
                 this process's program receives more slowly than the peer sends",
                have(number("held"), in_words),
                most(number("max"))
            )
        })
    };
    [
        of("samples", &|held, max, time| {
            let are = if held == 1 { "is" } else { "are" };
            format!(
                "{held} of {} of the peer's pool {are} with this process's program, which has \
                 dropped none for at least {time}: it gets no more of them until it does, and a \
                 publisher whose policy is to wait waits (outstanding)",
                several(max, "sample")
            )
        }),
        of("places", &|held, max, time| {
            format!(
                "{} come from the peer, of which this process's program has received none for at \
                 least {time}; there is room for {max} (depth)",
                have(held, "sample")
            )
        }),
        of("window", &|held, max, time| {
            format!(
                "{} come from the peer, of which this process's program has read none for at least \
                 {time}; there is room for {max} (window_bytes), and the peer may wait",
                have(held, "byte")
            )
        }),
        of("messages", &|held, max, time| none_received("message", held, max, time)),
        of("small_messages", &|held, max, time| none_received("small message", held, max, time)),
        slower("places", "sample", "depth"),
        slower("messages", "message", "buffers"),
        slower("small_messages", "small message", "each has a place of its own"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The client whose unanswered requests hold a server up: its link had no traffic between the
/// looks. `ms`: the shortest time so far, from the server's figure for all requests.
fn of_client(number: u32, link: &Link, before: Option<&Link>, ms: u64) -> Option<String> {
    before.filter(|before| before.holds_requests_of(link))?;
    let held = link.number("requests_held");
    let are = if held == 1 { "is" } else { "are" };
    Some(format!(
        "Link {number} ({}): {} of this client's {are} received and not replied to, for at least {}.",
        link.peer(),
        several(held, "request"),
        duration(ms.max(PAUSE.as_millis() as u64)),
    ))
}

fn of_link(number: u32, link: &Link, before: Option<&Link>) -> Vec<String> {
    let mut reasons = Vec::new();
    let stopped = link.peer_pid().filter(|pid| is_stopped(*pid));
    if let Some(pid) = stopped {
        reasons.push(format!(
            "the peer is stopped, by a signal (SIGSTOP) or a debugger: it takes nothing until it \
             goes on (`kill -CONT {pid}`)"
        ));
    }
    let waiting = link.number("ring_bytes_waiting");
    let moved = |name: &str| link.number(name) != before.map_or(0, |before| before.number(name));
    let waited = before.is_some_and(|before| before.number("ring_bytes_waiting") > 0);
    if waiting > 0 && waited {
        let size = ByteSize::b(waiting).display().iec();
        let given = |link: &Link| {
            link.number("ring_bytes_sent").saturating_sub(link.number("ring_bytes_waiting"))
        };
        // A busy link always has something on its way: it is behind if that is a good part of the
        // ring.
        if stopped.is_some() {
            reasons.push(format!("{size} wait for the peer"));
        } else if before.is_some_and(|before| given(before) == given(link)) {
            reasons.push(format!(
                "the peer has taken nothing within this second, and {size} wait for it: its program makes \
                 no calls, or one in several seconds"
            ));
        } else if waiting.saturating_mul(BEHIND) >= link.number("ring_bytes") {
            reasons.push(format!(
                "the peer is behind: {size} wait for it, and its program is slower than this one"
            ));
        }
    }
    let ms = link.number("waits_for_room_ms");
    if ms > 0 {
        reasons.push(format!(
            "this process has waited for {} until the peer takes something, and it has taken nothing",
            duration(ms)
        ));
    }
    let ms = link.number("waits_for_buffer_ms");
    if ms > 0 && before.is_some_and(|before| before.number("waits_for_buffer_ms") > 0) {
        let why = match stopped {
            Some(_) => "",
            None => {
                ": the peer's program keeps what it has received, or receives nothing, or is slower \
                 than this one. Which, `hamlyn why` says there"
            }
        };
        reasons.push(format!(
            "a sender here has found no buffer of the peer's free for {}{why}",
            duration(ms)
        ));
    }
    let (held, ms) = (link.number("buffers_held"), link.number("buffers_held_ms"));
    if held > 0 && ms > 0 && link.number("buffers_short") > 0 {
        let hold = if held == 1 { "buffer holds" } else { "buffers hold" };
        reasons.push(format!(
            "{held} {hold} records that this process has received and not released, none of which \
             was released for at least {}; {} may be there (buffers_max), besides those of longer \
             records (record_bytes_max), and none is left for what the peer sends next, so that it waits. Its program keeps its records, or is still at \
             one: a record's buffer is free when it is released, and all before it are",
            duration(ms),
            link.number("buffers_max")
        ));
    }
    reasons.extend(kept(link, before));
    let dropped = link.number("samples_dropped");
    if dropped > 0 {
        let before = before.map_or(0, |before| before.number("samples_dropped"));
        let now = dropped.saturating_sub(before);
        let samples = if dropped == 1 { "sample was" } else { "samples were" };
        let why = match now {
            0 => "its program was slower then, or was not there yet",
            _ if stopped.is_some() => "it is stopped",
            _ => "its program is slower than this one publishes, or not there yet",
        };
        reasons.push(format!(
            "{dropped} {samples} not sent to it, {now} within this second: {why} (when_slow says what \
             becomes of samples then)"
        ));
    }
    let peer_waited = before.is_some_and(|before| before.number("peer_waits_for_room") > 0);
    if peer_waited && link.number("peer_waits_for_room") > 0 {
        reasons.push(match moved("ring_bytes_taken") {
            false => "the peer waits until this process's program takes what it has sent".into(),
            true => {
                let took = link.number("ring_bytes_taken");
                let before = before.map_or(0, |before| before.number("ring_bytes_taken"));
                let took = ByteSize::b(took.saturating_sub(before)).display().iec();
                format!(
                    "the peer waits for this process's program, which is slower than the peer: it \
                     took {took} within this second"
                )
            }
        });
    }
    let refused = link.number("packets_refused");
    if refused > 0 {
        let were = if refused == 1 { "was" } else { "were" };
        reasons.push(format!(
            "{refused} of its packets {were} refused: its program uses a ticket that was revoked or \
             used up, or writes outside of one"
        ));
    }
    let queued = link.number("messages_queued");
    if queued > 0 {
        let wait = if queued == 1 { "message waits" } else { "messages wait" };
        reasons.push(format!("{queued} {wait} in work queues until there is room"));
    }
    // The path gives its own reason; only the parts that make it slow are repeated here.
    let slow = ["fence", "naps", "not there", "none will be asked for", "not proved", "not routed"];
    let path = link.text("path");
    let parts = path.split("; ").filter(|part| slow.iter().any(|word| part.contains(word)));
    reasons.extend(parts.map(str::to_owned));
    reasons.into_iter().map(|why| format!("Link {number} ({}): {why}.", link.peer())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hamlyn::control::FindError;

    #[test]
    fn whatever_a_process_writes_is_put_into_words_and_is_no_panic() {
        let all = crate::figures::tests::extremes();
        for before in &all {
            for now in &all {
                let said = sentences(before, now);
                assert!(said.iter().all(|said| !said.is_empty()), "{said:?}");
            }
        }
    }

    #[test]
    fn counters_that_make_no_sense_are_said_as_they_are_and_unknown_ones_are_not() {
        let before = Figures::of("waits 1\nrefused_wrong_key 1\n");
        let now = Figures::of(&format!(
            "waits 1\nwakes_sent {}\nmessages_sent 7\nrefused_wrong_key 4\nrefused_anything 9\n",
            u64::MAX
        ));
        let said = of_process(&before, &now);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with(&format!("{} of the last 7 messages", u64::MAX)), "{said:?}");
        assert!(said[1].starts_with("3 packets were refused") && said[1].contains("4 in all"));
    }

    #[test]
    fn a_slow_server_is_told_by_what_is_there_over_what_comes_and_a_fast_one_is_not() {
        let of = |held: u64, received: u64, ms: u64| {
            let text = format!(
                "requests_held {held}\nmessages_received {received}\nrequests_held_ms {ms}\n"
            );
            Figures::of(&text)
        };
        // Eight at a time, each of which takes 0.4 s.
        let said = of_requests(&of(8, 100, 0), &of(8, 120, 0)).unwrap();
        assert!(said.contains("8 requests are") && said.contains("some 400 ms"), "{said}");
        let said = of_requests(&of(1, 100, 0), &of(1, 100, 2500)).unwrap();
        assert!(said.contains("1 request is") && said.contains("come for 2.5 s"), "{said}");
        assert_eq!(of_requests(&of(8, 100, 0), &of(8, 200_000, 0)), None);
        assert_eq!(of_requests(&of(0, 100, 0), &of(8, 101, 0)), None);
        // No average for so few, and none from counters that make no sense.
        let said = of_requests(&of(1, 100, 0), &of(1, 101, 0)).unwrap();
        assert!(said.contains("1 message came") && !said.contains("ms before"), "{said}");
        assert!(of_requests(&of(u64::MAX, 9, 0), &of(u64::MAX, 3, 0)).is_some());
        assert!(of_requests(&of(u64::MAX, 9, 0), &of(u64::MAX, u64::MAX, 0)).is_some());
    }

    #[test]
    fn the_client_whose_call_is_not_replied_to_is_named_and_those_of_a_fast_server_are_not() {
        let of = |held: u64, taken: u64| {
            let text = format!(
                "link.1.peer_user 7\nlink.1.peer_process unknown\nlink.1.requests_held {held}\n\
                 link.1.ring_bytes_taken {taken}\n"
            );
            Figures::of(&text).links.remove(&1).unwrap()
        };
        let said = |before: Link, now: Link, ms| of_client(1, &now, Some(&before), ms);
        let stuck = said(of(1, 64), of(1, 64), 0).unwrap();
        let client = "Link 1 (user 7, process unknown): 1 request of this client's is received";
        assert!(stuck.starts_with(client) && stuck.ends_with("at least 1.0 s."), "{stuck}");
        let stuck = said(of(2, 64), of(2, 64), 65_000).unwrap();
        assert!(stuck.contains("2 requests of this client's are"), "{stuck}");
        assert!(stuck.ends_with("at least 65.0 s."), "{stuck}");
        assert_eq!(said(of(1, 64), of(1, 128), 0), None);
        assert_eq!(said(of(0, 64), of(1, 64), 0), None);
        assert_eq!(said(of(1, 64), of(0, 64), 0), None);
    }

    #[test]
    fn of_a_peer_that_is_stopped_nothing_else_is_said_to_be_why() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        // The signal is on its way for a moment.
        let start = std::time::Instant::now();
        while !is_stopped(child.id()) && start.elapsed() < Duration::from_secs(20) {}
        let text = format!(
            "link.1.peer_user 7\nlink.1.peer_process {}\nlink.1.ring_bytes 4096\n\
             link.1.ring_bytes_waiting 4096\nlink.1.ring_bytes_sent 8192\n\
             link.1.waits_for_buffer_ms 2000\nlink.1.samples_dropped ",
            child.id()
        );
        let (before, now) =
            (Figures::of(&format!("{text}1\n")), Figures::of(&format!("{text}2\n")));
        let said = of_link(1, &now.links[&1], before.links.get(&1)).join("\n");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(said.contains("the peer is stopped") && said.contains("4.0 KiB wait"), "{said}");
        for another in ["no calls", "is behind", "slower", "keeps what"] {
            assert!(!said.contains(another), "{another}: {said}");
        }
    }

    #[test]
    fn a_sentence_that_ends_in_a_question_has_no_full_stop_and_one_is_not_several() {
        let error =
            FindError::NotFound { name: "x@y".into(), looked: Vec::new(), namesakes: Vec::new() };
        let said = crate::why::no_figures("x@y", &error.into());
        assert!(said.ends_with("`hamlyn recv --allow`)?"), "{said}");
        let text = "link.1.messages_held 1\nlink.1.messages_max 1\nlink.1.messages_held_ms 9\n\
                    link.1.messages_short 1\n";
        let figures = Figures::of(text);
        let said = of_link(1, &figures.links[&1], None).join("\n");
        assert!(said.contains("1 message has come from the peer"), "{said}");
        assert!(said.contains("1 is the most"), "{said}");
        let said = crate::stat::waits(&figures, &figures.links[&1]);
        assert!(said.contains("1 message, for 9 ms at least, and 1 is the most"), "{said}");
        let said = of_process(
            &Figures::of("wakes_sent 0\nmessages_sent 0\n"),
            &Figures::of("wakes_sent 101\nmessages_sent 1\n"),
        );
        assert!(said[0].contains("the last 1 message had"), "{said:?}");
    }

    #[test]
    fn a_program_that_makes_no_calls_and_a_peer_that_takes_nothing_are_named() {
        let text = "turns 5\nwaits 0\nlinks 1\nlink.1.peer_user 7\nlink.1.peer_process unknown\n\
                    link.1.ring_bytes_waiting 4096\nlink.1.ring_bytes_sent 8192\n\
                    link.1.messages_queued 3\nlink.1.path a ring; a fence on each send, because\n\
                    control.refused_user 2\ncontrol.refused_bulk 1\nrefused_wrong_key 4\n\
                 link.1.waits_for_room_ms 2500\nlink.1.peer_waits_for_room 1\n\
                 link.1.packets_refused 4\n";
        let figures = Figures::of(text);
        let sentences = of_process(&figures, &figures);
        assert!(sentences.len() == 1 && sentences[0].contains("start_progress"), "{sentences:?}");
        let refused = of_refusals(&figures);
        assert!(refused.len() == 2 && refused[0].contains("user may not connect"), "{refused:?}");
        assert!(refused[1].contains("Since it started, once: a bulk ring was refused"));
        let packets = of_packets(&figures);
        assert!(packets.len() == 1 && packets[0].contains("4 packets"), "{packets:?}");
        assert!(packets[0].contains("The key is not the slot's"), "{packets:?}");
        let link = of_link(1, &figures.links[&1], figures.links.get(&1));
        assert_eq!(link.len(), 6, "{link:?}");
        for part in ["waited for 2.5 s", "the peer waits until", "4 of its packets"] {
            assert!(link.iter().any(|sentence| sentence.contains(part)), "{part}: {link:?}");
        }
        assert!(
            link[0].starts_with("Link 1 (user 7, process unknown): the peer has taken nothing")
        );
        // Something is on its way, and the peer takes it; then it does, and most of the ring waits.
        let at = |sent: u64, waiting: u64| {
            format!(
                "link.1.ring_bytes 65536\nlink.1.ring_bytes_sent {sent}\n\
                 link.1.ring_bytes_waiting {waiting}\n"
            )
        };
        let of = |before: String, now: String| {
            let (before, now) = (Figures::of(&before), Figures::of(&now));
            of_link(1, &now.links[&1], before.links.get(&1)).join("\n")
        };
        assert_eq!(of(at(4096, 384), at(1 << 30, 384)), "");
        assert!(of(at(90_000, 60_000), at(1 << 30, 60_000)).contains("the peer is behind"));
        assert!(of(at(4096, 384), at(4096, 384)).contains("taken nothing"));
        // Without a bulk ring, which its settings rule out.
        let text =
            "link.1.path a ring; no bulk ring, and none will be asked for (bulk_ring_bytes is 0)\n";
        let without = Figures::of(text);
        let said = of_link(1, &without.links[&1], None);
        assert!(said.len() == 1 && said[0].contains("bulk_ring_bytes"), "{said:?}");
        // A program that waits in a call is not silent, nor is one whose turns go on.
        let waits = Figures::of(&text.replace("waits 0", "waits 1"));
        assert!(of_process(&waits, &waits).is_empty());
        let on = Figures::of(&text.replace("turns 5", "turns 6"));
        assert!(of_process(&figures, &on).is_empty());
    }
}
