"""The fourteen rows of docs/calibration.md: what was published, what the model says, and by which mechanism."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf

from ipu_keras.target import TARGETS
from tools.calibration_models import (
    Cost,
    bert_base,
    folded_resnet50,
    function_cost,
    hub_bert_base,
    network_cost,
    stencil,
    triad,
)
from tools.calibration_pretraining import ACCUMULATED, MICRO_BATCH, REPLICAS, compiled
from tools.calibration_products import CHIP, DENSE, LARGEST, NARROWEST, as_weights, least

COUNTER_READ = 19
"""Cycles to read the cycle counter, as a vertex of the supervisor. Fitted to row 8: see its text."""


class Line(NamedTuple):
    """A line of the table.

    Attributes:
        row: its number.
        what: the workload.
        published, ours: with their unit.
        ratio: ours over published; None where there is none.
        why: the mechanism, in a few words.
        bound: how far the ratio may be from 1; None where nothing is required.
    """

    row: int
    what: str
    published: str
    ours: str
    ratio: float | None
    why: str
    bound: float | None = None

    @property
    def misses(self) -> bool:
        """Whether the ratio is out of its bound."""
        return self.bound is not None and self.ratio is not None and abs(self.ratio - 1) > self.bound

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        why = f"**miss**: {self.why}" if self.misses else self.why
        return f"| {self.row} | {self.what} | {self.published} | {self.ours} | {ratio} | {why} |"


class Section(NamedTuple):
    """A row's lines and what there is to say of them."""

    title: str
    lines: list[Line]
    text: list[str]


def _n(value: float) -> str:
    """A number for people."""
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _part(cost: Cost, *names: str) -> str:
    """The share of some parts."""
    return f"{100 * sum(cost.parts[name] for name in names) / cost.cycles:.0f} %"


def _shares(cost: Cost) -> str:
    """Where the cycles go, dearest first."""
    parts = sorted(cost.parts, key=lambda name: -cost.parts[name])
    return ", ".join(f"{name} {_part(cost, name)}" for name in parts if cost.parts[name] >= 0.005 * cost.cycles)


# ---- 1 to 3: dense products ----

_WHY = {
    LARGEST: "measured faster than the published exchange rates allow",
    NARROWEST: "the large matrix streams through the AMPs here; on the chip perhaps not",
}


def dense(row: int) -> Section:
    """Rows 1 to 3."""
    lines, terms = [], []
    for p in (p for p in DENSE if p.row == row):
        cost = p.cost()
        rate, parts = p.tflops(cost.cycles), cost.parts
        what = f"{'fp16, half partials' if p.dtype == 'f16' else 'fp32'}: m = k = {p.k:,}, n = {p.n:,}"
        why = _WHY.get(p, f"AMP vertices {_part(cost, 'products')} of the cycles")
        lines.append(
            Line(row, what, f"{p.published:.0f} TFLOP/s", f"{_rate(rate)} TFLOP/s", rate / p.published, why, 0.25)
        )
        terms.append(
            f"n = {p.n:,}: {_n(p.cycles(p.published))} cycles measured; ours {_n(cost.cycles)} (AMP vertices "
            f"{_n(parts['products'])}, wire {_n(parts['wire'])}, putting in order {_n(parts['in order'])}, sums "
            f"{_n(parts['sums'])}, syncs {_n(parts['sync'])}); at least {_n(least(p).total)}."
        )
    text = [f"m = k = {next(p.k for p in DENSE if p.row == row):,}. " + " ".join(terms)]
    if row == 1:
        text += [_ABOUT_LEAST, _largest()]
    if row == 2:
        text.append(_narrowest())
    if row == 3:
        p = DENSE[-1]
        text.append(
            f"fp32 partial sums are twice the bytes at a quarter of the arithmetic. At n = {p.n:,} the lower bound "
            f"({_n(least(p).total)} cycles) is above the measurement ({_n(p.cycles(p.published))}), as in row 1."
        )
    return Section(
        {1: "Dense products, fp16", 2: "Dense products, large k", 3: "Dense products, fp32"}[row], lines, text
    )


_ABOUT_LEAST = (
    "*At least*: what no plan can beat that cuts the product into equal boxes, one a tile, by the published rates: "
    "AMPs always at their peak, each tile receiving its pieces of both operands and its share of the partial sums, one "
    "operand at 8 B a cycle (a pair of tiles listens together), the rest at 4 B; blocks, fragments and syncs free. The "
    "published rates were read off a plot, to 4 %."
)


