"""A process in which code of others runs may die, or never end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import MachineError, UsageError
from harness.judge import asking, child
from tests.rare import rare


def export(tmp_path: Path, text: str, seconds: float = 60.0) -> dict[str, str]:
    (tmp_path / "candidate.py").write_text(text)
    return asking.ask("export", {"file": str(tmp_path / "candidate.py")}, seconds)


def test_an_answer(tmp_path: Path) -> None:
    assert export(tmp_path, "def export():\n    print('x')\n    return {'a': 1}\n") == {"manifest": '{"a": 1}'}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        rare("import os\nprint('pigs', flush=True)\nos._exit(7)\n", "the process ended by exit status 7 pigs"),
        ("import os\nprint('pigs', flush=True)\nos.abort()\n", "the process ended by signal SIGABRT"),
        rare("raise KeyError('a')\n", "KeyError: 'a'"),
        rare("import sys\nsys.exit(0)\n", "SystemExit: 0"),
    ],
)
def test_the_end_of_the_process_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(asking.AnswerError) as raised:
        export(tmp_path, text)
    assert str(raised.value).startswith(said)


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(asking.AnswerError, match="it doesn't end within 0 s"):
        export(tmp_path, "while True:\n    pass\n", 0.0)


@pytest.mark.slow  # test_an_error_in_an_answer_is_of_its_kind has such errors
def test_errors_of_the_harness_keep_their_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="isn't a file of Python"):
        asking.ask("export", {"file": str(tmp_path / "none.txt")}, 60.0)


@pytest.mark.parametrize("text", ["", "3", "null", "[1]", "[" * 100_000, '{"a": '])
@pytest.mark.parametrize(
    ("status", "ended"),
    [(0, "exit status 0"), (7, "exit status 7"), (-1, "signal SIGHUP"), (-9, "signal SIGKILL"), (-200, "signal 200")],
)
def test_what_is_no_answer_is_none(tmp_path: Path, text: str, status: int, ended: str) -> None:
    (tmp_path / "answer").write_text(text)
    with pytest.raises(asking.AnswerError) as raised:
        asking._read(tmp_path / "answer", status, "first\nsecond\nlast \x1b[31m\n\n")
    assert str(raised.value) == f"the process ended by {ended} last \ufffd[31m"
    with pytest.raises(asking.AnswerError, match=f"^the process ended by {ended}$"):
        asking._read(tmp_path / "none", status, "")


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, UsageError), (4, MachineError), (0, asking.AnswerError), ("2", asking.AnswerError), ([2], asking.AnswerError)],
)
def test_an_error_in_an_answer_is_of_its_kind(tmp_path: Path, code: object, kind: type[Exception]) -> None:
    (tmp_path / "answer").write_text(json.dumps({"error": "no \x1b", "advice": "mend", "code": code}))
    with pytest.raises(kind, match="no \ufffd") as raised:
        asking._read(tmp_path / "answer", 0, "")
    assert getattr(raised.value, "advice", "mend") == "mend"
    (tmp_path / "answer").write_text('{"error": 3}')
    with pytest.raises(asking.AnswerError, match="3"):
        asking._read(tmp_path / "answer", 0, "")


def test_every_action_has_a_name() -> None:
    assert {*child.ACTIONS} == {"survey", "calls", "export", "ladder"}
