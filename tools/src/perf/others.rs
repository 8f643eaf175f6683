//! The share of the two processors that others used during a measurement: other processes, and the
//! host of a virtual machine. A disturbed figure looks as good as any other.
//!
//! The kernel counts the busy time of each processor, and the time of each process, both in ticks
//! of a hundredth of a second. Busy time that none of this command's own processes used went to
//! others. Interrupts are left out: they may belong to the measurement.

use super::pin::Cores;
use std::fs;

/// The percentage from which the reader is informed.
const TOLD_PERCENT: f64 = 5.0;
/// Of both processors together; fewer ticks say nothing.
const TICKS_MIN: u64 = 100;

/// The counts at one time.
#[derive(Clone, Copy, Debug)]
pub struct Others {
    cores: Cores,
    ticks: Option<Ticks>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    /// Of the two processors, for any process.
    busy: u64,
    all: u64,
    /// Of this process and its descendants.
    own: u64,
}

impl Others {
    /// Starts counting.
    pub fn begin(cores: Cores) -> Self {
        Self { cores, ticks: Ticks::now(cores) }
    }

    /// The ticks since then; `None` if the kernel does not report them.
    pub fn taken(self) -> Option<Taken> {
        self.ticks?.until(Ticks::now(self.cores)?)
    }

    /// The share of others since then, in percent; `None` also if the time was too short.
    pub fn percent(self) -> Option<f64> {
        percent(self.taken())
    }
}

/// Ticks of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Negative if a process was charged a tick of which it used only a part.
    others: i64,
    all: u64,
}

/// The share of others over several periods, in percent; `None` if they are too short.
pub fn percent(taken: impl IntoIterator<Item = Taken>) -> Option<f64> {
    let sum = |(others, all), taken: Taken| (others + taken.others, all + taken.all);
    let (others, all) = taken.into_iter().fold((0, 0), sum);
    (all >= TICKS_MIN).then(|| 100.0 * others.max(0) as f64 / all as f64)
}

/// A sentence for the reader, if the share is large.
pub fn sentence(percent: Option<f64>) -> Option<String> {
    let percent = percent.filter(|percent| *percent >= TOLD_PERCENT)?;
    Some(format!(
        "Others took {percent:.0} % of the two processors meanwhile: on an idle machine the figures are \
         better."
    ))
}

impl Ticks {
    fn now(cores: Cores) -> Option<Self> {
        let (busy, all) = of_processors(&fs::read_to_string("/proc/stat").ok()?, cores)?;
        let mut processes = Vec::new();
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // The parent counts the time of a process that has ended meanwhile.
            let stat = pid.and_then(|pid: u32| {
                Process::of(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
            });
            processes.extend(stat);
        }
        Some(Self { busy, all, own: own(&processes, std::process::id()) })
    }

    fn until(self, end: Self) -> Option<Taken> {
        let busy = end.busy.checked_sub(self.busy)? as i64;
        let own = end.own.saturating_sub(self.own) as i64;
        Some(Taken { others: busy - own, all: end.all.checked_sub(self.all)? })
    }
}

/// From `/proc/stat`: the busy time of the processors, and all of their time.
fn of_processors(stat: &str, cores: Cores) -> Option<(u64, u64)> {
    let (mut busy, mut all) = (0, 0);
    let mut numbers = vec![cores.near, cores.far];
    numbers.dedup();
    for number in numbers {
        let name = format!("cpu{number} ");
        let line = stat.lines().find_map(|line| line.strip_prefix(&name))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|tick| tick.parse().ok()).collect();
        // User, nice, system, idle, waiting for a disk, interrupts, soft ones, steal; then the time
        // of guests, which the first two include.
        let [user, nice, system, .., steal] = *ticks.get(..8)? else { return None };
        busy += user + nice + system + steal;
        all += ticks[..8].iter().sum::<u64>();
    }
    Some((busy, all))
}

/// A process, and the time used by it and its ended children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    ticks: u64,
}

impl Process {
    /// From `/proc/PID/stat`.
    fn of(pid: u32, stat: &str) -> Option<Self> {
        // The name may contain any byte.
        let (_, stat) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = stat.split(' ').collect();
        let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>());
        let ticks = ticks.sum::<Result<u64, _>>().ok()?;
        Some(Self { pid, parent: fields[1].parse().ok()?, ticks })
    }
}

/// The time used by `root` and its descendants.
fn own(processes: &[Process], root: u32) -> u64 {
    let mut family = vec![root];
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        let children = processes.iter().filter(|process| process.parent == parent);
        family.extend(children.map(|process| process.pid).filter(|pid| *pid != parent));
        at += 1;
    }
    let is_own = |process: &&Process| family.contains(&process.pid);
    processes.iter().filter(is_own).map(|process| process.ticks).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  1000 0 0 0 0 0 0 0 0 0\n\
                        cpu0 100 10 50 800 5 3 2 30 7 0\n\
                        cpu1 200 0 0 700 0 0 0 100 0 0\n\
                        cpu10 9 9 9 9 9 9 9 9 9 9\nintr 1\n";

    #[test]
    fn processors_are_busy_with_what_is_neither_idle_nor_an_interrupt() {
        let of = |near, far| of_processors(STAT, Cores { near, far });
        assert_eq!(of(0, 1), Some((190 + 300, 1000 + 1000)));
        assert_eq!(of(1, 1), Some((300, 1000)));
        assert_eq!(
            (of(0, 2), of_processors("cpu0 1 2 3", Cores { near: 0, far: 0 })),
            (None, None)
        );
    }

    #[test]
    fn a_family_is_counted_with_those_of_it_that_have_ended() {
        let stat = |pid: u32, parent: u32, ticks: u64| {
            let text = format!("{pid} (a) b) R {parent} 0 0 0 0 0 0 0 0 0 {ticks} 1 10 100 20 0 1");
            Process::of(pid, &text).unwrap()
        };
        let all = [stat(1, 0, 5), stat(7, 1, 1), stat(8, 7, 2), stat(9, 8, 3), stat(10, 1, 4)];
        assert_eq!(all[1], Process { pid: 7, parent: 1, ticks: 112 });
        assert_eq!(own(&all, 7), 1 + 2 + 3 + 3 * 111);
        assert_eq!(own(&all, 10), 4 + 111);
        assert_eq!(Process::of(1, "1 (x) R 0"), None);
    }

    #[test]
    fn others_took_what_no_own_process_did() {
        let begin = Ticks { busy: 1000, all: 5000, own: 300 };
        let taken = |busy: u64, own: u64, all: u64| {
            begin.until(Ticks { busy: 1000 + busy, all: 5000 + all, own: 300 + own }).unwrap()
        };
        let of = |busy, own, all| percent([taken(busy, own, all)]);
        assert_eq!(of(150, 50, 200), Some(50.0));
        // A tick goes to the process that runs when the clock strikes: this command's count exceeds
        // the busy time.
        assert_eq!(of(100, 103, 200), Some(0.0));
        assert_eq!(percent([taken(100, 103, 200), taken(20, 0, 200)]), Some(4.25));
        assert_eq!((of(99, 0, 99), percent([])), (None, None));
        let told = sentence(of(150, 50, 200)).unwrap();
        assert!(told.starts_with("Others took 50 % of the two processors"), "{told}");
        assert_eq!((sentence(Some(4.9)), sentence(None)), (None, None));
    }

    #[test]
    fn the_kernel_says_it() {
        let cores = Cores { near: 0, far: 0 };
        let ticks = Ticks::now(cores).unwrap();
        assert!(ticks.busy <= ticks.all && ticks.all > 0);
    }
}
