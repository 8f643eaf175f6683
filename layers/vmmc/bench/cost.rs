//! The cost of each mechanism, both ends in one thread, beside a raw message: `cargo bench -p hamlyn-vmmc
//! --bench cost [-- WORDS]`. Medians of nine runs, in nanoseconds; no time is asserted anywhere. With words, only
//! the rows that have them.

use hamlyn::{Access, Node, SlotConfig};
use hamlyn_vmmc::{Combining, Config, Exporting, PAGE, Vmmc};
use std::error::Error;
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const RUNS: usize = 9;

/// The median time of one of `count`.
fn row(what: &str, count: u64, mut run: impl FnMut(u64) -> Outcome) -> Outcome {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if !wanted.iter().all(|word| what.contains(word)) {
        return Ok(());
    }
    run(count / 10 + 1)?;
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let began = Instant::now();
        run(count)?;
        times.push(began.elapsed().as_nanos() as f64 / count as f64);
    }
    times.sort_by(f64::total_cmp);
    println!("{what:60} {:9.1} ns   ({:.1} to {:.1})", times[RUNS / 2], times[0], times[RUNS - 1]);
    Ok(())
}

fn main() -> Outcome {
    let dir = tempfile::tempdir()?;
    let mut config = Config::from_env()?;
    config.node = config.node.dir(dir.path());

    let mut raw =
        [Node::with_config(config.node.clone())?, Node::with_config(config.node.clone())?];
    let [there, here] = &mut raw;
    there.serve("raw", Access::SameUser, hamlyn::Accept::Automatic(vec![]))?;
    here.connect("raw", b"", LIMIT)?;
    let (area, queue) = (there.message_area(1 << 20)?, there.notification_queue(64)?);
    let slot = there.slot(SlotConfig::new(area, queue).credit(64))?;
    let ticket = there.fast_ticket(slot)?;
    for size in [16, 64] {
        row(&format!("a raw message of {size} bytes, and its notification"), 100_000, |count| {
            for _ in 0..count {
                here.send_fast(&ticket, &[7; 64][..size], 0, LIMIT)?;
                there.recv(queue, LIMIT)?;
            }
            Ok(())
        })?;
    }

    let exporter = Vmmc::new(config.clone())?;
    exporter.serve("cost", Access::SameUser)?;
    let importer = Vmmc::new(config)?;
    let _buffer = exporter.export("b", 1 << 26, Exporting::default())?;
    let proxy = std::thread::scope(|scope| {
        let importing = scope.spawn(|| importer.import("cost", "b", LIMIT));
        while !importing.is_finished() {
            exporter.poll()?;
        }
        importing.join().map_err(|_| "importing panicked")?.map_err(Box::<dyn Error>::from)
    })?;
    for size in [16, 64] {
        row(&format!("deliberate update of {size} bytes"), 100_000, |count| {
            for _ in 0..count {
                proxy.send(0, &[7; 64][..size], LIMIT)?;
                exporter.poll()?;
            }
            Ok(())
        })?;
    }
    row("the same of 64 bytes, with a notification that is taken", 100_000, |count| {
        for word in 0..count {
            proxy.send_notify(0, &[7; 64], word as u32, LIMIT)?;
            exporter.poll()?;
            exporter.take_notification().ok_or("no notification")?;
            if word % 16 == 0 {
                importer.poll()?;
            }
        }
        Ok(())
    })?;
    for (what, combining, stride) in [
        ("a store of 8 bytes, consecutive, combined", Combining::default(), 8),
        ("a store of 8 bytes, scattered", Combining::default(), 136),
        ("a store of 8 bytes, not combined", Combining { sub_page: 0, timer: None }, 8),
    ] {
        let mut bound = proxy.bind(0, 1 << 20, combining, None, LIMIT)?;
        row(what, 100_000, |count| {
            for number in 0..count as usize {
                bound.store_u64(number * stride % (1 << 20), number as u64)?;
                if number % 64 == 0 {
                    exporter.poll()?;
                }
            }
            bound.flush()?;
            exporter.poll()?;
            Ok(())
        })?;
    }
    for pages in [64, 1024, 4096, 16_384] {
        let memory = importer.clan().region((pages * PAGE) as u64, 0)?;
        let start = memory.address().ok_or("no address")?;
        exporter.clan().start_progress()?;
        // SAFETY: the region lives longer.
        let mut mirror = unsafe { proxy.mirror(0, start, pages * PAGE, LIMIT) }?;
        let mut word = 0u64;
        row(&format!("one word stored, found and sent, of {pages} pages"), 200, |count| {
            for _ in 0..count {
                word += 1;
                let at = (word as usize * 4160) % (pages * PAGE);
                // SAFETY: inside of the region, which this thread alone uses; a multiple of 8.
                unsafe { start.add(at).cast::<u64>().write_volatile(word) };
                mirror.flush()?;
            }
            Ok(())
        })?;
        println!("{:60} {:?}", "", mirror.tracking());
    }
    Ok(())
}