def _largest() -> str:
    p, bound = LARGEST, least(LARGEST)
    measured = p.cycles(p.published)
    return (
        f"**The miss at n = {p.n:,}.** The AMPs at their peak take {_n(bound.compute)} cycles, so the measurement "
        f"leaves {_n(measured - bound.compute)} for everything else; operands and partial sums need "
        f"{_n(bound.exchange)} on the wire. A better plan would bring us nearer to the lower bound, which is still "
        "above the measurement: on the chip there was more bandwidth, or less to do. Either more than one operand "
        f"arrives at 8 B a cycle (all data at that rate: at least {_n(least(p, wide=True).total)} cycles), or exchange "
        "and AMPs overlap, or the published figure leaves out the distribution of an operand. Public sources do not "
        "say which; the exchange stays as published."
    )


def _narrowest() -> str:
    p = NARROWEST
    loaded, wide = as_weights(p), as_weights(p, 16)
    return (
        f"**The miss at n = {p.n}.** Operands may be swapped. Here the planner streams the {p.m:,} rows of the large "
        "matrix through AMPs that hold the narrow one, and the AMPs are never short of rows. With the large matrix in "
        f"the convolution units each block of 16 x 16 weights costs its load (64 cycles, and 25 around it) for {p.n} "
        "columns: three each for four workers and two for the others, 224 cycles by poplibs' formula. That plan takes "
        f"{_n(loaded.vertex)} cycles in the vertices, {_n(loaded.cycles)} with exchange and sums ({_n(wide.cycles)} "
        f"with weights loaded at 16 B a cycle). The measurement, {_n(p.cycles(p.published))} cycles, lies between the "
        "two: the vendor's planner seems not to have streamed the large matrix, or had to rearrange it first."
    )


# ---- 4 and 5: triad ----

TRIAD = 12_288
"""Elements a tile: three arrays of them are 144 KiB of GC2's 256."""


def scaled_add(n: int) -> int:
    """Cycles of a tile's ScaledAdd, fp32 += fp32. Source: poplibs, getScaledArithmeticSupervisorCycleEstimate."""
    vectors = math.ceil(math.ceil(n / 6) / 2)
    return 21 + 11 + 7 + 12 + 6 + 6 * (15 + 6 + 3 * (vectors - 1))


def triads() -> Section:
    """Rows 4 and 5."""
    chip = TARGETS["gc2"]
    spec = tf.TensorSpec((chip.tiles * TRIAD,), tf.float32)
    fused = function_cost(triad, [spec, spec], {0: 0, 1: None}, chip).cycles

    def rate(cycles: float) -> float:
        return 12 * chip.tiles * TRIAD / cycles * chip.clock_hz / 1e12

    def per_pair(tera: float) -> float:
        return 24 * chip.tiles * chip.clock_hz / tera / 1e12

    formula = scaled_add(TRIAD)
    return Section(
        "Triad",
        [
            Line(4, "a = b + s c, fp32, best assembly", "12.4 TB/s", f"{rate(fused):.1f} TB/s", rate(fused) / 12.4,
                 "a fused program pays the loads and stores of both operations"),
            Line(5, "the same, vendor's ScaledAdd", "7.3 TB/s", f"{rate(formula):.1f} TB/s", rate(formula) / 7.3,
                 "the vendor's formula: an upper bound of the rate"),
        ],
        [
            f"GC2, {TRIAD:,} elements a tile, 12 B each (two loads, a store). In cycles for two elements, one vector: "
            f"measured {per_pair(12.4):.1f} in assembly and {per_pair(7.3):.1f} by ScaledAdd; the estimator that the "
            f"vendor publishes for ScaledAdd has 3 (load, load, then store with the multiply-add), {_n(formula)} "
            "cycles for the tile. The measured ScaledAdd takes more than twice that, and even the assembly more than "
            "the estimator's loop. The estimators take it for granted that loads and stores never meet in one memory "
            "element; what of that, of alignment and of the software's age explains the figure, no source says.",
            f"Our program of b + s c is one `map` vertex: {_n(fused)} cycles, {per_pair(rate(fused)):.1f} a vector: "
            "the loops of a multiplication by a scalar (2) and of an addition (3). It is between the two measurements, "
            "by no merit of the model.",
        ],
    )  # fmt: skip


# ---- 6: stencil ----

STENCIL = (1122, 2200, 2)


