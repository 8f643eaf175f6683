//! Whole programs on simulated processes, from a seed: random programs without races, on few small pages
//! that variables of different locks share; messages wait as long as the seed wants, in order within a pair
//! and a direction; pages are evicted, processes die. Each read is compared with the last write: in a
//! program without races that is the last one in the simulation's time.
//!
//! ```text
//! SVM_SEED=17 cargo test -p hamlyn-svm --test simulated        one seed, with its messages
//! SVM_SEEDS=20000 cargo test -p hamlyn-svm --test simulated    as many
//! ```

mod programs;

use programs::{Op, Rng, programs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hamlyn_svm::machine::wire::{Call, STRIPE, ToClient, ToServer};
use hamlyn_svm::machine::{Client, Error, Event, Host, Links, Server, Shape};

const PAGE_BYTES: usize = 64;
const PAGES: u32 = 8;
const LOCKS: u32 = 4;
/// The lock of the turns, and their condition variable.
const TURNS: u32 = LOCKS;
const STEPS_MAX: usize = 200_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Hlrc,
    HlrcAu,
    Aurc,
}

enum Packet {
    Message(Vec<u8>),
    /// Bytes by automatic update.
    Deposit(u32, usize, Vec<u8>),
    /// The sender died; all its messages were before this.
    End,
}

type Queues = Vec<VecDeque<Packet>>;

struct Out<'a>(&'a mut Queues);

impl Links for Out<'_> {
    fn send(&mut self, to: usize, message: &ToServer<'_>) {
        let (head, body) = message.parts();
        self.0[to].push_back(Packet::Message([&head, body].concat()));
    }
}

struct Home<'a> {
    pages: &'a mut BTreeMap<u32, Vec<u8>>,
    out: &'a mut Queues,
}

impl Host for Home<'_> {
    fn send(&mut self, to: usize, message: &ToClient<'_>) {
        let (head, body) = message.parts();
        self.out[to].push_back(Packet::Message([&head, body].concat()));
    }

    fn send_page(&mut self, to: usize, page: u32) -> bool {
        let bytes = self.pages.entry(page).or_insert_with(|| vec![0; PAGE_BYTES]).clone();
        self.send(to, &ToClient::Page { page, bytes: &bytes });
        true
    }

    fn apply(&mut self, page: u32, offset: usize, bytes: &[u8]) -> bool {
        let place = self.pages.entry(page).or_insert_with(|| vec![0; PAGE_BYTES]);
        place[offset..offset + bytes.len()].copy_from_slice(bytes);
        true
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Ready,
    Waiting,
    /// The program has ended; the server goes on.
    Ended,
    Dead,
}

struct Copy {
    bytes: Vec<u8>,
    /// Written since the last release: the bytes as they were.
    twin: Option<Vec<u8>>,
}

struct Process {
    client: Client,
    server: Server,
    /// Pages at home here, of client and server.
    home: BTreeMap<u32, Vec<u8>>,
    written_home: BTreeSet<u32>,
    copies: BTreeMap<u32, Copy>,
    program: Vec<Op>,
    at: usize,
    state: State,
    /// The answer for the op at `at`: `Some` once.
    answer: Option<Option<usize>>,
    failed: bool,
}

struct Simulation {
    rng: Rng,
    protocol: Protocol,
    shape: Shape,
    one_host: bool,
    processes: Vec<Process>,
    up: Vec<Queues>,
    down: Vec<Queues>,
    /// Of each variable, a word of memory: its value; none if a death makes it unknown.
    truth: Vec<Option<u32>>,
    /// Of each variable, its lock.
    locks: Vec<Option<u32>>,
    next_value: u32,
    /// Pairs whose messages wait long, up and down.
    slow: BTreeSet<(usize, usize, bool)>,
    deaths: usize,
    died: bool,
    reads: usize,
    trace: bool,
}

