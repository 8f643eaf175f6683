/* See ga.h.
 *
 *   put, acc  PUT (array, part, alpha) and rows  ->  checked, received row by row to their places; acknowledged
 *   get       GET (tag, array, part)             ->  checked; replied row by row
 *
 * The nodes are a grid as square as can be; each has one block of an array.
 *
 * Never: a part is used before find_part() has seen that it lies in this node's block; a block is freed before all
 * nodes have given it up, or while a handler receives into it.
 */
#include "ga.h"
#include "over.h"
#include <stdlib.h>
#include <string.h>

_Static_assert(GA_DEAD == OVER_DEAD && GA_REFUSED == OVER_REFUSED && GA_RANGE == OVER_RANGE && GA_SYSTEM == OVER_SYSTEM,
               "one set of codes");

enum { PUT = OVER_ID_GA, ACC, GET };
enum { ARRAYS = 64 };
/* Doubles of a message, of a reply, and of a step of an accumulation. */
enum { PART = OVER_CHUNK / sizeof(double), REPLY = OVER_REPLY_BYTES / sizeof(double), STEP = 128 };

typedef struct {
    uint32_t tag, array, rows, columns;
    int64_t row, column;
    double alpha;
} part_header;

typedef struct {
    /* How many were created before it: the same on all nodes, whichever places are free. */
    int id;
    long rows, columns, block_rows, block_columns;
    ga_rect own;
    double *block;
    /* Handlers that receive into it, after which it is freed if the program has destroyed it. */
    int receiving, is_destroyed;
} array;

static array table[ARRAYS];
static int next_id;
static long grid_rows, grid_columns;

static array *find(int id)
{
    for (array *a = table; a < table + ARRAYS; a++) {
        if (a->block && a->id == id && !a->is_destroyed)
            return a;
    }
    return NULL;
}

static long least(long a, long b) { return a < b ? a : b; }

static ga_rect intersect(ga_rect a, ga_rect b)
{
    ga_rect both = {a.row > b.row ? a.row : b.row, a.column > b.column ? a.column : b.column, 0, 0};

    both.rows = least(a.row + a.rows, b.row + b.rows) - both.row;
    both.columns = least(a.column + a.columns, b.column + b.columns) - both.column;
    return both;
}

static ga_rect block_of(const array *a, long node)
{
    ga_rect whole = {0, 0, a->rows, a->columns};
    ga_rect block = {node / grid_columns * a->block_rows, node % grid_columns * a->block_columns, a->block_rows,
                     a->block_columns};
    ga_rect in = intersect(block, whole);

    in.rows = in.rows > 0 ? in.rows : 0;
    in.columns = in.columns > 0 ? in.columns : 0;
    return in;
}

/* Where a part begins in this node's block; NULL: it does not lie in it. */
static double *find_part(const part_header *part, array **of)
{
    array *a = part->array < INT32_MAX ? find((int)part->array) : NULL;
    ga_rect own = a ? a->own : (ga_rect){0, 0, 0, 0};

    if (!a || part->row < own.row || part->row - own.row > own.rows || part->rows > own.rows - (part->row - own.row) ||
        part->column < own.column || part->column - own.column > own.columns ||
        part->columns > own.columns - (part->column - own.column) || part->rows == 0 || part->columns == 0)
        return NULL;
    *of = a;
    return a->block + (part->row - own.row) * own.columns + (part->column - own.column);
}

static void forget(array *a)
{
    a->is_destroyed = 1;
    if (a->receiving > 0)
        return;
    free(a->block);
    a->block = NULL;
}

/* The owner's side. */

static int accumulate(FM_stream *stream, double *to, long count, double alpha)
{
    double values[STEP];

    for (long next; count > 0; count -= next, to += next) {
        next = least(count, STEP);
        if (FM_receive(values, stream, (unsigned)(next * (long)sizeof *to)) != (int)(next * (long)sizeof *to))
            return -1;
        for (long index = 0; index < next; index++)
            to[index] += alpha * values[index];
    }
    return 0;
}

