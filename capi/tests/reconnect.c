/*
 * A client that connects again: servers that drain and go, calls that wait for the next server or do
 * not, outages that end. All are nodes of this process, each with a progress thread.
 */
#include "that.h"

#include <pthread.h>
#include <time.h>

static h_node_t *there, *here;

/* Answers with the request until it drains; returns how often. */
static void *serve(void *argument) {
    h_server_t *server = (h_server_t *)argument;
    h_request_t *request;
    h_status status;
    size_t *answered = (size_t *)calloc(1, sizeof *answered);
    while ((status = h_server_receive(server, LIMIT, &request)) == H_OK) {
        const void *data;
        size_t length;
        CHECK(h_request_data(request, &data, &length));
        CHECK(h_request_reply(request, data, length, LIMIT));
        ++*answered;
    }
    THAT(status == H_CLOSED);
    return answered;
}

static h_server_t *serving(pthread_t *thread) {
    h_server_t *server;
    CHECK(h_server_new(there, NULL, &server));
    CHECK(h_server_serve(server, "again", H_ACCESS_SAME_USER, 0));
    THAT(pthread_create(thread, NULL, serve, server) == 0);
    return server;
}

static size_t end(h_server_t *server, pthread_t thread) {
    void *answered;
    size_t unanswered, count;
    CHECK(h_server_drain(server, LIMIT, &unanswered));
    THAT(unanswered == 0 && pthread_join(thread, &answered) == 0);
    count = *(size_t *)answered;
    free(answered);
    h_server_free(server);
    return count;
}

static void echoes(h_reconnecting_client_t *client, uint32_t is_idempotent) {
    h_reply_t *reply;
    const void *data;
    size_t length;
    CHECK(h_reconnecting_client_call(client, "again", 5, LIMIT, is_idempotent, &reply));
    CHECK(h_reply_data(reply, &data, &length));
    THAT(length == 5 && memcmp(data, "again", 5) == 0);
    h_reply_free(reply);
}

static int is_in(h_reconnecting_client_t *client, h_connection_state wanted, uint64_t connection) {
    h_connection_state state;
    uint64_t number;
    char why[512];
    size_t length;
    CHECK(h_reconnecting_client_state(client, &state, &number));
    CHECK(h_reconnecting_client_why(client, why, sizeof why, &length));
    THAT((length == 0) == (state == H_CONNECTED) && strlen(why) == length);
    return state == wanted && number == connection;
}

int main(void) {
    h_reconnecting_client_t *client, *hasty;
    h_reconnect_policy_t policy;
    h_connection_state state;
    h_reply_t *reply = NULL;
    h_server_t *server;
    pthread_t thread;
    uint64_t number;

    memset(&policy, 0, sizeof policy);
    policy.first_delay_ns = policy.delay_max_ns = policy.attempt_limit_ns = 1000000;
    policy.attempts_max = 2;
    policy.calls_fail = 1;
    CHECK(h_node_new(NULL, 0, &there));
    CHECK(h_node_new(NULL, 0, &here));
    CHECK(h_start_progress(there));
    THAT(h_reconnecting_client_connect(here, "again", NULL, NULL, 1000000, &client) == H_NOT_FOUND);
    THAT(h_reconnecting_client_connect(here, "a/b", NULL, NULL, LIMIT, &client) == H_INVALID);
    THAT(h_reconnecting_client_connect(here, NULL, NULL, NULL, LIMIT, &client) == H_INVALID);

    server = serving(&thread);
    CHECK(h_reconnecting_client_connect(here, "again", NULL, NULL, LIMIT, &client));
    CHECK(h_reconnecting_client_connect(here, "again", NULL, &policy, LIMIT, &hasty));
    echoes(client, 0);
    echoes(hasty, 1);
    THAT(is_in(client, H_CONNECTED, 1) && is_in(hasty, H_CONNECTED, 1));
    THAT(h_reconnecting_client_call(client, "again", 5, LIMIT, 0, NULL) == H_INVALID);
    THAT(h_reconnecting_client_call(NULL, "again", 5, LIMIT, 0, &reply) == H_INVALID);
    THAT(end(server, thread) == 2);

    /* The name has no server: the request is not sent. */
    THAT(h_reconnecting_client_call(client, "never", 5, 1000000, 1, &reply) == H_UNREACHABLE);
    THAT(is_in(client, H_RECONNECTING, 1));
    THAT(h_reconnecting_client_call(hasty, "never", 5, LIMIT, 1, &reply) == H_UNREACHABLE);
    do {
        /* The thread that connects is to run, also where threads run by turns. */
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
        CHECK(h_reconnecting_client_state(hasty, &state, &number));
    } while (state != H_GIVEN_UP);
    THAT(number == 1 && reply == NULL);

    /* The next has them, but for a client that has given up. */
    server = serving(&thread);
    echoes(client, 0);
    THAT(is_in(client, H_CONNECTED, 2));
    THAT(h_reconnecting_client_call(hasty, "never", 5, LIMIT, 1, &reply) == H_UNREACHABLE);
    THAT(is_in(hasty, H_GIVEN_UP, 1));
    THAT(end(server, thread) == 1);

    /* One thread alone drains, and a server that is freed with a request held has no name any more. */
    {
        h_client_t *caller;
        h_call_t call, late;
        h_request_t *request, *none;
        h_status status;
        size_t unanswered = 1;
        CHECK(h_server_new(there, NULL, &server));
        CHECK(h_server_serve(server, "again", H_ACCESS_SAME_USER, 0));
        CHECK(h_client_connect(here, "again", NULL, LIMIT, &caller));
        CHECK(h_client_start(caller, "held", 4, LIMIT, &call));
        CHECK(h_server_receive(server, LIMIT, &request));
        CHECK(h_server_begin_drain(server));
        THAT(h_server_receive(server, LIMIT, &none) == H_CLOSED);
        CHECK(h_client_start(caller, "late", 4, LIMIT, &late));
        /* As a loop does, which goes on receiving. */
        do {
            THAT(h_server_receive(server, 0, &none) == H_CLOSED);
            status = h_client_finish(caller, late, 1000000, &reply);
        } while (status == H_TIMED_OUT);
        THAT(status == H_DRAINING);
        CHECK(h_request_reply(request, "done", 4, LIMIT));
        CHECK(h_client_finish(caller, call, LIMIT, &reply));
        h_reply_free(reply);
        CHECK(h_server_drain(server, LIMIT, &unanswered));
        THAT(unanswered == 0);
        h_server_free(server);
        h_client_free(caller);

        CHECK(h_server_new(there, NULL, &server));
        CHECK(h_server_serve(server, "again", H_ACCESS_SAME_USER, 0));
        CHECK(h_client_connect(here, "again", NULL, LIMIT, &caller));
        CHECK(h_client_start(caller, "held", 4, LIMIT, &call));
        CHECK(h_server_receive(server, LIMIT, &request));
        h_server_free(server);
        CHECK(h_server_new(there, NULL, &server));
        CHECK(h_server_serve(server, "again", H_ACCESS_SAME_USER, 0));
        CHECK(h_request_reply(request, "kept", 4, LIMIT));
        CHECK(h_client_finish(caller, call, LIMIT, &reply));
        h_reply_free(reply);
        h_server_free(server);
        h_client_free(caller);
    }

    h_reconnecting_client_free(client);
    h_reconnecting_client_free(hasty);
    h_reconnecting_client_free(NULL);
    CHECK(h_close(here, LIMIT, NULL));
    CHECK(h_close(there, LIMIT, NULL));
    return 0;
}
