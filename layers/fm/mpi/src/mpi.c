/* Starting and ending, errors, and the calls about the library itself. */
#include "internal.h"
#include "fm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool is_running;
static bool is_finished;

static const char *const texts[] = {
    "no error",
    "invalid buffer",
    "invalid count",
    "invalid type",
    "invalid tag",
    "invalid communicator",
    "invalid rank",
    "invalid request",
    "invalid root",
    "invalid operation for this type",
    "invalid argument",
    "the message was longer than the receive's buffer",
    "the other process has ended",
    "internal error",
    "the error is in the status",
    "the request is pending",
    "unknown error",
    "invalid dimensions",
    "the communicator has no such topology",
    "invalid group",
    "no memory",
};

int raise_error_by(MPI_Errhandler handler, int code, const char *call) {
    if (!code || handler == MPI_ERRORS_RETURN)
        return code;
    int size = 0;
    char text[MPI_MAX_ERROR_STRING];
    MPI_Error_string(code, text, &size);
    fflush(stdout);
    fprintf(stderr, "rank %lu: %s: %s%s\n", FM_nodeid, call, text,
            is_running ? "" : " (MPI_Init has not been called, or MPI_Finalize has)");
    fflush(stderr);
    _exit(code);
}

int raise_error(MPI_Comm comm, int code, const char *call) {
    const struct comm *of = comm_of(comm) ? comm_of(comm) : comm_of(MPI_COMM_WORLD);
    return raise_error_by(of ? of->errhandler : MPI_ERRORS_ARE_FATAL, code, call);
}

int MPI_Init(int *argc, char ***argv) {
    int provided;
    return MPI_Init_thread(argc, argv, MPI_THREAD_SINGLE, &provided);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    (void)argc;
    (void)argv;
    if (is_running || is_finished) {
        fprintf(stderr, "MPI_Init is called once\n");
        _exit(MPI_ERR_OTHER);
    }
    FM_initialize();
    is_running = true;
    /* Types are made before a handler needs them. */
    if (!type_of(MPI_BYTE) || protocol_begin() || comms_begin((int)FM_nodeid, (int)FM_numnodes)) {
        fprintf(stderr, "MPI_Init: no memory, or a handler's identifier is in use: %s\n", FM_error_text());
        _exit(MPI_ERR_OTHER);
    }
    *provided = required < MPI_THREAD_FUNNELED ? required : MPI_THREAD_FUNNELED;
    return MPI_SUCCESS;
}

int MPI_Query_thread(int *provided) {
    *provided = MPI_THREAD_FUNNELED;
    return MPI_SUCCESS;
}

int MPI_Is_thread_main(int *flag) {
    *flag = 1;
    return MPI_SUCCESS;
}

int MPI_Initialized(int *flag) {
    *flag = is_running || is_finished;
    return MPI_SUCCESS;
}

int MPI_Finalized(int *flag) {
    *flag = is_finished;
    return MPI_SUCCESS;
}

static void print_figures(unsigned long rank) {
    FM_figures fm;
    FM_get_figures(&fm);
    fprintf(stderr,
            "rank %lu: sent %llu messages, %llu bytes, %llu after asking; received to posted receives %llu, %llu "
            "bytes, unexpected (copied once more) %llu, %llu bytes, at most %llu held; asked for before their receive "
            "%llu; refused %llu; fm: received %llu bytes, %llu directly, %llu discarded, refused %llu, stacks %llu\n",
            rank, figures.sent, figures.sent_bytes, figures.asked, figures.expected, figures.expected_bytes,
            figures.unexpected, figures.unexpected_bytes, figures.held_most, figures.late, figures.refused,
            fm.bytes_received, fm.bytes_direct, fm.bytes_discarded, fm.refused, fm.stacks);
}

int MPI_Finalize(void) {
    if (!is_running)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_OTHER, "MPI_Finalize");
    wait_for_sends();
    coll_barrier(comm_of(MPI_COMM_WORLD));
    wait_for_sends();
    const char *stats = getenv("HAMLYN_MPI_STATS");
    if (stats && strcmp(stats, "0") != 0)
        print_figures(FM_nodeid);
    /* Handlers that are suspended end in it, and use what is freed below. */
    FM_finalize();
    is_running = false;
    is_finished = true;
    protocol_finish();
    requests_finish();
    comms_finish();
    types_finish();
    return MPI_SUCCESS;
}

int MPI_Abort(MPI_Comm comm, int code) {
    (void)comm;
    fflush(stdout);
    fprintf(stderr, "rank %lu: MPI_Abort with %d\n", FM_nodeid, code);
    fflush(stderr);
    _exit(code ? code : 1);
}

int MPI_Get_version(int *version, int *subversion) {
    *version = MPI_VERSION;
    *subversion = MPI_SUBVERSION;
    return MPI_SUCCESS;
}

int MPI_Get_library_version(char *version, int *len) {
    *len = snprintf(version, MPI_MAX_LIBRARY_VERSION_STRING, "MPI-FM of Hamlyn");
    return MPI_SUCCESS;
}

int MPI_Get_processor_name(char *name, int *len) {
    if (gethostname(name, MPI_MAX_PROCESSOR_NAME))
        return raise_error(MPI_COMM_WORLD, MPI_ERR_OTHER, "MPI_Get_processor_name");
    name[MPI_MAX_PROCESSOR_NAME - 1] = 0;
    *len = (int)strlen(name);
    return MPI_SUCCESS;
}

double MPI_Wtime(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double MPI_Wtick(void) {
    struct timespec tick;
    clock_getres(CLOCK_MONOTONIC, &tick);
    return (double)tick.tv_sec + 1e-9 * (double)tick.tv_nsec;
}

int MPI_Error_string(int code, char *text, int *len) {
    bool is_known = code >= 0 && code <= MPI_ERR_LASTCODE;
    *len = snprintf(text, MPI_MAX_ERROR_STRING, "%s", texts[is_known ? code : MPI_ERR_UNKNOWN]);
    return MPI_SUCCESS;
}

int MPI_Error_class(int code, int *error_class) {
    *error_class = code;
    return MPI_SUCCESS;
}

int MPI_Get_address(const void *at, MPI_Aint *address) {
    *address = (MPI_Aint)at;
    return MPI_SUCCESS;
}

int MPI_Alloc_mem(MPI_Aint bytes, MPI_Info info, void *pointer) {
    (void)info;
    void *memory = bytes < 0 ? NULL : malloc(bytes ? (size_t)bytes : 1);
    if (!memory)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_NO_MEM, "MPI_Alloc_mem");
    memcpy(pointer, &memory, sizeof memory);
    return MPI_SUCCESS;
}

int MPI_Free_mem(void *at) {
    free(at);
    return MPI_SUCCESS;
}

int MPI_Pcontrol(int level, ...) {
    (void)level;
    return MPI_SUCCESS;
}
