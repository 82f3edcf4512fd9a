"""Small keras-hub models train and predict as in plain Keras: two steps of Adam, everything compared."""

import keras
import numpy as np
import pytest

from tests.against_keras import check_training
from tests.hub.configurations import CONFIGURATIONS, NotThere
from tests.sweep import in_turns

# An encoder, a decoder with experts, images. Of the others, about one runs each day: each takes ten seconds or more.
ALWAYS = {"BertTextClassifier", "MixtralCausalLM", "VGGImageClassifier"}
TURNS = 38


@pytest.mark.parametrize("name", in_turns(CONFIGURATIONS, TURNS, ALWAYS))
def test_train_and_predict(name):
    build = CONFIGURATIONS[name]
    try:
        _, x, y = build()
    except NotThere as absent:
        pytest.skip(str(absent))

    def model():
        result, _, _ = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        result.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=True)
        return result

    # The second batch is the first in reverse: a changed order of the samples with the same shapes.
    x, y = keras.tree.map_structure(lambda a: np.concatenate([a, a[::-1]]), (x, y))
    check_training(model, x, y, predict=True)
