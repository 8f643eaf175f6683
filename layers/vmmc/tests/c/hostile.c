/* A rank that writes what it likes into its rings of NX (argument `nx`) or BSP (`bsp`), by a seed: the others get an
 * error, or what it did means nothing; none crashes or waits for ever, and all can leave, also (`leave`, `stall`) while
 * it takes nothing. Rank 1 is hostile, rank 0 is not. */
#include "../../pairs/pairs.h"

#include <bsp.h>
#include <errno.h>
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t state;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void handler(long type, long count, long node, long ptype) {
    (void)type, (void)count, (void)node, (void)ptype;
}

/* Words near those that an honest rank of NX writes. */
static void attack_nx(void) {
    struct pairs pairs;
    if (pairs_open(&pairs, "nx", 256 << 10, "NONE", 30000) < 0) exit(3);
    uint64_t at = 0;
    for (uint64_t i = 0; i < 300; i++) {
        /* Mostly as it should be, so that the lies come late. */
        struct {
            uint32_t context;
            int32_t type, ptype, zero;
            uint64_t bytes;
        } record = {0, (int32_t)(next() % 4), 0, 0, next() % 600};
        if (next() % 20 == 0) record.bytes = next() % 10000;
        uint64_t follow = record.bytes;
        if (i > 20 && next() % 40 == 0) record.bytes = next() % 2 ? next() : next() % 300000;
        if (i > 20 && next() % 80 == 0) record.type = (int32_t)next();
        if (i > 20 && next() % 80 == 0) record.context = (uint32_t)(next() % 4);
        pairs_put_ring(&pairs, 0, 0, 256 << 10, at, &record, sizeof record);
        at += sizeof record + follow;
        pairs_put_word(&pairs, 0, 0, i < 50 || next() % 60 ? at : next() % (2 * at));
        /* The word 1 ends all at once. */
        int word = (int)(next() % PAIRS_WORDS);
        if (next() % 40 == 0 && (word != 1 || i > 200)) pairs_put_word(&pairs, 0, word, next() % 2 ? next() : next() % 400000);
        for (int turn = 0; turn < 20; turn++) pairs_poll(&pairs);
    }
    pairs_close(&pairs);
    exit(0);
}

/* Takes nothing, and keeps writing a word that means nothing. An honest rank that only has to leave does so. */
static void keep_awake(void) {
    struct pairs pairs;
    if (pairs_open(&pairs, "nx", 256 << 10, "NONE", 30000) < 0) exit(3);
    for (uint64_t i = 1; !pairs_ended(&pairs, 0); i++) {
        if (i > 4500 || (pairs_put_word(&pairs, 0, 7, i) < 0 && !pairs_ended(&pairs, 0))) exit(4);
        usleep(10000);
        pairs_poll(&pairs);
    }
    pairs_close(&pairs);
    exit(0);
}

static const char *marker(void) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/has-left", getenv("HAMLYN_DIR"));
    return path;
}

static void has_left(void) {
    FILE *made = fopen(marker(), "w");
    if (made) fclose(made);
}

/* Takes no turns. An honest rank goes on, and leaves. */
static void stall(void) {
    struct pairs pairs;
    if (pairs_open(&pairs, "nx", 256 << 10, "NX_UPDATE", 30000) < 0) exit(3);
    for (int i = 0; access(marker(), F_OK); i++) {
        if (i > 4500) exit(4);
        usleep(10000);
    }
    unlink(marker());
    exit(0);
}

static int send_and_leave(int to_staller) {
    static char bytes[1 << 20];
    /* Called when NX has left. */
    if (to_staller) atexit(has_left);
    for (int i = 0; i < 100; i++)
        if (isend(1, bytes, sizeof bytes, 1, 0) < 0) return 1;
    return 0;
}

