/* NX: every promise of nx.h, with any number of ranks. C and C++. */
#include <errno.h>
#include <limits.h>
#include <nx.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef NX_HELD
#define NX_HELD (64ul << 20)
#endif
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

/* A selector of several types; and of process types. */
static void selectors(long me, long n) {
    long next = (me + 1) % n, before = (me + n - 1) % n, word, about[8];
    static const long types[] = {0, 29, 30, FORCE_TYPE + 5, 0x7fffffff};
    for (unsigned i = 0; i < 5; i++) csend(types[i], &types[i], sizeof types[i], next, 0);
    crecv(0xC0000000, &word, sizeof word);
    CHECK(word == 30 && infotype() == 30);
    crecv(-1 - 0x7fffffffl + (1 << 29), &word, sizeof word);
    CHECK(word == 29 && iprobe(0x80000000 | 1 << 29) == 0);
    crecv(0xC0000001, &word, sizeof word);
    CHECK(word == 0);
    crecv(0xC0000000, &word, sizeof word);
    CHECK(word == FORCE_TYPE + 5);
    crecvx(-1, &word, sizeof word, before, -1, msginfo);
    CHECK(word == 0x7fffffff && infotype() == word);
    gsync();
    CHECK(_setptype(-1) == -1 && errno == EINVAL);
    setptype(me % 2 + 1);
    csend(1, &me, sizeof me, next, 0);
    cprobex(1, -1, before % 2 + 1, about);
    CHECK(about[3] == before % 2 + 1 && iprobex(-1, -1, before % 2 + 2, NULL) == 0 && iprobex(-1, before, -1, NULL) == 1);
    crecvx(1, &word, sizeof word, -1, before % 2 + 1, NULL);
    CHECK(infoptype() == before % 2 + 1 && infopid() == infoptype() && myptype() == me % 2 + 1 && mypid() == myptype());
    gsync();
    setptype(0);
}

/* All send first: to the next node, which may be this one. */
static void all_send_first(long me, long n) {
    long next = (me + 1) % n, before = (me + n - 1) % n, held = NX_HELD;
    long bytes = held > 3000000 ? 3000000 : held / 2;
    unsigned char *out = pattern(bytes, me), *wanted = pattern(bytes, before), *in = pattern(bytes, 99);
    csend(8, out, bytes, next, 0);
    for (long i = 0; i < 2000; i++) csend(9, &i, held > 1000000 ? (long)sizeof i : 0, next, 0);
    crecv(8, in, bytes);
    CHECK(infocount() == bytes && memcmp(in, wanted, (size_t)bytes) == 0);
    for (long i = 0, word = 0; i < 2000; i++, word = i) {
        crecv(9, &word, sizeof word);
        CHECK(word == i);
    }
    free(out);
    free(wanted);
    free(in);
    gsync();
}

/* More than a node holds for another: it goes on when it is asked for, and at once if it has been. */
static void more_than_is_held(long me, long n) {
    long next = (me + 1) % n, before = (me + n - 1) % n, held = NX_HELD, bytes = held + 300000, word = 0;
    if (held > 1000000) return;
    unsigned char *out = pattern(bytes, me), *wanted = pattern(bytes, before), *in = pattern(bytes, 99);
    for (int early = 0; early < 2; early++) {
        memset(in, 0, (size_t)bytes);
        long posted = early ? irecv(8, in, bytes) : -1;
        long mid = isend(8, out, bytes, next, 0);
        for (long i = 0; i < 300; i++) mid = msgmerge(mid, isend(9, &me, sizeof me, next, 0));
        if (!early) {
            cprobe(8);
            CHECK(iprobe(9) == 0 || n == 1);
            crecv(8, in, bytes);
        }
        if (early) msgwait(posted);
        CHECK(infocount() == bytes && memcmp(in, wanted, (size_t)bytes) == 0);
        for (long i = 0; i < 300; i++) {
            crecv(9, &word, sizeof word);
            CHECK(word == before);
        }
        msgwait(mid);
    }
    free(out);
    free(wanted);
    free(in);
    gsync();
}

