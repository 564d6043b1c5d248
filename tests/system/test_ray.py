"""Over a real Ray of two nodes and a real S3 server: deployments and actors follow what training publishes.

Ray is imported within the tests, since `make slow` installs it, but `make test` does not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramsync.errors import InputError, SettingsError
from paramsync.remote.child import cache_of
from paramsync.remote.copy_note import CopyNote
from paramsync.store.store import Store, take_lock
from tests.support.buckets import SeaweedFs
from tests.support.inferencers import LONG
from tests.support.programs import eventually
from tests.support.training_to_bucket import Training

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray leaves files open

X = {"x": np.ones([1, 2], np.float32)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray of two nodes, whose processes find the S3 server by their environment. Returns a folder of the server."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, SeaweedFs(tmp_path_factory.mktemp("seaweedfs")) as seaweedfs:
        for name, value in (*seaweedfs.environment.items(), ("RAY_USAGE_STATS_ENABLED", "0")):
            patch.setenv(name, value)
        nodes = {"num_cpus": 4, "object_store_memory": 100_000_000}
        started = Cluster(initialize_head=True, head_node_args=nodes)
        started.add_node(**nodes)
        ray.init(address=started.address, log_to_driver=False)
        folder = f"s3://{seaweedfs.bucket}/{uuid.uuid4().hex}"  # a copy of an earlier test would be of another run
        yield folder
        serve.shutdown()
        ray.shutdown()
        started.shutdown()
        for name in ("digits", "policy"):
            shutil.rmtree(cache_of(f"{folder}/{name} for ray"))


@pytest.fixture(scope="module")
def address(cluster: str) -> str:
    return f"{cluster}/digits"


@pytest.fixture(scope="module")
def training(address: str) -> Iterator[Training]:
    training = Training(address)
    training.publish(1)
    yield training
    training.publisher.close()


@pytest.fixture(scope="module")
def handle(address: str, training: Training) -> Any:
    from ray import serve

    from paramsync.ray import deployment

    return serve.run(deployment(address).options(num_replicas=2).bind())


def answered(handle: Any) -> int:
    """The version of an answer, which that version computed alone."""
    answer = handle.remote(X).result()
    assert {*answer["outputs"]["seen"].tolist()} == {float(answer["step"])}
    version: int = answer["version"]
    return version


def all_answer(handle: Any, number: int) -> None:
    eventually(lambda: {answered(handle) for _ in range(8)} == {number}, lambda: f"version {number} from all")


def test_replicas_follow_without_being_deployed_again(training: Training, handle: Any) -> None:
    from ray import serve

    started = serve.status().applications["default"].deployments["paramsync"].replica_states
    for step in (2, 3, 4):
        training.publish(step)
        all_answer(handle, step)
    assert serve.status().applications["default"].deployments["paramsync"].replica_states == started == {"RUNNING": 2}


def test_a_copy_whose_mirror_is_killed_goes_on(training: Training, handle: Any, address: str) -> None:
    found = subprocess.run(["pgrep", "-f", f"cli mirror {address} "], capture_output=True, text=True, check=True)
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    training.publish(5)
    all_answer(handle, 5)


def test_ray_restarts_the_actor_of_a_copy(training: Training, handle: Any, address: str) -> None:
    import ray

    actor = ray.get_actor(f"copy of {address} on {ray.get_runtime_context().get_node_id()}", "paramsync")
    ray.kill(actor, no_restart=False)

    def is_back() -> bool:
        with suppress(ray.exceptions.ActorUnavailableError):
            return bool(ray.get(actor.path.remote()))
        return False

    eventually(is_back, lambda: "the actor")
    training.publish(6)
    all_answer(handle, 6)


def test_answers_by_http_name_their_version(training: Training, handle: Any) -> None:
    def post(body: bytes) -> Any:
        with urllib.request.urlopen(
            urllib.request.Request("http://127.0.0.1:8000/", data=body), timeout=LONG
        ) as answer:
            return json.loads(answer.read())

    answer = post(b'{"inputs": {"x": [[1, 1]]}, "outputs": ["seen"]}')
    assert {*answer["outputs"]["seen"]} == {float(answer["step"])}
    for body, why in (
        (b'{"inputs": {"y": 1}}', "inputs: expected 'x', found 'y'"),
        (b"[]", 'body: expected a JSON object with "inputs", found'),
        (b"[" * 100_000, 'body: expected a JSON object with "inputs", found'),
        (b'{"inputs": [1]}', "inputs: expected values by name, found [1]"),
        (
            b'{"inputs": {}, "output": []}',
            "expected keys of inputs, version, label, signature, outputs, found 'output'",
        ),
        (b'{"inputs": {}, "version": "1"}', "version: expected a whole number, found '1'"),
        (b'{"inputs": {}, "outputs": [{}]}', "outputs: expected a list of names, found [{}]"),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(body)
        assert refused.value.code == 400
        assert why in json.loads(refused.value.read())["error"]


def test_actors_of_a_node_share_the_memory_of_the_newest_parameters(cluster: str) -> None:
    import ray

    from paramsync.ray import FollowingActor, LearnerPublisher

    class Player(FollowingActor):
        def __init__(self, source: str) -> None:
            self.follow(source)

        def sample(self) -> tuple[float, int, bool, set[str]]:
            parameters = self.parameters(LONG)
            maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
            files = {f"{line[3]} {line[4]}" for line in maps if f"{parameters.version.prefix}.data" in line[-1]}
            return float(parameters["w"].mean()), parameters.version.number, parameters["w"].flags.writeable, files

    source = f"{cluster}/policy"
    players = [ray.remote(Player).options(scheduling_strategy="SPREAD").remote(source) for _ in range(2)]
    with LearnerPublisher(source) as learner:
        for step in (1, 2, 3):
            learner.publish(step, values={"w": np.full((100, 100), step, np.float32)}, wait=True)

            def newest(step: int = step) -> bool:
                samples = ray.get([player.sample.remote() for player in players])
                assert [(value, writeable) for value, _, writeable, _ in samples] == [
                    (n, False) for _, n, _, _ in samples
                ]
                return [number for _, number, _, _ in samples] == [step] * 2 and samples[0][3] == samples[1][3] != set()

            eventually(newest, lambda step=step: f"version {step} in both")  # type: ignore[misc]
        assert [learner.accepts(number, most_versions=1) for number in (1, 2, 3)] == [False, True, True]


def test_a_call_by_handle_without_names_says_so(handle: Any) -> None:
    with pytest.raises(InputError, match="inputs: expected values by name, found list"):
        handle.remote([1]).result()


@pytest.mark.parametrize(
    ("address", "message"), [("ftp://a/b", "expected an address such as"), ("s3://a/b,s3://a/b/", "different")]
)
def test_a_wrong_address_is_refused_at_once(address: str, message: str) -> None:
    from paramsync.ray import FollowingActor, deployment

    with pytest.raises(SettingsError, match=message):
        deployment(address)
    with pytest.raises(SettingsError, match=message):
        FollowingActor().follow(address)


def test_an_actor_says_that_it_follows_nothing() -> None:
    from paramsync.ray import FollowingActor

    with pytest.raises(SettingsError, match=r"FollowingActor: expected a call of follow\(\) before parameters\(\)"):
        FollowingActor().parameters(0)


def test_an_actor_says_why_no_version_comes(tmp_path: Path) -> None:
    from paramsync.ray import FollowingActor

    CopyNote("s3://bucket/policy", reason="there is no such bucket").write(tmp_path)
    actor = FollowingActor()
    actor.follow(tmp_path)
    with pytest.raises(TimeoutError, match="new enough: there is no such bucket"):
        actor.parameters(0)


def test_a_copy_stays_while_another_mirror_of_the_host_has_it(tmp_path: Path) -> None:
    from paramsync.ray import _remove

    lock = take_lock(tmp_path)
    _remove(tmp_path)
    assert tmp_path.exists()
    os.close(lock)
    _remove(tmp_path)
    assert not tmp_path.exists()


def test_an_actor_waits_for_parameters_that_are_new_enough(tmp_path: Path) -> None:
    from paramsync.ray import FollowingActor, LearnerPublisher

    actor = FollowingActor()
    actor.follow(tmp_path, most_seconds=3600)
    with pytest.raises(TimeoutError, match="no version came"):
        actor.parameters(0)
    with LearnerPublisher(tmp_path) as learner:
        learner.publish(1, values={"w": np.ones(3, np.float32)}, wait=True)
        assert actor.parameters(0).version.number == 1
        actor.follow(tmp_path, most_seconds=0)
        with pytest.raises(TimeoutError, match="new enough"):
            actor.parameters(0)


def test_a_learner_counts_the_versions_since_a_sample_and_not_the_steps(tmp_path: Path) -> None:
    from paramsync.ray import LearnerPublisher

    for steps in ((100, 200), (300,)):  # the second learner goes on
        with LearnerPublisher(tmp_path) as learner:
            for step in steps:
                learner.publish(step, values={"w": np.full(3, step, np.float32)}, wait=True)
            accepted = [number for number in (100, 200, 300) if learner.accepts(number, most_versions=1)]
    assert accepted == [200, 300]


def test_an_actor_goes_on_with_the_version_before_a_damaged_one(tmp_path: Path) -> None:
    from paramsync.ray import FollowingActor, LearnerPublisher

    actor = FollowingActor()
    actor.follow(tmp_path)
    with LearnerPublisher(tmp_path) as learner:
        for step in (1, 2, 3):
            learner.publish(step, values={"w": np.full(1000, step, np.float32)}, wait=True)
            if step == 2:
                version = Store(tmp_path).latest()
                assert version is not None
                with (tmp_path / f"{version.prefix}.data-00000-of-00001").open("r+b") as file:
                    file.write(b"damage")
            assert actor.parameters(0)["w"][-1] == (1 if step == 2 else step)
