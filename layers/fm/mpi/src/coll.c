/* Collectives, over requests of the communicator's second context.
 *
 *   Barrier               dissemination              Allgather(v)      a ring
 *   Bcast, Reduce         binomial trees             Alltoall(v)       pairs, one after the other
 *   Allreduce             doubling; long: reduced in parts on a ring, which then goes around
 *   Gather(v), Scatter(v) the root with each         Scan, Exscan      a chain
 *   Reduce_scatter        Reduce and Scatterv
 *
 * All ranks call collectives in the same order, and messages between two ranks keep theirs, so one tag would do;
 * each has its own, so that a program against this rule fails at once.
 */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

enum tag { BARRIER, BCAST, REDUCE, ALLREDUCE, GATHER, SCATTER, ALLGATHER, ALLTOALL, SCAN };

/* A long vector is reduced on a ring. */
#define RING_BYTES 65536

static struct request *send_to(struct comm *comm, const void *buf, size_t count, struct type *type, int dest,
                               enum tag tag) {
    return hm_isend(buf, count, type, dest, tag, comm->context + 1, false, comm);
}

static struct request *receive_from(struct comm *comm, void *buf, size_t count, struct type *type, int source,
                                    enum tag tag) {
    struct request *request = hm_irecv(buf, count, type, source, tag, comm->context + 1, comm);
    /* A reduction would go on with, and pass on, bytes of this memory that no rank has sent. */
    if (request)
        request->is_exact = tag == BCAST || tag == REDUCE || tag == ALLREDUCE || tag == SCAN;
    return request;
}

/* Waits for both; the first error. */
static int both(struct request *receive, struct request *send) {
    int sent = hm_wait(send), received = hm_wait(receive);
    return received ? received : sent;
}

static char *element(const void *buf, size_t at, const struct type *type) {
    return (char *)buf + (MPI_Aint)at * type->extent;
}

/* Room for elements; `*start` is to be freed. A type that was resized has blocks beyond its bounds; operations write
 * padding, too. */
static char *make_room(size_t count, const struct type *type, void **start) {
    MPI_Aint last = count ? (MPI_Aint)(count - 1) * type->extent : 0, ub = type->lb + type->extent;
    MPI_Aint low = type->lb, high = ub > low ? ub : low;
    for (size_t i = 0; i < type->block_count; i++) {
        MPI_Aint at = type->blocks[i].at, end = at + (MPI_Aint)type->blocks[i].bytes;
        low = at < low ? at : low;
        high = end > high ? end : high;
    }
    low += last < 0 ? last : 0;
    high += last > 0 ? last : 0;
    *start = malloc((size_t)(high - low) + 1);
    return *start ? (char *)*start - low : NULL;
}

static void copy(const void *from, void *to, size_t count, struct type *type) {
    copy_elements(from, count, type, to, count, type);
}

int coll_barrier(struct comm *comm) {
    struct type *byte = type_of(MPI_BYTE);
    for (int step = 1; step < comm->size; step *= 2) {
        int to = (comm->rank + step) % comm->size, from = (comm->rank - step + comm->size) % comm->size;
        struct request *receive = receive_from(comm, NULL, 0, byte, from, BARRIER);
        int error = both(receive, send_to(comm, NULL, 0, byte, to, BARRIER));
        if (error)
            return error;
    }
    return MPI_SUCCESS;
}

int MPI_Barrier(MPI_Comm comm) {
    struct comm *of = comm_of(comm);
    return raise_error(comm, of ? coll_barrier(of) : MPI_ERR_COMM, "MPI_Barrier");
}

static int bcast(void *buf, size_t count, struct type *type, int root, struct comm *comm) {
    int size = comm->size, from_root = (comm->rank - root + size) % size, step = 1, error = MPI_SUCCESS;
    for (; step < size; step *= 2)
        if (from_root & step) {
            error = hm_wait(receive_from(comm, buf, count, type, (comm->rank - step + size) % size, BCAST));
            break;
        }
    struct request *sends[32];
    int n = 0;
    while ((step /= 2) > 0)
        if (from_root + step < size)
            /* Nothing, if nothing has come: so the others see an error, too. */
            sends[n++] = send_to(comm, buf, error ? 0 : count, type, (comm->rank + step) % size, BCAST);
    for (int i = 0; i < n; i++) {
        int sent = hm_wait(sends[i]);
        error = error ? error : sent;
    }
    return error;
}

