/* BSPlib over pairs of rings: see bsp.h for the promises, pairs.h for the rings.
 *
 *     bsp_sync   1. to each process the gets that it answers     2. its answers, puts and messages
 *                each a stream: its length, then the bytes. The lengths are the counts that end a superstep
 *
 * Streams of later steps may follow in a ring before this process has come so far: it reads no further than a length
 * says. Never: a record of another process is used before it is checked; memory is touched outside of a registration.
 */
#include "bsp.h"

#include "../pairs/pairs.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RING (256ul << 10)
#define PIECE (32ul << 10)
#define JOIN_MS 60000

enum { WRITTEN, FREED };
enum { PUT, MESSAGE };

/* Bytes that will be sent: in the arena, or where they are. */
struct piece {
    const char *from;
    uint64_t at, bytes;
};

struct out {
    char *arena;
    uint64_t used, room, bytes;
    struct piece *pieces;
    size_t count, pieces_room;
};

struct in {
    char *bytes;
    uint64_t room, length, came;
    int has_length;
};

/* A put or a message: the bytes follow, filled up to 8. */
struct record {
    uint64_t kind, registration, offset, bytes;
};

struct get {
    uint64_t registration, offset, bytes;
};

struct wish {
    char *to;
    uint64_t bytes;
};

struct peer {
    uint64_t written, freed, taken, told;
    struct out asks, gives;
    struct in asked, given;
    struct wish *wishes;
    size_t wished, wishes_room;
};

struct registration {
    const char *start;
    uint64_t bytes, number;
};

struct registrations {
    struct registration *all;
    size_t count, room;
};

struct message {
    const char *tag, *payload;
    int bytes;
};

static struct pairs pairs;
static struct peer *peers;
static int processes, has_joined, has_begun, has_ended;
static double began;
static uint64_t bytes_max = 1ul << 30, next_registration;
static struct registrations registered, pushed, popped;
static struct message *messages;
static size_t message_first, message_count, message_room;
static int tag_bytes, next_tag_bytes, came_tag_bytes;

void bsp_abort(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(NULL);
    _Exit(1);
}

static void stop(const char *call, const char *why) {
    bsp_abort("%s: process %d: %s\n", call, pairs.rank, why);
}

/* Room for one more of `size` bytes. */
static void *grown(void *all, size_t count, size_t *room, size_t size) {
    if (count < *room) return all;
    *room = *room ? 2 * *room : 16;
    all = realloc(all, *room * size);
    if (!all) stop("bsp", "no memory");
    return all;
}

static double now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void leave(void) {
    if (has_joined) pairs_close(&pairs);
    has_joined = 0;
}

static void join(void) {
    if (has_joined) return;
    if (has_ended) stop("bsp_begin", "a program has one parallel part");
    if (pairs_open(&pairs, "bsp", RING, "BSP_UPDATE", JOIN_MS) < 0) bsp_abort("bsp_begin: %s\n", vmmc_error_text());
    peers = calloc((size_t)pairs.size, sizeof *peers);
    if (!peers) stop("bsp_begin", "no memory");
    const char *most = getenv("BSP_BYTES");
    if (most && strtoull(most, NULL, 10) > 0) bytes_max = strtoull(most, NULL, 10);
    processes = pairs.size;
    has_joined = 1;
    atexit(leave);
}

/* ---- Streams. ---- */

static void add(struct out *out, const void *from, uint64_t bytes) {
    if (bytes == 0) return;
    out->pieces = grown(out->pieces, out->count, &out->pieces_room, sizeof *out->pieces);
    out->pieces[out->count++] = (struct piece){from, 0, bytes};
    out->bytes += bytes;
}

/* The same, copied now. */
static void add_copy(struct out *out, const void *from, uint64_t bytes) {
    if (bytes == 0) return;
    if (out->used + bytes > out->room) {
        out->room = 2 * (out->used + bytes);
        out->arena = realloc(out->arena, out->room);
        if (!out->arena) stop("bsp", "no memory");
    }
    memcpy(out->arena + out->used, from, bytes);
    struct piece *last = out->count ? &out->pieces[out->count - 1] : NULL;
    if (last && !last->from && last->at + last->bytes == out->used) {
        last->bytes += bytes;
        out->bytes += bytes;
    } else {
        add(out, NULL, bytes);
        out->pieces[out->count - 1].at = out->used;
    }
    out->used += bytes;
}

