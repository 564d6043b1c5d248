"""Fit a Keras model while an inferencer of STORE serves it: `python examples/keras_fit.py STORE`."""

import sys

import keras
import numpy as np

from paramsync.keras import PublishCallback

random = np.random.default_rng(0)
x = random.uniform(-1, 1, (4096, 8)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.float32)

model = keras.Sequential(
    [
        keras.Input((8,), name="x"),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid", name="probability"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=5, callbacks=[PublishCallback(sys.argv[1], every_steps=100)])
