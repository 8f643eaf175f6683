/* Forks, and what meets afterwards. See anl.h.
 *
 *     parent                                  child, of each CREATE
 *     memory of its own at the shared place   the same bytes, forked; waits
 *     the first lock, barrier, ..: tells      reads how many there are
 *     svm_join                                svm_join
 *     each stores its share of the bytes, as they were, into the shared space, and all meet
 */
#define _GNU_SOURCE
#include "anl.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <svm.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* Below 2 GiB where the bytes fit: old programs align addresses as `unsigned` or `int`. */
#define LOW_PLACE ((char *)0x20000000)
#define LOW_BYTES 0x60000000ul
#define HIGH_PLACE ((char *)0x600000000000)
/* A hint. Without one the kernel takes 0, which overlaps what is moved. */
#define KEPT_PLACE ((char *)0x400000000000)
#define PAGE 4096ul
/* Of barriers, one of its own. */
#define END_BARRIER 0

static char *place;
/* The first page of the shared space is the library's. */
static size_t space, used = PAGE;
static int locks, barriers = END_BARRIER + 1, stride = 1, rank, created, told[64], is_joined, is_over;
/* How many of the locks that share a number this process holds. */
static int held[SVM_OBJECTS];
static pid_t children[64], parent;

static void fail(const char *doing, const char *why) {
    fprintf(stderr, "anl: process %d: %s: %s\n", rank, doing, why);
    _exit(70);
}

static void check(int result, const char *doing) {
    if (result < 0) fail(doing, svm_error_text());
}

static void end(void);

void anl_begin(size_t bytes) {
    if (space) return;
    const char *asked = getenv("ANL_BYTES");
    size_t least = asked ? strtoull(asked, NULL, 10) : 256ul << 20;
    if (bytes < least) bytes = least;
    space = (bytes + PAGE - 1) & ~(PAGE - 1);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    place = space <= LOW_BYTES ? LOW_PLACE : HIGH_PLACE;
    if (mmap(place, space, PROT_READ | PROT_WRITE, flags, -1, 0) != place) {
        place = HIGH_PLACE;
        if (mmap(place, space, PROT_READ | PROT_WRITE, flags, -1, 0) != place) fail("shared memory", strerror(errno));
    }
    parent = getpid();
    atexit(end);
}

/* All have the bytes as they were, and none the shared space. */
static void join(int size) {
    char name[64];
    snprintf(name, sizeof name, "anl.%d", (int)parent);
    size_t before = (used + PAGE - 1) & ~(PAGE - 1);
    char *kept = mremap(place, space, space, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, KEPT_PLACE);
    if (kept == MAP_FAILED || munmap(place, space)) fail("shared memory", strerror(errno));
    const char *asked = getenv("SVM_PROTOCOL");
    int protocol = asked && strcmp(asked, "hlrc-au") == 0 ? SVM_HLRC_AU : SVM_HLRC, of = rank;
    svm_options_t options = {.base = place, .name = name, .rank = rank, .size = size};
    check(svm_join(&of, &size, space, protocol, &options), "joining");
    is_joined = 1;
    /* Each process makes numbers of its own. */
    locks += rank, barriers += rank, stride = size;
    if (before > PAGE) {
        char *block = svm_malloc_all(before - PAGE, PAGE, SVM_CYCLIC);
        if (block != place + PAGE) fail("the shared space", block ? "it begins elsewhere" : svm_error_text());
        for (size_t at = PAGE * (size_t)(rank + 1); at < before; at += PAGE * (size_t)size) {
            static const char zeros[PAGE];
            if (memcmp(kept + at, zeros, PAGE)) memcpy(place + at, kept + at, PAGE);
        }
    }
    munmap(kept, space);
    check(svm_barrier(END_BARRIER), "meeting");
}

