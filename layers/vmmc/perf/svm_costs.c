/* What the parts of shared virtual memory cost, between two ranks: rows "NAME nanoseconds". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <svm.h>
#include <time.h>

#define PAGE 4096
#define PAGES 256

static void check(int fine, const char *doing) {
    if (fine) return;
    fprintf(stderr, "svm_costs: %s: %s\n", doing, svm_error_text());
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *of, int count) {
    qsort(of, (size_t)count, sizeof *of, compare);
    return of[count / 2];
}

int main(int argc, char **argv) {
    const char *asked = getenv("SVM_PROTOCOL");
    int protocol = !asked || !strcmp(asked, "hlrc") ? SVM_HLRC : !strcmp(asked, "aurc") ? SVM_AURC : SVM_HLRC_AU;
    int rank, size, rounds = 300 / (argc > 1 ? atoi(argv[1]) : 1);
    check(svm_join(&rank, &size, 64 << 20, protocol, NULL) == 0 && size == 2, "joining as one of two");
    unsigned char *theirs = svm_malloc_all(PAGES * PAGE, PAGE, 0);
    check(theirs != NULL, "shared memory");
    double miss[1024], one[1024], many[1024], lock[1024], barrier[1024];
    if (rounds > 1024) rounds = 1024;
    for (int round = 0; round < rounds; round++) {
        if (rank == 0)
            for (int page = 0; page < PAGES; page++) SVM_ST(theirs[PAGE * page], (unsigned char)round);
        check(svm_barrier(0) == 0, "a barrier");
        if (rank == 1) {
            double began = now();
            unsigned sum = 0;
            for (int page = 0; page < PAGES; page++) sum += ((volatile unsigned char *)theirs)[PAGE * page];
            miss[round] = (now() - began) / PAGES;
            check(sum == PAGES * (unsigned)(unsigned char)round, "the pages' bytes");
            /* A release with 8 bytes in each of 1 page, and of PAGES. */
            for (int pages = 1; pages <= PAGES; pages += PAGES - 1) {
                check(svm_lock(1) == 0, "a lock");
                for (int page = 0; page < pages; page++)
                    SVM_ST(*(uint64_t *)(void *)(theirs + PAGE * page + 64), (uint64_t)(round + 1));
                began = now();
                check(svm_unlock(1) == 0, "an unlock");
                *(pages == 1 ? &one[round] : &many[round]) = now() - began;
            }
            began = now();
            check(svm_lock(2) == 0, "a lock");
            lock[round] = now() - began;
            check(svm_unlock(2) == 0, "an unlock");
        }
        check(svm_barrier(0) == 0, "a barrier");
        double began = now();
        for (int i = 0; i < 10; i++) check(svm_barrier(0) == 0, "a barrier");
        barrier[round] = (now() - began) / 10;
    }
    if (rank == 1) {
        double single = median(one, rounds);
        printf("a miss %.0f\n", median(miss, rounds));
        printf("a release of one page %.0f\n", single);
        printf("a page more %.0f\n", (median(many, rounds) - single) / (PAGES - 1));
        printf("a lock that is free %.0f\n", median(lock, rounds));
        printf("a barrier %.0f\n", median(barrier, rounds));
    }
    check(svm_leave() == 0, "leaving");
    return 0;
}
