/*
 * Byte streams beyond the example: settings, counts, time limits, each side's end, refusals. Both
 * ends are nodes of this process, each with a progress thread.
 */
#include "that.h"

static h_node_t *there, *here;

static void first(void) {
    h_byte_listener_t *listener;
    h_byte_stream_t *one, *two, *other;
    h_byte_config_t config;
    h_end_point_t any[2];
    h_peer_t peer;
    h_seed_t seed;
    static char data[8192];
    char text[4096];
    size_t length, taken, connections, index, all;
    uint64_t misbehaved = 77;
    uint32_t kind;
    int asked = 0;
    h_status status;
    CHECK(h_node_new(NULL, 0, &there));
    CHECK(h_node_new(NULL, 0, &here));
    CHECK(h_start_progress(there));
    CHECK(h_start_progress(here));

    memset(&config, 0, sizeof config);
    config.window_bytes = 5000;
    THAT(h_byte_listener_new(there, &config, &listener) == H_LIMIT);
    config.window_bytes = 4096;
    config.packets = 8;
    config.connections_max = 2;
    CHECK(h_byte_listener_new(there, &config, &listener));
    CHECK(h_byte_listener_stop_serving(listener));
    h_byte_listener_free(listener);
    CHECK(h_byte_listener_new(there, &config, &listener));
    CHECK(h_byte_listener_serve(listener, "bytes", H_ACCESS_SAME_USER, 0));
    CHECK(h_byte_listener_set_admission(listener, admit_this, &asked));
    THAT(h_byte_listener_accept(listener, 0, &two) == H_NOTHING);
    THAT(h_byte_listener_accept(listener, 1000, &two) == H_TIMED_OUT);
    any[0].kind = H_KIND_BYTE_LISTENER;
    any[0].end_point = listener;
    THAT(h_wait_any(there, any, 1, 0, &index) == H_NOTHING);
    CHECK(h_byte_stream_connect(here, "bytes", NULL, LIMIT, &one));
    CHECK(h_wait_any(there, any, 1, LIMIT, &index));
    CHECK(h_byte_listener_accept(listener, LIMIT, &two));
    CHECK(h_byte_listener_seed(listener, &seed));
    CHECK(h_seed_kind(&seed, &kind));
    THAT(kind == H_KIND_BYTES);
    CHECK(h_byte_stream_grow(here, &seed, &config, LIMIT, &other));
    THAT(asked == 2);
    CHECK(h_byte_listener_connections(listener, &connections, &misbehaved));
    THAT(connections == 2 && misbehaved == 0);
    THAT(h_byte_stream_grow(here, &seed, NULL, LIMIT, &other) == H_LIMIT);
    CHECK(h_byte_stream_peer(two, &peer));
    THAT(peer.pid == (int64_t)getpid());
    CHECK(h_byte_stream_explain(one, text, sizeof text, &length));
    THAT(strstr(text, "byte stream") && length == strlen(text));

    /* A reader that does not read holds up its writer, and nothing that was taken is lost. */
    all = 0;
    while ((status = h_byte_stream_write(one, data, sizeof data, 0, &taken)) == H_OK) {
        all += taken;
        THAT(all <= 4096);
    }
    THAT(status == H_FULL && all > 0);
    THAT(h_byte_stream_write(one, data, 1, 1000, &taken) == H_TIMED_OUT);
    THAT(h_byte_stream_write_all(one, data, 1, 0, &taken) == H_FULL && taken == 0);
    any[0].kind = any[1].kind = H_KIND_BYTES;
    any[0].end_point = one;
    THAT(h_wait_any(here, any, 1, 0, &index) == H_NOTHING);
    any[1].end_point = two;
    CHECK(h_wait_any(there, any + 1, 1, LIMIT, &index));
    while (all > 0) {
        CHECK(h_byte_stream_read(two, LIMIT, data, 1000, &length));
        THAT(length > 0 && length <= 1000 && length <= all);
        all -= length;
    }
    THAT(h_byte_stream_read(two, 0, data, 1, &length) == H_NOTHING);
    THAT(h_byte_stream_read(two, 1000, data, 1, &length) == H_TIMED_OUT);
    THAT(h_byte_stream_read(two, 0, data, 0, &length) == H_INVALID);
    THAT(h_byte_stream_read(two, 0, NULL, 1, &length) == H_INVALID);

    /* Each direction ends by itself. */
    CHECK(h_byte_stream_write_all(one, "last words", 10, LIMIT, &taken));
    THAT(taken == 10);
    CHECK(h_byte_stream_shutdown(one, LIMIT));
    THAT(h_byte_stream_write(one, "x", 1, LIMIT, &taken) == H_STATE);
    for (all = 0; all < 10; all += length) {
        CHECK(h_byte_stream_read(two, LIMIT, data, sizeof data, &length));
    }
    CHECK(h_byte_stream_read(two, LIMIT, data, sizeof data, &length));
    THAT(length == 0 && all == 10);
    CHECK(h_byte_stream_write_all(two, "answer", 6, LIMIT, NULL));
    /* An accepted one outlives its listener; one not accepted is closed. */
    CHECK(h_byte_listener_close(listener, LIMIT));
    CHECK(h_byte_stream_close(two, LIMIT));
    for (all = 0; all < 6; all += length) {
        CHECK(h_byte_stream_read(one, LIMIT, data, sizeof data, &length));
        THAT(length > 0);
    }
    CHECK(h_byte_stream_read(one, LIMIT, data, sizeof data, &length));
    THAT(length == 0);
    h_byte_stream_free(one);
    h_byte_stream_free(other);
    CHECK(h_close(here, LIMIT, NULL));
    CHECK(h_close(there, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, first, NULL);
}
