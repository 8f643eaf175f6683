/*
 * Functions without an example: the peer's identity, the path, access, groups with helpers,
 * discarding. Both ends are nodes of this process, each with a progress thread.
 */
#define _POSIX_C_SOURCE 200809L
#include "that.h"
#include <pthread.h>
#include <time.h>

static h_node_t *there, *here;

static bool is_this_process(const h_peer_t *peer) {
    return peer->uid == (int64_t)geteuid() && peer->pid == (int64_t)getpid();
}

/* Admits clients of this process, and counts. */
static bool admit(void *context, const h_peer_t *peer) {
    ++*(int *)context;
    return is_this_process(peer);
}

static bool admit_nobody(void *context, const h_peer_t *peer) {
    (void)peer;
    ++*(int *)context;
    return false;
}

static void nodes(void) {
    CHECK(h_node_new(NULL, 0, &there));
    CHECK(h_node_new(NULL, 0, &here));
    CHECK(h_start_progress(there));
    CHECK(h_start_progress(here));
}

/* The text of an `explain` function is a sentence about a link. */
#define EXPLAINS(call, word)                                                                       \
    do {                                                                                           \
        char text[4096];                                                                           \
        size_t length = 0;                                                                         \
        CHECK(call);                                                                               \
        THAT(length == strlen(text) && strstr(text, word) != NULL);                                \
    } while (0)

static uint64_t counter(h_node_t *node, const char *name) {
    uint64_t value;
    CHECK(h_counter(node, name, &value));
    return value;
}

static void a_node_discards_and_a_link_is_ended(void) {
    h_area_t area;
    h_queue_t queue;
    h_slot_t slot;
    h_slot_config_t config;
    h_ticket_t ticket, to, quiet;
    h_link_t link;
    h_handle_t handle;
    h_notification_t message;
    size_t unsent = 77;
    memset(&config, 0, sizeof config);
    CHECK(h_area_new(there, 64, &area));
    CHECK(h_queue_new(there, 4, &queue));
    config.area = area;
    config.queue = queue;
    CHECK(h_slot_new(there, &config, &slot));
    CHECK(h_ticket(there, slot, 0, &ticket));
    CHECK(h_serve(there, "rest", H_ACCESS_SAME_USER, 0, &ticket, sizeof ticket));
    CHECK(h_connect(here, "rest", NULL, 0, LIMIT, &link));
    CHECK(h_greeting(here, link, &to, sizeof to, NULL));
    {
        uint64_t id, destination;
        CHECK(h_node_id(there, &id));
        CHECK(h_ticket_destination(&to, &destination));
        THAT(id == destination);
    }
    EXPLAINS(h_explain(here, link, text, sizeof text, &length), "ring");
    CHECK(h_try_send_msg(here, &to, "one", 3, NULL, 0, &handle));
    CHECK(h_recv_block(there, queue, LIMIT, &message));
    CHECK(h_ticket_silent(&to, &quiet));
    CHECK(h_send_msg(here, &quiet, "two", 3, NULL, 0, LIMIT, NULL));
    while (counter(there, "messages_received") < 1 || counter(there, "packets_received") < 2) {
        CHECK(h_reset_watchdog(there));
    }
    THAT(h_recv(there, queue, &message) == H_NOTHING);
    CHECK(h_disable(there));
    CHECK(h_send_msg(here, &to, "lost", 4, NULL, 0, LIMIT, NULL));
    while (counter(there, "packets_discarded") == 0) {
    }
    CHECK(h_enable(there));
    CHECK(h_send_msg(here, &to, "three", 5, NULL, 0, LIMIT, NULL));
    CHECK(h_recv_block(there, queue, LIMIT, &message));
    THAT(h_close_entry(there, slot, 0) == H_STATE);
    config.mode = H_MODE_PARANOID_ONE_SHOT;
    CHECK(h_slot_new(there, &config, &slot));
    CHECK(h_close_entry(there, slot, 0));
    CHECK(h_disconnect(here, link, &unsent));
    THAT(unsent == 0);
}

