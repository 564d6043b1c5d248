"""Training that publishes to a bucket, for tests of followers of the bucket."""

from __future__ import annotations

import tensorflow as tf

from paramsync import Publisher
from paramsync.remote.child import MirrorChild
from tests.support.published import Witness


class Training:
    """A publisher to a bucket; every parameter of a version is its step."""

    def __init__(self, address: str, keep: int = 5) -> None:
        self._model = Witness()
        self.publisher = Publisher(address, self._model, keep=keep)
        assert self.publisher.mirror is not None
        self.mirror: MirrorChild = self.publisher.mirror

    def publish(self, step: int) -> None:
        for part in self._model.parts:
            part.assign(tf.fill(part.shape, float(step)))
        self.publisher.publish(step, wait=True)

    def is_copied(self, number: int) -> bool:
        return self.mirror.newest == number
