//! Other services of the operating system: barriers, pinning, limits, clocks, event descriptors.

use super::call::OfCall;
use super::descriptor::Descriptor;
use crate::link::cells::{AtomicU64, Word};
use crate::link::sleep::Elsewhere;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{MembarrierCommand, futex};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::vec::Vec;

/// Registers this process for the barriers of others, once. `false` if the kernel has none: then
/// senders fence once a batch.
///
/// ```
/// if !hamlyn::register_barrier() {
///     println!("senders fence once a batch: the kernel has no barriers for others");
/// }
/// ```
pub fn register_barrier() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        // Miri does not know this call.
        if cfg!(miri) {
            return false;
        }
        let query = rustix::thread::membarrier_query();
        query.contains_command(MembarrierCommand::GlobalExpedited)
            && rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    })
}

/// A full fence on every core that runs a registered process: their earlier stores become visible
/// to this thread. `false` if it is not available; nothing has then happened.
pub fn barrier() -> bool {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if super::sim::is_running() {
        super::sim::barrier();
        return true;
    }
    register_barrier() && rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// The processor on which the calling thread runs, by the kernel's number; without a system call.
#[inline]
pub fn processor() -> u32 {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if let Some(processor) = super::sim::processor() {
        super::sim::may_give_way();
        return processor;
    }
    rustix::thread::sched_getcpu() as u32
}

/// The soft limit on descriptors was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRaised {
    /// Before.
    pub from: u64,
    /// Now: the hard limit.
    pub to: u64,
}

/// The soft and the hard limit on descriptors. An error if a sandbox refuses to tell, where
/// `rustix` would panic.
fn descriptor_limits() -> io::Result<(u64, u64)> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is live for the call, which writes nothing else.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits) } != 0 {
        return Err(io::Error::last_os_error()).of_call("getrlimit");
    }
    Ok((limits.rlim_cur, limits.rlim_max))
}

/// Raises the soft limit on descriptors to the hard one if `needed` is above it, and reports that.
/// `None`: it stays unchanged, also if the system does not allow a change. An error if the system
/// does not tell the limits.
pub fn raise_descriptor_limit(needed: u64) -> io::Result<Option<LimitRaised>> {
    let (from, to) = descriptor_limits()?;
    if needed <= from || from == to {
        return Ok(None);
    }
    let limits = libc::rlimit { rlim_cur: to, rlim_max: to };
    // SAFETY: the structure is live for the call, which reads it alone.
    let is_raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limits) } == 0;
    Ok(is_raised.then_some(LimitRaised { from, to }))
}

/// The soft limit on descriptors. An error if the system does not tell.
pub fn descriptor_limit() -> io::Result<u64> {
    Ok(descriptor_limits()?.0)
}

/// Mappings that a process may have (`vm.max_map_count`); if that is hidden, the kernel's default.
pub fn mapping_limit() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65_530)
}

/// Denies other processes of the same user the kernel's means of writing this one's memory
/// (ptrace, /proc/self/mem), and core dumps. Undone by an `exec`.
pub fn make_undumpable() -> io::Result<()> {
    let not = rustix::process::DumpableBehavior::NotDumpable;
    Ok(rustix::process::set_dumpable_behavior(not)?)
}

/// Keeps handlers of signals to the process from running on the calling thread and on those that it
/// starts.
pub fn block_signals() {
    let own =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    let mut signals = core::mem::MaybeUninit::uninit();
    // SAFETY: the set is filled before anything reads it; the mask is the calling thread's alone.
    unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        for signal in own {
            libc::sigdelset(signals.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, signals.as_ptr(), core::ptr::null_mut());
    }
}

/// Nanoseconds of a clock that never goes back.
#[inline]
pub fn monotonic_ns() -> u64 {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if let Some(now_ns) = super::sim::now_ns() {
        return now_ns;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The number of a user, from the system's user database.
pub fn uid_of_user(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    let mut buffer = std::vec![0 as libc::c_char; 16 << 10];
    let mut entry = core::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = core::ptr::null_mut();
    // SAFETY: name, entry, buffer (with its length) and result are live for the call, which
    // writes nothing else.
    let rc = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        )
    };
    if rc != 0 || found.is_null() {
        return None;
    }
    // SAFETY: a result that is not null points to the entry, which the call has then filled in.
    Some(unsafe { entry.assume_init_ref() }.pw_uid)
}

