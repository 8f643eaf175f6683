#include "pairs.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An update of so many bytes is one packet: it is there, or not. */
#define AT_ONCE 4000
/* Where there is no room others run so many times before this rank sleeps. */
#define YIELDS 100

static struct pairs_counts sent;

int pairs_open(struct pairs *pairs, const char *name, uint64_t bytes, const char *variable, int ms) {
    const char *update = getenv(variable);
    int uncombined = update && strcmp(update, "uncombined") == 0;
    int automatic = uncombined || (update && strcmp(update, "automatic") == 0);
    vmmc_binding_t binding = {.engine = VMMC_STORE, .combines = !uncombined, .ms = -1};
    memset(pairs, 0, sizeof *pairs);
    pairs->vmmc = vmmc_join(&pairs->rank, &pairs->size, ms);
    if (!pairs->vmmc) return vmmc_error();
    pairs->bytes = bytes;
    pairs->ms = -1;
    pairs->of = calloc((size_t)pairs->size, sizeof *pairs->of);
    if (!pairs->of) return VMMC_FULL;
    char text[64];
    for (int rank = 0; rank < pairs->size; rank++) {
        struct pair *pair = &pairs->of[rank];
        if (rank == pairs->rank) {
            pair->memory = calloc(1, PAIRS_CONTROL + bytes);
            if (!pair->memory) return VMMC_FULL;
            continue;
        }
        snprintf(text, sizeof text, "%s.%d", name, rank);
        vmmc_permissions_t permissions = {.users = VMMC_SAME, .rights = VMMC_WRITE};
        pair->buffer = vmmc_export(pairs->vmmc, text, PAIRS_CONTROL + bytes, &permissions);
        if (!pair->buffer) return vmmc_error();
        pair->memory = vmmc_address(pair->buffer);
    }
    if (vmmc_fence(pairs->vmmc, ms) < 0) return vmmc_error();
    snprintf(text, sizeof text, "%s.%d", name, pairs->rank);
    for (int rank = 0; rank < pairs->size; rank++) {
        struct pair *pair = &pairs->of[rank];
        if (rank == pairs->rank) continue;
        pair->proxy = vmmc_import_rank(pairs->vmmc, rank, text, ms);
        if (!pair->proxy) return vmmc_error();
        if (vmmc_bytes(pair->proxy) != PAIRS_CONTROL + bytes) return VMMC_REFUSED;
        if (automatic && !(pair->bound = vmmc_bind(pair->proxy, 0, PAIRS_CONTROL + bytes, &binding))) return vmmc_error();
    }
    return vmmc_fence(pairs->vmmc, ms);
}

void pairs_close(struct pairs *pairs) {
    for (int rank = 0; pairs->of && rank < pairs->size; rank++) {
        struct pair *pair = &pairs->of[rank];
        vmmc_unbind(pair->bound);
        vmmc_unimport(pair->proxy);
        vmmc_unexport(pair->buffer);
        if (rank == pairs->rank) free(pair->memory);
    }
    free(pairs->of);
    vmmc_close(pairs->vmmc);
    memset(pairs, 0, sizeof *pairs);
}

void pairs_never_wait(struct pairs *pairs) {
    pairs->ms = 0;
}

/* Keeps why the pair is at its end. */
static int done(struct pairs *pairs, struct pair *pair, int result) {
    if (result == VMMC_TIMED_OUT && pairs->ms == 0)
        pairs->fulls++;
    else if (result < 0 && !pair->error)
        pair->error = result;
    return result;
}

static int put(struct pairs *pairs, int rank, uint64_t at, const void *data, uint64_t bytes) {
    struct pair *pair = &pairs->of[rank];
    if (pair->error) return pair->error;
    if (rank == pairs->rank) {
        memcpy(pair->memory + at, data, bytes);
        return 0;
    }
    if (pair->bound) {
        int result = done(pairs, pair, vmmc_au_memcpy(pair->bound, at, data, bytes));
        if (result == 0) sent.automatic_bytes += bytes;
        return result;
    }
    int result = done(pairs, pair, vmmc_send(pair->proxy, at, data, bytes, pairs->ms));
    if (result == 0) {
        sent.deliberate_bytes += bytes;
        pairs->yields = 0;
    }
    return result;
}

/* A deliberate update is one message. */
static void count_message(struct pairs *pairs, int rank) {
    sent.messages += rank != pairs->rank && !pairs->of[rank].bound;
}

