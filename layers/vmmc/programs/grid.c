/* Nearest neighbours over NX, as SHRIMP's Ocean-NX communicates: blocks of whole rows, whose borders go to the nodes
 * before and behind in each step.
 *
 *     grid [ROWS] [STEPS]      a square of ROWS; 130 and 200
 *
 * Node 0 computes all of it by itself, too: the results are the same to the bit.
 */
#include "counts.h"

#include <nx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long n;

static double *square(long rows) {
    double *made = calloc((size_t)(rows * n), sizeof *made);
    if (!made) exit(1);
    return made;
}

/* A row's next values, of three rows; returns the largest change. */
static double relax(double *to, const double *above, const double *here, const double *below) {
    double most = 0;
    to[0] = here[0];
    to[n - 1] = here[n - 1];
    for (long i = 1; i < n - 1; i++) {
        to[i] = 0.25 * (above[i] + below[i] + here[i - 1] + here[i + 1]);
        double change = to[i] > here[i] ? to[i] - here[i] : here[i] - to[i];
        if (change > most) most = change;
    }
    return most;
}

static void fill(double *row, long at) {
    for (long i = 0; i < n; i++) row[i] = at == 0 ? 100 : at == n - 1 ? -(double)i : i == 0 ? (double)(at % 7) : 0;
}

int main(int argc, char **argv) {
    n = argc > 1 ? atol(argv[1]) : 130;
    long steps = argc > 2 ? atol(argv[2]) : 200, me = mynode(), nodes = numnodes();
    long first = n * me / nodes, end = n * (me + 1) / nodes, rows = end - first, bytes = n * (long)sizeof(double);
    if (rows < 1) {
        fprintf(stderr, "grid: fewer rows than nodes\n");
        return 1;
    }
    /* A row more on both sides. */
    double *now = square(rows + 2), *then = square(rows + 2), change = 0, work;
    for (long row = first; row < end; row++) fill(now + (row - first + 1) * n, row);
    gsync();
    struct pairs_counts before = pairs_counts();
    double began = dclock();
    for (long step = 0; step < steps; step++) {
        long above = me > 0 ? irecvx(step, now, bytes, me - 1, -1, NULL) : 0;
        long below = me < nodes - 1 ? irecvx(step, now + (rows + 1) * n, bytes, me + 1, -1, NULL) : 0;
        if (me > 0) csend(step, now + n, bytes, me - 1, 0);
        if (me < nodes - 1) csend(step, now + rows * n, bytes, me + 1, 0);
        if (above) msgwait(above);
        if (below) msgwait(below);
        change = 0;
        for (long row = 1; row <= rows; row++) {
            long at = first + row - 1;
            double *here = now + row * n, most = 0;
            if (at == 0 || at == n - 1)
                memcpy(then + row * n, here, (size_t)bytes);
            else
                most = relax(then + row * n, here - n, here, here + n);
            if (most > change) change = most;
        }
        gdhigh(&change, 1, &work);
        double *other = now;
        now = then;
        then = other;
    }
    double took = dclock() - began;
    struct pairs_counts sent = counts_since(pairs_counts(), before);
    long ignored[4];
    gisum((long *)&sent, 4, ignored);
    double *all = square(n);
    long count;
    gcol(now + n, rows * bytes, all, n * bytes, &count);
    if (me == 0) {
        double *alone[2] = {square(n), square(n)}, most = 0;
        for (long row = 0; row < n; row++) fill(alone[0] + row * n, row);
        for (long step = 0; step < steps; step++) {
            double *here = alone[step % 2], *to = alone[1 - step % 2];
            most = 0;
            memcpy(to, here, (size_t)bytes);
            memcpy(to + (n - 1) * n, here + (n - 1) * n, (size_t)bytes);
            for (long row = 1; row < n - 1; row++) {
                double moved = relax(to + row * n, here + (row - 1) * n, here + row * n, here + (row + 1) * n);
                if (moved > most) most = moved;
            }
        }
        if (count != n * bytes || memcmp(all, alone[steps % 2], (size_t)(n * bytes)) || most != change) {
            fprintf(stderr, "grid: not as the sequential program has it\n");
            return 1;
        }
        printf("grid: %ld rows, %ld steps, %ld nodes: %.1f ms; last change %g\n", n, steps, nodes, 1e3 * took, change);
        counts_print("grid", (int)nodes, counts_update("NX_UPDATE"), took, sent);
        printf("\n");
    }
    gsync();
    return 0;
}