def stencils() -> Section:
    """Row 6."""
    chip = TARGETS["gc2"]
    cost = function_cost(stencil, [tf.TensorSpec(STENCIL, tf.float32)], {0: 0}, chip)
    wire, compute = cost.parts["wire"], cost.parts["element-wise"]
    moved = sum(step.bytes_moved for step in cost.exchanges())
    across, down = 38, 32
    width, height = math.ceil(STENCIL[1] / across), math.ceil(STENCIL[0] / down)
    halo = 8 * (2 * (width + height) + 4)
    block = 8 * STENCIL[0] * STENCIL[1] / chip.tiles
    return Section(
        "Phases of a stencil",
        [
            Line(6, "sync", "117 cycles", f"{chip.sync_cycles} cycles", chip.sync_cycles / 117, "fitted to this"),
            Line(6, "exchange", "1,173 cycles", f"{_n(wire)} cycles", wire / 1173,
                 "our program moves each shifted array whole, not halos"),
            Line(6, "rearrange before and after", "8,279 + 6,954 cycles", f"{_n(cost.parts['in order'])} cycles",
                 cost.parts["in order"] / (8279 + 6954), "another program: see below"),
            Line(6, "compute", "100,257 cycles", f"{_n(compute)} cycles", compute / 100_257,
                 "nine multiplications and eight additions a value, and the padding"),
        ],
        [
            "One application of a 3 x 3 stencil to 2,200 x 1,122 cells of two fp32 values on GC2, written as nine "
            "shifts of a padded array that stays on the tiles. The published sync of 117 cycles a step is what one "
            "sync of all tiles costs, before the exchange: a step of rearranging, exchange, rearranging and computing "
            "has one, so what a tile does before and after the exchange needs none. The model has both.",
            f"Our compiler cuts the array into rows, one or none a tile, and moves {moved / 1e6:,.0f} MB in "
            f"{len(cost.exchanges())} exchanges: slices are values of their own. A hand-written program exchanges "
            f"halos: in {across} x {down} blocks of {width} x {height} cells a tile receives {_n(halo)} B, "
            f"{_n(halo / 4)} cycles of wire, and its columns as fragments of a cell each.",
            f"The published rearranging is of the size of a whole block, not of a halo: a block is {_n(block)} B, and "
            f"poplibs' optional estimate for runs of 8 B (587 + 0.44 a byte) gives {_n(587 + 0.44 * block)} cycles. "
            "The vertices of our program rest on the element-wise tables alone.",
        ],
    )  # fmt: skip


# ---- 8 and 9: single vertices ----


def amp_vertex() -> Section:
    """Row 8."""
    chip = dataclasses.replace(TARGETS["bow"], tiles=1, weight_load_bytes_per_cycle=16)
    lines, bare = [], []
    for rows, published in ((64, 584), (512, 2381)):
        specs = [tf.TensorSpec((rows, 16), tf.float16), tf.TensorSpec((16, 16), tf.float16)]
        cost = function_cost(lambda a, b: a @ b, specs, {0: None, 1: None}, chip, matmul_partials="half")
        bare.append(cost.cycles)
        ours = cost.cycles + 2 * COUNTER_READ
        lines.append(
            Line(8, f"AMP vertex, fp16 [{rows}, 16] x [16, 16], weights at 16 B a cycle", f"{published:,} cycles",
                 f"{_n(ours)} cycles", ours / published, "poplibs' formula and two counter reads", 0.05)
        )  # fmt: skip
    return Section(
        "An AMP vertex",
        lines,
        [
            f"The formula gives {_n(bare[0])} and {_n(bare[1])} cycles, {584 - bare[0]} and {2381 - bare[1]} fewer "
            "than measured: a constant, not a slope. The measurements include two reads of the cycle counter, each a "
            f"vertex of the supervisor, so a read is taken to be {COUNTER_READ} cycles. Fitted is this constant alone; "
            "the four cycles a row and block are the formula's.",
        ],
    )


def add_vertex() -> Section:
    """Row 9."""
    cycles = []
    for tiles in (4, 1024):
        chip = dataclasses.replace(TARGETS["bow"], tiles=tiles)
        spec = tf.TensorSpec((1024 * tiles,), tf.float32)
        cycles.append(function_cost(lambda a, b: a + b, [spec, spec], {0: None, 1: None}, chip).cycles)
    assert cycles[0] == cycles[1], "the number of tiles matters"
    ours = cycles[0] + 2 * COUNTER_READ
    return Section(
        "An addition",
        [
            Line(9, "fp32 addition, 1,024 elements a tile, 4 or 1,024 tiles", "1,860 cycles", f"{_n(ours)} cycles",
                 ours / 1860, "poplibs' formula and two counter reads", 0.05)
        ],
        [
            f"6 x (29 + 86 x 3) + 11 = {_n(cycles[0])} cycles: 171 elements a worker, two a loop of three cycles. With "
            f"the counter reads of row 8 it is {_n(ours)}, which checks them; {1860 - ours} cycles are unaccounted "
            f"for, {(1860 - ours) / 6:.0f} a worker: a longer loop or a start that the formula does not have. The "
            "number of tiles does not matter, there as here: nothing is exchanged.",
        ],
    )  # fmt: skip


