/* Render-sockets (SHRIMP, 3): a volume renderer over stream sockets that casts rays, balances its load by a central
 * queue of tasks, and goes on when a worker dies.
 *
 *     render [X Y Z] [IMAGE] [--png FILE] [--die|--lie RANK:TASK]      64 64 64, 128
 *
 * Rank 0 controls. It sends the volume, X*Y*Z voxels, to each worker when they connect. When all have it, it sends a tile
 * of the image, of 16*16 pixels, whenever a worker asks for one. A worker that dies, or sends something else than its
 * tile, is given up, and its tile goes to another; without workers the controller renders by itself. A worker that only
 * stops is waited for, and one that sends wrong pixels is not found out. STREAM_UPDATE is deliberate, automatic or
 * uncombined.
 *
 * With --die, that worker kills itself when it has rendered so many tiles, and before it sends the last of them; with
 * --lie it sends that one as another, and is given up. The controller also renders all by itself: the images are the
 * same to the bit, and so is the file, read again.
 */
#include "counts.h"
#include "streams.h"

#include <math.h>
#include <png.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define TILE 16
#define PIXELS (TILE * TILE * 3)
#define RING (256u << 10)
#define PIECE (32u << 10)

/* Records: to a worker a piece of the volume (`at`: its first voxel), tiles, and the end; from it a request, tiles, and
 * in answer to the end what it has sent. */
enum { VOLUME, TASK, END, WANTED, RESULT, LEFT };

struct worker {
    uint64_t loaded; /* voxels that were sent to it */
    long tile;       /* its task, or -1 */
    int came, wants, left;
};

static struct streams streams;
static int rank, size;
static int extent[3] = {64, 64, 64}, image = 128;
static unsigned char *volume;
static uint64_t voxels;
static long tiles;

static void check(int fine, const char *doing) {
    if (fine) return;
    fprintf(stderr, "render: rank %d: %s: %s\n", rank, doing, vmmc_error_text());
    exit(1);
}

