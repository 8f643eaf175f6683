/* See fm_sockets.h.
 *
 *   connect   CONNECT (port, own socket, window)  ->  a socket in the listener's backlog
 *             <-  ANSWER (its socket, or 0; window)
 *   send      DATA (both sockets, place) and bytes ->  the buffer of fms_recv, else the socket's own
 *             <-  TAKEN (bytes of this message; all that the program has consumed), and when it consumes more
 *   shutdown, close: END
 *
 * Two bounds hold what is under way: the window, so that a socket's buffer has room; and over's account of the
 * node, so that FM has.
 *
 * Never: the other end of a socket is believed to be another node than the one that it was made with; fms_recv
 * returns while a handler receives into its buffer; a buffer is freed while a handler receives into it.
 */
#include "fm_sockets.h"
#include "over.h"
#include <stdlib.h>
#include <string.h>

_Static_assert(FMS_DEAD == OVER_DEAD && FMS_TIME == OVER_TIME && FMS_REFUSED == OVER_REFUSED &&
               FMS_RANGE == OVER_RANGE && FMS_SYSTEM == OVER_SYSTEM, "one set of codes");

enum { CONNECT = OVER_ID_SOCKETS, ANSWER, DATA, TAKEN, END };
/* CLOSING: closed by the program, and freed when the handler that receives into its buffer has ended. */
enum { FREE, CLOSING, LISTENING, CONNECTING, WAITING, OPEN };
/* Of END. */
enum { SHUT, CLOSED, LOST };

typedef struct {
    int kind;
    /* Its number: the place in the table below, and how often that was used above. */
    uint32_t id;
    /* Of a listener; of a connection that waits, its listener's number. */
    int port;
    uint32_t listener;
    unsigned long order;
    /* The other end. */
    unsigned long node;
    uint32_t peer;
    int is_incoming;
    /* Why it failed, or OVER_OK. */
    int code;
    int is_shut, is_peer_shut, is_peer_closed;
    /* Bytes since the beginning. */
    uint64_t sent, may_send, received, consumed, told;
    size_t window_there;
    /* A ring. */
    char *buffer;
    size_t window, head, filled;
    /* The buffer of fms_recv. */
    char *post;
    size_t room, posted;
    /* A handler receives; into the buffer of fms_recv. */
    int is_receiving, is_straight;
} sock;

/* A whole message of OVER_CHUNK bytes behind it is longer than a packet, so its header goes ahead, and FM puts the rest
 * straight to its place. */
typedef struct {
    uint32_t to, of;
    /* Bytes before these. */
    uint64_t at;
} data_header;

typedef struct {
    uint32_t to, of;
    uint64_t consumed;
    uint32_t taken, is_lost;
} taken_message;

static sock table[FMS_SOCKETS];
static size_t window = 32768;
static int extract_all;
static long limit_ms = -1;
static unsigned long next_order;
static fms_figures figures;

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void release(sock *s)
{
    s->kind = s->is_receiving ? CLOSING : FREE;
    if (s->is_receiving)
        return;
    free(s->buffer);
    s->buffer = NULL;
}

static sock *new_socket(int kind, int with_buffer)
{
    for (uint32_t index = 0; index < FMS_SOCKETS && over_is_started(OVER_SOCKETS); index++) {
        sock *s = &table[index];
        uint32_t uses = s->id / FMS_SOCKETS % 0x7fffff + 1;
        char *buffer;

        if (s->kind != FREE)
            continue;
        buffer = with_buffer ? (char *)malloc(window) : NULL;
        if (with_buffer && !buffer)
            return NULL;
        *s = (sock){.kind = kind, .id = uses * FMS_SOCKETS + index, .buffer = buffer, .window = window};
        s->order = next_order++;
        return s;
    }
    return NULL;
}

static sock *find(uint32_t id)
{
    sock *s = &table[id % FMS_SOCKETS];

    return s->kind > CLOSING && s->id == id ? s : NULL;
}

/* The program's socket. */
static sock *find_own(int socket, int kind)
{
    sock *s = socket > 0 ? find((uint32_t)socket) : NULL;

    return s && s->kind == kind ? s : NULL;
}

/* The socket that a peer names, if it is the one at the other end. */
static sock *find_named(uint32_t to, uint32_t of, unsigned sender)
{
    sock *s = find(to);

    return s && s->kind >= WAITING && s->node == sender && s->peer == of ? s : NULL;
}

