/* Of the library's own files.
 *
 *   mpi.c      starting, ending, errors, time        comm.c   communicators
 *   send.c     the protocol: handlers and what they answer, sending as there is room, waiting; over layers/match
 *   request.c  the calls of point to point           coll.c   collectives, over those of request.c
 *   type.c     layouts of types, reading and writing by pieces      op.c   operations of reductions
 */
#ifndef HAMLYN_MPI_INTERNAL_H
#define HAMLYN_MPI_INTERNAL_H

#include "match.h"
#include "mpi.h"
#include <stdbool.h>

/* Types. A type is a list of blocks, each a run of bytes beside an element's address. */
struct block {
    MPI_Aint at;
    size_t bytes;
};
struct type {
    size_t size;
    MPI_Aint lb, extent;
    /* The extent of a type made of it is a multiple. */
    MPI_Aint alignment;
    /* Elements lie one behind the other without gaps, the first at their address. */
    bool is_dense;
    /* The predefined type that it is made of, if there is one only; else 0. */
    MPI_Datatype base;
    /* Handles and requests that hold it. */
    int holders;
    size_t block_count;
    struct block blocks[];
};
/* The type of a handle; NULL: there is none. */
struct type *type_of(MPI_Datatype handle);
/* MPI_SUCCESS if so many elements can lie at `at`; nothing lies at NULL but what types made of addresses say. */
int check_elements(const void *at, size_t count, const struct type *type);
void type_hold(struct type *type);
void type_release(struct type *type);

/* A walk through the bytes of elements in memory. */
struct walk {
    char *at;
    struct type *type;
    size_t left; /* bytes */
    size_t block, within;
};
void walk_begin(struct walk *walk, const void *at, size_t count, struct type *type);
/* The next run of at most `most` bytes; 0: the end. */
size_t walk_next(struct walk *walk, size_t most, char **run);
/* Copies the next bytes out of, or into, the elements. Returns how many. */
size_t walk_read(struct walk *walk, void *to, size_t bytes);
size_t walk_write(struct walk *walk, const void *from, size_t bytes);
/* Whether blocks are so short that they are gathered first. */
bool walk_is_sparse(const struct walk *walk);
/* Copies elements to elements of another type: as many bytes as both have. */
void copy_elements(const void *from, size_t from_count, struct type *from_type, void *to, size_t to_count,
                   struct type *to_type);
void types_finish(void);

/* Operations: MPI_SUCCESS, or why it does not fit the type. */
int op_check(MPI_Op op, MPI_Datatype type);
bool op_commutes(MPI_Op op);
/* inout = in op inout */
void op_apply(MPI_Op op, const void *in, void *inout, int count, MPI_Datatype type);

/* Communicators. */
struct comm {
    /* Its handle, and requests that are not complete. */
    int holders;
    /* Of its messages; that of its collectives is one more. */
    unsigned context;
    int rank, size;
    int *world;  /* by rank in it */
    MPI_Errhandler errhandler;
    char name[MPI_MAX_OBJECT_NAME];
    int ndims;   /* with a topology: lengths, then whether each is periodic */
    int *dims;
};
struct comm *comm_of(MPI_Comm handle);
/* The rank in it of a rank in the world; MPI_UNDEFINED: none. */
int comm_rank_of(const struct comm *comm, int world);
void comm_release(struct comm *comm);
int comms_begin(int rank, int size);
void comms_finish(void);

/* Requests. */
enum state {
    FREE,      /* there is none */
    IDLE,      /* persistent, and not started */
    READY,     /* of a send: waits for room, to go eagerly */
    ASKS,      /* of a send: waits for room, to ask for the receive */
    ASKED,     /* of a send: waits for the receive */
    SENDS,     /* of a send: its data leaves */
    POSTED,    /* of a receive */
    ACCEPTED,  /* of a receive: waits for the data that it has asked for */
    ARRIVES,   /* of a receive: a handler fills its buffer */
    CLAIMS,    /* of a receive: its message arrives in a buffer of the library */
    DONE,
};
struct request {
    /* Of a posted receive; or the link of a send. Its peer is in the world, or MPI_ANY_SOURCE. */
    struct match match;
    int id;
    enum state state;
    bool is_send, is_sync, is_persistent, is_freed, is_cancelled;
    bool is_exact; /* of a collective's receive: a shorter message is an error */
    struct comm *comm;
    void *buf;
    void *copy;    /* of a buffered send: given back with it */
    size_t count;
    struct type *type;
    size_t bytes;  /* of a send: to be sent; of a receive: room, then what comes */
    size_t moved;
    unsigned remote;
    struct FM_stream *stream;
    struct walk walk;
    int error;
    int came_from, came_tag;
    struct request *next; /* when it is given back */
};
struct request *request_of(MPI_Request handle);
struct request *request_new(void);
void request_give_back(struct request *request);
void requests_finish(void);

/* send.c */
struct figures {
    unsigned long long sent, sent_bytes, asked;
    unsigned long long expected, expected_bytes;     /* whose receive was posted */
    unsigned long long unexpected, unexpected_bytes; /* copied once more */
    unsigned long long late;                         /* asked for a receive that was not posted */
    unsigned long long held_most;                    /* bytes of unexpected messages at once */
    unsigned long long refused;
};
extern struct figures figures;
int protocol_begin(void);
void protocol_finish(void);
void send_start(struct request *request);
void receive_start(struct request *request);
/* One turn: sends as there is room, takes what has come, at most so many bytes. Returns how many. */
int progress(unsigned bytes_max);
/* What a receive can take now; for FM_extract. */
unsigned wanted(const struct request *request);
struct idle {
    unsigned turns, busy;
};
/* Nothing has come: spins, yields, sleeps. Whether the time has come to ask for the dead: it slept, or there were many
 * turns in which something came: others may send without end. */
bool relax(struct idle *idle, bool has_come);
/* Whether a rank of the world, or all others of the communicator, have left, and nothing more comes. */
bool is_dead(const struct comm *comm, int peer);
/* Completes a request with an error if its peer has left. */
void fail_if_dead(struct request *request);
void wait_for(struct request *request);
void wait_for_sends(void);

/* A message that came before its receive. */
struct message {
    struct match match;
    size_t bytes;
    bool is_asking;  /* its data is asked for by `remote`; else it is in `data` */
    bool is_whole;   /* it has arrived, or never will: `arrived` bytes are there */
    size_t arrived;
    unsigned remote;
    struct request *claimer;
    char data[];
};
extern struct matcher matcher;
/* The first message for a receive, of a member of its communicator; NULL: none. */
struct message *message_for(struct request *request);

/* request.c, for collectives: ranks are of the communicator, nothing is checked. */
struct request *hm_isend(const void *buf, size_t count, struct type *type, int dest, int tag, unsigned context,
                         bool is_sync, struct comm *comm);
struct request *hm_irecv(void *buf, size_t count, struct type *type, int source, int tag, unsigned context,
                         struct comm *comm);
/* Waits, gives the request back, and returns its error. NULL: there was no memory. */
int hm_wait(struct request *request);

/* mpi.c */
extern bool is_running;
/* Raises an error as the communicator's handler says; returns its code. */
int raise_error(MPI_Comm comm, int code, const char *call);
/* The same, where the communicator may be no more. */
int raise_error_by(MPI_Errhandler handler, int code, const char *call);

/* coll.c: no checks. */
int coll_barrier(struct comm *comm);
int coll_allgather(void *all, int bytes, struct comm *comm);

#endif
