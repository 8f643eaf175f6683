/*
 * Errors: each wrong argument and each failing situation has its status and a text that explains
 * it, nothing is written to the outputs, and nothing breaks.
 */
#include "../examples/common.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

static int failures;

/* The call fails with this status, and its text holds these words. */
#define EXPECT(status, words, call) expect((status), (words), (call), #call, __LINE__)

static void expect(h_status wanted, const char *words, h_status found, const char *call, int line) {
    if (found == wanted && (wanted == H_OK || strstr(h_error_message(), words))) {
        return;
    }
    fprintf(stderr, "line %d: %s is %s (\"%s\"), and should be %s (\"..%s..\")\n", line, call,
            h_status_name(found), h_error_message(), h_status_name(wanted), words);
    failures++;
}

/* The same of a call that may take no time: on a busy machine nothing may have been found out yet, and
   then it says so. */
#define EXPECT_BY_AND_BY(status, words, call)                                                      \
    do {                                                                                           \
        int tries = 0;                                                                             \
        h_status found;                                                                            \
        do {                                                                                       \
            found = (call);                                                                        \
        } while (found == H_TIMED_OUT && ++tries < 50);                                            \
        expect((status), (words), found, #call, __LINE__);                                         \
    } while (0)

#define THAT(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);                        \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

static h_node_t *node;
static h_area_t area;
static h_queue_t queue;
static h_slot_t slot;
static h_ticket_t ticket;

static h_slot_config_t config_of(h_area_t of_area, h_queue_t of_queue) {
    h_slot_config_t config;
    memset(&config, 0, sizeof config);
    config.area = of_area;
    config.queue = of_queue;
    return config;
}

static void a_node_without_its_arguments(void) {
    h_node_t *made = NULL;
    h_setting_t setting;
    EXPECT(H_INVALID, "node is null", h_node_new(NULL, 0, NULL));
    EXPECT(H_INVALID, "settings is null", h_node_new(NULL, 1, &made));
    setting.name = "ring_bites";
    setting.value = "64K";
    EXPECT(H_INVALID, "ring_bites", h_node_new(&setting, 1, &made));
    setting.name = "ring_bytes";
    setting.value = "1000";
    EXPECT(H_INVALID, "power of two", h_node_new(&setting, 1, &made));
    setting.value = NULL;
    EXPECT(H_INVALID, "ring_bytes is null", h_node_new(&setting, 1, &made));
    setting.name = NULL;
    EXPECT(H_INVALID, "name is null", h_node_new(&setting, 1, &made));
    THAT(made == NULL);
    setting.name = "HAMLYN_RING_BYTES";
    setting.value = "64K";
    EXPECT(H_OK, "", h_node_new(&setting, 1, &made));
    EXPECT(H_OK, "", h_close(made, 0, NULL));
    h_node_free(NULL);
    EXPECT(H_INVALID, "node is null", h_close(NULL, 0, NULL));
}

/* Another host, here this one over loopback: missing settings, an absent host, and a message. */
static void another_host(void) {
    h_setting_t settings[4];
    h_node_t *there = NULL, *made = NULL;
    h_area_t at_area;
    h_queue_t at_queue;
    h_slot_t at_slot;
    h_slot_config_t config;
    h_ticket_t own, to;
    h_notification_t message;
    h_link_t link;
    char path[512], at[64], name[128], text[512];
    size_t length = 77;
    FILE *file;
    settings[0].name = "listen";
    settings[0].value = "127.0.0.1:0";
    EXPECT(H_INVALID, "HAMLYN_SECRET", h_node_new(settings, 1, &made));
    EXPECT(H_INVALID, "HAMLYN_SECRET", h_connect(node, "hamlyn://127.0.0.1:1/x", NULL, 0, LIMIT, &link));
    EXPECT(H_INVALID, "host:port/service", h_connect(node, "hamlyn://x:1", NULL, 0, LIMIT, &link));
    EXPECT(H_OK, "", h_listens_at(node, at, sizeof at, &length));
    THAT(length == 0 && at[0] == 0);

    THAT(snprintf(path, sizeof path, "%s/secret", getenv("HAMLYN_DIR")) < (int)sizeof path);
    file = fopen(path, "w");
    THAT(file && fprintf(file, "%064d\n", 7) == 65 && fclose(file) == 0);
    settings[1].name = "secret";
    settings[1].value = path;
    THAT(chmod(path, 0644) == 0);
    EXPECT(H_INVALID, "chmod 600", h_node_new(settings, 2, &made));
    THAT(chmod(path, 0600) == 0 && made == NULL);
    EXPECT(H_OK, "", h_node_new(settings, 2, &there));
    settings[2].name = "wait_for_names";
    settings[2].value = "off";
    settings[3].name = "local";
    settings[3].value = "tls";
    EXPECT(H_OK, "", h_node_new(settings + 1, 3, &made));
    EXPECT(H_TOO_LONG, "", h_listens_at(there, at, 3, &length));
    EXPECT(H_OK, "", h_listens_at(there, at, sizeof at, &length));
    THAT(strlen(at) == length && strncmp(at, "127.0.0.1:", 10) == 0);
    EXPECT(H_UNREACHABLE, "refused", h_connect(made, "hamlyn://127.0.0.1:1/x", NULL, 0, LIMIT, &link));
    THAT(snprintf(name, sizeof name, "hamlyn://%s/there", at) < (int)sizeof name);
    EXPECT(H_NOT_FOUND, "nobody serves", h_connect(made, name, NULL, 0, LIMIT, &link));

    EXPECT(H_OK, "", h_area_new(there, 64, &at_area));
    EXPECT(H_OK, "", h_queue_new(there, 4, &at_queue));
    config = config_of(at_area, at_queue);
    EXPECT(H_OK, "", h_slot_new(there, &config, &at_slot));
    EXPECT(H_OK, "", h_ticket(there, at_slot, 0, &own));
    EXPECT(H_OK, "", h_serve(there, "there", H_ACCESS_SAME_USER, 0, &own, sizeof own));
    EXPECT(H_OK, "", h_connect(made, name, NULL, 0, LIMIT, &link));
    EXPECT(H_OK, "", h_greeting(made, link, &to, sizeof to, NULL));
    EXPECT(H_OK, "", h_explain(made, link, text, sizeof text, NULL));
    THAT(strstr(text, "TLS 1.3") != NULL);
    EXPECT(H_OK, "", h_send_msg(made, &to, "far", 3, NULL, 0, LIMIT, NULL));
    EXPECT(H_OK, "", h_recv_block(there, at_queue, LIMIT, &message));
    EXPECT(H_OK, "", h_close(made, LIMIT, NULL));
    EXPECT(H_OK, "", h_close(there, LIMIT, NULL));
}

static void null_arguments_are_named(void) {
    size_t length = 77;
    char text[8];
    uint64_t word;
    h_event_t *event = (h_event_t *)malloc(sizeof *event);
    EXPECT(H_INVALID, "node is null", h_area_new(NULL, 1, &area));
    EXPECT(H_INVALID, "area is null", h_area_new(node, 1, NULL));
    EXPECT(H_INVALID, "queue is null", h_queue_new(node, 1, NULL));
    EXPECT(H_INVALID, "config is null", h_slot_new(node, NULL, &slot));
    EXPECT(H_INVALID, "ticket is null", h_ticket(node, slot, 0, NULL));
    EXPECT(H_INVALID, "ticket is null", h_send_msg(node, NULL, "x", 1, NULL, 0, 0, NULL));
    EXPECT(H_INVALID, "data is null", h_send_msg(node, &ticket, NULL, 1, NULL, 0, 0, NULL));
    EXPECT(H_INVALID, "metadata is null", h_send_msg(node, &ticket, "x", 1, NULL, 1, 0, NULL));
    EXPECT(H_INVALID, "notification is null", h_recv(node, queue, NULL));
    EXPECT(H_INVALID, "notification is null", h_recv_block(node, queue, 0, NULL));
    EXPECT(H_INVALID, "node is null", h_recv_block(NULL, queue, 0, NULL));
    EXPECT(H_INVALID, "name is null", h_serve(node, NULL, H_ACCESS_SAME_USER, 0, NULL, 0));
    EXPECT(H_INVALID, "event is null", h_next_event(node, 0, NULL));
    EXPECT(H_INVALID, "link is null", h_connect(node, "x", NULL, 0, 0, NULL));
    EXPECT(H_INVALID, "greeting is null", h_serve(node, "x", H_ACCESS_SAME_USER, 0, NULL, 9));
    EXPECT(H_INVALID, "seed is null", h_seed_to_text(NULL, text, sizeof text, &length));
    EXPECT(H_INVALID, "receiver is null", h_tagged_receiver_new(node, 1, 0, 0, NULL));
    EXPECT(H_INVALID, "sender is null", h_tagged_send(NULL, 0, "x", 1, 0, 0));
    EXPECT(H_INVALID, "buffer is null", h_notes(node, NULL, 9, &length));
    h_tagged_receiver_free(NULL);
    h_tagged_sender_free(NULL);
    THAT(length == 77);
    /* Misaligned. */
    EXPECT(H_INVALID, "multiple of 8", h_counter(node, "sleeps", (uint64_t *)((char *)&word + 1)));
    /* Longer than memory can be. */
    EXPECT(H_INVALID, "too many", h_send_msg(node, &ticket, "x", SIZE_MAX, NULL, 0, 0, NULL));
    /* Not UTF-8. */
    EXPECT(H_INVALID, "UTF-8", h_serve(node, "\xff\xfe", H_ACCESS_SAME_USER, 0, NULL, 0));
    EXPECT(H_NOTHING, "no event", h_next_event(node, 0, event));
    EXPECT(H_TIMED_OUT, "time limit", h_next_event(node, 1000000, event));
    free(event);
}

static void what_is_not_there(void) {
    h_area_t no_area;
    h_queue_t no_queue;
    h_slot_t no_slot;
    h_link_t no_link;
    h_notification_t notification;
    h_slot_config_t config = config_of(area, queue);
    uint64_t value;
    h_peer_t peer;
    no_area.bits = no_queue.bits = no_slot.bits = no_link.bits = UINT64_MAX;
    EXPECT(H_NO_SUCH, "does not exist", h_area_free(node, no_area));
    EXPECT(H_NO_SUCH, "does not exist", h_queue_free(node, no_queue));
    EXPECT(H_NO_SUCH, "does not exist", h_slot_free(node, no_slot));
    EXPECT(H_NO_SUCH, "does not exist", h_recv(node, no_queue, &notification));
    EXPECT(H_NO_SUCH, "does not exist", h_recv_block(node, no_queue, LIMIT, &notification));
    EXPECT(H_NO_SUCH, "gone", h_peer(node, no_link, &peer));
    EXPECT(H_NO_SUCH, "gone", h_greeting(node, no_link, &value, sizeof value, NULL));
    EXPECT(H_NO_SUCH, "no counter", h_counter(node, "nonsense", &value));
    EXPECT(H_NO_SUCH, "offers no service", h_stop_serving(node, "nonsense"));
    EXPECT(H_NO_SUCH, "request", h_accept(node, 12345, NULL, 0));
    EXPECT(H_NO_SUCH, "does not exist", h_ticket(node, slot, 99, &ticket));
    EXPECT(H_IN_USE, "slots", h_area_free(node, area));
    EXPECT(H_IN_USE, "slots", h_queue_free(node, queue));
    EXPECT(H_INVALID, "at least 1", h_area_new(node, 0, &no_area));
    EXPECT(H_INVALID, "from 1 to", h_queue_new(node, 0, &no_queue));
    config.bound = 1 << 20;
    EXPECT(H_INVALID, "not inside", h_slot_new(node, &config, &no_slot));
    config = config_of(area, queue);
    config.mode = 17;
    EXPECT(H_INVALID, "mode is 17", h_slot_new(node, &config, &no_slot));
    config.mode = H_MODE_PARANOID;
    EXPECT(H_OK, "", h_slot_new(node, &config, &no_slot));
    EXPECT(H_STATE, "arm", h_ticket(node, no_slot, 0, &ticket));
    EXPECT(H_STATE, "mode", h_arm(node, no_slot, 0));
    EXPECT(H_INVALID, "not inside", h_arm_limits(node, no_slot, 0, 0, 1 << 20));
    EXPECT(H_OK, "", h_slot_free(node, no_slot));
    EXPECT(H_INVALID, "access is 9", h_serve(node, "x", 9, 0, NULL, 0));
    EXPECT(H_INVALID, "", h_serve(node, "no/name", H_ACCESS_SAME_USER, 0, NULL, 0));
    /* It is waited for as long as the call may take, and no longer. */
    EXPECT_BY_AND_BY(H_NOT_FOUND, "nothing is called",
                      h_connect(node, "nobody", NULL, 0, 0, &no_link));
    EXPECT_BY_AND_BY(H_NOT_FOUND, "is there and has no",
                      h_connect(node, "nobody", NULL, 0, 1000000, &no_link));
    EXPECT(H_INVALID, "", h_connect(node, "no/name", NULL, 0, LIMIT, &no_link));
}

static void bytes_outside(void) {
    char buffer[16];
    size_t length = 0;
    void *data;
    EXPECT(H_INVALID, "not inside the 4096", h_area_read(node, area, 4090, buffer, 16));
    EXPECT(H_INVALID, "not inside", h_area_read(node, area, SIZE_MAX, buffer, 16));
    EXPECT(H_INVALID, "not inside", h_area_write(node, area, 4096, "x", 1));
    EXPECT(H_OK, "", h_area_write(node, area, 4095, "x", 1));
    EXPECT(H_OK, "", h_area_read(node, area, 4095, buffer, 1));
    EXPECT(H_OK, "", h_area_data(node, area, &data, &length));
    THAT(buffer[0] == 'x' && ((char *)data)[4095] == 'x' && length == 4096);
}

static void tickets_that_are_none(void) {
    h_ticket_t bad = ticket;
    h_ticket_t parts[2];
    uint64_t capacity = 0;
    bad.bytes[42] = 0xff;
    EXPECT(H_INVALID, "flags", h_send_msg(node, &bad, "x", 1, NULL, 0, 0, NULL));
    EXPECT(H_INVALID, "not one", h_ticket_capacity(&bad, &capacity));
    EXPECT(H_OK, "", h_ticket_capacity(&ticket, &capacity));
    THAT(capacity == 4096);
    EXPECT(H_INVALID, "not inside", h_ticket_at(&ticket, 4097, &bad));
    EXPECT(H_INVALID, "count is 0", h_ticket_split(&ticket, parts, 0));
    EXPECT(H_OK, "", h_ticket_split(&ticket, parts, 2));
    EXPECT(H_OK, "", h_ticket_capacity(&parts[1], &capacity));
    THAT(capacity == 2048);
    EXPECT(H_INVALID, "fast", h_send_fast(node, &ticket, "x", 1, 7, 0, NULL));
    /* A node without connections. */
    bad = ticket;
    bad.bytes[0] ^= 1;
    EXPECT(H_UNREACHABLE, "no link", h_send_msg(node, &bad, "x", 1, NULL, 0, 0, NULL));
    EXPECT(H_TOO_LONG, "4096", h_send_msg(node, &ticket, bad.bytes, 4097, NULL, 0, 0, NULL));
}

static void messages_to_oneself(void) {
    h_handle_t handle;
    h_notification_t n;
    h_ticket_t fast;
    bool reusable = false;
    char metadata[4];
    char data[8];
    size_t length = 0;
    uint8_t tag;
    h_piece_t piece;
    size_t taken;
    EXPECT(H_NOTHING, "no message", h_recv(node, queue, &n));
    EXPECT(H_TIMED_OUT, "time limit", h_recv_block(node, queue, 1000000, &n));
    EXPECT(H_OK, "", h_send_msg(node, &ticket, "data", 4, "metadata", 8, LIMIT, &handle));
    EXPECT(H_OK, "", h_recv_block(node, queue, LIMIT, &n));
    THAT(n.slot.bits == slot.bits && n.index == 0 && n.word == 0);
    THAT(h_slot_index(n.slot) == h_slot_index(slot));
    EXPECT(H_OK, "", h_is_reusable(node, &handle, &reusable));
    THAT(reusable);
    EXPECT(H_TOO_LONG, "8 are needed", h_metadata(node, n.slot, n.index, metadata, 4, &length));
    THAT(length == 8);
    EXPECT(H_OK, "", h_area_read(node, area, 0, data, 4));
    THAT(memcmp(data, "data", 4) == 0);
    EXPECT(H_OK, "", h_fast_ticket(node, slot, &fast));
    EXPECT(H_OK, "", h_send_fast(node, &fast, "fast", 4, 77, LIMIT, NULL));
    EXPECT(H_OK, "", h_recv_block(node, queue, LIMIT, &n));
    THAT(n.index == H_INDEX_FAST && n.word == 77);
    EXPECT(H_OK, "", h_send_buffer_new(node, 64, &tag));
    EXPECT(H_INVALID, "not inside", h_send_buffer_write(node, tag, 60, "12345", 5));
    EXPECT(H_OK, "", h_send_buffer_write(node, tag, 59, "12345", 5));
    memset(&piece, 0, sizeof piece);
    piece.tag = tag;
    piece.offset = 59;
    piece.length = 6;
    EXPECT(H_INVALID, "", h_post_send(node, &ticket, &piece, 1, NULL, 0, NULL));
    EXPECT(H_INVALID, "at most 16", h_post_send(node, &ticket, &piece, 17, NULL, 0, NULL));
    piece.length = 5;
    EXPECT(H_OK, "", h_post_send(node, &ticket, &piece, 1, NULL, 0, &handle));
    EXPECT(H_OK, "", h_flush(node, LIMIT));
    EXPECT(H_OK, "", h_poll(node, &taken));
    EXPECT(H_OK, "", h_recv_block(node, queue, LIMIT, &n));
    EXPECT(H_OK, "", h_area_read(node, area, 0, data, 5));
    THAT(memcmp(data, "12345", 5) == 0);
    EXPECT(H_OK, "", h_send_buffer_free(node, tag));
    /* A ticket whose key was changed: refused, counted, and the sender is not told. */
    uint64_t before = 0, after = 0;
    EXPECT(H_OK, "", h_counter(node, "refused_stale_key", &before));
    EXPECT(H_OK, "", h_revoke(node, slot));
    EXPECT(H_OK, "", h_send_msg(node, &ticket, "late", 4, NULL, 0, LIMIT, NULL));
    EXPECT(H_TIMED_OUT, "", h_recv_block(node, queue, 1000000, &n));
    EXPECT(H_OK, "", h_counter(node, "refused_stale_key", &after));
    THAT(after == before + 1);
    EXPECT(H_OK, "", h_ticket(node, slot, 0, &ticket));
}

/* Messages that can leave at once, again and again by one thread, take a way of their own: with any
 * number of bytes they arrive whole, and what is wrong with one is said as with any other. */
static void messages_that_leave_at_once(void) {
    static const char sent[] = "abcdefghijklmnopqrstuvwxyz";
    char data[32];
    h_handle_t handles[2];
    h_notification_t n[2];
    h_ticket_t bad;
    bool reusable;
    uint64_t before = 0, after = 0;
    for (size_t round = 0; round < 20; round++) {
        for (size_t length = 0; length <= 18; length++) {
            EXPECT(H_OK, "", h_area_write(node, area, 0, "..................", 18));
            handles[0].bits[0] = 77;
            EXPECT(H_OK, "", h_send_msg(node, &ticket, length ? sent + round % 8 : NULL, length, NULL, 0, LIMIT,
                                        round % 2 ? &handles[0] : NULL));
            if (round % 2) {
                EXPECT(H_OK, "", h_is_reusable(node, &handles[0], &reusable));
                THAT(reusable);
            }
            EXPECT(H_OK, "", h_recv_block(node, queue, LIMIT, &n[0]));
            THAT(n[0].slot.bits == slot.bits && n[0].index == 0 && n[0].word == 0);
            EXPECT(H_OK, "", h_area_read(node, area, 0, data, 18));
            THAT(memcmp(data, sent + round % 8, length) == 0);
            THAT(memcmp(data + length, "..................", 18 - length) == 0);
        }
    }
    EXPECT(H_OK, "", h_counter(node, "messages_sent", &before));
    for (size_t length = 8; length <= 16; length += 8) {
        h_node_t *odd = (h_node_t *)((char *)node + 4);
        EXPECT(H_INVALID, "node is null", h_send_msg(NULL, &ticket, sent, length, NULL, 0, 0, NULL));
        EXPECT(H_INVALID, "ticket is null", h_send_msg(node, NULL, sent, length, NULL, 0, 0, NULL));
        EXPECT(H_INVALID, "data is null", h_send_msg(node, &ticket, NULL, length, NULL, 0, 0, NULL));
        EXPECT(H_INVALID, "metadata is null", h_send_msg(node, &ticket, sent, length, NULL, 1, 0, NULL));
        EXPECT(H_INVALID, "multiple of 8", h_send_msg(odd, &ticket, sent, length, NULL, 0, 0, NULL));
        EXPECT(H_INVALID, "handle is 0x", h_send_msg(node, &ticket, sent, length, NULL, 0, 0,
                                                     (h_handle_t *)((char *)handles + 2)));
        EXPECT(H_INVALID, "multiple of 8", h_recv_block(odd, queue, 0, n));
        EXPECT(H_INVALID, "notification is 0x", h_recv_block(node, queue, 0, (h_notification_t *)((char *)n + 1)));
        for (size_t at = 42; at <= 43; at++) {
            bad = ticket;
            bad.bytes[at] |= 0x10;
            EXPECT(H_INVALID, "flags", h_send_msg(node, &bad, sent, length, NULL, 0, 0, NULL));
        }
        bad = ticket;
        bad.bytes[34] = 1;
        EXPECT(H_INVALID, "after its bound", h_send_msg(node, &bad, sent, length, NULL, 0, 0, NULL));
        EXPECT(H_OK, "", h_ticket_at(&ticket, 4096 - length + 1, &bad));
        EXPECT(H_TOO_LONG, "", h_send_msg(node, &bad, sent, length, NULL, 0, 0, NULL));
        bad = ticket;
        bad.bytes[7] ^= 1;
        EXPECT(H_UNREACHABLE, "no link", h_send_msg(node, &bad, sent, length, NULL, 0, 0, NULL));
    }
    EXPECT(H_OK, "", h_counter(node, "messages_sent", &after));
    THAT(after == before);
    EXPECT(H_NOTHING, "no message", h_recv(node, queue, n));
    /* The last bytes of a ticket, and a fast ticket's, which has no metadata entry. */
    EXPECT(H_OK, "", h_ticket_at(&ticket, 4080, &bad));
    EXPECT(H_OK, "", h_send_msg(node, &bad, sent, 16, NULL, 0, LIMIT, NULL));
    EXPECT(H_OK, "", h_recv_block(node, queue, LIMIT, n));
    EXPECT(H_OK, "", h_area_read(node, area, 4080, data, 16));
    THAT(memcmp(data, sent, 16) == 0);
    EXPECT(H_OK, "", h_fast_ticket(node, slot, &bad));
    EXPECT(H_OK, "", h_send_msg(node, &bad, sent, 16, NULL, 0, LIMIT, NULL));
    EXPECT(H_OK, "", h_recv_block(node, queue, LIMIT, n));
    THAT(n[0].index == H_INDEX_FAST && n[0].word == 0);
}

static void seeds_that_are_none(void) {
    h_seed_t seed;
    h_tagged_receiver_t *receiver;
    h_tagged_sender_t *sender = NULL;
    char text[H_SEED_TEXT_BYTES];
    uint32_t kind = 0;
    EXPECT(H_SEED, "", h_seed_from_bytes("nonsense", 8, &seed));
    EXPECT(H_SEED, "", h_seed_from_text("xyz", &seed));
    EXPECT(H_OK, "", h_tagged_receiver_new(node, 64, 4, 1, &receiver));
    EXPECT(H_OK, "", h_tagged_receiver_seed(receiver, &seed));
    EXPECT(H_OK, "", h_seed_kind(&seed, &kind));
    THAT(kind == H_KIND_TAGGED);
    {
        h_seed_t far;
        EXPECT(H_INVALID, "at is null", h_seed_at_host(&seed, NULL, &far));
        EXPECT(H_INVALID, "1 to 65535", h_seed_at_host(&seed, "x:0", &far));
        EXPECT(H_TOO_LONG, "too many", h_seed_at_host(&seed, "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.aaaaaaaaaaaa:1", &far));
        EXPECT(H_OK, "", h_seed_at_host(&seed, "a.example:7000", &far));
        THAT(far.length > seed.length);
    }
    EXPECT(H_TOO_LONG, "needed", h_seed_to_text(&seed, text, 9, NULL));
    EXPECT(H_OK, "", h_seed_to_text(&seed, text, sizeof text, NULL));
    EXPECT(H_OK, "", h_seed_from_text(text, &seed));
    seed.bytes[9] ^= 1;
    EXPECT(H_SEED, "checksum", h_tagged_sender_grow(node, &seed, LIMIT, &sender));
    seed.length = 4000;
    EXPECT(H_INVALID, "length is 4000", h_tagged_sender_grow(node, &seed, LIMIT, &sender));
    EXPECT(H_OK, "", h_seed_from_text(text, &seed));
    h_tagged_receiver_free(receiver);
    EXPECT(H_REFUSED, "seed", h_tagged_sender_grow(node, &seed, LIMIT, &sender));
    THAT(sender == NULL);
}

/* A sender and a receiver of one process, each with a node, and a receiver that goes. */
static void a_receiver_that_goes(void) {
    h_node_t *other;
    h_tagged_receiver_t *receiver;
    h_tagged_sender_t *sender;
    h_seed_t seed;
    h_tag_t tag;
    char data[9000];
    size_t bytes_max = 0, count = 0;
    uint64_t area_bytes = 0;
    memset(data, 1, sizeof data);
    EXPECT(H_OK, "", h_node_new(NULL, 0, &other));
    EXPECT(H_OK, "", h_start_progress(other));
    EXPECT(H_OK, "", h_tagged_receiver_new(other, 100, 2, 1, &receiver));
    EXPECT(H_OK, "", h_tagged_receiver_seed(receiver, &seed));
    EXPECT(H_OK, "", h_tagged_sender_grow(node, &seed, LIMIT, &sender));
    EXPECT(H_OK, "", h_tagged_bytes_max(sender, &bytes_max, &area_bytes));
    THAT(area_bytes == 100 && bytes_max > 100 && bytes_max < sizeof data);
    EXPECT(H_TOO_LONG, "at most", h_tagged_send(sender, 0, data, bytes_max + 1, 0, LIMIT));
    EXPECT(H_INVALID, "not inside", h_tagged_send(sender, 99, data, 2, 0, LIMIT));
    EXPECT(H_OK, "", h_tagged_send(sender, 99, data, 1, 5, LIMIT));
    EXPECT(H_OK, "", h_tagged_send(sender, 0, NULL, 0, 6, 0));
    EXPECT(H_FULL, "no room", h_tagged_send(sender, 0, NULL, 0, 7, 0));
    EXPECT(H_TIMED_OUT, "time limit", h_tagged_send(sender, 0, NULL, 0, 7, 1000000));
    EXPECT(H_OK, "", h_tagged_get_specific_tag(receiver, 6, LIMIT, &tag));
    EXPECT(H_NOTHING, "", h_tagged_get_specific_tag(receiver, 9, 0, &tag));
    EXPECT(H_OK, "", h_tagged_get_tag(receiver, LIMIT, &tag));
    THAT(tag.tag == 5);
    EXPECT(H_OK, "", h_tagged_receiver_senders(receiver, &count));
    THAT(count == 1);
    EXPECT(H_NOTHING, "nothing", h_tagged_get_tag(receiver, 0, &tag));
    EXPECT(H_TIMED_OUT, "time limit", h_tagged_get_tag(receiver, 1000000, &tag));
    EXPECT(H_INVALID, "not inside", h_tagged_read(receiver, 99, data, 2));
    h_tagged_receiver_free(receiver);
    h_node_free(other);
    h_status status = H_OK;
    for (int i = 0; i < 1000 && status == H_OK; i++) {
        status = h_tagged_send(sender, 0, NULL, 0, 8, LIMIT);
    }
    EXPECT(H_CLOSED, "gone", status);
    h_tagged_sender_free(sender);
}

/* Two nodes of one process; the other one's thread makes its calls. */
static h_node_t *other_node(void) {
    h_node_t *other;
    EXPECT(H_OK, "", h_node_new(NULL, 0, &other));
    EXPECT(H_OK, "", h_start_progress(other));
    return other;
}

static void datagrams(void) {
    h_node_t *other = other_node();
    h_datagram_receiver_t *receiver;
    h_datagram_sender_t *sender;
    h_datagram_t datagram;
    h_seed_t seed;
    h_ticket_t reply;
    char data[200];
    size_t length = 0;
    uint64_t bytes = 0;
    memset(data, 3, sizeof data);
    EXPECT(H_INVALID, "receiver is null", h_datagram_receive(NULL, 0, &datagram));
    EXPECT(H_OK, "", h_datagram_receiver_new(other, 100, &receiver));
    EXPECT(H_STATE, "no datagram", h_datagram_read(receiver, data, sizeof data, &length));
    EXPECT(H_STATE, "no datagram", h_datagram_reply(receiver, "x", 1, 0));
    EXPECT(H_NOTHING, "nothing", h_datagram_receive(receiver, 0, &datagram));
    EXPECT(H_TIMED_OUT, "time limit", h_datagram_receive(receiver, 1000000, &datagram));
    EXPECT(H_OK, "", h_datagram_receiver_seed(receiver, &seed));
    EXPECT(H_OK, "", h_datagram_reply_ticket(receiver, &reply));
    EXPECT(H_OK, "", h_datagram_sender_grow(node, &seed, LIMIT, &sender));
    EXPECT(H_OK, "", h_datagram_capacity(sender, &bytes));
    THAT(bytes == 100);
    EXPECT(H_INVALID, "not inside", h_datagram_send(sender, 99, data, 2, NULL, LIMIT));
    EXPECT(H_INVALID, "this manager's own", h_datagram_send(sender, 0, data, 2, &reply, LIMIT));
    EXPECT(H_OK, "", h_datagram_send(sender, 1, data, 99, NULL, LIMIT));
    EXPECT(H_OK, "", h_datagram_receive(receiver, LIMIT, &datagram));
    THAT(datagram.offset == 1 && datagram.length == 99 && !datagram.wants_reply);
    EXPECT(H_TOO_LONG, "99 are needed", h_datagram_read(receiver, data, 9, &length));
    THAT(length == 99);
    EXPECT(H_STATE, "without a ticket", h_datagram_reply(receiver, "x", 1, LIMIT));
    EXPECT(H_OK, "", h_datagram_ready(receiver));
    EXPECT(H_INVALID, "ready since", h_datagram_read(receiver, data, sizeof data, &length));
    h_datagram_receiver_free(receiver);
    h_node_free(other);
    h_status status = H_OK;
    for (int i = 0; i < 1000 && status == H_OK; i++) {
        status = h_datagram_send(sender, 0, data, 1, NULL, LIMIT);
    }
    EXPECT(H_CLOSED, "gone", status);
    h_datagram_sender_free(sender);
    h_datagram_sender_free(NULL);
}

static void streams(void) {
    h_node_t *other = other_node();
    h_stream_receiver_t *receiver;
    h_stream_sender_t *sender, *second = NULL;
    h_stream_config_t config;
    h_record_t record;
    h_seed_t seed;
    h_peer_t peer;
    char data[2000];
    void *place = NULL;
    size_t bytes_max = 0;
    h_stream_loan_free(NULL);
    memset(&config, 0, sizeof config);
    memset(data, 3, sizeof data);
    config.buffers = 100000;
    EXPECT(H_LIMIT, "buffers is 100000", h_stream_receiver_new(other, &config, &receiver));
    config.buffers = 0;
    config.record_bytes_max = 1000;
    EXPECT(H_OK, "", h_stream_receiver_new(other, &config, &receiver));
    EXPECT(H_NOTHING, "no sender", h_stream_receiver_peer(receiver, &peer));
    EXPECT(H_NOTHING, "nothing", h_stream_receive(receiver, 0, &record));
    EXPECT(H_NO_SUCH, "record 0", h_stream_release(receiver, 0));
    EXPECT(H_OK, "", h_stream_receiver_seed(receiver, &seed));
    EXPECT(H_REFUSED, "path", h_stream_sender_grow_with_aperture(node, &seed, LIMIT, &second));
    EXPECT(H_OK, "", h_stream_sender_grow(node, &seed, LIMIT, &sender));
    EXPECT(H_LIMIT, "sender already", h_stream_sender_grow(node, &seed, LIMIT, &second));
    EXPECT(H_OK, "", h_stream_bytes_max(sender, &bytes_max));
    THAT(bytes_max == 1000 && second == NULL);
    EXPECT(H_TOO_LONG, "1000", h_stream_send(sender, data, 1001, LIMIT));
    EXPECT(H_INVALID, "data is null", h_stream_send(sender, NULL, 1, LIMIT));
    EXPECT(H_OK, "", h_stream_send(sender, data, 1000, LIMIT));
    EXPECT(H_OK, "", h_stream_send(sender, NULL, 0, LIMIT));
    /* Written in place: one at a time, and nothing else is sent meanwhile. */
    EXPECT(H_STATE, "no record", h_stream_loan_send(sender, 0, LIMIT));
    EXPECT(H_TOO_LONG, "1000", h_stream_loan(sender, 1001, LIMIT, &place));
    EXPECT(H_INVALID, "data is null", h_stream_loan(sender, 10, LIMIT, NULL));
    THAT(place == NULL);
    EXPECT(H_OK, "", h_stream_loan(sender, 10, LIMIT, &place));
    memset(place, 4, 10);
    EXPECT(H_STATE, "on loan", h_stream_loan(sender, 10, LIMIT, &place));
    EXPECT(H_STATE, "on loan", h_stream_send(sender, data, 1, LIMIT));
    EXPECT(H_STATE, "on loan", h_stream_flush(sender, LIMIT));
    EXPECT(H_INVALID, "length is 11", h_stream_loan_send(sender, 11, LIMIT));
    h_stream_loan_free(sender);
    h_stream_loan_free(sender);
    EXPECT(H_STATE, "no record", h_stream_loan_send(sender, 10, LIMIT));
    EXPECT(H_OK, "", h_stream_loan(sender, 9, LIMIT, &place));
    memcpy(place, "in place!", 9);
    EXPECT(H_OK, "", h_stream_loan_send(sender, 8, LIMIT));
    /* A loan still open when the sender closes is not sent. */
    EXPECT(H_OK, "", h_stream_loan(sender, 9, LIMIT, &place));
    memcpy(place, "not sent.", 9);
    EXPECT(H_OK, "", h_stream_sender_close(sender, LIMIT));
    EXPECT(H_OK, "", h_stream_receive(receiver, LIMIT, &record));
    THAT(record.number == 0 && record.length == 1000 && memcmp(record.data, data, 1000) == 0);
    EXPECT(H_INVALID, "not inside", h_stream_read(receiver, 0, 999, data, 2));
    EXPECT(H_OK, "", h_stream_read(receiver, 0, 999, data, 1));
    EXPECT(H_OK, "", h_stream_receive(receiver, LIMIT, &record));
    THAT(record.number == 1 && record.length == 0);
    EXPECT(H_OK, "", h_stream_receive(receiver, LIMIT, &record));
    THAT(record.number == 2 && record.length == 8 && memcmp(record.data, "in place", 8) == 0);
    EXPECT(H_NO_SUCH, "record 3", h_stream_release(receiver, 3));
    EXPECT(H_OK, "", h_stream_release(receiver, 1));
    EXPECT(H_NO_SUCH, "record 0", h_stream_release(receiver, 0));
    EXPECT(H_CLOSED, "it closed the connection", h_stream_receive(receiver, LIMIT, &record));
    h_stream_receiver_free(receiver);
    h_node_free(other);
}

static bool nobody_comes_in(void *context, const h_peer_t *peer) {
    ++*(int *)context;
    return peer->pid != (int64_t)getpid();
}

static void calls(void) {
    h_node_t *other = other_node();
    h_server_t *server;
    h_client_t *client = NULL, *second = NULL;
    h_request_t *request;
    h_reply_t *reply;
    h_call_t call, other_call, none;
    h_server_config_t config;
    h_seed_t seed;
    char data[16];
    const void *found;
    size_t length = 0;
    int asked = 0;
    none.bits = UINT64_MAX;
    memset(&config, 0, sizeof config);
    config.outstanding = 2;
    config.long_bytes_max = 1 << 20;
    config.clients_max = 1;
    EXPECT(H_OK, "", h_server_new(other, &config, &server));
    EXPECT(H_NOTHING, "nothing", h_server_receive(server, 0, &request));
    EXPECT(H_TIMED_OUT, "time limit", h_server_receive(server, 1000000, &request));
    EXPECT(H_OK, "", h_server_seed(server, &seed));
    EXPECT(H_OK, "", h_server_set_admission(server, nobody_comes_in, &asked));
    EXPECT(H_REFUSED, "does not let", h_client_grow(node, &seed, NULL, LIMIT, &client));
    THAT(asked == 1 && client == NULL);
    EXPECT(H_OK, "", h_server_set_admission(server, NULL, NULL));
    EXPECT(H_OK, "", h_server_serve(server, "stops", H_ACCESS_SAME_USER, 0));
    EXPECT(H_OK, "", h_server_stop_serving(server));
    EXPECT_BY_AND_BY(H_NOT_FOUND, "nothing is called stops",
                      h_client_connect(node, "stops", NULL, 0, &client));
    EXPECT(H_OK, "", h_server_seed(server, &seed));
    EXPECT(H_OK, "", h_client_grow(node, &seed, NULL, LIMIT, &client));
    EXPECT(H_LIMIT, "the server refused: it has 1 client, as many as it may (clients_max)",
           h_client_grow(node, &seed, NULL, LIMIT, &second));
    EXPECT_BY_AND_BY(H_NOT_FOUND, "no user",
                      h_client_connect(node, "no-such-user-here@x", NULL, 0, &second));
    THAT(second == NULL);
    EXPECT(H_TIMED_OUT, "", h_client_call(client, "x", 1, 1000000, data, sizeof data, &length));
    EXPECT(H_OK, "", h_server_receive(server, LIMIT, &request));
    h_request_free(request);
    EXPECT(H_OK, "", h_client_start(client, "question", 8, LIMIT, &call));
    EXPECT(H_NOTHING, "nothing", h_client_finish(client, call, 0, &reply));
    EXPECT(H_NO_SUCH, "does not exist", h_client_finish(client, none, LIMIT, &reply));
    EXPECT(H_OK, "", h_server_receive(server, LIMIT, &request));
    EXPECT(H_OK, "", h_request_data(request, &found, &length));
    THAT(length == 8 && memcmp(found, "question", 8) == 0);
    EXPECT(H_INVALID, "data is null", h_request_reply(request, NULL, 1, LIMIT));
    EXPECT(H_OK, "", h_request_reply(request, "answer", 6, LIMIT));
    EXPECT(H_OK, "", h_client_finish(client, call, LIMIT, &reply));
    EXPECT(H_OK, "", h_reply_data(reply, &found, &length));
    THAT(length == 6 && memcmp(found, "answer", 6) == 0);
    h_reply_free(reply);
    EXPECT(H_NO_SUCH, "does not exist", h_client_finish(client, call, LIMIT, &reply));
    EXPECT(H_OK, "", h_client_start(client, "question", 8, LIMIT, &call));
    EXPECT(H_OK, "", h_server_receive(server, LIMIT, &request));
    h_request_free(request);
    EXPECT(H_REFUSED, "will not reply", h_client_finish(client, call, LIMIT, &reply));
    /* A forgotten call does not exist, and keeps its place until the server has answered. */
    EXPECT(H_OK, "", h_client_start(client, "question", 8, LIMIT, &call));
    EXPECT(H_OK, "", h_client_start(client, "question", 8, LIMIT, &other_call));
    EXPECT(H_OK, "", h_client_forget(client, call));
    EXPECT(H_NO_SUCH, "does not exist", h_client_finish(client, call, 0, &reply));
    EXPECT(H_NO_SUCH, "does not exist", h_client_finish(client, call, LIMIT, &reply));
    EXPECT(H_TIMED_OUT, "no call is free within the time limit: 2 of 2 (outstanding)",
           h_client_start(client, "question", 8, 1000000, &call));
    EXPECT(H_TIMED_OUT, "no call is free within the time limit: 2 of 2 (outstanding)",
           h_client_call(client, "x", 1, 1000000, data, sizeof data, &length));
    EXPECT(H_OK, "", h_server_receive(server, LIMIT, &request));
    h_request_free(request);
    EXPECT(H_OK, "", h_client_start(client, "question", 8, LIMIT, &call));
    h_server_free(server);
    h_node_free(other);
    EXPECT(H_CLOSED, "gone", h_client_finish(client, call, LIMIT, &reply));
    EXPECT(H_CLOSED, "gone", h_client_call(client, "x", 1, LIMIT, data, sizeof data, &length));
    h_client_free(client);
    h_request_free(NULL);
    h_reply_free(NULL);
}

/* The identity of a client stays known until as many as there may be have gone after it. */
static void callers_that_have_gone(void) {
    h_node_t *other = other_node();
    h_server_t *server;
    h_client_t *client;
    h_request_t *requests[2];
    h_call_t call;
    h_peer_t peer;
    h_server_config_t config;
    h_seed_t seed;
    size_t connected, round;
    uint64_t id, misbehaved;
    EXPECT(H_OK, "", h_node_id(node, &id));
    memset(&config, 0, sizeof config);
    config.clients_max = 1;
    EXPECT(H_OK, "", h_server_new(other, &config, &server));
    EXPECT(H_OK, "", h_server_seed(server, &seed));
    for (round = 0; round < 2; round++) {
        EXPECT(H_OK, "", h_client_grow(node, &seed, NULL, LIMIT, &client));
        EXPECT(H_OK, "", h_client_start(client, "last words", 10, LIMIT, &call));
        EXPECT(H_OK, "", h_server_receive(server, LIMIT, &requests[round]));
        h_client_free(client);
        do {
            EXPECT(H_OK, "", h_server_clients(server, &connected, &misbehaved));
        } while (connected);
        EXPECT(H_OK, "", h_request_peer(requests[round], &peer));
        THAT(peer.node == id);
    }
    EXPECT(H_NO_SUCH, "long gone", h_request_peer(requests[0], &peer));
    h_request_free(requests[0]);
    h_request_free(requests[1]);
    h_server_free(server);
    h_node_free(other);
}

/* It takes nothing new, and says how many requests had no reply when the time was up. */
static void a_server_that_drains(void) {
    h_node_t *other = other_node();
    h_server_t *server;
    h_client_t *client;
    h_request_t *request, *none = NULL;
    h_reply_t *reply;
    h_call_t call;
    h_seed_t seed;
    char data[16];
    size_t length = 77;
    EXPECT(H_INVALID, "server is null", h_server_drain(NULL, LIMIT, NULL));
    EXPECT(H_OK, "", h_server_new(other, NULL, &server));
    EXPECT(H_OK, "", h_server_seed(server, &seed));
    EXPECT(H_OK, "", h_client_grow(node, &seed, NULL, LIMIT, &client));
    EXPECT(H_OK, "", h_client_start(client, "question", 8, LIMIT, &call));
    EXPECT(H_OK, "", h_server_receive(server, LIMIT, &request));
    EXPECT(H_OK, "", h_server_drain(server, 1000000, &length));
    THAT(length == 1);
    EXPECT(H_CLOSED, "", h_server_receive(server, LIMIT, &none));
    /* The fate of requests it took is unknown; those it did not take may be sent again. */
    EXPECT(H_CLOSED, "the peer is gone", h_client_finish(client, call, LIMIT, &reply));
    EXPECT(H_DRAINING, "has not taken the request",
           h_client_call(client, "x", 1, LIMIT, data, sizeof data, &length));
    EXPECT(H_DRAINING, "has not taken the request",
           h_client_call_within(client, "x", 1, LIMIT, data, sizeof data, &length));
    EXPECT(H_DRAINING, "has not taken the request",
           h_client_start(client, "x", 1, LIMIT, &call));
    /* No client could be connected to it. */
    EXPECT(H_STATE, "drains", h_server_serve(server, "drained", H_ACCESS_SAME_USER, 0));
    h_request_free(request);
    h_client_free(client);
    h_server_free(server);

    /* With nothing to be done it is done at once, and the number need not be asked for. */
    EXPECT(H_OK, "", h_server_new(other, NULL, &server));
    EXPECT(H_OK, "", h_server_drain(server, LIMIT, NULL));
    h_server_free(server);
    h_node_free(other);
}

static void groups(void) {
    h_node_t *other = other_node();
    h_group_t *group;
    h_group_member_t *member, *second = NULL;
    h_bytes_t parts[2];
    h_part_t part;
    h_seed_t seed;
    char data[64];
    const void *found;
    size_t length = 0;
    uint32_t number = 9, places = 0, lost = 9, missing[2] = {9, 9};
    memset(&part, 0xff, sizeof part);
    memset(data, 1, sizeof data);
    parts[0].data = parts[1].data = data;
    parts[0].length = parts[1].length = 8;
    EXPECT(H_OK, "", h_group_new(node, 2, 16, 8, &group));
    EXPECT(H_INVALID, "", h_group_seed_of(group, 2, &seed));
    EXPECT(H_OK, "", h_group_seed_of(group, 1, &seed));
    EXPECT(H_OK, "", h_start_progress(node));
    EXPECT(H_OK, "", h_group_member_grow(other, &seed, 8, LIMIT, &member));
    EXPECT(H_LIMIT, "taken", h_group_member_grow(other, &seed, 8, LIMIT, &second));
    EXPECT(H_OK, "", h_group_member_place(member, &number, &places, &length));
    THAT(number == 1 && places == 2 && length == 16 && second == NULL);
    EXPECT(H_TOO_LONG, "16", h_group_member_send(member, data, 17, LIMIT));
    EXPECT(H_OK, "", h_group_member_send(member, data, 16, LIMIT));
    EXPECT(H_TIMED_OUT, "missing: 0", h_group_gather(group, 100000000));
    EXPECT(H_NOTHING, "", h_group_lost(group, &lost));
    EXPECT(H_TOO_LONG, "1 are missing, and there is room for 0",
           h_group_missing(group, NULL, 0, &length));
    THAT(length == 1);
    EXPECT(H_OK, "", h_group_missing(group, missing, 2, &length));
    THAT(length == 1 && missing[0] == 0);
    EXPECT(H_OK, "", h_group_wait_for(group, 1, LIMIT));
    EXPECT(H_OK, "", h_group_part(group, 1, &found, &length));
    THAT(length == 16 && memcmp(found, data, 16) == 0);
    EXPECT(H_NOTHING, "member 0", h_group_part(group, 0, &found, &length));
    EXPECT(H_NOTHING, "member 7", h_group_part(group, 7, &found, &length));
    EXPECT(H_NOTHING, "left no member out", h_group_missing(group, missing, 2, &length));
    EXPECT(H_INVALID, "count is 1", h_group_scatter(group, parts, 1, LIMIT));
    missing[0] = missing[1] = 1;
    EXPECT(H_INVALID, "member 1 stands there twice",
           h_group_scatter_to(group, missing, parts, 2, LIMIT));
    missing[0] = 2;
    EXPECT(H_INVALID, "no 2", h_group_scatter_to(group, missing, parts, 1, LIMIT));
    EXPECT(H_OK, "", h_group_scatter_to(group, missing + 1, parts + 1, 1, LIMIT));
    EXPECT(H_OK, "", h_group_flush(group, LIMIT));
    parts[1].length = 9;
    EXPECT(H_TOO_LONG, "8", h_group_scatter(group, parts, 2, LIMIT));
    parts[1].data = NULL;
    EXPECT(H_INVALID, "a part's data", h_group_scatter(group, parts, 2, LIMIT));
    EXPECT(H_INVALID, "", h_part_length(&part, &length));
    EXPECT(H_INVALID, "count is 0", h_group_member_delegate(member, 8, LIMIT, &part, 0));
    EXPECT(H_OK, "", h_group_next_round(group));
    h_group_member_free(member);
    EXPECT(H_CLOSED, "is lost", h_group_gather(group, LIMIT));
    EXPECT(H_OK, "", h_group_lost(group, &lost));
    THAT(lost == 1);
    EXPECT(H_OK, "", h_stop_progress(node));
    h_group_free(group);
    h_node_free(other);
}

static void any_of_several(void) {
    h_node_t *other = other_node();
    h_tagged_receiver_t *tagged;
    h_tagged_sender_t *sender;
    h_server_t *server;
    h_end_point_t list[2];
    h_seed_t seed;
    size_t index = 9;
    EXPECT(H_OK, "", h_tagged_receiver_new(node, 8, 0, 0, &tagged));
    EXPECT(H_OK, "", h_server_new(node, NULL, &server));
    list[0].kind = H_KIND_CALL;
    list[0].end_point = server;
    list[1].kind = 77;
    list[1].end_point = tagged;
    EXPECT(H_INVALID, "count is 0", h_wait_any(node, list, 0, 0, &index));
    EXPECT(H_INVALID, "of kind 77", h_wait_any(node, list, 2, 0, &index));
    list[1].kind = H_KIND_TAGGED;
    EXPECT(H_NOTHING, "no end point", h_wait_any(node, list, 2, 0, &index));
    EXPECT(H_TIMED_OUT, "", h_wait_any(node, list, 2, 1000000, &index));
    EXPECT(H_INVALID, "another node", h_wait_any(other, list, 2, LIMIT, &index));
    EXPECT(H_OK, "", h_start_progress(node));
    EXPECT(H_OK, "", h_tagged_receiver_seed(tagged, &seed));
    EXPECT(H_OK, "", h_tagged_sender_grow(other, &seed, LIMIT, &sender));
    EXPECT(H_OK, "", h_tagged_send(sender, 0, "x", 1, 1, LIMIT));
    EXPECT(H_OK, "", h_wait_any(node, list, 2, LIMIT, &index));
    THAT(index == 1);
    EXPECT(H_OK, "", h_stop_progress(node));
    EXPECT(H_OK, "", h_tagged_sender_close(sender, LIMIT));
    h_tagged_receiver_free(tagged);
    h_server_free(server);
    h_node_free(other);
}

/* The largest numbers that the arguments hold: a clear refusal, and no end of the process. */
static void numbers_that_cannot_be(void) {
    h_slot_config_t slots = config_of(area, queue);
    h_stream_config_t streams;
    h_server_config_t servers;
    h_area_t no_area;
    h_queue_t no_queue;
    h_slot_t no_slot;
    h_tagged_receiver_t *tagged;
    h_datagram_receiver_t *datagram;
    h_stream_receiver_t *stream;
    h_server_t *server;
    h_group_t *group;
    uint8_t tag;
    EXPECT(H_LIMIT, "AREA_BYTES_MAX", h_area_new(node, SIZE_MAX, &no_area));
    EXPECT(H_LIMIT, "AREA_BYTES_MAX", h_send_buffer_new(node, SIZE_MAX, &tag));
    EXPECT(H_INVALID, "4294967295", h_queue_new(node, UINT32_MAX, &no_queue));
    slots.metadata_entries = UINT32_MAX;
    EXPECT(H_INVALID, "4294967295", h_slot_new(node, &slots, &no_slot));
    slots = config_of(area, queue);
    slots.credit = UINT32_MAX;
    EXPECT(H_LIMIT, "4294967295", h_slot_new(node, &slots, &no_slot));
    slots = config_of(area, queue);
    slots.base = UINT64_MAX;
    EXPECT(H_INVALID, "not inside", h_slot_new(node, &slots, &no_slot));
    EXPECT(H_LIMIT, "", h_tagged_receiver_new(node, SIZE_MAX, 0, 0, &tagged));
    EXPECT(H_LIMIT, "", h_tagged_receiver_new(node, 64, UINT32_MAX, UINT32_MAX, &tagged));
    EXPECT(H_LIMIT, "", h_datagram_receiver_new(node, SIZE_MAX, &datagram));
    memset(&streams, 0, sizeof streams);
    streams.buffer_bytes = SIZE_MAX;
    EXPECT(H_LIMIT, "buffer_bytes", h_stream_receiver_new(node, &streams, &stream));
    memset(&streams, 0, sizeof streams);
    streams.aperture_bytes = UINT64_MAX;
    EXPECT(H_LIMIT, "aperture", h_stream_receiver_new(node, &streams, &stream));
    memset(&servers, 0xff, sizeof servers);
    EXPECT(H_LIMIT, "outstanding", h_server_new(node, &servers, &server));
    EXPECT(H_LIMIT, "", h_group_new(node, UINT32_MAX, SIZE_MAX, SIZE_MAX, &group));
    EXPECT(H_LIMIT, "", h_group_new(node, 0, 1, 1, &group));
}

/* Messages sent by a process before it dies arrive; then its death is reported. */
static void a_process_that_dies(void) {
    h_stream_receiver_t *receiver;
    h_record_t record;
    h_seed_t seed;
    char text[H_SEED_TEXT_BYTES];
    int status = 0;
    EXPECT(H_OK, "", h_stream_receiver_new(node, NULL, &receiver));
    EXPECT(H_OK, "", h_stream_receiver_seed(receiver, &seed));
    EXPECT(H_OK, "", h_seed_to_text(&seed, text, sizeof text, NULL));
    start_other("dies", text);
    EXPECT(H_OK, "", h_stream_receive(receiver, LIMIT, &record));
    THAT(record.length == 4 && memcmp(record.data, "last", 4) == 0);
    EXPECT(H_DIED, "its process died", h_stream_receive(receiver, LIMIT, &record));
    THAT(waitpid(example_others[--example_other_count], &status, 0) > 0 && WIFSIGNALED(status));
    h_stream_receiver_free(receiver);
}

static void dies(const char *role, const char *text) {
    h_node_t *own;
    h_stream_sender_t *sender;
    h_seed_t seed;
    (void)role;
    CHECK(h_node_new(NULL, 0, &own));
    CHECK(h_seed_from_text(text, &seed));
    CHECK(h_stream_sender_grow(own, &seed, LIMIT, &sender));
    CHECK(h_stream_send(sender, "last", 4, LIMIT));
    CHECK(h_stream_flush(sender, LIMIT));
    raise(SIGKILL);
}

struct waiter {
    h_tagged_receiver_t *receiver;
    h_status status;
};

static void *wait_for_a_tag(void *argument) {
    struct waiter *waiter = (struct waiter *)argument;
    h_tag_t tag;
    waiter->status = h_tagged_get_tag(waiter->receiver, 300000000, &tag);
    return NULL;
}

/* While one thread waits in an end point, another's call is over when its own time is. */
static void two_threads_with_one_end_point(void) {
    struct waiter waiter;
    pthread_t thread;
    h_tag_t tag;
    EXPECT(H_OK, "", h_tagged_receiver_new(node, 64, 4, 1, &waiter.receiver));
    THAT(pthread_create(&thread, NULL, wait_for_a_tag, &waiter) == 0);
    for (int i = 0; i < 20; i++) {
        h_status status = h_tagged_get_tag(waiter.receiver, 2000000, &tag);
        THAT(status == H_TIMED_OUT);
    }
    THAT(pthread_join(thread, NULL) == 0);
    THAT(waiter.status == H_TIMED_OUT);
    h_tagged_receiver_free(waiter.receiver);
}

static void *wait_for_a_record(void *argument) {
    h_record_t record;
    EXPECT(H_OK, "", h_stream_receive((h_stream_receiver_t *)argument, H_FOREVER, &record));
    THAT(record.number == 1);
    return NULL;
}

/* While one thread waits without a limit, another releases the record that the sender waits for. */
static void a_release_beside_a_receive(void) {
    h_node_t *other = other_node();
    h_stream_receiver_t *receiver;
    h_stream_sender_t *sender;
    h_stream_config_t config;
    h_record_t record;
    h_seed_t seed;
    pthread_t thread;
    /* Too long for the places of small messages: each takes a buffer. */
    char data[400];
    void *place;
    memset(data, 5, sizeof data);
    memset(&config, 0, sizeof config);
    config.buffer_bytes = 512;
    config.record_bytes_max = 512;
    config.buffers = 1;
    config.buffers_max = 1;
    EXPECT(H_OK, "", h_stream_receiver_new(other, &config, &receiver));
    EXPECT(H_OK, "", h_stream_receiver_seed(receiver, &seed));
    EXPECT(H_OK, "", h_stream_sender_grow(node, &seed, LIMIT, &sender));
    EXPECT(H_OK, "", h_stream_send(sender, data, sizeof data, LIMIT));
    EXPECT(H_OK, "", h_stream_flush(sender, LIMIT));
    EXPECT(H_OK, "", h_stream_receive(receiver, LIMIT, &record));
    EXPECT(H_TIMED_OUT, "", h_stream_send(sender, data, sizeof data, 10000000));
    /* A record that is written in place is still there when it could not be sent. */
    EXPECT(H_OK, "", h_stream_loan(sender, sizeof data, LIMIT, &place));
    memcpy(place, data, sizeof data);
    EXPECT(H_FULL, "no room", h_stream_loan_send(sender, sizeof data, 0));
    EXPECT(H_TIMED_OUT, "", h_stream_loan_send(sender, sizeof data, 10000000));
    THAT(pthread_create(&thread, NULL, wait_for_a_record, receiver) == 0);
    /* Long enough for it to fall asleep; if it has not, the test is easier, and no less right. */
    const struct timespec a_while = {0, 50000000};
    nanosleep(&a_while, NULL);
    EXPECT(H_OK, "", h_stream_release(receiver, 0));
    EXPECT(H_OK, "", h_stream_loan_send(sender, sizeof data, LIMIT));
    EXPECT(H_OK, "", h_stream_flush(sender, LIMIT));
    THAT(pthread_join(thread, NULL) == 0);
    h_stream_sender_free(sender);
    h_stream_receiver_free(receiver);
    h_node_free(other);
}

static void *the_text_of_a_thread(void *other) {
    THAT(strcmp(h_error_message(), "") == 0);
    EXPECT(H_INVALID, "node is null", h_poll(NULL, NULL));
    THAT(strcmp((const char *)other, h_error_message()) != 0);
    return NULL;
}

static void each_thread_has_its_own_text(void) {
    pthread_t thread;
    EXPECT(H_INVALID, "seed is null", h_seed_kind(NULL, NULL));
    THAT(pthread_create(&thread, NULL, the_text_of_a_thread, (void *)h_error_message()) == 0);
    THAT(pthread_join(thread, NULL) == 0);
    THAT(strstr(h_error_message(), "seed is null") != NULL);
}

static void a_forked_child(void) {
    h_tagged_receiver_t *receiver;
    EXPECT(H_OK, "", h_tagged_receiver_new(node, 64, 4, 1, &receiver));
    EXPECT(H_OK, "", h_start_progress(node));
    /* A message waits that is the parent's. */
    uint64_t before = 0, after = 0;
    EXPECT(H_OK, "", h_counter(node, "notifications", &before));
    EXPECT(H_OK, "", h_send_msg(node, &ticket, "x", 1, NULL, 0, LIMIT, NULL));
    do {
        EXPECT(H_OK, "", h_poll(node, NULL));
        EXPECT(H_OK, "", h_counter(node, "notifications", &after));
    } while (after == before);
    h_notification_t n;
    fflush(stderr);
    pid_t pid = fork();
    if (pid == 0) {
        h_tag_t tag;
        h_node_t *own;
        failures = 0;
        EXPECT(H_FORKED, "forked", h_recv(node, queue, &n));
        EXPECT(H_FORKED, "forked", h_recv_block(node, queue, LIMIT, &n));
        EXPECT(H_FORKED, "forked", h_send_msg(node, &ticket, "x", 1, NULL, 0, LIMIT, NULL));
        EXPECT(H_FORKED, "forked", h_tagged_get_tag(receiver, LIMIT, &tag));
        h_tagged_receiver_free(receiver);
        h_node_free(node);
        EXPECT(H_OK, "", h_node_new(NULL, 0, &own));
        EXPECT(H_OK, "", h_close(own, LIMIT, NULL));
        /* The child has no use for memory of the parent's threads; a leak checker need not look. */
        execl(failures ? "/bin/false" : "/bin/true", "end", (char *)NULL);
        _exit(2);
    }
    int status = -1;
    THAT(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    EXPECT(H_OK, "", h_stop_progress(node));
    EXPECT(H_OK, "", h_recv(node, queue, &n));
    EXPECT(H_NOTHING, "no message has arrived", h_recv(node, queue, &n));
    h_tagged_receiver_free(receiver);
}

static void counters_and_texts(void) {
    h_counter_t counters[200];
    size_t count = 0;
    EXPECT(H_TOO_LONG, "room for 1", h_counters(node, counters, 1, &count));
    THAT(count > 20 && count < 200);
    EXPECT(H_OK, "", h_counters(node, counters, 200, &count));
    THAT(strcmp(h_version(), "") != 0);
    THAT(strcmp(h_status_name(H_TIMED_OUT), "H_TIMED_OUT") == 0);
    THAT(strcmp(h_status_name(12345), "(no h_status)") == 0);
    bool may_wait = false;
    int fd = -1;
    while (h_prepare_to_wait(node, &may_wait) == H_OK && !may_wait) {
        h_poll(node, NULL);
    }
    EXPECT(H_OK, "", h_fd(node, &fd));
    THAT(fd >= 0);
}

static void everything(void) {
    h_slot_config_t config;
    a_node_without_its_arguments();
    EXPECT(H_OK, "", h_node_new(NULL, 0, &node));
    EXPECT(H_OK, "", h_area_new(node, 4096, &area));
    EXPECT(H_OK, "", h_queue_new(node, 64, &queue));
    config = config_of(area, queue);
    config.credit = 16;
    EXPECT(H_OK, "", h_slot_new(node, &config, &slot));
    EXPECT(H_OK, "", h_ticket(node, slot, 0, &ticket));
    null_arguments_are_named();
    another_host();
    what_is_not_there();
    bytes_outside();
    tickets_that_are_none();
    messages_to_oneself();
    messages_that_leave_at_once();
    seeds_that_are_none();
    a_receiver_that_goes();
    datagrams();
    streams();
    calls();
    callers_that_have_gone();
    a_server_that_drains();
    groups();
    any_of_several();
    numbers_that_cannot_be();
    a_process_that_dies();
    two_threads_with_one_end_point();
    a_release_beside_a_receive();
    each_thread_has_its_own_text();
    a_forked_child();
    counters_and_texts();
    EXPECT(H_OK, "", h_slot_free(node, slot));
    EXPECT(H_OK, "", h_queue_free(node, queue));
    EXPECT(H_OK, "", h_area_free(node, area));
    EXPECT(H_OK, "", h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    int failed = run(argc, argv, everything, dies);
    return failed || failures != 0;
}
