/* The ANL macros (E. Lusk et al., "Portable Programs for Parallel Processors", 1987; SPLASH-2's dialect) over svm.h, by
 * the C preprocessor: programs that are written to them compile unchanged.
 *
 *     cc -include anl.h program.c $(pkg-config --cflags --libs hamlyn-anl)
 *
 * Processes are forked, as the macros mean: what a program has stored before CREATE, in shared and in other memory, all
 * have. They meet at the parent's first lock, barrier, pause or WAIT_FOR_END, and so all CREATEs come before it. Shared
 * memory is what G_MALLOC gives; its pages' homes go round. Stores are plain: the protocol is HLRC, or with
 * SVM_PROTOCOL=hlrc-au in the environment HLRC-AU; AURC needs the stores of svm.h.
 *
 * Of a program's files, .H is copied to .h. Where one uses m4's own words (radiosity: include(radiosity.h)), m4 comes
 * first, without macros: m4 program.C >program.c. <stdlib.h> is not included: old programs declare its functions
 * themselves, as they remember them.
 *
 * A program's race stays one: a loop that waits for another's plain store, without a lock, may never see it. SPLASH-2's
 * barnes, cholesky and radiosity have such loops, and hang with more than one process; Splash-3's barnes and cholesky
 * end. A global variable that is set after CREATE is its process's own (fmm: Grid).
 *
 * An error ends the process with a sentence and status 70, and with it the others.
 */
#ifndef ANL_H
#define ANL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#else
/* What old programs call undeclared, and does not return int (gcc knows malloc). */
double atof(const char *text);
double drand48(void);
char *gets(char *to);
char *getenv(const char *name);
#endif

/* Of shared memory: the bytes that MAIN_INITENV names, and at least ANL_BYTES of the environment, or 256 MiB. */
void anl_begin(size_t bytes);
void anl_create(void (*run)(void));
void anl_wait_for_end(void);
void anl_exit(void);
void *anl_malloc(size_t bytes);
/* Of locks and of barriers. */
int anl_lock_number(void);
int anl_barrier_number(void);
void anl_lock(int number);
void anl_unlock(int number);
void anl_barrier(int number, int count);
/* The next of 0 to max, or, when all `count` processes have come for more, -1 for all. */
struct anl_subscript {
    int lock, barrier, next;
};
int anl_subscript(struct anl_subscript *subscript, int max, int count);
struct anl_pause {
    int lock, is_set;
};
/* Sets it to is_set; or waits until it is is_set. */
void anl_pause_set(struct anl_pause *pause, int is_set);
void anl_pause_wait(struct anl_pause *pause, int is_set);
/* The lock with which a process has waited, and 1; else 0. Spurious wake-ups. */
void anl_condition_wait(int *condition, int lock);
void anl_condition_wake(const int *condition);
/* Microseconds. */
unsigned long anl_clock(void);

#ifdef __cplusplus
}
#endif

#define MAIN_ENV
#define EXTERN_ENV
#define ENV
/* (,bytes) or (name,bytes) or (). */
#define MAIN_INITENV(...) anl_begin((size_t)(ANL_SECOND(__VA_ARGS__, 0, 0)));
#define ANL_SECOND(first, second, ...) second
#define MAIN_END \
    { anl_exit(); }

/* (run): a process more; (run, n): processes until there are n, of which the caller is one. */
#define CREATE(...) ANL_CREATE(__VA_ARGS__, 0, 0)
#define ANL_CREATE(run, count, ...) \
    { \
        int anl_count_ = (count); \
        for (int anl_at_ = anl_count_ ? 1 : -1; anl_at_ < anl_count_; anl_at_++) anl_create((void (*)(void))(run)); \
        if (anl_count_) ((void (*)(void))(run))(); \
    }
#define WAIT_FOR_END(count) anl_wait_for_end();

/* The macros' dialects give the semicolon; _F is for expressions. */
#define G_MALLOC(bytes, ...) anl_malloc(bytes);
#define G2_MALLOC(bytes, ...) anl_malloc(bytes);
#define NU_MALLOC(bytes, ...) anl_malloc(bytes);
#define NU_MALLOC2(bytes, ...) anl_malloc(bytes);
#define G_MALLOC_F(bytes, ...) anl_malloc(bytes)
#define NU_MALLOC_F(bytes, ...) anl_malloc(bytes)
#define G_FREE(at, ...) ((void)(at));
#define NU_FREE(at, ...) ((void)(at));
#define GLOBAL_FREE(at, ...) ((void)(at));
#ifndef PAGE_SIZE
#define PAGE_SIZE 4096
#endif

