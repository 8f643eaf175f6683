/* NX over pairs of rings: see nx.h for the promises, pairs.h for the rings.
 *
 *     message ring   records in their order: a header, and the bytes of messages of up to EAGER bytes. The receiver
 *                    notes headers, and takes bytes when something asks for them; a record is freed when all before
 *                    it are
 *     bulk ring      bytes of one longer message at a time, that the receiver has granted: they have a place to go,
 *                    so this ring always becomes empty
 *
 * Never: a peer's header or word is read twice; memory grows with what peers send.
 */
#include "nx.h"

#include "../pairs/pairs.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RING (256ul << 10)
#define BULK (128ul << 10)
#define EAGER (64l << 10)
#define PIECE (32ul << 10)
#define ENTRIES 1024
#define REQUESTS 4096
#define JOIN_MS 60000

/* Control words: counts of the writer's bytes in the rings, and of the reader's that it has taken. */
enum { WRITTEN, FREED, GRANTED, BULK_WRITTEN, BULK_FREED, LEFT };
enum { WHOLE, ANNOUNCED };
enum { OF_USER, OF_LIBRARY };

struct header {
    uint32_t kind, context;
    int64_t type, ptype;
    uint64_t bytes, number, sequence;
};

/* A message that nobody has taken. */
struct entry {
    struct header is;
    uint64_t at, end, stamp;
    int taken;
};

struct request {
    enum { FREE, SEND, RECEIVE } what;
    int done, error, ignored, context;
    long type, node, ptype, count, info[4]; /* info: type, count, node, ptype */
    char *buf;
    uint64_t number, moved, left; /* of a longer message: its number, bytes moved, bytes left */
    nx_handler *handler;
    struct request *next; /* in one list */
};

struct list {
    struct request *first, **end;
};

struct peer {
    uint64_t parsed, freed, told, sequence_in, bulk_taken; /* as receiver */
    struct entry *entries;
    uint32_t first, next; /* of entries, modulo ENTRIES */
    struct request *receiving; /* what was granted */
    struct list grants;        /* and what will be */
    uint64_t written, its_freed, sequence_out, number, bulk_written; /* as sender */
    struct list sends, announced;
    struct request *sending;
    int ended; /* why, as errno */
};

static struct pairs pairs;
static struct peer *peers;
static struct request requests[REQUESTS], *unused;
static struct list posted, called;
static uint64_t stamps;
static long info[4];
static int has_joined, traps_wait, in_handler;

static void append(struct list *list, struct request *request) {
    request->next = NULL;
    if (!list->first) list->end = &list->first;
    *list->end = request;
    list->end = &request->next;
}

static void remove_from(struct list *list, struct request *request) {
    for (struct request **at = &list->first; *at; at = &(*at)->next) {
        if (*at != request) continue;
        *at = request->next;
        if (list->end == &request->next) list->end = at;
        return;
    }
}

static int fail(int error) {
    errno = error;
    return -1;
}

static void die(const char *call) {
    fprintf(stderr, "nx: node %d: %s: %s", pairs.rank, call, strerror(errno));
    fprintf(stderr, errno == EIO ? ": %s\n" : "\n", vmmc_error_text());
    exit(1);
}

static void leave(void) {
    if (!has_joined) return;
    for (int node = 0; node < pairs.size; node++) pairs_put_word(&pairs, node, LEFT, 1);
    pairs_close(&pairs);
    has_joined = 0;
}

static int join(void) {
    if (has_joined) return 0;
    if (pairs.of) return fail(EIO);
    if (pairs_open(&pairs, "nx", RING + BULK, "NX_UPDATE", JOIN_MS) < 0) return fail(EIO);
    peers = calloc((size_t)pairs.size, sizeof *peers);
    for (int node = 0; peers && node < pairs.size; node++)
        if (!(peers[node].entries = calloc(ENTRIES, sizeof(struct entry)))) return fail(ENOMEM);
    if (!peers) return fail(ENOMEM);
    for (int i = 0; i < REQUESTS; i++) {
        requests[i].next = unused;
        unused = &requests[i];
    }
    has_joined = 1;
    atexit(leave);
    return 0;
}

