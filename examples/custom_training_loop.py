"""A training loop of one's own on an emulated IPU: a dataset goes in, losses come out, the loop is on the device.

    apt-get install dataset-fashion-mnist  # without it, the digits of scikit-learn are used
    python examples/custom_training_loop.py
    python examples/custom_training_loop.py --quick  # less data, fewer steps

The Keras layers and the optimizer are ordinary ones. An infeed queue hands the dataset's batches to `loops.repeat`, one
a turn, and an outfeed queue collects what each turn finds; `strategy.run` runs all turns as one program of the device.
Each printed figure is measured in this run.
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
import tensorflow as tf
from keras import layers

import ipu_keras as ipu

BATCH = 50
STEPS = 20  # of one execution


def pictures(quick: bool) -> tuple[str, data.Labelled, data.Labelled]:
    """The name of the data, (images, labels) to train on, and to test with; pixels from 0 to 1.

    Args:
        quick: fewer of them.
    """
    name, train, test = "Fashion-MNIST", 10_000, 2_000
    try:
        (x, y), (x_test, y_test) = data.fashion_mnist()
    except data.Missing as missing:
        print(f"{missing}\nUsing the digits of scikit-learn instead.")
        name, ((x, y), (x_test, y_test)) = "scikit-learn's digits", data.digits()
    if quick:
        train, test = 1_000, 200

    def floats(images: np.ndarray) -> np.ndarray:
        return (images / 255).astype(np.float32)

    train, test = (min(n, len(part)) // BATCH * BATCH for n, part in ((train, x), (test, x_test)))
    return name, (floats(x[:train]), y[:train]), (floats(x_test[:test]), y_test[:test])


def network(shape: tuple[int, ...]) -> Any:
    """The model.

    Args:
        shape: of a picture.
    """
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input(shape), layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)]
    )


def main() -> None:
    """Trains in executions of STEPS steps, prints the losses of each, then tests."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less data, fewer steps")
    quick = parser.parse_args().quick
    name, (x, y), (x_test, y_test) = pictures(quick)
    print(f"{name}: {len(x)} pictures to train on, batch {BATCH}, {STEPS} steps an execution")

    model = network(x.shape[1:])
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(2e-3)

    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(BATCH, drop_remainder=True)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(batches.repeat())
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    test_infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(
        tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(BATCH, drop_remainder=True)
    )

    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = loss_of(labels, logits)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        right = tf.reduce_mean(tf.cast(tf.argmax(logits, 1, tf.int32) == labels, tf.float32))
        return outfeed.enqueue({"loss": loss, "accuracy": right})

    @tf.function
    def train() -> None:
        ipu.loops.repeat(STEPS, train_step, infeed_queue=infeed)

    def test_step(correct: Any, images: Any, labels: Any) -> Any:
        found = tf.argmax(model(images), 1, tf.int32) == labels
        return correct + tf.reduce_sum(tf.cast(found, tf.int32))

    @tf.function
    def test() -> Any:
        return ipu.loops.repeat(len(x_test) // BATCH, test_step, [0], test_infeed)[0]

    strategy = ipu.IPUStrategy()
    executions = 4 if quick else 20
    start = time.perf_counter()
    for number in range(executions):
        strategy.run(train)
        found = outfeed.dequeue()  # a loss and an accuracy of each step
        first, last = (found["loss"][i].numpy() for i in (0, -1))
        mean = 100 * np.mean(found["accuracy"])
        print(f"  execution {number + 1:2}: loss {first:.3f} to {last:.3f}, accuracy {mean:.1f}% while training")
    seconds = time.perf_counter() - start
    accuracy = strategy.run(test).numpy() / len(x_test)
    profile = strategy.executable(train).profile()
    print(
        f"Accuracy    {100 * accuracy:.1f}% on {len(x_test)} pictures not trained on\n"
        f"Execution   {profile.cycles:,} cycles on the {profile.program.header['target']['name']}, an estimate: "
        f"{STEPS * BATCH / profile.seconds:,.0f} pictures/s\n"
        f"Emulation   {seconds:.1f} s for {executions} executions of {STEPS} steps, with tracing and compiling"
    )


if __name__ == "__main__":
    main()
