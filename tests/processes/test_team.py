"""Where a worker finds its modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.errors import MachineError
from harness.processes import team


def test_a_revision_comes_first_and_this_checkout_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = Path(team.__file__).resolve().parents[2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(own), "/usr/lib/python3/site-packages", f"{own}/tests"])
    first, *others = team._python_path(Path("/base")).split(os.pathsep)
    assert Path(first) == Path("/base")
    assert others == [str(tmp_path), "/usr/lib/python3/site-packages", f"{own}/tests"]
    assert team._python_path(None).split(os.pathsep)[1] == str(own)


def test_the_environment_is_as_long_whatever_the_root() -> None:
    assert len({len(team._python_path(Path(root))) for root in ("/base", "/a/much/longer/path/to/a/checkout")}) == 1


def test_an_answer_in_another_code_s_words_is_no_crash_of_the_case(tmp_path: Path) -> None:
    """Else a base that no longer speaks alike would look like one whose cases all fail, which nothing compares with."""
    worker = tmp_path / "harness" / "worker.py"
    worker.parent.mkdir()
    (worker.parent / "__init__.py").touch()
    worker.write_text(
        "import os, sys\nos.write(int(sys.argv[sys.argv.index('--replies') + 1]), b'{\"kind\": \"x\"}\\n')\n"
    )
    odd = team.Team("cpu", (), 1, tmp_path)
    with pytest.raises(MachineError, match="in the words of another code") as caught:
        odd.gather()
    assert "nearer" in caught.value.advice
