/* The last process dies while it holds a lock, and as a home. death PROTOCOL. 2 or more processes. */
#include "check.h"

static int rank, size;

static void told(int process, void *data)
{
    /* The load cannot go on, nor can the space go while it is used: it is this process's last word. */
    if (svm_leave() != SVM_MISUSE || svm_lock(0) != SVM_MISUSE)
        _exit(2);
    _exit(process == size - 1 && data == &rank ? 0 : 1);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    OK(svm_join(&rank, &size, 1 << 20, protocol_of(argv[1]), NULL));
    int last = size - 1;
    /* Managers are processes, too: objects of the first one's. */
    int lock = size, flag = size, barrier = size;
    char *lost = svm_malloc_all(8192, 0, last), *kept = svm_malloc_all(4096, 0, 0);
    CHECK(lost && kept && last > 0);
    /* Where it is at home is known, and it was here once. */
    CHECK(lost[4096] == 0);
    OK(svm_barrier(barrier));
    if (rank == last) {
        SVM_ST(lost[0], 1);
        CHECK(svm_lock(lock) == 0);
        SVM_ST(kept[0], 7);
        OK(svm_flag_set(flag, 1));
        /* So that it has left, also for another host. */
        OK(svm_flag_wait(2 * size, 1));
        _exit(0); /* As one that was killed: nothing is said. */
    }
    OK(svm_flag_wait(flag, 1));
    if (rank == 0)
        OK(svm_flag_set(2 * size, 1));
    CHECK(kept[0] == 7);
    int got = svm_lock(lock);
    CHECK(got == SVM_OWNER_DIED || (got == 0 && size > 2));
    OK(svm_unlock(lock));
    CHECK(svm_barrier(barrier) == SVM_DIED && strstr(svm_error_text(), "has died"));
    CHECK(svm_flag_wait(flag, 2) == SVM_DIED);
    /* Its own objects are gone with it. */
    CHECK(svm_lock(last) == SVM_DIED);
    /* What lives goes on. */
    CHECK(svm_lock(2 * size + rank) == 0);
    OK(svm_unlock(2 * size + rank));
    /* The first one, whose objects the others use, goes last. */
    int done = 0;
    while (done < (rank == 0 ? last - 1 : 1)) {
        CHECK(svm_lock(3 * size) >= 0);
        if (rank != 0)
            SVM_ST(kept[1], kept[1] + 1);
        done = rank == 0 ? kept[1] : 1;
        OK(svm_unlock(3 * size));
    }
    OK(svm_on_death(told, &rank));
    volatile char byte = lost[4096];
    (void)byte;
    fprintf(stderr, "a page of a dead home was loaded\n");
    return 1;
}
