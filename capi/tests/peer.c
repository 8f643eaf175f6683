/*
 * One side of a conversation that is the same in every language, so that any pair can be tested:
 *
 *     peer recv PROTOCOL NAME [COUNT]     serves NAME, prints "ready", receives, checks, ends
 *     peer send PROTOCOL NAME [COUNT]     connects to NAME, sends, ends
 *
 * COUNT is 200 unless given. Message i has (i * 37) % 1500 + 8 bytes: byte j is (i + j) % 251, and
 * then the first 8 bytes are i, little-endian. The sides of each protocol:
 *
 *   raw       The receiver's greeting is the ticket of a normal slot over COUNT * 2048 bytes, with
 *             one metadata entry and a credit of COUNT. The sender sends message i to offset
 *             i * 2048, with metadata of 8 bytes: its length, little-endian.
 *   tagged    The receiver has 32 * 2048 bytes and 16 tags for a sender. The sender writes message
 *             i to offset (i % 32) * 2048, with tag i.
 *   datagram  Both sides have a receiver of 2048 bytes, the sender's for answers. The sender sends
 *             message i with a ticket for the answer, and waits for that before the next one. The
 *             receiver reads it, is ready again, and answers with the first 8 bytes.
 *   stream    The receiver reads record i, releases it, and after the last one expects the end. The
 *             sender sends message i as record i, and closes.
 *   call      The receiver serves, and replies to request i with message i + 1. The sender calls
 *             with message i, one call after another.
 *   group     The receiver is the root of a group of one member, with parts of 2048 bytes. In round
 *             i the member sends message i, the root gathers it, goes on to the next round, and
 *             broadcasts message i + 1, which the member receives. At last both are at a barrier.
 *   aperture  The greeting of each side is the ticket of a slot over 64 bytes, with one metadata
 *             entry and a credit of 4. The receiver exports COUNT pages of 4096 bytes, read-write,
 *             when it has the sender's link, writes message i to page i when the sender holds them,
 *             and sends 8 bytes: the aperture's number, little-endian. The sender reads message i
 *             and writes message i + 1 in its place, for each, and sends a message of 8 bytes. The
 *             receiver reads them, and revokes the aperture. The sender waits for that, sees that a
 *             write is refused, and sends a message of 8 bytes more, which the receiver awaits.
 *   close     The receiver serves a stream as NAME, and NAME-after, whose greeting is empty. The
 *             sender sends message i as record i, closes the stream, and connects to NAME-after.
 *             Only then does the receiver take a record; it takes all of them, then sees the end.
 *   publish   The receiver subscribes to NAME-samples, which the sender publishes, and the sender
 *             awaits that: the receiver serves NAME, a tagged receiver of 8 bytes, to which the sender
 *             writes with tag 0 when it serves NAME-samples, with a pool of 2048 bytes a sample, short
 *             samples of at most 512 bytes, and waiting for who is slow. It publishes message i as
 *             sample i when it has a subscriber that holds the pool, then awaits that all samples are
 *             released, and closes. The receiver reads sample i, and after the last one expects the
 *             end.
 *   bytes     The receiver listens for byte streams. The sender sends every message, one behind the
 *             other, says that this was all, and expects all of it back, and then the end.
 *
 * Exit status 0: everything was as it should be. Everything has a time limit.
 */
#include "../examples/common.h"

enum { BLOCK = 2048, PAGE = 4096 };

static size_t make(uint64_t i, unsigned char *bytes) {
    size_t length = (size_t)(i * 37 % 1500 + 8);
    for (size_t j = 0; j < length; j++) {
        bytes[j] = (unsigned char)((i + j) % 251);
    }
    for (int j = 0; j < 8; j++) {
        bytes[j] = (unsigned char)(i >> (8 * j));
    }
    return length;
}

static void must_be(uint64_t i, const void *found, size_t length) {
    unsigned char wanted[BLOCK];
    if (length != make(i, wanted) || memcmp(found, wanted, length) != 0) {
        fprintf(stderr, "message %llu is not as it should be: %llu bytes\n",
                (unsigned long long)i, (unsigned long long)length);
        exit(1);
    }
}

/* The message whose length has been lost: it says in its first bytes which it is. */
static void must_lie_at(uint64_t i, const void *found) {
    unsigned char wanted[BLOCK];
    must_be(i, found, make(i, wanted));
}

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

