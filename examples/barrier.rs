//! A barrier of processes: none passes before all have come. One of them dies between two barriers;
//! the others learn which one, and decide how to go on.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{Group, GroupConfig, GroupError, GroupMember, Manager};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const MEMBERS: u32 = 3;

fn root(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    let mut group = Group::new(&manager, GroupConfig::new(MEMBERS, 0))?;
    group.serve("barrier", Access::SameUser)?;
    ready()?;
    for step in 1..=3 {
        group.barrier(LIMIT)?;
        println!("step {step}: all {MEMBERS} members came, and went on");
    }
    match group.barrier(LIMIT) {
        Err(GroupError::MemberLost { member, peer, reason, .. }) => {
            println!("member {member}, process {:?}, is lost: {reason:?}", peer.pid.unwrap_or(0));
        }
        other => return Err(format!("a member was to be lost, and there is {other:?}").into()),
    }
    // The others are enough.
    drop(group.wait_for(MEMBERS - 1, LIMIT)?);
    group.release(LIMIT)?;
    println!("the others went on without it");
    // They say goodbye when they are done.
    while group.joined() > 0 {
        manager.poll()?;
        std::thread::yield_now();
    }
    Ok(())
}

fn member() -> Result {
    let manager = Manager::new()?;
    let mut member = GroupMember::connect(&manager, "barrier", 0, LIMIT)?;
    for _ in 0..3 {
        member.barrier(LIMIT)?;
    }
    if member.number() == 1 {
        return Ok(());
    }
    Ok(member.barrier(LIMIT)?)
}

fn main() -> Result {
    common::run(root, &[member, member, member])
}