static int take_part(FM_stream *stream, unsigned sender, int is_acc)
{
    part_header part;
    array *a = NULL;
    double *at = NULL;
    unsigned long bytes;
    uint64_t doubles;

    if (!over_take(stream, &part, sizeof part, OVER_GA))
        return FM_CONTINUE;
    bytes = FM_left(stream);
    doubles = (uint64_t)part.rows * part.columns;
    if (doubles <= PART && doubles * sizeof(double) == bytes)
        at = find_part(&part, &a);
    if (at)
        a->receiving++;
    for (uint32_t row = 0; at && row < part.rows; row++) {
        double *to = at + (long)row * a->own.columns;
        unsigned length = part.columns * (unsigned)sizeof *to;

        /* Where the sender has died, the rest of a part does not come. */
        if (is_acc ? accumulate(stream, to, part.columns, part.alpha) : FM_receive(to, stream, length) != (int)length)
            break;
    }
    if (at && --a->receiving == 0 && a->is_destroyed)
        forget(a);
    over_acknowledge(sender, OVER_GA, bytes <= OVER_CHUNK ? (unsigned)bytes : OVER_CHUNK, !at);
    return FM_CONTINUE;
}

static int on_put(FM_stream *stream, unsigned sender) { return take_part(stream, sender, 0); }
static int on_acc(FM_stream *stream, unsigned sender) { return take_part(stream, sender, 1); }

static int on_get(FM_stream *stream, unsigned sender)
{
    part_header part;
    array *a = NULL;
    double *at = NULL;
    over_rows rows = {0};

    if (!over_take(stream, &part, sizeof part, OVER_GA))
        return FM_CONTINUE;
    if ((uint64_t)part.rows * part.columns <= REPLY)
        at = find_part(&part, &a);
    if (at)
        rows = (over_rows){(char *)at, part.columns * sizeof *at, part.rows, (size_t)a->own.columns * sizeof *at};
    over_reply(sender, OVER_GA, part.tag, at ? &rows : NULL);
    return FM_CONTINUE;
}

/* All nodes. */

/* What owners have refused before, ga_sync tells: it is no reason for a node to differ from others. */
static int meet(uint64_t value)
{
    int quiet = over_quiet(), barrier = over_barrier(OVER_GA, value);

    return quiet != OVER_OK ? quiet : barrier;
}

int ga_initialize(void)
{
    static FM_handler *const handlers[] = {on_put, on_acc, on_get};
    int code = over_start(OVER_GA, PUT, handlers, 3);

    if (code != OVER_OK)
        return code;
    grid_rows = 1;
    for (long rows = 1; rows * rows <= (long)FM_numnodes; rows++) {
        if ((long)FM_numnodes % rows == 0)
            grid_rows = rows;
    }
    grid_columns = (long)FM_numnodes / grid_rows;
    return over_barrier(OVER_GA, 0);
}

int ga_sync(void)
{
    int code = meet(0);
    unsigned failures = over_take_failures(OVER_GA);

    return code == OVER_OK && failures > 0 ? GA_REFUSED : code;
}

int ga_terminate(void)
{
    int code = ga_sync();

    for (int index = 0; index < ARRAYS; index++)
        forget(&table[index]);
    over_stop(OVER_GA);
    return code;
}

int ga_create(long rows, long columns)
{
    array *a = table;
    ga_rect own;
    int code;

    if (!over_is_started(OVER_GA) || rows < 1 || columns < 1 || rows > 1L << 40 || columns > (1L << 50) / rows)
        return GA_RANGE;
    while (a < table + ARRAYS && a->block)
        a++;
    next_id = (next_id + 1) % INT32_MAX;
    if (a == table + ARRAYS) {
        code = meet(0);
        return code == OVER_OK ? GA_RANGE : code;
    }
    a->id = next_id;
    a->is_destroyed = 0;
    a->rows = rows;
    a->columns = columns;
    a->block_rows = (rows + grid_rows - 1) / grid_rows;
    a->block_columns = (columns + grid_columns - 1) / grid_columns;
    a->own = own = block_of(a, (long)FM_nodeid);
    a->block = (double *)calloc((size_t)(own.rows * own.columns) + 1, sizeof(double));
    /* Zero: this node has no memory for it, so no node gets the array. */
    code = meet(a->block ? (uint64_t)rows * 0x9e3779b97f4a7c15u ^ (uint64_t)columns : 0);
    if (a->block && code == OVER_OK)
        return a->id;
    forget(a);
    return code == OVER_OK ? GA_SYSTEM : code;
}

int ga_destroy(int id)
{
    array *a = find(id);
    int code;

    if (!a)
        return GA_RANGE;
    code = meet((uint64_t)id + 1);
    forget(a);
    return code;
}

int ga_distribution(int id, unsigned long node, ga_rect *block)
{
    array *a = find(id);

    if (!a || !block || node >= FM_numnodes)
        return GA_RANGE;
    *block = block_of(a, (long)node);
    return 0;
}

