"""Trains a small vision transformer on pictures of clothes (Fashion-MNIST) on one emulated IPU.

    pip install keras-hub && apt-get install dataset-fashion-mnist
    python examples/classify_images.py
    python examples/classify_images.py --quick  # fewer pictures; the digits of scikit-learn if there are no others

Only the two lines marked below differ from an ordinary Keras script. Each printed figure is measured in this run.
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
import report
import tensorflow as tf

from ipu_keras import IPUStrategy  # <- this

keras_hub = data.keras_hub()

BATCH = 40
EPOCHS = 2
STEPS_PER_EXECUTION = 5


def pictures(quick: bool) -> tuple[str, data.Labelled, data.Labelled]:
    """The name of the data, (images, labels) to train on, and to test with; pixels from 0 to 1, with a channel.

    Args:
        quick: fewer of them, and another set if Fashion-MNIST is missing.
    """
    name, train, test = "Fashion-MNIST", 10_000, 2_000
    try:
        parts = data.fashion_mnist()
    except data.Missing as missing:
        if not quick:
            raise
        print(f"{missing}\nUsing the digits of scikit-learn instead.")
        name, parts = "scikit-learn's digits", data.digits()
    if quick:
        train, test = 1_200, 400
    (x, y), (x_test, y_test) = parts

    def floats(images: np.ndarray) -> np.ndarray:
        return (images[..., None] / 255).astype(np.float32)

    return name, (floats(x[:train]), y[:train]), (floats(x_test[:test]), y_test[:test])


def transformer(size: int) -> Any:
    """The compiled ViT: 49 patches of 4 x 4 pixels for pictures of 28 x 28, 16 of 2 x 2 for the digits of 8 x 8.

    Args:
        size: pixels of a side.
    """
    keras.utils.set_random_seed(0)
    patch = 4 if size > 8 else 2
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(size, size, 1), patch_size=(patch, patch), num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=10, preprocessor=None)
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=STEPS_PER_EXECUTION,
    )
    return model


def main() -> None:
    """Trains, tests, reports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer pictures")
    options = parser.parse_args()
    name, train, test = pictures(options.quick)
    print(f"Data        {name}: {len(train[0]):,} pictures to train on, {len(test[0]):,} others to test with")

    with IPUStrategy(target="gc200").scope():  # <- and this
        model = transformer(train[0].shape[1])
    print(f"Model       {model.count_params():,} weights, batch {BATCH}", flush=True)
    start = time.perf_counter()
    model.fit(*train, batch_size=BATCH, epochs=EPOCHS, verbose=2)
    trained_in = time.perf_counter() - start
    results = model.evaluate(*test, batch_size=BATCH, verbose=0, return_dict=True)

    print(f"Accuracy    {results['accuracy']:.1%} on {len(test[0]):,} pictures not trained on, after {EPOCHS} epochs")
    report.describe(model, BATCH, "pictures")
    print(f"Time        {trained_in:.1f} s to train with compiling")
    batches = tf.data.Dataset.from_tensor_slices(train).batch(BATCH, drop_remainder=True)
    report.compare(model, transformer(train[0].shape[1]), batches, steps=5)


if __name__ == "__main__":
    main()