impl Simulation {
    fn new(seed: u64, deaths: bool, trace: bool) -> Self {
        let mut rng = Rng(seed);
        let n = 2 + rng.below(5);
        let protocol = [Protocol::Hlrc, Protocol::HlrcAu, Protocol::Aurc][rng.below(3)];
        let log_max = [4, 16, 4096][rng.below(3)];
        let objects = 16;
        let shape = Shape { processes: n, pages: PAGES, page_bytes: PAGE_BYTES, objects, log_max };
        shape.check().unwrap();
        let (programs, locks) = programs(&mut rng, n, deaths);
        let queues = || (0..n).map(|_| (0..n).map(|_| VecDeque::new()).collect()).collect();
        let process = |(me, program)| Process {
            client: Client::new(shape, me),
            server: Server::new(shape, me),
            home: BTreeMap::new(),
            written_home: BTreeSet::new(),
            copies: BTreeMap::new(),
            program,
            at: 0,
            state: State::Ready,
            answer: None,
            failed: false,
        };
        let deaths = if deaths { 1 + rng.below(n - 1) } else { 0 };
        let one_host = rng.one_in(3);
        let slow = pairs(n).flat_map(|(a, b)| [(a, b, true), (a, b, false)]);
        let few = [2, 5][rng.below(2)];
        let slow = slow.filter(|_| rng.one_in(few)).collect();
        Self {
            rng,
            slow,
            protocol,
            shape,
            one_host,
            processes: programs.into_iter().enumerate().map(process).collect(),
            up: queues(),
            down: queues(),
            truth: vec![Some(0); locks.len()],
            locks,
            next_value: 1 << 20,
            deaths,
            died: false,
            reads: 0,
            trace,
        }
    }

    fn run(&mut self) {
        for step in 0.. {
            assert!(step < STEPS_MAX, "no end: {}", self.whereabouts());
            if self.deaths > 0 && self.rng.one_in(200) {
                let process = self.rng.below(self.shape.processes);
                self.deaths -= 1;
                self.kill(process);
            }
            let ready = |it: &usize| self.processes[*it].state == State::Ready;
            let ready: Vec<usize> = (0..self.shape.processes).filter(ready).collect();
            let mut filled = Vec::new();
            for (a, b) in pairs(self.shape.processes) {
                filled.extend((!self.up[a][b].is_empty()).then_some((a, b, true)));
                filled.extend((!self.down[a][b].is_empty()).then_some((a, b, false)));
            }
            let is_quick = |it: &_| !self.slow.contains(it);
            if (!ready.is_empty() || filled.iter().any(is_quick)) && !self.rng.one_in(50) {
                filled.retain(is_quick);
            }
            let choice = self.rng.below((ready.len() + filled.len()).max(1));
            if let Some(&process) = ready.get(choice) {
                self.step(process);
            } else if let Some(&(from, to, up)) = filled.get(choice - ready.len()) {
                if up { self.deliver_up(from, to) } else { self.deliver_down(from, to) }
            } else {
                break;
            }
        }
        for process in &self.processes {
            let over = matches!(process.state, State::Ended | State::Dead);
            assert!(over, "a process waits for ever: {}", self.whereabouts());
            assert!(self.died || !process.failed, "an error without a death");
        }
    }

    fn whereabouts(&self) -> String {
        let at = |it: &Process| format!("{:?} {}", it.program.get(it.at), it.state as u8);
        format!("{:?}", self.processes.iter().map(at).collect::<Vec<_>>())
    }

    fn kill(&mut self, process: usize) {
        if self.processes[process].state == State::Dead {
            return;
        }
        if self.trace {
            println!("{process} dies");
        }
        self.died = true;
        self.processes[process].state = State::Dead;
        let cut = self.rng.one_in(2);
        for other in 0..self.shape.processes {
            self.up[other][process].clear();
            self.down[other][process].clear();
            for queues in [&mut self.up, &mut self.down] {
                let queue = &mut queues[process][other];
                if cut {
                    queue.truncate(self.rng.below(queue.len() + 1));
                }
                if other != process {
                    queue.push_back(Packet::End);
                } else {
                    queue.clear();
                }
            }
        }
    }

