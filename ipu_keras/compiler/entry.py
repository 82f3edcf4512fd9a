"""The entry computation: states, feeds, outputs, the loop over an execution's iterations; assembles the program."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_keras.compiler.assemble import Assembler
from ipu_keras.compiler.layout import Layout
from ipu_keras.compiler.lower import lower
from ipu_keras.compiler.lower.context import CodeOverflow, Context
from ipu_keras.compiler.lower.outline import repeated, undo_single_calls
from ipu_keras.compiler.lower.parts import Located, RawStep, host_rows
from ipu_keras.compiler.lower.queue import counts, made_up
from ipu_keras.compiler.lower.scope import Scope, write_back
from ipu_keras.compiler.lower.streams import from_host, to_host
from ipu_keras.compiler.memory import lifetimes, loops_of, place
from ipu_keras.compiler.names import Names
from ipu_keras.compiler.parallel.spec import Parallel
from ipu_keras.compiler.passes.generator import GENERATOR
from ipu_keras.compiler.schedule import in_order
from ipu_keras.graph.ir import Graph, Node, Value
from ipu_keras.profile.memory import CONTROL_BYTES
from ipu_keras.target import Target
from ipu_runtime.codelets import registry
from ipu_runtime.program import COMPUTE, END, EXCHANGE, REPEAT, STREAM_IN, STREAM_OUT, Program


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
        spec: over how many chips the step is spread.
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
        spec: Parallel | None = None,
    ) -> None:
        self.graph, self.target, self.state, self.names, self.name = graph, target, state, names, name
        self.spec = spec or Parallel()
        self.ipus = self.spec.ipus
        self.ctx = Context(target, graph, names.label, {**options, "replicas": self.spec.replicas})
        self.guard = int(options["guard_bytes"])
        self.wide = wide or {}
        self.feeds: dict[int, dict[str, Any]] = {}
        self.remote: dict[int, int] = {}  # state in streaming memory -> host slot
        self.synthetic: dict[str, list[dict[str, Any]]] = {"feeds": [], "outputs": []}  # made up, not streamed
        self.ctx.queue_counts = counts(graph)
        # A stage that is worked out again has each of its products twice.
        self.ctx.repeated = repeated(graph.nodes, options["outline"], 1 if self.spec.recompute else 2)

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
        undo_single_calls(ctx)
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
                self.ctx.constants.append((var, layout, first, "seed"))
            return Located(var, layout)

        return make

    def _feed_maker(self, param: int, value: Value, micro: int = 1) -> Any:
        def make(layout: Layout) -> Located:
            label, self.ctx.label = self.ctx.label, self.ctx.at(f"|stream|parameter {param}")
            if "infeed" in self.ctx.options["synthetic_data"]:
                here = made_up(self.ctx, value, layout, f"parameter {param}")
                self.synthetic["feeds"].append({"param": param, "shape": list(value.shape), "dtype": value.dtype})
                self.ctx.label = label
                return here
            var = self.ctx.var(layout, value.itemsize)
            slot = self.ctx.new_slot()
            self.feeds[param] = {"param": param, "shape": list(value.shape), "dtype": value.dtype, "slot": slot}
            if micro > 1:
                self.feeds[param]["micro"] = micro
            if param in self.wide:
                self.feeds[param]["host_dtype"] = self.wide[param]
            raw = from_host(host_rows(layout), var, value.itemsize, slot)
            self.ctx.steps.append(RawStep(STREAM_IN, [raw], [], [var], self.ctx.label))
            self.ctx.label = label
            return Located(var, layout)

        return make

    def _stream_out(self) -> list[dict[str, Any]]:
        taken = {o for o in self.state.values() if o is not None}
        return [spec for i, v in enumerate(self.graph.outputs) if i not in taken for spec in self._output(i, v)]

    def _output(self, index: int, value: Value, micro: int = 1) -> list[dict[str, Any]]:
        """Stream a value to the host; nothing, if outputs are not sent.

        Args:
            index: of the flat output.
            value: what.
            micro: how often in an iteration.
        """
        ctx = self.ctx
        ctx.label = ctx.at(f"|stream|output {index}")
        here = ctx.place(value)
        found: dict[str, Any] = {"output": index, "shape": list(value.shape), "dtype": value.dtype}
        if micro > 1:
            found["micro"] = micro
        if "outfeed" in ctx.options["synthetic_data"]:
            self.synthetic["outputs"].append(found)
            return []
        found["slot"] = ctx.new_slot()
        raw = to_host(here, value.itemsize, found["slot"])
        ctx.steps.append(RawStep(STREAM_OUT, [raw], [here.var], [], ctx.label))
        return [found]

    def _assemble(self, before: list[RawStep], body: list[RawStep], outputs: list[dict[str, Any]]) -> Program:
        ctx, graph = self.ctx, self.graph
        repeat, end = (RawStep(kind, [], [], [], ctx.at("|control|repeat")) for kind in (REPEAT, END))
        sequence = [*filter(_has_rows, in_order(before)), [repeat], *filter(_has_rows, in_order(body)), [end]]
        for i, parts in enumerate(sequence):
            for part in parts:
                if part.mark is not None:
                    part.mark.step = i
        self._check_code(sequence)
        loops, choices = loops_of(sequence)
        used = lifetimes(sequence, [(lo, hi) for lo, hi, _ in loops], ctx.vars)
        placement = place(used, self.target.tiles * self.ipus, self.guard, self.ipus)
        asm = Assembler(self.target.tiles)
        for parts in sequence:
            asm.step(parts)
        header = {
            "name": self.name or graph.name,
            "target": self.target.to_dict(),
            "slots": ctx.slots,
            "queues": ctx.queues,
            "feeds": [self.feeds[k] for k in sorted(self.feeds)],
            "outputs": outputs,
            "states": self._states(asm),
            "loops": [[lo, hi, trips] for lo, hi, trips in loops[1:]],
            "choices": choices,
            "labels": list(ctx.labels),
            "group_labels": asm.group_labels,
            "plans": ctx.plans,
            "products": ctx.products,
            "ipus": self.ipus,
            "replicas": self.spec.replicas,
            "micro_batches": self.spec.micro_batches,
            "synthetic": self.synthetic,
            "floating_point": {"overflow": ctx.options["half_overflow"], "traps": ctx.options["traps"]},
            **self._more(),
        }
        if asm.members:
            header["members"] = asm.members
        header["constants"], blob = self._constants(asm)
        return asm.program(header, blob, placement.vars)

    def _check_code(self, sequence: list[list[RawStep]]) -> None:
        """Before anything is placed: whether there is room for the code, all but that of host streams."""
        ctx = self.ctx
        if ctx.code_limit is None or ctx.functions or self.ipus > 1:  # then not every step is every tile's own
            return
        uses: dict[int, np.ndarray] = {}
        for parts in sequence:
            for raw in (raw for part in parts if part.kind == COMPUTE for raw in part.groups):
                uses.setdefault(raw.codelet, np.zeros(self.target.tiles, bool))[raw.columns[0]] = True
        code = sum(on * registry.MODELS[codelet].code_bytes for codelet, on in uses.items())
        most = int(np.max(code + ctx.code.get(0, 0) + CONTROL_BYTES * len(sequence)))
        if most > ctx.code_limit:
            raise CodeOverflow(f"{most:,} bytes of code")

    def _more(self) -> dict[str, Any]:
        """More of the header; steps have their numbers now."""
        return {}

    def _states(self, asm: Assembler) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = []
        for param, output in self.state.items():
            value = self.graph.params[param]
            if param in self.remote:
                where: dict[str, Any] = {"remote": self.remote[param]}
                if self.spec.sharded:
                    where["shared"] = self.spec.replicas
            else:
                here = self.ctx.place(value)
                write = asm.group(from_host(host_rows(here.layout), here.var, value.itemsize, 0))
                read = asm.group(to_host(here, value.itemsize, 0))
                where = {"write": list(write), "read": list(read)}
            states.append(
                {
                    "param": param,
                    "shape": list(value.shape),
                    "dtype": value.dtype,
                    **where,
                    "updated": output is not None,
                    "internal": value.node.name == GENERATOR,
                }
            )
        return states

    def _constants(self, asm: Assembler) -> tuple[list[dict[str, Any]], np.ndarray]:
        constants, blobs, at = [], [], 0
        for var, layout, array, replica in self.ctx.constants:
            raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
            groups = asm.group(from_host(host_rows(layout), var, array.dtype.itemsize, 0))
            constants.append({"groups": list(groups), "first": at, "nbytes": len(raw)})
            if replica is not None:
                constants[-1]["replica"] = replica
            blobs.append(raw)
            at += len(raw)
        return constants, np.concatenate(blobs) if blobs else np.zeros(0, np.uint8)


def _has_rows(parts: list[RawStep]) -> bool:
    """Whether a superstep does anything: those of arrays without elements do not, and cost no sync."""
    data = parts[0].kind in (COMPUTE, EXCHANGE, STREAM_IN, STREAM_OUT)
    return not data or any(raw.rows for part in parts for raw in part.groups)
