//! The key-value space of any launcher: names and bytes that one rank puts, a fence to which all
//! come, and the bytes that the others get then.

use super::error::JobError;
use super::launcher::Launcher;
use super::lines::{JobLine, LINE_BYTES_MAX, from_hex, to_hex};
use super::talk::{Fenced, Talk};
use super::turn::{ANSWER, Within};
use crate::os::pmix::{Pmix, PmixError};
use core::time::Duration;
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::format;
use std::path::Path;
use std::string::{String, ToString};
use std::vec::Vec;

/// Longest name for `put`.
pub const NAME_BYTES_MAX: usize = 32;
/// Longest name in a launcher's space: `hm-RANK-u-NAME`.
const KEY_BYTES_MAX: usize = NAME_BYTES_MAX + 16;
/// The value of no bytes in PMI-1.
const EMPTY: &str = "-";
/// Most bytes under one name that fit into a line.
const LINE_VALUE_BYTES_MAX: usize = (LINE_BYTES_MAX - 1024) / 2;
/// Most ranks of a job.
pub const RANKS_MAX: u32 = 1 << 20;

/// The variable by which the launcher was found, and those that were looked for before it.
#[derive(Clone, Debug)]
pub struct FoundLauncher {
    /// The variable.
    pub variable: &'static str,
    /// Variables that were looked for in vain.
    pub not: Vec<&'static str>,
}

/// The space, and the launcher's first answers.
#[derive(Debug)]
pub struct JobSpace {
    way: SpaceWay,
    /// The names of the values that this rank has put.
    names: BTreeSet<String>,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// Most bytes under one name.
    pub value_bytes_max: usize,
    /// The job's secret, if the launcher gives one.
    pub secret: Option<[u8; 32]>,
    /// This host's name for other hosts, if the launcher gives it.
    pub host: Option<String>,
    /// The way in which it was found.
    pub found: FoundLauncher,
}

#[derive(Debug)]
enum SpaceWay {
    Run(Talk),
    Pmix(Box<Pmix>),
    Pmi1 { talk: Talk, space: String },
    Alone(BTreeMap<String, Vec<u8>>),
}

/// Ranks must be below this number.
fn number(variable: &'static str, text: &str, min: u32, below: u32) -> Result<u32, JobError> {
    let number = text.parse().ok().filter(|number| (min..below).contains(number));
    number.ok_or_else(|| JobError::Environment {
        variable,
        value: text.chars().take(80).collect(),
        allowed: format!("a whole number from {min} to {}", below - 1),
    })
}

impl JobSpace {
    /// The space of the launcher that started this process.
    pub fn find(
        lookup: impl Fn(&str) -> Option<String>,
        pmix_library: Option<&Path>,
    ) -> Result<Self, JobError> {
        let mut not = Vec::new();
        if let Some(number) = lookup("HAMLYN_JOB_FD") {
            return Self::of_run(&number, FoundLauncher { variable: "HAMLYN_JOB_FD", not });
        }
        not.push("hamlyn run (HAMLYN_JOB_FD)");
        if let Some(namespace) = lookup("PMIX_NAMESPACE") {
            let rank = lookup("PMIX_RANK").unwrap_or_default();
            let found = FoundLauncher { variable: "PMIX_NAMESPACE", not };
            return Self::of_pmix(pmix_library, &namespace, &rank, found);
        }
        not.push("PMIx (PMIX_NAMESPACE)");
        if let Some(fd) = lookup("PMI_FD") {
            let text = |variable| lookup(variable).unwrap_or_default();
            let size = number("PMI_SIZE", &text("PMI_SIZE"), 1, RANKS_MAX + 1)?;
            let rank = number("PMI_RANK", &text("PMI_RANK"), 0, size)?;
            return Self::of_pmi1(&fd, rank, size, FoundLauncher { variable: "PMI_FD", not });
        }
        not.push("PMI-1 (PMI_FD)");
        Ok(Self {
            way: SpaceWay::Alone(BTreeMap::new()),
            names: BTreeSet::new(),
            rank: 0,
            size: 1,
            value_bytes_max: LINE_VALUE_BYTES_MAX,
            secret: None,
            host: None,
            found: FoundLauncher { variable: "", not },
        })
    }

