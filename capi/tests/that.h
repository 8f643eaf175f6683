/* The assertions of the C library's tests: a false one ends the process. */
#ifndef HAMLYN_TESTS_THAT_H
#define HAMLYN_TESTS_THAT_H

#include "../examples/common.h"

#define THAT(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: not so: %s; last failure: %s\n", __LINE__, #condition,       \
                    h_error_message());                                                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Counts the requests, in the context, and admits this process alone. */
static inline bool admit_this(void *context, const h_peer_t *peer) {
    ++*(int *)context;
    return peer->pid == (int64_t)getpid();
}

#endif
