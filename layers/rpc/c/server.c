/* The server's operations: a request of a Hamlyn server is a call's message, its reply the reply's.
 *
 * Each thread in the loop has a transport handle of its own, with the one call that it carries out; the services that
 * all share are read-only by then. libtirpc's own loop is not used: its handles have a private part that only it makes.
 * Never: the caller's own credentials are used; a call is carried out whose header libtirpc does not accept.
 */
#include "common.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND ((int64_t)1000000000)
/* For a reply, until its caller makes room for it. */
#define REPLY_NS SECOND
#define AT_ONCE 64

struct program {
    struct program *next;
    rpcprog_t prog;
    rpcvers_t vers;
    void (*dispatch)(struct svc_req *, SVCXPRT *);
};

struct service {
    h_node_t *node;
    bool owns_node;
    h_server_t *server;
    struct program *programs;
    char host[MAX_MACHINE_NAME + 1];
    /* The last other user whose client did not take a reply in time, and until when replies to its clients do not
     * wait. */
    _Atomic int64_t slow_user, slow_until_ns;
};

/* The private part of a handle. */
struct transport {
    struct service *of;
    /* The call that is carried out; NULL once it has been replied to. */
    h_request_t *request;
    uint32_t xid;
    XDR arguments;
    /* Its caller: from the kernel, as such, and as AUTH_SYS. */
    h_peer_t peer;
    bool has_peer;
    struct authunix_parms unix_user;
    char credential[MAX_AUTH_BYTES];
};

static struct transport *transport(SVCXPRT *xprt) { return xprt->xp_p1; }

/* ---- A call. */

static bool_t encode_reply(XDR *xdrs, void *message) { return xdr_replymsg(xdrs, message); }

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

/* Another user whose client takes no replies holds up the loop for a second, and then again only after another ten:
 * processes of one user can stop one another anyway. */
static int64_t reply_limit(struct transport *to) {
    bool is_slow = to->peer.uid == atomic_load(&to->of->slow_user) && now_ns() < atomic_load(&to->of->slow_until_ns);
    return is_slow ? 0 : REPLY_NS;
}

static bool_t reply(SVCXPRT *xprt, struct rpc_msg *message) {
    struct transport *to = transport(xprt);
    char shortly[SHORT_BYTES], *bytes;
    u_int length;
    if (!to->request) return FALSE;
    message->rm_xid = to->xid;
    /* The request stays, for another reply: rpcgen's stubs tell the caller of a failure. */
    if (!rpc_hamlyn_encode(encode_reply, message, shortly, &bytes, &length)) {
        rpc_hamlyn_say("the results cannot be encoded, or are longer than 16 MiB");
        return FALSE;
    }
    h_request_t *request = to->request;
    to->request = NULL;
    h_status status = h_request_reply(request, bytes, length, reply_limit(to));
    if (bytes != shortly) free(bytes);
    if (status == H_OK) return TRUE;
    rpc_hamlyn_say("%s", h_error_message());
    if (status == H_TIMED_OUT && to->has_peer && to->peer.uid != (int64_t)geteuid()) {
        atomic_store(&to->of->slow_until_ns, now_ns() + 10 * SECOND);
        atomic_store(&to->of->slow_user, to->peer.uid);
    }
    return FALSE;
}

/* Answers a call of another version of RPC itself, which has a header of its own. */
static void reply_version(SVCXPRT *xprt, uint32_t xid) {
    struct rpc_msg message;
    memset(&message, 0, sizeof message);
    message.rm_direction = REPLY;
    message.rm_reply.rp_stat = MSG_DENIED;
    message.rjcted_rply.rj_stat = RPC_MISMATCH;
    message.rjcted_rply.rj_vers.low = message.rjcted_rply.rj_vers.high = RPC_MSG_VERSION;
    transport(xprt)->xid = xid;
    reply(xprt, &message);
}

/* The caller, from the kernel, in place of what the message says. */
static void identify(struct transport *to, struct rpc_msg *message) {
    struct opaque_auth *credential = &message->rm_call.cb_cred;
    XDR xdrs;
    message->rm_call.cb_verf = (struct opaque_auth){.oa_flavor = AUTH_NONE};
    *credential = (struct opaque_auth){.oa_flavor = AUTH_NONE, .oa_base = to->credential};
    /* Of the call before, nothing stays: a program may look at rq_clntcred without the flavor. */
    to->peer = (h_peer_t){.uid = -1, .gid = -1};
    to->unix_user =
        (struct authunix_parms){.aup_machname = to->of->host, .aup_uid = (uid_t)-1, .aup_gid = (gid_t)-1};
    to->has_peer = h_request_peer(to->request, &to->peer) == H_OK;
    if (!to->has_peer || to->peer.uid < 0 || to->peer.gid < 0) return;
    to->unix_user.aup_uid = (uid_t)to->peer.uid;
    to->unix_user.aup_gid = (gid_t)to->peer.gid;
    xdrmem_create(&xdrs, to->credential, sizeof to->credential, XDR_ENCODE);
    if (!xdr_authunix_parms(&xdrs, &to->unix_user)) return;
    credential->oa_flavor = AUTH_SYS;
    credential->oa_length = XDR_GETPOS(&xdrs);
}

