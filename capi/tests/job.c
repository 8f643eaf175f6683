/*
 * A job of one rank, which grows every kind of end point from itself; and the refusals. Jobs of
 * several ranks are the examples job_*.c.
 */
#include "that.h"

#define REFUSED(status, words, call)                                                               \
    do {                                                                                           \
        h_status found = (call);                                                                   \
        if (found != (status) || !strstr(h_error_message(), (words))) {                            \
            fprintf(stderr, "line %d: %s is %s (%s), and should be %s (..%s..)\n", __LINE__,       \
                    #call, h_status_name(found), h_error_message(), h_status_name(status), words); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static h_job_t *job;
static h_node_t *node;

/* Nobody offers this: each time the time is up, and once there was time to connect it is said for what,
   which takes a while on a busy machine. */
#define NOBODY_OFFERS(name, call)                                                                  \
    do {                                                                                           \
        int64_t limit = 20 * 1000 * 1000;                                                          \
        h_status last;                                                                             \
        while ((last = (call)) == H_TIMED_OUT && !strstr(h_error_message(), (name))) {             \
            THAT(limit < LIMIT);                                                                   \
            limit *= 4;                                                                            \
        }                                                                                          \
        REFUSED(H_TIMED_OUT, (name), last);                                                        \
    } while (0)

static void what_there_is_from_the_start(void) {
    uint32_t number = 9;
    bool is_local = false;
    h_job_t *again;
    h_node_t *other;
    uint64_t id, same;
    char text[1024];
    size_t length;
    CHECK(h_job_rank(job, &number));
    THAT(number == 0);
    CHECK(h_job_size(job, &number));
    THAT(number == 1);
    CHECK(h_job_launcher(job, &number));
    THAT(number == H_LAUNCHER_NONE);
    CHECK(h_job_is_local(job, 0, &is_local));
    THAT(is_local);
    REFUSED(H_INVALID, "rank 1", h_job_is_local(job, 1, &is_local));
    CHECK(h_job_explain(job, text, sizeof text, &length));
    THAT(strlen(text) == length && strstr(text, "rank 0 of 1"));
    REFUSED(H_TOO_LONG, "", h_job_explain(job, text, 4, &length));
    /* The same job and the same node, if they are asked for again. */
    CHECK(h_job_open(NULL, 0, &again));
    CHECK(h_job_node(again, &other));
    CHECK(h_node_id(node, &id));
    CHECK(h_node_id(other, &same));
    THAT(id == same);
    h_node_free(other);
    h_job_free(again);
    h_job_free(NULL);
}

static void bytes_through_the_launcher(void) {
    char bytes[16];
    size_t length = 9;
    CHECK(h_job_put(job, "x", "four", 4));
    CHECK(h_job_put(job, "none", NULL, 0));
    REFUSED(H_IN_USE, "\"x\" already", h_job_put(job, "x", "five", 4));
    REFUSED(H_INVALID, "a-z A-Z", h_job_put(job, "a b", "x", 1));
    static char long_bytes[40000];
    REFUSED(H_TOO_LONG, "40000", h_job_put(job, "long", long_bytes, sizeof long_bytes));
    CHECK(h_job_fence(job, LIMIT));
    CHECK(h_job_get(job, 0, "x", bytes, sizeof bytes, &length));
    THAT(length == 4 && memcmp(bytes, "four", 4) == 0);
    CHECK(h_job_get(job, 0, "none", NULL, 0, &length));
    THAT(length == 0);
    REFUSED(H_TOO_LONG, "", h_job_get(job, 0, "x", bytes, 3, &length));
    THAT(length == 4);
    REFUSED(H_NO_SUCH, "\"y\"", h_job_get(job, 0, "y", bytes, sizeof bytes, &length));
    REFUSED(H_INVALID, "rank 7", h_job_get(job, 7, "x", bytes, sizeof bytes, &length));
    REFUSED(H_INVALID, "job is null", h_job_put(NULL, "x", "x", 1));
    REFUSED(H_INVALID, "name is null", h_job_put(job, NULL, "x", 1));
}

static void streams_and_calls(void) {
    h_stream_receiver_t *from, *second;
    h_stream_sender_t *to;
    h_record_t record;
    CHECK(h_job_stream_from(job, 0, &from));
    REFUSED(H_IN_USE, "from-0", h_job_stream_from(job, 0, &second));
    CHECK(h_job_stream_to(job, 0, LIMIT, &to));
    CHECK(h_stream_send(to, "hello", 5, LIMIT));
    CHECK(h_stream_flush(to, LIMIT));
    CHECK(h_stream_receive(from, LIMIT, &record));
    THAT(record.length == 5 && memcmp(record.data, "hello", 5) == 0);
    h_stream_sender_free(to);
    h_stream_receiver_free(from);

    h_server_t *server;
    h_client_t *client;
    NOBODY_OFFERS("calls", h_job_client(job, 0, limit, &client));
    CHECK(h_job_server(job, &server));
    CHECK(h_job_client(job, 0, LIMIT, &client));
    h_client_free(client);
    h_server_free(server);
}

static void every_kind_is_offered_and_grown(void) {
    h_tagged_receiver_t *tagged;
    h_tagged_sender_t *tagged_sender;
    CHECK(h_tagged_receiver_new(node, 64, 0, 0, &tagged));
    CHECK(h_tagged_receiver_offer(tagged, job, "all"));
    CHECK(h_tagged_sender_grow_from(job, 0, "all", LIMIT, &tagged_sender));
    h_tagged_sender_free(tagged_sender);
    h_tagged_receiver_free(tagged);

    h_datagram_receiver_t *datagrams;
    h_datagram_sender_t *datagram_sender;
    CHECK(h_datagram_receiver_new(node, 64, &datagrams));
    CHECK(h_datagram_receiver_offer(datagrams, job, "all"));
    CHECK(h_datagram_sender_grow_from(job, 0, "all", LIMIT, &datagram_sender));
    h_datagram_sender_free(datagram_sender);
    h_datagram_receiver_free(datagrams);

    h_stream_receiver_t *stream;
    h_stream_sender_t *sender;
    CHECK(h_stream_receiver_new(node, NULL, &stream));
    CHECK(h_stream_receiver_offer(stream, job, "all"));
    CHECK(h_stream_sender_grow_from(job, 0, "all", LIMIT, &sender));
    h_stream_sender_free(sender);
    h_stream_receiver_free(stream);
    h_stream_config_t config;
    memset(&config, 0, sizeof config);
    config.aperture_bytes = 65536;
    CHECK(h_stream_receiver_new(node, &config, &stream));
    CHECK(h_stream_receiver_offer(stream, job, "all"));
    CHECK(h_stream_sender_grow_from_with_aperture(job, 0, "all", LIMIT, &sender));
    h_stream_sender_free(sender);
    h_stream_receiver_free(stream);

    h_server_t *server;
    h_client_t *client;
    CHECK(h_server_new(node, NULL, &server));
    CHECK(h_server_offer(server, job, "all"));
    CHECK(h_client_grow_from(job, 0, "all", NULL, LIMIT, &client));
    h_client_free(client);
    h_server_free(server);

    h_group_t *group;
    h_group_member_t *member;
    h_group_helper_t *helper;
    CHECK(h_group_new(node, 1, 8, 0, &group));
    CHECK(h_group_offer(group, job, "all"));
    CHECK(h_group_member_grow_from(job, 0, "all", 8, LIMIT, &member));
    CHECK(h_group_helper_grow_from(job, 0, "all", LIMIT, &helper));
    h_group_helper_free(helper);
    h_group_member_free(member);
    h_group_free(group);

    h_publisher_t *publisher;
    h_subscriber_t *subscriber;
    CHECK(h_publisher_new(node, NULL, &publisher));
    CHECK(h_publisher_offer(publisher, job, "all"));
    CHECK(h_subscriber_grow_from(job, 0, "all", NULL, LIMIT, &subscriber));
    h_subscriber_free(subscriber);
    h_publisher_free(publisher);

    h_byte_listener_t *listener;
    h_byte_stream_t *bytes;
    CHECK(h_byte_listener_new(node, NULL, &listener));
    CHECK(h_byte_listener_offer(listener, job, "all"));
    CHECK(h_byte_stream_grow_from(job, 0, "all", NULL, LIMIT, &bytes));
    h_byte_stream_free(bytes);
    h_byte_listener_free(listener);
}

static void seeds_and_what_is_refused(void) {
    h_stream_receiver_t *stream, *foreign;
    h_stream_sender_t *sender = NULL;
    h_node_t *other;
    h_seed_t seed;
    CHECK(h_job_seed_of(job, 0, H_KIND_STREAM, "seed", &seed));
    REFUSED(H_INVALID, "kind is 8", h_job_seed_of(job, 0, 8, "seed", &seed));
    REFUSED(H_INVALID, "rank 1", h_job_seed_of(job, 1, H_KIND_STREAM, "seed", &seed));
    /* Before it is offered the seed leads nowhere. */
    REFUSED(H_REFUSED, "", h_stream_sender_grow(node, &seed, LIMIT, &sender));
    CHECK(h_stream_receiver_new(node, NULL, &stream));
    CHECK(h_stream_receiver_offer(stream, job, "seed"));
    REFUSED(H_IN_USE, "\"seed\"", h_stream_receiver_offer(stream, job, "seed"));
    REFUSED(H_INVALID, "a-z A-Z", h_stream_receiver_offer(stream, job, "a b"));
    CHECK(h_stream_sender_grow(node, &seed, LIMIT, &sender));
    h_stream_sender_free(sender);
    sender = NULL;
    NOBODY_OFFERS("\"none\"", h_stream_sender_grow_from(job, 0, "none", limit, &sender));
    REFUSED(H_INVALID, "rank 3", h_stream_sender_grow_from(job, 3, "seed", LIMIT, &sender));
    THAT(sender == NULL);
    CHECK(h_node_new(NULL, 0, &other));
    CHECK(h_stream_receiver_new(other, NULL, &foreign));
    REFUSED(H_INVALID, "job's manager", h_stream_receiver_offer(foreign, job, "other"));
    h_stream_receiver_free(foreign);
    h_node_free(other);
    h_stream_receiver_free(stream);
}

static void a_forked_child_is_no_rank(void) {
    pid_t pid = fork();
    THAT(pid >= 0);
    if (pid == 0) {
        uint32_t rank;
        int is_so = h_job_rank(job, &rank) == H_FORKED && h_job_fence(job, LIMIT) == H_FORKED;
        h_job_free(job);
        /* A leak checker need not look. */
        execl(is_so ? "/bin/true" : "/bin/false", "end", (char *)NULL);
        _exit(2);
    }
    int status;
    THAT(waitpid(pid, &status, 0) == pid && status == 0);
}

static void a_launcher_that_is_none_is_an_error(void) {
    h_job_t *none = NULL;
    h_setting_t setting;
    setting.name = "ring_bites";
    setting.value = "64K";
    REFUSED(H_INVALID, "ring_bites", h_job_open(&setting, 1, &none));
    REFUSED(H_INVALID, "job is null", h_job_open(NULL, 0, NULL));
    setenv("HAMLYN_JOB_FD", "x", 1);
    REFUSED(H_INVALID, "HAMLYN_JOB_FD", h_job_open(NULL, 0, &none));
    unsetenv("HAMLYN_JOB_FD");
    THAT(none == NULL);
}

static void first(void) {
    a_launcher_that_is_none_is_an_error();
    CHECK(h_job_open(NULL, 0, &job));
    CHECK(h_job_node(job, &node));
    what_there_is_from_the_start();
    bytes_through_the_launcher();
    streams_and_calls();
    every_kind_is_offered_and_grown();
    seeds_and_what_is_refused();
    a_forked_child_is_no_rank();
    h_node_free(node);
    h_job_free(job);
}

static void other(const char *role, const char *text) {
    (void)role, (void)text;
}

int main(int argc, char **argv) {
    return run(argc, argv, first, other);
}
