/* What a client of rpcgen's stubs can rely on: results, errors, credentials, one-way calls, servers that end, threads.
 *
 *   ./calls PROBE_SERVER
 */
#include "probe.h"

#include <errno.h>
#include <hamlyn_rpc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(#holds, __LINE__))
#define SERVICE "probe"

static pid_t server;

static void fail(const char *what, int line) {
    fprintf(stderr, "calls.c:%d: not so: %s (%s)\n", line, what, rpc_hamlyn_error());
    if (server > 0) kill(server, SIGKILL);
    exit(1);
}

static void start(const char *program, const char *threads) {
    server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(program, program, SERVICE, threads, (char *)NULL);
        _exit(1);
    }
    CHECK(server > 0);
}

/* The server's end, by itself. */
static void wait_for_end(void) {
    int status;
    CHECK(waitpid(server, &status, 0) == server && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    server = 0;
}

static void sends_and_receives_values_of_every_length(CLIENT *client) {
    static char bytes[3 << 20];
    static const u_int lengths[] = {0, 1, 3, 4, 4000, 4030, 4060, 4061, 4088, 4096, 65536, 1 << 20, sizeof bytes};
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 7 + i / 4096);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        blob sent = {.blob_len = lengths[i], .blob_val = bytes}, got = {0, NULL};
        CHECK(echo_1(&sent, &got, client) == RPC_SUCCESS);
        CHECK(got.blob_len == lengths[i] && (lengths[i] == 0 || memcmp(got.blob_val, bytes, lengths[i]) == 0));
        CHECK(clnt_freeres(client, (xdrproc_t)xdr_blob, (char *)&got) && got.blob_val == NULL);
    }
    int ages[3] = {1, 2, 3}, count = 0;
    person second = {.name = "two", .ages = {3, ages}}, first = {.name = "one", .next = &second};
    CHECK(persons_1(&first, &count, client) == RPC_SUCCESS && count == 2);
}

static enum clnt_stat plain(CLIENT *client, rpcproc_t proc) {
    struct timeval limit = {25, 0};
    return clnt_call(client, proc, (xdrproc_t)(void (*)(void))xdr_void, NULL, (xdrproc_t)(void (*)(void))xdr_void, NULL,
                     limit);
}

static void learns_what_was_wrong(CLIENT *client) {
    struct rpc_err error;
    uint32_t other = 2, old;
    CHECK(plain(client, 77) == RPC_PROCUNAVAIL);
    CHECK(clnt_control(client, CLGET_VERS, &old) && old == PROBE_1 && clnt_control(client, CLSET_VERS, &other));
    CHECK(plain(client, NULLPROC) == RPC_PROGVERSMISMATCH);
    clnt_geterr(client, &error);
    CHECK(error.re_status == RPC_PROGVERSMISMATCH && error.re_vers.low == 1 && error.re_vers.high == 3);
    CHECK(clnt_control(client, CLSET_VERS, &old));
    CHECK(clnt_control(client, CLGET_PROG, &old) && old == PROBE && clnt_control(client, CLSET_PROG, &other));
    CHECK(plain(client, NULLPROC) == RPC_PROGUNAVAIL);
    CHECK(clnt_control(client, CLSET_PROG, &old));
    CHECK(plain(client, ECHO) == RPC_CANTDECODEARGS); /* No arguments, where a blob should be. */
    CHECK(plain(client, NULLPROC) == RPC_SUCCESS);
    /* A procedure that does not reply is no reason to wait. */
    CHECK(plain(client, DROP) == RPC_CANTRECV && strstr(rpc_hamlyn_error(), "will not reply"));
    /* Arguments that are against their own type. */
    blob sent = {.blob_len = (16 << 20) + 1, .blob_val = NULL}, got = {0, NULL};
    CHECK(echo_1(&sent, &got, client) == RPC_CANTENCODEARGS);
    /* Within their type, and with the header longer than a message. */
    sent = (blob){.blob_len = 16 << 20, .blob_val = calloc(1, 16 << 20)};
    CHECK(echo_1(&sent, &got, client) == RPC_CANTENCODEARGS);
    free(sent.blob_val);
    /* A reply longer than a message, and one that cannot be encoded. */
    u_int huge = 16 << 20;
    CHECK(huge_1(&huge, &got, client) == RPC_SYSTEMERROR);
    huge++;
    CHECK(huge_1(&huge, &got, client) == RPC_SYSTEMERROR);
    /* A reply of another type. */
    int count = 0;
    struct timeval limit = {25, 0};
    CHECK(clnt_call(client, NULLPROC, (xdrproc_t)(void (*)(void))xdr_void, NULL, (xdrproc_t)xdr_int, (char *)&count,
                    limit) == RPC_CANTDECODERES);
    CHECK(strstr(rpc_hamlyn_error(), "procedure's type"));
}

