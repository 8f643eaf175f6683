//! The programs, compiled from the source tree, and runs of them.

use crate::{Outcome, Paper};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that a program stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    Vmmc,
    Svm,
}

impl Layer {
    fn name(self) -> &'static str {
        match self {
            Self::Vmmc => "vmmc",
            Self::Svm => "svm",
        }
    }

    fn meddle(self) -> &'static str {
        match self {
            Self::Vmmc => "meddle",
            Self::Svm => "svm_meddle",
        }
    }
}

/// A program of Table 1.
pub struct Program {
    /// The paper's name.
    pub name: &'static str,
    pub layer: Layer,
    pub source: &'static str,
    /// What it is compiled with.
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

pub const PROGRAMS: [Program; 8] = [
    Program {
        name: "Barnes-SVM",
        layer: Layer::Svm,
        source: "barnes.c",
        with: &[],
        arguments: "16384 4",
        short: "256 2",
        size: "16K bodies",
        seconds: 121.3,
        least: 1,
    },
    Program {
        name: "Ocean-SVM",
        layer: Layer::Svm,
        source: "ocean.c",
        with: &[],
        arguments: "130 10",
        short: "18 2",
        size: "130 x 130",
        seconds: 12.8,
        least: 1,
    },
    Program {
        name: "Radix-SVM",
        layer: Layer::Svm,
        source: "radix.c",
        with: &[],
        arguments: "2097152",
        short: "16384",
        size: "2M keys",
        seconds: 14.3,
        least: 1,
    },
    Program {
        name: "Radix-VMMC",
        layer: Layer::Vmmc,
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
        layer: Layer::Vmmc,
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
        layer: Layer::Vmmc,
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
        layer: Layer::Vmmc,
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
        layer: Layer::Vmmc,
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
    /// `deliberate`, `automatic`; `hlrc`, `hlrc-au`, `aurc`.
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
    /// Of shared virtual memory: pages from other homes, runs of changed bytes.
    pub fetches: f64,
    pub differences: f64,
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
        let dir = tempfile::Builder::new().prefix("hamlyn-paper").tempdir()?;
        let of = Self { paper, library, dir };
        for layer in [Layer::Vmmc, Layer::Svm] {
            if of.has(layer) {
                of.cc(layer, &["-fPIC", "-shared"], &[layer.meddle()])?;
            }
        }
        Ok(of)
    }

    /// Whether the layer's library is here.
    pub fn has(&self, layer: Layer) -> bool {
        self.library.join(format!("libhamlyn_{}.so", layer.name())).exists()
    }

    pub fn make(&self, program: &Program) -> Outcome {
        let folder = self.paper.layers.join(program.layer.name());
        let mut sources = vec![folder.join("programs").join(program.source)];
        sources.extend(program.with.iter().map(|source| folder.join(source)));
        self.compile(program.layer, &[], &sources, program.name)
    }

    /// One of this folder's.
    pub fn cc(&self, layer: Layer, flags: &[&str], names: &[&str]) -> Outcome {
        let own = self.paper.layers.join("vmmc/perf");
        let sources: Vec<_> = names.iter().map(|name| own.join(name).with_extension("c")).collect();
        self.compile(layer, flags, &sources, names[0])
    }

    fn compile(&self, layer: Layer, flags: &[&str], sources: &[PathBuf], to: &str) -> Outcome {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O3", "-march=native"]).args(flags).args(sources);
        cc.arg("-o").arg(self.dir.path().join(to));
        for folder in ["include", "nx", "pairs", "programs"] {
            cc.arg("-I").arg(self.paper.layers.join(layer.name()).join(folder));
        }
        if !flags.contains(&"-shared") {
            cc.arg("-L").arg(&self.library).arg(format!("-lhamlyn_{}", layer.name()));
            cc.args(["-lpng", "-lm"]).arg(format!("-Wl,-rpath,{}", self.library.display()));
        }
        let status = cc.status().map_err(|e| format!("the C compiler, cc: {e}"))?;
        if !status.success() {
            return Err(format!("cc of {to} in {}: {status}", self.paper.layers.display()).into());
        }
        Ok(())
    }

    /// The output of a job.
    fn job(
        &self,
        layer: Layer,
        asked: Asked,
        program: &str,
        arguments: &[&str],
    ) -> Outcome<(String, Shown)> {
        let place = self.dir.path().join("dir");
        std::fs::create_dir_all(&place)?;
        let counts = self.dir.path().join("counts");
        let _ = std::fs::remove_file(&counts);
        let mut job = Command::new(&self.paper.hamlyn);
        job.args(["run", "--quiet", "-n", &asked.ranks.to_string(), "--"]);
        job.arg(self.dir.path().join(program)).args(arguments);
        job.env("HAMLYN_DIR", &place).env("HAMLYN_RING_BYTES", asked.ring.to_string());
        for variable in ["NX_UPDATE", "STREAM_UPDATE", "SVM_PROTOCOL"] {
            job.env(variable, asked.form);
        }
        job.env("SVM_COMBINES", if asked.meddle == "apart" { "no" } else { "" });
        if asked.meddle == "trace" {
            job.env("MEDDLE_TRACE", self.dir.path().join("trace"));
        }
        job.env("MEDDLE", format!("pin,{}", asked.meddle)).env("MEDDLE_COUNTS", &counts);
        job.env("LD_PRELOAD", self.dir.path().join(layer.meddle()));
        let done = job.output().map_err(|e| format!("{}: {e}", self.paper.hamlyn.display()))?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(format!("{program} {arguments:?}: {}\n{text}{said}", done.status).into());
        }
        let counts = std::fs::read_to_string(&counts).unwrap_or_default();
        // Of the program's last line, or of all ranks.
        let of = |name| values(&text, name).last().unwrap_or_else(|| values(&counts, name).sum());
        let shown = Shown {
            seconds: of("seconds"),
            messages: of("messages"),
            notifications: of("notifications"),
            bytes: of("bytes") + of("deliberate_bytes") + of("automatic_bytes"),
            stalls: of("stalls"),
            fetches: of("fetches"),
            differences: of("differences"),
        };
        Ok((text, shown))
    }

    pub fn run(&self, program: &Program, asked: Asked) -> Outcome<Shown> {
        let arguments = if self.paper.short { program.short } else { program.arguments };
        let arguments = arguments.replace("{}", asked.form);
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let (text, shown) = self.job(program.layer, asked, program.name, &arguments)?;
        if shown.seconds == 0.0 || !text.contains("checked=yes") {
            return Err(
                format!("{} {arguments:?} has not checked itself: {text}", program.name).into()
            );
        }
        Ok(shown)
    }

    /// The rows of a program of this folder: names, and nanoseconds.
    pub fn words(&self, layer: Layer, asked: Asked, program: &str) -> Outcome<Vec<(String, f64)>> {
        let divide = if self.paper.short { "100" } else { "1" };
        let (text, _) = self.job(layer, asked, program, &[divide])?;
        let rows = text.lines().filter_map(|line| line.rsplit_once(' '));
        Ok(rows.filter_map(|(name, ns)| Some((name.into(), ns.parse().ok()?))).collect())
    }

    /// The traces of the last run that was asked to `trace`.
    pub fn traces(&self, ranks: u32) -> Vec<PathBuf> {
        (0..ranks).map(|rank| self.dir.path().join(format!("trace.{rank}"))).collect()
    }
}

/// The values of `name=value` words.
fn values<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = f64> + 'a {
    let words = text.split_whitespace().filter_map(|word| word.split_once('='));
    words.filter(move |(is, _)| *is == name).filter_map(|(_, value)| value.parse().ok())
}
