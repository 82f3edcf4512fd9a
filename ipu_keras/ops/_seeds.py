"""The device's seed: where operations and layers without a seed of their own get their random numbers from."""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ipu_keras.keras.adapter import current_tracer

__all__ = ["Seeding", "draw", "generator", "next_seed", "reset", "rounding", "rounding_seed"]

_variables: dict[str, Any] = {}
_generators: weakref.WeakSet[Any] = weakref.WeakSet()
_numbers: list[Iterator[int]] = [itertools.count(1)]


def _variable(name: str, start: list[int]) -> Any:
    if name not in _variables:
        with tf.init_scope():  # the first to ask may be a function that is being traced
            _variables[name] = tf.Variable(tf.constant(start, tf.int32), trainable=False, name=name)
    return _variables[name]


def _key() -> Any:
    """What tells one seeding of the device from another; a step only reads it."""
    return _variable("ipu_seed", [random.getrandbits(31), 0])


def _counter() -> Any:
    """How often operations without a state of their own have drawn."""
    return _variable("ipu_seed_counter", [0, 0])


def next_seed() -> Any:
    """A seed that no earlier call had, as a tensor of two int32; inside a step the next of each execution.

    Example:
        >>> tf.random.stateless_uniform((2,), seed=next_seed())
    """
    count = tf.identity(_counter().assign_add([0, 1]))
    tracer = current_tracer()
    if tracer is not None and tracer.gradients is not None:
        count = tf.bitcast(tracer.gradients.seed(tf.bitcast(count, tf.uint32)), tf.int32)
    return tf.bitwise.bitwise_xor(count, _key())


def generator() -> Any:
    """A layer's own source of seeds, of Keras's kind, so that layers in different stages share no state.

    Example:
        >>> self.seed_generator = generator()
    """
    made = keras.random.SeedGenerator(next(_numbers[0]))
    _generators.add(made)
    return made


def draw(source: Any) -> Any:
    """The next seed of a layer's source, as a tensor of two int32.

    Args:
        source: of `generator`.
    """
    return tf.bitwise.bitwise_xor(tf.cast(source.next(), tf.int32), _key())


@dataclass(frozen=True)
class Seeding:
    """Where the random bits of stochastic rounding start.

    Attributes:
        seed: of the device.
        alike: whether all replicas draw the same bits.
    """

    seed: int
    alike: bool = False


_seeding: list[Seeding] = []
_seeded = [0]


def rounding() -> Seeding:
    """The seeding that holds now: the same object until the device is seeded again."""
    if not _seeding:
        _seeding.append(Seeding(int(_key().numpy()[0])))
    return _seeding[0]


def rounding_seed(seeding: Seeding) -> int:
    """A seed for one more program under a seeding: programs do not share random bits.

    Args:
        seeding: of `rounding`.
    """
    _seeded[0] += 1
    return (seeding.seed & 0xFFFFFFFF) << 24 | (_seeded[0] & 0xFFFFFF)


def reset(seed: int, alike: bool = False) -> None:
    """Starts the random numbers of the device again, those of layers too; layers that are made next count from one.

    Args:
        seed: the same seed gives the same numbers; any integer, of which 32 bits count.
        alike: whether all replicas round by the same random bits.

    Example:
        >>> reset(7)
    """
    low = int(seed) & 0xFFFFFFFF
    _key().assign([low - (1 << 32) if low >= 1 << 31 else low, 0])
    _counter().assign([0, 0])
    _seeding[:], _seeded[0] = [Seeding(low, alike)], 0
    _numbers[0] = itertools.count(1)
    for made in list(_generators):
        made.state.assign([int(made.state.numpy()[0]), 0])
