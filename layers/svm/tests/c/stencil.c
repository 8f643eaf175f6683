/* A stencil by barriers, equal to the sequential result. stencil PROTOCOL SIDE STEPS */
#include "check.h"

static double next(const double *grid, int side, int row, int column)
{
    const double *at = grid + (size_t)row * side + column;
    return 0.25 * (at[-1] + at[1] + at[-side] + at[side]);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    int rank, size, side = atoi(argv[2]), steps = atoi(argv[3]);
    size_t cells = (size_t)side * side, bytes = cells * sizeof(double);
    OK(svm_join(&rank, &size, 2 * bytes + (1 << 20), protocol_of(argv[1]), NULL));
    double *grids[2], *right[2];
    for (int i = 0; i < 2; i++) {
        grids[i] = svm_malloc_all(bytes, 0, SVM_BLOCKS);
        right[i] = calloc(1, bytes);
        CHECK(grids[i] && right[i]);
        for (int row = rank; row < side; row += size)
            SVM_ST(grids[i][(size_t)row * side], 1.0 + row);
        for (int row = 0; row < side; row++)
            right[i][(size_t)row * side] = 1.0 + row;
    }
    OK(svm_barrier(0));
    int first = 1 + (side - 2) * rank / size, end = 1 + (side - 2) * (rank + 1) / size;
    for (int step = 0; step < steps; step++) {
        double *from = grids[step % 2], *to = grids[1 - step % 2];
        for (int row = first; row < end; row++)
            for (int column = 1; column < side - 1; column++)
                SVM_ST(to[(size_t)row * side + column], next(from, side, row, column));
        OK(svm_barrier(0));
        for (int row = 1; row < side - 1; row++)
            for (int column = 1; column < side - 1; column++)
                right[1 - step % 2][(size_t)row * side + column] = next(right[step % 2], side, row, column);
    }
    for (int i = 0; i < 2; i++)
        CHECK(memcmp(grids[i], right[i], bytes) == 0);
    OK(svm_leave());
    return 0;
}
