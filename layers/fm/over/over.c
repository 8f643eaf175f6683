/* See over.h. */
#define _POSIX_C_SOURCE 200809L
#include "over.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a message takes of the window at its node beside its bytes: headers, and rounding up to lines. */
#define MESSAGE_BYTES 192u
/* Three whole messages. FM's credit of 48 KiB has room for them beside a quarter that is told late, and one
 * packet that does not fit at the window's end. */
#define ACCOUNT_BYTES (3 * (OVER_CHUNK + MESSAGE_BYTES))
#define SPIN_US 50
#define NAP_MS 20
/* Extracts after which a wait looks at the clock and at the node, if something comes all the time. */
#define ROUNDS 1000
#define REQUESTS 8u

typedef struct {
    unsigned in_flight;
    /* At node 0: how often the node has come to a barrier of each library, and with which value. */
    unsigned arrived[OVER_CLIENTS];
    uint64_t value[OVER_CLIENTS];
} node;

typedef struct {
    /* OPEN: no reply yet. RECEIVING: its bytes come, so a second reply finds no place. */
    enum { CLOSED, OPEN, RECEIVING } state;
    unsigned long node;
    uint32_t generation;
    over_rows to;
} request;

typedef struct {
    uint32_t tag;
    int32_t status;
} reply_header;

static node *nodes;
/* Bits of libraries: started; with handlers in this FM. */
static unsigned users, registered;
static int has_joined;
static request requests[REQUESTS];
static unsigned next_request;
/* The first error since over_finish. */
static int request_error;
static unsigned failures[OVER_CLIENTS];
/* The last: of no library in particular. */
static unsigned long long refused[OVER_CLIENTS + 1];
/* Barriers that this node has begun, and those that node 0 has released. */
static unsigned begun[OVER_CLIENTS], released[OVER_CLIENTS];
static int release_status[OVER_CLIENTS];
/* At node 0: a node has left, so no barrier of the library can complete. */
static int is_broken[OVER_CLIENTS];

void over_refuse(int client) { refused[client]++; }
unsigned long long over_refused(int client) { return refused[client] + refused[OVER_CLIENTS]; }

static long now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

long over_ms(void) { return now_us() / 1000; }

int over_take(FM_stream *stream, void *header, unsigned bytes, int client)
{
    int is = FM_receive(header, stream, bytes) == (int)bytes;

    if (!is)
        over_refuse(client);
    return is;
}

static int has_left(long node)
{
    if (node >= 0)
        return FM_has_left((unsigned long)node);
    for (unsigned long other = 0; node == OVER_ANY && other < FM_numnodes; other++) {
        if (other != FM_nodeid && FM_has_left(other))
            return 1;
    }
    return 0;
}

int over_wait(int (*ready)(void *), void *of, long node, long ms, unsigned most)
{
    long began = ms >= 0 ? now_us() : 0, idle = 0;
    int is_gone = 0;

    for (unsigned rounds = 0; !ready(of); rounds++) {
        int given = FM_extract(most);
        /* Others who send all the time hide neither the end of a node nor that of the time. */
        int looks = given == 0 || rounds % ROUNDS == ROUNDS - 1;
        long now, left = NAP_MS;

        if (ready(of))
            break;
        /* It had left before the last extract, so nothing of it is left to extract. */
        if (looks && is_gone)
            return OVER_DEAD;
        is_gone = is_gone || (looks && has_left(node));
        if (ms >= 0 && (left = ms - (now_us() - began) / 1000) <= 0 && looks)
            return OVER_TIME;
        if (given > 0 || is_gone) {
            idle = 0;
            continue;
        }
        now = now_us();
        idle = idle ? idle : now;
        if (now - idle < SPIN_US)
            sched_yield();
        else if (!FM_wait((int)(left < NAP_MS ? left : NAP_MS)) && FM_error() != FM_OK)
            return OVER_SYSTEM;
    }
    return OVER_OK;
}

/* The account. */

