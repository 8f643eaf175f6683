/* Every call with arguments that are not allowed, and the errors that the header names. Two ranks. C and C++. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vmmc.h>

#define MS 30000
#define CHECK(holds) ((holds) ? (void)0 : fail(#holds, __LINE__))

static void fail(const char *what, int line) {
    fprintf(stderr, "errors.c:%d: not so: %s (last error %d: %s)\n", line, what, vmmc_error(), vmmc_error_text());
    exit(1);
}

struct word {
    const volatile unsigned char *at;
    unsigned char value;
};

static int looks(void *data) {
    struct word *word = (struct word *)data;
    return *word->at == word->value;
}

static int never(void *data) {
    (void)data;
    return 0;
}

static int handled;
static vmmc_t *own;

static void handler(const vmmc_notification_t *told, void *data) {
    /* The handler's own place cannot go while it runs. */
    CHECK(vmmc_close(own) == VMMC_MISUSE && strstr(vmmc_error_text(), "handler") && vmmc_poll(own) == 0);
    if (strcmp(told->buffer, "b") == 0) __atomic_store_n((int *)data, (int)told->word, __ATOMIC_RELEASE);
}

static int has_handled(void) {
    return __atomic_load_n(&handled, __ATOMIC_ACQUIRE) == 9;
}

