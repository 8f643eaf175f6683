/* NX's calls of all nodes, over messages of the library; and those that exchange none. */
#include "internal.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vmmc.h>

typedef void combine(void *x, void *work, long n);

static long me, nodes;

/* ---- Errors. ---- */

int nx_rank, nx_has_failed;
static char wrong[80]; /* for the last error, if it was nx_wrong */

int nx_fail(int error) {
    errno = error;
    wrong[0] = 0;
    return -1;
}

int nx_wrong(const char *what, long value) {
    nx_fail(EINVAL);
    snprintf(wrong, sizeof wrong, "%s: %ld", what, value);
    return -1;
}

long nx_checked(long result, const char *call) {
    if (result >= 0) return result;
    nx_has_failed = 1;
    const char *more = errno == EIO ? vmmc_error_text() : errno == EINVAL ? wrong : "";
    fprintf(stderr, "nx: node %d: %s: %s%s%s\n", nx_rank, call, strerror(errno), *more ? ": " : "", more);
    exit(1);
}

/* ---- Calls of all nodes. ---- */

static int join(void) {
    me = _mynode();
    nodes = _numnodes();
    return me < 0 ? -1 : 0;
}

/* As many bytes as all have. */
static int get(void *buf, long bytes, long node) {
    long came = nx_get(buf, bytes, node);
    return came == bytes ? 0 : came < 0 ? -1 : nx_fail(EPROTO);
}

/* Up a tree to node 0: a node has nodes `mask` behind it. */
static int up(void *x, void *work, long bytes, combine *combine, long n) {
    for (long mask = 1; mask < nodes; mask <<= 1) {
        if (me & mask) return (int)nx_give(x, bytes, me - mask);
        if (me + mask >= nodes) continue;
        if (get(work, bytes, me + mask) < 0) return -1;
        if (combine) combine(x, work, n);
    }
    return 0;
}

static int down(void *x, long bytes) {
    long mask = 1;
    while (mask < nodes && !(me & mask)) mask <<= 1;
    if (me && get(x, bytes, me - mask) < 0) return -1;
    for (mask >>= 1; mask; mask >>= 1)
        if (me + mask < nodes && nx_give(x, bytes, me + mask) < 0) return -1;
    return 0;
}

static long all(void *x, void *work, long bytes, combine *combine, long n) {
    if (join() < 0) return -1;
    if (bytes < 0) return nx_wrong("count", n);
    if (bytes > 0 && (!x || (!work && nodes > 1))) return nx_wrong("NULL, with the count", n);
    return up(x, work, bytes, combine, n) < 0 ? -1 : down(x, bytes);
}

CALL(void, gsync, (void), (), all(NULL, NULL, 0, NULL, 0))

