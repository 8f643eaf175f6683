/* The last node ends without a word; all others are told, and no call waits for it. */
#include "check.h"
#include <fm_sockets.h>
#include <ga.h>
#include <shmem.h>
#include <string.h>

enum { SIZE = 40 };

int main(void)
{
    unsigned long last;
    int array, mine, *word, is_reader;
    double values[SIZE * SIZE];
    ga_rect whole = {0, 0, SIZE, SIZE};
    static char bytes[1000000];
    long got;

    shmem_init();
    EQUAL(ga_initialize(), 0);
    EQUAL(fms_start(), 0);
    last = FM_numnodes - 1;
    word = (int *)shmem_calloc(1, sizeof *word);
    array = ga_create(SIZE, SIZE);
    CHECK(word && array >= 0);
    is_reader = FM_nodeid == 0;
    if (FM_nodeid == last) {
        int listener = fms_listen(1);

        for (unsigned long node = 0; node < last; node++) {
            mine = fms_accept(listener, 60000);
            CHECK(mine > 0);
            EQUAL(fms_send(mine, "last words", 10), 10);
        }
        EQUAL(ga_sync(), 0);
        /* Without FM_finalize. */
        exit(0);
    }
    mine = fms_connect(last, 1, 60000);
    CHECK(mine > 0);
    EQUAL(ga_sync(), 0);
    shmem_int_wait_until(word, SHMEM_CMP_NE, 0);
    EQUAL(shmemx_error(), FMS_DEAD);
    EQUAL(*word, 0);
    /* Its last bytes are still there; then the end is told. */
    for (got = 0; got < 10;) {
        long more = fms_recv(mine, bytes + got, 10 - (size_t)got);

        CHECK(more > 0);
        got += more;
    }
    CHECK(memcmp(bytes, "last words", 10) == 0);
    if (is_reader)
        EQUAL(fms_recv(mine, bytes, 1), FMS_DEAD);
    EQUAL(fms_send(mine, bytes, sizeof bytes), FMS_DEAD);
    EQUAL(fms_recv(mine, bytes, 1), FMS_DEAD);
    EQUAL(fms_connect(last, 1, 60000), FMS_DEAD);
    EQUAL(ga_get(array, whole, values, SIZE), GA_DEAD);
    EQUAL(ga_put(array, whole, values, SIZE), GA_DEAD);
    shmem_int_p(word, 1, (int)last);
    EQUAL(shmem_int_g(word, (int)last), 0);
    EQUAL(shmem_int_atomic_fetch_add(word, 1, (int)last), 0);
    shmem_barrier_all();
    EQUAL(ga_sync(), GA_DEAD);
    EQUAL(ga_sync(), GA_DEAD);
    fms_finish();
    EQUAL(ga_terminate(), GA_DEAD);
    shmem_finalize();
    return 0;
}
