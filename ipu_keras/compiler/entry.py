"""The entry computation: states, feeds, outputs, the loop over an execution's iterations; assembles the program."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.assemble import Assembler
from ipu_keras.compiler.layout import Layout, whole
from ipu_keras.compiler.lower import lower
from ipu_keras.compiler.lower.context import Context
from ipu_keras.compiler.lower.parts import Located, Offset, RawGroup, RawStep, Var, host_rows
from ipu_keras.compiler.lower.scope import Scope, write_back
from ipu_keras.compiler.memory import lifetimes, loops_of, place
from ipu_keras.compiler.move import Rows, plan_move
from ipu_keras.compiler.names import Names
from ipu_keras.compiler.passes.generator import GENERATOR
from ipu_keras.compiler.schedule import in_order
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_keras.target import Target
from ipu_runtime.codelets import registry
from ipu_runtime.program import END, REPEAT, STREAM_IN, STREAM_OUT, Program


class Entry:
    """Lowers an entry computation.

    Args:
        graph: after all passes.
        target: the chip.
        options: compile options.
        state: entry-parameter index -> index of the flat output that is its new value (None: read only).
        names: labels for reports.
        name: of the program.
        wide: entry-parameter index -> dtype on the host, for feeds that arrive narrower (`passes.narrow`).
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        options: dict[str, Any],
        state: dict[int, int | None],
        names: Names,
        name: str,
        wide: dict[int, str] | None = None,
    ) -> None:
        self.graph, self.target, self.state, self.names, self.name = graph, target, state, names, name
        self.ctx = Context(target, graph, names.label, dict(options))
        self.guard = int(options["guard_bytes"])
        self.wide = wide or {}
        self.slots = 0
        self.feeds: dict[int, dict[str, Any]] = {}

    def program(self) -> Program:
        """Lower everything and assemble the program."""
        ctx, graph = self.ctx, self.graph
        for i, value in enumerate(graph.params):
            ctx.lazy[value] = self._state_maker(i, value) if i in self.state else self._feed_maker(i, value)
        updates: dict[Value, Value] = {}
        for param, output in self.state.items():
            if output is not None:
                updates.setdefault(graph.outputs[output], graph.params[param])
        scope = Scope(ctx, graph, updates, lower)
        prologue, rest = self._invariant(set(updates))
        scope.run(prologue)
        before, ctx.steps = ctx.steps, []
        scope.run(rest)
        for i in self.state:
            ctx.label = ctx.at(self._variable_label(i))
            ctx.place(graph.params[i])
        for i, value in enumerate(graph.params):
            if i not in self.state:
                ctx.place(value)  # a feed that nothing uses is still streamed
        # Outputs leave before the states change: one of them may be a state's old value, or made of it.
        outputs = self._stream_out()
        ctx.label = ctx.at("|variable|new values")
        write_back(ctx, [(graph.params[p], graph.outputs[o]) for p, o in self.state.items() if o is not None])
        return self._assemble(before, ctx.steps, outputs)

    def _invariant(self, updates: set[Value]) -> tuple[list[Node], list[Node]]:
        """Nodes that give the same small value in every iteration run once, before the loop.

        A state's new value is not one of them: the iterations still read the old one.
        """
        graph = self.graph
        constant = {graph.params[i] for i, o in self.state.items() if o is None or graph.outputs[o] is graph.params[i]}
        prologue, rest = [], []
        for node in graph.nodes:
            small = all(v.nbytes <= 4096 for v in node.results)
            fixed = small and node.inputs and all(v in constant for v in node.inputs)
            if fixed and node.op == "map" and not any(v in updates for v in node.results):
                constant.update(node.results)
                prologue.append(node)
            else:
                if node.op == "constant":
                    constant.update(node.results)
                rest.append(node)
        # Constants must be known before the prologue uses them.
        first = [n for n in rest if n.op == "constant"]
        return first + prologue, [n for n in rest if n.op != "constant"]

    def _variable_label(self, param: int) -> str:
        path, layer = self.names.param_layer.get(param, ("", ""))
        return f"{layer}|variable|{path or f'parameter {param}'}"

    def _state_maker(self, param: int, value: Value) -> Any:
        def make(layout: Layout) -> Located:
            label, self.ctx.label = self.ctx.label, self.ctx.at(self._variable_label(param))
            var = self.ctx.var(layout, value.itemsize, "variable", pinned=True)
            self.ctx.label = label
            if value.node.name == GENERATOR:
                first = np.array([self.ctx.options["seed"], 0, 0], np.uint64)
                self.ctx.constants.append((var, layout, first))
            return Located(var, layout)

        return make

    def _feed_maker(self, param: int, value: Value) -> Any:
        def make(layout: Layout) -> Located:
            label, self.ctx.label = self.ctx.label, self.ctx.at(f"|stream|parameter {param}")
            var = self.ctx.var(layout, value.itemsize)
            slot = self.slots
            self.slots += 1
            self.feeds[param] = {"param": param, "shape": list(value.shape), "dtype": value.dtype, "slot": slot}
            if param in self.wide:
                self.feeds[param]["host_dtype"] = self.wide[param]
            raw = _from_host(host_rows(layout), var, value.itemsize, slot)
            self.ctx.steps.append(RawStep(STREAM_IN, [raw], [], [var], self.ctx.label))
            self.ctx.label = label
            return Located(var, layout)

        return make

    def _stream_out(self) -> list[dict[str, Any]]:
        ctx, graph = self.ctx, self.graph
        taken = {o for o in self.state.values() if o is not None}
        outputs = []
        for i, value in enumerate(graph.outputs):
            if i in taken:
                continue
            ctx.label = ctx.at(f"|stream|output {i}")
            here = ctx.place(value)
            raw = _to_host(here, value.itemsize, self.slots)
            ctx.steps.append(RawStep(STREAM_OUT, [raw], [here.var], [], ctx.label))
            outputs.append({"output": i, "shape": list(value.shape), "dtype": value.dtype, "slot": self.slots})
            self.slots += 1
        return outputs

    def _assemble(self, before: list[RawStep], body: list[RawStep], outputs: list[dict[str, Any]]) -> Program:
        ctx, graph = self.ctx, self.graph
        repeat, end = (RawStep(kind, [], [], [], ctx.at("|control|repeat")) for kind in (REPEAT, END))
        sequence = [*in_order(before), [repeat], *in_order(body), [end]]
        for i, parts in enumerate(sequence):
            if parts[0].mark is not None:
                parts[0].mark.step = i
        loops, choices = loops_of(sequence)
        used = lifetimes(sequence, [(lo, hi) for lo, hi, _ in loops], ctx.vars)
        placement = place(used, self.target.tiles, self.guard)
        asm = Assembler()
        for parts in sequence:
            asm.step(parts[0].kind, [g for part in parts for g in part.groups], parts[0].label)
        group_labels = [part.label for parts in sequence for part in parts for _ in part.groups]
        header = {
            "name": self.name or graph.name,
            "target": self.target.to_dict(),
            "slots": self.slots,
            "feeds": [self.feeds[k] for k in sorted(self.feeds)],
            "outputs": outputs,
            "states": self._states(asm),
            "loops": [[lo, hi, trips] for lo, hi, trips in loops[1:]],
            "choices": choices,
            "labels": list(ctx.labels),
            "group_labels": group_labels,
            "plans": ctx.plans,
            "products": ctx.products,
        }
        header["constants"], blob = self._constants(asm)
        return asm.program(header, blob, placement.vars, self.target.tiles)

    def _states(self, asm: Assembler) -> list[dict[str, Any]]:
        states = []
        for param, output in self.state.items():
            value = self.graph.params[param]
            here = self.ctx.place(value)
            write = asm.group(_from_host(host_rows(here.layout), here.var, value.itemsize, 0))
            read = asm.group(_to_host(here, value.itemsize, 0))
            states.append(
                {
                    "param": param,
                    "shape": list(value.shape),
                    "dtype": value.dtype,
                    "write": [write, write + 1],
                    "read": [read, read + 1],
                    "updated": output is not None,
                    "internal": value.node.name == GENERATOR,
                }
            )
        return states

    def _constants(self, asm: Assembler) -> tuple[list[dict[str, Any]], np.ndarray]:
        constants, blobs, at = [], [], 0
        for var, layout, array in self.ctx.constants:
            raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
            number = asm.group(_from_host(host_rows(layout), var, array.dtype.itemsize, 0))
            constants.append({"groups": [number, number + 1], "first": at, "nbytes": len(raw)})
            blobs.append(raw)
            at += len(raw)
        return constants, np.concatenate(blobs) if blobs else np.zeros(0, np.uint8)


def _from_host(rows: Rows, var: Var, itemsize: int, slot: int) -> RawGroup:
    columns: list[Any] = [rows.src_tile * 0, rows.dst_tile, rows.src_off]
    columns.append(Offset(var, rows.dst_tile, rows.dst_off * itemsize, itemsize))
    for n, d, s in zip(rows.counts, rows.dst_strides, rows.src_strides, strict=True):
        columns += [n, d, s]
    return RawGroup(registry.COPY, len(rows), [len(rows.counts), itemsize, slot], columns)


def _to_host(here: Located, itemsize: int, slot: int) -> RawGroup:
    rows = plan_move(whole(here.layout.view), here.layout)
    columns: list[Any] = [rows.src_tile, rows.dst_tile * 0]
    columns += [Offset(here.var, rows.src_tile, rows.src_off * itemsize, itemsize), rows.dst_off]
    for n, d, s in zip(rows.counts, rows.dst_strides, rows.src_strides, strict=True):
        columns += [n, d, s]
    return RawGroup(registry.COPY, len(rows), [len(rows.counts), itemsize, slot], columns)
