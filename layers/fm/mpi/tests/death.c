/* Ranks end without MPI_Finalize: calls of the last one return an error, and none waits for ever. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(fact)                                                                                                   \
    do {                                                                                                              \
        if (!(fact)) {                                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #fact);                                                \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)
#define W MPI_COMM_WORLD
enum { LONG = 8 << 20 };

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, value = 0, flag, index;
    MPI_Comm_rank(W, &rank);
    MPI_Comm_size(W, &size);
    MPI_Comm_set_errhandler(W, MPI_ERRORS_RETURN);
    char *buf = calloc(LONG, 1);
    MPI_Request requests[3];
    MPI_Status status;
    if (rank > 0) {
        MPI_Send(&rank, 1, MPI_INT, 0, 1, W);
        /* The data of this one is on its way when the rank ends. */
        MPI_Isend(buf, LONG, MPI_BYTE, 0, 2, W, &requests[0]);
        do
            MPI_Iprobe(0, 3, W, &flag, MPI_STATUS_IGNORE);
        while (!flag);
        _exit(0);
    }
    MPI_Irecv(buf, LONG, MPI_BYTE, 1, 2, W, &requests[0]);
    MPI_Irecv(&index, 1, MPI_INT, 1, 9, W, &requests[1]);
    MPI_Irecv(&index, 1, MPI_INT, MPI_ANY_SOURCE, 9, W, &requests[2]);
    MPI_Test(&requests[0], &flag, &status);
    for (int i = 1; i < size; i++)
        MPI_Send(NULL, 0, MPI_INT, i, 3, W);
    /* What was sent before is received. */
    for (int i = 1; i < size; i++)
        CHECK(MPI_Recv(&value, 1, MPI_INT, i, 1, W, &status) == MPI_SUCCESS && value == i);
    int error = requests[0] ? MPI_Wait(&requests[0], &status) : MPI_SUCCESS;
    CHECK(error == MPI_SUCCESS || error == MPI_ERR_OTHER);
    CHECK(MPI_Wait(&requests[1], &status) == MPI_ERR_OTHER && requests[1] == MPI_REQUEST_NULL);
    CHECK(MPI_Waitany(1, &requests[2], &index, &status) == MPI_ERR_OTHER);
    CHECK(MPI_Recv(&value, 1, MPI_INT, 1, 1, W, &status) == MPI_ERR_OTHER);
    CHECK(MPI_Probe(1, 4, W, &status) == MPI_ERR_OTHER && MPI_Probe(MPI_ANY_SOURCE, 4, W, &status) == MPI_ERR_OTHER);
    CHECK(MPI_Send(&value, 1, MPI_INT, 1, 4, W) == MPI_ERR_OTHER);
    CHECK(MPI_Ssend(&value, 1, MPI_INT, 1, 4, W) == MPI_ERR_OTHER);
    CHECK(MPI_Send(buf, LONG, MPI_BYTE, 1, 4, W) == MPI_ERR_OTHER);
    MPI_Irecv(&value, 1, MPI_INT, 1, 5, W, &requests[0]);
    do
        error = MPI_Test(&requests[0], &flag, &status);
    while (!flag);
    CHECK(error == MPI_ERR_OTHER);
    /* So do those that are polled. */
    for (int way = 0; way < 3; way++) {
        MPI_Irecv(&value, 1, MPI_INT, 1, 5, W, &requests[0]);
        flag = 0;
        do
            error = way == 0   ? MPI_Testany(1, requests, &index, &flag, &status)
                    : way == 1 ? MPI_Testsome(1, requests, &flag, &index, MPI_STATUSES_IGNORE)
                               : MPI_Testall(1, requests, &flag, MPI_STATUSES_IGNORE);
        while (!flag);
        CHECK(error == (way == 0 ? MPI_ERR_OTHER : MPI_ERR_IN_STATUS) && requests[0] == MPI_REQUEST_NULL);
    }
    do
        error = MPI_Iprobe(1, 4, W, &flag, &status);
    while (!error && !flag);
    CHECK(error == MPI_ERR_OTHER && !flag);
    CHECK(MPI_Barrier(W) == MPI_ERR_OTHER && MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_SUM, W) == MPI_ERR_OTHER);
    CHECK(MPI_Finalize() == MPI_SUCCESS);
    free(buf);
    printf("death: %d ranks: passed\n", size);
    return 0;
}
