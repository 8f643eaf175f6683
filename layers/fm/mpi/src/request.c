/* The calls of point to point: what they check, requests, and waiting for one, any or all.
 *
 * A request is given back when a call has told its completion, or, if it was freed before, when it completes.
 * It holds its type and communicator until then.
 */
#include "internal.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>

static struct request **requests, *spare;
static int request_count;

struct request *request_of(MPI_Request handle) {
    if (handle < 1 || handle > request_count || requests[handle - 1]->state == FREE)
        return NULL;
    return requests[handle - 1];
}

/* For the program: what it has freed is not there any more, though it may be under way. */
static struct request *request_named(MPI_Request handle) {
    struct request *request = request_of(handle);
    return request && !request->is_freed ? request : NULL;
}

struct request *request_new(void) {
    struct request *request = spare;
    if (request) {
        spare = request->next;
        return request;
    }
    if ((request_count & (request_count - 1)) == 0) {
        struct request **grown = realloc(requests, (request_count ? 2 * request_count : 1) * sizeof *requests);
        if (!grown)
            return NULL;
        requests = grown;
    }
    request = calloc(1, sizeof *request);
    if (!request)
        return NULL;
    requests[request_count++] = request;
    request->id = request_count;
    return request;
}

void request_give_back(struct request *request) {
    type_release(request->type);
    comm_release(request->comm);
    free(request->copy);
    request->copy = NULL;
    request->state = FREE;
    request->next = spare;
    spare = request;
}

void requests_finish(void) {
    for (int i = 0; i < request_count; i++) {
        free(requests[i]->copy);
        free(requests[i]);
    }
    free(requests);
    requests = NULL;
    spare = NULL;
    request_count = 0;
}

static struct request *make(const void *buf, size_t count, struct type *type, int peer, int tag, unsigned context,
                            struct comm *comm) {
    struct request *request = request_new();
    if (!request)
        return NULL;
    type_hold(type);
    comm->holders++;
    request->state = IDLE;
    request->is_send = request->is_sync = request->is_persistent = request->is_freed = request->is_cancelled = false;
    request->is_exact = false;
    request->match.peer = peer < 0 ? peer : comm->world[peer];
    request->match.tag = tag;
    request->match.context = context;
    request->comm = comm;
    request->buf = (void *)buf;
    request->count = count;
    request->type = type;
    return request;
}

static void start(struct request *request) {
    request->error = MPI_SUCCESS;
    request->is_cancelled = false;
    request->bytes = request->count * request->type->size;
    if (request->match.peer == MPI_PROC_NULL) {
        request->came_from = MPI_PROC_NULL;
        request->came_tag = MPI_ANY_TAG;
        request->moved = 0;
        request->state = DONE;
    } else if (request->is_send) {
        send_start(request);
    } else {
        receive_start(request);
    }
}

struct request *hm_isend(const void *buf, size_t count, struct type *type, int dest, int tag, unsigned context,
                         bool is_sync, struct comm *comm) {
    struct request *request = make(buf, count, type, dest, tag, context, comm);
    if (request) {
        request->is_send = true;
        request->is_sync = is_sync;
        start(request);
    }
    return request;
}

struct request *hm_irecv(void *buf, size_t count, struct type *type, int source, int tag, unsigned context,
                         struct comm *comm) {
    struct request *request = make(buf, count, type, source, tag, context, comm);
    if (request)
        start(request);
    return request;
}

int hm_wait(struct request *request) {
    if (!request)
        return MPI_ERR_NO_MEM;
    wait_for(request);
    int error = request->error;
    if (!error && request->is_exact && request->moved != request->count * request->type->size)
        error = MPI_ERR_COUNT;
    request_give_back(request);
    return error;
}

/* ---- checks ---- */

static int check(struct comm *comm, const void *buf, int count, struct type *type, int peer, int tag, bool is_send) {
    if (!comm)
        return MPI_ERR_COMM;
    if (count < 0)
        return MPI_ERR_COUNT;
    if (!type)
        return MPI_ERR_TYPE;
    if (peer != MPI_PROC_NULL && (is_send || peer != MPI_ANY_SOURCE) && (peer < 0 || peer >= comm->size))
        return MPI_ERR_RANK;
    if (tag < 0 && (is_send || tag != MPI_ANY_TAG))
        return MPI_ERR_TAG;
    return peer == MPI_PROC_NULL ? MPI_SUCCESS : check_elements(buf, count, type);
}

static void no_status(MPI_Status *status) {
    if (status)
        *status = (MPI_Status){MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_SUCCESS, 0, 0};
}

