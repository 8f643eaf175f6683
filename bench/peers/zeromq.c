// ZeroMQ: a pair of sockets over ipc. $PEER_ADDRESS names the socket; $PEER_WAIT is `poll` to poll,
// or `sleep` to wait in the call. The receiver gets a message of its own, which the library's
// thread copies out of the socket.

#include "peer.h"
#include <zmq.h>

static void *pair;
static int flags;

static void check(int result, const char *what) {
    if (result < 0) {
        fail(what, zmq_strerror(zmq_errno()));
    }
}

static void send_one(const void *bytes, size_t size) {
    int result;
    do {
        result = zmq_send(pair, bytes, size, flags);
    } while (result < 0 && zmq_errno() == EAGAIN);
    check(result, "send");
}

static void receive_one(size_t size) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    int result;
    do {
        result = zmq_msg_recv(&message, pair, flags);
    } while (result < 0 && zmq_errno() == EAGAIN);
    check(result, "receive");
    if ((size_t)result != size) {
        fail("receive", "a message of another size");
    }
    zmq_msg_close(&message);
}

static void send_stream(const void *bytes, size_t size, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        send_one(bytes, size);
    }
}

static void receive_stream(size_t size, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        receive_one(size);
    }
}

static void set(int option, int value) {
    check(zmq_setsockopt(pair, option, &value, sizeof value), "option");
}

int main(int argc, char **argv) {
    struct plan plan = plan_of(argc, argv);
    const char *address = getenv("PEER_ADDRESS"), *wait = getenv("PEER_WAIT");
    if (!address || !wait) {
        fail("environment", "PEER_ADDRESS and PEER_WAIT are wanted");
    }
    flags = strcmp(wait, "poll") ? 0 : ZMQ_DONTWAIT;
    void *context = zmq_ctx_new();
    pair = zmq_socket(context, ZMQ_PAIR);
    // The window: messages that wait at each end.
    set(ZMQ_SNDHWM, (int)plan.window);
    set(ZMQ_RCVHWM, (int)plan.window);
    check(plan.initiates ? zmq_connect(pair, address) : zmq_bind(pair, address), address);
    run_plan(&plan);
    zmq_close(pair);
    zmq_ctx_term(context);
}