static int check(const struct comm *comm, const void *buf, int count, const struct type *type, int root) {
    if (!comm)
        return MPI_ERR_COMM;
    if (count < 0)
        return MPI_ERR_COUNT;
    if (!type)
        return MPI_ERR_TYPE;
    return root < 0 || root >= comm->size ? MPI_ERR_ROOT : check_elements(buf, count, type);
}

int MPI_Bcast(void *buf, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    struct comm *of = comm_of(comm);
    struct type *layout = type_of(type);
    int error = check(of, buf, count, layout, root);
    return raise_error(comm, error ? error : bcast(buf, count, layout, root, of), "MPI_Bcast");
}

/* ---- reductions ---- */

/* In `mine` of rank `root`: all reduced, ranks in their order, or, if it commutes, in that from the root. */
static int reduce_tree(char **mine, char **other, int count, MPI_Datatype type, MPI_Op op, int root,
                       struct comm *comm) {
    struct type *layout = type_of(type);
    int size = comm->size, from_root = (comm->rank - root + size) % size;
    for (int step = 1; step < size; step *= 2) {
        if (from_root & step)
            return hm_wait(send_to(comm, *mine, count, layout, (comm->rank - step + size) % size, REDUCE));
        if (from_root + step >= size)
            continue;
        int error = hm_wait(receive_from(comm, *other, count, layout, (comm->rank + step) % size, REDUCE));
        if (error)
            return error;
        /* The other's ranks are behind: theirs = mine op theirs. */
        op_apply(op, *mine, *other, count, type);
        char *swap = *mine;
        *mine = *other;
        *other = swap;
    }
    return MPI_SUCCESS;
}

static int reduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, int root, struct comm *comm) {
    struct type *layout = type_of(type);
    void *starts[2];
    char *mine = make_room(count, layout, &starts[0]), *other = make_room(count, layout, &starts[1]);
    int top = op_commutes(op) ? root : 0, error = mine && other ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    if (!error) {
        copy(in, mine, count, layout);
        error = reduce_tree(&mine, &other, count, type, op, top, comm);
    }
    if (!error && top != root && comm->rank == top)
        error = hm_wait(send_to(comm, mine, count, layout, root, REDUCE));
    if (!error && comm->rank == root) {
        if (top != root)
            error = hm_wait(receive_from(comm, out, count, layout, top, REDUCE));
        else
            copy(mine, out, count, layout);
    }
    free(starts[0]);
    free(starts[1]);
    return error;
}

int MPI_Reduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    struct comm *of = comm_of(comm);
    const void *in = sendbuf == MPI_IN_PLACE && of && of->rank == root ? recvbuf : sendbuf;
    int error = check(of, in, count, type_of(type), root);
    if (!error && of->rank == root)
        error = check_elements(recvbuf, count, type_of(type));
    error = error ? error : op_check(op, type);
    if (!error)
        error = reduce(in, recvbuf, count, type, op, root, of);
    return raise_error(comm, error, "MPI_Reduce");
}

/* Each part goes around and is reduced on its way; then all parts go around. */
static int allreduce_ring(char *out, char *other, int count, MPI_Datatype type, MPI_Op op, struct comm *comm) {
    struct type *layout = type_of(type);
    int size = comm->size, next = (comm->rank + 1) % size, before = (comm->rank - 1 + size) % size;
    for (int step = 0; step < 2 * (size - 1); step++) {
        bool reduces = step < size - 1;
        int sent = (comm->rank - step + 2 * size) % size, received = (sent - 1 + size) % size;
        size_t at[2] = {(size_t)count * sent / size, (size_t)count * received / size};
        size_t n[2] = {(size_t)count * (sent + 1) / size - at[0], (size_t)count * (received + 1) / size - at[1]};
        char *to = reduces ? other : element(out, at[1], layout);
        struct request *receive = receive_from(comm, to, n[1], layout, before, ALLREDUCE);
        int error = both(receive, send_to(comm, element(out, at[0], layout), n[0], layout, next, ALLREDUCE));
        if (error)
            return error;
        if (reduces)
            op_apply(op, other, element(out, at[1], layout), (int)n[1], type);
    }
    return MPI_SUCCESS;
}

