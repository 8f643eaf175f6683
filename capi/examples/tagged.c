/*
 * Tagged remote write: data to an offset, a tag to a queue. The seed travels on the command line;
 * the sender is grown from it.
 */
#include "common.h"

enum { COUNT = 10, BLOCK = 64 };

static void receiver(void) {
    h_node_t *node;
    h_tagged_receiver_t *receiver;
    h_seed_t seed;
    char text[H_SEED_TEXT_BYTES];
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_tagged_receiver_new(node, COUNT * BLOCK, 0, 0, &receiver));
    CHECK(h_tagged_receiver_seed(receiver, &seed));
    CHECK(h_seed_to_text(&seed, text, sizeof text, NULL));
    start_other("sender", text);

    /* The last one first: the others are kept, in their order. */
    h_tag_t tag;
    CHECK(h_tagged_get_specific_tag(receiver, COUNT - 1, LIMIT, &tag));
    for (int i = 0; i < COUNT - 1; i++) {
        char data[BLOCK];
        CHECK(h_tagged_get_tag(receiver, LIMIT, &tag));
        CHECK(h_tagged_read(receiver, tag.tag * BLOCK, data, sizeof data));
        printf("tag %u: %s\n", (unsigned)tag.tag, data);
    }
    h_tagged_receiver_free(receiver);
    h_node_free(node);
}

static void sender(const char *role, const char *text) {
    (void)role;
    h_node_t *node;
    h_tagged_sender_t *sender;
    h_seed_t seed;
    char path[256];
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_seed_from_text(text, &seed));
    CHECK(h_tagged_sender_grow(node, &seed, LIMIT, &sender));
    CHECK(h_tagged_sender_explain(sender, path, sizeof path, NULL));
    printf("the sender's path: %s\n", path);
    fflush(stdout);

    for (uint32_t i = 0; i < COUNT; i++) {
        char data[BLOCK];
        memset(data, 0, sizeof data);
        snprintf(data, sizeof data, "block %u of %d", (unsigned)i, COUNT);
        CHECK(h_tagged_send(sender, i * BLOCK, data, sizeof data, i, LIMIT));
    }
    CHECK(h_tagged_sender_close(sender, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, receiver, sender);
}
