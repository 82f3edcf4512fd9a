"""Random graphs of the supported operations, on chips of 1 to 1,472 tiles, equal to XLA's answer on the CPU.

A graph is drawn as lines of Python, so that a failure prints a function that one can paste. With every value goes a
bound of its magnitude and of the rounding that two correct programs may differ by; a value that is still exact (small
multiples of a power of two) has to be equal, and only such values go into operations that jump: comparisons, argmax,
floor, conversions to integers.

IPU_RANDOM_GRAPHS=2000 draws that many graphs in place of the suite's 100.
"""

import dataclasses
import math
import os

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.harness import run_both

EXAMPLES = int(os.environ.get("IPU_RANDOM_GRAPHS", "100"))
MOST_ELEMENTS = 3000
FLOATS = {"float32": 2.0**-21, "float16": 2.0**-9}  # what one operation may add, relative
EXACT_BITS = {"float32": 2.0**23, "float16": 2.0**10}
INTS = ("int32", "uint32", "int8", "uint8", "int64", "uint64")
SHAPELESS = (
    "xla_ops.",
    "while_loop(",
    "tf.cond(",
    "switch_case(",
    "windows(",
    "two_reduced(",
    "sort_two(",
    "select_scatter(",
)
"""What TensorFlow does not infer the shape of."""
DIMS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 31)


@dataclasses.dataclass
class Info:
    """What is known about a value: |v| <= bound, off by at most `err`, exact values are multiples of `unit`."""

    name: str
    shape: tuple
    dtype: str
    bound: float = 0.0
    err: float = 0.0
    unit: float = 1.0

    @property
    def floating(self):
        return self.dtype in FLOATS

    @property
    def exact(self):
        return self.err == 0

    @property
    def size(self):
        return math.prod(self.shape)


class Drawn:
    """A graph: parameters, lines, values."""

    def __init__(self, tiles):
        self.tiles = tiles
        self.params = []  # (info, seed)
        self.lines = []
        self.values = []
        self.used = set()

    def source(self):
        outs = self.outputs()
        head = f"def f({', '.join(p.name for p, _ in self.params)}):  # tiles={self.tiles}"
        about = [f"    # {p.name}: {p.dtype}{list(p.shape)} seed {seed}" for p, seed in self.params]
        return "\n".join([head, *about, *("    " + line for line in self.lines), f"    return ({', '.join(outs)},)"])

    __repr__ = source

    def outputs(self):
        return [v.name for v in self.values if v.name not in self.used] or [self.values[-1].name]

    def infos(self):
        by_name = {v.name: v for v in self.values}
        return [by_name[n] for n in self.outputs()]

    def param(self, draw, shape, dtype, below=None):
        info = Info(f"p{len(self.params)}", tuple(shape), dtype, *((2.0, 0.0, 0.25) if dtype in FLOATS else (0, 0, 1)))
        seed = draw(st.integers(0, 99)) * 1000 + (below or 0)
        self.params.append((info, seed))
        self.values.append(info)
        return info

    def emit(self, code, inputs, shape, dtype, bound=0.0, err=0.0, unit=1.0):
        """A new value; a float that could grow too large is clipped."""
        info = Info(f"v{len(self.lines)}", tuple(shape), dtype, bound, err, unit)
        if info.floating:
            if info.err or bound / unit > EXACT_BITS[dtype]:
                info.err = err + FLOATS[dtype] * bound
            if bound > 64:
                code, info.bound = f"tf.clip_by_value({code}, -8, 8)", 8.0
        if any(name in code for name in SHAPELESS):
            code = f"tf.ensure_shape({code}, {list(shape)})"
        self.lines.append(f"{info.name} = {code}")
        self.used.update(i.name for i in inputs)
        self.values.append(info)
        return info


def arrays(graph):
    """The parameters' values: small multiples of 1/4, any bits for integers; indices stay below seed % 1000."""
    out = []
    for info, seed in graph.params:
        rng = np.random.default_rng(seed)
        if info.floating:
            out.append((rng.integers(-8, 9, info.shape) / 4).astype(info.dtype))
        elif info.dtype == "bool":
            out.append(rng.integers(0, 2, info.shape).astype(bool))
        elif seed % 1000:
            out.append(rng.integers(0, seed % 1000, info.shape).astype(info.dtype))
        else:
            low, high = np.iinfo(info.dtype).min, np.iinfo(info.dtype).max
            out.append(rng.integers(low, high, info.shape, dtype=info.dtype, endpoint=True))
    return out


def pick(draw, graph, want=lambda v: True):
    """A value that fits, recent ones first; None if there is none."""
    found = [v for v in reversed(graph.values) if want(v)]
    if found and draw(st.booleans()):
        return found[0]
    return draw(st.sampled_from(found[:6])) if found else None


def some(draw, g, want, rank):
    """A value that fits, or a new parameter of this rank."""
    x = pick(draw, g, want)
    if x is not None and draw(st.integers(0, 3)):
        return x
    shape = [draw(st.sampled_from(DIMS)) for _ in range(rank)]
    while math.prod(shape) > MOST_ELEMENTS:
        shape[shape.index(max(shape))] = 2
    return g.param(draw, shape, draw(st.sampled_from(["float32", "float32", "float16"])))


# ---- operations: each draws one from what is there, or returns False ----

