//! How long a copy of an area needs until it has the last changes, by a mirror and by what one would write
//! without it: `cargo bench -p hamlyn-vmmc --bench mirrored`. One word is stored on each of some pages; the
//! clock runs from the last store until the other side has said that its copy is the same. Both sides are
//! threads of this process, with nodes, files or sockets of their own. Medians of nine runs, in
//! microseconds; no time is asserted anywhere.
//!
//! ```text
//! mirror         flush, then a get of the last word, which is answered behind the updates
//! pages by TCP   the same tracker; each changed page as a whole over a loopback connection, and an answer
//! area by TCP    the whole area
//! msync, rsync   the area is a mapped file; `rsync --inplace --no-whole-file` to another file
//! ```

use hamlyn::Access;
use hamlyn_vmmc::{Config, Exporting, Mirror, PAGE, Tracked, Tracking, Vmmc};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const RUNS: usize = 9;

/// Memory of whole pages, of a file or of nobody.
#[derive(Clone, Copy)]
struct Area(*mut u8, usize);

impl Area {
    fn new(bytes: usize, file: Option<&std::fs::File>) -> Outcome<Self> {
        let (flags, fd) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, or an error.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, access, flags, fd, 0) };
        match start {
            libc::MAP_FAILED => Err(io::Error::last_os_error().into()),
            start => Ok(Self(start.cast(), bytes)),
        }
    }

    /// Never unmapped, and not written while they are used.
    fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped.
        unsafe { core::slice::from_raw_parts(self.0, self.1) }
    }

    /// A word on each of so many pages, spread over the area.
    fn store(&self, pages: usize, word: u64) {
        for page in 0..pages {
            let at = page * (self.1 / PAGE / pages) * PAGE + 8 * (word as usize % 500);
            // SAFETY: inside of the area, a multiple of 8.
            unsafe { self.0.add(at).cast::<u64>().write_volatile(word) };
        }
    }

    fn last(&self, pages: usize, word: u64) -> u64 {
        ((pages - 1) * (self.1 / PAGE / pages) * PAGE + 8 * (word as usize % 500)) as u64
    }
}

/// The times from the stores until `update` returns.
fn row(what: &str, area: Area, pages: usize, mut update: impl FnMut(u64) -> Outcome) -> Outcome {
    let mut times = Vec::new();
    for word in 1..=RUNS as u64 + 2 {
        area.store(pages, word);
        let began = Instant::now();
        update(word)?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    let mut times = times.split_off(2);
    times.sort_by(f64::total_cmp);
    println!(
        "{:>4} MiB {pages:>6} pages  {what:<14} {:>11.1} us   ({:.1} to {:.1})",
        area.1 >> 20,
        times[RUNS / 2],
        times[0],
        times[RUNS - 1]
    );
    Ok(())
}

fn by_mirror(bytes: usize, pages: usize) -> Outcome {
    let dir = tempfile::tempdir()?;
    let mut config = Config::from_env()?;
    config.node = config.node.dir(dir.path());
    let keeper = Vmmc::new(config.clone())?;
    let kept = keeper.export("area", bytes as u64, Exporting::default())?;
    keeper.serve("keeper", Access::SameUser)?;
    keeper.start_thread(|_| {})?;
    let owner = Vmmc::new(config)?;
    let proxy = owner.import("keeper", "area", LIMIT)?;
    let area = Area::new(bytes, None)?;
    // SAFETY: it is never unmapped.
    let mut mirror: Mirror = unsafe { proxy.mirror(0, area.0, bytes, LIMIT) }?;
    row("mirror", area, pages, |word| {
        mirror.flush()?;
        let mut last = [0; 8];
        proxy.get(area.last(pages, word), &mut last, LIMIT)?;
        if last != word.to_ne_bytes() {
            return Err("the copy is not the same".into());
        }
        Ok(())
    })?;
    let mut copy = vec![0; bytes];
    kept.region().read(0, &mut copy)?;
    if copy != area.bytes() {
        return Err("the copy differs".into());
    }
    println!("{:>48} {}", "", mirror.explain()?);
    Ok(())
}

/// A copy behind a connection: records of place and length, and the bytes; an answer to one of length 0.
fn keep(mut from: TcpStream, mut copy: Vec<u8>) -> io::Result<()> {
    let mut head = [0; 16];
    loop {
        from.read_exact(&mut head)?;
        let (at, length) = head.split_at(8);
        let [at, length] =
            [at, length].map(|word| usize::from_ne_bytes(word.try_into().unwrap_or_default()));
        match length {
            0 => from.write_all(&[1])?,
            length => from.read_exact(&mut copy[at..at + length])?,
        }
    }
}

fn send(to: &mut TcpStream, at: usize, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&[at.to_ne_bytes(), bytes.len().to_ne_bytes()].concat())?;
    to.write_all(bytes)
}

fn by_tcp(bytes: usize, pages: usize, whole: bool) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut to = TcpStream::connect(listener.local_addr()?)?;
    let (from, _) = listener.accept()?;
    to.set_nodelay(true)?;
    from.set_nodelay(true)?;
    // It ends with the connection.
    std::thread::spawn(move || keep(from, vec![0; bytes]));
    let area = Area::new(bytes, None)?;
    // SAFETY: it is never unmapped.
    let track = |how| unsafe { Tracked::new(area.0, bytes, how) };
    let mut tracked = track(Tracking::Kernel).or_else(|_| track(Tracking::Compare))?;
    let what = if whole { "area by TCP" } else { "pages by TCP" };
    row(what, area, pages, |_| {
        if whole {
            send(&mut to, 0, area.bytes())?;
        } else {
            tracked.scan(
                || (),
                |at, _| {
                    let page = at / PAGE * PAGE;
                    send(&mut to, page, &area.bytes()[page..page + PAGE])
                },
            )?;
        }
        send(&mut to, 0, &[])?;
        Ok(to.read_exact(&mut [0])?)
    })
}

fn by_rsync(bytes: usize, pages: usize) -> Outcome {
    let dir = tempfile::tempdir()?;
    let [from, to]: [PathBuf; 2] = ["from", "to"].map(|name| dir.path().join(name));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&from)?;
    file.set_len(bytes as u64)?;
    std::fs::write(&to, vec![0; bytes])?;
    let area = Area::new(bytes, Some(&file))?;
    let run = |_: u64| -> Outcome {
        // SAFETY: the area is mapped.
        if unsafe { libc::msync(area.0.cast(), bytes, libc::MS_SYNC) } != 0 {
            return Err(io::Error::last_os_error().into());
        }
        let mut rsync = Command::new("rsync");
        // Its times are those of the last second: only the contents say what has changed.
        rsync.args(["--inplace", "--no-whole-file", "--ignore-times"]).arg(&from).arg(&to);
        match rsync.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("rsync: {status}").into()),
            Err(e) => Err(format!("rsync: {e}").into()),
        }
    };
    row("msync, rsync", area, pages, run)
}

fn main() -> Outcome {
    for (bytes, pages) in [(4 << 20, 1), (4 << 20, 64), (64 << 20, 1), (64 << 20, 1024)] {
        by_mirror(bytes, pages)?;
        by_tcp(bytes, pages, false)?;
        by_tcp(bytes, pages, true)?;
        if let Err(e) = by_rsync(bytes, pages) {
            println!("{:>4} MiB {pages:>6} pages  msync, rsync   SKIPPED: {e}", bytes >> 20);
        }
    }
    Ok(())
}
