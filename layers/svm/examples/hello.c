/* Processes that share no memory count together, and each greets the next: hamlyn run -n 4 -- ./hello */
#include <svm.h>

#include <stdio.h>
#include <stdlib.h>

struct shared {
    int count;
    char greeting[64][32];
};

static void check(int result)
{
    if (result < 0) {
        fprintf(stderr, "%s\n", svm_error_text());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int rank, size, protocol = argc > 1 ? atoi(argv[1]) : SVM_HLRC;
    check(svm_join(&rank, &size, 1 << 20, protocol, NULL));
    struct shared *shared = svm_malloc_all(sizeof *shared, 0, SVM_FIRST_TOUCH);
    check(shared ? 0 : -1);
    for (int i = 0; i < 100; i++) {
        check(svm_lock(0));
        SVM_ST(shared->count, shared->count + 1);
        check(svm_unlock(0));
    }
    char text[32];
    snprintf(text, sizeof text, "hello from %d", rank);
    svm_memcpy(shared->greeting[(rank + 1) % size], text, sizeof text);
    check(svm_barrier(0));
    printf("process %d of %d: %s; the count is %d\n", rank, size, shared->greeting[rank], shared->count);
    int right = shared->count == 100 * size;
    check(svm_leave());
    return right ? 0 : 1;
}
