"""Every layer of `keras.layers` trains as in plain Keras, or is refused by name where plain Keras fails, too."""

import keras
import numpy as np
import pytest

from ipu_keras import IPUStrategy
from ipu_keras.errors import IPUError
from tests.against_keras import BATCH, check_training, fresh
from tests.namespace.choose import cases
from tests.namespace.layer_cases import CASES, EXCEPTIONS, REFUSED, Case, public_layers

# One of each family runs always.
ALWAYS = {
    "Attention",
    "BatchNormalization",
    "Concatenate",
    "Conv2D",
    "Dropout",
    "Embedding",
    "LSTM",
    "MaxPooling2D",
    "PReLU",
    "RandomFlip",
    "Reshape",
}


def test_every_layer_is_decided():
    assert set(public_layers()) <= set(CASES) | set(REFUSED) | set(EXCEPTIONS)


def test_no_layer_is_decided_twice():
    assert not set(CASES) & set(REFUSED) | set(CASES) & set(EXCEPTIONS) | set(REFUSED) & set(EXCEPTIONS)


def inputs(case: Case):
    rng = np.random.default_rng(1)
    arrays = []
    for shape in case.shapes:
        shape = (2 * BATCH, *shape)
        if isinstance(case.data, int):
            arrays.append(rng.integers(0, case.data, shape).astype(np.int32))
        elif case.data == "text":
            arrays.append(np.full(shape, "a", object))
        else:
            array = rng.random(shape) if case.data == "image" else rng.normal(size=shape)
            arrays.append(array.astype(np.float32))
    return arrays if len(arrays) > 1 else arrays[0]


def model(case: Case):
    dtype = "string" if case.data == "text" else "int32" if isinstance(case.data, int) else "float32"
    tensors = symbolic = [keras.Input(shape, dtype=dtype) for shape in case.shapes]
    if case.data == "float":
        tensors = [keras.layers.Dense(t.shape[-1])(t) for t in symbolic]
    output = case.build()(*tensors)
    if output.dtype != "float32":
        output = keras.ops.cast(output, "float32")
    if len(output.shape) > 2:
        output = keras.layers.Flatten()(output)
    result = keras.Model(symbolic, keras.layers.Dense(2)(output))
    result.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return result


def targets():
    return np.random.default_rng(2).normal(size=(2 * BATCH, 2)).astype(np.float32)


@pytest.mark.parametrize("name", cases(CASES, keras.layers, ALWAYS))
def test_layer(name):
    check_training(lambda: model(CASES[name]), inputs(CASES[name]), targets())


@pytest.mark.parametrize("name", cases(REFUSED, keras.layers, {"StringLookup"}))
@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`")
def test_refusal_names_the_operation(name):
    case, operation = REFUSED[name]
    with IPUStrategy().scope():
        ours = fresh(lambda: model(case))
    with pytest.raises(IPUError, match=operation):
        ours.fit(inputs(case), targets(), batch_size=BATCH, verbose=0)


@pytest.mark.parametrize("name", cases(REFUSED, keras.layers, {"StringLookup"}))
@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`")
def test_plain_keras_does_not_compile_it_either(name):
    case, _ = REFUSED[name]
    theirs = fresh(lambda: model(case))
    if theirs.jit_compile:
        with pytest.raises(Exception, match="XLA"):
            theirs.fit(inputs(case), targets(), batch_size=BATCH, verbose=0)


def test_what_xla_compiles_anew_for_each_batch_is_refused():
    """TensorFlow hands this layer's data to XLA as constants of the program; a program for the chip has no such."""
    case = Case(lambda: keras.layers.CategoryEncoding(4, output_mode="multi_hot"), ((3,),), 4)
    with IPUStrategy().scope():
        ours = fresh(lambda: model(case))
    with pytest.raises(IPUError, match="DenseBincount"):
        ours.fit(inputs(case), targets(), batch_size=BATCH, verbose=0)
