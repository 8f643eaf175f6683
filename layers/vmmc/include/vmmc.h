/* SHRIMP's virtual memory-mapped communication on Hamlyn (M. Blumrich et al., "Design Choices in the SHRIMP System",
 * 1998; the sections below are its). A receiver's memory changes while its program takes turns: in vmmc_poll, vmmc_wait,
 * vmmc_wait_until, and in every other call that waits; or at any time, after vmmc_start_thread. A program that only
 * looks at its memory, without calls, sees nothing change unless it has started the thread.
 *
 * Lengths and offsets are in bytes, limits in milliseconds (ms): less than 0 waits without limit, 0 does not wait.
 * Calls that return int return 0, or more, or a negative VMMC_ error; those that return a pointer return NULL on an
 * error. A failed call changes nothing unless it says so.
 *
 * Threads: any thread may use any object, but one thread at a time a vmmc_bound_t, and nobody an object that is being
 * freed. Handlers run on the library's thread, one at a time, and may call everything but vmmc_close. A process that
 * forks leaves all objects to the parent. Objects of one vmmc_t may be freed in any order; null is allowed.
 *
 * Link with -lhamlynvmmc (pkg-config hamlyn-vmmc).
 */
#ifndef VMMC_H
#define VMMC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VMMC_FULL (-1)      /* no room, or no more of something */
#define VMMC_REVOKED (-2)   /* the buffer was taken back by its exporter: that proxy is at its end */
#define VMMC_CLOSED (-3)    /* the other program has ended: all proxies of it are at their end */
#define VMMC_MISUSE (-4)    /* arguments that are not allowed */
#define VMMC_REFUSED (-5)   /* the system or the other program refused */
#define VMMC_TIMED_OUT (-6) /* the limit passed; the first part of an update may have arrived */
#define VMMC_FAULT (-7)     /* a fault of the library */
/* The last error of this thread, and its words, which stay until the thread's next error. 0: there was none. */
int vmmc_error(void);
const char *vmmc_error_text(void);

typedef struct vmmc vmmc_t;               /* this program's place */
typedef struct vmmc_buffer vmmc_buffer_t; /* a receive buffer, exported */
typedef struct vmmc_proxy vmmc_proxy_t;   /* a proxy receive buffer: one of another program, imported */
typedef struct vmmc_bound vmmc_bound_t;   /* memory that is bound to a proxy */

/* A place of its own. The settings are those of the environment (HAMLYN_..). */
vmmc_t *vmmc_open(void);
/* The place of a rank of a job (`hamlyn run -n 4 -- ./program`, mpirun, srun; alone: one rank): its rank and the
 * number of ranks are stored. Waits for all ranks. Ranks import from one another on one host, and of one user. */
vmmc_t *vmmc_join(int *rank, int *size, int ms);
/* Waits until all ranks of the job have called it as often: for setting up. */
int vmmc_fence(vmmc_t *vmmc, int ms);
int vmmc_close(vmmc_t *vmmc);

#define VMMC_SAME 0 /* this user, on this host, as the kernel proves it */
#define VMMC_ALL 1  /* everybody that vmmc_serve lets in, also from other hosts */
#define VMMC_LIST 2 /* the users of a list, on this host */
/* Lets others import under this name: VMMC_SAME or VMMC_ALL. vmmc_join has served. */
int vmmc_serve(vmmc_t *vmmc, const char *name, int users);

/* Export (2.2). */
#define VMMC_READ_WRITE 0
#define VMMC_READ 1
#define VMMC_WRITE 2
typedef struct {
    int users;              /* VMMC_SAME, VMMC_ALL, VMMC_LIST */
    int rights;             /* VMMC_READ_WRITE, VMMC_READ: vmmc_get; VMMC_WRITE: sends */
    const uint32_t *list;   /* of VMMC_LIST: user ids */
    size_t count;           /* of the list */
    uint32_t notifications; /* of one importer that may wait, at most; then its vmmc_send_notify waits. 0: it fails, VMMC_MISUSE */
} vmmc_permissions_t;
/* Exports new memory, zeros, under a name of 1 to 126 bytes. NULL permissions: the same user, for both, 64. */
vmmc_buffer_t *vmmc_export(vmmc_t *vmmc, const char *name, uint64_t bytes, const vmmc_permissions_t *permissions);
/* The first byte, of whole pages, until vmmc_unexport. Others may be writing it: read it as memory that another thread
 * writes, words by atomic loads, and what is used is copied first. */
