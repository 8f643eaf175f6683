/* The last line of each program, for `hamlyn-vmmc paper`: words of the form name=value. */
#ifndef COUNTS_H
#define COUNTS_H

#include "../pairs/pairs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What has been sent since `before`. */
static inline struct pairs_counts counts_since(struct pairs_counts now, struct pairs_counts before) {
    return (struct pairs_counts){now.messages - before.messages, now.notifications - before.notifications,
                                 now.deliberate_bytes - before.deliberate_bytes,
                                 now.automatic_bytes - before.automatic_bytes};
}

static inline void counts_add(struct pairs_counts *to, struct pairs_counts other) {
    to->messages += other.messages;
    to->notifications += other.notifications;
    to->deliberate_bytes += other.deliberate_bytes;
    to->automatic_bytes += other.automatic_bytes;
}

/* The update that the environment's variable chooses. */
static inline const char *counts_update(const char *variable) {
    const char *update = getenv(variable);
    return update && *update ? update : "deliberate";
}

/* The beginning of the line; a program with words of its own goes on with it, and ends it. */
static inline void counts_print(const char *program, int ranks, const char *update, double seconds,
                                struct pairs_counts sent) {
    printf("program=%s ranks=%d update=%s seconds=%.6f messages=%" PRIu64 " notifications=%" PRIu64
           " deliberate_bytes=%" PRIu64 " automatic_bytes=%" PRIu64 " checked=yes",
           program, ranks, update, seconds, sent.messages, sent.notifications, sent.deliberate_bytes,
           sent.automatic_bytes);
}

#endif
