//! Looks at running processes: asks each for its statistics, several at a time.
//!
//! A process answers in its housekeeping thread, so a look does not slow its messages;
//! docs/operating.md has the cost for that thread. Repeated looks keep a pause.
//!
//! Never: a look exceeds its time limit or its [`Budget`], for any number of services and any
//! answers; a user's silent processes keep those of another from being asked; a process is asked
//! twice.

use crate::budget::{Budget, Of};
use crate::figures::{Figures, LEFT_OUT_MAX, Link, is_stopped, program};
use crate::names::of_this_host;
use anyhow::{Error, Result, anyhow};
use hamlyn::Config;
use hamlyn::control::{
    Answered, ConnectError, Reason, ServiceName, Services, list_services, private_dir,
    read_statistics, uid_of,
};
use hamlyn_tools::output;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Processes that are asked at a time.
const ASKED_AT_A_TIME: usize = 64;
/// The longest wait for a silent process in repeated looks, so that the others are shown in time.
pub const SILENCE: Duration = Duration::from_secs(1);
/// Names are searched again after this time, because a search costs each of their processes another
/// connection.
const NAMES_FOR: Duration = Duration::from_secs(5);

/// A service to ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    pub name: String,
    /// Its process and its socket, if it was found in a directory.
    process: Option<u32>,
    socket: Option<(u64, u64)>,
}

/// The services of a look.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub services: Vec<Service>,
    /// Directories whose lists of names are incomplete.
    unseen: Vec<PathBuf>,
}

/// One process's answer, and its time.
#[derive(Debug)]
pub struct Told {
    pub name: String,
    pub at: Instant,
    /// Time from the question to the answer.
    pub took: Duration,
    /// For another host: its address and its proved identity.
    pub host: Option<String>,
    /// The user of the process, from the kernel.
    pub user: Option<u32>,
    pub process: Option<u32>,
    /// The name of the process's program.
    pub program: Option<String>,
    pub figures: Arc<Figures>,
    /// The first name of the same process in this look: its links are shown there.
    pub same_as: Option<String>,
}

/// The result of a look at several processes.
#[derive(Debug, Default)]
pub struct Look {
    /// In the order of the questions.
    pub told: Vec<Told>,
    /// The processes that did not answer, and the reasons.
    pub failed: Vec<(String, String)>,
    /// Those among `failed` that exist and show their figures to other users only.
    pub closed: BTreeSet<String>,
    /// Names that were not asked, by user, because of the budget or the time limit.
    pub not_asked: BTreeMap<String, usize>,
    /// Directories whose lists of names are incomplete.
    pub unseen: Vec<PathBuf>,
}

impl Look {
    /// Lines of answers that were left out.
    pub fn lines_left_out(&self) -> u64 {
        let first = self.told.iter().filter(|told| told.same_as.is_none());
        first.map(|told| told.figures.left_out).sum()
    }

    /// The missing parts, in sentences.
    pub fn left_out(&self) -> Vec<String> {
        let names = self.not_asked.iter().map(|(user, count)| {
            format!("{count} names of user {user} were not asked: there are too many, or too many are silent")
        });
        let lines = Some(self.lines_left_out()).filter(|count| *count > 0);
        let lines = lines.map(|count| {
            format!("{count} lines of the answers, or more, were left out: there were too many, or they came too late")
        });
        let unseen = self.unseen.iter().map(|path| {
            format!("not all names in {} are known: it has too many, or is held", path.display())
        });
        names.chain(lines).chain(unseen).collect()
    }
}

/// Said of the figures: the service itself may still admit the user who asks.
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

/// Asks one process, and waits at most `patience` for its answer.
pub fn ask(config: &Config, name: &str, patience: Duration) -> Result<Told> {
    let asked = ask_within(config, name, patience, &Budget::of_users(1));
    asked.map_err(|error| match error {
        Asked::Silent => silent(patience, process_of(&list_services(config), name)),
        Asked::Failed(error) => error,
    })
}

/// The reasons for a missing answer.
enum Asked {
    /// The time limit has passed.
    Silent,
    Failed(Error),
}

fn ask_within(
    config: &Config,
    name: &str,
    patience: Duration,
    budget: &Budget,
) -> Result<Told, Asked> {
    #[cfg(feature = "tls")]
    if hamlyn::control::is_of_other_host(name) {
        return ask_host(config, name, patience, budget).map_err(Asked::Failed);
    }
    let (began, user) = (Instant::now(), user_of(name));
    let service = of_this_host(name).map_err(Asked::Failed)?;
    let mut figures = Figures::default();
    let mut keep = |line: &str| {
        figures.read(line, budget, &user);
        figures.left_out < LEFT_OUT_MAX
    };
    let answered = read_statistics(config, &service, Some(patience), &mut keep);
    let Answered { uid, pid, is_whole } = answered.map_err(|error| match error {
        ConnectError::TimedOut(_) => Asked::Silent,
        ConnectError::Refused { reason: Reason::User, .. } => Asked::Failed(Closed.into()),
        error => Asked::Failed(error.into()),
    })?;
    figures.left_out += u64::from(!is_whole);
    let (user, process) = (uid, pid);
    let at = Instant::now();
    let program = process.and_then(program);
    let (name, took, figures) = (name.into(), at - began, Arc::new(figures));
    Ok(Told { name, at, took, host: None, user, process, program, figures, same_as: None })
}

