/* Preloaded into unchanged programs over vmmc.h: makes each message cost what it would have with a lesser network
 * interface, and counts those that wait. By the environment:
 *
 *     MEDDLE=WORD[,WORD..]
 *         syscall     a system call before each vmmc_send (4.3: no user-level DMA)
 *         interrupt   an interrupt at the receivers for each vmmc_send (4.4): membarrier(2) interrupts each processor
 *                     that runs a rank; it is itself a system call, so it is compared with `syscall`
 *         apart       stores of bindings leave each at once (4.5.1: no combining)
 *         stalls      each message is first tried without waiting, to count those that wait for room (4.5.2)
 *         pin         the rank's own processor, of those that are allowed
 *     MEDDLE_COUNTS=FILE   a line with stalls=NUMBER is appended at the end of the process
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vmmc.h>

static int calls, interrupts, apart, tries;
static unsigned long long stalls;

static int asked(const char *word) {
    const char *words = getenv("MEDDLE");
    return words && strstr(words, word) != NULL;
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next && !(next = (__typeof__(&name))dlsym(RTLD_NEXT, #name))) abort()

__attribute__((constructor)) static void begin(void) {
    calls = asked("syscall");
    interrupts = asked("interrupt");
    apart = asked("apart");
    tries = asked("stalls");
    if (interrupts && syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0)) {
        perror("membarrier");
        exit(1);
    }
    const char *rank = getenv("HAMLYN_JOB_RANK");
    cpu_set_t allowed, own;
    if (!asked("pin") || !rank || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    for (int cpu = 0, at = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || at++ != atoi(rank) % CPU_COUNT(&allowed)) continue;
        CPU_ZERO(&own);
        CPU_SET(cpu, &own);
        sched_setaffinity(0, sizeof own, &own);
        break;
    }
}

__attribute__((destructor)) static void end(void) {
    const char *name = getenv("MEDDLE_COUNTS");
    int file = name ? open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    dprintf(file, "stalls=%llu\n", stalls);
    close(file);
}

static void cost(void) {
    if (interrupts) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    if (calls) syscall(SYS_getppid);
}

int vmmc_send(vmmc_proxy_t *proxy, uint64_t offset, const void *data, size_t bytes, int ms) {
    NEXT(vmmc_send);
    cost();
    if (tries) {
        int result = next(proxy, offset, data, bytes, 0);
        if (result != VMMC_TIMED_OUT) return result;
        stalls++;
    }
    return next(proxy, offset, data, bytes, ms);
}

int vmmc_send_notify(vmmc_proxy_t *proxy, uint64_t offset, const void *data, size_t bytes, uint32_t word, int ms) {
    NEXT(vmmc_send_notify);
    cost();
    return next(proxy, offset, data, bytes, word, ms);
}

/* The limits of bindings. */
static struct {
    vmmc_bound_t *bound;
    int ms;
} bindings[1024];

static int *limit_of(vmmc_bound_t *bound) {
    for (size_t i = (uintptr_t)bound / 64, left = 1024; left > 0; i++, left--)
        if (bindings[i % 1024].bound == bound || !bindings[i % 1024].bound) {
            bindings[i % 1024].bound = bound;
            return &bindings[i % 1024].ms;
        }
    abort();
}

vmmc_bound_t *vmmc_bind(vmmc_proxy_t *proxy, uint64_t at, size_t bytes, const vmmc_binding_t *binding) {
    NEXT(vmmc_bind);
    vmmc_binding_t own = *binding;
    if (apart) own.combines = 0;
    vmmc_bound_t *bound = next(proxy, at, bytes, &own);
    if (bound && tries) {
        *limit_of(bound) = own.ms;
        vmmc_set_limit(bound, 0);
    }
    return bound;
}

#define STORE(name, arguments, ...) \
    int name arguments { \
        NEXT(name); \
        int result = next(__VA_ARGS__); \
        if (!tries || result != VMMC_TIMED_OUT) return result; \
        stalls++; \
        vmmc_set_limit(bound, *limit_of(bound)); \
        result = next(__VA_ARGS__); \
        vmmc_set_limit(bound, 0); \
        return result; \
    }

STORE(vmmc_st32, (vmmc_bound_t * bound, size_t offset, uint32_t value), bound, offset, value)
STORE(vmmc_st64, (vmmc_bound_t * bound, size_t offset, uint64_t value), bound, offset, value)
STORE(vmmc_au_memcpy, (vmmc_bound_t * bound, size_t offset, const void *data, size_t bytes), bound, offset, data, bytes)
STORE(vmmc_flush, (vmmc_bound_t * bound), bound)
