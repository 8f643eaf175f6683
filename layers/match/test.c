/* match.c against its promises, read off a plain list of everything in its order. */
#include "match.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(#holds, __LINE__))
#define PEERS 5
#define MOST 200

static void fail(const char *what, int line) {
    fprintf(stderr, "match/test.c:%d: not so: %s\n", line, what);
    exit(1);
}

struct item {
    struct match match;
    int is_there, ptype;
};

static uint64_t state = 88172645463325252u;

static int next(int below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int)(state % (uint64_t)below);
}

static bool is_of_type(const struct match *receive, const struct match *message) {
    return ((const struct item *)receive)->ptype == ((const struct item *)message)->ptype;
}

static void tags_are_exact_any_or_a_set(void) {
    CHECK(match_tag(0, 0) && match_tag(INT32_MAX, INT32_MAX) && !match_tag(5, 6));
    CHECK(match_tag(-1, 0) && match_tag(-1, 29) && match_tag(-1, 30) && match_tag(-1, INT32_MAX));
    int32_t some = (int32_t)(0x80000000u | 1u << 3 | 1u << 29);
    CHECK(match_tag(some, 3) && match_tag(some, 29) && !match_tag(some, 4) && !match_tag(some, 30) && !match_tag(some, 35));
    int32_t high = (int32_t)0xC0000000u;
    CHECK(match_tag(high, 30) && match_tag(high, 1 << 30) && !match_tag(high, 29) && !match_tag(high, 0));
}

/* The first of a list that is there and fits. */
static struct item *first(struct item *items, int count, const struct item *of, bool is_message) {
    for (int i = 0; i < count; i++) {
        const struct match *receive = is_message ? &items[i].match : &of->match;
        const struct match *message = is_message ? &of->match : &items[i].match;
        if (items[i].is_there && receive->context == message->context &&
            (receive->peer < 0 || receive->peer == message->peer) && match_tag(receive->tag, message->tag) &&
            (!receive->admits || receive->admits(receive, message)))
            return &items[i];
    }
    return NULL;
}

static struct item random_item(bool is_message) {
    static const int32_t selectors[] = {-1, (int32_t)0x80000006u, (int32_t)0xC0000001u};
    struct item item = {.is_there = 1, .ptype = next(2)};
    item.match.context = (uint32_t)next(2);
    item.match.peer = is_message ? next(PEERS) : next(PEERS + 2) - 2;
    item.match.tag = is_message || next(2) ? next(4) + 28 * next(2) : selectors[next(3)];
    item.match.admits = !is_message && next(4) == 0 ? is_of_type : NULL;
    return item;
}

static void the_first_in_order_is_found(void) {
    static struct item posted[MOST], came[MOST];
    struct matcher matcher;
    int matched = 0;
    for (int round = 0; round < 500; round++) {
        CHECK(match_open(&matcher, PEERS) == 0);
        int posts = 0, comings = 0;
        for (int i = 0; i < MOST; i++) {
            int what = next(9);
            if (what < 4) {
                struct item message = random_item(true), *wanted = first(posted, posts, &message, true);
                CHECK(match_receive(&matcher, &message.match) == (wanted ? &wanted->match : NULL));
                matched += wanted != NULL;
                if (wanted) {
                    wanted->is_there = 0;
                } else {
                    came[comings] = message;
                    match_keep(&matcher, &came[comings++].match);
                }
            } else if (what < 8) {
                struct item receive = random_item(false), *wanted = first(came, comings, &receive, false);
                struct match *found = match_message(&matcher, &receive.match);
                CHECK(found == (wanted ? &wanted->match : NULL));
                matched += wanted != NULL;
                if (wanted) {
                    match_take(&matcher, found);
                    wanted->is_there = 0;
                } else {
                    posted[posts] = receive;
                    match_post(&matcher, &posted[posts++].match);
                }
            } else if (posts > 0 && posted[what = next(posts)].is_there) {
                match_retract(&matcher, &posted[what].match);
                posted[what].is_there = 0;
            }
        }
        match_close(&matcher);
    }
    CHECK(matched > 10000);
}

int main(void) {
    tags_are_exact_any_or_a_set();
    the_first_in_order_is_found();
    printf("match: all as said\n");
    return 0;
}
