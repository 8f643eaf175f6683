//! Compares the library's public interface with its committed list: `hamlyn-public-api JSON LIST`,
//! where JSON is rustdoc's output. With `TIDY_WRITE=1` it writes the list.

use std::collections::BTreeSet;
use std::error::Error;
use std::process::ExitCode;
use std::{env, fs};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let [json, list] =
        env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "two files")?;
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    // An item at the root and in a module has its methods in both.
    let mut seen = BTreeSet::new();
    let lines =
        api.items().map(|item| format!("{item}\n")).filter(|line| seen.insert(line.clone()));
    let now: String = lines.collect();
    if env::var_os("TIDY_WRITE").is_some() {
        fs::write(&list, now)?;
        return Ok(ExitCode::SUCCESS);
    }
    let before = fs::read_to_string(&list)?;
    let (was, is): (BTreeSet<_>, BTreeSet<_>) = (before.lines().collect(), now.lines().collect());
    for gone in was.difference(&is) {
        println!("- {gone}");
    }
    for new in is.difference(&was) {
        println!("+ {new}");
    }
    if before == now {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "error: the interface is not that of {list}. If it is meant to change, write the list \
               anew: TIDY_WRITE=1 make deep STEPS=api"
    );
    Ok(ExitCode::FAILURE)
}