/* Calls that send and receive, to several, and ids. */
static void exchanges(long me, long n) {
    long next = (me + 1) % n, before = (me + n - 1) % n, word = -1, other = -1, third = me, about[8] = {0};
    CHECK(csendrecv(40, &me, sizeof me, next, 0, 40, &word, sizeof word) == (long)sizeof word && word == before);
    long mid = isendrecv(41, &me, sizeof me, before, 0, 41, &word, sizeof word);
    msgwait(mid);
    CHECK(word == next && infotype() == 41);
    /* One id for three, and none. */
    mid = msgmerge(-1, irecvx(42, &word, sizeof word, -1, -1, about));
    mid = msgmerge(mid, irecv(43, &other, sizeof other));
    long last = isend(43, &third, sizeof third, next, 0);
    CHECK(msgmerge(mid, last) == mid && _msgwait(last) == -1 && errno == EINVAL && _msgmerge(mid, mid) == -1);
    CHECK(msgdone(mid) == 0 && about[1] == 0);
    gsync();
    csend(42, &me, sizeof me, next, 0);
    while (msgdone(mid) == 0) flick();
    CHECK(word == before && other == before && about[0] == 42 && about[1] == (long)sizeof word && _msgdone(mid) == -1);
    /* A receive that is given up takes no message. */
    msgcancel(irecv(44, &other, sizeof other));
    gsync();
    csend(44, &me, sizeof me, next, 0);
    crecv(44, &word, sizeof word);
    msgcancel(isend(45, &me, sizeof me, next, 0));
    CHECK(word == before && _msgcancel(0) == -1 && errno == EINVAL);
    CHECK(msgmerge(-1, -1) == -1 && msgdone(-1) == 1 && _msgwait(-1) == 0 && _msgmerge(-2, 0) == -1);
    gsync();
    flushmsg(-1, -1, -1);
    CHECK(iprobe(-1) == 0);
    gsync();
    /* To a list, and to all others. */
    long nodes[2] = {next, before};
    gsendx(46, &me, sizeof me, nodes, 2);
    for (int i = 0; i < 2; i++) crecvx(46, &word, sizeof word, i ? next : before, -1, NULL);
    mid = isend(47, &me, sizeof me, -1, 0);
    for (long node = 0; node < n; node++)
        if (node != me) crecvx(47, &word, sizeof word, node, -1, NULL);
    msgwait(mid);
    CHECK(n == 1 || word == (me == n - 1 ? n - 2 : n - 1));
    gsync();
}

static long add_up(void *x, void *work) {
    *(long *)x += *(long *)work;
    return 0;
}

static void more_globals(long me, long n) {
    double product = 2, dwork;
    float sum = (float)me, high = (float)me, low = (float)me, fproduct = 2, fwork;
    long all = 1, ands = 6 | 1l << (me % 60), ors = 1l << (me % 60), land = me, lor = me, total = me, work, known[64], count = 0;
    gdprod(&product, 1, &dwork);
    gssum(&sum, 1, &fwork);
    gsprod(&fproduct, 1, &fwork);
    gshigh(&high, 1, &fwork);
    gslow(&low, 1, &fwork);
    for (long i = 0; i < n; i++) all *= 2;
    CHECK(product == (double)all && fproduct == (float)all && sum == (float)(n * (n - 1) / 2) && high == (float)(n - 1) && low == 0);
    long iproduct = 2;
    giprod(&iproduct, 1, &work);
    giand(&ands, 1, &work);
    gior(&ors, 1, &work);
    gland(&land, 1, &work);
    glor(&lor, 1, &work);
    CHECK(iproduct == all && (ands & 6) == 6 && ors == (1l << n) - 1 && land == 0 && lor == (n > 1));
    gopf(&total, sizeof total, &work, add_up);
    CHECK(total == n * (n - 1) / 2 && _gopf(&total, sizeof total, &work, NULL) == -1 && errno == EINVAL);
    char mine[64], y[64 * 64];
    memset(mine, 'a' + (int)me, sizeof mine);
    for (long node = 0; node < n; node++) count += known[node] = node % 3 + 1;
    gcolx(mine, known, y);
    CHECK(y[0] == 'a' && y[count - 1] == 'a' + (char)(n - 1));
    long rows, cols;
    CHECK(mypart(&rows, &cols) == 0 && rows * cols == n && rows <= cols && 1l << nodedim() >= n && myhost() == n);
    for (long i = 0; i < 100; i++) CHECK(ginv(gray(i)) == i && __builtin_popcountl((unsigned long)(gray(i) ^ gray(i + 1))) == 1);
    esize_t ticks;
    hwclock(&ticks);
    CHECK(mclock() > 0 && (ticks.slow || ticks.shigh));
}

