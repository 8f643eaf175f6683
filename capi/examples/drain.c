/*
 * A server that ends on SIGTERM without losing a call: what it has taken it answers, and who calls
 * afterwards is told that the request was not taken.
 */
#include "common.h"

#include <pthread.h>
#include <signal.h>

enum { THREADS = 2, AT_ONCE = 8, ROUNDS = 100 };

static h_server_t *server;

/* Until the server drains and nothing is left to be received. */
static void *serve(void *argument) {
    h_request_t *request;
    h_status status;
    (void)argument;
    while ((status = h_server_receive(server, H_FOREVER, &request)) == H_OK) {
        CHECK(h_request_reply(request, "done", 4, LIMIT));
    }
    if (status != H_CLOSED) {
        CHECK(status);
    }
    return NULL;
}

static void receiver(void) {
    h_node_t *node;
    pthread_t threads[THREADS];
    sigset_t ends;
    size_t unanswered = 1;
    int signal_number;
    /* Before h_node_new: the library's threads, and those below, have it blocked, too. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);

    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_server_new(node, NULL, &server));
    CHECK(h_server_serve(server, "work", H_ACCESS_SAME_USER, 0));
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, serve, NULL)) {
            exit(1);
        }
    }
    start_other("client", "work");

    sigwait(&ends, &signal_number);
    CHECK(h_server_drain(server, LIMIT, &unanswered));
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("SIGTERM: drained, and %d calls have no reply\n", (int)unanswered);
    h_server_free(server);
    CHECK(h_close(node, LIMIT, NULL));
    if (unanswered != 0) {
        exit(1);
    }
}

/* Calls on and on; some are under way as the server is told to end. */
static void client(const char *role, const char *name) {
    h_node_t *node;
    h_client_t *client;
    h_peer_t peer;
    h_call_t calls[AT_ONCE];
    int done = 0, not_taken = 0;
    (void)role;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_client_connect(node, name, NULL, LIMIT, &client));
    CHECK(h_client_peer(client, &peer));
    for (int round = 0; not_taken == 0; round++) {
        int started = 0;
        while (started < AT_ONCE) {
            h_status status = h_client_start(client, "work", 4, LIMIT, &calls[started]);
            if (status == H_DRAINING) {
                not_taken++;
                break;
            }
            CHECK(status);
            started++;
        }
        if (round == ROUNDS && kill((pid_t)peer.pid, SIGTERM)) {
            exit(1);
        }
        for (int i = 0; i < started; i++) {
            h_reply_t *reply;
            h_status status = h_client_finish(client, calls[i], LIMIT, &reply);
            if (status == H_DRAINING) {
                not_taken++;
                continue;
            }
            /* Nothing else: what was taken is answered. */
            CHECK(status);
            h_reply_free(reply);
            done++;
        }
    }
    printf("%d calls answered, %d to be sent to the next server\n", done, not_taken);
    h_client_free(client);
    CHECK(h_close(node, LIMIT, NULL));
    if (done < ROUNDS * AT_ONCE) {
        exit(1);
    }
}

int main(int argc, char **argv) {
    return run(argc, argv, receiver, client);
}
