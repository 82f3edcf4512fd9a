"""Write docs/operations.md: which operations run on the tiles, in which dtypes, and where their cycles come from.

    python tools/operation_table.py            print the document
    python tools/operation_table.py --write    write docs/operations.md

The document is made from the compiler's own tables; a test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from ipu_keras.compiler.lower import LOWERINGS, PRODUCT_DTYPES, VERTICES
from ipu_keras.compiler.passes.calls import CALLS
from ipu_keras.compiler.passes.expand import RULES
from ipu_keras.graph.complex import FFT_KINDS, FLAT, PARTWISE
from ipu_keras.graph.elementwise import BINARY, OTHER, UNARY
from ipu_keras.graph.hlo_proto import ALIASES, COLLECTIVES
from ipu_keras.graph.ir import DTYPES
from ipu_runtime._vec import supported
from ipu_runtime.codelets import registry
from ipu_runtime.codelets.elementwise_model import loop

FILE = Path(__file__).resolve().parents[1] / "docs" / "operations.md"

COMPLEX_ONLY = ("real", "imag", "complex", "convert", "multiply", "divide", "abs", "exponential", "compare", "dot")

DTYPES_OF = {
    "dot": " ".join(PRODUCT_DTYPES["dot"]) + "; pred s16 u16 in 32 bits",
    "rng-bit-generator": "s32 u32 s64 u64",
}

INTRODUCTION = """\
# Operations

What the emulated tiles run, made from the compiler's tables by `tools/operation_table.py`. Everything else is refused
before anything runs, all of it at once, with the Keras layers it comes from (`ipu_keras.errors.UnsupportedError`).

**Dtypes.** `pred s8 u8 s16 u16 s32 u32 s64 u64 f16 f32`. 64-bit integers of the host are narrowed to 32 bits on the
way to the tiles, checked value by value; inside a program arithmetic on them is exact. Complex numbers (`c64`) exist
inside a program, as pairs of `f32`; a program takes and gives none. Refused by name: `f64` (but for constants that
become `f32` at once), `bf16`, which the chip's own front end refuses, XLA's 8-bit floats (the chip's own:
[8-bit floats](float8.md)), `c128`, strings, and shapes known only at run time.
"""


def elementwise() -> list[str]:
    """A row for each element-wise opcode: a mark for each dtype."""
    names = list(DTYPES)
    lines = ["| opcode | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for op in sorted([*UNARY, *BINARY, *OTHER]):
        marks = []
        for dtype in names:
            if op in ("convert", "bitcast-convert"):
                marks.append("x")
            elif not supported("compare-lt" if op == "compare" else op, dtype):
                marks.append("")
            else:
                marks.append("x" if loop(op, dtype)[2] else "x*")
        lines.append(f"| {op} | " + " | ".join(marks) + " |")
    return lines


def own() -> list[str]:
    """A row for each opcode that has a lowering of its own."""
    lines = ["| opcode | dtypes | vertices | cycles from |", "|---|---|---|---|"]
    for op in sorted(LOWERINGS):
        if op == "map":
            continue
        models = [registry.MODELS[n] for n in VERTICES[op]]
        dtypes = DTYPES_OF.get(op) or " ".join(PRODUCT_DTYPES.get(op, ("all",)))
        vertices = ", ".join(m.name for m in models) or "none"
        sources = "; ".join(dict.fromkeys(m.source or "*unvalidated*" for m in models)) or "nothing moves"
        lines.append(f"| {op} | {dtypes} | {vertices} | {sources} |")
    return lines


def names(*groups: Iterable[str]) -> str:
    """Names in order, as code."""
    return ", ".join(f"`{name}`" for name in sorted({name for group in groups for name in group}))


def document() -> str:
    """The whole text."""
    plain = {*UNARY, *BINARY, *OTHER, *LOWERINGS, "custom-call"}
    return "\n".join(
        [
            INTRODUCTION,
            "## Element-wise\n",
            "`x`: runs, cycles by the tables that poplibs publishes (popops/PerformanceEstimation.cpp); `x*`: runs,",
            "cycles *unvalidated*. A chain of them is one vertex on each tile.\n",
            *elementwise(),
            "\n## With vertices of their own\n",
            "The cycles of the exchange that brings operands together come on top (see [timing](timing.md)).\n",
            *own(),
            "\n## Written with others\n",
            "Their cycles are those of what they become.\n",
            f"- {names(op for op in RULES if op not in plain)}, `map`, `rng` (outside loops and branches)",
            f"- `custom-call` with the targets {names(CALLS)}",
            f"- without any step: {names(ALIASES, ('call', 'tuple', 'get-tuple-element'))}",
            f"- of one replica, which gets back what it gives: {names(COLLECTIVES - {'all-reduce'})}, `partition-id`",
            f"- on complex numbers: {names(PARTWISE, COMPLEX_ONLY, FLAT)}, and `fft` ({names(FFT_KINDS)})\n",
        ]
    )


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        FILE.write_text(document())
    else:
        print(document(), end="")
