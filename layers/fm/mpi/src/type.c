/* Types: their layouts as lists of blocks, and walks through elements by pieces.
 *
 * A layout is made when the type is, neighbouring blocks as one. A type lives until its handle is freed and no
 * request uses it. Never: a walk gives a run beyond the bytes that it began with.
 */
#include "internal.h"
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define PREDEFINED 38
/* More blocks than these are refused: each takes 16 bytes. */
#define BLOCKS_MAX ((size_t)1 << 24)
/* Bounds of types that are farther are refused: the difference of two, filled up, is an MPI_Aint. */
#define FARTHEST (PTRDIFF_MAX / 2 - 16)

static struct type **types;
static int type_count;

struct float_int { float a; int b; };
struct double_int { double a; int b; };
struct long_int { long a; int b; };
struct short_int { short a; int b; };
struct long_double_int { long double a; int b; };

static const struct { MPI_Datatype type; size_t size, extent; } predefined[] = {
    {MPI_CHAR, 1, 1}, {MPI_SIGNED_CHAR, 1, 1}, {MPI_UNSIGNED_CHAR, 1, 1}, {MPI_BYTE, 1, 1}, {MPI_PACKED, 1, 1},
    {MPI_WCHAR, sizeof(wchar_t), sizeof(wchar_t)},
    {MPI_SHORT, sizeof(short), sizeof(short)}, {MPI_UNSIGNED_SHORT, sizeof(short), sizeof(short)},
    {MPI_INT, sizeof(int), sizeof(int)}, {MPI_UNSIGNED, sizeof(int), sizeof(int)},
    {MPI_LONG, sizeof(long), sizeof(long)}, {MPI_UNSIGNED_LONG, sizeof(long), sizeof(long)},
    {MPI_LONG_LONG, sizeof(long long), sizeof(long long)},
    {MPI_UNSIGNED_LONG_LONG, sizeof(long long), sizeof(long long)},
    {MPI_FLOAT, sizeof(float), sizeof(float)}, {MPI_DOUBLE, sizeof(double), sizeof(double)},
    {MPI_LONG_DOUBLE, sizeof(long double), sizeof(long double)},
    {MPI_INT8_T, 1, 1}, {MPI_INT16_T, 2, 2}, {MPI_INT32_T, 4, 4}, {MPI_INT64_T, 8, 8},
    {MPI_UINT8_T, 1, 1}, {MPI_UINT16_T, 2, 2}, {MPI_UINT32_T, 4, 4}, {MPI_UINT64_T, 8, 8},
    {MPI_C_BOOL, sizeof(bool), sizeof(bool)},
    {MPI_FLOAT_INT, sizeof(float) + sizeof(int), sizeof(struct float_int)},
    {MPI_DOUBLE_INT, sizeof(double) + sizeof(int), sizeof(struct double_int)},
    {MPI_LONG_INT, sizeof(long) + sizeof(int), sizeof(struct long_int)},
    {MPI_2INT, 2 * sizeof(int), 2 * sizeof(int)},
    {MPI_SHORT_INT, sizeof(short) + sizeof(int), sizeof(struct short_int)},
    {MPI_LONG_DOUBLE_INT, sizeof(long double) + sizeof(int), sizeof(struct long_double_int)},
    {MPI_AINT, sizeof(MPI_Aint), sizeof(MPI_Aint)}, {MPI_OFFSET, sizeof(MPI_Offset), sizeof(MPI_Offset)},
    {MPI_COUNT, sizeof(MPI_Count), sizeof(MPI_Count)},
    {MPI_C_COMPLEX, 2 * sizeof(float), 2 * sizeof(float)},
    {MPI_C_DOUBLE_COMPLEX, 2 * sizeof(double), 2 * sizeof(double)},
};

static struct type *layout(size_t blocks) {
    if (blocks > BLOCKS_MAX)
        return NULL;
    struct type *type = calloc(1, sizeof *type + blocks * sizeof(struct block));
    if (type)
        type->holders = 1;
    return type;
}

