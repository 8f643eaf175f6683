/*
 * Halo exchange: a ring of cells, shared out to the ranks of a job, in which heat spreads. In each step
 * a rank gives the cell at each of its edges to its neighbour there. The result is that of one process
 * that has all cells. Run it as `hamlyn run -n 4 -- job_halo`, or under `mpirun`, `srun`, `mpiexec`.
 */
#include "common.h"

enum { CELLS = 200, STEPS = 50 };

/* Heat after a step in a cell with these neighbours. Whole numbers, so that the order does not matter. */
static uint64_t step(uint64_t left, uint64_t own, uint64_t right) {
    return (left + 2 * own + right) / 4;
}

static uint64_t first(size_t i) {
    return i % 7 == 0 ? (uint64_t)1 << 40 : i;
}

/* A step of `count` cells, with the one before and the one behind them around. */
static void steps(uint64_t *cells, size_t count) {
    uint64_t before = cells[0];
    for (size_t i = 1; i <= count; i++) {
        uint64_t own = cells[i];
        cells[i] = step(before, own, cells[i + 1]);
        before = own;
    }
}

static void give(h_stream_sender_t *to, uint64_t cell) {
    CHECK(h_stream_send(to, &cell, sizeof cell, LIMIT));
    CHECK(h_stream_flush(to, LIMIT));
}

static uint64_t take(h_stream_receiver_t *from) {
    h_record_t record;
    uint64_t cell;
    CHECK(h_stream_receive(from, LIMIT, &record));
    if (record.length != sizeof cell) {
        fprintf(stderr, "a record of %zu bytes is no cell\n", record.length);
        exit(1);
    }
    memcpy(&cell, record.data, sizeof cell);
    CHECK(h_stream_release(from, record.number));
    return cell;
}

int main(void) {
    h_job_t *job;
    h_node_t *node;
    uint32_t rank, size;
    CHECK(h_job_open(NULL, 0, &job));
    CHECK(h_job_node(job, &node));
    CHECK(h_job_rank(job, &rank));
    CHECK(h_job_size(job, &size));
    if (size > CELLS) {
        fprintf(stderr, "%u ranks are too many for %d cells\n", size, CELLS);
        return 1;
    }
    size_t begin = (size_t)rank * CELLS / size, end = ((size_t)rank + 1) * CELLS / size;
    size_t count = end - begin;
    /* This rank's cells are 1 to `count`; beside them there is room for those of the neighbours. */
    uint64_t cells[CELLS + 2], all[CELLS + 2];
    for (size_t i = 0; i < count; i++) {
        cells[i + 1] = first(begin + i);
    }
    /* Of two ranks each is the other's neighbour on both sides: what goes left and what goes right have
     * names of their own. */
    uint32_t left = (rank + size - 1) % size, right = (rank + 1) % size;
    h_stream_receiver_t *from_left, *from_right;
    h_stream_sender_t *to_left, *to_right;
    CHECK(h_stream_receiver_new(node, NULL, &from_left));
    CHECK(h_stream_receiver_new(node, NULL, &from_right));
    CHECK(h_stream_receiver_offer(from_left, job, "from-left"));
    CHECK(h_stream_receiver_offer(from_right, job, "from-right"));
    CHECK(h_stream_sender_grow_from(job, left, "from-right", LIMIT, &to_left));
    CHECK(h_stream_sender_grow_from(job, right, "from-left", LIMIT, &to_right));
    for (int i = 0; i < STEPS; i++) {
        give(to_left, cells[1]);
        give(to_right, cells[count]);
        cells[0] = take(from_left);
        cells[count + 1] = take(from_right);
        steps(cells, count);
    }
    /* All cells in one process. */
    for (size_t i = 0; i < CELLS; i++) {
        all[i + 1] = first(i);
    }
    for (int i = 0; i < STEPS; i++) {
        all[0] = all[CELLS];
        all[CELLS + 1] = all[1];
        steps(all, CELLS);
    }
    if (memcmp(cells + 1, all + 1 + begin, count * sizeof *cells)) {
        fprintf(stderr, "rank %u: not what one process computes\n", rank);
        return 1;
    }
    CHECK(h_job_fence(job, LIMIT));
    if (rank == 0) {
        printf("%u ranks, %d cells, %d steps: as one process computes it\n", size, CELLS, STEPS);
    }
    h_stream_sender_free(to_left);
    h_stream_sender_free(to_right);
    h_stream_receiver_free(from_left);
    h_stream_receiver_free(from_right);
    h_node_free(node);
    h_job_free(job);
    return 0;
}
