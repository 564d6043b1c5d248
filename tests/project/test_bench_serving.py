"""The benchmarks of a server, on a megabyte: what they report, and that it can be true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import h2load
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


@pytest.mark.skipif(not h2load.is_installed(), reason="there is no h2load here: apt-get install nghttp2-client")
def test_swap_reports_answers_without_and_with_swaps(capsys: pytest.CaptureFixture[str]) -> None:
    found = _measured(capsys, "swap", "--runs", "1", "--seconds", "1", "--only", "assign")
    assert list(found["cases"]) == ["embedding", "dense", "assign"]
    assert found["absent"] == {"savedmodel": "not asked for"}
    for case in found["cases"].values():
        assert 0 < case["quiet_p50_ms"] <= case["quiet_p99_ms"] <= case["quiet_p99_9_ms"]
        assert 0 < case["swap_p50_ms"] <= case["swap_p99_ms"] <= case["swap_p99_9_ms"]
        assert 0 < case["copied_p50_ms"] <= case["copied_p99_ms"] <= case["copied_p99_9_ms"]
        assert case["over_copied_p99"] == case["swap_p99_ms"] / case["copied_p99_ms"]
        assert case["ratio_p99"] == case["swap_p99_ms"] / case["quiet_p99_ms"]
        assert case["requests"] > 0
        assert case["versions_per_second"] > 0
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
    assert main(["workers", "--mb", "1", "--runs", "1", "--seconds", "0.9", "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    for count in (1, 8, 64):
        assert found[f"n_over_1_c{count}"] == found[f"n_per_second_c{count}"] / found[f"1_per_second_c{count}"]
    assert 0 < found["pss_over_model"] < 2
    assert 0 < found["replaced_worker_s"] < 60
    assert found["newest"] >= 100  # the first of the versions that come meanwhile
    assert found["requests"] > 0
    assert (found["failed"], found["backwards"]) == (0, 0)
    assert "was replaced, and answered" in captured.err


def test_tls_reports_rates_beside_those_in_plain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tls", "--runs", "1", "--seconds", "0.9", "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    for count in (1, 8, 64):
        assert (
            found[f"tls_over_plain_c{count}"] == found[f"tls_per_second_c{count}"] / found[f"plain_per_second_c{count}"]
        )
    assert "in plain" in captured.err


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


@pytest.mark.skipif(not h2load.is_installed(), reason="there is no h2load here: apt-get install nghttp2-client")
def test_peers_adds_to_what_was_measured_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = {"rate": 100.0, "p50_ms": 2.0, "p99_ms": 3.0}
    windows = {"quiet": [sample], "update": [sample | {"p99_ms": 9.0}]}
    versions = {"capacity_per_second": 100.0, "load_per_second": 40.0, "publish_ms": [50.0], "failed": 0}
    versions |= {"window_s": 2.0, **windows}
    cases = {f"c{callers}_b{batch}": [sample] for callers in (1, 8, 64) for batch in (1, 32)}
    file = tmp_path / "peers.json"
    file.write_text(json.dumps({"rates": {"triton": cases}, "updates": {"triton": [versions]}}))
    tiny = ["--mb", "1", "--runs", "1", "--seconds", "0.9"]
    assert main(["peers", *tiny, "--only", "tf_serving_emulated", "--merge", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["absent"] == dict.fromkeys(("mlserver", "ray_serve", "litserve"), "not asked for")
    assert (found["rate_over_mlserver_c64"], found["mlserver_update_p99_over_quiet"]) == (None, None)
    systems = found["systems"]
    assert list(systems) == ["ours_1", "ours_n", "tf_serving_emulated", "triton"]
    ours = systems["ours_n"]
    for name in ("tf_serving_emulated", "triton"):
        theirs = systems[name]["cases"]
        assert found[f"rate_over_{name}_c64"] == ours["cases"]["c64_b1"]["rate"] / theirs["c64_b1"]["rate"]
        assert found[f"latency_over_{name}_c1"] == ours["cases"]["c1_b1"]["p50_ms"] / theirs["c1_b1"]["p50_ms"]
    assert found["triton_update_p99_over_quiet"] == 3
    assert systems["triton"]["update"]["versions_per_second"] == 0.5
    for system in systems.values():
        update = system["update"]
        assert system["cases"].keys() == cases.keys()
        assert all(0 < case["p50_ms"] <= case["p99_ms"] for case in system["cases"].values())
        assert update["p99_over_quiet"] == update["update"]["p99_ms"] / update["quiet"]["p99_ms"]
        assert update["failed"] == 0
    assert found["update_p99_over_quiet"] == ours["update"]["p99_over_quiet"]
    assert "peers: 784-256-256-10, one row, and 1 MB once a second" in capsys.readouterr().out


def _measured(capsys: pytest.CaptureFixture[str], benchmark: str, *arguments: str) -> dict[str, Any]:
    """What it prints: one JSON object, and the same for people."""
    assert main([benchmark, "--mb", "1", *arguments, "--json", "-"]) == 0
    captured = capsys.readouterr()
    found: dict[str, Any] = json.loads(captured.out)
    assert found["benchmark"] == benchmark
    assert found["bytes"] == pytest.approx(1e6, rel=0.05)
    assert f"{benchmark}: 1.0 MB" in captured.err
    return found
