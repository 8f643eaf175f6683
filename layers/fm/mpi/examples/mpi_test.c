/* Every call of mpi.h, with checks of its results. For one rank or more; rank 0 prints the groups that passed. */
#include <mpi.h>
#include <complex.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

#define CHECK(fact)                                                                                                   \
    do {                                                                                                              \
        if (!(fact)) {                                                                                                \
            fprintf(stderr, "rank %d of %d: %s:%d: %s\n", rank, size, __FILE__, __LINE__, #fact);                     \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                             \
        }                                                                                                             \
    } while (0)

#define W MPI_COMM_WORLD
#define NEXT ((rank + 1) % size)
#define BEFORE ((rank + size - 1) % size)

/* Bytes that tell their place and sender. */
static void fill(unsigned char *buf, size_t bytes, int seed) {
    for (size_t i = 0; i < bytes; i++)
        buf[i] = (unsigned char)(i * 7 + i / 251 + (size_t)seed * 31);
}

static int is_filled(const unsigned char *buf, size_t bytes, int seed) {
    for (size_t i = 0; i < bytes; i++)
        if (buf[i] != (unsigned char)(i * 7 + i / 251 + (size_t)seed * 31))
            return 0;
    return 1;
}

static const int lengths[] = {0, 1, 8, 44, 45, 100, 504, 505, 513, 4000, 8183, 8184, 8185, 8192, 8193, 16383,
                              16384, 16385, 24576, 65536, 100001, 1 << 20, 3000001};
#define LENGTHS ((int)(sizeof lengths / sizeof *lengths))

static void about_the_library(void) {
    int flag, version, subversion, len, error_class, provided;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Aint a, b;
    int pair[2];
    CHECK(MPI_Initialized(&flag) == MPI_SUCCESS && flag);
    CHECK(MPI_Finalized(&flag) == MPI_SUCCESS && !flag);
    CHECK(MPI_Get_version(&version, &subversion) == MPI_SUCCESS && version == MPI_VERSION);
    CHECK(MPI_Get_library_version(text, &len) == MPI_SUCCESS && len == (int)strlen(text));
    CHECK(MPI_Get_processor_name(text, &len) == MPI_SUCCESS && len == (int)strlen(text));
    CHECK(MPI_Error_string(MPI_ERR_TRUNCATE, text, &len) == MPI_SUCCESS && len == (int)strlen(text));
    CHECK(MPI_Error_class(MPI_ERR_TAG, &error_class) == MPI_SUCCESS && error_class == MPI_ERR_TAG);
    CHECK(MPI_Query_thread(&provided) == MPI_SUCCESS && provided == MPI_THREAD_FUNNELED);
    CHECK(MPI_Is_thread_main(&flag) == MPI_SUCCESS && flag);
    CHECK(MPI_Get_address(&pair[0], &a) == MPI_SUCCESS && MPI_Get_address(&pair[1], &b) == MPI_SUCCESS);
    CHECK(b - a == sizeof(int));
    double began = MPI_Wtime();
    CHECK(MPI_Wtick() > 0 && MPI_Wtime() >= began);
    void *memory;
    CHECK(MPI_Alloc_mem(100, MPI_INFO_NULL, &memory) == MPI_SUCCESS && MPI_Free_mem(memory) == MPI_SUCCESS);
    int *bound;
    CHECK(MPI_Comm_get_attr(W, MPI_TAG_UB, &bound, &flag) == MPI_SUCCESS && flag && *bound >= 32767);
    CHECK(MPI_Pcontrol(1) == MPI_SUCCESS);
}

/* Each length around the ring, by each way to send, received before and after it came. */
static void lengths_and_ways(void) {
    unsigned char *out = malloc(3000001), *in = malloc(3000002);
    for (int i = 0; i < LENGTHS; i++)
        for (int way = 0; way < 4; way++) {
            int n = lengths[i];
            MPI_Status status;
            MPI_Request request[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
            fill(out, n, rank + way);
            memset(in, 0, n + 1);
            if (way == 0) {
                CHECK(MPI_Sendrecv(out, n, MPI_BYTE, NEXT, i, in, n, MPI_BYTE, BEFORE, i, W, &status) == 0);
            } else if (way == 1) {
                /* Posted before the message is sent. */
                MPI_Irecv(in, n, MPI_BYTE, BEFORE, i, W, &request[0]);
                MPI_Barrier(W);
                MPI_Isend(out, n, MPI_BYTE, NEXT, i, W, &request[1]);
                CHECK(MPI_Wait(&request[0], &status) == 0 && MPI_Wait(&request[1], MPI_STATUS_IGNORE) == 0);
            } else if (way == 2) {
                /* Unexpected: it is there, or its question is. */
                MPI_Isend(out, n, MPI_BYTE, NEXT, i, W, &request[1]);
                MPI_Probe(BEFORE, i, W, &status);
                int count;
                MPI_Get_count(&status, MPI_BYTE, &count);
                CHECK(count == n && status.MPI_SOURCE == BEFORE && status.MPI_TAG == i);
                CHECK(MPI_Recv(in, n, MPI_BYTE, BEFORE, i, W, &status) == 0 && MPI_Wait(&request[1], &status) == 0);
                status = (MPI_Status){BEFORE, i, 0, 0, n};
            } else {
                MPI_Issend(out, n, MPI_BYTE, NEXT, i, W, &request[1]);
                CHECK(MPI_Recv(in, n + 1, MPI_BYTE, BEFORE, i, W, &status) == 0);
                CHECK(MPI_Wait(&request[1], MPI_STATUS_IGNORE) == 0);
            }
            int count = -1;
            MPI_Get_count(&status, MPI_BYTE, &count);
            CHECK(count == n && status.MPI_SOURCE == BEFORE && status.MPI_TAG == i);
            CHECK(is_filled(in, n, BEFORE + way));
            CHECK(request[0] == MPI_REQUEST_NULL && request[1] == MPI_REQUEST_NULL);
        }
    free(out);
    free(in);
}

static void blocking_ways(void) {
    int value = rank, got = -1, n = 50000;
    int *many = calloc(n, sizeof *many);
    for (int from = 0; from < size; from++) {
        int to = (from + 1) % size;
        if (to == from)
            break;
        if (rank == from) {
            MPI_Send(&value, 1, MPI_INT, to, 1, W);
            MPI_Ssend(&value, 1, MPI_INT, to, 2, W);
            MPI_Rsend(&value, 1, MPI_INT, to, 3, W);
            for (int i = 0; i < n; i++)
                many[i] = i + from;
            MPI_Send(many, n, MPI_INT, to, 4, W);
            MPI_Ssend(NULL, 0, MPI_INT, to, 5, W);
        } else if (rank == to) {
            for (int tag = 1; tag <= 3; tag++) {
                CHECK(MPI_Recv(&got, 1, MPI_INT, from, tag, W, MPI_STATUS_IGNORE) == 0 && got == from);
                got = -1;
            }
            MPI_Recv(many, n, MPI_INT, from, 4, W, MPI_STATUS_IGNORE);
            for (int i = 0; i < n; i++)
                CHECK(many[i] == i + from);
            MPI_Recv(NULL, 0, MPI_INT, from, 5, W, MPI_STATUS_IGNORE);
        }
    }
    char buffer[1000];
    void *old;
    MPI_Buffer_attach(buffer, sizeof buffer);
    for (int i = 0; i < 30; i++) {
        value = rank + i;
        CHECK(MPI_Bsend(&value, 1, MPI_INT, NEXT, 6, W) == 0);
    }
    CHECK(MPI_Bsend(many, n, MPI_INT, NEXT, 7, W) == 0);
    for (int i = 0; i < 30; i++)
        CHECK(MPI_Recv(&got, 1, MPI_INT, BEFORE, 6, W, MPI_STATUS_IGNORE) == 0 && got == BEFORE + i);
    CHECK(MPI_Recv(many, n, MPI_INT, BEFORE, 7, W, MPI_STATUS_IGNORE) == 0);
    MPI_Barrier(W);
    CHECK(MPI_Buffer_detach(&old, &n) == 0 && old == buffer && n == sizeof buffer);
    int both[3] = {rank, rank * 2, rank * 3};
    MPI_Status status;
    MPI_Sendrecv_replace(both, 3, MPI_INT, NEXT, 9, BEFORE, 9, W, &status);
    CHECK(both[0] == BEFORE && both[1] == BEFORE * 2 && both[2] == BEFORE * 3 && status.MPI_SOURCE == BEFORE);
    free(many);
}

/* Messages of one sender arrive in order, whatever their lengths; those of any tag take the first. */
static void order(void) {
    enum { N = 200 };
    int total = 0;
    static int in[6000], out[N][6000];
    MPI_Request requests[N];
    for (int i = 0; i < N; i++) {
        int n = i % 7 == 3 ? 6000 : i % 5 == 2 ? 3000 : 1 + i % 3;
        for (int k = 0; k < n; k++)
            out[i][k] = i * 10000 + k;
        MPI_Isend(out[i], n, MPI_INT, NEXT, i % 4, W, &requests[i]);
    }
    for (int i = 0; i < N; i++) {
        MPI_Status status;
        int n = i % 7 == 3 ? 6000 : i % 5 == 2 ? 3000 : 1 + i % 3, count;
        if (i % 2)
            MPI_Recv(in, 6000, MPI_INT, size == 1 ? MPI_ANY_SOURCE : BEFORE, MPI_ANY_TAG, W, &status);
        else
            MPI_Recv(in, 6000, MPI_INT, BEFORE, i % 4, W, &status);
        MPI_Get_count(&status, MPI_INT, &count);
        CHECK(count == n && status.MPI_TAG == i % 4 && in[0] == i * 10000 && in[n - 1] == i * 10000 + n - 1);
        total += count;
    }
    CHECK(MPI_Waitall(N, requests, MPI_STATUSES_IGNORE) == 0 && total > 0);
    /* By tag, the other way around. */
    for (int i = 0; i < 50; i++)
        MPI_Isend(&out[i][0], 1, MPI_INT, NEXT, 100 + i, W, &requests[i]);
    for (int i = 49; i >= 0; i--) {
        MPI_Recv(in, 1, MPI_INT, BEFORE, 100 + i, W, MPI_STATUS_IGNORE);
        CHECK(in[0] == i * 10000);
    }
    MPI_Waitall(50, requests, MPI_STATUSES_IGNORE);
    MPI_Barrier(W);
}

/* Receives of any source and of one source, in the order in which they were posted. */
static void wildcards(void) {
    enum { N = 100 };
    if (rank == 0) {
        int *seen = calloc(size, sizeof *seen), value[2];
        for (int i = 0; i < N * (size - 1); i++) {
            MPI_Status status;
            int flag, count;
            if (i % 3 == 0)
                MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, W, &status);
            MPI_Recv(value, 2, MPI_INT, i % 3 ? MPI_ANY_SOURCE : status.MPI_SOURCE, MPI_ANY_TAG, W, &status);
            MPI_Get_count(&status, MPI_INT, &count);
            CHECK(count == 2 && value[0] == status.MPI_SOURCE && status.MPI_TAG == value[1] % 10);
            CHECK(value[1] == seen[value[0]]++);
            MPI_Iprobe(MPI_ANY_SOURCE, 12345, W, &flag, &status);
            CHECK(!flag);
        }
        free(seen);
    } else {
        for (int i = 0; i < N; i++) {
            int value[2] = {rank, i};
            MPI_Send(value, 2, MPI_INT, 0, i % 10, W);
        }
    }
    MPI_Barrier(W);
    int a = -1, b = -1, c = -1, values[3] = {1, 2, 3};
    MPI_Request requests[3];
    MPI_Irecv(&a, 1, MPI_INT, MPI_ANY_SOURCE, 7, W, &requests[0]);
    MPI_Irecv(&b, 1, MPI_INT, BEFORE, 7, W, &requests[1]);
    MPI_Irecv(&c, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, W, &requests[2]);
    MPI_Barrier(W);
    for (int i = 0; i < 3; i++)
        MPI_Send(&values[i], 1, MPI_INT, NEXT, 7, W);
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    CHECK(a == 1 && b == 2 && c == 3);
    MPI_Barrier(W);
    /* Iprobe sees what has come, and takes nothing. */
    int flag = 0;
    MPI_Request send;
    MPI_Isend(&values[1], 1, MPI_INT, NEXT, 8, W, &send);
    MPI_Status status;
    while (!flag)
        MPI_Iprobe(BEFORE, 8, W, &flag, &status);
    CHECK(status.MPI_SOURCE == BEFORE && status.MPI_TAG == 8);
    MPI_Recv(&a, 1, MPI_INT, BEFORE, 8, W, MPI_STATUS_IGNORE);
    CHECK(a == 2 && MPI_Wait(&send, MPI_STATUS_IGNORE) == 0);
}

static void truncation(void) {
    static unsigned char out[40000], in[40001];
    MPI_Errhandler handler;
    CHECK(MPI_Comm_get_errhandler(W, &handler) == 0 && handler == MPI_ERRORS_ARE_FATAL);
    MPI_Comm_set_errhandler(W, MPI_ERRORS_RETURN);
    const int sent[] = {100, 5000, 12000, 40000};
    for (int i = 0; i < 4; i++)
        for (int room = 0; room < 2; room++)
            for (int before = 0; before < 2; before++) {
                MPI_Request requests[2];
                MPI_Status status;
                int n = room ? sent[i] / 2 : 0, count;
                fill(out, sent[i], rank);
                in[n] = 99;
                if (before)
                    MPI_Irecv(in, n, MPI_BYTE, BEFORE, 1, W, &requests[0]);
                MPI_Barrier(W);
                MPI_Isend(out, sent[i], MPI_BYTE, NEXT, 1, W, &requests[1]);
                if (!before) {
                    MPI_Probe(BEFORE, 1, W, &status);
                    MPI_Irecv(in, n, MPI_BYTE, BEFORE, 1, W, &requests[0]);
                }
                CHECK(MPI_Wait(&requests[0], &status) == MPI_ERR_TRUNCATE);
                MPI_Get_count(&status, MPI_BYTE, &count);
                CHECK(status.MPI_ERROR == MPI_ERR_TRUNCATE && count == n && is_filled(in, n, BEFORE) && in[n] == 99);
                CHECK(MPI_Wait(&requests[1], &status) == MPI_SUCCESS);
                /* The next message is whole. */
                int value = rank;
                MPI_Sendrecv(&value, 1, MPI_INT, NEXT, 2, &count, 1, MPI_INT, BEFORE, 2, W, &status);
                CHECK(count == BEFORE);
            }
    int value = 0;
    MPI_Request request;
    CHECK(MPI_Send(&value, 1, MPI_INT, size, 0, W) == MPI_ERR_RANK);
    CHECK(MPI_Send(&value, 1, MPI_INT, 0, -5, W) == MPI_ERR_TAG);
    CHECK(MPI_Send(&value, -1, MPI_INT, 0, 0, W) == MPI_ERR_COUNT);
    CHECK(MPI_Send(&value, 1, 9999, 0, 0, W) == MPI_ERR_TYPE);
    CHECK(MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_NULL) == MPI_ERR_COMM);
    CHECK(MPI_Irecv(&value, 1, MPI_INT, -7, 0, W, &request) == MPI_ERR_RANK && request == MPI_REQUEST_NULL);
    CHECK(MPI_Bcast(&value, 1, MPI_INT, size, W) == MPI_ERR_ROOT);
    CHECK(MPI_Reduce(&value, &value, 1, MPI_DOUBLE, MPI_BAND, 0, W) == MPI_ERR_OP);
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    CHECK(MPI_Errhandler_set(W, MPI_ERRORS_ARE_FATAL) == 0);
    MPI_Barrier(W);
}

