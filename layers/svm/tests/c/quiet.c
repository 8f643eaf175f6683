/* A fault whose page is read in place allocates nothing in its thread, nor does a first store. quiet PROTOCOL. 2 processes.
 * quiet PROTOCOL thread: one process. The fault of another thread ends it, and does not allocate either. */
#include "check.h"

#include <pthread.h>

static __thread int counts;
static __thread long allocations;
static int ends; /* with 1 at the first allocation that counts */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes)
{
    if (counts && ends)
        _exit(1);
    allocations += counts;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations += counts;
    return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes)
{
    allocations += counts;
    return __libc_realloc(block, bytes);
}

int posix_memalign(void **to, size_t align, size_t bytes)
{
    allocations += counts;
    *to = __libc_memalign(align, bytes);
    return *to ? 0 : 12;
}

#define PAGES 256
#define ROUNDS 20

static void *toucher(void *page)
{
    ends = counts = 1;
    *(volatile char *)page = 1;
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    int rank, size;
    OK(svm_join(&rank, &size, 4 << 20, protocol_of(argv[1]), NULL));
    char *shared = svm_malloc_all(PAGES * 4096, 0, SVM_BLOCKS);
    pthread_t thread;
    if (argc > 2 && pthread_create(&thread, NULL, toucher, shared) == 0)
        pthread_join(thread, NULL);
    CHECK(shared && size == 2);
    svm_figures_t before, after;
    /* Rounds in which all pages were read in place. A home that has not had a turn yet is asked instead. */
    int quiet = 0;
    for (int round = 0; round < ROUNDS; round++) {
        OK(svm_barrier(0));
        usleep(1000);
        OK(svm_stat(&before));
        allocations = 0;
        counts = 1;
        for (int i = 0; i < PAGES; i++) {
            char *page = shared + (i * 37) % PAGES * 4096;
            (void)*(volatile char *)page;
            *(volatile char *)(page + 8 + rank) = round;
        }
        counts = 0;
        /* Under AURC, too, so that the other's copy gets old. */
        for (int i = 0; i < PAGES; i++)
            SVM_ST(shared[i * 4096 + rank], 1 + round);
        OK(svm_stat(&after));
        CHECK(after.misses > before.misses);
        if (after.fetches - before.fetches != after.fetched_in_place - before.fetched_in_place)
            continue;
        quiet++;
        if (allocations) {
            fprintf(stderr, "%ld allocations in %lu misses\n", allocations, after.misses - before.misses);
            _exit(1);
        }
    }
    CHECK(quiet > 0);
    /* The counter counts. */
    allocations = 0;
    counts = 1;
    free(malloc(100));
    counts = 0;
    CHECK(allocations > 0);
    OK(svm_leave());
    return 0;
}
