"""Lowers what goes through queues between host and program: one tensor of an element, each time the step runs."""

from __future__ import annotations

from ipu_keras.compiler.layout import Layout
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located, RawStep, host_rows
from ipu_keras.compiler.lower.streams import from_host, to_host
from ipu_keras.compiler.synthetic import values
from ipu_keras.graph.ir import DTYPES, Graph, Node, Value
from ipu_runtime.program import STREAM_IN, STREAM_OUT


def made_up(ctx: Context, value: Value, layout: Layout, name: str) -> Located:
    """Data that the host does not send: loaded with the program.

    Args:
        ctx: where it is lowered.
        value: which.
        layout: its layout.
        name: of the data.
    """
    var = ctx.var(layout, value.itemsize, "constant", pinned=True)
    array = values(value.shape, DTYPES[value.dtype], ctx.options["synthetic_data_initializer"], name)
    ctx.constants.append((var, layout, array, None))
    return Located(var, layout)


def lower_dequeue(ctx: Context, node: Node) -> None:
    """The next element comes to where its first user wants it, as far as that is known."""
    out = node.out
    layout = ctx.default(out)
    if "infeed" in ctx.options["synthetic_data"]:
        ctx.located[out] = made_up(ctx, out, layout, f"queue, leaf {node.attrs['leaf']}")
        return
    var = ctx.var(layout, out.itemsize)
    slot = _slot(ctx, node, out)
    ctx.steps.append(RawStep(STREAM_IN, [from_host(host_rows(layout), var, out.itemsize, slot)], [], [var], ctx.label))
    ctx.located[out] = Located(var, layout)


def lower_enqueue(ctx: Context, node: Node) -> None:
    """A value leaves for the host."""
    (value,) = node.inputs
    here = ctx.place(value)
    if "outfeed" in ctx.options["synthetic_data"]:
        return
    slot = _slot(ctx, node, value)
    ctx.steps.append(RawStep(STREAM_OUT, [to_host(here, value.itemsize, slot)], [here.var], [], ctx.label))


def _slot(ctx: Context, node: Node, value: Value) -> int:
    """A new host slot for a tensor of a queue."""
    slot = ctx.new_slot()
    ctx.queues.append(
        {
            "queue": int(node.attrs["queue"]),
            "leaf": int(node.attrs["leaf"]),
            "mode": str(node.attrs["mode"]),
            "shape": list(value.shape),
            "dtype": value.dtype,
            "slot": slot,
            "count": ctx.queue_counts.get(node.name),
        }
    )
    return slot


def counts(graph: Graph) -> dict[str, int | None]:
    """How often each step of a queue runs when a graph does, by the node's name; None where only the data knows.

    Args:
        graph: an entry computation, or a body.
    """
    found: dict[str, int | None] = {}
    for node in graph.nodes:
        if node.op in ("dequeue", "enqueue"):
            found[node.name] = 1
        for region in node.attrs.get("regions", ()):
            times = node.attrs.get("trips") if node.op == "while" else None
            for name, n in counts(region).items():
                found[name] = None if n is None or times is None else n * times
    return found
