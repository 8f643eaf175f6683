/* A client of sum.x, with the stubs of `rpcgen -C -l sum.x`.
 *
 *   ./client SERVICE NUMBER ...      prints the sum and the user that the server sees
 *   ./client SERVICE stop
 */
#include "sum.h"

#include <hamlyn_rpc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    static int of[1024];
    if (argc < 3 || argc > 1026) return 2;
    CLIENT *client = clnt_hamlyn_create(argv[1], SUM_PROGRAM, SUM_1);
    if (!client) {
        fprintf(stderr, "client: %s\n", rpc_hamlyn_error());
        return 1;
    }
    bool done;
    if (strcmp(argv[2], "stop") == 0) {
        done = stop_1(NULL, client) != NULL;
    } else {
        numbers all = {.of = {.of_len = (u_int)argc - 2, .of_val = of}};
        for (int i = 2; i < argc; i++) of[i - 2] = atoi(argv[i]);
        answer *result = sum_1(&all, client);
        done = result != NULL;
        if (done) printf("%lld, asked by user %u\n", (long long)result->sum, result->user);
    }
    if (!done) fprintf(stderr, "%s: %s\n", clnt_sperror(client, "client"), rpc_hamlyn_error());
    clnt_destroy(client);
    return done ? 0 : 1;
}
