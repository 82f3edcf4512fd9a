"""Every loss of `keras.losses`, as class and as function, against plain Keras."""

import functools
import inspect

import keras
import pytest

from tests.against_keras import check_training
from tests.namespace.choose import cases
from tests.namespace.target_cases import KINDS, LOSSES, NOT_LOSS_FUNCTIONS, NOT_LOSSES, inputs, network

CLASSES = {name for name, value in vars(keras.losses).items() if isinstance(value, type)}
ARGUMENTS = {"categorical_generalized_cross_entropy": {"q": 0.5}}
FUNCTIONS = {name for name, value in vars(keras.losses).items() if inspect.isfunction(value)}


def case_of(function):
    """The case of the class that a function belongs to: they are called alike."""
    found = [case for name, case in LOSSES.items() if name.lower() == function.replace("_", "")]
    assert len(found) == 1, f"no loss is called as {function}"
    return found[0]


def test_every_loss_is_decided():
    assert CLASSES <= set(LOSSES) | set(NOT_LOSSES)
    for function in FUNCTIONS - set(NOT_LOSS_FUNCTIONS):
        case_of(function)


def check_loss(case, loss):
    def model():
        result = network(case)
        result.compile(keras.optimizers.SGD(0.1), loss, jit_compile=True)
        return result

    check_training(model, inputs(), KINDS[case.kind].targets())


@pytest.mark.parametrize("name", cases(LOSSES, keras.losses, {"SparseCategoricalCrossentropy"}))
def test_loss(name):
    check_loss(LOSSES[name], getattr(keras.losses, name)(**LOSSES[name].options))


@pytest.mark.parametrize("name", cases(FUNCTIONS - set(NOT_LOSS_FUNCTIONS), keras.losses, {"huber"}))
def test_loss_function(name):
    function = functools.partial(getattr(keras.losses, name), **ARGUMENTS.get(name, {}))
    check_loss(case_of(name), functools.update_wrapper(function, getattr(keras.losses, name)))