# name: (code, largest slope, bound of the result from the operand's, needs an exact operand, unit or None: not exact)
UNARY = {
    "abs": ("tf.abs({})", 1, lambda b: b, False, lambda u: u),
    "negate": ("-{}", 1, lambda b: b, False, lambda u: u),
    "relu": ("tf.nn.relu({})", 1, lambda b: b, False, lambda u: u),
    "tanh": ("tf.tanh({})", 1, lambda b: 1.0, False, None),
    "sine": ("tf.sin({})", 1, lambda b: 1.0, False, None),
    "cosine": ("tf.cos({})", 1, lambda b: 1.0, False, None),
    "logistic": ("tf.sigmoid({})", 1, lambda b: 1.0, False, None),
    "erf": ("tf.math.erf({})", 1.2, lambda b: 1.0, False, None),
    "exp": ("tf.exp(tf.minimum({}, 2))", 8, lambda b: 8.0, False, None),
    "expm1": ("tf.math.expm1(tf.minimum({}, 2))", 8, lambda b: 8.0, False, None),
    "log1p": ("tf.math.log1p(tf.abs({}))", 1, lambda b: math.log1p(b), False, None),
    "log": ("tf.math.log(tf.abs({}) + 0.5)", 2, lambda b: 1 + math.log(b + 1), False, None),
    "sqrt": ("tf.sqrt(tf.abs({}) + 1)", 1, lambda b: b + 1, False, None),
    "rsqrt": ("tf.math.rsqrt(tf.abs({}) + 1)", 1, lambda b: 1.0, False, None),
    "gelu": ("tf.nn.gelu({}, approximate=True)", 2, lambda b: b, False, None),
    "square": ("tf.square(tf.clip_by_value({}, -4, 4))", 8, lambda b: min(b, 4) ** 2, False, lambda u: u * u),
    "cube root": ("cbrt(tf.abs({}) + 1)", 1, lambda b: b + 1, False, None),
    "tangent": ("tf.tan(tf.clip_by_value({}, -1, 1))", 4, lambda b: 2.0, False, None),
    "inverse tangent": ("tf.atan({})", 1, lambda b: 1.6, False, None),
    "barrier": ("xla_ops.xla_optimization_barrier([{}])[0]", 1, lambda b: b, False, lambda u: u),
    "fewer bits": ("fewer_bits({})", 0, lambda b: 2 * b, True, lambda u: u),
    "sign": ("tf.sign({})", 0, lambda b: 1.0, True, lambda u: 1.0),
    "floor": ("tf.floor({})", 0, lambda b: b + 1, True, lambda u: 1.0),
    "ceil": ("tf.math.ceil({})", 0, lambda b: b + 1, True, lambda u: 1.0),
    "round": ("tf.round({})", 0, lambda b: b + 1, True, lambda u: 1.0),
    "is finite": ("tf.math.is_finite({})", 0, lambda b: 1.0, False, lambda u: 1.0),
}


def unary(draw, g):
    x = pick(draw, g, lambda v: v.dtype != "bool")
    if x is None:
        return False
    if not x.floating:
        code = draw(
            st.sampled_from(
                [
                    "tf.bitwise.invert({})",
                    "{} + {}",
                    "tf.raw_ops.PopulationCount(x={})",
                    "tf.abs({})",
                    "-{}",
                    "tf.sign({})",
                ]
            )
        )
        if x.dtype[0] == "u" and code in ("tf.abs({})", "-{}", "tf.sign({})"):
            code = "{} + {}"
        dtype = "uint8" if "Population" in code else x.dtype
        g.emit(code.format(x.name, x.name), [x], x.shape, dtype)
        return True
    name = draw(st.sampled_from(sorted(UNARY)))
    code, slope, bound, exact, unit = UNARY[name]
    if exact and not x.exact:
        return False
    if name == "is finite":
        g.emit(code.format(x.name), [x], x.shape, "bool")
        return True
    err = slope * x.err
    if unit is None:
        err += 4 * FLOATS[x.dtype]
    g.emit(code.format(x.name), [x], x.shape, x.dtype, bound(x.bound), err, unit(x.unit) if unit else 1.0)
    return True


def broadcast_shape(a, b):
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def partner(draw, g, x):
    """Something of x's dtype that broadcasts with it."""
    fits = lambda v: v.dtype == x.dtype and (s := broadcast_shape(v.shape, x.shape)) and math.prod(s) <= MOST_ELEMENTS  # noqa: E731
    y = pick(draw, g, fits)
    if y is None or draw(st.integers(0, 3)) == 0:
        first = draw(st.integers(0, len(x.shape)))
        shape = [n if draw(st.booleans()) else 1 for n in x.shape[first:]]
        y = g.param(draw, shape, x.dtype)
    return y, broadcast_shape(x.shape, y.shape)


def binary(draw, g):
    x = pick(draw, g)
    if x is None:
        return False
    y, shape = partner(draw, g, x)
    a, b = (x, y) if draw(st.booleans()) else (y, x)
    if x is y and not x.floating:
        return False  # XLA takes x * x to be positive, even where it wraps, and drops a later abs
    if x.dtype == "bool":
        op = draw(
            st.sampled_from(["tf.logical_and", "tf.logical_or", "tf.not_equal", "tf.equal", "tf.math.logical_xor"])
        )
        g.emit(f"{op}({a.name}, {b.name})", [x, y], shape, "bool")
        return True
    if not x.floating:
        code = draw(st.sampled_from([
            "{0} + {1}", "{0} - {1}", "{0} * {1}", "tf.maximum({0}, {1})", "tf.minimum({0}, {1})",
            "tf.bitwise.bitwise_and({0}, {1})", "tf.bitwise.bitwise_or({0}, {1})", "tf.bitwise.bitwise_xor({0}, {1})",
            "tf.bitwise.left_shift({0}, {1} & 7)", "tf.bitwise.right_shift({0}, {1} & 7)",
            "tf.truncatediv({0}, ({1} & 7) + 1)", "tf.math.floormod({0}, ({1} & 7) + 1)",
        ]))  # fmt: skip
        code = code.replace("{1} & 7", f"tf.bitwise.bitwise_and({{1}}, tf.constant(7, '{x.dtype}'))")
        code = code.replace(" + 1)", f" + tf.constant(1, '{x.dtype}'))")
        g.emit(code.format(a.name, b.name), [x, y], shape, x.dtype)
        return True
    op = draw(st.sampled_from(["add", "sub", "mul", "max", "min", "div", "power", "atan2"]))
    total, err, unit = a.bound + b.bound, a.err + b.err, min(a.unit, b.unit)
    if op in ("add", "sub"):
        g.emit(f"{a.name} {'+' if op == 'add' else '-'} {b.name}", [x, y], shape, x.dtype, total, err, unit)
    elif op == "mul":
        err = a.err * b.bound + b.err * a.bound
        g.emit(f"{a.name} * {b.name}", [x, y], shape, x.dtype, a.bound * b.bound, err, a.unit * b.unit)
    elif op in ("max", "min"):
        code = f"tf.{op}imum({a.name}, {b.name})"
        g.emit(code, [x, y], shape, x.dtype, max(a.bound, b.bound), max(a.err, b.err), unit)
    elif op == "div":
        err = a.err + a.bound * b.err + FLOATS[x.dtype] * (a.bound + 1)
        g.emit(f"{a.name} / (1 + tf.abs({b.name}))", [x, y], shape, x.dtype, a.bound, err)
    elif op == "power":
        # base in [1, 3], exponent in [-2, 2]: slopes up to 18 and 10
        code = f"tf.pow(1 + tf.minimum(tf.abs({a.name}), 2), tf.clip_by_value({b.name}, -2, 2))"
        g.emit(code, [x, y], shape, x.dtype, 9.0, 18 * a.err + 10 * b.err + 64 * FLOATS[x.dtype])
    else:
        code = f"tf.atan2({a.name}, 1 + tf.abs({b.name}))"
        g.emit(code, [x, y], shape, x.dtype, 1.6, err + 4 * FLOATS[x.dtype])
    return True