    fn of_run(fd: &str, found: FoundLauncher) -> Result<Self, JobError> {
        let doing = "asking for the rank";
        let mut talk = Talk::new(Launcher::Run, found.variable, fd)?;
        let line = JobLine::new("init").with("hamlyn", env!("CARGO_PKG_VERSION"));
        let answer = talk.ask(&line, "response_to_init", doing)?;
        if answer.is_refusal() {
            return Err(talk.nonsense(doing, &answer));
        }
        let word = |name: &str| answer.number(name).and_then(|number| u32::try_from(number).ok());
        let (Some(rank), Some(size)) = (word("rank"), word("size")) else {
            // The text must not be in the error here either, because it has the secret.
            let answer = JobLine::new("response_to_init");
            return Err(talk.nonsense(doing, &answer));
        };
        let secret = answer.get("secret").and_then(from_hex);
        let Some(secret) = secret.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok()) else {
            // Without the text, which may hold most of the secret.
            let answer = JobLine::new("response_to_init");
            return Err(talk.nonsense("asking for the job's secret", &answer));
        };
        if size > RANKS_MAX || rank >= size {
            let answer = JobLine::new("response_to_init").with("rank", rank).with("size", size);
            return Err(talk.nonsense(doing, &answer));
        }
        talk.set_size(size);
        Ok(Self {
            way: SpaceWay::Run(talk),
            names: BTreeSet::new(),
            rank,
            size,
            value_bytes_max: LINE_VALUE_BYTES_MAX,
            secret: Some(secret),
            host: answer.get("host").map(Into::into),
            found,
        })
    }

    fn of_pmix(
        library: Option<&Path>,
        namespace: &str,
        rank: &str,
        found: FoundLauncher,
    ) -> Result<Self, JobError> {
        let rank = number("PMIX_RANK", rank, 0, RANKS_MAX)?;
        let doing = "connecting to it";
        let opened = Pmix::open(library, LINE_VALUE_BYTES_MAX, ANSWER);
        let pmix = opened.map_err(|e| match e {
            PmixError::NoLibrary { .. } => {
                JobError::PmixLibrary { variable: found.variable, why: e.to_string() }
            }
            e => of_pmix_error(e, doing),
        })?;
        Self::with_pmix(pmix, namespace, rank, found)
    }

    /// With a library that has connected to the launcher, and whose answers must match the
    /// environment.
    fn with_pmix(
        mut pmix: Pmix,
        namespace: &str,
        rank: u32,
        found: FoundLauncher,
    ) -> Result<Self, JobError> {
        let doing = "asking for the number of ranks";
        let checked = match pmix.size(ANSWER) {
            Err(e) => Err(of_pmix_error(e, doing)),
            Ok(size) if (1..=RANKS_MAX).contains(&size) && rank < size => Ok(size),
            Ok(size) => Err(of_pmix_error(PmixError::Said(format!("{size}")), doing)),
        };
        let (own, told) = (pmix.rank(), pmix.namespace());
        let checked = checked.and_then(|size| match own == rank && told == namespace {
            true => Ok(size),
            false => {
                let text = format!("rank {own} of {}", told.chars().take(80).collect::<String>());
                Err(of_pmix_error(PmixError::Said(text), "asking for the rank"))
            }
        });
        match checked {
            Ok(size) => Ok(Self {
                way: SpaceWay::Pmix(Box::new(pmix)),
                names: BTreeSet::new(),
                rank,
                size,
                value_bytes_max: LINE_VALUE_BYTES_MAX,
                secret: None,
                host: None,
                found,
            }),
            Err(e) => {
                pmix.finish(ANSWER);
                Err(e)
            }
        }
    }

    fn of_pmi1(fd: &str, rank: u32, size: u32, found: FoundLauncher) -> Result<Self, JobError> {
        let mut talk = Talk::new(Launcher::Pmi1, found.variable, fd)?;
        talk.set_size(size);
        let doing = "asking for its version";
        let line = JobLine::new("init").with("pmi_version", 1).with("pmi_subversion", 1);
        let answer = talk.ask(&line, "response_to_init", doing)?;
        if answer.is_refusal() || answer.number("pmi_version") != Some(1) {
            return Err(talk.nonsense(doing, &answer));
        }
        let doing = "asking how long a value may be";
        let answer = talk.ask(&JobLine::new("get_maxes"), "maxes", doing)?;
        let (Some(value), Some(key)) = (answer.number("vallen_max"), answer.number("keylen_max"))
        else {
            return Err(talk.nonsense(doing, &answer));
        };
        // A secret and a seed's host have to fit.
        if key < KEY_BYTES_MAX as u64 || value < 512 {
            return Err(talk.nonsense(doing, &answer));
        }
        let value_bytes_max = (value as usize - 1).min(2 * LINE_VALUE_BYTES_MAX) / 2;
        let doing = "asking for the name of its key-value space";
        let answer = talk.ask(&JobLine::new("get_my_kvsname"), "my_kvsname", doing)?;
        let Some(space) = answer.get("kvsname").map(String::from) else {
            return Err(talk.nonsense(doing, &answer));
        };
        let way = SpaceWay::Pmi1 { talk, space };
        let names = BTreeSet::new();
        Ok(Self { way, names, rank, size, value_bytes_max, secret: None, host: None, found })
    }

    /// The launcher.
    pub fn launcher(&self) -> Launcher {
        match &self.way {
            SpaceWay::Run(talk) | SpaceWay::Pmi1 { talk, .. } => talk.launcher(),
            SpaceWay::Pmix(_) => Launcher::Pmix,
            SpaceWay::Alone(_) => Launcher::None,
        }
    }

    /// Puts bytes, which other ranks get after the next fence.
    pub fn put(&mut self, name: &str, value: &[u8]) -> Result<(), JobError> {
        let (launcher, max) = (self.launcher(), self.value_bytes_max);
        if value.len() > max {
            let (what, bytes) = ("a value", value.len());
            return Err(JobError::TooLong { what, bytes, max, launcher });
        }
        if self.names.contains(name) {
            return Err(JobError::PutAlready { found: name.into() });
        }
        let key = key(self.rank, name);
        let doing = "putting a value";
        let line = JobLine::new("put");
        let put = match &mut self.way {
            SpaceWay::Run(talk) => {
                let line = line.with("key", &key).with("value", to_hex(value));
                let answer = talk.ask(&line, "put_result", doing)?;
                refused(talk, doing, &answer)
            }
            SpaceWay::Pmix(pmix) => {
                pmix.put(&text(&key), value).map_err(|e| of_pmix_error(e, doing))
            }
            SpaceWay::Pmi1 { talk, space } => {
                let line = line.with("kvsname", &*space).with("key", &key);
                // Hydra of MPICH 5 takes an empty value for no command, and ends the job.
                let said = if value.is_empty() { EMPTY.into() } else { to_hex(value) };
                let answer = talk.ask(&line.with("value", said), "put_result", doing)?;
                refused(talk, doing, &answer)
            }
            SpaceWay::Alone(put) => {
                put.insert(key, value.to_vec());
                Ok(())
            }
        };
        put?;
        self.names.insert(name.into());
        Ok(())
    }

    /// The bytes that a rank has put.
    pub fn get(&mut self, rank: u32, name: &str, within: Within) -> Result<Vec<u8>, JobError> {
        let key = key(rank, name);
        let doing = "getting a value";
        let nothing = || JobError::NothingPut { rank, found: name.into() };
        let read = |talk: &Talk, answer: &JobLine| {
            if answer.is_refusal() {
                return Err(nothing());
            }
            let value = match answer.get("value") {
                Some(EMPTY) if talk.launcher() == Launcher::Pmi1 => Some(Vec::new()),
                value => value.and_then(from_hex),
            };
            value.ok_or_else(|| talk.nonsense(doing, answer))
        };
        match &mut self.way {
            SpaceWay::Run(talk) => {
                let line = JobLine::new("get").with("key", &key);
                let answer = talk.ask_within(&line, "get_result", doing, within)?;
                read(talk, &answer)
            }
            SpaceWay::Pmix(pmix) => {
                let got = pmix.get(rank, &text(&key), within.left());
                got.map_err(|e| match e {
                    PmixError::Silent => {
                        let (launcher, limit_ms) = (Launcher::Pmix, within.limit_ms());
                        JobError::LauncherSilent { launcher, doing, limit_ms }
                    }
                    e => of_pmix_error(e, doing),
                })?
                .ok_or_else(nothing)
            }
            SpaceWay::Pmi1 { talk, space } => {
                let line = JobLine::new("get").with("kvsname", &*space).with("key", &key);
                let answer = talk.ask_within(&line, "get_result", doing, within)?;
                read(talk, &answer)
            }
            SpaceWay::Alone(put) => put.get(&key).cloned().ok_or_else(nothing),
        }
    }

    /// Comes to a fence, or goes on with the one that was begun.
    pub fn begin_fence(&mut self, within: Within) -> Result<(), JobError> {
        match &mut self.way {
            SpaceWay::Run(talk) | SpaceWay::Pmi1 { talk, .. } => talk.begin_fence(within),
            SpaceWay::Pmix(pmix) => {
                pmix.begin_fence().map_err(|e| of_pmix_error(e, "coming to a fence"))
            }
            SpaceWay::Alone(_) => Ok(()),
        }
    }

    /// Whether the fence has ended, after waiting for at most `limit`.
    pub fn end_fence(&mut self, limit: Duration) -> Result<bool, JobError> {
        let fenced = match &mut self.way {
            SpaceWay::Run(talk) | SpaceWay::Pmi1 { talk, .. } => match talk.end_fence()? {
                None => {
                    talk.wait_for_word(limit);
                    talk.end_fence()?
                }
                fenced => fenced,
            },
            SpaceWay::Pmix(pmix) => {
                let ended = pmix.end_fence(limit);
                let ended = ended.map_err(|e| of_pmix_error(e, "waiting for all ranks"))?;
                ended.then_some(Fenced::All)
            }
            SpaceWay::Alone(_) => Some(Fenced::All),
        };
        match fenced {
            None => Ok(false),
            Some(Fenced::All) => Ok(true),
            Some(Fenced::Ended(ranks)) => Err(JobError::Ended(ranks)),
        }
    }

    /// Asks for the ranks that have not come to this rank's fence, if the launcher can tell.
    pub fn ask_missing(&mut self) -> Result<(), JobError> {
        match &mut self.way {
            SpaceWay::Run(talk) => talk.ask_missing(),
            SpaceWay::Pmix(_) | SpaceWay::Pmi1 { .. } | SpaceWay::Alone(_) => Ok(()),
        }
    }

    /// Whether the answer to that is on its way; the wait for the fence receives it.
    pub fn asks_missing(&self) -> bool {
        matches!(&self.way, SpaceWay::Run(talk) if talk.asks_missing())
    }

    /// The missing ranks of the last answer; empty without an answer.
    pub fn missing(&self) -> Result<Vec<u32>, JobError> {
        match &self.way {
            SpaceWay::Run(talk) => talk.missing(),
            SpaceWay::Pmix(_) | SpaceWay::Pmi1 { .. } | SpaceWay::Alone(_) => Ok(Vec::new()),
        }
    }

    /// This rank no longer needs the launcher. A launcher that has gone is not told.
    pub fn finish(&mut self) {
        match &mut self.way {
            SpaceWay::Run(_) | SpaceWay::Alone(_) => {}
            SpaceWay::Pmix(pmix) => pmix.finish(ANSWER),
            SpaceWay::Pmi1 { talk, .. } => {
                let _ = talk.ask(&JobLine::new("finalize"), "finalize_ack", "saying goodbye");
            }
        }
    }
}

