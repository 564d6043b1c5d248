"""The benchmarks, tiny: each runs, reports every figure, and its quotients are quotients."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import settings
from bench.__main__ import main
from bench.timing import Contestant, measure
from tests.support.buckets import SeaweedFs

TINY = ["--mb", "1", "--runs", "1"]


def test_help_does_not_wait_for_numpy_or_tensorflow() -> None:
    guarded = """
import atexit, sys
atexit.register(lambda: sys.stderr.write(repr(sorted({'numpy', 'tensorflow', 'rich'} & set(sys.modules)))))
from bench.__main__ import main
main(['restore', '--help'])
"""
    ended = subprocess.run([sys.executable, "-c", guarded], capture_output=True, text=True, check=True)
    assert ended.stderr == "[]"
    assert "--json PATH" in ended.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "publish --mb nan",
        "publish --only tape",
        "publish --only saver --no-peers",
        "stall --tensors 5",
        "freshness --frozen 100",
        "swap --load 1",
    ],
)
def test_wrong_arguments_get_the_usage_and_exit_code_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m bench")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("publish --mb 999999 --folder {folder}", "bench: --folder: expected room for"),
        ("publish --json {folder}/nosuch/a.json", "bench: --json "),
        ("publish --mb 0.001", "bench: --mb 0.001: expected at least 1 KiB for each of 32 tensors"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(
    arguments: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.format(folder=tmp_path).split()) == 2
    assert capsys.readouterr().err.startswith(expected)


# How contestants are timed --------------------------------------------------------------------------------------------


def _track(rounds: Iterable[int], count: int) -> Iterable[int]:
    return rounds


def test_contestants_take_turns_in_every_round() -> None:
    calls: list[str] = []
    contestants = [Contestant(name=name, run=partial(calls.append, name)) for name in "abc"]
    timings = measure(contestants, runs=4, between=lambda: calls.append("|"), order=random.Random(0), track=_track)
    rounds = "".join(calls).split("|")[1:]
    assert len(rounds) == 5
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 1
    assert {name: len(samples) for name, samples in timings.samples.items()} == {"a": 4, "b": 4, "c": 4}


def _fail() -> None:
    raise OSError("out of tape")


def test_a_peer_that_fails_is_absent_with_its_reason() -> None:
    contestants = [Contestant(name="peer", run=_fail, optional=True), Contestant(name="ours", run=lambda: None)]
    figures = measure(contestants, runs=1, order=random.Random(0), track=_track).figures()
    assert figures["absent"] == {"peer": "failed: OSError: out of tape"}
    assert "ours_ms" in figures
    assert "peer_ms" not in figures


# Each benchmark -------------------------------------------------------------------------------------------------------


def test_without_peers_ours_is_compared_with_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, text = _run(capsys, "publish", *TINY, "--no-peers", "--folder", str(tmp_path))
    assert figures["absent"] == dict.fromkeys(settings.FORMATS, "not asked for")
    assert figures["bytes"] == 1e6
    _check_quotients(
        figures, ours_over_memcpy=("ours", "memcpy"), ours_signed_over_finite=("ours_signed", "ours_finite")
    )
    assert "publish: 1.0 MB, medians of 1 rounds" in text
    assert f"{figures['ours_ms']:.2f}" in text
    conditions = figures["conditions"]
    assert (conditions["runs"], conditions["tensors"], conditions["folder"]) == (1, 32, str(tmp_path))
    assert conditions["versions"]["numpy"]
    assert len(conditions["load_average_before"]) == len(conditions["load_average_after"]) == 3
    assert list(tmp_path.iterdir()) == []


# Keras hands variables to numpy in a way that numpy 2 warns about
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
@pytest.mark.parametrize("benchmark", ["publish", "restore"])
def test_tensorflows_ways_to_save_and_load_are_measured(benchmark: str, capsys: pytest.CaptureFixture[str]) -> None:
    figures, _ = _run(capsys, benchmark, *TINY, "--only", "checkpoint,saver,savedmodel")
    assert figures["absent"] == {"safetensors": "not asked for"}
    for name in ("checkpoint", "saver", "savedmodel"):
        _check_quotients(figures, **{f"{name}_over_ours": (name, "ours")})


@pytest.mark.slow
def test_stall_reports_ours_and_its_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--mb", "1", "--tensors", "4", "--seconds", "1.2", "--runs", "2", "--folder", str(tmp_path)]
    figures, text = _run(capsys, "stall", *tiny)
    assert (figures["device"], figures["variables"], figures["absent"]) == ("CPU", 4, {})
    for name in ("ours", *settings.SAVINGS):
        stalls = figures["samples_ms"][f"{name}_stall"]
        assert figures[f"{name}_stall_ms_p50"] == pytest.approx(statistics.median(stalls))
        assert figures[f"{name}_stall_ms_p50"] <= figures[f"{name}_stall_ms_p99"] <= max(stalls)
        assert figures[f"{name}_inflation_pct"] == statistics.median(figures["samples_pct"][name])
    for name in settings.SAVINGS:
        assert figures[f"{name}_over_ours"] == figures[f"{name}_stall_ms_p50"] / figures["ours_stall_ms_p50"]
    assert f"{figures['ours_stall_ms_p50']:.2f}" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_freshness_reports_where_the_time_goes(capsys: pytest.CaptureFixture[str]) -> None:
    figures, _ = _run(capsys, "freshness", *TINY, "--only", "saver", "--frozen", "50")
    assert 0 < figures["ours_ms_p50"] <= figures["ours_ms_p99"]
    assert figures["saver_over_ours"] == pytest.approx(figures["saver_ms"] / figures["ours_ms"])
    assert figures["absent"] == {"savedmodel": "not asked for"}
    assert figures["conditions"]["frozen_pct"] == 50
    assert list(figures["phases"]) == ["pin", "publish", "notice", "restore", "answer"]


@pytest.mark.slow
def test_swap_reports_quiet_swapping_and_copying(capsys: pytest.CaptureFixture[str]) -> None:
    figures, text = _run(capsys, "swap", *TINY, "--seconds", "1")
    assert list(figures["cases"]) == ["embedding", "dense"]
    for case in figures["cases"].values():
        for window in ("quiet", "swap", "copied"):
            assert 0 < case[f"{window}_p50_ms"] <= case[f"{window}_p99_ms"] <= case[f"{window}_p99_9_ms"]
        assert case["over_copied_p99"] == case["swap_p99_ms"] / case["copied_p99_ms"]
        assert case["ratio_p99"] == case["swap_p99_ms"] / case["quiet_p99_ms"]
        assert case["versions_per_second"] > 0
        assert case["requests"] > 0
        assert (case["failed"], case["mixed"]) == (0, 0)
    assert "p99, swap / copied" in text


@pytest.mark.slow
def test_serve_reports_every_case_beside_plain_grpc(capsys: pytest.CaptureFixture[str]) -> None:
    figures, text = _run(capsys, "serve", "--runs", "1", "--seconds", "0.5")
    cases = figures["cases"]
    assert set(cases) == {f"concurrency_{many}_batch_{batch}" for many in (1, 8, 64) for batch in (1, 32)}
    for case in cases.values():
        assert case["of_floor_rate"] == case["ours_per_second"] / case["floor_per_second"]
        assert case["of_grpcio_rate"] == case["ours_per_second"] / case["grpcio_per_second"]
        assert 0 < case["ours_p50_ms"] <= case["ours_p99_ms"]
    assert figures["of_floor_rate_c64"] == cases["concurrency_64_batch_1"]["of_floor_rate"]
    assert "callers x rows" in text


@pytest.mark.slow
def test_workers_reports_rates_memory_and_what_clients_see(capsys: pytest.CaptureFixture[str]) -> None:
    figures, text = _run(capsys, "workers", *TINY, "--seconds", "0.9")
    for count in (1, 8, 64):
        assert figures[f"n_over_1_c{count}"] == figures[f"n_per_second_c{count}"] / figures[f"1_per_second_c{count}"]
    assert 0 < figures["pss_over_model"] < 2
    assert figures["replaced_worker_s"] > 0
    assert figures["newest"] >= 100  # the first of the versions that come meanwhile
    assert figures["requests"] > 0
    assert (figures["failed"], figures["backwards"]) == (0, 0)
    assert "was replaced, and answered" in text


@pytest.mark.slow
def test_mirror_reports_transfers_deltas_and_freshness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with SeaweedFs(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        figures, _ = _run(capsys, "mirror", *TINY, "--only", "transfers", "--address", f"s3://{server.bucket}/bench")
    _check_quotients(figures, upload_over_put=("ours_upload", "put"), download_over_get=("ours_download", "get"))
    assert figures["memory_up_mb"] > 0
    assert figures["memory_down_mb"] > 0
    assert list(figures["phases"]) == ["publish", "upload", "download"]
    assert figures["ours_fresh_told_ms"] > 0
    for share in ("all", "5_pct", "1_pct"):
        assert figures[f"sent_{share}"] > 0
        assert figures[f"ours_fresh_{share}_ms"] > 0
    for share in ("5_pct", "1_pct"):
        _check_quotients(
            figures, **{f"{way}_{share}_over_memcpy": (f"ours_{way}_{share}", "memcpy") for way in ("make", "apply")}
        )


@pytest.mark.slow
def test_mirror_reports_bytes_requests_and_stalls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with SeaweedFs(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        options = ("--only", "bytes,behind,requests,stall,moments,away", "--seconds", "1.2", "--address")
        figures, text = _run(capsys, "mirror", *TINY, *options, f"s3://{server.bucket}/bench")
    rows = figures["rows"]
    assert figures["absent"] == {"transfers": "not asked for"}
    assert [row["steps"] for row in rows["bytes"]] == 6 * [1, 10, 100]
    for row in rows["bytes"]:
        assert row["bfloat16 changed %"] < row["float32 changed %"]
        assert 0 < row["bfloat16 sent %"] < row["float32 sent %"] < 100
    assert [row["behind"] for row in rows["behind"]] == 3 * ["100", "10", "1", "all"]
    assert all(row["fetched %"] > row["direct delta %"] for row in rows["behind"])
    small, whole, busy, idle = rows["requests"]
    assert 3 <= small["PUT"] <= figures["most_puts"] <= 4
    assert whole["parts"] > 0
    assert (busy["PUT"], busy["LIST"], idle["LIST"]) == (0, 0, 0)
    assert idle["state"] < busy["state"] / 10
    assert [row["followers"] for row in rows["followers"]] == ["1"]
    assert len(rows["stall"]) == 3
    assert "a directory with a mirror" in text
    (moments,) = rows["moments"]
    assert (moments["replicas"], moments["versions"], moments["at all replicas"]) == ("2", "1", "1")
    assert (moments["early"], moments["failed"], moments["mixed"]) == ("0", "0", "0")
    (away,) = rows["away"]
    assert (away["failed"], away["backwards"]) == ("0", "0")


def _run(capsys: pytest.CaptureFixture[str], benchmark: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """The one line of JSON that it prints, and the table."""
    assert main([benchmark, *arguments, "--json", "-"]) == 0
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    figures: dict[str, Any] = json.loads(line)
    assert figures["benchmark"] == benchmark
    return figures, captured.err


def _check_quotients(figures: dict[str, Any], **quotients: tuple[str, str]) -> None:
    for key, (over, under) in quotients.items():
        assert figures[f"{over}_ms"] == statistics.median(figures["samples_ms"][over])
        assert figures[key] == pytest.approx(figures[f"{over}_ms"] / figures[f"{under}_ms"])
