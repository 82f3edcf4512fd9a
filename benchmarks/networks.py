"""Steps of whole networks: convolutional, recurrent, and transformers as people fine-tune them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import Figures, predicting, training

FEW = 8  # timed executions at most, of steps that take a second


def _repeated(x: Any, y: Any, batch: int) -> Any:
    """The samples in batches, without end."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=True).repeat()


def _classifier_training(
    make_backbone: Callable[[], Any], vocabulary: int, batch: int, tokens: int, executions: int
) -> Figures:
    """The train step of a BERT with a classifier of two classes on random tokens, with Adam and dropout."""
    import keras
    import keras_hub

    def make(**options: Any) -> Any:
        model = keras_hub.models.BertTextClassifier(make_backbone(), num_classes=2, dropout=0.1, preprocessor=None)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(5e-5), loss, **options)
        return model

    rng = np.random.default_rng(0)
    ids = rng.integers(1, vocabulary, (2 * batch, tokens), np.int32)
    x = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": np.ones(ids.shape, bool)}
    data = _repeated(x, rng.integers(0, 2, 2 * batch, np.int32), batch)
    return training(make, data, 2, min(executions, FEW))


def bert(executions: int) -> Figures:
    """keras-hub's BERT with 4 layers of width 256, batch 8 x 128 tokens: a train step."""

    def backbone() -> Any:
        import keras_hub

        return keras_hub.models.BertBackbone(
            vocabulary_size=8000, num_layers=4, num_heads=4, hidden_dim=256, intermediate_dim=1024
        )

    return _classifier_training(backbone, 8000, 8, 128, executions)


def minilm(executions: int) -> Figures:
    """A BERT of the size of all-MiniLM-L6 (6 layers, width 384, 22.7 M weights), batch 10 x 48 tokens: a train step."""

    def backbone() -> Any:
        import keras_hub

        return keras_hub.models.BertBackbone(
            vocabulary_size=30522, num_layers=6, num_heads=12, hidden_dim=384, intermediate_dim=1536
        )

    return _classifier_training(backbone, 30522, 10, 48, executions)


def _resnet(**options: Any) -> Any:
    import keras

    model = keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=10, classifier_activation="linear"
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, **options)
    return model


def resnet(executions: int) -> Figures:
    """ResNet-50 on 64 x 64 pictures, batch 4: a train step with momentum."""
    rng = np.random.default_rng(0)
    x = rng.random((8, 64, 64, 3), np.float32)
    data = _repeated(x, rng.integers(0, 10, len(x), np.int32), 4)
    return training(_resnet, data, 2, min(executions, FEW))


def resnet_forward(executions: int) -> Figures:
    """ResNet-50 on 64 x 64 pictures, batch 8: predict."""
    x = np.random.default_rng(0).random((32, 64, 64, 3), np.float32)
    return predicting(_resnet, x, 8, min(executions, FEW))


def lstm(executions: int) -> Figures:
    """An LSTM of 128 units over 64 steps, batch 32: a train step."""
    import keras
    from keras import layers

    def make(**options: Any) -> Any:
        model = keras.Sequential([keras.Input((64, 32)), layers.LSTM(128), layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, **options)
        return model

    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 64, 32)).astype(np.float32)
    return training(make, _repeated(x, rng.integers(0, 10, 256, np.int32), 32), 8, executions)


CASES: dict[str, Callable[[int], Figures]] = {
    "bert": bert,
    "resnet": resnet,
    "resnet_forward": resnet_forward,
    "lstm": lstm,
    "minilm": minilm,
}
