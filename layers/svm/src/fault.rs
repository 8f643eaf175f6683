//! The handler of faults in the shared space.
//!
//! ```text
//!   an access to a page that is not there   -> SIGBUS (userfaultfd) or SIGSEGV (protection)
//!   in the shared space                     -> `take`, on a stack of its own, then the access again
//!   elsewhere, or sent by a process         -> the handler that was there before
//! ```
//! Other signals wait meanwhile. `errno` stays.
//!
//! Never: the handler itself allocates, or takes a lock.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the handler's stack: a fetch from another host goes through TLS.
const STACK_BYTES: usize = 512 << 10;
const PAGE: usize = 4096;

/// Takes a fault at an address of the shared space.
pub type Take = fn(usize);

static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static TAKE: AtomicUsize = AtomicUsize::new(0);
/// The earlier disposition. It is written while no fault is taken here, since `END` is 0.
static mut EARLIER: MaybeUninit<libc::sigaction> = MaybeUninit::zeroed();

/// The handler, for the thread that made it. Dropped, what was there before is there again.
pub struct Handler {
    signal: libc::c_int,
    stack: *mut libc::c_void,
    earlier_stack: libc::stack_t,
}

fn checked(result: libc::c_int, doing: &str) -> io::Result<()> {
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("{doing}: {error}")))
}

impl Handler {
    /// For one range of addresses of this process.
    pub fn new(signal: libc::c_int, start: usize, bytes: usize, take: Take) -> io::Result<Self> {
        // SAFETY: a new mapping, whose first page is taken away from the stack's end.
        let stack = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let stack = libc::mmap(null_mut(), STACK_BYTES, access, flags, -1, 0);
            if stack == libc::MAP_FAILED {
                checked(-1, "a stack for faults")?;
            }
            libc::mprotect(stack, PAGE, libc::PROT_NONE);
            stack
        };
        let ours = libc::stack_t { ss_sp: stack, ss_flags: 0, ss_size: STACK_BYTES };
        let mut handler =
            // SAFETY: zeros are a stack.
            Self { signal: 0, stack, earlier_stack: unsafe { std::mem::zeroed() } };
        // SAFETY: the stack is there until the handler is dropped.
        let set = unsafe { libc::sigaltstack(&ours, &mut handler.earlier_stack) };
        checked(set, "the stack for faults")?;
        TAKE.store(take as usize, Ordering::Relaxed);
        START.store(start, Ordering::Relaxed);
        // SAFETY: the structure is filled; the handler is async-signal-safe as far as `take` is.
        let set = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigfillset(&mut action.sa_mask);
            for synchronous in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
                libc::sigdelset(&mut action.sa_mask, synchronous);
            }
            libc::sigaction(signal, &action, (&raw mut EARLIER).cast())
        };
        checked(set, "the handler of faults")?;
        handler.signal = signal;
        END.store(start + bytes, Ordering::Release);
        Ok(handler)
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        END.store(0, Ordering::Release);
        // SAFETY: as they were before; this thread does not run on the stack that goes.
        unsafe {
            if self.signal != 0 {
                libc::sigaction(self.signal, (&raw const EARLIER).cast(), null_mut());
                libc::sigaltstack(&self.earlier_stack, null_mut());
            }
            libc::munmap(self.stack, STACK_BYTES);
        }
    }
}

unsafe extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel's words; the thread's own errno.
    let (address, code, errno) =
        unsafe { ((*info).si_addr() as usize, (*info).si_code, *libc::__errno_location()) };
    let end = END.load(Ordering::Acquire);
    // A signal that a process sent has no address: its code is not above 0.
    if code > 0 && address < end && address >= START.load(Ordering::Relaxed) {
        // SAFETY: `new` stored a function of this type before it stored the end.
        let take: Take = unsafe { std::mem::transmute(TAKE.load(Ordering::Relaxed)) };
        take(address);
    } else {
        // SAFETY: as it came from the kernel.
        unsafe { pass_on(signal, info, context) };
    }
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Does what would have been done without this handler.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: it was written before this handler was there; the old handler gets the kernel's arguments, with
    // the signals blocked that it asked for.
    unsafe {
        let earlier = &*(&raw const EARLIER).cast::<libc::sigaction>();
        if matches!(earlier.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            libc::sigaction(signal, earlier, null_mut());
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
            return; // The access happens again, and ends the process.
        }
        let context_of = context.cast::<libc::ucontext_t>();
        libc::pthread_sigmask(libc::SIG_SETMASK, &(*context_of).uc_sigmask, null_mut());
        libc::pthread_sigmask(libc::SIG_BLOCK, &earlier.sa_mask, null_mut());
        if earlier.sa_flags & libc::SA_SIGINFO != 0 {
            type Told = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            let told: Told = std::mem::transmute(earlier.sa_sigaction);
            told(signal, info, context);
        } else {
            let told: extern "C" fn(libc::c_int) = std::mem::transmute(earlier.sa_sigaction);
            told(signal);
        }
    }
}
