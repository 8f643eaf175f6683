// Plain MPI, two ranks, each pinned: a message to and fro, and messages one after another.
// Prints "one_way BYTES NS" and "rate BYTES MESSAGES_PER_S".
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONGEST = 2 << 20, WINDOW = 64 };
static char out[LONGEST], in[LONGEST];

static double to_and_fro(int rank, int size, int count) {
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int i = 0; i < count; i++) {
        for (int turn = 0; turn < 2; turn++) {
            if (turn == rank) {
                MPI_Send(out, size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD);
            } else {
                MPI_Recv(in, size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
        }
    }
    return (MPI_Wtime() - began) / count / 2;
}

// The receiver posts a window of receives before it asks for the messages.
static double rate(int rank, int size, int windows) {
    MPI_Request requests[WINDOW];
    char go = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int i = 0; i < windows; i++) {
        for (int k = 0; k < WINDOW; k++) {
            if (rank == 0) {
                MPI_Isend(out, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[k]);
            } else {
                MPI_Irecv(in, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[k]);
            }
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank == 0) {
            MPI_Recv(&go, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(&go, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
        }
    }
    return (double)windows * WINDOW / (MPI_Wtime() - began);
}

int main(int argc, char **argv) {
    int rank, divide = argc > 1 ? atoi(argv[1]) : 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    cpu_set_t allowed, own;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0, at = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && at++ == rank) {
            CPU_ZERO(&own);
            CPU_SET(cpu, &own);
            sched_setaffinity(0, sizeof own, &own);
            break;
        }
    }
    to_and_fro(rank, 16, 2000 / divide + 1);
    double one_way = to_and_fro(rank, 16, 20000 / divide + 1);
    if (rank == 0) {
        printf("one_way 16 %.1f\n", one_way * 1e9);
    }
    for (int size = 4; size <= LONGEST; size *= 2) {
        int messages = (256 << 20) / size;
        int windows = (messages < 200000 ? messages : 200000) / WINDOW / divide + 1;
        rate(rank, size, windows / 10 + 1);
        double found = rate(rank, size, windows);
        if (rank == 0) {
            printf("rate %d %.1f\n", size, found);
        }
    }
    MPI_Finalize();
    return 0;
}
