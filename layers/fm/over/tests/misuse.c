/* A program's own mistakes are errors, and a library can be left and joined again while another is in use. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "../over.h"
#include <fm_sockets.h>
#include <ga.h>
#include <limits.h>
#include <shmem.h>
#include <string.h>

static int listener, was_called;

static int calls_in_a_handler(FM_stream *stream, unsigned sender)
{
    fms_pollfd one = {listener, FMS_IN, 0};

    (void)stream, (void)sender;
    EQUAL(fms_accept(listener, -1), FMS_SYSTEM);
    EQUAL(fms_poll(&one, 1, -1), FMS_SYSTEM);
    was_called = 1;
    return FM_CONTINUE;
}

static void calls_before_the_start(void)
{
    long ld;

    EQUAL(fms_listen(1), FMS_SYSTEM);
    EQUAL(fms_connect(FM_nodeid, 1, -1), FM_numnodes ? FMS_SYSTEM : FMS_RANGE);
    EQUAL(ga_create(1, 1), GA_RANGE);
    EQUAL(ga_sync(), GA_RANGE);
    CHECK(ga_access(0, &ld) == NULL);
    CHECK(shmem_malloc(8) == NULL);
    shmem_quiet();
    shmem_barrier_all();
    EQUAL(shmemx_error(), -4);
}

int main(void)
{
    ga_rect one = {0, 0, 1, 1}, two = {0, 0, 2, 1};
    double value = 1;
    int array, *word;

    calls_before_the_start();
    FM_initialize();
    calls_before_the_start();

    EQUAL(fms_start(), 0);
    EQUAL(fms_start(), 0);
    setenv("SHMEM_SYMMETRIC_SIZE", "1M", 1);
    shmem_init();
    fms_finish();
    fms_finish();
    EQUAL(fms_start(), 0);
    EQUAL(ga_initialize(), 0);

    listener = fms_listen(1);
    CHECK(listener > 0);
    CHECK(FM_register_handler(1, calls_in_a_handler) == 1);
    EQUAL(FM_send_4(FM_nodeid, 1, 0, 0, 0, 0), 0);
    while (!was_called)
        FM_extract(FM_ALL);

    EQUAL(fms_poll(NULL, 1, -1), FMS_RANGE);
    EQUAL(fms_poll(NULL, 0, 0), 0);
    array = ga_create(2, 1);
    CHECK(array >= 0);
    EQUAL(ga_put(array, one, NULL, 1), GA_RANGE);
    EQUAL(ga_put(array, two, &value, LONG_MAX), GA_RANGE);
    EQUAL(ga_get(array, one, NULL, 1), GA_RANGE);
    EQUAL(ga_distribution(array, 0, NULL), GA_RANGE);
    CHECK(ga_access(array, NULL) == NULL);
    word = (int *)shmem_calloc(1, sizeof *word);
    CHECK(word);
    shmem_putmem(word, NULL, sizeof *word, 0);
    shmem_getmem(NULL, word, sizeof *word, 0);
    shmem_int_wait_until(NULL, SHMEM_CMP_NE, 0);
    shmem_int_wait_until(&array, SHMEM_CMP_NE, array);
    EQUAL(*word, 0);

    /* The heap is still there, and no larger. */
    shmem_finalize();
    shmem_finalize();
    setenv("SHMEM_SYMMETRIC_SIZE", "64M", 1);
    shmem_init();
    shmem_init();
    CHECK(shmem_malloc(2 << 20) == NULL);
    CHECK(shmem_malloc(1000) != NULL);
    shmem_finalize();
    EQUAL(ga_terminate(), 0);
    fms_finish();
    FM_finalize();
    return 0;
}
