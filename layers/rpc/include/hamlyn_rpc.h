/* ONC RPC over Hamlyn: client and server handles for the stubs that rpcgen writes, on libtirpc.
 *
 * rpcgen's _clnt.c, _svc.c (of rpcgen -m) and _xdr.c are used as they are; only the two create calls, the registration
 * and the loop differ from those of TCP. A service is found by its name; there is no rpcbind and no port.
 *
 * Who called: rq_cred and rq_clntcred are AUTH_SYS with the user and group that the kernel proves for the caller's
 * process (struct authunix_parms: no further groups, this host's name, the time 0). A caller's own credentials are not
 * looked at. A caller whose user the kernel does not tell, on another host or in another user namespace, is AUTH_NONE:
 * svc_hamlyn_peer has more about it.
 *
 * Threads: any number may call with one CLIENT, and any number may be in svc_hamlyn_run of one SVCXPRT. Several threads
 * need rpcgen -M, since other stubs have static results. After fork the child makes its own handles.
 *
 * Limits: a request or a reply has at most 16 MiB, a caller 64 calls on their way, a list 8,192 pointers in one
 * another. A string or opaque<> without a bound lets a peer ask for 4 GiB of address space; they are not touched, and are
 * freed at once.
 */
#ifndef HAMLYN_RPC_H
#define HAMLYN_RPC_H

#include <hamlyn.h>
#include <rpc/rpc.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The reason why this thread's last call of clnt_ or svc_hamlyn_.. or by a handle of theirs failed: an English
 * sentence; empty if none has. Valid until the thread's next failure. */
const char *rpc_hamlyn_error(void);

/* A client of the program and version that the service "[user@]name" offers. The node is the process's, the limit 25
 * seconds. NULL: rpc_createerr has the status, rpc_hamlyn_error the sentence.
 *
 * clnt_call: RPC_TIMEDOUT, the time limit passed, and the server may or may not carry the call out; RPC_CANTSEND, it
 * was not sent; RPC_CANTRECV, the server has ended, or dropped the call, after it may have carried it out;
 * RPC_CANTDECODERES, the reply is not one, or is another call's. A call after the server has ended connects to its
 * successor, within the call's time limit; no call is carried out twice. A zero time limit without a results' procedure
 * is one-way: it returns RPC_SUCCESS when the call has been copied, which waits at most 25 seconds for room; with one,
 * RPC_TIMEDOUT, as over TCP.
 *
 * clnt_control: CLSET_TIMEOUT, CLGET_TIMEOUT, and XID, VERS and PROG, both ways. Others are FALSE. */
CLIENT *clnt_hamlyn_create(const char *service, rpcprog_t prog, rpcvers_t vers);

/* With a node of the caller's, which outlives the client, NULL: the process's; and a limit for connecting, NULL: 25 s. */
CLIENT *clnt_hamlyn_create_timed(h_node_t *node, const char *service, rpcprog_t prog, rpcvers_t vers,
                                 const struct timeval *limit);

/* Offers the service to this user, H_ACCESS_SAME_USER, to the members of `gid`, H_ACCESS_GROUP, or to all,
 * H_ACCESS_ANYONE. NULL: rpc_hamlyn_error has the sentence. svc_destroy frees it, when no thread is in its loop. */
SVCXPRT *svc_hamlyn_create(const char *service, uint32_t access, uint32_t gid);

/* With a node of the caller's, which outlives it, and the server's limits; NULL for the defaults of either. */
SVCXPRT *svc_hamlyn_create_on(h_node_t *node, const char *service, uint32_t access, uint32_t gid,
                              const h_server_config_t *limits);

/* Adds a program and version, with rpcgen's dispatch function, before the loop begins. FALSE: no memory, there is
 * one, or NULL. (svc_reg is for libtirpc's own transports.) */
bool_t svc_hamlyn_reg(SVCXPRT *xprt, rpcprog_t prog, rpcvers_t vers, void (*dispatch)(struct svc_req *, SVCXPRT *));

/* Serves until svc_hamlyn_exit: then the calls that were taken are answered, and it returns TRUE; FALSE: it failed.
 *
 * A client that takes no replies holds a thread up for a second. If it is another user's, replies to that user's clients
 * do not wait for the next ten seconds; those of more than 4,088 bytes then fail, and the caller gets RPC_CANTRECV. */
bool_t svc_hamlyn_run(SVCXPRT *xprt);

/* Ends svc_hamlyn_run in all threads. From any thread, and from a procedure; not from a signal handler. */
void svc_hamlyn_exit(SVCXPRT *xprt);

/* For a loop of the program's own, in one thread: the descriptor to poll for POLLIN, -1: there is none. */
int svc_hamlyn_fd(SVCXPRT *xprt);

/* Serves what waits, at most 64 calls. TRUE: more may wait, call again; FALSE: the descriptor tells of the next. Call
 * it once before the first poll. The program ends its loop itself, when svc_hamlyn_exit has been called. */
bool_t svc_hamlyn_getreq(SVCXPRT *xprt);

/* In a procedure: who called, from the kernel. FALSE: it has left. */
bool_t svc_hamlyn_peer(struct svc_req *request, h_peer_t *peer);

#ifdef __cplusplus
}
#endif

#endif