static void many_requests(void) {
    enum { N = 3000, BIG = 24, LONG = 150000 };
    static int out[N], in[N];
    MPI_Request *requests = malloc(2 * N * sizeof *requests);
    MPI_Status *statuses = malloc(2 * N * sizeof *statuses);
    for (int i = 0; i < N; i++) {
        out[i] = rank * N + i;
        MPI_Irecv(&in[i], 1, MPI_INT, BEFORE, i % 50, W, &requests[i]);
        MPI_Isend(&out[i], 1, MPI_INT, NEXT, i % 50, W, &requests[N + i]);
    }
    CHECK(MPI_Waitall(2 * N, requests, statuses) == 0);
    for (int i = 0; i < N; i++)
        CHECK(in[i] == BEFORE * N + i && statuses[i].MPI_TAG == i % 50 && statuses[i].MPI_SOURCE == BEFORE);
    /* Long ones both ways at once, to all. */
    unsigned char *from = malloc(LONG), *to = calloc((size_t)BIG * size, LONG);
    fill(from, LONG, rank);
    int n = 0;
    for (int i = 0; i < BIG; i++)
        for (int peer = 0; peer < size; peer++)
            MPI_Isend(from, LONG, MPI_BYTE, peer, i, W, &requests[n++]);
    for (int i = BIG - 1; i >= 0; i--)
        for (int peer = 0; peer < size; peer++)
            MPI_Irecv(to + (size_t)(i * size + peer) * LONG, LONG, MPI_BYTE, peer, i, W, &requests[n++]);
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < BIG * size; i++)
        CHECK(is_filled(to + (size_t)i * LONG, LONG, i % size));
    /* Unexpected messages beyond what a sender may have with a receiver: it asks then. */
    n = 0;
    for (int i = 0; i < 400; i++)
        MPI_Isend(from, 10000, MPI_BYTE, NEXT, i, W, &requests[n++]);
    MPI_Barrier(W);
    for (int i = 399; i >= 0; i--) {
        MPI_Recv(to, 10000, MPI_BYTE, BEFORE, i, W, MPI_STATUS_IGNORE);
        CHECK(is_filled(to, 10000, BEFORE));
    }
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    free(from);
    free(to);
    free(requests);
    free(statuses);
}

