"""Trains a small network on scikit-learn's digits on four emulated IPUs, and on one with the same effective batch.

    python examples/replicated_digits.py
    python examples/replicated_digits.py --quick  # fewer epochs

Each of the four IPUs holds the whole model (a replica) and works on its own batches. Gradients are added up over a few
batches, then over the replicas, and all replicas make the same weight update. One IPU that adds up over four times as
many batches makes the same one. Only the lines marked below differ from an ordinary Keras script. Each printed figure
is measured in this run; cycles are the emulator's estimate.
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
from keras import layers

import ipu_keras  # <- this

REPLICAS = 4
BATCH = 16  # of one replica, for one step
UPDATE = 128  # samples of a weight update, over all replicas
UPDATES = 3  # of one execution
LEARNING_RATE = 0.1


def digits() -> tuple[data.Labelled, data.Labelled]:
    """((images, labels) to train, to test): as many as make whole executions."""
    (x, y), (x_test, y_test) = data.digits()
    train, test = (len(part) // (UPDATES * UPDATE) * UPDATES * UPDATE for part in (x, x_test))

    def floats(images: np.ndarray) -> np.ndarray:
        return (images / 255).astype(np.float32)

    return (floats(x[:train]), y[:train]), (floats(x_test[:test]), y_test[:test])


def network(replicas: int) -> Any:
    """The compiled model.

    Args:
        replicas: how many there are.
    """
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            layers.Flatten(),
            layers.Dense(256, activation="tanh"),
            layers.Dense(10),
        ]
    )
    model.compile(
        # The update gets the sum of the replicas' gradients: divided here, it is their mean.
        keras.optimizers.SGD(LEARNING_RATE / replicas, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        # Whole executions, counted in steps of a replica: 3 of them are an epoch, one predicts all of the test.
        steps_per_execution=UPDATES * UPDATE // (BATCH * replicas),
    )
    return model


def train(ipus: int, epochs: int) -> tuple[Any, Any]:
    """A model that was trained on a number of IPUs, and the profile of a weight update.

    Args:
        ipus: IPUs, each with a replica of the model.
        epochs: how often all digits are seen.
    """
    (x, y), (x_test, y_test) = digits()
    start = time.perf_counter()
    accumulated = UPDATE // (BATCH * ipus)
    with ipu_keras.IPUStrategy(ipus=ipus).scope():  # <- and this
        model = network(ipus)
        model.set_gradient_accumulation_options(
            accumulated, gradient_accumulation_reduction_method="mean"
        )  # <- and this
        model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
        profile = ipu_keras.executable(model).profile()  # <- and this
        # Metrics are of one replica's digits; predictions are all, in order.
        correct = model.predict(x_test, batch_size=BATCH, verbose=0).argmax(1) == y_test
    print(
        f"{ipus} IPU{'s' if ipus > 1 else ''}: {accumulated} batches of {BATCH} on each for an update of {UPDATE}; "
        f"{time.perf_counter() - start:.1f} s in the emulation\n"
        f"    accuracy on {len(y_test)} unseen digits {100 * correct.mean():.1f}%\n"
        f"    {profile.cycles:,} cycles an update on the {profile.program.header['target']['name']}, "
        f"an estimate: {UPDATE / profile.seconds:,.0f} samples/s"
    )
    return model, profile


def main() -> None:
    """Trains on four IPUs and on one, and compares."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    epochs = 2 if parser.parse_args().quick else 10
    many, fast = train(REPLICAS, epochs)
    one, slow = train(1, epochs)
    weights = list(zip(many.get_weights(), one.get_weights(), strict=True))
    apart = max(np.abs(a - b).max() for a, b in weights)
    largest = max(np.abs(b).max() for _, b in weights)
    print(
        f"{REPLICAS} IPUs train {slow.cycles / fast.cycles:.2f} times as many samples a second as one\n"
        f"weights differ by {apart:.1e} at most, the largest is {largest:.2f}"
    )
    # The same sums in another order.
    assert apart < 1e-4 * largest, "the weights of four IPUs and of one must agree"


if __name__ == "__main__":
    main()
