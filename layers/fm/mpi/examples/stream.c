/* A sender is ahead of a receiver that receives one message at a time and works in between: stream [messages]
 * [bytes]. With HAMLYN_MPI_STATS=1 it shows how many messages came before their receive, and were copied once more;
 * compare with HAMLYN_MPI_EXTRACT_ALL=1. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, count = argc > 1 ? atoi(argv[1]) : 2000, bytes = argc > 2 ? atoi(argv[2]) : 4096, failed = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    unsigned char *buf = malloc(bytes + 1);
    unsigned long sum = 0;
    double begun = MPI_Wtime();
    for (int i = 0; i < count && size > 1; i++) {
        if (rank == 0) {
            memset(buf, i & 255, bytes);
            MPI_Send(buf, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        } else if (rank == 1) {
            MPI_Recv(buf, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int k = 0; k < bytes; k++) {
                failed |= buf[k] != (i & 255);
                sum += buf[k];
            }
        }
    }
    if (rank == 1)
        printf("stream: %d messages of %d bytes, %.1f us each, sum %lu: %s\n", count, bytes,
               (MPI_Wtime() - begun) * 1e6 / count, sum, failed ? "FAILED" : "passed");
    free(buf);
    MPI_Finalize();
    return failed;
}