void *vmmc_address(const vmmc_buffer_t *buffer);
/* The receiver's bit (2.3): whether notifications of the buffer come. It is set by vmmc_export. */
int vmmc_take_notifications(vmmc_buffer_t *buffer, int takes);
/* Takes it back from all importers, which get VMMC_REVOKED, and frees the memory. */
int vmmc_unexport(vmmc_buffer_t *buffer);

/* Import (2.2): a buffer of the program that serves `program` ([user@]name), or of a rank. Questions of others are
 * answered meanwhile. Waits up to ms for the program's name, and not for the buffer, so export before you serve.
 * VMMC_REFUSED, at once: there is no such buffer for this user. */
vmmc_proxy_t *vmmc_import(vmmc_t *vmmc, const char *program, const char *buffer, int ms);
vmmc_proxy_t *vmmc_import_rank(vmmc_t *vmmc, int rank, const char *buffer, int ms);
int vmmc_unimport(vmmc_proxy_t *proxy);
uint64_t vmmc_bytes(const vmmc_proxy_t *proxy);
/* 0, VMMC_REVOKED or VMMC_CLOSED, as of the last turn (vmmc_poll; vmmc_fence takes none behind it). Loads. The other's
 * updates before that have arrived. */
int vmmc_check(const vmmc_proxy_t *proxy);

/* Deliberate update (2.2): returns when the source can be used again; waits for room. Updates of one program arrive in
 * their order, whatever the proxies. */
int vmmc_send(vmmc_proxy_t *proxy, uint64_t offset, const void *data, size_t bytes, int ms);
/* The same with the sender's bit (2.3): a notification with the word; waits also for the receiver's credit. */
int vmmc_send_notify(vmmc_proxy_t *proxy, uint64_t offset, const void *data, size_t bytes, uint32_t word, int ms);
/* Copies from the buffer; the exporter's program, or its thread, answers. (ours) */
int vmmc_get(vmmc_proxy_t *proxy, uint64_t offset, void *to, size_t bytes, int ms);
/* An update that goes on by itself in calls of this program (4.5.3), from memory of vmmc_export: a number from 1 on,
 * or an error. Up to 64 of a proxy, then VMMC_FULL. They are not ordered with vmmc_send. */
int64_t vmmc_send_async(vmmc_proxy_t *proxy, uint64_t offset, const vmmc_buffer_t *buffer, uint64_t at, uint64_t bytes);
/* 1: the send of this number has left, and its source can be used; 0: not yet; or its error. */
int vmmc_test(vmmc_proxy_t *proxy, int64_t number);
int vmmc_wait_sent(vmmc_proxy_t *proxy, int64_t number, int ms);

/* Takes a turn: arrivals go to their buffers, questions are answered. */
int vmmc_poll(vmmc_t *vmmc);
/* Waits for a notification, a question or an end. Data alone does not wake it: vmmc_wait_until. */
int vmmc_wait(vmmc_t *vmmc, int ms);
/* Waits until look(data) is not 0: for words that others send. It is called after each turn with a lock held, and calls
 * nothing here but vmmc_check. Spins, then sleeps. */
int vmmc_wait_until(vmmc_t *vmmc, int (*look)(void *data), void *data, int ms);

/* Notifications (2.2): queued; none is lost; the data may have been overwritten before. They come if both bits are set. */
typedef struct {
    char buffer[128]; /* the name, and 0 */
    uint32_t word;
} vmmc_notification_t;
/* 1: there was one; 0: none, or they are blocked. Takes no turn. */
int vmmc_take_notification(vmmc_t *vmmc, vmmc_notification_t *to);
/* Starts the library's thread, which takes turns and calls the handler, never in a signal; with NULL, notifications wait
 * for vmmc_take_notification. Once. */
