/* BSPlib: every promise of bsp.h, with any number of ranks; bsp_wrong.c has the programs that break the rules. C and
 * C++. */
#include <bsp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(holds) ((holds) ? (void)0 : bsp_abort("bsp.c:%d: process %d: not so: %s\n", __LINE__, bsp_pid(), #holds))

enum { MANY = 300000 };

static void puts_and_gets(int me, int n) {
    int *all = (int *)calloc((size_t)n, sizeof(int)), mine = me + 100, got = -1, old[4] = {me, me, me, me};
    bsp_push_reg(all, n * (int)sizeof(int));
    bsp_push_reg(old, sizeof old);
    bsp_sync();
    for (int to = 0; to < n; to++) bsp_put(to, &mine, all, me * (int)sizeof(int), sizeof mine);
    mine = -1; /* The put has copied it. */
    CHECK(all[me] == 0);
    /* A get sees what was there before the puts. */
    int next = (me + 1) % n, other = me + 50;
    bsp_get(next, old, sizeof(int), &got, sizeof got);
    bsp_put(next, &other, old, sizeof(int), sizeof other);
    bsp_sync();
    for (int from = 0; from < n; from++) CHECK(all[from] == from + 100);
    CHECK(got == next && old[0] == me && old[1] == (me + n - 1) % n + 50 && old[2] == me);
    /* The newest registration of an address, and none after its pop; empty ones. */
    bsp_push_reg(old, sizeof(int));
    bsp_push_reg(NULL, 0);
    bsp_sync();
    bsp_put(next, &other, old, 0, sizeof other);
    bsp_put(next, NULL, NULL, 0, 0);
    bsp_pop_reg(old);
    bsp_pop_reg(NULL);
    bsp_sync();
    CHECK(old[0] == (me + n - 1) % n + 50);
    bsp_put(next, &me, old, 3 * sizeof(int), sizeof me);
    bsp_sync();
    CHECK(old[3] == (me + n - 1) % n);
    bsp_pop_reg(old);
    bsp_pop_reg(all);
    bsp_put(next, &other, old, 0, sizeof other); /* A pop holds from the next superstep on. */
    bsp_sync();
    CHECK(old[0] == (me + n - 1) % n + 50);
    free(all);
}

/* Registrations end in any order, in the order of the calls, also in the superstep in which they begin. */
static void registrations(int me, int n) {
    int a[3] = {0, 0, 0}, b = 0, value = me + 1, from = (me + n - 1) % n, next = (me + 1) % n;
    bsp_push_reg(a, sizeof a);
    bsp_push_reg(&b, sizeof b);
    bsp_pop_reg(&b);
    bsp_sync();
    bsp_push_reg(a, 0);
    bsp_pop_reg(a); /* The one of no bytes. */
    bsp_push_reg(&b, sizeof b);
    bsp_put(next, NULL, &value, 0, 0); /* Nothing: it needs no registration. */
    bsp_sync();
    bsp_put(next, &value, a, 2 * sizeof(int), sizeof value);
    bsp_put(next, &value, &b, 0, sizeof value);
    bsp_pop_reg(a);
    bsp_sync();
    CHECK(a[2] == from + 1 && b == from + 1);
    /* Processes that have no bytes register NULL; those that register something say which is popped. */
    bsp_push_reg(me ? NULL : a, me ? 0 : sizeof a);
    bsp_push_reg(NULL, 0);
    bsp_push_reg(me ? a : NULL, me ? sizeof a : 0);
    bsp_sync();
    bsp_pop_reg(NULL);
    bsp_pop_reg(me ? NULL : a);
    bsp_pop_reg(me ? a : NULL);
    bsp_pop_reg(&b);
    bsp_sync();
}

/* What a process puts last counts, then the puts of the highest process: those of lower ones are overwritten. */
static void overlaps(int me, int n) {
    int a[2] = {-1, -1}, got = -1;
    bsp_push_reg(a, sizeof a);
    bsp_sync();
    for (int to = 0; to < n; to++)
        for (int i = 0; i < 2; i++) {
            int value = 10 * me + i;
            bsp_put(to, &value, a, 0, sizeof value);
        }
    bsp_get(n - 1, a, 0, &got, sizeof got);
    bsp_get(0, a, 0, &a[1], sizeof got);
    bsp_sync();
    CHECK(a[0] == 10 * (n - 1) + 1 && a[1] == -1 && got == -1);
    bsp_pop_reg(a);
    bsp_sync();
}

