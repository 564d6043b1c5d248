"""What tests share: how long the campaigns last, fixtures of several modules, and a server of what a test publishes.

Campaigns are short where they run with all other tests, and whole with `make campaign`.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from paramsync.checkpoint.file_pool import FilePool
    from paramsync.following.follower import Follower
    from paramsync.sources.watch import Watch
    from tests.support.bells import Bell
    from tests.support.control_ports import Pair
    from tests.support.in_process import InProcess
    from tests.support.inferencers import Process
    from tests.support.published import Publisher
    from tests.support.rewritten import Checkpoints
    from tests.support.running import Running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign", action="store_true", help="run the campaigns at their whole length")


def pytest_configure() -> None:
    # Examples are the same in every run, and have no deadline, which a busy machine would miss.
    settings.register_profile("paramsync", deadline=None, derandomize=True)
    settings.load_profile("paramsync")
    # Programs inherit which signals are ignored: those that tests start must hear what shells and nohup leave out.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of folders whose subject is files, for `make memory`, and those of an S3 server as slow."""
    for item in items:
        if "seaweedfs" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
        if item.path.parent.name in ("checkpoint", "store", "sources"):
            item.add_marker("stores")


@pytest.fixture(scope="session")
def whole(request: pytest.FixtureRequest) -> bool:
    """Whether the campaigns run at their whole length."""
    return bool(request.config.getoption("--campaign"))


@pytest.fixture
def inferencer() -> Iterator[str]:
    """The address of a server that speaks an inferencer's part of the contract."""
    from tests.support.servers import add_sync, serving

    with serving(add_sync) as address:
        yield address


@pytest.fixture
def nobody() -> str:
    """An address where no server is any more."""
    from tests.support.servers import serving

    with serving() as address:
        pass
    return address


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A trainer's control port and a client of it."""
    from tests.support.control_ports import paired

    with paired(tmp_path) as pair:
        yield pair


@pytest.fixture(params=[False, True], ids=["reference", "resource"])
def variable(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes variables of v1 graphs."""
    import tensorflow as tf

    def make(name: str, shape: tuple[int, ...]) -> Any:
        return tf.compat.v1.get_variable(name, shape, use_resource=request.param)

    return make


@pytest.fixture
def bell() -> Bell:
    from tests.support.bells import Bell

    return Bell()


@pytest.fixture
def watch(store: Path, bell: Bell) -> Iterator[Watch]:
    """On the store that a module has of its own, which need not be there yet."""
    from tests.support.bells import watch_on

    watch = watch_on(store, bell)
    yield watch
    watch.close()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """What calls of Gated wait for: at the latest at the end, for they compute on threads that all tests share."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in this machine's memory."""
    from paramsync.host.memory import is_memory

    shared = Path("/dev/shm")
    if not (shared.is_dir() and is_memory(shared.stat())):
        pytest.skip("this machine has no /dev/shm in memory")
    with tempfile.TemporaryDirectory(dir=shared) as found:
        yield Path(found)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder that is not in memory."""
    from paramsync.host.memory import is_memory

    if is_memory(tmp_path.stat()):
        pytest.skip("temporary files are in memory here")
    return tmp_path


@pytest.fixture
def spares(tmp_path: Path) -> Iterator[FilePool]:
    from paramsync.checkpoint.file_pool import FilePool

    one = FilePool(tmp_path)
    yield one
    one.close()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    from tests.support.rewritten import Checkpoints

    one = Checkpoints(tmp_path)
    yield one
    one.spares.close()


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    """Of the store of model `m`."""
    from tests.support.published import Publisher  # here, for many tests do without TensorFlow

    publisher = Publisher(tmp_path / "m")
    yield publisher
    publisher.close()


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    """Of model `m`, whose store need not be there yet; without its worker."""
    from tests.support.published import follower_of

    follower = follower_of(tmp_path / "m")
    yield follower
    follower.close()


@pytest.fixture
def working(follower: Follower) -> Follower:
    """With its worker, and no watch: it looks when it is asked to."""
    from tests.support.followers import SILENT

    follower.start(SILENT)
    return follower


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server of model `m`, whose store is empty as yet."""
    from tests.support.running import Running

    running = Running(tmp_path / "m")
    yield running
    running.close()


@pytest.fixture
def served(publisher: Publisher, running: Running) -> Running:
    """The same, with version 7."""
    from tests.support.running import synced

    publisher.publish(7)
    synced(running)
    return running


@pytest.fixture
def in_process(publisher: Publisher, tmp_path: Path) -> Iterator[InProcess]:
    """A worker's ports in this process, of model `m` with version 7."""
    from tests.support.in_process import InProcess

    running = InProcess(tmp_path / "m")
    running.restore(publisher.publish(7))
    yield running
    running.close()


@pytest.fixture
def echoing(tmp_path: Path) -> Iterator[Process]:
    """A server of model `m`, which gives back what it is given. It has one worker, whose limits can be reached."""
    from paramsync.v1 import sync_pb2
    from tests.support.echoes import Echoes
    from tests.support.inferencers import LONG, Process

    echoes = Echoes(tmp_path / "m")
    echoes.publish(4)
    program = Process("--model", f"m={tmp_path / 'm'}", "--rest-port", "0", "--workers", "1")
    program.connect()
    list(program.sync.Sync(sync_pb2.SyncRequest(), timeout=LONG))
    yield program
    program.close()
    echoes.close()
