//! Several processes as one thread, for tests (and, by the feature `simulation`, for those of the
//! packages of this workspace): the unchanged library, over real sockets, memory
//! files and directories, but with time, randomness and the order of events from a seed.
//!
//! Each thread of each process is a task with a stack of its own, and one task runs at a time.
//! Instead of waiting in the system, a task pauses ([`wait`]), and at its turn looks again for its
//! event. When all tasks wait, the clock advances to the first deadline; if there is none, a task
//! has lost a wake-up, and the run names it ([`Stuck`]).
//!
//! Traffic between hosts passes through a network of its own: see [`net`].
//!
//! Not simulated: the order of single loads and stores (loom does that), several threads that share
//! a node, and the system's report of the death of a process: the other end sees a hang-up.

#[cfg(feature = "tls")]
pub(crate) mod net;

use crate::link::sim::Rng;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::string::{String, ToString};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::vec::Vec;

/// Time between two looks at the clock, at most.
const LOOK_NS: u64 = 1000;
/// Turns of tasks after which a run counts as endless.
const TURNS_MAX: u64 = 1_000_000;
/// The same by the simulated clock: a task that now and then checks whether a host is still there
/// never waits for ever.
const LIMIT_NS: u64 = 120_000_000_000;

/// The reason for which a task does not run.
#[derive(Clone, Copy)]
enum Pause {
    /// It gives way, and could run on.
    Gives,
    /// It waits for an event.
    Waits { until_ns: u64 },
}

type Yields = Yielder<(), Pause>;

struct Started {
    id: u64,
    host: usize,
    name: String,
    run: Box<dyn FnOnce()>,
}

struct SimRow {
    id: u64,
    host: usize,
    name: String,
    coroutine: Coroutine<(), Pause, ()>,
    /// It runs on at its turn; otherwise it looks whether its event has come.
    runs: bool,
    /// It has looked, and nothing has happened since.
    until_ns: Option<u64>,
}

struct World {
    random: Rng,
    now_ns: u64,
    /// The process of the running task.
    host: usize,
    next: u64,
    started: Vec<Started>,
    alive: BTreeSet<u64>,
    /// Calls that wake tasks which sleep on words.
    rings: u64,
    /// The running task has caused an event that others may have waited for.
    has_moved: bool,
    killed: Vec<usize>,
    is_killing: bool,
    /// For each process, its paused tasks that may hold a lock: it is killed when there are none.
    locked: BTreeMap<usize, usize>,
    /// The time at which the run has taken too long.
    until_ns: u64,
    /// Processes that have no turn until a time.
    stopped: Vec<(usize, u64)>,
}

std::thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    static YIELDER: Cell<*const Yields> = const { Cell::new(core::ptr::null()) };
}

fn with<R>(what: impl FnOnce(&mut World) -> R) -> Option<R> {
    // At the exit of a program there is no world any more, and its last calls are real.
    WORLD.try_with(|world| world.borrow_mut().as_mut().map(what)).ok().flatten()
}

/// Whether the calling thread runs a task.
pub(crate) fn is_running() -> bool {
    !YIELDER.get().is_null()
}

fn pause(why: Pause) {
    let yielder = YIELDER.replace(core::ptr::null());
    // SAFETY: `resume` of the coroutine to which the yielder belongs set it, and has not come back:
    // only this call, on this coroutine's stack, makes it come back.
    unsafe { &*yielder }.suspend(why);
    YIELDER.set(yielder);
}

/// Waits until the condition is true, or the time limit has passed: `false`.
pub(crate) fn wait(mut is_so: impl FnMut() -> bool, until_ns: u64) -> bool {
    loop {
        let is = is_so();
        let now_ns = with(|world| world.now_ns).unwrap_or(u64::MAX);
        // A task that is being killed waits for nothing.
        if is || now_ns >= until_ns || std::thread::panicking() {
            with(|world| world.has_moved = true);
            return is;
        }
        pause(Pause::Waits { until_ns });
    }
}

/// The clock; it goes on a little with each look. `None`: no task runs.
pub(crate) fn now_ns() -> Option<u64> {
    if !is_running() {
        return None;
    }
    with(|world| {
        world.now_ns += 1 + world.random.below(LOOK_NS);
        world.now_ns
    })
}

