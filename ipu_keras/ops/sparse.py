"""Products of dense tensors with block-sparse matrices, whose pattern is fixed or known at run time only.

A sparse matrix is a tensor of its non-zero blocks and a pattern that says where they stand. On the tiles only these
blocks take memory and cycles; elsewhere TensorFlow computes the same. `BlockPattern` is plain data, so that layers can
be saved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError
from ipu_keras.ops._sparse_calls import Positions, product

__all__ = [
    "BlockPattern",
    "dynamic_matmul",
    "pattern_from_mask",
    "prune",
    "random_pattern",
    "static_matmul",
    "to_dense",
    "values_from_dense",
]

BLOCK_SIZES = (1, 4, 8, 16)
"""Edges of blocks for which the chip has vertices."""


@dataclass(frozen=True)
class BlockPattern:
    """Where the non-zero blocks of a matrix stand.

    Args:
        shape: (rows, columns) of the matrix.
        block_size: edge of a block: 1, 4, 8 or 16.
        rows: block row of each block.
        columns: block column of each block.

    Raises:
        ArgumentError: there is no such block size, it does not divide the shape, there is no block, or a place is
            outside the matrix or named twice.

    Example:
        >>> BlockPattern((8, 8), 4, rows=(0, 1), columns=(0, 1)).density
        0.5
    """

    shape: tuple[int, int]
    block_size: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_matrix("BlockPattern", self.shape, self.block_size)
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        for name in ("rows", "columns"):
            object.__setattr__(self, name, tuple(np.asarray(getattr(self, name), np.int64).reshape(-1).tolist()))
        if len(self.rows) != len(self.columns):
            raise ArgumentError(
                f"BlockPattern: {len(self.rows)} rows and {len(self.columns)} columns are given; each block has one "
                "of both."
            )
        if not self.rows:
            raise ArgumentError("BlockPattern: there is no block; leave the product out, it is zero.")
        index, grid = self.indices, np.array([n // self.block_size for n in self.shape])
        outside = np.flatnonzero(((index < 0) | (index >= grid)).any(1))
        if len(outside):
            at = int(outside[0])
            raise ArgumentError(
                f"BlockPattern: block {at} is at ({self.rows[at]}, {self.columns[at]}), and there are {grid[0]} block "
                f"rows and {grid[1]} block columns; rows and columns count blocks, not elements."
            )
        places, times = np.unique(index.astype(np.int64) @ [int(grid[1]), 1], return_counts=True)
        if times.max() > 1:
            row, column = divmod(int(places[times.argmax()]), int(grid[1]))
            raise ArgumentError(
                f"BlockPattern: block ({row}, {column}) is given {times.max()} times; add its values up and give it "
                "once."
            )

    @cached_property
    def indices(self) -> np.ndarray:
        """Block row and block column of each block, an int32 array of shape [blocks, 2]."""
        return np.array([self.rows, self.columns], np.int32).T

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.rows)

    @property
    def density(self) -> float:
        """Share of the matrix that the blocks cover."""
        return self.blocks * self.block_size**2 / math.prod(self.shape)

    @property
    def values_shape(self) -> tuple[int, int, int]:
        """Shape of the tensor of values: [blocks, block_size, block_size]."""
        return self.blocks, self.block_size, self.block_size

    def mask(self) -> np.ndarray:
        """The blocks as a bool array of shape [block rows, block columns]."""
        found = np.zeros([n // self.block_size for n in self.shape], bool)
        found[self.rows, self.columns] = True
        return found

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal pattern, as plain data."""
        return {
            "shape": list(self.shape),
            "block_size": self.block_size,
            "rows": list(self.rows),
            "columns": list(self.columns),
        }


