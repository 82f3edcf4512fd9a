"""Emulated step against XLA's on the CPU, our compile against XLA's, peak memory, and microseconds per superstep.

    python -m benchmarks [NAME ...] [--json] [--steps N]

Each benchmark has a process of its own, in which both sides take turns with the same batch and steps_per_execution,
with default thread counts; a step's time is the median over the executions, host transfer and write-back included.
Figures of different runs or machines do not compare.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.cases import CASES

COLUMNS = (
    ("step ms", "emulated_step_seconds", 1e3, "{:,.2f}"),
    ("XLA ms", "xla_step_seconds", 1e3, "{:,.2f}"),
    ("ratio", "step_ratio", 1, "{:.2f}"),
    ("compile s", "compile_seconds", 1, "{:.2f}"),
    ("XLA s", "xla_compile_seconds", 1, "{:.2f}"),
    ("ratio", "compile_ratio", 1, "{:.2f}"),
    ("peak MiB", "peak_bytes", 2**-20, "{:,.0f}"),
    ("XLA MiB", "xla_peak_bytes", 2**-20, "{:,.0f}"),
    ("supersteps", "supersteps", 1, "{:,.0f}"),
    ("us each", "microseconds_per_superstep", 1, "{:.1f}"),
    ("cycles", "cycles", 1, "{:,.0f}"),
)


def measure(name: str, steps: int) -> dict[str, object]:
    """Runs one benchmark in a process of its own and gives its figures, or its error."""
    command = [sys.executable, "-m", "benchmarks", name, "--inside", "--steps", str(steps)]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        # A message may have more lines; its first one names the exception.
        named = [line for line in lines if re.match(r"[\w.]+(Error|Interrupt)\b", line)]
        return {"name": name, "error": (named or lines)[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(rows: list[dict[str, object]]) -> str:
    """The figures in columns."""
    lines = [["", *(title for title, *_ in COLUMNS)]]
    for row in rows:
        cells = [str(row["name"])]
        for _, key, scale, form in COLUMNS:
            value = row.get(key)
            cells.append("-" if value is None else form.format(float(str(value)) * scale))
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    text += [f"{row['name']}: failed: {row['error']}" for row in rows if "error" in row]
    text += [f"{row['name']}: {row['note']}" for row in rows if row.get("note")]
    return "\n".join(text)


def main() -> int:
    """Runs the benchmarks that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    parser.add_argument("--steps", type=int, default=20, help="timed executions of each side (default: %(default)s)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in CASES]
    if unknown:
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are {', '.join(CASES)}")
    if options.inside:
        (name,) = options.names
        print(json.dumps({"name": name, **CASES[name](options.steps)}))
        return 0
    rows = []
    for name in options.names or CASES:
        rows.append(measure(name, options.steps))
        if options.json:
            print(json.dumps(rows[-1]), flush=True)
    if not options.json:
        print(table(rows))
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
