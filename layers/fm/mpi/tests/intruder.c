/* The last rank forges messages of MPI: into a communicator that it is no member of, and, of a collective, shorter
 * ones and numbers out of range; and more than it may have with the first that no receive has taken, which test.sh
 * looks at. The first must not take them, or see errors. */
#include <fm.h>
#include <mpi.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
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

/* Of send.c, comm.c and coll.c: the handler of eager messages; the contexts of the first two communicators that a
 * program makes; the tags of collectives. */
enum { EAGER = 101, OTHERS = 4, PAIR = 6, BCAST = 1, ALLREDUCE = 3, ALLGATHER = 6 };

static void forge(int tag, unsigned context, const void *data, size_t bytes) {
    static char all[16008];
    memcpy(all, &tag, 4);
    memcpy(all + 4, &context, 4);
    memcpy(all + 8, data, bytes);
    FM_stream *stream = FM_begin_message(0, 8 + bytes, EAGER);
    CHECK(stream && FM_send_piece(stream, all, 8 + bytes) == 0 && FM_end_message(stream) == 0);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, value = 0, flag, go = 1;
    MPI_Comm_rank(W, &rank);
    MPI_Comm_size(W, &size);
    MPI_Comm_set_errhandler(W, MPI_ERRORS_RETURN);
    int last = size - 1;
    MPI_Comm others, pair, copy = MPI_COMM_NULL;
    MPI_Comm_split(W, rank == last ? MPI_UNDEFINED : 0, 0, &others);
    MPI_Comm_split(W, rank == 0 || rank == last ? 0 : MPI_UNDEFINED, 0, &pair);
    if (rank == last) {
        forge(7, OTHERS, &rank, 4);
        static char flood[16000];
        for (int i = 0; i < 300; i++)
            forge(77, 0, flood, sizeof flood);
        MPI_Recv(&go, 1, MPI_INT, 0, 1, W, MPI_STATUS_IGNORE);
        forge(7, OTHERS, &rank, 4);
        MPI_Send(&go, 1, MPI_INT, 0, 1, W);
        int part[4] = {0, 0, INT_MAX, 1};
        forge(ALLREDUCE, PAIR + 1, &rank, 0);
        forge(BCAST, PAIR + 1, &rank, 4);
        forge(ALLGATHER, PAIR + 1, part, sizeof part);
    } else if (rank == 0) {
        MPI_Request request;
        MPI_Status status;
        /* One message before its receive, one behind. */
        MPI_Irecv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 7, others, &request);
        MPI_Send(&go, 1, MPI_INT, last, 1, W);
        MPI_Recv(&go, 1, MPI_INT, last, 1, W, MPI_STATUS_IGNORE);
        CHECK(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, others, &flag, &status) == 0 && !flag);
        CHECK(MPI_Test(&request, &flag, &status) == 0 && !flag);
        go = 99;
        MPI_Send(&go, 1, MPI_INT, 0, 7, others);
        CHECK(MPI_Wait(&request, &status) == 0 && status.MPI_SOURCE == 0 && value == 99);
        static double in[100], out[100];
        CHECK(MPI_Allreduce(in, out, 100, MPI_DOUBLE, MPI_SUM, pair) == MPI_ERR_COUNT);
        CHECK(MPI_Bcast(in, 100, MPI_DOUBLE, 1, pair) == MPI_ERR_COUNT);
        CHECK(MPI_Comm_dup(pair, &copy) == MPI_ERR_INTERN && copy == MPI_COMM_NULL);
        /* Own ones are not used up. */
        CHECK(MPI_Comm_dup(MPI_COMM_SELF, &copy) == 0);
    }
    CHECK(MPI_Finalize() == 0);
    printf("intruder: %d of %d: passed\n", rank, size);
    return 0;
}
