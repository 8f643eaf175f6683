/* OpenSHMEM's core over Fast Messages: one-sided reads and writes of a symmetric heap. The names, arguments and
 * meanings are those of OpenSHMEM 1.5; shmemx_ marks what it has not. One thread uses all calls, no handler does.
 *
 * The heap has SHMEM_SYMMETRIC_SIZE bytes (from the environment, with K, M or G; 16 MiB) on each PE. A symmetric
 * object is memory of shmem_malloc; global variables are not. The owner checks each access: one outside of its
 * heap is refused and counted, and nothing is written.
 *
 * A PE serves the others in its own shmem calls only: a PE that computes for long, or reads a variable in a
 * loop instead of shmem_int_wait_until, delays them. A get asks for pieces of 2 KiB, eight at a time, and the
 * owner's handler replies to each.
 *
 * The calls of OpenSHMEM cannot report errors. When one fails (a PE's program has ended, an access is refused), it
 * returns, prints why once, and shmemx_error() tells the code: no call waits for a PE that is no more.
 * FM_CREDIT_BYTES must be its default or more. Link with -lhamlynfm.
 */
#ifndef SHMEM_H
#define SHMEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Joins the job, also FM unless the program has; registers handlers 1010 to 1012: before the first FM_extract. */
void shmem_init(void);
/* Waits for all PEs. */
void shmem_finalize(void);
int shmem_my_pe(void);
int shmem_n_pes(void);

/* All PEs call these with the same arguments. NULL: there is no room, or the arguments differ. */
void *shmem_malloc(size_t bytes);
void *shmem_calloc(size_t count, size_t bytes);
void shmem_free(void *object);
/* The object itself, if `pe` is this one; NULL otherwise. */
void *shmem_ptr(const void *object, int pe);

/* The source can be used again when a put returns. The value is there when a get returns. */
void shmem_putmem(void *dest, const void *source, size_t bytes, int pe);
void shmem_getmem(void *dest, const void *source, size_t bytes, int pe);

/* Puts to one PE after a fence are delivered after those before. */
void shmem_fence(void);
/* All puts to all PEs are delivered. */
void shmem_quiet(void);
/* The same, and all PEs have come here. */
void shmem_barrier_all(void);

enum { SHMEM_CMP_EQ, SHMEM_CMP_NE, SHMEM_CMP_GT, SHMEM_CMP_GE, SHMEM_CMP_LT, SHMEM_CMP_LE };

#define SHMEM_TYPED(name, type)                                                            \
    void shmem_##name##_put(type *dest, const type *source, size_t count, int pe);         \
    void shmem_##name##_get(type *dest, const type *source, size_t count, int pe);         \
    void shmem_##name##_p(type *dest, type value, int pe);                                 \
    type shmem_##name##_g(const type *source, int pe);
#define SHMEM_COUNTED(name, type)                                                          \
    type shmem_##name##_atomic_fetch_add(type *dest, type value, int pe);                  \
    type shmem_##name##_atomic_compare_swap(type *dest, type cond, type value, int pe);    \
    void shmem_##name##_wait_until(type *ivar, int cmp, type value);

SHMEM_TYPED(int, int)
SHMEM_TYPED(long, long)
SHMEM_TYPED(double, double)
SHMEM_COUNTED(int, int)
SHMEM_COUNTED(long, long)

/* The first error, or 0: -1 a PE's program has ended, -3 the owner has refused an access, or arguments of a
 * collective call differ, -4 an argument is out of range, -5 the system has refused something. */
int shmemx_error(void);
/* Accesses of others that this PE has refused. */
unsigned long long shmemx_refused(void);

#ifdef __cplusplus
}
#endif
#endif
