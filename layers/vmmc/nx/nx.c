/* NX over pairs of rings, and layers/match: see nx.h for the promises, pairs.h for the rings.
 *
 * A ring holds messages in their order: a header, then the bytes. A call that waits takes headers, and the bytes go
 *
 *     to the receive that awaits the message, if one does
 *     else to memory, of which each sender has NX_HELD here; a receive that comes meanwhile gets the rest directly
 *     else nowhere: they, and what is behind them in the ring, wait until a receive asks for the message
 *
 * Never: a peer's header or word is read twice; memory grows with what peers send.
 */
#include "internal.h"

#include "../../match/match.h"
#include "../pairs/pairs.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING (256ul << 10)
#define PIECE (32ul << 10)
#ifndef NX_HELD /* a test has less */
#define NX_HELD (64ul << 20)
#endif
#define REQUESTS 4096
#define JOIN_MS 60000
#ifndef NX_EXIT_S
#define NX_EXIT_S 10
#endif

/* Control words: counts of the writer's bytes in the ring, and of the reader's that it has taken. */
enum { WRITTEN, FREED, LEFT };
enum { OF_USER, OF_LIBRARY };

struct header {
    uint32_t context;
    int32_t type, ptype, zero;
    uint64_t bytes;
};

/* A message that has come, from its header on. */
struct message {
    struct match match;
    int32_t ptype;
    uint64_t bytes, came;
    struct request *to; /* the receive that it goes to; else to `data`, when there is memory */
    char *data;
};

/* What calls a handler when a request is done. */
struct handling {
    nx_handler *handler;
    nx_xhandler *xhandler;
    long param;
    int dies; /* the program, if the message breaks off */
};

struct request {
    struct match match; /* its peer is the node, or -1; its link: of a posted receive, in `sends`, `called`, `unused` */
    enum { FREE, SEND, RECEIVE } what;
    int has_begun, done, error, ignored, merged;
    long ptype, count, info[4], *about; /* info: type, count, node, ptype; copied to `about` at the end */
    char *buf;
    uint64_t moved; /* of a send: bytes in the ring */
    struct handling how;
    struct request *with; /* the next one of a merged id */
};

struct peer {
    uint64_t taken, told, held; /* as receiver; held: bytes of its messages in memory */
    struct message *incoming, direct; /* whose bytes come now; where it is if a receive awaited it */
    uint64_t written, said; /* as sender */
    struct match_list sends;
    int ended; /* why, as errno */
};

long msginfo[8];
static struct pairs pairs;
static struct peer *peers;
static struct matcher matcher;
static struct request requests[REQUESTS];
static struct match_list unused = TAILQ_HEAD_INITIALIZER(unused), called = TAILQ_HEAD_INITIALIZER(called);
static const struct handling none;
static int has_joined, traps_wait, in_handler, handlers;
static int32_t own_ptype;
static uint64_t sent; /* bytes, to others */

static int progress(const struct request *awaited);

static void leave(void) {
    if (!has_joined) return;
    /* What isend sent, and was never waited for, goes on until none of it has moved for a time, whatever else comes. */
    uint64_t moved = 0;
    double since = dclock();
    for (int node = 0; !nx_has_failed && node < pairs.size && dclock() - since < NX_EXIT_S;) {
        int moves = progress(NULL);
        if (sent != moved) since = dclock();
        moved = sent;
        if (TAILQ_EMPTY(&peers[node].sends))
            node++;
        else if (!moves)
            pairs_wait(&pairs, 1000);
    }
    for (int node = 0; node < pairs.size; node++)
        while (pairs_put_word(&pairs, node, LEFT, 1) == VMMC_TIMED_OUT && dclock() - since < NX_EXIT_S) pairs_wait(&pairs, 1);
    pairs_close(&pairs);
    has_joined = 0;
}

