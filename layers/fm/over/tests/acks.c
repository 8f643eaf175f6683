/* Node 1 takes nothing, and acknowledges what it has not taken. Node 0, whose put to it has no room, serves node 2. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "../over.h"
#include <shmem.h>

enum { BYTES = 1 << 19 };

int main(void)
{
    static char source[BYTES];
    char *place, byte;

    setenv("SHMEM_SYMMETRIC_SIZE", "1M", 1);
    /* None: a send that waits in FM waits for ever. */
    EQUAL(FM_set_parameter(FM_TIME_LIMIT_MS, 0), 0);
    shmem_init();
    place = (char *)shmem_malloc(BYTES);
    CHECK(place);
    if (FM_nodeid == 0) {
        shmem_putmem(place, source, BYTES, 1);
        EQUAL(shmemx_error(), -1);
    } else if (FM_nodeid == 1) {
        while (!FM_has_left(2)) {
            EQUAL(FM_send_4(0, OVER_ACK, OVER_SHMEM, OVER_CHUNK, 0, 0), 0);
            FM_wait(1);
        }
        exit(0);
    } else {
        for (int round = 0; round < 3000; round++)
            shmem_getmem(&byte, place, 1, 0);
        EQUAL(shmemx_error(), 0);
    }
    FM_finalize();
    return 0;
}
