"""Pipelines: four emulated IPUs beside one for the same samples, and BERT-Base over four beside XLA on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import memory
from benchmarks.measure import Figures, figures

STAGES, MICRO_BATCHES = 4, 8


def bert(size: dict[str, int], length: int, dtype: str) -> Any:
    """A BERT classifier with random weights.

    Args:
        size: arguments of the backbone.
        length: tokens of a sentence.
        dtype: of weights and activations.
    """
    import keras
    import keras_hub

    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.BertBackbone(**size, max_sequence_length=length, dropout=0.0, dtype=dtype)
    return keras_hub.models.BertTextClassifier(backbone, num_classes=2, dropout=0.0, dtype=dtype)


def in_stages(model: Any, layers: int) -> None:
    """Deals a BERT's layers out to four stages."""
    import ipu_keras as ipu

    last = {"pooled_dense": STAGES - 1, "classifier_dropout": STAGES - 1, "logits": STAGES - 1}
    each = {f"transformer_layer_{i}": i * STAGES // layers for i in range(layers)}
    ipu.keras.assign_by_name(model, {**each, **last, "*": 0})
    model.set_pipelining_options(MICRO_BATCHES, offload_weight_update_variables=True)


def sentences(count: int, length: int, vocabulary: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Random token ids, all positions in use, and random labels."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, vocabulary, (count, length)).astype(np.int32)
    x = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": np.ones_like(ids)}
    return x, rng.integers(0, 2, count).astype(np.int32)


def compiled(model: Any, steps: int, **options: Any) -> Any:
    """The model with Adam."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-5), loss, steps_per_execution=steps, **options)
    return model


def in_turn(models: list[Any], batches: list[int], x: Any, y: Any, executions: int) -> tuple[list[Any], list[Any]]:
    """Seconds of `fit` of each model in turn, the first with compiling, and each one's peak memory of that."""
    times: list[list[float]] = [[] for _ in models]
    peaks = []

    def execution(i: int) -> None:
        start = time.perf_counter()
        models[i].fit(x, y, batch_size=batches[i], shuffle=False, verbose=0)
        times[i].append(time.perf_counter() - start)

    for i in range(len(models)):
        with memory.peak() as peak:
            execution(i)
        peaks.append(peak[0])
    for _ in range(executions):
        for i in range(len(models)):
            execution(i)
    return times, peaks


def pipeline(executions: int) -> Figures:
    """A BERT of four layers over four IPUs, beside one IPU (in the columns of XLA): 8 micro-batches of 2 x 64."""
    import ipu_keras as ipu

    size = {"vocabulary_size": 1000, "num_layers": 4, "num_heads": 4, "hidden_dim": 256, "intermediate_dim": 1024}
    x, y = sentences(2 * MICRO_BATCHES, 64, 1000)
    with ipu.IPUStrategy(ipus=STAGES).scope():
        piped = compiled(bert(size, 64, "float32"), MICRO_BATCHES)
        in_stages(piped, 4)
    with ipu.IPUStrategy(ipus=1).scope():
        alone = compiled(bert(size, 64, "float32"), MICRO_BATCHES)
        alone.set_gradient_accumulation_options(MICRO_BATCHES)
    times, peaks = in_turn([piped, alone], [2, 2], x, y, executions)
    profile = ipu.executable(piped).profile()
    found = figures(times[0], times[1], 1, profile, (peaks[0], peaks[1]))
    ratios = [a / b for a, b in zip(times[0][1:], times[1][1:], strict=True)]
    note = f"four IPUs emulate {statistics.median(ratios):.2f} times as long as one for the same 16 sentences"
    return {**found, "note": note + f"; on chips they would take {profile.cycles:,} cycles, one "
            f"{ipu.executable(alone).profile().cycles:,}"}  # fmt: skip


def bert_base_pipeline(executions: int) -> Figures:
    """BERT-Base in fp16 over four IPUs, 8 micro-batches of 2 x 128 and an update; XLA trains on the same 16 in fp32."""
    import ipu_keras as ipu

    size = {"vocabulary_size": 30522, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "intermediate_dim": 3072}
    x, y = sentences(2 * MICRO_BATCHES, 128, 30522)
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = STAGES
    # Without it the first stages' activations do not fit, as in examples/pipeline_bert.py.
    config.allow_recompute = True
    config.configure_ipu_system()
    with ipu.IPUStrategy(ipus=STAGES).scope():
        piped = compiled(bert(size, 128, "float16"), MICRO_BATCHES)
        in_stages(piped, 12)
    twin = compiled(bert(size, 128, "float32"), 1, jit_compile=True)
    times, peaks = in_turn([piped, twin], [2, 2 * MICRO_BATCHES], x, y, min(executions, 3))
    return figures(times[0], times[1], 1, ipu.executable(piped).profile(), (peaks[0], peaks[1]))


CASES: dict[str, Callable[[int], Figures]] = {"pipeline": pipeline, "bert_base_pipeline": bert_base_pipeline}
