/* Shared virtual memory on Hamlyn: processes that share no memory have one address space, with locks and barriers
 * (M. Blumrich et al., "Design Choices in the SHRIMP System", 1998, 3 and 4.2: HLRC, HLRC-AU and AURC; Y. Zhou,
 * L. Iftode, K. Li, "Performance Evaluation of Two Home-Based Lazy Release Consistency Protocols", 1996).
 *
 * The shared space lies at one address in all processes. Programs load from it, and store to it, as to other memory.
 * A process sees another's stores after both have synchronised: the writer released (svm_unlock, svm_barrier,
 * svm_flag_set, svm_signal), and then the reader acquired (svm_lock, svm_barrier, svm_flag_wait, svm_wait) the same
 * object. Two processes that access one byte, one of them storing, without such an order have a race, and the result
 * is any; different bytes of one page may be written at the same time.
 *
 * One thread: that which called svm_join is the only one of its process that touches the shared space and makes these
 * calls; another is refused by name, or ends the process with a sentence. A handler of a signal does neither.
 * A system call does not fetch pages: it fails with EFAULT unless svm_touch was called before, with no other
 * access to the shared space between. A process that forks leaves the shared space to the parent.
 *
 * Calls that return int return 0, or more, or a negative SVM_ error. Lengths are in bytes, limits in milliseconds.
 *
 * Link with -lhamlynsvm (pkg-config hamlyn-svm).
 */
#ifndef SVM_H
#define SVM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SVM_DIED (-1)      /* another process has died, and with it the answer: svm_error_text says which */
#define SVM_MISUSE (-2)    /* arguments that are not allowed, a second join, a call before it or of another thread */
#define SVM_REFUSED (-3)   /* the system or the launcher refused */
#define SVM_FULL (-4)      /* the shared space has no room */
#define SVM_FAULT (-5)     /* a fault of the library */
#define SVM_OWNER_DIED (1) /* the lock is held, but its last owner died with it: what it guards may be half done */
/* The words of the last error, which stay until the next. */
const char *svm_error_text(void);

/* How stores reach a page's home (4.2). The macro SVM_ST and svm_memcpy serve all three. */
#define SVM_HLRC 0    /* a release finds the bytes that have changed, and sends them in one message a home */
#define SVM_HLRC_AU 1 /* a release finds them, and each run leaves as it is found, by the store engine */
#define SVM_AURC 2    /* each SVM_ST leaves by the store engine; a plain store reaches nobody else */

/* Homes of pages. A rank (0 or more) is a home, too. */
#define SVM_FIRST_TOUCH (-1) /* the process that touches the page first */
#define SVM_BLOCKS (-2)      /* equal parts, in the order of the ranks */
#define SVM_CYCLIC (-3)      /* page by page */

typedef struct {
    uint64_t cache_bytes; /* memory for copies of other homes' pages, with what finds their changes; 0: as much as
                           * the shared space wants. Else at least 256 KiB. Pages at home here are not counted:
                           * the size of the shared space bounds them */
    void *base;           /* where the shared space lies, a multiple of 4,096; NULL: 0x600000000000 */
    const char *name;     /* NULL: the ranks of a job (`hamlyn run -n 4 -- ./program`, mpirun, srun; alone: one).
                           * Else, without a launcher: processes of one user on one host that meet by this name */
    int rank, size;       /* with a name: this process's, and how many there are, at most 64 */
    int combines;         /* of the store engine: consecutive stores leave together. -1: each at once; 0: by default */
    int limit;            /* how long joining waits; 0: 60,000 ms */
} svm_options_t;

/* Joins, and stores the rank and the number of processes. `bytes` of shared space, zeros, rounded up to pages of
 * 4,096; 8 KiB to 64 GiB, the same in all processes, as is the protocol. NULL options: zeros. Waits for all. Once a process. */
static inline int svm_join(int *rank, int *size, uint64_t bytes, int protocol, const svm_options_t *options);
/* Releases the locks that this process holds, and waits until all processes have called it or died; then the shared space
 * is gone. */
int svm_leave(void);

/* `bytes` of the shared space, zeros, at a multiple of `align` (a power of two; 0: 64), whose pages have this home; a
 * block with a home that is not SVM_FIRST_TOUCH has whole pages of its own. Any process, at any time; only the caller
 * gets the address: tell it through memory. NULL: an error. Memory comes back with svm_leave. */
void *svm_malloc(size_t bytes, size_t align, int home);
/* All processes call it with the same arguments, and get the same block: of rank 0's arguments. Contains a barrier. */
void *svm_malloc_all(size_t bytes, size_t align, int home);

