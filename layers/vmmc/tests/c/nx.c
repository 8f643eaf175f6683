/* NX: every promise of nx.h, with any number of ranks. C and C++. */
#include <errno.h>
#include <nx.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(#holds, __LINE__))

static void fail(const char *what, int line) {
    fprintf(stderr, "nx.c:%d: node %ld: not so: %s (%s)\n", line, mynode(), what, strerror(errno));
    _Exit(1);
}

static unsigned char *pattern(long bytes, long seed) {
    unsigned char *made = (unsigned char *)malloc((size_t)bytes + 1);
    for (long i = 0; i < bytes; i++) made[i] = (unsigned char)((i * 7 + i / 251 + seed) & 255);
    return made;
}

static long handled, handled_count, handled_node;

static void handler(long type, long count, long node, long ptype) {
    handled = type + ptype;
    handled_count = count;
    handled_node = node;
}

/* Every length to the next node and from the one before, posted early and late. */
static void lengths(long me, long n) {
    static const long all[] = {0, 1, 15, 16, 463, 464, 465, 4096, 65535, 65536, 65537, 200000, 1000000};
    long next = (me + 1) % n, before = (me + n - 1) % n;
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        long bytes = all[i];
        unsigned char *out = pattern(bytes, me), *wanted = pattern(bytes, before), *in = pattern(bytes, 99);
        for (int early = 0; early < 2; early++) {
            memset(in, 0, (size_t)bytes);
            long posted = early ? irecv(7, in, bytes) : 0;
            if (early) gsync();
            long sent = isend(7, out, bytes, next, 0);
            if (!early) posted = irecv(-1, in, bytes);
            msgwait(posted);
            CHECK(infocount() == bytes && infonode() == before && infotype() == 7 && infoptype() == 0);
            msgwait(sent);
            CHECK(memcmp(in, wanted, (size_t)bytes) == 0);
            gsync();
        }
        free(out);
        free(wanted);
        free(in);
    }
}

static void order_and_types(long me, long n) {
    long next = (me + 1) % n, before = (me + n - 1) % n, word;
    for (long i = 0; i < 500; i++) {
        word = 1000 * me + i;
        csend(i % 5, &word, sizeof word, next, 0);
    }
    /* By type, from behind; each type in its order. */
    for (long type = 4; type >= 0; type--)
        for (long i = type; i < 500; i += 5) {
            crecv(type, &word, sizeof word);
            CHECK(word == 1000 * before + i && infotype() == type);
        }
    CHECK(iprobe(-1) == 0);
    gsync();
    csend(3, "probe", 5, next, 0);
    cprobe(3);
    CHECK(infocount() == 5 && infotype() == 3 && infonode() == before && iprobe(3) == 1 && iprobe(4) == 0);
    char text[8];
    CHECK(_crecv(3, text, 4) == -1 && errno == EMSGSIZE);
    long about[8];
    crecvx(3, text, sizeof text, before, 0, about);
    CHECK(memcmp(text, "probe", 5) == 0 && about[0] == 3 && about[1] == 5 && about[2] == before && about[3] == 0);
    gsync();
}

/* Rings go round many times, with both kinds of messages, in both directions at once. */
static void many(long me, long n) {
    enum { AT_ONCE = 16, ROUNDS = 40 };
    static unsigned char in[AT_ONCE][90000], out[90000];
    long next = (me + 1) % n, before = (me + n - 1) % n, mids[2 * AT_ONCE];
    for (long round = 0; round < ROUNDS; round++) {
        for (long i = 0; i < AT_ONCE; i++) mids[i] = irecvx(i, in[i], sizeof in[i], before, -1, NULL);
        for (long i = 0; i < AT_ONCE; i++) {
            long bytes = (round * 7919 + i * 5641) % (i == 3 ? 90000 : 3000) + 16;
            memset(out, (int)(me + round + i), sizeof out);
            long mid = isend(i, out, bytes, next, 0);
            msgwait(mid);
        }
        for (long i = 0; i < AT_ONCE; i++) {
            long bytes = (round * 7919 + i * 5641) % (i == 3 ? 90000 : 3000) + 16;
            msgwait(mids[i]);
            unsigned char wanted = (unsigned char)(before + round + i);
            CHECK(infocount() == bytes && in[i][0] == wanted && in[i][bytes - 1] == wanted);
        }
    }
    gsync();
}

