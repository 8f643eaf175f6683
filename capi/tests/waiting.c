/*
 * An event loop learns of everything: of messages that came just before it went to sleep, and of
 * those that another thread took from its link. Both ends of a link are nodes of this process.
 */
#include "that.h"

#include <poll.h>
#include <pthread.h>

static h_node_t *node;
static h_queue_t queue;
static h_ticket_t ticket;
static int fd;

static int readable(int timeout_ms) {
    struct pollfd watched;
    watched.fd = fd;
    watched.events = POLLIN;
    return poll(&watched, 1, timeout_ms) == 1;
}

/* Takes everything that there is; how much it was. */
static int look(void) {
    static h_event_t event;
    h_notification_t message;
    int found = 0;
    while (h_next_event(node, 0, &event) == H_OK) {
        found++;
    }
    while (h_recv(node, queue, &message) == H_OK) {
        found++;
    }
    return found;
}

/* As an event loop does: looks until there is nothing, and may wait. */
static void until_it_may_wait(void) {
    bool may_wait;
    do {
        look();
        CHECK(h_prepare_to_wait(node, &may_wait));
    } while (!may_wait);
}

static h_node_t *connected(h_ticket_t *to) {
    h_node_t *other;
    h_link_t link;
    CHECK(h_node_new(NULL, 0, &other));
    CHECK(h_connect(other, "waiting", NULL, 0, LIMIT, &link));
    CHECK(h_greeting(other, link, to, sizeof *to, NULL));
    return other;
}

/* It looks again for arrivals that it was called for; then, without any, it may wait. */
static void the_first_times_it_looks_again(void) {
    bool may_wait = true;
    int looks = 0;
    CHECK(h_prepare_to_wait(node, &may_wait));
    THAT(!may_wait);
    do {
        CHECK(h_prepare_to_wait(node, &may_wait));
        looks++;
    } while (!may_wait && looks < 3);
    THAT(may_wait);
    THAT(!readable(0));
}

static void a_message_wakes_it(void) {
    h_ticket_t to;
    h_node_t *other = connected(&to);
    until_it_may_wait();
    CHECK(h_send_msg(other, &to, "x", 1, NULL, 0, LIMIT, NULL));
    THAT(readable(10000));
    THAT(look() == 1);
    until_it_may_wait();
    THAT(!readable(0));
    h_node_free(other);
}

/* The end of a link comes after the loop has found nothing, and before it asks to wait. */
static void the_end_of_a_link_that_it_takes_as_it_prepares(void) {
    h_ticket_t to;
    h_node_t *other = connected(&to);
    bool may_wait = true;
    until_it_may_wait();
    h_node_free(other);
    THAT(readable(10000));
    /* Its last word and its end may be two signals. */
    poll(NULL, 0, 100);
    CHECK(h_prepare_to_wait(node, &may_wait));
    THAT(!may_wait);
    while (look() == 0) {
        THAT(readable(10000));
    }
}

/* Another thread is in a call, and takes the message that the loop sleeps for from the link. */
static void what_another_call_takes(void) {
    h_ticket_t to;
    h_node_t *other = connected(&to);
    until_it_may_wait();
    CHECK(h_send_msg(other, &to, "x", 1, NULL, 0, LIMIT, NULL));
    CHECK(h_poll(node, NULL));
    THAT(readable(0));
    THAT(look() == 1);
    until_it_may_wait();
    h_node_free(other);
    /* The end of its link is an event, which is not to come later. */
    while (look() == 0) {
        THAT(readable(10000));
    }
}

static void *asks(void *third) {
    h_link_t link;
    h_status status = h_connect((h_node_t *)third, "asked", NULL, 0, LIMIT, &link);
    return status == H_REFUSED ? NULL : third;
}

/* The same of an event, which changes nothing but the list of events. */
static void an_event_that_another_call_takes(void) {
    static h_event_t event;
    h_node_t *third;
    pthread_t thread;
    void *failed;
    CHECK(h_serve_asking(node, "asked", H_ACCESS_SAME_USER, 0));
    CHECK(h_node_new(NULL, 0, &third));
    until_it_may_wait();
    THAT(pthread_create(&thread, NULL, asks, third) == 0);
    THAT(readable(10000));
    CHECK(h_poll(node, NULL));
    THAT(readable(0));
    CHECK(h_next_event(node, 0, &event));
    THAT(event.kind == H_EVENT_REQUEST);
    CHECK(h_refuse(node, event.request, "no"));
    THAT(pthread_join(thread, &failed) == 0 && failed == NULL);
    h_node_free(third);
}

static void first(void) {
    h_slot_config_t config;
    h_slot_t slot;
    memset(&config, 0, sizeof config);
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_area_new(node, 64, &config.area));
    CHECK(h_queue_new(node, 16, &queue));
    config.queue = queue;
    CHECK(h_slot_new(node, &config, &slot));
    CHECK(h_ticket(node, slot, 0, &ticket));
    CHECK(h_serve(node, "waiting", H_ACCESS_SAME_USER, 0, &ticket, sizeof ticket));
    CHECK(h_fd(node, &fd));
    the_first_times_it_looks_again();
    a_message_wakes_it();
    the_end_of_a_link_that_it_takes_as_it_prepares();
    what_another_call_takes();
    an_event_that_another_call_takes();
    h_node_free(node);
}

static void none(const char *role, const char *text) {
    (void)role, (void)text;
}

int main(int argc, char **argv) {
    return run(argc, argv, first, none);
}
