/* Calls that are not allowed; system calls; another thread; signals of others. misuse PROTOCOL [thread]: 2 processes; `thread`: one, which
 * another thread of it ends with a sentence. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static sigjmp_buf back;
static volatile void *fault;

static void on_bus(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    fault = info->si_addr;
    siglongjmp(back, 1);
}

static void *other(void *shared)
{
    CHECK(svm_lock(1) == SVM_MISUSE && strstr(svm_error_text(), "this thread has not joined"));
    return shared;
}

static void *toucher(void *shared)
{
    *(volatile char *)shared = 1;
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    int rank, size, protocol = protocol_of(argv[1]);
    /* A program that takes SIGBUS, and SIGSEGV, for its own reason goes on doing so. */
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);

    CHECK(svm_join(&rank, &size, 0, protocol, NULL) == SVM_MISUSE);
    CHECK(svm_join(&rank, &size, 1 << 20, 7, NULL) == SVM_MISUSE);
    svm_options_t few = {.cache_bytes = 4096};
    CHECK(svm_join(&rank, &size, 1 << 20, protocol, &few) == SVM_MISUSE);
    CHECK(svm_lock(0) == SVM_MISUSE);
    OK(svm_join(&rank, &size, 1 << 20, protocol, NULL));
    int again;
    CHECK(svm_join(&again, &again, 1 << 20, protocol, NULL) == SVM_MISUSE && strstr(svm_error_text(), "already"));
    CHECK(svm_stores_leave == (protocol == SVM_AURC));

    CHECK(svm_unlock(3) == SVM_MISUSE);
    CHECK(svm_signal(3, 3) == SVM_MISUSE && svm_broadcast(3, 3) == SVM_MISUSE && strstr(svm_error_text(), "hold"));
    CHECK(svm_lock(-1) == SVM_MISUSE && svm_lock(SVM_OBJECTS) == SVM_MISUSE);
    CHECK(svm_barrier_of(0, size + 1) == SVM_MISUSE && svm_barrier_of(0, 0) == SVM_MISUSE);
    CHECK(svm_lock(rank) == 0 && svm_lock(rank) == SVM_MISUSE);
    OK(svm_unlock(rank));
    CHECK(svm_malloc(0, 0, SVM_FIRST_TOUCH) == NULL && svm_malloc(1, 3, SVM_FIRST_TOUCH) == NULL);
    CHECK(svm_malloc(1, 0, size) == NULL && svm_malloc(1, 0, -9) == NULL);
    CHECK(svm_touch("elsewhere", 4) == SVM_MISUSE);
    OK(svm_barrier(0));

    char *shared = svm_malloc_all(4 * 4096, 0, 0), *alone = svm_malloc(4096, 0, rank);
    CHECK(shared && alone);
    if (rank == 0)
        svm_memset(shared, 'x', 4 * 4096);
    OK(svm_barrier(0));

    /* System calls do not fetch. */
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    if (rank == 1) {
        CHECK(write(pipes[1], shared, 8192) == -1 && errno == EFAULT);
        OK(svm_touch(shared, 8192));
        CHECK(write(pipes[1], shared, 8192) == 8192);
        OK(svm_touch(alone, 4096));
        CHECK(read(pipes[0], alone, 4096) == 4096 && alone[4095] == 'x');
    }

    /* A fault elsewhere is the program's. */
    int file = memfd_create("short", 0);
    char *beyond = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    CHECK(file >= 0 && beyond != MAP_FAILED);
    if (!sigsetjmp(back, 1)) {
        (void)*(volatile char *)beyond;
        CHECK(!"a load behind a file's end");
    }
    CHECK(fault == beyond);
    if (!sigsetjmp(back, 1)) {
        (void)*(volatile char *)16;
        CHECK(!"a load of nothing");
    }
    CHECK(fault == (char *)16);
    CHECK(rank == 0 || shared[3 * 4096] == 'x');

    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other, NULL) == 0 && pthread_join(thread, NULL) == 0);

    char text[4096];
    OK(svm_explain(text, sizeof text));
    const char *faults = getenv("SVM_FAULTS") ? "protection (SIGSEGV)" : "userfaultfd (SIGBUS)";
    if (!strstr(text, faults))
        fprintf(stderr, "\033[1;33m!! SKIPPED faults by userfaultfd: %s\033[0m\n", text);
    CHECK(getenv("SVM_FAULTS") == NULL || strstr(text, faults));
    OK(svm_barrier(0));

    if (argc > 2) {
        char *fresh = svm_malloc(4096, 4096, SVM_FIRST_TOUCH);
        CHECK(pthread_create(&thread, NULL, toucher, fresh) == 0 && pthread_join(thread, NULL) == 0);
    }
    OK(svm_leave());
    CHECK(svm_leave() == SVM_MISUSE && svm_barrier(0) == SVM_MISUSE);
    return 0;
}
