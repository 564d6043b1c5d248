"""What people read: text of others without what a terminal would execute, repeated failures once."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferencer.settings import settings
from paramsync.cli.formatting import console
from paramsync.cli.live import Last
from paramsync.cli.overview import status_view
from paramsync.errors import SettingsError
from paramsync.host.files import Repeats, harmless, line
from paramsync.v1 import sync_pb2 as pb
from tests.support.programs import refused


def test_what_a_terminal_would_take_for_a_command_is_written_out() -> None:
    assert line("a\n b\x1b[31m\x07\x9b1m") == r"a b\x1b[31m\x07\x9b1m"
    assert harmless("Größe, 模型") == "Größe, 模型"


def test_a_status_shows_names_and_reasons_without_what_a_terminal_would_take_for_a_command() -> None:
    screen = console()
    with screen.capture() as captured:
        model = pb.ModelStatus(model="m\x1b[2J", labels={"\x1b[31mred": 1}, reason="\x1b]0;title\x07")
        screen.print(status_view(None, {"server": Last(pb.GetStatusResponse(models=[model]))}, 0.0))
    assert "\x1b" not in captured.get()
    for text in (r"m\x1b[2J", r"\x1b[31mred is version 1", r"\x1b]0;title\x07"):
        assert text in captured.get()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models.m]\nstore='s'\nresident=" + "9" * 5000, "found a number of too many digits"),
        ("[models.m]\nstore='s'\nresident=0x" + "f" * 5000, "expected a whole number, found a number of too many"),
        ("[models.m]\nstore='s'\nlabels={stable=0x" + "f" * 5000 + "}", "expected the number of a version for stable"),
        ("[models.m]\nstore='~nosuchuser/x'", "who has no home here"),
    ],
    ids=["digits", "hexadecimal", "label", "home"],
)
def test_a_file_of_models_with_numbers_or_homes_that_nobody_has_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    config = tmp_path / "models.toml"
    config.write_text(text)
    with pytest.raises(SettingsError, match=said):
        settings.parse(["--config", str(config)])


def test_a_user_without_a_home_has_no_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert settings.parse(["--model", f"m={tmp_path}"]).state is None


def test_a_mistake_is_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    config = tmp_path / "models.toml"
    config.write_text('[models."a\\n\\u001b[31m"]\nstore = "s"\n')
    assert "\x1b" not in refused("inferencer", "--config", config)
    assert "it is no name of a host" in refused("inferencer", "--model", f"m={tmp_path}", "--host", "a..b")


def test_a_failure_is_told_once_and_then_at_each_power_of_ten() -> None:
    repeats = Repeats()
    told = [text for at in range(1, 1001) if (text := repeats.text(f"version {at} was not published: disk full"))]
    assert told == [
        "version 1 was not published: disk full",
        *(f"version {at} was not published: disk full (failure {at} of this kind in a row)" for at in (10, 100, 1000)),
    ]
    assert repeats.over() == 1000
    assert repeats.over() == 0


def test_another_failure_is_told_and_so_is_the_same_after_it_went_well() -> None:
    repeats = Repeats()
    assert [repeats.text(text) for text in ("a 1", "a 2", "b", "a 3")] == ["a 1", None, "b", "a 3"]
    assert repeats.over() == 1
    assert repeats.text("a 4") == "a 4"
