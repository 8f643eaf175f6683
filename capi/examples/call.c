/*
 * Requests and replies: a server with two threads, and a client with many calls at a time.
 */
#include "common.h"

#include <pthread.h>

enum { CALLS = 100, THREADS = 2 };

static h_server_t *server;

/* Each thread takes whichever request comes next, until none has come for a while. */
static void *serve(void *argument) {
    int *replied = (int *)argument;
    for (;;) {
        h_request_t *request;
        const void *data;
        size_t length;
        char reply[64];
        h_status status = h_server_receive(server, LIMIT, &request);
        if (status != H_OK) {
            return NULL;
        }
        CHECK(h_request_data(request, &data, &length));
        if (length == 0) {
            CHECK(h_request_reply(request, NULL, 0, LIMIT));
            return NULL;
        }
        int number = atoi((const char *)data);
        int n = snprintf(reply, sizeof reply, "%d", number * number);
        CHECK(h_request_reply(request, reply, (size_t)n + 1, LIMIT));
        ++*replied;
    }
}

static void receiver(void) {
    h_node_t *node;
    pthread_t threads[THREADS];
    int replied[THREADS] = {0};
    int sum = 0;
    CHECK(h_node_new(NULL, 0, &node));
    h_server_config_t config;
    memset(&config, 0, sizeof config);
    config.outstanding = CALLS;
    CHECK(h_server_new(node, &config, &server));
    CHECK(h_server_serve(server, "squares", H_ACCESS_SAME_USER, 0));
    start_other("client", "squares");
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, serve, &replied[i])) {
            exit(1);
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += replied[i];
    }
    printf("%d requests, by %d threads\n", sum, THREADS);
    CHECK(h_server_close(server, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
    if (sum != CALLS + 1) {
        exit(1);
    }
}

static void client(const char *role, const char *name) {
    (void)role;
    h_node_t *node;
    h_client_t *client;
    h_client_config_t config;
    h_call_t calls[CALLS];
    char text[64], reply[64];
    size_t length;
    memset(&config, 0, sizeof config);
    config.outstanding = CALLS;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_client_connect(node, name, &config, LIMIT, &client));

    /* One at a time .. */
    CHECK(h_client_call(client, "12", 3, LIMIT, reply, sizeof reply, &length));
    printf("12 times 12 is %s\n", reply);

    /* .. and many. */
    for (int i = 0; i < CALLS; i++) {
        int n = snprintf(text, sizeof text, "%d", i);
        CHECK(h_client_start(client, text, (size_t)n + 1, LIMIT, &calls[i]));
    }
    for (int i = CALLS - 1; i >= 0; i--) {
        h_reply_t *answer;
        const void *data;
        CHECK(h_client_finish(client, calls[i], LIMIT, &answer));
        CHECK(h_reply_data(answer, &data, NULL));
        if (atoi((const char *)data) != i * i) {
            fprintf(stderr, "%d times %d is not %s\n", i, i, (const char *)data);
            exit(1);
        }
        h_reply_free(answer);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(h_client_call(client, NULL, 0, LIMIT, NULL, 0, NULL));
    }
    CHECK(h_client_close(client, LIMIT));
    CHECK(h_close(node, LIMIT, NULL));
}

int main(int argc, char **argv) {
    return run(argc, argv, receiver, client);
}