static void waiting(void) {
    enum { N = 20 };
    int in[N], out[N], seen = 0, flag, index, done, indices[N];
    MPI_Request receives[N], sends[N];
    MPI_Status status, statuses[N];
    for (int turn = 0; turn < 6; turn++) {
        MPI_Barrier(W);
        for (int i = 0; i < N; i++) {
            out[i] = i;
            in[i] = -1;
            MPI_Irecv(&in[i], 1, MPI_INT, BEFORE, i, W, &receives[i]);
        }
        CHECK(MPI_Testall(N, receives, &flag, statuses) == 0 && !flag);
        MPI_Barrier(W);
        for (int i = N - 1; i >= 0; i--)
            MPI_Isend(&out[i], 1, MPI_INT, NEXT, i, W, &sends[i]);
        seen = 0;
        if (turn == 0) {
            for (int i = 0; i < N; i++) {
                CHECK(MPI_Waitany(N, receives, &index, &status) == 0 && index != MPI_UNDEFINED);
                CHECK(in[index] == index && status.MPI_TAG == index && receives[index] == MPI_REQUEST_NULL);
            }
            CHECK(MPI_Waitany(N, receives, &index, &status) == 0 && index == MPI_UNDEFINED);
        } else if (turn == 1) {
            while (seen < N) {
                CHECK(MPI_Waitsome(N, receives, &done, indices, statuses) == 0 && done > 0);
                for (int i = 0; i < done; i++)
                    CHECK(in[indices[i]] == indices[i] && statuses[i].MPI_TAG == indices[i]);
                seen += done;
            }
            CHECK(MPI_Waitsome(N, receives, &done, indices, statuses) == 0 && done == MPI_UNDEFINED);
        } else if (turn == 2) {
            for (int i = 0; i < N; i++)
                for (flag = 0; !flag;)
                    CHECK(MPI_Test(&receives[i], &flag, &status) == 0);
            CHECK(status.MPI_TAG == N - 1 && MPI_Test(&receives[0], &flag, &status) == 0 && flag);
        } else if (turn == 3) {
            for (flag = 0; !flag;)
                CHECK(MPI_Testall(N, receives, &flag, statuses) == 0);
            CHECK(statuses[3].MPI_TAG == 3);
        } else if (turn == 4) {
            while (seen < N) {
                CHECK(MPI_Testany(N, receives, &index, &flag, &status) == 0);
                if (flag)
                    CHECK(in[index] == index);
                seen += flag;
            }
            CHECK(MPI_Testany(N, receives, &index, &flag, &status) == 0 && flag && index == MPI_UNDEFINED);
        } else {
            while (seen < N) {
                CHECK(MPI_Testsome(N, receives, &done, indices, statuses) == 0 && done >= 0);
                seen += done;
            }
        }
        CHECK(MPI_Waitall(N, sends, MPI_STATUSES_IGNORE) == 0);
        for (int i = 0; i < N; i++)
            CHECK(in[i] == i && receives[i] == MPI_REQUEST_NULL);
    }
    /* Freed while it is on its way; cancelled before anything came; persistent. */
    static int value[50000];
    value[49999] = rank;
    MPI_Request request, both[2];
    MPI_Isend(value, 50000, MPI_INT, NEXT, 77, W, &request);
    CHECK(MPI_Request_free(&request) == 0 && request == MPI_REQUEST_NULL);
    static int got[50000];
    MPI_Recv(got, 50000, MPI_INT, BEFORE, 77, W, MPI_STATUS_IGNORE);
    CHECK(got[49999] == BEFORE);
    MPI_Barrier(W);
    MPI_Irecv(got, 1, MPI_INT, BEFORE, 78, W, &request);
    CHECK(MPI_Cancel(&request) == 0 && MPI_Wait(&request, &status) == 0);
    CHECK(MPI_Test_cancelled(&status, &flag) == 0 && flag);
    MPI_Send_init(&out[0], 1, MPI_INT, NEXT, 79, W, &both[0]);
    MPI_Recv_init(&in[0], 1, MPI_INT, BEFORE, 79, W, &both[1]);
    for (int i = 0; i < 5; i++) {
        out[0] = rank + i;
        CHECK(i % 2 ? MPI_Startall(2, both) == 0 : MPI_Start(&both[0]) == 0 && MPI_Start(&both[1]) == 0);
        CHECK(MPI_Waitall(2, both, MPI_STATUSES_IGNORE) == 0 && in[0] == BEFORE + i && both[0] && both[1]);
    }
    CHECK(MPI_Request_free(&both[0]) == 0 && MPI_Request_free(&both[1]) == 0);
    MPI_Ssend_init(&out[0], 1, MPI_INT, MPI_PROC_NULL, 79, W, &both[0]);
    CHECK(MPI_Start(&both[0]) == 0 && MPI_Wait(&both[0], &status) == 0 && MPI_Request_free(&both[0]) == 0);
    MPI_Irsend(&out[0], 1, MPI_INT, MPI_PROC_NULL, 1, W, &request);
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == 0);
    CHECK(MPI_Recv(in, 1, MPI_INT, MPI_PROC_NULL, 1, W, &status) == 0 && status.MPI_SOURCE == MPI_PROC_NULL);
    CHECK(MPI_Get_count(&status, MPI_INT, &done) == 0 && done == 0);
}