static void is_known_by_the_kernel(CLIENT *client) {
    char machine[256] = "";
    gethostname(machine, 255);
    AUTH *before = client->cl_auth;
    gid_t none[1] = {0};
    /* Nobody, root and a stranger, as the message says; and a verifier, which is not sent back. */
    AUTH *root = authunix_create("elsewhere", 0, 0, 1, none), *stranger = authunix_create("elsewhere", 4711, 4712, 0, none);
    AUTH *said[] = {before, root, stranger};
    for (int i = 0; i < 3; i++) {
        caller who = {.machine = NULL};
        client->cl_auth = said[i];
        CHECK(who_1(NULL, &who, client) == RPC_SUCCESS);
        CHECK(who.flavor == AUTH_SYS && who.uid == geteuid() && who.gid == getegid() && who.groups == 0);
        CHECK(who.raw_uid == geteuid() && who.pid == getpid() && strcmp(who.machine, machine) == 0);
        clnt_freeres(client, (xdrproc_t)xdr_caller, (char *)&who);
        if (i) auth_destroy(said[i]);
    }
    client->cl_auth = before;
}

/* More one-way calls than may be on their way, and then one that waits. */
static void carries_out_one_way_calls_once(CLIENT *client) {
    struct timeval now = {0, 0};
    int before = 0, after = 0, one = 1;
    CHECK(notes_1(NULL, &before, client) == RPC_SUCCESS);
    for (int i = 0; i < 500; i++) {
        CHECK(clnt_call(client, NOTE, (xdrproc_t)xdr_int, (char *)&one, (xdrproc_t)NULL, NULL, now) == RPC_SUCCESS);
    }
    CHECK(clnt_call(client, NOTE, (xdrproc_t)xdr_int, (char *)&one, (xdrproc_t)(void (*)(void))xdr_void, NULL, now) ==
          RPC_TIMEDOUT);
    do {
        CHECK(notes_1(NULL, &after, client) == RPC_SUCCESS && after <= before + 501);
    } while (after < before + 501);
}

static void controls_limits_and_numbers(CLIENT *client) {
    struct timeval limit = {10, 5}, got = {0, 0}, bad = {0, 1000000};
    uint32_t xid = 99;
    CHECK(clnt_control(client, CLSET_XID, &xid) && plain(client, NULLPROC) == RPC_SUCCESS);
    CHECK(clnt_control(client, CLGET_XID, &xid) && xid == 99);
    CHECK(!clnt_control(client, CLSET_TIMEOUT, &bad) && clnt_control(client, CLSET_TIMEOUT, &limit));
    CHECK(clnt_control(client, CLGET_TIMEOUT, &got) && got.tv_sec == 10 && got.tv_usec == 5);
    CHECK(!clnt_control(client, CLGET_FD, &xid) && !clnt_control(client, CLGET_VERS, NULL));
}

static void *call_often(void *client) {
    for (int i = 0; i < 300; i++) {
        char bytes[64];
        blob sent = {.blob_len = sizeof bytes, .blob_val = bytes}, got = {0, NULL};
        memset(bytes, i, sizeof bytes);
        if (echo_1(&sent, &got, client) != RPC_SUCCESS) return NULL;
        bool same = got.blob_len == sizeof bytes && memcmp(got.blob_val, bytes, sizeof bytes) == 0;
        clnt_freeres((CLIENT *)client, (xdrproc_t)xdr_blob, (char *)&got);
        if (!same) return NULL;
    }
    int here = 0, callers = 4;
    return together_1(&callers, &here, client) == RPC_SUCCESS ? client : NULL;
}

