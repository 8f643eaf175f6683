/* Barnes-SVM (SHRIMP, 3): gravitation of bodies by the Barnes-Hut method, over shared memory.
 *
 *     barnes [BODIES] [STEPS]      512, 3
 *
 * Each step builds an octree of all bodies: its 64 boxes of the second level are built one by one by the ranks that take
 * them, under a lock, and rank 0 joins them. Then the ranks take chunks of bodies, in the same way, and find the force on
 * each by walking the tree; then each moves its own. The shape of a box is that of its bodies alone, so the result has the
 * same bits with any number of ranks. Rank 0 computes all of it by itself, too, and compares.
 */
#include <math.h>

#include "program.h"

#define BOXES 64
#define CHUNKS 128
#define DEPTH_MAX 60
#define THETA 0.7
#define SOFTENING 0.05
#define DT 0.01
#define BUILD_LOCK 1
#define FORCE_LOCK 2

struct body {
    double at[3], velocity[3], force[3], mass;
};

/* A child is the number of a cell, or -1 - the number of a body; 0: none (cell 0 is the root, nobody's child). */
struct cell {
    double center[3], mass;
    double middle[3], half; /* the cube */
    int32_t child[8];
};

struct world {
    int is_own, bodies, cells_each;
    struct body *body;
    struct cell *cell;
    int32_t *box, *taken; /* the cell or body of each box; what is taken of boxes and of chunks */
    int32_t next_cell;    /* of this rank's cells */
    int32_t *order, begin[BOXES + 1]; /* the bodies by boxes; private */
};

static double low[3], side;

#define STORE(world, place, value) \
    do { \
        if ((world)->is_own) \
            (place) = (value); \
        else \
            ST(place, value); \
    } while (0)

static void meet(const struct world *world) {
    if (!world->is_own) BARRIER();
}

/* The next of `all` parts for this rank, or -1. */
static int take(struct world *world, int which, int all) {
    if (!world->is_own) LOCK(which ? FORCE_LOCK : BUILD_LOCK);
    int next = world->taken[which];
    if (next < all) STORE(world, world->taken[which], next + 1);
    if (!world->is_own) UNLOCK(which ? FORCE_LOCK : BUILD_LOCK);
    return next < all ? next : -1;
}

static int box_of(const double *at) {
    int box = 0;
    for (int axis = 0; axis < 3; axis++) {
        int place = (int)((at[axis] - low[axis]) / side * 4);
        box = 4 * box + (place < 0 ? 0 : place > 3 ? 3 : place);
    }
    return box;
}

static int octant(const struct cell *cell, const double *at) {
    return (at[0] >= cell->middle[0]) << 2 | (at[1] >= cell->middle[1]) << 1 | (at[2] >= cell->middle[2]);
}

static int32_t new_cell(struct world *world, const double *middle, double half) {
    if (world->next_cell % world->cells_each == world->cells_each - 1) {
        fprintf(stderr, "barnes: more than %d cells of one rank\n", world->cells_each);
        exit(1);
    }
    int32_t number = ++world->next_cell;
    struct cell *cell = &world->cell[number];
    for (int axis = 0; axis < 3; axis++) STORE(world, cell->middle[axis], middle[axis]);
    STORE(world, cell->half, half);
    for (int child = 0; child < 8; child++) STORE(world, cell->child[child], 0);
    return number;
}

/* Puts a body below a cell; two that fall into one octant get a cell there. */
static void insert(struct world *world, int32_t number, int32_t body, int depth) {
    struct cell *cell = &world->cell[number];
    const double *at = world->body[body].at;
    int where = octant(cell, at);
    int32_t child = cell->child[where];
    if (child == 0) {
        STORE(world, cell->child[where], -1 - body);
        return;
    }
    if (child < 0) {
        if (depth == DEPTH_MAX) {
            fprintf(stderr, "barnes: bodies %d and %d are at one place\n", body, -1 - child);
            exit(1);
        }
        double middle[3], half = cell->half / 2;
        for (int axis = 0; axis < 3; axis++) middle[axis] = cell->middle[axis] + (where >> (2 - axis) & 1 ? half : -half);
        int32_t inner = new_cell(world, middle, half);
        insert(world, inner, -1 - child, depth + 1);
        STORE(world, cell->child[where], inner);
        child = inner;
    }
    insert(world, child, body, depth + 1);
}

