//! Environment variables with the prefix of settings that are no settings. The library ignores
//! them; the command reports them, as they may be misspelt.

use hamlyn::Config;
use hamlyn::os::environment;
use hamlyn::services::printable;

const PREFIX: &str = "HAMLYN_";

/// The variables of a job's ranks, which `hamlyn run` sets.
const JOB: [&str; 4] = ["HAMLYN_JOB_FD", "HAMLYN_JOB_HOST", "HAMLYN_JOB_RANK", "HAMLYN_JOB_SIZE"];

/// The variables of this project's own builds, tests, measurements, layers and examples.
const OWN: [&str; 11] = [
    "HAMLYN_BENCH_",
    "HAMLYN_BUILT",
    // Cargo also sets it for a program that it runs: see tour/build.rs.
    "HAMLYN_COMMIT",
    "HAMLYN_COMPILER",
    "HAMLYN_EXAMPLE_",
    "HAMLYN_FABRIC_OTHER_LIBRARY",
    // Of the layers over Fast Messages, in layers/fm.
    "HAMLYN_FM_",
    "HAMLYN_MPI_",
    "HAMLYN_PROFILE",
    "HAMLYN_SIM_",
    "HAMLYN_TEST",
];

/// Reports on standard error the variables of this process that are no settings.
pub fn say_unknown() {
    if environment::crosses_privilege_boundary() {
        eprintln!(
            "hamlyn: this command has more rights than its caller (set-user-ID, set-group-ID, file \
             capabilities): it reads no variable of the environment"
        );
    }
    for sentence in unknown(environment::names().into_iter()) {
        eprintln!("hamlyn: {sentence}");
    }
}

/// A sentence for each name that is no setting's. It leaves out the value, which may be a secret.
fn unknown(names: impl Iterator<Item = String>) -> Vec<String> {
    let settings = Config::default().settings();
    let known: Vec<&str> = settings.iter().map(|setting| setting.variable).chain(JOB).collect();
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with(PREFIX) && !known.contains(&&**name))
        .filter(|name| !OWN.iter().any(|own| name.starts_with(own)))
        .collect();
    unknown.sort();
    unknown.iter().map(|name| sentence(name, &known)).collect()
}

fn sentence(name: &str, known: &[&str]) -> String {
    let shown = printable(name);
    let ignored = format!("{shown} is set, and no setting is called so: it is ignored");
    let far = |known: &str| strsim::damerau_levenshtein(name, known);
    let nearest = known.iter().min_by_key(|known| far(known));
    // A distant name was not meant.
    match nearest.filter(|nearest| far(nearest) <= (name.len() - PREFIX.len()).div_ceil(3)) {
        Some(nearest) => format!("{ignored}; the nearest is {nearest}"),
        None => ignored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_misspelt_is_named_with_the_nearest_setting() {
        let names = [
            "PATH",
            "HAMLYN_DIR",
            "HAMLYN_SHARD_DIR",
            "HAMLYN_JOB_RANK",
            "HAMLYN_TEST_ROUNDS",
            "HAMLYN_RINGBYTES",
            "hamlyn_dir",
            "HAMLYN_DRI\u{1b}[2J",
            "HAMLYN_PROFIT",
        ];
        let said = unknown(names.iter().map(ToString::to_string));
        let ends: Vec<_> = said.iter().map(|said| said.split_once(" is set, ").unwrap()).collect();
        let nearest =
            |name| format!("and no setting is called so: it is ignored; the nearest is {name}");
        assert_eq!(ends.len(), 4, "{said:?}");
        assert!(ends[0].0.starts_with("HAMLYN_DRI") && !ends[0].0.contains('\u{1b}'), "{said:?}");
        assert_eq!(ends[1], ("HAMLYN_PROFIT", "and no setting is called so: it is ignored"));
        assert_eq!(ends[2], ("HAMLYN_RINGBYTES", &*nearest("HAMLYN_RING_BYTES")));
        assert_eq!(ends[3], ("HAMLYN_SHARD_DIR", &*nearest("HAMLYN_SHARED_DIR")));
    }

    #[test]
    fn every_setting_is_known() {
        let settings = Config::default().settings();
        assert!(unknown(settings.iter().map(|setting| setting.variable.into())).is_empty());
    }
}
