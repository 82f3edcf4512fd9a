"""The engine: runs a program's supersteps over the memories of the emulated tiles.

Each tile's memory is a range of one arena; `stride` apart, an odd number of cache lines, so that the same offset on
many tiles does not fall into one cache set. All host threads walk the program together, each with its share of every
superstep's rows, and meet at a barrier; supersteps too small to share are run by the first thread alone. Rows write
disjoint bytes and each is computed by one thread, so the thread count cannot change a result.

Replicas have an arena each. One goes on until it reaches a collective, then the next does; the last one's arrival runs
the collective for all of them. In between they share nothing, so their branches and loops may go different ways.
"""
import os

import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from ipu_runtime.codelets.collective cimport run_collective
from ipu_runtime.codelets.copy cimport run_copy
from ipu_runtime.core cimport Col, Group, Scratch, codelet_fn, operand
from ipu_runtime.dispatch cimport FUNCTIONS, free_aux, prepare

from ipu_runtime import blas
from ipu_runtime.codelets import registry
from ipu_runtime.errors import ExecutableFormatError, IPUError, LoopLimitError, ProfileOnlyError, overflow_text
from ipu_runtime.opcodes import DTYPE_NUMBER
from ipu_runtime.strict import Watch

cdef extern from "barrier.h" nogil:
    ctypedef struct barrier_t:
        pass
    void barrier_init(barrier_t *b, int threads)
    void barrier_wait(barrier_t *b)

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    int pthread_create(pthread_t *thread, const void *attributes, void *(*start)(void *) noexcept nogil, void *argument)
    int pthread_join(pthread_t thread, void **result)

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *addr, size_t n, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t n)
    int madvise(void *addr, size_t n, int advice)
    enum:
        PROT_READ
        PROT_WRITE
        MAP_PRIVATE
        MAP_NORESERVE
        MAP_ANONYMOUS

DEF HUGE_PAGES = 14         # MADV_HUGEPAGE; elsewhere the call fails and nothing is lost
DEF COMPUTE = 0
DEF EXCHANGE = 1
DEF STREAM_IN = 2
DEF STREAM_OUT = 3
DEF REPEAT = 4
DEF END = 5
DEF LABEL = 6
DEF BRANCH = 7
DEF JUMP = 8
DEF FOR = 9
DEF NEXT = 10
DEF WINDOW = 11
DEF COLLECTIVE = 12
DEF MOST_REPLICAS = 64

