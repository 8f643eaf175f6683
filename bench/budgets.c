/*
 * The row `c` of the budgets, like `single` in Rust, through the calls of C. It sends COUNT
 * messages of 16 bytes, one by one, between two nodes of one process and one thread: once for
 * warming up, and once in `measured`, while instructions are counted.
 */
#include <hamlyn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT ((int64_t)60 * 1000 * 1000 * 1000)

static void check(h_status status, const char *call) {
    if (status != H_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, h_status_name(status), h_error_message());
        exit(1);
    }
}
#define CHECK(call) check((call), #call)

static h_node_t *receiver, *sender;
static h_queue_t queue;
static h_ticket_t ticket;

static void work(int count) {
    static const char message[16] = "sixteen bytes ..";
    h_notification_t notification;
    for (int i = 0; i < count; i++) {
        CHECK(h_send_msg(sender, &ticket, message, sizeof message, NULL, 0, LIMIT, NULL));
        CHECK(h_recv_block(receiver, queue, LIMIT, &notification));
    }
}

/* callgrind counts the instructions of this function. */
__attribute__((noinline)) void measured(int count) {
    work(count);
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 4096;
    h_area_t area;
    h_slot_t slot;
    h_link_t link;
    h_event_t event;
    CHECK(h_node_new(NULL, 0, &receiver));
    CHECK(h_area_new(receiver, 4096, &area));
    CHECK(h_queue_new(receiver, 64, &queue));
    h_slot_config_t config;
    memset(&config, 0, sizeof config);
    config.area = area;
    config.queue = queue;
    config.credit = 64;
    CHECK(h_slot_new(receiver, &config, &slot));
    CHECK(h_ticket(receiver, slot, 0, &ticket));
    CHECK(h_serve(receiver, "budget", H_ACCESS_SAME_USER, 0, NULL, 0));
    CHECK(h_node_new(NULL, 0, &sender));
    CHECK(h_connect(sender, "budget", NULL, 0, LIMIT, &link));
    CHECK(h_next_event(receiver, LIMIT, &event));
    work(count);
    measured(count);
    h_node_free(sender);
    h_node_free(receiver);
    return 0;
}