    fn deliver_up(&mut self, from: usize, to: usize) {
        let packet = self.up[from][to].pop_front().unwrap();
        let process = &mut self.processes[to];
        if process.state == State::Dead {
            return;
        }
        let mut home = Home { pages: &mut process.home, out: &mut self.down[to] };
        match packet {
            Packet::Message(bytes) => {
                let message = ToServer::decode(&bytes, &self.shape).unwrap();
                if self.trace {
                    println!("{from} -> server {to}: {message:?}");
                }
                process.server.take(from, message, &mut home).unwrap();
            }
            Packet::Deposit(page, offset, bytes) => assert!(home.apply(page, offset, &bytes)),
            Packet::End => process.server.died(from, &mut home),
        }
    }

    fn deliver_down(&mut self, from: usize, to: usize) {
        let packet = self.down[from][to].pop_front().unwrap();
        let process = &mut self.processes[to];
        if process.state == State::Dead {
            return;
        }
        let mut out = Out(&mut self.up[to]);
        let event = match &packet {
            Packet::Message(bytes) => {
                let message = ToClient::decode(bytes, &self.shape).unwrap();
                if self.trace {
                    println!("server {from} -> {to}: {message:?}");
                }
                process.client.take(from, message, &mut out).unwrap()
            }
            Packet::Deposit(..) => unreachable!(),
            Packet::End => process.client.died(from),
        };
        if let Some(event) = event {
            self.answered(to, event);
        }
    }

    fn answered(&mut self, me: usize, event: Event<'_>) {
        let process = &mut self.processes[me];
        process.state = State::Ready;
        let op = process.program[process.at];
        match event {
            Event::Homed => {}
            Event::Fetched { page, bytes } => {
                process.copies.insert(page, Copy { bytes: bytes.to_vec(), twin: None });
            }
            Event::Ordered { dead } => process.answer = Some(dead),
            Event::Failed(Error::Died(dead)) => {
                assert!(self.processes[dead].state == State::Dead);
                match op {
                    // A load or a store cannot fail.
                    Op::Read(_) | Op::Write(_) | Op::NextTurn(..) => self.kill(me),
                    _ => self.end(me),
                }
            }
            Event::Failed(error) => panic!("{op:?}: {error}"),
        }
        self.invalidate(me);
    }

    /// The program gets an error: it releases its locks and ends, or ends at once with all that it has.
    fn end(&mut self, me: usize) {
        let process = &mut self.processes[me];
        process.failed = true;
        if self.rng.one_in(2) {
            return self.kill(me);
        }
        let done = process.program[..process.at].iter();
        let mut held = BTreeSet::new();
        for op in done {
            match op {
                Op::Acquire(lock) => _ = held.insert(*lock),
                Op::Release(lock) => _ = held.remove(lock),
                _ => {}
            }
        }
        process.program = held.into_iter().map(Op::Release).collect();
        process.at = 0;
    }

