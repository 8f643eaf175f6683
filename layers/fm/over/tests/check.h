/* A claim that does not hold ends the program, and with it the job. */
#ifndef CHECK_H
#define CHECK_H

#include <fm.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(claim)                                                                              \
    do {                                                                                          \
        if (!(claim)) {                                                                           \
            fprintf(stderr, "node %lu: %s:%d: %s\n", FM_nodeid, __FILE__, __LINE__, #claim);      \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)
#define EQUAL(value, wanted)                                                                      \
    do {                                                                                          \
        long long value_ = (long long)(value), wanted_ = (long long)(wanted);                     \
        if (value_ != wanted_) {                                                                  \
            fprintf(stderr, "node %lu: %s:%d: %s is %lld, not %lld\n", FM_nodeid, __FILE__, __LINE__, #value, \
                    value_, wanted_);                                                             \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static inline unsigned char byte_at(unsigned long at) { return (unsigned char)(at * 2654435761u >> 11); }

static inline unsigned long next_random(unsigned long *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

#endif
