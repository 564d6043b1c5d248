"""Where to install from what is missing: from where this was, and from no name that anybody may publish."""

from __future__ import annotations

import json

import pytest

from paramsync.program.packages import install, requirement, with_tensorflow

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VCS = {"vcs": "git", "commit_id": COMMIT}


@pytest.mark.parametrize(
    ("source", "required"),
    [
        (None, "'paramsync[traces]'"),  # from an index, which has that name
        (
            {"url": "file:///src/paramsync", "dir_info": {"editable": True}},
            "'paramsync[traces] @ file:///src/paramsync'",
        ),
        ({"url": "https://a.example/p.whl", "archive_info": {}}, "'paramsync[traces] @ https://a.example/p.whl'"),
        ({"url": "https://a.example/p", "vcs_info": VCS}, f"'paramsync[traces] @ git+https://a.example/p@{COMMIT}'"),
    ],
)
def test_an_extra_is_installed_from_where_this_was(source: object, required: str) -> None:
    assert requirement("traces", None if source is None else json.dumps(source)) == required


def test_an_import_without_tensorflow_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError) as refused, with_tensorflow("paramsync.keras"):
        raise ModuleNotFoundError("No module named 'keras'", name="keras.callbacks")
    expected = f"paramsync.keras needs keras.callbacks, which is not installed: {install('tensorflow')}"
    assert str(refused.value) == expected


def test_an_import_that_fails_for_another_reason_is_left_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'mine'$"), with_tensorflow("paramsync.keras"):
        raise ModuleNotFoundError("No module named 'mine'", name="mine")
