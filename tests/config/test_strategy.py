"""Strategies without a target of their own are for the configured system, whenever it is configured."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras as ipu
from ipu_keras import IPUStrategy
from ipu_keras.config.table import OPTIONS
from ipu_keras.target import TARGETS, Target


def configure(version="", tiles=0, proportion=None):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.device_connection.version, config.ipu_model.tiles_per_ipu = version, tiles
    if proportion is not None:
        config.matmuls.poplar_options["availableMemoryProportion"] = str(proportion)
    config.configure_ipu_system()


def small(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    return model


X, Y = np.ones((4, 4), np.float32), np.zeros((4, 2), np.float32)


def chip(executable):
    header = executable.program.header
    return header["target"]["name"], header["target"]["tiles"]


def test_without_a_system_it_is_a_gc200():
    assert IPUStrategy().target == TARGETS["gc200"] and IPUStrategy().options is None
    assert IPUStrategy(options={"seed": 1}).options == {"seed": 1}


def test_models_and_functions_are_compiled_for_the_system():
    configure("ipu21", 16, 0.3)
    strategy = IPUStrategy(options={"seed": 5})
    assert strategy.target == Target("c600", tiles=16, clock_hz=1.5e9, fp8_in_fp16_out_conv_units=16)
    model = small(strategy)
    model.fit(X, Y, batch_size=4, verbose=0)
    trained = ipu.executable(model)
    assert chip(trained) == ("c600", 16)
    assert len(trained.profile().memory.by_tile) == 16
    assert trained.options["available_memory_proportion"] == 0.3 and trained.options["seed"] == 5
    double = tf.function(lambda x: x * 2)
    assert strategy.run(double, (X,)).numpy().sum() == 32
    assert chip(strategy.executable(double)) == ("c600", 16)


def test_arguments_win():
    configure("ipu1", 16, 0.3)
    half = IPUStrategy(options={"available_memory_proportion": 0.5})
    assert half.options == {"half_overflow": "clip", "available_memory_proportion": 0.5}
    own = IPUStrategy(target="bow", options={"seed": 1})
    assert own.target == TARGETS["bow"] and own.options == {"seed": 1}
    assert IPUStrategy(target="gc200").target == TARGETS["gc200"]
    strict = IPUStrategy(strict=True)
    assert strict.options == {"half_overflow": "clip", "available_memory_proportion": 0.3, "guard_bytes": 8}
    assert strict.target.tiles == 16


@pytest.mark.parametrize("kind", ["keras", "tf_keras"])
def test_the_system_may_be_configured_after_the_model_is_made_and_again(kind):
    if kind == "keras":
        model = small(IPUStrategy())
    else:
        tf_keras = pytest.importorskip("tf_keras", reason="the extra 'tf-keras' is not installed")
        with IPUStrategy().scope():
            model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(4,))])
            model.compile("sgd", "mse")
    seen, losses = [], []
    for version, tiles in (("ipu1", 16), ("ipu1", 16), ("ipu2", 8)):
        configure(version, tiles)
        losses.append(model.fit(X, Y, batch_size=4, verbose=0).history["loss"][0])
        seen.append(ipu.executable(model))
    assert [chip(e) for e in seen] == [("gc2", 16), ("gc2", 16), ("gc200", 8)]
    assert seen[0] is seen[1]  # nothing has changed, nothing is compiled
    assert losses[0] > losses[1] > losses[2]  # the weights go along


def test_functions_are_compiled_anew():
    strategy = IPUStrategy()
    total = tf.Variable(0.0)
    add = tf.function(lambda x: total.assign_add(tf.reduce_sum(x)))
    found = []
    for tiles in (8, 8, 16):
        configure(tiles=tiles)
        strategy.run(add, (X,))
        found.append(strategy.executable(add))
    assert float(total) == 48
    assert found[0] is found[1] and [chip(e)[1] for e in found] == [8, 8, 16]
    ipu.config.reset_ipu_configuration()
    assert strategy.target == TARGETS["gc200"] and strategy.options is None


def test_the_document_s_script():
    text = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.S)
    names = {}
    exec(script, names)
    assert names["strategy"].target == TARGETS["c600"]
    wanted = {"half_overflow": "clip", "available_memory_proportion": 0.3, "matmul_partials": "half"}
    assert names["strategy"].options == wanted


def test_the_document_s_table_is_of_the_options_that_act():
    text = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    table = text.partition("## What acts")[2].partition("**Which chip.**")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`([\w.]+)`", " ".join(first))) == [n for n, o in OPTIONS.items() if o.acts]


class Generates(keras.Model):
    """What keras-hub's models have and `generate` needs."""

    def make_generate_function(self):
        raise AssertionError("the strategy makes it")

    def generate_step(self, x):
        return x + 1


def test_generation_is_compiled_anew():
    model = None
    found = []
    for tiles in (8, 8, 16):
        configure(tiles=tiles)
        if model is None:
            with IPUStrategy().scope():
                model = Generates()
            model.generate_function = None
        assert np.asarray(model.make_generate_function()(X)).sum() == 32
        found.append(ipu.executable(model, "generate"))
    assert found[0] is found[1] and [chip(e)[1] for e in found] == [8, 8, 16]