static uint64_t padded(uint64_t bytes) {
    return (bytes + 15) & ~15ul;
}

static void broken(int node) {
    if (!peers[node].ended) peers[node].ended = EPROTO;
}

/* ---- Requests. ---- */

static void release(struct request *request) {
    memset(request, 0, sizeof *request);
    request->next = unused;
    unused = request;
}

static void complete(struct request *request, int error) {
    request->done = 1;
    request->error = error;
    if (request->handler)
        append(&called, request);
    else if (request->ignored)
        release(request);
}

static struct request *request(int what, long type, const void *buf, long count, long node, long ptype, int context) {
    if (count < 0 || (count > 0 && !buf)) return fail(EINVAL), NULL;
    if (!unused) return fail(ENOMEM), NULL;
    struct request *request = unused;
    unused = request->next;
    memset(request, 0, sizeof *request);
    request->what = what;
    request->type = type;
    request->buf = (char *)buf;
    request->count = count;
    request->node = node;
    request->ptype = ptype;
    request->context = context;
    return request;
}

/* ---- The receiver's side. ---- */

static int matches(const struct request *request, const struct header *header, int node) {
    return (uint32_t)request->context == header->context && (request->type == -1 || request->type == header->type) &&
           (request->node == -1 || request->node == node) && (request->ptype == -1 || request->ptype == header->ptype);
}

static void tell_about(long to[4], const struct header *header, int node) {
    to[0] = (long)header->type;
    to[1] = (long)header->bytes;
    to[2] = node;
    to[3] = (long)header->ptype;
}

/* Room for the sender, when all before it was taken. */
static void free_entries(int node) {
    struct peer *peer = &peers[node];
    while (peer->first != peer->next && peer->entries[peer->first % ENTRIES].taken)
        peer->freed = peer->entries[peer->first++ % ENTRIES].end;
    if (peer->freed - peer->told < RING / 8) return;
    peer->told = peer->freed;
    pairs_put_word(&pairs, node, FREED, peer->told);
}

static void grant(int node) {
    struct peer *peer = &peers[node];
    if (peer->receiving || !peer->grants.first) return;
    peer->receiving = peer->grants.first;
    remove_from(&peer->grants, peer->receiving);
    pairs_put_word(&pairs, node, GRANTED, peer->receiving->number);
}

/* A request gets a message; it is in no list. */
static void take(struct request *request, struct entry *entry, int node) {
    tell_about(request->info, &entry->is, node);
    if (entry->is.bytes > (uint64_t)request->count) {
        complete(request, EMSGSIZE);
        return;
    }
    entry->taken = 1;
    if (entry->is.kind == WHOLE) {
        pairs_take_ring(&pairs, node, 0, RING, entry->at, request->buf, entry->is.bytes);
        complete(request, 0);
    } else {
        request->number = entry->is.number;
        request->left = entry->is.bytes;
        append(&peers[node].grants, request);
        grant(node);
    }
    free_entries(node);
}