/* Objects have numbers, 0 to SVM_OBJECTS - 1, of each kind; nothing makes them. */
#define SVM_OBJECTS 4096
/* Locks go to those that wait in the order in which they came. 0, SVM_OWNER_DIED, or an error. */
int svm_lock(int lock);
int svm_unlock(int lock);
/* Waits until all processes, or `count` of them, have arrived. SVM_DIED: one of all died, now or before. */
int svm_barrier(int barrier);
int svm_barrier_of(int barrier, int count);
/* Flags are numbers that grow, 0 at first. Waits until the flag is at least `value`. */
int svm_flag_set(int flag, uint64_t value);
int svm_flag_wait(int flag, uint64_t value);
/* Condition variables. The caller holds the lock, before and after each of these calls (else SVM_MISUSE), which is always
 * the same one. No spurious wake-ups. */
int svm_wait(int condition, int lock);
int svm_signal(int condition, int lock);
int svm_broadcast(int condition, int lock);

/* Stores. `lvalue` lies in the shared space; it is evaluated after `value`, once each. */
#define SVM_ST(lvalue, value)                      \
    do {                                           \
        __typeof__(lvalue) svm_value_ = (value);   \
        __typeof__(lvalue) *svm_at_ = &(lvalue);   \
        *svm_at_ = svm_value_;                     \
        if (svm_stores_leave)                      \
            svm_wrote(svm_at_, sizeof *svm_at_);   \
    } while (0)
static inline void svm_memcpy(void *to, const void *from, size_t bytes);
static inline void svm_memset(void *to, int byte, size_t bytes);

/* The pages of these bytes are fetched, so that a system call can use them, up to cache_bytes. Under SVM_AURC tell svm_wrote
 * of what a system call has stored. */
int svm_touch(const void *start, size_t bytes);

/* A load of a page whose home has died cannot return an error. Then `call` is called, in a handler of a signal, where most
 * calls, svm_leave too, are SVM_MISUSE; when it returns the process ends with a sentence and status 70. NULL: no call. */
int svm_on_death(void (*call)(int rank, void *data), void *data);

typedef struct {
    uint64_t misses;           /* faults of this process in the shared space */
    uint64_t fetches;          /* of these, with a page of another home */
    uint64_t fetched_in_place; /* of these, copied from the home's memory without waking its process */
    uint64_t read_ahead;       /* pages that came with the miss before them */
    uint64_t intervals;        /* releases with stores before them */
    uint64_t differences;      /* runs of changed bytes that were sent */
    uint64_t difference_bytes;
    uint64_t deposits;         /* of these, by the store engine */
    uint64_t notices_sent;     /* runs of pages that this process wrote */
    uint64_t notices_received;
    uint64_t invalidations;    /* pages that others wrote */
    uint64_t evictions;        /* pages that gave way to others */
    uint64_t messages_sent, bytes_sent;
    uint64_t pages_home;       /* now: pages whose home is here, and was touched */
    uint64_t pages_cached;     /* now: copies of others' */
    uint64_t refused;          /* messages of other processes that were wrong */
} svm_figures_t;
int svm_stat(svm_figures_t *figures);
/* How faults are taken, how pages are fetched and stores leave, and why not otherwise: lines, of at most `size` bytes with
 * their 0. */
int svm_explain(char *to, size_t size);

/* For the macros. One variable of the program and its libraries: a variable of this library would be copied. */
__attribute__((weak)) int svm_stores_leave = 0;
int svm_join_as(int *rank, int *size, uint64_t bytes, int protocol, const svm_options_t *options, size_t options_bytes);
/* Under SVM_AURC: these bytes of the shared space were just stored, by other means than SVM_ST and svm_memcpy. */
void svm_wrote(const volatile void *start, size_t bytes);

static inline int svm_join(int *rank, int *size, uint64_t bytes, int protocol, const svm_options_t *options)
{
    int joined = svm_join_as(rank, size, bytes, protocol, options, sizeof *options);
    if (joined == 0)
        svm_stores_leave = protocol == SVM_AURC;
    return joined;
}

/* Page by page, by way of the stack: a fault of `from` cannot cost a page that was stored to and not yet told. */
static inline void svm_memcpy(void *to, const void *from, size_t bytes)
{
    char *at = (char *)to, page[4096];
    const char *of = (const char *)from;
    if (!svm_stores_leave) {
        memcpy(to, from, bytes);
        return;
    }
    while (bytes) {
        size_t part = 4096 - ((uintptr_t)at & 4095);
        if (part > bytes)
            part = bytes;
        memcpy(page, of, part);
        memcpy(at, page, part);
        svm_wrote(at, part);
        at += part, of += part, bytes -= part;
    }
}

static inline void svm_memset(void *to, int byte, size_t bytes)
{
    char *at = (char *)to;
    while (bytes) {
        size_t part = 4096 - ((uintptr_t)at & 4095);
        if (part > bytes)
            part = bytes;
        memset(at, byte, part);
        if (svm_stores_leave)
            svm_wrote(at, part);
        at += part, bytes -= part;
    }
}

#ifdef __cplusplus
}
#endif

#endif