static h_node_t *node;
static h_queue_t queue_of(uint32_t entries) {
    h_queue_t queue;
    CHECK(h_queue_new(node, entries, &queue));
    return queue;
}

static void raw_recv(const char *name, uint64_t count) {
    h_area_t area;
    h_slot_t slot;
    h_ticket_t ticket;
    h_notification_t n;
    h_slot_config_t config;
    void *data;
    memset(&config, 0, sizeof config);
    CHECK(h_area_new(node, (size_t)count * BLOCK, &area));
    config.area = area;
    config.queue = queue_of((uint32_t)count);
    config.credit = (uint32_t)count;
    CHECK(h_slot_new(node, &config, &slot));
    CHECK(h_ticket(node, slot, 0, &ticket));
    CHECK(h_serve(node, name, H_ACCESS_SAME_USER, 0, &ticket, sizeof ticket));
    ready();
    for (uint64_t i = 0; i < count; i++) {
        CHECK(h_recv_block(node, config.queue, LIMIT, &n));
    }
    CHECK(h_area_data(node, area, &data, NULL));
    for (uint64_t i = 0; i < count; i++) {
        must_lie_at(i, (char *)data + i * BLOCK);
    }
    uint64_t length;
    unsigned char last[BLOCK];
    CHECK(h_metadata(node, slot, 0, &length, sizeof length, NULL));
    if (length != make(count - 1, last)) {
        fprintf(stderr, "the last message's metadata is %llu\n", (unsigned long long)length);
        exit(1);
    }
}

static void raw_send(const char *name, uint64_t count) {
    h_link_t link;
    h_ticket_t ticket, at;
    unsigned char data[BLOCK];
    CHECK(h_connect(node, name, NULL, 0, LIMIT, &link));
    CHECK(h_greeting(node, link, &ticket, sizeof ticket, NULL));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t length = make(i, data);
        CHECK(h_ticket_at(&ticket, i * BLOCK, &at));
        CHECK(h_send_msg(node, &at, data, (size_t)length, &length, sizeof length, LIMIT, NULL));
    }
}

static void tagged_recv(const char *name, uint64_t count) {
    h_tagged_receiver_t *receiver;
    h_tag_t tag;
    unsigned char data[BLOCK];
    CHECK(h_tagged_receiver_new(node, 32 * BLOCK, 16, 1, &receiver));
    CHECK(h_tagged_receiver_serve(receiver, name, H_ACCESS_SAME_USER, 0));
    ready();
    for (uint64_t i = 0; i < count; i++) {
        CHECK(h_tagged_get_tag(receiver, LIMIT, &tag));
        if (tag.tag != i) {
            fprintf(stderr, "tag %u came, and not %u\n", (unsigned)tag.tag, (unsigned)i);
            exit(1);
        }
        CHECK(h_tagged_read(receiver, (size_t)(i % 32) * BLOCK, data, sizeof data));
        must_lie_at(i, data);
    }
    CHECK(h_tagged_receiver_close(receiver, LIMIT));
}

static void tagged_send(const char *name, uint64_t count) {
    h_tagged_sender_t *sender;
    unsigned char data[BLOCK];
    CHECK(h_tagged_sender_connect(node, name, LIMIT, &sender));
    for (uint64_t i = 0; i < count; i++) {
        size_t length = make(i, data);
        CHECK(h_tagged_send(sender, i % 32 * BLOCK, data, length, (uint32_t)i, LIMIT));
    }
    CHECK(h_tagged_sender_close(sender, LIMIT));
}

static void datagram_recv(const char *name, uint64_t count) {
    h_datagram_receiver_t *receiver;
    h_datagram_t datagram;
    unsigned char data[BLOCK];
    size_t length;
    CHECK(h_datagram_receiver_new(node, BLOCK, &receiver));
    CHECK(h_datagram_receiver_serve(receiver, name, H_ACCESS_SAME_USER, 0));
    ready();
    for (uint64_t i = 0; i < count; i++) {
        CHECK(h_datagram_receive(receiver, LIMIT, &datagram));
        CHECK(h_datagram_read(receiver, data, sizeof data, &length));
        must_be(i, data, length);
        CHECK(h_datagram_ready(receiver));
        CHECK(h_datagram_reply(receiver, data, 8, LIMIT));
    }
    CHECK(h_datagram_receiver_close(receiver, LIMIT));
}