/* Headers that have come. */
static int parse(int node) {
    struct peer *peer = &peers[node];
    uint64_t written = pairs_word(&pairs, node, WRITTEN);
    int moved = 0;
    if (written - peer->told > RING || written < peer->parsed) {
        broken(node);
        return 0;
    }
    while (written - peer->parsed >= sizeof(struct header) && peer->next - peer->first < ENTRIES) {
        struct entry *entry = &peer->entries[peer->next % ENTRIES];
        struct header *is = &entry->is;
        pairs_take_ring(&pairs, node, 0, RING, peer->parsed, is, sizeof *is);
        uint64_t bytes = is->kind == WHOLE ? is->bytes : 0;
        if (is->kind > ANNOUNCED || is->context > OF_LIBRARY || is->sequence != peer->sequence_in || is->type < 0 ||
            is->bytes > LONG_MAX || bytes > EAGER || sizeof *is + padded(bytes) > written - peer->parsed) {
            broken(node);
            return moved;
        }
        peer->sequence_in++;
        entry->at = peer->parsed + sizeof *is;
        entry->end = peer->parsed = entry->at + padded(bytes);
        entry->stamp = stamps++;
        entry->taken = 0;
        peer->next++;
        moved = 1;
        struct request *after;
        for (struct request *request = posted.first; request && !entry->taken; request = after) {
            after = request->next;
            if (!matches(request, is, node)) continue;
            remove_from(&posted, request);
            take(request, entry, node);
        }
    }
    if (written != peer->parsed && written - peer->parsed < sizeof(struct header)) broken(node);
    return moved;
}

/* Bytes of the longer message that was granted. */
static int receive_bulk(int node) {
    struct peer *peer = &peers[node];
    uint64_t bytes = pairs_word(&pairs, node, BULK_WRITTEN) - peer->bulk_taken;
    struct request *request = peer->receiving;
    if (bytes == 0) return 0;
    if (!request || bytes > BULK || bytes > request->left) {
        broken(node);
        return 0;
    }
    pairs_take_ring(&pairs, node, RING, BULK, peer->bulk_taken, request->buf + request->moved, bytes);
    peer->bulk_taken += bytes;
    request->moved += bytes;
    request->left -= bytes;
    pairs_put_word(&pairs, node, BULK_FREED, peer->bulk_taken);
    if (request->left == 0) {
        peer->receiving = NULL;
        complete(request, 0);
        grant(node);
    }
    return 1;
}

/* The oldest message that a request asks for. */
static struct entry *find(const struct request *request, int *from) {
    struct entry *found = NULL;
    for (int node = 0; node < pairs.size; node++) {
        struct peer *peer = &peers[node];
        if (request->node != -1 && request->node != node) continue;
        for (uint32_t at = peer->first; at != peer->next; at++) {
            struct entry *entry = &peer->entries[at % ENTRIES];
            if (entry->taken || !matches(request, &entry->is, node)) continue;
            if (!found || entry->stamp < found->stamp) {
                found = entry;
                *from = node;
            }
            break;
        }
    }
    return found;
}

/* ---- The sender's side. ---- */

/* The next message of a node, if there is room. */
static int send_next(int node) {
    struct peer *peer = &peers[node];
    struct request *request = peer->sends.first;
    uint64_t freed = pairs_word(&pairs, node, FREED);
    if (freed < peer->its_freed || freed > peer->written) {
        broken(node);
        return 0;
    }
    peer->its_freed = freed;
    int is_whole = request->count <= EAGER;
    struct header header = {is_whole ? WHOLE : ANNOUNCED, (uint32_t)request->context, request->type, request->ptype,
                            (uint64_t)request->count, 0, peer->sequence_out};
    uint64_t bytes = is_whole ? (uint64_t)request->count : 0, length = sizeof header + padded(bytes);
    if (peer->written + length - freed > RING) return 0;
    if (!is_whole) header.number = request->number = ++peer->number;
    struct {
        struct header header;
        char bytes[464];
    } together = {.header = header};
    uint64_t at = peer->written + sizeof header;
    int result;
    if (bytes <= sizeof together.bytes) {
        if (bytes) memcpy(together.bytes, request->buf, bytes);
        result = pairs_put_ring(&pairs, node, 0, RING, peer->written, &together, sizeof header + bytes);
    } else {
        result = pairs_put_ring(&pairs, node, 0, RING, peer->written, &header, sizeof header);
        if (result == 0) result = pairs_put_ring(&pairs, node, 0, RING, at, request->buf, bytes);
    }
    peer->written += length;
    if (result == 0) result = pairs_put_word(&pairs, node, WRITTEN, peer->written);
    if (result < 0) return 0; /* The pair is at its end: see look_at_ends. */
    peer->sequence_out++;
    remove_from(&peer->sends, request);
    if (is_whole)
        complete(request, 0);
    else
        append(&peer->announced, request);
    return 1;
}