fn refused(talk: &Talk, doing: &'static str, answer: &JobLine) -> Result<(), JobError> {
    match answer.is_refusal() {
        true => Err(talk.nonsense(doing, answer)),
        false => Ok(()),
    }
}

/// The error of a rank for an error of PMIx.
fn of_pmix_error(error: PmixError, doing: &'static str) -> JobError {
    let launcher = Launcher::Pmix;
    match error {
        PmixError::Ended => JobError::Ended(Vec::new()),
        PmixError::Gone => JobError::LauncherGone { launcher, doing },
        PmixError::Silent => {
            JobError::LauncherSilent { launcher, doing, limit_ms: ANSWER.as_millis() as u64 }
        }
        e => JobError::Launcher { launcher, doing, text: e.to_string() },
    }
}

/// A name for PMIx; names are checked to be plain.
fn text(key: &str) -> CString {
    CString::new(key).unwrap_or_default()
}

/// A key in a launcher's form: a rank writes below its own number.
fn key(rank: u32, name: &str) -> String {
    format!("hm-{rank}-{name}")
}

/// The key of an application's name; the job's own names have no `u-`.
pub fn own_name(name: &str) -> Result<String, JobError> {
    check_name(name)?;
    Ok(format!("u-{name}"))
}

/// Whether it can be a name.
pub fn check_name(name: &str) -> Result<(), JobError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed) {
        true => Ok(()),
        false => {
            let found = name.chars().take(80).collect::<String>().to_string();
            Err(JobError::Name { found, max: NAME_BYTES_MAX })
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Result<JobSpace, JobError> {
        let look = |name: &str| variables.iter().find(|row| row.0 == name);
        JobSpace::find(|name| look(name).map(|row| row.1.to_string()), None)
    }

    #[test]
    fn without_a_launcher_there_is_one_rank() {
        let (mut space, within) = (find(&[]).unwrap(), Within::new(None));
        assert_eq!((space.rank, space.size, space.launcher()), (0, 1, Launcher::None));
        assert_eq!(space.found.not.len(), 3);
        space.put("u-a", b"b").unwrap();
        assert_eq!(space.get(0, "u-a", within).unwrap(), b"b");
        let again = space.put("u-a", b"c");
        assert!(matches!(again, Err(JobError::PutAlready { found }) if found == "u-a"));
        assert_eq!(space.get(0, "u-a", within).unwrap(), b"b");
        assert!(matches!(space.get(0, "u-b", within), Err(JobError::NothingPut { rank: 0, .. })));
    }

    #[test]
    fn numbers_of_ranks_that_cannot_be_are_refused() {
        for (rank, size, wrong) in [
            ("4", "4", "PMI_RANK"),
            ("-1", "4", "PMI_RANK"),
            ("0", "0", "PMI_SIZE"),
            ("0", "x", "PMI_SIZE"),
        ] {
            let found = find(&[("PMI_FD", "0"), ("PMI_RANK", rank), ("PMI_SIZE", size)]);
            let error = found.unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("from"), "{error}");
        }
    }

    #[test]
    fn a_name_is_short_and_plain() {
        assert_eq!(own_name("a.b_c-1").unwrap(), "u-a.b_c-1");
        for name in ["", "a b", "a=b", "\u{e9}", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(own_name(name).is_err(), "{name:?}");
        }
        assert!(
            key(RANKS_MAX - 1, &own_name(&"x".repeat(NAME_BYTES_MAX)).unwrap()).len()
                <= KEY_BYTES_MAX
        );
    }
}
