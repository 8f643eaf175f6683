/* Another user calls: as the kernel knows it, and without harm to this user's calls. Only root can run it.
 *
 *   ./users PROBE_SERVER FOLDER        the folder is user 65534's
 */
#include "probe.h"

#include <hamlyn_rpc.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(holds) ((holds) ? (void)0 : fail(#holds, __LINE__))
#define SERVICE "root@users"
#define OTHER 65534
#define LIMIT ((int64_t)20000000000)
/* As many as one client may have on their way. */
#define HELD 64

static pid_t server, other;

static void fail(const char *what, int line) {
    fprintf(stderr, "users.c:%d: not so: %s (%s; %s)\n", line, what, rpc_hamlyn_error(), h_error_message());
    if (server > 0) kill(server, SIGKILL);
    if (other > 0) kill(other, SIGKILL);
    _exit(1);
}

static void become_other(const char *folder) {
    server = other = 0;
    CHECK(setgroups(0, NULL) == 0 && setgid(OTHER) == 0 && setuid(OTHER) == 0);
    setenv("HAMLYN_DIR", folder, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* Root, as its message says. */
static void is_not_believed(void) {
    caller who = {.machine = NULL};
    CLIENT *client = clnt_hamlyn_create(SERVICE, PROBE, PROBE_1);
    CHECK(client);
    client->cl_auth = authunix_create("elsewhere", 0, 0, 0, NULL);
    CHECK(who_1(NULL, &who, client) == RPC_SUCCESS);
    CHECK(who.flavor == AUTH_SYS && who.uid == OTHER && who.gid == OTHER && who.raw_uid == OTHER);
    CHECK(who.pid == getpid());
}

/* Asks for as many long replies as it may, and takes none. */
static void takes_no_replies(int ready) {
    h_node_t *node;
    h_client_t *client;
    h_call_t call;
    uint32_t words[] = {7, CALL, 2, PROBE, PROBE_1, HUGE, 0, 0, 0, 0, 1 << 20};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) words[i] = htonl(words[i]);
    CHECK(h_node_new(NULL, 0, &node) == H_OK && h_client_connect(node, SERVICE, NULL, LIMIT, &client) == H_OK);
    for (int i = 0; i < HELD; i++) CHECK(h_client_start(client, words, sizeof words, LIMIT, &call) == H_OK);
    CHECK(write(ready, "r", 1) == 1);
    for (;;) pause();
}

int main(int argc, char **argv) {
    int ready[2], status;
    char byte;
    if (argc != 3) return 2;
    CHECK(pipe(ready) == 0);
    server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(argv[1], argv[1], "users", "1", "anyone", (char *)NULL);
        _exit(1);
    }
    other = fork();
    if (other == 0) {
        become_other(argv[2]);
        is_not_believed();
        _exit(0);
    }
    CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    other = fork();
    if (other == 0) {
        become_other(argv[2]);
        takes_no_replies(ready[1]);
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    /* A second for the first of its replies, and not for each: the calls of this user are answered within the 25
     * seconds that the stubs allow. */
    CLIENT *client = clnt_hamlyn_create(SERVICE, PROBE, PROBE_1);
    int count = -1;
    CHECK(client && notes_1(NULL, &count, client) == RPC_SUCCESS && count == 0);
    kill(other, SIGKILL);
    CHECK(waitpid(other, &status, 0) == other);
    CHECK(stop_1(NULL, NULL, client) == RPC_SUCCESS);
    CHECK(waitpid(server, &status, 0) == server && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    clnt_destroy(client);
    puts("users: as said");
    return 0;
}