static void add_padding(struct out *out, uint64_t bytes) {
    add_copy(out, "\0\0\0\0\0\0\0", -bytes & 7);
}

/* Sends what there is room for; `sent` counts the length's 8 bytes, too. */
static int send_some(int to, struct out *out, uint64_t *sent, size_t *piece, uint64_t *in_piece) {
    struct peer *peer = &peers[to];
    uint64_t freed = pairs_word(&pairs, to, FREED), before = peer->written;
    if (peer->written - freed > RING) stop("bsp_sync", "a process broke the protocol");
    uint64_t room = RING - (peer->written - freed);
    if (*sent == 0) {
        if (room < 8) return 0;
        pairs_put_ring(&pairs, to, 0, RING, peer->written, &out->bytes, 8);
        peer->written += 8;
        room -= 8;
        *sent = 8;
    }
    while (*piece < out->count && room > 0) {
        struct piece *of = &out->pieces[*piece];
        uint64_t bytes = of->bytes - *in_piece;
        if (bytes > room) bytes = room;
        if (bytes > PIECE) bytes = PIECE;
        const char *from = (of->from ? of->from : out->arena + of->at) + *in_piece;
        pairs_put_ring(&pairs, to, 0, RING, peer->written, from, bytes);
        peer->written += bytes;
        *sent += bytes;
        room -= bytes;
        *in_piece += bytes;
        if (*in_piece == of->bytes) {
            *in_piece = 0;
            ++*piece;
        }
    }
    if (peer->written == before) return 0;
    /* Of a process that has died nothing comes any more: that ends the program. */
    pairs_put_word(&pairs, to, WRITTEN, peer->written);
    return 1;
}

static int receive_some(int from, struct in *in) {
    struct peer *peer = &peers[from];
    uint64_t written = pairs_word(&pairs, from, WRITTEN), bytes = written - peer->taken;
    if (written - peer->told > RING || bytes > RING) stop("bsp_sync", "a process broke the protocol");
    uint64_t before = peer->taken;
    if (!in->has_length && bytes >= 8) {
        pairs_take_ring(&pairs, from, 0, RING, peer->taken, &in->length, 8);
        if (in->length > bytes_max) stop("bsp_sync", "a process sends more than BSP_BYTES");
        peer->taken += 8;
        bytes -= 8;
        in->has_length = 1;
        in->came = 0;
        if (in->length > in->room) {
            free(in->bytes);
            in->room = in->length;
            in->bytes = malloc(in->room);
            if (!in->bytes) stop("bsp_sync", "no memory");
        }
    }
    if (in->has_length && in->came < in->length && bytes > 0) {
        if (bytes > in->length - in->came) bytes = in->length - in->came;
        pairs_take_ring(&pairs, from, 0, RING, peer->taken, in->bytes + in->came, bytes);
        in->came += bytes;
        peer->taken += bytes;
    }
    if (peer->taken - peer->told >= RING / 4) {
        peer->told = peer->taken;
        pairs_put_word(&pairs, from, FREED, peer->told);
    }
    return peer->taken != before;
}

