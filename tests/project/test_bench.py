"""The benchmarks, tiny: they run, they report every figure, and the quotients are quotients."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bench import options
from bench.__main__ import main
from bench.model import Subject

TINY = ["--mb", "1", "--runs", "1"]
STOCK = ("checkpoint", "saver", "savedmodel", "savedmodule", "h5")  # what TensorFlow brings along
SAVES = (
    "checkpoint_write",
    "saver_save",
    "savedmodel_export",
    "savedmodule_save",
    "h5_save",
    "safetensors_save",
    "orbax_save",
)
LOADS = (
    "checkpoint_read",
    "saver_restore",
    "savedmodel_load",
    "savedmodule_load",
    "h5_load",
    "safetensors_load",
    "orbax_restore",
)


# Keras hands variables to numpy in a way that numpy 2 warns about
_keras_warns = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.mark.slow
@_keras_warns
def test_publish_reports_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _measured("publish", capsys, "--folder", str(tmp_path), "--only", ",".join(STOCK))
    _check_peers(found, SAVES)
    _check_quotients(
        found,
        ours_over_memcpy=("ours", "memcpy"),
        ours_finite_over_ours=("ours_finite", "ours"),
        ours_signed_over_finite=("ours_signed", "ours_finite"),
        checkpoint_write_over_fresh=("checkpoint_write", "ours_fresh"),
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@_keras_warns
def test_restore_reports_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ("--large-mb", "4", "--only", ",".join(STOCK))
    found = _measured("restore", capsys, "--folder", str(tmp_path), *only)
    _check_peers(found, LOADS)
    _check_quotients(
        found,
        ours_over_memcpy=("ours", "memcpy"),
        checkpoint_read_over_sizes=("checkpoint_read", "ours_sizes"),
        sizes_large_over_sizes=("ours_sizes_large", "ours_sizes"),
        trusted_over_replica=("ours_trusted", "ours_replica"),
    )
    assert found["large_bytes"] == pytest.approx(4 * found["bytes"], rel=0.05)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_start_reports_what_a_first_answer_takes_beyond_the_import(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", *TINY, "--json", "-"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["beyond_import_ms"] == found["first_answer_ms"] - found["import_tensorflow_ms"]
    assert len(found["samples_ms"]["first_answer"]) == 1
    assert f"{found['beyond_import_ms']:.0f} ms beyond" in captured.err


@pytest.mark.parametrize(("benchmark", "peers"), [("publish", SAVES), ("restore", LOADS)])
def test_without_peers_ours_is_compared_with_a_copy_alone(
    benchmark: str, peers: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _measured(benchmark, capsys, "--folder", str(tmp_path), "--no-peers")
    assert set(found["absent"]) == set(peers)
    assert all(found[f"{name}_ms"] is None for name in peers)
    _check_quotients(found, ours_over_memcpy=("ours", "memcpy"))


@pytest.mark.slow
def test_delta_writes_what_is_not_frozen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _measured("delta", capsys, "--folder", str(tmp_path))
    _check_quotients(found, full_over_ours=("full", "ours"), full_over_compared=("full", "compared"))
    assert found["frozen_bytes"] == pytest.approx(0.95 * found["bytes"], rel=0.01)
    assert found["bytes_written_ratio"] == pytest.approx(1 - found["frozen_bytes"] / found["bytes"], abs=0.01)
    assert found["compared_bytes_written_ratio"] == found["bytes_written_ratio"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@_keras_warns
def test_call_reports_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["call", *TINY, "--parameters", "6,8", "--folder", str(tmp_path), "--json", "-"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert set(found["cases"]) == {
        f"{name}_threads_{threads}" for name in ("parameters_6", "parameters_8", "embedding") for threads in (1, 4)
    }
    for name, case in found["cases"].items():
        assert case["batch"] == 1
        assert f"_threads_{case['threads']}" in name
        assert name.startswith(("embedding", f"parameters_{case['parameters']}_"))
        for peer in options.CALLS:
            assert case[f"{peer}_us"] == statistics.median(case["samples_us"][peer])
            assert case[f"{peer}_over_ours"] == pytest.approx(case[f"{peer}_us"] / case["ours_us"])
    first = found["cases"]["parameters_6_threads_1"]
    assert all(found[f"{name}_us"] == first[f"{name}_us"] for name in ("ours", *options.CALLS))
    assert all(found[f"{name}_over_ours"] == first[f"{name}_over_ours"] for name in options.CALLS)
    assert {"ours_us", "session_us", "signature_us", "session_over_ours", "signature_over_ours"} <= found.keys()
    embedding = found["cases"]["embedding_threads_1"]
    assert embedding["bytes"] == pytest.approx(1e6, rel=0.05)
    assert embedding["first_call_ms"] == statistics.median(embedding["samples_ms"]["first_call"])
    assert embedding["handles_first_call_ms"] > 0
    assert found["absent"] == {}
    assert f"{found['ours_us']:.1f}" in captured.err
    assert list(tmp_path.iterdir()) == []


def test_call_without_peers_measures_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["call", *TINY, "--parameters", "6", "--no-peers", "--folder", str(tmp_path), "--json", "-"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["absent"]) == set(options.CALLS)
    assert found["ours_us"] > 0
    assert (found["session_us"], found["session_over_ours"]) == (None, None)


@pytest.mark.slow
@_keras_warns
def test_stall_reports_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _stalls(capsys, "--sizes", "2", "--folder", str(tmp_path), "--only", ",".join(options.SAVINGS[:3]))
    assert set(found["cases"]) == {
        f"mb_{size}_{pace}" for size in (1, 2) for pace in ("every_second", "every_10_steps")
    }
    assert found["absent"] == {"orbax_async": "not asked for"}
    for name, case in found["cases"].items():
        assert case["bytes"] == pytest.approx(1e6 * int(name.split("_")[1]), rel=0.05)
        for who in ("ours", *options.SAVINGS[:3]):
            stalls = case["samples_ms"][f"{who}_stall"]
            assert case[f"{who}_stall_ms_p50"] == pytest.approx(statistics.median(stalls))
            assert case[f"{who}_stall_ms_p50"] <= case[f"{who}_stall_ms_p99"] <= max(stalls)
            assert case[f"{who}_inflation_pct"] == statistics.median(case["samples_pct"][who])
        for who in options.SAVINGS[:3]:
            assert case[f"{who}_over_ours"] == case[f"{who}_stall_ms_p50"] / case["ours_stall_ms_p50"]
    top = found["cases"]["mb_1_every_second"]
    assert all(found[key] == value for key, value in top.items() if not key.startswith("samples"))
    assert list(tmp_path.iterdir()) == []


def test_stall_without_peers_measures_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _stalls(capsys, "--sizes", "1", "--folder", str(tmp_path), "--no-peers")
    assert set(found["absent"]) == set(options.SAVINGS)
    assert found["device"] == "CPU"
    assert found["variables"] == 4
    assert found["ours_stall_ms_p50"] > 0
    assert found["copy_share_pct"] > 0
    beyond = found["ours_inflation_pct"] - found["copy_share_pct"]
    assert found["ours_inflation_beyond_copy_pct"] == pytest.approx(beyond)
    assert (found["checkpoint_save_stall_ms_p50"], found["checkpoint_save_over_ours"]) == (None, None)


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU here")
def test_stall_on_a_gpu_is_refused_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stall", "--mb", "1", "--sizes", "1", "--device", "gpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "bench: --device gpu: expected a GPU that TensorFlow can use, found none; use --device cpu"


def test_the_conditions_are_part_of_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conditions = _measured("delta", capsys, "--folder", str(tmp_path))["conditions"]
    assert (conditions["runs"], conditions["tensors"], conditions["folder"]) == (1, 32, str(tmp_path))
    assert conditions["cores"] >= 1
    assert conditions["versions"]["numpy"]
    assert len(conditions["load_average_before"]) == len(conditions["load_average_after"]) == 3


def test_with_a_file_the_table_is_on_the_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delta", *TINY, "--folder", str(tmp_path), "--json", str(tmp_path / "delta.json")]) == 0
    found = json.loads((tmp_path / "delta.json").read_text())
    text = capsys.readouterr().out
    assert "delta: 1.0 MB in 32 tensors, medians of 1 rounds" in text
    assert f"{found['full_ms']:.2f}" in text


def _measured(benchmark: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What it prints: one JSON object, and nothing else."""
    assert main([benchmark, *TINY, *arguments, "--json", "-"]) == 0
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert found["benchmark"] == benchmark
    assert found["bytes"] == pytest.approx(1e6, rel=0.05)
    assert f"{found['ours_ms']:.2f}" in captured.err
    return found


