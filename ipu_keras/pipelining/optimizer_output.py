"""What an optimizer function of a pipeline gives back."""

from __future__ import annotations

from typing import Any

from ipu_keras.errors import ConfigError
from ipu_keras.pipelining.errors import PipelineTypeError

__all__ = ["OptimizerFunctionOutput"]


class OptimizerFunctionOutput:
    """The loss of a pipeline, and how its gradients are applied.

    Args:
        opt: a Keras optimizer, or one of ``tf.compat.v1.train``.
        loss: a scalar tensor.
        compute_gradients_args: not for Keras optimizers.
        compute_gradients_kwargs: not for Keras optimizers.
        apply_gradients_args: further arguments of its `apply_gradients`.
        apply_gradients_kwargs: the same, by name.
        variables: whose gradients are wanted, for Keras optimizers; not with `tape`.
        tape: a GradientTape that has seen the forward pass, for Keras optimizers; not with `variables`.
        gradient_capture_context: accepted; not with `tape`.
        captured_gradient_outfeed: accepted.

    Raises:
        TypeError: `opt` is no optimizer, `loss` no tensor.
        ValueError: arguments that exclude each other.
    """

    def __init__(
        self,
        opt: Any,
        loss: Any,
        compute_gradients_args: tuple[Any, ...] | None = None,
        compute_gradients_kwargs: dict[str, Any] | None = None,
        apply_gradients_args: tuple[Any, ...] | None = None,
        apply_gradients_kwargs: dict[str, Any] | None = None,
        variables: Any = None,
        tape: Any = None,
        gradient_capture_context: Any = None,
        captured_gradient_outfeed: Any = None,
    ) -> None:
        del captured_gradient_outfeed
        if not hasattr(opt, "apply_gradients"):
            raise PipelineTypeError(f"opt is {opt!r}; it must be a Keras optimizer or a tf.compat.v1.train.Optimizer.")
        if not hasattr(loss, "dtype") or not hasattr(loss, "shape"):
            raise PipelineTypeError(f"loss is {loss!r}; it must be a tensor.")
        is_keras = hasattr(opt, "build")
        if (variables is not None or tape is not None) and not is_keras:
            raise ConfigError("variables and tape are for Keras optimizers.")
        if variables is not None and tape is not None:
            raise ConfigError("variables and tape exclude each other.")
        if (compute_gradients_args is not None or compute_gradients_kwargs is not None) and is_keras:
            raise ConfigError("compute_gradients_args and _kwargs are not for Keras optimizers.")
        if tape is not None and gradient_capture_context is not None:
            raise ConfigError("tape and gradient_capture_context exclude each other.")
        self.opt, self.loss = opt, loss
        self.compute_gradients_args, self.compute_gradients_kwargs = compute_gradients_args, compute_gradients_kwargs
        self.apply_gradients_args, self.apply_gradients_kwargs = apply_gradients_args, apply_gradients_kwargs
        self.variables, self.tape = variables, tape
