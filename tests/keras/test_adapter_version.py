"""Fails by name when a Keras release moves what `adapter` relies on."""

import inspect

import keras
import pytest

from ipu_keras.keras import adapter


def version(text):
    return tuple(int(part) for part in text.split(".")[:2])


def test_keras_is_a_release_the_adapter_was_tried_with():
    oldest, newest = map(version, adapter.TESTED)
    found = version(keras.__version__)
    assert found >= oldest, f"Keras {keras.__version__} is older than {adapter.TESTED[0]}"
    if found > newest:
        pytest.skip(f"Keras {keras.__version__} is newer than {adapter.TESTED[1]}: the tests below decide")


@pytest.mark.parametrize(
    "owner, name",
    [
        (adapter.Model, "__new__"),
        (adapter.Layer, "_open_name_scope"),
        (adapter.BaseOptimizer, "apply"),
        (adapter.compile_utils.CompileLoss, "__call__"),
        (adapter.compile_utils.MetricsList, "update_state"),
        (adapter.Trainer, "get_metrics_result"),
        (adapter.Trainer, "run_eagerly"),
        (adapter.Trainer, "jit_compile"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_members_that_are_wrapped(owner, name):
    assert name in vars(owner)


def test_what_is_read_from_keras():
    assert isinstance(vars(adapter.Model)["__new__"], staticmethod)
    assert isinstance(adapter.base_run_eagerly, property) and isinstance(adapter.base_jit_compile, property)
    assert adapter.api_export.REGISTERED_OBJS_TO_NAMES[keras.Sequential]
    assert isinstance(adapter.object_registration.GLOBAL_CUSTOM_NAMES, dict)
    layer = keras.layers.Dropout(0.5)
    for name in ("_trainable_variables", "_non_trainable_variables", "_seed_generators"):
        assert hasattr(layer, name)
    model = keras.Sequential([keras.layers.Dense(1)])
    assert len(list(model._flatten_layers(include_self=True, recursive=True))) == 2
    for name in (*adapter.MODEL_FUNCTIONS, "train_step", "test_step", "predict_step"):
        assert callable(getattr(model, name))
    for name in ("train_function", "test_function", "predict_function", "steps_per_execution"):
        assert hasattr(model, name)


def test_arguments_of_fit_evaluate_and_predict():
    model = keras.Sequential([keras.layers.Dense(1)])
    expected = {
        "fit": {"x", "batch_size", "validation_split", "validation_data", "steps_per_epoch", "validation_steps"},
        "evaluate": {"x", "batch_size", "steps"},
        "predict": {"x", "batch_size", "steps"},
    }
    for name, arguments in expected.items():
        assert arguments <= set(inspect.signature(getattr(model, name)).parameters)
