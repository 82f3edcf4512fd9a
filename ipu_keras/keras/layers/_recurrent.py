"""What LSTM and GRU have in common: arguments, states, and the loop over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ipu_keras.ops import _seeds, nn_ops
from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError
from ipu_keras.ops.rand_ops import dropout as drop

__all__ = ["ACTIVATIONS", "Recurrent"]

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "softmax": tf.nn.softmax,
    "sigmoid": tf.sigmoid,
    "hard_sigmoid": nn_ops.hard_sigmoid,
}
"""The functions that the chip's recurrent layers have, by name; hard_sigmoid has the slope 0.2."""

_UNSUPPORTED = (
    "kernel_regularizer",
    "recurrent_regularizer",
    "bias_regularizer",
    "activity_regularizer",
    "kernel_constraint",
    "recurrent_constraint",
    "bias_constraint",
    "recurrent_dropout",
    "go_backwards",
    "unroll",
)


class Recurrent(keras.layers.Layer):
    """Base of the recurrent layers; a subclass has `gates`, `state_names`, `make_biases` and `run`.

    Args:
        units: size of the state.
        activation: name or function of Keras: tanh, relu, softmax, sigmoid or hard_sigmoid.
        recurrent_activation: of the gates: the same but relu.
        use_bias: must be True.
        kernel_initializer: initializer of the inputs' weights.
        recurrent_initializer: initializer of the state's weights.
        bias_initializer: initializer of the biases.
        dropout: share of the inputs that are dropped in training, with the same mask at all times.
        dropout_seed: a pair of int32, for the same mask at each call; None for a new one.
        return_sequences: whether the result has all times.
        return_state: whether the last states are returned too.
        stateful: whether a call starts where the last one ended; needs a known batch size.
        seed: of the initializers that are given by name.
        partials_dtype: accepted; partial sums of products are an option of the whole program.
        time_major: whether inputs and results are [times, batch, ...].
        options: options of the vendor's planner, a dict; not used.
        options_bwd: the same for the backward pass.
        **kwargs: arguments of ``keras.layers.Layer``; those of Keras's layer that must be left out are refused.

    Raises:
        ArgumentError: an argument that the chip's layer does not have.
        ArgumentTypeError: options that are not a dict.
    """

    gates = 0
    state_names: tuple[str, ...] = ()

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        *,
        dropout: float = 0.0,
        dropout_seed: Any = None,
        return_sequences: bool = False,
        return_state: bool = False,
        stateful: bool = False,
        seed: int | None = None,
        partials_dtype: Any = tf.float32,
        time_major: bool = False,
        options: dict[str, str] | None = None,
        options_bwd: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        kind = type(self).__name__
        if not use_bias:
            raise ArgumentError(f"{kind}: use_bias=False is not supported by the IPU API's layer.")
        for name in _UNSUPPORTED:
            if kwargs.pop(name, None):
                raise ArgumentError(f"{kind}: {name} is not supported by the IPU API's layer; leave it out.")
        kwargs.pop("implementation", None)  # how Keras's own layer computes
        for name in ("unit_forget_bias", "reset_after"):
            kwargs.pop(name, None)  # the subclasses' own
        for label, value in (("options", options), ("options_bwd", options_bwd)):
            if value is not None and not isinstance(value, dict):
                raise ArgumentTypeError(f"{kind}: {label} must be a dict, not {type(value).__name__}.")
        super().__init__(**kwargs)
        if not 0 <= dropout < 1:
            raise ArgumentError(f"{kind}: dropout is {dropout}; it must be in [0, 1).")
        self.units = units
        self.activation_name = _activation(kind, "activation", activation, set(ACTIVATIONS))
        self.recurrent_activation_name = _activation(
            kind, "recurrent_activation", recurrent_activation, set(ACTIVATIONS) - {"relu"}
        )
        self.kernel_initializer = _seeded(kernel_initializer, seed)
        self.recurrent_initializer = _seeded(recurrent_initializer, None if seed is None else seed + 1)
        self.bias_initializer = _seeded(bias_initializer, None if seed is None else seed + 2)
        self.dropout = dropout
        self.dropout_seed = None if dropout_seed is None else [int(s) for s in np.asarray(dropout_seed)]
        self.seed_generator = _seeds.generator() if dropout and dropout_seed is None else None
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.stateful = stateful
        self.partials_dtype = tf.as_dtype(partials_dtype).name
        self.time_major = time_major
        self.options = options
        self.options_bwd = options_bwd

    def make_biases(self) -> Any:
        """Makes the biases; in `build`."""
        raise NotImplementedError

    def run(self, xs: Any, states: list[Any]) -> list[Any]:
        """All states of all times.

        Args:
            xs: tensor of shape [times, batch, features].
            states: the first ones, each of shape [batch, units].
        """
        raise NotImplementedError

    def weights_in(self, dtype: Any) -> tuple[Any, Any, Any]:
        """Kernel, recurrent kernel and biases.

        Args:
            dtype: of the results.
        """
        kernel, recurrent, biases = (
            tf.cast(tf.convert_to_tensor(w), dtype) for w in (self.kernel, self.recurrent_kernel, self.biases)
        )
        return kernel, recurrent, biases

    def build(self, input_shape: Any) -> None:
        """Makes the weights, and the states of a stateful layer.

        Args:
            input_shape: of the input.
        """
        features, batch = input_shape[-1], input_shape[1 if self.time_major else 0]
        if len(input_shape) != 3 or features is None:
            raise ArgumentError(
                f"{type(self).__name__}: the input must have a rank of 3 and a known last dimension; {input_shape}."
            )
        width = self.gates * self.units
        self.kernel = self.add_weight(shape=(features, width), initializer=self.kernel_initializer, name="kernel")
        self.recurrent_kernel = self.add_weight(
            shape=(self.units, width), initializer=self.recurrent_initializer, name="recurrent_kernel"
        )
        self.biases = self.make_biases()
        if self.stateful:
            if batch is None:
                raise ArgumentError(f"{type(self).__name__}: a stateful layer needs a known batch size; {input_shape}.")
            self.states = [
                self.add_weight(shape=(batch, self.units), initializer="zeros", trainable=False, name=f"state_{name}")
                for name in self.state_names
            ]

    def reset_states(self) -> None:
        """Sets the states of a stateful layer to zero."""
        for state in self.states if self.stateful else []:
            state.assign(tf.zeros(state.shape, state.dtype))

    def call(self, inputs: Any, mask: Any = None, training: bool | None = None, initial_state: Any = None) -> Any:
        """Runs over time.

        Args:
            inputs: tensor of shape [batch, times, features], or [times, batch, features] with `time_major`.
            mask: must be None.
            training: whether inputs are dropped.
            initial_state: first states, each of shape [batch, units]; None for zeros.

        Returns:
            the last output or all, and with `return_state` the last states after it.

        Raises:
            ArgumentError: there is a mask, or the number of times is not known.
        """
        if mask is not None:
            raise ArgumentError(f"{type(self).__name__}: masks are not supported by the IPU API's layer.")
        x = tf.convert_to_tensor(inputs)
        x = x if self.time_major else tf.transpose(x, [1, 0, 2])
        if x.shape[0] is None:
            raise ArgumentError(f"{type(self).__name__}: the number of times must be known; {inputs.shape}.")
        if training and self.dropout:
            seed = _seeds.draw(self.seed_generator) if self.dropout_seed is None else self.dropout_seed
            x = drop(x, self.dropout, (1, None, None), seed)
        states = self.run(x, self._first_states(x, initial_state))
        last = [state[-1] for state in states]
        if self.stateful:
            for variable, value in zip(self.states, last):
                variable.assign(tf.cast(value, variable.dtype))
        output = last[0]
        if self.return_sequences:
            output = states[0] if self.time_major else tf.transpose(states[0], [1, 0, 2])
        return (output, *last) if self.return_state else output

    def _first_states(self, x: Any, initial: Any) -> list[Any]:
        if initial is not None:
            given = list(initial) if isinstance(initial, (list, tuple)) else [initial]
            if len(given) != len(self.state_names):
                raise ArgumentError(
                    f"{type(self).__name__}: initial_state has {len(given)} tensors; it needs {len(self.state_names)}."
                )
            return [tf.cast(tf.convert_to_tensor(state), x.dtype) for state in given]
        if self.stateful:
            return [tf.cast(tf.convert_to_tensor(state), x.dtype) for state in self.states]
        batch = x.shape[1] if x.shape[1] is not None else tf.shape(x)[1]
        return [tf.zeros([batch, self.units], x.dtype) for _ in self.state_names]

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": self.activation_name,
            "recurrent_activation": self.recurrent_activation_name,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "recurrent_initializer": keras.initializers.serialize(self.recurrent_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "dropout": self.dropout,
            "dropout_seed": self.dropout_seed,
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "stateful": self.stateful,
            "partials_dtype": self.partials_dtype,
            "time_major": self.time_major,
            "options": self.options,
            "options_bwd": self.options_bwd,
        }


def _activation(kind: str, argument: str, value: Any, allowed: set[str]) -> str:
    name = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    if name not in allowed:
        raise ArgumentError(
            f"{kind}: {argument} is {name!r}; the IPU API's layer has {', '.join(sorted(allowed))} there."
        )
    return name


def _seeded(initializer: Any, seed: int | None) -> Any:
    made = keras.initializers.get(initializer)
    if seed is None or not isinstance(initializer, str) or "seed" not in made.get_config():
        return made
    return type(made).from_config({**made.get_config(), "seed": seed})
