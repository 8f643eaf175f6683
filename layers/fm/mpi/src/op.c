/* Operations of reductions: those of the standard, by C type, and those of the program. */
#include "internal.h"
#include <complex.h>
#include <stdlib.h>

#define PREDEFINED 13

typedef void reducer(MPI_Op op, const void *in, void *inout, size_t count);

#define EACH(code, value)                                                                                             \
    case code:                                                                                                        \
        for (size_t i = 0; i < count; i++)                                                                            \
            b[i] = (value);                                                                                           \
        break;
#define ORDERED EACH(MPI_MAX, a[i] > b[i] ? a[i] : b[i]) EACH(MPI_MIN, a[i] < b[i] ? a[i] : b[i])
#define ADDED EACH(MPI_SUM, a[i] + b[i]) EACH(MPI_PROD, a[i] * b[i])
#define LOGICAL EACH(MPI_LAND, a[i] && b[i]) EACH(MPI_LOR, a[i] || b[i]) EACH(MPI_LXOR, !a[i] != !b[i])
#define BITWISE EACH(MPI_BAND, a[i] & b[i]) EACH(MPI_BOR, a[i] | b[i]) EACH(MPI_BXOR, a[i] ^ b[i])
#define REDUCER(name, type, cases)                                                                                    \
    static void name(MPI_Op op, const void *in, void *inout, size_t count) {                                          \
        const type *a = in;                                                                                           \
        type *b = inout;                                                                                              \
        switch (op) { cases }                                                                                         \
    }
/* Sums of signed integers wrap around, as those of unsigned do. */
#define INTEGER(name, type, wraps)                                                                                    \
    REDUCER(name, type,                                                                                               \
            ORDERED LOGICAL BITWISE EACH(MPI_SUM, (type)((wraps)a[i] + (wraps)b[i]))                                  \
                EACH(MPI_PROD, (type)((wraps)a[i] * (wraps)b[i])))
/* At equal values the lower index wins. */
#define PAIR(name, type)                                                                                              \
    struct pair_##name { type value; int index; };                                                                    \
    REDUCER(name, struct pair_##name,                                                                                 \
            EACH(MPI_MAXLOC, a[i].value > b[i].value || (a[i].value == b[i].value && a[i].index < b[i].index)         \
                                 ? a[i] : b[i])                                                                       \
            EACH(MPI_MINLOC, a[i].value < b[i].value || (a[i].value == b[i].value && a[i].index < b[i].index)         \
                                 ? a[i] : b[i]))

INTEGER(i8, int8_t, unsigned)
INTEGER(i16, int16_t, unsigned)
INTEGER(i32, int32_t, unsigned)
INTEGER(i64, int64_t, uint64_t)
INTEGER(u8, uint8_t, unsigned)
INTEGER(u16, uint16_t, unsigned)
INTEGER(u32, uint32_t, unsigned)
INTEGER(u64, uint64_t, uint64_t)
REDUCER(truth, bool, LOGICAL)
REDUCER(f32, float, ORDERED ADDED)
REDUCER(f64, double, ORDERED ADDED)
REDUCER(fl, long double, ORDERED ADDED)
REDUCER(c32, float complex, ADDED)
REDUCER(c64, double complex, ADDED)
PAIR(float_int, float)
PAIR(double_int, double)
PAIR(long_int, long)
PAIR(int_int, int)
PAIR(short_int, short)
PAIR(long_double_int, long double)

#define OF(op) (1u << (op))
#define FLOATS (OF(MPI_MAX) | OF(MPI_MIN) | OF(MPI_SUM) | OF(MPI_PROD))
#define LOGICALS (OF(MPI_LAND) | OF(MPI_LOR) | OF(MPI_LXOR))
#define BITS (OF(MPI_BAND) | OF(MPI_BOR) | OF(MPI_BXOR))
#define INTEGERS (FLOATS | LOGICALS | BITS)
#define LOCS (OF(MPI_MAXLOC) | OF(MPI_MINLOC))
#define SIGNED(size) ((size) == 1 ? i8 : (size) == 2 ? i16 : (size) == 4 ? i32 : i64)
#define UNSIGNED(size) ((size) == 1 ? u8 : (size) == 2 ? u16 : (size) == 4 ? u32 : u64)

