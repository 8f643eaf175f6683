/* DFS-sockets (SHRIMP, 3): a cluster file system over stream sockets. Its files are spread over the disks of all nodes,
 * and over the memory of all nodes as one cache: clients read files that are larger than the memory of one.
 *
 *     dfs [CLIENTS] [BLOCKS] [CACHE] [PASSES] [--die RANK]      4, 160, 512, 2
 *
 * Each client reads a file of BLOCKS blocks of 8 KiB, 4 KiB at a time, PASSES times after a first pass that warms the
 * caches; clients are on half of the nodes. A node has room for CACHE blocks: a quarter for copies of blocks of others.
 * STREAM_UPDATE is deliberate, automatic or uncombined (4.5.1).
 *
 *     a read     the block's copy in this node's cache; else its home is asked: the node that a hash of its number says
 *     the home   its cache, else its disk: a file that has its blocks
 *
 * With --die, that node kills itself when it is asked for its third block after the first pass. Reads of its blocks fail
 * then, are counted as lost, and nobody else is held up. All other bytes are compared with the generator of the files.
 */
#include "counts.h"
#include "streams.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 8192u
#define READ 4096u
#define OTHER_PASSES 3 /* that warms the caches, and before and behind those that are measured one without reads */

/* Records: `at` is the block, or the pass. The first carries nothing, the next two the block. */
enum { ASK, CACHED, FROM_DISK, PASSED };

struct cache {
    uint32_t room, used, hand;
    uint32_t *slot_of; /* of each block of all files: slot and 1, or 0 */
    uint64_t *block_of;
    unsigned char *recent, *bytes; /* of each slot */
};

struct client {
    uint64_t first, at; /* its file's first block; the next byte to read */
    int waits;          /* for the home of the block there */
};

/* Of reads, and what was sent. */
struct figures {
    uint64_t local, remote, disk, lost;
    struct pairs_counts sent;
};

static struct streams streams;
static int rank, size, disk, clients_here, is_measured;
static uint64_t clients = 4, blocks = 160, passes = 2, pass, asked;
static long dies = -1;
static struct cache own, copies;
static struct client *client;
static struct figures figures;
static struct pairs_counts before;
/* Of each node: passes that its clients have done, and its figures by then. */
static uint64_t *passed;
static struct figures *figures_of;

static void check(int fine, const char *doing) {
    if (fine) return;
    fprintf(stderr, "dfs: rank %d: %s: %s\n", rank, doing, vmmc_error_text());
    exit(1);
}

static void *made(uint64_t count, uint64_t bytes) {
    void *made = calloc(count, bytes);
    check(made != NULL, "no memory");
    return made;
}

static void open_cache(struct cache *cache, uint64_t room) {
    *cache = (struct cache){.room = (uint32_t)room, .slot_of = made(clients * blocks, sizeof *cache->slot_of),
                            .block_of = made(room, sizeof *cache->block_of), .recent = made(room, 1),
                            .bytes = made(room, BLOCK)};
}

static void close_cache(struct cache *cache) {
    free(cache->slot_of);
    free(cache->block_of);
    free(cache->recent);
    free(cache->bytes);
}

static unsigned char *find(struct cache *cache, uint64_t block) {
    uint32_t slot = cache->slot_of[block];
    if (slot == 0) return NULL;
    cache->recent[slot - 1] = 1;
    return cache->bytes + (uint64_t)BLOCK * (slot - 1);
}

/* Room for a block, in place of one that was not used since the hand has passed it (CLOCK). */
static unsigned char *place(struct cache *cache, uint64_t block) {
    uint32_t slot = cache->used;
    if (slot < cache->room) {
        cache->used++;
    } else {
        while (cache->recent[cache->hand]) {
            cache->recent[cache->hand] = 0;
            cache->hand = (cache->hand + 1) % cache->room;
        }
        slot = cache->hand;
        cache->hand = (cache->hand + 1) % cache->room;
        cache->slot_of[cache->block_of[slot]] = 0;
    }
    cache->block_of[slot] = block;
    cache->slot_of[block] = slot + 1;
    return find(cache, block);
}

static int home_of(uint64_t block) {
    return (int)((block * 0x9E3779B97F4A7C15 >> 32) * (uint64_t)size >> 32);
}

/* Words of all files, each another one. */
static uint64_t word_of(uint64_t block, uint64_t word) {
    return (block * (BLOCK / 8) + word + 1) * 0x9E3779B97F4A7C15;
}

