"""Files, configs and clones of models made in the scope."""

import copy

import keras
import numpy as np
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.keras.model import IPUModel
from tests.keras import helpers


@keras.saving.register_keras_serializable("helpers")
class Registered(keras.Model):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense = keras.layers.Dense(units)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def functional():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    helpers.compile_mlp(model)
    return model


def subclassed():
    keras.utils.set_random_seed(1)
    model = Registered()
    helpers.compile_mlp(model)
    return model


MAKERS = {"sequential": helpers.mlp, "functional": functional, "subclassed": subclassed}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_keras_file(maker, tmp_path):
    inside, outside = helpers.pair(lambda: maker(), IPUStrategy()) if maker is not subclassed else (None, None)
    if inside is None:
        with IPUStrategy().scope():
            inside = maker()
        outside = maker()
    x, y = helpers.make_data(16)
    inside.fit(x, y, batch_size=8, verbose=0)
    path = tmp_path / "model.keras"
    inside.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded) is type(outside) and not isinstance(loaded, IPUModel)
    helpers.assert_same_weights(loaded, inside, rtol=0, atol=0)
    with IPUStrategy().scope():
        back = keras.saving.load_model(path)
    assert isinstance(back, IPUModel)
    expected = loaded.predict(x, batch_size=8, verbose=0)
    np.testing.assert_allclose(back.predict(x, batch_size=8, verbose=0), expected, rtol=1e-5, atol=1e-6)
    # the optimizer's state is in the file: both go on alike
    loaded.jit_compile = True
    helpers.assert_same_logs(
        back.fit(x, y, batch_size=8, shuffle=False, verbose=0).history,
        loaded.fit(x, y, batch_size=8, shuffle=False, verbose=0).history,
    )
    helpers.assert_same_weights(back, loaded)


def test_weights_file(tmp_path):
    inside, outside = helpers.pair()
    inside.fit(*helpers.make_data(16), batch_size=8, verbose=0)
    path = tmp_path / "model.weights.h5"
    inside.save_weights(path)
    outside.load_weights(path)
    helpers.assert_same_weights(inside, outside, rtol=0, atol=0)


def test_config_is_that_of_plain_keras():
    inside, outside = helpers.pair()
    a, b = keras.saving.serialize_keras_object(inside), keras.saving.serialize_keras_object(outside)
    for key in ("module", "class_name", "registered_name"):
        assert a[key] == b[key]
    with IPUStrategy().scope():
        registered = Registered()
    assert keras.saving.serialize_keras_object(registered)["registered_name"] == "helpers>Registered"


@pytest.mark.parametrize("maker", [helpers.mlp, functional], ids=["sequential", "functional"])
def test_clones(maker):
    with IPUStrategy().scope():
        inside = maker()
        inner = keras.models.clone_model(inside)
    outer = keras.models.clone_model(inside)
    again = type(inside).from_config(inside.get_config())
    copied = copy.deepcopy(inside)
    assert isinstance(inner, IPUModel)
    for model in (outer, again, copied):  # made outside the scope: plain models
        assert not isinstance(model, IPUModel) and isinstance(inside, type(model))
    for model in (inner, outer, again, copied):
        assert [type(a) for a in model.layers] == [type(b) for b in inside.layers]
    helpers.assert_same_weights(copied, inside, rtol=0, atol=0)
