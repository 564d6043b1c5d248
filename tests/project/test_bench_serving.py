"""The benchmarks of a server, on a megabyte: what they report, and that it can be true."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.__main__ import main

pytestmark = pytest.mark.slow


def test_freshness_reports_where_the_time_goes(capsys: pytest.CaptureFixture[str]) -> None:
    found = _measured(capsys, "freshness", "--runs", "1", "--only", "saver")
    assert 0 < found["ours_ms_p50"] <= found["ours_ms_p99"]
    assert found["ours_over_memcpy"] == pytest.approx(found["ours_ms"] / found["memcpy_ms"])
    assert found["saver_over_ours"] == pytest.approx(found["saver_ms"] / found["ours_ms"])
    assert found["absent"] == dict.fromkeys(("saver_poll", "savedmodel", "savedmodule"), "not asked for")
    assert (found["savedmodel_ms"], found["savedmodel_over_ours"]) == (None, None)
    assert list(found["phases"]) == ["pin", "publish", "notice", "restore", "answer"]
    assert sum(found["phases"].values()) < 2 * found["ours_ms_p99"]


def test_freshness_of_a_model_most_of_which_is_frozen_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = _measured(capsys, "freshness", "--runs", "1", "--no-peers", "--frozen", "95")
    assert found["conditions"]["frozen_pct"] == 95


def test_swap_reports_answers_without_and_with_swaps(capsys: pytest.CaptureFixture[str]) -> None:
    found = _measured(capsys, "swap", "--runs", "1", "--seconds", "1", "--only", "assign")
    assert list(found["cases"]) == ["embedding", "dense", "assign"]
    assert found["absent"] == {"savedmodel": "not asked for"}
    for case in found["cases"].values():
        assert 0 < case["quiet_p50_ms"] <= case["quiet_p99_ms"] <= case["quiet_p99_9_ms"]
        assert 0 < case["swap_p50_ms"] <= case["swap_p99_ms"] <= case["swap_p99_9_ms"]
        assert case["ratio_p99"] == case["swap_p99_ms"] / case["quiet_p99_ms"]
        assert case["requests"] > 0
        assert case["versions_per_second"] > 1
    for name in ("embedding", "dense"):
        assert (found["cases"][name]["failed"], found["cases"][name]["mixed"]) == (0, 0)
    assert all(found[key] == value for key, value in found["cases"]["embedding"].items())


def test_memory_reports_what_a_server_takes(capsys: pytest.CaptureFixture[str]) -> None:
    found = _measured(capsys, "memory", "--swaps", "15")
    assert found["swaps"] == len(found["samples_mb"]) == 15
    assert found["resident_mb"]["peak"] >= max(found["samples_mb"])
    assert found["resident_mb"]["late"] == max(found["samples_mb"])
    assert found["own_mb"] > 100
    assert {"growth_pct", "peak_over_model", "second_pct"} <= found.keys()


def test_workers_reports_rates_memory_and_what_clients_see(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workers", "--mb", "1", "--runs", "1", "--seconds", "1", "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    for count in (1, 8, 64):
        assert found[f"n_over_1_c{count}"] == found[f"n_per_second_c{count}"] / found[f"1_per_second_c{count}"]
    assert 0 < found["pss_over_model"] < 2
    assert 0 < found["replaced_worker_s"] < 60
    assert found["requests"] > found["newest"] > 100
    assert (found["failed"], found["backwards"]) == (0, 0)
    assert "was replaced, and answered" in captured.err


def test_serve_reports_every_case_beside_grpc_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--runs", "1", "--seconds", "0.1", "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    cases = found["cases"]
    assert set(cases) == {f"concurrency_{many}_batch_{batch}" for many in (1, 8, 64) for batch in (1, 32)}
    for case in cases.values():
        assert case["over_floor"] == case["ours_p50_us"] / case["floor_p50_us"]
        assert case["of_floor_rate"] == case["ours_per_second"] / case["floor_per_second"]
        assert 0 < case["ours_p50_us"] <= case["ours_p99_us"]
    assert found["over_floor_c1"] == cases["concurrency_1_batch_1"]["over_floor"]
    assert found["of_floor_rate_c64"] == cases["concurrency_64_batch_1"]["of_floor_rate"]
    assert "callers x rows" in captured.err


def test_exported_reports_both_forms_of_a_model_and_their_quotient(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exported", "--runs", "1", "--seconds", "0.1", "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["exported_of_published"] == found["exported_per_second"] / found["published_per_second"]
    assert found["exported_per_second"] > 0
    assert "answers a second as an export" in captured.err.replace("\n", " ")


def _measured(capsys: pytest.CaptureFixture[str], benchmark: str, *arguments: str) -> dict[str, Any]:
    """What it prints: one JSON object, and the same for people."""
    assert main([benchmark, "--mb", "1", *arguments, "--json", "-"]) == 0
    captured = capsys.readouterr()
    found: dict[str, Any] = json.loads(captured.out)
    assert found["benchmark"] == benchmark
    assert found["bytes"] == pytest.approx(1e6, rel=0.05)
    assert f"{benchmark}: 1.0 MB" in captured.err
    return found
