/* A program in the ANL macros, as such programs are written: nothing here speaks of svm.h.
 *
 *     anl PROCESSES
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

MAIN_ENV

#define ITEMS 200
#define STEPS 5

struct global {
    LOCKDEC(id_lock)
    BARDEC(meet)
    ALOCKDEC(cell_locks, 16)
    GSDEC(items)
    PAUSEDEC(ready)
    LOCKDEC(queue_lock)
    CONDVARDEC(queued)
    ALOCKDEC(many_locks, 5000)
    int queue_length, next_id, told, by_parent;
    long cells[16], of_process[64], taken[ITEMS];
    double *late;
};

static struct global *global;
static int processes, private_number;

static void fail(const char *what) {
    printf("anl: %s is wrong\n", what);
    exit(1);
}

static void work(void) {
    int id, item;
    LOCK(global->id_lock)
    id = global->next_id++;
    UNLOCK(global->id_lock)
    if (private_number != 42) fail("memory from before CREATE");
    if (global->by_parent != 7) fail("shared memory from before CREATE");
    for (int step = 0; step < STEPS; step++) {
        /* Each item goes to one process. */
        for (;;) {
            GETSUB(global->items, item, ITEMS - 1, processes)
            if (item < 0) break;
            global->taken[item]++;
            ALOCK(global->many_locks, item)
            ALOCK(global->many_locks, item + 4096)
            AULOCK(global->many_locks, item + 4096)
            AULOCK(global->many_locks, item)
            ALOCK(global->cell_locks, item % 16)
            global->cells[item % 16] += item;
            AULOCK(global->cell_locks, item % 16)
        }
        global->of_process[id] += step;
        BARRIER(global->meet, processes)
        for (int other = 0; other < processes; other++)
            if (global->of_process[other] != (long)step * (step + 1) / 2) fail("what others stored before a barrier");
        BARRIER(global->meet, processes)
    }
    if (id == 0) {
        global->late = (double *)G_MALLOC(100 * sizeof(double));
        global->late[99] = 0.5;
        global->told = 1;
        SETPAUSE(global->ready)
        for (int other = 1; other < processes; other++) {
            LOCK(global->queue_lock)
            global->queue_length++;
            CONDVARSIGNAL(global->queued)
            UNLOCK(global->queue_lock)
        }
    } else {
        WAITPAUSE(global->ready)
        if (global->told != 1 || global->late[99] != 0.5) fail("what was stored before SETPAUSE");
        LOCK(global->queue_lock)
        while (global->queue_length == 0) CONDVARWAIT(global->queued, global->queue_lock)
        global->queue_length--;
        UNLOCK(global->queue_lock)
    }
}

int main(int argc, char **argv) {
    unsigned long start, end;
    processes = argc > 1 ? atoi(argv[1]) : 2;
    MAIN_INITENV(,64 << 20)
    CLOCK(start)
    /* The macro brings its semicolon: SPLASH-2's radix and lu give none. */
    global = (struct global *)G_MALLOC(sizeof(struct global))
    LOCKINIT(global->id_lock)
    BARINIT(global->meet)
    ALOCKINIT(global->cell_locks, 16)
    GSINIT(global->items)
    PAUSEINIT(global->ready)
    LOCKINIT(global->queue_lock)
    CONDVARINIT(global->queued)
    /* More than there are: the last share the numbers of the first. */
    ALOCKINIT(global->many_locks, 5000)
    if ((size_t)global % PAGE_SIZE != (unsigned)(size_t)global % PAGE_SIZE || (size_t)global >> 31) fail("an address");
    global->by_parent = 7;
    private_number = 42;
    for (int i = 1; i < processes; i++) CREATE(work)
    work();
    WAIT_FOR_END(processes - 1)
    CLOCK(end)
    long sum = 0;
    for (int i = 0; i < 16; i++) sum += global->cells[i];
    if (sum != (long)STEPS * ITEMS * (ITEMS - 1) / 2) fail("the sum under locks");
    for (int i = 0; i < ITEMS; i++)
        if (global->taken[i] != STEPS) fail("how often an item was taken");
    if (end < start) fail("the clock");
    printf("anl: %d processes, %lu us, all right\n", processes, end - start);
    MAIN_END
}
