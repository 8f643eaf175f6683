/* A histogram whose bins lie on all PEs, counted with atomic additions.
 *   hamlyn run -n 4 -- ./histogram [VALUES]
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

enum { BINS = 64 };

int main(int argc, char **argv)
{
    long values = argc > 1 ? atol(argv[1]) : 2000, sum = 0, wrong = 0;
    unsigned long seed;
    long *bins, *expected;
    int me, pes, is_ok;

    shmem_init();
    me = shmem_my_pe();
    pes = shmem_n_pes();
    bins = (long *)shmem_calloc(BINS, sizeof *bins);
    expected = (long *)calloc((size_t)(BINS * pes), sizeof *expected);
    if (!bins || !expected)
        return 1;
    /* Everyone knows all values; each counts its own. */
    for (int pe = 0; pe < pes; pe++) {
        seed = (unsigned long)pe + 1;
        for (long at = 0; at < values; at++) {
            unsigned long bin;

            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bin = (seed >> 40) % (unsigned long)(BINS * pes);
            expected[bin]++;
            if (pe == me)
                shmem_long_atomic_fetch_add(&bins[bin % BINS], 1, (int)(bin / BINS));
        }
    }
    shmem_barrier_all();
    for (int pe = 0; pe < pes; pe++) {
        long theirs[BINS] = {0};

        shmem_long_get(theirs, bins, BINS, pe);
        for (int bin = 0; bin < BINS; bin++) {
            sum += theirs[bin];
            wrong += theirs[bin] != expected[pe * BINS + bin];
        }
    }
    is_ok = wrong == 0 && sum == values * pes && shmemx_error() == 0;
    if (me == 0)
        printf("counted %ld values in %d bins of %d PEs, %ld bins wrong\n", sum, BINS * pes, pes, wrong);
    free(expected);
    shmem_finalize();
    return !is_ok;
}