/* A stream to each process, and one from each. */
static void exchange(size_t out_at, size_t in_at, int count) {
    struct {
        uint64_t sent, in_piece;
        size_t piece;
    } *to = calloc((size_t)count, sizeof *to);
    if (!to) stop("bsp_sync", "no memory");
    for (int pid = 0; pid < count; pid++) ((struct in *)((char *)&peers[pid] + in_at))->has_length = 0;
    for (;;) {
        int moved = 0, open = 0;
        for (int pid = 0; pid < count; pid++) {
            struct out *out = (struct out *)((char *)&peers[pid] + out_at);
            struct in *in = (struct in *)((char *)&peers[pid] + in_at);
            int end = pairs_ended(&pairs, pid);
            if (!to[pid].sent || to[pid].sent < out->bytes + 8) {
                moved |= send_some(pid, out, &to[pid].sent, &to[pid].piece, &to[pid].in_piece);
                open |= to[pid].sent < out->bytes + 8;
                if (end) stop("bsp_sync", "a process has died");
            }
            if (!in->has_length || in->came < in->length) {
                moved |= receive_some(pid, in);
                int wants = !in->has_length || in->came < in->length;
                open |= wants;
                if (end && wants) stop("bsp_sync", "a process has died");
            }
        }
        if (!open) break;
        if (!moved && pairs_wait(&pairs, -1) < 0) stop("bsp_sync", vmmc_error_text());
    }
    free(to);
    for (int pid = 0; pid < count; pid++) {
        struct out *out = (struct out *)((char *)&peers[pid] + out_at);
        out->used = out->bytes = out->count = 0;
    }
}

#define EXCHANGE(out, in, count) exchange(offsetof(struct peer, out), offsetof(struct peer, in), count)

/* ---- Beginning and end. ---- */

void bsp_init(void (*spmd_part)(void), int argc, char *argv[]) {
    (void)argc, (void)argv;
    join();
    if (pairs.rank == 0) return;
    spmd_part();
    exit(0);
}

void bsp_begin(int maxprocs) {
    join();
    if (has_begun) stop("bsp_begin", "it was called already");
    int64_t wanted = maxprocs;
    for (int pid = 0; pairs.rank == 0 && pid < pairs.size; pid++) add_copy(&peers[pid].gives, &wanted, sizeof wanted);
    EXCHANGE(gives, given, pairs.size);
    if (peers[0].given.length != sizeof wanted) stop("bsp_begin", "process 0 broke the protocol");
    memcpy(&wanted, peers[0].given.bytes, sizeof wanted);
    if (wanted < 1) stop("bsp_begin", "no processes");
    if (wanted < processes) processes = (int)wanted;
    if (pairs.rank >= processes) exit(0);
    has_begun = 1;
    began = now();
}

static void check(const char *call) {
    if (!has_begun || has_ended) stop(call, "not between bsp_begin and bsp_end");
}

void bsp_end(void) {
    check("bsp_end");
    bsp_sync();
    has_ended = 1;
    leave();
}

int bsp_nprocs(void) {
    if (!has_ended) join();
    return processes;
}

int bsp_pid(void) {
    check("bsp_pid");
    return pairs.rank;
}

double bsp_time(void) {
    return now() - began;
}

/* ---- Registrations. ---- */

static void insert(struct registrations *to, const void *start, uint64_t bytes, uint64_t number) {
    to->all = grown(to->all, to->count, &to->room, sizeof *to->all);
    to->all[to->count++] = (struct registration){start, bytes, number};
}

void bsp_push_reg(const void *ident, int nbytes) {
    check("bsp_push_reg");
    if (nbytes < 0) stop("bsp_push_reg", "a length of less than 0");
    insert(&pushed, ident, (uint64_t)nbytes, 0);
}

void bsp_pop_reg(const void *ident) {
    check("bsp_pop_reg");
    insert(&popped, ident, 0, 0);
}

/* The last one with this address. */
static struct registration *find(const char *call, const void *start) {
    for (size_t i = registered.count; i > 0; i--)
        if (registered.all[i - 1].start == start) return &registered.all[i - 1];
    stop(call, "the address is not registered");
    return NULL;
}

/* The bytes that another process means. */
static char *place(uint64_t number, uint64_t offset, uint64_t bytes) {
    for (size_t i = registered.count; i > 0; i--) {
        struct registration *of = &registered.all[i - 1];
        if (of->number != number) continue;
        if (offset > of->bytes || bytes > of->bytes - offset) stop("bsp_sync", "bytes beyond a registration");
        return (char *)of->start + offset;
    }
    stop("bsp_sync", "a process means a registration that is not here");
    return NULL;
}

static void change_registrations(void) {
    for (size_t i = 0; i < popped.count; i++) {
        size_t at = (size_t)(find("bsp_pop_reg", popped.all[i].start) - registered.all);
        memmove(&registered.all[at], &registered.all[at + 1], (--registered.count - at) * sizeof *registered.all);
    }
    for (size_t i = 0; i < pushed.count; i++)
        insert(&registered, pushed.all[i].start, pushed.all[i].bytes, next_registration++);
    popped.count = pushed.count = 0;
}