/// Asks a process on another host, which answers the hosts in its setting `figures_to`.
#[cfg(feature = "tls")]
fn ask_host(config: &Config, name: &str, patience: Duration, budget: &Budget) -> Result<Told> {
    let began = Instant::now();
    let told = hamlyn::control::hosts::figures::ask(config, &name.parse()?, patience)?;
    let at = Instant::now();
    let host = format!("{} ({})", told.address, hamlyn::control::printable(&told.identity));
    let mut figures = Figures::default();
    told.text.lines().for_each(|line| figures.read(line, budget, name));
    figures.are_of_host();
    Ok(Told {
        name: name.into(),
        at,
        took: at - began,
        host: Some(host),
        user: None,
        process: None,
        program: None,
        figures: Arc::new(figures),
        same_as: None,
    })
}

fn silent(patience: Duration, process: Option<u32>) -> Error {
    let Some(pid) = process.filter(|pid| is_stopped(*pid)) else {
        return anyhow!("it has not answered for {} s", patience.as_secs_f64());
    };
    let program = program(pid).map_or(String::new(), |program| format!(" ({program})"));
    anyhow!(
        "its process {pid}{program} is stopped, by a signal (SIGSTOP) or a debugger; \
         `kill -CONT {pid}` lets it go on"
    )
}

/// The process that serves a name of this host, as far as that can be seen from here.
fn process_of(services: &Services, name: &str) -> Option<u32> {
    services.entries.iter().find(|service| one_form(&service.name) == name)?.pid
}

/// The account that a look at a service is charged to: its user, or the other host.
pub fn user_of(name: &str) -> String {
    let is_of_host = hamlyn::control::is_of_other_host(name);
    match name.split_once('@').filter(|_| !is_of_host) {
        Some((user, _)) => user.into(),
        None if is_of_host => name.into(),
        None => rustix::process::geteuid().as_raw().to_string(),
    }
}

/// The questions of a look that are still to ask: one for all names of a process.
struct Questions {
    /// By user.
    waiting: BTreeMap<String, VecDeque<Vec<usize>>>,
    asking: HashMap<String, usize>,
}

impl Questions {
    fn of(found: &Found, budget: &Budget, look: &mut Look) -> Self {
        let mut waiting: BTreeMap<String, VecDeque<Vec<usize>>> = BTreeMap::new();
        // Sockets, not processes: a process may have several nodes, each with figures of its own.
        let mut known: HashMap<(String, (u64, u64)), usize> = HashMap::new();
        for (i, service) in found.services.iter().enumerate() {
            let user = user_of(&service.name);
            if !budget.take(&user, Of::Names, 1) {
                *look.not_asked.entry(user).or_default() += 1;
                continue;
            }
            let questions = waiting.entry(user.clone()).or_default();
            let at = service.socket.map(|it| *known.entry((user, it)).or_insert(questions.len()));
            match at.and_then(|at| questions.get_mut(at)) {
                Some(same) => same.push(i),
                None => questions.push_back(vec![i]),
            }
        }
        Self { waiting, asking: HashMap::new() }
    }

