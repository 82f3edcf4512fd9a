"""Updates in double precision, and the optimizers' updates on the emulated tiles."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from ipu_keras import IPUStrategy

RNG = np.random.default_rng(3)
START = RNG.normal(size=(4, 3)).astype(np.float32)
GRADIENTS = (RNG.normal(size=(6, 4, 3)) * np.float32([3, 1, 0.1])).astype(np.float32)


def on_tiles(optimizer, start=START, grads=GRADIENTS, name="kernel"):
    """Weights after each step; each step is a program's execution."""
    weight = keras.Variable(start, dtype=start.dtype.name, name=name)

    @tf.function
    def step(gradient):
        optimizer.apply([gradient], [weight])
        return tf.identity(weight.value)

    optimizer.build([weight])
    strategy = IPUStrategy()
    return np.array([np.asarray(strategy.run(step, (g,))) for g in grads])


def sgd(rate=0.1, momentum=0.0, nesterov=False, decay=0.0, start=START, grads=GRADIENTS):
    w, v, seen = start.astype(np.float64), 0.0, []
    for i, g in enumerate(grads.astype(np.float64)):
        lr = rate / (1 + decay * i)
        v = momentum * v - lr * g
        w = w + (momentum * v - lr * g if nesterov else v)
        seen.append(w)
    return np.array(seen)


def moments(grads, beta_1, beta_2, debiasing):
    m = v = 0.0
    for t, g in enumerate(grads.astype(np.float64), start=1):
        m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g * g
        yield (m / (1 - beta_1**t), v / (1 - beta_2**t)) if debiasing else (m, v)


def adam(rate=0.1, b1=0.9, b2=0.99, eps=1e-2, amsgrad=False, debiasing=True, start=START, grads=GRADIENTS):
    w, largest, seen = start.astype(np.float64), 0.0, []
    for m, v in moments(grads, b1, b2, debiasing):
        largest = np.maximum(largest, v)
        w = w - rate * m / (np.sqrt(largest if amsgrad else v) + eps)
        seen.append(w)
    return np.array(seen)


def lamb(rate=0.1, decay=0.0, decays=True, adapts=True, clip=None, eps=1e-6, start=START, grads=GRADIENTS):
    w, seen = start.astype(np.float64), []
    for m, v in moments(grads, 0.9, 0.999, True):
        u = m / (np.sqrt(v) + eps) + (decay * w if decays else 0)
        norm = np.linalg.norm(w) if clip is None else min(np.linalg.norm(w), clip)
        step = np.linalg.norm(u)
        ratio = norm / step if adapts and norm > 0 and step > 0 else 1
        w = w - rate * ratio * u
        seen.append(w)
    return np.array(seen)
