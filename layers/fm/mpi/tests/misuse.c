/* What a program may do at the edges, and what it must not do: the former works, the latter is an error, and
 * neither touches memory of others. Best run where the library was compiled with -fsanitize=address. */
#include <fm.h>
#include <mpi.h>
#include <limits.h>
#include <stdbool.h>
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

/* The last to hold a communicator is a request that ends in an error. */
static void freed_communicators(void) {
    int two[2] = {1, 2}, one = 0;
    for (int way = 0; way < 3; way++) {
        MPI_Comm copy;
        MPI_Request request;
        MPI_Status status[1];
        CHECK(MPI_Comm_dup(W, &copy) == 0);
        MPI_Irecv(&one, 1, MPI_INT, rank, 5, copy, &request);
        MPI_Send(two, 2, MPI_INT, rank, 5, copy);
        MPI_Comm_free(&copy);
        int index, error = way == 0   ? MPI_Wait(&request, status)
                           : way == 1 ? MPI_Waitany(1, &request, &index, status)
                                      : MPI_Waitall(1, &request, status);
        CHECK(error == (way < 2 ? MPI_ERR_TRUNCATE : MPI_ERR_IN_STATUS) && status->MPI_ERROR == MPI_ERR_TRUNCATE);
        CHECK(status->MPI_SOURCE == rank && one == 1);
    }
}

static void freed_requests(void) {
    int value = 0, flag, index;
    MPI_Request request, copy, wrong = 12345;
    MPI_Irecv(&value, 1, MPI_INT, rank, 6, W, &request);
    copy = request;
    CHECK(MPI_Request_free(&request) == 0);
    CHECK(MPI_Wait(&copy, MPI_STATUS_IGNORE) == MPI_ERR_REQUEST && MPI_Cancel(&copy) == MPI_ERR_REQUEST);
    CHECK(MPI_Request_free(&copy) == MPI_ERR_REQUEST && MPI_Start(&copy) == MPI_ERR_REQUEST);
    CHECK(MPI_Test(&copy, &flag, MPI_STATUS_IGNORE) == MPI_ERR_REQUEST);
    CHECK(MPI_Waitany(1, &copy, &index, MPI_STATUS_IGNORE) == MPI_ERR_REQUEST && index == 0);
    CHECK(MPI_Wait(&wrong, MPI_STATUS_IGNORE) == MPI_ERR_REQUEST);
    index = 7;
    MPI_Send(&index, 1, MPI_INT, rank, 6, W);
    while (value != 7)
        MPI_Iprobe(rank, 6, W, &flag, MPI_STATUS_IGNORE);
}

static void sizes_and_buffers(void) {
    enum { MOST = INT_MAX };
    int small[4] = {0}, counts[64], n, position = 0;
    void *here = MPI_IN_PLACE;
    MPI_Datatype rows, more, tall, far;
    CHECK(MPI_Type_contiguous(MOST, MPI_LONG, &rows) == 0);
    CHECK(MPI_Type_contiguous(1 << 30, rows, &more) == MPI_ERR_ARG);
    CHECK(MPI_Type_contiguous(1 << 28, rows, &tall) == 0);
    CHECK(MPI_Type_create_resized(MPI_INT, 0, (MPI_Aint)1 << 40, &far) == 0);
    CHECK(MPI_Send(small, 1 << 4, tall, rank, 0, W) == MPI_ERR_COUNT);
    CHECK(MPI_Recv(small, 1 << 4, tall, rank, 0, W, MPI_STATUS_IGNORE) == MPI_ERR_COUNT);
    CHECK(MPI_Bsend(small, 1 << 4, tall, rank, 0, W) == MPI_ERR_COUNT);
    CHECK(MPI_Bcast(small, 1 << 24, far, 0, W) == MPI_ERR_COUNT);
    CHECK(MPI_Pack(small, 1 << 4, tall, small, 16, &position, W) == MPI_ERR_COUNT);
    CHECK(MPI_Pack_size(1 << 4, tall, W, &n) == MPI_ERR_COUNT);
    CHECK(MPI_Type_indexed(1, small, NULL, MPI_INT, &more) == MPI_ERR_ARG);
    /* Places beyond all memory; the products of the first three would be 0. */
    MPI_Datatype wide;
    MPI_Aint away[2] = {PTRDIFF_MIN + 1, PTRDIFF_MAX - 4};
    MPI_Datatype ints[2] = {MPI_INT, MPI_INT};
    CHECK(MPI_Type_create_resized(MPI_INT, 0, (MPI_Aint)1 << 56, &wide) == 0);
    CHECK(MPI_Type_vector(1, 1, 256, wide, &more) == MPI_ERR_ARG);
    CHECK(MPI_Type_create_hvector(5, 1, (MPI_Aint)1 << 62, MPI_INT, &more) == MPI_ERR_ARG);
    CHECK(MPI_Type_indexed(1, &(int){1}, &(int){256}, wide, &more) == MPI_ERR_ARG);
    CHECK(MPI_Type_create_struct(2, (int[]){1, 1}, away, ints, &more) == MPI_ERR_ARG);
    for (int i = 0; i < 64; i++)
        counts[i] = MOST;
    if (size > 1)
        CHECK(MPI_Reduce_scatter(small, small + 2, counts, MPI_CHAR, MPI_MAX, W) == MPI_ERR_COUNT);
    CHECK(MPI_Send(NULL, 1, MPI_INT, rank, 0, W) == MPI_ERR_BUFFER);
    CHECK(MPI_Send(here, 1, MPI_INT, rank, 0, W) == MPI_ERR_BUFFER);
    CHECK(MPI_Recv(NULL, 1, MPI_INT, rank, 0, W, MPI_STATUS_IGNORE) == MPI_ERR_BUFFER);
    CHECK(MPI_Send(NULL, 1, MPI_INT, MPI_PROC_NULL, 0, W) == 0);
    CHECK(MPI_Send(small, -1, MPI_INT, rank, 0, W) == MPI_ERR_COUNT);
    CHECK(MPI_Allreduce(small, NULL, 1, MPI_INT, MPI_SUM, W) == MPI_ERR_BUFFER);
    if (size > 1)
        CHECK(MPI_Reduce(here, small, 1, MPI_INT, MPI_SUM, (rank + 1) % size, W) == MPI_ERR_BUFFER &&
              MPI_Gather(here, 1, MPI_INT, small, 1, MPI_INT, (rank + 1) % size, W) == MPI_ERR_BUFFER);
    CHECK(MPI_Sendrecv_replace(NULL, 1, MPI_INT, rank, 0, rank, 0, W, MPI_STATUS_IGNORE) == MPI_ERR_BUFFER);
    /* Addresses: the buffer is null, and there is one. */
    MPI_Aint at;
    MPI_Datatype absolute;
    MPI_Get_address(&small[1], &at);
    small[1] = 5;
    CHECK(MPI_Type_create_struct(1, &(int){1}, &at, &(MPI_Datatype){MPI_INT}, &absolute) == 0);
    MPI_Sendrecv(MPI_BOTTOM, 1, absolute, rank, 0, &n, 1, MPI_INT, rank, 0, W, MPI_STATUS_IGNORE);
    CHECK(n == 5);
}

