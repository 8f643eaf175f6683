/* Barnes-NX (SHRIMP, 3): bodies attract one another, by Barnes and Hut's octree. Each node moves its part of the bodies;
 * all get all places by gcol after each step, and build the tree.
 *
 *     nbody [BODIES] [STEPS]      1024 and 4
 *
 * Node 0 computes all of it by itself, too: the results are the same to the bit.
 */
#include "counts.h"

#include <math.h>
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THETA 0.7
#define SOFT 1e-3
#define DT 1e-3

struct body {
    double place[3], speed[3], mass;
};

/* A cube: a body, or the centre and mass of eight cubes. */
struct cell {
    double middle[3], half, centre[3], mass;
    int child[8], body;
};

static struct cell *cells;
static int used, room;

static int cell(const double middle[3], double half) {
    if (used == room) {
        room = room ? 2 * room : 1024;
        cells = realloc(cells, (size_t)room * sizeof *cells);
        if (!cells) exit(1);
    }
    struct cell *made = &cells[used];
    memset(made, 0, sizeof *made);
    memcpy(made->middle, middle, sizeof made->middle);
    made->half = half;
    made->body = -1;
    for (int i = 0; i < 8; i++) made->child[i] = -1;
    return used++;
}

static int octant(const struct cell *of, const double place[3]) {
    return (place[0] > of->middle[0]) | (place[1] > of->middle[1]) << 1 | (place[2] > of->middle[2]) << 2;
}

static void insert(int at, const struct body *bodies, int body, int depth);

static void insert_below(int at, const struct body *bodies, int body, int depth) {
    int which = octant(&cells[at], bodies[body].place);
    if (cells[at].child[which] < 0) {
        double middle[3], half = cells[at].half / 2;
        for (int i = 0; i < 3; i++) middle[i] = cells[at].middle[i] + (which >> i & 1 ? half : -half);
        int made = cell(middle, half);
        cells[at].child[which] = made;
    }
    insert(cells[at].child[which], bodies, body, depth + 1);
}

static void insert(int at, const struct body *bodies, int body, int depth) {
    struct cell *of = &cells[at];
    int is_leaf = of->body >= 0, before = of->body;
    double mass = of->mass + bodies[body].mass;
    for (int i = 0; i < 3; i++)
        of->centre[i] = (of->centre[i] * of->mass + bodies[body].place[i] * bodies[body].mass) / mass;
    int is_empty = of->mass == 0;
    of->mass = mass;
    if (is_empty) {
        of->body = body;
        return;
    }
    if (depth > 60) return; /* Bodies at one place stay one. */
    of->body = -1;
    if (is_leaf) insert_below(at, bodies, before, depth);
    insert_below(at, bodies, body, depth);
}

static void attract(int at, const struct body *body, double force[3]) {
    const struct cell *of = &cells[at];
    double d[3], square = SOFT;
    for (int i = 0; i < 3; i++) {
        d[i] = of->centre[i] - body->place[i];
        square += d[i] * d[i];
    }
    int is_leaf = 1;
    for (int i = 0; i < 8; i++) is_leaf &= of->child[i] < 0;
    if (is_leaf || 2 * of->half < THETA * sqrt(square)) {
        double strength = of->mass / (square * sqrt(square));
        for (int i = 0; i < 3; i++) force[i] += strength * d[i];
        return;
    }
    for (int i = 0; i < 8; i++)
        if (of->child[i] >= 0) attract(of->child[i], body, force);
}

/* Moves the bodies first to end-1. */
static void step(const struct body *bodies, long n, struct body *to, long first, long end) {
    double half = 1, zero[3] = {0, 0, 0};
    for (long i = 0; i < n; i++)
        for (int j = 0; j < 3; j++) half = fmax(half, fabs(bodies[i].place[j]));
    used = 0;
    int root = cell(zero, half);
    for (long i = 0; i < n; i++) insert(root, bodies, (int)i, 0);
    for (long i = first; i < end; i++) {
        double force[3] = {0, 0, 0};
        struct body moved = bodies[i];
        attract(root, &bodies[i], force);
        for (int j = 0; j < 3; j++) {
            moved.speed[j] += DT * force[j];
            moved.place[j] += DT * moved.speed[j];
        }
        to[i - first] = moved;
    }
}

static void fill(struct body *bodies, long n) {
    unsigned random = 7;
    memset(bodies, 0, (size_t)n * sizeof *bodies);
    for (long i = 0; i < n; i++) {
        bodies[i].mass = 1.0 / (double)n;
        for (int j = 0; j < 3; j++) bodies[i].place[j] = 2 * ((random = random * 1664525 + 1013904223) / 4294967296.0) - 1;
    }
}

int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 1024, steps = argc > 2 ? atol(argv[2]) : 4;
    long me = mynode(), nodes = numnodes(), first = n * me / nodes, end = n * (me + 1) / nodes, bytes = n * (long)sizeof(struct body);
    struct body *bodies = malloc((size_t)bytes), *mine = malloc((size_t)bytes), *alone = malloc((size_t)bytes);
    if (!bodies || !mine || !alone) return 1;
    fill(bodies, n);
    gsync();
    struct pairs_counts before = pairs_counts();
    double began = dclock();
    for (long i = 0; i < steps; i++) {
        long count;
        step(bodies, n, mine, first, end);
        gcol(mine, (end - first) * (long)sizeof *mine, bodies, bytes, &count);
        if (count != bytes) return 1;
    }
    double took = dclock() - began;
    struct pairs_counts sent = counts_since(pairs_counts(), before);
    long ignored[4];
    gisum((long *)&sent, 4, ignored);
    if (me == 0) {
        fill(alone, n);
        for (long i = 0; i < steps; i++) {
            step(alone, n, mine, 0, n);
            memcpy(alone, mine, (size_t)bytes);
        }
        if (memcmp(alone, bodies, (size_t)bytes)) {
            fprintf(stderr, "nbody: not as the sequential program has it\n");
            return 1;
        }
        printf("nbody: %ld bodies, %ld steps, %ld nodes: %.1f ms\n", n, steps, nodes, 1e3 * took);
        counts_print("nbody", (int)nodes, counts_update("NX_UPDATE"), took, sent);
        printf("\n");
    }
    gsync();
    return 0;
}
