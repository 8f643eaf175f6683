/* A peer that lies, on either side: the other refuses, keeps its memory, and goes on.
 *
 *   ./hostile PROBE_SERVER
 */
#include "probe.h"

#include <hamlyn_rpc.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(#holds, __LINE__))
#define LIMIT ((int64_t)20000000000)
#define ROUNDS 6000

static pid_t server;

static void fail(const char *what, int line) {
    fprintf(stderr, "hostile.c:%d: not so: %s (%s; %s)\n", line, what, rpc_hamlyn_error(), h_error_message());
    if (server > 0) kill(server, SIGKILL);
    exit(1);
}

static uint64_t seed = 0x9e3779b97f4a7c15;

static uint32_t any(uint32_t below) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32) % below;
}

static const uint32_t EXTREMES[] = {
    0, 1, 2, 400, 401, 0xffff, 0x3fffffff, 0x7fffffff, 0x80000000, 0xfffffffc, 0xffffffff,
};

/* Spoils a message of `length` bytes, of at most `capacity`; the new length. */
static size_t spoil(unsigned char *bytes, size_t length, size_t capacity) {
    for (uint32_t times = any(3) + 1; times > 0; times--) {
        uint32_t word = htonl(EXTREMES[any(sizeof EXTREMES / sizeof *EXTREMES)]);
        switch (any(5)) {
            case 0: length = any((uint32_t)length + 1); break;
            case 1:
                if (length >= 4) memcpy(bytes + 4 * any((uint32_t)length / 4), &word, 4);
                break;
            case 2:
                if (length > 0) bytes[any((uint32_t)length)] ^= (unsigned char)(1 << any(8));
                break;
            case 3:
                while (length < capacity && any(20) > 0) bytes[length++] = (unsigned char)any(256);
                break;
            default:
                if (length >= 4) memset(bytes + any((uint32_t)length - 3), (int)any(256), 4);
        }
    }
    return length;
}

/* ---- Messages by hand. */

static size_t put(unsigned char *bytes, const uint32_t *words, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t word = htonl(words[i]);
        memcpy(bytes + 4 * i, &word, 4);
    }
    return 4 * count;
}

static size_t call_head(unsigned char *bytes, uint32_t proc) {
    return put(bytes, (uint32_t[]){7, CALL, 2, PROBE, PROBE_1, proc, AUTH_NONE, 0, AUTH_NONE, 0}, 10);
}

static size_t any_call(unsigned char *bytes) {
    static const uint32_t procs[] = {NULLPROC, ECHO, WHO, NOTES, PERSONS, DROP, HEAP, 99};
    static const uint32_t person[] = {3, 0x61626300, 2, 1, 2, 1, 0, 1, 5, 0};
    uint32_t proc = procs[any(sizeof procs / sizeof *procs)];
    size_t length = call_head(bytes, proc);
    if (proc == ECHO) length += put(bytes + length, (uint32_t[]){8, 1, 2}, 3);
    if (proc == PERSONS) length += put(bytes + length, person, sizeof person / sizeof *person);
    return length;
}

/* The words of a reply to a hostile call; 0: there was none. */
static size_t ask(h_client_t *client, const void *bytes, size_t length, uint32_t words[16]) {
    static unsigned char reply[1 << 16];
    size_t count = 0;
    h_status status = h_client_call(client, bytes, length, LIMIT, reply, sizeof reply, &count);
    CHECK(status == H_OK || status == H_REFUSED);
    if (status != H_OK) return 0;
    for (size_t i = 0; i < 16 && i < count / 4; i++) {
        memcpy(&words[i], reply + 4 * i, 4);
        words[i] = ntohl(words[i]);
    }
    return count / 4;
}

static uint64_t heap(CLIENT *client) {
    u_quad_t bytes = 0;
    CHECK(heap_1(NULL, &bytes, client) == RPC_SUCCESS);
    return bytes;
}