static void set_status(MPI_Status *status, const struct request *request) {
    if (!status)
        return;
    if (request->is_send) {
        no_status(status);
    } else {
        status->MPI_SOURCE = request->came_from < 0 ? request->came_from
                                                    : comm_rank_of(request->comm, request->came_from);
        status->MPI_TAG = request->came_tag;
        status->hamlyn_bytes = request->moved;
        status->hamlyn_cancelled = request->is_cancelled;
    }
    status->MPI_ERROR = request->error;
}

/* A request has completed, and the program is told. Returns its error; if there is one, the handler for it. */
static int finish(MPI_Request *handle, MPI_Status *status, MPI_Errhandler *handler) {
    struct request *request = request_named(*handle);
    if (!request || request->state == IDLE) {
        no_status(status);
        bool is_wrong = !request && *handle != MPI_REQUEST_NULL;
        if (is_wrong && comm_of(MPI_COMM_WORLD))
            *handler = comm_of(MPI_COMM_WORLD)->errhandler;
        if (is_wrong && status)
            status->MPI_ERROR = MPI_ERR_REQUEST;
        return is_wrong ? MPI_ERR_REQUEST : MPI_SUCCESS;
    }
    set_status(status, request);
    int error = request->error;
    /* The request may be the last that holds its communicator. */
    if (error)
        *handler = request->comm->errhandler;
    if (request->is_persistent) {
        request->state = IDLE;
    } else {
        request_give_back(request);
        *handle = MPI_REQUEST_NULL;
    }
    return error;
}

/* ---- sending and receiving ---- */

static int send_now(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, bool is_sync,
                    const char *call) {
    struct comm *of = comm_of(comm);
    struct type *layout = type_of(type);
    int error = check(of, buf, count, layout, dest, tag, true);
    if (!error && dest != MPI_PROC_NULL)
        error = hm_wait(hm_isend(buf, count, layout, dest, tag, of->context, is_sync, of));
    return error ? raise_error(comm, error, call) : MPI_SUCCESS;
}

int MPI_Send(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
    return send_now(buf, count, type, dest, tag, comm, false, "MPI_Send");
}

int MPI_Ssend(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
    return send_now(buf, count, type, dest, tag, comm, true, "MPI_Ssend");
}

int MPI_Rsend(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
    return send_now(buf, count, type, dest, tag, comm, false, "MPI_Rsend");
}

/* The library copies the message, so the buffer of the program is not used. */
static void *attached;
static int attached_bytes;

int MPI_Buffer_attach(void *buffer, int bytes) {
    attached = buffer;
    attached_bytes = bytes;
    return MPI_SUCCESS;
}

int MPI_Buffer_detach(void *buffer, int *bytes) {
    wait_for_sends();
    memcpy(buffer, &attached, sizeof attached);
    *bytes = attached_bytes;
    return MPI_SUCCESS;
}

int MPI_Bsend(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm) {
    struct comm *of = comm_of(comm);
    struct type *layout = type_of(type);
    int error = check(of, buf, count, layout, dest, tag, true);
    if (error || dest == MPI_PROC_NULL)
        return raise_error(comm, error, "MPI_Bsend");
    struct walk walk;
    walk_begin(&walk, buf, count, layout);
    size_t bytes = walk.left;
    void *copy = malloc(bytes + 1);
    struct request *request = copy ? make(copy, bytes, type_of(MPI_BYTE), dest, tag, of->context, of) : NULL;
    if (!request) {
        free(copy);
        return raise_error(comm, MPI_ERR_NO_MEM, "MPI_Bsend");
    }
    walk_read(&walk, copy, bytes);
    request->copy = copy;
    request->is_send = request->is_freed = true;
    start(request);
    return MPI_SUCCESS;
}

/* Makes a request of the program; starts it unless it is persistent. */
static int make_request(const void *buf, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                        bool is_send, bool is_sync, bool is_persistent, MPI_Request *out, const char *call) {
    struct comm *of = comm_of(comm);
    struct type *layout = type_of(type);
    int error = check(of, buf, count, layout, peer, tag, is_send);
    struct request *request = error ? NULL : make(buf, count, layout, peer, tag, of->context, of);
    *out = request ? request->id : MPI_REQUEST_NULL;
    if (!request)
        return raise_error(comm, error ? error : MPI_ERR_NO_MEM, call);
    request->is_send = is_send;
    request->is_sync = is_sync;
    request->is_persistent = is_persistent;
    if (!is_persistent)
        start(request);
    return MPI_SUCCESS;
}

