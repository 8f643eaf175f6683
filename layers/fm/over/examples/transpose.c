/* Transposes a matrix that lies on all nodes, and adds the two.
 *   hamlyn run -n 4 -- ./transpose [SIZE]
 */
#include <fm.h>
#include <ga.h>
#include <stdio.h>
#include <stdlib.h>

static int check(const char *what, int code)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", what, ga_error_text(code));
        exit(1);
    }
    return code;
}

int main(int argc, char **argv)
{
    long size = argc > 1 ? atol(argv[1]) : 300, wrong = 0, ld;
    int a, b;
    ga_rect own, other;
    double *block, *turned;

    check("ga_initialize", ga_initialize());
    a = check("ga_create", ga_create(size, size + 1));
    b = check("ga_create", ga_create(size + 1, size));
    check("ga_distribution", ga_distribution(a, FM_nodeid, &own));
    block = ga_access(a, &ld);
    for (long row = 0; block && row < own.rows; row++) {
        for (long column = 0; column < own.columns; column++)
            block[row * ld + column] = (double)((own.row + row) * 10000 + own.column + column);
    }
    check("ga_sync", ga_sync());
    /* Each node turns its own block, and puts it to whichever nodes have its place; then adds it once more. */
    turned = (double *)calloc((size_t)(own.rows * own.columns) + 1, sizeof *turned);
    if (!turned)
        return 1;
    for (long row = 0; block && row < own.rows; row++) {
        for (long column = 0; column < own.columns; column++)
            turned[column * own.rows + row] = block[row * ld + column];
    }
    other = (ga_rect){own.column, own.row, own.columns, own.rows};
    check("ga_put", ga_put(b, other, turned, own.rows));
    check("ga_sync", ga_sync());
    check("ga_acc", ga_acc(b, other, 0.5, turned, own.rows));
    check("ga_sync", ga_sync());
    for (long row = 0; row <= size; row += 1 + size / 10) {
        ga_rect line = {row, 0, 1, size};
        double *got = (double *)calloc((size_t)size, sizeof *got);

        if (!got)
            return 1;
        check("ga_get", ga_get(b, line, got, size));
        for (long column = 0; column < size; column++)
            wrong += got[column] != 1.5 * (double)(column * 10000 + row);
        free(got);
    }
    if (FM_nodeid == 0)
        printf("transposed %ld x %ld on %lu nodes, %ld values wrong\n", size, size + 1, FM_numnodes, wrong);
    free(turned);
    check("ga_terminate", ga_terminate());
    return wrong != 0;
}
