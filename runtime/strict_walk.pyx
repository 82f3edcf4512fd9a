"""The walk of strict mode: one thread, every access of every superstep checked (`strict.py`)."""
import numpy as np

from cpython.exc cimport PyErr_CheckSignals

from ipu_runtime.device cimport (
    BRANCH, COLLECTIVE, COMPUTE, END, FOR, JUMP, LABEL, MOST_REPLICAS, REPEAT, STREAM_IN, STREAM_OUT, WINDOW, Step)
from ipu_runtime.walk cimport Place, Walker


cdef class StrictWalker(Walker):
    """A device whose program can be walked under watch, too."""

    cdef int run_strict(self, long repeat) except -1:
        cdef Place places[MOST_REPLICAS]
        cdef long r, g, at, order = 0
        cdef long[::1] taken = np.zeros(self.n_slots * self.replicas + 1, np.int_)
        for r in range(self.replicas):
            places[r].taken = &taken[r * self.n_slots]
            places[r].pc = places[r].loop = places[r].iteration = places[r].counter = places[r].micro = 0
            places[r].met = places[r].common = 0
        while True:
            for r in range(self.replicas):
                if not self.strict_one(&places[r], r, repeat, &order):
                    return 0
            at = places[0].pc
            for r in range(1, self.replicas):
                if places[r].pc != at:
                    self.parted = True
                    return 0
            if at >= self.n_steps:
                break
            for watch in self.watches:
                watch.begin(at)
                for g in range(self.steps[at].first, self.steps[at].last):
                    watch.reads(at, g)
            order += 1
            self.collect(&self.steps[at], places, 0, 1, order)
            if self.trapped >= 0:
                return 0
            for r in range(self.replicas):
                for g in range(self.steps[at].first, self.steps[at].last):
                    self.watches[r].written(g)
                self.watches[r].end(at)
                places[r].pc += 1
        for watch in self.watches:
            watch.guards("the end of the run")

    cdef bint strict_one(self, Place *place, long replica, long repeat, long *order) except *:
        """As `walk_one`, on one thread, with every access checked."""
        cdef long pc = place.pc, g
        cdef Step *step
        cdef char *arena = self.arena + replica * self.replica_bytes
        watch = self.watches[replica]
        while pc < self.n_steps:
            step = &self.steps[pc]
            place.pc = pc
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