#define LOCKDEC(name) int name;
#define LOCKINIT(name) ((name) = anl_lock_number());
#define LOCK(name) anl_lock(name);
#define UNLOCK(name) anl_unlock(name);
#define NLOCKDEC(name) LOCKDEC(name)
#define NLOCKINIT(name) LOCKINIT(name)
#define NLOCK(name) LOCK(name)
#define NUNLOCK(name) UNLOCK(name)
#define ALOCKDEC(name, count) int name[count];
#define ALOCKINIT(name, count) \
    { \
        for (int anl_at_ = 0; anl_at_ < (count); anl_at_++) (name)[anl_at_] = anl_lock_number(); \
    }
#define ALOCK(name, at) anl_lock((name)[at]);
#define AUNLOCK(name, at) anl_unlock((name)[at]);
#define AULOCK(name, at) anl_unlock((name)[at]);
#define AGETL(name, at) ((name)[at])

#define BARDEC(name) int name;
#define BARINIT(name, ...) ((name) = anl_barrier_number());
#define BARRIER(name, count) anl_barrier(name, count);

#define GSDEC(name) struct anl_subscript name;
#define GSINIT(name) ((name).lock = anl_lock_number(), (name).barrier = anl_barrier_number(), (name).next = 0);
#define GETSUB(name, to, max, count) ((to) = anl_subscript(&(name), max, count));
#define NU_GSDEC(name) GSDEC(name)
#define NU_GSINIT(name) GSINIT(name)
#define NU_GETSUB(name, to, max, count) GETSUB(name, to, max, count)

#define PAUSEDEC(name) struct anl_pause name;
#define PAUSEINIT(name) ((name).lock = anl_lock_number(), (name).is_set = 0);
#define SETPAUSE(name) anl_pause_set(&(name), 1);
#define CLEARPAUSE(name) anl_pause_set(&(name), 0);
#define WAITPAUSE(name) anl_pause_wait(&(name), 1);
#define PAUSE(name) anl_pause_wait(&(name), 1);
#define APAUSEDEC(name, count) struct anl_pause name[count];
#define APAUSEINIT(name, count) \
    { \
        for (int anl_at_ = 0; anl_at_ < (count); anl_at_++) PAUSEINIT((name)[anl_at_]) \
    }
#define ASETPAUSE(name, at) anl_pause_set(&(name)[at], 1);
#define ACLEARPAUSE(name, at) anl_pause_set(&(name)[at], 0);
#define AWAITPAUSE(name, at) anl_pause_wait(&(name)[at], 1);
#define EVENTDEC(name) PAUSEDEC(name)
#define EVENTINIT(name) PAUSEINIT(name)
#define EVENTSET(name) SETPAUSE(name)
#define EVENTCLEAR(name) CLEARPAUSE(name)
#define EVENTWAIT(name) WAITPAUSE(name)


/* Splash-3's. */
#define CONDVARDEC(name) int name;
#define CONDVARINIT(name) ((name) = 0);
#define CONDVARWAIT(name, lock) anl_condition_wait(&(name), lock);
#define CONDVARSIGNAL(name) anl_condition_wake(&(name));
#define CONDVARBCAST(name) anl_condition_wake(&(name));
#define RELEASE_FENCE() __atomic_thread_fence(__ATOMIC_RELEASE);
#define ACQUIRE_FENCE() __atomic_thread_fence(__ATOMIC_ACQUIRE);
#define FULL_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST);
#define SPLASH3_ROI_BEGIN()
#define SPLASH3_ROI_END()

#define CLOCK(to) ((to) = anl_clock());
#define AUG_ON
#define AUG_OFF
#define TRACE_ON
#define TRACE_OFF
#define REF_TRACE_ON
#define REF_TRACE_OFF
#define DYN_TRACE_ON
#define DYN_TRACE_OFF
#define DYN_REF_TRACE_ON
#define DYN_REF_TRACE_OFF
#define DYN_SIM_ON
#define DYN_SIM_OFF
#define DYN_SCHED_ON
#define DYN_SCHED_OFF
#define AUG_SET_LOLIMIT(...)
#define AUG_SET_HILIMIT(...)
#define ST_LOG(...)
#define SET_HOME(...)
#define THREAD_INIT_FREE(...)

#endif