int over_has_room(unsigned long node, unsigned bytes)
{
    return nodes[node].in_flight + bytes + MESSAGE_BYTES <= ACCOUNT_BYTES;
}

/* For a message of any length. */
static int is_there_room(void *of) { return over_has_room((unsigned long)((const node *)of - nodes), OVER_CHUNK); }

int over_reserve(unsigned long node, unsigned bytes, long ms)
{
    int code = over_has_room(node, bytes) ? OVER_OK : over_wait(is_there_room, &nodes[node], (long)node, ms, FM_ALL);

    if (code == OVER_OK)
        nodes[node].in_flight += bytes + MESSAGE_BYTES;
    return code;
}

int over_settle(unsigned long node, uint64_t bytes)
{
    if (bytes > OVER_CHUNK || nodes[node].in_flight < bytes + MESSAGE_BYTES)
        return -1;
    nodes[node].in_flight -= (unsigned)bytes + MESSAGE_BYTES;
    return 0;
}

static int on_ack(FM_stream *stream, unsigned sender)
{
    uint32_t words[4];

    if (!over_take(stream, words, sizeof words, OVER_CLIENTS))
        return FM_CONTINUE;
    if (words[0] >= OVER_CLIENTS || over_settle(sender, words[1]))
        over_refuse(OVER_CLIENTS);
    else
        failures[words[0]] += words[2] != 0;
    return FM_CONTINUE;
}

void over_acknowledge(unsigned long node, int client, unsigned bytes, int is_refused)
{
    if (is_refused)
        over_refuse(client);
    /* The reply to a message's sender always has room. If the sender has left, nobody waits. */
    (void)FM_send_4(node, OVER_ACK, (unsigned)client, bytes, is_refused != 0, 0);
}

static int is_settled(void *of) { return ((const node *)of)->in_flight == 0; }

int over_quiet(void)
{
    int code = users ? OVER_OK : OVER_RANGE;

    for (unsigned long other = 0; users && other < FM_numnodes; other++) {
        int one = over_wait(is_settled, &nodes[other], (long)other, -1, FM_ALL);

        if (one == OVER_DEAD)
            nodes[other].in_flight = 0;
        code = one != OVER_OK ? one : code;
    }
    return code;
}

unsigned over_take_failures(int client)
{
    unsigned count = failures[client];

    failures[client] = 0;
    return count;
}

/* Messages. */

static int last_error(void)
{
    int error = FM_error();

    return error == FM_FULL ? OVER_TIME : error == FM_DEAD ? OVER_DEAD : error == FM_LIMIT ? OVER_RANGE : OVER_SYSTEM;
}

/* A packet that a message may fill, at its node. */
typedef struct {
    unsigned long node;
    size_t bytes;
} packet;

static int is_room_for(void *of) { return FM_room(((const packet *)of)->node) >= ((const packet *)of)->bytes; }

int over_send(unsigned long node, unsigned long id, const void *header, unsigned bytes, const over_rows *rows,
              long ms)
{
    size_t all = bytes + (rows ? rows->bytes * rows->count : 0), count = rows ? rows->count : 0;
    packet of = {node, all < OVER_CHUNK ? all : OVER_CHUNK};
    int code = ms == OVER_HANDLER ? OVER_OK : over_wait(is_room_for, &of, (long)node, ms, FM_ALL);
    FM_stream *stream = code == OVER_OK ? FM_begin_message(node, all, id) : NULL;

    if (code == OVER_OK && (!stream || FM_send_piece(stream, header, bytes)))
        code = last_error();
    for (size_t row = 0; code == OVER_OK && row < count; row++) {
        if (ms != OVER_HANDLER)
            code = over_wait(is_room_for, &of, (long)node, ms, FM_ALL);
        if (code == OVER_OK && FM_send_piece(stream, rows->at + row * rows->stride, rows->bytes))
            code = last_error();
    }
    /* A message with an error ends early: its handler sees fewer bytes than its header says. */
    if (stream && FM_end_message(stream) && code == OVER_OK)
        code = last_error();
    return code;
}

