"""What the IPU's optimizers have in common: dtypes of the arithmetic and of each state variable."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError, NotOnIPUError
from ipu_keras.ops.functional_ops import outlined_function

__all__ = ["IpuOptimizerBase"]


@keras.saving.register_keras_serializable("ipu_keras")
class IpuOptimizerBase(keras.optimizers.Optimizer):
    """Base of optimizers that compute in one dtype and store their state in another.

    A subclass makes its state in `build` with `add_slot_with_dtype` and writes the update in Keras's `update_step`.

    Args:
        name: name of the optimizer.
        optimizer_compute_precisions: dtypes of the arithmetic; how many there are is the subclass's affair.
        outline_apply_gradients: whether the update is to be an outlined function; no result depends on it.
        outline_apply_gradients_kwargs: keyword arguments of ``outlined_function``, None for none.
        learning_rate: a float, a schedule of Keras or a function without arguments.
        lr: another name of `learning_rate`.
        decay: the learning rate is divided by ``1 + decay * iterations``.
        **kwargs: arguments of ``keras.optimizers.Optimizer``, such as `clipnorm` and `clipvalue`.

    Raises:
        ArgumentError: no dtype is given, or one that is not floating-point.
        ArgumentTypeError: `outline_apply_gradients_kwargs` are not those of ``outlined_function``.

    Example:
        >>> class Signs(IpuOptimizerBase):
        ...     def update_step(self, gradient, variable, learning_rate):
        ...         step = tf.sign(gradient) * tf.cast(self.decayed(learning_rate), gradient.dtype)
        ...         self.assign_sub(variable, step)
    """

    def __init__(
        self,
        name: str | None = None,
        optimizer_compute_precisions: Any = (tf.float32,),
        outline_apply_gradients: bool = False,
        outline_apply_gradients_kwargs: dict[str, Any] | None = None,
        learning_rate: Any = 0.001,
        lr: Any = None,
        decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate if lr is None else lr, name=name, **kwargs)
        self.optimizer_compute_precisions = _precisions(optimizer_compute_precisions)
        self.outline_apply_gradients = outline_apply_gradients
        self.outline_apply_gradients_kwargs = outline_apply_gradients_kwargs
        try:
            outlined_function(**(outline_apply_gradients_kwargs or {}))
        except TypeError as error:
            raise ArgumentTypeError(f"outline_apply_gradients_kwargs: {error}") from None
        self.decay = decay or 0.0
        # A plain dict: Keras would follow its keys, and the variables in it are followed already.
        object.__setattr__(self, "_slots", {})

    @property
    def lr(self) -> Any:
        """Another name of `learning_rate`."""
        return self.learning_rate

    @lr.setter
    def lr(self, value: Any) -> None:
        self.learning_rate = value

    def decayed(self, learning_rate: Any) -> Any:
        """The learning rate of this step.

        Args:
            learning_rate: as `update_step` gets it.
        """
        if not self.decay:
            return learning_rate
        rate = tf.convert_to_tensor(learning_rate)
        return rate / (
            1.0 + tf.cast(self.decay, rate.dtype) * tf.cast(tf.convert_to_tensor(self.iterations), rate.dtype)
        )

    def get_slot_dtype(self, var: Any, slot_dtype: Any = None) -> str:
        """Name of the dtype of a state variable.

        Args:
            var: the weight that it is for.
            slot_dtype: the dtype that was asked for, None for the weight's.
        """
        return _dtype_name(var.dtype if slot_dtype is None else slot_dtype)

    def add_slot_with_dtype(self, var: Any, slot_name: str, dtype: Any = None, initializer: Any = "zeros") -> Any:
        """Makes a state variable of a weight's shape; in `build`.

        Args:
            var: the weight.
            slot_name: name of the state.
            dtype: its dtype, None for the weight's.
            initializer: of Keras.
        """
        path = getattr(var, "path", None) or var.name.split(":")[0]
        slot = self.add_variable(
            shape=var.shape,
            initializer=initializer,
            dtype=self.get_slot_dtype(var, dtype),
            name=f"{path.replace('/', '_')}_{slot_name}",
        )
        self._slots[slot_name, self._var_key(var)] = slot
        return slot

    def add_slot(self, var: Any, slot_name: str, initializer: Any = "zeros", dtype: Any = None) -> Any:
        """`add_slot_with_dtype` with its arguments in Keras 2's order.

        Args:
            var: the weight.
            slot_name: name of the state.
            initializer: of Keras.
            dtype: its dtype, None for the weight's.
        """
        return self.add_slot_with_dtype(var, slot_name, dtype, initializer)

    def get_slot(self, var: Any, slot_name: str) -> Any:
        """A state variable.

        Args:
            var: the weight.
            slot_name: name of the state.
        """
        return self._slots[slot_name, self._var_key(var)]

    def read_slot(self, var: Any, slot_name: str, dtype: Any) -> Any:
        """A state's value for the arithmetic.

        Args:
            var: the weight.
            slot_name: name of the state.
            dtype: of the result.
        """
        return tf.cast(self.get_slot(var, slot_name).value, dtype)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Updates the weights, as Keras's optimizers do.

        Args:
            grads: a tensor for each weight, or None.
            trainable_variables: the weights; None for those that the optimizer was built with.

        Raises:
            NotOnIPUError: a gradient is sparse.
        """
        if any(isinstance(g, tf.IndexedSlices) for g in grads):
            raise NotOnIPUError(
                f"{type(self).__name__} takes no sparse gradients (tf.IndexedSlices). Look rows up with the IPU API's "
                "Embedding layer or embedding_lookup, whose gradients are dense."
            )
        super().apply(grads, trainable_variables)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal optimizer."""
        return {
            **super().get_config(),
            "optimizer_compute_precisions": list(self.optimizer_compute_precisions),
            "outline_apply_gradients": self.outline_apply_gradients,
            "outline_apply_gradients_kwargs": self.outline_apply_gradients_kwargs,
            "decay": self.decay,
        }


def _dtype_name(dtype: Any) -> str:
    return str(tf.as_dtype(dtype).name)


def optional_dtype(dtype: Any) -> str | None:
    """A dtype's name, None for None.

    Args:
        dtype: a dtype, its name, or None.
    """
    return None if dtype is None else _dtype_name(dtype)


def _precisions(dtypes: Any) -> tuple[str, ...]:
    names = tuple(_dtype_name(d) for d in dtypes) if isinstance(dtypes, (tuple, list)) else ()
    if not names or not all(tf.as_dtype(name).is_floating for name in names):
        raise ArgumentError(
            f"optimizer_compute_precisions is {dtypes!r}; it must be a tuple of floating-point dtypes, such as "
            "(tf.float32,)."
        )
    return names
