/*
 * Apertures: a sender writes straight into the receiver's memory, without a ring in between, and
 * announces it with a message. Then the receiver takes the memory back, and has it as a message
 * area whose bytes stand still.
 */
#include "common.h"

#define BYTES ((size_t)1 << 20)

/* The next event of this kind; others are passed over. */
static void wait_for(h_node_t *node, h_event_kind kind, h_event_t *event) {
    do {
        CHECK(h_next_event(node, LIMIT, event));
    } while (event->kind != kind);
}

static void receiver(void) {
    static h_event_t event;
    h_node_t *node;
    h_slot_config_t config;
    h_slot_t slot;
    h_ticket_t ticket;
    memset(&config, 0, sizeof config);
    CHECK(h_node_new(NULL, 0, &node));
    /* What announces data is a message like any other, here one without bytes of its own. */
    CHECK(h_area_new(node, 64, &config.area));
    CHECK(h_queue_new(node, 16, &config.queue));
    CHECK(h_slot_new(node, &config, &slot));
    CHECK(h_ticket(node, slot, 0, &ticket));
    CHECK(h_serve(node, "aperture", H_ACCESS_SAME_USER, 0, &ticket, sizeof ticket));
    start_other("sender", "aperture");

    uint32_t number;
    wait_for(node, H_EVENT_CONNECTED, &event);
    h_link_t link = event.link;
    CHECK(h_export(node, link, BYTES, H_APERTURE_READ_WRITE, &number));

    h_notification_t message;
    uint32_t announced;
    size_t metadata_bytes;
    CHECK(h_recv_block(node, config.queue, LIMIT, &message));
    CHECK(h_metadata(node, slot, message.index, &announced, sizeof announced, &metadata_bytes));
    if (metadata_bytes != sizeof announced || announced != number) {
        fprintf(stderr, "the message announces something else\n");
        exit(1);
    }
    printf("the message announces aperture %u\n", (unsigned)announced);

    /* The sender can still change these bytes: what is needed is copied, checked, then used. */
    h_aperture_t *aperture;
    char copy[32];
    CHECK(h_aperture_open(node, link, number, NULL, &aperture));
    CHECK(h_aperture_read(aperture, BYTES - sizeof copy, copy, sizeof copy));
    h_aperture_free(aperture);

    /* From here on it cannot. */
    h_area_t area;
    void *data;
    CHECK(h_aperture_reclaim(node, link, number, &area));
    CHECK(h_area_data(node, area, &data, NULL));
    for (size_t i = 0; i < BYTES; i++) {
        if (((const unsigned char *)data)[i] != 7) {
            fprintf(stderr, "byte %zu is another\n", i);
            exit(1);
        }
    }
    printf("%zu bytes came without a ring\n", BYTES);
    CHECK(h_close(node, LIMIT, NULL));
}

static void sender(const char *role, const char *name) {
    (void)role;
    static h_event_t event;
    static unsigned char data[BYTES];
    h_node_t *node;
    h_link_t link;
    h_ticket_t ticket;
    h_aperture_t *aperture;
    uint32_t access;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_connect(node, name, NULL, 0, LIMIT, &link));
    CHECK(h_greeting(node, link, &ticket, sizeof ticket, NULL));
    wait_for(node, H_EVENT_APERTURE_HELD, &event);
    uint32_t number = event.aperture;
    CHECK(h_aperture_open(node, link, number, &access, &aperture));

    memset(data, 7, sizeof data);
    CHECK(h_aperture_write(aperture, 0, data, sizeof data));
    CHECK(h_send_msg(node, &ticket, NULL, 0, &number, sizeof number, LIMIT, NULL));
    wait_for(node, H_EVENT_APERTURE_REVOKED, &event);
    h_status status = h_aperture_write(aperture, 0, data, 1);
    printf("the sender, later: %s\n", h_error_message());
    h_aperture_free(aperture);
    CHECK(h_close(node, LIMIT, NULL));
    if (access != H_APERTURE_READ_WRITE || status != H_CLOSED) {
        exit(1);
    }
}

int main(int argc, char **argv) {
    return run(argc, argv, receiver, sender);
}
