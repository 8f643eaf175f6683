/* The process's node, the last error's sentence, and messages of any length. */
#include "common.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    h_node_t *node;
    unsigned users;
    pid_t process;
} own;

static __thread char sentence[512];

const char *rpc_hamlyn_error(void) { return sentence; }

void rpc_hamlyn_say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
}

h_node_t *rpc_hamlyn_take_node(void) {
    pthread_mutex_lock(&lock);
    /* That of the parent is left alone: a child must not use it. */
    if (own.process != getpid()) own.node = NULL;
    if (!own.node) {
        own.users = 0;
        own.process = getpid();
        if (h_node_new(NULL, 0, &own.node) != H_OK) {
            own.node = NULL;
            rpc_hamlyn_say("%s", h_error_message());
        }
    }
    own.users += own.node != NULL;
    h_node_t *node = own.node;
    pthread_mutex_unlock(&lock);
    return node;
}

void rpc_hamlyn_give_node(h_node_t *node) {
    pthread_mutex_lock(&lock);
    if (node && node == own.node && own.process == getpid() && --own.users == 0) {
        h_node_free(own.node);
        own.node = NULL;
    }
    pthread_mutex_unlock(&lock);
}

bool_t rpc_hamlyn_encode(bool_t (*encode)(XDR *, void *), void *of, char shortly[SHORT_BYTES], char **bytes,
                         u_int *length) {
    XDR xdrs;
    xdrmem_create(&xdrs, shortly, SHORT_BYTES, XDR_ENCODE);
    *bytes = shortly;
    if (!encode(&xdrs, of)) {
        /* Too long, or impossible: measuring tells. */
        unsigned long needed = xdr_sizeof((xdrproc_t)encode, of);
        if (needed <= SHORT_BYTES || needed > BYTES_MAX || !(*bytes = malloc(needed))) return FALSE;
        xdrmem_create(&xdrs, *bytes, (u_int)needed, XDR_ENCODE);
        if (!encode(&xdrs, of)) {
            free(*bytes);
            return FALSE;
        }
    }
    *length = XDR_GETPOS(&xdrs);
    return TRUE;
}
