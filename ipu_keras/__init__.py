"""An emulated Graphcore IPU for Keras: train and profile models for the chip without the chip.

    import keras
    from ipu_keras import IPUStrategy

    with IPUStrategy().scope():
        model = keras.Sequential([...])
        model.compile(...)
        model.fit(...)

Importing the package imports neither TensorFlow nor Keras; the names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ipu_keras.frontend.counter import executions

if TYPE_CHECKING:
    from ipu_keras import config, errors, hlo
    from ipu_keras.debug import compare, rerun
    from ipu_keras.keras.analyse import analyse
    from ipu_keras.keras.programs import executable
    from ipu_keras.keras.strategy import IPUStrategy, IPUStrategyV1

__version__ = "0.1.0"
__all__ = [
    "IPUStrategy",
    "IPUStrategyV1",
    "__version__",
    "analyse",
    "compare",
    "config",
    "errors",
    "executable",
    "executions",
    "hlo",
    "rerun",
]

_MODULES = (
    "config",
    "dataset_benchmark",
    "eager",
    "errors",
    "gradient_accumulation",
    "hlo",
    "ipu_infeed_queue",
    "ipu_outfeed_queue",
    "ipu_strategy",
    "jax",
    "keras",
    "loops",
    "ops",
    "optimizers",
    "pipelining",
    "pipelining_ops",
    "scopes",
    "target",
    "utils",
)
_OPS = (
    "all_to_all_op",
    "control_flow_ops",
    "cross_replica_ops",
    "embedding_ops",
    "f8_ops",
    "functional_ops",
    "grad_util_ops",
    "image_ops",
    "internal_ops",
    "math_ops",
    "nn_ops",
    "rand_ops",
    "reduce_scatter_op",
    "replication_ops",
    "slicing_ops",
    "sparse",
    "statistics_ops",
    "within_replica_ops",
)
"""Modules of `ipu_keras.ops` that are also attributes of the package, as IPU users know them."""
_NAMES = {
    "IPUStrategy": "ipu_keras.keras.strategy",
    "IPUStrategyV1": "ipu_keras.keras.strategy",
    "analyse": "ipu_keras.keras.analyse",
    "compare": "ipu_keras.debug",
    "executable": "ipu_keras.keras.programs",
    "outlined_function": "ipu_keras.ops.functional_ops",
    "rerun": "ipu_keras.debug",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"ipu_keras.{name}")
    if name in _OPS:
        return importlib.import_module(f"ipu_keras.ops.{name}")
    raise AttributeError(f"module 'ipu_keras' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_NAMES, *_MODULES, *_OPS})
