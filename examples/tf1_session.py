"""Train as in TensorFlow 1, and publish by a hook: `python examples/tf1_session.py STORE CHECKPOINTS`."""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

from paramsync.session import PublishHook

tf.disable_eager_execution()

x = tf.placeholder(tf.float32, [None, 8], name="x")
with tf.variable_scope("net", use_resource=True):
    hidden = tf.nn.relu(tf.matmul(x, tf.get_variable("w1", [8, 32])) + tf.get_variable("b1", [32]))
    y = tf.add(tf.matmul(hidden, tf.get_variable("w2", [32, 1])), tf.get_variable("b2", [1]), name="y")
loss = tf.reduce_mean(tf.square(y - tf.reduce_sum(x, axis=1, keepdims=True)))
train = tf.train.AdamOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())

store, checkpoints = sys.argv[1:]
publish = PublishHook(store, inputs={"x": x}, outputs={"sum": y}, every_steps=100, metrics={"loss": loss})
stop = tf.train.StopAtStepHook(num_steps=500)
random = np.random.default_rng(0)
with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoints, chief_only_hooks=[publish], hooks=[stop]) as session:
    while not session.should_stop():
        session.run(train, {x: random.uniform(-1, 1, (64, 8))})
