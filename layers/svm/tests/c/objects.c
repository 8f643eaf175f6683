/* Locks, barriers, flags, condition variables and allocation. objects PROTOCOL */
#include "check.h"

static int rank, size;

struct shared {
    uint64_t counts[64]; /* In one page, each behind a lock of its own. */
    uint64_t slots[64];  /* In the same page, each one process's. */
    uint64_t ring[16][2];
    uint64_t length, taken, sum;
    uint64_t turn;
};

/* One puts numbers, the next takes them, by flags. */
static void flags(struct shared *shared)
{
    int rounds = 200;
    if (size == 1)
        return;
    if (rank == 0)
        for (int i = 1; i <= rounds; i++) {
            if (i > 16)
                OK(svm_flag_wait(1, i - 16));
            SVM_ST(shared->ring[i % 16][0], (uint64_t)i * i);
            SVM_ST(shared->ring[i % 16][1], (uint64_t)i);
            OK(svm_flag_set(0, i));
        }
    if (rank == 1)
        for (int i = 1; i <= rounds; i++) {
            OK(svm_flag_wait(0, i));
            CHECK(shared->ring[i % 16][0] == (uint64_t)i * i && shared->ring[i % 16][1] == (uint64_t)i);
            OK(svm_flag_set(1, i));
        }
}

/* All but the first wait for work, which the first gives out. */
static void conditions(struct shared *shared)
{
    int work = 50, workers = size - 1;
    if (rank == 0) {
        for (int i = 1; i <= work && workers; i++) {
            OK(svm_lock(100));
            SVM_ST(shared->length, shared->length + 1);
            SVM_ST(shared->sum, shared->sum + i);
            OK(svm_signal(5, 100));
            OK(svm_unlock(100));
        }
        OK(svm_lock(100));
        SVM_ST(shared->turn, 1);
        OK(svm_broadcast(5, 100));
        OK(svm_unlock(100));
        return;
    }
    OK(svm_lock(100));
    for (;;) {
        while (shared->length == 0 && !shared->turn)
            CHECK(svm_wait(5, 100) == 0);
        if (shared->length == 0)
            break;
        SVM_ST(shared->length, shared->length - 1);
        SVM_ST(shared->taken, shared->taken + 1);
    }
    OK(svm_unlock(100));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    OK(svm_join(&rank, &size, 4 << 20, protocol_of(argv[1]), NULL));
    struct shared *shared = (struct shared *)svm_malloc_all(sizeof *shared, 0, SVM_FIRST_TOUCH);
    CHECK(shared && (uintptr_t)shared % 64 == 0);

    for (int i = 0; i < 100; i++) {
        int lock = (i * 7 + rank) % 64;
        CHECK(svm_lock(lock) == 0);
        SVM_ST(shared->counts[lock], shared->counts[lock] + 1);
        SVM_ST(shared->slots[rank], shared->slots[rank] + 1);
        OK(svm_unlock(lock));
    }
    OK(svm_barrier(0));
    uint64_t sum = 0;
    for (int i = 0; i < 64; i++)
        sum += shared->counts[i];
    CHECK(sum == 100ul * size);
    for (int i = 0; i < size; i++)
        CHECK(shared->slots[i] == 100);

    flags(shared);
    conditions(shared);
    OK(svm_barrier(0));
    CHECK(size == 1 || (shared->taken == 50 && shared->sum == 50 * 51 / 2));

    /* Two halves meet apart. */
    if (size >= 4 && size % 2 == 0)
        for (int i = 0; i < 10; i++)
            OK(svm_barrier_of(10 + rank % 2, size / 2));

    /* Blocks that each allocates do not overlap, and a home is what was asked for. */
    unsigned char *mine = (unsigned char *)svm_malloc(5000, 256, rank);
    CHECK(mine && (uintptr_t)mine % 4096 == 0);
    svm_figures_t before, after;
    OK(svm_stat(&before));
    svm_memset(mine, rank + 1, 5000);
    OK(svm_stat(&after));
    CHECK(after.fetches == before.fetches && after.pages_home == before.pages_home + 2);
    OK(svm_barrier(0));
    for (int i = 0; i < 5000; i++)
        CHECK(mine[i] == rank + 1);
    CHECK(svm_malloc(8 << 20, 0, SVM_FIRST_TOUCH) == NULL);
    CHECK(svm_malloc_all(8 << 20, 0, SVM_FIRST_TOUCH) == NULL && strstr(svm_error_text(), "no room"));
    /* Leaving releases what is held. */
    if (rank == 0)
        OK(svm_lock(4000));
    OK(svm_barrier(0));
    if (rank > 0)
        OK(svm_lock(4000));
    OK(svm_leave());
    return 0;
}
