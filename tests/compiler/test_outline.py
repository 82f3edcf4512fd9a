"""Equal products of a program that does not fit are one function: less code, equal numbers, each call its layer's."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import ipu_keras
from ipu_keras import IPUStrategy, errors
from ipu_keras.compiler import compile_module
from ipu_keras.compiler.executable import load
from ipu_keras.target import Target
from ipu_runtime.codelets import registry
from ipu_runtime.errors import ExecutableFormatError, FloatingPointTrap
from ipu_runtime.program import COMPUTE, EXCHANGE
from tests.compiler.test_out_of_memory import stack
from tests.parallel import pipelines

ROOMY = Target("roomy", tiles=4, bytes_per_tile=300_000, executable_bytes=300_000)


def short_of_code(exe):
    """The chip, but with less room for instructions than a program needs."""
    need = int(exe.profile().memory.executable.max())
    return dataclasses.replace(ROOMY, executable_bytes=need - 8)


def compiled(module, target, n, **options):
    return compile_module(module, target=target, state={i: i for i in range(1, n + 1)}, options=options)


@pytest.fixture(scope="module")
def both():
    """A training step of five layers, as it is and outlined."""
    _, args, module = stack(5)
    plain = compiled(module, ROOMY, 5)
    return plain, compiled(module, short_of_code(plain), 5), args, module


def ran(exe, args, **how):
    """All outputs and new weights of two steps."""
    engine = exe.engine(**how)
    for i, value in enumerate(args[1:], 1):
        engine.write_state(i, value)
    losses = [v for _ in range(2) for v in engine.run({0: args[0][None]}).values()]
    return [*losses, *(engine.read_state(i) for i in range(1, len(args)))]


def test_the_same_bits_with_less_code(both):
    plain, outlined, args, _ = both
    assert not plain.program.again.any() and outlined.program.again.any()
    for ours, theirs in zip(ran(outlined, args, strict=True), ran(plain, args), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    memory = [exe.profile().memory for exe in both[:2]]
    assert memory[1].executable.max() < memory[0].executable.max()
    assert memory[1].fixed["internalExchangeCode"].sum() < 0.8 * memory[0].fixed["internalExchangeCode"].sum()


def test_a_function_s_code_and_vertices_are_counted_once(both):
    _, outlined, _, _ = both
    program, found = outlined.program, outlined.profile()
    runs = [(first, last) for kind, first, last, _ in program.steps.tolist() if kind in (COMPUTE, EXCHANGE)]
    assert len(runs) > len(set(runs))
    own = {(first, last) for kind, first, last, _ in program.steps.tolist() if kind == COMPUTE}
    vertices = sum(int(program.groups[first:last, 1].sum()) for first, last in own)
    assert found.counts["vertices"] == vertices == sum(one.vertices for one in found.vertex_types)
    # Five products forward, five for weights and four for inputs backward: three kinds, some with operands that lie
    # differently.
    products = [first for kind, first, last, _ in program.steps.tolist() for g in range(first, last)
                if kind == COMPUTE and program.groups[g, 0] == registry.DOT]  # fmt: skip
    assert len(products) == 14 and len(set(products)) <= 8


def test_every_call_is_its_own_layer_s():
    with IPUStrategy(target=ROOMY).scope():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(40, name=f"d{i}") for i in range(5)]
        model = keras.Sequential([keras.Input((40,)), *layers])
    batch = tf.TensorSpec((6, 40), tf.float32)
    plain = ipu_keras.analyse(model, "predict", batch)
    with IPUStrategy(target=short_of_code(plain)).scope():
        again = keras.Sequential([keras.Input((40,)), *(keras.layers.Dense(40, name=f"d{i}") for i in range(5))])
        again.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)
    np.testing.assert_array_equal(again.predict(x, batch_size=6, verbose=0), model.predict(x, batch_size=6, verbose=0))
    exe = ipu_keras.executable(again, "predict")
    assert exe.program.again.any()
    found = exe.profile()
    flops = {cost.layer.rpartition("/")[2]: cost.flops for cost in found.layers if cost.flops}
    assert flops == {f"d{i}": 2 * 6 * 40 * 40 for i in range(5)}
    assert sum(cost.cycles for cost in found.layers) == pytest.approx(found.cycles)


@pytest.mark.parametrize("how", [{"strict": True}, {"threads": 2}])
def test_a_trap_names_the_call(both, how):
    plain, _, args, module = both
    exe = compiled(module, short_of_code(plain), 5, traps=["inv"])
    assert exe.program.again.any()
    weights = [a.copy() for a in args[1:]]
    weights[3][:] = np.inf
    with pytest.raises(FloatingPointTrap) as caught:
        ran(exe, [np.zeros_like(args[0]), *weights], **how)
    assert "MatMul_3" in str(caught.value) or "matmul_3" in str(caught.value)


def deep(stages, stage):
    """Four layers of the same shape in each stage."""
    x = inputs = keras.Input((48,))
    for k in range(stages):
        with stage(k):
            for _ in range(4):
                x = keras.layers.Dense(48, activation="tanh")(x)
    return keras.Model(inputs, x, name="deep")


def test_stages_that_are_worked_out_again():
    """Forward, again before the backward pass, and backward: a stage's products are called in several windows."""
    plan = pipelines.Plan(stages=2, micro=4, optimizer="momentum")
    x, y = pipelines.normal(plan.samples, 48), pipelines.normal(plan.samples, 48, seed=1)
    target, found = ROOMY, []
    for _ in range(2):
        with pipelines.recomputing(2):
            model = pipelines.in_scope(plan, deep, target=target)
            losses = model.fit(x, y, batch_size=plan.batch, shuffle=False, verbose=0).history["loss"]
        exe = ipu_keras.executable(model, "train")
        # Data is most of it here: the operands of one product at a time, not of all that can be done together.
        target = dataclasses.replace(ROOMY, bytes_per_tile=exe.profile().memory.max_tile_bytes - 8)
        found.append((exe.program, losses, model.get_weights()))
    assert not found[0][0].again.any() and found[1][0].again.any()
    for ours, theirs in zip(found[1][1:], found[0][1:], strict=True):
        np.testing.assert_array_equal(np.concatenate([np.ravel(a) for a in ours]),
                                      np.concatenate([np.ravel(a) for a in theirs]))  # fmt: skip


