/* The server of probe.x, with the stubs of rpcgen -M.
 *
 *   ./probe_server SERVICE [THREADS]
 *   ./probe_server SERVICE loop          in a loop of its own, over poll
 *   ./probe_server SERVICE 1 anyone      for all users
 */
#include "probe.h"

#include <hamlyn_rpc.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void probe_1(struct svc_req *, SVCXPRT *);
void probe_3(struct svc_req *, SVCXPRT *);

static atomic_int notes, here;
static atomic_bool stopped;

bool_t echo_1_svc(blob *bytes, blob *result, struct svc_req *request) {
    (void)request;
    result->blob_len = bytes->blob_len;
    result->blob_val = malloc(bytes->blob_len + 1);
    if (bytes->blob_len) memcpy(result->blob_val, bytes->blob_val, bytes->blob_len);
    return TRUE;
}

bool_t who_1_svc(void *none, caller *result, struct svc_req *request) {
    const struct authunix_parms *unix_user = request->rq_clntcred;
    struct authunix_parms raw;
    h_peer_t peer;
    XDR xdrs;
    (void)none;
    memset(result, 0, sizeof *result);
    memset(&raw, 0, sizeof raw);
    xdrmem_create(&xdrs, request->rq_cred.oa_base, request->rq_cred.oa_length, XDR_DECODE);
    if (!xdr_authunix_parms(&xdrs, &raw)) return FALSE;
    result->flavor = request->rq_cred.oa_flavor;
    result->uid = unix_user->aup_uid;
    result->gid = unix_user->aup_gid;
    result->groups = unix_user->aup_len;
    result->raw_uid = raw.aup_uid;
    result->machine = strdup(unix_user->aup_machname);
    result->pid = svc_hamlyn_peer(request, &peer) ? (int)peer.pid : -1;
    xdr_free((xdrproc_t)xdr_authunix_parms, (char *)&raw);
    return svc_getrpccaller(request->rq_xprt)->len == sizeof(sa_family_t);
}

bool_t note_1_svc(int *number, void *result, struct svc_req *request) {
    (void)result, (void)request;
    atomic_fetch_add(&notes, *number);
    return FALSE; /* No reply. */
}

bool_t notes_1_svc(void *none, int *result, struct svc_req *request) {
    (void)none, (void)request;
    *result = atomic_load(&notes);
    return TRUE;
}

bool_t persons_1_svc(person *first, int *result, struct svc_req *request) {
    (void)request;
    *result = 0;
    for (person *each = first; each; each = each->next) (*result)++;
    return TRUE;
}

bool_t drop_1_svc(void *none, void *result, struct svc_req *request) {
    (void)none, (void)result, (void)request;
    return FALSE;
}

bool_t die_1_svc(void *none, void *result, struct svc_req *request) {
    (void)none, (void)result, (void)request;
    _exit(0);
}

bool_t stop_1_svc(void *none, void *result, struct svc_req *request) {
    (void)none, (void)result;
    atomic_store(&stopped, true);
    svc_hamlyn_exit(request->rq_xprt);
    return TRUE;
}

bool_t huge_1_svc(unsigned *bytes, blob *result, struct svc_req *request) {
    (void)request;
    result->blob_len = *bytes;
    result->blob_val = calloc(1, (size_t)*bytes + 1);
    return result->blob_val != NULL;
}

/* Returns when as many callers are in it at once. */
bool_t together_1_svc(int *callers, int *result, struct svc_req *request) {
    (void)request;
    *result = atomic_fetch_add(&here, 1) + 1;
    while (atomic_load(&here) < *callers) usleep(100);
    return TRUE;
}

/* Bytes that the main thread has allocated. */
bool_t heap_1_svc(void *none, u_quad_t *result, struct svc_req *request) {
    (void)none, (void)request;
    *result = mallinfo2().uordblks + mallinfo2().hblkhd;
    return TRUE;
}

bool_t third_3_svc(void *none, int *result, struct svc_req *request) {
    (void)none, (void)request;
    *result = 3;
    return TRUE;
}

int probe_1_freeresult(SVCXPRT *xprt, xdrproc_t type, caddr_t result) {
    (void)xprt;
    xdr_free(type, result);
    return TRUE;
}

int probe_3_freeresult(SVCXPRT *xprt, xdrproc_t type, caddr_t result) { return probe_1_freeresult(xprt, type, result); }

static void *serve(void *xprt) { return svc_hamlyn_run(xprt) ? xprt : NULL; }

int main(int argc, char **argv) {
    uint32_t access = argc > 3 && strcmp(argv[3], "anyone") == 0 ? H_ACCESS_ANYONE : H_ACCESS_SAME_USER;
    SVCXPRT *xprt = argc > 1 ? svc_hamlyn_create(argv[1], access, 0) : NULL;
    if (!xprt || !svc_hamlyn_reg(xprt, PROBE, PROBE_1, probe_1) || !svc_hamlyn_reg(xprt, PROBE, PROBE_3, probe_3)) {
        fprintf(stderr, "probe_server: %s\n", rpc_hamlyn_error());
        return 1;
    }
    if (svc_hamlyn_reg(xprt, PROBE, PROBE_1, probe_3) || svc_hamlyn_reg(xprt, PROBE, 2, NULL)) return 1;
    if (argc > 2 && strcmp(argv[2], "loop") == 0) {
        struct pollfd polled = {.fd = svc_hamlyn_fd(xprt), .events = POLLIN};
        while (!atomic_load(&stopped)) {
            if (!svc_hamlyn_getreq(xprt) && !atomic_load(&stopped)) poll(&polled, 1, -1);
        }
    } else {
        pthread_t threads[16];
        int count = argc > 2 ? atoi(argv[2]) : 1;
        for (int i = 1; i < count; i++) pthread_create(&threads[i], NULL, serve, xprt);
        if (!serve(xprt)) return 1;
        for (int i = 1; i < count; i++) pthread_join(threads[i], NULL);
    }
    svc_destroy(xprt);
    return 0;
}
