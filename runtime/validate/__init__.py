"""Checks a program from a file as if somebody had written it by hand: every index, size and offset, before any use.

needs.py      the refusal, and how large anything may be
tables.py     the header and the tables
steps.py      the sequence of steps, its loops and its pipeline
codelets.py   the vertices
"""

from __future__ import annotations

from ipu_runtime.errors import ExecutableFormatError
from ipu_runtime.program import Program
from ipu_runtime.validate.codelets import check_group
from ipu_runtime.validate.needs import need
from ipu_runtime.validate.steps import check_pipeline, check_steps
from ipu_runtime.validate.tables import check_header, check_tables, host_sizes

__all__ = ["validate"]


def validate(program: Program) -> None:
    """Raise ExecutableFormatError unless an engine may run the program.

    Every vertex's operands lie inside its tile's memory, every copy inside a tile or a host array, every code (kind,
    codelet, operation, dtype, register) exists.
    """
    try:
        check_header(program)
        check_tables(program)
        host = host_sizes(program)
        kinds = check_steps(program, host)
        check_pipeline(program)
        for index in range(len(program.groups)):
            need(index in kinds, f"group {index} belongs to no step, state or constant")
            kind, size = kinds[index]
            check_group(program, index, kind, size)
    except ExecutableFormatError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise ExecutableFormatError(f"malformed program: {error!r}") from error
