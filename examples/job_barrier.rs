//! A barrier of a job's ranks by group receive: rank 0 gets one notification when all others have
//! come, and lets them go on. After each barrier every rank reports its step. Run it as
//! `hamlyn run -n 4 -- job_barrier`, or under `mpiexec`.

use hamlyn::job::Job;
use hamlyn::protocol::{Group, GroupConfig, GroupMember};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const STEPS: u32 = 5;

/// Run by the tests, too, as a rank.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = Job::from_env()?;
    if job.size() == 1 {
        println!("one rank has nobody to wait for; hamlyn run -n 4 starts four");
        return Ok(());
    }
    let others = job.size() - 1;
    if job.rank() == 0 {
        let mut group = Group::new(job.manager(), GroupConfig::new(others, 4))?;
        job.offer(&group, "barrier")?;
        for step in 0..STEPS {
            group.barrier(LIMIT)?;
            // Each says which step it has come to, with the next message of the group.
            let parts = group.gather(LIMIT)?;
            if parts.count() != others as usize {
                return Err(format!("{} parts came at step {step}", parts.count()).into());
            }
            for (member, part) in parts.iter() {
                if part != step.to_le_bytes() {
                    return Err(format!("member {member} was not at step {step}").into());
                }
            }
            drop(parts);
            group.next_round();
        }
        job.fence(LIMIT)?;
        println!("{} ranks met {STEPS} times", job.size());
    } else {
        let mut member: GroupMember = job.grow(0, "barrier", 4, LIMIT)?;
        for step in 0..STEPS {
            member.barrier(LIMIT)?;
            member.send(&step.to_le_bytes(), LIMIT)?;
        }
        job.fence(LIMIT)?;
    }
    Ok(())
}