/* Takes the request that the handle has, or one that waits. */
static bool_t receive(SVCXPRT *xprt, struct rpc_msg *message) {
    struct transport *to = transport(xprt);
    const void *data;
    size_t length;
    if (!to->request && h_server_receive(to->of->server, 0, &to->request) != H_OK) {
        to->request = NULL;
        return FALSE;
    }
    if (h_request_data(to->request, &data, &length) != H_OK || length > BYTES_MAX) return FALSE;
    xdrmem_create(&to->arguments, (char *)data, (u_int)length, XDR_DECODE);
    if (!xdr_callmsg(&to->arguments, message)) {
        uint32_t words[3];
        if (length < sizeof words) return FALSE;
        memcpy(words, data, sizeof words);
        if (ntohl(words[1]) == CALL && ntohl(words[2]) != RPC_MSG_VERSION) reply_version(xprt, ntohl(words[0]));
        return FALSE;
    }
    to->xid = message->rm_xid;
    identify(to, message);
    return TRUE;
}

static bool_t free_arguments(SVCXPRT *xprt, xdrproc_t decode, void *arguments) {
    XDR xdrs = {.x_op = XDR_FREE};
    (void)xprt;
    return decode(&xdrs, arguments);
}

static bool_t arguments(SVCXPRT *xprt, xdrproc_t decode, void *arguments) {
    struct transport *to = transport(xprt);
    if (to->request && rpc_hamlyn_decode(&to->arguments, (bool_t (*)(XDR *, void *))decode, arguments)) return TRUE;
    /* rpcgen's stubs do not free what was decoded before the error. */
    free_arguments(xprt, decode, arguments);
    return FALSE;
}

static enum xprt_stat state(SVCXPRT *xprt) {
    (void)xprt;
    return XPRT_IDLE;
}

static void carry_out(SVCXPRT *xprt) {
    struct transport *to = transport(xprt);
    char credential[MAX_AUTH_BYTES], verifier[MAX_AUTH_BYTES];
    struct rpc_msg message;
    /* The caller's address, for programs that look at it: none of the Internet's. */
    xprt->xp_raddr.sin6_family = AF_LOCAL;
    xprt->xp_rtaddr =
        (struct netbuf){.buf = &xprt->xp_raddr, .len = sizeof(sa_family_t), .maxlen = sizeof xprt->xp_raddr};
    message.rm_call.cb_cred.oa_base = credential;
    message.rm_call.cb_verf.oa_base = verifier;
    if (receive(xprt, &message)) {
        struct svc_req request = {
            .rq_prog = message.rm_call.cb_prog,
            .rq_vers = message.rm_call.cb_vers,
            .rq_proc = message.rm_call.cb_proc,
            .rq_cred = message.rm_call.cb_cred,
            .rq_clntcred = &to->unix_user,
            .rq_xprt = xprt,
        };
        rpcvers_t low = (rpcvers_t)-1, high = 0;
        struct program *program = to->of->programs;
        for (; program; program = program->next) {
            if (program->prog != request.rq_prog) continue;
            if (program->vers == request.rq_vers) break;
            if (program->vers < low) low = program->vers;
            if (program->vers > high) high = program->vers;
        }
        if (program) {
            program->dispatch(&request, xprt);
        } else if (low <= high) {
            svcerr_progvers(xprt, low, high);
        } else {
            svcerr_noprog(xprt);
        }
    }
    /* A one-way call, or no call: its caller learns that no reply will come. */
    h_request_free(to->request);
    to->request = NULL;
}

/* ---- The handle. */

static void destroy(SVCXPRT *xprt) {
    struct transport *of = transport(xprt);
    struct service *service = of->of;
    /* That of a thread in the loop ends with the loop. */
    if (xprt->xp_p2 == NULL) return;
    h_request_free(of->request);
    if (service->server) {
        /* Tells the callers which calls were not taken, so that they ask the next server. */
        h_server_drain(service->server, SECOND, NULL);
        h_server_close(service->server, SECOND);
    }
    if (service->owns_node) rpc_hamlyn_give_node(service->node);
    for (struct program *program = service->programs, *next; program; program = next) {
        next = program->next;
        free(program);
    }
    free(service);
    free(of);
    free(xprt->xp_netid);
    free(xprt);
}