static void globals(long me, long n) {
    double x[3] = {me + 0.5, -(double)me, 1e-9 * (double)me}, work[3];
    gdsum(x, 3, work);
    CHECK(x[0] == (double)(n * (n - 1)) / 2 + 0.5 * (double)n && x[1] == -(double)(n * (n - 1)) / 2);
    double high = (double)me, low = (double)me;
    gdhigh(&high, 1, work);
    gdlow(&low, 1, work);
    long ihigh = -me, ilow = -me, sum = me + 1, iwork;
    gihigh(&ihigh, 1, &iwork);
    gilow(&ilow, 1, &iwork);
    gisum(&sum, 1, &iwork);
    CHECK(high == (double)(n - 1) && low == 0 && ihigh == 0 && ilow == -(n - 1) && sum == n * (n + 1) / 2);
    char mine[64], all[64 * 64];
    memset(mine, 'a' + (int)me, sizeof mine);
    long count;
    gcol(mine, me % 5, all, sizeof all, &count);
    long at = 0;
    for (long node = 0; node < n; node++)
        for (long i = 0; i < node % 5; i++) CHECK(all[at++] == 'a' + (char)node);
    CHECK(count == at);
    double began = dclock();
    flick();
    CHECK(dclock() >= began);
}

static void handlers(long me, long n) {
    long next = (me + 1) % n, before = (me + n - 1) % n, word = 0, sent = me;
    handled = -1;
    hrecv(11, &word, sizeof word, handler);
    CHECK(masktrap(1) == 0);
    gsync();
    csend(11, &sent, sizeof sent, next, 0);
    gsync();
    CHECK(handled == -1);
    CHECK(masktrap(0) == 1);
    while (handled == -1) flick();
    CHECK(handled == 11 && handled_count == (long)sizeof word && handled_node == before && word == before);
    gsync();
    /* Ids. */
    msgignore(irecv(12, &word, sizeof word));
    csend(12, &sent, sizeof sent, next, 0);
    long mid = irecv(13, &word, sizeof word);
    csend(13, &sent, sizeof sent, next, 0);
    long done;
    while ((done = msgdone(mid)) == 0) flick();
    CHECK(done == 1 && word == before && _msgdone(mid) == -1 && errno == EINVAL);
    gsync();
}

static void misuse(long n) {
    char byte;
    CHECK(_csend(1, &byte, -1, 0, 0) == -1 && errno == EINVAL);
    CHECK(_csend(1, NULL, 1, 0, 0) == -1 && errno == EINVAL);
    CHECK(_csend(-1, &byte, 1, 0, 0) == -1 && errno == EINVAL);
    CHECK(_csend(1, &byte, 1, n, 0) == -1 && errno == EINVAL);
    CHECK(_irecv(-2, &byte, 1) == -1 && errno == EINVAL);
    CHECK(_msgwait(0) == -1 && _msgwait(5000) == -1 && _hrecv(1, &byte, 1, NULL) == -1);
}

int main(void) {
    long me = mynode(), n = numnodes();
    CHECK(me >= 0 && me < n && myptype() == 0);
    misuse(n);
    lengths(me, n);
    order_and_types(me, n);
    many(me, n);
    globals(me, n);
    handlers(me, n);
    /* To all others. */
    if (me == 0) csend(20, "all", 4, -1, 0);
    char text[4] = "all";
    if (me) crecv(20, text, sizeof text);
    CHECK(strcmp(text, "all") == 0);
    /* The last message is not lost though its sender leaves at once. */
    static unsigned char last[60000];
    if (me == n - 1 && n > 1) {
        memset(last, 9, sizeof last);
        csend(21, last, sizeof last, 0, 0);
        return 0;
    }
    if (me == 0 && n > 1) {
        crecvx(21, last, sizeof last, n - 1, -1, NULL);
        CHECK(last[0] == 9 && last[sizeof last - 1] == 9);
        CHECK(_crecvx(22, last, 1, n - 1, -1, NULL) == -1 && errno == EPIPE);
        printf("nx: all as said\n");
    }
    return 0;
}
