/* A list for each peer keeps the order between two programs; numbers in order of posting and of coming decide between
 * lists. Never: a receive is passed over for one that was posted later, or a message for one that came later. */
#include "match.h"

#include <stdlib.h>

int match_open(struct matcher *matcher, int peers) {
    struct match_list *lists = calloc(2 * (size_t)peers + 1, sizeof *lists);
    if (!lists) return -1;
    for (int i = 0; i < 2 * peers + 1; i++) TAILQ_INIT(&lists[i]);
    *matcher = (struct matcher){.peers = peers, .posted = lists, .came = lists + peers + 1};
    return 0;
}

void match_close(struct matcher *matcher) {
    free(matcher->posted);
    *matcher = (struct matcher){0};
}

static bool fits(const struct match *receive, const struct match *message) {
    return receive->context == message->context && match_tag(receive->tag, message->tag) &&
           (!receive->admits || receive->admits(receive, message));
}

static struct match_list *posted_at(struct matcher *matcher, int peer) {
    return &matcher->posted[peer < 0 ? matcher->peers : peer];
}

static struct match *first_receive(const struct match_list *list, const struct match *message) {
    struct match *at;
    TAILQ_FOREACH(at, list, link) if (fits(at, message)) break;
    return at;
}

struct match *match_receive(struct matcher *matcher, const struct match *message) {
    struct match *found = first_receive(posted_at(matcher, message->peer), message);
    struct match *any = first_receive(posted_at(matcher, -1), message);
    if (any && (!found || any->order < found->order)) found = any;
    if (found) match_retract(matcher, found);
    return found;
}

void match_post(struct matcher *matcher, struct match *receive) {
    receive->order = matcher->order++;
    TAILQ_INSERT_TAIL(posted_at(matcher, receive->peer), receive, link);
}

void match_retract(struct matcher *matcher, struct match *receive) {
    TAILQ_REMOVE(posted_at(matcher, receive->peer), receive, link);
}

struct match *match_message(const struct matcher *matcher, const struct match *receive) {
    struct match *best = NULL, *at;
    int first = receive->peer < 0 ? 0 : receive->peer;
    int end = receive->peer < 0 ? matcher->peers : receive->peer + 1;
    for (int peer = first; peer < end; peer++) {
        TAILQ_FOREACH(at, &matcher->came[peer], link) if (fits(receive, at)) break;
        if (at && (!best || at->order < best->order)) best = at;
    }
    return best;
}

void match_keep(struct matcher *matcher, struct match *message) {
    message->order = matcher->order++;
    TAILQ_INSERT_TAIL(&matcher->came[message->peer], message, link);
}

void match_take(struct matcher *matcher, struct match *message) {
    TAILQ_REMOVE(&matcher->came[message->peer], message, link);
}
