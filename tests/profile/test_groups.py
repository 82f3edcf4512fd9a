"""Groups that are looked at once: what is taken from another, equal group is what the group itself would give."""

import numpy as np
import tensorflow as tf

from ipu_keras.compiler import compile_module
from ipu_keras.profile.groups import Groups
from ipu_keras.target import Target
from ipu_runtime.codelets import copy_model, registry
from ipu_runtime.program import COMPUTE, EXCHANGE
from tests.harness import hlo_of

rng = np.random.default_rng(1)


def test_equal_groups_share_and_others_do_not():
    def layers(x, *weights):
        for w in weights:
            x = tf.nn.softmax(tf.tanh(x @ w), -1)
        return x

    args = [rng.normal(size=s).astype(np.float32) for s in ((32, 96), *[(96, 96)] * 5)]
    program = compile_module(
        hlo_of(layers, *args)[0], target=Target("some", tiles=24), state=dict.fromkeys(range(1, 6))
    ).program
    groups, copies, vertices = Groups(program), [], []
    for kind, first, last, _ in program.steps.tolist():
        for i in range(first, last):
            g = program.group(i)
            if kind == EXCHANGE:
                copies.append(groups.traffic(i))
                for mine, own in zip(copies[-1], copy_model.traffic_of(g, 24, groups.rates), strict=True):
                    np.testing.assert_array_equal(mine, own)
            elif kind == COMPUTE:
                vertices.append(groups.busy(i))
                cycles = np.broadcast_to(registry.MODELS[g.codelet].cycles(g, groups.rates), g.rows)
                np.testing.assert_array_equal(vertices[-1].cycles, np.bincount(g.tiles, cycles, 24))
    assert len({id(one) for one in copies}) < len(copies)  # five equal layers


def test_a_broadcast_is_not_taken_for_copies_of_different_places():
    """Two groups that differ in the sources only: one sends the same bytes twice, the other different ones."""
    from tests.profile.test_cycles import copies, program_of, run_of

    target = Target("four", tiles=4)
    same, different = (copies([0, 0], [1, 2], start, [0, 0], run_of(50)) for start in ([8, 8], [8, 300]))
    moved = copies([0, 0], [1, 2], [108, 400], [0, 0], run_of(50))  # as `different`, elsewhere
    program = program_of(EXCHANGE, [same, different, moved], target)
    for column in (0, 1, 3, 4, 5, 6):  # equal columns are stored once, as the assembler does
        program.columns[column::7] = program.columns[column]
    groups = Groups(program)
    assert groups.traffic(0).sent.tolist() == [200, 0, 0, 0]
    assert groups.traffic(1).sent.tolist() == [400, 0, 0, 0]
    assert groups.traffic(2) is groups.traffic(1)
