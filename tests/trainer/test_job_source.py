"""`--job MODULE:FUNCTION`: an error of the module is one line that says where."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from paramsync.errors import GraphError, SettingsError
from paramsync.publishing.job import Job, JobSettings
from tests.support import jobs
from trainer import job_source


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty directory, from which modules are imported again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})


def job(source: str, settings: JobSettings | None = None) -> Job:
    return job_source.make(source, job_source.find(source), settings or JobSettings())


def refusal(source: str) -> str:
    with pytest.raises(SettingsError) as refused:
        job(source)
    text = str(refused.value)
    assert text.startswith(f"--job {source}: ")
    assert "\n" not in text
    return text


def test_a_module_in_the_current_directory_is_found_and_given_what_the_program_was_given(tmp_path: Path) -> None:
    jobs.put(tmp_path)
    (tmp_path / "wanted").write_text("3.5")
    made = job("small_job:small", JobSettings(seed=5, data=tmp_path / "wanted"))
    again = job("small_job:small", JobSettings(seed=5))
    for one, other in zip(made.model.variables, again.model.variables, strict=True):
        assert (one.numpy() == other.numpy()).all()
    losses = [float(made.train_step()) for _ in range(500)]
    assert losses[-1] < 0.01
    assert float(made.model(tf.ones([1, 4]))[0, 0]) == pytest.approx(3.5, abs=0.1)


def test_the_default_job_is_the_digits(tmp_path: Path) -> None:
    made = job(job_source.DEFAULT, JobSettings(held_out=tmp_path / "held-out.npz"))
    assert made.steps_per_epoch == 625
    assert (tmp_path / "held-out.npz").exists()


@pytest.mark.parametrize(
    ("content", "source", "message"),
    [
        ("", "nosuch:f", "expected a module nosuch in {here} or among what is installed, found no module 'nosuch'"),
        ("import nosuch.other", "mine:f", "module mine cannot be imported: ModuleNotFoundError: No module named 'nos"),
        ("\n1 / 0", "mine:f", "cannot be imported: ZeroDivisionError: division by zero ({here}/mine.py, line 2)"),
        ("def f(:", "mine:f", "cannot be imported: SyntaxError: invalid syntax (mine.py, line 1)"),
        ("raise SystemExit('bye')", "mine:f", "cannot be imported: SystemExit: bye ({here}/mine.py, line 1)"),
        ("", "mine:f", "expected a function 'f' in {here}/mine.py, found no such name"),
        ("f = 7", "mine:f", "expected a function 'f' in {here}/mine.py, found int 'f'"),
        ("def f(settings): ...", "mine:f", "expected it to return a paramsync.Job, found NoneType"),
        ("def f(settings):\n  g()\ndef g():\n  {}['a']", "mine:f", "it failed: KeyError: 'a' ({here}/mine.py, line 4)"),
        (
            "from paramsync.publishing.job import Job\ndef f(settings): Job(model=1, step=2, train_step=3)",
            "mine:f",
            "Job.model: expected a keras.Model or tf.Module, found 1",
        ),
    ],
)
def test_what_is_wrong_with_a_job_is_one_line_that_says_where(
    tmp_path: Path, content: str, source: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(content)
    assert message.replace("{here}", str(tmp_path)) in refusal(source)


def test_errors_of_ours_that_are_not_about_settings_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from paramsync.errors import GraphError\ndef f(settings): raise GraphError('not built')"
    )
    with pytest.raises(GraphError, match=r"\Anot built\Z"):
        job("mine:f")


def parts(**changed: Any) -> dict[str, Any]:
    module = tf.Module()
    return {"model": module, "step": tf.Variable(0), "train_step": lambda: tf.zeros([]), **changed}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": None}, "Job.model: expected a keras.Model or tf.Module, found None"),
        ({"step": tf.Variable(0.0)}, "Job.step: expected a tf.Variable that holds one whole number, found"),
        ({"train_step": 3}, "Job.train_step: expected a function, found 3"),
        ({"steps_per_epoch": 0}, "Job.steps_per_epoch: expected a whole number of at least 1, or None, found 0"),
        ({"state": [tf.Variable(0)]}, "Job.state: expected a dict of objects by name, found ["),
        ({"state": {"step": tf.Variable(0)}}, "expected names other than model, step, root, save_counter, found 'st"),
    ],
)
def test_a_job_that_cannot_be_trained_is_refused_when_it_is_made(changed: dict[str, Any], message: str) -> None:
    Job(**parts())
    with pytest.raises(SettingsError, match=re.escape(message)):
        Job(**parts(**changed))


def test_steps_may_be_counted_by_a_keras_optimizer() -> None:
    import keras

    optimizer = keras.optimizers.SGD()
    assert int(Job(**parts(step=optimizer.iterations)).step) == 0


@pytest.mark.parametrize("loss", [tf.zeros([2]), tf.zeros([1]), None, "small"], ids=repr)
def test_a_first_step_that_tells_no_loss_is_refused(loss: Any) -> None:
    job = Job(**parts(step=tf.Variable(1)))
    for good in (tf.constant(0.5), tf.constant(float("nan"), tf.bfloat16), 0.5):
        job.check(1, good)
    with pytest.raises(SettingsError, match=r"Job\.train_step: expected it to return the loss, a scalar, found "):
        job.check(1, loss)