static void fail(sock *s, int code)
{
    if (s->code == OVER_OK)
        s->code = code;
}

static void refuse(sock *s)
{
    over_refuse(OVER_SOCKETS);
    if (s)
        fail(s, FMS_BROKEN);
}

static void send_end(unsigned long node, uint32_t to, uint32_t of, unsigned kind)
{
    /* It fails if the node has left, which its other end sees as well. */
    (void)FM_send_4(node, END, to, of, kind, 0);
}

/* Connections. */

static sock *listener_of(unsigned port)
{
    for (unsigned index = 0; index < FMS_SOCKETS; index++) {
        if (table[index].kind == LISTENING && (unsigned)table[index].port == port)
            return &table[index];
    }
    return NULL;
}

static sock *take_connection(const uint32_t words[4], unsigned sender)
{
    sock *listener = listener_of(words[0]), *s;
    unsigned of_node = 0, waiting = 0;

    if (words[1] == 0 || words[2] == 0 || words[2] > 1 << 20) {
        refuse(NULL);
        return NULL;
    }
    for (unsigned index = 0; listener && index < FMS_SOCKETS; index++) {
        of_node += table[index].kind != FREE && table[index].is_incoming && table[index].node == sender;
        waiting += table[index].kind == WAITING && table[index].listener == listener->id;
    }
    if (!listener || of_node >= FMS_PER_NODE || waiting >= FMS_BACKLOG_MAX)
        return NULL;
    s = new_socket(WAITING, 1);
    if (s) {
        s->listener = listener->id;
        s->node = sender;
        s->peer = words[1];
        s->is_incoming = 1;
        s->may_send = s->window_there = words[2];
    }
    return s;
}

static int on_connect(FM_stream *stream, unsigned sender)
{
    uint32_t words[4];
    sock *s;

    if (!over_take(stream, words, sizeof words, OVER_SOCKETS))
        return FM_CONTINUE;
    s = take_connection(words, sender);
    (void)FM_send_4(sender, ANSWER, words[1], s ? s->id : 0, s ? (unsigned)s->window : 0, 0);
    return FM_CONTINUE;
}

static int on_answer(FM_stream *stream, unsigned sender)
{
    uint32_t words[4];
    sock *s;

    if (!over_take(stream, words, sizeof words, OVER_SOCKETS))
        return FM_CONTINUE;
    s = find(words[0]);
    if (!s || s->kind != CONNECTING || s->node != sender) {
        /* fms_connect waits no more. */
        if (words[1] != 0)
            send_end(sender, words[1], words[0], LOST);
    } else if (words[1] == 0) {
        fail(s, FMS_REFUSED);
    } else if (words[2] == 0 || words[2] > 1 << 20) {
        refuse(s);
    } else {
        s->peer = words[1];
        s->may_send = s->window_there = words[2];
        s->kind = OPEN;
    }
    return FM_CONTINUE;
}

static int on_end(FM_stream *stream, unsigned sender)
{
    uint32_t words[4];
    sock *s;

    if (!over_take(stream, words, sizeof words, OVER_SOCKETS))
        return FM_CONTINUE;
    s = find_named(words[0], words[1], sender);
    if (words[2] > LOST)
        refuse(NULL);
    /* One that this end has closed is no error. */
    if (!s || words[2] > LOST)
        return FM_CONTINUE;
    s->is_peer_shut = 1;
    if (words[2] != SHUT)
        s->is_peer_closed = 1;
    if (words[2] == LOST)
        fail(s, FMS_BROKEN);
    return FM_CONTINUE;
}

/* Bytes. */

/* Receives one piece: to the waiting program, unless what came before it is not yet read. */
static size_t receive_piece(sock *s, FM_stream *stream, size_t bytes)
{
    char *to;
    size_t got;

    if (s->room > 0 && s->filled == 0) {
        to = s->post + s->posted;
        bytes = least(bytes, s->room);
        s->is_straight = 1;
        got = (size_t)FM_receive(to, stream, (unsigned)bytes);
        s->is_straight = 0;
        s->posted += got;
        s->room -= got;
        s->consumed += got;
        figures.bytes_straight += got;
    } else {
        size_t at = (s->head + s->filled) % s->window;

        bytes = least(bytes, s->window - at);
        got = (size_t)FM_receive(s->buffer + at, stream, (unsigned)bytes);
        s->filled += got;
        figures.bytes_buffered += got;
    }
    s->received += got;
    return got == bytes ? got : 0;
}

