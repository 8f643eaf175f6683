/* Puts, gets and atomic operations between all PEs. */
#include "check.h"
#include <shmem.h>
#include <stdint.h>
#include <string.h>

enum { BYTES = 100001 };

static int me, pes, next_pe, before;

static void what_is_put_is_there_after_a_barrier(void)
{
    unsigned char *place = (unsigned char *)shmem_malloc(BYTES), *source = (unsigned char *)malloc(BYTES);
    int *ints = (int *)shmem_malloc((size_t)pes * sizeof *ints);
    double *doubles = (double *)shmem_malloc(1000 * sizeof *doubles), back[1000];
    long *value = (long *)shmem_malloc(sizeof *value);

    CHECK(place && ints && doubles && value && source);
    CHECK(((uintptr_t)place | (uintptr_t)ints | (uintptr_t)doubles | (uintptr_t)value) % 64 == 0);
    for (size_t at = 0; at < BYTES; at++)
        source[at] = byte_at(at + (size_t)me);
    shmem_putmem(place, source, BYTES, next_pe);
    memset(source, 0, BYTES);
    for (int pe = 0; pe < pes; pe++)
        shmem_int_p(&ints[me], 1000 * me + pe, pe);
    shmem_barrier_all();
    for (size_t at = 0; at < BYTES; at++)
        CHECK(place[at] == byte_at(at + (size_t)before));
    for (int pe = 0; pe < pes; pe++)
        EQUAL(ints[pe], 1000 * pe + me);

    for (int at = 0; at < 1000; at++)
        doubles[at] = me + at / 8.0;
    *value = -1L - me;
    shmem_barrier_all();
    for (int pe = 0; pe < pes; pe++) {
        shmem_double_get(back, doubles, 1000, pe);
        for (int at = 0; at < 1000; at++)
            CHECK(back[at] == pe + at / 8.0);
        EQUAL(shmem_long_g(value, pe), -1L - pe);
        CHECK(shmem_double_g(&doubles[9], pe) == pe + 9 / 8.0);
        shmem_getmem(source, place, BYTES, pe);
        CHECK(source[BYTES - 1] == byte_at(BYTES - 1 + (size_t)((pe + pes - 1) % pes)));
    }
    shmem_barrier_all();
    if (me == 0)
        shmem_double_put(doubles, back, 1000, pes - 1);
    /* A get of the same PE comes after the put. */
    if (me == 0)
        CHECK(shmem_double_g(&doubles[999], pes - 1) == back[999]);
    shmem_free(value);
    shmem_free(doubles);
    shmem_free(ints);
    shmem_free(place);
    free(source);
}

static void a_flag_after_a_fence_comes_after_the_bytes(void)
{
    enum { MANY = 5000 };
    int *bytes = (int *)shmem_calloc(MANY, sizeof *bytes);
    int *flag = (int *)shmem_calloc(1, sizeof *flag);
    int values[MANY];

    for (int round = 1; round <= 20; round++) {
        for (int at = 0; at < MANY; at++)
            values[at] = round * at;
        shmem_int_put(bytes, values, MANY, next_pe);
        shmem_fence();
        shmem_int_p(flag, round, next_pe);
        shmem_int_wait_until(flag, SHMEM_CMP_GE, round);
        EQUAL(*flag, round);
        for (int at = 0; at < MANY; at++)
            EQUAL(bytes[at], round * at);
        shmem_barrier_all();
    }
    shmem_free(flag);
    shmem_free(bytes);
}

static void everyone_counts_and_one_gets_the_lock(void)
{
    enum { ROUNDS = 50 };
    long *counter = (long *)shmem_calloc(1, sizeof *counter), last = -1;
    int *lock = (int *)shmem_calloc(1, sizeof *lock), *inside = (int *)shmem_calloc(1, sizeof *inside);

    for (int round = 0; round < ROUNDS; round++) {
        long now = shmem_long_atomic_fetch_add(counter, 3, 0);

        CHECK(now > last && now % 3 == 0);
        last = now;
        while (shmem_int_atomic_compare_swap(lock, 0, me + 1, 0) != 0) {}
        /* Not atomic: only the lock keeps the others away. */
        shmem_int_p(inside, shmem_int_g(inside, 0) + 1, 0);
        shmem_quiet();
        EQUAL(shmem_int_atomic_compare_swap(lock, me + 1, 0, 0), me + 1);
    }
    shmem_barrier_all();
    EQUAL(shmem_long_g(counter, 0), 3L * ROUNDS * pes);
    EQUAL(shmem_int_g(inside, 0), ROUNDS * pes);
    shmem_barrier_all();
    EQUAL(shmem_int_atomic_fetch_add(inside, -1, me), me == 0 ? ROUNDS * pes : 0);
    shmem_free(inside);
    shmem_free(lock);
    shmem_free(counter);
}

static void an_object_has_the_same_offset_on_all(void)
{
    void *first = shmem_malloc(100), *second = shmem_malloc(5000), *third = shmem_malloc(1), *again;
    long *offsets = (long *)shmem_malloc((size_t)pes * sizeof *offsets);

    shmem_free(second);
    again = shmem_malloc(4000);
    CHECK(again == second);
    CHECK(shmem_malloc((size_t)1 << 40) == NULL);
    CHECK(shmem_malloc(0) == NULL);
    CHECK(shmem_ptr(first, me) == first && shmem_ptr(first, next_pe + pes) == NULL);
    for (int pe = 0; pe < pes; pe++)
        shmem_long_p(&offsets[me], (char *)third - (char *)first, pe);
    shmem_barrier_all();
    for (int pe = 0; pe < pes; pe++)
        EQUAL(offsets[pe], offsets[0]);
    shmem_free(offsets);
    shmem_free(again);
    shmem_free(third);
    shmem_free(first);
}

static void errors_are_told_and_end_no_wait(void)
{
    int *word = (int *)shmem_calloc(1, sizeof *word);

    EQUAL(shmemx_error(), 0);
    shmem_int_p(word, 1, pes);
    EQUAL(shmemx_error(), -4);
    shmem_putmem(&me, &me, sizeof me, me);
    shmem_int_put(word, word, SIZE_MAX / 2, next_pe);
    EQUAL(shmem_int_g(&me, next_pe), 0);
    EQUAL(shmem_int_atomic_fetch_add(&me, 1, next_pe), 0);
    shmem_barrier_all();
    EQUAL(*word, 0);
    EQUAL(shmemx_refused(), 0);
    /* Different arguments: nobody gets it. */
    CHECK(pes == 1 || shmem_malloc(64 + (size_t)me) == NULL);
    shmem_free(word);
}

int main(void)
{
    shmem_init();
    me = shmem_my_pe();
    pes = shmem_n_pes();
    next_pe = (me + 1) % pes;
    before = (me + pes - 1) % pes;
    what_is_put_is_there_after_a_barrier();
    a_flag_after_a_fence_comes_after_the_bytes();
    everyone_counts_and_one_gets_the_lock();
    an_object_has_the_same_offset_on_all();
    errors_are_told_and_end_no_wait();
    shmem_finalize();
    return 0;
}
