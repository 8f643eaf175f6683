//! A lock that costs its only user two ordinary stores (see [`crate::link::bias`]), and several
//! users the price of a mutex.
//!
//! It begins as a mutex. A thread that takes it often, with no other in between, becomes the owner
//! of a bias; the first other thread ends that. A lock has a few biases, each for one owner in its
//! life: a program may set up in one thread a value that another uses. If the kernel has no barrier
//! for every core, it stays a mutex.

use super::sys;
use super::thread;
use crate::link::bias::Bias;
use crate::link::sleep::Barrier;
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// Times that a thread takes the lock, with no other in between, until it is biased towards it.
const TURNS_TO_BIAS: u32 = 64;
/// Owners that a lock may have in its life, one after the other.
const OWNERS_MAX: usize = 4;
/// Looks at an owner that is inside, before the waiting thread naps.
const SPINS: u32 = 1000;
const NAP: Duration = Duration::from_micros(50);

/// A value that one thread at a time has. If a thread panics while it holds the lock, the value
/// stays as it was at that moment.
#[derive(Debug, Default)]
pub struct Lock<T> {
    /// At most one of them has an owner; those before it have lost theirs.
    biases: [Bias; OWNERS_MAX],
    /// The index of the bias that had an owner last. A thread that reads an older one finds it
    /// without an owner.
    latest: AtomicUsize,
    mutex: Mutex<Candidate>,
    value: UnsafeCell<T>,
}

/// The thread that has taken the mutex lately.
#[derive(Debug, Default)]
struct Candidate {
    thread: u64,
    turns: u32,
    /// The number of biases that have had an owner.
    owners: usize,
}

/// The value, until this is dropped.
#[derive(Debug)]
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
    held: LockHold<'a>,
    /// A guard is the value, borrowed exclusively. Without this two threads that share a guard
    /// would share a `T` that is not `Sync`, because `lock` alone may be shared.
    value: PhantomData<&'a mut T>,
}

/// The way in which a guard has its lock. A `MutexGuard` stays in its thread, and so does this: a
/// bias belongs to a thread as well.
#[derive(Debug)]
enum LockHold<'a> {
    Bias(&'a Bias),
    Mutex(MutexGuard<'a, Candidate>),
    /// The guard has gone on as another.
    No,
}

// SAFETY: a guard is the only way to the value, and one thread at a time has a guard: the holder of
// the mutex, once the bias is revoked and its owner not inside, or the owner of the bias while it
// is not revoked (`link::bias`, and its model). So sharing the lock sends the value.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the value is owned.
unsafe impl<T: Send> Send for Lock<T> {}

/// A number that no other living thread has, and that is not 0.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
#[inline]
fn this_thread() -> u64 {
    let block: u64;
    // SAFETY: by the ABI for thread-local storage on x86-64, the word at fs:0 is the address of the
    // thread's control block, which is its own as long as it lives. Nothing else is read. In a
    // shared library a thread-local variable is a call instead, which costs as much as the rest of
    // the lock.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) block, options(pure, nomem, nostack, preserves_flags));
    }
    block
}

/// The same, for platforms without access to a thread's own word.
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", not(miri))))]
#[inline]
fn this_thread() -> u64 {
    std::thread_local! {
        static MARK: u8 = const { 0 };
    }
    // During a thread's last moments it may be gone: then there is no bias.
    MARK.try_with(|mark| core::ptr::from_ref(mark) as u64).unwrap_or(u64::MAX)
}

impl<T> Lock<T> {
    /// A lock around a value.
    pub fn new(value: T) -> Self {
        let mutex = Mutex::new(Candidate::default());
        let (biases, latest) = Default::default();
        Self { biases, latest, mutex, value: UnsafeCell::new(value) }
    }

