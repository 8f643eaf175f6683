/* Ocean-SVM (SHRIMP, 3), in short: a time-stepped fluid whose equations are solved by multigrid over shared memory.
 *
 *     ocean [N] [STEPS]      a grid of N x N with its border, N - 2 a power of two; 34, 4
 *
 * Each step solves laplace(stream) = vorticity by V-cycles of red-black relaxations until the residual is small, then
 * moves the vorticity by the flow. Each rank has whole rows of each grid; the residual is summed under a lock, as sums of
 * rows, in the order of rows, so that the result has the same bits with any number of ranks. Rank 0 computes all of it by
 * itself, too, and compares.
 */
#include <math.h>

#include "program.h"

#define LEVELS 12
#define CYCLES_MAX 40
#define TOLERANCE 1e-6

/* One solver: shared, or rank 0's own. Grid `level` has n[level] x n[level] values. */
struct ocean {
    int levels, steps, is_own;
    int n[LEVELS];
    double *value[LEVELS], *right[LEVELS];
    double *vorticity[2], *sums, *residual;
};

static void *memory_of(struct ocean *ocean, size_t bytes) {
    return ocean->is_own ? calloc(1, bytes) : shared(bytes);
}

static void store(struct ocean *ocean, double *place, double value) {
    if (ocean->is_own)
        *place = value;
    else
        ST(*place, value);
}

static void meet(struct ocean *ocean) {
    if (!ocean->is_own) BARRIER();
}

/* The inner rows of this rank. */
static void rows(struct ocean *ocean, int n, int *from, int *to) {
    size_t first = 0, end = (size_t)n - 2;
    if (!ocean->is_own) end = part((size_t)n - 2, &first);
    *from = (int)first + 1;
    *to = (int)end + 1;
}

static void relax(struct ocean *ocean, int level) {
    int n = ocean->n[level], from, to;
    double *value = ocean->value[level], *right = ocean->right[level], h = 1.0 / (n - 1);
    rows(ocean, n, &from, &to);
    for (int color = 0; color < 2; color++) {
        for (int i = from; i < to; i++)
            for (int j = 1 + (i + color) % 2; j < n - 1; j += 2) {
                double *at = value + i * n + j;
                store(ocean, at, 0.25 * (at[-n] + at[n] + at[-1] + at[1] - h * h * right[i * n + j]));
            }
        meet(ocean);
    }
}

static double residual_at(const double *value, const double *right, int n, int at) {
    double h = 1.0 / (n - 1);
    return right[at] - (value[at - n] + value[at + n] + value[at - 1] + value[at + 1] - 4 * value[at]) / (h * h);
}

/* The residual to the next grid's right side; corrections there begin with zeros. */
static void restrict_to(struct ocean *ocean, int level) {
    int n = ocean->n[level], m = ocean->n[level + 1], from, to;
    rows(ocean, m, &from, &to);
    for (int i = from; i < to; i++)
        for (int j = 1; j < m - 1; j++) {
            double sum = 0;
            for (int part_of = 0; part_of < 4; part_of++) {
                int at = (2 * i - 1 + part_of / 2) * n + 2 * j - 1 + part_of % 2;
                sum += residual_at(ocean->value[level], ocean->right[level], n, at);
            }
            store(ocean, &ocean->right[level + 1][i * m + j], 0.25 * sum);
            store(ocean, &ocean->value[level + 1][i * m + j], 0);
        }
    meet(ocean);
}

static void prolong_to(struct ocean *ocean, int level) {
    int n = ocean->n[level], m = ocean->n[level + 1], from, to;
    rows(ocean, n, &from, &to);
    for (int i = from; i < to; i++)
        for (int j = 1; j < n - 1; j++) {
            double *at = &ocean->value[level][i * n + j];
            store(ocean, at, *at + ocean->value[level + 1][(i + 1) / 2 * m + (j + 1) / 2]);
        }
    meet(ocean);
}

static void cycle(struct ocean *ocean, int level) {
    int is_last = level + 1 == ocean->levels;
    for (int i = 0; i < (is_last ? 8 : 2); i++) relax(ocean, level);
    if (is_last) return;
    restrict_to(ocean, level);
    cycle(ocean, level + 1);
    prolong_to(ocean, level);
    for (int i = 0; i < 2; i++) relax(ocean, level);
}

