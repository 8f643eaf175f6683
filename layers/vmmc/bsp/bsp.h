/* BSPlib (J. Hill et al., "BSPlib: The BSP programming library", Parallel Computing 24, 1998) over VMMC, for the ranks of
 * a job: `hamlyn run -n 4 -- ./program`. The arguments are those of the public header.
 *
 * A process is a rank. bsp_begin(n) takes n, as process 0 says it, at most as many as there are ranks; the others end
 * there. With bsp_init first in main, only process 0 runs what is outside of the parallel part.
 *
 * A superstep ends when a process has from each other the bytes that it said it sends: there is no other barrier. Gets
 * see what was there before puts, and are written before them; both happen in bsp_sync, as do hpputs and hpgets, which
 * are not copied at their call. Puts of one process are done in their order, behind those of lower processes. Messages
 * of one process are received in their order, those of higher processes first. BSPlib leaves these orders open: do not
 * rely on them elsewhere.
 *
 * A program that breaks a rule (an address that is not registered, bytes beyond it, a call of all processes that one
 * does not make), a process that has died, and one that exits before bsp_end end the program with a sentence and 1.
 * BSP_BYTES: the most that one process may send to another, or ask of it, in a superstep; 4 GiB. BSP_UPDATE=automatic sends by
 * automatic update. One thread.
 */
#ifndef BSP_H
#define BSP_H

#include <stdarg.h>
#include <stdio.h> /* as the header of 1998 did, on which programs rely */

#ifdef __cplusplus
extern "C" {
#endif

/* Names of other BSPlibs: of BSPonMPI, and of the Oxford toolset before 1998. */
typedef int bsp_pid_t;
typedef int bsp_nprocs_t;
typedef int bsp_size_t;
#define bsp_pushregister bsp_push_reg
#define bsp_popregister bsp_pop_reg
#define bsp_set_tag_size bsp_set_tagsize

void bsp_init(void (*spmd_part)(void), int argc, char *argv[]);
void bsp_begin(int maxprocs);
void bsp_end(void);
/* Prints, and ends all processes. */
void bsp_abort(const char *format, ...);
void bsp_abort_va(const char *format, va_list arguments);

int bsp_nprocs(void); /* before bsp_begin: how many there can be */
int bsp_pid(void);
double bsp_time(void); /* seconds since bsp_begin */
void bsp_sync(void);

/* From the next superstep on; all processes in the same order. A process without bytes may register NULL. */
void bsp_push_reg(const void *ident, int nbytes);
/* The newest registration of the address, also one of this superstep. All pop the same one; with NULL, it is the one
 * that the others pop, or the newest that is of NULL in all. */
void bsp_pop_reg(const void *ident);
/* Of 0 bytes these do nothing, whatever the other arguments. */
void bsp_put(int pid, const void *src, void *dst, int offset, int nbytes);
void bsp_get(int pid, const void *src, int offset, void *dst, int nbytes);
void bsp_hpput(int pid, const void *src, void *dst, int offset, int nbytes);
void bsp_hpget(int pid, const void *src, int offset, void *dst, int nbytes);

/* From the next superstep on; all processes. Gives back the size of the call before. */
void bsp_set_tagsize(int *tag_nbytes);
void bsp_send(int pid, const void *tag, const void *payload, int payload_nbytes);
/* What is left of the messages of the last superstep. */
void bsp_qsize(int *nmessages, int *accum_nbytes);
/* status: the length of the next message, or -1: there is none. */
void bsp_get_tag(int *status, void *tag);
void bsp_move(void *payload, int reception_nbytes);
/* Its length, or -1; the places stay until bsp_sync ends. */
int bsp_hpmove(void **tag_ptr, void **payload_ptr);

#ifdef __cplusplus
}
#endif

#endif
