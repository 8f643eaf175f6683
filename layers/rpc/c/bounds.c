/* xdr_array and xdr_pointer, in the place of libtirpc's: what a peer may make this process do in decoding.
 *
 * libtirpc allocates an array of as many elements as the peer says before it looks for the first, and visits each when
 * the array is freed, which takes seconds for a message of 60 bytes; and a list of pointers takes a frame of the stack
 * for each of its elements, so that a message of 12 MB ends the process. In messages of Hamlyn's an array has no more
 * elements than the rest of the message has words, since each has at least one, and pointers are at most POINTERS_MAX
 * deep. For other streams both do what libtirpc's do, but for a failed array, of which only the elements that were tried
 * are kept.
 *
 * Being in the program, they are used by rpcgen's stubs, and by libtirpc too.
 */
#include "common.h"

#include <limits.h>
#include <stdlib.h>

/* Some 400 bytes of the stack for each, of 8 MiB. */
#define POINTERS_MAX 8192

/* The stream that this thread decodes from a peer's message. */
static __thread struct {
    const XDR *stream;
    unsigned pointers;
} of_peer;

bool_t rpc_hamlyn_decode(XDR *xdrs, bool_t (*decode)(XDR *, void *), void *to) {
    of_peer.stream = xdrs;
    of_peer.pointers = 0;
    bool_t done = decode(xdrs, to);
    of_peer.stream = NULL;
    return done;
}

bool_t xdr_array(XDR *xdrs, caddr_t *array, u_int *count, u_int count_max, u_int bytes, xdrproc_t element) {
    if (!xdr_u_int(xdrs, count)) return FALSE;
    u_int all = *count, done = 0;
    if (xdrs->x_op != XDR_FREE && (all > count_max || UINT_MAX / bytes < all)) return FALSE;
    if (xdrs->x_op == XDR_DECODE && xdrs == of_peer.stream && all > xdrs->x_handy / BYTES_PER_XDR_UNIT) {
        *count = 0;
        return FALSE;
    }
    if (!*array) {
        if (xdrs->x_op == XDR_FREE || (xdrs->x_op == XDR_DECODE && all == 0)) return TRUE;
        if (xdrs->x_op == XDR_DECODE && !(*array = calloc(all, bytes))) return FALSE;
    }
    bool_t whole = TRUE;
    while (done < all && whole) whole = element(xdrs, *array + (size_t)bytes * done++);
    if (xdrs->x_op == XDR_DECODE) *count = done;
    if (xdrs->x_op == XDR_FREE) {
        free(*array);
        *array = NULL;
    }
    return whole;
}

bool_t xdr_pointer(XDR *xdrs, char **to, u_int bytes, xdrproc_t element) {
    bool_t is_there = *to != NULL;
    if (!xdr_bool(xdrs, &is_there)) return FALSE;
    if (!is_there) {
        *to = NULL;
        return TRUE;
    }
    bool bounded = xdrs == of_peer.stream;
    if (bounded && of_peer.pointers >= POINTERS_MAX) return FALSE;
    of_peer.pointers += bounded;
    bool_t done = xdr_reference(xdrs, to, bytes, element);
    of_peer.pointers -= bounded;
    return done;
}
