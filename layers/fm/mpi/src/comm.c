/* Communicators, and Cartesian topologies on them.
 *
 * Each has two contexts, for messages and for collectives, numbers that all its members agree on: the next that
 * none of them has used. Never: two communicators of one rank have the same context.
 */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

static struct comm **comms;
static int comm_count;
static int next_context;

struct comm *comm_of(MPI_Comm handle) {
    return handle > 0 && handle < comm_count ? comms[handle] : NULL;
}

int comm_rank_of(const struct comm *comm, int world) {
    if (world >= 0 && world < comm->size && comm->world[world] == world)
        return world;
    for (int i = 0; i < comm->size; i++)
        if (comm->world[i] == world)
            return i;
    return MPI_UNDEFINED;
}

void comm_release(struct comm *comm) {
    if (--comm->holders > 0)
        return;
    free(comm->world);
    free(comm->dims);
    free(comm);
}

static struct comm *make(int context, int rank, int size) {
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm || !(comm->world = malloc(size * sizeof *comm->world))) {
        free(comm);
        return NULL;
    }
    comm->holders = 1;
    comm->context = (unsigned)context;
    comm->rank = rank;
    comm->size = size;
    comm->errhandler = MPI_ERRORS_ARE_FATAL;
    return comm;
}

/* Returns its handle; 0: no memory. */
static MPI_Comm add(struct comm *comm) {
    int at = 1;
    while (at < comm_count && comms[at])
        at++;
    if (at >= comm_count) {
        int count = comm_count ? 2 * comm_count : 16;
        struct comm **grown = realloc(comms, count * sizeof *comms);
        if (!grown)
            return MPI_COMM_NULL;
        memset(grown + comm_count, 0, (count - comm_count) * sizeof *comms);
        comms = grown;
        comm_count = count;
    }
    comms[at] = comm;
    return at;
}

int comms_begin(int rank, int size) {
    struct comm *world = make(0, rank, size), *self = make(2, 0, 1);
    if (!world || !self)
        return -1;
    for (int i = 0; i < size; i++)
        world->world[i] = i;
    self->world[0] = rank;
    strcpy(world->name, "MPI_COMM_WORLD");
    strcpy(self->name, "MPI_COMM_SELF");
    next_context = 4;
    return add(world) == MPI_COMM_WORLD && add(self) == MPI_COMM_SELF ? 0 : -1;
}

void comms_finish(void) {
    for (int i = 0; i < comm_count; i++)
        if (comms[i])
            comm_release(comms[i]);
    free(comms);
    comms = NULL;
    comm_count = 0;
}

int MPI_Comm_rank(MPI_Comm comm, int *rank) {
    struct comm *of = comm_of(comm);
    if (!of)
        return raise_error(comm, MPI_ERR_COMM, "MPI_Comm_rank");
    *rank = of->rank;
    return MPI_SUCCESS;
}

int MPI_Comm_size(MPI_Comm comm, int *size) {
    struct comm *of = comm_of(comm);
    if (!of)
        return raise_error(comm, MPI_ERR_COMM, "MPI_Comm_size");
    *size = of->size;
    return MPI_SUCCESS;
}

struct part {
    int color, key, context, rank;
};

