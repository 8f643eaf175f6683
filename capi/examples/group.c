/*
 * A group: each member sends its part of a round, and the root is told once when all have arrived.
 * Then it sends the members what comes out, and all meet at a barrier.
 */
#include "common.h"

enum { MEMBERS = 3, NUMBERS = 1000 };

static void root(void) {
    h_node_t *node;
    h_group_t *group;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_group_new(node, MEMBERS, NUMBERS * sizeof(uint32_t), sizeof(uint64_t), &group));
    for (uint32_t i = 0; i < MEMBERS; i++) {
        h_seed_t seed;
        char text[H_SEED_TEXT_BYTES];
        CHECK(h_group_seed_of(group, i, &seed));
        CHECK(h_seed_to_text(&seed, text, sizeof text, NULL));
        start_other("member", text);
    }

    CHECK(h_group_gather(group, LIMIT));
    uint64_t sum = 0;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        const void *data;
        size_t length;
        CHECK(h_group_part(group, i, &data, &length));
        for (size_t j = 0; j < length / sizeof(uint32_t); j++) {
            sum += ((const uint32_t *)data)[j];
        }
    }
    CHECK(h_group_next_round(group));
    CHECK(h_group_broadcast(group, &sum, sizeof sum, LIMIT));
    CHECK(h_group_barrier(group, LIMIT));
    printf("the sum of %d parts is %llu\n", MEMBERS, (unsigned long long)sum);

    /* Nobody sends a part any more: whoever is lost is named. */
    uint32_t lost;
    h_status status = h_group_gather(group, LIMIT);
    printf("%s: %s\n", h_status_name(status), h_error_message());
    CHECK(h_group_lost(group, &lost));
    CHECK(h_group_close(group, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
    if (sum != (uint64_t)MEMBERS * (NUMBERS - 1) * NUMBERS / 2 || lost >= MEMBERS) {
        exit(1);
    }
}

static void member(const char *role, const char *text) {
    (void)role;
    h_node_t *node;
    h_group_member_t *member;
    h_seed_t seed;
    uint32_t numbers[NUMBERS];
    uint64_t sum;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_seed_from_text(text, &seed));
    CHECK(h_group_member_grow(node, &seed, sizeof sum, LIMIT, &member));
    for (uint32_t i = 0; i < NUMBERS; i++) {
        numbers[i] = i;
    }
    CHECK(h_group_member_send(member, numbers, sizeof numbers, LIMIT));
    CHECK(h_group_member_receive(member, LIMIT, &sum, sizeof sum, NULL));
    CHECK(h_group_member_barrier(member, LIMIT));
    CHECK(h_group_member_close(member, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, root, member);
}
