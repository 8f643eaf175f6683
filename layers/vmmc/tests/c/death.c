/* NX when a node ends without a word: those that wait for it, or for anybody, get ECONNRESET. 2 or more ranks; argument
 * `far`: it dies in the middle of a long message, `near`: while short ones are in its ring. */
#include "../../pairs/pairs.h"

#include <errno.h>
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(#holds, __LINE__))

static void fail(const char *what, int line) {
    fprintf(stderr, "death.c:%d: node %ld: not so: %s (%s)\n", line, mynode(), what, strerror(errno));
    _Exit(1);
}

/* The last node, which has sent the first bytes of a message to all others. */
static void die_in_a_message(void) {
    struct pairs pairs;
    struct {
        uint32_t context;
        int32_t type, ptype, zero;
        uint64_t bytes;
        char first[1000];
    } message = {0, 1, 0, 0, 1 << 20, {0}};
    if (pairs_open(&pairs, "nx", 256 << 10, "NX_UPDATE", 30000) < 0) _exit(3);
    for (int rank = 0; rank < pairs.rank; rank++) {
        pairs_put_ring(&pairs, rank, 0, 256 << 10, 0, &message, sizeof message);
        pairs_put_word(&pairs, rank, 0, sizeof message);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    static char bytes[1 << 20];
    int far = argc > 1 && strcmp(argv[1], "far") == 0;
    if (far && atoi(getenv("HAMLYN_JOB_RANK")) == atoi(getenv("HAMLYN_JOB_SIZE")) - 1) die_in_a_message();
    long me = mynode(), n = numnodes(), last = n - 1;
    if (!far) gsync();
    if (me == last) {
        for (long node = 0; node < last; node++)
            for (long i = 0; i < 10; i++) csend(1, &i, sizeof i, node, 0);
        _exit(0); /* As one that was killed: nothing is said. */
    }
    if (far) {
        CHECK(_crecvx(1, bytes, sizeof bytes, last, -1, NULL) == -1 && errno == ECONNRESET);
    } else {
        /* What it had sent is received first. */
        for (long i = 0; i < 10; i++) {
            long word = -1;
            CHECK(_crecvx(1, &word, sizeof word, last, -1, NULL) == 0 && word == i);
        }
    }
    CHECK(_crecvx(2, bytes, sizeof bytes, last, -1, NULL) == -1 && errno == ECONNRESET);
    CHECK(_crecv(2, bytes, sizeof bytes) == -1 && errno == ECONNRESET);
    CHECK(_cprobe(2) == -1 && errno == ECONNRESET);
    CHECK(_csend(2, bytes, sizeof bytes, last, 0) == -1 && errno == ECONNRESET);
    /* The others go on. */
    if (n > 2) {
        long next = (me + 1) % last, word = me;
        long posted = irecvx(3, &word, sizeof word, (me + last - 1) % last, -1, NULL), own = me;
        csend(3, &own, sizeof own, next, 0);
        msgwait(posted);
        CHECK(word == (me + last - 1) % last);
    }
    printf("death: node %ld: as said\n", me);
    return 0;
}
