"""Trains a small BERT on movie-review sentences three times on one emulated IPU: in fp32, and in fp16 with and without
stochastic rounding.

    pip install keras-hub
    pip download --no-deps --no-binary :all: -d examples/downloads vaderSentiment==3.3.2
    python examples/low_precision_sentiment.py
    python examples/low_precision_sentiment.py --quick    # a few steps of a smaller one

Adam changes a weight by about 0.0001 a step here. From 0.25 on that is less than half of the distance to the next fp16
number: rounded to nearest, the step is lost; rounded at random, it counts on average. Adam's own state is always fp32.
Each printed figure is measured in this run.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import finetune_sentiment
import keras
import numpy as np
import tensorflow as tf

import ipu_keras as ipu
from ipu_keras.config import IPUConfig, StochasticRoundingBehaviour

keras_hub = data.keras_hub()

BATCH, LENGTH, LOSS_SCALE = 40, 48, 128.0
LEARNING_RATE = 1e-4


class Adam(ipu.keras.optimizers.AdamIpuOptimizer):
    """With the rows' gradients that Keras's embeddings give, which the IPU API's optimizers want as whole arrays."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Updates the weights."""
        super().apply([tf.convert_to_tensor(g) for g in grads], trainable_variables)


def classifier(sentences: list[str], layers: int, width: int) -> Any:
    """The compiled classifier of two classes, with random weights.

    Args:
        sentences: whose words it shall know.
        layers: of the encoder.
        width: of its states.
    """
    keras.utils.set_random_seed(1)
    _, tokenizer = finetune_sentiment.small(sentences)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=tokenizer.vocabulary_size(), num_layers=layers, num_heads=2, hidden_dim=width,
        intermediate_dim=2 * width, max_sequence_length=LENGTH,
    )  # fmt: skip
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=LENGTH)
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
    # Small gradients would vanish in fp16: the loss is scaled, and the optimizer takes that out again.
    optimizer = Adam(LEARNING_RATE, m_dtype="float32", v_dtype="float32", loss_scale_factor=LOSS_SCALE)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=10,
    )
    return model


def trained(policy: str, rounding: StochasticRoundingBehaviour, train: Any, test: Any, options: Any) -> dict[str, Any]:
    """Trains a new model, and tests it.

    Args:
        policy: Keras's dtype policy.
        rounding: of fp16 results.
        train: sentences and labels.
        test: others.
        options: of the command line.
    """
    config = IPUConfig()
    config.auto_select_ipus = 1
    config.floating_point_behaviour.esr = rounding
    config.floating_point_behaviour.nanoo = True
    config.configure_ipu_system()
    ipu.utils.reset_ipu_seed(5)
    keras.config.set_dtype_policy(policy)
    start = time.perf_counter()
    with ipu.IPUStrategy().scope():
        model = classifier(train[0], *((1, 32) if options.quick else (2, 64)))
    before = [v.numpy() for v in model.trainable_variables]
    model.fit(
        *train, batch_size=BATCH, epochs=1 if options.quick else options.epochs, verbose=0 if options.quick else 2
    )
    results = model.evaluate(*test, batch_size=BATCH, verbose=0, return_dict=True)
    results["moved"] = np.mean(
        [np.mean(v.numpy() != b) for v, b in zip(model.trainable_variables, before, strict=True)]
    )
    results["cycles"] = ipu.executable(model).profile().cycles
    results["time"] = time.perf_counter() - start
    keras.config.set_dtype_policy("float32")
    return results


def main() -> None:
    """Trains, tests, reports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer sentences, a smaller model")
    parser.add_argument("--epochs", type=int, default=6, help="over 4,000 sentences (default: 6)")
    options = parser.parse_args()
    seen, unseen = (400, 200) if options.quick else (4000, 1000)
    texts, labels = data.movie_reviews(seen + unseen)
    train, test = (texts[:seen], labels[:seen]), (texts[seen:], labels[seen:])
    print(f"Data        {seen:,} sentences of movie reviews to train on, {unseen:,} others to test with")
    esr = StochasticRoundingBehaviour
    for name, policy, rounding in (
        ("fp32", "float32", esr.OFF),
        ("fp16, stochastic rounding", "float16", esr.ON),
        ("fp16, to nearest", "float16", esr.OFF),
    ):
        found = trained(policy, rounding, train, test, options)
        print(
            f"{name:26} accuracy {found['accuracy']:.1%}, loss {found['loss']:.3f}; {found['moved']:.0%} of the "
            f"weights have changed; {found['cycles']:,} cycles a step; {found['time']:.0f} s with compiling",
            flush=True,
        )


if __name__ == "__main__":
    main()
