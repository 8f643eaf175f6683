/*
 * A stream whose long records go straight into the receiver's memory. The price stands in the
 * record: it is volatile, its sender can still change it, so what is needed is copied, then
 * checked, then used.
 */
#include "common.h"

#define LONG ((size_t)1 << 20)
enum { COUNT = 20 };

static void receiver(void) {
    static unsigned char copy[LONG];
    h_node_t *node;
    h_stream_receiver_t *receiver;
    h_stream_config_t config;
    h_record_t record;
    h_status status;
    unsigned count = 0, still = 0;
    memset(&config, 0, sizeof config);
    config.aperture_bytes = 4 * LONG;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_stream_receiver_new(node, &config, &receiver));
    CHECK(h_stream_receiver_serve(receiver, "long", H_ACCESS_SAME_USER, 0));
    start_other("sender", "long");

    while ((status = h_stream_receive(receiver, LIMIT, &record)) == H_OK) {
        /* The last bytes are enough here; whatever is read is read once. */
        if (record.length > 0) {
            CHECK(h_stream_read(receiver, record.number, record.length - 1, copy, 1));
            if (copy[0] != (unsigned char)record.number) {
                fprintf(stderr, "record %u is another\n", (unsigned)record.number);
                exit(1);
            }
        }
        if (!record.is_volatile) {
            still++;
        } else if (record.data != NULL || record.length != LONG) {
            exit(1);
        }
        count++;
        CHECK(h_stream_release(receiver, record.number));
    }
    printf("%u records of 1 MiB, %u of them through the link, then %s\n", count, still,
           h_status_name(status));
    h_stream_receiver_free(receiver);
    CHECK(h_close(node, LIMIT, NULL));
    if (status != H_CLOSED || count != COUNT) {
        exit(1);
    }
}

static void sender(const char *role, const char *name) {
    (void)role;
    static unsigned char data[LONG];
    h_node_t *node;
    h_stream_sender_t *sender;
    char path[512];
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_stream_sender_connect_with_aperture(node, name, LIMIT, &sender));
    for (int i = 0; i < COUNT; i++) {
        memset(data, i, sizeof data);
        CHECK(h_stream_send(sender, data, sizeof data, LIMIT));
    }
    CHECK(h_stream_sender_explain(sender, path, sizeof path, NULL));
    printf("the sender's path: %s\n", path);
    CHECK(h_stream_sender_close(sender, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, receiver, sender);
}
