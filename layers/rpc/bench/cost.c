/* A null call, and echoes of 1 and of 4 KiB: over Hamlyn's RPC, Hamlyn's calls alone, and libtirpc's own TCP and Unix
 * sockets.
 *
 *   layers/rpc/bench/cost.sh           compiles and runs it
 *
 * Server and client are two processes, on processors 0 and 1. Each way is measured in turn, three times, 20,000 calls
 * at a time; the figures are medians in nanoseconds of all calls, and of each time.
 */
#define _GNU_SOURCE
#include "probe.h"

#include <hamlyn_rpc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLS 20000
#define TIMES 3
#define BYTES 4096
#define LENGTHS 3
/* The head of a call and of a reply, and the blob's length, so that the calls alone carry as much. */
#define CALL_HEAD 40
#define REPLY_HEAD 24

void probe_1(struct svc_req *, SVCXPRT *);

static const u_int LENGTH[LENGTHS] = {0, 1024, BYTES};

static void fail(const char *what) {
    fprintf(stderr, "cost: %s: %s; %s\n", what, rpc_hamlyn_error(), h_error_message());
    exit(1);
}

static void pin(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* ---- The program's procedures that are measured. Static results: one thread. */

bool_t echo_1_svc(blob *bytes, blob *result, struct svc_req *request) {
    (void)request;
    *result = *bytes;
    *bytes = (blob){0, NULL};
    return TRUE;
}

#define UNUSED(name, argument, type)                                       \
    bool_t name(argument *a, type *r, struct svc_req *q) {                 \
        (void)a, (void)r, (void)q;                                         \
        return FALSE;                                                      \
    }
UNUSED(who_1_svc, void, caller)
UNUSED(note_1_svc, int, void)
UNUSED(notes_1_svc, void, int)
UNUSED(persons_1_svc, person, int)
UNUSED(drop_1_svc, void, void)
UNUSED(die_1_svc, void, void)
UNUSED(stop_1_svc, void, void)
UNUSED(huge_1_svc, u_int, blob)
UNUSED(together_1_svc, int, int)
UNUSED(heap_1_svc, void, u_quad_t)
UNUSED(third_3_svc, void, int)

int probe_1_freeresult(SVCXPRT *xprt, xdrproc_t type, caddr_t result) {
    (void)xprt;
    xdr_free(type, result);
    return TRUE;
}

int probe_3_freeresult(SVCXPRT *xprt, xdrproc_t type, caddr_t result) { return probe_1_freeresult(xprt, type, result); }

/* ---- The ways. */

enum way { RPC, RPC_LOOP, CALLS_ALONE, UNIX, TCP, WAYS };
static const char *const NAMES[] = {
    "rpc", "rpc in a poll loop", "client and server alone", "libtirpc, unix", "libtirpc, tcp",
};

struct end {
    enum way way;
    pid_t server;
    CLIENT *client;
    h_client_t *alone;
};

static void serve(enum way way, int listener) {
    char name[32];
    h_node_t *node;
    h_server_t *server;
    h_request_t *request;
    snprintf(name, sizeof name, "cost-%d", way);
    pin(0);
    if (way == RPC || way == RPC_LOOP) {
        SVCXPRT *xprt = svc_hamlyn_create(name, H_ACCESS_SAME_USER, 0);
        if (!xprt || !svc_hamlyn_reg(xprt, PROBE, PROBE_1, probe_1)) fail("rpc");
        if (way == RPC) svc_hamlyn_run(xprt);
        struct pollfd polled = {.fd = svc_hamlyn_fd(xprt), .events = POLLIN};
        for (;;) {
            if (!svc_hamlyn_getreq(xprt)) poll(&polled, 1, -1);
        }
    } else if (way == CALLS_ALONE) {
        if (h_node_new(NULL, 0, &node) != H_OK || h_server_new(node, NULL, &server) != H_OK ||
            h_server_serve(server, name, H_ACCESS_SAME_USER, 0) != H_OK) {
            fail("calls alone");
        }
        while (h_server_receive(server, H_FOREVER, &request) == H_OK) {
            const void *data;
            size_t length;
            h_request_data(request, &data, &length);
            h_request_reply(request, data, length - CALL_HEAD + REPLY_HEAD, 1000000000);
        }
    } else {
        SVCXPRT *xprt = svc_vc_create(listener, 0, 0);
        if (!xprt || !svc_reg(xprt, PROBE, PROBE_1, probe_1, NULL)) fail("libtirpc");
        svc_run();
    }
    _exit(1);
}

static int listener(enum way way, struct sockaddr_storage *address, socklen_t *length) {
    int fd = socket(way == TCP ? AF_INET : AF_UNIX, SOCK_STREAM, 0), one = 1;
    memset(address, 0, sizeof *address);
    address->ss_family = way == TCP ? AF_INET : AF_UNIX;
    /* An abstract name, of the kernel's choice. */
    *length = way == TCP ? sizeof(struct sockaddr_in) : sizeof(sa_family_t);
    if (way == TCP) {
        ((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    if (bind(fd, (struct sockaddr *)address, *length) || listen(fd, 1)) fail("listen");
    *length = sizeof *address;
    getsockname(fd, (struct sockaddr *)address, length);
    return fd;
}

static struct end start(enum way way) {
    struct end end = {.way = way};
    struct sockaddr_storage address;
    socklen_t length = 0;
    char name[32];
    int fd = -1, one = 1;
    snprintf(name, sizeof name, "cost-%d", way);
    if (way >= UNIX) fd = listener(way, &address, &length);
    end.server = fork();
    if (end.server == 0) serve(way, fd);
    if (way >= UNIX) {
        close(fd);
        fd = socket(address.ss_family, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, length)) fail("connect");
        if (way == TCP) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct netbuf to = {.buf = &address, .len = length, .maxlen = sizeof address};
        end.client = clnt_vc_create(fd, &to, PROBE, PROBE_1, 0, 0);
    } else if (way == CALLS_ALONE) {
        h_node_t *node;
        if (h_node_new(NULL, 0, &node) != H_OK ||
            h_client_connect(node, name, NULL, 10000000000, &end.alone) != H_OK) {
            fail("calls alone");
        }
    } else {
        end.client = clnt_hamlyn_create(name, PROBE, PROBE_1);
    }
    if (!end.client && !end.alone) fail(NAMES[way]);
    return end;
}

static void call(struct end *end, u_int length) {
    static char bytes[CALL_HEAD + BYTES], reply[CALL_HEAD + BYTES];
    struct timeval limit = {25, 0};
    if (end->alone) {
        h_status status =
            h_client_call(end->alone, bytes, CALL_HEAD + length, 25000000000, reply, sizeof reply, NULL);
        if (status != H_OK) fail("call");
    } else if (length) {
        blob sent = {.blob_len = length - 4, .blob_val = bytes}, got = {0, NULL};
        if (echo_1(&sent, &got, end->client) != RPC_SUCCESS || got.blob_len != length - 4) fail("echo");
        free(got.blob_val);
    } else if (clnt_call(end->client, NULLPROC, (xdrproc_t)(void (*)(void))xdr_void, NULL,
                         (xdrproc_t)(void (*)(void))xdr_void, NULL, limit) != RPC_SUCCESS) {
        fail("null");
    }
}

static int compare(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return x < y ? -1 : x > y;
}

static unsigned median(unsigned *of, size_t count) {
    qsort(of, count, sizeof *of, compare);
    return of[count / 2];
}

int main(void) {
    static unsigned ns[WAYS][LENGTHS][TIMES * CALLS];
    unsigned medians[WAYS][LENGTHS][TIMES];
    signal(SIGPIPE, SIG_IGN);
    pin(1);
    for (int time = 0; time < TIMES; time++) {
        for (int way = 0; way < WAYS; way++) {
            struct end end = start(way);
            for (int l = 0; l < LENGTHS; l++) {
                unsigned *of = &ns[way][l][time * CALLS];
                for (int i = 0; i < CALLS / 10; i++) call(&end, LENGTH[l]);
                for (int i = 0; i < CALLS; i++) {
                    struct timespec from, to;
                    clock_gettime(CLOCK_MONOTONIC, &from);
                    call(&end, LENGTH[l]);
                    clock_gettime(CLOCK_MONOTONIC, &to);
                    of[i] = (unsigned)((to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec);
                }
                medians[way][l][time] = median(of, CALLS);
            }
            if (end.client) clnt_destroy(end.client);
            kill(end.server, SIGKILL);
            waitpid(end.server, NULL, 0);
        }
    }
    for (int way = 0; way < WAYS; way++) {
        printf("%-24s", NAMES[way]);
        for (int l = 0; l < LENGTHS; l++) {
            unsigned *each = medians[way][l];
            printf("  %4u bytes %6u ns (%u %u %u)", LENGTH[l], median(ns[way][l], TIMES * CALLS),
                   each[0], each[1], each[2]);
        }
        puts("");
    }
    return 0;
}