/* The mass of a cell and its center, from its children's. */
static void weigh(struct world *world, int32_t number, int is_deep) {
    struct cell *cell = &world->cell[number];
    double mass = 0, center[3] = {0};
    for (int child = 0; child < 8; child++) {
        int32_t of = cell->child[child];
        if (of == 0) continue;
        if (of > 0 && is_deep) weigh(world, of, 1);
        double weight = of > 0 ? world->cell[of].mass : world->body[-1 - of].mass;
        const double *at = of > 0 ? world->cell[of].center : world->body[-1 - of].at;
        mass += weight;
        for (int axis = 0; axis < 3; axis++) center[axis] += weight * at[axis];
    }
    STORE(world, cell->mass, mass);
    for (int axis = 0; axis < 3; axis++) STORE(world, cell->center[axis], center[axis] / mass);
}

/* The middle of the box `place` of 2^levels to a side. */
static void middle_of(int place, int levels, double *middle) {
    for (int axis = 0; axis < 3; axis++) {
        int at = place >> (levels * (2 - axis)) & ((1 << levels) - 1);
        middle[axis] = low[axis] + side * (at + 0.5) / (1 << levels);
    }
}

static void build(struct world *world) {
    /* All bodies by their boxes, in each in the order of their numbers. */
    int count[BOXES] = {0};
    for (int i = 0; i < world->bodies; i++) count[box_of(world->body[i].at)]++;
    for (int box = 0; box < BOXES; box++) world->begin[box + 1] = world->begin[box] + count[box];
    memset(count, 0, sizeof count);
    for (int i = 0; i < world->bodies; i++) {
        int box = box_of(world->body[i].at);
        world->order[world->begin[box] + count[box]++] = i;
    }
    for (int box; (box = take(world, 0, BOXES)) >= 0;) {
        const int32_t *order = world->order + world->begin[box];
        int bodies = world->begin[box + 1] - world->begin[box];
        int32_t number = bodies == 0 ? 0 : -1 - order[0];
        if (bodies > 1) {
            double middle[3];
            middle_of(box, 2, middle);
            number = new_cell(world, middle, side / 8);
            for (int i = 0; i < bodies; i++) insert(world, number, order[i], 2);
            weigh(world, number, 1);
        }
        STORE(world, world->box[box], number);
    }
    meet(world);
    if (rank == 0) {
        static const double origin[3];
        world->next_cell = -1;
        int32_t root = new_cell(world, origin, side / 2);
        for (int part_of = 0; part_of < 8; part_of++) {
            double middle[3];
            middle_of(part_of, 1, middle);
            int32_t cell = new_cell(world, middle, side / 4);
            int is_empty = 1;
            for (int child = 0; child < 8; child++) {
                int box = 0;
                for (int axis = 0; axis < 3; axis++)
                    box = 4 * box + 2 * (part_of >> (2 - axis) & 1) + (child >> (2 - axis) & 1);
                STORE(world, world->cell[cell].child[child], world->box[box]);
                is_empty = is_empty && world->box[box] == 0;
            }
            if (!is_empty) weigh(world, cell, 0);
            STORE(world, world->cell[root].child[part_of], is_empty ? 0 : cell);
        }
        weigh(world, root, 0);
        for (int which = 0; which < 2; which++) STORE(world, world->taken[which], 0);
    }
    meet(world);
}

static void pull(const struct world *world, int32_t body, const double *from, double mass, double *force) {
    double way[3], square = SOFTENING * SOFTENING;
    for (int axis = 0; axis < 3; axis++) {
        way[axis] = from[axis] - world->body[body].at[axis];
        square += way[axis] * way[axis];
    }
    double scale = mass / (square * sqrt(square));
    for (int axis = 0; axis < 3; axis++) force[axis] += scale * way[axis];
}

