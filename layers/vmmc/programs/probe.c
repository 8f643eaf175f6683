/* The parameters of this machine as BSP has them, over BSPlib: r (Mflop/s of a process), l (us of a bsp_sync without
 * data) and g (ns a word of 8 bytes) by puts and gets of one word and of blocks. Each the median of many supersteps.
 *
 *   hamlyn run -n 2 -- probe [SUPERSTEPS]
 *
 * A superstep in which each process sends and receives h words is taken to last l + g h (Hill et al. 1998, section 1).
 */
#include <bsp.h>
#include <stdlib.h>

enum { WORDS = 256, BLOCK = 128 << 10 };

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Seconds of a superstep in which each process moves `count` pieces of `words` words to or from the next. */
static double measure(double *to, double *from, int count, int words, int gets, int rounds) {
    double *times = calloc((size_t)rounds, sizeof *times);
    int next = (bsp_pid() + 1) % bsp_nprocs(), bytes = words * (int)sizeof(double);
    if (!times) bsp_abort("probe: no memory\n");
    for (int round = 0; round < rounds; round++) {
        bsp_sync();
        double before = bsp_time();
        for (int i = 0; i < count; i++) {
            if (gets)
                bsp_get(next, to, i * bytes, from + i * words, bytes);
            else
                bsp_put(next, from + i * words, to, i * bytes, bytes);
        }
        bsp_sync();
        times[round] = bsp_time() - before;
    }
    qsort(times, (size_t)rounds, sizeof *times, compare);
    double median = times[rounds / 2];
    free(times);
    return median;
}

int main(int argc, char *argv[]) {
    bsp_begin(bsp_nprocs());
    int supersteps = argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : 1000;
    double *to = calloc(BLOCK, sizeof *to), *from = calloc(BLOCK, sizeof *from), before = bsp_time();
    if (!to || !from) bsp_abort("probe: no memory\n");
    for (int round = 0; round < 1000; round++)
        for (int i = 0; i < 1024; i++) from[i] += 1e-9 * round * to[i];
    double r = 2 * 1000 * 1024 / (bsp_time() - before);
    bsp_push_reg(to, BLOCK * (int)sizeof *to);
    bsp_sync();
    double l = measure(to, from, 0, 0, 0, supersteps);
    for (int gets = 0; gets < 2; gets++) {
        double some = measure(to, from, WORDS, 1, gets, supersteps);
        double block = measure(to, from, 1, BLOCK, gets, supersteps / 50 + 1);
        if (bsp_pid() == 0)
            printf("probe: p = %d, r = %.0f Mflop/s, l = %.1f us, by %s: g = %.1f ns a word, %.2f in a block of 1 MiB\n",
                   bsp_nprocs(), r / 1e6, l * 1e6, gets ? "gets" : "puts", (some - l) / WORDS * 1e9,
                   (block - l) / BLOCK * 1e9);
    }
    bsp_pop_reg(to);
    bsp_end();
    return 0;
}
