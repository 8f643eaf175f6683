/* Stream sockets for the programs (SHRIMP, 3), over pairs: a stream from each rank to each other, which carries records.
 *
 *     WRITTEN    to the reader: bytes that are in its ring, always whole records
 *     FREED      to the writer: bytes that were taken
 *
 * Nothing waits but streams_wait. STREAM_UPDATE chooses the form of update, as pairs.h says. What comes from another
 * rank is copied once, checked, and used; a rank that breaks the protocol is dropped.
 */
#ifndef STREAMS_H
#define STREAMS_H

#include "../pairs/pairs.h"

#define STREAMS_UPDATE "STREAM_UPDATE"

struct record {
    uint32_t kind, bytes; /* of the data behind it */
    uint64_t at;
};

struct stream {
    uint64_t written, freed, read, told; /* freed: by the other; told: of `read`, to the other */
    int ended;
};

struct streams {
    struct pairs pairs;
    struct stream *of;
};

/* Joins the job; rings of so many bytes, a power of two. */
int streams_open(struct streams *streams, uint64_t ring);
void streams_close(struct streams *streams);
/* Bytes of data that the next record to a rank can have; less than 0: none, or it has ended. A quarter of the ring may
 * be free without being told. */
int64_t streams_room(struct streams *streams, int rank);
/* All of a record, or VMMC_FULL and nothing; or why the rank has ended. */
int streams_send(struct streams *streams, int rank, uint32_t kind, uint64_t at, const void *data, uint32_t bytes);
/* 1: the next record of a rank is here, with at most `most` bytes of data. A longer one drops the rank. */
int streams_next(struct streams *streams, int rank, struct record *next, uint32_t most);
/* Copies the data of the record that streams_next has told, and goes on behind it. */
void streams_take(struct streams *streams, int rank, const struct record *next, void *to);
/* 0, or why the rank's streams are at their end. Records that it had sent can be taken until streams_drop. */
int streams_ended(struct streams *streams, int rank);
/* Gives up a rank, which learns of it. */
void streams_drop(struct streams *streams, int rank, int why);
/* Waits until something has come that this program has not looked at, or a rank has ended. */
int streams_wait(struct streams *streams);

#endif
