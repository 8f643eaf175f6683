/* Node 1 lies in every field that it can send; node 0 refuses, counts, and goes on with the others. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "../over.h"
#include <fm_sockets.h>
#include <ga.h>
#include <shmem.h>
#include <string.h>

/* The handlers of the libraries. */
enum {
    CONNECT = OVER_ID_SOCKETS, ANSWER, DATA, TAKEN, END,
    SHMEM_PUT = OVER_ID_SHMEM, SHMEM_GET, SHMEM_ATOMIC,
    GA_PUT = OVER_ID_GA, GA_ACC, GA_GET
};
enum { HEAP = 1 << 20, SIZE = 128 };

static void lie(unsigned long id, const void *header, unsigned bytes, unsigned long more)
{
    static char rest[20000];
    over_rows rows = {rest, more, 1, 0};

    memset(rest, 0xee, sizeof rest);
    EQUAL(over_send(0, id, header, bytes, &rows, -1), 0);
    while (FM_extract(FM_ALL) > 0) {}
}

static void lie_about_the_heap(void)
{
    struct {
        uint32_t tag, bytes;
        uint64_t offset;
        uint32_t operation, reserved;
        int64_t value, condition;
    } lies[] = {{0, 8, HEAP - 4, 0, 0, 0, 0}, {0, 8, UINT64_MAX - 3, 0, 0, 0, 0}, {0, 3000, 0, 0, 0, 0, 0},
                {0, 0xffffffff, 0, 0, 0, 0, 0}, {0, 8, 4, 0, 0, 0, 0}, {0, 4, 0, 2, 0, 0, 0}, {0, 3, 0, 0, 0, 0, 0}};
    uint64_t offsets[] = {HEAP, HEAP - 7, UINT64_MAX, UINT64_MAX - 7, 1ULL << 63};

    for (unsigned at = 0; at < 5; at++)
        lie(SHMEM_PUT, (uint64_t[2]){offsets[at], 8}, 16, 8);
    lie(SHMEM_PUT, (uint64_t[2]){0, 20000}, 16, 20000);
    lie(SHMEM_PUT, (uint64_t[2]){0, 9}, 16, 8);
    lie(SHMEM_PUT, "abc", 3, 0);
    for (unsigned at = 0; at < 4; at++)
        lie(SHMEM_GET, &lies[at], sizeof lies[at], 0);
    for (unsigned at = 0; at < 7; at++)
        lie(SHMEM_ATOMIC, &lies[at], sizeof lies[at], 0);
    lie(SHMEM_GET, "abc", 3, 0);
    lie(SHMEM_ATOMIC, "abc", 3, 0);
}

static void lie_about_the_array(int array)
{
    struct {
        uint32_t tag, array, rows, columns;
        int64_t row, column;
        double alpha;
    } part = {0, (uint32_t)array, 1, 1, 0, 0, 1}, wrong;

    for (unsigned at = 0; at < 10; at++) {
        wrong = part;
        if (at == 0)
            wrong.array += 64;
        else if (at == 1)
            wrong.array = UINT32_MAX;
        else if (at == 2)
            wrong.row = SIZE;
        else if (at == 3)
            wrong.row = INT64_MIN;
        else if (at == 4)
            wrong.column = INT64_MAX;
        else if (at == 5)
            wrong.rows = UINT32_MAX, wrong.columns = UINT32_MAX;
        else if (at == 6)
            wrong.rows = 0;
        else if (at == 7)
            wrong.columns = SIZE + 1;
        else if (at == 8)
            wrong.row = -1;
        else
            wrong.rows = 1u << 31, wrong.columns = 2;
        lie(GA_PUT, &wrong, sizeof wrong, 8);
        lie(GA_ACC, &wrong, sizeof wrong, (unsigned long)wrong.columns * 8 < 20000 ? wrong.columns * 8 : 8);
        lie(GA_GET, &wrong, sizeof wrong, 0);
    }
    /* Fewer bytes than the part has, and more. */
    lie(GA_PUT, &part, sizeof part, 7);
    lie(GA_ACC, &part, sizeof part, 16);
    lie(GA_PUT, &part, 11, 0);
}

