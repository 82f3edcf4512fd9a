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
        *args: arguments of ``keras.layers.LSTM``, by position or by name; `activation`, `recurrent_activation`,
            `use_bias` and the three initializers are first.
        unit_forget_bias: whether the biases of the forget gate start at one.
        **kwargs: `dropout`, `dropout_seed`, `return_sequences`, `return_state`, `stateful`, `seed`, `partials_dtype`,
            `time_major`, `options`, `options_bwd`, and arguments of ``keras.layers.Layer``. `use_bias=False`,
            regularizers, constraints, `recurrent_dropout`, `go_backwards` and `unroll` are refused.

    Raises:
        ArgumentError: an argument that the chip's layer does not have.

    Example:
        >>> PopnnLSTM(8, return_sequences=True)(tf.ones((2, 5, 3))).shape
        TensorShape([2, 5, 8])
    """

    gates = 4
    state_names = ("h", "c")

    def __init__(self, units: int, *args: Any, unit_forget_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(units, *args, **kwargs)
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
            h, c = old
            i, f, candidate, o = tf.split(now[0] + h @ weights[0], 4, axis=-1)
            c = gate(f) * c + gate(i) * squash(candidate)
            return [gate(o) * squash(c), c]

        kernel, recurrent, biases = (tf.cast(tf.convert_to_tensor(w), xs.dtype) for w in self._weights())
        # The inputs' product has no need of the loop: one large product in place of many small ones.
        return scan(step, states, [tf.tensordot(xs, kernel, 1) + biases], [recurrent])

    def _weights(self) -> tuple[Any, Any, Any]:
        return self.kernel, self.recurrent_kernel, self.biases

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {**super().get_config(), "unit_forget_bias": self.unit_forget_bias}
