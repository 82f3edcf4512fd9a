/* A barrier for the threads of one program run: spins briefly, since supersteps follow each other within microseconds,
 * then yields, since a host may have fewer free cores than threads. */
#ifndef IPU_BARRIER_H
#define IPU_BARRIER_H

#include <sched.h>

typedef struct {
    volatile int waiting;
    volatile int phase;
    int threads;
} barrier_t;

static inline void barrier_init(barrier_t *b, int threads) {
    b->waiting = 0;
    b->phase = 0;
    b->threads = threads;
}

static inline void barrier_wait(barrier_t *b) {
    if (b->threads == 1) return;
    int phase = __atomic_load_n(&b->phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&b->waiting, 1, __ATOMIC_ACQ_REL) == b->threads) {
        __atomic_store_n(&b->waiting, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->phase, phase + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spin = 0; __atomic_load_n(&b->phase, __ATOMIC_ACQUIRE) == phase; spin++) {
        if (spin < 4000) {
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        } else {
            sched_yield();
        }
    }
}

#endif
