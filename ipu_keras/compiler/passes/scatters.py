"""Any scatter as one on whole rows of a table, of one operand, with a region that is one operation.

The tiles run that form only (`lower.gather`). A region of another kind, or one over several operands that need each
other, is a loop over the rows: updates of one entry follow each other, as HLO's do.
"""

from __future__ import annotations

import math

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.compiler.passes.choices import scalar_body, whole_arrays
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.compiler.passes.tables import LARGEST, Indices, table_of, wide_index
from ipu_keras.graph.ir import Graph, Node, Value


class _Rows:
    """A scatter in terms of rows.

    Attributes:
        linear: the number of each row's entry; the number of entries for a row that must do nothing.
    """

    def __init__(self, b: Builder, node: Node) -> None:
        self.b, self.where, self.attrs = b, node.where, node.attrs
        n = len(node.results)
        operand, indices, updates = node.inputs[0], node.inputs[n], node.inputs[n + 1]
        a = node.attrs
        mapped, batching = list(a["scatter_dims_to_operand_dims"]), list(a["input_batching_dims"])
        hidden = {*a["inserted_window_dims"], *batching}
        rank = len(operand.shape)
        shown = [d for d in range(rank) if d not in hidden]
        window = dict.fromkeys(range(rank), 1)
        window.update({d: updates.shape[u] for d, u in zip(shown, a["update_window_dims"], strict=True)})
        partial = [d for d in shown if d not in mapped and window[d] < operand.shape[d]]
        self.indexed = [*mapped, *batching, *partial]
        self.entries = math.prod(operand.shape[d] for d in self.indexed)
        self.whole = [d for d in range(rank) if d not in self.indexed]
        self.fits = self.entries < LARGEST
        if not self.fits:
            return
        windows = [d for d in sorted(self.indexed) if d not in hidden]
        index = Indices(
            b, node, indices, a["index_vector_dim"], mapped,
            list(zip(batching, a["scatter_indices_batching_dims"], strict=True)),
        )  # fmt: skip
        sizes = [(d, operand.shape[d], window[d]) for d in self.indexed]
        self.linear, inside = index.linear(sizes, windows, clamp=False)
        if inside is not None:
            outside = index.full(self.entries, self.linear.shape, "s32")
            self.linear = index.op("select", inside, self.linear, outside, dtype="s32")
        from_update = dict(zip(shown, a["update_window_dims"], strict=True))
        batch = [u for u in range(len(updates.shape)) if u not in a["update_window_dims"]]
        self.perm = (
            *batch,
            *(from_update[d] for d in windows),
            *(from_update[d] for d in self.whole if d in from_update),
        )

    def table(self, operand: Value) -> Value:
        """An operand as a table."""
        return table_of(self.b, operand, self.indexed, self.whole, self.where)

    def rows(self, updates: Value, operand: Value) -> Value:
        """Updates as rows of the operand's table, in the order of `linear`."""
        ops = Ops(self.b, self.where)
        shape = (*self.linear.shape, *(operand.shape[d] for d in self.whole))
        return ops.reshape(ops.transpose(updates, self.perm), *shape)

    def back(self, table: Value, operand: Value) -> Value:
        """A table in the shape of the operand."""
        ops, order = Ops(self.b, self.where), [*self.indexed, *self.whole]
        shaped = ops.reshape(table, *(operand.shape[d] for d in order))
        return ops.transpose(shaped, tuple(order.index(d) for d in range(len(order))))


