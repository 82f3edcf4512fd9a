"""Write docs/profile.md: every field of a profile's JSON, with its type, its unit and its meaning.

    python tools/profile_fields.py            print the document
    python tools/profile_fields.py --write    write docs/profile.md

The document is made from `ipu_keras.profile.schema`; a test compares the two.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ipu_keras.profile.schema import CATEGORIES, FIELDS, SCHEMA, VERSION

FILE = Path(__file__).resolve().parents[1] / "docs" / "profile.md"

INTRODUCTION = f"""\
# The profile

`executable.profile()` says what a program costs on the chip, without a run. `profile.to_dict()` gives all of it
as plain data with the names below, `profile.to_json(path)` writes that to a file; the most used are attributes, too:

```python
profile = ipu_keras.executable(model).profile()
print(profile.cycles, profile.utilisation, profile.unvalidated)
profile.to_json("profile.json")
```

The file is JSON without `NaN` or infinities, schema `{SCHEMA}`, version {VERSION}. A program gives the same profile
before and after it ran, and when it was saved and loaded. All cycles are estimates: see
[what the timing claims and what it does not](timing.md).

Made from `ipu_keras/profile/schema.py` by `tools/profile_fields.py`.
"""

EXPLANATION = """\
A tile needs the bytes of its variables up to the end of the last, since they share places when they do not live at
once, and its fixed bytes: code, vertex state, stacks. The figures by category are those of the step at which most lives
on the tile; `gaps` is what lies between. Tile by tile the categories add up to `memory.by_tile`.

Instructions can be fetched from a part of a tile's memory only, 208 KiB on Mk2 chips: `vertexCode`, `controlCode`,
`internalExchangeCode` and `hostExchangeCode` must fit it together, or the program is refused as one that does not fit.

The Poplar tools also list `message`, the bytes that an exchange receives. Here these land in the operands that they are
for and are counted as those; where they have to be put in order first, as `rearrangement`.

For another tile than the fullest: `profile.live_on(tile)`.
"""


def document() -> str:
    """The whole text."""
    fields = [f"| `{name}` | {f.type} | {f.unit} | {f.meaning} |" for name, f in FIELDS.items()]
    categories = [f"| {name} | {meaning} |" for name, meaning in CATEGORIES.items()]
    return "\n".join(
        [
            INTRODUCTION,
            "## Fields\n",
            "`a.b` is b of the object a, `a[]` each element of a list, `a.*` each value of an object of any names.\n",
            "| field | type | unit | meaning |\n|---|---|---|---|",
            *fields,
            "\n## What occupies a tile\n",
            EXPLANATION,
            "| category | what |\n|---|---|",
            *categories,
            "",
        ]
    )


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        FILE.write_text(document())
    else:
        print(document(), end="")