static int join(void) {
    if (has_joined) return 0;
    if (pairs.of) return nx_fail(EIO);
    if (pairs_open(&pairs, "nx", RING, "NX_UPDATE", JOIN_MS) < 0) return nx_fail(EIO);
    peers = calloc((size_t)pairs.size, sizeof *peers);
    if (!peers || match_open(&matcher, pairs.size) < 0) return nx_fail(ENOMEM);
    for (int node = 0; node < pairs.size; node++) TAILQ_INIT(&peers[node].sends);
    for (int i = 0; i < REQUESTS; i++) TAILQ_INSERT_TAIL(&unused, &requests[i].match, link);
    pairs_never_wait(&pairs);
    nx_rank = pairs.rank;
    has_joined = 1;
    atexit(leave);
    return 0;
}

/* ---- Requests. ---- */

static void release(struct request *request) {
    memset(request, 0, sizeof *request);
    TAILQ_INSERT_HEAD(&unused, &request->match, link);
}

static int is_handled(const struct request *request) {
    return request->how.handler || request->how.xhandler;
}

static void complete(struct request *request, int error) {
    request->done = 1;
    request->error = error;
    handlers -= is_handled(request);
    if (is_handled(request))
        TAILQ_INSERT_TAIL(&called, &request->match, link);
    else if (request->ignored)
        release(request);
}

static bool has_ptype(const struct match *receive, const struct match *message) {
    return ((const struct request *)receive)->ptype == ((const struct message *)message)->ptype;
}

static struct request *make(int what, const void *buf, long count, struct handling how) {
    struct request *made = (struct request *)TAILQ_FIRST(&unused);
    if (count < 0) return nx_wrong("count", count), NULL;
    if (count > 0 && !buf) return nx_wrong("NULL, with the count", count), NULL;
    if (!made) return nx_fail(ENOMEM), NULL;
    TAILQ_REMOVE(&unused, &made->match, link);
    made->what = what;
    made->buf = (char *)buf;
    made->count = count;
    made->how = how;
    handlers += is_handled(made);
    return made;
}

/* One id for both. */
static struct request *merge(struct request *first, struct request *second) {
    struct request **end = &first->with;
    while (*end) end = &(*end)->with;
    *end = second;
    second->merged = 1;
    return first;
}

static int ignore(struct request *request) {
    for (struct request *next; request; request = next) {
        next = request->with;
        request->ignored = 1;
        if (request->done) release(request);
    }
    return 0;
}

/* ---- The receiver's side. ---- */

static void tell_about(long info[4], const struct message *message) {
    memcpy(info, (long[4]){message->match.tag, (long)message->bytes, message->match.peer, message->ptype}, 4 * sizeof *info);
}

static void let_go(struct message *message) {
    struct peer *peer = &peers[message->match.peer];
    if (message->data) peer->held -= message->bytes + sizeof *message;
    free(message->data);
    if (message != &peer->direct) free(message);
}

/* Memory for a message's bytes, in the bound or, where the sender sends no more, beyond it. */
static int has_room(struct message *message, int is_last) {
    struct peer *peer = &peers[message->match.peer];
    uint64_t room = message->bytes + sizeof *message;
    if (message->data) return 1;
    if (!is_last && (peer->held > NX_HELD || room > NX_HELD - peer->held)) return 0;
    if (!(message->data = malloc(message->bytes + 1))) return 0;
    peer->held += room;
    return 1;
}

/* The receive that awaits a message, which is then `to`, or the message is kept. NULL: there is no memory. */
static struct message *meet(int node, const struct header *header) {
    struct message *message = &peers[node].direct;
    *message = (struct message){.match = {.context = header->context, .peer = node, .tag = header->type},
                                .ptype = header->ptype, .bytes = header->bytes};
    for (struct request *to; (to = (struct request *)match_receive(&matcher, &message->match));) {
        tell_about(to->info, message);
        to->has_begun = 1;
        message->to = to;
        if (message->bytes <= (uint64_t)to->count) return message;
        message->to = NULL;
        complete(to, EMSGSIZE);
    }
    struct message *kept = malloc(sizeof *kept);
    if (!kept) return NULL;
    *kept = *message;
    match_keep(&matcher, &kept->match);
    return kept;
}

/* A receive, which is in no list, gets a message that was kept. */
static void take(struct request *request, struct message *message) {
    tell_about(request->info, message);
    if (message->bytes > (uint64_t)request->count) {
        complete(request, EMSGSIZE);
        return;
    }
    match_take(&matcher, &message->match);
    if (message->came) memcpy(request->buf, message->data, message->came);
    request->has_begun = 1;
    message->to = request;
    if (peers[message->match.peer].incoming == message) return;
    complete(request, 0);
    let_go(message);
}

