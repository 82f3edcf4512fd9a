"""The engine: runs a program's supersteps over the memories of the emulated tiles.

All host threads walk the program together, each with its share of every superstep's rows, and meet at a barrier;
supersteps too small to share are run by the first thread alone. Rows write disjoint bytes and each is computed by one
thread, so the thread count cannot change a result.

Replicas have memories of their own. One goes on until it reaches a collective, then the next does; the last one's
arrival runs the collective for all of them. In between they share nothing, so their branches and loops may go
different ways.
"""
import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from ipu_runtime.codelets.collective cimport run_collective
from ipu_runtime.codelets.copy cimport run_copy
from ipu_runtime._vec cimport ROUND_STOCHASTIC, TRAP_ALL
from ipu_runtime.core cimport Group, Scratch, cell, codelet_fn, mixed, operand
from ipu_runtime.device cimport (
    BRANCH, COLLECTIVE, COMPUTE, END, EXCHANGE, FOR, JUMP, LABEL, MOST_REPLICAS, NEXT, REPEAT, STREAM_IN, STREAM_OUT,
    WINDOW, COMMON, NEAREST, Device, Slot, Step)
from ipu_runtime.dispatch cimport FUNCTIONS

from ipu_runtime.errors import FloatingPointTrap, IPUError, LoopLimitError

DEF STACK = 1 << 20   # bytes of a thread's; a matrix product needs some 150 KiB, and not every system gives as much


cdef extern from "barrier.h" nogil:
    ctypedef struct barrier_t:
        pass
    void barrier_init(barrier_t *b, int threads)
    void barrier_wait(barrier_t *b)

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_attr_t:
        pass
    int pthread_attr_init(pthread_attr_t *attributes)
    int pthread_attr_setstacksize(pthread_attr_t *attributes, size_t size)
    int pthread_attr_destroy(pthread_attr_t *attributes)
    int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *) noexcept nogil,
                       void *argument)
    int pthread_join(pthread_t thread, void **result)

_executions = 0


def executions():
    """How many device executions this process has finished."""
    return _executions


cdef int signals() noexcept with gil:
    return PyErr_CheckSignals()


cdef struct Place:
    # Where a replica is in the program.
    long pc, loop, iteration
    long counter            # turns of the loop over micro-batches
    long micro              # number of the micro-batch
    long *taken             # elements that went through each queue
    uint64_t met, common    # compute sets and collectives so far, and those that all replicas round alike


cdef struct Trap:
    # The first group of a thread that raised something.
    long order              # the how manieth step of the walk, -1: none
    long group, replica, row
    int op                  # of a map's body
    uint32_t raised


cdef struct Worker:
    pthread_t thread
    void *engine
    int first
    long repeat
    int *failed
    long *taken             # see `Place`; every thread counts for itself, and all come to the same
    int go                  # 0: wait; 1: walk the program; -1: go home


cdef extern from "barrier.h" nogil:
    void note_first(long *first, long order)
    void start(int *flag, int value)
    int started(int *flag)


cdef void *work(void *argument) noexcept nogil:
    cdef Worker *me = <Worker *>argument
    if started(&me.go) > 0:
        (<Engine>me.engine).walk(me.first, me.first + 1, me.repeat, me.failed, me.taken)
    return NULL