/* `socket` is this node's number of its connection to node 0; the other end's can be only guessed. */
static void lie_about_the_socket(uint32_t socket)
{
    for (uint32_t to = 0; to < 600; to++) {
        uint32_t data[4] = {to, socket + 1, 0, 0}, end[4] = {to, socket + 1, 1, 0};
        struct {
            uint32_t to, of;
            uint64_t consumed;
            uint32_t taken, is_lost;
        } taken = {to, socket, UINT64_MAX, 8192, 0};

        lie(DATA, data, sizeof data, to % 17);
        lie(END, end, sizeof end, 0);
        lie(TAKEN, &taken, sizeof taken, 0);
    }
    lie(DATA, "abc", 3, 0);
    lie(DATA, (uint32_t[4]){0, 0}, 16, 9000);
    lie(CONNECT, (uint32_t[4]){5, 0, 1000, 0}, 16, 0);
    lie(CONNECT, (uint32_t[4]){5, 7, 0xffffffff, 0}, 16, 0);
    lie(CONNECT, (uint32_t[4]){0xffffffff, 7, 1000, 0}, 16, 0);
    /* More connections than a listener's backlog has room for. */
    for (uint32_t of = 1000; of < 1100; of++)
        lie(CONNECT, (uint32_t[4]){5, of, 1000, 0}, 16, 0);
    lie(ANSWER, (uint32_t[4]){3, 4, 5, 6}, 16, 0);
    lie(END, (uint32_t[4]){0, 0, 3, 0}, 16, 0);
}

static void lie_at_random(void)
{
    unsigned long seed = 4;

    for (int round = 0; round < 3000; round++) {
        static const unsigned long ids[] = {OVER_ACK, OVER_REPLY, OVER_ARRIVE, OVER_RELEASE, CONNECT, ANSWER, DATA,
                                            TAKEN, END, SHMEM_PUT, SHMEM_GET, SHMEM_ATOMIC, GA_PUT, GA_ACC, GA_GET};
        uint32_t header[14];

        for (int at = 0; at < 14; at++)
            header[at] = (uint32_t)(next_random(&seed) | next_random(&seed) << 20) | 1u << 30;
        lie(ids[next_random(&seed) % 15], header, (unsigned)(next_random(&seed) % 57), next_random(&seed) % 300);
    }
}

/* Node 1 stops in the middle of two messages, while their handlers have a block and a socket's buffer. Node 0 gives
 * both up; then the rest comes. */
static void stop_while_a_handler_receives(int listener)
{
    enum { ROWS = 64, COLUMNS = 16 };
    static char rest[8192];
    int array = ga_create(SIZE, SIZE), again, socket = 0;
    uint32_t part[10] = {0, (uint32_t)array, ROWS, COLUMNS}, data[4] = {0};
    FM_stream *to_block = NULL, *to_socket = NULL;

    if (FM_nodeid == 0) {
        socket = fms_accept(listener, 60000);
        EQUAL(fms_send(socket, &socket, sizeof socket), (long)sizeof socket);
    } else if (FM_nodeid == 1) {
        socket = fms_connect(0, 5, 60000);
        EQUAL(fms_recv(socket, &data[0], 4), 4);
        data[1] = (uint32_t)socket;
        to_block = FM_begin_message(0, sizeof part + ROWS * COLUMNS * 8, GA_PUT);
        EQUAL(FM_send_piece(to_block, part, sizeof part), 0);
        to_socket = FM_begin_message(0, sizeof data + sizeof rest, DATA);
        EQUAL(FM_send_piece(to_socket, data, sizeof data), 0);
    }
    EQUAL(ga_sync(), 0);
    if (FM_nodeid < 2)
        EQUAL(fms_close(socket), 0);
    EQUAL(ga_destroy(array), 0);
    again = ga_create(SIZE, SIZE);
    CHECK(again >= 0 && again != array);
    if (FM_nodeid == 1) {
        memset(rest, 0xee, sizeof rest);
        EQUAL(FM_send_piece(to_block, rest, ROWS * COLUMNS * 8), 0);
        EQUAL(FM_end_message(to_block), 0);
        EQUAL(FM_send_piece(to_socket, rest, sizeof rest), 0);
        EQUAL(FM_end_message(to_socket), 0);
    }
    EQUAL(ga_sync(), 0);
    if (FM_nodeid == 0) {
        ga_rect whole = {0, 0, SIZE, SIZE};
        static double values[SIZE * SIZE];

        EQUAL(ga_get(again, whole, values, SIZE), 0);
        for (int at = 0; at < SIZE * SIZE; at++)
            CHECK(values[at] == 0);
    }
    EQUAL(ga_destroy(again), 0);
}

