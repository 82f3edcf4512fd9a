"""BERT-Base pre-training over the sixteen chips of a Pod16, configured as it was measured (docs/calibration.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

import ipu_keras as ipu
from tools.calibration_models import HALF_PARTIALS, Positions, gelu, half_precision, split_heads

LENGTH, MASKED, WIDTH, DEPTH, HEADS, VOCABULARY = 128, 20, 768, 12, 12, 30_400
MICRO_BATCH, REPLICAS, ACCUMULATED = 32, 4, 510

DEVICES = (0, 1, 2, 3, 0)
"""Chips of the five stages: the embeddings, three times four layers, the heads."""

PROPORTIONS = (0.28, 0.26, 0.28, 0.28)
"""availableMemoryProportion of products on each of the chips, as published."""


class _Words(layers.Layer):
    """The scores of all words, with the table of the embeddings."""

    def __init__(self, table: layers.Embedding, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table

    def build(self, shape: Any) -> None:
        self.bias = self.add_weight(shape=(self.table.input_dim,), name="bias")

    def call(self, x: Any) -> Any:
        return ops.matmul(x, ops.transpose(self.table.embeddings)) + self.bias


def pretraining(batch: int, dropout: float) -> keras.Model:
    """BERT-Base with two heads, of masked words and of the next sentence, in five stages.

    Queries, keys and values are one product; the attention has no biases. The head of masked words has no layer of its
    own before the table.

    Args:
        batch: sequences of a micro-batch.
        dropout: share of the hidden states; none of the attention's probabilities.
    """

    def norm(x: Any) -> Any:
        return ipu.keras.layers.LayerNormalization(epsilon=1e-12)(x)

    def drop(x: Any) -> Any:
        return ipu.keras.layers.Dropout(dropout)(x)

    tokens, segments = (keras.Input(batch_shape=(batch, LENGTH), dtype="int32", name=n) for n in ("tokens", "segments"))
    mask = keras.Input(batch_shape=(batch, 1, 1, LENGTH), dtype="float16", name="mask")
    places = keras.Input(batch_shape=(batch, MASKED), dtype="int32", name="places")
    with ipu.keras.PipelineStage(0):
        table = layers.Embedding(VOCABULARY, WIDTH)
        x = table(tokens) + layers.Embedding(2, WIDTH)(segments)
        x = drop(norm(Positions()(x)))
    for i in range(DEPTH):
        with ipu.keras.PipelineStage(1 + 3 * i // DEPTH):
            q, k, v = (
                split_heads(part, HEADS) for part in ops.split(layers.Dense(3 * WIDTH, use_bias=False)(x), 3, -1)
            )
            scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * (WIDTH // HEADS) ** -0.5 + mask
            seen = ops.reshape(ops.transpose(ops.matmul(ops.softmax(scores), v), (0, 2, 1, 3)), (batch, LENGTH, WIDTH))
            x = norm(x + drop(layers.Dense(WIDTH, use_bias=False)(seen)))
            x = norm(x + drop(layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation=gelu)(x))))
            x = ipu.keras.layers.RecomputationCheckpoint()(x)
    with ipu.keras.PipelineStage(4):
        words = _Words(table, name="words")(ops.take_along_axis(x, places[:, :, None], 1))
        following = layers.Dense(2, name="following")(layers.Dense(WIDTH, activation="tanh")(x[:, 0]))
    return keras.Model([tokens, segments, mask, places], {"words": words, "following": following})


def compiled(
    batch: int = MICRO_BATCH,
    replicas: int = REPLICAS,
    accumulated: int = ACCUMULATED,
    dropout: float = 0.1,
    recompute: bool = True,
) -> Any:
    """A weight update's program for the chips of a Bow Pod16, fp16 with partial sums in half precision.

    Args:
        batch: sequences of a micro-batch.
        replicas: pipelines of four chips each.
        accumulated: micro-batches of an update.
        dropout: share of the hidden states.
        recompute: whether backward stages work activations out again.
    """
    strategy = ipu.IPUStrategy(target="bow", ipus=4 * replicas, execute=False, options=HALF_PARTIALS)
    stages = [
        ipu.pipelining_ops.PipelineStageOptions(matmul_options={"availableMemoryProportion": str(PROPORTIONS[chip])})
        for chip in DEVICES
    ]
    with half_precision(), _recomputing(recompute), strategy.scope():
        model = pretraining(batch, dropout)
        model.set_pipelining_options(
            accumulated,
            offload_weight_update_variables=True,
            device_mapping=list(DEVICES),
            forward_propagation_stages_poplar_options=stages,
            backward_propagation_stages_poplar_options=stages,
            recomputation_mode=ipu.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
        loss = {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in model.output_names}
        model.compile(
            keras.optimizers.Lamb(6e-3), loss, metrics=["accuracy", "accuracy"], steps_per_execution=accumulated
        )
        labels = {"words": tf.TensorSpec((batch, MASKED), tf.int32), "following": tf.TensorSpec((batch,), tf.int32)}
        return ipu.analyse(model, "train", ([tf.TensorSpec(x.shape, x.dtype) for x in model.inputs], labels))


@contextlib.contextmanager
def _recomputing(recompute: bool) -> Iterator[None]:
    config = ipu.config.IPUConfig()
    config.allow_recompute = recompute
    config.configure_ipu_system()
    try:
        yield
    finally:
        ipu.config.reset_ipu_configuration()
