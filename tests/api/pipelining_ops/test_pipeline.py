"""Pipelines of functions: what they train and give out, beside float64 arithmetic."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from ipu_keras import IPUStrategy, loops, optimizers
from ipu_keras import pipelining_ops as po
from ipu_keras.config import IPUConfig, reset_ipu_configuration
from ipu_keras.eager.backprop import GradientCaptureContext, GradientCaptureTape
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue
from ipu_keras.keras.optimizers import ALSOptimizer
from ipu_keras.ops import cross_replica_ops, replication_ops
from ipu_keras.ops.grad_util_ops import capture_upstream_gradients
from ipu_keras.pipelining_ops import OptimizerFunctionOutput, PipelineSchedule, PipelineStageOptions, RecomputationMode

v1 = tf.compat.v1.train
BATCH, RATE = 2, 0.1
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(96, 3)).astype(np.float32), RNG.normal(size=(96, 1)).astype(np.float32)
START = [RNG.normal(size=(3, 4)).astype(np.float32) / 2, RNG.normal(size=(4, 1)).astype(np.float32) / 2]


class Net:
    """Two layers with a tanh in between, one in each stage; the loss is the mean squared error."""

    def __init__(self):
        self.w = [tf.Variable(w) for w in START]

    def first(self, x, y):
        return tf.tanh(x @ self.w[0]), y

    def second(self, h, y):
        return h @ self.w[1], y

    def loss(self, p, y):
        return tf.reduce_mean((p - y) ** 2)


def run(program, ipus=2):
    return IPUStrategy(strict=True, ipus=ipus).run(tf.function(program))


def data():
    with tf.init_scope():
        return IPUInfeedQueue(tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH, drop_remainder=True).repeat())


def trained(optimizer, count=4, ipus=2, output=OptimizerFunctionOutput, net=None, queue=None, **arguments):
    """(the net, what is in the queue) after a pipeline."""
    net, queue = net or Net(), queue or IPUOutfeedQueue()
    made = lambda p, y: output(optimizer, net.loss(p, y))  # noqa: E731
    arguments = {"outfeed_loss": True, **arguments}
    infeed = data()

    def program():
        po.pipeline(
            [net.first, net.second],
            count,
            infeed_queue=infeed,
            outfeed_queue=queue,
            optimizer_function=made,
            **arguments,
        )

    run(program, ipus)
    return net, queue


def forward(w, x):
    h = np.tanh(x.astype(np.float64) @ w[0])
    return h, h @ w[1]


def gradients(w, x, y):
    """(loss, gradients) of a batch, in float64."""
    h, p = forward(w, x)
    error = p - y
    d = 2 * error / error.size
    return (error**2).mean(), [x.astype(np.float64).T @ (d @ w[1].T * (1 - h * h)), h.T @ d]


def reference(update, count=4, replicas=1, repeat=1, divisor=1):
    """(weights, losses [steps, replicas])."""
    w, losses, at = [s.astype(np.float64) for s in START], [], 0
    for _ in range(repeat):
        total = [0.0, 0.0]
        for _ in range(count * replicas):
            loss, found = gradients(w, X[at : at + BATCH], Y[at : at + BATCH])
            losses.append(loss)
            total = [t + g / divisor for t, g in zip(total, found, strict=True)]
            at += BATCH
        w = [a - b for a, b in zip(w, update(total), strict=True)]
    return w, np.reshape(losses, (repeat * count, replicas))


def sgd(total):
    return [RATE * t for t in total]


def same(ours, theirs, rtol=2e-5):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=rtol, atol=2e-6)


class Momentum:
    state = (0.0, 0.0)

    def __call__(self, total):
        self.state = [0.9 * s + t for s, t in zip(self.state, total, strict=True)]
        return [RATE * s for s in self.state]


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


def wide(recompute=False, **arguments):
    """(losses, header) of a pipeline of three layers, of which the first two are in one stage."""
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
        return queue.dequeue().numpy(), strategy.executable(program).program.header
    finally:
        reset_ipu_configuration()


def kept_bytes(header):
    return sum(queue["bytes"] for queue in header["pipeline"]["queues"])


def test_where_things_lie_changes_no_number():
    losses, plain = wide()
    options = [PipelineStageOptions(matmul_options={"availableMemoryProportion": "0.3"})] * 2
    again, header = wide(
        recompute=True, recomputation_mode=RecomputationMode.RecomputeThenBackpropagate,
        replicated_optimizer_state_sharding=True, forward_propagation_stages_poplar_options=options,
        weight_update_poplar_options=options[0],
    )  # fmt: skip
    same([again], [losses], rtol=1e-5)
    again, header = wide(offload_weight_update_variables=True)
    same([again], [losses], rtol=1e-5)
    assert header["slots"] > plain["slots"]  # the momenta come from the host's side, and go back
    assert header["used_bytes"] < plain["used_bytes"]


@pytest.mark.xfail(reason="what comes from an infeed queue is kept with all that depends on it", strict=True)
def test_recomputation_keeps_less():
    assert kept_bytes(wide(recompute=True)[1]) < kept_bytes(wide()[1]) / 2


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


# ---- refusals ----

one = lambda x, y: (x, y)  # noqa: E731
descent = v1.GradientDescentOptimizer(RATE)
optimize = lambda x, y: OptimizerFunctionOutput(descent, tf.reduce_sum(x))  # noqa: E731
stages = [one, one]
queued = lambda **more: {"infeed_queue": data(), "outfeed_queue": IPUOutfeedQueue(), **more}  # noqa: E731
last_queue = lambda: IPUOutfeedQueue(IPUOutfeedMode.LAST)  # noqa: E731
train = lambda **more: queued(optimizer_function=optimize, **more)  # noqa: E731
BAD = {
    "no list": (TypeError, "list or tuple of functions", lambda: po.pipeline(one, 4, **queued())),
    "one stage": (ValueError, "two or more", lambda: po.pipeline([one], 4, **queued())),
    "no function": (TypeError, "which is no function", lambda: po.pipeline([one, 3], 4, **queued())),
    "stages at once": (NotImplementedError, "several functions", lambda: po.pipeline([one, [one]], 4, **queued())),
    "no count": (ValueError, "gradient_accumulation_count", lambda: po.pipeline(stages, **queued())),
    "negative": (ValueError, "gradient_accumulation_count is -4", lambda: po.pipeline(stages, -4, **queued())),
    "too many": (ValueError, "gradient_accumulation_count", lambda: po.pipeline(stages, 2**31, **queued())),
    "uneven": (tf.errors.FailedPreconditionError, "multiple of", lambda: po.pipeline(stages, 3, **queued())),
    "repeat": (ValueError, "repeat_count", lambda: po.pipeline(stages, 4, 0, repeat_count=0, **queued())),
    "infeed": (TypeError, "infeed_queue", lambda: po.pipeline(stages, 4, infeed_queue=X)),
    "outfeed": (TypeError, "outfeed_queue", lambda: po.pipeline(stages, 4, outfeed_queue=data())),
    "no outfeed": (
        ValueError, "no outfeed_queue has been provided", lambda: po.pipeline(stages, 4, infeed_queue=data()),
    ),
    "mapping": (
        ValueError, "Each stage must be mapped", lambda: po.pipeline(stages, 4, device_mapping=[0], **queued()),
    ),
    "mapping type": (TypeError, "device_mapping", lambda: po.pipeline(stages, 4, device_mapping=3, **queued())),
    "mapping value": (ValueError, "device_mapping", lambda: po.pipeline(stages, 4, device_mapping=[0, -1], **queued())),
    "chips": (ValueError, "requires a multiple of", lambda: po.pipeline([one] * 3, 6, **queued())),
    "schedule": (TypeError, "PipelineSchedule", lambda: po.pipeline(stages, 4, pipeline_schedule=0, **queued())),
    "mode": (TypeError, "RecomputationMode", lambda: po.pipeline(stages, 4, recomputation_mode=1, **queued())),
    "mode of another": (
        tf.errors.UnimplementedError, "Interleaved does not recompute", lambda: po.pipeline(
            stages, 4, pipeline_schedule=PipelineSchedule.Interleaved,
            recomputation_mode=RecomputationMode.RecomputeAndBackpropagateInterleaved, **queued(),
        ),
    ),
    "options": (
        TypeError, "forward_.*PipelineStageOptions",
        lambda: po.pipeline(stages, 4, forward_propagation_stages_poplar_options=[{}, {}], **queued()),
    ),
    "number of options": (
        ValueError, "backward_.*1 entries for 2", lambda: po.pipeline(
            stages, 4, backward_propagation_stages_poplar_options=[PipelineStageOptions()], **queued(),
        ),
    ),
    "loss": (ValueError, "outfeed_loss needs", lambda: po.pipeline(stages, 4, outfeed_loss=True, **queued())),
    "mask": (ValueError, "outfeed_mask needs", lambda: po.pipeline(stages, 4, outfeed_mask=[True], **queued())),
    "mask and loss": (
        ValueError, "excludes outfeed_loss",
        lambda: po.pipeline(stages, 4, outfeed_loss=True, outfeed_mask=[True], **train()),
    ),
    "mask length": (ValueError, "has 1 entries", lambda: po.pipeline(stages, 4, outfeed_mask=[True], **train())),
    "sums of the last": (
        ValueError, r"IPUOutfeedMode\.ALL",
        lambda: po.pipeline(stages, 4, accumulate_outfeed=True, **queued(outfeed_queue=last_queue())),
    ),
    "method": (ValueError, "Cannot parse", lambda: po.pipeline(stages, 4, reduction_method="max", **queued())),
    "output": (
        TypeError, "must be an OptimizerFunctionOutput",
        lambda: po.pipeline(stages, 4, **queued(optimizer_function=lambda x, y: x)),
    ),
    "arguments of a stage": (
        TypeError, "stage 1.*missing a required argument: 'z'",
        lambda: po.pipeline([one, lambda x, y, z: x], 4, **queued()),
    ),
    "arguments of the optimizer": (
        TypeError, "optimizer_function gets 2",
        lambda: po.pipeline(stages, 4, **queued(optimizer_function=lambda x: x)),
    ),
    "a dictionary": (
        TypeError, "returns a dictionary", lambda: po.pipeline([lambda x, y: {"x": x}, one], 4, **queued()),
    ),
    "no variable": (ValueError, "depends on no variable", lambda: po.pipeline(stages, 4, outfeed_loss=True, **train())),
    **{
        name: (NotImplementedError, name, lambda name=name, v=v: po.pipeline(stages, 4, **{name: v}, **queued()))
        for name, v in {
            "batch_serialization_iterations": 2, "continuous_weight_updates": True, "offload_activations": True,
            "offload_gradient_accumulation_buffers": True, "replicated_weight_sharding": True, "offload_weights": True,
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_refusals(case):
    kind, text, call = BAD[case]
    with pytest.raises(kind, match=text):
        run(lambda: call() and None)


def test_tensors_from_outside_a_stage_are_refused():
    infeed, queue = data(), IPUOutfeedQueue()
    variable, constant = tf.Variable(2.0), tf.constant(3.0)

    def with_capture(make):
        outside = make()
        nested = lambda x, y: tf.cond(tf.reduce_sum(y) > 0, lambda: x * outside, lambda: x)  # noqa: E731
        first = lambda x, y: (x * variable * constant, y)  # noqa: E731
        po.pipeline([first, nested], 4, infeed_queue=infeed, outfeed_queue=queue)

    with pytest.raises(ValueError, match=r"Trying to capture the tensor .*stage 1"):
        run(lambda: with_capture(lambda: variable * 2.0))
    kept = []

    def leaking(x, y):
        kept.append(x * 2.0)
        return x, y

    def program():
        po.pipeline([leaking, lambda x, y: x + kept[-1]], 4, infeed_queue=data(), outfeed_queue=queue)

    with pytest.raises(ValueError, match="Trying to capture the tensor"):
        run(program)
    with pytest.raises(ValueError, match="Trying to capture the tensor"):
        run(lambda argument=constant: with_capture(lambda: argument))  # `inputs` are for that
    for steady in (constant, variable):  # an eager tensor is a constant of the program
        infeed, queue = data(), IPUOutfeedQueue()
        run(functools.partial(with_capture, lambda v=steady: v))
        x, y = X[:8].reshape(4, 2, 3), Y[:8].reshape(4, 2, 1)
        scale = np.where(y.sum((1, 2), keepdims=True) > 0, float(steady), 1)
        same(queue.dequeue(), [x * 6 * scale])


def test_a_program_is_one_pipeline():
    forward = lambda: po.pipeline(stages, 4, **queued())  # noqa: E731
    with pytest.raises(NotImplementedError, match="one pipeline; this one has 2"):
        kept = [queued(), queued()]
        run(lambda: [po.pipeline(stages, 4, **k) for k in kept] and None)
    for program in (
        lambda: loops.repeat(2, lambda: forward()),
        lambda: tf.cond(START[0][0, 0] * tf.Variable(1.0) > 0, lambda: [forward(), 1][1], lambda: 0) and None,
    ):
        with pytest.raises(ValueError, match="in a loop or a branch"):
            run(program)


def test_only_on_the_device():
    with pytest.raises(ValueError, match=r"strategy\.run"):
        po.pipeline(stages, 4, **queued())


def test_bad_optimizer_outputs():
    loss, adam, tape = tf.constant(1.0), keras.optimizers.Adam(), tf.GradientTape()
    gradient_descent = v1.GradientDescentOptimizer(0.1)
    for kind, text, call in (
        (TypeError, "must be a Keras optimizer", lambda: OptimizerFunctionOutput("sgd", loss)),
        (TypeError, "must be a tensor", lambda: OptimizerFunctionOutput(adam, 1.0)),
        (ValueError, "for Keras optimizers", lambda: OptimizerFunctionOutput(gradient_descent, loss, variables=[])),
        (ValueError, "for Keras optimizers", lambda: OptimizerFunctionOutput(gradient_descent, loss, tape=tape)),
        (ValueError, "exclude each other", lambda: OptimizerFunctionOutput(adam, loss, variables=[], tape=tape)),
        (ValueError, "not for Keras", lambda: OptimizerFunctionOutput(adam, loss, compute_gradients_args=([],))),
        (ValueError, "not for Keras", lambda: OptimizerFunctionOutput(adam, loss, compute_gradients_kwargs={"a": 1})),
        (
            ValueError,
            "exclude each other",
            lambda: OptimizerFunctionOutput(adam, loss, tape=tape, gradient_capture_context=GradientCaptureContext()),
        ),
        (TypeError, "an IPUOutfeedQueue", lambda: OptimizerFunctionOutput(adam, loss, captured_gradient_outfeed=3)),
        (
            ValueError,
            "needs a gradient_capture_context",
            lambda: OptimizerFunctionOutput(adam, loss, captured_gradient_outfeed=IPUOutfeedQueue()),
        ),
    ):
        with pytest.raises(kind, match=text):
            call()
    for name in ("convolution_options", "matmul_options", "slice_options"):
        with pytest.raises(TypeError, match=name):
            PipelineStageOptions(**{name: [1]})