static int add(struct type *type) {
    int at = PREDEFINED;
    while (at < type_count && types[at])
        at++;
    if (at >= type_count) {
        int count = type_count ? 2 * type_count : 64;
        struct type **grown = realloc(types, count * sizeof *types);
        if (!grown)
            return 0;
        memset(grown + type_count, 0, (count - type_count) * sizeof *types);
        types = grown;
        type_count = count;
    }
    types[at] = type;
    return at;
}

static void begin(void) {
    types = calloc(64, sizeof *types);
    if (!types)
        abort();
    type_count = 64;
    for (size_t i = 0; i < sizeof predefined / sizeof *predefined; i++) {
        /* Those of a value and an int may have a gap between: two blocks. */
        MPI_Datatype of = predefined[i].type;
        size_t size = predefined[i].size, second = 0, alignment = predefined[i].extent;
        switch (of) {
        case MPI_FLOAT_INT: case MPI_2INT: alignment = _Alignof(struct float_int); break;
        case MPI_C_COMPLEX: alignment = _Alignof(float); break;
        case MPI_C_DOUBLE_COMPLEX: alignment = _Alignof(double); break;
        case MPI_DOUBLE_INT: second = offsetof(struct double_int, b); alignment = _Alignof(struct double_int); break;
        case MPI_LONG_INT: second = offsetof(struct long_int, b); alignment = _Alignof(struct long_int); break;
        case MPI_SHORT_INT: second = offsetof(struct short_int, b); alignment = _Alignof(struct short_int); break;
        case MPI_LONG_DOUBLE_INT:
            second = offsetof(struct long_double_int, b);
            alignment = _Alignof(struct long_double_int);
            break;
        default: break;
        }
        struct type *type = layout(2);
        if (!type)
            abort();
        type->size = size;
        type->extent = predefined[i].extent;
        type->alignment = (MPI_Aint)alignment;
        type->base = of;
        type->is_dense = size == predefined[i].extent;
        type->block_count = 1;
        type->blocks[0].bytes = size;
        if (second && second != size - sizeof(int)) {
            type->block_count = 2;
            type->blocks[0].bytes = size - sizeof(int);
            type->blocks[1] = (struct block){(MPI_Aint)second, sizeof(int)};
        }
        types[of] = type;
    }
}

struct type *type_of(MPI_Datatype handle) {
    if (!types)
        begin();
    return handle > 0 && handle < type_count ? types[handle] : NULL;
}

int check_elements(const void *at, size_t count, const struct type *type) {
    size_t extent = type->extent < 0 ? -(size_t)type->extent : (size_t)type->extent;
    if (count == 0 || type->size == 0)
        return MPI_SUCCESS;
    if (type->size > PTRDIFF_MAX / count || extent > PTRDIFF_MAX / count)
        return MPI_ERR_COUNT;
    return at == MPI_IN_PLACE || (!at && type->is_dense) ? MPI_ERR_BUFFER : MPI_SUCCESS;
}

void type_hold(struct type *type) {
    type->holders++;
}

void type_release(struct type *type) {
    if (--type->holders == 0)
        free(type);
}

void types_finish(void) {
    for (int i = 0; i < type_count; i++)
        if (types[i])
            type_release(types[i]);
    free(types);
    types = NULL;
    type_count = 0;
}

/* Adds a run of bytes; there is room for it. */
static void put(struct type *to, MPI_Aint at, size_t bytes) {
    struct block *last = to->block_count ? &to->blocks[to->block_count - 1] : NULL;
    if (last && last->at + (MPI_Aint)last->bytes == at)
        last->bytes += bytes;
    else if (bytes)
        to->blocks[to->block_count++] = (struct block){at, bytes};
}

