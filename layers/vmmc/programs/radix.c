/* Radix-VMMC (SHRIMP, 3): an integer radix sort, 8 bits a pass, over the ranks of a job.
 *
 *     radix [KEYS] [deliberate|automatic]      KEYS of all ranks together; 65536
 *
 * Deliberate: the keys for each other rank are gathered, with their places, into one large update, which that rank
 * scatters. Automatic: each key is stored to its place in an array of that rank, by a binding.
 * Each rank sorts all keys by itself, too, and compares its part.
 */
#include "counts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vmmc.h>

#define MS 60000
#define DIGITS 256
#define PASSES 4

struct at {
    uint32_t place, key;
};

static int rank, size;
static vmmc_t *vmmc;
static vmmc_proxy_t **proxies;
static unsigned char *memory;
/* Of the exported buffer: a word, a count and what was sent of each rank, histograms, two arrays of keys, what each rank
 * gathers here. */
static uint64_t words_at, counts_at, sent_at, histograms_at, keys_at[2], gathered_at, bytes;
static uint64_t step;
static struct pairs_counts sent;

static void check(int fine, const char *doing) {
    if (fine) return;
    fprintf(stderr, "radix: rank %d: %s: %s\n", rank, doing, vmmc_error_text());
    exit(1);
}

static int update(int other, uint64_t at, const void *data, uint64_t length) {
    sent.messages++;
    sent.deliberate_bytes += length;
    return vmmc_send(proxies[other], at, data, length, MS);
}

static uint64_t word_of(int other) {
    return __atomic_load_n((uint64_t *)(void *)(memory + words_at) + other, __ATOMIC_ACQUIRE);
}

static int all_came(void *data) {
    (void)data;
    int came = 1;
    for (int other = 0; other < size; other++) {
        if (other == rank || word_of(other) >= step) continue;
        if (vmmc_check(proxies[other]) < 0) return 1;
        came = 0;
    }
    return came;
}

