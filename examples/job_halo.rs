//! Halo exchange: heat spreads in a ring of cells that the ranks of a job share. In each step a
//! rank sends the cells at its edges to its neighbours. The result equals that of one process with
//! all cells. Run it as `hamlyn run -n 4 -- job_halo`, or under `mpiexec`.

use hamlyn::job::Job;
use hamlyn::protocol::{StreamReceiver, StreamSender};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const CELLS: usize = 200;
const STEPS: usize = 50;

/// Heat after a step in a cell with these neighbours. Whole numbers, so that the order does not matter.
fn step(left: u64, own: u64, right: u64) -> u64 {
    (left + 2 * own + right) / 4
}

fn first(i: usize) -> u64 {
    if i.is_multiple_of(7) { 1 << 40 } else { i as u64 }
}

/// All cells in one process.
fn expected() -> Vec<u64> {
    let mut cells: Vec<u64> = (0..CELLS).map(first).collect();
    for _ in 0..STEPS {
        let of = |i: usize| cells[i % CELLS];
        cells = (0..CELLS).map(|i| step(of(i + CELLS - 1), of(i), of(i + 1))).collect();
    }
    cells
}

fn give(to: &mut StreamSender, cell: u64) -> Result<(), Box<dyn std::error::Error>> {
    to.send(&cell.to_le_bytes(), LIMIT)?;
    Ok(to.flush(LIMIT)?)
}

fn take(from: &mut StreamReceiver) -> Result<u64, Box<dyn std::error::Error>> {
    let record = from.receive(LIMIT)?;
    Ok(u64::from_le_bytes((*record).try_into()?))
}

/// Run by the tests, too, as a rank.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = Job::from_env()?;
    let (rank, size) = (job.rank() as usize, job.size() as usize);
    let (begin, end) = (rank * CELLS / size, (rank + 1) * CELLS / size);
    let mut cells: Vec<u64> = (begin..end).map(first).collect();
    // With two ranks each is the other's neighbour on both sides: messages to the left and to the
    // right have different names.
    let (left, right) = (((rank + size - 1) % size) as u32, ((rank + 1) % size) as u32);
    let mut from_left = StreamReceiver::new(job.manager(), Default::default())?;
    let mut from_right = StreamReceiver::new(job.manager(), Default::default())?;
    job.offer(&from_left, "from-left")?;
    job.offer(&from_right, "from-right")?;
    let mut to_left: StreamSender = job.grow(left, "from-right", (), LIMIT)?;
    let mut to_right: StreamSender = job.grow(right, "from-left", (), LIMIT)?;
    for _ in 0..STEPS {
        give(&mut to_left, cells[0])?;
        give(&mut to_right, cells[cells.len() - 1])?;
        let before = take(&mut from_left)?;
        let behind = take(&mut from_right)?;
        let all = [&[before], &cells[..], &[behind]].concat();
        cells = all.windows(3).map(|near| step(near[0], near[1], near[2])).collect();
    }
    if cells != expected()[begin..end] {
        return Err(format!("rank {rank}: not what one process computes").into());
    }
    job.fence(LIMIT)?;
    if rank == 0 {
        println!("{size} ranks, {CELLS} cells, {STEPS} steps: as one process computes it");
    }
    Ok(())
}
