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

/* A slot for what announces, and its ticket. */
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