/* The reducer of a predefined type, and bits of the operations that it has. */
static reducer *reducer_of(MPI_Datatype type, unsigned *ops) {
    *ops = INTEGERS;
    switch (type) {
    case MPI_CHAR: case MPI_SIGNED_CHAR: case MPI_INT8_T: return i8;
    case MPI_SHORT: return SIGNED(sizeof(short));
    case MPI_INT: return SIGNED(sizeof(int));
    case MPI_LONG: return SIGNED(sizeof(long));
    case MPI_LONG_LONG: case MPI_INT64_T: case MPI_AINT: case MPI_OFFSET: case MPI_COUNT: return i64;
    case MPI_INT16_T: return i16;
    case MPI_INT32_T: return i32;
    case MPI_UNSIGNED_CHAR: case MPI_UINT8_T: return u8;
    case MPI_UNSIGNED_SHORT: return UNSIGNED(sizeof(short));
    case MPI_UNSIGNED: return UNSIGNED(sizeof(int));
    case MPI_UNSIGNED_LONG: return UNSIGNED(sizeof(long));
    case MPI_UNSIGNED_LONG_LONG: case MPI_UINT64_T: return u64;
    case MPI_UINT16_T: return u16;
    case MPI_UINT32_T: return u32;
    case MPI_BYTE: *ops = BITS; return u8;
    case MPI_C_BOOL: *ops = LOGICALS; return truth;
    case MPI_FLOAT: *ops = FLOATS; return f32;
    case MPI_DOUBLE: *ops = FLOATS; return f64;
    case MPI_LONG_DOUBLE: *ops = FLOATS; return fl;
    case MPI_C_COMPLEX: *ops = OF(MPI_SUM) | OF(MPI_PROD); return c32;
    case MPI_C_DOUBLE_COMPLEX: *ops = OF(MPI_SUM) | OF(MPI_PROD); return c64;
    case MPI_FLOAT_INT: *ops = LOCS; return float_int;
    case MPI_DOUBLE_INT: *ops = LOCS; return double_int;
    case MPI_LONG_INT: *ops = LOCS; return long_int;
    case MPI_2INT: *ops = LOCS; return int_int;
    case MPI_SHORT_INT: *ops = LOCS; return short_int;
    case MPI_LONG_DOUBLE_INT: *ops = LOCS; return long_double_int;
    default: *ops = 0; return NULL;
    }
}

static struct program_op {
    MPI_User_function *function;
    bool commutes;
} *program_ops;
static int program_op_count;

static struct program_op *program_op(MPI_Op op) {
    int at = op - PREDEFINED;
    return at >= 0 && at < program_op_count && program_ops[at].function ? &program_ops[at] : NULL;
}

int op_check(MPI_Op op, MPI_Datatype type) {
    struct type *of = type_of(type);
    unsigned ops;
    if (!of)
        return MPI_ERR_TYPE;
    if (program_op(op))
        return MPI_SUCCESS;
    if (op <= MPI_OP_NULL || op >= PREDEFINED || !reducer_of(of->base, &ops) || !(ops & OF(op)))
        return MPI_ERR_OP;
    /* Made of one predefined type without gaps: its elements are reduced. */
    return type == of->base || of->is_dense ? MPI_SUCCESS : MPI_ERR_OP;
}

bool op_commutes(MPI_Op op) {
    struct program_op *of = program_op(op);
    return !of || of->commutes;
}

void op_apply(MPI_Op op, const void *in, void *inout, int count, MPI_Datatype type) {
    struct program_op *of = program_op(op);
    struct type *layout = type_of(type);
    unsigned ops;
    if (of)
        of->function((void *)in, inout, &count, &type);
    else
        reducer_of(layout->base, &ops)(op, in, inout, count * (layout->size / type_of(layout->base)->size));
}

int MPI_Op_create(MPI_User_function *function, int commutes, MPI_Op *op) {
    int at = 0;
    while (at < program_op_count && program_ops[at].function)
        at++;
    if (at == program_op_count) {
        struct program_op *grown = realloc(program_ops, (at + 1) * sizeof *grown);
        if (!grown)
            return raise_error(MPI_COMM_WORLD, MPI_ERR_NO_MEM, "MPI_Op_create");
        program_ops = grown;
        program_op_count++;
    }
    program_ops[at] = (struct program_op){function, commutes != 0};
    *op = PREDEFINED + at;
    return MPI_SUCCESS;
}

int MPI_Op_free(MPI_Op *op) {
    struct program_op *of = program_op(*op);
    if (!of)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_OP, "MPI_Op_free");
    of->function = NULL;
    *op = MPI_OP_NULL;
    return MPI_SUCCESS;
}

int MPI_Reduce_local(const void *in, void *inout, int count, MPI_Datatype type, MPI_Op op) {
    int error = count < 0 ? MPI_ERR_COUNT : op_check(op, type);
    error = error ? error : check_elements(in, count, type_of(type));
    error = error ? error : check_elements(inout, count, type_of(type));
    if (error)
        return raise_error(MPI_COMM_WORLD, error, "MPI_Reduce_local");
    op_apply(op, in, inout, count, type);
    return MPI_SUCCESS;
}
