//! `hamlyn names` and `hamlyn setup`: the directories of services.

use crate::arguments::{NamesArguments, SetupArguments};
use crate::figures;
use crate::words::several;
use anyhow::{Context, Result, ensure};
use hamlyn::Config;
use hamlyn::control::{
    ServiceEntry, ServiceName, is_of_other_host, list_services, remove_stale, setup_shared_dir,
    setup_user_dir, uid_of,
};
use hamlyn_tools::output;
use hamlyn_tools::perf::row;
use serde_json::json;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::{Duration, SystemTime};

/// Parses the name of a service of this host, for requests that work on this host alone.
pub fn of_this_host(name: &str) -> Result<ServiceName> {
    ensure!(
        !is_of_other_host(name),
        "{name} is a service of another host: this is done on that host, with the service's name \
         alone (its figures are told there, to its owner)"
    );
    Ok(name.parse()?)
}

/// `hamlyn names`.
pub fn run(arguments: &NamesArguments) -> Result<()> {
    let config = Config::from_env()?;
    let found = list_services(&config);
    for held in &found.held {
        let held = held.display();
        eprintln!("hamlyn: {held} is held by a process that reads it, so its names are not known");
    }
    let services = found.entries;
    if arguments.clean {
        return clean(&config, &services);
    }
    if arguments.json {
        for service in &services {
            output::line(json!({
                "name": service.name,
                "path": service.path,
                "user": service.uid,
                "process": service.pid,
                "program": program(service),
                "age_s": age(service).map(|age| age.as_secs()),
                "is_alive": service.is_alive,
                "is_full": service.is_full,
                "is_stopped": service.pid.map(figures::is_stopped),
            }))?;
        }
        return Ok(());
    }
    if services.is_empty() {
        return output::line(
            "No service has a name that this user may list: names of others are in places of their own, and \
             are used as USER@NAME.",
        );
    }
    let mut table = row::table(["name", "user", "process", "program", "age", ""]);
    for service in &services {
        let number = |number: Option<u32>| number.map_or("?".into(), |number| number.to_string());
        table.add_row([
            service.name.clone(),
            number(service.uid),
            service.pid.map_or(String::new(), |pid| pid.to_string()),
            program(service).unwrap_or_default(),
            age(service).map_or(String::new(), in_words),
            state(service).into(),
        ]);
    }
    output::line(table)?;
    let stale = services.iter().filter(|service| service.is_alive == Some(false)).count();
    if stale > 0 {
        output::line(format_args!("{stale} stale: `hamlyn names --clean` removes yours."))?;
    }
    Ok(())
}

/// Removes the names left by dead processes of this user.
fn clean(config: &Config, services: &[ServiceEntry]) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let (mut removed, mut failed, mut of_others) = (0u64, 0, 0);
    for service in services.iter().filter(|service| service.is_alive == Some(false)) {
        if service.uid != Some(user) {
            of_others += u32::from(service.uid.is_some());
            continue;
        }
        match remove_stale(config, service) {
            Ok(was_stale) => removed += u64::from(was_stale),
            Err(error) => {
                failed += 1;
                eprintln!("hamlyn: {} stays: {error}", service.path.display());
            }
        }
    }
    let others = match of_others {
        0 => String::new(),
        1 => " 1 is of another user, who alone removes it.".into(),
        count => format!(" {count} are of other users, who alone remove theirs."),
    };
    output::line(format_args!("{} removed.{others}", several(removed, "stale name")))?;
    ensure!(failed == 0, "{failed} could not be removed");
    Ok(())
}

fn state(service: &ServiceEntry) -> &'static str {
    match service.is_alive {
        Some(true) if service.pid.is_some_and(figures::is_stopped) => "stopped",
        Some(true) if service.is_full => "alive, queue full",
        Some(true) => "alive",
        Some(false) => "stale",
        None => "may not be asked",
    }
}

/// The name of the program that serves it.
fn program(service: &ServiceEntry) -> Option<String> {
    figures::program(service.pid?)
}

/// Since the name was taken.
fn age(service: &ServiceEntry) -> Option<Duration> {
    let taken = service.path.symlink_metadata().ok()?.modified().ok()?;
    SystemTime::now().duration_since(taken).ok()
}

fn in_words(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// `hamlyn setup`.
pub fn setup(arguments: &SetupArguments) -> Result<()> {
    let config = Config::from_env()?;
    // Checked before anything is said or made.
    let users: Vec<(&String, u32)> =
        arguments.users.iter().map(|user| Ok((user, uid_of(user)?))).collect::<Result<_>>()?;
    if arguments.tmpfiles {
        let shared = config.shared_dir.display();
        output::line(format_args!("d {shared} 1777 root root -"))?;
        for (_, uid) in users {
            output::line(format_args!("d {shared}/{uid} 0711 {uid} - -"))?;
        }
        return Ok(());
    }
    let by_root = || match rustix::process::geteuid().is_root() {
        true => String::new(),
        false => format!(
            ", which root alone makes, and this is user {}: run it as root (`sudo hamlyn setup ..`)",
            rustix::process::geteuid().as_raw()
        ),
    };
    let path = setup_shared_dir(&config)
        .with_context(|| format!("no directory for other users{}", by_root()))?;
    output::line(format_args!(
        "{} is there, for services that other users may reach.",
        path.display()
    ))?;
    for (user, uid) in users {
        let before = moved_aside(&config, uid);
        let path = setup_user_dir(&config, user)
            .with_context(|| format!("no place for {user}{}", by_root()))?;
        output::line(format_args!("{} is there, for those of {user}.", path.display()))?;
        for aside in moved_aside(&config, uid).difference(&before) {
            let aside = config.shared_dir.join(aside);
            output::line(format_args!(
                "What another user had put there is now {}: nobody uses it.",
                aside.display()
            ))?;
        }
    }
    Ok(())
}

/// The entries found in a user's directory and moved out of it.
fn moved_aside(config: &Config, uid: u32) -> BTreeSet<OsString> {
    let names = std::fs::read_dir(&config.shared_dir).into_iter().flatten().flatten();
    let begins = format!("{uid}.taken-by-");
    let names = names.map(|entry| entry.file_name());
    names.filter(|name| name.as_encoded_bytes().starts_with(begins.as_bytes())).collect()
}