# ---- 10 and 11: networks ----


def _network(batch: int, cost: Cost, published: float) -> str:
    """A network's cycles, and what they go to."""
    chip = TARGETS["c600"]
    peak = cost.profile.flops / 2 / chip.tiles / chip.macs_per_cycle("f16", "f16")
    memory = cost.profile.memory
    over = (
        f" It does not fit, {_n(memory.max_tile_bytes)} of {_n(memory.limit)} B on the fullest tile; counted as it is."
    )
    return (
        f"{_n(batch / published * chip.clock_hz)} cycles measured, {_n(cost.cycles)} ours, of which AMPs always at "
        f"their peak would need {_n(peak)}: {_shares(cost)}.{'' if memory.fits else over}"
    )


def resnet() -> Section:
    """Row 10."""
    lines, text = [], [_ABOUT_RESNET]
    for folded in (True, False):
        for batch, published in ((8, 9805), (64, 16_084)):

            def make(batch: int = batch, folded: bool = folded) -> tuple[keras.Model, tf.TensorSpec]:
                model = folded_resnet50() if folded else keras.applications.ResNet50(weights=None)
                return model, tf.TensorSpec((batch, 224, 224, 3), tf.float16)

            cost = network_cost(make, "c600")
            ours = batch / cost.seconds
            name = "norms folded" if folded else "Keras's own, with batch norms"
            why = f"products {_part(cost, 'products')}, exchange {_part(cost, 'wire', 'in order')} of the cycles"
            if not folded:
                why = f"norms are operations: element-wise {_part(cost, 'element-wise')} of the cycles"
            lines.append(
                Line(10, f"ResNet-50, fp16, batch {batch}, {name}", f"{published:,} images/s", f"{_n(ours)} images/s",
                     ours / published, why, 0.35 if folded else None)
            )  # fmt: skip
            text.append(f"Batch {batch}, {name}: {_network(batch, cost, published)}")
    return Section("ResNet-50", lines, text)


_ABOUT_RESNET = (
    "224 x 224, partial sums in half precision, synthetic data: no host stream is counted. The vendor's inference "
    "compiler folds batch norms into the convolutions, so the network is `keras.applications.ResNet50` with "
    "convolutions that have a bias and an activation, and sums, and no norms. Its second form, Keras's own, is what a "
    "user's script runs: Keras computes norms of fp16 in fp32, two conversions, a multiplication and an addition for "
    "each element. *In order* is the rearranging of data on the tiles before and after an exchange. Convolutions take "
    "more than the AMPs' peak since few images leave each tile few points for a load of weights, and channels fill "
    "whole blocks; what they exchange comes on top, because nothing overlaps."
)


def bert() -> Section:
    """Row 11."""
    batch, published = 16, 4817
    lines, text = [], [_ABOUT_BERT]
    for name, make, bound in (
        ("", lambda: (bert_base(batch), None), 0.35),
        (", KerasHub's `BertBackbone`", lambda: hub_bert_base(batch), None),
    ):
        cost = network_cost(make, "c600")
        ours = batch / cost.seconds
        why = f"products {_part(cost, 'products')}, exchange {_part(cost, 'wire', 'in order')} of the cycles"
        lines.append(
            Line(11, f"BERT-Base, sequence 128, fp16, batch {batch}{name}", f"{published:,} samples/s",
                 f"{_n(ours)} samples/s", ours / published, why, bound)
        )  # fmt: skip
        text.append(f"{'KerasHub' if name else 'The encoder'}: {_network(batch, cost, published)}")
    return Section("BERT-Base", lines, text)


_ABOUT_BERT = (
    "The encoder is written with Keras: twelve layers of 768 features and 12 heads, a vocabulary of 30,522, norms "
    "after the sums, GELU in its tanh form, an additive mask as an input, queries, keys and values as products of "
    "their own. Keras computes the norms in fp32, and so does this. Partial sums are in half precision, no host "
    "stream is counted. KerasHub's backbone makes its mask from the padding, has its products as einsums, and a "
    "pooler."
)


