// MPI, with mpicc's library: MPI_Send and MPI_Recv, or non-blocking calls in a rolling window if
// the window is more than 1. The receiver gets a copy in its buffer.

#include "peer.h"
#include <mpi.h>

static int other;
static unsigned window;
static void *inbox;
static MPI_Request requests[4096];

static void send_one(const void *bytes, size_t size) {
    MPI_Send(bytes, (int)size, MPI_BYTE, other, 0, MPI_COMM_WORLD);
}

static void receive_one(size_t size) {
    MPI_Recv(inbox, (int)size, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void send_stream(const void *bytes, size_t size, uint64_t count) {
    if (window == 1) {
        for (uint64_t i = 0; i < count; i++) {
            send_one(bytes, size);
        }
        return;
    }
    for (uint64_t i = 0; i < count;) {
        int n = 0;
        for (; n < (int)window && i < count; i++) {
            MPI_Isend(bytes, (int)size, MPI_BYTE, other, 0, MPI_COMM_WORLD, &requests[n++]);
        }
        MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    }
}

static void receive_stream(size_t size, uint64_t count) {
    if (window == 1) {
        for (uint64_t i = 0; i < count; i++) {
            receive_one(size);
        }
        return;
    }
    for (uint64_t i = 0; i < count;) {
        int n = 0;
        for (; n < (int)window && i < count; i++) {
            MPI_Irecv(inbox, (int)size, MPI_BYTE, other, 0, MPI_COMM_WORLD, &requests[n++]);
        }
        MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    }
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    struct plan plan = plan_of(argc, argv);
    window = plan.window < 4096 ? plan.window : 4096;
    other = !rank;
    inbox = buffer_of(plan.size);
    run_plan(&plan);
    MPI_Finalize();
}
