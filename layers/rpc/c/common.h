/* What client and server share: the process's node, and the last error's sentence. */
#ifndef COMMON_H
#define COMMON_H

#include "../include/hamlyn_rpc.h"

/* Of a message that goes without an allocation: as many as Hamlyn sends at once. */
#define SHORT_BYTES 4088
/* Of any message, as in the library's defaults. */
#define BYTES_MAX (16u << 20)

/* The process's node, made by the first that takes it and freed by the last that gives it back. NULL: rpc_hamlyn_error
 * says why. A forked child takes another. */
h_node_t *rpc_hamlyn_take_node(void);
void rpc_hamlyn_give_node(h_node_t *node);

/* Keeps a sentence for this thread, as printf. */
void rpc_hamlyn_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Encodes a message with `encode` into `shortly`, or, if it is longer, into memory that *bytes names and the caller
 * frees if it is not `shortly`. FALSE: it cannot be encoded, or is longer than BYTES_MAX. */
bool_t rpc_hamlyn_encode(bool_t (*encode)(XDR *, void *), void *of, char shortly[SHORT_BYTES], char **bytes,
                         u_int *length);

/* Decodes from a peer's message, with bounds: bounds.c. */
bool_t rpc_hamlyn_decode(XDR *xdrs, bool_t (*decode)(XDR *, void *), void *to);

#endif
