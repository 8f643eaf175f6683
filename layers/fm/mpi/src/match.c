/* Receives that are posted, and messages that have come before their receive.
 *
 *   a message comes      match_posted() -> the receive that was posted first, of its source's and those of any
 *                        none: match_add()
 *   a receive is posted  match_message() -> the message that came first; none: match_post()
 *
 * A list for each source keeps the order between two ranks; numbers in order of posting and of coming decide
 * between lists. Never: a receive is passed over for one that was posted later, or a message for a later one.
 */
#include "internal.h"
#include <stdlib.h>

struct receives {
    struct request *first, **end;
};
struct messages {
    struct message *first, **end;
};
static int nodes;
/* By source; behind them those of any source. */
static struct receives *posted;
static struct messages *came;
static uint64_t posts, comings;

int match_begin(int count) {
    nodes = count;
    posted = calloc(nodes + 1, sizeof *posted);
    came = calloc(nodes, sizeof *came);
    if (!posted || !came)
        return -1;
    for (int i = 0; i <= nodes; i++)
        posted[i].end = &posted[i].first;
    for (int i = 0; i < nodes; i++)
        came[i].end = &came[i].first;
    return 0;
}

void match_finish(void) {
    for (int i = 0; i < nodes; i++)
        for (struct message *message = came[i].first, *next; message; message = next) {
            next = message->next;
            free(message);
        }
    free(posted);
    free(came);
    nodes = 0;
}

static struct receives *list_of(int source) {
    return &posted[source == MPI_ANY_SOURCE ? nodes : source];
}

void match_post(struct request *request) {
    struct receives *list = list_of(request->peer);
    request->order = posts++;
    request->next = NULL;
    *list->end = request;
    list->end = &request->next;
}

static void take_receive(struct receives *list, struct request **at) {
    struct request *request = *at;
    *at = request->next;
    if (!*at)
        list->end = at;
    request->next = NULL;
}

void match_retract(struct request *request) {
    struct receives *list = list_of(request->peer);
    for (struct request **at = &list->first; *at; at = &(*at)->next)
        if (*at == request) {
            take_receive(list, at);
            return;
        }
}

/* A rank can say any context: one that is no member of the communicator is not "any source". */
static struct request **find_receive(struct receives *list, unsigned context, int source, int tag) {
    for (struct request **at = &list->first; *at; at = &(*at)->next)
        if ((*at)->context == context && ((*at)->tag == tag || (*at)->tag == MPI_ANY_TAG) &&
            ((*at)->peer == source || comm_rank_of((*at)->comm, source) != MPI_UNDEFINED))
            return at;
    return NULL;
}

struct request *match_posted(unsigned context, int source, int tag) {
    struct receives *list = &posted[source], *any = &posted[nodes];
    struct request **of = find_receive(list, context, source, tag);
    struct request **of_any = find_receive(any, context, source, tag);
    if (of_any && (!of || (*of_any)->order < (*of)->order)) {
        of = of_any;
        list = any;
    }
    if (!of)
        return NULL;
    struct request *request = *of;
    take_receive(list, of);
    return request;
}

void match_add(struct message *message) {
    struct messages *list = &came[message->source];
    message->order = comings++;
    message->next = NULL;
    *list->end = message;
    list->end = &message->next;
}

struct message *match_message(const struct comm *comm, unsigned context, int source, int tag, bool takes) {
    struct message **best = NULL;
    for (int i = 0; i < (source == MPI_ANY_SOURCE ? comm->size : 1); i++)
        for (struct message **at = &came[source == MPI_ANY_SOURCE ? comm->world[i] : source].first; *at;
             at = &(*at)->next)
            if ((*at)->context == context && ((*at)->tag == tag || tag == MPI_ANY_TAG)) {
                if (!best || (*at)->order < (*best)->order)
                    best = at;
                break;
            }
    if (!best)
        return NULL;
    struct message *message = *best;
    if (takes) {
        *best = message->next;
        if (!*best)
            came[message->source].end = best;
    }
    return message;
}