/* Bytes of the longer message that the receiver wants. */
static int send_bulk(int node) {
    struct peer *peer = &peers[node];
    if (!peer->sending) {
        uint64_t number = pairs_word(&pairs, node, GRANTED);
        for (struct request *request = peer->announced.first; request && !peer->sending; request = request->next)
            if (request->number == number) peer->sending = request;
        if (!peer->sending) return 0;
        remove_from(&peer->announced, peer->sending);
    }
    struct request *request = peer->sending;
    uint64_t freed = pairs_word(&pairs, node, BULK_FREED), left = (uint64_t)request->count - request->moved;
    if (peer->bulk_written - freed > BULK) {
        broken(node);
        return 0;
    }
    uint64_t room = BULK - (peer->bulk_written - freed), bytes = left < PIECE ? left : PIECE;
    if (room < bytes) return 0;
    if (pairs_put_ring(&pairs, node, RING, BULK, peer->bulk_written, request->buf + request->moved, bytes) < 0) return 0;
    peer->bulk_written += bytes;
    if (pairs_put_word(&pairs, node, BULK_WRITTEN, peer->bulk_written) < 0) return 0;
    request->moved += bytes;
    if (bytes == left) {
        peer->sending = NULL;
        complete(request, 0);
    }
    return 1;
}

/* ---- Turns. ---- */

static void fail_all(struct list *list, int error) {
    while (list->first) {
        struct request *request = list->first;
        remove_from(list, request);
        complete(request, error);
    }
}

/* Whatever waits for a node that has ended gets an error. */
static void look_at_ends(void) {
    int died = 0, left = 0;
    for (int node = 0; node < pairs.size; node++) {
        struct peer *peer = &peers[node];
        if (!peer->ended) continue;
        if (peer->ended == EPIPE)
            left++;
        else
            died = peer->ended;
        fail_all(&peer->sends, peer->ended);
        fail_all(&peer->announced, peer->ended);
        fail_all(&peer->grants, peer->ended);
        struct request *of[] = {peer->sending, peer->receiving};
        peer->sending = peer->receiving = NULL;
        for (int i = 0; i < 2; i++)
            if (of[i]) complete(of[i], peer->ended);
    }
    if (!died && !left) return;
    struct request *next;
    for (struct request *request = posted.first; request; request = next) {
        next = request->next;
        int error = request->node != -1 ? peers[request->node].ended : died ? died : left >= pairs.size - 1 ? EPIPE : 0;
        /* A handler's message may never come. */
        if (!error || (request->node == -1 && request->handler)) continue;
        remove_from(&posted, request);
        complete(request, error);
    }
}

static int progress(void) {
    int moved = 0, ended = 0;
    for (int node = 0; node < pairs.size; node++) {
        struct peer *peer = &peers[node];
        /* Looked at first: earlier messages are here then. */
        int end = pairs_ended(&pairs, node) ? ECONNRESET : 0;
        if (node != pairs.rank && pairs_word(&pairs, node, LEFT)) end = EPIPE;
        if (peer->ended != EPROTO) moved |= parse(node);
        if (!peer->ended) {
            moved |= receive_bulk(node);
            if (!peer->ended) peer->ended = end;
        }
        while (!peer->ended && !pairs.of[node].error && peer->sends.first && send_next(node)) moved = 1;
        while (!peer->ended && !pairs.of[node].error && (peer->sending || peer->announced.first) && send_bulk(node))
            moved = 1;
        if (pairs.of[node].error && !peer->ended) moved = 1;
        ended |= peer->ended;
    }
    if (ended) look_at_ends();
    return moved;
}