/* A type of `count` parts. While it is made, `extent` is the upper bound. */
static int make(size_t count, const int *lengths, int length, bool (*place)(size_t, const void *, MPI_Aint *),
                const void *places, const MPI_Datatype *of, MPI_Datatype one, MPI_Datatype *out) {
    size_t room = 0, bytes, size = 0;
    MPI_Aint at, low, high, lowest = 0, highest = 0;
    if (count > 0 && !places)
        return MPI_ERR_ARG;
    for (size_t i = 0; i < count; i++) {
        struct type *part = type_of(of ? of[i] : one);
        int n = lengths ? lengths[i] : length;
        if (!part)
            return MPI_ERR_TYPE;
        if (n < 0)
            return MPI_ERR_COUNT;
        /* The same sums are made below. */
        if (__builtin_mul_overflow((size_t)n, part->size, &bytes) || __builtin_add_overflow(size, bytes, &size) ||
            size > PTRDIFF_MAX || !place(i, places, &at) || __builtin_add_overflow(at, part->lb, &low) ||
            __builtin_mul_overflow((MPI_Aint)n, part->extent, &high) || __builtin_add_overflow(low, high, &high))
            return MPI_ERR_ARG;
        lowest = low < lowest ? low : lowest;
        highest = high > highest ? high : highest;
        if (lowest < -FARTHEST || highest > FARTHEST)
            return MPI_ERR_ARG;
        room += part->is_dense && n ? 1 : (size_t)n * part->block_count;
        if (room > BLOCKS_MAX)
            return MPI_ERR_TYPE;
    }
    struct type *type = layout(room);
    if (!type)
        return MPI_ERR_NO_MEM;
    bool is_first = true;
    type->base = count ? type_of(of ? of[0] : one)->base : 0;
    type->alignment = 1;
    for (size_t i = 0; i < count; i++) {
        const struct type *part = type_of(of ? of[i] : one);
        int n = lengths ? lengths[i] : length;
        place(i, places, &at);
        if (part->base != type->base)
            type->base = 0;
        if (n == 0)
            continue;
        if (part->is_dense)
            put(type, at, n * part->size);
        for (int e = 0; e < n && !part->is_dense; e++)
            for (size_t b = 0; b < part->block_count; b++)
                put(type, at + e * part->extent + part->blocks[b].at, part->blocks[b].bytes);
        low = at + part->lb;
        high = low + n * part->extent;
        type->lb = is_first || low < type->lb ? low : type->lb;
        type->extent = is_first || high > type->extent ? high : type->extent;
        type->size += n * part->size;
        type->alignment = part->alignment > type->alignment ? part->alignment : type->alignment;
        is_first = false;
    }
    type->extent -= type->lb;
    /* Elements of an array lie as a compiler lays them: the standard's epsilon. */
    MPI_Aint beyond = type->extent % type->alignment;
    type->extent += beyond > 0 ? type->alignment - beyond : 0;
    type->is_dense = type->block_count <= 1 && type->lb == 0 && (size_t)type->extent == type->size &&
                     (type->block_count == 0 || type->blocks[0].at == 0);
    int handle = add(type);
    if (!handle) {
        type_release(type);
        return MPI_ERR_NO_MEM;
    }
    *out = handle;
    return MPI_SUCCESS;
}

static bool by_stride(size_t i, const void *stride, MPI_Aint *at) {
    return !__builtin_mul_overflow((MPI_Aint)i, *(const MPI_Aint *)stride, at);
}

struct displacements { const int *of; MPI_Aint extent; };

static bool by_displacement(size_t i, const void *places, MPI_Aint *at) {
    const struct displacements *list = places;
    return !__builtin_mul_overflow((MPI_Aint)list->of[i], list->extent, at);
}

static bool by_address(size_t i, const void *places, MPI_Aint *at) {
    *at = ((const MPI_Aint *)places)[i];
    return true;
}

static int hvector(int count, int length, MPI_Aint stride, MPI_Datatype of, MPI_Datatype *out, const char *call) {
    int error = count < 0 ? MPI_ERR_COUNT : make(count, NULL, length, by_stride, &stride, NULL, of, out);
    return raise_error(MPI_COMM_WORLD, error, call);
}

int MPI_Type_contiguous(int count, MPI_Datatype of, MPI_Datatype *out) {
    return hvector(1, count, 0, of, out, "MPI_Type_contiguous");
}

int MPI_Type_vector(int count, int length, int stride, MPI_Datatype of, MPI_Datatype *out) {
    struct type *type = type_of(of);
    MPI_Aint bytes;
    if (__builtin_mul_overflow((MPI_Aint)stride, type ? type->extent : 0, &bytes))
        return raise_error(MPI_COMM_WORLD, MPI_ERR_ARG, "MPI_Type_vector");
    return hvector(count, length, bytes, of, out, "MPI_Type_vector");
}