int vmmc_start_thread(vmmc_t *vmmc, void (*handler)(const vmmc_notification_t *, void *data), void *data);
/* Notifications of all buffers wait, or come again. */
int vmmc_block(vmmc_t *vmmc);
int vmmc_unblock(vmmc_t *vmmc);

/* Automatic update (2.2, 4.2, 4.5.1): stores to bound memory happen in the buffer, too. */
#define VMMC_STORE 0   /* memory of the library's, stored to by vmmc_st32, vmmc_st64 and vmmc_au_memcpy */
#define VMMC_TRACKED 1 /* memory of the program's, stored to as it likes; vmmc_flush finds the changes and sends them.
                        * What is overwritten between two flushes is lost, and so is the order of stores: nobody polls a
                        * word of it; send that word after the flush. */
typedef struct {
    int engine;        /* VMMC_STORE, VMMC_TRACKED */
    void *memory;      /* of VMMC_TRACKED: private, whole pages of 4,096 bytes, as is the length; stays until vmmc_unbind.
                        * It may be of a vmmc_buffer_t (vmmc_address): what importers send there is not sent on */
    int combines;      /* of VMMC_STORE, as the rest: consecutive stores leave together, up to 256 bytes. 0: each at once,
                        * and of vmmc_au_memcpy each 8 bytes */
    uint32_t sub_page; /* a run ends at multiples of so many bytes: a power of two, 8 to 4,096; 0: 4,096 */
    uint32_t timer_us; /* a run leaves so many microseconds after its first store, looked at in stores; 0: no timer */
    int notifies;      /* each run that leaves carries the sender's bit, with the word */
    uint32_t word;
    int ms; /* how long stores and flushes wait for room */
} vmmc_binding_t;
/* Binds so many bytes to the buffer from `at` on, a multiple of 8. VMMC_TRACKED sends all of them once. */
vmmc_bound_t *vmmc_bind(vmmc_proxy_t *proxy, uint64_t at, size_t bytes, const vmmc_binding_t *binding);
/* How long stores and flushes wait for room from now on. */
int vmmc_set_limit(vmmc_bound_t *bound, int ms);
/* Of VMMC_STORE: the local bytes, to be read. */
const void *vmmc_bound_memory(vmmc_bound_t *bound);
/* Stores here, and there: a word in the processor's order, at any offset; or bytes. VMMC_TIMED_OUT: earlier stores wait for
 * room, and nothing of this one has happened. A store that finds no room itself leaves with the next store or flush. */
int vmmc_st32(vmmc_bound_t *bound, size_t offset, uint32_t value);
int vmmc_st64(vmmc_bound_t *bound, size_t offset, uint64_t value);
/* The same, but a full ring fails at once: VMMC_FULL. */
int vmmc_try_st32(vmmc_bound_t *bound, size_t offset, uint32_t value);
int vmmc_try_st64(vmmc_bound_t *bound, size_t offset, uint64_t value);
int vmmc_au_memcpy(vmmc_bound_t *bound, size_t offset, const void *data, size_t bytes);
/* What was stored leaves: every later send of this program arrives behind it. */
int vmmc_flush(vmmc_bound_t *bound);
/* Runs that have left, each a message. */
uint64_t vmmc_runs(const vmmc_bound_t *bound);
/* Of VMMC_TRACKED: these bytes were written here, at the offset, on behalf of others: they are not sent back. Importers'
 * updates into memory that is exported and tracked are told by themselves. */
int vmmc_told(vmmc_bound_t *bound, size_t offset, const void *data, size_t bytes);
/* Flushes, and frees; the flush's result. */
int vmmc_unbind(vmmc_bound_t *bound);

/* The path of a proxy's updates, and the engine of a binding with its path, in words, cut to `size` bytes with their 0:
 * "store, combined: ..", "store, not combined: ..", "tracked by the kernel ..", "tracked by comparing all pages .." with
 * the reason: a kernel before Linux 6.7, or memory that is tracked by another binding or another userfaultfd already. No
 * engine stores through an aperture: an exported buffer has many importers, and pages that are mapped have one. */
int vmmc_explain(const vmmc_proxy_t *proxy, char *to, size_t size);
int vmmc_explain_bound(const vmmc_bound_t *bound, char *to, size_t size);

#ifdef __cplusplus
}
#endif

#endif
