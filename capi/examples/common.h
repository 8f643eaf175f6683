/*
 * What every example needs: a second process, and a runtime directory of its own. Programs that
 * are started separately need neither.
 */
#ifndef HAMLYN_EXAMPLES_COMMON_H
#define HAMLYN_EXAMPLES_COMMON_H

#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif

#include <hamlyn.h>

#include <ftw.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A minute, the time limit of every call that waits. */
#define LIMIT ((int64_t)60 * 1000 * 1000 * 1000)

/* Ends the process with the library's own words when a call did not succeed. */
#define CHECK(call) check((call), #call, __FILE__, __LINE__)

static inline void check(h_status status, const char *call, const char *file, int line) {
    if (status != H_OK) {
        fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, h_status_name(status),
                h_error_message());
        exit(1);
    }
}

extern char **environ;
static char *example_program;
static pid_t example_others[8];
static int example_other_count;

/* Starts this program again as another process, with a role and a text for it. */
static inline void start_other(const char *role, const char *text) {
    char *arguments[4];
    arguments[0] = example_program;
    arguments[1] = (char *)role;
    arguments[2] = (char *)text;
    arguments[3] = NULL;
    pid_t pid;
    int failed = posix_spawn(&pid, example_program, NULL, NULL, arguments, environ);
    if (failed) {
        fprintf(stderr, "cannot start %s: %s\n", example_program, strerror(failed));
        exit(1);
    }
    example_others[example_other_count++] = pid;
}

static inline int example_remove(const char *path, const struct stat *about, int kind,
                                 struct FTW *where) {
    (void)about, (void)kind, (void)where;
    return remove(path);
}

/*
 * Runs `first` in this process, which starts the others with start_other when it is ready, and
 * `other` in those. Ends with 0 if all have.
 */
static inline int run(int argc, char **argv, void (*first)(void),
                      void (*other)(const char *role, const char *text)) {
    /* Nothing here takes a minute; whatever hangs is ended. */
    alarm(60);
    example_program = argv[0];
    if (argc > 2) {
        other(argv[1], argv[2]);
        return 0;
    }
    char directory[] = "/tmp/hamlyn-example-" "XX" "XX" "XX";
    if (!mkdtemp(directory) || setenv("HAMLYN_DIR", directory, 1)) {
        perror(directory);
        return 1;
    }
    first();
    int failed = 0;
    for (int i = 0; i < example_other_count; i++) {
        int status;
        if (waitpid(example_others[i], &status, 0) < 0 || status != 0) {
            fprintf(stderr, "process %d of the example failed\n", i + 1);
            failed = 1;
        }
    }
    nftw(directory, example_remove, 8, FTW_DEPTH | FTW_PHYS);
    return failed;
}

#endif
