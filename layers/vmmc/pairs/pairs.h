/* What NX and BSP share: of each ordered pair of ranks a receive buffer with control words and rings.
 *
 *     words[WORDS]    written by the other rank, read here: counts of its bytes in the rings, and of ours that it took
 *     ring 0, 1, ..   written by the other rank
 *
 * A ring holds bytes n of a stream at n modulo its length, a power of two. The other's words are hostile: a user copies
 * one once (pairs_word), checks the copy against its own counts, and uses the copy; so with bytes of a ring.
 *
 * Updates are deliberate, or, with the environment's word `automatic`, stores to a binding of the whole buffer (the
 * store engine, combined), flushed with each control word; with `uncombined` each 8 bytes are a message of their own
 * (4.5.1). All arrive in order: a word behind the bytes it counts.
 * A rank's pair with itself is plain memory.
 *
 * One thread. Functions return 0 or a negative VMMC_ error.
 */
#ifndef PAIRS_H
#define PAIRS_H

#include <vmmc.h>

#define PAIRS_WORDS 8
#define PAIRS_CONTROL 64

struct pair {
    vmmc_buffer_t *buffer;
    unsigned char *memory; /* of `buffer`: written by the other */
    vmmc_proxy_t *proxy;
    vmmc_bound_t *bound; /* with automatic update */
    uint64_t runs;       /* of `bound`, that are counted */
    uint64_t seen[PAIRS_WORDS];
    int error; /* why it is at its end, or 0 */
};

struct pairs {
    vmmc_t *vmmc;
    int rank, size;
    int ms; /* of updates: -1, or 0 */
    uint64_t bytes; /* of the rings of a pair */
    uint64_t fulls, fulls_seen; /* updates without room, and those before the last pairs_wait */
    int yields;                 /* since the last update with room */
    struct pair *of;
};

/* What this process has sent by pairs, to others. */
struct pairs_counts {
    uint64_t messages, notifications, deliberate_bytes, automatic_bytes;
};

/* Joins the job; makes a buffer `name` for each rank with so many bytes of rings. */
int pairs_open(struct pairs *pairs, const char *name, uint64_t bytes, const char *variable, int ms);
void pairs_close(struct pairs *pairs);
/* Bytes to a place in the rings of a rank, before its words that follow. */
int pairs_put(struct pairs *pairs, int rank, uint64_t at, const void *data, uint64_t bytes);
/* Bytes of a stream from its byte `count` on, to the ring at `ring` with `length` bytes. */
int pairs_put_ring(struct pairs *pairs, int rank, uint64_t ring, uint64_t length, uint64_t count, const void *data,
                   uint64_t bytes);
/* The same, but does not wait for room on the way to the rank, after pairs_never_wait: how many bytes are there. */
int64_t pairs_try_ring(struct pairs *pairs, int rank, uint64_t ring, uint64_t length, uint64_t count, const void *data,
                       uint64_t bytes);
/* From now on pairs_put_word gives up with VMMC_TIMED_OUT, where there is no room: call it again, behind pairs_wait.
 * A rank that takes no turns, for whatever reason, would hold up this one otherwise. With automatic update it does: a
 * store waits. */
void pairs_never_wait(struct pairs *pairs);
/* Copies bytes of the stream that a rank has put into a ring here. */
void pairs_take_ring(struct pairs *pairs, int rank, uint64_t ring, uint64_t length, uint64_t count, void *to,
                     uint64_t bytes);
/* A control word to a rank. */
int pairs_put_word(struct pairs *pairs, int rank, int word, uint64_t value);
/* A control word of a rank: one load, after which its bytes are here. */
uint64_t pairs_word(struct pairs *pairs, int rank, int word);
/* 0, or why the pair is at its end: then all that the rank had sent is here. */
int pairs_ended(struct pairs *pairs, int rank);
/* Waits until a word of any rank has changed since the last pairs_wait began, or a rank has ended; a millisecond where
 * there was no room, since room comes without a sign. */
int pairs_wait(struct pairs *pairs, int ms);
/* Takes a turn, and looks for ranks that have ended: whether any word has changed. */
int pairs_poll(struct pairs *pairs);
/* Runs of automatic update are counted at the next control word. */
struct pairs_counts pairs_counts(void);

#endif