/* To itself, also in MPI_COMM_SELF. */
static void self(void) {
    MPI_Comm comms[] = {W, MPI_COMM_SELF};
    static int out[60000], in[60000];
    for (int c = 0; c < 2; c++)
        for (int n = 1; n <= 60000; n *= 39) {
            int me = c ? 0 : rank;
            MPI_Request request;
            for (int i = 0; i < n; i++)
                out[i] = i + rank + n;
            MPI_Isend(out, n, MPI_INT, me, 5, comms[c], &request);
            MPI_Recv(in, n, MPI_INT, MPI_ANY_SOURCE, 5, comms[c], MPI_STATUS_IGNORE);
            CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == 0 && memcmp(in, out, n * sizeof(int)) == 0);
            in[0] = -1;
            MPI_Sendrecv(out, n, MPI_INT, me, 6, in, n, MPI_INT, me, 6, comms[c], MPI_STATUS_IGNORE);
            CHECK(memcmp(in, out, n * sizeof(int)) == 0);
        }
    int sum = 0;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_SELF);
    CHECK(sum == rank && MPI_Barrier(MPI_COMM_SELF) == 0);
}

static void types(void) {
    int n;
    MPI_Aint lb, extent;
    CHECK(MPI_Type_size(MPI_DOUBLE_INT, &n) == 0 && n == 12);
    CHECK(MPI_Type_get_extent(MPI_DOUBLE_INT, &lb, &extent) == 0 && lb == 0 && extent == 16);
    const MPI_Datatype all[] = {MPI_CHAR, MPI_SHORT, MPI_INT, MPI_LONG, MPI_LONG_LONG, MPI_FLOAT, MPI_DOUBLE,
                                MPI_UNSIGNED_CHAR, MPI_UNSIGNED_SHORT, MPI_UNSIGNED, MPI_UNSIGNED_LONG,
                                MPI_UNSIGNED_LONG_LONG, MPI_BYTE, MPI_INT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T,
                                MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T, MPI_C_BOOL, MPI_LONG_DOUBLE};
    const size_t sizes[] = {1, sizeof(short), sizeof(int), sizeof(long), 8, 4, 8, 1, sizeof(short), sizeof(int),
                            sizeof(long), 8, 1, 1, 2, 4, 8, 1, 2, 4, 8, sizeof(bool), sizeof(long double)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK(MPI_Type_size(all[i], &n) == 0 && (size_t)n == sizes[i]);

    /* Columns of a matrix: short blocks, rows of blocks, and a layout inside of a layout. */
    enum { ROWS = 700, COLUMNS = 9 };
    static double out[ROWS][COLUMNS], in[ROWS][COLUMNS];
    MPI_Datatype column, two, rows, pair, both;
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_DOUBLE, &column);
    MPI_Type_vector(ROWS, 2, COLUMNS, MPI_DOUBLE, &two);
    MPI_Type_contiguous(COLUMNS, MPI_DOUBLE, &rows);
    MPI_Type_contiguous(2, rows, &pair);
    MPI_Type_create_resized(column, 0, sizeof(double), &both);
    MPI_Datatype *made[] = {&column, &two, &rows, &pair, &both};
    for (int i = 0; i < 5; i++)
        CHECK(MPI_Type_commit(made[i]) == 0);
    CHECK(MPI_Type_size(two, &n) == 0 && n == ROWS * 16);
    CHECK(MPI_Type_get_extent(column, &lb, &extent) == 0);
    CHECK(lb == 0 && extent == (MPI_Aint)(((ROWS - 1) * COLUMNS + 1) * sizeof(double)));
    CHECK(MPI_Type_size(pair, &n) == 0 && n == 2 * COLUMNS * 8);
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < COLUMNS; k++)
            out[i][k] = rank * 1e6 + i * 100 + k;
    for (int way = 0; way < 3; way++) {
        memset(in, 0, sizeof in);
        MPI_Request request;
        MPI_Status status;
        /* A column to a column; to contiguous; three columns by a resized type. */
        if (way == 0) {
            MPI_Isend(&out[0][3], 1, column, NEXT, 1, W, &request);
            MPI_Recv(&in[0][5], 1, column, BEFORE, 1, W, &status);
        } else if (way == 1) {
            MPI_Isend(&out[0][1], 1, two, NEXT, 1, W, &request);
            MPI_Recv(in, ROWS * 2, MPI_DOUBLE, BEFORE, 1, W, &status);
        } else {
            MPI_Isend(&out[0][2], 3, both, NEXT, 1, W, &request);
            MPI_Recv(&in[0][0], 3, both, BEFORE, 1, W, &status);
        }
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Get_count(&status, way == 0 ? column : way == 1 ? MPI_DOUBLE : both, &n);
        CHECK(n == (way == 0 ? 1 : way == 1 ? ROWS * 2 : 3));
        const double *flat = &in[0][0];
        for (int i = 0; i < ROWS; i++)
            for (int k = 0; k < COLUMNS; k++) {
                double base = BEFORE * 1e6 + i * 100;
                if (way == 0)
                    CHECK(in[i][k] == (k == 5 ? base + 3 : 0));
                else if (way == 1)
                    CHECK(k > 1 || flat[2 * i + k] == base + 1 + k);
                else
                    CHECK(in[i][k] == (k < 3 ? base + 2 + k : 0));
            }
    }
    MPI_Sendrecv(out, ROWS / 2, pair, NEXT, 2, in, ROWS, rows, BEFORE, 2, W, MPI_STATUS_IGNORE);
    CHECK(in[ROWS - 1][COLUMNS - 1] == BEFORE * 1e6 + (ROWS - 1) * 100 + COLUMNS - 1);
    /* A type that is freed while it is used. */
    MPI_Request request;
    MPI_Isend(&out[0][3], 1, column, NEXT, 3, W, &request);
    CHECK(MPI_Type_free(&column) == 0 && column == MPI_DATATYPE_NULL);
    MPI_Recv(in, ROWS, MPI_DOUBLE, BEFORE, 3, W, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK((&in[0][0])[ROWS - 1] == BEFORE * 1e6 + (ROWS - 1) * 100 + 3);
    for (int i = 1; i < 5; i++)
        CHECK(MPI_Type_free(made[i]) == 0);

    /* Structures, indices, packing. */
    struct { char c; double d[2]; int i; } one[3], got[3];
    MPI_Datatype parts[] = {MPI_CHAR, MPI_DOUBLE, MPI_INT}, record, spots, blocks, copy, steps;
    int counts[] = {1, 2, 1};
    MPI_Aint places[] = {(char *)&one[0].c - (char *)one, (char *)one[0].d - (char *)one,
                         (char *)&one[0].i - (char *)one};
    MPI_Datatype plain;
    MPI_Type_create_struct(3, counts, places, parts, &plain);
    MPI_Type_create_resized(plain, 0, sizeof one[0], &record);
    MPI_Type_commit(&record);
    memset(got, 0, sizeof got);
    for (int i = 0; i < 3; i++) {
        one[i].c = (char)('a' + i);
        one[i].d[0] = i;
        one[i].d[1] = i + 0.5;
        one[i].i = rank * 10 + i;
    }
    MPI_Sendrecv(one, 3, record, NEXT, 4, got, 3, record, BEFORE, 4, W, MPI_STATUS_IGNORE);
    for (int i = 0; i < 3; i++)
        CHECK(got[i].c == 'a' + i && got[i].d[1] == i + 0.5 && got[i].i == BEFORE * 10 + i);
    int spot_counts[] = {2, 1}, spot_places[] = {5, 1}, numbers[10], some[10] = {0}, position = 0;
    for (int i = 0; i < 10; i++)
        numbers[i] = i;
    MPI_Type_indexed(2, spot_counts, spot_places, MPI_INT, &spots);
    MPI_Type_create_indexed_block(2, 1, spot_places, MPI_INT, &blocks);
    MPI_Type_create_hvector(2, 1, 12, MPI_INT, &steps);
    MPI_Type_dup(spots, &copy);
    MPI_Sendrecv(numbers, 1, copy, rank, 5, some, 3, MPI_INT, rank, 5, W, MPI_STATUS_IGNORE);
    CHECK(some[0] == 5 && some[1] == 6 && some[2] == 1);
    MPI_Sendrecv(numbers, 1, blocks, rank, 5, some, 3, MPI_INT, rank, 5, W, MPI_STATUS_IGNORE);
    CHECK(some[0] == 5 && some[1] == 1);
    char packed[100];
    CHECK(MPI_Pack_size(1, steps, W, &n) == 0 && n == 8);
    MPI_Pack(numbers, 1, steps, packed, 100, &position, W);
    MPI_Pack(numbers, 1, spots, packed, 100, &position, W);
    CHECK(position == 20);
    position = 0;
    MPI_Unpack(packed, 20, &position, some, 5, MPI_INT, W);
    CHECK(some[0] == 0 && some[1] == 3 && some[2] == 5 && some[4] == 1);
    MPI_Status status = {0, 0, 0, 0, 16};
    CHECK(MPI_Get_elements(&status, MPI_DOUBLE, &n) == 0 && n == 2);
    MPI_Datatype *last[] = {&plain, &record, &spots, &blocks, &copy, &steps};
    for (int i = 0; i < 6; i++)
        MPI_Type_free(last[i]);
}

