"""LSTM of the IPU API."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.keras.layers._recurrent import ACTIVATIONS, Recurrent
from ipu_keras.ops._scan import scan

__all__ = ["PopnnLSTM"]


@keras.saving.register_keras_serializable("ipu_keras")
class PopnnLSTM(Recurrent):
    """Long short-term memory; its weights have Keras's shapes and order of gates, the biases being named ``biases``.

    Args:
        units: size of the state.
        activation: name or function of Keras: tanh, relu, softmax, sigmoid or hard_sigmoid, whose slope is 0.2.
        recurrent_activation: of the gates: the same but relu.
        use_bias: must be True.
        kernel_initializer: initializer of the inputs' weights.
        recurrent_initializer: initializer of the state's weights.
        bias_initializer: initializer of the biases.
        unit_forget_bias: whether the biases of the forget gate start at one.
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
        **kwargs: arguments of ``keras.layers.Layer``.

    Raises:
        ArgumentError: an argument that the chip's layer does not have.
        ArgumentTypeError: options that are not a dict.

    Example:
        >>> PopnnLSTM(8, return_sequences=True)(tf.ones((2, 5, 3))).shape
        TensorShape([2, 5, 8])
    """

    gates = 4
    state_names = ("h", "c")

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
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
        **kwargs: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "kwargs", "__class__")}
        super().__init__(**given, **kwargs)
        self.unit_forget_bias = unit_forget_bias

    def make_biases(self) -> Any:
        """Makes the biases, of shape [4 * units]."""

        def start(shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
            if not self.unit_forget_bias:
                return self.bias_initializer(shape, dtype=dtype, **kwargs)
            first = self.bias_initializer((self.units,), dtype=dtype, **kwargs)
            rest = self.bias_initializer((2 * self.units,), dtype=dtype, **kwargs)
            return tf.concat([first, tf.ones((self.units,), first.dtype), rest], 0)

        return self.add_weight(shape=(4 * self.units,), initializer=start, name="biases")

    def run(self, xs: Any, states: list[Any]) -> list[Any]:
        """All states of all times.

        Args:
            xs: tensor of shape [times, batch, features].
            states: the first output and the first cell state, each of shape [batch, units].
        """
        gate, squash = ACTIVATIONS[self.recurrent_activation_name], ACTIVATIONS[self.activation_name]

        def step(old: list[Any], now: list[Any], weights: list[Any]) -> list[Any]:
            del weights
            i, f, candidate, o = tf.split(now[0] + now[1], 4, axis=-1)
            c = gate(f) * old[1] + gate(i) * squash(candidate)
            return [gate(o) * squash(c), c]

        kernel, recurrent, biases = self.weights_in(xs.dtype)
        # The inputs' product has no need of the loop: one large product in place of many small ones.
        return scan(step, states, [tf.tensordot(xs, kernel, 1) + biases], linear=[recurrent])

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {**super().get_config(), "unit_forget_bias": self.unit_forget_bias}
