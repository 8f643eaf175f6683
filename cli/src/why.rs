//! `hamlyn why`: says in sentences why a connection is slow or refused.
//!
//! It first checks everything visible from outside: the name, its directories, the listening
//! process. Then it asks the process for its figures twice, a moment apart. It sends nothing over
//! its links.

use crate::arguments::WhyArguments;
use crate::figures::{Figures, is_stopped, program};
use crate::findings::{PAUSE, ended, tell};
use crate::look::one_form;
use crate::names::of_this_host;
use crate::stat::PATIENCE;
use anyhow::{Result, bail};
use hamlyn::Config;
use hamlyn::control::{
    ConnectError, FindError, Reason, ServiceName, list_services, printable_bytes, stat_of, uid_of,
};
use hamlyn_tools::output;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `hamlyn why NAME`.
pub fn run(arguments: &WhyArguments) -> Result<()> {
    #[cfg(feature = "tls")]
    if hamlyn::control::is_of_other_host(&arguments.name) {
        return crate::reach::run(&arguments.name);
    }
    let config = Config::from_env()?;
    let service = of_this_host(&arguments.name)?;
    let (listens, is_wrong) = who_listens(&config, &arguments.name);
    for sentence in &listens {
        output::line(sentence)?;
    }
    let (before, now) = match look_twice(&config, &service) {
        Ok(figures) => figures,
        Err(error) => {
            output::line(no_figures(&arguments.name, &error))?;
            match &error {
                ConnectError::Find(FindError::NotFound { .. }) => {
                    bail!("nothing is called {}", arguments.name)
                }
                ConnectError::Find(_) => bail!("{} cannot be looked for", arguments.name),
                ConnectError::Stale(path) if !is_socket(path) => {
                    bail!("no service is called {}", arguments.name)
                }
                _ => return Ok(()),
            }
        }
    };
    tell(&before, &now, is_wrong)
}

fn look_twice(config: &Config, service: &ServiceName) -> Result<(Figures, Figures), ConnectError> {
    let ask = || stat_of(config, service, Some(PATIENCE)).map(|text| Figures::of(&text));
    let before = ask()?;
    std::thread::sleep(PAUSE);
    Ok((before, ask()?))
}

/// The listening process, as far as it is visible without asking, and whether it is stopped; and
/// whether that makes a connection slow or refused, for this user or another.
fn who_listens(config: &Config, name: &str) -> (Vec<String>, bool) {
    let wanted = one_form(name);
    let mut services = list_services(config).entries.into_iter();
    // Of two services of one name the private one is meant, as when connecting.
    let Some(found) = services.find(|service| one_form(&service.name) == wanted) else {
        // The names in another user's directory cannot be listed; this one can be looked at.
        let lets_in = place_of(config, name).and_then(|path| lets_in(&path));
        return (lets_in.into_iter().collect(), false);
    };
    let user =
        found.uid.map_or("a user that cannot be known here".into(), |uid| format!("user {uid}"));
    let path = found.path.display();
    let listens = match (found.is_alive, found.pid) {
        (Some(true), Some(pid)) => {
            let program = program(pid).map_or(String::new(), |program| format!(" ({program})"));
            format!("{name} is served at {path} by process {pid}{program} of {user}.")
        }
        (Some(true), None) if found.is_full => format!(
            "{name} is served at {path}, of {user}, and its queue of connections is full at this moment, so \
             that by which process is not seen: who connects waits until there is room. Anybody whom its \
             permissions let in can fill it, and it fills if nobody takes them from it."
        ),
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
    };
    let stopped = found.pid.filter(|pid| is_stopped(*pid)).map(|pid| {
        format!(
            "Process {pid} is stopped, by a signal (SIGSTOP) or a debugger: it answers nobody and \
             takes nothing until it goes on (`kill -CONT {pid}`)."
        )
    });
    let closed = closed_to_others(config, &found.path);
    let is_wrong =
        stopped.is_some() || closed.is_some() || found.is_full || found.is_alive != Some(true);
    let lets_in = lets_in(&found.path).filter(|_| found.is_alive != Some(false));
    ([listens].into_iter().chain(lets_in).chain(stopped).chain(closed).collect(), is_wrong)
}

