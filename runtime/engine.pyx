"""The engine: executions of a program on the memories of the emulated tiles: threads, traps, results."""
import numpy as np

from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from ipu_runtime._vec cimport TRAP_ALL
from ipu_runtime.core cimport cell
from ipu_runtime.device cimport REPEAT, Step
from ipu_runtime.strict_walk cimport StrictWalker
from ipu_runtime.walk cimport Place, Trap, barrier_t

from ipu_runtime.errors import FloatingPointTrap, IPUError, LoopLimitError

DEF STACK = 1 << 20   # bytes of a thread's; a matrix product needs some 150 KiB, and not every system gives as much


cdef extern from "barrier.h" nogil:
    void barrier_init(barrier_t *b, int threads)
    void start(int *flag, int value)
    int started(int *flag)

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


cdef struct Worker:
    pthread_t thread
    void *engine
    int first
    long repeat
    int *failed
    long *taken             # see `Place`; every thread counts for itself, and all come to the same
    int go                  # 0: wait; 1: walk the program; -1: go home


cdef void *work(void *argument) noexcept nogil:
    cdef Worker *me = <Worker *>argument
    if started(&me.go) > 0:
        (<Engine>me.engine).walk(me.first, me.first + 1, me.repeat, me.failed, me.taken)
    return NULL


cdef class Engine(StrictWalker):
    """One emulated device with a program loaded.

    Args:
        program: a `Program`; it is not changed and may be shared.
        threads: host threads; default the machine's cores.
        strict: check every operand (bounds, live allocations, bytes never written, guard bytes) and run on one thread.
            Default: whether the environment variable IPU_RUNTIME_STRICT is set to something other than "0".

    Thread safety: one thread at a time may call an engine's methods; engines are independent of each other.
    """

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
            self.run_strict(repeat)
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
        return FloatingPointTrap.of(self.program, int(a.step), int(a.group), int(a.op), int(tile), int(a.replica),
                                    int(a.raised))

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
        place.iteration = place.micro = place.met = place.common = place.pc = 0
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
