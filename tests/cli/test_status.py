"""`paramsync status`: the view, 80 columns and pipes, `--watch` and `--check`, against a stub of the wire."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from paramsync.cli.__main__ import main
from paramsync.cli.live import Last
from paramsync.cli.overview import behind, lag, refusals, status_view
from paramsync.cli.servers import shares
from paramsync.cli.status import Level, check_server, summary
from paramsync.errors import NotReachableError
from paramsync.v1 import sync_pb2 as pb
from tests.support.commands import on_terminal, only_line
from tests.support.programs import ROOT, bounded
from tests.support.servers import SERVING, TRAINING, add_models, add_publisher, add_sync, serving

LONG = "recommender-candidate-generation-tower-european-union"
WAITING = pb.ModelStatus(model="手写数字识别模型", state=pb.ModelStatus.WAITING, reason="/store: no such directory")


def answered(*models: pb.ModelStatus, **more: Any) -> Last[pb.GetStatusResponse]:
    return Last(pb.GetStatusResponse(models=models, **more))


LOST: Last[pb.GetStatusResponse] = Last(None, 0.0, NotReachableError("inferencer", "10.0.0.4:8502", "refused"), 1.0)
FLEET = {
    "10.0.0.1:8502": answered(SERVING),
    "10.0.0.2:8502": answered(pb.ModelStatus(model=LONG, state=pb.ModelStatus.SERVING, lag_seconds=0, pinned=7)),
    "inference-3.eu-central-1.example.org:8502": answered(WAITING),
    "10.0.0.4:8502": LOST,
    "[2001:db8::5]:8502": answered(),
}


def drawn(servers: dict[str, Last[pb.GetStatusResponse]], *, width: int = 80, colours: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=colours, markup=False, _environ={"TERM": "xterm"})
    fresh = {server: replace(last, at=time.monotonic()) for server, last in servers.items()}
    console.print(status_view(TRAINING, fresh, 1010.0))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(("count", "width"), [(1, 40), (1, 80), (5, 60), (5, 120)])
def test_a_status_fits_its_terminal(width: int, count: int) -> None:
    servers = dict(list(FLEET.items())[:count])
    text = drawn(servers, width=width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "training on CPU, step 7, 412.0 steps/s" in " ".join(text.split())
    columns = " ".join(text.split())
    assert ("in memory" in columns) == (count == 1 and width >= 80)
    assert all(f"{fact} " in f"{columns} " for fact in ("digits", "serving", "420"))


def test_a_fleet_has_a_row_for_each_server_and_a_note_for_what_is_wrong() -> None:
    text = drawn(FLEET, width=200)
    rows = [line.split() for line in text.splitlines() if line.startswith(("10.", "inference", "["))]
    assert rows[0][:3] == ["10.0.0.4:8502", "–", "lost"]  # noqa: RUF001
    assert rows[1][2:] == ["no", "model", "is", "served", *["–"] * 5]  # noqa: RUF001
    assert rows[2][:5] == ["10.0.0.1:8502", "digits", "serving", "420", "421"]
    assert rows[3][:5] == ["10.0.0.2:8502", LONG, "serving", "–", "pinned"]  # noqa: RUF001
    assert "10.0.0.1:8502 digits: version 421 was refused 10 s ago: [not finite] dense/kernel" in text
    assert "手写数字识别模型: waits for a version: /store: no such directory" in text
    assert "ago: not reachable (refused)" in text


def replica(number: int | None, **more: Any) -> Last[pb.GetStatusResponse]:
    serving = None if number is None else pb.Version(number=number)
    return answered(pb.ModelStatus(model="m", state=pb.ModelStatus.SERVING, serving=serving, **more))


REPLICAS = {
    "even": replica(9, lag_seconds=0, swap_skew_seconds=0.012),
    "late": replica(9, lag_seconds=3, swap_skew_seconds=0.047),
    "lost": LOST,
    "old": replica(8, lag_seconds=2, swap_skew_seconds=5.0),
    "none": replica(None),
}


def test_the_slowest_replica_comes_first() -> None:
    text = drawn(REPLICAS)
    rows = [line.split()[0] for line in text.splitlines() if line.split() and line.split()[0] in REPLICAS]
    assert rows[:5] == ["lost", "none", "old", "late", "even"]


def test_a_fleet_says_which_versions_serve_on_how_many_servers_and_how_far_apart_they_swapped() -> None:
    text = " ".join(drawn(REPLICAS).split())
    shared = "version 9 on 2 servers (50%, swapped within 35 ms); version 8 on 1 server (25%); no version on 1 server"
    assert f"m: {shared} (25%)" in text
    assert " on 1 server" not in drawn({"a": replica(9)})
    assert [(one.version, one.share, one.skew_seconds) for one in shares(REPLICAS)] == [
        (9, 0.5, pytest.approx(0.035)),
        (8, 0.25, None),
        (None, 0.25, None),
    ]


def test_every_address_of_a_name_is_a_replica(
    nobody: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo

    def resolver(host: str, port: int, **more: Any) -> Any:
        hosts = ["127.0.0.3", "127.0.0.1", "127.0.0.2", "127.0.0.1"] if host == "replicas.svc" else [host]
        return [answer for at in hosts for answer in resolve(at, port, **more)]

    monkeypatch.setattr("socket.getaddrinfo", resolver)
    with serving(add_models(GOOD)) as first, serving(add_models(GOOD), at=f"127.0.0.2:{first.rpartition(':')[2]}"):
        port = first.rpartition(":")[2]
        assert main(["status", "--servers", f"dns:///replicas.svc:{port}", "--trainer", nobody, "--json"]) == 1
        out, err = capsys.readouterr()
        fleet = json.loads(out)
        assert [server["address"] for server in fleet["servers"]] == [f"127.0.0.{n}:{port}" for n in (1, 2, 3)]
        assert [server["error"] is None for server in fleet["servers"]] == [True, True, False]
        assert fleet["shares"] == [{"model": "m", "version": 7, "servers": 2, "share": 1.0, "skew_seconds": None}]
        assert f"inferencer not reachable at 127.0.0.3:{port}" in err
        assert main(["status", "--server", f"dns:///nothing.invalid:{port},{first}", "--trainer", nobody]) == 1
        out, err = capsys.readouterr()
        assert f"inferencer not reachable at nothing.invalid:{port}" in err
        assert "lost" in out
        assert first in out
    for wrong in ("dns:///replicas.svc", "dns://replicas.svc:8502"):
        assert main(["status", "--server", wrong]) == 2
        assert only_line(capsys.readouterr().err).endswith("or [::1]:8500, or dns:///NAME:PORT")


def test_what_is_wrong_is_red_and_what_waits_is_yellow() -> None:
    red, yellow = "\x1b[31m", "\x1b[33m"
    text = drawn(FLEET, colours=True, width=120)
    for word in ("lost", "10.0.0.1:8502 digits: version 421"):
        assert f"{red}{word}" in text
    assert f"{yellow}waiting" in text
    assert re.search(rf"{re.escape(yellow)}\d+ s behind", text)
    fine = pb.ModelStatus(model="m", state=pb.ModelStatus.SERVING, lag_seconds=0.2, signed_by="1f" * 8)
    text = drawn({"a": answered(fine)}, colours=True)
    assert red not in text
    assert yellow not in text
    assert f"m: signed by key {'1f' * 8}" in text
    fine.MergeFrom(pb.ModelStatus(publisher=pb.ModelStatus.DIED, publisher_since=998.0))
    assert f"{red}m: the trainer died 12 s ago" in drawn({"a": answered(fine)}, colours=True)


COPIED = pb.Copied(
    number=420, step_done_at=1000.0, published_at=1000.1, in_bucket_at=1000.4, here_at=1000.9, way="delta", deltas=2,
    bytes=2_700_000, size=268_000_000, seconds=0.3,
)  # fmt: skip
BUCKET = pb.Bucket(
    address="s3://b/digits", answered_at=1009.0, newest=422, behind=2, copied=COPIED, delta_bytes=5_000_000
)


def test_a_model_says_what_waits_for_its_moment_and_how_late_the_last_swap_was() -> None:
    model = pb.ModelStatus(model="m", serving=pb.Version(number=7), next=8, next_at=1000.0, swap_skew_seconds=0.05)
    text = drawn({"a": answered(model)}, width=120)
    at = time.strftime("%H:%M:%S", time.localtime(1000.0))
    assert f"m: version 8 serves at {at}, swapped 50 ms after its moment" in text


def test_a_model_that_follows_a_bucket_says_how_its_last_version_came() -> None:
    model = pb.ModelStatus(model="m", state=pb.ModelStatus.SERVING, bucket=BUCKET)
    text = drawn({"a": answered(model)})
    assert "m: bucket s3://b/digits answered 1.0 s ago, 2 versions to fetch\n" in text
    assert "m: version 420 came as 2 deltas, 2.7 MB of 268 MB (1.0%)\n" in text
    assert "m: version 420: publish 100 ms, upload 300 ms, download 500 ms\n" in text
    model.bucket.copied.served_at = 1001.0
    assert "download 500 ms, serve 100 ms\n" in drawn({"a": answered(model)})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"reason": "s3://b/digits: access is denied"}, "m: bucket s3://b/digits: access is denied"),
        ({"answered_at": 900.0}, "m: bucket s3://b/digits: no answer for 110 s"),
        ({"answered_at": 900.0, "reason": "refused"}, "m: bucket s3://b/digits: no answer for 110 s: refused"),
    ],
)
def test_a_bucket_that_fails_is_red(change: dict[str, Any], text: str) -> None:
    model = pb.ModelStatus(model="m", state=pb.ModelStatus.SERVING, bucket=BUCKET)
    model.bucket.MergeFrom(pb.Bucket(**change))
    servers = {"a": answered(model), "b": answered(model)}
    assert f"\x1b[31m{text}" in drawn({"a": answered(model)}, colours=True)
    assert f"\x1b[31mb {text}" in drawn(servers, colours=True, width=120)


def test_a_trainer_says_how_its_versions_get_into_the_bucket() -> None:
    training = pb.PublisherStatus(bucket=BUCKET)

    def text() -> str:
        console = Console(file=io.StringIO(), width=80, markup=False)
        console.print(status_view(training, {}, 1010.9))
        return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]

    assert "trainer: version 420 in the bucket 10 s ago, as 2 deltas, 2.7 MB of 268 MB (1.0%)" in text()
    assert "trainer: bucket s3://b/digits answered 1.9 s ago, 5.0 MB sent" in text()
    training.bucket.waiting_since = 990.9
    assert "(1.0%), versions have waited for 20 s" in text()
    training.bucket.ClearField("copied")
    assert "trainer: no version of this publisher is in the bucket yet, versions have waited for 20 s" in text()


def refused(*numbers: int, why: str = "/store/ckpt-{}.data: found NaN") -> list[pb.Quarantine]:
    return [pb.Quarantine(number=number, reason=why.format(number), since=1000.0 + number) for number in numbers]


@pytest.mark.parametrize(
    ("quarantined", "sentences"),
    [
        ([], []),
        (refused(7), ["version 7 was refused 3.0 s ago: /store/ckpt-7.data: found NaN"]),
        (refused(5, 6, 7), ["versions 5, 6 and 7 were refused, the last 3.0 s ago: /store/ckpt-7.data: found NaN"]),
        (
            refused(*range(1, 8)),
            ["7 versions from 1 to 7 were refused, the last 3.0 s ago: /store/ckpt-7.data: found NaN"],
        ),
        (
            [*refused(4, why="cut"), *refused(5), *refused(6, why="cut"), *refused(7)],
            [
                "versions 4 and 6 were refused, the last 4.0 s ago: cut",
                "versions 5 and 7 were refused, the last 3.0 s ago: /store/ckpt-7.data: found NaN",
            ],
        ),
    ],
)
def test_versions_refused_for_one_reason_are_one_sentence(quarantined: Any, sentences: list[str]) -> None:
    assert refusals(quarantined, 1010.0) == sentences


@pytest.mark.parametrize(
    ("status", "seconds", "text"),
    [
        (pb.ModelStatus(lag_seconds=3.2, lag_steps=9, lag_versions=24), 0, "3.2 s behind, 9 steps, 24 versions"),
        (pb.ModelStatus(lag_seconds=3.2, lag_steps=1), 2, "5.2 s behind, 1 step"),
        (pb.ModelStatus(lag_seconds=0, lag_steps=0), 60, "up to date"),
        (pb.ModelStatus(lag_steps=5), 0, "5 steps behind"),
        (pb.ModelStatus(), 0, "–"),  # noqa: RUF001
    ],
)
def test_a_lag_in_words(status: pb.ModelStatus, seconds: float, text: str) -> None:
    assert behind(status, seconds) == text
    assert lag(SERVING) == "12 s, 1 step"


@pytest.fixture(scope="module")
def trainer() -> Iterator[str]:
    with serving(add_publisher) as address:
        yield address


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(add_sync) as address:
        yield address


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_nothing_is_coloured_if_that_is_not_wanted(server: str, trainer: str, environment: dict[str, str]) -> None:
    words = ["status", "--server", server, "--trainer", trainer]
    code, text = on_terminal(*words, columns=50, **{"TERM": "xterm", **environment})
    assert code == 0
    assert "\x1b[3" not in text
    assert ("\x1b" in text) == ("NO_COLOR" in environment)  # bold is no colour
    assert max(map(len, text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= 50


def test_the_absence_of_one_program_leaves_the_status_of_the_other(
    server: str, trainer: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--server", server, "--trainer", nobody]) == 0
    out, err = capsys.readouterr()
    assert only_line(err).startswith(f"paramsync status: trainer not reachable at {nobody}")
    assert "digits" in out
    assert main(["status", "--server", nobody, "--trainer", trainer]) == 1
    out, err = capsys.readouterr()
    assert only_line(err).startswith(f"paramsync status: inferencer not reachable at {nobody}")
    assert "CPU" in out
    assert main(["status", "--server", server]) == 0  # servers are named, and the trainer is not
    assert "trainer" not in capsys.readouterr().err
    assert main(["status", "cats", "--server", server]) == 1
    assert only_line(capsys.readouterr().err) == "paramsync status: model 'cats' is not served here; served: 'digits'"


def test_a_fleet_is_shown_though_a_server_refuses_and_the_refusal_names_the_server(
    server: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(add_models(pb.ModelStatus(model="cats", state=pb.ModelStatus.SERVING))) as other:
        assert main(["status", "cats", "--server", f"{server},{other}", "--trainer", nobody]) == 1
    out, err = capsys.readouterr()
    assert [other, "cats", "serving"] in [row.split()[:3] for row in out.splitlines()]
    assert f"paramsync status: {server}: model 'cats' is not served here; served: 'digits'\n" in err


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["lines", "json"])
def test_a_watch_tells_of_a_server_that_is_lost_and_back(form: list[str], nobody: str) -> None:
    command = [sys.executable, "-m", "paramsync.cli", "status", "--watch", "--trainer", nobody, *form]
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serving(add_sync))
        with bounded(subprocess.Popen([*command, "--server", address], stdout=subprocess.PIPE, text=True)) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            stack.close()
            lost = process.stdout.readline()
            with serving(add_sync, at=address):
                back = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
    if form:
        servers = [json.loads(line)["servers"][0] for line in (first, lost, back)]
        assert ["not reachable" in (server["error"] or "") for server in servers] == [False, True, False]
        assert [server["models"] is None for server in servers] == [False, True, False]
    else:
        assert "digits: version 420 serves; 12 s behind, 1 step; version 421 is refused: [not finite]" in first
        assert f"{address}: lost: not reachable (" in lost
        assert back.endswith(f"{address}: answers again\n")


@pytest.mark.slow
def test_a_watch_draws_again_in_place_on_a_terminal(server: str, nobody: str) -> None:
    words = ["status", "--watch", "--server", server, "--trainer", nobody]
    code, text = on_terminal(*words, columns=80, interrupt_at="\x1b[1A", TERM="xterm")  # up again, over what is there
    assert code == 130
    assert "\x1b[?25l" in text  # the cursor goes away
    assert text.rindex("\x1b[?25h") > text.rindex("serving")  # and comes back
    assert "Traceback" not in text


CASE = pb.Quarantine(number=8, reason="not finite", since=950)
NONE: dict[str, Any] = {"state": pb.ModelStatus.WAITING, "serving": None}
GOOD = pb.ModelStatus(
    model="m",
    state=pb.ModelStatus.SERVING,
    serving=pb.Version(number=7),
    published=pb.Version(number=7),
    lag_seconds=0,
    serving_age_seconds=500,
    publisher=pb.ModelStatus.TRAINING,
    publisher_since=900,
)


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        ({}, Level.GOOD, "version 7 serves"),
        ({"publisher": pb.ModelStatus.FINISHED}, Level.GOOD, "version 7 serves"),
        ({"pinned": 7, "lag_seconds": 60}, Level.GOOD, "version 7 serves"),
        ({"quarantined": [CASE]}, Level.GOOD, "version 7 serves"),  # and a newer one does
        ({"lag_seconds": 61}, Level.DEGRADED, "61 s behind"),
        ({"pinned": 7, "lag_seconds": 61}, Level.DEGRADED, "pinned, and 61 s behind"),
        ({"serving_age_seconds": 601}, Level.DEGRADED, "answers are 10 min old"),
        ({"publisher": pb.ModelStatus.DIED, "publisher_since": 988}, Level.DEGRADED, "the trainer died 12 s ago"),
        ({"reason": "/s: is empty"}, Level.DEGRADED, "/s: is empty"),
        ({"bucket": pb.Bucket(address="s3://b/m", answered_at=999)}, Level.GOOD, "version 7 serves"),
        (
            {"bucket": pb.Bucket(address="s3://b/m", answered_at=900)},
            Level.DEGRADED,
            "bucket s3://b/m: no answer for 100 s",
        ),
        (
            {"bucket": pb.Bucket(address="s3://us/m", addresses="s3://eu/m,s3://us/m", answered_at=999)},
            Level.DEGRADED,
            "bucket s3://us/m is followed in place of s3://eu/m: the log says why",
        ),
        (
            {"bucket": pb.Bucket(address="s3://eu/m", addresses="s3://eu/m,s3://us/m", answered_at=999)},
            Level.GOOD,
            "version 7 serves",
        ),
        ({"state": pb.ModelStatus.DRAINING}, Level.DEGRADED, "the server is stopping"),
        ({"state": pb.ModelStatus.DAMAGED}, Level.BAD, "version 7 serves and is damaged"),
        (NONE, Level.BAD, "no version serves: none has come"),
        ({**NONE, "reason": "/s: no such directory"}, Level.BAD, "no version serves: /s: no such directory"),
        (
            {"published": pb.Version(number=8), "quarantined": [CASE], "lag_seconds": 2},
            Level.DEGRADED,
            "the newest version, 8, is in quarantine: not finite",
        ),
        (
            {**NONE, "quarantined": [CASE]},
            Level.BAD,
            "no version serves: version 8 is in quarantine: not finite",
        ),
    ],
)
def test_what_a_check_says_of_a_model(change: dict[str, Any], level: Level, text: str) -> None:
    model = pb.ModelStatus()
    model.CopyFrom(GOOD)
    for name in change:
        model.ClearField(name)
    model.MergeFrom(pb.ModelStatus(**change))
    findings = check_server(pb.GetStatusResponse(models=[model]), 1000.0, max_lag=None, max_age=600)
    assert summary(list(findings)) == (level, f"m: {text}")


@pytest.mark.parametrize(
    ("states", "level", "text"),
    [
        (["ANSWERING", "ENDED"], Level.DEGRADED, "1 of 2 workers answer; late: 5.0 s behind"),
        (["STARTING", "ENDED"], Level.BAD, "no worker answers; late: 5.0 s behind"),
    ],
)
def test_a_check_names_the_worst_first(states: list[str], level: Level, text: str) -> None:
    workers = [pb.WorkerStatus(number=at, state=state) for at, state in enumerate(states)]
    late = pb.ModelStatus(model="late", serving=pb.Version(number=1), lag_seconds=5)
    report = pb.GetStatusResponse(models=[GOOD, late], workers=workers)
    assert summary(list(check_server(report, 1000.0, max_lag=4, max_age=None))) == (level, text)


def test_a_check_is_one_line_and_the_exit_code(server: str, nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, start in (
        (
            ["--server", server],
            1,
            "degraded: 1 of 2 workers answer; digits: the newest version, 421, is in ",
        ),
        (["--server", nobody], 2, f"bad: inferencer not reachable at {nobody}"),
        (["--server", f"{server},{nobody}", "--max-lag", "11"], 2, f"bad: {nobody} not reachable"),
        (["cats", "--server", server], 2, "bad: model 'cats' is not served here"),
    ):
        assert main(["status", "--check", *words]) == code
        out, err = capsys.readouterr()
        assert only_line(out).startswith(start)
        assert err == ""
    with serving(add_models(GOOD)) as address:
        subprocess.run([sys.executable, "-c", CHECK, address], cwd=ROOT, check=True)


CHECK = """
import sys
from paramsync.cli.__main__ import main
main(["status", "--check", "--server", sys.argv[1]])
assert not {"rich", "tensorflow", "numpy"} & set(sys.modules)
"""


@pytest.mark.parametrize("typed", ["--check --json", "--check --watch", "--max-lag 3", "--max-age 3"])
def test_options_that_do_not_go_together_are_refused(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", *typed.split()]) == 2
    assert "--check" in capsys.readouterr().err