static void datagram_send(const char *name, uint64_t count) {
    h_datagram_sender_t *sender;
    h_datagram_receiver_t *answers;
    h_datagram_t answer;
    h_ticket_t reply;
    unsigned char data[BLOCK], said[8];
    CHECK(h_datagram_receiver_new(node, BLOCK, &answers));
    CHECK(h_datagram_reply_ticket(answers, &reply));
    CHECK(h_datagram_sender_connect(node, name, LIMIT, &sender));
    for (uint64_t i = 0; i < count; i++) {
        size_t length = make(i, data);
        CHECK(h_datagram_send(sender, 0, data, length, &reply, LIMIT));
        CHECK(h_datagram_receive(answers, LIMIT, &answer));
        CHECK(h_datagram_read(answers, said, sizeof said, &length));
        if (length != 8 || memcmp(said, data, 8) != 0) {
            fprintf(stderr, "the answer to message %u is another\n", (unsigned)i);
            exit(1);
        }
        CHECK(h_datagram_ready(answers));
    }
    CHECK(h_datagram_sender_close(sender, LIMIT));
    CHECK(h_datagram_receiver_close(answers, LIMIT));
}

static void stream_recv(const char *name, uint64_t count) {
    h_stream_receiver_t *receiver;
    h_record_t record;
    CHECK(h_stream_receiver_new(node, NULL, &receiver));
    CHECK(h_stream_receiver_serve(receiver, name, H_ACCESS_SAME_USER, 0));
    ready();
    for (uint64_t i = 0; i < count; i++) {
        CHECK(h_stream_receive(receiver, LIMIT, &record));
        if (record.number != i) {
            fprintf(stderr, "record %llu came, and not %llu\n", (unsigned long long)record.number,
                    (unsigned long long)i);
            exit(1);
        }
        must_be(i, record.data, record.length);
        CHECK(h_stream_release(receiver, record.number));
    }
    h_status status = h_stream_receive(receiver, LIMIT, &record);
    if (status != H_CLOSED) {
        fprintf(stderr, "after the last record came %s\n", h_status_name(status));
        exit(1);
    }
    CHECK(h_stream_receiver_close(receiver, LIMIT));
}

static void stream_send(const char *name, uint64_t count) {
    h_stream_sender_t *sender;
    unsigned char data[BLOCK];
    CHECK(h_stream_sender_connect(node, name, LIMIT, &sender));
    for (uint64_t i = 0; i < count; i++) {
        size_t length = make(i, data);
        CHECK(h_stream_send(sender, data, length, LIMIT));
    }
    CHECK(h_stream_sender_close(sender, LIMIT));
}

static void call_recv(const char *name, uint64_t count) {
    h_server_t *server;
    h_request_t *request;
    const void *data;
    unsigned char reply[BLOCK];
    size_t length;
    CHECK(h_server_new(node, NULL, &server));
    CHECK(h_server_serve(server, name, H_ACCESS_SAME_USER, 0));
    ready();
    for (uint64_t i = 0; i < count; i++) {
        CHECK(h_server_receive(server, LIMIT, &request));
        CHECK(h_request_data(request, &data, &length));
        must_be(i, data, length);
        length = make(i + 1, reply);
        CHECK(h_request_reply(request, reply, length, LIMIT));
    }
    CHECK(h_server_close(server, LIMIT));
}

static void call_send(const char *name, uint64_t count) {
    h_client_t *client;
    unsigned char data[BLOCK], reply[BLOCK];
    size_t length;
    CHECK(h_client_connect(node, name, NULL, LIMIT, &client));
    for (uint64_t i = 0; i < count; i++) {
        length = make(i, data);
        CHECK(h_client_call(client, data, length, LIMIT, reply, sizeof reply, &length));
        must_be(i + 1, reply, length);
    }
    CHECK(h_client_close(client, LIMIT));
}

static void group_recv(const char *name, uint64_t count) {
    h_group_t *group;
    const void *part;
    unsigned char data[BLOCK];
    size_t length;
    CHECK(h_group_new(node, 1, BLOCK, 0, &group));
    CHECK(h_group_serve(group, name, H_ACCESS_SAME_USER, 0));
    ready();
    for (uint64_t i = 0; i < count; i++) {
        CHECK(h_group_gather(group, LIMIT));
        CHECK(h_group_part(group, 0, &part, &length));
        must_be(i, part, length);
        CHECK(h_group_next_round(group));
        length = make(i + 1, data);
        CHECK(h_group_broadcast(group, data, length, LIMIT));
    }
    CHECK(h_group_barrier(group, LIMIT));
    CHECK(h_group_close(group, LIMIT));
}

