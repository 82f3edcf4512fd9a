"""Options of single stages: the planner keeps to them in their stage, and in no other."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import ipu_keras as ipu
from ipu_keras.pipelining import PipelineStageOptions
from ipu_runtime.codelets import registry
from ipu_runtime.opcodes import DTYPE_NUMBER

UNITS, MICRO = 256, 4
NONE = PipelineStageOptions()
weights = {}
"""By executable: what the model had learnt."""


def trained(**options):
    """Two equal fp16 layers, one a stage; the executable of a training step."""
    keras.utils.set_random_seed(3)
    with ipu.IPUStrategy(ipus=2).scope():
        x = inputs = keras.Input((UNITS,), dtype="float16")
        for stage in range(2):
            with ipu.keras.PipelineStage(stage):
                x = keras.layers.Dense(UNITS, activation="tanh", dtype="float16", name=f"dense_{stage}")(x)
        model = keras.Model(inputs, x)
        model.compile("sgd", "mse", steps_per_execution=MICRO)
        model.set_pipelining_options(MICRO, gradient_accumulation_reduction_method="mean", **options)
    data = np.random.default_rng(0).normal(size=(2, 32 * MICRO, UNITS)).astype(np.float16)
    model.fit(*data, batch_size=32, verbose=0)
    exe = ipu.executable(model)
    weights[exe] = model.get_weights()
    return exe


def partials(exe):
    """For chip, forward or backward: the dtypes of the products' sums on the tiles."""
    names = {number: name for name, number in DTYPE_NUMBER.items()}
    found = {}
    program = exe.program
    for _, first, last, label in program.steps.tolist():
        for g in (program.group(i) for i in range(first, last)):
            if g.codelet == registry.DOT:
                part = "backward" if "|backward|" in program.header["labels"][label] else "forward"
                chip = int(g.tiles[0]) // (program.tile_count // 2)
                found.setdefault((chip, part), set()).add(names[int(g.params[4])])
    return found


def test_partial_sums_of_one_stage():
    half = PipelineStageOptions(matmul_options={"partialsType": "half"})
    exact = partials(trained())
    assert set().union(*exact.values()) == {"f32"}
    forward = partials(trained(forward_propagation_stages_poplar_options=[NONE, half]))
    backward = partials(trained(backward_propagation_stages_poplar_options=[half, NONE]))
    assert {k: v for k, v in forward.items() if v != {"f32"}} == {(1, "forward"): {"f16"}}
    assert {k: v for k, v in backward.items() if v != {"f32"}} == {(0, "backward"): {"f16"}}
    assert forward.keys() == backward.keys() == exact.keys()


def test_memory_of_one_stage():
    def largest(exe, layer):
        header = exe.program.header
        of_layer = [number for label, number in header["products"] if layer in header["labels"][label]]
        return max(header["plans"][number]["plans"][0]["tile_bytes"] for number in of_layer)

    free = trained()
    usual = largest(free, "dense_1")
    share = 0.8 * usual / free.program.header["target"]["bytes_per_tile"]
    little = PipelineStageOptions(matmul_options={"availableMemoryProportion": str(share)})
    exe = trained(
        forward_propagation_stages_poplar_options=[NONE, little],
        backward_propagation_stages_poplar_options=[NONE, little],
    )
    assert largest(exe, "dense_1") <= 0.8 * usual
    assert largest(exe, "dense_0") == largest(free, "dense_0")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_products_in_pieces_of_one_stage(phase):
    """No plan keeps to a thousandth of a tile: the stage's products are loops, inside of the loop over slots."""
    little = PipelineStageOptions(matmul_options={"availableMemoryProportion": "0.001"})
    exe = trained(**{f"{phase}_propagation_stages_poplar_options": [NONE, little]})
    header, steps = exe.program.header, exe.program.steps.tolist()
    (_, *inner) = header["loops"]
    labels = [header["labels"][label] for low, high, _ in inner for *_, label in steps[low : high + 1]]
    of_layers = [label for label in labels if "dense" in label]
    assert of_layers and all(f"dense_1|{phase}|" in label for label in of_layers)
    whole = trained()
    assert not whole.program.header["loops"][1:]
    for mine, theirs in zip(weights[exe], weights[whole], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


def test_what_does_nothing_is_named_once(caplog):
    odd = PipelineStageOptions(slice_options={"usedForSLIC": "true"}, matmul_options={"planConstraints": "{}"})
    with caplog.at_level("WARNING", "ipu_keras"):
        trained(backward_propagation_stages_poplar_options=[NONE, odd])
    (said,) = [r.getMessage() for r in caplog.records if "without an effect" in r.getMessage()]
    for name in ("matmuls['planConstraints'] = {}", "slices['usedForSLIC'] = true"):
        assert f"backward_propagation_stages_poplar_options[1] of {name}" in said


@pytest.mark.parametrize("value", ["1.5", "much"])
def test_values_that_cannot_be(value):
    bad = PipelineStageOptions(convolution_options={"availableMemoryProportion": value})
    with pytest.raises(
        ValueError, match=r"weight_update_poplar_options of convolutions\['availableMemoryProportion'\]"
    ):
        trained(weight_update_poplar_options=bad)