/* What was sent before is there when all have passed. */
static void barrier(void) {
    step++;
    for (int other = 0; other < size; other++)
        if (other != rank)
            check(update(other, words_at + 8 * (uint64_t)rank, &step, 8) == 0, "sending a word");
    check(vmmc_wait_until(vmmc, all_came, NULL, MS) == 0, "waiting");
    for (int other = 0; other < size; other++) check(other == rank || word_of(other) >= step, "another rank has died");
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    uint64_t keys = argc > 1 ? strtoull(argv[1], NULL, 10) : 65536;
    int automatic = argc > 2 && strcmp(argv[2], "automatic") == 0;
    vmmc = vmmc_join(&rank, &size, MS);
    check(vmmc != NULL, "joining");
    uint64_t n = (keys + (uint64_t)size - 1) / (uint64_t)size;
    n = (n + 1) & ~1ul;
    words_at = 0;
    counts_at = words_at + 8 * (uint64_t)size;
    sent_at = counts_at + 8 * (uint64_t)size;
    histograms_at = sent_at + sizeof sent * (uint64_t)size;
    keys_at[0] = histograms_at + 4 * DIGITS * (uint64_t)size;
    keys_at[1] = keys_at[0] + 4 * n;
    gathered_at = keys_at[1] + 4 * n;
    bytes = gathered_at + (automatic ? 0 : sizeof(struct at) * n * (uint64_t)size);
    vmmc_buffer_t *buffer = vmmc_export(vmmc, "radix", bytes, NULL);
    check(buffer && vmmc_fence(vmmc, MS) == 0, "exporting");
    memory = vmmc_address(buffer);
    proxies = calloc((size_t)size, sizeof *proxies);
    vmmc_bound_t *(*bound)[2] = calloc((size_t)size, sizeof *bound);
    vmmc_binding_t binding = {.engine = VMMC_STORE, .combines = 1, .ms = MS};
    for (int other = 0; other < size; other++) {
        if (other == rank) continue;
        check((proxies[other] = vmmc_import_rank(vmmc, other, "radix", MS)) != NULL, "importing");
        for (int i = 0; automatic && i < 2; i++)
            check((bound[other][i] = vmmc_bind(proxies[other], keys_at[i], 4 * n, &binding)) != NULL, "binding");
    }
    check(vmmc_fence(vmmc, MS) == 0, "the fence");

    /* All know all keys, and use their own part of them. */
    uint32_t *all = malloc(4 * n * (size_t)size), *own[2], random = 1;
    struct at *gathered = malloc(sizeof *gathered * n);
    for (uint64_t i = 0; i < n * (uint64_t)size; i++) all[i] = random = random * 1664525 + 1013904223;
    for (int i = 0; i < 2; i++) own[i] = (uint32_t *)(void *)(memory + keys_at[i]);
    memcpy(own[0], all + n * (uint64_t)rank, 4 * n);
    barrier();
    sent = (struct pairs_counts){0, 0, 0, 0};
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int pass = 0; pass < PASSES; pass++) {
        const uint32_t *source = own[pass % 2];
        int into = 1 - pass % 2, shift = 8 * pass;
        uint32_t *histograms = (uint32_t *)(void *)(memory + histograms_at), *mine = histograms + DIGITS * rank;
        memset(mine, 0, 4 * DIGITS);
        for (uint64_t i = 0; i < n; i++) mine[source[i] >> shift & 255]++;
        for (int other = 0; other < size; other++)
            if (other != rank)
                check(update(other, histograms_at + 4 * DIGITS * (uint64_t)rank, mine, 4 * DIGITS) == 0,
                      "sending a histogram");
        barrier();
        /* The place of this rank's first key of each digit. */
        uint64_t place = 0, next[DIGITS];
        for (int digit = 0; digit < DIGITS; digit++)
            for (int other = 0; other < size; other++) {
                if (other == rank) next[digit] = place;
                place += histograms[DIGITS * other + digit];
            }
        check(place == n * (uint64_t)size, "the histograms are those of other keys");
        if (automatic) {
            for (uint64_t i = 0; i < n; i++) {
                uint64_t at = next[source[i] >> shift & 255]++;
                int other = (int)(at / n);
                if (other == rank)
                    own[into][at % n] = source[i];
                else
                    check(vmmc_st32(bound[other][into], 4 * (at % n), source[i]) == 0, "storing");
                if (other != rank) sent.automatic_bytes += 4;
            }
            for (int other = 0; other < size; other++) check(other == rank || vmmc_flush(bound[other][into]) == 0, "a flush");
            barrier();
            continue;
        }
        for (int other = 0; other < size; other++) {
            uint64_t again[DIGITS], count = 0;
            memcpy(again, next, sizeof again);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t at = again[source[i] >> shift & 255]++;
                if ((int)(at / n) != other) continue;
                if (other == rank)
                    own[into][at % n] = source[i];
                else
                    gathered[count++] = (struct at){(uint32_t)(at % n), source[i]};
            }
            if (other == rank) continue;
            uint64_t there = gathered_at + sizeof *gathered * n * (uint64_t)rank;
            check(update(other, there, gathered, sizeof *gathered * count) == 0 &&
                      update(other, counts_at + 8 * (uint64_t)rank, &count, 8) == 0,
                  "sending keys");
        }
        barrier();
        for (int other = 0; other < size; other++) {
            if (other == rank) continue;
            const struct at *came = (const struct at *)(const void *)(memory + gathered_at) + n * (uint64_t)other;
            uint64_t count = ((uint64_t *)(void *)(memory + counts_at))[other];
            check(count <= n, "too many keys");
            for (uint64_t i = 0; i < count; i++) {
                struct at is = came[i];
                check(is.place < n, "a key has no place");
                own[into][is.place] = is.key;
            }
        }
        barrier();
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    for (int other = 0; automatic && other < size; other++)
        for (int i = 0; other != rank && i < 2; i++) sent.messages += vmmc_runs(bound[other][i]);
    struct pairs_counts all_sent = sent;
    if (rank > 0) check(update(0, sent_at + sizeof sent * (uint64_t)rank, &all_sent, sizeof all_sent) == 0, "sending counts");
    qsort(all, n * (size_t)size, 4, compare);
    check(memcmp(all + n * (uint64_t)rank, own[0], 4 * n) == 0, "the keys are not those of the sequential sort");
    barrier();
    if (rank == 0) {
        double took = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        const char *form = automatic ? "automatic" : "deliberate";
        printf("radix: %llu keys, %d ranks, %s update: sorted in %.1f ms\n", (unsigned long long)(n * (uint64_t)size), size,
               form, 1e3 * took);
        for (int other = 1; other < size; other++)
            counts_add(&all_sent, ((struct pairs_counts *)(void *)(memory + sent_at))[other]);
        counts_print("radix", size, form, took, all_sent);
        printf("\n");
    }
    for (int other = 0; other < size; other++) {
        for (int i = 0; i < 2; i++) vmmc_unbind(bound[other][i]);
        vmmc_unimport(proxies[other]);
    }
    vmmc_fence(vmmc, MS);
    vmmc_unexport(buffer);
    vmmc_close(vmmc);
    free(all);
    free(gathered);
    free(bound);
    free(proxies);
    return 0;
}
