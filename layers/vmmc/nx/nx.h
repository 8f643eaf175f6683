/* NX (P. Pierce, "The NX Message Passing Interface", 1994) over VMMC, for the ranks of a job (`hamlyn run -n 4 -- ./p`):
 * the calls of the Paragon's C header, those that exchange messages.
 *
 * A node is a rank; there is one process a node, so a message reaches it whatever process type it is sent to. The first
 * call joins the job, and waits for all ranks; leaving main (or exit) leaves it, when what was sent by isend has gone, or
 * has not moved for 10 s. A message has a type of 0 to 2^31 - 1.
 * A type selector is a type; or -1: any; or a set: 0x80000000 with bit 30 for all types from 30 on, and the bits 0 to 29
 * for one type each. Messages of one node are received in their order among those that a selector matches.
 *
 * Messages move in calls of both nodes. A csend returns when its bytes are in the ring of its pair, 256 KiB. From there
 * they go to the receive that asks for them; or, when the receiver waits in a call for something else, into memory, less
 * than 64 MiB of each sender. So nodes may csend as much to one another before they receive. Beyond that a csend, and
 * all that its node sends to the same node later, waits until a receive asks for its message: two nodes that csend more
 * than that to one another before they receive wait for ever. A csend that a posted receive awaits goes on whatever its
 * length, and so does one to the node itself: a message that no receive awaits is copied into memory.
 *
 * NX_UPDATE=automatic sends by automatic update (a binding, the store engine) in place of deliberate update; uncombined,
 * too, each 8 bytes by themselves. Then a send to a node that makes no call waits, and so does what is behind it; a
 * deliberate one does not.
 *
 * One thread. Handlers run in calls, never as a signal. A call that fails prints why and ends the program with 1; the
 * same with _ in front returns -1 with errno: ECONNRESET, a node that was waited for has died; EPIPE, it, or all, have
 * left; EMSGSIZE, the message is longer than the buffer, and stays; EPROTO, a node broke the protocol; EINVAL, an
 * argument, which the sentence names with its value; ENOMEM
 * (4,096 requests); EIO, the job cannot be joined.
 *
 * `long` is that of this machine, as in gisum: arrays of int do not fit. Left out: files (gopen, cread, ..), partitions,
 * and programs that are loaded by others. There is no host.
 */
#ifndef NX_H
#define NX_H

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVALID_PTYPE (-1)
#define FORCE_TYPE 0x40000000 /* such types are as others here: a message that no receive awaits is kept */
#define HOST myhost()
#define HWHZ 10000000

/* Both forms of a call. */
#define NX_CALL(result, name, parameters) \
    result name parameters;               \
    long _##name parameters

/* Handlers and gopf's function are declared as in the Paragon's header, so that old definitions of all kinds fit. */
#if defined __cplusplus || __STDC_VERSION__ > 201710L
typedef void nx_handler(long type, long count, long node, long ptype);
typedef void nx_xhandler(long type, long count, long node, long ptype, long param);
typedef long nx_function(void *x, void *work);
#else
typedef void nx_handler();
typedef void nx_xhandler();
typedef long nx_function();
#endif

NX_CALL(long, mynode, (void));
NX_CALL(long, numnodes, (void));
/* numnodes(): no node. */
NX_CALL(long, myhost, (void));
/* 0 until setptype. */
NX_CALL(long, myptype, (void));
NX_CALL(void, setptype, (long ptype));

/* Sends `count` bytes to a node, -1: to all others; returns when the buffer can be used again. */
NX_CALL(void, csend, (long type, const void *buf, long count, long node, long ptype));
/* The same to nodes of a list. */
NX_CALL(void, gsendx, (long type, const void *buf, long count, const long nodes[], long nodecount));
/* Receives a message into at most `count` bytes; then info..() tell about it. */
NX_CALL(void, crecv, (long typesel, void *buf, long count));
/* Of a node and of a process type, or -1: any; info: type, count, node, ptype; NULL, or msginfo: for info..(). */
NX_CALL(void, crecvx, (long typesel, void *buf, long count, long nodesel, long ptypesel, long info[8]));
/* Sends and receives, in any order; returns the received message's bytes. */
NX_CALL(long, csendrecv, (long type, const void *sbuf, long scount, long node, long ptype, long typesel, void *rbuf,
                          long rcount));

/* The same, which return at once with a message id. */
NX_CALL(long, isend, (long type, const void *buf, long count, long node, long ptype));
NX_CALL(long, irecv, (long typesel, void *buf, long count));
NX_CALL(long, irecvx, (long typesel, void *buf, long count, long nodesel, long ptypesel, long info[8]));
NX_CALL(long, isendrecv, (long type, const void *sbuf, long scount, long node, long ptype, long typesel, void *rbuf,
                          long rcount));
/* Waits for it, and frees the id. -1, here and below, is no request, and done. */
NX_CALL(void, msgwait, (long mid));
/* 1: it is done, and the id is free. */
NX_CALL(long, msgdone, (long mid));
/* Frees the id when it is done. */
NX_CALL(void, msgignore, (long mid));
/* Gives it up; when it has begun, waits for its end. The id is free. */
NX_CALL(void, msgcancel, (long mid));
/* One id for two: done when both are. */
NX_CALL(long, msgmerge, (long mid, long mid2));