static int on_data(FM_stream *stream, unsigned sender)
{
    data_header header;
    taken_message taken = {0};
    unsigned long bytes;
    sock *s;

    if (!over_take(stream, &header, sizeof header, OVER_SOCKETS))
        return FM_CONTINUE;
    bytes = FM_left(stream);
    s = find_named(header.to, header.of, sender);
    taken.to = header.of;
    taken.of = header.to;
    if (bytes == 0 || bytes > OVER_CHUNK) {
        refuse(s);
        return FM_CONTINUE;
    }
    taken.taken = (uint32_t)bytes;
    if (s && (s->is_receiving || s->is_peer_shut || header.at != s->received || bytes > s->window - (s->received - s->consumed)))
        refuse(s);
    taken.is_lost = !s || s->code != OVER_OK;
    if (!taken.is_lost) {
        s->is_receiving = 1;
        while (bytes > 0) {
            size_t got = receive_piece(s, stream, bytes);

            bytes = got > 0 ? bytes - got : 0;
        }
        s->is_receiving = 0;
        taken.consumed = s->told = s->consumed;
        if (s->kind == CLOSING)
            release(s);
    }
    (void)over_send(sender, TAKEN, &taken, sizeof taken, NULL, OVER_HANDLER);
    return FM_CONTINUE;
}

static int on_taken(FM_stream *stream, unsigned sender)
{
    taken_message taken;
    sock *s;

    if (!over_take(stream, &taken, sizeof taken, OVER_SOCKETS))
        return FM_CONTINUE;
    if (taken.taken > 0 && over_settle(sender, taken.taken)) {
        refuse(NULL);
        return FM_CONTINUE;
    }
    s = find_named(taken.to, taken.of, sender);
    if (s && taken.is_lost)
        s->is_peer_closed = 1;
    else if (s && (taken.consumed > s->sent || taken.consumed + s->window_there < s->may_send))
        refuse(s);
    else if (s)
        s->may_send = taken.consumed + s->window_there;
    return FM_CONTINUE;
}

/* The program's calls. */

int fms_set(int setting, long value)
{
    if (setting == FMS_WINDOW && value >= 1024 && value <= 1 << 20)
        window = (size_t)value;
    else if (setting == FMS_EXTRACT_ALL && (value == 0 || value == 1))
        extract_all = (int)value;
    else if (setting == FMS_LIMIT_MS && value >= 0)
        limit_ms = value ? value : -1;
    else
        return FMS_RANGE;
    return 0;
}

int fms_start(void)
{
    static FM_handler *const handlers[] = {on_connect, on_answer, on_data, on_taken, on_end};
    const char *mode = getenv("FMS_EXTRACT");

    if (mode && strcmp(mode, "all") == 0)
        extract_all = 1;
    return over_start(OVER_SOCKETS, CONNECT, handlers, 5);
}

void fms_finish(void)
{
    for (unsigned index = 0; index < FMS_SOCKETS; index++) {
        if (table[index].kind != FREE)
            fms_close((int)table[index].id);
    }
    over_stop(OVER_SOCKETS);
}

int fms_listen(int port)
{
    sock *s;

    if (port < 0 || port > 65535)
        return FMS_RANGE;
    if (listener_of((unsigned)port))
        return FMS_REFUSED;
    s = new_socket(LISTENING, 0);
    if (!s)
        return FMS_SYSTEM;
    s->port = port;
    return (int)s->id;
}

static sock *oldest_waiting(const sock *listener)
{
    sock *oldest = NULL;

    for (unsigned index = 0; index < FMS_SOCKETS; index++) {
        sock *s = &table[index];

        if (s->kind == WAITING && s->listener == listener->id && (!oldest || s->order < oldest->order))
            oldest = s;
    }
    return oldest;
}

static int is_one_waiting(void *of) { return oldest_waiting((const sock *)of) != NULL; }

int fms_accept(int listener, long ms)
{
    sock *s = find_own(listener, LISTENING);
    int code;

    if (!s)
        return FMS_RANGE;
    code = over_wait(is_one_waiting, s, OVER_NONE, ms, FM_ALL);
    if (code != OVER_OK)
        return code;
    s = oldest_waiting(s);
    s->kind = OPEN;
    return (int)s->id;
}

static int is_answered(void *of) { return ((const sock *)of)->kind == OPEN || ((const sock *)of)->code != OVER_OK; }
static int never(void *of) { return of != NULL; }