cdef class Engine(Device):
    """One emulated device with a program loaded.

    Args:
        program: a `Program`; it is not changed and may be shared.
        threads: host threads; default the machine's cores.
        strict: check every operand (bounds, live allocations, bytes never written, guard bytes) and run on one thread.
            Default: whether the environment variable IPU_RUNTIME_STRICT is set to something other than "0".

    Thread safety: one thread at a time may call an engine's methods; engines are independent of each other.
    """

    cdef barrier_t barrier
    cdef bint parted, short_queue
    cdef long turns_left
    cdef Trap traps[64]     # of each thread
    cdef long trapped       # the first step of the walk that raised something, -1: none

    def run(self, feeds, long repeat=1, long turns=-1, queues=None):
        """One device execution.

        Args:
            feeds: for each streamed parameter its array, with a leading axis of `repeat`, times the micro-batches of
                an iteration if the parameter is streamed for each; then an axis of replicas if there are several.
            repeat: how many times the program's body runs.
            turns: how often loops may go back, all together; -1 for any number.
            queues: for each queue of the program, by its slot, an array [element, (replica,) ...]: of its elements if
                the program takes them, or for those that it puts in.

        Returns:
            Dict of the streamed outputs by flat output index, with the same leading axes.

        Raises:
            KeyboardInterrupt: Ctrl-C between two iterations; the states are then undefined.
            LoopLimitError: loops went back more often than `turns`; the states are then undefined.
            StrictModeError: in strict mode, an illegal access.
            FloatingPointTrap: something that the program traps; the states are those from before the run.
        """
        global _executions
        cdef long i
        remote = dict(self.remote)
        _held, results = self._bind(feeds, repeat, queues or {})
        kept = self._states_now() if self.fp_mode & TRAP_ALL else None
        self.trapped = -1
        for i in range(64):
            self.traps[i].order = -1
        self.turns_left = turns
        if self.strict:
            self._run_strict(repeat)
        else:
            self._run_threads(repeat)
        if self.trapped >= 0:
            self.remote = remote
            self._put_back(kept)
            raise self._trap()
        self.runs += 1
        if self.turns_left == -2:
            raise LoopLimitError(f"the program's loops went back more than {turns} times")
        if self.short_queue:
            self.short_queue = False
            raise IPUError("the program took or put more elements than a queue's array holds; its states are undefined")
        if self.parted:
            self.parted = False
            raise IPUError(
                "the replicas parted: some wait to combine their values, others went another way. A branch or loop "
                "that depends on a replica's own data must not hold a sum over replicas."
            )
        for i in range(self.threads):
            if self.scratches[i].failed:
                self.scratches[i].failed = False
                raise MemoryError("the host has no memory for a kernel's work space; the device's states are undefined")
        _executions += 1
        return results

    def _states_now(self):
        return {
            (param, r): self.read_state(param, r)
            for param in self.states if param not in self.remote for r in range(self.replicas)
        }

    def _put_back(self, kept):
        for (param, r), array in kept.items():
            self._transfer(self.states[param]["write"], array, True, r)

    def _trap(self):
        """The exception for what was raised first: by the order of steps, replicas, groups and rows."""
        cdef long t, best = -1
        cdef Trap *a
        cdef Trap *b
        for t in range(self.threads):
            if self.traps[t].order != self.trapped:
                continue
            if best >= 0:
                a, b = &self.traps[t], &self.traps[best]
                if (a.replica, a.group, a.row) > (b.replica, b.group, b.row):
                    continue
            best = t
        a = &self.traps[best]
        tile = cell(&self.groups[a.group], 0, a.row)
        return FloatingPointTrap.of(self.program, int(a.group), int(a.op), int(tile), int(a.replica), int(a.raised))

    def time_steps(self, feeds):
        """Host seconds of each step on one thread, for profiling the emulator itself; a loop's body is done once.

        Args:
            feeds: as for `run`, with `repeat` 1.

        Returns:
            float64 array, one for each step. States change as in a run.
        """
        cdef long pc, g
        cdef Step *step
        cdef timespec begin, end
        cdef Place place
        cdef double[::1] seconds = np.zeros(self.n_steps)
        place.iteration = place.micro = place.met = place.common = 0
        place.taken = NULL
        held = self._bind(feeds, 1, {})
        for pc in range(self.n_steps):
            step = &self.steps[pc]
            clock_gettime(CLOCK_MONOTONIC, &begin)
            if step.kind < REPEAT:
                for g in range(step.first, step.last):
                    self.rows(g, step.kind, 0, self.groups[g].n, &place, 0, 0, 0)
            clock_gettime(CLOCK_MONOTONIC, &end)
            seconds[pc] = (end.tv_sec - begin.tv_sec) + 1e-9 * (end.tv_nsec - begin.tv_nsec)
        del held
        return np.asarray(seconds)

    cdef int _run_threads(self, long repeat) except -1:
        cdef Worker workers[64]
        cdef int failed = 0, n = 1, i
        cdef pthread_attr_t attributes
        cdef long[:, ::1] taken = np.zeros((self.threads, self.n_slots * self.replicas + 1), np.int_)
        with nogil:
            # Threads live for one execution: making one costs some 20 us, and none is left spinning beside
            # TensorFlow's.
            barrier_init(&self.barrier, self.threads)
            pthread_attr_init(&attributes)
            pthread_attr_setstacksize(&attributes, STACK)
            for i in range(1, self.threads):
                workers[i].engine, workers[i].first = <void *>self, i
                workers[i].repeat, workers[i].failed = repeat, &failed
                workers[i].taken, workers[i].go = &taken[i, 0], 0
                if pthread_create(&workers[i].thread, &attributes, work, &workers[i]) != 0:
                    break
                n += 1
            pthread_attr_destroy(&attributes)
            if n < self.threads:
                # The host gave fewer threads: this one takes all shares, and nobody waits.
                barrier_init(&self.barrier, 1)
            for i in range(1, n):
                start(&workers[i].go, 1 if n == self.threads else -1)
            self.walk(0, 1 if n == self.threads else self.threads, repeat, &failed, &taken[0, 0])
            for i in range(1, n):
                pthread_join(workers[i].thread, NULL)
        # Beyond the limit of turns no exception is set: `run` raises it.
        return -1 if failed and self.turns_left != -2 else 0

    cdef inline bint no_turn_left(self) noexcept nogil:
        """Count a loop's way back; True, and -2 left, when the limit is passed."""
        if self.turns_left > 0:
            self.turns_left -= 1
        elif self.turns_left == 0:
            self.turns_left = -2
        return self.turns_left == -2

    cdef void walk(self, int first, int last, long repeat, int *failed, long *taken) noexcept nogil:
        """Run the shares first..last of every superstep, of all replicas."""
        cdef Place places[MOST_REPLICAS]
        cdef long r, at = -1, order = 0
        for r in range(self.replicas):
            places[r].pc = places[r].loop = places[r].iteration = places[r].counter = places[r].micro = 0
            places[r].met = places[r].common = 0
            places[r].taken = &taken[r * self.n_slots]
        while True:
            for r in range(self.replicas):
                if not self.walk_one(&places[r], r, first, last, repeat, failed, &order):
                    return
            # All have reached the same collective, or the end.
            at = places[0].pc
            for r in range(1, self.replicas):
                if places[r].pc != at:
                    self.parted = True
                    return
            barrier_wait(&self.barrier)
            if at >= self.n_steps or self.stopped(order):
                return
            order += 1
            self.collect(&self.steps[at], places, first, last, order)
            barrier_wait(&self.barrier)
            for r in range(self.replicas):
                places[r].pc += 1

    cdef inline bint stopped(self, long order) noexcept nogil:
        """Whether a step before the one at hand has raised something. To be asked right behind a barrier: what a thread
        raises in the step at hand stops none of the others before they meet again."""
        return 0 <= self.trapped < order

    cdef inline void prepare_rows(self, long g, Place *place, long replica, Scratch *s) noexcept nogil:
        """Say to a thread's vertices how they round; the random bits are the group's own each time that it runs."""
        cdef int rounding = self.groups[g].rounding
        cdef uint64_t at
        s.fp.mode, s.fp.raised, s.op = self.fp_mode, 0, 0
        if rounding == NEAREST:
            return
        s.fp.mode |= ROUND_STOCHASTIC
        at = place.common if rounding == COMMON else place.met
        s.stream = mixed(mixed(mixed(self.seed, self.runs), at), g)
        if rounding != COMMON and not self.alike:
            s.stream = mixed(s.stream, replica + 1)

    cdef inline void noted(self, long g, long replica, long lo, long order, int thread) noexcept nogil:
        """Remember a thread's first trap, and the first of all."""
        cdef Trap *trap = &self.traps[thread]
        if trap.order < 0:
            trap.order, trap.group, trap.replica, trap.row = order, g, replica, lo
            trap.raised, trap.op = self.scratches[thread].fp.raised, self.scratches[thread].op
            note_first(&self.trapped, order)

    cdef void collect(self, Step *step, Place *places, int first, int last, long order) noexcept nogil:
        """Combine values of all replicas."""
        cdef int t
        cdef long g, r, row, many
        cdef int32_t *share
        cdef Scratch *s = &self.scratches[first]
        for t in range(first, last):
            for g in range(step.first, step.last):
                share = &self.bounds[g * (self.threads + 1) + t]
                self.prepare_rows(g, &places[0], 0, s)
                # With traps one by one, to know the tile.
                row, many = share[0], 1 if self.fp_mode & TRAP_ALL else share[1] - share[0]
                while row < share[1]:
                    run_collective(&self.groups[g], row, row + many, self.arena, self.stride, self.replica_bytes,
                                   self.replicas, s)
                    if s.fp.raised & self.fp_mode & TRAP_ALL:
                        self.noted(g, 0, row, order, first)
                        break
                    row += many
        for r in range(self.replicas):
            self.advance(step, &places[r])

    cdef inline void advance(self, Step *step, Place *place) noexcept nogil:
        """Random bits are never drawn twice: the next time that a group runs it has others."""
        place.met += 1
        place.common += step.common

    cdef bint walk_one(self, Place *place, long replica, int first, int last, long repeat, int *failed,
                       long *order) noexcept nogil:
        """Run a replica up to its next collective or to the end; False if the run has failed."""
        cdef long pc = place.pc, g
        cdef int t, kind, stop
        cdef bint alone = False, taken
        cdef Step *step
        cdef int32_t *share
        cdef char *arena = self.arena + replica * self.replica_bytes
        while pc < self.n_steps:
            step = &self.steps[pc]
            kind = step.kind
            order[0] += 1
            if kind == REPEAT:
                place.loop, place.iteration = pc, 0
                if repeat <= 0:
                    while self.steps[pc].kind != END:
                        pc += 1
            elif kind == END:
                barrier_wait(&self.barrier)
                alone = False
                if first == 0 and place.iteration + 1 < repeat and signals() != 0:
                    failed[0] = 1
                place.iteration += 1
                if repeat > 1:
                    barrier_wait(&self.barrier)
                if failed[0] or self.stopped(order[0]):
                    return False
                if place.iteration < repeat:
                    pc = place.loop
            elif kind == LABEL:
                pass
            elif kind == BRANCH:
                # All threads read the flag between two barriers: nobody may write it again before all have.
                barrier_wait(&self.barrier)
                alone = False
                taken = self.flag(step, arena) == 0
                stop = failed[0] or self.stopped(order[0])
                barrier_wait(&self.barrier)
                if stop:
                    return False
                if taken:
                    pc = self.target(step)
            elif kind == JUMP:
                if self.target(step) < pc:
                    # A loop that never ends can still be interrupted.
                    if first == 0 and (signals() != 0 or self.no_turn_left()):
                        failed[0] = 1
                    barrier_wait(&self.barrier)
                    alone = False
                    stop = failed[0] or self.stopped(order[0])
                    barrier_wait(&self.barrier)
                    if stop:
                        return False
                pc = self.target(step)
            elif kind >= FOR and kind <= WINDOW:
                if kind == NEXT:
                    # Every thread counts for itself; Ctrl-C is seen here, for a long pipeline.
                    if first == 0 and signals() != 0:
                        failed[0] = 1
                    barrier_wait(&self.barrier)
                    alone = False
                    stop = failed[0] or self.stopped(order[0])
                    barrier_wait(&self.barrier)
                    if stop:
                        return False
                pc = self.control(step, place, pc)
            elif kind == COLLECTIVE:
                break
            elif step.serial:
                if first == 0:
                    for g in range(step.first, step.last):
                        self.rows(g, kind, 0, self.groups[g].n, place, replica, 0, order[0])
                alone = True
            else:
                if alone:
                    barrier_wait(&self.barrier)
                    alone = False
                if self.stopped(order[0]):
                    return False
                for t in range(first, last):
                    for g in range(step.first, step.last):
                        share = &self.bounds[g * (self.threads + 1) + t]
                        if share[0] < share[1]:
                            self.rows(g, kind, share[0], share[1], place, replica, first, order[0])
                barrier_wait(&self.barrier)
            if kind == COMPUTE:
                self.advance(step, place)
            if self.queues_used and (kind == STREAM_IN or kind == STREAM_OUT):
                self.count(step, place)
            pc += 1
        place.pc = pc
        return True

    cdef inline void count(self, Step *step, Place *place) noexcept nogil:
        """One element has gone through each queue of a step."""
        cdef long g
        for g in range(step.first, step.last):
            place.taken[self.groups[g].params[2]] += 1

    cdef inline long control(self, Step *step, Place *place, long pc) noexcept nogil:
        """A step of the loop over micro-batches; gives the step to go on behind."""
        cdef const int64_t *params = self.groups[step.first].params
        if step.kind == FOR:
            place.counter = place.micro = 0
        elif step.kind == NEXT:
            place.counter += 1
            place.micro = place.counter
            if place.counter < self.groups[self.steps[params[0]].first].params[0]:
                return params[0]
            place.counter = place.micro = 0
        else:
            place.micro = place.counter - params[1]
            if place.micro < 0 or place.micro >= params[2]:
                return params[0]
        return pc

    cdef inline uint8_t flag(self, Step *step, char *arena) noexcept nogil:
        return (<uint8_t *>operand(&self.groups[step.first], 1, 0, arena, self.stride))[0]

    cdef inline long target(self, Step *step) noexcept nogil:
        return self.groups[step.first].params[0]

    cdef inline void rows(self, long number, int kind, long lo, long hi, Place *place, long replica, int thread,
                          long order) noexcept nogil:
        cdef Group *g = &self.groups[number]
        cdef Slot *slot
        cdef Scratch *s
        cdef long index
        cdef char *host
        cdef char *arena = self.arena + replica * self.replica_bytes
        if kind == COMPUTE:
            s = &self.scratches[thread]
            self.prepare_rows(number, place, replica, s)
            if not self.fp_mode & TRAP_ALL:
                (<codelet_fn>FUNCTIONS[g.codelet])(g, lo, hi, arena, self.stride, s)
                return
            # One by one, to know the tile; after the first nothing more is asked.
            for index in range(lo, hi):
                (<codelet_fn>FUNCTIONS[g.codelet])(g, index, index + 1, arena, self.stride, s)
                if s.fp.raised & self.fp_mode & TRAP_ALL:
                    self.noted(number, replica, index, order, thread)
                    return
        elif kind == EXCHANGE:
            run_copy(g, lo, hi, arena, self.stride, arena, self.stride)
        else:
            slot = &self.slots[g.params[2]]
            if slot.later != NULL:
                # In place but for the first time: what the host's variables hold must not change before the end.
                host = slot.base if kind == STREAM_IN and place.iteration == 0 else slot.later
                if slot.parts > 1:
                    for index in range(lo, hi):
                        if cell(g, kind == STREAM_IN, index) % slot.parts != replica:
                            continue
                        if kind == STREAM_IN:
                            run_copy(g, index, index + 1, host, 0, arena, self.stride)
                        else:
                            run_copy(g, index, index + 1, arena, self.stride, host, 0)
                    return
                host += slot.bytes * replica
                if kind == STREAM_IN:
                    run_copy(g, lo, hi, host, 0, arena, self.stride)
                else:
                    run_copy(g, lo, hi, arena, self.stride, host, 0)
                return
            if slot.ring:
                index = place.micro % slot.ring
            elif slot.queue == 0:
                index = place.iteration * slot.micro + (place.micro if slot.micro > 1 else 0)
            elif slot.last:
                index = 0
            else:
                index = place.taken[g.params[2]]
                if index >= slot.queue:
                    self.short_queue = True
                    return
            host = slot.base + slot.bytes * (index * self.replicas + replica)
            if kind == STREAM_IN:
                run_copy(g, lo, hi, host, 0, arena, self.stride)
            else:
                run_copy(g, lo, hi, arena, self.stride, host, 0)

    def _run_strict(self, long repeat):
        cdef Place places[MOST_REPLICAS]
        cdef long r, g, at, order = 0
        cdef long[::1] taken = np.zeros(self.n_slots * self.replicas + 1, np.int_)
        for r in range(self.replicas):
            places[r].taken = &taken[r * self.n_slots]
            places[r].pc = places[r].loop = places[r].iteration = places[r].counter = places[r].micro = 0
            places[r].met = places[r].common = 0
        while True:
            for r in range(self.replicas):
                if not self._strict_one(&places[r], r, repeat, &order):
                    return
            at = places[0].pc
            for r in range(1, self.replicas):
                if places[r].pc != at:
                    self.parted = True
                    return
            if at >= self.n_steps:
                break
            for watch in self.watches:
                watch.begin(at)
                for g in range(self.steps[at].first, self.steps[at].last):
                    watch.reads(at, g)
            order += 1
            self.collect(&self.steps[at], places, 0, 1, order)
            if self.trapped >= 0:
                return
            for r in range(self.replicas):
                for g in range(self.steps[at].first, self.steps[at].last):
                    self.watches[r].written(g)
                self.watches[r].end(at)
                places[r].pc += 1
        for watch in self.watches:
            watch.guards("the end of the run")

    cdef bint _strict_one(self, Place *place, long replica, long repeat, long *order) except *:
        """As `walk_one`, on one thread, with every access checked."""
        cdef long pc = place.pc, g
        cdef Step *step
        cdef char *arena = self.arena + replica * self.replica_bytes
        watch = self.watches[replica]
        while pc < self.n_steps:
            step = &self.steps[pc]
            order[0] += 1
            if step.kind == REPEAT:
                place.loop, place.iteration = pc, 0
                if repeat <= 0:
                    while self.steps[pc].kind != END:
                        pc += 1
            elif step.kind == END:
                place.iteration += 1
                if place.iteration < repeat:
                    pc = place.loop
            elif step.kind == BRANCH:
                watch.reads(pc, step.first)
                if self.flag(step, arena) == 0:
                    pc = self.target(step)
            elif step.kind == JUMP:
                if self.target(step) < pc:
                    PyErr_CheckSignals()
                    if self.no_turn_left():
                        return False
                pc = self.target(step)
            elif step.kind >= FOR and step.kind <= WINDOW:
                pc = self.control(step, place, pc)
            elif step.kind == COLLECTIVE:
                break
            elif step.kind != LABEL:
                watch.begin(pc)
                for g in range(step.first, step.last):
                    watch.reads(pc, g)
                for g in range(step.first, step.last):
                    self.rows(g, step.kind, 0, self.groups[g].n, place, replica, 0, order[0])
                    watch.written(g)
                if self.trapped >= 0:
                    return False
                watch.end(pc)
                if step.kind == COMPUTE:
                    self.advance(step, place)
                if step.kind == STREAM_IN or step.kind == STREAM_OUT:
                    self.count(step, place)
            pc += 1
        place.pc = pc
        return True