def compare_and_select(draw, g):
    x = pick(draw, g, lambda v: v.exact and v.dtype != "bool")
    if x is None:
        return False
    y, shape = partner(draw, g, x)
    if not y.exact:
        return False
    op = draw(st.sampled_from(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]))
    cond = g.emit(f"tf.{op}({x.name}, {y.name})", [x, y], shape, "bool")
    a = pick(draw, g, lambda v: v.shape == shape and v.dtype == x.dtype)
    if a is not None:
        b = pick(draw, g, lambda v: v.shape in (shape, ()) and v.dtype == x.dtype) or a
        bound, err, unit = max(a.bound, b.bound), max(a.err, b.err), min(a.unit, b.unit)
        g.emit(f"tf.where({cond.name}, {a.name}, {b.name})", [cond, a, b], shape, x.dtype, bound, err, unit)
    return True


def convert(draw, g):
    x = pick(draw, g)
    dtype = draw(st.sampled_from(["float32", "float16", "bool", *INTS]))
    if x is None or dtype == x.dtype or (not x.exact and dtype not in FLOATS):
        return False
    if dtype in FLOATS:
        if x.floating:
            g.emit(f"tf.cast({x.name}, '{dtype}')", [x], x.shape, dtype, x.bound, x.err, x.unit)
        elif x.dtype == "bool":
            g.emit(f"tf.cast({x.name}, '{dtype}')", [x], x.shape, dtype, 1.0)
        else:
            code = f"tf.cast(tf.bitwise.bitwise_and({x.name}, tf.constant(15, '{x.dtype}')), '{dtype}')"
            g.emit(code, [x], x.shape, dtype, 15.0)
    else:
        # A float outside the integer's range has no defined value.
        code = f"tf.abs({x.name})" if x.floating and dtype[0] == "u" else x.name
        g.emit(f"tf.cast({code}, '{dtype}')", [x], x.shape, dtype)
    return True


def keep(g, code, x, shape, *more):
    """A value whose elements are elements of `x` (and `more`)."""
    every = [x, *more]
    g.emit(
        code, every, shape, x.dtype, max(v.bound for v in every), max(v.err for v in every), min(v.unit for v in every)
    )
    return True


def reshape(draw, g):
    x = pick(draw, g)
    if x is None:
        return False
    left, shape = x.size, []
    while left > 1 and len(shape) < 4:
        d = draw(st.sampled_from([*[n for n in range(1, left + 1) if left % n == 0][:12], left]))
        shape.append(d)
        left //= d
    shape.append(left)
    if x.size == 0 or len(shape) > 4:
        return False
    return keep(g, f"tf.reshape({x.name}, {shape})", x, shape)


def transpose(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) > 1)
    if x is None:
        return False
    perm = draw(st.permutations(range(len(x.shape))))
    return keep(g, f"tf.transpose({x.name}, {list(perm)})", x, [x.shape[d] for d in perm])


def cut(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) > 0)
    if x is None:
        return False
    parts, shape = [], []
    for n in x.shape:
        kind = draw(st.integers(0, 2))
        if kind == 0 or n == 0:
            parts.append(":")
            shape.append(n)
        else:
            a = draw(st.integers(0, n - 1))
            b = draw(st.integers(a + 1, n))
            step = draw(st.integers(1, 3))
            if kind == 1:
                parts.append(f"{a}:{b}:{step}")
                shape.append(len(range(a, b, step)))
            else:
                parts.append("::-1")
                shape.append(n)
    return keep(g, f"{x.name}[{', '.join(parts)}]", x, shape)


def pad(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.floating)
    if x is None:
        return False
    low, high, inside, shape = [], [], [], []
    for n in x.shape:
        low.append(draw(st.integers(-1, 2)))
        high.append(draw(st.integers(-1, 2)))
        inside.append(draw(st.sampled_from([0, 0, 1, 2])))
        shape.append(n + max(n - 1, 0) * inside[-1] + low[-1] + high[-1])
    if min(shape) < 0 or math.prod(shape) > MOST_ELEMENTS:
        return False
    scalar = pick(draw, g, lambda v: v.shape == () and v.dtype == x.dtype)
    value, more = (scalar.name, [scalar]) if scalar is not None else (f"tf.constant(1, '{x.dtype}')", [])
    keep(g, f"pad({x.name}, {value}, {low}, {high}, {inside})", x, shape, *more)
    g.values[-1].bound = max(g.values[-1].bound, 1.0)
    return True


def concat(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) > 0)
    if x is None:
        return False
    axis = draw(st.integers(0, len(x.shape) - 1))
    rest = lambda s: s[:axis] + s[axis + 1 :]  # noqa: E731
    y = pick(draw, g, lambda v: v.dtype == x.dtype and len(v.shape) == len(x.shape) and rest(v.shape) == rest(x.shape))
    if draw(st.booleans()):
        shape = list(x.shape)
        shape[axis] += y.shape[axis]
        if math.prod(shape) > MOST_ELEMENTS:
            return False
        return keep(g, f"tf.concat([{x.name}, {y.name}], {axis})", x, shape, y)
    if 2 * x.size > MOST_ELEMENTS:
        return False
    return keep(g, f"tf.stack([{x.name}, {x.name}], {axis})", x, [*x.shape[:axis], 2, *x.shape[axis:]])


def broadcast(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) < 4)
    if x is None:
        return False
    shape = [draw(st.sampled_from(DIMS)), *(draw(st.sampled_from(DIMS)) if n == 1 else n for n in x.shape)]
    if math.prod(shape) > MOST_ELEMENTS:
        return False
    return keep(g, f"tf.broadcast_to({x.name}, {shape})", x, shape)


def roll(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.size > 0)
    if x is None:
        return False
    axis = draw(st.integers(0, len(x.shape) - 1))
    return keep(g, f"tf.roll({x.name}, {draw(st.integers(-3, 3))}, {axis})", x, x.shape)