/* Takes what a node has sent: until what is awaited is done, or, at its end, all. Whether something came. */
static int receive(int node, const struct request *awaited, int end) {
    struct peer *peer = &peers[node];
    uint64_t written = pairs_word(&pairs, node, WRITTEN), began = peer->taken;
    if (written - peer->taken > RING) return peer->ended = EPROTO;
    for (;;) {
        uint64_t here = written - peer->taken;
        struct message *message = peer->incoming;
        if (!message) {
            struct header header;
            if (here == 0 || (awaited && awaited->done && !handlers && !end)) break;
            if (here < sizeof header) return peer->ended = EPROTO;
            pairs_take_ring(&pairs, node, 0, RING, peer->taken, &header, sizeof header);
            if (header.context > OF_LIBRARY || header.type < 0 || header.bytes > LONG_MAX) return peer->ended = EPROTO;
            if (!(message = peer->incoming = meet(node, &header))) return peer->ended = ENOMEM;
            peer->taken += sizeof header;
            here -= sizeof header;
        }
        uint64_t left = message->bytes - message->came, bytes = left < here ? left : here;
        if (!message->to && !has_room(message, end && left <= here)) break;
        char *to = message->to ? message->to->buf : message->data;
        if (bytes) pairs_take_ring(&pairs, node, 0, RING, peer->taken, to + message->came, bytes);
        peer->taken += bytes;
        message->came += bytes;
        if (bytes < left) break;
        peer->incoming = NULL;
        if (message->to) {
            complete(message->to, 0);
            let_go(message);
        }
    }
    if (peer->taken - peer->told >= RING / 8 && pairs_put_word(&pairs, node, FREED, peer->taken) == 0)
        peer->told = peer->taken;
    return peer->taken != began;
}

/* ---- The sender's side. ---- */

/* Tells a node of what was written; whether it knows all. */
static int say(int node) {
    struct peer *peer = &peers[node];
    if (peer->said != peer->written && pairs_put_word(&pairs, node, WRITTEN, peer->written) == 0) peer->said = peer->written;
    return peer->said == peer->written;
}

/* The next bytes of the first send to a node, if there is room. */
static int send_next(int node) {
    struct peer *peer = &peers[node];
    struct request *request = (struct request *)TAILQ_FIRST(&peer->sends);
    uint64_t used = peer->written - pairs_word(&pairs, node, FREED), left = (uint64_t)request->count - request->moved;
    struct {
        struct header header;
        char bytes[488];
    } together;
    if (used > RING) return peer->ended = EPROTO;
    uint64_t head = request->has_begun ? 0 : sizeof together.header, bytes = left < PIECE ? left : PIECE;
    if (RING - used < head + bytes) return 0;
    if (head) {
        uint64_t first = bytes < sizeof together.bytes ? bytes : sizeof together.bytes;
        together.header = (struct header){request->match.context, request->match.tag, own_ptype, 0, (uint64_t)request->count};
        if (first) memcpy(together.bytes, request->buf, first);
        /* A header that is there in part is written once more. */
        if (pairs_try_ring(&pairs, node, 0, RING, peer->written, &together, head + first) != (int64_t)(head + first)) return 0;
        peer->written += head + first;
        request->moved = first;
        bytes -= first;
        request->has_begun = 1;
    }
    int64_t more = pairs_try_ring(&pairs, node, 0, RING, peer->written, request->buf + request->moved, bytes);
    if (more < 0) return 0; /* The pair is at its end: see progress. */
    peer->written += (uint64_t)more;
    sent += head + (uint64_t)more;
    request->moved += (uint64_t)more;
    if (!say(node)) return 0;
    if (request->moved < (uint64_t)request->count) return more > 0;
    TAILQ_REMOVE(&peer->sends, &request->match, link);
    complete(request, 0);
    return 1;
}

