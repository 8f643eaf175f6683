/* The client's operations: one call of a Hamlyn client for each call, a request for the call's message.
 *
 * The connection may be replaced under the calls that use it: it is counted, and freed by the last. Never: a call is
 * sent a second time after a server may have taken it; the reply of another call is taken for this one's.
 */
#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND ((int64_t)1000000000)
/* Servers that end before they have taken one call. */
#define ATTEMPTS_MAX 8
/* As in rpcgen's stubs. */
static const struct timeval USUAL = {25, 0};

struct connection {
    h_client_t *client;
    unsigned users;
    bool has_ended;
};

struct client {
    h_node_t *node;
    bool owns_node;
    char *service;
    rpcprog_t prog;
    rpcvers_t vers;
    atomic_uint xid;
    /* For the rest. */
    pthread_mutex_t lock;
    struct connection *now;
    bool has_limit;
    struct timeval limit;
    struct rpc_err error;
};

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

static bool is_time(const struct timeval *time) {
    return time->tv_sec >= 0 && time->tv_sec <= 100000000 && time->tv_usec >= 0 && time->tv_usec < 1000000;
}

static int64_t ns_of(const struct timeval *time) { return time->tv_sec * SECOND + time->tv_usec * 1000; }

static int64_t left(int64_t deadline) {
    int64_t ns = deadline - now_ns();
    return ns > 0 ? ns : 0;
}

/* ---- The connection. */

static void release(struct client *client, struct connection *of, bool ended) {
    pthread_mutex_lock(&client->lock);
    if (ended) of->has_ended = true;
    bool last = --of->users == 0;
    pthread_mutex_unlock(&client->lock);
    if (last) {
        /* One-way calls leave first. */
        h_client_close(of->client, of->has_ended ? 0 : SECOND);
        free(of);
    }
}

static h_status connect_within(struct client *client, int64_t deadline, struct connection **fresh) {
    struct connection *made = calloc(1, sizeof *made);
    if (!made) return H_LIMIT;
    h_client_config_t config = {.reply_bytes_max = BYTES_MAX};
    h_status status = h_client_connect(client->node, client->service, &config, left(deadline), &made->client);
    if (status != H_OK) {
        free(made);
        return status;
    }
    made->users = 1; /* The handle itself. */
    *fresh = made;
    return H_OK;
}

/* The connection, for one call; another if the last has ended. */
static h_status acquire(struct client *client, int64_t deadline, struct connection **connection) {
    struct connection *fresh = NULL, *old = NULL;
    pthread_mutex_lock(&client->lock);
    while (client->now->has_ended) {
        if (fresh) {
            old = client->now;
            client->now = fresh;
            fresh = NULL;
            break;
        }
        pthread_mutex_unlock(&client->lock);
        h_status status = connect_within(client, deadline, &fresh);
        if (status != H_OK) return status;
        pthread_mutex_lock(&client->lock);
    }
    *connection = client->now;
    client->now->users++;
    pthread_mutex_unlock(&client->lock);
    if (old) release(client, old, true);
    /* Another thread was quicker. */
    if (fresh) release(client, fresh, false);
    return H_OK;
}

/* ---- A call. */

struct outgoing {
    CLIENT *of;
    struct rpc_msg head;
    rpcproc_t proc;
    xdrproc_t encode;
    void *args;
};

static bool_t encode_call(XDR *xdrs, void *of) {
    struct outgoing *out = of;
    uint32_t proc = (uint32_t)out->proc;
    return xdr_callhdr(xdrs, &out->head) && xdr_u_int32_t(xdrs, &proc) && AUTH_MARSHALL(out->of->cl_auth, xdrs) &&
           AUTH_WRAP(out->of->cl_auth, xdrs, out->encode, out->args);
}

/* The error of a failed status of Hamlyn's; `otherwise` unless the status says something of its own. */
static struct rpc_err failure(h_status status, enum clnt_stat otherwise) {
    struct rpc_err error = {.re_status = otherwise};
    switch (status) {
        case H_TIMED_OUT:
            if (otherwise != RPC_CANTSEND) error.re_status = RPC_TIMEDOUT;
            error.re_errno = ETIMEDOUT;
            break;
        case H_TOO_LONG: error.re_errno = EMSGSIZE; break;
        case H_LIMIT: error.re_errno = ENOMEM; break;
        case H_NOT_FOUND: error.re_errno = ECONNREFUSED; break;
        case H_REFUSED: error.re_errno = otherwise == RPC_CANTRECV ? ECANCELED : EACCES; break;
        case H_MISBEHAVED:
        case H_APPLICATION: error.re_errno = EPROTO; break;
        case H_INVALID: error.re_errno = EINVAL; break;
        case H_CLOSED:
        case H_DIED:
        case H_HUNG_UP: error.re_errno = ECONNRESET; break;
        default: error.re_errno = EIO;
    }
    rpc_hamlyn_say("%s", h_error_message());
    return error;
}

