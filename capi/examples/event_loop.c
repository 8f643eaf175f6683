/*
 * Waiting in an event loop: the node gives one descriptor, which poll(2) watches here as epoll or
 * any other would. First this thread makes all calls; then the library's own thread takes what
 * arrives, and the loop is still told.
 */
#include "common.h"

#include <poll.h>
#include <time.h>

static int records_until_end(h_node_t *node, h_stream_receiver_t *stream) {
    int records = 0;
    struct pollfd watched;
    watched.events = POLLIN;
    CHECK(h_fd(node, &watched.fd));
    for (;;) {
        h_record_t record;
        h_status status = h_stream_receive(stream, 0, &record);
        if (status == H_OK) {
            CHECK(h_stream_release(stream, record.number));
            records++;
        } else if (status != H_NOTHING) {
            printf("%d records, then: %s\n", records, h_error_message());
            return records;
        } else {
            /* Nothing is there: says so, and sleeps if nothing has come since. */
            bool may_wait;
            CHECK(h_prepare_to_wait(node, &may_wait));
            if (may_wait && poll(&watched, 1, 10000) != 1) {
                fprintf(stderr, "nothing came after %d records\n", records);
                exit(1);
            }
        }
    }
}

static void receiver(void) {
    h_node_t *node;
    CHECK(h_node_new(NULL, 0, &node));
    for (int turn = 0; turn < 2; turn++) {
        h_stream_receiver_t *stream;
        CHECK(h_stream_receiver_new(node, NULL, &stream));
        CHECK(h_stream_receiver_serve(stream, "events", H_ACCESS_SAME_USER, 0));
        start_other("sender", "events");
        if (records_until_end(node, stream) != 3) {
            exit(1);
        }
        h_stream_receiver_free(stream);
        CHECK(h_start_progress(node));
    }
    CHECK(h_close(node, LIMIT, NULL));
}

static void sender(const char *role, const char *name) {
    (void)role;
    h_node_t *node;
    h_stream_sender_t *stream;
    struct timespec pause;
    pause.tv_sec = 0;
    pause.tv_nsec = 20 * 1000 * 1000;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_stream_sender_connect(node, name, LIMIT, &stream));
    for (int i = 0; i < 3; i++) {
        nanosleep(&pause, NULL);
        CHECK(h_stream_send(stream, "wake up", 7, LIMIT));
        CHECK(h_stream_flush(stream, LIMIT));
    }
    nanosleep(&pause, NULL);
    CHECK(h_stream_sender_close(stream, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, receiver, sender);
}