/* ---- Puts, gets, messages. ---- */

static struct peer *checked(const char *call, int pid, int offset, int nbytes) {
    check(call);
    if (pid < 0 || pid >= processes) stop(call, "no such process");
    if (offset < 0 || nbytes < 0) stop(call, "a length or an offset of less than 0");
    return &peers[pid];
}

static void put(const char *call, int pid, const void *src, void *dst, int offset, int nbytes, int copies) {
    struct peer *to = checked(call, pid, offset, nbytes);
    struct record record = {PUT, find(call, dst)->number, (uint64_t)offset, (uint64_t)nbytes};
    add_copy(&to->gives, &record, sizeof record);
    (copies ? add_copy : add)(&to->gives, src, (uint64_t)nbytes);
    add_padding(&to->gives, (uint64_t)nbytes);
}

static void get(const char *call, int pid, const void *src, int offset, void *dst, int nbytes) {
    struct peer *from = checked(call, pid, offset, nbytes);
    struct get get = {find(call, src)->number, (uint64_t)offset, (uint64_t)nbytes};
    add_copy(&from->asks, &get, sizeof get);
    from->wishes = grown(from->wishes, from->wished, &from->wishes_room, sizeof *from->wishes);
    from->wishes[from->wished++] = (struct wish){dst, (uint64_t)nbytes};
}

void bsp_put(int pid, const void *src, void *dst, int offset, int nbytes) {
    put("bsp_put", pid, src, dst, offset, nbytes, 1);
}
void bsp_hpput(int pid, const void *src, void *dst, int offset, int nbytes) {
    put("bsp_hpput", pid, src, dst, offset, nbytes, 0);
}
void bsp_get(int pid, const void *src, int offset, void *dst, int nbytes) {
    get("bsp_get", pid, src, offset, dst, nbytes);
}
void bsp_hpget(int pid, const void *src, int offset, void *dst, int nbytes) {
    get("bsp_hpget", pid, src, offset, dst, nbytes);
}

void bsp_set_tagsize(int *tag_nbytes) {
    check("bsp_set_tagsize");
    int before = tag_bytes;
    if (*tag_nbytes < 0) stop("bsp_set_tagsize", "a length of less than 0");
    next_tag_bytes = *tag_nbytes;
    *tag_nbytes = before;
}

void bsp_send(int pid, const void *tag, const void *payload, int payload_nbytes) {
    struct peer *to = checked("bsp_send", pid, 0, payload_nbytes);
    uint64_t tags = (uint64_t)tag_bytes;
    struct record record = {MESSAGE, tags, 0, (uint64_t)payload_nbytes};
    add_copy(&to->gives, &record, sizeof record);
    add_copy(&to->gives, tag, tags);
    add_padding(&to->gives, tags);
    add_copy(&to->gives, payload, (uint64_t)payload_nbytes);
    add_padding(&to->gives, (uint64_t)payload_nbytes);
}

void bsp_qsize(int *nmessages, int *accum_nbytes) {
    check("bsp_qsize");
    uint64_t bytes = 0;
    for (size_t i = message_first; i < message_count; i++) bytes += (uint64_t)messages[i].bytes;
    if (nmessages) *nmessages = (int)(message_count - message_first);
    if (accum_nbytes) *accum_nbytes = bytes > INT_MAX ? INT_MAX : (int)bytes;
}

void bsp_get_tag(int *status, void *tag) {
    check("bsp_get_tag");
    *status = -1;
    if (message_first == message_count) return;
    *status = messages[message_first].bytes;
    if (came_tag_bytes) memcpy(tag, messages[message_first].tag, (size_t)came_tag_bytes);
}

void bsp_move(void *payload, int reception_nbytes) {
    check("bsp_move");
    if (message_first == message_count) stop("bsp_move", "there is no message");
    struct message *message = &messages[message_first++];
    int bytes = message->bytes < reception_nbytes ? message->bytes : reception_nbytes;
    if (bytes > 0) memcpy(payload, message->payload, (size_t)bytes);
}

