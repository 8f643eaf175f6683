/* Radix-SVM (SHRIMP, 3): an integer radix sort, 10 bits a pass, three passes of keys below 2^30, over shared memory.
 *
 *     radix [KEYS]      65536
 *
 * A rank reads its part of the keys in order, and writes each to its place in another array: scattered, and next to what
 * other ranks write, in the same pages. Rank 0 sorts all keys by itself, too, and compares.
 */
#include "program.h"

#define BITS 10
#define DIGITS (1 << BITS)
#define PASSES 3

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    size_t keys = argc > 1 ? strtoull(argv[1], NULL, 10) : 65536;
    join(8 * keys + (64 << 20));
    uint32_t *arrays[2] = {shared(4 * keys), shared(4 * keys)};
    uint32_t *histograms = shared(4 * DIGITS * (size_t)size);
    size_t first, end = part(keys, &first);
    uint32_t random = 1, *all = malloc(4 * keys), next[DIGITS], mine[DIGITS];
    for (size_t i = 0; i < keys; i++) all[i] = (random = random * 1664525 + 1013904223) >> 2;
    for (size_t i = first; i < end; i++) ST(arrays[0][i], all[i]);
    BARRIER();
    double began = now();
    for (int pass = 0; pass < PASSES; pass++) {
        const uint32_t *from = arrays[pass % 2];
        uint32_t *to = arrays[1 - pass % 2];
        int shift = BITS * pass;
        memset(mine, 0, sizeof mine);
        for (size_t i = first; i < end; i++) mine[from[i] >> shift & (DIGITS - 1)]++;
        for (int digit = 0; digit < DIGITS; digit++) ST(histograms[DIGITS * rank + digit], mine[digit]);
        BARRIER();
        /* The place of this rank's first key of each digit. */
        uint32_t place = 0;
        for (int digit = 0; digit < DIGITS; digit++)
            for (int other = 0; other < size; other++) {
                if (other == rank) next[digit] = place;
                place += histograms[DIGITS * other + digit];
            }
        for (size_t i = first; i < end; i++) {
            uint32_t key = from[i];
            ST(to[next[key >> shift & (DIGITS - 1)]++], key);
        }
        BARRIER();
    }
    double taken = now() - began;
    int is_right = 1;
    if (rank == 0) {
        qsort(all, keys, 4, compare);
        is_right = memcmp(all, arrays[PASSES % 2], 4 * keys) == 0;
    }
    free(all);
    char what[64];
    snprintf(what, sizeof what, "%zu keys", keys);
    say("radix", what, taken, is_right);
}