/* Supersteps of puts, gets, messages and answers as BSP has them, with a lie in one of twenty, so that it comes late. */
static void attack_bsp(int answers_more) {
    struct pairs pairs;
    if (pairs_open(&pairs, "bsp", 256 << 10, "NONE", 30000) < 0) exit(3);
    uint64_t at = 0;
    for (int step = 0; step < 400; step++) {
        /* The first stream is that of bsp_begin; each has its length first; a record and 8 bytes are at least a GET. */
        uint64_t words[64] = {0}, count = 1;
        if (step == 1) {
            uint64_t push[4] = {3, 0, 0, 0};
            memcpy(&words[count], push, sizeof push);
            count += 4;
        }
        for (uint64_t i = 0; step > 1 && i < next() % 8; i++) {
            uint64_t kind = next() % 3, put[5] = {kind, 0, kind == 2 ? 0 : 8 * (next() % 4), 8, next()};
            memcpy(&words[count], put, sizeof put);
            count += kind == 0 ? 4 : 5;
        }
        /* The highest bit: there is more than puts and messages. */
        words[0] = 8 * (count - 1) | (step ? 1ull << 63 : 0);
        int lies = !answers_more && next() % 20 == 0;
        if (lies && count > 1 && next() % 4) words[1 + next() % (count - 1)] = next() % 2 ? next() : next() % 40;
        if (lies && next() % 4 == 0) words[0] = next() % 2 ? next() : next() % 400;
        pairs_put_ring(&pairs, 0, 0, 256 << 10, at, words, 8 * count);
        at += 8 * count;
        if (step > 1) {
            uint64_t answer[2] = {lies && next() % 2 ? next() % 16 : 8, next()};
            if (answers_more && step == 5) answer[0] = 1 << 30;
            pairs_put_ring(&pairs, 0, 0, 256 << 10, at, answer, sizeof answer);
            at += sizeof answer;
        }
        pairs_put_word(&pairs, 0, 0, lies && next() % 3 == 0 ? next() % (2 * at) : at);
        uint64_t taken = pairs_word(&pairs, 0, 0);
        pairs_put_word(&pairs, 0, 1, lies && next() % 3 == 0 ? next() : taken);
        for (int turn = 0; turn < 20; turn++) pairs_poll(&pairs);
    }
    pairs_close(&pairs);
    exit(0);
}

/* An error of a superstep ends the program: with 1, as bsp.h says. */
static void suffer_bsp(void) {
    uint64_t words[6] = {1, 2, 3, 4, 5, 6}, got;
    bsp_begin(2);
    bsp_push_reg(&words[1], 4 * sizeof words[0]);
    bsp_sync();
    for (;;) {
        int count, bytes, status;
        bsp_get(1, &words[1], 0, &got, sizeof got);
        bsp_send(1, NULL, words, sizeof words);
        bsp_sync();
        if (words[0] != 1 || words[5] != 6) bsp_abort("hostile: memory that is not registered was written\n");
        for (bsp_qsize(&count, &bytes); count > 0; count--) {
            bsp_get_tag(&status, NULL);
            if (status < 0 || status > bytes) bsp_abort("hostile: a message of %d bytes\n", status);
            bsp_move(&got, sizeof got);
        }
    }
}

int main(int argc, char **argv) {
    int bsp = argc > 1 && strcmp(argv[1], "bsp") == 0, leaves = argc > 1 && strcmp(argv[1], "leave") == 0;
    int answers = bsp && argc > 2 && strcmp(argv[2], "answers") == 0;
    int stalls = argc > 1 && strcmp(argv[1], "stall") == 0;
    state = 88172645463325252u + 7919 * (argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    if (strcmp(getenv("HAMLYN_JOB_RANK") ? getenv("HAMLYN_JOB_RANK") : "", "1") == 0) {
        for (int i = 0; i < 10; i++) next();
        if (bsp) attack_bsp(answers);
        if (leaves) keep_awake();
        if (stalls) stall();
        attack_nx();
    }
    if (bsp) suffer_bsp();
    if (leaves || stalls) return send_and_leave(stalls);
    static char bytes[1 << 20];
    _hrecv(3, bytes, sizeof bytes, handler);
    long mid = isend(1, bytes, sizeof bytes, 1, 0), received = 0;
    while (_crecvx(-1, bytes, sizeof bytes, 1, -1, NULL) == 0) received++;
    if (errno != EPROTO && errno != EPIPE && errno != ECONNRESET && errno != EMSGSIZE) {
        fprintf(stderr, "hostile: %s\n", strerror(errno));
        return 1;
    }
    int first = errno;
    if (first != EMSGSIZE && _msgwait(mid) == 0 && first == EPROTO) return 1;
    printf("hostile: %ld messages, then %s\n", received, strerror(first));
    return 0;
}
