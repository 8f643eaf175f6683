/* A rank that writes what it likes into its rings of NX (argument `nx`) or BSP (`bsp`), by a seed: the others get an
 * error, or what it did means nothing; none crashes or waits for ever. Rank 1 is hostile, rank 0 is not. */
#include "../../pairs/pairs.h"

#include <bsp.h>
#include <errno.h>
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t state;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void handler(long type, long count, long node, long ptype) {
    (void)type, (void)count, (void)node, (void)ptype;
}

/* Words near those that an honest rank writes. */
static void attack(const char *name, uint64_t bytes) {
    struct pairs pairs;
    if (pairs_open(&pairs, name, bytes, "NONE", 30000) < 0) exit(3);
    uint64_t at = 0, bulk = 0;
    for (uint64_t i = 0; i < 300; i++) {
        /* Mostly as it should be, so that the lies come late. */
        uint64_t announced = next() % 4 == 0;
        uint64_t header[6] = {announced, next() % 4, 0, announced ? next() % 100000 : next() % 600, announced ? i : 0, i};
        struct {
            uint32_t kind, context;
            uint64_t rest[5];
        } record = {(uint32_t)header[0], 0, {header[1], header[2], header[3], header[4], header[5]}};
        if (next() % 40 == 0) record.rest[next() % 5] = next() % 2 ? next() : next() % 300000;
        if (next() % 80 == 0) record.kind = (uint32_t)(next() % 4);
        if (next() % 80 == 0) record.context = (uint32_t)(next() % 4);
        pairs_put_ring(&pairs, 0, 0, 256 << 10, at, &record, sizeof record);
        at += sizeof record + (announced ? 0 : (header[3] + 15) / 16 * 16);
        pairs_put_word(&pairs, 0, 0, next() % 60 ? at : next() % (2 * at));
        if (next() % 20 == 0) pairs_put_word(&pairs, 0, (int)(next() % PAIRS_WORDS), next() % 2 ? next() : next() % 400000);
        if (next() % 3 == 0) pairs_put_word(&pairs, 0, 3, bulk += next() % 9000);
        for (int turn = 0; turn < 20; turn++) pairs_poll(&pairs);
    }
    pairs_close(&pairs);
    exit(0);
}

int main(int argc, char **argv) {
    int bsp = argc > 1 && strcmp(argv[1], "bsp") == 0;
    state = 88172645463325252u + 7919 * (argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    if (strcmp(getenv("HAMLYN_JOB_RANK") ? getenv("HAMLYN_JOB_RANK") : "", "1") == 0) {
        for (int i = 0; i < 10; i++) next();
        attack(bsp ? "bsp" : "nx", bsp ? 256 << 10 : 384 << 10);
    }
    if (bsp) {
        /* An error of a superstep ends the program: with 1, as bsp.h says. */
        bsp_begin(2);
        int word = 0;
        bsp_push_reg(&word, sizeof word);
        for (;;) {
            bsp_sync();
        }
    }
    static char bytes[1 << 20];
    _hrecv(3, bytes, sizeof bytes, handler);
    long mid = isend(1, bytes, sizeof bytes, 1, 0), received = 0;
    while (_crecvx(-1, bytes, sizeof bytes, 1, -1, NULL) == 0) received++;
    if (errno != EPROTO && errno != EPIPE && errno != ECONNRESET && errno != EMSGSIZE) {
        fprintf(stderr, "hostile: %s\n", strerror(errno));
        return 1;
    }
    int first = errno;
    if (first != EMSGSIZE && _msgwait(mid) == 0 && first == EPROTO) return 1;
    printf("hostile: %ld messages, then %s\n", received, strerror(first));
    return 0;
}
