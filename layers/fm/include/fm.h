/* Illinois Fast Messages 2.x on Hamlyn. The calls of the paper (M. Lauria, S. Pakin and A. Chien, 1998, Table 2), in
 * the order of arguments of its example; *from the header* marks what the paper does not name and the one public header of
 * FM that survives does; *ours* marks what neither has.
 *
 * One thread uses all calls. A length is in bytes. A message goes to the node `dest`, 0 to FM_numnodes - 1, also to
 * the caller itself. Link with -lhamlynfm (pkg-config hamlyn-fm).
 *
 * Sends outside of handlers wait for room at most the time limit, accept what arrives meanwhile, and run no handler.
 * Sends inside of handlers never wait: what has no room is kept and given out at the end of FM_extract.
 */
#ifndef FM_H
#define FM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A message that is being sent, or received. */
typedef struct FM_stream FM_stream;

/* What a handler returns. FM_ABORT: the rest of the message is thrown away (as it is whenever a handler returns
 * before it has received everything), and FM_extract returns at once. (from the header) */
#define FM_CONTINUE 1
#define FM_ABORT 0

/* A handler: called by FM_extract at a message's first packet, suspended in FM_receive until there is more. It has a
 * stack of FM_STACK_BYTES. It must not call FM_extract, FM_finalize, or longjmp out of itself. */
typedef int FM_handler(FM_stream *stream, unsigned sender);

/* Identifiers of handlers: 0 to FM_MAX_HANDLERS - 1. */
#define FM_MAX_HANDLERS 1024
/* For FM_register_handler: the next identifier that is free. (from the header) */
#define FM_ANY_ID ((unsigned long)-1)

/* This node, and how many there are. 0 and 0 before FM_initialize. (from the header) */
extern unsigned long FM_nodeid;
extern unsigned long FM_numnodes;

/* Joins the job that the program was started in (`hamlyn run -n 4 -- ./program`, mpirun, srun; alone: one node), or,
 * with HAMLYN_FM_MEET=name in the environment, meets the one other program with that name: two nodes. Returns when
 * all nodes have come. Prints why and exits with 1 if it cannot, as the paper's has no way to say it. */
void FM_initialize(void);
/* ours: the same, and returns 0, or -1 with FM_error_text(). */
int FM_try_initialize(void);
/* Waits until what this node has sent has been taken over by the other nodes' interfaces, at most the time limit, and
 * leaves. Handlers that are suspended see the end of their messages. */
void FM_finalize(void);

/* Parameters of FM_set_parameter, before FM_initialize, but FM_TIME_LIMIT_MS at any time. (ours) */
#define FM_TIME_LIMIT_MS 1   /* for sends, milliseconds; 0: none. 60000 */
#define FM_CREDIT_BYTES 2    /* room for what one peer has sent and no handler has taken. 49152 */
#define FM_STACK_BYTES 3     /* a handler's stack. 262144 */
#define FM_QUEUE_BYTES 4     /* room for what handlers send, beyond replies. 65536 */
#define FM_OPEN_MESSAGES 5   /* messages of one peer that may be open at once. 16 */
/* Returns 0; -1: not such a parameter or value, or too late. (the call is from the header, its values are ours) */
int FM_set_parameter(int parameter, int value);

/* Gives a handler an identifier, after FM_initialize; returns it. FM_ANY_ID: the next one, so that all nodes must
 * register in the same order, which nothing checks. -1: it is out of range, or used for another. A message for an identifier without a handler is thrown away and counted.
 * (from the header) */
unsigned long FM_register_handler(unsigned long id, FM_handler *handler);

/* Begins a message of at most `bytes`. NULL: FM_error() says why. */
FM_stream *FM_begin_message(unsigned long dest, unsigned long bytes, unsigned long handler);
/* Sends the next piece, which may be used again when the call returns. A short message may not leave before
 * FM_end_message. Returns 0; -1: FM_error(). */
int FM_send_piece(FM_stream *stream, const void *buf, unsigned long bytes);
/* Ends the message. `stream` is no more. Returns 0; -1: FM_error(). */
int FM_end_message(FM_stream *stream);
/* ours. How many bytes a piece, or a message of one piece, to `node` may have so that sending it surely does not
 * wait: a packet at most. So a program with something else to do can send as there is room. A node that has left has
 * room: the send tells it. 0: none now, or no such node. */
unsigned long FM_room(unsigned long node);
/* Sends four words as one message of 16 bytes. Returns 0; -1: FM_error(). (Table 1) */
int FM_send_4(unsigned long dest, unsigned long handler, unsigned i0, unsigned i1, unsigned i2, unsigned i3);

/* In a handler: the next `bytes` of the message to `buf`. Waits until they have come, while other handlers run.
 * Returns how many: fewer at the end of the message, or where its sender died. */
int FM_receive(void *buf, FM_stream *stream, unsigned bytes);
/* ours. In a handler: how many bytes can still come, at most: what is left of the length that the sender said; 0:
 * the message is at its end. */
unsigned long FM_left(FM_stream *stream);

/* Gives packets to handlers until `maxbytes` have been given (rounded up to a packet), or there are none; then gives
 * out what handlers have sent. 0: gives out only. Returns the number of bytes given to handlers. Never waits. */
int FM_extract(unsigned maxbytes);
#define FM_ALL ((unsigned)-1)
/* ours. Waits until there is something to extract or a node has died, at most `ms` (negative: without limit), and
 * sleeps meanwhile if that is long. Returns 1, or 0 after the time. */
int FM_wait(int ms);
/* ours. Whether a node's program has ended. The messages that it had sent can still be extracted. */
int FM_has_left(unsigned long node);

/* ours. Why the last call failed. */
#define FM_OK 0
#define FM_FULL 1   /* no room in the time limit; in a handler: no room in the queue */
#define FM_DEAD 2   /* the other node's program has ended */
#define FM_LIMIT 3  /* a length or identifier is out of range */
#define FM_MISUSE 4 /* a call that is not allowed here */
#define FM_OS 5     /* the system refused something */
int FM_error(void);
/* ours. The same in words, with values; valid until the next call. */
const char *FM_error_text(void);

/* ours. Figures since FM_initialize. */
typedef struct {
    unsigned long long messages_sent, messages_handled;
    unsigned long long bytes_received;  /* by FM_receive */
    unsigned long long bytes_direct;    /* of these, copied from the link straight to the handler's buffer */
    unsigned long long bytes_discarded; /* not received by their handler */
    unsigned long long refused;         /* packets against the rules, and messages without a handler */
    unsigned long long stacks;          /* handlers that needed a stack of their own */
    unsigned long long credits_sent;
} FM_figures;
void FM_get_figures(FM_figures *figures);

#ifdef __cplusplus
}
#endif
#endif