static void a_refused_put_is_told_by_sync_and_all_nodes_get_the_array(void)
{
    uint32_t part[10] = {0, UINT32_MAX};
    int array;

    if (FM_nodeid == 1) {
        EQUAL(over_reserve(0, 0, -1), 0);
        EQUAL(over_send(0, GA_PUT, part, sizeof part, NULL, -1), 0);
    }
    array = ga_create(2, 2);
    CHECK(array >= 0);
    EQUAL(ga_sync(), FM_nodeid == 1 ? GA_REFUSED : 0);
    EQUAL(ga_destroy(array), 0);
}

int main(void)
{
    unsigned char *guard;
    int array, listener = 0, mine = 0, other = 0;
    ga_rect whole = {0, 0, SIZE, SIZE};
    static double values[SIZE * SIZE];
    fms_figures figures;
    char word[5];

    setenv("SHMEM_SYMMETRIC_SIZE", "1M", 1);
    shmem_init();
    EQUAL(ga_initialize(), 0);
    EQUAL(fms_start(), 0);
    guard = (unsigned char *)shmem_malloc(HEAP - 64);
    array = ga_create(SIZE, SIZE);
    CHECK(guard && array >= 0);
    memset(guard, 0x55, HEAP - 64);
    if (FM_nodeid == 0)
        listener = fms_listen(5);
    EQUAL(ga_sync(), 0);
    stop_while_a_handler_receives(listener);
    a_refused_put_is_told_by_sync_and_all_nodes_get_the_array();
    if (FM_nodeid == 1 || FM_nodeid == 2)
        mine = fms_connect(0, 5, 60000);
    if (FM_nodeid == 0) {
        mine = fms_accept(listener, 60000);
        other = fms_accept(listener, 60000);
    }
    EQUAL(ga_sync(), 0);
    if (FM_nodeid == 1) {
        lie_about_the_heap();
        lie_about_the_array(array);
        lie_about_the_socket((uint32_t)mine);
        lie_at_random();
        CHECK(shmemx_refused() > 0);
        /* Its own calls were not to blame. */
        over_take_failures(OVER_GA);
        over_take_failures(OVER_SHMEM);
    }
    shmem_barrier_all();
    for (int at = 0; at < HEAP - 64; at++)
        CHECK(guard[at] == 0x55);
    EQUAL(ga_get(array, whole, values, SIZE), 0);
    for (int at = 0; at < SIZE * SIZE; at++)
        CHECK(values[at] == 0);
    /* The connection of another node is as it was. */
    if (FM_nodeid == 2) {
        EQUAL(fms_send(mine, "hello", 5), 5);
        EQUAL(fms_recv(mine, word, 5), 5);
    }
    if (FM_nodeid == 0) {
        fms_pollfd sockets[2] = {{mine, FMS_IN, 0}, {other, FMS_IN, 0}};
        int from;

        CHECK(fms_poll(sockets, 2, 60000) > 0);
        from = sockets[0].revents & FMS_IN ? mine : other;
        EQUAL(fms_recv(from, word, 5), 5);
        CHECK(memcmp(word, "hello", 5) == 0);
        EQUAL(fms_send(from, word, 5), 5);
        fms_get_figures(&figures);
        CHECK(figures.refused > 20 && ga_refused() > 30 && shmemx_refused() > 19);
        printf("refused: %llu of sockets, %llu of shmem, %llu of global arrays\n", figures.refused, shmemx_refused(),
               ga_refused());
    }
    EQUAL(ga_sync(), 0);
    fms_finish();
    EQUAL(ga_terminate(), 0);
    shmem_finalize();
    return 0;
}