def reduce(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.size > 0)
    if x is None:
        return False
    axes = draw(st.lists(st.integers(0, len(x.shape) - 1), min_size=1, max_size=len(x.shape), unique=True))
    shape = [n for d, n in enumerate(x.shape) if d not in axes]
    n = math.prod(x.shape[d] for d in axes)
    if x.dtype == "bool":
        g.emit(f"tf.reduce_{draw(st.sampled_from(['any', 'all']))}({x.name}, {axes})", [x], shape, "bool")
    elif not x.floating:
        g.emit(
            f"tf.reduce_{draw(st.sampled_from(['sum', 'max', 'min', 'prod']))}({x.name}, {axes})", [x], shape, x.dtype
        )
    else:
        op = draw(st.sampled_from(["sum", "mean", "max", "min", "logsumexp"]))
        if op == "sum":
            # Either order of the additions is right.
            err = n * x.err + (
                0 if x.exact and n * x.bound / x.unit <= EXACT_BITS[x.dtype] else n * n * x.bound * FLOATS[x.dtype]
            )
            if n * x.bound > 30000:
                return False
            g.emit(f"tf.reduce_sum({x.name}, {axes})", [x], shape, x.dtype, n * x.bound, err, x.unit)
        elif op == "mean":
            err = x.err + (n + 1) * x.bound * FLOATS[x.dtype]
            if n * x.bound > 30000:
                return False
            g.emit(f"tf.reduce_mean({x.name}, {axes})", [x], shape, x.dtype, x.bound, err)
        elif op == "logsumexp":
            err = x.err + (n + x.bound) * 4 * FLOATS[x.dtype]
            g.emit(f"tf.reduce_logsumexp({x.name}, {axes})", [x], shape, x.dtype, x.bound + math.log(n), err)
        else:
            g.emit(f"tf.reduce_{op}({x.name}, {axes})", [x], shape, x.dtype, x.bound, x.err, x.unit)
    return True


def argmax(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.size > 0 and v.exact and v.dtype != "bool")
    if x is None:
        return False
    axis = draw(st.integers(0, len(x.shape) - 1))
    op, dtype = draw(st.sampled_from(["argmax", "argmin"])), draw(st.sampled_from(["int32", "int64"]))
    shape = [n for d, n in enumerate(x.shape) if d != axis]
    g.emit(f"tf.{op}({x.name}, {axis}, output_type='{dtype}')", [x], shape, dtype)
    return True


def product_bounds(x, y, n):
    """(bound, err, unit) of a sum of n products; None if it could overflow."""
    bound = n * x.bound * y.bound
    if bound > 30000:
        return None
    err = n * (x.err * y.bound + y.err * x.bound)
    unit = x.unit * y.unit
    if err or bound / unit > EXACT_BITS[x.dtype]:
        err += max(n, 1) * bound * FLOATS[x.dtype]
    return bound, err, unit


EINSUMS = (
    "ab,bc->ac", "ab,cb->ac", "ab,bc->ca", "ba,bc->ac", "abc,cd->abd", "abc,dbc->ad", "abc,abd->acd", "abc,adc->abd",
    "abcd,cde->abe", "abcd,abed->abce", "a,b->ab", "ab,ab->a", "ab,ab->", "ab,ab->b", "abc,ac->b",
)  # fmt: skip


def dot(draw, g):
    spec = draw(st.sampled_from(EINSUMS))
    left, right = spec.split("->")[0].split(",")
    x = some(draw, g, lambda v: v.dtype in ("float32", "float16", "int32") and len(v.shape) == len(left), len(left))
    size = dict(zip(left, x.shape, strict=True))
    for c in right:
        size.setdefault(c, draw(st.sampled_from(DIMS)))
    shape = tuple(size[c] for c in right)
    y = pick(draw, g, lambda v: v.dtype == x.dtype and v.shape == shape) if draw(st.booleans()) else None
    out = tuple(size[c] for c in spec.split("->")[1])
    if math.prod(out) > MOST_ELEMENTS or math.prod(shape) > MOST_ELEMENTS or math.prod(size.values()) > 1 << 20:
        return False
    y = y or g.param(draw, shape, x.dtype)
    code = f"tf.einsum('{spec}', {x.name}, {y.name})"
    if not x.floating:
        g.emit(code, [x, y], out, x.dtype)
        return True
    found = product_bounds(x, y, math.prod(n for c, n in size.items() if c not in spec.split("->")[1]))
    if found is None:
        return False
    g.emit(code, [x, y], out, x.dtype, *found)
    return True