static void tagged_writes(void) {
    h_tagged_receiver_t *receiver;
    h_tagged_sender_t *sender;
    h_peer_t peer;
    h_tag_t tag;
    const void *data;
    size_t bytes;
    int asked = 0;
    CHECK(h_tagged_receiver_new(there, 64, 4, 1, &receiver));
    CHECK(h_tagged_receiver_set_admission(receiver, admit_nobody, &asked));
    CHECK(h_tagged_receiver_serve(receiver, "tagged", H_ACCESS_SAME_USER, 0));
    THAT(h_tagged_sender_connect(here, "tagged", LIMIT, &sender) == H_REFUSED && asked == 1);
    CHECK(h_tagged_receiver_set_admission(receiver, admit, &asked));
    CHECK(h_tagged_sender_connect(here, "tagged", LIMIT, &sender));
    THAT(asked == 2);
    CHECK(h_tagged_sender_peer(sender, &peer));
    THAT(is_this_process(&peer));
    CHECK(h_tagged_send(sender, 8, "data", 4, 7, LIMIT));
    CHECK(h_tagged_get_tag(receiver, LIMIT, &tag));
    CHECK(h_tagged_data(receiver, &data, &bytes));
    THAT(tag.tag == 7 && bytes >= 64 && memcmp((const char *)data + 8, "data", 4) == 0);
    h_tagged_receiver_t *next;
    CHECK(h_tagged_receiver_new(there, 64, 4, 1, &next));
    THAT(h_tagged_receiver_serve(next, "tagged", H_ACCESS_SAME_USER, 0) == H_IN_USE);
    CHECK(h_tagged_receiver_stop_serving(receiver));
    CHECK(h_tagged_receiver_serve(next, "tagged", H_ACCESS_SAME_USER, 0));
    /* A connected peer stays connected. */
    CHECK(h_tagged_send(sender, 8, "more", 4, 8, LIMIT));
    CHECK(h_tagged_get_tag(receiver, LIMIT, &tag));
    THAT(tag.tag == 8);
    h_tagged_receiver_free(next);
    h_tagged_sender_free(sender);
    h_tagged_receiver_free(receiver);
}

static void datagrams_and_streams(void) {
    h_datagram_receiver_t *datagrams;
    h_datagram_sender_t *sender;
    h_stream_receiver_t *stream;
    h_record_t record;
    h_stream_sender_t *records;
    h_peer_t peer;
    int asked = 0;
    CHECK(h_datagram_receiver_new(there, 64, &datagrams));
    CHECK(h_datagram_receiver_set_admission(datagrams, admit, &asked));
    CHECK(h_datagram_receiver_serve(datagrams, "datagrams", H_ACCESS_SAME_USER, 0));
    CHECK(h_datagram_sender_connect(here, "datagrams", LIMIT, &sender));
    CHECK(h_datagram_sender_peer(sender, &peer));
    THAT(asked == 1 && is_this_process(&peer));
    EXPLAINS(h_datagram_sender_explain(sender, text, sizeof text, &length), "ring");
    CHECK(h_datagram_ready_anew(datagrams));
    CHECK(h_datagram_receiver_stop_serving(datagrams));
    h_datagram_sender_free(sender);
    h_datagram_receiver_free(datagrams);

    CHECK(h_stream_receiver_new(there, NULL, &stream));
    CHECK(h_stream_receiver_set_admission(stream, admit, &asked));
    CHECK(h_stream_receiver_serve(stream, "stream", H_ACCESS_SAME_USER, 0));
    CHECK(h_stream_sender_connect(here, "stream", LIMIT, &records));
    CHECK(h_stream_sender_peer(records, &peer));
    THAT(asked == 2 && is_this_process(&peer));
    EXPLAINS(h_stream_receiver_explain(stream, text, sizeof text, &length), "ring");
    CHECK(h_stream_receiver_stop_serving(stream));
    /* Freed, as where something failed, it has not said that this was all. */
    CHECK(h_stream_send(records, "a part", 6, LIMIT));
    h_stream_sender_free(records);
    CHECK(h_stream_receive(stream, LIMIT, &record));
    THAT(record.length == 6);
    CHECK(h_stream_release(stream, record.number));
    THAT(h_stream_receive(stream, LIMIT, &record) == H_HUNG_UP);
    h_stream_receiver_free(stream);
}

