/* A program as they were written: definitions without prototypes, int for long, handlers of all kinds. Any number of
 * nodes multiply a matrix by rows that a master hands out, and compare with what each computes alone. */
#include <stdio.h>
#include <stdlib.h>
#include <nx.h>

#define N 48
#define WORK_TYPE 10
#define RESULT_TYPE (FORCE_TYPE + 20)
#define DONE_TYPE 30

double a[N][N], b[N][N], c[N][N], row[N + 1];
int done_count;

done_handler(type, count, node, ptype)
    int type, count, node, ptype;
{
    done_count++;
}

void multiply(in, out)
    double *in, *out;
{
    int j, k;
    for (j = 0; j < N; j++) {
        out[j] = 0.0;
        for (k = 0; k < N; k++) out[j] += in[k] * b[k][j];
    }
}

long largest(x, y)
    double *x, *y;
{
    if (*y > *x) *x = *y;
    return 0;
}

main(argc, argv)
    int argc;
    char **argv;
{
    int me, nodes, i, j, next, mid, errors;
    long info[8], lengths[64], length, one;
    double most, work, start;
    char names[64];

    nx_initve("", 0L, "", &argc, argv);
    nx_nfork((long *)NULL, -1L, 0L, (long *)NULL);
    me = mynode();
    nodes = numnodes();
    if (mypid() == INVALID_PTYPE) exit(1);
    start = dclock();
    for (i = 0; i < N; i++)
        for (j = 0; j < N; j++) {
            a[i][j] = i + j;
            b[i][j] = i == j ? 2.0 : 0.0;
        }
    gsync();
    if (me == 0) {
        for (i = 0; i < nodes - 1; i++) {
            hrecv(DONE_TYPE, (char *)&one, sizeof(one), done_handler);
        }
        next = 0;
        for (i = 1; i < nodes && next < N; i++, next++) {
            row[N] = next;
            for (j = 0; j < N; j++) row[j] = a[next][j];
            csend(WORK_TYPE, row, sizeof(row), i, 0);
        }
        for (i = 0; i < (nodes > 1 ? N : 0); i++) {
            crecv(RESULT_TYPE, row, sizeof(row));
            if (infocount() != sizeof(row)) exit(1);
            for (j = 0; j < N; j++) c[(int)row[N]][j] = row[j];
            if (next < N) {
                row[N] = next;
                for (j = 0; j < N; j++) row[j] = a[next][j];
                next++;
                csend(WORK_TYPE, row, sizeof(row), infonode(), mypid());
            }
        }
        csend(WORK_TYPE, row, 0, -1, 0);
        while (done_count < nodes - 1) flick();
    } else {
        for (;;) {
            cprobe(WORK_TYPE);
            if (infocount() == 0) break;
            crecvx(WORK_TYPE, row, sizeof(row), 0, -1, info);
            multiply(row, c[0]);
            for (j = 0; j < N; j++) row[j] = c[0][j];
            mid = isend(RESULT_TYPE, row, sizeof(row), 0, 0);
            while (!msgdone(mid)) flick();
        }
        crecv(-1, row, 0);
        csend(DONE_TYPE, &mid, sizeof(mid), 0, 0);
    }
    errors = 0;
    if (me == 0 && nodes > 1)
        for (i = 0; i < N; i++)
            for (j = 0; j < N; j++)
                if (c[i][j] != 2.0 * (i + j)) errors++;
    most = me;
    gopf(&most, sizeof(double), &work, largest);
    gdsum(&most, 1, &work);
    for (i = 0; i < nodes; i++) lengths[i] = 1;
    names[0] = 'a' + me;
    gcol(&names[0], 1, names, sizeof(names), &length);
    names[0] = 'a' + me;
    gcolx(&names[0], lengths, names);
    if (most != (double)(nodes * (nodes - 1)) || length != nodes || names[nodes - 1] != 'a' + nodes - 1) errors++;
    if (dclock() < start) errors++;
    if (errors) printf("node %d of cube of dimension %d: %d errors\n", me, (int)nodedim(), errors);
    exit(errors != 0);
}
