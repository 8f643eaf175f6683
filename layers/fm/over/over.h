/* Shared by fm_sockets, shmem and ga, and not for programs; over fm.h alone.
 *
 *   over_wait      runs handlers until a condition holds; sleeps in FM_wait once nothing has come for 50 us
 *   over_reserve   waits until a message of so many bytes fits into the account of its node
 *   over_settle    the node's handler has taken it: in the handler of the acknowledgement
 *   over_request   sends a request with a place for its reply    -> over_reply, in the owner's handler
 *   over_barrier   all nodes have come with the same value; node 0 counts
 *
 * Never: a send waits for a node that waits for this one (an account is smaller than FM's credit); a value
 * of a peer is used before it is checked; a wait outlasts the node that it waits for.
 */
#ifndef OVER_H
#define OVER_H

#include <fm.h>
#include <stddef.h>
#include <stdint.h>

/* Every public error code of the three libraries is one of these. */
enum { OVER_OK = 0, OVER_DEAD = -1, OVER_TIME = -2, OVER_REFUSED = -3, OVER_RANGE = -4, OVER_SYSTEM = -5 };

enum { OVER_SOCKETS, OVER_SHMEM, OVER_GA, OVER_CLIENTS };

/* Identifiers of handlers. */
enum { OVER_ACK = 1000, OVER_REPLY, OVER_ARRIVE, OVER_RELEASE, OVER_ID_SOCKETS, OVER_ID_SHMEM = 1010, OVER_ID_GA = 1015 };

/* Most bytes of one message, without its header: a packet of FM with its default credit. */
#define OVER_CHUNK 8192u
/* Most bytes of a reply, so that its room is reserved (2 KiB with its header). */
#define OVER_REPLY_BYTES 2040u

/* `count` rows of `bytes` bytes, `stride` bytes apart. */
typedef struct {
    char *at;
    size_t bytes, count, stride;
} over_rows;

/* Joins FM if the program has not, and registers `count` handlers from `id` on, once. Again: does nothing. */
int over_start(int client, unsigned long id, FM_handler *const *handlers, unsigned count);
int over_is_started(int client);
/* Leaves FM after the last library, if over_start has joined. */
void over_stop(int client);

#define OVER_ANY (-1L)  /* over_wait: ends if any other node has left */
#define OVER_NONE (-2L) /* over_wait: ends with the time only */
/* Extracts at most `most` bytes at a time until `ready(of)`. `ms` negative: without limit. Returns OVER_OK,
 * OVER_TIME, OVER_DEAD: `node` has left, and everything that it had sent is extracted, or OVER_SYSTEM: this is a
 * handler or another thread. */
int over_wait(int (*ready)(void *), void *of, long node, long ms, unsigned most);
long over_ms(void);
/* In a handler: the message's first bytes. 0: there are fewer, which is counted. */
int over_take(FM_stream *stream, void *header, unsigned bytes, int client);

/* Takes `bytes` from the account of `node`. `ms` as above. */
int over_reserve(unsigned long node, unsigned bytes, long ms);
int over_has_room(unsigned long node, unsigned bytes);
/* Gives them back. -1: the node has acknowledged more than it was sent. */
int over_settle(unsigned long node, uint64_t bytes);
/* In the owner's handler: acknowledges a message of `bytes`. One that is refused is counted. */
void over_acknowledge(unsigned long node, int client, unsigned bytes, int is_refused);
/* Waits until every node has acknowledged everything. OVER_DEAD: one has left before it did. */
int over_quiet(void);
/* Messages of this library that owners have refused, since the last call. */
unsigned over_take_failures(int client);

#define OVER_HANDLER (-2L)
/* One message: a header, then rows, if not NULL. Waits for FM's room as over_wait does, also for a peer that has
 * acknowledged what it has not taken; OVER_HANDLER: does not, in a handler or after FM_room. */
int over_send(unsigned long node, unsigned long id, const void *header, unsigned bytes, const over_rows *rows,
              long ms);
/* In a handler: the rest of the message to rows. -1: it ended early. */
int over_receive(FM_stream *stream, over_rows rows);

/* Sends a request whose first field, a uint32_t, becomes a tag; the reply goes to `to`, at most
 * OVER_REPLY_BYTES. Waits while eight are open. */
int over_request(unsigned long node, unsigned long id, void *header, unsigned bytes, over_rows to);
/* Waits for the replies of all requests. Returns the first error. */
int over_finish(void);
/* In the owner's handler. NULL: it is refused, and counted. */
void over_reply(unsigned long node, int client, uint32_t tag, const over_rows *rows);

/* OVER_REFUSED: the nodes have come with different values. OVER_DEAD: one has left. OVER_RANGE: not started. */
int over_barrier(int client, uint64_t value);

/* Counts a value of a peer that was refused. */
void over_refuse(int client);
unsigned long long over_refused(int client);
const char *over_error_text(int code);

#endif
