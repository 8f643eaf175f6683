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
 * An error ends the process with a sentence and status 70, and with it the others.
 */
#ifndef ANL_H
#define ANL_H

#include <stddef.h>
#include <stdlib.h>
#include <sys/time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of shared memory, where MAIN_INITENV names no number of bytes: ANL_BYTES in the environment, or 1 GiB. */
void anl_begin(size_t bytes);
void anl_create(void (*run)(void));
void anl_wait_for_end(void);
void anl_end(void);
void *anl_malloc(size_t bytes);
/* Numbers of locks, barriers and conditions: before CREATE, or of one process. */
int anl_number(void);
void anl_lock(int number);
void anl_unlock(int number);
void anl_barrier(int number, int count);
/* The next of 0 to max, or, when all `count` processes have come for more, -1 for all. */
struct anl_subscript {
    int number, next;
};
int anl_subscript(struct anl_subscript *subscript, int max, int count);
struct anl_pause {
    int number, is_set;
};
/* Sets it to is_set; or waits until it is is_set. */
void anl_pause_set(struct anl_pause *pause, int is_set);
void anl_pause_wait(struct anl_pause *pause, int is_set);

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
    { \
        anl_end(); \
        exit(0); \
    }

/* (run): a process more; (run, n): processes until there are n, of which the caller is one. */
#define CREATE(...) ANL_CREATE(__VA_ARGS__, 0, 0)
#define ANL_CREATE(run, count, ...) \
    { \
        int anl_count_ = (count); \
        for (int anl_at_ = anl_count_ ? 1 : -1; anl_at_ < anl_count_; anl_at_++) anl_create((void (*)(void))(run)); \
        if (anl_count_) ((void (*)(void))(run))(); \
    }
#define WAIT_FOR_END(count) anl_wait_for_end();

#define G_MALLOC(bytes, ...) anl_malloc(bytes)
#define G2_MALLOC(bytes, ...) anl_malloc(bytes)
#define NU_MALLOC(bytes, ...) anl_malloc(bytes)
#define NU_MALLOC2(bytes, ...) anl_malloc(bytes)
#define G_FREE(at) ((void)(at))
#define NU_FREE(at, ...) ((void)(at))
#define GLOBAL_FREE(at, ...) ((void)(at))

#define LOCKDEC(name) int name;
#define LOCKINIT(name) ((name) = anl_number());
#define LOCK(name) anl_lock(name);
#define UNLOCK(name) anl_unlock(name);
#define NLOCKDEC(name) LOCKDEC(name)
#define NLOCKINIT(name) LOCKINIT(name)
#define NLOCK(name) LOCK(name)
#define NUNLOCK(name) UNLOCK(name)
#define ALOCKDEC(name, count) int name[count];
#define ALOCKINIT(name, count) \
    { \
        for (int anl_at_ = 0; anl_at_ < (count); anl_at_++) (name)[anl_at_] = anl_number(); \
    }
#define ALOCK(name, at) anl_lock((name)[at]);
#define AUNLOCK(name, at) anl_unlock((name)[at]);
#define AULOCK(name, at) anl_unlock((name)[at]);
#define AGETL(name, at) ((name)[at])

#define BARDEC(name) int name;
#define BARINIT(name, ...) ((name) = anl_number());
#define BARRIER(name, count) anl_barrier(name, count);

#define GSDEC(name) struct anl_subscript name;
#define GSINIT(name) ((name).number = anl_number(), (name).next = 0);
#define GETSUB(name, to, max, count) ((to) = anl_subscript(&(name), max, count));

#define PAUSEDEC(name) struct anl_pause name;
#define PAUSEINIT(name) ((name).number = anl_number(), (name).is_set = 0);
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

/* Microseconds. */
#define CLOCK(to) \
    { \
        struct timeval anl_time_; \
        gettimeofday(&anl_time_, NULL); \
        (to) = (unsigned long)anl_time_.tv_sec * 1000000ul + (unsigned long)anl_time_.tv_usec; \
    }
#define AUG_ON
#define AUG_OFF
#define TRACE_ON
#define TRACE_OFF
#define REF_TRACE_ON
#define REF_TRACE_OFF

#endif
