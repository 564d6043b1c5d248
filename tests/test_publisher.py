"""Publisher over real stores, read back by a follower and by TensorFlow."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from inferencer.replica import Replica
from paramsync.errors import (
    GraphError,
    NotFiniteError,
    PublishError,
    RequestError,
    SettingsError,
    StoreLockedError,
)
from paramsync.graphs.capture import capture
from paramsync.store import Store
from paramsync.version import Version
from paramsync.writer import StoreWriter
from trainer.publisher import Publisher
from trainer.schedule import PublishSchedule

TIMEOUT = 60
EVERY_STEP = PublishSchedule(every_steps=1)
ON_REQUEST = PublishSchedule(at_start=False, at_end=False)


class Counters(tf.Module):
    """Variables that all equal the number of steps taken."""

    def __init__(self) -> None:
        super().__init__()
        self.many = [tf.Variable(tf.zeros([size, 257])) for size in (1, 2, 64, 512)]
        self.step = tf.Variable(0, dtype=tf.int64)
        self.more: list[tf.Variable] = []

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x + tf.add_n([tf.reduce_sum(one) for one in self.many]) + tf.cast(self.step, tf.float32)

    @tf.function
    def train(self) -> None:
        for one in self.many:
            one.assign_add(tf.ones_like(one))
        self.step.assign_add(1)


def network() -> keras.Model:
    return keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3), keras.layers.BatchNormalization()])


def test_every_published_version_has_the_values_of_exactly_one_step(tmp_path: Path) -> None:
    model = Counters()
    seen: list[tuple[int, set[float]]] = []

    def look(version: Version) -> None:
        reader = tf.train.load_checkpoint(str(tmp_path / version.prefix))
        names = [name for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
        assert len(names) == 5
        seen.append((version.step, {float(value) for name in names for value in np.unique(reader.get_tensor(name))}))

    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        publisher.subscribe(look)
        publisher.publish_if_due(0)
        for step in range(1, 601):
            model.train()
            publisher.publish_if_due(step)
        publisher.finish(600)
        status = publisher.status()
    assert status.last_error is None
    assert len(seen) == status.publishes > 5
    assert status.publishes + status.skipped == 601
    assert seen == [(step, {float(step)}) for step, _ in seen]
    assert [step for step, _ in seen] == sorted({step for step, _ in seen})
    assert seen[-1][0] == 600


def test_tensorflow_reads_a_published_keras_model(tmp_path: Path) -> None:
    model, copy = network(), network()
    for index, weight in enumerate(model.weights):
        weight.assign(np.full(weight.shape, index + 0.5))
    with Publisher(tmp_path, model, schedule=EVERY_STEP) as publisher:
        publisher.publish(7, wait=True)
    prefix = tf.train.latest_checkpoint(tmp_path)
    assert prefix == str(tmp_path / "ckpt-7")
    tf.train.Checkpoint(copy).read(prefix).assert_existing_objects_matched().expect_partial()
    for mine, theirs in zip(model.weights, copy.weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_what_is_not_trained_is_not_written_again_until_it_is_trained(tmp_path: Path) -> None:
    model = Counters()
    *trained, frozen = model.many
    with Publisher(tmp_path, model, schedule=EVERY_STEP, keep=2) as publisher:
        for step in range(12):
            for one in trained if step != 6 else model.many:
                one.assign_add(tf.ones_like(one))
            version = publisher.publish(step, wait=True)
            share = version.bytes_written / version.bytes
            assert share > 0.99 if step in (0, 6) else share < 0.15
            reader = tf.train.load_checkpoint(str(tmp_path / version.prefix))
            for at, one in enumerate(model.many):
                found = reader.get_tensor(f"many/{at}/.ATTRIBUTES/VARIABLE_VALUE")
                assert np.array_equal(found, one.numpy()), (step, at)
    assert (frozen.numpy() == 1).all()


def test_the_first_call_publishes_and_says_what(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10)) as publisher:
        version = publisher.publish_if_due(3)
        assert version is not None
        assert (version.number, version.step, version.committed_at) == (3, 3, None)
        assert version.step_done_at <= version.snapshot_at
        assert publisher.publish_if_due(12) is None
        assert publisher.publish_if_due(13) is not None
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert (latest.number, latest.graph) == (13, version.graph)


def test_without_a_publication_at_the_start_counting_begins_there(tmp_path: Path) -> None:
    schedule = PublishSchedule(every_steps=10, at_start=False)
    with Publisher(tmp_path, Counters(), schedule=schedule) as publisher:
        assert publisher.publish_if_due(5) is None
        assert publisher.publish_if_due(14) is None
        assert publisher.publish_if_due(15) is not None


def test_metrics_travel_in_the_version(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP) as publisher:
        published = publisher.publish(1, wait=True, metrics={"loss": tf.constant(0.25), "accuracy": 0.5})
    assert published.metrics == {"loss": 0.25, "accuracy": 0.5}
    assert Store(tmp_path).latest() == published


def test_versions_keep_rising_where_a_restart_falls_back_in_steps(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP) as publisher:
        publisher.publish(100, wait=True)
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP) as publisher:
        again = publisher.publish(40, wait=True)
    assert (again.number, again.step) == (101, 40)


def test_a_request_from_another_thread_is_answered_with_the_next_step(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=ON_REQUEST) as publisher:
        assert publisher.publish_if_due(1) is None
        answers: list[Version] = []
        asked = threading.Event()

        def ask() -> None:
            future = publisher.request()
            asked.set()
            answers.append(future.result(TIMEOUT))

        operator = threading.Thread(target=ask)
        operator.start()
        assert asked.wait(TIMEOUT)
        assert publisher.publish_if_due(2) is not None
        operator.join(TIMEOUT)
        assert publisher.publish_if_due(3) is None
    assert [version.step for version in answers] == [2]
    assert Store(tmp_path).latest() == answers[0]


def test_finish_publishes_the_last_step_once(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10)) as publisher:
        publisher.publish_if_due(0)
        last = publisher.finish(5)
        assert last is not None
        assert last.step == 5
        assert publisher.finish(5) == last
        assert publisher.status().publishes == 2


def test_leaving_the_block_publishes_the_last_step(tmp_path: Path) -> None:
    model = Counters()
    with Publisher(tmp_path, model, schedule=PublishSchedule(every_seconds=3600)) as publisher:
        for step in range(1, 6):
            model.train()
            publisher.publish_if_due(step, {"loss": step / 2})
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert (latest.step, latest.metrics) == (5, {"loss": 2.5})
    assert tf.train.load_checkpoint(str(tmp_path)).get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == 5
    assert publications(publisher) == 2


def publications(publisher: Publisher) -> int:
    """All that were begun: one may be overtaken by the next."""
    return publisher.status().publishes + publisher.status().skipped


def test_leaving_the_block_publishes_nothing_twice(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP) as publisher:
        publisher.publish_if_due(1)
    assert publisher.status().publishes == 1
    with Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10)) as publisher:
        publisher.publish_if_due(3)
        publisher.publish(4)
    assert (publications(publisher), step_of_latest(tmp_path)) == (2, 4)
    with Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10, at_start=False)) as publisher:
        publisher.publish_if_due(5)
        publisher.finish(6)
    assert (publisher.status().publishes, step_of_latest(tmp_path)) == (1, 6)


def test_leaving_the_block_publishes_nothing_that_was_not_asked_for(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=ON_REQUEST) as publisher:
        publisher.publish_if_due(1)
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP):
        pass
    assert step_of_latest(tmp_path) is None


def test_an_error_in_the_block_publishes_nothing_more(tmp_path: Path) -> None:
    def train(publisher: Publisher) -> None:
        with publisher:
            publisher.publish_if_due(1)
            publisher.publish_if_due(2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10)))
    assert step_of_latest(tmp_path) == 1


def step_of_latest(store: Path) -> int | None:
    latest = Store(store).latest()
    return None if latest is None else latest.step


def test_a_metric_that_is_no_number_costs_no_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP) as publisher:
        for step in (1, 2):
            metrics = {"loss": step / 2, "confusion": tf.ones([2, 2]), "name": "x"}
            published = publisher.publish(step, wait=True, metrics=metrics)
    assert published.metrics == {"loss": 1.0}
    assert publisher.status().last_error is None
    warned = [record.getMessage() for record in caplog.records]
    assert [text.partition(" is left out")[0] for text in warned] == ["metric 'confusion'", "metric 'name'"]


def test_finish_answers_who_asked_and_then_refuses(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=ON_REQUEST) as publisher:
        future = publisher.request()
        publisher.finish(5)
        assert future.result(0).step == 5
        with pytest.raises(RequestError, match="training has stopped"):
            publisher.request()


def test_close_publishes_nothing_and_answers_who_asked(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, Counters(), schedule=EVERY_STEP)
    future = publisher.request()
    publisher.close()
    publisher.close()
    with pytest.raises(RequestError, match="training has stopped"):
        future.result(0)
    assert Store(tmp_path).latest() is None


def test_training_survives_a_store_that_goes_away_and_publishes_when_it_is_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Publisher(store, Counters(), schedule=EVERY_STEP) as publisher:
        publisher.publish(1, wait=True)
        shutil.rmtree(store)
        store.touch()
        publisher.publish_if_due(2)
        assert publisher.flush(TIMEOUT)
        error = publisher.status().last_error
        assert error is not None
        assert str(store) in error
        store.unlink()
        store.mkdir()
        publisher.publish(3, wait=True)
        assert publisher.status().last_error is None
    latest = Store(store).latest()
    assert latest is not None
    assert latest.step == 3


def test_an_error_is_raised_at_the_next_call_where_that_is_wanted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    schedule = PublishSchedule(every_steps=1, at_end=False)
    with Publisher(store, Counters(), schedule=schedule, on_error="raise") as publisher:
        shutil.rmtree(store)
        store.touch()
        publisher.publish_if_due(1)
        with pytest.raises(PublishError, match="an earlier publication failed"):
            publisher.flush(TIMEOUT)
        assert publisher.flush(TIMEOUT)


def test_leaving_the_block_raises_where_the_last_step_cannot_be_published(tmp_path: Path) -> None:
    store = tmp_path / "store"
    schedule = PublishSchedule(at_start=False)
    with contextlib.ExitStack() as block:
        publisher = block.enter_context(Publisher(store, Counters(), schedule=schedule, on_error="raise"))
        publisher.publish_if_due(1)
        shutil.rmtree(store)
        store.touch()
        with pytest.raises(PublishError, match="an earlier publication failed"):
            block.close()
    store.unlink()
    Publisher(store, Counters(), schedule=schedule).close()  # it was given up all the same


def test_who_waits_for_a_publication_is_told_that_it_failed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Publisher(store, Counters(), schedule=EVERY_STEP) as publisher:
        shutil.rmtree(store)
        store.touch()
        with pytest.raises(PublishError, match="store"):
            publisher.publish(1, wait=True)


def test_an_error_that_was_waited_for_is_not_raised_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Publisher(store, Counters(), schedule=EVERY_STEP, on_error="raise") as publisher:
        shutil.rmtree(store)
        store.touch()
        with pytest.raises(PublishError, match="store"):
            publisher.publish(1, wait=True)
        store.unlink()
        publisher.publish_if_due(2)


def test_a_second_publisher_is_refused(tmp_path: Path) -> None:
    with Publisher(tmp_path, Counters(), schedule=EVERY_STEP), pytest.raises(StoreLockedError):
        Publisher(tmp_path, Counters(), schedule=EVERY_STEP)


def test_an_unknown_way_with_errors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match='on_error: expected "log" or "raise"'):
        Publisher(tmp_path, Counters(), schedule=EVERY_STEP, on_error="ignore")  # type: ignore[arg-type]


def test_a_model_that_is_not_built_is_refused_and_leaves_the_store_free(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="build it"):
        Publisher(tmp_path, keras.Sequential([keras.layers.Dense(1)]), schedule=EVERY_STEP)
    Publisher(tmp_path, Counters(), schedule=EVERY_STEP).close()


class Precise(tf.Module):
    """One parameter of every kind of number, and strings."""

    FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")

    def __init__(self) -> None:
        super().__init__()
        self.numbers = {name: tf.Variable(tf.ones([5], name), name=name) for name in self.FLOATS}
        self.whole = tf.Variable([np.iinfo(np.int64).max, -1])
        self.words = tf.Variable(["nan", "inf"])

    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        parts = [tf.reduce_sum(tf.cast(tf.math.real(one), tf.float32)) for one in self.numbers.values()]
        lengths = tf.cast(tf.strings.length(self.words), tf.float32)
        return x + tf.add_n(parts) + tf.cast(self.whole[0], tf.float32) + lengths[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", Precise.FLOATS)
def test_a_parameter_that_is_not_finite_is_refused_and_the_version_before_stays(
    tmp_path: Path, name: str, bad: float
) -> None:
    model = Precise()
    with Publisher(tmp_path, model, schedule=PublishSchedule(at_end=False)) as publisher:
        good = publisher.publish(1, wait=True)
        values = np.ones(5, model.numbers[name].dtype.as_numpy_dtype)
        values[3] = bad
        model.numbers[name].assign(values)
        with pytest.raises(NotFiniteError, match=rf"in numbers/{name}/\.ATTRIBUTES/VARIABLE_VALUE: not pub") as told:
            publisher.publish(2, wait=True)
        assert told.value.names == (f"numbers/{name}/.ATTRIBUTES/VARIABLE_VALUE",)
        status = publisher.status()
        assert (status.refused, status.publishes, status.published, good.finite) == (1, 1, good, True)
        assert "allow_nan=True" in (status.last_error or "")
        assert Store(tmp_path).latest() == good
        assert {one.name for one in tmp_path.iterdir() if one.name.startswith("ckpt-2")} == set()
        model.numbers[name].assign(np.ones(5))
        assert publisher.publish(3, wait=True).number == 3
        assert publisher.status().last_error is None


def test_training_that_diverged_is_told_of_once_with_the_names_of_a_few(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Counters()
    model.more = [tf.Variable([np.nan]) for _ in range(5)]
    with Publisher(tmp_path, capture(model, signatures={"all": both(model)}), schedule=EVERY_STEP) as publisher:
        for step in range(3):
            for one in model.many:
                one.assign(one * np.nan)
            publisher.publish_if_due(step)
            publisher.flush(TIMEOUT)
        assert publisher.status().refused == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert "NaN or infinity in many/0/.ATTRIBUTES/VARIABLE_VALUE, many/1/" in said
    assert " and 4 more: not published" in said


def both(model: Counters) -> Any:
    @tf.function(input_signature=[tf.TensorSpec([], name="x")])
    def call(x: tf.Tensor) -> tf.Tensor:
        return model(x) + tf.add_n(model.more)

    return call


def test_not_finite_is_raised_at_the_next_call_where_that_is_wanted(tmp_path: Path) -> None:
    model = Counters()
    schedule = PublishSchedule(every_steps=1, at_end=False)
    with Publisher(tmp_path, model, schedule=schedule, on_error="raise") as publisher:
        model.many[1].assign(model.many[1] * np.inf)
        publisher.publish_if_due(1)
        with pytest.raises(PublishError, match="an earlier publication failed: NaN or infinity in many/1/"):
            publisher.flush(TIMEOUT)


def test_not_finite_is_published_where_that_is_allowed(tmp_path: Path) -> None:
    model = Counters()
    model.many[0].assign(model.many[0] * np.nan)
    with Publisher(tmp_path, model, schedule=EVERY_STEP, allow_nan=True) as publisher:
        published = publisher.publish(1, wait=True)
        assert (published.number, published.finite) == (1, False)
    assert publisher.status().refused == 0


def test_what_was_published_unseen_is_not_taken_over_by_who_looks(tmp_path: Path) -> None:
    frozen = np.full(1 << 19, np.nan, np.float32)
    with StoreWriter(tmp_path) as writer:
        for number, finite in ((1, False), (2, False), (3, True)):
            version = Version(number=number, step=0, prefix="", step_done_at=0.0, snapshot_at=0.0)
            tensors = {"frozen": frozen, "step": np.array(number)}
            if finite:
                with pytest.raises(NotFiniteError, match="in frozen: not published"):
                    writer.commit(version, tensors, unchanged=["frozen"], finite=True)
            else:
                writer.commit(version, tensors)
        assert number_of_latest(tmp_path) == 2


def number_of_latest(store: Path) -> int | None:
    latest = Store(store).latest()
    return None if latest is None else latest.number


def test_a_step_lower_than_the_one_before_gets_a_number_above_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Publisher(tmp_path, Counters(), schedule=PublishSchedule(every_steps=10)) as publisher:
        publisher.publish(100, wait=True)
        for step in (40, 30):
            publisher.publish(step, wait=True)
        assert publisher.publish_if_due(35) is None
        assert publisher.publish_if_due(20) is not None  # set back again
    found = [(version.number, version.step) for version in Store(tmp_path).versions()]
    assert found[:3] == [(100, 100), (101, 40), (102, 30)]
    assert found[-1] == (103, 20)
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ["step 40 is published after step 100: versions go on rising, and say the step as it is given"]


def test_several_functions_over_one_set_of_variables_are_published_as_one_graph(tmp_path: Path) -> None:
    model = Counters()
    doubled = tf.function(lambda x: 2.0 * model(x), input_signature=[tf.TensorSpec([], name="x")])
    captured = capture(model, signatures={"plain": model.__call__, "doubled": doubled})
    with Publisher(tmp_path, captured, schedule=EVERY_STEP) as publisher:
        model.train()
        version = publisher.publish(1, wait=True)
    replica = Replica("m", Store(tmp_path))
    replica.swap(replica.restore(version))
    plain, _ = replica.predict({"x": np.float32(1)}, signature="plain")
    twice, _ = replica.predict({"x": np.float32(1)}, signature="doubled")
    assert 2 * float(next(iter(plain.values()))) == float(next(iter(twice.values())))


def test_a_function_without_an_object_publishes_by_the_variables_names(tmp_path: Path) -> None:
    scale = tf.Variable(3.0, name="scale")
    function = tf.function(lambda x: x * scale, input_signature=[tf.TensorSpec([], name="x")])
    with Publisher(tmp_path, capture(function), schedule=EVERY_STEP) as publisher:
        publisher.publish(1, wait=True)
    assert list(tf.train.load_checkpoint(str(tmp_path)).get_variable_to_shape_map()) == ["scale"]


def test_a_capture_without_variables_is_refused(tmp_path: Path) -> None:
    tf.saved_model.save(Counters(), str(tmp_path / "saved"))
    with pytest.raises(SettingsError, match=r"no live variables.*Publisher\.of_graph"):
        Publisher(tmp_path / "store", capture(tmp_path / "saved"), schedule=EVERY_STEP)
    assert not (tmp_path / "store").exists()


def test_averages_are_published_in_place_of_variables(tmp_path: Path) -> None:
    model = Counters()
    average = tf.train.ExponentialMovingAverage(0.5)
    average.apply(model.many)
    schedule = PublishSchedule(every_steps=1)
    with Publisher(tmp_path, model, schedule=schedule, averages=average.average) as publisher:
        model.train()
        average.apply(model.many)
        publisher.publish(1, wait=True)
    reader = tf.train.load_checkpoint(str(tmp_path))
    for at, one in enumerate(model.many):
        assert (reader.get_tensor(f"many/{at}/.ATTRIBUTES/VARIABLE_VALUE") == average.average(one).numpy()).all()
        assert (average.average(one).numpy() == 0.5).all()
    assert reader.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == 1


def test_an_average_of_another_shape_is_refused(tmp_path: Path) -> None:
    wrong = tf.Variable([1.0])
    message = r"the average of Variable:0: expected float32 \[1, 257\], found float32 \[1\]"
    with pytest.raises(SettingsError, match=message):
        Publisher(tmp_path, Counters(), schedule=EVERY_STEP, averages=lambda _: wrong)
    assert list(tmp_path.iterdir()) == []