/* Whether a message can be received; cprobe waits for one. Then info..() tell about it. */
NX_CALL(long, iprobe, (long typesel));
NX_CALL(long, iprobex, (long typesel, long nodesel, long ptypesel, long info[8]));
NX_CALL(void, cprobe, (long typesel));
NX_CALL(void, cprobex, (long typesel, long nodesel, long ptypesel, long info[8]));
/* Drops all messages that could be received. */
NX_CALL(void, flushmsg, (long typesel, long nodesel, long ptypesel));
extern long msginfo[8];
NX_CALL(long, infocount, (void));
NX_CALL(long, infonode, (void));
NX_CALL(long, infotype, (void));
NX_CALL(long, infoptype, (void));

/* The handler is called once when such a message has been received, or the buffer can be used again, in a call of this
 * library. If the message breaks off, the program ends; that of _hrecv, .. goes on, and the handler is not called. */
NX_CALL(void, hrecv, (long typesel, void *buf, long count, nx_handler *handler));
NX_CALL(void, hrecvx, (long typesel, void *buf, long count, long nodesel, long ptypesel, nx_xhandler *handler, long param));
NX_CALL(void, hsend, (long type, const void *buf, long count, long node, long ptype, nx_handler *handler));
NX_CALL(void, hsendx, (long type, const void *buf, long count, long node, long ptype, nx_xhandler *handler, long param));
NX_CALL(void, hsendrecv, (long type, const void *sbuf, long scount, long node, long ptype, long typesel, void *rbuf,
                          long rcount, nx_handler *handler));
/* 1: handlers wait; 0: they come. Returns what was before. */
NX_CALL(long, masktrap, (long state));

/* All nodes call these in the same order. The result is in x on all, the same to the bit; work has n elements. */
NX_CALL(void, gsync, (void));
NX_CALL(void, gdsum, (double x[], long n, double work[]));
NX_CALL(void, gdprod, (double x[], long n, double work[]));
NX_CALL(void, gdhigh, (double x[], long n, double work[]));
NX_CALL(void, gdlow, (double x[], long n, double work[]));
NX_CALL(void, gssum, (float x[], long n, float work[]));
NX_CALL(void, gsprod, (float x[], long n, float work[]));
NX_CALL(void, gshigh, (float x[], long n, float work[]));
NX_CALL(void, gslow, (float x[], long n, float work[]));
NX_CALL(void, gisum, (long x[], long n, long work[]));
NX_CALL(void, giprod, (long x[], long n, long work[]));
NX_CALL(void, gihigh, (long x[], long n, long work[]));
NX_CALL(void, gilow, (long x[], long n, long work[]));
NX_CALL(void, giand, (long x[], long n, long work[])); /* of bits; gland, glor: of truth */
NX_CALL(void, gior, (long x[], long n, long work[]));
NX_CALL(void, gland, (long x[], long n, long work[]));
NX_CALL(void, glor, (long x[], long n, long work[]));
/* x of `bytes` becomes function(x, work) with the x of another node in work, until all are in it. */
NX_CALL(void, gopf, (void *x, long bytes, void *work, nx_function *function));
/* The bytes of all nodes one behind the other in y, ylen bytes at most; *ncnt: how many. */
NX_CALL(void, gcol, (const void *x, long xlen, void *y, long ylen, long *ncnt));
/* The same, where all know how many each node has. */
NX_CALL(void, gcolx, (const void *x, const long xlens[], void *y));

/* Seconds, milliseconds, and ticks of HWHZ, of clocks that only go on. */
double dclock(void);
unsigned long mclock(void);
#ifndef _ESIZE_T
#define _ESIZE_T
typedef struct s_size {
    long slow, shigh; /* the low 32 bits, and those above */
} esize_t;
#endif
void hwclock(esize_t *ticks);
/* Takes a turn, and gives the processor to others. */
NX_CALL(void, flick, (void));
void nx_perror(const char *text);

/* Of the iPSC and the Delta: the process type; the dimension of the smallest cube of all nodes; Gray's code, and back; a
 * lamp, which is not there; rows and columns of a grid of all nodes, as square as it can be. */
NX_CALL(long, mypid, (void));
NX_CALL(long, infopid, (void));
NX_CALL(long, nodedim, (void));
NX_CALL(long, gray, (long n));
NX_CALL(long, ginv, (long n));
NX_CALL(void, led, (long state));
long mypart(long *rows, long *cols);
long nx_app_rect(long *rows, long *cols);
/* For programs that start their own nodes: each rank is such a node, so nx_nfork returns 0, as in a child. */
long nx_initve(const char *partition, long size, const char *account, int *argc, char **argv);
long nx_nfork(const long nodes[], long count, long ptype, long pids[]);
long nx_waitall(void);

#ifdef __cplusplus
}
#endif

#endif
