"""The programs of docs/calibration.md: small functions, and two networks as an inference compiler hands them over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from ipu_keras import IPUStrategy, analyse, hlo
from ipu_keras.target import Target
from ipu_runtime.codelets import registry
from ipu_runtime.program import COMPUTE, EXCHANGE, STREAM_IN, STREAM_OUT

BLOCKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Filters, blocks and first stride of ResNet-50's four stages."""

HALF_PARTIALS = {"matmul_partials": "half", "convolution_partials": "half", "allow_out_of_memory": True}
"""Options of a network's program: as the vendor's own have it, and with a profile though it may not fit."""

KINDS = {"convPartial": "products", "dotPartial": "products", "map": "element-wise", "reduce": "sums"}
"""Vertices by what `Cost.parts` calls them."""


class Cost:
    """A program's cycles on the chip without its host streams.

    Args:
        executable: the program.
        once: whether what is computed once an execution counts, before the loop over its iterations.

    Attributes:
        cycles: of one iteration.
        seconds: of them.
        steps: supersteps that are not host streams, each as often as it runs.
        parts: cycles by what they are: products, element-wise, sums, other vertices, wire, in order, sync.
        profile: all the rest.
    """

    def __init__(self, executable: Any, once: bool = False) -> None:
        self.profile, program = executable.profile(), executable.program
        parts = dict.fromkeys((*dict.fromkeys(KINDS.values()), "other vertices", "wire", "in order", "sync"), 0.0)
        self.steps = []
        rows = zip(program.steps.tolist(), self.profile.steps, self.profile.times, strict=True)
        for i, ((kind, first, last, _), step, times) in enumerate(rows):
            if kind in (STREAM_IN, STREAM_OUT) or (i < self.profile.loop_start and not once):
                continue
            self.steps += [step] * times
            parts["sync"] += times * step.sync
            if kind == COMPUTE:
                for group, cycles in zip(range(first, last), step.by_group, strict=True):
                    name = registry.MODELS[program.group(group).codelet].name
                    parts[KINDS.get(name, "other vertices")] += times * cycles
            else:
                parts["wire"] += times * step.exchange
                parts["in order"] += times * step.compute
        self.parts = {name: round(cycles) for name, cycles in parts.items()}
        self.cycles = sum(step.total for step in self.steps)
        self.seconds = self.cycles / float(program.header["target"]["clock_hz"])

    def exchanges(self) -> list[Any]:
        """Its exchanges."""
        return [step for step in self.steps if step.kind == EXCHANGE]


def function_cost(
    fn: Callable[..., Any], specs: list[Any], state: Mapping[int, int | None], target: str | Target, **options: Any
) -> Cost:
    """What a function costs when all its arguments lie on the tiles.

    Args:
        fn: of tensors.
        specs: of its arguments.
        state: for each argument the result that is its new value, or None.
        target: the chip.
        **options: of the compiler.
    """
    traced = tf.function(fn, jit_compile=True).experimental_get_compiler_ir(*specs)
    options = {"allow_out_of_memory": True, **options}
    module = traced(stage="hlo_serialized")
    return Cost(hlo.compile(module, target, options, state=state, execute=False), once=True)


def network_cost(make: Callable[[], tuple[keras.Model, Any]], target: str | Target) -> Cost:
    """What a network's prediction costs in fp16 with partial sums in half precision.

    Args:
        make: gives the model and the shapes of a batch, None for those of its inputs.
        target: the chip.
    """
    with half_precision(), IPUStrategy(target=target, execute=False, options=HALF_PARTIALS).scope():
        model, batch = make()
        return Cost(analyse(model, "predict", batch))


@contextlib.contextmanager
def half_precision() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def triad(b: Any, c: Any) -> Any:
    """b + s c."""
    return b + 3.0 * c


