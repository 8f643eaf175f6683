/* Receives that are posted, and messages that have come before their receive: once for NX and for MPI.
 *
 *   a message comes      match_receive() -> the receive that was posted first, taken out
 *                        none: match_keep()
 *   a receive is posted  match_message() -> the message that came first, which match_take() takes out
 *                        none: match_post()
 *
 * A user embeds `struct match` as the first member of its receives and messages, and owns their memory: nothing here
 * allocates for one, so its user's bounds hold. One thread.
 */
#ifndef MATCH_H
#define MATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct match {
    TAILQ_ENTRY(match) link; /* in one list, which may be one of the user's when it is not here */
    uint64_t order;
    uint32_t context;        /* the same in both */
    int32_t peer;            /* of a receive: negative is every peer */
    int32_t tag;             /* of a message: not negative; of a receive: as match_tag says */
    /* Of a receive, asked last, about a message that fits otherwise: NULL admits all. */
    bool (*admits)(const struct match *receive, const struct match *message);
};
TAILQ_HEAD(match_list, match);

struct matcher {
    int peers;
    uint64_t order;
    /* By peer; behind them, the receives of every peer. */
    struct match_list *posted, *came;
};

/* 0, or -1: there is no memory. */
int match_open(struct matcher *matcher, int peers);
/* Frees the lists; what is in them is its user's. */
void match_close(struct matcher *matcher);

/* Whether a receive's tag selects a message's: a tag itself; any other negative number is a set, as NX has them: bit 30
 * stands for all tags from 30 on, the bits 0 to 29 for one each. So -1 selects all. */
static inline bool match_tag(int32_t selector, int32_t tag) {
    return selector == tag || (selector < 0 && ((uint32_t)selector >> (tag < 30 ? tag : 30) & 1));
}

struct match *match_receive(struct matcher *matcher, const struct match *message);
void match_post(struct matcher *matcher, struct match *receive);
/* Takes a posted receive out. */
void match_retract(struct matcher *matcher, struct match *receive);

struct match *match_message(const struct matcher *matcher, const struct match *receive);
void match_keep(struct matcher *matcher, struct match *message);
void match_take(struct matcher *matcher, struct match *message);

#endif
