/*
 * A stream: records in order. Small ones leave together; the receiver reads them where they
 * arrived, without a copy, and releases them when it is done.
 */
#include "common.h"

enum { COUNT = 10000 };

static void receiver(void) {
    h_node_t *node;
    h_stream_receiver_t *receiver;
    h_seed_t seed;
    char text[H_SEED_TEXT_BYTES];
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_stream_receiver_new(node, NULL, &receiver));
    CHECK(h_stream_receiver_seed(receiver, &seed));
    CHECK(h_seed_to_text(&seed, text, sizeof text, NULL));
    start_other("sender", text);

    uint64_t count = 0, bytes = 0;
    h_record_t record;
    h_status status;
    while ((status = h_stream_receive(receiver, LIMIT, &record)) == H_OK) {
        if (record.number != count++) {
            fprintf(stderr, "record %llu came out of order\n", (unsigned long long)record.number);
            exit(1);
        }
        bytes += record.length;
        /* Not each: a release frees all records before it, too. */
        if (count % 100 == 0) {
            CHECK(h_stream_release(receiver, record.number));
        }
    }
    printf("%llu records of %llu bytes, then %s: %s\n", (unsigned long long)count,
           (unsigned long long)bytes, h_status_name(status), h_error_message());
    h_stream_receiver_free(receiver);
    CHECK(h_close(node, LIMIT, NULL));
    if (status != H_CLOSED || count != COUNT + 2) {
        exit(1);
    }
}

static void sender(const char *role, const char *text) {
    (void)role;
    static char long_one[200000];
    h_node_t *node;
    h_stream_sender_t *sender;
    h_seed_t seed;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_seed_from_text(text, &seed));
    CHECK(h_stream_sender_grow(node, &seed, LIMIT, &sender));
    for (int i = 0; i < COUNT; i++) {
        char line[32];
        int n = snprintf(line, sizeof line, "record %d", i);
        CHECK(h_stream_send(sender, line, (size_t)n, LIMIT));
    }
    CHECK(h_stream_flush(sender, LIMIT));
    /* Written where it leaves from: one copy less. */
    void *place;
    CHECK(h_stream_loan(sender, 16, LIMIT, &place));
    memcpy(place, "written in place", 16);
    CHECK(h_stream_loan_send(sender, 16, LIMIT));
    /* A long one leaves as it is. */
    CHECK(h_stream_send(sender, long_one, sizeof long_one, LIMIT));
    CHECK(h_stream_sender_close(sender, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, receiver, sender);
}
