"""From an HLO module to an executable: import, passes, lowering, supersteps, memory, program."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ipu_keras.compiler import cache
from ipu_keras.compiler.entry import Entry
from ipu_keras.compiler.executable import Executable
from ipu_keras.compiler.fits import check_memory
from ipu_keras.compiler.lower import quarter, unsupported
from ipu_keras.compiler.lower.context import Choices, CodeOverflow
from ipu_keras.compiler.names import Names
from ipu_keras.compiler.options import FRAGMENT_PRICES, resolve_options
from ipu_keras.compiler.parallel.entry import ParallelEntry
from ipu_keras.compiler.parallel.spec import Parallel
from ipu_keras.compiler.parallel.stages import own_options
from ipu_keras.compiler.passes import REGION, run_passes
from ipu_keras.compiler.passes.expand import expand
from ipu_keras.compiler.passes.fuse import fuse
from ipu_keras.compiler.passes.generator import GENERATOR, add_generator
from ipu_keras.compiler.passes.narrow import narrow_feeds
from ipu_keras.compiler.passes.serial import split_serially
from ipu_keras.compiler.rounding import mark_common
from ipu_keras.errors import GraphError, UnsupportedError
from ipu_keras.graph.hlo_proto import import_module
from ipu_keras.graph.ir import Graph
from ipu_keras.profile.memory import MemoryReport, always_live_by_tile, memory_report
from ipu_keras.target import Target, resolve
from ipu_runtime.program import Program


def compile_module(
    hlo_bytes: bytes,
    *,
    target: str | Target = "gc200",
    options: Mapping[str, Any] | None = None,
    state: Mapping[int, int | None] | None = None,
    layers: Any = None,
    name: str = "",
    execute: bool = True,
    parallel: Parallel | None = None,
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
        execute: False for a program that is only profiled or saved.
        parallel: over how many chips the step is spread, and how: micro-batches, pipeline stages, replicas.

    Returns:
        An Executable.

    Raises:
        UnsupportedError: lists every operation and dtype of the module that the tiles cannot run yet.
        IPUOutOfMemoryError: a tile's memory is too small; the exception has the memory report.
        ConfigError: an option or a flag in TF_POPLAR_FLAGS has a value that it cannot take.
    """
    started = time.perf_counter()
    chip, opts = resolve(target), resolve_options(options)
    spec = parallel or Parallel()
    kept = cache.place(
        hlo_bytes,
        {"target": chip, "options": opts, "state": state, "layers": layers, "name": name, "parallel": spec},
    )
    if kept is not None and (program := kept.load()) is not None:
        return Executable(program, compile_seconds=time.perf_counter() - started, options=opts, execute=execute)
    graph, bad = import_module(hlo_bytes, spec.replicas)
    names = Names(layers)
    found = [f"{what} ({names.place_of(op_name)})" for what, op_name in bad]

    def check(stage: str, g: Graph) -> None:
        if stage.removeprefix(REGION) == "simplify again":
            # Sums over micro-batches and checkpoints are cut out of the entry computation before it is lowered, and of
            # nothing else.
            cut_out = ("accumulate", "checkpoint") if spec.in_parts and stage != REGION + "simplify again" else ()
            found.extend(unsupported(g, names.place, cut_out) + quarter.refused(g, chip, names.place))

    wide, states = narrow_feeds(graph, state or {}), dict(state or {})
    if add_generator(graph):
        states[len(graph.params) - 1] = len(graph.outputs) - 1
    if bad:
        # What is refused may have left operations that no rule can read: then the list ends there.
        with contextlib.suppress(ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
            found += unsupported(expand(graph), names.place)
        raise _unsupported(name, found)
    try:
        graph = run_passes(graph, check, fused=False)
        in_pieces = split_serially(graph, chip, opts, own_options(graph, spec, names))
        forms = list(dict.fromkeys([in_pieces, graph]))
        if spec.replicas > 1 and opts["stochastic_rounding"] in ("stable", "identical"):
            for form in forms:
                mark_common(form, states, spec.replicas, GENERATOR)
        if not spec.in_parts:
            forms = [fuse(form) for form in forms]
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise GraphError(f"{name or graph.name}: the module's instructions do not fit each other: {error!r}") from error
    if found:
        raise _unsupported(name, found)
    made = []
    choices: dict[str, Choices] = {}
    for form in forms:
        with _without_collecting():
            made.append(_program(form, chip, opts, states, names, name, wide, spec, choices))
        if made[-1][1].fits:
            break
    # availableMemoryProportion is a wish: what keeps to it may need more, for its loops, than what does not.
    program, report = min(made, key=lambda each: (not each[1].fits, each[1].max_tile_bytes))
    check_memory(program, opts["allow_out_of_memory"], report)
    if kept is not None:
        kept.save(program)
    return Executable(program, compile_seconds=time.perf_counter() - started, options=opts, execute=execute)


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """No search for reference cycles: a lowering makes millions of objects and few cycles, and a search walks all."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _program(
    graph: Graph, chip: Target, opts: dict[str, Any], states: dict[int, int | None], names: Names, name: str,
    wide: dict[int, str], spec: Parallel, choices: dict[str, Choices],
) -> tuple[Program, MemoryReport]:  # fmt: skip
    """Lower; if it does not fit the tiles, once more with equal products outlined, then with less exchange code.

    Of programs none of which fits it is the one that needs the least. One without functions is left when its
    exchanges alone have too much code.

    Args:
        choices: by price of exchange code (`internal_exchange`), what was found cheapest so far.
    """
    wish = opts["internal_exchange"]
    price = {effort: FRAGMENT_PRICES[effort] or chip.fragment_price for effort in (wish, "memory")}
    kind = ParallelEntry if spec.in_parts else Entry

    def entry(effort: str, outline: bool) -> Entry:
        made_for = dataclasses.replace(chip, fragment_price=price[effort])
        return kind(graph, made_for, opts | {"outline": outline}, states, names, name, wide, spec)

    may_outline = opts["outline"] and entry(wish, True).ctx.repeated != entry(wish, False).ctx.repeated
    efforts = [(wish, False)] + [(wish, True)] * may_outline
    if wish == "balanced":
        efforts += [("memory", outline) for _, outline in efforts]
    made: list[tuple[Program, MemoryReport]] = []
    plain: dict[bool, MemoryReport] = {}  # outlined or not -> the report of the first such program
    for effort, outline in efforts:
        if effort != wish:
            worth = outline not in plain or _code_is_too_much(plain[outline])
        else:
            worth = not made or _data_fits(*made[0])
        if not worth:
            continue
        lowering = entry(effort, outline)
        # What one lowering has found cheapest, the next need not look for.
        lowering.ctx.choices = choices.setdefault(effort, lowering.ctx.choices)
        if may_outline and not outline:
            lowering.ctx.code_limit = chip.executable_bytes
        try:
            program = lowering.program()
        except CodeOverflow:
            continue
        made.append((program, memory_report(program)))
        plain.setdefault(outline, made[-1][1])
        if made[-1][1].fits:
            break
    return min(made, key=lambda each: (not each[1].fits, each[1].max_tile_bytes))


def _data_fits(program: Program, report: MemoryReport) -> bool:
    """Whether what lives always has room: then a program that does not fit may, with less code and fewer operands."""
    return int(always_live_by_tile(program).max(initial=0)) <= report.limit


def _code_is_too_much(report: MemoryReport) -> bool:
    """Whether a program that does not fit could, if exchanges had little code."""
    return bool((report.by_tile - report.fixed["internalExchangeCode"]).max() <= report.limit)


def _unsupported(name: str, items: list[str]) -> UnsupportedError:
    items = list(dict.fromkeys(items))
    lines = "\n  ".join(items)
    return UnsupportedError(
        f"{name or 'the module'} holds {len(items)} thing(s) that the emulated IPU cannot run yet:\n  {lines}", items
    )
