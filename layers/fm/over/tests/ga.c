/* Global arrays of all nodes. */
#include "check.h"
#include <ga.h>
#include <string.h>

enum { ROWS = 97, COLUMNS = 1203, LD = COLUMNS + 5 };

static double model[ROWS * LD], memory[ROWS * LD];

static void the_blocks_are_the_array(int array, long rows, long columns)
{
    long elements = 0;

    for (unsigned long node = 0; node < FM_numnodes; node++) {
        ga_rect block;

        EQUAL(ga_distribution(array, node, &block), 0);
        elements += block.rows * block.columns;
        if (block.rows > 0 && block.columns > 0) {
            EQUAL(ga_locate(array, block.row, block.column), node);
            EQUAL(ga_locate(array, block.row + block.rows - 1, block.column + block.columns - 1), node);
        }
    }
    EQUAL(elements, rows * columns);
    EQUAL(ga_locate(array, rows, 0), GA_RANGE);
    EQUAL(ga_locate(array, 0, -1), GA_RANGE);
}

/* One node at a time reads and writes rectangles at random, and compares with memory of its own. */
static void rectangles_are_what_was_put(int array)
{
    unsigned long seed = 11;

    for (unsigned long turn = 0; turn < FM_numnodes; turn++) {
        EQUAL(ga_sync(), 0);
        for (int round = 0; turn == FM_nodeid && round < 60; round++) {
            long row = (long)(next_random(&seed) % ROWS), column = (long)(next_random(&seed) % COLUMNS);
            ga_rect r = {row, column, (long)(next_random(&seed) % (ROWS - (unsigned long)row + 1)),
                         (long)(next_random(&seed) % (COLUMNS - (unsigned long)column + 1))};
            ga_rect whole = {0, 0, ROWS, COLUMNS};

            if (round == 0)
                EQUAL(ga_get(array, whole, model, LD), 0);
            for (long at = 0; at < r.rows * LD; at++)
                memory[at] = (double)next_random(&seed);
            if (round % 3 == 0)
                EQUAL(ga_put(array, r, memory, LD), 0);
            else if (round % 3 == 1)
                EQUAL(ga_acc(array, r, 2, memory, LD), 0);
            for (long i = 0; i < r.rows; i++) {
                for (long j = 0; j < r.columns; j++) {
                    double *at = &model[(r.row + i) * LD + r.column + j];

                    if (round % 3 < 2)
                        *at = memory[i * LD + j] * (1 + round % 3) + (round % 3 ? *at : 0);
                }
            }
            memset(memory, 0, sizeof memory);
            EQUAL(ga_get(array, r, memory, LD), 0);
            for (long i = 0; i < r.rows; i++)
                CHECK(memcmp(&memory[i * LD], &model[(r.row + i) * LD + r.column], (size_t)r.columns * 8) == 0);
        }
    }
    EQUAL(ga_sync(), 0);
}

static void all_add_to_all(void)
{
    int array = ga_create(40, 50);
    ga_rect whole = {0, 0, 40, 50};
    double ones[40 * 50], got[40 * 50];

    CHECK(array >= 0);
    for (int at = 0; at < 40 * 50; at++)
        ones[at] = at;
    for (int round = 0; round < 10; round++)
        EQUAL(ga_acc(array, whole, 0.5, ones, 50), 0);
    EQUAL(ga_sync(), 0);
    EQUAL(ga_get(array, whole, got, 50), 0);
    for (int at = 0; at < 40 * 50; at++)
        CHECK(got[at] == 5.0 * at * (double)FM_numnodes);
    EQUAL(ga_destroy(array), 0);
    EQUAL(ga_get(array, whole, got, 50), GA_RANGE);
    EQUAL(ga_destroy(array), GA_RANGE);
}

static void an_array_may_be_smaller_than_the_nodes(void)
{
    int array = ga_create(1, 3);
    ga_rect whole = {0, 0, 1, 3}, none = {1, 3, 0, 0}, block;
    double values[3] = {1, 2, 3}, got[3] = {0};
    long ld;

    CHECK(array >= 0);
    the_blocks_are_the_array(array, 1, 3);
    if (FM_nodeid + 1 == FM_numnodes)
        EQUAL(ga_put(array, whole, values, 3), 0);
    EQUAL(ga_get(array, none, got, 0), 0);
    EQUAL(ga_sync(), 0);
    EQUAL(ga_get(array, whole, got, 3), 0);
    CHECK(memcmp(values, got, sizeof got) == 0);
    EQUAL(ga_distribution(array, FM_nodeid, &block), 0);
    CHECK((ga_access(array, &ld) != NULL) == (block.rows * block.columns > 0));
    EQUAL(ga_destroy(array), 0);
}

static void arguments_are_checked(int array)
{
    ga_rect wrong[] = {{-1, 0, 1, 1}, {0, -1, 1, 1}, {0, 0, ROWS + 1, 1}, {0, 0, 1, COLUMNS + 1}, {ROWS, 0, 1, 1},
                       {1, 1, -1, 1}, {0x7fffffffffffffffL, 0, 1, 1}, {1, 0, 0x7fffffffffffffffL, 1}};
    ga_rect block;

    for (unsigned at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        EQUAL(ga_put(array, wrong[at], memory, LD), GA_RANGE);
        EQUAL(ga_get(array, wrong[at], memory, LD), GA_RANGE);
    }
    EQUAL(ga_get(array, (ga_rect){0, 0, 1, 10}, memory, 9), GA_RANGE);
    EQUAL(ga_create(0, 1), GA_RANGE);
    EQUAL(ga_create(1L << 40, 1L << 40), GA_RANGE);
    EQUAL(ga_distribution(array, FM_numnodes, &block), GA_RANGE);
    EQUAL(ga_distribution(-1, 0, &block), GA_RANGE);
    if (FM_numnodes > 1)
        EQUAL(ga_create(5, 5 + (long)FM_nodeid), GA_REFUSED);
    CHECK(strlen(ga_error_text(GA_REFUSED)) > 0);
}

int main(void)
{
    int array;

    EQUAL(ga_initialize(), 0);
    array = ga_create(ROWS, COLUMNS);
    CHECK(array >= 0);
    the_blocks_are_the_array(array, ROWS, COLUMNS);
    rectangles_are_what_was_put(array);
    all_add_to_all();
    an_array_may_be_smaller_than_the_nodes();
    arguments_are_checked(array);
    EQUAL(ga_refused(), 0);
    EQUAL(ga_terminate(), 0);
    return 0;
}
