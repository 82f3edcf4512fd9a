"""The C600's 8-bit floats on the tiles: every code, every rounding, and products replayed in the order of their plans.

Oracles: `ml_dtypes` and `gfloat` for codes, exact sums in float64 (or of whole numbers) for products.
"""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import hlo
from ipu_keras.compiler import compile_module
from ipu_keras.compiler.layout import even
from ipu_keras.errors import ExecutableFormatError, UnsupportedError
from ipu_keras.frontend import quarters
from ipu_keras.ops.f8_ops import Format, create_metadata
from ipu_keras.target import TARGETS, Target
from ipu_runtime.codelets import amp_model, quarter, registry
from ipu_runtime.program import GroupView
from ipu_runtime.validate import validate
from tests.harness import hlo_of
from tests.ops.replay import added, blocks

rng = np.random.default_rng(8)
BLOCK = 32  # input channels of an fp8 AMP block
KINDS = {Format.F143: ml_dtypes.float8_e4m3fnuz, Format.F152: ml_dtypes.float8_e5m2fnuz}
FORMATS = list(Format)
SCALES = (-32, -14, -3, 0, 1, 8, 31)
CODES = np.arange(256, dtype=np.uint8)
HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)


def target(tiles=16):
    return Target("few", tiles=tiles, bytes_per_tile=1 << 20, fp8_in_fp16_out_conv_units=16)


def byte(fmt, scale=0):
    return np.array(create_metadata(fmt, scale), np.uint8)


def values(codes, fmt, scale=0):
    """Of codes, exactly: float64."""
    return codes.view(KINDS[fmt]).astype(np.float64) * 2.0**scale