    /// The next question, of the user with the fewest open questions: silent processes delay only
    /// their own user.
    fn next(&mut self) -> Option<(String, Vec<usize>)> {
        let asking = |user: &String| self.asking.get(user).copied().unwrap_or(0);
        let user = self.waiting.keys().min_by_key(|user| asking(user))?.clone();
        let questions = self.waiting.get_mut(&user)?;
        let next = questions.pop_front();
        if questions.is_empty() {
            self.waiting.remove(&user);
        }
        *self.asking.entry(user.clone()).or_default() += 1;
        next.map(|next| (user, next))
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks all of these, and waits at most `patience` for all of them together.
pub fn ask_all(config: &Config, found: &Found, patience: Duration) -> Look {
    let began = Instant::now();
    let users: BTreeSet<String> =
        found.services.iter().map(|service| user_of(&service.name)).collect();
    let budget = Budget::of_users(users.len());
    let mut look = Look { unseen: found.unseen.clone(), ..Look::default() };
    let questions = Mutex::new(Questions::of(found, &budget, &mut look));
    let count: usize = locked(&questions).waiting.values().map(VecDeque::len).sum();
    let answers: Mutex<BTreeMap<usize, Result<Told, Asked>>> = Mutex::default();
    let work = || {
        while began.elapsed() < patience {
            let Some((user, names)) = locked(&questions).next() else { return };
            let [first, others @ ..] = &names[..] else { continue };
            let left = patience.saturating_sub(began.elapsed());
            let answer = ask_within(config, &found.services[*first].name, left, &budget);
            let mut answers = locked(&answers);
            for other in others {
                let name = found.services[*other].name.clone();
                let again = match &answer {
                    Ok(told) => Ok(told.again_as(name)),
                    Err(Asked::Silent) => Err(Asked::Silent),
                    Err(Asked::Failed(error)) if error.is::<Closed>() => {
                        Err(Asked::Failed(Closed.into()))
                    }
                    Err(Asked::Failed(error)) => {
                        Err(Asked::Failed(anyhow!(output::in_words(error))))
                    }
                };
                answers.insert(*other, again);
            }
            answers.insert(*first, answer);
            drop(answers);
            if let Some(asking) = locked(&questions).asking.get_mut(&user) {
                *asking -= 1;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..count.min(ASKED_AT_A_TIME) {
            scope.spawn(work);
        }
    });
    for (user, questions) in locked(&questions).waiting.iter() {
        let names: usize = questions.iter().map(Vec::len).sum();
        *look.not_asked.entry(user.clone()).or_default() += names;
    }
    let services = LazyLock::new(|| list_services(config));
    let mut firsts: HashMap<(String, String), String> = HashMap::new();
    for (i, answer) in answers.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let service = &found.services[i];
        let error = match answer {
            Ok(mut told) => {
                // The node number is the process's own claim, so it counts only among processes of
                // its user.
                let which = (user_of(&told.name), told.figures.text("node").to_string());
                if !which.1.is_empty() {
                    told.same_as = firsts.get(&which).cloned();
                    firsts.entry(which).or_insert_with(|| told.name.clone());
                }
                look.told.push(told);
                continue;
            }
            Err(Asked::Silent) => {
                // A service found in a directory was looked up there.
                let named = service.socket.is_none().then(|| process_of(&services, &service.name));
                silent(patience, service.process.or(named.flatten()))
            }
            Err(Asked::Failed(error)) => error,
        };
        if error.is::<Closed>() {
            look.closed.insert(service.name.clone());
        }
        look.failed.push((service.name.clone(), output::in_words(&error)));
    }
    look
}

/// The services that may be asked: this user's, and for root those of all users.
pub fn find(config: &Config) -> Found {
    let user = rustix::process::geteuid().as_raw();
    let is_asked = |uid: Option<u32>| user == 0 || uid == Some(user);
    let Services { entries, held, cut, .. } = list_services(config);
    let entries = entries.into_iter().filter(|s| is_asked(s.uid) && s.is_alive != Some(false));
    let mut services: Vec<Service> = entries
        .map(|entry| Service {
            name: one_form(&entry.name),
            process: entry.pid,
            socket: Some(entry.socket),
        })
        .collect();
    // In both directories: every question finds the same one.
    services.sort_by(|a, b| a.name.cmp(&b.name));
    services.dedup_by(|a, b| a.name == b.name);
    Found { services, unseen: [held, cut].concat() }
}

/// The one form of a service's name, for every way to write it: `NAME` for this user's own,
/// `NUMBER@NAME` for another's, with the user's number; the latter also for a service that this
/// user serves to others while it serves another of that name to itself.
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

/// The names of the watched services.
pub struct Watched {
    /// Empty: all.
    wanted: Vec<String>,
    found: Option<(Instant, Found)>,
}

impl Watched {
    /// `wanted`: these; empty: all that may be asked, searched again every few seconds.
    pub fn new(wanted: &[String]) -> Self {
        Self { wanted: wanted.iter().map(|name| one_form(name)).collect(), found: None }
    }

    pub fn find(&mut self, config: &Config) -> Found {
        if !self.wanted.is_empty() {
            let unknown =
                |name: &String| Service { name: name.clone(), process: None, socket: None };
            let services = self.wanted.iter().map(unknown).collect();
            return Found { services, unseen: Vec::new() };
        }
        match &self.found {
            Some((at, found)) if at.elapsed() < NAMES_FOR => found.clone(),
            _ => {
                let found = find(config);
                self.found = Some((Instant::now(), found.clone()));
                found
            }
        }
    }
}

/// The looks before this one, by name.
pub type Before = BTreeMap<String, Told>;

/// The answers by name, for comparison with the next look.
pub fn by_name(told: Vec<Told>) -> Before {
    told.into_iter().map(|told| (told.name.clone(), told)).collect()
}

impl Told {
    /// The same answer, for another name of its socket.
    fn again_as(&self, name: String) -> Self {
        let (host, program, figures) =
            (self.host.clone(), self.program.clone(), self.figures.clone());
        Self { name, host, program, figures, same_as: Some(self.name.clone()), ..*self }
    }

    /// The same process in an earlier look; another process may have the name now.
    pub fn earlier<'a>(&self, before: &'a Before) -> Option<&'a Told> {
        let earlier = before.get(&self.name)?;
        (earlier.figures.text("node") == self.figures.text("node")).then_some(earlier)
    }

    /// The rise of a counter in one second; 0 if there is nothing to compare with.
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
        let (took, figures) = (Duration::ZERO, Arc::new(Figures::of(text)));
        let (host, user, process, program, same_as) = (None, None, None, None, None);
        Told { name: "x".into(), at, took, host, user, process, program, figures, same_as }
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
