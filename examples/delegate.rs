//! Delegation (Hamlyn 2.5): a member of a group divides its part among helpers, processes of its
//! own. Each sends its piece straight to the root, which gets one notification when all of them
//! have arrived.

mod common;

use common::Result;
use hamlyn::Access;
use hamlyn::protocol::{Group, GroupConfig, GroupHelper, GroupMember, Manager, Part};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const BYTES: usize = 300_000;

fn root(ready: &dyn Fn() -> Result) -> Result {
    let manager = Manager::new()?;
    let mut group = Group::new(&manager, GroupConfig::new(1, BYTES))?;
    group.serve("delegate", Access::SameUser)?;
    ready()?;
    let parts = group.gather(LIMIT)?;
    let part = parts.part(0).ok_or("the only part is missing")?;
    let of = |value| part.iter().filter(|byte| **byte == value).count();
    println!("one part: {} bytes of the member, {} and {} of its helpers", of(0), of(1), of(2));
    if [of(0), of(1), of(2)] != [BYTES / 3; 3] {
        return Err("the pieces are not what was sent".into());
    }
    Ok(())
}

fn member() -> Result {
    let manager = Manager::new()?;
    let mut member = GroupMember::connect(&manager, "delegate", BYTES, LIMIT)?;
    let pieces = member.delegate(BYTES, 3, LIMIT)?;
    let mut helpers = Vec::new();
    for piece in &pieces[1..] {
        let mut helper = Command::new(std::env::current_exe()?)
            .arg((helpers.len() + 1).to_string())
            .stdin(Stdio::piped())
            .spawn()?;
        // A piece is bytes, and goes as the program likes: here through a pipe.
        helper.stdin.take().ok_or("no pipe")?.write_all(&piece.to_bytes())?;
        helpers.push(helper);
    }
    member.send_part(&pieces[0], &vec![0; pieces[0].length()], LIMIT)?;
    for mut helper in helpers {
        if !helper.wait()?.success() {
            return Err("a helper failed".into());
        }
    }
    Ok(())
}

fn helper(value: u8) -> Result {
    let mut piece = Vec::new();
    std::io::stdin().read_to_end(&mut piece)?;
    let piece = Part::from_bytes(&piece)?;
    let manager = Manager::new()?;
    let mut helper = GroupHelper::connect(&manager, "delegate", LIMIT)?;
    helper.send(&piece, &vec![value; piece.length()], LIMIT)?;
    println!("helper {value} sends {} bytes for the member", piece.length());
    Ok(())
}

fn main() -> Result {
    common::run(
        root,
        &[|| match std::env::args().nth(1) {
            Some(value) => helper(value.parse()?),
            None => member(),
        }],
    )
}
