"""From an HLO module to an executable: import, passes, lowering, supersteps, memory, program."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ipu_keras.compiler.assemble import Assembler
from ipu_keras.compiler.executable import Executable
from ipu_keras.compiler.fits import check_memory
from ipu_keras.compiler.layout import Layout, spread, whole
from ipu_keras.compiler.lower import LOWERINGS, unsupported
from ipu_keras.compiler.lower.context import Context, Located, Offset, RawGroup, RawStep, Var, copy_group, host_rows
from ipu_keras.compiler.memory import lifetimes, place
from ipu_keras.compiler.move import Rows, plan_move
from ipu_keras.compiler.options import resolve_options
from ipu_keras.compiler.passes import run_passes
from ipu_keras.compiler.schedule import supersteps
from ipu_keras.errors import UnsupportedError
from ipu_keras.graph.hlo_proto import import_module
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_keras.target import Target, resolve
from ipu_runtime.codelets import registry
from ipu_runtime.program import END, EXCHANGE, REPEAT, STREAM_IN, STREAM_OUT, Program

_ALIASES = {"reshape", "transpose"}


def compile_module(
    hlo_bytes: bytes,
    *,
    target: str | Target = "gc200",
    options: Mapping[str, Any] | None = None,
    state: Mapping[int, int | None] | None = None,
    layers: Any = None,
    name: str = "",
) -> Executable:
    """Compile an HLO module for the tiles.

    Args:
        hlo_bytes: a serialized `HloModuleProto`.
        target: name of a chip, or a Target.
        options: see `ipu_keras.compiler.options`.
        state: entry-parameter index -> index of the flat output that is its new value (None: it is only read). These
            stay on the tiles from run to run; all other parameters and outputs are streamed.
        layers: a LayerNames that says which Keras layer an instruction or parameter belongs to.
        name: of the program in reports.

    Returns:
        An Executable.

    Raises:
        UnsupportedError: lists every operation and dtype of the module that the tiles cannot run yet.
        IPUOutOfMemoryError: a tile's memory is too small; the exception has the memory report.
    """
    started = time.perf_counter()
    chip, opts = resolve(target), resolve_options(options)
    graph, bad = import_module(hlo_bytes)
    names = _Names(graph, layers, dict(state or {}))
    found: list[str] = list(bad)

    def check(stage: str, g: Graph) -> None:
        if stage == "simplify again":
            found.extend(unsupported(g, names.place))

    if bad:
        raise _unsupported(name, found)
    graph = _run(graph, check, found, name)
    program = _Lowering(graph, chip, opts, dict(state or {}), names, name).program()
    check_memory(program)
    return Executable(program, compile_seconds=time.perf_counter() - started, options=opts)


def _run(graph: Graph, check: Any, found: list[str], name: str) -> Graph:
    fused = run_passes(graph, check)
    if found:
        raise _unsupported(name, found)
    return fused


def _unsupported(name: str, items: list[str]) -> UnsupportedError:
    lines = "\n  ".join(items)
    return UnsupportedError(
        f"{name or 'the module'} holds {len(items)} thing(s) that the emulated IPU cannot run yet:\n  {lines}", items
    )


class _Names:
    """Labels: which layer and phase a node belongs to."""

    def __init__(self, graph: Graph, layers: Any, state: dict[int, int | None]) -> None:
        self.layers = layers
        self.param_layer: dict[int, tuple[str, str]] = dict(getattr(layers, "variables", {}) or {})

    def locate(self, where: str) -> tuple[str, str]:
        """(layer path, phase) of an instruction's op_name."""
        if self.layers is not None and where:
            found = self.layers.locate(where)
            if found is not None:
                return str(found[0]), str(found[1])
        phase = "backward" if where.startswith("gradient_tape") else "forward"
        return "", phase

    def place(self, node: Node) -> str:
        """For messages: layer and op_name."""
        layer, _ = self.locate(node.where)
        return f"layer {layer}, {node.where}" if layer else node.where or "no name"

    def label(self, node: Node) -> str:
        """`layer|phase|op name`, the text behind a step's label number."""
        layer, phase = self.locate(node.where)
        return f"{layer}|{phase}|{node.where or node.op}"


