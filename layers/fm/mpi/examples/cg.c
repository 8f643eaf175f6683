/* Conjugate gradients for the Laplacian of a square grid, distributed by rows: cg [points a side] [most steps].
 * Solves A x = b, where b comes from a known x, and checks the residual and x. */
#include <mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, n, rows;

/* The rows at both ends of p, from the neighbours. p has a row more at each end. */
static void exchange(double *p) {
    int up = rank ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
    MPI_Request requests[4];
    MPI_Irecv(p, n, MPI_DOUBLE, up, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(p + (size_t)(rows + 1) * n, n, MPI_DOUBLE, down, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(p + n, n, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(p + (size_t)rows * n, n, MPI_DOUBLE, down, 0, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

static void multiply(double *p, double *out) {
    exchange(p);
    for (int i = 1; i <= rows; i++)
        for (int k = 0; k < n; k++) {
            size_t at = (size_t)i * n + k;
            double left = k ? p[at - 1] : 0, right = k + 1 < n ? p[at + 1] : 0;
            out[at] = 4 * p[at] - left - right - p[at - n] - p[at + n];
        }
}

static double dot(const double *a, const double *b) {
    double sum = 0, all;
    for (size_t i = n; i < (size_t)(rows + 1) * n; i++)
        sum += a[i] * b[i];
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    n = argc > 1 ? atoi(argv[1]) : 128;
    int most = argc > 2 ? atoi(argv[2]) : 10 * n, first = (int)((long)n * rank / size), steps = 0;
    rows = (int)((long)n * (rank + 1) / size) - first;
    if (n < size) {
        fprintf(stderr, "the grid has fewer rows than there are ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    size_t bytes = (size_t)(rows + 2) * n * sizeof(double);
    double *x = malloc(bytes), *b = malloc(bytes), *r = malloc(bytes), *p = malloc(bytes), *q = malloc(bytes);
    double *want = malloc(bytes);
    memset(x, 0, bytes);
    memset(p, 0, bytes);
    memset(want, 0, bytes);
    for (int i = 1; i <= rows; i++)
        for (int k = 0; k < n; k++)
            want[(size_t)i * n + k] = sin(0.1 * (first + i)) + cos(0.07 * k);
    multiply(want, b);
    memcpy(r, b, bytes);
    memcpy(p + n, b + n, (size_t)rows * n * sizeof *p);
    double begun = MPI_Wtime(), rr = dot(r, r), rr0 = rr;
    while (steps < most && rr > 1e-20 * rr0) {
        multiply(p, q);
        double alpha = rr / dot(p, q), before = rr;
        for (size_t i = n; i < (size_t)(rows + 1) * n; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        rr = dot(r, r);
        for (size_t i = n; i < (size_t)(rows + 1) * n; i++)
            p[i] = r[i] + rr / before * p[i];
        steps++;
    }
    double took = MPI_Wtime() - begun, worst = 0, error = 0;
    /* Computed anew, not the recurrence's. */
    multiply(x, q);
    for (size_t i = n; i < (size_t)(rows + 1) * n; i++) {
        r[i] = b[i] - q[i];
        error = fmax(error, fabs(x[i] - want[i]));
    }
    MPI_Reduce(&error, &worst, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    double residual = sqrt(dot(r, r) / rr0);
    int failed = residual > 1e-8;
    if (rank == 0) {
        failed |= worst > 1e-6;
        printf("cg: %d x %d, %d ranks: %d steps, %.3f s, residual %.2e, error %.2e: %s\n", n, n, size, steps, took,
               residual, worst, failed ? "FAILED" : "passed");
    }
    MPI_Bcast(&failed, 1, MPI_INT, 0, MPI_COMM_WORLD);
    free(x);
    free(b);
    free(r);
    free(p);
    free(q);
    free(want);
    MPI_Finalize();
    return failed;
}
