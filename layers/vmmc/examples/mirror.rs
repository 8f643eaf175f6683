//! Memory that survives its program: a keeper, on this host or another, holds a copy that is kept up to
//! date while the owner only stores; a successor takes it over.
//!
//! ```text
//! mirror keep NAME                    keeps a copy; ends with its input
//! mirror own NAME [SECONDS]           takes over what NAME keeps, counts on, and shows the lag
//! mirror                              both, with an owner that is killed: what CI runs
//! ```

use hamlyn::Access;
use hamlyn_vmmc::{Config, Exporting, Mirror, PAGE, Users, Vmmc};
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const PAGES: usize = 256;
/// The owner flushes so often.
const EACH: Duration = Duration::from_millis(1);

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => try_all(),
        ["keep", name] => keep(name),
        ["own", name] => own(name, 5),
        ["own", name, seconds] => own(name, seconds.parse()?),
        _ => Err("usage: mirror keep NAME | own NAME [SECONDS]".into()),
    }
}

fn keep(name: &str) -> Outcome {
    let vmmc = Vmmc::new(Config::from_env()?)?;
    let exporting = Exporting { users: Users::All, ..Exporting::default() };
    let _memory = vmmc.export("memory", (PAGES * PAGE) as u64, exporting)?;
    vmmc.serve(name, Access::SameUser)?;
    vmmc.start_thread(|_| {})?;
    println!("keeping");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn own(name: &str, seconds: u64) -> Outcome {
    let vmmc = Vmmc::new(Config::from_env()?)?;
    let kept = vmmc.import(name, "memory", LIMIT)?;
    // The program's memory: here words that count, one in each page.
    let memory = vmmc.clan().region((PAGES * PAGE) as u64, 0)?;
    let mut found = vec![0; PAGES * PAGE];
    kept.get(0, &mut found, LIMIT)?;
    memory.write(0, &found)?;
    let start = memory.address().ok_or("no address")?.cast::<u64>();
    let word = |page: usize| start.wrapping_add(page * PAGE / 8);
    // SAFETY: inside of the region, which this thread alone uses.
    let read = |page: usize| unsafe { word(page).read_volatile() };
    println!("from {}", read(0));
    // SAFETY: the region lives longer than the mirror.
    let mut mirror: Mirror = unsafe { kept.mirror(0, start.cast(), PAGES * PAGE, LIMIT) }?;
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    let mut count = read(0);
    while began.elapsed() < Duration::from_secs(seconds) {
        count += 1;
        // The program only stores: the last page first, so that page 0 never has more than the others.
        for page in (0..PAGES).rev() {
            // SAFETY: inside of the region.
            unsafe { word(page).write_volatile(count) };
        }
        let lag = mirror.lag();
        if mirror.flush_after(EACH)? {
            longest = longest.max(lag);
            println!("flushed {count}");
        }
    }
    let (flushes, runs, bytes) = mirror.counts();
    println!(
        "{:?}: {flushes} flushes of {runs} runs, {bytes} bytes; lag at most {longest:?}",
        mirror.tracking()
    );
    Ok(())
}

struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(arguments: &[&str]) -> Outcome<(Part, BufReader<std::process::ChildStdout>)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    Ok((Part(child), BufReader::new(output)))
}

/// The number behind the first word of a line.
fn next(output: &mut impl BufRead, word: &str) -> Outcome<u64> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    let rest = line.trim().strip_prefix(word).ok_or(format!("\"{line}\", not \"{word} ..\""))?;
    Ok(rest.trim().parse().unwrap_or(0))
}

fn try_all() -> Outcome {
    let name = format!("mirror-{}", std::process::id());
    let (keeper, mut kept) = start(&["keep", &name])?;
    next(&mut kept, "keeping")?;
    let (owner, mut owned) = start(&["own", &name, "30"])?;
    assert_eq!(next(&mut owned, "from")?, 0);
    let mut flushed = 0;
    for _ in 0..50 {
        flushed = next(&mut owned, "flushed")?;
    }
    drop(owner); // Killed.
    let (successor, mut owned) = start(&["own", &name, "1"])?;
    let from = next(&mut owned, "from")?;
    assert!(from >= flushed, "{flushed} was flushed, and {from} is kept");
    let last = owned.lines().last().ok_or("the successor said nothing")??;
    drop((successor, keeper));
    println!("an owner was killed at {flushed} or later; its successor went on from {from}");
    println!("{last}");
    Ok(())
}