class _Lowering:
    """Lowers one graph; see `program`."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        options: dict[str, Any],
        state: dict[int, int | None],
        names: _Names,
        name: str,
    ) -> None:
        self.graph, self.target, self.state, self.names, self.name = graph, target, state, names, name
        self.ctx = Context(target, graph, names.label, dict(options))
        self.ctx.options.update(in_place=self._in_place, state_home=self._state_home, uses=self._uses)
        self.guard = int(options["guard_bytes"])
        self.users = graph.users()
        self.new_value: dict[Value, int] = {}  # output value -> state parameter
        for param, output in state.items():
            if output is not None:
                self.new_value.setdefault(graph.outputs[output], param)
        self.now = 0
        self.last_use = self._last_uses()
        self.slots = 0
        self.feeds: dict[int, dict[str, Any]] = {}
        self.held: set[Var] = set()

    # ---- facts about the graph ----

    def _root(self, value: Value) -> Value:
        while value.node.op in _ALIASES:
            value = value.node.inputs[0]
        return value

    def _last_uses(self) -> dict[Value, int]:
        last: dict[Value, int] = {}
        for i, node in enumerate(self.graph.nodes):
            if node.op not in _ALIASES:
                for value in node.inputs:
                    last[self._root(value)] = i
        for value in self.graph.outputs:
            last[self._root(value)] = len(self.graph.nodes)
        return last

    def _uses(self, value: Value) -> int:
        return len(self.users.get(value, ())) + self.graph.outputs.count(value)

    def _state_home(self, node: Node) -> Layout | None:
        """Home of the largest state whose new value this node makes."""
        best: Located | None = None
        for value in node.results:
            param = self.new_value.get(value)
            if param is not None:
                here = self.ctx.find(self.graph.params[param])
                if here is not None and (best is None or here.layout.max_block > best.layout.max_block):
                    best = here
        return best.layout if best is not None else None

    def _in_place(self, value: Value, layout: Layout) -> Located | None:
        """A state's home if `value` is its new value and may overwrite it now."""
        param = self.new_value.get(value)
        if param is None:
            return None
        old = self.graph.params[param]
        if self.last_use.get(old, -1) > self.now:
            return None
        here = self.ctx.place(old, layout)
        if here.layout.key != layout.key or here.var in self.held or not here.var.pinned:
            return None
        return here

    # ---- lowering ----

    def program(self) -> Program:
        """Lower everything and assemble the program."""
        ctx, graph = self.ctx, self.graph
        for i, value in enumerate(graph.params):
            ctx.lazy[value] = self._state_maker(i, value) if i in self.state else self._feed_maker(i, value)
        self._hint()
        prologue, rest = self._invariant()
        for node in prologue:
            self._lower(node)
        before, ctx.steps = ctx.steps, []
        for node in rest:
            self._lower(node)
        for i in self.state:
            ctx.label = ctx.at(self._variable_label(i))
            ctx.place(graph.params[i])
        for i, value in enumerate(graph.params):
            if i not in self.state:
                ctx.place(value)  # a feed that nothing uses is still streamed
        self._write_back()
        outputs = self._stream_out()
        return self._assemble(before, ctx.steps, outputs)

    def _lower(self, node: Node) -> None:
        self.now = self.place_of[node]
        self.ctx.label = self.ctx.at(self.names.label(node))
        LOWERINGS[node.op](self.ctx, node)

    def _invariant(self) -> tuple[list[Node], list[Node]]:
        """Nodes that give the same small value in every iteration run once, before the loop."""
        self.place_of = {n: i for i, n in enumerate(self.graph.nodes)}
        constant = {
            self.graph.params[i]
            for i, o in self.state.items()
            if o is None or self.graph.outputs[o] is self.graph.params[i]
        }
        prologue, rest = [], []
        for node in self.graph.nodes:
            small = all(v.nbytes <= 4096 for v in node.results)
            if small and node.op == "map" and node.inputs and all(v in constant for v in node.inputs):
                constant.update(node.results)
                prologue.append(node)
            else:
                if node.op == "constant":
                    constant.update(node.results)
                rest.append(node)
        # Constants must be known before the prologue uses them.
        first = [n for n in rest if n.op == "constant"]
        return first + prologue, [n for n in rest if n.op != "constant"]

    def _hint(self) -> None:
        """A gradient is wanted where the weight that it updates lives."""
        for node in self.graph.nodes:
            if node.op != "map":
                continue
            params = [self.new_value[v] for v in node.results if v in self.new_value]
            if not params:
                continue
            best = max(params, key=lambda p: self.graph.params[p].size)
            for value, dims in zip(node.inputs, node.attrs["dims"], strict=True):
                if len(dims) != len(node.results[0].shape):
                    continue
                while True:
                    self.ctx.hints.setdefault(value, self.graph.params[best])
                    if value.node.op not in _ALIASES:
                        break
                    value = value.node.inputs[0]

    def _variable_label(self, param: int) -> str:
        path, layer = self.names.param_layer.get(param, ("", ""))
        return f"{layer}|variable|{path or f'parameter {param}'}"

    def _state_maker(self, param: int, value: Value) -> Any:
        def make(layout: Layout) -> Located:
            label, self.ctx.label = self.ctx.label, self.ctx.at(self._variable_label(param))
            var = self.ctx.var(layout, value.itemsize, "variable", pinned=True)
            self.ctx.label = label
            return Located(var, layout)

        return make

    def _feed_maker(self, param: int, value: Value) -> Any:
        def make(layout: Layout) -> Located:
            label, self.ctx.label = self.ctx.label, self.ctx.at(f"|stream|parameter {param}")
            var = self.ctx.var(layout, value.itemsize)
            slot = self.slots
            self.slots += 1
            self.feeds[param] = {"param": param, "shape": list(value.shape), "dtype": value.dtype, "slot": slot}
            raw = _from_host(host_rows(layout), var, value.itemsize, slot)
            self.ctx.steps.append(RawStep(STREAM_IN, [raw], [], [var], self.ctx.label))
            self.ctx.label = label
            return Located(var, layout)

        return make

    def _write_back(self) -> None:
        """Copy to a state's home each new value that was not made there."""
        ctx, graph = self.ctx, self.graph
        pending: list[tuple[Located, Located, Value]] = []
        homes = {ctx.place(graph.params[i]).var for i in self.state}
        for param, output in self.state.items():
            if output is None:
                continue
            old, new = graph.params[param], graph.outputs[output]
            home = ctx.place(old)
            here = ctx.place(new, home.layout)
            if here.var is home.var and here.layout.key == home.layout.key:
                continue
            ctx.label = ctx.at(self._variable_label(param))
            if here.var in homes:
                # Another state's old value: take it aside before that state is overwritten.
                here = ctx.move(here, home.layout, old.itemsize)
            pending.append((here, home, old))
        for here, home, old in pending:
            ctx.exchange([(plan_move(home.layout, here.layout), here.var, home.var, old.itemsize)])

    def _stream_out(self) -> list[dict[str, Any]]:
        ctx, graph = self.ctx, self.graph
        taken = {o for o in self.state.values() if o is not None}
        outputs = []
        for i, value in enumerate(graph.outputs):
            if i in taken:
                continue
            ctx.label = ctx.at(f"|stream|output {i}")
            here = ctx.place(value)
            if here.var.pinned and here.var.category == "variable":
                here = Located(here.var, here.layout)
            raw = _to_host(here, value.itemsize, self.slots)
            ctx.steps.append(RawStep(STREAM_OUT, [raw], [here.var], [], ctx.label))
            outputs.append({"output": i, "shape": list(value.shape), "dtype": value.dtype, "slot": self.slots})
            self.slots += 1
        return outputs

    # ---- assembling ----

    def _assemble(self, before: list[RawStep], body: list[RawStep], outputs: list[dict[str, Any]]) -> Program:
        ctx, graph = self.ctx, self.graph
        head, main = supersteps(before), supersteps(body)
        loop = (len(head), len(head) + len(main) + 1)
        sequence = [*head, [], *main, []]
        used = lifetimes(sequence, 0, loop, ctx.vars)
        placement = place(used, self.target.tiles, self.guard)
        asm = Assembler()
        for i, parts in enumerate(sequence):
            if i == loop[0]:
                asm.step(REPEAT, [], ctx.at("|control|repeat"))
            elif i == loop[1]:
                asm.step(END, [], ctx.at("|control|repeat"))
            else:
                groups = [g for part in parts for g in part.groups]
                label = parts[0].label
                asm.step(parts[0].kind, groups, label)
        group_labels = [part.label for parts in sequence for part in parts for _ in part.groups]
        states = []
        for param in self.state:
            here, value = ctx.place(graph.params[param]), graph.params[param]
            write = asm.group(_from_host(host_rows(here.layout), here.var, value.itemsize, 0))
            read = asm.group(_to_host(here, value.itemsize, 0))
            states.append(
                {
                    "param": param,
                    "shape": list(value.shape),
                    "dtype": value.dtype,
                    "write": [write, write + 1],
                    "read": [read, read + 1],
                    "updated": self.state[param] is not None,
                }
            )
        constants, blobs, at = [], [], 0
        for var, layout, array in ctx.constants:
            raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
            number = asm.group(_from_host(host_rows(layout), var, array.dtype.itemsize, 0))
            constants.append({"groups": [number, number + 1], "first": at, "nbytes": len(raw)})
            blobs.append(raw)
            at += len(raw)
        header = {
            "name": self.name or graph.name,
            "target": self.target.to_dict(),
            "slots": self.slots,
            "feeds": [self.feeds[k] for k in sorted(self.feeds)],
            "outputs": outputs,
            "states": states,
            "constants": constants,
            "labels": list(ctx.labels),
            "group_labels": group_labels,
        }
        blob = np.concatenate(blobs) if blobs else np.zeros(0, np.uint8)
        return asm.program(header, blob, placement.vars, self.target.tiles)


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


__all__ = ["EXCHANGE", "compile_module", "copy_group", "spread"]
