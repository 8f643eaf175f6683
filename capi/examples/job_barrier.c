/*
 * A barrier of a job's ranks by group receive: rank 0 is told once when all others have come, and lets
 * them go on. Behind each barrier every rank tells which step it has come to. Run it as
 * `hamlyn run -n 4 -- job_barrier`, or under `mpirun`, `srun`, `mpiexec`.
 */
#include "common.h"

enum { STEPS = 5 };

static void root(h_job_t *job, uint32_t others) {
    h_node_t *node;
    h_group_t *group;
    CHECK(h_job_node(job, &node));
    CHECK(h_group_new(node, others, sizeof(uint32_t), 0, &group));
    CHECK(h_group_offer(group, job, "barrier"));
    for (uint32_t step = 0; step < STEPS; step++) {
        CHECK(h_group_barrier(group, LIMIT));
        /* Each says which step it has come to, with the next message of the group. */
        CHECK(h_group_gather(group, LIMIT));
        for (uint32_t member = 0; member < others; member++) {
            const void *part;
            size_t length;
            CHECK(h_group_part(group, member, &part, &length));
            if (length != sizeof step || memcmp(part, &step, sizeof step)) {
                fprintf(stderr, "member %u was not at step %u\n", member, step);
                exit(1);
            }
        }
        CHECK(h_group_next_round(group));
    }
    CHECK(h_job_fence(job, LIMIT));
    printf("%u ranks met %d times\n", others + 1, STEPS);
    h_group_free(group);
    h_node_free(node);
}

static void other(h_job_t *job) {
    h_group_member_t *member;
    CHECK(h_group_member_grow_from(job, 0, "barrier", sizeof(uint32_t), LIMIT, &member));
    for (uint32_t step = 0; step < STEPS; step++) {
        CHECK(h_group_member_barrier(member, LIMIT));
        CHECK(h_group_member_send(member, &step, sizeof step, LIMIT));
    }
    CHECK(h_job_fence(job, LIMIT));
    h_group_member_free(member);
}

int main(void) {
    h_job_t *job;
    uint32_t rank, size;
    CHECK(h_job_open(NULL, 0, &job));
    CHECK(h_job_rank(job, &rank));
    CHECK(h_job_size(job, &size));
    if (size == 1) {
        printf("one rank has nobody to wait for; hamlyn run -n 4 starts four\n");
    } else if (rank == 0) {
        root(job, size - 1);
    } else {
        other(job);
    }
    h_job_free(job);
    return 0;
}