static bool_t control(SVCXPRT *xprt, const u_int request, void *info) {
    (void)xprt, (void)request, (void)info;
    return FALSE;
}

static struct xp_ops operations = {
    .xp_recv = receive,
    .xp_stat = state,
    .xp_getargs = arguments,
    .xp_reply = reply,
    .xp_freeargs = free_arguments,
    .xp_destroy = destroy,
};
static struct xp_ops2 more_operations = {.xp_control = control};

SVCXPRT *svc_hamlyn_create_on(h_node_t *node, const char *service, uint32_t access, uint32_t gid,
                              const h_server_config_t *limits) {
    SVCXPRT *xprt = calloc(1, sizeof *xprt);
    struct transport *of = calloc(1, sizeof *of);
    struct service *made = calloc(1, sizeof *made);
    char *netid = strdup("hamlyn");
    if (!xprt || !of || !made || !netid) {
        free(xprt);
        free(of);
        free(made);
        free(netid);
        rpc_hamlyn_say("there is no memory for a server");
        return NULL;
    }
    of->of = made;
    xprt->xp_fd = -1;
    xprt->xp_ops = &operations;
    xprt->xp_ops2 = &more_operations;
    xprt->xp_netid = netid;
    xprt->xp_verf.oa_flavor = AUTH_NONE;
    xprt->xp_p1 = of;
    xprt->xp_p2 = made;
    made->slow_user = -1;
    gethostname(made->host, MAX_MACHINE_NAME);
    made->owns_node = !node;
    made->node = node ? node : rpc_hamlyn_take_node();
    if (made->node && h_server_new(made->node, limits, &made->server) == H_OK &&
        h_server_serve(made->server, service, access, gid) == H_OK) {
        return xprt;
    }
    if (made->node) rpc_hamlyn_say("%s", h_error_message());
    destroy(xprt);
    return NULL;
}

SVCXPRT *svc_hamlyn_create(const char *service, uint32_t access, uint32_t gid) {
    return svc_hamlyn_create_on(NULL, service, access, gid, NULL);
}

bool_t svc_hamlyn_reg(SVCXPRT *xprt, rpcprog_t prog, rpcvers_t vers, void (*dispatch)(struct svc_req *, SVCXPRT *)) {
    if (!xprt || !dispatch) return FALSE;
    struct service *service = transport(xprt)->of;
    for (struct program *program = service->programs; program; program = program->next) {
        if (program->prog == prog && program->vers == vers) return FALSE;
    }
    struct program *program = malloc(sizeof *program);
    if (!program) return FALSE;
    *program = (struct program){.next = service->programs, .prog = prog, .vers = vers, .dispatch = dispatch};
    service->programs = program;
    return TRUE;
}

bool_t svc_hamlyn_run(SVCXPRT *xprt) {
    struct transport mine = {.of = transport(xprt)->of};
    SVCXPRT handle = *xprt;
    h_status status;
    handle.xp_p1 = &mine;
    handle.xp_p2 = NULL;
    while ((status = h_server_receive(mine.of->server, H_FOREVER, &mine.request)) == H_OK) carry_out(&handle);
    if (status == H_CLOSED) return TRUE;
    rpc_hamlyn_say("%s", h_error_message());
    return FALSE;
}

void svc_hamlyn_exit(SVCXPRT *xprt) { h_server_begin_drain(transport(xprt)->of->server); }

int svc_hamlyn_fd(SVCXPRT *xprt) {
    int32_t fd;
    if (h_fd(transport(xprt)->of->node, &fd) == H_OK) return fd;
    rpc_hamlyn_say("%s", h_error_message());
    return -1;
}

bool_t svc_hamlyn_getreq(SVCXPRT *xprt) {
    struct transport *mine = transport(xprt);
    bool may_wait = false;
    for (int i = 0; i < AT_ONCE; i++) {
        if (h_server_receive(mine->of->server, 0, &mine->request) == H_OK) {
            carry_out(xprt);
        } else {
            mine->request = NULL;
            if (h_prepare_to_wait(mine->of->node, &may_wait) != H_OK || may_wait) return FALSE;
        }
    }
    return TRUE;
}

bool_t svc_hamlyn_peer(struct svc_req *request, h_peer_t *peer) {
    struct transport *of = transport(request->rq_xprt);
    if (of->has_peer) *peer = of->peer;
    return of->has_peer;
}