/* One client, one server, and as many calls at once as either has threads. */
static void serves_several_threads_at_once(CLIENT *client) {
    pthread_t threads[4];
    void *result;
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, call_often, client) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], &result) == 0 && result == client);
}

static atomic_bool is_over;

/* NULL: a call has failed. */
static void *call_until_the_end(void *client) {
    while (!atomic_load(&is_over)) {
        if (plain(client, NULLPROC) == RPC_SUCCESS) continue;
        fprintf(stderr, "a call has failed: %s\n", rpc_hamlyn_error());
        return NULL;
    }
    return client;
}

static void survives_servers_that_end(CLIENT *client, const char *program) {
    struct timeval shortly = {0, 200000}, before, usual = {25, 0};
    struct rpc_err error;
    CHECK(clnt_control(client, CLSET_TIMEOUT, &usual));
    /* Killed in a call: it may have been carried out, so nobody carries it out again. */
    CHECK(plain(client, DIE) == RPC_CANTRECV);
    clnt_geterr(client, &error);
    CHECK(error.re_errno == ECONNRESET && strlen(rpc_hamlyn_error()) > 10);
    CHECK(strstr(clnt_sperror(client, "x"), "Unable to receive"));
    wait_for_end();
    /* Nobody there. */
    CHECK(clnt_control(client, CLGET_TIMEOUT, &before) && clnt_control(client, CLSET_TIMEOUT, &shortly));
    CHECK(plain(client, NULLPROC) == RPC_CANTSEND);
    CHECK(clnt_control(client, CLSET_TIMEOUT, &before));
    start(program, "1");
    CHECK(plain(client, NULLPROC) == RPC_SUCCESS);
    /* In good order, and in a loop of the program's own: no call sees the change. */
    pthread_t other;
    void *result;
    CHECK(pthread_create(&other, NULL, call_until_the_end, client) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(plain(client, STOP) == RPC_SUCCESS);
        wait_for_end();
        start(program, i == 1 ? "1" : "loop");
        CHECK(plain(client, NULLPROC) == RPC_SUCCESS);
        sends_and_receives_values_of_every_length(client);
    }
    atomic_store(&is_over, true);
    CHECK(pthread_join(other, &result) == 0 && result == client);
}

static void does_not_wait_longer_than_it_may(void) {
    struct timeval limit = {0, 100000};
    SVCXPRT *silent = svc_hamlyn_create("silent", H_ACCESS_SAME_USER, 0);
    CHECK(silent);
    CLIENT *client = clnt_hamlyn_create("silent", PROBE, PROBE_1);
    CHECK(client && clnt_control(client, CLSET_TIMEOUT, &limit));
    CHECK(plain(client, NULLPROC) == RPC_TIMEDOUT);
    clnt_destroy(client);
    svc_destroy(silent);
    CHECK(clnt_hamlyn_create_timed(NULL, "nobody", PROBE, PROBE_1, &limit) == NULL);
    CHECK(rpc_createerr.cf_stat == RPC_UNKNOWNHOST && strlen(rpc_hamlyn_error()) > 10);
    CHECK(svc_hamlyn_create("not/a name", H_ACCESS_SAME_USER, 0) == NULL && strlen(rpc_hamlyn_error()) > 10);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    start(argv[1], "4");
    CLIENT *client = clnt_hamlyn_create(SERVICE, PROBE, PROBE_1);
    CHECK(client);
    sends_and_receives_values_of_every_length(client);
    learns_what_was_wrong(client);
    is_known_by_the_kernel(client);
    carries_out_one_way_calls_once(client);
    controls_limits_and_numbers(client);
    serves_several_threads_at_once(client);
    survives_servers_that_end(client, argv[1]);
    CHECK(plain(client, STOP) == RPC_SUCCESS);
    wait_for_end();
    clnt_destroy(client);
    does_not_wait_longer_than_it_may();
    puts("calls: as said");
    return 0;
}
