"""A queue of blocks on a tile: activations that a pipeline's backward stage will want some slots later.

Parameters: action (0: take the oldest block out, 1: put a block in, 2: make it empty), blocks that the queue holds.
Columns: tile, bytes of a block, offsets of the block, of the queue, and of its two counters (32 bits each: where the
next block goes in, where the next comes out). Blocks begin at multiples of 8 bytes.
"""
from libc.stdint cimport int32_t
from libc.string cimport memcpy, memset

from ipu_runtime.core cimport Group, Scratch, cell, operand

DEF TAKE = 0
DEF PUT = 1


cdef void run_fifo(const Group *g, long lo, long hi, char *arena, size_t stride, Scratch *s) noexcept nogil:
    cdef long row, n, step, at, action = g.params[0], depth = g.params[1]
    cdef char *block
    cdef char *queue
    cdef int32_t *count
    for row in range(lo, hi):
        n = cell(g, 1, row)
        step = (n + 7) // 8 * 8
        block, queue = operand(g, 2, row, arena, stride), operand(g, 3, row, arena, stride)
        count = <int32_t *>operand(g, 4, row, arena, stride)
        if action == PUT:
            at = count[0]
            memcpy(queue + at * step, block, n)
            count[0] = <int32_t>((at + 1) % depth)
        elif action == TAKE:
            at = count[1]
            memcpy(block, queue + at * step, n)
            count[1] = <int32_t>((at + 1) % depth)
        else:
            memset(queue, 0, depth * step)
            count[0] = count[1] = 0
