"""Pipelines of functions: what they train and give out, beside float64 arithmetic."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy, optimizers
from ipu_keras import pipelining_ops as po
from ipu_keras.config import IPUConfig, reset_ipu_configuration
from ipu_keras.eager.backprop import GradientCaptureContext, GradientCaptureTape
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue
from ipu_keras.keras.optimizers import ALSOptimizer
from ipu_keras.ops import cross_replica_ops, replication_ops
from ipu_keras.ops.grad_util_ops import capture_upstream_gradients
from ipu_keras.pipelining_ops import OptimizerFunctionOutput, PipelineSchedule, PipelineStageOptions, RecomputationMode
from tests.api.pipelining_ops.nets import (
    BATCH,
    RATE,
    START,
    Momentum,
    Net,
    X,
    Y,
    data,
    forward,
    reference,
    run,
    same,
    sgd,
    trained,
    v1,
)

# ---- training ----


@pytest.mark.parametrize("schedule", list(PipelineSchedule), ids=lambda s: s.name)
@pytest.mark.parametrize("kind", ["keras", "tf1"])
def test_training(schedule, kind):
    optimizer = keras.optimizers.SGD(RATE, 0.9) if kind == "keras" else v1.MomentumOptimizer(RATE, 0.9)
    count = {PipelineSchedule.Interleaved: 2, PipelineSchedule.Sequential: 3}.get(schedule, 4)
    net, queue = trained(optimizer, count, repeat_count=2, pipeline_schedule=schedule, name="p")
    weights, losses = reference(Momentum(), count, repeat=2)
    same([queue.dequeue()], [losses[:, 0]])
    same(net.w, weights)


@pytest.mark.parametrize("kind", ["keras", "tf1", "mean"])
def test_replicas(kind):
    """Gradients are summed over the replicas, unless the optimizer takes the mean."""
    optimizer = {
        "keras": lambda: keras.optimizers.SGD(RATE),
        "tf1": lambda: v1.GradientDescentOptimizer(RATE),
        "mean": lambda: optimizers.CrossReplicaOptimizer(v1.GradientDescentOptimizer(RATE)),
    }[kind]()
    net, queue = trained(optimizer, ipus=4)
    weights, losses = reference(sgd, replicas=2, divisor=2 if kind == "mean" else 1)
    same([queue.dequeue()], [losses])
    same(net.w, weights)


@pytest.mark.parametrize("method", ["mean", "RUNNING_MEAN"])
def test_reduction_methods(method):
    net, _ = trained(keras.optimizers.SGD(RATE), reduction_method=method)
    same(net.w, reference(sgd, divisor=4)[0])


def test_the_optimizer_gets_the_wanted_dtype():
    seen = {}

    def cast(gradient, variable):
        seen[variable.shape[0]] = gradient.dtype
        return tf.cast(gradient, variable.dtype)

    optimizer = optimizers.MapGradientOptimizer(v1.GradientDescentOptimizer(RATE), cast)
    which = lambda v: tf.float16 if v.shape[0] == 3 else tf.float32  # noqa: E731
    net, _ = trained(optimizer, gradient_accumulation_dtype=which)
    assert seen == {3: tf.float16, 4: tf.float32}
    weights, _ = reference(sgd)
    same(net.w, weights, rtol=3e-3)
    assert np.abs(net.w[0] - weights[0]).max() > 1e-6 > np.abs(net.w[1] - weights[1]).max()
    net, _ = trained(keras.optimizers.SGD(RATE), gradient_accumulation_dtype=tf.float16)
    same(net.w, weights, rtol=3e-3)


def test_some_variables_only():
    for optimizer, chosen in (
        (keras.optimizers.SGD(RATE), lambda net: {"variables": [net.w[1]]}),
        (v1.GradientDescentOptimizer(RATE), lambda net: {"compute_gradients_kwargs": {"var_list": [net.w[1]]}}),
        (v1.GradientDescentOptimizer(RATE), lambda net: {"compute_gradients_args": ([net.w[1]],)}),
    ):
        net = Net()
        output = lambda opt, loss, n=net, c=chosen: OptimizerFunctionOutput(opt, loss, **c(n))  # noqa: E731
        trained(optimizer, output=output, net=net)
        same(net.w, [START[0], reference(sgd)[0][1]])


def test_apply_gradients_gets_its_arguments():
    step = tf.Variable(5, dtype=tf.int64)
    output = lambda opt, loss: OptimizerFunctionOutput(opt, loss, apply_gradients_kwargs={"global_step": step})  # noqa: E731
    trained(v1.GradientDescentOptimizer(RATE), output=output, repeat_count=3)
    assert step.numpy() == 8  # once a weight update


def test_a_tape_of_ones_own_and_captured_gradients():
    """The tape sees twice the loss; what it captures comes out, summed, beside the loss."""
    captured, net = IPUOutfeedQueue(), Net()
    infeed, losses = data(), IPUOutfeedQueue()
    tape, optimizer = GradientCaptureTape(), keras.optimizers.SGD(RATE / 2)

    def second(h, y):
        return capture_upstream_gradients(h, tag="h") @ net.w[1], y

    def optimize(p, y):
        loss = 2 * net.loss(p, y)
        return OptimizerFunctionOutput(optimizer, loss, tape=tape, captured_gradient_outfeed=captured)

    def program():
        with tape:
            po.pipeline(
                [net.first, second], 4, infeed_queue=infeed, outfeed_queue=losses, optimizer_function=optimize,
                outfeed_loss=True,
            )  # fmt: skip

    run(program)
    weights, values = reference(sgd)
    same(net.w, weights)
    same([losses.dequeue()], [2 * values[:, 0]])
    same([captured.dequeue()["h"]], [2 * sum(upstream(i) for i in range(4))[None]])


def upstream(batch):
    """Gradient of a batch's loss for the first layer's output."""
    at = slice(batch * BATCH, (batch + 1) * BATCH)
    _, p = forward(START, X[at])
    return 2 * (p - Y[at]) / BATCH @ START[1].astype(np.float64).T


def test_captured_gradients_of_each_micro_batch():
    captured, net, context = IPUOutfeedQueue(), Net(), GradientCaptureContext()

    def second(h, y):
        with context:
            return capture_upstream_gradients(h, tag="h") @ net.w[1], y

    net.second = second
    output = lambda opt, loss: OptimizerFunctionOutput(  # noqa: E731
        opt, loss, gradient_capture_context=context, captured_gradient_outfeed=captured
    )
    trained(keras.optimizers.SGD(RATE), output=output, net=net, gradient_accumulation_for_captured_grads=False)
    same([captured.dequeue()["h"]], [np.stack([upstream(i) for i in range(4)])])
    same(net.w, reference(sgd)[0])


def test_loss_scaling_is_undone():
    net, queue = trained(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), initial_scale=64.0))
    weights, losses = reference(sgd)
    same(net.w, weights)
    same([queue.dequeue()], [losses[:, 0]])


def wide(recompute=False, then=None, **arguments):
    """(losses, header) of a pipeline of three layers, of which the first two are in one stage.

    With `then` it runs once more, when that is configured for `recompute`.
    """
    shapes = ((3, 32), (32, 32), (32, 1))
    w = [tf.Variable(np.sin(np.arange(a * b)).reshape(a, b).astype(np.float32) / 4) for a, b in shapes]
    infeed, queue, optimizer = data(), IPUOutfeedQueue(), v1.MomentumOptimizer(RATE, 0.9)
    loss = lambda h, y: tf.reduce_mean((h @ w[2] - y) ** 2)  # noqa: E731

    @tf.function
    def program():
        po.pipeline(
            [lambda x, y: (tf.tanh(tf.tanh(x @ w[0]) @ w[1]), y), loss], 4, repeat_count=3, infeed_queue=infeed,
            outfeed_queue=queue, optimizer_function=lambda value: OptimizerFunctionOutput(optimizer, value),
            outfeed_loss=True, **arguments,
        )  # fmt: skip

    config = IPUConfig()
    config.allow_recompute = recompute
    config.configure_ipu_system()
    try:
        strategy = IPUStrategy(strict=True, ipus=2)
        strategy.run(program)
        if then is not None:
            config.allow_recompute = then
            config.configure_ipu_system()
            strategy.run(program)
        return queue.dequeue().numpy(), strategy.executable(program).program.header
    finally:
        reset_ipu_configuration()


def kept_bytes(header):
    return sum(queue["bytes"] for queue in header["pipeline"]["queues"])


def test_where_things_lie_changes_no_number():
    losses, plain = wide(offload_weight_update_variables=False)
    options = [PipelineStageOptions(matmul_options={"availableMemoryProportion": "0.3"})] * 2
    again, header = wide(
        recompute=True, recomputation_mode=RecomputationMode.RecomputeThenBackpropagate,
        replicated_optimizer_state_sharding=True, forward_propagation_stages_poplar_options=options,
        weight_update_poplar_options=options[0],
    )  # fmt: skip
    same([again], [losses], rtol=1e-5)
    again, header = wide()  # streaming memory is there, so the state is in it
    same([again], [losses], rtol=1e-5)
    assert header["slots"] > plain["slots"]  # the momenta come from the host's side, and go back
    assert header["used_bytes"] < plain["used_bytes"]
    again, header = wide(offload_weight_update_variables=False, offload_activations=True)
    same([again], [losses], rtol=0)
    assert header["stashes"] and not plain["stashes"]
    assert kept_bytes(header) < kept_bytes(plain) / 2


def test_recomputation_keeps_less():
    assert kept_bytes(wide(recompute=True)[1]) < kept_bytes(wide()[1]) / 2


def test_a_changed_configuration_makes_the_program_anew():
    assert kept_bytes(wide(then=True)[1]) == kept_bytes(wide(recompute=True)[1])


def test_als_counts_what_the_context_captures():
    context, optimizer = GradientCaptureContext(), ALSOptimizer(
        keras.optimizers.SGD(RATE), 2, update_frequency=4, captured_grads_only=True
    )  # fmt: skip
    net = Net()

    def second(h, y):
        with context:
            half = capture_upstream_gradients(tf.cast(h, tf.float16), tag="h")
        return tf.cast(half, tf.float32) @ net.w[1], y

    net.second = second
    output = lambda opt, loss: OptimizerFunctionOutput(opt, loss, gradient_capture_context=context)  # noqa: E731
    _, queue = trained(optimizer, output=output, net=net, repeat_count=2)
    # Eight numbers in each of two updates; the loss that comes out is not scaled, the gradients are as without scaling.
    np.testing.assert_array_equal(optimizer.histogram, [16, 0])
    weights, losses = reference(sgd, repeat=2)
    same([queue.dequeue()], [losses[:, 0]], rtol=3e-3)
    for ours, theirs, start in zip(net.w, weights, START, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)
        assert np.abs(theirs - start).max() > 0.05


# ---- what comes out ----


def test_outputs_sums_and_masks():
    outputs = [forward(START, X[i * BATCH : (i + 1) * BATCH])[1] for i in range(4)]
    targets = Y[: 4 * BATCH].reshape(4, BATCH, 1)
    _, queue = trained(keras.optimizers.SGD(RATE), outfeed_loss=False)
    p, y = queue.dequeue()
    same([p, y], [outputs, targets])
    _, queue = trained(keras.optimizers.SGD(RATE), outfeed_loss=False, outfeed_mask=[True, False])
    (y,) = queue.dequeue()
    same([y], [targets])
    _, queue = trained(keras.optimizers.SGD(RATE), outfeed_loss=False, outfeed_mask=[True, True])
    assert not queue.enqueued
    _, queue = trained(keras.optimizers.SGD(RATE), accumulate_outfeed=True, repeat_count=2, ipus=4)
    same([queue.dequeue()], [reference(sgd, replicas=2, repeat=2)[1].reshape(2, 4, 2).sum(1)])
    _, queue = trained(
        keras.optimizers.SGD(RATE), accumulate_outfeed=True, outfeed_loss=False, outfeed_mask=[False, True],
        accumulate_outfeed_dtype=lambda value: tf.float16,
    )  # fmt: skip
    (p,) = queue.dequeue()
    assert p.dtype == tf.float16
    same([p], [np.sum(outputs, 0)[None]], rtol=5e-3)
    last = IPUOutfeedQueue(IPUOutfeedMode.LAST)
    trained(keras.optimizers.SGD(RATE), queue=last, repeat_count=2)
    same([last.dequeue()], [reference(sgd, repeat=2)[1][-1, 0]])


def test_inference():
    """Three stages on two chips, loop-invariant inputs, elements by name; a stage without arguments of the queue."""
    infeed = IPUInfeedQueue(tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(BATCH, drop_remainder=True))
    queue, w = IPUOutfeedQueue(), [tf.constant(s) for s in START]

    def first(scale, y, x):
        return [tf.tanh(x @ w[0]) * scale, y]

    def second(h, y):
        if tf.reduce_sum(y) > 0:  # AutoGraph
            h = h + 1.0
        return h, y, tf.no_op()

    def third(h, y):
        return h @ w[1]

    def program():
        po.pipeline(
            [first, second, third], 4, inputs=[3.0], infeed_queue=infeed, outfeed_queue=queue, device_mapping=[0, 1, 0],
            pipeline_schedule=PipelineSchedule.Sequential,
        )  # fmt: skip

    run(program)
    x, y = X[:8].reshape(4, 2, 3), Y[:8].reshape(4, 2, 1)
    h = 3 * forward(START, x)[0] + (y.sum((1, 2)) > 0)[:, None, None]
    same(queue.dequeue(), [h @ START[1]])


def test_sums_of_an_inference():
    queue = IPUOutfeedQueue()

    def program():
        po.pipeline([lambda x, y: x * y, lambda z: [z, z > 0]], 4, infeed_queue=infeed, outfeed_queue=queue)

    infeed = data()
    run(program)
    z, positive = queue.dequeue()
    product = (X * Y)[:8].reshape(4, 2, 3)
    same([z], [product])
    np.testing.assert_array_equal(positive, product > 0)
    summed, infeed = IPUOutfeedQueue(), data()
    run(
        lambda: po.pipeline(
            [lambda x, y: x * y, lambda z: z], 4, infeed_queue=infeed, outfeed_queue=summed, accumulate_outfeed=True,
            repeat_count=2,
        ) and None
    )  # fmt: skip
    same(summed.dequeue(), [(X * Y)[:16].reshape(2, 4, 2, 3).sum(1)])


def test_replicas_are_those_of_the_pipeline():
    """Two stages on four chips are two replicas, inside the stages, too."""
    queue, infeed = IPUOutfeedQueue(), data()

    def second(x):
        number = replication_ops.replication_index()
        return number, cross_replica_ops.cross_replica_sum(1), cross_replica_ops.cross_replica_sum(tf.reduce_sum(x))

    run(lambda: po.pipeline([lambda x, y: x, second], 4, infeed_queue=infeed, outfeed_queue=queue) and None, ipus=4)
    number, replicas, total = queue.dequeue()
    np.testing.assert_array_equal(number, [[0, 1]] * 4)
    np.testing.assert_array_equal(replicas, [[2, 2]] * 4)
    same([total], [np.repeat(X[:16].reshape(4, 12).sum(1)[:, None], 2, 1)])


def test_checkpoints_and_variables_by_value():
    variable, queue, infeed = tf.Variable(2.0), IPUOutfeedQueue(), data()
    marked = lambda v, x, y: po.recomputation_checkpoint([v * x])  # noqa: E731
    with pytest.warns(UserWarning, match="by value"):
        run(
            lambda: (
                po.pipeline([marked, lambda z: z], 4, inputs=[variable], infeed_queue=infeed, outfeed_queue=queue)
                and None
            )
        )
    same(queue.dequeue(), [2 * X[:8].reshape(4, 2, 3)])


def test_arguments_and_results_beside_a_pipeline():
    queue, infeed, strategy = IPUOutfeedQueue(), data(), IPUStrategy(strict=True, ipus=2)

    @tf.function
    def program(scale, number):
        scaled = scale * number
        stage = lambda s, x, y: s * x  # noqa: E731
        po.pipeline([stage, lambda z: z], 4, inputs=[scaled], infeed_queue=infeed, outfeed_queue=queue)
        return scaled + 1.0

    for at, scale in enumerate((1.5, -2.0)):
        assert strategy.run(program, (tf.constant(scale), 2.0)).numpy() == 2 * scale + 1
        same(queue.dequeue(), [2 * scale * X[8 * at : 8 * at + 8].reshape(4, 2, 3)])


def test_layers_of_keras_with_states_and_masks():
    """Moving averages see each micro-batch once; dropout draws others in each, and the same in both directions."""
    scale = 0.5
    norm, drop = keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5, seed=1)
    weight, queue, infeed = tf.Variable(scale), IPUOutfeedQueue(), data()
    optimizer = keras.optimizers.SGD(RATE)

    def second(z):
        kept = drop(tf.ones_like(z), training=True)
        return tf.reduce_mean(weight * kept), kept

    def program():
        po.pipeline(
            [lambda x, y: norm(x, training=True) * 0.0 + 1.0, second], 4, infeed_queue=infeed, outfeed_queue=queue,
            optimizer_function=lambda loss, kept: OptimizerFunctionOutput(optimizer, loss),
        )  # fmt: skip

    run(program)
    loss, kept = (np.asarray(v, np.float64) for v in queue.dequeue())
    assert len({v.tobytes() for v in kept}) == 4 and set(np.unique(kept)) == {0, 2}
    same([loss], [scale * kept.mean((1, 2))])
    same([weight], [scale - RATE * kept.mean((1, 2)).sum()])
    mean = np.zeros(3)
    for batch in X[:8].astype(np.float64).reshape(4, 2, 3):
        mean = 0.5 * mean + 0.5 * batch.mean(0)
    same([norm.moving_mean.numpy()], [mean])