static void large(int me, int n) {
    char *to = (char *)malloc(MANY), *from = (char *)malloc(MANY), *got = (char *)malloc(MANY);
    memset(from, me + 1, MANY);
    bsp_push_reg(to, MANY);
    bsp_push_reg(from, MANY);
    bsp_sync();
    for (int round = 0; round < 3; round++) {
        int next = (me + 1) % n, before = (me + n - 1) % n;
        memset(to, 0, MANY);
        memset(got, 0, MANY);
        if (round == 2)
            bsp_hpput(next, from + 1, to, 1, MANY - 1);
        else
            bsp_put(next, from + 1, to, 1, MANY - 1);
        if (round == 2)
            bsp_hpget(next, from, 3, got, MANY - 3);
        else
            bsp_get(next, from, 3, got, MANY - 3);
        bsp_sync();
        CHECK(to[0] == 0 && to[1] == before + 1 && to[MANY - 1] == before + 1);
        CHECK(got[0] == next + 1 && got[MANY - 4] == next + 1 && got[MANY - 3] == 0);
    }
    bsp_pop_reg(from);
    bsp_pop_reg(to);
    bsp_sync();
    free(to);
    free(from);
    free(got);
}

static void messages(int me, int n) {
    int size = sizeof(int), count, bytes, status, tag;
    bsp_qsize(&count, &bytes);
    CHECK(count == 0 && bytes == 0);
    bsp_get_tag(&status, &tag);
    CHECK(status == -1);
    bsp_set_tagsize(&size);
    CHECK(size == 0);
    bsp_set_tagsize(&size);
    CHECK(size == sizeof(int)); /* That of the call before. */
    bsp_set_tagsize(&size);
    CHECK(size == 0);
    bsp_sync();
    /* To each process as many as its number and one, of growing length. */
    for (int to = 0; to < n; to++)
        for (int i = 0; i <= to; i++) {
            char text[64];
            memset(text, me + i, sizeof text);
            tag = 1000 * me + i;
            bsp_send(to, &tag, text, i);
        }
    bsp_sync();
    bsp_qsize(&count, &bytes);
    CHECK(count == n * (me + 1) && bytes == n * me * (me + 1) / 2);
    for (int from = n - 1; from >= 0; from--)
        for (int i = 0; i <= me; i++) {
            char text[64];
            bsp_get_tag(&status, &tag);
            CHECK(status == i && tag == 1000 * from + i);
            if (i % 2) {
                memset(text, 99, sizeof text);
                bsp_move(text, i - 1);
                CHECK(text[i - 1] == 99 && (i == 1 || text[0] == from + i));
            } else {
                void *its_tag, *payload;
                CHECK(bsp_hpmove(&its_tag, &payload) == i && *(int *)its_tag == 1000 * from + i);
                CHECK((uintptr_t)payload % 8 == 0 && (i == 0 || ((char *)payload)[i - 1] == from + i));
            }
        }
    void *none;
    CHECK(bsp_hpmove(&none, &none) == -1);
    size = 0;
    bsp_send(0, &tag, "lost", 4);
    bsp_set_tagsize(&size);
    CHECK(size == (int)sizeof(int));
    bsp_sync();
    bsp_sync();
    bsp_qsize(&count, &bytes);
    CHECK(count == 0 && bytes == 0);
    /* A payload stays where it is until bsp_sync ends: it can be passed on from there. */
    int value = me, passed = -1, tail = 0;
    bsp_push_reg(&passed, sizeof passed);
    bsp_send((me + 1) % n, NULL, &value, sizeof value);
    bsp_sync();
    CHECK(bsp_hpmove(&none, &none) == sizeof value);
    bsp_hpput((me + 1) % n, none, &passed, 0, sizeof passed);
    bsp_send((me + 1) % n, NULL, &tail, sizeof tail);
    bsp_sync();
    CHECK(passed == (me + 2 * n - 2) % n);
    bsp_pop_reg(&passed);
    bsp_sync();
}

static int wanted;

static void part(void) {
    bsp_begin(wanted ? wanted : bsp_nprocs());
    int me = bsp_pid(), n = bsp_nprocs();
    CHECK(me >= 0 && me < n && bsp_time() >= 0);
    puts_and_gets(me, n);
    registrations(me, n);
    overlaps(me, n);
    large(me, n);
    messages(me, n);
    double began = bsp_time();
    for (int i = 0; i < 200; i++) bsp_sync();
    if (me == 0) printf("bsp: %d processes: all as said; a bsp_sync of nothing: %.1f us\n", n, (bsp_time() - began) * 5000);
    bsp_end();
    if (bsp_nprocs() != n) abort();
}

int main(int argc, char *argv[]) {
    bsp_init(part, argc, argv);
    if (argc > 1) wanted = atoi(argv[1]); /* Process 0's counts. */
    part();
    return 0;
}
