/* A barrier for the threads of one program run. It spins for some microseconds, since supersteps follow each other that
 * fast, then sleeps, since a host may have fewer free cores than threads: a thread that spins or yields there would take
 * the time slice that the last one needs. */
#ifndef IPU_BARRIER_H
#define IPU_BARRIER_H

#include <sched.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define BARRIER_SPINS 1000

typedef struct {
    int waiting;
    int phase;
    int sleeping;
    int threads;
} barrier_t;

static inline void barrier_init(barrier_t *b, int threads) {
    b->waiting = b->phase = b->sleeping = 0;
    b->threads = threads;
}

static inline void barrier_wait(barrier_t *b) {
    if (b->threads == 1) return;
    int phase = __atomic_load_n(&b->phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&b->waiting, 1, __ATOMIC_ACQ_REL) == b->threads) {
        __atomic_store_n(&b->waiting, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->phase, phase + 1, __ATOMIC_SEQ_CST);
#ifdef __linux__
        if (__atomic_load_n(&b->sleeping, __ATOMIC_SEQ_CST))
            syscall(SYS_futex, &b->phase, FUTEX_WAKE_PRIVATE, b->threads, NULL, NULL, 0);
#endif
        return;
    }
    for (int spin = 0; spin < BARRIER_SPINS; spin++) {
        if (__atomic_load_n(&b->phase, __ATOMIC_ACQUIRE) != phase) return;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
    __atomic_add_fetch(&b->sleeping, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&b->phase, __ATOMIC_SEQ_CST) == phase) {
#ifdef __linux__
        syscall(SYS_futex, &b->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
#else
        sched_yield();
#endif
    }
    __atomic_sub_fetch(&b->sleeping, 1, __ATOMIC_SEQ_CST);
}

/* The smallest number that any thread has noted; -1: none. */
static inline void note_first(long *first, long number) {
    long seen = __atomic_load_n(first, __ATOMIC_RELAXED);
    while ((seen < 0 || number < seen) &&
           !__atomic_compare_exchange_n(first, &seen, number, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
}

/* One thread's go-ahead to another. */
static inline void start(int *flag, int value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

static inline int started(int *flag) {
    int value;
    while ((value = __atomic_load_n(flag, __ATOMIC_ACQUIRE)) == 0) sched_yield();
    return value;
}

#endif
