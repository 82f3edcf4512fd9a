"""Optimizers of the IPU API, for Keras 3: state in a dtype of its own, and automatic loss scaling."""

from ipu_keras.keras.optimizers.accumulation import ALSGradientAccumulationOptimizer, GradientAccumulationOptimizer
from ipu_keras.keras.optimizers.adam import AdamIpuOptimizer
from ipu_keras.keras.optimizers.als import ALSOptimizer
from ipu_keras.keras.optimizers.als_state import ALSOptimizerAdam, ALSOptimizerRMSProp, ALSOptimizerSGD
from ipu_keras.keras.optimizers.base import IpuOptimizerBase
from ipu_keras.keras.optimizers.lamb import LAMBIpuOptimizer
from ipu_keras.keras.optimizers.sgd import SGDIpuOptimizer

__all__ = [
    "ALSGradientAccumulationOptimizer",
    "ALSOptimizer",
    "ALSOptimizerAdam",
    "ALSOptimizerRMSProp",
    "ALSOptimizerSGD",
    "AdamIpuOptimizer",
    "GradientAccumulationOptimizer",
    "IpuOptimizerBase",
    "LAMBIpuOptimizer",
    "SGDIpuOptimizer",
]