/* To this node itself. */
static void send_here(struct request *request) {
    struct header header = {request->match.context, request->match.tag, own_ptype, 0, (uint64_t)request->count};
    struct message *message = meet(pairs.rank, &header);
    if (!message || (!message->to && !has_room(message, 1))) {
        if (message) {
            match_take(&matcher, &message->match);
            let_go(message);
        }
        complete(request, ENOMEM);
        return;
    }
    message->came = message->bytes;
    if (message->came) memmove(message->to ? message->to->buf : message->data, request->buf, message->came);
    if (message->to) {
        complete(message->to, 0);
        let_go(message);
    }
    complete(request, 0);
}

/* ---- Turns. ---- */

/* Why nothing comes from a node any more, or, of -1, from any: the first that died, or all have left. Or 0. */
static int ended(long node) {
    int left = 0;
    if (node >= 0) return peers[node].ended;
    for (int other = 0; other < pairs.size; other++) {
        if (peers[other].ended == EPIPE)
            left++;
        else if (peers[other].ended)
            return peers[other].ended;
    }
    return left > 0 && left == pairs.size - 1 ? EPIPE : 0;
}

static void fail_all(struct match_list *list, int error) {
    for (struct match *first; (first = TAILQ_FIRST(list));) {
        TAILQ_REMOVE(list, first, link);
        complete((struct request *)first, error);
    }
}

/* Whatever waits for a node that has ended gets an error. */
static void look_at_ends(void) {
    for (int node = 0; node < pairs.size; node++) {
        struct peer *peer = &peers[node];
        struct message *message = peer->incoming;
        if (!peer->ended) continue;
        fail_all(&peer->sends, peer->ended);
        fail_all(&matcher.posted[node], peer->ended);
        if (!message) continue;
        peer->incoming = NULL;
        if (message->to)
            complete(message->to, peer->ended);
        else
            match_take(&matcher, &message->match);
        let_go(message);
    }
    struct match *next;
    int error = ended(-1);
    for (struct match *at = TAILQ_FIRST(&matcher.posted[pairs.size]); error && at; at = next) {
        next = TAILQ_NEXT(at, link);
        /* A handler's message may never come. */
        if (is_handled((struct request *)at)) continue;
        match_retract(&matcher, at);
        complete((struct request *)at, error);
    }
}

/* Moves what can be moved; `awaited`: of which the caller needs no more than that this is done. */
static int progress(const struct request *awaited) {
    int moved = 0, some_ended = 0, first = awaited && awaited->match.peer > 0 ? awaited->match.peer : 0;
    for (int i = 0; i < pairs.size; i++) {
        int node = (first + i) % pairs.size;
        struct peer *peer = &peers[node];
        if (node == pairs.rank) continue;
        /* Looked at first: earlier messages are here then. */
        int end = pairs_ended(&pairs, node) ? ECONNRESET : 0;
        if (pairs_word(&pairs, node, LEFT)) end = EPIPE;
        while (!peer->ended && !pairs.of[node].error && !TAILQ_EMPTY(&peer->sends) && send_next(node)) moved = 1;
        if (!peer->ended) {
            moved |= receive(node, awaited, end);
            if (!peer->ended) peer->ended = end;
        }
        if (pairs.of[node].error && !peer->ended) moved = 1;
        some_ended |= peer->ended;
    }
    if (some_ended) look_at_ends();
    return moved;
}

static int run_handlers(void) {
    int ran = 0;
    while (!TAILQ_EMPTY(&called) && !traps_wait && !in_handler) {
        struct request *first = (struct request *)TAILQ_FIRST(&called), now = *first;
        TAILQ_REMOVE(&called, &first->match, link);
        release(first);
        errno = now.error;
        if (now.error && now.how.dies) nx_checked(-1, now.what == SEND ? "hsend" : "hrecv");
        if (now.error) continue;
        in_handler = 1;
        if (now.how.handler)
            now.how.handler(now.info[0], now.info[1], now.info[2], now.info[3]);
        else
            now.how.xhandler(now.info[0], now.info[1], now.info[2], now.info[3], now.how.param);
        in_handler = 0;
        ran = 1;
    }
    return ran;
}

/* Whether something moved. */
static int turn(const struct request *awaited) {
    int moved = progress(awaited);
    return run_handlers() || moved;
}