int pairs_put(struct pairs *pairs, int rank, uint64_t at, const void *data, uint64_t bytes) {
    count_message(pairs, rank);
    return put(pairs, rank, PAIRS_CONTROL + at, data, bytes);
}

int pairs_put_ring(struct pairs *pairs, int rank, uint64_t ring, uint64_t length, uint64_t count, const void *data,
                   uint64_t bytes) {
    uint64_t at = count % length, first = bytes < length - at ? bytes : length - at;
    int result = first ? pairs_put(pairs, rank, ring + at, data, first) : 0;
    if (result == 0 && bytes > first) result = pairs_put(pairs, rank, ring, (const char *)data + first, bytes - first);
    return result;
}

int64_t pairs_try_ring(struct pairs *pairs, int rank, uint64_t ring, uint64_t length, uint64_t count, const void *data,
                       uint64_t bytes) {
    uint64_t there = 0;
    while (there < bytes) {
        uint64_t at = (count + there) % length, piece = bytes - there < AT_ONCE ? bytes - there : AT_ONCE;
        if (piece > length - at) piece = length - at;
        int result = put(pairs, rank, PAIRS_CONTROL + ring + at, (const char *)data + there, piece);
        if (result == VMMC_TIMED_OUT) break;
        if (result < 0) return result;
        there += piece;
    }
    if (there) count_message(pairs, rank);
    return (int64_t)there;
}

void pairs_take_ring(struct pairs *pairs, int rank, uint64_t ring, uint64_t length, uint64_t count, void *to,
                     uint64_t bytes) {
    const unsigned char *from = pairs->of[rank].memory + PAIRS_CONTROL + ring;
    uint64_t at = count % length, first = bytes < length - at ? bytes : length - at;
    if (first) memcpy(to, from + at, first);
    if (bytes > first) memcpy((char *)to + first, from, bytes - first);
}

int pairs_put_word(struct pairs *pairs, int rank, int word, uint64_t value) {
    struct pair *pair = &pairs->of[rank];
    if (rank == pairs->rank) {
        __atomic_store_n((uint64_t *)(void *)pair->memory + word, value, __ATOMIC_RELEASE);
        return 0;
    }
    int result = put(pairs, rank, 8 * (uint64_t)word, &value, sizeof value);
    if (result == 0) count_message(pairs, rank);
    if (result < 0 || !pair->bound) return result;
    result = done(pairs, pair, vmmc_flush(pair->bound));
    uint64_t runs = vmmc_runs(pair->bound);
    sent.messages += runs - pair->runs;
    pair->runs = runs;
    return result;
}

uint64_t pairs_word(struct pairs *pairs, int rank, int word) {
    return __atomic_load_n((uint64_t *)(void *)pairs->of[rank].memory + word, __ATOMIC_ACQUIRE);
}

/* Whether a word has changed, or a rank has ended; calls nothing but vmmc_check. */
static int look(void *data) {
    struct pairs *pairs = data;
    int changed = 0;
    for (int rank = 0; rank < pairs->size; rank++) {
        struct pair *pair = &pairs->of[rank];
        if (!pair->memory) continue;
        for (int word = 0; word < PAIRS_WORDS; word++) {
            uint64_t now = pairs_word(pairs, rank, word);
            if (now == pair->seen[word]) continue;
            pair->seen[word] = now;
            changed = 1;
        }
        if (!pair->error && pair->proxy && done(pairs, pair, vmmc_check(pair->proxy)) < 0) changed = 1;
    }
    return changed;
}

int pairs_ended(struct pairs *pairs, int rank) {
    return pairs->of[rank].error;
}

int pairs_wait(struct pairs *pairs, int ms) {
    int is_full = pairs->fulls > pairs->fulls_seen && (ms < 0 || ms > 1);
    pairs->fulls_seen = pairs->fulls;
    if (is_full && ++pairs->yields < YIELDS) {
        pairs_poll(pairs);
        sched_yield();
        return 0;
    }
    int result = vmmc_wait_until(pairs->vmmc, look, pairs, is_full ? 1 : ms);
    return is_full && result == VMMC_TIMED_OUT ? 0 : result;
}

int pairs_poll(struct pairs *pairs) {
    vmmc_poll(pairs->vmmc);
    return look(pairs);
}

struct pairs_counts pairs_counts(void) {
    return sent;
}
