"""Lowering: each node of the graph becomes supersteps on the tiles.

`LOWERINGS` is the table of what can be lowered; `unsupported` lists all that cannot, before anything is built.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from ipu_keras.compiler.lower.collective import check_all_reduce, lower_all_reduce, lower_link, lower_replica_id
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.control import check_conditional, lower_conditional, lower_while
from ipu_keras.compiler.lower.conv import lower_convolution
from ipu_keras.compiler.lower.dot import lower_dot
from ipu_keras.compiler.lower.dynamic import lower_dynamic_slice, lower_dynamic_update_slice
from ipu_keras.compiler.lower.elementwise import lower_map
from ipu_keras.compiler.lower.gather import check_gather, check_scatter, lower_gather, lower_scatter
from ipu_keras.compiler.lower.movement import (
    lower_broadcast,
    lower_concatenate,
    lower_constant,
    lower_pad,
    lower_reshape,
    lower_reverse,
    lower_slice,
    lower_transpose,
)
from ipu_keras.compiler.lower.outline import call, is_called
from ipu_keras.compiler.lower.quarter import lower_cast
from ipu_keras.compiler.lower.queue import lower_dequeue, lower_enqueue
from ipu_keras.compiler.lower.random import check_rng, lower_rng
from ipu_keras.compiler.lower.reduce import check_reduce, lower_reduce
from ipu_keras.compiler.lower.sort import check_sort, lower_sort
from ipu_keras.compiler.lower.sparse import lower_sparse_dot
from ipu_keras.compiler.lower.window import (
    check_reduce_window,
    check_select_and_scatter,
    lower_reduce_window,
    lower_select_and_scatter,
)
from ipu_keras.compiler.rounding import rounding_of
from ipu_keras.graph.elementwise import ELEMENTWISE, kernel_op
from ipu_keras.graph.ir import Graph, Node
from ipu_runtime.codelets import registry

OWN: dict[str, Callable[[Context, Node], None]] = {
    "link": lower_link,
    "dequeue": lower_dequeue,
    "enqueue": lower_enqueue,
    "to-quarter": lower_cast,
    "from-quarter": lower_cast,
    "quarter-dot": lower_dot,
    "quarter-convolution": lower_convolution,
    "sparse-dot": lower_sparse_dot,
}
"""Operations of the compiler's own, which no module holds: they come from `compiler.parallel` and from custom calls."""

LOWERINGS: dict[str, Callable[[Context, Node], None]] = {
    "map": lower_map,
    "constant": lower_constant,
    "reshape": lower_reshape,
    "transpose": lower_transpose,
    "broadcast": lower_broadcast,
    "slice": lower_slice,
    "reverse": lower_reverse,
    "pad": lower_pad,
    "concatenate": lower_concatenate,
    "reduce": lower_reduce,
    "reduce-window": lower_reduce_window,
    "select-and-scatter": lower_select_and_scatter,
    "dot": lower_dot,
    "convolution": lower_convolution,
    "gather": lower_gather,
    "scatter": lower_scatter,
    "rng-bit-generator": lower_rng,
    "sort": lower_sort,
    "dynamic-slice": lower_dynamic_slice,
    "dynamic-update-slice": lower_dynamic_update_slice,
    "while": lambda ctx, node: lower_while(ctx, node, lower),
    "conditional": lambda ctx, node: lower_conditional(ctx, node, lower),
    "all-reduce": lower_all_reduce,
    "replica-id": lower_replica_id,
}


def lower(ctx: Context, node: Node) -> None:
    """Lower one node."""
    ctx.rounding = rounding_of(node, ctx.options["stochastic_rounding"])
    rule = LOWERINGS.get(node.op) or OWN[node.op]
    if is_called(ctx, node):
        call(ctx, node, rule)
    else:
        rule(ctx, node)


PRODUCT_DTYPES = {
    "dot": ("s8", "u8", "s32", "u32", "f16", "f32"),
    "convolution": ("f16", "f32"),
}
"""Operand dtypes of products."""


def _check_product(node: Node) -> str | None:
    dtypes = {v.dtype for v in node.inputs}
    if len(dtypes) != 1 or not dtypes <= set(PRODUCT_DTYPES[node.op]):
        return f"operands of {' and '.join(sorted(dtypes))}"
    if node.op == "convolution" and len(node.attrs.get("window", ())) > 3:
        return "more than three spatial dimensions"
    return None


VERTICES: dict[str, tuple[int, ...]] = {
    "map": (registry.MAP,),
    "constant": (),
    "reshape": (),
    "transpose": (),
    "broadcast": (registry.COPY,),
    "slice": (registry.COPY,),
    "reverse": (registry.COPY,),
    "pad": (registry.COPY,),
    "concatenate": (registry.COPY,),
    "reduce": (registry.REDUCE, registry.VARIADIC),
    "reduce-window": (registry.WINDOW,),
    "select-and-scatter": (registry.SELECT_SCATTER,),
    "dot": (registry.DOT, registry.REDUCE),
    "convolution": (registry.CONV, registry.REDUCE),
    "gather": (registry.GATHER,),
    "scatter": (registry.SCATTER,),
    "rng-bit-generator": (registry.PHILOX, registry.PHILOX_NEXT),
    "sort": (registry.SORT,),
    "dynamic-slice": (registry.DYNAMIC,),
    "dynamic-update-slice": (registry.DYNAMIC,),
    "while": (registry.BRANCH,),
    "conditional": (registry.BRANCH,),
    "all-reduce": (registry.COLLECTIVE,),
    "replica-id": (),
}
"""Codelets that an operation becomes; none where nothing moves before a reader wants it."""


CHECKS: dict[str, Callable[[Node], str | None]] = {
    "gather": check_gather,
    "scatter": check_scatter,
    "rng-bit-generator": check_rng,
    "reduce": check_reduce,
    "reduce-window": check_reduce_window,
    "select-and-scatter": check_select_and_scatter,
    "dot": _check_product,
    "convolution": _check_product,
    "conditional": check_conditional,
    "sort": check_sort,
    "all-reduce": check_all_reduce,
}


def _check_kernel(node: Node) -> str | None:
    from ipu_runtime._vec import supported

    if node.op == "convert":
        return None
    if node.op == "bitcast-convert":
        return None if node.inputs[0].itemsize == node.out.itemsize else "between widths"
    data = node.inputs[1] if node.op in ("select", "clamp") else node.inputs[0]
    if any(v.shape != node.out.shape for v in node.inputs):
        return "operands of other shapes than the result"
    return None if supported(kernel_op(node.op, node.attrs), data.dtype) else f"of {data.dtype}"


def unsupported(graph: Graph, place: Callable[[Node], str], besides: Container[str] = ()) -> list[str]:
    """All that the tiles cannot run yet, one line each.

    Args:
        graph: before fusion.
        place: names where a node comes from.
        besides: opcodes that something else takes care of.
    """
    found = []
    for node in graph.nodes:
        if node.op in besides:
            continue
        if node.op in ELEMENTWISE:
            why = _check_kernel(node)
        elif node.op in OWN:
            why = None
        elif node.op not in LOWERINGS:
            why = str(node.attrs.get("target", ""))
        else:
            check = CHECKS.get(node.op)
            why = check(node) if check is not None else None
        if why is not None:
            found.append(f"{node.op}{': ' + why if why else ''} {node.name} ({place(node)})")
    return found