static void is_no_harm_to_a_server(h_node_t *node, const char *program) {
    unsigned char bytes[1024];
    uint32_t words[16];
    server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(program, program, "victim", "1", (char *)NULL);
        _exit(1);
    }
    h_client_t *raw;
    CHECK(h_client_connect(node, "victim", NULL, LIMIT, &raw) == H_OK);
    CLIENT *honest = clnt_hamlyn_create("victim", PROBE, PROBE_1);
    CHECK(honest);

    /* Each prefix of a call. */
    size_t whole = call_head(bytes, NULLPROC);
    for (size_t length = 0; length < whole; length++) CHECK(ask(raw, bytes, length, words) == 0);
    CHECK(ask(raw, bytes, whole, words) == 6 && words[0] == 7 && words[1] == REPLY && words[5] == SUCCESS);
    /* A reply in place of a call; another version of RPC, which is told so. */
    put(bytes + 4, (uint32_t[]){REPLY}, 1);
    CHECK(ask(raw, bytes, whole, words) == 0);
    put(bytes + 4, (uint32_t[]){CALL, 3}, 2);
    CHECK(ask(raw, bytes, whole, words) == 6 && words[2] == MSG_DENIED && words[3] == RPC_MISMATCH && words[4] == 2);
    CHECK(ask(raw, bytes, 12, words) == 6 && words[0] == 7);
    /* A credential of 401 bytes; of another kind than the server knows: not looked at. */
    whole = call_head(bytes, NULLPROC);
    put(bytes + 28, (uint32_t[]){401}, 1);
    CHECK(ask(raw, bytes, sizeof bytes, words) == 0);
    call_head(bytes, NULLPROC);
    put(bytes + 24, (uint32_t[]){4242}, 1);
    CHECK(ask(raw, bytes, whole, words) == 6 && words[5] == SUCCESS);
    /* AUTH_SYS of root, as anybody can write it, and a verifier. */
    whole = put(bytes, (uint32_t[]){7, CALL, 2, PROBE, PROBE_1, WHO, AUTH_SYS, 20, 0, 0, 4711, 4712, 0}, 13);
    whole += put(bytes + whole, (uint32_t[]){AUTH_SHORT, 4, 1}, 3);
    CHECK(ask(raw, bytes, whole, words) > 9 && words[3] == AUTH_NONE && words[4] == 0 && words[5] == SUCCESS);
    CHECK(words[6] == AUTH_SYS && words[7] == geteuid() && words[8] == getegid() && words[10] == geteuid());
    /* An array of a thousand million elements; a list as long as the stack. */
    uint64_t before = heap(honest);
    whole = call_head(bytes, PERSONS);
    for (int i = 0; i < 20; i++) {
        whole = 40 + put(bytes + 40, (uint32_t[]){0, 0x3fffffff, 1, 2, 3}, 5);
        CHECK(ask(raw, bytes, whole, words) == 6 && words[5] == GARBAGE_ARGS);
        whole = 40 + put(bytes + 40, (uint32_t[]){0xfffffff0, 0, 0}, 3);
        CHECK(ask(raw, bytes, whole, words) == 6 && words[5] == GARBAGE_ARGS);
    }
    size_t length = 40 + 12 * (size_t)1000000;
    unsigned char *list = malloc(length);
    call_head(list, PERSONS);
    for (size_t at = 40; at < length; at += 12) put(list + at, (uint32_t[]){0, 0, 1}, 3);
    CHECK(ask(raw, list, length, words) == 6 && words[5] == GARBAGE_ARGS);
    put(list + 40 + 12 * 8000 + 8, (uint32_t[]){0}, 1);
    CHECK(ask(raw, list, length, words) == 7 && words[5] == SUCCESS && words[6] == 8001);
    free(list);
    /* Anything. */
    for (int i = 0; i < ROUNDS; i++) ask(raw, bytes, spoil(bytes, any_call(bytes), sizeof bytes), words);
    uint64_t after = heap(honest);
    if (after > before + (1 << 20)) {
        fprintf(stderr, "the server has allocated %llu bytes more\n", (unsigned long long)(after - before));
        CHECK(!"memory");
    }
    CHECK(stop_1(NULL, NULL, honest) == RPC_SUCCESS);
    int status;
    CHECK(waitpid(server, &status, 0) == server && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    server = 0;
    clnt_destroy(honest);
    h_client_free(raw);
}

/* ---- A server that lies: answers what its caller said in the arguments. */

static void *lie(void *of) {
    h_request_t *request;
    h_status status;
    while ((status = h_server_receive(of, H_FOREVER, &request)) == H_OK) {
        const void *data;
        size_t length;
        uint32_t xid = 0, oneself;
        CHECK(h_request_data(request, &data, &length) == H_OK && length >= 44);
        /* The reply follows the call's head and the blob's length; its first word becomes the call's number. */
        unsigned char *reply = malloc(length);
        memcpy(reply, (const char *)data + 44, length - 44);
        memcpy(&xid, data, 4);
        if (length >= 48) {
            memcpy(&oneself, reply, 4);
            if (ntohl(oneself) == 0xabcd) memcpy(reply, &xid, 4);
        }
        CHECK(h_request_reply(request, reply, length - 44, LIMIT) == H_OK);
        free(reply);
    }
    CHECK(status == H_CLOSED);
    return NULL;
}

static enum clnt_stat answered(CLIENT *client, const unsigned char *bytes, size_t length, person *result) {
    struct timeval limit = {20, 0};
    blob sent = {.blob_len = (u_int)length, .blob_val = (char *)bytes};
    return clnt_call(client, ECHO, (xdrproc_t)xdr_blob, (char *)&sent, (xdrproc_t)xdr_person, result, limit);
}