static int by_key(const void *a, const void *b) {
    const struct part *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

/* The ranks of one color, ordered by key. All members of the communicator call it. */
static int split(struct comm *of, int color, int key, MPI_Comm *out) {
    *out = MPI_COMM_NULL;
    struct part *parts = calloc(of->size, sizeof *parts);
    if (!parts)
        return MPI_ERR_NO_MEM;
    parts[of->rank] = (struct part){color, key, next_context, of->rank};
    int error = coll_allgather(parts, sizeof *parts, of), count = 0, context = next_context;
    for (int i = 0; i < of->size; i++) {
        context = parts[i].context > context ? parts[i].context : context;
        if (parts[i].color == color) {
            parts[count] = parts[i];
            parts[count++].rank = i;
        }
    }
    /* A rank may say any number; past the last one, contexts would come again. */
    if (!error && context > INT32_MAX - 2)
        error = MPI_ERR_INTERN;
    if (!error)
        next_context = context + 2;
    if (!error && color != MPI_UNDEFINED) {
        qsort(parts, count, sizeof *parts, by_key);
        struct comm *comm = make(context, 0, count);
        error = comm ? MPI_SUCCESS : MPI_ERR_NO_MEM;
        for (int i = 0; comm && i < count; i++) {
            comm->world[i] = of->world[parts[i].rank];
            if (parts[i].rank == of->rank)
                comm->rank = i;
        }
        if (comm) {
            comm->errhandler = of->errhandler;
            *out = add(comm);
            if (!*out) {
                comm_release(comm);
                error = MPI_ERR_NO_MEM;
            }
        }
    }
    free(parts);
    return error;
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *out) {
    struct comm *of = comm_of(comm);
    int error = !of ? MPI_ERR_COMM : color < 0 && color != MPI_UNDEFINED ? MPI_ERR_ARG : split(of, color, key, out);
    return raise_error(comm, error, "MPI_Comm_split");
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) {
    struct comm *of = comm_of(comm);
    int error = of ? split(of, 0, 0, out) : MPI_ERR_COMM;
    struct comm *copy = error ? NULL : comm_of(*out);
    if (copy && of->dims && (copy->dims = malloc(2 * of->ndims * sizeof *copy->dims))) {
        memcpy(copy->dims, of->dims, 2 * of->ndims * sizeof *copy->dims);
        copy->ndims = of->ndims;
    }
    return raise_error(comm, error, "MPI_Comm_dup");
}

int MPI_Comm_free(MPI_Comm *comm) {
    struct comm *of = comm_of(*comm);
    if (!of || *comm <= MPI_COMM_SELF)
        return raise_error(*comm, MPI_ERR_COMM, "MPI_Comm_free");
    comm_release(of);
    comms[*comm] = NULL;
    *comm = MPI_COMM_NULL;
    return MPI_SUCCESS;
}

int MPI_Comm_compare(MPI_Comm a, MPI_Comm b, int *result) {
    struct comm *x = comm_of(a), *y = comm_of(b);
    if (!x || !y)
        return raise_error(a, MPI_ERR_COMM, "MPI_Comm_compare");
    *result = a == b ? MPI_IDENT : x->size == y->size ? MPI_CONGRUENT : MPI_UNEQUAL;
    for (int i = 0; i < x->size && *result != MPI_UNEQUAL; i++)
        if (comm_rank_of(y, x->world[i]) == MPI_UNDEFINED)
            *result = MPI_UNEQUAL;
        else if (x->world[i] != y->world[i])
            *result = MPI_SIMILAR;
    return MPI_SUCCESS;
}

int MPI_Comm_set_name(MPI_Comm comm, const char *name) {
    struct comm *of = comm_of(comm);
    if (!of)
        return raise_error(comm, MPI_ERR_COMM, "MPI_Comm_set_name");
    strncpy(of->name, name, sizeof of->name - 1);
    return MPI_SUCCESS;
}

int MPI_Comm_get_name(MPI_Comm comm, char *name, int *len) {
    struct comm *of = comm_of(comm);
    if (!of)
        return raise_error(comm, MPI_ERR_COMM, "MPI_Comm_get_name");
    strcpy(name, of->name);
    *len = (int)strlen(name);
    return MPI_SUCCESS;
}

int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *flag) {
    static int tag_ub = INT32_MAX, no = 0, none = MPI_PROC_NULL;
    if (!comm_of(comm))
        return raise_error(comm, MPI_ERR_COMM, "MPI_Comm_get_attr");
    int *of = key == MPI_TAG_UB ? &tag_ub : key == MPI_WTIME_IS_GLOBAL ? &no : key == MPI_HOST || key == MPI_IO ? &none : NULL;
    *flag = of != NULL;
    if (of)
        *(int **)value = of;
    return MPI_SUCCESS;
}

int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler) {
    struct comm *of = comm_of(comm);
    if (!of || (handler != MPI_ERRORS_ARE_FATAL && handler != MPI_ERRORS_RETURN))
        return raise_error(comm, of ? MPI_ERR_ARG : MPI_ERR_COMM, "MPI_Comm_set_errhandler");
    of->errhandler = handler;
    return MPI_SUCCESS;
}

int MPI_Comm_get_errhandler(MPI_Comm comm, MPI_Errhandler *handler) {
    struct comm *of = comm_of(comm);
    if (!of)
        return raise_error(comm, MPI_ERR_COMM, "MPI_Comm_get_errhandler");
    *handler = of->errhandler;
    return MPI_SUCCESS;
}

int MPI_Errhandler_set(MPI_Comm comm, MPI_Errhandler handler) {
    return MPI_Comm_set_errhandler(comm, handler);
}

int MPI_Errhandler_free(MPI_Errhandler *handler) {
    *handler = MPI_ERRHANDLER_NULL;
    return MPI_SUCCESS;
}

/* ---- Cartesian topologies: row by row ---- */