    fn step(&mut self, me: usize) {
        let process = &mut self.processes[me];
        let Some(&op) = process.program.get(process.at) else {
            process.state = State::Ended;
            return;
        };
        if self.trace {
            println!("{me}: {op:?}");
        }
        if let Op::Release(_) | Op::Arrive(..) | Op::Set(..) | Op::NextTurn(..) = op
            && process.answer.is_none()
        {
            self.flush(me);
        }
        let process = &mut self.processes[me];
        let (client, mut out) = (&mut process.client, Out(&mut self.up[me]));
        // A call that waits is made once, and over with its answer.
        if let Op::Acquire(_) | Op::Arrive(..) | Op::Wait(..) = op {
            match (process.answer.take(), op) {
                (None, _) => {
                    process.state = State::Waiting;
                    let called = match op {
                        Op::Acquire(lock) => client.call(Call::Acquire { lock }, &mut out),
                        Op::Arrive(barrier, count) => {
                            client.call(Call::Arrive { barrier, count }, &mut out)
                        }
                        Op::Wait(flag, value) => client.call(Call::Wait { flag, value }, &mut out),
                        _ => unreachable!(),
                    };
                    self.called(me, called);
                }
                (Some(Some(_)), Op::Arrive(..) | Op::Wait(..)) => panic!("no lock, but its owner"),
                (Some(dead), _) => {
                    process.at += 1;
                    if let (Some(_), Op::Acquire(lock)) = (dead, op) {
                        let lost = self.truth.iter_mut().zip(&self.locks);
                        lost.filter(|(_, it)| **it == Some(lock)).for_each(|(it, _)| *it = None);
                    }
                }
            }
            return;
        }
        match op {
            Op::Release(lock) => {
                let called = client.call(Call::Release { lock }, &mut out);
                process.at += 1;
                self.called(me, called);
            }
            Op::Set(flag, value) => {
                let called = client.call(Call::Set { flag, value }, &mut out);
                process.at += 1;
                self.called(me, called);
            }
            Op::Evict => {
                process.at += 1;
                if let Some(&page) = process.copies.keys().nth(self.rng.below(PAGES as usize)) {
                    self.evict(me, page);
                }
            }
            Op::Read(variable) => {
                if let Some(value) = self.load(me, variable) {
                    self.check(me, variable, value);
                    self.processes[me].at += 1;
                }
            }
            Op::Write(variable) => {
                let value = self.next_value;
                if self.store(me, variable, value) {
                    self.next_value += 1;
                    self.processes[me].at += 1;
                    if self.deaths > 0 && self.rng.one_in(20) {
                        self.deaths -= 1;
                        self.kill(me);
                    }
                }
            }
            Op::Turn(variable, turn) => {
                if let Some(Some(_)) = process.answer.take() {
                    return self.end(me);
                }
                let Some(value) = self.load(me, variable) else { return };
                self.check(me, variable, value);
                if value == turn {
                    self.processes[me].at += 1;
                    return;
                }
                self.flush(me);
                let process = &mut self.processes[me];
                process.state = State::Waiting;
                let mut out = Out(&mut self.up[me]);
                let called = process
                    .client
                    .call(Call::WaitCondition { condition: 0, lock: TURNS }, &mut out);
                self.called(me, called);
            }
            Op::NextTurn(variable, turn) => {
                if self.store(me, variable, turn) {
                    self.flush(me);
                    let process = &mut self.processes[me];
                    process.at += 1;
                    let called = process.client.call(
                        Call::Signal { condition: 0, lock: TURNS, all: true },
                        &mut Out(&mut self.up[me]),
                    );
                    self.called(me, called);
                }
            }
            Op::Acquire(_) | Op::Arrive(..) | Op::Wait(..) => unreachable!(),
        }
    }

