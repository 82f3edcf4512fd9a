"""The weight update: each optimizer's state is on the chip of its weight, and leaves the chips if it shall."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import ipu_keras as ipu

STAGES, MICRO, UNITS = 3, 6, 8


def trained(**options):
    """Dense layers of one shape, one a stage: what the update makes for one of them it may not take for another."""
    keras.utils.set_random_seed(1)
    with ipu.IPUStrategy(ipus=4).scope():
        x = inputs = keras.Input((UNITS,))
        for stage in range(STAGES):
            with ipu.keras.PipelineStage(stage):
                x = keras.layers.Dense(UNITS, activation="tanh", name=f"dense_of_{stage}")(x)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse", steps_per_execution=MICRO)
        model.set_pipelining_options(MICRO, gradient_accumulation_reduction_method="mean", **options)
    fit(model)
    return model


def fit(model):
    data = np.random.default_rng(0).normal(size=(2, 2 * MICRO, UNITS)).astype(np.float32)
    model.fit(*data, batch_size=2, shuffle=False, epochs=2, verbose=0)


def chips_of(program):
    """Chips of each variable's tiles, by its label."""
    per_chip = program.tile_count // program.ipus
    found = {}
    for category, _, _, first, cells, label in program.variables.tolist():
        tiles = program.cells[first : first + cells, 0] // per_chip
        if category == 0 and "dense_of_" in program.header["labels"][label]:
            found[program.header["labels"][label]] = set(tiles.tolist())
    return found


def test_state_is_where_its_weight_is():
    found = chips_of(ipu.executable(trained(offload_weight_update_variables=False)).program)
    kernels = {label: chips for label, chips in found.items() if label.endswith("kernel") or "kernel_" in label}
    assert len(kernels) >= 3 * STAGES  # a weight and two moments each, at least
    for label, chips in kernels.items():
        assert chips == {int(label.split("dense_of_")[1][0])}, label


def test_offloaded_state_is_not_on_the_chips_between_updates():
    # Unless told otherwise, state leaves: streaming memory is there (api.md 7).
    here, away = trained(offload_weight_update_variables=False), trained()
    for mine, theirs in zip(here.get_weights(), away.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    moments = 2 * STAGES * 4 * UNITS * UNITS  # of the kernels, fp32; biases are too small to leave
    always = [variables_of(ipu.executable(model).program) for model in (here, away)]
    assert always[0] - always[1] == moments
    program = ipu.executable(away).program
    remote = [state for state in program.header["states"] if "remote" in state]
    assert sum(4 * int(np.prod(state["shape"])) for state in remote) == moments


def test_state_below_the_smallest_remote_tensor_stays():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 4
    config.optimizations.minimum_remote_tensor_size = 4 * UNITS * UNITS + 1
    config.configure_ipu_system()
    try:
        model = trained()
        assert not [s for s in ipu.executable(model).program.header["states"] if "remote" in s]
        config.optimizations.minimum_remote_tensor_size -= 1
        config.configure_ipu_system()  # the program is made anew
        fit(model)
        assert len([s for s in ipu.executable(model).program.header["states"] if "remote" in s]) == 2 * STAGES
    finally:
        ipu.config.reset_ipu_configuration()


def variables_of(program):
    """Bytes of weights, states and sums that are always on the tiles."""
    last = len(program.steps) - 1
    return sum(
        int(program.cells[first : first + cells, 2].sum())
        for category, begin, end, first, cells, _ in program.variables.tolist()
        if category == 0 and begin == 0 and end == last
    )


@pytest.mark.parametrize("offload", [False, True])
def test_the_update_is_that_of_plain_keras(offload):
    found = trained(offload_weight_update_variables=offload).get_weights()
    keras.utils.set_random_seed(1)
    twin = keras.Sequential([keras.Input((UNITS,))] + [keras.layers.Dense(UNITS, "tanh") for _ in range(STAGES)])
    twin.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse")
    data = np.random.default_rng(0).normal(size=(2, 2 * MICRO, UNITS)).astype(np.float32)
    twin.fit(*data, batch_size=2 * MICRO, shuffle=False, epochs=2, verbose=0)
    for mine, theirs in zip(found, twin.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
