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


def test_arguments_that_a_task_passes_on():
    """A task of keras-hub names few of Keras's arguments; the others count too."""
    import tensorflow as tf

    from ipu_keras import IPUStrategy

    build = CONFIGURATIONS["BertTextClassifier"]
    with IPUStrategy().scope():
        model, x, y = build()
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    endless = tf.data.Dataset.from_tensor_slices((x, y)).batch(len(y), drop_remainder=True).repeat()
    history = model.fit(
        endless, epochs=2, steps_per_epoch=3, validation_data=endless, validation_steps=2, verbose=0
    ).history
    assert model.optimizer.iterations == 6
    assert np.isfinite(history["val_loss"]).all()
    tested = model.evaluate(endless, steps=2, return_dict=True, verbose=0)
    np.testing.assert_allclose(tested["loss"], history["val_loss"][-1], rtol=1e-6)
    assert len(model.predict(endless.map(lambda x, y: x), steps=2, verbose=0)) == 2 * len(y)