int MPI_Type_create_hvector(int count, int length, MPI_Aint stride, MPI_Datatype of, MPI_Datatype *out) {
    return hvector(count, length, stride, of, out, "MPI_Type_create_hvector");
}

static int indexed(int count, const int *lengths, int length, const int *displs, MPI_Datatype of,
                   MPI_Datatype *out, const char *call) {
    struct type *type = type_of(of);
    struct displacements places = {displs, type ? type->extent : 0};
    int error = count < 0 ? MPI_ERR_COUNT : !displs && count ? MPI_ERR_ARG : MPI_SUCCESS;
    if (!error)
        error = make(count, lengths, length, by_displacement, &places, NULL, of, out);
    return raise_error(MPI_COMM_WORLD, error, call);
}

int MPI_Type_indexed(int count, const int lengths[], const int displs[], MPI_Datatype of, MPI_Datatype *out) {
    return indexed(count, lengths, 0, displs, of, out, "MPI_Type_indexed");
}

int MPI_Type_create_indexed_block(int count, int length, const int displs[], MPI_Datatype of, MPI_Datatype *out) {
    return indexed(count, NULL, length, displs, of, out, "MPI_Type_create_indexed_block");
}

int MPI_Type_create_struct(int count, const int lengths[], const MPI_Aint displs[], const MPI_Datatype of[],
                           MPI_Datatype *out) {
    int error = count < 0 ? MPI_ERR_COUNT : make(count, lengths, 0, by_address, displs, of, 0, out);
    return raise_error(MPI_COMM_WORLD, error, "MPI_Type_create_struct");
}

static int resized(MPI_Datatype of, MPI_Aint lb, MPI_Aint extent, bool keeps, MPI_Datatype *out, const char *call) {
    struct type *from = type_of(of);
    if (!from)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_TYPE, call);
    struct type *type = layout(from->block_count);
    if (!type)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_NO_MEM, call);
    memcpy(type, from, sizeof *type + from->block_count * sizeof(struct block));
    type->holders = 1;
    if (!keeps) {
        type->lb = lb;
        type->extent = extent;
        type->alignment = 1;
        type->is_dense = from->is_dense && lb == 0 && (size_t)extent == from->size;
    }
    *out = add(type);
    if (*out)
        return MPI_SUCCESS;
    type_release(type);
    return raise_error(MPI_COMM_WORLD, MPI_ERR_NO_MEM, call);
}

int MPI_Type_create_resized(MPI_Datatype of, MPI_Aint lb, MPI_Aint extent, MPI_Datatype *out) {
    return resized(of, lb, extent, false, out, "MPI_Type_create_resized");
}

int MPI_Type_dup(MPI_Datatype of, MPI_Datatype *out) {
    return resized(of, 0, 0, true, out, "MPI_Type_dup");
}

int MPI_Type_commit(MPI_Datatype *type) {
    return raise_error(MPI_COMM_WORLD, type_of(*type) ? MPI_SUCCESS : MPI_ERR_TYPE, "MPI_Type_commit");
}

int MPI_Type_free(MPI_Datatype *type) {
    if (*type < PREDEFINED || !type_of(*type))
        return raise_error(MPI_COMM_WORLD, MPI_ERR_TYPE, "MPI_Type_free");
    type_release(types[*type]);
    types[*type] = NULL;
    *type = MPI_DATATYPE_NULL;
    return MPI_SUCCESS;
}

int MPI_Type_size(MPI_Datatype type, int *size) {
    struct type *of = type_of(type);
    if (!of)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_TYPE, "MPI_Type_size");
    *size = of->size > INT32_MAX ? MPI_UNDEFINED : (int)of->size;
    return MPI_SUCCESS;
}

int MPI_Type_get_extent(MPI_Datatype type, MPI_Aint *lb, MPI_Aint *extent) {
    struct type *of = type_of(type);
    if (!of)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_TYPE, "MPI_Type_get_extent");
    *lb = of->lb;
    *extent = of->extent;
    return MPI_SUCCESS;
}