/// Random bytes from the kernel.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if super::sim::random(&mut bytes) {
        return Ok(bytes);
    }
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(std::format!("{e}")))?;
    Ok(bytes)
}

/// A descriptor that becomes readable after a while.
#[derive(Debug)]
pub struct Timer(Descriptor);

impl Timer {
    /// A timer that is not set.
    pub fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).of_call("timerfd_create")?;
        Ok(Self(timer.into()))
    }

    /// Readable in `ns` nanoseconds, and not before; never if 0.
    pub fn set(&self, ns: u64) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};
        let never = timespec(0);
        let at = Itimerspec { it_interval: never, it_value: timespec(ns) };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &at)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) fn timespec(ns: u64) -> rustix::time::Timespec {
    rustix::time::Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

/// A descriptor that is readable from a ring until it is silenced.
#[derive(Debug)]
pub struct Bell(Descriptor);

impl Bell {
    /// A silent bell.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags).of_call("eventfd2")?.into()))
    }

    /// The same bell, for another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.as_fd().try_clone_to_owned().of_call("fcntl with F_DUPFD_CLOEXEC")?.into()))
    }

    /// Whether its descriptor is still one of the kernel's own kind. `false`: the program has
    /// closed it, or put something else in its place.
    pub fn is_there(&self) -> bool {
        let stat = rustix::fs::fstat(&self.0);
        stat.is_ok_and(|stat| stat.st_mode & libc::S_IFMT == 0)
    }

    /// Makes it readable.
    pub fn ring(&self) {
        // Only 2^64 rings can make this fail: then it is readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it silent.
    pub fn silence(&self) {
        self.take_ring();
    }

    /// Makes it silent; returns whether it was readable.
    pub fn take_ring(&self) -> bool {
        rustix::io::read(&self.0, &mut [0u8; 8]).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A word on which threads of this process sleep, beside words of other processes (see
/// [`wait_for_words`]).
#[derive(Debug)]
pub struct WakeWord {
    value: AtomicU32,
    sleepers: AtomicU32,
    /// A thread that waits for this word and sleeps only on another process's word.
    elsewhere: Elsewhere,
    /// The process whose threads sleep.
    process: u32,
}

impl Default for WakeWord {
    fn default() -> Self {
        let process = std::process::id();
        Self {
            value: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            elsewhere: Elsewhere::default(),
            process,
        }
    }
}

/// Wakes of a thread that sleeps on another word, before the waker yields to it, and before it
/// naps.
const WAKES_AT_ONCE: u32 = 16;
const WAKES_BEFORE_NAPS: u32 = 64;

impl WakeWord {
    /// Read it before looking for the word's event, and pass it to [`wait_for_words`].
    pub fn value(&self) -> u32 {
        self.value.load(Ordering::SeqCst)
    }

    /// Wakes the threads that sleep on the word, and keeps those that have read its value from
    /// sleeping; returns whether there was a sleeper.
    pub fn wake(&self) -> bool {
        self.value.fetch_add(1, Ordering::SeqCst);
        #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
        super::sim::ring();
        // A sleeper counts itself before the kernel compares the value.
        let sleeps = self.sleepers.load(Ordering::SeqCst) > 0;
        if sleeps {
            let _ = futex::wake(&self.value, futex::Flags::PRIVATE, i32::MAX as u32);
        }
        let slept_elsewhere = self.elsewhere.wake(|place, calls| {
            // A peer may have threads of its own wait there, in front of this one.
            wake_at(place, if calls < WAKES_AT_ONCE { WAKE_MAX } else { i32::MAX as u32 });
            match calls {
                0..WAKES_AT_ONCE => {}
                WAKES_AT_ONCE..WAKES_BEFORE_NAPS => super::thread::yield_now(),
                _ => {
                    std::thread::sleep(core::time::Duration::from_micros(50));
                    // A thread that slept when its process forked is not in the child.
                    return std::process::id() == self.process;
                }
            }
            true
        });
        sleeps || slept_elsewhere
    }
}

/// Most words of other processes that [`wait_for_words`] waits for: the kernel takes 128, and two
/// are reserved for words of this process.
pub const WORDS_MAX: usize = 126;

/// Most threads that a call of [`wake_word`] wakes on one word of this process. A process that maps
/// the page can have any number sleep there, and this process would pay for them.
const WAKE_MAX: u32 = 8;

/// The half of a shared word that the kernel compares.
fn futex_of(word: &AtomicU64) -> &AtomicU32 {
    let low_half = usize::from(cfg!(target_endian = "big"));
    // SAFETY: a word of 8 bytes holds two of 4, aligned, and lives as long. The half is not read or
    // written through this reference; the kernel gets its address.
    unsafe { &*core::ptr::from_ref(word).cast::<AtomicU32>().add(low_half) }
}

/// Wakes at most `most` threads that sleep on the word at `place`, which may be mapped no more.
fn wake_at(place: u64, most: u32) {
    // SAFETY: the kernel looks whether anything is mapped there, and reads and writes nothing of
    // it; a thread that is woken without need looks once more.
    unsafe {
        libc::syscall(libc::SYS_futex, place as usize, libc::FUTEX_WAKE, most);
    }
}

/// Wakes the process that sleeps on a shared word, which the caller has changed.
pub fn wake_word(word: &AtomicU64) {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if super::sim::is_running() {
        super::sim::ring();
        return super::sim::may_give_way();
    }
    let _ = futex::wake(futex_of(word), futex::Flags::empty(), WAKE_MAX);
}

/// Sleeps until one of these words has changed, or a waker wakes the sleepers on it, at most until
/// `deadline_ns` of [`monotonic_ns`] (`u64::MAX`: without a limit). `shared` are words of other
/// processes, at most [`WORDS_MAX`], with the lower halves of their values; `own` at most two of
/// this process. May return early. An error: this kernel (before Linux 5.16), or a filter of its
/// calls, cannot do that, and there was no sleep.
pub fn wait_for_words<'w, W: Word + 'w>(
    shared: impl IntoIterator<Item = (&'w W, u32)>,
    own: &[(&WakeWord, u32)],
    deadline_ns: u64,
) -> io::Result<()> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if super::sim::is_running() {
        let shared: Vec<_> = shared.into_iter().collect();
        let low = |word: &W| futex_of(word.word()).load(Ordering::SeqCst);
        let differ = || {
            shared.iter().any(|(word, value)| low(word) != *value)
                || own.iter().any(|(word, value)| word.value() != *value)
        };
        super::sim::wait_for_words(differ, deadline_ns);
        return Ok(());
    }
    let mut shared = shared.into_iter();
    let (first, second) = (shared.next(), shared.next());
    if let (Some((word, value)), None) = (&first, &second)
        && let Some(slept) = wait_for_word(futex_of(word.word()), *value, own, deadline_ns)
    {
        return slept;
    }
    let shared = first.into_iter().chain(second).chain(shared);
    let mut waits: Vec<futex::Wait> = Vec::with_capacity(4);
    let mut add = |word: &AtomicU32, value: u32, flags| {
        let mut wait = futex::Wait::new();
        wait.val = value.into();
        wait.uaddr = futex::WaitPtr::new(core::ptr::from_ref(word).cast_mut().cast());
        wait.flags = futex::WaitFlags::SIZE_U32 | flags;
        waits.push(wait);
    };
    for (word, value) in shared {
        add(futex_of(word.word()), value, futex::WaitFlags::empty());
    }
    for (word, value) in own {
        add(&word.value, *value, futex::WaitFlags::PRIVATE);
        word.sleepers.fetch_add(1, Ordering::SeqCst);
    }
    let deadline = (deadline_ns != u64::MAX).then(|| timespec(deadline_ns));
    let clock = rustix::thread::ClockId::Monotonic;
    let none = futex::WaitvFlags::empty();
    let slept = futex::waitv(&waits, none, deadline.as_ref(), clock);
    for (word, _) in own {
        word.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
    slept.map_or_else(woken_early, |_| Ok(()))
}

/// Sleeps on one word of another process, which is cheaper for the kernel than several; wakers of
/// this process's words wake the thread there. `None`: another thread does so already, and there
/// was no sleep.
fn wait_for_word(
    word: &AtomicU32,
    value: u32,
    own: &[(&WakeWord, u32)],
    deadline_ns: u64,
) -> Option<io::Result<()>> {
    let place = core::ptr::from_ref(word) as u64;
    let begun = own.iter().take_while(|(own, _)| own.elsewhere.begin(place)).count();
    let is_due = || own.iter().all(|(own, value)| own.value() == *value);
    let slept = (begun == own.len()).then(|| {
        if !is_due() {
            return Ok(());
        }
        let deadline = (deadline_ns != u64::MAX).then(|| timespec(deadline_ns));
        let any = core::num::NonZeroU32::MAX;
        match futex::wait_bitset(word, futex::Flags::empty(), value, deadline.as_ref(), any) {
            Ok(()) => Ok(()),
            Err(e) => woken_early(e),
        }
    });
    own[..begun].iter().for_each(|(own, _)| own.elsewhere.leave());
    slept
}

/// Turns results that are not errors of a sleep on words into success.
fn woken_early(e: rustix::io::Errno) -> io::Result<()> {
    use rustix::io::Errno;
    match e {
        Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR => Ok(()),
        e => Err(e.into()),
    }
}

/// Whether [`wait_for_words`] works here.
pub fn can_wait_for_words() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let word = WakeWord::default();
        let none = core::iter::empty::<(&std::sync::Arc<AtomicU64>, u32)>();
        wait_for_words(none, &[(&word, 1)], 0).is_ok()
    })
}

/// Waits until `fd` is ready, at most until `deadline_ns` of [`monotonic_ns`]. `false`: it is not.
pub fn wait_for(fds: &[(BorrowedFd<'_>, bool)], deadline_ns: u64) -> io::Result<bool> {
    #[cfg(any(all(test, not(loom), not(miri)), feature = "simulation"))]
    if super::sim::is_running() && deadline_ns != 0 {
        let mut looked = Ok(false);
        let look = || {
            looked = wait_for(fds, 0);
            !matches!(looked, Ok(false))
        };
        super::sim::wait(look, deadline_ns);
        return looked;
    }
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let now = monotonic_ns();
        let left = deadline_ns.saturating_sub(now);
        let timeout = timespec(left);
        let mut polled: Vec<PollFd<'_>> = fds
            .iter()
            .map(|(fd, write)| {
                PollFd::from_borrowed_fd(*fd, if *write { PollFlags::OUT } else { PollFlags::IN })
            })
            .collect();
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) if left == 0 => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(e.into()),
        }
    }
}