#define REDUCED(type, handle, op, start, mine, combine)                                                               \
    do {                                                                                                              \
        enum { N = 37 };                                                                                              \
        type in_[N], out_[N];                                                                                         \
        for (int i = 0; i < N; i++) {                                                                                 \
            int r = rank;                                                                                             \
            in_[i] = (type)(mine);                                                                                    \
            (void)r;                                                                                                  \
        }                                                                                                             \
        CHECK(MPI_Allreduce(in_, out_, N, handle, op, W) == 0);                                                       \
        for (int i = 0; i < N; i++) {                                                                                 \
            int r = 0;                                                                                                \
            type all = (type)(mine), one;                                                                             \
            for (r = 1; r < size; r++) {                                                                              \
                one = (type)(mine);                                                                                   \
                all = (type)(combine);                                                                                \
            }                                                                                                         \
            CHECK(out_[i] == all);                                                                                    \
        }                                                                                                             \
    } while (0)

#define INTEGERS(type, handle)                                                                                        \
    do {                                                                                                              \
        ORDERED(type, handle);                                                                                        \
        REDUCED(type, handle, MPI_LAND, 1, (r + i) % 3, all && one);                                                  \
        REDUCED(type, handle, MPI_LOR, 0, (r + i) % 5 == 0, all || one);                                              \
        REDUCED(type, handle, MPI_LXOR, 0, (r + i) % 2, !all != !one);                                                \
        REDUCED(type, handle, MPI_BAND, 0, 0x5a ^ (r + i), all & one);                                                \
        REDUCED(type, handle, MPI_BOR, 0, r * 3 + i, all | one);                                                      \
        REDUCED(type, handle, MPI_BXOR, 0, r * 3 + i, all ^ one);                                                     \
    } while (0)
