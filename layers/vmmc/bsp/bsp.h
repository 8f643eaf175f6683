/* BSPlib (J. Hill et al., "BSPlib: The BSP programming library", Parallel Computing 24, 1998) over VMMC, for the ranks of
 * a job: `hamlyn run -n 4 -- ./program`. The arguments are those of the public header.
 *
 * A process is a rank. bsp_begin(n) takes n, as process 0 says it, at most as many as there are ranks; the others end
 * there. With bsp_init first in main, only process 0 runs what is outside of the parallel part.
 *
 * A superstep ends when a process has from each other the bytes that it said it sends: there is no other barrier. Gets
 * see what was there before puts; both happen in bsp_sync, as do hpputs and hpgets, which are not copied at their call.
 * Messages of one process are received in the order in which it sent them, those of different ones by process.
 *
 * A program that breaks the rules (a place that is not registered, bytes beyond it), and a process that has died, end
 * the program with a message and 1. BSP_BYTES: the most that one process may send to another in a superstep; 1 GiB.
 * BSP_UPDATE=automatic sends by automatic update. One thread.
 */
#ifndef BSP_H
#define BSP_H

#ifdef __cplusplus
extern "C" {
#endif

void bsp_init(void (*spmd_part)(void), int argc, char *argv[]);
void bsp_begin(int maxprocs);
void bsp_end(void);
/* Prints, and ends all processes. */
void bsp_abort(const char *format, ...);

int bsp_nprocs(void); /* before bsp_begin: how many there can be */
int bsp_pid(void);
double bsp_time(void); /* seconds since bsp_begin */
void bsp_sync(void);

/* From the next superstep on; all processes in the same order. */
void bsp_push_reg(const void *ident, int nbytes);
void bsp_pop_reg(const void *ident);
void bsp_put(int pid, const void *src, void *dst, int offset, int nbytes);
void bsp_get(int pid, const void *src, int offset, void *dst, int nbytes);
void bsp_hpput(int pid, const void *src, void *dst, int offset, int nbytes);
void bsp_hpget(int pid, const void *src, int offset, void *dst, int nbytes);

/* From the next superstep on; gives back the size before. */
void bsp_set_tagsize(int *tag_nbytes);
void bsp_send(int pid, const void *tag, const void *payload, int payload_nbytes);
/* What is left of the messages of the last superstep. */
void bsp_qsize(int *nmessages, int *accum_nbytes);
/* status: the length of the next message, or -1: there is none. */
void bsp_get_tag(int *status, void *tag);
void bsp_move(void *payload, int reception_nbytes);
/* Its length, or -1; the places stay until bsp_sync. */
int bsp_hpmove(void **tag_ptr, void **payload_ptr);

#ifdef __cplusplus
}
#endif

#endif
