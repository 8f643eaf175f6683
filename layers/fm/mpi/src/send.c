/* The protocol, over Fast Messages alone.
 *
 *   short   EAGER  {tag, context} bytes        its handler picks the buffer: that of a posted receive, or a new one
 *   long,   ASK    {tag, context} length, id   the receiver waits until a receive is posted, then answers
 *   or sync TAKE   id, id of the receive, length   the sender's data goes straight to that receive
 *           DATA   {id of the receive} bytes
 *   now and then   CONSUMED  count             bytes of eager messages that a receive has taken
 *
 * A sender has at most WINDOW bytes of eager messages with a receiver that no receive has taken; beyond that it
 * asks. So unexpected messages take bounded memory.
 * Never: a send of this file waits. FM_room says how much can go now; the rest waits in the peer's list, and a
 * turn of progress() sends it. A handler sends nothing but one answer of 16 bytes to its message's sender.
 * Never: a number from a peer is used before it is compared with what there is. What does not fit is counted.
 */
#include "internal.h"
#include "fm.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EAGER = 101, ASK, TAKE, DATA, CONSUMED };

/* Bytes that a peer may have here in eager messages that no receive has taken, each with CHARGE more. */
#define WINDOW (1u << 20)
#define CHARGE 64
/* A peer that has more than so many here, in eager messages or in asking ones, breaks the rules. A sender counts a
 * message as taken when a receive claims it, which may be before it is here whole. */
static const size_t held_max[2] = {2 * WINDOW, (size_t)64 << 20};
/* Short blocks are gathered, and received, in a buffer of so many bytes. */
#define GATHER 2048
/* A message of up to so many bytes is one piece. */
#define ONE_PIECE 512

/* In front of a message: its handler reads it before it picks the buffer. */
struct header {
    int32_t tag;
    uint32_t context;
};
struct asking {
    struct header header;
    uint64_t bytes;
    uint32_t id, zero;
};

struct answer {
    uint32_t handler, words[4];
    struct answer *next;
};
struct peer {
    /* Sends that must begin in their order; data that was asked for; answers that had no room. */
    struct match_list ordered, data;
    struct answer *answers;
    unsigned packet;
    uint64_t eager_sent, eager_consumed; /* what was sent to it, and what it said that it has taken */
    uint64_t consumed, told;             /* the same of what it sends */
    size_t held[2]; /* in eager messages, and in those that ask */
};

struct figures figures;
struct matcher matcher;
static struct peer *peers;
static int nodes;
/* Lists of peers that are not empty: a turn looks at none when there are none. */
static int pending;
static size_t eager_max, held;
static bool takes_all;
static unsigned spins;

static int on_eager(FM_stream *, unsigned), on_ask(FM_stream *, unsigned), on_take(FM_stream *, unsigned),
    on_data(FM_stream *, unsigned), on_consumed(FM_stream *, unsigned);

static size_t setting(const char *name, size_t usual, size_t most) {
    const char *text = getenv(name);
    char *end;
    if (!text)
        return usual;
    unsigned long value = strtoul(text, &end, 10);
    if (*text == 0 || *end || value > most) {
        fprintf(stderr, "%s: a number up to %zu is wanted\n", name, most);
        _exit(1);
    }
    return value;
}

int protocol_begin(void) {
    nodes = (int)FM_numnodes;
    eager_max = setting("HAMLYN_MPI_EAGER", 16384, WINDOW / 4);
    takes_all = setting("HAMLYN_MPI_EXTRACT_ALL", 0, 1);
    /* Each turn is some 100 ns; where ranks share processors, others need this one. */
    spins = nodes > sysconf(_SC_NPROCESSORS_ONLN) ? 10 : 500;
    peers = calloc(nodes, sizeof *peers);
    if (!peers || match_open(&matcher, nodes))
        return -1;
    for (int i = 0; i < nodes; i++) {
        TAILQ_INIT(&peers[i].ordered);
        TAILQ_INIT(&peers[i].data);
        peers[i].packet = (unsigned)FM_room(i);
    }
    static FM_handler *const handlers[] = {on_eager, on_ask, on_take, on_data, on_consumed};
    for (unsigned i = 0; i < 5; i++)
        if (FM_register_handler(EAGER + i, handlers[i]) != EAGER + i)
            return -1;
    return 0;
}

