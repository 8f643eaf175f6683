//! Looks at running processes: each is asked for its statistics, several at a time.
//!
//! A process answers in its housekeeping thread, so a look costs its messages nothing; what a look
//! costs that thread is in docs/operating.md. Who looks again and again keeps a pause.
//!
//! Never: a process that does not answer holds up the others for longer than its time limit.

use crate::figures::{Figures, Link, is_stopped, program};
use crate::names::of_this_host;
use crate::output;
use anyhow::{Result, anyhow};
use hamlyn::Config;
use hamlyn::control::{
    ConnectError, Reason, ServiceName, list_services, private_dir, statistics_of, uid_of,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The shortest pause between two looks at a process.
pub const PAUSE_MIN: Duration = Duration::from_millis(200);
/// Processes that are asked at a time.
const ASKED_AT_A_TIME: usize = 64;
/// Who looks again and again waits no longer for one that is silent: the others are shown then.
pub const SILENCE: Duration = Duration::from_secs(1);
/// After this long the names are looked for again: that costs each of their processes another
/// connection.
const NAMES_FOR: Duration = Duration::from_secs(5);

/// What one process said, and when.
#[derive(Debug)]
pub struct Told {
    pub name: String,
    pub at: Instant,
    /// From the question to the answer.
    pub took: Duration,
    /// Of another host: where it is, and what it has proved to be.
    pub host: Option<String>,
    /// Whose it is, as the kernel says.
    pub user: Option<u32>,
    pub process: Option<u32>,
    /// What the process calls itself.
    pub program: Option<String>,
    pub figures: Figures,
}

/// What became of a look at several.
#[derive(Debug, Default)]
pub struct Look {
    /// In the order in which they were asked for.
    pub told: Vec<Told>,
    /// Who did not answer, and why.
    pub failed: Vec<(String, String)>,
    /// Of these, who is there and tells its figures to others alone.
    pub closed: BTreeSet<String>,
}

/// Said of the figures: whoever asks for them may be let in all the same.
#[derive(Debug)]
struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = rustix::process::geteuid().as_raw();
        write!(
            f,
            "it answers, and tells its figures to its own user and to root alone: this is user {user}, who \
             may be allowed to connect all the same"
        )
    }
}

impl std::error::Error for Closed {}

/// Asks one, and waits so long for its answer.
pub fn ask(config: &Config, name: &str, patience: Duration) -> Result<Told> {
    #[cfg(feature = "tls")]
    if hamlyn::control::is_of_other_host(name) {
        return ask_host(config, name, patience);
    }
    let began = Instant::now();
    let told =
        statistics_of(config, &of_this_host(name)?, Some(patience)).map_err(
            |error| match error {
                ConnectError::TimedOut(_) => match stopped(config, name) {
                    Some(why) => anyhow!(why),
                    None => anyhow!("it has not answered for {} s", patience.as_secs_f64()),
                },
                ConnectError::Refused { reason: Reason::User, .. } => Closed.into(),
                error => error.into(),
            },
        )?;
    let at = Instant::now();
    Ok(Told {
        name: name.into(),
        at,
        took: at - began,
        host: None,
        user: told.uid,
        process: told.pid,
        program: told.pid.and_then(program),
        figures: Figures::of(&told.text),
    })
}

/// The same on another host, which tells it to whom its setting `figures_to` names.
#[cfg(feature = "tls")]
fn ask_host(config: &Config, name: &str, patience: Duration) -> Result<Told> {
    let began = Instant::now();
    let told = hamlyn::control::hosts::figures::ask(config, &name.parse()?, patience)?;
    let at = Instant::now();
    let host = format!("{} ({})", told.address, hamlyn::control::printable(&told.identity));
    Ok(Told {
        name: name.into(),
        at,
        took: at - began,
        host: Some(host),
        user: None,
        process: None,
        program: None,
        figures: Figures::of_host(&told.text),
    })
}

/// That the process which serves a name is stopped, if it is and that can be seen from here.
fn stopped(config: &Config, name: &str) -> Option<String> {
    let mut services = list_services(config).entries.into_iter();
    let pid = services.find(|service| one_form(&service.name) == name)?.pid?;
    is_stopped(pid).then(|| {
        let program = program(pid).map_or(String::new(), |program| format!(" ({program})"));
        format!(
            "its process {pid}{program} is stopped, by a signal (SIGSTOP) or a debugger; \
             `kill -CONT {pid}` lets it go on"
        )
    })
}

/// Asks all of these, and waits so long for each.
pub fn ask_all(config: &Config, names: &[String], patience: Duration) -> Look {
    let answers: Vec<Mutex<Option<Result<Told>>>> =
        names.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..names.len().min(ASKED_AT_A_TIME) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(name), Some(answer)) = (names.get(i), answers.get(i)) else { return };
                    *answer.lock().unwrap_or_else(|e| e.into_inner()) =
                        Some(ask(config, name, patience));
                }
            });
        }
    });
    let mut look = Look::default();
    for (name, answer) in names.iter().zip(answers) {
        match answer.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(Ok(told)) => look.told.push(told),
            Some(Err(error)) => {
                if error.is::<Closed>() {
                    look.closed.insert(name.clone());
                }
                look.failed.push((name.clone(), output::in_words(&error)));
            }
            None => look.failed.push((name.clone(), "it was not asked".into())),
        }
    }
    look
}

/// The names of the services that may be asked: this user's, and for root everybody's.
pub fn names(config: &Config) -> Vec<String> {
    let user = rustix::process::geteuid().as_raw();
    let is_asked = |uid: Option<u32>| user == 0 || uid == Some(user);
    let services = list_services(config).entries.into_iter();
    let services = services.filter(|s| is_asked(s.uid) && s.is_alive != Some(false));
    let mut names: Vec<String> = services.map(|service| one_form(&service.name)).collect();
    // In both directories: whoever asks finds the same one.
    names.sort();
    names.dedup();
    names
}