long ga_locate(int id, long row, long column)
{
    array *a = find(id);

    if (!a || row < 0 || row >= a->rows || column < 0 || column >= a->columns)
        return GA_RANGE;
    return row / a->block_rows * grid_columns + column / a->block_columns;
}

double *ga_access(int id, long *ld)
{
    array *a = find(id);

    if (!a || !ld || a->own.rows == 0 || a->own.columns == 0)
        return NULL;
    *ld = a->own.columns;
    return a->block;
}

/* Rectangles: first by owners, then by messages. */

typedef struct {
    array *of;
    int kind;
    double alpha;
    ga_rect whole;
    double *memory;
    long ld;
} transfer;

static int pass_part(const transfer *t, ga_rect r, unsigned long owner)
{
    double *at = t->memory + (r.row - t->whole.row) * t->ld + (r.column - t->whole.column);
    over_rows rows = {(char *)at, (size_t)r.columns * sizeof *at, (size_t)r.rows, (size_t)t->ld * sizeof *at};
    part_header part = {0, (uint32_t)t->of->id, (uint32_t)r.rows, (uint32_t)r.columns, r.row, r.column, t->alpha};
    int code;

    if (t->kind == GET)
        return over_request(owner, GET, &part, sizeof part, rows);
    code = over_reserve(owner, (unsigned)(rows.bytes * rows.count), -1);
    return code == OVER_OK ? over_send(owner, (unsigned long)t->kind, &part, sizeof part, &rows, -1) : code;
}

static void pass_here(const transfer *t, ga_rect r)
{
    const array *a = t->of;

    for (long row = r.row; row < r.row + r.rows; row++) {
        double *memory = t->memory + (row - t->whole.row) * t->ld + (r.column - t->whole.column);
        double *own = a->block + (row - a->own.row) * a->own.columns + (r.column - a->own.column);

        if (t->kind == GET)
            memcpy(memory, own, (size_t)r.columns * sizeof *own);
        else if (t->kind == PUT)
            memcpy(own, memory, (size_t)r.columns * sizeof *own);
        for (long column = 0; t->kind == ACC && column < r.columns; column++)
            own[column] += t->alpha * memory[column];
    }
}

static int pass_block(const transfer *t, ga_rect r, unsigned long owner)
{
    long most = t->kind == GET ? REPLY : PART, columns = least(r.columns, most), rows = most / columns;
    int code = OVER_OK;

    for (long row = 0; row < r.rows && code == OVER_OK; row += rows) {
        for (long column = 0; column < r.columns && code == OVER_OK; column += columns) {
            ga_rect part = {r.row + row, r.column + column, least(rows, r.rows - row),
                            least(columns, r.columns - column)};

            code = pass_part(t, part, owner);
        }
    }
    return code;
}

static int pass(int id, int kind, ga_rect r, double alpha, const double *memory, long ld)
{
    transfer t = {find(id), kind, alpha, r, (double *)(uintptr_t)memory, ld};
    int code = OVER_OK, finished;

    if (!t.of || r.row < 0 || r.column < 0 || r.rows < 0 || r.columns < 0 || r.row > t.of->rows ||
        r.rows > t.of->rows - r.row || r.column > t.of->columns || r.columns > t.of->columns - r.column || ld < r.columns ||
        (r.rows > 0 && r.columns > 0 && (!memory || ld > PTRDIFF_MAX / (long)sizeof *memory / r.rows)))
        return GA_RANGE;
    for (unsigned long owner = 0; owner < FM_numnodes; owner++) {
        ga_rect in = intersect(r, block_of(t.of, (long)owner));

        if (in.rows <= 0 || in.columns <= 0 || code != OVER_OK)
            continue;
        if (owner == FM_nodeid)
            pass_here(&t, in);
        else
            code = pass_block(&t, in, owner);
    }
    finished = kind == GET ? over_finish() : OVER_OK;
    return code != OVER_OK ? code : finished;
}

int ga_put(int id, ga_rect r, const double *from, long ld) { return pass(id, PUT, r, 1, from, ld); }
int ga_acc(int id, ga_rect r, double alpha, const double *from, long ld) { return pass(id, ACC, r, alpha, from, ld); }
int ga_get(int id, ga_rect r, double *to, long ld) { return pass(id, GET, r, 1, to, ld); }

unsigned long long ga_refused(void) { return over_refused(OVER_GA); }
const char *ga_error_text(int code) { return over_error_text(code); }
