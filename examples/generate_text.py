"""Trains a small GPT-2 letter by letter on one emulated IPU, then lets it write, greedily and by chance.

    pip install keras-hub && apt-get install --no-install-recommends fortunes
    python examples/generate_text.py
    python examples/generate_text.py --quick    # a smaller model; Python's own help texts, which are always there

Only the two lines marked below differ from an ordinary Keras script. Each printed figure is measured in this run.
"""

from __future__ import annotations

import argparse
import collections
import math
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import numpy as np
import report
import tensorflow as tf

import ipu_keras
from ipu_keras import IPUStrategy  # <- this

keras_hub = data.keras_hub()

LENGTH = 64  # letters of a sample, and of what is written
BATCH = 32
STEPS_PER_EXECUTION = 8
PROMPTS = ("The ", "When a ", "It is ")
UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class Letters:
    """Text to numbers and back: each letter that is frequent in a text has a number; 0 is for all others.

    Args:
        text: to learn the letters of.
    """

    def __init__(self, text: str) -> None:
        frequent = [letter for letter, times in collections.Counter(text).items() if times >= 10]
        self.letters = [UNKNOWN, *sorted(frequent)]
        self._numbers = {letter: i for i, letter in enumerate(self.letters)}

    def encode(self, text: str) -> np.ndarray:
        """The numbers of a text's letters, int32."""
        return np.array([self._numbers.get(letter, 0) for letter in text], np.int32)

    def decode(self, numbers: np.ndarray) -> str:
        """The text of numbers."""
        return "".join(self.letters[i] for i in numbers)


def samples(numbers: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Pieces of LENGTH letters in random order, and for each letter the next one; as many as whole executions take.

    Args:
        numbers: of the text.
    """
    count = (len(numbers) - 1) // LENGTH
    count -= count % (BATCH * STEPS_PER_EXECUTION)
    order = np.random.default_rng(0).permutation(count)  # keras-hub's models do not shuffle arrays
    letters = numbers[: count * LENGTH].reshape(count, LENGTH)[order]
    following = numbers[1 : count * LENGTH + 1].reshape(count, LENGTH)[order]
    return {"token_ids": letters, "padding_mask": np.ones(letters.shape, bool)}, following


def language_model(letters: int, quick: bool) -> Any:
    """The compiled GPT-2.

    Args:
        letters: how many there are.
        quick: whether it is the smaller one.
    """
    keras.utils.set_random_seed(0)
    width = 64 if quick else 128
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=letters, num_layers=1 if quick else 3, num_heads=4, hidden_dim=width,
        intermediate_dim=4 * width, max_sequence_length=LENGTH, dropout=0.0,
    )  # fmt: skip
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    model.compile(
        keras.optimizers.Adam(3e-3 if quick else 2e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        steps_per_execution=STEPS_PER_EXECUTION,
    )
    return model


def write(model: Any, letters: Letters, sampler: Any) -> list[str]:
    """What the model writes after each prompt.

    Args:
        model: trained.
        letters: of its text.
        sampler: of keras-hub, or its name.
    """
    model.compile(sampler=sampler)
    tokens = np.zeros((len(PROMPTS), LENGTH), np.int32)
    given = np.zeros(tokens.shape, bool)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)], given[row, : len(prompt)] = letters.encode(prompt), True
    written = model.generate({"token_ids": tokens, "padding_mask": given}, stop_token_ids=None)
    return [letters.decode(numbers) for numbers in np.asarray(written["token_ids"])]


def main() -> None:
    """Trains, tests, writes, reports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller model and Python's help texts")
    options = parser.parse_args()
    name, text = data.python_help() if options.quick else data.fortunes()
    if options.quick:
        text = text[:160_000]
    letters = Letters(text)
    numbers = letters.encode(text)
    cut = -BATCH * STEPS_PER_EXECUTION * LENGTH  # the end of the text is not trained on
    train, test = samples(numbers[:cut]), samples(numbers[cut - 1 :])
    frequent = np.bincount(test[1].ravel()).max() / test[1].size
    print(f"Data        {name}: {len(numbers):,} letters, {len(letters.letters)} different ones")
    epochs = 3 if options.quick else 4

    with IPUStrategy(target="gc200").scope():  # <- and this
        model = language_model(len(letters.letters), options.quick)
    print(f"Model       {model.count_params():,} weights, batch {BATCH} x {LENGTH} letters", flush=True)
    start = time.perf_counter()
    model.fit(*train, batch_size=BATCH, epochs=epochs, verbose=2)
    trained_in = time.perf_counter() - start
    results = model.evaluate(*test, batch_size=BATCH, verbose=0, return_dict=True)
    print(
        f"Accuracy    {results['accuracy']:.1%} of the next letters of text not trained on "
        f"(always the most frequent one: {frequent:.1%}); perplexity {math.exp(results['loss']):.2f}"
    )
    report.describe(model, BATCH * LENGTH, "letters")
    print(f"Time        {trained_in:.1f} s to train with compiling")
    batches = tf.data.Dataset.from_tensor_slices(train).batch(BATCH, drop_remainder=True)
    report.compare(model, language_model(len(letters.letters), options.quick), batches, steps=5)

    for title, sampler in (("Greedy", "greedy"), ("Top 5", keras_hub.samplers.TopKSampler(k=5, seed=0))):
        before, start = ipu_keras.executions(), time.perf_counter()
        written = write(model, letters, sampler)
        seconds, runs = time.perf_counter() - start, ipu_keras.executions() - before
        print(f"{title:12}{runs} device execution(s), {seconds:.1f} s with compiling:")
        for line in written:
            print(f"{'':12}{line!r}")


if __name__ == "__main__":
    main()
