// UCX, its tagged messages: one half of a program like ucx_perftest, with a receiver that counts.
// $PEER_SOCKET is the descriptor of a socket to the other process, for the two addresses.
// Operations roll through a window; the receiver's are posted before their messages arrive. The
// receiver gets a copy in its buffer.

#include "peer.h"
#include <sys/socket.h>
#include <ucp/api/ucp.h>

enum { WINDOW_MAX = 4096 };

static int meeting;
static ucp_worker_h worker;
static ucp_ep_h end_point;
static unsigned window;
static void *inbox;

static void check(ucs_status_t status, const char *what) {
    if (status != UCS_OK) {
        fail(what, ucs_status_string(status));
    }
}

// Returns when the operation is done. NULL: it was done at once.
static inline void finish(ucs_status_ptr_t operation) {
    if (!operation) {
        return;
    }
    if (UCS_PTR_IS_ERR(operation)) {
        check(UCS_PTR_STATUS(operation), "operation");
    }
    while (ucp_request_check_status(operation) == UCS_INPROGRESS) {
        ucp_worker_progress(worker);
    }
    check(ucp_request_check_status(operation), "operation");
    ucp_request_free(operation);
}

static inline ucs_status_ptr_t start_send(const void *bytes, size_t size) {
    static const ucp_request_param_t param = {0};
    return ucp_tag_send_nbx(end_point, bytes, size, 1, &param);
}

static inline ucs_status_ptr_t start_receive(size_t size) {
    // Without this attribute the call could not say "done at once", as it does for a send.
    static ucp_tag_recv_info_t info;
    static const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_RECV_INFO,
        .recv_info.tag_info = &info,
    };
    return ucp_tag_recv_nbx(worker, inbox, size, 1, (ucp_tag_t)-1, &param);
}

static void send_one(const void *bytes, size_t size) {
    finish(start_send(bytes, size));
}

static void receive_one(size_t size) {
    finish(start_receive(size));
}

static void send_stream(const void *bytes, size_t size, uint64_t count) {
    static ucs_status_ptr_t under_way[WINDOW_MAX];
    unsigned next = 0;
    for (uint64_t i = 0; i < count; i++) {
        finish(under_way[next]);
        under_way[next] = start_send(bytes, size);
        next = next + 1 == window ? 0 : next + 1;
    }
    for (unsigned i = 0; i < window; i++) {
        finish(under_way[i]);
        under_way[i] = NULL;
    }
}

static void receive_stream(size_t size, uint64_t count) {
    static ucs_status_ptr_t under_way[WINDOW_MAX];
    unsigned next = 0;
    uint64_t posted = 0;
    for (; posted < window && posted < count; posted++) {
        under_way[posted] = start_receive(size);
    }
    for (uint64_t i = 0; i < count; i++) {
        finish(under_way[next]);
        under_way[next] = posted < count ? start_receive(size) : NULL;
        posted++;
        next = next + 1 == window ? 0 : next + 1;
    }
}

static void exchange(void *bytes, size_t size, int is_out) {
    for (size_t done = 0; done < size;) {
        char *at = (char *)bytes + done;
        size_t left = size - done;
        ssize_t n = is_out ? send(meeting, at, left, 0) : recv(meeting, at, left, 0);
        if (n <= 0) {
            fail("exchange of addresses", n ? strerror(errno) : "the other process is gone");
        }
        done += (size_t)n;
    }
}

int main(int argc, char **argv) {
    struct plan plan = plan_of(argc, argv);
    window = plan.window < WINDOW_MAX ? plan.window : WINDOW_MAX;
    inbox = buffer_of(plan.size);
    const char *descriptor = getenv("PEER_SOCKET");
    meeting = descriptor ? atoi(descriptor) : -1;

    ucp_context_h context;
    ucp_config_t *config;
    check(ucp_config_read(NULL, NULL, &config), "configuration");
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_TAG,
    };
    check(ucp_init(&params, config, &context), "context");
    ucp_config_release(config);
    ucp_worker_params_t worker_params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    check(ucp_worker_create(context, &worker_params, &worker), "worker");

    ucp_address_t *address;
    size_t mine, theirs;
    check(ucp_worker_get_address(worker, &address, &mine), "address");
    exchange(&mine, sizeof mine, 1);
    exchange(address, mine, 1);
    exchange(&theirs, sizeof theirs, 0);
    void *their_address = buffer_of(theirs);
    exchange(their_address, theirs, 0);
    ucp_ep_params_t ep_params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address = their_address,
    };
    check(ucp_ep_create(worker, &ep_params, &end_point), "end point");

    run_plan(&plan);

    // Neither goes before the other is done: each says so, and progresses until it has heard it.
    ucp_request_param_t none = {0};
    finish(ucp_ep_flush_nbx(end_point, &none));
    char done = 1;
    exchange(&done, 1, 1);
    while (recv(meeting, &done, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
        ucp_worker_progress(worker);
    }
}
