/*
 * A program with unusual limits, descriptors and processes: no call of the library ends it by a
 * signal, waits for ever, or touches what the program has made since.
 */
#include "that.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

enum { LENGTH = 8 << 20, HIGHEST = 64 };

static void may_write(rlim_t bytes) {
    struct rlimit limit;
    THAT(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    THAT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void *replies(void *server) {
    h_request_t *request;
    char *reply = (char *)calloc(1, LENGTH);
    CHECK(h_server_receive((h_server_t *)server, LIMIT, &request));
    CHECK(h_request_reply(request, reply, LENGTH, LIMIT));
    free(reply);
    return NULL;
}

/* Beyond the limit on the size of a file the kernel ends a process by SIGXFSZ. */
static void file_size(void) {
    h_node_t *node, *other;
    h_link_t link;
    h_server_t *server;
    h_client_t *client;
    h_call_t call;
    h_reply_t *reply;
    const void *data;
    size_t length;
    pthread_t thread;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_node_new(NULL, 0, &other));
    CHECK(h_server_new(node, NULL, &server));
    CHECK(h_server_serve(server, "server", H_ACCESS_SAME_USER, 0));
    CHECK(h_serve(node, "plain", H_ACCESS_SAME_USER, 0, NULL, 0));
    CHECK(h_start_progress(node));
    may_write(0);
    THAT(h_connect(other, "plain", NULL, 0, LIMIT, &link) == H_SYSTEM);
    THAT(strstr(h_error_message(), "RLIMIT_FSIZE") != NULL);
    /* No bulk ring then. */
    may_write(64 << 10);
    THAT(pthread_create(&thread, NULL, replies, server) == 0);
    CHECK(h_client_connect(other, "server", NULL, LIMIT, &client));
    CHECK(h_client_start(client, "?", 1, LIMIT, &call));
    CHECK(h_client_finish(client, call, LIMIT, &reply));
    CHECK(h_reply_data(reply, &data, &length));
    THAT(length == LENGTH);
    h_reply_free(reply);
    pthread_join(thread, NULL);
    may_write(RLIM_INFINITY);
    CHECK(h_client_close(client, LIMIT));
    CHECK(h_server_close(server, LIMIT));
    CHECK(h_close(other, LIMIT, NULL));
    CHECK(h_close(node, LIMIT, NULL));
}

/* Waits for a child that ends by itself. */
static void ends_well(pid_t child) {
    int status;
    THAT(child > 0 && waitpid(child, &status, 0) == child);
    THAT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Ends a child. Memory of threads that it does not have, or that sleep on, is no leak to be told of. */
static void leave(void) {
    execl("/bin/true", "true", (char *)NULL);
    _exit(1);
}

/* A child that closes everything, like daemons, and opens its own files, frees its inheritance. */
static void forked(void) {
    h_node_t *node;
    pid_t child;
    int number;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_start_progress(node));
    child = fork();
    if (child == 0) {
        alarm(60);
        for (number = 3; number < HIGHEST; number++) {
            close(number);
        }
        while ((number = open("/dev/null", O_RDONLY)) < HIGHEST - 1) {
            THAT(number >= 3);
        }
        h_node_free(node);
        for (number = 3; number < HIGHEST; number++) {
            THAT(fcntl(number, F_GETFD) == 0);
        }
        leave();
    }
    ends_well(child);
    CHECK(h_serve(node, "still", H_ACCESS_SAME_USER, 0, NULL, 0));
    CHECK(h_close(node, LIMIT, NULL));
}

/* A program that puts others in the place of the library's descriptors closes its node in time. */
static void lost(void) {
    pid_t child = fork();
    if (child == 0) {
        h_node_t *node;
        int number, null = open("/dev/null", O_RDWR);
        CHECK(h_node_new(NULL, 0, &node));
        CHECK(h_serve(node, "lost", H_ACCESS_SAME_USER, 0, NULL, 0));
        for (number = 3; number < HIGHEST; number++) {
            THAT(number == null || dup2(null, number) == number);
        }
        alarm(60);
        h_close(node, 1000 * 1000 * 1000, NULL);
        leave();
    }
    ends_well(child);
}

static void first(void) {
    file_size();
    forked();
    lost();
}

static void none(const char *role, const char *text) {
    (void)role, (void)text;
}

int main(int argc, char **argv) {
    return run(argc, argv, first, none);
}
