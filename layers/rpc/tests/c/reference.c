/* libtirpc's reading of messages, for tests/reference.rs: messages from the standard input, a line of text for each.
 *
 * A message is its kind ('c' a call, 'r' a reply, 'v' values) and its length, a byte and four, and its bytes.
 */
#include <arpa/inet.h>
#include <rpc/rpc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_auth(const struct opaque_auth *auth) {
    printf(" %d:", auth->oa_flavor);
    for (u_int i = 0; i < auth->oa_length; i++) printf("%02x", (unsigned char)auth->oa_base[i]);
}

static bool_t call(XDR *xdrs) {
    char credential[MAX_AUTH_BYTES], verifier[MAX_AUTH_BYTES];
    struct rpc_msg message;
    memset(&message, 0, sizeof message);
    message.rm_call.cb_cred.oa_base = credential;
    message.rm_call.cb_verf.oa_base = verifier;
    if (!xdr_callmsg(xdrs, &message)) return FALSE;
    const struct call_body *body = &message.rm_call;
    printf("call %u %u %u %u", message.rm_xid, body->cb_prog, body->cb_vers, body->cb_proc);
    print_auth(&message.rm_call.cb_cred);
    print_auth(&message.rm_call.cb_verf);
    return TRUE;
}

static bool_t reply(XDR *xdrs) {
    char verifier[MAX_AUTH_BYTES];
    struct rpc_msg message;
    memset(&message, 0, sizeof message);
    message.acpted_rply.ar_verf.oa_base = verifier;
    message.acpted_rply.ar_results.proc = (xdrproc_t)(void (*)(void))xdr_void;
    if (!xdr_replymsg(xdrs, &message)) return FALSE;
    printf("reply %u", message.rm_xid);
    if (message.rm_reply.rp_stat == MSG_ACCEPTED) {
        print_auth(&message.acpted_rply.ar_verf);
        printf(" %d", message.acpted_rply.ar_stat);
        if (message.acpted_rply.ar_stat == PROG_MISMATCH) {
            printf(" %u %u", message.acpted_rply.ar_vers.low, message.acpted_rply.ar_vers.high);
        }
    } else if (message.rjcted_rply.rj_stat == RPC_MISMATCH) {
        printf(" rpc %u %u", message.rjcted_rply.rj_vers.low, message.rjcted_rply.rj_vers.high);
    } else {
        printf(" auth %d", message.rjcted_rply.rj_why);
    }
    return TRUE;
}

/* The first error ends it. */
static bool_t values(XDR *xdrs) {
    int32_t number;
    quad_t hyper;
    double real;
    bool_t truth;
    char fixed[5], *opaque = NULL;
    int *array = NULL;
    u_int length = 0;
    printf("values");
    if (!xdr_int32_t(xdrs, &number)) return FALSE;
    printf(" %d", number);
    if (!xdr_hyper(xdrs, &hyper)) return FALSE;
    printf(" %lld", (long long)hyper);
    if (!xdr_double(xdrs, &real)) return FALSE;
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    printf(" %llx", (unsigned long long)bits);
    if (!xdr_bool(xdrs, &truth)) return FALSE;
    printf(" %d", truth);
    if (!xdr_opaque(xdrs, fixed, sizeof fixed)) return FALSE;
    printf(" %02x", (unsigned char)fixed[4]);
    bool_t whole = xdr_bytes(xdrs, &opaque, &length, 40);
    if (whole) printf(" %u %d", length, length ? (unsigned char)opaque[length - 1] : -1);
    free(opaque);
    if (!whole) return FALSE;
    length = 0;
    whole = xdr_array(xdrs, (char **)&array, &length, 20, sizeof *array, (xdrproc_t)xdr_int);
    if (whole) printf(" %u %d", length, length ? array[length - 1] : -1);
    free(array);
    return whole;
}

int main(void) {
    unsigned char kind;
    uint32_t length;
    while (fread(&kind, 1, 1, stdin) == 1 && fread(&length, 4, 1, stdin) == 1) {
        XDR xdrs;
        length = ntohl(length);
        /* Of exactly this length, for tools that watch memory. */
        char *bytes = malloc(length ? length : 1);
        if (!bytes || fread(bytes, 1, length, stdin) != length) return 1;
        xdrmem_create(&xdrs, bytes, length, XDR_DECODE);
        if ((kind == 'c' ? call : kind == 'r' ? reply : values)(&xdrs)) {
            printf(" and %u\n", xdrs.x_handy);
        } else {
            printf(" refused\n");
        }
        free(bytes);
    }
    return 0;
}