/* Pairs exchange what they have; each has twice the ranks then. A power of two of ranks. */
static int allreduce_doubling(char *out, char *mine, char *other, int count, MPI_Datatype type, MPI_Op op,
                              struct comm *comm) {
    struct type *layout = type_of(type);
    copy(out, mine, count, layout);
    for (int step = 1; step < comm->size; step *= 2) {
        int peer = comm->rank ^ step;
        struct request *receive = receive_from(comm, other, count, layout, peer, ALLREDUCE);
        int error = both(receive, send_to(comm, mine, count, layout, peer, ALLREDUCE));
        if (error)
            return error;
        if (peer < comm->rank) {
            op_apply(op, other, mine, count, type);
        } else {
            op_apply(op, mine, other, count, type);
            char *swap = mine;
            mine = other;
            other = swap;
        }
    }
    copy(mine, out, count, layout);
    return MPI_SUCCESS;
}

static int allreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, struct comm *comm) {
    struct type *layout = type_of(type);
    bool is_long = op_commutes(op) && count >= comm->size && count * layout->size >= RING_BYTES;
    if (!is_long && comm->size & (comm->size - 1)) {
        int error = reduce(in, out, count, type, op, 0, comm);
        return error ? error : bcast(out, count, layout, 0, comm);
    }
    void *starts[2];
    char *mine = make_room(is_long ? 0 : count, layout, &starts[0]), *other = make_room(count, layout, &starts[1]);
    int error = mine && other ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    if (!error && in != out)
        copy(in, out, count, layout);
    if (!error)
        error = is_long ? allreduce_ring(out, other, count, type, op, comm)
                        : allreduce_doubling(out, mine, other, count, type, op, comm);
    free(starts[0]);
    free(starts[1]);
    return error;
}

int MPI_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    struct comm *of = comm_of(comm);
    const void *in = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
    int error = check(of, in, count, type_of(type), 0);
    error = error ? error : check_elements(recvbuf, count, type_of(type));
    error = error ? error : op_check(op, type);
    if (!error)
        error = allreduce(in, recvbuf, count, type, op, of);
    return raise_error(comm, error, "MPI_Allreduce");
}

static int scan(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, bool with_own,
                struct comm *comm) {
    struct type *layout = type_of(type);
    void *starts[2];
    char *before = make_room(count, layout, &starts[0]), *all = make_room(count, layout, &starts[1]);
    int rank = comm->rank, error = before && all ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    if (!error) {
        copy(in, all, count, layout);
        if (rank > 0) {
            error = hm_wait(receive_from(comm, before, count, layout, rank - 1, SCAN));
            if (!error)
                op_apply(op, before, all, count, type);
        }
        if (!error && rank + 1 < comm->size)
            error = hm_wait(send_to(comm, all, count, layout, rank + 1, SCAN));
        if (!error && (with_own || rank > 0))
            copy(with_own ? all : before, out, count, layout);
    }
    free(starts[0]);
    free(starts[1]);
    return error;
}

static int checked_scan(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, bool with_own,
                        MPI_Comm comm, const char *call) {
    struct comm *of = comm_of(comm);
    in = in == MPI_IN_PLACE ? out : in;
    int error = check(of, in, count, type_of(type), 0);
    /* The first rank of MPI_Exscan gets nothing. */
    if (!error && (with_own || of->rank > 0))
        error = check_elements(out, count, type_of(type));
    error = error ? error : op_check(op, type);
    if (!error)
        error = scan(in, out, count, type, op, with_own, of);
    return raise_error(comm, error, call);
}

int MPI_Scan(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    return checked_scan(sendbuf, recvbuf, count, type, op, true, comm, "MPI_Scan");
}

int MPI_Exscan(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    return checked_scan(sendbuf, recvbuf, count, type, op, false, comm, "MPI_Exscan");
}