static void group_send(const char *name, uint64_t count) {
    h_group_member_t *member;
    unsigned char data[BLOCK];
    size_t length;
    CHECK(h_group_member_connect(node, name, BLOCK, LIMIT, &member));
    for (uint64_t i = 0; i < count; i++) {
        length = make(i, data);
        CHECK(h_group_member_send(member, data, length, LIMIT));
        CHECK(h_group_member_receive(member, LIMIT, data, sizeof data, &length));
        must_be(i + 1, data, length);
    }
    CHECK(h_group_member_barrier(member, LIMIT));
    CHECK(h_group_member_close(member, LIMIT));
}

/* A slot for announcements, and its ticket. */
static h_queue_t announced(h_area_t *area, h_ticket_t *ticket) {
    h_slot_t slot;
    h_slot_config_t config;
    memset(&config, 0, sizeof config);
    CHECK(h_area_new(node, 64, area));
    config.area = *area;
    config.queue = queue_of(4);
    config.credit = 4;
    CHECK(h_slot_new(node, &config, &slot));
    CHECK(h_ticket(node, slot, 0, ticket));
    return config.queue;
}

static void announce(const h_ticket_t *to, uint64_t word) {
    CHECK(h_send_msg(node, to, &word, sizeof word, NULL, 0, LIMIT, NULL));
}

/* The next event of this kind; others are passed over. */
static void wait_for(h_event_kind kind, h_event_t *event) {
    do {
        CHECK(h_next_event(node, LIMIT, event));
    } while (event->kind != kind);
}

static void aperture_recv(const char *name, uint64_t count) {
    static h_event_t event;
    h_area_t area;
    h_ticket_t ticket, to;
    h_notification_t n;
    h_aperture_t *aperture;
    uint32_t number;
    unsigned char data[BLOCK];
    h_queue_t queue = announced(&area, &ticket);
    CHECK(h_serve(node, name, H_ACCESS_SAME_USER, 0, &ticket, sizeof ticket));
    ready();
    wait_for(H_EVENT_CONNECTED, &event);
    h_link_t link = event.link;
    CHECK(h_greeting(node, link, &to, sizeof to, NULL));
    CHECK(h_export(node, link, count * PAGE, H_APERTURE_READ_WRITE, &number));
    wait_for(H_EVENT_APERTURE_READY, &event);
    CHECK(h_aperture_open(node, link, number, NULL, &aperture));
    for (uint64_t i = 0; i < count; i++) {
        size_t length = make(i, data);
        CHECK(h_aperture_write(aperture, i * PAGE, data, length));
    }
    announce(&to, number);
    CHECK(h_recv_block(node, queue, LIMIT, &n));
    for (uint64_t i = 0; i < count; i++) {
        CHECK(h_aperture_read(aperture, i * PAGE, data, sizeof data));
        must_lie_at(i + 1, data);
    }
    h_aperture_free(aperture);
    CHECK(h_aperture_revoke(node, link, number));
    CHECK(h_recv_block(node, queue, LIMIT, &n));
}

static void aperture_send(const char *name, uint64_t count) {
    static h_event_t event;
    h_area_t area;
    h_ticket_t ticket, to;
    h_link_t link;
    h_notification_t n;
    h_aperture_t *aperture;
    void *number;
    unsigned char data[BLOCK];
    h_queue_t queue = announced(&area, &ticket);
    CHECK(h_connect(node, name, &ticket, sizeof ticket, LIMIT, &link));
    CHECK(h_greeting(node, link, &to, sizeof to, NULL));
    CHECK(h_recv_block(node, queue, LIMIT, &n));
    CHECK(h_area_data(node, area, &number, NULL));
    CHECK(h_aperture_open(node, link, *(uint32_t *)number, NULL, &aperture));
    for (uint64_t i = 0; i < count; i++) {
        CHECK(h_aperture_read(aperture, i * PAGE, data, sizeof data));
        must_lie_at(i, data);
        size_t length = make(i + 1, data);
        CHECK(h_aperture_write(aperture, i * PAGE, data, length));
    }
    announce(&to, 0);
    wait_for(H_EVENT_APERTURE_REVOKED, &event);
    h_status status = h_aperture_write(aperture, 0, data, 1);
    if (status != H_CLOSED) {
        fprintf(stderr, "a write after it was revoked is %s\n", h_status_name(status));
        exit(1);
    }
    h_aperture_free(aperture);
    announce(&to, 0);
}