static bool is_end(h_status status) {
    return status == H_CLOSED || status == H_DIED || status == H_HUNG_UP || status == H_MISBEHAVED ||
           status == H_DRAINING;
}

static struct rpc_err broken_reply(const char *why) {
    rpc_hamlyn_say("the server's reply is refused: %s", why);
    return (struct rpc_err){.re_status = RPC_CANTDECODERES};
}

struct incoming {
    CLIENT *of;
    xdrproc_t decode;
    void *results;
};

static bool_t decode_results(XDR *xdrs, void *of) {
    struct incoming *in = of;
    return AUTH_UNWRAP(in->of->cl_auth, xdrs, in->decode, in->results);
}

static struct rpc_err take_reply(CLIENT *of, uint32_t xid, const h_reply_t *reply, xdrproc_t decode, void *results) {
    const void *data;
    size_t length;
    char verifier[MAX_AUTH_BYTES];
    struct rpc_msg message;
    struct rpc_err error = {.re_status = RPC_SUCCESS};
    struct incoming in = {.of = of, .decode = decode, .results = results};
    XDR xdrs;
    memset(&message, 0, sizeof message);
    message.acpted_rply.ar_verf.oa_base = verifier;
    /* By way of another type, since libtirpc declares it without arguments. */
    message.acpted_rply.ar_results.proc = (xdrproc_t)(void (*)(void))xdr_void;
    if (h_reply_data(reply, &data, &length) != H_OK || length > BYTES_MAX) return broken_reply("it is too long");
    xdrmem_create(&xdrs, (char *)data, (u_int)length, XDR_DECODE);
    if (!xdr_replymsg(&xdrs, &message)) return broken_reply("it is not a reply of ONC RPC");
    if (message.rm_xid != xid) return broken_reply("it is the reply to another call");
    _seterr_reply(&message, &error);
    if (error.re_status != RPC_SUCCESS) {
        rpc_hamlyn_say("the server answered: %s", clnt_sperrno(error.re_status));
    } else if (!AUTH_VALIDATE(of->cl_auth, &message.acpted_rply.ar_verf)) {
        rpc_hamlyn_say("the server's verifier is not valid");
        error = (struct rpc_err){.re_status = RPC_AUTHERROR, .re_why = AUTH_INVALIDRESP};
    } else if (!rpc_hamlyn_decode(&xdrs, decode_results, &in)) {
        return broken_reply("its results are not of the procedure's type");
    }
    return error;
}

/* Sends the message and takes its reply, once. `reply` NULL: one-way. `is_untaken`: the server has ended, and has not
 * taken the call. */
static h_status ask(struct client *client, const char *bytes, u_int length, int64_t deadline, h_reply_t **reply,
                    struct rpc_err *error, bool *is_untaken) {
    struct connection *connection;
    h_status status = acquire(client, deadline, &connection);
    *is_untaken = false;
    if (status != H_OK) {
        *error = failure(status, RPC_CANTSEND);
        return status;
    }
    h_call_t call;
    status = h_client_start(connection->client, bytes, length, left(deadline), &call);
    if (status != H_OK) {
        *error = failure(status, RPC_CANTSEND);
        *is_untaken = is_end(status) && status != H_MISBEHAVED;
    } else if (!reply) {
        h_client_forget(connection->client, call);
    } else {
        int64_t limit = left(deadline);
        /* A limit of 0 would have another status; a nanosecond is as good. */
        status = h_client_finish(connection->client, call, limit > 0 ? limit : 1, reply);
        if (status != H_OK) *error = failure(status, RPC_CANTRECV);
        if (status == H_TIMED_OUT) h_client_forget(connection->client, call);
        *is_untaken = status == H_DRAINING;
    }
    release(client, connection, is_end(status));
    return status;
}

static enum clnt_stat call(CLIENT *of, rpcproc_t proc, xdrproc_t encode, void *args, xdrproc_t decode, void *results,
                           struct timeval limit) {
    struct client *client = of->cl_private;
    struct rpc_err error = {.re_status = RPC_SUCCESS};
    struct outgoing out = {.of = of, .proc = proc, .encode = encode, .args = args};
    char shortly[SHORT_BYTES], *bytes;
    u_int length;
    pthread_mutex_lock(&client->lock);
    if (client->has_limit || !is_time(&limit)) limit = client->limit;
    out.head.rm_call.cb_prog = client->prog;
    out.head.rm_call.cb_vers = client->vers;
    pthread_mutex_unlock(&client->lock);
    out.head.rm_xid = atomic_fetch_add(&client->xid, 1) + 1;
    bool is_oneway = limit.tv_sec == 0 && limit.tv_usec == 0;
    if (!rpc_hamlyn_encode(encode_call, &out, shortly, &bytes, &length)) {
        rpc_hamlyn_say("the arguments cannot be encoded, or are longer than 16 MiB");
        error.re_status = RPC_CANTENCODEARGS;
    } else {
        int64_t deadline = now_ns() + ns_of(is_oneway ? &USUAL : &limit);
        h_reply_t *reply = NULL;
        h_status status;
        bool is_untaken;
        int attempts = 0;
        /* The next server of the name gets it. */
        do {
            status = ask(client, bytes, length, deadline, is_oneway ? NULL : &reply, &error, &is_untaken);
        } while (is_untaken && ++attempts < ATTEMPTS_MAX && left(deadline) > 0);
        if (bytes != shortly) free(bytes);
        if (is_oneway && status != H_OK) {
            error.re_status = RPC_CANTSEND;
        } else if (is_oneway) {
            error.re_status = decode ? RPC_TIMEDOUT : RPC_SUCCESS;
        } else if (status == H_OK) {
            error = take_reply(of, out.head.rm_xid, reply, decode, results);
            h_reply_free(reply);
        }
    }
    pthread_mutex_lock(&client->lock);
    client->error = error;
    pthread_mutex_unlock(&client->lock);
    return error.re_status;
}