/* The root of the sum of all squares. */
static double residual(struct ocean *ocean) {
    int n = ocean->n[0], from, to;
    rows(ocean, n, &from, &to);
    for (int i = from; i < to; i++) {
        double sum = 0;
        for (int j = 1; j < n - 1; j++) {
            double of = residual_at(ocean->value[0], ocean->right[0], n, i * n + j);
            sum += of * of;
        }
        store(ocean, &ocean->sums[i], sum);
    }
    /* The last rank to come adds up: it holds the lock behind all others. */
    if (!ocean->is_own) LOCK(1);
    double came = ocean->residual[1] + 1;
    store(ocean, &ocean->residual[1], ocean->is_own || came == size ? 0 : came);
    if (ocean->is_own || came == size) {
        double all = 0;
        for (int i = 1; i < n - 1; i++) all += ocean->sums[i];
        store(ocean, &ocean->residual[0], sqrt(all));
    }
    if (!ocean->is_own) UNLOCK(1);
    meet(ocean);
    return ocean->residual[0];
}

static double run(struct ocean *ocean, int n, int steps) {
    ocean->steps = steps;
    for (int m = n; m >= 4 && ocean->levels < LEVELS; m = (m - 2) / 2 + 2) {
        ocean->n[ocean->levels] = m;
        ocean->value[ocean->levels] = memory_of(ocean, sizeof(double) * (size_t)(m * m));
        ocean->right[ocean->levels++] = memory_of(ocean, sizeof(double) * (size_t)(m * m));
    }
    for (int i = 0; i < 2; i++) ocean->vorticity[i] = memory_of(ocean, sizeof(double) * (size_t)(n * n));
    ocean->sums = memory_of(ocean, sizeof(double) * (size_t)n);
    ocean->residual = memory_of(ocean, 2 * sizeof(double));
    int from, to;
    rows(ocean, n, &from, &to);
    for (int i = from; i < to; i++)
        for (int j = 1; j < n - 1; j++)
            store(ocean, &ocean->vorticity[0][i * n + j], sin(6.0 * i / n) * cos(9.0 * j / n) + 0.1 * sin(40.0 * i * j / n / n));
    meet(ocean);
    double began = now(), scale = n / 2.0, dt = 0.2 / n;
    for (int step = 0; step < steps; step++) {
        double *old = ocean->vorticity[step % 2], *new = ocean->vorticity[1 - step % 2], *stream = ocean->value[0];
        for (int i = from; i < to; i++)
            for (int j = 1; j < n - 1; j++) store(ocean, &ocean->right[0][i * n + j], old[i * n + j]);
        meet(ocean);
        double first = residual(ocean), left = first;
        for (int cycles = 0; cycles < CYCLES_MAX && left > TOLERANCE * first; cycles++) {
            cycle(ocean, 0);
            left = residual(ocean);
        }
        for (int i = from; i < to; i++)
            for (int j = 1; j < n - 1; j++) {
                int at = i * n + j;
                double down = (stream[at + n] - stream[at - n]) * scale, right = (stream[at + 1] - stream[at - 1]) * scale;
                double moved = down * (old[at + 1] - old[at - 1]) - right * (old[at + n] - old[at - n]);
                store(ocean, &new[at], old[at] - dt * scale * moved);
            }
        meet(ocean);
    }
    return now() - began;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 34, steps = argc > 2 ? atoi(argv[2]) : 4;
    if (n < 6 || ((n - 2) & (n - 3)) != 0 || steps < 1) {
        fprintf(stderr, "ocean [N] [STEPS]: N - 2 is a power of two from 4 on, and there is one step at least\n");
        return 2;
    }
    join(sizeof(double) * (size_t)(n * n) * 8 + (16 << 20));
    static struct ocean all, own = {.is_own = 1};
    double taken = run(&all, n, steps);
    int is_right = 1;
    if (rank == 0) {
        run(&own, n, steps);
        size_t bytes = sizeof(double) * (size_t)(n * n);
        is_right = memcmp(all.vorticity[steps % 2], own.vorticity[steps % 2], bytes) == 0;
        is_right = is_right && memcmp(all.value[0], own.value[0], bytes) == 0;
    }
    char what[64];
    snprintf(what, sizeof what, "%d x %d, %d steps", n, n, steps);
    say("ocean", what, taken, is_right);
}
