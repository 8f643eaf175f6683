/*
 * Remote reads: an owner exports a table read-only, and a reader reads what it wants, when it
 * wants. The owner does nothing meanwhile, and nothing that the reader does can change a byte.
 */
#include "common.h"

#include <sched.h>

#define BYTES ((uint64_t)1 << 20)
/* The table begins behind a word that says whether it is there. */
#define TABLE 64

/* The next event of this kind; others are passed over. */
static void wait_for(h_node_t *node, h_event_kind kind, h_event_t *event) {
    do {
        CHECK(h_next_event(node, LIMIT, event));
    } while (event->kind != kind);
}

static void owner(void) {
    static h_event_t event;
    h_node_t *node;
    h_aperture_t *table;
    uint32_t number;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_serve(node, "table", H_ACCESS_SAME_USER, 0, NULL, 0));
    start_other("reader", "table");
    wait_for(node, H_EVENT_CONNECTED, &event);
    h_link_t link = event.link;
    /* A reader of another user would need no more trust: its mapping cannot be made writable. */
    CHECK(h_export(node, link, BYTES, H_APERTURE_READ_ONLY, &number));
    CHECK(h_aperture_open(node, link, number, NULL, &table));
    for (uint64_t row = 0; row < 1000; row++) {
        CHECK(h_aperture_write_u64(table, TABLE + 8 * row, row * row));
    }
    /* Whoever reads this word finds everything that was written before it. */
    CHECK(h_aperture_write_u64(table, 0, 1));
    /* From here on the owner only waits for the reader's end. */
    wait_for(node, H_EVENT_CLOSED, &event);
    h_aperture_free(table);
    CHECK(h_close(node, LIMIT, NULL));
}

static void reader(const char *role, const char *name) {
    (void)role;
    static h_event_t event;
    h_node_t *node;
    h_link_t link;
    h_aperture_t *table;
    uint64_t value = 0;
    CHECK(h_node_new(NULL, 0, &node));
    CHECK(h_connect(node, name, NULL, 0, LIMIT, &link));
    wait_for(node, H_EVENT_APERTURE_HELD, &event);
    CHECK(h_aperture_open(node, link, event.aperture, NULL, &table));
    while (value == 0) {
        sched_yield();
        CHECK(h_aperture_read_u64(table, 0, &value));
    }
    for (uint64_t row = 1; row < 1000; row += 333) {
        CHECK(h_aperture_read_u64(table, TABLE + 8 * row, &value));
        printf("row %u is %u\n", (unsigned)row, (unsigned)value);
        if (value != row * row) {
            exit(1);
        }
    }
    h_status status = h_aperture_write_u64(table, TABLE, 0);
    printf("to write is an error: %s\n", h_error_message());
    h_aperture_free(table);
    CHECK(h_close(node, LIMIT, NULL));
    if (status != H_REFUSED) {
        exit(1);
    }
}

int main(int argc, char **argv) {
    return run(argc, argv, owner, reader);
}
