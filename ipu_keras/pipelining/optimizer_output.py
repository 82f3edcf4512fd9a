"""What an optimizer function of a pipeline gives back."""

from __future__ import annotations

from typing import Any

from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError

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
        gradient_capture_context: whose gradients an optimizer that counts captured ones gets; not with `tape`, which
            may be a GradientCaptureTape.
        captured_gradient_outfeed: an IPUOutfeedQueue that takes the captured gradients, by tag.

    Raises:
        TypeError: `opt` is no optimizer, `loss` no tensor, `captured_gradient_outfeed` no queue.
        ValueError: arguments that exclude each other.

    Example:
        >>> def optimize(loss):
        ...     return OptimizerFunctionOutput(keras.optimizers.SGD(0.1), loss)
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
        import tensorflow as tf

        if not hasattr(opt, "apply_gradients"):
            raise ArgumentTypeError(f"opt is {opt!r}; it must be a Keras optimizer or a tf.compat.v1.train.Optimizer.")
        if not tf.is_tensor(loss):
            raise ArgumentTypeError(f"loss is {loss!r}; it must be a tensor.")
        is_keras = not isinstance(opt, tf.compat.v1.train.Optimizer)
        if (variables is not None or tape is not None) and not is_keras:
            raise ArgumentError("variables and tape are for Keras optimizers; use compute_gradients_kwargs.")
        if variables is not None and tape is not None:
            raise ArgumentError("variables and tape exclude each other.")
        if (compute_gradients_args or compute_gradients_kwargs) and is_keras:
            raise ArgumentError(
                "compute_gradients_args and _kwargs are not for Keras optimizers; use variables or tape."
            )
        if tape is not None and gradient_capture_context is not None:
            raise ArgumentError("tape and gradient_capture_context exclude each other.")
        if captured_gradient_outfeed is not None:
            if not hasattr(captured_gradient_outfeed, "enqueue"):
                raise ArgumentTypeError(
                    f"captured_gradient_outfeed is {captured_gradient_outfeed!r}; it must be an IPUOutfeedQueue."
                )
            if gradient_capture_context is None and not hasattr(tape, "captured_gradients"):
                raise ArgumentError(
                    "captured_gradient_outfeed needs a gradient_capture_context, or a GradientCaptureTape as tape."
                )
        self.opt, self.loss = opt, loss
        self.compute_gradients_args, self.compute_gradients_kwargs = compute_gradients_args, compute_gradients_kwargs
        self.apply_gradients_args, self.apply_gradients_kwargs = apply_gradients_args, apply_gradients_kwargs
        self.variables, self.tape = variables, tape
        self.gradient_capture_context, self.captured_gradient_outfeed = (
            gradient_capture_context,
            captured_gradient_outfeed,
        )

    @property
    def captured(self) -> dict[str, Any]:
        """Gradients by tag that the context or the tape has captured; there when gradients have been computed."""
        context = self.gradient_capture_context if self.gradient_capture_context is not None else self.tape
        return dict(getattr(context, "captured_gradients", None) or {})
