"""Operations on the bits of numbers: other widths, fewer bits, and ThreeFry's random ones."""

from __future__ import annotations

import math

from ipu_keras.compiler.passes.builder import Builder
from ipu_keras.compiler.passes.ops import Ops
from ipu_keras.graph.ir import Node, Value

UNSIGNED = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


def rewrite_bitcast(b: Builder, node: Node) -> Value | None:
    """Between widths: an element is cut into its bytes, lowest first, or put together from them."""
    ops, (x,), out = Ops(b, node.where), node.inputs, node.out
    if x.itemsize == out.itemsize or "pred" in (x.dtype, out.dtype):
        return None
    wide, narrow = UNSIGNED[max(x.itemsize, out.itemsize)], UNSIGNED[min(x.itemsize, out.itemsize)]
    step = 8 * min(x.itemsize, out.itemsize)
    last = len(max(x.shape, out.shape, key=len)) - 1
    if out.itemsize < x.itemsize:
        all_bits = ops.spread(ops.bits(x, wide), out.shape, range(last))
        shift = ops.op("multiply", ops.line(out.shape, last, wide), step)
        return ops.bits(ops.convert(ops.op("shift-right-logical", all_bits, shift), narrow), out.dtype)
    parts = ops.convert(ops.bits(x, narrow), wide)
    shift = ops.op("multiply", ops.line(x.shape, last, wide), step)
    return ops.bits(ops.reduce(ops.op("shift-left", parts, shift), (last,), "or"), out.dtype)


def rewrite_reduce_precision(b: Builder, node: Node) -> Value | None:
    """Round the mantissa to nearest even; what the exponent cannot hold is infinite, or zero of the same sign.

    Source: XLA's reference for ReducePrecision, whose treatment of small numbers (flushed) this follows.
    """
    ops, (x,) = Ops(b, node.where), node.inputs
    if x.dtype not in ("f32", "f16"):
        return None
    uint, mantissa, exponent = ("u32", 23, 8) if x.dtype == "f32" else ("u16", 10, 5)
    keep_mantissa, keep_exponent = node.attrs["mantissa"], node.attrs["exponent"]
    bits, width = ops.bits(x, uint), mantissa + exponent
    sign = ops.op("and", bits, 1 << width)
    magnitude = ops.op("and", bits, (1 << width) - 1)
    if keep_mantissa < mantissa:
        drop = mantissa - keep_mantissa
        odd = ops.op("and", ops.op("shift-right-logical", magnitude, drop), 1)
        magnitude = ops.add(magnitude, ops.add(odd, (1 << (drop - 1)) - 1))
        magnitude = ops.op("and", magnitude, ((1 << width) - 1) & ~((1 << drop) - 1))
    if keep_exponent < exponent:
        bias, kept = (1 << (exponent - 1)) - 1, (1 << (keep_exponent - 1)) - 1
        largest, smallest = (bias + kept) << mantissa, (bias - kept + 1) << mantissa
        over = ops.compare(magnitude, "ge", largest + (1 << mantissa))
        magnitude = ops.select(over, ((1 << exponent) - 1) << mantissa, magnitude)
        magnitude = ops.select(ops.compare(magnitude, "lt", smallest), 0, magnitude)
    rounded = ops.bits(ops.op("or", magnitude, sign), x.dtype)
    return ops.select(ops.compare(x, "ne", x), x, rounded)


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
"""Source: J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011 (Threefry-2x32, 20 rounds)."""


def _threefry(ops: Ops, key: tuple[Value, Value], counter: tuple[Value, Value]) -> tuple[Value, Value]:
    keys = [*key, ops.op("xor", ops.op("xor", *key), PARITY)]
    x, y = ops.add(counter[0], keys[0]), ops.add(counter[1], keys[1])
    for turn in range(5):
        for by in ROTATIONS[turn % 2]:
            x = ops.add(x, y)
            y = ops.op("or", ops.op("shift-left", y, by), ops.op("shift-right-logical", y, 32 - by))
            y = ops.op("xor", y, x)
        x, y = ops.add(x, keys[(turn + 1) % 3]), ops.add(ops.add(y, keys[(turn + 2) % 3]), turn + 1)
    return x, y


