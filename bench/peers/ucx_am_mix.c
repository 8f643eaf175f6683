// UCX's active messages of mixed lengths, one way between two processes on two cores: beside the mixes of
// `hamlyn-fm perf`, with the same lengths drawn from the same numbers.
//
//   cc -O2 ucx_am_mix.c -o ucx_am_mix -lucp -lucs
//   UCX_TLS=shm,self ./ucx_am_mix COUNT SHARE LEAST MOST [SHARE LEAST MOST ..]     prints messages a second
//
// The receiver's handler looks at each line of the bytes, which UCX lends it; the last message is answered.

#define _GNU_SOURCE
#define PEER_WITHOUT_PLAN
#include "peer.h"
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>

enum { DRAWN = 4096, MESSAGE = 1, ANSWER = 2, WINDOW = 64 };

static ucp_worker_h worker;
static ucp_ep_h end_point;
static uint64_t came, answered;

static void check(ucs_status_t status, const char *what) {
    if (status != UCS_OK)
        fail(what, ucs_status_string(status));
}

static ucs_status_t take(void *arg, const void *header, size_t header_length, void *data, size_t length,
                         const ucp_am_recv_param_t *param) {
    (void)arg, (void)header, (void)header_length, (void)param;
    look_at(data, length);
    came++;
    return UCS_OK;
}

static ucs_status_t take_answer(void *arg, const void *header, size_t header_length, void *data,
                                size_t length, const ucp_am_recv_param_t *param) {
    (void)arg, (void)header, (void)header_length, (void)data, (void)length, (void)param;
    answered++;
    return UCS_OK;
}

static void finish(ucs_status_ptr_t operation) {
    if (!operation)
        return;
    if (UCS_PTR_IS_ERR(operation))
        check(UCS_PTR_STATUS(operation), "operation");
    while (ucp_request_check_status(operation) == UCS_INPROGRESS)
        ucp_worker_progress(worker);
    ucp_request_free(operation);
}

static void handler(unsigned id, ucp_am_recv_callback_t call) {
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = id,
        .cb = call,
    };
    check(ucp_worker_set_am_recv_handler(worker, &param), "handler");
}

static void meet(int socket) {
    ucp_context_h context;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    check(ucp_init(&params, NULL, &context), "context");
    ucp_worker_params_t of = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                              .thread_mode = UCS_THREAD_MODE_SINGLE};
    check(ucp_worker_create(context, &of, &worker), "worker");
    ucp_address_t *address;
    size_t mine, theirs;
    check(ucp_worker_get_address(worker, &address, &mine), "address");
    if (write(socket, &mine, sizeof mine) < 0 || write(socket, address, mine) < 0 ||
        read(socket, &theirs, sizeof theirs) < 0)
        fail("addresses", strerror(errno));
    void *their_address = buffer_of(theirs);
    if (recv(socket, their_address, theirs, MSG_WAITALL) != (ssize_t)theirs)
        fail("addresses", strerror(errno));
    ucp_ep_params_t ep = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = their_address};
    check(ucp_ep_create(worker, &ep, &end_point), "end point");
    handler(MESSAGE, take);
    handler(ANSWER, take_answer);
}

static uint64_t seed = 1;

static double drawn(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 33) / (double)(1u << 31);
}

int main(int argc, char **argv) {
    if (argc < 5 || (argc - 2) % 3)
        fail(argv[0], "wants COUNT SHARE LEAST MOST [..]");
    uint64_t count = strtoull(argv[1], NULL, 10);
    static size_t lengths[DRAWN];
    for (int i = 0; i < DRAWN; i++) {
        double at = drawn(), within = drawn();
        lengths[i] = strtoull(argv[3], NULL, 10);
        for (int part = 2; part < argc; part += 3) {
            double share = strtod(argv[part], NULL);
            size_t least = strtoull(argv[part + 1], NULL, 10), most = strtoull(argv[part + 2], NULL, 10);
            if (at < share) {
                lengths[i] = least + (size_t)(within * (double)(most - least + 1));
                break;
            }
            at -= share;
        }
    }
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        fail("sockets", strerror(errno));
    int is_sender = fork() == 0;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(is_sender, &core);
    sched_setaffinity(0, sizeof core, &core);
    meet(sockets[is_sender]);
    void *message = buffer_of(65536);
    ucp_request_param_t none = {0};
    static ucs_status_ptr_t under_way[WINDOW];
    for (int part = 0; part < 2; part++) {
        uint64_t messages = part ? count : count / 10 + 1, began = monotonic_ns();
        if (is_sender) {
            for (uint64_t i = 0; i < messages; i++) {
                finish(under_way[i % WINDOW]);
                under_way[i % WINDOW] = ucp_am_send_nbx(end_point, MESSAGE, NULL, 0, message,
                                                        lengths[i % DRAWN], &none);
            }
            for (int i = 0; i < WINDOW; i++) {
                finish(under_way[i]);
                under_way[i] = NULL;
            }
            while (answered <= (uint64_t)part)
                ucp_worker_progress(worker);
            if (part)
                printf("%.0f\n", (double)messages * 1e9 / (double)(monotonic_ns() - began));
        } else {
            while (came < messages)
                ucp_worker_progress(worker);
            came = 0;
            finish(ucp_am_send_nbx(end_point, ANSWER, NULL, 0, message, 1, &none));
        }
    }
    finish(ucp_ep_flush_nbx(end_point, &none));
    fflush(stdout);
    char done = 1;
    if (write(sockets[is_sender], &done, 1) < 0)
        fail("the end", strerror(errno));
    while (recv(sockets[is_sender], &done, 1, MSG_DONTWAIT) < 0)
        ucp_worker_progress(worker);
    if (!is_sender)
        wait(NULL);
    _exit(0);
}
