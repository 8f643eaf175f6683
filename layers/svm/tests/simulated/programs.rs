//! Random programs without races.

use super::{LOCKS, PAGE_BYTES, PAGES, TURNS};

pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    Acquire(u32),
    Release(u32),
    Read(usize),
    Write(usize),
    Arrive(u32, usize),
    Set(u32, u64),
    Wait(u32, u64),
    /// Under the lock of turns: waits until the variable has this value.
    Turn(usize, u32),
    /// Gives the variable this value, and wakes those that wait for it.
    NextTurn(usize, u32),
    /// Evicts a page, if it is there.
    Evict,
}

/// Programs of all processes, and the lock of each variable. Variables of all kinds are mixed on the pages.
pub fn programs(rng: &mut Rng, n: usize, deaths: bool) -> (Vec<Vec<Op>>, Vec<Option<u32>>) {
    let words = PAGES as usize * PAGE_BYTES / 4;
    let mut order: Vec<usize> = (0..words).collect();
    for at in (1..words).rev() {
        order.swap(at, rng.below(at + 1));
    }
    let mut locks = vec![None; words];
    let (locked, rest) = order.split_at(40);
    let of_lock = |lock: u32| &locked[lock as usize * 8..][..8];
    for lock in 0..=TURNS {
        of_lock(lock).iter().for_each(|&variable| locks[variable] = Some(lock));
    }
    let (owned, rest) = rest.split_at(24);
    let (slots, rest) = rest.split_at(24);
    let groups = &rest[..36];
    let mut next_group = 0;
    let (mut next_slot, mut next_turn) = (0, 0);
    let mut programs = vec![Vec::new(); n];
    let arrive = |programs: &mut Vec<Vec<Op>>, barrier: usize| {
        programs.iter_mut().for_each(|it| it.push(Op::Arrive(barrier as u32, n)));
    };
    for _ in 0..2 + rng.below(6) {
        let some = [2, 8][rng.below(2)];
        match if deaths && rng.one_in(2) { 0 } else { rng.below(5) } {
            // Critical sections, also nested ones.
            0 => {
                for program in &mut programs {
                    for _ in 0..1 + rng.below(4) {
                        let outer = rng.below(LOCKS as usize) as u32;
                        let inner = outer + 1 + rng.below(3) as u32;
                        let both = [outer, inner];
                        let nested = if inner < LOCKS { &both[..] } else { &both[..1] };
                        for &lock in nested {
                            program.push(Op::Acquire(lock));
                            program.extend(accesses(rng, &of_lock(lock)[..some]));
                        }
                        for &lock in nested.iter().rev() {
                            program.extend(accesses(rng, &of_lock(lock)[..some]));
                            program.push(Op::Release(lock));
                        }
                    }
                }
            }
            // Each variable has one writer between two barriers.
            1 => {
                let shift = rng.below(n);
                arrive(&mut programs, rng.below(8));
                for (at, &variable) in owned.iter().enumerate() {
                    if rng.one_in(2) {
                        programs[(at + shift) % n].push(Op::Write(variable));
                    }
                }
                arrive(&mut programs, rng.below(8));
                for program in &mut programs {
                    let read = (0..6).map(|_| Op::Read(owned[rng.below(owned.len())]));
                    program.extend(read);
                }
                arrive(&mut programs, rng.below(8));
            }
            // One writes, and sets a flag; others wait for it.
            2 => {
                if next_slot % 8 == 0 {
                    arrive(&mut programs, 0);
                }
                let writer = rng.below(n);
                let flag = (next_slot % 8) as u32;
                let mine = &slots[next_slot % 8 * 3..][..3];
                next_slot += 1;
                for (me, program) in programs.iter_mut().enumerate() {
                    if me == writer {
                        program.extend(mine.iter().map(|&it| Op::Write(it)));
                        program.push(Op::Set(flag, next_slot as u64));
                    } else if rng.one_in(2) {
                        program.push(Op::Wait(flag, next_slot as u64));
                        program.extend(mine.iter().map(|&it| Op::Read(it)));
                    }
                }
            }
            // Some meet at a barrier.
            3 => {
                if next_group % 6 == 0 {
                    arrive(&mut programs, 1);
                }
                let barrier = 8 + next_group as u32 % 6;
                let group = &groups[next_group % 6 * 6..][..6];
                next_group += 1;
                let first = rng.below(n);
                let count = 1 + rng.below(n);
                for at in 0..count {
                    let program = &mut programs[(first + at) % n];
                    program.push(Op::Write(group[at]));
                    program.push(Op::Arrive(barrier, count));
                    program.extend(group[..count].iter().map(|&it| Op::Read(it)));
                }
            }
            // In turn, by a condition variable.
            _ => {
                let turn = of_lock(TURNS)[0];
                let first = rng.below(n);
                for at in 0..n {
                    let program = &mut programs[(first + at) % n];
                    program.extend([Op::Acquire(TURNS), Op::Turn(turn, next_turn)]);
                    for _ in 0..rng.below(4) {
                        let variable = of_lock(TURNS)[1 + rng.below(7)];
                        program.extend([Op::Read(variable), Op::Write(variable)]);
                    }
                    next_turn += 1;
                    program.extend([Op::NextTurn(turn, next_turn), Op::Release(TURNS)]);
                }
            }
        }
    }
    (programs, locks)
}

fn accesses(rng: &mut Rng, variables: &[usize]) -> Vec<Op> {
    let mut ops = Vec::new();
    for _ in 0..1 + rng.below(3) {
        let variable = variables[rng.below(variables.len())];
        ops.push([Op::Read(variable), Op::Write(variable)][rng.below(2)]);
        if rng.one_in(6) {
            ops.push(Op::Evict);
        }
    }
    ops
}
