/*
 * A program's own directory of services on other hosts. Both hosts are nodes of this process;
 * threads of the library call the function.
 */
#include "that.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

static struct {
    pthread_mutex_t lock;
    const char *at;
    int looks, releases;
    int lets_go;
} book = {PTHREAD_MUTEX_INITIALIZER, NULL, 0, 0, 0};

static int change(int *value, int by) {
    int found;
    pthread_mutex_lock(&book.lock);
    *value += by;
    found = *value;
    pthread_mutex_unlock(&book.lock);
    return found;
}

static void until(int *value) {
    const struct timespec pause = {0, 1000 * 1000};
    int tries;
    for (tries = 0; change(value, 0) == 0; tries++) {
        THAT(tries < 60000);
        nanosleep(&pause, NULL);
    }
}

/* The first look finds no host; the second an address without a listener, and the service. */
static bool look_up(void *context, const char *service, int64_t timeout_ns, h_places_t *places) {
    THAT(context == &book && strcmp(service, "far") == 0);
    THAT(timeout_ns > 0 && timeout_ns <= LIMIT);
    if (change(&book.looks, 1) > 1) {
        THAT(h_places_add(places, "nowhere") == H_INVALID);
        THAT(strstr(h_error_message(), "\"nowhere\" is not host:port") != NULL);
        THAT(h_places_add(NULL, "a:1") == H_INVALID && h_places_add(places, NULL) == H_INVALID);
        CHECK(h_places_add(places, "127.0.0.1:1"));
        CHECK(h_places_add(places, book.at));
    }
    return true;
}

static bool fail(void *context, const char *service, int64_t timeout_ns, h_places_t *places) {
    int i;
    (void)context, (void)service, (void)timeout_ns;
    for (i = 0; i < 64; i++) {
        CHECK(h_places_add(places, "127.0.0.1:1"));
    }
    THAT(h_places_add(places, "127.0.0.1:1") == H_LIMIT);
    CHECK(h_places_fail(places, "the catalogue is shut"));
    return false;
}

static bool be_silent(void *context, const char *service, int64_t timeout_ns, h_places_t *places) {
    (void)context, (void)service, (void)timeout_ns, (void)places;
    return false;
}

static bool wait_long(void *context, const char *service, int64_t timeout_ns, h_places_t *places) {
    (void)context, (void)service, (void)timeout_ns, (void)places;
    until(&book.lets_go);
    return true;
}

static void release(void *context) {
    THAT(context == &book);
    change(&book.releases, 1);
}

static void first(void) {
    h_setting_t settings[2];
    h_node_t *there, *here;
    h_link_t link;
    h_peer_t peer;
    char path[512], at[64], url[128];
    FILE *file;
    THAT(snprintf(path, sizeof path, "%s/secret", getenv("HAMLYN_DIR")) < (int)sizeof path);
    file = fopen(path, "w");
    THAT(file && fprintf(file, "%064d\n", 7) == 65 && fclose(file) == 0 && chmod(path, 0600) == 0);
    settings[0].name = "secret";
    settings[0].value = path;
    settings[1].name = "listen";
    settings[1].value = "127.0.0.1:0";
    CHECK(h_node_new(settings, 2, &there));
    CHECK(h_listens_at(there, at, sizeof at, NULL));
    book.at = at;
    CHECK(h_serve(there, "far", H_ACCESS_SAME_USER, 0, "", 0));
    settings[1].name = "local";
    settings[1].value = "tls";
    CHECK(h_node_new(settings, 2, &here));

    CHECK(h_set_directory(here, look_up, &book, release));
    CHECK(h_connect(here, "hamlyn://far", NULL, 0, LIMIT, &link));
    THAT(change(&book.looks, 0) == 2 && change(&book.releases, 0) == 0);
    /* Its identity: of another host, with the same secret. */
    CHECK(h_peer(here, link, &peer));
    THAT(strcmp(peer.address, at) == 0 && strcmp(peer.identity, "secret") == 0);
    THAT(peer.uid == -1 && peer.gid == -1 && peer.pid == -1);

    CHECK(h_set_directory(here, fail, &book, NULL));
    until(&book.releases);
    THAT(h_connect(here, "hamlyn://far", NULL, 0, LIMIT, &link) == H_UNREACHABLE);
    THAT(strstr(h_error_message(), "own directory: the catalogue is shut") != NULL);
    CHECK(h_set_directory(here, be_silent, NULL, NULL));
    THAT(h_connect(here, "hamlyn://far", NULL, 0, LIMIT, &link) == H_UNREACHABLE);

    /* A client gets an error after its time limit; the context stays until the function returns. */
    CHECK(h_set_directory(here, wait_long, &book, release));
    THAT(h_connect(here, "hamlyn://far", NULL, 0, 100 * 1000 * 1000, &link) == H_TIMED_OUT);
    CHECK(h_set_directory(here, NULL, NULL, NULL));
    THAT(h_connect(here, "hamlyn://far", NULL, 0, LIMIT, &link) == H_INVALID);
    THAT(strstr(h_error_message(), "HAMLYN_DIRECTORY") != NULL);
    THAT(change(&book.releases, 0) == 1);
    change(&book.lets_go, 1);
    change(&book.releases, -1);
    until(&book.releases);

    CHECK(h_set_directory(here, look_up, &book, release));
    change(&book.releases, -1);
    h_node_free(here);

    /* A host with another secret. */
    file = fopen(path, "w");
    THAT(file && fprintf(file, "%064d\n", 8) == 65 && fclose(file) == 0);
    CHECK(h_node_new(settings, 1, &here));
    THAT(snprintf(url, sizeof url, "hamlyn://%s/far", at) < (int)sizeof url);
    THAT(h_connect(here, url, NULL, 0, LIMIT, &link) == H_SECRET);
    THAT(strcmp(h_status_name(H_SECRET), "H_SECRET") == 0);
    h_node_free(here);
    until(&book.releases);
    THAT(h_set_directory(NULL, look_up, &book, release) == H_INVALID);
    h_node_free(there);
}

static void none(const char *role, const char *text) {
    (void)role, (void)text;
}

int main(int argc, char **argv) {
    return run(argc, argv, first, none);
}