int fms_connect(unsigned long node, int port, long ms)
{
    long began = over_ms();
    int code = FMS_TIME;

    if (node >= FM_numnodes || port < 0 || port > 65535)
        return FMS_RANGE;
    for (;;) {
        long left = ms < 0 ? -1 : ms - (over_ms() - began);
        int was = code;
        sock *s = new_socket(CONNECTING, 1);

        if (!s)
            return FMS_SYSTEM;
        s->node = node;
        left = ms >= 0 && left < 0 ? 0 : left;
        code = over_send(node, CONNECT, (uint32_t[4]){(uint32_t)port, s->id, (uint32_t)s->window}, 16, NULL, left);
        if (code == OVER_OK)
            code = over_wait(is_answered, s, (long)node, left, FM_ALL);
        if (code == OVER_OK && s->code == OVER_OK)
            return (int)s->id;
        if (code == OVER_OK)
            code = s->code;
        release(s);
        if (code != FMS_REFUSED || (ms >= 0 && left <= 0))
            return code == FMS_TIME ? was : code;
        /* The program there may not have come to its fms_listen. */
        over_wait(never, NULL, OVER_NONE, 2, FM_ALL);
    }
}

static size_t may_send(const sock *s, size_t bytes)
{
    bytes = least(least(bytes, OVER_CHUNK), (size_t)(s->may_send - s->sent));
    /* FM's, too: a peer can acknowledge what it has not taken. */
    return over_has_room(s->node, (unsigned)bytes) && FM_room(s->node) >= bytes ? bytes : 0;
}

static int why_not_send(const sock *s)
{
    /* A node that closes and leaves has closed. */
    int is_closed = s->is_shut || s->is_peer_closed;

    return is_closed && (s->code == OVER_OK || s->code == OVER_DEAD) ? FMS_CLOSED : s->code;
}

static int can_send(void *of)
{
    const sock *s = (const sock *)of;

    return why_not_send(s) != OVER_OK || may_send(s, OVER_CHUNK) > 0;
}

long fms_try_send(int socket, const void *from, size_t bytes)
{
    sock *s = find_own(socket, OPEN);
    size_t done = 0, next;

    if (!s || (!from && bytes > 0))
        return FMS_RANGE;
    if (!can_send(s))
        FM_extract(FM_ALL);
    while (why_not_send(s) == OVER_OK && done < bytes && (next = may_send(s, bytes - done)) > 0) {
        data_header header = {s->peer, s->id, s->sent};
        over_rows rows = {(char *)(uintptr_t)from + done, next, 1, 0};
        int code = over_reserve(s->node, (unsigned)next, 0);

        if (code == OVER_OK)
            code = over_send(s->node, DATA, &header, sizeof header, &rows, limit_ms);
        if (code != OVER_OK) {
            fail(s, code);
            break;
        }
        s->sent += next;
        figures.bytes_sent += next;
        done += next;
    }
    return done > 0 || bytes == 0 || why_not_send(s) == OVER_OK ? (long)done : why_not_send(s);
}

long fms_send(int socket, const void *from, size_t bytes)
{
    sock *s = find_own(socket, OPEN);
    size_t done = 0;
    int code = OVER_OK;

    if (!s)
        return FMS_RANGE;
    while (done < bytes && code == OVER_OK) {
        long sent = fms_try_send(socket, (const char *)from + done, bytes - done);

        if (sent < 0)
            code = (int)sent;
        else
            done += (size_t)sent;
        if (sent == 0)
            code = over_wait(can_send, s, (long)s->node, limit_ms, FM_ALL);
    }
    return done > 0 || bytes == 0 ? (long)done : code;
}

/* In batches; what comes is acknowledged with the same count. A peer without room for it is told later. */
static void tell(sock *s)
{
    taken_message taken = {s->peer, s->id, s->consumed, 0, 0};

    if (s->consumed - s->told >= s->window / 4 && s->code == OVER_OK && FM_room(s->node) >= sizeof taken &&
        over_send(s->node, TAKEN, &taken, sizeof taken, NULL, OVER_HANDLER) == OVER_OK)
        s->told = s->consumed;
}

static int has_come(void *of)
{
    sock *s = (sock *)of;

    tell(s);
    return !s->is_straight && (s->posted > 0 || s->filled > 0 || s->is_peer_shut || s->code != OVER_OK);
}

