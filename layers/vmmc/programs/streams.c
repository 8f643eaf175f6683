#include "streams.h"

#include <stdlib.h>
#include <string.h>

#define JOIN_MS 60000

enum { WRITTEN, FREED };

int streams_open(struct streams *streams, uint64_t ring) {
    int result = pairs_open(&streams->pairs, "streams", ring, STREAMS_UPDATE, JOIN_MS);
    if (result < 0) return result;
    streams->of = calloc((size_t)streams->pairs.size, sizeof *streams->of);
    return streams->of ? 0 : VMMC_FULL;
}

void streams_close(struct streams *streams) {
    pairs_close(&streams->pairs);
    free(streams->of);
}

void streams_drop(struct streams *streams, int rank, int why) {
    struct pair *pair = &streams->pairs.of[rank];
    streams->of[rank].ended = why;
    vmmc_unbind(pair->bound);
    vmmc_unimport(pair->proxy);
    vmmc_unexport(pair->buffer);
    *pair = (struct pair){.error = why};
}

/* Whether the count is one that the rank may say now; if not, the rank is dropped. */
static int is_legal(struct streams *streams, int rank, uint64_t count, uint64_t before, uint64_t most) {
    if (count - before <= most - before) return 1;
    streams_drop(streams, rank, VMMC_REFUSED);
    return 0;
}

int64_t streams_room(struct streams *streams, int rank) {
    struct stream *stream = &streams->of[rank];
    if (stream->ended) return -1;
    uint64_t freed = pairs_word(&streams->pairs, rank, FREED);
    if (!is_legal(streams, rank, freed, stream->freed, stream->written)) return -1;
    stream->freed = freed;
    return (int64_t)(streams->pairs.bytes - (stream->written - freed)) - (int64_t)sizeof(struct record);
}

int streams_send(struct streams *streams, int rank, uint32_t kind, uint64_t at, const void *data, uint32_t bytes) {
    struct stream *stream = &streams->of[rank];
    struct record record = {kind, bytes, at};
    uint64_t ring = streams->pairs.bytes;
    if (stream->ended) return stream->ended;
    if (streams_room(streams, rank) < (int64_t)bytes) return VMMC_FULL;
    int result = pairs_put_ring(&streams->pairs, rank, 0, ring, stream->written, &record, sizeof record);
    if (result == 0)
        result = pairs_put_ring(&streams->pairs, rank, 0, ring, stream->written + sizeof record, data, bytes);
    if (result < 0) return result;
    stream->written += sizeof record + bytes;
    return pairs_put_word(&streams->pairs, rank, WRITTEN, stream->written);
}

int streams_next(struct streams *streams, int rank, struct record *next, uint32_t most) {
    struct stream *stream = &streams->of[rank];
    uint64_t ring = streams->pairs.bytes;
    if (stream->ended) return 0;
    uint64_t written = pairs_word(&streams->pairs, rank, WRITTEN);
    if (!is_legal(streams, rank, written, stream->read, stream->read + ring)) return 0;
    uint64_t here = written - stream->read;
    if (here == 0) return 0;
    if (here >= sizeof *next) pairs_take_ring(&streams->pairs, rank, 0, ring, stream->read, next, sizeof *next);
    if (here < sizeof *next || next->bytes > most || next->bytes > here - sizeof *next) {
        streams_drop(streams, rank, VMMC_REFUSED);
        return 0;
    }
    return 1;
}

void streams_take(struct streams *streams, int rank, const struct record *next, void *to) {
    struct stream *stream = &streams->of[rank];
    uint64_t ring = streams->pairs.bytes;
    pairs_take_ring(&streams->pairs, rank, 0, ring, stream->read + sizeof *next, to, next->bytes);
    stream->read += sizeof *next + next->bytes;
    if (stream->read - stream->told < ring / 4) return;
    /* An error is found again by streams_ended. */
    if (pairs_put_word(&streams->pairs, rank, FREED, stream->read) == 0) stream->told = stream->read;
}

int streams_ended(struct streams *streams, int rank) {
    return streams->of[rank].ended ? streams->of[rank].ended : pairs_ended(&streams->pairs, rank);
}

int streams_wait(struct streams *streams) {
    return pairs_wait(&streams->pairs, -1);
}