def pretraining() -> Section:
    """Row 12."""
    samples, published = MICRO_BATCH * REPLICAS * ACCUMULATED, 15_173
    lines, text = [], [_ABOUT_PRETRAINING]
    for name, dropout in (("", 0.1), (", without dropout", 0.0)):
        profile = compiled(dropout=dropout).profile()
        ours = samples / profile.seconds
        memory, tiles = profile.memory, CHIP.tiles
        fullest = [int(memory.by_tile[chip * tiles : (chip + 1) * tiles].max()) for chip in range(4)]
        lines.append(
            Line(12, f"BERT-Base pre-training on a Bow Pod16: sequence 128, global batch {samples:,}{name}",
                 f"{published:,} samples/s", f"{_n(ours)} samples/s", ours / published,
                 "as published, but for memory: see below" if dropout else "the rest of it", 0.35)
        )  # fmt: skip
        text.append(
            f"{'Without dropout' if name else 'With dropout'}: {_n(profile.cycles)} cycles for a weight update, "
            f"{_n(profile.cycles / ACCUMULATED)} for each of its micro-batches. The fullest tile of a replica's four "
            f"chips needs {', '.join(f'{n / 1024:,.0f}' for n in fullest)} KiB of {memory.limit / 1024:,.0f}."
        )
    return Section("BERT-Base pre-training", lines, text)


_ABOUT_PRETRAINING = (
    f"The published configuration (graphcore/examples, nlp/bert/tensorflow2, pretrain_base_128_phase1): micro-batches "
    f"of {MICRO_BATCH}, {ACCUMULATED} of them accumulated on each of {REPLICAS} replicas, a pipeline of five stages on "
    "four chips (the embeddings and both heads on the first, four layers on each other), the grouped schedule, "
    "recomputation from a checkpoint behind each layer, the optimizer's state in streaming memory, LAMB, fp16 with "
    "partial sums in half precision, availableMemoryProportion as published for each chip, dropout of 0.1 on the "
    "hidden states. The streams of the host are counted. Equal products are outlined, as the published script outlines "
    "its dense layers. **It does not fit here**, and on the chip it did. What is more than there: products that the "
    "chip does in pieces for availableMemoryProportion are done at once (in pieces the fullest tile needs 980 KiB, "
    "without dropout: operand and result of such a loop are also there whole, in another order), the GELU keeps five "
    "arrays for its gradient, and exchanges other than of products are not outlined. The rate is what chips with room "
    "would have. Dropout draws its mask by Philox, operation by operation, as XLA does; the "
    "chip has a generator in hardware, so the line without dropout is the nearer one, and what is dearer in it than on "
    "the chip is norms and the GELU, which are operations here."
)


# ---- the others ----


def _several(row: int, what: str, published: str) -> Callable[[], Section]:
    line = Line(row, what, published, "-", None, "several chips: not computed yet")
    text = [
        "Pipelines, replicas and what chips exchange are emulated; the program as it was measured (its stages, "
        "micro-batches and collectives) is not written for them yet."
    ]
    return lambda: Section(what.split(":")[0], [line], text)


def host() -> Section:
    """Row 13."""
    chips = 4 * CHIP.host_bytes_per_second / 1e9
    line = Line(13, "device to host through the gateway, M2000", "about 5.5 GB/s", f"{chips:.1f} GB/s", chips / 5.5,
                "an input, not a check")  # fmt: skip
    text = [
        "A machine has four chips. The default host rate of a chip is a fourth of this figure, rounded, whichever "
        "direction: it is taken from here and confirms nothing."
    ]
    return Section("Host link", [line], text)


ROWS: dict[int, Callable[[], Section]] = {
    1: lambda: dense(1),
    2: lambda: dense(2),
    3: lambda: dense(3),
    4: triads,
    6: stencils,
    7: _several(7, "Stencil on 16 GC2: sync, between chips, exchange, before, after, compute",
                "642, 4,017, 397, 1,897, 954, 7,914 cycles"),
    8: amp_vertex,
    9: add_vertex,
    10: resnet,
    11: bert,
    12: pretraining,
    13: host,
    14: _several(14, "Conformer-medium training on 4, 16, 64 GC200: global batch 16,128",
                 "819, 3,163, 11,689 samples/s"),
}  # fmt: skip
"""What computes each row; 4 has 5 with it."""

SLOW = (10, 11, 12)
"""Rows that take minutes."""
