/* Of NX's own files: nx.c has messages, global.c the calls of all nodes and those that exchange none. */
#ifndef NX_INTERNAL_H
#define NX_INTERNAL_H

#include "nx.h"

extern int nx_rank, nx_has_failed;

/* A call's result; an error prints why, and ends the program. */
long nx_checked(long result, const char *call);
/* -1, with errno. */
int nx_fail(int error);
/* The same, with EINVAL: an argument and its value, which nx_checked prints. */
int nx_wrong(const char *what, long value);

/* Both forms of a call. */
#define CALL(result, name, parameters, arguments, ...)           \
    long _##name parameters {                                    \
        return __VA_ARGS__;                                      \
    }                                                            \
    result name parameters {                                     \
        return (result)nx_checked(_##name arguments, #name);     \
    }

/* Messages of the library: to a node; and of a node, up to `count` bytes: how many came. -1: an error, in errno. */
long nx_give(const void *buf, long count, long node);
long nx_get(void *buf, long count, long node);

#endif
