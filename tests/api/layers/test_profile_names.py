"""Gradients that are written by hand count to their layers, as those of TensorFlow do."""

import keras
import tensorflow as tf

from ipu_keras import IPUStrategy, analyse
from ipu_keras.keras import layers


def test_the_backward_pass_of_lstm_and_embedding_is_theirs():
    with IPUStrategy(execute=False).scope():
        parts = [layers.Embedding(16, 8, name="table"), layers.LSTM(8, name="memory"), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((6,), dtype="int32"), *parts], name="model")
        model.compile("sgd", "mse")
    batch = (tf.TensorSpec((4, 6), tf.int32), tf.TensorSpec((4, 2)))
    profile = analyse(model, "train", batch).profile().to_dict()
    found = {row["layer"]: row for row in profile["layers"]}
    assert found["model/memory"]["phases"]["backward"] > found["model/memory"]["phases"]["forward"] / 4
    assert found["model/table"]["phases"]["backward"] > 0
    # Seven products of one size: inputs and state forward, the state's once more, two gradients of each.
    assert found["model/memory"]["flops"] == 7 * 2 * (6 * 4) * 8 * 32
    assert found.get("", {"flops": 0})["flops"] == 0