def test_where_it_is_not_wanted_the_program_does_not_fit(both):
    plain, _, _, module = both
    with pytest.raises(errors.IPUOutOfMemoryError):
        compiled(module, short_of_code(plain), 5, outline=False, internal_exchange="cycles")


@pytest.mark.parametrize("n", [2, 3])
def test_what_fits_without_it_fits(n):
    """A function's variables and copies may cost more than its code spares: less exchange code is tried as well."""
    _, _, module = stack(n)
    least = compiled(module, ROOMY, n, outline=False, internal_exchange="memory").profile().memory.max_tile_bytes
    target = dataclasses.replace(ROOMY, bytes_per_tile=least, executable_bytes=least)
    assert compiled(module, target, n).profile().memory.max_tile_bytes <= least


def test_a_file_keeps_it_and_one_that_cuts_a_function_is_refused(both, tmp_path):
    _, outlined, args, _ = both
    path = tmp_path / "a.ipu"
    outlined.save(path)
    for ours, theirs in zip(ran(load(path), args), ran(outlined, args), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    step = int(np.flatnonzero(outlined.program.again)[0])
    _, first, last, _ = outlined.program.steps[step].tolist()
    for column, value in ((1, first - 1), (2, last + 1), (0, 1 - outlined.program.steps[step, 0])):
        broken = dataclasses.replace(outlined.program, steps=outlined.program.steps.copy())
        broken.steps[step, column] = value
        type(outlined)(broken).save(path)
        with pytest.raises(ExecutableFormatError):
            load(path)