void protocol_finish(void) {
    for (int i = 0; i < nodes; i++) {
        for (struct answer *answer = peers[i].answers, *next; answer; answer = next) {
            next = answer->next;
            free(answer);
        }
        for (struct match *message; (message = TAILQ_FIRST(&matcher.came[i]));) {
            match_take(&matcher, message);
            free(message);
        }
    }
    match_close(&matcher);
    free(peers);
    peers = NULL;
    nodes = pending = 0;
}

/* ---- sending ---- */

static void enlist(struct match_list *list, struct request *request) {
    pending += TAILQ_EMPTY(list);
    TAILQ_INSERT_TAIL(list, &request->match, link);
}

static void unlist(struct match_list *list, struct request *request) {
    TAILQ_REMOVE(list, &request->match, link);
    pending -= TAILQ_EMPTY(list);
}

/* Completes a request. One that its program has freed is no more. */
static void complete(struct request *request, int error) {
    request->state = DONE;
    if (error)
        request->error = error;
    if (request->is_freed)
        request_give_back(request);
}

/* Sends four words: now, in a handler as its answer; or when there is room. */
static void answer(int dest, unsigned handler, bool in_handler, uint32_t a, uint32_t b, uint64_t c) {
    struct peer *peer = &peers[dest];
    uint32_t high = (uint32_t)(c >> 32);
    if (in_handler || (!peer->answers && FM_room(dest) >= 16)) {
        FM_send_4(dest, handler, a, b, (uint32_t)c, high);
        return;
    }
    struct answer *later = malloc(sizeof *later), **end = &peer->answers;
    if (!later) {
        fprintf(stderr, "MPI: no memory\n");
        abort();
    }
    *later = (struct answer){handler, {a, b, (uint32_t)c, high}, NULL};
    pending += !peer->answers;
    while (*end)
        end = &(*end)->next;
    *end = later;
}

static void give_out_answers(int dest) {
    struct peer *peer = &peers[dest];
    while (peer->answers && FM_room(dest) >= 16) {
        struct answer *first = peer->answers;
        FM_send_4(dest, first->handler, first->words[0], first->words[1], first->words[2], first->words[3]);
        peer->answers = first->next;
        pending -= !peer->answers;
        free(first);
    }
}

/* Bytes of eager messages were taken. */
static void consume(int source, size_t bytes, bool in_handler) {
    struct peer *peer = &peers[source];
    peer->consumed += bytes + CHARGE;
    if (peer->consumed - peer->told < WINDOW / 4)
        return;
    peer->told = peer->consumed;
    answer(source, CONSUMED, in_handler, 0, 0, peer->told);
}

static bool is_within_window(const struct peer *peer, size_t bytes) {
    return bytes <= eager_max && peer->eager_sent - peer->eager_consumed + bytes + CHARGE <= WINDOW;
}

/* Sends pieces of a body as there is room. Those of a long message end at whole packets, so that each piece
 * sends one packet at most. Returns 1: all; 0: no more room; -1: an error of FM. */
static int send_body(struct request *request, const struct peer *peer, bool is_long) {
    char gathered[GATHER], *run;
    bool is_sparse = walk_is_sparse(&request->walk);
    while (request->moved < request->bytes) {
        size_t left = request->bytes - request->moved, piece = left;
        if (is_long) {
            size_t in_packet = request->moved % peer->packet;
            if (in_packet == 0 && FM_room(request->match.peer) < (left < peer->packet ? left : peer->packet))
                return 0;
            piece = left < peer->packet - in_packet ? left : peer->packet - in_packet;
        }
        if (is_sparse) {
            piece = walk_read(&request->walk, gathered, piece < GATHER ? piece : GATHER);
            run = gathered;
        } else {
            piece = walk_next(&request->walk, piece, &run);
        }
        if (FM_send_piece(request->stream, run, piece))
            return -1;
        request->moved += piece;
    }
    return 1;
}

/* A short message in one piece. */
static bool send_short(struct request *request, const struct header *header) {
    char all[sizeof *header + ONE_PIECE];
    memcpy(all, header, sizeof *header);
    walk_read(&request->walk, all + sizeof *header, request->bytes);
    size_t bytes = sizeof *header + request->bytes;
    FM_stream *stream = FM_begin_message(request->match.peer, bytes, EAGER);
    if (!stream)
        return false;
    bool is_sent = FM_send_piece(stream, all, bytes) == 0;
    return FM_end_message(stream) == 0 && is_sent;
}

