# A device's memories and tables, for the engine that runs it.
#
# All of it but `slots` is fixed once a program is loaded; a run points the slots at the host's arrays. One thread at a
# time calls a device's methods; while a run is on, all its threads read what is here.
from libc.stdint cimport int32_t, uint32_t, uint64_t

from ipu_runtime.core cimport Col, Group, Scratch


cdef enum:
    # Kinds of step; see ipu_runtime.program.
    COMPUTE = 0
    EXCHANGE = 1
    STREAM_IN = 2
    STREAM_OUT = 3
    REPEAT = 4
    END = 5
    LABEL = 6
    BRANCH = 7
    JUMP = 8
    FOR = 9
    NEXT = 10
    WINDOW = 11
    COLLECTIVE = 12
    MOST_REPLICAS = 64
    # How a group rounds; see ipu_runtime.rounding.
    NEAREST = 0
    COMMON = 2


cdef struct Step:
    int kind
    int first
    int last
    bint serial
    bint common             # holds a group that all replicas round alike


cdef struct Slot:
    char *base              # host array: [iteration, (micro-batch,) replica, ...], of a queue [element, replica, ...]
    size_t bytes            # of one replica's value
    long micro              # values of one iteration: its micro-batches, or 1
    long queue              # elements of a queue; 0 for a feed or output
    char *later             # of a state in streaming memory, from the second iteration on: the array that it leaves to
    bint last               # a queue that keeps its last element only
    long ring               # of values of micro-batches in streaming memory: how many are kept; else 0
    long parts              # R for a state that replicas share: tile t is served by replica t mod R; else 1


cdef class Device:
    cdef readonly object program
    cdef readonly int threads
    cdef readonly bint strict
    cdef readonly long replicas
    cdef char *arena
    cdef size_t stride, arena_bytes, replica_bytes
    cdef bint queues_used
    cdef long tiles, n_groups, n_steps, n_slots
    cdef uint32_t fp_mode   # of the program: what an overflow becomes, and what is trapped
    cdef uint64_t seed      # of the random bits of rounding
    cdef uint64_t runs      # since the seed was given
    cdef bint alike         # all replicas draw the same random bits
    cdef Group *groups
    cdef Col *cols
    cdef Step *steps
    cdef Slot *slots
    cdef int32_t *bounds    # [group][threads + 1]: shares of the rows
    cdef Scratch *scratches
    cdef object keep, watches
    cdef dict states, feeds, outputs, queues, remote, stashes

    cdef _load_groups(self)
    cdef _load_steps(self)
    cdef _transfer(self, groups, array, bint inward, long replica)
    # Point the slots at host arrays; gives (arrays that must stay alive, results).
    cdef _bind(self, feeds, long repeat, queues)
    cdef _slot(self, spec, array)