static void close_recv(const char *name, uint64_t count) {
    static h_event_t event;
    h_stream_receiver_t *receiver;
    h_record_t record;
    char after[256];
    snprintf(after, sizeof after, "%s-after", name);
    CHECK(h_stream_receiver_new(node, NULL, &receiver));
    CHECK(h_stream_receiver_serve(receiver, name, H_ACCESS_SAME_USER, 0));
    CHECK(h_serve(node, after, H_ACCESS_SAME_USER, 0, "", 0));
    ready();
    wait_for(H_EVENT_CONNECTED, &event);
    uint64_t taken = 0;
    h_status status;
    while ((status = h_stream_receive(receiver, LIMIT, &record)) == H_OK) {
        must_be(taken++, record.data, record.length);
        CHECK(h_stream_release(receiver, record.number));
    }
    if (status != H_CLOSED || taken != count) {
        fprintf(stderr, "after %llu records came %s\n", (unsigned long long)taken,
                h_status_name(status));
        exit(1);
    }
    CHECK(h_stream_receiver_close(receiver, LIMIT));
}

static void close_send(const char *name, uint64_t count) {
    h_link_t link;
    char after[256];
    snprintf(after, sizeof after, "%s-after", name);
    stream_send(name, count);
    CHECK(h_connect(node, after, NULL, 0, LIMIT, &link));
}

static void publish_recv(const char *name, uint64_t count) {
    h_tagged_receiver_t *receiver;
    h_subscriber_t *subscriber;
    h_tag_t tag;
    h_sample_t *sample;
    h_sample_info_t info;
    unsigned char data[BLOCK];
    char samples[256];
    h_status status;
    snprintf(samples, sizeof samples, "%s-samples", name);
    CHECK(h_tagged_receiver_new(node, 8, 1, 1, &receiver));
    CHECK(h_tagged_receiver_serve(receiver, name, H_ACCESS_SAME_USER, 0));
    ready();
    CHECK(h_tagged_get_tag(receiver, LIMIT, &tag));
    CHECK(h_subscriber_connect(node, samples, NULL, LIMIT, &subscriber));
    for (uint64_t i = 0; i < count; i++) {
        CHECK(h_subscriber_receive(subscriber, LIMIT, &sample));
        CHECK(h_sample_info(sample, &info));
        if (info.number != i || info.missed != 0 || info.length > sizeof data) {
            fprintf(stderr, "sample %llu came, and not %llu\n", (unsigned long long)info.number,
                    (unsigned long long)i);
            exit(1);
        }
        CHECK(h_sample_read(sample, 0, data, info.length));
        must_be(i, data, info.length);
        h_sample_free(sample);
    }
    status = h_subscriber_receive(subscriber, LIMIT, &sample);
    if (status != H_CLOSED) {
        fprintf(stderr, "after the last sample came %s\n", h_status_name(status));
        exit(1);
    }
    CHECK(h_subscriber_close(subscriber, LIMIT));
    CHECK(h_tagged_receiver_close(receiver, LIMIT));
}

static void publish_send(const char *name, uint64_t count) {
    h_publisher_t *publisher;
    h_publish_config_t config;
    h_tagged_sender_t *sender;
    h_subscriber_state_t state;
    unsigned char data[BLOCK];
    char samples[256];
    size_t there;
    bool may_wait;
    snprintf(samples, sizeof samples, "%s-samples", name);
    memset(&config, 0, sizeof config);
    config.short_bytes_max = 512;
    config.sample_bytes_max = BLOCK;
    config.when_slow = H_WHEN_SLOW_WAIT;
    CHECK(h_publisher_new(node, &config, &publisher));
    CHECK(h_publisher_serve(publisher, samples, H_ACCESS_SAME_USER, 0));
    CHECK(h_tagged_sender_connect(node, name, LIMIT, &sender));
    CHECK(h_tagged_send(sender, 0, NULL, 0, 0, LIMIT));
    do {
        /* A turn, in which it takes requests. */
        CHECK(h_prepare_to_wait(node, &may_wait));
        CHECK(h_publisher_subscribers(publisher, &state, 1, &there));
    } while (there == 0 || !state.is_served);
    for (uint64_t i = 0; i < count; i++) {
        size_t length = make(i, data);
        CHECK(h_publisher_publish(publisher, data, length, LIMIT, NULL));
    }
    CHECK(h_publisher_drain(publisher, LIMIT));
    CHECK(h_publisher_close(publisher, LIMIT));
    CHECK(h_tagged_sender_close(sender, LIMIT));
}