/// The same service has one name here, whichever way it was asked for: `NAME` of this user's own,
/// `NUMBER@NAME` of another's, by the user's number; and of one that this user serves to others while it
/// serves another of that name to itself.
pub fn one_form(name: &str) -> String {
    let found = name.parse::<ServiceName>().ok();
    let Some((service, uid)) = found.and_then(|service| {
        let uid = uid_of(service.user()?).ok()?;
        Some((service, uid))
    }) else {
        return name.into();
    };
    let has_private =
        |config: Config| private_dir(&config).join(service.name()).symlink_metadata().is_ok();
    match uid == rustix::process::geteuid().as_raw() {
        true if Config::from_env().is_ok_and(has_private) => format!("{uid}@{}", service.name()),
        true => service.name().into(),
        false => format!("{uid}@{}", service.name()),
    }
}

/// The names of those who are watched.
pub struct Watched {
    /// Empty: all.
    wanted: Vec<String>,
    found: Option<(Instant, Vec<String>)>,
}

impl Watched {
    /// `wanted`: these; none: all that may be asked, looked for again every few seconds.
    pub fn new(wanted: &[String]) -> Self {
        Self { wanted: wanted.iter().map(|name| one_form(name)).collect(), found: None }
    }

    pub fn names(&mut self, config: &Config) -> Vec<String> {
        if !self.wanted.is_empty() {
            return self.wanted.clone();
        }
        match &self.found {
            Some((at, names)) if at.elapsed() < NAMES_FOR => names.clone(),
            _ => {
                let names = names(config);
                self.found = Some((Instant::now(), names.clone()));
                names
            }
        }
    }
}

/// The looks before this one, by name.
pub type Before = BTreeMap<String, Told>;

/// What they said, to be compared with what they say next.
pub fn by_name(told: Vec<Told>) -> Before {
    told.into_iter().map(|told| (told.name.clone(), told)).collect()
}

impl Told {
    /// The same process, earlier: another may have the name now.
    pub fn earlier<'a>(&self, before: &'a Before) -> Option<&'a Told> {
        let earlier = before.get(&self.name)?;
        (earlier.figures.text("node") == self.figures.text("node")).then_some(earlier)
    }

    /// How much a counter has gone up in a second; 0 where there is nothing to compare with.
    pub fn rate(&self, before: Option<&Told>, name: &str) -> f64 {
        let Some(before) = before else { return 0.0 };
        let seconds = (self.at - before.at).as_secs_f64().max(1e-9);
        self.figures.number(name).saturating_sub(before.figures.number(name)) as f64 / seconds
    }

    /// The same for a figure of one of its links.
    pub fn link_rate(&self, before: Option<&Told>, number: u32, name: &str) -> f64 {
        let (Some(now), Some(before)) = (self.figures.links.get(&number), before) else {
            return 0.0;
        };
        let earlier = before.figures.links.get(&number);
        // Another link may have its number now.
        let Some(earlier) = earlier.filter(|earlier| now.is_of_the_same_peer(earlier)) else {
            return 0.0;
        };
        let seconds = (self.at - before.at).as_secs_f64().max(1e-9);
        now.number(name).saturating_sub(earlier.number(name)) as f64 / seconds
    }
}

impl Link {
    fn is_of_the_same_peer(&self, earlier: &Link) -> bool {
        self.text("peer_node") == earlier.text("peer_node")
            && self.number("age_ms") >= earlier.number("age_ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, at: Instant) -> Told {
        let (took, figures) = (Duration::ZERO, Figures::of(text));
        let (host, user, process, program) = (None, None, None, None);
        Told { name: "x".into(), at, took, host, user, process, program, figures }
    }

    #[test]
    fn one_service_has_one_name_however_it_is_asked_for() {
        let own = rustix::process::geteuid().as_raw();
        let another = own + 1;
        for (asked, name) in [
            ("orders", "orders".to_string()),
            (&format!("{own}@orders"), "orders".into()),
            (&format!("{another}@orders"), format!("{another}@orders")),
            ("nobody-is-called-so@orders", "nobody-is-called-so@orders".into()),
            ("a name that is none/", "a name that is none/".into()),
        ] {
            assert_eq!(one_form(asked), name, "{asked}");
        }
        if own == 0 {
            assert_eq!(one_form("root@orders"), "orders");
        }
    }

    #[test]
    fn rates_are_those_of_the_same_process_and_the_same_link() {
        let then = Instant::now();
        let text = "node a\npackets_sent 10\nlink.1.peer_node b\nlink.1.messages_sent 5\n";
        let before = by_name(vec![told(text, then)]);
        let now = told(
            &text.replace("10", "30").replace("sent 5", "sent 9"),
            then + Duration::from_secs(2),
        );
        let earlier = now.earlier(&before);
        assert_eq!(now.rate(earlier, "packets_sent"), 10.0);
        assert_eq!(now.link_rate(earlier, 1, "messages_sent"), 2.0);
        let another =
            told(&text.replace("peer_node b", "peer_node c"), then + Duration::from_secs(1));
        assert_eq!(another.link_rate(another.earlier(&before), 1, "messages_sent"), 0.0);
        // A counter that went down, and another process.
        let less = told(&text.replace("10", "3"), then + Duration::from_secs(1));
        assert_eq!(less.rate(less.earlier(&before), "packets_sent"), 0.0);
        assert!(told(&text.replace("node a", "node z"), then).earlier(&before).is_none());
    }
}
