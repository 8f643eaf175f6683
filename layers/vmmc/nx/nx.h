/* NX (P. Pierce, "The NX Message Passing Interface", 1994) over VMMC, for the ranks of a job (`hamlyn run -n 4 -- ./p`).
 *
 * A node is a rank; there is one process a node, with ptype 0. The first call joins the job, and waits for all ranks;
 * leaving main (or exit) leaves it. A message has a type, 0 or more; a type selector is a type, or -1: any. Messages of
 * one node to another are received in their order among those that a selector matches. A message goes to the sender
 * itself, too.
 *
 * What nobody has asked for stays in the ring of its sender, 256 KiB and 1,024 messages, and then its sender waits.
 * Messages of more than 64 KiB leave when they are asked for: two nodes that csend such to one another before they
 * crecv wait for ever, as do those that fill the ring, and one that csends such to itself.
 *
 * NX_UPDATE=automatic sends by automatic update (a binding, the store engine) in place of deliberate update.
 *
 * One thread. Handlers run in calls, never as a signal. A call that fails prints why and ends the program with 1; the
 * same with _ in front returns -1 with errno: ECONNRESET, a node that was waited for has died; EPIPE, it, or all, have
 * left; EMSGSIZE, the message is longer than the buffer, and stays; EPROTO, a node broke the protocol; EINVAL, ENOMEM
 * (4,096 requests); EIO, the job cannot be joined.
 */
#ifndef NX_H
#define NX_H

#ifdef __cplusplus
extern "C" {
#endif

long mynode(void);
long numnodes(void);
long myptype(void);

/* Sends `count` bytes to a node, -1: to all others; returns when the buffer can be used again. */
void csend(long type, const void *buf, long count, long node, long ptype);
long _csend(long type, const void *buf, long count, long node, long ptype);
/* Receives a message of a type into at most `count` bytes; then info..() tell about it. */
void crecv(long typesel, void *buf, long count);
long _crecv(long typesel, void *buf, long count);
/* Of a node, or -1: any; info: type, count, node, ptype, or NULL. */
void crecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long info[8]);
long _crecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long info[8]);

/* The same, which return at once with a message id for msgwait. */
long isend(long type, const void *buf, long count, long node, long ptype);
long _isend(long type, const void *buf, long count, long node, long ptype);
long irecv(long typesel, void *buf, long count);
long _irecv(long typesel, void *buf, long count);
long irecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long info[8]);
/* Waits for it, and frees the id. */
void msgwait(long mid);
long _msgwait(long mid);
/* 1: it is done, and the id is free. */
long msgdone(long mid);
long _msgdone(long mid);
/* Frees the id when it is done. */
void msgignore(long mid);

/* Whether a message of the type can be received; cprobe waits for one. Then info..() tell about it. */
long iprobe(long typesel);
long _iprobe(long typesel);
void cprobe(long typesel);
long _cprobe(long typesel);
long infocount(void);
long infonode(void);
long infotype(void);
long infoptype(void);

/* The handler is called once when such a message has been received, in a call of this library. If the message breaks
 * off, the program ends; that of _hrecv goes on, and the handler is not called. */
typedef void nx_handler(long type, long count, long node, long ptype);
void hrecv(long typesel, void *buf, long count, nx_handler *handler);
long _hrecv(long typesel, void *buf, long count, nx_handler *handler);
/* 1: handlers wait; 0: they come. Returns what was before. */
long masktrap(long state);

/* All nodes call these in the same order. The result is in x on all, the same to the bit; work has n elements. */
void gsync(void);
long _gsync(void);
void gdsum(double x[], long n, double work[]);
void gdhigh(double x[], long n, double work[]);
void gdlow(double x[], long n, double work[]);
void gisum(long x[], long n, long work[]);
void gihigh(long x[], long n, long work[]);
void gilow(long x[], long n, long work[]);
/* The bytes of all nodes one behind the other in y, ylen bytes at most; *ncnt: how many. */
void gcol(const void *x, long xlen, void *y, long ylen, long *ncnt);

/* Seconds, of a clock that only goes on. */
double dclock(void);
/* Takes a turn, and gives the processor to others. */
void flick(void);

#ifdef __cplusplus
}
#endif

#endif
