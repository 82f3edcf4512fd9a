"""Trains a small ConvNet on scikit-learn's digits on an emulated IPU, evaluates and saves it.

    python examples/train_digits.py

Only the two lines marked below differ from an ordinary Keras script.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

from ipu_keras import IPUStrategy  # <- this

EPOCHS = int(os.environ.get("EXAMPLE_EPOCHS", "10"))


def main() -> None:
    """Trains, evaluates, saves."""
    keras.utils.set_random_seed(0)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    x = (digits.images[order, :, :, None] / 16).astype("float32")
    y = digits.target[order].astype("int32")

    with IPUStrategy(target="gc200").scope():  # <- and this
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(16, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dropout(0.25),
                layers.Dense(10),
            ]
        )
        # Whole batches, and whole executions: 1,408 digits are 44 batches of 32, and these 4 executions of 11.
        # (The chip runs static programs: a partial batch is an error that says so, not a silent recompilation.)
        model.compile(
            keras.optimizers.Adam(2e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=11,
        )
        model.fit(x[:1408], y[:1408], batch_size=32, epochs=EPOCHS)
        results = model.evaluate(x[1408:1760], y[1408:1760], batch_size=32, return_dict=True)
    print(f"accuracy on digits not trained on: {results['accuracy']:.4f}")
    model.save(os.environ.get("EXAMPLE_SAVE", "digits.keras"))


if __name__ == "__main__":
    main()