void anl_create(void (*run)(void)) {
    if (is_joined) fail("CREATE", "all come before the first lock, barrier or pause, and before WAIT_FOR_END");
    anl_begin(0);
    if (created == 63) fail("CREATE", "64 processes are the most");
    int tell[2];
    if (pipe(tell)) fail("CREATE", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) fail("CREATE", strerror(errno));
    if (child > 0) {
        close(tell[0]);
        told[created] = tell[1];
        children[created++] = child;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (int other = 0; other < created; other++) close(told[other]);
    close(tell[1]);
    rank = created + 1;
    int size;
    if (read(tell[0], &size, sizeof size) != sizeof size) _exit(70);
    close(tell[0]);
    join(size);
    run();
    exit(0);
}

/* The parent's first wish to meet the others. */
static void meet(void) {
    if (is_joined || rank != 0 || created == 0) return;
    int size = created + 1;
    for (int child = 0; child < created; child++) {
        if (write(told[child], &size, sizeof size) != sizeof size) fail("CREATE", "a process has ended before it began");
        close(told[child]);
    }
    join(size);
}

void anl_wait_for_end(void) {
    meet();
    if (is_joined && !is_over) check(svm_barrier(END_BARRIER), "WAIT_FOR_END");
    is_over = 1;
}

static void end(void) {
    if (space == 0) return;
    anl_wait_for_end();
    space = 0;
    if (is_joined) check(svm_leave(), "the end");
    for (int child = 0; rank == 0 && child < created; child++) {
        int status;
        if (waitpid(children[child], &status, 0) > 0 && status != 0) {
            fprintf(stderr, "anl: process %d ended with %s %d\n", child + 1, WIFEXITED(status) ? "status" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
            _exit(70);
        }
    }
}

void anl_exit(void) {
    exit(0);
}

void *anl_malloc(size_t bytes) {
    if (is_joined) {
        void *at = svm_malloc(bytes, 64, SVM_FIRST_TOUCH);
        if (!at) fail("G_MALLOC", svm_error_text());
        return at;
    }
    size_t at = (used + 63) & ~63ul;
    anl_begin(0);
    if (bytes > space - at) {
        fprintf(stderr, "anl: G_MALLOC: no room for %zu bytes; ANL_BYTES gives more\n", bytes);
        return NULL;
    }
    used = at + bytes;
    return place + at;
}

/* Locks beyond the numbers share them: water-nsquared has 4,096 for its molecules alone. */
int anl_lock_number(void) {
    int number = locks;
    locks = (locks + stride) % SVM_OBJECTS;
    return number;
}

int anl_barrier_number(void) {
    if (barriers >= SVM_OBJECTS) fail("BARINIT", "there are 4,095 barriers at most");
    int number = barriers;
    barriers += stride;
    return number;
}

void anl_lock(int number) {
    meet();
    if (is_joined && held[number]++ == 0) check(svm_lock(number), "LOCK");
}

void anl_unlock(int number) {
    if (is_joined && --held[number] == 0) check(svm_unlock(number), "UNLOCK");
}

/* A lock's number is its condition's, too. */
static void wait_for_wake(int lock, const char *doing) {
    if (!is_joined) fail(doing, "one process waits for itself");
    if (held[lock] != 1) fail(doing, "the lock is not held, or another with its number is");
    check(svm_wait(lock, lock), doing);
}

void anl_condition_wait(int *condition, int lock) {
    *condition = lock + 1;
    wait_for_wake(lock, "CONDVARWAIT");
}

void anl_condition_wake(const int *condition) {
    if (!is_joined || *condition == 0) return;
    int lock = *condition - 1;
    anl_lock(lock);
    check(svm_broadcast(lock, lock), "CONDVARBCAST");
    anl_unlock(lock);
}

void anl_barrier(int number, int count) {
    meet();
    if (is_joined && count > 1) check(svm_barrier_of(number, count), "BARRIER");
}

int anl_subscript(struct anl_subscript *subscript, int max, int count) {
    anl_lock(subscript->lock);
    int next = subscript->next <= max ? subscript->next++ : -1;
    anl_unlock(subscript->lock);
    if (next >= 0) return next;
    anl_barrier(subscript->barrier, count);
    anl_lock(subscript->lock);
    subscript->next = 0;
    anl_unlock(subscript->lock);
    anl_barrier(subscript->barrier, count);
    return -1;
}

void anl_pause_set(struct anl_pause *pause, int is_set) {
    anl_lock(pause->lock);
    pause->is_set = is_set;
    if (is_joined) check(svm_broadcast(pause->lock, pause->lock), "a pause");
    anl_unlock(pause->lock);
}

void anl_pause_wait(struct anl_pause *pause, int is_set) {
    anl_lock(pause->lock);
    while (pause->is_set != is_set) wait_for_wake(pause->lock, "a pause");
    anl_unlock(pause->lock);
}

unsigned long anl_clock(void) {
    struct timeval now;
    gettimeofday(&now, NULL);
    return (unsigned long)now.tv_sec * 1000000ul + (unsigned long)now.tv_usec;
}
