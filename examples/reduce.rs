//! Gather, reduce, scatter, thresholds and several groups: two teams of processes compute; one
//! process waits for the first team with all parts, adds them up and sends the sum to the team.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{EndPoint, Group, GroupConfig, GroupMember, Manager};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const NAMES: [&str; 2] = ["sums", "fastest"];
const MEMBERS: u32 = 2;
const NUMBERS: usize = 50_000;

fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

fn root(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    let mut groups = Vec::new();
    for name in NAMES {
        let group = Group::new(
            &manager,
            GroupConfig { scatter_bytes: 16, ..GroupConfig::new(MEMBERS, 8 * NUMBERS) },
        )?;
        group.serve(name, Access::SameUser)?;
        groups.push(group);
    }
    // Of the second team one part is enough.
    groups[1].set_wanted(1);
    ready()?;
    let mut done = [false; 2];
    while done != [true; 2] {
        let left: Vec<usize> = (0..2).filter(|i| !done[*i]).collect();
        let waiting: Vec<&dyn EndPoint> =
            left.iter().map(|i| &groups[*i] as &dyn EndPoint).collect();
        let found = left[manager.wait_any(&waiting, LIMIT)?];
        let group = &mut groups[found];
        if found == 0 {
            // All parts are there, each standing still in its place, in one area.
            let sum = group.reduce(LIMIT, 0u64, |sum, member, part| {
                println!("member {member} sent {} bytes", part.len());
                sum + part.chunks(8).map(number).sum::<u64>()
            })?;
            assert_eq!(sum, (0..NUMBERS as u64 * MEMBERS as u64).sum());
            // Each gets the sum, and its own number.
            let answers: Vec<[u8; 16]> = (0..MEMBERS as u64)
                .map(|n| {
                    let mut answer = [0; 16];
                    answer[..8].copy_from_slice(&sum.to_le_bytes());
                    answer[8..].copy_from_slice(&n.to_le_bytes());
                    answer
                })
                .collect();
            group.scatter(LIMIT, |member| &answers[member as usize])?;
            println!("the sum is {sum}");
        } else {
            let parts = group.wait_for(1, LIMIT)?;
            for (member, part) in parts.iter() {
                println!("member {member} was fast enough: {}", String::from_utf8_lossy(part));
            }
            drop(parts);
            group.broadcast(b"found", LIMIT)?;
        }
        done[found] = true;
    }
    // They leave when they have received their answer.
    while groups.iter().any(|group| group.joined() > 0) {
        manager.poll()?;
        std::thread::yield_now();
    }
    Ok(())
}

fn sums() -> Result {
    let manager = Manager::new()?;
    let mut member = GroupMember::connect(&manager, NAMES[0], 16, LIMIT)?;
    let first = member.number() as u64 * NUMBERS as u64;
    let part: Vec<u8> =
        (first..first + NUMBERS as u64).flat_map(|number| number.to_le_bytes()).collect();
    member.send(&part, LIMIT)?;
    member.receive_with(LIMIT, |bytes| assert_eq!(number(&bytes[8..]), first / NUMBERS as u64))?;
    Ok(())
}

fn fastest() -> Result {
    let manager = Manager::new()?;
    let mut member = GroupMember::connect(&manager, NAMES[1], 16, LIMIT)?;
    member.send(format!("number {}", member.number()).as_bytes(), LIMIT)?;
    assert_eq!(member.receive(LIMIT)?, b"found");
    Ok(())
}

fn main() -> Result {
    common::run(root, &[sums, sums, fastest, fastest])
}
