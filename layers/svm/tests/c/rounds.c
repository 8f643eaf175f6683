/* Each round, each byte has one writer, as a hash says, and after a barrier all processes read all bytes: false sharing to
 * the byte, and under a limit that is far below the shared space. Between barriers, counters that share pages with these
 * bytes are changed under locks. rounds PROTOCOL CACHE_KIB PAGES ROUNDS SEED */
#include "check.h"

#define LOCKS 16

static int rank, size;
static uint64_t seed;

static int writer(int round, size_t at)
{
    /* Some rounds in long runs, some byte by byte. */
    size_t unit = round % 3 == 0 ? at / 512 : round % 3 == 1 ? at / 8 : at;
    return mixed(seed + 1000003 * (uint64_t)round + unit) % (size + 1); /* `size`: nobody */
}

int main(int argc, char **argv)
{
    CHECK(argc == 6);
    svm_options_t options = {.cache_bytes = (uint64_t)atoi(argv[2]) << 10};
    size_t bytes = (size_t)atoi(argv[3]) * 4096;
    int rounds = atoi(argv[4]);
    seed = atoi(argv[5]);
    OK(svm_join(&rank, &size, bytes + 65536, protocol_of(argv[1]), &options));
    unsigned char *shared = svm_malloc_all(bytes, 4096, seed % 2 ? SVM_FIRST_TOUCH : SVM_CYCLIC);
    CHECK(shared);
    unsigned char *right = calloc(1, bytes);
    uint64_t *counters = svm_malloc_all(LOCKS * sizeof *counters, 0, SVM_FIRST_TOUCH);
    CHECK(counters && right);
    for (int round = 0; round < rounds; round++) {
        for (size_t at = 0; at < bytes; at++) {
            int of = writer(round, at);
            unsigned char byte = mixed(seed ^ (at * 31 + round));
            if (of == size)
                continue;
            right[at] = byte;
            if (of == rank)
                SVM_ST(shared[at], byte);
        }
        for (int i = 0; i < 8; i++) {
            int lock = mixed(seed + round * 64 + rank * 8 + i) % LOCKS;
            CHECK(svm_lock(lock) == 0);
            SVM_ST(counters[lock], counters[lock] + 1);
            OK(svm_unlock(lock));
        }
        OK(svm_barrier(0));
        for (size_t at = 0; at < bytes; at++)
            if (shared[at] != right[at]) {
                fprintf(stderr, "round %d, process %d: byte %zu is %d, not %d\n", round, rank, at, shared[at], right[at]);
                _exit(1);
            }
        OK(svm_barrier(1));
    }
    uint64_t sum = 0;
    for (int i = 0; i < LOCKS; i++)
        sum += counters[i];
    CHECK(sum == (uint64_t)rounds * 8 * size);
    svm_figures_t figures;
    OK(svm_stat(&figures));
    CHECK(figures.refused == 0);
    if (options.cache_bytes) {
        CHECK(figures.pages_cached * 4096 <= options.cache_bytes);
        CHECK(seed % 2 || size == 1 || figures.evictions > 0); /* Where homes are spread. */
    }
    if (getenv("VERBOSE") && rank == 0)
        printf("misses %lu fetches %lu in place %lu differences %lu evictions %lu messages %lu\n", figures.misses,
               figures.fetches, figures.fetched_in_place, figures.differences, figures.evictions, figures.messages_sent);
    OK(svm_leave());
    return 0;
}
