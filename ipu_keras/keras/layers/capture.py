"""Wrappers of layers that record gradients, for automatic loss scaling."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import keras

from ipu_keras.keras.layers._recurrent import Recurrent
from ipu_keras.ops._refusals import ArgumentError, NotOnIPUError
from ipu_keras.ops.grad_util_ops import capture_upstream_gradients

__all__ = ["CaptureActivationGradients", "CaptureUpstreamGradients"]


class _Capture(keras.layers.Wrapper):
    suffix = ""

    def __init__(self, layer: Any, tag: str | None = None, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.tag = layer.name + self.suffix if tag is None else tag
        parameters = inspect.signature(layer.call).parameters.values()
        self._takes_training = any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in parameters)

    def call(self, inputs: Any, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        """The wrapped layer's outputs.

        Args:
            inputs: of the wrapped layer.
            *args: of the wrapped layer.
            training: of the wrapped layer; left out, with a warning, if that has no such argument.
            **kwargs: of the wrapped layer.
        """
        if self._takes_training:
            kwargs["training"] = training
        elif training:
            warnings.warn(f"Layer {self.layer.name} has no argument `training`: it is left out.", stacklevel=2)
        return self.layer(inputs, *args, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The wrapped layer's.

        Args:
            input_shape: of the input.
        """
        return self.layer.compute_output_shape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {**super().get_config(), "tag": self.tag}


@keras.saving.register_keras_serializable("ipu_keras")
class CaptureUpstreamGradients(_Capture):
    """A layer, the gradients that arrive at its outputs being recorded.

    In ``fit`` an optimizer such as ALSOptimizer gets them as `captured_grads`; elsewhere they are in the enclosing
    GradientCaptureContext or GradientCaptureTape.

    Args:
        layer: the layer.
        tag: name of the record; None for the layer's name and ``_cug``.
        **kwargs: arguments of ``keras.layers.Layer``.

    Example:
        >>> x = CaptureUpstreamGradients(keras.layers.Dense(8), tag="hidden")(x)
    """

    suffix = "_cug"

    def call(self, inputs: Any, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        """The wrapped layer's outputs.

        Args:
            inputs: of the wrapped layer.
            *args: of the wrapped layer.
            training: of the wrapped layer; left out, with a warning, if that has no such argument.
            **kwargs: of the wrapped layer.
        """
        outputs = super().call(inputs, *args, training=training, **kwargs)
        return capture_upstream_gradients(outputs, tag=self.tag)


@keras.saving.register_keras_serializable("ipu_keras")
class CaptureActivationGradients(_Capture):
    """A layer, the gradients that arrive at its activation functions' results being recorded.

    The layer is made again from its configuration: weights that it has already are not taken over. Each item of the
    configuration whose name ends in ``activation`` has a record, named by the tag, ``_`` and the item.

    Args:
        layer: the layer.
        tag: beginning of the records' names; None for the layer's name and ``_cag``.
        **kwargs: arguments of ``keras.layers.Layer``.

    Raises:
        ArgumentError: the layer has no activation.
        NotOnIPUError: the layer is recurrent, and its activations are inside a loop.

    Example:
        >>> x = CaptureActivationGradients(keras.layers.Dense(8, activation="relu"))(x)
    """

    suffix = "_cag"

    def __init__(self, layer: Any, tag: str | None = None, **kwargs: Any) -> None:
        if not self.layer_is_supported(layer):
            raise ArgumentError(
                f"CaptureActivationGradients: layer {layer.name!r} has no activation; wrap one that has, or use "
                "CaptureUpstreamGradients."
            )
        if isinstance(layer, (keras.layers.RNN, Recurrent)):
            raise NotOnIPUError(
                f"CaptureActivationGradients: layer {layer.name!r} uses its activations inside a loop over time, whose "
                "gradients cannot be captured; use CaptureUpstreamGradients."
            )
        config = layer.get_config()
        super().__init__(type(layer).from_config(config), tag, **kwargs)
        for name in _activations(config):
            setattr(self.layer, name, _Recorder(getattr(layer, name), f"{self.tag}_{name}"))
        self._plain = keras.saving.serialize_keras_object(layer)  # ours has recorders in place of functions

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        config = keras.layers.Layer.get_config(self)
        return {**config, "tag": self.tag, "layer": self._plain}

    @staticmethod
    def layer_is_supported(layer: Any) -> bool:
        """Whether the layer's configuration has an activation.

        Args:
            layer: a layer.
        """
        return bool(_activations(layer.get_config()))


class _Recorder:
    """An activation function that also records."""

    def __init__(self, function: Any, tag: str) -> None:
        self.function, self.tag = function, tag

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return capture_upstream_gradients(self.function(*args, **kwargs), tag=self.tag)


def _activations(config: dict[str, Any]) -> list[str]:
    return [name for name, value in config.items() if name.endswith("activation") and value is not None]