/// Fills `bytes` if a task runs.
pub(crate) fn random(bytes: &mut [u8]) -> bool {
    let fill = |world: &mut World| bytes.iter_mut().for_each(|b| *b = world.random.number() as u8);
    is_running() && with(fill).is_some()
}

/// The processor on which a task runs: processes share two.
pub(crate) fn processor() -> Option<u32> {
    is_running().then(|| with(|world| world.host as u32 % 2)).flatten()
}

/// Other tasks may run here, or not. For places where no lock is held.
pub(crate) fn may_give_way() {
    if is_running()
        && !std::thread::panicking()
        && with(|world| world.random.below(3) == 0) == Some(true)
    {
        yield_now();
    }
}

/// Other tasks may run here, while the caller keeps its locks.
pub(crate) fn barrier() {
    locked(may_give_way);
}

/// Locks; gives way while another task has it. `None`: no task runs.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    if !is_running() {
        return None;
    }
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => {
                return Some(PoisonError::into_inner(poisoned));
            }
            // A killed process has released its locks.
            Err(TryLockError::WouldBlock) => assert!(!std::thread::panicking(), "locked for ever"),
        }
        locked(|| _ = yield_now());
    }
}

/// While this pauses, its process is not killed.
fn locked(pauses: impl FnOnce()) {
    let host = with(|world| {
        *world.locked.entry(world.host).or_default() += 1;
        world.host
    });
    pauses();
    with(|world| {
        if let Some(count) = host.and_then(|host| world.locked.get_mut(&host)) {
            *count -= 1;
        }
    });
}

pub(crate) fn yield_now() -> bool {
    let is_running = is_running();
    if is_running && !std::thread::panicking() {
        with(|world| world.has_moved = true);
        pause(Pause::Gives);
    }
    is_running
}

pub(crate) fn sleep(time: Duration) -> bool {
    let is_running = is_running();
    if is_running {
        let now_ns = with(|world| world.now_ns).unwrap_or(0);
        wait(|| false, now_ns.saturating_add(time.as_nanos() as u64));
    }
    is_running
}

/// Tasks that sleep on words look at them again.
pub(crate) fn ring() {
    with(|world| world.rings += 1);
}

/// Sleeps on words: `differ` returns whether one of them has changed. As in the kernel, a changed
/// word wakes no task before [`ring`] is called.
pub(crate) fn wait_for_words(differ: impl Fn() -> bool, until_ns: u64) {
    if differ() {
        return;
    }
    let rings = || with(|world| world.rings).unwrap_or(0);
    let mut heard = rings();
    wait(|| core::mem::replace(&mut heard, rings()) != heard && differ(), until_ns);
}

pub(crate) fn receive<T>(
    from: &Receiver<T>,
    within: Duration,
) -> Option<Result<T, RecvTimeoutError>> {
    if !is_running() {
        return None;
    }
    let until_ns = with(|world| world.now_ns)?.saturating_add(within.as_nanos() as u64);
    let mut received = Err(RecvTimeoutError::Timeout);
    let look = || match from.try_recv() {
        Ok(value) => {
            received = Ok(value);
            true
        }
        Err(TryRecvError::Empty) => false,
        Err(TryRecvError::Disconnected) => {
            received = Err(RecvTimeoutError::Disconnected);
            true
        }
    };
    wait(look, until_ns);
    Some(received)
}

/// Whether the process that sends now has been killed.
pub(crate) fn is_killing() -> bool {
    with(|world| world.is_killing) == Some(true)
}

/// A task that others may wait for.
#[derive(Debug)]
pub(crate) struct Task(u64);

impl Task {
    pub fn join(self) {
        wait(|| with(|world| !world.alive.contains(&self.0)) != Some(false), u64::MAX);
    }
}

/// Another thread of the process whose task runs.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + 'static) -> Task {
    spawn_in(with(|world| world.host).unwrap_or_default(), name, run)
}

