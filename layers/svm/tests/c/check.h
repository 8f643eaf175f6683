/* Of the tests: a wrong result ends the program with its line. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <svm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, svm_error_text()); \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)
#define OK(call) CHECK((call) == 0)

static inline int protocol_of(const char *name)
{
    return !strcmp(name, "aurc") ? SVM_AURC : !strcmp(name, "hlrc-au") ? SVM_HLRC_AU : SVM_HLRC;
}

static inline uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
