"""Layers of the IPU API, for Keras 3, under both of their names."""

from ipu_keras.keras.layers.capture import CaptureActivationGradients, CaptureUpstreamGradients
from ipu_keras.keras.layers.ctc import CTCLoss
from ipu_keras.keras.layers.dropout import Dropout
from ipu_keras.keras.layers.embedding import Embedding
from ipu_keras.keras.layers.f8 import ConvertFromF8, ConvertToF8, Dense
from ipu_keras.keras.layers.gru import PopnnGRU
from ipu_keras.keras.layers.lstm import PopnnLSTM
from ipu_keras.keras.layers.marks import AssumeEqualAcrossReplicas, RecomputationCheckpoint
from ipu_keras.keras.layers.normalization import GroupNormalization, InstanceNormalization, LayerNormalization
from ipu_keras.keras.layers.serial_dense import SerialDense
from ipu_keras.keras.layers.sparse_dense import SparseDense

GRU = PopnnGRU
GroupNorm = GroupNormalization
InstanceNorm = InstanceNormalization
LSTM = PopnnLSTM
LayerNorm = LayerNormalization

__all__ = [
    "AssumeEqualAcrossReplicas",
    "CTCLoss",
    "CaptureActivationGradients",
    "CaptureUpstreamGradients",
    "ConvertFromF8",
    "ConvertToF8",
    "Dense",
    "Dropout",
    "Embedding",
    "GRU",
    "GroupNorm",
    "GroupNormalization",
    "InstanceNorm",
    "InstanceNormalization",
    "LSTM",
    "LayerNorm",
    "LayerNormalization",
    "PopnnGRU",
    "PopnnLSTM",
    "RecomputationCheckpoint",
    "SerialDense",
    "SparseDense",
]
