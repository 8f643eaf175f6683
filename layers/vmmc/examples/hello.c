/* Two ranks greet one another: `hamlyn run -n 2 -- ./hello`. */
#include <stdio.h>
#include <string.h>
#include <vmmc.h>

#define MS 30000

static int fail(const char *doing) {
    fprintf(stderr, "%s: %s\n", doing, vmmc_error_text());
    return 1;
}

/* The next notification. */
static int take(vmmc_t *vmmc, vmmc_notification_t *told) {
    int taken;
    while ((taken = vmmc_take_notification(vmmc, told)) == 0)
        if (vmmc_wait(vmmc, MS)) return -1;
    return taken < 0;
}

int main(void) {
    int rank, size;
    vmmc_t *vmmc = vmmc_join(&rank, &size, MS);
    if (!vmmc) return fail("joining");
    vmmc_buffer_t *hall = vmmc_export(vmmc, "hall", 4096, NULL);
    if (!hall || vmmc_fence(vmmc, MS)) return fail("exporting");
    vmmc_proxy_t *other = vmmc_import_rank(vmmc, (rank + 1) % size, "hall", MS);
    if (!other) return fail("importing");

    char text[64];
    snprintf(text, sizeof text, "hello from rank %d", rank);
    if (vmmc_send_notify(other, 0, text, strlen(text) + 1, 7, MS)) return fail("sending");

    vmmc_notification_t told;
    if (take(vmmc, &told)) return fail("waiting");
    memcpy(text, vmmc_address(hall), sizeof text);
    printf("rank %d: \"%s\", notification %u of \"%s\"\n", rank, text, told.word, told.buffer);

    /* Automatic update: a store here is a store there. */
    vmmc_binding_t binding = {.engine = VMMC_STORE, .combines = 1, .notifies = 1, .word = 8, .ms = MS};
    vmmc_bound_t *bound = vmmc_bind(other, 1024, 1024, &binding);
    if (!bound || vmmc_st64(bound, 8, (uint64_t)rank) || vmmc_unbind(bound)) return fail("storing");
    if (take(vmmc, &told)) return fail("waiting");
    uint64_t from;
    memcpy(&from, (char *)vmmc_address(hall) + 1032, sizeof from);
    printf("rank %d: a store of rank %d\n", rank, (int)from);
    if (vmmc_fence(vmmc, MS)) return fail("the end");
    vmmc_unimport(other);
    vmmc_unexport(hall);
    vmmc_close(vmmc);
    return 0;
}
