/*
 * A byte stream: bytes both ways, as over a Unix socket. An echo service in an event loop, and a
 * client that blocks.
 */
#include "common.h"

#include <poll.h>

enum { BYTES = 1 << 20 };

/* Sends all of it back; waits for room, too, by the node's descriptor. */
static void echo(h_node_t *node, h_byte_stream_t *stream) {
    static char data[64 << 10];
    size_t have = 0, sent = 0;
    struct pollfd watched;
    watched.events = POLLIN;
    CHECK(h_fd(node, &watched.fd));
    for (;;) {
        bool may_wait;
        h_status status;
        if (sent < have) {
            size_t taken = 0;
            status = h_byte_stream_write(stream, data + sent, have - sent, 0, &taken);
            sent += taken;
        } else {
            status = h_byte_stream_read(stream, 0, data, sizeof data, &have);
            sent = 0;
            if (status == H_OK && have == 0) {
                CHECK(h_byte_stream_shutdown(stream, LIMIT));
                return;
            }
            if (status != H_OK) {
                have = 0;
            }
        }
        if (status == H_OK) {
            continue;
        }
        if (status != H_NOTHING && status != H_FULL) {
            CHECK(status);
        }
        CHECK(h_prepare_to_wait(node, &may_wait));
        if (may_wait && poll(&watched, 1, 10000) != 1) {
            fprintf(stderr, "the client does not go on\n");
            exit(1);
        }
    }
}

static void server(void) {
    h_node_t *node;
    h_byte_listener_t *listener;
    h_byte_stream_t *stream;
    h_peer_t peer;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_byte_listener_new(node, NULL, &listener));
    CHECK(h_byte_listener_serve(listener, "echo", H_ACCESS_SAME_USER, 0));
    start_other("client", "echo");
    CHECK(h_byte_listener_accept(listener, LIMIT, &stream));
    CHECK(h_byte_stream_peer(stream, &peer));
    printf("user %d connects\n", (int)peer.uid);
    echo(node, stream);
    CHECK(h_byte_stream_close(stream, LIMIT));
    CHECK(h_byte_listener_close(listener, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

static void client(const char *role, const char *name) {
    (void)role;
    h_node_t *node;
    h_byte_stream_t *stream;
    static unsigned char data[BYTES], back[BYTES];
    size_t sent = 0, got = 0, length;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_byte_stream_connect(node, name, NULL, LIMIT, &stream));
    for (size_t i = 0; i < BYTES; i++) {
        data[i] = (unsigned char)(i * 7 + i / 251);
    }
    /* By turns, since the other side sends back what it has room for. */
    while (sent < BYTES) {
        size_t part = BYTES - sent < 100000 ? BYTES - sent : 100000;
        CHECK(h_byte_stream_write_all(stream, data + sent, part, LIMIT, NULL));
        sent += part;
        while (got < sent) {
            CHECK(h_byte_stream_read(stream, LIMIT, back + got, BYTES - got, &length));
            got += length;
        }
    }
    CHECK(h_byte_stream_shutdown(stream, LIMIT));
    CHECK(h_byte_stream_read(stream, LIMIT, back, 1, &length));
    if (length != 0 || memcmp(data + 1, back + 1, BYTES - 1) != 0) {
        fprintf(stderr, "what came back is not what was sent\n");
        exit(1);
    }
    printf("%d bytes came back\n", (int)got);
    CHECK(h_byte_stream_close(stream, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, server, client);
}
