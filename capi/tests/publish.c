/*
 * Publish and subscribe beyond the example: every setting and count, slow subscribers, loans that
 * are cut, kept or of another publisher, refusals. Both ends are nodes of this process, each with a
 * progress thread.
 */
#include "that.h"

static h_node_t *there, *here;

static void subscribers_are(h_publisher_t *publisher, size_t wanted) {
    h_publisher_counts_t counts;
    do {
        CHECK(h_publisher_counts(publisher, &counts));
    } while (counts.subscribers != wanted);
}

/* Until then samples wait for it, and it misses none. */
static void are_served(h_publisher_t *publisher, h_subscriber_state_t *states, size_t wanted) {
    size_t count = 0, served;
    do {
        CHECK(h_publisher_subscribers(publisher, states, wanted, &count));
        for (served = 0; served < count && served < wanted && states[served].is_served; served++) {
        }
    } while (served < wanted);
}

static void short_and_long_samples(void) {
    h_publisher_t *publisher, *other;
    h_publish_config_t config;
    h_subscriber_t *subscriber, *late;
    h_subscribe_config_t wanted;
    h_subscriber_state_t state, states[2];
    h_sample_t *sample, *extra;
    h_sample_info_t info;
    h_publisher_counts_t counts;
    h_seed_t seed;
    h_peer_t peer;
    h_loan_t *loan, *second, *third;
    h_end_point_t any;
    void *data;
    char text[4096], read[8];
    size_t length, index = 9;
    uint64_t number = 77, missed = 77;
    uint32_t kind;
    int asked = 0;
    bool may_wait;
    memset(&config, 0, sizeof config);
    config.short_bytes_max = 64;
    config.sample_bytes_max = 100000;
    config.loans_max = 2;
    config.backlog = 8;
    config.history = 2;
    config.outstanding_max = 2;
    config.subscribers_max = 3;
    config.when_slow = H_WHEN_SLOW_WAIT;
    CHECK(h_publisher_new(there, &config, &publisher));
    CHECK(h_publisher_serve(publisher, "samples", H_ACCESS_SAME_USER, 0));
    CHECK(h_publisher_set_admission(publisher, admit_this, &asked));
    for (int i = 0; i < 3; i++) {
        CHECK(h_publisher_publish(publisher, "before", 6, 0, &number));
        THAT(number == (uint64_t)i);
    }
    memset(&wanted, 0, sizeof wanted);
    wanted.depth = 16;
    wanted.outstanding = 1;
    CHECK(h_subscriber_connect(here, "samples", &wanted, LIMIT, &subscriber));
    THAT(asked == 1);
    CHECK(h_publisher_seed(publisher, &seed));
    CHECK(h_seed_kind(&seed, &kind));
    THAT(kind == H_KIND_PUBLISH);
    wanted.history = H_HISTORY_NONE;
    wanted.when_slow = H_WHEN_SLOW_DROP_NEWEST;
    CHECK(h_subscriber_grow(here, &seed, &wanted, LIMIT, &late));
    are_served(publisher, states, 2);
    CHECK(h_subscriber_peer(subscriber, &peer));
    THAT(peer.pid == (int64_t)getpid());
    CHECK(h_subscriber_explain(subscriber, text, sizeof text, &length));
    THAT(strstr(text, "pool") && length == strlen(text));

    /* The history first, as far as it goes back. */
    any.kind = H_KIND_PUBLISH;
    any.end_point = subscriber;
    CHECK(h_wait_any(here, &any, 1, LIMIT, &index));
    THAT(index == 0);
    for (uint64_t i = 1; i < 3; i++) {
        CHECK(h_subscriber_receive(subscriber, LIMIT, &sample));
        CHECK(h_sample_info(sample, &info));
        THAT(info.number == i && info.missed == 0 && !info.is_volatile && info.length == 6);
        THAT(memcmp(info.data, "before", 6) == 0);
        CHECK(h_sample_read(sample, 2, read, 4));
        THAT(memcmp(read, "fore", 4) == 0);
        THAT(h_sample_read(sample, 3, read, 4) == H_INVALID);
        h_sample_free(sample);
    }
    THAT(h_subscriber_receive(subscriber, 0, &sample) == H_NOTHING);
    THAT(h_subscriber_receive(subscriber, 1000, &sample) == H_TIMED_OUT);
    THAT(h_subscriber_receive(late, 0, &sample) == H_NOTHING);
    CHECK(h_prepare_to_wait(here, &may_wait));

    /* Loans: as many as may be, cut, kept, published once. */
    THAT(h_publisher_loan(publisher, 100001, &loan) == H_TOO_LONG);
    CHECK(h_publisher_loan(publisher, 100000, &loan));
    CHECK(h_publisher_loan(publisher, 10, &second));
    THAT(h_publisher_loan(publisher, 1, &third) == H_LIMIT);
    THAT(h_publisher_publish(publisher, text, 65, 0, NULL) == H_LIMIT);
    h_loan_free(second);
    CHECK(h_loan_data(loan, &data, &length));
    THAT(length == 100000);
    memset(data, 'x', length);
    CHECK(h_loan_truncate(loan, 70000));
    CHECK(h_loan_data(loan, &data, &length));
    THAT(length == 70000);
    CHECK(h_publisher_new(there, &config, &other));
    THAT(h_publisher_publish_loan(other, loan, 0, NULL) == H_INVALID);
    CHECK(h_publisher_publish_loan(publisher, loan, LIMIT, &number));
    THAT(number == 3);
    CHECK(h_publisher_flush(publisher, LIMIT));
    CHECK(h_subscriber_receive(subscriber, LIMIT, &sample));
    CHECK(h_sample_info(sample, &info));
    THAT(info.is_volatile && info.data == NULL && info.length == 70000 && info.number == 3);
    CHECK(h_sample_read(sample, 69999, read, 1));
    THAT(read[0] == 'x' && h_sample_read(sample, 69999, read, 2) == H_INVALID);

    /* It has the one sample of the pool that it may have: the next one waits for it. */
    are_served(publisher, &state, 1);
    THAT(state.when_slow == H_WHEN_SLOW_WAIT && state.peer.pid == (int64_t)getpid());
    THAT(state.outstanding == 1 && state.dropped == 0 && state.sent >= 3);
    CHECK(h_publisher_loan(publisher, 65, &loan));
    h_status status = H_OK;
    for (int i = 0; i < 100 && status == H_OK; i++) {
        status = h_publisher_publish(publisher, text, 65, 0, NULL);
    }
    THAT(status == H_FULL);
    THAT(h_publisher_publish_loan(publisher, loan, 1000, NULL) == H_TIMED_OUT);
    CHECK(h_publisher_flush(publisher, LIMIT));
    THAT(h_publisher_drain(publisher, 1000) == H_TIMED_OUT);
    CHECK(h_publisher_counts(publisher, &counts));
    THAT(counts.published == 4 && counts.sent_away == 0 && counts.misbehaved == 0);
    h_sample_free(sample);
    while ((status = h_publisher_publish_loan(publisher, loan, 0, &number)) == H_FULL) {
        if (h_subscriber_receive(subscriber, 1000, &sample) == H_OK) {
            h_sample_free(sample);
        }
    }
    CHECK(status);
    do {
        CHECK(h_subscriber_receive(subscriber, LIMIT, &sample));
        CHECK(h_sample_info(sample, &info));
        h_sample_free(sample);
    } while (info.number != number);
    CHECK(h_subscriber_missed(subscriber, &missed));
    THAT(missed == 0);

    /* The other one was slow, and misses the samples for which it had no room. */
    while (h_subscriber_receive(late, 0, &sample) == H_OK) {
        h_sample_free(sample);
    }
    CHECK(h_publisher_publish(publisher, "short", 5, LIMIT, &number));
    do {
        CHECK(h_subscriber_receive(late, LIMIT, &sample));
        CHECK(h_sample_info(sample, &info));
        h_sample_free(sample);
    } while (info.number != number);
    CHECK(h_subscriber_missed(late, &missed));
    CHECK(h_publisher_counts(publisher, &counts));
    THAT(missed > 0 && counts.dropped == missed);
    CHECK(h_subscriber_receive(subscriber, LIMIT, &sample));
    CHECK(h_publisher_drain(publisher, LIMIT));

    /* A sample may be freed after its subscriber, and its subscriber outlives the publisher. */
    CHECK(h_subscriber_close(late, LIMIT));
    subscribers_are(publisher, 1);
    CHECK(h_publisher_close(publisher, LIMIT));
    h_publisher_free(other);
    THAT(h_subscriber_receive(subscriber, LIMIT, &extra) == H_CLOSED);
    h_subscriber_free(subscriber);
    h_sample_free(sample);
}

