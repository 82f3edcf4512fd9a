"""The engine: runs a program's supersteps over the memories of the emulated tiles.

Each tile's memory is a range of one arena; `stride` apart, an odd number of cache lines, so that the same offset on
many tiles does not fall into one cache set. All host threads walk the program together, each with its share of every
superstep's rows, and meet at a barrier; supersteps too small to share are run by the first thread alone. Rows write
disjoint bytes and each is computed by one thread, so the thread count cannot change a result.
"""
import os

import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from ipu_runtime.codelets.conv cimport prepare_conv, run_conv
from ipu_runtime.codelets.copy cimport run_copy
from ipu_runtime.codelets.dot cimport prepare_dot, run_dot
from ipu_runtime.codelets.dynamic cimport run_dynamic
from ipu_runtime.codelets.elementwise cimport free_map, prepare_map, run_map
from ipu_runtime.codelets.gather cimport prepare_scatter, run_gather, run_scatter
from ipu_runtime.codelets.random cimport run_philox, run_philox_next
from ipu_runtime.codelets.reduce cimport free_variadic, prepare_reduce, prepare_variadic, run_reduce, run_variadic
from ipu_runtime.codelets.sort cimport free_sort, prepare_sort, run_sort
from ipu_runtime.codelets.window cimport (prepare_select_scatter, prepare_window, run_select_scatter, run_window)
from ipu_runtime.core cimport Col, Group, Scratch, codelet_fn, operand

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
    char *base              # host array of a feed or output
    size_t bytes            # of one iteration


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
    cdef size_t stride, arena_bytes
    cdef long tiles, n_groups, n_steps, n_slots, turns_left
    cdef Group *groups
    cdef Col *cols
    cdef Step *steps
    cdef Slot *slots
    cdef int32_t *bounds    # [group][threads + 1]: shares of the rows
    cdef Scratch *scratches
    cdef barrier_t barrier
    cdef object keep, watch
    cdef dict states, feeds, outputs

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
        if header.get("overflows"):
            raise ProfileOnlyError(overflow_text(header))
        self.tiles = program.tile_count
        lines = (int(header["used_bytes"]) + 64) // 64 + 1
        self.stride = 64 * (lines | 1)
        self.arena_bytes = self.stride * self.tiles
        self.arena = <char *>mmap(NULL, self.arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if self.arena == <char *>-1:
            self.arena = NULL
            raise IPUError(f"the host cannot map {self.arena_bytes:,} bytes for {self.tiles} tiles")
        madvise(self.arena, self.arena_bytes, HUGE_PAGES)
        self._load_groups()
        self._load_steps()
        self.slots = <Slot *>calloc(int(header["slots"]) + 1, sizeof(Slot))
        self.n_slots = int(header["slots"])
        self.scratches = <Scratch *>calloc(self.threads, sizeof(Scratch))
        self.states = {int(s["param"]): s for s in header["states"]}
        self.feeds = {int(s["param"]): s for s in header["feeds"]}
        self.outputs = {int(s["output"]): s for s in header["outputs"]}
        if strict:
            self.watch = Watch(program, np.asarray(<uint8_t[:self.arena_bytes]>(<uint8_t *>self.arena)), self.stride)
        for constant in header["constants"]:
            data = program.blob[constant["first"]: constant["first"] + constant["nbytes"]]
            self._transfer(constant["groups"], data, True)

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
            if self.threads > 1 and steps[i, 0] < REPEAT:
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
        self._transfer(spec["write"], self._host(array, spec, spec["shape"], f"state {param}"), True)

    def read_state(self, int param):
        """A state's value, a new array."""
        spec = self.states[param]
        out = np.empty(spec["shape"], NUMPY[spec["dtype"]])
        self._transfer(spec["read"], out, False)
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

    cdef _transfer(self, groups, array, bint inward):
        cdef char *host = <char *><size_t>array.ctypes.data
        cdef long i, first = groups[0], last = groups[1]
        for i in range(first, last):
            if inward:
                run_copy(&self.groups[i], 0, self.groups[i].n, host, 0, self.arena, self.stride)
                if self.watch is not None:
                    self.watch.written(i)
            else:
                run_copy(&self.groups[i], 0, self.groups[i].n, self.arena, self.stride, host, 0)

    def run(self, feeds, long repeat=1, long turns=-1):
        """One device execution.

        Args:
            feeds: for each streamed parameter its array, with a leading axis of `repeat`.
            repeat: how many times the program's body runs.
            turns: how often loops may go back, all together; -1 for any number.

        Returns:
            Dict of the streamed outputs by flat output index, each with a leading axis of `repeat`.

        Raises:
            KeyboardInterrupt: Ctrl-C between two iterations; the states are then undefined.
            LoopLimitError: loops went back more often than `turns`; the states are then undefined.
            StrictModeError: in strict mode, an illegal access.
        """
        global _executions
        cdef long i
        _held, results = self._bind(feeds, repeat)
        self.turns_left = turns
        if self.strict:
            self._run_strict(repeat)
        else:
            with blas.one_thread():
                self._run_threads(repeat)
        if self.turns_left == -2:
            raise LoopLimitError(f"the program's loops went back more than {turns} times")
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
        cdef double[::1] seconds = np.zeros(self.n_steps)
        held = self._bind(feeds, 1)
        with blas.one_thread():
            for pc in range(self.n_steps):
                step = &self.steps[pc]
                clock_gettime(CLOCK_MONOTONIC, &begin)
                if step.kind < REPEAT:
                    for g in range(step.first, step.last):
                        self.rows(&self.groups[g], step.kind, 0, self.groups[g].n, 0, 0)
                clock_gettime(CLOCK_MONOTONIC, &end)
                seconds[pc] = (end.tv_sec - begin.tv_sec) + 1e-9 * (end.tv_nsec - begin.tv_nsec)
        del held
        return np.asarray(seconds)

    cdef _bind(self, feeds, long repeat):
        """Point the slots at host arrays; returns (arrays that must stay alive, results)."""
        held = []
        results = {}
        if set(feeds) != set(self.feeds):
            raise ValueError(f"feeds for parameters {sorted(feeds)}, the program takes {sorted(self.feeds)}")
        for param, spec in self.feeds.items():
            array = self._host(feeds[param], spec, (repeat, *spec["shape"]), f"feed of parameter {param}")
            held.append(array)
            self._slot(spec["slot"], array, repeat)
        for index, spec in self.outputs.items():
            array = np.empty((repeat, *spec["shape"]), NUMPY[spec["dtype"]])
            results[index] = array
            self._slot(spec["slot"], array, repeat)
        return held, results

    cdef _slot(self, int slot, array, long repeat):
        self.slots[slot].base = <char *><size_t>array.ctypes.data
        self.slots[slot].bytes = array.nbytes // repeat if repeat else 0

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
        """Run the shares first..last of every superstep."""
        cdef long pc = 0, loop = 0, iteration = 0, g
        cdef int t, kind, stop
        cdef bint alone = False, taken
        cdef Step *step
        cdef int32_t *share
        while pc < self.n_steps:
            step = &self.steps[pc]
            kind = step.kind
            if kind == REPEAT:
                loop, iteration = pc, 0
                if repeat <= 0:
                    while self.steps[pc].kind != END:
                        pc += 1
            elif kind == END:
                barrier_wait(&self.barrier)
                alone = False
                if first == 0 and iteration + 1 < repeat and signals() != 0:
                    failed[0] = 1
                iteration += 1
                if repeat > 1:
                    barrier_wait(&self.barrier)
                if failed[0]:
                    return
                if iteration < repeat:
                    pc = loop
            elif kind == LABEL:
                pass
            elif kind == BRANCH:
                # All threads read the flag between two barriers: nobody may write it again before all have.
                barrier_wait(&self.barrier)
                alone = False
                taken = self.flag(step) == 0
                stop = failed[0]
                barrier_wait(&self.barrier)
                if stop:
                    return
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
                        return
                pc = self.target(step)
            elif step.serial:
                if first == 0:
                    for g in range(step.first, step.last):
                        self.rows(&self.groups[g], kind, 0, self.groups[g].n, iteration, 0)
                alone = True
            else:
                if alone:
                    barrier_wait(&self.barrier)
                    alone = False
                for t in range(first, last):
                    for g in range(step.first, step.last):
                        share = &self.bounds[g * (self.threads + 1) + t]
                        if share[0] < share[1]:
                            self.rows(&self.groups[g], kind, share[0], share[1], iteration, first)
                barrier_wait(&self.barrier)
            pc += 1

    cdef inline uint8_t flag(self, Step *step) noexcept nogil:
        return (<uint8_t *>operand(&self.groups[step.first], 1, 0, self.arena, self.stride))[0]

    cdef inline long target(self, Step *step) noexcept nogil:
        return self.groups[step.first].params[0]

    cdef inline void rows(self, Group *g, int kind, long lo, long hi, long iteration, int thread) noexcept nogil:
        cdef Slot *slot
        if kind == COMPUTE:
            (<codelet_fn>FUNCTIONS[g.codelet])(g, lo, hi, self.arena, self.stride, &self.scratches[thread])
        elif kind == EXCHANGE:
            run_copy(g, lo, hi, self.arena, self.stride, self.arena, self.stride)
        else:
            slot = &self.slots[g.params[2]]
            if kind == STREAM_IN:
                run_copy(g, lo, hi, slot.base + iteration * slot.bytes, 0, self.arena, self.stride)
            else:
                run_copy(g, lo, hi, self.arena, self.stride, slot.base + iteration * slot.bytes, 0)

    def _run_strict(self, long repeat):
        cdef long pc = 0, loop = 0, iteration = 0, g
        cdef Step *step
        watch = self.watch
        while pc < self.n_steps:
            step = &self.steps[pc]
            if step.kind == REPEAT:
                loop, iteration = pc, 0
                if repeat <= 0:
                    while self.steps[pc].kind != END:
                        pc += 1
            elif step.kind == END:
                iteration += 1
                if iteration < repeat:
                    pc = loop
            elif step.kind == BRANCH:
                watch.reads(pc, step.first)
                if self.flag(step) == 0:
                    pc = self.target(step)
            elif step.kind == JUMP:
                if self.target(step) < pc:
                    PyErr_CheckSignals()
                    if self.no_turn_left():
                        return
                pc = self.target(step)
            elif step.kind != LABEL:
                watch.begin(pc)
                for g in range(step.first, step.last):
                    watch.reads(pc, g)
                for g in range(step.first, step.last):
                    self.rows(&self.groups[g], step.kind, 0, self.groups[g].n, iteration, 0)
                    watch.written(g)
                watch.end(pc)
            pc += 1
        watch.guards("the end of the run")


cdef void *FUNCTIONS[15]
FUNCTIONS[0] = NULL
FUNCTIONS[1] = <void *>run_map
FUNCTIONS[2] = <void *>run_reduce
FUNCTIONS[3] = <void *>run_variadic
FUNCTIONS[4] = <void *>run_dot
FUNCTIONS[5] = <void *>run_conv
FUNCTIONS[6] = <void *>run_window
FUNCTIONS[7] = <void *>run_select_scatter
FUNCTIONS[8] = <void *>run_gather
FUNCTIONS[9] = <void *>run_scatter
FUNCTIONS[10] = <void *>run_philox
FUNCTIONS[11] = <void *>run_philox_next
FUNCTIONS[12] = <void *>run_dynamic
FUNCTIONS[13] = NULL
FUNCTIONS[14] = <void *>run_sort


cdef bint prepare(Group *g) except? 0:
    """Resolve a group's kernels; False if there is none for its parameters."""
    cdef void *aux = g
    if g.codelet == 1:
        aux = prepare_map(g)
    elif g.codelet == 2:
        aux = prepare_reduce(g)
    elif g.codelet == 3:
        aux = prepare_variadic(g)
    elif g.codelet == 4:
        aux = prepare_dot(g)
    elif g.codelet == 5:
        aux = prepare_conv(g)
    elif g.codelet == 6:
        aux = prepare_window(g)
    elif g.codelet == 7:
        aux = prepare_select_scatter(g)
    elif g.codelet == 9:
        aux = prepare_scatter(g)
    elif g.codelet == 14:
        aux = prepare_sort(g)
    g.aux = aux
    return aux != NULL


cdef void free_aux(Group *g) noexcept:
    # The other codelets keep a pointer to shared tables, or nothing.
    if g.aux == NULL or g.aux == <void *>g:
        return
    if g.codelet == 1:
        free_map(g.aux)
    elif g.codelet == 3:
        free_variadic(g.aux)
    elif g.codelet == 14:
        free_sort(g.aux)
    elif g.codelet in (2, 6, 7):
        free(g.aux)