    /// The value, if no thread has it.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        let bias = self.latest();
        if bias.enter(this_thread(), Barrier::Asymmetric) {
            return Some(LockGuard::new(self, LockHold::Bias(bias)));
        }
        self.try_lock_mutex()
    }

    #[inline]
    fn latest(&self) -> &Bias {
        &self.biases[self.latest.load(Ordering::Relaxed) % OWNERS_MAX]
    }

    #[inline(never)]
    fn try_lock_mutex(&self) -> Option<LockGuard<'_, T>> {
        let held = self.try_mutex()?;
        if self.end_bias().is_inside() {
            return None;
        }
        Some(self.taken(held))
    }

    fn try_mutex(&self) -> Option<MutexGuard<'_, Candidate>> {
        match self.mutex.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, as soon as no thread has it. A thread that has it already waits for ever.
    #[cold]
    pub fn lock(&self) -> LockGuard<'_, T> {
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        let held = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.wait_for_owner();
        self.taken(held)
    }

    /// The caller has the mutex. Returns the bias that had an owner last; the owner may still be
    /// inside.
    fn end_bias(&self) -> &Bias {
        let bias = self.latest();
        // The kernel did this before there was a bias; if it refuses now, the owner's store becomes
        // visible after a while none the less, for a core does not keep stores to itself for long.
        if bias.revoke() && !sys::barrier() {
            thread::sleep(Duration::from_millis(10));
        }
        bias
    }

    /// The caller, who has the lock by `bias`, has it by the mutex from now on, without a moment in
    /// between; `None`: another has the mutex.
    fn exchange(&self, bias: &Bias) -> Option<MutexGuard<'_, Candidate>> {
        let held = self.try_mutex()?;
        // No barrier: the thread inside is this one.
        bias.revoke();
        bias.leave();
        Some(held)
    }

    /// The caller has the mutex, and the lock afterwards.
    fn wait_for_owner(&self) {
        let bias = self.end_bias();
        let mut looks = 0;
        while bias.is_inside() {
            looks += 1;
            if looks < SPINS {
                core::hint::spin_loop();
            } else {
                thread::sleep(NAP);
            }
        }
    }

    /// The caller has the lock; a thread that has it to itself becomes the owner of a bias, and has
    /// it through that.
    fn taken<'a>(&'a self, mut held: MutexGuard<'a, Candidate>) -> LockGuard<'a, T> {
        let thread = this_thread();
        if held.thread != thread {
            (held.thread, held.turns) = (thread, 0);
        }
        held.turns += 1;
        if held.turns < TURNS_TO_BIAS || held.owners == OWNERS_MAX || thread == u64::MAX {
            return LockGuard::new(self, LockHold::Mutex(held));
        }
        held.turns = 0;
        if !sys::barrier() {
            held.owners = OWNERS_MAX;
            return LockGuard::new(self, LockHold::Mutex(held));
        }
        self.latest.store(held.owners, Ordering::Relaxed);
        let bias = &self.biases[held.owners];
        held.owners += 1;
        bias.set(thread);
        LockGuard::new(self, LockHold::Bias(bias))
    }

    /// The value, which no other thread can have meanwhile.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value itself.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<'a, T> LockGuard<'a, T> {
    #[inline]
    fn new(lock: &'a Lock<T>, held: LockHold<'a>) -> Self {
        Self { lock, held, value: PhantomData }
    }

    /// Waits on a condition variable without the lock, at most `timeout`. May return early. A bias
    /// ends: the notifying thread takes the lock.
    pub fn wait(mut self, condition: &Condvar, timeout: Duration) -> Self {
        let held = match core::mem::replace(&mut self.held, LockHold::No) {
            LockHold::Bias(bias) => match self.lock.exchange(bias) {
                Some(held) => held,
                None => {
                    // Another thread waits for this one to go: it has the mutex, or is about to.
                    self.held = LockHold::Bias(bias);
                    let lock = self.lock;
                    drop(self);
                    return lock.lock();
                }
            },
            LockHold::Mutex(held) => held,
            LockHold::No => return self,
        };
        let lock = self.lock;
        // This guard has become empty: the mutex goes on with `held`.
        drop(self);
        let waited = condition.wait_timeout(held, timeout);
        let (held, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // Another thread may have become the owner of the bias meanwhile.
        lock.wait_for_owner();
        Self::new(lock, LockHold::Mutex(held))
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, as said at `Sync`, and is borrowed.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, as said at `Sync`, and is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let LockHold::Bias(bias) = self.held {
            bias.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use static_assertions::{assert_impl_all, assert_not_impl_any};
    use std::sync::Arc;

    // A lock makes one thread at a time of many, so it may be shared if its value may be sent.
    assert_impl_all!(Lock<Cell<u8>>: Send, Sync);
    assert_not_impl_any!(Lock<std::rc::Rc<u8>>: Send, Sync);
    // A guard shares its value with every thread that shares the guard, and never leaves its
    // thread.
    assert_impl_all!(LockGuard<'static, u8>: Sync);
    assert_not_impl_any!(LockGuard<'static, u8>: Send);
    assert_not_impl_any!(LockGuard<'static, Cell<u8>>: Send, Sync);

    const ROUNDS: u64 = if cfg!(miri) { 100 } else { 20_000 };

    #[test]
    fn each_thread_that_lives_has_a_number_of_its_own() {
        let mine = this_thread();
        assert!(mine != 0);
        let all_live = std::sync::Barrier::new(4);
        let mut numbers = std::thread::scope(|scope| {
            let tell = || {
                let number = this_thread();
                all_live.wait();
                (number, this_thread())
            };
            let threads = [(); 4].map(|()| scope.spawn(tell));
            threads.map(|thread| thread.join().unwrap()).to_vec()
        });
        assert!(numbers.iter().all(|(before, after)| before == after));
        numbers.push((mine, this_thread()));
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 5);
        assert!(numbers.contains(&(mine, mine)));
    }

    #[test]
    fn many_threads_count_without_losing_one() {
        for threads in [1, 2, 4] {
            let lock = Arc::new(Lock::new(0u64));
            let handles: std::vec::Vec<_> = (0..threads)
                .map(|i| {
                    let lock = lock.clone();
                    std::thread::spawn(move || {
                        // The first has the lock to itself for a while, and its bias.
                        std::thread::sleep(Duration::from_millis(5 * i));
                        for _ in 0..ROUNDS {
                            *lock.lock() += 1;
                        }
                    })
                })
                .collect();
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            assert_eq!(*lock.lock(), threads * ROUNDS);
        }
    }

    #[test]
    fn a_lock_is_biased_towards_its_only_thread_until_another_comes() {
        let lock = Arc::new(Lock::new(()));
        for _ in 0..TURNS_TO_BIAS {
            drop(lock.lock());
        }
        let is_biased = |lock: &Lock<()>| matches!(lock.lock().held, LockHold::Bias(_));
        assert_eq!(is_biased(&lock), sys::barrier());
        let held = lock.lock();
        let other = lock.clone();
        let waiting = std::thread::spawn(move || drop(other.lock()));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!waiting.is_finished());
        drop(held);
        waiting.join().unwrap();
        assert!(!is_biased(&lock));
        assert!(lock.try_lock().is_some());
        // Others become owners after it, as long as it has biases left. All of them live until the
        // end: a thread that has ended gives its number to the next one.
        let (told, hears) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let end = Arc::new(std::sync::RwLock::new(()));
            let until_here = end.clone();
            let _until_here = until_here.write().unwrap();
            for owner in 1..2 * OWNERS_MAX {
                let (lock, told, end) = (lock.clone(), told.clone(), end.clone());
                scope.spawn(move || {
                    for _ in 0..TURNS_TO_BIAS {
                        drop(lock.lock());
                    }
                    told.send(is_biased(&lock)).unwrap();
                    drop(end.read());
                });
                let owned = hears.recv().unwrap();
                assert_eq!(owned, owner < OWNERS_MAX && sys::barrier(), "owner {owner}");
            }
        });
    }

    #[test]
    fn an_owner_that_waits_lets_others_have_the_lock_and_is_notified() {
        for others in 0..4 {
            let (lock, condition) = (Lock::new(0), Condvar::new());
            let own = || {
                let mut guard = lock.lock();
                for _ in 0..TURNS_TO_BIAS {
                    drop(guard);
                    guard = lock.lock();
                }
                guard
            };
            let mut guard = own();
            assert_eq!(matches!(guard.held, LockHold::Bias(_)), sys::barrier());
            std::thread::scope(|scope| {
                for _ in 0..others {
                    scope.spawn(|| {
                        *lock.lock() += 1;
                        condition.notify_all();
                    });
                }
                // Without a time limit: a thread that waits while holding the lock waits for ever.
                while *guard < others {
                    guard = guard.wait(&condition, Duration::from_secs(3600));
                }
                drop(guard);
            });
            // No thread comes: the time limit has passed, and the lock is held again.
            *own().wait(&condition, Duration::from_millis(1)) += 1;
            assert_eq!(*lock.lock(), others + 1);
        }
    }

    #[test]
    fn a_lock_that_a_thread_has_to_itself_goes_to_another_when_it_is_free() {
        let lock = Lock::new(0);
        for _ in 0..TURNS_TO_BIAS {
            drop(lock.lock());
        }
        let mut own = lock.try_lock().unwrap();
        if !sys::barrier() {
            return assert!(matches!(own.held, LockHold::Mutex(_)));
        }
        *own += 1;
        let LockHold::Bias(bias) = own.held else { panic!("no bias after so many turns") };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| assert!(lock.try_lock().is_none()));
            other.join().expect("another has it to himself");
            assert!(bias.is_inside(), "it does no more, for another has tried");
            let waiting = scope.spawn(|| *lock.lock() += 1);
            while bias.owner_is(this_thread()) {
                std::thread::yield_now();
            }
            assert!(!waiting.is_finished(), "two threads have the value");
            drop(own);
            waiting.join().unwrap();
        });
        assert!(!bias.enter(this_thread(), Barrier::Asymmetric), "it is nobody's own any more");
        assert_eq!(*lock.lock(), 2);
    }

    #[test]
    fn a_thread_that_holds_the_lock_is_not_given_it_again() {
        let lock = Lock::new(());
        for _ in 0..3 * TURNS_TO_BIAS {
            let _held = lock.lock();
            assert!(lock.try_lock().is_none());
        }
    }
}