/// The path of a service of another user.
fn place_of(config: &Config, name: &str) -> Option<PathBuf> {
    let service: ServiceName = name.parse().ok()?;
    let uid = uid_of(service.user()?).ok()?;
    Some(config.shared_dir.join(uid.to_string()).join(service.name()))
}

/// The users that may connect to a socket, from its mode, owner and group, and whether this user is
/// among them.
fn lets_in(socket: &Path) -> Option<String> {
    let found = socket.symlink_metadata().ok().filter(|found| found.file_type().is_socket())?;
    let (mode, user) = (found.mode() & 0o7777, named("user", found.uid(), "/etc/passwd"));
    let who = match (mode & 0o002 != 0, mode & 0o020 != 0) {
        (true, _) => "everybody".into(),
        (_, true) => format!("{user} and {}", named("group", found.gid(), "/etc/group")),
        _ => format!("{user} alone"),
    };
    // The kernel's own answer, which takes groups and root into account.
    let refused = rustix::fs::access(socket, rustix::fs::Access::WRITE_OK);
    let refused = match refused {
        Err(rustix::io::Errno::ACCESS) => {
            let user = named("user", rustix::process::geteuid().as_raw(), "/etc/passwd");
            format!(" This is {user}, whom it does not let in.")
        }
        _ => String::new(),
    };
    Some(format!("Its socket {} lets in {who} (mode {mode:o}).{refused}", socket.display()))
}

/// `user 1000 (alice)`, if this machine's file has the number.
fn named(what: &str, number: u32, file: &str) -> String {
    let lines = std::fs::read(file).unwrap_or_default();
    let of_line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let (name, is_it) = (fields.next()?, fields.nth(1)? == number.to_string().as_bytes());
        is_it.then(|| printable_bytes(name))
    };
    match lines.split(|byte| *byte == b'\n').find_map(of_line) {
        Some(name) => format!("{what} {number} ({name})"),
        None => format!("{what} {number}"),
    }
}

fn is_socket(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket())
}

/// Reports that the mode of its directory keeps other users from a service that is served to them.
fn closed_to_others(config: &Config, service: &Path) -> Option<String> {
    let place = service.parent().filter(|place| place.parent() == Some(&config.shared_dir))?;
    let found = place.metadata().ok()?;
    let mode = found.mode() & 0o7777;
    (mode & 0o011 != 0o011).then(|| {
        format!(
            "No other user comes to it: its directory {place} has mode {mode:o}, and must let others pass. \
             Its user, or root, says `chmod 711 {place}`; `hamlyn setup {}` by root mends it, too.",
            found.uid(),
            place = place.display()
        )
    })
}

/// The meaning of an error at the first question for a connection.
pub fn no_figures(name: &str, error: &ConnectError) -> String {
    match error {
        ConnectError::Find(FindError::NotFound { .. }) => {
            format!("A connection waits until its time is up: {}", ended(error))
        }
        ConnectError::Find(_) => format!("A connection fails at once: {}", ended(error)),
        ConnectError::Stale(path) if !is_socket(path) => format!(
            "A connection waits until its time is up: {} is there, and is no socket, so it is nobody's \
             service. Who wants to serve the name removes it first, or takes another name.",
            path.display()
        ),
        ConnectError::Stale(_) => {
            format!("A connection waits until its time is up: {}", ended(error))
        }
        ConnectError::NotPermitted(_) | ConnectError::WrongUser { .. } => {
            format!("A connection is refused at once: {}", ended(error))
        }
        ConnectError::Refused { reason: Reason::User, .. } => format!(
            "{name} answers, and tells its figures to its own user and to root alone: as one of \
             these, ask again for more."
        ),
        ConnectError::TimedOut(_) => format!(
            "{name} does not answer within {} seconds ({error}): its housekeeping is stopped, \
             or the process is, or has no processor, or others fill its queue of connections.",
            PATIENCE.as_secs()
        ),
        error => format!("{name} does not tell its figures: {}", ended(error)),
    }
}
