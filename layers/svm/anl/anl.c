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
#include <string.h>
#include <svm.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLACE ((char *)0x600000000000)
#define PAGE 4096ul
/* Objects of its own. */
#define END_BARRIER 0
#define FIRST_NUMBER 1

/* The first page of the shared space is the library's. */
static size_t space, used = PAGE;
static int numbers = FIRST_NUMBER, rank, created, told[64], is_joined, is_over;
static pid_t children[64], parent;

static void fail(const char *doing, const char *why) {
    fprintf(stderr, "anl: process %d: %s: %s\n", rank, doing, why);
    _exit(70);
}

static void check(int result, const char *doing) {
    if (result < 0) fail(doing, svm_error_text());
}

void anl_begin(size_t bytes) {
    const char *asked = getenv("ANL_BYTES");
    if (bytes == 0) bytes = asked ? strtoull(asked, NULL, 10) : 1ul << 30;
    space = (bytes + PAGE - 1) & ~(PAGE - 1);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap(PLACE, space, PROT_READ | PROT_WRITE, flags, -1, 0) != PLACE) fail("shared memory", strerror(errno));
    parent = getpid();
    atexit(anl_end);
}

/* All have the bytes as they were, and none the shared space. */
static void join(int size) {
    char name[64];
    snprintf(name, sizeof name, "anl.%d", (int)parent);
    size_t before = (used + PAGE - 1) & ~(PAGE - 1);
    char *kept = mremap(PLACE, space, space, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    if (kept == MAP_FAILED || munmap(PLACE, space)) fail("shared memory", strerror(errno));
    const char *asked = getenv("SVM_PROTOCOL");
    int protocol = asked && strcmp(asked, "hlrc-au") == 0 ? SVM_HLRC_AU : SVM_HLRC, of = rank;
    svm_options_t options = {.base = PLACE, .name = name, .rank = rank, .size = size};
    check(svm_join(&of, &size, space, protocol, &options), "joining");
    is_joined = 1;
    if (before > PAGE) {
        char *block = svm_malloc_all(before - PAGE, PAGE, SVM_CYCLIC);
        if (block != PLACE + PAGE) fail("the shared space", block ? "it begins elsewhere" : svm_error_text());
        for (size_t at = PAGE * (size_t)(rank + 1); at < before; at += PAGE * (size_t)size) {
            static const char zeros[PAGE];
            if (memcmp(kept + at, zeros, PAGE)) memcpy(PLACE + at, kept + at, PAGE);
        }
    }
    munmap(kept, space);
    check(svm_barrier(END_BARRIER), "meeting");
}

void anl_create(void (*run)(void)) {
    if (is_joined) fail("CREATE", "all come before the first lock, barrier or pause, and before WAIT_FOR_END");
    if (space == 0) fail("CREATE", "MAIN_INITENV comes first");
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
    anl_end();
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

void anl_end(void) {
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

void *anl_malloc(size_t bytes) {
    if (is_joined) {
        void *at = svm_malloc(bytes, 64, SVM_FIRST_TOUCH);
        if (!at) fail("G_MALLOC", svm_error_text());
        return at;
    }
    size_t at = (used + 63) & ~63ul;
    if (space == 0) fail("G_MALLOC", "MAIN_INITENV comes first");
    if (bytes > space - at) return NULL;
    used = at + bytes;
    return PLACE + at;
}

int anl_number(void) {
    if (numbers == SVM_OBJECTS) fail("a lock or barrier", "there are 4,095 at most");
    return numbers++;
}

void anl_lock(int number) {
    meet();
    if (is_joined) check(svm_lock(number), "LOCK");
}

void anl_unlock(int number) {
    if (is_joined) check(svm_unlock(number), "UNLOCK");
}

void anl_barrier(int number, int count) {
    meet();
    if (is_joined && count > 1) check(svm_barrier_of(number, count), "BARRIER");
}

int anl_subscript(struct anl_subscript *subscript, int max, int count) {
    anl_lock(subscript->number);
    int next = subscript->next <= max ? subscript->next++ : -1;
    anl_unlock(subscript->number);
    if (next >= 0) return next;
    anl_barrier(subscript->number, count);
    anl_lock(subscript->number);
    subscript->next = 0;
    anl_unlock(subscript->number);
    anl_barrier(subscript->number, count);
    return -1;
}

void anl_pause_set(struct anl_pause *pause, int is_set) {
    anl_lock(pause->number);
    pause->is_set = is_set;
    if (is_joined) check(svm_broadcast(pause->number, pause->number), "a pause");
    anl_unlock(pause->number);
}

void anl_pause_wait(struct anl_pause *pause, int is_set) {
    anl_lock(pause->number);
    while (pause->is_set != is_set) {
        if (!is_joined) fail("a pause", "one process waits for itself");
        check(svm_wait(pause->number, pause->number), "a pause");
    }
    anl_unlock(pause->number);
}