#define REDUCTION(name, T, result)                                \
    static void combine_##name(void *to, void *from, long n) {    \
        for (long i = 0; i < n; i++) {                            \
            T x = ((T *)to)[i], y = ((T *)from)[i];               \
            ((T *)to)[i] = (result);                              \
        }                                                         \
    }                                                             \
    CALL(void, name, (T data[], long n, T work[]), (data, n, work), \
         all(data, work, n > LONG_MAX / (long)sizeof(T) ? -1 : n * (long)sizeof(T), combine_##name, n))

REDUCTION(gdsum, double, x + y)
REDUCTION(gdprod, double, x * y)
REDUCTION(gdhigh, double, x > y ? x : y)
REDUCTION(gdlow, double, x < y ? x : y)
REDUCTION(gssum, float, x + y)
REDUCTION(gsprod, float, x * y)
REDUCTION(gshigh, float, x > y ? x : y)
REDUCTION(gslow, float, x < y ? x : y)
REDUCTION(gisum, long, (long)((unsigned long)x + (unsigned long)y))
REDUCTION(giprod, long, (long)((unsigned long)x * (unsigned long)y))
REDUCTION(gihigh, long, x > y ? x : y)
REDUCTION(gilow, long, x < y ? x : y)
REDUCTION(giand, long, x & y)
REDUCTION(gior, long, x | y)
REDUCTION(gland, long, x && y)
REDUCTION(glor, long, x || y)

static nx_function *of_gopf;

static void apply(void *x, void *work, long n) {
    (void)n;
    of_gopf(x, work);
}

CALL(void, gopf, (void *x, long bytes, void *work, nx_function *function), (x, bytes, work, function),
     (of_gopf = function) ? all(x, work, bytes, apply, bytes) : nx_wrong("no function", 0))

static long collect(const void *x, long xlen, void *y, long ylen, long *ncnt) {
    long total = xlen, came;
    if (join() < 0) return -1;
    if (xlen < 0 || ylen < 0) return nx_wrong("count", xlen < 0 ? xlen : ylen);
    if ((xlen > 0 && !x) || (ylen > 0 && !y)) return nx_wrong("NULL, with the count", xlen > 0 && !x ? xlen : ylen);
    if (me) {
        if (nx_give(x, xlen, 0) < 0) return -1;
    } else {
        if (xlen > ylen) return nx_fail(EMSGSIZE);
        if (xlen) memmove(y, x, (size_t)xlen);
        for (long node = 1; node < nodes; node++, total += came)
            if ((came = nx_get((char *)y + total, ylen - total, node)) < 0) return -1;
    }
    if (down(&total, sizeof total) < 0) return -1;
    if (total < 0 || total > ylen) return nx_fail(EMSGSIZE);
    if (ncnt) *ncnt = total;
    return down(y, total);
}

static long collect_known(const void *x, const long xlens[], void *y) {
    long total = 0;
    if (join() < 0) return -1;
    if (!xlens) return nx_wrong("NULL, with the nodes", nodes);
    for (long node = 0; node < nodes; node++)
        if (xlens[node] < 0 || __builtin_add_overflow(total, xlens[node], &total)) return nx_wrong("count", xlens[node]);
    return collect(x, xlens[me], y, total, NULL);
}

CALL(void, gcol, (const void *x, long xlen, void *y, long ylen, long *ncnt), (x, xlen, y, ylen, ncnt),
     collect(x, xlen, y, ylen, ncnt))
CALL(void, gcolx, (const void *x, const long xlens[], void *y), (x, xlens, y), collect_known(x, xlens, y))

/* ---- Of any node and process type. ---- */

CALL(void, crecv, (long typesel, void *buf, long count), (typesel, buf, count),
     _crecvx(typesel, buf, count, -1, -1, NULL))
CALL(long, irecv, (long typesel, void *buf, long count), (typesel, buf, count),
     _irecvx(typesel, buf, count, -1, -1, NULL))
CALL(long, iprobe, (long typesel), (typesel), _iprobex(typesel, -1, -1, NULL))
CALL(void, cprobe, (long typesel), (typesel), _cprobex(typesel, -1, -1, NULL))

long msgmerge(long mid, long mid2) {
    return mid == -1 && mid2 == -1 ? -1 : nx_checked(_msgmerge(mid, mid2), "msgmerge");
}

/* ---- About messages, clocks, and the iPSC. ---- */

static long flush(long typesel, long nodesel, long ptypesel) {
    long found, is[8], result = 0;
    while (result == 0 && (found = _iprobex(typesel, nodesel, ptypesel, is)) != 0) {
        void *bytes = found < 0 ? NULL : malloc((size_t)is[1] + 1);
        result = found < 0 ? -1 : !bytes ? nx_fail(ENOMEM) : _crecvx(typesel, bytes, is[1], nodesel, ptypesel, is);
        free(bytes);
    }
    return result;
}

CALL(void, flushmsg, (long typesel, long nodesel, long ptypesel), (typesel, nodesel, ptypesel),
     flush(typesel, nodesel, ptypesel))
CALL(long, myhost, (void), (), _numnodes())
CALL(long, mypid, (void), (), _myptype())
CALL(long, infotype, (void), (), msginfo[0])
CALL(long, infocount, (void), (), msginfo[1])
CALL(long, infonode, (void), (), msginfo[2])
CALL(long, infoptype, (void), (), msginfo[3])
CALL(long, infopid, (void), (), msginfo[3])

static unsigned long nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1000000000ul * (unsigned long)now.tv_sec + (unsigned long)now.tv_nsec;
}

double dclock(void) {
    return 1e-9 * (double)nanoseconds();
}

unsigned long mclock(void) {
    return nanoseconds() / 1000000;
}

void hwclock(esize_t *ticks) {
    unsigned long now = nanoseconds() / (1000000000 / HWHZ);
    *ticks = (esize_t){(long)(now & UINT32_MAX), (long)(now >> 32)};
}

void nx_perror(const char *text) {
    fprintf(stderr, "(node %ld) %s: %s\n", mynode(), text, strerror(errno));
}

static long dimension(long of) {
    long dimension = 0;
    while (of > 1l << dimension) dimension++;
    return of < 0 ? -1 : dimension;
}

static long from_gray(long n) {
    long code = n;
    while (n > 0 && (n >>= 1)) code ^= n;
    return code;
}

CALL(long, nodedim, (void), (), dimension(_numnodes()))
CALL(long, gray, (long n), (n), n ^ n >> 1)
CALL(long, ginv, (long n), (n), from_gray(n))
CALL(void, led, (long state), (state), 0 * state)

long nx_app_rect(long *rows, long *cols) {
    long of = numnodes();
    *rows = 1;
    for (long side = 2; side * side <= of; side++)
        if (of % side == 0) *rows = side;
    *cols = of / *rows;
    return 0;
}

long mypart(long *rows, long *cols) {
    return nx_app_rect(rows, cols);
}

long nx_initve(const char *partition, long size, const char *account, int *argc, char **argv) {
    (void)partition, (void)size, (void)account, (void)argc, (void)argv;
    return _numnodes();
}

long nx_nfork(const long list[], long count, long ptype, long pids[]) {
    (void)list, (void)count, (void)pids;
    return _setptype(ptype);
}

long nx_waitall(void) {
    return 0;
}