/* The file of this node's disk: its blocks at their places, and nothing between them. */
static void fill_disk(void) {
    const char *dir = getenv("TMPDIR");
    char path[4096];
    uint64_t words[BLOCK / 8];
    snprintf(path, sizeof path, "%s/dfs.%d", dir ? dir : "/tmp", (int)getpid());
    disk = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    check(disk >= 0 && unlink(path) == 0, "no file for the disk");
    for (uint64_t block = 0; block < clients * blocks; block++) {
        if (home_of(block) != rank) continue;
        for (uint64_t i = 0; i < BLOCK / 8; i++) words[i] = word_of(block, i);
        check(pwrite(disk, words, BLOCK, (off_t)(block * BLOCK)) == BLOCK, "the disk is full");
    }
}

/* A block whose home is here. */
static unsigned char *of_home(uint64_t block, int *from_disk) {
    unsigned char *data = find(&own, block);
    *from_disk = data == NULL;
    if (data) return data;
    data = place(&own, block);
    check(pread(disk, data, BLOCK, (off_t)(block * BLOCK)) == BLOCK, "the disk cannot be read");
    return data;
}

/* A client has its next bytes. */
static void use(struct client *of, const unsigned char *data) {
    uint64_t block = of->first + of->at / BLOCK, first = of->at % BLOCK / 8, wrong = 0;
    const uint64_t *words = (const uint64_t *)(const void *)data + first;
    for (uint64_t i = 0; i < READ / 8; i++) wrong |= words[i] ^ word_of(block, first + i);
    check(wrong == 0, "bytes that are not the file's");
    of->at += READ;
}

/* Reads until a block must be waited for, or the file is read: whether it has read something. */
static int advance(struct client *of) {
    uint64_t from = of->at;
    while (of->at < blocks * BLOCK && !of->waits) {
        uint64_t block = of->first + of->at / BLOCK;
        int home = home_of(block), from_disk;
        const unsigned char *data = home == rank ? of_home(block, &from_disk) : find(&copies, block);
        if (data) {
            *(home == rank && from_disk ? &figures.disk : &figures.local) += 1;
            use(of, data);
        } else if (streams_send(&streams, home, ASK, block, NULL, 0) == 0) {
            of->waits = 1;
        } else {
            figures.lost++;
            of->at += READ;
        }
    }
    return of->at != from;
}

/* Whether the record was one that the rank may send. */
static int handle(int from, const struct record *record) {
    struct figures its;
    uint64_t block = record->at;
    int from_disk;
    switch (record->kind) {
        case ASK:
            streams_take(&streams, from, record, NULL);
            if (record->bytes != 0 || block >= clients * blocks || home_of(block) != rank) return 0;
            if (dies == rank && is_measured && ++asked == 3) raise(SIGKILL);
            const unsigned char *data = of_home(block, &from_disk);
            /* There is room for the clients of all nodes: one that asks for more is dropped. */
            return streams_send(&streams, from, from_disk ? FROM_DISK : CACHED, block, data, BLOCK) != VMMC_FULL;
        case CACHED:
        case FROM_DISK:
            if (record->bytes != BLOCK || home_of(block % (clients * blocks)) != from) return 0;
            for (int i = 0; i < clients_here; i++) {
                struct client *of = &client[i];
                if (!of->waits || of->first + of->at / BLOCK != block) continue;
                unsigned char *copy = find(&copies, block);
                if (!copy) copy = place(&copies, block);
                streams_take(&streams, from, record, copy);
                of->waits = 0;
                *(record->kind == CACHED ? &figures.remote : &figures.disk) += 1;
                use(of, copy);
                advance(of);
                return 1;
            }
            return 0;
        case PASSED:
            if (record->bytes != sizeof its || record->at != passed[from]) return 0;
            streams_take(&streams, from, record, &its);
            figures_of[from] = its;
            passed[from]++;
            return 1;
        default:
            return 0;
    }
}

/* Takes all that a rank has sent: whether there was something. */
static int serve(int from) {
    struct record record;
    int some = 0, ended = streams_ended(&streams, from);
    while (streams_next(&streams, from, &record, BLOCK)) {
        some = 1;
        if (!handle(from, &record)) streams_drop(&streams, from, VMMC_REFUSED);
    }
    if (streams.of[from].ended) ended = streams.of[from].ended; /* It was dropped meanwhile. */
    if (!ended || passed[from] == passes + OTHER_PASSES) return some;
    passed[from] = passes + OTHER_PASSES;
    memset(&figures_of[from], 0, sizeof figures_of[from]);
    streams_drop(&streams, from, ended);
    for (int i = 0; i < clients_here; i++) {
        struct client *of = &client[i];
        if (of->waits && home_of(of->first + of->at / BLOCK) == from) of->waits = 0; /* It asks again, in vain. */
    }
    return 1;
}