/* ---- gathering and scattering ---- */

/* The elements of one rank in a buffer of all: counts and places of each, or the same count for each. */
struct parts {
    void *buf;
    const int *counts, *displs;
    int count;
    struct type *type;
};

static size_t part_count(const struct parts *parts, int rank) {
    return parts->counts ? parts->counts[rank] : parts->count;
}

static char *part_at(const struct parts *parts, int rank) {
    return element(parts->buf, parts->displs ? (size_t)(ptrdiff_t)parts->displs[rank] : (size_t)rank * parts->count,
                   parts->type);
}

static int check_parts(const struct parts *parts, int size) {
    if (!parts->type)
        return MPI_ERR_TYPE;
    int error = MPI_SUCCESS;
    for (int i = 0; i < (parts->counts ? size : 1) && !error; i++)
        error = part_count(parts, i) > INT32_MAX ? MPI_ERR_COUNT
                                                 : check_elements(parts->buf, part_count(parts, i), parts->type);
    /* The last begins within memory. */
    if (!error && !parts->counts)
        error = check_elements(parts->buf, (size_t)parts->count * size, parts->type);
    return error;
}

/* Waits for all; the first error. */
static int wait_all(struct request **requests, int count) {
    int error = MPI_SUCCESS;
    for (int i = 0; i < count; i++) {
        int one = hm_wait(requests[i]);
        error = error ? error : one;
    }
    return error;
}

/* The root's part with each rank: `scatters`, or gathers. A rank's own part is `own`. */
static int root_with_each(const struct parts *parts, void *own, size_t own_count, struct type *own_type, int root,
                          bool scatters, struct comm *comm) {
    enum tag tag = scatters ? SCATTER : GATHER;
    if (comm->rank != root)
        return hm_wait(scatters ? receive_from(comm, own, own_count, own_type, root, tag)
                                : send_to(comm, own, own_count, own_type, root, tag));
    struct request **requests = calloc(comm->size, sizeof *requests);
    if (!requests)
        return MPI_ERR_NO_MEM;
    int n = 0;
    for (int i = 0; i < comm->size; i++) {
        size_t count = part_count(parts, i);
        if (i != root)
            requests[n++] = scatters ? send_to(comm, part_at(parts, i), count, parts->type, i, tag)
                                     : receive_from(comm, part_at(parts, i), count, parts->type, i, tag);
        else if (own != MPI_IN_PLACE && scatters)
            copy_elements(part_at(parts, i), count, parts->type, own, own_count, own_type);
        else if (own != MPI_IN_PLACE)
            copy_elements(own, own_count, own_type, part_at(parts, i), count, parts->type);
    }
    int error = wait_all(requests, n);
    free(requests);
    return error;
}

static int checked_root(const struct parts *parts, void *own, int own_count, MPI_Datatype own_type, int root,
                        bool scatters, MPI_Comm comm, const char *call) {
    struct comm *of = comm_of(comm);
    struct type *layout = own == MPI_IN_PLACE ? parts->type : type_of(own_type);
    /* In place is the root's alone. */
    int error = check(of, own, own == MPI_IN_PLACE && of && of->rank == root ? 0 : own_count, layout, root);
    if (!error && of->rank == root)
        error = check_parts(parts, of->size);
    if (!error)
        error = root_with_each(parts, own, own_count, layout, root, scatters, of);
    return raise_error(comm, error, call);
}

int MPI_Gather(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
               MPI_Datatype recvtype, int root, MPI_Comm comm) {
    struct parts parts = {recvbuf, NULL, NULL, recvcount, type_of(recvtype)};
    return checked_root(&parts, (void *)sendbuf, sendcount, sendtype, root, false, comm, "MPI_Gather");
}

int MPI_Gatherv(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int recvcounts[],
                const int displs[], MPI_Datatype recvtype, int root, MPI_Comm comm) {
    struct parts parts = {recvbuf, recvcounts, displs, 0, type_of(recvtype)};
    return checked_root(&parts, (void *)sendbuf, sendcount, sendtype, root, false, comm, "MPI_Gatherv");
}