int over_receive(FM_stream *stream, over_rows rows)
{
    for (size_t row = 0; row < rows.count; row++) {
        if (FM_receive(rows.at + row * rows.stride, stream, (unsigned)rows.bytes) != (int)rows.bytes)
            return -1;
    }
    return 0;
}

/* Requests. */

static int is_answered(void *of) { return ((const request *)of)->state == CLOSED; }

static void set_request_error(int code)
{
    if (request_error == OVER_OK)
        request_error = code;
}

static void finish(request *of)
{
    set_request_error(over_wait(is_answered, of, (long)of->node, -1, FM_ALL));
    /* In a handler, it does not wait for one that receives. */
    if (of->state == OPEN)
        of->state = CLOSED;
}

int over_request(unsigned long node, unsigned long id, void *header, unsigned bytes, over_rows to)
{
    unsigned index = next_request++ % REQUESTS;
    request *of = &requests[index];
    uint32_t tag;
    int code;

    finish(of);
    if (of->state != CLOSED)
        return OVER_SYSTEM;
    of->generation++;
    tag = of->generation * REQUESTS + index;
    memcpy(header, &tag, sizeof tag);
    of->node = node;
    of->to = to;
    code = over_send(node, id, header, bytes, NULL, -1);
    of->state = code == OVER_OK ? OPEN : CLOSED;
    return code;
}

static int on_reply(FM_stream *stream, unsigned sender)
{
    reply_header header;
    request *of;

    if (!over_take(stream, &header, sizeof header, OVER_CLIENTS))
        return FM_CONTINUE;
    of = &requests[header.tag % REQUESTS];
    if (of->state != OPEN || of->node != sender || of->generation % (UINT32_MAX / REQUESTS + 1) != header.tag / REQUESTS) {
        over_refuse(OVER_CLIENTS);
        return FM_CONTINUE;
    }
    of->state = RECEIVING;
    if (header.status != OVER_OK)
        set_request_error(OVER_REFUSED);
    else if (FM_left(stream) != of->to.bytes * of->to.count || over_receive(stream, of->to))
        set_request_error(OVER_SYSTEM);
    of->state = CLOSED;
    return FM_CONTINUE;
}

int over_finish(void)
{
    int code;

    for (unsigned index = 0; index < REQUESTS; index++)
        finish(&requests[index]);
    code = request_error;
    request_error = OVER_OK;
    return code;
}

void over_reply(unsigned long node, int client, uint32_t tag, const over_rows *rows)
{
    reply_header header = {tag, rows ? OVER_OK : OVER_REFUSED};

    if (!rows)
        over_refuse(client);
    (void)over_send(node, OVER_REPLY, &header, sizeof header, rows, OVER_HANDLER);
}

/* The barrier. */

static int on_arrive(FM_stream *stream, unsigned sender)
{
    uint32_t words[4];

    if (!over_take(stream, words, sizeof words, OVER_CLIENTS))
        return FM_CONTINUE;
    if (words[0] >= OVER_CLIENTS || FM_nodeid != 0 || words[1] != nodes[sender].arrived[words[0]] + 1) {
        over_refuse(OVER_CLIENTS);
        return FM_CONTINUE;
    }
    nodes[sender].arrived[words[0]]++;
    nodes[sender].value[words[0]] = words[2] | (uint64_t)words[3] << 32;
    if (is_broken[words[0]])
        (void)FM_send_4(sender, OVER_RELEASE, words[0], words[1], 1, 0);
    return FM_CONTINUE;
}

static int on_release(FM_stream *stream, unsigned sender)
{
    uint32_t words[4];

    if (!over_take(stream, words, sizeof words, OVER_CLIENTS))
        return FM_CONTINUE;
    if (words[0] >= OVER_CLIENTS || sender != 0 || words[1] != begun[words[0]] || words[1] == released[words[0]]) {
        over_refuse(OVER_CLIENTS);
        return FM_CONTINUE;
    }
    released[words[0]] = words[1];
    release_status[words[0]] = words[2] == 0 ? OVER_OK : words[2] == 1 ? OVER_DEAD : OVER_REFUSED;
    return FM_CONTINUE;
}

