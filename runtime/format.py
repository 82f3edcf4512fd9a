"""The executable file: a program's arrays behind a JSON header, with a checksum; nothing in it is ever executed.

Layout, little-endian:
    8 bytes   magic "IPUKEXE\\x00"
    4 bytes   format version, uint32
    4 bytes   header length, uint32
    32 bytes  SHA-256 of all that follows
    header    UTF-8 JSON: {"program": ..., "arrays": {name: [dtype, shape, offset]}}; offsets from the end of the header
    arrays    raw, each at a multiple of 64

The checksum finds accidents; a file that somebody made has one too, so every number in it is checked as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from ipu_runtime.errors import ExecutableFormatError
from ipu_runtime.program import Program
from ipu_runtime.validate import validate

MAGIC = b"IPUKEXE\0"
VERSION = 3
_FIXED = struct.Struct("<8sII32s")


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program to a file; an existing file is replaced at once or not at all.

    Args:
        program: what to save.
        path: where.

    Raises:
        OSError: it cannot be written; then nothing is left of it.
    """
    table: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for name in Program.ARRAYS:
        array = np.ascontiguousarray(getattr(program, name))
        raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        table[name] = [array.dtype.str.lstrip("<>|="), list(array.shape), at]
        padding = -len(raw) % 64
        parts += [raw, b"\0" * padding]
        at += len(raw) + padding
    header = json.dumps({"program": program.header, "arrays": table}).encode()
    payload = header + b"".join(parts)
    head = _FIXED.pack(MAGIC, VERSION, len(header), hashlib.sha256(payload).digest())
    target = Path(path)
    spare = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    try:
        spare.write_bytes(head + payload)
        os.replace(spare, target)
    except BaseException:  # no room, no right, an interrupt: nothing is left behind
        spare.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> Program:
    """Read a program from a file.

    Raises:
        ExecutableFormatError: the file is no executable, truncated, altered, of another version, or describes a program
            that no engine may run.
        OSError: it cannot be read.
    """
    raw = Path(path).read_bytes()
    where = f"{path}: "
    if len(raw) < _FIXED.size or raw[:8] != MAGIC:
        raise ExecutableFormatError(where + "not an executable file (or cut off in its first bytes)")
    _, version, length, digest = _FIXED.unpack_from(raw)
    if version != VERSION:
        raise ExecutableFormatError(where + f"format version {version}; this runtime reads version {VERSION}")
    payload = memoryview(raw)[_FIXED.size :]
    if hashlib.sha256(payload).digest() != digest:
        raise ExecutableFormatError(where + "checksum does not match: the file is truncated or was altered")
    try:
        described = json.loads(bytes(payload[:length]))
        arrays = {n: _array(payload[length:], n, described["arrays"][n]) for n in Program.ARRAYS}
        header = described["program"]
    except ExecutableFormatError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ExecutableFormatError(where + f"unreadable header: {error!r}") from error
    program = Program(header, **arrays)
    try:
        validate(program)
    except ExecutableFormatError as error:
        raise ExecutableFormatError(where + str(error)) from error
    return program


def _array(data: memoryview, name: str, entry: Any) -> np.ndarray:
    dtype, columns = Program.ARRAYS[name]
    text, shape, offset = entry
    if text != np.dtype(dtype).str.lstrip("<>|="):
        raise ExecutableFormatError(f"array {name} has dtype {text}")
    shape = [int(n) for n in shape]
    if len(shape) != (2 if columns else 1) or any(n < 0 for n in shape) or (columns and shape[1] != columns):
        raise ExecutableFormatError(f"array {name} has shape {shape}")
    count = int(np.prod(shape, dtype=object)) if shape else 1
    end = int(offset) + count * np.dtype(dtype).itemsize
    if int(offset) < 0 or end > len(data):
        raise ExecutableFormatError(f"array {name} reaches past the end of the file")
    return np.frombuffer(data[int(offset) : end], np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)
