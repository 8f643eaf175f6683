/* Preloaded into unchanged programs over svm.h: pins, counts, makes messages cost a system call or an interrupt, and writes
 * what each process did between its synchronisations, for the model of `model.rs`. By the environment:
 *
 *     MEDDLE          as in meddle.c: pin, syscall, interrupt. The costs of the messages since the last synchronisation are
 *                     paid at the next, for they leave inside of the library
 *     MEDDLE_COUNTS   a line is appended when the process leaves
 *     MEDDLE_TRACE    FILE.RANK: a line for each synchronisation: what it is, its object, nanoseconds of the processor
 *                     since the last, pages since that were asked for, and nanoseconds of the processor of its own
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <svm.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int calls, interrupts, rank;
static FILE *trace;
static svm_figures_t before, paid;
static double since, began;

static int asked(const char *word) {
    const char *words = getenv("MEDDLE");
    return words && strstr(words, word) != NULL;
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next && !(next = (__typeof__(&name))dlsym(RTLD_NEXT, #name))) abort()

static double processor(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

/* A page that is read in place is a message that needed nobody; the others are handled by the home's thread, as a
 * notification is. */
static uint64_t messages(const svm_figures_t *of) {
    return of->messages_sent + of->fetched_in_place;
}

int svm_join_as(int *to, int *size, uint64_t bytes, int protocol, const svm_options_t *options, size_t options_bytes) {
    NEXT(svm_join_as);
    calls = asked("syscall");
    interrupts = asked("interrupt");
    const char *own = getenv("HAMLYN_JOB_RANK"), *name = getenv("MEDDLE_TRACE");
    rank = own ? atoi(own) : 0;
    cpu_set_t allowed, one;
    /* All threads, and so before the library starts its own. */
    if (asked("pin") && !sched_getaffinity(0, sizeof allowed, &allowed))
        for (int cpu = 0, at = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET(cpu, &allowed) || at++ != rank % CPU_COUNT(&allowed)) continue;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            break;
        }
    if (interrupts && syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0)) abort();
    if (name) {
        char path[4096];
        snprintf(path, sizeof path, "%s.%d", name, rank);
        if (!(trace = fopen(path, "w"))) abort();
    }
    int result = next(to, size, bytes, protocol, options, options_bytes);
    since = processor();
    return result;
}

static void pay(const svm_figures_t *now) {
    for (uint64_t count = messages(now) - messages(&paid); (calls || interrupts) && count > 0; count--)
        if (interrupts)
            syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
        else
            syscall(SYS_getppid);
    paid = *now;
}

static void begin(const char *what, int object) {
    if (!trace && !calls && !interrupts) return;
    double taken = processor() - since;
    svm_figures_t now;
    if (svm_stat(&now) < 0) return;
    pay(&now);
    uint64_t asked_for = now.fetches - now.fetched_in_place - (before.fetches - before.fetched_in_place);
    if (trace) fprintf(trace, "%s %d %.0f %llu", what, object, taken, (unsigned long long)asked_for);
    before = now;
    began = processor();
}

static void end(void) {
    if (!trace) return;
    since = processor();
    fprintf(trace, " %.0f\n", since - began);
}

#define SYNCHRONISATION(name, arguments, object, ...) \
    int name arguments { \
        NEXT(name); \
        begin(#name, object); \
        int result = next(__VA_ARGS__); \
        end(); \
        return result; \
    }

SYNCHRONISATION(svm_lock, (int lock), lock, lock)
SYNCHRONISATION(svm_unlock, (int lock), lock, lock)
SYNCHRONISATION(svm_barrier, (int barrier), barrier, barrier)

int svm_leave(void) {
    NEXT(svm_leave);
    svm_figures_t now;
    const char *name = getenv("MEDDLE_COUNTS");
    int file = name ? open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file >= 0 && svm_stat(&now) == 0)
        dprintf(file, "messages=%llu notifications=%llu bytes=%llu misses=%llu fetches=%llu differences=%llu difference_bytes=%llu notices=%llu\n",
                (unsigned long long)messages(&now), (unsigned long long)now.messages_sent, (unsigned long long)now.bytes_sent, (unsigned long long)now.misses,
                (unsigned long long)now.fetches, (unsigned long long)now.differences,
                (unsigned long long)now.difference_bytes, (unsigned long long)now.notices_sent);
    if (file >= 0) close(file);
    if (trace) fclose(trace);
    trace = NULL;
    return next();
}