static int have_all_come(void *of)
{
    int client = *(const int *)of;

    for (unsigned long other = 1; other < FM_numnodes; other++) {
        if (nodes[other].arrived[client] != begun[client])
            return 0;
    }
    return 1;
}

static int is_released(void *of) { return released[*(const int *)of] == begun[*(const int *)of]; }

int over_barrier(int client, uint64_t value)
{
    unsigned status = 0, round = begun[client] + 1;
    int code;

    if (!over_is_started(client))
        return OVER_RANGE;
    if (FM_nodeid != 0) {
        /* One that did not leave has not begun: node 0 counts them. */
        uint32_t words[4] = {(uint32_t)client, round, (uint32_t)value, (uint32_t)(value >> 32)};

        code = over_send(0, OVER_ARRIVE, words, sizeof words, NULL, -1);
        if (code != OVER_OK)
            return code;
        begun[client] = round;
        code = over_wait(is_released, &client, 0, -1, FM_ALL);
        return code == OVER_OK ? release_status[client] : code;
    }
    begun[client] = round;
    if (is_broken[client])
        return OVER_DEAD;
    if (over_wait(have_all_come, &client, OVER_ANY, -1, FM_ALL) != OVER_OK)
        status = is_broken[client] = 1;
    for (unsigned long other = 1; !status && other < FM_numnodes; other++) {
        if (nodes[other].value[client] != value)
            status = 2;
    }
    /* After a death, the others are told when they come. */
    for (unsigned long other = 1; other < FM_numnodes; other++) {
        if (nodes[other].arrived[client] == round)
            (void)FM_send_4(other, OVER_RELEASE, (unsigned)client, round, status, 0);
    }
    return status == 0 ? OVER_OK : status == 1 ? OVER_DEAD : OVER_REFUSED;
}

/* Start and end. */

static int register_all(unsigned long id, FM_handler *const *handlers, unsigned count)
{
    for (unsigned index = 0; index < count; index++) {
        if (FM_register_handler(id + index, handlers[index]) == FM_ANY_ID)
            return OVER_SYSTEM;
    }
    return OVER_OK;
}

int over_is_started(int client) { return users >> client & 1; }

int over_start(int client, unsigned long id, FM_handler *const *handlers, unsigned count)
{
    static FM_handler *const own[] = {on_ack, on_reply, on_arrive, on_release};

    if (over_is_started(client))
        return OVER_OK;
    if (FM_numnodes == 0) {
        if (FM_try_initialize())
            return OVER_SYSTEM;
        has_joined = 1;
    }
    /* An FM without them is a new one, perhaps with other nodes. */
    if (users == 0 && register_all(OVER_ACK, own, 4) == OVER_OK) {
        free(nodes);
        nodes = (node *)calloc(FM_numnodes, sizeof *nodes);
        registered = 0;
        memset(begun, 0, sizeof begun);
        memset(released, 0, sizeof released);
        memset(is_broken, 0, sizeof is_broken);
        memset(failures, 0, sizeof failures);
    }
    if (!nodes || (!(registered >> client & 1) && register_all(id, handlers, count) != OVER_OK))
        return OVER_SYSTEM;
    registered |= 1u << client;
    users |= 1u << client;
    return OVER_OK;
}

void over_stop(int client)
{
    users &= ~(1u << client);
    /* Else handlers are still called, and use them. */
    if (users == 0 && has_joined) {
        has_joined = 0;
        FM_finalize();
        free(nodes);
        nodes = NULL;
    }
}

const char *over_error_text(int code)
{
    static const char *const texts[] = {"no error", "the other node's program has ended", "not within the time limit",
                                        "the owner has refused it", "an argument is out of range"};

    return code <= 0 && code > OVER_SYSTEM ? texts[-code] : "the system has refused something";
}