static int is_at_rest(void *of) { return !((const sock *)of)->is_straight; }

static size_t read_buffer(sock *s, char *to, size_t bytes)
{
    size_t all = least(bytes, s->filled), front = least(all, s->window - s->head);

    memcpy(to, s->buffer + s->head, front);
    memcpy(to + front, s->buffer, all - front);
    s->head = (s->head + all) % s->window;
    s->filled -= all;
    s->consumed += all;
    tell(s);
    return all;
}

long fms_recv(int socket, void *to, size_t bytes)
{
    sock *s = find_own(socket, OPEN);
    unsigned most = extract_all || bytes > 1 << 30 ? FM_ALL : (unsigned)bytes;
    int code = OVER_OK;

    /* In a handler while the program receives, too. */
    if (!s || s->post || !to || bytes == 0)
        return bytes == 0 && s ? 0 : FMS_RANGE;
    if (s->filled == 0) {
        s->post = (char *)to;
        /* With a time limit none: a handler gives it back only when its message goes on. */
        s->room = limit_ms < 0 ? bytes : 0;
        s->posted = 0;
        code = over_wait(has_come, s, (long)s->node, limit_ms, most);
        /* The rest that is here; as much of others, who may send all the time. */
        for (size_t all = 0, given = 1; s->posted > 0 && s->room > 0 && given > 0 && all < bytes; all += given)
            given = (size_t)FM_extract(most == FM_ALL ? most : (unsigned)s->room);
        over_wait(is_at_rest, s, OVER_NONE, -1, most);
        s->post = NULL;
        s->room = 0;
        if (s->posted > 0)
            return (long)s->posted;
    }
    if (s->filled > 0)
        return (long)read_buffer(s, (char *)to, bytes);
    return s->code != OVER_OK ? s->code : s->is_peer_shut ? 0 : code;
}

typedef struct {
    fms_pollfd *sockets;
    size_t count;
    int ready;
} polled;

static int is_ready(void *of)
{
    polled *all = (polled *)of;

    all->ready = 0;
    for (size_t index = 0; index < all->count; index++) {
        fms_pollfd *one = &all->sockets[index];
        sock *s = one->socket > 0 ? find((uint32_t)one->socket) : NULL;
        int is = 0;

        if (s && s->kind == OPEN)
            tell(s);

        if (!s)
            is = FMS_HUP;
        else if (s->kind == LISTENING)
            is = oldest_waiting(s) ? FMS_IN : 0;
        else
            is = (s->filled > 0 || s->is_peer_shut || s->code != OVER_OK ? FMS_IN : 0) |
                 (can_send(s) ? FMS_OUT : 0) |
                 (s->code != OVER_OK || s->is_peer_closed || FM_has_left(s->node) ? FMS_HUP : 0);
        one->revents = (short)(is & (one->events | FMS_HUP));
        all->ready += one->revents != 0;
    }
    return all->ready > 0;
}

int fms_poll(fms_pollfd *sockets, size_t count, long ms)
{
    polled all = {sockets, count, 0};
    int code = sockets || count == 0 ? over_wait(is_ready, &all, OVER_NONE, ms, extract_all ? FM_ALL : 1) : FMS_RANGE;

    return code == OVER_OK || code == OVER_TIME ? all.ready : code;
}

int fms_shutdown(int socket)
{
    sock *s = find_own(socket, OPEN);

    if (!s)
        return FMS_RANGE;
    if (!s->is_shut)
        send_end(s->node, s->peer, s->id, SHUT);
    s->is_shut = 1;
    return 0;
}

int fms_close(int socket)
{
    sock *s = socket > 0 ? find((uint32_t)socket) : NULL;
    sock *waiting;

    if (!s)
        return FMS_RANGE;
    while (s->kind == LISTENING && (waiting = oldest_waiting(s)) != NULL) {
        send_end(waiting->node, waiting->peer, waiting->id, CLOSED);
        release(waiting);
    }
    if (s->kind >= WAITING && s->code != FMS_BROKEN)
        send_end(s->node, s->peer, s->id, CLOSED);
    release(s);
    return 0;
}

void fms_get_figures(fms_figures *to)
{
    figures.refused = over_refused(OVER_SOCKETS);
    *to = figures;
}

const char *fms_error_text(int code)
{
    return code == FMS_CLOSED   ? "the connection was closed"
           : code == FMS_BROKEN ? "the other end broke the rules, or lost the connection"
                                : over_error_text(code);
}
