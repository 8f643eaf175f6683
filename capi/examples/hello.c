/*
 * The first message, with the paper's calls: a receiver offers a service whose greeting is a
 * ticket; a sender connects, reads the ticket, and writes straight into the receiver's area.
 */
#include "common.h"

static void receiver(void) {
    h_node_t *node;
    h_area_t area;
    h_queue_t queue;
    h_slot_t slot;
    h_ticket_t ticket;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_area_new(node, 4096, &area));
    CHECK(h_queue_new(node, 16, &queue));

    h_slot_config_t config;
    memset(&config, 0, sizeof config);
    config.area = area;
    config.queue = queue;
    CHECK(h_slot_new(node, &config, &slot));
    CHECK(h_ticket(node, slot, 0, &ticket));
    CHECK(h_serve(node, "hello", H_ACCESS_SAME_USER, 0, &ticket, sizeof ticket));
    start_other("sender", "hello");

    h_notification_t message;
    h_peer_t peer;
    CHECK(h_recv_block(node, queue, LIMIT, &message));
    CHECK(h_peer(node, message.link, &peer));

    /*
     * The metadata, up to 60 bytes, is the sender's to use: here it says how long the data is. It
     * is a stranger's word: that the data lies in the area was checked, this was not.
     */
    uint32_t length;
    size_t metadata_bytes, area_bytes;
    void *data;
    CHECK(h_metadata(node, slot, message.index, &length, sizeof length, &metadata_bytes));
    CHECK(h_area_data(node, area, &data, &area_bytes));
    if (metadata_bytes != sizeof length || length > area_bytes) {
        fprintf(stderr, "the sender does not say how long its data is\n");
        exit(1);
    }
    printf("process %lld of user %lld says: %.*s\n", (long long)peer.pid, (long long)peer.uid,
           (int)length, (const char *)data);
    h_node_free(node);
}

static void sender(const char *role, const char *service) {
    (void)role;
    h_node_t *node;
    h_link_t link;
    h_ticket_t ticket;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_connect(node, service, NULL, 0, LIMIT, &link));
    CHECK(h_greeting(node, link, &ticket, sizeof ticket, NULL));

    const char text[] = "hello from C, without a system call";
    uint32_t length = sizeof text - 1;
    CHECK(h_send_msg(node, &ticket, text, length, &length, sizeof length, LIMIT, NULL));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, receiver, sender);
}
