/* Global arrays over Fast Messages: two-dimensional arrays of doubles, one block on each node, of which every
 * node reads, writes and adds to rectangles.
 *
 * One thread uses all calls, no handler does. Negative results are codes, and ga_error_text says them in words.
 * A rectangle may lie in several blocks. Each owner checks its part: what is not in its block is refused and
 * counted, and nothing is written. `ld` is the distance of two rows of the caller's memory, in doubles.
 *
 * A node serves the others in its own ga calls only. A get asks for parts of 2 KiB, eight at a time, and the owner's
 * handler replies to each. FM_CREDIT_BYTES must be its default or more. Link with -lhamlynfm.
 */
#ifndef GA_H
#define GA_H

#ifdef __cplusplus
extern "C" {
#endif

#define GA_DEAD (-1)    /* a node's program has ended */
#define GA_REFUSED (-3) /* an owner has refused a part, or the nodes' arguments differ */
#define GA_RANGE (-4)   /* an argument is out of range, or no such array */
#define GA_SYSTEM (-5)  /* the system has refused something: memory, FM */

typedef struct {
    long row, column, rows, columns;
} ga_rect;

/* Joins FM unless the program has; registers handlers 1015 to 1017: before the first FM_extract. Returns 0. */
int ga_initialize(void);
/* Waits for all nodes, and destroys all arrays. Returns 0. */
int ga_terminate(void);

/* All nodes call the four with the same arguments and in the same order. */
/* An array of zeros. Returns its number, 0 or more. */
int ga_create(long rows, long columns);
int ga_destroy(int array);
/* All puts and accumulations of all nodes are done, and all nodes have come here. GA_REFUSED: some were not. */
int ga_sync(void);

/* The block of a node; it can be empty. Returns 0. */
int ga_distribution(int array, unsigned long node, ga_rect *block);
/* The node that has an element. */
long ga_locate(int array, long row, long column);
/* This node's own block, to be used between two calls of ga_sync; NULL: there is none. */
double *ga_access(int array, long *ld);

/* The memory at `from` can be used again when the call returns; the values are there after ga_sync, or for a
 * later call of this node. Returns 0. */
int ga_put(int array, ga_rect rect, const double *from, long ld);
/* Adds alpha times the values; of one element, in one step. Returns 0. */
int ga_acc(int array, ga_rect rect, double alpha, const double *from, long ld);
/* The values are there when the call returns. Returns 0. */
int ga_get(int array, ga_rect rect, double *to, long ld);

/* Parts of others that this node has refused. */
unsigned long long ga_refused(void);
const char *ga_error_text(int code);

#ifdef __cplusplus
}
#endif
#endif
