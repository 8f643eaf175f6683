/* See shmem.h.
 *
 *   put      PUT (offset, length) and bytes   ->  checked, received to their place; acknowledged
 *   get      GET (tag, offset, length)        ->  checked; replied
 *   atomic   ATOMIC (tag, offset, operation)  ->  checked, done in the handler; the old value is replied
 *
 * fence: FM hands packets of one node to handlers in the order in which they were sent, and a put has sent its
 * last one before the next begins; so puts to one PE are in order always. quiet: all are acknowledged.
 *
 * Never: an offset becomes an address before in_heap() has seen it with its length; the allocator's records lie
 * in the heap.
 */
#include "shmem.h"
#include "over.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PUT = OVER_ID_SHMEM, GET, ATOMIC };
enum { FETCH_ADD, COMPARE_SWAP };
enum { ALIGN = 64 };

/* With OVER_CHUNK bytes longer than a packet, so it goes ahead, and FM puts the bytes straight to their place. */
typedef struct {
    uint64_t offset, bytes;
} put_header;

typedef struct {
    uint32_t tag, bytes;
    uint64_t offset;
    /* ATOMIC only. */
    uint32_t operation, reserved;
    int64_t value, condition;
} access_header;

/* Objects in the heap, in order. */
typedef struct {
    size_t offset, bytes;
} object;

static char *heap;
/* 0: not between shmem_init and shmem_finalize. */
static size_t heap_bytes;
static object *objects;
static size_t count;
static int error;

static void check(int code)
{
    if (code == OVER_OK || error != OVER_OK)
        return;
    error = code;
    fprintf(stderr, "shmem: PE %d: %s\n", shmem_my_pe(), over_error_text(code));
}

int shmemx_error(void) { return error; }
unsigned long long shmemx_refused(void) { return over_refused(OVER_SHMEM); }

static int in_heap(uint64_t offset, uint64_t bytes) { return offset <= heap_bytes && bytes <= heap_bytes - offset; }
static uint64_t offset_of(const void *object) { return (uint64_t)((uintptr_t)object - (uintptr_t)heap); }

/* The owner's side. */

static int on_put(FM_stream *stream, unsigned sender)
{
    put_header header;
    unsigned long bytes;
    int is_refused;

    if (!over_take(stream, &header, sizeof header, OVER_SHMEM))
        return FM_CONTINUE;
    bytes = FM_left(stream);
    is_refused = bytes > OVER_CHUNK || bytes != header.bytes || !in_heap(header.offset, bytes);
    if (!is_refused)
        FM_receive(heap + header.offset, stream, (unsigned)bytes);
    over_acknowledge(sender, OVER_SHMEM, (unsigned)bytes, is_refused);
    return FM_CONTINUE;
}

static int on_get(FM_stream *stream, unsigned sender)
{
    access_header header;
    over_rows rows;
    int is_held;

    if (!over_take(stream, &header, sizeof header, OVER_SHMEM))
        return FM_CONTINUE;
    is_held = header.bytes <= OVER_REPLY_BYTES && in_heap(header.offset, header.bytes);
    rows = (over_rows){is_held ? heap + header.offset : heap, header.bytes, 1, 0};
    over_reply(sender, OVER_SHMEM, header.tag, is_held ? &rows : NULL);
    return FM_CONTINUE;
}

static int on_atomic(FM_stream *stream, unsigned sender)
{
    access_header header;
    int64_t old = 0, now;
    char *at;
    over_rows rows = {(char *)&old, sizeof old, 1, 0};

    if (!over_take(stream, &header, sizeof header, OVER_SHMEM))
        return FM_CONTINUE;
    if (header.operation > COMPARE_SWAP || (header.bytes != sizeof(int) && header.bytes != sizeof(long)) ||
        header.offset % header.bytes != 0 || !in_heap(header.offset, header.bytes)) {
        over_reply(sender, OVER_SHMEM, header.tag, NULL);
        return FM_CONTINUE;
    }
    at = heap + header.offset;
    old = header.bytes == sizeof(int) ? *(int *)(void *)at : *(long *)(void *)at;
    /* Without the overflow of signed numbers. */
    now = header.operation == FETCH_ADD      ? (int64_t)((uint64_t)old + (uint64_t)header.value)
          : old == header.condition ? header.value
                                    : old;
    if (header.bytes == sizeof(int))
        *(int *)(void *)at = (int)now;
    else
        *(long *)(void *)at = (long)now;
    over_reply(sender, OVER_SHMEM, header.tag, &rows);
    return FM_CONTINUE;
}

/* The heap. */

