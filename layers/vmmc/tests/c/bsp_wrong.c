/* BSPlib: programs that break a rule end with 1 and a sentence that names it, in at least one of two processes; none
 * waits for ever. Without an argument: prints the sentences. With a number: breaks that rule. */
#include <bsp.h>
#include <stdlib.h>

static int me, words[2];

static void registered(void) {
    bsp_push_reg(words, me == 0 ? sizeof words : sizeof words[0]);
    bsp_sync();
}

static void counts_of_syncs(void) {
    if (me == 0) bsp_sync();
}
static void counts_of_pushes(void) {
    if (me == 0) bsp_push_reg(words, sizeof words);
    bsp_sync();
}
static void counts_of_pops(void) {
    registered();
    if (me == 0) bsp_pop_reg(words);
    bsp_sync();
}
static void pops_of_different(void) {
    registered();
    bsp_push_reg(me == 0 ? &words[1] : words, 0);
    bsp_pop_reg(words);
    bsp_sync();
}
static void pop_of_what_another_has_not(void) {
    bsp_push_reg(me == 0 ? NULL : words, 0);
    bsp_push_reg(words, 0);
    bsp_push_reg(NULL, 0);
    bsp_pop_reg(me == 0 ? NULL : &words[0]);
    bsp_sync();
}
static void pop_of_null(void) {
    bsp_pop_reg(NULL);
    bsp_sync();
}
static void pop_of_null_with_none_of_all(void) {
    bsp_push_reg(me == 0 ? NULL : words, 0);
    bsp_push_reg(me == 0 ? words : NULL, 0);
    bsp_pop_reg(NULL);
    bsp_sync();
}
static void pop_twice(void) {
    registered();
    bsp_pop_reg(words);
    bsp_pop_reg(words);
}
static void counts_of_tag_sizes(void) {
    int bytes = 0;
    if (me == 0) bsp_set_tagsize(&bytes);
    bsp_sync();
}
static void tag_sizes(void) {
    int bytes = me;
    bsp_set_tagsize(&bytes);
    bsp_sync();
}
static void put_too_early(void) {
    bsp_push_reg(words, sizeof words);
    bsp_put(0, &me, words, 0, sizeof me);
}
static void put_beyond(void) {
    registered();
    if (me == 0) bsp_put(1, words, words, 0, sizeof words);
    bsp_sync();
}
static void get_beyond(void) {
    registered();
    if (me == 0) bsp_get(1, words, sizeof words[0], words, sizeof words[0]);
    bsp_sync();
}
static void get_of_nothing(void) {
    bsp_get(0, words, 0, words, sizeof words);
}
static void get_from_nobody(void) {
    registered();
    bsp_get(2, words, 0, words, sizeof words);
}
static void move_of_nothing(void) {
    bsp_move(words, sizeof words);
}
static void move_of_less(void) {
    bsp_send(me, NULL, words, sizeof words);
    bsp_sync();
    bsp_move(words, -1);
}
static void size_of_null(void) {
    bsp_qsize(words, NULL);
}
static void put_of_null(void) {
    registered();
    bsp_put(1, NULL, words, 0, sizeof words[0]);
}
static void get_to_null(void) {
    registered();
    bsp_hpget(1, words, 0, NULL, sizeof words[0]);
}
static void send_of_null(void) {
    bsp_send(1, NULL, NULL, 1);
}
static void send_without_tag(void) {
    int bytes = 4;
    bsp_set_tagsize(&bytes);
    bsp_sync();
    bsp_send(1, NULL, words, sizeof words);
}
/* There are no bytes at NULL, whatever the process says. */
static void put_into_null(void) {
    bsp_push_reg(me == 0 ? words : NULL, sizeof words);
    bsp_sync();
    if (me == 0) bsp_put(1, words, words, 0, sizeof words[0]);
    bsp_sync();
}
static void get_of_too_much(void) {
    static char many[8000], to[8000];
    bsp_push_reg(many, sizeof many);
    bsp_sync();
    bsp_get(1 - me, many, 0, to, sizeof to);
    bsp_sync();
}
static void begin_twice(void) {
    bsp_begin(1);
}
static void no_end(void) {
    exit(0);
}
static void aborts(void) {
    if (me == 1) bsp_abort("%s at %d\n", "an abort", 7);
    bsp_sync();
}
static void after_end(void) {
    bsp_end();
    bsp_pid();
}

static const struct {
    void (*breaks)(void);
    const char *sentence;
} rules[] = {
    {counts_of_syncs, "bsp_sync/bsp_end: Some processes have called bsp_sync, while others have called bsp_end"},
    {counts_of_pushes, "bsp_sync/bsp_push_reg: Not all processes registered the same number of memory blocks"},
    {counts_of_pops, "bsp_sync/bsp_pop_reg: Not all processes popped the same number"},
    {pops_of_different, "bsp_sync/bsp_pop_reg: Processes 0 and 1 did not pop the same memory registration"},
    {pop_of_what_another_has_not, "bsp_sync/bsp_pop_reg: Processes 0 and 1 did not pop the same memory registration"},
    {pop_of_null, "bsp_sync/bsp_pop_reg: Tried to deregister NULL on all processes, but NULL was never registered"},
    {pop_of_null_with_none_of_all, "bsp_sync/bsp_pop_reg: Tried to deregister NULL on all processes, but could not find"},
    {pop_twice, "bsp_pop_reg: memory at address"},
    {counts_of_tag_sizes, "bsp_sync/bsp_set_tagsize: Not all processes set the tag size same number of times"},
    {tag_sizes, "bsp_sync/bsp_set_tagsize: Not all processes announced the same tag size"},
    {put_too_early, "bsp_put: Remote address was just registered"},
    {put_beyond, "bsp_put: Writes 4 bytes beyond registered range"},
    {get_beyond, "bsp_get: Reads 4 bytes beyond registered range"},
    {get_of_nothing, "bsp_get: Remote address"},
    {get_from_nobody, "bsp_get: The source process ID does not exist"},
    {move_of_nothing, "bsp_move: Message queue was empty"},
    {move_of_less, "bsp_move: size argument may not be negative"},
    {size_of_null, "bsp_qsize: both arguments may not be NULL"},
    {put_of_null, "bsp_put: The source may not be NULL"},
    {get_to_null, "bsp_hpget: The destination may not be NULL"},
    {send_of_null, "bsp_send: A tag or payload with bytes may not be NULL"},
    {send_without_tag, "bsp_send: A tag or payload with bytes may not be NULL"},
    {put_into_null, "bsp_put: Writes 4 bytes beyond registered range of 0"},
    {get_of_too_much, "bsp_sync: process [01] asks for more than BSP_BYTES"},
    {begin_twice, "bsp_begin: May be called only once"},
    {no_end, "bsp_end: was not called before end of program"},
    {aborts, "an abort at 7"},
    {after_end, "bsp_pid: can only be called within SPMD section"},
};

int main(int argc, char *argv[]) {
    size_t count = sizeof rules / sizeof rules[0], rule = argc > 1 ? strtoul(argv[1], NULL, 10) : count;
    for (size_t i = 0; argc < 2 && i < count; i++) printf("%zu %s\n", i, rules[i].sentence);
    if (rule >= count) return 0;
    if (rules[rule].breaks == get_of_too_much) setenv("BSP_BYTES", "4096", 1);
    bsp_begin(2);
    me = bsp_pid();
    rules[rule].breaks();
    bsp_end();
    return 0;
}