def pattern_from_mask(mask: Any, block_size: int = 16) -> BlockPattern:
    """The blocks in which a mask has anything, ordered by column and then by row.

    That order lets a forward product finish each column on one tile; any other order gives the same results.

    Args:
        mask: array of shape [rows, columns], of bools or numbers: what is not zero.
        block_size: 1, 4, 8 or 16.

    Raises:
        ArgumentError: the mask has another rank, or shape or size do not fit, or nothing is set.

    Example:
        >>> pattern_from_mask([[1, 0], [0, 1]], block_size=1).rows
        (0, 1)
    """
    mask = np.asarray(mask)
    if mask.ndim != 2:
        raise ArgumentError(f"pattern_from_mask: the mask must have a shape [rows, columns]; it has {mask.shape}.")
    _check_matrix("pattern_from_mask", mask.shape, block_size)
    return _of_blocks(np.asarray(_blocks(mask != 0, block_size).any((2, 3))), block_size)


def random_pattern(shape: tuple[int, int], block_size: int, density: float, seed: int = 0) -> BlockPattern:
    """Blocks drawn at random, all equally likely.

    Args:
        shape: (rows, columns) of the matrix.
        block_size: 1, 4, 8 or 16.
        density: share of blocks, above 0 and at most 1; at least one block is drawn.
        seed: of the draw.

    Raises:
        ArgumentError: something does not fit.

    Example:
        >>> random_pattern((64, 64), 16, 0.25).blocks
        4
    """
    _check_matrix("random_pattern", shape, block_size)
    grid = shape[0] // block_size, shape[1] // block_size
    chosen = np.zeros(math.prod(grid), bool)
    drawn = np.random.default_rng(seed).permutation(len(chosen))
    chosen[drawn[: _count("random_pattern", density, len(chosen))]] = True
    return _of_blocks(chosen.reshape(grid), block_size)


def prune(dense: Any, block_size: int, density: float) -> BlockPattern:
    """The pattern of the blocks of a matrix with the largest sums of squares.

    Args:
        dense: array of shape [rows, columns].
        block_size: 1, 4, 8 or 16.
        density: share of blocks that stay, above 0 and at most 1; at least one does.

    Raises:
        ArgumentError: something does not fit.

    Example:
        >>> prune(np.diag([3.0, 1.0]), 1, 0.25).rows
        (0,)
    """
    dense = np.asarray(dense, np.float64)
    if dense.ndim != 2:
        raise ArgumentError(f"prune: the matrix must have a shape [rows, columns]; it has {dense.shape}.")
    _check_matrix("prune", dense.shape, block_size)
    sizes = (_blocks(dense, block_size) ** 2).sum((2, 3))
    kept = np.zeros(sizes.size, bool)
    kept[np.argsort(-sizes.reshape(-1), kind="stable")[: _count("prune", density, sizes.size)]] = True
    return _of_blocks(kept.reshape(sizes.shape), block_size)