static size_t size_of_heap(void)
{
    static const char units[] = "KMGkmg";
    const char *text = getenv("SHMEM_SYMMETRIC_SIZE"), *unit;
    char *end;
    double size;

    if (!text)
        return 16u << 20;
    size = strtod(text, &end);
    unit = *end ? strchr(units, *end) : NULL;
    if (*end && (!unit || end[1]))
        return 0;
    for (long power = unit ? (unit - units) % 3 + 1 : 0; power > 0; power--)
        size *= 1024;
    return size >= ALIGN && size < (double)(1ULL << 40) ? (size_t)size / ALIGN * ALIGN : 0;
}

void shmem_init(void)
{
    static FM_handler *const handlers[] = {on_put, on_get, on_atomic};
    /* Of the heap that is still there, because the program has kept FM. */
    static size_t bytes;
    int code;

    if (heap_bytes)
        return;
    code = over_start(OVER_SHMEM, PUT, handlers, 3);
    if (!heap) {
        bytes = size_of_heap();
        heap = bytes ? (char *)aligned_alloc(ALIGN, bytes) : NULL;
    }
    if (code != OVER_OK || !heap) {
        fprintf(stderr, "shmem_init: %s\n", code != OVER_OK ? FM_error_text() : "no symmetric heap, or no handlers");
        exit(1);
    }
    memset(heap, 0, bytes);
    heap_bytes = bytes;
    check(over_barrier(OVER_SHMEM, heap_bytes));
}

void shmem_finalize(void)
{
    shmem_barrier_all();
    heap_bytes = count = 0;
    free(objects);
    objects = NULL;
    over_stop(OVER_SHMEM);
    /* While the program has FM, a handler may still receive into the heap. */
    if (FM_numnodes == 0) {
        free(heap);
        heap = NULL;
    }
}

int shmem_my_pe(void) { return (int)FM_nodeid; }
int shmem_n_pes(void) { return (int)FM_numnodes; }

/* First fit. All PEs make the same calls, so an object has the same offset on all. */
static void *allocate(size_t bytes)
{
    size_t at = 0, index = 0;
    object *more;

    if (bytes == 0 || bytes > heap_bytes)
        return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    while (index < count && objects[index].offset - at < bytes) {
        at = objects[index].offset + objects[index].bytes;
        index++;
    }
    if (!in_heap(at, bytes))
        return NULL;
    more = (object *)realloc(objects, (count + 1) * sizeof *objects);
    if (!more)
        return NULL;
    objects = more;
    memmove(objects + index + 1, objects + index, (count - index) * sizeof *objects);
    objects[index] = (object){at, bytes};
    count++;
    return heap + at;
}

/* All have come, with the same argument. */
static int agree(uint64_t value)
{
    int code = over_barrier(OVER_SHMEM, value);

    check(code);
    return code;
}

static void forget(const void *given)
{
    for (size_t index = 0; index < count; index++) {
        if (heap + objects[index].offset == given) {
            count--;
            memmove(objects + index, objects + index + 1, (count - index) * sizeof *objects);
            return;
        }
    }
    check(OVER_RANGE);
}

static size_t product(size_t n, size_t bytes) { return bytes > 0 && n > SIZE_MAX / bytes ? SIZE_MAX : n * bytes; }

static void *allocate_on_all(size_t bytes, int with_zeros)
{
    void *at = allocate(bytes);

    if (at && with_zeros)
        memset(at, 0, bytes);
    /* Also with the same offset, or none. */
    if (agree(bytes * 0x9e3779b97f4a7c15u ^ (at ? offset_of(at) : UINT64_MAX)) == OVER_OK || !at)
        return at;
    forget(at);
    return NULL;
}

void *shmem_malloc(size_t bytes) { return allocate_on_all(bytes, 0); }
void *shmem_calloc(size_t count, size_t bytes) { return allocate_on_all(product(count, bytes), 1); }

void shmem_free(void *object)
{
    shmem_quiet();
    if (agree(object ? offset_of(object) : UINT64_MAX) == OVER_OK && object)
        forget(object);
}

void *shmem_ptr(const void *object, int pe)
{
    return pe == shmem_my_pe() && in_heap(offset_of(object), 1) ? (void *)(uintptr_t)object : NULL;
}

/* The other side. */

static int is_allowed(const void *object, const void *local, size_t bytes, int pe)
{
    int is = pe >= 0 && pe < shmem_n_pes() && in_heap(offset_of(object), bytes) && (local || bytes == 0);

    if (!is)
        check(OVER_RANGE);
    return is;
}

void shmem_putmem(void *dest, const void *source, size_t bytes, int pe)
{
    if (!is_allowed(dest, source, bytes, pe))
        return;
    if (pe == shmem_my_pe()) {
        memmove(dest, source, bytes);
        return;
    }
    for (size_t done = 0, next; done < bytes; done += next) {
        put_header header = {offset_of(dest) + done, 0};
        over_rows rows = {(char *)(uintptr_t)source + done, 0, 1, 0};
        int code;

        next = header.bytes = rows.bytes = bytes - done < OVER_CHUNK ? bytes - done : OVER_CHUNK;
        code = over_reserve((unsigned long)pe, (unsigned)next, -1);
        if (code == OVER_OK)
            code = over_send((unsigned long)pe, PUT, &header, sizeof header, &rows, -1);
        if (code != OVER_OK) {
            check(code);
            return;
        }
    }
}