int MPI_Scatter(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                MPI_Datatype recvtype, int root, MPI_Comm comm) {
    struct parts parts = {(void *)sendbuf, NULL, NULL, sendcount, type_of(sendtype)};
    return checked_root(&parts, recvbuf, recvcount, recvtype, root, true, comm, "MPI_Scatter");
}

int MPI_Scatterv(const void *sendbuf, const int sendcounts[], const int displs[], MPI_Datatype sendtype,
                 void *recvbuf, int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm) {
    struct parts parts = {(void *)sendbuf, sendcounts, displs, 0, type_of(sendtype)};
    return checked_root(&parts, recvbuf, recvcount, recvtype, root, true, comm, "MPI_Scatterv");
}

/* What is a rank's own lies at its place. */
static int allgather(const struct parts *parts, struct comm *comm) {
    int size = comm->size, next = (comm->rank + 1) % size, before = (comm->rank - 1 + size) % size;
    for (int step = 0; step < size - 1; step++) {
        int sent = (comm->rank - step + size) % size, received = (sent - 1 + size) % size;
        struct request *receive =
            receive_from(comm, part_at(parts, received), part_count(parts, received), parts->type, before, ALLGATHER);
        int error = both(receive, send_to(comm, part_at(parts, sent), part_count(parts, sent), parts->type, next,
                                          ALLGATHER));
        if (error)
            return error;
    }
    return MPI_SUCCESS;
}

int coll_allgather(void *all, int bytes, struct comm *comm) {
    struct parts parts = {all, NULL, NULL, bytes, type_of(MPI_BYTE)};
    return allgather(&parts, comm);
}

static int checked_allgather(const struct parts *parts, const void *own, int own_count, MPI_Datatype own_type,
                             MPI_Comm comm, const char *call) {
    struct comm *of = comm_of(comm);
    bool in_place = own == MPI_IN_PLACE;
    struct type *layout = in_place ? parts->type : type_of(own_type);
    int error = check(of, own, in_place ? 0 : own_count, layout, 0);
    error = error ? error : check_parts(parts, of->size);
    if (!error && !in_place)
        copy_elements(own, own_count, layout, part_at(parts, of->rank), part_count(parts, of->rank), parts->type);
    return raise_error(comm, error ? error : allgather(parts, of), call);
}

int MPI_Allgather(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                  MPI_Datatype recvtype, MPI_Comm comm) {
    struct parts parts = {recvbuf, NULL, NULL, recvcount, type_of(recvtype)};
    return checked_allgather(&parts, sendbuf, sendcount, sendtype, comm, "MPI_Allgather");
}

int MPI_Allgatherv(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, const int recvcounts[],
                   const int displs[], MPI_Datatype recvtype, MPI_Comm comm) {
    struct parts parts = {recvbuf, recvcounts, displs, 0, type_of(recvtype)};
    return checked_allgather(&parts, sendbuf, sendcount, sendtype, comm, "MPI_Allgatherv");
}

static int alltoall(const struct parts *in, const struct parts *out, struct comm *comm) {
    int size = comm->size, rank = comm->rank;
    copy_elements(part_at(in, rank), part_count(in, rank), in->type, part_at(out, rank), part_count(out, rank),
                  out->type);
    for (int step = 1; step < size; step++) {
        int to = (rank + step) % size, from = (rank - step + size) % size;
        struct request *receive =
            receive_from(comm, part_at(out, from), part_count(out, from), out->type, from, ALLTOALL);
        int error = both(receive, send_to(comm, part_at(in, to), part_count(in, to), in->type, to, ALLTOALL));
        if (error)
            return error;
    }
    return MPI_SUCCESS;
}

/* In place: each pair exchanges through a copy of what is sent. */
static int alltoall_in_place(const struct parts *all, struct comm *comm) {
    struct type *byte = type_of(MPI_BYTE);
    /* Both of a pair come to each other in the same round. */
    for (int round = 0; round < comm->size; round++) {
        int peer = (round - comm->rank + comm->size) % comm->size;
        if (peer == comm->rank)
            continue;
        struct walk walk;
        walk_begin(&walk, part_at(all, peer), part_count(all, peer), all->type);
        size_t bytes = walk.left;
        char *sent = malloc(bytes + 1);
        if (!sent)
            return MPI_ERR_NO_MEM;
        walk_read(&walk, sent, bytes);
        struct request *receive =
            receive_from(comm, part_at(all, peer), part_count(all, peer), all->type, peer, ALLTOALL);
        int error = both(receive, send_to(comm, sent, bytes, byte, peer, ALLTOALL));
        free(sent);
        if (error)
            return error;
    }
    return MPI_SUCCESS;
}

