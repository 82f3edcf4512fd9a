"""A custom call of the front end becomes `sparse-dot`, a product with the non-zero blocks of a matrix."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

import numpy as np

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.graph.ir import Node, Value
from ipu_runtime.codelets.sparse_model import BLOCKS, MODES

SPARSE_DOT = "ipu_keras.sparse_dot"
"""Target of the custom call. Its configuration is JSON: ``mode``, of the codelet's; ``block``, edge of a block;
``shape``, of the sparse matrix; ``pattern``, for each block its block row and block column as packed by `pack`, or None
where they are an operand. Operands: X [n, rows] forward and sampled, Y [n, columns] transposed and sampled, the blocks
[count, edge, edge] forward and transposed, and int32 positions [count, 2] of a dynamic pattern."""

MOST_BYTES = 1 << 28
"""Bytes of the largest pattern: a chip's memory holds no more blocks."""


def pack(pattern: Any) -> str:
    """A pattern as text.

    Args:
        pattern: int32 array of shape [count, 2].
    """
    return base64.b64encode(zlib.compress(np.ascontiguousarray(pattern, "<i4").tobytes())).decode("ascii")


def unpack(text: str) -> np.ndarray:
    """A pattern that `pack` has written.

    Raises:
        ValueError: it is not one.
    """
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from error
    return np.frombuffer(raw, "<i4").astype(np.int32).reshape(-1, 2)


def rewrite_sparse_dot(b: Builder, node: Node) -> list[Value] | None:
    """A call that says what it should; None, so that it is refused by name, for any other."""
    try:
        attrs = _attributes(node)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if attrs is None:
        return None
    types = [(v.shape, v.dtype) for v in node.results]
    return b.add_node(Node("sparse-dot", node.inputs, types, attrs, node.where, node.name))


def _attributes(node: Node) -> dict[str, Any] | None:
    config = json.loads(node.attrs["config"])
    mode, edge, (rows, columns) = config["mode"], config["block"], config["shape"]
    static = config["pattern"] is not None
    operands, others = node.inputs[: 2 if static else -1], node.inputs[2:]
    if mode not in MODES or edge not in BLOCKS or len(operands) != 2 or len(others) != (0 if static else 1):
        return None
    out = node.results[0]
    if {v.dtype for v in (*operands, out)} not in ({"f32"}, {"f16"}) or len(node.results) != 1:
        return None
    blocks = out if mode == "sampled" else operands[1]
    if rows % edge or columns % edge or len(blocks.shape) != 3 or blocks.shape[1:] != (edge, edge):
        return None
    n, count = operands[0].shape[0], blocks.shape[0]
    x, y = {"forward": (operands[0], out), "transposed": (out, operands[0]), "sampled": tuple(operands)}[mode]
    if x.shape != (n, rows) or y.shape != (n, columns) or 0 in (n, count, rows, columns):
        return None
    pattern = None
    if static:
        pattern = unpack(config["pattern"])
        inside = (pattern >= 0) & (pattern < [rows // edge, columns // edge])
        if pattern.shape != (count, 2) or not inside.all():
            return None
    elif others[0].shape != (count, 2) or others[0].dtype != "s32":
        return None
    return {"mode": mode, "block": edge, "shape": (rows, columns), "pattern": pattern}
