"""How each layer of `keras.layers` is built and what it is fed; what is not tested, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers as kl


@dataclass(frozen=True)
class Case:
    """A layer and its inputs.

    Attributes:
        build: makes the layer, or a function of symbolic tensors that applies it.
        shapes: of each input, without the batch.
        data: "float" (after a Dense layer, so that gradients pass through the layer under test), "raw" (floats, no
            layer in front), "image" (floats from 0 to 1, no layer in front), "text" (one-letter strings) or the number
            of distinct tokens.
    """

    build: Callable[[], Callable[..., Any]]
    shapes: tuple[tuple[int, ...], ...]
    data: str | int = "float"


def floats(build: Callable[[], Any], *shapes: tuple[int, ...]) -> Case:
    return Case(build, shapes or ((5,),), "float")


def image(build: Callable[[], Any]) -> Case:
    return Case(build, ((6, 6, 3),), "image")


def tokens(build: Callable[[], Any], count: int, *shape: int) -> Case:
    return Case(build, (shape,), count)


def cell(build: Callable[[], Any]) -> Case:
    return floats(lambda: kl.RNN(build()), SEQUENCE)


SEQUENCE = (6, 3)
PLANE = (6, 6, 3)
CUBE = (4, 4, 4, 2)
PAIR = ((5,), (5,))
UNIT = {"value_range": (0, 1)}
RANDOM = {"value_range": (0, 1), "seed": 3}

CORE = {
    "Activation": floats(lambda: kl.Activation("tanh")),
    "Dense": floats(lambda: kl.Dense(4, activation="relu")),
    "EinsumDense": floats(lambda: kl.EinsumDense("abc,cd->abd", (6, 4), bias_axes="d"), SEQUENCE),
    "Embedding": tokens(lambda: kl.Embedding(7, 3), 7, 4),
    "Identity": floats(lambda: kl.Identity()),
    "Lambda": floats(lambda: kl.Lambda(lambda x: x * 2 + 1)),
    "Masking": floats(lambda: lambda x: kl.SimpleRNN(3)(kl.Masking()(x)), SEQUENCE),
    "Pipeline": Case(lambda: kl.Pipeline([kl.Rescaling(2.0), kl.Rescaling(0.5, 1.0)]), ((5,),), "raw"),
    "ReversibleEmbedding": tokens(
        lambda: lambda x: (lambda e: e(e(x), reverse=True))(kl.ReversibleEmbedding(7, 3)), 7, 4
    ),
    "SpectralNormalization": floats(lambda: kl.SpectralNormalization(kl.Dense(4))),
    "TimeDistributed": floats(lambda: kl.TimeDistributed(kl.Dense(2)), SEQUENCE),
}

ACTIVATIONS = {
    "ELU": floats(lambda: kl.ELU()),
    "LeakyReLU": floats(lambda: kl.LeakyReLU()),
    "PReLU": floats(lambda: kl.PReLU(alpha_initializer="glorot_uniform")),
    "ReLU": floats(lambda: kl.ReLU(max_value=1.0, negative_slope=0.1, threshold=0.05)),
    "Softmax": floats(lambda: kl.Softmax()),
}

CONVOLUTION = {
    "Conv1D": floats(lambda: kl.Conv1D(4, 3), SEQUENCE),
    "Conv2D": floats(lambda: kl.Conv2D(4, 3, padding="same", activation="relu"), PLANE),
    "Conv3D": floats(lambda: kl.Conv3D(3, 2), CUBE),
    "Conv1DTranspose": floats(lambda: kl.Conv1DTranspose(4, 3, strides=2), SEQUENCE),
    "Conv2DTranspose": floats(lambda: kl.Conv2DTranspose(2, 3, strides=2, padding="same"), PLANE),
    "Conv3DTranspose": floats(lambda: kl.Conv3DTranspose(2, 2, strides=2), (2, 2, 2, 2)),
    "DepthwiseConv1D": floats(lambda: kl.DepthwiseConv1D(3, depth_multiplier=2), SEQUENCE),
    "DepthwiseConv2D": floats(lambda: kl.DepthwiseConv2D(3, strides=2), PLANE),
    "SeparableConv1D": floats(lambda: kl.SeparableConv1D(4, 3), SEQUENCE),
    "SeparableConv2D": floats(lambda: kl.SeparableConv2D(4, 3), PLANE),
}

POOLING = {
    "AdaptiveAveragePooling1D": floats(lambda: kl.AdaptiveAveragePooling1D(4), SEQUENCE),
    "AdaptiveAveragePooling2D": floats(lambda: kl.AdaptiveAveragePooling2D(4), PLANE),
    "AdaptiveAveragePooling3D": floats(lambda: kl.AdaptiveAveragePooling3D(3), CUBE),
    "AdaptiveMaxPooling1D": floats(lambda: kl.AdaptiveMaxPooling1D(4), SEQUENCE),
    "AdaptiveMaxPooling2D": floats(lambda: kl.AdaptiveMaxPooling2D(4), PLANE),
    "AdaptiveMaxPooling3D": floats(lambda: kl.AdaptiveMaxPooling3D(3), CUBE),
    "AveragePooling1D": floats(lambda: kl.AveragePooling1D(3, strides=2, padding="same"), SEQUENCE),
    "AveragePooling2D": floats(lambda: kl.AveragePooling2D(3, strides=2, padding="same"), PLANE),
    "AveragePooling3D": floats(lambda: kl.AveragePooling3D(2), CUBE),
    "GlobalAveragePooling1D": floats(lambda: kl.GlobalAveragePooling1D(), SEQUENCE),
    "GlobalAveragePooling2D": floats(lambda: kl.GlobalAveragePooling2D(), PLANE),
    "GlobalAveragePooling3D": floats(lambda: kl.GlobalAveragePooling3D(), CUBE),
    "GlobalMaxPooling1D": floats(lambda: kl.GlobalMaxPooling1D(), SEQUENCE),
    "GlobalMaxPooling2D": floats(lambda: kl.GlobalMaxPooling2D(), PLANE),
    "GlobalMaxPooling3D": floats(lambda: kl.GlobalMaxPooling3D(), CUBE),
    "MaxPooling1D": floats(lambda: kl.MaxPooling1D(3, strides=2, padding="same"), SEQUENCE),
    "MaxPooling2D": floats(lambda: kl.MaxPooling2D(3, strides=2, padding="same"), PLANE),
    "MaxPooling3D": floats(lambda: kl.MaxPooling3D(2), CUBE),
}

RECURRENT = {
    "Bidirectional": floats(lambda: kl.Bidirectional(kl.GRU(3)), SEQUENCE),
    "ConvLSTM1D": floats(lambda: kl.ConvLSTM1D(2, 3), (3, 5, 2)),
    "ConvLSTM2D": floats(lambda: kl.ConvLSTM2D(2, 3, padding="same"), (3, 4, 4, 2)),
    "ConvLSTM3D": floats(lambda: kl.ConvLSTM3D(2, 2), (2, 3, 3, 3, 2)),
    "GRU": floats(lambda: kl.GRU(3), SEQUENCE),
    "GRUCell": cell(lambda: kl.GRUCell(3, reset_after=False)),
    "LSTM": floats(lambda: kl.LSTM(3, return_sequences=True), SEQUENCE),
    "LSTMCell": cell(lambda: kl.LSTMCell(3)),
    "RNN": cell(lambda: kl.SimpleRNNCell(3, activation="relu")),
    "SimpleRNN": floats(lambda: kl.SimpleRNN(3, go_backwards=True), SEQUENCE),
    "SimpleRNNCell": cell(lambda: kl.SimpleRNNCell(3)),
    "StackedRNNCells": cell(lambda: kl.StackedRNNCells([kl.LSTMCell(3), kl.GRUCell(2)])),
}

ATTENTION = {
    "AdditiveAttention": floats(lambda: lambda q, v: kl.AdditiveAttention()([q, v]), (3, 4), (5, 4)),
    "Attention": floats(lambda: lambda q, v: kl.Attention(use_scale=True)([q, v]), (3, 4), (5, 4)),
    "GroupQueryAttention": floats(
        lambda: lambda x: kl.GroupQueryAttention(2, num_query_heads=4, num_key_value_heads=2)(x, x), SEQUENCE
    ),
    "MultiHeadAttention": floats(lambda: lambda x: kl.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True), SEQUENCE),
}

NORMALIZATION = {
    "BatchNormalization": floats(lambda: kl.BatchNormalization(momentum=0.8), PLANE),
    "GroupNormalization": floats(lambda: kl.GroupNormalization(2), (4, 4, 4)),
    "LayerNormalization": floats(lambda: kl.LayerNormalization(), SEQUENCE),
    "Normalization": floats(lambda: kl.Normalization(mean=0.3, variance=2.0)),
    "RMSNormalization": floats(lambda: kl.RMSNormalization(), SEQUENCE),
    "UnitNormalization": floats(lambda: kl.UnitNormalization()),
}

REGULARIZATION = {
    "ActivityRegularization": floats(lambda: kl.ActivityRegularization(0.01, 0.02)),
    "AlphaDropout": floats(lambda: kl.AlphaDropout(0.4)),
    "Dropout": floats(lambda: kl.Dropout(0.4)),
    "GaussianDropout": floats(lambda: kl.GaussianDropout(0.4)),
    "GaussianNoise": floats(lambda: kl.GaussianNoise(0.4)),
    "SpatialDropout1D": floats(lambda: kl.SpatialDropout1D(0.4), SEQUENCE),
    "SpatialDropout2D": floats(lambda: kl.SpatialDropout2D(0.4), PLANE),
    "SpatialDropout3D": floats(lambda: kl.SpatialDropout3D(0.4), CUBE),
}

MERGING = {
    "Add": floats(lambda: lambda *x: kl.Add()(x), *PAIR),
    "Average": floats(lambda: lambda *x: kl.Average()(x), *PAIR),
    "Concatenate": floats(lambda: lambda *x: kl.Concatenate()(x), (5,), (3,)),
    "Dot": floats(lambda: lambda *x: kl.Dot(axes=2)(x), (3, 4), (5, 4)),
    "Maximum": floats(lambda: lambda *x: kl.Maximum()(x), *PAIR),
    "Minimum": floats(lambda: lambda *x: kl.Minimum()(x), *PAIR),
    "Multiply": floats(lambda: lambda *x: kl.Multiply()(x), *PAIR),
    "Subtract": floats(lambda: lambda *x: kl.Subtract()(x), *PAIR),
}

RESHAPING = {
    "Cropping1D": floats(lambda: kl.Cropping1D((1, 2)), SEQUENCE),
    "Cropping2D": floats(lambda: kl.Cropping2D(((1, 0), (2, 1))), PLANE),
    "Cropping3D": floats(lambda: kl.Cropping3D(1), CUBE),
    "Flatten": floats(lambda: kl.Flatten(), PLANE),
    "Permute": floats(lambda: kl.Permute((2, 1)), SEQUENCE),
    "RepeatVector": floats(lambda: kl.RepeatVector(3)),
    "Reshape": floats(lambda: kl.Reshape((9, -1)), SEQUENCE),
    "UpSampling1D": floats(lambda: kl.UpSampling1D(2), SEQUENCE),
    "UpSampling2D": floats(lambda: kl.UpSampling2D(2, interpolation="bilinear"), PLANE),
    "UpSampling3D": floats(lambda: kl.UpSampling3D(2), (2, 2, 2, 2)),
    "ZeroPadding1D": floats(lambda: kl.ZeroPadding1D(2), SEQUENCE),
    "ZeroPadding2D": floats(lambda: kl.ZeroPadding2D(((1, 0), (2, 1))), PLANE),
    "ZeroPadding3D": floats(lambda: kl.ZeroPadding3D(1), CUBE),
}

PREPROCESSING = {
    "AutoContrast": image(lambda: kl.AutoContrast(**UNIT)),
    "CategoryEncoding": tokens(lambda: kl.CategoryEncoding(4, output_mode="one_hot"), 4, 1),
    "CenterCrop": image(lambda: kl.CenterCrop(4, 3)),
    "ContrastLimitedAdaptiveHistogramEqualization": image(
        lambda: kl.ContrastLimitedAdaptiveHistogramEqualization(tile_grid_size=(2, 2), **UNIT)
    ),
    "Discretization": Case(lambda: kl.Discretization([-0.5, 0.0, 0.5]), ((5,),), "raw"),
    "Equalization": image(lambda: kl.Equalization(**UNIT)),
    "MaxNumBoundingBoxes": image(lambda: kl.MaxNumBoundingBoxes(3)),
    "MelSpectrogram": Case(
        lambda: kl.MelSpectrogram(fft_length=16, sequence_stride=8, num_mel_bins=4), ((48,),), "raw"
    ),
    "RandomBrightness": image(lambda: kl.RandomBrightness(0.3, **RANDOM)),
    "RandomColorDegeneration": image(lambda: kl.RandomColorDegeneration(0.5, **RANDOM)),
    "RandomColorJitter": image(lambda: kl.RandomColorJitter(brightness_factor=0.3, contrast_factor=0.3, **RANDOM)),
    "RandomContrast": image(lambda: kl.RandomContrast(0.5, **RANDOM)),
    "RandomErasing": image(lambda: kl.RandomErasing(1.0, **RANDOM)),
    "RandomFlip": image(lambda: kl.RandomFlip(seed=3)),
    "RandomGaussianBlur": image(lambda: kl.RandomGaussianBlur(1.0, kernel_size=3, sigma=0.8, **RANDOM)),
    "RandomGrayscale": image(lambda: kl.RandomGrayscale(0.5, seed=3)),
    "RandomHue": image(lambda: kl.RandomHue(0.5, **RANDOM)),
    "RandomInvert": image(lambda: kl.RandomInvert(0.5, **RANDOM)),
    "RandomPosterization": image(lambda: kl.RandomPosterization(3, **RANDOM)),
    "RandomSaturation": image(lambda: kl.RandomSaturation(0.4, **RANDOM)),
    "RandomSharpness": image(lambda: kl.RandomSharpness(0.5, **RANDOM)),
    "Rescaling": Case(lambda: kl.Rescaling(0.5, 1.0), ((5,),), "raw"),
    "Resizing": image(lambda: kl.Resizing(4, 5)),
    "STFTSpectrogram": Case(
        lambda: kl.STFTSpectrogram(mode="log", frame_length=8, frame_step=4, fft_length=8), ((24, 1),), "raw"
    ),
    "Solarization": image(lambda: kl.Solarization(threshold_factor=0.5, **RANDOM)),
}
FAMILIES = {
    "core": CORE,
    "activation": ACTIVATIONS,
    "convolution": CONVOLUTION,
    "pooling": POOLING,
    "recurrent": RECURRENT,
    "attention": ATTENTION,
    "normalization": NORMALIZATION,
    "regularization": REGULARIZATION,
    "merging": MERGING,
    "reshaping": RESHAPING,
    "preprocessing": PREPROCESSING,
}
CASES = {name: case for family in FAMILIES.values() for name, case in family.items()}

# What plain Keras with jit_compile=True refuses, too, or leaves to TensorFlow without XLA: with the operation at fault.
REFUSED = {
    "AugMix": (image(lambda: kl.AugMix(**RANDOM)), "StatelessRandomGammaV3"),
    "CutMix": (image(lambda: kl.CutMix(seed=3)), "StatelessRandomGammaV3"),
    "HashedCrossing": (Case(lambda: lambda *x: kl.HashedCrossing(5)(x), ((1,), (1,)), 9), "SparseCross"),
    "Hashing": (tokens(lambda: kl.Hashing(5), 9, 3), "AsString"),
    "IntegerLookup": (tokens(lambda: kl.IntegerLookup(vocabulary=[1, 2, 3]), 9, 3), "LookupInterface"),
    "MixUp": (image(lambda: kl.MixUp(seed=3)), "StatelessRandomGammaV3"),
    "RandAugment": (image(lambda: kl.RandAugment(**RANDOM)), "ImageProjectiveTransformV3"),
    "RandomCrop": (image(lambda: kl.RandomCrop(4, 4, seed=3)), "set-dimension-size"),
    "RandomElasticTransform": (image(lambda: kl.RandomElasticTransform(1.0, scale=0.5, **RANDOM)), "Range"),
    "RandomPerspective": (image(lambda: kl.RandomPerspective(1.0, scale=0.3, seed=3)), "ImageProjectiveTransformV3"),
    "RandomRotation": (image(lambda: kl.RandomRotation(0.2, seed=3)), "ImageProjectiveTransformV3"),
    "RandomShear": (image(lambda: kl.RandomShear(0.3, 0.3, seed=3)), "ImageProjectiveTransformV3"),
    "RandomTranslation": (image(lambda: kl.RandomTranslation(0.2, 0.2, seed=3)), "ImageProjectiveTransformV3"),
    "RandomZoom": (image(lambda: kl.RandomZoom(0.3, seed=3)), "ImageProjectiveTransformV3"),
    "StringLookup": (Case(lambda: kl.StringLookup(vocabulary=["a", "b"]), ((1,),), "text"), "string"),
    "TextVectorization": (
        Case(lambda: kl.TextVectorization(vocabulary=["a", "b"], output_sequence_length=2), ((1,),), "text"),
        "string",
    ),
}

BASE = "not a layer to be used by itself"
OTHER_FRAMEWORK = "wraps code of another framework"
EXCEPTIONS = {
    "FlaxLayer": OTHER_FRAMEWORK,
    "InputLayer": BASE,
    "InputSpec": BASE,
    "JaxLayer": OTHER_FRAMEWORK,
    "Layer": BASE,
    "TFSMLayer": "holds a saved function, not layers",
    "TorchModuleWrapper": OTHER_FRAMEWORK,
    "Wrapper": BASE,
}


def public_layers() -> dict[str, type]:
    """Names of the namespace, without the second names (`AvgPool1D`) of a class."""
    found: dict[str, type] = {}
    for name, value in vars(keras.layers).items():
        if isinstance(value, type) and (name == value.__name__ or value.__name__ not in vars(keras.layers)):
            found[name] = value
    return found
