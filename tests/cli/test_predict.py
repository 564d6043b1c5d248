"""`paramsync predict`, against a real server that speaks the contract, and the values given to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paramsync.cli.__main__ import main
from paramsync.cli.predict import read_value
from paramsync.errors import SettingsError
from tests.support.commands import only_line
from tests.support.servers import add_predictions, serving


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("COLUMNS", "80")
    with serving(add_predictions) as address:
        yield address


def test_predict_shows_the_version_and_the_greatest_of_each_row(
    predictions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(4, 10, 3, dtype=np.float32) * 1e-7)
    inputs = ["--input", f"image=@{tmp_path / 'a.npz'}:x", "--rows", "2"]
    assert main(["predict", "digits", *inputs, "--server", predictions]) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("digits: version 420 answered in ")
    assert columns.split() == ["row", "argmax", "image:", "float32", "[2,", "10]"]
    assert [row.split()[:2] for row in rows] == [["0", "3"], ["1", "4"]]


def test_predict_as_json_gives_every_value(
    predictions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", np.array([[1.5, np.inf]], np.float64))
    inputs = ["--input", f"image=@{tmp_path / 'a.npy'}", "--input", 'text=["é"]']
    assert main(["predict", "digits", *inputs, "--server", predictions, "--json"]) == 0
    found = json.loads(only_line(capsys.readouterr().out))
    assert found == {"model": "digits", "version": 420, "outputs": {"image": [[1.5, "inf"]], "text": ["é"]}}


def test_strings_are_shown_and_listed_whole(predictions: str, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = ["--input", r'rows=[["a\u0000", ""], ["\u0000b\u0000\u0000", "c"]]', "--input", r'one="d\u0000"']
    assert main(["predict", "digits", *inputs, "--server", predictions, "--json"]) == 0
    found = json.loads(only_line(capsys.readouterr().out))
    assert found["outputs"] == {"rows": [["a\0", ""], ["\0b\0\0", "c"]], "one": "d\0"}
    assert main(["predict", "digits", "--input", 'list=["first", "second"]', "--server", predictions]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [["row", "list:", "string", "[2]"], ["0", "first"], ["1", "second"]]


def test_whole_json_numbers_become_float32_where_the_model_asks_for_it(
    predictions: str, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = ["--input", "image=[[0, 1]]", "--input", "ids=[7]"]
    assert main(["predict", "strict", *inputs, "--server", predictions]) == 0
    text = capsys.readouterr().out
    assert "image: float32 [1, 2]" in text
    assert "ids: int64 [1]" in text


def test_arrays_from_files_keep_their_dtype(
    predictions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 2), np.int64))
    assert main(["predict", "strict", "--input", f"image=@{tmp_path / 'a.npy'}", "--server", predictions]) == 1
    assert "expected float32, found another" in only_line(capsys.readouterr().err)


def test_an_input_given_twice_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "digits", "--input", "image=1", "--input", "image=2"]) == 2
    assert only_line(capsys.readouterr().err) == "paramsync predict: input 'image': expected it once, found it again"


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("[[0.5, 1]]", "float32", (1, 2)),
        ("3", "int64", ()),
        ("[true, false]", "bool", (2,)),
        ('[["a"], ["bc"]]', "object", (2, 1)),
        ("[]", "float32", (0,)),
        ("[NaN, Infinity, -Infinity]", "float32", (3,)),
        ("[3.4e38, 100000000000000000000]", "float32", (2,)),
        ("[9223372036854775807, -9223372036854775808]", "int64", (2,)),
    ],
)
def test_json_values_become_arrays(text: str, dtype: str, shape: tuple[int, ...]) -> None:
    array = read_value("x", text).array
    assert (str(array.dtype), array.shape) == (dtype, shape)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1, 2", "expected JSON"),
        ("[[1], [1, 2]]", "expected rows of one length"),
        ('["a", 1]', "of one kind"),
        ("[1, 1e400]", "expected numbers that float32 has, found 1e400"),
        ("[[0.5, 1e39]]", r"expected numbers that float32 has, found 1e\+39; give other dtypes as @FILE.npy"),
        (f"[Infinity, 1{'0' * 39}]", "expected numbers that float32 has, found 1000"),
        ("[99999999999999999999]", "expected whole numbers that int64 has, found 99999999999999999999"),
        ("@nosuch.npy", "nosuch.npy: No such file"),
        ("@pyproject.toml", "expected JSON, @FILE.npy or @FILE.npz:KEY"),
        ("[" * 5000, "expected JSON"),
        (r'"\ud800"', "surrogates not allowed"),
        ("@two.npz", "expected one of the keys a, b, as in @two.npz:KEY, found none"),
        ("@two.npz:c", "expected one of the keys a, b, as in @two.npz:KEY, found c"),
        ("@damaged.npz:a", "damaged.npz: "),
        ("@vast.npy", "vast.npy: Unable to allocate 1.07 PiB"),
        ("@fifo.npy", "expected a regular file, found fifo.npy"),
        ("@text.npy", "input 'x': "),
        ("@objects.npy", "input 'x': "),
        ("@cut.npz:a", "input 'x': "),
    ],
)
def test_what_is_no_value_is_a_wrong_argument(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("two.npz", a=np.zeros(1), b=np.zeros(1))
    Path("cut.npz").write_bytes(Path("two.npz").read_bytes()[:-40])
    np.savez_compressed("damaged.npz", a=np.arange(2000.0))
    content = bytearray(Path("damaged.npz").read_bytes())
    content[200:300] = bytes(100)
    Path("damaged.npz").write_bytes(content)
    with Path("vast.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (3 * 10**14,)})
    os.mkfifo("fifo.npy")
    Path("text.npy").write_text("hello")
    np.save("objects.npy", np.array([{}], object))
    with pytest.raises(SettingsError, match=why):
        read_value("x", text)
