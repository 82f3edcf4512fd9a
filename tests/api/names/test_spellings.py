"""Scripts for the IPU find what they import where they look for it, when only an import's first name is changed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import ipu_keras as ipu

OURS = {
    "tensorflow.python.ipu": "ipu_keras",
    "ipu_tensorflow_addons.keras": "ipu_keras.keras",
    "keras.ipu": "ipu_keras.keras",
}
"""What stands in place of the packages that a script imports."""

# What a script writes; what it then uses; the module that has that.
SPELLINGS = [
    ("import tensorflow.python.ipu as ipu", "ipu.config.IPUConfig", "config"),
    ("import tensorflow.python.ipu as ipu", "ipu.ipu_strategy.IPUStrategy", "keras.strategy"),
    ("import tensorflow.python.ipu as ipu", "ipu.ipu_strategy.IPUStrategyV1", "keras.strategy"),
    ("import tensorflow.python.ipu as ipu", "ipu.ipu_infeed_queue.IPUInfeedQueue", "ipu_infeed_queue"),
    ("import tensorflow.python.ipu as ipu", "ipu.ipu_outfeed_queue.IPUOutfeedQueue", "ipu_outfeed_queue"),
    ("import tensorflow.python.ipu as ipu", "ipu.ipu_outfeed_queue.IPUOutfeedMode", "ipu_outfeed_queue"),
    ("import tensorflow.python.ipu as ipu", "ipu.loops.repeat", "loops"),
    ("import tensorflow.python.ipu as ipu", "ipu.pipelining_ops.pipeline", "pipelining_ops"),
    ("import tensorflow.python.ipu as ipu", "ipu.ops.pipelining_ops.pipeline", "pipelining_ops"),
    ("import tensorflow.python.ipu as ipu", "ipu.pipelining_ops.PipelineSchedule", "pipelining"),
    ("import tensorflow.python.ipu as ipu", "ipu.pipelining_ops.OptimizerFunctionOutput", "pipelining_ops"),
    ("import tensorflow.python.ipu as ipu", "ipu.optimizers.CrossReplicaOptimizer", "optimizers.wrappers"),
    (
        "import tensorflow.python.ipu as ipu",
        "ipu.optimizers.GradientAccumulationReductionMethod",
        "gradient_accumulation",
    ),
    ("import tensorflow.python.ipu as ipu", "ipu.outlined_function", "ops.functional_ops"),
    ("import tensorflow.python.ipu as ipu", "ipu.functional_ops.outlined_function", "ops.functional_ops"),
    ("import tensorflow.python.ipu as ipu", "ipu.scopes.ipu_scope", "scopes"),
    ("import tensorflow.python.ipu as ipu", "ipu.eager.backprop.GradientCaptureTape", "ops._capture"),
    *[
        ("import tensorflow.python.ipu as ipu", f"ipu.{where}{name}", f"ops.{name.split('.')[0]}")
        for where in ("", "ops.")
        for name in (
            "all_to_all_op.all_gather", "control_flow_ops.barrier", "cross_replica_ops.cross_replica_sum",
            "embedding_ops.embedding_lookup", "f8_ops.convert_to_f8", "grad_util_ops.capture_upstream_gradients",
            "image_ops.normalise_image", "internal_ops.remap", "math_ops.serialized_matmul", "nn_ops.gelu",
            "rand_ops.dropout", "reduce_scatter_op.reduce_scatter", "replication_ops.replication_index",
            "slicing_ops.sequence_slice", "statistics_ops.histogram", "within_replica_ops.all_reduce",
        )
    ],
    *[
        ("import tensorflow.python.ipu as ipu", f"ipu.utils.{name}", "config")
        for name in (
            "IPUConfig", "SelectionOrder", "ExecutionProfileType", "DeviceConnectionType", "SchedulingAlgorithm",
            "MergeRemoteBuffersBehaviour", "get_ipu_config", "configure_ipu_system",
        )
    ],
    ("from tensorflow.python.ipu import utils", "utils.reset_ipu_seed", "utils"),
    ("from tensorflow.python.ipu import ipu_strategy", "ipu_strategy.IPUStrategy", "keras.strategy"),
    ("from tensorflow.python.ipu import pipelining_ops", "pipelining_ops.recomputation_checkpoint", "pipelining_ops"),
    ("from tensorflow.python.ipu import loops, ipu_infeed_queue", "loops.while_loop", "loops"),
    ("from tensorflow.python.ipu.ops import pipelining_ops", "pipelining_ops.PipelineStageOptions", "pipelining"),
    ("from tensorflow.python.ipu.ops import cross_replica_ops as x", "x.cross_replica_mean", "ops.cross_replica_ops"),
    ("from tensorflow.python.ipu.config import IPUConfig", "IPUConfig", "config"),
    ("from tensorflow.python.ipu.config import configure_ipu_system", "configure_ipu_system", "config"),
    ("from tensorflow.python.ipu.ipu_strategy import IPUStrategy", "IPUStrategy", "keras.strategy"),
    ("from tensorflow.python.ipu.ipu_infeed_queue import IPUInfeedQueue", "IPUInfeedQueue", "ipu_infeed_queue"),
    ("from tensorflow.python.ipu.ops.pipelining_ops import PipelineSchedule", "PipelineSchedule", "pipelining"),
    (
        "from tensorflow.python.ipu.gradient_accumulation import GradientAccumulationReductionMethod as M",
        "M", "gradient_accumulation",
    ),
    ("from tensorflow.python.ipu.eager.backprop import GradientCaptureContext as G", "G", "ops._capture"),
    ("from tensorflow.python.ipu.optimizers import CrossReplicaOptimizer as C", "C", "optimizers.wrappers"),
    ("import keras.ipu as kipu", "kipu.PipelineStage", "keras.pipeline"),
    ("import keras.ipu as kipu", "kipu.ReplicatedMetricReductionMethod", "keras.metric_reduction"),
    ("import keras.ipu as kipu", "kipu.optimizers.ALSOptimizer", "keras.optimizers"),
    ("import keras.ipu as kipu", "kipu.layers.Dropout", "keras.layers"),
    ("from keras.ipu import PipelineStage", "PipelineStage", "keras.pipeline"),
    ("from keras.ipu.optimizers import ALSOptimizer", "ALSOptimizer", "keras.optimizers"),
    ("from ipu_tensorflow_addons.keras import layers", "layers.Embedding", "keras.layers"),
    ("from tensorflow.python.ipu.ops.f8_ops import create_metadata, Format", "Format", "ops.f8_ops"),
    ("from keras.ipu.layers import Dense, ConvertToF8", "ConvertToF8", "keras.layers"),
    ("from ipu_tensorflow_addons.keras import optimizers", "optimizers.AdamIpuOptimizer", "keras.optimizers"),
    ("from ipu_tensorflow_addons.keras.layers import LSTM", "LSTM", "keras.layers"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "used", "module"), SPELLINGS, ids=lambda text: str(text).replace(" ", "_"))
def test_names_are_where_scripts_look(statement, used, module):
    for theirs, ours in OURS.items():
        statement = statement.replace(f" {theirs}", f" {ours}")
    found: dict = {}
    exec(statement, found)
    name = used.rpartition(".")[2]
    if name not in (attribute := vars(importlib.import_module(f"ipu_keras.{module}"))):
        name = statement.split()[3]  # imported under another name
    assert eval(used, found) is attribute[name]


def test_the_package_alone_imports_nothing_heavy():
    code = (
        "import sys, ipu_keras as ipu\n"
        "assert not {'tensorflow', 'keras', 'numpy', 'scipy'} & set(sys.modules), 'import ipu_keras'\n"
        "ipu.utils.configure_ipu_system(ipu.utils.IPUConfig()); ipu.utils.running_on_ipu_model()\n"
        "ipu.optimizers, ipu.ops, ipu.eager, ipu.pipelining, ipu.scopes, ipu.keras\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules), 'its packages'\n"
        "assert 'internal_ops' in dir(ipu.ops) and 'CrossReplicaOptimizer' in dir(ipu.optimizers)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_that_are_not_there():
    for thing, name in ((ipu, "nothing"), (ipu.ops, "nothing"), (ipu.optimizers, "Adam"), (ipu.eager, "context")):
        with pytest.raises(AttributeError, match=name):
            getattr(thing, name)


def run(fn, *args):
    return ipu.IPUStrategy(strict=True).run(tf.function(fn), tuple(tf.constant(a) for a in args))


def test_scopes_change_nothing_or_refuse():
    def inside(x):
        with (
            ipu.scopes.ipu_scope("/device:IPU:0"), ipu.scopes.ipu_jit_scope(0), ipu.scopes.ipu_shard(0),
            ipu.scopes.frontend_attribute("a", "b"), ipu.scopes.stochastic_rounding(False),
            ipu.scopes.partials_type(np.float32),
        ):  # fmt: skip
            return x * 2.0

    assert run(inside, 3.0).numpy() == 6
    for kind, text, scope in (
        (NotImplementedError, "pipeline stages", lambda: ipu.scopes.ipu_shard(1)),
        (ValueError, "float16 or float32", lambda: ipu.scopes.partials_type(np.int32)),
        (ValueError, "float16 or float32", lambda: ipu.scopes.partials_type("halves")),
        (ValueError, "outside one", lambda: ipu.scopes.outside_compilation_scope()),
    ):
        with pytest.raises(kind, match=text), scope():
            pass

    def calls_the_host(x):
        with ipu.scopes.outside_compilation_scope("there"):
            return x

    with pytest.raises(NotImplementedError, match="IPUOutfeedQueue"):
        run(calls_the_host, 1.0)


def test_internal_ops():
    def same(x):
        return ipu.internal_ops.remap(x) + ipu.internal_ops.remap_deduce(x, name="again")

    np.testing.assert_array_equal(run(same, [1.0, 2.0]), [2, 4])
    for text, call in (
        ("print_tensor.*IPUOutfeedQueue", lambda x: ipu.internal_ops.print_tensor(x, "x")),
        ("fifo.*loops", lambda x: ipu.internal_ops.fifo(x, 2)),
        ("get_current_iteration_counter", lambda x: ipu.internal_ops.get_current_iteration_counter()),
    ):
        with pytest.raises(NotImplementedError, match=text):
            run(call, 1.0)


def test_utils(monkeypatch):
    utils = ipu.utils
    monkeypatch.setenv("TF_POPLAR_FLAGS", "")
    assert not utils.running_on_ipu_model() and utils.move_variable_initialization_to_cpu() is None
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--show_progress_bar=true --use_ipu_model")
    assert utils.running_on_ipu_model()
    assert [c.value for c in utils.SyntheticDataCategory] == [0, 1, 2, 3, 4]
    assert not any(map(utils.use_synthetic_data_for, utils.SyntheticDataCategory))
    with pytest.raises(TypeError, match="SyntheticDataCategory"):
        utils.use_synthetic_data_for("infeed")
    ipu.config.reset_ipu_configuration()
    assert utils.get_num_of_ipus_in_device("/device:IPU:0") == 1
    config = utils.IPUConfig()
    config.auto_select_ipus = 4
    config.configure_ipu_system()
    try:
        assert utils.get_num_of_ipus_in_device("/device:IPU:0") == 4
        assert ipu.IPUStrategy().ipus == 4
    finally:
        ipu.config.reset_ipu_configuration()


def test_the_seed_of_the_device():
    draw = tf.function(lambda x: ipu.rand_ops.dropout(x, rate=0.5))
    strategy, ones = ipu.IPUStrategy(), (tf.ones(64),)

    def drawn(seed):
        ipu.utils.reset_ipu_seed(seed)
        return [strategy.run(draw, ones).numpy() for _ in range(2)]

    first, second = drawn(3), drawn(3)
    np.testing.assert_array_equal(first, second)
    assert (first[0] != first[1]).any() and (first[0] != drawn(4)[0]).any()
    assert (drawn(None)[0] != drawn(None)[0]).any()
