/*
 * Publish and subscribe: frames to whoever subscribes. Long ones lie in the publisher's pool, where
 * they are written in place and from where each subscriber copies what it needs; nobody waits for a
 * subscriber that is slow. One subscriber waits in an event loop.
 */
#include "common.h"

#include <poll.h>
#include <time.h>

enum { FRAME = 1 << 20, FRAMES = 20 };

static void publisher(void) {
    h_node_t *node;
    h_publisher_t *publisher;
    h_publisher_counts_t counts;
    h_publish_config_t config;
    struct timespec pause;
    pause.tv_sec = 0;
    pause.tv_nsec = 1000 * 1000;
    memset(&config, 0, sizeof config);
    config.sample_bytes_max = FRAME;
    config.backlog = FRAMES + 1;
    CHECK(h_node_new(NULL, 0, &node));
    /* It takes requests to subscribe while this program does something else. */
    CHECK(h_start_progress(node));
    CHECK(h_publisher_new(node, &config, &publisher));
    CHECK(h_publisher_serve(publisher, "frames", H_ACCESS_SAME_USER, 0));
    start_other("blocking", "frames");
    start_other("event loop", "frames");
    /* Until both have the pool, too: who has it gets all that is published from then on. */
    h_subscriber_state_t states[2];
    size_t count;
    do {
        nanosleep(&pause, NULL);
        CHECK(h_publisher_subscribers(publisher, states, 2, &count));
    } while (count < 2 || !states[0].is_served || !states[1].is_served);

    for (int i = 0; i < FRAMES; i++) {
        h_loan_t *frame;
        void *data;
        CHECK(h_publisher_loan(publisher, FRAME, &frame));
        CHECK(h_loan_data(frame, &data, NULL));
        memset(data, i, FRAME);
        CHECK(h_publisher_publish_loan(publisher, frame, LIMIT, NULL));
    }
    CHECK(h_publisher_publish(publisher, "end", 3, LIMIT, NULL));
    /* The pool goes with the publisher. */
    CHECK(h_publisher_drain(publisher, LIMIT));
    CHECK(h_publisher_counts(publisher, &counts));
    printf("%d samples for %d subscribers, who missed %d\n", (int)counts.published,
           (int)counts.subscribers, (int)counts.dropped);
    CHECK(h_publisher_close(publisher, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

/* The next sample, by a loop that watches the node's descriptor. */
static void wait_in_loop(h_node_t *node, h_subscriber_t *subscriber, h_sample_t **sample) {
    struct pollfd watched;
    watched.events = POLLIN;
    CHECK(h_fd(node, &watched.fd));
    for (;;) {
        bool may_wait;
        h_status status = h_subscriber_receive(subscriber, 0, sample);
        if (status == H_OK) {
            return;
        }
        if (status != H_NOTHING) {
            CHECK(status);
        }
        CHECK(h_prepare_to_wait(node, &may_wait));
        if (may_wait && poll(&watched, 1, 10000) != 1) {
            fprintf(stderr, "nothing came\n");
            exit(1);
        }
    }
}

static void subscriber(const char *role, const char *name) {
    h_node_t *node;
    h_subscriber_t *subscriber;
    static unsigned char frame[FRAME];
    int frames = 0;
    bool has_ended = false;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_subscriber_connect(node, name, NULL, LIMIT, &subscriber));
    while (!has_ended) {
        h_sample_t *sample;
        h_sample_info_t info;
        if (strcmp(role, "blocking") == 0) {
            CHECK(h_subscriber_receive(subscriber, LIMIT, &sample));
        } else {
            wait_in_loop(node, subscriber, &sample);
        }
        CHECK(h_sample_info(sample, &info));
        if (info.length == FRAME) {
            /* Its publisher could still change it: copied first, then looked at. */
            CHECK(h_sample_read(sample, 0, frame, FRAME));
            if (frame[0] != info.number || memcmp(frame, frame + 1, FRAME - 1) != 0) {
                fprintf(stderr, "frame %d is not as it should be\n", (int)info.number);
                exit(1);
            }
            frames++;
        } else {
            has_ended = info.length == 3 && memcmp(info.data, "end", 3) == 0;
        }
        h_sample_free(sample);
    }
    uint64_t missed;
    CHECK(h_subscriber_missed(subscriber, &missed));
    printf("the subscriber that waits by %s: %d frames, %d missed\n", role, frames, (int)missed);
    CHECK(h_subscriber_close(subscriber, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, publisher, subscriber);
}
