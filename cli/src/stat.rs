//! `hamlyn stat`.
//!
//! The counters are asked for over the process's control socket, which its housekeeping answers:
//! its fast path knows nothing of it. Only its owner, and root, is answered.

use crate::arguments::StatArguments;
use crate::output;
use crate::perf::row;
use anyhow::{Context, Result, bail};
use hamlyn::Config;
use hamlyn::control::{ServiceName, list_services, stat_of};
use serde_json::{Map, Value, json};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);

/// `hamlyn stat [NAME]`.
pub fn run(arguments: &StatArguments) -> Result<()> {
    let config = Config::from_env()?;
    match &arguments.name {
        Some(name) => {
            let service: ServiceName = name.parse()?;
            let text = stat_of(&config, &service, PATIENCE)
                .with_context(|| format!("no counters of {name}"))?;
            print(name, &text, arguments.json)
        }
        None => all(&config, arguments.json),
    }
}

/// Of every service of this user.
fn all(config: &Config, as_json: bool) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let services = list_services(config)
        .into_iter()
        .filter(|service| service.uid == Some(user) && service.is_alive != Some(false));
    let (mut found, mut failed) = (0, 0);
    for service in services {
        found += 1;
        let text = service
            .name
            .parse()
            .map_err(anyhow::Error::from)
            .and_then(|name| Ok(stat_of(config, &name, PATIENCE)?));
        match text {
            Ok(text) => print(&service.name, &text, as_json)?,
            Err(error) => {
                failed += 1;
                eprintln!("hamlyn: no counters of {}: {error:#}", service.name);
            }
        }
    }
    if found == 0 && !as_json {
        output::line("This user serves nothing now.")?;
    }
    if failed > 0 {
        bail!("{failed} of {found} processes did not answer");
    }
    Ok(())
}

fn print(name: &str, text: &str, as_json: bool) -> Result<()> {
    let counters = text.lines().filter_map(|line| line.rsplit_once(' '));
    if as_json {
        let counters: Map<String, Value> = counters
            .map(|(name, value)| {
                let value =
                    value.parse::<u64>().map_or_else(|_| json!(value), |value| json!(value));
                (name.to_owned(), value)
            })
            .collect();
        return output::line(json!({ "name": name, "counters": counters }));
    }
    let mut table = row::table([name, ""]);
    for (name, value) in counters {
        table.add_row([name, value]);
    }
    row::align_right(&mut table, [1]);
    output::line(table)
}
