"""Optimizers around those of ``tf.compat.v1.train``, for functions that `strategy.run` runs.

Keras's optimizers need none of them: their gradients are summed over the replicas, and models and pipelines accumulate
by themselves. The modules need TensorFlow, so each is imported when it is first used.

    from ipu_keras import optimizers

    optimizer = optimizers.CrossReplicaOptimizer(tf.compat.v1.train.MomentumOptimizer(0.1, 0.9))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipu_keras.gradient_accumulation import GradientAccumulationReductionMethod
    from ipu_keras.optimizers.accumulation import (
        CrossReplicaGradientAccumulationOptimizerV2,
        GradientAccumulationOptimizerV2,
    )
    from ipu_keras.optimizers.wrappers import CrossReplicaOptimizer, IpuOptimizer, MapGradientOptimizer

__all__ = [
    "CrossReplicaGradientAccumulationOptimizerV2",
    "CrossReplicaOptimizer",
    "GradientAccumulationOptimizerV2",
    "GradientAccumulationReductionMethod",
    "IpuOptimizer",
    "MapGradientOptimizer",
]

_NAMES = {
    "CrossReplicaGradientAccumulationOptimizerV2": "ipu_keras.optimizers.accumulation",
    "CrossReplicaOptimizer": "ipu_keras.optimizers.wrappers",
    "GradientAccumulationOptimizerV2": "ipu_keras.optimizers.accumulation",
    "GradientAccumulationReductionMethod": "ipu_keras.gradient_accumulation",
    "IpuOptimizer": "ipu_keras.optimizers.wrappers",
    "MapGradientOptimizer": "ipu_keras.optimizers.wrappers",
}
_ABSENT = {
    "GradientAccumulationOptimizer": "use GradientAccumulationOptimizerV2, which takes any optimizer",
    "CrossReplicaGradientAccumulationOptimizer": "use CrossReplicaGradientAccumulationOptimizerV2",
    "ShardedOptimizer": "put the layers into pipeline stages instead",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    why = f": it is not there; {_ABSENT[name]}" if name in _ABSENT else ""
    raise AttributeError(f"module 'ipu_keras.optimizers' has no attribute {name!r}{why}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
