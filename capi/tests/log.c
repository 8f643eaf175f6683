/*
 * A program's log function gets links that come and go and refused peers, with the reason. Both
 * ends are nodes of this process; the calls come from threads of the library.
 */
#include "that.h"

#include <pthread.h>
#include <time.h>

static struct {
    pthread_mutex_t lock;
    int connected, closed, others;
} heard = {PTHREAD_MUTEX_INITIALIZER, 0, 0, 0};

static void hear(void *context, const h_log_entry_t *entry) {
    THAT(context == &heard);
    THAT(strstr(entry->text, entry->kind) == entry->text);
    pthread_mutex_lock(&heard.lock);
    if (strcmp(entry->kind, "connected") == 0) {
        heard.connected++;
        THAT(entry->level == H_LOG_INFO && entry->process == getpid() && entry->user == getuid());
        THAT(strcmp(entry->service, "log") == 0);
    } else if (strcmp(entry->kind, "closed") == 0) {
        heard.closed++;
        THAT(strcmp(entry->reason, "") == 0);
    } else {
        heard.others++;
        fprintf(stderr, "%s\n", entry->text);
    }
    pthread_mutex_unlock(&heard.lock);
}

static int count_of(const int *count) {
    int found;
    pthread_mutex_lock(&heard.lock);
    found = *count;
    pthread_mutex_unlock(&heard.lock);
    return found;
}

static void until(const int *count, int wanted) {
    const struct timespec pause = {0, 1000 * 1000};
    int tries;
    for (tries = 0; count_of(count) < wanted; tries++) {
        THAT(tries < 20000);
        nanosleep(&pause, NULL);
    }
}

static void first(void) {
    h_node_t *server, *client;
    h_link_t link;
    CHECK(h_set_log(hear, &heard));
    CHECK(h_node_new(NULL, 0, &server));
    CHECK(h_serve(server, "log", H_ACCESS_SAME_USER, 0, NULL, 0));
    CHECK(h_node_new(NULL, 0, &client));
    CHECK(h_connect(client, "log", NULL, 0, LIMIT, &link));
    /* Each end gets it. */
    until(&heard.connected, 2);
    h_node_free(client);
    until(&heard.closed, 1);
    CHECK(h_set_log(NULL, NULL));
    CHECK(h_node_new(NULL, 0, &client));
    CHECK(h_connect(client, "log", NULL, 0, LIMIT, &link));
    h_node_free(client);
    h_node_free(server);
    THAT(heard.connected == 2 && heard.others == 0);
}

static void none(const char *role, const char *text) {
    (void)role, (void)text;
}

int main(int argc, char **argv) {
    return run(argc, argv, first, none);
}
