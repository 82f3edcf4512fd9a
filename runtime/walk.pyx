"""How a program is walked: the order of its steps, and each thread's share of their rows.

All host threads walk the program together, each with its share of every superstep's rows, and meet at a barrier;
supersteps too small to share are run by the first thread alone. Rows write disjoint bytes and each is computed by one
thread, so the thread count cannot change a result.

Replicas have memories of their own. One goes on until it reaches a collective, then the next does; the last one's
arrival runs the collective for all of them. In between they share nothing, so their branches and loops may go
different ways.
"""
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from ipu_runtime.codelets.collective cimport run_collective
from ipu_runtime.codelets.copy cimport run_copy
from ipu_runtime._vec cimport ROUND_STOCHASTIC, TRAP_ALL
from ipu_runtime.core cimport Group, Scratch, cell, codelet_fn, mixed, operand
from ipu_runtime.device cimport (
    BRANCH, COLLECTIVE, COMPUTE, END, EXCHANGE, FOR, JUMP, LABEL, MOST_REPLICAS, NEXT, REPEAT, STREAM_IN, STREAM_OUT,
    WINDOW, COMMON, NEAREST, Device, Slot, Step)
from ipu_runtime.dispatch cimport FUNCTIONS


cdef extern from "barrier.h" nogil:
    void barrier_wait(barrier_t *b)
    void note_first(long *first, long order)


cdef int signals() noexcept with gil:
    return PyErr_CheckSignals()


cdef class Walker(Device):
    """A device whose program can be walked; see `engine.Engine`, which does."""

    cdef bint no_turn_left(self) noexcept nogil:
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

    cdef bint stopped(self, long order) noexcept nogil:
        """Whether a step before the one at hand has raised something. To be asked right behind a barrier: what a thread
        raises in the step at hand stops none of the others before they meet again."""
        return 0 <= self.trapped < order

    cdef bint met_to_stop(self, const int *failed, long order) noexcept nogil:
        """All threads meet, and say the same: whether the run ends here."""
        cdef bint stop
        barrier_wait(&self.barrier)
        stop = failed[0] or self.stopped(order)
        barrier_wait(&self.barrier)
        return stop

    cdef void prepare_rows(self, long g, Place *place, long replica, Scratch *s) noexcept nogil:
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

    cdef void noted(self, long step, long g, long replica, long lo, long order, int thread) noexcept nogil:
        """Remember a thread's first trap, and the first of all."""
        cdef Trap *trap = &self.traps[thread]
        if trap.order < 0:
            trap.order, trap.step, trap.group, trap.replica, trap.row = order, step, g, replica, lo
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
                        self.noted(places[0].pc, g, 0, row, order, first)
                        break
                    row += many
        for r in range(self.replicas):
            self.advance(step, &places[r])

    cdef void advance(self, Step *step, Place *place) noexcept nogil:
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
            place.pc = pc
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
                    alone = False
                    if self.met_to_stop(failed, order[0]):
                        return False
                pc = self.target(step)
            elif kind >= FOR and kind <= WINDOW:
                if kind == NEXT:
                    # Every thread counts for itself; Ctrl-C is seen here, for a long pipeline.
                    if first == 0 and signals() != 0:
                        failed[0] = 1
                    alone = False
                    if self.met_to_stop(failed, order[0]):
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

    cdef void count(self, Step *step, Place *place) noexcept nogil:
        """One element has gone through each queue of a step."""
        cdef long g
        for g in range(step.first, step.last):
            place.taken[self.groups[g].params[2]] += 1

    cdef long control(self, Step *step, Place *place, long pc) noexcept nogil:
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

    cdef uint8_t flag(self, Step *step, char *arena) noexcept nogil:
        return (<uint8_t *>operand(&self.groups[step.first], 1, 0, arena, self.stride))[0]

    cdef long target(self, Step *step) noexcept nogil:
        return self.groups[step.first].params[0]

    cdef void rows(self, long number, int kind, long lo, long hi, Place *place, long replica, int thread,
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
                    self.noted(place.pc, number, replica, index, order, thread)
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
                        if cell(g, kind == STREAM_IN, index) % slot.parts == replica:
                            self.stream(g, kind, index, index + 1, host, arena)
                else:
                    self.stream(g, kind, lo, hi, host + slot.bytes * replica, arena)
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
            self.stream(g, kind, lo, hi, slot.base + slot.bytes * (index * self.replicas + replica), arena)

    cdef void stream(self, const Group *g, int kind, long lo, long hi, char *host, char *arena) noexcept nogil:
        """Copies between an array of the host and the tiles."""
        if kind == STREAM_IN:
            run_copy(g, lo, hi, host, 0, arena, self.stride)
        else:
            run_copy(g, lo, hi, arena, self.stride, host, 0)