static void calls(void) {
    h_server_t *server;
    h_client_t *client;
    h_request_t *request;
    h_reply_t *reply;
    h_call_t call;
    h_peer_t peer;
    int64_t left;
    bool is_cancelled;
    char answer[64];
    size_t connected, most;
    uint64_t misbehaved;
    CHECK(h_server_new(there, NULL, &server));
    CHECK(h_server_serve(server, "calls", H_ACCESS_SAME_USER, 0));
    CHECK(h_client_connect(here, "calls", NULL, LIMIT, &client));
    CHECK(h_client_peer(client, &peer));
    THAT(is_this_process(&peer));
    CHECK(h_client_outstanding_max(client, &most));
    THAT(most > 0);
    EXPLAINS(h_client_explain(client, text, sizeof text, &length), "ring");
    CHECK(h_client_start(client, "who", 3, LIMIT, &call));
    CHECK(h_server_receive(server, LIMIT, &request));
    CHECK(h_request_peer(request, &peer));
    THAT(is_this_process(&peer));
    CHECK(h_server_clients(server, &connected, &misbehaved));
    THAT(connected == 1 && misbehaved == 0);
    CHECK(h_request_time_left(request, &left));
    THAT(left == H_FOREVER);
    CHECK(h_request_is_cancelled(request, &is_cancelled));
    THAT(!is_cancelled);
    CHECK(h_request_reply(request, "you", 3, LIMIT));
    CHECK(h_client_start(client, "what", 4, LIMIT, &call));
    CHECK(h_server_receive(server, LIMIT, &request));
    CHECK(h_request_fail(request, 404, "no such key", LIMIT));
    THAT(h_client_finish(client, call, LIMIT, &reply) == H_APPLICATION);
    THAT(h_error_code() == 404 && strcmp(h_error_message(), "no such key") == 0);
    THAT(h_client_call_within(client, "soon", 4, 1000000, answer, sizeof answer, NULL) == H_TIMED_OUT);
    CHECK(h_server_receive(server, LIMIT, &request));
    CHECK(h_request_time_left(request, &left));
    THAT(left >= 0 && left <= 1000000);
    CHECK(h_request_is_cancelled(request, &is_cancelled));
    THAT(is_cancelled);
    h_request_free(request);
    CHECK(h_client_close(client, LIMIT));
    CHECK(h_server_close(server, LIMIT));
}

static void *at_the_barrier(void *member) {
    CHECK(h_group_member_barrier((h_group_member_t *)member, LIMIT));
    return NULL;
}

static void a_group_with_a_helper(void) {
    pthread_t thread;
    h_group_t *group;
    h_group_member_t *member;
    h_group_helper_t *helper, *grown;
    h_seed_t seed;
    h_part_t parts[2];
    h_peer_t peer;
    uint32_t places, joined;
    size_t helpers, length, half;
    uint64_t round;
    const void *data;
    int asked = 0;
    CHECK(h_group_new(there, 2, 64, 64, &group));
    CHECK(h_group_set_admission(group, admit, &asked));
    CHECK(h_group_serve(group, "group", H_ACCESS_SAME_USER, 0));
    CHECK(h_group_seed(group, &seed));
    CHECK(h_group_member_connect(here, "group", 64, LIMIT, &member));
    CHECK(h_group_helper_connect(here, "group", LIMIT, &helper));
    CHECK(h_group_helper_grow(here, &seed, LIMIT, &grown));
    CHECK(h_group_stop_serving(group));
    CHECK(h_group_member_peer(member, &peer));
    THAT(is_this_process(&peer) && asked >= 1);
    EXPLAINS(h_group_member_explain(member, text, sizeof text, &length), "ring");
    /* The last of them is known here when this side has heard of its link, too. */
    for (int tries = 0; tries < 10000; tries++) {
        struct timespec pause;
        pause.tv_sec = 0;
        pause.tv_nsec = 1000 * 1000;
        CHECK(h_group_members(group, &places, &joined, &helpers, &round));
        if (joined == 1 && helpers == 2) {
            break;
        }
        nanosleep(&pause, NULL);
    }
    THAT(places == 2 && joined == 1 && helpers == 2 && round == 1);
    /* One of the two places is enough. */
    CHECK(h_group_set_wanted(group, 1));
    CHECK(h_group_member_delegate(member, 8, LIMIT, parts, 2));
    CHECK(h_part_length(&parts[0], &half));
    THAT(half == 4);
    CHECK(h_group_member_send_part(member, &parts[0], "half", 4, LIMIT));
    CHECK(h_group_helper_send(helper, &parts[1], "half", 4, LIMIT));
    CHECK(h_group_wait_for(group, 1, LIMIT));
    CHECK(h_group_part(group, 0, &data, &length));
    THAT(length == 8 && memcmp(data, "halfhalf", 8) == 0);
    /* Members at the barrier go on, though one is missing. */
    CHECK(h_group_next_round(group));
    THAT(pthread_create(&thread, NULL, at_the_barrier, member) == 0);
    CHECK(h_group_wait_for(group, 1, LIMIT));
    CHECK(h_group_release(group, LIMIT));
    THAT(pthread_join(thread, NULL) == 0);
    CHECK(h_group_helper_close(helper, LIMIT));
    h_group_helper_free(grown);
    h_group_helper_free(NULL);
    CHECK(h_group_member_close(member, LIMIT));
    CHECK(h_group_close(group, LIMIT));
}

