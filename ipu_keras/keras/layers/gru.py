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
        *args: arguments of ``keras.layers.GRU``, by position or by name; `activation`, `recurrent_activation`,
            `use_bias` and the three initializers are first.
        reset_after: whether the reset gate acts after the state's product, which then has biases of its own, or before.
        **kwargs: `dropout`, `dropout_seed`, `return_sequences`, `return_state`, `stateful`, `seed`, `partials_dtype`,
            `time_major`, `options`, `options_bwd`, and arguments of ``keras.layers.Layer``. `use_bias=False`,
            regularizers, constraints, `recurrent_dropout`, `go_backwards` and `unroll` are refused.

    Raises:
        ArgumentError: an argument that the chip's layer does not have.

    Example:
        >>> PopnnGRU(8)(tf.ones((2, 5, 3))).shape
        TensorShape([2, 8])
    """

    gates = 3
    state_names = ("h",)

    def __init__(self, units: int, *args: Any, reset_after: bool = True, **kwargs: Any) -> None:
        super().__init__(units, *args, **kwargs)
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
            (h,), (x,), (recurrent, biases) = old, now, weights
            from_state = h @ recurrent + biases
            z, r = tf.split(gate(x[:, :wide] + from_state[:, :wide]), 2, axis=-1)
            return [z * h + (1 - z) * squash(x[:, wide:] + r * from_state[:, wide:])]

        def reset_before(old: list[Any], now: list[Any], weights: list[Any]) -> list[Any]:
            (h,), (x,), (recurrent,) = old, now, weights
            z, r = tf.split(gate(x[:, :wide] + h @ recurrent[:, :wide]), 2, axis=-1)
            return [z * h + (1 - z) * squash(x[:, wide:] + (r * h) @ recurrent[:, wide:])]

        kernel, recurrent, biases = (tf.cast(tf.convert_to_tensor(w), xs.dtype) for w in self._weights())
        # The inputs' product has no need of the loop: one large product in place of many small ones.
        product = tf.tensordot(xs, kernel, 1)
        if self.reset_after:
            return scan(reset_after, states, [product + biases[0]], [recurrent, biases[1]])
        return scan(reset_before, states, [product + biases], [recurrent])

    def _weights(self) -> tuple[Any, Any, Any]:
        return self.kernel, self.recurrent_kernel, self.biases

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {**super().get_config(), "reset_after": self.reset_after}
