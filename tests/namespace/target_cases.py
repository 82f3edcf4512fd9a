"""What each loss and metric of Keras is measured on: the last layer, the targets and the arguments that fit it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

SAMPLES, OUTPUTS = 8, 3


def rng() -> np.random.Generator:
    return np.random.default_rng(2)


def classes() -> np.ndarray:
    return np.array([0, 1, 2, 1, 2, 2, 0, 1])


@dataclass(frozen=True)
class Kind:
    """Of targets: the activation of the last layer and the targets that go with it."""

    activation: Any
    targets: Callable[[], np.ndarray]


KINDS = {
    "real": Kind(None, lambda: rng().normal(size=(SAMPLES, OUTPUTS)).astype(np.float32)),
    "positive": Kind("softplus", lambda: rng().random((SAMPLES, OUTPUTS)).astype(np.float32) + 0.1),
    "binary": Kind("sigmoid", lambda: rng().integers(0, 2, (SAMPLES, OUTPUTS)).astype(np.float32)),
    "sign": Kind("tanh", lambda: rng().integers(0, 2, (SAMPLES, OUTPUTS)).astype(np.float32) * 2 - 1),
    "one hot": Kind("softmax", lambda: np.eye(OUTPUTS, dtype=np.float32)[classes()]),
    "sparse": Kind("softmax", classes),
    "unit vector": Kind(lambda x: x / keras.ops.norm(x, axis=-1, keepdims=True), classes),
    "equal": Kind(
        lambda x: keras.ops.floor(x * 2), lambda: rng().integers(-1, 2, (SAMPLES, OUTPUTS)).astype("float32")
    ),
    "class numbers": Kind(
        lambda x: keras.ops.cast(x > 0, "float32"), lambda: rng().integers(0, 2, (SAMPLES, OUTPUTS)).astype("float32")
    ),
    "letters": Kind(None, lambda: rng().integers(1, 4, (SAMPLES, 2)).astype(np.int32)),
}


@dataclass(frozen=True)
class Case:
    kind: str
    options: dict[str, Any] = field(default_factory=dict)


LOSSES = {
    "BinaryCrossentropy": Case("binary", {"label_smoothing": 0.1}),
    "BinaryFocalCrossentropy": Case("binary", {"apply_class_balancing": True}),
    "CTC": Case("letters"),
    "CategoricalCrossentropy": Case("one hot"),
    "CategoricalFocalCrossentropy": Case("one hot"),
    "CategoricalGeneralizedCrossEntropy": Case("sparse"),
    "CategoricalHinge": Case("one hot"),
    "Circle": Case("unit vector"),
    "CosineSimilarity": Case("real"),
    "Dice": Case("binary"),
    "Hinge": Case("sign"),
    "Huber": Case("real", {"delta": 0.5}),
    "KLDivergence": Case("positive"),
    "LogCosh": Case("real"),
    "MeanAbsoluteError": Case("real"),
    "MeanAbsolutePercentageError": Case("positive"),
    "MeanSquaredError": Case("real"),
    "MeanSquaredLogarithmicError": Case("positive"),
    "Poisson": Case("positive"),
    "SparseCategoricalCrossentropy": Case("sparse", {"ignore_class": 2}),
    "SquaredHinge": Case("sign"),
    "Tversky": Case("binary"),
}
NOT_LOSSES = {"Loss": "the base class"}
NOT_LOSS_FUNCTIONS = {name: "makes or names losses" for name in ("deserialize", "get", "serialize")}

METRICS = {
    "AUC": Case("binary", {"num_thresholds": 20}),
    "Accuracy": Case("equal"),
    "BinaryAccuracy": Case("binary"),
    "BinaryCrossentropy": Case("binary"),
    "BinaryIoU": Case("binary"),
    "CategoricalAccuracy": Case("one hot"),
    "CategoricalCrossentropy": Case("one hot"),
    "CategoricalHinge": Case("one hot"),
    "ConcordanceCorrelation": Case("real"),
    "CosineSimilarity": Case("real"),
    "F1Score": Case("one hot", {"average": "macro"}),
    "FBetaScore": Case("one hot", {"beta": 2.0}),
    "FalseNegatives": Case("binary"),
    "FalsePositives": Case("binary", {"thresholds": [0.3, 0.6]}),
    "Hinge": Case("sign"),
    "IoU": Case("class numbers", {"num_classes": 2, "target_class_ids": [0]}),
    "KLDivergence": Case("positive"),
    "LogCoshError": Case("real"),
    "MeanAbsoluteError": Case("real"),
    "MeanAbsolutePercentageError": Case("positive"),
    "MeanIoU": Case("class numbers", {"num_classes": 2}),
    "MeanMetricWrapper": Case("real", {"fn": lambda y, p: keras.ops.mean(keras.ops.abs(y - p), -1)}),
    "MeanSquaredError": Case("real"),
    "MeanSquaredLogarithmicError": Case("positive"),
    "OneHotIoU": Case("one hot", {"num_classes": 3, "target_class_ids": [0, 2]}),
    "OneHotMeanIoU": Case("one hot", {"num_classes": 3}),
    "PearsonCorrelation": Case("real"),
    "Poisson": Case("positive"),
    "Precision": Case("binary"),
    "PrecisionAtRecall": Case("binary", {"recall": 0.5, "num_thresholds": 20}),
    "R2Score": Case("real"),
    "Recall": Case("binary", {"top_k": 2}),
    "RecallAtPrecision": Case("binary", {"precision": 0.5, "num_thresholds": 20}),
    "RootMeanSquaredError": Case("real"),
    "SensitivityAtSpecificity": Case("binary", {"specificity": 0.5, "num_thresholds": 20}),
    "SparseCategoricalAccuracy": Case("sparse"),
    "SparseCategoricalCrossentropy": Case("sparse"),
    "SparseTopKCategoricalAccuracy": Case("sparse", {"k": 2}),
    "SpecificityAtSensitivity": Case("binary", {"sensitivity": 0.5, "num_thresholds": 20}),
    "SquaredHinge": Case("sign"),
    "TopKCategoricalAccuracy": Case("one hot", {"k": 2}),
    "TrueNegatives": Case("binary"),
    "TruePositives": Case("binary"),
}
NOT_METRICS = {
    "Mean": "takes values, not targets and predictions: in every model, as its loss",
    "Metric": "the base class",
    "Sum": "takes values, not targets and predictions",
}


def inputs() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(SAMPLES, 5)).astype(np.float32)


def network(case: Case) -> keras.Model:
    """The model whose predictions are measured."""
    if case.kind == "letters":  # five places, each with logits of four letters
        return keras.Sequential([keras.Input((5,)), keras.layers.Dense(20), keras.layers.Reshape((5, 4))])
    # Where the last layer's values are steps, the penalty of this one is all that has a gradient.
    first = keras.layers.Dense(4, "tanh", activity_regularizer="l2")
    last = keras.layers.Dense(OUTPUTS, activation=KINDS[case.kind].activation)
    return keras.Sequential([keras.Input((5,)), first, last])
