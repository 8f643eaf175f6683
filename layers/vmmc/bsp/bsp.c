/* BSPlib over pairs of rings: see bsp.h for the promises, pairs.h for the rings.
 *
 *     bsp_sync   0. to each process a stream of records: gets, puts, messages, and what all processes call alike
 *                1. to each process that asked, a stream of answers
 *
 * A stream is its length and the bytes. The lengths are the counts that end a superstep: a process that has its streams
 * goes on. Streams of later steps may follow in a ring before this process has come so far: it reads no further than a
 * length says. Answers are read from memory before the first put is written there.
 * Never: a record of another process is used before it is checked; memory is touched outside of a registration.
 */
#include "bsp.h"

#include "../pairs/pairs.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RING (256ul << 10)
#define PIECE (32ul << 10)
#define JOIN_MS 60000
#define SMALL 1024
#define NONE UINT64_MAX
#define HAS_CALLS (1ull << 63)
#define PADDED(bytes) (((bytes) + 7) & ~7ull)
#define OTHER_POP "Processes %d and %d did not pop the same memory registration"

enum { WRITTEN, FREED };
enum { RECORDS, ANSWERS };
enum { DONE, LENGTH, BYTES };

enum { GET, PUT, MESSAGE, PUSH, POP, TAGSIZE, END, KINDS };

/* PUSH: `registration` is whether it is of NULL. POP: NONE is NULL. MESSAGE: `registration` is the length of the tag.
 * Behind a PUT are its bytes, behind a MESSAGE its tag and its payload, each filled up to 8. */
struct record {
    uint64_t kind, registration, offset, bytes;
};

/* Bytes that will be sent: in the arena, or where they are. */
struct piece {
    const char *from;
    uint64_t at, bytes;
};

/* A stream to a process: its first 8 bytes are the length of the others, and HAS_CALLS if it has more than puts and
 * messages. */
struct out {
    char *arena;
    uint64_t used, room, bytes, in_piece;
    struct piece *pieces;
    size_t piece, count, pieces_room;
    int has_calls;
};

/* A stream from a process. */
struct in {
    char *bytes;
    uint64_t room, length, came;
    int state, has_calls;
};

struct wish {
    char *to;
    uint64_t bytes;
};

struct peer {
    uint64_t written, taken, told;
    struct out out[2];
    struct in in[2], last; /* `last`: the records of the superstep before, in which its messages lie */
    struct wish *wishes;
    size_t wished, wishes_room;
    uint64_t wished_bytes;
};

struct registration {
    const char *start;
    uint64_t bytes, number;
    int has_pop, is_null; /* is_null: in all processes */
};

struct pop {
    const void *start;
    uint64_t number; /* as the processes before `by` have it, or NONE */
    int by;
};

struct message {
    const char *tag, *payload;
    int bytes;
};

static struct pairs pairs;
static struct peer *peers;
static int processes, me = -1, has_init, has_begun, is_ending, has_ended;
static double began;
static uint64_t bytes_max = 4ul << 30, next_registration;
/* The first `active` are of supersteps before, the others become so with bsp_sync. Numbers rise. */
static struct registration *registered;
static size_t active, registered_count, registered_room;
static struct pop *pops;
static size_t pop_count, pop_room;
static struct message *messages;
static size_t message_count, message_room;
static int tag_bytes, next_tag_bytes, came_tag_bytes;
static uint64_t tag_sets;

void bsp_abort_va(const char *format, va_list arguments) {
    vfprintf(stderr, format, arguments);
    fflush(NULL);
    _Exit(1);
}

void bsp_abort(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    bsp_abort_va(format, arguments);
    va_end(arguments);
}