def conv(draw, g):
    rank = draw(st.sampled_from([3, 4, 4]))
    x = some(draw, g, lambda v: v.dtype in ("float32", "float16") and len(v.shape) == rank and v.size > 0, rank)
    nd = len(x.shape) - 2
    batch, ins, channels = x.shape[0], x.shape[1:-1], x.shape[-1]
    groups = draw(st.sampled_from([1, 1, *(d for d in (2, 3, 4, channels) if channels % d == 0)]))
    of_batch = draw(st.sampled_from([1, 1, *(d for d in (2, 3) if groups == 1 and batch % d == 0)]))
    outs = groups * of_batch * draw(st.sampled_from([1, 2, 3, 8]))
    taps = [draw(st.integers(1, min(4, n + 1))) for n in ins]
    stride = [draw(st.integers(1, 3)) for _ in ins]
    base = [draw(st.sampled_from([1, 1, 2, 3])) for _ in ins]
    dilation = [draw(st.sampled_from([1, 1, 2])) for _ in ins]
    pads = [[draw(st.integers(-1, 3)), draw(st.integers(-1, 3))] for _ in ins]
    spatial = []
    for n, k, s, b, d, (low, high) in zip(ins, taps, stride, base, dilation, pads, strict=True):
        spatial.append((n - 1) * b + 1 + low + high - ((k - 1) * d + 1))
        if spatial[-1] < 0 or (n - 1) * b + 1 + min(low, 0) + min(high, 0) < 1:
            return False
        spatial[-1] = spatial[-1] // s + 1
    out = (batch // of_batch, *spatial, outs)
    if math.prod(out) > MOST_ELEMENTS or math.prod(taps) * channels // groups * outs > MOST_ELEMENTS:
        return False
    w = g.param(draw, (*taps, channels // groups, outs), x.dtype)
    found = product_bounds(x, w, math.prod(taps) * channels // groups)
    if found is None:
        g.params.pop()
        g.values.pop()
        return False
    code = f"conv({x.name}, {w.name}, {stride}, {pads}, {base}, {dilation}, {groups}, {of_batch})"
    g.emit(code, [x, w], out, x.dtype, *found)
    return nd > 0


def pool(draw, g):
    x = some(draw, g, lambda v: v.floating and len(v.shape) == 4 and v.size > 0, 4)
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    taps = [draw(st.integers(1, min(3, n))) for n in x.shape[1:3]]
    stride = [draw(st.integers(1, 3)) for _ in taps]
    shape = [
        -(-n // s) if padding == "SAME" else -(-(n - k + 1) // s)
        for n, k, s in zip(x.shape[1:3], taps, stride, strict=True)
    ]
    shape = [x.shape[0], *shape, x.shape[3]]
    kind = draw(st.sampled_from(["max", "avg", "gradient"]))
    if kind == "gradient" and x.exact and x.bound / x.unit * (x.size + 1) < EXACT_BITS[x.dtype]:
        g.emit(f"max_pool_gradient({x.name}, {x.unit}, {taps}, {stride}, '{padding}')", [x], x.shape, x.dtype, 54.0)
    elif kind == "max":
        g.emit(
            f"tf.nn.max_pool2d({x.name}, {taps}, {stride}, '{padding}')", [x], shape, x.dtype, x.bound, x.err, x.unit
        )
    else:
        err = x.err + 12 * x.bound * FLOATS[x.dtype]
        g.emit(f"tf.nn.avg_pool2d({x.name}, {taps}, {stride}, '{padding}')", [x], shape, x.dtype, x.bound, err)
    return True


def gather(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.size > 0)
    if x is None:
        return False
    axis = draw(st.integers(0, len(x.shape) - 1))
    where = [draw(st.sampled_from(DIMS)) for _ in range(draw(st.integers(0, 2)))]
    shape = [*x.shape[:axis], *where, *x.shape[axis + 1 :]]
    if math.prod(shape) > MOST_ELEMENTS or x.shape[axis] > 900:
        return False
    index = g.param(draw, where, draw(st.sampled_from(["int32", "int64"])), x.shape[axis])
    keep(g, f"tf.gather({x.name}, {index.name}, axis={axis})", x, shape)
    g.used.add(index.name)
    return True


def scatter(draw, g):
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.size > 0 and v.dtype in ("float32", "int32") and v.exact)
    if x is None:
        return False
    n = draw(st.sampled_from(DIMS))
    shape = (n, *x.shape[1:])
    if math.prod(shape) > MOST_ELEMENTS or x.shape[0] * x.bound > 30000:
        return False
    index = g.param(draw, x.shape[:1], "int32", n)
    bound, unit = x.shape[0] * x.bound, x.unit
    err = 0 if not x.floating or bound / unit <= EXACT_BITS["float32"] else x.shape[0] * bound * FLOATS["float32"]
    g.emit(f"tf.math.unsorted_segment_sum({x.name}, {index.name}, {n})", [x, index], shape, x.dtype, bound, err, unit)
    return True


def along_a_line(draw, g):
    """Sorts, running sums, one-hot rows, the batched gather of a row each."""
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.size > 0 and v.dtype != "bool")
    if x is None:
        return False
    axis = draw(st.integers(0, len(x.shape) - 1))
    kind = draw(st.sampled_from(["sort", "cumsum", "one hot", "take along"]))
    if kind == "sort":
        return keep(g, f"tf.sort({x.name}, {axis})", x, x.shape)
    if kind == "one hot" and not x.floating and 7 * x.size <= MOST_ELEMENTS:
        index = f"tf.bitwise.bitwise_and({x.name}, tf.constant(7, '{x.dtype}'))"
        g.emit(f"tf.one_hot(tf.cast({index}, 'int32'), 7)", [x], (*x.shape, 7), "float32", 1.0)
        return True
    if kind == "take along" and len(x.shape) > 1 and x.shape[-1] < 900:
        index = g.param(draw, (*x.shape[:-1], 2), "int32", x.shape[-1])
        keep(g, f"tf.gather({x.name}, {index.name}, batch_dims={len(x.shape) - 1})", x, (*x.shape[:-1], 2))
        g.used.add(index.name)
        return True
    n = x.shape[axis]
    if kind != "cumsum" or x.dtype not in ("int32", "int64", "float32") or n * x.bound > 30000:
        return False
    exact = not x.floating or (x.exact and n * x.bound / x.unit <= EXACT_BITS[x.dtype])
    err = n * x.err + (0 if exact else n * n * x.bound * FLOATS[x.dtype])
    g.emit(f"tf.cumsum({x.name}, {axis})", [x], x.shape, x.dtype, n * x.bound, err, x.unit)
    return True


def softmax(draw, g):
    x = pick(draw, g, lambda v: v.floating and len(v.shape) > 0 and v.size > 0)
    if x is None:
        return False
    axis = draw(st.integers(0, len(x.shape) - 1))
    n = x.shape[axis]
    if draw(st.booleans()):
        err = 2 * x.err + (8 + n + 2 * x.bound) * FLOATS[x.dtype]
        g.emit(f"tf.nn.softmax({x.name}, {axis})", [x], x.shape, x.dtype, 1.0, err)
    else:
        err = 2 * x.err + (8 + n + 4 * x.bound) * FLOATS[x.dtype]
        g.emit(f"tf.nn.log_softmax({x.name}, {axis})", [x], x.shape, x.dtype, 2 * x.bound + math.log(n), err)
    return True


def clamp(draw, g):
    """Bounds of the whole shape or scalars, in any order."""
    x = pick(draw, g, lambda v: v.dtype != "bool" and v.dtype != "float16")
    if x is None:
        return False
    low = pick(draw, g, lambda v: v.dtype == x.dtype and v.shape in (x.shape, ())) or x
    high = pick(draw, g, lambda v: v.dtype == x.dtype and v.shape in (x.shape, ())) or x
    err = max(x.err, low.err, high.err)
    keep(g, f"tf.minimum(tf.maximum({x.name}, {low.name}), {high.name})", x, x.shape, low, high)
    g.values[-1].err = max(g.values[-1].err, err)
    return True


def bits(draw, g):
    """The bits of integers, read as others of the same width or half of it."""
    x = pick(draw, g, lambda v: v.dtype in INTS)
    if x is None or x.size * 8 > MOST_ELEMENTS:
        return False
    dtype = draw(st.sampled_from(INTS))
    wide, narrow = np.dtype(x.dtype).itemsize, np.dtype(dtype).itemsize
    if narrow > wide:
        return False
    shape = x.shape if wide == narrow else (*x.shape, wide // narrow)
    g.emit(f"tf.bitcast({x.name}, '{dtype}')", [x], shape, dtype)
    return True


def window(draw, g):
    """reduce-window: one operation or a longer region, dilations, padding of both signs, a start at run time."""
    x = pick(draw, g, lambda v: 0 < len(v.shape) < 5 and v.size > 0 and v.dtype in ("float32", "int32"))
    if x is None:
        return False
    taps, stride, base, dilation, pads, shape = [], [], [], [], [], []
    for n in x.shape:
        taps.append(draw(st.sampled_from([1, 1, 2, 3, n])))
        stride.append(draw(st.sampled_from([1, 1, 2, 3])))
        base.append(draw(st.sampled_from([1, 1, 1, 2])))
        dilation.append(draw(st.sampled_from([1, 1, 2])))
        pads.append([draw(st.integers(-1, 3)), draw(st.integers(-1, 3))])
        room = (n - 1) * base[-1] + 1 + sum(pads[-1]) - ((taps[-1] - 1) * dilation[-1] + 1)
        if room < 0 or (n - 1) * base[-1] + 1 + min(pads[-1][0], 0) + min(pads[-1][1], 0) < 1:
            return False
        shape.append(room // stride[-1] + 1)
    count = math.prod(taps)
    kind = draw(st.sampled_from(["sum", "largest", "smallest", "farthest"]))
    if math.prod(shape) > MOST_ELEMENTS or count * math.prod(shape) > 1 << 18 or (kind == "farthest" and count > 40):
        return False
    start = pick(draw, g, lambda v: v.shape == () and v.dtype == x.dtype and v.exact) if kind != "sum" else None
    if kind == "sum" and (count * x.bound > 30000 or not x.exact):
        return False
    bound, err, unit = x.bound, x.err, x.unit
    if kind == "sum":
        bound, first = count * x.bound, f"tf.constant(0, '{x.dtype}')"
        err = 0 if not x.floating or bound / unit <= EXACT_BITS[x.dtype] else count * bound * FLOATS[x.dtype]
    else:
        far = {"largest": -1000, "smallest": 1000, "farthest": 0}[kind] if x.floating else 0
        if not x.floating:
            far = np.iinfo("int32").min if kind == "largest" else np.iinfo("int32").max
        first = f"tf.constant({far}, '{x.dtype}')"
        if start is not None and kind != "farthest":
            first = f"tf.{'min' if kind == 'largest' else 'max'}imum({start.name}, {far})"
        bound = 1000.0 if any(sum(p) > 0 for p in pads) or max(base) > 1 or min(min(p) for p in pads) < 0 else bound
    if kind == "farthest" and (not x.floating or count == 1):
        return False  # the magnitude of the least integer wraps; XLA leaves the region out for windows of one element
    args = f"{taps}, {stride}, {base}, {dilation}, {pads}, '{kind}'"
    g.emit(f"windows({x.name}, {first}, {args})", [x, *([start] if start else [])], shape, x.dtype, bound, err, unit)
    return True


def select_scatter(draw, g):
    """select-and-scatter of values without ties, padded, from a start at run time."""
    x = pick(draw, g, lambda v: 0 < len(v.shape) < 4 and 0 < v.size < 300 and v.dtype == "float32" and v.exact)
    if x is None or x.bound / x.unit * (x.size + 1) > EXACT_BITS["float32"]:
        return False
    taps = [draw(st.integers(1, min(3, n))) for n in x.shape]
    stride = [draw(st.integers(1, 3)) for _ in taps]
    pads = [[draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))] for k in taps]
    shape = [(n + sum(p) - k) // s + 1 for n, k, s, p in zip(x.shape, taps, stride, pads, strict=True)]
    source = g.param(draw, shape, "float32")
    start = pick(draw, g, lambda v: v.shape == () and v.dtype == "float32" and v.exact)
    first = start.name if start is not None else "0.0"
    far = draw(st.booleans())
    code = f"select_scatter({x.name}, {source.name}, {first}, {x.unit}, {taps}, {stride}, {pads}, {far})"
    most, unit = (start.bound, start.unit) if start is not None else (0.0, 1.0)
    g.emit(code, [x, source, *([start] if start else [])], x.shape, "float32", most + 54.0, 0.0, min(unit, source.unit))
    return True


def two_reduced(draw, g):
    """A reduction of two operands at once, from start values known only at run time.

    The start values change nothing: XLA leaves them out where there is one element to reduce.
    """
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.size > 0 and v.dtype == "int32")
    y = pick(draw, g, lambda v: x is not None and v.shape == x.shape and v.dtype in ("float32", "int32"))
    start = pick(draw, g, lambda v: v.shape == () and y is not None and v.dtype == y.dtype)
    if start is None:
        return False
    axes = draw(st.lists(st.integers(0, len(x.shape) - 1), min_size=1, max_size=len(x.shape), unique=True))
    shape = [n for d, n in enumerate(x.shape) if d not in axes]
    code = f"two_reduced({x.name}, {y.name}, {start.name}, {axes})"
    g.emit(f"{code}[0]", [x, y, start], shape, "int32")
    keep(g, f"{code}[1]", y, shape)
    g.used.add(start.name)
    return True


def sort_two(draw, g):
    """The places that a stable sort gives, and a partner that moves along; top-k of integers."""
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.size > 0 and v.dtype != "bool" and v.exact)
    if x is None:
        return False
    axis = draw(st.integers(0, len(x.shape) - 1))
    if not x.floating and draw(st.booleans()):
        k = draw(st.integers(1, x.shape[-1]))
        part = draw(st.sampled_from(["values", "indices"]))
        dtype = x.dtype if part == "values" else "int32"
        if x.dtype != "int32":
            return False
        g.emit(f"tf.math.top_k({x.name}, {k}).{part}", [x], (*x.shape[:-1], k), dtype)
        return True
    y = pick(draw, g, lambda v: v.shape == x.shape and v.dtype != "bool")
    return keep(g, f"sort_two({x.name}, {y.name}, {axis})", y, x.shape, y)


def number(draw, g, below):
    """A scalar s32 below a bound, known only at run time."""
    return g.param(draw, (), "int32", below)


def dynamic(draw, g):
    """dynamic-slice and dynamic-update-slice; inside, as XLA on the CPU forgets to clamp where it slices a roll."""
    x = pick(draw, g, lambda v: len(v.shape) > 0 and v.size > 0)
    if x is None:
        return False
    sizes = [draw(st.integers(0 if n > 3 else 1, n)) for n in x.shape]
    axis = draw(st.integers(0, len(x.shape) - 1))
    at = number(draw, g, x.shape[axis] - sizes[axis] + 1)
    starts = f"tf.stack([{', '.join(at.name if d == axis else '0' for d in range(len(x.shape)))}])"
    g.used.add(at.name)
    if draw(st.booleans()):
        return keep(g, f"xla_ops.xla_dynamic_slice({x.name}, {starts}, {sizes})", x, sizes)
    part = g.param(draw, sizes, x.dtype)
    return keep(g, f"xla_ops.xla_dynamic_update_slice({x.name}, {part.name}, {starts})", x, x.shape, part)


def table(draw, g):
    """gather and scatter by indices of several components; updates meet in order."""
    x = pick(draw, g, lambda v: len(v.shape) > 1 and v.size > 0 and v.dtype in ("float32", "int32") and v.exact)
    if x is None:
        return False
    parts = draw(st.integers(1, len(x.shape)))
    n = draw(st.sampled_from([1, 2, 3, 8, 16]))
    index = g.param(draw, (n, parts), "int32", min(x.shape[:parts]))
    shape = (n, *x.shape[parts:])
    if math.prod(shape) > MOST_ELEMENTS:
        return False
    g.used.add(index.name)
    kind = draw(st.sampled_from(["gather", "add", "sub", "max", "min", "update"]))
    if kind == "gather":
        return keep(g, f"tf.gather_nd({x.name}, {index.name})", x, shape)
    part = g.param(draw, shape, x.dtype)
    code = f"tf.tensor_scatter_nd_{kind}({x.name}, {index.name}, {part.name})"
    keep(g, code, x, x.shape, part)
    if x.floating and kind in ("add", "sub"):
        most = g.values[-1]
        most.bound = x.bound + n * part.bound
        if most.bound > 60 or most.bound / most.unit > EXACT_BITS[x.dtype]:
            most.err = n * most.bound * FLOATS[x.dtype]
    return True


def loop(draw, g):
    """while: its trips known or not, none too; states that change, stay, change places."""
    x = pick(draw, g, lambda v: v.dtype != "bool" and v.size > 0)
    if x is None:
        return False
    trips = draw(st.integers(0, 4))
    bound = str(trips)
    if draw(st.booleans()):
        n = number(draw, g, trips + 1)
        g.used.add(n.name)
        bound = n.name
    kind = draw(st.sampled_from(["negate", "tanh", "swap", "count"]))
    if kind == "negate":
        return keep(
            g, f"tf.while_loop(lambda i, a: i < {bound}, lambda i, a: (i + 1, 0 - a), [0, {x.name}])[1]", x, x.shape
        )
    if kind == "tanh" and x.floating:
        code = f"tf.while_loop(lambda i, a: i < {bound}, lambda i, a: (i + 1, tf.tanh(a)), [0, {x.name}])[1]"
        g.emit(code, [x], x.shape, x.dtype, max(x.bound, 1.0), x.err + 4 * (trips + 1) * FLOATS[x.dtype])
        return True
    if kind == "count" and not x.floating:
        step = f"a + tf.cast(i, '{x.dtype}')"
        code = f"tf.while_loop(lambda i, a: i < {bound}, lambda i, a: (i + 1, {step}), [0, {x.name}])[1]"
        g.emit(code, [x], x.shape, x.dtype)
        return True
    y = pick(draw, g, lambda v: v.shape == x.shape and v.dtype == x.dtype)
    code = f"tf.while_loop(lambda i, a, b: i < {bound}, lambda i, a, b: (i + 1, b, a), [0, {x.name}, {y.name}])[1]"
    return keep(g, code, x, x.shape, y)


def branch(draw, g):
    """Conditionals of two branches and of more, the index also beyond the last."""
    x = pick(draw, g, lambda v: v.dtype != "bool")
    if x is None:
        return False
    y = pick(draw, g, lambda v: v.shape == x.shape and v.dtype == x.dtype)
    at = number(draw, g, 5)
    g.used.add(at.name)
    n = draw(st.integers(1, 4))
    bodies = [x.name, y.name, f"0 - {x.name}", f"tf.maximum({x.name}, {y.name})"][:n]
    if draw(st.booleans()):
        code = f"tf.cond({at.name} > 2, lambda: {bodies[-1]}, lambda: {bodies[0]})"
    else:
        code = f"tf.switch_case({at.name}, [{', '.join(f'lambda: {b}' for b in bodies)}])"
    return keep(g, f"tf.identity({code})", x, x.shape, y)


def random_bits(draw, g):
    """Philox with a key that is known, or known only at run time."""
    shape = draw(st.lists(st.sampled_from(DIMS), max_size=3))
    if math.prod(shape) > MOST_ELEMENTS:
        return False
    dtype = draw(st.sampled_from(["int32", "uint32", "int64", "uint64"]))
    seed = g.param(draw, (2,), "int32")
    g.emit(f"tf.random.stateless_uniform({shape}, {seed.name}, None, None, '{dtype}')", [seed], shape, dtype)
    return True


def numbers(draw, g):
    """iota along a dimension, and a diagonal."""
    n, m = draw(st.sampled_from(DIMS)), draw(st.sampled_from(DIMS))
    x = pick(draw, g, lambda v: v.shape[-1:] == (n,) and v.dtype == "int32")
    if x is not None:
        g.emit(f"{x.name} + tf.range({n})", [x], x.shape, "int32")
        return True
    y = pick(
        draw, g, lambda v: len(v.shape) > 0 and v.size > 0 and v.dtype == "float32" and v.size * m <= MOST_ELEMENTS
    )
    if y is None:
        return False
    k = y.shape[-1]
    return (
        keep(
            g, f"tf.where(tf.eye({k}, dtype='bool'), {y.name}[..., None, :], {y.name}[..., :, None])", y, (*y.shape, k)
        )
        if (y.size * k <= MOST_ELEMENTS)
        else False
    )


OPS = [unary, unary, binary, binary, compare_and_select, convert, reshape, reshape, transpose, transpose, transpose,
       cut, cut, pad, concat, broadcast, roll, reduce, reduce, reduce, argmax, dot, dot, dot, conv, conv, pool, pool,
       gather, scatter, softmax, along_a_line, along_a_line, clamp, bits, window, window, select_scatter, two_reduced,
       two_reduced, sort_two, sort_two, dynamic, dynamic, table, table, loop, loop, branch, branch, random_bits,
       numbers]  # fmt: skip


@st.composite
def graphs(draw):
    tiles = draw(st.one_of(st.sampled_from([1, 2, 3, 7, 16, 64, 333, 1472]), st.integers(1, 1472)))
    g = Drawn(tiles)
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(st.sampled_from(DIMS), max_size=4))
        if draw(st.integers(0, 19)) == 0 and shape:
            shape[draw(st.integers(0, len(shape) - 1))] = 0
        while math.prod(shape) > MOST_ELEMENTS:
            shape.pop()
        dtype = draw(st.sampled_from(["float32"] * 10 + ["float16"] * 3 + ["int32"] * 2 + ["bool", *INTS]))
        g.param(draw, shape, dtype)
    wanted = draw(st.sampled_from([1, 3, 6, 9, 12, 14, 16, 18, 20]))
    for _ in range(3 * wanted):
        if len(g.lines) >= wanted:
            break
        draw(st.sampled_from(OPS))(draw, g)
    if not g.lines:
        x = g.values[0]
        keep(g, f"tf.identity({x.name})", x, x.shape)
    return g


def functions():
    """What the lines call: HLO's own pad and convolution, which TensorFlow does not show."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops
    from tensorflow.compiler.xla import xla_data_pb2

    def conv(x, w, stride, pads, base, dilation, groups, of_batch):
        nd = len(stride)
        n = xla_data_pb2.ConvolutionDimensionNumbers(
            input_batch_dimension=0, input_feature_dimension=nd + 1, input_spatial_dimensions=range(1, nd + 1),
            kernel_input_feature_dimension=nd, kernel_output_feature_dimension=nd + 1,
            kernel_spatial_dimensions=range(nd), output_batch_dimension=0, output_feature_dimension=nd + 1,
            output_spatial_dimensions=range(1, nd + 1),
        )  # fmt: skip
        return gen_xla_ops.xla_conv_v2(
            lhs=x, rhs=w, window_strides=stride, padding=pads, lhs_dilation=base, rhs_dilation=dilation,
            feature_group_count=groups, dimension_numbers=n.SerializeToString(), precision_config="",
            preferred_element_type=x.dtype, batch_group_count=of_batch,
        )  # fmt: skip

    def region(fn, dtype, *more):
        specs = [tf.TensorSpec((), d) for d in ((dtype, dtype) if not more else (dtype, *more))]
        return tf.function(fn, input_signature=specs).get_concrete_function()

    def windows(x, start, taps, stride, base, dilation, pads, kind):
        fn = {
            "sum": lambda a, b: a + b, "largest": tf.maximum, "smallest": tf.minimum,
            "farthest": lambda a, b: tf.maximum(tf.abs(a), tf.abs(b)),
        }[kind]  # fmt: skip
        sizes = (tf.constant(v) for v in (taps, stride, base, dilation, pads))
        return gen_xla_ops.xla_reduce_window(x, start, *sizes, computation=region(fn, x.dtype))

    def select_scatter(x, source, start, unit, taps, stride, pads, far):
        size = x.shape.num_elements()
        x = x * (size / unit) + tf.cast(tf.reshape(tf.range(size), x.shape), x.dtype)
        factor = 2 if far else 1
        better = region(lambda a, b: a * factor >= b * factor, x.dtype)
        return gen_xla_ops.xla_select_and_scatter(
            x, *(tf.constant(v) for v in (taps, stride, pads)), source, start, better,
            region(lambda a, b: a + b, x.dtype),
        )  # fmt: skip

    def two_reduced(x, y, start, axes):
        fn = region(lambda a, b, c, d: (a + c, tf.maximum(b, d)), x.dtype, y.dtype, x.dtype, y.dtype)
        least = tf.minimum(start, y.dtype.min if y.dtype.is_integer else -30000.0)
        return gen_xla_ops.xla_variadic_reduce_v2([x, y], [tf.size(start) - 1, least], axes, fn)

    def sort_two(x, y, axis):
        less = region(lambda a, b, c, d: a < b, x.dtype, x.dtype, y.dtype, y.dtype)
        return gen_xla_ops.xla_variadic_sort([x, y], tf.constant(axis), less, is_stable=True)[1]

    return {
        "tf": tf, "conv": conv, "pad": gen_xla_ops.xla_pad, "max_pool_gradient": max_pool_gradient,
        "windows": windows, "select_scatter": select_scatter, "two_reduced": two_reduced, "sort_two": sort_two,
        "xla_ops": gen_xla_ops, "fewer_bits": lambda x: gen_xla_ops.xla_reduce_precision(x, 5, 4),
        "cbrt": lambda x: tf.pow(x, 1 / 3),
    }  # fmt: skip


def max_pool_gradient(x, unit, taps, stride, padding):
    """Of values without ties: which of two equal elements wins is not defined, and XLA's choice varies."""
    import tensorflow as tf

    ramp = tf.reshape(tf.range(x.shape.num_elements()), x.shape)
    x = x * (x.shape.num_elements() / unit) + tf.cast(ramp, x.dtype)
    y = tf.nn.max_pool2d(x, taps, stride, padding)
    dy = tf.reshape(tf.range(y.shape.num_elements()) % 7, y.shape)
    return tf.raw_ops.MaxPoolGrad(
        orig_input=x, orig_output=y, grad=tf.cast(dy, x.dtype), ksize=[1, *taps, 1], strides=[1, *stride, 1],
        padding=padding,
    )  # fmt: skip


def function_of(graph):
    space = functions()
    exec(graph.source(), space)
    return space["f"]


def compare(graph):
    """Run on both and assert that the outputs agree to what rounding allows."""
    from ipu_keras.target import Target

    target = Target("random", tiles=graph.tiles, bytes_per_tile=1 << 24)
    ours, theirs = run_both(function_of(graph), *arrays(graph), target=target)
    infos = graph.infos()
    assert len(ours) == len(theirs) == len(infos)
    for info, a, b in zip(infos, ours, theirs, strict=True):
        assert a.shape == b.shape == info.shape and a.dtype == b.dtype == np.dtype(info.dtype), info
        if info.exact:
            np.testing.assert_array_equal(a, b, err_msg=str(info))
        else:
            np.testing.assert_allclose(a.astype(np.float64), b, rtol=0, atol=4 * info.err, err_msg=str(info))


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True,
    derandomize="IPU_RANDOM_GRAPHS" not in os.environ,
)  # fmt: skip
@given(graphs())
def test_random_graphs_give_what_xla_gives(graph):
    note(graph.source())
    compare(graph)