/* Waits for all of an id, and frees it. NULL: it could not be made, as errno says. */
static int finish(struct request *request) {
    int error = 0;
    if (!request) return -1;
    for (struct request *next; request; request = next) {
        while (!request->done)
            if (!turn(request) && !request->done && pairs_wait(&pairs, -1) < 0) return nx_fail(EIO);
        next = request->with;
        if (request->error) error = request->error;
        if (request->what == RECEIVE) memcpy(request->about ? request->about : msginfo, request->info, sizeof request->info);
        release(request);
    }
    return error ? nx_fail(error) : 0;
}

static struct request *send_one(long type, const void *buf, long count, long node, long ptype, uint32_t context,
                                struct handling how) {
    if (join() < 0) return NULL;
    if (type < 0 || type > INT32_MAX) return nx_wrong("type", type), NULL;
    if (node < 0 || node >= pairs.size) return nx_wrong("node", node), NULL;
    struct request *made = make(SEND, buf, count, how);
    if (!made) return NULL;
    made->match = (struct match){.context = context, .peer = (int32_t)node, .tag = (int32_t)type};
    memcpy(made->info, (long[4]){type, count, node, ptype}, sizeof made->info);
    if (node == pairs.rank)
        send_here(made);
    else
        TAILQ_INSERT_TAIL(&peers[node].sends, &made->match, link);
    progress(made);
    return made;
}

/* One id for sends to the nodes of a list; NULL: to all others. */
static struct request *send_all(long type, const void *buf, long count, const long *nodes, long n) {
    struct request *all = NULL, *one;
    for (long i = 0; i < n; i++) {
        if (!nodes && i == pairs.rank) continue;
        if (!(one = send_one(type, buf, count, nodes ? nodes[i] : i, 0, OF_USER, none))) return ignore(all), NULL;
        all = all ? merge(one, all) : one;
    }
    if (!all && (all = make(SEND, buf, count, none))) complete(all, 0);
    return all;
}

static struct request *start_send(long type, const void *buf, long count, long node, long ptype, struct handling how) {
    if (join() < 0) return NULL;
    if (node != -1) return send_one(type, buf, count, node, ptype, OF_USER, how);
    struct request *all = send_all(type, buf, count, NULL, pairs.size);
    if (!all || !(how.handler || how.xhandler)) return all;
    if (finish(all) < 0 || !(all = make(SEND, buf, count, how))) return NULL;
    memcpy(all->info, (long[4]){type, count, node, ptype}, sizeof all->info);
    complete(all, 0);
    return all;
}

static struct message *find(struct request *receive, long typesel, long node, long ptype, uint32_t context) {
    receive->match = (struct match){.context = context, .peer = (int32_t)node, .tag = (int32_t)typesel};
    receive->match.admits = ptype == -1 ? NULL : has_ptype;
    receive->ptype = ptype;
    return (struct message *)match_message(&matcher, &receive->match);
}

/* Selectors are numbers of 32 bits, also where long has 64: 0x80000001 is a set. */
static int check_selectors(long typesel, long node) {
    if (typesel < INT32_MIN || typesel > UINT32_MAX) return nx_wrong("type selector", typesel);
    return node < -1 || node >= pairs.size ? nx_wrong("node", node) : 0;
}

static struct request *start_receive(long typesel, void *buf, long count, long node, long ptype, uint32_t context,
                                     struct handling how) {
    if (join() < 0) return NULL;
    if (check_selectors(typesel, node) < 0) return NULL;
    struct request *made = make(RECEIVE, buf, count, how);
    if (!made) return NULL;
    struct message *message = find(made, typesel, node, ptype, context);
    if (message)
        take(made, message);
    else
        match_post(&matcher, &made->match);
    return made;
}

static long id(struct request *made) {
    return made ? made - requests + 1 : -1;
}

/* NULL: there is none, which errno says. */
static struct request *of_id(long mid) {
    struct request *of = mid < 1 || mid > REQUESTS ? NULL : &requests[mid - 1];
    if (!of || of->what == FREE || of->ignored || of->merged || is_handled(of))
        return nx_wrong("message id", mid), NULL;
    return of;
}