fn spawn_in(host: usize, name: &str, run: impl FnOnce() + 'static) -> Task {
    assert_ne!(name, "hamlyn-progress", "threads that share a node are not simulated");
    let run: Box<dyn FnOnce()> = Box::new(run);
    let start = |world: &mut World| {
        let id = world.next;
        world.next += 1;
        // A killed process starts nothing; the contents of the closure are dropped with it.
        if world.is_killing {
            return (id, Some(run));
        }
        world.alive.insert(id);
        world.started.push(Started { id, host, name: name.to_string(), run });
        (id, None)
    };
    let (id, not_run) = with(start).unwrap_or((0, None));
    drop(not_run);
    Task(id)
}

/// Kills a process, the number of its function in [`run`], perhaps the caller's own: none of its threads runs on, and its descriptors are
/// closed without a goodbye.
pub fn kill(host: usize) {
    with(|world| world.killed.push(host));
    yield_now();
}

/// Stops a process for a time.
pub fn stop(host: usize, time: Duration) {
    with(|world| {
        let until_ns = world.now_ns + time.as_nanos() as u64;
        world.stopped.push((host, until_ns));
    });
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Turns of tasks.
    pub turns: u64,
    /// Time by the simulated clock.
    pub ns: u64,
    /// A number that follows from the order and times of all turns.
    pub trace: u64,
}

/// A run that did not end: the tasks that wait for events that will not come.
#[derive(Debug)]
#[cfg_attr(not(feature = "simulation"), expect(dead_code, reason = "printed"))]
pub struct Stuck {
    /// The process and the thread of each.
    pub waiting: Vec<(usize, String)>,
    /// The turns and the time until then.
    pub after: Ran,
}

/// Runs processes, each of which begins with its function, until all their threads have ended. A
/// panic of one of them is the caller's. Within a run the threads of a process, its clock and its
/// sleeps are simulated: functions wait by calls of the library, or by this module's.
pub fn run(seed: u64, hosts: Vec<Box<dyn FnOnce()>>) -> Result<Ran, Stuck> {
    let begins = |(host, run)| Started { id: host as u64, host, name: "main".into(), run };
    let count = hosts.len() as u64;
    let begun_ns = 1_000_000_000;
    let world = World {
        random: Rng::new(seed),
        now_ns: begun_ns,
        host: 0,
        next: count,
        started: hosts.into_iter().enumerate().map(begins).collect(),
        alive: (0..count).collect(),
        rings: 0,
        has_moved: false,
        killed: Vec::new(),
        is_killing: false,
        locked: BTreeMap::new(),
        until_ns: begun_ns + LIMIT_NS,
        stopped: Vec::new(),
    };
    WORLD.with_borrow_mut(|place| {
        assert!(place.is_none(), "one simulation in a thread");
        *place = Some(world);
    });
    let ran = run_tasks(begun_ns);
    WORLD.with_borrow_mut(|place| *place = None);
    #[cfg(feature = "tls")]
    net::end();
    ran
}

