"""Write docs/calibration.md: published measurements of real chips beside what the model says.

    python tools/calibration.py                      compute all rows, print the document (some minutes)
    python tools/calibration.py --write              write docs/calibration.md
    python tools/calibration.py --write --rows 1,2   compute these, keep the others as the document has them

Every program is compiled for its profile and none runs. A test compares the document with what is computed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.calibration_rows import ROWS, Section

FILE = Path(__file__).resolve().parents[1] / "docs" / "calibration.md"
WIDTH = 120

INTRODUCTION = """\
# Calibration

No figure of this project was measured on an IPU. Other people have measured, and published: fourteen of their results
are compared here with what the model says of the same workload, computed by `tools/calibration.py`. See
[what the timing claims and what it does not](timing.md) for the rest.

**Three constants were fitted**, each to one row: `Target.sync_cycles`, the sync of all tiles (row 6); the cycles of a
read of the cycle counter (row 8), which only rows 8 and 9 use; `Target.host_bytes_per_second` (row 13). No other
constant was changed to bring a figure nearer: the formulas are poplibs', the rates of AMPs and exchange the published
ones, and what has no source is marked *unvalidated* in the code. All other rows are predictions, good and bad.

*Ratio* is ours over published: of rates more is faster, of cycles less is. **miss** marks a ratio outside what is asked
of the model: within 25 % for dense products (rows 1 to 3), 5 % for single vertices (8, 9), 35 % for networks (10 to
12).
"""

SOURCES = """\
## Sources

1 to 3: the dense baseline of the PopSparse paper (2023), GC200, read off a plot. 4 to 7: Louw and McIntosh-Smith (2021)
and their data files, GC2. 8, 9: a notebook of tessellate-ipu (2023), Bow. 10, 11: PopRT's README (2023), C600. 12:
Graphcore's results page. 13, 14: README files of graphcore/examples.
"""

HEAD = "| row | workload | published | ours | ratio | mechanism |\n|---|---|---|---|---|---|"


def rendered(section: Section) -> str:
    """A row's heading and paragraphs."""
    numbers = " and ".join(str(n) for n in dict.fromkeys(line.row for line in section.lines))
    paragraphs = (textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) for text in section.text)
    return "\n\n".join([f"### {numbers}. {section.title}", *paragraphs])


def parts(section: Section) -> tuple[str, str]:
    """A row's lines of the table, and its paragraphs."""
    return "\n".join(map(str, section.lines)), rendered(section)


def kept(text: str) -> dict[int, tuple[str, str]]:
    """The same of each row that a document has.

    Args:
        text: the document.
    """
    found = {}
    for match in re.finditer(r"^### (\d+)(?: and (\d+))?\..*?(?=\n+##)", text, re.MULTILINE | re.DOTALL):
        numbers = [n for n in match.groups() if n]
        lines = re.findall(rf"^\| (?:{'|'.join(numbers)}) \|.*$", text, re.MULTILINE)
        found[int(numbers[0])] = ("\n".join(lines), match.group())
    return found


def document(rows: Iterable[int] = tuple(ROWS)) -> str:
    """The whole text.

    Args:
        rows: those that are computed; the others are as the document has them.
    """
    found = kept(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for row in rows:
        print(f"row {row}", file=sys.stderr, flush=True)
        found[row] = parts(ROWS[row]())
    missing = [row for row in ROWS if row not in found]
    if missing:
        raise SystemExit(f"the document has no rows {missing} yet: compute them, too")
    table = "\n".join(found[row][0] for row in ROWS)
    return "\n".join([INTRODUCTION, HEAD, table, "", "## Row by row", "", _joined(found), "", SOURCES])


def _joined(found: dict[int, tuple[str, str]]) -> str:
    return "\n\n".join(found[row][1] for row in ROWS)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the document")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="such as 1,2,8; 5 comes with 4")
    given = parser.parse_args()
    rows = sorted({4 if row == "5" else int(row) for row in given.rows.split(",")})
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"there are no rows {unknown}")
    text = document(rows)
    if given.write:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