#define ORDERED(type, handle)                                                                                         \
    do {                                                                                                              \
        REDUCED(type, handle, MPI_MAX, 0, (r * 13 + i * 7) % 50, all > one ? all : one);                              \
        REDUCED(type, handle, MPI_MIN, 0, (r * 13 + i * 7) % 50, all < one ? all : one);                              \
        REDUCED(type, handle, MPI_SUM, 0, r + i % 3, all + one);                                                      \
        REDUCED(type, handle, MPI_PROD, 1, 1 + (r + i) % 2, all * one);                                               \
    } while (0)

/* in: 2 by 2 matrices, whose product depends on the order. */
static void multiply(void *in, void *inout, int *len, MPI_Datatype *type) {
    (void)type;
    for (int e = 0; e < *len; e++) {
        const long *a = (long *)in + 4 * e;
        long *b = (long *)inout + 4 * e, c[4];
        for (int i = 0; i < 4; i++)
            c[i] = (a[i / 2 * 2] * b[i % 2] + a[i / 2 * 2 + 1] * b[2 + i % 2]) % 1000003;
        memcpy(b, c, sizeof c);
    }
}

static void reductions(void) {
    INTEGERS(signed char, MPI_SIGNED_CHAR);
    INTEGERS(short, MPI_SHORT);
    INTEGERS(int, MPI_INT);
    INTEGERS(long, MPI_LONG);
    INTEGERS(long long, MPI_LONG_LONG);
    INTEGERS(unsigned char, MPI_UNSIGNED_CHAR);
    INTEGERS(unsigned short, MPI_UNSIGNED_SHORT);
    INTEGERS(unsigned, MPI_UNSIGNED);
    INTEGERS(unsigned long, MPI_UNSIGNED_LONG);
    INTEGERS(unsigned long long, MPI_UNSIGNED_LONG_LONG);
    INTEGERS(int8_t, MPI_INT8_T);
    INTEGERS(int16_t, MPI_INT16_T);
    INTEGERS(int32_t, MPI_INT32_T);
    INTEGERS(int64_t, MPI_INT64_T);
    INTEGERS(uint8_t, MPI_UINT8_T);
    INTEGERS(uint16_t, MPI_UINT16_T);
    INTEGERS(uint32_t, MPI_UINT32_T);
    INTEGERS(uint64_t, MPI_UINT64_T);
    ORDERED(float, MPI_FLOAT);
    ORDERED(double, MPI_DOUBLE);
    ORDERED(long double, MPI_LONG_DOUBLE);
    REDUCED(unsigned char, MPI_BYTE, MPI_BXOR, 0, r * 3 + i, all ^ one);
    REDUCED(bool, MPI_C_BOOL, MPI_LOR, 0, r == i, all || one);
    REDUCED(double complex, MPI_C_DOUBLE_COMPLEX, MPI_SUM, 0, r + i * I, all + one);
    struct { double value; int index; } pairs[2] = {{rank % 3, rank}, {-(rank % 2), rank}}, best[2];
    MPI_Allreduce(pairs, best, 2, MPI_DOUBLE_INT, MPI_MAXLOC, W);
    CHECK(best[0].value == (size < 3 ? size - 1 : 2) && best[0].index == (size < 3 ? size - 1 : 2));
    CHECK(best[1].value == 0 && best[1].index == 0);
    MPI_Reduce(pairs, best, 2, MPI_DOUBLE_INT, MPI_MINLOC, size - 1, W);
    if (rank == size - 1)
        CHECK(best[0].value == 0 && best[0].index == 0 && best[1].index == (size > 1));
    struct { int value, index; } two = {rank, rank}, least;
    MPI_Allreduce(&two, &least, 1, MPI_2INT, MPI_MINLOC, W);
    CHECK(least.value == 0 && least.index == 0);
    struct { float value; int index; } real = {(float)rank, rank}, most;
    MPI_Allreduce(&real, &most, 1, MPI_FLOAT_INT, MPI_MAXLOC, W);
    CHECK(most.index == size - 1);

    /* Long vectors, each root, in place. */
    for (int n = 1; n <= 300000; n = n * 6 + 1) {
        double *in = malloc(n * sizeof *in), *out = malloc(n * sizeof *out);
        for (int root = 0; root <= size; root++) {
            for (int i = 0; i < n; i++)
                in[i] = rank + i % 17;
            if (root < size) {
                int is_root = rank == root;
                MPI_Reduce(root % 2 && is_root ? MPI_IN_PLACE : in, root % 2 ? in : out, n, MPI_DOUBLE, MPI_SUM, root,
                           W);
                for (int i = 0; is_root && i < n; i++)
                    CHECK((root % 2 ? in : out)[i] == size * (size - 1) / 2 + size * (i % 17));
            } else {
                MPI_Allreduce(MPI_IN_PLACE, in, n, MPI_DOUBLE, MPI_SUM, W);
                for (int i = 0; i < n; i++)
                    CHECK(in[i] == size * (size - 1) / 2 + size * (i % 17));
            }
        }
        free(in);
        free(out);
    }

    /* An operation of the program, with a type of its own, that does not commute. */
    MPI_Op op;
    MPI_Datatype matrix;
    MPI_Type_contiguous(4, MPI_LONG, &matrix);
    MPI_Type_commit(&matrix);
    MPI_Op_create(multiply, 0, &op);
    enum { N = 5 };
    long mine[4 * N], all[4 * N], want[4 * N], until[4 * N], got[4 * N];
    for (int r = size - 1; r >= 0; r--) {
        for (int i = 0; i < 4 * N; i++)
            mine[i] = r * 3 + i % 5 + 1;
        int n = N;
        if (r == size - 1)
            memcpy(want, mine, sizeof want);
        else
            multiply(mine, want, &n, NULL);
    }
    for (int r = rank; r >= 0; r--) {
        for (int i = 0; i < 4 * N; i++)
            mine[i] = r * 3 + i % 5 + 1;
        int n = N;
        if (r == rank)
            memcpy(until, mine, sizeof until);
        else
            multiply(mine, until, &n, NULL);
    }
    for (int i = 0; i < 4 * N; i++)
        mine[i] = rank * 3 + i % 5 + 1;
    MPI_Allreduce(mine, all, N, matrix, op, W);
    CHECK(memcmp(all, want, sizeof all) == 0);
    for (int root = 0; root < size; root++) {
        memset(all, 0, sizeof all);
        MPI_Reduce(mine, all, N, matrix, op, root, W);
        CHECK(rank != root || memcmp(all, want, sizeof all) == 0);
    }
    MPI_Scan(mine, got, N, matrix, op, W);
    CHECK(memcmp(got, until, sizeof got) == 0);
    MPI_Op_free(&op);
    MPI_Type_free(&matrix);
    CHECK(op == MPI_OP_NULL);

    int value = rank + 1, scan = 0, before = -1, sums[2] = {1, 2}, sum = 0;
    MPI_Scan(&value, &scan, 1, MPI_INT, MPI_SUM, W);
    MPI_Exscan(&value, &before, 1, MPI_INT, MPI_SUM, W);
    CHECK(scan == (rank + 1) * (rank + 2) / 2 && before == (rank ? rank * (rank + 1) / 2 : -1));
    MPI_Reduce_local(&value, &sums[1], 1, MPI_INT, MPI_SUM);
    CHECK(sums[1] == 2 + value);
    int *counts = malloc(size * sizeof *counts), total = 0, *vector, *part;
    for (int i = 0; i < size; i++)
        total += counts[i] = i + 1;
    vector = malloc((total + size) * sizeof *vector);
    part = malloc((size + 1) * sizeof *part);
    for (int i = 0; i < total; i++)
        vector[i] = i + rank;
    MPI_Reduce_scatter(vector, part, counts, MPI_INT, MPI_SUM, W);
    for (int i = 0; i <= rank; i++)
        CHECK(part[i] == size * (rank * (rank + 1) / 2 + i) + size * (size - 1) / 2);
    for (int i = 0; i < size; i++)
        vector[i] = i * rank;
    MPI_Reduce_scatter_block(vector, &sum, 1, MPI_INT, MPI_SUM, W);
    CHECK(sum == rank * size * (size - 1) / 2);
    free(counts);
    free(vector);
    free(part);
}

