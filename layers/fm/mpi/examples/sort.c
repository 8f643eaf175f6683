/* Sorts integers: each rank has its own, sends each to the rank of its bucket, and sorts what it has got.
 * sort [integers of a rank] [turns]. Checks order within and between ranks, and that none is lost. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint64_t next(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

/* Sums that say whether two sets of numbers are the same. */
static void sums(const uint32_t *values, int count, uint64_t out[3]) {
    out[0] = out[1] = out[2] = 0;
    for (int i = 0; i < count; i++) {
        uint64_t mixed = (values[i] + 1) * 0x9e3779b97f4a7c15u;
        out[0]++;
        out[1] += mixed ^ mixed >> 29;
        out[2] ^= mixed * mixed;
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, failed = 0, any;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int count = argc > 1 ? atoi(argv[1]) : 200000, turns = argc > 2 ? atoi(argv[2]) : 3;
    uint64_t seed = 88172645463325252u + 1000003u * rank;
    uint32_t *values = malloc(count * sizeof *values), *ordered = malloc(count * sizeof *ordered);
    int *counts = malloc(4 * size * sizeof *counts), *places = counts + size, *in = places + size, *from = in + size;
    double took = 0;
    for (int turn = 0; turn < turns; turn++) {
        /* More small ones than great ones, so that buckets differ. */
        for (int i = 0; i < count; i++)
            values[i] = (uint32_t)(next(&seed) >> 32) >> (next(&seed) % 4);
        uint64_t before[3], after[3], all_before[3], all_after[3];
        sums(values, count, before);
        double begun = MPI_Wtime();
        for (int r = 0; r < size; r++)
            counts[r] = 0;
        for (int i = 0; i < count; i++)
            counts[(uint64_t)values[i] * size >> 32]++;
        MPI_Alltoall(counts, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
        int total = 0;
        for (int r = 0, at = 0; r < size; r++) {
            places[r] = at;
            at += counts[r];
            from[r] = total;
            total += in[r];
        }
        for (int i = 0; i < count; i++)
            ordered[places[(uint64_t)values[i] * size >> 32]++] = values[i];
        for (int r = 0; r < size; r++)
            places[r] -= counts[r];
        uint32_t *mine = malloc((total + 1) * sizeof *mine);
        MPI_Alltoallv(ordered, counts, places, MPI_UINT32_T, mine, in, from, MPI_UINT32_T, MPI_COMM_WORLD);
        qsort(mine, total, sizeof *mine, by_value);
        took += MPI_Wtime() - begun;
        for (int i = 1; i < total; i++)
            failed |= mine[i - 1] > mine[i];
        /* The greatest of all ranks before is not greater than the least here. */
        uint32_t greatest = total ? mine[total - 1] : 0, until = 0;
        MPI_Exscan(&greatest, &until, 1, MPI_UINT32_T, MPI_MAX, MPI_COMM_WORLD);
        failed |= rank && total && until > mine[0];
        sums(mine, total, after);
        MPI_Allreduce(before, all_before, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(after, all_after, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(&before[2], &all_before[2], 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
        MPI_Allreduce(&after[2], &all_after[2], 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
        for (int i = 0; i < 3; i++)
            failed |= all_before[i] != all_after[i];
        free(mine);
    }
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
    if (rank == 0)
        printf("sort: %d x %d integers, %d turns, %.3f s: %s\n", size, count, turns, took, any ? "FAILED" : "passed");
    free(values);
    free(ordered);
    free(counts);
    MPI_Finalize();
    return any;
}