/* Sends what there is room for. Returns whether the request leaves its list. */
static bool push(struct request *request) {
    struct peer *peer = &peers[request->match.peer];
    struct header header = {request->match.tag, request->match.context};
    if (request->state == ASKS) {
        struct asking asking = {header, request->bytes, (uint32_t)request->id, 0};
        if (FM_room(request->match.peer) < sizeof asking)
            return false;
        FM_stream *stream = FM_begin_message(request->match.peer, sizeof asking, ASK);
        bool is_sent = stream && FM_send_piece(stream, &asking, sizeof asking) == 0;
        is_sent = stream && FM_end_message(stream) == 0 && is_sent;
        figures.asked++;
        request->state = ASKED;
        if (!is_sent)
            complete(request, MPI_ERR_OTHER);
        return true;
    }
    size_t bytes = sizeof header + request->bytes;
    bool is_long = bytes > peer->packet;
    if (!request->stream) {
        if (FM_room(request->match.peer) < (is_long ? peer->packet : bytes))
            return false;
        if (request->state == READY && request->bytes <= ONE_PIECE && !is_long) {
            bool is_sent = send_short(request, &header);
            complete(request, is_sent ? MPI_SUCCESS : MPI_ERR_OTHER);
            return true;
        }
        if (request->state == SENDS)
            header = (struct header){(int32_t)request->remote, 0};
        request->stream = FM_begin_message(request->match.peer, bytes, request->state == SENDS ? DATA : EAGER);
        if (!request->stream || FM_send_piece(request->stream, &header, sizeof header)) {
            if (request->stream)
                FM_end_message(request->stream);
            complete(request, MPI_ERR_OTHER);
            return true;
        }
    }
    int sent = send_body(request, peer, is_long);
    if (sent == 0)
        return false;
    if (FM_end_message(request->stream))
        sent = -1;
    request->stream = NULL;
    complete(request, sent < 0 ? MPI_ERR_OTHER : MPI_SUCCESS);
    return true;
}

static void push_list(struct match_list *list) {
    /* A request that push() has given back is not another before it has left the list. */
    for (struct request *first; (first = (struct request *)TAILQ_FIRST(list)) && push(first);)
        unlist(list, first);
}

void send_start(struct request *request) {
    struct peer *peer = &peers[request->match.peer];
    walk_begin(&request->walk, request->buf, request->count, request->type);
    request->moved = 0;
    request->stream = NULL;
    figures.sent++;
    figures.sent_bytes += request->bytes;
    request->state = ASKS;
    if (!request->is_sync && is_within_window(peer, request->bytes)) {
        peer->eager_sent += request->bytes + CHARGE;
        request->state = READY;
    }
    if (!TAILQ_EMPTY(&peer->ordered) || !push(request))
        enlist(&peer->ordered, request);
}

/* ---- receiving ---- */

/* What has come of a message is in the request's buffer, or never will be. */
static void arrived(struct request *request, size_t bytes, bool is_whole) {
    request->moved = bytes;
    complete(request, is_whole ? MPI_SUCCESS : MPI_ERR_OTHER);
}

/* The receive gets a message: how much of it there is room for. */
static size_t meet(struct request *request, const struct match *message, size_t bytes) {
    request->came_from = message->peer;
    request->came_tag = message->tag;
    if (bytes > request->bytes)
        request->error = MPI_ERR_TRUNCATE;
    else
        request->bytes = bytes;
    return request->bytes;
}

/* In a handler: the message goes straight to the receive's buffer. */
static void fill(struct request *request, FM_stream *stream) {
    char gathered[GATHER], *run;
    struct walk *walk = &request->walk;
    bool is_sparse = walk_is_sparse(walk);
    size_t done = 0;
    request->state = ARRIVES;
    while (done < request->bytes) {
        size_t most = request->bytes - done, came;
        most = most < (1u << 30) ? most : 1u << 30;
        if (is_sparse) {
            most = most < GATHER ? most : GATHER;
            came = FM_receive(gathered, stream, (unsigned)most);
            walk_write(walk, gathered, came);
        } else {
            most = walk_next(walk, most, &run);
            came = FM_receive(run, stream, (unsigned)most);
        }
        done += came;
        request->moved = done;
        if (came < most)
            break;
    }
    arrived(request, done, done == request->bytes);
}

static int refuse(void) {
    figures.refused++;
    return FM_CONTINUE;
}