static int checked_alltoall(const struct parts *in, const struct parts *out, MPI_Comm comm, const char *call) {
    struct comm *of = comm_of(comm);
    bool in_place = in->buf == MPI_IN_PLACE;
    int error = of ? check_parts(out, of->size) : MPI_ERR_COMM;
    if (!error && !in_place)
        error = check_parts(in, of->size);
    if (!error)
        error = in_place ? alltoall_in_place(out, of) : alltoall(in, out, of);
    return raise_error(comm, error, call);
}

int MPI_Alltoall(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                 MPI_Datatype recvtype, MPI_Comm comm) {
    struct parts in = {(void *)sendbuf, NULL, NULL, sendcount, type_of(sendtype)};
    struct parts out = {recvbuf, NULL, NULL, recvcount, type_of(recvtype)};
    return checked_alltoall(&in, &out, comm, "MPI_Alltoall");
}

int MPI_Alltoallv(const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype,
                  void *recvbuf, const int recvcounts[], const int rdispls[], MPI_Datatype recvtype, MPI_Comm comm) {
    struct parts in = {(void *)sendbuf, sendcounts, sdispls, 0, type_of(sendtype)};
    struct parts out = {recvbuf, recvcounts, rdispls, 0, type_of(recvtype)};
    return checked_alltoall(&in, &out, comm, "MPI_Alltoallv");
}

/* ---- reducing and scattering ---- */

static int reduce_scatter(const void *in, void *out, const int *counts, MPI_Datatype type, MPI_Op op,
                          struct comm *comm) {
    struct type *layout = type_of(type);
    int *displs = malloc(comm->size * sizeof *displs);
    size_t total = 0;
    for (int i = 0; displs && i < comm->size && total <= INT32_MAX; i++) {
        displs[i] = (int)total;
        total += counts[i];
    }
    if (total > INT32_MAX) {
        free(displs);
        return MPI_ERR_COUNT;
    }
    void *start = NULL;
    char *all = displs ? make_room(total, layout, &start) : NULL;
    int error = all ? reduce(in, all, (int)total, type, op, 0, comm) : MPI_ERR_NO_MEM;
    struct parts parts = {all, counts, displs, 0, layout};
    if (!error)
        error = root_with_each(&parts, out, counts[comm->rank], layout, 0, true, comm);
    free(start);
    free(displs);
    return error;
}

int MPI_Reduce_scatter(const void *sendbuf, void *recvbuf, const int counts[], MPI_Datatype type, MPI_Op op,
                       MPI_Comm comm) {
    struct comm *of = comm_of(comm);
    const void *in = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
    struct parts parts = {(void *)in, counts, NULL, 0, type_of(type)};
    int error = !of ? MPI_ERR_COMM : counts ? check_parts(&parts, of->size) : MPI_ERR_ARG;
    error = error ? error : op_check(op, type);
    if (!error)
        error = check_elements(recvbuf, counts[of->rank], type_of(type));
    if (!error)
        error = reduce_scatter(in, recvbuf, counts, type, op, of);
    return raise_error(comm, error, "MPI_Reduce_scatter");
}

int MPI_Reduce_scatter_block(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op,
                             MPI_Comm comm) {
    struct comm *of = comm_of(comm);
    int size = of ? of->size : 0, *counts = malloc((size + 1) * sizeof *counts);
    for (int i = 0; counts && i < size; i++)
        counts[i] = count;
    int error = counts ? MPI_Reduce_scatter(sendbuf, recvbuf, counts, type, op, comm)
                       : raise_error(comm, MPI_ERR_NO_MEM, "MPI_Reduce_scatter_block");
    free(counts);
    return error;
}