/* The next event of this kind; others are passed over. */
static h_event_t event_of(h_node_t *node, h_event_kind kind) {
    static h_event_t event;
    do {
        CHECK(h_next_event(node, LIMIT, &event));
    } while (event.kind != kind);
    return event;
}

static void an_aperture_is_let_go_by_its_holder(void) {
    h_link_t mine, theirs;
    h_aperture_t *aperture;
    uint32_t number;
    uint64_t bytes = 0;
    CHECK(h_serve(there, "aperture", H_ACCESS_SAME_USER, 0, NULL, 0));
    CHECK(h_connect(here, "aperture", NULL, 0, LIMIT, &mine));
    theirs = event_of(there, H_EVENT_CONNECTED).link;
    CHECK(h_export(there, theirs, 8192, H_APERTURE_READ_ONLY, &number));
    THAT(event_of(here, H_EVENT_APERTURE_HELD).aperture == number);
    CHECK(h_aperture_open(here, mine, number, NULL, &aperture));
    CHECK(h_aperture_bytes(aperture, &bytes));
    THAT(bytes == 8192);
    h_aperture_free(aperture);
    CHECK(h_aperture_release(here, mine, number));
    THAT(event_of(there, H_EVENT_APERTURE_RELEASED).aperture == number);
    CHECK(h_disconnect(here, mine, NULL));
}

static void a_read_only_aperture_has_two_holders(void) {
    h_link_t mine[2], theirs[2];
    h_aperture_t *owned, *held;
    uint32_t number[2], writable;
    uint64_t word = 0;
    int i;
    for (i = 0; i < 2; i++) {
        CHECK(h_connect(here, "aperture", NULL, 0, LIMIT, &mine[i]));
        theirs[i] = event_of(there, H_EVENT_CONNECTED).link;
    }
    CHECK(h_export(there, theirs[0], 4096, H_APERTURE_READ_ONLY, &number[0]));
    CHECK(h_export_also(there, theirs[0], number[0], theirs[1], &number[1]));
    CHECK(h_aperture_open(there, theirs[0], number[0], NULL, &owned));
    CHECK(h_aperture_write_u64(owned, 0, 5));
    for (i = 0; i < 2; i++) {
        (void)event_of(here, H_EVENT_APERTURE_HELD);
    }
    for (i = 0; i < 2; i++) {
        CHECK(h_aperture_open(here, mine[i], number[i], NULL, &held));
        CHECK(h_aperture_read_u64(held, 0, &word));
        THAT(word == 5);
        h_aperture_free(held);
    }
    /* Each is revoked for itself; one that can be written has one holder. */
    CHECK(h_aperture_revoke(there, theirs[0], number[0]));
    THAT(h_export_also(there, theirs[0], number[0], theirs[1], &number[0]) == H_NO_SUCH);
    CHECK(h_aperture_write_u64(owned, 0, 6));
    h_aperture_free(owned);
    CHECK(h_aperture_open(here, mine[1], number[1], NULL, &held));
    CHECK(h_aperture_read_u64(held, 0, &word));
    THAT(word == 6);
    h_aperture_free(held);
    CHECK(h_export(there, theirs[0], 4096, H_APERTURE_READ_WRITE, &writable));
    THAT(h_export_also(there, theirs[0], writable, theirs[1], &number[0]) == H_STATE);
    CHECK(h_disconnect(here, mine[0], NULL));
    CHECK(h_disconnect(here, mine[1], NULL));
}

static void first(void) {
    nodes();
    /* Before others are connected, whose events would come first. */
    an_aperture_is_let_go_by_its_holder();
    a_read_only_aperture_has_two_holders();
    a_node_discards_and_a_link_is_ended();
    tagged_writes();
    datagrams_and_streams();
    calls();
    a_group_with_a_helper();
    CHECK(h_close(here, LIMIT, NULL));
    CHECK(h_close(there, LIMIT, NULL));
}

static void other(const char *role, const char *text) { (void)role, (void)text; }

int main(int argc, char **argv) { return run(argc, argv, first, other); }