int main(void) {
    int rank, size;
    CHECK(vmmc_error() == 0);
    CHECK(vmmc_join(NULL, &size, MS) == NULL && vmmc_error() == VMMC_MISUSE);
    vmmc_t *vmmc = vmmc_join(&rank, &size, MS);
    CHECK(vmmc && size == 2);
    own = vmmc;

    CHECK(!vmmc_export(vmmc, "", 64, NULL) && vmmc_error() == VMMC_MISUSE);
    CHECK(!vmmc_export(vmmc, NULL, 64, NULL) && vmmc_error() == VMMC_MISUSE);
    CHECK(!vmmc_export(vmmc, "\xff", 64, NULL) && vmmc_error() == VMMC_MISUSE);
    CHECK(!vmmc_export(vmmc, "b", 0, NULL) && vmmc_error() == VMMC_MISUSE);
    CHECK(!vmmc_export(NULL, "b", 64, NULL) && vmmc_error() == VMMC_MISUSE);
    vmmc_permissions_t permissions;
    memset(&permissions, 0, sizeof permissions);
    permissions.users = 3;
    CHECK(!vmmc_export(vmmc, "b", 64, &permissions) && strstr(vmmc_error_text(), "VMMC_LIST"));
    permissions.users = VMMC_SAME;
    permissions.rights = 3;
    CHECK(!vmmc_export(vmmc, "b", 64, &permissions) && strstr(vmmc_error_text(), "VMMC_WRITE"));
    uint32_t nobody = 54321;
    permissions.users = VMMC_LIST;
    permissions.rights = VMMC_READ_WRITE;
    permissions.list = &nobody;
    permissions.count = 1;
    vmmc_buffer_t *hidden = vmmc_export(vmmc, "hidden", 64, &permissions);
    permissions.users = VMMC_SAME;
    permissions.rights = VMMC_READ;
    vmmc_buffer_t *read_only = vmmc_export(vmmc, "read", 64, &permissions);
    vmmc_buffer_t *buffer = vmmc_export(vmmc, "b", 1 << 20, NULL);
    CHECK(hidden && read_only && buffer && vmmc_address(buffer));
    CHECK(!vmmc_export(vmmc, "b", 64, NULL) && vmmc_error() == VMMC_MISUSE);
    CHECK(vmmc_serve(vmmc, "name", 5) == VMMC_MISUSE);
    CHECK(vmmc_fence(vmmc, MS) == 0);

    CHECK(!vmmc_import_rank(vmmc, 2, "b", MS) && !vmmc_import_rank(vmmc, -1, "b", MS));
    CHECK(!vmmc_import_rank(vmmc, 1 - rank, "no", MS) && vmmc_error() == VMMC_REFUSED);
    CHECK(!vmmc_import_rank(vmmc, 1 - rank, "hidden", MS) && vmmc_error() == VMMC_REFUSED);
    CHECK(!vmmc_import(vmmc, "nobody-serves-this", "b", 50) && vmmc_error() < 0);
    vmmc_proxy_t *proxy = vmmc_import_rank(vmmc, 1 - rank, "b", MS);
    vmmc_proxy_t *reads = vmmc_import_rank(vmmc, 1 - rank, "read", MS);
    CHECK(proxy && reads && vmmc_bytes(proxy) == 1 << 20 && vmmc_bytes(NULL) == 0 && vmmc_check(proxy) == 0);
    CHECK(vmmc_check(NULL) == VMMC_MISUSE);

    volatile unsigned char *memory = (volatile unsigned char *)vmmc_address(buffer);
    static unsigned char bytes[1 << 20];
    memset(bytes, 5, sizeof bytes);
    CHECK(vmmc_send(reads, 0, bytes, 1, MS) == VMMC_MISUSE && !strstr(vmmc_error_text(), "region"));
    CHECK(vmmc_send(proxy, (1 << 20) - 1, bytes, 2, MS) == VMMC_MISUSE && !strstr(vmmc_error_text(), "region"));
    CHECK(vmmc_send(proxy, UINT64_MAX, bytes, 2, MS) == VMMC_MISUSE);
    CHECK(vmmc_send(proxy, 0, NULL, 2, MS) == VMMC_MISUSE && vmmc_send(proxy, 0, NULL, 0, MS) == 0);
    CHECK(vmmc_get(proxy, 0, NULL, 2, MS) == VMMC_MISUSE);
    CHECK(vmmc_wait_until(vmmc, never, NULL, 1) == VMMC_TIMED_OUT && vmmc_wait_until(vmmc, NULL, NULL, 1) < 0);

    /* Updates: the last byte of each is waited for. */
    struct word word = {memory + 1000, 5};
    CHECK(vmmc_send(proxy, 0, bytes, 1001, MS) == 0 && vmmc_wait_until(vmmc, looks, &word, MS) == 0 && memory[0] == 5);
    CHECK(vmmc_fence(vmmc, MS) == 0);
    /* From exported memory, by itself: the other end's number is its rank. */
    memset((void *)(memory + 4096), 20 + rank, 100000);
    CHECK(vmmc_send_async(proxy, 0, NULL, 0, 1) == VMMC_MISUSE);
    CHECK(vmmc_send_async(proxy, 0, buffer, 1 << 20, 1) == VMMC_MISUSE);
    int64_t number = vmmc_send_async(proxy, 200000, buffer, 4096, 100000);
    CHECK(number > 0 && vmmc_test(proxy, number + 1) == VMMC_MISUSE);
    CHECK(vmmc_wait_sent(proxy, number, MS) == 0 && vmmc_test(proxy, number) == 1);
    word.at = memory + 299999;
    word.value = (unsigned char)(21 - rank);
    CHECK(vmmc_wait_until(vmmc, looks, &word, MS) == 0 && memory[200000] == 21 - rank);

    /* Automatic update. */
    vmmc_binding_t binding;
    memset(&binding, 0, sizeof binding);
    binding.ms = MS;
    CHECK(!vmmc_bind(proxy, 0, 64, NULL) && !vmmc_bind(proxy, 1, 64, &binding) && !vmmc_bind(proxy, 1 << 20, 8, &binding));
    binding.engine = 2;
    CHECK(!vmmc_bind(proxy, 0, 64, &binding) && strstr(vmmc_error_text(), "VMMC_TRACKED"));
    binding.engine = VMMC_TRACKED;
    CHECK(!vmmc_bind(proxy, 0, 4096, &binding));
    void *pages = aligned_alloc(4096, 8192);
    memset(pages, 3, 8192);
    binding.memory = pages;
    vmmc_bound_t *tracked = vmmc_bind(proxy, 400000 / 4096 * 4096, 8192, &binding);
    CHECK(tracked && vmmc_st32(tracked, 0, 1) == VMMC_MISUSE && !vmmc_bound_memory(tracked));
    ((unsigned char *)pages)[8191] = 77;
    CHECK(vmmc_runs(NULL) == 0 && vmmc_error() == VMMC_MISUSE);
    CHECK(vmmc_flush(tracked) == 0 && vmmc_runs(tracked) == 1 && vmmc_told(tracked, 0, "\3", 1) == 0);
    word.at = memory + 400000 / 4096 * 4096 + 8191;
    word.value = 77;
    CHECK(vmmc_wait_until(vmmc, looks, &word, MS) == 0 && word.at[-1] == 3);
    char text[256];
    CHECK(vmmc_explain_bound(tracked, text, sizeof text) == 0 && strncmp(text, "tracked by ", 11) == 0);
    CHECK(vmmc_unbind(tracked) == 0);
    free(pages);
    binding.engine = VMMC_STORE;
    binding.combines = 1;
    binding.sub_page = 100;
    CHECK(!vmmc_bind(proxy, 0, 64, &binding));
    binding.sub_page = 0;
    vmmc_bound_t *bound = vmmc_bind(proxy, 500000, 64, &binding);
    CHECK(bound && vmmc_st64(bound, 57, 0) == VMMC_MISUSE && vmmc_told(bound, 0, "", 1) == VMMC_MISUSE);
    CHECK(vmmc_try_st32(bound, 64, 1) == VMMC_MISUSE && vmmc_try_st64(NULL, 0, 1) == VMMC_MISUSE);
    CHECK(vmmc_try_st32(bound, 0, 9) == 0 && vmmc_try_st64(bound, 8, 9) == 0);
    CHECK(vmmc_st32(bound, 0, 1) == 0 && vmmc_st64(bound, 4, 2) == 0 && vmmc_au_memcpy(bound, 12, "abc", 3) == 0);
    CHECK(memcmp((const char *)vmmc_bound_memory(bound) + 12, "abc", 3) == 0 && vmmc_set_limit(bound, 0) == 0);
    uint64_t runs = vmmc_runs(bound); /* Scattered stores before this one. */
    CHECK(runs > 0 && vmmc_flush(bound) == 0 && vmmc_runs(bound) == runs + 1);
    CHECK(vmmc_explain_bound(bound, text, 6) == 0 && strcmp(text, "store") == 0);
    CHECK(vmmc_explain_bound(bound, NULL, 0) == 0 && vmmc_explain_bound(bound, NULL, 1) == VMMC_MISUSE);
    word.at = memory + 500014;
    word.value = 'c';
    CHECK(vmmc_wait_until(vmmc, looks, &word, MS) == 0 && vmmc_unbind(bound) == 0 && vmmc_unbind(NULL) == 0);
    CHECK(vmmc_explain(proxy, text, sizeof text) == 0);
    if (rank == 0) printf("%s\n", text);

    /* Notifications, on the thread. */
    CHECK(vmmc_take_notification(vmmc, NULL) == VMMC_MISUSE);
    CHECK(vmmc_send_notify(reads, 0, bytes, 1, 0, MS) == VMMC_MISUSE);
    CHECK(vmmc_start_thread(vmmc, handler, &handled) == 0 && vmmc_start_thread(vmmc, handler, &handled) == VMMC_MISUSE);
    CHECK(vmmc_block(vmmc) == 0 && vmmc_unblock(vmmc) == 0 && vmmc_take_notifications(buffer, 1) == 0);
    CHECK(vmmc_send_notify(proxy, 0, bytes, 1, 9, MS) == 0);
    /* The handler runs behind the turn: vmmc_wait_until would not be woken by what it stores. */
    while (!has_handled()) vmmc_wait(vmmc, 10);
    CHECK(vmmc_get(proxy, 500012, text, 3, MS) == 0 && memcmp(text, "abc", 3) == 0);

    /* Ends. */
    CHECK(vmmc_fence(vmmc, MS) == 0);
    CHECK(vmmc_unexport(read_only) == 0);
    int result;
    while ((result = vmmc_get(reads, 0, text, 1, MS)) == 0) continue;
    CHECK(result == VMMC_REVOKED && !strstr(vmmc_error_text(), "region") && vmmc_unimport(reads) == 0);
    CHECK(vmmc_fence(vmmc, MS) == 0);
    if (rank == 0) {
        while ((result = vmmc_check(proxy)) == 0) vmmc_wait(vmmc, 100);
        CHECK(result == VMMC_CLOSED || result == VMMC_REVOKED);
        CHECK(vmmc_send(proxy, 0, bytes, 1, MS) == result);
    }
    vmmc_unimport(proxy);
    vmmc_unexport(buffer);
    vmmc_unexport(hidden);
    vmmc_close(vmmc);
    printf("rank %d: all errors as said\n", rank);
    return 0;
}