static void what_is_refused(void) {
    h_publisher_t *publisher;
    h_publish_config_t config;
    h_subscribe_config_t wanted;
    h_subscriber_t *subscriber;
    h_sample_t *sample;
    h_loan_t *loan;
    memset(&config, 0, sizeof config);
    config.when_slow = 5;
    THAT(h_publisher_new(there, &config, &publisher) == H_INVALID);
    config.when_slow = 0;
    config.short_bytes_max = 4096;
    THAT(h_publisher_new(there, &config, &publisher) == H_LIMIT);
    THAT(h_publisher_new(there, NULL, NULL) == H_INVALID);
    CHECK(h_publisher_new(there, NULL, &publisher));
    CHECK(h_publisher_serve(publisher, "refusals", H_ACCESS_SAME_USER, 0));
    /* It drops the oldest for slow subscribers, and none can make it wait. */
    memset(&wanted, 0, sizeof wanted);
    wanted.when_slow = H_WHEN_SLOW_WAIT;
    THAT(h_subscriber_connect(here, "refusals", &wanted, LIMIT, &subscriber) == H_REFUSED);
    wanted.when_slow = 9;
    THAT(h_subscriber_connect(here, "refusals", &wanted, LIMIT, &subscriber) == H_INVALID);
    wanted.when_slow = H_WHEN_SLOW_SEND_AWAY;
    wanted.depth = 1 << 20;
    THAT(h_subscriber_connect(here, "refusals", &wanted, LIMIT, &subscriber) == H_LIMIT);
    wanted.depth = 2;
    CHECK(h_subscriber_connect(here, "refusals", &wanted, LIMIT, &subscriber));
    THAT(h_publisher_loan(publisher, 1, &loan) == H_TOO_LONG);
    THAT(h_publisher_publish(publisher, NULL, 1, LIMIT, NULL) == H_INVALID);
    /* A disconnected subscriber learns of it after its last samples. */
    h_publisher_counts_t counts;
    do {
        CHECK(h_publisher_publish(publisher, "x", 1, LIMIT, NULL));
        CHECK(h_publisher_counts(publisher, &counts));
    } while (counts.sent_away == 0);
    h_status status;
    while ((status = h_subscriber_receive(subscriber, LIMIT, &sample)) == H_OK) {
        h_sample_free(sample);
    }
    THAT(status == H_HUNG_UP);
    THAT(h_sample_info(NULL, NULL) == H_INVALID);
    THAT(h_loan_data(NULL, NULL, NULL) == H_INVALID && h_loan_truncate(NULL, 0) == H_INVALID);
    h_loan_free(NULL);
    h_sample_free(NULL);
    h_subscriber_free(subscriber);
    CHECK(h_publisher_stop_serving(publisher));
    h_publisher_free(publisher);
}

static void first(void) {
    CHECK(h_node_new(NULL, 0, &there));
    CHECK(h_node_new(NULL, 0, &here));
    CHECK(h_start_progress(there));
    CHECK(h_start_progress(here));
    short_and_long_samples();
    what_is_refused();
    CHECK(h_close(here, LIMIT, NULL));
    CHECK(h_close(there, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, first, NULL);
}
