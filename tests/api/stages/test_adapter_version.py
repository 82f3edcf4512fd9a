"""Fails by name when a Keras release moves what the pipeline's adapter relies on."""

import inspect

import keras
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.keras.pipeline import adapter


@pytest.mark.parametrize(
    "owner, name",
    [
        (adapter.Node, "__init__"),
        (adapter.Operation, "__init__"),
        (adapter.Operation, "__call__"),
        (adapter.Layer, "__call__"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_members_that_are_wrapped(owner, name):
    assert name in vars(owner)


def test_members_that_are_read():
    inputs = keras.Input((2,))
    layer = keras.layers.Dense(1)
    model = keras.Model(inputs, layer(inputs))
    sequential = keras.Sequential([keras.Input((2,)), layer])
    node = layer._inbound_nodes[0]
    assert [t._keras_history.operation for t in node.arguments.keras_tensors] == [inputs._keras_history.operation]
    assert node in [n for nodes in model._nodes_by_depth.values() for n in nodes]
    assert isinstance(sequential._functional, adapter.Functional) and layer._build_shapes_dict
    assert not adapter.might_have_unbuilt_state(model)


def test_a_layers_own_build_is_still_in_its_dict():
    """`Build` comes before it, as it has a setter; without that, stages of models would not be looked at."""
    with IPUStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(1)])
    assert "build" in vars(model) and model.build is not vars(model)["build"]
    assert list(inspect.signature(model.build).parameters) == list(inspect.signature(vars(model)["build"]).parameters)
    model.build((None, 2))
    assert model.built and model.weights[0].shape == (2, 1)