def values_from_dense(dense: Any, pattern: BlockPattern) -> Any:
    """The blocks of a dense matrix; what is outside the pattern is left out.

    Args:
        dense: tensor of the pattern's shape.
        pattern: where the blocks stand.

    Returns:
        a tensor of shape [blocks, block_size, block_size].

    Raises:
        ArgumentError: the shapes differ.

    Example:
        >>> values_from_dense(tf.eye(8), pattern_from_mask(np.eye(8), 4)).shape
        TensorShape([2, 4, 4])
    """
    dense = tf.convert_to_tensor(dense)
    if tuple(dense.shape) != pattern.shape:
        raise ArgumentError(f"values_from_dense: the matrix has shape {dense.shape}, the pattern {pattern.shape}.")
    edge = pattern.block_size
    (rows, columns) = (n // edge for n in pattern.shape)
    blocks = tf.transpose(tf.reshape(dense, [rows, edge, columns, edge]), [0, 2, 1, 3])
    places = pattern.indices.astype(np.int64) @ [columns, 1]
    return tf.gather(tf.reshape(blocks, [-1, edge, edge]), places.astype(np.int32))


def to_dense(values: Any, pattern: BlockPattern) -> Any:
    """The dense matrix of some blocks, with zeros elsewhere.

    Args:
        values: tensor of shape [blocks, block_size, block_size].
        pattern: where the blocks stand.

    Returns:
        a tensor of the pattern's shape.

    Raises:
        ArgumentError: the shapes do not fit.

    Example:
        >>> to_dense(tf.ones((1, 1, 1)), BlockPattern((2, 2), 1, (0,), (1,)))
    """
    values = tf.convert_to_tensor(values)
    _check_values("to_dense", values, pattern.blocks, pattern.block_size)
    edge = pattern.block_size
    (rows, columns) = (n // edge for n in pattern.shape)
    places = (pattern.indices.astype(np.int64) @ [columns, 1]).astype(np.int32)
    blocks = tf.scatter_nd(places[:, None], values, [rows * columns, edge, edge])
    return tf.reshape(tf.transpose(tf.reshape(blocks, [rows, columns, edge, edge]), [0, 2, 1, 3]), pattern.shape)


def static_matmul(x: Any, values: Any, pattern: BlockPattern, transpose: bool = False, name: str | None = None) -> Any:
    """``x @ S``, or ``x @ S^T``, with a sparse matrix S whose pattern is fixed.

    Args:
        x: tensor of shape [..., rows], or [..., columns] with `transpose`; float32 or float16.
        values: tensor of shape [blocks, block_size, block_size], of the dtype of `x`.
        pattern: where the blocks stand.
        transpose: whether S is transposed.
        name: name scope.

    Returns:
        a tensor of shape [..., columns], or [..., rows] with `transpose`. Gradients are for `x` and `values`.

    Raises:
        ArgumentError: shapes or dtypes do not fit.

    Example:
        >>> pattern = pattern_from_mask(np.eye(32), 16)
        >>> static_matmul(tf.ones((2, 32)), tf.ones(pattern.values_shape), pattern).shape
        TensorShape([2, 32])

    Source: cycles as of poplibs popsparse (hardware.md 3.6, block sparse).
    """
    if not isinstance(pattern, BlockPattern):
        raise ArgumentTypeError(
            f"static_matmul: pattern must be a BlockPattern, not {type(pattern).__name__}; pattern_from_mask makes one."
        )
    at = Positions(pattern.shape, pattern.block_size, pattern.indices)
    return _matmul("static_matmul", x, values, at, pattern.blocks, transpose, name)


def dynamic_matmul(
    x: Any, values: Any, indices: Any, shape: tuple[int, int], transpose: bool = False, name: str | None = None
) -> Any:
    """``x @ S``, or ``x @ S^T``, with a sparse matrix S whose pattern is known only when the program runs.

    The number of blocks is a capacity: memory and cycles are those of all of them. A block whose place is not in the
    matrix is unused; blocks at one place are added up.

    Args:
        x: tensor of shape [..., rows], or [..., columns] with `transpose`; float32 or float16.
        values: tensor of shape [max_nonzeros, block_size, block_size], of the dtype of `x`.
        indices: int32 tensor of shape [max_nonzeros, 2]: block row and block column; -1 for an unused block.
        shape: (rows, columns) of S.
        transpose: whether S is transposed.
        name: name scope.

    Returns:
        a tensor of shape [..., columns], or [..., rows] with `transpose`. Gradients are for `x` and `values`; that of
        an unused block is zero.

    Raises:
        ArgumentError: shapes or dtypes do not fit.

    Example:
        >>> values, indices = tf.ones((3, 4, 4)), [[0, 1], [1, 0], [-1, -1]]
        >>> dynamic_matmul(tf.ones((2, 8)), values, indices, shape=(8, 8)).shape
        TensorShape([2, 8])

    Source: cycles as of poplibs popsparse (hardware.md 3.6, block sparse).
    """
    values, indices = tf.convert_to_tensor(values), tf.convert_to_tensor(indices)
    if values.shape.rank != 3 or not values.shape.is_fully_defined() or 0 in values.shape:
        raise ArgumentError(
            "dynamic_matmul: values must have a known shape [max_nonzeros, block_size, block_size] of at least one "
            f"block; it is {values.shape}."
        )
    count, edge = int(values.shape[0]), int(values.shape[1])
    _check_matrix("dynamic_matmul", shape, edge)
    if tuple(indices.shape) != (count, 2) or not indices.dtype.is_integer:
        raise ArgumentError(
            f"dynamic_matmul: indices must be integers of shape [{count}, 2], a block row and a block column for each "
            f"block of values; they are {indices.dtype.name} of shape {indices.shape}."
        )
    at = Positions((int(shape[0]), int(shape[1])), edge, None, tf.cast(indices, tf.int32))
    return _matmul("dynamic_matmul", x, values, at, count, transpose, name)


def _matmul(what: str, x: Any, values: Any, at: Positions, count: int, transpose: bool, name: str | None) -> Any:
    with tf.name_scope(name or what):
        x, values = tf.convert_to_tensor(x), tf.convert_to_tensor(values)
        _check_values(what, values, count, at.block)
        if x.dtype not in (tf.float32, tf.float16) or values.dtype != x.dtype:
            raise ArgumentError(
                f"{what}: x is {x.dtype.name} and values are {values.dtype.name}; both must be float32, or both "
                "float16: cast one of them."
            )
        size = at.shape[1 if transpose else 0]
        if x.shape.rank is None or x.shape.rank < 1 or x.shape[-1] != size:
            side = "columns" if transpose else "rows"
            raise ArgumentError(f"{what}: the last dimension of x {x.shape} must be the {size} {side} of the matrix.")
        known = x.shape.is_fully_defined()
        lead = x.shape[:-1].as_list() if known else tf.unstack(tf.shape(x))[:-1]
        flat = tf.reshape(x, [math.prod(lead) if known else -1, size])
        result = product("transposed" if transpose else "forward", flat, values, at)
        return tf.reshape(result, [*lead, at.shape[0 if transpose else 1]])


def _blocks(dense: np.ndarray, edge: int) -> np.ndarray:
    """[block rows, block columns, edge, edge]."""
    rows, columns = dense.shape
    return dense.reshape(rows // edge, edge, columns // edge, edge).transpose(0, 2, 1, 3)


def _of_blocks(mask: np.ndarray, edge: int) -> BlockPattern:
    columns, rows = np.nonzero(mask.T)
    shape = int(mask.shape[0] * edge), int(mask.shape[1] * edge)
    return BlockPattern(shape, edge, tuple(rows.tolist()), tuple(columns.tolist()))


def _count(what: str, density: float, blocks: int) -> int:
    if not 0 < density <= 1:
        raise ArgumentError(f"{what}: density is {density}; it must be above 0 and at most 1.")
    return max(1, round(density * blocks))


def _check_matrix(what: str, shape: Any, block_size: int) -> None:
    if block_size not in BLOCK_SIZES:
        raise ArgumentError(f"{what}: block_size is {block_size!r}; it must be 1, 4, 8 or 16.")
    if len(shape) != 2 or min(shape) < 1:
        raise ArgumentError(f"{what}: the matrix must have a shape (rows, columns) of at least 1; it has {shape}.")
    if shape[0] % block_size or shape[1] % block_size:
        raise ArgumentError(
            f"{what}: blocks of {block_size} do not divide the shape {tuple(shape)}; pad the matrix, or take smaller "
            "blocks."
        )


def _check_values(what: str, values: Any, count: int, edge: int) -> None:
    if tuple(values.shape) != (count, edge, edge):
        raise ArgumentError(f"{what}: values must have shape [{count}, {edge}, {edge}]; they have {values.shape}.")
