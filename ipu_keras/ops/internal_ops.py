"""Operations on how a tensor lies on the tiles, which change no value; and those that the emulator has not."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from ipu_keras.ops._refusals import NotOnIPUError

__all__ = ["fifo", "get_current_iteration_counter", "print_tensor", "remap", "remap_deduce"]


def remap(x: Any, name: str | None = None) -> Any:
    """Gives a tensor back; a compiler may lay the copy out anew, this one lays out everything by itself.

    Args:
        x: a tensor.
        name: of the operation.

    Example:
        >>> strategy.run(tf.function(lambda x: remap(x) @ x), (np.eye(2, dtype=np.float32),))
    """
    return tf.identity(x, name=name)


def remap_deduce(x: Any, name: str | None = None) -> Any:
    """Gives a tensor back, as `remap`.

    Args:
        x: a tensor.
        name: of the operation.

    Example:
        >>> strategy.run(tf.function(lambda x: remap_deduce(x) @ x), (np.eye(2, dtype=np.float32),))
    """
    return tf.identity(x, name=name)


def print_tensor(input: Any, name: str = "") -> NoReturn:
    """Not there.

    Args:
        input: not used.
        name: not used.

    Raises:
        NotImplementedError: always.
    """
    raise NotOnIPUError(
        f"internal_ops.print_tensor{f' ({name})' if name else ''} is not there: a program of the emulated device does "
        "not print. Put the tensor into an IPUOutfeedQueue, and print what you dequeue."
    )


def fifo(x: Any, depth: int, offload: bool = False, name: str | None = None) -> NoReturn:
    """Not there.

    Args:
        x: not used.
        depth: not used.
        offload: not used.
        name: not used.

    Raises:
        NotImplementedError: always.
    """
    raise NotOnIPUError(
        "internal_ops.fifo is not there: to delay a value by some turns, hand the last ones on in the state of "
        "loops.repeat. Pipelines have queues of their own between their stages."
    )


def get_current_iteration_counter(name: str | None = None, **kwargs: Any) -> NoReturn:
    """Not there.

    Args:
        name: not used.
        **kwargs: not used.

    Raises:
        NotImplementedError: always.
    """
    raise NotOnIPUError(
        "internal_ops.get_current_iteration_counter is not there: count in the state of loops.repeat, or in a variable."
    )