static void collectives(void) {
    const int counts[] = {0, 1, 7, 1000, 5000, 40000};
    for (int c = 0; c < 6; c++) {
        int n = counts[c];
        int *mine = malloc((n + 1) * sizeof *mine), *all = malloc((n * size + 1) * sizeof *all);
        int *in = malloc((n * size + 1) * sizeof *in);
        for (int root = 0; root < size; root++) {
            for (int i = 0; i < n; i++)
                mine[i] = rank == root ? root * 1000000 + i : -1;
            CHECK(MPI_Bcast(mine, n, MPI_INT, root, W) == 0);
            for (int i = 0; i < n; i++)
                CHECK(mine[i] == root * 1000000 + i);
            for (int i = 0; i < n; i++)
                mine[i] = rank * 1000000 + i;
            CHECK(MPI_Gather(mine, n, MPI_INT, all, n, MPI_INT, root, W) == 0);
            for (int i = 0; rank == root && i < n * size; i++)
                CHECK(all[i] == i / n * 1000000 + i % n);
            if (rank == root)
                memcpy(in, all, n * size * sizeof *in);
            memset(mine, 0, n * sizeof *mine);
            CHECK(MPI_Scatter(in, n, MPI_INT, mine, n, MPI_INT, root, W) == 0);
            for (int i = 0; i < n; i++)
                CHECK(mine[i] == rank * 1000000 + i);
        }
        memset(all, 0, n * size * sizeof *all);
        CHECK(MPI_Allgather(mine, n, MPI_INT, all, n, MPI_INT, W) == 0);
        for (int i = 0; i < n * size; i++)
            CHECK(all[i] == i / n * 1000000 + i % n);
        for (int i = 0; i < n * size; i++)
            in[i] = rank * 1000000 + i;
        CHECK(MPI_Alltoall(in, n, MPI_INT, all, n, MPI_INT, W) == 0);
        for (int i = 0; i < n * size; i++)
            CHECK(all[i] == i / n * 1000000 + rank * n + i % n);
        CHECK(MPI_Alltoall(MPI_IN_PLACE, 0, 0, in, n, MPI_INT, W) == 0);
        CHECK(memcmp(in, all, n * size * sizeof *in) == 0);
        free(mine);
        free(all);
        free(in);
    }
    /* Of different lengths, with gaps; in place. */
    int *n = malloc(size * sizeof *n), *at = malloc(size * sizeof *at), total = 0;
    for (int i = 0; i < size; i++) {
        n[i] = i * 3 % 5 + (i == size - 1 ? 9000 : 0);
        at[i] = total + 2 * i;
        total += n[i];
    }
    int room = total + 2 * size;
    int *all = malloc(room * sizeof *all), mine[9100], got[9100];
    for (int root = 0; root < size; root++)
        for (int way = 0; way < 3; way++) {
            bool in_place = rank == root && way == 2;
            for (int i = 0; i < room; i++)
                all[i] = -1;
            for (int i = 0; i < n[rank]; i++)
                mine[i] = all[at[rank] + i] = rank * 10000 + i;
            if (way == 1)
                MPI_Allgatherv(root % 2 ? MPI_IN_PLACE : mine, n[rank], MPI_INT, all, n, at, MPI_INT, W);
            else
                MPI_Gatherv(in_place ? MPI_IN_PLACE : mine, n[rank], MPI_INT, all, n, at, MPI_INT, root, W);
            if (way != 1 && rank != root)
                for (int r = 0; r < size; r++)
                    for (int i = 0; i < n[r]; i++)
                        all[at[r] + i] = r * 10000 + i;
            for (int r = 0; r < size; r++)
                for (int i = 0; i < n[r] + 2; i++)
                    CHECK(all[at[r] + i] == (i < n[r] ? r * 10000 + i : -1));
            memset(got, 0, sizeof got);
            MPI_Scatterv(all, n, at, MPI_INT, in_place ? MPI_IN_PLACE : got, n[rank], MPI_INT, root, W);
            CHECK(in_place || memcmp(got, mine, n[rank] * sizeof(int)) == 0);
        }
    /* Rank r sends (r + s) % 4 to s. */
    int *sn = malloc(size * sizeof *sn), *sat = malloc(size * sizeof *sat), *in = malloc(8 * size * sizeof *in);
    for (int i = 0; i < size; i++) {
        sn[i] = (rank + i) % 4;
        sat[i] = 4 * i;
        for (int k = 0; k < 4; k++) {
            in[4 * i + k] = rank * 1000 + i * 10 + k;
            in[4 * (size + i) + k] = -1;
        }
    }
    MPI_Alltoallv(in, sn, sat, MPI_INT, in + 4 * size, sn, sat, MPI_INT, W);
    for (int i = 0; i < size; i++)
        for (int k = 0; k < 4; k++)
            CHECK(in[4 * (size + i) + k] == (k < sn[i] ? i * 1000 + rank * 10 + k : -1));
    free(n);
    free(at);
    free(all);
    free(sn);
    free(sat);
    free(in);
    for (int i = 0; i < 200; i++)
        MPI_Barrier(W);
}

