/*
 * All to all: each rank of a job sends a block to each, and checks what it gets. Run it as
 * `hamlyn run -n 4 -- job_all_to_all`, or under `mpirun`, `srun`, `mpiexec`; on its own it is a job of
 * one rank.
 */
#include "common.h"

enum { BLOCK_BYTES = 10000, ROUNDS = 3 };

static void fill(unsigned char *block, uint32_t from, uint32_t to, uint32_t round) {
    for (uint32_t i = 0; i < BLOCK_BYTES; i++) {
        block[i] = (unsigned char)(from * 31 + to * 7 + round * 3 + i);
    }
}

int main(void) {
    h_job_t *job;
    uint32_t me, size;
    CHECK(h_job_open(NULL, 0, &job));
    CHECK(h_job_rank(job, &me));
    CHECK(h_job_size(job, &size));
    h_stream_receiver_t **from = (h_stream_receiver_t **)calloc(size, sizeof *from);
    h_stream_sender_t **to = (h_stream_sender_t **)calloc(size, sizeof *to);
    if (!from || !to) {
        return 1;
    }
    for (uint32_t rank = 0; rank < size; rank++) {
        CHECK(h_job_stream_from(job, rank, &from[rank]));
    }
    for (uint32_t rank = 0; rank < size; rank++) {
        CHECK(h_job_stream_to(job, rank, LIMIT, &to[rank]));
    }
    static unsigned char block[BLOCK_BYTES];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t rank = 0; rank < size; rank++) {
            fill(block, me, rank, round);
            CHECK(h_stream_send(to[rank], block, sizeof block, LIMIT));
            CHECK(h_stream_flush(to[rank], LIMIT));
        }
        for (uint32_t rank = 0; rank < size; rank++) {
            h_record_t record;
            CHECK(h_stream_receive(from[rank], LIMIT, &record));
            fill(block, rank, me, round);
            if (record.length != sizeof block || memcmp(record.data, block, sizeof block)) {
                fprintf(stderr, "rank %u: wrong bytes from rank %u\n", me, rank);
                return 1;
            }
            CHECK(h_stream_release(from[rank], record.number));
        }
    }
    /* What another has not received yet would end with this process. */
    CHECK(h_job_fence(job, LIMIT));
    if (me == 0) {
        char text[1024];
        CHECK(h_job_explain(job, text, sizeof text, NULL));
        printf("%s\n%u ranks, %d rounds: every block is what it should be\n", text, size, ROUNDS);
    }
    for (uint32_t rank = 0; rank < size; rank++) {
        h_stream_sender_free(to[rank]);
        h_stream_receiver_free(from[rank]);
    }
    free(from);
    free(to);
    h_job_free(job);
    return 0;
}