static void walk(const struct world *world, int32_t number, int32_t body, double *force) {
    const struct cell *cell = &world->cell[number];
    for (int child = 0; child < 8; child++) {
        int32_t of = cell->child[child];
        if (of == 0 || of == -1 - body) continue;
        if (of < 0) {
            pull(world, body, world->body[-1 - of].at, world->body[-1 - of].mass, force);
            continue;
        }
        const struct cell *inner = &world->cell[of];
        double square = 0;
        for (int axis = 0; axis < 3; axis++) {
            double way = inner->center[axis] - world->body[body].at[axis];
            square += way * way;
        }
        if (4 * inner->half * inner->half < THETA * THETA * square)
            pull(world, body, inner->center, inner->mass, force);
        else
            walk(world, of, body, force);
    }
}

static void *memory_of(const struct world *world, size_t bytes) {
    return world->is_own ? calloc(1, bytes) : shared(bytes);
}

static double run(struct world *world, int bodies, int steps) {
    int ranks = world->is_own ? 1 : size, of_rank = world->is_own ? 0 : rank;
    world->bodies = bodies;
    world->cells_each = 4 * bodies + BOXES;
    world->body = memory_of(world, sizeof *world->body * (size_t)bodies);
    world->cell = memory_of(world, sizeof *world->cell * (size_t)(world->cells_each * (ranks + 1)));
    world->box = memory_of(world, sizeof *world->box * BOXES);
    world->taken = memory_of(world, 4096);
    world->order = malloc(sizeof *world->order * (size_t)bodies);
    size_t first = 0, end = (size_t)bodies;
    if (!world->is_own) end = part((size_t)bodies, &first);
    uint64_t random = 1;
    for (size_t i = 0; i < (size_t)bodies; i++) {
        double value[6];
        for (int k = 0; k < 6; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            value[k] = (double)(random >> 11) / (double)(1ull << 53) - 0.5;
        }
        if (i < first || i >= end) continue;
        struct body *body = &world->body[i];
        for (int axis = 0; axis < 3; axis++) {
            STORE(world, body->at[axis], value[axis] * (i % 3 ? 1 : 0.2));
            STORE(world, body->velocity[axis], value[3 + axis] * 0.1);
        }
        STORE(world, body->mass, 1.0 / bodies);
    }
    meet(world);
    double began = now();
    for (int step = 0; step < steps; step++) {
        double most = 0;
        for (int i = 0; i < bodies; i++)
            for (int axis = 0; axis < 3; axis++) most = fmax(most, fabs(world->body[i].at[axis]));
        side = 2.0001 * most;
        for (int axis = 0; axis < 3; axis++) low[axis] = -side / 2;
        /* The first cells are rank 0's, for the root and its children. */
        world->next_cell = world->cells_each * (of_rank + 1);
        build(world);
        for (int chunk; (chunk = take(world, 1, CHUNKS)) >= 0;)
            for (int i = bodies * chunk / CHUNKS; i < bodies * (chunk + 1) / CHUNKS; i++) {
                double force[3] = {0};
                walk(world, 0, i, force);
                for (int axis = 0; axis < 3; axis++) STORE(world, world->body[i].force[axis], force[axis]);
            }
        meet(world);
        for (size_t i = first; i < end; i++)
            for (int axis = 0; axis < 3; axis++) {
                struct body *body = &world->body[i];
                STORE(world, body->velocity[axis], body->velocity[axis] + DT * body->force[axis]);
                STORE(world, body->at[axis], body->at[axis] + DT * body->velocity[axis]);
            }
        meet(world);
    }
    return now() - began;
}

int main(int argc, char **argv) {
    int bodies = argc > 1 ? atoi(argv[1]) : 512, steps = argc > 2 ? atoi(argv[2]) : 3;
    size_t bytes = (size_t)bodies * sizeof(struct body) + (size_t)(4 * bodies + BOXES) * 17 * sizeof(struct cell);
    join(bytes + (16 << 20));
    static struct world all, own = {.is_own = 1};
    double taken = run(&all, bodies, steps);
    int is_right = 1;
    if (rank == 0) {
        run(&own, bodies, steps);
        is_right = memcmp(all.body, own.body, sizeof(struct body) * (size_t)bodies) == 0;
    }
    char what[64];
    snprintf(what, sizeof what, "%d bodies, %d steps", bodies, steps);
    say("barnes", what, taken, is_right);
}
