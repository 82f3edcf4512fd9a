"""GRU of the IPU API."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.keras.layers._recurrent import ACTIVATIONS, Recurrent
from ipu_keras.ops._scan import scan

__all__ = ["PopnnGRU"]


@keras.saving.register_keras_serializable("ipu_keras")
class PopnnGRU(Recurrent):
    """Gated recurrent unit; its weights have Keras's shapes and order of gates, the biases being named ``biases``.

    Args:
        units: size of the state.
        activation: name or function of Keras: tanh, relu, softmax, sigmoid or hard_sigmoid, whose slope is 0.2.
        recurrent_activation: of the gates: the same but relu.
        use_bias: must be True.
        kernel_initializer: initializer of the inputs' weights.
        recurrent_initializer: initializer of the state's weights.
        bias_initializer: initializer of the biases.
        kernel_regularizer: must be None, as the other regularizers and constraints.
        recurrent_regularizer: must be None.
        bias_regularizer: must be None.
        activity_regularizer: must be None.
        kernel_constraint: must be None.
        recurrent_constraint: must be None.
        bias_constraint: must be None.
        dropout: share of the inputs that are dropped in training, with the same mask at all times.
        dropout_seed: a pair of int32, for the same mask at each call; None for a new one.
        recurrent_dropout: must be 0.
        implementation: accepted; it is how Keras's own layer computes.
        return_sequences: whether the result has all times.
        return_state: whether the last states are returned too.
        go_backwards: must be False.
        stateful: whether a call starts where the last one ended; needs a known batch size.
        unroll: must be False.
        seed: of the initializers that are given by name.
        partials_dtype: accepted; partial sums of products are an option of the whole program.
        time_major: whether inputs and results are [times, batch, ...].
        options: options of the vendor's planner, a dict; not used.
        options_bwd: the same for the backward pass.
        reset_after: whether the reset gate acts after the state's product, which then has biases of its own, or
            before.
        **kwargs: arguments of ``keras.layers.Layer``.

    Raises:
        ArgumentError: an argument that the chip's layer does not have.
        ArgumentTypeError: options that are not a dict.

    Example:
        >>> PopnnGRU(8)(tf.ones((2, 5, 3))).shape
        TensorShape([2, 8])
    """

    gates = 3
    state_names = ("h",)

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        dropout_seed: Any = None,
        recurrent_dropout: float = 0.0,
        implementation: int = 1,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        seed: int | None = None,
        partials_dtype: Any = tf.float32,
        time_major: bool = False,
        options: dict[str, str] | None = None,
        options_bwd: dict[str, str] | None = None,
        reset_after: bool = True,
        **kwargs: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "kwargs", "__class__")}
        super().__init__(**given, **kwargs)
        self.reset_after = reset_after

    def make_biases(self) -> Any:
        """Makes the biases, of shape [2, 3 * units] with `reset_after`, else [3 * units]."""
        shape = (2, 3 * self.units) if self.reset_after else (3 * self.units,)
        return self.add_weight(shape=shape, initializer=self.bias_initializer, name="biases")

    def run(self, xs: Any, states: list[Any]) -> list[Any]:
        """All states of all times.

        Args:
            xs: tensor of shape [times, batch, features].
            states: the first output, of shape [batch, units].
        """
        gate, squash = ACTIVATIONS[self.recurrent_activation_name], ACTIVATIONS[self.activation_name]
        wide = 2 * self.units

        def reset_after(old: list[Any], now: list[Any], weights: list[Any]) -> list[Any]:
            del weights
            (h,), (x, from_state) = old, now
            z, r = tf.split(gate(x[:, :wide] + from_state[:, :wide]), 2, axis=-1)
            return [z * h + (1 - z) * squash(x[:, wide:] + r * from_state[:, wide:])]

        def reset_before(old: list[Any], now: list[Any], weights: list[Any]) -> list[Any]:
            (h,), (x,), (recurrent,) = old, now, weights
            z, r = tf.split(gate(x[:, :wide] + h @ recurrent[:, :wide]), 2, axis=-1)
            return [z * h + (1 - z) * squash(x[:, wide:] + (r * h) @ recurrent[:, wide:])]

        kernel, recurrent, biases = self.weights_in(xs.dtype)
        # The inputs' product has no need of the loop: one large product in place of many small ones.
        product = tf.tensordot(xs, kernel, 1)
        if self.reset_after:
            return scan(reset_after, states, [product + biases[0]], linear=[recurrent, biases[1]])
        return scan(reset_before, states, [product + biases], [recurrent])

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {**super().get_config(), "reset_after": self.reset_after}