int MPI_Recv(void *buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status) {
    MPI_Request request;
    int error = make_request(buf, count, type, source, tag, comm, false, false, false, &request, "MPI_Recv");
    if (error)
        return error;
    wait_for(request_of(request));
    MPI_Errhandler failed;
    error = finish(&request, status, &failed);
    return error ? raise_error(comm, error, "MPI_Recv") : MPI_SUCCESS;
}

int MPI_Isend(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request *out) {
    return make_request(buf, count, type, dest, tag, comm, true, false, false, out, "MPI_Isend");
}

int MPI_Issend(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request *out) {
    return make_request(buf, count, type, dest, tag, comm, true, true, false, out, "MPI_Issend");
}

int MPI_Irsend(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request *out) {
    return make_request(buf, count, type, dest, tag, comm, true, false, false, out, "MPI_Irsend");
}

int MPI_Irecv(void *buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *out) {
    return make_request(buf, count, type, source, tag, comm, false, false, false, out, "MPI_Irecv");
}

int MPI_Send_init(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                  MPI_Request *out) {
    return make_request(buf, count, type, dest, tag, comm, true, false, true, out, "MPI_Send_init");
}

int MPI_Ssend_init(const void *buf, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
                   MPI_Request *out) {
    return make_request(buf, count, type, dest, tag, comm, true, true, true, out, "MPI_Ssend_init");
}

int MPI_Recv_init(void *buf, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *out) {
    return make_request(buf, count, type, source, tag, comm, false, false, true, out, "MPI_Recv_init");
}

int MPI_Start(MPI_Request *handle) {
    struct request *request = request_named(*handle);
    if (!request || !request->is_persistent || request->state != IDLE)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_REQUEST, "MPI_Start");
    start(request);
    return MPI_SUCCESS;
}

int MPI_Startall(int count, MPI_Request handles[]) {
    for (int i = 0; i < count; i++) {
        int error = MPI_Start(&handles[i]);
        if (error)
            return error;
    }
    return MPI_SUCCESS;
}

int MPI_Sendrecv(const void *sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag, void *recvbuf,
                 int recvcount, MPI_Datatype recvtype, int source, int recvtag, MPI_Comm comm, MPI_Status *status) {
    struct comm *of = comm_of(comm);
    struct type *layout = type_of(sendtype);
    MPI_Request receive;
    int error = check(of, sendbuf, sendcount, layout, dest, sendtag, true);
    if (error)
        return raise_error(comm, error, "MPI_Sendrecv");
    error = make_request(recvbuf, recvcount, recvtype, source, recvtag, comm, false, false, false, &receive,
                         "MPI_Sendrecv");
    if (error)
        return error;
    MPI_Errhandler failed;
    int sent = hm_wait(hm_isend(sendbuf, sendcount, layout, dest, sendtag, of->context, false, of));
    wait_for(request_of(receive));
    error = finish(&receive, status, &failed);
    error = error ? error : sent;
    return error ? raise_error(comm, error, "MPI_Sendrecv") : MPI_SUCCESS;
}

int MPI_Sendrecv_replace(void *buf, int count, MPI_Datatype type, int dest, int sendtag, int source, int recvtag,
                         MPI_Comm comm, MPI_Status *status) {
    struct type *layout = type_of(type);
    if (!layout || count < 0)
        return raise_error(comm, layout ? MPI_ERR_COUNT : MPI_ERR_TYPE, "MPI_Sendrecv_replace");
    int error = check_elements(buf, count, layout);
    if (error)
        return raise_error(comm, error, "MPI_Sendrecv_replace");
    struct walk walk;
    walk_begin(&walk, buf, count, layout);
    size_t bytes = walk.left;
    char *copy = bytes > INT32_MAX ? NULL : malloc(bytes + 1);
    if (!copy)
        return raise_error(comm, MPI_ERR_NO_MEM, "MPI_Sendrecv_replace");
    walk_read(&walk, copy, bytes);
    error = MPI_Sendrecv(copy, (int)bytes, MPI_BYTE, dest, sendtag, buf, count, type, source, recvtag, comm,
                             status);
    free(copy);
    return error;
}

/* ---- waiting ---- */

/* A turn of a call that does not wait. Calls without success in a row let others run. Whether the time has come to ask
 * for the dead: after a prime number of calls, so that each of several requests that are tested in turns has its. */
static bool turn(struct request *request) {
    static unsigned empty, calls;
    for (int i = 0; i < 8 && !(request && request->state == DONE); i++)
        if (progress(request ? wanted(request) : 1) > 0) {
            empty = 0;
        } else {
            empty++;
            break;
        }
    if (empty % 64 == 63)
        sched_yield();
    return ++calls % 1021 == 0;
}

