"""How fast this host produces the elements of a dataset: what a program that waits for its input would wait for."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import tensorflow as tf

from ipu_keras.frontend import tfapi
from ipu_keras.ipu_infeed_queue import IPUInfeedQueue
from ipu_keras.ops._refusals import ArgumentError, ArgumentTypeError

__all__ = ["dataset_benchmark", "infeed_benchmark"]


def dataset_benchmark(
    dataset: tf.data.Dataset,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_debug_options: bool = True,
    do_memcpy: bool = True,
) -> tf.Tensor:
    """Takes elements of a dataset as fast as this host makes them, and says how fast that was.

    The dataset is iterated once; an epoch is the next `elements_per_epochs` elements. No device takes part.

    Args:
        dataset: whose elements have full shapes, as for an `IPUInfeedQueue`; with enough elements for all epochs.
        number_of_epochs: at least 1.
        elements_per_epochs: at least 1.
        print_stats: whether each epoch's figures are printed.
        apply_debug_options: accepted; the debug options of tf.data apply anyway.
        do_memcpy: whether each element is copied into a buffer, as it is on its way to a device.

    Returns:
        A tensor of shape [1] and dtype string: JSON with a list "epochs" of "elements_processed",
        "total_bytes_processed", "time_elapsed" (seconds), "elements_per_second" and "bandwidth" (GB/s). Source: api.md
        section 9.

    Raises:
        TypeError: `dataset` is none.
        ValueError: a number below 1, or elements that an `IPUInfeedQueue` cannot have.
        tf.errors.OutOfRangeError: the dataset has too few elements.

    Example:
        >>> text = dataset_benchmark(tf.data.Dataset.range(6), 2, 3).numpy()[0].decode()
        >>> [epoch["total_bytes_processed"] for epoch in json.loads(text)["epochs"]]
        [24.0, 24.0]
    """
    del apply_debug_options
    if not isinstance(dataset, tf.data.Dataset):
        raise ArgumentTypeError(f"dataset is a {type(dataset).__name__}; it must be a tf.data.Dataset.")
    return infeed_benchmark(
        IPUInfeedQueue(dataset), number_of_epochs, elements_per_epochs, print_stats=print_stats, do_memcpy=do_memcpy
    )


def infeed_benchmark(
    infeed_queue: IPUInfeedQueue,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> tf.Tensor:
    """As `dataset_benchmark`, of the dataset of a queue; the queue's own place in it stays.

    Args:
        infeed_queue: whose dataset is iterated.
        number_of_epochs: at least 1.
        elements_per_epochs: at least 1.
        print_stats: whether each epoch's figures are printed.
        do_memcpy: whether each element is copied into a buffer.

    Returns:
        See `dataset_benchmark`.

    Raises:
        TypeError: `infeed_queue` is none.
        ValueError: a number below 1.
        tf.errors.OutOfRangeError: the dataset has too few elements.

    Example:
        >>> queue = IPUInfeedQueue(tf.data.Dataset.range(6))
        >>> infeed_benchmark(queue, 2, 3, print_stats=False).shape
        TensorShape([1])
    """
    if not isinstance(infeed_queue, IPUInfeedQueue):
        raise ArgumentTypeError(f"infeed_queue is a {type(infeed_queue).__name__}; it must be an IPUInfeedQueue.")
    # Numbers of elements are often quotients, and so floats.
    epochs, count = int(number_of_epochs), int(elements_per_epochs)
    if epochs < 1 or count < 1:
        raise ArgumentError(
            f"number_of_epochs is {number_of_epochs!r} and elements_per_epochs {elements_per_epochs!r}; both must be "
            "at least 1."
        )
    if not tf.executing_eagerly():
        raise ArgumentError("A benchmark measures what the host does: call it outside of tf.function.")
    dataset = infeed_queue.dataset
    specs = tf.nest.flatten(dataset.element_spec)
    buffers = [np.empty(spec.shape.as_list(), spec.dtype.as_numpy_dtype) for spec in specs]
    iterator = iter(dataset)
    found = []
    for epoch in range(epochs):
        started = time.perf_counter()
        for k in range(count):
            element = next(iterator, None)
            if element is None:
                raise tf.errors.OutOfRangeError(
                    None,
                    None,
                    f"the dataset has {epoch * count + k} elements, and {epochs} epochs take {epochs * count}: "
                    "repeat() it, or take fewer",
                )
            if do_memcpy:
                for buffer, leaf in zip(buffers, tf.nest.flatten(element), strict=True):
                    np.copyto(buffer, tfapi.view(leaf))
        found.append(_figures(count, sum(buffer.nbytes for buffer in buffers), time.perf_counter() - started))
        if print_stats:
            rate, bandwidth = found[-1]["elements_per_second"], found[-1]["bandwidth"]
            print(f"epoch {epoch} of the dataset: {rate:.1f} elements/s, {bandwidth:.3f} GB/s")
    return tf.constant([json.dumps({"epochs": found})])


def _figures(count: int, nbytes: int, seconds: float) -> dict[str, Any]:
    seconds = max(seconds, 1e-9)
    return {
        "elements_processed": float(count),
        "total_bytes_processed": float(count * nbytes),
        "time_elapsed": seconds,
        "elements_per_second": count / seconds,
        "bandwidth": count * nbytes / seconds / 1e9,
    }
