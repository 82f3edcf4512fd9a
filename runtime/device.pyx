"""One emulated device: the memories of its tiles, a program's tables as the kernels take them, and the host's side.

Each tile's memory is a range of one arena; `stride` apart, an odd number of cache lines, so that the same offset of
many tiles does not fall into one cache set. Each replica has an arena's worth of its own. Running is the engine's.
"""
import os

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from ipu_runtime.codelets.copy cimport run_copy
from ipu_runtime.core cimport Col, Group, Scratch
from ipu_runtime.dispatch cimport free_aux, prepare

from ipu_runtime.codelets import registry
from ipu_runtime.errors import ExecutableFormatError, IPUError, ProfileOnlyError, overflow_text
from ipu_runtime.opcodes import DTYPE_NUMBER
from ipu_runtime.rounding import mode_bits
from ipu_runtime.strict import Watch

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

NUMPY = dict(zip(DTYPE_NUMBER, ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4")))
SERIAL_NS = 4000.0          # below this a superstep is not worth a barrier


cdef class Device:
    """A device with a program loaded; see `ipu_runtime.engine.Engine`."""

    def __cinit__(self, program, threads=None, strict=None):
        self.arena = NULL
        self.groups = NULL
        self.seed, self.runs, self.alike = 0, 0, False

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
        floating = header.get("floating_point", {})
        self.fp_mode = mode_bits(False, floating.get("overflow", "inf"), floating.get("traps", ()))
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
        # What waits in streaming memory for a later stage of the same micro-batch, of all replicas.
        self.stashes = {
            int(s["slot"]): (s, np.empty((s["depth"], self.replicas, *s["shape"]), NUMPY[s["dtype"]]))
            for s in header.get("stashes", ())
        }
        self.watches = []
        if strict:
            memory = np.asarray(<uint8_t[:self.arena_bytes]>(<uint8_t *>self.arena)).reshape(self.replicas, -1)
            self.watches = [Watch(program, part, self.stride, r) for r, part in enumerate(memory)]
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

    def reset_seed(self, long long seed, bint identical_replicas=False):
        """Start the random bits of stochastic rounding again.

        Args:
            seed: the same one gives the same bits, on any number of host threads.
            identical_replicas: whether all replicas draw the same bits, not each its own.
        """
        self.seed, self.runs, self.alike = <uint64_t>seed, 0, identical_replicas

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
            g.cols, g.ncols, g.rounding = &self.cols[groups[i, 4]], <int>groups[i, 5], <int>groups[i, 6]
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
        cdef long i, g
        self.n_steps = steps.shape[0]
        self.steps = <Step *>calloc(self.n_steps + 1, sizeof(Step))
        for i in range(self.n_steps):
            self.steps[i].kind, self.steps[i].first, self.steps[i].last = steps[i, 0], steps[i, 1], steps[i, 2]
            self.steps[i].common = False
            for g in range(steps[i, 1], steps[i, 2]):
                self.steps[i].common |= self.groups[g].rounding == COMMON
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
            self.remote[param] = np.stack([array] * self.replicas) if self._apart(spec) else array
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
            return held[replica] if self._apart(spec) else held
        out = np.empty(spec["shape"], NUMPY[spec["dtype"]])
        self._transfer(spec["read"], out, False, range(self.replicas)[replica])
        return out

    def _apart(self, spec):
        """Whether the host holds a state in streaming memory once for each replica."""
        return self.replicas > 1 and "shared" not in spec

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
                array = np.zeros((*[self.replicas] * self._apart(spec), *spec["shape"]), NUMPY[spec["dtype"]])
            left = np.empty_like(array) if spec["updated"] and repeat else array
            held += [array, left]
            self._slot({**spec, "slot": spec["remote"]}, array)
            self.slots[<int>spec["remote"]].later = <char *><size_t>left.ctypes.data
            self.remote[param] = left
        for slot, (spec, array) in self.stashes.items():
            self._slot(spec, array)
            self.slots[<int>slot].ring = spec["depth"]
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
        slot.micro, slot.queue, slot.ring, slot.later = spec.get("micro", 1), 0, 0, NULL
        slot.parts = spec.get("shared", 1)
        slot.bytes = array.itemsize * int(np.prod(spec["shape"], dtype=np.int64))


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
