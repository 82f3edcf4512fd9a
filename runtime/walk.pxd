"""What walks a program has to remember, and the steps that every kind of walk is made of."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ipu_runtime.core cimport Group, Scratch
from ipu_runtime.device cimport Device, Step


cdef extern from "barrier.h" nogil:
    ctypedef struct barrier_t:
        pass


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
    long step, group, replica, row
    int op                  # of a map's body
    uint32_t raised


cdef class Walker(Device):
    cdef barrier_t barrier
    cdef bint parted, short_queue
    cdef long turns_left
    cdef Trap traps[64]     # of each thread
    cdef long trapped       # the first step of the walk that raised something, -1: none

    cdef bint no_turn_left(self) noexcept nogil
    cdef void walk(self, int first, int last, long repeat, int *failed, long *taken) noexcept nogil
    cdef bint stopped(self, long order) noexcept nogil
    cdef bint met_to_stop(self, const int *failed, long order) noexcept nogil
    cdef void prepare_rows(self, long g, Place *place, long replica, Scratch *s) noexcept nogil
    cdef void noted(self, long step, long g, long replica, long lo, long order, int thread) noexcept nogil
    cdef void collect(self, Step *step, Place *places, int first, int last, long order) noexcept nogil
    cdef void advance(self, Step *step, Place *place) noexcept nogil
    cdef bint walk_one(self, Place *place, long replica, int first, int last, long repeat, int *failed,
                       long *order) noexcept nogil
    cdef void count(self, Step *step, Place *place) noexcept nogil
    cdef long control(self, Step *step, Place *place, long pc) noexcept nogil
    cdef uint8_t flag(self, Step *step, char *arena) noexcept nogil
    cdef long target(self, Step *step) noexcept nogil
    cdef void rows(self, long number, int kind, long lo, long hi, Place *place, long replica, int thread,
                   long order) noexcept nogil
    cdef void stream(self, const Group *g, int kind, long lo, long hi, char *host, char *arena) noexcept nogil
