/* Stream sockets over Fast Messages: the calls of BSD sockets, between the nodes of an FM job.
 *
 * A socket is a number, 1 or more. Negative results are the codes below; fms_error_text says them in words. One
 * thread uses all calls, and no handler does. Bytes arrive in the order in which they were sent; a read returns
 * what has come, which can be less than was asked for or than was sent at once.
 *
 * Copies (Fast Messages 2.x, 4.1): a handler puts bytes straight into the buffer of a waiting fms_recv; bytes
 * that come when none waits, or one with a time limit, go through the socket's buffer of FMS_WINDOW bytes, and its
 * peer cannot send more than fit. fms_recv extracts no more than its caller wants, so the rest waits in FM for the
 * next fms_recv; with FMS_EXTRACT_ALL (or FMS_EXTRACT=all in the environment) it extracts all that is there.
 * fms_get_figures shows the difference.
 *
 * A node serves its peers in the calls that wait, fms_recv, fms_poll and the others. FM_CREDIT_BYTES must be its
 * default or more. Link with -lhamlynfm.
 */
#ifndef FM_SOCKETS_H
#define FM_SOCKETS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FMS_DEAD (-1)    /* the other node's program has ended */
#define FMS_TIME (-2)    /* not within the time limit */
#define FMS_REFUSED (-3) /* no one listens there, its backlog or table is full; listen: the port is in use */
#define FMS_RANGE (-4)   /* an argument is out of range, or not such a socket */
#define FMS_SYSTEM (-5)  /* the system has refused something: memory, FM */
#define FMS_CLOSED (-6)  /* this end was shut down, or the other was closed, and takes nothing more */
#define FMS_BROKEN (-7)  /* the other end broke the rules, or lost this connection */

#define FMS_SOCKETS 256     /* sockets of a node */
#define FMS_PER_NODE 32     /* of these, connections that one other node has made */
#define FMS_BACKLOG_MAX 16  /* connections of a listener that are not yet accepted */

/* Settings. Returns 0 or FMS_RANGE. */
#define FMS_WINDOW 1      /* a new socket's buffer, in bytes: 1024 to 1 MiB. 32768 */
#define FMS_EXTRACT_ALL 2 /* 1: fms_recv extracts all that is there. 0 */
/* The longest wait of fms_send and fms_recv without progress; 0: none. 0. With one, bytes go through the socket's
 * buffer: a peer that stops in the middle of a message would hold that of fms_recv. */
#define FMS_LIMIT_MS 3
int fms_set(int setting, long value);

/* Joins FM, if the program has not called FM_initialize, and registers handlers 1004 to 1008: before the first
 * FM_extract. Returns 0. */
int fms_start(void);
/* Closes all sockets, and leaves FM if fms_start has joined it. */
void fms_finish(void);

/* Accepts connections to `port`, 0 to 65535, of this node. Returns a socket. */
int fms_listen(int port);
/* The oldest connection that waits. `ms`: the longest wait; negative: no limit. Returns a socket. */
int fms_accept(int listener, long ms);
/* Connects to a port of a node, also of this one. Refused, it tries again in the time limit. Returns a socket. */
int fms_connect(unsigned long node, int port, long ms);

/* Sends all bytes, and waits for room. Returns how many have left: fewer if an error came later. */
long fms_send(int socket, const void *from, size_t bytes);
/* Sends what there is room for, and does not wait. Returns how many, also 0. */
long fms_try_send(int socket, const void *from, size_t bytes);
/* Waits until something has come. Returns how many bytes, 1 to `bytes`; 0: the other end has sent its last. */
long fms_recv(int socket, void *to, size_t bytes);

#define FMS_IN 1  /* fms_recv or fms_accept would not wait */
#define FMS_OUT 2 /* fms_try_send would send something */
#define FMS_HUP 4 /* the connection has ended; always looked for */
typedef struct {
    int socket;
    short events, revents;
} fms_pollfd;
/* Waits until one of the sockets is ready. Returns how many are; 0: the time is over; or a code. */
int fms_poll(fms_pollfd *sockets, size_t count, long ms);

/* Nothing more is sent: the other end reads 0 after the last byte. Returns 0. */
int fms_shutdown(int socket);
/* The same, and what comes is thrown away. The socket is no more. */
int fms_close(int socket);

typedef struct {
    unsigned long long bytes_sent;
    unsigned long long bytes_straight; /* received by a handler into the caller's buffer */
    unsigned long long bytes_buffered; /* received through a socket's buffer: one copy more */
    unsigned long long refused;        /* values and bytes of peers against the rules */
} fms_figures;
void fms_get_figures(fms_figures *figures);
const char *fms_error_text(int code);

#ifdef __cplusplus
}
#endif
#endif