def _halves(ops: Ops, value: Value) -> tuple[Value, Value]:
    """Low and high 32 bits."""
    return ops.convert(value, "u32"), ops.convert(ops.op("shift-right-logical", value, 32), "u32")


def _halved(shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Which dimension ThreeFry's two words of a block run along, and the shape of the blocks."""
    even = [d for d, n in enumerate(shape) if n % 2 == 0]
    split = even[0] if even else max(range(len(shape)), key=lambda d: shape[d])
    return split, (*shape[:split], -(-shape[split] // 2), *shape[split + 1 :])


def rewrite_threefry(b: Builder, node: Node) -> list[Value] | None:
    """rng-bit-generator with ThreeFry: the state is a key and a counter, the blocks are laid out as XLA lays them."""
    ops, (state,) = Ops(b, node.where), node.inputs
    bits = node.results[1]
    if node.attrs["algorithm"] != 1 or state.shape != (2,) or state.dtype != "u64" or bits.itemsize not in (4, 8):
        return None
    key, counter = ops.slice(state, 0, 0, 1), ops.slice(state, 0, 1, 2)
    shape = bits.shape or (1,)
    split, half = _halved(shape) if bits.itemsize == 4 else (0, shape)
    blocks = math.prod(half)
    numbers = ops.add(ops.spread(counter, (blocks,), (0,)), ops.line((blocks,), 0, "u64"))
    low_key, high_key = _halves(ops, ops.spread(key, (blocks,), (0,)))
    low, high = _threefry(ops, (low_key, high_key), _halves(ops, numbers))
    if bits.itemsize == 8:
        made = ops.op("or", ops.convert(low, "u64"), ops.op("shift-left", ops.convert(high, "u64"), 32))
    else:
        pair = (*half[: split + 1], 1, *half[split + 1 :])
        both = ops.concat([ops.reshape(low, *pair), ops.reshape(high, *pair)], split + 1)
        both = ops.reshape(both, *half[:split], 2 * half[split], *half[split + 1 :])
        made = ops.slice(both, split, 0, shape[split])
    new_state = ops.concat([key, ops.add(counter, blocks)], 0)
    return [new_state, ops.reshape(ops.bits(made, bits.dtype), *bits.shape)]


def rewrite_short_philox(b: Builder, node: Node) -> list[Value] | None:
    """Philox with a state of two words: the counter's upper word is the key again, and is not handed on."""
    ops, (state,) = Ops(b, node.where), node.inputs
    if node.attrs["algorithm"] == 1 or state.shape != (2,) or state.dtype != "u64":
        return None
    long = ops.concat([ops.slice(state, 0, 0, 1), ops.reverse(state, 0)], 0)
    types = [((3,), "u64"), *((v.shape, v.dtype) for v in node.results[1:])]
    new_state, bits = b.add_node(Node(node.op, [long], types, node.attrs, node.where, node.name))
    return [ops.slice(new_state, 0, 0, 2), bits]


def rewrite_narrow_bits(b: Builder, node: Node) -> list[Value] | None:
    """Random bits of 8 or 16 are the low ones of 32, as XLA makes them: dropout of fp16 asks for such."""
    bits = node.results[-1]
    if bits.itemsize >= 4:
        return None
    types = [*((v.shape, v.dtype) for v in node.results[:-1]), (bits.shape, "u32")]
    *state, wide = b.add_node(Node(node.op, node.inputs, types, node.attrs, node.where, node.name))
    ops = Ops(b, node.where)
    return [*state, ops.bits(ops.convert(wide, "u16" if bits.itemsize == 2 else "u8"), bits.dtype)]