/* ---- The other operations. */

static void give_up(CLIENT *of) { (void)of; }

static void get_error(CLIENT *of, struct rpc_err *error) {
    struct client *client = of->cl_private;
    pthread_mutex_lock(&client->lock);
    *error = client->error;
    pthread_mutex_unlock(&client->lock);
}

static bool_t free_results(CLIENT *of, xdrproc_t decode, void *results) {
    XDR xdrs = {.x_op = XDR_FREE};
    (void)of;
    return decode(&xdrs, results);
}

static bool_t control(CLIENT *of, u_int request, void *info) {
    struct client *client = of->cl_private;
    bool_t done = info != NULL;
    if (!done) return FALSE;
    pthread_mutex_lock(&client->lock);
    switch (request) {
        case CLSET_TIMEOUT:
            if ((done = is_time(info))) {
                client->limit = *(struct timeval *)info;
                client->has_limit = true;
            }
            break;
        case CLGET_TIMEOUT: *(struct timeval *)info = client->limit; break;
        case CLGET_XID: *(uint32_t *)info = atomic_load(&client->xid); break;
        case CLSET_XID: atomic_store(&client->xid, *(uint32_t *)info - 1); break; /* Of the next call. */
        case CLGET_VERS: *(uint32_t *)info = (uint32_t)client->vers; break;
        case CLSET_VERS: client->vers = *(uint32_t *)info; break;
        case CLGET_PROG: *(uint32_t *)info = (uint32_t)client->prog; break;
        case CLSET_PROG: client->prog = *(uint32_t *)info; break;
        default: done = FALSE;
    }
    pthread_mutex_unlock(&client->lock);
    return done;
}

static void destroy(CLIENT *of) {
    struct client *client = of->cl_private;
    if (client->now) release(client, client->now, false);
    if (client->owns_node) rpc_hamlyn_give_node(client->node);
    pthread_mutex_destroy(&client->lock);
    free(client->service);
    free(client);
    free(of);
}

static struct clnt_ops operations = {
    .cl_call = call,
    .cl_abort = give_up,
    .cl_geterr = get_error,
    .cl_freeres = free_results,
    .cl_destroy = destroy,
    .cl_control = control,
};

CLIENT *clnt_hamlyn_create_timed(h_node_t *node, const char *service, rpcprog_t prog, rpcvers_t vers,
                                 const struct timeval *limit) {
    CLIENT *of = calloc(1, sizeof *of);
    struct client *client = calloc(1, sizeof *client);
    char *name = strdup(service ? service : "");
    if (!of || !client || !name) {
        free(of);
        free(client);
        free(name);
        rpc_hamlyn_say("there is no memory for a client");
        rpc_createerr.cf_stat = rpc_createerr.cf_error.re_status = RPC_SYSTEMERROR;
        rpc_createerr.cf_error.re_errno = ENOMEM;
        return NULL;
    }
    of->cl_private = client;
    of->cl_ops = &operations;
    of->cl_auth = authnone_create();
    client->service = name;
    client->prog = prog;
    client->vers = vers;
    client->limit = USUAL;
    atomic_init(&client->xid, (unsigned)now_ns());
    pthread_mutex_init(&client->lock, NULL);
    client->owns_node = !node;
    client->node = node ? node : rpc_hamlyn_take_node();
    struct rpc_err error = {.re_status = RPC_SYSTEMERROR, .re_errno = EIO};
    if (client->node) {
        int64_t deadline = now_ns() + ns_of(limit && is_time(limit) ? limit : &USUAL);
        h_status status = connect_within(client, deadline, &client->now);
        if (status == H_OK) return of;
        error = failure(status, status == H_NOT_FOUND ? RPC_UNKNOWNHOST : RPC_SYSTEMERROR);
    }
    rpc_createerr.cf_stat = error.re_status;
    rpc_createerr.cf_error = error;
    destroy(of);
    return NULL;
}

CLIENT *clnt_hamlyn_create(const char *service, rpcprog_t prog, rpcvers_t vers) {
    return clnt_hamlyn_create_timed(NULL, service, prog, vers, NULL);
}