def rewrite_scatter(b: Builder, node: Node) -> list[Value] | None:
    """A general scatter as scatters of rows; an index whose window would leave the operand does nothing."""
    from ipu_keras.compiler.lower.gather import check_scatter, scatter_op

    n = len(node.results)
    wide = wide_index(b, node.inputs[n], node.where)
    if wide is not node.inputs[n]:
        inputs = [*node.inputs[:n], wide, *node.inputs[n + 1 :]]
        return b.add_node(Node("scatter", inputs, [(v.shape, v.dtype) for v in node.results], node.attrs, node.where))
    if check_scatter(node) is None:
        return None
    if n == 1 and scatter_op(node) is not None:
        return _as_rows(b, node)
    if n > 1:
        parts = [_only(node.attrs["region"], i, n) for i in range(n)]
        if all(part is not None for part in parts):
            indices = node.inputs[n]
            made = []
            for i, region in enumerate(parts):
                inputs, out = [node.inputs[i], indices, node.inputs[n + 1 + i]], node.results[i]
                made.append(
                    b.add("scatter", inputs, out.shape, out.dtype, {**node.attrs, "region": region}, node.where)
                )
            return made
    return _in_turn(b, node)


def _only(region: Graph, i: int, n: int) -> Graph | None:
    """The part of a region that makes result i, if it needs no other operand than the i-th."""
    mine, needed = [region.params[i], region.params[n + i]], {region.outputs[i]}
    nodes = []
    for node in reversed(region.nodes):
        if needed.intersection(node.results):
            nodes.append(node)
            needed.update(node.inputs)
    if not needed.isdisjoint(set(region.params) - set(mine)):
        return None
    part = Graph(region.name)
    part.params, part.nodes, part.outputs = mine, nodes[::-1], [region.outputs[i]]
    return part


def _as_rows(b: Builder, node: Node) -> list[Value] | None:
    rows = _Rows(b, node)
    if not rows.fits:
        return None
    operand, _, updates = node.inputs
    table, turned = rows.table(operand), rows.rows(updates, operand)
    n = len(rows.linear.shape)
    attrs = {
        "update_window_dims": tuple(range(n, len(turned.shape))), "inserted_window_dims": (0,),
        "scatter_dims_to_operand_dims": (0,), "index_vector_dim": n, "input_batching_dims": (),
        "scatter_indices_batching_dims": (), "slice_sizes": (), "region": node.attrs["region"],
    }  # fmt: skip
    inputs = [table, rows.linear, turned]
    return [rows.back(b.add("scatter", inputs, table.shape, operand.dtype, attrs, node.where), operand)]


def _in_turn(b: Builder, node: Node) -> list[Value] | None:
    """Row after row: the entry is read, the region computes its new value, and it is put back."""
    region: Graph = node.attrs["region"]
    rows = _Rows(b, node)
    if not rows.fits or not scalar_body(region):
        return None
    n, ops = len(node.results), Ops(b, node.where)
    operands, updates = node.inputs[:n], node.inputs[n + 1 :]
    count = math.prod(rows.linear.shape)
    tables = [rows.table(v) for v in operands]
    lines = [
        ops.reshape(rows.rows(u, v), count, *t.shape[1:]) for u, v, t in zip(updates, operands, tables, strict=True)
    ]

    def row(o: Ops, turn: Value, linear: Value, *rest: Value) -> list[Value]:
        zero = o.const(0, "s32")
        entry = o.reshape(o.at(linear, [turn], (1,)))

        def at(x: Value, i: Value) -> Value:
            return o.at(x, [i] + [zero] * (len(x.shape) - 1), (1, *x.shape[1:]))

        old = [at(t, entry) for t in rest[:n]]
        new = whole_arrays(o.b, region, [*old, *(at(u, turn) for u in rest[n:])], old[0].shape, node.where)
        valid = o.spread(o.op("and", o.compare(entry, "ge", 0), o.compare(entry, "lt", rows.entries)), old[0].shape, ())
        kept = [o.select(valid, x, y) for x, y in zip(new, old, strict=True)]
        put = [o.put(t, x, [entry] + [zero] * (len(t.shape) - 1)) for t, x in zip(rest[:n], kept, strict=True)]
        return [linear, *put, *rest[n:]]

    done = ops.loop(count, [ops.reshape(rows.linear, count), *tables, *lines], row)[1 : n + 1]
    return [rows.back(t, v) for t, v in zip(done, operands, strict=True)]
