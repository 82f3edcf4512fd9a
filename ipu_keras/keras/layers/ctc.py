"""The CTC loss as a layer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ipu_keras.ops._ctc import ctc_loss_v2, ctc_loss_with_log_probs

__all__ = ["CTCLoss"]


@keras.saving.register_keras_serializable("ipu_keras")
class CTCLoss(keras.layers.Layer):
    """The mean CTC loss of a batch.

    Args:
        blank_index: the class that stands for no label.
        from_logits: whether the data are logits; by default they are logs of probabilities.
        **kwargs: arguments of ``keras.layers.Layer``.

    Example:
        >>> CTCLoss(from_logits=True)(labels, logits, label_length, logit_length)
    """

    def __init__(self, blank_index: int = 0, from_logits: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.blank_index = blank_index
        self.from_logits = from_logits
        self.built = True

    def call(self, labels: Any, data: Any, label_length: Any, data_length: Any) -> Any:
        """The loss.

        Args:
            labels: int tensor of shape [batch, max_label_length].
            data: float tensor of shape [times, batch, classes].
            label_length: int tensor of shape [batch].
            data_length: int tensor of shape [batch].

        Returns:
            tensor of shape [1].
        """
        loss = ctc_loss_v2 if self.from_logits else ctc_loss_with_log_probs
        return tf.reshape(tf.reduce_mean(loss(labels, data, label_length, data_length, self.blank_index)), [1])

    def compute_output_shape(self, *args: Any, **kwargs: Any) -> Any:
        """[1].

        Args:
            *args: shapes of the inputs.
            **kwargs: shapes of the inputs.
        """
        del args, kwargs
        return (1,)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {**super().get_config(), "blank_index": self.blank_index, "from_logits": self.from_logits}