void shmem_getmem(void *dest, const void *source, size_t bytes, int pe)
{
    int code = OVER_OK;

    if (!is_allowed(source, dest, bytes, pe))
        return;
    if (pe == shmem_my_pe()) {
        memmove(dest, source, bytes);
        return;
    }
    for (size_t done = 0; done < bytes && code == OVER_OK; done += OVER_REPLY_BYTES) {
        size_t next = bytes - done < OVER_REPLY_BYTES ? bytes - done : OVER_REPLY_BYTES;
        access_header header = {.bytes = (uint32_t)next, .offset = offset_of(source) + done};

        code = over_request((unsigned long)pe, GET, &header, sizeof header, (over_rows){(char *)dest + done, next, 1, 0});
    }
    check(code);
    check(over_finish());
}

static int64_t atomic(void *dest, uint32_t bytes, uint32_t operation, int64_t value, int64_t condition, int pe)
{
    access_header header = {0, bytes, offset_of(dest), operation, 0, value, condition};
    int64_t old = 0;

    /* Also to this PE, through its own handler: in one order with all others. */
    if (!is_allowed(dest, &old, bytes, pe))
        return 0;
    check(over_request((unsigned long)pe, ATOMIC, &header, sizeof header, (over_rows){(char *)&old, sizeof old, 1, 0}));
    check(over_finish());
    return old;
}

void shmem_fence(void) {}

void shmem_quiet(void)
{
    check(over_quiet());
    if (over_take_failures(OVER_SHMEM) > 0)
        check(OVER_REFUSED);
}

void shmem_barrier_all(void)
{
    shmem_quiet();
    check(over_barrier(OVER_SHMEM, 0));
}

typedef struct {
    const volatile void *at;
    int is_long, cmp;
    long value;
} condition;

static int holds(void *of)
{
    const condition *c = (const condition *)of;
    long now = c->is_long ? *(const volatile long *)c->at : *(const volatile int *)c->at;

    switch (c->cmp) {
    case SHMEM_CMP_EQ: return now == c->value;
    case SHMEM_CMP_NE: return now != c->value;
    case SHMEM_CMP_GT: return now > c->value;
    case SHMEM_CMP_GE: return now >= c->value;
    case SHMEM_CMP_LT: return now < c->value;
    default: return now <= c->value;
    }
}

static void wait_until(condition c)
{
    if (is_allowed((const void *)(uintptr_t)c.at, &c, c.is_long ? sizeof(long) : sizeof(int), shmem_my_pe()))
        check(over_wait(holds, &c, OVER_ANY, -1, FM_ALL));
}

#define TYPED(name, type)                                                                                        \
    void shmem_##name##_put(type *dest, const type *source, size_t n, int pe)                                    \
    {                                                                                                            \
        shmem_putmem(dest, source, product(n, sizeof(type)), pe);                                                \
    }                                                                                                            \
    void shmem_##name##_get(type *dest, const type *source, size_t n, int pe)                                    \
    {                                                                                                            \
        shmem_getmem(dest, source, product(n, sizeof(type)), pe);                                                \
    }                                                                                                            \
    void shmem_##name##_p(type *dest, type value, int pe) { shmem_putmem(dest, &value, sizeof value, pe); }      \
    type shmem_##name##_g(const type *source, int pe)                                                            \
    {                                                                                                            \
        type value = 0;                                                                                          \
        shmem_getmem(&value, source, sizeof value, pe);                                                          \
        return value;                                                                                            \
    }
#define COUNTED(name, type)                                                                                      \
    type shmem_##name##_atomic_fetch_add(type *dest, type value, int pe)                                         \
    {                                                                                                            \
        return (type)atomic(dest, sizeof(type), FETCH_ADD, value, 0, pe);                                        \
    }                                                                                                            \
    type shmem_##name##_atomic_compare_swap(type *dest, type cond, type value, int pe)                           \
    {                                                                                                            \
        return (type)atomic(dest, sizeof(type), COMPARE_SWAP, value, cond, pe);                                  \
    }                                                                                                            \
    void shmem_##name##_wait_until(type *ivar, int cmp, type value)                                              \
    {                                                                                                            \
        wait_until((condition){ivar, sizeof(type) == sizeof(long), cmp, value});                                 \
    }

TYPED(int, int)
TYPED(long, long)
TYPED(double, double)
COUNTED(int, int)
COUNTED(long, long)