void walk_begin(struct walk *walk, const void *at, size_t count, struct type *type) {
    *walk = (struct walk){.at = (char *)at, .type = type, .left = count * type->size};
}

size_t walk_next(struct walk *walk, size_t most, char **run) {
    if (most > walk->left)
        most = walk->left;
    if (most == 0)
        return 0;
    if (walk->type->is_dense) {
        *run = walk->at;
        walk->at += most;
        walk->left -= most;
        return most;
    }
    const struct block *block = &walk->type->blocks[walk->block];
    size_t bytes = block->bytes - walk->within < most ? block->bytes - walk->within : most;
    *run = walk->at + block->at + walk->within;
    walk->within += bytes;
    walk->left -= bytes;
    if (walk->within == block->bytes) {
        walk->within = 0;
        if (++walk->block == walk->type->block_count) {
            walk->block = 0;
            walk->at += walk->type->extent;
        }
    }
    return bytes;
}

size_t walk_read(struct walk *walk, void *to, size_t bytes) {
    char *run;
    size_t done = 0;
    for (size_t n; (n = walk_next(walk, bytes - done, &run)) > 0; done += n)
        memcpy((char *)to + done, run, n);
    return done;
}

size_t walk_write(struct walk *walk, const void *from, size_t bytes) {
    char *run;
    size_t done = 0;
    for (size_t n; (n = walk_next(walk, bytes - done, &run)) > 0; done += n)
        memcpy(run, (const char *)from + done, n);
    return done;
}

bool walk_is_sparse(const struct walk *walk) {
    return !walk->type->is_dense && walk->type->block_count && walk->type->size / walk->type->block_count < 512;
}

void copy_elements(const void *from, size_t from_count, struct type *from_type, void *to, size_t to_count,
                   struct type *to_type) {
    struct walk in, out;
    walk_begin(&in, from, from_count, from_type);
    walk_begin(&out, to, to_count, to_type);
    char *run;
    for (size_t n; (n = walk_next(&in, out.left, &run)) > 0;)
        walk_write(&out, run, n);
}

int MPI_Pack_size(int count, MPI_Datatype type, MPI_Comm comm, int *bytes) {
    struct type *of = type_of(type);
    if (!of || count < 0 || check_elements("", count, of) || count * of->size > INT32_MAX)
        return raise_error(comm, of ? MPI_ERR_COUNT : MPI_ERR_TYPE, "MPI_Pack_size");
    *bytes = (int)(count * of->size);
    return MPI_SUCCESS;
}

/* The bytes between the position and the end of the packed buffer must hold the elements. */
static int check_packed(const void *at, int count, struct type *type, int bytes, int position) {
    if (!type)
        return MPI_ERR_TYPE;
    if (count < 0 || position < 0 || position > bytes)
        return MPI_ERR_ARG;
    int error = check_elements(at, count, type);
    if (error)
        return error;
    return count * type->size > (size_t)(bytes - position) ? MPI_ERR_TRUNCATE : MPI_SUCCESS;
}

int MPI_Pack(const void *in, int count, MPI_Datatype type, void *out, int bytes, int *position, MPI_Comm comm) {
    struct type *of = type_of(type);
    int error = check_packed(in, count, of, bytes, *position);
    if (error)
        return raise_error(comm, error, "MPI_Pack");
    struct walk walk;
    walk_begin(&walk, in, count, of);
    *position += (int)walk_read(&walk, (char *)out + *position, walk.left);
    return MPI_SUCCESS;
}

int MPI_Unpack(const void *in, int bytes, int *position, void *out, int count, MPI_Datatype type, MPI_Comm comm) {
    struct type *of = type_of(type);
    int error = check_packed(out, count, of, bytes, *position);
    if (error)
        return raise_error(comm, error, "MPI_Unpack");
    struct walk walk;
    walk_begin(&walk, out, count, of);
    *position += (int)walk_write(&walk, (const char *)in + *position, walk.left);
    return MPI_SUCCESS;
}
