//! All to all: each rank of a job sends a block to each, and checks the blocks it gets. Run it as
//! `hamlyn run -n 4 -- job_all_to_all`, or under `mpiexec`, `mpirun`, `srun`; on its own it is a
//! job of one rank.

use hamlyn::job::{Job, JobError};
use hamlyn::protocol::{StreamReceiver, StreamSender};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const BLOCK_BYTES: usize = 10_000;
const ROUNDS: u32 = 3;

fn block(from: u32, to: u32, round: u32) -> Vec<u8> {
    (0..BLOCK_BYTES as u32).map(|i| (from * 31 + to * 7 + round * 3 + i) as u8).collect()
}

/// Run by the tests, too, as a rank.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = Job::from_env()?;
    let me = job.rank();
    let mut receivers: Vec<StreamReceiver> =
        (0..job.size()).map(|rank| job.stream_from(rank)).collect::<Result<_, JobError>>()?;
    let mut senders: Vec<StreamSender> =
        (0..job.size()).map(|rank| job.stream_to(rank, LIMIT)).collect::<Result<_, JobError>>()?;
    for round in 0..ROUNDS {
        for (to, sender) in senders.iter_mut().enumerate() {
            sender.send(&block(me, to as u32, round), LIMIT)?;
            sender.flush(LIMIT)?;
        }
        for (from, receiver) in receivers.iter_mut().enumerate() {
            let record = receiver.receive(LIMIT)?;
            if *record != *block(from as u32, me, round) {
                return Err(format!("rank {me}: wrong bytes from rank {from}").into());
            }
        }
    }
    // Messages that another rank has not received yet would end with this process.
    job.fence(LIMIT)?;
    if me == 0 {
        println!("{}", job.explain());
        println!("{} ranks, {ROUNDS} rounds: every block is what it should be", job.size());
    }
    Ok(())
}