/* Room for a message before its receive; NULL: the peer has too much here. */
static struct message *hold(const struct match *match, size_t bytes, bool is_asking) {
    struct peer *peer = &peers[match->peer];
    size_t room = is_asking ? 0 : bytes;
    if (peer->held[is_asking] + room + CHARGE > held_max[is_asking])
        return NULL;
    struct message *message = malloc(sizeof *message + room);
    if (!message)
        return NULL;
    *message = (struct message){.match = *match, .bytes = bytes, .is_asking = is_asking};
    peer->held[is_asking] += room + CHARGE;
    held += room + CHARGE;
    if (held > figures.held_most)
        figures.held_most = held;
    match_keep(&matcher, &message->match);
    return message;
}

static void let_go(struct message *message) {
    size_t room = message->is_asking ? 0 : message->bytes;
    peers[message->match.peer].held[message->is_asking] -= room + CHARGE;
    held -= room + CHARGE;
    free(message);
}

/* Copies a message that came before its receive. */
static void copy_out(struct request *request, struct message *message) {
    size_t bytes = request->bytes < message->arrived ? request->bytes : message->arrived;
    walk_write(&request->walk, message->data, bytes);
    bool is_whole = message->arrived == message->bytes;
    let_go(message);
    arrived(request, bytes, is_whole);
}

static int on_eager(FM_stream *stream, unsigned sender) {
    struct header header;
    if (FM_receive(&header, stream, sizeof header) != sizeof header || header.tag < 0)
        return refuse();
    size_t bytes = FM_left(stream);
    if (bytes > WINDOW)
        return refuse();
    struct match match = {.context = header.context, .peer = (int)sender, .tag = header.tag};
    struct request *request = (struct request *)match_receive(&matcher, &match);
    if (request) {
        figures.expected++;
        figures.expected_bytes += bytes;
        consume((int)sender, bytes, true);
        meet(request, &match, bytes);
        fill(request, stream);
        return FM_CONTINUE;
    }
    struct message *message = hold(&match, bytes, false);
    if (!message)
        return refuse();
    figures.unexpected++;
    figures.unexpected_bytes += bytes;
    /* A receive may claim it while this handler is suspended. */
    int came = bytes ? FM_receive(message->data, stream, (unsigned)bytes) : 0;
    message->arrived = (size_t)came;
    message->is_whole = true;
    if (message->claimer)
        copy_out(message->claimer, message);
    return FM_CONTINUE;
}

/* Asks the sender of a long message for its data. */
static void accept_data(struct request *request, int source, uint32_t id, bool in_handler) {
    answer(source, TAKE, in_handler, id, (uint32_t)request->id, request->bytes);
    request->state = ACCEPTED;
    if (request->bytes == 0)
        arrived(request, 0, true);
}

static int on_ask(FM_stream *stream, unsigned sender) {
    struct asking asking;
    if (FM_receive(&asking, stream, sizeof asking) != sizeof asking || asking.header.tag < 0)
        return refuse();
    struct match match = {.context = asking.header.context, .peer = (int)sender, .tag = asking.header.tag};
    struct request *request = (struct request *)match_receive(&matcher, &match);
    if (request) {
        meet(request, &match, asking.bytes);
        accept_data(request, (int)sender, asking.id, true);
        return FM_CONTINUE;
    }
    struct message *message = hold(&match, asking.bytes, true);
    if (!message)
        return refuse();
    figures.late++;
    message->is_whole = true;
    message->remote = asking.id;
    return FM_CONTINUE;
}

static int on_take(FM_stream *stream, unsigned sender) {
    uint32_t words[4];
    if (FM_receive(words, stream, sizeof words) != sizeof words)
        return refuse();
    struct request *request = request_of((int)words[0]);
    uint64_t bytes = words[2] | (uint64_t)words[3] << 32;
    if (!request || request->state != ASKED || request->match.peer != (int)sender || bytes > request->bytes)
        return refuse();
    request->bytes = bytes;
    request->remote = words[1];
    if (bytes == 0) {
        complete(request, MPI_SUCCESS);
        return FM_CONTINUE;
    }
    request->state = SENDS;
    enlist(&peers[sender].data, request);
    return FM_CONTINUE;
}

static int on_data(FM_stream *stream, unsigned sender) {
    struct header header;
    if (FM_receive(&header, stream, sizeof header) != sizeof header)
        return refuse();
    struct request *request = request_of(header.tag);
    if (!request || request->state != ACCEPTED || request->came_from != (int)sender)
        return refuse();
    figures.expected++;
    figures.expected_bytes += request->bytes;
    fill(request, stream);
    return FM_CONTINUE;
}