def stencil(cells: Any) -> Any:
    """Nine points, by shifts of a padded array: [rows, columns, values] of one shape in and out."""
    rows, columns = cells.shape[:2]
    padded = tf.pad(cells, [[1, 1], [1, 1], [0, 0]])
    total: Any = None
    for i in range(3):
        for j in range(3):
            weight = (1, 2, 1)[i] * (1, 2, 1)[j] / 16
            term = weight * padded[i : i + rows, j : j + columns]
            total = term if total is None else total + term
    return total


def folded_resnet50(size: int = 224, classes: int = 1000) -> keras.Model:
    """ResNet-50 with the topology of `keras.applications.ResNet50` and each batch norm folded into its convolution.

    Args:
        size: height and width of the images.
        classes: of the head.
    """

    def conv(x: Any, filters: int, kernel: int, stride: int = 1, activation: str | None = "relu") -> Any:
        return layers.Conv2D(filters, kernel, stride, "same", activation=activation)(x)

    image = keras.Input((size, size, 3))
    x = layers.ZeroPadding2D(3)(image)
    x = layers.Conv2D(64, 7, 2, activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for filters, blocks, first in BLOCKS:
        for block in range(blocks):
            stride = first if block == 0 else 1
            short = conv(x, 4 * filters, 1, stride, None) if block == 0 else x
            x = conv(x, filters, 1, stride)
            x = conv(conv(x, filters, 3), 4 * filters, 1, activation=None)
            x = layers.ReLU()(layers.Add()([short, x]))
    x = layers.Dense(classes, "softmax")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, x, name="resnet50_folded")


def bert_base(
    batch: int, length: int = 128, depth: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 30_522
) -> keras.Model:
    """The encoder of BERT-Base: embeddings, twelve layers with norms after the sums, GELU in its tanh form.

    The mask is an input that is added to the attention's scores: 0 for what may be seen, a large negative number else.

    Args:
        batch: sequences.
        length: tokens of each.
        depth, width, heads: layers, features of a token, attention heads.
        vocabulary: rows of the table of tokens.
    """
    tokens = keras.Input(batch_shape=(batch, length), dtype="int32", name="tokens")
    segments = keras.Input(batch_shape=(batch, length), dtype="int32", name="segments")
    mask = keras.Input(batch_shape=(batch, 1, 1, length), dtype="float16", name="mask")
    x = layers.Embedding(vocabulary, width)(tokens) + layers.Embedding(2, width)(segments)
    x = layers.LayerNormalization(epsilon=1e-12)(Positions(name="positions")(x))
    for _ in range(depth):
        q, k, v = (split_heads(layers.Dense(width)(x), heads) for _ in range(3))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * (width // heads) ** -0.5 + mask
        seen = ops.transpose(ops.matmul(ops.softmax(scores), v), (0, 2, 1, 3))
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dense(width)(ops.reshape(seen, (batch, length, width))))
        wide = layers.Dense(4 * width, activation=gelu)(x)
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dense(width)(wide))
    return keras.Model([tokens, segments, mask], x, name="bert_base")


def hub_bert_base(batch: int, length: int = 128) -> tuple[keras.Model, dict[str, Any]]:
    """KerasHub's BERT-Base and the shapes of its inputs.

    Args:
        batch: sequences.
        length: tokens of each.
    """
    import keras_hub  # an extra

    model = keras_hub.models.BertBackbone(
        vocabulary_size=30_522, num_layers=12, num_heads=12, hidden_dim=768, intermediate_dim=3072, dropout=0.0
    )
    spec = tf.TensorSpec((batch, length), tf.int32)
    return model, {"token_ids": spec, "segment_ids": spec, "padding_mask": spec}


class Positions(layers.Layer):
    """Adds a learned row to each position."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=tuple(shape[1:]), name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


def gelu(x: Any) -> Any:
    return ops.gelu(x, approximate=True)


def split_heads(x: Any, heads: int) -> Any:
    batch, length, width = x.shape
    return ops.transpose(ops.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))
