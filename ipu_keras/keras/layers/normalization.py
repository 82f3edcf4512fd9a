"""Group, instance and layer normalization of the IPU API."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError, NotOnIPUError

__all__ = ["GroupNormalization", "InstanceNormalization", "LayerNormalization"]


@keras.saving.register_keras_serializable("ipu_keras")
class GroupNormalization(keras.layers.Layer):
    """Each example's groups of channels get a mean of 0 and a variance of 1, and each channel a scale and an offset.

    By default a group's channels are *not* neighbours, as in Keras: channel c belongs to group ``c mod groups``.

    Args:
        groups: how many groups; must divide the channels.
        channels_axis: 1 or the last.
        center: whether there is an offset, ``beta``.
        scale: whether there is a scale, ``gamma``.
        epsilon: added to the variance.
        beta_initializer: None for zeros.
        gamma_initializer: None for ones.
        strided_channel_grouping: False makes groups of neighbours.
        trainable: whether scale and offset are trained.
        **kwargs: arguments of ``keras.layers.Layer``.

    Raises:
        ArgumentError: `groups` does not divide the channels, or the axis is another.

    Example:
        >>> GroupNormalization(groups=4)(tf.random.normal((2, 8, 8, 16)))
    """

    def __init__(
        self,
        groups: int = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        strided_channel_grouping: bool = True,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.groups = groups
        self.channels_axis = channels_axis
        self.center = center
        self.scale = scale
        self.epsilon = epsilon
        self.beta_initializer = keras.initializers.get(beta_initializer or "zeros")
        self.gamma_initializer = keras.initializers.get(gamma_initializer or "ones")
        self.strided_channel_grouping = strided_channel_grouping

    def group_count(self, channels: int) -> int:
        """How many groups there are.

        Args:
            channels: how many channels there are.
        """
        del channels
        return self.groups

    def build(self, input_shape: Any) -> None:
        """Makes scale and offset.

        Args:
            input_shape: of the input.
        """
        channels = input_shape[self._axis(len(input_shape))]
        if channels is None:
            raise ArgumentError(f"{type(self).__name__}: the number of channels must be known; {input_shape}.")
        groups = self.group_count(channels)
        if groups < 1 or groups > channels:
            raise ArgumentError(f"{type(self).__name__}: groups is {groups}; there are {channels} channels.")
        if channels % groups:
            raise ArgumentError(f"{type(self).__name__}: groups {groups} must divide the {channels} channels.")
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(shape=(channels,), initializer=self.gamma_initializer, name="gamma")
        if self.center:
            self.beta = self.add_weight(shape=(channels,), initializer=self.beta_initializer, name="beta")

    def _axis(self, rank: int) -> int:
        if rank < 2 or self.channels_axis not in (1, -1, rank - 1):
            raise ArgumentError(
                f"{type(self).__name__}: channels_axis is {self.channels_axis}; for an input of rank {rank} it must be "
                "1 or the last."
            )
        return self.channels_axis % rank

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Normalizes; statistics are always those of the input, in float32.

        Args:
            inputs: tensor of shape [batch, ...], of rank 2 or more.
            training: not used.
        """
        del training
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.rank
        axis = self._axis(rank)
        channels = inputs.shape[axis]
        groups = self.group_count(channels)
        split = [channels // groups, groups] if self.strided_channel_grouping else [groups, channels // groups]
        shape = tf.shape(inputs)
        x = tf.reshape(inputs, tf.concat([shape[:axis], split, shape[axis + 1 :]], 0))
        member = axis if self.strided_channel_grouping else axis + 1
        x = _standardized(x, [a for a in range(1, rank + 1) if a not in (0, 2 * axis + 1 - member)], self.epsilon)
        x = tf.cast(tf.reshape(x, shape), tf.float32)
        broadcast = [channels if a == axis else 1 for a in range(rank)]
        return tf.ensure_shape(tf.cast(_affine(x, self.gamma, self.beta, broadcast), inputs.dtype), inputs.shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape.

        Args:
            input_shape: of the input.
        """
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {
            **super().get_config(),
            "groups": self.groups,
            "channels_axis": self.channels_axis,
            "center": self.center,
            "scale": self.scale,
            "epsilon": self.epsilon,
            "beta_initializer": keras.initializers.serialize(self.beta_initializer),
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
            "strided_channel_grouping": self.strided_channel_grouping,
        }


@keras.saving.register_keras_serializable("ipu_keras")
class InstanceNormalization(GroupNormalization):
    """Group normalization with a group for each channel.

    Args:
        channels_axis: 1 or the last.
        center: whether there is an offset, ``beta``.
        scale: whether there is a scale, ``gamma``.
        epsilon: added to the variance.
        beta_initializer: None for zeros.
        gamma_initializer: None for ones.
        **kwargs: arguments of ``keras.layers.Layer``.

    Example:
        >>> InstanceNormalization()(tf.random.normal((2, 8, 8, 16)))
    """

    def __init__(
        self,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            1,
            channels_axis,
            center,
            scale,
            epsilon,
            beta_initializer,
            gamma_initializer,
            **kwargs,
        )

    def group_count(self, channels: int) -> int:
        """A group for each channel.

        Args:
            channels: how many channels there are.
        """
        return channels

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        config = super().get_config()
        del config["groups"], config["strided_channel_grouping"]
        return config


@keras.saving.register_keras_serializable("ipu_keras")
class LayerNormalization(keras.layers.Layer):
    """A mean of 0 and a variance of 1 over some axes of each example, then a scale and an offset an element of them.

    Args:
        axis: an axis or a list of axes.
        epsilon: added to the variance.
        center: whether there is an offset, ``beta``.
        scale: whether there is a scale, ``gamma``.
        beta_initializer: initializer of the offset.
        gamma_initializer: initializer of the scale.
        beta_regularizer: must be None.
        gamma_regularizer: must be None.
        beta_constraint: must be None.
        gamma_constraint: must be None.
        trainable: whether scale and offset are trained.
        **kwargs: arguments of ``keras.layers.Layer``.

    Raises:
        NotOnIPUError: a regularizer or a constraint is given.
        ArgumentError: an axis that is not there; or a dimension other than the batch is not known.

    Example:
        >>> LayerNormalization()(tf.random.normal((2, 16)))
    """

    def __init__(
        self,
        axis: Any = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        given = {
            "beta_regularizer": beta_regularizer,
            "gamma_regularizer": gamma_regularizer,
            "beta_constraint": beta_constraint,
            "gamma_constraint": gamma_constraint,
        }
        for name, value in given.items():
            if value is not None:
                raise NotOnIPUError(
                    f"LayerNormalization: {name} is not supported by the IPU API's layer; leave it out."
                )
        super().__init__(trainable=trainable, **kwargs)
        self.axis = list(axis) if isinstance(axis, (list, tuple)) else axis
        self.epsilon = epsilon
        self.center = center
        self.scale = scale
        self.beta_initializer = keras.initializers.get(beta_initializer)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)
        self.supports_masking = True

    def _axes(self, rank: int) -> list[int]:
        axes = self.axis if isinstance(self.axis, list) else [self.axis]
        if not axes or any(not -rank <= a < rank for a in axes) or len({a % rank for a in axes}) < len(axes):
            raise ArgumentError(f"LayerNormalization: axis is {self.axis}; the input has a rank of {rank}.")
        return sorted(a % rank for a in axes)

    def build(self, input_shape: Any) -> None:
        """Makes scale and offset.

        Args:
            input_shape: of the input.
        """
        if any(size is None for size in input_shape[1:]):
            raise ArgumentError(
                f"LayerNormalization: all dimensions of the input but the batch must be known; {tuple(input_shape)}."
            )
        shape = tuple(input_shape[a] for a in self._axes(len(input_shape)))
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(shape=shape, initializer=self.gamma_initializer, name="gamma")
        if self.center:
            self.beta = self.add_weight(shape=shape, initializer=self.beta_initializer, name="beta")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Normalizes; the statistics are in float32.

        Args:
            inputs: tensor of shape [batch, ...].
            training: not used.
        """
        del training
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.rank
        axes = self._axes(rank)
        x = tf.cast(_standardized(inputs, axes, self.epsilon), tf.float32)
        broadcast = [inputs.shape[a] if a in axes else 1 for a in range(rank)]
        return tf.cast(_affine(x, self.gamma, self.beta, broadcast), inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape.

        Args:
            input_shape: of the input.
        """
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {
            **super().get_config(),
            "axis": self.axis,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            "beta_initializer": keras.initializers.serialize(self.beta_initializer),
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
        }


def _standardized(x: Any, axes: list[int], epsilon: float) -> Any:
    """A mean of 0 and a variance of 1 over some axes, in the input's dtype; what is summed up is float32.

    For its gradient only the result and the deviations are kept, as in the vendor's library (popnn's norms take the
    whitened activations), and not what TensorFlow would record: three arrays of float32.
    """

    def mean(values: Any) -> Any:
        return tf.reduce_mean(values, axes, keepdims=True)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def standardized(x: Any) -> Any:
        wide = tf.cast(x, tf.float32)
        centred = wide - mean(wide)
        scale = tf.math.rsqrt(mean(tf.square(centred)) + epsilon)
        result = tf.cast(centred * scale, x.dtype)

        def gradient(upstream: Any) -> Any:
            wide, whitened = tf.cast(upstream, tf.float32), tf.cast(result, tf.float32)
            return tf.cast(scale * (wide - mean(wide) - whitened * mean(whitened * wide)), x.dtype)

        return result, gradient

    return standardized(x)


def _affine(x: Any, gamma: Any, beta: Any, shape: list[int]) -> Any:
    """Scale and offset in a shape that is broadcast, where there are any."""
    if gamma is not None:
        x *= tf.reshape(tf.cast(gamma, tf.float32), shape)
    return x if beta is None else x + tf.reshape(tf.cast(beta, tf.float32), shape)