NUMPY = dict(zip(DTYPE_NUMBER, ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4")))
SERIAL_NS = 4000.0          # below this a superstep is not worth a barrier
_executions = 0


def executions():
    """How many device executions this process has finished."""
    return _executions


cdef int signals() noexcept with gil:
    return PyErr_CheckSignals()


cdef struct Step:
    int kind
    int first
    int last
    bint serial


cdef struct Slot:
    char *base              # host array: [iteration, (micro-batch,) replica, ...], of a queue [element, replica, ...]
    size_t bytes            # of one replica's value
    long micro              # values of one iteration: its micro-batches, or 1
    long queue              # elements of a queue; 0 for a feed or output
    char *later             # of a state in streaming memory, from the second iteration on: the array that it leaves to
    bint last               # a queue that keeps its last element only


cdef struct Place:
    # Where a replica is in the program.
    long pc, loop, iteration
    long counter            # turns of the loop over micro-batches
    long micro              # number of the micro-batch
    long *taken             # elements that went through each queue


cdef struct Worker:
    pthread_t thread
    void *engine
    int first
    long repeat
    int *failed
    int go                  # 0: wait; 1: walk the program; -1: go home


cdef extern from "barrier.h" nogil:
    void start(int *flag, int value)
    int started(int *flag)


cdef void *work(void *argument) noexcept nogil:
    cdef Worker *me = <Worker *>argument
    if started(&me.go) > 0:
        (<Engine>me.engine).walk(me.first, me.first + 1, me.repeat, me.failed)
    return NULL


cdef class Engine:
    """One emulated device with a program loaded.

    Args:
        program: a `Program`; it is not changed and may be shared.
        threads: host threads; default the machine's cores.
        strict: check every operand (bounds, live allocations, bytes never written, guard bytes) and run on one thread.
            Default: whether the environment variable IPU_RUNTIME_STRICT is set to something other than "0".

    Thread safety: one thread at a time may call an engine's methods; engines are independent of each other.
    """

    cdef readonly object program
    cdef readonly int threads
    cdef readonly bint strict
    cdef char *arena
    cdef size_t stride, arena_bytes, replica_bytes
    cdef readonly long replicas
    cdef bint parted, short_queue, queues_used
    cdef long tiles, n_groups, n_steps, n_slots, turns_left
    cdef Group *groups
    cdef Col *cols
    cdef Step *steps
    cdef Slot *slots
    cdef int32_t *bounds    # [group][threads + 1]: shares of the rows
    cdef Scratch *scratches
    cdef barrier_t barrier
    cdef object keep, watches
    cdef dict states, feeds, outputs, queues, remote

    def __cinit__(self, program, threads=None, strict=None):
        self.arena = NULL
        self.groups = NULL

    def __init__(self, program, threads=None, strict=None):
        self.program = program
        if strict is None:
            strict = os.environ.get("IPU_RUNTIME_STRICT", "0") not in ("", "0")
        self.strict = strict
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise ValueError(f"threads must be a positive whole number, not {threads!r}")
        self.threads = 1 if strict else max(1, min(threads or len(os.sched_getaffinity(0)), 64))
        header = program.header
        if program.replicas > MOST_REPLICAS:
            raise ValueError(f"{program.replicas} replicas: an engine runs at most {MOST_REPLICAS}")
        if header.get("overflows"):
            raise ProfileOnlyError(overflow_text(header))
        self.tiles = program.tile_count
        lines = (int(header["used_bytes"]) + 64) // 64 + 1
        self.stride = 64 * (lines | 1)
        self.replicas = program.replicas
        self.replica_bytes = self.stride * self.tiles
        self.arena_bytes = self.replica_bytes * self.replicas
        self.arena = <char *>mmap(NULL, self.arena_bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if self.arena == <char *>-1:
            self.arena = NULL
            raise IPUError(f"the host cannot map {self.arena_bytes:,} bytes for {self.tiles * self.replicas} tiles")
        madvise(self.arena, self.arena_bytes, HUGE_PAGES)
        self._load_groups()
        self._load_steps()
        self.slots = <Slot *>calloc(int(header["slots"]) + 1, sizeof(Slot))
        self.n_slots = int(header["slots"])
        self.queues_used = bool(header.get("queues"))
        self.scratches = <Scratch *>calloc(self.threads, sizeof(Scratch))
        self.states = {int(s["param"]): s for s in header["states"]}
        self.feeds = {int(s["param"]): s for s in header["feeds"]}
        self.outputs = {int(s["output"]): s for s in header["outputs"]}
        self.remote = {int(s["param"]): None for s in header["states"] if "remote" in s}
        self.queues = {int(s["slot"]): s for s in header.get("queues", ())}
        self.watches = []
        if strict:
            memory = np.asarray(<uint8_t[:self.arena_bytes]>(<uint8_t *>self.arena)).reshape(self.replicas, -1)
            self.watches = [Watch(program, part, self.stride) for part in memory]
        for constant in header["constants"]:
            data = program.blob[constant["first"]: constant["first"] + constant["nbytes"]]
            for r in range(self.replicas):
                # Some differ by replica: its number, and where its random numbers start.
                self._transfer(constant["groups"], _of_replica(data, constant.get("replica"), r), True, r)

    def __dealloc__(self):
        cdef long i
        if self.groups != NULL:
            for i in range(self.n_groups):
                free_aux(&self.groups[i])
        free(self.groups)
        free(self.cols)
        free(self.steps)
        free(self.slots)
        free(self.bounds)
        if self.scratches != NULL:
            for i in range(self.threads):
                free(self.scratches[i].p)
        free(self.scratches)
        if self.arena != NULL:
            munmap(self.arena, self.arena_bytes)

    cdef _load_groups(self):
        program = self.program
        cdef int64_t[:, ::1] groups = np.ascontiguousarray(program.groups, np.int64)
        cdef int64_t[:, ::1] columns = np.ascontiguousarray(program.columns, np.int64)
        params = np.append(program.params, 0).astype(np.int64)
        data = np.append(program.data, 0).astype(np.int32)
        cdef int64_t[::1] p = params
        cdef int32_t[::1] d = data
        self.keep = (params, data)
        self.n_groups = groups.shape[0]
        self.groups = <Group *>calloc(self.n_groups + 1, sizeof(Group))
        self.cols = <Col *>calloc(columns.shape[0] + 1, sizeof(Col))
        self.bounds = <int32_t *>calloc((self.n_groups + 1) * (self.threads + 1), sizeof(int32_t))
        cdef long i, t
        cdef Group *g
        for i in range(columns.shape[0]):
            self.cols[i].p = &d[columns[i, 0]]
            self.cols[i].s = 1 if columns[i, 1] != 1 else 0
        for i in range(self.n_groups):
            g = &self.groups[i]
            g.codelet, g.n = <int>groups[i, 0], groups[i, 1]
            g.params, g.nparams = &p[groups[i, 2]], groups[i, 3]
            g.cols, g.ncols = &self.cols[groups[i, 4]], <int>groups[i, 5]
            for t in range(self.threads + 1):
                self.bounds[i * (self.threads + 1) + t] = <int32_t>(g.n * t // self.threads)
            if g.n < self.threads:
                # Single rows go round the threads, so that neighbours in a superstep run side by side.
                for t in range(self.threads + 1):
                    self.bounds[i * (self.threads + 1) + t] = <int32_t>(g.n if t > i % self.threads else 0)
            if not prepare(g):
                name = registry.MODELS[g.codelet].name if g.codelet < len(registry.MODELS) else "?"
                raise ExecutableFormatError(f"group {i}: codelet {g.codelet} ({name}) does not take these parameters")

    cdef _load_steps(self):
        cdef int32_t[:, ::1] steps = np.ascontiguousarray(self.program.steps, np.int32)
        cdef long i
        self.n_steps = steps.shape[0]
        self.steps = <Step *>calloc(self.n_steps + 1, sizeof(Step))
        for i in range(self.n_steps):
            self.steps[i].kind, self.steps[i].first, self.steps[i].last = steps[i, 0], steps[i, 1], steps[i, 2]
            work = 0.0
            if self.threads > 1 and (steps[i, 0] < REPEAT or steps[i, 0] == COLLECTIVE):
                for k in range(steps[i, 1], steps[i, 2]):
                    view = self.program.group(k)
                    work += registry.MODELS[view.codelet].work(view)
                    if work >= SERIAL_NS:
                        break
            self.steps[i].serial = work < SERIAL_NS

    # ---- host side ----

    def write_state(self, int param, array):
        """Put a state's value on the tiles.

        Args:
            param: entry-parameter index.
            array: of the parameter's shape and dtype.
        """
        spec = self.states[param]
        array = self._host(array, spec, spec["shape"], f"state {param}")
        if param in self.remote:
            # Streaming memory is the host's: the array itself, where each replica does not have its own.
            self.remote[param] = array if self.replicas == 1 else np.stack([array] * self.replicas)
            return
        for r in range(self.replicas):
            self._transfer(spec["write"], array, True, r)

    def read_state(self, int param, int replica=-1):
        """A state's value, a new array.

        Args:
            param: entry-parameter index.
            replica: whose; default the last one's.
        """
        spec = self.states[param]
        if param in self.remote:
            held = self.remote[param]
            return held if self.replicas == 1 else held[replica]
        out = np.empty(spec["shape"], NUMPY[spec["dtype"]])
        self._transfer(spec["read"], out, False, range(self.replicas)[replica])
        return out

    def _host(self, array, spec, shape, what):
        array = np.asarray(array)
        wide = spec.get("host_dtype")
        if wide is not None and array.dtype == np.dtype(NUMPY[wide]):
            narrow = np.iinfo(NUMPY[spec["dtype"]])
            if array.size and (array.min() < narrow.min or array.max() > narrow.max):
                raise OverflowError(
                    f"{what} holds {array.min()} to {array.max()}: {wide} data reaches the device as {spec['dtype']}, "
                    f"which holds {narrow.min} to {narrow.max}"
                )
            array = array.astype(NUMPY[spec["dtype"]])
        if array.dtype != np.dtype(NUMPY[spec["dtype"]]):
            raise TypeError(f"{what} is {array.dtype}, the program takes {spec['dtype']}")
        if array.shape != tuple(shape):
            raise ValueError(f"{what} has shape {array.shape}, the program takes {tuple(shape)}")
        return np.ascontiguousarray(array)

    cdef _transfer(self, groups, array, bint inward, long replica):
        cdef char *host = <char *><size_t>array.ctypes.data
        cdef char *arena = self.arena + replica * self.replica_bytes
        cdef long i, first = groups[0], last = groups[1]
        for i in range(first, last):
            if inward:
                run_copy(&self.groups[i], 0, self.groups[i].n, host, 0, arena, self.stride)
                if self.strict:
                    self.watches[replica].written(i)
            else:
                run_copy(&self.groups[i], 0, self.groups[i].n, arena, self.stride, host, 0)

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
        """
        global _executions
        cdef long i
        _held, results = self._bind(feeds, repeat, queues or {})
        self.turns_left = turns
        if self.strict:
            self._run_strict(repeat)
        else:
            with blas.one_thread():
                self._run_threads(repeat)
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
        place.iteration = place.micro = 0
        place.taken = NULL
        held = self._bind(feeds, 1, {})
        with blas.one_thread():
            for pc in range(self.n_steps):
                step = &self.steps[pc]
                clock_gettime(CLOCK_MONOTONIC, &begin)
                if step.kind < REPEAT:
                    for g in range(step.first, step.last):
                        self.rows(&self.groups[g], step.kind, 0, self.groups[g].n, &place, 0, 0)
                clock_gettime(CLOCK_MONOTONIC, &end)
                seconds[pc] = (end.tv_sec - begin.tv_sec) + 1e-9 * (end.tv_nsec - begin.tv_nsec)
        del held
        return np.asarray(seconds)

    cdef _bind(self, feeds, long repeat, queues):
        """Point the slots at host arrays; returns (arrays that must stay alive, results)."""
        held = []
        results = {}
        if set(feeds) != set(self.feeds):
            raise ValueError(f"feeds for parameters {sorted(feeds)}, the program takes {sorted(self.feeds)}")
        for param, spec in self.feeds.items():
            array = self._host(feeds[param], spec, self._shape(spec, repeat), f"feed of parameter {param}")
            held.append(array)
            self._slot(spec, array)
        for index, spec in self.outputs.items():
            array = np.empty(self._shape(spec, repeat), NUMPY[spec["dtype"]])
            results[index] = array
            self._slot(spec, array)
        for param, array in self.remote.items():
            spec = self.states[param]
            if array is None:
                array = np.zeros((*[self.replicas] * (self.replicas > 1), *spec["shape"]), NUMPY[spec["dtype"]])
            left = np.empty_like(array) if spec["updated"] and repeat else array
            held += [array, left]
            self._slot({**spec, "slot": spec["remote"]}, array)
            self.slots[<int>spec["remote"]].later = <char *><size_t>left.ctypes.data
            self.remote[param] = left
        if set(queues) != set(self.queues):
            raise ValueError(f"arrays for the queues {sorted(queues)}, the program has {sorted(self.queues)}")
        for slot, spec in self.queues.items():
            array = queues[slot]
            inner = (*[self.replicas] * (self.replicas > 1), *spec["shape"])
            right = array.dtype == np.dtype(NUMPY[spec["dtype"]]) and array.shape[1:] == inner
            if not (right and array.flags.c_contiguous):
                raise ValueError(f"the queue with slot {slot} takes {spec['dtype']} arrays of shape [n, {inner}]")
            held.append(array)
            self._slot(spec, array)
            self.slots[<int>slot].queue, self.slots[<int>slot].last = len(array), spec["mode"] == "last"
        return held, results

    def _shape(self, spec, repeat):
        """Shape of a feed's or output's host array."""
        lead = [repeat * spec.get("micro", 1)] + [self.replicas] * (self.replicas > 1)
        return (*lead, *spec["shape"])

    cdef _slot(self, spec, array):
        cdef Slot *slot = &self.slots[<int>spec["slot"]]
        slot.base = <char *><size_t>array.ctypes.data
        slot.micro, slot.queue, slot.later = spec.get("micro", 1), 0, NULL
        slot.bytes = array.itemsize * int(np.prod(spec["shape"], dtype=np.int64))

    cdef int _run_threads(self, long repeat) except -1:
        cdef Worker workers[64]
        cdef int failed = 0, n = 1, i
        with nogil:
            # Threads live for one execution: making one costs some 20 us, and none is left spinning beside
            # TensorFlow's.
            barrier_init(&self.barrier, self.threads)
            for i in range(1, self.threads):
                workers[i].engine, workers[i].first = <void *>self, i
                workers[i].repeat, workers[i].failed = repeat, &failed
                workers[i].go = 0
                if pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0:
                    break
                n += 1
            if n < self.threads:
                # The host gave fewer threads: this one takes all shares, and nobody waits.
                barrier_init(&self.barrier, 1)
            for i in range(1, n):
                start(&workers[i].go, 1 if n == self.threads else -1)
            self.walk(0, 1 if n == self.threads else self.threads, repeat, &failed)
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

    cdef void walk(self, int first, int last, long repeat, int *failed) noexcept nogil:
        """Run the shares first..last of every superstep, of all replicas."""
        # Every thread counts for itself what went through a queue: all come to the same.
        cdef long *taken = <long *>calloc(self.n_slots * self.replicas + 1, sizeof(long))
        if taken == NULL:
            self.scratches[first].failed = True
            failed[0] = 1
        self.walk_all(first, last, repeat, failed, taken)
        free(taken)

    cdef void walk_all(self, int first, int last, long repeat, int *failed, long *taken) noexcept nogil:
        cdef Place places[MOST_REPLICAS]
        cdef long r, at = -1
        for r in range(self.replicas):
            places[r].pc = places[r].loop = places[r].iteration = places[r].counter = places[r].micro = 0
            places[r].taken = &taken[r * self.n_slots]
        while True:
            for r in range(self.replicas):
                if not self.walk_one(&places[r], r, first, last, repeat, failed):
                    return
            # All have reached the same collective, or the end.
            at = places[0].pc
            for r in range(1, self.replicas):
                if places[r].pc != at:
                    self.parted = True
                    return
            barrier_wait(&self.barrier)
            if at >= self.n_steps:
                return
            self.collect(&self.steps[at], first, last)
            barrier_wait(&self.barrier)
            for r in range(self.replicas):
                places[r].pc += 1

    cdef void collect(self, Step *step, int first, int last) noexcept nogil:
        """Combine values of all replicas."""
        cdef int t
        cdef long g
        cdef int32_t *share
        for t in range(first, last):
            for g in range(step.first, step.last):
                share = &self.bounds[g * (self.threads + 1) + t]
                run_collective(&self.groups[g], share[0], share[1], self.arena, self.stride, self.replica_bytes,
                               self.replicas, &self.scratches[first])

    cdef bint walk_one(self, Place *place, long replica, int first, int last, long repeat, int *failed) noexcept nogil:
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
                if failed[0]:
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
                stop = failed[0]
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
                    stop = failed[0]
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
                    stop = failed[0]
                    barrier_wait(&self.barrier)
                    if stop:
                        return False
                pc = self.control(step, place, pc)
            elif kind == COLLECTIVE:
                break
            elif step.serial:
                if first == 0:
                    for g in range(step.first, step.last):
                        self.rows(&self.groups[g], kind, 0, self.groups[g].n, place, replica, 0)
                alone = True
            else:
                if alone:
                    barrier_wait(&self.barrier)
                    alone = False
                for t in range(first, last):
                    for g in range(step.first, step.last):
                        share = &self.bounds[g * (self.threads + 1) + t]
                        if share[0] < share[1]:
                            self.rows(&self.groups[g], kind, share[0], share[1], place, replica, first)
                barrier_wait(&self.barrier)
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

    cdef inline void rows(self, Group *g, int kind, long lo, long hi, Place *place, long replica,
                          int thread) noexcept nogil:
        cdef Slot *slot
        cdef long index
        cdef char *host
        cdef char *arena = self.arena + replica * self.replica_bytes
        if kind == COMPUTE:
            (<codelet_fn>FUNCTIONS[g.codelet])(g, lo, hi, arena, self.stride, &self.scratches[thread])
        elif kind == EXCHANGE:
            run_copy(g, lo, hi, arena, self.stride, arena, self.stride)
        else:
            slot = &self.slots[g.params[2]]
            if slot.later != NULL:
                # In place but for the first time: what the host's variables hold must not change before the end.
                host = slot.base if kind == STREAM_IN and place.iteration == 0 else slot.later
                host += slot.bytes * replica
                if kind == STREAM_IN:
                    run_copy(g, lo, hi, host, 0, arena, self.stride)
                else:
                    run_copy(g, lo, hi, arena, self.stride, host, 0)
                return
            if slot.queue == 0:
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
        cdef long r, g, at
        cdef long[::1] taken = np.zeros(self.n_slots * self.replicas + 1, np.int_)
        for r in range(self.replicas):
            places[r].taken = &taken[r * self.n_slots]
            places[r].pc = places[r].loop = places[r].iteration = places[r].counter = places[r].micro = 0
        while True:
            for r in range(self.replicas):
                if not self._strict_one(&places[r], r, repeat):
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
            self.collect(&self.steps[at], 0, 1)
            for r in range(self.replicas):
                for g in range(self.steps[at].first, self.steps[at].last):
                    self.watches[r].written(g)
                self.watches[r].end(at)
                places[r].pc += 1
        for watch in self.watches:
            watch.guards("the end of the run")

    cdef bint _strict_one(self, Place *place, long replica, long repeat) except *:
        """As `walk_one`, on one thread, with every access checked."""
        cdef long pc = place.pc, g
        cdef Step *step
        cdef char *arena = self.arena + replica * self.replica_bytes
        watch = self.watches[replica]
        while pc < self.n_steps:
            step = &self.steps[pc]
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
                    self.rows(&self.groups[g], step.kind, 0, self.groups[g].n, place, replica, 0)
                    watch.written(g)
                watch.end(pc)
                if step.kind == STREAM_IN or step.kind == STREAM_OUT:
                    self.count(step, place)
            pc += 1
        place.pc = pc
        return True


def _of_replica(data, how, long replica):
    """A constant's bytes on one replica.

    Args:
        data: bytes on replica 0.
        how: "number" for 32 bits that are the replica's number; "seed" for 64 bits, which are told apart; None.
        replica: its number.
    """
    if how is None or replica == 0:
        return data
    own = data.copy()
    if how == "number":
        own[:4] = np.array([replica], np.int32).view(np.uint8)
    else:
        own[:8] = (own[:8].view(np.uint64) + np.uint64(replica * 0x9E3779B97F4A7C15 % (1 << 64))).view(np.uint8)
    return own