def same_bits(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_array_equal(a.view(f"u{a.dtype.itemsize}"), b.view(f"u{b.dtype.itemsize}"))


def nearest(halves, fmt, scale, nan_if_large=False):
    """The codes that ml_dtypes rounds fp16 values to, and the chip's rule for what is too large."""
    with np.errstate(all="ignore"):
        exact = halves.astype(np.float32) * np.float32(2.0**-scale)
        codes = exact.astype(KINDS[fmt]).view(np.uint8)
    if not nan_if_large:
        large = (codes == 0x80) & np.isfinite(halves)
        codes = np.where(large, np.where(halves < 0, 0xFF, 0x7F), codes).astype(np.uint8)
    return codes


@pytest.fixture(scope="module")
def cast():
    """Casts on the tiles; format and scale are data."""
    programs = {}

    def run(op, array, metadata):
        key = op, array.shape
        if key not in programs:
            programs[key] = compile_module(hlo_of(getattr(quarters, op), array, metadata)[0], target=target())
        return programs[key].run(array, metadata)[0]

    return run


# ---- casts ----


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_code_is_what_the_formats_definition_says(fmt):
    bits, bias, largest = (3, 8, 240.0) if fmt == Format.F143 else (2, 16, 57344.0)
    found = values(CODES, fmt)
    for code in range(256):
        exponent, fraction = (code & 127) >> bits, (code & 127) % (1 << bits) / (1 << bits)
        size = (fraction + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)
        assert np.isnan(found[code]) if code == 0x80 else found[code] == (-size if code > 0x80 else size)
    assert np.nanmax(found) == largest and np.isnan(found).sum() == 1 and np.isinf(found).sum() == 0


@pytest.mark.parametrize("fmt", FORMATS)
def test_gfloat_has_the_same_codes(fmt):
    gfloat = pytest.importorskip("gfloat", reason="the second oracle")
    info = _gfloat(fmt)
    np.testing.assert_array_equal(gfloat.decode_ndarray(info, CODES), values(CODES, fmt))


def _gfloat(fmt):
    from gfloat import Domain, FormatInfo

    return FormatInfo(
        str(fmt), 8, 4 if fmt == Format.F143 else 3, bias=8 if fmt == Format.F143 else 16, is_signed=True,
        domain=Domain.Finite, has_nz=False, num_high_nans=0, has_subnormals=True, is_twos_complement=False,
    )  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("scale", SCALES)
def test_from_quarter(cast, fmt, scale):
    with np.errstate(over="ignore"):
        exact = values(CODES, fmt, scale).astype(np.float16)
    found = cast("from_quarter", CODES, byte(fmt, scale))
    number = ~np.isnan(exact)
    # What fp16 cannot hold is rounded, or overflows as fp16 does elsewhere.
    held = number & np.isfinite(exact)
    same_bits(found[held], exact[held])
    assert np.isnan(found[~number]).all() and (~number).sum() == 1
    assert (np.abs(found[number & ~held].astype(np.float64)) >= 65504).all()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("scale", SCALES)
def test_to_quarter_of_every_half(cast, fmt, scale):
    found = cast("to_quarter", HALVES, byte(fmt, scale))
    same_bits(found, nearest(HALVES, fmt, scale))
    assert (found[~np.isfinite(HALVES)] == 0x80).all() and found[HALVES == 0].max() == 0
    same_bits(quarter.convert_to_quarter(HALVES, byte(fmt, scale), True), nearest(HALVES, fmt, scale, True))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("scale", [0, -5])
def test_gfloat_rounds_alike(cast, fmt, scale):
    gfloat = pytest.importorskip("gfloat", reason="the second oracle")
    halves = HALVES[np.isfinite(HALVES)][::7]
    info = _gfloat(fmt)
    rounded = gfloat.round_ndarray(info, halves.astype(np.float64) * 2.0**-scale, sat=True)
    codes = gfloat.encode_ndarray(info, rounded + 0.0)
    same_bits(cast("to_quarter", halves, byte(fmt, scale)), codes.astype(np.uint8))


@pytest.mark.parametrize("fmt", FORMATS)
def test_quarters_survive_the_way_through_fp16(cast, fmt):
    # Scales at which fp16 holds every code.
    for scale in (-14, 8) if fmt == Format.F143 else (-7, 0):
        halves = cast("from_quarter", CODES, byte(fmt, scale))
        same_bits(cast("to_quarter", halves, byte(fmt, scale)), CODES)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("scale", [-4, 0, 2])
def test_random_fp32(fmt, scale):
    magnitudes = 2.0 ** rng.uniform(-26, 15.9, 3000)
    middles = np.sort(values(CODES[:128], fmt, scale))
    middles = (middles[1:] + middles[:-1]) / 2  # as near to one code as to the next
    with np.errstate(over="ignore"):
        beside = [np.nextafter(middles.astype(np.float16), np.float16(to)) for to in (0, np.inf)]
    some = np.concatenate([magnitudes, middles, *beside, [0, np.inf, np.nan]]).astype(np.float32)
    some = np.where(rng.random(some.size) < 0.5, -some, some).astype(np.float32)
    some = some[~(np.isfinite(some) & (np.abs(some) > 65504))]
    module, _ = hlo_of(lambda x, m: quarters.to_quarter(tf.cast(x, tf.float16), m), some, byte(fmt))
    (found,) = compile_module(module, target=target()).run(some, byte(fmt, scale))
    same_bits(found, nearest(some.astype(np.float16), fmt, scale))
    assert len(np.unique(found)) > 150


# ---- products ----


def random_codes(shape, fmt):
    """No NaN; of F152 a range whose products a double adds exactly in any order."""
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    if fmt == Format.F152:
        codes = (codes & 0x83) | (rng.integers(8, 24, shape) << 2).astype(np.uint8)
    return np.where(codes == 0x80, 0, codes).astype(np.uint8)


def planned(fn, *args, tiles=16):
    """The only result, the parts of the only product's plan, and how many stages add its partial sums."""
    exe = compile_module(hlo_of(fn, *args)[0], target=target(tiles))
    ((_, number),) = exe.program.header["products"]
    plan = exe.program.header["plans"][number]["plans"][0]
    parts, codelets = plan["parts"], exe.program.groups[:, 0].tolist()
    stages = codelets.count(registry.REDUCE)
    # What was planned is what is charged.
    group = exe.program.group(codelets.index(registry.QUARTER_PRODUCT))
    assert plan["vertex"] == registry.MODELS[registry.QUARTER_PRODUCT].cycles(group, target(tiles)).max()
    (out,) = exe.run(*args)
    return out, parts, stages


def product_of(a, b, scale, parts, stages):
    """The replay of [m, k] x [k, n]."""
    starts, stops = even(a.shape[1], parts["ic"], BLOCK)
    return added(
        [blocks([a[:, i : min(i + BLOCK, hi)] @ b[i : min(i + BLOCK, hi)] for i in range(lo, hi, BLOCK)], scale)
         for lo, hi in zip(starts.tolist(), stops.tolist(), strict=True)], stages,
    )  # fmt: skip


def finite_and_same(found, exact):
    assert np.isfinite(found).all()
    same_bits(found + np.float16(0), exact + np.float16(0))


# (m, k, n, tiles), formats and scales of both; the scales keep sums in the range of fp16.
F1, F2 = FORMATS
PRODUCTS = [
    (48, 160, 40, 4, F1, F1, -6, -2), (7, 33, 5, 16, F1, F1, 0, -9), (8, 800, 16, 16, F2, F2, -12, -5),
    (3, 2000, 24, 16, F1, F2, -4, -9), (4, 8000, 8, 64, F1, F1, -5, -5), (1, 70, 1, 2, F2, F1, -8, -2),
    (64, 200, 3, 8, F1, F1, -31, 22),
]  # fmt: skip


@pytest.mark.parametrize(("m", "k", "n", "tiles", "left", "right", "one", "other"), PRODUCTS)
def test_product(m, k, n, tiles, left, right, one, other):
    a, b = random_codes((m, k), left), random_codes((k, n), right)
    found, parts, stages = planned(quarters.dot, a, b, byte(left, one), byte(right, other), tiles=tiles)
    x, w = values(a, left), values(b, right)
    finite_and_same(found, product_of(x, w, one + other, parts, stages))
    if k > 100:
        assert (found != (x @ w * 2.0 ** (one + other)).astype(np.float16)).any()


def test_the_shapes_cover_split_sums_and_both_orders():
    seen = set()
    for m, k, n, tiles, left, right, _, _ in PRODUCTS:
        args = np.zeros((m, k), np.uint8), np.zeros((k, n), np.uint8), byte(left), byte(right)
        program = compile_module(hlo_of(quarters.dot, *args)[0], target=target(tiles)).program
        codelets = program.groups[:, 0].tolist()
        group = program.group(codelets.index(registry.QUARTER_PRODUCT))
        # The rows of a vertex are the result's columns: then there are more of them than the result has rows.
        seen |= {("stages", codelets.count(registry.REDUCE)), ("swapped", int(group.col(2).max()) > m)}
    assert seen >= {("stages", 0), ("stages", 1), ("stages", 2), ("swapped", False), ("swapped", True)}


@pytest.mark.parametrize(("m", "k", "n"), [(3, 0, 4), (0, 5, 3), (3, 5, 0), (1, 1, 1), (7, 13, 11)])
def test_edge_shapes(m, k, n):
    a, b = random_codes((m, k), F1), random_codes((k, n), F1)
    module, _ = hlo_of(quarters.dot, a, b, byte(F1), byte(F1))
    (found,) = compile_module(module, target=target()).run(a, b, byte(F1, -2), byte(F1, -2))
    finite_and_same(found, (values(a, F1) @ values(b, F1) * 2.0**-4).astype(np.float16))


def test_groups():
    a, b = random_codes((3, 10, 100), F1), random_codes((3, 100, 12), F1)
    found, parts, stages = planned(quarters.dot, a, b, byte(F1, -4), byte(F1, -4))
    for i in range(3):
        finite_and_same(found[i], product_of(values(a[i], F1), values(b[i], F1), -8, parts, stages))


@pytest.mark.parametrize("swap", [False, True])
def test_operands_that_lie_the_other_way(swap):
    a, b = random_codes((24, 200), F1), random_codes((200, 20), F2)
    turned = [np.ascontiguousarray(v.T) for v in (a, b)]

    def size(codes):
        return tf.bitwise.bitwise_and(codes, 0x7F)

    def fn(x, y, p, q):
        # Changed first, so that they lie as they are stored.
        return quarters.dot(tf.transpose(size(x)) if swap else x, y if swap else tf.transpose(size(y)), p, q)

    args = (turned[0], b) if swap else (a, turned[1])
    found, parts, stages = planned(fn, *args, byte(F1, -5), byte(F2, -7))
    left, right = (a & 0x7F, b) if swap else (a, b & 0x7F)
    finite_and_same(found, product_of(values(left, F1), values(right, F2), -12, parts, stages))


# A block's sum that lies beside the middle of two fp16 numbers by less than fp32 (or a double) can say.
ONE, TINY, LARGE = 0x40, 0x01, 0x70  # F143: 1, 2^-10, 64


@pytest.mark.parametrize(("sign", "wanted"), [(0, 2050), (0x80, 2048), (None, 2048)])
@pytest.mark.parametrize("apart", [False, True])
def test_a_block_is_rounded_once(sign, wanted, apart):
    a, b = np.zeros((2, 1, 64), np.uint8)
    second = BLOCK if apart else 1
    for i in range(2):
        (a, b)[i][0, 0] = 0x70 if i else 0x68  # 64 x 32 = 2048
        (a, b)[i][0, second] = ONE
        (a, b)[i][0, second + 1] = TINY
    a[0, second + 1] = 0 if sign is None else TINY | sign
    found, parts, _ = planned(quarters.dot, a, np.ascontiguousarray(b.T), byte(F1), byte(F1), tiles=1)
    assert parts["ic"] == 1 and found.item() == wanted


@pytest.mark.parametrize(("sign", "wanted"), [(0, 32800), (0x80, 32768)])
def test_a_sum_beyond_the_bits_of_a_double_is_rounded_once(sign, wanted):
    # 2^15, then 2^4 + 2^-44: the middle of 32768 and 32800, and a little more or less.
    def power(e):  # F152
        return (e + 16) << 2

    a, b = np.zeros((1, 64), np.uint8), np.zeros((64, 1), np.uint8)
    a[0, 0], b[0, 0] = power(13), power(12)
    a[0, 32], b[32, 0] = power(7), power(7)
    a[0, 33], b[33, 0] = 1 | sign, 1  # 2^-17 each
    found, _, _ = planned(quarters.dot, a, b, byte(F2, -10), byte(F2), tiles=1)
    assert found.item() == wanted


def test_a_nan_reaches_its_row_and_column():
    a, b = random_codes((6, 40), F1), random_codes((40, 5), F1)
    a[2, 7], b[30, 4] = 0x80, 0x80
    found, _, _ = planned(quarters.dot, a, b, byte(F1, -4), byte(F1, -4))
    nan = np.zeros((6, 5), bool)
    nan[2], nan[:, 4] = True, True
    np.testing.assert_array_equal(np.isnan(found), nan)


def patches(x, w, window, groups):
    """For each tap, in order: the padded input where it falls, [batch, outputs.., channels]."""
    padded = np.pad(x, [(0, 0), *((low, high) for _, _, low, high, _ in window), (0, 0)])
    outs = [(n - (k - 1) * d - 1) // s + 1 for n, (k, s, _, _, d) in zip(padded.shape[1:-1], window)]
    for tap in np.ndindex(*w.shape[:-2]):
        cut = [slice(t * d, t * d + (o - 1) * s + 1, s) for t, o, (_, s, _, _, d) in zip(tap, outs, window)]
        yield tap, padded[(slice(None), *cut)]


CONVOLUTIONS = [
    # input, weights, window, groups, tiles
    ((2, 6, 5, 40), (3, 3, 40, 8), [[3, 1, 1, 1, 1], [3, 1, 1, 1, 1]], 1, 8),
    ((1, 9, 8, 70), (3, 2, 70, 20), [[3, 2, 0, 1, 1], [2, 1, 1, 0, 3]], 1, 16),
    ((3, 11, 33), (4, 33, 5), [[4, 1, 3, 3, 1]], 1, 4),
    ((1, 4, 5, 3, 12), (2, 3, 1, 12, 6), [[2, 1, 0, 0, 1], [3, 2, 1, 1, 1], [1, 1, 0, 0, 1]], 1, 8),
    ((2, 5, 5, 12), (2, 2, 4, 9), [[2, 1, 0, 1, 1], [2, 1, 1, 0, 1]], 3, 4),
]


@pytest.mark.parametrize(("ins", "taps", "window", "groups", "tiles"), CONVOLUTIONS)
def test_convolution(ins, taps, window, groups, tiles):
    a, b = random_codes(ins, F1), random_codes(taps, F1)

    def fn(x, w, p, q):
        return quarters.convolution(x, w, p, q, window)

    found, parts, stages = planned(fn, a, b, byte(F1, -7), byte(F1, -3), tiles=tiles)
    x, w = values(a, F1), values(b, F1)
    channels, mine = taps[-2], taps[-1] // groups
    exact = []
    for g in range(groups):
        xs, ws = x[..., g * channels : (g + 1) * channels], w[..., g * mine : (g + 1) * mine]
        partials = []
        for c0, c1 in zip(*(e.tolist() for e in even(channels, parts["ic"], BLOCK)), strict=True):
            for t0, t1 in zip(*(e.tolist() for e in even(taps[0], parts["taps"])), strict=True):
                partials.append(
                    blocks(
                        (
                            patch[..., c : min(c + BLOCK, c1)] @ ws[tap][c : min(c + BLOCK, c1)]
                            for tap, patch in patches(xs, ws, window, groups)
                            if t0 <= tap[0] < t1
                            for c in range(c0, c1, BLOCK)
                        ),
                        -10,
                    )
                )
        exact.append(added(partials, stages))
    finite_and_same(found, np.concatenate(exact, -1))


# ---- which chips, cycles ----


@pytest.mark.parametrize("name", TARGETS)
def test_chips_without_them_refuse_by_name(name):
    def fn(x, y, p, q):
        return quarters.dot(quarters.to_quarter(x, p), y, p, q)

    args = (np.ones((4, 8), np.float16), np.ones((8, 4), np.uint8), byte(F1), byte(F1))
    module, _ = hlo_of(fn, *args)
    if name == "c600":
        assert compile_module(module, target=name).run(*args)[0].shape == (4, 4)
        return
    with pytest.raises(UnsupportedError) as refused:
        compile_module(module, target=name)
    assert len(refused.value.items) == 2 and all(name in i and "c600" in i for i in refused.value.items)


def test_peak():
    # 1472 tiles x 16 units x 8 multiply-accumulates x 1.5 GHz: the 565 TFLOP/s of hardware.md 1.
    chip = TARGETS["c600"]
    assert 2 * chip.tiles * chip.clock_hz * chip.macs_per_cycle("f8", "f16") == pytest.approx(565.2e12, rel=1e-3)
    assert TARGETS["gc200"].macs_per_cycle("f8", "f16") == 0


AMP = amp_model.amp_of(TARGETS["c600"], "f8", "f16")


def test_cycles_of_a_product():
    assert (AMP.ins, AMP.units, AMP.weight_load) == (32, 16, 64)
    # 20 rows: 4 or 3. Zeroing 17 + 31 - 5 and 17 + 27 - 5, later 48 and 44. 70 channels are 3 blocks, 20 outputs 2.
    first, later = max(6 * 43, 6 * 39 + 14), max(6 * 48, 6 * 44 + 14)
    wanted = 46 + 2 * (21 + 2 * (46 + 131 + 64 + first + 2 * (108 + 64 + later)))
    assert amp_model.amp_1x1(20, 70, 20, 2, AMP).item() == wanted
    # The vertex of a matrix product, in a program's columns.
    columns = [np.array([v]) for v in (0, 2, 20, 70, 20, 0, 0, 0, 0, 0)]
    group = GroupView(registry.QUARTER_PRODUCT, 1, np.array([0, 0]), columns)
    assert registry.MODELS[registry.QUARTER_PRODUCT].cycles(group, TARGETS["c600"]).tolist() == [wanted]


def test_cycles_of_a_convolution():
    # 6 output rows of 10: one each. A worker 18 + 22 + 29 + 4 x 7; 3 taps in a row, one before; 40 channels: 2 blocks.
    each = 6 * 97 + 9
    inner = 33 + 103 + 64 + each + 2 * (86 + 64 + each)
    zeroing = 6 * (26 + 40)  # 960 partial sums, 160 a worker, four a cycle
    wanted = 83 + 37 + 58 + 2 * (61 + inner) + zeroing
    assert amp_model.amp_nx1(6, 10, (1, 1, 3), 40, 16, 1, AMP).item() == wanted


@pytest.mark.parametrize(("op", "n", "loop"), [(1, 600, 2 * 13), (0, 600, 25), (1, 7, 2), (0, 7, 1)])
def test_cycles_of_a_cast(op, n, loop):
    group = GroupView(registry.QUARTER_CAST, 1, np.array([op, 0]), [np.array([v]) for v in (0, n, 0, 0, 0)])
    assert registry.MODELS[registry.QUARTER_CAST].cycles(group, TARGETS["c600"]).tolist() == [12 + 6 * (37 + loop)]


# ---- files ----


def _saved_program():
    def fn(x, w, p, q):
        codes = quarters.to_quarter(x, p)
        return quarters.convolution(codes, w, p, q, [[2, 1, 0, 0, 1]])

    args = rng.normal(size=(2, 7, 9)).astype(np.float16), random_codes((2, 9, 3), F1), byte(F1, -3), byte(F1, -6)
    return compile_module(hlo_of(fn, *args)[0], target=target(4)), args


def test_a_saved_program_gives_the_same_bits(tmp_path):
    exe, args = _saved_program()
    exe.save(tmp_path / "f8.ipu")
    loaded = hlo.load(tmp_path / "f8.ipu")
    same_bits(loaded.run(*args)[0], exe.run(*args)[0])
    assert loaded.profile().cycles == exe.profile().cycles


# (codelet, which parameter, value): spatial dimensions, stride, reversed window, method; kind of cast, overflow.
BAD = [(registry.QUARTER_PRODUCT, i, v) for i, v in ((0, 4), (0, -1), (1, 0), (3, 0), (4, 2), (5, 1))]
BAD += [(registry.QUARTER_CAST, 0, 2), (registry.QUARTER_CAST, 1, -1)]


@pytest.mark.parametrize(("codelet", "number", "value"), BAD)
def test_a_file_with_a_bad_vertex_is_refused(codelet, number, value):
    program = _saved_program()[0].program
    validate(program)
    group = program.group(program.groups[:, 0].tolist().index(codelet))
    group.params[number] = value
    with pytest.raises(ExecutableFormatError):
        validate(program)


@pytest.mark.parametrize("column", [c for c in range(1, 14) if c != 8])  # 8: where the first tap stands, anywhere
def test_a_file_with_an_operand_outside_its_tile_is_refused(column):
    program = _saved_program()[0].program
    group = program.group(program.groups[:, 0].tolist().index(registry.QUARTER_PRODUCT))
    group.columns[column][:] = 1 << 24
    with pytest.raises(ExecutableFormatError):
        validate(program)
