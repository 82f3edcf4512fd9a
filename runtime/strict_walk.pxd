"""The walk of strict mode."""
from ipu_runtime.walk cimport Place, Walker


cdef class StrictWalker(Walker):
    # Raises what the watch finds; a trap or the limit of turns is left to whoever asked.
    cdef int run_strict(self, long repeat) except -1
    cdef bint strict_one(self, Place *place, long replica, long repeat, long *order) except *
