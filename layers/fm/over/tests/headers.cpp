// The headers compile as C++, and their functions are linked as C's.
#include <fm_sockets.h>
#include <ga.h>
#include <shmem.h>

#include <cstdio>
#include <cstdlib>

int main()
{
    shmem_init();
    if (ga_initialize() != 0 || fms_start() != 0)
        std::exit(1);
    long *value = static_cast<long *>(shmem_malloc(sizeof *value));
    int array = ga_create(3, 3);
    double one = 1, got = 0;
    ga_rect corner = {2, 2, 1, 1};

    shmem_long_p(value, shmem_my_pe(), shmem_my_pe());
    if (ga_acc(array, corner, 2, &one, 1) != 0 || ga_sync() != 0 || ga_get(array, corner, &got, 1) != 0)
        return 1;
    fms_finish();
    ga_terminate();
    bool is_right = got == 2.0 * shmem_n_pes() && shmemx_error() == 0 && fms_error_text(FMS_DEAD) != nullptr;
    shmem_finalize();
    return is_right ? 0 : 1;
}