    fn called(&mut self, me: usize, result: Result<(), Error>) {
        match result {
            Ok(()) => {}
            Err(Error::Died(dead)) if self.processes[dead].state == State::Dead => {
                self.processes[me].state = State::Ready;
                self.end(me);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&mut self, me: usize, variable: usize, value: u32) {
        self.reads += 1;
        if let Some(truth) = self.truth[variable] {
            let page = variable * 4 / PAGE_BYTES;
            assert_eq!(value, truth, "process {me} reads variable {variable} on page {page}");
        }
    }

    /// The variable's page in memory, at home here or a copy; else it asks.
    fn load(&mut self, me: usize, variable: usize) -> Option<u32> {
        let (page, offset) = ((variable * 4 / PAGE_BYTES) as u32, variable * 4 % PAGE_BYTES);
        let process = &mut self.processes[me];
        let mut out = Out(&mut self.up[me]);
        let home = process.client.home(page);
        let bytes = match home {
            Some(home) if home == me => {
                process.home.entry(page).or_insert_with(|| vec![0; PAGE_BYTES])
            }
            Some(home) => match process.copies.get(&page) {
                Some(copy) => &copy.bytes,
                None => {
                    if self.one_host && self.read_home(me, home, page) {
                        return None;
                    }
                    let process = &mut self.processes[me];
                    process.state = State::Waiting;
                    let called = process.client.fetch(page, &mut Out(&mut self.up[me]));
                    self.missed(me, called);
                    return None;
                }
            },
            None => {
                process.state = State::Waiting;
                let wanted = match self.rng.one_in(4) {
                    true => self.rng.below(self.shape.processes),
                    false => me,
                };
                let end = page + 1 + self.rng.below((PAGES - page).min(STRIPE) as usize) as u32;
                let end = if self.rng.one_in(4) { end } else { page + 1 };
                let called = process.client.ask_home(page..end, wanted, &mut out);
                self.missed(me, called);
                return None;
            }
        };
        Some(u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap()))
    }

    fn missed(&mut self, me: usize, result: Result<(), Error>) {
        match result {
            Ok(()) => {}
            Err(Error::Died(_)) => self.kill(me),
            Err(error) => panic!("{error}"),
        }
    }

    /// On one host: the home's memory is read without a question.
    fn read_home(&mut self, me: usize, home: usize, page: u32) -> bool {
        let [process, other] = self.processes.get_disjoint_mut([me, home]).unwrap();
        let server = &other.server;
        if other.state == State::Dead
            || !process.client.may_read(page, |writer| server.applied()[writer])
        {
            return false;
        }
        let bytes = other.home.entry(page).or_insert_with(|| vec![0; PAGE_BYTES]).clone();
        process.copies.insert(page, Copy { bytes, twin: None });
        true
    }

    fn store(&mut self, me: usize, variable: usize, value: u32) -> bool {
        if self.load(me, variable).is_none() {
            return false;
        }
        let (page, offset) = ((variable * 4 / PAGE_BYTES) as u32, variable * 4 % PAGE_BYTES);
        let process = &mut self.processes[me];
        let home = process.client.home(page).unwrap();
        let bytes = if home == me {
            process.written_home.insert(page);
            process.home.get_mut(&page).unwrap()
        } else {
            let copy = process.copies.get_mut(&page).unwrap();
            if self.protocol == Protocol::Aurc {
                process.client.wrote(page).unwrap();
                let bytes = value.to_le_bytes().to_vec();
                self.up[me][home].push_back(Packet::Deposit(page, offset, bytes));
            } else {
                copy.twin.get_or_insert_with(|| copy.bytes.clone());
            }
            &mut copy.bytes
        };
        bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        self.truth[variable] = Some(value);
        true
    }

    /// Before a release: written pages leave.
    fn flush(&mut self, me: usize) {
        let pages: Vec<u32> = self.processes[me].copies.keys().copied().collect();
        pages.into_iter().for_each(|page| self.flush_page(me, page));
        let process = &mut self.processes[me];
        for page in std::mem::take(&mut process.written_home) {
            process.client.wrote(page).unwrap();
        }
    }

    fn flush_page(&mut self, me: usize, page: u32) {
        let process = &mut self.processes[me];
        let copy = process.copies.get_mut(&page).unwrap();
        let Some(twin) = copy.twin.take() else { return };
        let home = process.client.home(page).unwrap();
        let changed = (0..PAGE_BYTES).filter(|&at| copy.bytes[at] != twin[at]);
        for at in changed {
            let bytes = &copy.bytes[at..at + 1];
            if self.protocol == Protocol::Hlrc {
                process.client.diff(page, at, bytes, &mut Out(&mut self.up[me])).unwrap();
            } else {
                process.client.wrote(page).unwrap();
                self.up[me][home].push_back(Packet::Deposit(page, at, bytes.to_vec()));
            }
        }
    }

    fn evict(&mut self, me: usize, page: u32) {
        self.flush_page(me, page);
        self.processes[me].copies.remove(&page);
    }

    fn invalidate(&mut self, me: usize) {
        while let Some(range) = self.processes[me].client.next_invalid() {
            let copies = self.processes[me].copies.range(range);
            let old: Vec<u32> = copies.map(|(&page, _)| page).collect();
            old.into_iter().for_each(|page| self.evict(me, page));
        }
    }
}

fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).flat_map(move |a| (0..n).map(move |b| (a, b)))
}