static int cancel(struct request *request) {
    for (struct request *next; request; request = next) {
        int is_over = request->done || request->has_begun;
        next = request->with;
        request->with = NULL;
        if (is_over && is_handled(request)) continue; /* Its handler comes. */
        if (is_over) {
            finish(request);
            continue;
        }
        if (request->what == SEND)
            TAILQ_REMOVE(&peers[request->match.peer].sends, &request->match, link);
        else
            match_retract(&matcher, &request->match);
        handlers -= is_handled(request);
        release(request);
    }
    return 0;
}

static struct request *about(struct request *receive, long *info) {
    if (receive) receive->about = info;
    return receive;
}

/* A send beside a receive. */
static struct request *with_send(struct request *receive, long type, const void *buf, long count, long node,
                                 long ptype) {
    struct request *send = receive ? start_send(type, buf, count, node, ptype, none) : NULL;
    if (receive && !send) {
        int error = errno;
        cancel(receive);
        return nx_fail(error), NULL;
    }
    if (!send || !is_handled(receive)) return send ? merge(receive, send) : NULL;
    ignore(send);
    return receive;
}

/* ---- NX. ---- */

CALL(long, mynode, (void), (), join() < 0 ? -1 : pairs.rank)
CALL(long, numnodes, (void), (), join() < 0 ? -1 : pairs.size)
CALL(long, myptype, (void), (), own_ptype)
CALL(void, setptype, (long ptype), (ptype),
     ptype < 0 || ptype > INT32_MAX ? nx_wrong("process type", ptype) : (own_ptype = (int32_t)ptype, 0))

CALL(void, csend, (long type, const void *buf, long count, long node, long ptype), (type, buf, count, node, ptype),
     finish(start_send(type, buf, count, node, ptype, none)))
CALL(void, gsendx, (long type, const void *buf, long count, const long nodes[], long n), (type, buf, count, nodes, n),
     join() < 0 ? -1 : n < 0 || !nodes ? nx_wrong("number of nodes", n) : finish(send_all(type, buf, count, nodes, n)))
CALL(void, crecvx, (long typesel, void *buf, long count, long node, long ptype, long info[8]),
     (typesel, buf, count, node, ptype, info),
     finish(about(start_receive(typesel, buf, count, node, ptype, OF_USER, none), info)))
CALL(long, isend, (long type, const void *buf, long count, long node, long ptype), (type, buf, count, node, ptype),
     id(start_send(type, buf, count, node, ptype, none)))
CALL(long, irecvx, (long typesel, void *buf, long count, long node, long ptype, long info[8]),
     (typesel, buf, count, node, ptype, info),
     id(about(start_receive(typesel, buf, count, node, ptype, OF_USER, none), info)))
CALL(long, isendrecv, (long type, const void *sbuf, long scount, long node, long ptype, long typesel, void *rbuf,
     long rcount), (type, sbuf, scount, node, ptype, typesel, rbuf, rcount),
     id(with_send(start_receive(typesel, rbuf, rcount, -1, -1, OF_USER, none), type, sbuf, scount, node, ptype)))
CALL(long, csendrecv, (long type, const void *sbuf, long scount, long node, long ptype, long typesel, void *rbuf,
     long rcount), (type, sbuf, scount, node, ptype, typesel, rbuf, rcount),
     finish(with_send(start_receive(typesel, rbuf, rcount, -1, -1, OF_USER, none), type, sbuf, scount, node, ptype)) < 0
         ? -1 : msginfo[1])

static int is_done(const struct request *request) {
    pairs_poll(&pairs);
    turn(NULL);
    while (request && request->done) request = request->with;
    return !request;
}

/* The id -1 is no request, and done. */
#define OF_ID(of_none, result) mid == -1 ? (of_none) : of_id(mid) ? (result) : -1
CALL(void, msgwait, (long mid), (mid), OF_ID(0, finish(of_id(mid))))
CALL(long, msgdone, (long mid), (mid), OF_ID(1, !is_done(of_id(mid)) ? 0 : finish(of_id(mid)) < 0 ? -1 : 1))
CALL(void, msgignore, (long mid), (mid), OF_ID(0, ignore(of_id(mid))))
CALL(void, msgcancel, (long mid), (mid), OF_ID(0, cancel(of_id(mid))))

