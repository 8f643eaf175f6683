/* Rank 1 speaks Fast Messages itself: messages of all lengths to the handlers of MPI, with fields that lie, from a
 * seed. Rank 0 has receives and sends open, and must see errors or bytes within its buffers, and the end. */
#include <mpi.h>
#include <fm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 101, HANDLERS = 5, TURNS = 20000, OPEN = 64, ROOM = 3000 };

static uint64_t seed;

static uint32_t next(uint32_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static int nothing(FM_stream *stream, unsigned sender) {
    (void)stream;
    (void)sender;
    return FM_CONTINUE;
}

static uint32_t lie(void) {
    const uint32_t odd[] = {0, 1, 2, 3, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 20};
    return next(2) ? next(80) : odd[next(8)];
}

static int attack(void) {
    static uint32_t words[20000];
    FM_initialize();
    for (int i = 0; i < HANDLERS; i++)
        FM_register_handler(FIRST + i, nothing);
    for (int turn = 0; turn < TURNS; turn++) {
        uint32_t bytes = next(4) ? next(40) : next(sizeof words);
        for (int i = 0; i < 8; i++)
            words[i] = lie();
        /* More is said than is sent, at times. */
        uint64_t said = next(4) ? bytes : (uint64_t)bytes + lie();
        FM_stream *stream = FM_begin_message(0, said, FIRST + next(HANDLERS));
        if (!stream)
            return 1;
        FM_send_piece(stream, words, bytes < said ? bytes : said);
        FM_end_message(stream);
        FM_extract(FM_ALL);
    }
    FM_finalize();
    return 0;
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const char *rank = getenv("HAMLYN_JOB_RANK");
    if (rank && atoi(rank) == 1)
        return attack();
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    static unsigned char in[OPEN][ROOM + 1], out[100000];
    MPI_Request requests[OPEN];
    int errors = 0, received = 0, index, dead = 0;
    for (int i = 0; i < OPEN; i++)
        requests[i] = MPI_REQUEST_NULL;
    while (!dead) {
        for (int i = 0; i < OPEN; i++) {
            if (requests[i] != MPI_REQUEST_NULL)
                continue;
            in[i][ROOM] = 77;
            int error = i % 4 ? MPI_Irecv(in[i], ROOM, MPI_BYTE, 1, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[i])
                              : MPI_Issend(out, sizeof out, MPI_BYTE, 1, i, MPI_COMM_WORLD, &requests[i]);
            errors += error != MPI_SUCCESS;
        }
        int error = MPI_Waitany(OPEN, requests, &index, MPI_STATUS_IGNORE);
        if (index >= 0 && index % 4 && in[index][ROOM] != 77)
            return 1;
        errors += error != MPI_SUCCESS;
        received += error == MPI_SUCCESS;
        dead = FM_has_left(1);
    }
    MPI_Waitall(OPEN, requests, MPI_STATUSES_IGNORE);
    MPI_Finalize();
    printf("hostile: %d completed, %d errors: passed\n", received, errors);
    return 0;
}
