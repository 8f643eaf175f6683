/* What the programs share: joining, errors, the clock, and the last line. Shared memory is loaded from as any other; a
 * store to it is ST(place, value): a plain store, and for AURC one that also leaves for the page's home. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <svm.h>
#include <time.h>

static int rank, size;

static void check(int fine, const char *doing) {
    if (fine) return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, doing, svm_error_text());
    exit(1);
}

#define ST(place, value) SVM_ST(place, value)
#define LOCK(number) check(svm_lock(number) == 0, "a lock")
#define UNLOCK(number) check(svm_unlock(number) == 0, "an unlock")
#define BARRIER() check(svm_barrier(0) == 0, "a barrier")

/* The protocol is that of the environment's SVM_PROTOCOL: hlrc, hlrc-au or aurc. */
static void join(size_t bytes) {
    const char *asked = getenv("SVM_PROTOCOL");
    int protocol = !asked || !strcmp(asked, "hlrc") ? SVM_HLRC : !strcmp(asked, "aurc") ? SVM_AURC : SVM_HLRC_AU;
    const char *apart = getenv("SVM_COMBINES");
    svm_options_t options = {.combines = apart && !strcmp(apart, "no") ? -1 : 0};
    check(svm_join(&rank, &size, bytes, protocol, &options) == 0, "joining");
}

static void *shared(size_t bytes) {
    void *memory = svm_malloc_all(bytes, 4096, SVM_FIRST_TOUCH);
    check(memory != NULL, "shared memory");
    return memory;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The part of `all` that is this rank's: from *first on, up to the result. */
static size_t part(size_t all, size_t *first) {
    *first = all * (size_t)rank / (size_t)size;
    return all * ((size_t)rank + 1) / (size_t)size;
}

/* The last line, of rank 0: seconds in parallel, and whether the result is the sequential one. */
static void say(const char *name, const char *what, double seconds, int is_right) {
    if (rank == 0) printf("%s: %s, %d ranks, seconds=%.6f checked=%s\n", name, what, size, seconds, is_right ? "yes" : "NO");
    check(svm_barrier(0) == 0, "the end");
    check(svm_leave() == 0, "leaving");
    exit(is_right ? 0 : 1);
}

#endif