/* The clients here read their files once, or not; returns when those of all nodes have. */
static void run_pass(int reads) {
    int done = 0;
    for (int i = 0; reads && i < clients_here; i++) client[i].at = 0;
    for (;;) {
        int some = 0, all = 1;
        for (int other = 0; other < size; other++)
            if (other != rank) some |= serve(other);
        for (int i = 0; i < clients_here; i++) {
            some |= advance(&client[i]);
            all &= client[i].at == blocks * BLOCK;
        }
        if (all && !done) {
            figures.sent = counts_since(pairs_counts(), before);
            for (int other = 0; other < size; other++)
                if (other != rank) streams_send(&streams, other, PASSED, pass, &figures, sizeof figures);
            done = some = 1;
        }
        for (int other = 0; other < size; other++) all &= other == rank || passed[other] > pass;
        if (all) break;
        if (!some) check(streams_wait(&streams) == 0, "waiting");
    }
    pass++;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv) {
    uint64_t room = 512, *numbers[] = {&clients, &blocks, &room, &passes};
    if (argc > 2 && strcmp(argv[argc - 2], "--die") == 0) {
        dies = atol(argv[argc - 1]);
        argc -= 2;
    }
    for (int i = 1; i < argc && i <= 4; i++) *numbers[i - 1] = strtoull(argv[i], NULL, 10);
    uint64_t ring = BLOCK;
    while (ring < 2 * clients * (BLOCK + 64)) ring *= 2;
    check(clients > 0 && blocks > 0 && room >= 4 && clients * blocks < UINT32_MAX && dies != 0, "no such arguments");
    check(streams_open(&streams, ring) == 0, "joining");
    rank = streams.pairs.rank;
    size = streams.pairs.size;
    open_cache(&own, room - room / 4);
    open_cache(&copies, room / 4);
    client = made(clients, sizeof *client);
    passed = made((uint64_t)size, sizeof *passed);
    figures_of = made((uint64_t)size, sizeof *figures_of);
    int half = size > 1 ? size / 2 : 1;
    for (uint64_t i = 0; i < clients; i++)
        if ((int)(i % (uint64_t)half) == rank) client[clients_here++].first = i * blocks;
    fill_disk();
    run_pass(1);
    /* Nobody reads between this and the next pass. */
    memset(&figures, 0, sizeof figures);
    before = pairs_counts();
    is_measured = 1;
    run_pass(0);
    double began = now();
    for (uint64_t i = 0; i < passes; i++) run_pass(1);
    double took = now() - began;
    run_pass(0); /* All have been served: the figures are whole. */
    uint64_t reads = passes * blocks * (BLOCK / READ) * (uint64_t)clients_here;
    check(figures.local + figures.remote + figures.disk + figures.lost == reads, "reads are missing");
    check(figures.lost == 0 || dies >= 0, "a node has died");
    if (rank == 0) {
        for (int other = 1; other < size; other++) {
            struct figures *its = &figures_of[other];
            figures.local += its->local;
            figures.remote += its->remote;
            figures.disk += its->disk;
            figures.lost += its->lost;
            counts_add(&figures.sent, its->sent);
        }
        reads = figures.local + figures.remote + figures.disk;
        printf("dfs: %" PRIu64 " clients, files of %" PRIu64 " KiB, %d nodes with caches of %" PRIu64 " KiB: %.1f MB/s\n",
               clients, blocks * BLOCK / 1024, size, room * BLOCK / 1024, 1e-6 * READ * (double)reads / took);
        counts_print("dfs", size, counts_update(STREAMS_UPDATE), took, figures.sent);
        printf(" local=%" PRIu64 " remote=%" PRIu64 " disk=%" PRIu64 " lost=%" PRIu64 "\n", figures.local, figures.remote,
               figures.disk, figures.lost);
    }
    close(disk);
    close_cache(&own);
    close_cache(&copies);
    streams_close(&streams);
    free(client);
    free(passed);
    free(figures_of);
    return 0;
}