static int run_handlers(void) {
    int ran = 0;
    while (called.first && !traps_wait && !in_handler) {
        struct request *request = called.first;
        remove_from(&called, request);
        nx_handler *handler = request->handler;
        long now[4];
        memcpy(now, request->info, sizeof now);
        int error = request->error, dies = !request->ignored;
        release(request);
        if (error) {
            errno = error;
            if (dies) die("hrecv");
            continue;
        }
        in_handler = 1;
        handler(now[0], now[1], now[2], now[3]);
        in_handler = 0;
        ran = 1;
    }
    return ran;
}

/* Whether something moved. */
static int turn(void) {
    int moved = progress();
    return run_handlers() || moved ? 1 : 0;
}

/* Waits for one, and frees it. */
static int finish(struct request *request) {
    while (!request->done)
        if (!turn() && !request->done && pairs_wait(&pairs, -1) < 0) return fail(EIO);
    int error = request->error;
    memcpy(info, request->info, sizeof info);
    release(request);
    return error ? fail(error) : 0;
}

static struct request *start_send(long type, const void *buf, long count, long node, long ptype, int context) {
    if (join() < 0) return NULL;
    if (type < 0 || node < 0 || node >= pairs.size) return fail(EINVAL), NULL;
    struct request *made = request(SEND, type, buf, count, node, ptype, context);
    if (!made) return NULL;
    append(&peers[node].sends, made);
    progress();
    return made;
}

static struct request *start_receive(long typesel, void *buf, long count, long node, long ptype, int context,
                                     nx_handler *handler) {
    if (join() < 0) return NULL;
    if (typesel < -1 || node < -1 || node >= pairs.size) return fail(EINVAL), NULL;
    struct request *made = request(RECEIVE, typesel, buf, count, node, ptype, context);
    if (!made) return NULL;
    made->handler = handler;
    progress();
    int from = 0;
    struct entry *entry = find(made, &from);
    if (entry)
        take(made, entry, from);
    else
        append(&posted, made);
    return made;
}

/* ---- NX. ---- */

long mynode(void) {
    if (join() < 0) die("mynode");
    return pairs.rank;
}

long numnodes(void) {
    if (join() < 0) die("numnodes");
    return pairs.size;
}

long myptype(void) {
    return 0;
}

static long send_to(long type, const void *buf, long count, long node, long ptype, int context) {
    if (node != -1) {
        struct request *made = start_send(type, buf, count, node, ptype, context);
        return made ? finish(made) : -1;
    }
    if (join() < 0) return -1;
    struct request **all = calloc((size_t)pairs.size, sizeof *all);
    if (!all) return fail(ENOMEM);
    int error = 0;
    for (int other = 0; other < pairs.size; other++)
        if (other != pairs.rank && !(all[other] = start_send(type, buf, count, other, ptype, context))) error = errno;
    for (int other = 0; other < pairs.size; other++)
        if (all[other] && finish(all[other]) < 0) error = errno;
    free(all);
    return error ? fail(error) : 0;
}

long _csend(long type, const void *buf, long count, long node, long ptype) {
    return send_to(type, buf, count, node, ptype, OF_USER);
}

long _crecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long about[8]) {
    struct request *made = start_receive(typesel, buf, count, nodesel, ptypesel, OF_USER, NULL);
    if (!made || finish(made) < 0) return -1;
    if (about) memcpy(about, info, sizeof info);
    return 0;
}

long _crecv(long typesel, void *buf, long count) {
    return _crecvx(typesel, buf, count, -1, -1, NULL);
}

static long id(struct request *made) {
    return made ? made - requests + 1 : -1;
}

static struct request *of_id(long mid) {
    if (mid < 1 || mid > REQUESTS || requests[mid - 1].what == FREE || requests[mid - 1].ignored) return NULL;
    return &requests[mid - 1];
}

long _isend(long type, const void *buf, long count, long node, long ptype) {
    return id(start_send(type, buf, count, node, ptype, OF_USER));
}