def _stalls(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    tiny = ["--mb", "1", "--tensors", "4", "--seconds", "0.2", "--runs", "2"]
    assert main(["stall", *tiny, *arguments, "--json", "-"]) == 0
    captured = capsys.readouterr()
    found: dict[str, Any] = json.loads(captured.out)
    assert found["benchmark"] == "stall"
    assert f"{found['ours_stall_ms_p50']:.2f}" in captured.err
    return found


def _check_peers(found: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if name.startswith(STOCK):
            _check_quotients(found, **{f"{name}_over_ours": (name, "ours")})
        else:
            assert (found[f"{name}_ms"], found[f"{name}_over_ours"]) == (None, None)
            assert found["absent"][name] == "not asked for"


def _check_quotients(found: dict[str, Any], **quotients: tuple[str, str]) -> None:
    for key, (over, under) in quotients.items():
        assert found[f"{over}_ms"] == statistics.median(found["samples_ms"][over])
        assert found[key] == pytest.approx(found[f"{over}_ms"] / found[f"{under}_ms"])


def test_what_is_frozen_does_not_change() -> None:
    subject = Subject([np.zeros((2, 2), np.float32) for _ in range(3)], frozen=2)
    subject.train()
    assert [value.any() for value in subject.module.values()] == [False, False, True]
