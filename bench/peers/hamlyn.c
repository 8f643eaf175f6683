// Hamlyn through the calls of C: a node each, and a slot of one entry. $PEER_ADDRESS is the
// directory of the name that the responder serves. The receiver gets a copy in its area. WINDOW is
// the slot's credit, and the most messages on their way: the receiver reports every quarter of it,
// like `hamlyn perf`.

#include "peer.h"
#include <hamlyn.h>

static const int64_t LIMIT = (int64_t)30 * 1000 * 1000 * 1000;

static h_node_t *node;
static h_queue_t queue;
static h_ticket_t to;
static uint64_t window;

static void check(h_status status, const char *what) {
    if (status != H_OK) {
        fprintf(stderr, "peer: %s: %s: %s\n", what, h_status_name(status), h_error_message());
        exit(1);
    }
}

static void send_one(const void *bytes, size_t size) {
    check(h_send_msg(node, &to, bytes, size, NULL, 0, LIMIT, NULL), "send");
}

static void receive_one(size_t size) {
    (void)size;
    h_notification_t notification;
    check(h_recv_block(node, queue, LIMIT, &notification), "receive");
}

// Messages that one report is for.
static uint64_t lot_of(uint64_t left) {
    return left < window / 4 ? left : window / 4;
}

static void send_stream(const void *bytes, size_t size, uint64_t count) {
    uint64_t sent = 0, arrived = 0;
    while (arrived < count) {
        if (sent < count && sent - arrived < window) {
            send_one(bytes, size);
            sent++;
        } else {
            receive_one(0);
            arrived += lot_of(count - arrived);
        }
    }
}

static void receive_stream(size_t size, uint64_t count) {
    for (uint64_t left = count; left > 0;) {
        uint64_t lot = lot_of(left);
        for (uint64_t i = 0; i < lot; i++) {
            receive_one(size);
        }
        send_one(NULL, 0);
        left -= lot;
    }
}

int main(int argc, char **argv) {
    struct plan plan = plan_of(argc, argv);
    const char *directory = getenv("PEER_ADDRESS");
    if (!directory || setenv("HAMLYN_DIR", directory, 1)) {
        fail("environment", "PEER_ADDRESS is wanted");
    }
    setenv("HAMLYN_WAIT_MODE", "polled", 1);
    window = plan.window < 4 ? 4 : plan.window;

    h_area_t area;
    h_slot_t slot;
    h_ticket_t own;
    size_t bytes = plan.size < sizeof own ? sizeof own : plan.size;
    check(h_node_new(NULL, 0, &node), "node");
    check(h_area_new(node, bytes, &area), "area");
    check(h_queue_new(node, (uint32_t)window, &queue), "queue");
    h_slot_config_t config;
    memset(&config, 0, sizeof config);
    config.area = area;
    config.queue = queue;
    config.credit = (uint32_t)window;
    check(h_slot_new(node, &config, &slot), "slot");
    check(h_ticket(node, slot, 0, &own), "ticket");

    // The responder's ticket is its greeting; the initiator's is the first message, and stays in the
    // area until it is answered.
    if (plan.initiates) {
        h_link_t link;
        check(h_connect(node, "peer", NULL, 0, LIMIT, &link), "connect");
        check(h_greeting(node, link, &to, sizeof to, NULL), "greeting");
        send_one(&own, sizeof own);
        receive_one(0);
    } else {
        void *data;
        check(h_serve(node, "peer", H_ACCESS_SAME_USER, 0, &own, sizeof own), "serve");
        receive_one(sizeof own);
        check(h_area_data(node, area, &data, &bytes), "area");
        memcpy(&to, data, sizeof to);
        send_one(NULL, 0);
    }
    run_plan(&plan);
    check(h_close(node, LIMIT, NULL), "close");
}