long _irecv(long typesel, void *buf, long count) {
    return id(start_receive(typesel, buf, count, -1, -1, OF_USER, NULL));
}

long irecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long about[8]) {
    (void)about; /* msgwait tells. */
    long mid = id(start_receive(typesel, buf, count, nodesel, ptypesel, OF_USER, NULL));
    if (mid < 0) die("irecvx");
    return mid;
}

long _msgwait(long mid) {
    struct request *of = of_id(mid);
    return of ? finish(of) : fail(EINVAL);
}

long _msgdone(long mid) {
    struct request *of = of_id(mid);
    if (!of) return fail(EINVAL);
    pairs_poll(&pairs);
    turn();
    if (!of->done) return 0;
    return finish(of) < 0 ? -1 : 1;
}

void msgignore(long mid) {
    struct request *of = of_id(mid);
    if (!of) return;
    of->ignored = 1;
    if (of->done) release(of);
}

static struct entry *probe(long typesel) {
    struct request asked = {.type = typesel, .node = -1, .ptype = -1};
    int from;
    struct entry *entry = find(&asked, &from);
    if (entry) tell_about(info, &entry->is, from);
    return entry;
}

long _iprobe(long typesel) {
    if (join() < 0) return -1;
    pairs_poll(&pairs);
    turn();
    return probe(typesel) != NULL;
}

long _cprobe(long typesel) {
    if (join() < 0) return -1;
    for (;;) {
        int moved = turn();
        if (probe(typesel)) return 0;
        int left = 0;
        for (int node = 0; node < pairs.size; node++) {
            if (peers[node].ended && peers[node].ended != EPIPE) return fail(peers[node].ended);
            left += peers[node].ended != 0;
        }
        if (left && left == pairs.size - 1) return fail(EPIPE);
        if (!moved && pairs_wait(&pairs, -1) < 0) return fail(EIO);
    }
}

long infocount(void) {
    return info[1];
}
long infonode(void) {
    return info[2];
}
long infotype(void) {
    return info[0];
}
long infoptype(void) {
    return info[3];
}

static int handle(long typesel, void *buf, long count, nx_handler *handler, int dies) {
    if (!handler) return fail(EINVAL);
    struct request *made = start_receive(typesel, buf, count, -1, -1, OF_USER, handler);
    if (made) made->ignored = !dies;
    run_handlers();
    return made ? 0 : -1;
}

long _hrecv(long typesel, void *buf, long count, nx_handler *handler) {
    return handle(typesel, buf, count, handler, 0);
}

long masktrap(long state) {
    long before = traps_wait;
    traps_wait = state != 0;
    if (has_joined) run_handlers();
    return before;
}

/* ---- All nodes. ---- */

static int get(void *buf, long count, long node) {
    struct request *made = start_receive(-1, buf, count, node, -1, OF_LIBRARY, NULL);
    return made ? finish(made) : -1;
}

static int give(const void *buf, long count, long node) {
    return (int)send_to(0, buf, count, node, 0, OF_LIBRARY);
}

/* Up a tree to node 0: a node has nodes `mask` behind it. */
static int up(void *x, void *work, long bytes, void (*combine)(void *, const void *, long), long n) {
    for (int mask = 1; mask < pairs.size; mask <<= 1) {
        if (pairs.rank & mask) return give(x, bytes, pairs.rank - mask);
        if (pairs.rank + mask >= pairs.size) continue;
        if (get(work, bytes, pairs.rank + mask) < 0) return -1;
        if (infocount() != bytes) return fail(EPROTO);
        if (combine) combine(x, work, n);
    }
    return 0;
}

static int down(void *x, long bytes) {
    int mask = 1;
    while (mask < pairs.size && !(pairs.rank & mask)) mask <<= 1;
    if (pairs.rank && get(x, bytes, pairs.rank - mask) < 0) return -1;
    if (pairs.rank && infocount() != bytes) return fail(EPROTO);
    for (mask >>= 1; mask; mask >>= 1)
        if (pairs.rank + mask < pairs.size && give(x, bytes, pairs.rank + mask) < 0) return -1;
    return 0;
}