pub use super::kernel::{KernelFeature, KernelFeatures};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_offers_is_a_row_each() {
        let features = KernelFeatures::detect();
        assert!(features.rows.iter().any(|row| row.name == "pidfd_open" && row.present));
        assert_eq!(std::format!("{features}").lines().count(), features.rows.len() + 2);
    }

    #[test]
    fn a_bell_is_readable_while_it_has_been_rung() {
        let bell = Bell::new().unwrap();
        assert!(!wait_for(&[(bell.as_fd(), false)], 0).unwrap());
        bell.ring();
        bell.ring();
        assert!(wait_for(&[(bell.as_fd(), false)], 0).unwrap());
        bell.silence();
        assert!(!wait_for(&[(bell.as_fd(), false)], 0).unwrap());
    }

    // In turns a word of another process and one of this process change: also just before the
    // sleep, since there is no signal of its beginning. Beside it another thread sleeps on the same
    // words.
    #[test]
    fn whoever_sleeps_on_one_word_of_others_is_woken_by_its_own_process_too() {
        const WAKES: u32 = 20_000;
        let (bell, own) = (std::sync::Arc::new(AtomicU64::new(0)), WakeWord::default());
        let heard = [AtomicU32::new(0), AtomicU32::new(0)];
        std::thread::scope(|scope| {
            for heard in &heard {
                let (bell, own) = (&bell, &own);
                scope.spawn(move || {
                    let mut seen = 0;
                    while seen < WAKES {
                        let (at, value) = (bell.load(Ordering::SeqCst) as u32, own.value());
                        if at + value == seen {
                            let slept = wait_for_words([(bell, at)], &[(own, value)], u64::MAX);
                            // On a kernel without the call, no thread sleeps in this way.
                            slept.unwrap_or_else(|_| std::thread::yield_now());
                        }
                        seen = bell.load(Ordering::SeqCst) as u32 + own.value();
                        heard.store(seen, Ordering::SeqCst);
                    }
                });
            }
            for wake in 1..=WAKES {
                if wake % 2 == 0 {
                    bell.fetch_add(1, Ordering::SeqCst);
                    wake_word(&bell);
                } else {
                    own.wake();
                }
                while heard.iter().any(|heard| heard.load(Ordering::SeqCst) < wake) {
                    std::thread::yield_now();
                }
            }
        });
    }
}