static void bytes_recv(const char *name, uint64_t count) {
    h_byte_listener_t *listener;
    h_byte_stream_t *stream;
    unsigned char data[BLOCK];
    size_t length;
    (void)count;
    CHECK(h_byte_listener_new(node, NULL, &listener));
    CHECK(h_byte_listener_serve(listener, name, H_ACCESS_SAME_USER, 0));
    ready();
    CHECK(h_byte_listener_accept(listener, LIMIT, &stream));
    for (;;) {
        CHECK(h_byte_stream_read(stream, LIMIT, data, sizeof data, &length));
        if (length == 0) {
            break;
        }
        CHECK(h_byte_stream_write_all(stream, data, length, LIMIT, NULL));
    }
    CHECK(h_byte_stream_shutdown(stream, LIMIT));
    /* The other side has read it all when it closes, too. */
    CHECK(h_byte_stream_close(stream, LIMIT));
    CHECK(h_byte_listener_close(listener, LIMIT));
}

/* Reads exactly one message back. */
static void back(h_byte_stream_t *stream, uint64_t i) {
    unsigned char data[BLOCK], found[BLOCK];
    size_t wanted = make(i, data), have = 0, length;
    while (have < wanted) {
        CHECK(h_byte_stream_read(stream, LIMIT, found + have, wanted - have, &length));
        if (length == 0) {
            fprintf(stderr, "the end came within message %llu\n", (unsigned long long)i);
            exit(1);
        }
        have += length;
    }
    must_be(i, found, have);
}

static void bytes_send(const char *name, uint64_t count) {
    h_byte_stream_t *stream;
    unsigned char data[BLOCK];
    size_t length;
    CHECK(h_byte_stream_connect(node, name, NULL, LIMIT, &stream));
    for (uint64_t i = 0; i < count; i++) {
        length = make(i, data);
        CHECK(h_byte_stream_write_all(stream, data, length, LIMIT, NULL));
        /* Half of them wait, for the other side to have room. */
        if (i >= count / 2) {
            back(stream, i - count / 2);
        }
    }
    CHECK(h_byte_stream_shutdown(stream, LIMIT));
    for (uint64_t i = count - count / 2; i < count; i++) {
        back(stream, i);
    }
    CHECK(h_byte_stream_read(stream, LIMIT, data, sizeof data, &length));
    if (length != 0) {
        fprintf(stderr, "%llu bytes came instead of the end\n", (unsigned long long)length);
        exit(1);
    }
    CHECK(h_byte_stream_close(stream, LIMIT));
}

static const struct {
    const char *name;
    void (*recv)(const char *name, uint64_t count);
    void (*send)(const char *name, uint64_t count);
} protocols[] = {
    {"raw", raw_recv, raw_send},
    {"tagged", tagged_recv, tagged_send},
    {"datagram", datagram_recv, datagram_send},
    {"stream", stream_recv, stream_send},
    {"call", call_recv, call_send},
    {"group", group_recv, group_send},
    {"aperture", aperture_recv, aperture_send},
    {"close", close_recv, close_send},
    {"publish", publish_recv, publish_send},
    {"bytes", bytes_recv, bytes_send},
};

int main(int argc, char **argv) {
    alarm(60);
    uint64_t count = argc > 4 ? strtoull(argv[4], NULL, 10) : 200;
    if (argc < 4 || count == 0) {
        fprintf(stderr, "usage: peer recv|send PROTOCOL NAME [COUNT]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++) {
        if (strcmp(protocols[i].name, argv[2]) == 0) {
            CHECK(h_node_new(NULL, 0, &node));
            (strcmp(argv[1], "recv") == 0 ? protocols[i].recv : protocols[i].send)(argv[3], count);
            CHECK(h_close(node, LIMIT, NULL));
            return 0;
        }
    }
    fprintf(stderr, "no protocol is called %s\n", argv[2]);
    return 2;
}