static int all(void *x, void *work, long bytes, void (*combine)(void *, const void *, long), long n) {
    if (join() < 0) return -1;
    return up(x, work, bytes, combine, n) < 0 ? -1 : down(x, bytes);
}

long _gsync(void) {
    return all(NULL, NULL, 0, NULL, 0);
}

#define REDUCTION(name, T, x, y, result)                                    \
    static void combine_##name(void *to, const void *from, long n) {        \
        for (long i = 0; i < n; i++) {                                      \
            T x = ((T *)to)[i], y = ((const T *)from)[i];                   \
            ((T *)to)[i] = result;                                          \
        }                                                                   \
    }                                                                       \
    void name(T data[], long n, T work[]) {                                 \
        if (n < 0) n = 0;                                                   \
        if (all(data, work, n * (long)sizeof(T), combine_##name, n) < 0) die(#name); \
    }

REDUCTION(gdsum, double, x, y, x + y)
REDUCTION(gdhigh, double, x, y, x > y ? x : y)
REDUCTION(gdlow, double, x, y, x < y ? x : y)
REDUCTION(gisum, long, x, y, (long)((unsigned long)x + (unsigned long)y))
REDUCTION(gihigh, long, x, y, x > y ? x : y)
REDUCTION(gilow, long, x, y, x < y ? x : y)

static int collect(const void *x, long xlen, void *y, long ylen, long *ncnt) {
    long total = xlen;
    if (join() < 0) return -1;
    if (pairs.rank) {
        if (give(x, xlen, 0) < 0) return -1;
    } else {
        if (xlen < 0 || xlen > ylen) return fail(EMSGSIZE);
        if (xlen) memmove(y, x, (size_t)xlen);
        for (int node = 1; node < pairs.size; node++) {
            if (get((char *)y + total, ylen - total, node) < 0) return -1;
            total += infocount();
        }
    }
    if (down(&total, sizeof total) < 0) return -1;
    if (total < 0 || total > ylen) return fail(EMSGSIZE);
    if (ncnt) *ncnt = total;
    return down(y, total);
}

void gcol(const void *x, long xlen, void *y, long ylen, long *ncnt) {
    if (collect(x, xlen, y, ylen, ncnt) < 0) die("gcol");
}

double dclock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void flick(void) {
    if (join() < 0) die("flick");
    pairs_poll(&pairs);
    turn();
    sched_yield();
}

/* ---- The calls that end the program. ---- */

static long checked(long result, const char *call) {
    if (result < 0) die(call);
    return result;
}

void csend(long type, const void *buf, long count, long node, long ptype) {
    checked(_csend(type, buf, count, node, ptype), "csend");
}
void crecv(long typesel, void *buf, long count) {
    checked(_crecv(typesel, buf, count), "crecv");
}
void crecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long about[8]) {
    checked(_crecvx(typesel, buf, count, nodesel, ptypesel, about), "crecvx");
}
long isend(long type, const void *buf, long count, long node, long ptype) {
    return checked(_isend(type, buf, count, node, ptype), "isend");
}
long irecv(long typesel, void *buf, long count) {
    return checked(_irecv(typesel, buf, count), "irecv");
}
void msgwait(long mid) {
    checked(_msgwait(mid), "msgwait");
}
long msgdone(long mid) {
    return checked(_msgdone(mid), "msgdone");
}
long iprobe(long typesel) {
    return checked(_iprobe(typesel), "iprobe");
}
void cprobe(long typesel) {
    checked(_cprobe(typesel), "cprobe");
}
void hrecv(long typesel, void *buf, long count, nx_handler *handler) {
    checked(handle(typesel, buf, count, handler, 1), "hrecv");
}
void gsync(void) {
    checked(_gsync(), "gsync");
}
