// The common parts of the programs in C: arguments, the clock, and the output of a figure.
//
//   initiator                          responder
//   latency: message --->   <--- the same size back           half of each round trip counts
//   stream:  messages    --->          counts them; the last one is answered: <--- one message
//
// A stream's clock runs from before its first message until that answer has arrived, so the
// receiver's program has taken every message that counts. A tenth as many go before it as a
// warm-up, and are answered likewise.
//
// A responder that gets a view of the bytes reads each of its cache lines once, with `look_at`; one
// that gets a copy does not, because the copy has read them all.

#ifndef PEER_H
#define PEER_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct plan {
    int initiates;
    int is_latency;
    size_t size;
    uint64_t warm_up;
    uint64_t count;
    // Operations that are under way at once, where the peer's interface has such.
    unsigned window;
};

static inline void fail(const char *what, const char *why) {
    fprintf(stderr, "peer: %s: %s\n", what, why);
    exit(1);
}

// initiate|respond latency|stream SIZE COUNT WINDOW
static inline struct plan plan_of(int argc, char **argv) {
    if (argc != 6) {
        fail(argv[0], "wants initiate|respond latency|stream SIZE COUNT WINDOW");
    }
    struct plan plan = {
        .initiates = !strcmp(argv[1], "initiate"),
        .is_latency = !strcmp(argv[2], "latency"),
        .size = strtoull(argv[3], NULL, 10),
        .count = strtoull(argv[4], NULL, 10),
        .window = (unsigned)strtoul(argv[5], NULL, 10),
    };
    plan.warm_up = plan.count / 10 + 1;
    if (!plan.size || !plan.count || !plan.window) {
        fail(argv[0], "a size, a count and a window are at least 1");
    }
    return plan;
}

// Memory that is there already.
static inline void *buffer_of(size_t bytes) {
    void *buffer = NULL;
    if (posix_memalign(&buffer, 4096, bytes)) {
        fail("memory", strerror(errno));
    }
    memset(buffer, 7, bytes);
    return buffer;
}

static inline void look_at(const void *bytes, size_t size) {
    const volatile uint8_t *byte = bytes;
    for (size_t i = 0; i < size; i += 64) {
        (void)byte[i];
    }
}

// ---- the clock: the time stamp counter, as in `hamlyn perf`

static inline uint64_t ticks(void) {
    return __builtin_ia32_rdtsc();
}

static inline uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

struct times {
    uint64_t *ends;
    uint64_t n;
    uint64_t begin_ns;
};

// For `n` round trips, or one stream, that begin now.
static inline struct times times_begin(uint64_t n) {
    struct times times = {.ends = buffer_of((n + 1) * sizeof(uint64_t)), .n = 0};
    times.begin_ns = monotonic_ns();
    times.ends[times.n++] = ticks();
    return times;
}

static inline void times_end_one(struct times *times) {
    times->ends[times->n++] = ticks();
}

static inline int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// One line of JSON: of a latency each round trip's time that occurred, in whole nanoseconds, with
// how often it did; of a stream its time.
static inline void times_print(struct times *times, const struct plan *plan) {
    uint64_t n = times->n, *ends = times->ends;
    double ns_per_tick =
        (double)(monotonic_ns() - times->begin_ns) / (double)(ticks() - ends[0]);
    if (!plan->is_latency) {
        double seconds = (double)(ends[n - 1] - ends[n - 2]) * ns_per_tick / 1e9;
        printf("{\"count\":%llu,\"seconds\":%.9f}\n", (unsigned long long)plan->count, seconds);
        fflush(stdout);
        return;
    }
    for (uint64_t i = 0; i + 1 < n; i++) {
        ends[i] = (uint64_t)((double)(ends[i + 1] - ends[i]) * ns_per_tick + 0.5);
    }
    uint64_t *trips = ends + plan->warm_up, trip_count = n - 1 - plan->warm_up;
    qsort(trips, trip_count, sizeof *trips, compare_u64);
    printf("{\"round_trips_ns\":[");
    for (uint64_t i = 0, from = 0; i < trip_count; i++) {
        if (i + 1 == trip_count || trips[i + 1] != trips[i]) {
            printf("%s[%llu,%llu]", from ? "," : "", (unsigned long long)trips[i],
                   (unsigned long long)(i + 1 - from));
            from = i + 1;
        }
    }
    printf("]}\n");
    fflush(stdout);
}

// ---- each program defines, but with PEER_WITHOUT_PLAN: one message, and a stream of them

#ifndef PEER_WITHOUT_PLAN

static void send_one(const void *bytes, size_t size);
// Returns when the whole message is there.
static void receive_one(size_t size);
static void send_stream(const void *bytes, size_t size, uint64_t count);
// Returns when `count` messages have been received.
static void receive_stream(size_t size, uint64_t count);

static inline void run_plan(const struct plan *plan) {
    void *message = buffer_of(plan->size);
    uint64_t trips = plan->warm_up + plan->count;
    if (plan->is_latency && plan->initiates) {
        struct times times = times_begin(trips);
        for (uint64_t i = 0; i < trips; i++) {
            send_one(message, plan->size);
            receive_one(plan->size);
            times_end_one(&times);
        }
        times_print(&times, plan);
    } else if (plan->is_latency) {
        for (uint64_t i = 0; i < trips; i++) {
            receive_one(plan->size);
            send_one(message, plan->size);
        }
    } else if (plan->initiates) {
        struct times times = times_begin(2);
        for (int part = 0; part < 2; part++) {
            send_stream(message, plan->size, part ? plan->count : plan->warm_up);
            receive_one(1);
            times_end_one(&times);
        }
        times_print(&times, plan);
    } else {
        for (int part = 0; part < 2; part++) {
            receive_stream(plan->size, part ? plan->count : plan->warm_up);
            send_one(message, 1);
        }
    }
}

#endif
#endif