long _msgmerge(long mid, long mid2) {
    if (mid == -1 || mid2 == -1) return mid == -1 ? mid2 : mid;
    struct request *first = of_id(mid), *second = of_id(mid2);
    if (first && first == second) return nx_wrong("twice the message id", mid);
    return first && second ? id(merge(first, second)) : -1;
}

static long probe(long typesel, long nodesel, long ptypesel, long *info) {
    struct request asked;
    if (join() < 0) return -1;
    if (check_selectors(typesel, nodesel) < 0) return -1;
    pairs_poll(&pairs);
    turn(NULL);
    struct message *message = find(&asked, typesel, nodesel, ptypesel, OF_USER);
    if (message) tell_about(info ? info : msginfo, message);
    return message != NULL;
}

static long wait_for_message(long typesel, long nodesel, long ptypesel, long *info) {
    for (;;) {
        int error = has_joined && check_selectors(typesel, nodesel) == 0 ? ended(nodesel) : 0;
        long found = probe(typesel, nodesel, ptypesel, info);
        if (found) return found < 0 ? -1 : 0;
        if (error) return nx_fail(error);
        if (!turn(NULL) && pairs_wait(&pairs, -1) < 0) return nx_fail(EIO);
    }
}

static long mask(long state) {
    long before = traps_wait;
    traps_wait = state != 0;
    if (has_joined) run_handlers();
    return before;
}

CALL(long, iprobex, (long typesel, long node, long ptype, long info[8]), (typesel, node, ptype, info),
     probe(typesel, node, ptype, info))
CALL(void, cprobex, (long typesel, long node, long ptype, long info[8]), (typesel, node, ptype, info),
     wait_for_message(typesel, node, ptype, info))
CALL(long, masktrap, (long state), (state), mask(state))
CALL(void, flick, (void), (), join() < 0 ? -1 : (is_done(NULL), sched_yield()))

/* With a handler, in place of an id. */
static int begun(struct request *made) {
    run_handlers();
    return made ? 0 : -1;
}

#define HANDLED(name, parameters, ...)                                   \
    long _##name parameters {                                            \
        const int dies = 0;                                              \
        return handler ? begun(__VA_ARGS__) : nx_wrong("no handler", 0); \
    }                                                                    \
    void name parameters {                                               \
        const int dies = 1;                                              \
        nx_checked(handler ? begun(__VA_ARGS__) : nx_wrong("no handler", 0), #name); \
    }
#define BY (struct handling){handler, NULL, 0, dies}
#define BY_X (struct handling){NULL, handler, param, dies}

HANDLED(hrecv, (long typesel, void *buf, long count, nx_handler *handler),
        start_receive(typesel, buf, count, -1, -1, OF_USER, BY))
HANDLED(hrecvx, (long typesel, void *buf, long count, long node, long ptype, nx_xhandler *handler, long param),
        start_receive(typesel, buf, count, node, ptype, OF_USER, BY_X))
HANDLED(hsend, (long type, const void *buf, long count, long node, long ptype, nx_handler *handler),
        start_send(type, buf, count, node, ptype, BY))
HANDLED(hsendx, (long type, const void *buf, long count, long node, long ptype, nx_xhandler *handler, long param),
        start_send(type, buf, count, node, ptype, BY_X))
HANDLED(hsendrecv, (long type, const void *sbuf, long scount, long node, long ptype, long typesel, void *rbuf, long rcount,
        nx_handler *handler),
        with_send(start_receive(typesel, rbuf, rcount, -1, -1, OF_USER, BY), type, sbuf, scount, node, ptype))

/* ---- For global.c. ---- */

long nx_get(void *buf, long count, long node) {
    long is[8];
    struct request *made = about(start_receive(-1, buf, count, node, -1, OF_LIBRARY, none), is);
    return finish(made) < 0 ? -1 : is[1];
}

long nx_give(const void *buf, long count, long node) {
    return finish(send_one(0, buf, count, node, 0, OF_LIBRARY, none));
}