static bool is_inactive(const struct request *request) {
    return !request || request->state == IDLE;
}

int MPI_Wait(MPI_Request *handle, MPI_Status *status) {
    struct request *request = request_named(*handle);
    MPI_Errhandler handler = MPI_ERRORS_ARE_FATAL;
    if (!is_inactive(request))
        wait_for(request);
    int error = finish(handle, status, &handler);
    return error ? raise_error_by(handler, error, "MPI_Wait") : MPI_SUCCESS;
}

int MPI_Test(MPI_Request *handle, int *flag, MPI_Status *status) {
    struct request *request = request_named(*handle);
    MPI_Errhandler handler = MPI_ERRORS_ARE_FATAL;
    if (!is_inactive(request) && request->state != DONE && turn(request))
        fail_if_dead(request);
    *flag = is_inactive(request) || request->state == DONE;
    int error = *flag ? finish(handle, status, &handler) : MPI_SUCCESS;
    return error ? raise_error_by(handler, error, "MPI_Test") : MPI_SUCCESS;
}

/* All have completed. */
static int finish_all(int count, MPI_Request handles[], MPI_Status statuses[], const char *call) {
    MPI_Errhandler handler = MPI_ERRORS_ARE_FATAL;
    bool failed = false;
    for (int i = 0; i < count; i++)
        failed |= finish(&handles[i], statuses ? &statuses[i] : NULL, &handler) != MPI_SUCCESS;
    return failed ? raise_error_by(handler, MPI_ERR_IN_STATUS, call) : MPI_SUCCESS;
}

int MPI_Waitall(int count, MPI_Request handles[], MPI_Status statuses[]) {
    for (int i = 0; i < count; i++) {
        struct request *request = request_named(handles[i]);
        if (!is_inactive(request))
            wait_for(request);
    }
    return finish_all(count, handles, statuses, "MPI_Waitall");
}

int MPI_Testall(int count, MPI_Request handles[], int *flag, MPI_Status statuses[]) {
    *flag = 1;
    for (int i = 0; i < count && *flag; i++) {
        struct request *request = request_named(handles[i]);
        if (!is_inactive(request) && request->state != DONE && turn(request))
            fail_if_dead(request);
        *flag = is_inactive(request) || request->state == DONE;
    }
    return *flag ? finish_all(count, handles, statuses, "MPI_Testall") : MPI_SUCCESS;
}

/* Tells those that have completed, `most` at most. Returns how many; -1: none is active. */
static int finish_some(int count, MPI_Request handles[], int indices[], MPI_Status statuses[], int most, int *error,
                       MPI_Errhandler *handler) {
    int done = 0;
    bool is_active = false;
    for (int i = 0; i < count && done < most; i++) {
        struct request *request = request_named(handles[i]);
        if (is_inactive(request) && (request || handles[i] == MPI_REQUEST_NULL))
            continue;
        is_active = true;
        if (request && request->state != DONE)
            continue;
        int failed = finish(&handles[i], statuses ? &statuses[done] : NULL, handler);
        *error = failed ? failed : *error;
        indices[done++] = i;
    }
    return is_active ? done : -1;
}

/* Until one has completed; `waits` not: one turn. Returns as `finish_some`. */
static int some(int count, MPI_Request handles[], int indices[], MPI_Status statuses[], int most, bool waits,
                int *error, MPI_Errhandler *handler) {
    struct idle idle = {0};
    int done;
    while ((done = finish_some(count, handles, indices, statuses, most, error, handler)) == 0) {
        bool asks = waits ? relax(&idle, progress(1) > 0) : turn(NULL);
        for (int i = 0; i < count && asks; i++) {
            struct request *request = request_named(handles[i]);
            if (!is_inactive(request) && request->state != DONE)
                fail_if_dead(request);
        }
        if (!waits)
            return finish_some(count, handles, indices, statuses, most, error, handler);
    }
    return done;
}

static int any(int count, MPI_Request handles[], int *index, int *flag, MPI_Status *status, bool waits,
               const char *call) {
    MPI_Errhandler handler = MPI_ERRORS_ARE_FATAL;
    int error = MPI_SUCCESS;
    *index = MPI_UNDEFINED;
    int done = some(count, handles, index, status, 1, waits, &error, &handler);
    *flag = done != 0;
    if (done < 0)
        no_status(status);
    return error ? raise_error_by(handler, error, call) : MPI_SUCCESS;
}

int MPI_Waitany(int count, MPI_Request handles[], int *index, MPI_Status *status) {
    int flag;
    return any(count, handles, index, &flag, status, true, "MPI_Waitany");
}

