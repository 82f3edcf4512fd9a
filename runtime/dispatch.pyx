"""Which kernel serves a group: one table, by the codelet's number (`codelets.registry`)."""
from libc.stdlib cimport free

from ipu_runtime.codelets.collective cimport prepare_collective
from ipu_runtime.codelets.conv cimport prepare_conv, run_conv
from ipu_runtime.codelets.dot cimport prepare_dot, run_dot
from ipu_runtime.codelets.dynamic cimport run_dynamic
from ipu_runtime.codelets.elementwise cimport free_map, prepare_map, run_map
from ipu_runtime.codelets.fifo cimport run_fifo
from ipu_runtime.codelets.gather cimport prepare_scatter, run_gather, run_scatter
from ipu_runtime.codelets.quarter cimport prepare_quarter, run_quarter_cast, run_quarter_product
from ipu_runtime.codelets.random cimport run_philox, run_philox_next
from ipu_runtime.codelets.reduce cimport free_variadic, prepare_reduce, prepare_variadic, run_reduce, run_variadic
from ipu_runtime.codelets.sort cimport free_sort, prepare_sort, run_sort
from ipu_runtime.codelets.sparse cimport prepare_sparse, run_sparse
from ipu_runtime.codelets.window cimport (prepare_select_scatter, prepare_window, run_select_scatter, run_window)
from ipu_runtime.core cimport Group


FUNCTIONS[0] = NULL            # copies and collectives are called by the engine, control steps by nobody
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
FUNCTIONS[15] = <void *>run_fifo
FUNCTIONS[16] = NULL
FUNCTIONS[17] = NULL
FUNCTIONS[18] = <void *>run_quarter_cast
FUNCTIONS[19] = <void *>run_quarter_product
FUNCTIONS[20] = <void *>run_sparse


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
    elif g.codelet == 17:
        aux = prepare_collective(g)
    elif g.codelet in (18, 19):
        aux = prepare_quarter(g)
    elif g.codelet == 20:
        aux = prepare_sparse(g)
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