static void is_no_harm_to_a_client(h_node_t *node) {
    unsigned char bytes[1024];
    h_server_t *liar;
    pthread_t thread;
    CHECK(h_server_new(node, NULL, &liar) == H_OK && h_server_serve(liar, "liar", H_ACCESS_SAME_USER, 0) == H_OK);
    CHECK(pthread_create(&thread, NULL, lie, liar) == 0);
    CLIENT *client = clnt_hamlyn_create("liar", PROBE, PROBE_1);
    CHECK(client);
    static const uint32_t good[] = {0xabcd, REPLY, MSG_ACCEPTED, AUTH_NONE, 0, SUCCESS, 0, 0, 0};
    person result;
#define ANSWERED(...) \
    (memset(&result, 0, sizeof result), \
     answered(client, bytes, put(bytes, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4), \
              &result))
    memset(&result, 0, sizeof result);
    CHECK(answered(client, bytes, put(bytes, good, 9), &result) == RPC_SUCCESS);
    clnt_freeres(client, (xdrproc_t)xdr_person, (char *)&result);
    /* Each prefix, which the blob fills up to a word; another call's number; a call; kinds of replies that there are
     * not. */
    for (size_t length = 0; length <= 32; length++) {
        memset(&result, 0, sizeof result);
        CHECK(answered(client, bytes, length, &result) == RPC_CANTDECODERES);
        clnt_freeres(client, (xdrproc_t)xdr_person, (char *)&result);
    }
    CHECK(ANSWERED(1, REPLY, MSG_ACCEPTED, AUTH_NONE, 0, SUCCESS, 0, 0, 0) == RPC_CANTDECODERES);
    CHECK(strstr(rpc_hamlyn_error(), "another call"));
    CHECK(ANSWERED(0xabcd, CALL, MSG_ACCEPTED, AUTH_NONE, 0, SUCCESS, 0, 0, 0) == RPC_CANTDECODERES);
    CHECK(ANSWERED(0xabcd, REPLY, 2, AUTH_NONE, 0, SUCCESS, 0, 0, 0) == RPC_CANTDECODERES);
    CHECK(ANSWERED(0xabcd, REPLY, MSG_DENIED, 9, 0) == RPC_CANTDECODERES);
    CHECK(ANSWERED(0xabcd, REPLY, MSG_ACCEPTED, AUTH_NONE, 0, 77) == RPC_FAILED);
    CHECK(ANSWERED(0xabcd, REPLY, MSG_ACCEPTED, AUTH_NONE, 401, SUCCESS, 0, 0, 0) == RPC_CANTDECODERES);
    CHECK(ANSWERED(0xabcd, REPLY, MSG_DENIED, AUTH_ERROR, AUTH_TOOWEAK) == RPC_AUTHERROR);
    CHECK(ANSWERED(0xabcd, REPLY, MSG_DENIED, RPC_MISMATCH, 3, 4) == RPC_VERSMISMATCH);
    CHECK(ANSWERED(0xabcd, REPLY, MSG_ACCEPTED, AUTH_NONE, 0, SYSTEM_ERR) == RPC_SYSTEMERROR);
    /* Giant results, and results as long as the stack. */
    CHECK(ANSWERED(0xabcd, REPLY, MSG_ACCEPTED, AUTH_NONE, 0, SUCCESS, 0, 0x3fffffff, 0) == RPC_CANTDECODERES);
    clnt_freeres(client, (xdrproc_t)xdr_person, (char *)&result);
    CHECK(ANSWERED(0xabcd, REPLY, MSG_ACCEPTED, AUTH_NONE, 0, SUCCESS, 0xffffffff, 0, 0) == RPC_CANTDECODERES);
    size_t length = 24 + 12 * (size_t)1000000;
    unsigned char *list = malloc(length);
    put(list, good, 6);
    for (size_t at = 24; at < length; at += 12) put(list + at, (uint32_t[]){0, 0, 1}, 3);
    memset(&result, 0, sizeof result);
    CHECK(answered(client, list, length, &result) == RPC_CANTDECODERES);
    clnt_freeres(client, (xdrproc_t)xdr_person, (char *)&result);
    free(list);
    /* Anything. */
    size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (int i = 0; i < ROUNDS; i++) {
        memset(&result, 0, sizeof result);
        size_t spoilt = spoil(bytes, put(bytes, good, 9), sizeof bytes);
        enum clnt_stat status = answered(client, bytes, spoilt, &result);
        CHECK(status != RPC_TIMEDOUT && status != RPC_CANTSEND && status != RPC_CANTRECV);
        clnt_freeres(client, (xdrproc_t)xdr_person, (char *)&result);
    }
    size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    CHECK(after < before + (1 << 20));
    CHECK(h_server_begin_drain(liar) == H_OK && pthread_join(thread, NULL) == 0);
    clnt_destroy(client);
    h_server_free(liar);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    h_node_t *node;
    CHECK(h_node_new(NULL, 0, &node) == H_OK);
    is_no_harm_to_a_server(node, argv[1]);
    is_no_harm_to_a_client(node);
    h_node_free(node);
    puts("hostile: as said");
    return 0;
}
