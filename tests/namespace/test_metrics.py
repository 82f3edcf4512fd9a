"""Every metric of `keras.metrics`, while training and in `evaluate`, against plain Keras."""

import keras
import numpy as np
import pytest

from tests.against_keras import BATCH, LOSS_TOLERANCE, distances, pair, trained
from tests.namespace.choose import cases
from tests.namespace.target_cases import KINDS, METRICS, NOT_METRICS, inputs, network

CLASSES = {name for name, value in vars(keras.metrics).items() if isinstance(value, type)}


def test_every_metric_is_decided():
    assert CLASSES <= set(METRICS) | set(NOT_METRICS)


@pytest.mark.parametrize("name", cases(METRICS, keras.metrics, {"AUC", "SparseCategoricalAccuracy"}))
def test_metric(name):
    case = METRICS[name]

    def model():
        result = network(case)
        loss = "mse" if KINDS[case.kind].targets().ndim > 1 else "sparse_categorical_crossentropy"
        metric = getattr(keras.metrics, name)(**case.options, name="metric")
        # A rate so small that no prediction moves over a threshold by rounding.
        result.compile(keras.optimizers.SGD(0.01), loss, metrics=[metric], jit_compile=True)
        return result

    x, y = inputs(), KINDS[case.kind].targets()
    ours, theirs = pair(model)
    for ran, expected in (
        (trained(ours, x, y)[0], trained(theirs, x, y)[0]),
        *[[m.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True) for m in (ours, theirs)]],
    ):
        assert list(ran) == list(expected)
        assert np.isfinite(expected["metric"]).all()
        assert all(d <= LOSS_TOLERANCE for d in distances(ran, expected).values()), (ran, expected)