static void *made(uint64_t count, uint64_t bytes) {
    void *made = calloc(count, bytes);
    check(made != NULL, "no memory");
    return made;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A shell around three balls. */
static void fill_volume(void) {
    static const float balls[3][4] = {{0.3f, 0, 0.1f, 0.25f}, {-0.35f, 0.2f, 0, 0.2f}, {0, -0.35f, -0.2f, 0.15f}};
    for (uint64_t i = 0; i < voxels; i++) {
        uint64_t place[3] = {i % (uint64_t)extent[0], i / (uint64_t)extent[0] % (uint64_t)extent[1],
                             i / ((uint64_t)extent[0] * (uint64_t)extent[1])};
        float p[3], density = 0, radius = 0;
        for (int j = 0; j < 3; j++) {
            p[j] = 2 * ((float)place[j] + 0.5f) / (float)extent[j] - 1;
            radius += p[j] * p[j];
        }
        radius = sqrtf(radius);
        if (radius > 0.8f && radius < 0.9f && p[0] + p[1] < 0.5f) density = 40;
        for (int ball = 0; ball < 3; ball++) {
            float d = 0;
            for (int j = 0; j < 3; j++) d += (p[j] - balls[ball][j]) * (p[j] - balls[ball][j]);
            float inside = 1 - sqrtf(d) / balls[ball][3];
            if (inside > 0) density = fmaxf(density, 100 + 150 * inside);
        }
        volume[i] = (unsigned char)density;
    }
}

/* The density between eight voxels; 0 outside. */
static float sample(const float p[3]) {
    float part[3], sum = 0;
    int low[3];
    for (int i = 0; i < 3; i++) {
        if (!(p[i] >= 0 && p[i] < (float)(extent[i] - 1))) return 0;
        low[i] = (int)p[i];
        part[i] = p[i] - (float)low[i];
    }
    const unsigned char *at = volume + ((int64_t)low[2] * extent[1] + low[1]) * extent[0] + low[0];
    for (int corner = 0; corner < 8; corner++) {
        int x = corner & 1, y = corner >> 1 & 1, z = corner >> 2;
        float weight = (x ? part[0] : 1 - part[0]) * (y ? part[1] : 1 - part[1]) * (z ? part[2] : 1 - part[2]);
        sum += weight * (float)at[((int64_t)z * extent[1] + y) * extent[0] + x];
    }
    return sum;
}

/* The light of one ray, from the eye on, until nothing shines through. */
static void cast(const float from[3], const float along[3], float length, unsigned char pixel[3]) {
    float colour[3] = {0, 0, 0}, clear = 1;
    for (float t = 0; t < length && clear > 0.02f; t += 0.5f) {
        float p[3], slope[3], square = 0, light = 0;
        for (int i = 0; i < 3; i++) p[i] = from[i] + t * along[i];
        float density = sample(p);
        if (density < 8) continue;
        for (int i = 0; i < 3; i++) {
            float q[3] = {p[0], p[1], p[2]};
            q[i] += 1;
            slope[i] = sample(q) - density;
            square += slope[i] * slope[i];
        }
        for (int i = 0; i < 3 && square > 0; i++) light += slope[i] * along[i] / sqrtf(square);
        float opaque = density > 90 ? 0.4f : 0.03f, shade = opaque * clear * (0.3f + 0.7f * fmaxf(light, 0));
        colour[0] += shade * density;
        colour[1] += shade * (density > 90 ? 255 - density / 2 : 200);
        colour[2] += shade * (density > 90 ? 60 : 255);
        clear *= 1 - opaque;
    }
    for (int i = 0; i < 3; i++) pixel[i] = (unsigned char)fminf(colour[i], 255);
}

/* A tile's pixels, row by row: parallel rays, from above at an angle. */
static void render(long tile, unsigned char pixels[PIXELS]) {
    static const float right[3] = {0.8f, 0, -0.6f}, up[3] = {-0.3f, 0.8660254f, -0.4f}, along[3] = {0.5196152f, 0.5f, 0.6928203f};
    float length = 0;
    for (int i = 0; i < 3; i++) length += (float)extent[i] * (float)extent[i];
    length = sqrtf(length);
    float width = 0.65f * length;
    long across = image / TILE;
    for (int i = 0; i < TILE * TILE; i++) {
        float u = ((float)(tile % across * TILE + i % TILE) + 0.5f) / (float)image - 0.5f, from[3];
        float v = 0.5f - ((float)(tile / across * TILE + i / TILE) + 0.5f) / (float)image;
        for (int j = 0; j < 3; j++)
            from[j] = 0.5f * (float)(extent[j] - 1) + width * (u * right[j] + v * up[j]) - 0.5f * length * along[j];
        cast(from, along, length, pixels + 3 * i);
    }
}

static void put_tile(unsigned char *to, long tile, const unsigned char pixels[PIXELS]) {
    long across = image / TILE;
    for (int row = 0; row < TILE; row++)
        memcpy(to + 3 * ((tile / across * TILE + row) * image + tile % across * TILE), pixels + 3 * TILE * row, 3 * TILE);
}

static int work(long dies, long lies) {
    unsigned char pixels[PIXELS];
    uint64_t loaded = 0;
    long count = 0;
    for (;;) {
        struct record record;
        int ended = streams_ended(&streams, 0);
        while (streams_next(&streams, 0, &record, PIECE)) {
            switch (record.kind) {
                case VOLUME:
                    check(record.at == loaded && record.bytes <= voxels - loaded, "another volume");
                    streams_take(&streams, 0, &record, volume + loaded);
                    loaded += record.bytes;
                    if (loaded == voxels) check(streams_send(&streams, 0, WANTED, 0, NULL, 0) == 0, "asking");
                    break;
                case TASK:
                    check(record.bytes == 0 && record.at < (uint64_t)tiles && loaded == voxels, "no such tile");
                    streams_take(&streams, 0, &record, NULL);
                    render((long)record.at, pixels);
                    if (++count == dies) raise(SIGKILL);
                    if (count == lies) record.at++;
                    check(streams_send(&streams, 0, RESULT, record.at, pixels, PIXELS) == 0, "sending pixels");
                    break;
                default: {
                    struct pairs_counts sent = pairs_counts();
                    check(record.kind == END, "no such record");
                    check(streams_send(&streams, 0, LEFT, 0, &sent, sizeof sent) == 0, "leaving");
                    return 0;
                }
            }
        }
        check(!ended && !streams.of[0].ended, "the controller has died, or gave this worker up");
        check(streams_wait(&streams) == 0, "waiting");
    }
}

/* Of the controller. */
static struct worker *workers;
static long *queue, queued, done, again;
static int living, coming, lost;

/* Tiles are given out when all workers have the volume, or are lost. */
static void count_in(struct worker *worker) {
    if (!worker->came) coming--;
    worker->came = 1;
}

/* Takes what a worker has sent, and gives it what it wants: whether there was something. */
static int serve(int of, unsigned char *to, struct pairs_counts *sent) {
    struct worker *worker = &workers[of];
    struct record record;
    unsigned char pixels[PIXELS];
    struct pairs_counts its;
    int some = 0, ended = streams_ended(&streams, of);
    while (streams_next(&streams, of, &record, PIXELS)) {
        some = 1;
        if (record.kind == WANTED && record.bytes == 0 && worker->loaded == voxels && !worker->wants && worker->tile < 0) {
            streams_take(&streams, of, &record, NULL);
            count_in(worker);
            worker->wants = 1;
        } else if (record.kind == RESULT && record.bytes == PIXELS && worker->tile >= 0 &&
                   record.at == (uint64_t)worker->tile) {
            streams_take(&streams, of, &record, pixels);
            put_tile(to, worker->tile, pixels);
            worker->tile = -1;
            worker->wants = 1;
            done++;
        } else if (record.kind == LEFT && record.bytes == sizeof its && done == tiles && !worker->left) {
            streams_take(&streams, of, &record, &its);
            counts_add(sent, its);
            worker->left = 1;
            living--;
        } else {
            streams_drop(&streams, of, VMMC_REFUSED);
        }
    }
    if (worker->left) return some;
    if (ended || streams.of[of].ended) {
        streams_drop(&streams, of, ended ? ended : streams.of[of].ended);
        count_in(worker);
        worker->left = 1;
        living--;
        lost++;
        if (worker->tile < 0) return 1;
        queue[queued++] = worker->tile;
        again++;
        return 1;
    }
    /* A send that fails is the worker's end, which the next turn sees. */
    if (worker->loaded < voxels && streams_room(&streams, of) >= (int64_t)PIECE) {
        uint32_t bytes = voxels - worker->loaded < PIECE ? (uint32_t)(voxels - worker->loaded) : PIECE;
        streams_send(&streams, of, VOLUME, worker->loaded, volume + worker->loaded, bytes);
        worker->loaded += bytes;
        return 1;
    }
    if (worker->wants && coming == 0 && queued > 0) {
        worker->wants = 0;
        worker->tile = queue[--queued];
        streams_send(&streams, of, TASK, (uint64_t)worker->tile, NULL, 0);
        return 1;
    }
    return some;
}

static void control(unsigned char *to, struct pairs_counts *sent) {
    unsigned char pixels[PIXELS];
    int ends = 0;
    living = coming = size - 1;
    workers = made((uint64_t)size, sizeof *workers);
    queue = made((uint64_t)tiles, sizeof *queue);
    for (int worker = 1; worker < size; worker++) workers[worker].tile = -1;
    for (queued = 0; queued < tiles; queued++) queue[queued] = tiles - 1 - queued;
    while (done < tiles || living > 0) {
        int some = 0;
        for (int worker = 1; worker < size; worker++)
            if (!workers[worker].left) some |= serve(worker, to, sent);
        if (living == 0 && queued > 0) {
            long tile = queue[--queued];
            render(tile, pixels);
            put_tile(to, tile, pixels);
            done++;
            continue;
        }
        if (done == tiles && !ends) {
            for (int worker = 1; worker < size; worker++)
                if (!workers[worker].left) streams_send(&streams, worker, END, 0, NULL, 0);
            ends = some = 1;
        }
        if (!some && living > 0) check(streams_wait(&streams) == 0, "waiting");
    }
    counts_add(sent, pairs_counts());
    free(workers);
    free(queue);
}

/* Writes the image, and reads it again. */
static void write_png(const char *path, const unsigned char *pixels) {
    png_image file = {.version = PNG_IMAGE_VERSION, .width = (png_uint_32)image, .height = (png_uint_32)image,
                      .format = PNG_FORMAT_RGB};
    uint64_t bytes = 3 * (uint64_t)image * (uint64_t)image;
    unsigned char *back = made(1, bytes);
    check(png_image_write_to_file(&file, path, 0, pixels, 0, NULL), "the file cannot be written");
    file = (png_image){.version = PNG_IMAGE_VERSION};
    check(png_image_begin_read_from_file(&file, path), "the file cannot be read");
    file.format = PNG_FORMAT_RGB;
    check((int)file.width == image && (int)file.height == image && png_image_finish_read(&file, NULL, back, 0, NULL) &&
              memcmp(back, pixels, bytes) == 0,
          "the file has another image");
    free(back);
}

int main(int argc, char **argv) {
    const char *path = NULL;
    int number = 0, *numbers[] = {&extent[0], &extent[1], &extent[2], &image}, who = -1;
    long last = 0;
    int lies = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--png") == 0 && i + 1 < argc) {
            path = argv[++i];
        } else if ((strcmp(argv[i], "--die") == 0 || strcmp(argv[i], "--lie") == 0) && i + 1 < argc) {
            lies = argv[i][2] == 'l';
            check(sscanf(argv[++i], "%d:%ld", &who, &last) == 2 && who > 0, "RANK:TASK, not of rank 0");
        } else if (number < 4) {
            *numbers[number++] = atoi(argv[i]);
        }
    }
    check(number != 1 && number != 2, "three extents");
    for (int i = 0; i < 3; i++) check(extent[i] > 1 && extent[i] <= 4096, "an extent of 2 to 4096");
    check(image > 0 && image <= 16384, "an image of 1 to 16384 pixels");
    image = (image + TILE - 1) / TILE * TILE;
    tiles = (long)(image / TILE) * (image / TILE);
    voxels = (uint64_t)extent[0] * (uint64_t)extent[1] * (uint64_t)extent[2];
    check(streams_open(&streams, RING) == 0, "joining");
    rank = streams.pairs.rank;
    size = streams.pairs.size;
    volume = made(1, voxels);
    int result = 0;
    if (rank > 0) {
        result = rank == who ? work(lies ? 0 : last, lies ? last : 0) : work(0, 0);
    } else {
        uint64_t bytes = 3 * (uint64_t)image * (uint64_t)image;
        unsigned char *together = made(1, bytes), *alone = made(1, bytes), pixels[PIXELS];
        struct pairs_counts sent = {0, 0, 0, 0};
        fill_volume();
        double began = now();
        control(together, &sent);
        double took = now() - began;
        for (long tile = 0; tile < tiles; tile++) {
            render(tile, pixels);
            put_tile(alone, tile, pixels);
        }
        double took_alone = now() - began - took;
        check(memcmp(alone, together, bytes) == 0, "the image is not that of the sequential program");
        if (path) write_png(path, together);
        printf("render: %d*%d*%d voxels, %d*%d pixels, %d nodes: %.1f ms, and by one %.1f ms\n", extent[0], extent[1],
               extent[2], image, image, size, 1e3 * took, 1e3 * took_alone);
        counts_print("render", size, counts_update(STREAMS_UPDATE), took, sent);
        printf(" alone=%.6f lost_workers=%d again=%ld\n", took_alone, lost, again);
        free(together);
        free(alone);
    }
    streams_close(&streams);
    free(volume);
    return result;
}
