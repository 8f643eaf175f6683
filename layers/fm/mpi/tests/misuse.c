/* What a program may do at the edges, and what it must not do: the former works, the latter is an error, and
 * neither touches memory of others. Best run where the library was compiled with -fsanitize=address. */
#include <mpi.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(fact)                                                                                                   \
    do {                                                                                                              \
        if (!(fact)) {                                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #fact);                                                \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)
#define W MPI_COMM_WORLD

static int rank, size;

/* Adds the first and the last of a column of LENGTH. */
enum { LENGTH = 100, COLUMNS = 50 };
static void add_columns(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *count; i++)
        for (int k = 0; k < LENGTH; k++)
            ((double *)inout)[i + k * COLUMNS] += ((double *)in)[i + k * COLUMNS];
}

/* Columns side by side: each has most of its blocks beyond its bounds. */
static void reductions_of_resized_types(void) {
    static double in[LENGTH * COLUMNS], out[LENGTH * COLUMNS];
    MPI_Datatype column, narrow;
    MPI_Op op;
    MPI_Type_vector(LENGTH, 1, COLUMNS, MPI_DOUBLE, &column);
    MPI_Type_create_resized(column, 0, sizeof(double), &narrow);
    MPI_Type_commit(&narrow);
    MPI_Op_create(add_columns, 1, &op);
    for (int i = 0; i < LENGTH * COLUMNS; i++)
        in[i] = rank + i;
    for (int n = 1; n <= COLUMNS; n += 7) {
        memset(out, 0, sizeof out);
        CHECK(MPI_Reduce(in, out, n, narrow, op, 0, W) == 0);
        for (int i = 0; i < LENGTH * COLUMNS && rank == 0; i++)
            CHECK(out[i] == (i % COLUMNS < n ? size * (double)i + size * (size - 1) / 2.0 : 0));
        CHECK(MPI_Allreduce(in, out, n, narrow, op, W) == 0 && MPI_Scan(in, out, n, narrow, op, W) == 0);
    }
    MPI_Op_free(&op);
    MPI_Type_free(&column);
    MPI_Type_free(&narrow);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(W, &rank);
    MPI_Comm_size(W, &size);
    MPI_Comm_set_errhandler(W, MPI_ERRORS_RETURN);
    reductions_of_resized_types();
    CHECK(MPI_Finalize() == 0);
    printf("misuse: %d of %d: passed\n", rank, size);
    return 0;
}
