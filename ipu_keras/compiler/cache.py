"""Compiled programs on disk: the flag ``--executable_cache_path`` of TF_POPLAR_FLAGS names a folder for them.

A program's file is named by a hash of all that a compilation depends on: the module, how it is to be compiled, and the
package's own files, so that another release compiles anew. A file that cannot be read is made again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipu_runtime
from ipu_keras.config import flags
from ipu_keras.errors import ConfigError
from ipu_keras.graph.hlo_proto import canonical
from ipu_runtime import format as file_format
from ipu_runtime.errors import ExecutableFormatError
from ipu_runtime.program import Program

__all__ = ["Kept", "place"]

SUFFIX = ".ipu_exec"

logger = logging.getLogger("ipu_keras")


class Kept:
    """The place of one program in the cache.

    Args:
        path: of its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Program | None:
        """The program, None if it is not there."""
        try:
            program = file_format.load(self.path)
        except FileNotFoundError:
            return None
        except (OSError, ExecutableFormatError) as error:
            logger.warning("the executable cache: %s; the program is compiled again", error)
            return None
        logger.info("taken from the executable cache: %s", self.path)
        return program

    def save(self, program: Program) -> None:
        """Keeps a program; that there is no room for it is said in the log and stops nothing.

        Args:
            program: which.
        """
        try:
            file_format.save(program, self.path)
        except OSError as error:
            logger.warning("the executable cache: %s; the program is not kept", error)


def place(module: bytes, described: Mapping[str, Any]) -> Kept | None:
    """The place of a compilation's result, None without a cache.

    Args:
        module: the serialized HLO module.
        described: all else that the compilation depends on; values whose `repr` is their content.

    Raises:
        ConfigError: the cache's folder cannot be made.
    """
    folder = flags.executable_cache_path()
    if folder is None:
        return None
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flags.ENVIRONMENT}: --executable_cache_path is {folder!r}: {error}") from error
    digest = hashlib.sha256(_package())
    digest.update(json.dumps({name: repr(value) for name, value in described.items()}, sort_keys=True).encode())
    digest.update(canonical(module))
    return Kept(path / (digest.hexdigest() + SUFFIX))


@functools.cache
def _package() -> bytes:
    """A hash of the package's and the runtime's own files."""
    digest = hashlib.sha256()
    for root in (Path(__file__).parents[1], Path(ipu_runtime.__file__).parent):
        for file in sorted(root.rglob("*")):
            if file.suffix in (".py", ".so", ".pyd"):
                digest.update(str(file.relative_to(root)).encode())
                digest.update(file.read_bytes())
    return digest.digest()
