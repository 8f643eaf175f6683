/* The server of sum.x: `rpcgen -C -m sum.x` writes the dispatch function, this file the rest.
 *
 *   ./server [SERVICE]
 */
#include "sum.h"

#include <hamlyn_rpc.h>
#include <stdio.h>

void sum_program_1(struct svc_req *, SVCXPRT *);

answer *sum_1_svc(numbers *of, struct svc_req *request) {
    static answer result;
    result.sum = 0;
    for (u_int i = 0; i < of->of.of_len; i++) result.sum += of->of.of_val[i];
    /* The kernel says so, not the caller. */
    const struct authunix_parms *caller = request->rq_clntcred;
    result.user = request->rq_cred.oa_flavor == AUTH_SYS ? caller->aup_uid : (u_int)-1;
    return &result;
}

void *stop_1_svc(void *none, struct svc_req *request) {
    static char result;
    (void)none;
    svc_hamlyn_exit(request->rq_xprt);
    return &result;
}

int main(int argc, char **argv) {
    SVCXPRT *xprt = svc_hamlyn_create(argc > 1 ? argv[1] : "sum", H_ACCESS_SAME_USER, 0);
    if (!xprt || !svc_hamlyn_reg(xprt, SUM_PROGRAM, SUM_1, sum_program_1) || !svc_hamlyn_run(xprt)) {
        fprintf(stderr, "server: %s\n", rpc_hamlyn_error());
        return 1;
    }
    svc_destroy(xprt);
    return 0;
}