static int on_consumed(FM_stream *stream, unsigned sender) {
    uint32_t words[4];
    if (FM_receive(words, stream, sizeof words) != sizeof words)
        return refuse();
    uint64_t consumed = words[2] | (uint64_t)words[3] << 32;
    if (consumed > peers[sender].eager_sent || consumed < peers[sender].eager_consumed)
        return refuse();
    peers[sender].eager_consumed = consumed;
    return FM_CONTINUE;
}

/* A rank can say any context: one that is no member of the communicator is not "any source". */
static bool is_member(const struct match *receive, const struct match *message) {
    return comm_rank_of(((const struct request *)receive)->comm, message->peer) != MPI_UNDEFINED;
}

struct message *message_for(struct request *request) {
    request->match.admits = request->match.peer == MPI_ANY_SOURCE && request->comm->size < nodes ? is_member : NULL;
    return (struct message *)match_message(&matcher, &request->match);
}

void receive_start(struct request *request) {
    walk_begin(&request->walk, request->buf, request->count, request->type);
    request->bytes = request->walk.left;
    request->moved = 0;
    request->state = POSTED;
    struct message *message = message_for(request);
    if (!message) {
        match_post(&matcher, &request->match);
        return;
    }
    match_take(&matcher, &message->match);
    meet(request, &message->match, message->bytes);
    if (message->is_asking) {
        accept_data(request, message->match.peer, message->remote, false);
        let_go(message);
        return;
    }
    consume(message->match.peer, message->bytes, false);
    if (message->is_whole) {
        copy_out(request, message);
        return;
    }
    request->state = CLAIMS;
    message->claimer = request;
}

/* ---- turns ---- */

int progress(unsigned bytes_max) {
    if (pending)
        for (int i = 0; i < nodes; i++) {
            if (peers[i].answers)
                give_out_answers(i);
            push_list(&peers[i].ordered);
            push_list(&peers[i].data);
        }
    return FM_extract(takes_all ? FM_ALL : bytes_max);
}

/* One packet, until the receive has its message; then what this message still has. So a receiver that waits for
 * one message takes few others before their receives are posted. */
unsigned wanted(const struct request *request) {
    if (request->state != ARRIVES && request->state != ACCEPTED)
        return 1;
    size_t left = request->bytes - request->moved;
    return left < 1u << 20 ? (unsigned)left + 1 : 1u << 20;
}

bool relax(struct idle *idle, bool has_come) {
    if (has_come) {
        idle->turns = 0;
        return ++idle->busy % 1024 == 0;
    }
    if (++idle->turns < spins) {
#if defined __x86_64__
        __builtin_ia32_pause();
#endif
        return false;
    }
    /* Room comes without a sign. */
    if (idle->turns < spins + (pending ? 200 : 20)) {
        sched_yield();
        return false;
    }
    FM_wait(pending ? 1 : 20);
    return true;
}

bool is_dead(const struct comm *comm, int peer) {
    if (peer == MPI_ANY_SOURCE) {
        for (int i = 0; i < comm->size; i++)
            if (i != comm->rank && !FM_has_left(comm->world[i]))
                return false;
        if (comm->size == 1)
            return false;
    } else if (!FM_has_left(peer)) {
        return false;
    }
    /* What it sent before is taken first: each call takes all that was there at its start, and others may go on. */
    for (int i = 0; i < 4 && FM_extract(FM_ALL) > 0; i++)
        ;
    return true;
}

void fail_if_dead(struct request *request) {
    if (!is_dead(request->comm, request->state == ACCEPTED ? request->came_from : request->match.peer))
        return;
    /* A handler completes what it has begun. */
    if (request->state == DONE || request->state == ARRIVES || request->state == CLAIMS)
        return;
    struct peer *peer = request->is_send ? &peers[request->match.peer] : NULL;
    if (request->state == POSTED)
        match_retract(&matcher, &request->match);
    if (request->state == READY || request->state == ASKS)
        unlist(&peer->ordered, request);
    if (request->state == SENDS)
        unlist(&peer->data, request);
    if (request->is_send && request->stream)
        FM_end_message(request->stream);
    complete(request, MPI_ERR_OTHER);
}

void wait_for(struct request *request) {
    struct idle idle = {0};
    while (request->state != DONE) {
        bool has_come = progress(wanted(request)) > 0;
        if (request->state != DONE && relax(&idle, has_come))
            fail_if_dead(request);
    }
}

/* Before the end: what was freed while it was sent. */
void wait_for_sends(void) {
    struct idle idle = {0};
    for (unsigned sleeps = 0; pending && sleeps < 10000;)
        sleeps += relax(&idle, progress(FM_ALL) > 0);
}