int MPI_Dims_create(int nodes, int ndims, int dims[]) {
    int left = nodes, open = 0;
    if (nodes < 1 || ndims < 0)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_DIMS, "MPI_Dims_create");
    for (int i = 0; i < ndims; i++) {
        if (dims[i] < 0 || (dims[i] > 0 && left % dims[i]))
            return raise_error(MPI_COMM_WORLD, MPI_ERR_DIMS, "MPI_Dims_create");
        if (dims[i] > 0)
            left /= dims[i];
        open += dims[i] == 0;
    }
    if (open == 0 && left != 1)
        return raise_error(MPI_COMM_WORLD, MPI_ERR_DIMS, "MPI_Dims_create");
    for (int i = 0; i < ndims; i++) {
        if (dims[i])
            continue;
        /* The smallest factor that is not below the root; the largest dimension comes first. */
        int factor = 1;
        for (;; factor++) {
            double power = 1;
            for (int k = 0; k < open; k++)
                power *= factor;
            if (left % factor == 0 && power >= left)
                break;
        }
        dims[i] = -factor;
        left /= factor;
        open--;
    }
    /* Those that were chosen, not those that were given, in falling order. */
    for (int i = 0; i < ndims; i++) {
        for (int k = i + 1; k < ndims && dims[i] < 0; k++)
            if (dims[k] < dims[i]) {
                int swap = dims[i];
                dims[i] = dims[k];
                dims[k] = swap;
            }
        dims[i] = dims[i] < 0 ? -dims[i] : dims[i];
    }
    return MPI_SUCCESS;
}

int MPI_Cart_create(MPI_Comm comm, int ndims, const int dims[], const int periods[], int reorder, MPI_Comm *out) {
    struct comm *of = comm_of(comm);
    (void)reorder;
    if (!of)
        return raise_error(comm, MPI_ERR_COMM, "MPI_Cart_create");
    long long nodes = 1;
    for (int i = 0; i < ndims && nodes <= of->size; i++)
        nodes *= dims[i] > 0 ? dims[i] : INT32_MAX;
    if (ndims < 0 || nodes > of->size)
        return raise_error(comm, MPI_ERR_DIMS, "MPI_Cart_create");
    int error = split(of, of->rank < nodes ? 0 : MPI_UNDEFINED, 0, out);
    struct comm *cart = error ? NULL : comm_of(*out);
    if (cart && (cart->dims = malloc(2 * (ndims + 1) * sizeof *cart->dims))) {
        cart->ndims = ndims;
        for (int i = 0; i < ndims; i++) {
            cart->dims[i] = dims[i];
            cart->dims[ndims + i] = periods[i] != 0;
        }
    }
    return raise_error(comm, error, "MPI_Cart_create");
}

static int coords_of(const struct comm *cart, int rank, int maxdims, int coords[]) {
    if (!cart)
        return MPI_ERR_COMM;
    if (!cart->dims)
        return MPI_ERR_TOPOLOGY;
    if (rank < 0 || rank >= cart->size)
        return MPI_ERR_RANK;
    for (int i = cart->ndims - 1; i >= 0; rank /= cart->dims[i--])
        if (i < maxdims)
            coords[i] = rank % cart->dims[i];
    return MPI_SUCCESS;
}

/* MPI_PROC_NULL: beside the grid. */
static int rank_at(const struct comm *cart, const int coords[]) {
    int rank = 0;
    for (int i = 0; i < cart->ndims; i++) {
        int length = cart->dims[i], at = coords[i];
        if (cart->dims[cart->ndims + i])
            at = (at % length + length) % length;
        if (at < 0 || at >= length)
            return MPI_PROC_NULL;
        rank = rank * length + at;
    }
    return rank;
}

int MPI_Cart_get(MPI_Comm comm, int maxdims, int dims[], int periods[], int coords[]) {
    struct comm *cart = comm_of(comm);
    int error = coords_of(cart, cart ? cart->rank : 0, maxdims, coords);
    for (int i = 0; !error && i < cart->ndims && i < maxdims; i++) {
        dims[i] = cart->dims[i];
        periods[i] = cart->dims[cart->ndims + i];
    }
    return raise_error(comm, error, "MPI_Cart_get");
}

int MPI_Cart_coords(MPI_Comm comm, int rank, int maxdims, int coords[]) {
    return raise_error(comm, coords_of(comm_of(comm), rank, maxdims, coords), "MPI_Cart_coords");
}

int MPI_Cart_rank(MPI_Comm comm, const int coords[], int *rank) {
    struct comm *cart = comm_of(comm);
    if (!cart || !cart->dims)
        return raise_error(comm, cart ? MPI_ERR_TOPOLOGY : MPI_ERR_COMM, "MPI_Cart_rank");
    *rank = rank_at(cart, coords);
    return raise_error(comm, *rank < 0 ? MPI_ERR_ARG : MPI_SUCCESS, "MPI_Cart_rank");
}

int MPI_Cart_shift(MPI_Comm comm, int direction, int displacement, int *source, int *dest) {
    struct comm *cart = comm_of(comm);
    if (!cart || !cart->dims || direction < 0 || direction >= cart->ndims)
        return raise_error(comm, cart ? MPI_ERR_TOPOLOGY : MPI_ERR_COMM, "MPI_Cart_shift");
    int coords[cart->ndims];
    coords_of(cart, cart->rank, cart->ndims, coords);
    coords[direction] -= displacement;
    *source = rank_at(cart, coords);
    coords[direction] += 2 * displacement;
    *dest = rank_at(cart, coords);
    return MPI_SUCCESS;
}