static long ran, param_was;

static void xhandler(long type, long count, long node, long ptype, long param) {
    handler(type, count, node, ptype);
    param_was = param;
    ran++;
}

static void more_handlers(long me, long n) {
    long next = (me + 1) % n, before = (me + n - 1) % n, word = -1, other = -1;
    ran = 0;
    hrecvx(50, &word, sizeof word, before, -1, xhandler, 77);
    hsendx(50, &me, sizeof me, next, 0, xhandler, 77);
    while (ran < 2) flick();
    CHECK(word == before && param_was == 77 && handled == 50);
    handled = -1;
    hsend(51, &me, sizeof me, next, 0, handler);
    while (handled == -1) flick();
    crecv(51, &word, sizeof word);
    CHECK(handled == 51);
    handled = -1;
    hsendrecv(52, &me, sizeof me, next, 0, 52, &other, sizeof other, handler);
    while (handled == -1) flick();
    CHECK(other == before && handled_node == before);
    gsync();
    handled = -1;
    hsend(53, &me, sizeof me, -1, 0, handler);
    while (handled == -1) flick();
    for (long i = 1; i < n; i++) crecv(53, &word, sizeof word);
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
    char byte = 0;
    CHECK(_csend(1, &byte, -1, 0, 0) == -1 && errno == EINVAL);
    CHECK(_csend(1, NULL, 1, 0, 0) == -1 && errno == EINVAL);
    CHECK(_csend(-1, &byte, 1, 0, 0) == -1 && errno == EINVAL);
    CHECK(_csend(1, &byte, 1, n, 0) == -1 && errno == EINVAL);
    CHECK(_csend(1l << 31, &byte, 1, 0, 0) == -1 && errno == EINVAL && _irecv(1l << 32, &byte, 1) == -1 && errno == EINVAL);
    CHECK(_gsendx(1, &byte, 1, NULL, 1) == -1 && errno == EINVAL && _gsendx(1, &byte, 1, &n, -1) == -1 && errno == EINVAL);
    double x, work;
    long many = (LONG_MAX / (long)sizeof x) + 2, lengths[256] = {LONG_MAX, LONG_MAX};
    CHECK(_gdsum(&x, many, &work) == -1 && errno == EINVAL && _gdsum(NULL, 1, &work) == -1 && errno == EINVAL);
    CHECK(_gcol(NULL, 1, &byte, 1, NULL) == -1 && errno == EINVAL && _gcol(&byte, 1, NULL, 1, NULL) == -1 && errno == EINVAL);
    CHECK(_gcol(&byte, -1, &byte, 1, NULL) == -1 && errno == EINVAL && _gcolx(&byte, NULL, &byte) == -1 && errno == EINVAL);
    if (n > 1) CHECK(_gcolx(&byte, lengths, &byte) == -1 && errno == EINVAL);
    CHECK(_msgwait(0) == -1 && _msgwait(5000) == -1 && _hrecv(1, &byte, 1, NULL) == -1);
}

static const char *marker(void) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/nx-has-ended", getenv("HAMLYN_DIR"));
    return path;
}

static void has_ended(void) {
    FILE *made = fopen(marker(), "w");
    if (made) fclose(made);
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
    selectors(me, n);
    all_send_first(me, n);
    more_than_is_held(me, n);
    exchanges(me, n);
    more_globals(me, n);
    more_handlers(me, n);
    /* To all others. */
    if (me == 0) csend(20, "all", 4, -1, 0);
    char text[4] = "all";
    if (me) crecv(20, text, sizeof text);
    CHECK(strcmp(text, "all") == 0);
    /* The last message is not lost though its sender leaves at once, and does not wait for it. */
    static unsigned char last[3000000];
    if (me == n - 1 && n > 1) {
        memset(last, 9, sizeof last);
        isend(21, last, sizeof last, 0, 0);
        atexit(has_ended); /* It is called before NX leaves. */
        return 0;
    }
    if (me == 0 && n > 1) {
        while (access(marker(), F_OK)) flick();
        unlink(marker());
        crecvx(21, last, sizeof last, n - 1, -1, NULL);
        CHECK(last[0] == 9 && last[sizeof last - 1] == 9);
        CHECK(_crecvx(22, last, 1, n - 1, -1, NULL) == -1 && errno == EPIPE);
        printf("nx: all as said\n");
    }
    return 0;
}