/// Runs so many seeds, or those of the environment; says which one failed.
fn simulate(seeds: u64, deaths: bool) {
    let number = |name| std::env::var(name).ok().map(|it| it.parse::<u64>().unwrap());
    let one = number("SVM_SEED");
    let seeds = one.map_or(0..number("SVM_SEEDS").unwrap_or(seeds), |one| one..one + 1);
    let mut reads = 0;
    for seed in seeds.clone() {
        let mut simulation = Simulation::new(seed, deaths, one.is_some());
        let run = std::panic::AssertUnwindSafe(|| simulation.run());
        if let Err(panic) = std::panic::catch_unwind(run) {
            println!("SVM_SEED={seed} cargo test -p hamlyn-svm --test simulated -- --nocapture");
            std::panic::resume_unwind(panic);
        }
        reads += simulation.reads;
    }
    assert!(reads as u64 >= 8 * (seeds.end - seeds.start) || one.is_some(), "{reads} reads");
}

#[test]
fn a_read_sees_the_last_write() {
    simulate(400, false);
}

#[test]
fn survivors_of_a_death_read_the_last_write_or_get_an_error() {
    simulate(1000, true);
}

/// Bytes of an owner that died may still be on their way when its lock goes to the next.
#[test]
fn the_last_bytes_of_a_dead_owner_do_not_overwrite_its_successors() {
    let mut runs = 0;
    for seed in 0..400 {
        let mut simulation = Simulation::new(seed, true, false);
        let (variable, lock) = (0, 1);
        if simulation.shape.processes != 3 || simulation.protocol != Protocol::Aurc {
            continue;
        }
        simulation.locks[variable] = Some(lock);
        simulation.deaths = 0;
        simulation.processes.iter_mut().for_each(|it| it.program.clear());
        let critical = |op| vec![Op::Acquire(lock), op, Op::Release(lock)];
        let none = BTreeSet::new();
        simulation.run_program(2, critical(Op::Write(variable)), &none);
        if simulation.processes[2].client.home(0) != Some(2) {
            continue;
        }
        simulation.run_program(1, critical(Op::Read(variable)), &none);
        simulation.run_program(0, vec![Op::Acquire(lock), Op::Read(variable)], &none);
        let late = BTreeSet::from([(0, 2)]);
        simulation.run_program(0, vec![Op::Write(variable)], &late);
        simulation.kill(0);
        if simulation.up[0][2].len() < 2 {
            continue;
        }
        simulation.run_program(1, critical(Op::Write(variable)), &late);
        simulation.run_program(2, vec![], &none);
        simulation.run_program(2, critical(Op::Read(variable)), &none);
        assert!(simulation.truth[variable].is_some());
        runs += 1;
    }
    assert!(runs >= 5, "{runs} runs");
}

impl Simulation {
    /// Runs as far as it goes while messages from and to these servers stay where they are.
    fn run_program(&mut self, me: usize, program: Vec<Op>, late: &BTreeSet<(usize, usize)>) {
        if !program.is_empty() {
            let process = &mut self.processes[me];
            (process.program, process.at, process.state) = (program, 0, State::Ready);
        }
        loop {
            let n = self.shape.processes;
            let ready = (0..n).find(|&it| self.processes[it].state == State::Ready);
            let filled = pairs(n).find(|it| !late.contains(it) && !self.up[it.0][it.1].is_empty());
            let answered = pairs(n).find(|it| !self.down[it.0][it.1].is_empty());
            match (ready, filled, answered) {
                (Some(process), ..) => self.step(process),
                (_, Some((from, to)), _) => self.deliver_up(from, to),
                (.., Some((from, to))) => self.deliver_down(from, to),
                _ => break,
            }
        }
    }
}