fn run_tasks(begun_ns: u64) -> Result<Ran, Stuck> {
    let mut rows: Vec<SimRow> = Vec::new();
    let mut ran = Ran { turns: 0, ns: 0, trace: 0 };
    loop {
        for started in with(|world| core::mem::take(&mut world.started)).unwrap_or_default() {
            let Started { id, host, name, run } = started;
            let coroutine = Coroutine::new(move |yielder: &Yields, ()| {
                YIELDER.set(yielder);
                run();
                YIELDER.set(core::ptr::null());
            });
            rows.push(SimRow { id, host, name, coroutine, runs: true, until_ns: None });
        }
        let can_be_killed = |world: &mut World| {
            let World { killed, locked, .. } = world;
            let is_free = |host: &mut usize| locked.get(host).is_none_or(|count| *count == 0);
            killed.extract_if(.., is_free).collect::<Vec<_>>()
        };
        for host in with(can_be_killed).unwrap_or_default() {
            kill_now(host, &mut rows);
        }
        if rows.is_empty() {
            return Ok(ran);
        }
        let Some(chosen) = choose(&mut rows) else {
            let waiting = rows.iter().map(|row| (row.host, row.name.clone())).collect();
            forget(rows);
            return Err(Stuck { waiting, after: ran });
        };
        let row = &mut rows[chosen];
        ran.turns += 1;
        with(|world| {
            (world.host, world.has_moved) = (row.host, row.runs);
            ran.ns = world.now_ns - begun_ns;
            let step = world.now_ns ^ row.id << 48;
            ran.trace = (ran.trace ^ step).wrapping_mul(0x100_0000_01b3).rotate_left(7);
        });
        let resumed =
            std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| row.coroutine.resume(())));
        let is_over = match resumed {
            Ok(CoroutineResult::Yield(Pause::Gives)) => {
                (row.runs, row.until_ns) = (true, None);
                false
            }
            Ok(CoroutineResult::Yield(Pause::Waits { until_ns })) => {
                (row.runs, row.until_ns) = (false, Some(until_ns));
                false
            }
            Ok(CoroutineResult::Return(())) => true,
            Err(panic) => {
                YIELDER.set(core::ptr::null());
                forget(rows);
                WORLD.with_borrow_mut(|place| *place = None);
                #[cfg(feature = "tls")]
                net::end();
                std::panic::resume_unwind(panic);
            }
        };
        let has_moved = with(|world| world.has_moved) == Some(true) || is_over;
        if is_over {
            let row = rows.swap_remove(chosen);
            with(|world| world.alive.remove(&row.id));
        }
        if has_moved {
            let own = (!is_over).then_some(chosen);
            // The task that ran has looked since.
            let others = rows.iter_mut().enumerate().filter(|(i, _)| Some(*i) != own);
            others.for_each(|(_, row)| row.until_ns = None);
        }
        let is_late = with(|world| world.now_ns > world.until_ns) == Some(true);
        if ran.turns >= TURNS_MAX || is_late {
            let waiting = rows.iter().map(|row| (row.host, row.name.clone())).collect();
            forget(rows);
            return Err(Stuck { waiting, after: ran });
        }
    }
}

/// The task with the next turn: any that may find its event. If none may, the clock advances;
/// `None`: there is no deadline either.
fn choose(rows: &mut [SimRow]) -> Option<usize> {
    with(|world| {
        loop {
            let now_ns = world.now_ns;
            world.stopped.retain(|stop| stop.1 > now_ns);
            let is_stopped = |host| world.stopped.iter().any(|stop| stop.0 == host);
            let can: Vec<usize> = (0..rows.len())
                .filter(|i| !is_stopped(rows[*i].host))
                .filter(|i| rows[*i].until_ns.is_none_or(|until_ns| until_ns <= now_ns))
                .collect();
            if !can.is_empty() {
                // Now and then a turn takes long.
                let is_long = world.random.below(200) == 0;
                let by = if is_long { 200_000 } else { 200 };
                world.now_ns += world.random.below(by);
                return Some(can[world.random.below(can.len() as u64) as usize]);
            }
            let next = rows.iter().filter_map(|row| row.until_ns);
            let next =
                next.chain(world.stopped.iter().map(|stop| stop.1)).filter(|at| *at > now_ns);
            match next.min() {
                None | Some(u64::MAX) => return None,
                Some(at) => world.now_ns = at,
            }
        }
    })
    .flatten()
}

fn kill_now(host: usize, rows: &mut Vec<SimRow>) {
    with(|world| (world.is_killing, world.host) = (true, host));
    #[cfg(feature = "tls")]
    net::sever(host);
    while let Some(at) = rows.iter().position(|row| row.host == host) {
        // The values on its stack are dropped, as if a panic went through it.
        let row = rows.swap_remove(at);
        with(|world| world.alive.remove(&row.id));
        drop(row.coroutine);
    }
    let dropped = with(|world| {
        let (of_it, others) =
            core::mem::take(&mut world.started).into_iter().partition(|s| s.host == host);
        world.started = others;
        let of_it: Vec<Started> = of_it;
        of_it
    });
    for started in dropped.into_iter().flatten() {
        with(|world| world.alive.remove(&started.id));
        drop(started);
    }
    with(|world| world.is_killing = false);
    rows.iter_mut().for_each(|row| row.until_ns = None);
}

/// The values on the stacks stay there: the run has failed.
fn forget(rows: Vec<SimRow>) {
    rows.into_iter().for_each(core::mem::forget);
}
