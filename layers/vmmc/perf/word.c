/* One word, and updates one after another, between two ranks: `word [DIVIDE]`, as rows "NAME nanoseconds".
 *
 *     one way     a word to the other rank, which polls it, and back; half of that. Deliberate update; a store that
 *                 leaves at once; a store that is combined, with a flush; the same, where a timer of 1 us ends it;
 *                 a notification, which is taken
 *     each        updates of 64 and of 4,096 bytes one after another: vmmc_send, and vmmc_send_async with so many that
 *                 have not left (4.5.3)
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <vmmc.h>

#define MS 30000
#define BYTES (1 << 20)

static int rank, size;
static vmmc_t *vmmc;
static vmmc_buffer_t *buffer;
static vmmc_proxy_t *proxy;
static const uint64_t *words;
static uint64_t step;

static void check(int fine, const char *doing) {
    if (fine) return;
    fprintf(stderr, "word: rank %d: %s: %s\n", rank, doing, vmmc_error_text());
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

/* The other rank's word of step. */
static int has_come(void *data) {
    (void)data;
    return __atomic_load_n(&words[0], __ATOMIC_ACQUIRE) >= step || vmmc_check(proxy) < 0;
}

static void await_word(void) {
    check(vmmc_wait_until(vmmc, has_come, NULL, MS) == 0 && vmmc_check(proxy) == 0, "waiting");
}

enum way { DELIBERATE, APART, COMBINED, TIMED, NOTIFIED };

static void give(enum way way, vmmc_bound_t *bound) {
    switch (way) {
    case DELIBERATE:
        check(vmmc_send(proxy, 0, &step, 8, MS) == 0, "sending");
        return;
    case NOTIFIED:
        check(vmmc_send_notify(proxy, 0, &step, 8, 1, MS) == 0, "sending");
        return;
    case TIMED: /* The timer is looked at in stores. */
        for (uint64_t before = vmmc_runs(bound), at = 0; vmmc_runs(bound) == before; at++)
            check(vmmc_st64(bound, 8 * (at % 32), step) == 0, "storing");
        return;
    default:
        check(vmmc_st64(bound, 0, step) == 0 && (way == APART || vmmc_flush(bound) == 0), "storing");
    }
}

static void take(enum way way) {
    vmmc_notification_t told;
    if (way != NOTIFIED) return await_word();
    for (;;) {
        int taken = vmmc_take_notification(vmmc, &told);
        check(taken >= 0, "taking");
        if (taken) return;
        check(vmmc_poll(vmmc) == 0 && vmmc_check(proxy) == 0, "the other rank");
    }
}

static void one_way(enum way way, const char *name, int rounds) {
    vmmc_binding_t binding = {.engine = VMMC_STORE, .combines = way != APART, .timer_us = way == TIMED, .ms = MS};
    vmmc_bound_t *bound = vmmc_bind(proxy, 0, 4096, &binding);
    check(bound && vmmc_fence(vmmc, MS) == 0, "binding");
    double began = 0;
    for (int round = -rounds / 10; round < rounds; round++) {
        if (round == 0) began = now();
        step++;
        if (rank == 0) give(way, bound);
        take(way);
        if (rank == 1) give(way, bound);
    }
    double each = (now() - began) / rounds / 2;
    if (rank == 0) printf("one way, %s %.0f\n", name, each);
    step++;
    check(vmmc_unbind(bound) == 0 && vmmc_fence(vmmc, MS) == 0, "unbinding");
}

/* `depth` 0: vmmc_send. */
static void each(size_t bytes, int depth, int count) {
    if (rank == 0) {
        double began = 0;
        int64_t numbers[64];
        for (int i = -count / 10, at = 0; i < count; i++) {
            if (i == 0) began = now();
            uint64_t there = 4096 + (uint64_t)(at++ % 128) * 4096;
            if (depth == 0) {
                check(vmmc_send(proxy, there, vmmc_address(buffer), bytes, MS) == 0, "sending");
                continue;
            }
            if (at > depth) check(vmmc_wait_sent(proxy, numbers[at % depth], MS) >= 0, "waiting");
            numbers[at % depth] = vmmc_send_async(proxy, there, buffer, 0, bytes);
            check(numbers[at % depth] > 0, "sending");
        }
        double taken = (now() - began) / count;
        step++;
        give(DELIBERATE, NULL);
        await_word();
        char name[64] = "vmmc_send";
        if (depth) snprintf(name, sizeof name, "vmmc_send_async, %d deep", depth);
        printf("each of %zu bytes, %s %.0f\n", bytes, name, taken);
    } else {
        step++;
        await_word();
        give(DELIBERATE, NULL);
    }
}

int main(int argc, char **argv) {
    int divide = argc > 1 ? atoi(argv[1]) : 1, rounds = 20000 / divide, count = 200000 / divide;
    check((vmmc = vmmc_join(&rank, &size, MS)) != NULL && size == 2, "joining as one of two");
    check((buffer = vmmc_export(vmmc, "word", BYTES, NULL)) != NULL && vmmc_fence(vmmc, MS) == 0, "exporting");
    words = vmmc_address(buffer);
    check((proxy = vmmc_import_rank(vmmc, 1 - rank, "word", MS)) != NULL && vmmc_fence(vmmc, MS) == 0, "importing");
    one_way(DELIBERATE, "deliberate", rounds);
    one_way(APART, "automatic", rounds);
    one_way(COMBINED, "automatic, combined, a flush", rounds);
    one_way(TIMED, "automatic, combined, a timer of 1 us", rounds);
    one_way(NOTIFIED, "deliberate, a notification", rounds);
    for (size_t bytes = 64; bytes <= 4096; bytes *= 64)
        for (int depth = 0; depth <= 64; depth = depth ? depth * 32 : 2) each(bytes, depth, count);
    vmmc_fence(vmmc, MS);
    vmmc_unimport(proxy);
    vmmc_unexport(buffer);
    vmmc_close(vmmc);
    return 0;
}
