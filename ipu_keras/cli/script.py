"""Runs a person's Python file and calls a function of it; what goes wrong there is shown as Python would show it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from ipu_keras.cli.usage import UsageError, UserError
from ipu_keras.errors import IPUError

__all__ = ["load_function", "user_errors"]

LAST_LINES = 16
"""Of a traceback, that are shown."""

_COLOURS = re.compile("\x1b\\[[0-9;]*m")


def load_function(path: str, name: str) -> Callable[[], Any]:
    """Runs a file as a module of its own, with its folder importable, and looks up a function.

    Args:
        path: of the file.
        name: of the function.

    Raises:
        UsageError: the file has no such function.
    """
    path = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(path))  # as python does for a script
    module_name = "model_" + os.path.splitext(os.path.basename(path))[0]  # not "__main__": nothing shall be trained
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        others = [k for k, v in vars(module).items() if getattr(v, "__module__", "") == module_name and callable(v)]
        known = f" It has {', '.join(others)}." if others else ""
        raise UsageError(f"{os.path.basename(path)} has no function {name!r}.{known} Name one: MODEL.py:function")
    return function  # type: ignore[no-any-return]


@contextlib.contextmanager
def user_errors(path: str, ours: str = "") -> Iterator[None]:
    """Turns exceptions of a person's code into a UserError with the end of their traceback.

    Args:
        path: of the person's file; frames before its first are left out.
        ours: part of a path; an exception that passes through such a file is a bug of ours and left as it is.

    Raises:
        UserError: something else than one of the project's exceptions was raised.
    """
    try:
        yield
    except (IPUError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise UserError(f"{path} ended itself with exit code {error.code!r}") from error
    except Exception as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if ours and any(ours in file.replace(os.sep, "/") for file in files):
            raise
        raise UserError("\n".join([f"an error in {path}:", *_last_lines(error, os.path.abspath(path))])) from error


def _last_lines(error: Exception, path: str) -> list[str]:
    first: TracebackType | None = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename != path:
        first = first.tb_next
    shown = first if first is not None else error.__traceback__
    # A SyntaxError in the file has no frame of it; what imported the file says nothing then.
    lines = traceback.format_exception(
        type(error), error, None if isinstance(error, SyntaxError) else shown, chain=False
    )
    last = _COLOURS.sub("", "".join(lines)).rstrip().splitlines()[-LAST_LINES:]
    # Not from the middle of a frame.
    start = next((i for i, line in enumerate(last) if line.startswith(("Traceback", "  File"))), 0)
    return last[start:]