static void communicators(void) {
    MPI_Comm copy, half, reverse, none;
    int r, s, result, len, value = rank, got = -1;
    char name[MPI_MAX_OBJECT_NAME];
    CHECK(MPI_Comm_dup(W, &copy) == 0 && MPI_Comm_rank(copy, &r) == 0 && r == rank);
    CHECK(MPI_Comm_compare(W, copy, &result) == 0 && result == MPI_CONGRUENT);
    CHECK(MPI_Comm_compare(W, W, &result) == 0 && result == MPI_IDENT);
    CHECK(MPI_Comm_set_name(copy, "copy") == 0 && MPI_Comm_get_name(copy, name, &len) == 0 && !strcmp(name, "copy"));
    /* The same tag in two communicators: each has its own. */
    MPI_Request requests[2];
    int two = rank + 100;
    MPI_Isend(&value, 1, MPI_INT, NEXT, 1, W, &requests[0]);
    MPI_Isend(&two, 1, MPI_INT, NEXT, 1, copy, &requests[1]);
    MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, copy, MPI_STATUS_IGNORE);
    CHECK(got == BEFORE + 100);
    MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, W, MPI_STATUS_IGNORE);
    CHECK(got == BEFORE && MPI_Waitall(2, requests, MPI_STATUSES_IGNORE) == 0);

    CHECK(MPI_Comm_split(W, rank % 2, rank, &half) == 0);
    MPI_Comm_rank(half, &r);
    MPI_Comm_size(half, &s);
    CHECK(r == rank / 2 && s == (size + 1 - rank % 2) / 2);
    int sum = -1, want = 0;
    for (int i = rank % 2; i < size; i += 2)
        want += i;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half);
    CHECK(sum == want);
    MPI_Status status;
    MPI_Sendrecv(&rank, 1, MPI_INT, (r + 1) % s, 3, &got, 1, MPI_INT, MPI_ANY_SOURCE, 3, half, &status);
    CHECK(got == (r + s - 1) % s * 2 + rank % 2 && status.MPI_SOURCE == (r + s - 1) % s);
    CHECK(MPI_Comm_split(W, 0, -rank, &reverse) == 0 && MPI_Comm_rank(reverse, &r) == 0 && r == size - 1 - rank);
    CHECK(MPI_Comm_compare(W, reverse, &result) == 0 && result == (size == 1 ? MPI_CONGRUENT : MPI_SIMILAR));
    got = rank;
    MPI_Bcast(&got, 1, MPI_INT, 0, reverse);
    CHECK(got == size - 1);
    CHECK(MPI_Comm_split(W, rank ? MPI_UNDEFINED : 0, 0, &none) == 0 && (none == MPI_COMM_NULL) == (rank > 0));
    /* One of a communicator that was split. */
    MPI_Comm quarter;
    MPI_Comm_split(half, rank / 2 % 2, 0, &quarter);
    MPI_Comm_size(quarter, &s);
    sum = 0;
    got = 1;
    MPI_Allreduce(&got, &sum, 1, MPI_INT, MPI_SUM, quarter);
    CHECK(sum == s);
    if (none != MPI_COMM_NULL)
        MPI_Comm_free(&none);
    CHECK(MPI_Comm_free(&copy) == 0 && copy == MPI_COMM_NULL);
    MPI_Comm_free(&half);
    MPI_Comm_free(&reverse);
    MPI_Comm_free(&quarter);
    for (int i = 0; i < 50; i++) {
        CHECK(MPI_Comm_dup(W, &copy) == 0 && MPI_Barrier(copy) == 0);
        MPI_Comm_free(&copy);
    }
    /* A grid. */
    int dims[2] = {0, 0}, periods[2] = {1, 0}, coords[2], other[2], periodic[2], up, down;
    MPI_Comm grid;
    CHECK(MPI_Dims_create(size, 2, dims) == 0 && dims[0] * dims[1] == size && dims[0] >= dims[1]);
    CHECK(MPI_Cart_create(W, 2, dims, periods, 0, &grid) == 0);
    CHECK(MPI_Cart_get(grid, 2, other, periodic, coords) == 0 && other[0] == dims[0] && periodic[0]);
    CHECK(MPI_Cart_rank(grid, coords, &r) == 0 && r == rank && MPI_Cart_coords(grid, rank, 2, other) == 0);
    CHECK(other[0] == coords[0] && other[1] == coords[1]);
    CHECK(MPI_Cart_shift(grid, 1, 1, &up, &down) == 0 && (up == MPI_PROC_NULL) == (coords[1] == 0));
    CHECK((down == MPI_PROC_NULL) == (coords[1] == dims[1] - 1) && MPI_Cart_shift(grid, 0, 1, &up, &down) == 0);
    got = -1;
    MPI_Sendrecv(&rank, 1, MPI_INT, down, 0, &got, 1, MPI_INT, up, 0, grid, MPI_STATUS_IGNORE);
    CHECK(got == up);
    MPI_Comm_free(&grid);
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } groups[] = {
        {"about the library", about_the_library}, {"lengths and ways", lengths_and_ways},
        {"blocking ways", blocking_ways}, {"order", order}, {"wildcards", wildcards}, {"truncation", truncation},
        {"many requests", many_requests}, {"waiting", waiting}, {"self", self}, {"types", types},
        {"reductions", reductions}, {"collectives", collectives}, {"communicators", communicators},
    };
    int provided, flag;
    CHECK(MPI_Initialized(&flag) == 0 && !flag);
    CHECK(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) == 0 && provided == MPI_THREAD_FUNNELED);
    MPI_Comm_rank(W, &rank);
    MPI_Comm_size(W, &size);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (argc > 1 && strcmp(argv[1], groups[i].name))
            continue;
        groups[i].run();
        MPI_Barrier(W);
        if (rank == 0) {
            printf("passed: %s\n", groups[i].name);
            fflush(stdout);
        }
    }
    CHECK(MPI_Finalize() == MPI_SUCCESS);
    CHECK(MPI_Finalized(&flag) == MPI_SUCCESS && flag);
    return 0;
}