int MPI_Testany(int count, MPI_Request handles[], int *index, int *flag, MPI_Status *status) {
    return any(count, handles, index, flag, status, false, "MPI_Testany");
}

static int several(int count, MPI_Request handles[], int *done, int indices[], MPI_Status statuses[], bool waits,
                   const char *call) {
    MPI_Errhandler handler = MPI_ERRORS_ARE_FATAL;
    int error = MPI_SUCCESS, n = some(count, handles, indices, statuses, count, waits, &error, &handler);
    *done = n < 0 ? MPI_UNDEFINED : n;
    return error ? raise_error_by(handler, MPI_ERR_IN_STATUS, call) : MPI_SUCCESS;
}

int MPI_Waitsome(int count, MPI_Request handles[], int *done, int indices[], MPI_Status statuses[]) {
    return several(count, handles, done, indices, statuses, true, "MPI_Waitsome");
}

int MPI_Testsome(int count, MPI_Request handles[], int *done, int indices[], MPI_Status statuses[]) {
    return several(count, handles, done, indices, statuses, false, "MPI_Testsome");
}

int MPI_Request_free(MPI_Request *handle) {
    struct request *request = request_named(*handle);
    if (!request)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_REQUEST, "MPI_Request_free");
    *handle = MPI_REQUEST_NULL;
    if (request->state == IDLE || request->state == DONE)
        request_give_back(request);
    else
        request->is_freed = true;
    return MPI_SUCCESS;
}

/* A receive that no message has met is cancelled; others complete as if nothing had been called. */
int MPI_Cancel(MPI_Request *handle) {
    struct request *request = request_named(*handle);
    if (is_inactive(request))
        return raise_error(MPI_COMM_WORLD, MPI_ERR_REQUEST, "MPI_Cancel");
    if (request->state == POSTED) {
        match_retract(&matcher, &request->match);
        request->is_cancelled = true;
        request->came_from = MPI_ANY_SOURCE;
        request->came_tag = MPI_ANY_TAG;
        request->state = DONE;
    }
    return MPI_SUCCESS;
}

int MPI_Test_cancelled(const MPI_Status *status, int *flag) {
    *flag = status->hamlyn_cancelled;
    return MPI_SUCCESS;
}

/* ---- probing ---- */

static int probe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status, bool waits, const char *call) {
    struct comm *of = comm_of(comm);
    int error = check(of, NULL, 0, type_of(MPI_BYTE), source, tag, false);
    if (error)
        return raise_error(comm, error, call);
    if (source == MPI_PROC_NULL) {
        *flag = 1;
        if (status)
            *status = (MPI_Status){MPI_PROC_NULL, MPI_ANY_TAG, MPI_SUCCESS, 0, 0};
        return MPI_SUCCESS;
    }
    int world = source < 0 ? source : of->world[source];
    struct idle idle = {0};
    struct request asked;
    asked.match = (struct match){.context = of->context, .peer = world, .tag = tag};
    asked.comm = of;
    struct message *message = message_for(&asked);
    for (bool first = true; !message && (waits || first); first = false) {
        bool asks = waits ? relax(&idle, progress(1) > 0) : turn(NULL);
        bool is_over = asks && is_dead(of, world);
        message = message_for(&asked);
        *flag = 0;
        if (is_over && !message)
            return raise_error(comm, MPI_ERR_OTHER, call);
    }
    *flag = message != NULL;
    if (message && status)
        *status = (MPI_Status){comm_rank_of(of, message->match.peer), message->match.tag, MPI_SUCCESS, 0, message->bytes};
    return MPI_SUCCESS;
}

int MPI_Probe(int source, int tag, MPI_Comm comm, MPI_Status *status) {
    int flag;
    return probe(source, tag, comm, &flag, status, true, "MPI_Probe");
}

int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status) {
    return probe(source, tag, comm, flag, status, false, "MPI_Iprobe");
}

int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count) {
    struct type *of = type_of(type);
    if (!of)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_TYPE, "MPI_Get_count");
    size_t bytes = status->hamlyn_bytes, n = of->size ? bytes / of->size : 0;
    bool is_whole = of->size ? bytes % of->size == 0 : bytes == 0;
    *count = is_whole && n <= INT32_MAX ? (int)n : MPI_UNDEFINED;
    return MPI_SUCCESS;
}

int MPI_Get_elements(const MPI_Status *status, MPI_Datatype type, int *count) {
    struct type *of = type_of(type);
    return MPI_Get_count(status, of && of->base ? of->base : type, count);
}