static void stop(const char *call, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
static void stop(const char *call, const char *format, ...) {
    char why[256], where[32] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    if (me >= 0) snprintf(where, sizeof where, " (process %d)", me);
    fprintf(stderr, "%s: %s%s\n", call, why, where);
    fflush(NULL);
    _Exit(1);
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

/* ---- Streams. ---- */

static void add(struct out *out, const void *from, uint64_t bytes) {
    if (bytes == 0) return;
    out->pieces = grown(out->pieces, out->count, &out->pieces_room, sizeof *out->pieces);
    out->pieces[out->count++] = (struct piece){from, 0, bytes};
    out->bytes += bytes;
}

/* Room for bytes in the arena: at least 1. */
static char *append(struct out *out, uint64_t bytes) {
    if (out->used + bytes > out->room) {
        out->room = 2 * (out->used + bytes);
        out->arena = realloc(out->arena, out->room);
        if (!out->arena) stop("bsp", "no memory");
    }
    struct piece *last = out->count ? &out->pieces[out->count - 1] : NULL;
    if (last && !last->from && last->at + last->bytes == out->used) {
        last->bytes += bytes;
        out->bytes += bytes;
    } else {
        add(out, NULL, bytes);
        out->pieces[out->count - 1].at = out->used;
    }
    out->used += bytes;
    return out->arena + out->used - bytes;
}

/* Copies a record, then its bytes, and fills up to 8. */
static void add_record(struct out *out, struct record record, const void *tag, uint64_t tag_length, const void *bytes,
                       uint64_t length) {
    char *to = append(out, sizeof record + PADDED(tag_length) + PADDED(length));
    memcpy(to, &record, sizeof record);
    to += sizeof record;
    if (tag_length) memcpy(to, tag, tag_length);
    memset(to + tag_length, 0, -tag_length & 7);
    to += PADDED(tag_length);
    if (length) memcpy(to, bytes, length);
    memset(to + length, 0, -length & 7);
}

/* Empties it, but for room for its length. */
static void clear(struct out *out) {
    out->used = out->bytes = out->in_piece = 0;
    out->piece = out->count = 0;
    out->has_calls = 0;
    memset(append(out, 8), 0, 8);
}

/* Sends what there is room for. */
static int send_some(int to, struct out *out) {
    struct peer *peer = &peers[to];
    uint64_t freed = pairs_word(&pairs, to, FREED), before = peer->written;
    if (peer->written - freed > RING) stop("bsp_sync", "process %d broke the protocol", to);
    uint64_t room = RING - (peer->written - freed);
    while (out->piece < out->count && room > 0) {
        struct piece *of = &out->pieces[out->piece];
        uint64_t bytes = of->bytes - out->in_piece;
        if (bytes > room) bytes = room;
        if (bytes > PIECE) bytes = PIECE;
        const char *from = (of->from ? of->from : out->arena + of->at) + out->in_piece;
        pairs_put_ring(&pairs, to, 0, RING, peer->written, from, bytes);
        peer->written += bytes;
        room -= bytes;
        out->in_piece += bytes;
        if (out->in_piece == of->bytes) {
            out->in_piece = 0;
            ++out->piece;
        }
    }
    if (peer->written == before) return 0;
    /* Of a process that has died nothing comes any more: that ends the program. */
    pairs_put_word(&pairs, to, WRITTEN, peer->written);
    return 1;
}

static int receive_some(int from, struct in *in, uint64_t most) {
    struct peer *peer = &peers[from];
    uint64_t written = pairs_word(&pairs, from, WRITTEN), bytes = written - peer->taken, before = peer->taken;
    if (written - peer->told > RING || bytes > RING) stop("bsp_sync", "process %d broke the protocol", from);
    if (in->state == LENGTH && bytes >= 8) {
        pairs_take_ring(&pairs, from, 0, RING, peer->taken, &in->length, 8);
        in->has_calls = in->length >= HAS_CALLS;
        in->length &= ~HAS_CALLS;
        if (in->length > most)
            stop("bsp_sync", "process %d %s", from,
                 most == bytes_max ? "sends more than BSP_BYTES" : "answers more than it was asked");
        peer->taken += 8;
        bytes -= 8;
        in->state = BYTES;
        in->came = 0;
        if (in->length > in->room) {
            free(in->bytes);
            in->room = in->length;
            in->bytes = malloc(in->room);
            if (!in->bytes) stop("bsp_sync", "no memory");
        }
    }
    if (in->state == BYTES) {
        if (bytes > in->length - in->came) bytes = in->length - in->came;
        if (bytes) pairs_take_ring(&pairs, from, 0, RING, peer->taken, in->bytes + in->came, bytes);
        in->came += bytes;
        peer->taken += bytes;
        if (in->came == in->length) in->state = DONE;
    }
    if (peer->taken - peer->told >= RING / 4) {
        peer->told = peer->taken;
        pairs_put_word(&pairs, from, FREED, peer->told);
    }
    return peer->taken != before;
}

/* Streams to and from processes: RECORDS with all, ANSWERS with those that asked or were asked. */
static void exchange(int which, int count) {
    for (int pid = 0; pid < count; pid++) {
        struct out *out = &peers[pid].out[which];
        uint64_t length = (out->bytes - 8) | (out->has_calls ? HAS_CALLS : 0);
        memcpy(out->arena, &length, 8);
        if (which == ANSWERS && length == 0) out->piece = out->count;
        peers[pid].in[which].length = 0;
        peers[pid].in[which].state = which == RECORDS || peers[pid].wished ? LENGTH : DONE;
    }
    const char *call = has_begun ? "bsp_sync" : "bsp_begin";
    for (;;) {
        int moved = 0, open = 0;
        for (int pid = 0; pid < count; pid++) {
            struct out *out = &peers[pid].out[which];
            struct in *in = &peers[pid].in[which];
            if (out->piece == out->count && in->state == DONE) continue;
            int end = pairs_ended(&pairs, pid);
            if (out->piece < out->count) moved |= send_some(pid, out);
            if (in->state != DONE) moved |= receive_some(pid, in, which == RECORDS ? bytes_max : peers[pid].wished_bytes);
            if (out->piece == out->count && in->state == DONE) continue;
            if (end) stop(call, "process %d has died", pid);
            open = 1;
        }
        if (!open) break;
        if (!moved && pairs_wait(&pairs, -1) < 0) stop(call, "%s", vmmc_error_text());
    }
    for (int pid = 0; pid < count; pid++) clear(&peers[pid].out[which]);
}

/* ---- Beginning and end. ---- */

static void leave(void) {
    if (has_begun && !has_ended) stop("bsp_end", "was not called before end of program");
    if (me >= 0 && !has_ended) pairs_close(&pairs);
}

static void join(void) {
    if (me >= 0) return;
    if (pairs_open(&pairs, "bsp", RING, "BSP_UPDATE", JOIN_MS) < 0) bsp_abort("bsp_begin: %s\n", vmmc_error_text());
    peers = calloc((size_t)pairs.size, sizeof *peers);
    if (!peers) stop("bsp_begin", "no memory");
    const char *most = getenv("BSP_BYTES");
    if (most && strtoull(most, NULL, 10) > 0) bytes_max = strtoull(most, NULL, 10);
    processes = pairs.size;
    me = pairs.rank;
    for (int pid = 0; pid < processes; pid++) {
        clear(&peers[pid].out[RECORDS]);
        clear(&peers[pid].out[ANSWERS]);
    }
    atexit(leave);
}

void bsp_init(void (*spmd_part)(void), int argc, char *argv[]) {
    (void)argc, (void)argv;
    if (has_init || has_begun) stop("bsp_init", "May be called only once, before bsp_begin");
    if (!spmd_part) stop("bsp_init", "Pointer to function must not point to NULL");
    has_init = 1;
    join();
    if (me == 0) return;
    spmd_part();
    if (!has_begun) stop("bsp_init", "spmd function did not contain SPMD section");
    exit(0);
}

void bsp_begin(int maxprocs) {
    if (has_begun) stop("bsp_begin", "May be called only once");
    join();
    int64_t wanted = maxprocs;
    if (me == 0 && wanted < 1) stop("bsp_begin", "The requested number of processes must be strictly greater than 0");
    for (int pid = 0; me == 0 && pid < processes; pid++) memcpy(append(&peers[pid].out[RECORDS], 8), &wanted, 8);
    exchange(RECORDS, processes);
    struct in *in = &peers[0].in[RECORDS];
    if (in->length == sizeof wanted) memcpy(&wanted, in->bytes, sizeof wanted);
    if (in->length != sizeof wanted || wanted < 1) stop("bsp_begin", "process 0 broke the protocol");
    if (wanted < processes) processes = (int)wanted;
    if (me >= processes) exit(0);
    has_begun = 1;
    began = now();
}

static void check(const char *call) {
    if (!has_begun || has_ended) stop(call, "can only be called within SPMD section");
}

/* A record of a call that all processes make alike. */
static void tell(uint64_t kind, uint64_t registration, uint64_t bytes) {
    for (int pid = 0; pid < processes; pid++) {
        add_record(&peers[pid].out[RECORDS], (struct record){kind, registration, 0, bytes}, NULL, 0, NULL, 0);
        peers[pid].out[RECORDS].has_calls = 1;
    }
}

void bsp_end(void) {
    check("bsp_end");
    is_ending = 1;
    tell(END, 0, 0);
    bsp_sync();
    has_ended = 1;
    pairs_close(&pairs);
}

int bsp_nprocs(void) {
    join();
    return processes;
}

int bsp_pid(void) {
    check("bsp_pid");
    return me;
}

double bsp_time(void) {
    check("bsp_time");
    return now() - began;
}

/* ---- Registrations. ---- */

void bsp_push_reg(const void *ident, int nbytes) {
    check("bsp_push_reg");
    if (nbytes < 0) stop("bsp_push_reg", "memory size must be positive");
    registered = grown(registered, registered_count, &registered_room, sizeof *registered);
    registered[registered_count++] = (struct registration){ident, ident ? (uint64_t)nbytes : 0, next_registration++, 0, 1};
    tell(PUSH, ident == NULL, 0);
}

/* With NULL, the other processes say which one is meant, or it is one of NULL in all. */
void bsp_pop_reg(const void *ident) {
    check("bsp_pop_reg");
    uint64_t number = NONE;
    for (size_t i = registered_count; ident && i > 0; i--) {
        if (registered[i - 1].start != ident || registered[i - 1].has_pop) continue;
        registered[i - 1].has_pop = 1;
        number = registered[i - 1].number;
        break;
    }
    if (ident && number == NONE) stop("bsp_pop_reg", "memory at address %p was not registered", ident);
    pops = grown(pops, pop_count, &pop_room, sizeof *pops);
    pops[pop_count++] = (struct pop){ident, NONE, 0};
    tell(POP, number, 0);
}

/* The last one with this address that a put or a get may use now. */
static uint64_t find(const char *call, const void *start) {
    for (size_t i = active; i > 0; i--)
        if (registered[i - 1].start == start) return registered[i - 1].number;
    for (size_t i = active; i < registered_count; i++)
        if (registered[i].start == start) stop(call, "Remote address was just registered: that holds after bsp_sync");
    stop(call, "Remote address %p was not registered", start);
}

/* The bytes that another process means. */
static char *place(int pid, const struct record *record) {
    const char *call = record->kind == PUT ? "bsp_put" : "bsp_get", *verb = record->kind == PUT ? "Writes" : "Reads";
    for (size_t i = active; i > 0; i--) {
        struct registration *of = &registered[i - 1];
        if (of->number != record->registration) continue;
        uint64_t end = record->offset + record->bytes;
        if (end > of->bytes)
            stop(call, "%s %llu bytes beyond registered range of %llu, for process %d", verb,
                 (unsigned long long)(end - of->bytes), (unsigned long long)of->bytes, pid);
        return (char *)of->start + record->offset;
    }
    stop("bsp_sync", "process %d broke the protocol", pid);
}

static void pop(const struct pop *pop) {
    const char *call = "bsp_sync/bsp_pop_reg";
    size_t nulls = 0, at = registered_count;
    for (size_t i = registered_count; i > 0 && at == registered_count; i--) {
        struct registration *of = &registered[i - 1];
        nulls += of->start == NULL;
        if (pop->number == NONE ? of->is_null : of->number == pop->number) at = i - 1;
    }
    if (at == registered_count && pop->number == NONE)
        stop(call, "Tried to deregister NULL on all processes, but %s",
             nulls ? "could not find a matching registration" : "NULL was never registered");
    if (at == registered_count || registered[at].start != pop->start)
        stop(call, OTHER_POP, me, pop->by);
    memmove(&registered[at], &registered[at + 1], (--registered_count - at) * sizeof *registered);
}

/* ---- Puts, gets, messages. ---- */

static struct peer *checked(const char *call, const char *role, int pid, int offset, int nbytes) {
    if (pid < 0 || pid >= processes) stop(call, "The %s process ID does not exist", role);
    if (offset < 0) stop(call, "The offset was negative, which is illegal");
    if (nbytes < 0) stop(call, "The size was negative, which is illegal");
    return &peers[pid];
}

static void put(const char *call, int pid, const void *src, void *dst, int offset, int nbytes, int copies) {
    check(call);
    if (nbytes == 0) return;
    if (!src) stop(call, "The source may not be NULL");
    struct out *out = &checked(call, "destination", pid, offset, nbytes)->out[RECORDS];
    struct record record = {PUT, find(call, dst), (uint64_t)offset, (uint64_t)nbytes};
    add_record(out, record, NULL, 0, src, copies ? (uint64_t)nbytes : 0);
    if (copies) return;
    add(out, src, (uint64_t)nbytes);
    if (nbytes % 8) memset(append(out, -(uint64_t)nbytes & 7), 0, -(uint64_t)nbytes & 7);
}

static void get(const char *call, int pid, const void *src, int offset, void *dst, int nbytes) {
    check(call);
    if (nbytes == 0) return;
    if (!dst) stop(call, "The destination may not be NULL");
    struct peer *from = checked(call, "source", pid, offset, nbytes);
    struct record record = {GET, find(call, src), (uint64_t)offset, (uint64_t)nbytes};
    add_record(&from->out[RECORDS], record, NULL, 0, NULL, 0);
    from->out[RECORDS].has_calls = 1;
    from->wishes = grown(from->wishes, from->wished, &from->wishes_room, sizeof *from->wishes);
    from->wishes[from->wished++] = (struct wish){dst, (uint64_t)nbytes};
    from->wished_bytes += (uint64_t)nbytes;
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
    if (!tag_nbytes) stop("bsp_set_tagsize", "NULL is not allowed");
    if (*tag_nbytes < 0) stop("bsp_set_tagsize", "Tag size may not be negative");
    int before = next_tag_bytes;
    next_tag_bytes = *tag_nbytes;
    *tag_nbytes = before;
    tag_sets++;
    tell(TAGSIZE, 0, (uint64_t)next_tag_bytes);
}

void bsp_send(int pid, const void *tag, const void *payload, int payload_nbytes) {
    check("bsp_send");
    if (payload_nbytes < 0) stop("bsp_send", "Payload size may not be negative");
    if ((payload_nbytes && !payload) || (tag_bytes && !tag)) stop("bsp_send", "A tag or payload with bytes may not be NULL");
    struct out *out = &checked("bsp_send", "source", pid, 0, payload_nbytes)->out[RECORDS];
    struct record record = {MESSAGE, (uint64_t)tag_bytes, 0, (uint64_t)payload_nbytes};
    add_record(out, record, tag, (uint64_t)tag_bytes, payload, (uint64_t)payload_nbytes);
}

void bsp_qsize(int *nmessages, int *accum_nbytes) {
    check("bsp_qsize");
    if (!nmessages || !accum_nbytes) stop("bsp_qsize", "both arguments may not be NULL");
    uint64_t bytes = 0;
    for (size_t i = 0; i < message_count; i++) bytes += (uint64_t)messages[i].bytes;
    *nmessages = (int)message_count;
    *accum_nbytes = bytes > INT_MAX ? INT_MAX : (int)bytes;
}

void bsp_get_tag(int *status, void *tag) {
    check("bsp_get_tag");
    if (!status) stop("bsp_get_tag", "first arguments may not be NULL");
    *status = -1;
    if (message_count == 0) return;
    *status = messages[message_count - 1].bytes;
    if (came_tag_bytes && !tag)
        stop("bsp_get_tag", "tag must point to a block of available memory of at least %d bytes long", came_tag_bytes);
    if (came_tag_bytes) memcpy(tag, messages[message_count - 1].tag, (size_t)came_tag_bytes);
}

void bsp_move(void *payload, int reception_nbytes) {
    check("bsp_move");
    if (reception_nbytes < 0) stop("bsp_move", "size argument may not be negative");
    if (!payload && reception_nbytes > 0) stop("bsp_move", "payload may not be NULL if reception_nbytes is non-zero");
    if (message_count == 0) stop("bsp_move", "Message queue was empty");
    struct message *message = &messages[--message_count];
    int bytes = message->bytes < reception_nbytes ? message->bytes : reception_nbytes;
    if (bytes > 0) memcpy(payload, message->payload, (size_t)bytes);
}

int bsp_hpmove(void **tag_ptr, void **payload_ptr) {
    check("bsp_hpmove");
    if (!tag_ptr || !payload_ptr) stop("bsp_hpmove", "pointer arguments may not be NULL");
    if (message_count == 0) return -1;
    struct message *message = &messages[--message_count];
    *tag_ptr = (void *)message->tag;
    *payload_ptr = (void *)message->payload;
    return message->bytes;
}

/* ---- The end of a superstep. ---- */

/* The well formed record at `at` of those of a process, and where its tag or its bytes begin; goes behind it. */
static struct record next_record(int pid, uint64_t *at, char **bytes) {
    struct in *in = &peers[pid].in[RECORDS];
    struct record record = {.kind = KINDS};
    uint64_t left = in->length - *at;
    if (left >= sizeof record) memcpy(&record, in->bytes + *at, sizeof record);
    if (record.kind >= KINDS || record.offset > INT_MAX || record.bytes > INT_MAX ||
        (record.kind == MESSAGE && record.registration != (uint64_t)tag_bytes))
        stop("bsp_sync", "process %d broke the protocol", pid);
    uint64_t tag = record.kind == MESSAGE ? PADDED(record.registration) : 0;
    uint64_t payload = record.kind == PUT || record.kind == MESSAGE ? PADDED(record.bytes) : 0;
    if (tag + payload > left - sizeof record) stop("bsp_sync", "process %d broke the protocol", pid);
    *bytes = in->bytes + *at + sizeof record;
    *at += sizeof record + tag + payload;
    return record;
}

static void same(uint64_t its, uint64_t mine, const char *call, const char *what, int pid) {
    if (its != mine)
        stop(call, "%s: %llu, and in process %d %llu", what, (unsigned long long)mine, pid, (unsigned long long)its);
}

/* A piece is a deposit: small answers are gathered. */
static void answer(struct out *out, const char *from, uint64_t bytes) {
    if (bytes > SMALL)
        add(out, from, bytes);
    else if (bytes)
        memcpy(append(out, bytes), from, bytes);
}

/* Answers what a process asks; checks that it called what all call alike. */
static void hear(int pid) {
    uint64_t pushes = 0, popped = 0, sets = 0, ends = 0, tag = (uint64_t)next_tag_bytes, at = 0;
    char *bytes;
    while (peers[pid].in[RECORDS].has_calls && at < peers[pid].in[RECORDS].length) {
        struct record record = next_record(pid, &at, &bytes);
        if (record.kind == GET) {
            answer(&peers[pid].out[ANSWERS], place(pid, &record), record.bytes);
            if (peers[pid].out[ANSWERS].bytes - 8 > bytes_max)
                stop("bsp_sync", "process %d asks for more than BSP_BYTES", pid);
        } else if (record.kind == PUSH) {
            if (active + pushes < registered_count) registered[active + pushes].is_null &= record.registration == 1;
            pushes++;
        } else if (record.kind == POP) {
            struct pop *pop = popped < pop_count ? &pops[popped] : NULL;
            if (pop && pop->number == NONE) {
                pop->number = record.registration;
                pop->by = pid;
            } else if (pop && record.registration != NONE && record.registration != pop->number) {
                stop("bsp_sync/bsp_pop_reg", OTHER_POP, pop->by, pid);
            }
            popped++;
        } else if (record.kind == TAGSIZE) {
            tag = record.bytes;
            sets++;
        } else if (record.kind == END) {
            ends++;
        }
    }
    if (ends != (uint64_t)is_ending)
        stop("bsp_sync/bsp_end", "Some processes have called bsp_sync, while others have called bsp_end instead");
    same(pushes, registered_count - active, "bsp_sync/bsp_push_reg",
         "Not all processes registered the same number of memory blocks", pid);
    same(popped, pop_count, "bsp_sync/bsp_pop_reg", "Not all processes popped the same number of memory blocks", pid);
    same(sets, tag_sets, "bsp_sync/bsp_set_tagsize", "Not all processes set the tag size same number of times", pid);
    same(tag, (uint64_t)next_tag_bytes, "bsp_sync/bsp_set_tagsize", "Not all processes announced the same tag size", pid);
}

/* Puts and messages of a process. The last message is the first to be moved. */
static void take(int pid) {
    size_t first = message_count;
    char *bytes;
    for (uint64_t at = 0; at < peers[pid].in[RECORDS].length;) {
        struct record record = next_record(pid, &at, &bytes);
        if (record.kind == PUT) {
            char *to = place(pid, &record);
            if (record.bytes) memcpy(to, bytes, record.bytes);
        } else if (record.kind == MESSAGE) {
            char *payload = bytes + PADDED(record.registration);
            messages = grown(messages, message_count, &message_room, sizeof *messages);
            messages[message_count++] = (struct message){bytes, payload, (int)record.bytes};
        }
    }
    for (size_t last = message_count; first + 1 < last; first++, last--) {
        struct message message = messages[first];
        messages[first] = messages[last - 1];
        messages[last - 1] = message;
    }
}

static void take_answers(struct peer *peer) {
    struct in *in = &peer->in[ANSWERS];
    uint64_t at = 0;
    for (size_t i = 0; i < peer->wished; i++) {
        struct wish *wish = &peer->wishes[i];
        if (wish->bytes > in->length - at) stop("bsp_sync", "a process answered too little");
        memcpy(wish->to, in->bytes + at, wish->bytes);
        at += wish->bytes;
    }
    peer->wished = peer->wished_bytes = 0;
}

void bsp_sync(void) {
    check("bsp_sync");
    for (int pid = 0; pid < processes; pid++) {
        struct in last = peers[pid].last;
        peers[pid].last = peers[pid].in[RECORDS];
        peers[pid].in[RECORDS] = last;
    }
    exchange(RECORDS, processes);
    for (int pid = 0; pid < processes; pid++) hear(pid);
    exchange(ANSWERS, processes);
    for (int pid = 0; pid < processes; pid++) take_answers(&peers[pid]);
    message_count = 0;
    for (int pid = 0; pid < processes; pid++) take(pid);
    for (size_t i = 0; i < pop_count; i++) pop(&pops[i]);
    active = registered_count;
    pop_count = 0;
    tag_sets = 0;
    came_tag_bytes = tag_bytes;
    tag_bytes = next_tag_bytes;
}
