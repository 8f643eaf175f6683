//! The programs, compiled from the source tree, and runs of them.

use crate::{Outcome, Paper};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of Table 1.
pub struct Program {
    /// The paper's name.
    pub name: &'static str,
    pub source: &'static str,
    /// What it stands on, beside VMMC.
    pub with: &'static [&'static str],
    /// `{}` is the form.
    pub arguments: &'static str,
    pub short: &'static str,
    pub size: &'static str,
    /// Seconds of one processor, then.
    pub seconds: f64,
    /// Fewest processes.
    pub least: u32,
}

pub const PROGRAMS: [Program; 5] = [
    Program {
        name: "Radix-VMMC",
        source: "radix.c",
        with: &[],
        arguments: "2097152 {}",
        short: "16384 {}",
        size: "2M keys",
        seconds: 10.9,
        least: 1,
    },
    Program {
        name: "Barnes-NX",
        source: "nbody.c",
        with: &["nx/nx.c", "nx/global.c", "../match/match.c", "pairs/pairs.c"],
        arguments: "4096 20",
        short: "256 2",
        size: "4K bodies, 20 iterations",
        seconds: 149.9,
        least: 1,
    },
    Program {
        name: "Ocean-NX",
        source: "grid.c",
        with: &["nx/nx.c", "nx/global.c", "../match/match.c", "pairs/pairs.c"],
        arguments: "514 2000",
        short: "66 20",
        size: "514 x 514",
        seconds: 69.2,
        least: 1,
    },
    Program {
        name: "DFS-sockets",
        source: "dfs.c",
        with: &["programs/streams.c", "pairs/pairs.c"],
        arguments: "4 640 2048 4",
        short: "2 10 16 1",
        size: "4 clients",
        seconds: 6.9,
        least: 1,
    },
    Program {
        name: "Render-sockets",
        source: "render.c",
        with: &["programs/streams.c", "pairs/pairs.c"],
        arguments: "167 63 34 512",
        short: "33 20 17 48",
        size: "167 x 63 x 34",
        seconds: 13.8,
        least: 1,
    },
];

/// One run, as it is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    pub ranks: u32,
    /// `deliberate`, `automatic`.
    pub form: &'static str,
    /// Words for `meddle.c`.
    pub meddle: &'static str,
    /// Bytes of a link's ring.
    pub ring: u32,
}

/// What a run has shown; counts are of all ranks.
#[derive(Clone, Copy, Default, Debug)]
pub struct Shown {
    pub seconds: f64,
    pub messages: f64,
    pub notifications: f64,
    pub bytes: f64,
    pub stalls: f64,
}

pub struct Workshop<'a> {
    paper: &'a Paper,
    library: PathBuf,
    dir: tempfile::TempDir,
}

impl<'a> Workshop<'a> {
    pub fn open(paper: &'a Paper) -> Outcome<Self> {
        let own = std::env::current_exe()?;
        let library = own.parent().unwrap_or(Path::new(".")).to_path_buf();
        if !library.join("libhamlyn_vmmc.so").exists() {
            return Err(format!("there is no libhamlyn_vmmc.so in {}", library.display()).into());
        }
        let dir = tempfile::Builder::new().prefix("hamlyn-paper").tempdir()?;
        let of = Self { paper, library, dir };
        let meddle = of.vmmc("perf/meddle.c");
        of.cc(&["-fPIC", "-shared"], &[meddle], "meddle.so")?;
        of.cc(&[], &[of.vmmc("perf/word.c")], "word")?;
        for program in &PROGRAMS {
            let mut sources = vec![of.vmmc("programs").join(program.source)];
            sources.extend(program.with.iter().map(|source| of.vmmc(source)));
            of.cc(&[], &sources, program.name)?;
        }
        Ok(of)
    }

    fn vmmc(&self, path: &str) -> PathBuf {
        self.paper.layers.join("vmmc").join(path)
    }

    fn cc(&self, flags: &[&str], sources: &[PathBuf], to: &str) -> Outcome {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O3", "-march=native"]).args(flags).args(sources);
        cc.arg("-o").arg(self.dir.path().join(to));
        for folder in ["include", "nx", "pairs", "programs"] {
            cc.arg("-I").arg(self.vmmc(folder));
        }
        if !flags.contains(&"-shared") {
            cc.arg("-L").arg(&self.library).args(["-lhamlyn_vmmc", "-lpng", "-lm"]);
            cc.arg(format!("-Wl,-rpath,{}", self.library.display()));
        }
        let status = cc.status().map_err(|e| format!("the C compiler, cc: {e}"))?;
        if !status.success() {
            return Err(format!("cc of {to} in {}: {status}", self.paper.layers.display()).into());
        }
        Ok(())
    }

    /// The output of a job.
    fn job(&self, asked: Asked, program: &str, arguments: &[&str]) -> Outcome<(String, Shown)> {
        let place = self.dir.path().join("dir");
        std::fs::create_dir_all(&place)?;
        let counts = self.dir.path().join("counts");
        let _ = std::fs::remove_file(&counts);
        let mut job = Command::new(&self.paper.hamlyn);
        job.args(["run", "--quiet", "-n", &asked.ranks.to_string(), "--"]);
        job.arg(self.dir.path().join(program)).args(arguments);
        job.env("HAMLYN_DIR", &place).env("HAMLYN_RING_BYTES", asked.ring.to_string());
        job.env("NX_UPDATE", asked.form).env("STREAM_UPDATE", asked.form);
        job.env("MEDDLE", format!("pin,{}", asked.meddle)).env("MEDDLE_COUNTS", &counts);
        job.env("LD_PRELOAD", self.dir.path().join("meddle.so"));
        let done = job.output().map_err(|e| format!("{}: {e}", self.paper.hamlyn.display()))?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(format!("{program} {arguments:?}: {}\n{text}{said}", done.status).into());
        }
        let counts = std::fs::read_to_string(&counts).unwrap_or_default();
        let last = |name| values(&text, name).last().unwrap_or(f64::NAN);
        let shown = Shown {
            seconds: last("seconds"),
            messages: last("messages"),
            notifications: last("notifications"),
            bytes: last("deliberate_bytes") + last("automatic_bytes"),
            stalls: values(&counts, "stalls").sum(),
        };
        Ok((text, shown))
    }

    pub fn run(&self, program: &Program, asked: Asked) -> Outcome<Shown> {
        let arguments = if self.paper.short { program.short } else { program.arguments };
        let arguments = arguments.replace("{}", asked.form);
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let (text, shown) = self.job(asked, program.name, &arguments)?;
        if shown.seconds.is_nan() || !text.contains("checked=yes") {
            return Err(
                format!("{} {arguments:?} has not checked itself: {text}", program.name).into()
            );
        }
        Ok(shown)
    }

    /// The rows of `word.c`: names, and nanoseconds.
    pub fn words(&self, asked: Asked) -> Outcome<Vec<(String, f64)>> {
        let divide = if self.paper.short { "100" } else { "1" };
        let (text, _) = self.job(asked, "word", &[divide])?;
        let rows = text.lines().filter_map(|line| line.rsplit_once(' '));
        Ok(rows.filter_map(|(name, ns)| Some((name.into(), ns.parse().ok()?))).collect())
    }
}

/// The values of `name=value` words.
fn values<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = f64> + 'a {
    let words = text.split_whitespace().filter_map(|word| word.split_once('='));
    words.filter(move |(is, _)| *is == name).filter_map(|(_, value)| value.parse().ok())
}
