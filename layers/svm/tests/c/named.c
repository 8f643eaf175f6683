/* Without a launcher: processes of a fork meet by a name, join after it, and see what the first has put. named PROTOCOL SIZE */
#include "check.h"

#include <sys/wait.h>

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    char name[64];
    snprintf(name, sizeof name, "svm-named-%d", getpid());
    svm_options_t options = {.name = name, .size = atoi(argv[2])};
    while (++options.rank < options.size && fork())
        ;
    options.rank %= options.size; /* The parent is the first. */
    int rank, size;
    OK(svm_join(&rank, &size, 1 << 20, protocol_of(argv[1]), &options));
    CHECK(rank == options.rank && size == options.size);
    int *shared = svm_malloc_all(sizeof *shared, 0, SVM_FIRST_TOUCH);
    CHECK(shared);
    if (rank == 0)
        SVM_ST(*shared, 42);
    OK(svm_barrier(0));
    CHECK(*shared == 42);
    OK(svm_leave());
    for (int i = 1; rank == 0 && i < size; i++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
    return 0;
}