/* An array of structures, sent with a type that was not resized. */
static void structures(void) {
    struct { double d; char c; } out[5], in[5];
    MPI_Datatype record;
    MPI_Aint places[2] = {0, 8}, lb, extent;
    MPI_Type_create_struct(2, (int[]){1, 1}, places, (MPI_Datatype[]){MPI_DOUBLE, MPI_CHAR}, &record);
    CHECK(MPI_Type_get_extent(record, &lb, &extent) == 0 && lb == 0 && extent == sizeof out[0]);
    for (int i = 0; i < 5; i++) {
        out[i].d = i + 0.5;
        out[i].c = (char)i;
    }
    MPI_Sendrecv(out, 5, record, rank, 0, in, 5, record, rank, 0, W, MPI_STATUS_IGNORE);
    for (int i = 0; i < 5; i++)
        CHECK(in[i].d == i + 0.5 && in[i].c == i);
    int dims[] = {0, 0, 0}, given[] = {0, 2, 0};
    CHECK(MPI_Dims_create(6, 3, dims) == 0 && dims[0] == 3 && dims[1] == 2 && dims[2] == 1);
    CHECK(MPI_Dims_create(12, 3, given) == 0 && given[0] == 3 && given[1] == 2 && given[2] == 2);
}

/* With less credit than a short message has, and nothing that is taken: sends return at once. */
static void little_credit(void) {
    enum { N = 200, BYTES = 400 };
    static char in[N][BYTES], out[N][BYTES];
    MPI_Request requests[2 * N];
    FM_set_parameter(FM_TIME_LIMIT_MS, 1000);
    for (int i = 0; i < N; i++) {
        memset(out[i], i, BYTES);
        CHECK(MPI_Isend(out[i], BYTES, MPI_CHAR, rank, 8, W, &requests[i]) == 0);
    }
    FM_set_parameter(FM_TIME_LIMIT_MS, 60000);
    for (int i = 0; i < N; i++)
        MPI_Irecv(in[i], BYTES, MPI_CHAR, rank, 8, W, &requests[N + i]);
    CHECK(MPI_Waitall(2 * N, requests, MPI_STATUSES_IGNORE) == 0 && memcmp(in, out, sizeof in) == 0);
}

int main(int argc, char **argv) {
    bool is_small = argc > 1 && strcmp(argv[1], "small") == 0;
    if (is_small)
        FM_set_parameter(FM_CREDIT_BYTES, 768);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(W, &rank);
    MPI_Comm_size(W, &size);
    MPI_Comm_set_errhandler(W, MPI_ERRORS_RETURN);
    if (is_small)
        little_credit();
    reductions_of_resized_types();
    freed_communicators();
    freed_requests();
    sizes_and_buffers();
    structures();
    CHECK(MPI_Finalize() == 0);
    printf("misuse: %d of %d: passed\n", rank, size);
    return 0;
}