int bsp_hpmove(void **tag_ptr, void **payload_ptr) {
    check("bsp_hpmove");
    if (message_first == message_count) return -1;
    struct message *message = &messages[message_first++];
    *tag_ptr = (void *)message->tag;
    *payload_ptr = (void *)message->payload;
    return message->bytes;
}

/* ---- The end of a superstep. ---- */

static void answer(int pid) {
    struct peer *peer = &peers[pid];
    if (peer->asked.length % sizeof(struct get)) stop("bsp_sync", "a process broke the protocol");
    for (uint64_t at = 0; at < peer->asked.length; at += sizeof(struct get)) {
        struct get get;
        memcpy(&get, peer->asked.bytes + at, sizeof get);
        add(&peer->gives, place(get.registration, get.offset, get.bytes), get.bytes);
    }
    add(&peer->gives, "\0\0\0\0\0\0\0", -peer->gives.bytes & 7);
}

/* Puts and messages of a process, behind its answers. */
static void take(int pid, uint64_t at) {
    struct in *in = &peers[pid].given;
    while (at < in->length) {
        struct record is;
        if (in->length - at < sizeof is) stop("bsp_sync", "a process broke the protocol");
        memcpy(&is, in->bytes + at, sizeof is);
        at += sizeof is;
        uint64_t tags = is.kind == MESSAGE ? (uint64_t)tag_bytes : 0, left = in->length - at;
        uint64_t tags_padded = (tags + 7) & ~7ul;
        if (is.kind > MESSAGE || is.bytes > INT_MAX || (is.kind == MESSAGE && is.registration != tags) ||
            tags_padded > left || ((is.bytes + 7) & ~7ul) > left - tags_padded)
            stop("bsp_sync", "a process broke the protocol, or set another size of tags");
        char *payload = in->bytes + at + tags_padded;
        if (is.kind == PUT) {
            char *to = place(is.registration, is.offset, is.bytes);
            if (is.bytes) memcpy(to, payload, is.bytes);
        } else {
            messages = grown(messages, message_count, &message_room, sizeof *messages);
            messages[message_count++] = (struct message){in->bytes + at, payload, (int)is.bytes};
        }
        at += tags_padded + ((is.bytes + 7) & ~7ul);
    }
}

void bsp_sync(void) {
    check("bsp_sync");
    message_first = message_count = 0;
    EXCHANGE(asks, asked, processes);
    /* Answers go before what is given already. */
    for (int pid = 0; pid < processes; pid++) {
        struct out given = peers[pid].gives;
        peers[pid].gives = (struct out){0};
        answer(pid);
        struct out *out = &peers[pid].gives;
        free(out->arena);
        out->arena = given.arena;
        out->used = given.used;
        out->room = given.room;
        for (size_t i = 0; i < given.count; i++) {
            add(out, given.pieces[i].from, given.pieces[i].bytes);
            out->pieces[out->count - 1].at = given.pieces[i].at;
        }
        free(given.pieces);
    }
    EXCHANGE(gives, given, processes);
    uint64_t *behind = calloc((size_t)processes, sizeof *behind);
    if (!behind) stop("bsp_sync", "no memory");
    for (int pid = 0; pid < processes; pid++) {
        struct peer *peer = &peers[pid];
        for (size_t i = 0; i < peer->wished; i++) {
            struct wish *wish = &peer->wishes[i];
            if (wish->bytes > peer->given.length - behind[pid]) stop("bsp_sync", "a process answered too little");
            if (wish->bytes) memcpy(wish->to, peer->given.bytes + behind[pid], wish->bytes);
            behind[pid] += wish->bytes;
        }
        peer->wished = 0;
        /* Records, and so the program's bytes, lie at multiples of 8. */
        behind[pid] = (behind[pid] + 7) & ~7ul;
    }
    for (int pid = 0; pid < processes; pid++) take(pid, behind[pid]);
    free(behind);
    change_registrations();
    came_tag_bytes = tag_bytes;
    tag_bytes = next_tag_bytes;
}
